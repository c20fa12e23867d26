//! Which blocks of a part of an index snapshot were seen, and what may come next?
//!
//! - Writer and reader count in the same way: what differs at the end is damage.

use super::checksum::roll;
use super::snapshot_entry::{CLASS_BITS, CLASS_MAX, PLACE_BITS, SnapshotEntry};
use super::{BLOCK_BYTES, Version};
use crate::options::TABLES_MAX;
use crate::units::{mix64, narrow};

/// File numbers of a full block.
pub const COVERED_PER_BLOCK: usize = 510;

/// Counts and digests the blocks of an index snapshot, in order: the same for writer and reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotTally {
    /// `None`: version 1, of all directories.
    directory: Option<u32>,
    pub(super) covered: u32,
    covered_seen: u32,
    pub(super) blocks: u64,
    pub(super) entries: u64,
    pub(super) tombstones: u64,
    pub(super) digest: u64,
    last: Option<(u32, u64)>,
}

impl SnapshotTally {
    /// Starts after the header.
    pub(super) fn new(directory: Option<u32>, covered: u32, header_checksum: u64) -> SnapshotTally {
        SnapshotTally {
            directory,
            covered,
            covered_seen: 0,
            blocks: 0,
            entries: 0,
            tombstones: 0,
            digest: header_checksum,
            last: None,
        }
    }

    /// The data directory that it is of; `None`: of version 1, it is of all of them.
    #[must_use]
    pub fn directory(&self) -> Option<u32> {
        self.directory
    }

    /// Bits that a location may have.
    pub(super) fn location_bits(&self) -> u64 {
        match self.directory {
            Some(_) => PLACE_BITS | CLASS_BITS,
            None => PLACE_BITS,
        }
    }

    /// The version of the file.
    pub(super) fn version(&self) -> Version {
        match self.directory {
            Some(_) => Version::NEWEST,
            None => Version::V1,
        }
    }

    /// Where the next block (or the footer) is in the file.
    #[must_use]
    pub fn next_offset(&self) -> u64 {
        (self.blocks.saturating_add(1)).saturating_mul(BLOCK_BYTES as u64)
    }

    /// Entries so far.
    #[must_use]
    #[cfg(any(test, feature = "sim"))]
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// File numbers that are still to come, in blocks before the entries.
    #[must_use]
    pub fn covered_left(&self) -> u32 {
        self.covered - self.covered_seen
    }

    /// How many of them the next block holds.
    pub(super) fn next_covered(&self) -> u32 {
        let full = narrow(COVERED_PER_BLOCK);
        self.covered_left().min(full)
    }

    pub(super) fn covered(&self) -> u32 {
        self.covered
    }

    pub(super) fn blocks(&self) -> u64 {
        self.blocks
    }

    pub(super) fn last(&self) -> Option<(u32, u64)> {
        self.last
    }

    /// Adds a block of file numbers.
    pub(super) fn add_covered(&mut self, count: u32, sum: u64) {
        self.covered_seen += count;
        self.add_block(sum);
    }

    fn add_block(&mut self, sum: u64) {
        self.blocks += 1;
        self.digest = roll(self.digest, sum);
    }

    /// Adds blocks whose entries were checked.
    pub(super) fn add_part(
        &mut self,
        sums: &[u64],
        (entries, tombstones): (u64, u64),
        last: Option<(u32, u64)>,
    ) {
        for sum in sums {
            self.add_block(*sum);
        }
        self.entries += entries;
        self.tombstones += tombstones;
        self.last = last.or(self.last);
    }

    /// Whether a block of these entries may come next.
    pub(super) fn takes(&self, table: u32, entries: &[SnapshotEntry]) -> bool {
        let mut last = self.last;
        self.covered_left() == 0
            && (table as usize) < TABLES_MAX
            && entries.iter().all(|entry| {
                let this = (table, mix64(entry.key));
                let rises = last.is_none_or(|last| last < this);
                last = Some(this);
                let fits =
                    entry.class <= CLASS_MAX && entry.location() & !self.location_bits() == 0;
                rises && entry.ordinal < self.covered && fits
            })
    }

    pub(super) fn add_entries(&mut self, table: u32, entries: &[SnapshotEntry], sum: u64) {
        self.entries += entries.len() as u64;
        self.tombstones += entries.iter().filter(|entry| entry.tombstone).count() as u64;
        self.last = entries
            .last()
            .map(|entry| (table, mix64(entry.key)))
            .or(self.last);
        self.add_block(sum);
    }
}
