//! What changed between two checkpoints: exactly that, whatever was compacted, dropped, rolled back or
//! reopened in between, and no more is read than that takes.
#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::panic,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/rng.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod rng;
#[path = "common/small.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod small;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::Path;

use hps::io::Io;
use hps::io::sim::{CrashMode, SimDisk};
use hps::*;
use rng::Rng;

const ROOT: &str = "/store";
const DIM: usize = 4;

/// The weights of the keys that have rows.
type Rows = BTreeMap<(TableId, u64), f32>;

fn open(disk: &SimDisk, options: &RuntimeOptions) -> Store {
    Store::open_on(Io::of(disk.clone()), Path::new(ROOT), options.clone()).unwrap()
}

fn create(disk: &SimDisk, options: &RuntimeOptions) -> (Store, [TableId; 2]) {
    let io = Io::of(disk.clone());
    let (create, options) = (CreateOptions::new(), options.clone());
    let store = Store::create_on(io, Path::new(ROOT), create, options).unwrap();
    let tables = ["ads", "items"].map(|name| store.create_table(&small::sgd(name, DIM)).unwrap());
    (store, tables)
}

/// Rows set and keys removed, by a walk.
fn changes(mut walk: Incremental) -> (Rows, BTreeSet<(TableId, u64)>) {
    let (mut rows, mut removed) = (Rows::new(), BTreeSet::new());
    let mut last = None;
    while let Some(change) = walk.next_change().unwrap() {
        let at = match change {
            Change::Row(row) => {
                assert!(row.values.iter().all(|value| *value == row.values[0]));
                rows.insert((row.table, row.key), row.values[0]);
                (row.table, mix64(row.key))
            }
            Change::Removed { table, key, .. } => {
                removed.insert((table, key));
                (table, mix64(key))
            }
            other => panic!("{other:?}"),
        };
        assert!(last < Some(at), "in order, each key once");
        last = Some(at);
    }
    (rows, removed)
}

/// What turns one copy into the other is told, and nothing that did not change.
fn check(store: &Store, since: (CheckpointId, &Rows), until: (CheckpointId, &Rows), what: &str) {
    let (rows, removed) = changes(store.incremental(since.0, until.0).unwrap());
    let mut copy = since.1.clone();
    copy.retain(|at, _| !removed.contains(at));
    copy.extend(&rows);
    assert!(copy == *until.1, "{what}: {} to {}", since.0, until.0);
    assert!(rows.iter().all(|(at, value)| until.1[at] == *value));
    assert!(removed.iter().all(|at| !until.1.contains_key(at)));
    let parts = [TableId(0), TableId(1)].map(|table| {
        let part = |part| {
            let range = part_range(part, 3);
            let walk = store.incremental_of(since.0, until.0, table, range);
            let (rows, removed) = changes(walk.unwrap());
            rows.len() + removed.len()
        };
        (0..3).map(part).sum::<usize>()
    });
    assert_eq!(parts.iter().sum::<usize>(), rows.len() + removed.len());
}

struct Followed {
    disk: SimDisk,
    options: RuntimeOptions,
    store: Option<Store>,
    rows: Rows,
    /// Rows of all checkpoints of this history.
    saved: BTreeMap<CheckpointId, Rows>,
    cursors: BTreeMap<String, CheckpointId>,
    step: u64,
}

impl Followed {
    fn store(&self) -> &Store {
        self.store.as_ref().unwrap()
    }

    fn change(&mut self, rng: &mut Rng) {
        let table = TableId(rng.below(2) as u32);
        let first = rng.below(300) as u64;
        let keys: Vec<u64> = (first..first + 1 + rng.below(60) as u64).collect();
        match rng.below(5) {
            0 | 1 => {
                self.store().remove(table, &keys).unwrap();
                keys.iter().for_each(|key| {
                    self.rows.remove(&(table, *key));
                });
            }
            _ => {
                let value = rng.below(1000) as f32;
                small::set(self.store(), table, &keys, value, DIM);
                self.rows
                    .extend(keys.iter().map(|key| ((table, *key), value)));
            }
        }
    }

    fn checkpoint(&mut self) {
        self.step += 1;
        let info = self.store().checkpoint(self.step, &[]).unwrap();
        self.saved.insert(info.id, self.rows.clone());
    }

    fn retained(&self) -> Vec<CheckpointId> {
        self.store().checkpoints().iter().map(|c| c.id).collect()
    }

    fn check(&self, store: &Store, what: &str) {
        let retained = self.retained();
        let empty = Rows::new();
        let known = retained.iter().chain(self.cursors.values());
        for until in &retained {
            for since in known.clone().filter(|since| *since <= until) {
                let (from, to) = (&self.saved[since], &self.saved[until]);
                check(store, (*since, from), (*until, to), what);
            }
            let to = (*until, &self.saved[until]);
            check(store, (CheckpointId::NONE, &empty), to, what);
        }
        for gone in self
            .saved
            .keys()
            .filter(|id| **id < *retained.last().unwrap())
        {
            if !known.clone().any(|id| id == gone) {
                let error = store.incremental(*gone, *retained.last().unwrap());
                let error = small::invalid(error.err().unwrap());
                assert!(
                    matches!(&error, ArgumentError::HistoryGone { since, .. } if since == gone),
                    "{error}"
                );
            }
        }
    }
}

#[test]
fn what_is_told_turns_every_copy_into_the_other() {
    let mut compared = 0;
    for seed in 0..12 {
        let mut rng = Rng(seed);
        let options = small::options()
            .inline(true)
            .retain_checkpoints(1 + seed as usize % 3)
            .shards(1 + seed as usize % 2);
        let disk = SimDisk::new(seed);
        let (store, _) = create(&disk, &options);
        let mut followed = Followed {
            disk,
            options,
            store: Some(store),
            rows: Rows::new(),
            saved: BTreeMap::new(),
            cursors: BTreeMap::new(),
            step: 0,
        };
        for round in 0..25 {
            for _ in 0..=rng.below(4) {
                followed.change(&mut rng);
                if rng.below(3) == 0 {
                    followed.store().flush().unwrap();
                }
            }
            followed.checkpoint();
            match rng.below(8) {
                0 => drop(followed.store().compact_fully().unwrap()),
                1 => {
                    // What is compacted becomes the last checkpoint's, also when nothing changed.
                    let limits = CompactLimits::new();
                    let go_on = |_| ControlFlow::Continue(());
                    followed.store().compact(&limits, go_on).unwrap();
                }
                2 => {
                    let name = ["near", "far"][rng.below(2)];
                    let retained = followed.retained();
                    let id = retained[rng.below(retained.len())];
                    followed.store().set_cursor(name, id).unwrap();
                    followed.cursors.insert(name.to_owned(), id);
                }
                3 => {
                    let store = followed.store.take().unwrap();
                    store.close().unwrap();
                    followed.store = Some(open(&followed.disk, &followed.options));
                }
                4 => {
                    // As the power leaves it.
                    followed.change(&mut rng);
                    let disk = followed.disk.crash(seed, CrashMode::Random);
                    drop(followed.store.take());
                    followed.store = Some(open(&disk, &followed.options));
                    followed.disk = disk;
                    followed.rows = followed.saved.last_key_value().unwrap().1.clone();
                }
                5 if rng.below(3) == 0 => {
                    let retained = followed.retained();
                    let id = retained[rng.below(retained.len())];
                    let store = followed.store.take().unwrap();
                    followed.store = Some(store.rollback(id).unwrap());
                    followed.saved.retain(|saved, _| *saved <= id);
                    followed.cursors.retain(|_, at| *at <= id);
                    followed.rows = followed.saved[&id].clone();
                    followed.step = followed.store().last_checkpoint().unwrap().step;
                }
                6 if rng.below(3) == 0 => {
                    followed.store().remove_cursor("near").unwrap();
                    followed.cursors.remove("near");
                }
                _ => {}
            }
            let told = followed.store().cursors().into_iter();
            let told: BTreeMap<String, CheckpointId> =
                told.map(|c| (c.name, c.checkpoint)).collect();
            assert_eq!(told, followed.cursors);
            followed.check(followed.store(), &format!("seed {seed}, round {round}"));
            compared += followed.retained().len() + followed.cursors.len();
        }
        let options = followed.options.clone();
        let reader = Io::of(followed.disk.clone());
        let reader = Store::open_read_only_on(reader, Path::new(ROOT), None, options).unwrap();
        let last = *followed.saved.keys().next_back().unwrap();
        for since in followed.cursors.values() {
            let (from, to) = (&followed.saved[since], &followed.saved[&last]);
            check(&reader, (*since, from), (last, to), "read only");
        }
        let error = reader.set_cursor("x", last).unwrap_err();
        assert!(matches!(error, Error::ReadOnly { .. }), "{error}");
    }
    assert!(compared > 500, "{compared}");
}

/// Blocks of 4 KiB that have some of these rows of a file that begins with all rows in order.
fn blocks(places: &[u64], stride: u64) -> u64 {
    let of =
        |place: &u64| (4096 + place * stride) / 4096..=(4096 + (place + 1) * stride - 1) / 4096;
    let blocks: BTreeSet<u64> = places.iter().flat_map(of).collect();
    blocks.len() as u64
}

#[test]
fn no_more_is_read_than_what_changed_and_the_keys_beside_it() {
    const ROWS: u64 = 40_000;
    const CHANGED: u64 = ROWS / 100;
    const WIDE: usize = 128;
    let disk = SimDisk::new(1);
    let options = small::options()
        .cache_bytes(128 << 20)
        .inline(true)
        .retain_checkpoints(3);
    let io = Io::of(disk.clone());
    let store =
        Store::create_on(io, Path::new(ROOT), CreateOptions::new(), options.clone()).unwrap();
    let table = store.create_table(&small::sgd("ads", WIDE)).unwrap();
    let stride = 4 * WIDE as u64 + 16;
    small::fill(&store, table, ROWS, 2000, 1.0, WIDE);
    let first = store.checkpoint(1, &[]).unwrap().id;
    store.compact_fully().unwrap();
    small::fill(&store, table, CHANGED, 400, 2.0, WIDE);
    let second = store.checkpoint(2, &[]).unwrap().id;
    let read = |since, until| {
        let before = disk.read_bytes();
        let (rows, removed) = changes(store.incremental(since, until).unwrap());
        assert_eq!((rows.len() as u64, removed.len()), (CHANGED, 0));
        assert!(rows.values().all(|value| *value == 2.0));
        disk.read_bytes() - before
    };
    // In a file of their own.
    let due = (CHANGED * stride).next_multiple_of(4096) + CHANGED.div_ceil(340) * 4096;
    let seen = read(first, second);
    println!("{seen} bytes read, {due} due");
    assert!(seen * 5 <= due * 6, "{seen} of {due} bytes");
    // Among all the others.
    store.compact_fully().unwrap();
    let third = store.checkpoint(3, &[]).unwrap().id;
    let mut order: Vec<u64> = (0..ROWS).map(|key| mix64(mix64(key))).collect();
    let changed: BTreeSet<u64> = order[..CHANGED as usize].iter().copied().collect();
    order.sort_unstable();
    let places = (0..).zip(&order).filter(|(_, hash)| changed.contains(hash));
    let places: Vec<u64> = places.map(|(place, _)| place).collect();
    let due = (blocks(&places, stride) + ROWS.div_ceil(340)) * 4096;
    let seen = read(first, third);
    println!("{seen} bytes read, {due} due");
    assert!(seen * 5 <= due * 6, "{seen} of {due} bytes");
    assert!(
        seen < ROWS * stride / 4,
        "all rows are {} bytes",
        ROWS * stride
    );
    store.close().unwrap();
}

#[test]
fn what_can_not_be_asked_is_refused_by_name() {
    let disk = SimDisk::new(1);
    let options = small::options().inline(true).retain_checkpoints(2);
    let (store, [table, _]) = create(&disk, &options);
    let mut ids = Vec::new();
    for step in 1..=3 {
        small::set(&store, table, &[step], 1.0, DIM);
        ids.push(store.checkpoint(step, &[]).unwrap().id);
    }
    let refused = |since, until| {
        let error = store.incremental(since, until).err().unwrap();
        small::invalid(error).to_string()
    };
    let gone = refused(ids[0], ids[2]);
    assert!(gone.contains("since checkpoint 1 is not kept"), "{gone}");
    assert!(
        gone.contains("[2, 3]") && gone.contains("set_cursor"),
        "{gone}"
    );
    let unknown = refused(ids[2], CheckpointId(9));
    assert_eq!(unknown, "no checkpoint 9; retained: [2, 3]");
    let order = refused(ids[2], ids[1]);
    assert!(
        order.contains("since checkpoint 3 are not before"),
        "{order}"
    );
    let cursor = |name: &str, id| small::invalid(store.set_cursor(name, id).unwrap_err());
    assert!(matches!(
        cursor("reader", ids[0]),
        ArgumentError::UnknownCheckpoint { .. }
    ));
    for name in [String::new(), "x".repeat(256)] {
        let told = cursor(&name, ids[2]).to_string();
        assert!(told.contains("1 to 255 bytes"), "{told}");
    }
    store.set_cursor(&"x".repeat(255), ids[2]).unwrap();
    store.remove_cursor("never there").unwrap();
    let error = store.incremental_of(ids[1], ids[2], TableId(7), 0..=u64::MAX);
    assert!(matches!(
        small::invalid(error.err().unwrap()),
        ArgumentError::UnknownTable { .. }
    ));
    store.close().unwrap();
}

#[test]
fn a_cursor_is_there_as_soon_as_it_was_set() {
    let disk = SimDisk::new(1);
    let options = small::options().inline(true).retain_checkpoints(1);
    let (store, [table, _]) = create(&disk, &options);
    let keys: Vec<u64> = (0..100).collect();
    small::set(&store, table, &keys, 1.0, DIM);
    let first = store.checkpoint(1, &[]).unwrap().id;
    store.set_cursor("reader", first).unwrap();
    let left = disk.crash(0, CrashMode::KeepNone);
    drop(store);
    let store = open(&left, &options);
    assert_eq!(store.cursors()[0].checkpoint, first);
    // What keeps the removed keys is the cursor alone.
    let tombstones = |store: &Store| store.stats().index_keys - 99;
    store.remove(table, &[7]).unwrap();
    for step in 2..5 {
        store.checkpoint(step, &[]).unwrap();
        store.compact_fully().unwrap();
        assert_eq!(tombstones(&store), 1, "step {step}");
    }
    let last = store.checkpoint(9, &[]).unwrap().id;
    let (rows, removed) = changes(store.incremental(first, last).unwrap());
    assert_eq!((rows.len(), removed), (0, BTreeSet::from([(table, 7)])));
    store.remove_cursor("reader").unwrap();
    let after = left.crash(0, CrashMode::KeepNone);
    drop(store);
    let store = open(&after, &options);
    assert!(store.cursors().is_empty());
    small::set(&store, table, &keys[10..50], 2.0, DIM);
    store.checkpoint(10, &[]).unwrap();
    store.compact_fully().unwrap();
    assert_eq!(tombstones(&store), 0);
    store.close().unwrap();
}

#[test]
fn a_crash_while_a_cursor_moves_leaves_the_old_place_or_the_new_one() {
    let disk = SimDisk::new(3);
    let options = small::options().inline(true).retain_checkpoints(2);
    let (store, [table, _]) = create(&disk, &options);
    let mut ids = Vec::new();
    for step in 1..=2 {
        small::set(&store, table, &[step, 7], 1.0, DIM);
        ids.push(store.checkpoint(step, &[]).unwrap().id);
    }
    store.set_cursor("reader", ids[0]).unwrap();
    store.close().unwrap();
    let (mut old, mut new) = (0, 0);
    for to in [Some(ids[1]), None] {
        for call in 0.. {
            let cut = disk.crash(0, CrashMode::KeepAll);
            let store = open(&cut, &options);
            cut.stop_at(cut.calls() + call);
            let moved = match to {
                Some(id) => store.set_cursor("reader", id),
                None => store.remove_cursor("reader"),
            };
            drop(store);
            for mode in [CrashMode::KeepNone, CrashMode::KeepAll, CrashMode::Random] {
                let left = cut.crash(call, mode);
                let store = open(&left, &options);
                let at = store.cursors().first().map(|cursor| cursor.checkpoint);
                assert!(at == Some(ids[0]) || at == to, "call {call}: {at:?}");
                assert!(moved.is_err() || at == to, "call {call}, {mode:?}: lost");
                match at == to {
                    true => new += 1,
                    false => old += 1,
                }
                assert_eq!(store.checkpoints().len(), 2);
                let last = *ids.last().unwrap();
                drop(store.incremental(at.unwrap_or(ids[0]), last).unwrap());
                store.set_cursor("reader", last).unwrap();
                store.close().unwrap();
            }
            if moved.is_ok() {
                assert!(call > 8, "{call}");
                break;
            }
        }
    }
    assert!(old > 30 && new > 6, "{old} {new}");
}
