//! How are many rows updated at the speed of the machine, with the twin's bits?
//!
//! Invariants:
//! - The instruction set (AVX-512, AVX2, baseline) is chosen once per call.
//! - Each lane does what [`Updater::apply_gradient`] does to one element, operation by operation;
//!   there is no fused multiply-add (pulp's `mul_add` is never called, the compiler fuses
//!   nothing).
//! - The end of a row that does not fill a vector goes through the same rule, padded with zeros
//!   that are never stored.
//!
//! [`Updater::apply_gradient`]: super::Updater::apply_gradient

use pulp::{Arch, Simd, WithSimd};

use super::optimizer::{SUM_LANES, Updater, adam_corrections, tree_sum};
use crate::options::{HyperParameters, Optimizer};

/// Yields the rows of a batch, each with its gradient, one after the other.
pub trait RowVisitor {
    /// The next row `[row_f32s]` and its gradient `[dim]`; `None` at the end.
    fn next(&mut self) -> Option<(&mut [f32], &[f32])>;
}

/// Whether no value is NaN or infinite.
#[must_use]
pub fn all_finite(values: &[f32]) -> bool {
    Arch::new().dispatch(AllFinite { values })
}

/// Adds `gradient` to `sum`, element by element: how the gradients of a key that is given several
/// times are summed, in the order the caller goes through them.
///
/// # Shapes
/// sum and gradient: equal
pub fn accumulate(sum: &mut [f32], gradient: &[f32]) {
    assert!(
        sum.len() == gradient.len(),
        "only vectors of equal length can be added"
    );
    for (sum, g) in sum.iter_mut().zip(gradient) {
        *sum += g;
    }
}

struct AllFinite<'a> {
    values: &'a [f32],
}

impl WithSimd for AllFinite<'_> {
    type Output = bool;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) -> bool {
        // NaN and infinity are the numbers whose exponent bits are all set.
        const EXPONENT: u32 = 0x7f80_0000;
        let (blocks, rest) = self.values.as_chunks::<64>();
        for block in blocks {
            let mut found = 0u32;
            for value in block {
                found |= u32::from(value.to_bits() & EXPONENT == EXPONENT);
            }
            if found != 0 {
                return false;
            }
        }
        rest.iter().all(|value| value.is_finite())
    }
}

impl Updater {
    /// Applies one gradient to every row that `visitor` yields.
    ///
    /// The instruction set is chosen once per call; make a call per batch, not per row.
    ///
    /// # Shapes
    /// of what the visitor yields: row `[row_f32s]`, gradient `[dim]`
    pub fn apply_all<V: RowVisitor>(&self, lr: f32, visitor: &mut V) {
        apply_all(pulp::Arch::new(), self, lr, visitor);
    }
}

/// [`Updater::apply_all`](super::Updater::apply_all) on a given instruction set.
pub(super) fn apply_all<V: RowVisitor>(arch: Arch, updater: &Updater, lr: f32, visitor: &mut V) {
    arch.dispatch(ApplyAll {
        updater,
        lr,
        visitor,
    });
}

struct ApplyAll<'a, V> {
    updater: &'a Updater,
    lr: f32,
    visitor: &'a mut V,
}

impl<V: RowVisitor> WithSimd for ApplyAll<'_, V> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let ApplyAll {
            updater,
            lr,
            visitor,
        } = self;
        let hyper = &updater.hyper;
        match updater.optimizer {
            Optimizer::Sgd => stateless(simd, updater, Sgd { lr }, visitor),
            Optimizer::Momentum => {
                one_column(
                    simd,
                    updater,
                    Momentum {
                        lr,
                        momentum: hyper.momentum,
                    },
                    visitor,
                );
            }
            Optimizer::Nesterov => {
                one_column(
                    simd,
                    updater,
                    Nesterov {
                        lr,
                        momentum: hyper.momentum,
                    },
                    visitor,
                );
            }
            Optimizer::Adagrad => {
                one_column(
                    simd,
                    updater,
                    Adagrad {
                        lr,
                        epsilon: hyper.epsilon,
                    },
                    visitor,
                );
            }
            Optimizer::RowwiseAdagrad => row_wise(simd, updater, lr, visitor),
            Optimizer::Adam => adam(simd, updater, lr, visitor),
            Optimizer::Ftrl => ftrl(simd, updater, lr, visitor),
        }
    }
}

#[inline(always)]
fn stateless<S: Simd, V: RowVisitor, R: Rule<0>>(simd: S, u: &Updater, rule: R, visitor: &mut V) {
    while let Some((row, gradient)) = visitor.next() {
        let (weights, _) = u.parts(row, gradient);
        sweep_0(simd, rule, weights, gradient);
    }
}

#[inline(always)]
fn one_column<S: Simd, V: RowVisitor, R: Rule<1>>(simd: S, u: &Updater, rule: R, visitor: &mut V) {
    while let Some((row, gradient)) = visitor.next() {
        let (weights, state) = u.parts(row, gradient);
        sweep_1(simd, rule, weights, state, gradient);
    }
}

#[inline(always)]
fn row_wise<S: Simd, V: RowVisitor>(simd: S, u: &Updater, lr: f32, visitor: &mut V) {
    while let Some((row, gradient)) = visitor.next() {
        let (weights, state) = u.parts(row, gradient);
        state[0] += mean_of_squares(simd, gradient);
        let divisor = state[0].sqrt() + u.hyper.epsilon;
        sweep_0(simd, Divided { lr, divisor }, weights, gradient);
    }
}

#[inline(always)]
fn adam<S: Simd, V: RowVisitor>(simd: S, u: &Updater, lr: f32, visitor: &mut V) {
    while let Some((row, gradient)) = visitor.next() {
        let (weights, state) = u.parts(row, gradient);
        let (m, rest) = state.split_at_mut(gradient.len());
        let (v, t) = rest.split_at_mut(gradient.len());
        let (c1, c2) = adam_corrections(&u.hyper, &mut t[0]);
        sweep_2(
            simd,
            Adam {
                lr,
                hyper: &u.hyper,
                c1,
                c2,
            },
            weights,
            [m, v],
            gradient,
        );
    }
}

#[inline(always)]
fn ftrl<S: Simd, V: RowVisitor>(simd: S, u: &Updater, lr: f32, visitor: &mut V) {
    while let Some((row, gradient)) = visitor.next() {
        let (weights, state) = u.parts(row, gradient);
        let (z, n) = state.split_at_mut(gradient.len());
        sweep_2(
            simd,
            Ftrl {
                lr,
                hyper: &u.hyper,
            },
            weights,
            [z, n],
            gradient,
        );
    }
}

/// What a rule does to one vector of weights and its `K` vectors of state.
trait Rule<const K: usize>: Copy {
    fn step<S: Simd>(
        self,
        simd: S,
        w: S::f32s,
        state: [S::f32s; K],
        g: S::f32s,
    ) -> (S::f32s, [S::f32s; K]);
}

#[inline(always)]
fn sweep_0<S: Simd, R: Rule<0>>(simd: S, rule: R, weights: &mut [f32], gradient: &[f32]) {
    let (w_heads, w_tail) = S::as_mut_simd_f32s(weights);
    let (g_heads, g_tail) = S::as_simd_f32s(gradient);
    for (w, g) in w_heads.iter_mut().zip(g_heads) {
        *w = rule.step(simd, *w, [], *g).0;
    }
    if !g_tail.is_empty() {
        let (w, g) = (
            simd.partial_load_f32s(w_tail),
            simd.partial_load_f32s(g_tail),
        );
        simd.partial_store_f32s(w_tail, rule.step(simd, w, [], g).0);
    }
}

#[inline(always)]
fn sweep_1<S: Simd, R: Rule<1>>(
    simd: S,
    rule: R,
    weights: &mut [f32],
    state: &mut [f32],
    gradient: &[f32],
) {
    let (w_heads, w_tail) = S::as_mut_simd_f32s(weights);
    let (s_heads, s_tail) = S::as_mut_simd_f32s(state);
    let (g_heads, g_tail) = S::as_simd_f32s(gradient);
    for ((w, s), g) in w_heads.iter_mut().zip(s_heads).zip(g_heads) {
        let (new_w, [new_s]) = rule.step(simd, *w, [*s], *g);
        (*w, *s) = (new_w, new_s);
    }
    if !g_tail.is_empty() {
        let (w, g) = (
            simd.partial_load_f32s(w_tail),
            simd.partial_load_f32s(g_tail),
        );
        let (w, [s]) = rule.step(simd, w, [simd.partial_load_f32s(s_tail)], g);
        simd.partial_store_f32s(w_tail, w);
        simd.partial_store_f32s(s_tail, s);
    }
}

#[inline(always)]
fn sweep_2<S: Simd, R: Rule<2>>(
    simd: S,
    rule: R,
    weights: &mut [f32],
    [a, b]: [&mut [f32]; 2],
    gradient: &[f32],
) {
    let (w_heads, w_tail) = S::as_mut_simd_f32s(weights);
    let (a_heads, a_tail) = S::as_mut_simd_f32s(a);
    let (b_heads, b_tail) = S::as_mut_simd_f32s(b);
    let (g_heads, g_tail) = S::as_simd_f32s(gradient);
    for (((w, a), b), g) in w_heads.iter_mut().zip(a_heads).zip(b_heads).zip(g_heads) {
        let (new_w, [new_a, new_b]) = rule.step(simd, *w, [*a, *b], *g);
        (*w, *a, *b) = (new_w, new_a, new_b);
    }
    if !g_tail.is_empty() {
        let (w, g) = (
            simd.partial_load_f32s(w_tail),
            simd.partial_load_f32s(g_tail),
        );
        let state = [
            simd.partial_load_f32s(a_tail),
            simd.partial_load_f32s(b_tail),
        ];
        let (w, [a, b]) = rule.step(simd, w, state, g);
        simd.partial_store_f32s(w_tail, w);
        simd.partial_store_f32s(a_tail, a);
        simd.partial_store_f32s(b_tail, b);
    }
}

/// The twin's sum with its lanes side by side; the compiler makes vectors of the first loop.
/// Zeros fill the last vector: a lane is never -0, so that adding 0 leaves its bits.
#[inline(always)]
fn mean_of_squares<S: Simd>(simd: S, gradient: &[f32]) -> f32 {
    let (blocks, rest) = gradient.as_chunks::<SUM_LANES>();
    let mut lanes = [0.0f32; SUM_LANES];
    for block in blocks {
        for (lane, g) in lanes.iter_mut().zip(block) {
            *lane += g * g;
        }
    }
    if !rest.is_empty() {
        let (sums, _) = S::as_mut_simd_f32s(&mut lanes);
        for (sum, part) in sums.iter_mut().zip(rest.chunks(S::F32_LANES)) {
            let g = simd.partial_load_f32s(part);
            *sum = simd.add_f32s(*sum, simd.mul_f32s(g, g));
        }
    }
    tree_sum(lanes) / gradient.len() as f32
}

#[derive(Clone, Copy)]
struct Sgd {
    lr: f32,
}

impl Rule<0> for Sgd {
    #[inline(always)]
    fn step<S: Simd>(
        self,
        s: S,
        w: S::f32s,
        _: [S::f32s; 0],
        g: S::f32s,
    ) -> (S::f32s, [S::f32s; 0]) {
        (s.sub_f32s(w, s.mul_f32s(s.splat_f32s(self.lr), g)), [])
    }
}

/// Row-wise AdaGrad once its divisor is known.
#[derive(Clone, Copy)]
struct Divided {
    lr: f32,
    divisor: f32,
}

impl Rule<0> for Divided {
    #[inline(always)]
    fn step<S: Simd>(
        self,
        s: S,
        w: S::f32s,
        _: [S::f32s; 0],
        g: S::f32s,
    ) -> (S::f32s, [S::f32s; 0]) {
        let scaled = s.mul_f32s(s.splat_f32s(self.lr), g);
        (
            s.sub_f32s(w, s.div_f32s(scaled, s.splat_f32s(self.divisor))),
            [],
        )
    }
}

#[derive(Clone, Copy)]
struct Momentum {
    lr: f32,
    momentum: f32,
}

impl Rule<1> for Momentum {
    #[inline(always)]
    fn step<S: Simd>(
        self,
        s: S,
        w: S::f32s,
        [v]: [S::f32s; 1],
        g: S::f32s,
    ) -> (S::f32s, [S::f32s; 1]) {
        let v = s.add_f32s(s.mul_f32s(s.splat_f32s(self.momentum), v), g);
        (s.sub_f32s(w, s.mul_f32s(s.splat_f32s(self.lr), v)), [v])
    }
}

#[derive(Clone, Copy)]
struct Nesterov {
    lr: f32,
    momentum: f32,
}

impl Rule<1> for Nesterov {
    #[inline(always)]
    fn step<S: Simd>(
        self,
        s: S,
        w: S::f32s,
        [v]: [S::f32s; 1],
        g: S::f32s,
    ) -> (S::f32s, [S::f32s; 1]) {
        let momentum = s.splat_f32s(self.momentum);
        let v = s.add_f32s(s.mul_f32s(momentum, v), g);
        let ahead = s.add_f32s(g, s.mul_f32s(momentum, v));
        (s.sub_f32s(w, s.mul_f32s(s.splat_f32s(self.lr), ahead)), [v])
    }
}

#[derive(Clone, Copy)]
struct Adagrad {
    lr: f32,
    epsilon: f32,
}

impl Rule<1> for Adagrad {
    #[inline(always)]
    fn step<S: Simd>(
        self,
        s: S,
        w: S::f32s,
        [a]: [S::f32s; 1],
        g: S::f32s,
    ) -> (S::f32s, [S::f32s; 1]) {
        let a = s.add_f32s(a, s.mul_f32s(g, g));
        let divisor = s.add_f32s(s.sqrt_f32s(a), s.splat_f32s(self.epsilon));
        let change = s.div_f32s(s.mul_f32s(s.splat_f32s(self.lr), g), divisor);
        (s.sub_f32s(w, change), [a])
    }
}

#[derive(Clone, Copy)]
struct Adam<'a> {
    lr: f32,
    hyper: &'a HyperParameters,
    c1: f32,
    c2: f32,
}

impl Rule<2> for Adam<'_> {
    #[inline(always)]
    fn step<S: Simd>(
        self,
        s: S,
        w: S::f32s,
        [m, v]: [S::f32s; 2],
        g: S::f32s,
    ) -> (S::f32s, [S::f32s; 2]) {
        let HyperParameters {
            beta1,
            beta2,
            epsilon,
            ..
        } = *self.hyper;
        let fresh_m = s.mul_f32s(s.splat_f32s(1.0 - beta1), g);
        let m = s.add_f32s(s.mul_f32s(s.splat_f32s(beta1), m), fresh_m);
        let fresh_v = s.mul_f32s(s.mul_f32s(s.splat_f32s(1.0 - beta2), g), g);
        let v = s.add_f32s(s.mul_f32s(s.splat_f32s(beta2), v), fresh_v);
        let scaled = s.mul_f32s(s.splat_f32s(self.lr), s.div_f32s(m, s.splat_f32s(self.c1)));
        let root = s.sqrt_f32s(s.div_f32s(v, s.splat_f32s(self.c2)));
        let change = s.div_f32s(scaled, s.add_f32s(root, s.splat_f32s(epsilon)));
        (s.sub_f32s(w, change), [m, v])
    }
}

#[derive(Clone, Copy)]
struct Ftrl<'a> {
    lr: f32,
    hyper: &'a HyperParameters,
}

impl Rule<2> for Ftrl<'_> {
    #[inline(always)]
    fn step<S: Simd>(
        self,
        s: S,
        w: S::f32s,
        [z, n]: [S::f32s; 2],
        g: S::f32s,
    ) -> (S::f32s, [S::f32s; 2]) {
        let HyperParameters {
            ftrl_beta,
            lambda1,
            lambda2,
            ..
        } = *self.hyper;
        let (lr, lambda1) = (s.splat_f32s(self.lr), s.splat_f32s(lambda1));
        let grown = s.add_f32s(n, s.mul_f32s(g, g));
        let root = s.sqrt_f32s(grown);
        let sigma = s.div_f32s(s.sub_f32s(root, s.sqrt_f32s(n)), lr);
        let z = s.add_f32s(z, s.sub_f32s(g, s.mul_f32s(sigma, w)));
        let sign = s.and_f32s(z, s.splat_f32s(-0.0));
        let above = s.sub_f32s(s.or_f32s(lambda1, sign), z);
        let ramp = s.div_f32s(s.add_f32s(s.splat_f32s(ftrl_beta), root), lr);
        let below = s.add_f32s(ramp, s.splat_f32s(lambda2));
        let inside = s.less_than_or_equal_f32s(s.xor_f32s(z, sign), lambda1);
        let w = s.select_f32s(inside, s.splat_f32s(0.0), s.div_f32s(above, below));
        (w, [z, grown])
    }
}
