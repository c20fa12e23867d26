//! What is known about a slot besides its row? Flags, pins, interval, and the links of its list.
//!
//! - 32 bytes a slot: a hit touches one cache line of it.
//! - The counts of [`Counts`] are kept exact by comparing a state before and after each change.

use std::ops::{BitAnd, BitOr, Not};

use crate::units::Slot;

/// A set of the bits that describe a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u8);

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

/// Which list a slot is linked into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListKind {
    /// None: free, or a victim whose write is in flight.
    #[default]
    None,
    /// The rows of current work.
    Lru,
    /// The candidates, by frequency.
    Lfu,
    /// Named by the policy to leave next, waiting in the victims' queue of clean rows.
    ColdClean,
    /// Likewise, of dirty rows.
    ColdDirty,
    /// Frozen copies.
    Frozen,
}

/// Visited since it was last looked at for eviction.
pub(crate) const VISITED: u8 = 1;
/// Admitted and not yet touched: the first touch is the one it was admitted for.
pub(crate) const NEW: u8 = 2;

/// The state of one slot; for a list's head only `next` and `prev` count.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(32))]
pub(crate) struct RowState {
    pub hash: u64,
    pub prev: Slot,
    pub next: Slot,
    pub interval: u32,
    pub pins: u32,
    pub flags: Flags,
    pub list: ListKind,
    pub marks: u8,
    /// Touches, halved once per era.
    pub frequency: u8,
    /// Era of `frequency`, modulo 256.
    pub era: u8,
    /// Holds a row or a frozen copy.
    pub used: bool,
    /// The last batch that found it, modulo 65 535; 0: none yet.
    pub batch: u16,
}

const _: () = assert!(std::mem::size_of::<RowState>() == 32);

impl RowState {
    /// Nothing but the policy keeps it: it can be dropped without writing.
    #[inline]
    pub fn evictable(&self) -> bool {
        const BUSY: Flags = Flags::DIRTY
            .with(Flags::WRITING)
            .with(Flags::LOADING)
            .with(Flags::FAILED)
            .with(Flags::FROZEN_COPY);
        self.used && self.pins == 0 && !self.flags.any(BUSY)
    }

    /// In use by a lease or a read: no victim.
    #[inline]
    pub fn busy(&self) -> bool {
        self.pins > 0 || self.flags.any(Flags::LOADING.with(Flags::FAILED))
    }

    /// Dirty and free to be written.
    #[inline]
    pub fn writable(&self, interval_max: u32) -> bool {
        const BUSY: Flags = Flags::WRITING.with(Flags::LOADING);
        self.used
            && self.flags.any(Flags::DIRTY)
            && !self.flags.any(BUSY)
            && self.interval <= interval_max
    }
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
        self.used += usize::from(state.used);
        self.pinned += usize::from(state.pins > 0);
        self.dirty += usize::from(state.flags.any(Flags::DIRTY));
        self.evictable += usize::from(state.evictable());
        self.frozen += usize::from(state.flags.any(Flags::FROZEN_COPY));
    }

    pub fn subtract(&mut self, state: &RowState) {
        self.used -= usize::from(state.used);
        self.pinned -= usize::from(state.pins > 0);
        self.dirty -= usize::from(state.flags.any(Flags::DIRTY));
        self.evictable -= usize::from(state.evictable());
        self.frozen -= usize::from(state.flags.any(Flags::FROZEN_COPY));
    }
}
