//! What do all parts of a store share?
//!
//! Invariants:
//! - Lock order: the checkpoint's role, admission, gate, writer, ranks, shards in rising order, then
//!   the SSD tier's own locks (ARCHITECTURE, "Locks", has all). A part locks what is its own, or what a
//!   part below it gives by a method; shards are everybody's.
//! - Nothing is read from or written to a device while a shard is locked.

mod cell;
mod changes;
mod demand;
mod guard;
mod part;
mod promises;
mod shard;
mod signal;
mod tables;
mod waits;
mod work;

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

pub use cell::{ShardCell, ShardGuard};
pub use demand::{add, get, micros};
pub use guard::point;
pub use part::Part;
pub use shard::{Beside, Shard, ShardTable, Table};
pub use signal::Signal;
pub use waits::Stretch;

use crate::error::{ArgumentError, Error, Result};
use crate::fork::Process;
use crate::mem::{Cache, CacheConfig, FlushStep, Shrunk, TableConfig, check_rows_fit};
use crate::observe::Publisher;
use crate::options::RuntimeOptions;
use crate::ssd::Ssd;
use crate::ssd::index::{Index as _, KeyIndex};
use crate::stats::Wait;
use crate::sync::RwLock;
use crate::sync::atomic::{AtomicBool, AtomicU64};
use crate::units::{Slot, part_range};
use changes::Changes;
use demand::Demand;
use part::PartList;
use tables::Tables;

/// It outlives the runs of a scheduler, so it is the system's.
static STORES: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);

/// What an open store is made on: its files, its rows, and what every part may ask.
pub struct Core {
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
    /// File size that flushes aim at.
    pub file_bytes: u64,
    /// What the last checkpoint does not hold.
    pub changes: Changes,
    /// Memory of the cache.
    cache_bytes: AtomicU64,
    /// What callers ask for.
    pub demand: Demand,
    tables: Tables,
    /// A push holds it shared, a cut alone.
    gate: RwLock<()>,
    /// Held shared from a flush's rank to its last repoint (files written at the same time have no
    /// key in common); a compaction takes its rank alone.
    ranks: RwLock<()>,
    /// The store was closed; background threads end.
    closed: AtomicBool,
    parts: PartList,
    /// Who gives the counters to the recorder of the program.
    publisher: Publisher,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core")
            .field("id", &self.id)
            .field("ssd", &self.ssd)
            .finish()
    }
}

impl Core {
    /// On an opened tier, with tables that the caches do not know yet. The interval is the one that
    /// begins.
    ///
    /// # Errors
    /// `InvalidArgument` where the system does not give the memory.
    pub fn new(
        ssd: Ssd,
        options: RuntimeOptions,
        read_only: bool,
        tables: Vec<Arc<Table>>,
        interval: u32,
    ) -> Result<Core> {
        let file_bytes = options
            .file_bytes
            .min((options.cache_bytes / 8).max(1 << 20));
        let shard = |s| {
            let cache = Cache::new(&CacheConfig {
                // More than it will have: addresses.
                bytes: options.cache_bytes / options.shards as u64,
                flush_step: Core::flush_step(&options, file_bytes),
                range: part_range(s, options.shards).into_inner(),
            })?;
            Ok(ShardCell::new(Shard::new(interval, cache)))
        };
        let shards = (0..options.shards).map(shard).collect::<Result<_>>()?;
        Ok(Core {
            id: STORES.fetch_add(1, Ordering::Relaxed),
            process: Process::this(),
            read_only,
            shards,
            file_bytes,
            changes: Changes::default(),
            cache_bytes: AtomicU64::new(options.cache_bytes),
            demand: Demand::default(),
            tables: Tables::new(tables, &options),
            gate: RwLock::new(()),
            ranks: RwLock::new(()),
            closed: AtomicBool::new(false),
            parts: PartList::default(),
            publisher: Publisher::new(ssd.root.path(), read_only),
            options,
            ssd,
        })
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
        self.check_open()
    }

    /// Fails where nothing can be changed: as [`Core::check_writer`], and once writes are refused.
    ///
    /// # Errors
    /// `Forked`, `ReadOnly`, `InvalidArgument`, `Poisoned`.
    pub fn check_writable(&self) -> Result<()> {
        self.check_writer()?;
        self.ssd.check_writable()
    }

    /// Fails once the store was closed.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub fn check_open(&self) -> Result<()> {
        match self.is_closed() {
            true => Err(ArgumentError::Closed.into()),
            false => Ok(()),
        }
    }

    /// Whether the store was closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Closes the store: its threads see it when they are woken.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
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

    /// Holds compactions back from their ranks, while a flush has one and repoints its rows.
    pub fn ranks_shared(&self) -> impl Sized + '_ {
        self.ranks.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no flush is between its rank and its last repoint.
    pub fn ranks_alone(&self) -> impl Sized + '_ {
        self.ranks.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of the cache of one shard: the budget without I/O buffers.
    fn shard_bytes(&self, buffer_bytes: u64) -> u64 {
        self.shard_bytes_of(self.cache_bytes(), buffer_bytes)
    }

    /// The memory of the cache: as given at open, or set since.
    pub fn cache_bytes(&self) -> u64 {
        get(&self.cache_bytes)
    }

    /// Gives each shard so much memory; rows leave with [`Shard::shrink`].
    ///
    /// # Errors
    /// `InvalidArgument` where the system does not give it: nothing has changed.
    pub fn set_cache_bytes(&self, bytes: u64, of_shard: u64) -> Result<()> {
        let before = self.shards[0].lock().cache.bytes_max();
        for (s, cell) in self.shards.iter().enumerate() {
            let set = cell.lock().cache.set_bytes(of_shard);
            if set.is_err() {
                for cell in &self.shards[..s] {
                    // Less than there is.
                    let _had = cell.lock().cache.set_bytes(before);
                }
            }
            set?;
        }
        self.cache_bytes.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// As [`Core::shard_bytes`], of a cache of so many bytes.
    pub fn shard_bytes_of(&self, all: u64, buffer_bytes: u64) -> u64 {
        let budget = all.saturating_sub(buffer_bytes).max(all / 2);
        match self.options.thresholds_in_force().shard_cache_bytes {
            0 => budget / self.shards.len() as u64,
            own => own,
        }
    }

    /// What the cache of a shard keeps of a table.
    fn table_config(&self, table: &Table) -> TableConfig {
        let tuning = table.tuning();
        let shards = self.shards.len() as u64;
        let options = &tuning.options;
        TableConfig {
            layout: table.layout,
            policy: tuning.policy,
            floor_bytes: options.cache_bytes_min / shards,
            ceiling_bytes: options.cache_bytes_max.unwrap_or(u64::MAX) / shards,
            is_dropped: table.is_dropped(),
        }
    }

    /// Fails where a cache would not have room for a row of each of these tables.
    ///
    /// # Errors
    /// `InvalidArgument` naming the table.
    pub fn check_caches(&self, tables: &[Arc<Table>], buffer_bytes: u64) -> Result<()> {
        self.check_caches_of(tables, self.shard_bytes(buffer_bytes))
    }

    /// The same for shards with so much memory.
    ///
    /// # Errors
    /// As [`Core::check_caches`].
    pub fn check_caches_of(&self, tables: &[Arc<Table>], bytes: u64) -> Result<()> {
        let there = || tables.iter().filter(|table| !table.is_dropped());
        let Some(largest) = there().max_by_key(|table| table.descriptor.row_f32s()) else {
            return Ok(());
        };
        let sizes: Vec<usize> = there().map(|t| t.descriptor.row_f32s()).collect();
        check_rows_fit(bytes, &sizes).map_err(|e| of_table(e, &largest.descriptor.name))
    }

    /// Of each shard: how many tables it has, and its memory.
    pub fn caches(&self) -> (usize, u64) {
        let shard = self.shards[0].lock();
        (shard.tables.len(), shard.cache.bytes_max())
    }

    /// Undoes [`Core::add_to_caches`]: the tables since have no rows.
    pub fn restore_caches(&self, (tables, bytes): (usize, u64)) {
        for cell in &self.shards {
            let mut shard = cell.lock();
            shard.tables.truncate(tables);
            shard.cache.truncate_tables(tables);
            // They had it.
            let _had = shard.cache.set_bytes(bytes);
        }
    }

    /// Gives each shard the memory that I/O buffers leave, and adds the tables that it does not know. No
    /// row moves.
    ///
    /// # Errors
    /// `InvalidArgument` where there is no room for a row, or no memory: nothing has changed.
    pub fn add_to_caches(&self, tables: &[Arc<Table>], buffer_bytes: u64) -> Result<()> {
        self.check_caches(tables, buffer_bytes)?;
        let bytes = self.shard_bytes(buffer_bytes);
        let before = self.caches();
        let added = (0..self.shards.len()).try_for_each(|s| {
            let range = part_range(s, self.shards.len()).into_inner();
            let shard = &mut *self.shards[s].lock();
            shard.cache.set_bytes(bytes)?;
            for table in &tables[shard.tables.len()..] {
                shard.cache.add_table(&self.table_config(table))?;
                shard.tables.push(ShardTable::new(KeyIndex::new(range)));
            }
            while matches!(shard.shrink(), Shrunk::More) {}
            Ok(())
        });
        if added.is_err() {
            self.restore_caches(before);
        }
        added
    }

    /// Tells the caches of the options of a table that has others now.
    pub fn tune_caches(&self, table: &Table) {
        let config = self.table_config(table);
        for cell in &self.shards {
            cell.lock().cache.set_table(table.id.0 as usize, &config);
        }
    }

    /// Drops all rows of a table that are in memory: it was dropped.
    pub fn drop_from_caches(&self, table: &Table) {
        for cell in &self.shards {
            cell.lock().cache.drop_rows(table.id.0 as usize);
            cell.notify();
        }
    }

    /// What one shard gives to a flush: all together make one file, or as many rows as the options say.
    fn flush_step(options: &RuntimeOptions, file_bytes: u64) -> FlushStep {
        let shards = options.shards;
        match options.flush_step_rows {
            0 => FlushStep::of_files(file_bytes, shards as u64),
            rows => FlushStep {
                rows: (rows / shards).max(1),
                ..FlushStep::default()
            },
        }
    }

    /// Locks a shard with these rows marked as changed: the rows as of a running checkpoint's cut
    /// have been copied. `begin` is [`Cache::begin_at`], or [`Cache::begin_overwrite`] for rows that are
    /// written from end to end.
    ///
    /// # Errors
    /// `Poisoned` when a thread panicked: perhaps the one that would have made room for a copy.
    pub fn lock_to_write(
        &self,
        s: usize,
        table: &Table,
        slots: &[Slot],
        mut begin: impl FnMut(&mut Cache, &[Slot], u32, Option<u32>) -> std::result::Result<(), usize>,
    ) -> Result<ShardGuard<'_>> {
        let mut begin = |shard: &mut Shard| {
            let (interval, frozen) = shard.intervals();
            let begun = begin(&mut shard.cache, slots, interval, frozen);
            shard.remember_left();
            begun.is_ok()
        };
        let cell = &self.shards[s];
        loop {
            let mut shard = cell.lock();
            if begin(&mut shard) {
                return Ok(shard);
            }
            drop(shard);
            // The rows that are marked below are marked again above: between the two nothing is changed,
            // and no cut comes, since whoever writes holds the gate.
            let _room = table.waits(Wait::Room);
            let mut shard = cell.lock();
            // The drain of the checkpoint frees slots, whatever leases are out.
            while !begin(&mut shard) {
                self.ssd.poison.check_threads()?;
                cell.wait(&mut shard);
            }
        }
    }

    /// Forgets where the rows of a table are on SSD: it was dropped, and nothing is written meanwhile.
    pub fn forget_rows(&self, table: &Table) {
        for (s, cell) in self.shards.iter().enumerate() {
            let range = part_range(s, self.shards.len()).into_inner();
            let mut shard = cell.lock();
            let files = self.ssd.file_slots();
            shard.tables[table.id.0 as usize].forget_all(&files, range);
        }
    }

    /// Locks all shards in order.
    pub fn lock_all(&self) -> Vec<ShardGuard<'_>> {
        self.shards.iter().map(ShardCell::lock).collect()
    }
}

/// An error of one table's options or of its cache, with the table's name.
pub fn of_table(error: Error, table: &str) -> Error {
    match error {
        Error::InvalidArgument(ArgumentError::Option { name, value, why }) => {
            let why = format!("{why} (table {table:?})");
            ArgumentError::Option { name, value, why }.into()
        }
        other => other,
    }
}

#[cfg(test)]
mod tests;
