//! How long does a store take to open, to be inspected and repaired, for each GiB of it, whatever
//! state it is in?
//!
//! 10 s for a GiB is what is promised of any directory, however hostile. The figures are printed, not
//! compared: a busy machine would fail. `HPS_TIMED_ROWS` says how many rows of 256 bytes (200 000).
#![expect(clippy::unwrap_used, reason = "test helpers fail the test")]

#[expect(dead_code, reason = "other tests use the rest")]
mod disks;

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use disks::{DIM, environment, say};
use hps::inspect::{Scope, Severity, inspect_on};
use hps::io::Io;
use hps::repair::{self, RepairOutcome};
use hps::*;

/// A closed store of two directories, with stale copies of a quarter of its rows.
fn make(root: &Path, rows: u64) {
    let create = CreateOptions::new().data_directories(vec!["a".into(), "b".into()]);
    let options = RuntimeOptions::new().cache_bytes(32 << 20);
    let store = Store::create(root, create, options).unwrap();
    let table = TableDescriptor::new("rows", DIM).optimizer(Optimizer::Sgd);
    let table = store.create_table(&table).unwrap();
    let keys: Vec<u64> = (0..rows).chain(0..rows / 4).collect();
    for (step, batch) in (1..).zip(keys.chunks(4000)) {
        let mut out = vec![0.0; batch.len() * DIM];
        let lease = store.pull(table, batch, &mut out).unwrap();
        out.fill(step as f32);
        store.push(&lease, Update::weights(&out)).unwrap();
    }
    store.checkpoint(1, &[7; 1 << 20]).unwrap();
    store.close().unwrap();
}

fn files(root: &Path) -> Vec<PathBuf> {
    let places = [root.to_path_buf(), root.join("a"), root.join("b")];
    let entries = places.iter().flat_map(|place| fs::read_dir(place).unwrap());
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.is_file()).collect()
}

fn of_kind<'f>(files: &'f [PathBuf], kind: &str) -> Vec<&'f PathBuf> {
    let named = |path: &&PathBuf| path.extension().is_some_and(|e| e == kind);
    files.iter().filter(named).collect()
}

/// Changes a byte of every 64 KiB.
fn damage(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    bytes
        .iter_mut()
        .skip(9000)
        .step_by(64 << 10)
        .for_each(|byte| *byte ^= 0x10);
    fs::write(path, bytes).unwrap();
}

fn look(root: &Path) -> Option<Severity> {
    let scope = Scope::new().full(true);
    let mut go_on = |_, _| ControlFlow::Continue(());
    inspect_on(&Io::pread(), root, scope, &mut go_on)
        .unwrap()
        .worst()
}

fn open(root: &Path) -> Result<()> {
    Store::open(root, RuntimeOptions::default()).and_then(Store::close)
}

fn mend(root: &Path) {
    let mut told = |_: &str, _| Ok(());
    let mut on = |_, _| ControlFlow::Continue(());
    let choice = repair::RepairOptions::default();
    let outcome = repair::repair_on(&Io::pread(), root, choice, &mut told, &mut on).unwrap();
    assert!(matches!(outcome, RepairOutcome::Built(..)));
}

#[test]
fn a_gib_of_a_store_is_opened_inspected_and_repaired_in_a_time_that_is_printed() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("store");
    make(&root, environment("HPS_TIMED_ROWS", 200_000));
    let all = files(&root);
    let bytes: u64 = all.iter().map(|path| path.metadata().unwrap().len()).sum();
    let gib = bytes as f64 / (1u64 << 30) as f64;
    let timed = |what: &str, work: &mut dyn FnMut()| {
        let begun = Instant::now();
        work();
        let seconds = begun.elapsed().as_secs_f64() / gib;
        say(&format!(
            "time_per_byte: {what}: {seconds:.2} s/GiB, promised 10"
        ));
    };
    timed("an opening", &mut || open(&root).unwrap());
    timed("an inspection", &mut || assert_eq!(look(&root), None));
    let snapshots = of_kind(&all, "snapshot");
    assert!(!snapshots.is_empty());
    snapshots.iter().for_each(|snapshot| damage(snapshot));
    timed("an opening with a damaged snapshot", &mut || {
        open(&root).unwrap()
    });
    let cache = Some(Severity::Cache);
    timed("an inspection of that", &mut || {
        assert_eq!(look(&root), cache)
    });
    snapshots
        .iter()
        .for_each(|snapshot| fs::remove_file(snapshot).unwrap());
    timed("an opening without snapshot", &mut || open(&root).unwrap());
    of_kind(&all, "rows").iter().for_each(|rows| damage(rows));
    let worst = Some(Severity::Damage);
    timed("an inspection of damaged files", &mut || {
        assert_eq!(look(&root), worst)
    });
    timed("an opening of them", &mut || drop(open(&root)));
    timed("their repair", &mut || mend(&root));
    say(&format!("time_per_byte: of a store of {} MiB", bytes >> 20));
}
