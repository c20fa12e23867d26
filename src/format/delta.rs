//! Which changes does a folder hold, and what must be there before them?
//!
//! - `DELTA` is the last thing that is written into a folder: without it the folder is not whole.
//! - It names the manifest of the files beside it by its digest, so its own checksum covers them all.
//! - It is in no store: its layout is not part of the fingerprint of a version.
//! - The same bytes end the meta of the checkpoint that applying it makes.

use zerocopy::little_endian::U64;

use super::Version;
use super::checksum::{Kind, Seal, ZERO_STORE, checksum};
use super::layout::{DecodeError, Decoded, Prefix, check_zero, decode_block, encode_block, layout};
use super::manifest::CheckpointMeta;
use crate::units::CheckpointId;

/// Magic bytes of `DELTA`.
pub const DELTA_MAGIC: [u8; 8] = *b"HPSDELT\0";
/// Bytes of `DELTA`.
pub const DELTA_BYTES: usize = 512;
/// Name of the file.
pub const DELTA_NAME: &str = "DELTA";
/// Name under which it is written.
pub const DELTA_TEMPORARY_NAME: &str = "DELTA.tmp";
/// The folder beside it that holds the files: a store with one checkpoint, and of its rows those
/// that changed.
pub const CHANGES_NAME: &str = "changes";

/// Most deltas that one may come after.
const SEQUENCE_MAX: u64 = u64::MAX - 1;

layout! {
    /// The file `DELTA`; zeros follow.
    DeltaBlock = 152 {
        prefix: Prefix,
        timeline: [u8; 16],
        since: U64,
        until: U64,
        sequence: U64,
        before: U64,
        since_print: U64,
        until_print: U64,
        step: U64,
        manifest_digest: U64,
        rows: U64,
        removed: U64,
        zero: U64,
    }
}

// The document has them all: tests/formats.rs.
const _: () = assert!(!DeltaBlock::FIELDS.is_empty());

/// What `DELTA` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delta {
    /// The store that changed.
    pub store: [u8; 16],
    /// Its timeline at that moment.
    pub timeline: [u8; 16],
    /// The changes come after this checkpoint; 0: they are all rows.
    pub since: CheckpointId,
    /// With them it is this one.
    pub until: CheckpointId,
    /// How many deltas come before it.
    pub sequence: u64,
    /// The checksum of the one before; 0 for the first.
    pub before: u64,
    /// What the two checkpoints are known by ([`print_of`]); 0 before the first.
    pub since_print: u64,
    /// Of `until`.
    pub until_print: u64,
    /// The trainer's step at `until`.
    pub step: u64,
    /// The digest of the manifest beside it.
    pub manifest_digest: u64,
    /// Rows that changed.
    pub rows: u64,
    /// Keys that were removed.
    pub removed: u64,
}

fn seed() -> u64 {
    Seal::new(&ZERO_STORE).seed(Kind::Delta, 0, 0)
}

/// What a checkpoint is known by in every copy of it: a number made from what no copy changes.
#[must_use]
pub fn print_of(checkpoint: &CheckpointMeta) -> u64 {
    let words = [
        checkpoint.id.0,
        checkpoint.step,
        u64::from(checkpoint.interval),
        checkpoint.meta_number.0,
        checkpoint.meta_bytes,
        checkpoint.meta_checksum,
        checkpoint.unix_seconds,
    ];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    checksum(&bytes, 0).max(1)
}

impl Delta {
    fn is_sane(&self) -> bool {
        let (is_first, is_all) = (self.before == 0, self.since == CheckpointId::NONE);
        self.since < self.until
            && self.sequence <= SEQUENCE_MAX
            && is_first == (self.sequence == 0)
            && is_all == (self.since_print == 0)
            && (!is_all || (is_first && self.removed == 0))
            && self.until_print != 0
    }

    /// The sequence of the one that comes after it; `None` where none can.
    #[must_use]
    pub fn next_sequence(&self) -> Option<u64> {
        (self.sequence < SEQUENCE_MAX).then(|| self.sequence + 1)
    }

    /// Encodes the file; its checksum too, by which the next one names it.
    #[must_use]
    pub fn encode(&self) -> ([u8; DELTA_BYTES], u64) {
        assert!(self.is_sane(), "DELTA is consistent when written: {self:?}");
        let mut out = [0; DELTA_BYTES];
        let block = DeltaBlock {
            prefix: Prefix::new(Version::NEWEST, DELTA_MAGIC, &self.store),
            timeline: self.timeline,
            since: U64::new(self.since.0),
            until: U64::new(self.until.0),
            sequence: U64::new(self.sequence),
            before: U64::new(self.before),
            since_print: U64::new(self.since_print),
            until_print: U64::new(self.until_print),
            step: U64::new(self.step),
            manifest_digest: U64::new(self.manifest_digest),
            rows: U64::new(self.rows),
            removed: U64::new(self.removed),
            zero: U64::ZERO,
        };
        let sum = encode_block(&mut out, &block, seed());
        (out, sum)
    }

    /// Decodes the file; its checksum too.
    ///
    /// # Errors
    /// `Newer`, or `Damaged` at byte 0.
    pub fn decode(bytes: &[u8]) -> Decoded<(Delta, u64)> {
        let what = DELTA_NAME;
        let (block, rest, sum) =
            decode_block::<DeltaBlock>(bytes, DELTA_BYTES, &DELTA_MAGIC, seed(), what)?;
        let store = block.prefix.store;
        block.prefix.check(&store)?;
        check_zero(rest, DeltaBlock::BYTES as u64, what)?;
        let delta = Delta {
            store,
            timeline: block.timeline,
            since: CheckpointId(block.since.get()),
            until: CheckpointId(block.until.get()),
            sequence: block.sequence.get(),
            before: block.before.get(),
            since_print: block.since_print.get(),
            until_print: block.until_print.get(),
            step: block.step.get(),
            manifest_digest: block.manifest_digest.get(),
            rows: block.rows.get(),
            removed: block.removed.get(),
        };
        if !delta.is_sane() || block.zero != U64::ZERO {
            return Err(DecodeError::damaged(0, "DELTA: contradicts itself"));
        }
        Ok((delta, sum))
    }

    /// The delta whose bytes end the meta of a checkpoint, its checksum, and the trainer's own bytes before
    /// them; `None` where there is none.
    #[must_use]
    pub fn at_end(meta: &[u8]) -> Option<(Delta, u64, &[u8])> {
        let (own, last) = meta.split_at_checked(meta.len().checked_sub(DELTA_BYTES)?)?;
        let (delta, sum) = Delta::decode(last).ok()?;
        Some((delta, sum, own))
    }
}

#[cfg(test)]
#[expect(clippy::indexing_slicing, reason = "a test may panic")]
mod tests {
    use super::*;

    fn delta() -> Delta {
        Delta {
            store: [1; 16],
            timeline: [2; 16],
            since: CheckpointId(3),
            until: CheckpointId(5),
            sequence: 2,
            before: 77,
            since_print: 8,
            until_print: 9,
            step: 40,
            manifest_digest: 10,
            rows: 11,
            removed: 12,
        }
    }

    #[test]
    fn what_is_encoded_is_decoded_and_every_changed_byte_is_found() {
        let (bytes, sum) = delta().encode();
        assert_eq!(Delta::decode(&bytes).unwrap(), (delta(), sum));
        for at in 0..DELTA_BYTES {
            let mut bad = bytes;
            bad[at] ^= 1;
            assert!(Delta::decode(&bad).is_err(), "byte {at}");
        }
        assert!(Delta::decode(&bytes[..511]).is_err() && Delta::decode(&[]).is_err());
    }

    #[test]
    fn it_is_found_at_the_end_of_a_meta() {
        let (bytes, sum) = delta().encode();
        let meta = [&b"dense weights"[..], &bytes[..]].concat();
        assert_eq!(Delta::at_end(&meta), Some((delta(), sum, &meta[..13])));
        assert_eq!(Delta::at_end(&bytes), Some((delta(), sum, &meta[..0])));
        assert_eq!(Delta::at_end(&meta[..meta.len() - 1]), None);
        assert_eq!(Delta::at_end(b"short"), None);
    }

    #[test]
    fn the_first_has_none_before_it() {
        let first = Delta {
            since: CheckpointId(0),
            sequence: 0,
            before: 0,
            since_print: 0,
            removed: 0,
            ..delta()
        };
        assert!(Delta::decode(&first.encode().0).is_ok());
        let contradictions = [
            Delta { before: 1, ..first },
            Delta {
                sequence: 1,
                ..first
            },
            Delta {
                since_print: 1,
                ..first
            },
            Delta {
                since_print: 0,
                ..delta()
            },
            Delta {
                until_print: 0,
                ..delta()
            },
            Delta {
                removed: 1,
                ..first
            },
            Delta {
                before: 0,
                ..delta()
            },
            Delta {
                sequence: 0,
                ..delta()
            },
            Delta {
                since: CheckpointId(5),
                ..delta()
            },
        ];
        assert!(contradictions.iter().all(|delta| !delta.is_sane()));
    }
}
