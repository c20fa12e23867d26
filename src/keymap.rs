//! Where is the entry of a hash? An exact, ordered map from mixed keys to locations.
//!
//! - Level 1 is a directory by the top bits of the hash's position in the map's range; level 2 are
//!   segments of at most 255 entries, split when full (extendible hashing).
//! - In a segment the entries lie without gaps in blocks of 16, sorted by hash; up to seven that came
//!   last are behind the sorted ones. The next six bits of the position name a bucket; a table says
//!   where each one ends, and a tag which bucket each of the last entries is of.
//! - The bits of the hash that directory and bucket tell are not kept: an entry has 11 bytes, or 16
//!   where a location or the rest of the hash needs more (`entry`). A look-up is always exact.
//! - There are no reserved hashes. Values are locations with a class in bits 35 to 38; bits 32 to 34 are
//!   zero.
//! - Blocks come from a pool of the map's own: neither the blocks nor what others allocate between
//!   them leave holes, and `bytes()` is what the process really holds.
//! - Hashes chosen to collide (a dense run) cost directory levels, never more than 11: where the
//!   directory would outgrow the entries, a segment becomes a map of its own.

mod build;
mod entry;
mod pool;
mod range;
mod segment;
mod tags;
#[cfg(test)]
mod tail_tests;
#[cfg(test)]
mod tests;
mod walk;

pub use self::build::Builder;
pub use self::entry::{CLASS_BITS, CLASS_SHIFT, CLASSES};
use self::entry::{ClassBytes, Packing, SPARE_BITS};
use self::pool::Pools;
use self::range::Range;
use self::segment::{Insertion, Kind, Segment};
use crate::pages::prefetch;
use crate::units::{narrow, to_usize};

/// What a batch of look-ups says of a hash that is not there; can't be stored.
pub const ABSENT: u64 = u64::MAX;

/// Directory entries allowed per segment before a segment becomes a map of its own.
const DIRECTORY_PER_SEGMENT: usize = 16;
/// Directory that every map may have.
const DIRECTORY_MIN: usize = 64;
/// The segments grow by this part of them.
const GROWTH_PART: usize = 16;
/// Look-ups of a batch between those steps of one that may miss the cache.
const AHEAD: usize = 8;

/// Segments between the one that is read and the one whose header is announced.
const SEGMENTS_AHEAD: usize = 4;

/// A map from mixed hashes of one range to locations; see the module.
#[derive(Debug)]
pub struct KeyMap {
    range: Range,
    depth: u8,
    len: usize,
    directory: Vec<u32>,
    segments: Vec<Segment>,
    nested: Vec<KeyMap>,
    pools: Pools,
}

impl KeyMap {
    /// An empty map for hashes in `[low, high]`; a hash outside is never found.
    #[must_use]
    pub fn new(low: u64, high: u64) -> KeyMap {
        KeyMap::over(Range::new(low, high))
    }

    fn over(range: Range) -> KeyMap {
        KeyMap {
            range,
            depth: 0,
            len: 0,
            directory: vec![0],
            segments: vec![Segment::new(0)],
            nested: Vec::new(),
            pools: Pools::default(),
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
        let spare = self.nested.capacity() - self.nested.len();
        size_of::<KeyMap>()
            + self.directory.capacity() * size_of::<u32>()
            + self.segments.capacity() * size_of::<Segment>()
            + self.pools.narrow.bytes()
            + self.pools.wide.bytes()
            + spare * size_of::<KeyMap>()
            + self.nested.iter().map(KeyMap::bytes).sum::<usize>()
    }

    #[inline]
    fn segment_of(&self, position: u64) -> usize {
        self.directory[to_usize((position >> 1) >> (63 - self.depth))] as usize
    }

    /// The value of a hash.
    #[inline]
    #[must_use]
    pub fn get(&self, hash: u64) -> Option<u64> {
        let offset = self.range.offset(hash)?;
        let position = self.range.position(offset);
        self.get_in(&self.segments[self.segment_of(position)], hash, position)
    }

    /// The value of a hash of the range, in its segment.
    #[inline]
    fn get_in(&self, segment: &Segment, hash: u64, position: u64) -> Option<u64> {
        let offset = position >> self.range.shift;
        match segment.kind {
            Kind::Narrow(packing) => segment.get(&self.pools.narrow, packing, (position, offset)),
            Kind::Wide => segment.get(&self.pools.wide, Packing::default(), (position, offset)),
            Kind::Nested => self.nested[segment.blocks[0] as usize].get(hash),
        }
    }

    /// Announces to the processor that [`KeyMap::prefetch_line`] of a hash is called soon.
    #[inline]
    pub fn prefetch_segment(&self, hash: u64) {
        if let Some(offset) = self.range.offset(hash) {
            let segment = self.segment_of(self.range.position(offset));
            prefetch(std::slice::from_ref(&self.segments[segment]));
        }
    }

    /// Announces to the processor that the entry of a hash is needed soon.
    #[inline]
    pub fn prefetch_line(&self, hash: u64) {
        if let Some(offset) = self.range.offset(hash) {
            let position = self.range.position(offset);
            self.announce(&self.segments[self.segment_of(position)], position);
        }
    }

    /// Announces to the processor that a hash is inserted soon: its entry, and where it goes if it is new.
    #[inline]
    pub fn prefetch_place(&self, hash: u64) {
        if let Some(offset) = self.range.offset(hash) {
            let position = self.range.position(offset);
            let segment = &self.segments[self.segment_of(position)];
            self.announce(segment, position);
            match segment.kind {
                Kind::Narrow(_) => segment.announce_end(&self.pools.narrow),
                Kind::Wide => segment.announce_end(&self.pools.wide),
                Kind::Nested => {}
            }
        }
    }

    #[inline]
    fn announce(&self, segment: &Segment, position: u64) {
        match segment.kind {
            Kind::Narrow(_) => segment.announce(&self.pools.narrow, position),
            Kind::Wide => segment.announce(&self.pools.wide, position),
            Kind::Nested => {}
        }
    }

    /// Writes the value of each hash, [`ABSENT`] for those that are not there.
    ///
    /// # Cost
    /// The hashes go in groups; each level of a group is announced before the next level is needed,
    /// so that the cache misses of a group overlap.
    pub fn get_batch(&self, hashes: &[u64], values: &mut [u64]) {
        assert_eq!(hashes.len(), values.len(), "one value per hash");
        for hash in hashes.iter().take(2 * AHEAD) {
            self.prefetch_segment(*hash);
        }
        for hash in hashes.iter().take(AHEAD) {
            self.prefetch_line(*hash);
        }
        for (i, (hash, value)) in hashes.iter().zip(values).enumerate() {
            if let Some(ahead) = hashes.get(i + 2 * AHEAD) {
                self.prefetch_segment(*ahead);
            }
            if let Some(ahead) = hashes.get(i + AHEAD) {
                self.prefetch_line(*ahead);
            }
            *value = self.get(*hash).unwrap_or(ABSENT);
        }
    }

    /// Sets the value of a hash and returns the one before.
    pub fn insert(&mut self, hash: u64, value: u64) -> Option<u64> {
        assert!(value & SPARE_BITS == 0, "a value is a location");
        let Some(offset) = self.range.offset(hash) else {
            unreachable!("a hash must lie in its map's range");
        };
        let position = self.range.position(offset);
        loop {
            let number = self.segment_of(position);
            let segment = &mut self.segments[number];
            let found = match segment.kind {
                Kind::Narrow(packing) if packing.fits(value) => {
                    segment.insert(&mut self.pools.narrow, packing, (position, offset), value)
                }
                Kind::Narrow(_) => {
                    self.widen(number, position, value);
                    continue;
                }
                Kind::Wide => {
                    let pool = &mut self.pools.wide;
                    segment.insert(pool, Packing::default(), (position, offset), value)
                }
                Kind::Nested => {
                    let old = self.nested[segment.blocks[0] as usize].insert(hash, value);
                    self.len += usize::from(old.is_none());
                    return old;
                }
            };
            match found {
                Insertion::Found(old) => return Some(old),
                Insertion::Added => {
                    self.len += 1;
                    return None;
                }
                Insertion::Full => self.split(number, position),
            }
        }
    }

    /// Changes the class of a hash's value; false if the hash is not there.
    pub fn set_class(&mut self, hash: u64, class: u8) -> bool {
        assert!(usize::from(class) < CLASSES, "classes have four bits");
        let Some(offset) = self.range.offset(hash) else {
            return false;
        };
        let place = (self.range.position(offset), offset);
        let segment = &self.segments[self.segment_of(place.0)];
        match segment.kind {
            Kind::Narrow(_) => segment.set_class(&mut self.pools.narrow, place, class),
            Kind::Wide => segment.set_class(&mut self.pools.wide, place, class),
            Kind::Nested => self.nested[segment.blocks[0] as usize].set_class(hash, class),
        }
    }

    /// Replaces the class of each entry by the table's, of about so many entries: of whole segments, from
    /// the one that holds the hash `from` on. Returns where to go on, or that all are done. What is
    /// done in steps that way meets each entry once, however the map changes meanwhile.
    ///
    /// # Cost
    /// Two to four nanoseconds an entry.
    pub fn replace_classes(
        &mut self,
        from: u64,
        entries: usize,
        classes: &[u8; CLASSES],
    ) -> Option<u64> {
        let fit = classes.iter().all(|class| usize::from(*class) < CLASSES);
        assert!(fit, "classes have four bits");
        let (mut left, classes) = (entries, ClassBytes::new(classes));
        self.replace_classes_from(from, &mut left, &classes)
    }

    fn replace_classes_from(
        &mut self,
        from: u64,
        left: &mut usize,
        classes: &ClassBytes,
    ) -> Option<u64> {
        let mut entry = self.entry_of(from);
        while let Some(at) = self.segment_at(entry) {
            if *left == 0 {
                return Some(at.hash);
            }
            self.announce_after(&at);
            let segment = &self.segments[at.number];
            match segment.kind {
                Kind::Narrow(_) => segment.replace_classes(&mut self.pools.narrow, classes),
                Kind::Wide => segment.replace_classes(&mut self.pools.wide, classes),
                Kind::Nested => {
                    let nested = &mut self.nested[segment.blocks[0] as usize];
                    let next = nested.replace_classes_from(from.max(at.hash), left, classes);
                    if next.is_some() {
                        return next;
                    }
                }
            }
            // A segment without entries takes time, too.
            *left = left.saturating_sub(segment.len().max(1));
            entry = at.end;
        }
        None
    }

    /// The first hash of a directory entry; none where it is behind the end of the range.
    fn first_hash(&self, entry: usize) -> Option<u64> {
        let position = ((entry as u64) << 1) << (63 - self.depth);
        let offset = position >> self.range.shift;
        (offset <= self.range.span).then(|| self.range.low + offset)
    }

    /// Removes a hash and returns its value.
    pub fn remove(&mut self, hash: u64) -> Option<u64> {
        let offset = self.range.offset(hash)?;
        let position = self.range.position(offset);
        let number = self.segment_of(position);
        let segment = &mut self.segments[number];
        let place = (position, offset);
        let old = match segment.kind {
            Kind::Narrow(packing) => segment.remove(&mut self.pools.narrow, packing, place),
            Kind::Wide => segment.remove(&mut self.pools.wide, Packing::default(), place),
            Kind::Nested => self.nested[segment.blocks[0] as usize].remove(hash),
        };
        self.len -= usize::from(old.is_some());
        old
    }

    /// The entries of a segment that holds this position, and the top bits that they share.
    fn read(&self, number: usize, position: u64) -> (Vec<(u64, u64)>, u64) {
        let segment = &self.segments[number];
        let prefix = (position >> 1) >> (63 - segment.depth);
        let mut entries = Vec::with_capacity(segment.len());
        segment.read(&self.pools, &self.range, prefix, &mut entries);
        (entries, prefix)
    }

    /// Makes place for a value that does not fit the packing of a segment: another packing, or wide
    /// entries.
    #[cold]
    fn widen(&mut self, number: usize, position: u64, value: u64) {
        let (entries, _) = self.read(number, position);
        self.segments[number].lay_out(&mut self.pools, &self.range, (0, &entries), value);
    }

    /// Replaces a segment by two halves of its range, or by a map of its own.
    #[cold]
    fn split(&mut self, number: usize, position: u64) {
        let (entries, prefix) = self.read(number, position);
        let depth = self.segments[number].depth;
        if depth == self.depth {
            let most = (self.segments.len() * DIRECTORY_PER_SEGMENT).max(DIRECTORY_MIN);
            if self.directory.len() * 2 > most {
                return self.nest(number, prefix, &entries);
            }
            self.directory = self.directory.iter().flat_map(|x| [*x, *x]).collect();
            self.depth += 1;
        }
        let upper = narrow(self.segments.len());
        if self.segments.len() == self.segments.capacity() {
            self.segments
                .reserve_exact(self.segments.len() / GROWTH_PART + 1);
        }
        self.segments.push(Segment::new(depth + 1));
        self.segments[number].depth = depth + 1;
        let run = 1usize << (self.depth - depth - 1);
        let start = to_usize(prefix) * 2 * run + run;
        self.directory[start..start + run].fill(upper);
        let middle = ((prefix << 1) | 1) << (63 - depth);
        let cut = entries.partition_point(|x| self.range.position(x.0) < middle);
        for (number, half) in [(number, &entries[..cut]), (upper as usize, &entries[cut..])] {
            self.segments[number].lay_out(&mut self.pools, &self.range, (0, half), 0);
        }
    }

    /// Makes a segment a map of its own, over the segment's part of the range.
    fn nest(&mut self, number: usize, prefix: u64, entries: &[(u64, u64)]) {
        let mut map = KeyMap::over(self.range.part(prefix, self.depth));
        for (offset, value) in entries {
            map.insert(self.range.low + offset, *value);
        }
        self.segments[number].free(&mut self.pools);
        self.segments[number] = self.adopt(map, self.depth);
    }

    /// A segment that is this map.
    fn adopt(&mut self, map: KeyMap, depth: u8) -> Segment {
        self.nested.reserve_exact(1);
        self.nested.push(map);
        Segment::nested(depth, narrow(self.nested.len() - 1))
    }

    /// All entries in hash order.
    pub fn iter_ordered(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        Entries {
            stack: vec![(self, 0)],
            some: Vec::new(),
            at: 0,
        }
    }
}

/// Walks (map, directory entry); nested maps go on top of the stack.
struct Entries<'a> {
    stack: Vec<(&'a KeyMap, usize)>,
    /// The entries of the last segment, and how many of them are done.
    some: Vec<(u64, u64)>,
    at: usize,
}

impl Iterator for Entries<'_> {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        loop {
            if let Some(found) = self.some.get(self.at) {
                self.at += 1;
                return Some(*found);
            }
            let (map, entry) = self.stack.last_mut()?;
            let map: &KeyMap = map;
            let Some(number) = map.directory.get(*entry) else {
                self.stack.pop();
                continue;
            };
            let segment = &map.segments[*number as usize];
            let spare = map.depth - segment.depth;
            let prefix = (*entry >> spare) as u64;
            *entry += 1 << spare;
            self.some.clear();
            self.at = 0;
            if segment.kind == Kind::Nested {
                self.stack
                    .push((&map.nested[segment.blocks[0] as usize], 0));
                continue;
            }
            segment.read(&map.pools, &map.range, prefix, &mut self.some);
            for entry in &mut self.some {
                entry.0 += map.range.low;
            }
        }
    }
}
