//! What do all parts of a store share?
//!
//! Invariants:
//! - Lock order: the checkpoint's role, admission, gate, writer, commit, shards in rising order,
//!   then the SSD tier's own locks.
//! - Nothing is read from or written to a device while a shard is locked.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::checkpoint::{Images, Running};
use super::lane::{Lane, Lanes};
use super::lease::LeaseBook;
use super::spare::Spares;
use super::ticket::PrefetchQueue;
use super::turns::Turns;
use crate::batch::shard_range;
use crate::error::{Error, Invalid, Result};
use crate::fork::Process;
use crate::io::Queue;
use crate::mem::{CacheConfig, TableCache};
use crate::observe::Publisher;
use crate::options::{RuntimeOptions, TableDescriptor};
use crate::row::{RowLayout, Updater};
use crate::ssd::Ssd;
use crate::ssd::compaction::Limits;
use crate::ssd::index::Index;
use crate::ssd::poison::Watched;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use crate::sync::{Condvar, Mutex, MutexGuard, RwLock, fair};
use crate::units::TableId;

/// One table of a store.
#[derive(Debug)]
pub struct Table {
    /// Its number.
    pub id: TableId,
    /// As stored.
    pub descriptor: TableDescriptor,
    /// Where weights and state lie.
    pub layout: RowLayout,
    /// The update rule.
    pub updater: Updater,
}

impl Table {
    /// About the bytes of a row in a file: record head, padding, its share of key blocks.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.descriptor.row_bytes() as u64 + 30
    }
}

/// One table's rows and locations in one shard.
#[derive(Debug)]
pub struct ShardTable {
    /// Rows in memory.
    pub cache: TableCache,
    /// Rows on SSD.
    pub index: Index,
    /// Places promised to admitted batches that have not taken them yet.
    pub reserved: usize,
}

impl ShardTable {
    /// Places that are taken, or promised, or hold a copy for a running checkpoint.
    #[must_use]
    pub fn busy_places(&self) -> usize {
        // Without eviction a row that is resident keeps its place, pinned or not.
        let held = match self.cache.evicts() {
            true => self.cache.pinned(),
            false => self.cache.resident(),
        };
        held + self.reserved + self.cache.frozen_copies()
    }
}

/// A range of mix64.
#[derive(Debug, Default)]
pub struct Shard {
    /// By table id.
    pub tables: Vec<ShardTable>,
    /// The current checkpoint interval.
    pub epoch: u32,
    /// Between a cut and its capture: rows dirty at or before this epoch are frozen.
    pub frozen: Option<u32>,
    /// A state as of the cut could not be written and exists no more: the running checkpoint
    /// can't be completed.
    pub lost: bool,
}

impl Shard {
    /// Rows changed after this epoch may not be written yet.
    #[must_use]
    pub fn epoch_max(&self) -> u32 {
        self.frozen.unwrap_or(self.epoch)
    }
}

/// A locked shard.
pub type ShardGuard<'a> = fair::MutexGuard<'a, Shard>;

/// A shard with its lock, which is handed on in the end to whoever waits (a batch must not keep a
/// flush from its rows), and where those wait who need something in it to change.
#[derive(Debug, Default)]
pub struct ShardCell {
    state: fair::Mutex<Shard>,
    changed: fair::Condvar,
}

impl ShardCell {
    /// Wraps a shard.
    pub fn new(shard: Shard) -> ShardCell {
        ShardCell {
            state: fair::Mutex::new(shard),
            changed: fair::Condvar::new(),
        }
    }

    /// Locks the shard.
    pub fn lock(&self) -> ShardGuard<'_> {
        self.state.lock()
    }

    /// Lets those go first who wait for the lock.
    pub fn pass(&self, guard: &mut ShardGuard<'_>) {
        ShardGuard::bump(guard);
    }

    /// Wakes those who wait for a change.
    pub fn notify(&self) {
        self.changed.notify_all();
    }

    /// Waits for a change, or a while.
    #[cfg_attr(feature = "shuttle", track_caller)]
    pub fn wait(&self, guard: &mut ShardGuard<'_>) {
        self.changed.wait_for(guard, Duration::from_millis(20));
    }
}

/// What the one who writes row files owns.
#[derive(Debug)]
pub struct Writer {
    /// A submission queue per file written at the same time.
    pub queues: Vec<Box<dyn Queue>>,
}

/// The writer's role, held.
pub type WriterGuard<'a> = Watched<'a, MutexGuard<'a, Writer>>;

/// Rows counted since the last cut: a number of the cut in the upper bits, the rows in the lower.
#[derive(Debug, Default)]
pub struct SinceCut(AtomicU64);

impl SinceCut {
    const ROWS: u64 = (1 << 40) - 1;

    /// Starts again from 0.
    pub fn cut(&self) {
        let next = |x: u64| Some((x | Self::ROWS).wrapping_add(1));
        let _always = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    /// Which cut is counted from.
    #[must_use]
    pub fn mark(&self) -> u64 {
        self.0.load(Ordering::Relaxed) & !Self::ROWS
    }

    /// Adds rows, unless there was a cut since `mark` was taken: that cut has them.
    pub fn add(&self, mark: u64, rows: u64) {
        let sum = |x: u64| (x & !Self::ROWS == mark).then_some(x + rows);
        let _late = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
    }

    /// The rows.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed) & Self::ROWS
    }
}

/// Counters that are not kept elsewhere.
#[derive(Debug, Default)]
pub struct Counters {
    pub unique_asked: AtomicU64,
    pub unique_hits: AtomicU64,
    pub rows_read: AtomicU64,
    pub rows_pushed: AtomicU64,
    pub bytes_pushed: AtomicU64,
    pub non_finite: AtomicU64,
    pub reads: AtomicU64,
    pub read_bytes: AtomicU64,
    pub written_bytes: AtomicU64,
    pub compaction_written_bytes: AtomicU64,
    pub flushes: AtomicU64,
    pub compactions: AtomicU64,
    pub compaction_failures: AtomicU64,
    pub checkpoints: AtomicU64,
    pub stall_us_max: AtomicU64,
    pub stall_us: AtomicU64,
    pub cut_us_max: AtomicU64,
    /// Whether something changed since the last durable checkpoint's cut.
    pub changed: AtomicBool,
    /// Rows flushed since the last durable checkpoint's cut.
    pub flushed_rows: SinceCut,
}

impl Counters {
    /// Adds.
    pub fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }

    /// Counts a wait for room.
    pub fn stalled(&self, since: Instant) {
        let us = micros(since.elapsed());
        self.stall_us.fetch_add(us, Ordering::Relaxed);
        self.stall_us_max.fetch_max(us, Ordering::Relaxed);
    }
}

/// Microseconds of a duration.
pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A flag with a condition variable: work to do, or work done.
#[derive(Debug, Default)]
pub struct Signal {
    count: Mutex<u64>,
    condvar: Condvar,
}

impl Signal {
    /// Raises it.
    pub fn notify(&self) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.condvar.notify_all();
    }

    /// How often it was raised.
    pub fn count(&self) -> u64 {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it was raised more often than `seen`, or a while.
    #[cfg_attr(feature = "shuttle", track_caller)]
    pub fn wait(&self, seen: u64, pause: Duration) {
        let count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        if *count == seen {
            drop(self.condvar.wait_timeout(count, pause));
        }
    }
}

/// The parts of an open store.
pub struct Engine {
    /// Tells the leases of different stores apart.
    pub id: u64,
    /// Who opened it.
    pub process: Process,
    /// As given at open.
    pub options: RuntimeOptions,
    /// No writes, no writer's lock.
    pub read_only: bool,
    /// The SSD tier.
    pub ssd: Ssd,
    /// Ranges of mix64.
    pub shards: Vec<ShardCell>,
    /// Tables by id.
    pub tables: RwLock<Vec<Arc<Table>>>,
    /// Who serves callers and prefetches.
    pub lanes: RwLock<Arc<Lanes>>,
    /// One admission at a time, so that nobody sees another's half-made pins.
    pub admission: Mutex<()>,
    /// The writer's role.
    pub writer: Mutex<Writer>,
    /// Held shared from a flush's rank to its last repoint (files written at the same time have no
    /// key in common); a compaction takes its rank alone.
    pub commit: RwLock<()>,
    /// Which data directory is compacted next: one compaction at a time in each.
    pub turns: Turns,
    /// Outstanding leases.
    pub leases: LeaseBook,
    /// Prefetches waiting.
    pub prefetches: PrefetchQueue,
    /// One remove at a time.
    pub removing: Mutex<()>,
    /// A push holds it shared, a cut alone.
    pub gate: RwLock<()>,
    /// Whether a checkpoint's thread is running.
    pub running: Arc<Running>,
    /// Versions that wait for an index image.
    pub images: Arc<Images>,
    /// Counters.
    pub counters: Counters,
    /// Who gives the counters to the recorder of the program.
    pub publisher: Publisher,
    /// Arrays of batches that were served.
    pub spares: Spares,
    /// Raised when rows were flushed: the compaction threads look.
    pub flushed: Signal,
    /// Raised when a compaction ended.
    pub compacted: Signal,
    /// Raised when a cache ran low: the writer thread looks.
    pub low: Signal,
    /// The store was closed; background threads end.
    pub closed: AtomicBool,
    /// Threads that wait for room.
    pub waiting: AtomicUsize,
    /// Memory of the writer's buffers.
    pub write_bytes: u64,
    /// File size that flushes aim at.
    pub file_bytes: u64,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("id", &self.id)
            .field("ssd", &self.ssd)
            .finish()
    }
}

impl Engine {
    /// All lanes.
    pub fn lanes(&self) -> Arc<Lanes> {
        Arc::clone(&self.lanes.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The lane of callers.
    pub fn foreground(&self) -> Arc<Lane> {
        Arc::clone(&self.lanes().foreground)
    }

    /// A table by id.
    ///
    /// # Errors
    /// `InvalidArgument` for an id of another store, `Forked`.
    pub fn table(&self, id: TableId) -> Result<Arc<Table>> {
        self.check_process()?;
        let tables = self.tables.read().unwrap_or_else(PoisonError::into_inner);
        tables.get(id.0 as usize).cloned().ok_or_else(|| {
            let known = tables.iter().map(|t| t.descriptor.name.clone()).collect();
            Invalid::UnknownTable {
                name: format!("#{id}"),
                known,
            }
            .into()
        })
    }

    /// All tables.
    pub fn all_tables(&self) -> Vec<Arc<Table>> {
        self.tables
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// All descriptors, by table id.
    pub fn descriptors(&self) -> Vec<TableDescriptor> {
        let tables = self.all_tables();
        tables.iter().map(|t| t.descriptor.clone()).collect()
    }

    /// Fails in a forked child: its threads and locks are its parent's.
    ///
    /// # Errors
    /// `Forked`.
    #[inline]
    pub fn check_process(&self) -> Result<()> {
        match self.process.is_this() {
            true => Ok(()),
            false => Err(Error::Forked),
        }
    }

    /// Sees to it that dropping a handle in a forked child never drops the engine; true there.
    pub fn leave_to_parent(self: &Arc<Engine>) -> bool {
        let forked = !self.process.is_this();
        if forked {
            std::mem::forget(Arc::clone(self));
        }
        forked
    }

    /// Fails for a read-only or closed store, and in a forked child.
    ///
    /// # Errors
    /// `Forked`, `ReadOnly`, `InvalidArgument`.
    pub fn check_writer(&self) -> Result<()> {
        self.check_process()?;
        if self.read_only {
            return Err(Error::ReadOnly {
                path: self.ssd.root.path().to_path_buf(),
            });
        }
        if self.closed.load(Ordering::Acquire) {
            return Err(Invalid::Closed.into());
        }
        Ok(())
    }

    /// Locks the writer's role.
    pub fn lock_writer(&self) -> WriterGuard<'_> {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        self.ssd.poison.watch(writer)
    }

    /// Holds cuts back while something is changed.
    pub fn gate_shared(&self) -> impl Sized + '_ {
        let gate = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        self.ssd.poison.watch(gate)
    }

    /// Holds changes back.
    pub fn gate_alone(&self) -> impl Sized + '_ {
        let gate = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        self.ssd.poison.watch(gate)
    }

    /// The bounds of compaction.
    #[must_use]
    pub fn limits(&self, force: bool) -> Limits {
        Limits {
            space_bound: self.options.space_bound,
            file_bytes: self.file_bytes,
            directories: self.ssd.directories.len() as u64,
            force,
        }
    }

    /// Bytes of one table's cache in one shard: the budget without I/O buffers, split by row size.
    fn table_bytes(&self, tables: &[Arc<Table>], table: usize) -> u64 {
        let buffers = self.lanes().bytes() + self.write_bytes;
        let budget = self.options.cache_bytes.saturating_sub(buffers);
        let budget = budget.max(self.options.cache_bytes / 2);
        let sum: u64 = tables
            .iter()
            .map(|t| t.descriptor.row_bytes() as u64 + 48)
            .sum();
        let own = tables[table].descriptor.row_bytes() as u64 + 48;
        let share = u128::from(budget) * u128::from(own) / u128::from(sum.max(1));
        u64::try_from(share).unwrap_or(u64::MAX) / self.shards.len() as u64
    }

    /// Gives every table its places anew. No row is resident that is not clean, no lease is out.
    ///
    /// # Errors
    /// `InvalidArgument` when a table's share holds no row.
    pub fn rebuild_caches(&self, tables: &[Arc<Table>]) -> Result<()> {
        // All are made before any is replaced: an error changes nothing.
        let mut made = Vec::new();
        for s in 0..self.shards.len() {
            let range = shard_range(s, self.shards.len());
            let mut caches = Vec::new();
            for table in 0..tables.len() {
                let config = CacheConfig {
                    row_f32s: tables[table].descriptor.row_f32s(),
                    bytes: self.table_bytes(tables, table),
                    policy: self.options.policy,
                    flush_step_rows: self.flush_step_rows(tables, table),
                    range,
                };
                caches.push(TableCache::new(&config)?);
            }
            made.push((range, caches));
        }
        for (cell, (range, caches)) in self.shards.iter().zip(made) {
            let mut shard = cell.lock();
            for (table, cache) in caches.into_iter().enumerate() {
                match shard.tables.get_mut(table) {
                    Some(entry) => entry.cache = cache,
                    None => {
                        let index = Index::new(range);
                        shard.tables.push(ShardTable {
                            cache,
                            index,
                            reserved: 0,
                        });
                    }
                }
            }
        }
        Ok(())
    }

    /// Rows of one table in one shard per flush: all shards together make one file, or as many rows
    /// as the options say.
    fn flush_step_rows(&self, tables: &[Arc<Table>], table: usize) -> usize {
        if self.options.flush_step_rows > 0 {
            return (self.options.flush_step_rows / self.shards.len()).max(1);
        }
        let row_bytes = tables[table].file_bytes();
        let share = self.file_bytes / self.shards.len() as u64 / tables.len() as u64;
        usize::try_from(share / row_bytes)
            .unwrap_or(usize::MAX)
            .max(1)
    }

    /// Locks all shards in order.
    pub fn lock_all(&self) -> Vec<ShardGuard<'_>> {
        self.shards.iter().map(ShardCell::lock).collect()
    }
}
