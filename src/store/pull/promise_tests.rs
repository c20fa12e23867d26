//! What becomes of a call that is refused beside slots that others were promised and have not taken.

use super::batch::Intent;
use super::split::Wanted;
use crate::store::tests::{keys, made, options, sgd};
use crate::*;

const DIM: usize = 64;

/// A store with a table, and so many keys that they fit once and not twice.
fn three_quarters(descriptor: &TableDescriptor, table: TableOptions) -> (Store, TableId, Vec<u64>) {
    let threaded = options().inline(false);
    let (_, store) = made(threaded);
    let table = store.create_table_with(descriptor, table).unwrap();
    let rows = store.stats().capacity_rows * 3 / 4;
    (store, table, keys(0..rows))
}

/// Promises slots for keys, does something in another thread, and takes the slots after a while.
fn beside_promises<T: Send>(
    store: &Store,
    table: TableId,
    all: &[u64],
    work: impl FnOnce() -> T + Send,
) -> T {
    let puller = &store.parts.puller;
    let there = puller.core.table(table).unwrap();
    let mut wanted = [Wanted {
        table: &there,
        keys: all,
        out: None,
    }];
    let pool = puller.workers.foreground();
    let batch = puller.begin(&pool, &mut wanted).unwrap();
    let (result, lease) = std::thread::scope(|scope| {
        let work = scope.spawn(work);
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!work.is_finished(), "it waits until the slots are taken");
        let lease = puller.complete(&pool, Intent::Read, batch).unwrap();
        (work.join().unwrap(), lease)
    });
    assert_eq!(lease.len(), all.len());
    result
}

#[test]
fn a_pull_of_the_same_rows_shares_their_slots() {
    let (store, table, all) = three_quarters(&sgd("rows", DIM), TableOptions::new());
    let pull = || {
        let mut out = vec![1.0; all.len() * DIM];
        store.pull(table, &all, &mut out).map(|_| out)
    };
    let out = beside_promises(&store, table, &all, pull).unwrap();
    assert!(out.iter().all(|f| *f == 0.0));
}

#[test]
fn a_put_of_the_same_rows_shares_their_slots() {
    let stays = TableOptions::new().policy(PolicyKind::PinAll);
    let (store, table, all) = three_quarters(&sgd("rows", DIM), stays);
    let values = vec![2.0; all.len() * DIM];
    let put = || store.put(table, &all, PutRows::weights(&values));
    let report = beside_promises(&store, table, &all, put).unwrap();
    assert_eq!(report.rows, all.len() as u64);
    let mut out = vec![0.0; all.len() * DIM];
    store.pull(table, &all, &mut out).unwrap();
    assert_eq!(out, values);
}

#[test]
fn other_rows_are_refused_once_the_promised_slots_are_taken() {
    let (store, table, all) = three_quarters(&sgd("rows", DIM), TableOptions::new());
    let others = keys(1 << 32..(1 << 32) + all.len() as u64);
    let pull = || {
        let mut out = vec![0.0; others.len() * DIM];
        store.pull(table, &others, &mut out).map(drop)
    };
    let refused = beside_promises(&store, table, &all, pull);
    assert!(
        matches!(refused, Err(Error::OverBudget { .. })),
        "{refused:?}"
    );
    // What would not fit beside nobody does not wait.
    let mut out = vec![0.0; 2 * all.len() * DIM];
    let both = [&all[..], &others].concat();
    let there = store.parts.core.table(table).unwrap();
    let puller = &store.parts.puller;
    let pool = puller.workers.foreground();
    let mut wanted = [Wanted {
        table: &there,
        keys: &all,
        out: None,
    }];
    let batch = puller.begin(&pool, &mut wanted).unwrap();
    let never = store.pull(table, &both, &mut out);
    assert!(matches!(never, Err(Error::OverBudget { .. })), "{never:?}");
    drop(puller.complete(&pool, Intent::Read, batch).unwrap());
}

#[test]
fn nobody_waits_for_slots_that_can_not_be_for_his_rows() {
    let (store, table, all) = three_quarters(&sgd("rows", DIM), TableOptions::new());
    let other = store.create_table(&sgd("other", DIM)).unwrap();
    let puller = &store.parts.puller;
    let both = keys(0..2 * all.len() as u64);
    let mut out = vec![0.0; both.len() * DIM];
    let mut refused = |wanted: TableId, some: &[u64]| {
        let pulled = store.pull(wanted, some, &mut out[..some.len() * DIM]);
        matches!(pulled, Err(Error::OverBudget { .. }))
    };
    // A slot that a put keeps to its end.
    let there = puller.core.table(table).unwrap();
    let room = store.parts.putter.promise(&there, &all).unwrap();
    assert!(refused(table, &both));
    drop(room);
    // Those of a batch of another table.
    let mut wanted = [Wanted {
        table: &there,
        keys: &all,
        out: None,
    }];
    let pool = puller.workers.foreground();
    let batch = puller.begin(&pool, &mut wanted).unwrap();
    assert!(refused(other, &all));
    drop(puller.complete(&pool, Intent::Read, batch).unwrap());
}
