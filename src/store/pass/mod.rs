//! How do the rows of a whole pass come into memory, and stay for as long as it lasts?
//!
//! - A pass is a lease that is taken piece by piece: it pins rows and has no values. What holds for leases
//!   holds for it: no row leaves, no value depends on it.
//! - Passes come in one at a time, in the order in which they were begun. One that comes in may hold rows
//!   and wait for room: nothing else does. Whoever waits for it without a limit is told at once when it
//!   has to wait for what others hold.
//! - Where a table has blocks (`PolicyKind::Cached`), a pass may become one.

mod blocks;
mod held;
mod load;
mod report;
mod rows;
mod source;

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

pub use blocks::Blocks;
pub use report::{PassReport, PassTable};
pub use source::PassPart;

use super::core::{Core, Part, ShardCell, Table};
use super::lease::{Leases, OutGuard, Pins};
use super::pull::Puller;
use super::put::Putter;
use super::workers::Workers;
use crate::error::{ArgumentError, Error, Result};
use crate::options::PolicyKind;
use crate::ssd::index::Index as _;
use crate::stats::Stats;
use crate::sync::{Condvar, Mutex, MutexGuard};
use held::Held;
use load::{Loaded, Loading, State};
use source::Source;

/// How long somebody waits before they look whether the store is still there.
const PAUSE: Duration = Duration::from_millis(100);

/// The passes of a store.
#[derive(Debug)]
pub struct Passes {
    core: Arc<Core>,
    workers: Arc<Workers>,
    leases: Arc<Leases>,
    puller: Arc<Puller>,
    putter: Arc<Putter>,
    /// Those that are not there yet, oldest first.
    queue: Mutex<VecDeque<Arc<Loading>>>,
    arrived: Condvar,
    pub blocks: Blocks,
}

/// A pass on its way. Dropping it gives it up, once the piece that is being read has come in.
#[derive(Debug)]
pub struct PassTicket {
    passes: Arc<Passes>,
    loading: Arc<Loading>,
}

/// Keeps the rows of a pass in memory until it ends, by [`Pass::end`] or when it is dropped.
#[derive(Debug)]
pub struct Pass {
    passes: Arc<Passes>,
    report: PassReport,
    /// By part.
    held: Vec<(Arc<Table>, Held)>,
    // Dropped in this order: rows before what says that they are held.
    pins: Vec<Arc<Pins>>,
    _out: OutGuard,
}

impl Part for Passes {
    fn wake(&self) {
        let queue = self.lock_queue();
        queue.iter().for_each(|loading| loading.wake());
        drop(queue);
        self.arrived.notify_all();
    }

    fn count(&self, stats: &mut Stats) {
        for table in &mut stats.tables {
            (table.blocks, table.block_evictions) = self.blocks.count_of(table.id);
        }
    }
}

impl Passes {
    /// None yet.
    pub fn new(
        core: &Arc<Core>,
        workers: &Arc<Workers>,
        leases: &Arc<Leases>,
        puller: &Arc<Puller>,
        putter: &Arc<Putter>,
    ) -> Passes {
        Passes {
            core: Arc::clone(core),
            workers: Arc::clone(workers),
            leases: Arc::clone(leases),
            puller: Arc::clone(puller),
            putter: Arc::clone(putter),
            queue: Mutex::default(),
            arrived: Condvar::new(),
            blocks: Blocks::default(),
        }
    }

    fn lock_queue(&self) -> MutexGuard<'_, VecDeque<Arc<Loading>>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn front(&self) -> Option<Arc<Loading>> {
        self.lock_queue().front().cloned()
    }

    fn remove(&self, loading: &Arc<Loading>) {
        self.lock_queue()
            .retain(|other| !Arc::ptr_eq(other, loading));
    }

    /// Begins a pass.
    ///
    /// # Errors
    /// `InvalidArgument`, `Io`, `OverBudget` where it has more rows than the cache has room for.
    pub fn begin(self: &Arc<Passes>, parts: &[PassPart<'_>]) -> Result<PassTicket> {
        self.core.check_open()?;
        if parts.is_empty() {
            let what = String::from("a pass needs at least one part");
            return Err(ArgumentError::Other { what }.into());
        }
        let shards = self.core.shards.len();
        let sourced = |part: &PassPart<'_>| {
            let table = self.core.table(part.table)?;
            let is_there = self.is_in_memory(&table);
            Ok((table, Source::of(part, shards, is_there)?))
        };
        let parts = parts.iter().map(sourced).collect::<Result<Vec<_>>>()?;
        let loading = Arc::new(Loading::new(self, parts));
        self.check_fits(loading.asked())?;
        self.lock_queue().push_back(Arc::clone(&loading));
        self.arrived.notify_all();
        if self.core.options.inline {
            self.bring_in_order(&loading);
        }
        Ok(PassTicket {
            passes: Arc::clone(self),
            loading,
        })
    }

    /// Whether a table was read in when the store was opened: one that became `Staged` later may not be there.
    fn is_in_memory(&self, table: &Table) -> bool {
        let id = table.id.0 as usize;
        let is_there = |cell: &ShardCell| {
            let shard = cell.lock();
            shard.cache.resident_of(id) >= shard.tables[id].index.keys()
        };
        table.tuning().policy == PolicyKind::Staged && self.core.shards.iter().all(is_there)
    }

    /// Brings in passes in their order until this one is there, or there is no room.
    fn bring_in_order(&self, until: &Arc<Loading>) {
        while let Some(front) = self.front() {
            if !front.bring_in(self) {
                return;
            }
            self.remove(&front);
            if Arc::ptr_eq(&front, until) {
                return;
            }
        }
    }

    /// Brings passes in until the store is closed.
    pub fn serve(&self) {
        while !self.core.is_closed() {
            let Some(front) = self.front() else {
                let queue = self.lock_queue();
                if queue.is_empty() {
                    drop(self.arrived.wait_timeout(queue, PAUSE));
                }
                continue;
            };
            let seen = self.leases.drops();
            match front.bring_in(self) {
                true => self.remove(&front),
                false => self.leases.wait_for_drop(seen),
            }
        }
    }

    /// Why the pass that comes in now has no room, if it found none and nothing was let go of since. Where
    /// nobody else holds anything, blocks leave too little: what all of it needs is told then.
    fn is_stuck(&self) -> Option<Error> {
        let front = self.front()?;
        let error = match &mut *front.lock() {
            State::NoRoom { drops, error } if *drops == self.leases.drops() => error.take(),
            _ => None,
        }?;
        // Those that are in the queue stand in the book of leases; but for the first they hold nothing.
        let alone = self.puller.outstanding() <= self.lock_queue().len();
        Some(if alone {
            self.too_large(front.asked())
        } else {
            error
        })
    }
}

impl PassTicket {
    /// Whether [`PassTicket::wait`] returns at once.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.passes.core.check_process().is_err() || matches!(*self.loading.lock(), State::Done(_))
    }

    /// Waits until the rows are in memory.
    ///
    /// # Cost
    /// What is left of the reads, of this pass and of those that were begun before.
    ///
    /// # Errors
    /// `OverBudget` when it can't fit beside the outstanding leases and passes, or the ones before it
    /// can't; `Io`, `Corrupt`, `NoSpace`, `Poisoned`. The pass is given up then.
    pub fn wait(self) -> Result<Pass> {
        self.wait_until(None)
    }

    /// Waits at most `limit`. After `Deadline` the pass goes on: wait again, or drop the ticket. That it
    /// waits for room is told by [`PassTicket::wait`] alone.
    ///
    /// # Errors
    /// `Deadline` when the rows are not there yet; `InvalidArgument` once a pass or another error was
    /// given; else as [`PassTicket::wait`], but it waits for what others hold.
    pub fn wait_for(&self, limit: Duration) -> Result<Pass> {
        self.wait_until(Some(limit))
    }

    fn wait_until(&self, limit: Option<Duration>) -> Result<Pass> {
        let (passes, since) = (&self.passes, Instant::now());
        passes.core.check_process()?;
        loop {
            if passes.core.options.inline {
                passes.core.guarded(|| passes.bring_in_order(&self.loading));
            }
            let mut state = self.loading.lock();
            match std::mem::replace(&mut *state, State::Gone) {
                State::Done(result) => {
                    return result.map(|loaded| Pass::new(passes, loaded));
                }
                State::Gone => {
                    let what = String::from("the ticket has given its pass, or its error");
                    return Err(ArgumentError::Other { what }.into());
                }
                coming => *state = coming,
            }
            drop(state);
            passes.core.check_open()?;
            passes.core.ssd.poison.check_threads()?;
            let left = limit.map_or(PAUSE, |limit| limit.saturating_sub(since.elapsed()));
            if limit.is_none()
                && let Some(error) = passes.is_stuck()
            {
                return Err(error);
            }
            if left.is_zero() || (limit.is_some() && passes.core.options.inline) {
                return Err(Error::deadline(since));
            }
            let state = self.loading.lock();
            if matches!(*state, State::Coming | State::NoRoom { .. }) {
                drop(self.loading.wait(state, left.min(PAUSE)));
            }
        }
    }
}

impl Drop for PassTicket {
    fn drop(&mut self) {
        if self
            .passes
            .core
            .leave_to_parent(&(Arc::clone(&self.passes), Arc::clone(&self.loading)))
        {
            return;
        }
        self.passes.remove(&self.loading);
        let _panicked = self.passes.core.survive(|| self.loading.give_up());
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let core = &self.passes.core;
        if core.leave_to_parent(&self.passes) {
            return;
        }
        // Those of blocks stay.
        let ended = std::mem::take(&mut self.pins);
        let _panicked = core.survive(|| {
            let alone = ended.into_iter().filter_map(Arc::into_inner);
            alone.for_each(Pins::let_go);
        });
    }
}

impl Pass {
    fn new(passes: &Arc<Passes>, loaded: Loaded) -> Pass {
        Pass {
            passes: Arc::clone(passes),
            report: loaded.report,
            held: loaded.held,
            pins: loaded.pins,
            _out: loaded.out,
        }
    }

    /// What bringing it in came to.
    #[must_use]
    pub fn report(&self) -> &PassReport {
        &self.report
    }

    /// Ends the pass: its rows may leave memory, but for those of blocks. Changed rows are written as
    /// memory is needed, and by the next checkpoint.
    ///
    /// # Cost
    /// A look at each row in memory, by the threads of a pull; no I/O.
    #[must_use = "drop it where the report is not needed"]
    pub fn end(self) -> PassReport {
        self.report.clone()
    }
}
