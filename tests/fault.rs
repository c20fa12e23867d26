//! What happens when a call fails or a disk is full?
//!
//! - Every call of some workloads fails, one per run, in every way, once or from then on: each
//!   error is clean, nothing is lost that a checkpoint holds, and what may go on goes on.
//! - A full disk has its own error, and is no harm once there is room.
//!
//! `HPS_FAULT_SEED` runs the workload of this seed instead of three fixed ones.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/crash.rs"]
#[expect(dead_code, reason = "the crash test uses the rest")]
mod common;
#[path = "common/hooked.rs"]
mod hooked;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};

use common::verify::{Verdict, verify};
use common::{KEYS, Op, Plan, ROOT, Run, descriptor, key, plan, same};
use hooked::{Hook, HookedDisk};
use hps::io::Io;
use hps::io::sim::{CrashMode, Fault, SimDisk};
use hps::*;
use nix::errno::Errno;

/// How a run with a fault ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    /// The fault came after the last call.
    NotHit,
    /// No call of the API failed.
    Absorbed,
    /// Some calls failed, and worked when they were repeated.
    Repeated,
    /// The store refused writes until it was opened again.
    Poisoned,
    /// The store could not be created.
    NotCreated,
}

/// Errors that a failing device may cause, and whether the store must refuse writes afterwards.
fn is_fatal(error: &Error) -> std::result::Result<bool, String> {
    match error {
        Error::Io {
            operation, source, ..
        } if source.kind() == ErrorKind::StorageFull && ["create", "write"].contains(operation) => {
            Err(format!("no room, told as {error:?}"))
        }
        Error::Io { operation, .. } => Ok(operation.starts_with("sync") || *operation == "rename"),
        Error::NoSpace { .. } => Ok(false),
        Error::Poisoned { .. } => Ok(true),
        other => Err(format!("an unexpected kind of error: {other}")),
    }
}

/// Known keys are known, and rows have the model's values; rows that need room that can't be made
/// may be refused.
fn reads_go_on(run: &Run) -> Verdict {
    let (store, model) = (run.store(), &run.model);
    for (table, count) in KEYS.into_iter().enumerate().take(model.tables) {
        let (id, dim) = (
            TableId(u32::try_from(table).unwrap()),
            descriptor(table).dim,
        );
        for key in (0..count).map(key) {
            let known = store.contains(id, &[key]).map_err(|e| e.to_string())?;
            if known != [model.rows.contains_key(&(table, key))] {
                return Err(format!("table {table}: contains({key:#x}) is {known:?}"));
            }
            let mut out = vec![0.0; dim];
            match store.pull(id, &[key], &mut out) {
                Ok(_) if same(&out, &model.row(table, key)[..dim]) => {}
                Ok(_) => return Err(format!("table {table}: row {key:#x} has another value")),
                Err(Error::Poisoned { .. }) => {}
                Err(e) => return Err(format!("table {table}: row {key:#x}: {e}")),
            }
        }
    }
    if let Some(last) = store.last_checkpoint() {
        let mut rows = store.rows(last.id).map_err(|e| e.to_string())?;
        while rows
            .next_row()
            .map_err(|e| format!("rows of a checkpoint: {e}"))?
            .is_some()
        {}
    }
    Ok(())
}

fn writes_are_refused(store: &Store) -> Verdict {
    let poisoned = |result: Result<()>| match result {
        Err(Error::Poisoned { .. }) => Ok(()),
        other => Err(format!("not refused after a failed sync: {other:?}")),
    };
    poisoned(store.checkpoint(1 << 40, &[]).map(drop))?;
    poisoned(store.remove(TableId(0), &[key(1)]).map(drop))?;
    poisoned(store.flush().map(drop))?;
    poisoned(store.compact().map(drop))
}

/// What is on the disk, found by opening it and after a power cut.
fn verify_everywhere(disk: &SimDisk, run: &Run) -> Verdict {
    let mode = [CrashMode::KeepNone, CrashMode::Random][disk.calls() as usize % 2];
    let left = disk.crash(disk.calls(), mode);
    verify(&left, &run.model, &run.options, false).map_err(|e| format!("{mode:?}: {e}"))?;
    verify(disk, &run.model, &run.options, false).map_err(|e| format!("opened again: {e}"))
}

fn not_created(disk: &SimDisk, run: &Run) -> Verdict {
    disk.clear_faults();
    let shared = Io::of(disk.clone());
    match Store::open_on(shared.clone(), Path::new(ROOT), run.options.clone()) {
        Ok(store) => store.close().map_err(|e| e.to_string()),
        Err(Error::InvalidArgument(Invalid::NotAStore { .. })) => {
            let mut again = Run::new(shared, &run.options);
            again.model.root = PathBuf::from("/fresh");
            again.create().map_err(|e| format!("creating again: {e}"))
        }
        Err(e) => Err(format!("half created: {e}")),
    }
}

/// One workload in which call number `call` fails.
fn run_with_fault(
    seed: u64,
    plan: &Plan,
    call: u64,
    fault: Fault,
    sticky: bool,
) -> std::result::Result<End, String> {
    let disk = SimDisk::new(seed);
    disk.fail_at(call, fault, sticky);
    let mut run = Run::new(Arc::new(disk.clone()), &plan.options);
    if run.create().is_err() {
        drop(run.store.take());
        return not_created(&disk, &run).map(|()| End::NotCreated);
    }
    let mut end = End::Absorbed;
    for op in &plan.ops {
        let Err(error) = run.step(op) else { continue };
        let at = |e: String| format!("{op}: after {error}: {e}");
        let fatal = is_fatal(&error).map_err(at)?;
        disk.clear_faults();
        if run.store.is_none() {
            // A rollback or an opening failed: the store is opened at what there is.
            verify_everywhere(&disk, &run).map_err(at)?;
            return Ok(End::Repeated);
        }
        reads_go_on(&run).map_err(at)?;
        if fatal {
            writes_are_refused(run.store()).map_err(at)?;
            drop(run.store.take());
            verify_everywhere(&disk, &run).map_err(at)?;
            return Ok(End::Poisoned);
        }
        run.model.doubt = None;
        run.step(op).map_err(|e| at(format!("again: {e}")))?;
        end = End::Repeated;
    }
    disk.clear_faults();
    let calls = disk.calls();
    drop(run.store.take());
    if end == End::Absorbed && !call.is_multiple_of(16) {
        return Ok(if calls <= call { End::NotHit } else { end });
    }
    verify_everywhere(&disk, &run)?;
    Ok(if calls <= call { End::NotHit } else { end })
}

#[test]
fn whichever_call_fails_the_error_is_clean_and_the_last_checkpoint_is_kept() {
    let faults = [
        Fault::Error(Errno::EIO as i32),
        Fault::Error(Errno::ENOSPC as i32),
        Fault::Interrupted,
        Fault::Short,
    ];
    let given = std::env::var("HPS_FAULT_SEED").ok();
    let given = given.map(|seed| vec![seed.parse().unwrap()]);
    for seed in given.unwrap_or(vec![3, 0, 5]) {
        let plan = plan(seed);
        for (fault, sticky) in faults.iter().flat_map(|f| [(*f, false), (*f, true)]) {
            let mut ends: BTreeMap<End, u64> = BTreeMap::new();
            for call in 0.. {
                let run = || run_with_fault(seed, &plan, call, fault, sticky);
                let end = catch_unwind(AssertUnwindSafe(run));
                let end = end.unwrap_or_else(|_| Err(String::from("panicked")));
                let end = end.unwrap_or_else(|e| {
                    panic!("seed {seed}, call {call}, {fault:?}, sticky {sticky}: {e}")
                });
                *ends.entry(end).or_default() += 1;
                if end == End::NotHit {
                    break;
                }
            }
            println!("seed {seed}, {fault:?}, sticky {sticky}: {ends:?}");
        }
    }
}

/// The first checkpoint after an opening starts a new manifest. Removing what was left of
/// CURRENT.tmp failed then, between the new manifest's sync and the new CURRENT: the engine kept
/// the new manifest's handle with the old one's number, so that the next checkpoint appended to
/// the one and committed the other, and the store never opened again.
#[test]
fn a_checkpoint_that_could_not_replace_current_does_not_mix_up_manifests() {
    let disk = SimDisk::new(1);
    let failing = Arc::new(AtomicBool::new(false));
    let hook: Hook = {
        let failing = Arc::clone(&failing);
        Arc::new(move |call, path| {
            let temporary = call == "remove" && path.ends_with("CURRENT.tmp");
            let fails = temporary && failing.load(Ordering::Relaxed);
            fails.then(|| Err(Errno::EIO.into()))
        })
    };
    let hooked = HookedDisk::new(disk.clone(), hook);
    let plan = plan(3);
    let mut run = Run::new(Arc::new(hooked), &plan.options);
    run.create().unwrap();
    run.step(&rows(0..4, 1.0)).unwrap();
    failing.store(true, Ordering::Relaxed);
    let error = run.step(&Op::Checkpoint(1, vec![])).unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error}");
    failing.store(false, Ordering::Relaxed);
    run.step(&Op::Checkpoint(1, vec![])).unwrap();
    run.step(&rows(2..6, 2.0)).unwrap();
    run.step(&Op::Checkpoint(2, vec![])).unwrap();
    run.store = None;
    verify(&disk, &run.model, &run.options, true).unwrap();
}

/// The rename of CURRENT was done and the sync of its directory failed, while a compaction was
/// under way. The checkpoint was given up, so that the compaction unlinked its inputs at its end;
/// but CURRENT named that checkpoint, and it needed them: the store never opened again.
#[test]
fn a_checkpoint_of_unknown_outcome_keeps_its_files() {
    let disk = SimDisk::new(1);
    // Set when the compaction is at its output, and when it may go on.
    let (arrived, resumed) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let renamed = AtomicBool::new(false);
    let armed = Arc::new(AtomicBool::new(false));
    let hook: Hook = {
        let (arrived, resumed, armed) = (arrived.clone(), resumed.clone(), armed.clone());
        Arc::new(move |call, path| {
            if !armed.load(Ordering::Relaxed) {
                return None;
            }
            let compaction = std::thread::current().name() == Some("compaction");
            if compaction && call == "create" {
                arrived.wait();
                resumed.wait();
            }
            if call == "rename" {
                renamed.store(true, Ordering::Relaxed);
            }
            let lost = call == "sync_dir" && path == Path::new(ROOT);
            (lost && renamed.load(Ordering::Relaxed)).then(|| Err(Errno::EIO.into()))
        })
    };
    let hooked = HookedDisk::new(disk.clone(), hook);
    let mut plan = plan(3);
    plan.options.inline = false; // A checkpoint does not wait for the compaction.
    plan.options.data_directories = vec![];
    plan.options.retain_checkpoints = 1;
    let mut run = Run::new(Arc::new(hooked), &plan.options);
    run.create().unwrap();
    run.step(&rows(0..8, 1.0)).unwrap();
    run.step(&Op::Checkpoint(1, vec![])).unwrap();
    // Files that checkpoint 1 does not need, with stale rows in them.
    run.step(&rows(0..8, 2.0)).unwrap();
    run.step(&Op::Flush).unwrap();
    run.step(&rows(4..8, 3.0)).unwrap();
    run.step(&Op::Flush).unwrap();
    armed.store(true, Ordering::Relaxed);
    std::thread::scope(|scope| {
        let store = run.store();
        let compaction = std::thread::Builder::new().name("compaction".to_owned());
        let compaction = compaction.spawn_scoped(scope, || store.compact()).unwrap();
        arrived.wait();
        let error = store.checkpoint(2, b"unknown").unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{error}");
        armed.store(false, Ordering::Relaxed);
        resumed.wait();
        drop(compaction.join().unwrap());
    });
    let after = run.model.after_checkpoint(2, b"unknown", 1);
    run.model.doubt = Some(after);
    run.store = None;
    for mode in [CrashMode::KeepNone, CrashMode::KeepAll] {
        let left = disk.crash(1, mode);
        verify(&left, &run.model, &run.options, true).unwrap_or_else(|e| panic!("{mode:?}: {e}"));
    }
    verify(&disk, &run.model, &run.options, true).unwrap();
}

fn rows(keys: std::ops::Range<u64>, value: f32) -> Op {
    Op::Rows(0, keys.map(key).collect(), value)
}

#[test]
fn a_full_disk_refuses_writes_and_takes_them_once_there_is_room() {
    // Room is measured before a file is made; a disk that fills up meanwhile says so at a write.
    let plan = plan(3);
    let mut refused = 0;
    for room in (0..160 << 10).step_by(4 << 10) {
        let disk = SimDisk::new(1);
        let mut run = Run::new(Arc::new(disk.clone()), &plan.options);
        run.create().unwrap();
        run.step(&rows(0..20, 1.0)).unwrap();
        run.step(&Op::Checkpoint(1, vec![])).unwrap();
        let paths = disk.paths();
        let bytes = paths
            .iter()
            .map(|p| disk.read_file(p).unwrap().len() as u64);
        disk.set_capacity(bytes.sum::<u64>() + room);
        for op in [
            rows(10..44, 2.0),
            Op::Flush,
            Op::Checkpoint(2, vec![3; 5000]),
        ] {
            let Err(error) = run.step(&op) else { continue };
            assert!(
                matches!(error, Error::NoSpace { .. }),
                "{room} bytes, {op}: {error}"
            );
            refused += 1;
            run.model.doubt = None;
            reads_or_no_space(&run);
            disk.set_capacity(1 << 40);
            run.step(&op)
                .unwrap_or_else(|e| panic!("{room} bytes, {op}, again: {e}"));
            break;
        }
        disk.set_capacity(1 << 40);
        run.step(&Op::Checkpoint(9, vec![])).unwrap();
        run.store = None;
        verify(&disk, &run.model, &run.options, true).unwrap();
    }
    assert!(refused > 10, "only {refused} of 40 disks were full");
}

/// Every row can be read, unless room in memory needs room on the disk.
fn reads_or_no_space(run: &Run) {
    let mut out = vec![0.0; descriptor(0).dim];
    let mut read = 0;
    for key in (0..KEYS[0]).map(key) {
        match run.store().pull(TableId(0), &[key], &mut out) {
            Ok(_) => {
                assert!(same(&out, &run.model.row(0, key)[..out.len()]));
                read += 1;
            }
            Err(Error::NoSpace { .. }) => {}
            Err(e) => panic!("{key:#x}: {e}"),
        }
    }
    assert!(read > 0, "no row can be read");
}
