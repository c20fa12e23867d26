//! Are the counts of a cache what a recount says?

use super::Cache;
use crate::mem::row_state::{Counts, Flags};
use crate::units::Slot;

impl Cache {
    /// Whether it takes more than its memory though its rows do not: until room is asked for the next time,
    /// numbers of slots that are left over may.
    #[cfg(test)]
    pub fn has_too_much(&self) -> bool {
        !self.arena.is_over() && self.bytes() > self.bytes_max()
    }

    /// Recounts everything; panics where a count or a link is wrong. For tests.
    #[doc(hidden)]
    pub fn check(&self) {
        let mut counts = Counts::default();
        let mut by_table = vec![Counts::default(); self.rows.tables.len()];
        let (mut free, mut queued) = (0, 0);
        let mut places = Vec::new();
        for slot in (0..self.rows.states.touched()).map(Slot::new) {
            let state = self.rows.states.get(slot);
            counts.add(state);
            queued += usize::from(state.flags.any(Flags::QUEUED));
            if !state.used() {
                free += usize::from(self.rows.states.is_taken_again(slot));
                assert!(!state.is_pinned(), "a free slot is bare");
                continue;
            }
            by_table[state.table()].add(state);
            let unread = Flags::DIRTY | Flags::LOADING | Flags::FAILED;
            assert!(
                !state.flags.any(Flags::UNFILLED)
                    || state.flags.any(Flags::REMOVED)
                    || state.flags.any(Flags::ABSENT) && !state.flags.any(unread),
                "what has no content was never pushed, or is removed"
            );
            places.push(state.place);
            if !state.flags.any(Flags::FROZEN_COPY) {
                let found = self
                    .words
                    .get(&self.rows.states, state.table(), state.hash());
                assert_eq!(found, slot, "a row is found by its hash");
            } else {
                assert!(self.copies.contains(&slot), "copies are listed");
            }
            let stays = self.rows.tables[state.table()].policy.keeps_all();
            assert_eq!(
                state.flags.any(Flags::KEPT),
                stays,
                "rows know their policy"
            );
        }
        assert_eq!(counts, self.counts, "counts are exact");
        for (table, counts) in self.rows.tables.iter().zip(&by_table) {
            assert_eq!(*counts, table.counts, "counts of a table are exact");
        }
        let count = places.len();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), count, "each row has a place of its own");
        self.arena.check();
        assert_eq!(self.arena.rows_in_spans(), self.shaped_for, "there is room");
        assert!(counts.used <= self.words.room(), "the hash table has room");
        assert_eq!(self.rows.states.chained(), free, "freed slots are chained");
        self.words.check();
        let mut queues = self.policies.queues();
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
    }
}
