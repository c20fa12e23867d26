//! What is asked of a file, and what became of it?
//!
//! Invariants:
//! - A request keeps its file open and owns its buffer until it is completed.

use std::io;
use std::sync::Arc;

use super::DiskFile;
use super::buffer::{AlignedBuffer, Pool};

/// Bytes to be read or written: the first `bytes` of `buffer`, at `offset` of `file`.
#[derive(Debug)]
pub struct Request {
    /// Of this file.
    pub file: Arc<dyn DiskFile>,
    /// Written, not read.
    pub write: bool,
    /// Where in the file.
    pub offset: u64,
    /// How many.
    pub bytes: usize,
    /// Where in memory.
    pub buffer: AlignedBuffer,
    /// Comes back with the completion.
    pub tag: u64,
}

impl Request {
    /// Does it with a plain call.
    pub(super) fn execute(mut self) -> Completion {
        let bytes = self.bytes;
        let result = if self.write {
            let written = self.file.write_at(&self.buffer[..bytes], self.offset);
            written.map(|()| bytes)
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

/// What became of one request.
#[derive(Debug)]
pub struct Completion {
    /// As given with the request.
    pub tag: u64,
    /// The request's buffer; hand it back with [`Queue::recycle`] (or reuse it for a write).
    pub buffer: AlignedBuffer,
    /// Bytes read (less than asked only at the end of the file) or written.
    pub result: io::Result<usize>,
}

/// A bounded set of requests in flight. Belongs to one thread at a time.
///
/// Dropping a queue waits for what is in flight.
pub trait Queue: Send + std::fmt::Debug {
    /// Its buffers.
    fn pool(&self) -> &Pool;
    /// Its buffers, to take one or to put one back.
    fn pool_mut(&mut self) -> &mut Pool;
    /// Requests submitted whose completion has not been taken.
    fn in_flight(&self) -> usize;
    /// Starts a request; [`Queue::read`] and [`Queue::write`] have seen to room for it. Never blocks.
    fn start(&mut self, request: Request);
    /// Tells the kernel about what was queued since (one system call for many requests).
    fn submit(&mut self);
    /// Waits for one completion (submits first); `None` when nothing is in flight.
    fn wait(&mut self) -> Option<Completion>;

    /// A completion that is there already (submits first); does not wait.
    fn poll(&mut self) -> Option<Completion>;

    /// Requests that may be in flight at once.
    fn depth(&self) -> usize {
        self.pool().count()
    }

    /// Size of each buffer in bytes.
    fn buffer_bytes(&self) -> usize {
        self.pool().buffer_bytes()
    }

    /// Takes a free buffer; `None` when all are in flight or in the caller's hands.
    fn buffer(&mut self) -> Option<AlignedBuffer> {
        self.pool_mut().take()
    }

    /// Hands a buffer back.
    fn recycle(&mut self, buffer: AlignedBuffer) {
        self.pool_mut().put(buffer);
    }

    /// Holds a caller to its promises, and starts the request.
    fn admit(&mut self, request: Request) {
        self.pool()
            .admit(self.in_flight(), request.bytes, &request.buffer);
        self.start(request);
    }

    /// Starts reading `bytes` at `offset` into `buffer`. Never blocks; the caller keeps
    /// `in_flight() < depth()` (asserted).
    fn read(
        &mut self,
        file: &Arc<dyn DiskFile>,
        offset: u64,
        bytes: usize,
        buffer: AlignedBuffer,
        tag: u64,
    ) {
        let file = Arc::clone(file);
        self.admit(Request {
            file,
            write: false,
            offset,
            bytes,
            buffer,
            tag,
        });
    }

    /// Starts writing the first `bytes` of `buffer` at `offset`. As `read`.
    fn write(
        &mut self,
        file: &Arc<dyn DiskFile>,
        offset: u64,
        bytes: usize,
        buffer: AlignedBuffer,
        tag: u64,
    ) {
        let file = Arc::clone(file);
        self.admit(Request {
            file,
            write: true,
            offset,
            bytes,
            buffer,
            tag,
        });
    }
}
