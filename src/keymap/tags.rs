//! Which of the last entries of a segment may be those of a hash? A byte for each, in the segment's header.

/// With so many entries at the end of a segment they are sorted in. Their tags are compared at once.
pub(super) const TAIL_MAX: usize = 8;
/// The bits of a tag that tell the bucket, and one more of the position.
pub(super) const TAG_BITS: u32 = 7;
/// The top bit of a tag: there is an entry.
const THERE: u8 = 1 << TAG_BITS;
/// A byte of 1, and one of all bits but the top one, for each tag.
const ONES: u64 = u64::from_le_bytes([1; TAIL_MAX]);
const SEVENS: u64 = u64::from_le_bytes([THERE - 1; TAIL_MAX]);

/// The bits of a position behind the first `depth`, as far as a tag has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag(u8);

impl Tag {
    #[inline]
    pub(super) fn of(depth: u8, position: u64) -> Tag {
        let [bits, ..] = ((position << depth) >> (u64::BITS - TAG_BITS)).to_le_bytes();
        Tag(bits | THERE)
    }
}

/// The tags of a segment's tail, in its order. (Bytes, so that a segment need not be aligned to eight.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tags([u8; TAIL_MAX]);

impl Tags {
    /// Entries of the tail.
    #[inline]
    pub(super) fn len(self) -> usize {
        let unused = u64::from_le_bytes(self.0).leading_zeros() / u8::BITS;
        TAIL_MAX - unused as usize
    }

    #[inline]
    pub(super) fn is_empty(self) -> bool {
        self.0[0] == 0
    }

    /// Adds one; fewer than [`TAIL_MAX`] are there.
    #[inline]
    pub(super) fn push(&mut self, tag: Tag) {
        self.0[self.len()] = tag.0;
    }

    /// The last one takes the place of the one at `at`.
    pub(super) fn swap_remove(&mut self, at: usize) {
        if let Some(last) = self.len().checked_sub(1) {
            self.0[at] = self.0[last];
            self.0[last] = 0;
        }
    }

    /// Where in the tail entries with this tag are.
    #[inline]
    pub(super) fn places(self, tag: Tag) -> impl Iterator<Item = usize> {
        let other = u64::from_le_bytes(self.0) ^ (ONES * u64::from(tag.0));
        // The top bit of each byte that is zero: no carry leaves its byte.
        let mut equal = !(((other & SEVENS) + SEVENS) | other | SEVENS);
        std::iter::from_fn(move || {
            let place = equal.trailing_zeros() / u8::BITS;
            let found = equal != 0;
            equal &= equal.wrapping_sub(1);
            found.then_some(place as usize)
        })
    }

    /// The bucket of each entry of the tail: the first so many bits that its tag has.
    pub(super) fn buckets(self, bits: u32) -> impl Iterator<Item = usize> {
        let tags = self.0.into_iter().take_while(|tag| *tag != 0);
        tags.map(move |tag| usize::from((tag & !THERE) >> (TAG_BITS - bits)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_found_where_they_are_and_nowhere_else() {
        let tags_of = |bits: &[u64]| {
            let mut tags = Tags::default();
            for bits in bits {
                tags.push(Tag::of(5, bits << (u64::BITS - TAG_BITS - 5)));
            }
            tags
        };
        let tag = |bits: u64| Tag::of(0, bits << (u64::BITS - TAG_BITS));
        // Neighbours of what is asked for on both sides, all bits, none.
        let all = [0, 1, 2, 127, 126, 1, 0, 64];
        for count in 0..=all.len() {
            let tags = tags_of(&all[..count]);
            assert_eq!((tags.len(), tags.is_empty()), (count, count == 0));
            for bits in 0..128 {
                let expected = (0..count).filter(|i| all[*i] == bits);
                assert!(tags.places(tag(bits)).eq(expected), "{bits} of {count}");
            }
            assert!(
                tags.buckets(6)
                    .eq(all[..count].iter().map(|bits| (*bits >> 1) as usize))
            );
        }
        let mut tags = tags_of(&all);
        tags.swap_remove(1);
        assert_eq!(tags, tags_of(&[0, 64, 2, 127, 126, 1, 0]));
        tags.swap_remove(6);
        assert_eq!(tags, tags_of(&[0, 64, 2, 127, 126, 1]));
    }
}
