//! Which units are free, and in what runs? A buddy system.
//!
//! - A block is a power of two of free units, its number of units its *order*'s power, aligned to it
//!   and inside one region. Two halves of a block never stand as two blocks.
//! - A run is taken from the least block that has it: greater runs stay as long as they can. Of blocks
//!   of one order one that was touched goes first.
//! - Units of a reserved window are in no block, whether a span lies there or not.

use std::ops::Range;

/// A set of numbers.
#[derive(Debug, Default)]
struct Bits(Vec<u64>);

impl Bits {
    fn grow(&mut self, count: usize) {
        self.0.resize(count.div_ceil(64), 0);
    }

    fn has(&self, i: usize) -> bool {
        self.0
            .get(i / 64)
            .is_some_and(|word| word >> (i % 64) & 1 != 0)
    }

    fn add(&mut self, i: usize) {
        self.0[i / 64] |= 1 << (i % 64);
    }

    fn remove(&mut self, i: usize) {
        self.0[i / 64] &= !(1 << (i % 64));
    }

    fn iter(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().flat_map(|(i, word)| {
            let rest = |bits: &u64| Some(bits & (bits - 1)).filter(|bits| *bits != 0);
            let words = std::iter::successors(Some(*word).filter(|bits| *bits != 0), rest);
            words.map(move |bits| i * 64 + bits.trailing_zeros() as usize)
        })
    }
}

/// The units of all regions.
#[derive(Debug, Default)]
pub(super) struct Units {
    count: usize,
    /// The first units of the regions.
    regions: Vec<usize>,
    /// By order: the blocks, each by the number of its first unit over its number of units.
    free: Vec<Bits>,
    /// By order: how many.
    blocks: Vec<usize>,
    /// In spans.
    taken: Bits,
    reserved: Bits,
    /// With pages of memory behind them.
    touched: Bits,
    touched_count: usize,
    /// Touched ones that are in no span.
    touched_free: usize,
}

impl Units {
    pub fn count(&self) -> usize {
        self.count
    }

    pub fn touched(&self) -> usize {
        self.touched_count
    }

    pub fn touched_free(&self) -> usize {
        self.touched_free
    }

    /// Adds a region of so many units, all of them free.
    pub fn grow(&mut self, units: usize) {
        let first = self.count;
        self.count += units;
        self.regions.push(first);
        let orders = self.count.checked_ilog2().map_or(0, |log| log as usize + 1);
        self.free.resize_with(orders, Bits::default);
        self.blocks.resize(orders, 0);
        for (order, blocks) in self.free.iter_mut().enumerate() {
            blocks.grow((self.count >> order) + 1);
        }
        for bits in [&mut self.taken, &mut self.reserved, &mut self.touched] {
            bits.grow(self.count);
        }
        (first..self.count).for_each(|unit| self.put(unit, 0));
    }

    /// Whether units lie in one region.
    fn in_one_region(&self, range: &Range<usize>) -> bool {
        let inside = |first: &usize| range.start < *first && *first < range.end;
        range.end <= self.count && !self.regions.iter().any(inside)
    }

    /// The aligned windows of an order, free or not.
    pub fn windows(&self, order: usize) -> impl Iterator<Item = Range<usize>> {
        let window = move |i: usize| i << order..(i + 1) << order;
        let all = (0..self.count >> order).map(window);
        all.filter(|window| self.in_one_region(window))
    }

    pub fn is_one_region(&self) -> bool {
        self.regions.len() == 1
    }

    /// How many aligned windows of an order there are, free or not.
    pub fn window_count(&self, order: usize) -> usize {
        let ends = self.regions.iter().skip(1).chain([&self.count]);
        let inside = |(first, end): (&usize, &usize)| {
            let before = first.div_ceil(1 << order);
            (end >> order).saturating_sub(before)
        };
        self.regions.iter().zip(ends).map(inside).sum()
    }

    /// How many runs of an order could be taken.
    pub fn runs(&self, order: usize) -> usize {
        let greater = self.blocks.iter().skip(order).enumerate();
        greater.map(|(more, blocks)| blocks << more).sum()
    }

    fn unlist(&mut self, first: usize, order: usize) {
        self.free[order].remove(first >> order);
        self.blocks[order] -= 1;
    }

    /// Makes units free, together with the free ones around them.
    fn put(&mut self, first: usize, order: usize) {
        let (mut first, mut order) = (first, order);
        while order + 1 < self.free.len() {
            let buddy = first ^ (1 << order);
            let both = first.min(buddy)..first.max(buddy) + (1 << order);
            if !self.free[order].has(buddy >> order) || !self.in_one_region(&both) {
                break;
            }
            self.unlist(buddy, order);
            first = both.start;
            order += 1;
        }
        self.free[order].add(first >> order);
        self.blocks[order] += 1;
    }

    /// The order of the block that begins at a unit.
    fn block_at(&self, unit: usize) -> Option<usize> {
        let begins = |order: &usize| {
            unit.trailing_zeros() as usize >= *order && self.free[*order].has(unit >> order)
        };
        (0..self.free.len()).find(begins)
    }

    /// Takes a run of an order for a span: its first unit.
    pub fn take(&mut self, order: usize) -> Option<usize> {
        let least = (order..self.free.len()).find(|order| self.blocks[*order] > 0)?;
        let mut blocks = self.free[least].iter().map(|i| i << least);
        let any = blocks.next()?;
        let touched = std::iter::once(any)
            .chain(blocks)
            .find(|first| self.touched.has(*first));
        let first = touched.unwrap_or(any);
        self.unlist(first, least);
        for half in (order..least).rev() {
            self.free[half].add((first >> half) + 1);
            self.blocks[half] += 1;
        }
        self.enter(first, order);
        Some(first)
    }

    /// Notes that a span begins here.
    fn enter(&mut self, first: usize, order: usize) {
        for unit in first..first + (1 << order) {
            self.taken.add(unit);
            if self.touched.has(unit) {
                self.touched_free -= 1;
            } else {
                self.touched.add(unit);
                self.touched_count += 1;
            }
        }
    }

    /// Takes back the units of a span.
    pub fn give_back(&mut self, first: usize, order: usize) {
        for unit in first..first + (1 << order) {
            self.taken.remove(unit);
        }
        self.touched_free += 1 << order;
        if !self.reserved.has(first) {
            self.put(first, order);
        }
    }

    /// Takes the free units of a window out of their blocks: a whole block in it, each.
    pub fn reserve(&mut self, window: Range<usize>) {
        for (first, order) in self.blocks_in(window.clone()) {
            self.unlist(first, order);
        }
        window.for_each(|unit| self.reserved.add(unit));
    }

    /// The window is as any other again.
    pub fn unreserve(&mut self, window: Range<usize>) {
        for unit in window {
            self.reserved.remove(unit);
            if !self.taken.has(unit) {
                self.put(unit, 0);
            }
        }
    }

    /// Takes a reserved window, which is free, for a span.
    pub fn take_reserved(&mut self, first: usize, order: usize) {
        for unit in first..first + (1 << order) {
            self.reserved.remove(unit);
        }
        self.enter(first, order);
    }

    /// Whether no span lies in a window.
    pub fn is_free(&self, mut window: Range<usize>) -> bool {
        !window.any(|unit| self.taken.has(unit))
    }

    /// Whether a part of a window is reserved.
    pub fn is_reserved(&self, mut window: Range<usize>) -> bool {
        window.any(|unit| self.reserved.has(unit))
    }

    /// The blocks inside a window, which lies in no block: their first units and orders.
    pub fn blocks_in(&self, window: Range<usize>) -> Vec<(usize, usize)> {
        let mut blocks = Vec::new();
        let mut unit = window.start;
        while unit < window.end {
            match self.block_at(unit) {
                Some(order) => {
                    blocks.push((unit, order));
                    unit += 1 << order;
                }
                None => unit += 1,
            }
        }
        blocks
    }

    /// The last touched unit that is in no span.
    pub fn last_touched_free(&self) -> Option<usize> {
        let words = self.touched.0.iter().zip(&self.taken.0).enumerate().rev();
        let mut words = words.map(|(i, (touched, taken))| (i, touched & !taken));
        let (i, word) = words.find(|(_, word)| *word != 0)?;
        Some(i * 64 + word.ilog2() as usize)
    }

    /// Notes that the pages of a unit that is in no span were given back.
    pub fn untouch(&mut self, unit: usize) {
        self.touched.remove(unit);
        self.touched_count -= 1;
        self.touched_free -= 1;
    }
}

#[cfg(any(test, feature = "sim"))]
impl Units {
    /// Recounts, given the units of each span.
    ///
    /// # Panics
    /// Where something differs.
    pub fn check(&self, spans: impl Iterator<Item = Range<usize>>) {
        let mut owners = vec![0; self.count];
        for span in spans {
            assert!(self.in_one_region(&span), "a span lies in one region");
            span.for_each(|unit| owners[unit] += 1);
        }
        let taken = (0..self.count).filter(|unit| owners[*unit] > 0);
        assert!(taken.eq(self.taken.iter()), "units in spans");
        self.reserved.iter().for_each(|unit| owners[unit] = 1);
        for (order, blocks) in self.free.iter().enumerate() {
            assert_eq!(
                blocks.iter().count(),
                self.blocks[order],
                "blocks of order {order}"
            );
            for i in blocks.iter() {
                let block = i << order..(i + 1) << order;
                assert!(self.in_one_region(&block), "a block lies in one region");
                block.for_each(|unit| owners[unit] += 1);
                let both = (i & !1) << order..((i & !1) + 2) << order;
                let halves = blocks.has(i ^ 1) && self.in_one_region(&both);
                assert!(!halves, "two halves of a block of order {}", order + 1);
            }
        }
        assert!(
            owners.iter().all(|owners| *owners == 1),
            "each unit is somewhere, once"
        );
        let touched = self.touched.iter();
        let touched_free = touched.filter(|unit| !self.taken.has(*unit)).count();
        assert_eq!(touched_free, self.touched_free, "touched units in no span");
        assert_eq!(
            self.touched.iter().count(),
            self.touched_count,
            "touched units"
        );
    }

    /// Compares what is reserved with the windows.
    ///
    /// # Panics
    /// Where they differ.
    pub fn check_reserved(&self, windows: impl Iterator<Item = Range<usize>>) {
        let mut units: Vec<usize> = windows.flatten().collect();
        units.sort_unstable();
        assert!(units.into_iter().eq(self.reserved.iter()), "reserved units");
    }
}
