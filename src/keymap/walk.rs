//! How are the entries looked at in steps, while the map changes between them?

use super::segment::Kind;
use super::{KeyMap, SEGMENTS_AHEAD};
use crate::pages::prefetch;
use crate::units::to_usize;

/// A segment on the way through all of them.
pub(super) struct SegmentAt {
    pub number: usize,
    /// The first hash that it may have.
    pub hash: u64,
    /// The top bits that its positions share.
    pub prefix: u64,
    /// Its directory entries: the first, how many as a power of two, and the one after the last.
    start: usize,
    spare: u8,
    pub end: usize,
}

impl KeyMap {
    /// The directory entry of a hash; the first one's where it lies outside the range.
    pub(super) fn entry_of(&self, hash: u64) -> usize {
        let position = self.range.position(self.range.offset(hash).unwrap_or(0));
        to_usize((position >> 1) >> (63 - self.depth))
    }

    /// The segment of a directory entry; none behind the last one, or behind the end of the range.
    pub(super) fn segment_at(&self, entry: usize) -> Option<SegmentAt> {
        let number = *self.directory.get(entry)? as usize;
        let spare = self.depth - self.segments[number].depth;
        let prefix = entry >> spare;
        let start = prefix << spare;
        Some(SegmentAt {
            number,
            hash: self.first_hash(start)?,
            prefix: prefix as u64,
            start,
            spare,
            end: start + (1 << spare),
        })
    }

    /// Announces to the processor the segments that come after one.
    pub(super) fn announce_after(&self, at: &SegmentAt) {
        if let Some(later) = self.directory.get(at.start + (SEGMENTS_AHEAD << at.spare)) {
            prefetch(std::slice::from_ref(&self.segments[*later as usize]));
        }
        if let Some(next) = self.directory.get(at.end) {
            self.segments[*next as usize].announce_all(&self.pools);
        }
    }

    /// Shows hash and value of each entry, of about so many: of whole segments, from the one that holds the
    /// hash `from` on, in hash order. Returns where to go on, or that all were seen. What is seen in steps
    /// that way is seen once, however the map changes meanwhile.
    ///
    /// # Cost
    /// Some nanoseconds an entry.
    pub fn walk(&self, from: u64, entries: usize, see: &mut impl FnMut(u64, u64)) -> Option<u64> {
        let (mut left, mut some) = (entries, Vec::new());
        self.walk_from(from, &mut left, &mut some, see)
    }

    fn walk_from(
        &self,
        from: u64,
        left: &mut usize,
        some: &mut Vec<(u64, u64)>,
        see: &mut impl FnMut(u64, u64),
    ) -> Option<u64> {
        let mut entry = self.entry_of(from);
        while let Some(at) = self.segment_at(entry) {
            if *left == 0 {
                return Some(at.hash);
            }
            self.announce_after(&at);
            let segment = &self.segments[at.number];
            if segment.kind == Kind::Nested {
                let nested = &self.nested[segment.blocks[0] as usize];
                let next = nested.walk_from(from.max(at.hash), left, some, see);
                if next.is_some() {
                    return next;
                }
            } else {
                some.clear();
                segment.read(&self.pools, &self.range, at.prefix, some);
                some.iter()
                    .for_each(|(offset, value)| see(self.range.low + offset, *value));
            }
            // A segment without entries takes time, too.
            *left = left.saturating_sub(segment.len().max(1));
            entry = at.end;
        }
        None
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::units::mix64;

    /// The entries of all steps, and how many steps there were.
    fn walked(map: &KeyMap, entries: usize) -> (Vec<(u64, u64)>, usize) {
        let (mut all, mut next, mut steps) = (Vec::new(), Some(0), 0);
        while let Some(from) = next {
            next = map.walk(from, entries, &mut |hash, value| all.push((hash, value)));
            steps += 1;
        }
        (all, steps)
    }

    /// Whatever the steps, each entry is seen once, in order.
    pub(in crate::keymap) fn check(map: &KeyMap, model: &BTreeMap<u64, u64>) {
        for entries in [1, 300, usize::MAX] {
            let (all, _) = walked(map, entries);
            assert!(all.iter().copied().eq(model.iter().map(|(k, v)| (*k, *v))));
        }
    }

    #[test]
    fn a_step_is_about_as_long_as_asked_for() {
        let mut map = KeyMap::new(0, u64::MAX);
        for key in 0..50_000 {
            map.insert(mix64(key), key);
        }
        let (all, steps) = walked(&map, 1000);
        assert_eq!(all.len(), 50_000);
        // A step ends with a segment, of at most 255 entries.
        assert!((40..=50).contains(&steps), "{steps} steps");
    }

    #[test]
    fn entries_that_stay_are_seen_once_while_the_map_grows_between_the_steps() {
        let mut map = KeyMap::new(0, u64::MAX);
        let keys = 0..4000;
        for key in keys.clone() {
            map.insert(mix64(key), key);
        }
        let (mut seen, mut next, mut more) = (Vec::new(), Some(0), 4000);
        while let Some(from) = next {
            let mut see = |_, value| seen.extend((value < 4000).then_some(value));
            next = map.walk(from, 100, &mut see);
            for key in more..more + 500 {
                map.insert(mix64(key), key);
            }
            more += 500;
        }
        seen.sort_unstable();
        assert!(seen.into_iter().eq(keys));
    }
}
