//! Which manifest is in force, and up to which byte?
//!
//! - `CURRENT` is replaced by rename: there is the old one or the new one, never a mixture.
//! - `CURRENT` and the manifest that it names are of one version of the format, that of the store.
//! - Bytes of the manifest after the committed length do not exist.
//! - An older intact `CURRENT` of the same store can't be told from the newest.

use zerocopy::little_endian::U64;

use super::Version;
use super::checksum::{Kind, Seal};
use super::layout::{DecodeError, Decoded, Prefix, check_zero, decode_block, encode_block, layout};
use super::manifest::MANIFEST_HEADER_BYTES;
use crate::units::{CheckpointId, FileNumber};

/// Magic bytes of `CURRENT`.
pub const CURRENT_MAGIC: [u8; 8] = *b"HPSCURR\0";
/// Bytes of `CURRENT`.
pub const CURRENT_BYTES: usize = 256;

layout! {
    /// The file `CURRENT`; zeros follow.
    CurrentBlock = 120 {
        prefix: Prefix,
        timeline: [u8; 16],
        manifest_number: U64,
        manifest_bytes: U64,
        manifest_digest: U64,
        checkpoint_id: U64,
        step: U64,
        file_number_limit: U64,
        next_checkpoint_id: U64,
    }
}

const _: () = assert!(
    CurrentBlock::BYTES <= CURRENT_BYTES,
    "CURRENT has its length"
);
const _: () = assert!(CURRENT_BYTES <= 512, "CURRENT is written by one sector");

/// What `CURRENT` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Current {
    /// Version of this file and of the manifest: that of the store.
    pub version: Version,
    /// The timeline.
    pub timeline: [u8; 16],
    /// Number of the manifest in force.
    pub manifest_number: FileNumber,
    /// Its committed length.
    pub manifest_bytes: u64,
    /// The rolling digest of its committed bytes.
    pub manifest_digest: u64,
    /// The last checkpoint; 0 before the first.
    pub checkpoint_id: CheckpointId,
    /// The step of that checkpoint.
    pub step: u64,
    /// File numbers below may have been used.
    pub file_number_limit: FileNumber,
    /// Id of the next checkpoint.
    pub next_checkpoint_id: CheckpointId,
}

impl Current {
    fn is_sane(&self) -> bool {
        self.manifest_bytes >= MANIFEST_HEADER_BYTES as u64
            && self.manifest_bytes.is_multiple_of(8)
            && self.manifest_number < self.file_number_limit
            && self.checkpoint_id < self.next_checkpoint_id
    }

    /// Encodes the file.
    #[must_use]
    pub fn encode(&self, store: &[u8; 16]) -> [u8; CURRENT_BYTES] {
        assert!(
            self.is_sane(),
            "CURRENT is consistent when written: {self:?}"
        );
        let mut out = [0; CURRENT_BYTES];
        let block = CurrentBlock {
            prefix: Prefix::new(self.version, CURRENT_MAGIC, store),
            timeline: self.timeline,
            manifest_number: U64::new(self.manifest_number.0),
            manifest_bytes: U64::new(self.manifest_bytes),
            manifest_digest: U64::new(self.manifest_digest),
            checkpoint_id: U64::new(self.checkpoint_id.0),
            step: U64::new(self.step),
            file_number_limit: U64::new(self.file_number_limit.0),
            next_checkpoint_id: U64::new(self.next_checkpoint_id.0),
        };
        let seed = Seal::new(store).seed(Kind::Current, 0, 0);
        encode_block(&mut out, &block, seed);
        out
    }

    /// Decodes the file.
    ///
    /// # Errors
    /// `Newer`, or `Damaged` at byte 0.
    pub fn decode(bytes: &[u8], store: &[u8; 16]) -> Decoded<Current> {
        let seed = Seal::new(store).seed(Kind::Current, 0, 0);
        let (block, rest, _) =
            decode_block::<CurrentBlock>(bytes, CURRENT_BYTES, &CURRENT_MAGIC, seed, "CURRENT")?;
        let version = block.prefix.check(store)?;
        check_zero(rest, CurrentBlock::BYTES as u64, "CURRENT")?;
        let current = Current {
            version,
            timeline: block.timeline,
            manifest_number: FileNumber(block.manifest_number.get()),
            manifest_bytes: block.manifest_bytes.get(),
            manifest_digest: block.manifest_digest.get(),
            checkpoint_id: CheckpointId(block.checkpoint_id.get()),
            step: block.step.get(),
            file_number_limit: FileNumber(block.file_number_limit.get()),
            next_checkpoint_id: CheckpointId(block.next_checkpoint_id.get()),
        };
        if !current.is_sane() {
            return Err(DecodeError::damaged(0, "CURRENT: contradicts itself"));
        }
        Ok(current)
    }
}
