//! What has the store done, and what does it hold?
#![expect(unsafe_code, reason = "C finds its functions by their names")]

use std::ffi::{CString, c_char};
use std::ptr::null;

use store::{Stats, TableStats};

use crate::border::{call, free};
use crate::error::{Fault, Result, c_string};
use crate::pointers::{ErrorOut, Room, StatsOut, StatsRef, StoreRef, Text, U64Out};

/// A reading of everything that a store counts. `hps_stats` gives it, `hps_stats_free` frees it.
pub struct StatsHandle {
    io_engine: CString,
    all: Vec<(CString, u64)>,
    tables: Vec<(u32, Vec<(CString, u64)>)>,
}

/// With names as C wants them.
fn named(numbers: Vec<(&'static str, u64)>) -> Vec<(CString, u64)> {
    let named = |(name, number): (&str, u64)| (c_string(name.as_bytes()), number);
    numbers.into_iter().map(named).collect()
}

fn of_store(stats: &Stats) -> Vec<(CString, u64)> {
    named(stats.numbers())
}

fn of_table(table: &TableStats) -> Vec<(CString, u64)> {
    let mut all = named(table.numbers());
    for (cause, waits) in table.waits() {
        let name = |what: &str| c_string(format!("wait_{}_{what}", cause.name()).as_bytes());
        all.push((name("count"), waits.count));
        all.push((name("us"), waits.us));
        all.push((name("us_max"), waits.us_max));
    }
    all
}

fn find(fields: &[(CString, u64)], name: &str) -> Result<u64> {
    let is_it = |field: &&(CString, u64)| field.0.to_bytes() == name.as_bytes();
    match fields.iter().find(is_it) {
        Some((_, value)) => Ok(*value),
        None => Err(Fault::option(
            "name",
            name,
            "no counter has this name; see docs/C.md",
        )),
    }
}

/// Reads all counters of a store. Counters count from the opening; the rest is as of the call. No
/// I/O.
///
/// # Errors
/// HPS_NULL_POINTER, HPS_INVALID_ARGUMENT (closed), HPS_FORKED.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_stats_read(store: StoreRef, stats: StatsOut, error: ErrorOut) -> i32 {
    call(error, || {
        let place = stats.place("stats")?;
        let read = store.get("store")?.0.get()?.stats();
        let of_one = |table: &TableStats| (table.id.0, of_table(table));
        place.write(Some(Box::new(StatsHandle {
            io_engine: c_string(read.io_engine.as_bytes()),
            all: of_store(&read),
            tables: read.tables.iter().map(of_one).collect(),
        })));
        Ok(())
    })
}

/// Gives one counter of the store by its name, such as "resident_rows".
///
/// # Errors
/// HPS_INVALID_ARGUMENT for a name that no counter has.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_stats_get(
    stats: StatsRef,
    name: Text,
    value: U64Out,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let (place, name) = (value.place("value")?, name.text("name")?);
        place.write(find(&stats.get("stats")?.all, name)?);
        Ok(())
    })
}

/// Gives one counter of a table by its name, such as "unique_hits" or "wait_device_us".
///
/// # Errors
/// HPS_INVALID_ARGUMENT for a name that no counter has, and for a table that is not there.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_stats_get_table(
    stats: StatsRef,
    table: u32,
    name: Text,
    value: U64Out,
    error: ErrorOut,
) -> i32 {
    call(error, || {
        let (place, name) = (value.place("value")?, name.text("name")?);
        let mut tables = stats.get("stats")?.tables.iter();
        match tables.find(|(id, _)| *id == table) {
            Some((_, fields)) => place.write(find(fields, name)?),
            None => return Err(Fault::option("table", table, "no table has this number")),
        };
        Ok(())
    })
}

/// The name of a counter of the store by its place, from 0 on; NULL after the last. It lives as
/// long as the reading.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_stats_name(stats: StatsRef, index: usize) -> *const c_char {
    let field = stats
        .get("stats")
        .ok()
        .and_then(|stats| stats.all.get(index));
    field.map_or(null(), |(name, _)| name.as_ptr())
}

/// The name of a counter of tables by its place, from 0 on; NULL after the last, and where there is
/// no table. It lives as long as the reading.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_stats_table_name(stats: StatsRef, index: usize) -> *const c_char {
    let table = stats
        .get("stats")
        .ok()
        .and_then(|stats| stats.tables.first());
    let field = table.and_then(|(_, fields)| fields.get(index));
    field.map_or(null(), |(name, _)| name.as_ptr())
}

/// The I/O engine in use: "uring", "pread", or "uring+pread" where the kernel gave some queues no
/// ring. It lives as long as the reading. NULL for NULL.
///
/// # Threads
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn hps_stats_io_engine(stats: StatsRef) -> *const c_char {
    stats
        .get("stats")
        .map_or(null(), |stats| stats.io_engine.as_ptr())
}

/// Frees a reading. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn hps_stats_free(stats: Option<Box<StatsHandle>>) {
    free(stats);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use store::Wait;

    use super::*;

    /// Fields that are numbers or flags, as the struct's own text names them.
    fn numbers_of(text: &str) -> BTreeSet<String> {
        let field = |line: &str| {
            let (name, value) = line.strip_prefix("    ")?.split_once(": ")?;
            let value = value.trim_end_matches(',');
            let is_number = value == "false" || value.parse::<u64>().is_ok();
            (is_number && !name.starts_with(' ')).then(|| name.to_owned())
        };
        text.lines().filter_map(field).collect()
    }

    fn names(fields: &[(CString, u64)]) -> BTreeSet<String> {
        let name = |(name, _): &(CString, u64)| name.to_str().unwrap().to_owned();
        fields.iter().map(name).collect()
    }

    #[test]
    fn every_counter_of_the_store_has_its_name() {
        let stats = Stats::default();
        let named = names(&of_store(&stats));
        assert_eq!(named, numbers_of(&format!("{stats:#?}")));
        assert!(named.len() > 50, "{named:?}");
    }

    #[test]
    fn every_counter_of_a_table_has_its_name() {
        let table = TableStats::default();
        let mut named = names(&of_table(&table));
        for cause in Wait::ALL {
            for what in ["count", "us", "us_max"] {
                assert!(named.remove(&format!("wait_{}_{what}", cause.name())));
            }
        }
        assert_eq!(named, numbers_of(&format!("{table:#?}")));
    }

    #[test]
    fn a_name_that_no_counter_has_is_refused() {
        assert!(find(&of_store(&Stats::default()), "resident_row").is_err());
        assert_eq!(
            find(&of_store(&Stats::default()), "resident_rows").unwrap(),
            0
        );
    }
}
