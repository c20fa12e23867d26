//! The rows of a table in host memory.
//!
//! Rows begin with a cache line where their stride is one or several: a row then touches no line more than it
//! fills.

use super::super::arrays::filled;
use crate::error::Result;
use crate::pages::prefetch;

/// f32s of a cache line.
const LINE_F32S: usize = 16;

/// `[rows_max, stride]`
#[derive(Debug)]
pub struct Arena {
    values: Vec<f32>,
    /// The first value that begins a cache line.
    first: usize,
    stride: usize,
}

impl Arena {
    /// Rows of zeros.
    pub fn new(rows: usize, stride: usize) -> Result<Arena> {
        let values = filled(0.0, rows * stride + LINE_F32S, "rows")?;
        let apart = values.as_ptr().align_offset(LINE_F32S * size_of::<f32>());
        Ok(Arena {
            values,
            first: apart.min(LINE_F32S),
            stride,
        })
    }

    fn at(&self, row: usize, width: usize) -> std::ops::Range<usize> {
        let start = self.first + row * self.stride;
        start..start + width
    }

    /// The first `width` words of a row.
    #[inline(always)]
    pub fn row(&self, row: usize, width: usize) -> &[f32] {
        &self.values[self.at(row, width)]
    }

    /// As [`Arena::row`], to change it.
    #[inline(always)]
    pub fn row_mut(&mut self, row: usize, width: usize) -> &mut [f32] {
        let at = self.at(row, width);
        &mut self.values[at]
    }

    /// Announces that [`Arena::row`] is asked for soon, if there is such a row.
    #[inline(always)]
    pub fn prefetch(&self, row: usize, width: usize) {
        if let Some(words) = self.values.get(self.at(row, width)) {
            prefetch(words);
        }
    }
}
