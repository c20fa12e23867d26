//! What does the store hold right now?

use std::sync::atomic::Ordering;

use super::engine::Engine;
use crate::observe;
use crate::stats::Stats;
use crate::sync::atomic::AtomicU64;

impl Engine {
    /// Rows changed since the last checkpoint's cut.
    pub fn uncheckpointed_rows(&self) -> u64 {
        let dirty: usize = self
            .shards
            .iter()
            .map(|cell| {
                cell.lock()
                    .tables
                    .iter()
                    .map(|t| t.cache.dirty())
                    .sum::<usize>()
            })
            .sum();
        dirty as u64 + self.counters.flushed_rows.get()
    }

    /// Gives all counters to the recorder, if the program has installed one; with `describe` also
    /// what they mean. No shard is locked.
    pub fn publish(&self, describe: bool) {
        if observe::has_recorder() {
            self.publisher.publish(describe, || self.stats());
        }
    }

    /// Reads all counters.
    pub fn stats(&self) -> Stats {
        let c = &self.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (usage, image_bytes) = (self.ssd.usage(), self.ssd.image_bytes());
        let (leases, lease_bytes) = self.leases.totals();
        let mut stats = Stats {
            io_engine: self.ssd.disk.name(),
            direct_io: self.ssd.versions().current().all(|f| f.file.is_direct()),
            unique_asked: get(&c.unique_asked),
            unique_hits: get(&c.unique_hits),
            rows_read: get(&c.rows_read),
            rows_pushed: get(&c.rows_pushed),
            bytes_pushed: get(&c.bytes_pushed),
            non_finite: get(&c.non_finite),
            reads: get(&c.reads),
            read_bytes: get(&c.read_bytes),
            written_bytes: get(&c.written_bytes),
            compaction_written_bytes: get(&c.compaction_written_bytes),
            flushes: get(&c.flushes),
            compactions: get(&c.compactions),
            checkpoints: get(&c.checkpoints),
            stall_us_max: get(&c.stall_us_max),
            stall_us: get(&c.stall_us),
            cut_us_max: get(&c.cut_us_max),
            leases: leases as u64,
            lease_bytes,
            uncheckpointed_rows: self.uncheckpointed_rows(),
            buffer_bytes: self.lanes().bytes() + self.write_bytes,
            files: usage.files,
            current_bytes: usage.current_bytes,
            live_bytes: usage.live_bytes,
            pinned_bytes: usage.pinned_bytes + image_bytes,
            disk_bytes: usage.current_bytes + usage.pinned_bytes + image_bytes,
            ..Stats::default()
        };
        for cell in &self.shards {
            let shard = cell.lock();
            for table in &shard.tables {
                stats.pinned_rows += table.cache.pinned() as u64;
                stats.resident_rows += table.cache.resident() as u64;
                stats.capacity_rows += table.cache.capacity() as u64;
                stats.dirty_rows += table.cache.dirty() as u64;
                stats.cache_bytes += table.cache.bytes();
                stats.index_bytes += table.index.bytes();
                stats.index_keys += table.index.len() as u64;
            }
        }
        stats
    }
}
