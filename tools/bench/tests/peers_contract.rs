//! Do all engines of the comparison do the same work?
#![cfg(feature = "peers")]
#![expect(clippy::unwrap_used, reason = "a test")]

use std::path::Path;

use hps_bench::peers::oracle::{Faults, Oracle};
use hps_bench::peers::{DIM, Engine, Kind, LEARNING_RATE, Place, ROW, open, updater};

const ROWS: u64 = 700;
const ALL: [Kind; 5] = [
    Kind::Hps,
    Kind::Rocksdb,
    Kind::Lmdb,
    Kind::Mmap,
    Kind::Hashmap,
];

fn place(dir: &Path) -> Place {
    Place {
        dir: dir.join("store"),
        rows: ROWS,
        memory_bytes: 32 << 20,
        hps_cache_bytes: None,
    }
}

/// Rows and gradients in which no two numbers are alike.
fn value(key: u64, i: usize) -> f32 {
    f32::from(u16::try_from(key * 31 % 997).unwrap()) / 64.0 - 5.0 + i as f32 / 128.0
}

/// What the engines must hold: rows by key, updated by the rule's plain twin.
struct Expected {
    rows: Vec<f32>,
}

impl Expected {
    fn new() -> Expected {
        let row = |key| (0..ROW).map(move |i| value(key, i).abs());
        Expected {
            rows: (0..ROWS).flat_map(row).collect(),
        }
    }

    fn row(&mut self, key: u64) -> &mut [f32] {
        let at = usize::try_from(key).unwrap() * ROW;
        &mut self.rows[at..at + ROW]
    }

    /// Loads in two batches that overlap: the second one replaces rows.
    fn load(&mut self, engine: &mut dyn Engine) {
        let keys: Vec<u64> = (0..ROWS).collect();
        engine.load(&keys[..400], &vec![7.0; 400 * ROW]).unwrap();
        let all = self.rows.clone();
        engine.load(&keys, &all).unwrap();
    }

    fn check(&mut self, engine: &mut dyn Engine, keys: &[u64], what: &str) {
        let mut out = vec![0.0; keys.len() * DIM];
        engine.pull(keys, &mut out).unwrap();
        for (key, weights) in keys.iter().zip(out.chunks_exact(DIM)) {
            let bits = |x: &[f32]| x.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            assert_eq!(
                bits(weights),
                bits(&self.row(*key)[..DIM]),
                "{what}, key {key}"
            );
        }
    }

    fn push(&mut self, engine: &mut dyn Engine, keys: &[u64], sign: f32) {
        let gradient = |key: &u64| {
            let key = *key;
            (0..DIM).map(move |i| sign * value(key, i))
        };
        let gradients: Vec<f32> = keys.iter().flat_map(gradient).collect();
        engine.push(keys, &gradients).unwrap();
        for (key, gradient) in keys.iter().zip(gradients.chunks_exact(DIM)) {
            updater().apply_gradient(self.row(*key), gradient, LEARNING_RATE);
        }
    }
}

#[test]
fn pushes_are_adagrad_to_the_bit_and_survive_a_reopen_after_a_checkpoint() {
    for kind in ALL {
        let dir = tempfile::tempdir().unwrap();
        let place = place(dir.path());
        let mut expected = Expected::new();
        let mut engine = open(kind, &place).unwrap();
        expected.load(&mut *engine);
        let all: Vec<u64> = (0..ROWS).collect();
        let some: Vec<u64> = (0..ROWS).filter(|k| k % 3 == 1).collect();
        for (keys, sign) in [(&all, 1.0), (&some, -0.5), (&some, 2.0), (&all, -3.0)] {
            expected.check(&mut *engine, keys, kind.name());
            expected.push(&mut *engine, keys, sign);
        }
        expected.check(&mut *engine, &all, kind.name());
        engine.checkpoint().unwrap();
        engine.settle().unwrap();
        if kind.persists() {
            drop(engine);
            engine = open(kind, &place).unwrap();
        }
        expected.check(&mut *engine, &all, "opened again");
        // State survives as well: one more update shows the accumulators.
        expected.push(&mut *engine, &all, 0.25);
        expected.check(&mut *engine, &all, "updated after opening");
    }
}

#[test]
fn small_and_lopsided_batches_are_served() {
    for kind in ALL {
        let dir = tempfile::tempdir().unwrap();
        let mut expected = Expected::new();
        let mut engine = open(kind, &place(dir.path())).unwrap();
        expected.load(&mut *engine);
        let batches: [&[u64]; 5] = [&[0], &[ROWS - 1], &[3, 4], &[0, 1, 2, 3, 699], &[]];
        for keys in batches {
            expected.check(&mut *engine, keys, kind.name());
            expected.push(&mut *engine, keys, 1.0);
            expected.check(&mut *engine, keys, kind.name());
        }
    }
}

#[test]
fn a_push_of_a_batch_that_was_not_pulled_is_refused() {
    // The array has no state between the calls: it writes where the keys say.
    for kind in ALL.into_iter().filter(|kind| *kind != Kind::Mmap) {
        let dir = tempfile::tempdir().unwrap();
        let mut expected = Expected::new();
        let mut engine = open(kind, &place(dir.path())).unwrap();
        expected.load(&mut *engine);
        expected.check(&mut *engine, &[1, 2], kind.name());
        let refused = engine.push(&[1, 3], &[0.0; 2 * DIM]);
        assert!(refused.is_err(), "{}", kind.name());
    }
}

#[test]
fn hps_serves_batches_told_ahead_with_the_newest_values() {
    let dir = tempfile::tempdir().unwrap();
    let mut expected = Expected::new();
    let mut engine = open(Kind::Hps, &place(dir.path())).unwrap();
    expected.load(&mut *engine);
    let batches: Vec<Vec<u64>> = (1..8)
        .map(|step| (0..ROWS).step_by(step).collect())
        .collect();
    engine.ahead(&batches[0]).unwrap();
    for (i, keys) in batches.iter().enumerate() {
        if let Some(next) = batches.get(i + 1) {
            engine.ahead(next).unwrap();
        }
        expected.check(&mut *engine, keys, "told ahead");
        expected.push(&mut *engine, keys, 1.0);
    }
}

#[test]
fn the_truth_agrees_with_every_engine() {
    for kind in ALL {
        let dir = tempfile::tempdir().unwrap();
        let mut engine = open(kind, &place(dir.path())).unwrap();
        let mut oracle = Oracle::new(ROWS);
        let keys: Vec<u64> = (0..ROWS).collect();
        let mut rows = Vec::new();
        Oracle::rows(&keys, &mut rows);
        engine.load(&keys, &rows).unwrap();
        let gradients = oracle.gradients(keys.len());
        let mut out = vec![0.0; keys.len() * DIM];
        for _ in 0..3 {
            engine.pull(&keys, &mut out).unwrap();
            assert_eq!(
                oracle.check(&keys, &out),
                Faults::default(),
                "{}",
                kind.name()
            );
            engine.push(&keys, &gradients).unwrap();
            oracle.pushed(&keys);
        }
    }
}
