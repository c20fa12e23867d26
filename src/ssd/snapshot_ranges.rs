//! How is a part of an index snapshot read by several threads?
//!
//! Its entry blocks are in the order of (table, mix64). [`SnapshotRanges::block_of`] finds where a
//! place in that order begins; each thread walks the blocks between two such places with an
//! [`SnapshotWalk`]; in the end the parts they read are joined and compared with the footer.
//!
//! Invariants:
//! - What a walk hands out counts only after [`SnapshotRanges::finish`]: each block is verified, but
//!   only all of them together are the index snapshot in force.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;

use super::Ssd;
use super::index_snapshot::{OUT_OF_RANGE, SnapshotScan, range_of_part};
use super::pieces::{aligned, read_exact};
use crate::error::{Error, Result};
use crate::format::index_snapshot::{ENTRIES_PER_BLOCK, SnapshotFooter, SnapshotTally};
use crate::format::snapshot_range::SnapshotRange;
use crate::format::{BLOCK_BYTES, FileIdentity};
use crate::io::{AlignedBuffer, DiskFile};
use crate::units::{CheckpointId, FileNumber, to_usize};

/// Blocks read at a time to find a place in the order.
const PROBE_BLOCKS: u64 = 16;
/// Bytes that a walk reads at a time.
const WALK_BYTES: u64 = 1 << 20;
const BLOCK: u64 = BLOCK_BYTES as u64;

/// An open part, its header, list of files and footer verified.
#[derive(Debug)]
pub struct SnapshotRanges {
    /// The data directory whose keys it has; `None`: an image of version 1, those of all of them.
    pub directory: Option<u32>,
    /// First and last hash that it may have.
    pub range: (u64, u64),
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    identity: FileIdentity,
    /// After the file numbers.
    tally: SnapshotTally,
    footer: SnapshotFooter,
    /// Numbers of the files that it covers.
    pub covered: Vec<FileNumber>,
    /// Blocks of entries.
    blocks: u64,
    /// Table and hash of the first entry of blocks that were looked at.
    starts: BTreeMap<u64, (u32, u64)>,
}

impl Ssd {
    /// The parts of the index snapshot that an open at `checkpoint` can use, in the order of their
    /// ranges.
    pub fn snapshot_ranges(&self, checkpoint: CheckpointId) -> Vec<SnapshotRanges> {
        let mut usable = Vec::new();
        for part in self.snapshot_in_force() {
            let range = range_of_part(&part, self.directories.len());
            let opened = self.open_snapshot_part(part);
            match opened.and_then(|scan| Ok((scan.checkpoint, SnapshotRanges::new(scan, range)?))) {
                Ok((of, part)) if of <= checkpoint => usable.push(part),
                Ok(_) => {}
                Err(error) => tell_damaged(&error),
            }
        }
        usable
    }
}

/// Says that a part is of no use.
pub fn tell_damaged(error: &Error) {
    tracing::warn!(
        %error,
        "a part of the index snapshot is of no use; the key blocks of the files that it covers are read"
    );
}

impl SnapshotRanges {
    /// Takes an index snapshot that was just opened, and verifies its footer.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, `Unsupported`.
    pub(super) fn new(scan: SnapshotScan, range: RangeInclusive<u64>) -> Result<SnapshotRanges> {
        let (file, path, identity, reference, tally, covered) = scan.into_parts();
        let last = reference.bytes.saturating_sub(BLOCK);
        let mut block = aligned(&path, BLOCK)?;
        read_exact(&*file, &path, &mut block, last)?;
        let footer = SnapshotFooter::decode(&block, &identity, last).map_err(|e| e.at(&path))?;
        if footer.checksum != reference.checksum {
            return Err(Error::corrupt(&path, last, "not the part in force"));
        }
        let blocks = last.saturating_sub(tally.next_offset()) / BLOCK;
        Ok(SnapshotRanges {
            directory: reference.directory,
            range: range.into_inner(),
            file,
            path,
            identity,
            tally,
            footer,
            covered,
            blocks,
            starts: BTreeMap::new(),
        })
    }

    /// Entries, as the footer says.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.footer.entries
    }

    /// No fewer entries than so many blocks hold.
    #[must_use]
    pub fn entries_max(blocks: u64) -> u64 {
        blocks * ENTRIES_PER_BLOCK as u64
    }

    /// Blocks of entries.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// How many blocks begin before this place in the order.
    ///
    /// # Cost
    /// A logarithm of the number of blocks, and no block is read twice for it.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn block_of(&mut self, table: u32, hash: u64) -> Result<u64> {
        let (mut low, mut high) = (0, self.blocks);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.start(middle)? < (table, hash) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    fn start(&mut self, block: u64) -> Result<(u32, u64)> {
        if let Some(start) = self.starts.get(&block) {
            return Ok(*start);
        }
        let from = block / PROBE_BLOCKS * PROBE_BLOCKS;
        let mut walk = self.walk((from, (from + PROBE_BLOCKS).min(self.blocks)))?;
        let mut starts = Vec::new();
        let mut number = from;
        while let Some(start) = walk.step()? {
            starts.push((number, start));
            number += 1;
        }
        self.starts.extend(starts);
        let none = || Error::corrupt(&self.path, block * BLOCK, "the part ends early");
        self.starts.get(&block).copied().ok_or_else(none)
    }

    /// Walks the blocks with these numbers.
    ///
    /// # Errors
    /// `Io` when there is no memory for its window.
    pub fn walk(&self, (from, to): (u64, u64)) -> Result<SnapshotWalk<'_>> {
        let part = self.tally.part(from);
        let offset = part.next_offset();
        let bytes = ((to - from) * BLOCK).clamp(BLOCK, WALK_BYTES);
        Ok(SnapshotWalk {
            snapshot: self,
            end: offset + (to - from) * BLOCK,
            part,
            window: aligned(&self.path, bytes)?,
            window_offset: offset,
            window_end: offset,
            table: 0,
            entries: Vec::with_capacity(ENTRIES_PER_BLOCK),
        })
    }

    /// Whether these parts, in order, are the index snapshot in force.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn finish<'a>(&self, parts: impl Iterator<Item = &'a SnapshotRange>) -> Result<()> {
        let mut tally = self.tally;
        let check = || {
            for part in parts {
                tally.join(part)?;
            }
            self.footer.check(&tally)
        };
        check().map_err(|e| e.at(&self.path))
    }

    /// Where it is.
    #[must_use]
    #[cfg(test)]
    pub fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// Damage at a block of it.
    #[must_use]
    pub fn damaged(&self, what: impl Into<String>) -> Error {
        Error::corrupt(&self.path, 0, what)
    }
}

/// Walks blocks of entries.
pub struct SnapshotWalk<'a> {
    snapshot: &'a SnapshotRanges,
    part: SnapshotRange,
    end: u64,
    window: AlignedBuffer,
    window_offset: u64,
    window_end: u64,
    /// Table of the entries of the last step.
    pub table: u32,
    /// Hash and location, as the index snapshot has it, of each of them.
    pub entries: Vec<(u64, u64)>,
}

impl SnapshotWalk<'_> {
    /// Reads the next block and tells the place of its first entry; `None` at the end.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn step(&mut self) -> Result<Option<(u32, u64)>> {
        let offset = self.part.next_offset();
        self.entries.clear();
        if offset >= self.end {
            return Ok(None);
        }
        let snapshot = self.snapshot;
        if offset >= self.window_end {
            let bytes = (self.end - offset).min(self.window.len() as u64);
            let length = to_usize(bytes);
            read_exact(
                &*snapshot.file,
                &snapshot.path,
                &mut self.window[..length],
                offset,
            )?;
            self.window_offset = offset;
            self.window_end = offset + bytes;
        }
        let at = to_usize(offset - self.window_offset);
        let block = &self.window[at..at + BLOCK_BYTES];
        self.table = self
            .part
            .decode(block, &snapshot.identity, &mut self.entries)
            .map_err(|e| e.at(&snapshot.path))?;
        // They rise: the ends tell.
        let ends = [self.entries.first(), self.entries.last()];
        let inside = |e: &(u64, u64)| snapshot.range.0 <= e.0 && e.0 <= snapshot.range.1;
        if !ends.into_iter().flatten().all(inside) {
            return Err(Error::corrupt(&snapshot.path, offset, OUT_OF_RANGE));
        }
        Ok(self.entries.first().map(|e| (self.table, e.0)))
    }

    /// The blocks read so far belong to the part of another walk.
    pub fn restart(&mut self) {
        self.part.restart();
    }

    /// What was read.
    #[must_use]
    pub fn into_part(self) -> SnapshotRange {
        self.part
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::format::index_snapshot::{
        SnapshotEntry, encode_covered_block, encode_entry_block, encode_part_header,
        encode_snapshot_footer,
    };
    use crate::io::Disk;
    use crate::io::sim::SimDisk;
    use crate::ssd::directories::open_root;
    use crate::ssd::edits::SnapshotPart;
    use crate::units::{mix64, unmix64};

    const STORE: [u8; 16] = *b"store of a part!";

    /// A part of directory 1 of three with these hashes, as a scan and as ranges.
    fn opened(hashes: &[u64]) -> (SnapshotScan, SnapshotRanges) {
        let (disk, root) = (SimDisk::new(1), Path::new("/part"));
        disk.create_dir(root).unwrap();
        let identity = FileIdentity::new(STORE, FileNumber(7));
        let (header, mut tally) = encode_part_header(&identity, CheckpointId(1), 1, 1);
        let mut bytes = header.to_vec();
        let mut block = [0; BLOCK_BYTES];
        encode_covered_block(&mut block, &[FileNumber(5)], &identity, &mut tally);
        bytes.extend(block);
        let entries: Vec<SnapshotEntry> = (0..)
            .zip(hashes)
            .map(|(entry, hash)| SnapshotEntry {
                key: unmix64(*hash),
                ordinal: 0,
                tombstone: false,
                entry,
                class: 3,
            })
            .collect();
        encode_entry_block(&mut block, 0, &entries, &identity, &mut tally);
        bytes.extend(block);
        let (footer, checksum) = encode_snapshot_footer(&identity, &tally);
        bytes.extend(footer);
        let part = SnapshotPart {
            directory: Some(1),
            number: FileNumber(7),
            bytes: bytes.len() as u64,
            checksum,
        };
        disk.write_file(&root.join(part.file_name()), &bytes)
            .unwrap();
        let disk: &dyn Disk = &disk;
        let place = open_root(disk, root).unwrap();
        let open = || SnapshotScan::open(&*place, &STORE, part, 3).unwrap();
        let ranges = SnapshotRanges::new(open(), range_of_part(&part, 3)).unwrap();
        (open(), ranges)
    }

    #[test]
    fn a_part_with_a_key_of_another_data_directory_is_damaged() {
        let (low, high) = crate::units::part_range(1, 3).into_inner();
        let takes = |hashes: &[u64]| {
            let (mut scan, ranges) = opened(hashes);
            let by_scan = scan.step().map(|_| scan.entries.len());
            let mut walk = ranges.walk((0, 1)).unwrap();
            let by_walk = walk.step().map(|_| walk.entries.len());
            match (by_scan, by_walk) {
                (Ok(a), Ok(b)) if a == hashes.len() && a == b => true,
                (Err(Error::Corrupt { .. }), Err(Error::Corrupt { .. })) => false,
                other => unreachable!("{other:?}"),
            }
        };
        assert_eq!(mix64(unmix64(low)), low);
        assert!(takes(&[low, low + 1, high - 1, high]));
        assert!(takes(&[low]) && takes(&[high]));
        assert!(!takes(&[low - 1]) && !takes(&[high + 1]));
        assert!(!takes(&[low - 1, low]) && !takes(&[high, high + 1]));
    }

    #[test]
    fn an_opening_knows_the_range_and_directory_of_a_part_and_its_places() {
        let (low, high) = crate::units::part_range(1, 3).into_inner();
        let (mut scan, ranges) = opened(&[low, high]);
        assert_eq!((ranges.directory, ranges.range), (Some(1), (low, high)));
        assert_eq!((ranges.entries(), ranges.blocks()), (2, 1));
        assert!(scan.step().unwrap() && scan.entries.iter().all(|e| e.class == 3));
        assert!(!scan.step().unwrap());
        let mut walk = ranges.walk((0, 1)).unwrap();
        assert_eq!(walk.step().unwrap(), Some((0, low)));
        let location = |entry: u64| 3 << 32 | entry;
        assert_eq!(walk.entries, [(low, location(0)), (high, location(1))]);
        assert_eq!(walk.step().unwrap(), None);
        ranges.finish(std::iter::once(&walk.into_part())).unwrap();
    }
}
