//! How do threads share a shard, and where do they wait for a change in it?

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::shard::Shard;
use crate::error::Result;
use crate::sync::fair;

/// How long a thread waits for a change that nobody may tell it of.
const PAUSE: Duration = Duration::from_millis(20);
/// How often one that waits for a change may be woken for another reason.
const WAKES_MAX: usize = 8;

/// A locked shard.
pub type ShardGuard<'a> = fair::MutexGuard<'a, Shard>;

/// A shard with its lock, which is handed on in the end to whoever waits (a batch must not keep a
/// flush from its rows), and where those wait who need something in it to change.
#[derive(Debug)]
pub struct ShardCell {
    state: fair::Mutex<Shard>,
    changed: fair::Condvar,
    /// How often a change was told.
    changes: AtomicU64,
}

impl ShardCell {
    /// Wraps a shard.
    pub fn new(shard: Shard) -> ShardCell {
        ShardCell {
            state: fair::Mutex::new(shard),
            changed: fair::Condvar::new(),
            changes: AtomicU64::new(0),
        }
    }

    /// Locks the shard.
    pub fn lock(&self) -> ShardGuard<'_> {
        self.state.lock()
    }

    /// Lets those go first who wait for the lock.
    pub fn pass(&self, guard: &mut ShardGuard<'_>) {
        ShardGuard::bump(guard);
    }

    /// Wakes those who wait for a change.
    pub fn notify(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.changed.notify_all();
    }

    /// Wakes those who wait for something else than what is in the shard.
    pub fn notify_of_others(&self) {
        self.changed.notify_all();
    }

    /// How often a change was told.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Waits for a change, or a while.
    #[cfg_attr(hps_shuttle, track_caller)]
    pub fn wait(&self, guard: &mut ShardGuard<'_>) {
        self.changed.wait_for(guard, PAUSE);
    }

    /// Waits for a change after so many, or a while, of which others who are woken may make a longer one.
    #[cfg_attr(hps_shuttle, track_caller)]
    pub fn wait_for_change(&self, guard: &mut ShardGuard<'_>, seen: u64) {
        for _ in 0..WAKES_MAX {
            if self.changes() != seen || self.changed.wait_for(guard, PAUSE).timed_out() {
                return;
            }
        }
    }

    /// Waits until so many promises have ended; asks now and then whether there is anybody to end them.
    ///
    /// # Errors
    /// What was said to that.
    pub fn wait_for_promises(
        &self,
        shard: &mut ShardGuard<'_>,
        ended: u64,
        check: impl Fn() -> Result<()>,
    ) -> Result<()> {
        shard.begin_to_wait();
        let mut checked = Ok(());
        while checked.is_ok() && shard.promises_ended() < ended {
            self.wait(shard);
            checked = check();
        }
        shard.end_wait();
        checked
    }
}
