//! Copies that follow by deltas beside exports, repairs, leases and other threads.

#[path = "common/rng.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod rng;
#[path = "common/small.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod small;
#[path = "common/trained.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod trained;

use std::ops::ControlFlow;
use std::path::Path;

use hps::format::delta::DeltaBlock;
use hps::format::layout::seal;
use hps::format::{FileIdentity, Kind};
use hps::io::Io;
use hps::io::sim::CrashMode;
use hps::repair::{RepairOptions, RepairOutcome, repair_on};
use hps::*;
use trained::*;

#[test]
fn two_histories_of_one_store_do_not_mix() {
    let mut trained = Trained::new(13);
    trained.work();
    let first = trained.checkpoint();
    trained
        .store
        .export(first, Path::new("/spare"), &[])
        .unwrap();
    trained.store.export(first, Path::new(COPY), &[]).unwrap();
    trained.work();
    let second = trained.checkpoint();
    let base = DeltaBase::Checkpoint(first);
    trained.store.write_delta(second, &folder(0), base).unwrap();
    let copy = open(&trained.disk, COPY);
    copy.apply_delta(&folder(0)).unwrap();
    // The spare goes on by itself: its checkpoints have the same ids.
    let spare = open(&trained.disk, "/spare");
    let (table, _) = spare.tables()[0];
    for step in [1000, 1001] {
        spare
            .remove(table, &(0..step).collect::<Vec<u64>>())
            .unwrap();
        let id = spare.checkpoint(step, b"").unwrap().id;
        let before = folder(0);
        let error = spare.write_delta(id, &folder(1), DeltaBase::Delta(&before));
        let error = small::invalid(error.unwrap_err()).to_string();
        assert!(error.contains("from another store, or before"), "{error}");
    }
    spare.close().unwrap();
    copy.close().unwrap();
}

#[test]
fn a_copy_of_a_copy_has_the_meta_of_the_first() {
    let mut trained = Trained::new(17);
    let copy = create(&trained.disk, COPY);
    let second = create(&trained.disk, "/second");
    for n in 0..3 {
        trained.work();
        trained.delta(n);
        copy.apply_delta(&folder(n)).unwrap();
        let (here, there) = (folder(100 + n), folder(99 + n));
        let base = match n {
            0 => DeltaBase::Nothing,
            _ => DeltaBase::Delta(&there),
        };
        let last = copy.last_checkpoint().unwrap().id;
        copy.write_delta(last, &here, base).unwrap();
        second.apply_delta(&here).unwrap();
        assert_eq!(meta(&second), meta(&trained.store));
        assert!(content(&second) == content(&trained.store));
    }
}

#[test]
fn what_is_refused_for_a_lease_is_taken_once_it_is_gone() {
    let mut trained = Trained::new(19);
    trained.work();
    trained
        .store
        .create_table(&TableDescriptor::new("brief", 2))
        .unwrap();
    let brief = trained.store.table("brief").unwrap();
    let row = PutRows::weights(&[1.0, 2.0]);
    trained.store.put(brief, &[7], row).unwrap();
    trained.delta(0);
    trained.store.drop_table(brief).unwrap();
    trained.work();
    trained.delta(1);
    let copy = create(&trained.disk, COPY);
    copy.apply_delta(&folder(0)).unwrap();
    let lease = copy.pull(copy.table("brief").unwrap(), &[7], &mut [0.0; 2]);
    let error = small::invalid(copy.apply_delta(&folder(1)).unwrap_err());
    assert!(matches!(error, ArgumentError::LeasesOutstanding { .. }));
    drop(lease);
    copy.apply_delta(&folder(1)).unwrap();
    assert!(content(&copy) == content(&trained.store));
}

#[test]
fn an_export_of_an_older_checkpoint_takes_deltas_that_do_not_know_its_tables() {
    let mut trained = Trained::new(23);
    trained.work();
    let first = trained.checkpoint();
    trained.work();
    let second = trained.checkpoint();
    let base = DeltaBase::Checkpoint(first);
    trained.store.write_delta(second, &folder(0), base).unwrap();
    trained
        .store
        .create_table(&TableDescriptor::new("late", 2))
        .unwrap();
    let late = trained.store.table("late").unwrap();
    trained
        .store
        .put(late, &[3], PutRows::weights(&[1.0, 2.0]))
        .unwrap();
    trained.store.set_cursor("first", first).unwrap();
    let third = trained.checkpoint();
    // The export has the late table, without rows.
    let retained: Vec<CheckpointId> = trained.store.checkpoints().iter().map(|c| c.id).collect();
    assert_eq!(retained, [second, third]);
    trained.store.export(second, Path::new(COPY), &[]).unwrap();
    let copy = open(&trained.disk, COPY);
    assert!(copy.table("late").is_ok());
    let before = folder(0);
    let base = DeltaBase::Delta(&before);
    trained.store.write_delta(third, &folder(1), base).unwrap();
    copy.apply_delta(&folder(1)).unwrap();
    assert!(content(&copy) == content(&trained.store));
    copy.close().unwrap();
}

#[test]
fn two_that_apply_one_delta_at_once_apply_it_once() {
    let mut trained = Trained::new(29);
    trained.work();
    trained.delta(0);
    for round in 0..10 {
        let root = format!("/copy-{round}");
        let copy = create(&trained.disk, &root);
        let new = std::thread::scope(|scope| {
            let apply = || copy.apply_delta(&folder(0)).unwrap().is_new;
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(apply)).collect();
            let joined = threads.into_iter().map(|thread| thread.join().unwrap());
            joined.filter(|is_new| *is_new).count()
        });
        assert_eq!(new, 1);
        copy.close().unwrap();
    }
}

#[test]
fn no_delta_goes_on_across_a_repair_that_lost_rows() {
    let mut trained = Trained::new(31);
    trained.work();
    trained.delta(0);
    trained.store.close().unwrap();
    let disk = trained.disk;
    // Most of the rows of a file.
    let files = disk.paths();
    let file = files
        .iter()
        .find(|path| path.starts_with(SOURCE) && path.extension().is_some_and(|end| end == "rows"));
    let file = file.unwrap();
    let mut bytes = disk.read_file(file).unwrap();
    bytes[4096..8192].iter_mut().for_each(|byte| *byte ^= 0x55);
    disk.write_file(file, &bytes).unwrap();
    let go_on = &mut |_, _| ControlFlow::Continue(());
    let (io, root) = (Io::of(disk.clone()), Path::new(SOURCE));
    let options = RepairOptions::default();
    let built = repair_on(&io, root, options, &mut |_, _| Ok(()), go_on).unwrap();
    let RepairOutcome::Built(_, repaired) = built else {
        panic!("nothing was built");
    };
    assert!(repaired.lost.gone + repaired.lost.older + repaired.nameless > 0);
    let root = repaired.path.to_str().unwrap().to_owned();
    let store = open(&disk, &root);
    assert!(store.cursors().is_empty());
    let (table, _) = store.tables()[0];
    store.remove(table, &(0..50).collect::<Vec<u64>>()).unwrap();
    let id = store.checkpoint(1000, b"").unwrap().id;
    let before = folder(0);
    let error = store.write_delta(id, &folder(1), DeltaBase::Delta(&before));
    let error = small::invalid(error.unwrap_err()).to_string();
    assert!(error.contains("rolled back or repaired"), "{error}");
    store
        .write_delta(id, &folder(2), DeltaBase::Nothing)
        .unwrap();
    store.close().unwrap();
}

/// As `tests/numbers.rs` does with the files of a store.
#[test]
fn any_number_in_delta_is_refused_or_taken_whole() {
    let (mut trained, before, after) = one_behind(37, |_| {});
    let last = trained.checkpoint();
    let path = folder(1).join("DELTA");
    let whole = trained.disk.read_file(&path).unwrap();
    let identity = FileIdentity::new([0; 16], FileNumber(0));
    let mut refused = 0;
    for field in DeltaBlock::FIELDS.iter().skip(1) {
        for value in [0, 1, 7, u64::MAX / 2, u64::MAX - 1, u64::MAX] {
            let mut bytes = whole.clone();
            bytes[field.offset..field.offset + 8].copy_from_slice(&value.to_le_bytes());
            seal(&mut bytes, identity.seed(Kind::Delta, 0));
            let disk = trained.disk.crash(0, CrashMode::KeepAll);
            disk.write_file(&path, &bytes).unwrap();
            let told = format!("{} = {value:#x}", field.name);
            let copy = open(&disk, COPY);
            let applied = copy.apply_delta(&folder(1));
            let wanted = if applied.is_ok() { &after } else { &before };
            assert!(content(&copy) == *wanted, "{told}");
            refused += usize::from(applied.is_err());
            // As what another one comes after.
            let store = open(&disk, SOURCE);
            let base = folder(1);
            drop(store.write_delta(last, &folder(2), DeltaBase::Delta(&base)));
            let poisoned = store.checkpoint(1 << 40, b"");
            assert!(poisoned.is_ok(), "{told}: {poisoned:?}");
        }
    }
    assert!(refused > 40, "{refused}");
}
