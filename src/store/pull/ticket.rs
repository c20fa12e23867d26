//! How are rows fetched before they are needed?
//!
//! Tickets are admitted in order; a few are read at the same time. A ticket that has not started is
//! taken over by whoever waits for it, so waiting never depends on room that the waiter itself
//! holds.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::super::core::Table;
use super::super::lease::Lease;
use super::super::workers::PREFETCH_POOLS;
use super::batch::{Intent, check_count};
use super::split::Wanted;
use super::{PrefetchPart, Puller};
use crate::error::{ArgumentError, Error, Result};
use crate::observe::Beat;
use crate::sync::atomic::AtomicUsize;
use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::units::{LONGEST_WAIT, TableId};

#[derive(Debug)]
enum State {
    /// In the queue, or waiting for room.
    Queued,
    /// Being served.
    Running,
    Done(Result<Lease>),
    /// Taken over, handed out or cancelled.
    Gone,
}

/// One prefetch.
pub struct Prefetch {
    /// The parts: (table, keys).
    parts: Vec<(Arc<Table>, Vec<u64>)>,
    state: Mutex<State>,
    changed: Condvar,
}

/// Prefetches that wait, oldest first.
#[derive(Debug, Default)]
pub struct PrefetchQueue {
    queue: Mutex<VecDeque<Arc<Prefetch>>>,
    arrived: Condvar,
    /// Held while a ticket is started and admitted: a later one never takes the room of an earlier.
    order: Mutex<()>,
    /// What is being served.
    serving: Mutex<Vec<Arc<Prefetch>>>,
    /// Raised when something was served.
    served: Condvar,
    /// Threads that served the queue and panicked.
    lost: AtomicUsize,
}

impl PrefetchQueue {
    /// Wakes whoever waits for a ticket, or for one to end.
    pub fn wake_all(&self) {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting: Vec<Arc<Prefetch>> = queue.iter().cloned().collect();
        drop(queue);
        for prefetch in waiting.iter().chain(&*self.serving()) {
            // Under its lock: whoever has not seen the change waits by now.
            let _state = prefetch.lock();
            prefetch.changed.notify_all();
        }
        self.arrived.notify_all();
        self.served.notify_all();
    }

    /// Whether no thread serves the queue any more.
    fn is_unserved(&self) -> bool {
        self.lost.load(Ordering::Acquire) >= PREFETCH_POOLS
    }

    /// Prefetches that wait or are being served, cancelled ones excepted.
    pub fn count(&self) -> usize {
        self.count_where(|_| true)
    }

    /// Those of them that are of rows of a table.
    pub fn count_of(&self, table: TableId) -> usize {
        self.count_where(|prefetch| prefetch.parts.iter().any(|(of, _)| of.id == table))
    }

    fn count_where(&self, is_counted: impl Fn(&Prefetch) -> bool) -> usize {
        let counts = |prefetch: &&Arc<Prefetch>| {
            is_counted(prefetch) && matches!(*prefetch.lock(), State::Queued | State::Running)
        };
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting: Vec<Arc<Prefetch>> = queue.iter().cloned().collect();
        drop(queue);
        let mut all = self.serving().clone();
        all.extend(waiting);
        all.sort_by_key(Arc::as_ptr);
        all.dedup_by(|a, b| Arc::ptr_eq(a, b));
        all.iter().filter(counts).count()
    }

    fn push(&self, prefetch: Arc<Prefetch>) {
        self.queue
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push_back(prefetch);
        self.arrived.notify_all();
    }

    /// The oldest, which stays in the queue; waits a while for one.
    fn front(&self) -> Option<Arc<Prefetch>> {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(front) = queue.front() {
            return Some(Arc::clone(front));
        }
        let pause = Duration::from_millis(200);
        let (queue, _) = self
            .arrived
            .wait_timeout(queue, pause)
            .unwrap_or_else(PoisonError::into_inner);
        queue.front().cloned()
    }

    fn in_order(&self) -> MutexGuard<'_, ()> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serving(&self) -> MutexGuard<'_, Vec<Arc<Prefetch>>> {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ends(&self, prefetch: &Arc<Prefetch>) {
        let mut serving = self.serving();
        // Once: another thread may have looked at the same one.
        if let Some(at) = serving.iter().position(|p| Arc::ptr_eq(p, prefetch)) {
            serving.swap_remove(at);
        }
        drop(serving);
        self.served.notify_all();
    }

    /// Waits until no prefetch is served whose ticket was dropped: its rows are let go then.
    pub fn wait_cancelled(&self) {
        let mut serving = self.serving();
        while serving.iter().any(|p| matches!(*p.lock(), State::Gone)) {
            serving = self
                .served
                .wait(serving)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn remove(&self, prefetch: &Arc<Prefetch>) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.retain(|p| !Arc::ptr_eq(p, prefetch));
    }
}

/// A prefetch on its way; dropping it cancels it.
#[derive(Debug)]
pub struct Ticket {
    puller: Arc<Puller>,
    prefetch: Arc<Prefetch>,
}

impl Ticket {
    /// Whether [`Ticket::wait`] returns at once.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.puller.core.check_process().is_err() || matches!(*self.prefetch.lock(), State::Done(_))
    }

    /// Waits until the rows are resident. A prefetch that has not started, because others are
    /// before it or there was no room, is served now, by this thread, like a pull.
    ///
    /// # Cost
    /// That of [`crate::Store::pull`] where the prefetch has not started; else what is left of it.
    ///
    /// # Errors
    /// `OverBudget` when it can't fit beside the outstanding leases, `Io`, `Corrupt`, `NoSpace`,
    /// `Poisoned`.
    pub fn wait(self) -> Result<Lease> {
        self.serve()
    }

    fn serve(&self) -> Result<Lease> {
        let core = &self.puller.core;
        core.check_process()?;
        core.guarded(|| self.serve_or_take())
    }

    fn serve_or_take(&self) -> Result<Lease> {
        loop {
            let order = self.puller.prefetches.in_order();
            if self.prefetch.start() {
                self.puller.prefetches.remove(&self.prefetch);
                let pool = self.puller.workers.foreground();
                let mut wanted = self.prefetch.wanted();
                let batch = self.puller.begin(&pool, &mut wanted);
                drop(order);
                let complete = |batch| self.puller.complete(&pool, Intent::Read, batch);
                let result = batch.and_then(complete);
                *self.prefetch.lock() = State::Gone;
                return result;
            }
            drop(order);
            if let Some(result) = self.prefetch.take(Duration::MAX, &|| true) {
                return result;
            }
        }
    }

    /// Waits at most `limit`. After `Deadline` the prefetch goes on: wait again, or drop the ticket.
    ///
    /// # Errors
    /// `Deadline` when the rows are not resident yet; `InvalidArgument` once a lease or another error
    /// was given; else as [`Ticket::wait`].
    ///
    /// # Examples
    /// ```
    /// # use hps::*;
    /// # let directory = std::env::temp_dir().join(format!("hps-wait-for-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// # let items = store.create_table(&TableDescriptor::new("items", 4))?;
    /// let ticket = store.prefetch(items, &[7, 42])?;
    /// let lease = loop {
    ///     match ticket.wait_for(std::time::Duration::from_millis(10)) {
    ///         Err(Error::Deadline { .. }) => println!("not yet"),
    ///         other => break other?,
    ///     }
    /// };
    /// # drop((lease, ticket));
    /// # store.close_discarding();
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn wait_for(&self, limit: Duration) -> Result<Lease> {
        let since = Instant::now();
        if self.puller.core.options.inline || self.puller.core.check_process().is_err() {
            // There is no thread that would serve it meanwhile.
            return self.serve();
        }
        // By nobody any more: what is left to say is said by serving it here.
        let puller = &self.puller;
        let unserved = || puller.prefetches.is_unserved() || puller.core.is_closed();
        match self.prefetch.take(limit, &unserved) {
            Some(result) => result,
            None if unserved() => self.serve(),
            None => Err(Error::deadline(since)),
        }
    }
}

impl Ticket {
    /// Gives the prefetch up, and waits until nothing of it is pinned. Dropping a ticket gives it up, too,
    /// but reads that are under way end first, and hold their rows until then.
    ///
    /// # Cost
    /// What is left of reads under way, of this ticket and of others that were given up.
    ///
    /// # Examples
    /// ```
    /// # use hps::*;
    /// # let directory = std::env::temp_dir().join(format!("hps-cancel-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// # let items = store.create_table(&TableDescriptor::new("items", 4))?;
    /// let ticket = store.prefetch(items, &[7, 42])?;
    /// ticket.cancel();
    /// assert_eq!(store.stats().leases, 0);
    /// # store.close_discarding();
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn cancel(self) {
        let puller = Arc::clone(&self.puller);
        let is_of_this_process = puller.core.check_process().is_ok();
        drop(self);
        if is_of_this_process {
            puller.wait_cancelled();
        } else {
            // The parent's, as all that the ticket led to.
            std::mem::forget(puller);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.puller.core.leave_to_parent(&self.puller) {
            return;
        }
        self.puller.prefetches.remove(&self.prefetch);
        let before = std::mem::replace(&mut *self.prefetch.lock(), State::Gone);
        drop(before);
    }
}

impl std::fmt::Debug for Prefetch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let keys: usize = self.parts.iter().map(|(_, keys)| keys.len()).sum();
        f.debug_struct("Prefetch")
            .field("parts", &self.parts.len())
            .field("keys", &keys)
            .finish()
    }
}

impl Prefetch {
    fn wanted(&self) -> Vec<Wanted<'_>> {
        let parts = self.parts.iter();
        let wanted = parts.map(|(table, keys)| Wanted {
            table,
            keys,
            out: None,
        });
        wanted.collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims it for serving.
    fn start(&self) -> bool {
        let mut state = self.lock();
        if matches!(*state, State::Queued) {
            *state = State::Running;
            return true;
        }
        false
    }

    /// Ends serving: with a result, or back to the queue when there was no room.
    fn end(&self, result: Option<Result<Lease>>) {
        let mut state = self.lock();
        if matches!(*state, State::Running) {
            *state = match result {
                Some(result) => State::Done(result),
                None => State::Queued,
            };
        }
        // Dropped while it was served: the lease goes with `result`.
        drop(state);
        self.changed.notify_all();
    }

    /// Gives it up if it was being served.
    fn give_up(&self, error: Error) {
        let mut state = self.lock();
        if matches!(*state, State::Running) {
            *state = State::Done(Err(error));
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Waits for the result, or, where `back` says so, for it to be queued again.
    fn take(&self, limit: Duration, back: &dyn Fn() -> bool) -> Option<Result<Lease>> {
        let end = Instant::now().checked_add(limit);
        let mut state = self.lock();
        loop {
            match std::mem::replace(&mut *state, State::Gone) {
                State::Done(result) => return Some(result),
                State::Gone => {
                    let what =
                        String::from("this ticket has given its lease, or why there is none");
                    return Some(Err(ArgumentError::Other { what }.into()));
                }
                other => *state = other,
            }
            let until = |end: Instant| end.saturating_duration_since(Instant::now());
            let left = end.map_or(LONGEST_WAIT, until);
            if left.is_zero() || (matches!(*state, State::Queued) && back()) {
                return None;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Puller {
    /// Queues a prefetch.
    ///
    /// # Errors
    /// `InvalidArgument` for too many keys; with `inline`, whatever serving it gives except for lack of
    /// room.
    pub fn prefetch(self: &Arc<Puller>, table: &Arc<Table>, keys: &[u64]) -> Result<Ticket> {
        check_count(1, keys.len())?;
        self.prefetch_parts(vec![(Arc::clone(table), keys.to_vec())])
    }

    /// Queues a prefetch of several tables.
    ///
    /// # Errors
    /// As [`Puller::prefetch`]; `InvalidArgument` for a table of another store, and where there is no
    /// part.
    pub fn prefetch_many(self: &Arc<Puller>, parts: &[PrefetchPart<'_>]) -> Result<Ticket> {
        check_count(parts.len(), parts.iter().map(|part| part.keys.len()).sum())?;
        let part = |part: &PrefetchPart<'_>| Ok((self.core.table(part.table)?, part.keys.to_vec()));
        self.prefetch_parts(parts.iter().map(part).collect::<Result<_>>()?)
    }

    fn prefetch_parts(self: &Arc<Puller>, parts: Vec<(Arc<Table>, Vec<u64>)>) -> Result<Ticket> {
        let prefetch = Arc::new(Prefetch {
            parts,
            state: Mutex::new(State::Queued),
            changed: Condvar::new(),
        });
        let ticket = Ticket {
            puller: Arc::clone(self),
            prefetch: Arc::clone(&prefetch),
        };
        if self.core.options.inline {
            let pool = self.workers.foreground();
            let result = self.acquire(&pool, &mut prefetch.wanted(), Intent::Read);
            match result {
                Err(Error::OverBudget { .. }) => self.prefetches.push(prefetch),
                result => {
                    prefetch.start();
                    prefetch.end(Some(result));
                }
            }
            return Ok(ticket);
        }
        self.prefetches.push(prefetch);
        Ok(ticket)
    }

    /// Serves prefetches until the store is closed; the first pool's publishes the counters, too.
    pub fn serve(&self, pool: usize) {
        let closed = self.core.survive(|| self.serve_until_closed(pool));
        if closed != Some(true) {
            self.prefetches.lost.fetch_add(1, Ordering::AcqRel);
            self.prefetches.wake_all();
        }
    }

    /// As above; false after a panic.
    fn serve_until_closed(&self, pool: usize) -> bool {
        // Of the threads of a store, those of this kind are in each, and the least often busy.
        let mut beat = (pool == 0).then(Beat::new);
        while !self.core.is_closed() {
            if let Some(describe) = beat.as_mut().and_then(Beat::due) {
                self.core.publish(describe);
            }
            let Some(prefetch) = self.prefetches.front() else {
                continue;
            };
            self.prefetches.serving().push(Arc::clone(&prefetch));
            let pause = self.core.survive(|| self.serve_one(&prefetch, pool));
            if pause.is_none()
                && let Err(poisoned) = self.core.ssd.check_writable()
            {
                prefetch.give_up(poisoned);
            }
            self.prefetches.ends(&prefetch);
            let Some(pause) = pause else {
                return false;
            };
            if let Some(seen) = pause {
                self.leases.wait_for_drop(seen);
            }
        }
        true
    }

    /// Serves one, if nobody else does. Without room it stays in the queue: gives the count of
    /// dropped leases after which to try again.
    fn serve_one(&self, prefetch: &Arc<Prefetch>, pool: usize) -> Option<u64> {
        let dropped = self.leases.drops();
        let order = self.prefetches.in_order();
        if !prefetch.start() {
            self.prefetches.remove(prefetch);
            return None;
        }
        let pools = self.workers.pools();
        let pool = &pools.prefetch[pool];
        let mut wanted = prefetch.wanted();
        let result = match self.begin(pool, &mut wanted) {
            Err(Error::OverBudget {
                asked_rows,
                capacity_rows,
                ..
            }) if asked_rows <= capacity_rows => {
                prefetch.end(None);
                return Some(dropped);
            }
            Err(e) => {
                self.prefetches.remove(prefetch);
                Err(e)
            }
            Ok(batch) => {
                self.prefetches.remove(prefetch);
                drop(order);
                self.complete(pool, Intent::Read, batch)
            }
        };
        prefetch.end(Some(result));
        None
    }
}
