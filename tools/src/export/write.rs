//! How do rows get into the files of a model?
//!
//! - Each thread walks ranges of mix64 and keeps what it reads in a buffer for each file. A full buffer claims the
//!   next rows of all files at once: no holes, and no thread waits for another.
//! - Row i of every file is of the same key.

use std::fs::File;
use std::ops::RangeInclusive;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use hps::{
    CheckpointId, Error, Incremental, Row, RowIter, Store, TableDescriptor, TableId, part_range,
};

use crate::models::columns::columns;
use crate::models::crew::Crew;
use crate::models::{Change, Content, FileOf};

/// Bytes of a thread's buffers together: few enough to stay near the processor.
const BUFFER_BYTES: usize = 512 << 10;
/// Ranges for each thread: the last ones to end are not long alone.
pub const RANGES_PER_THREAD: usize = 4;
/// Bytes after which all files are synced.
const SYNC_BYTES: u64 = 128 << 20;
/// How often the thread that syncs looks at what was written.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Rows between two looks at whether to stop.
pub const LOOK_ROWS: usize = 1024;

/// What was seen of the rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Written {
    /// Rows.
    pub rows: u64,
    /// Those with a NaN or an infinity.
    pub non_finite: u64,
    /// Those whose key is negative as an int64.
    pub negative: u64,
    /// The least and the greatest step count of Adam.
    pub steps: Option<(f32, f32)>,
    /// Keys that were removed, where only changes are asked for.
    pub removed: Option<u64>,
}

impl Written {
    /// Before the first row.
    pub const NOTHING: Written = Written {
        rows: 0,
        non_finite: 0,
        negative: 0,
        steps: None,
        removed: None,
    };

    /// Adds what was seen of other rows.
    pub fn add(&mut self, other: &Written) {
        self.rows += other.rows;
        self.non_finite += other.non_finite;
        self.negative += other.negative;
        if let Some((low, high)) = other.steps {
            let (least, greatest) = self.steps.unwrap_or((low, high));
            self.steps = Some((least.min(low), greatest.max(high)));
        }
    }
}

/// What is written.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    /// Only what changed since then.
    pub since: Option<CheckpointId>,
    pub checkpoint: CheckpointId,
    pub table: TableId,
}

/// Checksums of some rows: the first, how many, and one for each file.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Sums {
    first: u64,
    rows: u64,
    sums: Vec<u32>,
}

/// A model that is written and durable.
#[derive(Debug)]
pub struct Finished {
    /// Its files, with their bytes.
    pub files: Vec<(FileOf, u64)>,
    /// The CRC-32C of each, if they were asked for.
    pub sums: Vec<u32>,
    /// What was seen of its rows.
    pub written: Written,
}

/// The files of a model that is written.
#[derive(Debug)]
pub struct Columns {
    folder: PathBuf,
    /// The file of removed keys, if only changes are asked for, and these.
    removed: Option<(FileOf, Mutex<Vec<u64>>)>,
    files: Vec<(FileOf, File, PathBuf)>,
    row_bytes: usize,
    /// Words of a row that are f32s.
    numbers: usize,
    /// Adam's step count.
    steps: Option<usize>,
    /// Checksums of what was written, if they are asked for: its first row, rows, and a sum for each file.
    sums: Option<Mutex<Vec<Sums>>>,
    next_row: AtomicU64,
    next_range: AtomicUsize,
    /// Threads that write no more.
    ended: AtomicUsize,
    /// Whether a thread has taken the syncs.
    is_synced: AtomicBool,
    written: Mutex<Written>,
}

impl Columns {
    /// Makes the files.
    ///
    /// # Errors
    /// `Io`.
    pub fn create(
        folder: &Path,
        files: Vec<FileOf>,
        removed: Option<FileOf>,
        table: &TableDescriptor,
    ) -> Result<Columns> {
        let row_bytes = files.iter().map(|file| file.content.row_bytes()).sum();
        let made = files.into_iter().map(|file| {
            let path = folder.join(&file.name);
            let made = File::create_new(&path).map_err(|e| Error::io("make", &path, e))?;
            Ok((file, made, path))
        });
        let behind = columns(table);
        let steps = behind.iter().find(|c| c.name == "t").map(|c| c.begin);
        let numbers = behind.iter().find(|c| c.is_integer).map(|c| c.begin);
        Ok(Columns {
            folder: folder.to_path_buf(),
            removed: removed.map(|file| (file, Mutex::default())),
            files: made.collect::<Result<_, Error>>()?,
            row_bytes,
            numbers: numbers.unwrap_or(table.row_f32s()),
            steps,
            sums: None,
            next_row: AtomicU64::new(0),
            next_range: AtomicUsize::new(0),
            ended: AtomicUsize::new(0),
            is_synced: AtomicBool::new(false),
            written: Mutex::new(Written::NOTHING),
        })
    }

    /// The same, which finds the CRC-32C of each file as well.
    #[must_use]
    pub fn with_sums(self, is_asked: bool) -> Columns {
        Columns {
            sums: is_asked.then(Mutex::default),
            ..self
        }
    }

    /// What the files are.
    pub fn files(&self) -> impl Iterator<Item = &FileOf> {
        self.files.iter().map(|(file, _, _)| file)
    }

    /// The work of one of `threads` that write, or of the one more that syncs meanwhile what they wrote, so
    /// that the device does not stand idle until the end.
    ///
    /// # Errors
    /// What the store says; `Io`, `NoSpace`; `Cancelled`.
    pub fn work(
        &self,
        store: &Store,
        scope: &Scope,
        threads: usize,
        crew: &Crew<'_>,
    ) -> Result<()> {
        if self.is_synced.swap(true, Ordering::Relaxed) {
            let done = self.write_ranges(store, scope, threads, crew);
            self.ended.fetch_add(1, Ordering::Relaxed);
            return done;
        }
        let mut synced = 0;
        while self.ended.load(Ordering::Relaxed) < threads {
            crew.did(0)?;
            let claimed = self.next_row.load(Ordering::Relaxed);
            if (claimed - synced) * (self.row_bytes as u64) < SYNC_BYTES {
                thread::sleep(LOOK_EVERY);
                continue;
            }
            synced = claimed;
            for (_, handle, path) in &self.files {
                let done = handle.sync_data();
                done.map_err(|e| Error::io("sync", path, e))?;
            }
        }
        Ok(())
    }

    /// Writes ranges of mix64 until none is left.
    fn write_ranges(
        &self,
        store: &Store,
        scope: &Scope,
        threads: usize,
        crew: &Crew<'_>,
    ) -> Result<()> {
        let ranges = threads * if threads == 1 { 1 } else { RANGES_PER_THREAD };
        let mut buffers = Buffers::new(self);
        let mut removed = Vec::new();
        loop {
            let range = self.next_range.fetch_add(1, Ordering::Relaxed);
            if range >= ranges {
                break;
            }
            let mut walk = Walk::open(store, scope, part_range(range, ranges))?;
            while let Some(step) = walk.next()? {
                match step {
                    Step::Row(row) => buffers.add(&row),
                    Step::Removed(key) => {
                        removed.push(key);
                        continue;
                    }
                }
                let is_full = buffers.rows == buffers.rows_max;
                if is_full {
                    buffers.write()?;
                }
                if is_full || buffers.rows.is_multiple_of(LOOK_ROWS) {
                    crew.did(buffers.take_new() * self.row_bytes as u64)?;
                }
            }
        }
        buffers.write()?;
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.add(&buffers.seen);
        if let Some((_, all)) = &self.removed {
            let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
            all.append(&mut removed);
        }
        Ok(())
    }

    /// Writes headers and makes all durable.
    ///
    /// # Errors
    /// `Io`, `NoSpace`.
    pub fn finish(self) -> Result<Finished> {
        let sums = self.sums.map(Mutex::into_inner).transpose();
        let mut sums = sums
            .unwrap_or_else(|poison| Some(poison.into_inner()))
            .unwrap_or_default();
        sums.sort_unstable();
        let mut whole = vec![0; self.files.len()];
        for Sums { rows, sums, .. } in sums {
            for ((whole, sum), (file, ..)) in whole.iter_mut().zip(sums).zip(&self.files) {
                let row_bytes = file.content.row_bytes();
                let bytes = usize::try_from(rows).unwrap_or(usize::MAX) * row_bytes;
                *whole = crc32c::crc32c_combine(*whole, sum, bytes);
            }
        }
        let written = self.written.into_inner();
        let mut written = written.unwrap_or_else(PoisonError::into_inner);
        let mut files = Vec::new();
        for (file, handle, path) in self.files {
            let head = file.head(written.rows);
            let done = handle
                .write_all_at(&head, 0)
                .and_then(|()| handle.sync_all());
            done.map_err(|e| Error::io("write", &path, e))?;
            let bytes = head.len() as u64 + written.rows * file.content.row_bytes() as u64;
            files.push((file, bytes));
        }
        if let Some((file, keys)) = self.removed {
            let keys = keys.into_inner().unwrap_or_else(PoisonError::into_inner);
            let mut bytes = file.head(keys.len() as u64);
            bytes.extend(keys.iter().flat_map(|key| key.to_le_bytes()));
            let path = self.folder.join(&file.name);
            let done = File::create_new(&path).and_then(|made| {
                made.write_all_at(&bytes, 0)?;
                made.sync_all()
            });
            done.map_err(|e| Error::io("write", &path, e))?;
            written.removed = Some(keys.len() as u64);
            files.push((file, bytes.len() as u64));
        }
        Ok(Finished {
            files,
            sums: whole,
            written,
        })
    }
}

/// The rows that are written, or the changes.
enum Walk {
    Rows(RowIter),
    Changes(Incremental),
}

enum Step<'a> {
    Row(Row<'a>),
    Removed(u64),
}

impl Walk {
    fn open(store: &Store, scope: &Scope, range: RangeInclusive<u64>) -> Result<Walk, Error> {
        let (checkpoint, table) = (scope.checkpoint, scope.table);
        Ok(match scope.since {
            None => Walk::Rows(store.rows_of(checkpoint, table, range)?),
            Some(since) => Walk::Changes(store.incremental_of(since, checkpoint, table, range)?),
        })
    }

    fn next(&mut self) -> Result<Option<Step<'_>>, Error> {
        Ok(match self {
            Walk::Rows(rows) => rows.next_row()?.map(Step::Row),
            Walk::Changes(changes) => match changes.next_change()? {
                Some(hps::Change::Row(row)) => Some(Step::Row(row)),
                Some(hps::Change::Removed { key, .. }) => Some(Step::Removed(key)),
                _ => None,
            },
        })
    }
}

/// What a thread has read, and not yet written.
struct Buffers<'a> {
    columns: &'a Columns,
    /// One for each file.
    bytes: Vec<Vec<u8>>,
    rows: usize,
    rows_max: usize,
    /// Rows since they were last counted.
    new: u64,
    seen: Written,
}

impl<'a> Buffers<'a> {
    fn new(columns: &'a Columns) -> Buffers<'a> {
        let rows_max = (BUFFER_BYTES / columns.row_bytes).max(1);
        let of = |file: &FileOf| Vec::with_capacity(rows_max * file.content.row_bytes());
        Buffers {
            columns,
            bytes: columns.files().map(of).collect(),
            rows: 0,
            rows_max,
            new: 0,
            seen: Written::NOTHING,
        }
    }

    fn take_new(&mut self) -> u64 {
        std::mem::take(&mut self.new)
    }

    fn add(&mut self, row: &Row<'_>) {
        let columns = self.columns;
        for (bytes, file) in self.bytes.iter_mut().zip(columns.files()) {
            match file.content {
                Content::Key => bytes.extend_from_slice(&row.key.to_le_bytes()),
                Content::Slot(slot) => {
                    let slot = slot.unwrap_or(row.key >> 32);
                    bytes.extend_from_slice(&slot.to_le_bytes());
                }
                Content::Words {
                    begin,
                    width,
                    change,
                    ..
                } => append(bytes, &row.values[begin..begin + width], change),
            }
        }
        let finite = row.values[..columns.numbers].iter().map(|v| v.is_finite());
        let is_finite = finite.fold(true, |all, one| all & one);
        let steps = columns.steps.map(|at| (row.values[at], row.values[at]));
        self.seen.add(&Written {
            rows: 1,
            non_finite: u64::from(!is_finite),
            negative: row.key >> 63,
            steps,
            ..Written::NOTHING
        });
        self.rows += 1;
        self.new += 1;
    }

    /// Writes what is there, behind all that was claimed before.
    fn write(&mut self) -> Result<()> {
        let rows = self.rows as u64;
        let first = self.columns.next_row.fetch_add(rows, Ordering::Relaxed);
        if let Some(sums) = &self.columns.sums {
            let own = self
                .bytes
                .iter()
                .map(|bytes| crc32c::crc32c(bytes))
                .collect();
            let mut sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
            sums.push(Sums {
                first,
                rows,
                sums: own,
            });
        }
        for (bytes, (file, handle, path)) in self.bytes.iter_mut().zip(&self.columns.files) {
            let offset = file.head_bytes as u64 + first * file.content.row_bytes() as u64;
            let done = handle.write_all_at(bytes, offset);
            done.map_err(|e| Error::io("write", path, e))?;
            bytes.clear();
        }
        self.rows = 0;
        Ok(())
    }
}

/// Appends words as bytes.
fn append(bytes: &mut Vec<u8>, values: &[f32], change: Change) {
    let start = bytes.len();
    bytes.resize(start + values.len() * change.word_bytes(), 0);
    if change == Change::Long {
        let (places, _) = bytes[start..].as_chunks_mut::<8>();
        for (place, value) in places.iter_mut().zip(values) {
            *place = i64::from(value.to_bits()).to_le_bytes();
        }
        return;
    }
    let (places, _) = bytes[start..].as_chunks_mut::<4>();
    match change {
        Change::None | Change::Long => {
            for (place, value) in places.iter_mut().zip(values) {
                *place = value.to_le_bytes();
            }
        }
        Change::Times(factor) => {
            for (place, value) in places.iter_mut().zip(values) {
                *place = (value * factor).to_le_bytes();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_moved_as_bits_or_scaled() {
        let values = [f32::from_bits(0x7fc0_1234), -0.0, 3.0];
        let mut bytes = vec![9];
        append(&mut bytes, &values, Change::None);
        assert_eq!(bytes[1..5], 0x7fc0_1234u32.to_le_bytes());
        assert_eq!(bytes[5..9], 0x8000_0000u32.to_le_bytes());
        append(&mut bytes, &values[2..], Change::Times(-0.1));
        assert_eq!(bytes[13..], (3.0f32 * -0.1).to_le_bytes());
    }

    #[test]
    fn what_threads_saw_adds_up() {
        let mut all = Written::NOTHING;
        for (rows, steps) in [(1, None), (2, Some((4.0, 4.0))), (3, Some((1.0, 9.0)))] {
            all.add(&Written {
                rows,
                non_finite: 1,
                steps,
                ..Written::NOTHING
            });
        }
        assert_eq!((all.rows, all.non_finite), (6, 3));
        assert_eq!(all.steps, Some((1.0, 9.0)));
    }
}
