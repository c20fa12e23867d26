//! Does a table of rows on a device do what maps do? Random operations in any order, on one device or on
//! several that share the keys, against maps in memory and the update rules written a second time.
//!
//! Always for the table in plain Rust; with the feature `emu` for the kernels on their emulator, too.
//! `PROPTEST_CASES` sets the number of cases. A failing case is kept in `tests/hbm_model.regressions`.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::print_stderr,
    reason = "a test that meets what it does not expect must fail, and says what it counted"
)]

mod common {
    pub mod hbm_device;
    #[expect(dead_code, reason = "tests of other calls use the rest")]
    pub mod hbm_inputs;
    #[expect(dead_code, reason = "shared with tests that need more of it")]
    pub mod hbm_pair;
    pub mod hbm_world;
    #[expect(dead_code, reason = "shared with tests that need more of it")]
    pub mod model;
    pub mod rng;
    pub mod steps;
}

use common::hbm_device::Totals;
use common::hbm_world::{Kind, Step, World};
use common::steps::{self, cases, steps};
use hps::hbm::Device;
use proptest::prelude::*;
use std::sync::Mutex;

const OPERATIONS: usize = 200;

/// Kinds and how often they come, in a case of 100; shrinking goes to the front.
const KINDS: [(usize, Kind); 15] = [
    (1, Kind::Nothing),
    (20, Kind::Accumulate),
    (12, Kind::Insert),
    (3, Kind::InsertMany),
    (10, Kind::Place),
    (10, Kind::Pack),
    (12, Kind::Get),
    (8, Kind::GetRows),
    (6, Kind::Swap),
    (4, Kind::Split),
    (4, Kind::AccumulateMissing),
    (3, Kind::GetMissing),
    (3, Kind::PlaceBeyond),
    (4, Kind::FailingCalls),
    (3, Kind::FailingDevice),
];

fn run(devices: [Device; 2], cases: u32, name: &'static str) {
    let totals = Mutex::new(Totals::default());
    let count = proptest::sample::select(vec![1usize, 2, 3, 8]);
    let strategy = (any::<u64>().no_shrink(), count, steps(&KINDS, OPERATIONS));
    let case = |(seed, count, steps): (u64, usize, Vec<Step>)| {
        let device = devices[(seed % 2) as usize];
        let mut world = World::new(device, count, seed);
        steps.iter().for_each(|step| world.run(step));
        world.finish(&mut totals.lock().unwrap());
    };
    let tell = |(seed, count, steps): &(u64, usize, Vec<Step>)| {
        let steps: Vec<&Step> = steps.iter().filter(|s| s.kind != Kind::Nothing).collect();
        format!("seed: {seed}, {count} devices, steps: {steps:?}")
    };
    steps::run(cases, (file!(), name), &strategy, case, tell);
    let totals = totals.lock().unwrap();
    eprintln!("{name}: {cases} cases, {totals:?}");
    totals.check(u64::from(cases));
}

#[test]
fn a_table_in_plain_rust_is_a_map() {
    run(
        [Device::Cpu; 2],
        cases(256, 1),
        "a_table_in_plain_rust_is_a_map",
    );
}

#[cfg(feature = "emu")]
#[test]
fn a_table_on_the_emulator_is_a_map() {
    run(
        [Device::Emulated(1), Device::Emulated(2)],
        cases(16, 1),
        "a_table_on_the_emulator_is_a_map",
    );
}
