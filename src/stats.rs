//! What has the store done, and what does it hold?
//!
//! Counters count from the opening of the store; the rest is as of the call.

use crate::options::PolicyKind;
use crate::units::{TableId, all_of};

/// What a pull, push or put of rows waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Wait {
    /// A slot: all are pinned, or hold a copy for a running checkpoint.
    Room,
    /// Dirty rows that have to be written before a slot is free.
    Flush,
    /// Compaction, because the files on disk are too many or a flush has no room beside them.
    Compaction,
    /// Rows that another batch is reading.
    OtherBatch,
    /// Its own reads.
    Device,
}

impl Wait {
    /// All of them. A later version may have more.
    pub const ALL: &'static [Wait] = &all_of!(Wait: Room, Flush, Compaction, OtherBatch, Device);

    /// For logs and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Wait::Room => "room",
            Wait::Flush => "flush",
            Wait::Compaction => "compaction",
            Wait::OtherBatch => "other_batch",
            Wait::Device => "device",
        }
    }

    /// Whether it is a wait for a free slot, as [`Stats::stall_us`] counts it.
    #[must_use]
    pub fn is_stall(self) -> bool {
        matches!(self, Wait::Room | Wait::Flush | Wait::Compaction)
    }
}

const _: () = {
    let mut index = 0;
    while index < Wait::ALL.len() {
        assert!(
            Wait::ALL[index] as usize == index,
            "its number is its place"
        );
        index += 1;
    }
};

/// Buckets of [`WaitStats::histogram`]: the last is of all waits of about 17 seconds and more.
pub const WAIT_BUCKETS: usize = 26;

/// How often, and how long, batches waited for one reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitStats {
    /// Waits.
    pub count: u64,
    /// All together, in microseconds.
    pub us: u64,
    /// The longest, in microseconds.
    pub us_max: u64,
    /// Waits by length: bucket 0 is of those below 1 us, bucket i of those from 2^(i-1) us on.
    pub histogram: [u64; WAIT_BUCKETS],
}

/// What the store counts for one table.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct TableStats {
    /// Its number.
    pub id: TableId,
    /// Its name.
    pub name: String,
    /// Which of its rows leave memory first.
    pub policy: PolicyKind,
    /// Distinct keys asked per batch, summed; keys never pushed are left out.
    pub unique_asked: u64,
    /// Those of them that were resident. The others were read from a device.
    pub unique_hits: u64,
    /// Rows given to callers by pull and `lease.read`, duplicates included.
    pub rows_read: u64,
    /// Rows changed by push, duplicates counted once.
    pub rows_pushed: u64,
    /// Bytes of these rows.
    pub bytes_pushed: u64,
    /// Keys whose rows were written by put.
    pub rows_put: u64,
    /// Bytes of these rows.
    pub bytes_put: u64,
    /// Gradients, and values put, that were not finite.
    pub non_finite: u64,
    /// Rows and tombstones written by flushes and checkpoints; compactions are left out.
    pub rows_flushed: u64,
    /// Rows that left memory to make room.
    pub rows_evicted: u64,
    /// Rows pinned by leases.
    pub pinned_rows: u64,
    /// Rows in memory.
    pub resident_rows: u64,
    /// Rows that fit.
    pub capacity_rows: u64,
    /// Rows changed since they were last written.
    pub dirty_rows: u64,
    /// Memory of its caches that was touched.
    pub cache_bytes: u64,
    /// Memory of its index.
    pub index_bytes: u64,
    /// Keys in its index, tombstones included.
    pub index_keys: u64,
    /// Passes whose rows stay ([`PolicyKind::Cached`]).
    pub blocks: u64,
    /// Blocks that left for another since the store was opened or the table was unfrozen.
    pub block_evictions: u64,
    /// By cause, in the order of [`Wait::ALL`].
    pub(crate) waits: [WaitStats; Wait::ALL.len()],
}

/// Pairs of a field's name and its number. A field that neither list has does not compile.
macro_rules! numbers {
    ($from:ident: $type:ident { $($field:ident,)* } beside { $($other:ident,)* }) => {{
        let $type { $($field,)* $($other: _,)* } = $from;
        vec![$((stringify!($field), u64::from(*$field)),)*]
    }};
}

impl TableStats {
    /// Each field that is a number, with its name.
    #[must_use]
    pub fn numbers(&self) -> Vec<(&'static str, u64)> {
        numbers!(self: TableStats {
            unique_asked, unique_hits, rows_read, rows_pushed, bytes_pushed, rows_put, bytes_put,
            non_finite, rows_flushed, rows_evicted, pinned_rows, resident_rows, capacity_rows,
            dirty_rows, cache_bytes, index_bytes, index_keys, blocks, block_evictions,
        } beside { id, name, policy, waits, })
    }

    /// Share of distinct keys that were resident; keys never pushed are left out. 1 before the
    /// first such key.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        share_of(self.unique_hits, self.unique_asked)
    }

    /// What its pulls, pushes and puts waited for, by cause: each once, those that never came too. A
    /// batch waits in each shard for itself: times of shards that are served at the same time add up.
    ///
    /// ```
    /// # fn tell(table: &hps::TableStats) {
    /// for (cause, waits) in table.waits() {
    ///     println!("{}: {} for {}, {} us", table.name, waits.count, cause.name(), waits.us);
    /// }
    /// # }
    /// ```
    pub fn waits(&self) -> impl ExactSizeIterator<Item = (Wait, &WaitStats)> {
        Wait::ALL.iter().copied().zip(&self.waits)
    }

    /// What its pulls, pushes and puts waited for one reason.
    #[must_use]
    pub fn wait(&self, cause: Wait) -> &WaitStats {
        &self.waits[cause as usize]
    }
}

/// What the memory of caches is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CacheParts {
    /// The rows themselves.
    pub rows: u64,
    /// Their states: hash, pins, flags, frequency.
    pub states: u64,
    /// What finds a row by its hash.
    pub hash_table: u64,
    /// The order in which rows leave.
    pub order: u64,
    /// Frequencies of rows that left.
    pub frequencies: u64,
}

/// A reading of everything that the store counts.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Stats {
    /// I/O engine: "uring", "pread", "sim"; "uring+pread" where some queues use plain calls because
    /// the kernel gave no ring.
    pub io_engine: &'static str,
    /// Whether O_DIRECT is in force for every current file.
    pub direct_io: bool,
    /// Distinct keys asked per batch, summed; keys never pushed are left out.
    pub unique_asked: u64,
    /// Those of them that were resident.
    pub unique_hits: u64,
    /// Rows given to callers by pull and `lease.read`, duplicates included.
    pub rows_read: u64,
    /// Rows changed by push, duplicates counted once.
    pub rows_pushed: u64,
    /// Bytes of the rows changed by push.
    pub bytes_pushed: u64,
    /// Keys whose rows were written by put; one that is there twice in a call counts twice.
    pub rows_put: u64,
    /// Bytes of these rows.
    pub bytes_put: u64,
    /// Gradients, and values put, that were not finite.
    pub non_finite: u64,
    /// Rows that came back into memory after the open ([`crate::RuntimeOptions::warm`]).
    pub warmed_rows: u64,
    /// Rows that are still to come back, about; 1 before they were counted, 0 when that is over.
    pub warm_rows_left: u64,
    /// Device reads for rows.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Bytes written: flushes, checkpoints and compactions, key blocks and footers included.
    pub written_bytes: u64,
    /// Of these, by compactions.
    pub compaction_written_bytes: u64,
    /// Flushes of rows that leave memory, while a put runs perhaps of many files; and files of long puts.
    pub flushes: u64,
    /// Compactions.
    pub compactions: u64,
    /// Compactions that failed; [`crate::Store::directories`] says where and why.
    pub compaction_failures: u64,
    /// Checkpoints made durable.
    pub checkpoints: u64,
    /// Longest time that a pull, push or put waited for a free slot at a stretch, in microseconds.
    pub stall_us_max: u64,
    /// Time that pulls, pushes and puts waited for free slots, in microseconds: for room, for a flush or
    /// for a compaction. [`Stats::tables`] has it by cause.
    pub stall_us: u64,
    /// Longest cut of a checkpoint, in microseconds.
    pub cut_us_max: u64,
    /// Leases outstanding.
    pub leases: u64,
    /// Bytes that their slots take.
    pub lease_bytes: u64,
    /// Holds on checkpoints that were given and not dropped ([`crate::Store::hold`]).
    pub holds: u64,
    /// Rows pinned by leases.
    pub pinned_rows: u64,
    /// Rows in memory.
    pub resident_rows: u64,
    /// Rows that fit.
    pub capacity_rows: u64,
    /// Rows changed since they were last written.
    pub dirty_rows: u64,
    /// Rows changed since the last durable checkpoint's cut (dirty or flushed).
    pub uncheckpointed_rows: u64,
    /// Memory of caches: rows, state, hash, lists, frequency memory; what was touched of it.
    pub cache_bytes: u64,
    /// Of these, the rows themselves.
    pub cache_row_bytes: u64,
    /// Of these, the states of rows: hash, pins, flags, frequency.
    pub cache_state_bytes: u64,
    /// Of these, what finds a row by its hash.
    pub cache_hash_table_bytes: u64,
    /// Of these, the order in which rows leave.
    pub cache_order_bytes: u64,
    /// Of these, frequencies of rows that left.
    pub cache_frequency_bytes: u64,
    /// Memory of I/O buffers: those that are kept while the store is open.
    pub buffer_bytes: u64,
    /// Of these, what rows are read into.
    pub read_buffer_bytes: u64,
    /// Of these, what flushes and checkpoints write from.
    pub write_buffer_bytes: u64,
    /// Arrays of flushes and checkpoints that run: what is written where.
    pub flush_bytes: u64,
    /// Buffers and arrays of compactions that run.
    pub compaction_bytes: u64,
    /// Buffers and arrays of a warm restart that runs.
    pub warm_bytes: u64,
    /// Buffers of an index snapshot that is being written.
    pub snapshot_buffer_bytes: u64,
    /// Arrays of past batches, kept for the next ones.
    pub array_bytes: u64,
    /// Submission queues of io_uring.
    pub queues: u64,
    /// Those of them that use plain calls, because the kernel gave no ring.
    pub plain_queues: u64,
    /// Rings that failed and were replaced, by others or by plain calls.
    pub rings_lost: u64,
    /// Buffers of these queues.
    pub queue_buffers: u64,
    /// Those of them that are registered with the kernel.
    pub registered_buffers: u64,
    /// Memory of the index.
    pub index_bytes: u64,
    /// Keys in the index, tombstones included.
    pub index_keys: u64,
    /// Files of the current version.
    pub files: u64,
    /// Parameter files that are open.
    pub open_files: u64,
    /// Most that stay open: [`crate::RuntimeOptions::open_files_max`] or what it stands for.
    pub open_files_max: u64,
    /// Files that were opened again after they had been closed.
    pub files_reopened: u64,
    /// Those of them that no compaction takes any more: damaged, or unreadable.
    pub files_set_aside: u64,
    /// Data directories that are not compacted for a while, after a failure.
    pub directories_paused: u64,
    /// Bytes of these files.
    pub current_bytes: u64,
    /// The part of them that live rows stand for.
    pub live_bytes: u64,
    /// Bytes of files that only retained checkpoints need (or nothing, until they are unlinked), and of the index snapshot.
    pub pinned_bytes: u64,
    /// All bytes of rows and index on disk: current and pinned.
    pub disk_bytes: u64,
    /// Panics of the program's recorder of metrics: after the first nothing more is published.
    pub publisher_panics: u64,
    /// By table id; without those that were dropped, whose figures stay in the totals.
    pub tables: Vec<TableStats>,
}

impl Stats {
    /// Each field that is a number, with its name; `direct_io` is 1 or 0. For who hands them on: to
    /// another language, a log, a table.
    ///
    /// ```
    /// # fn tell(store: &hps::Store) {
    /// for (name, number) in store.stats().numbers() {
    ///     println!("{name} {number}");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn numbers(&self) -> Vec<(&'static str, u64)> {
        numbers!(self: Stats {
            direct_io, unique_asked, unique_hits, rows_read, rows_pushed, bytes_pushed, rows_put,
            bytes_put, non_finite, warmed_rows, warm_rows_left, reads, read_bytes, written_bytes, compaction_written_bytes,
            flushes, compactions, compaction_failures, checkpoints, stall_us_max, stall_us,
            cut_us_max, leases, lease_bytes, holds, pinned_rows, resident_rows, capacity_rows,
            dirty_rows, uncheckpointed_rows, cache_bytes, cache_row_bytes, cache_state_bytes,
            cache_hash_table_bytes, cache_order_bytes, cache_frequency_bytes, buffer_bytes,
            read_buffer_bytes, write_buffer_bytes, flush_bytes, compaction_bytes, warm_bytes,
            snapshot_buffer_bytes, array_bytes, queues, plain_queues, rings_lost, queue_buffers,
            registered_buffers, index_bytes, index_keys, files, open_files, open_files_max,
            files_reopened, files_set_aside, directories_paused, current_bytes, live_bytes,
            pinned_bytes, disk_bytes, publisher_panics,
        } beside { io_engine, tables, })
    }

    /// Share of distinct keys that were resident; keys never pushed are left out. 1 before the
    /// first such key.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        share_of(self.unique_hits, self.unique_asked)
    }

    /// Device bytes written ÷ row bytes pushed and put.
    #[must_use]
    pub fn write_amplification(&self) -> f64 {
        let changed = self.bytes_pushed + self.bytes_put;
        self.written_bytes as f64 / changed.max(1) as f64
    }
}

/// A part of a whole; 1 of nothing.
fn share_of(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 1.0,
        _ => part as f64 / whole as f64,
    }
}
