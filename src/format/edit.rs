//! What is one change of what the store holds, and how is it written?
//!
//! - A payload has the length of its structure, to the byte; only a table's is longer, by its name.
//! - Numbers of edits are never reused.
//! - Whether an edit fits those before it is for the reader of the whole history to say.

use zerocopy::little_endian::{F32, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::descriptor::{decode_table, encode_table};
use super::footer::{RUNS_MAX, footer_bytes};
use super::layout::{DecodeError, Decoded, layout};
use super::param_file::ENTRIES_MAX;
use super::{BLOCK_BYTES, DIRECTORIES_MAX};
use crate::options::{HyperParameters, TableDescriptor};
use crate::units::CheckpointId;

/// `removed` of a file that is in the current version.
pub const NOT_REMOVED: CheckpointId = CheckpointId(u64::MAX);
/// Bytes of a file are below this: an offset shares its u64 with the kind in a seed.
pub const FILE_BYTES_MAX: u64 = 1 << 56;

layout! {
    /// Payload of edit 1.
    TimelineEdit = 24 {
        uuid: [u8; 16],
        parent_checkpoint: U64,
    }
}

layout! {
    /// Payload of edit 3.
    FileEdit = 104 {
        number: U64,
        rank: U64,
        bytes: U64,
        footer_offset: U64,
        footer_checksum: U64,
        rows: U64,
        tombstones: U64,
        hash_min: U64,
        hash_max: U64,
        added: U64,
        removed: U64,
        directory: U32,
        interval_min: U32,
        interval_max: U32,
        zero: U32,
    }
}

layout! {
    /// Payload of edit 4.
    RemoveEdit = 16 {
        number: U64,
        removed: U64,
    }
}

layout! {
    /// Payload of edits 5 and 8: a file number, a checkpoint id.
    NumberEdit = 8 {
        number: U64,
    }
}

layout! {
    /// Payload of edit 6.
    ImageEdit = 24 {
        number: U64,
        bytes: U64,
        image_checksum: U64,
    }
}

layout! {
    /// Payload of edit 7.
    CheckpointEdit = 88 {
        id: U64,
        step: U64,
        next_rank: U64,
        meta_number: U64,
        meta_bytes: U64,
        meta_checksum: U64,
        unix_seconds: U64,
        interval: U32,
        momentum: F32,
        epsilon: F32,
        beta1: F32,
        beta2: F32,
        ftrl_beta: F32,
        lambda1: F32,
        lambda2: F32,
    }
}

const EDIT_TIMELINE: u32 = 1;
const EDIT_TABLE: u32 = 2;
const EDIT_ADD_FILE: u32 = 3;
const EDIT_REMOVE_FILE: u32 = 4;
const EDIT_DROP_FILE: u32 = 5;
const EDIT_IMAGE: u32 = 6;
const EDIT_CHECKPOINT: u32 = 7;
const EDIT_FORGET_CHECKPOINT: u32 = 8;

/// All edits and their numbers.
#[cfg(any(test, feature = "sim"))]
pub const EDIT_NUMBERS: &[(&str, u32)] = &[
    ("Timeline", EDIT_TIMELINE),
    ("Table", EDIT_TABLE),
    ("AddFile", EDIT_ADD_FILE),
    ("RemoveFile", EDIT_REMOVE_FILE),
    ("DropFile", EDIT_DROP_FILE),
    ("Image", EDIT_IMAGE),
    ("Checkpoint", EDIT_CHECKPOINT),
    ("ForgetCheckpoint", EDIT_FORGET_CHECKPOINT),
];

/// A parameter file of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileMeta {
    /// File number.
    pub number: u64,
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

    fn is_sane(&self) -> bool {
        let block = BLOCK_BYTES as u64;
        usize::try_from(self.directory).is_ok_and(|directory| directory < DIRECTORIES_MAX)
            && self.bytes < FILE_BYTES_MAX
            && self.bytes.is_multiple_of(block)
            && self.footer_offset.is_multiple_of(block)
            && (block..self.bytes).contains(&self.footer_offset)
            && self.bytes - self.footer_offset <= footer_bytes(RUNS_MAX) as u64
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
    pub meta_number: u64,
    /// Length of the meta file.
    pub meta_bytes: u64,
    /// Checksum of the meta file's header; covers the file.
    pub meta_checksum: u64,
    /// Hyperparameters in force.
    pub hyper: HyperParameters,
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
        number: u64,
        /// First checkpoint without it.
        removed: CheckpointId,
    },
    /// A file is forgotten wholly: no retained version needs it.
    DropFile {
        /// File number.
        number: u64,
    },
    /// The index image now in force.
    Image {
        /// File number; 0 for none.
        number: u64,
        /// Length.
        bytes: u64,
        /// Checksum of its footer.
        checksum: u64,
    },
    /// A checkpoint.
    Checkpoint(CheckpointMeta),
    /// A checkpoint can't be opened any more.
    ForgetCheckpoint {
        /// Its id.
        id: CheckpointId,
    },
}

/// Appends the payload of an edit; returns the edit's number.
pub(super) fn encode_payload(edit: &Edit, out: &mut Vec<u8>) -> u32 {
    match edit {
        Edit::Timeline {
            uuid,
            parent_checkpoint,
        } => {
            let parent_checkpoint = U64::new(parent_checkpoint.0);
            out.extend_from_slice(
                TimelineEdit {
                    uuid: *uuid,
                    parent_checkpoint,
                }
                .as_bytes(),
            );
            EDIT_TIMELINE
        }
        Edit::Table { id, descriptor } => {
            encode_table(*id, descriptor, out);
            EDIT_TABLE
        }
        Edit::AddFile(file) => {
            out.extend_from_slice(file_edit(file).as_bytes());
            EDIT_ADD_FILE
        }
        Edit::RemoveFile { number, removed } => {
            let edit = RemoveEdit {
                number: U64::new(*number),
                removed: U64::new(removed.0),
            };
            out.extend_from_slice(edit.as_bytes());
            EDIT_REMOVE_FILE
        }
        Edit::DropFile { number } => {
            out.extend_from_slice(
                NumberEdit {
                    number: U64::new(*number),
                }
                .as_bytes(),
            );
            EDIT_DROP_FILE
        }
        Edit::Image {
            number,
            bytes,
            checksum,
        } => {
            let edit = ImageEdit {
                number: U64::new(*number),
                bytes: U64::new(*bytes),
                image_checksum: U64::new(*checksum),
            };
            out.extend_from_slice(edit.as_bytes());
            EDIT_IMAGE
        }
        Edit::Checkpoint(checkpoint) => {
            out.extend_from_slice(checkpoint_edit(checkpoint).as_bytes());
            EDIT_CHECKPOINT
        }
        Edit::ForgetCheckpoint { id } => {
            out.extend_from_slice(
                NumberEdit {
                    number: U64::new(id.0),
                }
                .as_bytes(),
            );
            EDIT_FORGET_CHECKPOINT
        }
    }
}

fn file_edit(file: &FileMeta) -> FileEdit {
    assert!(
        file.is_sane(),
        "a file is consistent when written: {file:?}"
    );
    FileEdit {
        number: U64::new(file.number),
        rank: U64::new(file.rank),
        bytes: U64::new(file.bytes),
        footer_offset: U64::new(file.footer_offset),
        footer_checksum: U64::new(file.footer_checksum),
        rows: U64::new(file.rows),
        tombstones: U64::new(file.tombstones),
        hash_min: U64::new(file.hash_min),
        hash_max: U64::new(file.hash_max),
        added: U64::new(file.added.0),
        removed: U64::new(file.removed.0),
        directory: U32::new(file.directory),
        interval_min: U32::new(file.interval_min),
        interval_max: U32::new(file.interval_max),
        zero: U32::ZERO,
    }
}

fn checkpoint_edit(checkpoint: &CheckpointMeta) -> CheckpointEdit {
    let hyper = &checkpoint.hyper;
    CheckpointEdit {
        id: U64::new(checkpoint.id.0),
        step: U64::new(checkpoint.step),
        next_rank: U64::new(checkpoint.next_rank),
        meta_number: U64::new(checkpoint.meta_number),
        meta_bytes: U64::new(checkpoint.meta_bytes),
        meta_checksum: U64::new(checkpoint.meta_checksum),
        unix_seconds: U64::new(checkpoint.unix_seconds),
        interval: U32::new(checkpoint.interval),
        momentum: F32::new(hyper.momentum),
        epsilon: F32::new(hyper.epsilon),
        beta1: F32::new(hyper.beta1),
        beta2: F32::new(hyper.beta2),
        ftrl_beta: F32::new(hyper.ftrl_beta),
        lambda1: F32::new(hyper.lambda1),
        lambda2: F32::new(hyper.lambda2),
    }
}

/// A payload of exactly one structure.
fn exact<T>(payload: &[u8], offset: u64) -> Decoded<&T>
where
    T: FromBytes + KnownLayout + Immutable + Unaligned,
{
    T::ref_from_bytes(payload)
        .map_err(|_| DecodeError::damaged(offset, "edit: its payload has another length"))
}

/// Decodes the payload of an edit; `offset` is its record's.
pub(super) fn decode_payload(kind: u32, payload: &[u8], offset: u64) -> Decoded<Edit> {
    Ok(match kind {
        EDIT_TIMELINE => {
            let edit = exact::<TimelineEdit>(payload, offset)?;
            Edit::Timeline {
                uuid: edit.uuid,
                parent_checkpoint: CheckpointId(edit.parent_checkpoint.get()),
            }
        }
        EDIT_TABLE => {
            let (id, descriptor) = decode_table(payload, offset)?;
            Edit::Table { id, descriptor }
        }
        EDIT_ADD_FILE => Edit::AddFile(decode_file(exact(payload, offset)?, offset)?),
        EDIT_REMOVE_FILE => {
            let edit = exact::<RemoveEdit>(payload, offset)?;
            Edit::RemoveFile {
                number: edit.number.get(),
                removed: CheckpointId(edit.removed.get()),
            }
        }
        EDIT_DROP_FILE => Edit::DropFile {
            number: exact::<NumberEdit>(payload, offset)?.number.get(),
        },
        EDIT_IMAGE => {
            let edit = exact::<ImageEdit>(payload, offset)?;
            Edit::Image {
                number: edit.number.get(),
                bytes: edit.bytes.get(),
                checksum: edit.image_checksum.get(),
            }
        }
        EDIT_CHECKPOINT => Edit::Checkpoint(decode_checkpoint(exact(payload, offset)?)),
        EDIT_FORGET_CHECKPOINT => Edit::ForgetCheckpoint {
            id: CheckpointId(exact::<NumberEdit>(payload, offset)?.number.get()),
        },
        other => {
            let why = format!("edit: its kind {other} is not known");
            return Err(DecodeError::damaged(offset, why));
        }
    })
}

fn decode_file(edit: &FileEdit, offset: u64) -> Decoded<FileMeta> {
    let file = FileMeta {
        number: edit.number.get(),
        directory: edit.directory.get(),
        rank: edit.rank.get(),
        bytes: edit.bytes.get(),
        footer_offset: edit.footer_offset.get(),
        footer_checksum: edit.footer_checksum.get(),
        rows: edit.rows.get(),
        tombstones: edit.tombstones.get(),
        hash_min: edit.hash_min.get(),
        hash_max: edit.hash_max.get(),
        interval_min: edit.interval_min.get(),
        interval_max: edit.interval_max.get(),
        added: CheckpointId(edit.added.get()),
        removed: CheckpointId(edit.removed.get()),
    };
    if edit.zero != U32::ZERO || !file.is_sane() {
        let why = format!("edit: file {} contradicts itself", file.number);
        return Err(DecodeError::damaged(offset, why));
    }
    Ok(file)
}

fn decode_checkpoint(edit: &CheckpointEdit) -> CheckpointMeta {
    CheckpointMeta {
        id: CheckpointId(edit.id.get()),
        step: edit.step.get(),
        interval: edit.interval.get(),
        next_rank: edit.next_rank.get(),
        meta_number: edit.meta_number.get(),
        meta_bytes: edit.meta_bytes.get(),
        meta_checksum: edit.meta_checksum.get(),
        hyper: HyperParameters {
            momentum: edit.momentum.get(),
            epsilon: edit.epsilon.get(),
            beta1: edit.beta1.get(),
            beta2: edit.beta2.get(),
            ftrl_beta: edit.ftrl_beta.get(),
            lambda1: edit.lambda1.get(),
            lambda2: edit.lambda2.get(),
        },
        unix_seconds: edit.unix_seconds.get(),
    }
}
