//! Does an inspection beside a writer take a change for damage?
//!
//! - The writer checkpoints, compacts, drops checkpoints, rolls back and reopens as fast as it can; it
//!   is a thread of this process, or a process of its own.
//! - On a simulated disk every change happens once before every call of a look, and all the time.
//! - Every look must find the store whole, and have looked: at a checkpoint with all its rows.
//! - `HPS_LOOKS`: looks of each test, 150 without it.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/child.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod child;
#[path = "common/hooked.rs"]
mod hooked;
#[path = "common/small.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod small;

use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use child::{Child, hear, role_of_this_process, say};
use hooked::{Hook, HookedDisk};
use hps::inspect::{CheckpointReport, Report, Scope, Severity, inspect_on};
use hps::io::Io;
use hps::io::sim::SimDisk;
use hps::*;
use small::{set, sgd};

const DIM: usize = 4;
/// Enough for an index snapshot at every second checkpoint or so.
const KEYS: u64 = 9000;
const BATCH: usize = 3000;

fn options() -> RuntimeOptions {
    small::options().retain_checkpoints(3)
}

fn looks() -> u64 {
    match std::env::var("HPS_LOOKS") {
        Ok(looks) => looks.parse().expect("HPS_LOOKS is a number"),
        Err(_) => 150,
    }
}

fn fill(store: &Store, step: u64) {
    let table = store.table("t").unwrap();
    small::fill(store, table, KEYS, BATCH, step as f32, DIM);
}

/// A store with one checkpoint, closed.
fn place() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::create(directory.path(), CreateOptions::new(), options()).unwrap();
    store.create_table(&sgd("t", DIM)).unwrap();
    fill(&store, 1);
    store.checkpoint(1, b"1").unwrap();
    store.close().unwrap();
    directory
}

/// Everything that changes what CURRENT names, again and again; gives the number of turns.
fn train(place: &Path, stop: &dyn Fn() -> bool) -> u64 {
    let mut store = Store::open(place, options()).unwrap();
    let mut turns = 0;
    while !stop() {
        turns += 1;
        let step = store.last_checkpoint().map_or(0, |c| c.step) + 1;
        fill(&store, step);
        store.checkpoint(step, step.to_string().as_bytes()).unwrap();
        let ids: Vec<CheckpointId> = store.checkpoints().iter().map(|c| c.id).collect();
        match turns % 8 {
            2 | 6 => drop(store.compact_fully().unwrap()),
            3 => drop(store.drop_checkpoints(&ids[..ids.len() - 1]).unwrap()),
            5 => store = store.rollback(ids[0]).unwrap(),
            7 => {
                store.close().unwrap();
                store = Store::open(place, options()).unwrap();
            }
            _ => {}
        }
    }
    store.close_discarding();
    turns
}

/// What a child process does.
#[test]
fn role() {
    let Some((role, place)) = role_of_this_process() else {
        return;
    };
    assert_eq!(role, "train");
    let over = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&over);
    std::thread::spawn(move || {
        hear();
        told.store(true, Ordering::Release);
    });
    say("ready");
    let turns = train(&place, &|| over.load(Ordering::Acquire));
    say(&format!("{turns}"));
}

/// What was seen beside the writer.
#[derive(Default)]
struct Seen {
    open: u64,
    closed: u64,
    /// Looks that left something out.
    partly: u64,
}

fn look(place: &Path, turn: u64) -> Result<Report> {
    let io = Io::pread();
    let scope = Scope::new().full(turn.is_multiple_of(2));
    inspect_on(&io, place, scope, &mut |_, _| ControlFlow::Continue(()))
}

fn look_often(place: &Path, seen: &mut Seen) {
    for turn in 0..looks() {
        let report = match look(place, turn) {
            Ok(report) => report,
            Err(error) => panic!("look {turn} of a sound store: {error}"),
        };
        let bad = report
            .findings
            .iter()
            .find(|f| f.severity >= Severity::Cache);
        assert!(bad.is_none(), "look {turn} of a sound store: {bad:?}");
        assert!(report.checkpoint.is_some(), "look {turn} saw no checkpoint");
        if turn.is_multiple_of(2) {
            assert_eq!(report.tables[0].rows, KEYS, "look {turn}");
        }
        seen.open += u64::from(report.open_elsewhere);
        seen.closed += u64::from(!report.open_elsewhere);
        seen.partly += u64::from(report.left_out);
    }
}

/// Six of 93 looks of `hps-fsck` beside a trainer told of a damaged index snapshot, and advised a
/// repair: the index snapshot that they read about had been replaced before they opened it.
#[test]
fn looks_beside_a_writer_in_the_same_process_find_it_whole() {
    let directory = place();
    let over = AtomicBool::new(false);
    let turns = AtomicU64::new(0);
    let mut seen = Seen::default();
    std::thread::scope(|scope| {
        let trainer = scope.spawn(|| {
            let turns_done = train(directory.path(), &|| over.load(Ordering::Acquire));
            turns.store(turns_done, Ordering::Release);
        });
        let looked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            look_often(directory.path(), &mut seen);
        }));
        over.store(true, Ordering::Release);
        trainer.join().expect("the trainer is not disturbed");
        looked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    report(&seen, turns.into_inner());
}

#[test]
fn looks_beside_a_writer_in_another_process_find_it_whole() {
    let directory = place();
    let mut trainer = Child::start("train", directory.path());
    assert_eq!(trainer.listen().as_deref(), Some("ready"));
    let mut seen = Seen::default();
    look_often(directory.path(), &mut seen);
    trainer.tell("stop");
    let turns = trainer.listen().expect("the trainer is not disturbed");
    assert!(trainer.end().success());
    report(&seen, turns.parse().unwrap());
}

fn report(seen: &Seen, turns: u64) {
    let Seen {
        open,
        closed,
        partly,
    } = seen;
    println!(
        "{open} looks beside an open store, {closed} between two owners, {partly} in part; {turns} turns"
    );
    assert!(turns > 8, "the trainer did something: {turns} turns");
    assert!(*open > 0, "no look was beside the trainer");
    assert!(
        partly * 10 <= open + closed,
        "{partly} looks left something out"
    );
}

const ROOT: &str = "/store";

/// What a writer does between two calls of a look.
type Change = fn(&SimDisk, Store) -> Store;

/// An index snapshot at every checkpoint, a manifest afresh at every one, one retained.
fn hasty() -> RuntimeOptions {
    small::options()
        .inline(true)
        .retain_checkpoints(2)
        .thresholds(Thresholds {
            snapshot_young_bytes: 0,
            snapshot_young_part: u64::MAX,
            manifest_roll_bytes: 0,
            ..Thresholds::default()
        })
}

fn open_again(disk: &SimDisk) -> Store {
    Store::open_on(Io::of(disk.clone()), Path::new(ROOT), hasty()).unwrap()
}

fn checkpoint(_: &SimDisk, store: Store) -> Store {
    let table = store.table("t").unwrap();
    let step = store.last_checkpoint().map_or(0, |c| c.step) + 1;
    set(&store, table, &[1, 2, 100 + step], step as f32, DIM);
    store.checkpoint(step, &[]).unwrap();
    store
}

const CHANGES: [(&str, Change); 6] = [
    ("checkpoint", checkpoint),
    ("three checkpoints", |disk, store| {
        (0..3).fold(store, |store, _| checkpoint(disk, store))
    }),
    ("drop", |_, store| {
        let ids: Vec<CheckpointId> = store.checkpoints().iter().map(|c| c.id).collect();
        store.drop_checkpoints(&ids[..ids.len() - 1]).unwrap();
        store
    }),
    ("rollback", |_, store| {
        let first = store.checkpoints()[0].id;
        store.rollback(first).unwrap()
    }),
    ("compaction", |disk, store| {
        store.compact_fully().unwrap();
        checkpoint(disk, store)
    }),
    ("close and open", |disk, store| {
        store.close().unwrap();
        open_again(disk)
    }),
];

/// A store with two checkpoints on a disk of its own, open.
fn simulated() -> (SimDisk, Store) {
    let disk = SimDisk::new(1);
    let store = Store::create_on(
        Io::of(disk.clone()),
        Path::new(ROOT),
        CreateOptions::new(),
        hasty(),
    )
    .unwrap();
    store.create_table(&sgd("t", DIM)).unwrap();
    let store = checkpoint(&disk, checkpoint(&disk, store));
    assert!(disk.paths().iter().any(|path| is_snapshot(path)));
    (disk, store)
}

fn look_on(io: &Io, full: bool) -> Result<Report> {
    let scope = Scope::new().full(full);
    inspect_on(io, Path::new(ROOT), scope, &mut |_, _| {
        ControlFlow::Continue(())
    })
}

/// A look during which `change` happens before the calls that `when` names by number, kind and path;
/// also the number of calls.
fn look_during(
    disk: &SimDisk,
    store: Store,
    full: bool,
    when: impl Fn(u64, &'static str, &Path) -> bool + Send + Sync + 'static,
    change: Change,
) -> (Result<Report>, u64) {
    let writer = Mutex::new(Some(store));
    let calls = Arc::new(AtomicU64::new(0));
    let (counted, written) = (Arc::clone(&calls), disk.clone());
    let before: Hook = Arc::new(move |call, path| {
        if when(counted.fetch_add(1, Ordering::Relaxed), call, path) {
            let mut writer = writer.lock().unwrap();
            let store = writer.take().expect("it was put back");
            *writer = Some(change(&written, store));
        }
        None
    });
    let shared = Io::of(HookedDisk {
        reads: Some(Arc::clone(&before)),
        ..HookedDisk::new(disk.clone(), before)
    });
    let report = look_on(&shared, full);
    drop(shared);
    (report, calls.load(Ordering::Relaxed))
}

fn worst(report: &Report) -> Option<Severity> {
    report.worst().filter(|s| *s >= Severity::Cache)
}

/// Checkpoint of step n has the keys 1, 2 and 101 to 100 + n.
fn check_rows(report: &Report, full: bool) {
    let looked_at = |c: &&CheckpointReport| Some(c.id) == report.checkpoint;
    let checkpoint = report.checkpoints.iter().find(looked_at).unwrap();
    if full {
        assert_eq!(report.tables[0].rows, 2 + checkpoint.step);
        let live = report.files.iter().filter(|f| f.live.is_some());
        assert_eq!(live.count() as u64, checkpoint.files);
    }
}

#[test]
fn a_change_before_any_call_of_a_look_is_no_damage() {
    let mut looks = 0;
    for (name, change) in CHANGES {
        for full in [false, true] {
            for at in 0.. {
                let (disk, store) = simulated();
                let once = move |call, _, _: &Path| call == at;
                let (report, calls) = look_during(&disk, store, full, once, change);
                let report = report.unwrap_or_else(|e| panic!("{name} before call {at}: {e}"));
                let bad = &report.findings;
                assert_eq!(worst(&report), None, "{name} before call {at}: {bad:?}");
                assert!(!report.left_out, "{name} before call {at}: there was time");
                check_rows(&report, full);
                looks += 1;
                if at >= calls {
                    break;
                }
            }
        }
    }
    assert!(looks > 200, "{looks} looks");
}

fn is_snapshot(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "snapshot")
}

/// What is opened stays readable; what was replaced before that is not looked for: what took its
/// place is in force as well.
#[test]
fn an_index_snapshot_that_is_replaced_just_before_it_is_opened_makes_room_for_the_new_one() {
    let replace: Change = |disk, store| {
        let store = checkpoint(disk, store);
        let snapshots = disk.paths().into_iter().filter(|p| is_snapshot(p));
        disk.corrupt(&snapshots.max().unwrap(), 8192 + 70, 1)
            .unwrap();
        store
    };
    for (call, found) in [("open", Some(Severity::Cache)), ("read", None)] {
        let (disk, store) = simulated();
        let over = AtomicBool::new(false);
        let when = move |_, this, path: &Path| {
            this == call && is_snapshot(path) && !over.swap(true, Ordering::Relaxed)
        };
        let (report, _) = look_during(&disk, store, true, when, replace);
        let report = report.unwrap();
        assert_eq!(worst(&report), found, "{call}: {:?}", report.findings);
        assert!(!report.left_out);
    }
}

/// A checkpoint that can't be locked is about to be dropped. What was missing of it was left out, and
/// nothing of what had come in its place was looked at.
#[test]
fn checkpoints_that_are_dropped_before_they_are_held_are_not_looked_at() {
    for full in [false, true] {
        let (disk, store) = simulated();
        let first = store.last_checkpoint().unwrap().id;
        let writer = Mutex::new((false, Some(store)));
        let written = disk.clone();
        let before: Hook = Arc::new(move |call, path| {
            let mut writer = writer.lock().unwrap();
            if writer.0 || path.extension().is_none_or(|e| e != "meta") {
                return None;
            }
            if call == "lock" {
                return Some(Err(ErrorKind::WouldBlock.into()));
            }
            let store = writer.1.take().expect("it was put back");
            store.compact_fully().unwrap();
            let store = (0..3).fold(store, |store, _| checkpoint(&written, store));
            *writer = (true, Some(store));
            None
        });
        let io = Io::of(HookedDisk {
            reads: Some(Arc::clone(&before)),
            ..HookedDisk::new(disk, before)
        });
        let report = look_on(&io, full).unwrap();
        assert_eq!(worst(&report), None, "{:?}", report.findings);
        assert!(!report.left_out, "there was time");
        assert!(
            report.checkpoint > Some(CheckpointId(first.0 + 1)),
            "{:?}",
            report.checkpoint
        );
        assert_eq!(report.checkpoints.len(), 2);
        check_rows(&report, full);
    }
}

#[test]
fn a_writer_that_is_always_quicker_does_not_make_a_sound_store_look_damaged() {
    for (name, change) in CHANGES {
        for every in [1, 3] {
            let (disk, store) = simulated();
            // Not for ever: files that are opened one by one would never end to become more.
            let when = move |call: u64, _, _: &Path| call.is_multiple_of(every) && call < 400;
            let (report, _) = look_during(&disk, store, true, when, change);
            let report = report.unwrap_or_else(|e| panic!("{name} every {every} calls: {e}"));
            let bad = &report.findings;
            assert_eq!(worst(&report), None, "{name} every {every} calls: {bad:?}");
        }
    }
}

/// What is damaged must not be taken for a change either: the file is in force all the time.
#[test]
fn damage_is_found_beside_a_writer_that_commits_at_every_call() {
    let calm = hasty()
        .retain_checkpoints(1000)
        .thresholds(Thresholds::default());
    for end in ["rows", "meta", "snapshot", "manifest", "copy"] {
        let (disk, store) = simulated();
        store.close().unwrap();
        let store = Store::open_on(Io::of(disk.clone()), Path::new(ROOT), calm.clone()).unwrap();
        let store = checkpoint(&disk, store);
        let of = |p: &std::path::PathBuf| p.to_string_lossy().ends_with(end);
        let path = disk.paths().into_iter().find(of).unwrap();
        disk.corrupt(&path, 70, 1).unwrap();
        let when = |call: u64, _, _: &Path| call < 60;
        let (report, _) = look_during(&disk, store, true, when, checkpoint);
        let report = report.unwrap();
        let found = report.findings.iter().any(|f| f.path == path);
        assert!(found, "{end}: {:?}", report.findings);
    }
}
