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

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use hps::inspect::{Scope, inspect_on};
use hps::io::Io;
use hps::io::sim::{CrashMode, SimDisk};
use hps::repair::{RepairOptions, RepairOutcome, repair_on};
use hps::*;
use rng::Rng;

const SOURCE: &str = "/source";
const COPY: &str = "/copy";

type Rows = BTreeMap<(u32, u64), Vec<u32>>;

fn options() -> RuntimeOptions {
    small::options().inline(true).retain_checkpoints(2)
}

fn create(disk: &SimDisk, root: &str) -> Store {
    let io = Io::of(disk.clone());
    Store::create_on(io, Path::new(root), CreateOptions::new(), options()).unwrap()
}

fn open(disk: &SimDisk, root: &str) -> Store {
    Store::open_on(Io::of(disk.clone()), Path::new(root), options()).unwrap()
}

fn folder(n: usize) -> PathBuf {
    PathBuf::from(format!("/deltas/{n}"))
}

/// All rows of the last checkpoint, to the bit, and the names of its tables.
fn content(store: &Store) -> (Rows, Vec<(TableId, TableDescriptor)>) {
    let last = store.last_checkpoint().unwrap().id;
    let mut rows = Rows::new();
    let mut walk = store.rows(last).unwrap();
    while let Some(row) = walk.next_row().unwrap() {
        let bits = row.values.iter().map(|value| value.to_bits()).collect();
        rows.insert((row.table.0, row.key), bits);
    }
    (rows, store.tables_at(last).unwrap())
}

fn meta(store: &Store) -> Vec<u8> {
    let last = store.last_checkpoint().unwrap();
    store.checkpoint_meta(last.id).unwrap()
}

/// A trained store that writes a delta after each checkpoint.
struct Trained {
    disk: SimDisk,
    store: Store,
    rng: Rng,
    step: u64,
    names: u64,
}

impl Trained {
    fn new(seed: u64) -> Trained {
        let disk = SimDisk::new(seed);
        disk.create_dir(Path::new("/deltas")).unwrap();
        let store = create(&disk, SOURCE);
        store.create_table(&TableDescriptor::new("ads", 3)).unwrap();
        let adam = TableDescriptor::new("items", 2).optimizer(Optimizer::Adam);
        store.create_table(&adam).unwrap();
        Trained {
            disk,
            store,
            rng: Rng(seed),
            step: 0,
            names: 0,
        }
    }

    fn work(&mut self) {
        for _ in 0..3 + self.rng.below(5) {
            let tables = self.store.tables();
            let (table, descriptor) = &tables[self.rng.below(tables.len())];
            let first = self.rng.below(200) as u64;
            let keys: Vec<u64> = (first..first + 40).collect();
            if self.rng.below(4) == 0 {
                self.store.remove(*table, &keys[..20]).unwrap();
                continue;
            }
            let mut values = vec![0.0; keys.len() * descriptor.dim];
            let lease = self.store.pull(*table, &keys, &mut values).unwrap();
            let gradients: Vec<f32> = values.iter().map(|v| v * 0.5 + 0.25).collect();
            self.store
                .push(&lease, Update::gradients(&gradients, 0.1))
                .unwrap();
        }
    }

    /// Tables come, go, and change names.
    fn change_tables(&mut self) {
        let tables = self.store.tables();
        self.names += 1;
        let name = format!("table-{}", self.names);
        match self.rng.below(4) {
            0 => drop(
                self.store
                    .create_table(&TableDescriptor::new(&name, 3))
                    .unwrap(),
            ),
            1 if tables.len() > 2 => self.store.drop_table(tables[0].0).unwrap(),
            2 => {
                // Two change places.
                let (a, b) = (&tables[0], &tables[1]);
                self.store.rename_table(a.0, &name).unwrap();
                self.store.rename_table(b.0, &a.1.name).unwrap();
                self.store.rename_table(a.0, &b.1.name).unwrap();
            }
            _ => {
                // One that no checkpoint sees, whose name is used again.
                let gone = self
                    .store
                    .create_table(&TableDescriptor::new(&name, 1))
                    .unwrap();
                self.store.drop_table(gone).unwrap();
                self.store
                    .create_table(&TableDescriptor::new(&name, 2))
                    .unwrap();
            }
        }
    }

    fn checkpoint(&mut self) -> CheckpointId {
        self.step += 1 + self.rng.below(3) as u64;
        let meta = format!("dense weights at {}", self.step);
        self.store
            .checkpoint(self.step, meta.as_bytes())
            .unwrap()
            .id
    }

    /// Writes the next delta, and keeps what the one after it needs.
    fn delta(&mut self, n: usize) -> DeltaInfo {
        let id = self.checkpoint();
        let before = folder(n.saturating_sub(1));
        let base = match n {
            0 => DeltaBase::Nothing,
            _ => DeltaBase::Delta(&before),
        };
        let info = self.store.write_delta(id, &folder(n), base).unwrap();
        self.store.set_cursor("deltas", id).unwrap();
        assert_eq!(
            (info.sequence, info.until, info.step),
            (n as u64, id, self.step)
        );
        info
    }
}

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
    let mut trained = Trained::new(5);
    trained.work();
    trained.delta(0);
    let copy = create(&trained.disk, COPY);
    copy.apply_delta(&folder(0)).unwrap();
    let before = content(&copy);
    copy.close().unwrap();
    trained.work();
    trained.change_tables();
    trained.work();
    trained.delta(1);
    let after = content(&trained.store);
    assert!(before != after);
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
    let mut trained = Trained::new(11);
    trained.work();
    trained.delta(0);
    let copy = create(&trained.disk, COPY);
    copy.apply_delta(&folder(0)).unwrap();
    trained.work();
    trained.delta(1);
    let after = content(&trained.store);
    trained.store.close().unwrap();
    let before = content(&copy);
    copy.close().unwrap();
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
