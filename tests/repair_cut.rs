//! Does a repair that is cut off or meets a fault at any call leave one store or the other, and no row
//! given up that is there?
//!
//! So that this proves something, repairs with a mistake in the order of their syncs are cut off too
//! (docs/DURABILITY.md, "Repair"): each must be found. What the disk sees is changed, not the repair.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/crash.rs"]
#[expect(dead_code, reason = "the crash test uses the rest")]
mod common;
#[path = "common/hooked.rs"]
mod hooked;
#[path = "common/mistakes.rs"]
#[expect(dead_code, reason = "other tests plant the rest")]
mod mistakes;
#[path = "common/repairs.rs"]
#[expect(dead_code, reason = "tests of repairs use the rest")]
mod repairs;
#[path = "common/sample.rs"]
mod sample;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use common::ROOT;
use hooked::{Hook, HookedDisk};
use hps::format::checksum::digest128;
use hps::io::Io;
use hps::io::sim::{CrashMode, Fault, SimDisk};
use hps::repair::{RepairOptions, RepairOutcome, Repaired};
use hps::*;
use mistakes::{Call, Met, Mistake, Planted, late, late_since, without};
use repairs::{Rows, contents, files_of, of_sim, repaired_on, run_repair};
use sample::sample;

/// Weights of a narrow row.
const NARROW_DIM: usize = 256;

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
    mend_on(&Io::of(disk.clone()))
}

fn mend_on(io: &Io) -> Result<Option<Repaired>> {
    match repaired_on(io, RepairOptions::default())?.0 {
        RepairOutcome::Whole(_) => Ok(None),
        RepairOutcome::Built(_, repaired) => {
            repaired.swap_on(io, Path::new(ROOT))?;
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

fn rows_of(disk: &SimDisk, id: CheckpointId) -> Rows {
    of_sim(disk, Path::new(ROOT), id)
}

/// The damaged store, and what a repair must make of it.
struct Case {
    disk: SimDisk,
    before: BTreeMap<PathBuf, Vec<u8>>,
    checkpoint: CheckpointId,
    right: Rows,
}

impl Case {
    fn new() -> Case {
        let disk = damaged();
        let mended = copy(&disk);
        let checkpoint = mend(&mended).unwrap().unwrap().checkpoint;
        Case {
            before: below(&disk, "store"),
            disk,
            checkpoint,
            right: rows_of(&mended, checkpoint),
        }
    }

    /// What a crash left is one store or the other, and the next repair ends what was begun.
    fn check(&self, left: &SimDisk, what: &str) {
        if below(left, "store") != self.before {
            let rows = rows_of(left, self.checkpoint);
            assert!(rows == self.right, "{what}: neither store");
        }
        mend(left).unwrap_or_else(|e| panic!("{what}: {e}"));
        let rows = rows_of(left, self.checkpoint);
        assert!(rows == self.right, "{what}: other rows");
        let aside = below(left, "store.damaged");
        assert!(aside == self.before, "{what}: the damaged store");
        let beside = below(left, "store.repair");
        assert!(beside.is_empty(), "{what}: {:?} stay", beside.keys());
        assert!(mend(left).unwrap().is_none(), "{what}: twice is once");
    }
}

#[test]
fn a_repair_that_is_cut_off_at_any_call_leaves_one_store_or_the_other() {
    let case = Case::new();
    let disk = copy(&case.disk);
    mend(&disk).unwrap().unwrap();
    let (calls, mut cuts) = (disk.changing_calls(), 0);
    for call in calls {
        let disk = copy(&case.disk);
        disk.stop_at(call);
        assert!(mend(&disk).is_err(), "cut off at call {call}");
        for seed in 0..4 {
            let mode = match seed {
                0 => CrashMode::KeepNone,
                1 => CrashMode::KeepAll,
                _ => CrashMode::Random,
            };
            let left = disk.crash(seed, mode);
            case.check(&left, &format!("cut off at call {call}, {mode:?} {seed}"));
            cuts += 1;
        }
    }
    assert!(cuts > 60, "{cuts} cuts");
}

const EXCHANGE: Call = ("rename", "/store");
const PARENT: Call = ("sync_dir", "/");
const RENAME_ASIDE: Call = ("rename", "/store.repair");
const UNMARK: Call = ("remove", "REPAIR");

/// Remains of each crash.
const REMAINS: u64 = 20;

/// What the mistake is made in, and what is wrong.
const BREAKS: [(&str, &str, Mistake); 10] = [
    ("repair", "row files unsynced", without(("sync", ".rows"))),
    (
        "repair",
        "manifest unsynced",
        without(("sync", ".manifest")),
    ),
    ("repair", "CURRENT unsynced", without(("sync", "CURRENT"))),
    (
        "repair",
        "exchanged before row files are synced",
        late(("sync", ".rows"), EXCHANGE),
    ),
    (
        "repair",
        "exchanged before the manifest is synced",
        late(("sync", ".manifest"), EXCHANGE),
    ),
    (
        "repair",
        "exchanged before STORE is synced",
        late(("sync", "STORE.tmp"), EXCHANGE),
    ),
    (
        "repair",
        "exchanged before the names in the repaired store are durable",
        late(("sync_dir", "/store.repair"), EXCHANGE),
    ),
    ("swap", "names unsynced", without(PARENT)),
    (
        "swap",
        "the mark removed before the exchange is durable",
        late(PARENT, UNMARK),
    ),
    (
        "swap",
        "the mark removed before the damaged store's name is durable",
        late_since(RENAME_ASIDE, PARENT, UNMARK),
    ),
];

/// Looks at what a crash may leave before each call of a repair with this mistake, and after it.
/// What it finds; else how many remains there were.
fn cut_everywhere(case: &Case, mistake: Option<Mistake>) -> std::result::Result<usize, String> {
    let disk = copy(&case.disk);
    let left = Arc::new(Mutex::new((BTreeSet::new(), Vec::new())));
    let take = {
        let (disk, left) = (disk.clone(), Arc::clone(&left));
        move || {
            let (seen, left) = &mut *left.lock().unwrap();
            for seed in 0..REMAINS {
                let mode = match seed {
                    0 => CrashMode::KeepNone,
                    1 => CrashMode::KeepAll,
                    _ => CrashMode::Random,
                };
                let remains = disk.crash(seed << 32 | disk.calls(), mode);
                if seen.insert(remains.digest(digest128)) {
                    left.push(remains);
                }
            }
        }
    };
    let hook: Hook = {
        let (disk, take) = (disk.clone(), take.clone());
        let planted = Mutex::new(mistake.map(Planted::new));
        Arc::new(move |kind, path| {
            take();
            let mut planted = planted.lock().unwrap();
            let planted = planted.as_mut()?;
            planted.catch_up(&disk);
            let met = planted.meet(&disk, kind, path);
            (met == Met::Answered).then_some(Ok(()))
        })
    };
    mend_on(&Io::of(HookedDisk::new(disk.clone(), hook))).unwrap();
    take();
    let acknowledged = disk.crash(0, CrashMode::KeepNone);
    let (_, left) = std::mem::take(&mut *left.lock().unwrap());
    let count = left.len();
    let found = catch_unwind(AssertUnwindSafe(|| {
        let rows = rows_of(&acknowledged, case.checkpoint);
        assert!(rows == case.right, "acknowledged, and not there");
        for (n, remains) in left.into_iter().enumerate() {
            case.check(&remains, &format!("remains {n}"));
        }
    }));
    found.map(|()| count).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        text.unwrap_or_default()
    })
}

#[test]
fn every_break_planted_in_a_repair_or_its_swap_is_found() {
    let case = Case::new();
    let honest = cut_everywhere(&case, None).unwrap();
    assert!(honest > 60, "{honest} remains");
    let mut missed = Vec::new();
    for (step, what, mistake) in BREAKS {
        match cut_everywhere(&case, Some(mistake)) {
            Err(found) => println!("{step}, {what}: {found:.160}"),
            Ok(remains) => missed.push(format!("{step}, {what}: {remains} remains")),
        }
    }
    assert!(missed.is_empty(), "no crash shows {missed:#?}");
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
    let first = run_repair(&disk, RepairOptions::default()).unwrap();
    let RepairOutcome::Built(_, first) = first else {
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
            let outcome = run_repair(&disk, RepairOptions::default());
            assert!(below(&disk, "store") == before, "{what}: the damaged store");
            match outcome {
                Err(_) => failed += 1,
                Ok(RepairOutcome::Whole(_)) => panic!("{what}: whole"),
                Ok(RepairOutcome::Built(_, repaired)) => {
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
