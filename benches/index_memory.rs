//! How many bytes does the index take a key, and what do its operations cost?
//!
//! `cargo bench --bench index_memory`. Bytes are what the map holds, printed beside the figures; keys
//! come in no order, so segments split as they do in a store.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

mod support;

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput};
use hps::keymap::KeyMap;
use hps::mix64;

const BATCH: usize = 4096;

fn filled(keys: u64) -> KeyMap {
    let mut map = KeyMap::new(0, u64::MAX);
    for key in 0..keys {
        map.insert(mix64(key), key);
    }
    map
}

fn benchmarks(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("index_memory");
    group.sample_size(10);
    for keys in [
        support::size(2_000, 100_000),
        support::size(20_000, 1_000_000),
    ] {
        let keys = keys as u64;
        group.throughput(Throughput::Elements(keys));
        group.bench_function(BenchmarkId::new("insert", keys), |bench| {
            bench.iter(|| black_box(filled(keys)).len());
        });
        let map = filled(keys);
        let bytes_per_key = map.bytes() as f64 / keys as f64;
        println!("index_memory: {bytes_per_key:.2} bytes a key at {keys} keys");
        assert!(
            support::tiny() || bytes_per_key <= if keys < 200_000 { 20.0 } else { 13.0 },
            "{bytes_per_key} bytes a key"
        );
        let count = keys.max(BATCH as u64);
        let present: Vec<u64> = (0..count).map(|i| mix64(mix64(i) % keys)).collect();
        let absent: Vec<u64> = (0..count).map(|i| mix64(keys + i)).collect();
        let mut values = vec![0; BATCH];
        group.throughput(Throughput::Elements(BATCH as u64));
        for (name, hashes, known) in [("present", &present, true), ("absent", &absent, false)] {
            // Other hashes each time: what the last batch left in the caches is of no use.
            let mut batches = hashes.chunks_exact(BATCH).cycle();
            group.bench_function(BenchmarkId::new(name, keys), |bench| {
                bench.iter(|| {
                    let hashes = batches.next().unwrap();
                    map.get_batch(black_box(hashes), &mut values);
                });
            });
            let right = |value: &u64| (*value < keys) == known;
            assert!(values.iter().all(right), "all {name} hashes are found so");
        }
    }
}

fn main() {
    support::run(benchmarks);
}
