//! Which thread reads a row?
//!
//! Each reads those of its own share of the shards, slice after slice (`thread` is the number of a share here, whoever
//! serves it). One that has no slice left, and whose rows all have slots, takes another's, as long as it finds one:
//! threads that read as fast as each other end together. One that finds none because the others
//! still give slots to their rows is done.

use std::collections::VecDeque;
use std::sync::PoisonError;

use super::reads::Reads;
use crate::sync::{Mutex, MutexGuard};

/// What a thread has to offer.
#[derive(Debug, Default)]
struct Slices {
    left: VecDeque<Reads>,
    /// Whether another thread has taken some.
    lent: bool,
}

/// Slices that no thread has taken yet: rows of a call that have slots and are to be read.
#[derive(Debug)]
pub(super) struct Offered {
    by_thread: Mutex<Vec<Slices>>,
}

/// The same, for one of the threads.
pub(super) struct Offers<'o> {
    offered: &'o Offered,
    thread: usize,
}

impl Offered {
    /// Nothing is offered yet by any of so many threads.
    pub(super) fn new(threads: usize) -> Offered {
        let by_thread = (0..threads).map(|_| Slices::default()).collect();
        Offered {
            by_thread: Mutex::new(by_thread),
        }
    }

    /// For a thread.
    pub(super) fn of(&self, thread: usize) -> Offers<'_> {
        let offered = self;
        Offers { offered, thread }
    }

    /// Whether another thread has taken slices of this one.
    pub(super) fn is_lent(&self, thread: usize) -> bool {
        self.lock()[thread].lent
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Slices>> {
        let by_thread = self.by_thread.lock();
        by_thread.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Offers<'_> {
    /// Offers slices.
    pub(super) fn put(&self, slices: Vec<Reads>) {
        self.offered.lock()[self.thread].left.extend(slices);
    }

    /// The thread's own next slice.
    pub(super) fn own(&self) -> Option<Reads> {
        self.offered.lock()[self.thread].left.pop_front()
    }

    /// The thread's own next slice, or the last one of whoever has most left.
    pub(super) fn any(&self) -> Option<Reads> {
        let mut by_thread = self.offered.lock();
        if let Some(slice) = by_thread[self.thread].left.pop_front() {
            return Some(slice);
        }
        let most = by_thread
            .iter_mut()
            .max_by_key(|slices| slices.left.len())?;
        let slice = most.left.pop_back()?;
        most.lent = true;
        Some(slice)
    }
}
