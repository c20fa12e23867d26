//! What happens when a thread of the store panics, or the caller's inside a call?
//!
//! Nobody knows then how far it got in what it was changing: the store refuses writes, as after a
//! failed sync (`Poisoned` names the thread and what it said), everybody who waits is woken, and
//! the next open is at the last checkpoint. Nothing goes on in its place.
//!
//! Invariants:
//! - Writes are refused before a lock under which rows, files or the manifest are changed is free
//!   again (`Poison::watch`): whoever has it next sees it.
//! - Nobody waits for what only a thread that panicked would have done.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::Core;

impl Core {
    /// True in a forked child, where nothing may be let go of: locks and threads are the parent's. A
    /// handle that is being dropped there leaves one behind, so that what it leads to stays.
    pub fn leave_to_parent(&self, handle: &impl Clone) -> bool {
        let forked = self.check_process().is_err();
        if forked {
            std::mem::forget(handle.clone());
        }
        forked
    }

    /// Does the work of a call. A panic poisons the store and goes on to the caller.
    ///
    /// # Cost
    /// None without a panic: no allocation, no lock.
    pub fn guarded<T>(&self, work: impl FnOnce() -> T) -> T {
        match self.catch(work) {
            Ok(out) => out,
            Err(payload) => resume_unwind(payload),
        }
    }

    /// Does the work of a thread, or of a drop. A panic poisons the store and ends here: `None`.
    pub fn survive<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        self.catch(work).ok()
    }

    fn catch<T>(&self, work: impl FnOnce() -> T) -> std::thread::Result<T> {
        if cfg!(hps_shuttle) {
            // The scheduler ends a run by panics of its own.
            return Ok(work());
        }
        let result = catch_unwind(AssertUnwindSafe(work));
        if let Err(payload) = &result {
            self.ssd.poison.set_panic(&**payload);
            if !self.read_only {
                // Nobody knows what the last checkpoint does not hold.
                self.changes.note();
            }
            self.wake_all();
        }
        result
    }
}

/// A place where a test may plant a panic.
#[inline]
pub fn point(_name: &'static str) {
    #[cfg(feature = "sim")]
    crate::io::sim::plant::pass(_name);
}
