//! Who works on an open store, and what has each of them counted?
//!
//! A store is made of parts that own their threads' signals, their locks and their counters. What
//! concerns all of them at once - a panic, the close, a reading of the counters - goes through here,
//! so that no part has to know another one for it.

use std::sync::{OnceLock, Weak};

use super::Core;
use crate::observe;
use crate::ssd::held::Held;
use crate::stats::Stats;

/// A part of an open store.
pub trait Part: Send + Sync {
    /// Wakes whoever waits for something of this part: a thread panicked, or the store was closed.
    fn wake(&self);

    /// Adds what it counts to a reading. No shard is locked.
    fn count(&self, stats: &mut Stats);
}

/// The parts of a store, set once when all are made.
#[derive(Default)]
pub struct PartList(OnceLock<Vec<Weak<dyn Part>>>);

impl std::fmt::Debug for PartList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} parts", self.0.get().map_or(0, Vec::len))
    }
}

impl Core {
    /// Makes the parts known to each other, as far as [`Part`] goes.
    pub fn enlist(&self, parts: Vec<Weak<dyn Part>>) {
        let _once = self.parts.0.set(parts);
    }

    fn each_part(&self, mut work: impl FnMut(&dyn Part)) {
        for part in self.parts.0.get().into_iter().flatten() {
            if let Some(part) = part.upgrade() {
                work(&*part);
            }
        }
    }

    /// Wakes everybody who waits for anything.
    pub fn wake_all(&self) {
        self.shards.iter().for_each(super::ShardCell::notify);
        self.each_part(|part| part.wake());
    }

    /// Rows changed since the last checkpoint's cut.
    pub fn uncheckpointed_rows(&self) -> u64 {
        let mut dirty = 0;
        for cell in &self.shards {
            let shard = cell.lock();
            dirty += shard.cache.dirty();
        }
        dirty as u64 + self.changes.flushed_rows()
    }

    /// Bytes of all parameter files, those included that only old checkpoints need.
    pub fn row_bytes_on_disk(&self) -> u64 {
        let usage = self.ssd.usage();
        usage.current_bytes + usage.pinned_bytes
    }

    /// Gives all counters to the recorder, if the program has installed one; with `describe` also
    /// what they mean.
    pub fn publish(&self, describe: bool) {
        if observe::has_recorder() {
            self.publish_to_any(describe);
        }
    }

    /// As [`Core::publish`], also to a recorder that looks like none.
    pub fn publish_to_any(&self, describe: bool) {
        self.publisher.publish(describe, || self.stats());
    }

    /// Reads all counters.
    pub fn stats(&self) -> Stats {
        let mut stats = self.ssd_stats();
        let tables = self.all_tables();
        stats.tables = tables.iter().map(|t| t.stats()).collect();
        for table in &stats.tables {
            for (_, waits) in table.waits().filter(|(cause, _)| cause.is_stall()) {
                stats.stall_us += waits.us;
                stats.stall_us_max = stats.stall_us_max.max(waits.us_max);
            }
        }
        self.demand.count(&mut stats);
        self.each_part(|part| part.count(&mut stats));
        stats.publisher_panics = self.publisher.panics();
        for cell in &self.shards {
            let shard = cell.lock();
            for (table, of_table) in stats.tables.iter_mut().enumerate() {
                shard.count(table, of_table);
            }
            let parts = shard.cache.parts();
            stats.cache_row_bytes += parts.rows;
            stats.cache_state_bytes += parts.states;
            stats.cache_hash_table_bytes += parts.hash_table;
            stats.cache_order_bytes += parts.order;
            stats.cache_frequency_bytes += parts.frequencies;
            stats.cache_bytes += shard.cache.bytes();
            stats.capacity_rows += shard.cache.capacity_rows();
        }
        for table in &stats.tables {
            stats.rows_read += table.rows_read;
            stats.rows_pushed += table.rows_pushed;
            stats.bytes_pushed += table.bytes_pushed;
            stats.rows_put += table.rows_put;
            stats.bytes_put += table.bytes_put;
            stats.non_finite += table.non_finite;
            stats.pinned_rows += table.pinned_rows;
            stats.resident_rows += table.resident_rows;
            stats.dirty_rows += table.dirty_rows;
            stats.index_bytes += table.index_bytes;
            stats.index_keys += table.index_keys;
        }
        stats.uncheckpointed_rows = stats.dirty_rows + self.changes.flushed_rows();
        // What was counted for them stays in the sums: they never fall.
        let there: Vec<bool> = tables.iter().map(|t| !t.is_dropped()).collect();
        stats.tables.retain(|t| there[t.id.0 as usize]);
        stats
    }

    /// What the files and the device have to say.
    fn ssd_stats(&self) -> Stats {
        let (usage, direct_io, files_set_aside) = {
            let versions = self.ssd.versions();
            let direct_io = versions.held().iter().all(Held::is_direct);
            (versions.usage(), direct_io, versions.aside.len() as u64)
        };
        let snapshot_bytes = self.ssd.index_snapshot_bytes();
        let io = self.ssd.io.engine.counts();
        Stats {
            io_engine: self.ssd.io.engine.name(),
            direct_io,
            queues: io.queues,
            plain_queues: io.plain_queues,
            rings_lost: io.rings_lost,
            snapshot_buffer_bytes: self.ssd.snapshots.in_use.bytes(),
            queue_buffers: io.buffers,
            registered_buffers: io.registered_buffers,
            files: usage.files,
            open_files: self.ssd.open_files.open() as u64,
            open_files_max: self.ssd.open_files.max() as u64,
            holds: self.ssd.holds() as u64,
            files_reopened: self.ssd.open_files.reopened(),
            files_set_aside,
            current_bytes: usage.current_bytes,
            live_bytes: usage.live_bytes,
            pinned_bytes: usage.pinned_bytes + snapshot_bytes,
            disk_bytes: usage.current_bytes + usage.pinned_bytes + snapshot_bytes,
            ..Stats::default()
        }
    }
}
