//! What does the store hold right now?

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use super::Store;
use super::engine::Engine;
use super::turns::Record;
use crate::observe;
use crate::ssd::held::Held;
use crate::stats::Stats;
use crate::sync::atomic::AtomicU64;

/// A data directory and how its compactions fare.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DirectoryInfo {
    /// Where it is.
    pub path: PathBuf,
    /// Files of the current version in it.
    pub files: u64,
    /// Bytes of these files.
    pub current_bytes: u64,
    /// The part of them that live rows stand for.
    pub live_bytes: u64,
    /// Bytes of files that only retained checkpoints need.
    pub pinned_bytes: u64,
    /// Files that no compaction takes any more, as [`crate::FileInfo::set_aside`] says.
    pub files_set_aside: u64,
    /// Compactions since the store was opened.
    pub compactions: u64,
    /// Compactions that failed since then.
    pub compaction_failures: u64,
    /// Why the last one failed, if none succeeded since. As text.
    pub failure: Option<String>,
    /// Whether it is left alone for a while, after a failure.
    pub is_paused: bool,
}

impl Store {
    /// The data directories, in the order of the create.
    ///
    /// # Cost
    /// No I/O.
    #[must_use]
    pub fn directories(&self) -> Vec<DirectoryInfo> {
        let engine = &self.engine;
        let (records, paused) = (engine.turns.records(), engine.turns.paused());
        let versions = engine.ssd.versions();
        let places = engine.ssd.directories.iter().map(|place| place.path());
        let places = places.zip(records).zip(paused);
        let info = |(d, ((path, record), is_paused)): (usize, ((&Path, Record), bool))| {
            let usage = versions.usage_of(|other| other == d);
            DirectoryInfo {
                path: path.to_path_buf(),
                files: usage.files,
                current_bytes: usage.current_bytes,
                live_bytes: usage.live_bytes,
                pinned_bytes: usage.pinned_bytes,
                files_set_aside: versions.aside_in(d).count() as u64,
                compactions: record.done,
                compaction_failures: record.failed,
                failure: record.failure,
                is_paused,
            }
        };
        places.enumerate().map(info).collect()
    }
}

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
        let (usage, direct_io, files_set_aside) = {
            let versions = self.ssd.versions();
            let direct_io = versions.held().iter().all(Held::is_direct);
            (versions.usage(), direct_io, versions.aside.len() as u64)
        };
        let image_bytes = self.ssd.image_bytes();
        let io = self.ssd.io.engine.counts();
        let (leases, lease_bytes) = self.leases.totals();
        let mut stats = Stats {
            io_engine: self.ssd.io.engine.name(),
            direct_io,
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
            compaction_failures: get(&c.compaction_failures),
            checkpoints: get(&c.checkpoints),
            stall_us_max: get(&c.stall_us_max),
            stall_us: get(&c.stall_us),
            cut_us_max: get(&c.cut_us_max),
            leases: leases as u64,
            lease_bytes,
            uncheckpointed_rows: self.uncheckpointed_rows(),
            queues: io.queues,
            plain_queues: io.plain_queues,
            rings_lost: io.rings_lost,
            queue_buffers: io.buffers,
            registered_buffers: io.registered_buffers,
            buffer_bytes: self.lanes().bytes() + self.write_bytes,
            files: usage.files,
            open_files: self.ssd.open_files.open() as u64,
            open_files_max: self.ssd.open_files.max() as u64,
            files_reopened: self.ssd.open_files.reopened(),
            files_set_aside,
            directories_paused: self.turns.paused().iter().filter(|p| **p).count() as u64,
            current_bytes: usage.current_bytes,
            live_bytes: usage.live_bytes,
            pinned_bytes: usage.pinned_bytes + image_bytes,
            disk_bytes: usage.current_bytes + usage.pinned_bytes + image_bytes,
            publisher_panics: self.publisher.panics(),
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
