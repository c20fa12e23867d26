//! How is a map made from entries that already come in hash order? One segment after the other.
//!
//! - The entries of one segment at most are held back; each segment is laid out once, and nothing
//!   is shifted.
//! - A segment takes the greatest part of the range that starts where the one before ended and
//!   holds no more entries than fit: for mixed hashes half to all of a full segment.
//! - The number of entries expected only limits the directory: where the limit is reached, a
//!   segment becomes a map of its own, as it does when entries are inserted.

use super::KeyMap;
use super::entry::SPARE_BITS;
use super::segment::{ENTRIES_MAX, Segment};

/// Levels of the directory below the one that mixed hashes need.
const SPARE_LEVELS: u32 = 4;
/// The directory of a map that is expected to be small.
const LEVELS_MIN: u32 = 6;
/// No directory is greater, whatever is expected.
const LEVELS_MAX: u32 = 30;

/// Makes a [`KeyMap`] from entries in the order of their hashes.
#[derive(Debug)]
pub struct Builder {
    /// Has segments, in the order of their ranges, and no directory yet.
    map: KeyMap,
    depth_max: u8,
    /// Position where the part of the range starts that has no segment yet; `None` at the end.
    start: Option<u64>,
    /// Hash and value of the entries that have no segment yet.
    pending: Vec<(u64, u64)>,
    /// The map that takes the place of the next segment, and the position where it ends.
    nested: Option<(KeyMap, Option<u64>)>,
    last: Option<u64>,
}

/// Where a part of the positions that starts at `start` and has `depth` top bits ends.
fn end_of(start: u64, depth: u8) -> Option<u64> {
    1u64.checked_shl(64 - u32::from(depth))
        .and_then(|size| start.checked_add(size))
}

/// Whether hashes rise strictly, and the bits of all values. Looks at every entry, which is faster than
/// to stop at the first that is wrong.
fn look(entries: &[(u64, u64)]) -> (bool, u64) {
    let mut all = entries.first().map_or(0, |first| first.1);
    let mut falls = false;
    for (before, entry) in entries.iter().zip(entries.iter().skip(1)) {
        falls |= before.0 >= entry.0;
        all |= entry.1;
    }
    (!falls, all)
}

impl Builder {
    /// Starts a map for hashes in `[low, high]`, of about `expected` entries or fewer.
    #[must_use]
    pub fn new(low: u64, high: u64, expected: usize) -> Builder {
        let levels = (expected / ENTRIES_MAX + 1).ilog2() + SPARE_LEVELS;
        let mut map = KeyMap::new(low, high);
        map.segments.clear();
        Builder {
            map,
            depth_max: u8::try_from(levels.clamp(LEVELS_MIN, LEVELS_MAX)).unwrap_or(0),
            start: Some(0),
            pending: Vec::with_capacity(ENTRIES_MAX + 1),
            nested: None,
            last: None,
        }
    }

    /// Adds an entry. False, and nothing is added, when its hash is not greater than the one
    /// before or lies outside the range.
    #[inline]
    pub fn push(&mut self, hash: u64, value: u64) -> bool {
        assert!(value & SPARE_BITS == 0, "a value is a location");
        if self.map.range.offset(hash).is_none() {
            return false;
        }
        if self.last.is_some_and(|last| last >= hash) {
            return false;
        }
        self.last = Some(hash);
        self.map.len += 1;
        if self.nested.is_some() && self.nests(hash, value) {
            return true;
        }
        self.pending.push((hash, value));
        if self.pending.len() > ENTRIES_MAX {
            self.settle(false);
        }
        true
    }

    /// Adds entries, as [`Builder::push`] adds one. False, and nothing is added, when one of them
    /// is out of order or out of range.
    pub fn extend(&mut self, mut entries: &[(u64, u64)]) -> bool {
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else {
            return true;
        };
        let (rises, all) = look(entries);
        let rises = rises && self.last.is_none_or(|before| before < first.0);
        let range = self.map.range;
        if !rises || range.offset(first.0).is_none() || range.offset(last.0).is_none() {
            return false;
        }
        assert!(all & SPARE_BITS == 0, "a value is a location");
        self.last = Some(last.0);
        self.map.len += entries.len();
        while let Some((&(hash, value), rest)) = entries.split_first() {
            if self.nested.is_some() && self.nests(hash, value) {
                entries = rest;
                continue;
            }
            // Without being held back, where it is sure which entries the next segment has.
            if self.pending.is_empty()
                && let Some(some) = entries.get(..=ENTRIES_MAX)
                && let Some(count) = self.add_next(some, false)
            {
                entries = &entries[count..];
                continue;
            }
            let room = ENTRIES_MAX + 1 - self.pending.len();
            let count = room.min(entries.len());
            self.pending.extend_from_slice(&entries[..count]);
            let mut done = count;
            if self.pending.len() > ENTRIES_MAX {
                self.settle(false);
                // What is held back is from here: it need not be held back.
                if self.pending.len() <= count.min(ENTRIES_MAX) {
                    done -= self.pending.len();
                    self.pending.clear();
                }
            }
            entries = &entries[done..];
        }
        true
    }

    /// The map.
    #[must_use]
    pub fn finish(mut self) -> KeyMap {
        self.close_nested();
        self.settle(true);
        let mut map = self.map;
        map.depth = map.segments.iter().map(|s| s.depth).max().unwrap_or(0);
        map.directory = Vec::with_capacity(1 << map.depth);
        for (number, segment) in (0..).zip(&map.segments) {
            let run = 1usize << (map.depth - segment.depth);
            map.directory.resize(map.directory.len() + run, number);
        }
        assert!(
            map.directory.len() == 1 << map.depth,
            "segments cover the range without a gap"
        );
        map.segments.shrink_to_fit();
        map
    }

    /// Makes segments until no more entries are left than fit into one; with `all`, until the
    /// range ends.
    fn settle(&mut self, all: bool) {
        let mut pending = std::mem::take(&mut self.pending);
        while let Some(start) = self.start {
            if !all && pending.len() <= ENTRIES_MAX {
                break;
            }
            match self.add_next(&pending, all) {
                Some(count) => drop(pending.drain(..count)),
                None => self.start_nested(start, &mut pending, all),
            }
        }
        self.pending = pending;
    }

    /// Adds the greatest segment that may start where the one before ended and that holds its entries, which are the
    /// first of these. Returns how many it has; `None` where there is no such segment.
    fn add_next(&mut self, entries: &[(u64, u64)], all: bool) -> Option<usize> {
        let start = self.start?;
        let first = match start {
            0 => 0,
            _ => u8::try_from(64 - start.trailing_zeros()).unwrap_or(self.depth_max),
        };
        (first..=self.depth_max).find_map(|depth| self.add_segment(start, depth, entries, all))
    }

    /// How many of some entries lie before a position.
    fn count_before(&self, entries: &[(u64, u64)], end: Option<u64>) -> usize {
        let range = &self.map.range;
        let before =
            |entry: &(u64, u64)| end.is_none_or(|end| range.position(entry.0 - range.low) < end);
        // Most segments that are tried are too great.
        match entries.last() {
            Some(last) if !before(last) => entries.partition_point(before),
            _ => entries.len(),
        }
    }

    /// Adds the segment of this depth from the first of some entries, unless entries are missing or
    /// too many for it. Returns how many it has.
    fn add_segment(
        &mut self,
        start: u64,
        depth: u8,
        entries: &[(u64, u64)],
        all: bool,
    ) -> Option<usize> {
        let end = end_of(start, depth);
        let count = self.count_before(entries, end);
        if count > ENTRIES_MAX || (count == entries.len() && !all) {
            return None;
        }
        let mut segment = Segment::new(depth);
        let range = self.map.range;
        segment.lay_out(
            &mut self.map.pools,
            &range,
            (range.low, &entries[..count]),
            0,
        );
        self.map.segments.push(segment);
        self.start = end;
        Some(count)
    }

    /// Starts a map where not even the smallest segment holds its entries; ends it if no more
    /// can come.
    fn start_nested(&mut self, start: u64, pending: &mut Vec<(u64, u64)>, all: bool) {
        let end = end_of(start, self.depth_max);
        let prefix = (start >> 1) >> (63 - self.depth_max);
        let range = self.map.range;
        let mut map = KeyMap::over(range.part(prefix, self.depth_max));
        let count = self.count_before(pending, end);
        for (hash, value) in pending.drain(..count) {
            map.insert(hash, value);
        }
        self.nested = Some((map, end));
        if all || !pending.is_empty() {
            self.close_nested();
        }
    }

    /// Adds an entry to the nested map if it lies there; otherwise that map is complete.
    fn nests(&mut self, hash: u64, value: u64) -> bool {
        let position = self.map.range.position(hash - self.map.range.low);
        if let Some((map, end)) = &mut self.nested
            && end.is_none_or(|end| position < end)
        {
            map.insert(hash, value);
            return true;
        }
        self.close_nested();
        false
    }

    fn close_nested(&mut self) {
        if let Some((map, end)) = self.nested.take() {
            let segment = self.map.adopt(map, self.depth_max);
            self.map.segments.push(segment);
            self.start = end;
        }
    }
}
