//! What all micro-benchmarks share.
//!
//! - `cargo bench` measures; without its `--bench` (so under `cargo test`) every benchmark runs
//!   once, at a size that shows only that it works.

use criterion::Criterion;

/// Whether this run only shows that the benchmarks work.
pub fn tiny() -> bool {
    let given = |flag: &str| std::env::args().any(|word| word == flag);
    cfg!(debug_assertions) || given("--test") || !given("--bench")
}

/// A size for the kind of run this is.
pub fn size(tiny_size: usize, size: usize) -> usize {
    if tiny() { tiny_size } else { size }
}

/// Runs the benchmarks of one file with cargo's flags and criterion's own.
pub fn run(benchmarks: impl Fn(&mut Criterion)) {
    let mut criterion = Criterion::default().sample_size(20).configure_from_args();
    benchmarks(&mut criterion);
    criterion.final_summary();
}
