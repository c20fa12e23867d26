//! What is one change of what the store holds?
//!
//! - Numbers of edits are never reused; each version of the format has its own choice of them.
//! - Whether an edit fits those before it is for the reader of the whole history to say.
//! - How an edit is written is in `payload.rs`.

use super::footer::{RUNS_MAX, SECTIONS_MAX, footer_bytes};
use super::param_file::ENTRIES_MAX;
use super::{BLOCK_BYTES, DIRECTORIES_MAX, Version};
use crate::options::{HyperParameters, TableDescriptor};
use crate::units::{CheckpointId, FileNumber};

/// `removed` of a file that is in the current version.
pub const NOT_REMOVED: CheckpointId = CheckpointId(u64::MAX);
/// Bytes of a file are below this: an offset shares its u64 with the kind in a seed.
pub const FILE_BYTES_MAX: u64 = 1 << 56;
/// Most bytes of the name of a table or cursor.
pub const NAME_BYTES_MAX: usize = 255;

pub(super) const EDIT_TIMELINE: u32 = 1;
pub(super) const EDIT_TABLE: u32 = 2;
pub(super) const EDIT_ADD_FILE: u32 = 3;
pub(super) const EDIT_REMOVE_FILE: u32 = 4;
pub(super) const EDIT_DROP_FILE: u32 = 5;
pub(super) const EDIT_IMAGE: u32 = 6;
pub(super) const EDIT_CHECKPOINT_V1: u32 = 7;
pub(super) const EDIT_FORGET_CHECKPOINT: u32 = 8;
pub(super) const EDIT_CHECKPOINT: u32 = 9;
pub(super) const EDIT_HYPER_PARAMETERS: u32 = 10;
pub(super) const EDIT_DROP_TABLE: u32 = 11;
pub(super) const EDIT_RENAME_TABLE: u32 = 12;
pub(super) const EDIT_CURSOR: u32 = 13;
pub(super) const EDIT_SNAPSHOT: u32 = 14;

/// All edits and their numbers.
#[cfg(any(test, feature = "sim"))]
pub const EDIT_NUMBERS: &[(&str, u32)] = &[
    ("Timeline", EDIT_TIMELINE),
    ("Table", EDIT_TABLE),
    ("AddFile", EDIT_ADD_FILE),
    ("RemoveFile", EDIT_REMOVE_FILE),
    ("DropFile", EDIT_DROP_FILE),
    ("Image", EDIT_IMAGE),
    ("CheckpointV1", EDIT_CHECKPOINT_V1),
    ("ForgetCheckpoint", EDIT_FORGET_CHECKPOINT),
    ("Checkpoint", EDIT_CHECKPOINT),
    ("HyperParameters", EDIT_HYPER_PARAMETERS),
    ("DropTable", EDIT_DROP_TABLE),
    ("RenameTable", EDIT_RENAME_TABLE),
    ("Cursor", EDIT_CURSOR),
    ("Snapshot", EDIT_SNAPSHOT),
];

/// Whether a manifest of this version may have edits of this number.
pub(super) fn is_edit_of(version: Version, number: u32) -> bool {
    match number {
        EDIT_CHECKPOINT_V1 => version == Version::V1,
        EDIT_TIMELINE..=EDIT_FORGET_CHECKPOINT => true,
        EDIT_CHECKPOINT..=EDIT_SNAPSHOT => version >= Version::V2,
        _ => false,
    }
}

/// A parameter file of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileMeta {
    /// File number.
    pub number: FileNumber,
    /// Data directory, by its index in `STORE`.
    pub directory: u32,
    /// Orders copies of a key: the greater one is the newer.
    pub rank: u64,
    /// Length.
    pub bytes: u64,
    /// Where the footer starts.
    pub footer_offset: u64,
    /// The footer's checksum; covers the file.
    pub footer_checksum: u64,
    /// Entries with a record.
    pub rows: u64,
    /// Entries without.
    pub tombstones: u64,
    /// Smallest mix64(key).
    pub hash_min: u64,
    /// Largest mix64(key).
    pub hash_max: u64,
    /// Smallest interval.
    pub interval_min: u32,
    /// Largest interval.
    pub interval_max: u32,
    /// First checkpoint that has the file.
    pub added: CheckpointId,
    /// First checkpoint after `added` that does not have it; [`NOT_REMOVED`] while it is current.
    pub removed: CheckpointId,
}

impl FileMeta {
    /// Whether the file is part of checkpoint `id`.
    #[must_use]
    pub fn in_checkpoint(&self, id: CheckpointId) -> bool {
        self.added <= id && id < self.removed
    }

    pub(super) fn is_sane(&self) -> bool {
        let block = BLOCK_BYTES as u64;
        usize::try_from(self.directory).is_ok_and(|directory| directory < DIRECTORIES_MAX)
            && self.bytes < FILE_BYTES_MAX
            && self.bytes.is_multiple_of(block)
            && self.footer_offset.is_multiple_of(block)
            && (block..self.bytes).contains(&self.footer_offset)
            && self.bytes - self.footer_offset <= footer_bytes(RUNS_MAX, SECTIONS_MAX) as u64
            && self
                .rows
                .checked_add(self.tombstones)
                .is_some_and(|entries| (1..=ENTRIES_MAX).contains(&entries))
            && self.hash_min <= self.hash_max
            && self.interval_min <= self.interval_max
            && self.added < self.removed
    }
}

/// A checkpoint that can be opened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CheckpointMeta {
    /// Its id.
    pub id: CheckpointId,
    /// The trainer's step.
    pub step: u64,
    /// Interval of its youngest rows.
    pub interval: u32,
    /// Ranks below are used.
    pub next_rank: u64,
    /// Number of its meta file.
    pub meta_number: FileNumber,
    /// Length of the meta file.
    pub meta_bytes: u64,
    /// Checksum of the meta file's header; covers the file.
    pub meta_checksum: u64,
    /// When it was made.
    pub unix_seconds: u64,
}

/// One change of what the store holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Edit {
    /// The history that follows; first of every manifest.
    Timeline {
        /// Name of the timeline, new at each rollback.
        uuid: [u8; 16],
        /// The checkpoint it started from; 0 for none.
        parent_checkpoint: CheckpointId,
    },
    /// A table exists.
    Table {
        /// Its number.
        id: u32,
        /// Its descriptor.
        descriptor: TableDescriptor,
    },
    /// A parameter file exists.
    AddFile(FileMeta),
    /// A file leaves the current version; checkpoints before `removed` still have it.
    RemoveFile {
        /// File number.
        number: FileNumber,
        /// First checkpoint without it.
        removed: CheckpointId,
    },
    /// A file is forgotten wholly: no retained version needs it.
    DropFile {
        /// File number.
        number: FileNumber,
    },
    /// The index snapshot now in force.
    Image {
        /// File number; 0 for none.
        number: FileNumber,
        /// Length.
        bytes: u64,
        /// Checksum of its footer.
        checksum: u64,
    },
    /// A checkpoint of version 1, with the hyperparameters of all tables.
    CheckpointV1(CheckpointMeta, HyperParameters),
    /// A checkpoint can't be opened any more.
    ForgetCheckpoint {
        /// Its id.
        id: CheckpointId,
    },
    /// A checkpoint.
    Checkpoint(CheckpointMeta),
    /// Hyperparameters of a table, in force from the next checkpoint on.
    HyperParameters {
        /// The table's number.
        table: u32,
        /// The numbers.
        hyper: HyperParameters,
    },
    /// A table is there no more; checkpoints before `dropped` still have it.
    DropTable {
        /// The table's number.
        table: u32,
        /// First checkpoint without it.
        dropped: CheckpointId,
    },
    /// A table gets another name; in checkpoints before `renamed` it has the one before.
    RenameTable {
        /// The table's number.
        table: u32,
        /// First checkpoint with the name.
        renamed: CheckpointId,
        /// The name.
        name: String,
    },
    /// A reader of this name has everything up to a checkpoint.
    Cursor {
        /// The reader's name.
        name: String,
        /// The checkpoint; 0: the cursor is gone.
        checkpoint: CheckpointId,
        /// The interval of its youngest rows; 0: not known.
        interval: u32,
    },
    /// The part of the index snapshot that a data directory has now.
    Snapshot {
        /// Data directory, by its index in `STORE`.
        directory: u32,
        /// File number; 0 for none.
        number: FileNumber,
        /// Length.
        bytes: u64,
        /// Checksum of its footer.
        checksum: u64,
    },
}

impl Edit {
    /// The checkpoint that it makes.
    #[must_use]
    pub fn checkpoint(&self) -> Option<&CheckpointMeta> {
        match self {
            Edit::Checkpoint(meta) | Edit::CheckpointV1(meta, _) => Some(meta),
            _ => None,
        }
    }

    /// Whether it says something of the checkpoint whose edit comes next.
    #[must_use]
    pub const fn is_of_next_checkpoint(&self) -> bool {
        matches!(
            self,
            Edit::Table { .. }
                | Edit::DropTable { .. }
                | Edit::RenameTable { .. }
                | Edit::HyperParameters { .. }
        )
    }
}
