//! How are entries and rows read in the order of the file?
//!
//! [`KeyScan`] walks the key blocks of a file; [`RunCursor`] walks one run with its rows;
//! [`Merge`] walks several runs of one table in the order of mix64, the newest copy of a key first.
//!
//! Invariants:
//! - Everything is verified before it is handed out: checksums, the order of keys, their number.
//! - A cursor holds one key block group and one window of rows, whatever the file's size.

mod ahead;
mod merge;
mod tournament;

use std::ops::RangeInclusive;
use std::sync::Arc;

use self::ahead::ReadAhead;
pub use self::merge::{Contradicting, Merge, keys_window_bytes};
use super::data_file::DataFile;
use super::open_files::Handle;
use super::pieces::{aligned, read_exact};
use super::seek::entries_within;
use crate::error::{Error, Result};
use crate::format::FileIdentity;
use crate::format::footer::{Run, RunKind};
use crate::format::param_file::{self, KEYS_PER_BLOCK};
use crate::io::AlignedBuffer;
use crate::units::{TableId, mix64, narrow, to_usize};

const BLOCK_BYTES: u64 = 4096;
/// A cursor holds this part of its window in key blocks, too.
const KEYS_SHARE: u64 = 4;

/// Walks the key blocks of a file.
pub struct KeyScan {
    file: Arc<Handle>,
    path: std::path::PathBuf,
    identity: FileIdentity,
    keys_offset: u64,
    /// Least and greatest hash and interval that the manifest promises.
    hashes: (u64, u64),
    intervals_promised: (u32, u32),
    last: Option<u64>,
    next: u64,
    end: u64,
    window: AlignedBuffer,
    /// Keys of the entries of the last step.
    pub keys: Vec<u64>,
    /// Their intervals.
    pub intervals: Vec<u32>,
    /// Number of the first of them.
    pub first: u64,
}

impl KeyScan {
    /// Prepares to read entries `[first, first + entries)` with a window of about `window_bytes`.
    ///
    /// # Errors
    /// `Io` when there is no memory for the window.
    pub fn new(file: &DataFile, first: u64, entries: u64, window_bytes: u64) -> Result<KeyScan> {
        // No more than the entries can be in.
        let blocks = entries.div_ceil(KEYS_PER_BLOCK as u64) + 1;
        let window = window_bytes
            .min(blocks * BLOCK_BYTES)
            .next_multiple_of(BLOCK_BYTES);
        Ok(KeyScan {
            file: Arc::clone(&file.file),
            path: file.path.clone(),
            identity: file.identity,
            keys_offset: file.keys_offset,
            hashes: (file.meta.hash_min, file.meta.hash_max),
            intervals_promised: (file.meta.interval_min, file.meta.interval_max),
            last: None,
            next: first,
            end: first + entries,
            window: aligned(&file.path, window)?,
            keys: Vec::new(),
            intervals: Vec::new(),
            first,
        })
    }

    /// Reads the next group of entries; false at the end.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn step(&mut self) -> Result<bool> {
        self.keys.clear();
        self.intervals.clear();
        self.first = self.next;
        if self.next >= self.end {
            return Ok(false);
        }
        let per_block = KEYS_PER_BLOCK as u64;
        let first_block = self.next / per_block;
        let last_block = (self.end - 1) / per_block;
        let blocks = (last_block - first_block + 1).min(self.window.len() as u64 / BLOCK_BYTES);
        let bytes = to_usize(blocks * BLOCK_BYTES);
        let offset = self.keys_offset + first_block * BLOCK_BYTES;
        read_exact(&*self.file, &self.path, &mut self.window[..bytes], offset)?;
        let mut at = offset;
        for block in self.window[..bytes].chunks_exact(4096) {
            param_file::decode_key_block(
                block,
                &self.identity,
                at,
                &mut self.keys,
                &mut self.intervals,
            )
            .map_err(|e| e.at(&self.path))?;
            at += BLOCK_BYTES;
        }
        let skip = usize::try_from(self.next % per_block).unwrap_or(0);
        let have = self.keys.len().saturating_sub(skip) as u64;
        let take = usize::try_from(have.min(self.end - self.next)).unwrap_or(0);
        if take == 0
            || (have < self.end - self.next && !self.keys.len().is_multiple_of(KEYS_PER_BLOCK))
        {
            let what = "a key block holds fewer keys than the footer says";
            return Err(Error::corrupt(&self.path, offset, what));
        }
        self.keys.drain(..skip);
        self.intervals.drain(..skip);
        self.keys.truncate(take);
        self.intervals.truncate(take);
        self.next += take as u64;
        self.check_order(offset)?;
        Ok(true)
    }

    /// Keys rise strictly by mix64 and lie, with their intervals, where the manifest says.
    fn check_order(&mut self, offset: u64) -> Result<()> {
        for (key, interval) in self.keys.iter().zip(&self.intervals) {
            let hash = mix64(*key);
            let right = self.last.is_none_or(|last| last < hash)
                && (self.hashes.0..=self.hashes.1).contains(&hash)
                && (self.intervals_promised.0..=self.intervals_promised.1).contains(interval);
            if !right {
                let what = format!("key {key:#x} is out of order or out of the file's range");
                return Err(Error::corrupt(&self.path, offset, what));
            }
            self.last = Some(hash);
        }
        Ok(())
    }
}

/// One entry of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// mix64 of the key.
    pub hash: u64,
    /// The key.
    pub key: u64,
    /// The checkpoint interval in which the row last changed.
    pub interval: u32,
    /// Entry number in its file.
    pub number: u32,
}

/// The newest copy of a key in a version.
#[derive(Clone, Copy, Debug)]
pub struct Newest {
    /// Its table.
    pub table: TableId,
    /// The key.
    pub key: u64,
    /// The checkpoint interval in which it last changed.
    pub interval: u32,
    /// Whether it says that the key was removed; else there is a row.
    pub is_removed: bool,
}

/// Walks one run in order.
pub struct RunCursor {
    /// The file.
    pub file: Arc<DataFile>,
    /// The run.
    pub run: Run,
    scan: KeyScan,
    at: usize,
    current: Option<Entry>,
    window: Option<AlignedBuffer>,
    window_bytes: u64,
    window_offset: u64,
    window_filled: u64,
    /// The offset and the bytes of the window that is on its way.
    asked: Option<(u64, u64)>,
    /// Entries of earlier intervals are stepped over.
    first_interval: u32,
}

impl RunCursor {
    /// Opens a run at its first entry. Windows take about `window_bytes` of memory each.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn new(file: &Arc<DataFile>, run: usize, window_bytes: u64) -> Result<RunCursor> {
        RunCursor::within(file, run, &(0..=u64::MAX), 0, window_bytes)
    }

    /// Opens a run at its first entry in a range of mix64 and of an interval or a later one; it ends
    /// after the last one.
    fn within(
        file: &Arc<DataFile>,
        run: usize,
        hashes: &RangeInclusive<u64>,
        first_interval: u32,
        window_bytes: u64,
    ) -> Result<RunCursor> {
        let run = file.runs[run];
        let entries = entries_within(file, &run, hashes)?;
        let keys = (window_bytes / KEYS_SHARE).max(BLOCK_BYTES);
        let mut cursor = RunCursor {
            scan: KeyScan::new(file, entries.start, entries.end - entries.start, keys)?,
            file: Arc::clone(file),
            run,
            at: 0,
            current: None,
            window: None,
            window_bytes: window_bytes
                .min(run.entries * u64::from(run.stride) + 2 * BLOCK_BYTES)
                .max(2 * u64::from(run.stride) + 2 * BLOCK_BYTES),
            window_offset: 0,
            window_filled: 0,
            asked: None,
            first_interval,
        };
        cursor.advance()?;
        Ok(cursor)
    }

    /// The entry it stands at.
    #[must_use]
    pub fn entry(&self) -> Option<Entry> {
        self.current
    }

    /// What it is merged by: hash and rank.
    fn stand(&self) -> Option<(u64, u64)> {
        self.current.map(|entry| (entry.hash, self.file.meta.rank))
    }

    /// Steps to the next entry.
    ///
    /// # Errors
    /// `Io`, `Corrupt` (also when keys are not in order).
    pub fn advance(&mut self) -> Result<()> {
        loop {
            let left = &self.scan.intervals[self.at..];
            if let Some(skipped) = left
                .iter()
                .position(|interval| *interval >= self.first_interval)
            {
                self.at += skipped;
                break;
            }
            self.at = 0;
            if !self.scan.step()? {
                self.current = None;
                return Ok(());
            }
        }
        let key = self.scan.keys[self.at];
        let hash = mix64(key);
        let number = narrow(self.scan.first + self.at as u64);
        self.current = Some(Entry {
            hash,
            key,
            interval: self.scan.intervals[self.at],
            number,
        });
        self.at += 1;
        Ok(())
    }

    /// Memory of the entries that it has read, and of its windows; those of rows only if they are its own.
    fn bytes(&self, has_rows: bool) -> usize {
        let entries = self.scan.keys.capacity() * size_of::<u64>()
            + self.scan.intervals.capacity() * size_of::<u32>();
        let window = self.window.as_ref().filter(|_| has_rows);
        let rows = window.map_or(0, |window| window.len());
        self.scan.window.len() + entries + rows
    }

    /// Reads and verifies the row of the entry it stands at.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn read_row(&mut self, row: &mut [f32]) -> Result<()> {
        let Some(entry) = self.current else {
            return Ok(());
        };
        assert!(self.run.kind == RunKind::Rows, "tombstones have no row");
        let offset = self.offset_of(u64::from(entry.number));
        if !self.is_at_hand(offset) {
            self.fill(offset)?;
        }
        let start = to_usize(offset - self.window_offset);
        let end = start + self.run.stride as usize;
        let bytes = self
            .window
            .as_ref()
            .and_then(|w| w.get(start..end))
            .unwrap_or(&[]);
        param_file::decode_record(bytes, row, &self.file.identity, offset, Some(entry.key))
            .map_err(|e| e.at(&self.file.path))?;
        Ok(())
    }

    /// Where the row of an entry stands.
    fn offset_of(&self, entry: u64) -> u64 {
        self.run.offset + (entry - self.run.first_entry) * u64::from(self.run.stride)
    }

    /// Where the row of the entry stands that it stands at; `None` at the end, and of tombstones.
    fn row_offset(&self) -> Option<u64> {
        let entry = self.current.filter(|_| self.run.kind == RunKind::Rows)?;
        Some(self.offset_of(u64::from(entry.number)))
    }

    /// Where the rows of its entries end.
    fn rows_end(&self) -> u64 {
        self.offset_of(self.scan.end)
    }

    /// Whether the row at an offset is in a window.
    fn holds(&self, offset: u64, (window_offset, window_bytes): (u64, u64)) -> bool {
        let end = offset + u64::from(self.run.stride);
        offset >= window_offset && end <= window_offset + window_bytes
    }

    /// Whether it is in the window that was read last.
    fn is_at_hand(&self, offset: u64) -> bool {
        self.holds(offset, (self.window_offset, self.window_filled))
    }

    /// Offset and bytes of the window that begins with the row at an offset.
    fn window_at(&self, offset: u64) -> (u64, u64) {
        let start = offset / BLOCK_BYTES * BLOCK_BYTES;
        let end = self.wanted_end(offset).next_multiple_of(BLOCK_BYTES);
        (start, self.window_size().min(end - start))
    }

    /// Asks for the rows from `offset` on, if there are any.
    fn ask(&mut self, offset: u64, index: usize, ahead: &mut ReadAhead) {
        if offset < self.rows_end() {
            let (start, bytes) = self.window_at(offset);
            let is_asked = ahead.ask(index, start, to_usize(bytes));
            self.asked = is_asked.then_some((start, bytes));
        }
    }

    /// Takes the window that is on its way, if the row of the entry it stands at is in it and not in the one at hand;
    /// then the next one is asked for.
    fn take_window(&mut self, index: usize, ahead: &mut ReadAhead) -> Result<()> {
        let wanted = self.row_offset();
        let Some(offset) = wanted.filter(|offset| !self.is_at_hand(*offset)) else {
            return Ok(());
        };
        if self.asked.is_none() {
            self.ask(offset, index, ahead);
        }
        while let Some((start, bytes)) = self.asked.take() {
            let window = ahead.take(index, start, to_usize(bytes));
            if !self.holds(offset, (start, bytes)) {
                // All of its entries were stepped over: nobody needs to know whether they could be read.
                if let Ok(Some(window)) = window {
                    ahead.give_back(window);
                }
                self.ask(offset, index, ahead);
                continue;
            }
            let Some(window) = window? else { break };
            if let Some(walked) = self.window.replace(window) {
                ahead.give_back(walked);
            }
            (self.window_offset, self.window_filled) = (start, bytes);
            let stride = u64::from(self.run.stride);
            let rows = (start + bytes - self.run.offset) / stride;
            self.ask(self.run.offset + rows * stride, index, ahead);
            break;
        }
        Ok(())
    }

    /// Bytes of a window.
    fn window_size(&self) -> u64 {
        self.window_bytes.next_multiple_of(BLOCK_BYTES)
    }

    /// Where the rows end that are wanted together with the one at an offset: the last entry's, or, where
    /// entries are stepped over, the first gap of a block between those that are known to come.
    fn wanted_end(&self, offset: u64) -> u64 {
        let stride = u64::from(self.run.stride);
        if self.first_interval == 0 {
            return self.rows_end();
        }
        let mut end = offset + stride;
        let following = (1..).zip(&self.scan.intervals[self.at..]);
        for (distance, _) in following.filter(|(_, interval)| **interval >= self.first_interval) {
            let next = offset + distance * stride;
            if next - end >= BLOCK_BYTES || next - offset >= self.window_bytes {
                break;
            }
            end = next + stride;
        }
        end
    }

    fn fill(&mut self, offset: u64) -> Result<()> {
        let path = &self.file.path;
        let (start, bytes) = self.window_at(offset);
        if self.window.is_none() {
            self.window = Some(aligned(path, self.window_size())?);
        }
        if let Some(window) = &mut self.window {
            let bytes = to_usize(bytes);
            read_exact(&*self.file.file, path, &mut window[..bytes], start)?;
        }
        self.window_offset = start;
        self.window_filled = bytes;
        Ok(())
    }
}

#[cfg(test)]
mod ahead_tests;
#[cfg(test)]
mod tests;
