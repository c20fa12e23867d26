//! What a push does to rows that are named more than once, and what it looks at.

use crate::mem::Flags;
use crate::store::tests::{made, open_again, options, set, sgd};
use crate::units::Slot;
use crate::*;

/// With `false` nothing would be lost but time: the values are looked at again.
#[test]
fn values_that_are_not_finite_are_found_wherever_they_are() {
    for threads in [1, 2, 3] {
        let (_, store) = made(RuntimeOptions {
            threads,
            ..options()
        });
        let workers = &store.parts.workers;
        for length in [0, 1, 2, 3, 7, 64, 100] {
            let mut values = vec![1.0; length];
            for keys in [1, 300] {
                assert!(
                    workers.are_finite(&[&values], keys),
                    "{length} by {threads}"
                );
            }
            for at in 0..length {
                values[at] = f32::NAN;
                for keys in [1, 300] {
                    assert!(!workers.are_finite(&[&values], keys), "{at} of {length}");
                    let parts: [&[f32]; 3] = [&[2.0; 5], &values, &[]];
                    assert!(
                        !workers.are_finite(&parts, keys),
                        "{at} of a part of {length}"
                    );
                }
                values[at] = -1.0;
            }
        }
    }
}

fn rows(store: &Store, table: TableId, keys: &[u64]) -> Vec<f32> {
    let width = store.tables()[table.0 as usize].1.row_f32s();
    let dim = store.tables()[table.0 as usize].1.dim;
    let lease = store
        .pull(table, keys, &mut vec![0.0; keys.len() * dim])
        .unwrap();
    let mut rows = vec![0.0; keys.len() * width];
    lease.read_rows(&mut rows).unwrap();
    rows
}

#[test]
fn a_key_that_is_named_twice_is_changed_in_the_order_of_the_caller() {
    let (_, store) = made(options());
    let table = store.create_table(&sgd("rows", 2)).unwrap();
    let keys = [5, 6, 5];
    let lease = store.pull(table, &keys, &mut [0.0; 6]).unwrap();
    let push = |update: Update<'_>| store.push(&lease, update).unwrap();
    let report = push(Update::weights(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    assert_eq!(
        report,
        PushReport {
            rows: 2,
            non_finite: 0
        }
    );
    assert_eq!(rows(&store, table, &[5, 6]), [5.0, 6.0, 3.0, 4.0]);
    push(Update::deltas(&[1.0, 0.0, 10.0, 0.0, 2.0, 0.5]));
    assert_eq!(rows(&store, table, &[5, 6]), [8.0, 6.5, 13.0, 4.0]);
    push(Update::gradients(&[1.0, 2.0, 4.0, 0.0, 3.0, 0.0], 0.5));
    assert_eq!(rows(&store, table, &[5, 6]), [6.0, 5.5, 11.0, 4.0]);
    push(Update::rows(&[9.0, 9.0, 8.0, 8.0, 7.0, 7.0]));
    assert_eq!(rows(&store, table, &[5, 6]), [7.0, 7.0, 8.0, 8.0]);
    let stats = store.stats();
    assert_eq!((stats.rows_pushed, stats.bytes_pushed), (8, 64));
}

/// The columns are counts: whole rows replace them, everything else adds to them.
#[test]
fn shows_and_clicks_of_equal_keys_are_summed_and_saturate() {
    let (_, store) = made(options());
    let metadata = RowMetadata {
        show: true,
        click: true,
        count: true,
        last_step: true,
    };
    let descriptor = TableDescriptor {
        metadata,
        ..sgd("rows", 1)
    };
    let table = store.create_table(&descriptor).unwrap();
    let lease = store.pull(table, &[1, 2, 1], &mut [0.0; 3]).unwrap();
    let update = Update::weights(&[1.0, 2.0, 3.0]).step(7);
    store
        .push(&lease, update.shows_clicks(&[1, 20, 3], &[5, 0, 1]))
        .unwrap();
    let bits = |keys: &[u64]| -> Vec<u32> {
        rows(&store, table, keys)
            .iter()
            .map(|f| f.to_bits())
            .collect()
    };
    let one = bits(&[1]);
    assert_eq!(
        (f32::from_bits(one[0]), one[1], one[2], one[4]),
        (3.0, 4, 6, 7)
    );
    let two = bits(&[2]);
    assert_eq!((two[1], two[2], two[4]), (20, 0, 7));
    assert_eq!((one[3], two[3]), (1, 1), "a push counts once a row");
    let update = Update::deltas(&[0.0; 3]).step(9);
    store
        .push(&lease, update.shows_clicks(&[u32::MAX, 0, 3], &[0; 3]))
        .unwrap();
    let one = bits(&[1]);
    assert_eq!((one[1], one[2], one[3], one[4]), (u32::MAX, 6, 2, 9));
    // Without shows and clicks the step is told all the same.
    store
        .push(&lease, Update::deltas(&[0.0; 3]).step(10))
        .unwrap();
    let two = bits(&[2]);
    assert_eq!((two[1], two[2], two[3], two[4]), (20, 0, 3, 10));
    let whole = [0.5, f32::NAN, f32::from_bits(3), 0.0, 0.0];
    let again = store.pull(table, &[2], &mut [0.0]).unwrap();
    let report = store.push(&again, Update::rows(&whole).step(11)).unwrap();
    assert_eq!(report.non_finite, 0, "counts may have any bits");
    let expected: Vec<u32> = whole.iter().map(|f| f.to_bits()).collect();
    assert_eq!(bits(&[2]), expected);
    for (shows, clicks) in [(2, 3), (3, 2)] {
        let (shows, clicks) = (vec![0; shows], vec![0; clicks]);
        let update = Update::weights(&[0.0; 3]).shows_clicks(&shows, &clicks);
        match store.push(&lease, update) {
            Err(Error::InvalidArgument(ArgumentError::Length {
                expected, found, ..
            })) => {
                assert_eq!((expected, found), (3, 2));
            }
            other => unreachable!("{other:?}"),
        }
    }
}

#[test]
fn what_is_not_finite_is_counted_by_position_and_named_by_its_key() {
    let values = [1.0, f32::NAN, 2.0, 2.0, f32::INFINITY, 0.0, 5.0, 5.0];
    let keys = [10, 11, 12, 13];
    for non_finite in [NonFinite::Skip, NonFinite::Apply, NonFinite::Reject] {
        let (_, store) = made(RuntimeOptions {
            non_finite,
            shards: 3,
            ..options()
        });
        let table = store.create_table(&sgd("rows", 2)).unwrap();
        let lease = store.pull(table, &keys, &mut [0.0; 8]).unwrap();
        let result = store.push(&lease, Update::weights(&values));
        let stats = store.stats();
        match non_finite {
            NonFinite::Reject => {
                let Err(Error::InvalidArgument(ArgumentError::NonFinite { key, index, .. })) =
                    result
                else {
                    unreachable!("{result:?}")
                };
                assert_eq!((key, index), (10, 0));
                assert_eq!((stats.rows_pushed, stats.non_finite), (0, 0));
                for at in 1..4 {
                    let mut values = [0.0; 8];
                    values[2 * at + 1] = f32::NAN;
                    match store.push(&lease, Update::weights(&values)) {
                        Err(Error::InvalidArgument(ArgumentError::NonFinite {
                            key,
                            index,
                            ..
                        })) => assert_eq!((key, index), (keys[at], at)),
                        other => unreachable!("{other:?}"),
                    }
                }
                assert!(!store.has_changes());
            }
            NonFinite::Skip => {
                assert_eq!(
                    result.unwrap(),
                    PushReport {
                        rows: 2,
                        non_finite: 2
                    }
                );
                assert_eq!((stats.rows_pushed, stats.non_finite), (2, 2));
                let known = store.contains(table, &keys).unwrap();
                assert_eq!(known, [false, true, false, true]);
                assert_eq!(rows(&store, table, &[11, 10]), [2.0, 2.0, 0.0, 0.0]);
            }
            NonFinite::Apply => {
                assert_eq!(
                    result.unwrap(),
                    PushReport {
                        rows: 4,
                        non_finite: 2
                    }
                );
                assert_eq!((stats.rows_pushed, stats.non_finite), (4, 2));
                assert!(rows(&store, table, &[10])[1].is_nan());
            }
        }
    }
}

/// Rows that nobody has read have no content in memory: whatever is done with them first, it is done to the row
/// of a key that was never pushed.
#[test]
fn what_is_done_first_to_rows_that_nobody_read_is_done_to_default_rows() {
    let descriptor = TableDescriptor {
        optimizer: Optimizer::Adagrad,
        accumulator: 0.5,
        metadata: RowMetadata {
            show: true,
            count: true,
            ..RowMetadata::default()
        },
        ..TableDescriptor::new("rows", 3)
    };
    let keys: Vec<u64> = (0..60).collect();
    let width = descriptor.row_f32s();
    let of = |read_first: bool| {
        let (disk, store) = made(options());
        let table = store.create_table(&descriptor).unwrap();
        // What another row leaves behind in memory.
        let other = store.create_table(&sgd("other", width)).unwrap();
        set(&store, other, &keys, 9.0);
        store.drop_table(other).unwrap();
        let lease = match read_first {
            true => store.pull(table, &keys, &mut [0.0; 60 * 3]).unwrap(),
            false => store.prefetch(table, &keys).unwrap().wait().unwrap(),
        };
        let slots = |shard: usize| lease.rows[shard].slots.iter();
        let count = |shard: usize| {
            let guard = store.parts.core.shards[shard].lock();
            let unfilled = |slot: &&Slot| guard.cache.flags(**slot).any(Flags::UNFILLED);
            slots(shard).filter(unfilled).count()
        };
        let unfilled: usize = (0..store.parts.core.shards.len()).map(count).sum();
        assert_eq!(unfilled, if read_first { 0 } else { 60 });
        let values = [0.25; 10 * 3];
        let shows = [2; 10];
        let push = |first: u32, update: Update<'_>| {
            let positions: Vec<u32> = (first..first + 10).collect();
            store.push(&lease, update.at(&positions)).unwrap();
        };
        push(
            0,
            Update::gradients(&values, 0.1).shows_clicks(&shows, &shows),
        );
        push(10, Update::deltas(&values));
        push(20, Update::weights(&values));
        push(30, Update::rows(&vec![0.75; 10 * width]).verbatim());
        store
            .put(table, &keys[40..45], PutRows::weights(&[1.5; 15]))
            .unwrap();
        assert_eq!(store.remove(table, &[31, 32]).unwrap(), 2);
        let mut some = vec![0.0; 2 * width];
        let of_table = lease.parts().next().unwrap();
        of_table.read_rows_at(&[59, 32], &mut some).unwrap();
        let mut all = vec![0.0; 60 * width];
        lease.read_rows(&mut all).unwrap();
        assert_eq!(some[..width], all[59 * width..]);
        assert_eq!(some[width..], all[32 * width..33 * width]);
        drop(lease);
        let twice = rows(&store, table, &keys);
        store.checkpoint(1, &[]).unwrap();
        store.close().unwrap();
        let again = open_again(&disk, options());
        (all, twice, rows(&again, table, &keys))
    };
    let bits = |rows: &[f32]| rows.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
    let (read, not) = (of(true), of(false));
    for rows in [&read.1, &read.2, &not.0, &not.1, &not.2] {
        assert_eq!(bits(rows), bits(&read.0));
    }
    let mut default = vec![0.0; width];
    crate::row::RowLayout::new(&descriptor).default_row(59, &mut default);
    assert_eq!(read.0[59 * width..], default);
}
