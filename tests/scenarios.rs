//! What happens where several rare things meet? Stories that the random workloads do not tell.
//!
//! - A power cut at each call of a checkpoint on a store that lacks a cache: an index snapshot that is
//!   damaged, the copy of the manifest.
//! - A rollback beside a reader of a later checkpoint; a clock that goes back.

#![expect(
    clippy::unwrap_used,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/crash.rs"]
#[expect(dead_code, reason = "the crash test uses the rest")]
mod common;
#[path = "common/hooked.rs"]
mod hooked;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use common::plans::plan;
use common::verify::{Verdict, compare, compare_rows, verify};
use common::{Model, Op, ROOT, Run, key};
use hooked::{Hook, HookedDisk};
use hps::format::checksum::digest128;
use hps::io::Io;
use hps::io::sim::{CrashMode, SimDisk};
use hps::*;

/// Weights of a narrow row.
const NARROW_DIM: usize = 256;

fn rows(keys: std::ops::Range<u64>, value: f32) -> Op {
    Op::Rows(0, keys.map(key).collect(), value)
}

/// A closed store of two directories with one checkpoint and an index snapshot.
fn sample(retain: usize) -> (SimDisk, Run) {
    let disk = SimDisk::new(3);
    let mut options = plan(3).options;
    options.retain_checkpoints = retain;
    options.thresholds = Thresholds {
        snapshot_young_bytes: 0,
        snapshot_young_part: 1000,
        ..Thresholds::default()
    };
    let mut run = Run::new(Io::of(disk.clone()), &options);
    run.model.create.data_directories = vec!["a".into(), "b".into()];
    run.create().unwrap();
    run.step(&rows(0..20, 1.0)).unwrap();
    run.step(&Op::Checkpoint(1, vec![1; 100])).unwrap();
    run.store = None;
    (disk, run)
}

/// What an open store shows is the model's, whatever files there are beside.
fn shows(disk: &SimDisk, model: &Model, options: &RuntimeOptions) -> Verdict {
    let opened = Store::open_on(Io::of(disk.clone()), &model.root, options.clone());
    let store = opened.map_err(|e| format!("does not open: {e}"))?;
    compare(&store, model, true).map(drop)
}

fn with_extension(disk: &SimDisk, extension: &str) -> Vec<PathBuf> {
    let is = |p: &PathBuf| p.extension().is_some_and(|e| e == extension);
    disk.paths().into_iter().filter(is).collect()
}

/// Opens the store, changes rows and makes a checkpoint, cut as by [`cut`].
fn cut_the_next_checkpoint(disk: &SimDisk, run: &mut Run) -> usize {
    let some = Op::Remove(0, vec![key(0), key(1)]);
    cut(disk, run, &[rows(10..30, 2.0), some, checkpoint(2)])
}

fn checkpoint(step: u64) -> Op {
    Op::Checkpoint(step, vec![u8::try_from(step).unwrap(); 50])
}

/// Opens the store and does all of this, a checkpoint last; before each call the power fails. Every
/// remains shows the checkpoint before or this one. How many there were.
fn cut(disk: &SimDisk, run: &mut Run, ops: &[Op]) -> usize {
    let left = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    let take = {
        let (disk, left) = (disk.clone(), Arc::clone(&left));
        move || {
            let call = disk.calls();
            let random = (0..4).map(|i| (call << 2 | i, CrashMode::Random));
            for (seed, mode) in random.chain([(0, CrashMode::KeepNone), (0, CrashMode::KeepAll)]) {
                let after = disk.crash(seed, mode);
                if seen.lock().unwrap().insert(after.digest(digest128)) {
                    left.lock().unwrap().push((call, mode, after));
                }
            }
        }
    };
    let hook: Hook = {
        let take = take.clone();
        Arc::new(move |_, _| {
            take();
            None
        })
    };
    run.disk = Io::of(HookedDisk::new(disk.clone(), hook));
    let mut before = run.model.clone();
    run.open().unwrap();
    ops.iter().for_each(|op| run.step(op).unwrap());
    run.store = None;
    before.doubt = Some(run.model.durable.clone());
    let left = std::mem::take(&mut *left.lock().unwrap());
    let count = left.len();
    for (call, mode, after) in left {
        let shown = shows(&after, &before, &run.options);
        assert!(shown.is_ok(), "call {call}, {mode:?}: {shown:?}");
    }
    verify(disk, &run.model, &run.options, true).unwrap();
    count
}

#[test]
fn a_store_without_copies_of_its_manifest_survives_a_crash_at_each_call_of_its_next_checkpoint() {
    let (disk, mut run) = sample(2);
    for copy in with_extension(&disk, "copy") {
        disk.remove(&copy).unwrap();
    }
    disk.sync_dir(Path::new(ROOT)).unwrap();
    assert!(cut_the_next_checkpoint(&disk, &mut run) > 40);
    assert_eq!(with_extension(&disk, "copy").len(), 1, "it has one again");
}

#[test]
fn a_damaged_snapshot_is_replaced_and_a_crash_at_each_call_of_that_harms_nothing() {
    // The list of files, and a block of entries, which is read only while the next one is made: the
    // damaged one used to stay in force for good.
    for offset in [5000, 9000] {
        let (disk, mut run) = sample(1);
        let snapshots = with_extension(&disk, "snapshot");
        assert_eq!(snapshots.len(), 2, "{snapshots:?}");
        disk.corrupt(&snapshots[0], offset, 0x10).unwrap();
        assert!(cut_the_next_checkpoint(&disk, &mut run) > 40);
        let new = with_extension(&disk, "snapshot");
        assert!(new.len() == 2 && new != snapshots, "{new:?}");
    }
}

#[test]
fn an_index_snapshot_that_can_not_be_read_is_replaced_and_a_crash_does_not_heal_it() {
    for offset in [4096, 8192] {
        let (disk, mut run) = sample(1);
        let snapshots = with_extension(&disk, "snapshot");
        disk.lose_sector(&snapshots[0], offset).unwrap();
        assert!(cut_the_next_checkpoint(&disk, &mut run) > 40);
        let new = with_extension(&disk, "snapshot");
        assert!(new.len() == 2 && new != snapshots, "{new:?}");
    }
}

#[test]
fn a_reader_of_a_later_checkpoint_reads_on_beside_a_rollback() {
    let (disk, mut run) = sample(3);
    run.open().unwrap();
    run.step(&rows(10..30, 2.0)).unwrap();
    run.step(&Op::Checkpoint(2, vec![2; 50])).unwrap();
    let later = run.model.durable.saved.last().unwrap().clone();
    let info = run.store().last_checkpoint().unwrap();
    let root = Path::new(ROOT);
    let options = run.options.clone();
    let open = |id| {
        let io = Io::of(disk.clone());
        Store::open_read_only_on(io, root, Some(id), options.clone())
    };
    let reader = open(info.id).unwrap();
    run.step(&Op::Rollback(1)).unwrap();
    compare_rows(&reader, &info, &later).unwrap();
    assert!(open(info.id).is_err(), "it is forgotten");
    // The writer goes on while the reader has its files open.
    run.step(&rows(0..8, 3.0)).unwrap();
    run.step(&Op::Checkpoint(3, vec![3; 50])).unwrap();
    compare_rows(&reader, &info, &later).unwrap();
    drop(reader);
    run.store = None;
    let left = disk.crash(1, CrashMode::KeepNone);
    verify(&left, &run.model, &run.options, true).unwrap();
    verify(&disk, &run.model, &run.options, true).unwrap();
}

#[test]
fn a_clock_that_goes_back_changes_no_order() {
    let (disk, mut run) = sample(3);
    run.open().unwrap();
    for (step, seconds) in [(2, 2_000_000_000), (3, 5), (4, 0)] {
        disk.set_unix_seconds(seconds);
        run.step(&rows(step..step + 9, step as f32)).unwrap();
        run.step(&Op::Checkpoint(step, vec![])).unwrap();
        assert_eq!(run.store().last_checkpoint().unwrap().step, step);
    }
    run.store = None;
    let left = disk.crash(1, CrashMode::Random);
    verify(&left, &run.model, &run.options, true).unwrap();
}

#[test]
fn a_checkpoint_of_nothing_but_removes_is_cut_at_each_call() {
    let (disk, mut run) = sample(3);
    let all = Op::Remove(0, (0..48).map(key).collect());
    assert!(cut(&disk, &mut run, &[all, checkpoint(2)]) > 30);
    assert!(run.model.rows.is_empty());
}

#[test]
fn a_checkpoint_of_an_empty_table_is_cut_at_each_call() {
    let (disk, mut run) = sample(3);
    assert!(cut(&disk, &mut run, &[Op::CreateTable, checkpoint(2)]) > 20);
    let disk = SimDisk::new(4);
    let mut run = Run::new(Io::of(disk.clone()), &run.options);
    run.model.create.data_directories = vec!["a".into(), "b".into()];
    run.create().unwrap();
    run.step(&checkpoint(1)).unwrap();
    run.store = None;
    // No row was ever written.
    assert!(cut(&disk, &mut run, &[checkpoint(2)]) > 20);
}
