//! What becomes of a call that is refused beside slots that others were promised and have not taken.

use super::batch::Intent;
use super::split::Wanted;
use crate::store::tests::{keys, made, options, sgd};
use crate::*;

const DIM: usize = 64;

/// A store with a table, and so many keys that they fit once and not twice.
fn three_quarters(options_of_table: TableOptions) -> (Store, TableId, Vec<u64>) {
    let (_, store) = made(options().inline(false));
    let rows = sgd("rows", DIM);
    let table = store.create_table_with(&rows, options_of_table).unwrap();
    let rows = store.stats().capacity_rows * 3 / 4;
    (store, table, keys(0..rows))
}

/// Promises slots for keys, does something meanwhile, and takes the slots.
fn beside_promises<T>(
    store: &Store,
    table: TableId,
    all: &[u64],
    meanwhile: impl FnOnce() -> T,
) -> (T, impl Sized) {
    let puller = &store.parts.puller;
    let there = puller.core.table(table).unwrap();
    let mut wanted = [Wanted {
        table: &there,
        keys: all,
        out: None,
    }];
    let pool = puller.workers.foreground();
    let batch = puller.begin(&pool, &mut wanted).unwrap();
    let result = meanwhile();
    let lease = puller.complete(&pool, Intent::Read, batch).unwrap();
    assert_eq!(lease.len(), all.len());
    (result, lease)
}

/// What another thread gets which has to wait until the promised slots are taken; they stay so until its end.
fn after_promises<T: Send>(
    store: &Store,
    table: TableId,
    all: &[u64],
    work: impl FnOnce() -> T + Send,
) -> T {
    std::thread::scope(|scope| {
        let (work, _lease) = beside_promises(store, table, all, || {
            let work = scope.spawn(work);
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert!(!work.is_finished(), "it waits until the slots are taken");
            work
        });
        work.join().unwrap()
    })
}

#[test]
fn a_pull_of_the_same_rows_shares_their_slots() {
    let (store, table, all) = three_quarters(TableOptions::new());
    let pull = || {
        let mut out = vec![1.0; all.len() * DIM];
        store.pull(table, &all, &mut out).map(|_| out)
    };
    let out = after_promises(&store, table, &all, pull).unwrap();
    assert!(out.iter().all(|f| *f == 0.0));
}

#[test]
fn a_put_of_the_same_rows_shares_their_slots() {
    let stays = TableOptions::new().policy(PolicyKind::PinAll);
    let (store, table, all) = three_quarters(stays);
    let values = vec![2.0; all.len() * DIM];
    let put = || store.put(table, &all, PutRows::weights(&values));
    let report = after_promises(&store, table, &all, put).unwrap();
    assert_eq!(report.rows, all.len() as u64);
    let mut out = vec![0.0; all.len() * DIM];
    store.pull(table, &all, &mut out).unwrap();
    assert_eq!(out, values);
}

#[test]
fn other_rows_are_refused_once_the_promised_slots_are_taken() {
    let (store, table, all) = three_quarters(TableOptions::new());
    let others = keys(1 << 32..(1 << 32) + all.len() as u64);
    let pull = || {
        let mut out = vec![0.0; others.len() * DIM];
        store.pull(table, &others, &mut out).map(drop)
    };
    let refused = after_promises(&store, table, &all, pull);
    assert!(
        matches!(refused, Err(Error::OverBudget { .. })),
        "{refused:?}"
    );
    // What would not fit beside nobody does not wait.
    let mut out = vec![0.0; 2 * all.len() * DIM];
    let both = [&all[..], &others].concat();
    let pull = || store.pull(table, &both, &mut out);
    let (never, _) = beside_promises(&store, table, &all, pull);
    assert!(matches!(never, Err(Error::OverBudget { .. })), "{never:?}");
}

#[test]
fn nobody_waits_for_slots_that_can_not_be_for_his_rows() {
    let (store, table, all) = three_quarters(TableOptions::new());
    let other = store.create_table(&sgd("other", DIM)).unwrap();
    let both = keys(0..2 * all.len() as u64);
    let mut out = vec![0.0; both.len() * DIM];
    let mut refused = |wanted: TableId, some: &[u64]| {
        let pulled = store.pull(wanted, some, &mut out[..some.len() * DIM]);
        matches!(pulled, Err(Error::OverBudget { .. }))
    };
    // A slot that a put keeps to its end.
    let there = store.parts.core.table(table).unwrap();
    let room = store.parts.putter.promise(&there, &all).unwrap();
    assert!(refused(table, &both));
    drop(room);
    // Those of a batch of another table.
    let (is_refused, _) = beside_promises(&store, table, &all, || refused(other, &all));
    assert!(is_refused);
}
