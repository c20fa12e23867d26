//! How do tests put right checksums over wrong bytes?
//!
//! - The tools of the fuzz targets are used: `fuzz/src/forge.rs` and `fuzz/src/tiny.rs`, which a
//!   test takes in as modules `forge` and `tiny` beside this one. They look for the small functions
//!   below in the root of the crate, so a test says
//!   `use forging::{STORE, fix, identity, put_u64, u32_at, u64_at};`.

use hps::FileNumber;
use hps::format::checksum::{FileIdentity, Kind, ZERO_STORE};
use hps::format::layout::seal;
use hps::format::{CURRENT_NAME, FileKind, PART_NAME, STORE_NAME, parse_file_name};

use crate::forge;

/// The store that `tiny` makes.
pub const STORE: [u8; 16] = *b"sample store 016";

/// The identity of a file of [`STORE`].
pub fn identity(number: u64) -> FileIdentity {
    FileIdentity::new(STORE, FileNumber(number))
}

/// Puts a right checksum for its place over a structure; does nothing to less than 9 bytes.
pub fn fix(structure: &mut [u8], identity: &FileIdentity, kind: Kind, offset: u64) {
    if structure.len() > 8 {
        seal(structure, identity.seed(kind, offset));
    }
}

/// The u32 at `at`, 0 beyond the end.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let piece = bytes.get(at..at + 4).and_then(|b| b.try_into().ok());
    piece.map_or(0, u32::from_le_bytes)
}

/// The u64 at `at`, 0 beyond the end.
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

/// Writes right checksums over a file of this name, as a file of `store`.
pub fn reseal(name: &str, bytes: &mut [u8], store: [u8; 16]) {
    use FileKind::{Image, Snapshot};
    let id = |number| FileIdentity::new(store, number);
    match (name, parse_file_name(name)) {
        (STORE_NAME, _) => fix(
            bytes,
            &FileIdentity::new(ZERO_STORE, FileNumber(0)),
            Kind::Identity,
            0,
        ),
        (PART_NAME, _) => {
            let index = u64_at(bytes, 48);
            fix(bytes, &id(FileNumber(index)), Kind::Part, 0);
        }
        (CURRENT_NAME, _) => fix(bytes, &id(FileNumber(0)), Kind::Current, 0),
        (_, Some((FileKind::Rows, number))) => drop(forge::rows(bytes, &id(number))),
        (_, Some((FileKind::Meta, number))) => drop(forge::meta(bytes, &id(number))),
        (_, Some((Image | Snapshot, number))) => drop(forge::snapshot(bytes, &id(number))),
        (_, Some((FileKind::Manifest | FileKind::ManifestCopy, number))) => {
            forge::manifest(bytes, &id(number));
        }
        _ => {}
    }
}
