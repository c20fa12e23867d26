//! What does a cold row cost the processor, and what beside it the device?
//!
//! `cargo bench --bench pull_miss`. `lookup` finds the rows in the index, `plan` sorts them by place
//! and joins neighbours, `decode` verifies and copies a record; `read` plans, reads from the
//! temporary directory's device (64 in flight, O_DIRECT where it can be had) and decodes.
#![expect(clippy::unwrap_used, reason = "a benchmark")]

#[path = "support/files.rs"]
mod files;
mod support;

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, Throughput};
use files::{ROW_F32S, Scratch};
use hps::format::FileIdentity;
use hps::format::param_file::{decode_record, encode_record, record_stride};
use hps::ssd::data_file::{DataFile, Location};
use hps::ssd::index::{Index as _, IndexBuilder, IndexEntry, KeyIndexBuilder};
use hps::ssd::reader::{RowBatch, RowReader, Want};
use hps::{FileNumber, FileSlot, mix64, unmix64};

/// Reads in flight and the largest of them, as a store has them.
const DEPTH: usize = 64;
const BUFFER_BYTES: usize = 32 << 10;

fn decode(criterion: &mut Criterion) {
    let identity = FileIdentity::new([7; 16], FileNumber(1));
    let mut record = vec![0; record_stride(ROW_F32S * 4)];
    encode_record(&mut record, 42, &[0.5; ROW_F32S], &identity, 4096);
    let mut row = [0.0; ROW_F32S];
    let mut group = criterion.benchmark_group("pull_miss");
    group.throughput(Throughput::Elements(1));
    group.bench_function("decode", |bench| {
        bench.iter(|| {
            let record = black_box(&record);
            black_box(decode_record(record, &mut row, &identity, 4096, Some(42)).unwrap());
        });
    });
}

fn lookup(criterion: &mut Criterion, hashes: &[u64], batch: usize) {
    let mut builder = KeyIndexBuilder::new((0, u64::MAX), hashes.len() as u64);
    for (entry, hash) in (0..).zip(hashes) {
        assert!(builder.push(
            *hash,
            IndexEntry::new(Location::new(FileSlot::default(), false, entry), 0)
        ));
    }
    let index = builder.finish();
    let mut found = Vec::new();
    let mut drawn = 0;
    let mut group = criterion.benchmark_group("pull_miss");
    group.throughput(Throughput::Elements(batch as u64));
    group.bench_function("lookup", |bench| {
        bench.iter_batched(
            || draw(hashes, batch, &mut drawn),
            |asked| index.get_batch(&asked, &mut found),
            BatchSize::LargeInput,
        );
    });
    assert_eq!(found.iter().flatten().count(), batch, "all are known");
}

/// Hashes in no order; `drawn` counts on.
fn draw(hashes: &[u64], batch: usize, drawn: &mut u64) -> Vec<u64> {
    let mut next = || {
        *drawn += 1;
        let at = mix64(*drawn) % hashes.len() as u64;
        hashes[usize::try_from(at).unwrap()]
    };
    (0..batch).map(|_| next()).collect()
}

fn wants(hashes: &[u64], batch: usize, drawn: &mut u64) -> Vec<Want> {
    let asked = draw(hashes, batch, drawn);
    let want = |(tag, hash): (u32, &u64)| {
        let entry = u32::try_from(hashes.partition_point(|h| h < hash)).unwrap();
        Want {
            location: Location::new(FileSlot::default(), false, entry),
            key: unmix64(*hash),
            tag,
            row_f32s: u32::try_from(ROW_F32S).unwrap(),
        }
    };
    (0..).zip(&asked).map(want).collect()
}

fn read(criterion: &mut Criterion, hashes: &[u64], batch: usize) {
    let mut scratch = Scratch::new();
    let files: Vec<Arc<DataFile>> = vec![scratch.write(1, hashes)];
    let mut queue = scratch.io.engine.queue(DEPTH, BUFFER_BYTES).unwrap();
    let queue = &mut *queue;
    let mut drawn = 0;
    let mut group = criterion.benchmark_group("pull_miss");
    group.throughput(Throughput::Elements(batch as u64));
    group.bench_function("plan", |bench| {
        bench.iter_batched(
            || wants(hashes, batch, &mut drawn),
            |wants| RowReader::new(queue).add(files.clone(), wants).unwrap(),
            BatchSize::LargeInput,
        );
    });
    let mut rows = RowBatch::default();
    group.sample_size(10);
    group.bench_function("read", |bench| {
        bench.iter_batched(
            || wants(hashes, batch, &mut drawn),
            |wants| {
                let mut reader = RowReader::new(queue);
                reader.add(files.clone(), wants).unwrap();
                let mut count = 0;
                while reader.next(&mut rows, 256).unwrap() {
                    count += rows.tags.len();
                }
                assert_eq!(count, batch, "every row was read");
            },
            BatchSize::LargeInput,
        );
    });
}

fn benchmarks(criterion: &mut Criterion) {
    let rows = support::size(4_000, 200_000) as u64;
    let mut hashes: Vec<u64> = (0..rows).map(mix64).collect();
    hashes.sort_unstable();
    let batch = support::size(100, 4_000);
    decode(criterion);
    lookup(criterion, &hashes, batch);
    read(criterion, &hashes, batch);
}

fn main() {
    support::run(benchmarks);
}
