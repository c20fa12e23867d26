//! Where in its map's range does a hash lie? A monotone position in `[0, 2^64)`.

use crate::units::{saturate, to_usize};

/// The hashes a map may hold, and their monotone position in `[0, 2^64)`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) low: u64,
    pub(super) span: u64,
    shift: u32,
    factor: u64,
}

impl Range {
    pub(super) fn new(low: u64, high: u64) -> Range {
        assert!(low <= high, "a map's range must not be empty");
        let span = high - low;
        let shift = span.leading_zeros().min(63);
        let top = (span << shift) | ((1 << shift) - 1);
        // In [2^63, 2^64): a position is never smaller than the shifted offset, so no two hashes
        // share one.
        let factor = (1u128 << 127) / (u128::from(top) + 1);
        Range {
            low,
            span,
            shift,
            factor: saturate(factor),
        }
    }

    #[inline]
    pub(super) fn contains(&self, hash: u64) -> bool {
        hash.wrapping_sub(self.low) <= self.span
    }

    #[inline]
    pub(super) fn position(&self, hash: u64) -> u64 {
        let shifted = hash.wrapping_sub(self.low) << self.shift;
        let wide = (u128::from(shifted) * u128::from(self.factor)) >> 63;
        saturate(wide)
    }

    /// The first offset whose position is at least `position`.
    pub(super) fn first_offset(&self, position: u64) -> u64 {
        let (mut low, mut high) = (0, self.span);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.position(self.low + middle) < position {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }
}

/// The high half of the product: `fraction` of 2^64 scaled to `[0, n)`.
#[inline]
pub(super) fn scale(fraction: u64, n: usize) -> usize {
    to_usize(((u128::from(fraction) * n as u128) >> 64) as u64)
}
