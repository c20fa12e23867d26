//! Which store is this, and which of its data directories?
//!
//! - `STORE` is written once and names the store; its checksum is seeded without a store, since
//!   the store is not known before it is read.
//! - `PART` says of a data directory to which store it belongs and which index it has there.

use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use super::checksum::{Kind, Seal, ZERO_STORE};
use super::layout::{
    DecodeError, Decoded, Prefix, check_zero, decode_block, encode_block, layout, seal, view,
};
use super::{BLOCK_BYTES, DIRECTORIES_MAX, Version};
use crate::error::ArgumentError;
use crate::units::{narrow, to_usize};

/// Magic bytes of `STORE`.
pub const STORE_MAGIC: [u8; 8] = *b"HPSSTOR\0";
/// Magic bytes of `PART`.
pub const PART_MAGIC: [u8; 8] = *b"HPSPART\0";
/// Bytes of `STORE`.
pub const STORE_BYTES: usize = BLOCK_BYTES;
/// Bytes of `PART`.
pub const PART_BYTES: usize = 512;

layout! {
    /// The start of `STORE`; the directories follow, each a length (u32) and UTF-8, then zeros.
    StoreHead = 56 {
        prefix: Prefix,
        directories: U32,
        zero: U32,
    }
}

layout! {
    /// The start of `PART`; zeros follow.
    PartHead = 56 {
        prefix: Prefix,
        index: U64,
    }
}

/// What `STORE` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreIdentity {
    /// The store.
    pub uuid: [u8; 16],
    /// Its data directories, by index; relative to the store's directory where possible.
    pub directories: Vec<String>,
}

fn is_path(path: &str) -> bool {
    !path.is_empty() && !path.contains('\0')
}

impl StoreIdentity {
    /// Encodes the file.
    ///
    /// # Errors
    /// `Option` naming `data_directories` when there is none or too many, one is empty or has a
    /// zero byte, or their paths are too long together.
    pub fn encode(&self) -> Result<[u8; STORE_BYTES], ArgumentError> {
        let bad = |why: String| {
            let value = format!("{:?}", self.directories);
            Err(ArgumentError::Option {
                name: "data_directories",
                value,
                why,
            })
        };
        let count = self.directories.len();
        if count == 0 || count > DIRECTORIES_MAX {
            return bad(format!("must be 1 to {DIRECTORIES_MAX} directories"));
        }
        if !self.directories.iter().all(|path| is_path(path)) {
            return bad("a path must not be empty or have a zero byte".to_owned());
        }
        let room = STORE_BYTES - StoreHead::BYTES;
        if self.directories.iter().map(|p| p.len() + 4).sum::<usize>() > room {
            return bad(format!(
                "the paths and 4 bytes each must be at most {room} bytes"
            ));
        }
        let mut tail = Vec::with_capacity(room);
        for path in &self.directories {
            tail.extend_from_slice(&narrow::<u32>(path.len()).to_le_bytes());
            tail.extend_from_slice(path.as_bytes());
        }
        let head = StoreHead {
            prefix: Prefix::new(Version::NEWEST, STORE_MAGIC, &self.uuid),
            directories: U32::new(narrow(count)),
            zero: U32::ZERO,
        };
        let mut out = [0; STORE_BYTES];
        let (front, rest) = out.split_at_mut(StoreHead::BYTES);
        front.copy_from_slice(head.as_bytes());
        let (target, _) = rest.split_at_mut(tail.len());
        target.copy_from_slice(&tail);
        seal(&mut out, store_seed());
        Ok(out)
    }

    /// Decodes the file.
    ///
    /// # Errors
    /// `Newer`, or `Damaged` at byte 0.
    pub fn decode(bytes: &[u8]) -> Decoded<StoreIdentity> {
        let bad = |why: &str| DecodeError::damaged(0, format!("STORE: {why}"));
        let seed = store_seed();
        let (head, mut rest, _) =
            decode_block::<StoreHead>(bytes, STORE_BYTES, &STORE_MAGIC, seed, "STORE")?;
        let uuid = head.prefix.store;
        head.prefix.check(&uuid)?;
        let count = to_usize(head.directories.get());
        if head.zero != U32::ZERO || count == 0 || count > DIRECTORIES_MAX {
            return Err(bad("it has no data directories, or too many"));
        }
        let mut directories = Vec::with_capacity(count);
        for _ in 0..count {
            let (length, after) = view::<U32>(rest, 0, "STORE")?;
            let split = usize::try_from(length.get())
                .ok()
                .and_then(|length| after.split_at_checked(length));
            let Some((path, after)) = split else {
                return Err(bad("a path is longer than the file"));
            };
            let path = str::from_utf8(path).map_err(|_| bad("a path is not UTF-8"))?;
            if !is_path(path) {
                return Err(bad("a path is empty or has a zero byte"));
            }
            directories.push(path.to_owned());
            rest = after;
        }
        check_zero(rest, 0, "STORE")?;
        Ok(StoreIdentity { uuid, directories })
    }
}

fn store_seed() -> u64 {
    Seal::new(&ZERO_STORE).seed(Kind::Identity, 0, 0)
}

/// Encodes `PART` of data directory `index`.
#[must_use]
pub fn encode_part(store: &[u8; 16], index: u32) -> [u8; PART_BYTES] {
    let index = u64::from(index);
    let mut out = [0; PART_BYTES];
    let head = PartHead {
        prefix: Prefix::new(Version::NEWEST, PART_MAGIC, store),
        index: U64::new(index),
    };
    encode_block(&mut out, &head, Seal::new(store).seed(Kind::Part, index, 0));
    out
}

/// The store that a `PART` says it belongs to; nothing is verified.
#[must_use]
pub fn claimed_store(part: &[u8]) -> Option<[u8; 16]> {
    let (head, _) = view::<PartHead>(part, 0, "PART").ok()?;
    Some(head.prefix.store)
}

/// Decodes `PART` of a data directory of `store`; returns its index.
///
/// # Errors
/// `Newer`, or `Damaged` at byte 0.
pub fn decode_part(bytes: &[u8], store: &[u8; 16]) -> Decoded<u32> {
    let (claimed, _) = view::<PartHead>(bytes, 0, "PART")?;
    let seed = Seal::new(store).seed(Kind::Part, claimed.index.get(), 0);
    let (head, rest, _) = decode_block::<PartHead>(bytes, PART_BYTES, &PART_MAGIC, seed, "PART")?;
    head.prefix.check(store)?;
    check_zero(rest, PartHead::BYTES as u64, "PART")?;
    match u32::try_from(head.index.get()) {
        Ok(index) if (index as usize) < DIRECTORIES_MAX => Ok(index),
        _ => Err(DecodeError::damaged(0, "PART: its index is too large")),
    }
}
