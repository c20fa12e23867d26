//! Deltas: a copy that takes them is the store that they are of, whole or not at all, and takes no other.
#![expect(
    clippy::unwrap_used,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/rng.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod rng;
#[path = "common/small.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod small;
#[path = "common/trained.rs"]
mod trained;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use hps::inspect::{Scope, inspect_on};
use hps::io::Io;
use hps::io::sim::{CrashMode, SimDisk};
use hps::*;
use trained::*;

fn whole(disk: &SimDisk, root: &Path) {
    let io = Io::of(disk.clone());
    let go_on = &mut |_, _| ControlFlow::Continue(());
    let report = inspect_on(&io, root, Scope::new().full(true), go_on).unwrap();
    assert_eq!(report.worst(), None, "{root:?}: {report:?}");
}

#[test]
fn a_copy_is_the_store_after_every_delta() {
    let (mut rows, mut removed) = (0, 0);
    for seed in 0..10 {
        let mut trained = Trained::new(seed);
        let mut copy = create(&trained.disk, COPY);
        for n in 0..8 {
            trained.work();
            if trained.rng.below(2) == 0 {
                trained.change_tables();
                trained.work();
            }
            if trained.rng.below(3) == 0 {
                trained.checkpoint();
                trained.store.compact_fully().unwrap();
                trained.work();
            }
            let info = trained.delta(n);
            assert_eq!((info.rows > 0, info.since.0 > 0), (true, n > 0));
            (rows, removed) = (rows + info.rows, removed + info.removed);
            let report = copy.apply_delta(&folder(n)).unwrap();
            assert_eq!((report.is_new, report.delta), (true, info));
            let told = format!("seed {seed}, delta {n}");
            assert!(content(&copy) == content(&trained.store), "{told}");
            let last = copy.last_checkpoint().unwrap();
            assert_eq!(last.step, trained.step);
            // Again it does nothing.
            assert!(!copy.apply_delta(&folder(n)).unwrap().is_new);
            assert_eq!(copy.last_checkpoint().unwrap(), last);
            let dense = format!("dense weights at {}", trained.step);
            assert_eq!(meta(&copy), dense.as_bytes());
            assert_eq!(copy.checkpoint_delta(last.id).unwrap(), Some(info));
            assert_eq!(trained.store.checkpoint_delta(info.until).unwrap(), None);
            if seed % 2 == 0 {
                copy.close().unwrap();
                whole(&trained.disk, Path::new(COPY));
                copy = open(&trained.disk, COPY);
            }
            whole(&trained.disk, &folder(n).join("changes"));
        }
        // A copy that goes back takes the last one again, to the bit.
        let two = copy.checkpoints();
        let copy = copy.rollback(two[0].id).unwrap();
        assert!(copy.apply_delta(&folder(7)).unwrap().is_new);
        assert!(content(&copy) == content(&trained.store), "seed {seed}");
        copy.close().unwrap();
        trained.store.close().unwrap();
    }
    assert!(rows > 3000 && removed > 300, "{rows} {removed}");
}

#[test]
fn an_export_is_a_copy_to_begin_with() {
    let mut trained = Trained::new(3);
    trained.work();
    let first = trained.checkpoint();
    trained.store.export(first, Path::new(COPY), &[]).unwrap();
    trained.work();
    let second = trained.checkpoint();
    let base = DeltaBase::Checkpoint(first);
    let info = trained.store.write_delta(second, &folder(0), base).unwrap();
    assert_eq!((info.sequence, info.since), (0, first));
    trained.work();
    let third = trained.checkpoint();
    let before = folder(0);
    let base = DeltaBase::Delta(&before);
    trained.store.write_delta(third, &folder(1), base).unwrap();
    let copy = open(&trained.disk, COPY);
    let error = small::invalid(copy.apply_delta(&folder(1)).unwrap_err()).to_string();
    assert!(error.contains("is no copy of that"), "{error}");
    copy.apply_delta(&folder(0)).unwrap();
    copy.apply_delta(&folder(1)).unwrap();
    assert!(content(&copy) == content(&trained.store));
    copy.close().unwrap();
}

#[test]
fn a_crash_at_every_call_leaves_all_of_a_delta_or_nothing() {
    let (trained, before, after) = one_behind(5, |trained| {
        trained.change_tables();
        trained.work();
    });
    trained.store.close().unwrap();
    let disk = trained.disk;
    let (mut old, mut new) = (0, 0);
    for call in 0.. {
        let cut = disk.crash(0, CrashMode::KeepAll);
        let copy = open(&cut, COPY);
        cut.stop_at(cut.calls() + call);
        let applied = copy.apply_delta(&folder(1));
        let lefts = [
            (0, CrashMode::KeepNone),
            (0, CrashMode::KeepAll),
            (call, CrashMode::Random),
        ];
        let lefts = lefts.map(|(seed, mode)| (mode, cut.crash(seed, mode)));
        if applied.is_err() {
            // Half a delta is never made a checkpoint.
            cut.clear_faults();
            match copy.checkpoint(1_000_000, b"half") {
                Ok(_) => assert!(content(&copy) == before, "call {call}"),
                Err(error) => assert!(matches!(error, Error::Poisoned { .. }), "{error}"),
            }
        }
        drop(copy);
        for (mode, left) in lefts {
            let copy = open(&left, COPY);
            let found = content(&copy);
            assert!(found == before || found == after, "call {call}, {mode:?}");
            match found == before {
                true => old += 1,
                false => new += 1,
            }
            assert!(
                found == after || applied.is_err(),
                "call {call}, {mode:?}: lost"
            );
            copy.apply_delta(&folder(1)).unwrap();
            assert!(content(&copy) == after, "call {call}, {mode:?}: again");
            copy.close().unwrap();
        }
        if applied.is_ok() {
            assert!(call > 60, "{call}");
            break;
        }
    }
    assert!(old > 200 && new > 3, "{old} {new}");
}

#[test]
fn chains_that_are_broken_are_refused_and_nothing_changes() {
    let mut trained = Trained::new(7);
    for n in 0..4 {
        trained.work();
        trained.delta(n);
    }
    let disk = trained.disk.clone();
    let copy = create(&disk, COPY);
    let refused = |copy: &Store, folder: &Path| {
        let before = copy.last_checkpoint();
        let error = copy.apply_delta(folder).unwrap_err();
        assert_eq!(copy.last_checkpoint(), before, "{error}");
        small::invalid(error).to_string()
    };
    let told = |error: &str, what: &str| assert!(error.contains(what), "{error}");
    told(
        &refused(&copy, &folder(1)),
        "begin with a delta of all rows",
    );
    copy.apply_delta(&folder(0)).unwrap();
    copy.apply_delta(&folder(1)).unwrap();
    told(&refused(&copy, &folder(3)), "deltas are missing before it");
    told(&refused(&copy, &folder(0)), "an older one");
    copy.apply_delta(&folder(2)).unwrap();
    told(&refused(&copy, &folder(1)), "an older one");
    told(&refused(&copy, &folder(9)), "there is no such folder");
    told(
        &refused(&copy, Path::new("/deltas")),
        "there is no file DELTA",
    );
    // A store that goes back, and on from there.
    copy.apply_delta(&folder(3)).unwrap();
    let checkpoints = trained.store.checkpoints();
    let store = trained.store.rollback(checkpoints[0].id).unwrap();
    trained.store = store;
    trained.step = checkpoints[0].step;
    trained.work();
    let id = trained.checkpoint();
    let (before, other) = (folder(2), PathBuf::from("/deltas/other"));
    let base = DeltaBase::Delta(&before);
    trained.store.write_delta(id, &other, base).unwrap();
    told(&refused(&copy, &other), "of another timeline");
    let gone = folder(3);
    let gone = trained
        .store
        .write_delta(id, Path::new("/deltas/x"), DeltaBase::Delta(&gone));
    told(&gone.unwrap_err().to_string(), "rolled back or repaired");
    // The copy goes back as well.
    let two = copy.checkpoints();
    let copy = copy.rollback(two[0].id).unwrap();
    copy.apply_delta(&other).unwrap();
    assert!(content(&copy) == content(&trained.store));
    // Another store's.
    let stranger = create(&disk, "/stranger");
    stranger
        .create_table(&TableDescriptor::new("ads", 3))
        .unwrap();
    let id = stranger.checkpoint(1, b"").unwrap().id;
    let theirs = PathBuf::from("/deltas/theirs");
    stranger
        .write_delta(id, &theirs, DeltaBase::Nothing)
        .unwrap();
    told(
        &refused(&copy, &theirs),
        "another store than the copy is of",
    );
    let error = stranger.write_delta(id, &folder(20), DeltaBase::Delta(&other));
    told(
        &error.unwrap_err().to_string(),
        "written from another store",
    );
    told(&refused(&stranger, &folder(1)), "is no copy of that");
    let error = stranger.write_delta(id, &folder(1), DeltaBase::Nothing);
    told(&error.unwrap_err().to_string(), "not empty");
    let error = stranger.write_delta(id, &folder(21), DeltaBase::Delta(&theirs));
    told(&error.unwrap_err().to_string(), "nothing comes after it");
    // A copy that was trained.
    let (rows, _) = content(&copy);
    let (table, key) = *rows.keys().next().unwrap();
    assert_eq!(copy.remove(TableId(table), &[key]).unwrap(), 1);
    told(&refused(&copy, &other), "changes after its last checkpoint");
    copy.checkpoint(10_000, b"own").unwrap();
    told(&refused(&copy, &folder(3)), "is no copy of that");
    copy.close().unwrap();
    stranger.close().unwrap();
    trained.store.close().unwrap();
}

#[test]
fn a_delta_that_was_changed_or_cut_short_is_refused_before_anything_changes() {
    let (trained, before, after) = one_behind(11, |_| {});
    trained.store.close().unwrap();
    let disk = trained.disk;
    let files = disk.paths();
    let files = files.iter().filter(|path| path.starts_with(folder(1)));
    let mut refused = 0;
    for path in files {
        // Of these there is a copy, or they only keep others out.
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.ends_with(".copy") {
            continue;
        }
        let bytes = disk.read_file(path).unwrap();
        let last = bytes.len() - 1;
        let spots = [0, 9, last / 3, last / 2, last * 2 / 3].map(Some);
        for spot in spots.into_iter().chain([None]) {
            let bad = disk.crash(0, CrashMode::KeepAll);
            let changed = match spot {
                Some(at) => {
                    let mut changed = bytes.clone();
                    changed[at] ^= 0x10;
                    changed
                }
                None => bytes[..last].to_vec(),
            };
            bad.write_file(path, &changed).unwrap();
            let copy = open(&bad, COPY);
            match copy.apply_delta(&folder(1)) {
                Err(error) => {
                    let is_told = matches!(
                        error,
                        Error::Corrupt { .. }
                            | Error::Unsupported { .. }
                            | Error::InvalidArgument(_)
                    );
                    assert!(is_told, "{}: {error}", path.display());
                    assert!(content(&copy) == before);
                    refused += 1;
                }
                // A manifest has a copy, and not all bytes of a file mean something.
                Ok(_) => {
                    assert!(content(&copy) == after, "{}", path.display());
                    assert!(name.ends_with(".manifest") || name.ends_with(".rows"));
                }
            }
            copy.close().unwrap();
        }
    }
    assert!(refused > 25, "{refused}");
}
