//! What does it cost to make a parameter file of rows?
//!
//! `cargo bench --bench flush`. `record` and `key_block` encode and checksum in memory; `file`
//! writes a whole file into the temporary directory, unsynced, O_DIRECT where it can be had.
#![expect(clippy::unwrap_used, reason = "a benchmark")]

#[path = "support/files.rs"]
mod files;
mod support;

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput};
use files::{ROW_F32S, Scratch};
use hps::FileNumber;
use hps::format::FileIdentity;
use hps::format::param_file::{KEYS_PER_BLOCK, encode_key_block, encode_record, record_stride};
use hps::mix64;

fn in_memory(criterion: &mut Criterion) {
    let identity = FileIdentity::new([7; 16], FileNumber(1));
    let mut record = vec![0; record_stride(ROW_F32S * 4)];
    let row = [0.5; ROW_F32S];
    let mut group = criterion.benchmark_group("flush");
    group.throughput(Throughput::Elements(1));
    group.bench_function("record", |bench| {
        bench.iter(|| {
            let row = black_box(&row);
            black_box(encode_record(&mut record, 42, row, &identity, 4096))
        });
    });
    let mut block = vec![0; 4096];
    let keys: Vec<u64> = (0..KEYS_PER_BLOCK as u64).collect();
    let intervals = vec![1; KEYS_PER_BLOCK];
    group.throughput(Throughput::Elements(KEYS_PER_BLOCK as u64));
    group.bench_function("key_block", |bench| {
        bench.iter(|| {
            let keys = black_box(&keys);
            black_box(encode_key_block(
                &mut block, keys, &intervals, &identity, 4096,
            ))
        });
    });
}

fn file(criterion: &mut Criterion) {
    let mut hashes: Vec<u64> = (0..support::size(500, 16_384) as u64).map(mix64).collect();
    hashes.sort_unstable();
    let mut scratch = Scratch::new();
    let mut number = 0;
    let mut group = criterion.benchmark_group("flush");
    group.throughput(Throughput::Elements(hashes.len() as u64));
    group.sample_size(10);
    group.measurement_time(Duration::from_secs(2));
    group.bench_function("file", |bench| {
        bench.iter_custom(|count| {
            let mut time = Duration::ZERO;
            for _ in 0..count {
                number += 1;
                let since = Instant::now();
                let file = scratch.write(number, &hashes);
                time += since.elapsed();
                std::fs::remove_file(&file.path).unwrap();
            }
            time
        });
    });
}

fn benchmarks(criterion: &mut Criterion) {
    in_memory(criterion);
    file(criterion);
}

fn main() {
    support::run(benchmarks);
}
