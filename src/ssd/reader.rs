//! How are cold rows read with the fewest and cheapest device reads?
//!
//! Wanted locations come in lots. Those of a lot are sorted by file and place; neighbours closer than the device's
//! break-even share a read, up to the queue's buffer; the queue is kept full until the last of the last lot. Each data
//! directory, which is a device of its own, has its share of the queue: the next request goes where the fewest are in flight.
//!
//! Invariants:
//! - A row is handed out only after its checksum and its key were verified.
//! - After an error nothing is in flight.

use std::sync::Arc;

use super::data_file::{DataFile, Location};
use super::index::Files;
use crate::error::{Error, Result};
use crate::format::param_file;
use crate::io::{Completion, DiskFile, Queue, is_out_of_descriptors};
use crate::units::{FileSlot, narrow, to_usize};

/// Bytes between two wanted rows that are cheaper to read than to skip: an 8 KiB read costs 1.4
/// of a 4 KiB one and a 16 KiB read 1.8 (measured with fio, see docs/BENCHMARKS.md), so 12 KiB break even.
const GAP_BYTES: u64 = 12 << 10;

/// A row to be read.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    /// Where it is.
    pub location: Location,
    /// Whose it must be.
    pub key: u64,
    /// The caller's name for it.
    pub tag: u32,
    /// f32s of a row of its table.
    pub row_f32s: u32,
}

/// Rows that were read: `rows` holds `tags.len()` rows, each as wide as it was wanted.
#[derive(Debug, Default)]
pub struct RowBatch {
    /// The callers' names.
    pub tags: Vec<u32>,
    /// The rows, one after the other.
    pub rows: Vec<f32>,
}

impl RowBatch {
    /// Memory of its arrays.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let tags = self.tags.capacity() * size_of::<u32>();
        (tags + self.rows.capacity() * size_of::<f32>()) as u64
    }
}

struct Read {
    file: usize,
    offset: u64,
    bytes: usize,
    first: usize,
    end: usize,
}

/// The files of these locations, by rising slot. To be called under the lock that guards the
/// index the locations come from: a file is retired, and its slot used again, only when no index
/// entry points to it.
#[must_use]
pub fn pin_files(files: &Files, wants: &[Want]) -> Vec<Arc<DataFile>> {
    let mut slots: Vec<FileSlot> = wants.iter().map(|w| w.location.slot()).collect();
    slots.sort_unstable();
    slots.dedup();
    slots
        .iter()
        .filter_map(|s| files.get(s.index()).cloned().flatten())
        .collect()
}

/// What was asked of the device.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadCount {
    /// Requests.
    pub reads: u64,
    /// Bytes.
    pub bytes: u64,
}

/// What is to be read from one data directory.
#[derive(Default)]
struct Lane {
    /// Numbers of its reads.
    reads: Vec<u32>,
    /// How many of them were asked for.
    next: usize,
    in_flight: usize,
    /// The file of the last request, open.
    open: Option<(usize, Arc<dyn DiskFile>)>,
}

impl Lane {
    /// Reads that were not asked for yet.
    fn unasked(&self) -> usize {
        self.reads.len() - self.next
    }
}

/// Closes the files of the last requests; whether there was one.
fn close_files(lanes: &mut [Lane]) -> bool {
    let opened = lanes.iter_mut().filter_map(|lane| lane.open.take());
    opened.count() > 0
}

/// Reads rows, of one table or several.
pub struct RowReader<'q> {
    queue: &'q mut dyn Queue,
    /// Of all lots, one lot's after the other's.
    files: Vec<Arc<DataFile>>,
    wants: Vec<Want>,
    reads: Vec<Read>,
    /// By data directory.
    lanes: Vec<Lane>,
    /// What was asked of the device so far.
    pub count: ReadCount,
}

impl<'q> RowReader<'q> {
    /// Nothing is wanted yet.
    pub fn new(queue: &'q mut dyn Queue) -> RowReader<'q> {
        RowReader {
            queue,
            files: Vec::new(),
            wants: Vec::new(),
            reads: Vec::new(),
            lanes: Vec::new(),
            count: ReadCount::default(),
        }
    }

    /// Plans the reads of one more lot. `files` comes from [`pin_files`] for these wants.
    ///
    /// # Errors
    /// `Corrupt` when a location names no row of its file; nothing is in flight any more.
    pub fn add(&mut self, files: Vec<Arc<DataFile>>, mut wants: Vec<Want>) -> Result<()> {
        wants.sort_unstable_by_key(|w| w.location);
        let (number, planned) = (self.files.len(), self.reads.len());
        self.files.extend(files);
        let result = self.plan(number, &wants);
        self.wants.extend(wants);
        if result.is_err() {
            self.drain();
            return result;
        }
        for read in planned..self.reads.len() {
            let lane = self.lane_of(read);
            if self.lanes.len() <= lane {
                self.lanes.resize_with(lane + 1, Lane::default);
            }
            self.lanes[lane].reads.push(narrow(read));
        }
        Ok(())
    }

    /// Plans the reads of a lot, whose files begin with a number.
    fn plan(&mut self, mut number: usize, wants: &[Want]) -> Result<()> {
        let limit = self.queue.buffer_bytes() as u64;
        let (earlier, planned) = (self.wants.len(), self.reads.len());
        for (i, want) in (earlier..).zip(wants) {
            while self.files[number].slot != want.location.slot() {
                number += 1;
                assert!(number < self.files.len(), "every wanted file was pinned");
            }
            let file = &self.files[number];
            let align = file.file.align_bytes().max(1) as u64;
            let Some((start, stride)) = file.record(want.location.entry()) else {
                let what = format!("entry {} has no row", want.location.entry());
                return Err(Error::corrupt(&file.path, file.keys_offset, what));
            };
            let from = start / align * align;
            let to = (start + u64::from(stride)).next_multiple_of(align);
            assert!(
                to - from <= limit,
                "a queue's buffers hold the longest record"
            );
            match self.reads[planned..].last_mut() {
                Some(read)
                    if read.file == number
                        && from <= read.offset + read.bytes as u64 + GAP_BYTES
                        && to - read.offset <= limit =>
                {
                    let bytes = (to - read.offset).max(read.bytes as u64);
                    read.bytes = to_usize(bytes);
                    read.end = i + 1;
                }
                _ => self.reads.push(Read {
                    file: number,
                    offset: from,
                    bytes: to_usize(to - from),
                    first: i,
                    end: i + 1,
                }),
            }
        }
        Ok(())
    }

    /// The data directory that a read is of.
    fn lane_of(&self, read: usize) -> usize {
        to_usize(self.files[self.reads[read].file].meta.directory)
    }

    /// Requests that were planned and not asked for yet, of a data directory on the average.
    #[must_use]
    pub fn unasked(&self) -> usize {
        let all: usize = self.lanes.iter().map(Lane::unasked).sum();
        all / self.lanes.len().max(1)
    }

    /// The same of the data directory that has the fewest, of those that anything was planned of.
    #[must_use]
    pub fn fewest_unasked(&self) -> usize {
        let lanes = self.lanes.iter().filter(|lane| !lane.reads.is_empty());
        lanes.map(Lane::unasked).min().unwrap_or(0)
    }

    /// Reads on; replaces `batch` by at least `rows_min` rows, or what is left. False at the end.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn next(&mut self, batch: &mut RowBatch, rows_min: usize) -> Result<bool> {
        self.read_on(batch, rows_min, |queue| queue.wait())
    }

    /// Starts what has a place in the queue, and replaces `batch` by what has arrived, but no more once these are
    /// `enough` rows; false where nothing has.
    ///
    /// # Errors
    /// As [`RowReader::next`].
    pub fn poll(&mut self, batch: &mut RowBatch, enough: usize) -> Result<bool> {
        self.read_on(batch, enough, |queue| queue.poll())
    }

    fn read_on(
        &mut self,
        batch: &mut RowBatch,
        enough: usize,
        take: impl Fn(&mut dyn Queue) -> Option<Completion>,
    ) -> Result<bool> {
        batch.tags.clear();
        batch.rows.clear();
        loop {
            if let Err(error) = self.fill_queue() {
                self.drain();
                return Err(error);
            }
            let Some(done) = take(self.queue) else { break };
            let read = to_usize(done.tag);
            let lane = self.lane_of(read);
            self.lanes[lane].in_flight -= 1;
            let outcome = match done.result {
                Ok(bytes) => self.decode(read, &done.buffer[..bytes], batch),
                Err(e) => Err(Error::io(
                    "read",
                    &self.files[self.reads[read].file].path,
                    e,
                )),
            };
            self.queue.recycle(done.buffer);
            if outcome.is_err() {
                self.drain();
                return outcome.map(|()| false);
            }
            if batch.tags.len() >= enough {
                break;
            }
        }
        Ok(!batch.tags.is_empty())
    }

    fn fill_queue(&mut self) -> Result<()> {
        while self.queue.in_flight() < self.queue.depth() {
            let left = self.lanes.iter_mut().filter(|lane| lane.unasked() > 0);
            // Of several with as few, the one that was asked least: a short queue is not the first ones' alone.
            let Some(lane) = left.min_by_key(|lane| (lane.in_flight, lane.next)) else {
                break;
            };
            let number = lane.reads[lane.next];
            let read = &self.reads[number as usize];
            let file = match &lane.open {
                Some((number, file)) if *number == read.file => file,
                _ => {
                    let file = &self.files[read.file];
                    lane.open = None;
                    match file.file.get() {
                        Ok(opened) => &lane.open.insert((read.file, opened)).1,
                        // Requests in flight hold descriptors, and give them back; so do files that are
                        // open for the next requests of other directories.
                        Err(e) if is_out_of_descriptors(&e) && self.queue.in_flight() > 0 => break,
                        Err(e) if is_out_of_descriptors(&e) && close_files(&mut self.lanes) => {
                            continue;
                        }
                        Err(e) => return Err(Error::io("open", &file.path, e)),
                    }
                }
            };
            let Some(buffer) = self.queue.buffer() else {
                break;
            };
            self.queue
                .read(file, read.offset, read.bytes, buffer, u64::from(number));
            self.count.reads += 1;
            self.count.bytes += read.bytes as u64;
            lane.next += 1;
            lane.in_flight += 1;
            if lane.unasked() == 0 {
                lane.open = None;
            }
        }
        self.queue.submit();
        Ok(())
    }

    fn decode(&self, read: usize, bytes: &[u8], batch: &mut RowBatch) -> Result<()> {
        let read = &self.reads[read];
        let file = &self.files[read.file];
        for want in &self.wants[read.first..read.end] {
            let Some((offset, stride)) = file.record(want.location.entry()) else {
                continue;
            };
            let from = to_usize(offset - read.offset);
            let record = bytes.get(from..from + stride as usize).ok_or_else(|| {
                Error::corrupt(&file.path, offset, "the file ends inside a record")
            })?;
            let start = batch.rows.len();
            batch.rows.resize(start + want.row_f32s as usize, 0.0);
            let row = &mut batch.rows[start..];
            param_file::decode_record(record, row, &file.identity, offset, Some(want.key))
                .map_err(|e| e.at(&file.path))?;
            batch.tags.push(want.tag);
        }
        Ok(())
    }

    fn drain(&mut self) {
        self.lanes.clear();
        while let Some(done) = self.queue.wait() {
            self.queue.recycle(done.buffer);
        }
    }
}

impl Drop for RowReader<'_> {
    fn drop(&mut self) {
        self.drain();
    }
}

#[cfg(test)]
mod tests;
