//! How is an index snapshot written?
//!
//! Its parts are written at the same time, each into the data directory after that whose keys it has.
//!
//! Invariants:
//! - All parts are synced before one of them is named; where one fails, all of them are removed.

use std::collections::HashSet;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::Ssd;
use super::commit::Captured;
use super::data_file::{DataFile, tables_of};
use super::edits::SnapshotPart;
use super::index_snapshot::{KeyClasses, SnapshotScan};
use super::scan::{Merge, RunCursor};
use super::snapshot_ranges::tell_damaged;
use super::snapshot_room::is_due;
use crate::error::{Error, Result};
use crate::format::footer::RunKind;
use crate::format::index_snapshot::{
    COVERED_PER_BLOCK, ENTRIES_PER_BLOCK, EntryPlace, SnapshotEntry, SnapshotTally,
    encode_covered_block, encode_entry_block, encode_part_header, encode_snapshot_footer,
};
use crate::format::{BLOCK_BYTES, FileIdentity};
use crate::io::{DiskFile, OpenMode};
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, by_team, step_aside, thread};
use crate::units::{CheckpointId, FileNumber, mix64, narrow, part_range};

/// Bytes written at a time.
const CHUNK_BYTES: usize = 256 << 10;
/// Bytes after which others may have the processor.
const ASIDE_BYTES: usize = 4 * BLOCK_BYTES;
/// Memory for the key blocks of all young runs while a snapshot is written; what is read of them
/// takes as much again.
const KEYS_BYTES: u64 = 4 << 20;
/// Longest rest after a chunk.
const REST_MAX: Duration = Duration::from_millis(20);

/// What one part is made from.
struct Source<'a> {
    /// The data directory whose keys it will have.
    directory: usize,
    number: FileNumber,
    checkpoint: CheckpointId,
    /// The files of that directory in the captured version, by number.
    files: Vec<Arc<DataFile>>,
    /// The part before it.
    old: Option<SnapshotScan>,
    /// Files that this does not cover.
    young: Vec<Arc<DataFile>>,
    /// Parts that are written at the same time.
    beside: usize,
    /// Who knows how often rows are used, if that is wanted.
    classes: Option<&'a dyn KeyClasses>,
}

impl Source<'_> {
    fn young_bytes(&self) -> u64 {
        self.young.iter().map(|f| f.entries() * 12).sum()
    }

    fn old_bytes(&self) -> u64 {
        self.old.as_ref().map_or(0, |scan| scan.reference.bytes)
    }

    /// No fewer bytes than the part will have.
    fn expected_bytes(&self) -> u64 {
        let entries = self.young.iter().map(|f| f.entries()).sum::<u64>();
        let blocks = entries / ENTRIES_PER_BLOCK as u64 + 64;
        self.old_bytes() + blocks * BLOCK_BYTES as u64 + self.files.len() as u64 * 9
    }
}

impl Ssd {
    /// Writes a new snapshot when reopening would read too many key blocks beside the old one.
    ///
    /// # Errors
    /// `Poisoned` after a failed sync; every other failure only leaves the old snapshot in force.
    pub(super) fn renew_snapshot(
        &self,
        captured: &Captured,
        writers: usize,
        classes: Option<&dyn KeyClasses>,
    ) -> Result<Option<Vec<SnapshotPart>>> {
        let mut sources = self.sources(captured, classes);
        let old_bytes = sources.iter().map(Source::old_bytes).sum();
        // Files may have been compacted since the version was captured: no fewer than before.
        let live = captured.files.iter().map(|f| f.live_entries()).sum::<u64>();
        let new_bytes = (live * EntryPlace::BYTES as u64).max(old_bytes);
        let young_bytes = sources.iter().map(Source::young_bytes).sum();
        let flushed_bytes = self.snapshots.flushed_bytes();
        if !is_due(
            &self.thresholds,
            (old_bytes, new_bytes),
            young_bytes,
            flushed_bytes,
            classes.is_some(),
        ) {
            return Ok(None);
        }
        let expected_bytes = sources.iter().map(Source::expected_bytes).sum();
        let room =
            |source: &Source<'_>| self.check_snapshot_room(self.home_of(source), 0, expected_bytes);
        if sources.iter().try_for_each(room).is_err() {
            tracing::debug!(expected_bytes, "no room for an index snapshot");
            return Ok(None);
        }
        let writers = writers.clamp(1, sources.len().max(1));
        for source in &mut sources {
            source.number = self.take_number()?;
            source.beside = writers;
        }
        let made: Vec<SnapshotPart> = sources.iter().map(SnapshotPart::of).collect();
        match self.write_parts(sources, writers) {
            Ok(parts) => Ok(Some(parts)),
            Err(error) => {
                // After a failed sync, what is on disk is not known.
                self.check_writable()?;
                tracing::warn!(%error, "no new index snapshot; the next open reads more key blocks");
                self.unlink_parts(&made);
                Ok(None)
            }
        }
    }

    /// What the parts of a captured version are made from, by data directory. An image of version 1
    /// is not looked at: the parts that replace it come from key blocks.
    fn sources<'a>(
        &self,
        captured: &Captured,
        classes: Option<&'a dyn KeyClasses>,
    ) -> Vec<Source<'a>> {
        let in_force = self.snapshot_in_force();
        let directories = self.directories.len();
        let source = |(directory, index): (usize, u32)| {
            let of = |f: &&Arc<DataFile>| f.meta.directory == index;
            let mut files: Vec<_> = captured.files.iter().filter(of).cloned().collect();
            files.sort_unstable_by_key(|f| f.meta.number);
            let range = part_range(directory, directories);
            let fits = |f: &Arc<DataFile>| {
                range.contains(&f.meta.hash_min) && range.contains(&f.meta.hash_max)
            };
            if files.is_empty() || !files.iter().all(fits) {
                return None;
            }
            let part = in_force.iter().find(|p| p.directory == Some(index));
            let old = part.and_then(|part| self.open_snapshot_part(*part).ok());
            let covered = old.as_ref().map_or(&[][..], |scan| &scan.covered);
            let known: HashSet<FileNumber> = covered.iter().copied().collect();
            let is_young = |f: &&Arc<DataFile>| !known.contains(&f.meta.number);
            Some(Source {
                directory,
                number: FileNumber::NONE,
                checkpoint: captured.id,
                young: files.iter().filter(is_young).cloned().collect(),
                files,
                old,
                beside: 1,
                classes,
            })
        };
        (0..directories).zip(0..).filter_map(source).collect()
    }

    /// The data directory that a part lies in.
    fn home_of(&self, source: &Source<'_>) -> usize {
        let part = SnapshotPart::of(source);
        part.home(self.directories.len()).unwrap_or(0)
    }

    /// Writes parts with so many threads; gives them in their order.
    fn write_parts(&self, sources: Vec<Source<'_>>, writers: usize) -> Result<Vec<SnapshotPart>> {
        let count = sources.len();
        let sources: Vec<_> = sources.into_iter().map(|s| Mutex::new(Some(s))).collect();
        let next = AtomicUsize::new(0);
        let work = || -> Result<Vec<SnapshotPart>> {
            let _alarm = self.poison.alarm();
            let mut parts = Vec::new();
            while let Some(source) = sources.get(next.fetch_add(1, Ordering::Relaxed)) {
                let taken = source.lock().unwrap_or_else(PoisonError::into_inner).take();
                let Some(source) = taken else { continue };
                match self.write_part(source) {
                    Ok(part) => parts.push(part),
                    Err(error) => {
                        // The others are not begun.
                        next.store(count, Ordering::Relaxed);
                        return Err(error);
                    }
                }
            }
            Ok(parts)
        };
        let results = by_team("hps-snapshot", (0..writers.max(1)).map(|_| &work));
        let parts: Result<Vec<_>> = results.into_iter().collect();
        let mut parts: Vec<_> = parts?.into_iter().flatten().collect();
        parts.sort_unstable_by_key(|part| part.directory);
        Ok(parts)
    }

    /// Writes one part, and syncs it. Where the one before it turns out to be damaged, the new one
    /// is made from key blocks alone.
    fn write_part(&self, mut source: Source<'_>) -> Result<SnapshotPart> {
        let old = source.old.as_ref().map(|scan| scan.path.clone());
        let error = match self.try_write_part(&mut source) {
            Err(error) if old.is_some_and(|old| is_about(&error, &old)) => error,
            result => return result,
        };
        tell_damaged(&error);
        let part = SnapshotPart::of(&source);
        self.unlink_parts(&[part]);
        source.young = source.files.clone();
        self.try_write_part(&mut source)
    }

    fn try_write_part(&self, source: &mut Source<'_>) -> Result<SnapshotPart> {
        let mut part = SnapshotPart::of(source);
        let name = part.file_name();
        let place = self.place_of(&part);
        let path = place.path().join(&name);
        let file = place
            .open(&name, OpenMode::Create)
            .map_err(|e| Error::io("create", &path, e))?;
        let numbers: Vec<FileNumber> = source.files.iter().map(|f| f.meta.number).collect();
        let covered = narrow(numbers.len());
        let identity = self.identity(source.number);
        let directory = part.directory.unwrap_or(0);
        let (header, tally) = encode_part_header(&identity, source.checkpoint, directory, covered);
        let mut writer = SnapshotWriter {
            ssd: self,
            home: self.home_of(source),
            beside: source.beside,
            file,
            path: &path,
            identity,
            tally,
            out: header.to_vec(),
            written: 0,
            table: 0,
            entries: Vec::new(),
            classes: source.classes,
            since: Instant::now(),
        };
        for chunk in numbers.chunks(COVERED_PER_BLOCK) {
            let start = writer.out.len();
            writer.out.resize(start + BLOCK_BYTES, 0);
            let block = &mut writer.out[start..];
            encode_covered_block(block, chunk, &writer.identity, &mut writer.tally);
        }
        merge(&mut writer, source, &numbers)?;
        (part.bytes, part.checksum) = writer.finish()?;
        self.fatal("sync", &path, writer.file.sync())?;
        Ok(part)
    }
}

/// Whether a read of this file failed.
fn is_about(error: &Error, file: &Path) -> bool {
    match error {
        Error::Corrupt { path, .. } | Error::Io { path, .. } => path == file,
        _ => false,
    }
}

impl SnapshotPart {
    /// The part that will be made from a source; its bytes and checksum are not known yet.
    fn of(source: &Source<'_>) -> SnapshotPart {
        SnapshotPart {
            directory: u32::try_from(source.directory).ok(),
            number: source.number,
            bytes: 0,
            checksum: 0,
        }
    }
}

struct SnapshotWriter<'a> {
    ssd: &'a Ssd,
    /// The data directory that the part lies in.
    home: usize,
    /// Parts that are written at the same time.
    beside: usize,
    file: Arc<dyn DiskFile>,
    path: &'a Path,
    identity: FileIdentity,
    tally: SnapshotTally,
    out: Vec<u8>,
    written: u64,
    table: u32,
    entries: Vec<SnapshotEntry>,
    classes: Option<&'a dyn KeyClasses>,
    /// When it began with the chunk.
    since: Instant,
}

impl SnapshotWriter<'_> {
    fn push(&mut self, table: u32, entry: SnapshotEntry) -> Result<()> {
        if table != self.table || self.entries.len() == ENTRIES_PER_BLOCK {
            self.close_block()?;
        }
        self.table = table;
        self.entries.push(entry);
        Ok(())
    }

    fn close_block(&mut self) -> Result<()> {
        if self.entries.is_empty() {
            return Ok(());
        }
        let start = self.out.len();
        self.out.resize(start + BLOCK_BYTES, 0);
        let block = &mut self.out[start..];
        if let Some(classes) = self.classes {
            classes.tell(self.table, &mut self.entries);
        }
        let (table, tally) = (self.table, &mut self.tally);
        encode_entry_block(block, table, &self.entries, &self.identity, tally);
        self.entries.clear();
        if self.out.len().is_multiple_of(ASIDE_BYTES) {
            step_aside();
        }
        if self.out.len() >= CHUNK_BYTES {
            self.write_out()?;
        }
        Ok(())
    }

    fn write_out(&mut self) -> Result<()> {
        let bytes = self.written + self.out.len() as u64;
        self.ssd
            .check_snapshot_room(self.home, self.written, bytes)?;
        self.file
            .write_at(&self.out, self.written)
            .map_err(|e| Error::io("write", self.path, e))?;
        self.written += self.out.len() as u64;
        self.out.clear();
        if self.ssd.snapshots.is_paced() {
            // All together, writers work half of the time.
            let beside: u32 = narrow(self.beside);
            let rest = self.since.elapsed() * (2 * beside - 1);
            thread::sleep(rest.min(REST_MAX * beside));
        }
        self.since = Instant::now();
        Ok(())
    }

    fn finish(&mut self) -> Result<(u64, u64)> {
        self.close_block()?;
        let (footer, checksum) = encode_snapshot_footer(&self.identity, &self.tally);
        self.out.extend_from_slice(&footer);
        self.write_out()?;
        Ok((self.written, checksum))
    }
}

/// The old part's entries of one table, in order, as long as their file is in the version.
struct Old<'a> {
    ssd: &'a Ssd,
    scan: Option<SnapshotScan>,
    at: usize,
    /// Of each file that the old part covers and the new one too: its rank, and its ordinal in the
    /// new one.
    stay: Vec<Option<(u64, u32)>>,
}

impl Old<'_> {
    /// The entry it stands at, with its rank; entries of files that are gone are stepped over.
    fn peek(&mut self, table: u32) -> Result<Option<(u64, u64, SnapshotEntry)>> {
        let Some(scan) = &mut self.scan else {
            return Ok(None);
        };
        loop {
            if self.at == scan.entries.len() {
                self.at = 0;
                // Nothing may be written for as long as entries are stepped over.
                self.ssd.check_snapshot_wanted()?;
                if !scan.step()? {
                    self.scan = None;
                    return Ok(None);
                }
                continue;
            }
            if scan.table > table {
                return Ok(None);
            }
            let entry = scan.entries[self.at];
            let stays = self.stay.get(entry.ordinal as usize).copied().flatten();
            match stays {
                Some((rank, ordinal)) if scan.table == table => {
                    // How it was used before the last snapshot says nothing of now.
                    let entry = SnapshotEntry {
                        ordinal,
                        class: 0,
                        ..entry
                    };
                    return Ok(Some((mix64(entry.key), rank, entry)));
                }
                _ => self.at += 1,
            }
        }
    }
}

fn ordinal(numbers: &[FileNumber], number: FileNumber) -> u32 {
    numbers.binary_search(&number).map_or(u32::MAX, narrow)
}

fn merge(
    writer: &mut SnapshotWriter<'_>,
    source: &mut Source<'_>,
    numbers: &[FileNumber],
) -> Result<()> {
    let scan = source.old.take();
    let covered = scan.as_ref().map_or(&[][..], |scan| &scan.covered);
    let stays = |number: &FileNumber| {
        let ordinal = numbers.binary_search(number).ok()?;
        Some((source.files[ordinal].meta.rank, narrow(ordinal)))
    };
    let mut old = Old {
        ssd: writer.ssd,
        stay: covered.iter().map(stays).collect(),
        scan,
        at: 0,
    };
    // What is written, and what is read of the part before.
    let scans = 1 + usize::from(old.scan.is_some());
    let in_use = &old.ssd.snapshots.in_use;
    let mut held = in_use.begin();
    let young = &source.young;
    // A cursor holds an eighth of its window in key blocks.
    let share = KEYS_BYTES / (source.beside * young.len()).max(1) as u64;
    let window = share.clamp(16 << 10, 512 << 10) * 8;
    let view = writer.ssd.versions().tables.view(source.checkpoint);
    let there = |table: &u32| view.get(*table as usize).is_none_or(|t| !t.is_dropped);
    for table in tables_of(&source.files).into_iter().filter(there) {
        let mut merge = Merge::new(young, table, window)?;
        held.set(merge.bytes() + scans * CHUNK_BYTES);
        // Of each cursor: its file's ordinal and rank, and whether it has tombstones.
        let about = |cursor: &RunCursor| {
            let meta = &cursor.file.meta;
            let is_tombstones = cursor.run.kind == RunKind::Tombstones;
            (ordinal(numbers, meta.number), meta.rank, is_tombstones)
        };
        let cursors: Vec<(u32, u64, bool)> = merge.cursors().iter().map(about).collect();
        loop {
            let index = merge.newest()?;
            let new = match index {
                Some(index) => {
                    let (ordinal, rank, tombstone) = cursors[index];
                    merge.cursor(index).entry().map(|e| {
                        let entry = SnapshotEntry {
                            key: e.key,
                            ordinal,
                            tombstone,
                            entry: e.number,
                            class: 0,
                        };
                        (e.hash, rank, entry)
                    })
                }
                None => None,
            };
            let before = old.peek(table)?;
            let (take_new, take_old) = match (&new, &before) {
                (None, None) => break,
                (Some(_), None) => (true, false),
                (None, Some(_)) => (false, true),
                (Some(n), Some(o)) => (n.0 <= o.0, o.0 <= n.0),
            };
            let best = match (new.filter(|_| take_new), before.filter(|_| take_old)) {
                (Some(n), Some(o)) if n.1 > o.1 => n.2,
                (_, Some(o)) => o.2,
                (Some(n), None) => n.2,
                (None, None) => break,
            };
            writer.push(table, best)?;
            if take_old {
                old.at += 1;
            }
            if take_new {
                merge.step()?;
            }
        }
    }
    // To its end, where the old part as a whole is verified.
    while old.peek(u32::MAX)?.is_some() {
        old.at += 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
