//! How do the rows of a batch come into memory, all or none?
//!
//! 1. *Admit*: look up, pin what is resident, promise places for the rest - or undo everything.
//! 2. *Place*: take the promised places; cold clean rows leave, dirty ones are flushed first.
//! 3. *Load*: read what is on SSD; the shard is unlocked meanwhile.
//! 4. *Wait* for rows that another batch is reading.
//!
//! Invariants:
//! - Nobody waits for room while holding pins of a batch that was not admitted whole.
//! - A failed batch leaves no pin, no promise and no half-read row behind.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::engine::{Counters, Engine, Shard, Table};
use super::lane::Lane;
use super::lease::{Lease, LeasePart};
use crate::batch::{ShardPart, split};
use crate::error::{Error, Invalid, Result};
use crate::mem::{Flags, NO_SLOT};
use crate::ssd::reader::{RowBatch, RowReader, Want, pin_files};
use crate::ssd::version::Location;
use crate::units::unmix64;

/// Rows filled per locking of a shard.
const FILL_ROWS: usize = 256;

/// What a batch wants of rows that are not in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Their values.
    Read,
    /// A place only: the rows are about to be removed.
    Remove,
}

/// Why a batch was not admitted.
enum Refusal {
    /// It can't fit beside the outstanding leases.
    OverBudget {
        pinned: usize,
        asked: usize,
        capacity: usize,
    },
    /// It will fit once the copies of a running checkpoint are written.
    Frozen,
}

/// One shard's progress.
#[derive(Default)]
struct Pending {
    part: ShardPart,
    /// Place by index into the part; [`NO_SLOT`] until it has one.
    slots: Vec<u32>,
    /// (hash, index into the part) of rows without a place, sorted.
    missing: Vec<(u64, u32)>,
    /// Groups of equal hashes in `missing` that have been placed.
    placed: usize,
    /// Promised places not taken yet.
    reserved: usize,
    /// Distinct rows that had to be read.
    loads: usize,
    /// Places that another batch is reading.
    foreign: Vec<u32>,
    /// Places taken for rows that are about to be removed: they keep others waiting like rows
    /// that are being read.
    claimed: Vec<u32>,
    refusal: Option<Refusal>,
}

impl Engine {
    /// Makes the rows of `keys` resident and pins them.
    ///
    /// # Errors
    /// `OverBudget`, `Io`, `Corrupt`, `NoSpace`, `Poisoned`.
    pub fn acquire(
        self: &Arc<Engine>,
        lane: &Lane,
        table: &Arc<Table>,
        keys: &[u64],
        intent: Intent,
    ) -> Result<Lease> {
        if u32::try_from(keys.len()).is_err() {
            let found = keys.len();
            let what = "keys of a batch (at most)";
            return Err(Invalid::Length {
                what,
                expected: u32::MAX as usize,
                found,
            }
            .into());
        }
        if self.closed.load(Ordering::Acquire) {
            return Err(Invalid::ForeignLease.into());
        }
        let cells: Vec<Mutex<Pending>> = split(keys, self.shards.len())
            .into_iter()
            .map(|part| {
                Mutex::new(Pending {
                    part,
                    ..Pending::default()
                })
            })
            .collect();
        self.admit(lane, table, keys.len(), &cells)?;
        let outcome = self.bring_in(lane, table, keys.len(), intent, &cells);
        if let Err(e) = outcome {
            self.undo(table, &cells);
            return Err(e);
        }
        Ok(self.lease(table, keys.len(), cells))
    }

    fn admit(
        &self,
        lane: &Lane,
        table: &Arc<Table>,
        keys: usize,
        cells: &[Mutex<Pending>],
    ) -> Result<()> {
        loop {
            let admission = self
                .admission
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let admitted = lane.shards(self.shards.len(), keys, |s, _| {
                let mut pending = cells[s].lock().unwrap_or_else(PoisonError::into_inner);
                pending.part.hashes.is_empty() || self.admit_shard(table, s, &mut pending)
            });
            if admitted.iter().all(|ok| *ok) {
                return Ok(());
            }
            let refusals = self.undo(table, cells);
            drop(admission);
            self.refused(table, refusals)?;
            let since = Instant::now();
            let cell = &self.shards[0];
            drop(cell.wait(cell.lock()));
            self.counters.stalled(since);
        }
    }

    /// An error, unless waiting for a checkpoint's copies helps.
    fn refused(&self, table: &Table, refusals: Vec<Refusal>) -> Result<()> {
        let mut worst: Option<(usize, usize, usize)> = None;
        for refusal in refusals {
            if let Refusal::OverBudget {
                pinned,
                asked,
                capacity,
            } = refusal
                && worst.is_none_or(|(p, a, _)| pinned + asked > p + a)
            {
                worst = Some((pinned, asked, capacity));
            }
        }
        let Some((pinned, asked, capacity)) = worst else {
            return Ok(());
        };
        let shards = self.shards.len() as u64;
        let rows = (pinned + asked) as u64;
        let scaled = u128::from(self.options.cache_bytes) * u128::from(rows + rows / 16 + 16);
        let needed = scaled / (capacity.max(1) as u128);
        Err(Error::OverBudget {
            table: table.descriptor.name.clone(),
            pinned_rows: pinned as u64 * shards,
            asked_rows: asked as u64 * shards,
            capacity_rows: capacity as u64 * shards,
            needed_bytes: u64::try_from(needed).unwrap_or(u64::MAX),
            leases: self.leases.oldest(),
        })
    }

    fn admit_shard(&self, table: &Table, s: usize, pending: &mut Pending) -> bool {
        let mut shard = self.shards[s].lock();
        let entry = &mut shard.tables[table.id.0 as usize];
        let cache = &mut entry.cache;
        pending.slots.clear();
        pending.slots.resize(pending.part.hashes.len(), NO_SLOT);
        cache.lookup(&pending.part.hashes, &mut pending.slots);
        pending.missing.clear();
        pending.placed = 0;
        let mut resident = Vec::with_capacity(pending.slots.len());
        for (i, slot) in pending.slots.iter().enumerate() {
            if *slot == NO_SLOT {
                let index = u32::try_from(i).unwrap_or(u32::MAX);
                pending.missing.push((pending.part.hashes[i], index));
            } else {
                resident.push(*slot);
            }
        }
        pending.missing.sort_unstable();
        let newly = cache.pin(&resident);
        let distinct = pending.missing.chunk_by(|a, b| a.0 == b.0).count();
        // Without eviction a row that is resident keeps its place, pinned or not.
        let held = if cache.evicts() {
            cache.pinned()
        } else {
            cache.resident()
        };
        let used = held + entry.reserved;
        if used + distinct + cache.frozen_copies() <= cache.capacity() {
            entry.reserved += distinct;
            pending.reserved = distinct;
            return true;
        }
        let over = used + distinct > cache.capacity();
        let newly = if cache.evicts() { newly } else { 0 };
        let (pinned, asked) = (used - newly, newly + distinct);
        let capacity = cache.capacity();
        pending.refusal = Some(match over {
            true => Refusal::OverBudget {
                pinned,
                asked,
                capacity,
            },
            false => Refusal::Frozen,
        });
        false
    }

    /// Takes back pins, promises and half-read rows of every shard.
    fn undo(&self, table: &Table, cells: &[Mutex<Pending>]) -> Vec<Refusal> {
        let mut refusals = Vec::new();
        for (s, pending) in cells.iter().enumerate() {
            let mut pending = pending.lock().unwrap_or_else(PoisonError::into_inner);
            let mut shard = self.shards[s].lock();
            let entry = &mut shard.tables[table.id.0 as usize];
            let places: Vec<u32> = pending
                .slots
                .iter()
                .copied()
                .filter(|p| *p != NO_SLOT)
                .collect();
            for place in pending.claimed.drain(..) {
                entry.cache.set(place, Flags::FAILED);
                entry.cache.clear(place, Flags::LOADING);
            }
            entry.cache.unpin(&places);
            entry.reserved -= std::mem::take(&mut pending.reserved);
            pending.slots.clear();
            pending.foreign.clear();
            refusals.extend(pending.refusal.take());
            drop(shard);
            self.shards[s].notify();
        }
        refusals
    }

    fn bring_in(
        self: &Arc<Engine>,
        lane: &Lane,
        table: &Arc<Table>,
        keys: usize,
        intent: Intent,
        cells: &[Mutex<Pending>],
    ) -> Result<()> {
        let outcomes = lane.shards(self.shards.len(), keys, |s, thread| {
            let mut pending = cells[s].lock().unwrap_or_else(PoisonError::into_inner);
            self.place_and_load(lane, thread, table, s, intent, &mut pending)
        });
        outcomes.into_iter().collect::<Result<()>>()?;
        for (s, pending) in cells.iter().enumerate() {
            let pending = pending.lock().unwrap_or_else(PoisonError::into_inner);
            self.wait_foreign(table, s, &pending.foreign)?;
        }
        self.low.notify();
        Ok(())
    }

    fn place_and_load(
        &self,
        lane: &Lane,
        thread: usize,
        table: &Table,
        s: usize,
        intent: Intent,
        pending: &mut Pending,
    ) -> Result<()> {
        let mut wants = Vec::new();
        let mut stalled: Option<Instant> = None;
        let result = loop {
            let mut shard = self.shards[s].lock();
            let done = self.place(table, &mut shard, intent, pending, &mut wants);
            let files = {
                let slots = self
                    .ssd
                    .slots
                    .read()
                    .unwrap_or_else(PoisonError::into_inner);
                pin_files(&slots, &wants)
            };
            drop(shard);
            // What has a place is read before more room is made: nothing stays half-read.
            let batch = std::mem::take(&mut wants);
            if let Err(e) = self.load(lane, thread, table, s, files, batch) {
                break Err(e);
            }
            if done {
                break Ok(());
            }
            stalled.get_or_insert_with(Instant::now);
            if let Err(e) = self.make_room(s, table) {
                break Err(e);
            }
        };
        if let Some(since) = stalled {
            self.counters.stalled(since);
        }
        result
    }

    /// Gives places to missing rows until all have one or no place is free.
    fn place(
        &self,
        table: &Table,
        shard: &mut Shard,
        intent: Intent,
        pending: &mut Pending,
        wants: &mut Vec<Want>,
    ) -> bool {
        let entry = &mut shard.tables[table.id.0 as usize];
        let missing = std::mem::take(&mut pending.missing);
        let rest = &missing[pending.placed..];
        let hashes: Vec<u64> = rest.chunk_by(|a, b| a.0 == b.0).map(|g| g[0].0).collect();
        let mut locations: Vec<Option<Location>> = Vec::new();
        entry.index.get_batch(&hashes, &mut locations);
        // Makes room before the look-up: what is found stays until it is pinned.
        entry.cache.reclaim(pending.reserved.min(hashes.len()));
        let mut found = vec![NO_SLOT; hashes.len()];
        entry.cache.lookup(&hashes, &mut found);
        let mut pins = Vec::new();
        let mut all = true;
        for (i, group) in rest.chunk_by(|a, b| a.0 == b.0).enumerate() {
            let slot = match found[i] {
                NO_SLOT => {
                    let location = locations[i].filter(|l| !l.is_tombstone());
                    let Some(slot) = bring(entry, table, hashes[i], location, intent, wants) else {
                        all = false;
                        break;
                    };
                    pending.loads += usize::from(location.is_some());
                    if location.is_some() && intent == Intent::Remove {
                        pending.claimed.push(slot);
                    }
                    slot
                }
                slot => slot,
            };
            pins.clear();
            pins.resize(group.len(), slot);
            entry.cache.pin(&pins);
            for (_, index) in group {
                pending.slots[*index as usize] = slot;
            }
            pending.placed += group.len();
            entry.reserved -= 1;
            pending.reserved -= 1;
        }
        if all {
            let resident = pending.slots.iter().copied();
            let loading = |p: &u32| entry.cache.flags(*p).any(Flags::LOADING | Flags::FAILED);
            let own: HashSet<u32> = wants
                .iter()
                .map(|w| w.tag)
                .chain(pending.claimed.iter().copied())
                .collect();
            pending.foreign = resident
                .filter(loading)
                .filter(|p| !own.contains(p))
                .collect();
        }
        pending.missing = missing;
        all
    }

    /// Reads rows and fills their places.
    fn load(
        &self,
        lane: &Lane,
        thread: usize,
        table: &Table,
        s: usize,
        files: Vec<Arc<crate::ssd::version::DataFile>>,
        wants: Vec<Want>,
    ) -> Result<()> {
        if wants.is_empty() {
            return Ok(());
        }
        let tags: Vec<u32> = wants.iter().map(|w| w.tag).collect();
        let result = self.read_and_fill(lane, thread, table, s, files, wants);
        if result.is_err() {
            let mut shard = self.shards[s].lock();
            let cache = &mut shard.tables[table.id.0 as usize].cache;
            for slot in tags {
                if cache.flags(slot).any(Flags::LOADING) {
                    cache.set(slot, Flags::FAILED);
                    cache.clear(slot, Flags::LOADING);
                }
            }
        }
        self.shards[s].notify();
        result
    }

    fn read_and_fill(
        &self,
        lane: &Lane,
        thread: usize,
        table: &Table,
        s: usize,
        files: Vec<Arc<crate::ssd::version::DataFile>>,
        wants: Vec<Want>,
    ) -> Result<()> {
        let width = table.descriptor.row_f32s();
        let mut queue = lane.queue(thread);
        let mut reader = RowReader::new(&mut **queue, files, wants, width)?;
        let mut batch = RowBatch::default();
        while reader.next(&mut batch, FILL_ROWS)? {
            let mut shard = self.shards[s].lock();
            let cache = &mut shard.tables[table.id.0 as usize].cache;
            for (slot, row) in batch.tags.iter().zip(batch.rows.chunks_exact(width)) {
                cache.row_mut(*slot).copy_from_slice(row);
                cache.clear(*slot, Flags::LOADING);
            }
            drop(shard);
            self.shards[s].notify();
        }
        Counters::add(&self.counters.reads, reader.count.reads);
        Counters::add(&self.counters.read_bytes, reader.count.bytes);
        Ok(())
    }

    fn wait_foreign(&self, table: &Table, s: usize, foreign: &[u32]) -> Result<()> {
        if foreign.is_empty() {
            return Ok(());
        }
        let cell = &self.shards[s];
        let mut shard = cell.lock();
        loop {
            let cache = &shard.tables[table.id.0 as usize].cache;
            if foreign.iter().any(|p| cache.flags(*p).any(Flags::FAILED)) {
                let source = std::io::Error::other("a concurrent batch failed to read a row");
                return Err(Error::io("read rows in", &self.ssd.root, source));
            }
            if !foreign.iter().any(|p| cache.flags(*p).any(Flags::LOADING)) {
                return Ok(());
            }
            shard = cell.wait(shard);
        }
    }

    /// Turns a batch whose rows are all resident into a lease.
    fn lease(
        self: &Arc<Engine>,
        table: &Arc<Table>,
        keys: usize,
        cells: Vec<Mutex<Pending>>,
    ) -> Lease {
        let mut rows = vec![(0, 0); keys];
        let mut parts = Vec::with_capacity(cells.len());
        for (s, pending) in cells.into_iter().enumerate() {
            let pending = pending.into_inner().unwrap_or_else(PoisonError::into_inner);
            let number = u32::try_from(s).unwrap_or(u32::MAX);
            let mut places: Vec<(u32, u32)> = pending
                .slots
                .iter()
                .copied()
                .zip(pending.part.positions)
                .collect();
            for (place, position) in &places {
                rows[*position as usize] = (number, *place);
            }
            if !places.is_empty() {
                let mut shard = self.shards[s].lock();
                let cache = &mut shard.tables[table.id.0 as usize].cache;
                cache.touch(&pending.slots);
                places.sort_unstable();
                let known =
                    |g: &&[(u32, u32)]| !cache.flags(g[0].0).any(Flags::ABSENT | Flags::REMOVED);
                let asked = places.chunk_by(|a, b| a.0 == b.0).filter(known).count();
                drop(shard);
                let hits = asked.saturating_sub(pending.loads);
                Counters::add(&self.counters.unique_asked, asked as u64);
                Counters::add(&self.counters.unique_hits, hits as u64);
            }
            parts.push(LeasePart { places });
        }
        let id = self.leases.enter(keys as u64 * 16);
        let (engine, table) = (Arc::clone(self), Arc::clone(table));
        Lease {
            engine,
            table,
            id,
            rows,
            parts,
        }
    }
}

/// A place for one missing row: to be read, removed, or its default at once.
fn bring(
    entry: &mut super::engine::ShardTable,
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
