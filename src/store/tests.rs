//! A store for the tests of its parts, and the figures that it gives: each is held exactly.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use crate::io::Io;
use crate::io::sim::SimDisk;
use crate::*;

pub(in crate::store) const ROOT: &str = "/store";

/// One thread, two shards; flushes, compactions and checkpoints in the caller's thread.
pub(in crate::store) fn options() -> RuntimeOptions {
    RuntimeOptions {
        cache_bytes: 1 << 20,
        io_depth: 8,
        threads: 1,
        shards: 2,
        inline: true,
        ..RuntimeOptions::default()
    }
}

pub(in crate::store) fn sgd(name: &str, dim: usize) -> TableDescriptor {
    TableDescriptor {
        optimizer: Optimizer::Sgd,
        initialiser: Initialiser::Zero,
        ..TableDescriptor::new(name, dim)
    }
}

/// An empty store on a disk of its own.
pub(in crate::store) fn made(options: RuntimeOptions) -> (Io, Store) {
    made_with(CreateOptions::new(), options)
}

pub(in crate::store) fn made_with(create: CreateOptions, options: RuntimeOptions) -> (Io, Store) {
    let disk = Io::from(Arc::new(SimDisk::new(1)));
    let store = Store::create_on(disk.clone(), Path::new(ROOT), create, options).unwrap();
    (disk, store)
}

pub(in crate::store) fn open_again(disk: &Io, options: RuntimeOptions) -> Store {
    Store::open_on(disk.clone(), Path::new(ROOT), options).unwrap()
}

/// Gives rows one value.
pub(in crate::store) fn set(store: &Store, table: TableId, keys: &[u64], value: f32) -> PushReport {
    let dim = store.tables()[table.0 as usize].1.dim;
    let mut rows = vec![0.0; keys.len() * dim];
    let lease = store.pull(table, keys, &mut rows).unwrap();
    rows.fill(value);
    store.push(&lease, Update::weights(&rows)).unwrap()
}

pub(in crate::store) fn keys(range: std::ops::Range<u64>) -> Vec<u64> {
    range.map(mix64).collect()
}

pub(in crate::store) fn all_limits() -> CompactLimits {
    CompactLimits {
        stale_share: 0.01,
        ..CompactLimits::default()
    }
}

#[test]
fn what_a_batch_asks_for_and_finds_is_counted_row_by_row() {
    let (disk, store) = made(options());
    let table = store.create_table(&sgd("rows", 4)).unwrap();
    let fresh = store.stats();
    assert_eq!(
        (fresh.unique_asked, fresh.leases, fresh.rows_read),
        (0, 0, 0)
    );
    assert_eq!((fresh.capacity_rows > 0, fresh.resident_rows), (true, 0));
    set(&store, table, &keys(0..10), 1.0);
    let pushed = store.stats();
    assert_eq!((pushed.rows_pushed, pushed.bytes_pushed), (10, 160));
    assert_eq!(
        (pushed.rows_read, pushed.unique_asked),
        (10, 0),
        "none was known"
    );
    assert_eq!((pushed.dirty_rows, pushed.uncheckpointed_rows), (10, 10));
    assert_eq!((pushed.resident_rows, pushed.pinned_rows), (10, 0));
    // Five that are known and resident, one of them twice, and one that nobody ever pushed.
    let mut asked = keys(0..5);
    asked.extend(keys(0..1));
    asked.extend(keys(99..100));
    let mut out = vec![0.0; 28];
    let lease = store.pull(table, &asked, &mut out).unwrap();
    let with = store.stats();
    assert_eq!(
        (with.unique_asked, with.unique_hits, with.rows_read),
        (5, 5, 17)
    );
    assert_eq!(
        (with.leases, with.lease_bytes, with.pinned_rows),
        (1, 70, 6)
    );
    lease.read(&mut out).unwrap();
    assert_eq!(store.stats().rows_read, 24);
    drop(lease);
    let without = store.stats();
    assert_eq!(
        (without.leases, without.lease_bytes, without.pinned_rows),
        (0, 0, 0)
    );
    assert_eq!(store.flush().unwrap(), 10);
    let flushed = store.stats();
    let parts = [
        flushed.cache_row_bytes,
        flushed.cache_state_bytes,
        flushed.cache_hash_table_bytes,
        flushed.cache_order_bytes,
        flushed.cache_frequency_bytes,
    ];
    let named: u64 = parts.iter().sum();
    assert!(
        named <= flushed.cache_bytes && named * 10 > flushed.cache_bytes * 8,
        "{parts:?}"
    );
    assert_eq!(
        flushed.read_buffer_bytes + flushed.write_buffer_bytes,
        flushed.buffer_bytes
    );
    let running = [
        flushed.flush_bytes,
        flushed.compaction_bytes,
        flushed.snapshot_buffer_bytes,
    ];
    assert_eq!(running, [0; 3], "no work runs");
    assert_eq!(
        (flushed.flushes, flushed.dirty_rows, flushed.index_keys),
        (1, 0, 10)
    );
    assert_eq!(flushed.uncheckpointed_rows, 10, "no checkpoint has them");
    let written: u64 = store.files().iter().map(|f| f.bytes).sum();
    assert_eq!(
        (flushed.written_bytes, flushed.current_bytes),
        (written, written)
    );
    assert_eq!((flushed.compaction_written_bytes, flushed.reads), (0, 0));
    store.checkpoint(1, &[7; 30]).unwrap();
    let durable = store.stats();
    assert_eq!((durable.checkpoints, durable.uncheckpointed_rows), (1, 0));
    store.close().unwrap();
    // Reopened, all of them have to be read, together.
    let store = open_again(&disk, options());
    let mut out = vec![0.0; 40];
    drop(store.pull(table, &keys(0..10), &mut out).unwrap());
    let cold = store.stats();
    assert_eq!((cold.unique_asked, cold.unique_hits), (10, 0));
    assert!((1..=10).contains(&cold.reads), "{} reads", cold.reads);
    assert!(cold.read_bytes >= 160, "{} bytes", cold.read_bytes);
    assert!(cold.tables[0].wait(Wait::Device).count > 0);
}

#[test]
fn memory_of_buffers_is_that_of_all_queues() {
    // Read: 3 queues of 4 buffers of 12 KiB; written: 4 of 16 KiB.
    let (_, store) = made(options());
    assert_eq!(store.stats().buffer_bytes, 147_456 + 65_536);
    assert_eq!(store.parts.workers.bytes(), 147_456);
    assert_eq!(store.parts.flusher.buffer_bytes(), 65_536);
    // From 64 MiB on four files are written at a time, with four buffers each.
    for (cache_bytes, written) in [(64 << 20, 8 << 20), ((64 << 20) - 4096, 3 << 20)] {
        let options = RuntimeOptions {
            cache_bytes,
            inline: false,
            ..options()
        };
        let (_, store) = made(options);
        assert_eq!(store.parts.flusher.buffer_bytes(), written);
        store.close().unwrap();
    }
}

#[test]
fn which_keys_are_known_is_told_wherever_their_rows_are() {
    let (disk, store) = made(options());
    let table = store.create_table(&sgd("rows", 4)).unwrap();
    let all = keys(0..6);
    set(&store, table, &all[..4], 1.0);
    // A pull alone makes no row known.
    let mut out = [0.0; 8];
    let lease = store.pull(table, &all[4..], &mut out).unwrap();
    let known = [true, true, true, true, false, false];
    assert_eq!(store.contains(table, &all).unwrap(), known);
    drop(lease);
    // Unknown ones and repeated ones do not count.
    let some = [all[0], all[4], all[0], all[1]];
    assert_eq!(store.remove(table, &some).unwrap(), 2);
    assert_eq!(store.remove(table, &some).unwrap(), 0);
    let known = [false, false, true, true, false, false];
    assert_eq!(store.contains(table, &all).unwrap(), known);
    assert!(store.has_changes());
    store.checkpoint(1, &[]).unwrap();
    assert_eq!(
        store.remove(table, &all[2..3]).unwrap(),
        1,
        "it is on SSD, too"
    );
    let known = [false, false, false, true, false, false];
    assert_eq!(store.contains(table, &all).unwrap(), known);
    store.checkpoint(2, &[]).unwrap();
    store.close().unwrap();
    let store = open_again(&disk, options());
    assert_eq!(
        store.contains(table, &all).unwrap(),
        known,
        "none is resident"
    );
    // Removed without being read, and told as one.
    assert_eq!(store.remove(table, &all).unwrap(), 1);
    assert_eq!(store.stats().reads, 0);
    assert_eq!(store.contains(table, &all).unwrap(), [false; 6]);
    let mut out = [1.0; 24];
    drop(store.pull(table, &all, &mut out).unwrap());
    assert_eq!(out, [0.0; 24]);
}

#[test]
fn a_lease_says_what_it_holds_and_refuses_other_lengths() {
    let (_, store) = made(options());
    let adagrad = TableDescriptor {
        optimizer: Optimizer::Adagrad,
        ..sgd("state", 4)
    };
    let table = store.create_table(&adagrad).unwrap();
    let width = adagrad.row_f32s();
    assert!(width > 4);
    let key = keys(0..2);
    let mut out = [0.0; 8];
    let first = store.pull(table, &key, &mut out).unwrap();
    let second = store.pull(table, &key, &mut out).unwrap();
    assert_eq!(
        (first.len(), first.is_empty(), first.table()),
        (2, false, table)
    );
    assert_eq!(second.id(), first.id() + 1);
    assert!(first.id() > 0);
    let none = store.pull(table, &[], &mut []).unwrap();
    assert_eq!((none.len(), none.is_empty()), (0, true));
    none.read(&mut []).unwrap();
    let length = |result: Result<()>| match result {
        Err(Error::InvalidArgument(ArgumentError::Length {
            expected, found, ..
        })) => (expected, found),
        other => unreachable!("{other:?}"),
    };
    assert_eq!(length(first.read(&mut [0.0; 7])), (8, 7));
    assert_eq!(length(first.read_rows(&mut [0.0; 8])), (2 * width, 8));
    let mut rows = vec![0.0; 2 * width];
    rows[0] = 5.0;
    rows[width] = 6.0;
    store.push(&first, Update::rows(&rows)).unwrap();
    let mut whole = vec![1.0; 2 * width];
    second.read_rows(&mut whole).unwrap();
    assert_eq!(whole, rows);
    second.read(&mut out).unwrap();
    assert_eq!((out[0], out[4]), (5.0, 6.0));
}

#[test]
fn a_batch_that_does_not_fit_says_how_much_would() {
    let (_, store) = made(options());
    let table = store.create_table(&sgd("wide", 1024)).unwrap();
    let capacity = store.stats().capacity_rows;
    let held = keys(0..10);
    let mut out = vec![0.0; 10 * 1024];
    // Another lease has come and gone.
    drop(store.pull(table, &held, &mut out).unwrap());
    let lease = store.pull(table, &held, &mut out).unwrap();
    for more in [0, 5, 11] {
        let many = keys(100..100 + capacity + more);
        let mut out = vec![0.0; many.len() * 1024];
        let error = store.pull(table, &many, &mut out).unwrap_err();
        let Error::OverBudget {
            pinned_rows,
            asked_rows,
            capacity_rows,
            needed_bytes,
            leases,
            ..
        } = error
        else {
            unreachable!("{error}")
        };
        assert_eq!(capacity_rows, capacity);
        assert_eq!(leases, [lease.id()]);
        // The fullest of two shards, taken twice.
        let shard = |keys: &[u64], s: usize| {
            let of = |k: &&u64| crate::units::range_of(mix64(**k), 2) == s;
            keys.iter().filter(of).count() as u64
        };
        let fullest = (0..2)
            .max_by_key(|s| shard(&held, *s) + shard(&many, *s))
            .unwrap();
        let (pinned, asked) = (shard(&held, fullest), shard(&many, fullest));
        assert_eq!((pinned_rows, asked_rows), (2 * pinned, 2 * asked));
        // With so much it fits.
        assert!(needed_bytes < 3 << 20, "{needed_bytes}");
        store.set_cache_bytes(needed_bytes).unwrap();
        drop(store.pull(table, &many, &mut out).unwrap());
        store.set_cache_bytes(1 << 20).unwrap();
    }
    // Nothing of it is pinned or promised.
    assert_eq!(store.stats().pinned_rows, 10);
    assert_eq!(store.parts.in_use(), 1 + 10);
    drop(lease);
    assert_eq!(store.parts.in_use(), 0);
}

#[test]
fn a_remove_of_more_rows_than_fit_goes_on_in_smaller_steps() {
    let (_, store) = made(options());
    let table = store.create_table(&sgd("wide", 1024)).unwrap();
    let all = keys(0..600);
    assert!(store.stats().capacity_rows < 300);
    for some in all.chunks(50) {
        set(&store, table, some, 1.0);
    }
    assert_eq!(store.remove(table, &all).unwrap(), 600);
    assert_eq!(store.contains(table, &all).unwrap(), vec![false; 600]);
    store.checkpoint(1, &[]).unwrap();
    store.compact_fully().unwrap();
    assert_eq!(store.stats().index_keys, 0);
}

#[test]
fn a_store_for_reading_refuses_every_change() {
    let (disk, store) = made(options());
    let table = store.create_table(&sgd("rows", 4)).unwrap();
    set(&store, table, &[1], 1.0);
    store.checkpoint(1, &[]).unwrap();
    store.close().unwrap();
    let store = Store::open_read_only_on(disk, Path::new(ROOT), None, options()).unwrap();
    let mut out = [0.0; 4];
    let lease = store.pull(table, &[1], &mut out).unwrap();
    assert_eq!(out, [1.0; 4]);
    let refused = |result: Result<()>| matches!(result, Err(Error::ReadOnly { .. }));
    assert!(refused(store.push(&lease, Update::weights(&out)).map(drop)));
    drop(lease);
    assert!(refused(store.remove(table, &[1]).map(drop)));
    assert!(refused(store.flush().map(drop)));
    assert!(refused(store.compact_fully().map(drop)));
    assert!(refused(store.checkpoint(2, &[]).map(drop)));
    assert!(refused(store.create_table(&sgd("other", 4)).map(drop)));
    assert!(refused(
        store.drop_checkpoints(&[CheckpointId(1)]).map(drop)
    ));
    let go_on = &mut |_| ControlFlow::Continue(());
    assert!(refused(store.compact(&all_limits(), go_on).map(drop)));
    assert!(!store.has_changes());
    assert_eq!(
        store.create_table(&sgd("rows", 4)).unwrap(),
        table,
        "it is found"
    );
    assert!(refused(store.rollback(CheckpointId(1)).map(drop)));
}

#[test]
fn a_table_that_is_there_is_found_and_what_differs_is_named() {
    let (_, store) = made(options());
    let stored = sgd("rows", 4);
    let table = store.create_table(&stored).unwrap();
    let second = store.create_table(&sgd("other", 8)).unwrap();
    assert_eq!((table, second), (TableId(0), TableId(1)));
    assert_eq!(store.create_table(&stored).unwrap(), table);
    assert_eq!(
        (store.table("rows").unwrap(), store.table("other").unwrap()),
        (table, second)
    );
    let tables = store.tables();
    assert_eq!(tables, [(table, stored.clone()), (second, sgd("other", 8))]);
    let metadata = RowMetadata {
        show: true,
        ..RowMetadata::default()
    };
    let changed = [
        (
            "dim",
            TableDescriptor {
                dim: 5,
                ..stored.clone()
            },
        ),
        (
            "optimizer",
            TableDescriptor {
                optimizer: Optimizer::Adagrad,
                ..stored.clone()
            },
        ),
        (
            "initialiser",
            TableDescriptor {
                initialiser: Initialiser::Uniform {
                    low: 0.0,
                    high: 1.0,
                },
                ..stored.clone()
            },
        ),
        (
            "seed",
            TableDescriptor {
                seed: stored.seed + 1,
                ..stored.clone()
            },
        ),
        (
            "accumulator",
            TableDescriptor {
                accumulator: 9.0,
                ..stored.clone()
            },
        ),
        (
            "metadata",
            TableDescriptor {
                metadata,
                ..stored.clone()
            },
        ),
    ];
    for (name, descriptor) in changed {
        match store.create_table(&descriptor) {
            Err(Error::InvalidArgument(ArgumentError::DescriptorChanged { field, .. })) => {
                assert_eq!(field, name);
            }
            other => unreachable!("{name}: {other:?}"),
        }
    }
    let mut out = [0.0; 8];
    let lease = store.pull(table, &[1, 2], &mut out).unwrap();
    // Beside a lease.
    assert_eq!(store.create_table(&sgd("third", 4)).unwrap(), TableId(2));
    lease.read(&mut out).unwrap();
    drop(lease);
}

/// Files of rows in the store's directory.
fn row_files(disk: &Io) -> usize {
    let part = disk.disk.open_dir(&Path::new(ROOT).join("part-0")).unwrap();
    let names = part.list().unwrap();
    names.iter().filter(|e| e.name.ends_with(".rows")).count()
}

#[test]
fn what_is_given_up_leaves_no_files_behind() {
    let (disk, store) = made(options());
    let table = store.create_table(&sgd("rows", 4)).unwrap();
    set(&store, table, &keys(0..10), 1.0);
    store.checkpoint(1, &[]).unwrap();
    set(&store, table, &keys(10..20), 2.0);
    assert_eq!(store.flush().unwrap(), 10);
    assert_eq!(row_files(&disk), 2);
    store.close_discarding();
    assert_eq!(row_files(&disk), 1);
    let store = open_again(&disk, options());
    assert_eq!(store.stats().index_keys, 10);
}

#[test]
fn a_prefetch_waits_for_leases_and_does_not_for_what_never_fits() {
    let (_, store) = made(RuntimeOptions {
        inline: false,
        ..options()
    });
    let table = store.create_table(&sgd("rows", 64)).unwrap();
    let rows = store.stats().capacity_rows;
    let lease = store.pull(
        table,
        &keys(0..rows / 3),
        &mut vec![0.0; usize::try_from(rows / 3 * 64).unwrap()],
    );
    let (half, all) = (keys(rows..rows + rows * 3 / 4), keys(0..2 * rows));
    let ticket = store.prefetch(table, &half).unwrap();
    assert!(
        ticket
            .wait_for(std::time::Duration::from_millis(50))
            .is_err()
    );
    let ticket = store.prefetch(table, &half).unwrap();
    drop(lease.unwrap());
    assert_eq!(ticket.wait().unwrap().len(), half.len());
    let never = store.prefetch(table, &all).unwrap().wait();
    assert!(matches!(never, Err(Error::OverBudget { .. })));
}

/// Every key of so many is pulled, in small batches.
fn visit(store: &Store, table: TableId, count: u64, dim: usize) {
    for some in keys(0..count).chunks(64) {
        let mut out = vec![0.0; some.len() * dim];
        drop(store.pull(table, some, &mut out).unwrap());
    }
}

#[test]
fn rows_that_are_to_stay_from_now_on_leave_others_their_share() {
    let (_, store) = made(options());
    let wide = sgd("wide", 256);
    let table = store.create_table(&wide).unwrap();
    let other = store.create_table(&sgd("other", 256)).unwrap();
    let stay = TableOptions::new().policy(PolicyKind::PinAll);
    visit(&store, table, 3000, 256);
    let full = store.stats().tables[0].resident_rows;
    store.create_table_with(&wide, stay).unwrap();
    let kept = store.stats().tables[0].resident_rows;
    assert!(kept < full && kept * 4 > full * 3, "{kept} of {full}");
    visit(&store, other, 1000, 256);
    assert_eq!(store.stats().tables[0].resident_rows, kept);

    // Changed ones, too.
    let evicts = TableOptions::new().policy(PolicyKind::Lru);
    store.create_table_with(&wide, evicts).unwrap();
    visit(&store, table, 3000, 256);
    for some in keys(0..3000).chunks(64) {
        set(&store, table, some, 1.0);
    }
    assert!(store.stats().tables[0].dirty_rows > 0);
    store.create_table_with(&wide, stay).unwrap();
    visit(&store, other, 1000, 256);
}

#[test]
fn a_table_that_takes_the_room_of_leases_is_refused() {
    let (_, store) = made(options());
    let table = store.create_table(&sgd("first", 64)).unwrap();
    let capacity = store.stats().capacity_rows;
    let held = keys(0..capacity * 9 / 10);
    let mut out = vec![0.0; held.len() * 64];
    let lease = store.pull(table, &held, &mut out).unwrap();
    // Its rows need larger buffers.
    let error = store.create_table(&sgd("vast", 8192)).unwrap_err();
    assert!(matches!(error, Error::OverBudget { .. }), "{error}");
    assert_eq!(store.stats().tables.len(), 1);
    let now = store.stats().capacity_rows;
    assert!(now.abs_diff(capacity) * 50 < capacity, "{now} {capacity}");
    drop(lease);
    let vast = store.create_table(&sgd("vast", 8192)).unwrap();
    let mut out = vec![0.0; 8192];
    drop(store.pull(vast, &keys(0..1), &mut out).unwrap());
    visit(&store, table, 1000, 64);
}

#[test]
fn rows_that_stay_keep_no_later_table_out() {
    let (_, store) = made(options().policy(PolicyKind::PinAll));
    let table = store.create_table(&sgd("stays", 256)).unwrap();
    let mut full = 0;
    while full < 100_000 {
        let some = keys(full..full + 16);
        let mut out = vec![0.0; some.len() * 256];
        match store.pull(table, &some, &mut out) {
            Ok(lease) => drop(lease),
            Err(error) => {
                assert!(matches!(error, Error::OverBudget { .. }), "{error}");
                break;
            }
        }
        full += 16;
    }
    let (leaves, evicts) = (
        sgd("leaves", 256),
        TableOptions::new().policy(PolicyKind::Lru),
    );
    let error = store.create_table_with(&leaves, evicts).unwrap_err();
    let Error::OverBudget { needed_bytes, .. } = error else {
        unreachable!("{error}")
    };
    store.set_cache_bytes(needed_bytes).unwrap();
    let other = store.create_table_with(&leaves, evicts).unwrap();
    visit(&store, other, 1000, 256);
    let error = store.set_cache_bytes(options().cache_bytes).unwrap_err();
    assert!(matches!(error, Error::OverBudget { .. }), "{error}");
}
