//! What is in a parameter file: header, records, key blocks?
//!
//! - Records are in runs, one run per table; inside a run they are sorted by mix64(key),
//!   strictly. Runs follow each other without a gap.
//! - A tombstone has an entry (key and interval in a key block) and no record.
//! - Header, records and key blocks are here; what lists them is in [`super::footer`].

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::checksum::{FileIdentity, Kind};
use super::layout::{
    DecodeError, Decoded, check_file_header, check_seal, check_zero, encode_file_header, layout,
    seal, view,
};
use super::{BLOCK_BYTES, Version};
use crate::options::DIM_MAX;
use crate::units::{narrow, to_usize};

/// Magic bytes of the header.
pub const PARAM_MAGIC: [u8; 8] = *b"HPSROWS\0";
/// Size of the header block; the first record is here.
pub const PARAM_HEADER_BYTES: usize = BLOCK_BYTES;
/// Keys of a full key block.
pub const KEYS_PER_BLOCK: usize = 340;
/// Largest row: weights and two states of the largest `dim`, one more word, four columns.
pub const ROW_BYTES_MAX: usize = 4 * (3 * DIM_MAX + 1 + 4);
/// Smallest distance of two records: a row of one f32.
pub const STRIDE_MIN: usize = record_stride(4);
/// Largest distance of two records.
pub const STRIDE_MAX: usize = record_stride(ROW_BYTES_MAX);
/// Most entries of a file: entry numbers are u32 in the index and its snapshot.
pub const ENTRIES_MAX: u64 = u32::MAX as u64;
layout! {
    /// The start of a record; the row follows, then zeros to a multiple of 8.
    RecordHead = 16 {
        checksum: U64,
        key: U64,
    }
}

layout! {
    /// Keys and intervals of up to 340 entries.
    KeyBlock = 4096 {
        checksum: U64,
        count: U32,
        zero: U32,
        keys: [U64; 340],
        intervals: [U32; 340],
    }
}

const _: () = assert!(KeyBlock::BYTES == BLOCK_BYTES && PARAM_HEADER_BYTES == BLOCK_BYTES);
const _: () = assert!(STRIDE_MAX <= u32::MAX as usize && STRIDE_MIN == 24);
const _: () = assert!(
    PARAM_HEADER_BYTES.is_multiple_of(8),
    "records are aligned to 8"
);

/// Bytes from one record to the next.
#[must_use]
pub const fn record_stride(row_bytes: usize) -> usize {
    (RecordHead::BYTES + row_bytes).next_multiple_of(8)
}

/// Key blocks of a file with that many entries.
#[must_use]
pub const fn key_blocks(entries: u64) -> u64 {
    entries.div_ceil(KEYS_PER_BLOCK as u64)
}

/// The header block of a parameter file.
#[must_use]
pub fn encode_header(identity: &FileIdentity) -> [u8; PARAM_HEADER_BYTES] {
    let mut block = [0; PARAM_HEADER_BYTES];
    let kind = Kind::ParamHeader;
    encode_file_header(&mut block, Version::NEWEST, PARAM_MAGIC, identity, kind);
    block
}

/// Checks the header block of a parameter file.
///
/// # Errors
/// `Newer`, or `Damaged` at byte 0.
pub fn check_header(block: &[u8], identity: &FileIdentity) -> Decoded<()> {
    let what = "header of a parameter file";
    let kind = Kind::ParamHeader;
    check_file_header(
        block,
        PARAM_HEADER_BYTES,
        &PARAM_MAGIC,
        identity,
        kind,
        what,
    )
    .map(|_| ())
}

/// Copies f32s into bytes; one memcpy on a little-endian machine.
///
/// # Shapes      `out: [4 n]`, `row: [n]`
#[inline]
pub fn put_f32s(out: &mut [u8], row: &[f32]) {
    let (words, rest) = out.as_chunks_mut::<4>();
    assert!(
        words.len() == row.len() && rest.is_empty(),
        "a row and its bytes agree in length"
    );
    for (word, value) in words.iter_mut().zip(row) {
        *word = value.to_le_bytes();
    }
}

/// Copies bytes into f32s; one memcpy on a little-endian machine.
///
/// # Shapes      `bytes: [4 n]`, `row: [n]`
#[inline]
pub fn get_f32s(bytes: &[u8], row: &mut [f32]) {
    let (words, rest) = bytes.as_chunks::<4>();
    assert!(
        words.len() == row.len() && rest.is_empty(),
        "a row and its bytes agree in length"
    );
    for (value, word) in row.iter_mut().zip(words) {
        *value = f32::from_le_bytes(*word);
    }
}

/// Writes the record of `row` at file offset `offset`; returns its checksum.
///
/// # Shapes      `out: [record_stride(4 n)]`, `row: [n]`
#[inline]
pub fn encode_record(
    out: &mut [u8],
    key: u64,
    row: &[f32],
    identity: &FileIdentity,
    offset: u64,
) -> u64 {
    write_record(out, key, row);
    seal_record(out, identity, offset)
}

/// The same without the checksum, which [`seal_record`] writes.
///
/// # Shapes      `out: [record_stride(4 n)]`, `row: [n]`
#[inline]
pub fn write_record(out: &mut [u8], key: u64, row: &[f32]) {
    let row_bytes = row.len() * 4;
    assert!(
        out.len() == record_stride(row_bytes),
        "a record's buffer has its stride"
    );
    let body = write_head(out, key);
    let (target, padding) = body.split_at_mut(row_bytes);
    put_f32s(target, row);
    padding.fill(0);
}

/// As [`encode_record`], of a row that is bytes already (compaction copies rows unread).
///
/// # Shapes      `out: [record_stride(n)]`, `row: [n]`
#[inline]
#[cfg(any(test, feature = "sim"))]
pub fn encode_record_bytes(
    out: &mut [u8],
    key: u64,
    row: &[u8],
    identity: &FileIdentity,
    offset: u64,
) -> u64 {
    assert!(
        out.len() == record_stride(row.len()),
        "a record's buffer has its stride"
    );
    let body = write_head(out, key);
    let (target, padding) = body.split_at_mut(row.len());
    target.copy_from_slice(row);
    padding.fill(0);
    seal_record(out, identity, offset)
}

/// Gives what comes behind the head.
#[inline]
fn write_head(out: &mut [u8], key: u64) -> &mut [u8] {
    let (head, body) = out.split_at_mut(RecordHead::BYTES);
    head.copy_from_slice(
        RecordHead {
            checksum: U64::ZERO,
            key: U64::new(key),
        }
        .as_bytes(),
    );
    body
}

/// Writes the checksum of a record at file offset `offset`, and returns it.
#[inline]
pub fn seal_record(record: &mut [u8], identity: &FileIdentity, offset: u64) -> u64 {
    seal(record, identity.seed(Kind::Record, offset))
}

/// A verified record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordView<'a> {
    /// Its key.
    pub key: u64,
    /// Its checksum, for `rows_digest`.
    pub checksum: u64,
    /// The row, without padding.
    pub row: &'a [u8],
}

/// Verifies a record: length, checksum, padding.
///
/// # Shapes      `bytes: [record_stride(row_bytes)]`
/// # Errors      `Damaged` at `offset`
#[inline]
pub fn view_record<'a>(
    bytes: &'a [u8],
    row_bytes: usize,
    identity: &FileIdentity,
    offset: u64,
) -> Decoded<RecordView<'a>> {
    if row_bytes > ROW_BYTES_MAX || bytes.len() != record_stride(row_bytes) {
        let why = format!(
            "record: {} bytes for a row of {row_bytes} bytes",
            bytes.len()
        );
        return Err(DecodeError::damaged(offset, why));
    }
    let sum = check_seal(bytes, identity.seed(Kind::Record, offset), offset, "record")?;
    let (head, body) = view::<RecordHead>(bytes, offset, "record")?;
    let (row, padding) = body.split_at_checked(row_bytes).unwrap_or((body, &[]));
    check_zero(padding, offset, "record")?;
    Ok(RecordView {
        key: head.key.get(),
        checksum: sum,
        row,
    })
}

/// Verifies a record and copies its row; returns its key. `row` is untouched on an error.
///
/// # Shapes      `bytes: [record_stride(4 n)]`, `row: [n]`
/// # Errors      `Damaged` at `offset`; also for another key than `expected_key`
#[inline]
pub fn decode_record(
    bytes: &[u8],
    row: &mut [f32],
    identity: &FileIdentity,
    offset: u64,
    expected_key: Option<u64>,
) -> Decoded<u64> {
    let record = view_record(bytes, row.len() * 4, identity, offset)?;
    if let Some(expected) = expected_key
        && expected != record.key
    {
        let why = format!("record: of key {:#x}, not of key {expected:#x}", record.key);
        return Err(DecodeError::damaged(offset, why));
    }
    get_f32s(record.row, row);
    Ok(record.key)
}

/// Writes a key block; returns its checksum.
///
/// # Shapes      `out: [4096]`, `keys: [n]`, `intervals: [n]`, n in 1..=340
pub fn encode_key_block(
    out: &mut [u8],
    keys: &[u64],
    intervals: &[u32],
    identity: &FileIdentity,
    offset: u64,
) -> u64 {
    assert!(out.len() == BLOCK_BYTES, "a key block is a block");
    assert!(keys.len() == intervals.len(), "every key has an interval");
    assert!(
        (1..=KEYS_PER_BLOCK).contains(&keys.len()),
        "a key block holds 1 to 340 keys"
    );
    out.fill(0);
    if let Ok(block) = KeyBlock::mut_from_bytes(out) {
        block.count = U32::new(narrow(keys.len()));
        for (place, key) in block.keys.iter_mut().zip(keys) {
            place.set(*key);
        }
        for (place, interval) in block.intervals.iter_mut().zip(intervals) {
            place.set(*interval);
        }
    }
    seal(out, identity.seed(Kind::KeyBlock, offset))
}

/// Entries of a verified key block.
#[derive(Clone, Copy, Debug)]
pub struct KeyEntries<'a> {
    keys: &'a [U64],
    intervals: &'a [U32],
    /// The block's checksum.
    pub checksum: u64,
}

impl<'a> KeyEntries<'a> {
    /// Number of entries, 1 to [`KEYS_PER_BLOCK`].
    #[must_use]
    pub fn count(&self) -> usize {
        self.keys.len()
    }

    /// Those from one on, so many of them or fewer where it holds fewer.
    #[must_use]
    pub fn part(&self, from: usize, count: usize) -> KeyEntries<'a> {
        fn part<T>(all: &[T], from: usize, count: usize) -> &[T] {
            let (_, rest) = all.split_at_checked(from).unwrap_or((all, &[]));
            rest.split_at_checked(count).map_or(rest, |(part, _)| part)
        }
        KeyEntries {
            keys: part(self.keys, from, count),
            intervals: part(self.intervals, from, count),
            checksum: self.checksum,
        }
    }

    /// Their keys.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = u64> + use<'a> {
        self.keys.iter().map(|key| key.get())
    }

    /// Their intervals.
    pub fn intervals(&self) -> impl ExactSizeIterator<Item = u32> + use<'a> {
        self.intervals.iter().map(|interval| interval.get())
    }
}

/// Verifies a key block and shows its entries where they are.
///
/// # Shapes      `bytes: [4096]`
/// # Errors      `Damaged` at `offset`
pub fn view_key_block<'a>(
    bytes: &'a [u8],
    identity: &FileIdentity,
    offset: u64,
) -> Decoded<KeyEntries<'a>> {
    let bad = |why: &str| Err(DecodeError::damaged(offset, why));
    if bytes.len() != BLOCK_BYTES {
        return bad("key block: not 4096 bytes");
    }
    let seed = identity.seed(Kind::KeyBlock, offset);
    let checksum = check_seal(bytes, seed, offset, "key block")?;
    let (block, _) = view::<KeyBlock>(bytes, offset, "key block")?;
    let count = to_usize(block.count.get());
    if count == 0 || block.zero != U32::ZERO {
        return bad("key block: empty, or reserved bytes are not zero");
    }
    let (Some((keys, free_keys)), Some((intervals, free_intervals))) = (
        block.keys.split_at_checked(count),
        block.intervals.split_at_checked(count),
    ) else {
        return bad("key block: more than 340 entries");
    };
    check_zero(free_keys.as_bytes(), offset, "key block")?;
    check_zero(free_intervals.as_bytes(), offset, "key block")?;
    Ok(KeyEntries {
        keys,
        intervals,
        checksum,
    })
}

/// Verifies a key block and appends its entries; returns its checksum.
///
/// # Shapes      `bytes: [4096]`
/// # Errors      `Damaged` at `offset`; nothing is appended then
pub fn decode_key_block(
    bytes: &[u8],
    identity: &FileIdentity,
    offset: u64,
    keys: &mut Vec<u64>,
    intervals: &mut Vec<u32>,
) -> Decoded<u64> {
    let entries = view_key_block(bytes, identity, offset)?;
    keys.extend(entries.keys());
    intervals.extend(entries.intervals());
    Ok(entries.checksum)
}
