//! How is one change of what the store holds written?
//!
//! - A payload has the length of its structure, to the byte; only that of an edit with a name is
//!   longer, by the name.
//! - An edit that contradicts itself is refused, though its checksum is right.

use zerocopy::little_endian::{F32, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::DIRECTORIES_MAX;
use super::descriptor::{decode_table, encode_table};
use super::edit::{
    CheckpointMeta, EDIT_ADD_FILE, EDIT_CHECKPOINT, EDIT_CHECKPOINT_V1, EDIT_CURSOR,
    EDIT_DROP_FILE, EDIT_DROP_TABLE, EDIT_FORGET_CHECKPOINT, EDIT_HYPER_PARAMETERS, EDIT_IMAGE,
    EDIT_REMOVE_FILE, EDIT_RENAME_TABLE, EDIT_SNAPSHOT, EDIT_TABLE, EDIT_TIMELINE, Edit,
    FILE_BYTES_MAX, FileMeta, NAME_BYTES_MAX, NOT_REMOVED,
};
use super::edit_layout::{
    CheckpointEdit, CheckpointEditV1, CursorEdit, DropTableEdit, FileEdit, HyperEdit, ImageEdit,
    NumberEdit, RemoveEdit, RenameTableEdit, SnapshotEdit, TimelineEdit,
};
use super::layout::{DecodeError, Decoded, view};
use crate::options::{HyperParameters, TABLES_MAX};
use crate::units::{CheckpointId, FileNumber, narrow};

/// Appends the payload of an edit; returns the edit's number.
pub(super) fn encode_payload(edit: &Edit, out: &mut Vec<u8>) -> u32 {
    assert!(
        is_sane(edit),
        "an edit is consistent when written: {edit:?}"
    );
    match edit {
        Edit::Timeline {
            uuid,
            parent_checkpoint,
        } => put(out, EDIT_TIMELINE, &timeline_edit(uuid, *parent_checkpoint)),
        Edit::Table { id, descriptor } => {
            encode_table(*id, descriptor, out);
            EDIT_TABLE
        }
        Edit::AddFile(file) => put(out, EDIT_ADD_FILE, &file_edit(file)),
        Edit::RemoveFile { number, removed } => {
            put(out, EDIT_REMOVE_FILE, &remove_edit(*number, *removed))
        }
        Edit::DropFile { number } => put(out, EDIT_DROP_FILE, &number_edit(number.0)),
        Edit::Image {
            number,
            bytes,
            checksum,
        } => put(out, EDIT_IMAGE, &image_edit(*number, *bytes, *checksum)),
        Edit::CheckpointV1(checkpoint, hyper) => {
            let edit = checkpoint_edit_v1(checkpoint, hyper);
            put(out, EDIT_CHECKPOINT_V1, &edit)
        }
        Edit::ForgetCheckpoint { id } => put(out, EDIT_FORGET_CHECKPOINT, &number_edit(id.0)),
        Edit::Checkpoint(checkpoint) => put(out, EDIT_CHECKPOINT, &checkpoint_edit(checkpoint)),
        Edit::HyperParameters { table, hyper } => {
            put(out, EDIT_HYPER_PARAMETERS, &hyper_edit(*table, hyper))
        }
        Edit::DropTable { table, dropped } => {
            put(out, EDIT_DROP_TABLE, &drop_table_edit(*table, *dropped))
        }
        Edit::RenameTable {
            table,
            renamed,
            name,
        } => {
            put(out, EDIT_RENAME_TABLE, &rename_edit(*table, *renamed, name));
            out.extend_from_slice(name.as_bytes());
            EDIT_RENAME_TABLE
        }
        Edit::Cursor {
            name,
            checkpoint,
            interval,
        } => {
            put(out, EDIT_CURSOR, &cursor_edit(name, *checkpoint, *interval));
            out.extend_from_slice(name.as_bytes());
            EDIT_CURSOR
        }
        Edit::Snapshot {
            directory,
            number,
            bytes,
            checksum,
        } => {
            let edit = snapshot_edit(*directory, *number, *bytes, *checksum);
            put(out, EDIT_SNAPSHOT, &edit)
        }
    }
}

/// Appends a structure; returns the number.
fn put(out: &mut Vec<u8>, number: u32, structure: &(impl IntoBytes + Immutable)) -> u32 {
    out.extend_from_slice(structure.as_bytes());
    number
}

/// What must hold of an edit alone.
fn is_sane(edit: &Edit) -> bool {
    let is_table = |table: u32| usize::try_from(table).is_ok_and(|table| table < TABLES_MAX);
    let is_name = |name: &str| (1..=NAME_BYTES_MAX).contains(&name.len());
    match edit {
        Edit::AddFile(file) => file.is_sane(),
        Edit::HyperParameters { table, .. } => is_table(*table),
        Edit::DropTable { table, dropped } => {
            is_table(*table) && (CheckpointId(1)..NOT_REMOVED).contains(dropped)
        }
        Edit::RenameTable {
            table,
            renamed,
            name,
        } => is_table(*table) && (CheckpointId(1)..NOT_REMOVED).contains(renamed) && is_name(name),
        Edit::Cursor {
            name, checkpoint, ..
        } => is_name(name) && *checkpoint < NOT_REMOVED,
        Edit::Snapshot {
            directory, bytes, ..
        } => {
            let is_directory = usize::try_from(*directory).is_ok_and(|d| d < DIRECTORIES_MAX);
            is_directory && *bytes < FILE_BYTES_MAX
        }
        _ => true,
    }
}

fn name_bytes(name: &str) -> U32 {
    U32::new(narrow(name.len()))
}

fn timeline_edit(uuid: &[u8; 16], parent: CheckpointId) -> TimelineEdit {
    TimelineEdit {
        uuid: *uuid,
        parent_checkpoint: U64::new(parent.0),
    }
}

fn remove_edit(number: FileNumber, removed: CheckpointId) -> RemoveEdit {
    RemoveEdit {
        number: U64::new(number.0),
        removed: U64::new(removed.0),
    }
}

fn number_edit(number: u64) -> NumberEdit {
    NumberEdit {
        number: U64::new(number),
    }
}

fn image_edit(number: FileNumber, bytes: u64, checksum: u64) -> ImageEdit {
    ImageEdit {
        number: U64::new(number.0),
        bytes: U64::new(bytes),
        image_checksum: U64::new(checksum),
    }
}

fn file_edit(file: &FileMeta) -> FileEdit {
    FileEdit {
        number: U64::new(file.number.0),
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
    CheckpointEdit {
        id: U64::new(checkpoint.id.0),
        step: U64::new(checkpoint.step),
        next_rank: U64::new(checkpoint.next_rank),
        meta_number: U64::new(checkpoint.meta_number.0),
        meta_bytes: U64::new(checkpoint.meta_bytes),
        meta_checksum: U64::new(checkpoint.meta_checksum),
        unix_seconds: U64::new(checkpoint.unix_seconds),
        interval: U32::new(checkpoint.interval),
        zero: U32::ZERO,
    }
}

fn checkpoint_edit_v1(checkpoint: &CheckpointMeta, hyper: &HyperParameters) -> CheckpointEditV1 {
    let (same, hyper) = (checkpoint_edit(checkpoint), hyper_edit(0, hyper));
    CheckpointEditV1 {
        id: same.id,
        step: same.step,
        next_rank: same.next_rank,
        meta_number: same.meta_number,
        meta_bytes: same.meta_bytes,
        meta_checksum: same.meta_checksum,
        unix_seconds: same.unix_seconds,
        interval: same.interval,
        momentum: hyper.momentum,
        epsilon: hyper.epsilon,
        beta1: hyper.beta1,
        beta2: hyper.beta2,
        ftrl_beta: hyper.ftrl_beta,
        lambda1: hyper.lambda1,
        lambda2: hyper.lambda2,
    }
}

fn hyper_edit(table: u32, hyper: &HyperParameters) -> HyperEdit {
    HyperEdit {
        table: U32::new(table),
        momentum: F32::new(hyper.momentum),
        epsilon: F32::new(hyper.epsilon),
        beta1: F32::new(hyper.beta1),
        beta2: F32::new(hyper.beta2),
        ftrl_beta: F32::new(hyper.ftrl_beta),
        lambda1: F32::new(hyper.lambda1),
        lambda2: F32::new(hyper.lambda2),
    }
}

fn drop_table_edit(table: u32, dropped: CheckpointId) -> DropTableEdit {
    DropTableEdit {
        table: U32::new(table),
        zero: U32::ZERO,
        dropped: U64::new(dropped.0),
    }
}

fn rename_edit(table: u32, renamed: CheckpointId, name: &str) -> RenameTableEdit {
    RenameTableEdit {
        table: U32::new(table),
        name_bytes: name_bytes(name),
        renamed: U64::new(renamed.0),
    }
}

fn cursor_edit(name: &str, checkpoint: CheckpointId, interval: u32) -> CursorEdit {
    CursorEdit {
        checkpoint: U64::new(checkpoint.0),
        name_bytes: name_bytes(name),
        interval: U32::new(interval),
    }
}

fn snapshot_edit(directory: u32, number: FileNumber, bytes: u64, checksum: u64) -> SnapshotEdit {
    SnapshotEdit {
        directory: U32::new(directory),
        zero: U32::ZERO,
        number: U64::new(number.0),
        bytes: U64::new(bytes),
        snapshot_checksum: U64::new(checksum),
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

/// Decodes the payload of an edit of this number; `offset` is its record's.
pub(super) fn decode_payload(number: u32, payload: &[u8], offset: u64) -> Decoded<Edit> {
    let (edit, zero) = match number {
        EDIT_TIMELINE => {
            let edit = exact::<TimelineEdit>(payload, offset)?;
            let edit = Edit::Timeline {
                uuid: edit.uuid,
                parent_checkpoint: CheckpointId(edit.parent_checkpoint.get()),
            };
            (edit, U32::ZERO)
        }
        EDIT_TABLE => {
            let (id, descriptor) = decode_table(payload, offset)?;
            (Edit::Table { id, descriptor }, U32::ZERO)
        }
        EDIT_ADD_FILE => {
            let edit = exact::<FileEdit>(payload, offset)?;
            (Edit::AddFile(file_of(edit)), edit.zero)
        }
        EDIT_REMOVE_FILE => {
            let edit = exact::<RemoveEdit>(payload, offset)?;
            let edit = Edit::RemoveFile {
                number: FileNumber(edit.number.get()),
                removed: CheckpointId(edit.removed.get()),
            };
            (edit, U32::ZERO)
        }
        EDIT_DROP_FILE => {
            let number = FileNumber(exact::<NumberEdit>(payload, offset)?.number.get());
            (Edit::DropFile { number }, U32::ZERO)
        }
        EDIT_IMAGE => {
            let edit = exact::<ImageEdit>(payload, offset)?;
            let edit = Edit::Image {
                number: FileNumber(edit.number.get()),
                bytes: edit.bytes.get(),
                checksum: edit.image_checksum.get(),
            };
            (edit, U32::ZERO)
        }
        EDIT_CHECKPOINT_V1 => (checkpoint_of_v1(exact(payload, offset)?), U32::ZERO),
        EDIT_FORGET_CHECKPOINT => {
            let id = CheckpointId(exact::<NumberEdit>(payload, offset)?.number.get());
            (Edit::ForgetCheckpoint { id }, U32::ZERO)
        }
        EDIT_CHECKPOINT => {
            let edit = exact::<CheckpointEdit>(payload, offset)?;
            (Edit::Checkpoint(checkpoint_of(edit)), edit.zero)
        }
        number => decode_of_v2(number, payload, offset)?,
    };
    if zero != U32::ZERO || !is_sane(&edit) {
        let why = format!("edit {number}: it contradicts itself, or reserved bytes are not zero");
        return Err(DecodeError::damaged(offset, why));
    }
    Ok(edit)
}

/// As [`decode_payload`], the edits that came with version 2; their reserved bytes too.
fn decode_of_v2(number: u32, payload: &[u8], offset: u64) -> Decoded<(Edit, U32)> {
    Ok(match number {
        EDIT_HYPER_PARAMETERS => {
            let edit = exact::<HyperEdit>(payload, offset)?;
            let (table, hyper) = (edit.table.get(), hyper_of(edit));
            (Edit::HyperParameters { table, hyper }, U32::ZERO)
        }
        EDIT_DROP_TABLE => {
            let edit = exact::<DropTableEdit>(payload, offset)?;
            let (table, dropped) = (edit.table.get(), CheckpointId(edit.dropped.get()));
            (Edit::DropTable { table, dropped }, edit.zero)
        }
        EDIT_RENAME_TABLE => {
            let (edit, name) = view::<RenameTableEdit>(payload, offset, "edit")?;
            let edit = Edit::RenameTable {
                table: edit.table.get(),
                renamed: CheckpointId(edit.renamed.get()),
                name: name_of(edit.name_bytes, name, offset)?,
            };
            (edit, U32::ZERO)
        }
        EDIT_CURSOR => {
            let (edit, name) = view::<CursorEdit>(payload, offset, "edit")?;
            let cursor = Edit::Cursor {
                name: name_of(edit.name_bytes, name, offset)?,
                checkpoint: CheckpointId(edit.checkpoint.get()),
                interval: edit.interval.get(),
            };
            (cursor, U32::ZERO)
        }
        EDIT_SNAPSHOT => {
            let edit = exact::<SnapshotEdit>(payload, offset)?;
            let snapshot = Edit::Snapshot {
                directory: edit.directory.get(),
                number: FileNumber(edit.number.get()),
                bytes: edit.bytes.get(),
                checksum: edit.snapshot_checksum.get(),
            };
            (snapshot, edit.zero)
        }
        other => {
            let why = format!("edit: its kind {other} is not known");
            return Err(DecodeError::damaged(offset, why));
        }
    })
}

/// The name that ends a payload.
fn name_of(bytes: U32, name: &[u8], offset: u64) -> Decoded<String> {
    let bad = |why: &str| DecodeError::damaged(offset, format!("edit: its name {why}"));
    if usize::try_from(bytes.get()).ok() != Some(name.len()) {
        return Err(bad("has another length"));
    }
    let name = str::from_utf8(name).map_err(|_| bad("is not UTF-8"))?;
    Ok(name.to_owned())
}

fn file_of(edit: &FileEdit) -> FileMeta {
    FileMeta {
        number: FileNumber(edit.number.get()),
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
    }
}

fn checkpoint_of(edit: &CheckpointEdit) -> CheckpointMeta {
    CheckpointMeta {
        id: CheckpointId(edit.id.get()),
        step: edit.step.get(),
        interval: edit.interval.get(),
        next_rank: edit.next_rank.get(),
        meta_number: FileNumber(edit.meta_number.get()),
        meta_bytes: edit.meta_bytes.get(),
        meta_checksum: edit.meta_checksum.get(),
        unix_seconds: edit.unix_seconds.get(),
    }
}

fn checkpoint_of_v1(edit: &CheckpointEditV1) -> Edit {
    let checkpoint = CheckpointEdit {
        id: edit.id,
        step: edit.step,
        next_rank: edit.next_rank,
        meta_number: edit.meta_number,
        meta_bytes: edit.meta_bytes,
        meta_checksum: edit.meta_checksum,
        unix_seconds: edit.unix_seconds,
        interval: edit.interval,
        zero: U32::ZERO,
    };
    let hyper = HyperEdit {
        table: U32::ZERO,
        momentum: edit.momentum,
        epsilon: edit.epsilon,
        beta1: edit.beta1,
        beta2: edit.beta2,
        ftrl_beta: edit.ftrl_beta,
        lambda1: edit.lambda1,
        lambda2: edit.lambda2,
    };
    Edit::CheckpointV1(checkpoint_of(&checkpoint), hyper_of(&hyper))
}

fn hyper_of(edit: &HyperEdit) -> HyperParameters {
    HyperParameters {
        momentum: edit.momentum.get(),
        epsilon: edit.epsilon.get(),
        beta1: edit.beta1.get(),
        beta2: edit.beta2.get(),
        ftrl_beta: edit.ftrl_beta.get(),
        lambda1: edit.lambda1.get(),
        lambda2: edit.lambda2.get(),
    }
}
