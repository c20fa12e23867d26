//! How are requests served with plain system calls?
//!
//! [`PreadEngine`] is the twin of `uring`: the same requests, moved with pread and pwrite.

use std::collections::VecDeque;
use std::io;

use super::buffer::Pool;
use super::{Completion, Engine, Queue, Request};

/// Reads and writes by pread and pwrite: it works everywhere.
#[derive(Clone, Copy, Debug, Default)]
pub struct PreadEngine;

impl Engine for PreadEngine {
    fn name(&self) -> &'static str {
        "pread"
    }

    fn queue(&self, depth: usize, buffer_bytes: usize) -> io::Result<Box<dyn Queue>> {
        Ok(Box::new(PreadQueue {
            pool: Pool::try_new(depth, buffer_bytes)?,
            completions: VecDeque::with_capacity(depth),
        }))
    }
}

/// Executes each request when it is submitted; completions come in that order.
#[derive(Debug)]
struct PreadQueue {
    pool: Pool,
    completions: VecDeque<Completion>,
}

impl Queue for PreadQueue {
    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn pool_mut(&mut self) -> &mut Pool {
        &mut self.pool
    }

    fn in_flight(&self) -> usize {
        self.completions.len()
    }

    fn start(&mut self, request: Request) {
        self.completions.push_back(request.execute());
    }

    fn submit(&mut self) {}

    fn wait(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    fn poll(&mut self) -> Option<Completion> {
        self.wait()
    }
}
