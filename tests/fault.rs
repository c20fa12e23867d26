//! What happens when a call fails?
//!
//! - Every call of some workloads fails, one per run, in every way, once or from then on: each
//!   error is clean, nothing is lost that a checkpoint holds, and what may go on goes on.
//! - Which call failed is asked of the disk, not of the engine's words: a store that saw a sync
//!   fail refuses writes, whatever its calls returned.
//! - A disk that stays broken stays so while the store is read, opened and inspected.
//! - A full disk: `tests/no_room.rs`.
//!
//! `HPS_FAULT_SEED` runs the mixed workload of this seed instead of those that together do
//! everything.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/crash.rs"]
#[expect(dead_code, reason = "the crash test uses the rest")]
mod common;
#[path = "common/hooked.rs"]
mod hooked;

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};

use common::plans::{Plan, mixed, plan};
use common::verify::{Verdict, compare_rows, verify};
use common::{KEYS, Op, ROOT, Run, descriptor, key, same};
use hooked::{Hook, HookedDisk};
use hps::io::Io;
use hps::io::sim::{CrashMode, Failure, Fault, Remnants, SimDisk};
use hps::*;
use nix::errno::Errno;

/// How a run with a fault ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    /// The fault came after the last call.
    NotHit,
    /// No call of the API failed, and nothing was refused.
    Absorbed,
    /// Some calls failed, and worked when they were repeated.
    Repeated,
    /// The store refused writes until it was opened again.
    Poisoned,
    /// The store was being opened or rolled back; it opens later.
    NotOpened,
    /// The store could not be created.
    NotCreated,
}

/// Whether failures leave the durable state unknown. An interrupted rename is made again, a
/// bounded number of times.
fn are_unknown(failures: &[Failure]) -> bool {
    let interrupted = |f: &&Failure| f.kind == "rename" && f.errno == Errno::EINTR as i32;
    let of = |f: &Failure| match f.kind {
        "sync" | "sync_dir" => true,
        "rename" => f.errno != Errno::EINTR as i32,
        _ => false,
    };
    failures.iter().any(of) || failures.iter().filter(interrupted).count() > 50
}

/// An error that a failing device may cause; no room only where the disk said so.
fn is_clean(error: &Error, failures: &[Failure]) -> Verdict {
    let full = |errno: i32| errno == Errno::ENOSPC as i32 || errno == Errno::EDQUOT as i32;
    let told = failures.iter().any(|f| full(f.errno));
    match error {
        Error::Io {
            operation, source, ..
        } if source.kind() == ErrorKind::StorageFull && ["create", "write"].contains(operation) => {
            Err(format!("no room, told as {error:?}"))
        }
        Error::NoSpace { .. } if !told => Err(format!("{error}, and {failures:?}")),
        Error::Io { .. } | Error::NoSpace { .. } | Error::Poisoned { .. } => Ok(()),
        other => Err(format!("an unexpected kind of error: {other}")),
    }
}

/// Known keys are known, and rows have the model's values. On a disk that is still broken rows may
/// be refused that are not in memory; else only those that need room that can't be made.
fn reads_go_on(run: &Run, broken: bool) -> Verdict {
    let (store, model) = (run.store(), &run.model);
    let (mut read, resident) = (0, store.stats().resident_rows);
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
                Ok(_) if same(&out, &model.row(table, key)[..dim]) => read += 1,
                Ok(_) => return Err(format!("table {table}: row {key:#x} has another value")),
                Err(Error::Poisoned { .. }) => {}
                Err(Error::Io { .. } | Error::NoSpace { .. }) if broken => {}
                Err(e) => return Err(format!("table {table}: row {key:#x}: {e}")),
            }
        }
    }
    if read == 0 && resident > 0 {
        return Err(format!("{resident} rows in memory, and none is read"));
    }
    let (Some(last), Some(saved)) = (store.last_checkpoint(), model.durable.saved.last()) else {
        return Ok(());
    };
    match compare_rows(store, &last, saved) {
        Err(e) if !broken => Err(format!("rows of a checkpoint: {e}")),
        Err(Error::Io { .. }) | Ok(()) => Ok(()),
        Err(e) => Err(format!("rows of a checkpoint: {e}")),
    }
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

/// What is on the disk, found by opening it and after a power cut. The disk works again.
fn verify_everywhere(disk: &SimDisk, run: &Run) -> Verdict {
    // A checkpoint whose lock could not be had is kept for its reader.
    let exact = disk.failures().iter().all(|f| f.kind != "lock");
    let mode = [CrashMode::KeepNone, CrashMode::Random][disk.calls() as usize % 2];
    let left = disk.crash(disk.calls(), mode);
    verify(&left, &run.model, &run.options, exact).map_err(|e| format!("{mode:?}: {e}"))?;
    verify(disk, &run.model, &run.options, exact).map_err(|e| format!("opened again: {e}"))
}

/// Opening what is on a disk that is still broken: a clean error, or the store as it was.
fn opens_or_says_why(disk: &SimDisk, run: &Run) -> Verdict {
    for read_only in [true, false] {
        let before = disk.failures().len();
        let shared = Io::of(disk.clone());
        let (root, options) = (&run.model.root, run.options.clone());
        let opened = match read_only {
            true => Store::open_read_only_on(shared, root, None, options),
            false => Store::open_on(shared, root, options),
        };
        let Err(error) = opened.map(drop) else {
            continue;
        };
        match &error {
            // There is no checkpoint yet, or half a store.
            Error::InvalidArgument(_) if run.model.durable.saved.is_empty() => {}
            _ => is_clean(&error, &disk.failures()[before..])
                .map_err(|e| format!("opening it as it is (read-only: {read_only}): {e}"))?,
        }
    }
    Ok(())
}

fn not_created(disk: &SimDisk, run: &Run) -> Verdict {
    opens_or_says_why(disk, run)?;
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

/// A workload on a disk with a fault.
struct Broken {
    disk: SimDisk,
    run: Run,
    sticky: bool,
}

impl Broken {
    /// Does one operation; what failed below it is told by the disk. `None`: the workload goes on.
    fn step(&mut self, op: &Op) -> std::result::Result<Option<End>, String> {
        let before = self.disk.failures().len();
        let result = self.run.step(op);
        let failures = self.disk.failures().split_off(before);
        // What an export does to its target says nothing of the store.
        let unknown = are_unknown(&failures) && !matches!(op, Op::Export);
        let Err(error) = result else {
            if unknown && self.run.store.is_some() {
                return self.is_poisoned().map(Some);
            }
            return Ok(None);
        };
        let at = |e: String| format!("{op}: after {error} ({failures:?}): {e}");
        is_clean(&error, &failures).map_err(at)?;
        if self.run.store.is_none() {
            // A rollback or an opening failed: the store is opened at what there is.
            opens_or_says_why(&self.disk, &self.run).map_err(at)?;
            self.disk.clear_faults();
            verify_everywhere(&self.disk, &self.run).map_err(at)?;
            return Ok(Some(End::NotOpened));
        }
        if unknown || matches!(error, Error::Poisoned { .. }) {
            return self.is_poisoned().map(Some).map_err(at);
        }
        reads_go_on(&self.run, self.sticky).map_err(at)?;
        self.disk.clear_faults();
        self.run.model.doubt = None;
        self.run.step(op).map_err(|e| at(format!("again: {e}")))?;
        Ok(Some(End::Repeated))
    }

    /// The store refuses writes, is read on, and opens at its last checkpoint once the disk works.
    fn is_poisoned(&mut self) -> std::result::Result<End, String> {
        writes_are_refused(self.run.store())?;
        reads_go_on(&self.run, self.sticky)?;
        drop(self.run.store.take());
        opens_or_says_why(&self.disk, &self.run)?;
        self.disk.clear_faults();
        verify_everywhere(&self.disk, &self.run)?;
        Ok(End::Poisoned)
    }
}

/// One workload in which call number `call` fails; also the kind of that call.
fn run_with_fault(
    seed: u64,
    plan: &Plan,
    call: u64,
    fault: Fault,
    sticky: bool,
) -> std::result::Result<(End, &'static str), String> {
    let disk = SimDisk::new(seed);
    disk.set_remnants([Remnants::Zeros, Remnants::Junk][call as usize % 2]);
    disk.fail_at(call, fault, sticky);
    let run = Run::new(Arc::new(disk.clone()), &plan.options);
    let mut broken = Broken { disk, run, sticky };
    let kind = |disk: &SimDisk| disk.kinds().get(call as usize).copied().unwrap_or("");
    if broken.run.create().is_err() {
        let kind = kind(&broken.disk);
        drop(broken.run.store.take());
        return not_created(&broken.disk, &broken.run).map(|()| (End::NotCreated, kind));
    }
    let mut end = End::Absorbed;
    for op in &plan.ops {
        match broken.step(op)? {
            Some(End::Repeated) => end = End::Repeated,
            Some(other) => return Ok((other, kind(&broken.disk))),
            None => {}
        }
    }
    let Broken { disk, mut run, .. } = broken;
    let kind = kind(&disk);
    disk.clear_faults();
    drop(run.store.take());
    if kind.is_empty() {
        return Ok((End::NotHit, kind));
    }
    // A call that changes nothing leaves what it would have left anyway.
    let reads = ["open", "list", "read", "bytes", "space"].contains(&kind);
    if end != End::Absorbed || !reads || call.is_multiple_of(16) {
        verify_everywhere(&disk, &run)?;
    }
    Ok((end, kind))
}

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
    let mut run = Run::new(Arc::new(HookedDisk::new(disk, hook)), &plan.options);
    run.create().unwrap();
    let mut seen = BTreeSet::new();
    if plan.options.data_directories.len() > 1 {
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
            ("image", began("image")),
            (
                "roll",
                began("manifest") && !fresh && matches!(op, Op::Checkpoint(..)),
            ),
            (
                "compaction",
                now.compactions > before.compactions && !is_new,
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
const WANTED: [&str; 16] = [
    "Checkpoint",
    "Compact",
    "CreateTable",
    "Export",
    "Forget",
    "Read",
    "Recommit",
    "Remove",
    "ReopenOther",
    "Rollback",
    "Rows",
    "compaction",
    "directories",
    "eviction",
    "image",
    "roll",
];

/// Few mixed workloads that together do everything: greedily the one that adds the most.
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
    let given = std::env::var("HPS_FAULT_SEED").ok();
    let given = given.map(|seed| vec![seed.parse().unwrap()]);
    let seeds = given.clone().unwrap_or_else(chosen);
    println!("workloads {seeds:?}");
    let kinds = faults.iter().flat_map(|f| [(*f, false), (*f, true)]);
    let all = |(fault, sticky)| {
        let mut ends: BTreeMap<(&str, End), u64> = BTreeMap::new();
        for &seed in &seeds {
            let plan = mixed(seed);
            for call in 0.. {
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
        if given.is_none() {
            check_ends(&ends, fault, sticky);
        }
    };
    std::thread::scope(|scope| {
        let all = &all;
        kinds.for_each(|kind| drop(scope.spawn(move || all(kind))));
    });
}

/// A read that brings other bytes than those asked for is an error, or does no harm: no row, meta
/// or key is shown that was not written there.
#[test]
fn a_read_that_brings_something_else_is_found_out() {
    let mut found = BTreeMap::new();
    for seed in [1, 2] {
        let disk = SimDisk::new(seed);
        let plan = mixed(seed);
        let mut run = Run::new(Arc::new(disk.clone()), &plan.options);
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
