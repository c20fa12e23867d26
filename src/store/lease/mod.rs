//! Which rows may not leave memory, and how are their values read?
//!
//! - A lease is residency, not a snapshot: values are gathered when it is read.
//! - Dropping it lowers the pins it raised.
//! - It has one part or several, of one table each: one call made them all resident.

mod map;
mod part;
mod pins;

use std::collections::BTreeMap;
use std::mem::take;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

pub use map::PartMap;
pub use part::LeasePart;
pub use pins::{OutGuard, Pins};

use super::core::{Core, Part, Signal, Table, point};
use super::workers::Workers;
use crate::error::{ArgumentError, Result, check_length};
use crate::stats::Stats;
use crate::sync::Mutex;
use crate::units::{Slot, TableId};
use part::Output;

/// Unpinning a row is this much less work than reading it.
const UNPIN_SHARE: usize = 16;

/// The rows of a lease that lie in one shard, part by part.
#[derive(Debug, Default)]
pub struct ShardRows {
    /// The slots of the rows.
    pub slots: Vec<Slot>,
    /// Their positions in the caller's part, rising within each.
    pub positions: Vec<u32>,
    /// Whether a slot may be there twice.
    pub repeats: bool,
}

/// Keeps the rows of a batch in memory until it is dropped.
///
/// A lease may be read and pushed to any number of times, from any thread. That of
/// [`Store::pull_many`](crate::Store::pull_many) or of a ticket of
/// [`Store::prefetch_many`](crate::Store::prefetch_many) has several parts, in the order of the call
/// ([`Lease::parts`]); any other has one.
pub struct Lease {
    leases: Arc<Leases>,
    id: u64,
    pub(super) map: PartMap,
    /// By shard.
    pub(super) rows: Vec<ShardRows>,
}

/// What is kept of a lease that is out.
#[derive(Debug)]
struct Out {
    /// Of its slots.
    bytes: u64,
    tables: Vec<TableId>,
}

/// The outstanding leases of a store.
#[derive(Debug)]
pub struct Leases {
    core: Arc<Core>,
    workers: Arc<Workers>,
    /// The last id, and by id what is out.
    book: Mutex<(u64, BTreeMap<u64, Out>)>,
    /// Raised when a lease was dropped.
    dropped: Signal,
}

impl Leases {
    /// None yet.
    pub fn new(core: &Arc<Core>, workers: &Arc<Workers>) -> Leases {
        Leases {
            core: Arc::clone(core),
            workers: Arc::clone(workers),
            book: Mutex::default(),
            dropped: Signal::default(),
        }
    }

    /// A lease of rows that are resident and pinned.
    pub fn issue(self: &Arc<Leases>, map: PartMap, rows: Vec<ShardRows>) -> Lease {
        let id = self.enter(Out {
            bytes: map.keys() as u64 * 10,
            tables: map.tables().map(|(table, _)| table.id).collect(),
        });
        Lease {
            leases: Arc::clone(self),
            id,
            map,
            rows,
        }
    }

    fn enter(&self, out: Out) -> u64 {
        let mut book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        book.0 += 1;
        let id = book.0;
        book.1.insert(id, out);
        id
    }

    fn leave(&self, id: u64) {
        self.book
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .1
            .remove(&id);
        self.dropped.notify();
    }

    /// There may be room, as after a drop.
    pub fn look_again(&self) {
        self.dropped.notify();
    }

    /// How often a lease was dropped.
    pub fn drops(&self) -> u64 {
        self.dropped.count()
    }

    /// Waits until one was dropped after `seen`, or a while.
    pub fn wait_for_drop(&self, seen: u64) {
        self.dropped.wait(seen, Duration::from_millis(100));
    }

    /// Leases that are out with rows of a table.
    #[must_use]
    pub fn count_of(&self, table: TableId) -> usize {
        let book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        book.1
            .values()
            .filter(|out| out.tables.contains(&table))
            .count()
    }

    /// Ids of the oldest outstanding leases.
    #[must_use]
    pub fn oldest(&self) -> Vec<u64> {
        let book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        book.1.keys().take(16).copied().collect()
    }

    /// Outstanding leases.
    #[must_use]
    pub fn count(&self) -> usize {
        self.totals().0
    }

    /// (leases, bytes of their slots).
    fn totals(&self) -> (usize, u64) {
        let book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        (book.1.len(), book.1.values().map(|out| out.bytes).sum())
    }
}

impl Part for Leases {
    fn wake(&self) {
        self.dropped.notify();
    }

    fn count(&self, stats: &mut Stats) {
        let (leases, bytes) = self.totals();
        stats.leases = leases as u64;
        stats.lease_bytes = bytes;
    }
}

impl Lease {
    /// Keys of the batch, duplicates included; of all parts.
    #[must_use]
    pub fn len(&self) -> usize {
        self.map.keys()
    }

    /// Whether the batch is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The table; of several parts, that of the first.
    #[must_use]
    pub fn table(&self) -> TableId {
        self.map.table(self.map.ordinal(0)).id
    }

    /// The lease's number, as named by `OverBudget`.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The parts, in the order in which they were asked for.
    ///
    /// # Examples
    /// ```
    /// # use hps::*;
    /// # let directory = std::env::temp_dir().join(format!("hps-parts-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// # let items = store.create_table(&TableDescriptor::new("items", 4))?;
    /// let users = store.create_table(&TableDescriptor::new("users", 2))?;
    /// let asked = [PrefetchPart::new(items, &[7, 8]), PrefetchPart::new(users, &[1])];
    /// let lease = store.prefetch_many(&asked)?.wait()?;
    /// for part in lease.parts() {
    ///     let mut weights = vec![0.0; part.len() * part.dim()];
    ///     part.read(&mut weights)?;
    /// }
    /// # drop(lease);
    /// # store.close_discarding();
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn parts(&self) -> impl ExactSizeIterator<Item = LeasePart<'_>> {
        (0..self.map.len()).map(|index| LeasePart::new(self, self.map.ordinal(index)))
    }

    /// Gathers the weights as they are now.
    ///
    /// # Shapes
    /// out: `[n, dim]`, in the order of the keys; of several parts, one after the other
    ///
    /// # Cost
    /// One copy a row; no I/O, no allocation per row.
    ///
    /// # Errors
    /// `InvalidArgument` when `out` has another length.
    ///
    /// # Examples
    /// ```
    /// # use hps::*;
    /// # let directory = std::env::temp_dir().join(format!("hps-read-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// # let items = store.create_table(&TableDescriptor::new("items", 4))?;
    /// let lease = store.prefetch(items, &[7, 42])?.wait()?;
    /// let mut weights = [0.0; 2 * 4];
    /// lease.read(&mut weights)?;
    /// store.push(&lease, Update::deltas(&[1.0; 2 * 4]))?;
    /// let before = weights;
    /// lease.read(&mut weights)?; // as they are now
    /// assert_eq!(weights[0], before[0] + 1.0);
    /// # drop(lease);
    /// # store.close_discarding();
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn read(&self, out: &mut [f32]) -> Result<()> {
        let width = |table: &Table| table.descriptor.dim;
        self.read_parts_after_each_other(out, width, "weights (f32s)")
    }

    /// Gathers whole rows: weights, optimizer state, metadata (u32 bit patterns).
    ///
    /// # Shapes
    /// out: `[n, row_f32s]`, in the order of the keys; of several parts, one after the other
    ///
    /// # Cost
    /// As [`Lease::read`].
    ///
    /// # Errors
    /// `InvalidArgument` when `out` has another length.
    ///
    /// # Examples
    /// ```
    /// # use hps::*;
    /// # let directory = std::env::temp_dir().join(format!("hps-whole-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// # let items = store.create_table(&TableDescriptor::new("items", 4))?;
    /// let lease = store.pull(items, &[7], &mut [0.0; 4])?;
    /// let mut row = [0.0; 4 + 4]; // the weights, and AdaGrad's sums
    /// lease.read_rows(&mut row)?;
    /// assert_eq!(row[4..], [0.0; 4]); // no gradient so far
    /// # drop(lease);
    /// # store.close_discarding();
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn read_rows(&self, out: &mut [f32]) -> Result<()> {
        let width = |table: &Table| table.descriptor.row_f32s();
        self.read_parts_after_each_other(out, width, "row f32s")
    }

    /// Gathers the weights of all parts, as they are now.
    ///
    /// # Shapes
    /// outs: a buffer for each part, in their order: `[n, dim]` of the part
    ///
    /// # Cost
    /// As [`Lease::read`]; the threads are woken once for all parts.
    ///
    /// # Errors
    /// `InvalidArgument` when there is not a buffer for each part, or one has another length;
    /// nothing was copied.
    ///
    /// # Examples
    /// ```
    /// # use hps::{CreateOptions, PrefetchPart, RuntimeOptions, Store, TableDescriptor};
    /// # let directory = std::env::temp_dir().join(format!("hps-read-many-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// # let users = store.create_table(&TableDescriptor::new("users", 8))?;
    /// # let ads = store.create_table(&TableDescriptor::new("ads", 4))?;
    /// let ticket = store.prefetch_many(&[
    ///     PrefetchPart::new(users, &[1, 2]),
    ///     PrefetchPart::new(ads, &[7]),
    /// ])?;
    /// let lease = ticket.wait()?;
    /// let (mut of_users, mut of_ads) = (vec![0.0; 2 * 8], vec![0.0; 4]);
    /// lease.read_many(&mut [&mut of_users, &mut of_ads])?;
    /// # drop(lease);
    /// # store.close()?;
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn read_many(&self, outs: &mut [&mut [f32]]) -> Result<()> {
        check_length(
            "buffers for the parts of a lease",
            self.map.len(),
            outs.len(),
        )?;
        let mut outputs = Vec::with_capacity(outs.len());
        for (index, out) in outs.iter_mut().enumerate() {
            let ordinal = self.map.ordinal(index);
            outputs.push(Output { ordinal, out });
        }
        outputs.sort_unstable_by_key(|output| output.ordinal);
        let width = |table: &Table| table.descriptor.dim;
        self.gather(&mut outputs, width, "weights (f32s)")
    }

    /// Gathers whole rows of some positions, as they are now.
    ///
    /// # Shapes
    /// positions: `[m]`, each below [`Lease::len`], in any order; out: `[m, row_f32s]`
    ///
    /// # Cost
    /// A search and a copy for each position; the search is shortest where positions rise.
    ///
    /// # Errors
    /// `InvalidArgument`: a position past the end, another length of `out`, a lease of several parts
    /// (ask [`LeasePart::read_rows_at`]); nothing was copied.
    ///
    /// # Examples
    /// ```
    /// # use hps::{CreateOptions, RuntimeOptions, Store, TableDescriptor};
    /// # let directory = std::env::temp_dir().join(format!("hps-rows-at-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// let descriptor = TableDescriptor::new("users", 8);
    /// let users = store.create_table(&descriptor)?;
    /// let mut weights = vec![0.0; 3 * 8];
    /// let lease = store.pull(users, &[11, 12, 13], &mut weights)?;
    /// let mut rows = vec![0.0; 2 * descriptor.row_f32s()]; // weights and AdaGrad's sums
    /// lease.read_rows_at(&[2, 0], &mut rows)?; // those of keys 13 and 11
    /// assert_eq!(rows[..8], weights[2 * 8..]);
    /// # drop(lease);
    /// # store.close()?;
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn read_rows_at(&self, positions: &[u32], out: &mut [f32]) -> Result<()> {
        self.only_part("read one of Lease::parts")?
            .read_rows_at(positions, out)
    }

    /// The part of an ordinal.
    pub(super) fn part_of_ordinal(&self, ordinal: usize) -> LeasePart<'_> {
        LeasePart::new(self, ordinal)
    }

    /// Its part.
    ///
    /// # Errors
    /// `InvalidArgument` when there are several; it says what to do instead.
    pub(super) fn only_part(&self, instead: &'static str) -> Result<LeasePart<'_>> {
        match self.map.len() {
            1 => Ok(LeasePart::new(self, 0)),
            parts => Err(ArgumentError::SeveralParts { parts, instead }.into()),
        }
    }

    /// Fails for a lease of another store, and for a closed one.
    pub(super) fn check(&self, core: &Core) -> Result<()> {
        if self.leases.core.id != core.id {
            return Err(ArgumentError::ForeignLease.into());
        }
        core.check_open()
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease")
            .field("id", &self.id)
            .field("parts", &self.map.len())
            .field("keys", &self.len())
            .finish()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let core = &self.leases.core;
        if core.leave_to_parent(&self.leases) {
            return;
        }
        // It may be dropped by a panic of its caller: another one would end the process.
        let (map, rows) = (take(&mut self.map), take(&mut self.rows));
        let _panicked = core.survive(|| self.let_go(map, rows));
    }
}

impl Lease {
    fn let_go(&self, map: PartMap, rows: Vec<ShardRows>) {
        let (core, workers) = (&self.leases.core, &self.leases.workers);
        let pool = workers.foreground();
        pool.shards(rows.len(), map.keys() / UNPIN_SHARE, |s| {
            let slots = &rows[s].slots;
            if slots.is_empty() {
                return;
            }
            let cell = &core.shards[s];
            // A slot is one table's: those of all are looked at together.
            let distinct = rows[s].repeats.then(|| {
                let mut distinct = slots.clone();
                distinct.sort_unstable();
                distinct.dedup();
                distinct
            });
            let mut shard = cell.lock();
            shard.cache.unpin(distinct.as_ref().unwrap_or(slots));
            drop(shard);
            point("unpin");
            cell.notify();
        });
        let arrays = &workers.arrays;
        arrays.shards.put(map.into_shards());
        for rows in rows {
            arrays.slots.put(rows.slots);
            arrays.numbers.put(rows.positions);
        }
        self.leases.leave(self.id);
    }
}
