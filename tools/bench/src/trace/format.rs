//! How do batches of keys lie in a trace file?
//!
//! ```text
//! header   magic "hpstrace", version u32, zero u32, checksum u64
//! block    payload bytes u32, keys u32, checksum u64, payload        one per batch
//! end      payload bytes u32 = 16, u32::MAX, checksum u64, batches u64, keys u64
//! ```
//!
//! - All numbers are little-endian. Nothing follows the end block; a file without one was not
//!   finished.
//! - A batch's payload holds the differences of each key to the one before (the first to 0), modulo
//!   2^64, as zigzag LEB128 varints: about two bytes a key where a batch is sorted. Order and
//!   repeated keys are kept.
//! - A checksum covers where the structure stands, its two numbers and its payload. Each step is a
//!   bijection of the 8 bytes it takes in, so that a change within 8 bytes is always found.

use anyhow::{Result, bail, ensure};
use hps::mix64;

/// First bytes of every trace.
pub const MAGIC: [u8; 8] = *b"hpstrace";
/// Version written, and the only one read.
pub const VERSION: u32 = 1;
/// Bytes of the header.
pub const HEADER_BYTES: u64 = 24;
/// Bytes before a block's payload.
pub const HEAD_BYTES: usize = 16;
/// Stands for the number of keys in the end block.
pub const END: u32 = u32::MAX;
/// Bytes of the end block's payload.
pub const END_BYTES: u32 = 16;
/// Most keys of a batch.
pub const KEYS_MAX: u32 = 1 << 28;
/// Most bytes of a varint.
pub const VARINT_MAX: usize = 10;

const _: () = assert!(KEYS_MAX as u64 * (VARINT_MAX as u64) < u32::MAX as u64 && KEYS_MAX < END);

/// The checksum of a structure at `offset` with these numbers and this payload.
pub fn checksum(offset: u64, numbers: [u32; 2], payload: &[u8]) -> u64 {
    let numbers = u64::from(numbers[0]) << 32 | u64::from(numbers[1]);
    let mut sum = mix64(mix64(offset ^ u64::from_le_bytes(MAGIC)) ^ numbers);
    for chunk in payload.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        sum = mix64(sum ^ u64::from_le_bytes(word));
    }
    sum
}

/// The header of every trace of this version.
pub fn header() -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&0u32.to_le_bytes());
    bytes.extend_from_slice(&checksum(0, [VERSION, 0], &MAGIC).to_le_bytes());
    bytes
}

/// The bytes before a payload that stands in a block at `offset`.
pub fn head(offset: u64, numbers: [u32; 2], payload: &[u8]) -> [u8; HEAD_BYTES] {
    let mut bytes = [0; HEAD_BYTES];
    bytes[..4].copy_from_slice(&numbers[0].to_le_bytes());
    bytes[4..8].copy_from_slice(&numbers[1].to_le_bytes());
    bytes[8..].copy_from_slice(&checksum(offset, numbers, payload).to_le_bytes());
    bytes
}

/// The u32 at `at`; 0 behind the end.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let found = bytes.get(at..at + 4).and_then(|b| b.try_into().ok());
    found.map_or(0, u32::from_le_bytes)
}

/// The u64 at `at`; 0 behind the end.
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let found = bytes.get(at..at + 8).and_then(|b| b.try_into().ok());
    found.map_or(0, u64::from_le_bytes)
}

/// Appends the keys of a batch.
pub fn encode(keys: &[u64], payload: &mut Vec<u8>) {
    let mut before = 0u64;
    for key in keys {
        let difference = key.wrapping_sub(before).cast_signed();
        let mut rest = ((difference << 1) ^ (difference >> 63)).cast_unsigned();
        while rest >= 0x80 {
            payload.push((rest & 0x7f) as u8 | 0x80);
            rest >>= 7;
        }
        payload.push((rest & 0x7f) as u8);
        before = *key;
    }
}

/// Replaces `keys` by the `count` keys of a payload.
///
/// # Errors
/// The payload does not hold exactly that many.
pub fn decode(mut payload: &[u8], count: u32, keys: &mut Vec<u64>) -> Result<()> {
    keys.clear();
    let mut before = 0u64;
    while !payload.is_empty() {
        let (zigzag, rest) = varint(payload)?;
        payload = rest;
        let difference = (zigzag >> 1) ^ (zigzag & 1).wrapping_neg();
        before = before.wrapping_add(difference);
        keys.push(before);
    }
    ensure!(
        keys.len() as u64 == u64::from(count),
        "holds {} keys, not the {count} that it says",
        keys.len()
    );
    Ok(())
}

/// The number that the bytes begin with, and what follows it.
fn varint(bytes: &[u8]) -> Result<(u64, &[u8])> {
    let mut number = 0u64;
    for (i, byte) in bytes.iter().take(VARINT_MAX).enumerate() {
        let bits = u64::from(byte & 0x7f);
        ensure!(i < VARINT_MAX - 1 || bits <= 1, "a key has over 64 bits");
        number |= bits << (7 * i);
        if byte & 0x80 == 0 {
            return Ok((number, bytes.get(i + 1..).unwrap_or_default()));
        }
    }
    bail!("a key does not end")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_have_the_bytes_that_the_layout_gives() {
        let mut payload = Vec::new();
        // Differences 5, -2, 0, 2^64 - 4 (that is -4), 300.
        encode(&[5, 3, 3, u64::MAX, 299], &mut payload);
        assert_eq!(payload, [10, 3, 0, 7, 0xd8, 0x04]);
        let mut keys = Vec::new();
        decode(&payload, 5, &mut keys).unwrap();
        assert_eq!(keys, [5, 3, 3, u64::MAX, 299]);
        assert!(decode(&payload, 4, &mut keys).is_err());
    }

    #[test]
    fn a_varint_is_refused_that_does_not_end_or_is_too_long() {
        let mut keys = Vec::new();
        assert!(decode(&[0x80], 1, &mut keys).is_err());
        assert!(decode(&[0xff; 11], 1, &mut keys).is_err());
        let greatest = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        decode(&greatest, 1, &mut keys).unwrap();
        assert_eq!(keys, [1 << 63], "zigzag of 2^64 - 1 is -2^63");
        let mut over = greatest;
        over[9] = 0x02;
        assert!(decode(&over, 1, &mut keys).is_err());
    }

    #[test]
    fn a_checksum_depends_on_place_numbers_and_every_byte() {
        let sum = checksum(24, [3, 1], &[1, 2, 3]);
        assert_ne!(sum, checksum(25, [3, 1], &[1, 2, 3]));
        assert_ne!(sum, checksum(24, [3, 2], &[1, 2, 3]));
        assert_ne!(sum, checksum(24, [3, 1], &[1, 2, 2]));
    }
}
