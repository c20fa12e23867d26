//! What do all parts of a store share?
//!
//! Invariants:
//! - Lock order: the checkpoint's role, admission, gate, writer, ranks, shards in rising order, then
//!   the SSD tier's own locks (ARCHITECTURE, "Locks", has all). A part locks what is its own, or what a
//!   part below it gives by a method; shards are everybody's.
//! - Nothing is read from or written to a device while a shard is locked.

mod changes;
mod demand;
mod guard;
mod part;
mod shard;
mod signal;
mod tables;
mod waits;
mod work;

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

pub use demand::{add, get, micros};
pub use guard::point;
pub use part::Part;
pub use shard::{Shard, ShardCell, ShardGuard, ShardTable, Table};
pub use signal::Signal;
pub use waits::Stretch;

use crate::error::{ArgumentError, Error, Result};
use crate::fork::Process;
use crate::mem::{CacheConfig, TableCache};
use crate::observe::Publisher;
use crate::options::RuntimeOptions;
use crate::ssd::Ssd;
use crate::ssd::index::{Index as _, KeyIndex};
use crate::stats::Wait;
use crate::sync::RwLock;
use crate::sync::atomic::AtomicBool;
use crate::units::{Slot, part_range, saturate, to_usize};
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
    /// On an opened tier, with tables but without slots for rows. The interval is the one that
    /// begins.
    pub fn new(
        ssd: Ssd,
        options: RuntimeOptions,
        read_only: bool,
        tables: Vec<Arc<Table>>,
        interval: u32,
    ) -> Core {
        let shard = || ShardCell::new(Shard::new(interval));
        let file_bytes = options
            .file_bytes
            .min((options.cache_bytes / 8).max(1 << 20));
        Core {
            id: STORES.fetch_add(1, Ordering::Relaxed),
            process: Process::this(),
            read_only,
            shards: (0..options.shards).map(|_| shard()).collect(),
            file_bytes,
            changes: Changes::default(),
            demand: Demand::default(),
            tables: Tables::new(tables, &options),
            gate: RwLock::new(()),
            ranks: RwLock::new(()),
            closed: AtomicBool::new(false),
            parts: PartList::default(),
            publisher: Publisher::new(ssd.root.path(), read_only),
            options,
            ssd,
        }
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

    /// Bytes of one table's cache in one shard: the budget without I/O buffers, split by row size.
    fn table_bytes(&self, tables: &[Arc<Table>], table: usize, buffer_bytes: u64) -> u64 {
        let budget = self.options.cache_bytes.saturating_sub(buffer_bytes);
        let budget = budget.max(self.options.cache_bytes / 2);
        let there = tables.iter().filter(|t| !t.is_dropped());
        let sum: u64 = there.map(|t| t.descriptor.row_bytes() as u64 + 48).sum();
        let own = tables[table].descriptor.row_bytes() as u64 + 48;
        let share = u128::from(budget) * u128::from(own) / u128::from(sum.max(1));
        saturate(share) / self.shards.len() as u64
    }

    /// What a table's cache in one shard is made from, beside the others of these tables.
    fn cache_config(
        &self,
        tables: &[Arc<Table>],
        table: usize,
        buffer_bytes: u64,
        range: (u64, u64),
    ) -> CacheConfig {
        CacheConfig {
            row_f32s: tables[table].descriptor.row_f32s(),
            bytes: self.table_bytes(tables, table, buffer_bytes),
            policy: tables[table].tuning().policy,
            flush_step_rows: self.flush_step_rows(tables, table),
            range,
        }
    }

    /// Fails where [`Core::rebuild_caches`] would not have room for these tables. Asks for no memory.
    ///
    /// # Errors
    /// `InvalidArgument` when a table's share holds no row.
    pub fn check_caches(&self, tables: &[Arc<Table>], buffer_bytes: u64) -> Result<()> {
        // Shards have equal shares.
        let range = part_range(0, self.shards.len()).into_inner();
        let there = (0..).zip(tables).filter(|(_, table)| !table.is_dropped());
        for (i, table) in there {
            let slots = self.cache_config(tables, i, buffer_bytes, range).slots();
            slots.map_err(|e| of_table(e, &table.descriptor.name))?;
        }
        Ok(())
    }

    /// Gives every table its slots anew, in the memory that I/O buffers leave. No row is resident that
    /// is not clean, no lease is out.
    ///
    /// # Errors
    /// `InvalidArgument` when a table's share holds no row.
    pub fn rebuild_caches(&self, tables: &[Arc<Table>], buffer_bytes: u64) -> Result<()> {
        // All are made before any is replaced: an error changes nothing.
        let mut made = Vec::new();
        for s in 0..self.shards.len() {
            let range = part_range(s, self.shards.len()).into_inner();
            let mut caches = Vec::new();
            for table in 0..tables.len() {
                if tables[table].is_dropped() {
                    let row_f32s = tables[table].descriptor.row_f32s();
                    caches.push(TableCache::without_slots(row_f32s, range));
                    continue;
                }
                let config = self.cache_config(tables, table, buffer_bytes, range);
                let cache = TableCache::new(&config);
                caches.push(cache.map_err(|e| of_table(e, &tables[table].descriptor.name))?);
            }
            made.push((range, caches));
        }
        for (cell, (range, caches)) in self.shards.iter().zip(made) {
            let mut shard = cell.lock();
            for (table, cache) in caches.into_iter().enumerate() {
                match shard.tables.get_mut(table) {
                    Some(entry) => entry.replace_cache(cache),
                    None => {
                        let table = ShardTable::new(cache, KeyIndex::new(range));
                        shard.tables.push(table);
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
        let there = tables.iter().filter(|t| !t.is_dropped()).count() as u64;
        let share = self.file_bytes / self.shards.len() as u64 / there.max(1);
        to_usize(share / row_bytes).max(1)
    }

    /// Locks a shard with these rows marked as changed: the rows as of a running checkpoint's cut
    /// have been copied.
    ///
    /// # Errors
    /// `Poisoned` when a thread panicked: perhaps the one that would have made room for a copy.
    pub fn lock_to_write(&self, s: usize, table: &Table, slots: &[Slot]) -> Result<ShardGuard<'_>> {
        let begin = |shard: &mut Shard| {
            let (interval, frozen) = shard.intervals();
            let cache = &mut shard.tables[table.id.0 as usize].cache;
            cache.begin_write(slots, interval, frozen).is_ok()
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
