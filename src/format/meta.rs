//! Where are the trainer's own bytes of a checkpoint?
//!
//! - A meta file is a header and a body; the body is the trainer's and means nothing here.
//! - The header has the body's checksum: its own, which the manifest stores, covers the file.

use zerocopy::little_endian::U64;

use super::Version;
use super::checksum::{Digest, FileIdentity, Kind, checksum};
use super::layout::{DecodeError, Decoded, Prefix, decode_block, encode_block, layout};
use crate::units::CheckpointId;

/// Magic bytes of a meta file.
pub const META_MAGIC: [u8; 8] = *b"HPSMETA\0";
/// Bytes of a meta file's header; the body starts here.
pub const META_HEADER_BYTES: usize = MetaHeader::BYTES;

layout! {
    /// The header of a meta file.
    MetaHeader = 128 {
        prefix: Prefix,
        number: U64,
        checkpoint_id: U64,
        body_bytes: U64,
        body_checksum: U64,
        zero: [u8; 48],
    }
}

fn body_seed(identity: &FileIdentity) -> u64 {
    identity.seed(Kind::MetaBody, META_HEADER_BYTES as u64)
}

/// Encodes the header for `body`; the file is the header and the body. Returns the header's
/// checksum too.
#[must_use]
pub fn encode_meta_header(
    identity: &FileIdentity,
    checkpoint_id: CheckpointId,
    body: &[u8],
) -> ([u8; META_HEADER_BYTES], u64) {
    let head = MetaHeader {
        prefix: Prefix::new(Version::NEWEST, META_MAGIC, &identity.store()),
        number: U64::new(identity.number().0),
        checkpoint_id: U64::new(checkpoint_id.0),
        body_bytes: U64::new(body.len() as u64),
        body_checksum: U64::new(checksum(body, body_seed(identity))),
        zero: [0; 48],
    };
    let mut out = [0; META_HEADER_BYTES];
    let sum = encode_block(&mut out, &head, identity.seed(Kind::MetaHeader, 0));
    (out, sum)
}

/// A verified meta file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg(any(test, feature = "sim"))]
pub struct MetaView<'a> {
    /// The header's checksum.
    pub checksum: u64,
    /// The checkpoint.
    pub checkpoint_id: CheckpointId,
    /// The trainer's bytes.
    pub body: &'a [u8],
}

/// A verified header; the body is verified as it comes, piece by piece.
#[derive(Clone, Debug)]
pub struct MetaHead {
    /// The header's checksum.
    pub checksum: u64,
    /// The checkpoint.
    pub checkpoint_id: CheckpointId,
    /// Bytes of the body.
    pub body_bytes: u64,
    body_checksum: u64,
    seed: u64,
    digest: Digest,
}

fn bad_body<T>(why: &str) -> Decoded<T> {
    let what = format!("body of a meta file: {why}");
    Err(DecodeError::damaged(META_HEADER_BYTES as u64, what))
}

impl MetaHead {
    /// Verifies the header of a meta file that is `file_bytes` long.
    ///
    /// # Errors
    /// `Newer`, or `Damaged` at the header or, for a file of another length, at the body.
    pub fn decode(header: &[u8], file_bytes: u64, identity: &FileIdentity) -> Decoded<MetaHead> {
        let what = "header of a meta file";
        if header.len() < META_HEADER_BYTES {
            return Err(DecodeError::damaged(0, format!("{what}: cut short")));
        }
        let seed = identity.seed(Kind::MetaHeader, 0);
        let (head, _, checksum) =
            decode_block::<MetaHeader>(header, META_HEADER_BYTES, &META_MAGIC, seed, what)?;
        head.prefix.check(&identity.store())?;
        if head.number.get() != identity.number().0 || head.zero != [0; 48] {
            let why = format!("{what}: of another file, or reserved bytes are not zero");
            return Err(DecodeError::damaged(0, why));
        }
        let body_bytes = head.body_bytes.get();
        if file_bytes.checked_sub(META_HEADER_BYTES as u64) != Some(body_bytes) {
            return bad_body("another length than the header says");
        }
        Ok(MetaHead {
            checksum,
            checkpoint_id: CheckpointId(head.checkpoint_id.get()),
            body_bytes,
            body_checksum: head.body_checksum.get(),
            seed: body_seed(identity),
            digest: Digest::new(),
        })
    }

    /// The next bytes of the body.
    pub fn update(&mut self, bytes: &[u8]) {
        self.digest.update(bytes);
    }

    /// All of the body has come: verifies it.
    ///
    /// # Errors
    /// `Damaged` at the body.
    pub fn finish(&self) -> Decoded<()> {
        match self.digest.digest64() ^ self.seed == self.body_checksum {
            true => Ok(()),
            false => bad_body("checksum does not match"),
        }
    }
}

/// Verifies a whole meta file.
///
/// # Errors
/// `Newer`, or `Damaged` at the header or the body.
#[cfg(any(test, feature = "sim"))]
pub fn decode_meta<'a>(bytes: &'a [u8], identity: &FileIdentity) -> Decoded<MetaView<'a>> {
    let (header, body) = bytes
        .split_at_checked(META_HEADER_BYTES)
        .unwrap_or((bytes, &[]));
    let mut head = MetaHead::decode(header, bytes.len() as u64, identity)?;
    head.update(body);
    head.finish()?;
    Ok(MetaView {
        checksum: head.checksum,
        checkpoint_id: head.checkpoint_id,
        body,
    })
}
