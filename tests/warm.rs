//! Does a store that is opened with `warm` have the rows in memory that it had before?
//!
//! On a disk in memory; and beside a trainer, by the system.

#![expect(
    clippy::unwrap_used,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/small.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod small;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hps::io::sim::SimDisk;
use hps::*;
use small::{set, sgd};

const ROOT: &str = "/store";
/// A row of 256 bytes.
const DIM: usize = 64;
/// Ten times as many as fit.
const KEYS: u64 = 25_000;
const HOT: std::ops::Range<u64> = 5000..6000;

fn options() -> RuntimeOptions {
    RuntimeOptions::new()
        .cache_bytes(1 << 20)
        .shards(2)
        .threads(1)
        .io_depth(8)
        .inline(true)
        .warm(true)
}

fn open(disk: &Arc<SimDisk>, options: RuntimeOptions) -> Store {
    Store::open_on(Arc::clone(disk), Path::new(ROOT), options).unwrap()
}

/// Pulls keys some times, in batches that fit.
fn use_keys(store: &Store, table: TableId, keys: std::ops::Range<u64>, times: usize) {
    let keys: Vec<u64> = keys.collect();
    for _ in 0..times {
        for some in keys.chunks(250) {
            let mut out = vec![0.0; some.len() * DIM];
            drop(store.pull(table, some, &mut out).unwrap());
        }
    }
}

/// Reads and checks keys; the device reads that it took.
fn reads_of(store: &Store, table: TableId, keys: std::ops::Range<u64>) -> u64 {
    let before = store.stats().reads;
    let keys: Vec<u64> = keys.collect();
    for some in keys.chunks(250) {
        let mut out = vec![0.0; some.len() * DIM];
        drop(store.pull(table, some, &mut out).unwrap());
        for (key, row) in some.iter().zip(out.chunks(DIM)) {
            assert_eq!(row, [*key as f32; DIM], "key {key}");
        }
    }
    store.stats().reads - before
}

/// A store of all keys, each row its key, of which some are used more than others; closed.
fn used(disk: &Arc<SimDisk>, options: RuntimeOptions) -> TableId {
    let store = Store::create_on(
        Arc::clone(disk),
        Path::new(ROOT),
        CreateOptions::new(),
        options,
    )
    .unwrap();
    let table = store.create_table(&sgd("rows", DIM)).unwrap();
    put(&store, table, 0..KEYS);
    use_keys(&store, table, HOT, 5);
    store.checkpoint(1, &[]).unwrap();
    store.close().unwrap();
    table
}

fn put(store: &Store, table: TableId, keys: std::ops::Range<u64>) {
    let keys: Vec<u64> = keys.collect();
    for some in keys.chunks(250) {
        let rows: Vec<f32> = some.iter().flat_map(|key| [*key as f32; DIM]).collect();
        store.put(table, some, PutRows::weights(&rows)).unwrap();
    }
}

#[test]
fn rows_that_were_used_most_are_in_memory_after_an_open() {
    let disk = Arc::new(SimDisk::new(1));
    let table = used(&disk, options());

    let cold = open(&disk, options().warm(false));
    let stats = cold.stats();
    assert_eq!(
        (stats.warmed_rows, stats.resident_rows, stats.warm_rows_left),
        (0, 0, 0)
    );
    assert!(reads_of(&cold, table, HOT) > 0);
    cold.close().unwrap();

    let warm = open(&disk, options());
    let stats = warm.stats();
    assert_eq!(stats.warm_rows_left, 0);
    assert_eq!(stats.warmed_rows, stats.resident_rows);
    assert!(stats.warmed_rows >= 1000 && stats.reads > 0, "{stats:?}");
    assert_eq!(
        stats.tables[0].rows_evicted, 0,
        "no row left for one that nobody asked for"
    );
    assert_eq!(reads_of(&warm, table, HOT), 0);
    // Long reads: many rows each.
    assert!(stats.warmed_rows > 5 * stats.reads, "{stats:?}");
    warm.close().unwrap();

    let reader =
        Store::open_read_only_on(Arc::clone(&disk), Path::new(ROOT), None, options()).unwrap();
    assert_eq!(reads_of(&reader, table, HOT), 0);
}

/// A snapshot that is older than the newest copies still says how rows were used.
#[test]
fn a_row_that_was_written_since_the_snapshot_comes_back_from_its_newest_copy() {
    let disk = Arc::new(SimDisk::new(1));
    let table = used(&disk, options());
    // Without `warm` no snapshot says anything of use; this one is not due.
    let rare = Thresholds {
        snapshot_young_bytes: 1 << 30,
        ..Thresholds::default()
    };
    let store = open(&disk, options().warm(false).thresholds(rare));
    set(&store, table, &HOT.step_by(2).collect::<Vec<_>>(), 0.0, DIM);
    put(&store, table, HOT);
    store.checkpoint(2, &[]).unwrap();
    store.close().unwrap();
    let warm = open(&disk, options());
    assert_eq!(reads_of(&warm, table, HOT), 0);
}

#[test]
fn a_damaged_row_is_told_to_whoever_asks_for_it_and_others_come_back() {
    let disk = Arc::new(SimDisk::new(1));
    let table = used(&disk, options());
    let mut damaged = 0;
    let part = Path::new(ROOT).join("part-0");
    for entry in store_files(&disk) {
        let path = part.join(entry);
        let mut bytes = disk.read_file(&path).unwrap();
        // The row of one key, wherever it is.
        let row: Vec<u8> = [5500.0f32; DIM]
            .iter()
            .flat_map(|x| x.to_le_bytes())
            .collect();
        if let Some(at) = bytes.windows(row.len()).position(|found| found == row) {
            bytes[at + 9] ^= 1;
            disk.write_file(&path, &bytes).unwrap();
            damaged += 1;
        }
    }
    assert!(damaged > 0);
    let warm = open(&disk, options());
    let stats = warm.stats();
    assert!(stats.warmed_rows > 500, "{stats:?}");
    let error = warm.pull(table, &[5500], &mut [0.0; DIM]).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    assert_eq!(
        reads_of(&warm, table, 5499..5500) + reads_of(&warm, table, 5000..5001),
        0
    );
}

/// Names of the parameter files.
fn store_files(disk: &Arc<SimDisk>) -> Vec<String> {
    let store = open(disk, options().warm(false));
    let name = |file: FileInfo| {
        let path = file.path.file_name().unwrap();
        path.to_str().unwrap().to_owned()
    };
    let names = store.files().into_iter().map(name).collect();
    store.close().unwrap();
    names
}

#[test]
fn tables_that_stay_or_were_dropped_are_left_out_and_ceilings_hold() {
    let disk = Arc::new(SimDisk::new(1));
    let own = |name: &str, policy| options().table(name, TableOptions::new().policy(policy));
    let store = Store::create_on(
        Arc::clone(&disk),
        Path::new(ROOT),
        CreateOptions::new(),
        own("kept", PolicyKind::PinAll),
    )
    .unwrap();
    let tables: Vec<TableId> = ["kept", "gone", "small", "plain"]
        .map(|name| store.create_table(&sgd(name, DIM)).unwrap())
        .into();
    for table in &tables {
        put(&store, *table, 0..500);
        use_keys(&store, *table, 0..500, 3);
    }
    store.drop_table(tables[1]).unwrap();
    store.checkpoint(1, &[]).unwrap();
    store.close().unwrap();

    let small = TableOptions::new().cache_bytes_max(32 << 10);
    let warm = open(&disk, own("kept", PolicyKind::PinAll).table("small", small));
    let resident = |name: &str| {
        let stats = warm.stats();
        let table = stats.tables.iter().find(|t| t.name == name);
        table.map(|t| t.resident_rows)
    };
    assert_eq!(resident("kept"), Some(0));
    assert_eq!(resident("gone"), None);
    assert_eq!(resident("plain"), Some(500));
    let rows = resident("small").unwrap();
    assert!(
        (60..=120).contains(&rows),
        "{rows} rows of 256 bytes in 32 KiB"
    );
}

/// Rows come back while others are pulled and pushed: what is read is what was pushed.
#[test]
fn a_trainer_beside_a_warm_restart_sees_its_own_rows() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("store");
    let options = options().inline(false).threads(2).cache_bytes(16 << 20);
    let store = Store::create(&path, CreateOptions::new(), options.clone()).unwrap();
    let table = store.create_table(&sgd("rows", DIM)).unwrap();
    put(&store, table, 0..100_000);
    use_keys(&store, table, 0..40_000, 2);
    store.checkpoint(1, &[]).unwrap();
    store.close().unwrap();

    let mut warmed = 0;
    for round in 0..3 {
        let store = Store::open(&path, options.clone()).unwrap();
        let since = Instant::now();
        let mut batch = 0;
        let mut pushed = std::collections::BTreeMap::new();
        while store.stats().warm_rows_left > 0 || batch < 50 {
            assert!(
                since.elapsed() < Duration::from_secs(120),
                "it does not end"
            );
            let first = (batch * 7919 + round * 131) % 99_000;
            let keys: Vec<u64> = (first..first + 200).collect();
            let mut out = vec![0.0; keys.len() * DIM];
            let lease = store.pull(table, &keys, &mut out).unwrap();
            for (key, row) in keys.iter().zip(out.chunks(DIM)) {
                let expected = pushed.get(key).copied().unwrap_or(*key as f32);
                assert_eq!(row, [expected; DIM], "key {key}, round {round}");
            }
            let values: Vec<f32> = keys.iter().flat_map(|_| [batch as f32; DIM]).collect();
            store.push(&lease, Update::weights(&values)).unwrap();
            pushed.extend(keys.iter().map(|key| (*key, batch as f32)));
            batch += 1;
        }
        warmed += store.stats().warmed_rows;
        store.close_discarding();
    }
    assert!(warmed > 3000, "{warmed} rows came back");

    // One that is closed at once does not wait for all rows.
    Store::open(&path, options).unwrap().close().unwrap();
}
