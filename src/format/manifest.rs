//! How is the history of the version written?
//!
//! - A manifest is a header and records; each record is one edit. It is read over exactly the
//!   bytes that `CURRENT` says are committed: any damage inside is an error.
//! - A rolling digest over header and records is in `CURRENT` too, so that a record can't be
//!   taken out, or a manifest exchanged for an older one.
//! - What an edit says is in [`super::edit`].

use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use super::Version;
use super::checksum::{FileIdentity, Kind, roll};
use super::descriptor::is_dtype_of;
#[cfg(any(test, feature = "sim"))]
pub use super::edit::FILE_BYTES_MAX;
use super::edit::is_edit_of;
pub use super::edit::{CheckpointMeta, Edit, FileMeta, NOT_REMOVED};
use super::layout::{
    DecodeError, Decoded, FileHeader, check_file_header, check_seal, check_zero,
    encode_file_header, layout, seal, view,
};
use super::payload::{decode_payload, encode_payload};
use crate::units::{narrow, to_usize};

/// Magic bytes of a manifest.
pub const MANIFEST_MAGIC: [u8; 8] = *b"HPSMANI\0";
/// Bytes of a manifest's header.
pub const MANIFEST_HEADER_BYTES: usize = FileHeader::BYTES;
/// Largest payload of an edit; that of a table with a name of 255 bytes is the largest there is.
pub const EDIT_BYTES_MAX: u32 = 512;
layout! {
    /// The start of a record; the payload follows, then zeros to a multiple of 8.
    EditHead = 16 {
        checksum: U64,
        payload_bytes: U32,
        kind: U32,
    }
}

/// The header of a manifest, and the rolling digest's first state.
#[must_use]
pub fn encode_manifest_header(
    version: Version,
    identity: &FileIdentity,
) -> ([u8; MANIFEST_HEADER_BYTES], u64) {
    let mut out = [0; MANIFEST_HEADER_BYTES];
    let kind = Kind::ManifestHeader;
    let sum = encode_file_header(&mut out, version, MANIFEST_MAGIC, identity, kind);
    (out, sum)
}

/// A manifest of this version that starts with these edits, and its rolling digest.
#[must_use]
pub fn encode_manifest(
    version: Version,
    edits: &[Edit],
    identity: &FileIdentity,
) -> (Vec<u8>, u64) {
    let (header, mut digest) = encode_manifest_header(version, identity);
    let mut out = header.to_vec();
    for edit in edits {
        let offset = out.len() as u64;
        encode_edit(version, edit, identity, offset, &mut out, &mut digest);
    }
    (out, digest)
}

/// Appends the record of `edit`, in a manifest of this version, for file offset `offset` (where
/// `out`'s end will be written), and moves the digest on.
pub fn encode_edit(
    version: Version,
    edit: &Edit,
    identity: &FileIdentity,
    offset: u64,
    out: &mut Vec<u8>,
    digest: &mut u64,
) {
    assert!(
        offset.is_multiple_of(8),
        "records of a manifest are aligned to 8"
    );
    let start = out.len();
    out.extend_from_slice(&[0; EditHead::BYTES]);
    let kind = encode_payload(edit, out);
    assert!(
        is_edit_of(version, kind),
        "edit {kind} in a manifest of {version:?}"
    );
    assert!(
        !matches!(edit, Edit::Table { descriptor, .. } if !is_dtype_of(version, descriptor.dtype)),
        "a data type in a manifest of {version:?}"
    );
    let payload_bytes = out.len() - start - EditHead::BYTES;
    assert!(
        payload_bytes <= EDIT_BYTES_MAX as usize,
        "an edit of {payload_bytes} bytes"
    );
    out.resize(
        start + (EditHead::BYTES + payload_bytes).next_multiple_of(8),
        0,
    );
    let (_, record) = out.split_at_mut(start);
    let head = EditHead {
        checksum: U64::ZERO,
        payload_bytes: U32::new(narrow(payload_bytes)),
        kind: U32::new(kind),
    };
    let (front, _) = record.split_at_mut(EditHead::BYTES);
    front.copy_from_slice(head.as_bytes());
    let sum = seal(record, identity.seed(Kind::ManifestRecord, offset));
    *digest = roll(*digest, sum);
}

/// Reads the edits of a manifest, over exactly its committed bytes.
#[derive(Debug)]
pub struct ManifestReader<'a> {
    /// That of the header, where that was read.
    version: Option<Version>,
    rest: &'a [u8],
    offset: u64,
    identity: FileIdentity,
    digest: u64,
}

impl<'a> ManifestReader<'a> {
    /// Checks the header.
    ///
    /// # Errors
    /// `Newer`, or `Damaged` at byte 0.
    pub fn new(committed: &'a [u8], identity: &FileIdentity) -> Decoded<ManifestReader<'a>> {
        let what = "header of a manifest";
        let Some((header, rest)) = committed.split_at_checked(MANIFEST_HEADER_BYTES) else {
            return Err(DecodeError::damaged(0, format!("{what}: cut short")));
        };
        let bytes = MANIFEST_HEADER_BYTES;
        let kind = Kind::ManifestHeader;
        let (version, digest) =
            check_file_header(header, bytes, &MANIFEST_MAGIC, identity, kind, what)?;
        Ok(ManifestReader {
            version: Some(version),
            rest,
            offset: bytes as u64,
            identity: *identity,
            digest,
        })
    }

    /// Goes on at a record of a manifest; `None` beyond its end. The digest is not that of the whole,
    /// and edits of every version are taken.
    #[must_use]
    pub fn resume(
        content: &'a [u8],
        identity: &FileIdentity,
        offset: usize,
    ) -> Option<ManifestReader<'a>> {
        Some(ManifestReader {
            version: None,
            rest: content.get(offset..)?,
            offset: offset as u64,
            identity: *identity,
            digest: 0,
        })
    }

    /// The version that the header has.
    #[must_use]
    pub fn version(&self) -> Option<Version> {
        self.version
    }

    /// The rolling digest of everything read so far; at the end it must be that of `CURRENT`.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Where the next record starts.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The next edit; `None` at the end.
    ///
    /// # Errors
    /// `Damaged` at the record.
    pub fn next_edit(&mut self) -> Decoded<Option<Edit>> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let what = "edit";
        let offset = self.offset;
        let (head, _) = view::<EditHead>(self.rest, offset, what)?;
        if head.payload_bytes.get() > EDIT_BYTES_MAX {
            // Before all of it is hashed.
            return Err(DecodeError::damaged(offset, "edit: longer than any is"));
        }
        let payload_bytes = to_usize(head.payload_bytes.get());
        let split = EditHead::BYTES
            .checked_add(payload_bytes)
            .and_then(|bytes| bytes.checked_next_multiple_of(8))
            .and_then(|bytes| self.rest.split_at_checked(bytes));
        let Some((record, rest)) = split else {
            return Err(DecodeError::damaged(
                offset,
                "edit: longer than the committed bytes",
            ));
        };
        let seed = self.identity.seed(Kind::ManifestRecord, offset);
        let sum = check_seal(record, seed, offset, what)?;
        let (_, body) = view::<EditHead>(record, offset, what)?;
        let (payload, padding) = body.split_at_checked(payload_bytes).unwrap_or((body, &[]));
        check_zero(padding, offset, what)?;
        let kind = head.kind.get();
        if let Some(version) = self.version.filter(|version| !is_edit_of(*version, kind)) {
            let version = version.number();
            let why = format!("edit: format version {version} has no kind {kind}");
            return Err(DecodeError::damaged(offset, why));
        }
        let edit = decode_payload(kind, payload, offset)?;
        if let (Edit::Table { descriptor, .. }, Some(version)) = (&edit, self.version)
            && !is_dtype_of(version, descriptor.dtype)
        {
            let (version, dtype) = (version.number(), descriptor.dtype.name());
            let why = format!("table: format version {version} has no data type {dtype}");
            return Err(DecodeError::damaged(offset, why));
        }
        self.rest = rest;
        self.offset = offset.saturating_add(record.len() as u64);
        self.digest = roll(self.digest, sum);
        Ok(Some(edit))
    }
}

impl Iterator for ManifestReader<'_> {
    type Item = Decoded<Edit>;

    /// The next edit; after an error, nothing more.
    fn next(&mut self) -> Option<Decoded<Edit>> {
        let next = self.next_edit().transpose();
        if matches!(next, Some(Err(_))) {
            self.rest = &[];
        }
        next
    }
}
