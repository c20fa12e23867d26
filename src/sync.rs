//! Which locks, atomics and threads does the engine use?
//!
//! Those of the standard library, and of parking_lot for shards. With `--cfg hps_shuttle` they
//! are shuttle's: the same engine then runs under a scheduler that decides at every lock, atomic
//! and wait who goes on, and that can repeat what it decided (`tests/shuttle.rs`). With
//! `--cfg hps_tsan` they are all parking_lot's, which ThreadSanitizer can see (`tools/tsan.sh`).
//!
//! Invariants:
//! - Without these flags the locks, atomics and threads here are those of others, by their own names;
//!   nothing is wrapped.
//! - With `hps_shuttle` nothing of the engine works outside of a shuttle run.
//! - What outlives a run (a `static`) uses the standard library's types in both, and so do types
//!   at which nobody can wait: `Arc`, `OnceLock` that is only set and read.

#[cfg(not(any(hps_shuttle, hps_tsan)))]
pub use std::sync::{Condvar, Mutex, MutexGuard, RwLock};
#[cfg(not(hps_shuttle))]
pub use std::{sync::atomic, thread};

/// Locks that can be passed on halfway.
#[cfg(not(hps_shuttle))]
pub mod fair {
    pub use parking_lot::{Condvar, Mutex, MutexGuard};
}

#[cfg(all(hps_tsan, not(hps_shuttle)))]
mod visible;

#[cfg(all(hps_tsan, not(hps_shuttle)))]
pub use visible::{Condvar, Mutex, MutexGuard, RwLock};

#[cfg(hps_shuttle)]
mod scheduled;

#[cfg(hps_shuttle)]
pub use scheduled::{Condvar, Mutex, MutexGuard, RwLock, atomic, fair, limits, thread};

mod team;

pub use team::{by_team, step_aside};

/// Threads that can't be had.
#[cfg(test)]
pub mod refused {
    use std::cell::Cell;
    use std::io;

    thread_local! {
        /// Threads that a test may still start.
        pub static LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
    }

    /// Whether one more may be started.
    ///
    /// # Errors
    /// As of the system where there are too many.
    pub fn ask() -> io::Result<()> {
        let left = LEFT.get();
        LEFT.set(left.saturating_sub(1));
        match left {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            _ => Ok(()),
        }
    }
}
