//! What does a compaction cost: the choice of its inputs, and the merge of their rows?
//!
//! `cargo bench --bench compaction`. `choose` is asked after every flush; `merge` walks 8 files that
//! hold a copy of every second key each and reads the newest row of each key, from the temporary
//! directory's device; what a real one adds is the writing, which `flush` measures.
#![expect(clippy::unwrap_used, reason = "a benchmark")]

#[path = "support/files.rs"]
mod files;
mod support;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, Throughput};
use files::{ROW_F32S, Scratch};
use hps::FileNumber;
use hps::mix64;
use hps::ssd::compaction::{Candidate, Limits, choose};
use hps::ssd::data_file::DataFile;
use hps::ssd::scan::Merge;

/// As the store's own compaction with a cache of 512 MiB or more.
const WINDOW_BYTES: u64 = 512 << 10;

fn choice(criterion: &mut Criterion) {
    let files: Vec<Candidate> = (0..1000)
        .map(|number| Candidate {
            number: FileNumber(number),
            bytes: 32 << 20,
            live_bytes: mix64(number) % (30 << 20),
        })
        .collect();
    let limits = Limits {
        space_bound: 2.0,
        file_bytes: 32 << 20,
        directories: 1,
        force: false,
        coming_bytes: 0,
    };
    assert!(!choose(&files, &limits).is_empty(), "one is due");
    criterion.bench_function("compaction/choose_of_1000_files", |bench| {
        bench.iter(|| black_box(choose(black_box(&files), &limits)));
    });
}

/// Rows that came out.
fn merge(files: &[Arc<DataFile>]) -> usize {
    let mut merge = Merge::new(files, 0, WINDOW_BYTES).unwrap();
    let mut row = [0.0; ROW_F32S];
    let mut count = 0;
    while let Some(newest) = merge.newest().unwrap() {
        merge.cursor(newest).read_row(&mut row).unwrap();
        merge.step().unwrap();
        count += 1;
    }
    count
}

fn merging(criterion: &mut Criterion) {
    let keys = support::size(400, 20_000) as u64;
    let mut scratch = Scratch::new();
    let files: Vec<Arc<DataFile>> = (1..=8)
        .map(|number| {
            let in_file = |key: &u64| mix64(key ^ (number << 32)).is_multiple_of(2);
            let mut hashes: Vec<u64> = (0..keys).filter(in_file).map(mix64).collect();
            hashes.sort_unstable();
            scratch.write(number, &hashes)
        })
        .collect();
    let rows = merge(&files);
    let mut group = criterion.benchmark_group("compaction");
    group.throughput(Throughput::Elements(rows as u64));
    group.sample_size(10);
    group.measurement_time(Duration::from_secs(2));
    group.bench_function("merge", |bench| {
        bench.iter(|| assert_eq!(merge(&files), rows));
    });
}

fn benchmarks(criterion: &mut Criterion) {
    choice(criterion);
    merging(criterion);
}

fn main() {
    support::run(benchmarks);
}
