//! How does a batch come into memory, all of it or none?
//!
//! 1. *Admit*: find, pin and copy out what is resident, promise slots for the rest - or undo
//!    everything.
//! 2. *Fetch* (`fetch`): rows that are not in memory get a slot and their content.
//! 3. *Wait* for rows that another batch is reading, then copy out what was not there at first.
//!
//! Invariants:
//! - Nobody waits for room while holding pins of a batch that was not admitted whole.
//! - A failed batch leaves no pin, no promise and no half-read row behind.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use super::super::core::{Stretch, Table, point};
use super::super::lease::{Lease, LeasePart};
use super::super::workers::WorkerPool;
use super::Puller;
use crate::batch::{ShardPart, Split, share, split_into};
use crate::error::{ArgumentError, Error, Result};
use crate::mem::{Flags, NO_SLOT};
use crate::stats::Wait;
use crate::sync::{Mutex, MutexGuard};

/// What a batch wants of rows that are not in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Their values.
    Read,
    /// A slot only: the rows are about to be removed.
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
    /// It will fit once the copies of a running checkpoint are written; so many slots of the
    /// shard are taken without this batch.
    Frozen { shard: usize, busy: usize },
}

/// One shard's progress.
#[derive(Default)]
pub struct Pending<'a> {
    part: ShardPart,
    /// Where the rows are to be copied, by index into the part; none if they are not.
    targets: Vec<&'a mut [f32]>,
    /// Slot by index into the part; [`NO_SLOT`] until it has one.
    pub slots: Vec<u32>,
    /// Indexes of what could not be copied at once.
    rest: Vec<u32>,
    /// (hash, index into the part) of rows without a slot, sorted.
    pub missing: Vec<(u64, u32)>,
    /// Positions in `missing` that have a slot.
    pub assigned: usize,
    /// Promised slots not taken yet.
    pub reserved: usize,
    /// Distinct rows that were ever pushed, and those of them that had to be read.
    pub known: usize,
    pub loads: usize,
    /// Whether a row may be at two positions.
    repeats: bool,
    /// Slots that another batch is reading.
    pub foreign: Vec<u32>,
    /// Slots taken for rows that are about to be removed: they keep others waiting like rows
    /// that are being read.
    pub claimed: Vec<u32>,
    refusal: Option<Refusal>,
}

/// A batch that was admitted.
pub struct Batch<'a> {
    /// Shard by position.
    shards: Vec<u16>,
    cells: Vec<Cell<'a>>,
}

type Cell<'a> = Mutex<Pending<'a>>;

fn open<'m, 'a>(cell: &'m Cell<'a>) -> MutexGuard<'m, Pending<'a>> {
    cell.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Puller {
    /// Makes the rows of `keys` resident and pins them, in two halves; with `out`, copies the first
    /// words of each there.
    ///
    /// # Shapes
    /// keys: `[n]`, out: `[n, width]` and the width
    ///
    /// # Errors
    /// `OverBudget`, `Io`, `Corrupt`, `NoSpace`, `Poisoned`; what is in `out` then is undefined.
    pub fn acquire(
        &self,
        pool: &WorkerPool,
        table: &Arc<Table>,
        keys: &[u64],
        intent: Intent,
        out: Option<(&mut [f32], usize)>,
    ) -> Result<Lease> {
        let batch = self.begin(pool, table, keys, out)?;
        self.complete(pool, table, intent, batch)
    }

    /// The first half: the rows that are resident are pinned, the others have slots promised.
    /// [`Puller::complete`] must follow.
    ///
    /// # Errors
    /// `OverBudget`, `InvalidArgument`; nothing is pinned.
    pub fn begin<'a>(
        &self,
        pool: &WorkerPool,
        table: &Arc<Table>,
        keys: &[u64],
        out: Option<(&'a mut [f32], usize)>,
    ) -> Result<Batch<'a>> {
        if u32::try_from(keys.len()).is_err() {
            let found = keys.len();
            let what = "keys of a batch (at most)";
            return Err(ArgumentError::Length {
                what,
                expected: u32::MAX as usize,
                found,
            }
            .into());
        }
        self.core.check_open()?;
        let count = self.core.shards.len();
        let share = share(keys.len(), count);
        let arrays = &self.workers.arrays;
        let part = || ShardPart {
            positions: arrays.numbers.take(share),
            hashes: arrays.hashes.take(share),
        };
        let parts = (0..count).map(|_| part()).collect();
        let shards = arrays.shards.take(keys.len());
        let Split { parts, shards } = split_into(keys, Split { parts, shards });
        let targets = match out {
            Some((out, width)) => arrays.split_out(out, width, &shards, count),
            None => (0..count).map(|_| Vec::new()).collect(),
        };
        let pending = |(part, targets): (ShardPart, _)| {
            let mut slots = arrays.numbers.take(share);
            slots.resize(part.hashes.len(), NO_SLOT);
            Mutex::new(Pending {
                slots,
                part,
                targets,
                ..Pending::default()
            })
        };
        let cells: Vec<Cell<'_>> = parts.into_iter().zip(targets).map(pending).collect();
        self.admit(pool, table, keys.len(), &cells)?;
        Ok(Batch { shards, cells })
    }

    /// The second half: everything is resident.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, `NoSpace`, `Poisoned`; nothing is pinned.
    pub fn complete(
        &self,
        pool: &WorkerPool,
        table: &Arc<Table>,
        intent: Intent,
        batch: Batch<'_>,
    ) -> Result<Lease> {
        let Batch { shards, cells } = batch;
        if let Err(e) = self.bring_in(pool, table, intent, &cells) {
            self.undo(table, &cells);
            return Err(e);
        }
        Ok(self.lease(table, shards, cells))
    }

    fn admit(
        &self,
        pool: &WorkerPool,
        table: &Arc<Table>,
        keys: usize,
        cells: &[Cell<'_>],
    ) -> Result<()> {
        let mut stretch = Stretch::default();
        loop {
            let admission = self.admission_alone();
            let admitted = pool.shards(self.core.shards.len(), keys, |s, _| {
                let mut pending = open(&cells[s]);
                pending.part.hashes.is_empty() || self.admit_shard(table, s, &mut pending)
            });
            if admitted.iter().all(|ok| *ok) {
                return Ok(());
            }
            let refusals = self.undo(table, cells);
            drop(admission);
            let Some((s, busy)) = self.refused(table, refusals)? else {
                continue;
            };
            table.waits_on(&mut stretch, Wait::Room, Instant::now());
            let cell = &self.core.shards[s];
            let mut shard = cell.lock();
            self.core.ssd.poison.check_threads()?;
            // Whoever freed a slot, or discarded the copies, since the refusal found nobody to wake.
            let entry = &shard.tables[table.id.0 as usize];
            if entry.busy_slots() >= busy && entry.cache.frozen_copies() > 0 {
                cell.wait(&mut shard);
            }
            drop(shard);
        }
    }

    /// An error, unless waiting for a checkpoint's copies helps: then the last shard that has too
    /// few slots, and how many were taken in it without this batch.
    fn refused(&self, table: &Table, refusals: Vec<Refusal>) -> Result<Option<(usize, usize)>> {
        let mut worst: Option<(usize, usize, usize)> = None;
        let mut frozen = None;
        for refusal in refusals {
            match refusal {
                Refusal::OverBudget {
                    pinned,
                    asked,
                    capacity,
                } if worst.is_none_or(|(p, a, _)| pinned + asked > p + a) => {
                    worst = Some((pinned, asked, capacity));
                }
                Refusal::OverBudget { .. } => {}
                Refusal::Frozen { shard, busy } => frozen = Some((shard, busy)),
            }
        }
        let Some((pinned, asked, capacity)) = worst else {
            return Ok(frozen);
        };
        let shards = self.core.shards.len() as u64;
        let rows = (pinned + asked) as u64;
        let scaled = u128::from(self.core.options.cache_bytes) * u128::from(rows + rows / 16 + 16);
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

    fn admit_shard(&self, table: &Table, s: usize, pending: &mut Pending<'_>) -> bool {
        let Pending {
            part,
            targets,
            slots,
            rest,
            missing,
            ..
        } = pending;
        let mut shard = self.core.shards[s].lock();
        let entry = &mut shard.tables[table.id.0 as usize];
        let cache = &mut entry.cache;
        rest.clear();
        let hits = cache.hit_batch(&part.hashes, slots, targets, rest);
        point("admit");
        let absent = rest.iter().filter(|i| slots[**i as usize] == NO_SLOT);
        missing.clear();
        missing.extend(absent.map(|i| (part.hashes[*i as usize], *i)));
        missing.sort_unstable();
        let distinct = missing.chunk_by(|a, b| a.0 == b.0).count();
        let resident = rest.iter().map(|i| slots[*i as usize]);
        pending.foreign = resident.filter(|slot| *slot != NO_SLOT).collect();
        pending.repeats = hits.repeats || distinct < missing.len();
        pending.known = hits.known;
        pending.loads = 0;
        pending.assigned = 0;
        let busy = entry.busy_slots();
        let cache = &entry.cache;
        let used = busy - cache.frozen_copies();
        if busy + distinct <= cache.capacity() {
            entry.reserve(distinct);
            pending.reserved = distinct;
            return true;
        }
        let over = used + distinct > cache.capacity();
        let newly = if cache.evicts() { hits.newly_pinned } else { 0 };
        let (pinned, asked) = (used - newly, newly + distinct);
        let capacity = cache.capacity();
        pending.refusal = Some(match over {
            true => Refusal::OverBudget {
                pinned,
                asked,
                capacity,
            },
            false => Refusal::Frozen {
                shard: s,
                busy: busy - newly,
            },
        });
        false
    }

    /// Takes back pins, promises and half-read rows of every shard.
    fn undo(&self, table: &Table, cells: &[Cell<'_>]) -> Vec<Refusal> {
        let mut refusals = Vec::new();
        for (s, cell) in cells.iter().enumerate() {
            let mut pending = open(cell);
            let mut shard = self.core.shards[s].lock();
            let entry = &mut shard.tables[table.id.0 as usize];
            let taken = pending.slots.iter().copied().filter(|p| *p != NO_SLOT);
            let slots: Vec<u32> = taken.collect();
            for slot in pending.claimed.drain(..) {
                entry.cache.set(slot, Flags::FAILED);
                entry.cache.clear(slot, Flags::LOADING);
            }
            entry.cache.unpin(&slots);
            entry.unreserve(std::mem::take(&mut pending.reserved));
            pending.slots.fill(NO_SLOT);
            refusals.extend(pending.refusal.take());
            drop(shard);
            self.core.shards[s].notify();
        }
        refusals
    }

    /// Brings in what was not there, if anything was not.
    fn bring_in(
        &self,
        pool: &WorkerPool,
        table: &Arc<Table>,
        intent: Intent,
        cells: &[Cell<'_>],
    ) -> Result<()> {
        let late: usize = cells.iter().map(|cell| open(cell).rest.len()).sum();
        if late == 0 {
            return Ok(());
        }
        let outcomes = pool.shards(self.core.shards.len(), late, |s, thread| {
            let mut pending = open(&cells[s]);
            if pending.missing.is_empty() {
                return Ok(());
            }
            self.fetch_missing(pool, thread, table, s, intent, &mut pending)
        });
        outcomes.into_iter().collect::<Result<()>>()?;
        for (s, cell) in cells.iter().enumerate() {
            self.wait_foreign(table, s, &open(cell).foreign)?;
        }
        pool.shards(self.core.shards.len(), late, |s, _| {
            let pending = &mut *open(&cells[s]);
            if pending.targets.is_empty() || pending.rest.is_empty() {
                return;
            }
            let late = |i: &u32| std::mem::take(&mut pending.targets[*i as usize]);
            let mut targets: Vec<_> = pending.rest.iter().map(late).collect();
            let slot = |i: &u32| pending.slots[*i as usize];
            let slots: Vec<u32> = pending.rest.iter().map(slot).collect();
            let shard = self.core.shards[s].lock();
            let cache = &shard.tables[table.id.0 as usize].cache;
            cache.gather(&slots, &mut targets);
        });
        self.flusher.look();
        Ok(())
    }

    /// Turns a batch whose rows are all resident into a lease.
    fn lease(&self, table: &Arc<Table>, shards: Vec<u16>, cells: Vec<Cell<'_>>) -> Lease {
        let (mut known, mut loads) = (0, 0);
        let mut parts = Vec::with_capacity(cells.len());
        for cell in cells {
            let pending = cell.into_inner().unwrap_or_else(PoisonError::into_inner);
            known += pending.known as u64;
            loads += pending.loads as u64;
            self.workers.arrays.hashes.put(pending.part.hashes);
            self.workers.arrays.put_targets(pending.targets);
            parts.push(LeasePart {
                slots: pending.slots,
                positions: pending.part.positions,
                repeats: pending.repeats,
            });
        }
        let hits = known.saturating_sub(loads);
        self.core.demand.note(known, hits);
        self.leases.issue(table, shards, parts)
    }
}
