//! How are the entry blocks of one part read by several threads?
//!
//! - An [`SnapshotRange`] takes entry blocks that follow each other, from any block on. The order of
//!   the entries is checked inside the part, and where it begins when it is joined.
//! - Joined in order, parts add up to the tally of an index snapshot that was read from start to end: the
//!   footer is compared with that.

use super::BLOCK_BYTES;
use super::checksum::FileIdentity;
use super::index_snapshot::{
    ORDINAL_SHIFT, SnapshotTally, TOMBSTONE_BIT, bad_entries, check_entry_block,
};
use super::layout::{DecodeError, Decoded};
use crate::options::TABLES_MAX;
use crate::units::mix64;

/// Entry blocks in a row, somewhere in an index snapshot.
#[derive(Debug)]
pub struct SnapshotRange {
    covered: u32,
    /// Bits that a location may have.
    bits: u64,
    /// Number of the first block, counted after the header.
    start: u64,
    sums: Vec<u64>,
    entries: u64,
    tombstones: u64,
    /// Table and hash of the first entry and of the last one before the next block.
    first: Option<(u32, u64)>,
    last: Option<(u32, u64)>,
}

impl SnapshotRange {
    /// Starts at a block, counted after the header.
    fn new(tally: &SnapshotTally, start: u64) -> SnapshotRange {
        SnapshotRange {
            covered: tally.covered(),
            bits: tally.location_bits(),
            start,
            sums: Vec::new(),
            entries: 0,
            tombstones: 0,
            first: None,
            last: None,
        }
    }

    /// Where the next block is in the file.
    #[must_use]
    pub fn next_offset(&self) -> u64 {
        let blocks = self.start + self.sums.len() as u64;
        blocks.saturating_add(1).saturating_mul(BLOCK_BYTES as u64)
    }

    /// Begins at the next block. Those before belong to another part; their order still counts.
    pub fn restart(&mut self) {
        self.start += self.sums.len() as u64;
        self.sums.clear();
        self.first = None;
        (self.entries, self.tombstones) = (0, 0);
    }

    /// Verifies the next block; `entries` is replaced by hash and location of each of its entries,
    /// the table returned.
    ///
    /// # Errors
    /// `Damaged` at the block.
    pub fn decode(
        &mut self,
        bytes: &[u8],
        identity: &FileIdentity,
        entries: &mut Vec<(u64, u64)>,
    ) -> Decoded<u32> {
        let offset = self.next_offset();
        entries.clear();
        let block = check_entry_block(bytes, identity, offset)?;
        let (table, count) = (block.table, block.entries.len());
        let before = self.last.filter(|last| last.0 == table).map(|last| last.1);
        let mut right = (table as usize) < TABLES_MAX && self.last.is_none_or(|l| l.0 <= table);
        let (mut last, mut tombstones) = (before, 0);
        entries.extend(block.entries.iter().map(|place| {
            let (hash, location) = (mix64(place.key.get()), place.location.get());
            right &= last.is_none_or(|last| last < hash)
                && location >> ORDINAL_SHIFT < u64::from(self.covered)
                && location & !self.bits == 0;
            tombstones += u64::from(location & TOMBSTONE_BIT != 0);
            last = Some(hash);
            (hash, location)
        }));
        if !right {
            entries.clear();
            let why = "out of order, or of a file, table or place that is not there";
            return Err(bad_entries(offset, why));
        }
        self.first = self.first.or(entries.first().map(|e| (table, e.0)));
        self.last = last.map(|hash| (table, hash));
        self.entries += count as u64;
        self.tombstones += tombstones;
        self.sums.push(block.sum);
        Ok(table)
    }
}

impl SnapshotTally {
    /// A part that starts at the entry block with this number, counted from 0, once all blocks of
    /// file numbers were seen.
    #[must_use]
    pub fn part(&self, block: u64) -> SnapshotRange {
        assert!(self.covered_left() == 0, "entries come after the files");
        SnapshotRange::new(self, self.blocks().saturating_add(block))
    }

    /// Adds the blocks of a part, which come next.
    ///
    /// # Errors
    /// `Damaged` where the part begins: it is not the next one, or its entries do not follow.
    pub fn join(&mut self, part: &SnapshotRange) -> Decoded<()> {
        let follows = match (self.last(), part.first) {
            (Some(last), Some(first)) => last < first,
            _ => true,
        };
        if part.start != self.blocks() || !follows {
            let why = "entries of an index snapshot: a part does not follow the one before it";
            return Err(DecodeError::damaged(self.next_offset(), why));
        }
        let last = part.last.filter(|_| part.entries > 0);
        self.add_part(&part.sums, (part.entries, part.tombstones), last);
        Ok(())
    }
}
