//! What does a checkpoint hold, row by row?
#![expect(unsafe_code, reason = "C finds its functions by their names")]

use store::{CheckpointId, RowIter, TableId};

use crate::border::{call, free};
use crate::error::{Fault, Result};
use crate::pointers::{
    ErrorOut, FloatsOut, KeysOut, Output, Room, RowsOut, RowsRef, SizeOut, StoreRef, U32Out,
    WordsOut,
};
use crate::walk::{Pending, Shared, Source, range_of_part};

/// A walk over the rows of a checkpoint. `hps_rows` and `hps_rows_of` give it, `hps_row_iter_free`
/// frees it.
pub struct RowsHandle(Shared<RowIter>);

impl Source for RowIter {
    fn next(&mut self) -> Result<Option<Pending>> {
        Ok(self.next_row()?.map(|row| Pending {
            table: row.table.0,
            key: row.key,
            interval: row.interval,
            values: Some(row.values.to_vec()),
        }))
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
        place.write(Some(Box::new(RowsHandle(Shared::new(iter)))));
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
        let range = range_of_part(part, parts)?;
        let store = store.get("store")?.0.get()?;
        let iter = store.rows_of(CheckpointId(checkpoint), TableId(table), range)?;
        place.write(Some(Box::new(RowsHandle(Shared::new(iter)))));
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
        let mut walk = rows.get("rows")?.0.walk()?;
        let (mut count, mut table) = (0, 0);
        while let Some(row) = walk.peek()? {
            let whole = row.values.as_deref().unwrap_or_default();
            if count == 0 {
                table = row.table;
                if keys.is_empty() {
                    return Err(Fault::length("room for keys", 1, 0));
                }
                if values.len() < whole.len() {
                    return Err(Fault::length("room for values", whole.len(), values.len()));
                }
            }
            if row.table != table || count == keys.len() || values.len() < whole.len() {
                break;
            }
            let (now, rest) = values.split_at_mut(whole.len());
            now.copy_from_slice(whole);
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
