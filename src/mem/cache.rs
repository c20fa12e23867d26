//! Is a row in memory, where, and is there room for another? The cache of one table in one shard.
//!
//! - Memory is decided in [`TableCache::new`] and never grows.
//! - `counts` is exact after every call: every change of a state goes through `change`.
//! - Used slots are rows (found by hash) or frozen copies (found through their list only).

mod config;
mod parts;

pub use config::CacheConfig;

#[cfg(any(test, feature = "sim"))]
use config::bytes_for;

use super::buckets::Buckets;
#[cfg(any(test, feature = "sim"))]
use super::lists::HEADS;
use super::lists::Rows;
use super::policy::{AnyPolicy, Policy};
#[cfg(any(test, feature = "sim"))]
use super::row_state::ListKind;
use super::row_state::{Counts, Flags, RowState};
use super::slab::Slab;
use crate::error::Result;
use crate::options::PolicyKind;
use crate::units::Slot;

/// Rows that the policy names at once.
pub(super) const NAMED_ROWS: usize = 64;
/// Share of the rows in a flush step where it is not given.
const FLUSH_STEP_SHARE: usize = 16;
/// The low-water mark is a flush step divided by this, unless more rows are pinned: 0.3 % fewer
/// misses than with a whole step (simulated, zipf 0.99), of which three pinned batches cost 0.2 %.
const LOW_SHARE: usize = 4;
/// States announced ahead of the one that is changed.
pub(super) const AHEAD_STATES: usize = 16;

/// The rows of one table in one shard that are in memory; see [`crate::mem`].
#[derive(Debug)]
pub struct TableCache {
    pub(super) rows: Rows,
    pub(super) slab: Slab,
    pub(super) policy: AnyPolicy,
    pub(super) counts: Counts,
    pub(super) named: Vec<Slot>,
    pub(super) buckets: Buckets,
    /// Number of the last batch of hits.
    pub(super) batch: u16,
    /// Rows that left to make room.
    pub(super) evicted: u64,
    range: (u64, u64),
    capacity: usize,
    pub(super) row_f32s: usize,
    flush_step_rows: usize,
    /// Head of the chain of slots freed, through `next`.
    freed: Slot,
}

impl TableCache {
    /// Makes an empty cache with as many slots as fit into `config.bytes`.
    ///
    /// # Errors
    /// `InvalidArgument` naming the bytes needed if not even one row fits, or if the system does
    /// not give the memory.
    pub fn new(config: &CacheConfig) -> Result<TableCache> {
        assert!(config.row_f32s > 0, "a row has at least one word");
        assert!(
            config.range.0 <= config.range.1,
            "a shard's range is not empty"
        );
        let capacity = config.slots()?;
        config.check_memory(capacity)?;
        let step = match config.flush_step_rows {
            0 => capacity / FLUSH_STEP_SHARE,
            rows => rows.min(capacity / 2),
        };
        Ok(TableCache {
            rows: Rows::new(capacity),
            slab: Slab::new(capacity, config.row_f32s),
            policy: AnyPolicy::new(config.policy, capacity),
            counts: Counts::default(),
            named: Vec::with_capacity(NAMED_ROWS),
            buckets: Buckets::new(capacity),
            batch: 0,
            evicted: 0,
            range: config.range,
            capacity,
            row_f32s: config.row_f32s,
            flush_step_rows: step.max(1),
            freed: Slot::NONE,
        })
    }

    /// A cache without slots, of a table that was dropped.
    #[must_use]
    pub fn without_slots(row_f32s: usize, range: (u64, u64)) -> TableCache {
        TableCache {
            rows: Rows::new(0),
            slab: Slab::new(0, row_f32s),
            policy: AnyPolicy::new(PolicyKind::Lru, 0),
            counts: Counts::default(),
            named: Vec::new(),
            buckets: Buckets::new(0),
            batch: 0,
            evicted: 0,
            range,
            capacity: 0,
            row_f32s,
            flush_step_rows: 0,
            freed: Slot::NONE,
        }
    }

    /// Bytes with which a cache of this policy has at least `rows` slots.
    #[must_use]
    #[cfg(any(test, feature = "sim"))]
    pub fn bytes_for_rows(rows: usize, row_f32s: usize, policy: PolicyKind) -> u64 {
        bytes_for(rows, row_f32s, policy)
    }

    /// Whether rows ever leave (the PinAll policy keeps all).
    #[must_use]
    pub fn evicts(&self) -> bool {
        self.policy.evicts()
    }

    /// Slots in all.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Rows in memory, frozen copies not counted.
    #[must_use]
    pub fn resident(&self) -> usize {
        self.counts.used - self.counts.frozen
    }

    /// Slots that hold nothing.
    #[must_use]
    pub fn free(&self) -> usize {
        self.capacity - self.counts.used
    }

    /// Rows with at least one pin.
    #[must_use]
    pub fn pinned(&self) -> usize {
        self.counts.pinned
    }

    /// Rows that can be dropped at once: clean, unpinned, not being read or written.
    #[must_use]
    pub fn evictable(&self) -> usize {
        if self.policy.evicts() {
            self.counts.evictable
        } else {
            0
        }
    }

    /// Slots that can be had at once.
    #[must_use]
    pub fn available(&self) -> usize {
        self.free() + self.evictable()
    }

    /// Dirty rows, frozen copies included.
    #[must_use]
    pub fn dirty(&self) -> usize {
        self.counts.dirty
    }

    /// Slots that hold the state of a row at a checkpoint's cut.
    #[must_use]
    pub fn frozen_copies(&self) -> usize {
        self.counts.frozen
    }

    /// Rows on the LRU list.
    #[must_use]
    #[cfg(any(test, feature = "sim"))]
    pub fn lru_rows(&self) -> usize {
        self.rows.lru_rows
    }

    /// Rows taken per flush; [`TableCache::below_low_water`] compares with a share of it.
    #[must_use]
    pub fn flush_step_rows(&self) -> usize {
        self.flush_step_rows
    }

    /// Whether so few slots can be had at once that dirty rows should be flushed: fewer than a
    /// quarter of a flush step, since rows that stay longer are changed and found again more often.
    ///
    /// What is left at the mark has to serve the next batch while the flush is on its way. That
    /// batch is taken to be no larger than those that hold rows pinned now, and all of its rows may
    /// be missing; so the mark is the number of pinned rows where that is more than the quarter.
    /// It is never more than a flush step: batches that pin more rows than that wait for a flush.
    #[must_use]
    pub fn below_low_water(&self) -> bool {
        let step = self.flush_step_rows;
        let mark = self.pinned().clamp(step.div_ceil(LOW_SHARE), step);
        self.policy.evicts() && self.available() < mark
    }

    /// Whether fewer slots can be had at once than a flush frees: when some cache runs low, those
    /// that soon would are flushed with it, into files of full size.
    #[must_use]
    pub fn below_flush_step(&self) -> bool {
        self.policy.evicts() && self.available() < self.flush_step_rows
    }

    /// Memory allocated, at most the `bytes` of the configuration.
    #[must_use]
    pub fn bytes_allocated(&self) -> u64 {
        let bytes = self.rows.bytes_allocated()
            + self.slab.bytes_allocated()
            + self.buckets.bytes_allocated()
            + self.policy.bytes_allocated()
            + self.named.capacity() * size_of::<Slot>()
            + size_of::<TableCache>();
        bytes as u64
    }

    /// Memory touched so far: what was allocated less the slots never used.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let unused = self.capacity - self.rows.touched();
        let slot_bytes = self.row_f32s * size_of::<f32>() + size_of::<RowState>();
        self.bytes_allocated() - (unused * slot_bytes) as u64
    }

    /// Finds the slot of each hash; [`Slot::NONE`] for rows not in memory.
    ///
    /// # Shapes
    /// hashes: `[n]`, slots: `[n]`
    pub fn lookup(&self, hashes: &[u64], slots: &mut [Slot]) {
        self.buckets.get_batch(&self.rows, hashes, slots);
    }

    /// Raises the pin count once per position; returns how many rows had none before.
    pub fn pin(&mut self, slots: &[Slot]) -> usize {
        let before = self.counts.pinned;
        for slot in slots {
            let state = self.raise(*slot);
            assert!(
                state.used && !state.flags.any(Flags::FROZEN_COPY),
                "only rows are pinned"
            );
        }
        self.counts.pinned - before
    }

    /// Raises the pin count of one row.
    #[inline]
    pub(super) fn raise(&mut self, slot: Slot) -> &mut RowState {
        let state = self.rows.get_mut(slot);
        if state.pins == 0 {
            self.counts.evictable -= usize::from(state.evictable());
            self.counts.pinned += 1;
        }
        state.pins += 1;
        state
    }

    /// Lowers the pin count once per position; returns how many rows have none now. Rows that
    /// could not be loaded are dropped with their last pin.
    pub fn unpin(&mut self, slots: &[Slot]) -> usize {
        let before = self.counts.pinned;
        for (i, slot) in slots.iter().enumerate() {
            if let Some(ahead) = slots.get(i + AHEAD_STATES) {
                self.rows.prefetch_line(*ahead);
            }
            let state = self.rows.get_mut(*slot);
            assert!(
                state.pins > 0,
                "a row is unpinned as often as it was pinned"
            );
            if state.pins > 1 {
                state.pins -= 1;
                continue;
            }
            state.pins = 0;
            let failed = state.flags.any(Flags::FAILED);
            self.counts.evictable += usize::from(state.evictable());
            self.counts.pinned -= 1;
            if failed {
                self.release(*slot);
            }
        }
        before - self.counts.pinned
    }

    /// Tells the policy that a batch used these rows; positions may repeat.
    pub fn touch(&mut self, slots: &[Slot]) {
        self.policy.touched(&mut self.rows, slots);
    }

    /// Gives a row that is not in memory a free slot, unpinned, with `flags`; none if no slot is
    /// free. The slot's content is undefined until the caller fills it.
    pub fn insert(&mut self, hash: u64, flags: Flags) -> Option<Slot> {
        assert!(
            (self.range.0..=self.range.1).contains(&hash),
            "a hash lies in its shard's range"
        );
        assert!(
            self.buckets.get(&self.rows, hash).is_none(),
            "a row has one slot"
        );
        let slot = self.take_slot(hash, flags, 0)?;
        self.buckets.insert(hash, slot);
        self.policy.admitted(&mut self.rows, slot);
        Some(slot)
    }

    /// The slot of a row that may be in memory by now, or a free one that [`TableCache::insert`] gives
    /// it, without flags, and whether it is that; none if it is not in memory and no slot is free.
    pub fn find_or_insert(&mut self, hash: u64) -> Option<(Slot, bool)> {
        match self.buckets.get(&self.rows, hash) {
            Some(slot) => Some((slot, false)),
            None => Some((self.insert(hash, Flags::default())?, true)),
        }
    }

    /// Drops an unpinned row whatever its state; its slot is free.
    #[cfg(any(test, feature = "sim"))]
    pub fn remove(&mut self, slot: Slot) {
        let state = self.rows.get(slot);
        assert!(
            state.used && state.pins == 0,
            "only unpinned rows are removed"
        );
        assert!(
            !state.flags.any(Flags::WRITING | Flags::FROZEN_COPY),
            "no write may be in flight"
        );
        self.release(slot);
    }

    /// The content of a row.
    #[inline]
    #[must_use]
    #[cfg(any(test, feature = "sim"))]
    pub fn row(&self, slot: Slot) -> &[f32] {
        self.slab.row(slot)
    }

    /// The content of a row, to be changed after [`TableCache::begin_write`].
    #[inline]
    pub fn row_mut(&mut self, slot: Slot) -> &mut [f32] {
        self.slab.row_mut(slot)
    }

    /// The hash of a row.
    #[must_use]
    pub fn hash_of(&self, slot: Slot) -> u64 {
        self.rows.get(slot).hash
    }

    /// The flags of a row.
    #[inline]
    #[must_use]
    pub fn flags(&self, slot: Slot) -> Flags {
        self.rows.get(slot).flags
    }

    /// Sets flags of a row. DIRTY is set by [`TableCache::begin_write`] only.
    pub fn set(&mut self, slot: Slot, flags: Flags) {
        assert!(
            !flags.any(Flags::DIRTY | Flags::WRITING | Flags::FROZEN_COPY),
            "set by the cache"
        );
        self.change(slot, |state| state.flags = state.flags.with(flags));
    }

    /// Clears flags of a row.
    pub fn clear(&mut self, slot: Slot, flags: Flags) {
        assert!(
            !flags.any(Flags::DIRTY | Flags::WRITING | Flags::FROZEN_COPY),
            "by the cache"
        );
        self.change(slot, |state| state.flags = state.flags.without(flags));
    }

    /// The interval in which a row last changed since it came into memory.
    #[must_use]
    #[cfg(any(test, feature = "sim"))]
    pub fn interval(&self, slot: Slot) -> u32 {
        self.rows.get(slot).interval
    }

    /// Sets the interval of a row that was just loaded.
    #[cfg(any(test, feature = "sim"))]
    pub fn set_interval(&mut self, slot: Slot, interval: u32) {
        self.rows.get_mut(slot).interval = interval;
    }

    /// Pins of a row.
    #[must_use]
    #[cfg(any(test, feature = "sim"))]
    pub fn pins(&self, slot: Slot) -> u32 {
        self.rows.get(slot).pins
    }

    /// The list a row is on.
    #[must_use]
    #[cfg(any(test, feature = "sim"))]
    pub fn list_of(&self, slot: Slot) -> ListKind {
        self.rows.get(slot).list
    }

    /// Changes a state and keeps the counts exact.
    #[inline]
    pub(super) fn change<T>(&mut self, slot: Slot, f: impl FnOnce(&mut RowState) -> T) -> T {
        let state = self.rows.get_mut(slot);
        self.counts.subtract(state);
        let result = f(state);
        self.counts.add(state);
        result
    }

    /// Takes a free slot for a row or a copy; it is linked nowhere yet.
    pub(super) fn take_slot(&mut self, hash: u64, flags: Flags, interval: u32) -> Option<Slot> {
        let slot = if self.freed != Slot::NONE {
            let slot = self.freed;
            self.freed = self.rows.get(slot).next;
            slot
        } else if self.rows.touched() < self.capacity {
            self.rows.extend()
        } else {
            return None;
        };
        self.change(slot, |state| {
            *state = RowState {
                hash,
                flags,
                interval,
                used: true,
                ..RowState::default()
            };
        });
        Some(slot)
    }

    /// Frees the slot of a row or copy.
    pub(super) fn release(&mut self, slot: Slot) {
        let state = *self.rows.get(slot);
        self.rows.unlink(slot);
        if !state.flags.any(Flags::FROZEN_COPY) {
            self.policy.left(&mut self.rows, slot);
            self.buckets.remove(&self.rows, state.hash);
        }
        let next = self.freed;
        self.change(slot, |state| {
            *state = RowState {
                next,
                ..RowState::default()
            }
        });
        self.freed = slot;
    }

    /// Recounts everything; panics where a count or a link is wrong. For tests.
    #[doc(hidden)]
    #[cfg(any(test, feature = "sim"))]
    pub fn check(&self) {
        let mut counts = Counts::default();
        let (mut free, mut linked, mut flying) = (0, 0, 0);
        for slot in (HEADS..HEADS + self.rows.touched()).map(Slot::new) {
            let state = self.rows.get(slot);
            counts.add(state);
            if !state.used {
                free += 1;
                assert!(
                    state.list == ListKind::None && state.pins == 0,
                    "a free slot is bare"
                );
                continue;
            }
            let copy = state.flags.any(Flags::FROZEN_COPY);
            assert_eq!(
                copy,
                state.list == ListKind::Frozen,
                "copies are on their list"
            );
            if !copy {
                let found = self.buckets.get(&self.rows, state.hash);
                assert_eq!(found, Some(slot), "a row is found by its hash");
            }
            linked += usize::from(state.list != ListKind::None);
            let unlinked = state.list == ListKind::None;
            flying += usize::from(unlinked);
            let dirty = state.flags.any(Flags::DIRTY);
            let wrong = if dirty {
                ListKind::ColdClean
            } else {
                ListKind::ColdDirty
            };
            assert!(state.list != wrong, "rows are queued by what they are");
            assert!(
                !unlinked || state.flags.any(Flags::WRITING),
                "only victims are on no list"
            );
        }
        assert_eq!(counts, self.counts, "counts are exact");
        assert_eq!(
            self.free(),
            self.capacity - self.rows.touched() + free,
            "free slots"
        );
        assert_eq!(self.counts.used, linked + flying, "slots are free or used");
        let walked: Vec<usize> = (0..HEADS)
            .map(|head| self.rows.walk(Slot::new(head)).count())
            .collect();
        assert_eq!(
            walked.iter().sum::<usize>(),
            linked,
            "each row is on one list"
        );
        assert_eq!(
            walked[..16].iter().sum::<usize>(),
            self.rows.lfu_rows,
            "LFU rows"
        );
        assert_eq!(walked[16], self.rows.lru_rows, "LRU rows");
        let mut chain = 0;
        let mut slot = self.freed;
        while slot != Slot::NONE {
            chain += 1;
            slot = self.rows.get(slot).next;
        }
        assert_eq!(chain, free, "freed slots are chained");
        assert!(
            self.bytes() <= self.bytes_allocated(),
            "touched memory is allocated"
        );
    }
}
