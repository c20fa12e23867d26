//! Rows that are put: whatever they held, nothing of it is read, and everybody sees the new ones.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/gate.rs"]
mod gate;
#[path = "common/hooked.rs"]
mod hooked;
#[path = "common/small.rs"]
mod small;
#[path = "common/until.rs"]
mod until;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use gate::Gate;
use hooked::{Hook, HookedDisk};
use hps::io::Io;
use hps::io::sim::SimDisk;
use hps::*;
use small::{fill, invalid, set, sgd, values};
use until::until;

const ROOT: &str = "/store";
const DIM: usize = 64;

fn create(disk: impl Into<Io>, options: RuntimeOptions) -> Store {
    Store::create_on(disk, Path::new(ROOT), CreateOptions::new(), options).unwrap()
}

/// All rows go through the cache.
fn options() -> RuntimeOptions {
    past_the_cache_from(usize::MAX)
}

/// Puts of so many rows go past the cache.
fn past_the_cache_from(straight_rows: usize) -> RuntimeOptions {
    small::options().thresholds(Thresholds {
        straight_rows,
        ..Thresholds::default()
    })
}

fn inline() -> RuntimeOptions {
    options().inline(true)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

fn whole_rows(store: &Store, table: TableId, keys: &[u64]) -> Vec<f32> {
    let lease = store.prefetch(table, keys).unwrap().wait().unwrap();
    let width = lease.parts().next().unwrap().row_f32s();
    let mut rows = vec![0.0; keys.len() * width];
    lease.read_rows(&mut rows).unwrap();
    rows
}

/// One value a key, told apart.
fn of(keys: &[u64], value: f32) -> Vec<f32> {
    let row = |(i, _)| [value + i as f32; DIM];
    keys.iter().enumerate().flat_map(row).collect()
}

fn rows_of(store: &Store, id: CheckpointId) -> BTreeMap<u64, f32> {
    let mut rows = BTreeMap::new();
    let mut iter = store.rows(id).unwrap();
    while let Some(row) = iter.next_row().unwrap() {
        assert!(row.values.iter().all(|v| *v == row.values[0]), "a torn row");
        rows.insert(row.key, row.values[0]);
    }
    rows
}

#[test]
fn whole_rows_are_put_bit_by_bit_and_weights_get_a_fresh_state() {
    let store = create(Io::of(SimDisk::new(1)), inline());
    let descriptor = TableDescriptor::new("rows", 2)
        .optimizer(Optimizer::Adagrad)
        .accumulator(0.25)
        .metadata(RowMetadata::new().show(true).count(true));
    let table = store.create_table(&descriptor).unwrap();
    let (nan, one) = (f32::from_bits(0x7fc0_1234), f32::from_bits(1));
    let rows = [
        [1.0, 2.0, 3.0, 4.0, nan, one],
        [5.0, 6.0, 7.0, 8.0, one, nan],
    ];
    let report = store.put(table, &[7, u64::MAX], PutRows::whole(&rows.concat()));
    let report = report.unwrap();
    assert_eq!(
        (report.rows, report.non_finite),
        (2, 0),
        "counts may have any bits"
    );
    let found = whole_rows(&store, table, &[7, u64::MAX]);
    assert_eq!(bits(&found), bits(&rows.concat()));

    // One that is known, one that is not; the state of both is fresh.
    let weights = [9.0, 10.0, 11.0, 12.0];
    store
        .put(table, &[7, 8], PutRows::weights(&weights))
        .unwrap();
    let found = whole_rows(&store, table, &[7, 8]);
    let fresh = [
        [9.0, 10.0, 0.25, 0.25, 0.0, 0.0],
        [11.0, 12.0, 0.25, 0.25, 0.0, 0.0],
    ];
    assert_eq!(bits(&found), bits(&fresh.concat()));
    let known = store.contains(table, &[7, 8, 9]).unwrap();
    assert_eq!(known, [true, true, false]);
    store.checkpoint(1, &[]).unwrap();
    store.close().unwrap();
}

#[test]
fn of_a_key_that_is_there_twice_the_last_row_counts() {
    let store = create(Io::of(SimDisk::new(1)), inline());
    let table = store.create_table(&sgd("rows", DIM)).unwrap();
    set(&store, table, &[3], 7.0, DIM);
    // 3 is resident, 4 is not; in one locking of a shard, and far apart.
    let near = [3, 4, 3, 4];
    store
        .put(table, &near, PutRows::weights(&of(&near, 0.0)))
        .unwrap();
    let found = values(&store, table, &[3, 4], DIM);
    assert_eq!((found[0], found[DIM]), (2.0, 3.0));
    let mut far: Vec<u64> = (0..60_000).map(|i| 5 + i % 3000).collect();
    far.extend([3, 4]);
    let before = store.stats();
    let report = store.put(table, &far, PutRows::whole(&of(&far, 0.0)));
    assert_eq!(report.unwrap().rows, 60_002);
    let after = store.stats();
    assert_eq!(after.rows_put - before.rows_put, 60_002);
    assert_eq!(after.bytes_put - before.bytes_put, 60_002 * 4 * DIM as u64);
    for key in [3, 4, 5, 1000, 3004] {
        let last = far.iter().rposition(|k| *k == key).unwrap();
        let found = values(&store, table, &[key], DIM);
        assert_eq!(found, [last as f32; DIM], "key {key}");
    }
    store.close_discarding();
}

#[test]
fn values_that_are_not_finite_are_refused_skipped_or_taken_as_the_options_say() {
    let put = |non_finite, is_verbatim: bool| {
        let options = inline().non_finite(non_finite);
        let store = create(Io::of(SimDisk::new(1)), options);
        let table = store.create_table(&sgd("rows", 1)).unwrap();
        set(&store, table, &[1, 2, 3], 5.0, 1);
        let values = [8.0, f32::NAN, 9.0, f32::INFINITY];
        let rows = PutRows::weights(&values);
        let rows = if is_verbatim { rows.verbatim() } else { rows };
        let result = store.put(table, &[1, 2, 3, 1], rows);
        let found = self::values(&store, table, &[1, 2, 3], 1);
        (result, bits(&found), store.stats().non_finite)
    };
    let (result, found, _) = put(NonFinite::Reject, false);
    let refused = invalid(result.unwrap_err());
    let at_two = matches!(
        &refused,
        ArgumentError::NonFinite {
            key: 2,
            index: 1,
            ..
        }
    );
    assert!(at_two, "{refused}");
    assert_eq!(found, bits(&[5.0; 3]), "nothing changed");

    let (result, found, counted) = put(NonFinite::Skip, false);
    let report = result.unwrap();
    assert_eq!((report.rows, report.non_finite, counted), (2, 2, 2));
    assert_eq!(found, bits(&[8.0, 5.0, 9.0]));

    let (result, found, counted) = put(NonFinite::Apply, false);
    let report = result.unwrap();
    assert_eq!((report.rows, report.non_finite, counted), (4, 2, 2));
    assert_eq!(found, bits(&[f32::INFINITY, f32::NAN, 9.0]));

    let (result, found, counted) = put(NonFinite::Reject, true);
    let report = result.unwrap();
    assert_eq!((report.rows, report.non_finite, counted), (4, 0, 0));
    assert_eq!(found, bits(&[f32::INFINITY, f32::NAN, 9.0]));
}

#[test]
fn a_put_of_nothing_or_of_another_length_changes_nothing() {
    let store = create(Io::of(SimDisk::new(1)), inline());
    let table = store.create_table(&sgd("rows", 4)).unwrap();
    store.checkpoint(1, &[]).unwrap();
    assert_eq!(store.put(table, &[], PutRows::whole(&[])).unwrap().rows, 0);
    for length in [0, 3, 5, 8] {
        let error = store.put(table, &[1], PutRows::weights(&vec![1.0; length]));
        let told = invalid(error.unwrap_err());
        assert!(matches!(told, ArgumentError::Length { .. }), "{told}");
    }
    assert!(
        store
            .put(TableId(9), &[1], PutRows::weights(&[1.0; 4]))
            .is_err()
    );
    assert!(!store.has_changes());
    store.close().unwrap();
}

/// The aim of it all: rows that are on SSD are replaced without a read, more of them than fit.
#[test]
fn more_rows_than_the_cache_holds_are_put_without_a_read() {
    for (shards, threads, inline, straight_rows) in [
        (1, 1, true, usize::MAX),
        (4, 2, false, usize::MAX),
        (3, 2, true, usize::MAX),
        (1, 1, true, 100),
        (4, 2, false, 100),
    ] {
        let options = past_the_cache_from(straight_rows).shards(shards);
        let options = options.threads(threads).inline(inline);
        let disk = Io::of(SimDisk::new(3));
        let store = create(disk.clone(), options.clone());
        let table = store.create_table(&sgd("rows", DIM)).unwrap();
        let count = 6 * store.stats().capacity_rows;
        let keys: Vec<u64> = (0..count).map(mix64).collect();
        for value in [1.0, 5.0] {
            let report = store.put(table, &keys, PutRows::weights(&of(&keys, value)));
            assert_eq!(report.unwrap().rows, count);
        }
        let stats = store.stats();
        assert_eq!((stats.reads, stats.pinned_rows), (0, 0), "{stats:?}");
        let left = 2 * count - stats.capacity_rows;
        assert!(stats.written_bytes >= left * 4 * DIM as u64, "{stats:?}");
        let own_writer = !inline && straight_rows == usize::MAX; // One flush of it may last.
        assert!(own_writer || stats.flushes > 5, "{stats:?}");
        assert_eq!(stats.rows_put, 2 * count);
        assert_eq!(stats.tables[0].wait(Wait::Device).count, 0);
        let expected: BTreeMap<u64, f32> = keys
            .iter()
            .zip(0u16..)
            .map(|(k, i)| (*k, 5.0 + f32::from(i)))
            .collect();
        let id = store.checkpoint(1, &[]).unwrap().id;
        assert!(rows_of(&store, id) == expected);
        store.close().unwrap();
        let store = Store::open_on(disk, Path::new(ROOT), options).unwrap();
        let before = store.stats().reads;
        store
            .put(table, &keys[..50], PutRows::weights(&of(&keys[..50], -1.0)))
            .unwrap();
        assert_eq!(store.stats().reads, before, "the old rows are on SSD");
        assert_eq!(values(&store, table, &keys[..1], DIM), [-1.0; DIM]);
        store.close_discarding();
    }
}

#[test]
fn a_lease_that_is_read_after_a_put_shows_it() {
    for straight_rows in [usize::MAX, 100] {
        is_shown(past_the_cache_from(straight_rows).inline(true));
    }
}

fn is_shown(options: RuntimeOptions) {
    let store = create(Io::of(SimDisk::new(1)), options);
    let table = store.create_table(&sgd("rows", DIM)).unwrap();
    let keys: Vec<u64> = (0..40).collect();
    set(&store, table, &keys, 1.0, DIM);
    let lease = store.prefetch(table, &keys).unwrap().wait().unwrap();
    let all: Vec<u64> = (0..3000).collect();
    store
        .put(table, &all, PutRows::weights(&of(&all, 0.0)))
        .unwrap();
    let mut out = vec![0.0; 40 * DIM];
    lease.read(&mut out).unwrap();
    assert_eq!(out, of(&keys, 0.0));
    store
        .push(&lease, Update::deltas(&vec![1.0; 40 * DIM]))
        .unwrap();
    assert_eq!(values(&store, table, &[39], DIM), [40.0; DIM]);
    drop(lease);
    store.close_discarding();
}

/// Where leases have every slot, rows that are leased are put, others have no way through.
#[test]
fn a_put_beside_leases_of_everything_is_over_budget_before_it_changes_a_row() {
    let store = create(Io::of(SimDisk::new(1)), inline().shards(1));
    let table = store.create_table(&sgd("rows", DIM)).unwrap();
    let count = store.stats().capacity_rows;
    let keys: Vec<u64> = (0..count).collect();
    let lease = store.prefetch(table, &keys).unwrap().wait().unwrap();
    let leased = [keys[3], keys[9]];
    let both = [keys[3], count];
    store
        .put(table, &leased, PutRows::weights(&of(&leased, 4.0)))
        .unwrap();
    let error = store.put(table, &both, PutRows::weights(&of(&both, 6.0)));
    let Err(Error::OverBudget {
        capacity_rows,
        leases,
        ..
    }) = error
    else {
        panic!("{error:?}");
    };
    assert_eq!((capacity_rows, leases), (count, vec![lease.id()]));
    let mut out = vec![0.0; keys.len() * DIM];
    lease.read(&mut out).unwrap();
    assert_eq!((out[3 * DIM], out[9 * DIM]), (4.0, 5.0), "nothing changed");
    assert_eq!(store.contains(table, &[count]).unwrap(), [false]);
    drop(lease);
    store
        .put(table, &both, PutRows::weights(&of(&both, 6.0)))
        .unwrap();
    assert_eq!(values(&store, table, &[count], DIM), [7.0; DIM]);
    let stats = store.stats();
    assert_eq!(stats.pinned_rows, 0, "{stats:?}");
    store.create_table(&sgd("late", 4)).unwrap();
    store.close_discarding();
}

/// Where rows never leave memory there is room for all of a put or for none.
#[test]
fn a_put_into_a_cache_that_keeps_its_rows_fits_whole_or_is_refused_whole() {
    let options = inline().policy(PolicyKind::PinAll).shards(1);
    let store = create(Io::of(SimDisk::new(1)), options);
    let table = store.create_table(&sgd("rows", DIM)).unwrap();
    let count = store.stats().capacity_rows;
    let keys: Vec<u64> = (0..=count).collect();
    let error = store.put(table, &keys, PutRows::weights(&of(&keys, 1.0)));
    assert!(matches!(error, Err(Error::OverBudget { .. })), "{error:?}");
    assert_eq!(store.stats().resident_rows, 0, "nothing changed");
    let mut fits = keys[..count as usize].to_vec();
    fits.extend_from_slice(&keys[..20]);
    store
        .put(table, &fits, PutRows::weights(&of(&fits, 1.0)))
        .unwrap();
    let again = [5, 6, 5];
    store
        .put(table, &again, PutRows::weights(&of(&again, 8.0)))
        .unwrap();
    assert_eq!(values(&store, table, &[5], DIM), [10.0; DIM]);
    let one = store.put(table, &[count], PutRows::weights(&of(&[0], 1.0)));
    assert!(matches!(one, Err(Error::OverBudget { .. })), "{one:?}");
    let stats = store.stats();
    assert_eq!((stats.resident_rows, stats.pinned_rows), (count, 0));
    store.checkpoint(1, &[]).unwrap();
    store.close().unwrap();
}

/// Whether a put needs room for all of its rows is asked of the table: a store whose other tables keep
/// theirs, or let them go, was never tried.
#[test]
fn a_put_goes_by_the_policy_of_its_table_not_by_that_of_the_others() {
    use PolicyKind::{Bilevel, PinAll};
    for all in [PinAll, Bilevel] {
        let of_table = |kind| TableOptions::new().policy(kind);
        let options = (inline().policy(all).shards(1))
            .table("stay", of_table(PinAll))
            .table("pass", of_table(Bilevel));
        let store = create(Io::of(SimDisk::new(1)), options);
        let [stay, pass] =
            ["stay", "pass"].map(|name| store.create_table(&sgd(name, DIM)).unwrap());
        let table = |id: TableId| store.stats().tables[id.0 as usize].clone();
        let count = table(stay).capacity_rows;
        let keys: Vec<u64> = (0..=count).collect();
        let error = store.put(stay, &keys, PutRows::weights(&of(&keys, 1.0)));
        match error {
            Err(Error::OverBudget { table, .. }) => assert_eq!(table, "stay"),
            other => panic!("{other:?}"),
        }
        assert_eq!(table(stay).resident_rows, 0, "nothing changed");
        let stays = count / 2;
        let fits = &keys[..usize::try_from(stays).unwrap()];
        let put = |table, keys: &[u64], value| {
            let report = store.put(table, keys, PutRows::weights(&of(keys, value)));
            report.unwrap()
        };
        put(stay, fits, 1.0);
        // The other table's rows go on to SSD, three times as many as fit.
        let many: Vec<u64> = (0..3 * count).collect();
        put(pass, &many, 5.0);
        assert!(table(pass).rows_flushed > table(pass).capacity_rows);
        assert!(table(pass).resident_rows <= table(pass).capacity_rows);
        assert_eq!(table(stay).resident_rows, stays, "no row of it left");
        let hits = table(stay).unique_hits;
        assert_eq!(values(&store, stay, fits, DIM), of(fits, 1.0));
        assert_eq!(table(stay).unique_hits - hits, stays, "none was read");
        let last = *many.last().unwrap();
        assert_eq!(values(&store, pass, &[last], DIM), [5.0 + last as f32; DIM]);
        store.checkpoint(1, &[]).unwrap();
        store.close().unwrap();
    }
}

/// A store of one table, whose row of key 7 is on SSD, with a hook before its reads.
fn with_cold_row(reads: Hook) -> (Store, TableId) {
    let disk = HookedDisk {
        reads: Some(reads),
        ..HookedDisk::new(SimDisk::new(2), Arc::new(|_, _| None))
    };
    let store = create(Arc::new(disk.clone()), options());
    let table = store.create_table(&sgd("rows", DIM)).unwrap();
    set(&store, table, &[7], 1.0, DIM);
    store.checkpoint(1, &[]).unwrap();
    store.close().unwrap();
    let store = Store::open_on(Arc::new(disk), Path::new(ROOT), options());
    (store.unwrap(), table)
}

#[test]
fn a_put_does_not_wait_for_a_batch_that_reads_its_row_and_the_batch_sees_it() {
    let gate = Arc::new(Gate::default());
    let (store, table) = with_cold_row(gate.hook("read"));
    gate.set(true);
    std::thread::scope(|scope| {
        let pull = || values(&store, table, &[7], DIM);
        let reading = scope.spawn(pull);
        until("a row is being read", || store.stats().pinned_rows == 1);
        std::thread::sleep(Duration::from_millis(20));
        let waiting = scope.spawn(pull);
        store
            .put(table, &[7], PutRows::weights(&[4.0; DIM]))
            .unwrap();
        // Whoever waits for the read has what it waits for.
        assert_eq!(waiting.join().unwrap(), [4.0; DIM]);
        gate.set(false);
        assert_eq!(reading.join().unwrap(), [4.0; DIM], "the read is too late");
    });
    assert_eq!(values(&store, table, &[7], DIM), [4.0; DIM]);
    store.checkpoint(2, &[]).unwrap();
    store.close().unwrap();
}

#[test]
fn a_row_that_was_put_while_a_batch_failed_to_read_it_stays() {
    let failing = Arc::new(AtomicBool::new(false));
    let read = Arc::new(AtomicBool::new(false));
    let hook: Hook = {
        let (failing, read) = (Arc::clone(&failing), Arc::clone(&read));
        Arc::new(move |call, _: &Path| {
            if call != "read" || !failing.load(SeqCst) {
                return None;
            }
            read.store(true, SeqCst);
            while failing.load(SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            Some(Err(std::io::Error::other("planted")))
        })
    };
    let (store, table) = with_cold_row(hook);
    failing.store(true, SeqCst);
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| store.pull(table, &[7], &mut [0.0; DIM]).map(drop));
        until("a read", || read.load(SeqCst));
        store
            .put(table, &[7], PutRows::weights(&[4.0; DIM]))
            .unwrap();
        failing.store(false, SeqCst);
        assert!(matches!(reading.join().unwrap(), Err(Error::Io { .. })));
    });
    let stats = store.stats();
    assert_eq!((stats.dirty_rows, stats.pinned_rows), (1, 0), "{stats:?}");
    assert_eq!(values(&store, table, &[7], DIM), [4.0; DIM]);
    store.close_discarding();
}

/// A put larger than the cache fills it with rows that may not be written while a checkpoint drains.
#[test]
fn a_put_larger_than_the_cache_waits_for_a_running_checkpoint_and_is_not_in_it() {
    let gate = Arc::new(Gate::default());
    let disk = HookedDisk::new(SimDisk::new(3), gate.hook("write"));
    let store = create(Arc::new(disk), options());
    let table = store.create_table(&sgd("rows", DIM)).unwrap();
    fill(&store, table, 500, 100, 1.0, DIM);
    gate.set(true);
    let ticket = store.checkpoint_begin(1, &[]).unwrap();
    let keys: Vec<u64> = (0..5 * store.stats().capacity_rows).map(mix64).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let putting = scope.spawn(|| {
            store
                .put(table, &keys, PutRows::weights(&of(&keys, 10.0)))
                .unwrap();
            done.store(true, SeqCst);
        });
        // Some slots may hold copies for the checkpoint: the cache is full when it changes no more.
        let seen = Cell::new((0, Instant::now()));
        until("a put that waits", || {
            let rows = store.stats().dirty_rows;
            if seen.get().0 != rows {
                seen.set((rows, Instant::now()));
            }
            rows > 500 && seen.get().1.elapsed() > Duration::from_millis(200)
        });
        assert!(!done.load(SeqCst) && !ticket.is_done());
        gate.set(false);
        putting.join().unwrap();
    });
    let first = rows_of(&store, ticket.wait().unwrap().id);
    assert_eq!(first.len(), 500);
    assert!(
        first.values().all(|value| *value == 1.0),
        "rows as of the cut"
    );
    let second = rows_of(&store, store.checkpoint(2, &[]).unwrap().id);
    assert_eq!(second.len(), keys.len());
    assert!(
        keys.iter()
            .zip(0u16..)
            .all(|(k, i)| second[k] == 10.0 + f32::from(i))
    );
    assert_eq!(store.stats().reads, 0);
    store.close().unwrap();
}

/// Its rows go through the cache, or past it.
#[test]
fn a_checkpoint_that_begins_during_a_put_has_all_of_it() {
    for straight_rows in [usize::MAX, 100] {
        begins_during_a_put(straight_rows);
    }
}

fn begins_during_a_put(straight_rows: usize) {
    let options = past_the_cache_from(straight_rows);
    let gate = Arc::new(Gate::default());
    let (writes, holds) = (Arc::new(AtomicBool::new(false)), gate.hook("write"));
    let seen = Arc::clone(&writes);
    let hook: Hook = Arc::new(move |call, path| {
        let is_row_file = path.extension().is_some_and(|e| e == "rows");
        seen.fetch_or(call == "write" && is_row_file, SeqCst);
        holds(call, path)
    });
    let disk = HookedDisk::new(SimDisk::new(3), hook);
    let store = create(Arc::new(disk), options);
    let table = store.create_table(&sgd("rows", DIM)).unwrap();
    let keys: Vec<u64> = (0..5 * store.stats().capacity_rows).map(mix64).collect();
    gate.set(true);
    std::thread::scope(|scope| {
        let putting = scope.spawn(|| {
            let rows = of(&keys, 0.0);
            store.put(table, &keys, PutRows::weights(&rows)).unwrap();
        });
        until("a put that writes", || writes.load(SeqCst));
        assert_eq!(store.stats().dirty_rows > 100, straight_rows > 100);
        let begun = scope.spawn(|| store.checkpoint(1, &[]).unwrap().id);
        std::thread::sleep(Duration::from_millis(100));
        assert!(!begun.is_finished() && !putting.is_finished());
        gate.set(false);
        putting.join().unwrap();
        let rows = rows_of(&store, begun.join().unwrap());
        assert!(
            keys.iter()
                .zip(0u16..)
                .all(|(k, i)| rows[k] == f32::from(i))
        );
    });
    store.close().unwrap();
}

#[test]
fn a_put_that_finds_no_room_on_the_disk_may_be_made_again() {
    let disk = SimDisk::new(3);
    let store = create(Arc::new(disk.clone()), inline());
    let table = store.create_table(&sgd("rows", DIM)).unwrap();
    let keys: Vec<u64> = (0..5 * store.stats().capacity_rows).map(mix64).collect();
    fill(&store, table, 2000, 100, -1.0, DIM);
    store.checkpoint(1, &[]).unwrap();
    let paths = disk.paths();
    let bytes = paths
        .iter()
        .map(|p| disk.read_file(p).unwrap().len() as u64);
    disk.set_capacity(bytes.sum::<u64>() + (300 << 10));
    let rows = of(&keys, 0.0);
    let error = store.put(table, &keys, PutRows::weights(&rows));
    assert!(matches!(error, Err(Error::NoSpace { .. })), "{error:?}");
    let stats = store.stats();
    assert!(stats.rows_put < keys.len() as u64, "{stats:?}");
    assert_eq!(stats.pinned_rows, 0);
    assert!(store.has_changes());
    disk.set_capacity(1 << 40);
    store.put(table, &keys, PutRows::weights(&rows)).unwrap();
    let found = rows_of(&store, store.checkpoint(2, &[]).unwrap().id);
    assert!(
        keys.iter()
            .zip(0u16..)
            .all(|(k, i)| found[k] == f32::from(i))
    );
    store.close().unwrap();
}
