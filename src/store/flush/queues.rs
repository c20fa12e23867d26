//! Who writes a file by which submission queue?
//!
//! Invariants:
//! - Whoever has queues gives them back without waiting for anybody else's.
//! - A long put leaves one to those that have the writer's role, where there are more than one.

use std::sync::PoisonError;

use crate::io::Queue;
use crate::sync::{Condvar, Mutex, MutexGuard};

/// The submission queues of those who write row files.
#[derive(Debug)]
pub struct Queues {
    free: Mutex<Vec<Box<dyn Queue>>>,
    given_back: Condvar,
    count: usize,
}

/// Queues that somebody has; given back when it is dropped.
#[derive(Debug)]
pub struct Taken<'a> {
    from: &'a Queues,
    /// One at least.
    pub queues: Vec<Box<dyn Queue>>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.from.free().append(&mut self.queues);
        self.from.given_back.notify_all();
    }
}

impl Queues {
    /// All are free.
    pub fn new(queues: Vec<Box<dyn Queue>>) -> Queues {
        Queues {
            count: queues.len(),
            free: Mutex::new(queues),
            given_back: Condvar::new(),
        }
    }

    fn free(&self) -> MutexGuard<'_, Vec<Box<dyn Queue>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of them, free or not.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Those that long puts may have at the same time.
    pub fn for_puts(&self) -> usize {
        self.count.saturating_sub(1).max(1)
    }

    /// Waits until one is free, and takes up to `most`.
    pub fn take(&self, most: usize) -> Taken<'_> {
        self.take_of(most, 0)
    }

    /// Waits until a long put may have one, and takes it.
    pub fn take_for_put(&self) -> Taken<'_> {
        self.take_of(1, self.count - self.for_puts())
    }

    /// Whether [`Queues::take_for_put`] returns at once, if nobody else takes one.
    pub fn has_for_put(&self) -> bool {
        self.free().len() > self.count - self.for_puts()
    }

    fn take_of(&self, most: usize, left: usize) -> Taken<'_> {
        let mut free = self.free();
        while free.len() <= left {
            let waited = self.given_back.wait(free);
            free = waited.unwrap_or_else(PoisonError::into_inner);
        }
        let at = free.len() - most.clamp(1, free.len() - left);
        Taken {
            from: self,
            queues: free.split_off(at),
        }
    }
}
