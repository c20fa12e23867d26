//! How does a store that is opened again get the rows back that it had in memory?
//!
//! The index snapshot says how often each row was used when it was written (`classes`). After an open a thread takes
//! the keys that were worth most, as many as the cache has room for, and reads their rows file by file, those files
//! first that have most of them, in long reads (`choose`). Nobody waits for it: rows that are asked for
//! meanwhile are read as ever.
//!
//! Invariants:
//! - A row comes in only if the index still points to the copy that was read, in the same file, and the row is not in
//!   memory: all seen under the lock under which it comes in.
//! - No row leaves for one that nobody has asked for.
//! - A damaged row is reported to whoever asks for it.

mod choose;
mod classes;

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::{Duration, Instant};

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
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use crate::sync::{Mutex, MutexGuard, by_team, thread};
use crate::units::{Slot, narrow, to_usize, unmix64};
use choose::{Choice, Search, is_same_file};
pub use classes::Classes;

/// Bytes of a read, where the cache is not small.
const READ_BYTES: u64 = 128 << 10;
/// Reads in flight of a thread: so many long ones keep a device busy, and others' reads do not wait for more than these.
const DEPTH: usize = 16;
/// Most threads. Half of their time goes into memory that is touched for the first time.
const THREADS_MAX: usize = 4;
/// While somebody asks for rows it rests after its work, so many times as long as the work: first, less by so much each
/// second, and in the end. What it takes from them at first it has not given them yet.
const REST: (f64, f64, f64) = (8.0, 4.0, 0.25);
/// Longest rest.
const REST_MAX: Duration = Duration::from_millis(50);
/// The buffers take this share of the cache at most.
const BUFFERS_SHARE: u64 = 16;
/// Rows that come in at a time, at most, and their bytes.
const FILL_ROWS: usize = 512;
const FILL_BYTES: usize = 256 << 10;
/// Of a row that is read: what its read is planned with.
const PLAN_ROW_BYTES: usize = 80;
/// Rows that are left out for one that is damaged, at most.
const LEFT_OUT_ROWS: usize = 16;
/// After so many failures the device is taken to be of no use.
const FAILURES_MAX: u64 = 64;
/// Rows that are read through one plan.
const PLAN_ROWS: usize = if cfg!(test) { 32 } else { 1 << 14 };
/// Of a chosen row, until it has come in.
const ROW_BYTES: u64 = 32;
/// Chosen rows take this share of the cache's memory beside it, unless that were too many rounds.
const CHOSEN_SHARE: u64 = 32;
/// All keys are looked at for each round, of which there are about so many at most.
const ROUNDS_MAX: u64 = 16;
/// Rows that are chosen at a time, at least.
const CHOSEN_MIN: u64 = if cfg!(test) { 64 } else { 1 << 12 };

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
    /// Rows that are still to come, about.
    left: AtomicU64,
    reads: AtomicU64,
    read_bytes: AtomicU64,
    in_use: InUse,
    /// When it saw first that somebody asked for rows.
    asked: OnceLock<Instant>,
    /// No row comes in any more.
    stopped: AtomicBool,
    /// Reads that failed.
    failures: AtomicU64,
    /// Shards, each with a table, that had no room for a row.
    full: Mutex<HashSet<(u32, u32)>>,
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

/// Says that nothing is left, however it ends.
struct Over<'a>(&'a AtomicU64);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// What a thread reads with.
struct Lane {
    queue: Box<dyn Queue>,
    batch: RowBatch,
}

impl Lane {
    fn buffer_bytes(&self) -> usize {
        self.queue.depth() * self.queue.buffer_bytes()
    }
}

fn open(lane: &Mutex<Lane>) -> MutexGuard<'_, Lane> {
    lane.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Warmer {
    /// Nothing is read yet.
    pub fn new(core: &Arc<Core>) -> Warmer {
        // Until they were looked at: who waits for the end must not think that there are none.
        let left = u64::from(core.options.warm);
        Warmer {
            core: Arc::clone(core),
            rows: AtomicU64::new(0),
            left: AtomicU64::new(left),
            reads: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            in_use: InUse::default(),
            asked: OnceLock::new(),
            stopped: AtomicBool::new(false),
            failures: AtomicU64::new(0),
            full: Mutex::default(),
        }
    }

    /// Whether there is something to do after an open.
    pub fn is_wanted(&self) -> bool {
        self.core.options.warm
    }

    /// No row comes in any more, once each shard was locked: tables are about to get other policies.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
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
        let _over = Over(&self.left);
        if let Err(error) = self.fill() {
            // Nothing is lost: whoever asks for a row reads it.
            tracing::warn!(%error, "rows that were in memory before are not read back any more");
        }
        span.record("rows", get(&self.rows));
        span.record("read_bytes", get(&self.read_bytes));
    }

    fn fill(&self) -> Result<()> {
        let tables = self.tables();
        // Asked after each step.
        let is_over = |worked| {
            self.give_way(worked);
            self.is_over()
        };
        let mut search = Search {
            core: &self.core,
            tables: &tables,
            threads: self.threads(),
            is_over: &is_over,
        };
        let choice = Choice::new(&search);
        self.left.store(choice.rows(), Ordering::Relaxed);
        if choice.rows() == 0 {
            return Ok(());
        }
        let lanes = self.lanes(&tables)?;
        let mut held = self.in_use.begin();
        let buffers: usize = lanes.iter().map(|lane| open(lane).buffer_bytes()).sum();
        let buffers = buffers + lanes.len() * (2 * FILL_BYTES + PLAN_ROWS * PLAN_ROW_BYTES);
        held.set(buffers);
        // Those of two rounds are there at the same time.
        let most = self.core.cache_bytes() / CHOSEN_SHARE / ROW_BYTES / 2;
        let least = choice.rows().div_ceil(ROUNDS_MAX).max(CHOSEN_MIN);
        let rounds = choice.rounds(most.max(least));
        let mut next = rounds.first().map(|files| choice.collect(&search, files));
        // The next ones are looked for while others read.
        search.threads = 1;
        let collect = |files| choice.collect(&search, files);
        for number in 1..=rounds.len() {
            let Some(round) = next.take() else { break };
            held.set(buffers + 2 * round.rows.len() * size_of::<Chosen>());
            let (todo, ahead) = (AtomicUsize::new(0), Mutex::new(None));
            let work = &|i: usize, lane: &Mutex<Lane>| -> Result<()> {
                // Who waits for rows needs processors and device, too: one goes on then.
                while i == 0 || !self.core.demand.is_any() {
                    let task = todo.fetch_add(1, Ordering::Relaxed);
                    if self.is_over() {
                        return Ok(());
                    }
                    let Some(task) = task.checked_sub(1) else {
                        let collected = rounds.get(number).map(collect);
                        *ahead.lock().unwrap_or_else(PoisonError::into_inner) = collected;
                        continue;
                    };
                    let Some(some) = round.rows.chunks(PLAN_ROWS).nth(task) else {
                        return Ok(());
                    };
                    self.read_some(&mut open(lane), &round.data_files, some)?;
                }
                Ok(())
            };
            let works = lanes.iter().enumerate();
            let works = works.map(|(i, lane)| move || work(i, lane));
            by_team("hps-warm", works)
                .into_iter()
                .collect::<Result<()>>()?;
            if self.is_over() {
                break;
            }
            next = ahead.into_inner().unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }

    /// Threads that read.
    fn threads(&self) -> usize {
        // Calls in an order that depends on the store only.
        match self.core.options.inline {
            true => 1,
            false => self.core.options.threads.min(THREADS_MAX),
        }
    }

    /// What each thread reads with; fewer where there are not as many queues.
    fn lanes(&self, tables: &[usize]) -> Result<Vec<Mutex<Lane>>> {
        let (depth, bytes) = self.shape(tables);
        let mut lanes = Vec::new();
        for _ in 0..self.threads() {
            match self.core.ssd.io.engine.queue(depth, bytes) {
                Ok(queue) => lanes.push(Mutex::new(Lane {
                    queue,
                    batch: RowBatch::default(),
                })),
                Err(_) if !lanes.is_empty() => break,
                Err(e) => {
                    let root = self.core.ssd.root.path();
                    return Err(Error::io("make a submission queue for", root, e));
                }
            }
        }
        Ok(lanes)
    }

    /// Reads rows and puts them into the caches, but for those that have no room for more. Of those beside a
    /// damaged one nearly all come in.
    ///
    /// # Errors
    /// Those for which the whole is given up.
    fn read_some(&self, lane: &mut Lane, files: &Files, rows: &[Chosen]) -> Result<()> {
        let result = self.read_around(lane, files, rows);
        // They were counted before the last of them were chosen by chance.
        let less = |left: u64| Some(left.saturating_sub(rows.len() as u64).max(1));
        let _was = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        result
    }

    fn read_around(&self, lane: &mut Lane, files: &Files, rows: &[Chosen]) -> Result<()> {
        let error = match self.read(lane, files, rows) {
            Err(error @ (Error::Corrupt { .. } | Error::Io { .. })) => error,
            result => return result,
        };
        if rows.len() > LEFT_OUT_ROWS {
            let (some, others) = rows.split_at(rows.len() / 2);
            self.read_around(lane, files, some)?;
            return self.read_around(lane, files, others);
        }
        tracing::warn!(%error, "some rows that were in memory before are not read back");
        match self.failures.fetch_add(1, Ordering::Relaxed) >= FAILURES_MAX {
            true => Err(error),
            false => Ok(()),
        }
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

    /// Reads in flight of a queue, and the bytes of each: buffers hold the longest record of the tables.
    fn shape(&self, tables: &[usize]) -> (usize, usize) {
        let all = self.core.all_tables();
        let strides = tables
            .iter()
            .map(|t| record_stride(all[*t].descriptor.row_bytes()));
        let needed = strides.max().unwrap_or(0) + 2 * 4096;
        let depth = match self.core.options.inline {
            true => 1,
            false => DEPTH,
        };
        let buffers = (self.threads() * depth) as u64;
        let share = self.core.cache_bytes() / (BUFFERS_SHARE * buffers);
        let bytes = to_usize(share.clamp(4096, READ_BYTES)).max(needed);
        (depth, bytes.next_multiple_of(4096))
    }

    /// Rests after work of this length, if somebody asks for rows.
    fn give_way(&self, worked: Duration) {
        if self.core.demand.is_any() {
            let since = self.asked.get_or_init(Instant::now).elapsed();
            let (first, less, last) = REST;
            let times = (first - less * since.as_secs_f64()).max(last);
            thread::sleep(worked.mul_f64(times).min(REST_MAX));
        }
    }

    fn is_over(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
            || self.core.is_closed()
            || self.core.ssd.poison.check_threads().is_err()
    }

    /// # Errors
    /// `Io`, `Corrupt`.
    fn read(&self, lane: &mut Lane, files: &Files, rows: &[Chosen]) -> Result<()> {
        let Lane { queue, batch } = lane;
        let all = self.core.all_tables();
        let width = |row: &Chosen| all[row.table as usize].descriptor.row_f32s();
        let full = self
            .full
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let fits = |(_, row): &(usize, &Chosen)| !full.contains(&(row.shard, row.table));
        let want = |(tag, row): (usize, &Chosen)| Want {
            location: row.entry.location(),
            key: unmix64(row.hash),
            tag: narrow(tag),
            row_f32s: narrow(width(row)),
        };
        let wants: Vec<Want> = rows.iter().enumerate().filter(fits).map(want).collect();
        let pinned = pin_files(files, &wants);
        let mut reader = RowReader::new(&mut **queue);
        reader.add(pinned, wants)?;
        let widest = rows.iter().map(width).max().unwrap_or(1) * 4;
        let rows_min = (FILL_BYTES / widest).clamp(1, FILL_ROWS);
        let mut some = Vec::new();
        let result = loop {
            let since = Instant::now();
            match reader.next(batch, rows_min) {
                Ok(true) if !self.is_over() => {}
                ended => break ended,
            }
            some.clear();
            let mut start = 0;
            for tag in &batch.tags {
                let row = rows[*tag as usize];
                some.push((row, start));
                start += width(&row);
            }
            some.sort_unstable_by_key(|(row, start)| (row.shard, row.table, *start));
            let is_together = |a: &Chosen, b: &Chosen| (a.shard, a.table) == (b.shard, b.table);
            for together in some.chunk_by(|(a, _), (b, _)| is_together(a, b)) {
                self.restore(files, together, &batch.rows);
            }
            self.give_way(since.elapsed());
        };
        add(&self.reads, reader.count.reads);
        add(&self.read_bytes, reader.count.bytes);
        result.map(drop)
    }

    /// Puts rows of one table into one shard, each with the place of its content, as long as there is room.
    fn restore(&self, files: &Files, rows: &[(Chosen, usize)], values: &[f32]) {
        let Some((first, _)) = rows.first() else {
            return;
        };
        let table = first.table as usize;
        let mut shard = self.core.shards[first.shard as usize].lock();
        // It may have been dropped meanwhile: then the index knows none of its keys. Or its rows stay from now on.
        if self.is_over() || !shard.cache.evicts(table) {
            return;
        }
        let room = shard.rows_spare(table).min(rows.len());
        if room == 0 {
            // What others were promised is free again, perhaps.
            let is_full = shard.cache.rows_spare(table) == 0;
            drop(shard);
            if !is_full {
                return;
            }
            let full = self.full.lock();
            full.unwrap_or_else(PoisonError::into_inner)
                .insert((first.shard, first.table));
            return;
        }
        let hashes: Vec<u64> = rows.iter().map(|(row, _)| row.hash).collect();
        let mut slots = vec![Slot::NONE; hashes.len()];
        shard.cache.lookup(table, &hashes, &mut slots);
        let mut known = Vec::new();
        shard.tables[table].index.get_batch(&hashes, &mut known);
        let now = self.core.ssd.file_slots();
        let mut came = 0;
        for (((row, start), slot), known) in rows.iter().zip(&slots).zip(&known) {
            let is_read = known.map(IndexEntry::location) == Some(row.entry.location())
                && is_same_file(row.entry, files, &now);
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
        drop((now, shard));
        add(&self.rows, came as u64);
    }
}

#[cfg(test)]
mod tests;
