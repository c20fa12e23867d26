//! Does each data directory have its part of the index snapshot, in the next one, and what does a part
//! that fails cost?
#![expect(
    clippy::unwrap_used,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/hooked.rs"]
mod hooked;
#[path = "common/small.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod small;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hooked::{Hook, HookedDisk};
use hps::inspect::{Scope, Severity, inspect_on};
use hps::io::Io;
use hps::io::sim::SimDisk;
use hps::repair::{Fate, LostRow, RepairOptions, RepairOutcome, repair_on};
use hps::*;
use nix::errno::Errno;
use small::{set, sgd, values};

const ROOT: &str = "/store";
const DIRECTORIES: [&str; 3] = ["a", "b", "c"];
const KEYS: u64 = 3000;

/// A new snapshot at every checkpoint, in the caller's thread.
fn options() -> RuntimeOptions {
    RuntimeOptions::new()
        .cache_bytes(8 << 20)
        .retain_checkpoints(2)
        .inline(true)
        .threads(1)
        .thresholds(Thresholds {
            snapshot_young_bytes: 0,
            snapshot_young_part: u64::MAX,
            ..Thresholds::default()
        })
}

fn create(io: Io) -> Store {
    let create = CreateOptions::new().data_directories(DIRECTORIES.map(PathBuf::from).to_vec());
    let store = Store::create_on(io, Path::new(ROOT), create, options()).unwrap();
    store.create_table(&sgd("t", 4)).unwrap();
    store
}

fn open(disk: &SimDisk, root: &str) -> Store {
    Store::open_on(Io::of(disk.clone()), Path::new(root), options()).unwrap()
}

fn write(store: &Store, step: u64, value: f32) {
    let table = store.table("t").unwrap();
    let keys: Vec<u64> = (0..KEYS).collect();
    set(store, table, &keys, value, 4);
    store.checkpoint(step, &[]).unwrap();
}

fn check(store: &Store, value: f32) {
    let table = store.table("t").unwrap();
    let keys: Vec<u64> = (0..KEYS).collect();
    let rows = values(store, table, &keys, 4);
    assert!(rows.iter().all(|x| *x == value));
    assert_eq!(store.stats().index_keys, KEYS);
}

/// The parts under a directory.
fn parts(disk: &SimDisk, directory: &str) -> Vec<PathBuf> {
    let mut paths = disk.paths();
    paths.retain(|p| p.starts_with(directory) && p.extension().is_some_and(|e| e == "snapshot"));
    paths
}

fn findings_of(disk: &SimDisk, root: &str) -> Vec<(Severity, PathBuf)> {
    let scope = Scope::new().full(true);
    let mut go_on = |_, _| ControlFlow::Continue(());
    let report = inspect_on(&Io::of(disk.clone()), Path::new(root), scope, &mut go_on);
    let all = report.unwrap().findings.into_iter();
    all.map(|f| (f.severity, f.path)).collect()
}

/// The parts in force: whose keys each has, its name, and the checkpoint that it was made for.
fn in_force(disk: &SimDisk) -> Vec<(usize, PathBuf, CheckpointId)> {
    let mut go_on = |_, _| ControlFlow::Continue(());
    let report = inspect_on(
        &Io::of(disk.clone()),
        Path::new(ROOT),
        Scope::new(),
        &mut go_on,
    );
    let parts = report.unwrap().snapshot.into_iter();
    parts
        .map(|part| (part.directory.unwrap(), part.path, part.checkpoint.unwrap()))
        .collect()
}

/// Repairs the store in its place; gives the keys that are told, and what each has now.
fn repair(disk: &SimDisk) -> Vec<(u64, Fate)> {
    let (io, root) = (Io::of(disk.clone()), Path::new(ROOT));
    let mut lost = Vec::new();
    let mut told = |_: &str, row: LostRow| {
        lost.push((row.key, row.now));
        Ok(())
    };
    let mut go_on = |_, _| ControlFlow::Continue(());
    let outcome = repair_on(&io, root, RepairOptions::new(), &mut told, &mut go_on).unwrap();
    let RepairOutcome::Built(_, repaired) = outcome else {
        unreachable!("it is damaged");
    };
    repaired.swap_on(&io, root).unwrap();
    lost
}

fn findings(disk: &SimDisk) -> Vec<(Severity, PathBuf)> {
    findings_of(disk, ROOT)
}

#[test]
fn each_data_directory_has_one_part_and_the_store_s_own_has_none() {
    let disk = SimDisk::new(1);
    let store = create(Io::of(disk.clone()));
    for step in 1..4 {
        write(&store, step, step as f32);
        let all = parts(&disk, ROOT);
        let homes: Vec<_> = all.iter().map(|p| p.parent().unwrap()).collect();
        assert_eq!(homes, DIRECTORIES.map(|d| Path::new(ROOT).join(d)));
        let bytes = all.iter().map(|p| disk.read_file(p).unwrap().len() as u64);
        let stats = store.stats();
        let pinned: u64 = store.directories().iter().map(|d| d.pinned_bytes).sum();
        assert_eq!(stats.pinned_bytes, pinned + bytes.sum::<u64>());
    }
    store.close().unwrap();
    assert_eq!(findings(&disk), []);
    let home = |directory: usize| Path::new(ROOT).join(DIRECTORIES[(directory + 1) % 3]);
    for (i, (directory, path, checkpoint)) in in_force(&disk).into_iter().enumerate() {
        assert_eq!((directory, path.parent()), (i, Some(&*home(i))));
        assert_eq!(checkpoint, CheckpointId(3));
    }
    check(&open(&disk, ROOT), 3.0);
}

/// Parts that were made before the one that failed are of no use without it.
#[test]
fn a_part_that_can_not_be_written_leaves_the_snapshot_before_it_in_force() {
    for (call, place) in [
        ("create", "a"),
        ("create", "c"),
        ("write", "a"),
        ("write", "b"),
        ("write", "c"),
    ] {
        let disk = SimDisk::new(1);
        let armed = Arc::new(AtomicBool::new(false));
        let hook: Hook = {
            let armed = Arc::clone(&armed);
            Arc::new(move |now, path| {
                let is_part = path.extension().is_some_and(|e| e == "snapshot");
                let meant = now == call && is_part && path.parent().unwrap().ends_with(place);
                (meant && armed.load(Ordering::Relaxed)).then(|| Err(Errno::EIO.into()))
            })
        };
        let store = create(Io::of(HookedDisk::new(disk.clone(), hook)));
        write(&store, 1, 1.0);
        let before = parts(&disk, ROOT);
        assert_eq!(before.len(), 3);
        armed.store(true, Ordering::Relaxed);
        write(&store, 2, 2.0);
        assert_eq!(parts(&disk, ROOT), before, "{call} in {place}");
        // A store that is killed now has the old parts and the new rows.
        let killed = disk.killed(1);
        assert_eq!(findings(&killed), []);
        check(&open(&killed, ROOT), 2.0);
        armed.store(false, Ordering::Relaxed);
        write(&store, 3, 3.0);
        let after = parts(&disk, ROOT);
        assert!(after.len() == 3 && after.iter().all(|p| !before.contains(p)));
        check(&store, 3.0);
    }
}

/// The sync of a part failed: what the device has is not known, and nothing is written any more.
#[test]
fn a_part_that_can_not_be_synced_poisons_the_store_and_loses_no_checkpoint() {
    let disk = SimDisk::new(1);
    let armed = Arc::new(AtomicBool::new(false));
    let hook: Hook = {
        let armed = Arc::clone(&armed);
        Arc::new(move |now, path| {
            let is_part = path.extension().is_some_and(|e| e == "snapshot");
            let meant = now == "sync" && is_part && path.parent().unwrap().ends_with("b");
            (meant && armed.load(Ordering::Relaxed)).then(|| Err(Errno::EIO.into()))
        })
    };
    let store = create(Io::of(HookedDisk::new(disk.clone(), hook)));
    write(&store, 1, 1.0);
    armed.store(true, Ordering::Relaxed);
    write(&store, 2, 2.0);
    let refused = store.checkpoint(3, &[]);
    assert!(
        matches!(refused, Err(Error::Poisoned { .. })),
        "{refused:?}"
    );
    drop(store);
    check(&open(&disk, ROOT), 2.0);
}

#[test]
fn an_inspection_names_each_damaged_part_and_a_checkpoint_replaces_it() {
    let disk = SimDisk::new(1);
    let store = create(Io::of(disk.clone()));
    write(&store, 1, 1.0);
    store.close().unwrap();
    let all = parts(&disk, ROOT);
    disk.corrupt(&all[0], 9000, 4).unwrap();
    disk.remove(&all[2]).unwrap();
    let expected = [
        (Severity::Cache, all[0].clone()),
        (Severity::Leftover, all[2].clone()),
    ];
    assert_eq!(findings(&disk), expected);
    let store = open(&disk, ROOT);
    check(&store, 1.0);
    write(&store, 2, 2.0);
    store.close().unwrap();
    assert_eq!(findings(&disk), []);
    assert_eq!(parts(&disk, ROOT).len(), 3);
}

/// An export had no index snapshot: its first open read all key blocks.
#[test]
fn an_export_has_the_parts_in_the_directories_that_stand_for_theirs() {
    let disk = SimDisk::new(1);
    let store = create(Io::of(disk.clone()));
    write(&store, 1, 1.0);
    write(&store, 2, 2.0);
    let last = store.last_checkpoint().unwrap().id;
    let into = ["x", "y", "z"].map(PathBuf::from);
    store.export(last, Path::new("/export"), &into).unwrap();
    let names = |paths: Vec<PathBuf>| -> Vec<_> {
        let name = |p: PathBuf| p.file_name().unwrap().to_owned();
        paths.into_iter().map(name).collect()
    };
    let exported = parts(&disk, "/export");
    let homes: Vec<_> = exported.iter().map(|p| p.parent().unwrap()).collect();
    assert_eq!(homes, into.clone().map(|d| Path::new("/export").join(d)));
    assert_eq!(names(exported.clone()), names(parts(&disk, ROOT)));
    // One of a later checkpoint than the exported one lists rows that this has not.
    let first = store.checkpoints()[0].id;
    store.export(first, Path::new("/first"), &[]).unwrap();
    assert_eq!(parts(&disk, "/first"), [] as [PathBuf; 0]);
    store.close().unwrap();
    for (root, value) in [("/export", 2.0), ("/first", 1.0)] {
        assert_eq!(findings_of(&disk, root), [], "{root}");
        let exported = open(&disk, root);
        check(&exported, value);
        exported.close().unwrap();
    }
    // The store goes on and removes its own names; the export keeps the files.
    let store = open(&disk, ROOT);
    write(&store, 3, 3.0);
    assert_eq!(parts(&disk, "/export"), exported);
}

/// A repaired store had no index snapshot: its first open read all key blocks.
#[test]
fn a_repair_keeps_the_parts_that_are_whole() {
    for damaged in 0..3 {
        let disk = SimDisk::new(1);
        let store = create(Io::of(disk.clone()));
        write(&store, 1, 1.0);
        store.close().unwrap();
        let mut before = in_force(&disk);
        assert_eq!(before.len(), 3);
        disk.corrupt(&before[damaged].1, 9000, 4).unwrap();
        assert_eq!(repair(&disk), []);
        before.remove(damaged);
        assert_eq!(in_force(&disk), before, "without that of {damaged}");
        assert_eq!(findings(&disk), []);
        let store = open(&disk, ROOT);
        check(&store, 1.0);
        write(&store, 2, 2.0);
        store.close().unwrap();
        assert_eq!(in_force(&disk).len(), 3, "it has one again");
        assert_eq!(findings(&disk), []);
    }
}

/// A key whose newest copy is lost has an older one, in a file that is whole: the part lists the lost
/// one alone.
#[test]
fn a_repair_keeps_no_part_of_a_directory_that_lost_rows() {
    let disk = SimDisk::new(1);
    let store = create(Io::of(disk.clone()));
    write(&store, 1, 1.0);
    let (table, some) = (store.table("t").unwrap(), (0..300).collect::<Vec<u64>>());
    set(&store, table, &some, 2.0, 4);
    store.checkpoint(2, &[]).unwrap();
    let files = store.files();
    let youngest = files.iter().filter(|f| f.directory == 1 && f.current);
    let path = youngest.max_by_key(|f| f.number).unwrap().path.clone();
    store.close().unwrap();
    let before = in_force(&disk);
    assert!(before.iter().all(|part| part.2 == CheckpointId(2)));
    disk.corrupt(&path, 4096 + 20, 1).unwrap();
    let lost = repair(&disk);
    assert!(
        matches!(lost[..], [(_, Fate::Older)]),
        "one row had an older copy: {lost:?}"
    );
    let kept = [before[0].clone(), before[2].clone()];
    assert_eq!(in_force(&disk), kept);
    assert_eq!(findings(&disk), []);
    let store = open(&disk, ROOT);
    let rows = values(&store, store.table("t").unwrap(), &some, 4);
    for (key, row) in some.iter().zip(rows.chunks(4)) {
        let value = if *key == lost[0].0 { 1.0 } else { 2.0 };
        assert_eq!(row, [value; 4], "key {key}");
    }
}

#[test]
fn parts_that_nothing_names_are_removed_from_the_data_directories() {
    let disk = SimDisk::new(1);
    let store = create(Io::of(disk.clone()));
    write(&store, 1, 1.0);
    store.close().unwrap();
    let before = parts(&disk, ROOT);
    let stray = Path::new(ROOT).join("b/000000000002.snapshot");
    disk.write_file(&stray, b"of a writer that was killed")
        .unwrap();
    assert_eq!(findings(&disk), [(Severity::Leftover, stray)]);
    drop(open(&disk, ROOT));
    assert_eq!(parts(&disk, ROOT), before);
}
