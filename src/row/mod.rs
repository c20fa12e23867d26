//! What is in a row, what does a fresh one look like, and how does a push change it?
//!
//! A row is a slice of f32-sized words: weights, optimizer state, metadata columns.
//!
//! Invariants:
//! - A fresh row is a pure function of the descriptor and the key ([`RowLayout::default_row`]);
//!   its bits are part of the format and held by golden vectors.
//! - An update is a pure function of (row, gradient, lr, hyperparameters). It uses IEEE add, sub,
//!   mul, div and sqrt in one documented order: no fused multiply-add, no reciprocals, so every
//!   machine computes the same bits. (Only the bits inside a NaN are the machine's own.)
//! - The vector code ([`Updater::apply_all`]) and its scalar twin
//!   ([`Updater::apply_gradient`]) agree to the bit.
//! - Metadata columns are u32 bit patterns kept in f32 words; no arithmetic touches them as f32.

use crate::error::{ArgumentError, Error, Result};
use crate::options::{Initialiser, Optimizer, RowMetadata, TableDescriptor};

mod initialiser;
mod optimizer;
#[cfg(test)]
mod tests;
mod vector;

pub use optimizer::{Updater, check_hyper};
pub use vector::{RowVisitor, accumulate, all_finite};

/// Where weights, state and metadata lie in the rows of one table, and how a fresh row is made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowLayout {
    dim: usize,
    state_f32s: usize,
    metadata: RowMetadata,
    optimizer: Optimizer,
    initialiser: Initialiser,
    seed: u64,
    accumulator: f32,
}

/// The metadata columns of one row; a column that the table does not have is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg(any(test, feature = "sim"))]
pub struct MetadataValues {
    /// Sum of the shows given at push.
    pub show: Option<u32>,
    /// Sum of the clicks given at push.
    pub click: Option<u32>,
    /// Number of pushes of the row.
    pub count: Option<u32>,
    /// Step given at the last push.
    pub last_step: Option<u32>,
}

impl RowLayout {
    /// The layout that a table's descriptor fixes.
    #[must_use]
    pub fn new(descriptor: &TableDescriptor) -> RowLayout {
        RowLayout {
            dim: descriptor.dim,
            state_f32s: descriptor.optimizer.state_f32s(descriptor.dim),
            metadata: descriptor.metadata,
            optimizer: descriptor.optimizer,
            initialiser: descriptor.initialiser,
            seed: descriptor.seed,
            accumulator: descriptor.accumulator,
        }
    }

    /// Rows of weights alone, which are 0 where they were never pushed.
    #[must_use]
    pub fn of_weights(dim: usize) -> RowLayout {
        RowLayout::new(&TableDescriptor {
            optimizer: Optimizer::Sgd,
            initialiser: Initialiser::Zero,
            ..TableDescriptor::new("", dim)
        })
    }

    /// Weights of a row.
    #[must_use]
    #[cfg(any(test, feature = "sim"))]
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// f32-sized words of a row: weights, state, metadata.
    #[must_use]
    pub fn row_f32s(&self) -> usize {
        self.dim + self.state_f32s + self.metadata.columns()
    }

    /// Where the optimizer's state lies in a row.
    #[must_use]
    pub fn state_range(&self) -> std::ops::Range<usize> {
        self.dim..self.dim + self.state_f32s
    }

    /// Where the metadata columns lie in a row, in the order show, click, count, last_step.
    #[must_use]
    pub fn metadata_range(&self) -> std::ops::Range<usize> {
        self.dim + self.state_f32s..self.row_f32s()
    }

    /// Writes the row of a key that was never pushed.
    ///
    /// Weights come from the initialiser, state is 0 except the accumulators (AdaGrad `a`, FTRL
    /// `n`), metadata is 0. A pure function of (descriptor, key); its bits are part of the format.
    ///
    /// # Shapes
    /// row: `[row_f32s]`
    pub fn default_row(&self, key: u64, row: &mut [f32]) {
        self.check_row(row);
        initialiser::fill(self.initialiser, self.seed, key, &mut row[..self.dim]);
        self.default_state(row);
    }

    /// Writes state and metadata of a row that was never pushed; the weights stay.
    ///
    /// # Shapes
    /// row: `[row_f32s]`
    pub fn default_state(&self, row: &mut [f32]) {
        self.check_row(row);
        let rest = &mut row[self.dim..];
        rest.fill(0.0);
        let accumulators = match self.optimizer {
            Optimizer::Adagrad | Optimizer::RowwiseAdagrad => 0..self.state_f32s,
            Optimizer::Ftrl => self.dim..2 * self.dim,
            Optimizer::Sgd | Optimizer::Momentum | Optimizer::Nesterov | Optimizer::Adam => 0..0,
        };
        rest[accumulators].fill(self.accumulator);
    }

    /// Adds `delta` to the weights; state and metadata stay.
    ///
    /// # Shapes
    /// row: `[row_f32s]`, delta: `[dim]`
    pub fn apply_delta(&self, row: &mut [f32], delta: &[f32]) {
        self.check_row(row);
        assert!(delta.len() == self.dim, "a delta has one value per weight");
        accumulate(&mut row[..self.dim], delta);
    }

    /// Replaces the weights (`dim` values), or the whole row (`row_f32s` values).
    ///
    /// # Shapes
    /// row: `[row_f32s]`, values: `[dim]` or `[row_f32s]`
    #[cfg(any(test, feature = "sim"))]
    pub fn apply_values(&self, row: &mut [f32], values: &[f32]) {
        self.check_row(row);
        assert!(
            values.len() == self.dim || values.len() == self.row_f32s(),
            "values are the weights or the whole row"
        );
        row[..values.len()].copy_from_slice(values);
    }

    /// Counts one push of the row: adds `show` and `click`, raises the count, keeps `step`.
    ///
    /// Sums stay at `u32::MAX` once they reach it. Columns the table does not have are left out.
    ///
    /// # Shapes
    /// row: `[row_f32s]`
    pub fn update_metadata(&self, row: &mut [f32], show: u32, click: u32, step: u32) {
        self.check_row(row);
        let columns = &mut row[self.metadata_range()];
        let has = self.metadata;
        let changes = [
            (has.show, Some(show)),
            (has.click, Some(click)),
            (has.count, Some(1)),
            (has.last_step, None),
        ];
        let present = changes.iter().filter(|(present, _)| *present);
        for (column, (_, add)) in columns.iter_mut().zip(present) {
            let value = add.map_or(step, |add| column.to_bits().saturating_add(add));
            *column = f32::from_bits(value);
        }
    }

    /// Reads the metadata columns of a row.
    ///
    /// # Shapes
    /// row: `[row_f32s]`
    #[must_use]
    #[cfg(any(test, feature = "sim"))]
    pub fn metadata(&self, row: &[f32]) -> MetadataValues {
        self.check_row(row);
        let mut columns = row[self.metadata_range()]
            .iter()
            .map(|column| column.to_bits());
        let mut next = |present: bool| if present { columns.next() } else { None };
        MetadataValues {
            show: next(self.metadata.show),
            click: next(self.metadata.click),
            count: next(self.metadata.count),
            last_step: next(self.metadata.last_step),
        }
    }

    #[inline(always)]
    fn check_row(&self, row: &[f32]) {
        assert!(
            row.len() == self.row_f32s(),
            "a row has the length of its table's layout"
        );
    }
}

/// Checks a learning rate: finite, and above 0 where the rule divides by it (FTRL).
///
/// # Errors
/// `InvalidArgument` naming the value.
pub fn check_learning_rate(optimizer: Optimizer, lr: f32) -> Result<()> {
    let why = if !lr.is_finite() {
        "must be finite"
    } else if optimizer == Optimizer::Ftrl && lr <= 0.0 {
        "must be above 0 for FTRL, which divides by it"
    } else {
        return Ok(());
    };
    let (value, why) = (lr.to_string(), why.to_owned());
    Err(Error::InvalidArgument(ArgumentError::Option {
        name: "lr",
        value,
        why,
    }))
}

/// The f32 nearest to `x`, ties to even: IEEE conversion, the same on every machine.
#[inline(always)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "rounds to nearest, as IEEE 754 defines it"
)]
fn round_to_f32(x: f64) -> f32 {
    x as f32
}
