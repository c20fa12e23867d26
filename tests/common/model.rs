//! What must a store hold? The twin of a store in plain memory: maps of rows, and the update rules
//! written a second time, from the text in `src/row/optimizer.rs`.

use super::rng::Rng;
use hps::*;
use std::collections::BTreeMap;
use std::rc::Rc;

/// In [-1, 1).
fn value(rng: &mut Rng) -> f32 {
    (rng.next() >> 40) as f32 / 8_388_608.0 - 1.0
}

/// The i-th key of a universe: small ones, large ones, and both ends.
pub fn key_of(i: usize) -> u64 {
    match i {
        0 => 0,
        1 => u64::MAX,
        _ if i.is_multiple_of(2) => i as u64,
        _ => (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15),
    }
}

/// Rows by key; equal contents are shared between checkpoints.
pub type Rows = BTreeMap<u64, Rc<Vec<f32>>>;

/// One table of the model.
#[derive(Clone)]
pub struct TableModel {
    pub descriptor: TableDescriptor,
    pub universe: usize,
    pub rows: Rows,
    /// It was dropped: without rows.
    pub is_dropped: bool,
}

/// What is pushed: the values and which positions they belong to.
#[derive(Clone, Debug)]
pub struct Push {
    pub kind: PushKind,
    pub values: Vec<f32>,
    pub shows: Vec<u32>,
    pub clicks: Vec<u32>,
    pub step: u32,
    /// Positions of the lease's part, if not all.
    pub positions: Option<Vec<u32>>,
    pub verbatim: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PushKind {
    Gradients(f32),
    Deltas,
    Weights,
    Rows,
}

impl Push {
    pub fn update(&self) -> Update<'_> {
        let update = match self.kind {
            PushKind::Gradients(lr) => Update::gradients(&self.values, lr),
            PushKind::Deltas => Update::deltas(&self.values),
            PushKind::Weights => Update::weights(&self.values),
            PushKind::Rows => Update::rows(&self.values),
        };
        let mut update = update
            .step(self.step)
            .shows_clicks(&self.shows, &self.clicks);
        if let Some(positions) = &self.positions {
            update = update.at(positions);
        }
        if self.verbatim {
            update = update.verbatim();
        }
        update
    }
}

impl TableModel {
    pub fn new(descriptor: TableDescriptor, universe: usize) -> TableModel {
        TableModel {
            descriptor,
            universe,
            rows: Rows::new(),
            is_dropped: false,
        }
    }

    /// A batch of keys, small indices more often, with duplicates.
    pub fn keys(&self, rng: &mut Rng, n: usize) -> Vec<u64> {
        let mut keys: Vec<u64> = Vec::with_capacity(n);
        for _ in 0..n {
            if !keys.is_empty() && rng.one_in(8) {
                keys.push(keys[rng.below(keys.len())]);
                continue;
            }
            let bound = match rng.below(4) {
                0 => self.universe / 16,
                _ => self.universe,
            };
            keys.push(key_of(rng.below(bound)));
        }
        keys
    }

    /// The row of a key, known or not.
    pub fn row(&self, key: u64) -> Rc<Vec<f32>> {
        match self.rows.get(&key) {
            Some(row) => Rc::clone(row),
            None => Rc::new(self.default_row(key)),
        }
    }

    fn default_row(&self, key: u64) -> Vec<f32> {
        let descriptor = &self.descriptor;
        let mut row = vec![0.0; descriptor.row_f32s()];
        let stream = mix64(
            mix64(descriptor.seed.wrapping_add(0x243f_6a88_85a3_08d3))
                ^ mix64(key.wrapping_add(0x1319_8a2e_0370_7344)),
        );
        for (i, w) in row[..descriptor.dim].iter_mut().enumerate() {
            let position = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let bits = mix64(stream.wrapping_add(position));
            *w = match descriptor.initialiser {
                Initialiser::Zero => 0.0,
                Initialiser::Constant { value } => value,
                Initialiser::Uniform { low, high } => {
                    let value = low + ((bits >> 40) as f32 / 16_777_216.0) * (high - low);
                    if value < high {
                        value
                    } else {
                        high.next_down()
                    }
                }
                other => panic!("the model has no {other:?}"),
            };
        }
        let (dim, state) = (
            descriptor.dim,
            descriptor.optimizer.state_f32s(descriptor.dim),
        );
        match descriptor.optimizer {
            Optimizer::Adagrad | Optimizer::RowwiseAdagrad => {
                row[dim..dim + state].fill(descriptor.accumulator);
            }
            Optimizer::Ftrl => row[2 * dim..3 * dim].fill(descriptor.accumulator),
            _ => {}
        }
        row
    }

    /// Values for a put of `n` rows, and whether they are whole; some of the weights are no numbers.
    pub fn random_put(&self, rng: &mut Rng, n: usize) -> (Push, bool) {
        loop {
            let push = self.random_push(rng, n);
            if matches!(push.kind, PushKind::Weights | PushKind::Rows) {
                let is_whole = push.kind == PushKind::Rows;
                return (push, is_whole);
            }
        }
    }

    /// Does to the model what `store.put` does to the store; rows, and values that are not finite.
    pub fn put(&mut self, keys: &[u64], values: &[f32], verbatim: bool) -> (u64, u64) {
        let per = values.len() / keys.len().max(1);
        let dim = self.descriptor.dim;
        let looked = per.min(dim + self.descriptor.optimizer.state_f32s(dim));
        let mut rows = 0;
        for (key, values) in keys.iter().zip(values.chunks(per.max(1))) {
            if verbatim || values[..looked].iter().all(|v| v.is_finite()) {
                let mut row = self.default_row(*key);
                row[..per].copy_from_slice(values);
                self.rows.insert(*key, Rc::new(row));
                rows += 1;
            }
        }
        (rows, keys.len() as u64 - rows)
    }

    /// Values for a push to `n` positions. One in forty batches has a value that is not finite.
    pub fn random_push(&self, rng: &mut Rng, n: usize) -> Push {
        let (dim, width) = (self.descriptor.dim, self.descriptor.row_f32s());
        let state = self.descriptor.optimizer.state_f32s(dim);
        let kind = match rng.below(8) {
            0 => PushKind::Deltas,
            1 => PushKind::Weights,
            2 => PushKind::Rows,
            _ => PushKind::Gradients(0.01 + 0.1 * value(rng).abs()),
        };
        let per = if kind == PushKind::Rows { width } else { dim };
        // A few random numbers, rotated: what matters is that no two rows are alike.
        let base: Vec<f32> = (0..per + 7).map(|_| value(rng)).collect();
        let mut values = Vec::with_capacity(n * per);
        for _ in 0..n {
            let (shift, scale) = (rng.below(7), value(rng));
            values.extend(base[shift..shift + per].iter().map(|v| v * scale));
        }
        if kind == PushKind::Rows {
            for row in values.chunks_exact_mut(width) {
                // Squares are not negative, Adam's count is one; metadata are any bits.
                row[dim..dim + state].iter_mut().for_each(|v| *v = v.abs());
                if self.descriptor.optimizer == Optimizer::Adam {
                    row[3 * dim] = rng.below(50) as f32;
                }
                for v in &mut row[dim + state..] {
                    *v = f32::from_bits(rng.next() as u32);
                }
            }
        }
        let verbatim = matches!(kind, PushKind::Weights | PushKind::Rows) && rng.one_in(3);
        // (What is computed from a NaN has bits of the machine's own: none is taken verbatim here.)
        if n > 0 && !verbatim && rng.one_in(40) {
            let position = rng.below(n);
            values[position * per + rng.below(dim)] = match rng.below(2) {
                0 => f32::NAN,
                _ => f32::INFINITY,
            };
        }
        let mut counts = |below: usize| (0..n).map(|_| rng.below(below) as u32).collect();
        Push {
            kind,
            values,
            shows: counts(5),
            clicks: counts(3),
            step: rng.next() as u32,
            positions: None,
            verbatim,
        }
    }

    /// Does to the model what `store.push` does to the store.
    pub fn push(&mut self, keys: &[u64], push: &Push) -> PushReport {
        let (dim, width) = (self.descriptor.dim, self.descriptor.row_f32s());
        if keys.is_empty() {
            return PushReport::default();
        }
        let per = push.values.len() / keys.len();
        let looked = dim + self.descriptor.optimizer.state_f32s(dim);
        let mut order: Vec<u64> = Vec::new();
        let mut groups: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        let mut report = PushReport::default();
        for (i, key) in keys.iter().enumerate() {
            let values = &push.values[i * per..(i + 1) * per];
            if !values[..per.min(looked)].iter().all(|v| v.is_finite()) {
                report.non_finite += 1;
                continue;
            }
            let group = groups.entry(*key).or_default();
            if group.is_empty() {
                order.push(*key);
            }
            group.push(i);
        }
        report.rows = order.len() as u64;
        for key in order {
            let mut row = self.row(key).to_vec();
            let of = |i: usize| &push.values[i * per..(i + 1) * per];
            let group = &groups[&key];
            match push.kind {
                PushKind::Gradients(lr) => {
                    let mut sum = of(group[0]).to_vec();
                    for i in &group[1..] {
                        sum.iter_mut().zip(of(*i)).for_each(|(s, g)| *s += g);
                    }
                    apply_gradient(self.descriptor.optimizer, &mut row, &sum, lr);
                }
                PushKind::Deltas => {
                    for i in group {
                        row.iter_mut().zip(of(*i)).for_each(|(w, d)| *w += d);
                    }
                }
                PushKind::Weights | PushKind::Rows => {
                    row[..per].copy_from_slice(of(group[group.len() - 1]));
                }
            }
            if push.kind != PushKind::Rows {
                let sum = |column: &[u32]| group.iter().map(|i| column[*i]).sum::<u32>();
                let (shows, clicks) = (sum(&push.shows), sum(&push.clicks));
                let mut column = looked;
                let mut change = |has: bool, f: &dyn Fn(u32) -> u32| {
                    if has {
                        row[column] = f32::from_bits(f(row[column].to_bits()));
                        column += 1;
                    }
                };
                let has = self.descriptor.metadata;
                change(has.show, &|v| v.saturating_add(shows));
                change(has.click, &|v| v.saturating_add(clicks));
                change(has.count, &|v| v.saturating_add(1));
                change(has.last_step, &|_| push.step);
                assert_eq!(column, width);
            }
            self.rows.insert(key, Rc::new(row));
        }
        report
    }

    /// Returns how many keys were known.
    pub fn remove(&mut self, keys: &[u64]) -> u64 {
        keys.iter().filter_map(|k| self.rows.remove(k)).count() as u64
    }

    /// Compares whole rows, bit by bit.
    pub fn compare(&self, keys: &[u64], found: &[f32], what: &str) {
        let width = self.descriptor.row_f32s();
        for (key, found) in keys.iter().zip(found.chunks_exact(width)) {
            let expected = self.row(*key);
            assert!(
                same_bits(&expected, found),
                "{what}: key {key:#x} of {} (known: {}): expected {:?}.., found {:?}..",
                self.descriptor.name,
                self.rows.contains_key(key),
                &expected[..width.min(4)],
                &found[..width.min(4)],
            );
        }
    }
}

pub fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

fn apply_gradient(optimizer: Optimizer, row: &mut [f32], g: &[f32], lr: f32) {
    let h = HyperParameters::default();
    let dim = g.len();
    let (w, s) = row.split_at_mut(dim);
    let mut divisor = 0.0;
    let (mut c1, mut c2) = (0.0, 0.0);
    match optimizer {
        Optimizer::RowwiseAdagrad => {
            let mut lanes = [0.0f32; 16];
            for (i, g) in g.iter().enumerate() {
                lanes[i % 16] += g * g;
            }
            for half in [8, 4, 2, 1] {
                for i in 0..half {
                    lanes[i] += lanes[i + half];
                }
            }
            s[0] += lanes[0] / dim as f32;
            divisor = s[0].sqrt() + h.epsilon;
        }
        Optimizer::Adam => {
            s[2 * dim] += 1.0;
            let power = |base: f32| {
                let (mut left, mut square, mut power) = (s[2 * dim] as u32, f64::from(base), 1.0);
                while left > 0 {
                    if left % 2 == 1 {
                        power *= square;
                    }
                    square *= square;
                    left /= 2;
                }
                (1.0 - power) as f32
            };
            (c1, c2) = (power(h.beta1), power(h.beta2));
        }
        _ => {}
    }
    for i in 0..dim {
        let g = g[i];
        match optimizer {
            Optimizer::Sgd => w[i] -= lr * g,
            Optimizer::Momentum => {
                s[i] = h.momentum * s[i] + g;
                w[i] -= lr * s[i];
            }
            Optimizer::Nesterov => {
                s[i] = h.momentum * s[i] + g;
                w[i] -= lr * (g + h.momentum * s[i]);
            }
            Optimizer::Adagrad => {
                s[i] += g * g;
                w[i] -= (lr * g) / (s[i].sqrt() + h.epsilon);
            }
            Optimizer::RowwiseAdagrad => w[i] -= (lr * g) / divisor,
            Optimizer::Adam => {
                s[i] = h.beta1 * s[i] + (1.0 - h.beta1) * g;
                s[dim + i] = h.beta2 * s[dim + i] + ((1.0 - h.beta2) * g) * g;
                w[i] -= (lr * (s[i] / c1)) / ((s[dim + i] / c2).sqrt() + h.epsilon);
            }
            Optimizer::Ftrl => {
                let n1 = s[dim + i] + g * g;
                let step = (n1.sqrt() - s[dim + i].sqrt()) / lr;
                s[i] += g - step * w[i];
                s[dim + i] = n1;
                let z = s[i];
                w[i] = if z.abs() <= h.lambda1 {
                    0.0
                } else {
                    (h.lambda1.copysign(z) - z) / ((h.ftrl_beta + n1.sqrt()) / lr + h.lambda2)
                };
            }
            other => panic!("the model has no {other:?}"),
        }
    }
}
