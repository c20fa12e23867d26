//! How is a batch served whose rows are mostly in memory? One visit per row.
//!
//! - A row is found, pinned and told to the policy while the cache line of its state is near; the
//!   misses of many rows overlap. Some hundred rows are found, then they are copied.
//! - What can't be copied yet, because it is not in memory or is being read, is named to the
//!   caller; rows that are there are pinned whatever else the batch needs.

use super::arena::Place;
use super::cache::{AHEAD_STATES, Cache};
use super::row_state::{Flags, RowState};
use super::words::Lookups;
use crate::units::{Slot, narrow};

/// Rows that are found before they are copied. One row's look-up and another's copy at a time
/// instead: 105 ns a row, where a look-up alone costs 30 and a copy 52.
const COPIES: usize = 256;
/// Rows between the one that is copied and the one whose lines the processor is asked to fetch.
const AHEAD: usize = 16;

/// Rows between the one that is changed and the one whose lines the processor is asked to fetch.
pub const AHEAD_ROWS: usize = 4;

/// What a batch found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// Rows that nobody had pinned before.
    pub newly_pinned: usize,
    /// Distinct rows that were ever pushed and not removed since.
    pub known: usize,
    /// Whether a row was found at two positions.
    pub repeats: bool,
}

/// What is counted while rows are found.
#[derive(Default)]
struct Found {
    /// Positions, and the rows at them.
    touches: usize,
    distinct: usize,
    /// Rows that could have left.
    evictable: usize,
}

/// Rows that can be copied: index and place.
struct Ready {
    rows: [(usize, Place); COPIES],
    count: usize,
}

impl Default for Ready {
    fn default() -> Ready {
        Ready {
            rows: [(0, Place::NONE); COPIES],
            count: 0,
        }
    }
}

impl Ready {
    #[inline]
    fn push(&mut self, index: usize, place: Place) {
        self.rows[self.count] = (index, place);
        self.count += 1;
    }
}

/// The bits of a position that a state keeps.
#[inline]
fn low_bits(position: usize) -> u16 {
    narrow(position & 0xffff)
}

/// Whether the row of `slots[at]` is that of an earlier position too: it is if it is that of one which
/// ends in the bits that the state had kept of the last.
#[inline]
fn is_found_before(slots: &[Slot], at: usize, mark: u16) -> bool {
    let mut before = usize::from(mark);
    while before < at {
        if slots[before] == slots[at] {
            return true;
        }
        before += 1 << 16;
    }
    false
}

impl Cache {
    /// Finds, pins and touches rows of a table, and copies the first words of each into its target. A row is pinned
    /// once, however often it is asked for.
    ///
    /// `slots` gets each row's slot, [`Slot::NONE`] if it is not in memory; `rest` the indexes of
    /// rows that were not copied: not in memory, being read, or failed to be.
    ///
    /// # Shapes
    /// hashes: `[n]`, slots: `[n]`; targets: `[n]` of equal length each, or none
    pub fn hit_batch(
        &mut self,
        table: usize,
        hashes: &[u64],
        slots: &mut [Slot],
        targets: &mut [&mut [f32]],
        rest: &mut Vec<u32>,
    ) -> Hits {
        assert!(
            targets.is_empty() || targets.len() == hashes.len(),
            "one target per hash"
        );
        let width = targets.first().map_or(0, |t| t.len());
        let mut hits = Hits::default();
        let mut found = Found::default();
        let mut ready = Ready::default();
        let mut lookups = Lookups::default();
        for step in 0..Lookups::steps(hashes.len()) {
            let asked = (table, hashes);
            let answer = lookups.step(&self.words, &self.rows.states, asked, step);
            let Some((at, slot)) = answer else {
                continue;
            };
            slots[at] = slot;
            if slot != Slot::NONE {
                let flags = self.pin_found(slots, at, &mut hits, &mut found);
                if !flags.any(Flags::LOADING | Flags::FAILED) {
                    if width > 0 {
                        ready.push(at, self.place_to_read(slot));
                        if ready.count == COPIES {
                            self.copy_ready(table, &mut ready, targets, width);
                        }
                    }
                    continue;
                }
            }
            rest.push(narrow(at));
        }
        if hits.newly_pinned > 0 {
            self.count_pins(table, hits.newly_pinned, found.evictable);
        }
        hits.repeats = found.distinct < found.touches;
        self.policies
            .touched(&mut self.rows, found.touches, found.distinct);
        self.copy_ready(table, &mut ready, targets, width);
        hits
    }

    /// Where the content of a row is, which is made if there is none yet.
    #[inline]
    fn place_to_read(&mut self, slot: Slot) -> Place {
        let RowState { place, flags, .. } = *self.rows.states.get(slot);
        if flags.any(Flags::UNFILLED) {
            self.fill(slot);
        }
        place
    }

    fn copy_ready(
        &self,
        table: usize,
        ready: &mut Ready,
        targets: &mut [&mut [f32]],
        width: usize,
    ) {
        let rows = &ready.rows[..std::mem::take(&mut ready.count)];
        self.copy_rows(table, rows.iter().copied(), targets, width);
    }

    /// Copies the first words of rows, (index of the target, place), each announced before.
    #[inline]
    fn copy_rows(
        &self,
        table: usize,
        rows: impl Iterator<Item = (usize, Place)> + Clone,
        targets: &mut [&mut [f32]],
        width: usize,
    ) {
        let row_f32s = self.rows.tables.get(table).map_or(0, |t| t.row_f32s);
        let mut ahead = rows.clone();
        for (_, place) in ahead.by_ref().take(AHEAD) {
            self.arena.prefetch(place, row_f32s, width);
        }
        for (index, place) in rows {
            if let Some((_, next)) = ahead.next() {
                self.arena.prefetch(next, row_f32s, width);
            }
            targets[index].copy_from_slice(&self.arena.row(place, row_f32s)[..width]);
        }
    }

    /// Pins the row of `slots[at]`, unless one of the positions before is of the same row; counts the use.
    #[inline]
    fn pin_found(
        &mut self,
        slots: &[Slot],
        at: usize,
        hits: &mut Hits,
        found: &mut Found,
    ) -> Flags {
        let slot = slots[at];
        let state = self.rows.states.get_mut(slot);
        let mark = std::mem::replace(&mut state.mark, low_bits(at));
        state.visit();
        let flags = state.flags;
        found.touches += 1;
        if is_found_before(slots, at, mark) {
            return flags;
        }
        found.distinct += 1;
        let gone = flags.any(Flags::ABSENT | Flags::REMOVED);
        hits.known += usize::from(!gone);
        if !state.is_pinned() {
            hits.newly_pinned += 1;
            found.evictable += usize::from(state.evictable());
        }
        self.rows.states.raise(slot);
        flags
    }

    /// Copies the first words of rows of one table into their targets; where there are no words yet, they
    /// are made first.
    ///
    /// # Shapes
    /// slots: `[n]`, targets: `[n]` of equal length each
    pub fn gather(&mut self, slots: &[Slot], targets: &mut [&mut [f32]]) {
        let width = targets.first().map_or(0, |t| t.len());
        let mut targets = targets.iter_mut();
        self.read_rows(slots, width, |row| {
            if let Some(target) = targets.next() {
                target.copy_from_slice(row);
            }
        });
    }

    /// The same, to places of one array, each by `copy`.
    ///
    /// # Shapes
    /// slots: `[n]`, at: n rows of out, out: `[rows, width]`
    pub fn gather_into(
        &mut self,
        slots: &[Slot],
        mut at: impl Iterator<Item = usize>,
        (out, width): (&mut [f32], usize),
        copy: impl Fn(&[f32], &mut [f32]),
    ) {
        self.read_rows(slots, width, |row| {
            if let Some(at) = at.next() {
                copy(row, &mut out[at * width..][..width]);
            }
        });
    }

    /// Shows the first words of rows of one table, each announced before; where there are no words yet, they are made
    /// first.
    #[inline]
    fn read_rows(&mut self, slots: &[Slot], width: usize, mut read: impl FnMut(&[f32])) {
        let Some(first) = slots.first() else {
            return;
        };
        let row_f32s = self.rows.tables[self.rows.states.get(*first).table()].row_f32s;
        let (mut states, mut places) = (slots.iter(), slots.iter());
        for slot in states.by_ref().take(2 * AHEAD) {
            self.rows.states.prefetch_line(*slot);
        }
        let mut ahead = [Place::NONE; AHEAD];
        for (i, slot) in places.by_ref().take(AHEAD).enumerate() {
            ahead[i] = self.place_to_read(*slot);
            self.arena.prefetch(ahead[i], row_f32s, width);
        }
        for i in 0..slots.len() {
            if let Some(slot) = states.next() {
                self.rows.states.prefetch_line(*slot);
            }
            let place = ahead[i % AHEAD];
            if let Some(slot) = places.next() {
                let next = self.place_to_read(*slot);
                self.arena.prefetch(next, row_f32s, width);
                ahead[i % AHEAD] = next;
            }
            read(&self.arena.row(place, row_f32s)[..width]);
        }
    }

    /// Lowers the pin count once per position; returns how many rows have none now. Rows that
    /// could not be loaded are dropped with their last pin.
    pub fn unpin(&mut self, slots: &[Slot]) -> usize {
        let before = self.counts.pinned;
        // Rows of one table in a row are counted at once.
        let (mut table, mut pinned, mut evictable) = (0, 0, 0);
        let mut failed = false;
        for (i, slot) in slots.iter().enumerate() {
            if let Some(ahead) = slots.get(i + AHEAD_STATES) {
                self.rows.states.prefetch_line(*ahead);
            }
            if !self.rows.states.lower(*slot) {
                continue;
            }
            let state = *self.rows.states.get(*slot);
            if state.table() != table {
                self.note_unpinned(table, pinned, evictable);
                (table, pinned, evictable) = (state.table(), 0, 0);
            }
            pinned += 1;
            evictable += usize::from(state.evictable());
            failed |= state.flags.any(Flags::FAILED);
        }
        self.note_unpinned(table, pinned, evictable);
        if failed {
            self.release_failed(slots);
        }
        before - self.counts.pinned
    }

    fn note_unpinned(&mut self, table: usize, pinned: usize, evictable: usize) {
        if pinned == 0 {
            return;
        }
        self.adjust(table, |counts| {
            counts.pinned -= pinned;
            counts.evictable += evictable;
        });
    }

    /// Drops those of the rows that could not be loaded and that nobody has pinned; positions may repeat.
    #[cold]
    fn release_failed(&mut self, slots: &[Slot]) {
        for slot in slots {
            let state = self.rows.states.get(*slot);
            if state.used() && state.flags.any(Flags::FAILED) && !state.is_pinned() {
                self.release(*slot);
            }
        }
    }

    /// Announces that a row is changed soon, whose state is at hand.
    #[inline]
    pub fn prefetch_line(&self, slot: Slot) {
        let state = self.rows.states.get(slot);
        let row_f32s = self.rows.tables[state.table()].row_f32s;
        self.prefetch_at(state.place, row_f32s);
    }

    /// Announces that the row at a place is changed soon.
    #[inline]
    pub(crate) fn prefetch_at(&self, place: Place, row_f32s: usize) {
        self.arena.prefetch(place, row_f32s, row_f32s);
    }

    /// Changes the rows at places that [`Cache::begin_at`] told, each announced before.
    #[inline]
    pub(crate) fn change_rows(
        &mut self,
        places: &[Place],
        row_f32s: usize,
        mut change: impl FnMut(&mut [f32]),
    ) {
        for (i, place) in places.iter().enumerate() {
            if let Some(ahead) = places.get(i + AHEAD_ROWS) {
                self.prefetch_at(*ahead, row_f32s);
            }
            change(self.row_at_mut(*place, row_f32s));
        }
    }

    /// The row at a place that [`Cache::begin_at`] told, to be changed.
    #[inline]
    pub(crate) fn row_at_mut(&mut self, place: Place, row_f32s: usize) -> &mut [f32] {
        self.arena.row_mut(place, row_f32s)
    }
}
