//! What do the fuzz targets share?
//!
//! - [`Input`] turns any bytes into numbers and pieces, without an error: what is missing is zero.
//! - [`forge`] writes right checksums over wrong bytes, [`tiny`] is a small valid store, [`hostile`]
//!   changes its files.
//! - [`records`] and [`mod@folder`] read data sets and models as plainly as can be; [`data_set`] compares
//!   `hps-keyset` with that. [`parquets`] has small files of Parquet, and what its library reads of one.
//! - Nothing here reads a clock or draws a random number: an input always does the same.

use hps::FileNumber;
use hps::format::checksum::{FileIdentity, Kind};
use hps::format::layout::seal;

pub mod data_set;
pub mod folder;
pub mod forge;
pub mod hostile;
pub mod parquets;
pub mod records;
pub mod tiny;

/// The store of all structures that targets decode: that of `tests/data/golden-v1` and
/// `golden-v2`.
pub const STORE: [u8; 16] = *b"sample store 016";

/// Numbers of the files there.
pub const MANIFEST: u64 = 3;
/// As [`MANIFEST`].
pub const ROWS: u64 = 7;
/// As [`MANIFEST`].
pub const META: u64 = 8;
/// As [`MANIFEST`].
pub const SNAPSHOT: u64 = 9;

/// The identity of a file of [`STORE`].
#[must_use]
pub fn identity(number: u64) -> FileIdentity {
    FileIdentity::new(STORE, FileNumber(number))
}

/// Bytes of the fuzzer, read from the front.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    /// All of the fuzzer's bytes.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Input<'a> {
        Input { rest: bytes }
    }

    /// Whether nothing is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next bytes, at most `count`.
    pub fn take(&mut self, count: usize) -> &'a [u8] {
        let (piece, rest) = self.rest.split_at(count.min(self.rest.len()));
        self.rest = rest;
        piece
    }

    /// Everything that is left.
    pub fn take_all(&mut self) -> &'a [u8] {
        self.take(usize::MAX)
    }

    /// The next number of `count` bytes, at most 8, little-endian.
    pub fn number(&mut self, count: usize) -> u64 {
        let mut bytes = [0; 8];
        let piece = self.take(count.min(8));
        bytes[..piece.len()].copy_from_slice(piece);
        u64::from_le_bytes(bytes)
    }

    /// A number below `bound`, from one byte.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::from(self.take(1).first().copied().unwrap_or(0)) % bound
    }
}

/// `bytes` with zeros up to `length`; cut where they are longer.
#[must_use]
pub fn padded(bytes: &[u8], length: usize) -> Vec<u8> {
    let mut out = bytes.to_vec();
    out.resize(length, 0);
    out
}

/// Puts a right checksum for its place over a structure; does nothing to less than 9 bytes.
pub fn fix(structure: &mut [u8], identity: &FileIdentity, kind: Kind, offset: u64) {
    if structure.len() > 8 {
        seal(structure, identity.seed(kind, offset));
    }
}

/// The u32 at `at`, 0 beyond the end.
#[must_use]
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let piece = bytes.get(at..at + 4).and_then(|b| b.try_into().ok());
    piece.map_or(0, u32::from_le_bytes)
}

/// Whether a structure is of the version that is written: one of an older version is read, and written
/// again as a newer one.
#[must_use]
pub fn is_of_newest_version(bytes: &[u8]) -> bool {
    bytes.get(16..20) == Some(&hps::format::FORMAT_VERSION.to_le_bytes()[..])
}

/// The u64 at `at`, 0 beyond the end.
#[must_use]
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let piece = bytes.get(at..at + 8).and_then(|b| b.try_into().ok());
    piece.map_or(0, u64::from_le_bytes)
}

/// Writes a u64 where there is room for it.
pub fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    if let Some(place) = bytes.get_mut(at..at + 8) {
        place.copy_from_slice(&value.to_le_bytes());
    }
}
