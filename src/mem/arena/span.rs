//! How do rows of one size lie together? Densely, in a span, with a bit for each.
//!
//! - The spans of a class that have free rows and are not closing stand in a chain. Rows are taken from
//!   its first span until that is full.
//! - A span begins with its first row in use and ends with its last: none is empty for long.

use super::{Arena, Class};
use crate::units::narrow;

/// No unit.
pub(super) const END: u32 = u32::MAX;
/// No class: no span begins here.
pub(super) const NO_CLASS: u16 = u16::MAX;
/// Of all units a span has at most one in so many, unless one row needs more.
const SPAN_SHARE: usize = 8;
/// The share of a span that may be left over at its end is one in so many.
const REST_SHARE: u64 = 100;

/// A run of units that rows of one class lie in.
#[derive(Debug)]
pub(super) struct Span {
    pub class: u16,
    /// No row is placed here, and those here are to be moved.
    pub closing: bool,
    /// Rows that it has room for.
    pub rows: u32,
    pub used: u32,
    /// No word of `bits` before this one has a row free.
    hint: u32,
    /// Its neighbours in the chain.
    next: u32,
    previous: u32,
    /// Which rows are used; those beyond the last are.
    pub bits: Vec<u64>,
}

impl Default for Span {
    fn default() -> Span {
        Span {
            class: NO_CLASS,
            closing: false,
            rows: 0,
            used: 0,
            hint: 0,
            next: END,
            previous: END,
            bits: Vec::new(),
        }
    }
}

impl Span {
    fn begin(&mut self, class: Class, rows: u32) {
        let mut bits = std::mem::take(&mut self.bits);
        bits.clear();
        bits.resize(rows.div_ceil(64) as usize, 0);
        if let Some(last) = bits.last_mut()
            && !rows.is_multiple_of(64)
        {
            *last = u64::MAX << (rows % 64);
        }
        *self = Span {
            class: class.0,
            rows,
            bits,
            ..Span::default()
        };
    }

    #[inline]
    pub fn is_full(&self) -> bool {
        self.used == self.rows
    }

    /// Takes a row where one is free.
    #[inline]
    pub fn take(&mut self) -> u32 {
        let mut word = self.hint;
        while self.bits[word as usize] == u64::MAX {
            word += 1;
        }
        let bits = &mut self.bits[word as usize];
        let bit = bits.trailing_ones();
        *bits |= 1 << bit;
        self.hint = word;
        self.used += 1;
        word * 64 + bit
    }

    /// Frees a row.
    #[inline]
    pub fn free(&mut self, number: u32) {
        let bits = &mut self.bits[(number / 64) as usize];
        let bit = 1 << (number % 64);
        assert!(*bits & bit != 0, "a row is freed once");
        *bits &= !bit;
        self.hint = self.hint.min(number / 64);
        self.used -= 1;
    }
}

/// The rows of a class.
#[derive(Debug)]
pub(super) struct Rows {
    /// f32s from one to the next.
    pub stride: usize,
    /// The power of two of units that a span has.
    pub order: usize,
    /// Rows of a span.
    pub of_span: u32,
    /// What a span takes of the budget.
    pub cost: u64,
    /// The first span with free rows.
    pub open: u32,
    /// Free rows outside of closing spans.
    pub free: usize,
    /// Rows in closing spans.
    pub closing: usize,
}

impl Rows {
    pub fn new(stride: usize, unit_bytes: u64, units: usize, meta_bytes: u64) -> Rows {
        let row_bytes = (stride * size_of::<f32>()) as u64;
        let order = span_order(row_bytes, unit_bytes, units);
        let bytes = unit_bytes << order;
        let of_span: u32 = narrow(bytes / row_bytes);
        let mut rows = Rows {
            stride,
            order,
            of_span,
            cost: 0,
            open: END,
            free: 0,
            closing: 0,
        };
        rows.set_meta(unit_bytes, meta_bytes);
        rows
    }

    /// Says what is kept beside each row.
    pub fn set_meta(&mut self, unit_bytes: u64, meta_bytes: u64) {
        self.cost = (unit_bytes << self.order) + u64::from(self.of_span) * meta_bytes;
    }

    /// Free rows that those in closing spans do not need.
    pub fn free_for_others(&self) -> usize {
        self.free.saturating_sub(self.closing)
    }
}

/// How many units a span of such rows has, as a power of two.
fn span_order(row_bytes: u64, unit_bytes: u64, units: usize) -> usize {
    let least = row_bytes.div_ceil(unit_bytes).next_power_of_two().ilog2();
    let most = (units / SPAN_SHARE).checked_ilog2().unwrap_or(0).max(least);
    let rest = |order: &u32| (unit_bytes << order) % row_bytes;
    let enough = |order: &u32| rest(order) * REST_SHARE <= unit_bytes << order;
    // The rest as it would be in the greatest span, to compare them.
    let scaled = |order: &u32| u128::from(rest(order)) << (most - order);
    let mut orders = least..=most;
    let order = orders
        .clone()
        .find(enough)
        .or(orders.by_ref().min_by_key(scaled));
    order.unwrap_or(least) as usize
}

impl Arena {
    /// Puts a span into its class's chain, behind the one that rows are taken from.
    pub(super) fn link(&mut self, unit: u32) {
        let class = usize::from(self.spans[unit as usize].class);
        let first = self.classes[class].open;
        let (mut previous, mut next) = (END, END);
        if first == END {
            self.classes[class].open = unit;
        } else {
            previous = first;
            next = std::mem::replace(&mut self.spans[first as usize].next, unit);
        }
        if next != END {
            self.spans[next as usize].previous = unit;
        }
        let span = &mut self.spans[unit as usize];
        (span.previous, span.next) = (previous, next);
    }

    /// Takes a span out of the chain.
    #[cold]
    pub(super) fn unlink(&mut self, unit: u32) {
        let span = &mut self.spans[unit as usize];
        let (class, previous, next) = (span.class, span.previous, span.next);
        (span.previous, span.next) = (END, END);
        if previous == END {
            self.classes[usize::from(class)].open = next;
        } else {
            self.spans[previous as usize].next = next;
        }
        if next != END {
            self.spans[next as usize].previous = previous;
        }
    }

    /// The spans of the chain of a class.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn chain(&self, class: Class) -> impl Iterator<Item = u32> {
        let there = |unit: u32| (unit != END).then_some(unit);
        let next = move |unit: &u32| there(self.spans[*unit as usize].next);
        std::iter::successors(there(self.rows(class).open), next)
    }

    /// Begins a span, if the budget and the free units allow.
    #[cold]
    pub(super) fn add_span(&mut self, class: Class) -> bool {
        let rows = self.rows(class);
        let (cost, order, of_span) = (rows.cost, rows.order, rows.of_span);
        if self.bytes_used() + cost > self.bytes_max {
            return false;
        }
        let Some(first) = self.take_window(class).or_else(|| self.units.take(order)) else {
            return false;
        };
        self.spans[first].begin(class, of_span);
        self.classes[class.index()].free += of_span as usize;
        self.spans_bytes += cost;
        self.spans_rows += of_span as usize;
        self.link(narrow(first));
        self.trim();
        true
    }

    /// Ends a span that no row is in.
    pub(super) fn drop_span(&mut self, unit: u32) {
        let span = &self.spans[unit as usize];
        let (class, closing) = (Class(span.class), span.closing);
        if !closing {
            self.unlink(unit);
            self.classes[class.index()].free -= self.rows_per_span(class);
        }
        let span = &mut self.spans[unit as usize];
        (span.class, span.closing) = (NO_CLASS, false);
        let rows = self.rows(class);
        let (cost, order, of_span) = (rows.cost, rows.order, rows.of_span);
        self.spans_bytes -= cost;
        self.spans_rows -= of_span as usize;
        self.units.give_back(unit as usize, order);
        // Where the budget was exceeded it has room for none of them.
        self.trim();
    }
}
