//! What is in a part of an index snapshot?
//!
//! - Header block, blocks with the numbers of the files it covers, blocks of entries, footer
//!   block. It is written in one pass: what is not known before is in the footer.
//! - Entries are in the order of (table, mix64(key)), strictly; a block is of one table.
//! - A part is of one data directory: it covers files of that, and has keys of its range of mix64.
//!   One of version 1, an *image*, is of all of them.
//! - It is a cache: a reader that finds any damage rebuilds it from the key blocks.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::checksum::{FileIdentity, Kind};
use super::layout::{
    DecodeError, Decoded, Prefix, check_seal, check_zero, decode_block, encode_block, layout, seal,
    view,
};
#[cfg(test)]
pub use super::snapshot_entry::CLASS_MAX;
pub use super::snapshot_entry::{
    COVERED_MAX, ORDINAL_SHIFT, SnapshotEntry, TOMBSTONE_BIT, class_at,
};
pub use super::snapshot_tally::{COVERED_PER_BLOCK, SnapshotTally};
use super::{BLOCK_BYTES, DIRECTORIES_MAX, Version};
use crate::units::{CheckpointId, FileNumber, narrow};

/// Magic bytes of an index snapshot's header.
pub const SNAPSHOT_MAGIC: [u8; 8] = *b"HPSIMAG\0";
/// Magic bytes of an index snapshot's footer.
pub const SNAPSHOT_FOOTER_MAGIC: [u8; 8] = *b"HPSIMGF\0";
/// Entries of a full block.
pub const ENTRIES_PER_BLOCK: usize = 255;

layout! {
    /// The start of the header block; zeros follow.
    ImageHeader = 72 {
        prefix: Prefix,
        number: U64,
        checkpoint_id: U64,
        covered: U32,
        zero: U32,
    }
}

layout! {
    /// The start of the header block of a part, from version 2 on; zeros follow.
    SnapshotHeader = 72 {
        prefix: Prefix,
        number: U64,
        checkpoint_id: U64,
        covered: U32,
        directory: U32,
    }
}

layout! {
    /// Numbers of files covered.
    CoveredBlock = 4096 {
        checksum: U64,
        count: U32,
        zero: U32,
        numbers: [U64; 510],
    }
}

layout! {
    /// Entries of one table.
    EntryBlock = 4096 {
        checksum: U64,
        count: U32,
        table: U32,
        entries: [EntryPlace; 255],
    }
}

layout! {
    /// One entry: the key, and where it is.
    EntryPlace = 16 {
        key: U64,
        location: U64,
    }
}

layout! {
    /// The start of the footer block; zeros follow.
    SnapshotFooterBlock = 56 {
        checksum: U64,
        magic: [u8; 8],
        version: U32,
        covered: U32,
        blocks: U64,
        entries: U64,
        tombstones: U64,
        digest: U64,
    }
}

const _: () = assert!(CoveredBlock::BYTES == BLOCK_BYTES && EntryBlock::BYTES == BLOCK_BYTES);
const _: () = assert!(SnapshotHeader::BYTES == ImageHeader::BYTES);

/// Blocks of file numbers of an index snapshot that covers that many files.
#[must_use]
pub const fn covered_blocks(covered: u32) -> u64 {
    (covered as u64).div_ceil(COVERED_PER_BLOCK as u64)
}

/// The header block of a part that will cover `covered` files of a data directory, and the tally to
/// go on with.
#[must_use]
pub fn encode_part_header(
    identity: &FileIdentity,
    checkpoint_id: CheckpointId,
    directory: u32,
    covered: u32,
) -> ([u8; BLOCK_BYTES], SnapshotTally) {
    assert!(
        (directory as usize) < DIRECTORIES_MAX,
        "a store has 256 data directories at most"
    );
    encode_header(identity, checkpoint_id, Some(directory), covered)
}

/// As [`encode_part_header`] of a whole image, which version 1 had instead.
#[must_use]
#[cfg(any(test, feature = "sim"))]
pub fn encode_image_header(
    identity: &FileIdentity,
    checkpoint_id: CheckpointId,
    covered: u32,
) -> ([u8; BLOCK_BYTES], SnapshotTally) {
    encode_header(identity, checkpoint_id, None, covered)
}

fn encode_header(
    identity: &FileIdentity,
    checkpoint_id: CheckpointId,
    directory: Option<u32>,
    covered: u32,
) -> ([u8; BLOCK_BYTES], SnapshotTally) {
    assert!(
        (1..=COVERED_MAX).contains(&covered),
        "a part covers 1 to 2^24 files"
    );
    let mut tally = SnapshotTally::new(directory, covered, 0);
    let head = SnapshotHeader {
        prefix: Prefix::new(tally.version(), SNAPSHOT_MAGIC, &identity.store()),
        number: U64::new(identity.number().0),
        checkpoint_id: U64::new(checkpoint_id.0),
        covered: U32::new(covered),
        directory: U32::new(directory.unwrap_or(0)),
    };
    let mut out = [0; BLOCK_BYTES];
    tally.digest = encode_block(&mut out, &head, identity.seed(Kind::SnapshotHeader, 0));
    (out, tally)
}

/// Decodes the header block; returns the checkpoint's id and the tally to go on with.
///
/// # Errors
/// `Newer`, or `Damaged` at byte 0.
pub fn decode_snapshot_header(
    block: &[u8],
    identity: &FileIdentity,
) -> Decoded<(CheckpointId, SnapshotTally)> {
    let what = "header of an index snapshot";
    let seed = identity.seed(Kind::SnapshotHeader, 0);
    let (head, rest, sum) =
        decode_block::<SnapshotHeader>(block, BLOCK_BYTES, &SNAPSHOT_MAGIC, seed, what)?;
    let version = head.prefix.check(&identity.store())?;
    check_zero(rest, SnapshotHeader::BYTES as u64, what)?;
    let (covered, directory) = (head.covered.get(), head.directory.get());
    let (directory, place_fits) = match version {
        // Reserved bytes then.
        Version::V1 => (None, directory == 0),
        Version::V2 => (Some(directory), (directory as usize) < DIRECTORIES_MAX),
    };
    let right = head.number.get() == identity.number().0
        && place_fits
        && (1..=COVERED_MAX).contains(&covered);
    if !right {
        return Err(DecodeError::damaged(
            0,
            format!("{what}: contradicts itself"),
        ));
    }
    Ok((
        CheckpointId(head.checkpoint_id.get()),
        SnapshotTally::new(directory, covered, sum),
    ))
}

/// Writes the next block of file numbers.
///
/// # Shapes      `out: [4096]`, `numbers: [n]`, n = 510 but in the last such block
pub fn encode_covered_block(
    out: &mut [u8],
    numbers: &[FileNumber],
    identity: &FileIdentity,
    tally: &mut SnapshotTally,
) {
    let count = narrow(numbers.len());
    let full = tally.next_covered();
    assert!(
        count == full && count > 0,
        "blocks of file numbers are full but the last"
    );
    assert!(out.len() == BLOCK_BYTES, "a block has its size");
    out.fill(0);
    if let Ok(block) = CoveredBlock::mut_from_bytes(out) {
        block.count = U32::new(count);
        for (place, number) in block.numbers.iter_mut().zip(numbers) {
            place.set(number.0);
        }
    }
    let sum = seal(out, identity.seed(Kind::SnapshotBlock, tally.next_offset()));
    tally.add_covered(count, sum);
}

/// Verifies the next block of file numbers (while [`SnapshotTally::covered_left`]) and appends them.
///
/// # Errors
/// `Damaged` at the block.
pub fn decode_covered_block(
    bytes: &[u8],
    identity: &FileIdentity,
    tally: &mut SnapshotTally,
    numbers: &mut Vec<FileNumber>,
) -> Decoded<()> {
    let what = "file numbers of an index snapshot";
    let offset = tally.next_offset();
    let bad = |why: &str| Err(DecodeError::damaged(offset, format!("{what}: {why}")));
    if bytes.len() != BLOCK_BYTES {
        return bad("not 4096 bytes");
    }
    let sum = check_seal(
        bytes,
        identity.seed(Kind::SnapshotBlock, offset),
        offset,
        what,
    )?;
    let (block, _) = view::<CoveredBlock>(bytes, offset, what)?;
    let count = block.count.get();
    let full = tally.next_covered();
    if count != full || count == 0 || block.zero != U32::ZERO {
        return bad("their number is not that of the header");
    }
    let Some((used, free)) = block.numbers.split_at_checked(count as usize) else {
        return bad("more than 510");
    };
    check_zero(free.as_bytes(), offset, what)?;
    numbers.extend(used.iter().map(|number| FileNumber(number.get())));
    tally.add_covered(count, sum);
    Ok(())
}

/// Writes the next block of entries.
///
/// # Shapes      `out: [4096]`, `entries: [n]`, n in 1..=255
pub fn encode_entry_block(
    out: &mut [u8],
    table: u32,
    entries: &[SnapshotEntry],
    identity: &FileIdentity,
    tally: &mut SnapshotTally,
) {
    assert!(
        (1..=ENTRIES_PER_BLOCK).contains(&entries.len()),
        "a block holds 1 to 255 entries"
    );
    assert!(
        tally.takes(table, entries),
        "entries of an index snapshot come in order, after its files"
    );
    assert!(out.len() == BLOCK_BYTES, "a block has its size");
    out.fill(0);
    if let Ok(block) = EntryBlock::mut_from_bytes(out) {
        block.count = U32::new(narrow(entries.len()));
        block.table = U32::new(table);
        for (place, entry) in block.entries.iter_mut().zip(entries) {
            place.key.set(entry.key);
            place.location.set(entry.location());
        }
    }
    let sum = seal(out, identity.seed(Kind::SnapshotBlock, tally.next_offset()));
    tally.add_entries(table, entries, sum);
}

/// A block of entries whose seal and shape are right; their order and places are not looked at.
pub(super) struct CheckedBlock<'a> {
    pub table: u32,
    pub entries: &'a [EntryPlace],
    /// The block's checksum.
    pub sum: u64,
}

/// What is damaged in a block of entries.
pub(super) fn bad_entries(offset: u64, why: &str) -> DecodeError {
    DecodeError::damaged(offset, format!("entries of an index snapshot: {why}"))
}

/// Verifies what a block of entries at `offset` says of itself.
pub(super) fn check_entry_block<'a>(
    bytes: &'a [u8],
    identity: &FileIdentity,
    offset: u64,
) -> Decoded<CheckedBlock<'a>> {
    let what = "entries of an index snapshot";
    if bytes.len() != BLOCK_BYTES {
        return Err(bad_entries(offset, "not 4096 bytes"));
    }
    let sum = check_seal(
        bytes,
        identity.seed(Kind::SnapshotBlock, offset),
        offset,
        what,
    )?;
    let (block, _) = view::<EntryBlock>(bytes, offset, what)?;
    let count = block.count.get() as usize;
    let Some((entries, free)) = block.entries.split_at_checked(count).filter(|_| count > 0) else {
        return Err(bad_entries(offset, "none, or more than 255"));
    };
    check_zero(free.as_bytes(), offset, what)?;
    Ok(CheckedBlock {
        table: block.table.get(),
        entries,
        sum,
    })
}

/// Verifies the next block of entries; `entries` is replaced by them, the table returned.
///
/// # Errors
/// `Damaged` at the block.
pub fn decode_entry_block(
    bytes: &[u8],
    identity: &FileIdentity,
    tally: &mut SnapshotTally,
    entries: &mut Vec<SnapshotEntry>,
) -> Decoded<u32> {
    let offset = tally.next_offset();
    entries.clear();
    let block = check_entry_block(bytes, identity, offset)?;
    for place in block.entries {
        let location = place.location.get();
        if location & !tally.location_bits() != 0 {
            let why = "reserved bits of a location are not zero";
            return Err(bad_entries(offset, why));
        }
        entries.push(SnapshotEntry::of(place.key.get(), location));
    }
    if !tally.takes(block.table, entries) {
        let why = "out of order, or of a file or table that is not there";
        return Err(bad_entries(offset, why));
    }
    tally.add_entries(block.table, entries, block.sum);
    Ok(block.table)
}

/// The footer block, which ends the file at [`SnapshotTally::next_offset`]; returns its checksum.
#[must_use]
pub fn encode_snapshot_footer(
    identity: &FileIdentity,
    tally: &SnapshotTally,
) -> ([u8; BLOCK_BYTES], u64) {
    assert!(
        tally.covered_left() == 0,
        "an index snapshot lists all files that it covers"
    );
    let head = SnapshotFooterBlock {
        checksum: U64::ZERO,
        magic: SNAPSHOT_FOOTER_MAGIC,
        version: U32::new(tally.version().number()),
        covered: U32::new(tally.covered),
        blocks: U64::new(tally.blocks),
        entries: U64::new(tally.entries),
        tombstones: U64::new(tally.tombstones),
        digest: U64::new(tally.digest),
    };
    let mut out = [0; BLOCK_BYTES];
    let seed = identity.seed(Kind::SnapshotFooter, tally.next_offset());
    let sum = encode_block(&mut out, &head, seed);
    (out, sum)
}

/// What an index snapshot's footer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotFooter {
    /// The footer's checksum; covers the file.
    pub checksum: u64,
    /// Version of the file.
    pub version: Version,
    /// Files covered.
    pub covered: u32,
    /// Blocks between header and footer.
    pub blocks: u64,
    /// Entries, tombstones among them.
    pub entries: u64,
    /// Tombstones.
    pub tombstones: u64,
    /// Rolling digest of the checksums of header and blocks.
    pub digest: u64,
}

impl SnapshotFooter {
    /// Decodes the footer block at file offset `offset`, which ends the file.
    ///
    /// # Errors
    /// `Newer`, or `Damaged` at `offset`.
    pub fn decode(block: &[u8], identity: &FileIdentity, offset: u64) -> Decoded<SnapshotFooter> {
        let what = "footer of an index snapshot";
        let bad = |why: &str| Err(DecodeError::damaged(offset, format!("{what}: {why}")));
        if block.len() != BLOCK_BYTES {
            return bad("not 4096 bytes");
        }
        let (head, rest) = view::<SnapshotFooterBlock>(block, offset, what)?;
        if head.magic != SNAPSHOT_FOOTER_MAGIC {
            return bad("its magic bytes are missing");
        }
        let seed = identity.seed(Kind::SnapshotFooter, offset);
        let sum = check_seal(block, seed, offset, what)?;
        let version = Version::of(head.version.get(), offset)?;
        check_zero(rest, offset, what)?;
        let footer = SnapshotFooter {
            checksum: sum,
            version,
            covered: head.covered.get(),
            blocks: head.blocks.get(),
            entries: head.entries.get(),
            tombstones: head.tombstones.get(),
            digest: head.digest.get(),
        };
        let place = footer
            .blocks
            .checked_add(1)
            .and_then(|n| n.checked_mul(BLOCK_BYTES as u64));
        let entry_blocks = footer.blocks.checked_sub(covered_blocks(footer.covered));
        let fits = entry_blocks
            .and_then(|blocks| blocks.checked_mul(ENTRIES_PER_BLOCK as u64))
            .is_some_and(|room| footer.entries <= room);
        if place != Some(offset) || !fits || footer.tombstones > footer.entries {
            return bad("contradicts itself or the file's length");
        }
        Ok(footer)
    }

    /// Whether everything that was read is everything that was written.
    ///
    /// # Errors
    /// `Damaged` at the footer.
    pub fn check(&self, tally: &SnapshotTally) -> Decoded<()> {
        let same = tally.covered_left() == 0
            && self.version == tally.version()
            && (
                self.covered,
                self.blocks,
                self.entries,
                self.tombstones,
                self.digest,
            ) == (
                tally.covered,
                tally.blocks,
                tally.entries,
                tally.tombstones,
                tally.digest,
            );
        if same {
            return Ok(());
        }
        let why = "footer of an index snapshot: its counts or digest are not those of the blocks";
        Err(DecodeError::damaged(tally.next_offset(), why))
    }
}
