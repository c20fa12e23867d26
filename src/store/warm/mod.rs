//! How does a store that is opened again get the rows back that it had in memory?
//!
//! The index snapshot says how often each row was used when it was written (`classes`). After an open a thread takes
//! the keys that were worth most, as many as the cache has room for, and reads their rows file by file, those files
//! first that have most of them, in long reads (`choose`). Nobody waits for it: rows that are asked for
//! meanwhile are read as ever.
//!
//! Invariants:
//! - A row comes in only if the index still points to the copy that was read and the row is not in memory: both
//!   seen under the lock under which it comes in.
//! - No row leaves for one that nobody has asked for.
//! - A damaged row is reported to whoever asks for it.

mod choose;
mod classes;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tracing::field::Empty;

use super::core::{Core, Part, add, get};
use crate::error::{Error, Result};
use crate::format::param_file::record_stride;
use crate::in_use::InUse;
use crate::io::Queue;
use crate::observe::Timed;
use crate::options::PolicyKind;
use crate::ssd::index::{Files, Index as _, IndexEntry};
use crate::ssd::reader::{RowBatch, RowReader, Want, pin_files};
use crate::stats::Stats;
use crate::sync::atomic::AtomicU64;
use crate::units::{Slot, narrow, to_usize, unmix64};
use choose::Choice;
pub use classes::Classes;

/// Bytes of a read, where the cache is not small.
const READ_BYTES: u64 = 256 << 10;
/// Reads in flight: so many long ones keep a device busy, and others' reads do not wait for more than these.
const DEPTH: usize = 8;
/// The buffers take this share of the cache at most.
const BUFFERS_SHARE: u64 = 16;
/// Rows that come in at a time.
const FILL_ROWS: usize = 1024;
/// Rows that are read through one plan: a damaged one costs no more than these.
const PLAN_ROWS: usize = 1 << 14;
/// Of a chosen row, until it has come in: place, key, class, and what its read is planned with.
const ROW_BYTES: u64 = 32;
/// Chosen rows take this share of the cache at most, which is still empty then.
const CHOSEN_SHARE: u64 = 32;
/// Rows that are chosen at a time, at least.
const CHOSEN_MIN: u64 = 1 << 12;

/// A row that is to come back.
#[derive(Clone, Copy, Debug)]
struct Chosen {
    entry: IndexEntry,
    hash: u64,
    table: u32,
    shard: u32,
}

/// Reads rows back that were in memory when the store was last used.
#[derive(Debug)]
pub struct Warmer {
    core: Arc<Core>,
    /// Rows that came in.
    rows: AtomicU64,
    /// Rows that are still to come, at most.
    left: AtomicU64,
    reads: AtomicU64,
    read_bytes: AtomicU64,
    in_use: InUse,
}

impl Part for Warmer {
    fn wake(&self) {}

    fn count(&self, stats: &mut Stats) {
        stats.warmed_rows = get(&self.rows);
        stats.warm_rows_left = get(&self.left);
        stats.warm_bytes = self.in_use.bytes();
        stats.reads += get(&self.reads);
        stats.read_bytes += get(&self.read_bytes);
    }
}

/// A long read: its buffer, and how many of them there are.
struct Shape {
    depth: usize,
    buffer_bytes: usize,
}

impl Warmer {
    /// Nothing is read yet.
    pub fn new(core: &Arc<Core>) -> Warmer {
        // Until they were looked at: who waits for the end must not think that there are none.
        let left = match core.options.warm {
            true => u64::MAX,
            false => 0,
        };
        Warmer {
            core: Arc::clone(core),
            rows: AtomicU64::new(0),
            left: AtomicU64::new(left),
            reads: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            in_use: InUse::default(),
        }
    }

    /// Whether there is something to do after an open.
    pub fn is_wanted(&self) -> bool {
        self.core.options.warm
    }

    /// Reads rows back until the cache is full, none is left, or the store is closed.
    pub fn run(&self) {
        let span = Timed::new(tracing::info_span!(
            "warm",
            rows = Empty,
            read_bytes = Empty,
            seconds = Empty,
        ));
        let _warming = span.enter();
        if let Err(error) = self.fill() {
            // Nothing is lost: whoever asks for a row reads it.
            tracing::warn!(%error, "rows that were in memory before are not read back any more");
        }
        self.left.store(0, Ordering::Relaxed);
        span.record("rows", get(&self.rows));
        span.record("read_bytes", get(&self.read_bytes));
    }

    fn fill(&self) -> Result<()> {
        let tables = self.tables();
        let choice = Choice::new(&self.core, &tables);
        self.left.store(choice.rows(), Ordering::Relaxed);
        if choice.rows() == 0 || self.is_over() {
            return Ok(());
        }
        let shape = self.shape(&tables);
        let root = self.core.ssd.root.path();
        let engine = &self.core.ssd.io.engine;
        let mut queue = engine
            .queue(shape.depth, shape.buffer_bytes)
            .map_err(|e| Error::io("make a submission queue for", root, e))?;
        let mut held = self.in_use.begin();
        let mut batch = RowBatch::default();
        let most = (self.core.cache_bytes() / CHOSEN_SHARE / ROW_BYTES).max(CHOSEN_MIN);
        for files in choice.rounds(most) {
            let (files, mut chosen) = choice.collect(&self.core, &tables, &files);
            let buffers = shape.depth * shape.buffer_bytes;
            held.set(buffers + chosen.capacity() * size_of::<Chosen>());
            chosen.sort_unstable_by_key(|row| row.entry.location());
            for some in chosen.chunks(PLAN_ROWS) {
                if self.is_over() {
                    return Ok(());
                }
                let read = self.read(&mut *queue, &files, some, &mut batch);
                self.less(some.len());
                match read {
                    Ok(true) => {}
                    // No shard has room.
                    Ok(false) => return Ok(()),
                    Err(error @ (Error::Corrupt { .. } | Error::Io { .. })) => {
                        tracing::warn!(%error, "some rows that were in memory before are not read back");
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Tables whose rows come and go as they are asked for.
    fn tables(&self) -> Vec<usize> {
        let comes_and_goes = |policy| {
            matches!(
                policy,
                PolicyKind::Bilevel | PolicyKind::Lru | PolicyKind::Fifo
            )
        };
        let tables = self.core.tables_there();
        let tables = tables.filter(|table| comes_and_goes(table.tuning().policy));
        tables.map(|table| table.id.0 as usize).collect()
    }

    /// Buffers hold the longest record of the tables.
    fn shape(&self, tables: &[usize]) -> Shape {
        let all = self.core.all_tables();
        let strides = tables
            .iter()
            .map(|t| record_stride(all[*t].descriptor.row_bytes()));
        let needed = strides.max().unwrap_or(0) + 2 * 4096;
        let share = self.core.cache_bytes() / (BUFFERS_SHARE * DEPTH as u64);
        let bytes = to_usize(share.clamp(4096, std::env::var("BUF").map_or(256, |x| x.parse::<u64>().unwrap()) << 10)).max(needed);
        let depth = match self.core.options.inline {
            true => 1,
            false => std::env::var("DEPTH").map_or(8, |x| x.parse().unwrap()),
        };
        Shape {
            depth,
            buffer_bytes: bytes.next_multiple_of(4096),
        }
    }

    fn is_over(&self) -> bool {
        self.core.is_closed() || self.core.ssd.poison.check_threads().is_err()
    }

    fn less(&self, rows: usize) {
        let left = get(&self.left).saturating_sub(rows as u64);
        self.left.store(left, Ordering::Relaxed);
    }

    /// Reads rows and puts them into the caches; false where none has room for one.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    fn read(
        &self,
        queue: &mut dyn Queue,
        files: &Files,
        chosen: &[Chosen],
        batch: &mut RowBatch,
    ) -> Result<bool> {
        let all = self.core.all_tables();
        let want = |(tag, row): (usize, &Chosen)| Want {
            location: row.entry.location(),
            key: unmix64(row.hash),
            tag: narrow(tag),
            row_f32s: narrow(all[row.table as usize].descriptor.row_f32s()),
        };
        let wants: Vec<Want> = chosen.iter().enumerate().map(want).collect();
        let pinned = pin_files(files, &wants);
        let mut reader = RowReader::with_gap(queue, pinned, wants, std::env::var("GAP").map_or(12, |x| x.parse::<u64>().unwrap()) << 10)?;
        let (mut some, mut room) = (Vec::new(), false);
        loop {
            let more = reader.next(batch, FILL_ROWS);
            if !matches!(more, Ok(true)) || self.is_over() {
                add(&self.reads, reader.count.reads);
                add(&self.read_bytes, reader.count.bytes);
                return more.map(|_| room || chosen.is_empty());
            }
            some.clear();
            let mut start = 0;
            for tag in &batch.tags {
                let row = chosen[*tag as usize];
                some.push((row, start));
                start += all[row.table as usize].descriptor.row_f32s();
            }
            some.sort_unstable_by_key(|(row, start)| (row.shard, row.table, *start));
            for of_table in some.chunk_by(|(a, _), (b, _)| (a.shard, a.table) == (b.shard, b.table))
            {
                room |= self.restore(of_table, &batch.rows);
            }
        }
    }

    /// Puts rows of one table into one shard, each with the place of its content; false where there was no room.
    fn restore(&self, rows: &[(Chosen, usize)], values: &[f32]) -> bool {
        let Some((first, _)) = rows.first() else {
            return true;
        };
        let table = first.table as usize;
        let mut shard = self.core.shards[first.shard as usize].lock();
        // It may have been dropped meanwhile: then the index knows none of its keys.
        let room = shard.rows_spare(table).min(rows.len());
        if room == 0 {
            return false;
        }
        shard.reclaim(table, room);
        let hashes: Vec<u64> = rows.iter().map(|(row, _)| row.hash).collect();
        let mut slots = vec![Slot::NONE; hashes.len()];
        shard.cache.lookup(table, &hashes, &mut slots);
        let mut known = Vec::new();
        shard.tables[table].index.get_batch(&hashes, &mut known);
        let mut came = 0;
        for (((row, start), slot), known) in rows.iter().zip(&slots).zip(&known) {
            let is_read = known.map(IndexEntry::location) == Some(row.entry.location());
            if came == room || *slot != Slot::NONE || !is_read {
                continue;
            }
            let Some(slot) = shard.cache.restore(table, row.hash, row.entry.class()) else {
                break;
            };
            let content = shard.cache.row_mut(slot);
            let length = content.len();
            content.copy_from_slice(&values[*start..*start + length]);
            came += 1;
        }
        drop(shard);
        add(&self.rows, came as u64);
        true
    }
}
