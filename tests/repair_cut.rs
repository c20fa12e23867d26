//! Does a repair that is cut off or meets a fault at any call leave one store or the other, and no row
//! given up that is there?

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/crash.rs"]
#[expect(dead_code, reason = "the crash test uses the rest")]
mod common;
#[path = "common/repairs.rs"]
#[expect(dead_code, reason = "tests of repairs use the rest")]
mod repairs;
#[path = "common/sample.rs"]
mod sample;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use common::ROOT;
use hps::io::Io;
use hps::io::sim::{CrashMode, Fault, SimDisk};
use hps::repair::{Options, Outcome, Repaired};
use hps::*;
use repairs::{Rows, contents, files_of, of_sim, run_repair};
use sample::sample;

/// A store with a damaged record in its last parameter file, and all of it durable.
fn damaged() -> SimDisk {
    let (disk, run) = sample(1);
    drop(run);
    let is_rows = |p: &PathBuf| p.extension().is_some_and(|e| e == "rows");
    let path = disk.paths().into_iter().rfind(is_rows).unwrap();
    disk.corrupt(&path, 4100, 1).unwrap();
    disk.crash(0, CrashMode::KeepAll)
}

fn copy(disk: &SimDisk) -> SimDisk {
    disk.crash(0, CrashMode::KeepAll)
}

/// A repair with the exchange at its end; `None`: there was nothing to do.
fn mend(disk: &SimDisk) -> Result<Option<Repaired>> {
    match run_repair(disk, Options::default())? {
        Outcome::Whole(_) => Ok(None),
        Outcome::Built(_, repaired) => {
            repaired.swap(&Io::of(disk.clone()), Path::new(ROOT))?;
            Ok(Some(*repaired))
        }
    }
}

/// Files below a name beside the store, by what comes after it.
fn below(disk: &SimDisk, name: &str) -> BTreeMap<PathBuf, Vec<u8>> {
    let root = Path::new("/").join(name);
    let files = files_of(disk, root.to_str().unwrap()).into_iter();
    let inside = |p: PathBuf| p.strip_prefix(&root).unwrap().to_path_buf();
    files.map(|(p, bytes)| (inside(p), bytes)).collect()
}

fn rows_of(disk: &SimDisk, id: u64) -> Rows {
    of_sim(disk, Path::new(ROOT), id)
}

#[test]
fn a_repair_that_is_cut_off_at_any_call_leaves_one_store_or_the_other() {
    let base = damaged();
    let before = below(&base, "store");
    let disk = copy(&base);
    let id = mend(&disk).unwrap().unwrap().checkpoint;
    let (calls, mut cuts) = (disk.changing_calls(), 0);
    let right = rows_of(&disk, id);
    for call in calls {
        let disk = copy(&base);
        disk.stop_at(call);
        assert!(mend(&disk).is_err(), "cut off at call {call}");
        for seed in 0..4 {
            let mode = match seed {
                0 => CrashMode::KeepNone,
                1 => CrashMode::KeepAll,
                _ => CrashMode::Random,
            };
            let left = disk.crash(seed, mode);
            let what = format!("cut off at call {call}, {mode:?} {seed}");
            let now = below(&left, "store");
            if now != before {
                assert!(rows_of(&left, id) == right, "{what}: neither store");
            }
            mend(&left).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert!(rows_of(&left, id) == right, "{what}: other rows");
            assert!(below(&left, "store.damaged") == before, "{what}");
            assert!(below(&left, "store.repair").is_empty(), "{what}");
            assert!(mend(&left).unwrap().is_none(), "{what}: twice is once");
            cuts += 1;
        }
    }
    assert!(cuts > 60, "{cuts} cuts");
}

/// Every error of a read was taken for bytes that the device has lost: a repair that ran out of memory
/// gave up rows that were there.
#[test]
fn a_fault_at_any_call_of_a_repair_gives_up_no_row_that_is_there() {
    const EIO: i32 = 5;
    const ENOMEM: i32 = 12;
    const EMFILE: i32 = 24;
    const ENOSPC: i32 = 28;
    let base = damaged();
    let before = below(&base, "store");
    let disk = copy(&base);
    let first = run_repair(&disk, Options::default()).unwrap();
    let Outcome::Built(_, first) = first else {
        panic!("nothing was repaired");
    };
    let (id, all) = (first.checkpoint, disk.calls());
    let right = of_sim(&disk, &first.path, id);
    let (mut failed, mut built) = (0, 0);
    // Two in a row: a read that failed is made again, piece by piece.
    let faults = [(EIO, 1), (ENOMEM, 1), (ENOMEM, 2), (EMFILE, 2), (ENOSPC, 1)];
    for (errno, times) in faults {
        for call in 0..all {
            let what = format!("error {errno} at call {call}, {times} times");
            let disk = copy(&base);
            for again in 0..times {
                disk.fail_at(call + again, Fault::Error(errno), false);
            }
            let outcome = run_repair(&disk, Options::default());
            assert!(below(&disk, "store") == before, "{what}: the damaged store");
            match outcome {
                Err(_) => failed += 1,
                Ok(Outcome::Whole(_)) => panic!("{what}: whole"),
                Ok(Outcome::Built(_, repaired)) => {
                    built += 1;
                    let found = contents(Io::of(disk.clone()), &repaired.path, repaired.checkpoint);
                    let found = found.unwrap_or_else(|e| panic!("{what}: {e}"));
                    let told = repaired.lost.sum() + repaired.nameless;
                    let same = repaired.checkpoint == id && found == right;
                    assert!(same || errno == EIO && told > 0, "{what}: {repaired:?}");
                }
            }
        }
    }
    assert!(
        failed > 100 && built > 20,
        "{failed} failed, {built} went on"
    );
}
