//! Are the rows that an engine gives the right ones, and the newest?
//!
//! - Weight 0 is a number made of the key and never changes (its gradient is 0): a row given for
//!   another key is seen.
//! - Weight 1 is a function of the number of pushes, to the bit: for a sample of the keys the
//!   pushes are counted and the weight is compared.
//! - Counts survive the process ([`Oracle::save`]), so that a store opened again is checked too.
//! - After a kill ([`Oracle::restore_after_kill`]) a row may be as of its checkpoint or newer, by
//!   what the engine promises; the first pull of a sampled row says which ([`Survey`]).

use std::cmp::Ordering;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use hps::mix64;
use hps::row::Updater;

use super::{DIM, LEARNING_RATE, ROW, updater};

/// One key of this many is counted.
const SAMPLE: u64 = 64;
/// Weight 1 and up, and their gradient.
const WEIGHT: f32 = 0.5;
const GRADIENT: f32 = 0.01;

/// Most pushes that a row is looked for with after a kill, above its checkpoint's.
const PUSHES_AFTER: u32 = 100_000;

/// How the sampled rows were found after a kill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// With the pushes of before the checkpoint and no others.
    pub exact: u64,
    /// With later pushes too.
    pub newer: u64,
    /// Without some push of before the checkpoint: lost.
    pub older: u64,
}

/// What every row must hold.
pub struct Oracle {
    counts: Vec<u32>,
    /// Sampled rows not seen since a kill.
    unsure: Vec<bool>,
    survey: Survey,
    /// Weight 1 after so many pushes.
    weights: Vec<f32>,
    /// The row that the next entry is made from.
    row: Vec<f32>,
    gradient: Vec<f32>,
    updater: Updater,
}

/// Which rows of a batch were not as they must be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Rows of another key.
    pub wrong: u64,
    /// Sampled rows with fewer or more pushes than they had.
    pub stale: u64,
}

/// A number below 2^23 made of the key: exact in f32.
fn code(key: u64) -> f32 {
    (mix64(key) >> 41) as f32
}

fn loaded_row(key: u64, row: &mut [f32]) {
    row[..DIM].fill(WEIGHT);
    row[DIM..].fill(0.0);
    row[0] = code(key);
}

impl Oracle {
    /// All rows as loaded.
    #[must_use]
    pub fn new(rows: u64) -> Oracle {
        let sampled = usize::try_from(rows.div_ceil(SAMPLE)).unwrap_or(0);
        let mut row = vec![0.0; ROW];
        loaded_row(0, &mut row);
        let mut gradient = vec![GRADIENT; DIM];
        gradient[0] = 0.0;
        Oracle {
            counts: vec![0; sampled],
            unsure: Vec::new(),
            survey: Survey::default(),
            weights: vec![WEIGHT],
            row,
            gradient,
            updater: updater(),
        }
    }

    /// The rows of a load, in a buffer that only this function changes: what the rows have in
    /// common is written once.
    ///
    /// # Shapes
    /// rows: becomes `[n, ROW]`
    pub fn rows(keys: &[u64], rows: &mut Vec<f32>) {
        let known = rows.len() / ROW;
        rows.resize(keys.len() * ROW, 0.0);
        for (key, row) in keys.iter().zip(rows.chunks_exact_mut(ROW)).skip(known) {
            loaded_row(*key, row);
        }
        for (key, row) in keys.iter().zip(rows.chunks_exact_mut(ROW)) {
            row[0] = code(*key);
        }
    }

    /// The gradients of a batch of up to `keys` keys: `[keys, DIM]`.
    #[must_use]
    pub fn gradients(&self, keys: usize) -> Vec<f32> {
        self.gradient.repeat(keys)
    }

    fn place(key: u64) -> Option<usize> {
        if key.is_multiple_of(SAMPLE) {
            return usize::try_from(key / SAMPLE).ok();
        }
        None
    }

    /// Counts a push of a batch.
    pub fn pushed(&mut self, keys: &[u64]) {
        for place in keys.iter().filter_map(|key| Oracle::place(*key)) {
            self.counts[place] += 1;
        }
    }

    /// Weight 1 after so many pushes.
    fn weight(&mut self, pushes: u32) -> f32 {
        let pushes = pushes as usize;
        while self.weights.len() <= pushes {
            let (row, gradient) = (&mut self.row, &self.gradient);
            self.updater.apply_gradient(row, gradient, LEARNING_RATE);
            self.weights.push(self.row[1]);
        }
        self.weights[pushes]
    }

    /// Compares what a pull gave.
    ///
    /// # Shapes
    /// out: `[n, DIM]`
    pub fn check(&mut self, keys: &[u64], out: &[f32]) -> Faults {
        let mut faults = Faults::default();
        for (key, weights) in keys.iter().zip(out.chunks_exact(DIM)) {
            faults.wrong += u64::from(weights[0] != code(*key));
            if let Some(place) = Oracle::place(*key) {
                if self.unsure.get(place) == Some(&true) {
                    faults.stale += u64::from(!self.adopt(place, weights[1]));
                    continue;
                }
                let expected = self.weight(self.counts[place]);
                faults.stale += u64::from(weights[1].to_bits() != expected.to_bits());
            }
        }
        faults
    }

    /// Takes a row's number of pushes from the row; false when no number gives this weight.
    fn adopt(&mut self, place: usize, found: f32) -> bool {
        let checkpointed = self.counts[place];
        self.weight(checkpointed + PUSHES_AFTER);
        // Each push lowers the weight.
        let pushes = self.weights.partition_point(|weight| *weight > found);
        if self.weights.get(pushes).map(|w| w.to_bits()) != Some(found.to_bits()) {
            return false;
        }
        let pushes = u32::try_from(pushes).unwrap_or(u32::MAX);
        match pushes.cmp(&checkpointed) {
            Ordering::Less => self.survey.older += 1,
            Ordering::Equal => self.survey.exact += 1,
            Ordering::Greater => self.survey.newer += 1,
        }
        self.counts[place] = pushes;
        self.unsure[place] = false;
        true
    }

    /// How the sampled rows that were pulled since a kill were found.
    #[must_use]
    pub fn survey(&self) -> Survey {
        self.survey
    }

    /// The sampled keys that were not pulled since a kill.
    #[must_use]
    pub fn unseen(&self) -> Vec<u64> {
        let places = self
            .unsure
            .iter()
            .enumerate()
            .filter(|(_, unsure)| **unsure);
        places.map(|(place, _)| place as u64 * SAMPLE).collect()
    }

    /// Keeps the counts for the next process.
    ///
    /// # Errors
    /// What the system says.
    pub fn save(&self, path: &Path) -> Result<()> {
        let bytes: Vec<u8> = self.counts.iter().flat_map(|c| c.to_le_bytes()).collect();
        std::fs::write(path, bytes).with_context(|| format!("write {}", path.display()))
    }

    /// Takes the counts of an earlier process.
    ///
    /// # Errors
    /// What the system says, and a file of another number of rows.
    pub fn restore(&mut self, path: &Path) -> Result<()> {
        let bytes = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
        let (words, rest) = bytes.as_chunks::<4>();
        let fits = words.len() == self.counts.len() && rest.is_empty();
        ensure!(fits, "{} is of another number of rows", path.display());
        self.counts = words.iter().map(|w| u32::from_le_bytes(*w)).collect();
        Ok(())
    }

    /// [`Oracle::restore`] of the last checkpoint's counts, for a store whose process was killed.
    ///
    /// # Errors
    /// As [`Oracle::restore`].
    pub fn restore_after_kill(&mut self, path: &Path) -> Result<()> {
        self.restore(path)?;
        self.unsure = vec![true; self.counts.len()];
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pulled(rows: &[f32]) -> Vec<f32> {
        rows.chunks_exact(ROW)
            .flat_map(|row| row[..DIM].to_vec())
            .collect()
    }

    #[test]
    fn a_swapped_row_and_a_lost_push_are_seen() {
        let keys: Vec<u64> = (0..256).collect();
        let mut oracle = Oracle::new(256);
        let mut rows = Vec::new();
        Oracle::rows(&keys, &mut rows);
        assert_eq!(oracle.check(&keys, &pulled(&rows)), Faults::default());
        oracle.pushed(&keys);
        let lost = oracle.check(&keys, &pulled(&rows));
        assert_eq!((lost.wrong, lost.stale), (0, 256 / SAMPLE));
        let gradients = oracle.gradients(keys.len());
        crate::peers::update(&updater(), &mut rows, &gradients);
        assert_eq!(oracle.check(&keys, &pulled(&rows)), Faults::default());
        let mut swapped = pulled(&rows);
        swapped.swap(3 * DIM, 4 * DIM);
        assert_eq!(oracle.check(&keys, &swapped).wrong, 2);
    }

    #[test]
    fn counts_outlive_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("counts");
        let mut oracle = Oracle::new(1000);
        oracle.pushed(&[64, 128]);
        oracle.pushed(&[64]);
        oracle.save(&path).unwrap();
        let mut other = Oracle::new(1000);
        other.restore(&path).unwrap();
        assert_eq!(other.counts, oracle.counts);
        assert!(Oracle::new(5000).restore(&path).is_err());
    }

    #[test]
    fn after_a_kill_rows_are_sorted_by_the_checkpoint() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("counts");
        let keys = [0, 64, 128, 192];
        let mut oracle = Oracle::new(256);
        (0..5).for_each(|_| oracle.pushed(&keys));
        oracle.save(&path).unwrap();
        let mut after = Oracle::new(256);
        after.restore_after_kill(&path).unwrap();
        assert_eq!(after.unseen(), keys);
        let mut out = vec![0.0; 4 * DIM];
        for (i, pushes) in [5u32, 9, 2].into_iter().enumerate() {
            out[i * DIM] = code(keys[i]);
            out[i * DIM + 1] = oracle.weight(pushes);
        }
        out[3 * DIM] = code(192);
        out[3 * DIM + 1] = 0.123;
        assert_eq!(after.check(&keys, &out), Faults { wrong: 0, stale: 1 });
        let expected = Survey {
            exact: 1,
            newer: 1,
            older: 1,
        };
        assert_eq!(after.survey(), expected);
        assert_eq!((after.unseen(), after.counts[1]), (vec![192], 9));
    }
}
