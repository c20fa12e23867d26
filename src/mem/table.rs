//! What does the cache keep of each table?

use super::arena::Class;
use super::row_state::Counts;
use crate::options::PolicyKind;
use crate::row::RowLayout;

/// What a table of a [`crate::mem::Cache`] is made from.
#[derive(Clone, Copy, Debug)]
pub struct TableConfig {
    /// What a row is made of: 1 f32-sized word or more. A row that was never pushed is made by it when
    /// it is first read.
    pub layout: RowLayout,
    /// Which rows leave first.
    pub policy: PolicyKind,
    /// Rows of other tables leave first while its own take no more than this.
    pub floor_bytes: u64,
    /// Rows of its own leave first while they take more than this.
    pub ceiling_bytes: u64,
    /// Whether it was dropped: it gets no rows.
    pub is_dropped: bool,
}

impl TableConfig {
    /// A table of weights alone, without bounds, of the policy that is the default.
    #[must_use]
    pub fn of_rows(row_f32s: usize) -> TableConfig {
        TableConfig {
            layout: RowLayout::of_weights(row_f32s),
            policy: PolicyKind::default(),
            floor_bytes: 0,
            ceiling_bytes: u64::MAX,
            is_dropped: false,
        }
    }
}

/// Dirty rows beyond a ceiling are written once they are this share of it.
const CEILING_SHARE: u64 = 16;

/// A table of the cache.
#[derive(Clone, Debug)]
pub(crate) struct TableRows {
    pub layout: RowLayout,
    /// f32-sized words of a row.
    pub row_f32s: usize,
    pub class: Class,
    /// Bytes that a row takes, with what is kept beside it.
    pub cost: u64,
    /// What is added to the ranks of its rows.
    pub bias: u16,
    pub policy: PolicyKind,
    pub counts: Counts,
    /// Rows that left to make room.
    pub evicted: u64,
    pub is_dropped: bool,
    /// What it is sure of, and what it may have.
    bounds_bytes: (u64, u64),
    /// So many rows leave behind those of other tables only.
    floor_rows: u64,
    /// With so many rows, one of its own leaves for another.
    pub ceiling_rows: u64,
}

impl TableRows {
    pub fn new(config: &TableConfig, class: Class, cost: u64, bias: u16) -> TableRows {
        let mut table = TableRows {
            layout: config.layout,
            row_f32s: config.layout.row_f32s(),
            class,
            cost,
            bias,
            policy: config.policy.of_rows(),
            counts: Counts::default(),
            evicted: 0,
            is_dropped: config.is_dropped,
            bounds_bytes: (0, 0),
            floor_rows: 0,
            ceiling_rows: 0,
        };
        table.set_bounds(config);
        table
    }

    pub fn set_bounds(&mut self, config: &TableConfig) {
        self.policy = config.policy.of_rows();
        self.bounds_bytes = (config.floor_bytes, config.ceiling_bytes);
        self.set_cost(self.cost);
    }

    /// Says what a row takes. Ranks go on by what it took before.
    pub fn set_cost(&mut self, cost: u64) {
        let (floor_bytes, ceiling_bytes) = self.bounds_bytes;
        self.cost = cost;
        self.floor_rows = floor_bytes / cost;
        self.ceiling_rows = (ceiling_bytes / cost).max(1);
    }

    /// Whether rows ever leave (the PinAll policy keeps all).
    pub fn evicts(&self) -> bool {
        !self.policy.keeps_all()
    }

    /// Whether rows of other tables leave first.
    #[inline]
    pub fn is_sheltered(&self) -> bool {
        (self.counts.used as u64) <= self.floor_rows
    }

    /// Rows beyond its ceiling when those have left that may leave at once.
    pub fn over_ceiling(&self) -> u64 {
        let stay = self.counts.used - self.counts.evictable;
        (stay as u64).saturating_sub(self.ceiling_rows)
    }

    /// Whether so many of them can be written that it is worth a file: more are dirty than are pinned.
    pub fn is_over_ceiling(&self) -> bool {
        self.over_ceiling() > self.ceiling_rows / CEILING_SHARE
            && self.evicts()
            && self.counts.dirty > self.counts.pinned
    }

    /// Slots that nothing but the end of their use frees.
    pub fn held(&self) -> usize {
        let held = match self.evicts() {
            true => self.counts.pinned,
            // Without eviction a row that is resident keeps its slot, pinned or not.
            false => self.counts.used - self.counts.frozen,
        };
        held + self.counts.frozen
    }
}
