//! The calls for rows of one table.
#![expect(unsafe_code, reason = "C finds its functions by their names")]

use store::{PutRows, TableId};

use crate::border::call;
use crate::codes::{UpdateFlags, Values, unknown};
use crate::error::Result;
use crate::lease::LeaseHandle;
use crate::pointers::{
    BytesOut, ErrorOut, Floats, FloatsOut, Keys, KeysOut, LeaseOut, Output, PutReportOut, Room,
    SizeOut, StoreRef, TicketOut, U64Out, WordsOut,
};
use crate::ticket::TicketHandle;

/// Makes rows resident, pins them and copies their weights. A key that was never pushed has the row
/// of the table's initialiser. Rows are pinned until the lease is freed.
///
/// keys: `[keys_len]`, any u64, duplicates allowed; out: `[keys_len, dim]`, in the same order, so
/// `out_len` is keys_len * dim.
///
/// # Durability
/// None: nothing changes.
///
/// # Errors
/// HPS_OVER_BUDGET when the batch can't be in memory beside the outstanding leases (nobody waits),
/// HPS_INVALID_ARGUMENT, HPS_IO, HPS_CORRUPT, HPS_NO_SPACE or HPS_POISONED (room needed a flush).
/// What is in `out` then is undefined.
///
/// # Threads
/// Any; calls of several threads run at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn hps_pull(
    store: StoreRef,
    table: u32,
    keys: Keys,
    keys_len: usize,
    out: FloatsOut,
    out_len: usize,
    lease: LeaseOut,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let place = lease.place("lease")?;
        let (keys, out) = (keys.slice("keys", keys_len)?, out.slice("out", out_len)?);
        let store = store.get("store")?.0.get()?;
        let lease = store.pull(TableId(table), keys, out)?;
        place.write(Some(Box::new(LeaseHandle(lease))));
        Ok(())
    })
}

/// Starts making rows resident, in a thread of the store. The keys are copied. Values are gathered
/// when the lease is read, so a prefetch changes when rows are read from the device, never what a
/// batch sees.
///
/// keys: `[keys_len]`, any u64, duplicates allowed.
///
/// # Durability
/// None: nothing changes.
///
/// # Errors
/// HPS_INVALID_ARGUMENT; everything else comes from `hps_ticket_wait`.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_prefetch(
    store: StoreRef,
    table: u32,
    keys: Keys,
    keys_len: usize,
    ticket: TicketOut,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let place = ticket.place("ticket")?;
        let keys = keys.slice("keys", keys_len)?;
        let ticket = store
            .get("store")?
            .0
            .get()?
            .prefetch(TableId(table), keys)?;
        place.write(Some(Box::new(TicketHandle::new(ticket))));
        Ok(())
    })
}

/// Writes rows without reading what they replace: for rows that come from elsewhere. Any number of
/// keys in one call.
///
/// keys: `[keys_len]`; kind: HPS_WEIGHTS, values: `[keys_len, dim]`, or HPS_ROWS, `[keys_len,
/// row_f32s]`; flags: 0 or HPS_VERBATIM; report: what was done, or NULL.
///
/// # Durability
/// With the next checkpoint: all of the call, or nothing.
///
/// # Errors
/// HPS_INVALID_ARGUMENT, HPS_OVER_BUDGET, HPS_READ_ONLY: nothing changed. HPS_NO_SPACE, HPS_IO,
/// HPS_POISONED: some rows may have changed.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_put(
    store: StoreRef,
    table: u32,
    keys: Keys,
    keys_len: usize,
    kind: i32,
    values: Floats,
    values_len: usize,
    flags: u32,
    report: PutReportOut,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let report = report.optional("report")?;
        let keys = keys.slice("keys", keys_len)?;
        let rows = put_rows(kind, values.slice("values", values_len)?, flags)?;
        let store = store.get("store")?.0.get()?;
        let done = store.put(TableId(table), keys, rows)?;
        if let Some(report) = report {
            report.write(done.into());
        }
        Ok(())
    })
}

/// What is put: values of a kind, as the flags say.
pub fn put_rows(kind: i32, values: &[f32], flags: u32) -> Result<PutRows<'_>> {
    const WEIGHTS: i32 = Values::HPS_WEIGHTS as i32;
    const ROWS: i32 = Values::HPS_ROWS as i32;
    const VERBATIM: u32 = UpdateFlags::HPS_VERBATIM as u32;
    let rows = match kind {
        WEIGHTS => PutRows::weights(values),
        ROWS => PutRows::whole(values),
        other => return Err(unknown("kind", other)),
    };
    match flags {
        0 => Ok(rows),
        VERBATIM => Ok(rows.verbatim()),
        other => Err(unknown("flags", other)),
    }
}

/// Tells which keys were pushed or put, and not removed since. No I/O.
///
/// keys: `[keys_len]`; found: `[keys_len]`, 1 or 0.
///
/// # Errors
/// HPS_INVALID_ARGUMENT, HPS_FORKED.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_contains(
    store: StoreRef,
    table: u32,
    keys: Keys,
    keys_len: usize,
    found: BytesOut,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let (keys, out) = (
            keys.slice("keys", keys_len)?,
            found.slice("found", keys_len)?,
        );
        let found = store
            .get("store")?
            .0
            .get()?
            .contains(TableId(table), keys)?;
        for (out, found) in out.iter_mut().zip(found) {
            *out = u8::from(found);
        }
        Ok(())
    })
}

/// Forgets keys: they have the initialiser's row again.
///
/// keys: `[keys_len]`, duplicates allowed; removed: how many were known, or NULL.
///
/// # Durability
/// With the next checkpoint.
///
/// # Errors
/// HPS_INVALID_ARGUMENT, HPS_READ_ONLY: nothing changed. HPS_OVER_BUDGET, HPS_NO_SPACE, HPS_IO,
/// HPS_POISONED: some of the keys may have been removed.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_remove(
    store: StoreRef,
    table: u32,
    keys: Keys,
    keys_len: usize,
    removed: U64Out,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let (place, keys) = (removed.optional("removed")?, keys.slice("keys", keys_len)?);
        let removed = store.get("store")?.0.get()?.remove(TableId(table), keys)?;
        if let Some(place) = place {
            place.write(removed);
        }
        Ok(())
    })
}

/// Gives the distinct keys of a batch, in the order in which rows lie on disk, and where each key
/// of the batch is among them: `distinct[inverse[i]]` is `keys[i]`.
///
/// keys: `[keys_len]`; distinct: room for `[keys_len]`, of which `count` are written; inverse:
/// `[keys_len]`.
///
/// # Errors
/// HPS_INVALID_ARGUMENT for 2^32 keys or more, HPS_FORKED.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_unique(
    store: StoreRef,
    keys: Keys,
    keys_len: usize,
    distinct: KeysOut,
    inverse: WordsOut,
    count: SizeOut,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let (count, keys) = (count.place("count")?, keys.slice("keys", keys_len)?);
        let distinct = distinct.slice("distinct", keys_len)?;
        let inverse = inverse.slice("inverse", keys_len)?;
        let unique = store.get("store")?.0.get()?.unique(keys)?;
        for (out, key) in distinct.iter_mut().zip(&unique.keys) {
            *out = *key;
        }
        inverse.copy_from_slice(&unique.inverse);
        count.write(unique.keys.len());
        Ok(())
    })
}
