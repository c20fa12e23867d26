//! How do missing rows get their content, and a caller what was missing?
//!
//! - A thread reads the missing rows of all its shards through one queue (`reads`). The first go to the device before
//!   the others have slots (`slots`), and it is kept busy while these get theirs and the caller gets what was there.
//! - A row that was read goes to its slot and to the caller at once. What else was not there at first is copied
//!   when all rows of the shard are.

use super::super::core::{Shard, Stretch, Table, add};
use super::super::lease::PartMap;
use super::super::workers::{ReadLane, Share, WorkerPool};
use super::Puller;
use super::batch::{Cell, Intent, Pending, open};
use super::reads::{Goals, Reads};
use super::slots::{Step, Walk};
use crate::error::{Error, Result};
use crate::mem::Flags;
use crate::ssd::reader::{RowBatch, RowReader};
use crate::stats::Wait;
use crate::units::Slot;

/// Rows that are read before their slots are filled.
const FILL_ROWS: usize = 256;
/// Rows of one table that are copied to the caller before it is looked what has arrived.
const COPY_ROWS: usize = 512;
/// From so many rows on they are read before others get slots: what is to be read takes 80 bytes a row.
const READ_ROWS: usize = if cfg!(test) { 64 } else { 1 << 14 };

impl Puller {
    /// Brings in the missing rows of some shards, of all parts, through the queue of a thread, and copies to the caller
    /// what it has not got yet, but for rows that another batch is reading.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, `NoSpace`, `Poisoned`.
    pub(super) fn fetch_missing(
        &self,
        lane: (&WorkerPool, usize),
        (map, cells): (&PartMap, &[Cell<'_>]),
        shards: Share,
        intent: Intent,
    ) -> Result<()> {
        let mut walk = Walk::new(&self.core, (map, cells), shards.clone(), intent);
        let mut stretch = Stretch::default();
        loop {
            let step = match walk.step() {
                Step::Slots(reads) if !reads.is_empty() => {
                    stretch.end();
                    self.read_rows(lane, &mut walk, reads, &shards)?
                }
                step => step,
            };
            match step {
                Step::Slots(_) => {}
                Step::NoRoom { shard, ordinal } => {
                    let table = map.table(ordinal);
                    self.flusher.make_room(shard, table, &mut stretch)?;
                }
                Step::Done => break,
            }
        }
        for s in shards {
            while self.copy_ready(map, cells, s) {}
            let pending = &mut *open(&cells[s]);
            if pending.foreign.is_empty() {
                self.copy_late(map, s, pending);
            }
        }
        Ok(())
    }

    /// Reads rows, and those that get slots meanwhile. Gives what the last step of the walk has led to; no row
    /// that has a slot is left to be read.
    fn read_rows(
        &self,
        (pool, thread): (&WorkerPool, usize),
        walk: &mut Walk<'_, '_>,
        reads: Reads,
        shards: &Share,
    ) -> Result<Step> {
        pool.read(thread, |lane: &mut ReadLane| {
            let ReadLane { queue, rows: batch } = lane;
            let mut reader = RowReader::new(&mut **queue);
            let mut goals = Goals::default();
            let mut lot = reads;
            let result = self.read_lots(&mut reader, batch, walk, (&mut lot, &mut goals), shards);
            add(&self.reads, reader.count.reads);
            add(&self.read_bytes, reader.count.bytes);
            if result.is_err() {
                lot.fail(&self.core.shards);
                goals.fail(&self.core.shards);
            }
            result
        })
    }

    fn read_lots(
        &self,
        reader: &mut RowReader<'_>,
        batch: &mut RowBatch,
        walk: &mut Walk<'_, '_>,
        (lot, goals): (&mut Reads, &mut Goals),
        shards: &Share,
    ) -> Result<Step> {
        let (map, cells) = (walk.map, walk.cells);
        let places = (&self.core.shards[..], map, cells);
        // The first at once; what follows together, so that neighbours are found.
        let (files, wants) = goals.take(std::mem::take(lot));
        reader.add(files, wants)?;
        let mut step = Step::Slots(Reads::default());
        while goals.len() + lot.len() < READ_ROWS {
            if reader.poll(batch, FILL_ROWS)? {
                goals.fill(places, batch);
            }
            step = walk.step();
            let Step::Slots(reads) = &mut step else {
                break;
            };
            if let Err(later) = lot.join(std::mem::take(reads)) {
                let (files, wants) = goals.take(std::mem::replace(lot, later));
                reader.add(files, wants)?;
            }
        }
        let (files, wants) = goals.take(std::mem::take(lot));
        reader.add(files, wants)?;
        for s in shards.clone() {
            loop {
                if reader.poll(batch, FILL_ROWS)? {
                    goals.fill(places, batch);
                }
                if !self.copy_ready(map, cells, s) {
                    break;
                }
            }
        }
        let Some(first) = goals.first_table() else {
            return Ok(step);
        };
        let _device = map.table(first).waits(Wait::Device);
        let span = tracing::debug_span!("read", tables = goals.tables(), rows = goals.len());
        let _reading = span.enter();
        while reader.next(batch, FILL_ROWS)? {
            goals.fill(places, batch);
        }
        Ok(step)
    }

    /// Copies some of the rows of a shard that were there at first and were not copied then; whether there were any.
    fn copy_ready(&self, map: &PartMap, cells: &[Cell<'_>], s: usize) -> bool {
        let pending = &mut *open(&cells[s]);
        let Some(last) = pending.ready.last() else {
            return false;
        };
        let last = *last as usize;
        let ranges = map.tables().map(|(_, ordinals)| map.range_of(s, ordinals));
        let first = ranges
            .map(|range| range.start)
            .filter(|start| *start <= last);
        // The rows of one table: those of the last that begins before it.
        let first = first.last().unwrap_or(0);
        let own = pending.ready.partition_point(|i| (*i as usize) < first);
        let from = own.max(pending.ready.len().saturating_sub(COPY_ROWS));
        let some: Vec<u32> = pending.ready.drain(from..).collect();
        let mut shard = self.core.shards[s].lock();
        copy(&mut shard, pending, &some);
        true
    }

    /// Copies out what was not there at first, and has not been copied yet.
    pub(super) fn copy_late(&self, map: &PartMap, s: usize, pending: &mut Pending<'_>) {
        if pending.targets.is_empty() {
            return;
        }
        let mut rest = std::mem::take(&mut pending.rest);
        // Where a row was copied, its target is taken.
        rest.retain(|i| !pending.targets[*i as usize].is_empty());
        if rest.is_empty() {
            return;
        }
        let mut shard = self.core.shards[s].lock();
        let mut rest = &rest[..];
        for (_, ordinals) in map.tables() {
            let end = map.range_of(s, ordinals).end;
            let (now, later) = rest.split_at(rest.partition_point(|i| (*i as usize) < end));
            rest = later;
            copy(&mut shard, pending, now);
        }
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

/// Copies the first words of rows of one table to the caller, by their indexes.
fn copy(shard: &mut Shard, pending: &mut Pending<'_>, indexes: &[u32]) {
    let target = |i: &u32| std::mem::take(&mut pending.targets[*i as usize]);
    let mut targets: Vec<_> = indexes.iter().map(target).collect();
    let slot = |i: &u32| pending.slots[*i as usize];
    let slots: Vec<Slot> = indexes.iter().map(slot).collect();
    shard.cache.gather(&slots, &mut targets);
}
