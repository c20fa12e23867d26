//! How do rows come to the caller: at once, ahead of time, or never more?
//!
//! A pull, a prefetch and a remove bring the rows of a batch into memory the same way (`admit`, then
//! `fetch` for those that are on SSD).

mod admit;
mod fetch;
mod remove;
mod ticket;

use std::sync::{Arc, PoisonError};

pub use ticket::Ticket;

use super::core::{Core, Part, Table, get};
use super::flush::Flusher;
use super::lease::{Lease, Leases};
use super::workers::Workers;
use crate::error::{ArgumentError, Result};
use crate::stats::Stats;
use crate::sync::Mutex;
use crate::sync::atomic::AtomicU64;
use admit::Intent;
use ticket::PrefetchQueue;

/// Brings rows into memory and pins them.
#[derive(Debug)]
pub struct Puller {
    core: Arc<Core>,
    workers: Arc<Workers>,
    leases: Arc<Leases>,
    flusher: Arc<Flusher>,
    /// One admission at a time, so that nobody sees another's half-made pins.
    admission: Mutex<()>,
    /// Prefetches waiting.
    prefetches: PrefetchQueue,
    /// One remove at a time.
    removing: Mutex<()>,
    reads: AtomicU64,
    read_bytes: AtomicU64,
}

impl Part for Puller {
    fn wake(&self) {
        self.prefetches.wake_all();
    }

    fn count(&self, stats: &mut Stats) {
        stats.reads = get(&self.reads);
        stats.read_bytes = get(&self.read_bytes);
    }
}

impl Puller {
    /// Nothing is pinned yet.
    pub fn new(
        core: &Arc<Core>,
        workers: &Arc<Workers>,
        leases: &Arc<Leases>,
        flusher: &Arc<Flusher>,
    ) -> Puller {
        Puller {
            core: Arc::clone(core),
            workers: Arc::clone(workers),
            leases: Arc::clone(leases),
            flusher: Arc::clone(flusher),
            admission: Mutex::new(()),
            prefetches: PrefetchQueue::default(),
            removing: Mutex::new(()),
            reads: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
        }
    }

    /// Makes rows resident, pins them and copies their weights.
    ///
    /// # Errors
    /// As [`Puller::acquire`]; `InvalidArgument` when `out` has another length.
    pub fn pull(&self, table: &Arc<Table>, keys: &[u64], out: &mut [f32]) -> Result<Lease> {
        let dim = table.descriptor.dim;
        let (expected, found) = (keys.len() * dim, out.len());
        if found != expected {
            let what = "weights (f32s)";
            return Err(ArgumentError::Length {
                what,
                expected,
                found,
            }
            .into());
        }
        let pool = self.workers.foreground();
        let lease = self.acquire(&pool, table, keys, Intent::Read, Some((out, dim)))?;
        self.leases.note_read(keys.len());
        Ok(lease)
    }

    /// Waits until no prefetch is served whose ticket was dropped: its rows are let go then.
    pub fn wait_cancelled(&self) {
        self.prefetches.wait_cancelled();
    }

    /// Leases and tickets that are out.
    pub fn outstanding(&self) -> usize {
        self.leases.count() + self.prefetches.len()
    }

    /// Holds admissions back.
    pub fn admission_alone(&self) -> impl Sized + '_ {
        let admission = self
            .admission
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.core.ssd.poison.watch(admission)
    }
}
