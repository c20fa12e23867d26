//! How do missing rows get a slot and their content?
//!
//! - Slots are taken as promised; cold clean rows leave for them, dirty ones are flushed first.
//! - A shard is unlocked while its rows are read; they are marked as being read meanwhile, and
//!   others who want them wait.
//! - A thread reads the rows of all its shards together (`reads`).

use super::super::core::{Shard, Stretch, Table, add, point};
use super::super::lease::PartMap;
use super::super::workers::{ReadLane, WorkerPool};
use super::Puller;
use super::batch::{Cell, Intent, Missing, Pending, open};
use super::reads::Reads;
use crate::error::{Error, Result};
use crate::mem::{Cache, Flags};
use crate::ssd::data_file::Location;
use crate::ssd::index::{Index as _, IndexEntry};
use crate::ssd::reader::RowReader;
use crate::stats::Wait;
use crate::units::{Slot, narrow, unmix64};

/// Rows between the one that gets its slot and the one whose lines the processor is asked to fetch.
const AHEAD_ROWS: usize = 8;
/// Rows that get a slot before others may have the shard.
const SLOT_ROWS: usize = 512;
/// Rows that are read before their slots are filled.
const FILL_ROWS: usize = 256;
/// From so many rows on no further shard is looked at before they are read: what is to be read takes 80 bytes a row.
const READ_ROWS: usize = if cfg!(test) { 64 } else { 1 << 14 };

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
    /// Brings in the missing rows of some shards, of all parts, through the queue of a thread.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, `NoSpace`, `Poisoned`.
    pub(super) fn fetch_missing(
        &self,
        lane: (&WorkerPool, usize),
        map: &PartMap,
        cells: &[Cell<'_>],
        shards: impl Iterator<Item = usize>,
        intent: Intent,
    ) -> Result<()> {
        let mut reads = Reads::default();
        for s in shards {
            let pending = &mut *open(&cells[s]);
            if !pending.missing.is_empty() {
                self.fetch_shard(lane, map, (s, pending), intent, &mut reads)?;
            }
        }
        self.read_rows(lane, map, reads)
    }

    /// Gives the missing rows of one shard slots, and adds them to `reads`. After an error nothing is left there.
    ///
    /// # Errors
    /// As [`Puller::fetch_missing`].
    fn fetch_shard(
        &self,
        lane: (&WorkerPool, usize),
        map: &PartMap,
        (s, pending): (usize, &mut Pending<'_>),
        intent: Intent,
        reads: &mut Reads,
    ) -> Result<()> {
        let mut stretch = Stretch::default();
        loop {
            let mut new = Reads::default();
            let cell = &self.core.shards[s];
            let mut shard = cell.lock();
            let mut progress = assign_slots(map, (s, &mut shard), intent, pending, &mut new);
            // A file is pinned under the lock under which its location was looked up.
            while matches!(progress, Progress::More) {
                if new.is_empty() {
                    cell.pass(&mut shard);
                }
                progress = assign_slots(map, (s, &mut shard), intent, pending, &mut new);
            }
            new.pin(&self.core.ssd.file_slots());
            drop(shard);
            if let Err(new) = reads.join(new) {
                if let Err(error) = self.read_rows(lane, map, std::mem::take(reads)) {
                    new.fail(&self.core.shards);
                    return Err(error);
                }
                *reads = new;
            }
            let is_done = matches!(progress, Progress::Done);
            // What has a slot is read before more room is made: nothing stays half-read.
            if !reads.is_empty() && (!is_done || reads.len() >= READ_ROWS) {
                stretch.end();
                self.read_rows(lane, map, std::mem::take(reads))?;
            }
            if is_done {
                return Ok(());
            }
            let next = pending.missing[pending.assigned].ordinal as usize;
            self.flusher.make_room(s, map.table(next), &mut stretch)?;
        }
    }

    /// Reads rows, if there are any, and fills their slots.
    fn read_rows(
        &self,
        (pool, thread): (&WorkerPool, usize),
        map: &PartMap,
        reads: Reads,
    ) -> Result<()> {
        let Some(first) = reads.first_table() else {
            return Ok(());
        };
        let _device = map.table(first).waits(Wait::Device);
        let span = tracing::debug_span!("read", tables = reads.tables(), rows = reads.len());
        let _reading = span.enter();
        let (files, wants, mut goals) = reads.split();
        let result = pool.read(thread, |lane: &mut ReadLane| -> Result<()> {
            let ReadLane { queue, rows: batch } = lane;
            let mut reader = RowReader::new(&mut **queue, files, wants)?;
            while reader.next(batch, FILL_ROWS)? {
                goals.fill(&self.core.shards, map, batch);
            }
            add(&self.reads, reader.count.reads);
            add(&self.read_bytes, reader.count.bytes);
            Ok(())
        });
        if result.is_err() {
            goals.fail(&self.core.shards);
        }
        result
    }

    /// Waits for rows that another batch is reading.
    ///
    /// # Errors
    /// `Io` when they could not be read, `Poisoned` when perhaps nobody reads them any more.
    pub(super) fn wait_foreign(
        &self,
        table: &Table,
        s: usize,
        foreign: &[(u32, Slot)],
    ) -> Result<()> {
        let cell = &self.core.shards[s];
        let is_read = |shard: &Shard| {
            let cache = &shard.cache;
            let any = |flag| foreign.iter().any(|(_, p)| cache.flags(*p).any(flag));
            if any(Flags::FAILED) {
                let source = std::io::Error::other("a concurrent batch failed to read a row");
                return Err(Error::io("read rows in", self.core.ssd.root.path(), source));
            }
            Ok(!any(Flags::LOADING))
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

/// Gives slots to some missing rows of one table, or to as many as slots are free.
fn assign_slots(
    map: &PartMap,
    (s, shard): (usize, &mut Shard),
    intent: Intent,
    pending: &mut Pending<'_>,
    reads: &mut Reads,
) -> Progress {
    let missing = std::mem::take(&mut pending.missing);
    let rest = &missing[pending.assigned..];
    let ordinal = rest[0].ordinal;
    let rest = &rest[..rest.partition_point(|m| m.ordinal == ordinal)];
    let table = map.table(ordinal as usize);
    let id = table.id.0 as usize;
    let groups = || rest.chunk_by(Missing::is_same_row).take(SLOT_ROWS);
    let hashes: Vec<u64> = groups().map(|g| g[0].hash).collect();
    let mut known = Vec::new();
    shard.tables[id].index.get_batch(&hashes, &mut known);
    // Makes room before the look-up: what is found stays until it is pinned.
    shard.reclaim(id, hashes.len());
    let mut found = vec![Slot::NONE; hashes.len()];
    shard.cache.lookup(id, &hashes, &mut found);
    let mut pins = Vec::with_capacity(hashes.len());
    let mut used_again = Vec::new();
    let mut room = true;
    for (i, group) in groups().enumerate() {
        if let Some(ahead) = hashes.get(i + AHEAD_ROWS) {
            shard.cache.prefetch_word(id, *ahead);
        }
        let slot = match found[i] {
            Slot::NONE => {
                let class = known[i].map_or(0, IndexEntry::class);
                let location = known[i].map(IndexEntry::location);
                let location = location.filter(|l| !l.is_tombstone());
                let of = (ordinal, hashes[i], location, class);
                let cache = (s, &mut shard.cache);
                let Some(slot) = assign_slot(cache, table, of, intent, reads) else {
                    room = false;
                    break;
                };
                let count = &mut pending.counts[ordinal as usize];
                count.0 += u32::from(location.is_some());
                count.1 += u32::from(location.is_some());
                if location.is_some() && intent == Intent::Remove {
                    pending.claimed.push((ordinal, slot));
                }
                slot
            }
            slot => {
                let flags = shard.cache.flags(slot);
                let gone = flags.any(Flags::ABSENT | Flags::REMOVED);
                pending.counts[ordinal as usize].0 += u32::from(!gone);
                if flags.any(Flags::LOADING | Flags::FAILED) {
                    pending.foreign.push((ordinal, slot));
                }
                used_again.push(slot);
                slot
            }
        };
        for wanted in group {
            pending.slots[wanted.index as usize] = slot;
        }
        pins.push(slot);
        pending.assigned += group.len();
        shard.tables[id].unreserve(1);
    }
    point("place");
    shard.cache.pin(&pins);
    shard.cache.touch(&used_again);
    pending.missing = missing;
    match room {
        false => Progress::NoRoom,
        true if pending.assigned == pending.missing.len() => Progress::Done,
        true => Progress::More,
    }
}

/// A slot for one missing row (ordinal of its table, hash, where it is, its frequency class): to be read, removed, or
/// left without content until somebody wants it.
fn assign_slot(
    (s, cache): (usize, &mut Cache),
    table: &Table,
    (ordinal, hash, location, class): (u32, u64, Option<Location>, u8),
    intent: Intent,
    reads: &mut Reads,
) -> Option<Slot> {
    let id = table.id.0 as usize;
    match location {
        Some(location) if intent == Intent::Read => {
            let slot = cache.insert(id, hash, Flags::LOADING, class)?;
            let (key, row_f32s) = (unmix64(hash), narrow(table.descriptor.row_f32s()));
            reads.push(s, (ordinal, slot), (location, key, row_f32s));
            Some(slot)
        }
        // On SSD and about to be removed: its content does not matter, that it exists does.
        Some(_) => cache.insert(id, hash, Flags::LOADING, class),
        None => cache.insert(id, hash, Flags::ABSENT | Flags::UNFILLED, class),
    }
}
