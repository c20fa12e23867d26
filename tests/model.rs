//! Does a store do what a map does? Random operations in any order, against a model in memory.
//!
//! `PROPTEST_CASES` sets the number of cases. A failing case is kept in `tests/model.regressions`
//! and tried first from then on.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::print_stderr,
    reason = "a test that meets what it does not expect must fail, and says what it counted"
)]

mod common {
    pub mod driver;
    pub mod model;
    pub mod rng;
    pub mod setup;
    pub mod steps;
}

use common::driver::{Driver, Kind, Step, Totals};
use common::steps::{self, cases, steps};
use proptest::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};

const OPERATIONS: usize = 200;

/// Kinds and how often they come, in a case of 220; shrinking goes to the front.
const KINDS: [(usize, Kind); 25] = [
    (1, Kind::Nothing),
    (20, Kind::Pull),
    (90, Kind::Push),
    (12, Kind::Remove),
    (8, Kind::Contains),
    (14, Kind::Prefetch),
    (10, Kind::ServeTicket),
    (4, Kind::DropTicket),
    (8, Kind::BeginPass),
    (14, Kind::EndPass),
    (8, Kind::Hold),
    (10, Kind::PushHeld),
    (8, Kind::Put),
    (6, Kind::DropLease),
    (2, Kind::Flush),
    (2, Kind::Compact),
    (4, Kind::Checkpoint),
    (4, Kind::Begin),
    (3, Kind::Wait),
    (1, Kind::Rollback),
    (2, Kind::Reopen),
    (2, Kind::ReadOnly),
    (4, Kind::CreateTable),
    (2, Kind::DropTable),
    (2, Kind::RenameTable),
];

fn run(cases: u32, background: bool, name: &'static str, totals: &Totals) {
    let strategy = (any::<u64>().no_shrink(), steps(&KINDS, OPERATIONS));
    let case = |(seed, steps): (u64, Vec<Step>)| {
        let mut driver = Driver::new(seed, background, totals);
        for step in &steps {
            driver.run(step);
        }
        driver.finish();
    };
    let tell = |(seed, steps): &(u64, Vec<Step>)| {
        let steps: Vec<&Step> = steps.iter().filter(|s| s.kind != Kind::Nothing).collect();
        format!("seed: {seed}, {} steps: {steps:?}", steps.len())
    };
    steps::run(cases, (file!(), name), &strategy, case, tell);
}

/// Was there enough of everything? What chance alone makes of 48 cases must not fall short: the
/// bounds lie three standard deviations and more below the mean of ten runs.
fn check(totals: &Totals, cases: u32, background: bool) {
    eprintln!("{totals:?}");
    let at_least = |counter: &AtomicU64, per_16_cases: u64| {
        let found = counter.load(Ordering::Relaxed);
        // Few cases say little about rates.
        let wanted = match cases {
            0..32 => 0,
            _ => u64::from(cases) * per_16_cases / 16,
        };
        assert!(found >= wanted, "{found} instead of {wanted}: {totals:?}");
    };
    at_least(&totals.eviction_flushes, 12);
    at_least(&totals.own_compactions, 2);
    at_least(&totals.forced_compactions, 4);
    at_least(&totals.misses, 6_400);
    at_least(&totals.files_reopened, 100);
    at_least(&totals.rollbacks, 1);
    at_least(&totals.reopened_with_loss, 4);
    at_least(&totals.overlapped_checkpoints, 8);
    at_least(&totals.rows_compared, 32_000);
    at_least(&totals.pushes_of_several, 200);
    at_least(&totals.puts, 40);
    at_least(&totals.passes, 8);
    at_least(&totals.passes_put, 4);
    at_least(&totals.flushing_puts, 1);
    if !background {
        at_least(&totals.straight_puts, 4);
    }
    at_least(&totals.tables_created, 16);
    at_least(&totals.tables_dropped, 1);
    at_least(&totals.tables_renamed, 8);
    // Ten in 48 cases, each by itself: none at all comes up once in 20 000 runs.
    let refused = totals.drops_refused.load(Ordering::Relaxed);
    assert!(
        refused >= u64::from(cases / 48),
        "{refused} drops were refused"
    );
}

#[test]
fn a_store_in_one_thread_is_a_map() {
    let (cases, totals) = (cases(256, 1), Totals::default());
    run(cases, false, "a_store_in_one_thread_is_a_map", &totals);
    check(&totals, cases, false);
}

#[test]
fn a_store_with_its_threads_is_a_map() {
    let (cases, totals) = (cases(48, 5), Totals::default());
    run(cases, true, "a_store_with_its_threads_is_a_map", &totals);
    check(&totals, cases, true);
}
