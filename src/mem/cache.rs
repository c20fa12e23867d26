//! Is a row in memory, where, and is there room for another? The cache of all tables in one shard.
//!
//! - Its memory never exceeds the bytes it was given, whatever the sizes of rows.
//! - `counts`, of all and of each table, are exact after every call: every change of a state goes through
//!   `change`.
//! - Used slots are rows (found by table and hash) or frozen copies (found through their list only).

#[cfg(any(test, feature = "sim"))]
mod check;
mod config;
mod parts;
mod room;
mod warm;

pub use config::{CacheConfig, FlushStep, check_rows_fit};
pub use room::Shrunk;

use super::arena::Arena;
use super::policy::{Policies, Rows, bias_of, class_of, frequency_of};
use super::queues::{Pool, Queue};
use super::row_state::{Counts, Flags, Left, RowState, States};
use super::table::{TableConfig, TableRows};
use super::words::Words;
use crate::error::Result;
use crate::units::{Slot, narrow, unmix64};

/// Rows that the policy names at once.
pub(super) const NAMED_ROWS: usize = 64;
/// The low-water mark is a flush step divided by this, unless batches are likely to miss more.
const LOW_SHARE: u64 = 8;
/// Times what those that hold rows pinned now are likely to miss: a flush may have to wait for the device.
const LOW_BATCHES: u64 = 3;
/// It is so many rows at least.
const LOW_ROWS: u64 = 2;
/// Rows between the one that is changed and the one whose state is announced.
pub(super) const AHEAD_STATES: usize = 40;

/// The rows of one shard that are in memory; see [`crate::mem`].
#[derive(Debug)]
pub struct Cache {
    pub(super) rows: Rows,
    pub(super) arena: Arena,
    pub(super) policies: Policies,
    pub(super) counts: Counts,
    pub(super) named: Vec<Slot>,
    pub(super) words: Words,
    /// Clean rows that leave next, and dirty ones that are written next.
    pub(super) cold_clean: Queue,
    pub(super) cold_dirty: Queue,
    /// Slots that hold frozen copies, and some that did.
    pub(super) copies: Vec<Slot>,
    /// Rows that left since [`Cache::forget_left`], and how often they had been used.
    pub(super) left: Vec<Left>,
    /// Rows that left to make room.
    pub(super) evicted: u64,
    range: (u64, u64),
    flush_step: FlushStep,
    /// Rows of all spans, as queues and hash table have room for them.
    shaped_for: usize,
    /// Rows that have to leave before slot numbers are given back again.
    trim_after: u64,
    /// Slots of dirty rows keep their numbers: a checkpoint goes through them, or so many flushes.
    numbers_held: (bool, usize),
    /// Where the next look at every state for rows that leave begins.
    pub(super) hand: usize,
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

impl Cache {
    /// An empty cache without tables.
    ///
    /// # Errors
    /// `InvalidArgument` if the system does not give the memory.
    pub fn new(config: &CacheConfig) -> Result<Cache> {
        assert!(
            config.range.0 <= config.range.1,
            "a shard's range is not empty"
        );
        let mut cache = Cache {
            rows: Rows {
                states: States::default(),
                pool: Pool::new(),
                tables: Vec::new(),
            },
            arena: Arena::new(config.bytes)?,
            policies: Policies::default(),
            counts: Counts::default(),
            named: Vec::with_capacity(NAMED_ROWS),
            words: Words::new(),
            cold_clean: Queue::default(),
            cold_dirty: Queue::default(),
            copies: Vec::new(),
            left: Vec::new(),
            evicted: 0,
            range: config.range,
            flush_step: config.flush_step,
            shaped_for: 0,
            trim_after: 0,
            numbers_held: (false, 0),
            hand: 0,
        };
        cache.reshape();
        Ok(cache)
    }

    /// Adds a table, whose number is the count of those before; nothing moves.
    ///
    /// # Errors
    /// `InvalidArgument` if the system does not give the memory.
    pub fn add_table(&mut self, config: &TableConfig) -> Result<()> {
        let row_f32s = config.layout.row_f32s();
        assert!(row_f32s > 0, "a row has at least one word");
        let class = self.arena.class(row_f32s);
        let cost = self.arena.row_cost(class);
        let table = TableRows::new(config, class, cost, bias_of(cost));
        self.rows.tables.push(table);
        if let Err(error) = self
            .arena
            .add_windows()
            .and_then(|()| self.reserve_memory())
        {
            self.rows.tables.pop();
            return Err(error);
        }
        self.reshape();
        Ok(())
    }

    /// Forgets the tables from this number on, which have no rows.
    pub fn truncate_tables(&mut self, tables: usize) {
        self.rows.tables.truncate(tables);
    }

    /// Gives a table another policy, or other bounds.
    pub fn set_table(&mut self, table: usize, config: &TableConfig) {
        let before = self.rows.tables[table].policy;
        self.rows.tables[table].set_bounds(config);
        if config.policy.of_rows() == before {
            return;
        }
        let stay = !self.rows.tables[table].evicts();
        self.policies.clear(&mut self.rows);
        for slot in (0..self.rows.states.touched()).map(Slot::new) {
            let state = self.rows.states.get(slot);
            if state.used() && state.table() == table {
                self.change(slot, |state| {
                    state.flags = match stay {
                        true => state.flags.with(Flags::KEPT),
                        false => state.flags.without(Flags::KEPT),
                    }
                });
            }
        }
        self.reshape();
        self.policies.queue_all(&mut self.rows);
    }

    /// Drops all rows of a table, whatever their state: none is pinned or being written.
    pub fn drop_rows(&mut self, table: usize) {
        for slot in (0..self.rows.states.touched()).map(Slot::new) {
            let state = self.rows.states.get(slot);
            if state.used() && state.table() == table {
                assert!(
                    !state.is_pinned() && !state.flags.any(Flags::WRITING),
                    "rows of a table that is dropped are not in use"
                );
                self.release(slot);
            }
        }
        self.left.retain(|row| usize::from(row.table) != table);
        self.rows.tables[table].is_dropped = true;
        self.reshape();
    }

    /// Whether rows of a table ever leave (the PinAll policy keeps all).
    #[must_use]
    pub fn evicts(&self, table: usize) -> bool {
        self.rows.tables[table].evicts()
    }

    /// Rows in memory, frozen copies not counted.
    #[must_use]
    pub fn resident(&self) -> usize {
        self.counts.used - self.counts.frozen
    }

    /// Rows with at least one pin.
    #[must_use]
    #[cfg(any(test, feature = "sim"))]
    pub fn pinned(&self) -> usize {
        self.counts.pinned
    }

    /// Rows that can be dropped at once: clean, unpinned, not being read or written.
    #[must_use]
    #[cfg(any(test, feature = "sim"))]
    pub fn evictable(&self) -> usize {
        self.counts.evictable
    }

    /// Dirty rows, frozen copies included.
    #[must_use]
    pub fn dirty(&self) -> usize {
        self.counts.dirty
    }

    /// Those of a table.
    #[must_use]
    pub fn dirty_of(&self, table: usize) -> usize {
        self.rows.tables.get(table).map_or(0, |t| t.counts.dirty)
    }

    /// Slots that hold the state of a row at a checkpoint's cut.
    #[must_use]
    pub fn frozen_copies(&self) -> usize {
        self.counts.frozen
    }

    /// Rows taken per flush; [`Cache::below_low_water`] compares with a share of it.
    #[must_use]
    pub fn flush_step(&self) -> FlushStep {
        self.flush_step.within(self.arena.bytes_max())
    }

    fn bytes_of(&self, rows: impl Fn(&Counts) -> usize) -> u64 {
        let tables = self.rows.tables.iter();
        tables.map(|t| rows(&t.counts) as u64 * t.cost).sum()
    }

    /// Memory that rows can have at once: what is less than a span is of no use.
    fn bytes_available(&self) -> u64 {
        let used = self.bytes_of(|c| c.used - c.evictable);
        let most = self.rows.tables.iter().max_by_key(|t| t.counts.used);
        let rest = most.map_or(0, |table| self.arena.bytes_left_over(table.class));
        let others = used + self.arena.charged() + rest;
        self.arena.bytes_max().saturating_sub(others)
    }

    /// Whether rows could leave once they are written.
    fn has_dirty(&self) -> bool {
        let mut tables = self.rows.tables.iter();
        self.counts.dirty > 0 && tables.any(|t| t.evicts() && t.counts.dirty > 0)
    }

    /// Memory of a flush step.
    fn step_bytes(&self) -> u64 {
        let step = self.flush_step();
        let of_rows = (step.rows as u64).saturating_mul(self.mean_cost());
        step.bytes.min(of_rows)
    }

    /// Whether so little memory can be had at once that dirty rows should be flushed. Rows that stay longer are changed
    /// and found again more often; and what waits to leave, clean or dirty, is memory that warmer rows do not have.
    ///
    /// What is left at the mark has to serve the batches to come while the flush is on its way. They are taken to be
    /// as large as those that hold rows pinned now, and to miss as many rows as batches did lately. Three times what
    /// those would miss: 0.3 % fewer misses at zipf 0.99 than with all that is pinned; with once as much 0.6 % fewer, but
    /// batches wait for flushes (p99 of a pull 300 ms, not 45). The mark is an eighth of a flush step and two rows at
    /// least, and never more than a step: batches that miss more than that wait for a flush.
    #[must_use]
    pub fn below_low_water(&self) -> bool {
        let step = self.step_bytes();
        let least = step.div_ceil(LOW_SHARE).max(LOW_ROWS * self.mean_cost());
        let mark = self.likely_misses().max(least).min(step);
        self.is_over_ceilings() || self.has_dirty() && self.bytes_available() < mark
    }

    /// Memory that the next batches are likely to ask for, no more than those take that hold rows pinned now.
    fn likely_misses(&self) -> u64 {
        let pinned = self.bytes_of(|c| c.pinned);
        let likely = self.policies.likely_missing(pinned);
        likely.saturating_mul(LOW_BATCHES).min(pinned)
    }

    /// Whether less memory can be had at once than so many flushes free, or than one does where those take more
    /// than half of all: when some cache runs low, those that soon would are flushed with it, into files of full
    /// size.
    #[must_use]
    pub fn below_flush_steps(&self, steps: usize) -> bool {
        self.is_over_ceilings() || self.is_short_of(steps)
    }

    fn is_short_of(&self, steps: usize) -> bool {
        let (step, half) = (self.step_bytes(), self.arena.bytes_max() / 2);
        let mark = step.saturating_mul(steps as u64).min(half).max(step);
        self.has_dirty() && self.bytes_available() < mark
    }

    /// Whether less can be had than one flush frees, whatever the ceilings of some tables.
    pub(super) fn is_short(&self) -> bool {
        self.is_short_of(1)
    }

    /// Whether some row would leave once it is written.
    #[must_use]
    pub fn can_write(&self) -> bool {
        let (states, tables) = (&self.rows.states, &self.rows.tables);
        let dirty = |state: &RowState| state.flags.any(Flags::DIRTY) && !state.is_pinned();
        let mut all = states.range(0..states.touched()).iter();
        all.any(|state| state.used() && dirty(state) && tables[state.table()].evicts())
    }

    /// Whether a table has dirty rows beyond its ceiling, which leave once they are written.
    pub(super) fn is_over_ceilings(&self) -> bool {
        self.rows.tables.iter().any(TableRows::is_over_ceiling)
    }

    /// Finds the slot of each hash; [`Slot::NONE`] for rows not in memory.
    ///
    /// # Shapes
    /// hashes: `[n]`, slots: `[n]`
    pub fn lookup(&self, table: usize, hashes: &[u64], slots: &mut [Slot]) {
        self.words
            .get_batch(&self.rows.states, table, hashes, slots);
    }

    /// Raises the pin count once per position; returns how many rows had none before.
    pub fn pin(&mut self, slots: &[Slot]) -> usize {
        let before = self.counts.pinned;
        for slot in slots {
            let state = *self.rows.states.get(*slot);
            assert!(
                state.flags & (Flags::USED | Flags::FROZEN_COPY) == Flags::USED,
                "only rows are pinned"
            );
            if !state.is_pinned() {
                self.count_pins(state.table(), 1, usize::from(state.evictable()));
            }
            self.rows.states.raise(*slot);
        }
        self.counts.pinned - before
    }

    /// Counts rows of a table that are pinned now and were not, and those of them that could have left.
    pub(super) fn count_pins(&mut self, table: usize, pinned: usize, evictable: usize) {
        self.adjust(table, |counts| {
            counts.pinned += pinned;
            counts.evictable -= evictable;
        });
    }

    /// Changes what is counted of a table, and of all.
    #[inline]
    pub(super) fn adjust(&mut self, table: usize, change: impl Fn(&mut Counts)) {
        change(&mut self.counts);
        change(&mut self.rows.tables[table].counts);
    }

    /// Tells the policy that a batch used these rows; positions may repeat.
    pub fn touch(&mut self, slots: &[Slot]) {
        for slot in slots {
            self.visit(*slot);
        }
        self.policies
            .touched(&mut self.rows, slots.len(), slots.len());
    }

    /// Counts a use of a row.
    #[inline]
    pub(super) fn visit(&mut self, slot: Slot) {
        self.rows.states.get_mut(slot).visit();
    }

    /// Gives a row that is not in memory a free slot, unpinned, with `flags`, as one that is used for the
    /// first time since it left in frequency class `class`; none if there is no room. The slot's content is
    /// undefined until the caller fills it, or until somebody reads it where `flags` has UNFILLED.
    pub fn insert(&mut self, table: usize, hash: u64, flags: Flags, class: u8) -> Option<Slot> {
        let frequency = frequency_of(class).saturating_add(1);
        let slot = self.take_row(table, hash, flags, frequency)?;
        self.policies.touched(&mut self.rows, 1, 1);
        self.policies.admitted(&mut self.rows, slot);
        Some(slot)
    }

    /// A free slot for a row that is not in memory, which stands in no queue yet.
    fn take_row(&mut self, table: usize, hash: u64, flags: Flags, frequency: u8) -> Option<Slot> {
        assert!(
            (self.range.0..=self.range.1).contains(&hash),
            "a hash lies in its shard's range"
        );
        debug_assert!(
            self.words.get(&self.rows.states, table, hash) == Slot::NONE,
            "a row has one slot"
        );
        let slot = self.take_slot(table, hash, flags, 0)?;
        self.words.insert(table, hash, slot);
        self.rows.states.get_mut(slot).set_frequency(frequency);
        Some(slot)
    }

    /// The slot of a row that may be in memory by now, or a free one that [`Cache::insert`] gives
    /// it, without flags, and whether it is that; none if it is not in memory and there is no room.
    pub fn find_or_insert(&mut self, table: usize, hash: u64, class: u8) -> Option<(Slot, bool)> {
        match self.words.get(&self.rows.states, table, hash) {
            Slot::NONE => Some((self.insert(table, hash, Flags::default(), class)?, true)),
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
        let state = self.rows.states.get(slot);
        self.arena
            .row(state.place, self.rows.tables[state.table()].row_f32s)
    }

    /// Makes a row that has no content yet that of a key that was never pushed.
    #[inline(never)]
    pub(super) fn fill(&mut self, slot: Slot) {
        let state = self.rows.states.get_mut(slot);
        state.flags = state.flags.without(Flags::UNFILLED);
        let (key, place) = (unmix64(state.hash()), state.place);
        let table = &self.rows.tables[state.table()];
        let row = self.arena.row_mut(place, table.row_f32s);
        table.layout.default_row(key, row);
    }

    /// The content of a row, to be changed after [`Cache::begin_at`].
    #[inline]
    pub fn row_mut(&mut self, slot: Slot) -> &mut [f32] {
        let state = self.rows.states.get(slot);
        let row_f32s = self.rows.tables[state.table()].row_f32s;
        self.arena.row_mut(state.place, row_f32s)
    }

    /// The hash of a row.
    #[must_use]
    pub fn hash_of(&self, slot: Slot) -> u64 {
        self.rows.states.get(slot).hash()
    }

    /// The flags of a row.
    #[inline]
    #[must_use]
    pub fn flags(&self, slot: Slot) -> Flags {
        self.rows.states.get(slot).flags.shown()
    }

    /// Sets flags of a row. DIRTY is set by [`Cache::begin_at`] only.
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
        self.policies.level_of(&self.rows, slot)
    }

    /// Changes a state and keeps the counts exact.
    #[inline]
    pub(super) fn change<T>(&mut self, slot: Slot, f: impl FnOnce(&mut RowState) -> T) -> T {
        let state = self.rows.states.get_mut(slot);
        let before = *state;
        let result = f(state);
        let after = *state;
        self.adjust(before.table(), |counts| {
            counts.subtract(&before);
            counts.add(&after);
        });
        result
    }

    /// Takes a free slot for a row or a copy; it stands in no queue of its own yet.
    pub(super) fn take_slot(
        &mut self,
        table: usize,
        hash: u64,
        flags: Flags,
        interval: u32,
    ) -> Option<Slot> {
        let of_table = &mut self.rows.tables[table];
        let place = self.arena.take(of_table.class)?;
        let slot = self.rows.states.take();
        let state = self.rows.states.get_mut(slot);
        // A number that still stands in a queue would be named as soon as it comes to the front.
        let queued = match state.flags.any(Flags::QUEUED) {
            true => Flags::QUEUED | Flags::VISITED,
            false => Flags::default(),
        };
        let kept = match of_table.evicts() {
            false => Flags::KEPT,
            true => Flags::default(),
        };
        *state = RowState::new(table, hash, place, queued | kept | flags | Flags::USED);
        self.counts.add(state);
        of_table.counts.add(state);
        self.rows.states.set_interval(slot, interval);
        if self.arena.rows_in_spans() != self.shaped_for {
            self.reshape();
        }
        Some(slot)
    }

    /// Frees the slot of a row or copy.
    pub(super) fn release(&mut self, slot: Slot) {
        let state = *self.rows.states.get(slot);
        let table = state.table();
        if !state.flags.any(Flags::FROZEN_COPY) {
            self.words.remove(table, state.hash(), slot);
            // Another number each time, whichever rows come and go.
            let chance = state.hash().rotate_left(17) ^ self.evicted;
            let class = class_of(state.frequency(), chance);
            if class > 0 && !state.flags.any(Flags::ABSENT | Flags::FAILED) {
                self.left.push(Left {
                    table: narrow(table),
                    hash: state.hash(),
                    class,
                });
            }
        }
        self.adjust(table, |counts| counts.subtract(&state));
        self.arena.free(self.rows.tables[table].class, state.place);
        self.rows.states.free(slot);
        if self.arena.rows_in_spans() != self.shaped_for {
            self.reshape();
        }
    }
}
