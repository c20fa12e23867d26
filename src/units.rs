//! Which number is which? The bijection that orders keys, and ids that must not be mixed up.

use std::fmt;
use std::num::ParseIntError;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

const MIX_MULTIPLIER: u64 = 0xd6e8_feb8_6659_fd93;
const MIX_INVERSE: u64 = 0xcfee_444d_8b59_a89b;

/// The bijection on u64 that orders rows, shards and parts. Fixed by the format.
#[inline]
#[must_use]
pub const fn mix64(key: u64) -> u64 {
    let mut x = key;
    x ^= x >> 32;
    x = x.wrapping_mul(MIX_MULTIPLIER);
    x ^= x >> 32;
    x = x.wrapping_mul(MIX_MULTIPLIER);
    x ^ (x >> 32)
}

/// The inverse of [`mix64`].
#[inline]
#[must_use]
pub const fn unmix64(hash: u64) -> u64 {
    let mut x = hash;
    x ^= x >> 32;
    x = x.wrapping_mul(MIX_INVERSE);
    x ^= x >> 32;
    x = x.wrapping_mul(MIX_INVERSE);
    x ^ (x >> 32)
}

/// Which of `ranges` equal ranges of mix64 a hash falls into: rises with the hash.
#[inline]
#[must_use]
pub fn range_of(hash: u64, ranges: usize) -> usize {
    let wide = u128::from(hash) * ranges as u128;
    usize::try_from(wide >> 64).unwrap_or(0)
}

/// The part `part` of `parts` equal ranges of mix64, ends included: what one thread, or one node, owns.
/// All parts together are everything, none overlap. Empty where there is no such part.
#[must_use]
pub fn part_range(part: usize, parts: usize) -> RangeInclusive<u64> {
    if part >= parts {
        return RangeInclusive::new(1, 0);
    }
    let low = |part: usize| ((part as u128) << 64).div_ceil(parts as u128);
    let narrow = |x: u128| u64::try_from(x).unwrap_or(u64::MAX);
    narrow(low(part))..=narrow(low(part + 1) - 1)
}

/// The longest that a condition variable is waited on at a stretch: who waits without a limit waits so long
/// again and again, and a scheduler of tests takes it for no limit.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// A table of one store; its number on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId(pub u32);

impl fmt::Display for TableId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A checkpoint of one store: ids rise from 1 on, after a rollback
/// too; none is used twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CheckpointId(pub u64);

impl CheckpointId {
    /// Stands where there is none yet.
    pub(crate) const NONE: CheckpointId = CheckpointId(0);

    /// The id after this one.
    pub(crate) const fn next(self) -> CheckpointId {
        CheckpointId(self.0 + 1)
    }
}

impl fmt::Display for CheckpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for CheckpointId {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<CheckpointId, ParseIntError> {
        text.parse().map(CheckpointId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mix64_is_a_bijection_and_keeps_its_golden_values() {
        assert_eq!(MIX_MULTIPLIER.wrapping_mul(MIX_INVERSE), 1);
        for x in (0..64)
            .map(|bit| 1u64 << bit)
            .chain([0, u64::MAX, 0x0123_4567_89ab_cdef])
        {
            assert_eq!(unmix64(mix64(x)), x);
            assert_eq!(mix64(unmix64(x)), x);
        }
        assert_eq!(mix64(0), 0);
        // Computed apart, with Python's integers.
        assert_eq!(mix64(1), 0x4179_b061_e0c0_e0d0);
        assert_eq!(mix64(2), 0x1c99_6330_5feb_c252);
        assert_eq!(mix64(0x0123_4567_89ab_cdef), 0x3efd_ea49_c590_f4ec);
        assert_eq!(mix64(u64::MAX), 0x448e_29ce_d410_3459);
    }

    #[test]
    fn ranges_rise_with_the_hash_and_cover_everything() {
        assert_eq!(range_of(0, 7), 0);
        assert_eq!(range_of(u64::MAX, 7), 6);
        assert_eq!(range_of(u64::MAX, 1), 0);
        for parts in [1, 2, 3, 4, 7, 256] {
            let mut next = 0u128;
            for part in 0..parts {
                let (low, high) = part_range(part, parts).into_inner();
                assert_eq!(u128::from(low), next);
                assert_eq!((range_of(low, parts), range_of(high, parts)), (part, part));
                next = u128::from(high) + 1;
            }
            assert_eq!(next, 1 << 64);
        }
        assert!(part_range(3, 3).is_empty() && part_range(0, 0).is_empty());
    }
}
