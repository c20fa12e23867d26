//! In which order does a batch change its rows? By row number, then by position.
//!
//! A stable radix sort: positions rise before, so that rows alone are sorted.

/// Bits of a pass.
const DIGIT_BITS: u32 = 11;
const DIGITS: usize = 1 << DIGIT_BITS;
/// Fewer pairs are sorted by comparison: counting so many digits would take longer.
const FEW: usize = 2048;

/// Pairs of a row (upper half) and a position, sorted; scratch memory of their number.
#[derive(Debug, Default)]
pub struct Order {
    pub pairs: Vec<u64>,
    other: Vec<u64>,
}

impl Order {
    /// Sorts pairs whose positions rise, and whose rows have so many bits.
    pub fn sort(&mut self, row_bits: u32) {
        if self.pairs.len() < FEW {
            self.pairs.sort_unstable();
            return;
        }
        self.other.resize(self.pairs.len(), 0);
        for pass in 0..row_bits.div_ceil(DIGIT_BITS) {
            let shift = 32 + pass * DIGIT_BITS;
            move_by_digit(&self.pairs, &mut self.other, shift);
            std::mem::swap(&mut self.pairs, &mut self.other);
        }
    }
}

#[inline(always)]
fn digit_of(pair: u64, shift: u32) -> usize {
    crate::units::to_usize(pair >> shift) & (DIGITS - 1)
}

/// A pass: the pairs in the order of their digits, equal ones as they were.
fn move_by_digit(from: &[u64], to: &mut [u64], shift: u32) {
    let mut places = [0u32; DIGITS];
    for pair in from {
        places[digit_of(*pair, shift)] += 1;
    }
    let mut start = 0;
    for place in &mut places {
        start += std::mem::replace(place, start);
    }
    for pair in from {
        let place = &mut places[digit_of(*pair, shift)];
        to[*place as usize] = *pair;
        *place += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::mix64;

    #[test]
    fn pairs_are_sorted_as_by_comparison() {
        let mut order = Order::default();
        for (count, rows, row_bits) in [
            (0, 1, 0),
            (10, 3, 2),
            (FEW as u64, 1, 0),
            (5000, 1 << 11, 11),
            (5000, 1 << 12, 12),
            (9000, 50, 6),
            (9000, u64::from(u32::MAX), 32),
        ] {
            let pair = |i| (mix64(i) % rows) << 32 | i;
            order.pairs = (0..count).map(pair).collect();
            let mut expected = order.pairs.clone();
            expected.sort_unstable();
            order.sort(row_bits);
            assert!(order.pairs == expected, "{count} pairs of {rows} rows");
        }
    }
}
