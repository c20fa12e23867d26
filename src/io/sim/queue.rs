//! In which order do simulated requests happen? In any.
//!
//! Invariants:
//! - A request happens when it is submitted, or when its completion is taken, or any time between;
//!   at the latest when the queue is dropped.

use std::sync::Arc;

use super::super::buffer::{AlignedBuffer, Pool};
use super::super::{Completion, DiskFile, Queue};
use super::node::Random;

/// A request that has not happened yet.
#[derive(Debug)]
struct Pending {
    file: Arc<dyn DiskFile>,
    write: bool,
    offset: u64,
    bytes: usize,
    buffer: AlignedBuffer,
    tag: u64,
}

impl Pending {
    fn execute(mut self) -> Completion {
        let bytes = self.bytes;
        let result = if self.write {
            self.file
                .write_at(&self.buffer[..bytes], self.offset)
                .map(|()| bytes)
        } else {
            self.file.read_at(&mut self.buffer[..bytes], self.offset)
        };
        Completion {
            tag: self.tag,
            buffer: self.buffer,
            result,
        }
    }
}

/// A queue that shuffles.
#[derive(Debug)]
pub(super) struct SimQueue {
    pool: Pool,
    random: Random,
    pending: Vec<Pending>,
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

    fn push(&mut self, request: Pending) {
        self.pool
            .admit(self.in_flight(), request.bytes, &request.buffer);
        self.pending.push(request);
    }
}

impl Queue for SimQueue {
    fn depth(&self) -> usize {
        self.pool.count()
    }

    fn buffer_bytes(&self) -> usize {
        self.pool.buffer_bytes()
    }

    fn in_flight(&self) -> usize {
        self.pending.len() + self.completions.len()
    }

    fn buffer(&mut self) -> Option<AlignedBuffer> {
        self.pool.take()
    }

    fn recycle(&mut self, buffer: AlignedBuffer) {
        self.pool.put(buffer);
    }

    fn read(
        &mut self,
        file: &Arc<dyn DiskFile>,
        offset: u64,
        bytes: usize,
        buffer: AlignedBuffer,
        tag: u64,
    ) {
        let file = Arc::clone(file);
        self.push(Pending {
            file,
            write: false,
            offset,
            bytes,
            buffer,
            tag,
        });
    }

    fn write(
        &mut self,
        file: &Arc<dyn DiskFile>,
        offset: u64,
        bytes: usize,
        buffer: AlignedBuffer,
        tag: u64,
    ) {
        let file = Arc::clone(file);
        self.push(Pending {
            file,
            write: true,
            offset,
            bytes,
            buffer,
            tag,
        });
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
}

impl Drop for SimQueue {
    fn drop(&mut self) {
        while self.wait().is_some() {}
    }
}
