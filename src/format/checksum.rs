//! Are these the bytes that were written for this place?
//!
//! - A checksum is xxh3-64 of the bytes, xor a seed of (store, file number, structure, offset):
//!   zeros, stale blocks and blocks from elsewhere fail, not only changed bits.
//! - It finds damage, not malice: whoever can write the files can write a right checksum.
//! - This is the only file that knows the hash function.

#[cfg(any(test, feature = "sim"))]
use xxhash_rust::xxh3::xxh3_128;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::units::{FileNumber, mix64};

/// The store of structures that are read before the store is known (the file `STORE`).
pub const ZERO_STORE: [u8; 16] = [0; 16];

/// What a checksum belongs to. The numbers are part of the format and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Header block of a parameter file.
    ParamHeader = 1,
    /// Record of a parameter file.
    Record = 2,
    /// Key block of a parameter file.
    KeyBlock = 3,
    /// Footer of a parameter file.
    Footer = 4,
    /// Record of a manifest.
    ManifestRecord = 5,
    /// Header of a manifest.
    ManifestHeader = 6,
    /// The file `CURRENT`.
    Current = 7,
    /// The file `STORE`.
    Identity = 8,
    /// The file `PART`.
    Part = 9,
    /// Header of a checkpoint's meta file.
    MetaHeader = 10,
    /// Body of a checkpoint's meta file.
    MetaBody = 11,
    /// Header block of an index snapshot.
    SnapshotHeader = 12,
    /// Block of an index snapshot.
    SnapshotBlock = 13,
    /// Footer of an index snapshot.
    SnapshotFooter = 14,
    /// Section of a parameter file.
    Section = 15,
    /// The file `DELTA`.
    Delta = 16,
}

impl Kind {
    /// All kinds, in the order of their numbers.
    #[cfg(any(test, feature = "sim"))]
    pub const ALL: [Kind; 16] = crate::units::all_of!(
        Kind: ParamHeader,
        Record,
        KeyBlock,
        Footer,
        ManifestRecord,
        ManifestHeader,
        Current,
        Identity,
        Part,
        MetaHeader,
        MetaBody,
        SnapshotHeader,
        SnapshotBlock,
        SnapshotFooter,
        Section,
        Delta,
    );

    /// The number that enters the seed.
    #[must_use]
    pub const fn number(self) -> u64 {
        self as u64
    }
}

/// The store's part of every seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    s0: u64,
    s1: u64,
}

impl Seal {
    /// Takes the uuid as two little-endian u64s.
    #[must_use]
    pub fn new(store: &[u8; 16]) -> Seal {
        let wide = u128::from_le_bytes(*store);
        Seal {
            s0: u64::try_from(wide & u128::from(u64::MAX)).unwrap_or(0),
            s1: u64::try_from(wide >> 64).unwrap_or(0),
        }
    }

    /// The seed of one structure; `number` is its file's, of `PART` the data directory's index, of `STORE`
    /// and `CURRENT` 0.
    #[inline]
    #[must_use]
    pub const fn seed(&self, kind: Kind, number: u64, offset: u64) -> u64 {
        let place = mix64((kind.number() << 56) ^ offset);
        mix64(self.s0 ^ mix64(self.s1 ^ mix64(number ^ place)))
    }
}

/// Which file a structure is of: what a decoder must know beside the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    store: [u8; 16],
    number: FileNumber,
    seal: Seal,
}

impl FileIdentity {
    /// File `number` of `store`.
    #[must_use]
    pub fn new(store: [u8; 16], number: FileNumber) -> FileIdentity {
        FileIdentity {
            store,
            number,
            seal: Seal::new(&store),
        }
    }

    /// The store's uuid.
    #[must_use]
    pub fn store(&self) -> [u8; 16] {
        self.store
    }

    /// The file number.
    #[must_use]
    pub fn number(&self) -> FileNumber {
        self.number
    }

    /// The seed of one structure of the file.
    #[inline]
    #[must_use]
    pub const fn seed(&self, kind: Kind, offset: u64) -> u64 {
        self.seal.seed(kind, self.number.0, offset)
    }
}

/// The checksum of `bytes` under `seed`.
#[inline]
#[must_use]
pub fn checksum(bytes: &[u8], seed: u64) -> u64 {
    xxh3_64(bytes) ^ seed
}

/// The next state of a rolling digest: covers everything before, and one more checksum.
#[must_use]
pub fn roll(digest: u64, sum: u64) -> u64 {
    let wide = u128::from(digest) | (u128::from(sum) << 64);
    xxh3_64(&wide.to_le_bytes())
}

/// xxh3-128 of `bytes`, unseeded.
#[must_use]
#[cfg(any(test, feature = "sim"))]
pub fn digest128(bytes: &[u8]) -> u128 {
    xxh3_128(bytes)
}

/// xxh3 over bytes that come piece by piece, unseeded.
#[derive(Clone)]
pub struct Digest {
    state: Box<Xxh3>,
}

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Digest({:016x})", self.digest64())
    }
}

impl Default for Digest {
    fn default() -> Digest {
        Digest::new()
    }
}

impl Digest {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Digest {
        Digest {
            state: Box::new(Xxh3::new()),
        }
    }

    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.state.update(bytes);
    }

    /// Adds a number, little-endian: how checksums enter `rows_digest` and `keys_digest`.
    #[cfg(any(test, feature = "sim"))]
    pub fn update_u64(&mut self, value: u64) {
        self.state.update(&value.to_le_bytes());
    }

    /// xxh3-64 of everything added.
    #[must_use]
    pub fn digest64(&self) -> u64 {
        self.state.digest()
    }

    /// xxh3-128 of everything added.
    #[must_use]
    #[cfg(any(test, feature = "sim"))]
    pub fn digest128(&self) -> u128 {
        self.state.digest128()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_differ_by_store_number_kind_and_offset() {
        let seal = Seal::new(&[7; 16]);
        let mut other = [7; 16];
        other[15] = 8;
        let base = seal.seed(Kind::Record, 5, 4096);
        assert_ne!(base, Seal::new(&other).seed(Kind::Record, 5, 4096));
        assert_ne!(base, seal.seed(Kind::Record, 6, 4096));
        assert_ne!(base, seal.seed(Kind::KeyBlock, 5, 4096));
        assert_ne!(base, seal.seed(Kind::Record, 5, 4104));
    }

    #[test]
    fn kinds_are_numbered_from_one_in_order() {
        for (kind, number) in Kind::ALL.iter().zip(1u64..) {
            assert_eq!(kind.number(), number);
        }
    }

    #[test]
    fn seed_keeps_its_golden_value() {
        let store: [u8; 16] = std::array::from_fn(|i| u8::try_from(i).unwrap());
        // Computed apart, with Python's integers.
        assert_eq!(
            Seal::new(&store).seed(Kind::Record, 42, 8192),
            0xfe02_d97a_6076_f729
        );
    }

    #[test]
    fn pieces_digest_as_the_whole() {
        let bytes: Vec<u8> = (0..2000u32).map(|x| x.to_le_bytes()[0]).collect();
        let mut digest = Digest::new();
        for piece in bytes.chunks(77) {
            digest.update(piece);
        }
        assert_eq!(digest.digest64(), xxh3_64(&bytes));
        assert_eq!(digest.digest128(), digest128(&bytes));
        assert_ne!(digest.digest64(), Digest::default().digest64());
        // xxh3-64 of nothing, from the specification of xxHash.
        assert_eq!(Digest::new().digest64(), 0x2d06_8005_38d3_94c2);
    }
}
