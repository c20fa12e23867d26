//! What is the memory of a cache for?

use super::TableCache;
use crate::stats::CacheParts;

impl TableCache {
    /// Memory touched so far by purpose; in all no more than [`TableCache::bytes`].
    #[must_use]
    pub(crate) fn parts(&self) -> CacheParts {
        let unused = self.capacity - self.rows.states.touched();
        let states = self.rows.states.bytes_allocated() - unused * size_of::<super::RowState>();
        let rows = self.slab.bytes_allocated() - unused * self.row_f32s * size_of::<f32>();
        CacheParts {
            rows: rows as u64,
            states: states as u64,
            hash_table: self.words.bytes_allocated() as u64,
            order: self.rows.pool.bytes_allocated() as u64,
            frequencies: self.policy.bytes_allocated() as u64,
        }
    }
}
