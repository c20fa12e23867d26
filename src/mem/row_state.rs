//! What is known about a slot besides its row? Table, place, flags, pins, interval and frequency in 20
//! bytes.
//!
//! - A hit touches one cache line of it, seldom two.
//! - The counts of [`Counts`] are kept exact by comparing a state before and after each change.
//! - The layout to the bit is in docs/decisions/0040.

use std::collections::{BTreeMap, TryReserveError};
use std::ops::{BitAnd, BitOr, Not};

use super::arena::Place;
use crate::options::TABLES_MAX;
use crate::pages::{advise_huge, prefetch_item, release_spare};
use crate::units::{Slot, narrow};

/// A set of the bits that describe a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u16);

impl Flags {
    /// No flag.
    #[cfg(any(test, feature = "sim"))]
    pub const NONE: Flags = Flags(0);
    /// Changed since it was last written to an SSD.
    pub const DIRTY: Flags = Flags(1);
    /// A write of its content is in flight.
    pub const WRITING: Flags = Flags(1 << 1);
    /// Its content is being read; the slot holds no row yet.
    pub const LOADING: Flags = Flags(1 << 2);
    /// Its content could not be read; the slot is freed when the last pin goes.
    pub const FAILED: Flags = Flags(1 << 3);
    /// Never pushed: the default row, which no SSD holds.
    pub const ABSENT: Flags = Flags(1 << 4);
    /// Removed: a tombstone is to be written.
    pub const REMOVED: Flags = Flags(1 << 5);
    /// The slot keeps the state of a row at a checkpoint's cut; no hash leads to it.
    pub const FROZEN_COPY: Flags = Flags(1 << 6);
    /// Its content is that of a key that was never pushed, but was not written into memory yet: nobody
    /// has read it. It is clean, or removed.
    pub const UNFILLED: Flags = Flags(1 << 7);
    /// Some block has it: the pins of a pass that stay.
    pub const IN_BLOCK: Flags = Flags(1 << 8);
    /// Holds a row or a frozen copy.
    pub(crate) const USED: Flags = Flags(1 << 10);
    /// Used since the policy last looked at it.
    pub(crate) const VISITED: Flags = Flags(1 << 11);
    /// Its number stands in a queue. It belongs to the slot, not to the row: a row may leave and
    /// another come while the number stands there.
    pub(crate) const QUEUED: Flags = Flags(1 << 12);
    /// Its table keeps all its rows.
    pub(crate) const KEPT: Flags = Flags(1 << 13);
    /// What is between the cache and its policy; nothing that a caller sets or sees.
    const OWN: Flags = Flags::USED
        .with(Flags::VISITED)
        .with(Flags::QUEUED)
        .with(Flags::KEPT);

    /// Whether any of `other` is set.
    #[inline]
    #[must_use]
    pub fn any(self, other: Flags) -> bool {
        self.0 & other.0 != 0
    }

    /// Both sets.
    #[inline]
    #[must_use]
    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// This set without `other`.
    #[inline]
    #[must_use]
    pub const fn without(self, other: Flags) -> Flags {
        Flags(self.0 & !other.0)
    }

    /// What callers may see.
    #[inline]
    pub(crate) const fn shown(self) -> Flags {
        self.without(Flags::OWN)
    }
}

impl BitOr for Flags {
    type Output = Flags;
    fn bitor(self, other: Flags) -> Flags {
        self.with(other)
    }
}

impl BitAnd for Flags {
    type Output = Flags;
    fn bitand(self, other: Flags) -> Flags {
        Flags(self.0 & other.0)
    }
}

impl Not for Flags {
    type Output = Flags;
    fn not(self) -> Flags {
        Flags(!self.0)
    }
}

/// The state of one slot; of a free one only the hash counts, the number of the next free slot.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct RowState {
    /// In halves, so that states need not begin at a multiple of eight.
    hash: [u32; 2],
    /// Where its row is.
    pub place: Place,
    /// The low bits of the position at which a batch found it last.
    pub mark: u16,
    pub flags: Flags,
    /// From the lowest bit: frequency 8, pins 4, interval 8, table 12.
    meta: u32,
}

const _: () = assert!(size_of::<RowState>() == 20);
const _: () = assert!(
    TABLES_MAX <= 1 << (32 - TABLE_SHIFT),
    "a state names every table"
);

const PINS_SHIFT: u32 = 8;
const INTERVAL_SHIFT: u32 = 12;
const TABLE_SHIFT: u32 = 20;

/// So many pins and more are counted outside.
const PINS_MAX: u32 = 15;
/// Once in so many intervals those of rows that are dirty for long are brought up, so that the low bits
/// tell them all apart.
const INTERVALS_APART: u32 = 1 << 6;

impl RowState {
    /// A row without pins that was never used.
    #[inline]
    pub fn new(table: usize, hash: u64, place: Place, flags: Flags) -> RowState {
        RowState {
            hash: halves(hash),
            place,
            mark: 0,
            flags,
            meta: narrow::<u32>(table) << TABLE_SHIFT,
        }
    }

    #[inline]
    pub fn hash(&self) -> u64 {
        u64::from(self.hash[0]) | u64::from(self.hash[1]) << 32
    }

    /// The table of its row.
    #[inline]
    pub fn table(&self) -> usize {
        (self.meta >> TABLE_SHIFT) as usize
    }

    /// Whether it holds the row of a key of a table.
    #[inline]
    pub fn is(&self, table: usize, hash: u64) -> bool {
        self.hash == halves(hash) && self.table() == table
    }

    /// Touches, halved from time to time.
    #[inline]
    pub fn frequency(&self) -> u8 {
        narrow(self.meta & 0xff)
    }

    #[inline]
    pub fn set_frequency(&mut self, frequency: u8) {
        self.meta = (self.meta & !0xff) | u32::from(frequency);
    }

    /// Counts a use.
    #[inline]
    pub fn visit(&mut self) {
        self.meta += u32::from(self.meta & 0xff != 0xff);
        self.flags = self.flags | Flags::VISITED;
    }

    /// Pins, up to [`PINS_MAX`].
    #[inline]
    fn near_pins(&self) -> u32 {
        (self.meta >> PINS_SHIFT) & PINS_MAX
    }

    #[inline]
    fn interval_bits(&self) -> u8 {
        narrow((self.meta >> INTERVAL_SHIFT) & 0xff)
    }

    #[inline]
    fn set_interval_bits(&mut self, bits: u8) {
        self.meta = (self.meta & !(0xff << INTERVAL_SHIFT)) | u32::from(bits) << INTERVAL_SHIFT;
    }

    #[inline]
    pub fn used(&self) -> bool {
        self.flags.any(Flags::USED)
    }

    #[inline]
    pub fn is_pinned(&self) -> bool {
        self.meta & (PINS_MAX << PINS_SHIFT) != 0
    }

    /// Nothing but the policy keeps it: it can be dropped without writing.
    #[inline]
    pub fn evictable(&self) -> bool {
        const BUSY: Flags = Flags::DIRTY
            .with(Flags::WRITING)
            .with(Flags::LOADING)
            .with(Flags::FAILED)
            .with(Flags::FROZEN_COPY)
            .with(Flags::KEPT);
        self.flags & (BUSY | Flags::USED) == Flags::USED && !self.is_pinned()
    }

    /// In use by a lease or a read: no victim.
    #[inline]
    pub fn busy(&self) -> bool {
        self.is_pinned() || self.flags.any(Flags::LOADING.with(Flags::FAILED))
    }

    /// A row that may be named as a victim.
    #[inline]
    pub fn nameable(&self) -> bool {
        const BUSY: Flags = Flags::LOADING
            .with(Flags::FAILED)
            .with(Flags::FROZEN_COPY)
            .with(Flags::WRITING)
            .with(Flags::KEPT);
        self.flags & (BUSY | Flags::USED) == Flags::USED && !self.is_pinned()
    }
}

/// What a state keeps of an interval.
#[inline]
fn low_bits(interval: u32) -> u8 {
    narrow(interval & 0xff)
}

#[inline]
fn halves(hash: u64) -> [u32; 2] {
    [narrow(hash & 0xffff_ffff), narrow(hash >> 32)]
}

/// The states of all slots ever used, and the free ones among them.
#[derive(Debug, Default)]
pub(crate) struct States {
    states: Vec<RowState>,
    /// Head of the chain of freed slots.
    freed: Freed,
    /// No row changed in a later interval.
    now: u32,
    /// The interval in which the low bits were last put right.
    put_right: u32,
    /// Pins beyond [`PINS_MAX`].
    more_pins: BTreeMap<Slot, u32>,
}

/// The first of the freed slots.
#[derive(Clone, Copy, Debug)]
struct Freed {
    first: Slot,
    /// Slots from this number on are not taken again: they are to be given back.
    limit: usize,
}

impl Default for Freed {
    fn default() -> Freed {
        Freed {
            first: Slot::NONE,
            limit: usize::MAX,
        }
    }
}

impl States {
    /// Asks for the addresses of so many states; memory is touched when a slot is first used.
    pub fn reserve(&mut self, slots: usize) -> Result<(), TryReserveError> {
        let more = slots.saturating_sub(self.states.len());
        if self.states.capacity() < slots {
            self.states.try_reserve_exact(more)?;
            advise_huge(&self.states);
        }
        Ok(())
    }

    pub fn bytes_for(slots: usize) -> usize {
        slots * size_of::<RowState>()
    }

    /// Memory of the slots ever used.
    pub fn bytes(&self) -> usize {
        self.states.len() * size_of::<RowState>()
    }

    /// Slots ever used.
    pub fn touched(&self) -> usize {
        self.states.len()
    }

    #[inline]
    pub fn get(&self, slot: Slot) -> &RowState {
        &self.states[slot.index()]
    }

    #[inline]
    pub fn get_mut(&mut self, slot: Slot) -> &mut RowState {
        &mut self.states[slot.index()]
    }

    /// States by number, `range` of those ever used.
    pub fn range(&self, range: std::ops::Range<usize>) -> &[RowState] {
        &self.states[range]
    }

    /// As [`States::range`], to be changed.
    pub fn range_mut(&mut self, range: std::ops::Range<usize>) -> &mut [RowState] {
        &mut self.states[range]
    }

    /// Announces that the state of a slot is needed soon.
    #[inline]
    pub fn prefetch_line(&self, slot: Slot) {
        prefetch_item(&self.states, slot.index());
    }

    /// Takes a free slot, whose state is the caller's to fill.
    pub fn take(&mut self) -> Slot {
        if self.freed.first != Slot::NONE {
            let slot = self.freed.first;
            self.freed.first = Slot::of_low_half(self.get(slot).hash());
            return slot;
        }
        self.states.push(RowState::default());
        Slot::new(self.states.len() - 1)
    }

    /// Frees a slot.
    pub fn free(&mut self, slot: Slot) {
        let next = self.freed.first.to_low_half();
        let state = self.get_mut(slot);
        *state = RowState {
            hash: halves(next),
            flags: state.flags & Flags::QUEUED,
            ..RowState::default()
        };
        if slot.index() < self.freed.limit {
            self.freed.first = slot;
        }
    }

    /// Says for how many rows there is memory.
    pub fn expect(&mut self, rows: usize) {
        if rows > self.freed.limit {
            self.chain(usize::MAX);
        }
    }

    /// Lets the slots from `end` on go, which are free and stand in no queue; of the others only the first
    /// `rows` are taken again.
    pub fn truncate(&mut self, end: usize, rows: usize) {
        self.states.truncate(end);
        release_spare(&mut self.states);
        self.chain(if end > rows { rows } else { usize::MAX });
    }

    /// Chains the free slots below a limit, the first of them first.
    fn chain(&mut self, limit: usize) {
        self.freed = Freed {
            first: Slot::NONE,
            limit,
        };
        for slot in (0..self.states.len().min(limit)).rev().map(Slot::new) {
            if !self.get(slot).used() {
                self.free(slot);
            }
        }
    }

    /// Whether a slot, once free, is taken again; for checks.
    #[cfg(any(test, feature = "sim"))]
    pub fn is_taken_again(&self, slot: Slot) -> bool {
        slot.index() < self.freed.limit
    }

    /// The slots in the chain of free ones, for checks.
    #[cfg(any(test, feature = "sim"))]
    pub fn chained(&self) -> usize {
        let there = |slot: Slot| (slot != Slot::NONE).then_some(slot);
        let next = |slot: &Slot| there(Slot::of_low_half(self.get(*slot).hash()));
        std::iter::successors(there(self.freed.first), next).count()
    }

    /// Says whether the number of a slot stands in a queue.
    #[inline]
    pub fn mark_queued(&mut self, slot: Slot, queued: bool) {
        let state = self.get_mut(slot);
        state.flags = match queued {
            true => state.flags.with(Flags::QUEUED),
            false => state.flags.without(Flags::QUEUED),
        };
    }

    /// Pins of a row.
    #[cfg(any(test, feature = "sim"))]
    pub fn pins(&self, slot: Slot) -> u32 {
        let more = self.more_pins.get(&slot).copied().unwrap_or(0);
        self.get(slot).near_pins() + more
    }

    /// Raises the pin count of a row.
    #[inline]
    pub fn raise(&mut self, slot: Slot) {
        let state = &mut self.states[slot.index()];
        if state.near_pins() < PINS_MAX {
            state.meta += 1 << PINS_SHIFT;
        } else {
            self.raise_far(slot);
        }
    }

    #[cold]
    fn raise_far(&mut self, slot: Slot) {
        *self.more_pins.entry(slot).or_default() += 1;
    }

    /// Lowers the pin count of a row; whether it has none now.
    #[inline]
    pub fn lower(&mut self, slot: Slot) -> bool {
        let state = &mut self.states[slot.index()];
        assert!(
            state.is_pinned(),
            "a row is unpinned as often as it was pinned"
        );
        if state.near_pins() == PINS_MAX && self.lower_far(slot) {
            return false;
        }
        let state = &mut self.states[slot.index()];
        state.meta -= 1 << PINS_SHIFT;
        !state.is_pinned()
    }

    #[cold]
    fn lower_far(&mut self, slot: Slot) -> bool {
        let Some(more) = self.more_pins.get_mut(&slot) else {
            return false;
        };
        *more -= 1;
        if *more == 0 {
            self.more_pins.remove(&slot);
        }
        true
    }

    /// The interval in which a row last changed, or a later one where it has been dirty for very long.
    #[inline]
    pub fn interval(&self, state: &RowState) -> u32 {
        let ago = low_bits(self.now).wrapping_sub(state.interval_bits());
        self.now.saturating_sub(u32::from(ago))
    }

    /// Says that a row changed in an interval that [`States::enter`] was told.
    #[inline]
    pub fn set_interval(&mut self, slot: Slot, interval: u32) {
        let (state, bits) = (self.get_mut(slot), low_bits(interval));
        // A line that is not written need not be written back.
        if state.interval_bits() != bits {
            state.set_interval_bits(bits);
        }
    }

    /// Rows may change in this interval from now on.
    #[inline]
    pub fn enter(&mut self, interval: u32) {
        if interval > self.now {
            if interval - self.put_right >= INTERVALS_APART {
                self.put_intervals_right(interval);
            }
            self.now = interval;
        }
    }

    #[cold]
    fn put_intervals_right(&mut self, interval: u32) {
        let least = interval - INTERVALS_APART;
        for i in 0..self.states.len() {
            let own = self.interval(&self.states[i]).max(least);
            self.states[i].set_interval_bits(low_bits(own));
        }
        self.put_right = interval;
    }

    /// Whether it is dirty and free to be written.
    #[inline]
    pub fn writable(&self, state: &RowState, interval_max: u32) -> bool {
        const BUSY: Flags = Flags::WRITING.with(Flags::LOADING);
        const WANTED: Flags = Flags::DIRTY.with(Flags::USED);
        state.flags & (BUSY | WANTED) == WANTED && self.interval(state) <= interval_max
    }
}

/// A row that left memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// Its table.
    pub table: u16,
    /// Its hash.
    pub hash: u64,
    /// How often it had been used: a class of 4 bits, more than 0.
    pub class: u8,
}

/// Exact numbers of slots in the states that decide what a batch may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub used: usize,
    pub pinned: usize,
    pub dirty: usize,
    pub evictable: usize,
    pub frozen: usize,
}

impl Counts {
    pub fn add(&mut self, state: &RowState) {
        self.used += usize::from(state.used());
        self.pinned += usize::from(state.is_pinned());
        self.dirty += usize::from(state.flags.any(Flags::DIRTY));
        self.evictable += usize::from(state.evictable());
        self.frozen += usize::from(state.flags.any(Flags::FROZEN_COPY));
    }

    pub fn subtract(&mut self, state: &RowState) {
        self.used -= usize::from(state.used());
        self.pinned -= usize::from(state.is_pinned());
        self.dirty -= usize::from(state.flags.any(Flags::DIRTY));
        self.evictable -= usize::from(state.evictable());
        self.frozen -= usize::from(state.flags.any(Flags::FROZEN_COPY));
    }
}
