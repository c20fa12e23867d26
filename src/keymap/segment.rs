//! How do the entries of one segment lie? Sorted places with homes that rise with the hash.

use super::pool::{BLOCK_PLACES, NONE, Place, Pool};
use super::range::{Range, scale};
use super::{ABSENT, KeyMap, Load};
use crate::units::narrow;

pub(super) const BLOCKS_MAX: usize = 16;
/// Places after the last home, for the run that ends the segment.
const SLACK_PLACES: usize = 24;

const _: () = assert!(BLOCK_PLACES * BLOCKS_MAX == 2048 && SLACK_PLACES < BLOCK_PLACES);

/// The leaf of the map: sorted places of the hashes that share `depth` top bits of the position.
#[derive(Debug)]
pub(super) struct Segment {
    /// Numbers in the map's pool; those that hold places come first, then [`NONE`].
    pub(super) blocks: [u32; BLOCKS_MAX],
    /// Set where the directory of the map above may not grow; then there are no blocks.
    pub(super) nested: Option<Box<KeyMap>>,
    pub(super) places: u16,
    pub(super) entries: u16,
    pub(super) depth: u8,
}

impl Default for Segment {
    fn default() -> Segment {
        Segment {
            blocks: [NONE; BLOCKS_MAX],
            nested: None,
            places: 0,
            entries: 0,
            depth: 0,
        }
    }
}

pub(super) enum Insertion {
    /// The hash was there; it has the new value unless the old one was to be kept.
    Found(u64),
    Added,
    /// Too many entries for the load.
    Full,
    /// The last run reaches the end of the segment.
    Overflow,
}

pub(super) fn homes(places: usize) -> usize {
    places - SLACK_PLACES.min(places / 16)
}

/// The value of the hash or [`ABSENT`], if these places tell.
#[inline]
pub(super) fn search(places: &[Place], hash: u64) -> Option<u64> {
    for (other, value) in places {
        if *value == ABSENT || *other > hash {
            return Some(ABSENT);
        }
        if *other == hash {
            return Some(*value);
        }
    }
    None
}

impl Segment {
    /// The home of a position in a segment of this depth.
    #[inline]
    pub(super) fn home(&self, position: u64) -> usize {
        scale(position << self.depth, homes(usize::from(self.places)))
    }

    #[inline]
    fn block_of(&self, place: usize) -> u32 {
        self.blocks[(place / BLOCK_PLACES) % BLOCKS_MAX]
    }

    /// The places from this one to the end of its block; none where the segment has none.
    #[inline]
    pub(super) fn rest<'a>(&self, pool: &'a Pool, place: usize) -> &'a [Place] {
        match pool.get(self.block_of(place)) {
            Some(block) => &block[place % BLOCK_PLACES..],
            None => &[],
        }
    }

    #[inline]
    pub(super) fn at(&self, pool: &Pool, place: usize) -> Place {
        match pool.get(self.block_of(place)) {
            Some(block) => block[place % BLOCK_PLACES],
            None => (0, ABSENT),
        }
    }

    #[inline]
    fn put(&self, pool: &mut Pool, place: usize, entry: Place) {
        if let Some(block) = pool.get_mut(self.block_of(place)) {
            block[place % BLOCK_PLACES] = entry;
        }
    }

    /// The place of the hash, or the place where it would go (may be past the end).
    #[inline]
    pub(super) fn find(&self, pool: &Pool, hash: u64, home: usize) -> Result<usize, usize> {
        let places = usize::from(self.places);
        let mut place = home;
        while place < places {
            let Some(block) = pool.get(self.block_of(place)) else {
                return Err(place);
            };
            for (other, value) in &block[place % BLOCK_PLACES..] {
                if *value == ABSENT || *other > hash {
                    return Err(place);
                }
                if *other == hash {
                    return Ok(place);
                }
                place += 1;
            }
        }
        Err(place)
    }

    /// The first empty place from `place` on.
    fn first_empty(&self, pool: &Pool, mut place: usize) -> Option<usize> {
        while let Some(number) = self.blocks.get(place / BLOCK_PLACES) {
            let block = pool.get(*number)?;
            let rest = &block[place % BLOCK_PLACES..];
            if let Some(i) = rest.iter().position(|x| x.1 == ABSENT) {
                return Some(place + i);
            }
            place += rest.len();
        }
        None
    }

    /// Puts an entry at `place` and moves what was there and behind it up to the place `end`.
    fn shift_in(&self, pool: &mut Pool, place: usize, end: usize, entry: Place) {
        let (first, last) = (place / BLOCK_PLACES, end / BLOCK_PLACES);
        let mut carried = entry;
        for number in first..=last {
            let Some(block) = pool.get_mut(self.blocks[number]) else {
                return;
            };
            let from = if number == first {
                place % BLOCK_PLACES
            } else {
                0
            };
            let to = match number == last {
                true => end % BLOCK_PLACES,
                false => BLOCK_PLACES - 1,
            };
            let out = block[to];
            block.copy_within(from..to, from + 1);
            block[from] = carried;
            carried = out;
        }
    }

    #[inline]
    pub(super) fn get(&self, pool: &Pool, hash: u64, position: u64) -> u64 {
        if let Some(map) = &self.nested {
            return map.get(hash).unwrap_or(ABSENT);
        }
        let mut place = self.home(position);
        loop {
            let rest = self.rest(pool, place);
            match search(rest, hash) {
                Some(value) => return value,
                None if rest.is_empty() => return ABSENT,
                None => place += rest.len(),
            }
            if place >= usize::from(self.places) {
                return ABSENT;
            }
        }
    }

    pub(super) fn insert(
        &mut self,
        pool: &mut Pool,
        (hash, value): Place,
        position: u64,
        load: Load,
        keeps: &mut impl FnMut(u64) -> bool,
    ) -> Insertion {
        let place = match self.find(pool, hash, self.home(position)) {
            Ok(place) => {
                let old = self.at(pool, place).1;
                if !keeps(old) {
                    self.put(pool, place, (hash, value));
                }
                return Insertion::Found(old);
            }
            Err(place) => place,
        };
        let places = usize::from(self.places);
        if usize::from(self.entries) + 1 > load.entries_max(places / BLOCK_PLACES) {
            return Insertion::Full;
        }
        let Some(end) = self.first_empty(pool, place) else {
            return Insertion::Overflow;
        };
        self.shift_in(pool, place, end, (hash, value));
        self.entries += 1;
        Insertion::Added
    }

    pub(super) fn remove(&mut self, pool: &mut Pool, hash: u64, range: &Range) -> Option<u64> {
        let mut place = self
            .find(pool, hash, self.home(range.position(hash)))
            .ok()?;
        let old = self.at(pool, place).1;
        let places = usize::from(self.places);
        while place + 1 < places {
            let next = self.at(pool, place + 1);
            if next.1 == ABSENT || self.home(range.position(next.0)) > place {
                break;
            }
            self.put(pool, place, next);
            place += 1;
        }
        self.put(pool, place, (0, ABSENT));
        self.entries -= 1;
        Some(old)
    }

    /// The entries. The segment is empty then, and keeps its blocks until it is laid out or freed.
    pub(super) fn take_entries(&mut self, pool: &Pool) -> Vec<Place> {
        let mut entries = Vec::with_capacity(usize::from(self.entries));
        for block in self.blocks.iter().map_while(|x| pool.get(*x)) {
            entries.extend(block.iter().filter(|x| x.1 != ABSENT));
        }
        self.places = 0;
        self.entries = 0;
        entries
    }

    /// Gives the blocks back.
    pub(super) fn free(&mut self, pool: &mut Pool) {
        self.resize(pool, 0);
    }

    fn resize(&mut self, pool: &mut Pool, blocks: usize) {
        for (i, number) in self.blocks.iter_mut().enumerate() {
            if i < blocks && *number == NONE {
                *number = pool.take();
            } else if i >= blocks && *number != NONE {
                pool.free(number);
            }
        }
        self.places = narrow(blocks * BLOCK_PLACES);
    }

    /// Lays the entries out in `blocks` blocks, or in more where the last run needs them. False if
    /// they do not fit into any number; the segment is empty then.
    pub(super) fn lay_out(
        &mut self,
        pool: &mut Pool,
        entries: &[Place],
        blocks: usize,
        range: &Range,
    ) -> bool {
        for blocks in blocks..=BLOCKS_MAX {
            self.resize(pool, blocks);
            if self.fill(pool, entries, range) {
                self.entries = narrow(entries.len());
                return true;
            }
        }
        self.free(pool);
        false
    }

    /// Writes the entries, and nothing else, to the blocks. False if they do not fit.
    fn fill(&self, pool: &mut Pool, entries: &[Place], range: &Range) -> bool {
        let mut entries = entries.iter();
        let mut entry = entries.next();
        let mut next = 0;
        for (i, number) in self.blocks.iter().enumerate() {
            let Some(block) = pool.get_mut(*number) else {
                break;
            };
            block.fill((0, ABSENT));
            while let Some(found) = entry {
                let place = self.home(range.position(found.0)).max(next);
                if place / BLOCK_PLACES > i {
                    break;
                }
                block[place % BLOCK_PLACES] = *found;
                next = place + 1;
                entry = entries.next();
            }
        }
        entry.is_none()
    }
}
