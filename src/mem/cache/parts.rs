//! What is the memory of a cache for?

use super::TableCache;
use crate::stats::CacheParts;

/// Of a row's state, the links of its list.
const LINK_BYTES: usize = 8;

impl TableCache {
    /// Memory touched so far by purpose; in all no more than [`TableCache::bytes`].
    #[must_use]
    pub(crate) fn parts(&self) -> CacheParts {
        let unused = self.capacity - self.rows.touched();
        let links = self.rows.touched() * LINK_BYTES;
        let states = self.rows.bytes_allocated() - unused * size_of::<super::RowState>();
        let rows = self.slab.bytes_allocated() - unused * self.row_f32s * size_of::<f32>();
        CacheParts {
            rows: rows as u64,
            states: (states - links) as u64,
            hash_table: self.buckets.bytes_allocated() as u64,
            order: links as u64,
            frequencies: self.policy.bytes_allocated() as u64,
        }
    }
}
