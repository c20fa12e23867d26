//! How does opening avoid sorting out every key block?
//!
//! An index snapshot lists key and place of every live entry of one checkpoint's version. It has a
//! part for each data directory that has files: the entries of that directory's files, which are
//! those of its range of mix64, in the order of (table, mix64(key)). A part is made by merging the
//! one before it with the key blocks of younger files, and never looks at the live index: only the class
//! of each key, how often its row was used, is asked for where a warm restart is wanted. It lies in the next
//! data directory: where one is lost, a repair still has the list of its keys.
//!
//! Invariants:
//! - It is a cache: where a part is missing, damaged or of a later version than the one opened,
//!   it is ignored, and the key blocks of the files that it covers give the same index.
//! - A place in a file that has left the version counts for nothing: whatever left it is in a
//!   younger file.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;

use super::Ssd;
use super::edits::SnapshotPart;
use super::pieces::{aligned, read_exact};
use crate::error::{Error, Result};
use crate::format::index_snapshot::{self, SnapshotEntry, SnapshotFooter, SnapshotTally};
use crate::format::{BLOCK_BYTES, FileIdentity};
use crate::io::{AlignedBuffer, Directory, DiskFile, OpenMode};
use crate::units::{CheckpointId, FileNumber, mix64, part_range, to_usize};

/// Bytes read at a time.
const CHUNK_BYTES: usize = 256 << 10;

/// What is wrong with a part that has keys of another directory.
pub(super) const OUT_OF_RANGE: &str = "keys that are not of its data directory";

/// An open part: file, path, identity, reference, tally after the file numbers, file numbers.
type Parts = (
    Arc<dyn DiskFile>,
    PathBuf,
    FileIdentity,
    SnapshotPart,
    SnapshotTally,
    Vec<FileNumber>,
);

/// Who knows how often rows were used lately.
pub trait KeyClasses: Sync {
    /// Sets the classes of some keys of a table, which come in the order of their hashes.
    fn tell(&self, table: u32, entries: &mut [SnapshotEntry]);
}

/// Reads a part of an index snapshot block by block.
#[derive(Debug)]
pub struct SnapshotScan {
    file: Arc<dyn DiskFile>,
    /// Where it is.
    pub(crate) path: PathBuf,
    identity: FileIdentity,
    /// What the manifest says of it.
    pub(crate) reference: SnapshotPart,
    /// The hashes that it may have.
    pub(crate) range: RangeInclusive<u64>,
    tally: SnapshotTally,
    /// The checkpoint whose version it lists.
    pub checkpoint: CheckpointId,
    /// Numbers of the files of that version.
    pub covered: Vec<FileNumber>,
    chunk: AlignedBuffer,
    chunk_offset: u64,
    chunk_bytes: u64,
    /// Table of the entries of the last step.
    pub table: u32,
    /// These entries.
    pub entries: Vec<SnapshotEntry>,
}

/// The hashes that a part of a store with so many data directories may have.
pub(super) fn range_of_part(part: &SnapshotPart, directories: usize) -> RangeInclusive<u64> {
    match part.directory {
        Some(directory) => part_range(directory as usize, directories),
        None => 0..=u64::MAX,
    }
}

impl SnapshotScan {
    /// Opens a part in the directory that it lies in, one of so many; its header and its list of files are
    /// verified.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, `Unsupported`.
    pub(crate) fn open(
        place: &dyn Directory,
        store: &[u8; 16],
        reference: SnapshotPart,
        directories: usize,
    ) -> Result<SnapshotScan> {
        let name = reference.file_name();
        let path = place.path().join(&name);
        let file = place
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
            index_snapshot::decode_snapshot_header(block, &identity).map_err(|e| e.at(&path))?;
        if tally.directory() != reference.directory {
            return Err(Error::corrupt(&path, 0, "it is of another data directory"));
        }
        let mut scan = SnapshotScan {
            file,
            path,
            identity,
            reference,
            range: range_of_part(&reference, directories),
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
            index_snapshot::decode_covered_block(block, &scan.identity, tally, covered)
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
                return Err(Error::corrupt(&self.path, offset, "the part ends early"));
            }
            let chunk = &mut self.chunk[..to_usize(bytes)];
            (self.chunk_offset, self.chunk_bytes) = (offset, bytes);
            read_exact(&*self.file, &self.path, chunk, offset)?;
        }
        Ok(to_usize(offset - self.chunk_offset))
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
            let footer = SnapshotFooter::decode(block, &self.identity, offset)
                .and_then(|f| f.check(&self.tally).map(|()| f))
                .map_err(|e| e.at(&self.path))?;
            if footer.checksum != self.reference.checksum {
                return Err(Error::corrupt(&self.path, offset, "not the part in force"));
            }
            return Ok(false);
        }
        let entries = &mut self.entries;
        self.table =
            index_snapshot::decode_entry_block(block, &self.identity, &mut self.tally, entries)
                .map_err(|e| e.at(&self.path))?;
        let inside = |entry: &SnapshotEntry| self.range.contains(&mix64(entry.key));
        let ends = [self.entries.first(), self.entries.last()];
        if !ends.into_iter().flatten().all(inside) {
            return Err(Error::corrupt(&self.path, offset, OUT_OF_RANGE));
        }
        Ok(true)
    }
}

impl Ssd {
    pub(super) fn open_snapshot_part(&self, part: SnapshotPart) -> Result<SnapshotScan> {
        let place = self.place_of(&part);
        SnapshotScan::open(place, &self.store, part, self.directories.len())
    }

    /// The parts in force.
    pub(super) fn snapshot_in_force(&self) -> Vec<SnapshotPart> {
        self.manifest().snapshot.clone()
    }
}
