//! How does ThreadSanitizer see that a lock puts its holders in order?
//!
//! The standard library comes compiled without it, so what its locks do where threads meet is not
//! seen, and everything behind them looks like a race. parking_lot is compiled with it. This is
//! the standard library's interface on parking_lot's locks, for `tools/tsan.sh` only.
//!
//! Invariants:
//! - Nothing is ever poisoned: every `LockResult` is `Ok`.

use std::sync::{LockResult, TryLockError, TryLockResult};
use std::time::Duration;

pub use parking_lot::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

/// A lock.
#[derive(Debug, Default)]
pub struct Mutex<T>(parking_lot::Mutex<T>);

impl<T> Mutex<T> {
    /// Not held.
    pub fn new(value: T) -> Mutex<T> {
        Mutex(parking_lot::Mutex::new(value))
    }

    /// Waits for it.
    ///
    /// # Errors
    /// None.
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        Ok(self.0.lock())
    }

    /// Takes it if it is free.
    ///
    /// # Errors
    /// `WouldBlock` when somebody has it.
    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        self.0.try_lock().ok_or(TryLockError::WouldBlock)
    }

    /// What it protects.
    ///
    /// # Errors
    /// None.
    pub fn into_inner(self) -> LockResult<T> {
        Ok(self.0.into_inner())
    }
}

/// A lock for one writer or many readers.
#[derive(Debug, Default)]
pub struct RwLock<T>(parking_lot::RwLock<T>);

impl<T> RwLock<T> {
    /// Not held.
    pub fn new(value: T) -> RwLock<T> {
        RwLock(parking_lot::RwLock::new(value))
    }

    /// Waits for it, to read.
    ///
    /// # Errors
    /// None.
    pub fn read(&self) -> LockResult<RwLockReadGuard<'_, T>> {
        Ok(self.0.read())
    }

    /// Waits for it, to write.
    ///
    /// # Errors
    /// None.
    pub fn write(&self) -> LockResult<RwLockWriteGuard<'_, T>> {
        Ok(self.0.write())
    }
}

/// Where threads wait.
#[derive(Debug, Default)]
pub struct Condvar(parking_lot::Condvar);

impl Condvar {
    /// With nobody waiting.
    pub fn new() -> Condvar {
        Condvar::default()
    }

    /// Wakes all.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Wakes one.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Waits to be woken.
    ///
    /// # Errors
    /// None.
    pub fn wait<'a, T>(&self, mut guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        self.0.wait(&mut guard);
        Ok(guard)
    }

    /// Waits to be woken, or for the limit; says whether it was the limit.
    ///
    /// # Errors
    /// None.
    pub fn wait_timeout<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        limit: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, bool)> {
        let late = self.0.wait_for(&mut guard, limit).timed_out();
        Ok((guard, late))
    }
}
