//! Which data has a best possible AUC that is known?
//!
//! Rows drawn from a logistic model whose every effect is a pure function of (seed, slot, value):
//! the probability of a parsed row can be computed again, so no side file is needed.
//!
//! - Slots 1 to [`BIG_SLOTS`] have [`BIG_IDS`] ids each, drawn zipf-like; they carry at least half
//!   of the variance of the logit ([`Planted::big_share`]). The other slots are small.
//! - The file is written under another name and renamed: a file of its name is complete.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};

use crate::data::{Batch, DENSE, INTEGERS, SLOTS};
use crate::model::narrow;
use crate::parse::log_of;

/// Rows of the data set.
pub(crate) const ROWS: u64 = 1_400_000;
/// Slots with many ids.
pub(crate) const BIG_SLOTS: usize = 6;
/// Ids of each of them.
pub(crate) const BIG_IDS: u32 = 150_000;
/// Ids of the other slots.
const SMALL_IDS: [u32; SLOTS - BIG_SLOTS] = [
    2, 3, 4, 5, 8, 10, 12, 16, 20, 24, 30, 40, 50, 60, 80, 100, 200, 300, 500, 1000,
];
/// Zipf exponent 1 + 1/20: its inverse is a 20th power, exact enough and without libm.
const ZIPF_POWER: f64 = 20.0;
/// Where ranks begin, so that the first id has about 8 % of the rows.
const ZIPF_FIRST: f64 = 1.0;
/// Deviation of an id's effect in a small slot, and in each big slot: two carry nearly all, since a
/// rare id's effect must be large to be learned from the few rows that show it.
const SMALL_DEVIATION: f64 = 0.40;
const BIG_DEVIATIONS: [f64; BIG_SLOTS] = [1.4, 1.4, 0.1, 0.1, 0.1, 0.1];
/// Slopes of the first integers.
const SLOPES: [f64; 3] = [0.4, -0.3, 0.2];
const BIAS: f64 = -0.8;
const EMPTY_PERCENT: u64 = 4;

/// splitmix64: a small deterministic source of numbers.
#[derive(Clone, Debug)]
pub(crate) struct Splitmix(pub(crate) u64);

impl Splitmix {
    /// The next number.
    pub(crate) fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        scramble(self.0)
    }

    /// Uniform in [0, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn scramble(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The planted model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planted {
    seed: u64,
}

impl Planted {
    /// The model of a seed.
    pub(crate) fn new(seed: u64) -> Planted {
        Planted {
            seed: scramble(seed ^ 0x70_6c61_6e74),
        }
    }

    /// Effect of a value of a slot (1 to 26): roughly normal.
    fn effect(&self, slot: u64, value: u32) -> f64 {
        let bits = scramble(self.seed ^ scramble(slot << 32 | u64::from(value)));
        let sum: u64 = (0..4).map(|i| bits >> (16 * i) & 0xffff).sum();
        // The sum of four uniforms has variance 4/12.
        let unit = (sum as f64 / 65536.0 - 2.0) * 3f64.sqrt();
        let big = usize::try_from(slot - 1)
            .ok()
            .and_then(|i| BIG_DEVIATIONS.get(i));
        unit * big.copied().unwrap_or(SMALL_DEVIATION)
    }

    /// The planted logit of the batch's last row.
    pub(crate) fn logit_of_last(&self, batch: &Batch) -> f32 {
        let count = usize::from(batch.counts.last().copied().unwrap_or(0));
        let keys = batch
            .keys
            .get(batch.keys.len() - count..)
            .unwrap_or_default();
        let dense = batch
            .dense
            .get(batch.dense.len() - DENSE..)
            .unwrap_or_default();
        let mut logit = BIAS;
        for key in keys {
            logit += self.effect(key >> 32, u32::try_from(key & 0xffff_ffff).unwrap_or(0));
        }
        for (slope, pair) in SLOPES.iter().zip(dense.chunks(2)) {
            logit += slope * f64::from(pair.first().copied().unwrap_or(0.0));
        }
        narrow(logit)
    }

    /// The share of the logit's variance that the big slots carry: exact, from the distribution.
    pub(crate) fn big_share(&self) -> f64 {
        let full = 1.0 - EMPTY_PERCENT as f64 / 100.0;
        let big: f64 = (1..=BIG_SLOTS as u64)
            .map(|slot| {
                let ranks = (0..BIG_IDS).map(|i| (zipf_share(i), value_of(slot, i)));
                self.variance(slot, full, ranks)
            })
            .sum();
        let small: f64 = (BIG_SLOTS as u64 + 1..)
            .zip(SMALL_IDS)
            .map(|(slot, n)| {
                let ranks = (0..n).map(|i| (1.0 / f64::from(n), value_of(slot, i)));
                self.variance(slot, full, ranks)
            })
            .sum();
        let integers = integer_variance(full) * SLOPES.iter().map(|x| x * x).sum::<f64>();
        big / (big + small + integers)
    }

    fn variance(&self, slot: u64, full: f64, ranks: impl Iterator<Item = (f64, u32)>) -> f64 {
        let (mut mean, mut square) = (0.0, 0.0);
        for (share, value) in ranks {
            let effect = self.effect(slot, value);
            mean += share * effect;
            square += share * effect * effect;
        }
        full * square - (full * mean) * (full * mean)
    }

    /// Writes the data set, unless a complete one is there.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        if path.exists() {
            return Ok(());
        }
        let partial = path.with_extension("partial");
        let what = || format!("write the planted data to {}", partial.display());
        let mut file =
            BufWriter::with_capacity(1 << 20, File::create(&partial).with_context(what)?);
        let mut line = String::with_capacity(512);
        for row in 0..ROWS {
            line.clear();
            self.line(row, &mut line)?;
            file.write_all(line.as_bytes()).with_context(what)?;
        }
        file.into_inner()
            .map_err(|error| error.into_error())
            .with_context(what)?;
        std::fs::rename(&partial, path).with_context(what)
    }

    fn line(&self, row: u64, line: &mut String) -> Result<()> {
        let mut source = Splitmix(scramble(self.seed ^ row));
        let mut logit = BIAS;
        for column in 0..INTEGERS {
            line.push('\t');
            let slope = SLOPES.get(column).copied();
            if slope.is_none() && column % 2 == 0 || source.draw() % 100 < EMPTY_PERCENT {
                continue;
            }
            let value = integer(source.unit());
            write!(line, "{value}")?;
            logit += slope.unwrap_or(0.0) * log_of(value);
        }
        for slot in 1..=SLOTS as u64 {
            line.push('\t');
            let bits = source.draw();
            if bits % 100 < EMPTY_PERCENT {
                continue;
            }
            let unit = (bits >> 11) as f64 / (1u64 << 53) as f64;
            let small = usize::try_from(slot)?.checked_sub(BIG_SLOTS + 1);
            let rank = match small.and_then(|i| SMALL_IDS.get(i)) {
                None => zipf(unit),
                Some(n) => uniform(unit, *n),
            };
            let value = value_of(slot, rank);
            write!(line, "{value:x}")?;
            logit += self.effect(slot, value);
        }
        line.push('\n');
        let clicked = source.unit() < 1.0 / (1.0 + (-logit).exp());
        line.insert(0, if clicked { '1' } else { '0' });
        Ok(())
    }
}

/// The value of a rank: scattered over 32 bits in big slots (a bijection), the rank in small ones.
fn value_of(slot: u64, rank: u32) -> u32 {
    if slot > BIG_SLOTS as u64 {
        return rank;
    }
    let x = rank.wrapping_mul(0x9e37_79b1) ^ narrow_slot(slot).wrapping_mul(0x85eb_ca77);
    (x ^ (x >> 15)).wrapping_mul(0x2c1b_3c6d)
}

fn narrow_slot(slot: u64) -> u32 {
    u32::try_from(slot).unwrap_or(0)
}

fn zipf_edges() -> (f64, f64) {
    let root = |x: f64| (-x.ln() / ZIPF_POWER).exp();
    (root(ZIPF_FIRST), root(ZIPF_FIRST + f64::from(BIG_IDS)))
}

/// Draws a rank by the inverse of the distribution function.
fn zipf(unit: f64) -> u32 {
    let (first, last) = zipf_edges();
    let root = first - unit * (first - last);
    let square = root * root;
    let fourth = square * square;
    let sixteenth = (fourth * fourth) * (fourth * fourth);
    uniform(
        (1.0 / (sixteenth * fourth) - ZIPF_FIRST) / f64::from(BIG_IDS),
        BIG_IDS,
    )
}

/// Probability of a rank.
fn zipf_share(rank: u32) -> f64 {
    let (first, last) = zipf_edges();
    let root = |x: f64| (-(ZIPF_FIRST + x).ln() / ZIPF_POWER).exp();
    (root(f64::from(rank)) - root(f64::from(rank) + 1.0)) / (first - last)
}

/// The index of a unit number among `n` equal parts.
#[expect(
    clippy::cast_possible_truncation,
    reason = "clamped to 0..n, which are u32"
)]
fn uniform(unit: f64, n: u32) -> u32 {
    let x = (unit * f64::from(n)).clamp(0.0, f64::from(n - 1));
    x as u32
}

/// A count with a long tail: about a geometric number of doublings.
fn integer(unit: f64) -> i64 {
    i64::from(uniform(1.0 / (1.0 - unit * 0.999) / 1000.0, 1000))
}

/// Variance of the logarithm of [`integer`] with missing ones at zero, by midpoints.
fn integer_variance(full: f64) -> f64 {
    let n = 4096;
    let (mut mean, mut square) = (0.0, 0.0);
    for i in 0..n {
        let x = log_of(integer((f64::from(i) + 0.5) / f64::from(n)));
        mean += x / f64::from(n);
        square += x * x / f64::from(n);
    }
    full * square - (full * mean) * (full * mean)
}
