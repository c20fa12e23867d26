//! How are long puts cut into files, and what do these hold?

use super::straight::{Entry, Turns, entries_of, keep_last};
use super::*;
use crate::io::Io;
use crate::ssd::data_file::DataFile;
use crate::store::tests::{keys, made, made_with, open_again, options, set, sgd};
use crate::units::unmix64;
use crate::{RuntimeOptions, Store, TableId, Thresholds};

const DIM: usize = 4;

/// Puts of eight rows go past the cache, in files of 32.
fn straight() -> RuntimeOptions {
    options().thresholds(Thresholds {
        straight_rows: 8,
        ..Thresholds::default()
    })
}

fn with_table(options: RuntimeOptions) -> (Io, Store, TableId) {
    let (disk, store) = made(options);
    let table = store.create_table(&sgd("rows", DIM)).unwrap();
    (disk, store, table)
}

/// Rows of one value each: that of the first, and one more for each that follows.
fn rows(first: f32, count: u16) -> Vec<f32> {
    let values = counted(first, count).into_iter();
    values.flat_map(|value| [value; DIM]).collect()
}

/// Puts such rows.
fn put(store: &Store, table: TableId, keys: &[u64], first: f32) {
    let values = rows(first, u16::try_from(keys.len()).unwrap());
    let report = store.put(table, keys, PutRows::weights(&values)).unwrap();
    assert_eq!(report.rows, keys.len() as u64);
}

/// The first weight of each key.
fn pulled(store: &Store, table: TableId, keys: &[u64]) -> Vec<f32> {
    let mut out = vec![0.0; keys.len() * DIM];
    drop(store.pull(table, keys, &mut out).unwrap());
    out.chunks_exact(DIM).map(|row| row[0]).collect()
}

fn counted(first: f32, count: u16) -> Vec<f32> {
    (0..count).map(|i| first + f32::from(i)).collect()
}

/// A file of a put that has its place, and no key points to it yet.
fn installed(store: &Store, job: &Job<'_>, keys: &[u64]) -> (Vec<Entry>, Arc<DataFile>) {
    let entries = entries_of(job, keys, 0, 1);
    let new = store
        .parts
        .putter
        .write_file(job, &entries, 0, || {})
        .unwrap();
    let new = new.expect("its values are finite");
    let file = store.parts.core.ssd.install(new, None).unwrap();
    (entries, file)
}

#[test]
fn rows_of_a_long_put_are_in_files_and_not_in_memory() {
    let (disk, store, table) = with_table(straight());
    put(&store, table, &keys(0..7), 0.0);
    assert_eq!((store.stats().dirty_rows, store.stats().files), (7, 0));
    let all = keys(100..200);
    put(&store, table, &all, 1.0);
    let stats = store.stats();
    // 100 rows in files of 32 at most, as many in each.
    assert_eq!((stats.resident_rows, stats.files, stats.flushes), (7, 4, 4));
    let rows = &stats.tables[0];
    assert_eq!((rows.rows_put, rows.rows_flushed), (107, 100));
    assert_eq!((stats.index_keys, stats.uncheckpointed_rows), (100, 107));
    // Rounded down, file by file.
    assert_eq!(stats.live_bytes.div_ceil(4096) * 4096, stats.current_bytes);
    assert_eq!(pulled(&store, table, &all), counted(1.0, 100));
    store.checkpoint(1, b"").unwrap();
    assert_eq!(store.stats().uncheckpointed_rows, 0);
    store.close_discarding();
    let store = open_again(&disk, straight());
    assert_eq!(pulled(&store, table, &all), counted(1.0, 100));
    assert_eq!(pulled(&store, table, &keys(0..7)), counted(0.0, 7));
}

#[test]
fn what_is_not_in_a_checkpoint_is_gone_and_the_store_is_as_before() {
    let (disk, store, table) = with_table(straight());
    let all = keys(0..40);
    put(&store, table, &all, 1.0);
    store.checkpoint(1, b"").unwrap();
    put(&store, table, &all, 100.0);
    assert_eq!(pulled(&store, table, &all), counted(100.0, 40));
    drop(store);
    let store = open_again(&disk, straight());
    assert_eq!(pulled(&store, table, &all), counted(1.0, 40));
}

/// The last row of a key counts, in the same file, in a later one, and where the key is in memory.
#[test]
fn of_a_key_that_is_there_twice_the_last_row_counts() {
    let (disk, store, table) = with_table(straight());
    let mut all = keys(0..100);
    set(&store, table, &all[..3], -1.0);
    for (at, again) in [(1, 0), (50, 2), (51, 50), (98, 20), (99, 97)] {
        all[at] = all[again];
    }
    put(&store, table, &all, 0.0);
    assert_eq!(store.stats().tables[0].rows_put, 100);
    let last = |key: &u64| all.iter().rposition(|other| other == key).unwrap();
    let expected: Vec<f32> = all.iter().map(|key| last(key) as f32).collect();
    assert_eq!(pulled(&store, table, &all), expected);
    store.checkpoint(1, b"").unwrap();
    drop(store);
    let store = open_again(&disk, straight());
    assert_eq!(pulled(&store, table, &all), expected);
}

#[test]
fn rows_in_memory_stay_there_and_their_leases_show_what_was_put() {
    let (_, store, table) = with_table(straight());
    let all = keys(0..60);
    // Dirty, clean, removed.
    set(&store, table, &all[..10], -1.0);
    store.flush().unwrap();
    set(&store, table, &all[10..20], -2.0);
    store.remove(table, &all[15..18]).unwrap();
    let lease = store.pull(table, &all[..5], &mut [0.0; 5 * DIM]).unwrap();
    let before = store.stats().resident_rows;
    put(&store, table, &all, 1.0);
    let stats = store.stats();
    assert_eq!((before, stats.resident_rows), (20, 20));
    assert_eq!((stats.dirty_rows, stats.flushes), (20, 3));
    let mut out = [0.0; 5 * DIM];
    lease.read(&mut out).unwrap();
    assert_eq!(out[4 * DIM], 5.0);
    drop(lease);
    assert_eq!(pulled(&store, table, &all), counted(1.0, 60));
}

/// What is left of a range beside rows that are in memory makes no file of its own.
#[test]
fn few_rows_beside_those_in_memory_go_there_too() {
    let (_, store, table) = with_table(straight());
    let all = keys(0..40);
    set(&store, table, &all[..37], -1.0);
    let before = store.stats();
    put(&store, table, &all, 1.0);
    let stats = store.stats();
    assert_eq!((before.flushes, stats.flushes), (0, 0));
    assert_eq!((stats.dirty_rows, stats.tables[0].rows_put), (40, 40));
    assert_eq!(pulled(&store, table, &all), counted(1.0, 40));
}

#[test]
fn rows_without_a_place_in_memory_are_put_and_those_that_stay_there_are_not_put_past_it() {
    let (_, store, table) = with_table(straight());
    let stays = crate::TableOptions::new().policy(crate::PolicyKind::PinAll);
    let there = store.create_table_with(&sgd("stays", DIM), stays).unwrap();
    put(&store, there, &keys(0..50), 1.0);
    assert_eq!(
        (store.stats().resident_rows, store.stats().flushes),
        (50, 0)
    );
    put(&store, table, &keys(0..50), 1.0);
    assert_eq!(
        (store.stats().resident_rows, store.stats().flushes),
        (50, 2)
    );
}

#[test]
fn rows_that_are_left_out_are_in_no_file() {
    let skips = straight().non_finite(crate::NonFinite::Skip);
    let (_, store, table) = with_table(skips);
    let all = keys(0..40);
    let mut values = vec![1.0; 40 * DIM];
    values[7 * DIM + 1] = f32::NAN;
    values[33 * DIM] = f32::INFINITY;
    let report = store.put(table, &all, PutRows::whole(&values)).unwrap();
    assert_eq!((report.rows, report.non_finite), (38, 2));
    let stats = store.stats();
    assert_eq!((stats.index_keys, stats.tables[0].rows_put), (38, 38));
    let expected: Vec<f32> = (0..40)
        .map(|i| f32::from(u8::from(i != 7 && i != 33)))
        .collect();
    assert_eq!(pulled(&store, table, &all), expected);
}

/// Two data directories, several threads, and a put of many keys in files of 64 to 256 rows.
fn with_threads(non_finite: crate::NonFinite) -> (Store, TableId) {
    let how = RuntimeOptions::new()
        // Above 64 MiB there are several submission queues.
        .cache_bytes(64 << 20)
        .shards(4)
        .threads(2)
        .non_finite(non_finite)
        .thresholds(Thresholds {
            straight_rows: 64,
            ..Thresholds::default()
        });
    let create = crate::CreateOptions::new().data_directories(vec!["a".into(), "b".into()]);
    let (_, store) = made_with(create, how);
    let table = store.create_table(&sgd("rows", DIM)).unwrap();
    (store, table)
}

fn files_on_disk(store: &Store) -> usize {
    let directories = store.parts.core.ssd.directories.iter();
    let files = directories.flat_map(|directory| directory.list().unwrap());
    files.filter(|file| file.name.ends_with(".rows")).count()
}

/// They are found while the first files are written, or before, where a row is in memory.
#[test]
fn a_long_put_of_values_that_are_not_finite_is_refused_before_anything_changes() {
    let all = keys(0..3000);
    for (in_memory, at) in [(0, 0), (0, 1500), (0, 2999), (1, 0), (1, 2999)] {
        let (store, table) = with_threads(crate::NonFinite::Reject);
        set(&store, table, &all[..in_memory], -1.0);
        store.checkpoint(1, b"").unwrap();
        let files = files_on_disk(&store);
        let mut values = vec![1.0; 3000 * DIM];
        values[at * DIM] = f32::NAN;
        let refused = store.put(table, &all, PutRows::whole(&values));
        let error = refused.unwrap_err().to_string();
        assert!(error.contains(&format!("{:#x}", all[at])), "{error}");
        let stats = store.stats();
        assert_eq!(
            (stats.index_keys, files_on_disk(&store)),
            (in_memory as u64, files)
        );
        assert_eq!(
            (stats.tables[0].rows_put, stats.uncheckpointed_rows),
            (0, 0)
        );
        assert!(
            !store.parts.core.changes.any(),
            "nothing is to be checkpointed"
        );
        let expected = -f32::from(u8::from(in_memory > 0));
        assert_eq!(pulled(&store, table, &all[..2]), [expected, 0.0]);
        put(&store, table, &all, 1.0);
        assert_eq!(pulled(&store, table, &all), counted(1.0, 3000));
        assert!(store.parts.core.changes.any());
        store.close_discarding();
    }
}

#[test]
fn values_of_a_long_put_that_are_not_finite_are_left_out_or_taken_and_counted() {
    use crate::NonFinite::{Apply, Skip};
    let all = keys(0..3000);
    for (non_finite, whole, bad) in [
        (Skip, true, 1),
        (Skip, true, 3000),
        (Apply, true, 1),
        (Skip, false, 2),
    ] {
        let (store, table) = with_threads(non_finite);
        let mut values = vec![1.0; 3000 * DIM];
        for row in values.chunks_exact_mut(DIM).rev().take(bad) {
            row[1] = f32::INFINITY;
        }
        let rows = match whole {
            true => PutRows::whole(&values),
            false => PutRows::weights(&values),
        };
        let report = store.put(table, &all, rows).unwrap();
        let left_out = if non_finite == Skip { bad } else { 0 };
        let expected = ((3000 - left_out) as u64, bad as u64);
        assert_eq!((report.rows, report.non_finite), expected);
        let stats = store.stats();
        let rows = &stats.tables[0];
        assert_eq!((rows.rows_put, rows.non_finite), expected);
        assert_eq!(stats.index_keys, expected.0);
        assert_eq!(store.parts.core.changes.any(), expected.0 > 0);
        let (first, last) = (
            pulled(&store, table, &all[..1]),
            pulled(&store, table, &all[2999..]),
        );
        assert_eq!(first, [if left_out == 3000 { 0.0 } else { 1.0 }]);
        assert_eq!(last, [if non_finite == Skip { 0.0 } else { 1.0 }]);
        store.close_discarding();
    }
}

#[test]
fn threads_without_a_file_help_the_last_one_and_no_two_are_told_of_the_same() {
    let turns = |ranges: &[(usize, bool)], directories| Turns {
        ranges: ranges.to_vec(),
        rounds: 2,
        directories,
        threads: 3,
    };
    // A range has a round left.
    assert_eq!(
        turns(&[(2, true), (1, true), (2, false)], 1).take_idle(5),
        0
    );
    let mut last = turns(&[(2, true), (2, false), (2, false)], 1);
    assert_eq!(
        (last.take_idle(1), last.take_idle(5), last.take_idle(5)),
        (1, 1, 0)
    );
    last.threads += 2;
    assert_eq!(last.take_idle(5), 2);
    // Nobody goes where another already is while a directory has none.
    let mut two = turns(&[(0, false); 4], 2);
    let order: Vec<_> = std::iter::from_fn(|| two.take()).collect();
    assert_eq!(order, [(0, 0), (2, 0), (1, 0), (3, 0)]);
}

/// Another put has the next rank, and points its keys first.
#[test]
fn a_copy_with_a_higher_rank_stays_and_the_row_is_put_once_more() {
    let (disk, store, table) = with_table(straight());
    let all = keys(0..32);
    let (core, putter) = (&store.parts.core, &store.parts.putter);
    let (there, rows) = (core.table(table).unwrap(), rows(1.0, 32));
    let job = Job::new(&there, all.len(), PutRows::whole(&rows)).unwrap();
    let (entries, file) = installed(&store, &job, &all);

    let half: Vec<u64> = entries[..16]
        .iter()
        .map(|entry| unmix64(entry.hash))
        .collect();
    put(&store, table, &half, 1000.0);
    let again = putter.settle_put(&job, &entries, (file.slot, file.meta.rank), 3);
    assert_eq!(again.len(), 16);
    assert!(again.iter().zip(&entries).all(|(a, b)| a.hash == b.hash));
    assert_eq!(file.live_entries(), 16);
    assert_eq!(pulled(&store, table, &half), counted(1000.0, 16));

    let room = putter.promise(&there, &all).unwrap();
    putter
        .put_cells(&job, putter.cells_of(&again), &room)
        .unwrap();
    drop(room);
    core.changes.note();
    assert_eq!(pulled(&store, table, &all), counted(1.0, 32));
    store.checkpoint(1, b"").unwrap();
    drop(store);
    let store = open_again(&disk, straight());
    assert_eq!(pulled(&store, table, &all), counted(1.0, 32));
}

/// Rows are pulled and pushed, and one is not known to the index yet, when the file is in its place.
#[test]
fn a_row_that_came_into_memory_meanwhile_is_put_there_and_a_removed_one_does_not_come_back() {
    let (disk, store, table) = with_table(straight());
    let all = keys(0..32);
    let (core, putter) = (&store.parts.core, &store.parts.putter);
    let (there, rows) = (core.table(table).unwrap(), rows(1.0, 32));
    let job = Job::new(&there, all.len(), PutRows::whole(&rows)).unwrap();
    let (entries, file) = installed(&store, &job, &all);

    set(&store, table, &all[..10], -5.0);
    let again = putter.settle_put(&job, &entries, (file.slot, file.meta.rank), 3);
    assert!(again.is_empty());
    core.changes.note();
    assert_eq!((store.stats().dirty_rows, file.live_entries()), (10, 32));
    assert_eq!(pulled(&store, table, &all), counted(1.0, 32));
    store.remove(table, &all[..3]).unwrap();
    store.checkpoint(1, b"").unwrap();
    drop(store);
    let store = open_again(&disk, straight());
    assert_eq!(pulled(&store, table, &all[..3]), [0.0; 3]);
    assert_eq!(pulled(&store, table, &all[3..]), counted(4.0, 29));
}

#[test]
fn entries_of_a_range_are_sorted_and_all_there() {
    let (_, store, table) = with_table(straight());
    let there = store.parts.core.table(table).unwrap();
    let mut all = keys(0..5000);
    all.extend_from_within(..100);
    let values = vec![0.0; all.len() * DIM];
    let job = Job::new(&there, all.len(), PutRows::whole(&values)).unwrap();
    for ranges in [1, 3] {
        let mut found = 0;
        for range in 0..ranges {
            let mut entries = entries_of(&job, &all, range, ranges);
            found += entries.len();
            let order = |entry: &Entry| (entry.hash, entry.position);
            assert!(entries.is_sorted_by_key(order));
            assert!(entries.iter().all(|e| hash_at(&all, e) == e.hash));
            let all_rows = entries.len();
            keep_last(&mut entries);
            let twice = all_rows - entries.len();
            let last = entries.iter().filter(|entry| entry.position >= 5000);
            assert_eq!(last.count(), twice);
        }
        assert_eq!(found, all.len());
    }
}

fn hash_at(keys: &[u64], entry: &Entry) -> u64 {
    crate::units::mix64(keys[entry.position as usize])
}
