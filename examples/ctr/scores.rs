//! How good are the predictions?
//!
//! - AUC is exact over 32768 buckets of the logit in [-16, 16); equal buckets count half.
//! - The last fifth of the rows is kept as two bytes per row, whatever the number of rows will be:
//!   a row is dropped as soon as it can't be in the last fifth any more.
//! - All sums are in the order of the rows, so a resumed run ends with the same bits.

use std::collections::VecDeque;

use crate::data::Batch;

const BUCKETS: usize = 1 << 15;
const LIMIT: f32 = 16.0;
const PER_UNIT: f32 = 1024.0;
/// The tail is the last 1/5 of the rows.
const TAIL: u64 = 5;

/// Numbers of clicked and other rows per bucket of the logit.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Histogram {
    /// Other rows at `2 * bucket`, clicked ones at `2 * bucket + 1`.
    pub(crate) counts: Vec<u64>,
}

impl Histogram {
    /// No rows.
    pub(crate) fn new() -> Histogram {
        Histogram {
            counts: vec![0; 2 * BUCKETS],
        }
    }

    fn add(&mut self, code: u16) {
        self.counts[usize::from(code)] += 1;
    }

    /// Probability that a clicked row scores above another; `None` without one of each.
    pub(crate) fn auc(&self) -> Option<f64> {
        let (mut others, mut clicked, mut twice) = (0u128, 0u128, 0u128);
        for pair in self.counts.chunks_exact(2) {
            let (other, click) = (u128::from(pair[0]), u128::from(pair[1]));
            twice += click * (2 * others + other);
            others += other;
            clicked += click;
        }
        let pairs = others * clicked;
        (pairs > 0).then(|| twice as f64 / (2 * pairs) as f64)
    }
}

/// Bucket and label of a row in 16 bits.
#[expect(
    clippy::cast_possible_truncation,
    reason = "clamped to 15 bits; NaN becomes 0"
)]
#[expect(clippy::cast_sign_loss, reason = "clamped to 15 bits; NaN becomes 0")]
fn code(logit: f32, label: f32) -> u16 {
    let bucket = ((logit + LIMIT) * PER_UNIT).clamp(0.0, BUCKETS as f32 - 1.0) as u16;
    bucket << 1 | u16::from(label > 0.5)
}

/// Everything known about the predictions so far.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scores {
    /// Rows scored.
    pub(crate) rows: u64,
    /// Sum of the log loss.
    pub(crate) loss: f64,
    pub(crate) all: Histogram,
    /// Codes of the last rows.
    pub(crate) tail: VecDeque<u16>,
    /// The same by the planted logits; empty if the data is not planted.
    pub(crate) planted: VecDeque<u16>,
}

impl Scores {
    /// No rows.
    pub(crate) fn new() -> Scores {
        Scores {
            rows: 0,
            loss: 0.0,
            all: Histogram::new(),
            tail: VecDeque::new(),
            planted: VecDeque::new(),
        }
    }

    /// Adds a batch; returns the sum of its log loss.
    pub(crate) fn add(&mut self, batch: &Batch, logits: &[f32]) -> f64 {
        let mut loss = 0.0;
        for (i, (logit, label)) in logits.iter().zip(&batch.labels).enumerate() {
            let code = code(*logit, *label);
            self.all.add(code);
            self.tail.push_back(code);
            if let Some(planted) = batch.planted.get(i) {
                self.planted.push_back(self::code(*planted, *label));
            }
            let x = f64::from(*logit);
            loss += softplus(if *label > 0.5 { -x } else { x });
        }
        self.rows += batch.labels.len() as u64;
        self.loss += loss;
        let kept = usize::try_from(self.rows / TAIL)
            .unwrap_or(usize::MAX)
            .max(1);
        for codes in [&mut self.tail, &mut self.planted] {
            codes.drain(..codes.len().saturating_sub(kept));
        }
        loss
    }

    /// Mean log loss.
    pub(crate) fn mean_loss(&self) -> f64 {
        self.loss / self.rows.max(1) as f64
    }

    /// AUC of the last fifth.
    pub(crate) fn tail_auc(&self) -> Option<f64> {
        auc_of(&self.tail)
    }

    /// AUC of the planted probabilities on the last fifth.
    pub(crate) fn planted_auc(&self) -> Option<f64> {
        auc_of(&self.planted)
    }
}

fn auc_of(codes: &VecDeque<u16>) -> Option<f64> {
    let mut histogram = Histogram::new();
    for code in codes {
        histogram.add(*code);
    }
    histogram.auc()
}

/// log(1 + e^x), without overflow: the log loss of a row without click at logit x.
fn softplus(x: f64) -> f64 {
    if x > 40.0 { x } else { x.exp().ln_1p() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auc_counts_pairs_and_halves_ties() {
        let mut histogram = Histogram::new();
        for (logit, label) in [(0.0, 0.0), (1.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (2.0, 1.0)] {
            histogram.add(code(logit, label));
        }
        // 3 clicked x 2 others: 1.0 wins 1.5, -1.0 wins 0, 2.0 wins 2.
        assert_eq!(histogram.auc(), Some(3.5 / 6.0));
        assert_eq!(Histogram::new().auc(), None);
    }

    #[test]
    fn the_tail_is_the_last_fifth_whatever_the_batches() {
        for rows in [1usize, 4, 5, 230] {
            let mut scores = Scores::new();
            while scores.rows + rows as u64 <= 999 {
                let labels = vec![f32::from(u8::from(scores.rows % 2 == 1)); rows];
                let batch = Batch {
                    labels,
                    ..Batch::default()
                };
                scores.add(&batch, &vec![scores.rows as f32 / 100.0; rows]);
            }
            let first = scores.rows - scores.rows / 5;
            let kept: Vec<u16> = (first..scores.rows)
                .map(|row| row / rows as u64 * rows as u64)
                .map(|start| code(start as f32 / 100.0, f32::from(u8::from(start % 2 == 1))))
                .collect();
            assert_eq!(scores.tail, kept);
        }
        assert!((softplus(0.0) - std::f64::consts::LN_2).abs() < 1e-15);
        assert_eq!(softplus(1e4), 1e4);
    }
}
