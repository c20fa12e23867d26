//! The table of rows in plain Rust, by which every device is judged: the bits of `Store::push`, and the
//! values that NumPy computed.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails where something goes wrong"
)]

#[path = "common/hbm_inputs.rs"]
#[expect(dead_code, reason = "tests of other calls use the rest")]
mod hbm_inputs;
#[path = "common/hbm_pair.rs"]
#[expect(dead_code, reason = "tests of other calls use the rest")]
mod hbm_pair;
#[path = "common/rng.rs"]
mod rng;

use hbm_inputs::floats;
use hbm_pair::{Batch, Driven, TRAIN, assert_same_bits, options, row_f32s};
use hps::hbm::{CpuTable, HbmOptions, Index, open};
use hps::*;
use rng::Rng;

const KEYS: usize = 70;

/// The same rows in a store and in a table.
struct Twins {
    store: Store,
    lease: Lease,
    table: Driven,
    keys: Vec<u64>,
    width: usize,
}

impl Twins {
    /// Half of the keys have random rows, the others those of keys that were never pushed.
    fn new(descriptor: &TableDescriptor, non_finite: NonFinite, rng: &mut Rng) -> Twins {
        let hyper = HyperParameters::new()
            .momentum(0.75)
            .beta1(0.8)
            .lambda1(0.01)
            .lambda2(0.1);
        let disk = io::Io::of(io::sim::SimDisk::new(1));
        let runtime = RuntimeOptions::new()
            .cache_bytes(8 << 20)
            .hyper(hyper)
            .non_finite(non_finite);
        let path = std::path::Path::new("/store");
        let store = Store::create_on(disk, path, CreateOptions::new(), runtime).unwrap();
        let id = store.create_table(descriptor).unwrap();
        let keys: Vec<u64> = (0..KEYS as u64).map(|i| mix64(i).wrapping_sub(1)).collect();
        let width = row_f32s(descriptor);
        let lease = pull(&store, id, &keys[KEYS / 2..], descriptor.dim);
        let random = floats(rng, lease.len() * width);
        let random: Vec<f32> = random.into_iter().map(f32::abs).collect();
        store.push(&lease, Update::rows(&random)).unwrap();
        drop(lease);
        let lease = pull(&store, id, &keys, descriptor.dim);
        let given = options(KEYS).non_finite(non_finite).hyper(hyper);
        let table = CpuTable::new(descriptor, &given).unwrap();
        let mut table = Driven::new(Box::new(table), descriptor, 4 * KEYS).unwrap();
        let rows: Vec<u32> = (0..u32::try_from(KEYS).unwrap()).rev().collect();
        table.insert(Index::First, &keys, &rows).unwrap();
        let mut values = vec![0.0; KEYS * width];
        lease.read_rows(&mut values).unwrap();
        table.place(&rows, &values).unwrap();
        Twins {
            store,
            lease,
            table,
            keys,
            width,
        }
    }

    /// The same batch for both; whether they refused it.
    fn give(&mut self, positions: &[u32], batch: &Batch) -> [bool; 2] {
        let update = Update::gradients(&batch.gradients, batch.lr)
            .at(positions)
            .step(batch.step)
            .shows_clicks(&batch.shows, &batch.clicks);
        let pushed = self.store.push(&self.lease, update);
        self.table.accumulate(Index::First, batch).unwrap();
        let waited = self.table.table.wait(TRAIN);
        self.table.table.forget_refusal(TRAIN).unwrap();
        [pushed.is_err(), waited.is_err()]
    }

    fn compare(&mut self, what: &str) {
        let mut expected = vec![0.0; KEYS * self.width];
        self.lease.read_rows(&mut expected).unwrap();
        let found = self.table.get_rows(Index::First, &self.keys).unwrap();
        assert_same_bits(&found, &expected, what);
    }
}

fn pull(store: &Store, table: TableId, keys: &[u64], dim: usize) -> Lease {
    store
        .pull(table, keys, &mut vec![0.0; keys.len() * dim])
        .unwrap()
}

fn counts(rng: &mut Rng, count: usize) -> Vec<u32> {
    // Some are so large that sums saturate.
    let bits = |rng: &mut Rng| if rng.one_in(9) { 32 } else { 3 };
    (0..count)
        .map(|_| u32::try_from(rng.next() & ((1 << bits(rng)) - 1)).unwrap())
        .collect()
}

/// `n` positions of the keys, any of them several times, and what they are given.
fn batch(twins: &Twins, n: usize, step: u32, rng: &mut Rng) -> (Vec<u32>, Batch) {
    let dim = twins.table.dim;
    let few = 1 + rng.below(KEYS);
    let positions: Vec<u32> = (0..n)
        .map(|_| u32::try_from(rng.below(few)).unwrap())
        .collect();
    let key = |position: &u32| twins.keys[*position as usize];
    let batch = Batch {
        keys: positions.iter().map(key).collect(),
        gradients: floats(rng, n * dim),
        shows: counts(rng, n),
        clicks: counts(rng, n),
        lr: 0.05,
        step,
    };
    (positions, batch)
}

/// Steps of all sizes; every second one has gradients that are not finite.
fn check(descriptor: &TableDescriptor, non_finite: NonFinite, rng: &mut Rng) {
    let mut twins = Twins::new(descriptor, non_finite, rng);
    let rule = descriptor.optimizer;
    let mut refusals = 0;
    for (step, n) in [1, 2, KEYS, 3 * KEYS, 33, 4 * KEYS, 0]
        .into_iter()
        .enumerate()
    {
        let (positions, mut batch) = batch(&twins, n, u32::try_from(step).unwrap(), rng);
        if step % 2 == 1 {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let at = rng.below(batch.gradients.len());
                batch.gradients[at] = bad;
            }
        }
        let refused = twins.give(&positions, &batch);
        let what = format!(
            "{rule:?}, dim {}, {non_finite:?}, step {step}",
            descriptor.dim
        );
        assert_eq!(refused[0], refused[1], "{what}: refused");
        refusals += usize::from(refused[0]);
        twins.compare(&what);
    }
    let expected = if non_finite == NonFinite::Reject {
        3
    } else {
        0
    };
    assert_eq!(refusals, expected, "{rule:?}, {non_finite:?}");
    drop(twins.lease);
    twins.store.close_discarding();
}

#[test]
fn accumulate_gives_the_bits_of_push_for_all_rules_and_columns() {
    let mut rng = Rng(1);
    for &rule in Optimizer::ALL {
        for dim in [1, 8, 17, 64, 100] {
            for columns in [0b1111, 0b0000, 0b1010, 0b0101] {
                let metadata = RowMetadata::new()
                    .show(columns & 1 != 0)
                    .click(columns & 2 != 0)
                    .count(columns & 4 != 0)
                    .last_step(columns & 8 != 0);
                let descriptor = TableDescriptor::new("t", dim)
                    .optimizer(rule)
                    .metadata(metadata);
                for non_finite in [NonFinite::Skip, NonFinite::Reject, NonFinite::Apply] {
                    check(&descriptor, non_finite, &mut rng);
                }
            }
        }
    }
}

/// The rule that the file calls by a name.
fn rule_named(name: &str) -> Optimizer {
    match name {
        "sgd" => Optimizer::Sgd,
        "momentum" => Optimizer::Momentum,
        "nesterov" => Optimizer::Nesterov,
        "adagrad" => Optimizer::Adagrad,
        "adagrad_rowwise" => Optimizer::RowwiseAdagrad,
        "adam" => Optimizer::Adam,
        "ftrl" => Optimizer::Ftrl,
        other => panic!("no such rule: {other}"),
    }
}

/// One case of the file: a table of one row, and the learning rate.
fn case(fields: &[&str]) -> (Driven, f32) {
    let numbers: Vec<f32> = fields[1..].iter().map(|f| f.parse().unwrap()).collect();
    let hyper = HyperParameters::new()
        .momentum(numbers[1])
        .epsilon(numbers[2])
        .beta1(numbers[3])
        .beta2(numbers[4])
        .ftrl_beta(numbers[5])
        .lambda1(numbers[6])
        .lambda2(numbers[7]);
    let descriptor = TableDescriptor::new("t", 5)
        .optimizer(rule_named(fields[0]))
        .accumulator(numbers[8]);
    let given: HbmOptions = options(1).hyper(hyper);
    let table = open(hbm::Device::Cpu, &descriptor, &given).unwrap();
    let mut driven = Driven::new(table, &descriptor, 1).unwrap();
    driven.insert(Index::First, &[7], &[0]).unwrap();
    (driven, numbers[0])
}

/// The file has 64-bit results of a NumPy program, the table computes in 32 bits.
fn near(found: f32, expected: f64) -> bool {
    (f64::from(found) - expected).abs() <= 1e-5 * expected.abs().max(0.01)
}

#[test]
fn accumulate_gives_the_values_of_numpy() {
    let mut now: Option<(Driven, f32)> = None;
    let mut gradient: Option<Vec<f32>> = None;
    let mut steps = 0;
    let text = include_str!("data/optimizers.tsv");
    for (number, line) in text.lines().enumerate() {
        let fields: Vec<&str> = line.split('\t').collect();
        let values = || fields[1..].iter().map(|f| f.parse::<f64>().unwrap());
        let singles = || fields[1..].iter().map(|f| f.parse::<f32>().unwrap());
        match (fields[0], &mut now) {
            ("case", now) => *now = Some(case(&fields[1..])),
            ("gradient", _) => gradient = Some(singles().collect()),
            ("row", Some((driven, lr))) => {
                let Some(gradients) = gradient.take() else {
                    let row: Vec<f32> = singles().collect();
                    driven.place(&[0], &row).unwrap();
                    continue;
                };
                let batch = Batch {
                    keys: vec![7],
                    gradients,
                    shows: vec![0],
                    clicks: vec![0],
                    lr: *lr,
                    step: 0,
                };
                driven.accumulate(Index::First, &batch).unwrap();
                let row = driven.get_rows(Index::First, &[7]).unwrap();
                let all_near = row.iter().zip(values()).all(|(x, y)| near(*x, y));
                assert!(
                    row.len() == values().count() && all_near,
                    "line {}: {row:?}, NumPy {:?}",
                    number + 1,
                    values().collect::<Vec<_>>()
                );
                steps += 1;
            }
            _ => {}
        }
    }
    let cases = text.lines().filter(|line| line.starts_with("case"));
    assert!(steps > 0 && steps == 5 * cases.count(), "{steps} steps");
}
