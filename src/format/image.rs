//! What is in an index image?
//!
//! - Header block, blocks with the numbers of the files it covers, blocks of entries, footer
//!   block. It is written in one pass: what is not known before is in the footer.
//! - Entries are in the order of (table, mix64(key)), strictly; a block is of one table.
//! - It is a cache: a reader that finds any damage rebuilds it from the key blocks.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::checksum::{FileIdentity, Kind, roll};
use super::layout::{
    DecodeError, Decoded, Prefix, check_seal, check_zero, decode_block, encode_block, layout, seal,
    view,
};
use super::{BLOCK_BYTES, Version};
use crate::options::TABLES_MAX;
use crate::units::{CheckpointId, mix64};

/// Magic bytes of an image's header.
pub const IMAGE_MAGIC: [u8; 8] = *b"HPSIMAG\0";
/// Magic bytes of an image's footer.
pub const IMAGE_FOOTER_MAGIC: [u8; 8] = *b"HPSIMGF\0";
/// File numbers of a full block.
pub const COVERED_PER_BLOCK: usize = 510;
/// Entries of a full block.
pub const ENTRIES_PER_BLOCK: usize = 255;
/// Most files that an image covers: an ordinal has 24 bits.
pub const COVERED_MAX: u32 = 1 << 24;
/// Where the ordinal starts in a location.
pub const ORDINAL_SHIFT: u32 = 40;
/// The tombstone bit of a location.
pub const TOMBSTONE_BIT: u64 = 1 << 39;

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
    ImageFooterBlock = 56 {
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
const _: () = assert!(COVERED_MAX as u64 == 1 << (64 - ORDINAL_SHIFT));
const _: () = assert!(TOMBSTONE_BIT < 1 << ORDINAL_SHIFT && TOMBSTONE_BIT > u32::MAX as u64);

/// Blocks of file numbers of an image that covers that many files.
#[must_use]
pub const fn covered_blocks(covered: u32) -> u64 {
    (covered as u64).div_ceil(COVERED_PER_BLOCK as u64)
}

/// One key of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageEntry {
    /// The key.
    pub key: u64,
    /// Its file: position in the list of files covered.
    pub ordinal: u32,
    /// Whether the key was removed.
    pub tombstone: bool,
    /// Its entry in the file.
    pub entry: u32,
}

/// Counts and digests the blocks of an image, in order: the same for writer and reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageTally {
    covered: u32,
    covered_seen: u32,
    blocks: u64,
    entries: u64,
    tombstones: u64,
    digest: u64,
    last: Option<(u32, u64)>,
}

impl ImageTally {
    /// Starts after the header.
    fn new(covered: u32, header_checksum: u64) -> ImageTally {
        ImageTally {
            covered,
            covered_seen: 0,
            blocks: 0,
            entries: 0,
            tombstones: 0,
            digest: header_checksum,
            last: None,
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
    fn next_covered(&self) -> u32 {
        let full = u32::try_from(COVERED_PER_BLOCK).unwrap_or(u32::MAX);
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
    fn takes(&self, table: u32, entries: &[ImageEntry]) -> bool {
        let mut last = self.last;
        self.covered_left() == 0
            && (table as usize) < TABLES_MAX
            && entries.iter().all(|entry| {
                let this = (table, mix64(entry.key));
                let rises = last.is_none_or(|last| last < this);
                last = Some(this);
                rises && entry.ordinal < self.covered
            })
    }

    fn add_entries(&mut self, table: u32, entries: &[ImageEntry], sum: u64) {
        self.entries += entries.len() as u64;
        self.tombstones += entries.iter().filter(|entry| entry.tombstone).count() as u64;
        self.last = entries
            .last()
            .map(|entry| (table, mix64(entry.key)))
            .or(self.last);
        self.add_block(sum);
    }
}

/// The header block of an image that will cover `covered` files, and the tally to go on with.
#[must_use]
pub fn encode_image_header(
    identity: &FileIdentity,
    checkpoint_id: CheckpointId,
    covered: u32,
) -> ([u8; BLOCK_BYTES], ImageTally) {
    assert!(
        (1..=COVERED_MAX).contains(&covered),
        "an image covers 1 to 2^24 files"
    );
    let head = ImageHeader {
        prefix: Prefix::new(Version::NEWEST, IMAGE_MAGIC, &identity.store()),
        number: U64::new(identity.number()),
        checkpoint_id: U64::new(checkpoint_id.0),
        covered: U32::new(covered),
        zero: U32::ZERO,
    };
    let mut out = [0; BLOCK_BYTES];
    let sum = encode_block(&mut out, &head, identity.seed(Kind::ImageHeader, 0));
    (out, ImageTally::new(covered, sum))
}

/// Decodes the header block; returns the checkpoint's id and the tally to go on with.
///
/// # Errors
/// `Newer`, or `Damaged` at byte 0.
pub fn decode_image_header(
    block: &[u8],
    identity: &FileIdentity,
) -> Decoded<(CheckpointId, ImageTally)> {
    let what = "header of an image";
    let seed = identity.seed(Kind::ImageHeader, 0);
    let (head, rest, sum) =
        decode_block::<ImageHeader>(block, BLOCK_BYTES, &IMAGE_MAGIC, seed, what)?;
    head.prefix.check(&identity.store())?;
    check_zero(rest, ImageHeader::BYTES as u64, what)?;
    let covered = head.covered.get();
    let right = head.number.get() == identity.number()
        && head.zero == U32::ZERO
        && (1..=COVERED_MAX).contains(&covered);
    if !right {
        return Err(DecodeError::damaged(
            0,
            format!("{what}: contradicts itself"),
        ));
    }
    Ok((
        CheckpointId(head.checkpoint_id.get()),
        ImageTally::new(covered, sum),
    ))
}

/// Writes the next block of file numbers.
///
/// # Shapes      `out: [4096]`, `numbers: [n]`, n = 510 but in the last such block
pub fn encode_covered_block(
    out: &mut [u8],
    numbers: &[u64],
    identity: &FileIdentity,
    tally: &mut ImageTally,
) {
    let count = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
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
            place.set(*number);
        }
    }
    let sum = seal(out, identity.seed(Kind::ImageBlock, tally.next_offset()));
    tally.covered_seen += count;
    tally.add_block(sum);
}

/// Verifies the next block of file numbers (while [`ImageTally::covered_left`]) and appends them.
///
/// # Errors
/// `Damaged` at the block.
pub fn decode_covered_block(
    bytes: &[u8],
    identity: &FileIdentity,
    tally: &mut ImageTally,
    numbers: &mut Vec<u64>,
) -> Decoded<()> {
    let what = "file numbers of an image";
    let offset = tally.next_offset();
    let bad = |why: &str| Err(DecodeError::damaged(offset, format!("{what}: {why}")));
    if bytes.len() != BLOCK_BYTES {
        return bad("not 4096 bytes");
    }
    let sum = check_seal(bytes, identity.seed(Kind::ImageBlock, offset), offset, what)?;
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
    numbers.extend(used.iter().map(|number| number.get()));
    tally.covered_seen += count;
    tally.add_block(sum);
    Ok(())
}

/// Writes the next block of entries.
///
/// # Shapes      `out: [4096]`, `entries: [n]`, n in 1..=255
pub fn encode_entry_block(
    out: &mut [u8],
    table: u32,
    entries: &[ImageEntry],
    identity: &FileIdentity,
    tally: &mut ImageTally,
) {
    assert!(
        (1..=ENTRIES_PER_BLOCK).contains(&entries.len()),
        "a block holds 1 to 255 entries"
    );
    assert!(
        tally.takes(table, entries),
        "entries of an image come in order, after its files"
    );
    assert!(out.len() == BLOCK_BYTES, "a block has its size");
    out.fill(0);
    if let Ok(block) = EntryBlock::mut_from_bytes(out) {
        block.count = U32::new(u32::try_from(entries.len()).unwrap_or(u32::MAX));
        block.table = U32::new(table);
        for (place, entry) in block.entries.iter_mut().zip(entries) {
            let tombstone = if entry.tombstone { TOMBSTONE_BIT } else { 0 };
            let file = u64::from(entry.ordinal) << ORDINAL_SHIFT;
            place.key.set(entry.key);
            place
                .location
                .set(file | tombstone | u64::from(entry.entry));
        }
    }
    let sum = seal(out, identity.seed(Kind::ImageBlock, tally.next_offset()));
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
    DecodeError::damaged(offset, format!("entries of an image: {why}"))
}

/// Verifies what a block of entries at `offset` says of itself.
pub(super) fn check_entry_block<'a>(
    bytes: &'a [u8],
    identity: &FileIdentity,
    offset: u64,
) -> Decoded<CheckedBlock<'a>> {
    let what = "entries of an image";
    if bytes.len() != BLOCK_BYTES {
        return Err(bad_entries(offset, "not 4096 bytes"));
    }
    let sum = check_seal(bytes, identity.seed(Kind::ImageBlock, offset), offset, what)?;
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
    tally: &mut ImageTally,
    entries: &mut Vec<ImageEntry>,
) -> Decoded<u32> {
    let offset = tally.next_offset();
    entries.clear();
    let block = check_entry_block(bytes, identity, offset)?;
    for place in block.entries {
        let location = place.location.get();
        let ordinal = u32::try_from(location >> ORDINAL_SHIFT);
        let entry = u32::try_from(location & (TOMBSTONE_BIT - 1));
        let (Ok(ordinal), Ok(entry)) = (ordinal, entry) else {
            let why = "reserved bits of a location are not zero";
            return Err(bad_entries(offset, why));
        };
        let tombstone = location & TOMBSTONE_BIT != 0;
        entries.push(ImageEntry {
            key: place.key.get(),
            ordinal,
            tombstone,
            entry,
        });
    }
    if !tally.takes(block.table, entries) {
        let why = "out of order, or of a file or table that is not there";
        return Err(bad_entries(offset, why));
    }
    tally.add_entries(block.table, entries, block.sum);
    Ok(block.table)
}

/// The footer block, which ends the file at [`ImageTally::next_offset`]; returns its checksum.
#[must_use]
pub fn encode_image_footer(
    identity: &FileIdentity,
    tally: &ImageTally,
) -> ([u8; BLOCK_BYTES], u64) {
    assert!(
        tally.covered_left() == 0,
        "an image lists all files that it covers"
    );
    let head = ImageFooterBlock {
        checksum: U64::ZERO,
        magic: IMAGE_FOOTER_MAGIC,
        version: U32::new(Version::NEWEST.number()),
        covered: U32::new(tally.covered),
        blocks: U64::new(tally.blocks),
        entries: U64::new(tally.entries),
        tombstones: U64::new(tally.tombstones),
        digest: U64::new(tally.digest),
    };
    let mut out = [0; BLOCK_BYTES];
    let seed = identity.seed(Kind::ImageFooter, tally.next_offset());
    let sum = encode_block(&mut out, &head, seed);
    (out, sum)
}

/// What an image's footer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageFooter {
    /// The footer's checksum; covers the file.
    pub checksum: u64,
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

impl ImageFooter {
    /// Decodes the footer block at file offset `offset`, which ends the file.
    ///
    /// # Errors
    /// `Newer`, or `Damaged` at `offset`.
    pub fn decode(block: &[u8], identity: &FileIdentity, offset: u64) -> Decoded<ImageFooter> {
        let what = "footer of an image";
        let bad = |why: &str| Err(DecodeError::damaged(offset, format!("{what}: {why}")));
        if block.len() != BLOCK_BYTES {
            return bad("not 4096 bytes");
        }
        let (head, rest) = view::<ImageFooterBlock>(block, offset, what)?;
        if head.magic != IMAGE_FOOTER_MAGIC {
            return bad("its magic bytes are missing");
        }
        let seed = identity.seed(Kind::ImageFooter, offset);
        let sum = check_seal(block, seed, offset, what)?;
        Version::of(head.version.get(), offset)?;
        check_zero(rest, offset, what)?;
        let footer = ImageFooter {
            checksum: sum,
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
    pub fn check(&self, tally: &ImageTally) -> Decoded<()> {
        let same = tally.covered_left() == 0
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
        let why = "footer of an image: its counts or digest are not those of the blocks";
        Err(DecodeError::damaged(tally.next_offset(), why))
    }
}
