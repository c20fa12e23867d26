//! What changed since a checkpoint, and how do copies of the store follow?
#![expect(unsafe_code, reason = "C finds its functions by their names")]

use store::{Change, CheckpointId, DeltaBase, Incremental, TableId};

use crate::border::{call, free};
use crate::error::{Fault, Result};
use crate::pointers::{
    ChangesOut, ChangesRef, DeltaInfoOut, ErrorOut, FloatsOut, KeysOut, Output, Room, SizeOut,
    StoreRef, Text, U32Out, U64Out,
};
use crate::walk::{Pending, Shared, Source, range_of_part};

/// What a delta is.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DeltaInfo {
    /// Deltas before it in its chain.
    pub sequence: u64,
    /// The checkpoint that the changes come after; 0: they are all rows.
    pub since: u64,
    /// The checkpoint that they lead to.
    pub until: u64,
    /// The trainer's step.
    pub step: u64,
    /// Rows that changed.
    pub rows: u64,
    /// Keys that were removed.
    pub removed: u64,
    /// 1: it was written, or applied, by this call; 0: it was applied before.
    pub is_new: i32,
}

impl DeltaInfo {
    fn of(info: &store::DeltaInfo, is_new: bool) -> DeltaInfo {
        DeltaInfo {
            sequence: info.sequence,
            since: info.since.0,
            until: info.until.0,
            step: info.step,
            rows: info.rows,
            removed: info.removed,
            is_new: i32::from(is_new),
        }
    }
}

/// A walk over what changed. `hps_incremental` and `hps_incremental_of` give it,
/// `hps_changes_free` frees it.
pub struct ChangesHandle(Shared<Incremental>);

impl Source for Incremental {
    fn next(&mut self) -> Result<Option<Pending>> {
        Ok(match self.next_change()? {
            Some(Change::Row(row)) => Some(Pending {
                table: row.table.0,
                key: row.key,
                interval: row.interval,
                values: Some(row.values.to_vec()),
            }),
            Some(Change::Removed {
                table,
                key,
                interval,
            }) => Some(Pending {
                table: table.0,
                key,
                interval,
                values: None,
            }),
            _ => None,
        })
    }
}

/// Begins a walk over what changed after the checkpoint `since` up to the retained one `until`, in
/// the order of (table, mix64 of the key). `since` is retained, or a cursor's (`hps_set_cursor`), or
/// 0: before everything, which gives all rows and no removed keys. What it needs stays readable
/// while the walk lives.
///
/// # Errors
/// HPS_INVALID_ARGUMENT (kind "HistoryGone": what changed since then is not kept, take a whole copy;
/// "UnknownCheckpoint"; "Other": the wrong order), HPS_CORRUPT, HPS_IO, HPS_FORKED.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_incremental(
    store: StoreRef,
    since: u64,
    until: u64,
    changes: ChangesOut,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let place = changes.place("changes")?;
        let store = store.get("store")?.0.get()?;
        let walk = store.incremental(CheckpointId(since), CheckpointId(until))?;
        place.write(Some(Box::new(ChangesHandle(Shared::new(walk)))));
        Ok(())
    })
}

/// As `hps_incremental`, of one table and one of `parts` equal ranges of its keys: several threads
/// have one such walk for each `part` from 0 to parts - 1.
///
/// # Errors
/// As `hps_incremental`; an unknown table or part.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_incremental_of(
    store: StoreRef,
    since: u64,
    until: u64,
    table: u32,
    part: usize,
    parts: usize,
    changes: ChangesOut,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let place = changes.place("changes")?;
        let range = range_of_part(part, parts)?;
        let store = store.get("store")?.0.get()?;
        let (since, until) = (CheckpointId(since), CheckpointId(until));
        let walk = store.incremental_of(since, until, TableId(table), range)?;
        place.write(Some(Box::new(ChangesHandle(Shared::new(walk)))));
        Ok(())
    })
}

/// Gives the next changes, all of one table: as many as there is room for, and at least one unless
/// the walk is at its end.
///
/// keys: room for `[keys_len]`; values: room for `[values_len]` f32s, whole rows (weights, state,
/// metadata) one after the other; count: how many rows. removed: room for `[removed_len]`, the keys
/// that have no row any more; removed_count: how many. table: whose they are. Both counts are 0 at
/// the end.
///
/// # Errors
/// HPS_INVALID_ARGUMENT of kind "Length" where there is no room for the next change: nothing is
/// skipped. HPS_CORRUPT, HPS_IO: the walk is at its end. HPS_FORKED.
///
/// # Threads
/// Any; several that use one walk take turns.
#[unsafe(no_mangle)]
pub extern "C" fn hps_changes_next(
    changes: ChangesRef,
    keys: KeysOut,
    keys_len: usize,
    values: FloatsOut,
    values_len: usize,
    removed: KeysOut,
    removed_len: usize,
    table: U32Out,
    count: SizeOut,
    removed_count: SizeOut,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let (table_place, count_place) = (table.place("table")?, count.place("count")?);
        let removed_place = removed_count.place("removed_count")?;
        count_place.write(0);
        removed_place.write(0);
        table_place.write(0);
        let keys = keys.slice("keys", keys_len)?;
        let mut values = values.slice("values", values_len)?;
        let removed = removed.slice("removed", removed_len)?;
        let mut walk = changes.get("changes")?.0.walk()?;
        let (mut rows, mut gone, mut table) = (0, 0, None);
        while let Some(change) = walk.peek()? {
            if *table.get_or_insert(change.table) != change.table {
                break;
            }
            let lack = match &change.values {
                None if gone == removed.len() => Some(("room for removed", gone + 1, gone)),
                Some(_) if rows == keys.len() => Some(("room for keys", rows + 1, rows)),
                Some(row) if values.len() < row.len() => {
                    Some(("room for values", row.len(), values.len()))
                }
                _ => None,
            };
            match lack {
                Some((what, needed, found)) if rows + gone == 0 => {
                    return Err(Fault::length(what, needed, found));
                }
                Some(_) => break,
                None => {}
            }
            match &change.values {
                Some(row) => {
                    let (now, rest) = values.split_at_mut(row.len());
                    now.copy_from_slice(row);
                    values = rest;
                    keys[rows] = change.key;
                    rows += 1;
                }
                None => {
                    removed[gone] = change.key;
                    gone += 1;
                }
            }
            walk.pending = None;
        }
        table_place.write(table.unwrap_or(0));
        count_place.write(rows);
        removed_place.write(gone);
        Ok(())
    })
}

/// Ends a walk. NULL is allowed.
///
/// # Threads
/// None may use the walk any more.
#[unsafe(no_mangle)]
pub extern "C" fn hps_changes_free(changes: Option<Box<ChangesHandle>>) {
    free(changes);
}

/// Says that a reader of this name has everything up to a retained checkpoint: what changes from
/// there on can be told by `hps_incremental` also when the checkpoint is dropped. It keeps notes of
/// removed keys until it moves on, and no file.
///
/// # Durability
/// It survives a crash once this returns HPS_OK.
///
/// # Errors
/// HPS_INVALID_ARGUMENT (kind "UnknownCheckpoint"; "Other": a name that is empty or longer than 255
/// bytes), HPS_NO_SPACE, HPS_IO, HPS_POISONED, HPS_READ_ONLY, HPS_FORKED.
///
/// # Threads
/// Any; waits for a running checkpoint.
#[unsafe(no_mangle)]
pub extern "C" fn hps_set_cursor(
    store: StoreRef,
    name: Text,
    checkpoint: u64,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let name = name.text("name")?;
        let store = store.get("store")?.0.get()?;
        Ok(store.set_cursor(name, CheckpointId(checkpoint))?)
    })
}

/// Takes the cursor of a reader back, if it has one.
///
/// # Durability
/// As `hps_set_cursor`.
///
/// # Errors
/// HPS_NO_SPACE, HPS_IO, HPS_POISONED, HPS_READ_ONLY, HPS_FORKED.
///
/// # Threads
/// Any; waits for a running checkpoint.
#[unsafe(no_mangle)]
pub extern "C" fn hps_remove_cursor(store: StoreRef, name: Text, error: ErrorOut) -> i32 {
    call(error, || {
        let name = name.text("name")?;
        Ok(store.get("store")?.0.get()?.remove_cursor(name)?)
    })
}

/// Gives the checkpoint up to which a reader has everything; 0 where there is no reader of this name.
///
/// # Errors
/// HPS_FORKED.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_cursor(
    store: StoreRef,
    name: Text,
    checkpoint: U64Out,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let place = checkpoint.place("checkpoint")?;
        let name = name.text("name")?;
        let cursors = store.get("store")?.0.get()?.cursors();
        let found = cursors.iter().find(|cursor| cursor.name == name);
        place.write(found.map_or(0, |cursor| cursor.checkpoint.0));
        Ok(())
    })
}

/// Writes the changes up to a retained checkpoint into a folder, which is made, or is empty: a delta,
/// from which `hps_apply_delta` brings a copy of the store up to that checkpoint.
///
/// after: the folder of the delta before, or NULL; since, without it: the checkpoint of which the
/// copy is an export, or 0 for everything. info may be NULL.
///
/// # Durability
/// The folder survives a crash once this returns HPS_OK; one without a file DELTA is not finished.
///
/// # Errors
/// HPS_INVALID_ARGUMENT (kind "HistoryGone", "UnknownCheckpoint", "NotAStore": a folder in use,
/// "Delta": one of another store; "Other": after and since at once), HPS_NO_SPACE, HPS_CORRUPT,
/// HPS_IO, HPS_FORKED.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_write_delta(
    store: StoreRef,
    until: u64,
    folder: Text,
    after: Text,
    since: u64,
    info: DeltaInfoOut,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let (folder, place) = (folder.path("folder")?, info.optional("info")?);
        let base = match (after.optional_path("after")?, since) {
            (Some(_), 1..) => {
                let why = "after and since came, one of them is needed at most";
                return Err(Fault::other(why.to_owned()));
            }
            (Some(before), _) => DeltaBase::Delta(before),
            (None, 0) => DeltaBase::Nothing,
            (None, since) => DeltaBase::Checkpoint(CheckpointId(since)),
        };
        let store = store.get("store")?.0.get()?;
        let written = store.write_delta(CheckpointId(until), folder, base)?;
        if let Some(place) = place {
            place.write(DeltaInfo::of(&written, true));
        }
        Ok(())
    })
}

/// Brings a store that is a copy of another one up to where a delta leads, with one checkpoint of the
/// same step and meta. The copy began as an empty store, or as an export; applied again, the last
/// delta does nothing. info may be NULL.
///
/// # Durability
/// All of it survives a crash once this returns HPS_OK; after a crash before that, all or nothing.
///
/// # Errors
/// Before anything is changed: HPS_INVALID_ARGUMENT (kind "Delta": no delta, a gap before it, an older
/// one, of another store or timeline, or a store with changes of its own), HPS_CORRUPT,
/// HPS_UNSUPPORTED, HPS_READ_ONLY, HPS_FORKED. Later: HPS_NO_SPACE, HPS_IO; the store then refuses
/// writes until it is opened again, at the checkpoint before.
///
/// # Threads
/// Any; nobody else changes the store meanwhile.
#[unsafe(no_mangle)]
pub extern "C" fn hps_apply_delta(
    store: StoreRef,
    folder: Text,
    info: DeltaInfoOut,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let (folder, place) = (folder.path("folder")?, info.optional("info")?);
        let report = store.get("store")?.0.get()?.apply_delta(folder)?;
        if let Some(place) = place {
            place.write(DeltaInfo::of(&report.delta, report.is_new));
        }
        Ok(())
    })
}
