//! Tables that are dropped and renamed: what later calls say, what older checkpoints keep, whose the
//! memory is then, and what comes back after a reopening.
#![expect(
    clippy::indexing_slicing,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/changed_tables.rs"]
mod changed_tables;
#[path = "common/recorder.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod recorder;
#[path = "common/small.rs"]
mod small;

use std::path::Path;
use std::time::Duration;

use changed_tables::*;
use hps::io::Io;
use hps::io::sim::SimDisk;
use hps::*;
use recorder::{TestRecorder, Value};
use small::{fill, invalid, set, sgd, values};

#[test]
fn each_call_on_a_dropped_table_says_so_and_its_name_can_be_used_again() {
    let (_, store, [_, b, _]) = begin();
    let lease = store.pull(TableId(0), &[1], &mut [0.0; DIM]).unwrap();
    drop(lease);
    store.drop_table(b).unwrap();
    let keys = [mix64(1)];
    let rows = [1.0; DIM];
    let limits = [
        store.pull(b, &keys, &mut [0.0; DIM]).map(drop),
        store.prefetch(b, &keys).map(drop),
        store.contains(b, &keys).map(drop),
        store.remove(b, &keys).map(drop),
        store.put(b, &keys, PutRows::weights(&rows)).map(drop),
        store
            .pull_many(&mut [PullPart::new(b, &keys, &mut [0.0; DIM])])
            .map(drop),
        store
            .prefetch_many(&[PrefetchPart::new(b, &keys)])
            .map(drop),
        store.drop_table(b),
        store.rename_table(b, "d"),
        store.rename_table(b, "b"),
    ];
    for (call, result) in limits.into_iter().enumerate() {
        let (name, table) = (String::from("b"), b);
        let expected = ArgumentError::TableDropped { name, table };
        assert_eq!(invalid(result.unwrap_err()), expected, "call {call}");
    }
    let unknown = invalid(store.table("b").unwrap_err()).to_string();
    assert_eq!(unknown, "no table named \"b\"; known: [\"a\", \"c\"]");
    let unknown = invalid(store.drop_table(TableId(3)).unwrap_err()).to_string();
    assert_eq!(unknown, "no table named \"#3\"; known: [\"a\", \"c\"]");
    let again = store.create_table(&sgd("b", 3)).unwrap();
    assert_eq!((again, store.table("b").unwrap()), (TableId(3), again));
    assert_eq!(store.contains(again, &keys).unwrap(), [false]);
    assert_eq!(names(&store), named(&[(0, "a"), (2, "c"), (3, "b")]));
    store.close_discarding();
}

#[test]
fn a_table_is_not_dropped_while_rows_are_held_and_nothing_changes_then() {
    let disk = SimDisk::new(1);
    let options = options().inline(false);
    let store =
        Store::create_on(Io::of(disk), Path::new(ROOT), CreateOptions::new(), options).unwrap();
    let [a, b] = ["a", "b"].map(|name| store.create_table(&sgd(name, DIM)).unwrap());
    fill(&store, b, 10, 10, 1.0, DIM);
    let refused = || {
        let error = invalid(store.drop_table(b).unwrap_err());
        let is = matches!(error, ArgumentError::LeasesOutstanding { .. });
        assert!(
            is && error.to_string().starts_with("a table can't be dropped"),
            "{error}"
        );
        assert_eq!(values(&store, b, &[mix64(9)], DIM), [1.0; DIM]);
    };
    // A lease on another table's rows does not matter.
    let other = store.pull(a, &[1], &mut [0.0; DIM]).unwrap();
    let ticket = store.prefetch(b, &[1]).unwrap();
    refused();
    let lease = ticket.wait().unwrap();
    refused();
    drop(lease);
    drop(store.prefetch(b, &[mix64(1)]).unwrap());
    store.drop_table(b).unwrap();
    assert_eq!(names(&store), named(&[(0, "a")]));
    drop(other);
    store.close_discarding();
}

#[test]
fn memory_and_index_of_a_dropped_table_are_given_back_and_the_last_one_may_go() {
    let (_, store, [a, b, c]) = begin();
    let before = store.stats();
    assert_eq!((before.index_keys, before.tables.len()), (180, 3));
    store.drop_table(b).unwrap();
    let after = store.stats();
    assert_eq!(after.index_keys, 130);
    let ids: Vec<u32> = after.tables.iter().map(|t| t.id.0).collect();
    assert_eq!(ids, [0, 2]);
    assert_eq!(after.rows_pushed, before.rows_pushed, "sums never fall");
    let gone = before.tables[1].resident_rows;
    assert!(gone > 0, "some were in memory");
    assert_eq!(after.resident_rows, before.resident_rows - gone);
    assert_eq!(after.capacity_rows, before.capacity_rows);
    store.drop_table(a).unwrap();
    store.drop_table(c).unwrap();
    let none = store.stats();
    assert_eq!(
        (none.index_keys, none.capacity_rows, none.live_bytes),
        (0, 0, 0)
    );
    assert!(none.cache_bytes < 64 << 10, "{}", none.cache_bytes);
    assert!(store.tables().is_empty() && store.has_changes());
    store.flush().unwrap();
    store.checkpoint(2, &[]).unwrap();
    let one = store.create_table(&sgd("one", DIM)).unwrap();
    fill(&store, one, 40, 10, 3.0, DIM);
    store.checkpoint(3, &[]).unwrap();
    assert_eq!(store.stats().index_keys, 40);
    store.close().unwrap();
}

#[test]
fn a_drop_and_a_rename_are_there_after_the_next_checkpoint_and_not_before() {
    let (disk, store, tables) = begin();
    let [_, b, c] = tables;
    store.drop_table(b).unwrap();
    store.rename_table(c, "z").unwrap();
    assert!(store.has_changes());
    assert!(matches!(store.close(), Err(Error::Uncheckpointed { .. })));
    let store = open(&disk);
    assert_eq!(names(&store), named(&[(0, "a"), (1, "b"), (2, "c")]));
    assert_eq!(values(&store, b, &[mix64(49)], DIM), [1.0; DIM]);
    assert_eq!(store.stats().index_keys, 180);
    change(&store, tables);
    check_changed(&store);
    store.close().unwrap();
    let store = open(&disk);
    check_changed(&store);
    // Appended, and in a manifest that was begun anew.
    store.checkpoint(3, &[]).unwrap();
    drop(store);
    let store = open(&disk);
    check_changed(&store);
    store
        .drop_checkpoints(&[CheckpointId(1), CheckpointId(2)])
        .unwrap();
    store.close().unwrap();
    check_changed(&open(&disk));
    assert_eq!(look(&disk, Path::new(ROOT), None).worst(), None);
}

#[test]
fn an_older_checkpoint_keeps_the_table_and_the_name() {
    let (disk, store, tables) = begin();
    change(&store, tables);
    let (first, second) = (CheckpointId(1), CheckpointId(2));
    assert_eq!(counts(&store, first), [100, 50, 30, 0]);
    assert_eq!(counts(&store, second), [100, 0, 30, 20]);
    let at = |id| {
        let tables = store.tables_at(id).unwrap().into_iter();
        tables.map(|(id, t)| (id.0, t.name)).collect::<Vec<_>>()
    };
    let (old, new) = (named(&[(0, "a"), (1, "b"), (2, "c")]), names(&store));
    // The new "b" would be there too, without rows, if its name were free.
    assert_eq!((at(first), at(second)), (old.clone(), new.clone()));
    assert!(store.tables_at(CheckpointId(7)).is_err());
    let mut walk = store.rows_of(first, tables[1], part_range(0, 1)).unwrap();
    let mut found = 0;
    while let Some(row) = walk.next_row().unwrap() {
        assert_eq!((row.table, row.values), (tables[1], &[1.0; DIM][..]));
        found += 1;
    }
    assert_eq!(found, 50);
    let gone = store.rows_of(second, tables[1], part_range(0, 1)).map(drop);
    assert!(matches!(
        invalid(gone.unwrap_err()),
        ArgumentError::TableDropped { .. }
    ));
    store.export(first, Path::new("/export"), &[]).unwrap();
    store.export(second, Path::new("/export-2"), &[]).unwrap();
    for root in [ROOT, "/export"] {
        let reader = reader(&disk, root, first);
        assert_eq!(names(&reader), old, "{root}");
        assert_eq!(values(&reader, tables[1], &[mix64(49)], DIM), [1.0; DIM]);
        assert_eq!(reader.table("c").unwrap(), tables[2]);
        assert_eq!(reader.stats().index_keys, 180);
        assert!(matches!(
            reader.drop_table(tables[0]),
            Err(Error::ReadOnly { .. })
        ));
        assert!(matches!(
            reader.rename_table(tables[0], "x"),
            Err(Error::ReadOnly { .. })
        ));
    }
    let reader_2 = reader(&disk, "/export-2", second);
    assert_eq!(
        (names(&reader_2), counts(&reader_2, second)),
        (new.clone(), [100, 0, 30, 20])
    );
    check_changed(&reader_2);
    let report = look(&disk, Path::new(ROOT), Some(first));
    assert_eq!(
        reported(&report),
        [(0, "a", 100), (1, "b", 50), (2, "c", 30)]
    );
    let report = look(&disk, Path::new(ROOT), None);
    assert_eq!(
        reported(&report),
        [(0, "a", 100), (2, "z", 30), (3, "b", 20)]
    );
    assert_eq!(report.worst(), None, "{:?}", report.findings);
    // Back behind it.
    let store = store.rollback(first).unwrap();
    assert_eq!(
        (names(&store), counts(&store, first)),
        (old.clone(), [100, 50, 30, 0])
    );
    assert_eq!(
        store.create_table(&sgd("z", 1)).unwrap(),
        TableId(4),
        "no number twice"
    );
    set(&store, tables[1], &[5], 9.0, DIM);
    store.checkpoint(5, &[]).unwrap();
    drop(store);
    let store = open(&disk);
    assert_eq!(names(&store), [old, named(&[(4, "z")])].concat());
    assert_eq!(
        counts(&store, store.last_checkpoint().unwrap().id),
        [100, 51, 30, 0]
    );
    assert_eq!(look(&disk, Path::new(ROOT), None).worst(), None);
}

#[test]
fn a_checkpoint_that_was_cut_before_has_the_old_name() {
    let disk = SimDisk::new(1);
    let options = options().inline(false);
    let store = Store::create_on(
        Io::of(disk.clone()),
        Path::new(ROOT),
        CreateOptions::new(),
        options,
    )
    .unwrap();
    let [a, b] = ["a", "b"].map(|name| store.create_table(&sgd(name, DIM)).unwrap());
    fill(&store, a, 200, 50, 1.0, DIM);
    let ticket = store.checkpoint_begin(1, &[]).unwrap();
    // A lease may be out.
    let lease = store.pull(b, &[1], &mut [0.0; DIM]).unwrap();
    store.rename_table(b, "c").unwrap();
    store.push(&lease, Update::weights(&[7.0; DIM])).unwrap();
    drop(lease);
    assert!(store.has_changes());
    // Waits for the checkpoint, and is not in it.
    store.drop_table(a).unwrap();
    assert!(ticket.is_done());
    let first = ticket.wait().unwrap().id;
    assert_eq!(
        names(&reader(&disk, ROOT, first)),
        named(&[(0, "a"), (1, "b")])
    );
    assert_eq!(names(&store), named(&[(1, "c")]));
    let second = store.checkpoint(2, &[]).unwrap().id;
    let reader = reader(&disk, ROOT, second);
    assert_eq!(names(&reader), named(&[(1, "c")]));
    assert_eq!(values(&reader, b, &[1], DIM), [7.0; DIM]);
    store.close().unwrap();
}

#[test]
fn a_name_that_is_taken_or_can_not_be_is_refused() {
    let (_, store, [a, b, c]) = begin();
    let taken = invalid(store.rename_table(a, "b").unwrap_err());
    assert_eq!(taken.to_string(), "there is a table named \"b\" already");
    let long = "x".repeat(256);
    for bad in ["", &*long] {
        let error = invalid(store.rename_table(a, bad).unwrap_err());
        assert!(
            error.to_string().contains("must have 1 to 255 bytes"),
            "{error}"
        );
    }
    assert_eq!(names(&store), named(&[(0, "a"), (1, "b"), (2, "c")]));
    store.rename_table(a, "a").unwrap();
    assert!(!store.has_changes(), "its own name changes nothing");
    // Two names are exchanged by way of a third; a dropped one is free.
    store.rename_table(a, &long[..255]).unwrap();
    store.rename_table(b, "a").unwrap();
    store.rename_table(a, "b").unwrap();
    store.drop_table(c).unwrap();
    store.rename_table(a, "c").unwrap();
    assert_eq!(names(&store), named(&[(0, "c"), (1, "a")]));
    let error = store
        .create_table(&sgd("a", DIM + 1))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("\"a\" exists with dim 16, asked with 17"),
        "{error}"
    );
    assert_eq!(store.create_table(&sgd("a", DIM)).unwrap(), b);
    store.checkpoint(2, &[]).unwrap();
    store.close().unwrap();
}

#[test]
fn options_go_with_the_name_and_come_back_with_a_rollback() {
    let own = |policy| TableOptions::new().policy(policy);
    let options = options()
        .table("a", own(PolicyKind::Fifo))
        .table("later", own(PolicyKind::PinAll));
    let (_, store) = create(options);
    let a = store.create_table(&sgd("a", DIM)).unwrap();
    let b = store
        .create_table_with(&sgd("b", DIM), own(PolicyKind::Lru))
        .unwrap();
    let policies = |store: &Store| {
        let stats = store.stats().tables.into_iter();
        stats.map(|t| (t.name, t.policy)).collect::<Vec<_>>()
    };
    let is = |name: &str, policy| (String::from(name), policy);
    let first = store.checkpoint(1, &[]).unwrap().id;
    store.rename_table(a, "x").unwrap();
    store.rename_table(b, "y").unwrap();
    store.create_table(&sgd("a", DIM)).unwrap();
    let later = store.create_table(&sgd("later", DIM)).unwrap();
    let expected = [
        is("x", PolicyKind::Fifo),
        is("y", PolicyKind::Lru),
        is("a", PolicyKind::Bilevel),
        is("later", PolicyKind::PinAll),
    ];
    assert_eq!(
        policies(&store),
        expected,
        "the new \"a\" has nothing of the old one"
    );
    store.drop_table(later).unwrap();
    store.create_table(&sgd("later", DIM)).unwrap();
    assert_eq!(policies(&store)[3], expected[3], "the name has its options");
    let second = store.checkpoint(2, &[]).unwrap().id;
    let store = store.rollback(second).unwrap();
    assert_eq!(policies(&store), expected);
    let store = store.rollback(first).unwrap();
    let back = [is("a", PolicyKind::Fifo), is("b", PolicyKind::Lru)];
    assert_eq!(policies(&store)[..2], back);
    let rest = policies(&store)[2..].to_vec();
    assert_eq!(
        rest,
        [expected[3].clone()],
        "younger tables stay, if their name is free"
    );
    store.create_table(&sgd("x", DIM)).unwrap();
    assert_eq!(policies(&store).pop(), Some(is("x", PolicyKind::Bilevel)));
    store.close_discarding();
}

/// Options were given for a name that no table had yet. A rename to that name put the options of the renamed
/// table in their place: a table that was created under it afterwards, once it was free, had the defaults.
#[test]
fn options_that_wait_for_a_name_are_kept_from_a_table_that_is_renamed_to_it() {
    let own = |policy| TableOptions::new().policy(policy);
    let given = options()
        .table("a", own(PolicyKind::Fifo))
        .table("z", own(PolicyKind::Lru));
    let (disk, store) = create(given.clone());
    let [a, b] = ["a", "b"].map(|name| store.create_table(&sgd(name, DIM)).unwrap());
    let add = |store: &Store, name: &str| store.create_table(&sgd(name, DIM)).unwrap();
    let policy = |store: &Store, name: &str| {
        let mut tables = store.stats().tables.into_iter();
        tables.find(|t| t.name == name).unwrap().policy
    };
    let first = store.checkpoint(1, &[]).unwrap().id;
    store.rename_table(a, "z").unwrap();
    assert_eq!(policy(&store, "z"), PolicyKind::Fifo, "it keeps its own");
    store.checkpoint(2, &[]).unwrap();
    // After a rollback to before the rename they wait as before.
    let store = store.rollback(first).unwrap();
    assert_eq!(policy(&store, "a"), PolicyKind::Fifo);
    let z = add(&store, "z");
    assert_eq!(policy(&store, "z"), PolicyKind::Lru);
    store.drop_table(z).unwrap();
    // By a table that has none, by one that has some; the name is free again by a drop and by a rename.
    store.rename_table(b, "z").unwrap();
    assert_eq!(policy(&store, "z"), PolicyKind::Bilevel);
    store.drop_table(b).unwrap();
    let z = add(&store, "z");
    assert_eq!(policy(&store, "z"), PolicyKind::Lru);
    store.drop_table(z).unwrap();
    store.rename_table(a, "z").unwrap();
    add(&store, "a");
    assert_eq!(policy(&store, "a"), PolicyKind::Bilevel, "they went along");
    store.rename_table(a, "y").unwrap();
    add(&store, "z");
    assert_eq!(policy(&store, "z"), PolicyKind::Lru);
    assert_eq!(policy(&store, "y"), PolicyKind::Fifo);
    // The next open gives each table what is said for its name.
    let last = store.tables().last().unwrap().0;
    store.drop_table(last).unwrap();
    store.rename_table(a, "z").unwrap();
    assert_eq!(policy(&store, "z"), PolicyKind::Fifo);
    store.checkpoint(3, &[]).unwrap();
    store.close().unwrap();
    let store = Store::open_on(Io::of(disk), Path::new(ROOT), given).unwrap();
    assert_eq!(policy(&store, "z"), PolicyKind::Lru);
    assert_eq!(policy(&store, "a"), PolicyKind::Fifo);
    store.close_discarding();
}

#[test]
fn metrics_show_the_new_name_and_nothing_of_a_dropped_table() {
    let recorder = TestRecorder::default();
    metrics::with_local_recorder(&recorder, || {
        let of = |name: &str, table: &str| recorder.labelled(name, &[("table", table)]);
        let (_, store, [_, b, c]) = begin();
        store.publish_metrics();
        let pushed = "hps_table_rows_pushed_total";
        let keys = "hps_table_index_keys";
        assert_eq!(of(pushed, "b"), Some(Value::Counter(50)));
        assert_eq!(of(keys, "b"), Some(Value::Gauge(50.0)));
        store.drop_table(b).unwrap();
        store.rename_table(c, "z").unwrap();
        set(&store, c, &[5], 1.0, DIM);
        store.publish_metrics();
        assert_eq!(of(keys, "b"), Some(Value::Gauge(0.0)));
        assert_eq!(of(keys, "c"), Some(Value::Gauge(0.0)));
        assert_eq!(of(keys, "z"), Some(Value::Gauge(30.0)));
        assert_eq!(
            of(pushed, "z"),
            Some(Value::Counter(1)),
            "what came under this name"
        );
        assert_eq!(of(pushed, "c"), Some(Value::Counter(30)));
        let stats = store.stats();
        assert_eq!(
            (&*stats.tables[1].name, stats.tables[1].rows_pushed),
            ("z", 31)
        );
        store.close_discarding();
    });
}

#[test]
fn a_wait_for_a_prefetch_of_a_table_dropped_meanwhile_ends() {
    let disk = SimDisk::new(1);
    let store = Store::create_on(
        Io::of(disk),
        Path::new(ROOT),
        CreateOptions::new(),
        options().inline(false),
    )
    .unwrap();
    let [a, b] = ["a", "b"].map(|name| store.create_table(&sgd(name, DIM)).unwrap());
    // Pulls, puts and prefetches beside a drop: each is whole or is told.
    let dropped = |error: Error| matches!(invalid(error), ArgumentError::TableDropped { .. });
    std::thread::scope(|scope| {
        let worker = |kind: usize| {
            let store = &store;
            move || loop {
                let mut out = [0.0; 8 * DIM];
                let keys: [u64; 8] = std::array::from_fn(|i| mix64(i as u64 + 8 * kind as u64));
                let ended = match kind {
                    0 => store.pull(b, &keys, &mut out).map(drop),
                    1 => store.put(b, &keys, PutRows::weights(&out)).map(drop),
                    2 => store.remove(b, &keys).map(drop),
                    _ => store.prefetch(b, &keys).and_then(|t| t.wait()).map(drop),
                };
                if let Err(error) = ended {
                    assert!(dropped(error));
                    return;
                }
                std::thread::sleep(Duration::from_micros(50));
            }
        };
        (0..4).for_each(|kind| drop(scope.spawn(worker(kind))));
        while let Err(error) = store.drop_table(b) {
            let held = matches!(invalid(error), ArgumentError::LeasesOutstanding { .. });
            assert!(held);
        }
    });
    assert_eq!(store.stats().index_keys, 0);
    set(&store, a, &[1], 2.0, DIM);
    store.checkpoint(1, &[]).unwrap();
    store.close().unwrap();
}
