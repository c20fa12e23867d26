//! What happens when a call fails?
//!
//! - Every call of some workloads fails, one per run, in half of all ways (the other half of the calls in the
//!   other ways; `HPS_SEED` says which), once or from then on: each error is clean, nothing is lost that a
//!   checkpoint holds, and what may go on goes on.
//! - Which call failed is asked of the disk, not of the engine's words: a store that saw a sync
//!   fail refuses writes, whatever its calls returned.
//! - A disk that stays broken stays so while the store is read, opened and inspected.
//! - A full disk: `tests/no_room.rs`.
//!
//! `HPS_FAULT_SEED` runs the mixed workload of this seed instead of those that together do
//! everything.

#![expect(
    clippy::unwrap_used,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/broken.rs"]
mod broken;
#[path = "common/crash.rs"]
#[expect(dead_code, reason = "the crash test uses the rest")]
mod common;
#[path = "common/hooked.rs"]
mod hooked;
#[path = "common/seed.rs"]
mod seed;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, OnceLock};

use broken::{End, run_with_fault};
use common::plans::{mixed, plan};
use common::verify::verify;
use common::{Op, ROOT, Run, key};
use hooked::{Hook, HookedDisk};
use hps::io::sim::{CrashMode, Fault, SimDisk};
use hps::*;
use nix::errno::Errno;

/// Weights of a narrow row.
const NARROW_DIM: usize = 256;

/// What a workload does, for choosing some that together do everything.
fn coverage(seed: u64) -> BTreeSet<String> {
    let plan = mixed(seed);
    let disk = SimDisk::new(seed);
    let made = Arc::new(std::sync::Mutex::new(Vec::new()));
    let hook: Hook = {
        let made = Arc::clone(&made);
        Arc::new(move |kind, path: &Path| {
            let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("");
            if kind == "create" {
                made.lock().unwrap().push(extension.to_owned());
            }
            None
        })
    };
    let mut run = Run::of(Arc::new(HookedDisk::new(disk, hook)), &plan);
    run.create().unwrap();
    let mut seen = BTreeSet::new();
    if plan.create.data_directories.len() > 1 {
        seen.insert(String::from("directories"));
    }
    let mut fresh = true;
    for op in &plan.ops {
        let before = run.store().stats();
        made.lock().unwrap().clear();
        run.step(op).unwrap();
        let name = format!("{op:?}");
        seen.insert(name.split('(').next().unwrap().to_owned());
        let now = run.store().stats();
        let is_new = matches!(op, Op::ReopenOther(_) | Op::Rollback(_));
        let begun = made.lock().unwrap().clone();
        let began = |extension: &str| begun.iter().any(|e| e == extension);
        let flushed = now.flushes > before.flushes && !is_new;
        let facts = [
            ("snapshot", began("snapshot")),
            (
                "roll",
                began("manifest") && !fresh && matches!(op, Op::Checkpoint(..)),
            ),
            (
                "compaction",
                now.compactions > before.compactions && !is_new,
            ),
            (
                "reopened",
                now.files_reopened > before.files_reopened && !is_new,
            ),
            (
                "eviction",
                flushed && !matches!(op, Op::Flush | Op::Checkpoint(..)),
            ),
        ];
        let true_ones = facts.into_iter().filter(|(_, is)| *is);
        seen.extend(true_ones.map(|(name, _)| name.to_owned()));
        fresh = is_new || fresh && !began("manifest");
    }
    seen
}

/// What the workloads with faults must do between them.
const WANTED: [&str; 18] = [
    "Checkpoint",
    "Compact",
    "CreateTable",
    "Export",
    "Forget",
    "Put",
    "Read",
    "Recommit",
    "Remove",
    "ReopenOther",
    "Rollback",
    "Rows",
    "compaction",
    "directories",
    "eviction",
    "snapshot",
    "reopened",
    "roll",
];

/// Few mixed workloads that together do everything, or the one that was asked for.
fn workloads() -> &'static (bool, Vec<u64>) {
    static CHOSEN: OnceLock<(bool, Vec<u64>)> = OnceLock::new();
    CHOSEN.get_or_init(|| match std::env::var("HPS_FAULT_SEED") {
        Ok(seed) => (true, vec![seed.parse().unwrap()]),
        Err(_) => (false, chosen()),
    })
}

/// Greedily the one that adds the most.
fn chosen() -> Vec<u64> {
    let all: Vec<(u64, BTreeSet<String>)> = (0..60).map(|seed| (seed, coverage(seed))).collect();
    let mut missing: BTreeSet<&str> = WANTED.into();
    let mut chosen = Vec::new();
    while !missing.is_empty() {
        let adds = |seen: &BTreeSet<String>| missing.iter().filter(|w| seen.contains(**w)).count();
        let (seed, seen) = all.iter().max_by_key(|(_, seen)| adds(seen)).unwrap();
        assert!(adds(seen) > 0, "no workload does {missing:?}");
        missing.retain(|wanted| !seen.contains(*wanted));
        chosen.push(*seed);
    }
    chosen
}

/// Each kind of fault: how it ends by the kind of call, and which ends it must have had.
fn check_ends(ends: &BTreeMap<(&str, End), u64>, fault: Fault, sticky: bool) {
    let had = |end: End| ends.keys().any(|(_, e)| *e == end);
    let must: &[End] = match fault {
        Fault::Short => &[End::Absorbed],
        Fault::Interrupted if !sticky => &[End::Absorbed, End::Poisoned, End::NotCreated],
        _ if sticky => &[
            End::Poisoned,
            End::Repeated,
            End::NotOpened,
            End::NotCreated,
        ],
        _ => &[
            End::Absorbed,
            End::Poisoned,
            End::Repeated,
            End::NotOpened,
            End::NotCreated,
        ],
    };
    for end in must {
        assert!(
            had(*end),
            "{fault:?}, sticky {sticky}: never {end:?}: {ends:?}"
        );
    }
    let short = fault == Fault::Short;
    for (kind, end) in ends.keys() {
        let fine = match end {
            End::NotHit => true,
            End::Absorbed => short || !["sync", "sync_dir"].contains(kind),
            _ => !short,
        };
        assert!(fine, "{fault:?}, sticky {sticky}: {kind} ended {end:?}");
    }
}

#[test]
fn whichever_call_fails_the_error_is_clean_and_the_last_checkpoint_is_kept() {
    let faults = [
        Fault::Error(Errno::EIO as i32),
        Fault::Error(Errno::ENOSPC as i32),
        Fault::Interrupted,
        Fault::Short,
    ];
    let (given, seeds) = workloads();
    println!("workloads {seeds:?}");
    // Each way with the calls that fail in it: every other one, beginning with the first or the second. A call that
    // EIO meets once, ENOSPC meets for good.
    let first = seed::fresh("fault") % 2;
    let kinds = faults
        .iter()
        .zip(first..)
        .flat_map(|(f, half)| [(*f, false, half), (*f, true, half + 1)]);
    let all = |(fault, sticky, half): (_, _, u64)| {
        let mut ends: BTreeMap<(&str, End), u64> = BTreeMap::new();
        for &seed in seeds {
            let plan = mixed(seed);
            // Those of a workload that was asked for all fail.
            let (first, step) = if *given { (0, 1) } else { (half % 2, 2) };
            for call in (first..).step_by(step) {
                let run = || run_with_fault(seed, &plan, call, fault, sticky);
                let end = catch_unwind(AssertUnwindSafe(run));
                let end = end.unwrap_or_else(|_| Err(String::from("panicked")));
                let (end, kind) = end.unwrap_or_else(|e| {
                    panic!("seed {seed}, call {call}, {fault:?}, sticky {sticky}: {e}")
                });
                *ends.entry((kind, end)).or_default() += 1;
                if end == End::NotHit {
                    break;
                }
            }
        }
        println!("{fault:?}, sticky {sticky}: {ends:?}");
        if !given {
            check_ends(&ends, fault, sticky);
        }
    };
    std::thread::scope(|scope| {
        let all = &all;
        kinds.for_each(|kind| drop(scope.spawn(move || all(kind))));
    });
}

/// The file system turns read-only in the middle, as ext4 does when it meets an error: every call
/// that changes something gives EROFS from there on. Writes get an error, reads go on as if nothing
/// were, a reader may open the store and a writer is told why he may not; nothing is lost.
#[test]
fn a_disk_that_turns_read_only_refuses_writes_and_is_read_on() {
    let (given, seeds) = workloads();
    let mut ends: BTreeMap<(&str, End), u64> = BTreeMap::new();
    for &seed in seeds {
        let (plan, disk) = (mixed(seed), SimDisk::new(seed));
        let mut run = Run::of(Arc::new(disk.clone()), &plan);
        run.create().unwrap();
        plan.ops.iter().for_each(|op| run.step(op).unwrap());
        for call in disk.changing_calls() {
            let end = run_with_fault(seed, &plan, call, Fault::ReadOnly, true);
            let (end, kind) = end.unwrap_or_else(|e| panic!("seed {seed}, call {call}: {e}"));
            *ends.entry((kind, end)).or_default() += 1;
        }
    }
    println!("read-only: {ends:?}");
    if !given {
        check_ends(&ends, Fault::ReadOnly, true);
    }
}

/// A read that brings other bytes than those asked for is an error, or does no harm: no row, meta
/// or key is shown that was not written there.
#[test]
fn a_read_that_brings_something_else_is_found_out() {
    let mut found = BTreeMap::new();
    // In neither an older CURRENT, which is as right as the last one, is among what a read may bring.
    for seed in [1, 5] {
        let disk = SimDisk::new(seed);
        let plan = mixed(seed);
        let mut run = Run::of(Arc::new(disk.clone()), &plan);
        run.create().unwrap();
        plan.ops.iter().for_each(|op| run.step(op).unwrap());
        run.store = None;
        let reads = |disk: &SimDisk| {
            let kinds = disk.kinds();
            let calls = kinds
                .iter()
                .enumerate()
                .filter(|(_, kind)| **kind == "read");
            calls.map(|(call, _)| call as u64).collect::<Vec<u64>>()
        };
        let clean = disk.killed(1);
        verify(&clean, &run.model, &run.options, true).unwrap();
        for call in reads(&clean) {
            for fault in [Fault::Misdirected, Fault::Stale] {
                let disk = disk.killed(call);
                disk.fail_at(call, fault, false);
                let shown = || verify(&disk, &run.model, &run.options, true);
                let shown = catch_unwind(AssertUnwindSafe(shown));
                let shown = shown.unwrap_or_else(|_| Err(String::from("a wrong row")));
                let told = match &shown {
                    Ok(()) => "harmless",
                    Err(e) if e.contains(": corrupt") => "corrupt",
                    Err(e) => panic!("seed {seed}, read {call}, {fault:?}: {e}"),
                };
                *found.entry((format!("{fault:?}"), told)).or_insert(0) += 1;
            }
        }
    }
    println!("{found:?}");
    for fault in ["Misdirected", "Stale"] {
        let corrupt = found.get(&(fault.to_owned(), "corrupt"));
        assert!(corrupt.is_some_and(|n| *n > 20), "{found:?}");
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
    let mut run = Run::of(Arc::new(hooked), &plan);
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
    plan.create.data_directories = vec![];
    plan.options.retain_checkpoints = 1;
    let mut run = Run::of(Arc::new(hooked), &plan);
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
        let compaction = compaction
            .spawn_scoped(scope, || store.compact_fully())
            .unwrap();
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
