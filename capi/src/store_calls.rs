//! How is a store made, opened, closed?
#![expect(unsafe_code, reason = "C finds its functions by their names")]

use std::ffi::c_char;
use std::sync::Arc;

use store::{CheckpointId, FORMAT_VERSION, Store, TableDescriptor};

use crate::border::{call, free};
use crate::cell::Cell;
use crate::error::Result;
use crate::pointers::{
    Descriptors, ErrorOut, I32Out, OptionsRef, Output, Room, StoreOut, StoreRef, Text, WordsOut,
};

/// A store. `hps_create`, `hps_open`, `hps_open_or_create` and `hps_open_read_only` give it,
/// `hps_close` closes it, `hps_store_free` frees it.
pub struct StoreHandle(pub Arc<Cell>);

impl StoreHandle {
    fn new(store: Store) -> StoreHandle {
        StoreHandle(Arc::new(Cell::new(store)))
    }
}

/// The version of this library, such as "0.1.0". It is never freed.
#[unsafe(no_mangle)]
pub extern "C" fn hps_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// The version of the format on disk that this library writes; it reads all versions up to it.
#[unsafe(no_mangle)]
pub extern "C" fn hps_format_version() -> u32 {
    FORMAT_VERSION
}

/// Makes an empty store in a directory that is missing or empty, and opens it for writing.
///
/// # Durability
/// An empty store survives a crash once this returns; tables do from the first checkpoint on.
///
/// # Errors
/// HPS_INVALID_ARGUMENT (the directory holds something, an option is out of its range), HPS_LOCKED,
/// HPS_NO_SPACE, HPS_IO.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_create(
    directory: Text,
    options: OptionsRef,
    store: StoreOut,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let place = store.place("store")?;
        let (path, asked) = (directory.path("directory")?, options.asked());
        let store = Store::create(path, asked.create, asked.runtime)?;
        place.write(Some(Box::new(StoreHandle::new(store))));
        Ok(())
    })
}

/// Opens a store for writing, at its last checkpoint. One process has it open for writing at a
/// time.
///
/// # Durability
/// What was not in a checkpoint is gone, as if it had never been pushed.
///
/// # Errors
/// HPS_INVALID_ARGUMENT (no store is there, an option is out of its range), HPS_LOCKED,
/// HPS_MISSING_DIRECTORY, HPS_CORRUPT, HPS_UNSUPPORTED, HPS_UNSUPPORTED_TABLE, HPS_IO.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_open(
    directory: Text,
    options: OptionsRef,
    store: StoreOut,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let place = store.place("store")?;
        let (path, asked) = (directory.path("directory")?, options.asked());
        let store = Store::open(path, asked.runtime)?;
        place.write(Some(Box::new(StoreHandle::new(store))));
        Ok(())
    })
}

/// Opens the store in a directory, or creates it; creates the tables that are missing, and checks
/// the descriptors of those that are there. A table that is there and is not asked for stays.
///
/// descriptors: `[tables]` handles; ids: `[tables]`, the tables' numbers in the same order.
///
/// # Durability
/// As `hps_open` and `hps_create`.
///
/// # Errors
/// HPS_INVALID_ARGUMENT (a descriptor that is bad or not the stored one, options for a name that no
/// table has, a directory that holds something else); else as `hps_open` and `hps_create`.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_open_or_create(
    directory: Text,
    options: OptionsRef,
    descriptors: Descriptors,
    tables: usize,
    ids: WordsOut,
    store: StoreOut,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let place = store.place("store")?;
        let (path, asked) = (directory.path("directory")?, options.asked());
        let ids = ids.slice("ids", tables)?;
        let wanted = descriptors.slice("descriptors", tables)?.iter();
        let wanted: Vec<TableDescriptor> = wanted.map(|one| one.asked()).collect::<Result<_>>()?;
        let (create, runtime) = (asked.create, asked.runtime);
        let (store, made) = Store::open_or_create(path, create, runtime, &wanted)?;
        for (id, made) in ids.iter_mut().zip(made) {
            *id = made.0;
        }
        place.write(Some(Box::new(StoreHandle::new(store))));
        Ok(())
    })
}

/// Opens a retained checkpoint for reading, beside a writer or not; `checkpoint` 0 is the last one.
/// The writer keeps the checkpoint while it is open. Calls that change something are HPS_READ_ONLY.
///
/// # Errors
/// As `hps_open`; HPS_INVALID_ARGUMENT when the checkpoint is not retained; HPS_LOCKED where the
/// writer is dropping it.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_open_read_only(
    directory: Text,
    checkpoint: u64,
    options: OptionsRef,
    store: StoreOut,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let place = store.place("store")?;
        let (path, asked) = (directory.path("directory")?, options.asked());
        let checkpoint = (checkpoint > 0).then_some(CheckpointId(checkpoint));
        let store = Store::open_read_only(path, checkpoint, asked.runtime)?;
        place.write(Some(Box::new(StoreHandle::new(store))));
        Ok(())
    })
}

/// Closes a store, and waits for calls of other threads and a running checkpoint. The handle stays:
/// calls with it are HPS_INVALID_ARGUMENT of kind "Closed" from now on, and it has to be freed. A
/// store that is closed stays so.
///
/// discard: 1 gives up changes after the last checkpoint without an error, 0 tells of them.
///
/// # Durability
/// None of its own: what the last checkpoint has is durable already.
///
/// # Errors
/// HPS_UNCHECKPOINTED where `discard` is 0 and something changed after the last checkpoint: the
/// store is closed all the same, unharmed at its last checkpoint. `hps_has_changes` tells before.
/// HPS_FORKED.
///
/// # Threads
/// Any; not from a callback of the log.
#[unsafe(no_mangle)]
pub extern "C" fn hps_close(store: StoreRef, discard: i32, error: ErrorOut) -> i32 {
    call(error, || store.get("store")?.0.close(discard != 0))
}

/// Frees a store's handle. A store that is open is closed as by a crash: it opens at its last
/// checkpoint. Leases and tickets of it stay valid handles, which are freed by their own calls.
/// NULL is allowed.
///
/// # Threads
/// None may use the handle any more.
#[unsafe(no_mangle)]
pub extern "C" fn hps_store_free(store: Option<Box<StoreHandle>>) {
    free(store);
}

/// Tells whether something was pushed, put or removed, or a table dropped or renamed, since the
/// last checkpoint: 1 or 0.
///
/// # Errors
/// HPS_NULL_POINTER, HPS_INVALID_ARGUMENT (closed), HPS_FORKED.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_has_changes(store: StoreRef, changes: I32Out, error: ErrorOut) -> i32 {
    call(error, || {
        let place = changes.place("changes")?;
        let has = store.get("store")?.0.get()?.has_changes();
        place.write(i32::from(has));
        Ok(())
    })
}

/// Changes the memory of the cache until the store is closed. Less: cold rows leave, dirty ones are
/// written first; other calls go on meanwhile.
///
/// # Errors
/// HPS_INVALID_ARGUMENT, HPS_OVER_BUDGET (leases hold more): the cache is as before. HPS_NO_SPACE,
/// HPS_IO, HPS_POISONED where dirty rows could not be written.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_set_cache_bytes(store: StoreRef, bytes: u64, error: ErrorOut) -> i32 {
    call(error, || {
        Ok(store.get("store")?.0.get()?.set_cache_bytes(bytes)?)
    })
}

/// Limits the bytes that compactions read and write per second, until the store is closed; 0 lifts
/// the limit.
///
/// # Errors
/// HPS_READ_ONLY, HPS_FORKED.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_set_compaction_rate(
    store: StoreRef,
    bytes_per_second: u64,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let rate = (bytes_per_second > 0).then_some(bytes_per_second);
        Ok(store.get("store")?.0.get()?.set_compaction_rate(rate)?)
    })
}
