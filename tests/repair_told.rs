//! Does a repair tell exactly what it did: numbers, kept checkpoints, each lost row, names that are new?

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
#[path = "common/repairs.rs"]
#[expect(dead_code, reason = "tests of other damage use the rest")]
mod repairs;
#[path = "common/sample.rs"]
mod sample;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::ROOT;
use hps::format::current::Current;
use hps::format::identity::StoreIdentity;
use hps::io::Io;
use hps::io::sim::{CrashMode, Fault, SimDisk};
use hps::repair::{Fate, RepairOptions, RepairOutcome, Repaired};
use hps::*;
use repairs::{Rows, files_of, grown, of_sim, repair_telling, repaired_on, run_repair};

/// Weights of a narrow row.
const NARROW_DIM: usize = 256;

const BESIDE: &str = "/store.repair";
const ALL: u64 = 100;
/// So many file numbers are reserved at once (docs/FORMAT.md).
const RESERVED: u64 = 4096;

/// A store whose parts stand at `directories`: keys 0 to 99 of two tables in checkpoint 1; in checkpoint
/// 2 the first ten are removed and the next ten written again; each checkpoint adds one parameter file
/// to each directory.
fn store(directories: &[&str]) -> SimDisk {
    let disk = SimDisk::new(1);
    let options = RuntimeOptions::new()
        .cache_bytes(8 << 20)
        .inline(true)
        .shards(1)
        .retain_checkpoints(2);
    let parts = directories.iter().map(PathBuf::from).collect();
    let create = CreateOptions::new().data_directories(parts);
    let io = Io::of(disk.clone());
    let store = Store::create_on(io, Path::new(ROOT), create, options).unwrap();
    let tables = ["users", "items"].map(|name| {
        let table = TableDescriptor::new(name, 4).optimizer(Optimizer::Sgd);
        store.create_table(&table).unwrap()
    });
    let write = |keys: std::ops::Range<u64>, value: f32| {
        for table in tables {
            let keys: Vec<u64> = keys.clone().collect();
            let mut out = vec![0.0; keys.len() * 4];
            let lease = store.pull(table, &keys, &mut out).unwrap();
            out.fill(value);
            store.push(&lease, Update::weights(&out)).unwrap();
        }
    };
    write(0..ALL, 1.0);
    store.checkpoint(10, b"one").unwrap();
    for table in tables {
        store.remove(table, &(0..10).collect::<Vec<_>>()).unwrap();
    }
    write(10..20, 2.0);
    store.checkpoint(20, b"two").unwrap();
    store.close().unwrap();
    disk
}

fn named(disk: &SimDisk, root: &str, extension: &str) -> Vec<PathBuf> {
    let paths = disk.paths().into_iter().filter(|p| p.starts_with(root));
    paths
        .filter(|p| p.extension().is_some_and(|e| e == extension))
        .collect()
}

/// Its number.
fn number(path: &Path) -> FileNumber {
    FileNumber(path.file_stem().unwrap().to_str().unwrap().parse().unwrap())
}

/// So many numbers later.
fn number_after(number: FileNumber, count: u64) -> FileNumber {
    FileNumber(number.0 + count)
}

/// What its CURRENT says.
fn current(disk: &SimDisk, root: &str) -> Current {
    let read = |name: &str| disk.read_file(&Path::new(root).join(name)).unwrap();
    let store = StoreIdentity::decode(&read("STORE")).unwrap().uuid;
    Current::decode(&read("CURRENT"), &store).unwrap()
}

fn built(disk: &SimDisk, options: RepairOptions) -> Repaired {
    match run_repair(disk, options) {
        Ok(RepairOutcome::Built(_, repaired)) => *repaired,
        Ok(RepairOutcome::Whole(_)) => panic!("nothing was built"),
        Err(error) => panic!("{error}"),
    }
}

/// The first row's bytes.
fn damage(disk: &SimDisk, path: &Path) {
    disk.corrupt(path, 4096 + 20, 1).unwrap();
}

fn value(rows: &Rows, table: usize, key: u64) -> Option<f32> {
    rows.get(&(table, key)).map(|row| f32::from_bits(row[0]))
}

#[test]
fn the_numbers_of_a_repair_are_those_of_what_it_did() {
    let disk = store(&["a"]);
    let files = named(&disk, ROOT, "rows");
    let [first, second] = &files[..] else {
        panic!("{files:?}");
    };
    let before = current(&disk, ROOT);
    let truth = of_sim(&disk, Path::new(ROOT), CheckpointId(1));
    damage(&disk, second);
    let (outcome, lost) = repair_telling(&disk, RepairOptions::default()).unwrap();
    let RepairOutcome::Built(report, repaired) = outcome else {
        panic!("nothing was built");
    };
    assert_eq!(report.findings.len(), 1);
    assert_eq!(repaired.path, Path::new(BESIDE));
    assert_eq!((repaired.checkpoint, repaired.step), (CheckpointId(2), 20));
    assert_eq!(repaired.tables, ["users", "items"]);
    let files = (
        repaired.files_shared,
        repaired.files_rewritten,
        repaired.files_gone,
    );
    assert_eq!(files, (1, 1, 0));
    // Ten rows and ten removed keys of each table, but one row.
    assert_eq!(repaired.entries_saved, 39);
    assert_eq!((repaired.nameless, repaired.undecided), (0, 0));
    assert_eq!(
        (
            repaired.checkpoints_kept.len(),
            repaired.checkpoints_dropped.len()
        ),
        (1, 0)
    );
    assert!(repaired.moved.is_empty() && repaired.given_up.is_empty());
    assert!(!repaired.meta_lost && repaired.version_lost.is_none());
    let [row] = lost[..] else {
        panic!("{lost:?}");
    };
    assert_eq!(
        (row.table, row.file, row.now),
        (0, number(second), Fate::Older)
    );
    assert!((10..20).contains(&row.key), "{row:?}");
    // New files have the numbers that CURRENT says are free; the sound one is the same file.
    let new = named(&disk, BESIDE, "rows");
    let [shared, written] = &new[..] else {
        panic!("{new:?}");
    };
    assert_eq!(number(shared), number(first));
    assert_eq!(number(written), before.file_number_limit);
    let after = current(&disk, BESIDE);
    assert_eq!(
        after.manifest_number,
        number_after(before.file_number_limit, 1)
    );
    assert_eq!(after.next_checkpoint_id, before.next_checkpoint_id);
    assert_ne!(after.timeline, before.timeline);
    assert_eq!((after.checkpoint_id, after.step), (CheckpointId(2), 20));
    drop(repaired);
    let beside = Path::new(BESIDE);
    let earlier = of_sim(&disk, beside, CheckpointId(1));
    assert!(earlier == truth, "the earlier checkpoint is whole");
    let found = of_sim(&disk, beside, CheckpointId(2));
    assert_eq!(found.len(), 2 * 90);
    assert_eq!(value(&found, 0, row.key), Some(1.0));
    assert_eq!(value(&found, 1, row.key), Some(2.0));
}

#[test]
fn an_earlier_checkpoint_is_dropped_with_the_file_that_it_needs() {
    let disk = store(&["a"]);
    let files = named(&disk, ROOT, "rows");
    let right = of_sim(&disk, Path::new(ROOT), CheckpointId(2));
    disk.remove(&files[0]).unwrap();
    let repaired = built(&disk, RepairOptions::default());
    assert_eq!(repaired.checkpoints_kept, []);
    assert_eq!(repaired.checkpoints_dropped, [CheckpointId(1)]);
    let files = (
        repaired.files_shared,
        repaired.files_rewritten,
        repaired.files_gone,
    );
    assert_eq!(files, (1, 0, 1));
    // It held 100 rows of each table, of which nothing is left that names them.
    assert_eq!((repaired.entries_saved, repaired.nameless), (0, 200));
    assert_eq!(repaired.lost.sum(), 0);
    drop(repaired);
    let found = of_sim(&disk, Path::new(BESIDE), CheckpointId(2));
    assert_eq!(found.len(), 20);
    assert!(found.iter().all(|(at, row)| right[at] == *row));
}

#[test]
fn of_an_earlier_checkpoint_nothing_later_is_kept() {
    let disk = store(&["a"]);
    let files = named(&disk, ROOT, "rows");
    let right = of_sim(&disk, Path::new(ROOT), CheckpointId(1));
    disk.remove(&files[1]).unwrap();
    let earlier = RepairOptions::new().checkpoint(Some(CheckpointId(1)));
    let repaired = built(&disk, earlier);
    assert_eq!((repaired.checkpoint, repaired.step), (CheckpointId(1), 10));
    assert_eq!(repaired.checkpoints_kept, []);
    assert_eq!(repaired.checkpoints_dropped, [CheckpointId(2)]);
    let files = (
        repaired.files_shared,
        repaired.files_rewritten,
        repaired.files_gone,
    );
    assert_eq!(
        files,
        (1, 0, 0),
        "the damaged file is not of this checkpoint"
    );
    assert_eq!((repaired.lost.sum(), repaired.nameless), (0, 0));
    drop(repaired);
    assert!(of_sim(&disk, Path::new(BESIDE), CheckpointId(1)) == right);
    // A checkpoint that is not there is an error, which names those that are.
    let other = RepairOptions::new().checkpoint(Some(CheckpointId(7)));
    let (before, why) = (files_of(&disk, ROOT), run_repair(&disk, other).unwrap_err());
    assert!(
        matches!(why, Error::InvalidArgument(ArgumentError::UnknownCheckpoint { id, ref retained })
        if id == CheckpointId(7) && retained[..] == [CheckpointId(1), CheckpointId(2)]),
        "{why}"
    );
    assert!(files_of(&disk, ROOT) == before);
}

/// CURRENT is gone: as many numbers may have been used since as are reserved at a time.
#[test]
fn numbers_that_may_have_been_used_are_left_out() {
    let disk = store(&["a", "b"]);
    let before = current(&disk, ROOT);
    let mut most = before.manifest_number;
    for kind in ["rows", "meta", "manifest", "snapshot"] {
        let numbers = named(&disk, ROOT, kind).into_iter();
        most = numbers
            .map(|path| number(&path))
            .fold(most, FileNumber::max);
    }
    // A file of a data directory that no manifest knows, such as one that a flush has left.
    let stray = Path::new(ROOT)
        .join("b")
        .join(format!("{:012}.rows", number_after(most, 3)));
    disk.write_file(&stray, b"cut off").unwrap();
    disk.remove(&Path::new(ROOT).join("CURRENT")).unwrap();
    let repaired = built(&disk, RepairOptions::default());
    assert!(repaired.lost_nothing(), "{repaired:?}");
    assert_eq!(repaired.checkpoints_kept, [CheckpointId(1)]);
    let after = current(&disk, BESIDE);
    assert_eq!(after.manifest_number, number_after(most, 3 + 2 * RESERVED));
    // One more may have been begun.
    assert_eq!(after.next_checkpoint_id, CheckpointId(4));
    assert_eq!(after.checkpoint_id, CheckpointId(2));
}

#[test]
fn an_empty_meta_file_is_a_new_one() {
    let disk = store(&["a"]);
    let before = current(&disk, ROOT);
    let metas = named(&disk, ROOT, "meta");
    disk.remove(&metas[1]).unwrap();
    let without_meta = RepairOptions::new().without_meta(true);
    let repaired = built(&disk, without_meta);
    assert!(repaired.meta_lost && !repaired.lost_nothing());
    assert_eq!(repaired.checkpoints_kept, [CheckpointId(1)]);
    drop(repaired);
    let new: Vec<FileNumber> = named(&disk, BESIDE, "meta")
        .iter()
        .map(|p| number(p))
        .collect();
    assert_eq!(new, [number(&metas[0]), before.file_number_limit]);
    let beside = Path::new(BESIDE);
    let read = Store::open_read_only_on(
        Io::of(disk.clone()),
        beside,
        None,
        RuntimeOptions::default(),
    );
    let read = read.unwrap();
    assert_eq!(read.checkpoint_meta(CheckpointId(2)).unwrap(), b"");
    assert_eq!(read.checkpoint_meta(CheckpointId(1)).unwrap(), b"one");
}

/// A meta file that may not be read stopped the repair even where it was told to do without.
#[test]
fn a_meta_file_that_may_not_be_read_is_given_up_where_that_is_asked_for() {
    let disk = store(&["a"]);
    let meta = named(&disk, ROOT, "meta").pop().unwrap();
    let barred = meta.clone();
    let bar: hooked::Hook = Arc::new(move |call, path| {
        let is_barred = call == "open" && path.file_name() == barred.file_name();
        is_barred.then(|| Err(std::io::Error::from_raw_os_error(13)))
    });
    let hooked = hooked::HookedDisk {
        reads: Some(bar),
        ..hooked::HookedDisk::new(disk.clone(), Arc::new(|_, _| None))
    };
    let io = Io::from(Arc::new(hooked));
    let Err(Error::Io { path, source, .. }) = repaired_on(&io, RepairOptions::default()) else {
        panic!("repaired without a word about {meta:?}");
    };
    assert_eq!((path, source.raw_os_error()), (meta, Some(13)));
    let without_meta = RepairOptions::new().without_meta(true);
    let (RepairOutcome::Built(_, repaired), lost) = repaired_on(&io, without_meta).unwrap() else {
        panic!("nothing was repaired");
    };
    assert!(repaired.meta_lost && lost.is_empty());
    drop(repaired);
    let read = Store::open_read_only_on(
        Io::of(disk),
        Path::new(BESIDE),
        None,
        RuntimeOptions::default(),
    );
    let read = read.unwrap();
    assert_eq!(read.checkpoint_meta(CheckpointId(2)).unwrap(), b"");
}

/// Only what is missing or damaged is made anew: a link that fails for another cause is an error.
#[test]
fn a_link_that_fails_for_another_cause_is_told() {
    let disk = store(&["a"]);
    damage(&disk, named(&disk, ROOT, "rows").last().unwrap());
    let (calls, all) = (disk.calls(), built(&disk, RepairOptions::default()));
    drop(all);
    let link = disk.kinds()[usize::try_from(calls).unwrap()..]
        .iter()
        .position(|k| *k == "link");
    let link = u64::try_from(link.expect("a file is linked")).unwrap();
    let disk = store(&["a"]);
    damage(&disk, named(&disk, ROOT, "rows").last().unwrap());
    assert_eq!(disk.calls(), calls, "the same again");
    disk.fail_at(calls + link, Fault::Error(18), false);
    let error = run_repair(&disk, RepairOptions::default())
        .unwrap_err()
        .to_string();
    assert!(error.contains("hard-link to /store.repair/a/"), "{error}");
    assert!(
        files_of(&disk, BESIDE).is_empty(),
        "what was built is removed"
    );
}

/// The last file that a flush wrote holds the newest copy of each row of a table; its names are in two
/// blocks of the index snapshot.
#[test]
fn what_a_damaged_snapshot_can_not_name_is_counted() {
    let (disk, truth) = grown();
    let files = named(&disk, ROOT, "rows");
    let rows = |file: &PathBuf| disk.read_file(file).unwrap();
    let (index, whole) = (files.len() - 1, rows(files.last().unwrap()));
    disk.remove(&files[index]).unwrap();
    let (_, lost) = repair_telling(&disk, RepairOptions::default()).unwrap();
    let all = lost.len() as u64;
    assert!(all > 100, "{} bytes: {all} rows", whole.len());
    let snapshot = named(&disk, ROOT, "snapshot").remove(0);
    let bytes = disk.read_file(&snapshot).unwrap().len() as u64;
    let mut partly = 0;
    for offset in (100..bytes).step_by(1024) {
        disk.corrupt(&snapshot, offset, 1).unwrap();
        let (outcome, told) = repair_telling(&disk, RepairOptions::default()).unwrap();
        let RepairOutcome::Built(_, repaired) = outcome else {
            panic!("nothing was built");
        };
        assert_eq!(repaired.lost.sum(), told.len() as u64);
        assert_eq!(repaired.lost.sum() + repaired.nameless, all, "{offset}");
        assert!(told.iter().all(|row| lost.contains(row)), "{offset}");
        partly += u64::from(!told.is_empty() && repaired.nameless > 0);
        disk.corrupt(&snapshot, offset, 1).unwrap();
    }
    assert!(partly > 0, "{} checkpoints", truth.by_checkpoint.len());
}

/// A repair that had too little memory for one read of an earlier checkpoint's meta file took the file for
/// damaged, dropped the checkpoint and went on. (Without CURRENT the first look sees no parameter file: the
/// repair itself reads those of an earlier checkpoint.)
#[test]
fn an_earlier_checkpoint_is_given_up_only_for_what_the_device_has_lost() {
    const ENOMEM: i32 = 12;
    let damaged = store(&["a"]);
    damaged.remove(&Path::new(ROOT).join("CURRENT")).unwrap();
    let again = || damaged.crash(0, CrashMode::KeepAll);
    let disk = again();
    assert_eq!(
        built(&disk, RepairOptions::default()).checkpoints_kept,
        [CheckpointId(1)]
    );
    // Links of parameter files come before those reads, links of meta files behind them.
    let kinds = disk.kinds();
    let is_link = |kind: &&str| *kind == "link";
    let first = kinds.iter().position(is_link).unwrap();
    let last = kinds.iter().rposition(is_link).unwrap();
    let reads = (0..).zip(&kinds).take(last).skip(first);
    let reads: Vec<u64> = reads
        .filter(|(_, kind)| **kind == "read")
        .map(|(n, _)| n)
        .collect();
    let mut failed = 0;
    for call in reads {
        let disk = again();
        disk.fail_at(call, Fault::Error(ENOMEM), false);
        match run_repair(&disk, RepairOptions::default()) {
            Err(_) => failed += 1,
            Ok(RepairOutcome::Built(_, repaired)) => {
                assert_eq!(repaired.checkpoints_kept, [CheckpointId(1)], "call {call}");
                assert!(repaired.lost_nothing(), "call {call}");
            }
            Ok(RepairOutcome::Whole(_)) => panic!("call {call}: whole"),
        }
    }
    assert!(failed > 5, "{failed}");
}

/// The second look, at what was built, took a sector that the device has lost for an error of its own:
/// the repair failed, always.
#[test]
fn a_lost_sector_that_a_damaged_current_hid_costs_no_more_than_itself() {
    let disk = store(&["a"]);
    disk.remove(&Path::new(ROOT).join("CURRENT")).unwrap();
    // A sector of its key block is lost: the rows say their keys themselves.
    let file = named(&disk, ROOT, "rows").remove(0);
    let bytes = disk.read_file(&file).unwrap().len() as u64;
    disk.lose_sector(&file, bytes - 2 * 4096 + 100).unwrap();
    let repaired = built(&disk, RepairOptions::default());
    assert_eq!(repaired.checkpoints_dropped, [CheckpointId(1)]);
    let files = (
        repaired.files_shared,
        repaired.files_rewritten,
        repaired.files_gone,
    );
    assert_eq!((files, repaired.nameless), ((1, 1, 0), 0));
}

/// What newer copies have replaced is as good as it was, and is written once: no file is written again
/// to leave it out but where copies contradict each other.
#[test]
fn a_file_is_written_once_with_what_newer_copies_replaced() {
    let disk = store(&["a"]);
    let free = current(&disk, ROOT).file_number_limit;
    let right = of_sim(&disk, Path::new(ROOT), CheckpointId(2));
    damage(&disk, &named(&disk, ROOT, "rows")[0]);
    let (outcome, lost) = repair_telling(&disk, RepairOptions::default()).unwrap();
    let RepairOutcome::Built(_, repaired) = outcome else {
        panic!("nothing was built");
    };
    assert_eq!(repaired.entries_saved, 2 * ALL - 1);
    assert_eq!(repaired.checkpoints_dropped, [CheckpointId(1)]);
    let new: Vec<FileNumber> = named(&disk, BESIDE, "rows")
        .iter()
        .map(|p| number(p))
        .collect();
    assert_eq!(new[1], free);
    assert_eq!(new.len(), 2);
    assert_eq!(
        current(&disk, BESIDE).manifest_number,
        number_after(free, 1)
    );
    drop(repaired);
    let found = of_sim(&disk, Path::new(BESIDE), CheckpointId(2));
    let differ = right.iter().filter(|(at, row)| found.get(at) != Some(row));
    assert_eq!(differ.count(), lost.len());
}
