//! Which locks, atomics and threads does the engine use?
//!
//! Those of the standard library, and of parking_lot for shards. With the feature `shuttle` they
//! are shuttle's: the same engine then runs under a scheduler that decides at every lock, atomic
//! and wait who goes on, and that can repeat what it decided (`tests/shuttle.rs`).
//!
//! Invariants:
//! - Without the feature this module only names types of others; nothing is wrapped.
//! - With it nothing of the engine works outside of a shuttle run.
//! - What outlives a run (a `static`) uses the standard library's types in both, and so do types
//!   at which nobody can wait: `Arc`, `OnceLock` that is only set and read.

#[cfg(not(feature = "shuttle"))]
pub use std::{
    sync::{Condvar, Mutex, MutexGuard, RwLock, atomic},
    thread,
};

/// Locks that can be passed on halfway.
#[cfg(not(feature = "shuttle"))]
pub mod fair {
    pub use parking_lot::{Condvar, Mutex, MutexGuard};
}

#[cfg(feature = "shuttle")]
mod scheduled;

#[cfg(feature = "shuttle")]
pub use scheduled::{Condvar, Mutex, MutexGuard, RwLock, atomic, fair, limits, thread};
