//! Which rows leave, and when is it safe? Dropping clean rows, handing dirty ones to a writer.
//!
//! - The policy names rows from its cold end, once; named rows wait in a queue of clean or one of
//!   dirty rows, so that neither search looks again and again at rows of the other kind. A row
//!   that was used meanwhile goes back to the policy.
//! - A dirty row leaves in three steps: chosen (`take_victims`, `take_frozen`), copied out
//!   (`copy_out`: WRITING), reported (`written`). Between the first two anything may happen to
//!   the row; the second checks again.
//! - A row that changes after a checkpoint's cut is copied into a free slot first
//!   (`begin_write`), inside the budget; copies are written like rows.

use super::arena::Place;
use super::cache::{AHEAD_STATES, Cache, FlushStep, NAMED_ROWS};
use super::evict::TIMES_ASKED;
use super::row_state::{Flags, Left, RowState, States};
use super::table::TableRows;
use crate::units::{Slot, narrow, to_usize};

/// States scanned by one `take_frozen`, at most: the caller may hold a lock.
const SCAN_ROWS: usize = 1 << 16;

/// A row or copy chosen to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// Hash of the row.
    pub hash: u64,
    /// Its slot.
    pub slot: Slot,
    table: u16,
    what: Use,
}

/// What a victim is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// To leave memory: it no longer qualifies once it is pinned.
    Leave,
    /// For a checkpoint.
    Keep,
    /// A frozen copy, for a checkpoint.
    Copy,
}

impl Victim {
    fn of(state: &RowState, slot: Slot, what: Use) -> Victim {
        Victim {
            hash: state.hash(),
            slot,
            table: narrow(state.table()),
            what,
        }
    }

    /// The table of the row.
    #[inline]
    #[must_use]
    pub fn table(&self) -> usize {
        usize::from(self.table)
    }
}

/// What was copied out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Hash of the row.
    pub hash: u64,
    /// Interval in which the row last changed.
    pub interval: u32,
    /// The row is removed: a tombstone is to be written, the content is meaningless.
    pub tombstone: bool,
}

/// What becomes of a dirty row that was named.
enum Choice {
    Victim(Victim),
    /// It changed too late.
    Young,
    /// It is clean by now, or in use.
    Other,
}

/// Whether it is dirty and last changed at or before a checkpoint's cut.
fn is_before(states: &States, state: &RowState, cut: u32) -> bool {
    state.flags.any(Flags::DIRTY) && states.interval(state) <= cut
}

impl Cache {
    /// The rows that left and had been used, since [`Cache::forget_left`]: they may be remembered
    /// until they come back.
    #[must_use]
    pub fn left(&self) -> &[Left] {
        &self.left
    }

    /// The rows that left are remembered.
    pub fn forget_left(&mut self) {
        self.left.clear();
    }

    /// Halvings of all frequencies so far.
    #[must_use]
    pub fn halvings(&self) -> u64 {
        self.policies.halvings()
    }

    /// Rows that left so far to make room.
    #[must_use]
    #[cfg(any(test, feature = "sim"))]
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Announces to the processor that a row comes in or leaves.
    #[inline]
    pub fn prefetch_word(&self, table: usize, hash: u64) {
        self.words.prefetch_run(table, hash);
    }

    /// Puts a row that stands in no queue into one: of clean or dirty rows, or back to the policy if it
    /// is in use.
    pub(super) fn sort(&mut self, slot: Slot) {
        let state = self.rows.states.get(slot);
        if state.busy() || state.flags.any(Flags::VISITED) {
            self.policies.returned(&mut self.rows, slot);
        } else if state.flags.any(Flags::WRITING | Flags::KEPT) {
            // Queued when the write is reported; one that is kept in none.
        } else if state.flags.any(Flags::DIRTY) {
            self.rows.push(&mut self.cold_dirty, slot);
        } else {
            self.rows.push(&mut self.cold_clean, slot);
        }
    }

    /// Marks rows of one table as changed in `interval`; positions may repeat. With `frozen`, a dirty row last
    /// changed at or before that interval is copied into a free slot first, for the checkpoint.
    /// Rows for which there may be no other slot must be pinned. What is changed has its content afterwards, except
    /// with `whole`: as [`Cache::begin_overwrite`]. `places` tells where the rows are, as long as the cache is given
    /// nothing else to do.
    ///
    /// # Errors
    /// The number of copies for which there was not enough room: every row is as it was. Positions
    /// that repeat count each time.
    pub(crate) fn begin_at(
        &mut self,
        slots: &[Slot],
        intervals: (u32, Option<u32>),
        whole: bool,
        places: &mut Vec<Place>,
    ) -> Result<(), usize> {
        places.clear();
        places.reserve(slots.len());
        self.begin(slots, intervals, whole, |place| places.push(place))
    }

    /// As [`Cache::begin_at`], whose places are looked at.
    ///
    /// # Errors
    /// As [`Cache::begin_at`].
    #[cfg(any(test, feature = "sim"))]
    pub fn begin_write(
        &mut self,
        slots: &[Slot],
        interval: u32,
        frozen: Option<u32>,
    ) -> Result<(), usize> {
        let mut places = Vec::new();
        self.begin_at(slots, (interval, frozen), false, &mut places)?;
        let there = slots.iter().map(|slot| self.rows.states.get(*slot).place);
        assert!(there.eq(places.iter().copied()), "where rows are");
        Ok(())
    }

    /// The same for rows that are written from end to end: those that have no content get none.
    ///
    /// # Errors
    /// As [`Cache::begin_at`].
    pub fn begin_overwrite(
        &mut self,
        slots: &[Slot],
        interval: u32,
        frozen: Option<u32>,
    ) -> Result<(), usize> {
        self.begin(slots, (interval, frozen), true, |_| {})
    }

    #[inline]
    fn begin(
        &mut self,
        slots: &[Slot],
        (interval, frozen): (u32, Option<u32>),
        whole: bool,
        mut told: impl FnMut(Place),
    ) -> Result<(), usize> {
        self.rows.states.enter(interval);
        if let Some(cut) = frozen {
            // Room for every copy first: a row is marked only when all can be.
            let states = &self.rows.states;
            let copied = |slot: &&Slot| is_before(states, states.get(**slot), cut);
            let copies = slots.iter().filter(copied).count();
            if copies > 0 {
                let table = states.get(slots[0]).table();
                if self.reclaim(table, copies) < copies {
                    return Err(copies);
                }
            }
        }
        for (i, slot) in slots.iter().enumerate() {
            if let Some(ahead) = slots.get(i + AHEAD_STATES) {
                self.rows.states.prefetch_line(*ahead);
            }
            let state = *self.rows.states.get(*slot);
            if frozen.is_some_and(|cut| is_before(&self.rows.states, &state, cut)) {
                let kept = Flags::DIRTY | Flags::FROZEN_COPY | (state.flags & Flags::REMOVED);
                let changed = self.rows.states.interval(&state);
                let (table, hash) = (state.table(), state.hash());
                let copy = self.take_slot(table, hash, kept, changed).ok_or(1usize)?;
                self.copies.push(copy);
                let place = self.rows.states.get(copy).place;
                let row_f32s = self.rows.tables[table].row_f32s;
                self.arena.copy(state.place, place, row_f32s);
            }
            told(state.place);
            let gone = Flags::ABSENT | Flags::REMOVED | Flags::UNFILLED;
            if state.flags & (gone | Flags::DIRTY) == Flags::DIRTY {
                // Changed before: most rows that are trained on.
                self.rows.states.set_interval(*slot, interval);
                continue;
            }
            let dirtied = usize::from(!state.flags.any(Flags::DIRTY));
            let evictable = usize::from(state.evictable());
            self.adjust(state.table(), |counts| {
                counts.dirty += dirtied;
                counts.evictable -= evictable;
            });
            if !whole && state.flags.any(Flags::UNFILLED) {
                self.fill(*slot);
            }
            let marked = self.rows.states.get_mut(*slot);
            marked.flags = (marked.flags | Flags::DIRTY).without(gone);
            self.rows.states.set_interval(*slot, interval);
        }
        Ok(())
    }

    /// Chooses the coldest dirty, unpinned rows last changed at or before `interval_max`, of all tables, at
    /// most `want`; appends them to `victims`. Rows stay as they are until they are copied out.
    ///
    /// With an `interval_max` that excludes rows (beside a checkpoint) it may find fewer than there
    /// are: it does not search the whole cache.
    pub fn take_victims(&mut self, want: FlushStep, interval_max: u32, victims: &mut Vec<Victim>) {
        // No more rows are named than a step has: queues have their bounds.
        let (mut bytes, rows) = (want.bytes, to_usize(want.bytes / self.mean_cost()).max(1));
        let want = want.rows.min(rows).min(self.counts.dirty);
        let start = victims.len();
        self.take_over_ceilings(want, &mut bytes, interval_max, victims);
        if victims.len() > start || self.is_over_ceilings() && !self.is_short() {
            return;
        }
        let mut young = Vec::new();
        let (mut looks, mut asked) = (self.resident(), 0);
        while victims.len() < start + want && bytes > 0 && young.len() <= 8 * want + 1024 {
            let mut cold = std::mem::take(&mut self.named);
            cold.clear();
            if let Some(slot) = self.rows.pop(&mut self.cold_dirty) {
                cold.push(slot);
            } else if looks > 0 && asked < TIMES_ASKED {
                let enough = NAMED_ROWS.min(start + want - victims.len());
                self.policies.coldest(&mut self.rows, enough, &mut cold);
                // A policy names fewer than it is asked for at the end of what a look at the states has found.
                asked += usize::from(cold.len() < enough);
                looks = looks.saturating_sub(cold.len());
                if victims.len() > start {
                    // Dirty rows may be rare, or all pinned: the search ends early with some victims.
                    looks = looks.min(4 * want);
                }
            }
            let none = cold.is_empty();
            for slot in &cold {
                match self.choice(*slot, interval_max) {
                    Choice::Victim(victim) => {
                        bytes = bytes.saturating_sub(self.rows.tables[victim.table()].cost);
                        victims.push(victim);
                    }
                    Choice::Young => young.push(*slot),
                    Choice::Other => {
                        self.sort(*slot);
                        continue;
                    }
                }
                // It is not to be named again meanwhile.
                self.rows.states.mark_queued(*slot, true);
            }
            self.named = cold;
            if none {
                break;
            }
        }
        let left = (start + want).saturating_sub(victims.len());
        if asked == TIMES_ASKED && bytes > 0 {
            let free = |state: &RowState| !state.flags.any(Flags::QUEUED);
            self.take_coldest(left, &mut bytes, interval_max, free, victims);
        }
        for victim in &victims[start..] {
            self.rows.states.mark_queued(victim.slot, false);
        }
        let was_young = !young.is_empty();
        for slot in young {
            self.rows.states.mark_queued(slot, false);
            self.rows.push(&mut self.cold_dirty, slot);
        }
        if victims.len() == start && !was_young {
            self.take_any(want, bytes, interval_max, victims);
        }
    }

    /// Chooses dirty rows of tables that have more than their ceiling, those of lowest rank.
    fn take_over_ceilings(
        &self,
        want: usize,
        bytes: &mut u64,
        interval_max: u32,
        victims: &mut Vec<Victim>,
    ) {
        if !self.rows.tables.iter().any(TableRows::is_over_ceiling) {
            return;
        }
        let tables = &self.rows.tables;
        let over = (0..tables.len()).filter(|t| tables[*t].is_over_ceiling());
        for table in over {
            let most = want.min(to_usize(*bytes / tables[table].cost));
            let most = most.min(to_usize(tables[table].over_ceiling()));
            let own = |state: &RowState| state.table() == table;
            self.take_coldest(most, bytes, interval_max, own, victims);
        }
    }

    /// Chooses dirty rows of lowest rank among those that `may` leave, as long as `bytes` last.
    ///
    /// # Cost
    /// Two looks at every state.
    #[cold]
    fn take_coldest(
        &self,
        want: usize,
        bytes: &mut u64,
        interval_max: u32,
        may: impl Fn(&RowState) -> bool,
        victims: &mut Vec<Victim>,
    ) {
        let states = &self.rows.states;
        let free = |state: &RowState| {
            may(state) && state.nameable() && states.writable(state, interval_max)
        };
        let (limit, mut last) = self.rows.limit_of(want, free);
        for slot in (0..states.touched()).map(Slot::new) {
            let state = states.get(slot);
            if *bytes == 0 {
                return;
            }
            if !free(state) {
                continue;
            }
            let rank = self.rows.rank(state);
            if rank == limit && last > 0 {
                last -= 1;
            } else if rank >= limit {
                continue;
            }
            *bytes = bytes.saturating_sub(self.rows.tables[state.table()].cost);
            victims.push(Victim::of(state, slot, Use::Leave));
        }
    }

    /// What is to be done with a row that was named and stands in no queue.
    #[inline]
    fn choice(&self, slot: Slot, interval_max: u32) -> Choice {
        let states = &self.rows.states;
        let state = states.get(slot);
        let in_use = state.is_pinned() || state.flags.any(Flags::VISITED);
        if in_use || !states.writable(state, u32::MAX) {
            Choice::Other
        } else if states.interval(state) > interval_max {
            Choice::Young
        } else {
            Choice::Victim(Victim::of(state, slot, Use::Leave))
        }
    }

    /// Chooses dirty rows in the order of slots: there may be some in queues that do not lead to them.
    #[cold]
    fn take_any(
        &mut self,
        want: usize,
        mut bytes: u64,
        interval_max: u32,
        victims: &mut Vec<Victim>,
    ) {
        let end = victims.len() + want;
        if want == 0 {
            return;
        }
        let states = &self.rows.states;
        for slot in (0..states.touched()).map(Slot::new) {
            let state = states.get(slot);
            let stays = state.flags.any(Flags::FROZEN_COPY | Flags::KEPT);
            if stays || state.is_pinned() || !states.writable(state, interval_max) {
                continue;
            }
            victims.push(Victim::of(state, slot, Use::Leave));
            bytes = bytes.saturating_sub(self.rows.tables[state.table()].cost);
            if victims.len() == end || bytes == 0 {
                return;
            }
        }
    }

    /// Chooses rows for a checkpoint: dirty ones last changed at or before `cut`, pinned or not, in
    /// slot order from `cursor` (0 at first), then frozen copies. Appends at most `want` to `victims`; false when nothing is left.
    ///
    /// One call scans a bounded number of slots, so that true may come with few or no victims:
    /// call again. It also stops at a row whose write is in flight and that changed since, before
    /// the cut: report that write first. Once a write of a victim was reported failed, start again
    /// with cursor 0, or give the checkpoint up and call [`Cache::discard_frozen`].
    pub fn take_frozen(
        &mut self,
        cursor: &mut usize,
        want: FlushStep,
        cut: u32,
        victims: &mut Vec<Victim>,
    ) -> bool {
        let before = victims.len();
        let mut bytes = want.bytes;
        let end = before.saturating_add(want.rows);
        let (states, tables) = (&self.rows.states, &self.rows.tables);
        let touched = states.touched();
        let stop = touched.min(*cursor + SCAN_ROWS);
        while *cursor < stop {
            let slot = Slot::new(*cursor);
            let state = states.get(slot);
            if !state.flags.any(Flags::FROZEN_COPY) && is_before(states, state, cut) {
                if victims.len() >= end || bytes == 0 || !states.writable(state, cut) {
                    return true;
                }
                victims.push(Victim::of(state, slot, Use::Keep));
                bytes = bytes.saturating_sub(tables[state.table()].cost);
            }
            *cursor += 1;
        }
        if *cursor < touched {
            return true;
        }
        self.list_copies();
        let mut left = victims.len() > before;
        let (states, tables) = (&self.rows.states, &self.rows.tables);
        for slot in &self.copies {
            let state = states.get(*slot);
            if is_before(states, state, cut) {
                left = true;
                if victims.len() >= end || bytes == 0 {
                    break;
                }
                victims.push(Victim::of(state, *slot, Use::Copy));
                bytes = bytes.saturating_sub(tables[state.table()].cost);
            }
        }
        left
    }

    /// Memory that the rows of victims take.
    #[must_use]
    pub fn bytes_of_victims(&self, victims: &[Victim]) -> u64 {
        let cost = |victim: &Victim| self.rows.tables[victim.table()].cost;
        victims.iter().map(cost).sum()
    }

    /// Takes out of the list of copies what is none any more.
    pub(super) fn list_copies(&mut self) {
        let states = &self.rows.states;
        self.copies
            .retain(|slot| states.get(*slot).flags.any(Flags::FROZEN_COPY));
        if self.copies.len() > self.counts.frozen {
            // A slot that was freed holds another copy now.
            self.copies.sort_unstable();
            self.copies.dedup();
        }
        if self.copies.is_empty() {
            self.copies = Vec::new();
        }
    }

    /// Drops all frozen copies that are not being written, for a checkpoint that was given up: the
    /// next one must not write them over newer rows. Returns how many were dropped.
    pub fn discard_frozen(&mut self) -> usize {
        let before = self.frozen_copies();
        self.list_copies();
        for slot in std::mem::take(&mut self.copies) {
            if self.rows.states.get(slot).flags.any(Flags::WRITING) {
                self.copies.push(slot);
            } else {
                self.release(slot);
            }
        }
        before - self.frozen_copies()
    }

    /// Announces to the processor that a victim is copied out or reported soon.
    #[inline]
    pub fn prefetch_state_of(&self, victim: &Victim) {
        self.rows.states.prefetch_line(victim.slot);
    }

    /// Announces that a victim is copied out soon, whose state is at hand.
    #[inline]
    pub fn prefetch_row_of(&self, victim: &Victim) {
        let states = &self.rows.states;
        // It may have left since it was chosen: then its slot has no place, or is another row's.
        if victim.slot.index() < states.touched() && states.get(victim.slot).used() {
            self.prefetch_line(victim.slot);
        }
    }

    /// Copies a victim into `row` and marks it as being written; none if it no longer qualifies:
    /// gone, clean, being written, changed after `interval_max`, or pinned though it was to leave.
    pub fn copy_out(
        &mut self,
        victim: &Victim,
        interval_max: u32,
        row: &mut [f32],
    ) -> Option<Taken> {
        let states = &self.rows.states;
        if victim.slot.index() >= states.touched() {
            return None;
        }
        let state = *states.get(victim.slot);
        let same = state.is(victim.table(), victim.hash)
            && state.flags.any(Flags::FROZEN_COPY) == (victim.what == Use::Copy)
            && states.writable(&state, interval_max);
        if !same || (victim.what == Use::Leave && state.is_pinned()) {
            return None;
        }
        let interval = states.interval(&state);
        row.copy_from_slice(self.arena.row(state.place, row.len()));
        self.change(victim.slot, |state| {
            state.flags = state.flags.without(Flags::DIRTY).with(Flags::WRITING);
        });
        let tombstone = state.flags.any(Flags::REMOVED);
        Some(Taken {
            hash: state.hash(),
            interval,
            tombstone,
        })
    }

    /// Reports the write of a victim that was copied out. If it failed, the row is dirty again.
    ///
    /// Returns false if it failed and the state that was copied out exists no more, because the
    /// row was changed since: a checkpoint whose cut lies between can't be completed.
    #[must_use = "a lost state must fail the checkpoint that needs it"]
    pub fn written(&mut self, victim: &Victim, ok: bool) -> bool {
        let state = *self.rows.states.get(victim.slot);
        let flying = state.flags.any(Flags::WRITING) && state.is(victim.table(), victim.hash);
        assert!(
            flying,
            "a write is reported once, for a victim that was copied out"
        );
        let changed = state.flags.any(Flags::DIRTY);
        self.change(victim.slot, |state| {
            state.flags = state.flags.without(Flags::WRITING);
            if !ok {
                state.flags = state.flags.with(Flags::DIRTY);
            } else if !changed && state.flags.any(Flags::REMOVED) {
                state.flags = state.flags.without(Flags::REMOVED).with(Flags::ABSENT);
            }
        });
        let copy = victim.what == Use::Copy;
        if ok && copy {
            self.release(victim.slot);
        } else if !state.flags.any(Flags::QUEUED) && !copy {
            match victim.what {
                // The policy has not named it: it is no colder than it was.
                Use::Keep => self.policies.stays(&mut self.rows, victim.slot),
                _ => self.sort(victim.slot),
            }
        }
        ok || !changed
    }
}
