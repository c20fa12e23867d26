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

/// The variants of an enum, as an array: one that the list lacks fails the build. They have no fields.
macro_rules! all_of {
    ($kind:ident: $($variant:ident),+ $(,)?) => {{
        const _: fn($kind) = |kind| match kind {
            $($kind::$variant)|+ => (),
        };
        [$($kind::$variant),+]
    }};
}
pub(crate) use all_of;

/// Lengths and offsets of files have 64 bits, as what indexes memory has.
const _: () = assert!(usize::BITS == 64, "hps is for machines of 64 bits");

/// A number as what indexes memory: each has one.
#[inline]
#[must_use]
pub fn to_usize(number: impl Into<u64>) -> usize {
    #[expect(clippy::cast_possible_truncation, reason = "asserted above")]
    let index = number.into() as usize;
    index
}

/// A number of things that an invariant bounds: no more than `To` can hold. Not for numbers that come
/// from a file.
///
/// # Panics
/// Where the invariant is broken.
#[inline]
#[must_use]
#[track_caller]
pub fn narrow<To>(number: impl TryInto<To> + Copy + fmt::Display) -> To {
    match number.try_into() {
        Ok(narrow) => narrow,
        Err(_) => unreachable!("{number} things, more than there can be"),
    }
}

/// A number, or the greatest there is where it is greater: for what is measured or estimated.
#[inline]
#[must_use]
pub fn saturate(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
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
    saturate(low(part))..=saturate(low(part + 1) - 1)
}

/// The longest that a condition variable is waited on at a stretch: who waits without a limit waits so long
/// again and again, and a scheduler of tests takes it for no limit.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// A row's space in the slab of one table in one shard, by number. The first numbers are those of the
/// lists' heads, which hold no row; the default is one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Slot(u32);

impl Slot {
    /// Stands where a row is not in memory.
    pub const NONE: Slot = Slot(u32::MAX);

    /// The slot of a number, which is less than that of [`Slot::NONE`].
    #[inline]
    #[must_use]
    pub const fn new(index: usize) -> Slot {
        assert!(index < u32::MAX as usize, "slots are numbered by 32 bits");
        #[expect(clippy::cast_possible_truncation, reason = "asserted above")]
        Slot(index as u32)
    }

    /// Its number.
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Its number in the low half of a word, whose high half is free.
    #[inline]
    #[must_use]
    pub const fn to_low_half(self) -> u64 {
        self.0 as u64
    }

    /// The slot in the low half of a word.
    #[inline]
    #[must_use]
    pub const fn of_low_half(word: u64) -> Slot {
        Slot((word & 0xffff_ffff) as u32)
    }
}

/// The place of an open parameter file among those of its store: an index entry names its file by it.
/// A file that comes later may have it again; one that is opened for itself has the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct FileSlot(u32);

impl FileSlot {
    /// The slot of a number.
    #[inline]
    #[must_use]
    pub fn new(index: usize) -> FileSlot {
        FileSlot(narrow(index))
    }

    /// Its number.
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A file of one store. Parameter files, manifests, meta files and parts of index snapshots draw their
/// numbers from one series, which rises from 1 on; none is used twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileNumber(pub u64);

impl FileNumber {
    /// Stands where there is no file.
    pub(crate) const NONE: FileNumber = FileNumber(0);

    /// The first of the series.
    pub(crate) const FIRST: FileNumber = FileNumber(1);

    /// The number after this one.
    pub(crate) const fn next(self) -> FileNumber {
        self.plus(1)
    }

    /// The number so many after this one. What a store is opened with is bounded, so that the series
    /// does not come to its end.
    pub(crate) const fn plus(self, count: u64) -> FileNumber {
        FileNumber(self.0 + count)
    }

    /// This number, which becomes the one after it.
    pub(crate) fn take(&mut self) -> FileNumber {
        let taken = *self;
        *self = taken.next();
        taken
    }
}

impl fmt::Display for FileNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

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
    pub const NONE: CheckpointId = CheckpointId(0);

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
    fn a_slot_keeps_its_number_alone_and_in_half_a_word() {
        for index in [0, 1, 20, u32::MAX as usize - 1] {
            let slot = Slot::new(index);
            assert_eq!((slot.index(), slot == Slot::NONE), (index, false));
            let half = slot.to_low_half();
            assert_eq!(half >> 32, 0, "the high half is free");
            assert_eq!(Slot::of_low_half(0xdead_beef << 32 | half), slot);
        }
        assert_eq!(Slot::NONE.index(), u32::MAX as usize);
    }

    #[test]
    #[should_panic(expected = "slots are numbered by 32 bits")]
    fn there_is_no_slot_beyond_32_bits() {
        let _none = Slot::new(u32::MAX as usize);
    }

    #[test]
    fn numbers_of_files_are_taken_from_the_series_one_by_one() {
        let mut next = FileNumber::FIRST;
        let taken = [next.take(), next.take(), next.take()];
        assert_eq!(taken, [1, 2, 3].map(FileNumber));
        assert_eq!(next, taken[2].next());
        assert_eq!(next.plus(16), FileNumber(20));
        assert!(FileNumber::NONE < FileNumber::FIRST && FileNumber::default() == FileNumber::NONE);
        assert_eq!(format!("{next} {next:>3} {next:03}"), "4   4 004");
    }

    #[test]
    fn numbers_are_converted_whole_or_to_the_greatest_there_is() {
        assert_eq!(to_usize(u64::MAX), usize::MAX);
        assert_eq!(to_usize(7u32), 7);
        assert_eq!(narrow::<u16>(65_535usize), u16::MAX);
        assert_eq!(narrow::<u32>(u64::from(u32::MAX)), u32::MAX);
        assert_eq!(saturate(u128::from(u64::MAX)), u64::MAX);
        assert_eq!(saturate(1 << 64), u64::MAX);
        assert_eq!(saturate(41), 41);
    }

    /// A number that was too great became the greatest one, and went on: a wrong row, or a wrong shard.
    #[test]
    #[should_panic(expected = "65536 things, more than there can be")]
    fn a_number_beyond_what_its_invariant_allows_is_a_panic() {
        let _shard: u16 = narrow(65_536usize);
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
