//! What is the memory of a cache for?

use super::{Cache, NAMED_ROWS};
use crate::mem::arena::Class;
use crate::stats::{CacheParts, TableStats};
use crate::units::Slot;

impl Cache {
    /// Memory in use by purpose; in all no more than the `bytes` of the configuration.
    #[must_use]
    pub(crate) fn parts(&self) -> CacheParts {
        CacheParts {
            rows: self.arena.rows_touched_bytes(),
            states: self.rows.states.bytes() as u64,
            hash_table: self.words.bytes() as u64,
            order: self.rows.pool.bytes() as u64,
            frequencies: self.policies.bytes() as u64,
        }
    }

    /// Memory in use.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.arena.rows_touched_bytes() + self.bytes_but_rows()
    }

    /// Memory in use for all but the rows themselves.
    pub(super) fn bytes_but_rows(&self) -> u64 {
        let lists = self.policies.bytes() + self.copies.capacity() * size_of::<Slot>();
        let own = self.rows.states.bytes() + self.words.bytes() + self.rows.pool.bytes();
        (own + lists) as u64 + Cache::fixed()
    }

    /// Adds what there is of a table.
    pub(crate) fn count(&self, table: usize, stats: &mut TableStats) {
        let of_table = &self.rows.tables[table];
        let counts = &of_table.counts;
        stats.rows_evicted += of_table.evicted;
        stats.pinned_rows += counts.pinned as u64;
        stats.resident_rows += (counts.used - counts.frozen) as u64;
        stats.capacity_rows += (counts.used + self.arena.spare_rows(of_table.class)) as u64;
        stats.dirty_rows += counts.dirty as u64;
        stats.cache_bytes += counts.used as u64 * of_table.cost;
    }

    /// Rows there are, and rows that there could be without that any leaves: of the size of most.
    #[must_use]
    pub(crate) fn capacity_rows(&self) -> u64 {
        let tables = self.rows.tables.iter().filter(|t| !t.is_dropped);
        let most = tables.max_by_key(|table| table.counts.used);
        let spare = most.map_or(0, |table| self.arena.spare_rows(table.class));
        (self.counts.used + spare) as u64
    }

    /// Slots of a table that hold a row with at least one pin.
    #[must_use]
    pub fn pinned_of(&self, table: usize) -> usize {
        self.rows.tables[table].counts.pinned
    }

    /// Rows of a table in memory, frozen copies not counted.
    #[must_use]
    pub fn resident_of(&self, table: usize) -> usize {
        let counts = &self.rows.tables[table].counts;
        counts.used - counts.frozen
    }

    /// Slots of a table that hold the state of a row at a checkpoint's cut.
    #[must_use]
    pub fn frozen_of(&self, table: usize) -> usize {
        self.rows.tables[table].counts.frozen
    }

    /// Slots of a table that nothing but the end of their use frees, copies included.
    #[must_use]
    pub fn held_of(&self, table: usize) -> usize {
        self.rows.tables[table].held()
    }

    /// Memory of rows of so many of each table, however the sizes are mixed.
    #[must_use]
    pub fn cost_of(&self, rows: &[usize]) -> u64 {
        let mut classes: Vec<(Class, usize)> = Vec::new();
        for (table, count) in self.rows.tables.iter().zip(rows) {
            match classes.iter_mut().find(|(class, _)| *class == table.class) {
                Some((_, sum)) => *sum += count,
                None => classes.push((table.class, *count)),
            }
        }
        self.arena.cost_of(classes.into_iter())
    }

    /// Memory that a row takes in the mean, with what is kept beside it.
    pub(in crate::mem) fn mean_cost(&self) -> u64 {
        let rows = self.counts.used.max(1) as u64;
        (self.bytes_of(|counts| counts.used) / rows).max(1)
    }

    /// Memory that a row of a table takes, with what is kept beside it.
    #[must_use]
    pub fn row_cost(&self, table: usize) -> u64 {
        self.rows.tables[table].cost
    }

    /// The most memory that it takes.
    #[must_use]
    pub fn bytes_max(&self) -> u64 {
        self.arena.bytes_max()
    }

    /// Rows of a table that fit where there is nothing else.
    #[must_use]
    pub fn capacity(&self, table: usize) -> usize {
        self.arena.capacity(self.rows.tables[table].class)
    }

    /// Memory that does not depend on the rows.
    pub(super) const fn fixed() -> u64 {
        (NAMED_ROWS * size_of::<Slot>() + size_of::<Cache>()) as u64
    }
}
