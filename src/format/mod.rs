//! What do the bytes on disk mean?
//!
//! Bytes become views and views become bytes here, and nowhere else; docs/FORMAT.md says it in
//! words. A parameter file:
//!
//! ```text
//! 0         4096                                keys_offset                   footer_offset
//! +---------+--------+--------+- - -+----------+------------+- - -+----------+-----------------+
//! | header  | record | record |     | zeros to | key block  |     | sections | footer, zeros   |
//! | 64 B +  | stride | stride |     | 4096     | 4096 B     |     | of other | to 4096         |
//! | zeros   |        |        |     |          | 340 keys   |     | kinds    | runs of 40 B    |
//! +---------+--------+--------+- - -+----------+------------+- - -+----------+-----------------+
//!            |checksum 8|key 8|row row_bytes|0..7 zeros|
//! ```
//!
//! Invariants:
//! - No I/O. No length is trusted: sizes are checked against the bytes at hand before anything
//!   is allocated or read.
//! - All numbers are little-endian. Padding is written as zero and checked.
//! - Every structure has a checksum over all its bytes, seeded with store, file and place.
//! - Any bytes at all give a value or a [`DecodeError`], never a panic.
//! - What a decoder refuses, its encoder never writes (asserted).
//! - Numbers of enums, once written, are never reused.

#![deny(clippy::indexing_slicing)]

pub mod checksum;
pub mod current;
pub mod delta;
pub mod descriptor;
pub mod edit;
mod edit_layout;
pub mod footer;
pub mod identity;
pub mod index_snapshot;
pub mod layout;
pub mod manifest;
pub mod meta;
pub mod param_file;
mod payload;
pub mod snapshot_entry;
pub mod snapshot_range;
pub mod snapshot_tally;
#[cfg(test)]
#[expect(clippy::indexing_slicing, reason = "tests index what they made")]
mod tests;
mod version;

use crate::units::all_of;

pub use checksum::{Digest, FileIdentity};
#[cfg(any(test, feature = "sim"))]
pub use checksum::{Kind, Seal, digest128};
pub use layout::Decoded;
#[cfg(any(test, feature = "sim"))]
pub use layout::{DecodeError, Field};
pub use version::{FORMAT_VERSION, Version};

use crate::units::FileNumber;

/// Unit of direct I/O: header blocks, key blocks, snapshot blocks and footers are multiples of it.
pub const BLOCK_BYTES: usize = 4096;

/// Most data directories of a store.
pub const DIRECTORIES_MAX: usize = 256;

/// Name of the pointer to the manifest in force.
pub const CURRENT_NAME: &str = "CURRENT";
/// Name under which the next `CURRENT` is written before it is renamed.
pub const CURRENT_TEMPORARY_NAME: &str = "CURRENT.tmp";
/// Name of the store's identity.
pub const STORE_NAME: &str = "STORE";
/// Name of a data directory's identity.
pub const PART_NAME: &str = "PART";

/// What a numbered file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileKind {
    /// Rows: a parameter file.
    Rows,
    /// Version edits.
    Manifest,
    /// The same bytes as the manifest of this number, in case that is damaged.
    ManifestCopy,
    /// A checkpoint's meta.
    Meta,
    /// The index snapshot of a store of version 1.
    Image,
    /// A part of an index snapshot.
    Snapshot,
}

impl FileKind {
    /// All kinds.
    pub const ALL: [FileKind; 6] =
        all_of!(FileKind: Rows, Manifest, ManifestCopy, Meta, Image, Snapshot);

    /// The part of the name after the dot.
    #[must_use]
    pub const fn extension(self) -> &'static str {
        match self {
            FileKind::Rows => "rows",
            FileKind::Manifest => "manifest",
            FileKind::ManifestCopy => "copy",
            FileKind::Meta => "meta",
            FileKind::Image => "image",
            FileKind::Snapshot => "snapshot",
        }
    }
}

/// The name of a numbered file: at least 12 digits, so that names sort as numbers.
#[must_use]
pub fn file_name(kind: FileKind, number: FileNumber) -> String {
    format!("{number:012}.{}", kind.extension())
}

/// The name of a parameter file.
#[must_use]
pub fn data_file_name(number: FileNumber) -> String {
    file_name(FileKind::Rows, number)
}

/// The names of a manifest and its copy.
#[must_use]
pub fn manifest_names(number: FileNumber) -> [String; 2] {
    [FileKind::Manifest, FileKind::ManifestCopy].map(|kind| file_name(kind, number))
}

/// Reads a name that [`file_name`] made; `None` for every other name.
#[must_use]
pub fn parse_file_name(name: &str) -> Option<(FileKind, FileNumber)> {
    let (digits, extension) = name.split_once('.')?;
    let kind = FileKind::ALL
        .into_iter()
        .find(|kind| kind.extension() == extension)?;
    let number = FileNumber(digits.parse().ok()?);
    // Signs, too few digits and leading zeros of long numbers are other names.
    (file_name(kind, number) == name).then_some((kind, number))
}
