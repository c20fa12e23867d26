//! The kernels, on their emulator, against the table in plain Rust: the same bits.
//!
//! Needs the feature `emu` (g++). `HPS_KERNEL_SEEDS` is the number of schedules of each case (5).

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails where something goes wrong"
)]

#[path = "common/hbm_inputs.rs"]
#[expect(dead_code, reason = "tests of other calls use the rest")]
mod hbm_inputs;
#[path = "common/hbm_pair.rs"]
mod hbm_pair;
#[path = "common/rng.rs"]
#[expect(dead_code, reason = "shared with tests that need more of it")]
mod rng;

use hbm_inputs::floats;
use hbm_pair::{Batch, Driven, TRAIN, assert_same_bits, options, row_f32s};
use hps::hbm::{Device, Index, open};
use hps::{NonFinite, Optimizer, RowMetadata, TableDescriptor};
use rng::Rng;

const ROWS: usize = 300;

fn number_of_rows() -> u32 {
    u32::try_from(ROWS).unwrap()
}

fn seeds() -> u64 {
    let asked = std::env::var("HPS_KERNEL_SEEDS").ok();
    asked.map_or(5, |text| text.parse().unwrap())
}

fn descriptor(rule: Optimizer, dim: usize, rng: &mut Rng) -> TableDescriptor {
    let mut metadata = RowMetadata::default();
    (metadata.show, metadata.click) = (rng.below(2) == 0, rng.below(2) == 0);
    (metadata.count, metadata.last_step) = (rng.below(2) == 0, rng.below(2) == 0);
    let mut descriptor = TableDescriptor::new("t", dim);
    (descriptor.optimizer, descriptor.metadata) = (rule, metadata);
    descriptor
}

fn number(rng: &mut Rng, below: usize) -> u32 {
    u32::try_from(rng.below(below)).unwrap()
}

fn shuffle<T>(rng: &mut Rng, all: &mut [T]) {
    for i in (1..all.len()).rev() {
        all.swap(i, rng.below(i + 1));
    }
}

/// Batches of keys 0..ROWS as the issue lists them: distinct, all, duplicates.
fn batch(rng: &mut Rng, dim: usize, n: usize, duplicates: bool) -> Batch {
    let mut all: Vec<u64> = (0..ROWS as u64).collect();
    shuffle(rng, &mut all);
    let few = [all[0], all[1], all[2]];
    let key = |i: usize, rng: &mut Rng| match duplicates {
        true => few[rng.below(3)],
        false => all[i % ROWS],
    };
    let keys: Vec<u64> = (0..n).map(|i| key(i, rng)).collect();
    Batch {
        gradients: floats(rng, n * dim),
        shows: (0..n).map(|_| number(rng, 5)).collect(),
        clicks: (0..n).map(|_| number(rng, 1 << 32)).collect(),
        lr: 0.05,
        step: number(rng, 1000),
        keys,
    }
}

fn with_bad_gradients(mut batch: Batch, rng: &mut Rng) -> Batch {
    for _ in 0..batch.gradients.len().min(40) / 8 {
        let at = rng.below(batch.gradients.len());
        batch.gradients[at] = [f32::NAN, f32::INFINITY][rng.below(2)];
    }
    batch
}

/// Both tables with the same rows under the same keys.
fn filled(
    devices: [Device; 2],
    descriptor: &TableDescriptor,
    non_finite: NonFinite,
    n: usize,
    rng: &mut Rng,
) -> [Driven; 2] {
    let options = options(ROWS).non_finite(non_finite);
    let keys: Vec<u64> = (0..ROWS as u64).collect();
    let mut rows: Vec<u32> = (0..number_of_rows()).collect();
    shuffle(rng, &mut rows);
    let width = row_f32s(descriptor);
    let mut values = floats(rng, ROWS * width);
    // State is not negative, as in a store.
    values.iter_mut().for_each(|value| *value = value.abs());
    devices.map(|device| {
        let table = open(device, descriptor, &options).unwrap();
        let mut driven = Driven::new(table, descriptor, n.max(ROWS)).unwrap();
        let (stored, failed) = driven.insert(Index::First, &keys, &rows).unwrap();
        assert_eq!((stored, failed.len()), (ROWS as u64, 0));
        driven.place(&rows, &values).unwrap();
        driven.table.wait(TRAIN).unwrap();
        driven
    })
}

fn compare_all(driven: &mut [Driven; 2], what: &str) {
    let keys: Vec<u64> = (0..ROWS as u64).collect();
    let [a, b] = driven;
    let expected = a.get_rows(Index::First, &keys).unwrap();
    let found = b.get_rows(Index::First, &keys).unwrap();
    assert_same_bits(&found, &expected, what);
    let expected = a.get(Index::First, &keys).unwrap();
    let found = b.get(Index::First, &keys).unwrap();
    assert_same_bits(&found, &expected, &format!("{what}: weights"));
}

/// One rule at one width, every size of batch, under one schedule.
fn check_rule(rule: Optimizer, dim: usize, seed: u64) {
    let mut rng = Rng(seed * 1000 + dim as u64);
    let descriptor = descriptor(rule, dim, &mut rng);
    let sizes = [0, 1, 31, 32, 33, ROWS, 40, 1000];
    let options = [NonFinite::Skip, NonFinite::Apply, NonFinite::Reject];
    let non_finite = options[usize::try_from(seed % 3).unwrap()];
    let devices = [Device::Cpu, Device::Emulated(seed)];
    let mut driven = filled(devices, &descriptor, non_finite, 1024, &mut rng);
    for (i, n) in sizes.into_iter().enumerate() {
        let mut given = batch(&mut rng, dim, n, i >= 6);
        if non_finite != NonFinite::Reject && n > 0 {
            given = with_bad_gradients(given, &mut rng);
        }
        let what = format!("{rule:?}, dim {dim}, seed {seed}, {n} keys, {non_finite:?}");
        for each in &mut driven {
            each.accumulate(Index::First, &given).unwrap();
            each.table
                .wait(TRAIN)
                .unwrap_or_else(|e| panic!("{what}: {e}"));
        }
        compare_all(&mut driven, &what);
    }
    let skipped = driven.each_mut().map(|d| d.table.stats().unwrap().skipped);
    assert_eq!(
        skipped[0], skipped[1],
        "{rule:?}, dim {dim}, seed {seed}: skipped"
    );
    let rows: Vec<u32> = (0..number_of_rows()).rev().collect();
    let [expected, found] = driven.each_mut().map(|d| d.pack(&rows).unwrap());
    assert_eq!(
        found.0, expected.0,
        "{rule:?}, dim {dim}, seed {seed}: packed"
    );
    assert_same_bits(&found.1, &expected.1, "packed rows");
    let again = driven.each_mut().map(|d| d.pack(&rows).unwrap().0.len());
    assert_eq!(again, [0, 0], "packed rows are clean");
}

#[test]
fn seven_rules_give_the_bits_of_the_oracle() {
    for &rule in Optimizer::ALL {
        for dim in [1, 8, 17, 64, 100] {
            for seed in 0..seeds() {
                check_rule(rule, dim, seed);
            }
        }
    }
}

#[test]
fn a_row_wider_than_a_tile_gives_the_bits_of_the_oracle() {
    for &rule in Optimizer::ALL {
        for (dim, seed) in [(132, 1), (132, 2), (260, 0), (36, 0), (20, 0)] {
            check_rule(rule, dim, seed);
        }
    }
}
