//! Where in its map's range does a hash lie? Its offset, and a position that uses all high bits.

/// The hashes a map may hold.
///
/// - The *offset* of a hash is its distance from the first one.
/// - The *position* is the offset, shifted so far up that the range's last one has its top bit set:
///   the directory goes by the top bits, and the offset is what is left after shifting back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) low: u64,
    pub(super) span: u64,
    pub(super) shift: u32,
}

impl Range {
    pub(super) fn new(low: u64, high: u64) -> Range {
        assert!(low <= high, "a map's range must not be empty");
        let span = high - low;
        Range {
            low,
            span,
            shift: span.leading_zeros().min(63),
        }
    }

    /// The offset of a hash, if the map may hold it.
    #[inline]
    pub(super) fn offset(&self, hash: u64) -> Option<u64> {
        let offset = hash.wrapping_sub(self.low);
        (offset <= self.span).then_some(offset)
    }

    #[inline]
    pub(super) fn position(&self, offset: u64) -> u64 {
        offset << self.shift
    }

    /// The part of the range whose positions have these top bits.
    pub(super) fn part(&self, prefix: u64, depth: u8) -> Range {
        let first = prefix << (64 - u32::from(depth));
        let last = first | (u64::MAX >> depth);
        let (first, last) = (first >> self.shift, last >> self.shift);
        Range::new(self.low + first, self.low + last.min(self.span))
    }
}
