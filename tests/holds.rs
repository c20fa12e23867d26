//! A held checkpoint is there as long as it is held, and an identity tells histories apart.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/small.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod small;

use std::path::Path;

use hps::io::Io;
use hps::io::sim::SimDisk;
use hps::*;
use small::{invalid, options, set, sgd};

const DIM: usize = 4;
const ROOT: &str = "/store";

fn ids(store: &Store) -> Vec<u64> {
    store.checkpoints().iter().map(|c| c.id.0).collect()
}

/// A store with checkpoints 1 and 2, whose row 7 is 1 and 2.
fn begin(disk: &SimDisk) -> (Store, TableId) {
    let store = Store::create_on(
        Io::of(disk.clone()),
        Path::new(ROOT),
        CreateOptions::new(),
        options(),
    )
    .unwrap();
    let table = store.create_table(&sgd("t", DIM)).unwrap();
    for step in 1..=2u8 {
        set(&store, table, &[7], f32::from(step), DIM);
        store.checkpoint(u64::from(step), &[step]).unwrap();
    }
    (store, table)
}

fn row_of(store: &Store, checkpoint: CheckpointId) -> f32 {
    let mut rows = store.rows(checkpoint).unwrap();
    rows.next_row().unwrap().unwrap().values[0]
}

#[test]
fn a_held_checkpoint_outlives_its_retention_until_it_is_let_go() {
    let disk = SimDisk::new(1);
    let (store, table) = begin(&disk);
    let first = CheckpointId(1);
    let hold = store.hold(first).unwrap();
    let second = store.hold(first).unwrap();
    assert_eq!((hold.checkpoint(), second.checkpoint()), (first, first));
    assert_eq!(store.stats().holds, 2);
    for step in 3..=9u8 {
        set(&store, table, &[7], f32::from(step), DIM);
        store.checkpoint(u64::from(step), &[step]).unwrap();
    }
    assert_eq!(ids(&store), [1, 8, 9], "two are retained, and what is held");
    let dropped = store.drop_checkpoints(&[first]).unwrap();
    assert_eq!((dropped.dropped, dropped.held), (vec![], vec![first]));
    store.compact_fully().unwrap();
    drop(hold);
    let still = store.drop_checkpoints(&[first]).unwrap();
    assert_eq!(still.held, [first], "the other one holds it still");
    assert_eq!(store.stats().holds, 1);
    // It can be used: opened elsewhere, walked, exported.
    assert_eq!(row_of(&store, first), 1.0);
    assert_eq!(store.checkpoint_meta(first).unwrap(), [1]);
    let reader = |root: &str, id| {
        Store::open_read_only_on(Io::of(disk.clone()), Path::new(root), Some(id), options())
            .unwrap()
    };
    assert_eq!(row_of(&reader(ROOT, first), first), 1.0);
    store.export(first, Path::new("/export"), &[]).unwrap();
    assert_eq!(row_of(&reader("/export", first), first), 1.0);
    drop(second);
    set(&store, table, &[7], 10.0, DIM);
    store.checkpoint(10, &[]).unwrap();
    assert_eq!(ids(&store), [9, 10]);
    assert_eq!(store.stats().holds, 0);
    let gone = invalid(store.hold(first).unwrap_err());
    let said = gone.to_string();
    assert_eq!(said, "no checkpoint 1; retained: [9, 10]");
}

#[test]
fn a_hold_lasts_beyond_the_store_that_gave_it() {
    let disk = SimDisk::new(2);
    let (store, _) = begin(&disk);
    let hold = store.hold(CheckpointId(1)).unwrap();
    store.close().unwrap();
    let store = Store::open_on(Io::of(disk.clone()), Path::new(ROOT), options()).unwrap();
    store.checkpoint(3, &[]).unwrap();
    store.checkpoint(4, &[]).unwrap();
    assert_eq!(ids(&store), [1, 3, 4]);
    drop(hold);
    store.checkpoint(5, &[]).unwrap();
    assert_eq!(ids(&store), [4, 5]);
    // A reader's hold keeps it from a writer too, though the reader has another one open.
    let reader =
        Store::open_read_only_on(Io::of(disk.clone()), Path::new(ROOT), None, options()).unwrap();
    let hold = reader.hold(CheckpointId(4)).unwrap();
    drop(reader);
    store.checkpoint(6, &[]).unwrap();
    store.checkpoint(7, &[]).unwrap();
    assert_eq!(ids(&store), [4, 6, 7]);
    drop(hold);
}

#[test]
fn a_rollback_goes_past_a_held_checkpoint() {
    let disk = SimDisk::new(3);
    let (store, _) = begin(&disk);
    let hold = store.hold(CheckpointId(2)).unwrap();
    let store = store.rollback(CheckpointId(1)).unwrap();
    assert_eq!(ids(&store), [1]);
    assert!(store.hold(CheckpointId(2)).is_err());
    drop(hold);
}

#[test]
fn an_identity_is_of_one_store_one_history_and_one_checkpoint() {
    let disk = SimDisk::new(4);
    let (store, _) = begin(&disk);
    let first = store.identity().unwrap();
    assert_eq!(first.checkpoint, Some(CheckpointId(2)));
    store.checkpoint(3, &[]).unwrap();
    let later = store.identity().unwrap();
    assert_eq!((later.store, later.timeline), (first.store, first.timeline));
    assert_eq!(later.checkpoint, Some(CheckpointId(3)));
    store
        .export(CheckpointId(3), Path::new("/export"), &[])
        .unwrap();
    store.close().unwrap();

    let reader = |root| {
        let store =
            Store::open_read_only_on(Io::of(disk.clone()), Path::new(root), None, options());
        store.unwrap().identity().unwrap()
    };
    assert_eq!(reader(ROOT), later, "whoever opens it, and how often");
    let second = Some(CheckpointId(2));
    let older = Store::open_read_only_on(Io::of(disk.clone()), Path::new(ROOT), second, options());
    let older = older.unwrap().identity().unwrap();
    assert_eq!((older.checkpoint, older.timeline), (second, later.timeline));
    let exported = reader("/export");
    assert_eq!(
        (exported.store, exported.checkpoint),
        (later.store, later.checkpoint)
    );
    assert_ne!(exported.timeline, later.timeline);

    let store = Store::open_on(Io::of(disk.clone()), Path::new(ROOT), options()).unwrap();
    let rolled = store.rollback(CheckpointId(2)).unwrap().identity().unwrap();
    assert_eq!(
        (rolled.store, rolled.checkpoint),
        (later.store, Some(CheckpointId(2)))
    );
    assert!(rolled.timeline != later.timeline && rolled.timeline != exported.timeline);

    let other = Store::create_on(
        Io::of(disk),
        Path::new("/other"),
        CreateOptions::new(),
        options(),
    )
    .unwrap();
    let other = other.identity().unwrap();
    assert_eq!(other.checkpoint, None);
    assert!(other.store != later.store && other.timeline != later.timeline);
}
