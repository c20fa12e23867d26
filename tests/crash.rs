//! Does a store reopen at its last checkpoint, and no other, wherever the power goes?
//!
//! Before every call of a workload that changes what a crash could leave, several remains of the
//! disk are taken; each one that was not seen before is opened and compared with the oracle.
//! `HPS_CRASH_WORKLOADS` sets how many workloads, `HPS_CRASH_SEED` runs only one; both: so many, from
//! that one on.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/crash.rs"]
mod common;
#[path = "common/hooked.rs"]
mod hooked;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use common::verify::{Verdict, numbered, verify, verify_and_go_on};
use common::{History, Model, Op, Plan, ROOT, Random, Run, key, plan};

use hooked::{Hook, HookedDisk};
use hps::io::Io;
use hps::io::sim::{CrashMode, SimDisk};
use hps::*;

/// What a workload did, as far as this test asks for it.
#[derive(Debug, Default)]
struct Tally {
    flushes: u64,
    checkpoints: u64,
    compactions: u64,
    removes: u64,
    /// Row files that were made, and of these, unlinked.
    made: BTreeSet<PathBuf>,
    unlinked: usize,
    /// Calls at which it was cut off, remains of them, and those opened: each that is new.
    calls: u64,
    remains: u64,
    opened: u64,
}

impl Tally {
    fn add(&mut self, stats: &Stats) {
        self.flushes += stats.flushes;
        self.compactions += stats.compactions;
    }
}

/// What a crash left.
struct Remains {
    call: u64,
    mode: CrashMode,
    survivor: u64,
    disk: SimDisk,
}

/// The files of some remains; equal ones need be opened once.
type Files = Vec<(PathBuf, Vec<u8>)>;

/// A workload being run and cut off everywhere.
struct Trial {
    seed: u64,
    disk: SimDisk,
    remains: Arc<Mutex<Vec<Remains>>>,
    run: Run,
    tally: Tally,
    seen: Vec<Files>,
}

fn remains_of(disk: &SimDisk, seed: u64, call: u64) -> Vec<Remains> {
    let random = seed << 20 | call << 3;
    let modes = [(0, CrashMode::KeepNone), (0, CrashMode::KeepAll)].into_iter();
    let modes = modes.chain((random..random + 6).map(|survivor| (survivor, CrashMode::Random)));
    let take = |(survivor, mode)| Remains {
        call,
        mode,
        survivor,
        disk: disk.crash(survivor, mode),
    };
    modes.map(take).collect()
}

impl Trial {
    /// On a disk that tells the truth, except where `lie` answers instead.
    fn new(seed: u64, plan: &Plan, lie: Option<Hook>) -> Trial {
        let disk = SimDisk::new(seed);
        let remains = Arc::new(Mutex::new(Vec::new()));
        let hook: Hook = {
            let (disk, remains) = (disk.clone(), Arc::clone(&remains));
            let call = Mutex::new(0);
            Arc::new(move |kind, path: &Path| {
                let mut call = call.lock().unwrap();
                remains
                    .lock()
                    .unwrap()
                    .extend(remains_of(&disk, seed, *call));
                *call += 1;
                lie.as_ref().and_then(|lie| lie(kind, path))
            })
        };
        let shared = Io::of(HookedDisk::new(disk.clone(), hook));
        let run = Run::new(shared, &plan.options);
        let (tally, seen) = (Tally::default(), Vec::new());
        Trial {
            seed,
            disk,
            remains,
            run,
            tally,
            seen,
        }
    }

    /// Does a piece of the work and looks at every crash in it.
    fn step(&mut self, what: &str, work: impl FnOnce(&mut Run) -> Result<()>) -> Verdict {
        let mut before = self.run.model.clone();
        let options = self.run.options.clone();
        let done = catch_unwind(AssertUnwindSafe(|| work(&mut self.run)));
        let seed = self.seed;
        let told = |e: &str| format!("seed {seed}, {what}: {e}");
        done.map_err(|_| told("panicked"))?
            .map_err(|e| told(&e.to_string()))?;
        let doubt = &self.run.model.durable;
        let steps = |h: &History| h.saved.iter().map(|s| s.step).collect::<Vec<_>>();
        let changed =
            steps(doubt) != steps(&before.durable) || doubt.tables != before.durable.tables;
        if changed {
            self.seen.clear();
            before.doubt = Some(doubt.clone());
        }
        let remains = std::mem::take(&mut *self.remains.lock().unwrap());
        for remains in remains {
            self.look(&remains, &before, &options).map_err(|e| {
                let Remains {
                    call,
                    mode,
                    survivor,
                    ..
                } = remains;
                told(&format!("call {call}, {mode:?} {survivor}: {e}"))
            })?;
        }
        if changed {
            self.seen.clear();
        }
        Ok(())
    }

    fn look(&mut self, remains: &Remains, model: &Model, options: &RuntimeOptions) -> Verdict {
        let disk = &remains.disk;
        let read = |p: PathBuf| disk.read_file(&p).map(|bytes| (p, bytes)).unwrap();
        let files: Files = disk.paths().into_iter().map(read).collect();
        self.tally.remains += 1;
        self.tally.calls = remains.call;
        if self.seen.contains(&files) {
            return Ok(());
        }
        self.seen.push(files);
        self.tally.opened += 1;
        let go_on = self.tally.opened.is_multiple_of(3);
        let verdict = catch_unwind(AssertUnwindSafe(|| match (model.created, go_on) {
            (false, _) => verify_half_created(disk, model, options),
            (true, false) => verify(disk, model, options, true),
            (true, true) => verify_and_go_on(disk, model, options, true),
        }));
        verdict.unwrap_or_else(|_| Err(String::from("panicked")))
    }
}

/// Before `create` returned there is no store, or an empty one.
fn verify_half_created(disk: &SimDisk, model: &Model, options: &RuntimeOptions) -> Verdict {
    match Store::open_on(Arc::new(disk.clone()), Path::new(ROOT), options.clone()) {
        Ok(store) => {
            drop(store);
            return verify_and_go_on(disk, model, options, true);
        }
        Err(Error::InvalidArgument(Invalid::NotAStore { .. })) => {}
        Err(e) => return Err(format!("half created: {e}")),
    }
    let mut again = Run::new(Arc::new(disk.clone()), options);
    again.model.root = PathBuf::from("/fresh");
    again.create().map_err(|e| format!("creating again: {e}"))?;
    drop(again.store.take());
    verify(disk, &again.model, options, true).map_err(|e| format!("created again: {e}"))
}

/// A whole workload, cut off at every call.
fn crash_everywhere(
    seed: u64,
    plan: &Plan,
    lie: Option<Hook>,
) -> std::result::Result<Tally, String> {
    let honest = lie.is_none();
    Trial::new(seed, plan, lie).whole(plan, honest)
}

impl Trial {
    fn whole(mut self, plan: &Plan, honest: bool) -> std::result::Result<Tally, String> {
        let trial = &mut self;
        let seed = trial.seed;
        trial.step("create", Run::create)?;
        for op in &plan.ops {
            let stats = trial.run.store().stats();
            trial.step(&op.to_string(), |run| run.step(op))?;
            let tally = &mut trial.tally;
            tally.made.extend(
                numbered(&trial.disk, Path::new(ROOT))
                    .into_iter()
                    .filter(is_rows),
            );
            match op {
                Op::Checkpoint(..) => tally.checkpoints += 1,
                Op::Remove(..) => tally.removes += 1,
                Op::Reopen(_) | Op::Rollback(_) => tally.add(&stats),
                _ => {}
            }
            if honest && matches!(op, Op::Checkpoint(..)) {
                counters_are_exact(seed, &trial.disk, &trial.run);
            }
        }
        let stats = trial.run.store().stats();
        let after = remains_of(&trial.disk, seed, trial.tally.calls + 1);
        trial.remains.lock().unwrap().extend(after);
        trial.step("the end", |_| Ok(()))?;
        let mut tally = std::mem::take(&mut trial.tally);
        tally.add(&stats);
        let left: BTreeSet<PathBuf> = trial.disk.paths().into_iter().collect();
        tally.unlinked = tally.made.difference(&left).count();
        let calls = trial.disk.changing_calls().len() as u64;
        assert!(
            !honest || tally.calls == calls,
            "{calls} calls, {} seen",
            tally.calls
        );
        Ok(tally)
    }
}

#[expect(clippy::ptr_arg, reason = "a predicate over paths")]
fn is_rows(path: &PathBuf) -> bool {
    path.extension().is_some_and(|e| e == "rows")
}

/// The counters of the store are those of a store opened on what is durable.
fn counters_are_exact(seed: u64, disk: &SimDisk, run: &Run) {
    let left = Arc::new(disk.crash(seed, CrashMode::KeepNone));
    let recounted = Store::open_on(left, Path::new(ROOT), run.options.clone()).unwrap();
    let counters = |stats: Stats| {
        let Stats {
            index_keys,
            files,
            current_bytes,
            live_bytes,
            pinned_bytes,
            ..
        } = stats;
        (index_keys, files, current_bytes, live_bytes, pinned_bytes)
    };
    let (kept, found) = (counters(run.store().stats()), counters(recounted.stats()));
    assert_eq!(
        kept, found,
        "seed {seed}: (keys, files, current, live, pinned bytes)"
    );
}

fn environment(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name}={value} is not a number")),
    )
}

#[test]
fn a_crash_at_every_call_reopens_the_last_checkpoint_and_no_other() {
    let (given, count) = (
        environment("HPS_CRASH_SEED"),
        environment("HPS_CRASH_WORKLOADS"),
    );
    let first = given.unwrap_or(0);
    let seeds = first..first + count.unwrap_or(if given.is_some() { 1 } else { 50 });
    let next = AtomicU64::new(seeds.start);
    let take = || {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        (seed < seeds.end).then(|| {
            let plan = plan(seed);
            match crash_everywhere(seed, &plan, None) {
                Ok(tally) => (seed, plan.compacting, tally),
                Err(violation) => panic!("{violation}\nreplay with HPS_CRASH_SEED={seed}"),
            }
        })
    };
    let tallies: Vec<_> = std::thread::scope(|scope| {
        let work = || std::iter::from_fn(take).collect::<Vec<_>>();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let joined = running.into_iter().map(|thread| thread.join());
        let joined = joined.map(|done| done.unwrap_or_else(|panic| resume_unwind(panic)));
        joined.flatten().collect()
    });
    let (mut compacting, mut calls, mut remains, mut opened) = (0, 0, 0, 0);
    for (seed, compacts, tally) in tallies {
        assert!(
            tally.flushes >= 1,
            "seed {seed}: no eviction flush: {tally:?}"
        );
        assert!(tally.checkpoints >= 2, "seed {seed}: {tally:?}");
        assert!(tally.removes >= 1, "seed {seed}: {tally:?}");
        if compacts {
            assert!(
                tally.compactions >= 1 && tally.unlinked >= 1,
                "seed {seed}: {tally:?}"
            );
            compacting += 1;
        }
        calls += tally.calls;
        remains += tally.remains;
        opened += tally.opened;
    }
    let workloads = seeds.end - seeds.start;
    assert!(compacting * 2 + 1 >= workloads, "{compacting} compacted");
    println!(
        "{workloads} workloads, {calls} crashes, {remains} remains, {opened} of them distinct"
    );
}

/// An engine that leaves a sync out, as far as the disk can tell, from its first checkpoint on.
fn leaves_out(call: &'static str, what: &'static str) -> Hook {
    let begun = AtomicBool::new(false);
    Arc::new(move |kind, path: &Path| {
        let name = path.to_string_lossy();
        if kind == "create" && name.ends_with(".meta") {
            begun.store(true, Ordering::Relaxed);
        }
        let lies = kind == call && name.ends_with(what) && begun.load(Ordering::Relaxed);
        lies.then_some(Ok(()))
    })
}

#[test]
fn an_engine_that_leaves_out_a_sync_is_found_out() {
    let left_out = [
        ("sync", "", "any file"),
        ("sync", ".rows", "data files"),
        ("sync", ".meta", "meta files"),
        ("sync", ".manifest", "the manifest"),
        ("sync", ".copy", "the copy of the manifest"),
        ("sync", "CURRENT.tmp", "CURRENT"),
        ("sync_dir", "", "any directory"),
        ("sync_dir", "store", "the store's directory"),
        ("sync_dir", "part-0", "a data directory"),
    ];
    for (call, what, name) in left_out {
        let found = (0..6).find_map(|seed| {
            let mut plan = plan(seed);
            plan.options.data_directories = vec![];
            crash_everywhere(seed, &plan, Some(leaves_out(call, what))).err()
        });
        let Some(violation) = found else {
            panic!("without a sync of {name} no crash shows anything");
        };
        println!("without a sync of {name}: {violation:.200}");
    }
}

#[test]
fn a_disk_that_lies_about_syncs_is_found_out() {
    for directories in [false, true] {
        let plan = plan(1);
        let trial = Trial::new(1, &plan, None);
        if directories {
            trial.disk.set_skip_sync_dir(true);
        } else {
            trial.disk.set_skip_sync(true);
        }
        let violation = trial
            .whole(&plan, false)
            .expect_err("no crash shows anything");
        println!("directories {directories}: {violation:.200}");
    }
}

/// Trains beside background threads until the disk stops: checkpoints overlap with pushes,
/// prefetches, flushes and compactions.
fn train(run: &mut Run, seed: u64) -> Result<()> {
    let mut random = Random(seed);
    run.create()?;
    let mut tickets: Vec<(CheckpointTicket, History)> = Vec::new();
    for step in 1..=4 {
        for _ in 0..6 {
            let first = random.below(40);
            let keys: Vec<u64> = (first..first + 8).map(key).collect();
            let ticket = run.store().prefetch(TableId(0), &keys[..2])?;
            run.step(&Op::Rows(0, keys, random.below(1000) as f32))?;
            drop(ticket.wait()?);
            run.step(&Op::Remove(0, vec![key(random.below(48))]))?;
            run.step(&Op::Gradients(1, vec![key(random.below(6))], 0.25))?;
            if random.below(3) == 0 {
                run.step(&Op::Flush)?;
            }
            if random.below(4) == 0 {
                run.step(&Op::Compact)?;
            }
        }
        // The cut is now; it is acknowledged after some more work.
        if let Some((ticket, after)) = tickets.pop() {
            ticket.wait()?;
            (run.model.durable, run.model.doubt) = (after, None);
        }
        let meta = vec![7; 900];
        let after = run
            .model
            .after_checkpoint(step, &meta, run.options.retain_checkpoints);
        run.model.doubt = Some(after.clone());
        tickets.push((run.store().checkpoint_begin(step, &meta)?, after));
    }
    Ok(())
}

#[test]
fn a_crash_beside_background_threads_reopens_the_last_checkpoint_or_the_one_being_made() {
    let work = |seed: u64, stop: Option<u64>| {
        let disk = SimDisk::new(seed);
        if let Some(call) = stop {
            disk.stop_at(call);
        }
        let mut plan = plan(seed);
        plan.options.inline = false;
        plan.options.threads = 2;
        plan.options.shards = 2;
        let mut run = Run::new(Arc::new(disk.clone()), &plan.options);
        let ended = train(&mut run, seed);
        // A power cut does not wait for threads.
        let modes = [CrashMode::KeepNone, CrashMode::KeepAll, CrashMode::Random];
        let left = modes.map(|mode| (mode, disk.crash(seed, mode)));
        drop(run.store.take());
        assert!(ended.is_ok() || stop.is_some(), "seed {seed}: {ended:?}");
        (disk, run, left, plan)
    };
    let (mut acknowledged, mut in_doubt) = (0, 0);
    let first = environment("HPS_CRASH_SEED").unwrap_or(0);
    for seed in first..first + 30 {
        // After opening, calls depend on timing, so every run has its own number of them.
        let calls = work(seed, None).0.calls();
        let stop = Random(seed).below(calls);
        let (_, run, left, plan) = work(seed, Some(stop));
        for (mode, left) in left {
            let options = RuntimeOptions {
                inline: true,
                ..plan.options.clone()
            };
            let verdict = match run.model.created {
                true => verify_and_go_on(&left, &run.model, &options, true),
                false => verify_half_created(&left, &run.model, &options),
            };
            verdict.unwrap_or_else(|e| panic!("seed {seed}, stopped at {stop}, {mode:?}: {e}"));
        }
        acknowledged += u64::from(!run.model.durable.saved.is_empty());
        in_doubt += u64::from(run.model.doubt.is_some());
    }
    assert!(
        acknowledged > 5 && in_doubt > 5,
        "{acknowledged} acknowledged, {in_doubt} in doubt"
    );
}
