//! How do rows come back that were in memory before the store was opened?

use super::Cache;
use crate::mem::policy::{class_of, frequency_of, rank_of};
use crate::mem::row_state::Flags;
use crate::units::{Slot, to_usize};

/// What is kept beside rows, and not counted with each, is less than this share of the memory: one in so many.
const BESIDE_SHARE: u64 = 64;

impl Cache {
    /// The class of how often a row in memory was used lately. It is more than 0: it is in memory.
    #[must_use]
    pub fn class(&self, slot: Slot) -> u8 {
        let state = self.rows.states.get(slot);
        // Another number for each row.
        class_of(state.frequency(), state.hash().rotate_left(17)).max(1)
    }

    /// What a row of a table is worth that was last in this class: the more, the longer it stays. Comparable
    /// between tables; below [`RANKS`](crate::mem::RANKS).
    #[must_use]
    pub fn rank(&self, table: usize, class: u8) -> usize {
        rank_of(frequency_of(class), self.rows.tables[table].bias)
    }

    /// Memory in which rows of these tables find room for certain while no other leaves: less than a span of each
    /// size, and some for what is kept beside rows, is left out.
    #[must_use]
    pub fn bytes_spare(&self, tables: &[usize]) -> u64 {
        let used = self.arena.bytes_used().max(self.arena.charged());
        let spare = self.arena.bytes_max().saturating_sub(used);
        let span = |table: &usize| self.arena.cost(self.rows.tables[*table].class);
        let spans: u64 = tables.iter().map(span).sum();
        spare
            .saturating_sub(spare / BESIDE_SHARE)
            .saturating_sub(spans)
    }

    /// Memory that rows of a table may still take before one leaves for another of its own.
    #[must_use]
    pub fn bytes_to_ceiling(&self, table: usize) -> u64 {
        let rows = self.rows_to_ceiling(table);
        rows.saturating_mul(self.rows.tables[table].cost)
    }

    fn rows_to_ceiling(&self, table: usize) -> u64 {
        let of_table = &self.rows.tables[table];
        let used = of_table.counts.used as u64;
        of_table.ceiling_rows.saturating_sub(used)
    }

    /// Rows of a table that can come in while no other leaves.
    #[must_use]
    pub fn rows_spare(&self, table: usize) -> usize {
        let spare = self.arena.spare_rows(self.rows.tables[table].class);
        spare.min(to_usize(self.rows_to_ceiling(table)))
    }

    /// Gives a row that is not in memory, and that nobody asks for, a free slot, as one that was last in this
    /// class; none if there is no room. The slot's content is undefined until the caller fills it.
    pub fn restore(&mut self, table: usize, hash: u64, class: u8) -> Option<Slot> {
        let slot = self.take_row(table, hash, Flags::default(), frequency_of(class))?;
        self.policies.restored(&mut self.rows, slot);
        Some(slot)
    }
}
