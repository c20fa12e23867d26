//! Which rows belong to blocks: the pins of passes that stay?
//!
//! - A mark in a row's state says that some block has it; who keeps the blocks sets and takes it.
//! - A row that is in no block leaves when its pass ends.

use super::cache::{AHEAD_STATES, Cache};
use super::row_state::Flags;
use crate::units::Slot;

impl Cache {
    /// How many of these rows are in some block; positions do not repeat.
    #[must_use]
    pub fn in_blocks(&self, slots: &[Slot]) -> usize {
        let states = &self.rows.states;
        let is_in = |slot: &&Slot| states.get(**slot).flags.any(Flags::IN_BLOCK);
        slots.iter().filter(is_in).count()
    }

    /// Says of pinned rows whether they are in some block.
    pub fn mark_block(&mut self, slots: &[Slot], is_in: bool) {
        for (i, slot) in slots.iter().enumerate() {
            if let Some(ahead) = slots.get(i + AHEAD_STATES) {
                self.rows.states.prefetch_line(*ahead);
            }
            let state = self.rows.states.get_mut(*slot);
            assert!(state.used() && state.is_pinned(), "rows of blocks stay");
            state.flags = match is_in {
                true => state.flags.with(Flags::IN_BLOCK),
                false => state.flags.without(Flags::IN_BLOCK),
            };
        }
    }

    /// Unpins rows; those that nobody else needs and that are clean leave at once.
    pub fn unpin_and_leave(&mut self, slots: &[Slot]) {
        self.unpin(slots);
        for (i, slot) in slots.iter().enumerate() {
            if let Some(ahead) = slots.get(i + AHEAD_STATES) {
                let state = self.rows.states.get(*ahead);
                self.words.prefetch_run(state.table(), state.hash());
            }
            let state = self.rows.states.get(*slot);
            // A position may repeat: the row is gone then.
            if state.evictable() && !state.flags.any(Flags::IN_BLOCK) {
                self.evict_row(*slot);
            }
        }
    }
}
