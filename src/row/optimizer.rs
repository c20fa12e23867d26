//! How does a gradient change a row?
//!
//! The update rules, in f32, each operation rounded, in exactly this order (`g` gradient, `w`
//! weight, `lr` learning rate; parentheses are the order of operations):
//!
//! - SGD: `w = w - (lr * g)`
//! - Momentum: `v = (momentum * v) + g; w = w - (lr * v)`
//! - Nesterov: `v = (momentum * v) + g; w = w - (lr * (g + (momentum * v)))`
//! - AdaGrad: `a = a + (g * g); w = w - ((lr * g) / (sqrt(a) + epsilon))`
//! - row-wise AdaGrad: `a = a + (sum / dim); w = w - ((lr * g) / (sqrt(a) + epsilon))`
//! - Adam: `t = t + 1; m = (beta1 * m) + ((1 - beta1) * g);`
//!   `v = (beta2 * v) + (((1 - beta2) * g) * g);`
//!   `w = w - ((lr * (m / c1)) / (sqrt(v / c2) + epsilon))`
//! - FTRL: `n1 = n + (g * g); s = (sqrt(n1) - sqrt(n)) / lr; z = z + (g - (s * w)); n = n1;`
//!   `w = 0` where `abs(z) <= lambda1`, else
//!   `w = ((sign(z) * lambda1) - z) / (((ftrl_beta + sqrt(n)) / lr) + lambda2)`
//!
//! In these:
//!
//! - `sum` of row-wise AdaGrad: element i of `g * g` is added to lane i mod 16 in rising i, then
//!   lanes are added in halves: 8 apart, 4, 2, 1.
//! - `c1 = 1 - beta1^t`, `c2 = 1 - beta2^t`: the power by repeated squaring in f64 (low bit of t
//!   first), the difference in f64, rounded once to f32. t is a count in f32, so it stays at 2^24.
//! - FTRL is FTRL-Proximal per coordinate (McMahan et al. 2013, algorithm 1) with alpha = lr,
//!   beta = ftrl_beta; w is computed after the update instead of before the next one, so a row
//!   starts from its initialiser's weights.
//!
//! Invariants:
//! - [`Updater::apply_gradient`] is the plain twin; the vector code is tested against it, bit by
//!   bit, at every instruction set the machine has.

use super::{RowLayout, round_to_f32};
use crate::error::{ArgumentError, Error, Result};
use crate::options::{HyperParameters, Optimizer, TableDescriptor};

/// Lanes of a horizontal sum; fixed by the order of operations, not by the machine.
pub(super) const SUM_LANES: usize = 16;

/// The update rule of one table with its hyperparameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Updater {
    pub(super) layout: RowLayout,
    pub(super) optimizer: Optimizer,
    pub(super) hyper: HyperParameters,
}

impl Updater {
    /// The rule of a table. The descriptor and the hyperparameters have been validated
    /// (`TableDescriptor::validate`, [`check_hyper`]).
    #[must_use]
    pub fn new(descriptor: &TableDescriptor, hyper: &HyperParameters) -> Updater {
        Updater {
            layout: RowLayout::new(descriptor),
            optimizer: descriptor.optimizer,
            hyper: *hyper,
        }
    }

    /// Its hyperparameters.
    #[must_use]
    pub fn hyper(&self) -> &HyperParameters {
        &self.hyper
    }

    /// The layout of the rows that this rule changes.
    #[must_use]
    #[cfg(any(test, feature = "sim"))]
    pub fn layout(&self) -> &RowLayout {
        &self.layout
    }

    /// Applies one gradient to one row: the plain twin of [`Updater::apply_all`], to the bit.
    ///
    /// # Shapes
    /// row: `[row_f32s]`, gradient: `[dim]`
    #[cfg(any(test, feature = "sim"))]
    pub fn apply_gradient(&self, row: &mut [f32], gradient: &[f32], lr: f32) {
        let (weights, state) = self.parts(row, gradient);
        let dim = gradient.len();
        let hyper = &self.hyper;
        match self.optimizer {
            Optimizer::Sgd => {
                for (w, g) in weights.iter_mut().zip(gradient) {
                    *w -= lr * g;
                }
            }
            Optimizer::Momentum => {
                for ((w, v), g) in weights.iter_mut().zip(state).zip(gradient) {
                    *v = hyper.momentum * *v + g;
                    *w -= lr * *v;
                }
            }
            Optimizer::Nesterov => {
                for ((w, v), g) in weights.iter_mut().zip(state).zip(gradient) {
                    *v = hyper.momentum * *v + g;
                    *w -= lr * (g + hyper.momentum * *v);
                }
            }
            Optimizer::Adagrad => {
                for ((w, a), g) in weights.iter_mut().zip(state).zip(gradient) {
                    *a += g * g;
                    *w -= lr * g / (a.sqrt() + hyper.epsilon);
                }
            }
            Optimizer::RowwiseAdagrad => {
                state[0] += mean_of_squares(gradient);
                let divisor = state[0].sqrt() + hyper.epsilon;
                for (w, g) in weights.iter_mut().zip(gradient) {
                    *w -= lr * g / divisor;
                }
            }
            Optimizer::Adam => {
                let (m, rest) = state.split_at_mut(dim);
                let (v, t) = rest.split_at_mut(dim);
                let (c1, c2) = adam_corrections(hyper, &mut t[0]);
                for i in 0..dim {
                    let g = gradient[i];
                    m[i] = hyper.beta1 * m[i] + (1.0 - hyper.beta1) * g;
                    v[i] = hyper.beta2 * v[i] + (1.0 - hyper.beta2) * g * g;
                    weights[i] -= lr * (m[i] / c1) / ((v[i] / c2).sqrt() + hyper.epsilon);
                }
            }
            Optimizer::Ftrl => {
                let (z, n) = state.split_at_mut(dim);
                for i in 0..dim {
                    ftrl(
                        hyper,
                        lr,
                        &mut weights[i],
                        &mut z[i],
                        &mut n[i],
                        gradient[i],
                    );
                }
            }
        }
    }

    /// Splits a row into weights and state, after checking both lengths.
    #[inline(always)]
    pub(super) fn parts<'r>(
        &self,
        row: &'r mut [f32],
        gradient: &[f32],
    ) -> (&'r mut [f32], &'r mut [f32]) {
        self.layout.check_row(row);
        assert!(
            gradient.len() == self.layout.dim,
            "a gradient has one value per weight"
        );
        let (weights, rest) = row.split_at_mut(self.layout.dim);
        (weights, &mut rest[..self.layout.state_f32s])
    }
}

#[cfg(any(test, feature = "sim"))]
fn ftrl(hyper: &HyperParameters, lr: f32, w: &mut f32, z: &mut f32, n: &mut f32, g: f32) {
    let grown = *n + g * g;
    let root = grown.sqrt();
    let s = (root - n.sqrt()) / lr;
    *z += g - s * *w;
    *n = grown;
    let above = hyper.lambda1.copysign(*z) - *z;
    let below = (hyper.ftrl_beta + root) / lr + hyper.lambda2;
    *w = if z.abs() <= hyper.lambda1 {
        0.0
    } else {
        above / below
    };
}

/// Mean of the squares, in the order the module's text fixes. The plain twin.
#[cfg(any(test, feature = "sim"))]
fn mean_of_squares(gradient: &[f32]) -> f32 {
    let mut lanes = [0.0f32; SUM_LANES];
    for (i, g) in gradient.iter().enumerate() {
        lanes[i % SUM_LANES] += g * g;
    }
    tree_sum(lanes) / gradient.len() as f32
}

/// Adds 16 lanes in halves: 8 apart, 4, 2, 1.
#[inline(always)]
pub(super) fn tree_sum(mut lanes: [f32; SUM_LANES]) -> f32 {
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
    }
    lanes[0]
}

/// Counts a step in `t` and returns `1 - beta1^t` and `1 - beta2^t`.
#[inline(always)]
pub(super) fn adam_corrections(hyper: &HyperParameters, t: &mut f32) -> (f32, f32) {
    *t += 1.0;
    let steps = count_of(*t);
    (
        one_minus_power(hyper.beta1, steps),
        one_minus_power(hyper.beta2, steps),
    )
}

/// The count that an f32 holds; 0 for what is negative or NaN, saturating above.
#[inline(always)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "Rust defines this cast as saturating"
)]
fn count_of(t: f32) -> u32 {
    t as u32
}

#[inline(always)]
fn one_minus_power(base: f32, mut exponent: u32) -> f32 {
    let mut square = f64::from(base);
    let mut power = 1.0f64;
    while exponent > 0 {
        if exponent & 1 == 1 {
            power *= square;
        }
        square *= square;
        exponent >>= 1;
    }
    round_to_f32(1.0 - power)
}

/// Checks the hyperparameters: momentum and betas in [0, 1), the others finite and not negative.
///
/// # Errors
/// `InvalidArgument` naming the first that is out of range.
pub fn check_hyper(hyper: &HyperParameters) -> Result<()> {
    let bad = |name: &'static str, value: f32, why: &str| {
        let (value, why) = (value.to_string(), why.to_owned());
        Err(Error::InvalidArgument(ArgumentError::Option {
            name,
            value,
            why,
        }))
    };
    let fractions = [
        ("momentum", hyper.momentum),
        ("beta1", hyper.beta1),
        ("beta2", hyper.beta2),
    ];
    for (name, value) in fractions {
        if !(0.0..1.0).contains(&value) {
            return bad(name, value, "must be at least 0 and below 1");
        }
    }
    let sizes = [
        ("epsilon", hyper.epsilon),
        ("ftrl_beta", hyper.ftrl_beta),
        ("lambda1", hyper.lambda1),
        ("lambda2", hyper.lambda2),
    ];
    for (name, value) in sizes {
        if !(value.is_finite() && value >= 0.0) {
            return bad(name, value, "must be finite and not negative");
        }
    }
    Ok(())
}
