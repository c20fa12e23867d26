//! How does opening avoid sorting out every key block?
//!
//! An image lists key and place of every live entry of one checkpoint's version, in the order of
//! (table, mix64(key)). It is made by merging the image before it with the key blocks of younger
//! files, and never looks at the live index.
//!
//! Invariants:
//! - It is a cache: missing, damaged or of a later version than the one opened, it is ignored and
//!   the key blocks give the same index.
//! - A place in a file that has left the version counts for nothing: whatever left it is in a
//!   younger file.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Ssd;
use super::commit::Captured;
use super::data_file::{DataFile, tables_of};
use super::edits::ImageRef;
use super::image_room::is_due;
use super::pieces::{aligned, read_exact};
use super::scan::Merge;
use crate::error::{Error, Result};
use crate::format::footer::RunKind;
use crate::format::image::{
    self, COVERED_PER_BLOCK, ENTRIES_PER_BLOCK, EntryPlace, ImageEntry, ImageFooter, ImageTally,
    encode_covered_block, encode_entry_block, encode_image_footer, encode_image_header,
};
use crate::format::{BLOCK_BYTES, FileIdentity, FileKind, file_name};
use crate::io::{AlignedBuffer, Directory, DiskFile, OpenMode};
use crate::sync::thread;
use crate::units::{CheckpointId, mix64};

/// Bytes written or read at a time.
const CHUNK_BYTES: usize = 256 << 10;
/// Memory for the key blocks of all young runs while an image is written.
const KEYS_BYTES: u64 = 32 << 20;
/// Longest rest after a chunk.
const REST_MAX: Duration = Duration::from_millis(20);

/// An open image: file, path, identity, reference, tally after the file numbers, file numbers.
type Parts = (
    Arc<dyn DiskFile>,
    PathBuf,
    FileIdentity,
    ImageRef,
    ImageTally,
    Vec<u64>,
);

/// Reads an image block by block.
#[derive(Debug)]
pub struct ImageScan {
    file: Arc<dyn DiskFile>,
    /// Where it is.
    pub(crate) path: PathBuf,
    identity: FileIdentity,
    reference: ImageRef,
    tally: ImageTally,
    /// The checkpoint whose version it lists.
    pub checkpoint: CheckpointId,
    /// Numbers of the files of that version.
    pub covered: Vec<u64>,
    chunk: AlignedBuffer,
    chunk_offset: u64,
    chunk_bytes: u64,
    /// Table of the entries of the last step.
    pub table: u32,
    /// These entries.
    pub entries: Vec<ImageEntry>,
}

impl ImageScan {
    /// Opens an image; its header and its list of files are verified.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, `Unsupported`.
    pub(crate) fn open(
        root: &dyn Directory,
        store: &[u8; 16],
        reference: ImageRef,
    ) -> Result<ImageScan> {
        let name = file_name(FileKind::Image, reference.number);
        let path = root.path().join(&name);
        let file = root
            .open(&name, OpenMode::ReadDirect)
            .map_err(|e| Error::io("open", &path, e))?;
        let bytes = file.bytes().map_err(|e| Error::io("measure", &path, e))?;
        let whole = bytes.is_multiple_of(BLOCK_BYTES as u64) && bytes >= 3 * BLOCK_BYTES as u64;
        if bytes != reference.bytes || !whole {
            return Err(Error::corrupt(
                &path,
                bytes,
                "not as long as the manifest says",
            ));
        }
        let identity = FileIdentity::new(*store, reference.number);
        let mut chunk = aligned(&path, bytes.min(CHUNK_BYTES as u64))?;
        let block = &mut chunk[..BLOCK_BYTES];
        read_exact(&*file, &path, block, 0)?;
        let (checkpoint, tally) =
            image::decode_image_header(block, &identity).map_err(|e| e.at(&path))?;
        let mut scan = ImageScan {
            file,
            path,
            identity,
            reference,
            tally,
            checkpoint,
            covered: Vec::new(),
            chunk,
            chunk_offset: 0,
            chunk_bytes: 0,
            table: 0,
            entries: Vec::new(),
        };
        while scan.tally.covered_left() > 0 {
            let at = scan.load_block()?;
            let block = &scan.chunk[at..at + BLOCK_BYTES];
            let (tally, covered) = (&mut scan.tally, &mut scan.covered);
            image::decode_covered_block(block, &scan.identity, tally, covered)
                .map_err(|e| e.at(&scan.path))?;
        }
        Ok(scan)
    }

    /// Where in the chunk the next block is; reads on when it is not there.
    fn load_block(&mut self) -> Result<usize> {
        let offset = self.tally.next_offset();
        let held = self.chunk_offset + self.chunk_bytes;
        if offset < self.chunk_offset || offset + BLOCK_BYTES as u64 > held {
            let left = self.reference.bytes.saturating_sub(offset);
            let bytes = left.min(self.chunk.len() as u64);
            if bytes < BLOCK_BYTES as u64 {
                return Err(Error::corrupt(&self.path, offset, "the image ends early"));
            }
            let chunk = &mut self.chunk[..usize::try_from(bytes).unwrap_or(usize::MAX)];
            (self.chunk_offset, self.chunk_bytes) = (offset, bytes);
            read_exact(&*self.file, &self.path, chunk, offset)?;
        }
        Ok(usize::try_from(offset - self.chunk_offset).unwrap_or(usize::MAX))
    }

    /// What is needed to read its entries in another way.
    pub(super) fn into_parts(self) -> Parts {
        let (file, path, identity) = (self.file, self.path, self.identity);
        (
            file,
            path,
            identity,
            self.reference,
            self.tally,
            self.covered,
        )
    }

    /// Reads the next block of entries; false at the end, where the whole was verified.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub(crate) fn step(&mut self) -> Result<bool> {
        self.entries.clear();
        let offset = self.tally.next_offset();
        let at = self.load_block()?;
        let block = &self.chunk[at..at + BLOCK_BYTES];
        if offset + BLOCK_BYTES as u64 == self.reference.bytes {
            let footer = ImageFooter::decode(block, &self.identity, offset)
                .and_then(|f| f.check(&self.tally).map(|()| f))
                .map_err(|e| e.at(&self.path))?;
            if footer.checksum != self.reference.checksum {
                return Err(Error::corrupt(&self.path, offset, "not the image in force"));
            }
            return Ok(false);
        }
        let entries = &mut self.entries;
        self.table = image::decode_entry_block(block, &self.identity, &mut self.tally, entries)
            .map_err(|e| e.at(&self.path))?;
        Ok(true)
    }
}

impl Ssd {
    pub(super) fn open_image(&self, reference: ImageRef) -> Result<ImageScan> {
        ImageScan::open(&*self.root, &self.store, reference)
    }

    pub(super) fn image_in_force(&self) -> Option<ImageRef> {
        self.manifest().image
    }

    /// Writes a new image when reopening would read too many key blocks beside the old one.
    ///
    /// # Errors
    /// `Poisoned` after a failed sync; every other failure only leaves the old image in force.
    pub(super) fn renew_image(&self, captured: &Captured) -> Result<Option<ImageRef>> {
        let old = self.image_in_force().and_then(|r| self.open_image(r).ok());
        let covered: &[u64] = old.as_ref().map_or(&[], |scan| &scan.covered);
        let known: std::collections::HashSet<u64> = covered.iter().copied().collect();
        let young: Vec<Arc<DataFile>> = captured
            .files
            .iter()
            .filter(|f| !known.contains(&f.meta.number))
            .cloned()
            .collect();
        let young_bytes: u64 = young.iter().map(|f| f.entries() * 12).sum();
        let old_bytes = old.as_ref().map_or(0, |scan| scan.reference.bytes);
        // Files may have been compacted since the version was captured: no fewer than before.
        let live = captured.files.iter().map(|f| f.live_entries()).sum::<u64>();
        let new_bytes = (live * EntryPlace::BYTES as u64).max(old_bytes);
        let flushed_bytes = self.images.flushed_bytes();
        if !is_due(
            &self.thresholds,
            (old_bytes, new_bytes),
            young_bytes,
            flushed_bytes,
        ) {
            return Ok(None);
        }
        let entries = young.iter().map(|f| f.entries()).sum::<u64>();
        let expected_bytes = old_bytes
            + (entries / ENTRIES_PER_BLOCK as u64 + 64) * BLOCK_BYTES as u64
            + captured.files.len() as u64 * 9;
        if self.check_image_room(0, expected_bytes).is_err() {
            tracing::debug!(expected_bytes, "no room for an index image");
            return Ok(None);
        }
        let number = self.take_number()?;
        let name = file_name(FileKind::Image, number);
        let path = self.root.path().join(&name);
        let create = self.root.open(&name, OpenMode::Create);
        let file = create.map_err(|e| Error::io("create", &path, e))?;
        match self.write_image(number, (file, &path), captured, old, &young) {
            Ok((file, bytes, checksum)) => {
                let synced = file.sync();
                self.fatal("sync", &path, synced)?;
                Ok(Some(ImageRef {
                    number,
                    bytes,
                    checksum,
                }))
            }
            Err(error) => {
                tracing::warn!(%error, "no new index image; the next open reads more key blocks");
                self.unlink(&*self.root, &name);
                Ok(None)
            }
        }
    }

    fn write_image(
        &self,
        number: u64,
        (file, path): (Arc<dyn DiskFile>, &Path),
        captured: &Captured,
        old: Option<ImageScan>,
        young: &[Arc<DataFile>],
    ) -> Result<(Arc<dyn DiskFile>, u64, u64)> {
        let mut numbers: Vec<u64> = captured.files.iter().map(|f| f.meta.number).collect();
        numbers.sort_unstable();
        let covered = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
        let identity = self.identity(number);
        let (header, tally) = encode_image_header(&identity, captured.id, covered);
        let mut writer = ImageWriter {
            ssd: self,
            file,
            path,
            identity,
            tally,
            out: header.to_vec(),
            written: 0,
            table: 0,
            entries: Vec::new(),
            since: Instant::now(),
        };
        for chunk in numbers.chunks(COVERED_PER_BLOCK) {
            let start = writer.out.len();
            writer.out.resize(start + BLOCK_BYTES, 0);
            let block = &mut writer.out[start..];
            encode_covered_block(block, chunk, &writer.identity, &mut writer.tally);
        }
        merge(&mut writer, captured, old, young, &numbers)?;
        let (bytes, checksum) = writer.finish()?;
        Ok((writer.file, bytes, checksum))
    }
}

struct ImageWriter<'a> {
    ssd: &'a Ssd,
    file: Arc<dyn DiskFile>,
    path: &'a Path,
    identity: FileIdentity,
    tally: ImageTally,
    out: Vec<u8>,
    written: u64,
    table: u32,
    entries: Vec<ImageEntry>,
    /// When it began with the chunk.
    since: Instant,
}

impl ImageWriter<'_> {
    fn push(&mut self, table: u32, entry: ImageEntry) -> Result<()> {
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
        let (table, tally) = (self.table, &mut self.tally);
        encode_entry_block(block, table, &self.entries, &self.identity, tally);
        self.entries.clear();
        if self.out.len() >= CHUNK_BYTES {
            self.write_out()?;
        }
        Ok(())
    }

    fn write_out(&mut self) -> Result<()> {
        let bytes = self.written + self.out.len() as u64;
        self.ssd.check_image_room(self.written, bytes)?;
        self.file
            .write_at(&self.out, self.written)
            .map_err(|e| Error::io("write", self.path, e))?;
        self.written += self.out.len() as u64;
        self.out.clear();
        if self.ssd.images.is_paced() {
            thread::sleep(self.since.elapsed().min(REST_MAX));
        }
        self.since = Instant::now();
        Ok(())
    }

    fn finish(&mut self) -> Result<(u64, u64)> {
        self.close_block()?;
        let (footer, checksum) = encode_image_footer(&self.identity, &self.tally);
        self.out.extend_from_slice(&footer);
        self.write_out()?;
        Ok((self.written, checksum))
    }
}

/// The old image's entries of one table, in order, as long as their file is in the version.
struct Old<'a> {
    scan: Option<ImageScan>,
    at: usize,
    ranks: HashMap<u64, u64>,
    numbers: &'a [u64],
}

impl Old<'_> {
    /// The entry it stands at, with its rank; entries of files that are gone are stepped over.
    fn peek(&mut self, table: u32) -> Result<Option<(u64, u64, ImageEntry)>> {
        let Some(scan) = &mut self.scan else {
            return Ok(None);
        };
        loop {
            if self.at == scan.entries.len() {
                self.at = 0;
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
            let number = scan
                .covered
                .get(entry.ordinal as usize)
                .copied()
                .unwrap_or(0);
            match self.ranks.get(&number) {
                Some(rank) if scan.table == table => {
                    let ordinal = ordinal(self.numbers, number);
                    let entry = ImageEntry { ordinal, ..entry };
                    return Ok(Some((mix64(entry.key), *rank, entry)));
                }
                _ => self.at += 1,
            }
        }
    }
}

fn ordinal(numbers: &[u64], number: u64) -> u32 {
    let found = numbers.binary_search(&number).unwrap_or(usize::MAX);
    u32::try_from(found).unwrap_or(u32::MAX)
}

fn merge(
    writer: &mut ImageWriter<'_>,
    captured: &Captured,
    old: Option<ImageScan>,
    young: &[Arc<DataFile>],
    numbers: &[u64],
) -> Result<()> {
    let ranks = captured
        .files
        .iter()
        .map(|f| (f.meta.number, f.meta.rank))
        .collect();
    let mut old = Old {
        scan: old,
        at: 0,
        ranks,
        numbers,
    };
    // A cursor holds an eighth of its window in key blocks.
    let share = KEYS_BYTES / young.len().max(1) as u64;
    let window = share.clamp(16 << 10, 512 << 10) * 8;
    let view = writer.ssd.versions().tables.view(captured.id);
    let there = |table: &u32| view.get(*table as usize).is_none_or(|t| !t.is_dropped);
    for table in tables_of(&captured.files).into_iter().filter(there) {
        let mut merge = Merge::new(young, table, window)?;
        loop {
            let index = merge.newest()?;
            let new = match index {
                Some(index) => {
                    let cursor = merge.cursor(index);
                    let rank = cursor.file.meta.rank;
                    let tombstone = cursor.run.kind == RunKind::Tombstones;
                    let ordinal = ordinal(numbers, cursor.file.meta.number);
                    cursor.entry().map(|e| {
                        let entry = ImageEntry {
                            key: e.key,
                            ordinal,
                            tombstone,
                            entry: e.number,
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
    // To its end, where the old image as a whole is verified.
    while old.peek(u32::MAX)?.is_some() {
        old.at += 1;
    }
    Ok(())
}
