//! Which version gets an index image next, and who makes it?

use std::sync::PoisonError;

use crate::ssd::commit::Captured;
use crate::sync::{Condvar, Mutex, MutexGuard};

/// Versions that wait for an index image: only the last counts. It is kept apart from
/// the core, so that the thread can let go of that before it says that it has ended.
#[derive(Debug, Default)]
pub(super) struct Images {
    state: Mutex<Imaging>,
    idle: Condvar,
}

#[derive(Debug, Default)]
struct Imaging {
    /// Whether a thread will look for more.
    working: bool,
    /// Threads that have not ended.
    threads: usize,
    waiting: Option<Captured>,
}

impl Images {
    fn lock(&self) -> MutexGuard<'_, Imaging> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves a version to be imaged; true if the caller is to do it.
    pub(super) fn offer(&self, captured: Captured) -> bool {
        let mut state = self.lock();
        state.waiting = Some(captured);
        let first = !std::mem::replace(&mut state.working, true);
        state.threads += usize::from(first);
        first
    }

    pub(super) fn next(&self) -> Option<Captured> {
        let mut state = self.lock();
        let next = state.waiting.take();
        state.working = next.is_some();
        next
    }

    pub(super) fn end(&self, panicked: bool) {
        let mut state = self.lock();
        state.threads -= 1;
        if panicked {
            state.working = false;
            state.waiting = None;
        }
        drop(state);
        self.idle.notify_all();
    }

    /// Waits until no image is being made.
    pub(super) fn wait_idle(&self) {
        let mut state = self.lock();
        while state.threads > 0 {
            state = self
                .idle
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}
