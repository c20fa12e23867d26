//! How is a structure on disk described, so that code, constants and document agree?
//!
//! - `layout!` makes a byte-exact struct (zerocopy proves that it has no padding) and, from the
//!   same lines, the table of names, offsets and sizes that tests compare with docs/FORMAT.md.
//! - Every structure starts with a checksum that covers all bytes after it.
//! - A decoder looks at a length before it uses it, and at the bytes at hand before both.

use std::path::Path;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Version;
use super::checksum::checksum;
use crate::error::Error;

/// Why bytes were refused. The caller knows the path and adds it with [`DecodeError::at`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are not what was written for this place.
    #[error("byte {offset}: {what}")]
    Damaged {
        /// Byte offset in the file of the structure that was refused.
        offset: u64,
        /// Which check failed.
        what: String,
    },
    /// Intact, and written by a later version of the format.
    #[error("format version {found}, this build reads up to {supported}")]
    Newer {
        /// Version found.
        found: u32,
        /// Highest version supported.
        supported: u32,
    },
}

impl DecodeError {
    /// Names a damaged structure.
    pub fn damaged(offset: u64, what: impl Into<String>) -> DecodeError {
        DecodeError::Damaged {
            offset,
            what: what.into(),
        }
    }

    /// Adds the path.
    #[must_use]
    pub fn at(self, path: &Path) -> Error {
        match self {
            DecodeError::Damaged { offset, what } => Error::corrupt(path, offset, what),
            DecodeError::Newer { found, supported } => Error::Unsupported {
                path: path.to_path_buf(),
                found,
                supported,
            },
        }
    }
}

/// The result of a decoder.
pub type Decoded<T> = Result<T, DecodeError>;

/// One field of a structure on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name, as in docs/FORMAT.md.
    pub name: &'static str,
    /// Bytes from the start of the structure.
    pub offset: usize,
    /// Size in bytes.
    pub bytes: usize,
}

/// Defines a structure on disk: a packed little-endian struct and the table of its fields.
macro_rules! layout {
    ($(#[$doc:meta])* $name:ident = $bytes:literal { $($field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        #[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout)]
        #[derive(zerocopy::Immutable, zerocopy::Unaligned)]
        #[repr(C)]
        pub struct $name {
            $(#[doc = concat!("`", stringify!($field), "` on disk.")] pub $field: $type,)*
        }

        impl $name {
            /// Size in bytes.
            pub const BYTES: usize = $bytes;
            /// Names, offsets and sizes, in order.
            pub const FIELDS: &'static [$crate::format::layout::Field] = &[
                $($crate::format::layout::Field {
                    name: stringify!($field),
                    offset: std::mem::offset_of!($name, $field),
                    bytes: std::mem::size_of::<$type>(),
                },)*
            ];
        }

        const _: () = assert!(std::mem::size_of::<$name>() == $name::BYTES, "size on disk");
    };
}
pub(super) use layout;

layout! {
    /// The start of every file, the same in all versions of the format.
    Prefix = 48 {
        checksum: U64,
        magic: [u8; 8],
        version: U32,
        zero: U32,
        fingerprint: U64,
        store: [u8; 16],
    }
}

layout! {
    /// The start of a parameter file and of a manifest.
    FileHeader = 64 {
        prefix: Prefix,
        number: U64,
        zero: U64,
    }
}

impl Prefix {
    /// A prefix of this version; the checksum comes with [`seal`].
    #[must_use]
    pub fn new(version: Version, magic: [u8; 8], store: &[u8; 16]) -> Prefix {
        Prefix {
            checksum: U64::ZERO,
            magic,
            version: U32::new(version.number()),
            zero: U32::ZERO,
            fingerprint: U64::new(version.fingerprint()),
            store: *store,
        }
    }

    /// Checks version, fingerprint and store of a block whose checksum is right; returns the
    /// version.
    ///
    /// # Errors
    /// `Newer`, or `Damaged` naming the field.
    pub fn check(&self, store: &[u8; 16]) -> Decoded<Version> {
        let version = Version::of(self.version.get(), 0)?;
        let bad = |what: &str| Err(DecodeError::damaged(0, what));
        if self.zero != U32::ZERO {
            return bad("reserved bytes are not zero");
        }
        if self.fingerprint.get() != version.fingerprint() {
            return bad("the layout's fingerprint differs from this build's of the same version");
        }
        if self.store != *store {
            return bad("belongs to another store");
        }
        Ok(version)
    }
}

/// Writes the checksum of all bytes after the first 8 into these, and returns it.
pub fn seal(block: &mut [u8], seed: u64) -> u64 {
    assert!(block.len() > 8, "a structure is longer than its checksum");
    let (head, body) = block.split_at_mut(8);
    let sum = checksum(body, seed);
    head.copy_from_slice(&sum.to_le_bytes());
    sum
}

/// Verifies the checksum in the first 8 bytes, and returns it.
///
/// # Errors
/// `Damaged` naming `what`.
#[inline]
pub fn check_seal(block: &[u8], seed: u64, offset: u64, what: &str) -> Decoded<u64> {
    let Some((head, body)) = block.split_first_chunk::<8>() else {
        return Err(DecodeError::damaged(offset, format!("{what}: cut short")));
    };
    let stored = u64::from_le_bytes(*head);
    if stored != checksum(body, seed) {
        let why =
            format!("{what}: checksum does not match (damaged, or written for another place)");
        return Err(DecodeError::damaged(offset, why));
    }
    Ok(stored)
}

/// Refuses bytes that should be zero and are not.
///
/// # Errors
/// `Damaged` naming `what` and the first such byte.
pub fn check_zero(bytes: &[u8], offset: u64, what: &str) -> Decoded<()> {
    // In pieces that the compiler compares at once.
    let mut pieces = bytes.chunks(64);
    if pieces.all(|piece| piece.iter().fold(0, |or, byte| or | byte) == 0) {
        return Ok(());
    }
    match bytes.iter().position(|byte| *byte != 0) {
        None => Ok(()),
        Some(at) => Err(DecodeError::damaged(
            offset.saturating_add(at as u64),
            format!("{what}: padding is not zero"),
        )),
    }
}

/// Views the start of `bytes` as a structure; returns what follows it too.
///
/// # Errors
/// `Damaged` where the bytes end earlier.
pub fn view<'a, T>(bytes: &'a [u8], offset: u64, what: &str) -> Decoded<(&'a T, &'a [u8])>
where
    T: FromBytes + KnownLayout + Immutable + Unaligned,
{
    T::ref_from_prefix(bytes).map_err(|_| {
        let why = format!("{what}: {} bytes are too few", bytes.len());
        DecodeError::damaged(offset, why)
    })
}

/// Encodes a block that starts a file: `head`, then zeros up to `out`'s end, sealed.
pub(super) fn encode_block<T>(out: &mut [u8], head: &T, seed: u64) -> u64
where
    T: IntoBytes + Immutable,
{
    let head = head.as_bytes();
    assert!(head.len() <= out.len(), "a head fits into its block");
    let (front, rest) = out.split_at_mut(head.len());
    front.copy_from_slice(head);
    rest.fill(0);
    seal(out, seed)
}

/// Decodes a block that starts a file: length, magic, checksum, version, store.
pub(super) fn decode_block<'a, T>(
    block: &'a [u8],
    bytes: usize,
    magic: &[u8; 8],
    seed: u64,
    what: &str,
) -> Decoded<(&'a T, &'a [u8], u64)>
where
    T: FromBytes + KnownLayout + Immutable + Unaligned,
{
    if block.len() != bytes {
        let why = format!("{what}: {} bytes, {bytes} needed", block.len());
        return Err(DecodeError::damaged(0, why));
    }
    let (prefix, _) = view::<Prefix>(block, 0, what)?;
    if prefix.magic != *magic {
        return Err(DecodeError::damaged(
            0,
            format!("{what}: its magic bytes are missing"),
        ));
    }
    let sum = check_seal(block, seed, 0, what)?;
    Version::of(prefix.version.get(), 0)?;
    let (head, rest) = view::<T>(block, 0, what)?;
    Ok((head, rest, sum))
}

/// Encodes the start of a numbered file.
pub(super) fn encode_file_header(
    out: &mut [u8],
    version: Version,
    magic: [u8; 8],
    identity: &super::checksum::FileIdentity,
    kind: super::checksum::Kind,
) -> u64 {
    let head = FileHeader {
        prefix: Prefix::new(version, magic, &identity.store()),
        number: U64::new(identity.number().0),
        zero: U64::ZERO,
    };
    encode_block(out, &head, identity.seed(kind, 0))
}

/// Checks the start of a numbered file; returns its version and checksum.
pub(super) fn check_file_header(
    block: &[u8],
    bytes: usize,
    magic: &[u8; 8],
    identity: &super::checksum::FileIdentity,
    kind: super::checksum::Kind,
    what: &str,
) -> Decoded<(Version, u64)> {
    let seed = identity.seed(kind, 0);
    let (head, rest, sum) = decode_block::<FileHeader>(block, bytes, magic, seed, what)?;
    let version = head.prefix.check(&identity.store())?;
    if head.number.get() != identity.number().0 {
        return Err(DecodeError::damaged(
            0,
            format!("{what}: it is of another file"),
        ));
    }
    if head.zero != U64::ZERO {
        return Err(DecodeError::damaged(
            0,
            format!("{what}: reserved bytes are not zero"),
        ));
    }
    check_zero(rest, FileHeader::BYTES as u64, what)?;
    Ok((version, sum))
}
