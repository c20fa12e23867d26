//! What are the weights of a key that was never pushed?
//!
//! Invariants:
//! - Weight i of a key is a pure function of (seed, key, i): nothing is drawn in sequence, so
//!   order, batch, thread, cache and restart do not matter.
//! - Only integer operations and IEEE `+ - * /` and sqrt are used (no libm), in a fixed order:
//!   the bits are part of the format, held by `tests/data/initialisers.tsv`.
//!
//! The generator: `stream = mix64(mix64(seed + S) ^ mix64(key + K))` and element i of it is
//! `mix64(stream + (i + 1) * WEYL)`, all wrapping (a SplitMix64 whose finaliser is mix64).
//!
//! Uniform: the top 24 bits of the element, as u = n / 2^24 in [0, 1), then
//! `low + u * (high - low)` in f32. Rounding may reach `high`; the f32 below it is taken instead.
//!
//! Normal: the top 52 bits as p = (2 n + 1) / 2^53 in (0, 1), then the quantile of p by Wichura's
//! AS 241 (PPND16) in f64, then `mean + deviation * z` in f64, rounded once to f32.
//! |z| is below 8.3.

#![expect(
    clippy::excessive_precision,
    reason = "the digits of AS 241 as published"
)]

use super::round_to_f32;
use crate::options::Initialiser;
use crate::units::mix64;

/// 2^64 / golden ratio, odd: the increment of SplitMix64 (Steele et al. 2014).
const WEYL: u64 = 0x9e37_79b9_7f4a_7c15;
/// Added to the seed and the key, so that 0 (the fixed point of mix64) is a value as any other.
const SEED_OFFSET: u64 = 0x243f_6a88_85a3_08d3;
const KEY_OFFSET: u64 = 0x1319_8a2e_0370_7344;

/// The numbers of one key.
#[derive(Clone, Copy)]
struct Stream(u64);

impl Stream {
    fn new(seed: u64, key: u64) -> Stream {
        let seed = mix64(seed.wrapping_add(SEED_OFFSET));
        Stream(mix64(seed ^ mix64(key.wrapping_add(KEY_OFFSET))))
    }

    /// Element numbers count from 1: the caller's position is `index + 1` times [`WEYL`].
    #[inline(always)]
    fn element(self, position: u64) -> u64 {
        mix64(self.0.wrapping_add(position))
    }
}

/// Writes the weights of `key`.
pub(super) fn fill(initialiser: Initialiser, seed: u64, key: u64, weights: &mut [f32]) {
    match initialiser {
        Initialiser::Zero => weights.fill(0.0),
        Initialiser::Constant { value } => weights.fill(value),
        Initialiser::Uniform { low, high } => {
            each(seed, key, weights, |bits| uniform(bits, low, high));
        }
        Initialiser::Normal { mean, deviation } => {
            each(seed, key, weights, |bits| normal(bits, mean, deviation));
        }
    }
}

#[inline(always)]
fn each(seed: u64, key: u64, weights: &mut [f32], value: impl Fn(u64) -> f32) {
    let stream = Stream::new(seed, key);
    let mut position = 0u64;
    for weight in weights {
        position = position.wrapping_add(WEYL);
        *weight = value(stream.element(position));
    }
}

/// In `[low, high)`; `low` where the interval is empty.
#[inline(always)]
pub(super) fn uniform(bits: u64, low: f32, high: f32) -> f32 {
    const SCALE: f32 = 1.0 / 16_777_216.0;
    // At most 24 bits: exact in f32.
    let unit = (bits >> 40) as f32 * SCALE;
    let value = low + unit * (high - low);
    if value < high {
        value
    } else {
        high.next_down().max(low)
    }
}

/// Normal with `mean` and `deviation`; finite for finite arguments.
pub(super) fn normal(bits: u64, mean: f32, deviation: f32) -> f32 {
    const SCALE: f64 = 1.0 / 9_007_199_254_740_992.0;
    // Odd and below 2^53: exact in f64, and so is 1 - p.
    let p = (2 * (bits >> 12) + 1) as f64 * SCALE;
    let value = f64::from(mean) + f64::from(deviation) * quantile(p);
    round_to_f32(value.clamp(f64::from(f32::MIN), f64::from(f32::MAX)))
}

/// Horner's rule from the highest coefficient (first) to the constant (last).
#[inline(always)]
fn polynomial(coefficients: &[f64; 8], x: f64) -> f64 {
    let mut sum = 0.0;
    for coefficient in coefficients {
        sum = sum * x + coefficient;
    }
    sum
}

/// The normal quantile of p in (0, 1).
///
/// # Source
/// Wichura, Algorithm AS 241 (PPND16), Applied Statistics 37 (1988): about 1e-16 relative.
pub(super) fn quantile(p: f64) -> f64 {
    let q = p - 0.5;
    if (-0.425..=0.425).contains(&q) {
        let r = 0.180625 - q * q;
        return q * polynomial(&CENTRE.0, r) / polynomial(&CENTRE.1, r);
    }
    let tail = if q < 0.0 { p } else { 1.0 - p };
    let r = (-ln(tail)).sqrt();
    let (shift, (above, below)) = if r <= 5.0 {
        (1.6, &MIDDLE)
    } else {
        (5.0, &FAR)
    };
    let r = r - shift;
    let z = polynomial(above, r) / polynomial(below, r);
    if q < 0.0 { -z } else { z }
}

/// Natural logarithm of a normal positive number: exponent * ln 2 + 2 atanh((m - 1) / (m + 1)).
///
/// m is in [sqrt(1/2), sqrt(2)), so |s| <= 0.1716 and the term s^23 / 23 is below 1e-19.
pub(super) fn ln(x: f64) -> f64 {
    const MANTISSA: u64 = (1 << 52) - 1;
    const ONE: u64 = 1023 << 52;
    /// Bits of sqrt(2).
    const SQRT_2: u64 = 0x3ff6_a09e_667f_3bcd;
    let bits = x.to_bits();
    let mut exponent = ((bits >> 52) & 0x7ff) as f64 - 1023.0;
    let mut m = f64::from_bits(bits & MANTISSA | ONE);
    if m.to_bits() >= SQRT_2 {
        m *= 0.5;
        exponent += 1.0;
    }
    let s = (m - 1.0) / (m + 1.0);
    let square = s * s;
    let mut sum = 0.0;
    for odd in [21.0, 19.0, 17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        sum = sum * square + 1.0 / odd;
    }
    exponent * std::f64::consts::LN_2 + 2.0 * s * sum
}

/// Numerator and denominator, highest power first.
type Rational = ([f64; 8], [f64; 8]);

const CENTRE: Rational = (
    [
        2.5090809287301226727e3,
        3.3430575583588128105e4,
        6.7265770927008700853e4,
        4.5921953931549871457e4,
        1.3731693765509461125e4,
        1.9715909503065514427e3,
        1.3314166789178437745e2,
        3.3871328727963666080e0,
    ],
    [
        5.2264952788528545610e3,
        2.8729085735721942674e4,
        3.9307895800092710610e4,
        2.1213794301586595867e4,
        5.3941960214247511077e3,
        6.8718700749205790830e2,
        4.2313330701600911252e1,
        1.0,
    ],
);

const MIDDLE: Rational = (
    [
        7.74545014278341407640e-4,
        2.27238449892691845833e-2,
        2.41780725177450611770e-1,
        1.27045825245236838258e0,
        3.64784832476320460504e0,
        5.76949722146069140550e0,
        4.63033784615654529590e0,
        1.42343711074968357734e0,
    ],
    [
        1.05075007164441684324e-9,
        5.47593808499534494600e-4,
        1.51986665636164571966e-2,
        1.48103976427480074590e-1,
        6.89767334985100004550e-1,
        1.67638483018380384940e0,
        2.05319162663775882187e0,
        1.0,
    ],
);

const FAR: Rational = (
    [
        2.01033439929228813265e-7,
        2.71155556874348757815e-5,
        1.24266094738807843860e-3,
        2.65321895265761230930e-2,
        2.96560571828504891230e-1,
        1.78482653991729133580e0,
        5.46378491116411436990e0,
        6.65790464350110377720e0,
    ],
    [
        2.04426310338993978564e-15,
        1.42151175831644588870e-7,
        1.84631831751005468180e-5,
        7.86869131145613259100e-4,
        1.48753612908506148525e-2,
        1.36929880922735805310e-1,
        5.99832206555887937690e-1,
        1.0,
    ],
);
