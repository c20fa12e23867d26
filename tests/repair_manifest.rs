//! Does a repair get back what a damaged manifest, its copy and CURRENT can still say, and tell the
//! rest?

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/crash.rs"]
#[expect(dead_code, reason = "the crash test uses the rest")]
mod common;
#[path = "common/manifests.rs"]
mod manifests;
#[path = "common/repairs.rs"]
#[expect(dead_code, reason = "tests of other damage use the rest")]
mod repairs;
#[path = "common/sample.rs"]
mod sample;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::ROOT;
use hps::format::FileIdentity;
use hps::format::current::Current;
use hps::format::manifest::{Edit, ManifestReader};
use hps::inspect::{Finding, Scope, inspect_on};
use hps::io::Io;
use hps::io::sim::SimDisk;
use hps::repair::{RepairOptions, RepairOutcome, Repaired};
use hps::*;
use manifests::{committed, files, forge};
use repairs::{check_repair, grown, of_sim, run_repair};
use sample::{grow, sample};

/// Weights of a narrow row.
const NARROW_DIM: usize = 256;

#[test]
fn a_manifest_and_its_copy_complete_each_other() {
    let (disk, truth) = grown();
    let [manifest, copy, current] = files(&disk);
    let bytes = disk.read_file(&manifest).unwrap();
    assert_eq!(bytes, disk.read_file(&copy).unwrap());
    // Headers, edits: each is damaged in one of the two, again and again.
    let places: Vec<u64> = (0..bytes.len() as u64).step_by(200).collect();
    for current_lost in [false, true] {
        for (i, place) in places.iter().enumerate() {
            let damaged = if i % 2 == 0 { &manifest } else { &copy };
            disk.corrupt(damaged, *place, 1).unwrap();
        }
        if current_lost {
            disk.corrupt(&current, 20, 1).unwrap();
        }
        let what = "both are damaged";
        let repaired = check_repair(&disk, &truth, RepairOptions::default(), what).unwrap();
        assert_eq!(repaired.checkpoint, CheckpointId(3));
        assert!(repaired.lost_nothing(), "{repaired:?}");
        drop(repaired);
        for path in [&manifest, &copy] {
            disk.write_file(path, &bytes).unwrap();
        }
    }
    // The same edit in both: what came before it is left.
    for path in [&manifest, &copy] {
        disk.corrupt(path, bytes.len() as u64 - 8, 1).unwrap();
    }
    let repaired = check_repair(&disk, &truth, RepairOptions::default(), "the last edit").unwrap();
    assert!(!repaired.lost_nothing(), "{repaired:?}");
}

/// The store that a repair builds, without a comparison.
fn built(disk: &SimDisk) -> Repaired {
    match run_repair(disk, RepairOptions::default()) {
        Ok(RepairOutcome::Built(_, repaired)) => *repaired,
        other => panic!("nothing was built: {:?}", other.err()),
    }
}

/// The whole file counted as lost with one of its sectors: one in each file cost all rows.
#[test]
fn lost_sectors_of_both_files_cost_nothing_where_they_are_of_different_edits() {
    let (disk, truth) = grown();
    let [manifest, copy, _] = files(&disk);
    let bytes = disk.read_file(&manifest).unwrap();
    for (first, second) in [(&manifest, &copy), (&copy, &manifest)] {
        disk.lose_sector(first, 0).unwrap();
        disk.lose_sector(second, bytes.len() as u64 - 1).unwrap();
        let what = format!("sectors of {} first", first.display());
        let repaired = check_repair(&disk, &truth, RepairOptions::default(), &what).unwrap();
        assert_eq!(repaired.checkpoint, CheckpointId(3));
        assert!(repaired.lost_nothing(), "{repaired:?}");
        drop(repaired);
        for path in [&manifest, &copy] {
            disk.write_file(path, &bytes).unwrap();
        }
    }
}

/// Both end with a whole edit, as after a device that lost the last writes: CURRENT says that more was
/// committed, and a repair said that nothing was lost.
#[test]
fn what_current_commits_and_no_manifest_has_is_told_and_its_numbers_are_not_used_again() {
    let (disk, truth) = grown();
    let [manifest, copy, _] = files(&disk);
    let (store, committed) = committed(&disk);
    let bytes = disk.read_file(&manifest).unwrap();
    let id = FileIdentity::new(store, committed.manifest_number);
    let mut reader = ManifestReader::new(&bytes, &id).unwrap();
    let end = loop {
        match reader.next_edit().unwrap().unwrap() {
            Edit::Checkpoint(checkpoint) if checkpoint.id == CheckpointId(2) => {
                break reader.offset();
            }
            _ => {}
        }
    };
    for path in [&manifest, &copy] {
        let kept = &bytes[..usize::try_from(end).unwrap()];
        disk.write_file(path, kept).unwrap();
    }
    let repaired = check_repair(&disk, &truth, RepairOptions::default(), "both are cut").unwrap();
    assert_eq!(repaired.checkpoint, CheckpointId(2));
    let lost = repaired.version_lost.clone();
    assert!(lost.is_some() && !repaired.lost_nothing(), "{repaired:?}");
    drop(repaired);
    let repaired = built(&disk);
    let place = repaired.path.clone();
    drop(repaired);
    let options = RuntimeOptions::new().cache_bytes(32 << 20);
    let store = Store::open_on(Arc::new(disk.clone()), &place, options).unwrap();
    let next = store.checkpoint(100, &[]).unwrap();
    assert!(next.id >= committed.next_checkpoint_id, "{next:?}");
    store.close().unwrap();
    let numbers = |ends: &str| {
        let paths = disk.paths().into_iter();
        let new = paths.filter(|p| p.starts_with(&place) && p.to_str().unwrap().ends_with(ends));
        let stem = |p: PathBuf| p.file_stem().unwrap().to_str().unwrap().parse::<u64>();
        new.map(|p| stem(p).unwrap()).max().unwrap()
    };
    assert!(numbers(".manifest") >= committed.file_number_limit.0);
}

/// A CURRENT of an earlier time, whose manifest is gone: the repair gave out file numbers that files
/// of the newer manifest have, and the next flush could take the place of one of them.
#[test]
fn numbers_of_an_old_current_are_not_used_again() {
    let (disk, mut run) = sample(1);
    let [_, _, path] = files(&disk);
    let old = disk.read_file(&path).unwrap();
    grow(&mut run);
    let rows = of_sim(&disk, Path::new(ROOT), CheckpointId(3));
    let (_, newest) = committed(&disk);
    disk.write_file(&path, &old).unwrap();
    let repaired = built(&disk);
    assert_eq!(repaired.checkpoint, CheckpointId(3));
    assert!(repaired.lost_nothing(), "{repaired:?}");
    let place = repaired.path.clone();
    drop(repaired);
    assert!(of_sim(&disk, &place, CheckpointId(3)) == rows);
    run.options.shards = 2;
    let shared = Io::of(disk.clone());
    let store = Store::open_on(shared.clone(), &place, run.options.clone()).unwrap();
    let table = store.table("many").unwrap();
    for round in 0..8u64 {
        let keys: Vec<u64> = (0..50).map(|i| (round * 50 + i) << 32 | 77).collect();
        let mut weights = vec![0.0; keys.len()];
        let lease = store.pull(table, &keys, &mut weights).unwrap();
        weights.fill(5.0);
        store.push(&lease, Update::weights(&weights)).unwrap();
        drop(lease);
        store.flush().unwrap();
    }
    let next = store.checkpoint(100, &[]).unwrap();
    assert!(next.id > CheckpointId(3), "{next:?}");
    store.close().unwrap();
    // Whatever the newest CURRENT had reserved may have been used.
    let new = disk
        .paths()
        .into_iter()
        .filter(|p| p.starts_with(&place) && p.is_absolute());
    let new = new.filter(|p| p.extension().is_some_and(|e| e == "meta"));
    let number = |p: PathBuf| p.file_stem().unwrap().to_str().unwrap().parse::<u64>();
    let number = new.map(|p| number(p).unwrap()).max().unwrap();
    assert!(number >= newest.file_number_limit.0, "{number} {newest:?}");
    let found = of_sim(&disk, &place, next.id);
    assert_eq!(found.len(), rows.len() + 400);
    assert!(rows.iter().all(|(at, row)| found.get(at) == Some(row)));
}

/// A forged CURRENT, under a right checksum: the first new number ran over.
#[test]
fn numbers_beyond_reason_are_an_error() {
    let (disk, truth) = grown();
    let [_, _, path] = files(&disk);
    let (store, current) = committed(&disk);
    let forged = [
        Current {
            file_number_limit: FileNumber(u64::MAX),
            ..current
        },
        Current {
            next_checkpoint_id: CheckpointId(u64::MAX),
            ..current
        },
    ];
    for forged in forged {
        disk.write_file(&path, &forged.encode(&store)).unwrap();
        let what = "a forged CURRENT";
        let error = check_repair(&disk, &truth, RepairOptions::default(), what).unwrap_err();
        assert!(error.to_string().contains("beyond reason"), "{error}");
    }
}

#[test]
fn a_store_of_which_only_the_copy_knows_is_repaired() {
    let (disk, _run) = sample(1);
    let [manifest, _, _] = files(&disk);
    disk.remove(&manifest).unwrap();
    disk.remove(&Path::new(ROOT).join("STORE")).unwrap();
    let repaired = built(&disk);
    assert!(repaired.lost_nothing(), "{repaired:?}");
}

/// Nothing says which of two copies of one rank is the newer. A look at the store said nothing of
/// them, and a repair kept both: what it built did not open.
#[test]
fn copies_of_one_rank_are_found_and_a_repair_keeps_one_of_them() {
    let (disk, truth) = grown();
    // Every flush has a rank of its own, in the order of the files' numbers.
    forge(&disk, |edits| {
        for edit in edits {
            if let Edit::AddFile(meta) = edit {
                meta.rank = 1;
            }
        }
    });
    let scope = Scope::new().full(true);
    let look = |root: &Path| {
        let on = &mut |_, _| ControlFlow::Continue(());
        inspect_on(&Io::of(disk.clone()), root, scope, on).unwrap()
    };
    let findings = look(Path::new(ROOT)).findings;
    let said = |f: &Finding| f.what.contains("has two copies of one rank");
    assert!(findings.iter().any(said), "{findings:?}");
    let repaired = built(&disk);
    assert_eq!(repaired.checkpoint, CheckpointId(3));
    // Checkpoint 2 has such copies, too; it is not the one that is repaired.
    assert_eq!(repaired.checkpoints_kept, []);
    assert_eq!(repaired.checkpoints_dropped, [CheckpointId(2)]);
    assert!(repaired.undecided > 0 && !repaired.lost_nothing());
    let place = repaired.path.clone();
    drop(repaired);
    assert_eq!(look(&place).findings.len(), 0);
    // The younger file's copy is kept, which is right here.
    assert!(of_sim(&disk, &place, CheckpointId(3)) == truth.by_checkpoint[&CheckpointId(3)]);
}
