//! How are requests served with plain system calls?
//!
//! [`PreadEngine`] is the twin of `uring`: the same requests, moved with pread and pwrite.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use super::buffer::{AlignedBuffer, Pool};
use super::{Completion, DiskFile, Engine, Queue};

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
    fn depth(&self) -> usize {
        self.pool.count()
    }

    fn buffer_bytes(&self) -> usize {
        self.pool.buffer_bytes()
    }

    fn in_flight(&self) -> usize {
        self.completions.len()
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
        mut buffer: AlignedBuffer,
        tag: u64,
    ) {
        self.pool.admit(self.completions.len(), bytes, &buffer);
        let result = file.read_at(&mut buffer[..bytes], offset);
        self.completions.push_back(Completion {
            tag,
            buffer,
            result,
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
        self.pool.admit(self.completions.len(), bytes, &buffer);
        let result = file.write_at(&buffer[..bytes], offset).map(|()| bytes);
        self.completions.push_back(Completion {
            tag,
            buffer,
            result,
        });
    }

    fn submit(&mut self) {}

    fn wait(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }
}
