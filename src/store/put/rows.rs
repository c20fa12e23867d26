//! What does a put write, and what does it say of it?

use super::super::core::Table;

/// The rows of a [`Store::put`](crate::Store::put).
#[derive(Clone, Copy, Debug)]
pub struct PutRows<'a> {
    pub(in super::super) values: &'a [f32],
    pub(super) are_whole: bool,
    pub(super) are_verbatim: bool,
}

impl<'a> PutRows<'a> {
    /// Whole rows: weights, optimizer state, metadata (u32 bit patterns), as
    /// [`Lease::read_rows`](crate::Lease::read_rows) and [`RowIter`](crate::RowIter) give them.
    ///
    /// # Shapes
    /// values: `[n, row_f32s]`
    #[must_use]
    pub fn whole(values: &'a [f32]) -> PutRows<'a> {
        PutRows {
            values,
            are_whole: true,
            are_verbatim: false,
        }
    }

    /// Weights; optimizer state and metadata are those of a key that was never pushed.
    ///
    /// # Shapes
    /// values: `[n, dim]`
    #[must_use]
    pub fn weights(values: &'a [f32]) -> PutRows<'a> {
        PutRows {
            values,
            are_whole: false,
            are_verbatim: false,
        }
    }

    /// f32s of a row.
    pub(in super::super) fn width(&self, table: &Table) -> usize {
        match self.are_whole {
            true => table.descriptor.row_f32s(),
            false => table.descriptor.dim,
        }
    }

    /// Takes the bits as they are, whatever the options say of values that are not finite: a NaN or an
    /// infinity is stored like any number, and not counted. For rows that come from a store.
    #[must_use]
    pub fn verbatim(mut self) -> PutRows<'a> {
        self.are_verbatim = true;
        self
    }
}

/// What a put did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PutReport {
    /// Keys whose rows were written; one that is there twice counts twice.
    pub rows: u64,
    /// Keys whose values were not finite (skipped or written, as the options say).
    pub non_finite: u64,
}
