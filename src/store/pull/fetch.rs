//! How do missing rows get a slot and their content?
//!
//! - Slots are taken as promised; cold clean rows leave for them, dirty ones are flushed first.
//! - A shard is unlocked while its rows are read; they are marked as being read meanwhile, and
//!   others who want them wait.

use std::sync::Arc;

use super::super::core::{Shard, ShardTable, Stretch, Table, add, point};
use super::super::workers::WorkerPool;
use super::Puller;
use super::admit::{Intent, Pending};
use crate::error::{Error, Result};
use crate::mem::{Flags, NO_SLOT};
use crate::ssd::data_file::{DataFile, Location};
use crate::ssd::reader::{RowBatch, RowReader, Want, pin_files};
use crate::stats::Wait;
use crate::units::unmix64;

/// Rows between the one that gets its slot and the one whose lines the processor is asked to fetch.
const AHEAD_ROWS: usize = 8;
/// Rows that get a slot before others may have the shard.
const SLOT_ROWS: usize = 512;
/// Rows filled per locking of a shard.
const FILL_ROWS: usize = 256;

/// How far the rows of a batch have slots.
enum Progress {
    /// All have one.
    Done,
    /// Some have; go on.
    More,
    /// No slot is free.
    NoRoom,
}

impl Puller {
    /// Brings in the missing rows of one shard.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, `NoSpace`, `Poisoned`.
    pub(super) fn fetch_missing(
        &self,
        pool: &WorkerPool,
        thread: usize,
        table: &Table,
        s: usize,
        intent: Intent,
        pending: &mut Pending<'_>,
    ) -> Result<()> {
        let mut wants = Vec::new();
        let mut stretch = Stretch::default();
        loop {
            let cell = &self.core.shards[s];
            let mut shard = cell.lock();
            let mut progress = self.assign_slots(table, &mut shard, intent, pending, &mut wants);
            // A file is pinned under the lock under which its location was looked up.
            while matches!(progress, Progress::More) {
                if wants.is_empty() {
                    cell.pass(&mut shard);
                }
                progress = self.assign_slots(table, &mut shard, intent, pending, &mut wants);
            }
            let files = pin_files(&self.core.ssd.file_slots(), &wants);
            drop(shard);
            // What has a slot is read before more room is made: nothing stays half-read.
            let batch = std::mem::take(&mut wants);
            if !batch.is_empty() {
                stretch.end();
                self.read_rows(pool, thread, table, s, files, batch)?;
            }
            if matches!(progress, Progress::Done) {
                return Ok(());
            }
            self.flusher.make_room(s, table, &mut stretch)?;
        }
    }

    /// Gives slots to some missing rows, or to as many as slots are free.
    fn assign_slots(
        &self,
        table: &Table,
        shard: &mut Shard,
        intent: Intent,
        pending: &mut Pending<'_>,
        wants: &mut Vec<Want>,
    ) -> Progress {
        let entry = &mut shard.tables[table.id.0 as usize];
        let missing = std::mem::take(&mut pending.missing);
        let rest = &missing[pending.assigned..];
        let groups = || rest.chunk_by(|a, b| a.0 == b.0).take(SLOT_ROWS);
        let hashes: Vec<u64> = groups().map(|g| g[0].0).collect();
        let mut locations: Vec<Option<Location>> = Vec::new();
        entry.index.get_batch(&hashes, &mut locations);
        // Makes room before the look-up: what is found stays until it is pinned.
        entry.cache.reclaim(hashes.len());
        let mut found = vec![NO_SLOT; hashes.len()];
        entry.cache.lookup(&hashes, &mut found);
        let mut pins = Vec::with_capacity(rest.len());
        let mut progress = Progress::More;
        for (i, group) in groups().enumerate() {
            if let Some(ahead) = hashes.get(i + AHEAD_ROWS) {
                entry.cache.prefetch_lines_of_hash(*ahead);
            }
            let slot = match found[i] {
                NO_SLOT => {
                    let location = locations[i].filter(|l| !l.is_tombstone());
                    let Some(slot) = assign_slot(entry, table, hashes[i], location, intent, wants)
                    else {
                        progress = Progress::NoRoom;
                        break;
                    };
                    pending.known += usize::from(location.is_some());
                    pending.loads += usize::from(location.is_some());
                    if location.is_some() && intent == Intent::Remove {
                        pending.claimed.push(slot);
                    }
                    slot
                }
                slot => {
                    let flags = entry.cache.flags(slot);
                    let gone = flags.any(Flags::ABSENT | Flags::REMOVED);
                    pending.known += usize::from(!gone);
                    if flags.any(Flags::LOADING | Flags::FAILED) {
                        pending.foreign.push(slot);
                    }
                    slot
                }
            };
            for (_, index) in group {
                pending.slots[*index as usize] = slot;
                pins.push(slot);
            }
            pending.assigned += group.len();
            entry.unreserve(1);
            pending.reserved -= 1;
        }
        if pins.len() == rest.len() {
            progress = Progress::Done;
        }
        point("place");
        entry.cache.pin(&pins);
        entry.cache.touch(&pins);
        pending.missing = missing;
        progress
    }

    /// Reads rows and fills their slots.
    fn read_rows(
        &self,
        pool: &WorkerPool,
        thread: usize,
        table: &Table,
        s: usize,
        files: Vec<Arc<DataFile>>,
        wants: Vec<Want>,
    ) -> Result<()> {
        let _device = table.waits(Wait::Device);
        let tags: Vec<u32> = wants.iter().map(|w| w.tag).collect();
        let read = || -> Result<()> {
            let width = table.descriptor.row_f32s();
            let mut queue = pool.queue(thread);
            let mut reader = RowReader::new(&mut **queue, files, wants, width)?;
            let mut batch = RowBatch::default();
            while reader.next(&mut batch, FILL_ROWS)? {
                let mut shard = self.core.shards[s].lock();
                let cache = &mut shard.tables[table.id.0 as usize].cache;
                for (slot, row) in batch.tags.iter().zip(batch.rows.chunks_exact(width)) {
                    cache.row_mut(*slot).copy_from_slice(row);
                    cache.clear(*slot, Flags::LOADING);
                }
                drop(shard);
                self.core.shards[s].notify();
            }
            add(&self.reads, reader.count.reads);
            add(&self.read_bytes, reader.count.bytes);
            Ok(())
        };
        let result = read();
        if result.is_err() {
            let mut shard = self.core.shards[s].lock();
            let cache = &mut shard.tables[table.id.0 as usize].cache;
            for slot in tags {
                if cache.flags(slot).any(Flags::LOADING) {
                    cache.set(slot, Flags::FAILED);
                    cache.clear(slot, Flags::LOADING);
                }
            }
        }
        self.core.shards[s].notify();
        result
    }

    /// Waits for rows that another batch is reading.
    ///
    /// # Errors
    /// `Io` when they could not be read, `Poisoned` when perhaps nobody reads them any more.
    pub(super) fn wait_foreign(&self, table: &Table, s: usize, foreign: &[u32]) -> Result<()> {
        if foreign.is_empty() {
            return Ok(());
        }
        let cell = &self.core.shards[s];
        let is_read = |shard: &Shard| {
            let cache = &shard.tables[table.id.0 as usize].cache;
            if foreign.iter().any(|p| cache.flags(*p).any(Flags::FAILED)) {
                let source = std::io::Error::other("a concurrent batch failed to read a row");
                return Err(Error::io("read rows in", self.core.ssd.root.path(), source));
            }
            Ok(!foreign.iter().any(|p| cache.flags(*p).any(Flags::LOADING)))
        };
        if is_read(&cell.lock())? {
            return Ok(());
        }
        let _other = table.waits(Wait::OtherBatch);
        let mut shard = cell.lock();
        while !is_read(&shard)? {
            self.core.ssd.poison.check_threads()?;
            cell.wait(&mut shard);
        }
        Ok(())
    }
}

/// A slot for one missing row: to be read, removed, or its default at once.
fn assign_slot(
    entry: &mut ShardTable,
    table: &Table,
    hash: u64,
    location: Option<Location>,
    intent: Intent,
    wants: &mut Vec<Want>,
) -> Option<u32> {
    let key = unmix64(hash);
    match location {
        Some(location) if intent == Intent::Read => {
            let slot = entry.cache.insert(hash, Flags::LOADING)?;
            wants.push(Want {
                location,
                key,
                tag: slot,
            });
            Some(slot)
        }
        // On SSD and about to be removed: its content does not matter, that it exists does.
        Some(_) => entry.cache.insert(hash, Flags::LOADING),
        None => {
            let slot = entry.cache.insert(hash, Flags::ABSENT)?;
            table.layout.default_row(key, entry.cache.row_mut(slot));
            Some(slot)
        }
    }
}
