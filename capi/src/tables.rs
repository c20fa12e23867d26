//! Which tables are there, and how does a store get one or lose it?
#![expect(unsafe_code, reason = "C finds its functions by their names")]

use std::mem::MaybeUninit;

use store::{ArgumentError, CheckpointId, TableDescriptor, TableId};

use crate::border::call;
use crate::descriptor::{TableInfo, info};
use crate::error::Result;
use crate::pointers::{
    DescriptorRef, ErrorOut, Output, Room, SizeOut, StoreRef, TableInfoOut, TableInfosOut,
    TableOptionsRef, Text, U32Out,
};

/// Adds a table; one of the same name and descriptor is found instead. Waits for a running
/// checkpoint.
///
/// # Durability
/// With the next checkpoint.
///
/// # Errors
/// HPS_INVALID_ARGUMENT (a bad or changed descriptor, a cache too small), HPS_OVER_BUDGET,
/// HPS_NO_SPACE, HPS_IO, HPS_POISONED, HPS_READ_ONLY.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_create_table(
    store: StoreRef,
    descriptor: DescriptorRef,
    table: U32Out,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let (place, asked) = (table.place("table")?, descriptor.asked()?);
        place.write(store.get("store")?.0.get()?.create_table(&asked)?.0);
        Ok(())
    })
}

/// As `hps_create_table`, with options of the table in the place of what the store was opened with
/// for its name. A table that is there has them from now on, too. They hold until the store is
/// closed.
///
/// # Durability
/// As `hps_create_table`; options are not stored.
///
/// # Errors
/// As `hps_create_table`; HPS_INVALID_ARGUMENT for an option out of its range, and where the policy
/// is to become HPS_POLICY_PIN_ALL while leases are outstanding.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_create_table_with(
    store: StoreRef,
    descriptor: DescriptorRef,
    table_options: TableOptionsRef,
    table: U32Out,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let (place, asked) = (table.place("table")?, descriptor.asked()?);
        let options = table_options.asked()?;
        let store = store.get("store")?.0.get()?;
        place.write(store.create_table_with(&asked, options)?.0);
        Ok(())
    })
}

/// Finds a table by name.
///
/// # Errors
/// HPS_INVALID_ARGUMENT of kind "UnknownTable", whose field "known" names the tables there are.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_table(store: StoreRef, name: Text, table: U32Out, error: ErrorOut) -> i32 {
    call(error, || {
        let (place, name) = (table.place("table")?, name.text("name")?);
        place.write(store.get("store")?.0.get()?.table(name)?.0);
        Ok(())
    })
}

/// Describes a table: sizes of its rows, optimizer, name.
///
/// # Errors
/// HPS_INVALID_ARGUMENT of kind "UnknownTable" for a number that no table has.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_describe_table(
    store: StoreRef,
    table: u32,
    table_info: TableInfoOut,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let place = table_info.place("table_info")?;
        let tables = store.get("store")?.0.get()?.tables();
        match tables.iter().find(|(id, _)| id.0 == table) {
            Some((id, descriptor)) => place.write(info(*id, descriptor)),
            None => {
                let known = tables.into_iter().map(|(_, of)| of.name).collect();
                let name = format!("number {table}");
                return Err(ArgumentError::UnknownTable { name, known }.into());
            }
        };
        Ok(())
    })
}

/// Writes as many as there is room for; the count is of all.
fn list(
    tables: &[(TableId, TableDescriptor)],
    out: &mut [MaybeUninit<TableInfo>],
    count: &mut MaybeUninit<usize>,
) {
    for (out, (id, descriptor)) in out.iter_mut().zip(tables) {
        out.write(info(*id, descriptor));
    }
    count.write(tables.len());
}

/// Lists the tables, by number; without those that were dropped.
///
/// infos: `[capacity]`, of which as many are written as there are; count: how many there are, which
/// may be more. With capacity 0 infos may be NULL.
///
/// # Errors
/// HPS_NULL_POINTER, HPS_INVALID_ARGUMENT (closed), HPS_FORKED.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_tables(
    store: StoreRef,
    infos: TableInfosOut,
    capacity: usize,
    count: SizeOut,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let (out, count) = (infos.slice("infos", capacity)?, count.place("count")?);
        list(&store.get("store")?.0.get()?.tables(), out, count);
        Ok(())
    })
}

/// Lists the tables of a retained checkpoint, under the names of that time; as `hps_tables` else.
///
/// # Errors
/// HPS_INVALID_ARGUMENT for an unknown checkpoint; HPS_FORKED.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_tables_at(
    store: StoreRef,
    checkpoint: u64,
    infos: TableInfosOut,
    capacity: usize,
    count: SizeOut,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let (out, count) = (infos.slice("infos", capacity)?, count.place("count")?);
        let store = store.get("store")?.0.get()?;
        list(&store.tables_at(CheckpointId(checkpoint))?, out, count);
        Ok(())
    })
}

fn change(store: StoreRef, work: impl FnOnce(&store::Store) -> store::Result<()>) -> Result<()> {
    let store = store.get("store")?.0.get()?;
    Ok(work(&store)?)
}

/// Drops a table: its rows are gone, its name is free, its number is never given again. Checkpoints
/// that have it keep it.
///
/// # Durability
/// With the next checkpoint; a crash before gives the table back.
///
/// # Errors
/// HPS_INVALID_ARGUMENT (no such table, dropped already, leases or tickets of it outstanding),
/// HPS_POISONED, HPS_READ_ONLY; the table is there as before.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_drop_table(store: StoreRef, table: u32, error: ErrorOut) -> i32 {
    call(error, || {
        change(store, |store| store.drop_table(TableId(table)))
    })
}

/// Gives a table another name; its number, rows, options and leases stay.
///
/// # Durability
/// With the next checkpoint; older checkpoints keep the old name.
///
/// # Errors
/// HPS_INVALID_ARGUMENT (no such table, a name that is taken, empty or longer than 255 bytes),
/// HPS_POISONED, HPS_READ_ONLY.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_rename_table(
    store: StoreRef,
    table: u32,
    name: Text,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let name = name.text("name")?;
        change(store, |store| store.rename_table(TableId(table), name))
    })
}
