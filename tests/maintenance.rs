//! Does a compaction without a trainer, and dropping checkpoints, leave the last checkpoint as it
//! was, wherever the power goes?
//!
//! A store with stale rows and three checkpoints is opened, compacted and thinned out. Before every
//! call that changes what a crash could leave, remains of the disk are taken; each is opened,
//! inspected and compared with the oracle. `HPS_CRASH_SEED` runs only one workload;
//! `HPS_CRASH_WORKLOADS`, set for `tests/crash.rs`, runs an eighth as many here (6 without it); both: so
//! many, from that one on.

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
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex};

use common::plans::plan;
use common::verify::{Verdict, no_orphans, verify, verify_and_go_on};
use common::{Model, Op, ROOT, Random, Run, key};
use hooked::{Hook, HookedDisk};
use hps::format::checksum::digest128;
use hps::inspect::{Scope, Severity, inspect_on};
use hps::io::sim::{CrashMode, SimDisk};
use hps::io::{Io, LockKind};
use hps::*;

/// Weights of a narrow row.
const NARROW_DIM: usize = 256;

/// Three checkpoints of rows that were written again and again, with removed ones.
fn worn(seed: u64) -> (SimDisk, Run) {
    let mut plan = plan(seed);
    plan.options.retain_checkpoints = 3;
    // The engine itself finds nothing to do.
    plan.options.space_bound = 10.0;
    let disk = SimDisk::new(seed);
    let mut run = Run::of(Arc::new(disk.clone()), &plan);
    run.create().unwrap();
    let mut random = Random(seed);
    for step in 1..=3u64 {
        for round in 0..3 {
            let keys = (0..16).map(|_| key(random.below(48)));
            let mut keys: Vec<u64> = keys.collect();
            keys.sort_unstable();
            keys.dedup();
            run.step(&Op::Rows(0, keys, (10 * step + round) as f32))
                .unwrap();
            run.step(&Op::Gradients(1, vec![key(random.below(6))], 0.5))
                .unwrap();
            run.step(&Op::Flush).unwrap();
        }
        run.step(&Op::Remove(0, vec![key(random.below(48))]))
            .unwrap();
        run.step(&Op::Checkpoint(
            step,
            vec![u8::try_from(step).unwrap(); 300],
        ))
        .unwrap();
    }
    run.store = None;
    (disk, run)
}

fn limits(bytes_max: Option<u64>) -> CompactLimits {
    CompactLimits::new()
        .stale_share(0.0)
        .bytes_max(bytes_max)
        .commit_bytes(1)
}

fn go_on(_: CompactProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn compact(run: &Run, bytes_max: Option<u64>) -> Result<CompactReport> {
    run.store().compact(&limits(bytes_max), &mut go_on)
}

/// Ids of the retained checkpoints, as an inspection finds them; it must find no damage.
fn inspected(disk: &SimDisk) -> std::result::Result<Vec<CheckpointId>, String> {
    let shared = Io::of(disk.clone());
    let scope = Scope::new().full(true);
    let report = inspect_on(&shared, Path::new(ROOT), scope, &mut |_, _| {
        ControlFlow::Continue(())
    });
    let report = report.map_err(|e| format!("can't be inspected: {e}"))?;
    if report.worst() > Some(Severity::Leftover) {
        return Err(format!("an inspection found {:?}", report.findings));
    }
    Ok(report.checkpoints.iter().map(|c| c.id).collect())
}

/// The work of `hps-compact`, with the model after each call of it.
fn maintain(run: &mut Run, mut after: impl FnMut(&Run, &Model) -> Verdict) -> Verdict {
    let told = |e: Error| e.to_string();
    let before = run.model.clone();
    run.open().map_err(told)?;
    after(run, &before)?;
    for bytes_max in [Some(1), Some(1), None] {
        let before = run.model.clone();
        compact(run, bytes_max).map_err(told)?;
        after(run, &before)?;
    }
    let ids: Vec<CheckpointId> = run.store().checkpoints().iter().map(|c| c.id).collect();
    for id in &ids[..2] {
        let mut before = run.model.clone();
        let report = run.store().drop_checkpoints(&[*id]).map_err(told)?;
        assert_eq!((report.dropped, report.held), (vec![*id], vec![]));
        run.model.durable.kept -= 1;
        before.doubt = Some(run.model.durable.clone());
        after(run, &before)?;
    }
    // The next checkpoint is appended to the manifest that maintenance left.
    for step in 4..6 {
        let before = run.model.clone();
        run.step(&Op::Rows(
            0,
            (20..32).map(key).collect(),
            100.0 + step as f32,
        ))
        .map_err(told)?;
        after(run, &before)?;
        let mut before = run.model.clone();
        run.step(&Op::Checkpoint(step, vec![9; 40])).map_err(told)?;
        before.doubt = Some(run.model.durable.clone());
        after(run, &before)?;
    }
    let before = run.model.clone();
    compact(run, None).map_err(told)?;
    after(run, &before)
}

struct Remains {
    call: usize,
    mode: CrashMode,
    disk: SimDisk,
}

/// Calls at which the work was cut off, and remains opened.
fn crash_everywhere(seed: u64, lie: Option<Hook>) -> std::result::Result<(usize, usize), String> {
    let (disk, mut run) = worn(seed);
    let last = inspected(&disk)?.pop();
    let remains = Arc::new(Mutex::new((0, Vec::new())));
    let hook: Hook = {
        let (disk, remains) = (disk.clone(), Arc::clone(&remains));
        Arc::new(move |kind, path: &Path| {
            let mut remains = remains.lock().unwrap();
            let call = remains.0;
            remains.0 += 1;
            let random = seed << 20 | (call as u64) << 1;
            for (survivor, mode) in [
                (0, CrashMode::KeepNone),
                (0, CrashMode::KeepAll),
                (random, CrashMode::Random),
                (random + 1, CrashMode::Random),
            ] {
                let disk = disk.crash(survivor, mode);
                remains.1.push(Remains { call, mode, disk });
            }
            lie.as_ref().and_then(|lie| lie(kind, path))
        })
    };
    run.disk = Io::of(HookedDisk::new(disk.clone(), hook));
    let options = run.options.clone();
    let mut seen: BTreeSet<u128> = BTreeSet::new();
    let mut opened = 0;
    maintain(&mut run, |_, before| {
        seen.clear();
        let taken = std::mem::take(&mut remains.lock().unwrap().1);
        for Remains { call, mode, disk } in taken {
            if !seen.insert(disk.digest(digest128)) {
                continue;
            }
            opened += 1;
            let check = || {
                let mut histories = std::iter::once(&before.durable).chain(&before.doubt);
                let unchanged = histories.all(|history| history.saved.len() == 3);
                if inspected(&disk)?.pop() != last && unchanged {
                    return Err(String::from("the last checkpoint has another id"));
                }
                match opened % 3 {
                    0 => verify_and_go_on(&disk, before, &options, true),
                    _ => verify(&disk, before, &options, true),
                }
            };
            check().map_err(|e| format!("seed {seed}, call {call}, {mode:?}: {e}"))?;
        }
        Ok(())
    })?;
    let stats = run.store().stats();
    assert!(
        stats.compactions >= 2,
        "seed {seed}: only {} compactions",
        stats.compactions
    );
    let calls = remains.lock().unwrap().0;
    Ok((calls, opened))
}

#[test]
fn a_crash_at_every_call_of_maintenance_leaves_the_last_checkpoint_as_it_was() {
    let number = |name| std::env::var(name).ok().map(|n| n.parse::<u64>().unwrap());
    let first = number("HPS_CRASH_SEED");
    let alone = if first.is_some() { 1 } else { 6 };
    let count = number("HPS_CRASH_WORKLOADS").map_or(alone, |n| n.div_ceil(8));
    let first = first.unwrap_or(0);
    let seeds: Vec<u64> = (first..first + count).collect();
    let (mut calls, mut opened) = (0, 0);
    for &seed in &seeds {
        let (c, o) = crash_everywhere(seed, None)
            .unwrap_or_else(|e| panic!("{e}\nreplay with HPS_CRASH_SEED={seed}"));
        calls += c;
        opened += o;
    }
    println!(
        "{} workloads, {calls} crashes, {opened} distinct remains",
        seeds.len()
    );
}

#[test]
fn maintenance_that_leaves_out_a_sync_is_found_out() {
    let left_out = [
        ("sync", ".rows", "data files"),
        ("sync", ".manifest", "the manifest"),
        ("sync", ".copy", "the copy of the manifest"),
        ("sync", "CURRENT.tmp", "CURRENT"),
        ("sync_dir", "store", "the store's directory"),
        ("sync_dir", "", "any directory"),
    ];
    for (call, what, name) in left_out {
        let found = (0..6).find_map(|seed| {
            let lie: Hook = Arc::new(move |kind, path: &Path| {
                let lies = kind == call && path.to_string_lossy().ends_with(what);
                lies.then_some(Ok(()))
            });
            crash_everywhere(seed, Some(lie)).err()
        });
        let Some(violation) = found else {
            panic!("without a sync of {name} no crash shows anything");
        };
        println!("without a sync of {name}: {violation:.200}");
    }
}

#[test]
fn a_compaction_without_a_trainer_is_durable_and_gives_space_back() {
    let (disk, mut run) = worn(3);
    run.open().unwrap();
    let before: Vec<CheckpointInfo> = run.store().checkpoints();
    let old: Vec<CheckpointId> = before[..2].iter().map(|c| c.id).collect();
    let mut told = Vec::new();
    let report = run
        .store()
        .compact(&limits(None), &mut |p| {
            told.push(p);
            ControlFlow::Continue(())
        })
        .unwrap();
    assert!(report.durable && !report.cancelled && report.damaged.is_empty());
    assert!(report.files > 1 && report.files_left == 0, "{report:?}");
    // All that was written is counted.
    let stats = run.store().stats();
    assert_eq!(report.bytes_written, stats.compaction_written_bytes);
    assert!(report.bytes_read > report.bytes_written, "{report:?}");
    assert_eq!(told[0].files_left, report.files, "{told:?}");
    let dropped = run.store().drop_checkpoints(&old).unwrap();
    assert!(dropped.freed_bytes > 0, "{dropped:?}");
    run.model.durable.kept = 1;
    let files = run.store().files();
    assert!(
        files.iter().all(|f| f.current && f.stale_share() == 0.0),
        "{files:?}"
    );
    let bytes: u64 = files.iter().map(|f| f.bytes).sum();
    assert_eq!(bytes, report.disk_bytes_after - dropped.freed_bytes);
    assert!(bytes < report.disk_bytes_before, "{report:?}");
    assert!(!run.store().has_changes());
    // Nothing is left to be done, and nothing is done: not a file is written.
    let content = || -> Vec<_> {
        let paths = disk.paths().into_iter();
        paths
            .map(|path| (disk.read_file(&path).unwrap(), path))
            .collect()
    };
    let whole = content();
    let again = compact(&run, None).unwrap();
    assert_eq!((again.files, again.bytes_read, again.durable), (0, 0, true));
    assert!(
        content() == whole,
        "a compaction without work wrote something"
    );
    // A crash now: the same checkpoint, whole, without the old files.
    run.store = None;
    let left = disk.crash(1, CrashMode::KeepNone);
    verify(&left, &run.model, &run.options, true).unwrap();
    run.disk = Io::of(left);
    run.open().unwrap();
    assert_eq!(run.store().last_checkpoint().as_ref(), before.last());
    assert_eq!(run.store().stats().disk_bytes, bytes);
    // The trainer goes on where it was.
    run.step(&Op::Rows(0, vec![key(1)], 7.0)).unwrap();
    run.step(&Op::Checkpoint(4, vec![4])).unwrap();
}

#[test]
fn with_changes_since_the_checkpoint_a_compaction_waits_for_the_next_one() {
    let (disk, mut run) = worn(2);
    run.open().unwrap();
    run.step(&Op::Rows(0, (0..9).map(key).collect(), 99.0))
        .unwrap();
    let report = compact(&run, None).unwrap();
    assert!(report.files > 0 && !report.durable, "{report:?}");
    let left = disk.crash(0, CrashMode::KeepAll);
    verify(&left, &run.model, &run.options, true).unwrap();
    run.step(&Op::Checkpoint(4, vec![4])).unwrap();
    run.store = None;
    verify(&disk, &run.model, &run.options, true).unwrap();
}

#[test]
fn a_compaction_that_is_broken_off_keeps_what_it_did() {
    // Each data directory has groups of its own.
    let mut stores = (0..).map(worn);
    let (disk, mut run) = stores
        .find(|(_, run)| run.model.create.data_directories.len() == 2)
        .unwrap();
    run.open().unwrap();
    let stale = run.store().compaction_plan(&limits(None)).len() as u64;
    let stop_after = |groups: u64| {
        let mut asked = 0;
        run.store().compact(&limits(None), &mut |_| {
            asked += 1;
            match asked > groups {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        })
    };
    let none = stop_after(0).unwrap();
    assert_eq!(
        (none.cancelled, none.files, none.files_left),
        (true, 0, stale)
    );
    let one = stop_after(1).unwrap();
    assert!(one.cancelled && one.durable && one.files > 0, "{one:?}");
    assert_eq!(one.files + one.files_left, stale, "{one:?}");
    assert!(one.files_left > 0, "{one:?}");
    run.store = None;
    verify(&disk, &run.model, &run.options, true).unwrap();
}

#[test]
fn checkpoints_that_readers_hold_keep_their_files() {
    let (disk, mut run) = worn(4);
    let root = Path::new(ROOT);
    let shared = Io::of(disk.clone());
    let read = |id| Store::open_read_only_on(shared.clone(), root, id, run.options.clone());
    let first = read(Some(CheckpointId(1))).unwrap();
    let last = read(None).unwrap();
    run.open().unwrap();
    let before = run.store().files();
    let error = compact(&run, None).unwrap_err();
    assert!(
        matches!(&error, Error::Locked { path, holder: Holder::Reader } if path.ends_with("000000000003.meta")
        || path.to_string_lossy().ends_with(".meta")),
        "{error}"
    );
    assert_eq!(run.store().files(), before, "nothing was done");
    let report = run
        .store()
        .drop_checkpoints(&[2, 1, 1].map(CheckpointId))
        .unwrap();
    assert_eq!(
        (report.dropped, report.held),
        (vec![CheckpointId(2)], vec![CheckpointId(1)])
    );
    drop(last);
    assert!(compact(&run, None).unwrap().durable);
    let mut rows = first.rows(CheckpointId(1)).unwrap();
    while rows.next_row().unwrap().is_some() {}
    drop(rows);
    drop(first);
    let report = run.store().drop_checkpoints(&[CheckpointId(1)]).unwrap();
    assert_eq!(report.dropped, [CheckpointId(1)]);
    run.store = None;
    no_orphans(&disk, root).unwrap();
    run.model.durable.kept = 1;
    verify(&disk, &run.model, &run.options, true).unwrap();
}

#[test]
fn a_reader_that_comes_while_a_compaction_runs_keeps_the_files_of_its_checkpoint() {
    for leaves in [true, false] {
        let (disk, mut run) = worn(6);
        let root = Path::new(ROOT);
        run.open().unwrap();
        let rows = |disk: &SimDisk| {
            let mut paths = disk.paths();
            paths.retain(|p| p.extension().is_some_and(|e| e == "rows"));
            paths
        };
        let old = rows(&disk);
        let shared = Io::of(disk.clone());
        let mut reader = None;
        let result = run.store().compact(&limits(None), &mut |_| {
            let shared = shared.clone();
            let open = || Store::open_read_only_on(shared, root, None, run.options.clone());
            reader.get_or_insert_with(|| open().unwrap());
            ControlFlow::Continue(())
        });
        assert!(matches!(result, Err(Error::Locked { .. })), "{result:?}");
        // The reader has all that it was promised, by name too.
        let now = rows(&disk);
        assert!(
            old.iter().all(|path| now.contains(path)),
            "{old:?} before, {now:?}"
        );
        let mut walk = reader.as_ref().unwrap().rows(CheckpointId(3)).unwrap();
        while walk.next_row().unwrap().is_some() {}
        drop(walk);
        let left = disk.crash(0, CrashMode::KeepAll);
        verify(&left, &run.model, &run.options, true).unwrap();
        if leaves {
            // What was done in vain is durable once it has gone.
            drop(reader.take());
            let report = compact(&run, None).unwrap();
            assert!(report.durable && rows(&disk) != now, "{report:?}");
        }
        run.store = None;
        verify(&disk, &run.model, &run.options, true).unwrap();
    }
}

#[test]
fn checkpoints_that_can_not_be_dropped_are_refused_and_nothing_changes() {
    let (disk, mut run) = worn(5);
    run.open().unwrap();
    let last = run
        .store()
        .drop_checkpoints(&[CheckpointId(1), CheckpointId(3)])
        .unwrap_err();
    assert!(last.to_string().contains("the last one"), "{last}");
    let unknown = run
        .store()
        .drop_checkpoints(&[CheckpointId(1), CheckpointId(9)])
        .unwrap_err();
    assert!(matches!(
        unknown,
        Error::InvalidArgument(ArgumentError::UnknownCheckpoint {
            id: CheckpointId(9),
            ..
        })
    ));
    let share = CompactLimits::new().stale_share(1.5);
    assert!(run.store().compact(&share, &mut go_on).is_err());
    // Locks taken on the way are gone.
    for id in run.store().checkpoints() {
        drop(run.store().checkpoint_meta(id.id).unwrap());
    }
    run.store = None;
    verify(&disk, &run.model, &run.options, true).unwrap();
    let path = Path::new(ROOT).join("LOCK");
    drop(disk.lock(&path, LockKind::Exclusive, false).unwrap());
}
