//! What is left to do once a checkpoint is durable, and who does it: which version gets an index snapshot next?

use std::sync::PoisonError;

use crate::ssd::commit::Captured;
use crate::sync::{Condvar, Mutex, MutexGuard};

/// Versions that wait for an index snapshot: only the last counts. It is kept apart from
/// the core, so that the thread can let go of that before it says that it has ended.
#[derive(Debug, Default)]
pub(super) struct Snapshots {
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

impl Snapshots {
    fn lock(&self) -> MutexGuard<'_, Imaging> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves a version to have an index snapshot made of it; true if the caller is to do it. The caller is waited
    /// for until its end.
    pub(super) fn offer(&self, captured: Captured) -> bool {
        let mut state = self.lock();
        state.waiting = Some(captured);
        state.threads += 1;
        !std::mem::replace(&mut state.working, true)
    }

    pub(super) fn next(&self) -> Option<Captured> {
        let mut state = self.lock();
        let next = state.waiting.take();
        state.working = next.is_some();
        next
    }

    /// A thread ends; whether it was to make index snapshots and has panicked.
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

    /// Waits until no index snapshot is being made, and nothing is unlinked for a checkpoint.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::CheckpointId;

    fn captured(id: u64) -> Captured {
        Captured {
            id: CheckpointId(id),
            files: Vec::new(),
            next_rank: 1,
        }
    }

    #[test]
    fn the_last_version_offered_gets_a_snapshot_from_one_thread_at_a_time() {
        let snapshots = Snapshots::default();
        let next = || snapshots.next().map(|captured| captured.id.0);
        assert!(snapshots.offer(captured(1)), "the first is to do it");
        for later in [2, 3] {
            assert!(!snapshots.offer(captured(later)));
            assert_eq!(snapshots.lock().threads, 2, "it is waited for, too");
            snapshots.end(false);
        }
        assert_eq!(snapshots.lock().threads, 1);
        assert_eq!((next(), next()), (Some(3), None));
        // That thread is about to end: another one is needed.
        assert!(snapshots.offer(captured(4)));
        assert_eq!(snapshots.lock().threads, 2);
        let state = || {
            let state = snapshots.lock();
            (state.threads, state.working)
        };
        snapshots.end(false);
        assert_eq!(state(), (1, true));
        // One that panics leaves nothing that somebody would wait for.
        snapshots.end(true);
        assert_eq!(state(), (0, false));
        assert_eq!(next(), None);
        snapshots.wait_idle();
        assert!(snapshots.offer(captured(5)));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(30));
                assert_eq!(snapshots.lock().threads, 1, "somebody waits for it");
                snapshots.end(false);
            });
            snapshots.wait_idle();
            assert_eq!(snapshots.lock().threads, 0);
        });
    }
}
