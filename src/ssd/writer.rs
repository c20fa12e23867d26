//! How does a batch of rows become a parameter file?
//!
//! Rows come in the order of the file: runs by (table, kind), inside a run by mix64(key). They
//! are encoded into the queue's own buffers and written in order, several buffers in flight.
//!
//! Invariants:
//! - Nothing is synced here: a file is durable only through a checkpoint.
//! - Memory: the queue's buffers and 12 bytes an entry.
//! - A writer that is not finished removes its file.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::space::refused;
use crate::error::Result;
use crate::format::footer::{Footer, Run, RunKind};
use crate::format::manifest::{FileMeta, NOT_REMOVED};
use crate::format::param_file::{self, KEYS_PER_BLOCK, PARAM_HEADER_BYTES};
use crate::format::{Digest, FileIdentity};
use crate::io::{AlignedBuffer, Directory, DiskFile, OpenMode, Queue};
use crate::pages::own_pages;
use crate::units::{CheckpointId, FileNumber, mix64, narrow, to_usize};

/// Alignment of sections and writes.
const BLOCK_BYTES: usize = 4096;

/// Bytes of a file for each entry, rather too few than too many.
const ENTRY_BYTES_ABOUT: u64 = 128;

/// What a finished file is.
#[derive(Debug)]
pub struct Finished {
    /// The open file, readable at once.
    pub file: Arc<dyn DiskFile>,
    /// Where it is.
    pub path: PathBuf,
    /// Its footer.
    pub footer: Footer,
    /// The footer's checksum, which covers the file.
    pub footer_checksum: u64,
    /// Where the footer starts.
    pub footer_offset: u64,
    /// Length of the file.
    pub bytes: u64,
    /// Rows among the entries.
    pub rows: u64,
    /// Tombstones among the entries.
    pub tombstones: u64,
}

impl Finished {
    /// What a manifest says of it, of its rank and of the first checkpoint that has it.
    #[must_use]
    pub fn meta(
        &self,
        number: FileNumber,
        directory: u32,
        rank: u64,
        added: CheckpointId,
    ) -> FileMeta {
        FileMeta {
            number,
            directory,
            rank,
            bytes: self.bytes,
            footer_offset: self.footer_offset,
            footer_checksum: self.footer_checksum,
            rows: self.rows,
            tombstones: self.tombstones,
            hash_min: self.footer.hash_min,
            hash_max: self.footer.hash_max,
            interval_min: self.footer.interval_min,
            interval_max: self.footer.interval_max,
            added,
            removed: NOT_REMOVED,
        }
    }
}

/// A parameter file being written.
pub struct FileWriter<'q> {
    place: Arc<dyn Directory>,
    name: String,
    queue: &'q mut dyn Queue,
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    identity: FileIdentity,
    buffer: Option<AlignedBuffer>,
    filled: usize,
    buffer_offset: u64,
    scratch: Vec<u8>,
    keys: Vec<u64>,
    intervals: Vec<u32>,
    runs: Vec<Run>,
    rows_digest: Digest,
    /// Where the row lies in the buffer that has no checksum yet, and its bytes.
    unsealed: Option<(usize, usize)>,
    rows: u64,
    hash_last: u64,
    hash_range: (u64, u64),
    failure: Option<io::Error>,
    done: bool,
}

impl<'q> FileWriter<'q> {
    /// Memory of an entry: its key and its interval.
    pub const ENTRY_BYTES: usize = size_of::<u64>() + size_of::<u32>();

    /// Creates the file, which will have about `expected_bytes`, and writes its header.
    ///
    /// # Errors
    /// `Io`, `NoSpace` when it can't be created.
    pub fn create(
        place: &Arc<dyn Directory>,
        queue: &'q mut dyn Queue,
        name: String,
        identity: FileIdentity,
        expected_bytes: u64,
    ) -> Result<FileWriter<'q>> {
        let file = place.open(&name, OpenMode::CreateDirect);
        let path = place.path().join(&name);
        let file = file.map_err(|e| refused("create", &**place, &path, expected_bytes, e))?;
        let writer = FileWriter::of(file, place, queue, name, identity);
        Ok(writer.expecting(expected_bytes))
    }

    /// Writes the header of a file that was just created.
    pub fn of(
        file: Arc<dyn DiskFile>,
        place: &Arc<dyn Directory>,
        queue: &'q mut dyn Queue,
        name: String,
        identity: FileIdentity,
    ) -> FileWriter<'q> {
        let path = place.path().join(&name);
        let mut writer = FileWriter {
            place: Arc::clone(place),
            name,
            queue,
            file,
            path,
            identity,
            buffer: None,
            filled: 0,
            buffer_offset: 0,
            scratch: Vec::new(),
            keys: Vec::new(),
            intervals: Vec::new(),
            runs: Vec::new(),
            rows_digest: Digest::new(),
            unsealed: None,
            rows: 0,
            hash_last: 0,
            hash_range: (u64::MAX, 0),
            failure: None,
            done: false,
        };
        let header = param_file::encode_header(&writer.identity);
        writer.append(&header);
        writer
    }

    /// The file will have about so many bytes, of rows of unknown size.
    pub fn expecting(mut self, bytes: u64) -> FileWriter<'q> {
        let entries = to_usize(bytes / ENTRY_BYTES_ABOUT);
        self.keys = own_pages(entries);
        self.intervals = own_pages(entries);
        self
    }

    /// Entries so far.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.keys.len()
    }

    /// Bytes of the file so far, key blocks included.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.offset() + (self.keys.len() * 13) as u64
    }

    fn offset(&self) -> u64 {
        self.buffer_offset + self.filled as u64
    }

    /// Appends a row. `row_bytes` of a table never differ.
    pub fn row(&mut self, table: u32, key: u64, interval: u32, row: &[f32]) {
        let stride = param_file::record_stride(row.len() * 4);
        self.enter(table, RunKind::Rows, stride, key, interval);
        self.rows += 1;
        if self.room() < stride {
            let mut scratch = std::mem::take(&mut self.scratch);
            scratch.resize(stride, 0);
            let offset = self.offset();
            let checksum =
                param_file::encode_record(&mut scratch, key, row, &self.identity, offset);
            self.seal_last();
            self.rows_digest.update(&checksum.to_le_bytes());
            self.append(&scratch);
            self.scratch = scratch;
            return;
        }
        let start = self.filled;
        self.filled += stride;
        if let Some(b) = &mut self.buffer {
            param_file::write_record(&mut b[start..start + stride], key, row);
        }
        self.seal_last();
        self.unsealed = Some((start, stride));
    }

    /// Writes the checksum of the row that came last: one row late, since the processor would wait until what was
    /// just written can be read back.
    fn seal_last(&mut self) {
        let Some((start, stride)) = self.unsealed.take() else {
            return;
        };
        let Some(b) = &mut self.buffer else {
            unreachable!("a buffer is written when its last row has a checksum");
        };
        let offset = self.buffer_offset + start as u64;
        let record = &mut b[start..start + stride];
        let checksum = param_file::seal_record(record, &self.identity, offset);
        self.rows_digest.update(&checksum.to_le_bytes());
    }

    /// Appends a tombstone.
    pub fn tombstone(&mut self, table: u32, key: u64, interval: u32) {
        self.enter(table, RunKind::Tombstones, 0, key, interval);
    }

    fn enter(&mut self, table: u32, kind: RunKind, stride: usize, key: u64, interval: u32) {
        let hash = mix64(key);
        let fresh = match self.runs.last_mut() {
            Some(run) if run.table == table && run.kind == kind => {
                assert!(
                    hash > self.hash_last,
                    "rows of a run rise strictly by mix64(key)"
                );
                run.entries += 1;
                false
            }
            _ => true,
        };
        if fresh {
            let stride = narrow(stride);
            let first_entry = self.keys.len() as u64;
            let offset = self.offset();
            self.runs.push(Run {
                table,
                kind,
                first_entry,
                entries: 1,
                offset,
                stride,
            });
        }
        self.hash_last = hash;
        self.hash_range = (self.hash_range.0.min(hash), self.hash_range.1.max(hash));
        self.keys.push(key);
        self.intervals.push(interval);
    }

    /// Writes key blocks and footer, and waits for every write.
    ///
    /// # Errors
    /// The first failed write; the file is removed.
    pub fn finish(self) -> Result<Finished> {
        self.finish_then(|| {})
    }

    /// The same; `asked` is called when all writes are on their way, and before any of them is waited for.
    ///
    /// # Errors
    /// As [`FileWriter::finish`].
    pub fn finish_then(mut self, asked: impl FnOnce()) -> Result<Finished> {
        assert!(
            !self.keys.is_empty(),
            "a parameter file holds at least one entry"
        );
        self.seal_last();
        self.pad();
        let keys_offset = self.offset();
        let mut keys_digest = Digest::new();
        let mut block = vec![0u8; BLOCK_BYTES];
        let keys = std::mem::take(&mut self.keys);
        let intervals = std::mem::take(&mut self.intervals);
        for (keys, intervals) in keys
            .chunks(KEYS_PER_BLOCK)
            .zip(intervals.chunks(KEYS_PER_BLOCK))
        {
            let offset = self.offset();
            let sum =
                param_file::encode_key_block(&mut block, keys, intervals, &self.identity, offset);
            keys_digest.update(&sum.to_le_bytes());
            self.append(&block);
        }
        let footer_offset = self.offset();
        let footer = Footer {
            entries: keys.len() as u64,
            rows_digest: self.rows_digest.digest64(),
            keys_digest: keys_digest.digest64(),
            keys_offset,
            hash_min: self.hash_range.0,
            hash_max: self.hash_range.1,
            interval_min: intervals.iter().copied().min().unwrap_or(0),
            interval_max: intervals.iter().copied().max().unwrap_or(0),
            runs: std::mem::take(&mut self.runs),
            sections: Vec::new(),
        };
        let (bytes, footer_checksum) = footer.encode(&self.identity, footer_offset);
        self.append(&bytes);
        self.pad();
        self.flush_buffer();
        asked();
        self.drain();
        if let Some(e) = self.failure.take() {
            let bytes = footer_offset;
            return Err(refused("write", &*self.place, &self.path, bytes, e));
        }
        self.done = true;
        Ok(Finished {
            file: Arc::clone(&self.file),
            path: self.path.clone(),
            footer_checksum,
            footer_offset,
            bytes: self.buffer_offset,
            rows: self.rows,
            tombstones: footer.entries - self.rows,
            footer,
        })
    }

    /// Bytes free in the current buffer, which is made if there is none.
    fn room(&mut self) -> usize {
        if self.buffer.as_ref().is_some_and(|b| self.filled == b.len()) {
            self.flush_buffer();
        }
        if self.buffer.is_none() {
            self.buffer = Some(self.take_buffer());
        }
        self.buffer.as_ref().map_or(0, |b| b.len() - self.filled)
    }

    fn append(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let n = self.room().min(bytes.len());
            let (now, rest) = bytes.split_at(n);
            if let Some(b) = &mut self.buffer {
                b[self.filled..self.filled + n].copy_from_slice(now);
            }
            self.filled += n;
            bytes = rest;
        }
    }

    fn pad(&mut self) {
        let over = self.filled % BLOCK_BYTES;
        if over != 0 {
            self.append(&[0; BLOCK_BYTES][over..]);
        }
    }

    fn take_buffer(&mut self) -> AlignedBuffer {
        loop {
            if self.queue.in_flight() < self.queue.depth()
                && let Some(buffer) = self.queue.buffer()
            {
                return buffer;
            }
            assert!(
                self.queue.in_flight() > 0,
                "a queue's buffers are free or in flight"
            );
            self.reap();
        }
    }

    fn reap(&mut self) {
        if let Some(done) = self.queue.wait() {
            if let Err(e) = done.result {
                self.failure.get_or_insert(e);
            }
            self.queue.recycle(done.buffer);
        }
    }

    fn drain(&mut self) {
        while self.queue.in_flight() > 0 {
            self.reap();
        }
    }

    /// Hands the filled part of the buffer to the device. After a failure bytes go nowhere.
    fn flush_buffer(&mut self) {
        self.seal_last();
        let Some(buffer) = self.buffer.take() else {
            return;
        };
        assert!(
            self.filled.is_multiple_of(BLOCK_BYTES),
            "writes are whole blocks"
        );
        let bytes = std::mem::take(&mut self.filled);
        if bytes == 0 || self.failure.is_some() {
            self.queue.recycle(buffer);
        } else {
            while self.queue.in_flight() >= self.queue.depth() {
                self.reap();
            }
            self.queue
                .write(&self.file, self.buffer_offset, bytes, buffer, 0);
            self.queue.submit();
        }
        self.buffer_offset += bytes as u64;
    }
}

impl Drop for FileWriter<'_> {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.queue.recycle(buffer);
        }
        self.drain();
        if !self.done
            && let Err(e) = self.place.remove(&self.name)
        {
            tracing::warn!(path = %self.path.display(), error = %e, "an unfinished file stays");
        }
    }
}

const _: () = assert!(PARAM_HEADER_BYTES == BLOCK_BYTES);

#[cfg(test)]
mod tests;
