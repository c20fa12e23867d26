//! Which rows may not leave memory, and how are their values read?
//!
//! - A lease is residency, not a snapshot: values are gathered when it is read.
//! - Dropping it lowers the pins it raised.

use std::collections::BTreeMap;
use std::mem::take;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::core::{Core, Part, Signal, Table, add, get, point};
use super::workers::Workers;
use crate::error::{ArgumentError, Result};
use crate::stats::Stats;
use crate::sync::Mutex;
use crate::sync::atomic::AtomicU64;
use crate::units::TableId;

/// Unpinning a row is this much less work than reading it.
const UNPIN_SHARE: usize = 16;

/// One shard's part of a lease.
#[derive(Debug, Default)]
pub struct LeasePart {
    /// The slots of the rows.
    pub slots: Vec<u32>,
    /// Their positions in the caller's batch, rising.
    pub positions: Vec<u32>,
    /// Whether a slot may be there twice.
    pub repeats: bool,
}

/// Keeps the rows of a batch in memory until it is dropped.
///
/// A lease may be read and pushed to any number of times, from any thread.
pub struct Lease {
    leases: Arc<Leases>,
    pub(super) table: Arc<Table>,
    id: u64,
    /// Shard by position.
    pub(super) shards: Vec<u16>,
    pub(super) parts: Vec<LeasePart>,
}

/// The outstanding leases of a store.
#[derive(Debug)]
pub struct Leases {
    core: Arc<Core>,
    workers: Arc<Workers>,
    /// The last id, and by id the bytes of the slots.
    book: Mutex<(u64, BTreeMap<u64, u64>)>,
    /// Raised when a lease was dropped.
    dropped: Signal,
    rows_read: AtomicU64,
}

impl Leases {
    /// None yet.
    pub fn new(core: &Arc<Core>, workers: &Arc<Workers>) -> Leases {
        Leases {
            core: Arc::clone(core),
            workers: Arc::clone(workers),
            book: Mutex::default(),
            dropped: Signal::default(),
            rows_read: AtomicU64::new(0),
        }
    }

    /// A lease of rows that are resident and pinned.
    pub fn issue(
        self: &Arc<Leases>,
        table: &Arc<Table>,
        shards: Vec<u16>,
        parts: Vec<LeasePart>,
    ) -> Lease {
        let bytes = shards.len() as u64 * 10;
        let mut book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        book.0 += 1;
        let id = book.0;
        book.1.insert(id, bytes);
        drop(book);
        Lease {
            leases: Arc::clone(self),
            table: Arc::clone(table),
            id,
            shards,
            parts,
        }
    }

    fn leave(&self, id: u64) {
        self.book
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .1
            .remove(&id);
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
        (book.1.len(), book.1.values().sum())
    }

    /// So many rows were given to a caller.
    pub fn note_read(&self, rows: usize) {
        add(&self.rows_read, rows as u64);
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
        stats.rows_read = get(&self.rows_read);
    }
}

impl Lease {
    /// Keys of the batch, duplicates included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shards.len()
    }

    /// Whether the batch is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shards.is_empty()
    }

    /// The table.
    #[must_use]
    pub fn table(&self) -> TableId {
        self.table.id
    }

    /// The lease's number, as named by `OverBudget`.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Gathers the weights as they are now.
    ///
    /// # Shapes
    /// out: `[n, dim]`, in the order of the keys
    ///
    /// # Cost
    /// One copy a row; no I/O, no allocation per row.
    ///
    /// # Errors
    /// `InvalidArgument` when `out` has another length.
    pub fn read(&self, out: &mut [f32]) -> Result<()> {
        let dim = self.table.descriptor.dim;
        let core = &self.leases.core;
        core.guarded(|| self.gather(out, dim, "weights (f32s)"))
    }

    /// Gathers whole rows: weights, optimizer state, metadata (u32 bit patterns).
    ///
    /// # Shapes
    /// out: `[n, row_f32s]`
    ///
    /// # Errors
    /// `InvalidArgument` when `out` has another length.
    pub fn read_rows(&self, out: &mut [f32]) -> Result<()> {
        let width = self.table.descriptor.row_f32s();
        let core = &self.leases.core;
        core.guarded(|| self.gather(out, width, "row f32s"))
    }

    fn gather(&self, out: &mut [f32], width: usize, what: &'static str) -> Result<()> {
        let (core, workers) = (&self.leases.core, &self.leases.workers);
        core.check_process()?;
        let expected = self.shards.len() * width;
        if out.len() != expected {
            return Err(ArgumentError::Length {
                what,
                expected,
                found: out.len(),
            }
            .into());
        }
        if expected == 0 {
            return Ok(());
        }
        let table = self.table.id.0 as usize;
        let count = core.shards.len();
        let targets = workers.arrays.split_out(out, width, &self.shards, count);
        let targets: Vec<_> = targets.into_iter().map(Mutex::new).collect();
        workers.foreground().shards(count, self.len(), |s, _| {
            let mut targets = targets[s].lock().unwrap_or_else(PoisonError::into_inner);
            if !targets.is_empty() {
                let shard = core.shards[s].lock();
                let cache = &shard.tables[table].cache;
                cache.gather(&self.parts[s].slots, &mut targets);
                point("gather");
            }
        });
        for targets in targets {
            let targets = targets.into_inner().unwrap_or_else(PoisonError::into_inner);
            workers.arrays.put_targets(targets);
        }
        self.leases.note_read(self.shards.len());
        Ok(())
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
        let (id, keys) = (self.id, self.shards.len());
        f.debug_struct("Lease")
            .field("id", &id)
            .field("keys", &keys)
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
        let (shards, parts) = (take(&mut self.shards), take(&mut self.parts));
        let _panicked = core.survive(|| self.let_go(shards, parts));
    }
}

impl Lease {
    fn let_go(&self, shards: Vec<u16>, parts: Vec<LeasePart>) {
        let table = self.table.id.0 as usize;
        let (core, workers) = (&self.leases.core, &self.leases.workers);
        workers
            .foreground()
            .shards(parts.len(), shards.len() / UNPIN_SHARE, |s, _| {
                if !parts[s].slots.is_empty() {
                    let cell = &core.shards[s];
                    cell.lock().tables[table].cache.unpin(&parts[s].slots);
                    point("unpin");
                    cell.notify();
                }
            });
        let arrays = &workers.arrays;
        arrays.shards.put(shards);
        for part in parts {
            arrays.numbers.put(part.slots);
            arrays.numbers.put(part.positions);
        }
        self.leases.leave(self.id);
    }
}
