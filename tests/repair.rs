//! Does a repair save every row that verifies, and name those that are lost?

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/crash.rs"]
#[expect(dead_code, reason = "the crash test uses the rest")]
mod common;
#[path = "common/repairs.rs"]
mod repairs;
#[path = "common/sample.rs"]
mod sample;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use common::{Op, ROOT, key};
use hps::io::Io;
use hps::io::sim::SimDisk;
use hps::repair::{RepairOptions, RepairOutcome, repair_on};
use hps::*;
use repairs::*;
use sample::{rows, sample};

/// Weights of a narrow row.
const NARROW_DIM: usize = 256;

#[test]
fn a_whole_store_is_left_alone() {
    let (disk, _run) = sample(1);
    let before = files_of(&disk, "/");
    let Ok(RepairOutcome::Whole(report)) = run_repair(&disk, RepairOptions::default()) else {
        panic!("something was repaired");
    };
    assert_eq!(report.worst(), None);
    assert!(files_of(&disk, "/") == before);
}

/// How repairs of a store with one changed byte ended.
#[derive(Default)]
struct Ends {
    built: u64,
    refused: u64,
    lossless: u64,
}

/// Repairs the store with each of some bytes of some files changed, one at a time.
fn repair_changed(
    disk: &SimDisk,
    truth: &Truth,
    files: &[&str],
    first: usize,
    step: usize,
) -> Ends {
    let mut ends = Ends::default();
    let chosen = |path: &Path| {
        files
            .iter()
            .any(|end| path.to_str().unwrap().ends_with(end))
    };
    for path in disk.paths().into_iter().filter(|path| chosen(path)) {
        let bytes = disk.read_file(&path).unwrap().len() as u64;
        for offset in (first as u64..bytes).step_by(step) {
            let what = format!("byte {offset} of {}", path.display());
            let mask = 1 << (offset % 8);
            disk.corrupt(&path, offset, mask).unwrap();
            match check_repair(disk, truth, RepairOptions::default(), &what) {
                Ok(repaired) => {
                    ends.built += 1;
                    ends.lossless += u64::from(repaired.lost_nothing());
                    // No more than can be in one file: a record takes 24 bytes at least.
                    let rows = path.extension().is_some_and(|e| e == "rows");
                    let most = if rows { bytes / 24 } else { 0 };
                    let lost = repaired.lost.sum() + repaired.nameless;
                    assert!(lost <= most, "{what}: {lost} lost");
                    // A checkpoint may be lost with its meta file; all else is there twice, or can
                    // be made again.
                    let meta = path.extension().is_some_and(|e| e == "meta");
                    let nothing = repaired.lost_nothing();
                    assert!(rows || meta || nothing, "{what}: {repaired:?}");
                }
                Err(error) => {
                    ends.refused += 1;
                    let name = path.file_name().unwrap().to_string_lossy();
                    let why = error.to_string();
                    let meta = name.ends_with(".meta") && why.contains("--without-meta");
                    let newer = matches!(error, Error::Unsupported { .. });
                    assert!(meta || newer, "{what}: {why}");
                }
            }
            disk.corrupt(&path, offset, mask).unwrap();
        }
    }
    ends
}

/// Some bytes of a store with an index snapshot; with `HPS_FLIPS` also every byte of a small one, and of
/// what the small one has not.
#[test]
fn whatever_byte_is_changed_every_other_row_is_saved() {
    const THREADS: usize = 2;
    let (disk, truth) = grown();
    let ends = repair_changed(&disk, &truth, &[""], 0, 997);
    let Ends {
        built,
        refused,
        lossless,
    } = ends;
    assert!(
        built > 100 && refused > 0 && lossless > 0,
        "{built}, {refused}, {lossless}"
    );
    if std::env::var_os("HPS_FLIPS").is_none() {
        return;
    }
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let (disk, _run) = sample(1);
                let small = repair_changed(&disk, &Truth::of(&disk), &[""], thread, THREADS);
                let (disk, truth) = grown();
                let files = [".snapshot", ".manifest", ".copy"];
                let large = repair_changed(&disk, &truth, &files, thread, THREADS);
                let (built, refused) = (small.built + large.built, small.refused + large.refused);
                println!("{built} stores with a changed byte repaired, {refused} refused");
            });
        }
    });
}

#[test]
fn lost_files_cost_what_was_in_them_and_no_more() {
    let (disk, truth) = grown();
    let mut named = 0;
    for path in disk.paths() {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let is_manifest = name.ends_with(".manifest") || name.ends_with(".copy");
        let whole = disk.read_file(&path).unwrap();
        if name == "LOCK" || name.ends_with(".meta") {
            continue;
        }
        disk.remove(&path).unwrap();
        // Without its index snapshot or the copy of its manifest a store is whole.
        if name.ends_with(".snapshot") || name.ends_with(".copy") {
            let (outcome, lost) = repair_telling(&disk, RepairOptions::default()).unwrap();
            assert!(
                matches!(outcome, RepairOutcome::Whole(_)),
                "no {name}: {outcome:?}"
            );
            assert!(lost.is_empty(), "no {name}: {lost:?}");
        } else {
            let repaired = check_repair(
                &disk,
                &truth,
                RepairOptions::default(),
                &format!("no {name}"),
            );
            let repaired = repaired.unwrap();
            named += repaired.lost.sum();
            let rows = name.ends_with(".rows");
            let gone = u64::from(rows);
            assert!(repaired.files_gone <= gone, "{name}: {repaired:?}");
            assert!(rows || repaired.lost_nothing(), "{name}: {repaired:?}");
        }
        for (what, bytes) in [
            ("half of", whole[..whole.len() / 2].to_vec()),
            ("zeros for", vec![0; whole.len()]),
            ("junk after", [&whole[..], &[1; 4096]].concat()),
        ] {
            disk.write_file(&path, &bytes).unwrap();
            let what = format!("{what} {name}");
            if what.starts_with("junk") && is_manifest {
                // Bytes after what CURRENT commits do not exist.
                continue;
            }
            match check_repair(&disk, &truth, RepairOptions::default(), &what) {
                Ok(repaired) if what.starts_with("junk") || is_manifest => {
                    assert!(repaired.lost.sum() + repaired.nameless == 0, "{what}");
                }
                Ok(_) => {}
                Err(error) => panic!("{what}: {error}"),
            }
        }
        disk.write_file(&path, &whole).unwrap();
    }
    assert!(named > 0, "no lost key was named");
}

/// Something else may stand where a parameter file was, such as a directory that `rsync` has made.
#[test]
fn a_directory_in_the_place_of_a_file_costs_what_was_in_the_file() {
    let (disk, truth) = grown();
    let rows = |p: &PathBuf| p.extension().is_some_and(|e| e == "rows");
    let path = disk.paths().into_iter().find(rows).unwrap();
    disk.remove(&path).unwrap();
    disk.create_dir(&path).unwrap();
    let what = "a directory";
    let repaired = check_repair(&disk, &truth, RepairOptions::default(), what).unwrap();
    assert_eq!(repaired.files_gone, 1, "{repaired:?}");
}

/// What is where in a file is said by its footer. In a store of one table it can be said without.
#[test]
fn a_lost_footer_costs_nothing_where_there_is_one_table() {
    let disk = SimDisk::new(1);
    let options = RuntimeOptions::new().cache_bytes(8 << 20).inline(true);
    let store = Store::create_on(
        Io::of(disk.clone()),
        Path::new(ROOT),
        CreateOptions::new(),
        options,
    )
    .unwrap();
    let table = store.create_table(&TableDescriptor::new("t", 100)).unwrap();
    let keys: Vec<u64> = (0..700).map(key).collect();
    let mut out = vec![0.0; keys.len() * 100];
    let lease = store.pull(table, &keys, &mut out).unwrap();
    store.push(&lease, Update::weights(&out)).unwrap();
    drop(lease);
    // Removed keys are behind the rows, in a run of their own.
    store.checkpoint(1, &[]).unwrap();
    store.remove(table, &keys[..50]).unwrap();
    let mut out = vec![0.0; 300 * 100];
    let lease = store.pull(table, &keys[100..400], &mut out).unwrap();
    store.push(&lease, Update::weights(&out)).unwrap();
    drop(lease);
    store.checkpoint(2, &[]).unwrap();
    store.close().unwrap();
    let before = of_sim(&disk, Path::new(ROOT), CheckpointId(2));
    let rows = |p: &PathBuf| p.extension().is_some_and(|e| e == "rows");
    let files: Vec<PathBuf> = disk.paths().into_iter().filter(rows).collect();
    assert_eq!(files.len(), 2);
    for path in files {
        let bytes = disk.read_file(&path).unwrap().len() as u64;
        disk.corrupt(&path, bytes - 4096 + 100, 1).unwrap();
    }
    let Ok(RepairOutcome::Built(_, repaired)) = run_repair(&disk, RepairOptions::default()) else {
        panic!("nothing was repaired");
    };
    let kept = (
        repaired.lost.sum(),
        repaired.nameless,
        repaired.entries_saved,
    );
    assert_eq!(kept, (0, 0, 700 + 300 + 50));
    let place = repaired.path.clone();
    drop(repaired);
    assert!(of_sim(&disk, &place, CheckpointId(2)) == before);
}

#[test]
fn a_lost_meta_file_leaves_the_choice_to_the_user() {
    let (disk, _run) = sample(1);
    let truth = Truth::of(&disk);
    let metas: Vec<_> = disk
        .paths()
        .into_iter()
        .filter(|p| p.extension().is_some_and(|e| e == "meta"))
        .collect();
    let [_, last] = &metas[..] else {
        panic!("two meta files: {metas:?}");
    };
    disk.corrupt(last, 150, 1).unwrap();
    let error = check_repair(&disk, &truth, RepairOptions::default(), "refused").unwrap_err();
    let why = error.to_string();
    assert!(
        why.contains("--checkpoint 1 (step 1)") && why.contains("--without-meta"),
        "{why}"
    );
    let without_meta = RepairOptions::new().without_meta(true);
    let kept = check_repair(&disk, &truth, without_meta, "without meta").unwrap();
    assert_eq!(kept.checkpoint, CheckpointId(2));
    assert!(kept.meta_lost && !kept.lost_nothing());
    drop(kept);
    let earlier = RepairOptions::new().checkpoint(Some(CheckpointId(1)));
    let kept = check_repair(&disk, &truth, earlier, "checkpoint 1").unwrap();
    assert_eq!(kept.checkpoint, CheckpointId(1));
    assert!(!kept.lost_nothing());
    assert_eq!(kept.checkpoints_dropped, [CheckpointId(2)]);
}

#[test]
fn a_store_that_is_open_is_not_repaired() {
    let (disk, mut run) = sample(1);
    run.open().unwrap();
    let error = run_repair(&disk, RepairOptions::default()).unwrap_err();
    assert!(matches!(error, Error::Locked { .. }), "{error}");
    run.store = None;
    let nothing = Io::of(SimDisk::new(1));
    let error = repair_on(
        &nothing,
        Path::new(ROOT),
        RepairOptions::default(),
        &mut |_, _| Ok(()),
        &mut |_, _| ControlFlow::Continue(()),
    );
    assert!(matches!(error, Err(Error::InvalidArgument(_))));
}

#[test]
fn a_repair_that_is_stopped_leaves_nothing_behind() {
    let (disk, _run) = sample(1);
    let path = disk
        .paths()
        .into_iter()
        .find(|p| p.extension().is_some_and(|e| e == "rows"));
    disk.corrupt(&path.unwrap(), 4100, 1).unwrap();
    let before = files_of(&disk, "/");
    let shared = Io::of(disk.clone());
    let mut calls = 0;
    let mut stop = |_, _| {
        calls += 1;
        if calls > 3 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    let outcome = repair_on(
        &shared,
        Path::new(ROOT),
        RepairOptions::default(),
        &mut |_, _| Ok(()),
        &mut stop,
    );
    assert!(matches!(outcome, Err(Error::Cancelled)), "{outcome:?}");
    assert!(files_of(&disk, "/") == before);
}

/// A trainer goes on in the repaired store; and a second repair finds nothing to do.
#[test]
fn the_repaired_store_takes_the_place_of_the_damaged_one() {
    let home = tempfile::tempdir().unwrap();
    let root = home.path().join("store");
    let disk = Io::pread();
    let outside = home.path().join("elsewhere");
    let options = RuntimeOptions::new().cache_bytes(64 << 20);
    let create = CreateOptions::new().data_directories(vec!["a".into(), outside.clone()]);
    let store = Store::create_on(disk.clone(), &root, create, options.clone()).unwrap();
    let table = store.create_table(&TableDescriptor::new("t", 8)).unwrap();
    let keys: Vec<u64> = (0..2000).map(key).collect();
    let mut out = vec![0.0; keys.len() * 8];
    let lease = store.pull(table, &keys, &mut out).unwrap();
    let values: Vec<f32> = (0..out.len()).map(|i| i as f32).collect();
    store.push(&lease, Update::weights(&values)).unwrap();
    drop(lease);
    store.checkpoint(5, b"dense").unwrap();
    store.close().unwrap();
    let damage = |root: &Path, offset: usize| {
        let files = std::fs::read_dir(root).unwrap().map(|e| e.unwrap().path());
        let path = files
            .into_iter()
            .find(|p| p.extension().is_some_and(|e| e == "rows"));
        let path = path.unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[offset] ^= 0x40;
        std::fs::write(&path, bytes).unwrap();
    };
    damage(&root.join("a"), 5000);
    damage(&outside, 5000);
    let go = |root: &Path| {
        let mut on = |_, _| ControlFlow::Continue(());
        let mut told = |_: &str, _| Ok(());
        repair_on(&disk, root, RepairOptions::default(), &mut told, &mut on).unwrap()
    };
    let RepairOutcome::Built(report, repaired) = go(&root) else {
        panic!("nothing was repaired");
    };
    assert_eq!(report.findings.len(), 2);
    assert_eq!((repaired.lost.sum(), repaired.nameless), (2, 0));
    let aside = repaired.swap_on(&disk, &root).unwrap();
    assert_eq!(aside, home.path().join("store.damaged"));
    assert!(!home.path().join("store.repair").exists());
    drop(repaired);
    assert!(
        matches!(go(&root), RepairOutcome::Whole(_)),
        "twice is once"
    );
    let found = contents(disk.clone(), &root, CheckpointId(1)).unwrap();
    assert_eq!(found.len(), 1998);
    let store = Store::open_on(disk.clone(), &root, options).unwrap();
    assert_eq!(store.checkpoint_meta(CheckpointId(1)).unwrap(), b"dense");
    let table = store.table("t").unwrap();
    let lease = store.pull(table, &keys, &mut out).unwrap();
    store.push(&lease, Update::weights(&values)).unwrap();
    drop(lease);
    store.checkpoint(6, b"dense").unwrap();
    store.close().unwrap();
    // The damaged one is repaired again, into a place of its own: the store that goes on is not
    // touched. (It was wiped: both have a data directory in the same directory elsewhere.)
    let before = contents(disk.clone(), &root, CheckpointId(2)).unwrap();
    let RepairOutcome::Built(_, again) = go(&aside) else {
        panic!("the damaged store became whole");
    };
    assert_eq!(again.lost.sum(), 2);
    drop(again);
    assert!(contents(disk.clone(), &root, CheckpointId(2)).unwrap() == before);
    assert_eq!(before.len(), 2000);
    // And the repaired one, once it is damaged: its new directory stands beside the last, not in it.
    damage(&root.join("a"), 5000);
    let RepairOutcome::Built(_, third) = go(&root) else {
        panic!("nothing was repaired");
    };
    let moved: Vec<&PathBuf> = third.moved.iter().map(|(_, new)| new).collect();
    assert_eq!(moved, [&outside.join("repaired-3")]);
    // Whatever has the name for the damaged one keeps it.
    std::fs::write(home.path().join("store.damaged-2"), "notes").unwrap();
    let aside = third.swap_on(&disk, &root).unwrap();
    assert_eq!(aside, home.path().join("store.damaged-3"));
}

/// A repair that failed, or was killed and begun again, cleared what it had built by the names of the
/// data directories: one elsewhere has an absolute name, so the parameter files of the damaged store
/// itself were removed.
#[test]
fn a_repair_that_is_stopped_leaves_data_directories_elsewhere_as_they_are() {
    let (disk, outside) = (SimDisk::new(1), PathBuf::from("/elsewhere"));
    let options = RuntimeOptions::new().inline(true);
    let create = CreateOptions::new().data_directories(vec!["a".into(), outside.clone()]);
    let io = Io::of(disk.clone());
    let store = Store::create_on(io, Path::new(ROOT), create, options).unwrap();
    let table = store.create_table(&TableDescriptor::new("t", 8)).unwrap();
    let keys: Vec<u64> = (0..200).map(key).collect();
    let mut out = vec![1.0; keys.len() * 8];
    let lease = store.pull(table, &keys, &mut out).unwrap();
    store.push(&lease, Update::weights(&out)).unwrap();
    drop(lease);
    store.checkpoint(1, &[]).unwrap();
    store.close().unwrap();
    let is_rows = |p: &&PathBuf| p.extension().is_some_and(|e| e == "rows");
    let paths = disk.paths();
    let inside = paths.iter().filter(is_rows).find(|p| p.starts_with(ROOT));
    disk.corrupt(inside.unwrap(), 4100, 1).unwrap();
    let before = files_of(&disk, "/");
    assert!(before.keys().any(|p| p.starts_with(&outside)));
    let shared = Io::of(disk.clone());
    for stop_at in 1..12 {
        let mut calls = 0;
        let mut stop = |_, _| {
            calls += 1;
            match calls >= stop_at {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        match repair_on(
            &shared,
            Path::new(ROOT),
            RepairOptions::default(),
            &mut |_, _| Ok(()),
            &mut stop,
        ) {
            Err(Error::Cancelled) => {}
            Ok(RepairOutcome::Built(..)) => break,
            other => panic!("stopped at {stop_at}: {other:?}"),
        }
        let now = files_of(&disk, "/");
        assert!(before == now, "stopped at {stop_at}: {:?}", now.keys());
    }
}

/// A store of the user's own in the place where the repaired one would be built.
#[test]
fn what_is_in_the_way_is_not_cleared() {
    let (disk, _run) = sample(1);
    let path = |name: &str| Path::new(ROOT).join(name);
    disk.corrupt(&path("CURRENT"), 60, 1).unwrap();
    let beside: Vec<_> = files_of(&disk, ROOT)
        .into_iter()
        .map(|(p, bytes)| {
            (
                Path::new("/store.repair").join(p.strip_prefix(ROOT).unwrap()),
                bytes,
            )
        })
        .collect();
    for directory in ["/store.repair", "/store.repair/a", "/store.repair/b"] {
        disk.create_dir(Path::new(directory)).unwrap();
    }
    for (path, bytes) in &beside {
        disk.write_file(path, bytes).unwrap();
    }
    let before = files_of(&disk, "/");
    let error = run_repair(&disk, RepairOptions::default()).unwrap_err();
    assert!(error.to_string().contains("move it away"), "{error}");
    assert!(files_of(&disk, "/") == before);
}

/// The index snapshot of a later checkpoint does not list what was replaced since the earlier one.
#[test]
fn an_index_snapshot_of_a_later_checkpoint_explains_no_loss() {
    let (disk, truth) = grown();
    let earlier = RepairOptions::new().checkpoint(Some(CheckpointId(2)));
    let mut lost = 0;
    for path in disk.paths() {
        if path.extension().is_none_or(|e| e != "rows") {
            continue;
        }
        let whole = disk.read_file(&path).unwrap();
        disk.remove(&path).unwrap();
        let what = path.display().to_string();
        let repaired = check_repair(&disk, &truth, earlier.clone(), &what).unwrap();
        assert_eq!(repaired.checkpoint, CheckpointId(2));
        lost += repaired.lost.sum() + repaired.nameless;
        drop(repaired);
        disk.write_file(&path, &whole).unwrap();
    }
    assert!(lost > 0);
}

#[test]
fn two_damages_at_once_are_both_mended() {
    let (disk, truth) = grown();
    disk.corrupt(&Path::new(ROOT).join("CURRENT"), 60, 1)
        .unwrap();
    let rows = disk.paths().into_iter();
    let rows: Vec<_> = rows
        .filter(|p| p.extension().is_some_and(|e| e == "rows"))
        .collect();
    let last = rows.last().unwrap();
    disk.remove(last).unwrap();
    let repaired = check_repair(&disk, &truth, RepairOptions::default(), "two").unwrap();
    assert!(repaired.files_gone <= 1 && !repaired.lost_nothing());
}

/// A key block holds the intervals: rows under a damaged one are saved with a guessed interval, and
/// those that are stale must not come before newer copies.
/// Without CURRENT the first look sees no parameter file: what is wrong with one is found when the
/// store is built.
#[test]
fn a_damaged_current_hides_no_damage_of_other_files() {
    for from_end in [4096 - 100, 4096 + 100] {
        let (disk, truth) = grown();
        let rows = |p: &PathBuf| p.extension().is_some_and(|e| e == "rows");
        let path = disk.paths().into_iter().find(rows).unwrap();
        let bytes = disk.read_file(&path).unwrap().len() as u64;
        disk.corrupt(&path, bytes - from_end, 1).unwrap();
        disk.corrupt(&Path::new(ROOT).join("CURRENT"), 20, 1)
            .unwrap();
        let what = format!("CURRENT, and a byte {from_end} before the end");
        let repaired = check_repair(&disk, &truth, RepairOptions::default(), &what).unwrap();
        assert_eq!(repaired.undecided, 0);
    }
}

#[test]
fn rows_under_a_damaged_key_block_are_saved() {
    let (disk, mut run) = sample(1);
    run.open().unwrap();
    run.step(&rows(0..40, 3.0)).unwrap();
    run.step(&rows(5..9, 4.0)).unwrap();
    run.step(&Op::Checkpoint(3, Vec::new())).unwrap();
    run.store = None;
    let truth = Truth {
        older: Rows::new(),
        by_checkpoint: [2, 3]
            .map(CheckpointId)
            .map(|id| (id, of_sim(&disk, Path::new(ROOT), id)))
            .into(),
    };
    let mut saved = 0;
    for path in disk.paths() {
        if path.extension().is_none_or(|e| e != "rows") {
            continue;
        }
        let bytes = disk.read_file(&path).unwrap().len() as u64;
        // Header, records, one key block, footer.
        let keys = bytes - 2 * 4096;
        disk.corrupt(&path, keys + 20, 1).unwrap();
        let outcome = run_repair(&disk, RepairOptions::default());
        let Ok(RepairOutcome::Built(_, repaired)) = outcome else {
            // The file belongs to an earlier checkpoint only: the inspection told it.
            panic!("{}: {outcome:?}", path.display());
        };
        let found = of_sim(&disk, &repaired.path, CheckpointId(3));
        saved += repaired.entries_saved;
        let differ = truth.by_checkpoint[&CheckpointId(3)]
            .iter()
            .filter(|(k, v)| found.get(k) != Some(v));
        assert_eq!(differ.count(), 0, "{}: {repaired:?}", path.display());
        disk.corrupt(&path, keys + 20, 1).unwrap();
    }
    assert!(saved > 0);
}
