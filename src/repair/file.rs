//! What can be saved of one damaged parameter file?
//!
//! - An entry is saved where its bytes verify: a record by itself, a removed key by its key block.
//! - Entries of a table that the checkpoint has not are stale: they are left out, and nobody misses them.
//! - The new file has the rank of the old one. Intervals that are lost become the file's greatest.
//! - Bytes that can't be read count as zeros, which never verify.

use std::io::ErrorKind;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use super::holes::read_around;
use crate::error::{Error, Result};
use crate::format::footer::{Footer, Run, RunKind};
use crate::format::manifest::FileMeta;
use crate::format::param_file::{self, KEYS_PER_BLOCK};
use crate::format::{FileIdentity, data_file_name};
use crate::io::{AlignedBuffer, Directory, DiskFile, OpenMode, Queue, is_no_file, is_unreadable};
use crate::ssd::pieces::aligned;
use crate::ssd::tables::TableState;
use crate::ssd::writer::FileWriter;
use crate::units::{CheckpointId, FileNumber, mix64, to_usize};

const BLOCK_BYTES: u64 = 4096;
const WINDOW_BYTES: u64 = 1 << 20;

/// What is written of a file.
#[derive(Debug, Default)]
pub(super) struct SavedFile {
    /// The new file; `None` if nothing was left.
    pub written: Option<FileMeta>,
    /// Entries in it.
    pub entries: u64,
    /// Whether some of them have a guessed interval.
    pub guessed: bool,
    /// Entries that are lost, by (table, key).
    pub lost: Vec<(u32, u64)>,
    /// Entry numbers (of the old file) that are lost and whose keys are unknown, rising.
    pub nameless: Vec<Range<u32>>,
}

impl SavedFile {
    fn add_nameless(&mut self, entry: u64) {
        let entry = u32::try_from(entry).unwrap_or(u32::MAX);
        match self.nameless.last_mut() {
            Some(range) if range.end == entry => range.end += 1,
            _ => self.nameless.push(entry..entry.saturating_add(1)),
        }
    }
}

/// Where and as what a file is written.
pub(super) struct Target<'a> {
    pub queue: &'a mut dyn Queue,
    pub directory: &'a Arc<dyn Directory>,
    pub store: [u8; 16],
    pub number: FileNumber,
    /// The checkpoint that the new store holds.
    pub checkpoint: CheckpointId,
}

impl<'a> Target<'a> {
    /// Starts the file.
    pub fn writer(&mut self) -> Result<FileWriter<'_>> {
        let identity = FileIdentity::new(self.store, self.number);
        let name = data_file_name(self.number);
        FileWriter::create(self.directory, self.queue, name, identity, 0)
    }
}

/// Ends a file and makes it durable; `old` gives rank and directory.
pub(super) fn finish(
    writer: FileWriter<'_>,
    old: &FileMeta,
    number: FileNumber,
    checkpoint: CheckpointId,
) -> Result<FileMeta> {
    let done = writer.finish()?;
    done.file
        .sync()
        .map_err(|e| Error::io("sync", &done.path, e))?;
    Ok(done.meta(number, old.directory, old.rank, checkpoint))
}

/// A file of which any part may be unreadable.
struct Source {
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    window: AlignedBuffer,
    start: u64,
    filled: u64,
    /// The first error that is no damage: what was read counts for nothing.
    failed: Option<std::io::Error>,
}

impl Source {
    fn open(place: &dyn Directory, name: &str) -> Result<Option<Source>> {
        let path = &*place.path().join(name);
        let file = match place.open(name, OpenMode::ReadDirect) {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) if is_no_file(&e) || is_unreadable(&e) => return Ok(None),
            Err(e) => return Err(Error::io("open", path, e)),
        };
        Ok(Some(Source {
            file,
            path: path.to_path_buf(),
            window: aligned(path, WINDOW_BYTES)?,
            start: 0,
            filled: 0,
            failed: None,
        }))
    }

    /// The bytes at `[offset, offset + length)`; zeros where they can't be read.
    fn bytes(&mut self, offset: u64, length: usize) -> &[u8] {
        let end = offset + length as u64;
        if offset < self.start || end > self.start + self.filled {
            self.fill(offset / BLOCK_BYTES * BLOCK_BYTES);
        }
        let at = to_usize(offset - self.start);
        self.window.get(at..at + length).unwrap_or(&[])
    }

    /// Where it ends: nothing behind the end of a file that was cut is known.
    fn end(&mut self) -> u64 {
        match self.file.bytes() {
            Ok(bytes) => bytes,
            Err(error) => {
                if !is_unreadable(&error) {
                    self.failed.get_or_insert(error);
                }
                0
            }
        }
    }

    /// Fails where something was taken for lost that may be there.
    fn check(&mut self) -> Result<()> {
        match self.failed.take() {
            Some(error) => Err(Error::io("read", &self.path, error)),
            None => Ok(()),
        }
    }

    fn fill(&mut self, start: u64) {
        self.start = start;
        self.filled = self.window.len() as u64;
        let read = read_around(&*self.file, &mut self.window, start, 4096);
        if let Err(error) = read {
            self.window.fill(0);
            self.failed.get_or_insert(error);
        }
    }
}

/// Keys and intervals by entry number, where their key block verifies.
struct Entries {
    keys: Vec<u64>,
    intervals: Vec<u32>,
    known: Vec<bool>,
}

impl Entries {
    /// `start`: where the key blocks are; `end`: of the file.
    fn read(
        source: &mut Source,
        identity: &FileIdentity,
        meta: &FileMeta,
        (start, end): (u64, u64),
    ) -> Entries {
        let count = to_usize(meta.rows + meta.tombstones);
        let mut entries = Entries {
            keys: Vec::new(),
            intervals: Vec::new(),
            known: Vec::new(),
        };
        let mut offset = start;
        while entries.keys.len() < count && offset < end {
            let before = entries.keys.len();
            let take = (count - before).min(KEYS_PER_BLOCK);
            let (keys, intervals) = (&mut entries.keys, &mut entries.intervals);
            let block = source.bytes(offset, 4096);
            let read = param_file::decode_key_block(block, identity, offset, keys, intervals);
            let known = read.is_ok() && keys.len() == before + take;
            keys.resize(before + take, 0);
            intervals.resize(before + take, 0);
            entries.known.resize(before + take, known);
            offset += BLOCK_BYTES;
        }
        entries
    }

    fn get(&self, entry: u64) -> Option<(u64, u32)> {
        let i = to_usize(entry);
        let known = self.known.get(i).copied().unwrap_or(false);
        known.then(|| (self.keys[i], self.intervals[i]))
    }
}

/// What is where in a file.
#[derive(Debug, PartialEq)]
struct Places {
    runs: Vec<Run>,
    keys_offset: u64,
}

/// What the footer says, where it verifies and fits the tables.
fn places_of_footer(
    source: &mut Source,
    identity: &FileIdentity,
    meta: &FileMeta,
    tables: &[TableState],
) -> Option<Places> {
    let length = usize::try_from(meta.bytes.checked_sub(meta.footer_offset)?).ok()?;
    let mut bytes = vec![0; length];
    for (offset, block) in (meta.footer_offset..)
        .step_by(4096)
        .zip(bytes.chunks_mut(4096))
    {
        block.copy_from_slice(source.bytes(offset, block.len()));
    }
    let (footer, checksum) = Footer::decode(&bytes, identity, meta.footer_offset).ok()?;
    let fits = footer.runs.iter().all(|run| {
        let stride = tables
            .get(run.table as usize)
            .map(|t| param_file::record_stride(t.descriptor.row_bytes()));
        match run.kind {
            RunKind::Rows => stride == Some(run.stride as usize),
            RunKind::Tombstones => stride.is_some(),
        }
    });
    let same = checksum == meta.footer_checksum && footer.entries == meta.rows + meta.tombstones;
    (fits && same).then_some(Places {
        runs: footer.runs,
        keys_offset: footer.keys_offset,
    })
}

/// What is where in a file whose footer is lost: only a store of one table leaves no doubt. Sections may
/// lie between the key blocks and the footer.
fn places_of_one_table(meta: &FileMeta, tables: &[TableState]) -> Option<Places> {
    let [table] = tables else {
        return None;
    };
    let stride = param_file::record_stride(table.descriptor.row_bytes()) as u64;
    let end = BLOCK_BYTES + meta.rows * stride;
    let keys_offset = end.next_multiple_of(BLOCK_BYTES);
    let keys_bytes = param_file::key_blocks(meta.rows + meta.tombstones) * BLOCK_BYTES;
    if keys_offset + keys_bytes > meta.footer_offset {
        return None;
    }
    let run = |kind, first_entry, entries, offset, stride| Run {
        table: 0,
        kind,
        first_entry,
        entries,
        offset,
        stride,
    };
    let stride = u32::try_from(stride).ok()?;
    let rows = run(RunKind::Rows, 0, meta.rows, BLOCK_BYTES, stride);
    let tombstones = run(RunKind::Tombstones, meta.rows, meta.tombstones, end, 0);
    let both = [rows, tombstones].into_iter();
    Some(Places {
        runs: both.filter(|run| run.entries > 0).collect(),
        keys_offset,
    })
}

/// Writes what verifies of a file into a new one. `tables`: those of the checkpoint that the new file is
/// for; no other one needs it.
///
/// # Errors
/// `Io`, `NoSpace` of the new file; nothing that is wrong with the old one.
pub(super) fn save(
    place: Option<&dyn Directory>,
    identity: &FileIdentity,
    old: &FileMeta,
    tables: &[TableState],
    target: &mut Target<'_>,
) -> Result<SavedFile> {
    let mut saved = SavedFile::default();
    let all = u32::try_from(old.rows + old.tombstones).unwrap_or(u32::MAX);
    let name = data_file_name(old.number);
    let source = place.map(|place| Source::open(place, &name)).transpose()?;
    let Some(mut source) = source.flatten() else {
        saved.nameless.push(0..all);
        return Ok(saved);
    };
    let end = source.end();
    let places = places_of_footer(&mut source, identity, old, tables)
        .or_else(|| places_of_one_table(old, tables));
    source.check()?;
    let Some(Places { runs, keys_offset }) = places else {
        saved.nameless.push(0..all);
        return Ok(saved);
    };
    let entries = Entries::read(&mut source, identity, old, (keys_offset, end));
    source.check()?;
    let (number, checkpoint) = (target.number, target.checkpoint);
    let mut writer = target.writer()?;
    let is_there = |run: &&Run| !tables[run.table as usize].is_dropped;
    for run in runs.iter().filter(is_there) {
        let floats = tables[run.table as usize].descriptor.row_bytes() / 4;
        let mut copy = Copy {
            source: &mut source,
            identity,
            entries: &entries,
            interval: old.interval_max,
            row: vec![0.0; floats],
            last: None,
            saved: &mut saved,
        };
        for entry in run.first_entry..run.first_entry + run.entries {
            copy.entry(run, entry, &mut writer);
        }
    }
    source.check()?;
    saved.entries = writer.entries() as u64;
    if saved.entries > 0 {
        saved.written = Some(finish(writer, old, number, checkpoint)?);
    }
    Ok(saved)
}

/// Copies the entries of one run.
struct Copy<'a> {
    source: &'a mut Source,
    identity: &'a FileIdentity,
    entries: &'a Entries,
    /// Stands for an interval that is lost.
    interval: u32,
    row: Vec<f32>,
    /// mix64 of the last key written.
    last: Option<u64>,
    saved: &'a mut SavedFile,
}

impl Copy<'_> {
    fn entry(&mut self, run: &Run, entry: u64, writer: &mut FileWriter<'_>) {
        let known = self.entries.get(entry);
        let found = match run.record_offset(entry) {
            None => known.map(|(key, _)| key),
            Some(offset) => {
                let bytes = self.source.bytes(offset, run.stride as usize);
                let expected = known.map(|(key, _)| key);
                let (row, identity) = (&mut self.row, self.identity);
                param_file::decode_record(bytes, row, identity, offset, expected).ok()
            }
        };
        let rises = |key: &u64| self.last.is_none_or(|last| last < mix64(*key));
        let Some(key) = found.filter(rises) else {
            match known {
                Some((key, _)) => self.saved.lost.push((run.table, key)),
                None => self.saved.add_nameless(entry),
            }
            return;
        };
        self.last = Some(mix64(key));
        self.saved.guessed |= known.is_none();
        let interval = known.map_or(self.interval, |(_, interval)| interval);
        match run.kind {
            RunKind::Rows => writer.row(run.table, key, interval, &self.row),
            RunKind::Tombstones => writer.tombstone(run.table, key, interval),
        }
    }
}

#[cfg(test)]
mod tests;
