//! What does opening a store cost, with an index snapshot and without one?
//!
//! `cargo bench --bench recover`. `build` makes an index of sorted entries in memory; `snapshot` and
//! `key_blocks` open a store in the temporary directory, the second after its snapshot was taken away.
#![expect(clippy::unwrap_used, reason = "a benchmark")]

mod support;

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput};
use hps::ssd::data_file::Location;
use hps::ssd::index::{IndexBuilder, IndexEntry, KeyIndexBuilder};
use hps::{CreateOptions, FileSlot, RuntimeOptions, Store, TableDescriptor, Update, mix64};

/// Narrow rows: opening never reads them.
const DIM: usize = 4;

fn options() -> RuntimeOptions {
    RuntimeOptions::new().cache_bytes(16 << 20).threads(1)
}

fn fill(directory: &Path, rows: u64) {
    let store = Store::create(directory, CreateOptions::new(), options()).unwrap();
    let table = store.create_table(&TableDescriptor::new("t", DIM)).unwrap();
    let keys: Vec<u64> = (0..rows).collect();
    let mut weights = vec![0.5; 2048 * DIM];
    for keys in keys.chunks(2048) {
        let weights = &mut weights[..keys.len() * DIM];
        let lease = store.pull(table, keys, weights).unwrap();
        store.push(&lease, Update::weights(weights)).unwrap();
    }
    store.checkpoint(1, &[]).unwrap();
    store.close().unwrap();
}

/// Opens and closes; the time of the opening alone.
fn open(directory: &Path, rows: u64) -> Duration {
    let since = Instant::now();
    let store = Store::open(directory, options()).unwrap();
    let time = since.elapsed();
    assert_eq!(store.stats().index_keys, rows, "every key is known");
    store.close().unwrap();
    time
}

/// How many index snapshots there were, which are gone now.
fn remove_snapshots(directory: &Path) -> usize {
    let entries = std::fs::read_dir(directory.join("part-0")).unwrap();
    let snapshots: Vec<_> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "snapshot"))
        .collect();
    for snapshot in &snapshots {
        std::fs::remove_file(snapshot).unwrap();
    }
    snapshots.len()
}

fn benchmarks(criterion: &mut Criterion) {
    let rows = support::size(20_000, 500_000) as u64;
    let mut group = criterion.benchmark_group("recover");
    group.throughput(Throughput::Elements(rows));
    group.sample_size(10);
    group.measurement_time(Duration::from_secs(2));
    let mut hashes: Vec<u64> = (0..rows).map(mix64).collect();
    hashes.sort_unstable();
    group.bench_function("build", |bench| {
        bench.iter(|| {
            let mut builder = KeyIndexBuilder::new((0, u64::MAX), rows);
            for (entry, hash) in (0..).zip(&hashes) {
                assert!(builder.push(
                    *hash,
                    IndexEntry::new(Location::new(FileSlot::default(), false, entry), 0)
                ));
            }
            black_box(builder.finish())
        });
    });
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("store");
    fill(&directory, rows);
    group.bench_function("snapshot", |bench| {
        bench.iter_custom(|count| (0..count).map(|_| open(&directory, rows)).sum());
    });
    assert_eq!(
        remove_snapshots(&directory),
        1,
        "the checkpoint made a snapshot"
    );
    group.bench_function("key_blocks", |bench| {
        bench.iter_custom(|count| (0..count).map(|_| open(&directory, rows)).sum());
    });
}

fn main() {
    support::run(benchmarks);
}
