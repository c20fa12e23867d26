use super::optimizer::check_hyper;
use super::*;
use crate::options::HyperParameters;
use crate::units::mix64;

const OPTIMIZERS: &str = include_str!("../../tests/data/optimizers.tsv");
const INITIALISERS: &str = include_str!("../../tests/data/initialisers.tsv");

fn descriptor(optimizer: Optimizer, dim: usize) -> TableDescriptor {
    TableDescriptor {
        optimizer,
        ..TableDescriptor::new("t", dim)
    }
}

fn bits(row: &[f32]) -> Vec<u32> {
    // Rust and IEEE 754 leave the bits inside a NaN open, so all NaNs are one here.
    row.iter()
        .map(|x| if x.is_nan() { u32::MAX } else { x.to_bits() })
        .collect()
}

struct Pairs<'a> {
    rows: std::slice::ChunksExactMut<'a, f32>,
    gradients: std::slice::ChunksExact<'a, f32>,
}

impl RowVisitor for Pairs<'_> {
    fn next(&mut self) -> Option<(&mut [f32], &[f32])> {
        Some((self.rows.next()?, self.gradients.next()?))
    }
}

/// Every instruction set that this machine can run.
fn instruction_sets() -> Vec<pulp::Arch> {
    let mut sets = vec![pulp::Arch::Scalar, pulp::Arch::new()];
    #[cfg(target_arch = "x86_64")]
    sets.extend(pulp::x86::V3::try_new().map(pulp::Arch::V3));
    sets
}

/// Floats of very different size, with zeros of both signs and subnormals among them.
fn float(seed: u64, index: usize) -> f32 {
    let random = mix64(
        seed.wrapping_mul(0x9e37_79b9)
            .wrapping_add(index as u64 + 1),
    );
    let unit = initialiser::uniform(random, -2.0, 2.0);
    match random % 32 {
        0 => 0.0,
        1 => -0.0,
        2 => unit * 1e-40,
        3 => unit * 1e-20,
        4 => unit * 1e15,
        _ => unit,
    }
}

/// Rows as they occur: weights of any sign, accumulators not negative, Adam's t a count.
fn random_rows(updater: &Updater, rows: usize, seed: u64) -> Vec<f32> {
    let layout = updater.layout();
    let mut all: Vec<f32> = (0..rows * layout.row_f32s())
        .map(|i| float(seed, i))
        .collect();
    for (number, row) in all.chunks_exact_mut(layout.row_f32s()).enumerate() {
        let state = &mut row[layout.state_range()];
        match updater.optimizer {
            Optimizer::Adagrad | Optimizer::RowwiseAdagrad => {
                state.iter_mut().for_each(|a| *a = a.abs());
            }
            Optimizer::Ftrl => state[layout.dim()..].iter_mut().for_each(|n| *n = n.abs()),
            Optimizer::Adam => {
                state[layout.dim()..].iter_mut().for_each(|v| *v = v.abs());
                state[2 * layout.dim()] = (number * number * 1000) as f32;
            }
            _ => {}
        }
    }
    all
}

#[test]
fn vector_code_and_scalar_twin_agree_to_the_bit() {
    const ROWS: usize = 5;
    let hyper = HyperParameters {
        lambda1: 0.6,
        lambda2: 0.1,
        ..HyperParameters::default()
    };
    for &optimizer in Optimizer::ALL {
        for dim in (1..=67).chain([128, 255]) {
            let mut given = descriptor(optimizer, dim);
            given.metadata.count = dim % 2 == 1;
            let updater = Updater::new(&given, &hyper);
            let row_f32s = updater.layout().row_f32s();
            let before = random_rows(&updater, ROWS, dim as u64);
            let mut gradients: Vec<f32> = (0..ROWS * dim).map(|i| float(!7, i)).collect();
            gradients[dim / 2] = f32::INFINITY;
            gradients[2 * dim - 1] = f32::NAN;
            let mut twin = before.clone();
            for (row, g) in twin
                .chunks_exact_mut(row_f32s)
                .zip(gradients.chunks_exact(dim))
            {
                updater.apply_gradient(row, g, 0.05);
            }
            assert_ne!(
                bits(&before),
                bits(&twin),
                "{optimizer:?} {dim}: nothing changed"
            );
            for set in instruction_sets() {
                let mut rows = before.clone();
                let mut pairs = Pairs {
                    rows: rows.chunks_exact_mut(row_f32s),
                    gradients: gradients.chunks_exact(dim),
                };
                vector::apply_all(set, &updater, 0.05, &mut pairs);
                assert_eq!(
                    bits(&rows),
                    bits(&twin),
                    "{optimizer:?}, dim {dim}, {set:?}"
                );
            }
        }
    }
}

fn optimizer_named(name: &str) -> Optimizer {
    match name {
        "sgd" => Optimizer::Sgd,
        "momentum" => Optimizer::Momentum,
        "nesterov" => Optimizer::Nesterov,
        "adagrad" => Optimizer::Adagrad,
        "adagrad_rowwise" => Optimizer::RowwiseAdagrad,
        "adam" => Optimizer::Adam,
        "ftrl" => Optimizer::Ftrl,
        other => panic!("no optimizer {other}"),
    }
}

/// Five steps of each rule against NumPy in float64: relative 1e-5, of values below 0.01
/// absolute 1e-7 (f32 has 6e-8; a wrong rule is off in the first digits).
#[test]
fn update_rules_give_the_figures_of_numpy() {
    let near = |x: f32, y: f64| (f64::from(x) - y).abs() <= 1e-5 * y.abs().max(0.01);
    let (mut cases, mut steps) = (Vec::new(), 0);
    let mut current: Option<(Updater, f32, Vec<f32>)> = None;
    let mut gradient: Option<Vec<f32>> = None;
    for (number, line) in OPTIMIZERS
        .lines()
        .enumerate()
        .filter(|(_, l)| !l.starts_with('#'))
    {
        let mut fields = line.split('\t');
        let kind = fields.next().unwrap();
        if kind == "case" {
            let optimizer = optimizer_named(fields.next().unwrap());
            let h: Vec<f32> = fields.map(|f| f.parse().unwrap()).collect();
            let [
                lr,
                momentum,
                epsilon,
                beta1,
                beta2,
                ftrl_beta,
                lambda1,
                lambda2,
                accumulator,
            ] = h[..].try_into().unwrap();
            let hyper = HyperParameters {
                momentum,
                epsilon,
                beta1,
                beta2,
                ftrl_beta,
                lambda1,
                lambda2,
            };
            check_hyper(&hyper).unwrap();
            let given = TableDescriptor {
                accumulator,
                ..descriptor(optimizer, 5)
            };
            current = Some((Updater::new(&given, &hyper), lr, Vec::new()));
            cases.push(optimizer);
            continue;
        }
        let values: Vec<f64> = fields.map(|f| f.parse().unwrap()).collect();
        let singles = || {
            values
                .iter()
                .map(|x| round_to_f32(*x))
                .collect::<Vec<f32>>()
        };
        let (updater, lr, row) = current.as_mut().unwrap();
        if kind == "gradient" {
            gradient = Some(singles());
        } else if let Some(g) = gradient.take() {
            updater.apply_gradient(row, &g, *lr);
            steps += 1;
            assert!(
                row.len() == values.len() && row.iter().zip(&values).all(|(x, y)| near(*x, *y)),
                "line {}: {:?}: {row:?}, NumPy {values:?}",
                number + 1,
                updater.optimizer,
            );
        } else {
            // The initial row: its state must be what a fresh row has.
            *row = vec![f32::NAN; updater.layout().row_f32s()];
            updater.layout().default_row(7, row);
            let weights = singles()[..5].to_vec();
            updater.layout().apply_values(row, &weights);
            assert_eq!(*row, singles(), "line {}: fresh row", number + 1);
        }
    }
    assert!(Optimizer::ALL.iter().all(|o| cases.contains(o)) && steps == 5 * cases.len());
}

#[test]
fn row_wise_sum_has_16_lanes_and_adds_them_in_halves() {
    let updater = Updater::new(
        &descriptor(Optimizer::RowwiseAdagrad, 37),
        &HyperParameters::default(),
    );
    let mut other_orders = 0;
    for seed in 0..50 {
        let g: Vec<f32> = (0..37).map(|i| float(seed, i).clamp(-2.0, 2.0)).collect();
        let mut row = vec![0.0; 38];
        updater.apply_gradient(&mut row, &g, 0.1);
        let lane = |i: usize| g[i..].iter().step_by(16).fold(0.0, |sum, x| sum + x * x);
        let pair = |i| lane(i) + lane(i + 8);
        let four = |i| pair(i) + pair(i + 4);
        let sum: f32 = (four(0) + four(2)) + (four(1) + four(3));
        assert_eq!(row[37].to_bits(), (sum / 37.0).to_bits(), "seed {seed}");
        let plain: f32 = g.iter().map(|x| x * x).sum();
        other_orders += usize::from(plain != sum);
    }
    assert!(
        other_orders > 10,
        "the order would not be seen: {other_orders}"
    );
}

#[test]
fn adam_counts_its_steps_in_each_row_and_corrects_by_them() {
    let updater = Updater::new(&descriptor(Optimizer::Adam, 1), &HyperParameters::default());
    let mut row = [1.0, 0.0, 0.0, 0.0];
    updater.apply_gradient(&mut row, &[4.0], 0.5);
    assert_eq!(row[3], 1.0);
    // The first step of Adam is lr, whatever the gradient.
    assert!((row[0] - 0.5).abs() < 1e-6, "{}", row[0]);
    // The count stays at 2^24, where f32 can't count on.
    row[3] = 16_777_216.0;
    updater.apply_gradient(&mut row, &[4.0], 0.5);
    assert_eq!(row[3], 16_777_216.0);
}

#[test]
fn fresh_rows_have_the_golden_bits() {
    let hex = |s: &str| u64::from_str_radix(s, 16).unwrap();
    let single = |s: &str| f32::from_bits(u32::from_str_radix(s, 16).unwrap());
    let mut checked = 0;
    for line in INITIALISERS.lines().filter(|l| !l.starts_with('#')) {
        let f: Vec<&str> = line.split('\t').collect();
        if f[0] == "quantile" {
            let (p, z): (f64, f64) = (f[1].parse().unwrap(), f[2].parse().unwrap());
            let found = initialiser::quantile(p);
            assert!(
                (found - z).abs() <= 1e-13 * z.abs(),
                "quantile of {p}: {found}, not {z}"
            );
            continue;
        }
        let (a, b) = (single(f[1]), single(f[2]));
        let initialiser = match f[0] {
            "uniform" => Initialiser::Uniform { low: a, high: b },
            _ => Initialiser::Normal {
                mean: a,
                deviation: b,
            },
        };
        let index: usize = f[5].parse().unwrap();
        let dim = index + 1;
        let given = TableDescriptor {
            initialiser,
            seed: hex(f[3]),
            ..descriptor(Optimizer::Sgd, dim)
        };
        let mut row = vec![f32::NAN; dim];
        RowLayout::new(&given).default_row(hex(f[4]), &mut row);
        assert_eq!(
            row[index].to_bits(),
            single(f[6]).to_bits(),
            "{line}: {}",
            row[index]
        );
        checked += 1;
    }
    assert_eq!(checked, 5 * 3 * 5 * 7);
}

/// The golden bits once more in the source, so that no file can be changed alone.
#[test]
fn golden_bits_of_one_key_are_in_the_source() {
    let mut row = [f32::NAN; 3];
    initialiser::fill(
        Initialiser::Uniform {
            low: -0.01,
            high: 0.01,
        },
        0,
        1,
        &mut row,
    );
    assert_eq!(bits(&row), UNIFORM_BITS);
    initialiser::fill(
        Initialiser::Normal {
            mean: 0.0,
            deviation: 1.0,
        },
        0,
        1,
        &mut row,
    );
    assert_eq!(bits(&row), NORMAL_BITS);
}
const UNIFORM_BITS: [u32; 3] = [0x39a7_ae20, 0x3b42_1890, 0xbbd5_fbca];
const NORMAL_BITS: [u32; 3] = [0x3d24_3a6e, 0x3ec2_a331, 0xbf70_c2f6];

#[test]
fn own_logarithm_equals_that_of_libm_to_15_digits() {
    for i in 0..2000u64 {
        let x = f64::from_bits(((1023 - i % 60) << 52) | (mix64(i) >> 12));
        let (own, libm) = (initialiser::ln(x), x.ln());
        assert!(
            (own - libm).abs() <= 4e-16 * libm.abs().max(0.4),
            "ln {x}: {own}, not {libm}"
        );
    }
}

#[test]
fn initialisers_have_their_moments_and_neighbours_are_independent() {
    const DIM: usize = 64;
    for (initialiser, deviation) in [
        (
            Initialiser::Uniform {
                low: -1.0,
                high: 1.0,
            },
            (1.0f64 / 3.0).sqrt(),
        ),
        (
            Initialiser::Normal {
                mean: 0.0,
                deviation: 1.0,
            },
            1.0,
        ),
    ] {
        let keys = 4000u64;
        let (mut sum, mut squares, mut next_index, mut next_key) = (0.0, 0.0, 0.0, 0.0);
        let (mut row, mut last) = ([0.0f32; DIM], [0.0f32; DIM]);
        for key in 0..keys {
            initialiser::fill(initialiser, 0, key, &mut row);
            for i in 0..DIM {
                let x = f64::from(row[i]);
                sum += x;
                squares += x * x;
                next_index += x * f64::from(row[(i + 1) % DIM]);
                next_key += x * f64::from(last[i]);
            }
            last = row;
        }
        let n = (keys * DIM as u64) as f64;
        let variance = deviation * deviation;
        // Five standard errors of each mean.
        assert!((sum / n).abs() < 5.0 * deviation / n.sqrt());
        assert!((squares / n - variance).abs() < 5.0 * variance * (2.0 / n).sqrt());
        assert!((next_index / n).abs() < 5.0 * variance / n.sqrt());
        assert!((next_key / n).abs() < 5.0 * variance / n.sqrt());
    }
}

#[test]
fn uniform_stays_below_its_upper_bound() {
    let high = 1.0f32.next_up();
    for bits in [0, u64::MAX, u64::MAX << 40, 1 << 63] {
        let value = initialiser::uniform(bits, 1.0, high);
        assert!((1.0..high).contains(&value), "{bits:x}: {value}");
        assert_eq!(initialiser::uniform(bits, 2.0, 2.0), 2.0);
    }
    assert!(initialiser::uniform(u64::MAX, -1.0, 0.0) < 0.0);
    // A normal ends at about 8.2 deviations, and never overflows.
    assert!(initialiser::normal(u64::MAX, 0.0, 1.0) < 8.3);
    assert!(initialiser::normal(0, 0.0, 1.0) > -8.3);
    assert_eq!(initialiser::normal(u64::MAX, 0.0, f32::MAX), f32::MAX);
}

#[test]
fn fresh_state_is_zero_but_for_the_accumulators() {
    let expected: [(Optimizer, &[f32]); 7] = [
        (Optimizer::Sgd, &[]),
        (Optimizer::Momentum, &[0.0, 0.0]),
        (Optimizer::Nesterov, &[0.0, 0.0]),
        (Optimizer::Adagrad, &[0.5, 0.5]),
        (Optimizer::RowwiseAdagrad, &[0.5]),
        (Optimizer::Adam, &[0.0, 0.0, 0.0, 0.0, 0.0]),
        (Optimizer::Ftrl, &[0.0, 0.0, 0.5, 0.5]),
    ];
    for (optimizer, state) in expected {
        let mut given = TableDescriptor {
            accumulator: 0.5,
            ..descriptor(optimizer, 2)
        };
        given.metadata = RowMetadata {
            show: true,
            last_step: true,
            ..RowMetadata::default()
        };
        given.initialiser = Initialiser::Constant { value: 3.0 };
        let layout = RowLayout::new(&given);
        assert_eq!(layout.row_f32s(), given.row_f32s());
        let mut row = vec![f32::NAN; layout.row_f32s()];
        layout.default_row(9, &mut row);
        assert_eq!(row[..2], [3.0, 3.0]);
        assert_eq!(&row[layout.state_range()], state, "{optimizer:?}");
        assert_eq!(row[layout.metadata_range()], [0.0, 0.0]);
    }
}

#[test]
fn metadata_counts_saturate_and_absent_columns_take_no_room() {
    let full = RowMetadata {
        show: true,
        click: true,
        count: true,
        last_step: true,
    };
    let layout = RowLayout::new(&TableDescriptor {
        metadata: full,
        ..descriptor(Optimizer::Sgd, 1)
    });
    let mut row = vec![2.0, 0.0, 0.0, 0.0, 0.0];
    layout.update_metadata(&mut row, 10, 3, 77);
    layout.update_metadata(&mut row, u32::MAX - 5, 4, 78);
    let found = layout.metadata(&row);
    let expected = MetadataValues {
        show: Some(u32::MAX),
        click: Some(7),
        count: Some(2),
        last_step: Some(78),
    };
    assert_eq!(found, expected);
    assert_eq!(row[0], 2.0);

    let some = RowMetadata {
        click: true,
        last_step: true,
        ..RowMetadata::default()
    };
    let layout = RowLayout::new(&TableDescriptor {
        metadata: some,
        ..descriptor(Optimizer::Sgd, 1)
    });
    let mut row = vec![2.0, 0.0, 0.0];
    layout.update_metadata(&mut row, 10, 3, 77);
    let expected = MetadataValues {
        click: Some(3),
        last_step: Some(77),
        ..Default::default()
    };
    assert_eq!(layout.metadata(&row), expected);
    assert_eq!(row[1].to_bits(), 3);
}

#[test]
fn deltas_change_weights_only_and_values_weights_or_all() {
    let layout = RowLayout::new(&descriptor(Optimizer::Adagrad, 2));
    let mut row = [1.0, 2.0, 3.0, 4.0];
    layout.apply_delta(&mut row, &[0.5, -0.5]);
    assert_eq!(row, [1.5, 1.5, 3.0, 4.0]);
    layout.apply_values(&mut row, &[7.0, 8.0]);
    assert_eq!(row, [7.0, 8.0, 3.0, 4.0]);
    layout.apply_values(&mut row, &[0.0, 1.0, 2.0, 3.0]);
    assert_eq!(row, [0.0, 1.0, 2.0, 3.0]);
    accumulate(&mut row[..2], &[1.0, 1.0]);
    assert_eq!(row, [1.0, 2.0, 2.0, 3.0]);
}

#[test]
fn one_value_that_is_not_finite_is_found_anywhere() {
    for length in [1, 5, 63, 64, 65, 200] {
        let mut values = vec![f32::MAX; length];
        assert!(all_finite(&values));
        for i in 0..length {
            for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                values[i] = bad;
                assert!(!all_finite(&values), "{bad} at {i} of {length}");
            }
            values[i] = -f32::MAX;
        }
    }
    assert!(all_finite(&[]));
}

#[test]
fn hyperparameters_and_learning_rates_out_of_range_are_refused() {
    assert!(check_hyper(&HyperParameters::default()).is_ok());
    let wrong = [
        HyperParameters {
            momentum: 1.0,
            ..HyperParameters::default()
        },
        HyperParameters {
            beta1: -0.1,
            ..HyperParameters::default()
        },
        HyperParameters {
            beta2: f32::NAN,
            ..HyperParameters::default()
        },
        HyperParameters {
            epsilon: -1e-8,
            ..HyperParameters::default()
        },
        HyperParameters {
            lambda1: f32::INFINITY,
            ..HyperParameters::default()
        },
    ];
    for hyper in wrong {
        assert!(check_hyper(&hyper).is_err(), "{hyper:?}");
    }
    assert!(check_learning_rate(Optimizer::Ftrl, 0.0).is_err());
    assert!(check_learning_rate(Optimizer::Sgd, f32::NAN).is_err());
    assert!(check_learning_rate(Optimizer::Sgd, 0.0).is_ok());
}
