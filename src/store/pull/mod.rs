//! How do rows come to the caller: at once, ahead of time, or never more?
//!
//! A pull, a prefetch and a remove bring the rows of a batch into memory the same way (`admit`, then
//! `fetch` for those that are on SSD). A call names one table or several: it has a part for each, and
//! is admitted, read and leased as one batch.

mod admit;
mod batch;
mod fetch;
mod offers;
mod reads;
mod remove;
mod slots;
mod split;
mod ticket;

use std::sync::{Arc, PoisonError};

pub use admit::Waited;
pub use batch::Full;
pub use ticket::Ticket;

use super::core::{Core, Part, Table, get};
use super::flush::Flusher;
use super::lease::{Lease, Leases};
use super::workers::{WorkerPool, Workers};
use crate::error::{Result, check_length};
use crate::stats::Stats;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64};
use crate::units::TableId;
use batch::Intent;
use split::Wanted;
use ticket::PrefetchQueue;

/// One part of a [`Store::pull_many`](crate::Store::pull_many).
#[derive(Debug)]
#[non_exhaustive]
pub struct PullPart<'a> {
    /// The table.
    pub table: TableId,
    /// Its keys, any u64; duplicates allowed. `[n]`
    pub keys: &'a [u64],
    /// Where their weights go: `[n, dim]`.
    pub out: &'a mut [f32],
}

impl<'a> PullPart<'a> {
    /// Keys of a table, and where their weights go.
    ///
    /// # Shapes
    /// keys: `[n]`, out: `[n, dim]`
    #[must_use]
    pub fn new(table: TableId, keys: &'a [u64], out: &'a mut [f32]) -> PullPart<'a> {
        PullPart { table, keys, out }
    }
}

/// One part of a [`Store::prefetch_many`](crate::Store::prefetch_many).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PrefetchPart<'a> {
    /// The table.
    pub table: TableId,
    /// Its keys, any u64; duplicates allowed. `[n]`
    pub keys: &'a [u64],
}

impl<'a> PrefetchPart<'a> {
    /// Keys of a table.
    ///
    /// # Shapes
    /// keys: `[n]`
    #[must_use]
    pub fn new(table: TableId, keys: &'a [u64]) -> PrefetchPart<'a> {
        PrefetchPart { table, keys }
    }
}

/// Rows that were brought in.
#[derive(Debug)]
pub struct Kept {
    pub lease: Lease,
    /// Distinct rows that were ever pushed and not removed since.
    pub known: u64,
    /// Those of them that had to be read.
    pub read: u64,
}

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
    /// Whether the last call that copies had to read more than a few of its rows.
    missed: AtomicBool,
    /// Whether most rows of the last call that brought some in were new ones.
    brought_new: AtomicBool,
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
            missed: AtomicBool::new(false),
            brought_new: AtomicBool::new(false),
            reads: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
        }
    }

    /// Makes rows resident, pins them and copies their weights.
    ///
    /// # Errors
    /// As [`Puller::acquire`]; `InvalidArgument` when `out` has another length.
    pub fn pull(&self, table: &Arc<Table>, keys: &[u64], out: &mut [f32]) -> Result<Lease> {
        let out = Some(out);
        self.pull_parts(&mut [Wanted { table, keys, out }])
    }

    /// As [`Puller::pull`], of several tables.
    ///
    /// # Errors
    /// As [`Puller::pull`]; `InvalidArgument` for a table of another store, and where there is no part.
    pub fn pull_many(&self, parts: &mut [PullPart<'_>]) -> Result<Lease> {
        let tables = parts.iter().map(|part| self.core.table(part.table));
        let tables = tables.collect::<Result<Vec<Arc<Table>>>>()?;
        let wanted = |(part, table)| {
            let PullPart { keys, out, .. }: &'_ mut PullPart<'_> = part;
            let out = Some(&mut **out);
            Wanted { table, keys, out }
        };
        let mut wanted: Vec<Wanted<'_>> = parts.iter_mut().zip(&tables).map(wanted).collect();
        self.pull_parts(&mut wanted)
    }

    /// Makes rows of one table resident and pins them, with no value copied.
    ///
    /// # Errors
    /// As [`Puller::acquire`].
    pub fn keep(&self, pool: &WorkerPool, table: &Arc<Table>, keys: &[u64]) -> Result<Kept> {
        let out = None;
        let mut wanted = [Wanted { table, keys, out }];
        let batch = self.begin(pool, &mut wanted)?;
        self.complete_counted(pool, Intent::Read, batch)
    }

    fn pull_parts(&self, parts: &mut [Wanted<'_>]) -> Result<Lease> {
        for part in &*parts {
            let expected = part.keys.len() * part.table.descriptor.dim;
            let found = part.out.as_ref().map_or(expected, |out| out.len());
            check_length("weights (f32s)", expected, found)?;
        }
        let pool = self.workers.foreground();
        let lease = self.acquire(&pool, parts, Intent::Read)?;
        for part in parts {
            part.table.note_read(part.keys.len());
        }
        Ok(lease)
    }

    /// Waits until no prefetch is served whose ticket was dropped: its rows are let go then.
    pub fn wait_cancelled(&self) {
        self.prefetches.wait_cancelled();
    }

    /// Leases and tickets that are out.
    pub fn outstanding(&self) -> usize {
        self.leases.count() + self.prefetches.count()
    }

    /// Ids of the oldest outstanding leases.
    pub fn oldest_leases(&self) -> Vec<u64> {
        self.leases.oldest()
    }

    /// Leases and tickets of a table that are out.
    pub fn outstanding_of(&self, table: TableId) -> usize {
        self.leases.count_of(table) + self.prefetches.count_of(table)
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

#[cfg(test)]
mod offers_tests;
#[cfg(test)]
mod promise_tests;
#[cfg(test)]
mod reads_tests;
#[cfg(test)]
mod split_tests;
