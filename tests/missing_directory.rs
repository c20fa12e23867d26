//! What does a store do whose data directory is not there?
//!
//! - It says which one, and that it may not be mounted; nothing takes it for damage to be repaired.
//! - A repair goes on without exactly those that it is told are lost, and tells every row that is.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that meets what it does not expect must fail"
)]

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use hps::inspect::{Report, Scope, Severity, inspect_on};
use hps::io::Io;
use hps::repair::{Fate, LostRow, RepairOptions, RepairOutcome, Repaired, repair_on};
use hps::*;

const DIM: usize = 4;
const KEYS: u64 = 8000;
/// Directories of the store, all outside of it; this one is lost.
const LOST: usize = 1;

struct Case {
    home: tempfile::TempDir,
    /// Keys that a repair told to be lost.
    lost: RefCell<BTreeSet<u64>>,
}

impl Case {
    /// A store of three data directories with an index snapshot, closed; and one older copy of each row
    /// in a retained checkpoint before it.
    fn new() -> Case {
        let case = Case {
            home: tempfile::tempdir().unwrap(),
            lost: RefCell::default(),
        };
        fs::create_dir(case.home.path().join("disks")).unwrap();
        let options = RuntimeOptions::new()
            .cache_bytes(8 << 20)
            .retain_checkpoints(1);
        let parts = (0..3).map(|i| case.directory(i)).collect();
        let create = CreateOptions::new().data_directories(parts);
        let store = Store::create(&case.root(), create, options).unwrap();
        let table = store.create_table(&TableDescriptor::new("t", DIM)).unwrap();
        let keys: Vec<u64> = (0..KEYS).collect();
        for keys in keys.chunks(1000) {
            let mut out = vec![0.0; keys.len() * DIM];
            let lease = store.pull(table, keys, &mut out).unwrap();
            for (row, key) in out.chunks_mut(DIM).zip(keys) {
                row.fill(*key as f32 + 0.5);
            }
            store.push(&lease, Update::weights(&out)).unwrap();
        }
        store.checkpoint(1, b"meta").unwrap();
        store.close().unwrap();
        case
    }

    fn root(&self) -> PathBuf {
        self.home.path().join("store")
    }

    fn directory(&self, index: usize) -> PathBuf {
        self.home.path().join("disks").join(format!("ssd-{index}"))
    }

    /// The file system of the lost directory is not mounted: the directory is gone, or a bare one.
    fn unmount(&self, bare: bool) {
        let aside = self.home.path().join("unmounted");
        fs::rename(self.directory(LOST), aside).unwrap();
        if bare {
            fs::create_dir(self.directory(LOST)).unwrap();
        }
    }

    fn mount(&self) {
        let _was_bare = fs::remove_dir(self.directory(LOST));
        fs::rename(self.home.path().join("unmounted"), self.directory(LOST)).unwrap();
    }

    fn look(&self, full: bool) -> Report {
        let scope = Scope::new().full(full);
        inspect_on(&Io::pread(), &self.root(), scope, &mut |_, _| {
            ControlFlow::Continue(())
        })
        .unwrap()
    }

    fn repair(&self, lost: &[usize]) -> Result<RepairOutcome> {
        let options = RepairOptions::new().without_directories(lost.to_vec());
        let mut on = |_, _| ControlFlow::Continue(());
        let mut told = |_: &str, row: LostRow| {
            assert_eq!(row.now, Fate::Gone);
            self.lost.borrow_mut().insert(row.key);
            Ok(())
        };
        repair_on(&Io::pread(), &self.root(), options, &mut told, &mut on)
    }

    fn built(&self) -> Repaired {
        match self.repair(&[LOST]).unwrap() {
            RepairOutcome::Built(_, repaired) => *repaired,
            RepairOutcome::Whole(_) => panic!("nothing was repaired"),
        }
    }

    /// The keys that have their rows; others have the initialiser's.
    fn rows(&self) -> BTreeSet<u64> {
        let store = Store::open(&self.root(), RuntimeOptions::default()).unwrap();
        assert_eq!(store.checkpoint_meta(CheckpointId(1)).unwrap(), b"meta");
        let mut rows = store.rows(CheckpointId(1)).unwrap();
        let mut found = BTreeSet::new();
        while let Some(row) = rows.next_row().unwrap() {
            assert_eq!(row.values[0], row.key as f32 + 0.5);
            found.insert(row.key);
        }
        drop(rows);
        store.close().unwrap();
        found
    }
}

fn is_missing(error: &Error, at: &Path, bare: bool) -> bool {
    matches!(error, Error::MissingDirectory { index: LOST, path, empty }
        if path == at && *empty == bare)
}

/// An SSD that was not mounted was `corrupt ... the manifest names this file and it is missing`, and
/// the documents sent the user to a repair, which gave up a quarter of the rows.
#[test]
fn a_data_directory_that_is_not_mounted_is_no_damage() {
    for bare in [false, true] {
        let case = Case::new();
        case.unmount(bare);
        let at = case.directory(LOST);
        let write = Store::open(&case.root(), RuntimeOptions::default()).unwrap_err();
        assert!(is_missing(&write, &at, bare), "{write}");
        assert!(
            write.to_string().contains("mount its file system"),
            "{write}"
        );
        let read = Store::open_read_only(&case.root(), None, RuntimeOptions::default());
        let read = read.unwrap_err();
        assert!(is_missing(&read, &at, bare), "{read}");
        for full in [false, true] {
            let report = case.look(full);
            assert_eq!(report.missing_directories.len(), 1);
            let damage = |f: &&inspect::Finding| f.severity == Severity::Damage;
            let damage = report.findings.iter().filter(damage).count();
            assert_eq!(
                damage, 1,
                "one finding, not one a file: {:?}",
                report.findings
            );
        }
        let refused = case.repair(&[]).unwrap_err();
        assert!(is_missing(&refused, &at, bare), "{refused}");
        case.mount();
        assert_eq!(case.rows().len() as u64, KEYS, "nothing happened to it");
    }
}

#[test]
fn a_repair_goes_on_without_the_directories_that_it_is_told_are_lost() {
    for bare in [false, true] {
        let case = Case::new();
        case.unmount(bare);
        let repaired = case.built();
        assert_eq!(repaired.nameless, 0, "the index snapshot names them");
        let lost = case.lost.take();
        assert_eq!(repaired.lost.gone, lost.len() as u64);
        assert!(lost.len() > 2000, "{} are lost", lost.len());
        // A new one where the old one stood, if there is something: a new device, perhaps.
        let new = match bare {
            true => case.directory(LOST).join("repaired-1"),
            false => case.root().join("part-1"),
        };
        assert_eq!(repaired.given_up, [(LOST, new.clone())]);
        repaired.swap_on(&Io::pread(), &case.root()).unwrap();
        drop(repaired);
        assert!(new.join("PART").exists());
        let left = case.rows();
        assert!(left.is_disjoint(&lost));
        assert_eq!(
            (left.len() + lost.len()) as u64,
            KEYS,
            "each row is there, or told"
        );
        assert!(case.look(true).findings.is_empty());
    }
}

#[test]
fn what_is_there_is_not_given_up_by_a_slip() {
    let case = Case::new();
    let refused = |lost: &[usize]| match case.repair(lost) {
        Err(Error::InvalidArgument(ArgumentError::Option { name, .. })) => name,
        other => panic!("{lost:?}: {other:?}"),
    };
    assert_eq!(refused(&[0]), "without_directories");
    assert_eq!(refused(&[7]), "without_directories");
    case.unmount(false);
    assert_eq!(refused(&[LOST, 2]), "without_directories");
    case.mount();
    assert_eq!(case.rows().len() as u64, KEYS);
}

/// What a killed repair has left of a lost directory's new place is cleared like the rest.
#[test]
fn a_repair_without_a_directory_that_is_stopped_leaves_nothing_behind() {
    let case = Case::new();
    case.unmount(false);
    let options = || RepairOptions::new().without_directories(vec![LOST]);
    for stop_at in 1..40 {
        let mut calls = 0;
        let mut stop = |_, _| {
            calls += 1;
            match calls >= stop_at {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        let mut told = |_: &str, _| Ok(());
        match repair_on(&Io::pread(), &case.root(), options(), &mut told, &mut stop) {
            Err(Error::Cancelled) => {}
            Ok(RepairOutcome::Built(..)) => break,
            other => panic!("{other:?}"),
        }
        let beside = case.home.path().join("store.repair");
        let left = |path: &Path| match fs::read_dir(path) {
            Ok(names) => names
                .filter(|e| e.as_ref().unwrap().path().is_file())
                .count(),
            Err(_) => 0,
        };
        assert_eq!(left(&beside) + left(&beside.join("part-1")), 0);
    }
    case.mount();
    assert_eq!(case.rows().len() as u64, KEYS);
}

/// Peak of this process' memory since the last call, in bytes.
fn peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    fs::write("/proc/self/clear_refs", "5").unwrap();
    kib << 10
}

/// One of four data directories of `HPS_REPAIR_ROWS` rows of 512 bytes is lost; 8 000 000 (4 GB)
/// show what a row costs, 100 000 only that the repair and its bound work.
#[test]
fn a_lost_directory_of_millions_of_rows_takes_little_memory_to_repair() {
    let rows = std::env::var("HPS_REPAIR_ROWS").map_or(100_000, |n| n.parse().unwrap());
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join("disks")).unwrap();
    let directory = |i| home.path().join("disks").join(format!("ssd-{i}"));
    let root = home.path().join("store");
    let create = CreateOptions::new().data_directories((0..4).map(directory).collect());
    let options = RuntimeOptions::new().cache_bytes(256 << 20);
    let store = Store::create(&root, create, options).unwrap();
    let table = store.create_table(&TableDescriptor::new("t", 64)).unwrap();
    let mut out = vec![0.0; 8192 * 64];
    for first in (0..rows).step_by(8192) {
        let keys: Vec<u64> = (first..rows.min(first + 8192)).collect();
        let out = &mut out[..keys.len() * 64];
        let lease = store.pull(table, &keys, out).unwrap();
        out.fill(1.0);
        store.push(&lease, Update::weights(out)).unwrap();
    }
    store.checkpoint(1, &[]).unwrap();
    store.close().unwrap();
    fs::remove_dir_all(directory(LOST)).unwrap();
    let (before, mut lost) = (peak_bytes(), 0);
    let options = RepairOptions::new().without_directories(vec![LOST]);
    let mut told = |_: &str, _| {
        lost += 1;
        Ok(())
    };
    let mut on = |_, _| ControlFlow::Continue(());
    let outcome = repair_on(&Io::pread(), &root, options, &mut told, &mut on).unwrap();
    let RepairOutcome::Built(_, repaired) = outcome else {
        panic!("nothing was repaired");
    };
    let peak = peak_bytes();
    println!(
        "{rows} rows, {lost} lost, {} without a name: peak {} MiB ({} MiB before)",
        repaired.nameless,
        peak >> 20,
        before >> 20
    );
    assert!(lost > rows / 5);
    // 18.7 bytes a key is what the index of an open store takes.
    assert!(peak <= (256 << 20) + rows * 187 / 10, "{peak} bytes");
}
