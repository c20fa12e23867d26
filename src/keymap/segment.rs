//! How do the entries of one segment lie? Without gaps, in blocks: sorted ones with a table of buckets, then those that
//! came last.
//!
//! A new entry goes to the end, where a tag in the header says which bucket it is of. When [`TAIL_MAX`] are there they
//! are sorted in: a segment is copied once for eight entries, and not half of it for each.

use super::entry::{ClassBytes, Form, Narrow, Packing, REMAINDER_BITS, Wide};
use super::pool::{BLOCK_ENTRIES, Block, NONE, Pool, Pools};
use super::range::Range;
use super::tags::{TAG_BITS, TAIL_MAX, Tag, Tags};
use crate::pages::prefetch;

/// Most entries of a segment: where a bucket ends is a number of 8 bits.
pub(super) const ENTRIES_MAX: usize = 255;
const BLOCKS_MAX: usize = ENTRIES_MAX.div_ceil(BLOCK_ENTRIES);
const BUCKET_BITS: u32 = 6;
const BUCKETS: usize = 1 << BUCKET_BITS;

/// What the entries of a segment are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Wide,
    Narrow(Packing),
    /// A map of its own, where the directory of the map above may not grow: `blocks[0]` is its
    /// place among the nested maps.
    Nested,
}

/// The leaf of the map: the entries that share `depth` top bits of the position.
#[derive(Debug)]
pub(super) struct Segment {
    /// Where the sorted entries of each bucket end, after a zero; buckets go by the next bits of the position.
    ends: [u8; BUCKETS + 1],
    /// Of the entries behind the sorted ones: fewer than [`TAIL_MAX`].
    tags: Tags,
    pub(super) depth: u8,
    pub(super) kind: Kind,
    /// Numbers in the pool of the entries' form; those that hold entries come first, then [`NONE`].
    pub(super) blocks: [u32; BLOCKS_MAX],
}

const _: () = assert!(size_of::<Segment>() == 140 && BUCKET_BITS <= TAG_BITS);

pub(super) enum Insertion {
    /// The hash was there; it has the new value.
    Found(u64),
    Added,
    /// There are [`ENTRIES_MAX`] entries.
    Full,
}

/// Entries of a block that a probe compares: always so many, since a guess of the processor that
/// proves wrong costs more.
const PROBED: usize = 4;

/// Where in a block the entry of the remainder is, among those in `[from, to)`, if a probe sees it.
#[inline]
fn probe<F: Form>(block: &Block<F>, (from, to): (usize, usize), remainder: u64) -> Option<usize> {
    let first = from.min(BLOCK_ENTRIES - PROBED);
    let mut found = 0u32;
    for i in 0..PROBED {
        found |= u32::from(F::remainder(&block[first + i]) == remainder) << i;
    }
    let inside = (u32::MAX << from) & !(u32::MAX << to.min(BLOCK_ENTRIES));
    found = (found << first) & inside;
    (found != 0).then(|| found.trailing_zeros() as usize)
}

/// Whether a probe sees all entries in `[from, to)`.
#[inline]
fn is_probed((from, to): (usize, usize)) -> bool {
    to <= from.min(BLOCK_ENTRIES - PROBED) + PROBED
}

/// The bucket of a position in a segment of this depth.
#[inline]
fn bucket_of(depth: u8, position: u64) -> usize {
    (((position << depth) >> (64 - BUCKET_BITS)) % BUCKETS as u64) as usize
}

#[inline]
fn prefetch_line_of<T>(item: &T) {
    prefetch(std::slice::from_ref(item));
}

impl Segment {
    /// One without entries.
    pub(super) fn new(depth: u8) -> Segment {
        Segment {
            ends: [0; BUCKETS + 1],
            tags: Tags::default(),
            depth,
            kind: Kind::Wide,
            blocks: [NONE; BLOCKS_MAX],
        }
    }

    pub(super) fn nested(depth: u8, place: u32) -> Segment {
        let mut segment = Segment::new(depth);
        segment.kind = Kind::Nested;
        segment.blocks[0] = place;
        segment
    }

    /// The number of sorted entries: the tail begins there.
    #[inline]
    fn sorted(&self) -> usize {
        usize::from(self.ends[BUCKETS])
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.sorted() + self.tags.len()
    }

    #[inline]
    fn bucket(&self, position: u64) -> usize {
        bucket_of(self.depth, position)
    }

    /// Where the sorted entries of a bucket begin and end.
    #[inline]
    fn bounds(&self, bucket: usize) -> (usize, usize) {
        let (start, end) = (self.ends[bucket], self.ends[bucket + 1]);
        (usize::from(start), usize::from(end))
    }

    #[inline]
    fn piece<'a, F: Form>(
        &self,
        pool: &'a Pool<F>,
        block: usize,
        from: usize,
        to: usize,
    ) -> &'a [F::Entry] {
        match pool.get(self.blocks[block % BLOCKS_MAX]) {
            Some(block) => &block[from..to.min(BLOCK_ENTRIES)],
            None => &[],
        }
    }

    /// Announces the entries that a probe compares.
    #[inline]
    pub(super) fn announce<F: Form>(&self, pool: &Pool<F>, position: u64) {
        let bucket = self.bucket(position);
        let start = usize::from(self.ends[bucket]);
        if let Some(block) = pool.get(self.blocks[start / BLOCK_ENTRIES]) {
            let first = (start % BLOCK_ENTRIES).min(BLOCK_ENTRIES - PROBED);
            prefetch_line_of(&block[first]);
            prefetch_line_of(&block[first + PROBED - 1]);
        }
    }

    /// Announces where a new entry goes, if there is a block for it.
    #[inline]
    pub(super) fn announce_end<F: Form>(&self, pool: &Pool<F>) {
        let end = self.len();
        if let Some(block) = pool.get(self.blocks[end / BLOCK_ENTRIES]) {
            prefetch_line_of(&block[end % BLOCK_ENTRIES]);
        }
    }

    /// Where the entry of the remainder is.
    #[inline]
    fn locate<F: Form>(&self, pool: &Pool<F>, position: u64, remainder: u64) -> Option<usize> {
        let (start, end) = self.bounds(self.bucket(position));
        let base = start - start % BLOCK_ENTRIES;
        let block = pool.get(self.blocks[start / BLOCK_ENTRIES])?;
        let bounds = (start - base, end - base);
        match probe::<F>(block, bounds, remainder) {
            Some(i) => Some(base + i),
            None if is_probed(bounds) => self.locate_in_tail(pool, position, remainder),
            None => self
                .locate_in_bucket(pool, position, remainder)
                .or_else(|| self.locate_in_tail(pool, position, remainder)),
        }
    }

    /// Where among the sorted entries the one of the remainder is.
    fn locate_in_bucket<F: Form>(
        &self,
        pool: &Pool<F>,
        position: u64,
        remainder: u64,
    ) -> Option<usize> {
        let (mut at, end) = self.bounds(self.bucket(position));
        while at < end {
            let from = at % BLOCK_ENTRIES;
            let piece = self.piece(pool, at / BLOCK_ENTRIES, from, from + end - at);
            for entry in piece {
                let other = F::remainder(entry);
                if other >= remainder {
                    return (other == remainder).then_some(at);
                }
                at += 1;
            }
            if piece.is_empty() {
                break;
            }
        }
        None
    }

    /// Where among the last entries the one of the remainder is.
    #[inline]
    fn locate_in_tail<F: Form>(
        &self,
        pool: &Pool<F>,
        position: u64,
        remainder: u64,
    ) -> Option<usize> {
        if self.tags.is_empty() {
            return None;
        }
        let places = self.tags.places(Tag::of(self.depth, position));
        let mut all = places.map(|place| self.sorted() + place);
        all.find(|at| {
            self.entry(pool, *at)
                .is_some_and(|entry| F::remainder(entry) == remainder)
        })
    }

    #[inline]
    fn entry<'a, F: Form>(&self, pool: &'a Pool<F>, at: usize) -> Option<&'a F::Entry> {
        let block = pool.get(self.blocks[at / BLOCK_ENTRIES])?;
        Some(&block[at % BLOCK_ENTRIES])
    }

    /// The value of an offset and its position.
    #[inline]
    pub(super) fn get<F: Form>(
        &self,
        pool: &Pool<F>,
        packing: Packing,
        (position, offset): (u64, u64),
    ) -> Option<u64> {
        let at = self.locate(pool, position, offset & F::REMAINDER)?;
        let entry = self.entry(pool, at)?;
        Some(F::value(entry, packing))
    }

    /// Sets a value that fits the packing.
    #[inline]
    pub(super) fn insert<F: Form>(
        &mut self,
        pool: &mut Pool<F>,
        packing: Packing,
        (position, offset): (u64, u64),
        value: u64,
    ) -> Insertion {
        let remainder = offset & F::REMAINDER;
        if let Some(at) = self.locate(pool, position, remainder)
            && let Some(block) = pool.get_mut(self.blocks[at / BLOCK_ENTRIES])
        {
            let entry = &mut block[at % BLOCK_ENTRIES];
            let old = F::value(entry, packing);
            *entry = F::new(remainder, value, packing);
            return Insertion::Found(old);
        }
        if self.len() == ENTRIES_MAX {
            return Insertion::Full;
        }
        let at = self.len();
        if at.is_multiple_of(BLOCK_ENTRIES) {
            self.blocks[at / BLOCK_ENTRIES] = pool.take();
        }
        if let Some(block) = pool.get_mut(self.blocks[at / BLOCK_ENTRIES]) {
            block[at % BLOCK_ENTRIES] = F::new(remainder, value, packing);
        }
        self.tags.push(Tag::of(self.depth, position));
        if self.tags.len() == TAIL_MAX {
            self.sort_in(pool);
        }
        Insertion::Added
    }

    /// Sorts the tail in.
    fn sort_in<F: Form>(&mut self, pool: &mut Pool<F>) {
        let (sorted, len) = (self.sorted(), self.len());
        for number in &self.blocks[..len.div_ceil(BLOCK_ENTRIES)] {
            pool.get(*number).into_iter().for_each(prefetch_line_of);
        }
        let mut all = [F::ZERO; ENTRIES_MAX];
        for (some, number) in all[..len].chunks_mut(BLOCK_ENTRIES).zip(&self.blocks) {
            if let Some(block) = pool.get(*number) {
                some.copy_from_slice(&block[..some.len()]);
            }
        }
        let buckets = self.tags.buckets(BUCKET_BITS);
        let mut tail = [(0, F::ZERO); TAIL_MAX];
        for (target, found) in tail
            .iter_mut()
            .zip(buckets.zip(all[sorted..].iter().copied()))
        {
            *target = found;
        }
        let tail = &mut tail[..len - sorted];
        tail.sort_unstable_by_key(|(bucket, entry)| (*bucket, F::remainder(entry)));
        // From the last one on: what is behind it moves once, by as many places as are left to fill.
        let mut end = sorted;
        for (before, (bucket, entry)) in tail.iter().enumerate().rev() {
            let (first, last) = self.bounds(*bucket);
            let own = &all[first..last.min(end)];
            let at = first + own.partition_point(|x| F::remainder(x) < F::remainder(entry));
            all.copy_within(at..end, at + before + 1);
            all[at + before] = *entry;
            end = at;
        }
        for (bucket, _) in tail {
            self.ends[*bucket + 1..]
                .iter_mut()
                .for_each(|end| *end += 1);
        }
        self.tags = Tags::default();
        let blocks = all[..len].chunks(BLOCK_ENTRIES).zip(&self.blocks);
        for (some, number) in blocks.skip(end / BLOCK_ENTRIES) {
            if let Some(block) = pool.get_mut(*number) {
                block[..some.len()].copy_from_slice(some);
            }
        }
    }

    pub(super) fn remove<F: Form>(
        &mut self,
        pool: &mut Pool<F>,
        packing: Packing,
        (position, offset): (u64, u64),
    ) -> Option<u64> {
        let at = self.locate(pool, position, offset & F::REMAINDER)?;
        let old = match at.checked_sub(self.sorted()) {
            Some(place) => {
                // The last one takes its place.
                let end = self.sorted() + self.tags.len() - 1;
                let last = *self.entry(pool, end)?;
                self.tags.swap_remove(place);
                let block = pool.get_mut(self.blocks[at / BLOCK_ENTRIES])?;
                std::mem::replace(&mut block[at % BLOCK_ENTRIES], last)
            }
            None => {
                let old = self.shift_out(pool, at)?;
                let bucket = self.bucket(position);
                self.ends[bucket + 1..].iter_mut().for_each(|end| *end -= 1);
                old
            }
        };
        if self.len().is_multiple_of(BLOCK_ENTRIES) {
            pool.free(&mut self.blocks[self.len() / BLOCK_ENTRIES]);
        }
        Some(F::value(&old, packing))
    }

    /// Takes the entry at `at` out, and moves those behind it down.
    fn shift_out<F: Form>(&self, pool: &mut Pool<F>, at: usize) -> Option<F::Entry> {
        let last = self.len() - 1;
        let first = at / BLOCK_ENTRIES;
        let mut old = F::ZERO;
        for (i, number) in self
            .blocks
            .iter()
            .enumerate()
            .take(last / BLOCK_ENTRIES + 1)
            .rev()
        {
            if i < first {
                break;
            }
            let block = pool.get_mut(*number)?;
            let from = if i == first { at % BLOCK_ENTRIES } else { 0 };
            let to = (last - i * BLOCK_ENTRIES).min(BLOCK_ENTRIES - 1);
            let out = block[from];
            block.copy_within(from + 1..to + 1, from);
            if i < last / BLOCK_ENTRIES {
                block[to] = old;
            }
            old = out;
        }
        Some(old)
    }

    /// Changes the class of one entry; false if there is none.
    #[inline]
    pub(super) fn set_class<F: Form>(
        &self,
        pool: &mut Pool<F>,
        (position, offset): (u64, u64),
        class: u8,
    ) -> bool {
        let Some(at) = self.locate(pool, position, offset & F::REMAINDER) else {
            return false;
        };
        if let Some(block) = pool.get_mut(self.blocks[at / BLOCK_ENTRIES]) {
            F::set_class(&mut block[at % BLOCK_ENTRIES], class);
        }
        true
    }

    /// Announces all entries.
    pub(super) fn announce_all(&self, pools: &Pools) {
        for number in &self.blocks[..self.len().div_ceil(BLOCK_ENTRIES)] {
            match self.kind {
                Kind::Nested => {}
                Kind::Wide => pools
                    .wide
                    .get(*number)
                    .into_iter()
                    .for_each(prefetch_line_of),
                Kind::Narrow(_) => pools
                    .narrow
                    .get(*number)
                    .into_iter()
                    .for_each(prefetch_line_of),
            }
        }
    }

    /// Replaces the classes of all entries.
    pub(super) fn replace_classes<F: Form>(&self, pool: &mut Pool<F>, classes: &ClassBytes) {
        for number in &self.blocks[..self.len().div_ceil(BLOCK_ENTRIES)] {
            if let Some(block) = pool.get_mut(*number) {
                // What is behind the last entry is arbitrary, and stays so.
                block
                    .iter_mut()
                    .for_each(|entry| classes.replace::<F>(entry));
            }
        }
    }

    /// Adds the entries, as offset and value, to those of `entries`; `prefix`: of the segment.
    pub(super) fn read(
        &self,
        pools: &Pools,
        range: &Range,
        prefix: u64,
        entries: &mut Vec<(u64, u64)>,
    ) {
        match self.kind {
            Kind::Nested => {}
            Kind::Wide => self.read_form(&pools.wide, Packing::default(), (range, prefix), entries),
            Kind::Narrow(packing) => {
                self.read_form(&pools.narrow, packing, (range, prefix), entries);
            }
        }
    }

    fn read_form<F: Form>(
        &self,
        pool: &Pool<F>,
        packing: Packing,
        (range, prefix): (&Range, u64),
        entries: &mut Vec<(u64, u64)>,
    ) {
        let first = (prefix << 1) << (63 - self.depth);
        let bucket_shift = 64 - BUCKET_BITS - u32::from(self.depth);
        let read = |bucket: usize, at: usize| {
            let position = first | (bucket as u64) << bucket_shift;
            let high = (position >> range.shift) & !F::REMAINDER;
            let entry = self.entry(pool, at)?;
            Some((high | F::remainder(entry), F::value(entry, packing)))
        };
        let before = entries.len();
        for bucket in 0..BUCKETS {
            let (start, end) = self.bounds(bucket);
            entries.extend((start..end).filter_map(|at| read(bucket, at)));
        }
        let tail = self.tags.buckets(BUCKET_BITS).zip(self.sorted()..);
        for last in tail.filter_map(|(bucket, at)| read(bucket, at)) {
            let at = entries[before..].partition_point(|entry| entry.0 < last.0);
            entries.insert(before + at, last);
        }
    }

    /// Gives the blocks back; the segment has no entries then.
    pub(super) fn free(&mut self, pools: &mut Pools) {
        for number in self.blocks.iter_mut().take_while(|x| **x != NONE) {
            match self.kind {
                Kind::Nested => {}
                Kind::Wide => pools.wide.free(number),
                Kind::Narrow(_) => pools.narrow.free(number),
            }
        }
        self.ends = [0; BUCKETS + 1];
        self.tags = Tags::default();
    }

    /// Replaces the entries by these, at most [`ENTRIES_MAX`], in the form that they and `values`
    /// fit: bits of values that are to come. They rise; each has a number from which its offset is the
    /// distance to `base`.
    pub(super) fn lay_out(
        &mut self,
        pools: &mut Pools,
        range: &Range,
        (base, entries): (u64, &[(u64, u64)]),
        values: u64,
    ) {
        self.free(pools);
        let known = u32::from(self.depth) + BUCKET_BITS + range.shift;
        let all = entries.iter().fold(values, |all, x| all | x.1);
        match Packing::of(all).filter(|_| known >= 64 - REMAINDER_BITS) {
            Some(packing) => {
                self.kind = Kind::Narrow(packing);
                self.fill::<Narrow>(&mut pools.narrow, packing, range, (base, entries));
            }
            None => {
                self.kind = Kind::Wide;
                self.fill::<Wide>(&mut pools.wide, Packing::default(), range, (base, entries));
            }
        }
    }

    fn fill<F: Form>(
        &mut self,
        pool: &mut Pool<F>,
        packing: Packing,
        range: &Range,
        (base, entries): (u64, &[(u64, u64)]),
    ) {
        let (depth, mut ends, mut next) = (self.depth, [0; BUCKETS + 1], 0);
        for (entries, number) in entries.chunks(BLOCK_ENTRIES).zip(&mut self.blocks) {
            *number = pool.take();
            let Some(block) = pool.get_mut(*number) else {
                return;
            };
            for (target, (hash, value)) in block.iter_mut().zip(entries) {
                let offset = hash - base;
                F::write(target, offset & F::REMAINDER, *value, packing);
                next += 1;
                // The last one of a bucket says where it ends.
                ends[bucket_of(depth, range.position(offset)) + 1] = next;
            }
        }
        let mut last = 0;
        for (end, found) in self.ends.iter_mut().zip(ends) {
            last = found.max(last);
            *end = last;
        }
    }
}
