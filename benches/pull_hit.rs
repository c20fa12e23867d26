//! What does a pull cost, and a push, whose rows are all in memory?
//!
//! `cargo bench --bench pull_hit`. One thread; distinct keys in no order; 64 weights and their
//! AdaGrad state. `all` of the rows lie in some tens of MiB: more than the caches of most cores.
#![expect(clippy::unwrap_used, reason = "a benchmark")]

mod support;

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput};
use hps::io::sim::SimDisk;
use hps::{CreateOptions, RuntimeOptions, Store, TableDescriptor, TableId, Update, mix64};

const DIM: usize = 64;

/// A store whose rows are all resident, pushed once. Nothing here reaches its disk.
fn resident(keys: &[u64]) -> (Store, TableId) {
    let options = RuntimeOptions::new()
        .cache_bytes(keys.len() as u64 * 700 + (8 << 20))
        .threads(1)
        .inline(true);
    let disk = Arc::new(SimDisk::new(1));
    let store = Store::create_on(disk, "/store".as_ref(), CreateOptions::new(), options).unwrap();
    let table = store.create_table(&TableDescriptor::new("t", DIM)).unwrap();
    let mut weights = vec![0.5; 1024 * DIM];
    for keys in keys.chunks(1024) {
        let weights = &mut weights[..keys.len() * DIM];
        let lease = store.pull(table, keys, weights).unwrap();
        store.push(&lease, Update::weights(weights)).unwrap();
    }
    (store, table)
}

fn benchmarks(criterion: &mut Criterion) {
    let keys: Vec<u64> = (0..support::size(2_000, 100_000) as u64)
        .map(mix64)
        .collect();
    let (store, table) = resident(&keys);
    for batch in [support::size(128, 256), support::size(1024, 16_384)] {
        let mut weights = vec![0.0; batch * DIM];
        let gradients = vec![0.01; batch * DIM];
        let mut group = criterion.benchmark_group("pull_hit");
        group.throughput(Throughput::Elements(batch as u64));
        let mut batches = keys.chunks_exact(batch).cycle();
        group.bench_function(BenchmarkId::new("pull", batch), |bench| {
            bench.iter(|| {
                let keys = batches.next().unwrap();
                black_box(store.pull(table, keys, &mut weights).unwrap())
            });
        });
        let mut batches = keys.chunks_exact(batch).cycle();
        group.bench_function(BenchmarkId::new("pull_push", batch), |bench| {
            bench.iter(|| {
                let keys = batches.next().unwrap();
                let lease = store.pull(table, keys, &mut weights).unwrap();
                store
                    .push(&lease, Update::gradients(&gradients, 0.01))
                    .unwrap()
            });
        });
    }
    let stats = store.stats();
    assert_eq!(
        (stats.reads, stats.unique_asked - stats.unique_hits),
        (0, 0),
        "every row was in memory"
    );
    store.close_discarding();
}

fn main() {
    support::run(benchmarks);
}
