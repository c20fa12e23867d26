//! Which clean rows leave at once?
//!
//! - The policy names rows from its cold end; those that are clean leave, others wait in the queues of
//!   `victims` or go back to it.
//! - Where no queue leads to rows that may leave, a look at every state finds those of lowest rank; of equal
//!   rows those leave that have waited for long.

use super::cache::Cache;
use super::policy::Rows;
use super::row_state::{Flags, RowState};
use crate::units::{Slot, to_usize};

/// Rows that leave at once: their cache misses overlap.
const COLD_ROWS: usize = 16;
/// So often the policy is asked for rows before a look at every state finds those that may leave. Where almost
/// all are dirty it has few others to name at a time, each after such a look: without a bound on the times a pass of
/// 260 000 rows took 17 s to come in.
pub(super) const TIMES_ASKED: usize = 8;
/// Rows that leave after such a look, if a sixteenth of those that may leave is as many: whoever wants a few
/// comes again for more. With only what was wanted, rows of a pass beside 650 000 dirty ones were put at 0.1 to 0.9
/// GiB/s; with this at 1.2 to 4.4.
const LOOK_ROWS: usize = 4096;

impl Cache {
    /// Drops clean rows that may leave, of any table; returns how many: none where there are none. Some of `want`, or
    /// more where a look at every state finds them.
    pub(super) fn evict(&mut self, want: usize) -> usize {
        let before = self.evicted;
        let enough = COLD_ROWS.min(want);
        let mut asked = 0;
        while self.evicted == before && self.counts.evictable > 0 {
            let mut cold = std::mem::take(&mut self.named);
            cold.clear();
            while cold.len() < enough
                && let Some(slot) = self.pop_cold()
            {
                cold.push(slot);
            }
            if cold.is_empty() && asked < TIMES_ASKED {
                self.policies.coldest(&mut self.rows, enough, &mut cold);
                asked += 1;
            }
            let none = cold.is_empty();
            for slot in &cold {
                let state = self.rows.states.get(*slot);
                self.words.prefetch_run(state.table(), state.hash());
            }
            for slot in &cold {
                let state = self.rows.states.get(*slot);
                let table = &self.rows.tables[state.table()];
                if !state.evictable() || state.flags.any(Flags::VISITED) {
                    self.sort(*slot);
                } else if table.is_sheltered() {
                    self.policies.returned(&mut self.rows, *slot);
                } else {
                    self.evict_row(*slot);
                }
            }
            self.named = cold;
            if none {
                self.evict_any(want, None);
                break;
            }
        }
        to_usize(self.evicted - before)
    }

    pub(super) fn evict_row(&mut self, slot: Slot) {
        let table = self.rows.states.get(slot).table();
        self.rows.tables[table].evicted += 1;
        self.evicted += 1;
        self.release(slot);
    }

    /// Takes a row that was named before: of the clean ones, else one of the dirty ones that was written
    /// meanwhile.
    fn pop_cold(&mut self) -> Option<Slot> {
        if let Some(slot) = self.rows.pop(&mut self.cold_clean) {
            return Some(slot);
        }
        loop {
            let first = self.rows.pool.first(&self.cold_dirty)?;
            let flags = self.rows.states.get(first).flags;
            let is_row = flags.any(Flags::USED) && !flags.any(Flags::FROZEN_COPY);
            if is_row && flags.any(Flags::DIRTY) {
                return None;
            }
            let slot = self
                .rows
                .pool
                .pop(&mut self.cold_dirty, &mut self.rows.states);
            if is_row {
                return slot;
            }
        }
    }

    /// Drops rows of one table in the order of its policy.
    ///
    /// # Cost
    /// A look at every state, or every number in a queue.
    #[cold]
    pub(super) fn evict_of(&mut self, table: usize, want: usize) {
        let before = self.evicted;
        let policy = self.rows.tables[table].policy;
        if let Some(queue) = self.policies.queue_of(policy) {
            let mut queue = std::mem::take(queue);
            let mut used_again = Vec::new();
            // All of them go round, so that those of other tables keep their order.
            for _ in 0..queue.len() {
                let Some(slot) = self.rows.pop(&mut queue) else {
                    break;
                };
                let state = self.rows.states.get_mut(slot);
                let may = state.table() == table && state.evictable();
                if !may || to_usize(self.evicted - before) >= want {
                    self.rows.push(&mut queue, slot);
                } else if state.flags.any(Flags::VISITED) {
                    state.flags = state.flags.without(Flags::VISITED);
                    used_again.push(slot);
                } else {
                    self.evict_row(slot);
                }
            }
            for slot in used_again {
                self.rows.push(&mut queue, slot);
            }
            if let Some(own) = self.policies.queue_of(policy) {
                *own = queue;
            }
        }
        // Some may stand in no queue.
        let left = want - to_usize(self.evicted - before);
        if left > 0 && self.rows.tables[table].counts.evictable > 0 {
            self.evict_any(left, Some(table));
        }
    }

    /// Drops the rows of lowest rank, of one table or of all: those that may leave stand in no queue that
    /// leads to them. Of one table, and of sheltered ones, `want` at most leave; of all others [`LOOK_ROWS`] do, too.
    ///
    /// # Cost
    /// Two looks at every state, or four.
    #[cold]
    pub(super) fn evict_any(&mut self, want: usize, only: Option<usize>) {
        let before = self.evicted;
        let some = (self.counts.evictable / 16).min(LOOK_ROWS);
        let at_once = only.map_or(want.max(some), |_| want);
        let own = |table| only.is_none_or(|only| only == table);
        self.evict_coldest(at_once, |table, sheltered| {
            own(table) && !(only.is_none() && sheltered)
        });
        if only.is_none() && self.evicted == before {
            // Rather than none, those that other tables' rows should leave before.
            self.evict_coldest(want, |_, _| true);
        }
    }

    fn evict_coldest(&mut self, want: usize, may: impl Fn(usize, bool) -> bool) {
        let touched = self.rows.states.touched();
        let rows = &self.rows;
        let leaves = |rows: &Rows, state: &RowState| {
            state.evictable() && may(state.table(), rows.tables[state.table()].is_sheltered())
        };
        let (limit, mut last) = rows.limit_of(want, |state| leaves(rows, state));
        // Of equal rows those that have waited for long.
        let start = self.hand.min(touched);
        for slot in (start..touched).chain(0..start).map(Slot::new) {
            let state = self.rows.states.get(slot);
            if !leaves(&self.rows, state) {
                continue;
            }
            let rank = self.rows.rank(state);
            if rank == limit && last > 0 {
                last -= 1;
                self.hand = slot.index() + 1;
            } else if rank >= limit {
                continue;
            }
            self.evict_row(slot);
        }
    }
}
