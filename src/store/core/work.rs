//! What was done with the rows of one table?

use std::sync::atomic::{AtomicU64, Ordering};

use super::shard::{Shard, Table, Work};
use crate::ssd::index::Index as _;
use crate::stats::TableStats;

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

impl Work {
    /// Fills in what is counted here.
    pub fn count(&self, row_bytes: u64, stats: &mut TableStats) {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        stats.unique_asked = get(&self.asked);
        stats.unique_hits = get(&self.hits);
        stats.rows_read = get(&self.read);
        stats.rows_pushed = get(&self.pushed);
        stats.bytes_pushed = stats.rows_pushed * row_bytes;
        stats.rows_put = get(&self.put);
        stats.bytes_put = stats.rows_put * row_bytes;
        stats.non_finite = get(&self.non_finite);
        stats.rows_flushed = get(&self.flushed);
    }
}

impl Table {
    /// A batch asked for so many distinct rows that are known; so many of them were resident.
    pub fn note_asked(&self, known: u64, hits: u64) {
        add(&self.work().asked, known);
        add(&self.work().hits, hits);
    }

    /// So many rows were given to a caller.
    pub fn note_read(&self, rows: usize) {
        add(&self.work().read, rows as u64);
    }

    /// So many rows were changed by a push, and so many positions were not finite.
    pub fn note_pushed(&self, rows: u64, non_finite: u64) {
        add(&self.work().pushed, rows);
        add(&self.work().non_finite, non_finite);
    }

    /// So many rows were put.
    pub fn note_put(&self, rows: u64) {
        add(&self.work().put, rows);
    }

    /// So many keys of a put had values that were not finite.
    pub fn note_non_finite(&self, keys: u64) {
        add(&self.work().non_finite, keys);
    }

    /// So many rows and tombstones were written to a file.
    pub fn note_flushed(&self, rows: u64) {
        add(&self.work().flushed, rows);
    }
}

impl Shard {
    /// Adds what a table holds in one shard.
    pub fn count(&self, table: usize, stats: &mut TableStats) {
        self.cache.count(table, stats);
        let index = &self.tables[table].index;
        stats.index_bytes += index.bytes();
        stats.index_keys += index.keys() as u64;
    }
}
