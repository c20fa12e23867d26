//! What do locks, waits and threads look like under shuttle's scheduler?
//!
//! Invariants:
//! - The interfaces are those of the standard library and of parking_lot, as far as the engine
//!   uses them.
//! - Time does not pass. A wait with a limit stays runnable, and is known to [`limits`]: the
//!   scheduler lets it end by its limit when it chooses to, or when nobody else can go on.
//! - A wait without a limit, or with one of an hour, blocks: if nobody ends it, shuttle reports a
//!   deadlock.

use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::sync::{LockResult, PoisonError, TryLockError, TryLockResult};
use std::time::Duration;

use crate::units::LONGEST_WAIT;
pub use shuttle::sync::{RwLock, atomic};

/// A lock.
#[derive(Debug, Default)]
pub struct Mutex<T>(shuttle::sync::Mutex<T>);

/// A lock that is held.
#[derive(Debug)]
pub struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    /// None only while a condition variable or `bump` has it.
    held: Option<shuttle::sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    /// Not held.
    pub fn new(value: T) -> Mutex<T> {
        Mutex(shuttle::sync::Mutex::new(value))
    }

    fn take(&self) -> shuttle::sync::MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for it. Whoever panics while holding it ends the run, so it is never poisoned.
    ///
    /// # Errors
    /// None.
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        Ok(MutexGuard {
            mutex: self,
            held: Some(self.take()),
        })
    }

    /// Takes it if it is free.
    ///
    /// # Errors
    /// `WouldBlock` when somebody has it.
    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        let held = match self.0.try_lock() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(TryLockError::WouldBlock),
        };
        let held = Some(held);
        Ok(MutexGuard { mutex: self, held })
    }

    /// What it protects.
    ///
    /// # Errors
    /// None.
    pub fn into_inner(self) -> LockResult<T> {
        self.0.into_inner()
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.held {
            Some(held) => held,
            None => unreachable!("a guard is used while its lock is let go"),
        }
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        match &mut self.held {
            Some(held) => held,
            None => unreachable!("a guard is used while its lock is let go"),
        }
    }
}

/// Where threads wait.
#[derive(Debug, Default)]
pub struct Condvar {
    waiters: shuttle::sync::Condvar,
}

impl Condvar {
    /// With nobody waiting.
    #[must_use]
    pub fn new() -> Condvar {
        Condvar::default()
    }

    /// Tells it from others while somebody waits: it does not move then.
    fn id(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Wakes all.
    pub fn notify_all(&self) {
        // The scheduling point comes before the effect, and there is none after.
        self.waiters.notify_all();
        limits::wake(self.id());
    }

    /// Wakes one of those that wait without a limit.
    pub fn notify_one(&self) {
        self.waiters.notify_one();
    }

    /// Waits to be woken.
    ///
    /// # Errors
    /// None.
    pub fn wait<'a, T>(&self, mut guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        self.block(&mut guard);
        Ok(guard)
    }

    /// Waits to be woken, or for the limit; says whether it was the limit.
    ///
    /// # Errors
    /// None.
    #[track_caller]
    pub fn wait_timeout<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        limit: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, bool)> {
        let late = self.pause(&mut guard, limit, Location::caller());
        Ok((guard, late))
    }

    fn block<T>(&self, guard: &mut MutexGuard<'_, T>) {
        if let Some(held) = guard.held.take() {
            let held = self.waiters.wait(held);
            guard.held = Some(held.unwrap_or_else(PoisonError::into_inner));
        }
    }

    fn pause<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        limit: Duration,
        at: &'static Location<'static>,
    ) -> bool {
        if limit >= LONGEST_WAIT {
            self.block(guard);
            return false;
        }
        // Nobody runs between the end of this and the scheduling point in `sleep`.
        guard.held = None;
        let late = limits::sleep(self.id(), at);
        guard.held = Some(guard.mutex.take());
        late
    }
}

/// The interface of parking_lot's locks. Whether one is handed on is the scheduler's choice.
pub mod fair {
    use std::panic::Location;
    use std::sync::PoisonError;
    use std::time::Duration;

    /// A lock that is held.
    pub type MutexGuard<'a, T> = super::MutexGuard<'a, T>;

    /// A lock.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(super::Mutex<T>);

    impl<T> Mutex<T> {
        /// Not held.
        pub fn new(value: T) -> Mutex<T> {
            Mutex(super::Mutex::new(value))
        }

        /// Waits for it.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    impl<T> super::MutexGuard<'_, T> {
        /// Lets others have it for a moment.
        pub fn bump(guard: &mut Self) {
            guard.held = None;
            guard.held = Some(guard.mutex.take());
        }
    }

    /// How a wait with a limit ended.
    #[derive(Clone, Copy, Debug)]
    pub struct Waited(bool);

    impl Waited {
        /// Whether it was the limit.
        #[must_use]
        pub fn timed_out(self) -> bool {
            self.0
        }
    }

    /// Where threads wait.
    #[derive(Debug, Default)]
    pub struct Condvar(super::Condvar);

    impl Condvar {
        /// With nobody waiting.
        #[must_use]
        pub fn new() -> Condvar {
            Condvar::default()
        }

        /// Wakes all.
        pub fn notify_all(&self) {
            self.0.notify_all();
        }

        /// Waits to be woken, or for the limit.
        #[track_caller]
        pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, limit: Duration) -> Waited {
            Waited(self.0.pause(guard, limit, Location::caller()))
        }
    }
}

/// Threads of the scheduler, with what shuttle's builder lacks.
pub mod thread {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    pub use shuttle::thread::{JoinHandle, Scope, ScopedJoinHandle, panicking, sleep};

    /// As the standard library's.
    ///
    /// When the last thread of a scope ends, shuttle 0.9.9 wakes the one that opened it, whatever
    /// that waits for just then. So one more thread ends only after `work` has.
    pub fn scope<'env, F, T>(work: F) -> T
    where
        F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> T,
    {
        shuttle::thread::scope(|scope| {
            let over = Arc::new(AtomicBool::new(false));
            let last = scope.spawn({
                let over = Arc::clone(&over);
                move || {
                    while !over.load(Ordering::Relaxed) {
                        shuttle::thread::park();
                    }
                }
            });
            let out = work(scope);
            over.store(true, Ordering::Relaxed);
            last.thread().unpark();
            out
        })
    }

    /// As the standard library's.
    #[derive(Debug, Default)]
    pub struct Builder(shuttle::thread::Builder);

    impl Builder {
        /// A thread without a name.
        #[must_use]
        pub fn new() -> Builder {
            Builder::default()
        }

        /// Names it.
        #[must_use]
        pub fn name(self, name: String) -> Builder {
            Builder(self.0.name(name))
        }

        /// Starts it.
        ///
        /// # Errors
        /// None; the standard library's may fail.
        pub fn spawn<F, T>(self, work: F) -> std::io::Result<JoinHandle<T>>
        where
            F: FnOnce() -> T + Send + 'static,
            T: Send + 'static,
        {
            self.0.spawn(work)
        }

        /// Starts it in a scope, without its name.
        ///
        /// # Errors
        /// None; the standard library's may fail.
        pub fn spawn_scoped<'scope, F, T>(
            self,
            scope: &'scope Scope<'scope, '_>,
            work: F,
        ) -> std::io::Result<ScopedJoinHandle<'scope, T>>
        where
            F: FnOnce() -> T + Send + 'scope,
            T: Send + 'scope,
        {
            Ok(scope.spawn(work))
        }
    }
}

/// Who waits with a limit right now, and which waits ended by it. For the scheduler of a test,
/// which runs on the same thread as all that it schedules.
pub mod limits {
    use std::cell::RefCell;
    use std::collections::BTreeSet;
    use std::panic::Location;

    #[derive(Default)]
    struct Waits {
        /// (task, condition variable).
        asleep: Vec<(usize, usize)>,
        ended: BTreeSet<String>,
        closing: bool,
    }

    thread_local! {
        static WAITS: RefCell<Waits> = RefCell::default();
    }

    /// Forgets everybody: a run begins.
    pub fn reset() {
        WAITS.with_borrow_mut(|waits| *waits = Waits::default());
    }

    /// From here on the store is closed: what ends by its limit is told apart.
    pub fn closing() {
        WAITS.with_borrow_mut(|waits| waits.closing = true);
    }

    /// Whether a task waits with a limit and was not woken. Let it run, and its limit is over.
    #[must_use]
    pub fn is_asleep(task: usize) -> bool {
        WAITS.with_borrow(|waits| waits.asleep.iter().any(|(t, _)| *t == task))
    }

    /// Where in the source waits of this run ended by their limits.
    #[must_use]
    pub fn ended() -> BTreeSet<String> {
        WAITS.with_borrow(|waits| waits.ended.clone())
    }

    pub(super) fn wake(condvar: usize) {
        WAITS.with_borrow_mut(|waits| waits.asleep.retain(|(_, c)| *c != condvar));
    }

    /// Lets others run until woken; true if the scheduler did not wait for that.
    pub(super) fn sleep(condvar: usize, at: &'static Location<'static>) -> bool {
        let task = usize::from(shuttle::current::me());
        WAITS.with_borrow_mut(|waits| waits.asleep.push((task, condvar)));
        shuttle::thread::yield_now();
        WAITS.with_borrow_mut(|waits| {
            let place = waits.asleep.iter().position(|(t, _)| *t == task);
            if let Some(place) = place {
                waits.asleep.swap_remove(place);
                let when = if waits.closing { "closing: " } else { "" };
                let place = format!("{when}{}:{}", at.file(), at.line());
                waits.ended.insert(place);
            }
            place.is_some()
        })
    }
}
