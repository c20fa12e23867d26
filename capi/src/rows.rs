//! What does a checkpoint hold, row by row?
#![expect(unsafe_code, reason = "C finds its functions by their names")]

use std::sync::Mutex;

use store::{CheckpointId, RowIter, TableId, part_range};

use crate::border::{Process, call, free, lock};
use crate::error::{Fault, Result};
use crate::pointers::{
    ErrorOut, FloatsOut, KeysOut, Output, Room, RowsOut, RowsRef, SizeOut, StoreRef, U32Out,
    WordsOut,
};

/// A row that was read and not given yet.
struct Pending {
    table: u32,
    key: u64,
    interval: u32,
    values: Vec<f32>,
}

struct Walk {
    iter: RowIter,
    pending: Option<Pending>,
}

/// A walk over the rows of a checkpoint. `hps_rows` and `hps_rows_of` give it, `hps_row_iter_free`
/// frees it.
pub struct RowsHandle {
    process: Process,
    walk: Mutex<Walk>,
}

impl RowsHandle {
    fn new(iter: RowIter) -> RowsHandle {
        let pending = None;
        RowsHandle {
            process: Process::this(),
            walk: Mutex::new(Walk { iter, pending }),
        }
    }
}

impl Walk {
    /// The row that comes next, if any.
    fn peek(&mut self) -> Result<Option<&Pending>> {
        if self.pending.is_none() {
            self.pending = self.iter.next_row()?.map(|row| Pending {
                table: row.table.0,
                key: row.key,
                interval: row.interval,
                values: row.values.to_vec(),
            });
        }
        Ok(self.pending.as_ref())
    }
}

/// Begins a walk over the rows of a retained checkpoint, of all its tables, in the order of (table,
/// mix64 of the key). What it needs stays readable while the walk lives, also when the checkpoint
/// is dropped or the store closed.
///
/// # Errors
/// HPS_INVALID_ARGUMENT for an unknown checkpoint, HPS_CORRUPT, HPS_IO, HPS_FORKED.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_rows(
    store: StoreRef,
    checkpoint: u64,
    rows: RowsOut,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let place = rows.place("rows")?;
        let iter = store
            .get("store")?
            .0
            .get()?
            .rows(CheckpointId(checkpoint))?;
        place.write(Some(Box::new(RowsHandle::new(iter))));
        Ok(())
    })
}

/// Begins a walk over one of `parts` equal ranges of a table's rows: an export by several threads
/// has one such walk for each `part` from 0 to parts - 1. The table may have been dropped since.
///
/// # Errors
/// HPS_INVALID_ARGUMENT for an unknown checkpoint, table or part, HPS_CORRUPT, HPS_IO, HPS_FORKED.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_rows_of(
    store: StoreRef,
    checkpoint: u64,
    table: u32,
    part: usize,
    parts: usize,
    rows: RowsOut,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let place = rows.place("rows")?;
        if part >= parts {
            let why = format!("must be below parts, which is {parts}");
            return Err(Fault::option("part", part, &why));
        }
        let store = store.get("store")?.0.get()?;
        let range = part_range(part, parts);
        let iter = store.rows_of(CheckpointId(checkpoint), TableId(table), range)?;
        place.write(Some(Box::new(RowsHandle::new(iter))));
        Ok(())
    })
}

/// Gives the next rows, all of one table: as many as there is room for, and at least one unless the
/// walk is at its end.
///
/// keys: room for `[keys_len]`; values: room for `[values_len]` f32s, whole rows (weights, state,
/// metadata) one after the other; intervals: room for `[keys_len]`, the checkpoint intervals in
/// which the rows last changed, or NULL; table: whose rows they are; count: how many rows, 0 at the
/// end.
///
/// # Errors
/// HPS_INVALID_ARGUMENT of kind "Length" where there is no room for one row: nothing is skipped.
/// HPS_CORRUPT, HPS_IO: the walk is at its end. HPS_FORKED.
///
/// # Threads
/// Any; several that use one walk take turns.
#[unsafe(no_mangle)]
pub extern "C" fn hps_row_iter_next(
    rows: RowsRef,
    keys: KeysOut,
    keys_len: usize,
    values: FloatsOut,
    values_len: usize,
    intervals: WordsOut,
    table: U32Out,
    count: SizeOut,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let (table_place, count_place) = (table.place("table")?, count.place("count")?);
        count_place.write(0);
        table_place.write(0);
        let (keys, mut values) = (
            keys.slice("keys", keys_len)?,
            values.slice("values", values_len)?,
        );
        let intervals = intervals.slice_or_none("intervals", keys_len)?;
        let rows = rows.get("rows")?;
        rows.process.check()?;
        let mut walk = lock(&rows.walk);
        let (mut count, mut table) = (0, 0);
        while let Some(row) = walk.peek()? {
            if count == 0 {
                table = row.table;
                if keys.is_empty() {
                    return Err(Fault::length("room for keys", 1, 0));
                }
                if values.len() < row.values.len() {
                    return Err(Fault::length(
                        "room for values",
                        row.values.len(),
                        values.len(),
                    ));
                }
            }
            if row.table != table || count == keys.len() || values.len() < row.values.len() {
                break;
            }
            let (now, rest) = values.split_at_mut(row.values.len());
            now.copy_from_slice(&row.values);
            values = rest;
            keys[count] = row.key;
            if let Some(interval) = intervals.get_mut(count) {
                *interval = row.interval;
            }
            count += 1;
            walk.pending = None;
        }
        table_place.write(table);
        count_place.write(count);
        Ok(())
    })
}

/// Ends a walk. NULL is allowed.
///
/// # Threads
/// None may use the walk any more.
#[unsafe(no_mangle)]
pub extern "C" fn hps_row_iter_free(rows: Option<Box<RowsHandle>>) {
    free(rows);
}
