//! How do missing rows get their content, and a caller what was missing?
//!
//! - A thread reads the missing rows of a share of the shards through one queue (`reads`). The first go to the device before
//!   the others have slots (`slots`), and it is kept busy while these get theirs and the caller gets what was there.
//! - What has slots and is not planned yet is cut into slices. A thread that has none left, and whose rows all have
//!   slots, reads those of another one (`offers`): its part of the device's queue is not left empty.
//! - A row that was read goes to its slot and to the caller at once. What else was not there at first is copied
//!   when all rows of the shard are.

use std::sync::atomic::Ordering;

use tracing::field::Empty;

use super::super::core::{Shard, Stretch, Table, add};
use super::super::lease::PartMap;
use super::super::workers::{ReadLane, Share, WorkerPool};
use super::Puller;
use super::batch::{Cell, Intent, Pending, open};
use super::offers::{Offered, Offers};
use super::reads::{Goals, Reads};
use super::slots::{Step, Walk};
use crate::error::{Error, Result};
use crate::mem::Flags;
use crate::ssd::reader::{RowBatch, RowReader};
use crate::stats::Wait;
use crate::units::Slot;

/// Rows that are read before their slots are filled.
const FILL_ROWS: usize = if cfg!(test) { 4 } else { 64 };
/// Where fewer requests than these, for each data directory, are left to be asked for, more are planned: before it is
/// looked again, as many rows arrive as are filled at a time, and others are asked for.
const UNASKED_MIN: usize = FILL_ROWS;
/// Where one data directory is faster than others, more is planned for its sake, until so many are left of each on the
/// average.
const UNASKED_MAX: usize = 8 * UNASKED_MIN;
/// Rows of each data directory that a thread plans at a time, once all have slots: what is not planned is whoever's
/// has nothing left.
const SLICE_ROWS: usize = if cfg!(test) { 2 } else { 128 };
/// From so many rows on a thread reads them all before others get slots: what is to be read takes 80 bytes a row. What it
/// takes from others comes on top: no more than each of them had in such a round.
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
        (map, cells, offered): (&PartMap, &[Cell<'_>], &Offered),
        shards: Share,
        intent: Intent,
    ) -> Result<()> {
        let mut walk = Walk::new(&self.core, (map, cells), shards.clone(), intent);
        let mut stretch = Stretch::default();
        let mut fill = None;
        loop {
            let step = match walk.step() {
                Step::Slots(reads) if !reads.is_empty() => {
                    stretch.end();
                    fill = None;
                    self.read_rows(lane, (&mut walk, offered), reads, &shards)?
                }
                step => step,
            };
            match step {
                // The room that was waited for is there.
                Step::Slots(_) => stretch.end(),
                Step::NoRoom { shard, ordinal } => {
                    let table = map.table(ordinal);
                    // Before a row has a slot, it is like the last call.
                    let last = || self.brought_new.load(Ordering::Relaxed);
                    if walk.brings_new_rows().unwrap_or_else(last) {
                        fill.get_or_insert_with(|| self.flusher.begin_fill());
                        self.flusher.look();
                    }
                    self.flusher.make_room(shard, table, &mut stretch)?;
                }
                Step::Done => break,
            }
        }
        stretch.end();
        if let Some(new) = walk.brings_new_rows() {
            self.brought_new.store(new, Ordering::Relaxed);
        }
        // Rows that another thread is reading are copied when it has.
        let lent = offered.is_lent(lane.1);
        for s in shards {
            self.copy_ready(map, cells, s);
            let pending = &mut *open(&cells[s]);
            if pending.foreign.is_empty() && !lent {
                self.copy_late(map, s, pending);
            }
        }
        Ok(())
    }

    /// Reads rows, and those that get slots meanwhile. Gives what the last step of the walk has led to; each row
    /// that has a slot was read, or is being read by another thread.
    fn read_rows(
        &self,
        (pool, thread): (&WorkerPool, usize),
        (walk, offered): (&mut Walk<'_, '_>, &Offered),
        reads: Reads,
        shards: &Share,
    ) -> Result<Step> {
        let table = reads.first_table().map(|ordinal| walk.map.table(ordinal));
        let _device = table.map(|table| table.waits(Wait::Device));
        let span = tracing::debug_span!("read", tables = Empty, rows = Empty);
        let _reading = span.enter();
        let mut goals = Goals::default();
        let result = pool.read(thread, |lane: &mut ReadLane| {
            let ReadLane { queue, rows: batch } = lane;
            let mut reader = RowReader::new(&mut **queue);
            let mut lot = reads;
            let lots = (&mut lot, &mut goals);
            let offers = offered.of(thread);
            let result = self.read_lots((&mut reader, batch), walk, lots, (shards, &offers));
            add(&self.reads, reader.count.reads);
            add(&self.read_bytes, reader.count.bytes);
            if result.is_err() {
                lot.fail(&self.core.shards);
                goals.fail(&self.core.shards);
                while let Some(slice) = offers.own() {
                    slice.fail(&self.core.shards);
                }
            }
            result
        });
        // To count the tables is work.
        if !span.is_disabled() {
            span.record("tables", goals.tables());
            span.record("rows", goals.len());
        }
        result
    }

    fn read_lots(
        &self,
        (reader, batch): (&mut RowReader<'_>, &mut RowBatch),
        walk: &mut Walk<'_, '_>,
        (lot, goals): (&mut Reads, &mut Goals),
        (shards, offers): (&Share, &Offers<'_>),
    ) -> Result<Step> {
        let (map, cells) = (walk.map, walk.cells);
        let places = (&self.core.shards[..], map, cells);
        // The first at once; what follows together, so that neighbours are found.
        plan(reader, goals, std::mem::take(lot))?;
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
                plan(reader, goals, std::mem::replace(lot, later))?;
            }
            // The device does not wait until all rows have slots.
            if !lot.is_empty() && reader.unasked() < UNASKED_MIN {
                plan(reader, goals, std::mem::take(lot))?;
            }
        }
        offers.put(std::mem::take(lot).slices(SLICE_ROWS));
        // Who has to make room for rows of its own does that first.
        let next = || match matches!(step, Step::Done) {
            true => offers.any(),
            false => offers.own(),
        };
        let refill = |reader: &mut RowReader<'_>, goals: &mut Goals| {
            while is_wanting(reader) {
                let Some(slice) = next() else { break };
                plan(reader, goals, slice)?;
            }
            Ok::<(), Error>(())
        };
        for s in shards.clone() {
            refill(reader, goals)?;
            if reader.poll(batch, FILL_ROWS)? {
                goals.fill(places, batch);
            }
            self.copy_ready(map, cells, s);
        }
        loop {
            refill(reader, goals)?;
            if !reader.next(batch, FILL_ROWS)? {
                return Ok(step);
            }
            goals.fill(places, batch);
        }
    }

    /// Copies the rows of a shard that were there at first and were not copied then. All of them together: equal keys
    /// are equal rows, whoever pushes meanwhile.
    fn copy_ready(&self, map: &PartMap, cells: &[Cell<'_>], s: usize) {
        let pending = &mut *open(&cells[s]);
        let ready = std::mem::take(&mut pending.ready);
        self.copy_out(map, s, pending, &ready);
    }

    /// Copies out what was not there at first, and has not been copied yet.
    pub(super) fn copy_late(&self, map: &PartMap, s: usize, pending: &mut Pending<'_>) {
        if pending.targets.is_empty() {
            return;
        }
        let mut rest = std::mem::take(&mut pending.rest);
        // Where a row was copied, its target is taken.
        rest.retain(|i| !pending.targets[*i as usize].is_empty());
        self.copy_out(map, s, pending, &rest);
    }

    /// Copies the first words of rows of a shard to the caller, by their indexes, which rise.
    fn copy_out(&self, map: &PartMap, s: usize, pending: &mut Pending<'_>, mut indexes: &[u32]) {
        if indexes.is_empty() {
            return;
        }
        let mut shard = self.core.shards[s].lock();
        for (_, ordinals) in map.tables() {
            let end = map.range_of(s, ordinals).end;
            let (now, later) = indexes.split_at(indexes.partition_point(|i| (*i as usize) < end));
            indexes = later;
            let target = |i: &u32| std::mem::take(&mut pending.targets[*i as usize]);
            let mut targets: Vec<_> = now.iter().map(target).collect();
            let slot = |i: &u32| pending.slots[*i as usize];
            let slots: Vec<Slot> = now.iter().map(slot).collect();
            shard.cache.gather(&slots, &mut targets);
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

/// Whether a further slice is to be planned: one data directory has nearly nothing to do.
fn is_wanting(reader: &RowReader<'_>) -> bool {
    reader.fewest_unasked() < UNASKED_MIN && reader.unasked() < UNASKED_MAX
}

/// Plans the reads of a lot, whose rows go where its goals say.
fn plan(reader: &mut RowReader<'_>, goals: &mut Goals, lot: Reads) -> Result<()> {
    let (files, wants) = goals.take(lot);
    reader.add(files, wants)
}
