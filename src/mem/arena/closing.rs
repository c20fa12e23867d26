//! How do units become free for another class? Spans are closed, and their rows moved.
//!
//! - A span is closed only where its rows have room elsewhere: in free rows of their class, or in spans
//!   that the budget and the free units allow beside those that there are.
//! - For a span of several units a window is reserved: its free units go to no other span.
//! - The owner moves the rows of closing spans, one after the other: take, copy, free.

use std::ops::Range;

use super::span::NO_CLASS;
use super::{Arena, Class, Place};
use crate::units::narrow;

/// What is in a window.
struct Content {
    /// Bytes of the rows that would have to be moved.
    bytes: u64,
    /// First units of its spans, those excepted that are closing already.
    spans: Vec<usize>,
}

impl Arena {
    /// Whether the span of a row is closing: the row is to be moved. Of [`Place::NONE`] it is not.
    #[inline]
    pub fn is_closing(&self, place: Place) -> bool {
        let unit = (place.0 >> self.shift) as usize;
        self.spans.get(unit).is_some_and(|span| span.closing)
    }

    /// Rows that are to be moved.
    #[inline]
    pub fn closing_rows(&self) -> usize {
        self.closing
    }

    /// Whether a window is reserved.
    pub fn has_reserved(&self) -> bool {
        !self.reserved.is_empty()
    }

    /// First units of the spans that a class has, closing ones excepted.
    fn open_spans(&self, class: Class) -> impl Iterator<Item = usize> {
        let spans = self.spans.iter().enumerate();
        let open = move |(_, span): &(usize, &super::Span)| span.class == class.0 && !span.closing;
        spans.filter(open).map(|(unit, _)| unit)
    }

    fn close(&mut self, unit: usize) {
        let span = &mut self.spans[unit];
        span.closing = true;
        let (class, used, free) = (span.class, span.used as usize, span.rows - span.used);
        let rows = &mut self.classes[usize::from(class)];
        rows.free -= free as usize;
        rows.closing += used;
        self.closing += used;
        if free > 0 {
            self.unlink(narrow(unit));
        }
    }

    /// Closes the emptiest span of a class, if its rows fit into free rows of other spans; else, or where
    /// there is none, false.
    pub fn close_emptiest(&mut self, class: Class) -> bool {
        let used = |unit: &usize| self.spans[*unit].used;
        let Some(unit) = self.open_spans(class).min_by_key(used) else {
            return false;
        };
        let (span, rows) = (&self.spans[unit], self.rows(class));
        let elsewhere = rows.free - (span.rows - span.used) as usize;
        if rows.closing + span.used as usize > elsewhere {
            return false;
        }
        self.close(unit);
        true
    }

    /// Makes room for one more of so many spans of a class, where the budget allows it and there are fewer
    /// runs of free units: reserves a window, the one that is cheapest to empty, and closes its spans. False
    /// where there are as many, or no window can be emptied.
    pub fn close_for(&mut self, class: Class, spans: usize) -> bool {
        let (order, cost) = (self.rows(class).order, self.cost(class));
        let waiting = |(class, _): &(Class, usize)| self.cost(*class);
        let waiting: u64 = self.reserved.iter().map(waiting).sum();
        let own = self.reserved.iter().filter(|(of, _)| *of == class).count();
        let runs = self.units.runs(order);
        let needed = waiting + (runs as u64 + 1).saturating_mul(cost);
        if runs + own >= spans || self.bytes_used().saturating_add(needed) > self.bytes_max {
            return false;
        }
        let windows = self.units.windows(order);
        let mut windows: Vec<(u64, Range<usize>, Vec<usize>)> = windows
            .filter(|window| !self.units.is_free(window.clone()))
            .filter_map(|window| {
                let content = self.content(window.clone(), order)?;
                Some((content.bytes, window, content.spans))
            })
            .collect();
        windows.sort_by_key(|(bytes, window, _)| (*bytes, window.start));
        let mut fitting = windows.into_iter();
        let Some((_, window, spans)) = fitting.find(|(_, window, spans)| self.fits(window, spans))
        else {
            return false;
        };
        self.reserved.push((class, window.start));
        self.units.reserve(window);
        spans.into_iter().for_each(|unit| self.close(unit));
        true
    }

    /// What is in a window of an order; none where a part of it can't be had.
    fn content(&self, window: Range<usize>, order: usize) -> Option<Content> {
        if self.units.is_reserved(window.clone()) {
            return None;
        }
        let mut content = Content {
            bytes: 0,
            spans: Vec::new(),
        };
        let mut unit = window.start;
        while unit < window.end {
            let span = &self.spans[unit];
            if span.class == NO_CLASS {
                if !self.units.is_free(unit..unit + 1) {
                    return None;
                }
                unit += 1;
                continue;
            }
            let rows = &self.classes[usize::from(span.class)];
            if rows.order > order {
                return None;
            }
            if !span.closing {
                content.spans.push(unit);
            }
            content.bytes += u64::from(span.used) * rows.stride as u64;
            unit += 1 << rows.order;
        }
        Some(content)
    }

    /// Whether the rows of the spans of a window fit elsewhere, beside all that are to be moved already.
    fn fits(&self, window: &Range<usize>, spans: &[usize]) -> bool {
        let mut orders = vec![0; usize::BITS as usize];
        let mut cost = 0;
        for class in self.classes() {
            let rows = self.rows(class);
            let inside = spans.iter().map(|unit| &self.spans[*unit]);
            let inside = inside.filter(|span| span.class == class.0);
            let (mut moved, mut free) = (rows.closing, rows.free);
            for span in inside {
                moved += span.used as usize;
                free -= (span.rows - span.used) as usize;
            }
            let more = moved.saturating_sub(free).div_ceil(rows.of_span as usize);
            orders[rows.order] += more;
            cost += more as u64 * rows.cost;
        }
        let blocks = self.units.blocks_in(window.clone());
        // Runs of an order that the spans need, those in greater ones included.
        let mut needed = 0;
        for order in (0..orders.len()).rev() {
            needed = 2 * needed + orders[order];
            let inside = blocks.iter().filter(|(_, of)| *of >= order);
            let inside: usize = inside.map(|(_, of)| 1 << (of - order)).sum();
            if needed + inside > self.units.runs(order) {
                return false;
            }
        }
        self.bytes_used() + cost <= self.bytes_max
    }

    /// Whether a window reserved for a class is free.
    fn is_ready(&self, class: Class, first: usize) -> bool {
        self.units
            .is_free(first..first + (1 << self.rows(class).order))
    }

    /// How many windows reserved for a class are free.
    pub(super) fn windows_ready(&self, class: Class) -> usize {
        let ready = |(of, first): &&(Class, usize)| *of == class && self.is_ready(class, *first);
        self.reserved.iter().filter(ready).count()
    }

    /// Takes a window reserved for a class, if one is free: its first unit.
    pub(super) fn take_window(&mut self, class: Class) -> Option<usize> {
        let ready = |(of, first): &(Class, usize)| *of == class && self.is_ready(class, *first);
        let i = self.reserved.iter().position(ready)?;
        let (_, first) = self.reserved.swap_remove(i);
        self.units.take_reserved(first, self.rows(class).order);
        Some(first)
    }

    /// Gives closings up: spans that are not yet empty take rows again, and no window is reserved.
    pub fn reopen(&mut self) {
        for unit in 0..self.spans.len() {
            let span = &mut self.spans[unit];
            if !std::mem::take(&mut span.closing) {
                continue;
            }
            let (class, used, free) = (span.class, span.used as usize, span.rows - span.used);
            let rows = &mut self.classes[usize::from(class)];
            rows.free += free as usize;
            rows.closing -= used;
            self.closing -= used;
            if free > 0 {
                self.link(narrow(unit));
            }
        }
        for (class, first) in std::mem::take(&mut self.reserved) {
            let units = 1 << self.rows(class).order;
            self.units.unreserve(first..first + units);
        }
    }

    /// The classes that have at least a span's free rows, which are not needed by rows that are to be moved:
    /// those with most free bytes first.
    pub fn donors(&self, except: Class) -> Vec<Class> {
        let free = |class: &Class| self.rows(*class).free_for_others();
        let donor = |class: &Class| *class != except && free(class) >= self.rows_per_span(*class);
        let mut donors: Vec<Class> = self.classes().filter(donor).collect();
        donors.sort_by_key(|class| std::cmp::Reverse(free(class) * self.rows(*class).stride));
        donors
    }
}
