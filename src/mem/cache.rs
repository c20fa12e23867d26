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
use config::step_of;

use super::policy::{AnyPolicy, Policy, Rows, class_of, frequency_of};
use super::queues::{Pool, Queue};
use super::row_state::{Counts, Flags, Left, RowState, States};
use super::slab::Slab;
use super::words::Words;
use crate::error::Result;
use crate::options::PolicyKind;
use crate::units::Slot;

/// Rows that the policy names at once.
pub(super) const NAMED_ROWS: usize = 64;
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
    pub(super) words: Words,
    /// Clean rows that leave next, and dirty ones that are written next.
    pub(super) cold_clean: Queue,
    pub(super) cold_dirty: Queue,
    /// Slots that hold frozen copies, and some that did.
    pub(super) copies: Vec<Slot>,
    /// Rows that left since [`TableCache::forget_left`], and how often they had been used.
    pub(super) left: Vec<Left>,
    /// Rows that left to make room.
    pub(super) evicted: u64,
    range: (u64, u64),
    capacity: usize,
    pub(super) row_f32s: usize,
    flush_step_rows: usize,
}

/// Where the policy has a row.
#[cfg(any(test, feature = "sim"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// In no queue of it.
    None,
    /// Among the rows of current work.
    Lru,
    /// Among the candidates, by frequency.
    Lfu,
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
        Ok(TableCache::of(config, capacity))
    }

    fn of(config: &CacheConfig, capacity: usize) -> TableCache {
        let step = step_of(config.flush_step_rows, capacity);
        let (numbers, queues) = AnyPolicy::queued(config.policy, capacity, step);
        TableCache {
            rows: Rows {
                states: States::new(capacity),
                pool: Pool::new(numbers, queues),
            },
            slab: Slab::new(capacity, config.row_f32s),
            policy: AnyPolicy::new(config.policy, capacity),
            counts: Counts::default(),
            named: Vec::with_capacity(NAMED_ROWS),
            words: Words::new(capacity),
            cold_clean: Queue::default(),
            cold_dirty: Queue::default(),
            copies: Vec::new(),
            left: Vec::new(),
            evicted: 0,
            range: config.range,
            capacity,
            row_f32s: config.row_f32s,
            flush_step_rows: step,
        }
    }

    /// A cache without slots, of a table that was dropped.
    #[must_use]
    pub fn without_slots(row_f32s: usize, range: (u64, u64)) -> TableCache {
        let config = CacheConfig {
            row_f32s,
            bytes: 0,
            policy: PolicyKind::Lru,
            flush_step_rows: 0,
            range,
        };
        TableCache::of(&config, 0)
    }

    /// Bytes with which a cache of this policy, with flushes of so many rows, has `rows` slots.
    #[must_use]
    #[cfg(any(test, feature = "sim"))]
    pub fn bytes_for_rows(
        rows: usize,
        row_f32s: usize,
        policy: PolicyKind,
        flush_step_rows: usize,
    ) -> u64 {
        let config = CacheConfig {
            row_f32s,
            bytes: 0,
            policy,
            flush_step_rows,
            range: (0, u64::MAX),
        };
        bytes_for(rows, &config)
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
        let bytes = self.rows.states.bytes_allocated()
            + self.rows.pool.bytes_allocated()
            + self.slab.bytes_allocated()
            + self.words.bytes_allocated()
            + self.copies.capacity() * size_of::<Slot>()
            + self.left.capacity() * size_of::<Left>()
            + self.policy.bytes_allocated()
            + self.named.capacity() * size_of::<Slot>()
            + size_of::<TableCache>();
        bytes as u64
    }

    /// Memory touched so far: what was allocated less the slots never used.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let unused = self.capacity - self.rows.states.touched();
        let slot_bytes = self.row_f32s * size_of::<f32>() + size_of::<RowState>();
        self.bytes_allocated() - (unused * slot_bytes) as u64
    }

    /// Finds the slot of each hash; [`Slot::NONE`] for rows not in memory.
    ///
    /// # Shapes
    /// hashes: `[n]`, slots: `[n]`
    pub fn lookup(&self, hashes: &[u64], slots: &mut [Slot]) {
        self.words.get_batch(&self.rows.states, hashes, slots);
    }

    /// Raises the pin count once per position; returns how many rows had none before.
    pub fn pin(&mut self, slots: &[Slot]) -> usize {
        let before = self.counts.pinned;
        for slot in slots {
            let flags = self.raise(*slot);
            assert!(
                flags & (Flags::USED | Flags::FROZEN_COPY) == Flags::USED,
                "only rows are pinned"
            );
        }
        self.counts.pinned - before
    }

    /// Raises the pin count of one row; gives its flags.
    #[inline]
    pub(super) fn raise(&mut self, slot: Slot) -> Flags {
        let state = self.rows.states.get(slot);
        let flags = state.flags;
        if !state.is_pinned() {
            self.counts.evictable -= usize::from(state.evictable());
            self.counts.pinned += 1;
        }
        self.rows.states.raise(slot);
        flags
    }

    /// Lowers the pin count once per position; returns how many rows have none now. Rows that
    /// could not be loaded are dropped with their last pin.
    pub fn unpin(&mut self, slots: &[Slot]) -> usize {
        let before = self.counts.pinned;
        for (i, slot) in slots.iter().enumerate() {
            if let Some(ahead) = slots.get(i + AHEAD_STATES) {
                self.rows.states.prefetch_line(*ahead);
            }
            if !self.rows.states.lower(*slot) {
                continue;
            }
            let state = self.rows.states.get(*slot);
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
        for slot in slots {
            self.visit(*slot);
        }
        self.policy.touched(&mut self.rows, slots.len());
    }

    /// Counts a use of a row.
    #[inline]
    pub(super) fn visit(&mut self, slot: Slot) {
        let state = self.rows.states.get_mut(slot);
        state.frequency = state.frequency.saturating_add(1);
        state.flags = state.flags | Flags::VISITED;
    }

    /// Gives a row that is not in memory a free slot, unpinned, with `flags`, as one that is used for the
    /// first time since it left in frequency class `class`; none if no slot is free. The slot's content is
    /// undefined until the caller fills it.
    pub fn insert(&mut self, hash: u64, flags: Flags, class: u8) -> Option<Slot> {
        assert!(
            (self.range.0..=self.range.1).contains(&hash),
            "a hash lies in its shard's range"
        );
        debug_assert!(
            self.words.get(&self.rows.states, hash) == Slot::NONE,
            "a row has one slot"
        );
        let slot = self.take_slot(hash, flags, 0)?;
        self.words.insert(hash, slot);
        self.rows.states.get_mut(slot).frequency = frequency_of(class).saturating_add(1);
        self.policy.touched(&mut self.rows, 1);
        self.policy.admitted(&mut self.rows, slot);
        Some(slot)
    }

    /// The slot of a row that may be in memory by now, or a free one that [`TableCache::insert`] gives
    /// it, without flags, and whether it is that; none if it is not in memory and no slot is free.
    pub fn find_or_insert(&mut self, hash: u64, class: u8) -> Option<(Slot, bool)> {
        match self.words.get(&self.rows.states, hash) {
            Slot::NONE => Some((self.insert(hash, Flags::default(), class)?, true)),
            slot => Some((slot, false)),
        }
    }

    /// Drops an unpinned row whatever its state; its slot is free.
    #[cfg(any(test, feature = "sim"))]
    pub fn remove(&mut self, slot: Slot) {
        let state = self.rows.states.get(slot);
        assert!(
            state.used() && !state.is_pinned(),
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
        self.rows.states.get(slot).hash
    }

    /// The flags of a row.
    #[inline]
    #[must_use]
    pub fn flags(&self, slot: Slot) -> Flags {
        self.rows.states.get(slot).flags.shown()
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
        self.rows.states.interval(self.rows.states.get(slot))
    }

    /// Pins of a row.
    #[must_use]
    #[cfg(any(test, feature = "sim"))]
    pub fn pins(&self, slot: Slot) -> u32 {
        self.rows.states.pins(slot)
    }

    /// Where the policy has a row.
    #[must_use]
    #[cfg(any(test, feature = "sim"))]
    pub fn level_of(&self, slot: Slot) -> Level {
        self.policy.level_of(&self.rows, slot)
    }

    /// Changes a state and keeps the counts exact.
    #[inline]
    pub(super) fn change<T>(&mut self, slot: Slot, f: impl FnOnce(&mut RowState) -> T) -> T {
        let state = self.rows.states.get_mut(slot);
        self.counts.subtract(state);
        let result = f(state);
        self.counts.add(state);
        result
    }

    /// Takes a free slot for a row or a copy; it stands in no queue of its own yet.
    pub(super) fn take_slot(&mut self, hash: u64, flags: Flags, interval: u32) -> Option<Slot> {
        let slot = self.rows.states.take()?;
        self.change(slot, |state| {
            *state = RowState {
                hash,
                flags: (state.flags & Flags::QUEUED) | flags | Flags::USED,
                ..RowState::default()
            };
        });
        self.rows.states.set_interval(slot, interval);
        Some(slot)
    }

    /// Frees the slot of a row or copy.
    pub(super) fn release(&mut self, slot: Slot) {
        let state = *self.rows.states.get(slot);
        if !state.flags.any(Flags::FROZEN_COPY) {
            self.words.remove(state.hash, slot);
            // Another number each time, whichever rows come and go.
            let chance = state.hash.rotate_left(17) ^ self.evicted;
            let class = class_of(state.frequency, chance);
            if class > 0 && !state.flags.any(Flags::ABSENT | Flags::FAILED) {
                self.left.push(Left {
                    hash: state.hash,
                    class,
                });
            }
        }
        self.counts.subtract(&state);
        self.rows.states.free(slot);
    }

    /// Recounts everything; panics where a count or a link is wrong. For tests.
    #[doc(hidden)]
    #[cfg(any(test, feature = "sim"))]
    pub fn check(&self) {
        let mut counts = Counts::default();
        let (mut free, mut queued) = (0, 0);
        for slot in (0..self.rows.states.touched()).map(Slot::new) {
            let state = self.rows.states.get(slot);
            counts.add(state);
            queued += usize::from(state.flags.any(Flags::QUEUED));
            if !state.used() {
                free += 1;
                assert!(!state.is_pinned(), "a free slot is bare");
                continue;
            }
            if !state.flags.any(Flags::FROZEN_COPY) {
                let found = self.words.get(&self.rows.states, state.hash);
                assert_eq!(found, slot, "a row is found by its hash");
            } else {
                assert!(self.copies.contains(&slot), "copies are listed");
            }
        }
        assert_eq!(counts, self.counts, "counts are exact");
        assert_eq!(
            self.free(),
            self.capacity - self.rows.states.touched() + free,
            "free slots"
        );
        assert_eq!(self.rows.states.freed(), free, "freed slots are chained");
        self.words.check();
        let mut queues = self.policy.queues();
        queues.extend([self.cold_clean, self.cold_dirty]);
        let walked = queues.iter().flat_map(|queue| self.rows.pool.walk(queue));
        let mut numbers: Vec<Slot> = walked.collect();
        assert_eq!(
            numbers.len(),
            queued,
            "marked are those that stand in a queue"
        );
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), queued, "each stands in one queue");
        assert!(
            self.bytes() <= self.bytes_allocated(),
            "touched memory is allocated"
        );
    }
}
