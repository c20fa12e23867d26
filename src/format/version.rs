//! Which versions of the format are there, and what tells them apart?
//!
//! - A file says its version in its prefix, beside a fingerprint of all structures of that version:
//!   two builds that mean different layouts by one version refuse each other's files.
//! - All versions are read; the newest is written (docs/decisions/0035), but for a CURRENT whose
//!   manifest is of an older one.

use super::layout::{DecodeError, Decoded, Field};
use super::{
    BLOCK_BYTES, current, descriptor, edit_layout, footer, identity, index_snapshot, layout,
    manifest, meta, param_file,
};
use crate::units::all_of;

/// The version of the format that this build writes, and the highest that it reads.
pub const FORMAT_VERSION: u32 = Version::NEWEST.number();

/// Structures on disk, by name.
pub type Layouts = &'static [(&'static str, &'static [Field])];

/// A version of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// One set of hyperparameters for all tables of a checkpoint; tables stay for good.
    V1,
    /// Hyperparameters by table, cursors; tables are dropped and renamed.
    V2,
}

impl Version {
    /// All versions, the oldest first.
    pub const ALL: [Version; 2] = all_of!(Version: V1, V2);
    /// The version that new files have.
    pub const NEWEST: Version = Version::V2;

    /// Its number on disk.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Version::V1 => 1,
            Version::V2 => 2,
        }
    }

    /// Every structure of this version. The order counts: the fingerprint is made of it.
    #[must_use]
    pub const fn layouts(self) -> Layouts {
        match self {
            Version::V1 => LAYOUTS_V1,
            Version::V2 => LAYOUTS_V2,
        }
    }

    /// A number that changes with every offset and size of [`Version::layouts`].
    #[must_use]
    pub const fn fingerprint(self) -> u64 {
        match self {
            Version::V1 => FINGERPRINT_V1,
            Version::V2 => FINGERPRINT_V2,
        }
    }

    /// The version with this number, of a structure at `offset` whose checksum is right.
    ///
    /// # Errors
    /// `Newer`, or `Damaged` for a version that never was.
    pub fn of(found: u32, offset: u64) -> Decoded<Version> {
        if found > FORMAT_VERSION {
            return Err(DecodeError::Newer {
                found,
                supported: FORMAT_VERSION,
            });
        }
        let known = Version::ALL.into_iter().find(|v| v.number() == found);
        known.ok_or_else(|| {
            DecodeError::damaged(offset, format!("format version {found} never was"))
        })
    }
}

/// What version 1 had. It never changes.
const LAYOUTS_V1: Layouts = &[
    ("Prefix", layout::Prefix::FIELDS),
    ("FileHeader", layout::FileHeader::FIELDS),
    ("RecordHead", param_file::RecordHead::FIELDS),
    ("KeyBlock", param_file::KeyBlock::FIELDS),
    ("FooterHeadV1", footer::FooterHeadV1::FIELDS),
    ("RunEntry", footer::RunEntry::FIELDS),
    ("EditHead", manifest::EditHead::FIELDS),
    ("TimelineEdit", edit_layout::TimelineEdit::FIELDS),
    ("TableEdit", descriptor::TableEdit::FIELDS),
    ("FileEdit", edit_layout::FileEdit::FIELDS),
    ("RemoveEdit", edit_layout::RemoveEdit::FIELDS),
    ("NumberEdit", edit_layout::NumberEdit::FIELDS),
    ("ImageEdit", edit_layout::ImageEdit::FIELDS),
    ("CheckpointEditV1", edit_layout::CheckpointEditV1::FIELDS),
    ("CurrentBlock", current::CurrentBlock::FIELDS),
    ("StoreHead", identity::StoreHead::FIELDS),
    ("PartHead", identity::PartHead::FIELDS),
    ("MetaHeader", meta::MetaHeader::FIELDS),
    ("ImageHeader", index_snapshot::ImageHeader::FIELDS),
    ("CoveredBlock", index_snapshot::CoveredBlock::FIELDS),
    ("EntryBlock", index_snapshot::EntryBlock::FIELDS),
    ("EntryPlace", index_snapshot::EntryPlace::FIELDS),
    (
        "SnapshotFooterBlock",
        index_snapshot::SnapshotFooterBlock::FIELDS,
    ),
];

/// What version 2 has.
const LAYOUTS_V2: Layouts = &[
    ("Prefix", layout::Prefix::FIELDS),
    ("FileHeader", layout::FileHeader::FIELDS),
    ("RecordHead", param_file::RecordHead::FIELDS),
    ("KeyBlock", param_file::KeyBlock::FIELDS),
    ("FooterHead", footer::FooterHead::FIELDS),
    ("RunEntry", footer::RunEntry::FIELDS),
    ("SectionEntry", footer::SectionEntry::FIELDS),
    ("EditHead", manifest::EditHead::FIELDS),
    ("TimelineEdit", edit_layout::TimelineEdit::FIELDS),
    ("TableEdit", descriptor::TableEdit::FIELDS),
    ("FileEdit", edit_layout::FileEdit::FIELDS),
    ("RemoveEdit", edit_layout::RemoveEdit::FIELDS),
    ("NumberEdit", edit_layout::NumberEdit::FIELDS),
    ("ImageEdit", edit_layout::ImageEdit::FIELDS),
    ("CheckpointEdit", edit_layout::CheckpointEdit::FIELDS),
    ("HyperEdit", edit_layout::HyperEdit::FIELDS),
    ("DropTableEdit", edit_layout::DropTableEdit::FIELDS),
    ("RenameTableEdit", edit_layout::RenameTableEdit::FIELDS),
    ("CursorEdit", edit_layout::CursorEdit::FIELDS),
    ("SnapshotEdit", edit_layout::SnapshotEdit::FIELDS),
    ("CurrentBlock", current::CurrentBlock::FIELDS),
    ("StoreHead", identity::StoreHead::FIELDS),
    ("PartHead", identity::PartHead::FIELDS),
    ("MetaHeader", meta::MetaHeader::FIELDS),
    ("SnapshotHeader", index_snapshot::SnapshotHeader::FIELDS),
    ("CoveredBlock", index_snapshot::CoveredBlock::FIELDS),
    ("EntryBlock", index_snapshot::EntryBlock::FIELDS),
    ("EntryPlace", index_snapshot::EntryPlace::FIELDS),
    (
        "SnapshotFooterBlock",
        index_snapshot::SnapshotFooterBlock::FIELDS,
    ),
];

const FINGERPRINT_V1: u64 = fingerprint(Version::V1.layouts());
const FINGERPRINT_V2: u64 = fingerprint(Version::V2.layouts());

const fn fnv(hash: u64, value: usize) -> u64 {
    (hash ^ value as u64).wrapping_mul(0x0000_0100_0000_01b3)
}

const fn fingerprint(layouts: Layouts) -> u64 {
    let mut hash = fnv(0xcbf2_9ce4_8422_2325, BLOCK_BYTES);
    let mut layouts = layouts;
    while let [(_, fields), rest @ ..] = layouts {
        let mut fields = *fields;
        while let [field, tail @ ..] = fields {
            hash = fnv(fnv(hash, field.offset), field.bytes);
            fields = tail;
        }
        layouts = rest;
    }
    hash
}
