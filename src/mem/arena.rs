//! Where does a row lie, when rows of several sizes share one budget? In a span of its size.
//!
//! - The memory is cut into equal units. A *class* is a row size; its rows lie in *spans*, each a run
//!   of units, as many as leave at most a hundredth of it over.
//! - A [`Place`] says where a row lies: the first unit of its span and its number in it. Rows may be
//!   moved: the arena knows nothing of who keeps their places.
//! - What is in use is within the budget: spans whole, what the owner keeps beside each row that they
//!   have room for, and what it charges.
//! - A span that no row is left in gives its units back, for spans of any class. To that end spans are
//!   closed: no row is placed there, and the owner moves those that are there.
//! - Units that are free keep their pages while the budget has room for them.

#[cfg(any(test, feature = "sim"))]
mod check;
mod closing;
mod memory;
#[cfg(test)]
mod random_tests;
mod span;
#[cfg(test)]
mod tests;
mod units;

use self::memory::Memory;
use self::span::{END, Rows, Span};
use self::units::Units;
use crate::error::{ArgumentError, Error, Result};
use crate::pages::prefetch;
use crate::units::{narrow, to_usize};

/// Bytes that the owner keeps beside each row, until it says otherwise: its state and hash table.
pub(super) const META_ROW_BYTES: u64 = 32;
/// Units of an arena, about.
const UNITS: u64 = 512;
/// Bytes of a unit.
const UNIT_BYTES_MIN: u64 = 4 << 10;
const UNIT_BYTES_MAX: u64 = 2 << 20;
/// The least row, in f32s: shorter ones take as much.
const ROW_F32S_MIN: usize = 4;
/// Bytes of an f32, as a power of two.
const F32_BYTES_LOG: u32 = size_of::<f32>().ilog2();
/// The least row in bytes, as a power of two.
const ROW_BYTES_MIN_LOG: u32 = 4;
/// A region that is added has at least this share of the units that there are.
const GROWTH_SHARE: usize = 16;

/// Where a row lies: 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub(crate) struct Place(u32);

impl Place {
    /// Nowhere.
    pub const NONE: Place = Place(u32::MAX);
}

impl Default for Place {
    fn default() -> Place {
        Place::NONE
    }
}

/// A row size, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Class(u16);

impl Class {
    #[inline]
    fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Memory for rows of several sizes.
#[derive(Debug)]
pub(crate) struct Arena {
    memory: Memory,
    /// f32s of a unit, as a power of two.
    unit_log: u32,
    /// Bits of a place that are the row's number in its span.
    shift: u32,
    /// By first unit; of units that no span begins at they are unused.
    spans: Vec<Span>,
    classes: Vec<Rows>,
    units: Units,
    bytes_max: u64,
    /// What the owner keeps beside each row.
    row_meta_bytes: u64,
    /// What it keeps beside the rows.
    charged: u64,
    /// What it keeps beside them for a while.
    passing: u64,
    /// What the spans cost.
    spans_bytes: u64,
    /// Rows that the spans have room for.
    spans_rows: usize,
    /// Rows in closing spans.
    closing: usize,
    /// Windows that are being emptied, or are empty: for whom, and the first unit.
    reserved: Vec<(Class, usize)>,
}

/// Bytes of a unit, for a budget.
fn unit_bytes(bytes_max: u64) -> u64 {
    let share = (bytes_max / UNITS).clamp(UNIT_BYTES_MIN, UNIT_BYTES_MAX);
    1 << share.ilog2()
}

impl Arena {
    /// An arena of a budget.
    ///
    /// # Errors
    /// `InvalidArgument` where the budget is beyond what places can tell apart, or the system does not
    /// give the memory.
    pub fn new(bytes_max: u64) -> Result<Arena> {
        let bytes = unit_bytes(bytes_max);
        let shift = bytes.ilog2() - ROW_BYTES_MIN_LOG;
        let units = units_of(bytes_max, bytes)?;
        let mut arena = Arena {
            memory: Memory::new(units, bytes)?,
            unit_log: bytes.ilog2() - F32_BYTES_LOG,
            shift,
            spans: Vec::new(),
            classes: Vec::new(),
            units: Units::default(),
            bytes_max,
            row_meta_bytes: META_ROW_BYTES,
            charged: 0,
            passing: 0,
            spans_bytes: 0,
            spans_rows: 0,
            closing: 0,
            reserved: Vec::new(),
        };
        arena.add_units(units);
        Ok(arena)
    }

    fn add_units(&mut self, units: usize) {
        self.units.grow(units);
        self.spans.resize_with(self.units.count(), Span::default);
    }

    fn unit_bytes(&self) -> u64 {
        1 << (self.unit_log + F32_BYTES_LOG)
    }

    /// Changes the budget. A smaller one may be exceeded until enough rows
    /// were freed.
    ///
    /// # Errors
    /// As [`Arena::new`]; nothing is changed then.
    pub fn set_bytes_max(&mut self, bytes_max: u64) -> Result<()> {
        self.grow_for(bytes_max)?;
        self.bytes_max = bytes_max;
        self.trim();
        Ok(())
    }

    /// Sees to it that spans of all classes find a place wherever the budget allows them.
    ///
    /// # Errors
    /// As [`Arena::new`]; nothing is changed then.
    pub fn add_windows(&mut self) -> Result<()> {
        self.grow_for(self.bytes_max)
    }

    /// Adds units where windows of the largest spans hold fewer than a budget has: those at the ends of
    /// regions are in none. Smaller spans fit into what larger ones leave.
    fn grow_for(&mut self, bytes_max: u64) -> Result<()> {
        let (asked, there) = (units_of(bytes_max, self.unit_bytes())?, self.units.count());
        let order = self
            .classes
            .iter()
            .map(|rows| rows.order)
            .max()
            .unwrap_or(0);
        // A first region begins with a window, and no span needs more than the budget.
        let in_windows = match asked <= there && self.units.is_one_region() {
            true => asked,
            false => self.units.window_count(order) << order,
        };
        if asked > in_windows {
            let room = to_usize(places_units_max(self.unit_bytes())) - there;
            let ends = if there == 0 { 0 } else { 2 << order };
            let more = (asked - in_windows + ends)
                .max(there / GROWTH_SHARE)
                .min(room);
            self.memory.grow(more)?;
            self.add_units(more);
        }
        Ok(())
    }

    /// The budget.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// What of the budget is in use.
    #[inline]
    pub fn bytes_used(&self) -> u64 {
        self.spans_bytes + self.charged
    }

    /// Says what the owner keeps beside the rows, and for a while: `passing` is left by the pages of free
    /// units only, rows may have it.
    pub fn charge(&mut self, bytes: u64, passing: u64) {
        self.charged = bytes;
        self.passing = passing;
        self.trim();
    }

    /// Says what the owner keeps beside each row; whether it was something else before.
    pub fn set_row_meta(&mut self, bytes: u64) -> bool {
        let before = std::mem::replace(&mut self.row_meta_bytes, bytes);
        if before == bytes {
            return false;
        }
        let unit_bytes = self.unit_bytes();
        for rows in &mut self.classes {
            rows.set_meta(unit_bytes, bytes);
        }
        let rows = self.spans_rows as u64;
        self.spans_bytes = self.spans_bytes - rows * before + rows * bytes;
        true
    }

    /// What the owner keeps beside each row.
    pub fn row_meta_bytes(&self) -> u64 {
        self.row_meta_bytes
    }

    /// What a row takes of the budget, with its share of what its span leaves over.
    pub fn row_cost(&self, class: Class) -> u64 {
        self.cost(class).div_ceil(self.rows_per_span(class) as u64)
    }

    /// What the owner keeps beside the rows.
    pub fn charged(&self) -> u64 {
        self.charged
    }

    /// Rows of all classes that the spans have room for, used or free.
    #[inline]
    pub fn rows_in_spans(&self) -> usize {
        self.spans_rows
    }

    /// Whether more is in use than the budget allows.
    #[cfg(test)]
    pub fn is_over(&self) -> bool {
        self.bytes_used() > self.bytes_max
    }

    /// Memory of rows that has pages behind it, at most.
    pub fn rows_touched_bytes(&self) -> u64 {
        self.units.touched() as u64 * self.unit_bytes()
    }

    /// Memory asked for, touched or not.
    #[cfg(test)]
    pub fn bytes_allocated(&self) -> usize {
        self.memory.bytes_allocated()
    }

    /// Gives pages of free units back as far as the budget has no room for them.
    fn trim(&mut self) {
        let room = self
            .bytes_max
            .saturating_sub(self.bytes_used() + self.passing);
        let room = room >> self.unit_log >> F32_BYTES_LOG;
        while self.units.touched_free() as u64 > room {
            let Some(unit) = self.units.last_touched_free() else {
                return;
            };
            if !self.memory.release(unit) {
                return;
            }
            self.units.untouch(unit);
        }
    }

    /// The class of a row size.
    pub fn class(&mut self, row_f32s: usize) -> Class {
        let stride = row_f32s.max(ROW_F32S_MIN);
        if let Some(i) = self.classes.iter().position(|rows| rows.stride == stride) {
            return Class(narrow(i));
        }
        // There may be more units than the budget has: a span is a small part of what rows may take.
        let allowed = to_usize(self.bytes_max >> self.unit_log >> F32_BYTES_LOG);
        let units = self.units.count().min(allowed);
        let rows = Rows::new(stride, self.unit_bytes(), units, self.row_meta_bytes);
        assert!(
            rows.of_span <= 1 << self.shift,
            "places number all rows of a span"
        );
        self.classes.push(rows);
        Class(narrow(self.classes.len() - 1))
    }

    #[inline]
    fn rows(&self, class: Class) -> &Rows {
        &self.classes[class.index()]
    }

    /// All classes, those without rows included.
    pub fn classes(&self) -> impl Iterator<Item = Class> + use<> {
        (0..self.classes.len()).map(|i| Class(narrow(i)))
    }

    /// Rows that a span of a class has room for.
    pub fn rows_per_span(&self, class: Class) -> usize {
        self.rows(class).of_span as usize
    }

    /// Bytes of a span.
    #[cfg(test)]
    pub fn span_bytes(&self, class: Class) -> u64 {
        self.unit_bytes() << self.rows(class).order
    }

    /// What a span takes of the budget.
    pub fn cost(&self, class: Class) -> u64 {
        self.rows(class).cost
    }

    /// What of the budget is left over when as many spans of a class have begun as still may.
    pub fn bytes_left_over(&self, class: Class) -> u64 {
        self.bytes_max.saturating_sub(self.bytes_used()) % self.cost(class)
    }

    /// Rows of a class that fit where there is nothing else.
    pub fn capacity(&self, class: Class) -> usize {
        let rows = self.rows(class);
        let allowed = to_usize(self.bytes_max.saturating_sub(self.charged) / rows.cost);
        let spans = allowed.min(self.units.window_count(rows.order));
        spans * self.rows_per_span(class)
    }

    /// Spans that so many more rows of a class begin.
    pub fn spans_for(&self, class: Class, rows: usize) -> usize {
        let more = rows.saturating_sub(self.rows(class).free);
        more.div_ceil(self.rows_per_span(class))
    }

    /// What the spans for so many rows by class cost, with what is charged. Each class comes once.
    pub fn cost_of(&self, rows: impl Iterator<Item = (Class, usize)>) -> u64 {
        let cost = |(class, rows): (Class, usize)| {
            rows.div_ceil(self.rows_per_span(class)) as u64 * self.cost(class)
        };
        self.charged + rows.map(cost).sum::<u64>()
    }

    /// Free rows in the spans of a class, closing ones excepted.
    #[cfg(test)]
    pub fn free_rows(&self, class: Class) -> usize {
        self.rows(class).free
    }

    /// Rows that [`Arena::take`] gives for certain where no other class takes any.
    #[inline]
    pub fn spare_rows(&self, class: Class) -> usize {
        let rows = self.rows(class);
        let room = self.bytes_max.saturating_sub(self.bytes_used());
        if room < rows.cost {
            return rows.free;
        }
        let runs = self.units.runs(rows.order) + self.windows_ready(class);
        rows.free + runs.min(to_usize(room / rows.cost)) * rows.of_span as usize
    }

    /// A row of a class, if the budget and the free units allow. Its content is anything.
    #[inline]
    pub fn take(&mut self, class: Class) -> Option<Place> {
        let rows = &mut self.classes[class.index()];
        if rows.open == END && !self.add_span(class) {
            return None;
        }
        let rows = &mut self.classes[class.index()];
        let unit = rows.open;
        let span = &mut self.spans[unit as usize];
        rows.free -= 1;
        let number = span.take();
        if span.is_full() {
            self.unlink(unit);
        }
        Some(Place(unit << self.shift | number))
    }

    /// Frees a row.
    #[inline]
    pub fn free(&mut self, class: Class, place: Place) {
        let (unit, number) = self.split(place);
        let span = &mut self.spans[unit as usize];
        assert!(span.class == class.0, "a row is freed in its class");
        let was_full = span.is_full();
        span.free(number);
        if span.used == 0 || span.closing || was_full {
            self.settle(class, unit, was_full);
        } else {
            self.classes[class.index()].free += 1;
        }
    }

    /// What remains to be done after a row was freed, where that is more than counting it.
    #[cold]
    fn settle(&mut self, class: Class, unit: u32, was_full: bool) {
        let span = &self.spans[unit as usize];
        let rows = &mut self.classes[class.index()];
        if span.closing {
            rows.closing -= 1;
            self.closing -= 1;
        } else {
            rows.free += 1;
            if was_full {
                self.link(unit);
            }
        }
        if self.spans[unit as usize].used == 0 {
            self.drop_span(unit);
        }
    }

    /// The first unit of the span, and the number in it.
    #[inline]
    fn split(&self, place: Place) -> (u32, u32) {
        (place.0 >> self.shift, place.0 & ((1 << self.shift) - 1))
    }

    /// Where a row starts, in f32s from the first unit's start.
    #[inline]
    fn start(&self, place: Place, row_f32s: usize) -> usize {
        let (unit, number) = self.split(place);
        ((unit as usize) << self.unit_log) + number as usize * row_f32s.max(ROW_F32S_MIN)
    }

    /// A row.
    #[inline]
    pub fn row(&self, place: Place, row_f32s: usize) -> &[f32] {
        self.memory.get(self.start(place, row_f32s), row_f32s)
    }

    /// A row, to be changed.
    #[inline]
    pub fn row_mut(&mut self, place: Place, row_f32s: usize) -> &mut [f32] {
        self.memory.get_mut(self.start(place, row_f32s), row_f32s)
    }

    /// Announces that the first `width` f32s of a row are needed soon.
    #[inline]
    pub fn prefetch(&self, place: Place, row_f32s: usize, width: usize) {
        prefetch(self.memory.get(self.start(place, row_f32s), width));
    }

    /// Copies one row over another.
    pub fn copy(&mut self, source: Place, target: Place, row_f32s: usize) {
        let (source, target) = (self.start(source, row_f32s), self.start(target, row_f32s));
        self.memory.copy(source, target, row_f32s);
    }
}

/// Units that places can tell apart; the last number is [`Place::NONE`]'s.
fn places_units_max(unit_bytes: u64) -> u64 {
    (1 << (u32::BITS - unit_bytes.ilog2() + ROW_BYTES_MIN_LOG)) - 1
}

/// Units of a budget.
fn units_of(bytes_max: u64, unit_bytes: u64) -> Result<usize> {
    let units = bytes_max / unit_bytes;
    if units <= places_units_max(unit_bytes) {
        return Ok(to_usize(units));
    }
    let most = places_units_max(unit_bytes) * unit_bytes;
    Err(Error::InvalidArgument(ArgumentError::Option {
        name: "cache_bytes",
        value: format!("{bytes_max} bytes for one shard"),
        why: format!("a shard takes {most} at most; more shards take more"),
    }))
}
