//! What is computed between the store's rows and the loss?
//!
//! logit = MLP([26 embeddings, 26 dense]) + sum of wide weights + wide dense + bias.
//!
//! - Single-threaded, in a fixed order: the same bits at any thread count, depth or cache.
//! - Gradients of embeddings are those of the batch's summed loss (each example counts fully, as
//!   in online learning); dense ones are of the mean loss and go through Adam.
//! - All dense parameters are one vector, so that a checkpoint is three vectors and a count.

use ndarray::linalg::general_mat_mul;
use ndarray::{ArrayView2, ArrayViewMut2};

use crate::data::{Batch, DENSE, SLOTS};
use crate::planted::Splitmix;

const HIDDEN: [usize; 2] = [64, 32];
/// A wide weight counts this much, and so learns this much faster than an embedding weight.
const WIDE_SCALE: f32 = 2.0;
/// Adam's rates: of the network, and of the wide dense part and the bias.
const NETWORK_RATE: f32 = 0.001;
const LINEAR_RATE: f32 = 0.01;
const BETA1: f32 = 0.9;
const BETA2: f32 = 0.999;
const EPSILON: f32 = 1e-8;
/// Where the bias starts: about a quarter of clicks, as in Criteo's data.
const BIAS: f32 = -1.0;

/// The nearest f32.
#[expect(
    clippy::cast_possible_truncation,
    reason = "rounding is what is asked for"
)]
pub(crate) fn narrow(x: f64) -> f32 {
    x as f32
}

/// The dense parameters and their Adam state.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Model {
    dim: usize,
    /// w1 `[in, 64]`, b1, w2 `[64, 32]`, b2, w3 `[32]`, then wide dense `[26]` and the bias.
    pub(crate) weights: Vec<f32>,
    pub(crate) first: Vec<f32>,
    pub(crate) second: Vec<f32>,
    /// Adam's steps.
    pub(crate) steps: u64,
}

/// Buffers of one batch, kept between batches.
#[derive(Debug, Default)]
pub(crate) struct Work {
    input: Vec<f32>,
    hidden: [Vec<f32>; 2],
    back: [Vec<f32>; 2],
    input_back: Vec<f32>,
    gradient: Vec<f32>,
    /// Logit per example.
    pub(crate) logits: Vec<f32>,
}

/// Offsets of the parts of the parameter vector.
struct Parts {
    input: usize,
    b1: usize,
    w2: usize,
    b2: usize,
    w3: usize,
    linear: usize,
    bias: usize,
}

impl Parts {
    fn of(dim: usize) -> Parts {
        let input = SLOTS * dim + DENSE;
        let b1 = input * HIDDEN[0];
        let w2 = b1 + HIDDEN[0];
        let b2 = w2 + HIDDEN[0] * HIDDEN[1];
        let w3 = b2 + HIDDEN[1];
        let linear = w3 + HIDDEN[1];
        Parts {
            input,
            b1,
            w2,
            b2,
            w3,
            linear,
            bias: linear + DENSE,
        }
    }
}

fn matrix(values: &[f32], rows: usize, columns: usize) -> ArrayView2<'_, f32> {
    let view = ArrayView2::from_shape((rows, columns), values);
    assert!(view.is_ok(), "a buffer holds exactly its matrix");
    view.unwrap_or_else(|_| ArrayView2::from(&[[0.0; 0]; 0]))
}

fn matrix_mut(values: &mut [f32], rows: usize, columns: usize) -> ArrayViewMut2<'_, f32> {
    assert!(
        values.len() == rows * columns,
        "a buffer holds exactly its matrix"
    );
    let empty: &mut [[f32; 0]; 0] = &mut [];
    ArrayViewMut2::from_shape((rows, columns), values)
        .unwrap_or_else(|_| ArrayViewMut2::from(empty))
}

fn resize(values: &mut Vec<f32>, count: usize) {
    values.clear();
    values.resize(count, 0.0);
}

impl Model {
    /// Number of dense parameters with `dim` embedding weights per key.
    pub(crate) fn parameters(dim: usize) -> usize {
        Parts::of(dim).bias + 1
    }

    /// The initial model: He's uniform for hidden layers, a small output layer, no linear part.
    pub(crate) fn new(dim: usize, seed: u64) -> Model {
        let parts = Parts::of(dim);
        let count = Model::parameters(dim);
        let mut source = Splitmix(seed ^ 0x6d6c_7021);
        let mut weights = vec![0.0; count];
        let layers = [
            (0..parts.b1, (6.0 / parts.input as f64).sqrt()),
            (parts.w2..parts.b2, (6.0 / HIDDEN[0] as f64).sqrt()),
            (
                parts.w3..parts.linear,
                0.1 * (6.0 / HIDDEN[1] as f64).sqrt(),
            ),
        ];
        for (range, bound) in layers {
            for w in weights.iter_mut().take(range.end).skip(range.start) {
                *w = narrow((2.0 * source.unit() - 1.0) * bound);
            }
        }
        weights[parts.bias] = BIAS;
        Model {
            dim,
            weights,
            first: vec![0.0; count],
            second: vec![0.0; count],
            steps: 0,
        }
    }

    /// Fills `work.logits` from the rows `[keys, dim + 1]` of the batch.
    pub(crate) fn forward(&self, batch: &Batch, rows: &[f32], work: &mut Work) {
        let n = batch.labels.len();
        let parts = Parts::of(self.dim);
        self.gather(batch, rows, work);
        let [h1, h2] = HIDDEN;
        for (layer, count) in work.hidden.iter_mut().zip(HIDDEN) {
            resize(layer, n * count);
        }
        let [first, second] = &mut work.hidden;
        let x = matrix(&work.input, n, parts.input);
        let w = matrix(&self.weights[..parts.b1], parts.input, h1);
        general_mat_mul(1.0, &x, &w, 0.0, &mut matrix_mut(first, n, h1));
        activate(first, &self.weights[parts.b1..parts.w2]);
        let w = matrix(&self.weights[parts.w2..parts.b2], h1, h2);
        general_mat_mul(
            1.0,
            &matrix(first, n, h1),
            &w,
            0.0,
            &mut matrix_mut(second, n, h2),
        );
        activate(second, &self.weights[parts.b2..parts.w3]);
        let output = &self.weights[parts.w3..parts.linear];
        let linear = &self.weights[parts.linear..parts.bias];
        let inputs = batch.dense.chunks_exact(DENSE);
        for ((logit, hidden), dense) in work.logits.iter_mut().zip(second.chunks(h2)).zip(inputs) {
            *logit += dot(hidden, output) + dot(dense, linear) + self.weights[parts.bias];
        }
    }

    /// Lays the rows out as the network's input, and sums the wide weights into the logits.
    fn gather(&self, batch: &Batch, rows: &[f32], work: &mut Work) {
        let n = batch.labels.len();
        let width = SLOTS * self.dim + DENSE;
        resize(&mut work.input, n * width);
        resize(&mut work.logits, n);
        let mut pairs = batch.keys.iter().zip(rows.chunks_exact(self.dim + 1));
        let inputs = work
            .input
            .chunks_exact_mut(width)
            .zip(batch.dense.chunks_exact(DENSE));
        for (((input, dense), logit), count) in inputs.zip(&mut work.logits).zip(&batch.counts) {
            let mut wide = 0.0;
            for (key, row) in pairs.by_ref().take(usize::from(*count)) {
                let at = slot_index(*key) * self.dim;
                input[at..at + self.dim].copy_from_slice(&row[..self.dim]);
                wide += row[self.dim];
            }
            input[SLOTS * self.dim..].copy_from_slice(dense);
            *logit = WIDE_SCALE * wide;
        }
    }

    /// Trains on the batch of the last `forward`: updates the dense parameters and, unless frozen,
    /// fills the gradients `[keys, dim + 1]` of its rows.
    pub(crate) fn backward(&mut self, batch: &Batch, work: &mut Work, rows: Option<&mut [f32]>) {
        let n = batch.labels.len();
        let parts = Parts::of(self.dim);
        let [h1, h2] = HIDDEN;
        resize(&mut work.gradient, self.weights.len());
        for (logit, label) in work.logits.iter_mut().zip(&batch.labels) {
            *logit = 1.0 / (1.0 + (-*logit).exp()) - label;
        }
        let errors = &work.logits;
        let [first, second] = &work.hidden;
        let [first_back, second_back] = &mut work.back;
        resize(first_back, n * h1);
        resize(second_back, n * h2);
        let output = &self.weights[parts.w3..parts.linear];
        let examples = second
            .chunks_exact(h2)
            .zip(batch.dense.chunks_exact(DENSE))
            .zip(errors);
        for (((hidden, dense), error), back) in examples.zip(second_back.chunks_exact_mut(h2)) {
            add_scaled(&mut work.gradient[parts.w3..parts.linear], hidden, *error);
            add_scaled(&mut work.gradient[parts.linear..parts.bias], dense, *error);
            work.gradient[parts.bias] += error;
            for ((b, w), h) in back.iter_mut().zip(output).zip(hidden) {
                *b = if *h > 0.0 { error * w } else { 0.0 };
            }
        }
        let back = matrix(second_back, n, h2);
        let mut to = matrix_mut(&mut work.gradient[parts.w2..parts.b2], h1, h2);
        general_mat_mul(1.0, &matrix(first, n, h1).t(), &back, 0.0, &mut to);
        add_columns(&mut work.gradient[parts.b2..parts.w3], second_back);
        let w = matrix(&self.weights[parts.w2..parts.b2], h1, h2);
        general_mat_mul(1.0, &back, &w.t(), 0.0, &mut matrix_mut(first_back, n, h1));
        for (b, h) in first_back.iter_mut().zip(first) {
            *b = if *h > 0.0 { *b } else { 0.0 };
        }
        let back = matrix(first_back, n, h1);
        let mut to = matrix_mut(&mut work.gradient[..parts.b1], parts.input, h1);
        general_mat_mul(
            1.0,
            &matrix(&work.input, n, parts.input).t(),
            &back,
            0.0,
            &mut to,
        );
        add_columns(&mut work.gradient[parts.b1..parts.w2], first_back);
        if let Some(rows) = rows {
            resize(&mut work.input_back, n * parts.input);
            let w = matrix(&self.weights[..parts.b1], parts.input, h1);
            let mut to = matrix_mut(&mut work.input_back, n, parts.input);
            general_mat_mul(1.0, &back, &w.t(), 0.0, &mut to);
            self.scatter(batch, work, rows);
        }
        self.adam(&work.gradient, n);
    }

    /// Cuts the gradient of the network's input into the rows' gradients.
    fn scatter(&self, batch: &Batch, work: &Work, rows: &mut [f32]) {
        let width = SLOTS * self.dim + DENSE;
        let mut pairs = batch.keys.iter().zip(rows.chunks_exact_mut(self.dim + 1));
        let examples = work
            .input_back
            .chunks_exact(width)
            .zip(&work.logits)
            .zip(&batch.counts);
        for ((input, error), count) in examples {
            for (key, row) in pairs.by_ref().take(usize::from(*count)) {
                let at = slot_index(*key) * self.dim;
                row[..self.dim].copy_from_slice(&input[at..at + self.dim]);
                row[self.dim] = WIDE_SCALE * error;
            }
        }
    }

    fn adam(&mut self, gradient: &[f32], examples: usize) {
        self.steps += 1;
        let power = i32::try_from(self.steps).unwrap_or(i32::MAX);
        let correction1 = 1.0 - f64::from(BETA1).powi(power);
        let correction2 = 1.0 - f64::from(BETA2).powi(power);
        let scale = narrow(1.0 / examples as f64);
        let unbias = narrow(1.0 / correction2.sqrt());
        let linear = Parts::of(self.dim).linear;
        let rates = [
            (0, linear, NETWORK_RATE),
            (linear, self.weights.len(), LINEAR_RATE),
        ];
        for (start, end, rate) in rates {
            let rate = narrow(f64::from(rate) / correction1);
            let state = self.first[start..end]
                .iter_mut()
                .zip(&mut self.second[start..end]);
            let weights = self.weights[start..end]
                .iter_mut()
                .zip(&gradient[start..end]);
            for ((w, g), (m, v)) in weights.zip(state) {
                let g = g * scale;
                *m = BETA1 * *m + (1.0 - BETA1) * g;
                *v = BETA2 * *v + (1.0 - BETA2) * g * g;
                *w -= rate * *m / (v.sqrt() * unbias + EPSILON);
            }
        }
    }
}

/// Which of the 26 slots a key belongs to, from 0.
fn slot_index(key: u64) -> usize {
    usize::try_from(key >> 32)
        .unwrap_or(usize::MAX)
        .wrapping_sub(1)
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

fn add_scaled(sum: &mut [f32], values: &[f32], scale: f32) {
    for (s, x) in sum.iter_mut().zip(values) {
        *s += x * scale;
    }
}

fn add_columns(sum: &mut [f32], values: &[f32]) {
    for row in values.chunks_exact(sum.len()) {
        add_scaled(sum, row, 1.0);
    }
}

/// Adds the bias and cuts at zero.
fn activate(values: &mut [f32], bias: &[f32]) {
    for row in values.chunks_exact_mut(bias.len()) {
        for (x, b) in row.iter_mut().zip(bias) {
            *x = (*x + b).max(0.0);
        }
    }
}
