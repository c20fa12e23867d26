//! What does a part of an index snapshot say of one key?
//!
//! - A location is the file's ordinal, a bit for a tombstone, three bits that are zero, four bits for
//!   a class, and the entry's number in the file. Version 1 has zeros in the place of the class.
//! - Whoever looks for a place looks past the class.

use crate::units::narrow;

/// Most files that a part covers: an ordinal has 24 bits.
pub const COVERED_MAX: u32 = 1 << 24;
/// Where the ordinal starts in a location.
pub const ORDINAL_SHIFT: u32 = 40;
/// The tombstone bit of a location.
pub const TOMBSTONE_BIT: u64 = 1 << 39;
/// Where the class starts in a location.
pub const CLASS_SHIFT: u32 = 32;
/// The greatest class.
pub const CLASS_MAX: u8 = 15;
/// What a reader that knows no classes may find in a location: ordinal, tombstone bit, entry.
pub(super) const PLACE_BITS: u64 = u64::MAX << ORDINAL_SHIFT | TOMBSTONE_BIT | 0xffff_ffff;
/// The class in a location.
pub(super) const CLASS_BITS: u64 = (CLASS_MAX as u64) << CLASS_SHIFT;

const _: () = assert!(COVERED_MAX as u64 == 1 << (64 - ORDINAL_SHIFT));
const _: () = assert!(TOMBSTONE_BIT < 1 << ORDINAL_SHIFT && TOMBSTONE_BIT > u32::MAX as u64);
const _: () = assert!(PLACE_BITS & CLASS_BITS == 0);

/// One key of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotEntry {
    /// The key.
    pub key: u64,
    /// Its file: position in the list of files covered.
    pub ordinal: u32,
    /// Whether the key was removed.
    pub tombstone: bool,
    /// Its entry in the file.
    pub entry: u32,
    /// How often the row was used lately, at most [`CLASS_MAX`]; 0 where that is not known.
    pub class: u8,
}

/// The class in a location.
#[inline]
#[must_use]
pub fn class_at(location: u64) -> u8 {
    u8::try_from((location & CLASS_BITS) >> CLASS_SHIFT).unwrap_or(CLASS_MAX)
}

impl SnapshotEntry {
    /// Its location as a number.
    pub(super) fn location(&self) -> u64 {
        let tombstone = if self.tombstone { TOMBSTONE_BIT } else { 0 };
        let (file, class) = (u64::from(self.ordinal), u64::from(self.class));
        file << ORDINAL_SHIFT | tombstone | class << CLASS_SHIFT | u64::from(self.entry)
    }

    /// The entry of a key and its location; bits beside those of a location count for nothing.
    pub(super) fn of(key: u64, location: u64) -> SnapshotEntry {
        let small = |bits: u64| narrow(bits);
        SnapshotEntry {
            key,
            ordinal: small(location >> ORDINAL_SHIFT),
            tombstone: location & TOMBSTONE_BIT != 0,
            entry: small(location & 0xffff_ffff),
            class: class_at(location),
        }
    }
}
