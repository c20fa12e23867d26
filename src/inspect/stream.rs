//! How is a file read from one end to the other near the device's speed?
//!
//! - Requests of one buffer each, as many in flight as the queue holds; chunks come in order.
//! - A chunk is a whole buffer but at the end.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::io::{AlignedBuffer, DiskFile, Queue, is_unreadable};
use crate::units::to_usize;

const BLOCK_BYTES: usize = 4096;

/// The first block of a range that the device can't read, tried one by one; `None` if it can now.
pub(super) fn first_unreadable(file: &dyn DiskFile, range: Range<u64>) -> Option<u64> {
    let mut block = AlignedBuffer::try_new(BLOCK_BYTES).ok()?;
    let mut blocks = range.step_by(BLOCK_BYTES);
    blocks.find(|at| {
        let read = file.read_at(&mut block, *at);
        read.is_err_and(|error| is_unreadable(&error))
    })
}

/// Which bytes could not be read, and why.
pub(super) type ReadFailed = (Range<u64>, io::Error);

/// Reads `[offset, end)` of a file; both are multiples of 4096.
pub(super) struct Stream<'q> {
    queue: &'q mut dyn Queue,
    file: Arc<dyn DiskFile>,
    asked: u64,
    given: u64,
    end: u64,
    arrived: BTreeMap<u64, (AlignedBuffer, usize)>,
    held: Option<AlignedBuffer>,
}

impl<'q> Stream<'q> {
    pub fn new(
        queue: &'q mut dyn Queue,
        file: &Arc<dyn DiskFile>,
        offset: u64,
        end: u64,
    ) -> Stream<'q> {
        Stream {
            queue,
            file: Arc::clone(file),
            asked: offset,
            given: offset,
            end,
            arrived: BTreeMap::new(),
            held: None,
        }
    }

    /// The next bytes and where they are; `None` at the end. A file that ends early is an error of
    /// kind `UnexpectedEof`. With an error come the bytes of the read that failed.
    pub fn next(&mut self) -> Result<Option<(u64, &[u8])>, ReadFailed> {
        if let Some(buffer) = self.held.take() {
            self.queue.recycle(buffer);
        }
        if self.given >= self.end {
            return Ok(None);
        }
        self.ask();
        let offset = self.given;
        let (buffer, bytes) = loop {
            if let Some(arrived) = self.arrived.remove(&offset) {
                break arrived;
            }
            let Some(done) = self.queue.wait() else {
                return Err((self.range_at(offset), io::Error::other("a read was lost")));
            };
            match done.result {
                Ok(bytes) => {
                    self.arrived.insert(done.tag, (done.buffer, bytes));
                }
                Err(error) => {
                    self.queue.recycle(done.buffer);
                    return Err((self.range_at(done.tag), error));
                }
            }
        };
        let wanted = self.length_at(offset);
        self.given += wanted as u64;
        let buffer = self.held.insert(buffer);
        if bytes < wanted {
            let rest = offset..self.given;
            return Err((rest, io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(Some((offset, &buffer[..wanted])))
    }

    fn range_at(&self, offset: u64) -> Range<u64> {
        offset..offset + self.length_at(offset) as u64
    }

    fn length_at(&self, offset: u64) -> usize {
        let left = to_usize(self.end - offset);
        left.min(self.queue.buffer_bytes())
    }

    fn ask(&mut self) {
        let mut asked = false;
        // A queue has as many buffers as it takes requests.
        while self.asked < self.end
            && let Some(buffer) = self.queue.buffer()
        {
            let bytes = self.length_at(self.asked);
            self.queue
                .read(&self.file, self.asked, bytes, buffer, self.asked);
            self.asked += bytes as u64;
            asked = true;
        }
        if asked {
            self.queue.submit();
        }
    }
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        for (buffer, _) in std::mem::take(&mut self.arrived).into_values() {
            self.queue.recycle(buffer);
        }
        if let Some(buffer) = self.held.take() {
            self.queue.recycle(buffer);
        }
        while let Some(done) = self.queue.wait() {
            self.queue.recycle(done.buffer);
        }
    }
}

#[cfg(test)]
mod tests;
