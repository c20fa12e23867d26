//! Which rows may not leave memory, and how are their values read?
//!
//! - A lease is residency, not a snapshot: values are gathered when it is read.
//! - Dropping it lowers the pins it raised.

use std::collections::BTreeMap;
use std::mem::take;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use super::engine::{Counters, Engine, Signal, Table};
use super::guard::point;
use crate::error::{Invalid, Result};
use crate::sync::Mutex;
use crate::units::TableId;

/// Unpinning a row is this much less work than reading it.
const UNPIN_SHARE: usize = 16;

/// One shard's part of a lease.
#[derive(Debug, Default)]
pub(crate) struct LeasePart {
    /// The places of the rows.
    pub slots: Vec<u32>,
    /// Their positions in the caller's batch, rising.
    pub positions: Vec<u32>,
    /// Whether a place may be there twice.
    pub repeats: bool,
}

/// Keeps the rows of a batch in memory until it is dropped.
///
/// A lease may be read and pushed to any number of times, from any thread.
pub struct Lease {
    pub(crate) engine: Arc<Engine>,
    pub(crate) table: Arc<Table>,
    pub(crate) id: u64,
    /// Shard by position.
    pub(crate) shards: Vec<u16>,
    pub(crate) parts: Vec<LeasePart>,
}

/// The outstanding leases of a store.
#[derive(Debug, Default)]
pub struct LeaseBook {
    inner: Mutex<(u64, BTreeMap<u64, u64>)>,
    /// Raised when a lease was dropped.
    pub dropped: Signal,
}

impl LeaseBook {
    /// Enters a lease of `bytes`; returns its id.
    pub fn enter(&self, bytes: u64) -> u64 {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.0 += 1;
        let id = inner.0;
        inner.1.insert(id, bytes);
        id
    }

    fn leave(&self, id: u64) {
        self.inner
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .1
            .remove(&id);
        self.dropped.notify();
    }

    /// Ids of the oldest outstanding leases.
    #[must_use]
    pub fn oldest(&self) -> Vec<u64> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.1.keys().take(16).copied().collect()
    }

    /// (leases, bytes of their places).
    #[must_use]
    pub fn totals(&self) -> (usize, u64) {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        (inner.1.len(), inner.1.values().sum())
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
        self.engine
            .guarded(|| self.gather(out, dim, "weights (f32s)"))
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
        self.engine.guarded(|| self.gather(out, width, "row f32s"))
    }

    fn gather(&self, out: &mut [f32], width: usize, what: &'static str) -> Result<()> {
        self.engine.check_process()?;
        let expected = self.shards.len() * width;
        if out.len() != expected {
            return Err(Invalid::Length {
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
        let count = self.engine.shards.len();
        let spares = &self.engine.spares;
        let targets = spares.deal(out, width, &self.shards, count);
        let targets: Vec<_> = targets.into_iter().map(Mutex::new).collect();
        self.engine.foreground().shards(count, self.len(), |s, _| {
            let mut targets = targets[s].lock().unwrap_or_else(PoisonError::into_inner);
            if !targets.is_empty() {
                let shard = self.engine.shards[s].lock();
                let cache = &shard.tables[table].cache;
                cache.gather(&self.parts[s].slots, &mut targets);
                point("gather");
            }
        });
        for targets in targets {
            spares.put_targets(targets.into_inner().unwrap_or_else(PoisonError::into_inner));
        }
        Counters::add(&self.engine.counters.rows_read, self.shards.len() as u64);
        Ok(())
    }

    pub(crate) fn check(&self, engine: &Engine) -> Result<()> {
        if self.engine.id != engine.id {
            return Err(Invalid::ForeignLease.into());
        }
        if self.engine.closed.load(Ordering::Acquire) {
            return Err(Invalid::Closed.into());
        }
        Ok(())
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
        if self.engine.leave_to_parent() {
            return;
        }
        // It may be dropped by a panic of its caller: another one would end the process.
        let (shards, parts) = (take(&mut self.shards), take(&mut self.parts));
        let _panicked = self.engine.survive(|| self.let_go(shards, parts));
    }
}

impl Lease {
    fn let_go(&self, shards: Vec<u16>, parts: Vec<LeasePart>) {
        let table = self.table.id.0 as usize;
        let engine = &self.engine;
        engine
            .foreground()
            .shards(parts.len(), shards.len() / UNPIN_SHARE, |s, _| {
                if !parts[s].slots.is_empty() {
                    let cell = &engine.shards[s];
                    cell.lock().tables[table].cache.unpin(&parts[s].slots);
                    point("unpin");
                    cell.notify();
                }
            });
        let spares = &self.engine.spares;
        spares.shards.put(shards);
        for part in parts {
            spares.numbers.put(part.slots);
            spares.numbers.put(part.positions);
        }
        self.engine.leases.leave(self.id);
    }
}
