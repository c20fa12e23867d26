//! In which order do simulated requests happen? In any.
//!
//! Invariants:
//! - A request happens when it is submitted, or when its completion is taken, or any time between;
//!   at the latest when the queue is dropped.

use super::super::buffer::Pool;
use super::super::{Completion, Queue, Request};
use super::node::Random;

/// A queue that shuffles.
#[derive(Debug)]
pub(super) struct SimQueue {
    pool: Pool,
    random: Random,
    pending: Vec<Request>,
    completions: Vec<Completion>,
}

impl SimQueue {
    pub(super) fn new(pool: Pool, seed: u64) -> SimQueue {
        SimQueue {
            pool,
            random: Random(seed),
            pending: Vec::new(),
            completions: Vec::new(),
        }
    }
}

impl Queue for SimQueue {
    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn pool_mut(&mut self) -> &mut Pool {
        &mut self.pool
    }

    fn in_flight(&self) -> usize {
        self.pending.len() + self.completions.len()
    }

    fn start(&mut self, request: Request) {
        self.pending.push(request);
    }

    fn submit(&mut self) {
        let mut index = 0;
        while index < self.pending.len() {
            if self.random.below(4) == 0 {
                let completion = self.pending.swap_remove(index).execute();
                self.completions.push(completion);
            } else {
                index += 1;
            }
        }
    }

    fn wait(&mut self) -> Option<Completion> {
        let in_flight = self.in_flight();
        if in_flight == 0 {
            return None;
        }
        let index = self.random.below(in_flight);
        if index < self.pending.len() {
            return Some(self.pending.swap_remove(index).execute());
        }
        Some(self.completions.swap_remove(index - self.pending.len()))
    }

    /// Each time it is tossed whether anything has arrived.
    fn poll(&mut self) -> Option<Completion> {
        match self.in_flight() > 0 && self.random.below(2) == 0 {
            true => self.wait(),
            false => None,
        }
    }
}

impl Drop for SimQueue {
    fn drop(&mut self) {
        while self.wait().is_some() {}
    }
}
