//! What does an update rule cost, row by row, where the rows are in the processor's caches?
//!
//! `cargo bench --bench row_update`. Vector code at the machine's best instruction set, beside the
//! plain twin.

mod support;

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput};
use hps::row::{RowVisitor, Updater};
use hps::{HyperParameters, Optimizer, TableDescriptor};

const DIM: usize = 64;

/// Visits every row with the same gradient.
struct Rows<'a> {
    rows: std::slice::ChunksExactMut<'a, f32>,
    gradient: &'a [f32],
}

impl RowVisitor for Rows<'_> {
    fn next(&mut self) -> Option<(&mut [f32], &[f32])> {
        let row = self.rows.next()?;
        Some((row, self.gradient))
    }
}

fn benchmarks(criterion: &mut Criterion) {
    let gradient = [0.01; DIM];
    let mut group = criterion.benchmark_group("row_update");
    let count = support::size(8, 128); // at most 97 KiB: they stay near the processor
    group.throughput(Throughput::Elements(count as u64));
    for &optimizer in Optimizer::ALL {
        let mut descriptor = TableDescriptor::new("t", DIM);
        descriptor.optimizer = optimizer;
        let updater = Updater::new(&descriptor, &HyperParameters::default());
        let width = descriptor.row_f32s();
        let mut rows = vec![0.5; count * width];
        group.bench_function(BenchmarkId::new("vector", format!("{optimizer:?}")), |b| {
            b.iter(|| {
                let mut visitor = Rows {
                    rows: black_box(&mut rows).chunks_exact_mut(width),
                    gradient: &gradient,
                };
                updater.apply_all(0.01, &mut visitor);
            });
        });
        group.bench_function(BenchmarkId::new("twin", format!("{optimizer:?}")), |b| {
            b.iter(|| {
                for row in black_box(&mut rows).chunks_exact_mut(width) {
                    updater.apply_gradient(row, &gradient, 0.01);
                }
            });
        });
    }
}

fn main() {
    support::run(benchmarks);
}
