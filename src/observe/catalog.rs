//! Which metrics does a store have?
//!
//! Invariants:
//! - Every field of [`Stats`] but those by table is one metric here. The name is the field's, after
//!   `hps_`; counters end in `_total`. Two exceptions: times are in seconds, so `stall_us_max` is
//!   `hps_stall_max_seconds`; the name of the I/O engine is a label of `hps_info`.
//! - A counter never falls while the store is open, and begins at 0 with each open. What may fall,
//!   and what is a longest time, is a gauge.
//! - Ratios (the hit rate, the write amplification) are left to whoever reads the metrics, who can
//!   form them over any span of time.

use crate::stats::{Stats, TableStats};

/// What a series is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Never falls while the store is open.
    Counter,
    /// Anything else.
    Gauge,
}

/// What a value counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Things.
    Count,
    /// Bytes.
    Bytes,
    /// Microseconds, published as seconds.
    Microseconds,
}

/// One number of a reading, or of its part about a table, with its name.
#[derive(Debug)]
pub struct Metric<S = Stats> {
    /// Its name.
    pub name: &'static str,
    /// One sentence.
    pub help: &'static str,
    /// Counter or gauge.
    pub kind: Kind,
    /// What is counted.
    pub unit: Unit,
    /// The number in a reading.
    pub value: fn(&S) -> u64,
}

impl<S> Metric<S> {
    const fn new(kind: Kind, name: &'static str, help: &'static str, value: fn(&S) -> u64) -> Self {
        Self {
            name,
            help,
            kind,
            unit: Unit::Count,
            value,
        }
    }

    const fn of(self, unit: Unit) -> Self {
        Self { unit, ..self }
    }
}

const fn counter<S>(name: &'static str, help: &'static str, value: fn(&S) -> u64) -> Metric<S> {
    Metric::new(Kind::Counter, name, help, value)
}

const fn gauge<S>(name: &'static str, help: &'static str, value: fn(&S) -> u64) -> Metric<S> {
    Metric::new(Kind::Gauge, name, help, value)
}

/// The metric that says in labels what is no number; its value is 1.
pub const INFO: (&str, &str) = ("hps_info", "The I/O engine and the version.");

/// The labels of [`INFO`].
pub fn info_labels(stats: &Stats) -> [(&'static str, &'static str); 2] {
    [
        ("io_engine", stats.io_engine),
        ("version", env!("CARGO_PKG_VERSION")),
    ]
}

/// The metrics that are one number, in the order of the fields of [`Stats`].
pub const METRICS: &[Metric] = &[
    gauge(
        "hps_direct_io",
        "1 while every current file is read past the page cache, else 0.",
        |s: &Stats| u64::from(s.direct_io),
    ),
    counter(
        "hps_unique_asked_total",
        "Distinct keys asked per batch, summed; keys never pushed are left out.",
        |s: &Stats| s.unique_asked,
    ),
    counter(
        "hps_unique_hits_total",
        "Those of the distinct keys asked that were resident.",
        |s: &Stats| s.unique_hits,
    ),
    counter(
        "hps_rows_read_total",
        "Rows given to callers, duplicates included.",
        |s: &Stats| s.rows_read,
    ),
    counter(
        "hps_rows_pushed_total",
        "Rows changed by push, duplicates counted once.",
        |s: &Stats| s.rows_pushed,
    ),
    counter(
        "hps_bytes_pushed_total",
        "Bytes of the rows changed by push.",
        |s: &Stats| s.bytes_pushed,
    )
    .of(Unit::Bytes),
    counter(
        "hps_rows_put_total",
        "Keys whose rows were written by put; one that is there twice in a call counts twice.",
        |s: &Stats| s.rows_put,
    ),
    counter(
        "hps_bytes_put_total",
        "Bytes of the rows written by put.",
        |s: &Stats| s.bytes_put,
    )
    .of(Unit::Bytes),
    counter(
        "hps_non_finite_total",
        "Gradients, and values put, that were not finite.",
        |s: &Stats| s.non_finite,
    ),
    counter(
        "hps_warmed_rows_total",
        "Rows that came back into memory after the open.",
        |s: &Stats| s.warmed_rows,
    ),
    gauge(
        "hps_warm_rows_left",
        "Rows that are still to come back, about; 0 when a warm restart is over.",
        |s: &Stats| s.warm_rows_left,
    ),
    counter("hps_reads_total", "Device reads for rows.", |s: &Stats| s.reads),
    counter(
        "hps_read_bytes_total",
        "Bytes of the device reads for rows.",
        |s: &Stats| s.read_bytes,
    )
    .of(Unit::Bytes),
    counter(
        "hps_written_bytes_total",
        "Bytes written by flushes, checkpoints and compactions, key blocks and footers included.",
        |s: &Stats| s.written_bytes,
    )
    .of(Unit::Bytes),
    counter(
        "hps_compaction_written_bytes_total",
        "Those of the bytes written that compactions wrote.",
        |s: &Stats| s.compaction_written_bytes,
    )
    .of(Unit::Bytes),
    counter(
        "hps_flushes_total",
        "Flushes of rows that leave memory, and files of long puts.",
        |s: &Stats| s.flushes,
    ),
    counter("hps_compactions_total", "Compactions.", |s: &Stats| s.compactions),
    counter(
        "hps_compaction_failures_total",
        "Compactions that failed.",
        |s: &Stats| s.compaction_failures,
    ),
    counter("hps_checkpoints_total", "Checkpoints made durable.", |s: &Stats| {
        s.checkpoints
    }),
    gauge(
        "hps_stall_max_seconds",
        "Longest time that a pull, push or put waited for a free slot at a stretch, since the store was opened.",
        |s: &Stats| s.stall_us_max,
    )
    .of(Unit::Microseconds),
    counter(
        "hps_stall_seconds_total",
        "Time that pulls, pushes and puts waited for free slots, summed.",
        |s: &Stats| s.stall_us,
    )
    .of(Unit::Microseconds),
    gauge(
        "hps_cut_max_seconds",
        "Longest cut of a checkpoint, since the store was opened.",
        |s: &Stats| s.cut_us_max,
    )
    .of(Unit::Microseconds),
    gauge("hps_leases", "Leases outstanding.", |s: &Stats| s.leases),
    gauge(
        "hps_lease_bytes",
        "Bytes that the slots of the leases take.",
        |s: &Stats| s.lease_bytes,
    )
    .of(Unit::Bytes),
    gauge("hps_holds", "Holds on checkpoints outstanding.", |s: &Stats| s.holds),
    gauge("hps_pinned_rows", "Rows pinned by leases.", |s: &Stats| {
        s.pinned_rows
    }),
    gauge("hps_resident_rows", "Rows in memory.", |s: &Stats| s.resident_rows),
    gauge("hps_capacity_rows", "Rows that fit into memory.", |s: &Stats| {
        s.capacity_rows
    }),
    gauge(
        "hps_dirty_rows",
        "Rows changed since they were last written.",
        |s: &Stats| s.dirty_rows,
    ),
    gauge(
        "hps_uncheckpointed_rows",
        "Rows changed since the cut of the last durable checkpoint.",
        |s: &Stats| s.uncheckpointed_rows,
    ),
    gauge(
        "hps_cache_bytes",
        "Memory of the caches that was touched.",
        |s: &Stats| s.cache_bytes,
    )
    .of(Unit::Bytes),
    gauge("hps_cache_row_bytes", "Of the memory of the caches, the rows themselves.", |s: &Stats| {
        s.cache_row_bytes
    })
    .of(Unit::Bytes),
    gauge(
        "hps_cache_state_bytes",
        "Of the memory of the caches, the states of rows: hash, pins, flags, frequency.",
        |s: &Stats| s.cache_state_bytes,
    )
    .of(Unit::Bytes),
    gauge(
        "hps_cache_hash_table_bytes",
        "Of the memory of the caches, what finds a row by its hash.",
        |s: &Stats| s.cache_hash_table_bytes,
    )
    .of(Unit::Bytes),
    gauge(
        "hps_cache_order_bytes",
        "Of the memory of the caches, the order in which rows leave.",
        |s: &Stats| s.cache_order_bytes,
    )
    .of(Unit::Bytes),
    gauge(
        "hps_cache_frequency_bytes",
        "Of the memory of the caches, frequencies of rows that left.",
        |s: &Stats| s.cache_frequency_bytes,
    )
    .of(Unit::Bytes),
    gauge(
        "hps_buffer_bytes",
        "Memory of the I/O buffers that are kept while the store is open.",
        |s: &Stats| s.buffer_bytes,
    )
    .of(Unit::Bytes),
    gauge(
        "hps_read_buffer_bytes",
        "Of the memory of the I/O buffers, what rows are read into.",
        |s: &Stats| s.read_buffer_bytes,
    )
    .of(Unit::Bytes),
    gauge(
        "hps_write_buffer_bytes",
        "Of the memory of the I/O buffers, what flushes and checkpoints write from.",
        |s: &Stats| s.write_buffer_bytes,
    )
    .of(Unit::Bytes),
    gauge(
        "hps_flush_bytes",
        "Memory of flushes and checkpoints that run: what is written where.",
        |s: &Stats| s.flush_bytes,
    )
    .of(Unit::Bytes),
    gauge(
        "hps_compaction_bytes",
        "Memory of compactions that run.",
        |s: &Stats| s.compaction_bytes,
    )
    .of(Unit::Bytes),
    gauge(
        "hps_warm_bytes",
        "Memory of a warm restart that runs.",
        |s: &Stats| s.warm_bytes,
    )
    .of(Unit::Bytes),
    gauge(
        "hps_snapshot_buffer_bytes",
        "Memory of an index snapshot that is being written.",
        |s: &Stats| s.snapshot_buffer_bytes,
    )
    .of(Unit::Bytes),
    gauge(
        "hps_array_bytes",
        "Memory of arrays of past batches that are kept for the next ones.",
        |s: &Stats| s.array_bytes,
    )
    .of(Unit::Bytes),
    gauge("hps_queues", "Submission queues of io_uring.", |s: &Stats| s.queues),
    gauge(
        "hps_plain_queues",
        "Those of the queues that use plain calls, because the kernel gave no ring.",
        |s: &Stats| s.plain_queues,
    ),
    counter(
        "hps_rings_lost_total",
        "Rings that failed and were replaced, by others or by plain calls.",
        |s: &Stats| s.rings_lost,
    ),
    gauge("hps_queue_buffers", "Buffers of the queues.", |s: &Stats| {
        s.queue_buffers
    }),
    gauge(
        "hps_registered_buffers",
        "Those of the buffers that are registered with the kernel.",
        |s: &Stats| s.registered_buffers,
    ),
    gauge("hps_index_bytes", "Memory of the index.", |s: &Stats| s.index_bytes).of(Unit::Bytes),
    gauge(
        "hps_index_keys",
        "Keys in the index, tombstones included.",
        |s: &Stats| s.index_keys,
    ),
    gauge("hps_files", "Files of the current version.", |s: &Stats| s.files),
    gauge("hps_open_files", "Parameter files that are open.", |s: &Stats| {
        s.open_files
    }),
    gauge(
        "hps_open_files_max",
        "Most parameter files that stay open; the coldest others are opened when they are read.",
        |s: &Stats| s.open_files_max,
    ),
    counter(
        "hps_files_reopened_total",
        "Parameter files that were opened again after they had been closed.",
        |s: &Stats| s.files_reopened,
    ),
    gauge(
        "hps_files_set_aside",
        "Files of the current version that are damaged or unreadable, and not compacted any more.",
        |s: &Stats| s.files_set_aside,
    ),
    gauge(
        "hps_directories_paused",
        "Data directories that are not compacted for a while, after a failure.",
        |s: &Stats| s.directories_paused,
    ),
    gauge(
        "hps_current_bytes",
        "Bytes of the files of the current version.",
        |s: &Stats| s.current_bytes,
    )
    .of(Unit::Bytes),
    gauge(
        "hps_live_bytes",
        "Those of the bytes of the current version that live rows stand for.",
        |s: &Stats| s.live_bytes,
    )
    .of(Unit::Bytes),
    gauge(
        "hps_pinned_bytes",
        "Bytes of files that only retained checkpoints need (or nothing, until they are unlinked), and of the index snapshot.",
        |s: &Stats| s.pinned_bytes,
    )
    .of(Unit::Bytes),
    gauge(
        "hps_disk_bytes",
        "All bytes of rows and index on disk: current and pinned.",
        |s: &Stats| s.disk_bytes,
    )
    .of(Unit::Bytes),
    counter(
        "hps_publisher_panics_total",
        "Panics of the recorder of metrics; it is not called again after one.",
        |s: &Stats| s.publisher_panics,
    ),
];

/// What is published of each table, with the label `table`, in the order of the fields of [`TableStats`].
pub const TABLE_METRICS: &[Metric<TableStats>] = &[
    counter(
        "hps_table_unique_asked_total",
        "Distinct keys asked per batch of one table, summed; keys never pushed are left out.",
        |t: &TableStats| t.unique_asked,
    ),
    counter(
        "hps_table_unique_hits_total",
        "Those of the distinct keys asked that were resident.",
        |t: &TableStats| t.unique_hits,
    ),
    counter(
        "hps_table_rows_read_total",
        "Rows of one table given to callers, duplicates included.",
        |t: &TableStats| t.rows_read,
    ),
    counter(
        "hps_table_rows_pushed_total",
        "Rows of one table changed by push, duplicates counted once.",
        |t: &TableStats| t.rows_pushed,
    ),
    counter(
        "hps_table_bytes_pushed_total",
        "Bytes of the rows changed by push.",
        |t: &TableStats| t.bytes_pushed,
    )
    .of(Unit::Bytes),
    counter(
        "hps_table_rows_put_total",
        "Keys of one table whose rows were written by put.",
        |t: &TableStats| t.rows_put,
    ),
    counter(
        "hps_table_bytes_put_total",
        "Bytes of the rows written by put.",
        |t: &TableStats| t.bytes_put,
    )
    .of(Unit::Bytes),
    counter(
        "hps_table_non_finite_total",
        "Gradients, and values put, of one table that were not finite.",
        |t: &TableStats| t.non_finite,
    ),
    counter(
        "hps_table_rows_flushed_total",
        "Rows and tombstones of one table written by flushes and checkpoints; compactions are left out.",
        |t: &TableStats| t.rows_flushed,
    ),
    counter(
        "hps_table_rows_evicted_total",
        "Rows of one table that left memory to make room.",
        |t: &TableStats| t.rows_evicted,
    ),
    gauge(
        "hps_table_pinned_rows",
        "Rows of one table pinned by leases.",
        |t: &TableStats| t.pinned_rows,
    ),
    gauge(
        "hps_table_resident_rows",
        "Rows of one table in memory.",
        |t: &TableStats| t.resident_rows,
    ),
    gauge(
        "hps_table_capacity_rows",
        "Rows of one table that fit into memory.",
        |t: &TableStats| t.capacity_rows,
    ),
    gauge(
        "hps_table_dirty_rows",
        "Rows of one table changed since they were last written.",
        |t: &TableStats| t.dirty_rows,
    ),
    gauge(
        "hps_table_cache_bytes",
        "Memory of one table's caches that was touched.",
        |t: &TableStats| t.cache_bytes,
    )
    .of(Unit::Bytes),
    gauge(
        "hps_table_index_bytes",
        "Memory of one table's index.",
        |t: &TableStats| t.index_bytes,
    )
    .of(Unit::Bytes),
    gauge(
        "hps_table_index_keys",
        "Keys in one table's index, tombstones included.",
        |t: &TableStats| t.index_keys,
    ),
    gauge(
        "hps_table_blocks",
        "Passes whose rows stay, of a table whose policy is Cached.",
        |t: &TableStats| t.blocks,
    ),
    gauge(
        "hps_table_block_evictions",
        "Blocks that left for another since the store was opened or the table was unfrozen.",
        |t: &TableStats| t.block_evictions,
    ),
];

/// What is published of the waits of each table that has waited, with the labels `table` and `cause`.
pub mod waits {
    /// A counter.
    pub const COUNT: (&str, &str) = (
        "hps_waits_total",
        "Waits of pulls, prefetches, removes, pushes and puts, by table and cause.",
    );
    /// A gauge, in seconds: the facade counts in whole numbers.
    pub const SECONDS: (&str, &str) = ("hps_waited_seconds_total", "Time that they took, summed.");
    /// A histogram, in seconds.
    pub const LENGTHS: (&str, &str) = (
        "hps_wait_seconds",
        "Their lengths, each rounded to 0.75 of a power of two of microseconds.",
    );
}

#[cfg(test)]
mod tests;
