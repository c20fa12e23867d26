//! Where is the entry of a hash? An exact, ordered map from mixed keys to u64 values.
//!
//! - Level 1 is a directory by the top bits of the hash's position in the map's range; level 2 are
//!   segments of at most 2048 places, split when full (extendible hashing).
//! - In a segment the places are sorted by hash and an entry never lies before its home, which
//!   rises with the hash; between home and entry there is no empty place. So a miss ends at the
//!   first empty place or greater hash, and the whole map is iterated in hash order for free.
//! - There are no reserved hashes. The value [`ABSENT`] is reserved: it marks an empty place.
//! - Segments grow by blocks of 128 places, which come from a pool of the map's own: neither the
//!   blocks nor what others allocate between them leave holes, and `bytes()` is what the process
//!   really holds.
//! - Hashes chosen to collide (a dense run) cost directory levels, never more than 11: where the
//!   directory would outgrow the entries, a segment becomes a map of its own.

mod build;
mod pool;
mod range;
mod segment;
#[cfg(test)]
mod tests;

pub use self::build::Builder;
use self::pool::Place;
use self::pool::{BLOCK_PLACES, Pool};
use self::range::Range;
use self::segment::{BLOCKS_MAX, Insertion, Segment, search};
use crate::pages::prefetch;
use crate::units::{narrow, to_usize};

/// The value of an empty place; can't be stored.
pub const ABSENT: u64 = u64::MAX;

/// Directory entries allowed per segment before a segment becomes a map of its own.
const DIRECTORY_PER_SEGMENT: usize = 16;
/// Places that most look-ups end within.
const ANNOUNCED_PLACES: usize = 8;
/// Lookups of a batch whose cache misses overlap.
const GROUP: usize = 16;

/// How full the segments are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// 82 % to 92 %, for the index: at most 20 bytes per key.
    Dense,
    /// 50 % to 75 %: fewer probes for twice the memory.
    #[cfg(any(test, feature = "sim"))]
    Fast,
}

impl Load {
    fn percent_max(self) -> usize {
        match self {
            Load::Dense => 92,
            #[cfg(any(test, feature = "sim"))]
            Load::Fast => 75,
        }
    }

    fn entries_max(self, blocks: usize) -> usize {
        blocks * BLOCK_PLACES * self.percent_max() / 100
    }

    fn blocks_for(self, entries: usize) -> usize {
        let places = (entries * 100).div_ceil(self.percent_max());
        places.div_ceil(BLOCK_PLACES).min(BLOCKS_MAX)
    }

    fn grown(self, blocks: usize) -> usize {
        let step = match self {
            Load::Dense => blocks / 8,
            #[cfg(any(test, feature = "sim"))]
            Load::Fast => blocks / 2,
        };
        (blocks + step.max(1)).min(BLOCKS_MAX)
    }
}

/// A map from mixed hashes of one range to u64 values; see the module.
#[derive(Debug)]
pub struct KeyMap {
    range: Range,
    load: Load,
    depth: u8,
    len: usize,
    directory: Vec<u32>,
    segments: Vec<Segment>,
    pool: Pool,
}

impl KeyMap {
    /// An empty map for hashes in `[low, high]`; a hash outside is never found.
    #[must_use]
    pub fn new(low: u64, high: u64, load: Load) -> KeyMap {
        KeyMap {
            range: Range::new(low, high),
            load,
            depth: 0,
            len: 0,
            directory: vec![0],
            segments: vec![Segment::default()],
            pool: Pool::default(),
        }
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no entry.
    #[must_use]
    #[cfg(any(test, feature = "sim"))]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All memory of the map, the allocator's share included.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let nested = self.segments.iter().filter_map(|s| s.nested.as_ref());
        size_of::<KeyMap>()
            + self.directory.capacity() * size_of::<u32>()
            + self.segments.capacity() * size_of::<Segment>()
            + self.pool.bytes()
            + nested.map(|map| map.bytes()).sum::<usize>()
    }

    /// Where in the directory a position lies.
    #[inline]
    fn entry_of(&self, position: u64) -> usize {
        to_usize((position >> 1) >> (63 - self.depth))
    }

    #[inline]
    fn segment_of(&self, position: u64) -> usize {
        self.directory[self.entry_of(position)] as usize
    }

    /// The value of a hash.
    #[inline]
    #[must_use]
    pub fn get(&self, hash: u64) -> Option<u64> {
        if !self.range.contains(hash) {
            return None;
        }
        let position = self.range.position(hash);
        let value = self.segments[self.segment_of(position)].get(&self.pool, hash, position);
        (value != ABSENT).then_some(value)
    }

    /// Announces to the processor that the entry of a hash is needed soon.
    #[inline]
    pub fn prefetch_line(&self, hash: u64) {
        if self.range.contains(hash) {
            let position = self.range.position(hash);
            let segment = &self.segments[self.segment_of(position)];
            let rest = segment.rest(&self.pool, segment.home(position));
            prefetch(&rest[..rest.len().min(ANNOUNCED_PLACES)]);
        }
    }

    /// Writes the value of each hash, [`ABSENT`] for those that are not there.
    ///
    /// # Cost
    /// The hashes go in groups; each level of a group is touched before the next level is needed,
    /// so that the cache misses of a group overlap.
    pub fn get_batch(&self, hashes: &[u64], values: &mut [u64]) {
        assert_eq!(hashes.len(), values.len(), "one value per hash");
        for (hashes, values) in hashes.chunks(GROUP).zip(values.chunks_mut(GROUP)) {
            let mut segments = [0; GROUP];
            let mut positions = [0; GROUP];
            for (i, hash) in hashes.iter().enumerate() {
                let inside = self.range.contains(*hash);
                positions[i] = if inside {
                    self.range.position(*hash)
                } else {
                    0
                };
                segments[i] = self.segment_of(positions[i]);
            }
            let mut rests: [&[Place]; GROUP] = [&[]; GROUP];
            let mut firsts = [(0, ABSENT); GROUP];
            for i in 0..hashes.len() {
                let segment = &self.segments[segments[i]];
                rests[i] = segment.rest(&self.pool, segment.home(positions[i]));
                firsts[i] = rests[i].first().copied().unwrap_or((0, ABSENT));
            }
            for (i, hash) in hashes.iter().enumerate() {
                values[i] = if firsts[i].0 == *hash && firsts[i].1 != ABSENT {
                    firsts[i].1
                } else if !self.range.contains(*hash) {
                    ABSENT
                } else if let Some(value) = search(rests[i], *hash) {
                    value
                } else {
                    self.segments[segments[i]].get(&self.pool, *hash, positions[i])
                };
            }
        }
    }

    /// Sets the value of a hash and returns the one before.
    pub fn insert(&mut self, hash: u64, value: u64) -> Option<u64> {
        self.insert_unless(hash, value, &mut |_| false)
    }

    /// Sets the value of a hash unless `keeps` wants the one before; returns the one before.
    pub fn insert_unless(
        &mut self,
        hash: u64,
        value: u64,
        keeps: &mut impl FnMut(u64) -> bool,
    ) -> Option<u64> {
        assert!(value != ABSENT, "the value u64::MAX marks empty places");
        assert!(
            self.range.contains(hash),
            "a hash must lie in its map's range"
        );
        let position = self.range.position(hash);
        loop {
            let number = self.segment_of(position);
            let segment = &mut self.segments[number];
            if let Some(map) = &mut segment.nested {
                let old = map.insert_unless(hash, value, keeps);
                self.len += usize::from(old.is_none());
                return old;
            }
            match segment.insert(&mut self.pool, (hash, value), position, self.load, keeps) {
                Insertion::Found(old) => return Some(old),
                Insertion::Added => {
                    self.len += 1;
                    return None;
                }
                Insertion::Full => self.make_room(number),
                Insertion::Overflow => {
                    if usize::from(segment.entries) * 2 < usize::from(segment.places) {
                        self.split(number);
                    } else {
                        self.make_room(number);
                    }
                }
            }
        }
    }

    /// Removes a hash and returns its value.
    pub fn remove(&mut self, hash: u64) -> Option<u64> {
        if !self.range.contains(hash) {
            return None;
        }
        let number = self.segment_of(self.range.position(hash));
        let segment = &mut self.segments[number];
        if let Some(map) = &mut segment.nested {
            let old = map.remove(hash);
            self.len -= usize::from(old.is_some());
            return old;
        }
        let old = segment.remove(&mut self.pool, hash, &self.range)?;
        self.len -= 1;
        let entries = usize::from(segment.entries);
        let blocks = usize::from(segment.places) / BLOCK_PLACES;
        if entries * 2 < self.load.entries_max(blocks) && self.load.blocks_for(entries) < blocks {
            let entries = segment.take_entries(&self.pool);
            let blocks = self.load.blocks_for(entries.len());
            if !segment.lay_out(&mut self.pool, &entries, blocks, &self.range) {
                self.split_entries(number, &entries);
            }
        }
        Some(old)
    }

    fn make_room(&mut self, number: usize) {
        let segment = &mut self.segments[number];
        let blocks = usize::from(segment.places) / BLOCK_PLACES;
        if blocks == BLOCKS_MAX {
            return self.split(number);
        }
        let entries = segment.take_entries(&self.pool);
        if !segment.lay_out(
            &mut self.pool,
            &entries,
            self.load.grown(blocks),
            &self.range,
        ) {
            self.split_entries(number, &entries);
        }
    }

    fn split(&mut self, number: usize) {
        let entries = self.segments[number].take_entries(&self.pool);
        self.split_entries(number, &entries);
    }

    /// Replaces a segment by two halves of its range, or by a map of its own.
    fn split_entries(&mut self, number: usize, entries: &[Place]) {
        let depth = self.segments[number].depth;
        let Some(first) = entries.first() else { return };
        let shift = 63 - u32::from(depth);
        let prefix = (self.range.position(first.0) >> 1) >> shift;
        if depth == self.depth {
            let most = (self.segments.len() * DIRECTORY_PER_SEGMENT).max(64);
            if self.directory.len() * 2 > most {
                return self.nest(number, prefix, entries);
            }
            self.directory = self.directory.iter().flat_map(|x| [*x, *x]).collect();
            self.depth += 1;
        }
        let upper = narrow(self.segments.len());
        if self.segments.len() == self.segments.capacity() {
            self.segments.reserve_exact(self.segments.len() / 8 + 1);
        }
        self.segments.push(Segment {
            depth: depth + 1,
            ..Segment::default()
        });
        self.segments[number].depth = depth + 1;
        let run = 1usize << (self.depth - depth - 1);
        let start = to_usize(prefix) * 2 * run + run;
        self.directory[start..start + run].fill(upper);
        let middle = ((prefix << 1) | 1) << shift;
        let cut = entries.partition_point(|x| self.range.position(x.0) < middle);
        for (number, half) in [(number, &entries[..cut]), (upper as usize, &entries[cut..])] {
            let blocks = self.load.blocks_for(half.len());
            if !self.segments[number].lay_out(&mut self.pool, half, blocks, &self.range) {
                self.split_entries(number, half);
            }
        }
    }

    /// An empty map over the part of the range with these top bits of the position.
    fn part(&self, prefix: u64, depth: u8) -> KeyMap {
        let shift = 64 - u32::from(depth);
        let low = self.range.first_offset(prefix << shift);
        let high = match prefix + 1 {
            end if end == 1 << depth => self.range.span,
            end => self.range.first_offset(end << shift) - 1,
        };
        KeyMap::new(self.range.low + low, self.range.low + high, self.load)
    }

    /// Makes a segment a map of its own, over the segment's part of the range.
    fn nest(&mut self, number: usize, prefix: u64, entries: &[Place]) {
        self.segments[number].free(&mut self.pool);
        let mut map = self.part(prefix, self.depth);
        for (hash, value) in entries {
            map.insert(*hash, *value);
        }
        self.segments[number].nested = Some(Box::new(map));
    }

    /// All entries in hash order.
    pub fn iter_ordered(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        Entries {
            stack: vec![(self, 0, 0)],
        }
    }

    /// The entries with a hash in `[low, high]`, in hash order.
    #[cfg(any(test, feature = "sim"))]
    pub fn range(&self, low: u64, high: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let inside = low.clamp(self.range.low, self.range.low + self.range.span);
        let mut entry = self.entry_of(self.range.position(inside));
        let depth = self.segments[self.directory[entry] as usize].depth;
        entry &= !((1 << (self.depth - depth)) - 1);
        Entries {
            stack: vec![(self, entry, 0)],
        }
        .skip_while(move |x| x.0 < low)
        .take_while(move |x| x.0 <= high)
    }
}

/// Walks (map, directory entry, place); nested maps go on top of the stack.
struct Entries<'a> {
    stack: Vec<(&'a KeyMap, usize, usize)>,
}

impl Iterator for Entries<'_> {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        while let Some((map, entry, place)) = self.stack.last_mut() {
            let Some(number) = map.directory.get(*entry) else {
                self.stack.pop();
                continue;
            };
            let segment = &map.segments[*number as usize];
            let step = 1usize << (map.depth - segment.depth);
            if let Some(nested) = &segment.nested {
                *entry += step;
                self.stack.push((nested, 0, 0));
                continue;
            }
            while *place < usize::from(segment.places) {
                let found = segment.at(&map.pool, *place);
                *place += 1;
                if found.1 != ABSENT {
                    return Some(found);
                }
            }
            *entry += step;
            *place = 0;
        }
        None
    }
}
