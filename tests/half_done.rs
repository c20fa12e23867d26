//! What does a step that failed half way leave behind, and what may the next one do about it?
#![expect(
    clippy::unwrap_used,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/crash.rs"]
#[expect(dead_code, reason = "the crash test uses the rest")]
mod common;
#[path = "common/hooked.rs"]
mod hooked;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use common::plans::plan;
use common::verify::verify;
use common::{Op, ROOT, Run, key};
use hooked::{Hook, HookedDisk};
use hps::format::{FileKind, parse_file_name};
use hps::io::sim::{CrashMode, SimDisk};
use hps::*;
use nix::errno::Errno;

/// Weights of a narrow row.
const NARROW_DIM: usize = 256;

fn rows(keys: std::ops::Range<u64>, value: f32) -> Op {
    Op::Rows(0, keys.map(key).collect(), value)
}

/// A store in one directory that keeps one checkpoint and does everything in the caller's thread.
fn options() -> RuntimeOptions {
    let mut options = plan(3).options;
    options.inline = true;
    options.retain_checkpoints = 1;
    options
}

/// The files of a kind in the store's directory.
fn files_of(disk: &SimDisk, kind: FileKind) -> Vec<PathBuf> {
    let is = |path: &PathBuf| {
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
        parse_file_name(name).is_some_and(|(found, _)| found == kind)
    };
    disk.paths().into_iter().filter(is).collect()
}

/// The rename of CURRENT was done and the sync of its directory failed: the store refused writes,
/// and was closed and opened again, as the documents say. The open read the CURRENT that only the
/// page cache knew, and unlinked what that did not need; then the power was cut, the rename was
/// lost, the unlinks were not, and the CURRENT before it named files that were gone.
#[test]
fn an_open_makes_its_current_durable_before_it_unlinks_anything() {
    let (armed, renamed) = (Arc::new(AtomicBool::new(false)), AtomicBool::new(false));
    let hook: Hook = {
        let armed = Arc::clone(&armed);
        Arc::new(move |call, path| {
            if !armed.load(Ordering::Relaxed) {
                return None;
            }
            renamed.fetch_or(call == "rename", Ordering::Relaxed);
            let lost = call == "sync_dir" && path == Path::new(ROOT);
            (lost && renamed.load(Ordering::Relaxed)).then(|| Err(Errno::EIO.into()))
        })
    };
    let disk = SimDisk::new(1);
    let mut run = Run::new(Arc::new(HookedDisk::new(disk.clone(), hook)), &options());
    run.create().unwrap();
    run.step(&rows(0..8, 1.0)).unwrap();
    run.step(&Op::Checkpoint(1, vec![1])).unwrap();
    run.step(&rows(0..8, 2.0)).unwrap();
    armed.store(true, Ordering::Relaxed);
    let error = run.store().checkpoint(2, b"unknown").unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error}");
    run.model.doubt = Some(run.model.after_checkpoint(2, b"unknown", 1));
    run.store = None;

    let remains: Arc<Mutex<Vec<(String, SimDisk)>>> = Arc::default();
    let hook: Hook = {
        let (disk, remains) = (disk.clone(), Arc::clone(&remains));
        Arc::new(move |call, path| {
            let modes = (0..16).map(|seed| (seed, CrashMode::Random));
            for (seed, mode) in modes.chain([(0, CrashMode::KeepNone)]) {
                let what = format!("{mode:?} {seed} before {call} {}", path.display());
                remains.lock().unwrap().push((what, disk.crash(seed, mode)));
            }
            None
        })
    };
    let hooked = Arc::new(HookedDisk::new(disk.clone(), hook));
    drop(Store::open_on(hooked, Path::new(ROOT), options()).unwrap());
    let remains = std::mem::take(&mut *remains.lock().unwrap());
    assert!(
        remains.len() > 17 * 5,
        "the open made {} remains",
        remains.len()
    );
    for (what, left) in remains {
        verify(&left, &run.model, &run.options, true).unwrap_or_else(|e| panic!("{what}: {e}"));
    }
    verify(&disk, &run.model, &run.options, true).unwrap();
}

/// An open made CURRENT anew before it unlinked what a crash had left; on a disk that this had
/// filled there was no room for that, and the store could not be opened until somebody made room.
#[test]
fn an_open_of_a_disk_full_of_orphans_makes_room_with_what_no_current_named() {
    let disk = SimDisk::new(1);
    let mut run = Run::new(Arc::new(disk.clone()), &options());
    run.create().unwrap();
    run.step(&rows(0..8, 1.0)).unwrap();
    run.step(&Op::Checkpoint(1, vec![1])).unwrap();
    run.step(&rows(0..40, 2.0)).unwrap();
    run.step(&Op::Flush).unwrap();
    run.store = None;
    let left = disk.crash(1, CrashMode::KeepAll);
    let used = |disk: &SimDisk| -> u64 {
        let bytes = |p: PathBuf| disk.read_file(&p).unwrap().len() as u64;
        disk.paths().into_iter().map(bytes).sum()
    };
    let full = used(&left);
    left.set_capacity(full);
    run.model.reopened(run.model.durable.clone());
    drop(Store::open_on(Arc::new(left.clone()), Path::new(ROOT), options()).unwrap());
    assert!(used(&left) < full, "the orphans are gone");
    left.set_capacity(u64::MAX);
    verify(&left, &run.model, &run.options, true).unwrap();
}

/// Each checkpoint that failed after its meta file was written left that file there until the store
/// was opened again: hundreds of megabytes a try, on a disk that was nearly full as it was.
#[test]
fn a_commit_that_fails_before_current_leaves_no_meta_file() {
    let faults: [(&str, &str, bool); 3] = [
        ("write", "manifest", true),
        ("create", "CURRENT", true),
        ("sync", "manifest", false),
    ];
    for (call, name, goes) in faults {
        let armed = Arc::new(AtomicBool::new(false));
        let hook: Hook = {
            let armed = Arc::clone(&armed);
            Arc::new(move |asked, path| {
                let file = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
                let hit = asked == call && file.to_lowercase().contains(&name.to_lowercase());
                (hit && armed.swap(false, Ordering::Relaxed)).then(|| Err(Errno::ENOSPC.into()))
            })
        };
        let disk = SimDisk::new(1);
        let mut run = Run::new(Arc::new(HookedDisk::new(disk.clone(), hook)), &options());
        run.create().unwrap();
        run.step(&rows(0..8, 1.0)).unwrap();
        run.step(&Op::Checkpoint(1, vec![1; 5000])).unwrap();
        run.step(&rows(0..8, 2.0)).unwrap();
        let before = files_of(&disk, FileKind::Meta);
        assert_eq!(before.len(), 1);
        for _ in 0..3 {
            armed.store(true, Ordering::Relaxed);
            run.store().checkpoint(2, &[2; 5000]).unwrap_err();
        }
        assert!(
            !armed.load(Ordering::Relaxed) || !goes,
            "{call} {name} was met"
        );
        let after = files_of(&disk, FileKind::Meta);
        match goes {
            true => assert_eq!(after, before, "{call} {name}"),
            // What CURRENT says is unknown: nothing is unlinked.
            false => assert_eq!(after.len(), 2, "{call} {name}"),
        }
        if goes {
            run.step(&Op::Checkpoint(2, vec![2; 5000])).unwrap();
            run.store = None;
            verify(&disk, &run.model, &run.options, true).unwrap();
        }
    }
}

const ROWS: u64 = 40_000;
const FILE_BYTES: u64 = 1 << 20;

/// Keys in a table of rows of four weights.
fn set(store: &Store, keys: std::ops::Range<u64>, value: f32) {
    let table = store.table("t").unwrap();
    let keys: Vec<u64> = keys.collect();
    for keys in keys.chunks(1000) {
        let mut rows = vec![0.0; keys.len() * 4];
        let lease = store.pull(table, keys, &mut rows).unwrap();
        rows.fill(value);
        store.push(&lease, Update::weights(&rows)).unwrap();
    }
}

fn check(store: &Store, keys: std::ops::Range<u64>, value: f32) {
    let table = store.table("t").unwrap();
    let keys: Vec<u64> = keys.collect();
    let mut rows = vec![0.0; keys.len() * 4];
    drop(store.pull(table, &keys, &mut rows).unwrap());
    assert!(rows.iter().all(|w| *w == value), "not {value}");
}

fn options_with_snapshot(inline: bool) -> RuntimeOptions {
    RuntimeOptions::new()
        .cache_bytes(8 << 20)
        .file_bytes(FILE_BYTES)
        .threads(1)
        .io_depth(4)
        .retain_checkpoints(1)
        .disk_bytes_max(1 << 40)
        .inline(inline)
}

fn table() -> TableDescriptor {
    TableDescriptor::new("t", 4)
        .optimizer(Optimizer::Sgd)
        .initialiser(Initialiser::Zero)
}

fn create_table(disk: impl hps::io::Disk + hps::io::Engine + 'static, inline: bool) -> Store {
    let options = options_with_snapshot(inline);
    let store = Store::create_on(
        Arc::new(disk),
        Path::new(ROOT),
        CreateOptions::new(),
        options,
    )
    .unwrap();
    store.create_table(&table()).unwrap();
    store
}

fn bytes_of(disk: &SimDisk, paths: Vec<PathBuf>) -> u64 {
    let bytes = |p: PathBuf| disk.read_file(&p).unwrap().len() as u64;
    paths.into_iter().map(bytes).sum()
}

/// The index snapshot took the room that the next checkpoint needed: that failed, and the ones after
/// it, although a cache is nothing that anybody has to keep.
#[test]
fn an_index_snapshot_gives_its_room_to_a_checkpoint_that_has_none() {
    let disk = SimDisk::new(1);
    let store = create_table(disk.clone(), true);
    set(&store, 0..ROWS, 1.0);
    store.checkpoint(1, &[1]).unwrap();
    let snapshot = bytes_of(&disk, files_of(&disk, FileKind::Snapshot));
    assert!(snapshot > 16 * ROWS, "{snapshot} bytes");
    // Room for the rows of the next checkpoint, but for the index snapshot.
    let used = bytes_of(&disk, disk.paths());
    disk.set_capacity(used - snapshot + (300 << 10));
    set(&store, 0..4000, 2.0);
    store.checkpoint(2, &[2]).unwrap();
    assert!(
        files_of(&disk, FileKind::Snapshot).is_empty(),
        "it had to go"
    );
    drop(store);
    disk.set_capacity(u64::MAX);
    let store =
        Store::open_on(Arc::new(disk), Path::new(ROOT), options_with_snapshot(true)).unwrap();
    assert_eq!(store.last_checkpoint().unwrap().step, 2);
    check(&store, 0..4000, 2.0);
    check(&store, 4000..ROWS, 1.0);
}

/// Index snapshots counted neither in the figures nor against `disk_bytes_max`.
#[test]
fn an_index_snapshot_counts_as_bytes_on_disk_and_keeps_within_the_limit() {
    let disk = SimDisk::new(1);
    let store = create_table(disk.clone(), true);
    set(&store, 0..ROWS, 1.0);
    store.checkpoint(1, &[1]).unwrap();
    let (rows, snapshot) = (
        bytes_of(&disk, files_of(&disk, FileKind::Rows)),
        bytes_of(&disk, files_of(&disk, FileKind::Snapshot)),
    );
    let stats = store.stats();
    assert_eq!(
        (stats.disk_bytes, stats.pinned_bytes),
        (rows + snapshot, snapshot)
    );
    drop(store);

    // Rows fit, and so does an index snapshot until they are changed.
    let snapshots = Arc::new(Mutex::new(0));
    let hook: Hook = {
        let snapshots = Arc::clone(&snapshots);
        Arc::new(move |call, path| {
            let is_snapshot = path.extension().is_some_and(|e| e == "snapshot");
            *snapshots.lock().unwrap() += u32::from(call == "create" && is_snapshot);
            None
        })
    };
    let mut options = options_with_snapshot(true);
    options.disk_bytes_max = 2 * rows + 4 * FILE_BYTES;
    let hooked = Arc::new(HookedDisk::new(disk.clone(), hook));
    let store = Store::open_on(hooked, Path::new(ROOT), options.clone()).unwrap();
    assert_eq!(store.stats().disk_bytes, rows + snapshot);
    for step in 2..12 {
        set(&store, 0..7000, step as f32);
        store.checkpoint(step, &[]).unwrap();
        let stats = store.stats();
        assert!(stats.disk_bytes <= options.disk_bytes_max, "{stats:?}");
    }
    let made = *snapshots.lock().unwrap();
    assert!(
        made <= 4,
        "{made} index snapshots were begun, which had to go each time"
    );
    check(&store, 0..7000, 11.0);
    check(&store, 7000..ROWS, 1.0);
}

/// What an inspection says, worst first.
fn look(disk: &SimDisk, full: bool) -> Vec<inspect::Finding> {
    let scope = inspect::Scope::new().full(full);
    let mut go_on = |_, _| std::ops::ControlFlow::Continue(());
    let io = hps::io::Io::of(disk.clone());
    let report = inspect::inspect_on(&io, Path::new(ROOT), scope, &mut go_on);
    report.unwrap().findings
}

/// An index snapshot that gave its room to a flush stays named by CURRENT until the next commit. `hps-fsck`
/// called that damage, and offered a repair of a whole store.
#[test]
fn a_store_whose_snapshot_gave_its_room_to_a_flush_is_whole_for_everybody() {
    let disk = SimDisk::new(1);
    let store = create_table(disk.clone(), true);
    set(&store, 0..ROWS, 1.0);
    store.checkpoint(1, &[1]).unwrap();
    let used = bytes_of(&disk, disk.paths());
    disk.set_capacity(used + (100 << 10));
    set(&store, 0..4000, 2.0);
    store.flush().unwrap();
    assert!(
        files_of(&disk, FileKind::Snapshot).is_empty(),
        "it had to go"
    );
    disk.set_capacity(u64::MAX);
    let reads = |disk: &SimDisk| {
        let options = options_with_snapshot(true);
        let disk = Arc::new(disk.clone());
        let reader = Store::open_read_only_on(disk, Path::new(ROOT), None, options).unwrap();
        check(&reader, 0..ROWS, 1.0);
    };
    // Beside its writer.
    assert!(look(&disk, false).is_empty() && look(&disk, true).is_empty());
    reads(&disk);
    let crashes = (0..20).map(|seed| disk.crash(seed, CrashMode::Random));
    let remains = crashes.chain([
        disk.killed(1),
        disk.crash(1, CrashMode::KeepNone),
        disk.crash(1, CrashMode::KeepAll),
    ]);
    let (mut gone, mut back) = (0, 0);
    for left in remains {
        let is_gone = files_of(&left, FileKind::Snapshot).is_empty();
        (gone, back) = (gone + u32::from(is_gone), back + u32::from(!is_gone));
        for full in [false, true] {
            let findings = look(&left, full);
            let told = |f: &&inspect::Finding| f.what.contains("gave its room to rows");
            assert_eq!(findings.iter().filter(told).count(), usize::from(is_gone));
            let worst = findings.first().map(|f| f.severity);
            assert!(worst <= Some(inspect::Severity::Leftover), "{findings:?}");
        }
        reads(&left);
        let options = options_with_snapshot(true);
        let store = Store::open_on(Arc::new(left.clone()), Path::new(ROOT), options).unwrap();
        check(&store, 0..ROWS, 1.0);
        set(&store, 0..10, 3.0);
        store.checkpoint(2, &[2]).unwrap();
        store.close().unwrap();
        assert!(look(&left, true).is_empty(), "{:?}", look(&left, true));
    }
    assert!(
        gone > 2 && back > 2,
        "{gone} without the index snapshot, {back} with"
    );
}

/// A compaction that had ended after the last checkpoint left what it wrote beside what it had read,
/// for as long as the store stayed closed: up to the live bytes once more. So did a store that was
/// opened after a crash, and closed while the compaction that began at once was at work.
#[test]
fn a_closed_store_has_no_file_that_no_checkpoint_needs() {
    let options = |inline| options_with_snapshot(inline).space_bound(1.1);
    let leftovers = |disk: &SimDisk| {
        let severity = |f: &inspect::Finding| f.severity;
        assert!(
            look(disk, true)
                .iter()
                .map(severity)
                .all(|s| s == inspect::Severity::Leftover)
        );
        look(disk, true).len()
    };
    let disk = SimDisk::new(1);
    let store = create_table(disk.clone(), true);
    set(&store, 0..ROWS, 1.0);
    store.checkpoint(1, &[1]).unwrap();
    set(&store, 0..ROWS / 2, 2.0);
    store.checkpoint(2, &[2]).unwrap();
    store.close().unwrap();
    let open = |disk: &SimDisk, inline: bool| {
        let disk = Arc::new(disk.clone());
        Store::open_on(disk, Path::new(ROOT), options(inline)).unwrap()
    };
    let holds = |disk: &SimDisk| {
        let store = open(disk, true);
        check(&store, 0..ROWS / 2, 2.0);
        check(&store, ROWS / 2..ROWS, 1.0);
        store.close_discarding();
    };

    let worn = disk.killed(1);
    let store = open(&worn, true);
    store.compact_fully().unwrap();
    assert!(store.stats().compactions > 0, "nothing to compact");
    drop(store);
    let crashed = worn.killed(1);
    assert!(leftovers(&crashed) > 0, "a crash leaves them");
    let store = open(&worn, true);
    store.compact_fully().unwrap();
    set(&store, 0..10, 3.0);
    store.flush().unwrap();
    assert!(matches!(
        store.close(),
        Err(Error::Uncheckpointed { rows: 10 })
    ));
    assert_eq!(leftovers(&worn), 0, "{:?}", look(&worn, true));
    holds(&worn);

    // Beside compactions that the open itself has begun.
    let mut compactions = 0;
    for pause in 0..20 {
        let disk = crashed.killed(pause);
        let store = open(&disk, false);
        std::thread::sleep(std::time::Duration::from_millis(pause * 3));
        compactions += store.stats().compactions;
        store.close().unwrap();
        assert_eq!(leftovers(&disk), 0, "{:?}", look(&disk, true));
        holds(&disk);
    }
    assert!(compactions > 0, "no compaction began in time");

    // Where the outcome of a commit is unknown, nothing is unlinked.
    let disk = crashed.killed(1);
    let hook: Hook = Arc::new(|call, path| {
        let lost = call == "sync" && path.extension().is_some_and(|e| e == "meta");
        lost.then(|| Err(Errno::EIO.into()))
    });
    let hooked = Arc::new(HookedDisk::new(disk.clone(), hook));
    let store = Store::open_on(hooked, Path::new(ROOT), options(true)).unwrap();
    store.compact_fully().unwrap();
    store.checkpoint(3, &[3]).unwrap_err();
    let before = disk.paths();
    store.close_discarding();
    assert_eq!(disk.paths(), before);
    holds(&disk);
}

/// A checkpoint found no room because the index snapshot of the one before it was just being written.
#[test]
fn an_index_snapshot_that_is_being_written_is_broken_off_for_a_checkpoint_that_has_no_room() {
    let (writing, go_on) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let disk = SimDisk::new(1);
    let hook: Hook = {
        let (writing, go_on, disk) = (Arc::clone(&writing), Arc::clone(&go_on), disk.clone());
        let once = AtomicBool::new(true);
        Arc::new(move |call, path| {
            let is_snapshot = path.extension().is_some_and(|e| e == "snapshot");
            let first_bytes =
                call == "write" && is_snapshot && !disk.read_file(path).unwrap().is_empty();
            if first_bytes && once.swap(false, Ordering::Relaxed) {
                // The next checkpoint has less room than the index snapshot has by now.
                disk.set_capacity(bytes_of(&disk, disk.paths()) + (150 << 10));
                writing.store(true, Ordering::Release);
                while !go_on.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                std::thread::sleep(std::time::Duration::from_millis(200));
            }
            None
        })
    };
    let store = create_table(HookedDisk::new(disk.clone(), hook), false);
    set(&store, 0..ROWS, 1.0);
    store.checkpoint(1, &[1]).unwrap();
    while !writing.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    set(&store, 0..6000, 2.0);
    go_on.store(true, Ordering::Release);
    store.checkpoint(2, &[2]).unwrap();
    disk.set_capacity(u64::MAX);
    store.close().unwrap();
    let store =
        Store::open_on(Arc::new(disk), Path::new(ROOT), options_with_snapshot(true)).unwrap();
    check(&store, 0..6000, 2.0);
    check(&store, 6000..ROWS, 1.0);
}

/// One of two files could not be written. The rows of the other were in none of the figures: they
/// were not dirty any more, and not counted as flushed.
#[test]
fn rows_of_a_file_that_was_written_count_although_the_one_beside_it_failed() {
    let disk = SimDisk::new(1);
    let armed = Arc::new(AtomicBool::new(false));
    let hook: Hook = {
        let armed = Arc::clone(&armed);
        Arc::new(move |call, path| {
            let hit =
                call == "create" && path.starts_with("/store/b") && armed.load(Ordering::Relaxed);
            hit.then(|| Err(Errno::EIO.into()))
        })
    };
    let options = options_with_snapshot(false)
        // Two files are written at the same time.
        .cache_bytes(64 << 20);
    let create = CreateOptions::new().data_directories(vec!["a".into(), "b".into()]);
    let hooked = Arc::new(HookedDisk::new(disk, hook));
    let store = Store::create_on(hooked, Path::new(ROOT), create, options).unwrap();
    store.create_table(&table()).unwrap();
    set(&store, 0..1000, 1.0);
    armed.store(true, Ordering::Relaxed);
    let mut written = 0;
    for _ in 0..20 {
        let before = store.stats();
        store.flush().unwrap_err();
        let after = store.stats();
        assert_eq!(after.uncheckpointed_rows, 1000, "{after:?}");
        assert_eq!(
            after.flushes > before.flushes,
            after.dirty_rows < before.dirty_rows
        );
        written += after.flushes;
    }
    assert!(written > 0, "the other file was never written");
    armed.store(false, Ordering::Relaxed);
    store.checkpoint(1, &[]).unwrap();
    assert_eq!(store.stats().uncheckpointed_rows, 0);
    store.close().unwrap();
}

/// A meta that can't be kept was acknowledged, and then nobody could read it.
#[test]
fn a_meta_beyond_the_limit_is_refused_before_the_cut() {
    let mut options = options_with_snapshot(false);
    options.thresholds.meta_bytes_max = 1000;
    let disk = SimDisk::new(1);
    let store = Store::create_on(
        Arc::new(disk),
        Path::new(ROOT),
        CreateOptions::new(),
        options,
    )
    .unwrap();
    store.create_table(&table()).unwrap();
    set(&store, 0..10, 1.0);
    let error = store.checkpoint_begin(1, &[1; 1001]).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("1001 bytes") && text.contains("at most 1000"),
        "{text}"
    );
    let stats = store.stats();
    assert_eq!(
        (stats.uncheckpointed_rows, stats.cut_us_max),
        (10, 0),
        "no cut was made"
    );
    let info = store.checkpoint(1, &[1; 1000]).unwrap();
    assert_eq!(store.checkpoint_meta(info.id).unwrap(), [1; 1000]);
    store.close().unwrap();
}
