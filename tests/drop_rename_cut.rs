//! A drop, a rename and a new table of the dropped name, and the checkpoint that makes them durable: cut
//! off or made to fail at every call. The store opens with all of it or with nothing.
#![expect(
    clippy::unwrap_used,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/small.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod small;

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;

use hps::inspect::{Scope, Severity, inspect_on};
use hps::io::Io;
use hps::io::sim::{CrashMode, Fault, SimDisk};
use hps::*;
use nix::errno::Errno;
use small::{fill, sgd, values};

const ROOT: &str = "/store";
const DIM: usize = 16;

/// Index snapshots and new manifests come in a short run.
fn options(retain: usize) -> RuntimeOptions {
    let often = Thresholds {
        snapshot_young_bytes: 0,
        snapshot_young_part: 1000,
        manifest_roll_bytes: if retain == 1 { 0 } else { 1 << 20 },
        ..Thresholds::default()
    };
    let options = small::options().inline(true).retain_checkpoints(retain);
    options.thresholds(often)
}

fn open(disk: &SimDisk, retain: usize) -> Result<Store> {
    Store::open_on(Io::of(disk.clone()), Path::new(ROOT), options(retain))
}

/// Tables "a", "b" and "c" in checkpoint 1, of 20, 30 and 40 rows; the store is open.
fn begin(disk: &SimDisk, retain: usize) -> Result<Store> {
    let store = Store::create_on(
        Io::of(disk.clone()),
        Path::new(ROOT),
        CreateOptions::new(),
        options(retain),
    )?;
    for (name, keys) in [("a", 20), ("b", 30), ("c", 40)] {
        let table = store.create_table(&sgd(name, DIM))?;
        fill(&store, table, keys, 40, 1.0, DIM);
    }
    store.checkpoint(1, b"before")?;
    Ok(store)
}

const CHANGES: usize = 5;

/// One of the changes.
fn change(store: &Store, number: usize) -> Result<()> {
    let put = |table| {
        let keys: Vec<u64> = (0..10).map(mix64).collect();
        let rows = [3.0; 10 * DIM];
        store.put(table, &keys, PutRows::weights(&rows)).map(drop)
    };
    match number {
        // Written by the drop.
        0 => put(TableId(0)),
        1 => store.drop_table(TableId(1)),
        2 => store.rename_table(TableId(2), "z"),
        3 => put(store.create_table(&sgd("b", DIM))?),
        _ => store.checkpoint(2, b"after").map(drop),
    }
}

fn names(store: &Store) -> Vec<String> {
    store.tables().into_iter().map(|(_, t)| t.name).collect()
}

/// The names when so many changes were made.
fn names_after(changes: usize) -> Vec<&'static str> {
    match changes {
        0 | 1 => vec!["a", "b", "c"],
        2 => vec!["a", "c"],
        3 => vec!["a", "z"],
        _ => vec!["a", "z", "b"],
    }
}

/// The store, just opened, is that of checkpoint 1 or of checkpoint 2; gives which.
fn check(store: &Store, what: &str) -> u64 {
    let last = store.last_checkpoint().unwrap();
    let (keys, expected) = match last.step {
        1 => (90, [Some(1.0), Some(1.0), Some(1.0), None]),
        _ => (70, [Some(3.0), None, Some(1.0), Some(3.0)]),
    };
    let changes = if last.step == 1 { 0 } else { CHANGES };
    assert_eq!(names(store), names_after(changes), "{what}");
    assert_eq!(store.stats().index_keys, keys, "{what}");
    for (table, value) in (0..).zip(expected) {
        match value {
            Some(value) => assert_eq!(
                values(store, TableId(table), &[mix64(9)], DIM),
                [value; DIM],
                "{what}: table {table}"
            ),
            None => drop(store.contains(TableId(table), &[9]).unwrap_err()),
        }
    }
    let mut rows = store.rows(last.id).unwrap();
    let mut count = 0;
    while rows.next_row().unwrap().is_some() {
        count += 1;
    }
    assert_eq!(count, keys, "{what}");
    last.step
}

fn no_damage(disk: &SimDisk, what: &str) {
    let scope = Scope::new().full(true);
    let go_on = &mut |_, _| ControlFlow::Continue(());
    let report = inspect_on(&Io::of(disk.clone()), Path::new(ROOT), scope, go_on).unwrap();
    assert!(
        report.worst() < Some(Severity::Cache),
        "{what}: {:?}",
        report.findings
    );
}

/// Number of calls before the changes, and those afterwards that change something.
fn calls(retain: usize) -> (u64, Vec<u64>, u64) {
    let disk = SimDisk::new(1);
    let store = begin(&disk, retain).unwrap();
    let before = disk.calls();
    (0..CHANGES).for_each(|number| change(&store, number).unwrap());
    let changing = disk.changing_calls().into_iter();
    let changing: Vec<u64> = changing.filter(|call| *call >= before).collect();
    store.close().unwrap();
    let all = disk.calls();
    assert!(changing.len() > 20 && all > before + 20);
    assert_eq!(check(&open(&disk, retain).unwrap(), "whole"), 2);
    (before, changing, all)
}

#[test]
fn a_crash_at_every_call_leaves_all_changes_of_tables_or_none() {
    for retain in [1, 3] {
        let mut seen = BTreeSet::new();
        for call in calls(retain).1 {
            let disk = SimDisk::new(1);
            let store = begin(&disk, retain).unwrap();
            disk.stop_at(call);
            let ended = (0..CHANGES).try_for_each(|number| change(&store, number));
            drop(store);
            let mut remains = vec![disk.killed(1)];
            let modes = [CrashMode::KeepNone, CrashMode::KeepAll];
            remains.extend(modes.map(|mode| disk.crash(0, mode)));
            remains.extend((1..4).map(|seed| disk.crash(seed, CrashMode::Random)));
            for left in remains {
                let what = format!("{retain} retained, call {call}, {ended:?}");
                no_damage(&left, &what);
                let store = open(&left, retain).unwrap_or_else(|e| panic!("{what}: {e}"));
                let step = check(&store, &what);
                assert!(step == 2 || ended.is_err(), "{what}");
                seen.insert(step);
                // It goes on, with numbers that are new.
                if step == 1 {
                    (0..CHANGES).for_each(|number| change(&store, number).unwrap());
                    store.close().unwrap();
                    assert_eq!(check(&open(&left, retain).unwrap(), &what), 2);
                }
            }
        }
        assert_eq!(seen, BTreeSet::from([1, 2]));
    }
}

#[test]
fn a_failure_at_every_call_leaves_each_change_made_or_not() {
    let mut ends = BTreeSet::new();
    for retain in [1, 3] {
        let (before, _, all) = calls(retain);
        for errno in [Errno::EIO, Errno::ENOSPC] {
            for call in before..all {
                let disk = SimDisk::new(1);
                let store = begin(&disk, retain).unwrap();
                disk.fail_at(call, Fault::Error(errno as i32), false);
                let what = format!("{retain} retained, call {call}, {errno}");
                let mut poisoned = false;
                for number in 0..CHANGES {
                    let Err(error) = change(&store, number) else {
                        assert_eq!(names(&store), names_after(number + 1), "{what}");
                        continue;
                    };
                    assert_eq!(
                        names(&store),
                        names_after(number),
                        "{what}: {number}: {error}"
                    );
                    let again = change(&store, number);
                    poisoned = matches!(again, Err(Error::Poisoned { .. }));
                    ends.insert((number, poisoned));
                    assert!(poisoned || again.is_ok(), "{what}: {number}: {again:?}");
                    if poisoned {
                        break;
                    }
                }
                drop(store);
                no_damage(&disk, &what);
                let step = check(&open(&disk, retain).unwrap(), &what);
                assert!(step == 2 || poisoned, "{what}");
            }
        }
    }
    // A flush before the drop failed, the checkpoint failed, and it made the state unknown.
    assert!(ends.contains(&(CHANGES - 1, true)) && ends.contains(&(CHANGES - 1, false)));
    assert!(
        ends.contains(&(0, false)) || !ends.iter().any(|(n, _)| *n == 0),
        "{ends:?}"
    );
}
