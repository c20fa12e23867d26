//! How is a map made from entries that already come in hash order? One segment after the other.
//!
//! - The entries of one segment at most are held back; each segment is laid out once, and nothing
//!   is shifted.
//! - A segment takes the greatest part of the range that starts where the one before ended and
//!   holds no more entries than fit: for mixed hashes half to all of a full segment.
//! - The number of entries expected only limits the directory: where the limit is reached, a
//!   segment becomes a map of its own, as it does when entries are inserted.

use super::pool::Place;
use super::segment::{BLOCKS_MAX, Segment};
use super::{ABSENT, KeyMap, Load};

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
    entries_max: usize,
    /// Position where the part of the range starts that has no segment yet; `None` at the end.
    start: Option<u64>,
    pending: Vec<Place>,
    /// The map that takes the place of the next segment, and the position where it ends.
    nested: Option<(KeyMap, Option<u64>)>,
    last: Option<u64>,
}

/// Where a part of the positions that starts at `start` and has `depth` top bits ends.
fn end_of(start: u64, depth: u8) -> Option<u64> {
    1u64.checked_shl(64 - u32::from(depth))
        .and_then(|size| start.checked_add(size))
}

impl Builder {
    /// Starts a map for hashes in `[low, high]`, of about `expected` entries or fewer.
    #[must_use]
    pub fn new(low: u64, high: u64, load: Load, expected: usize) -> Builder {
        let entries_max = load.entries_max(BLOCKS_MAX);
        let levels = (expected / entries_max + 1).ilog2() + SPARE_LEVELS;
        let mut map = KeyMap::new(low, high, load);
        map.segments.clear();
        Builder {
            map,
            depth_max: u8::try_from(levels.clamp(LEVELS_MIN, LEVELS_MAX)).unwrap_or(0),
            entries_max,
            start: Some(0),
            pending: Vec::with_capacity(entries_max + 1),
            nested: None,
            last: None,
        }
    }

    /// Adds an entry. False, and nothing is added, when its hash is not greater than the one
    /// before or lies outside the range.
    #[inline]
    pub fn push(&mut self, hash: u64, value: u64) -> bool {
        assert!(value != ABSENT, "the value u64::MAX marks empty places");
        if self.last.is_some_and(|last| last >= hash) || !self.map.range.contains(hash) {
            return false;
        }
        self.last = Some(hash);
        self.map.len += 1;
        if self.nested.is_some() && self.nests(hash, value) {
            return true;
        }
        self.pending.push((hash, value));
        if self.pending.len() > self.entries_max {
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
        let rises = entries.is_sorted_by(|a, b| a.0 < b.0)
            && self.last.is_none_or(|before| before < first.0);
        if !rises || !self.map.range.contains(first.0) || !self.map.range.contains(last.0) {
            return false;
        }
        let absent = entries.iter().any(|entry| entry.1 == ABSENT);
        assert!(!absent, "the value u64::MAX marks empty places");
        self.last = Some(last.0);
        self.map.len += entries.len();
        while let Some((&(hash, value), rest)) = entries.split_first() {
            if self.nested.is_some() && self.nests(hash, value) {
                entries = rest;
                continue;
            }
            let room = self.entries_max + 1 - self.pending.len();
            let (now, later) = entries.split_at(room.min(entries.len()));
            self.pending.extend_from_slice(now);
            entries = later;
            if self.pending.len() > self.entries_max {
                self.settle(false);
            }
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
        while let Some(start) = self.start {
            if !all && self.pending.len() <= self.entries_max {
                return;
            }
            let first = match start {
                0 => 0,
                _ => u8::try_from(64 - start.trailing_zeros()).unwrap_or(self.depth_max),
            };
            if !(first..=self.depth_max).any(|depth| self.add_segment(start, depth, all)) {
                self.start_nested(start, all);
            }
        }
    }

    /// How many of the entries lie before a position.
    fn count_before(&self, end: Option<u64>) -> usize {
        let range = &self.map.range;
        end.map_or(self.pending.len(), |end| {
            self.pending.partition_point(|x| range.position(x.0) < end)
        })
    }

    /// Adds the segment of this depth, unless entries are missing or too many for it.
    fn add_segment(&mut self, start: u64, depth: u8, all: bool) -> bool {
        let end = end_of(start, depth);
        let count = self.count_before(end);
        if count > self.entries_max || (count == self.pending.len() && !all) {
            return false;
        }
        let mut segment = Segment {
            depth,
            ..Segment::default()
        };
        let blocks = self.map.load.blocks_for(count);
        if !segment.lay_out(
            &mut self.map.pool,
            &self.pending[..count],
            blocks,
            &self.map.range,
        ) {
            return false;
        }
        self.map.segments.push(segment);
        self.pending.drain(..count);
        self.start = end;
        true
    }

    /// Starts a map where not even the smallest segment holds its entries; ends it if no more
    /// can come.
    fn start_nested(&mut self, start: u64, all: bool) {
        let end = end_of(start, self.depth_max);
        let prefix = (start >> 1) >> (63 - self.depth_max);
        let mut map = self.map.part(prefix, self.depth_max);
        let count = self.count_before(end);
        for (hash, value) in self.pending.drain(..count) {
            map.insert(hash, value);
        }
        self.nested = Some((map, end));
        if all || !self.pending.is_empty() {
            self.close_nested();
        }
    }

    /// Adds an entry to the nested map if it lies there; otherwise that map is complete.
    fn nests(&mut self, hash: u64, value: u64) -> bool {
        let position = self.map.range.position(hash);
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
            self.map.segments.push(Segment {
                nested: Some(Box::new(map)),
                depth: self.depth_max,
                ..Segment::default()
            });
            self.start = end;
        }
    }
}
