//! How does a call come into memory, all of it or none?
//!
//! 1. *Admit*: find, pin and copy out what is resident, promise slots for the rest - or undo
//!    everything.
//! 2. *Fetch* (`fetch`): rows that are not in memory get a slot and their content.
//! 3. *Wait* for rows that another batch is reading, then copy out what was not there at first.
//!
//! Invariants:
//! - Nobody waits for room while holding pins of a call that was not admitted whole.
//! - A failed call leaves no pin, no promise and no half-read row behind.
//! - A shard is locked once for the rows of all parts; a row that two parts of one table name is one
//!   row.

use std::ops::Range;
use std::time::Instant;

use super::super::core::{ShardTable, Stretch, Table, point};
use super::super::lease::{Lease, PartMap};
use super::super::workers::WorkerPool;
use super::Puller;
use super::batch::{Batch, Intent, Missing, Pending, Refusal, Wanted, open};
use crate::error::{Error, Result};
use crate::mem::Flags;
use crate::stats::Wait;
use crate::units::{Slot, narrow, saturate};

/// The rows of one table in one shard.
struct TableRows {
    /// The ordinal of the first part.
    ordinal: usize,
    /// Among the shard's rows.
    range: Range<usize>,
}

/// Where a call has to wait for the copies of a running checkpoint.
struct FrozenAt {
    shard: usize,
    ordinal: usize,
    /// Slots of the table that are taken without this call.
    busy: usize,
}

impl Puller {
    /// Makes the rows of all parts resident and pins them, in two halves; where a part has an `out`,
    /// copies the weights there.
    ///
    /// # Errors
    /// `OverBudget`, `Io`, `Corrupt`, `NoSpace`, `Poisoned`; what is in `out` then is undefined.
    pub fn acquire(
        &self,
        pool: &WorkerPool,
        parts: &mut [Wanted<'_>],
        intent: Intent,
    ) -> Result<Lease> {
        let batch = self.begin(pool, parts)?;
        self.complete(pool, intent, batch)
    }

    /// The first half: the rows that are resident are pinned, the others have slots promised.
    /// [`Puller::complete`] must follow.
    ///
    /// # Errors
    /// `OverBudget`, `InvalidArgument`; nothing is pinned.
    pub fn begin<'a>(&self, pool: &WorkerPool, parts: &'a mut [Wanted<'_>]) -> Result<Batch<'a>> {
        self.core.check_open()?;
        let batch = Batch::new(&self.workers.arrays, self.core.shards.len(), parts)?;
        self.admit(pool, &batch)?;
        Ok(batch)
    }

    /// The second half: everything is resident.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, `NoSpace`, `Poisoned`; nothing is pinned.
    pub fn complete(&self, pool: &WorkerPool, intent: Intent, batch: Batch<'_>) -> Result<Lease> {
        if let Err(e) = self.bring_in(pool, intent, &batch) {
            self.undo(&batch);
            return Err(e);
        }
        let (map, rows, known, loads) = batch.into_rows(&self.workers.arrays);
        let hits = known.saturating_sub(loads);
        self.core.demand.note(known, hits);
        Ok(self.leases.issue(map, rows))
    }

    fn admit(&self, pool: &WorkerPool, batch: &Batch<'_>) -> Result<()> {
        let map = &batch.map;
        let mut stretch = Stretch::default();
        loop {
            let span = tracing::debug_span!("admission", parts = map.len(), keys = map.keys());
            // Begins and ends without the lock: a program's subscriber may take its time.
            let entered = span.enter();
            let admission = self.admission_alone();
            // A table may have been dropped since it was found; now none is.
            map.tables()
                .try_for_each(|(table, _)| table.check_there())?;
            let admitted = pool.shards(self.core.shards.len(), map.keys(), |s, _| {
                let mut pending = open(&batch.cells[s]);
                pending.part.hashes.is_empty() || self.admit_shard(map, s, &mut pending)
            });
            if admitted.iter().all(|ok| *ok) {
                drop(admission);
                return Ok(());
            }
            let refusals = self.undo(batch);
            drop(admission);
            drop(entered);
            let Some(FrozenAt {
                shard,
                ordinal,
                busy,
            }) = self.refused(map, refusals)?
            else {
                continue;
            };
            let table = map.table(ordinal);
            table.waits_on(&mut stretch, Wait::Room, Instant::now());
            let cell = &self.core.shards[shard];
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

    /// An error, unless waiting for a checkpoint's copies helps: then where.
    fn refused(&self, map: &PartMap, refusals: Vec<(usize, Refusal)>) -> Result<Option<FrozenAt>> {
        // Of several, what can't fit whatever is given back, then what needs the largest cache.
        let mut worst = None;
        let mut frozen = None;
        for (shard, refusal) in refusals {
            match refusal {
                Refusal::OverBudget {
                    ordinal,
                    pinned,
                    asked,
                    capacity,
                } => {
                    let needed_bytes = self.needed_bytes(pinned + asked, capacity);
                    let badness = (asked > capacity, needed_bytes);
                    if worst.as_ref().is_none_or(|(worst, _)| badness > *worst) {
                        worst = Some((badness, (ordinal, pinned, asked, capacity)));
                    }
                }
                Refusal::Frozen { ordinal, busy } => {
                    frozen = Some(FrozenAt {
                        shard,
                        ordinal,
                        busy,
                    })
                }
            }
        }
        match worst {
            Some((_, (ordinal, pinned, asked, capacity))) => {
                Err(self.over_budget(map.table(ordinal), pinned, asked, capacity))
            }
            None => Ok(frozen),
        }
    }

    /// So many rows of a table are asked for in a shard that has so many slots, beside those that are pinned.
    pub fn over_budget(
        &self,
        table: &Table,
        pinned: usize,
        asked: usize,
        capacity: usize,
    ) -> Error {
        let shards = self.core.shards.len() as u64;
        Error::OverBudget {
            table: table.descriptor.name.clone(),
            pinned_rows: pinned as u64 * shards,
            asked_rows: asked as u64 * shards,
            capacity_rows: capacity as u64 * shards,
            needed_bytes: self.needed_bytes(pinned + asked, capacity),
            leases: self.leases.oldest(),
        }
    }

    /// The cache with which so many rows fit where now `capacity` do, and a little more.
    fn needed_bytes(&self, rows: usize, capacity: usize) -> u64 {
        let rows = rows as u64;
        let scaled = u128::from(self.core.options.cache_bytes) * u128::from(rows + rows / 16 + 16);
        saturate(scaled / (capacity.max(1) as u128))
    }

    fn admit_shard(&self, map: &PartMap, s: usize, pending: &mut Pending<'_>) -> bool {
        pending.rest.clear();
        pending.missing.clear();
        pending.foreign.clear();
        pending.assigned = 0;
        pending.counts.clear();
        pending.counts.resize(map.len(), (0, 0));
        pending.has_repeats = false;
        let mut shard = self.core.shards[s].lock();
        for (table, ordinals) in map.tables() {
            let rows = TableRows {
                ordinal: ordinals.start,
                range: map.range_of(s, ordinals),
            };
            let entry = &mut shard.tables[table.id.0 as usize];
            let refusal = find_rows(entry, &rows, pending);
            pending.refusal = worse(pending.refusal, refusal);
        }
        point("admit");
        if pending.refusal.is_some() {
            return false;
        }
        for (ordinal, count) in distinct(&pending.missing) {
            let table = map.table(ordinal).id.0 as usize;
            shard.tables[table].reserve(count);
        }
        pending.promised = true;
        true
    }

    /// Takes back pins, promises and half-read rows of every shard.
    fn undo(&self, batch: &Batch<'_>) -> Vec<(usize, Refusal)> {
        let map = &batch.map;
        let mut refusals = Vec::new();
        for (s, cell) in batch.cells.iter().enumerate() {
            let pending = &mut *open(cell);
            let mut shard = self.core.shards[s].lock();
            let table = |ordinal: usize| map.table(ordinal).id.0 as usize;
            for (ordinal, slot) in pending.claimed.drain(..) {
                let cache = &mut shard.tables[table(ordinal as usize)].cache;
                // Where the flag is gone, a put has filled it meanwhile.
                if cache.flags(slot).any(Flags::LOADING) {
                    cache.set(slot, Flags::FAILED);
                    cache.clear(slot, Flags::LOADING);
                }
            }
            for (table, ordinals) in map.tables() {
                let slots = &pending.slots[map.range_of(s, ordinals)];
                let taken = slots.iter().copied().filter(|p| *p != Slot::NONE);
                let mut taken: Vec<Slot> = taken.collect();
                if pending.has_repeats {
                    // Pinned once each.
                    taken.sort_unstable();
                    taken.dedup();
                }
                shard.tables[table.id.0 as usize].cache.unpin(&taken);
            }
            if std::mem::take(&mut pending.promised) {
                for (ordinal, count) in distinct(&pending.missing[pending.assigned..]) {
                    shard.tables[table(ordinal)].unreserve(count);
                }
            }
            pending.slots.fill(Slot::NONE);
            refusals.extend(pending.refusal.take().map(|refusal| (s, refusal)));
            drop(shard);
            self.core.shards[s].notify();
        }
        refusals
    }

    /// Brings in what was not there, if anything was not.
    fn bring_in(&self, pool: &WorkerPool, intent: Intent, batch: &Batch<'_>) -> Result<()> {
        let (map, cells) = (&batch.map, &batch.cells);
        let late: usize = cells.iter().map(|cell| open(cell).rest.len()).sum();
        if late == 0 {
            return Ok(());
        }
        let outcomes = pool.shards(self.core.shards.len(), late, |s, thread| {
            let mut pending = open(&cells[s]);
            if pending.missing.is_empty() {
                return Ok(());
            }
            self.fetch_missing((pool, thread), map, s, intent, &mut pending)
        });
        outcomes.into_iter().collect::<Result<()>>()?;
        for (s, cell) in cells.iter().enumerate() {
            let foreign = &mut open(cell).foreign;
            foreign.sort_unstable();
            for of_table in foreign.chunk_by(|a, b| a.0 == b.0) {
                self.wait_foreign(map.table(of_table[0].0 as usize), s, of_table)?;
            }
        }
        pool.shards(self.core.shards.len(), late, |s, _| {
            let pending = &mut *open(&cells[s]);
            if !pending.targets.is_empty() && !pending.rest.is_empty() {
                self.copy_late(map, s, pending);
            }
        });
        self.flusher.look();
        Ok(())
    }

    /// Copies out what was not there at first.
    fn copy_late(&self, map: &PartMap, s: usize, pending: &mut Pending<'_>) {
        let shard = self.core.shards[s].lock();
        let mut rest = &pending.rest[..];
        for (table, ordinals) in map.tables() {
            let end = map.range_of(s, ordinals).end;
            let (now, later) = rest.split_at(rest.partition_point(|i| (*i as usize) < end));
            rest = later;
            let late = |i: &u32| std::mem::take(&mut pending.targets[*i as usize]);
            let mut targets: Vec<_> = now.iter().map(late).collect();
            let slot = |i: &u32| pending.slots[*i as usize];
            let slots: Vec<Slot> = now.iter().map(slot).collect();
            let cache = &shard.tables[table.id.0 as usize].cache;
            cache.gather(&slots, &mut targets);
        }
    }
}

/// Finds, pins and copies the rows of one table that are resident in a shard; the others are
/// missing. Says why they can't have slots, if so.
fn find_rows(
    entry: &mut ShardTable,
    rows: &TableRows,
    pending: &mut Pending<'_>,
) -> Option<Refusal> {
    let TableRows { ordinal, range } = rows;
    let (start, end) = (range.start, range.end);
    let (late, gone) = (pending.rest.len(), pending.missing.len());
    let hashes = &pending.part.hashes[start..end];
    let slots = &mut pending.slots[start..end];
    let targets = match pending.targets.is_empty() {
        true => &mut [][..],
        false => &mut pending.targets[start..end],
    };
    let cache = &mut entry.cache;
    let hits = cache.hit_batch(hashes, slots, targets, &mut pending.rest);
    let (first, ordinal): (u32, usize) = (narrow(start), *ordinal);
    for index in &mut pending.rest[late..] {
        let at = *index as usize;
        *index += first;
        match slots[at] {
            Slot::NONE => pending.missing.push(Missing {
                ordinal: narrow(ordinal),
                hash: hashes[at],
                index: *index,
            }),
            slot => pending.foreign.push((narrow(ordinal), slot)),
        }
    }
    let missing = &mut pending.missing[gone..];
    missing.sort_unstable_by_key(|m| (m.hash, m.index));
    let absent = missing.chunk_by(Missing::is_same_row).count();
    pending.has_repeats |= hits.repeats || absent < missing.len();
    pending.counts[ordinal].0 += narrow::<u32>(hits.known);
    let busy = entry.busy_slots();
    let cache = &entry.cache;
    let capacity = cache.capacity();
    if busy + absent <= capacity {
        return None;
    }
    let used = busy - cache.frozen_copies();
    let newly = if cache.evicts() { hits.newly_pinned } else { 0 };
    Some(match used + absent > capacity {
        true => Refusal::OverBudget {
            ordinal,
            pinned: used - newly,
            asked: newly + absent,
            capacity,
        },
        false => Refusal::Frozen {
            ordinal,
            busy: busy - newly,
        },
    })
}

/// Of two refusals of one shard, what waiting does not help against, and the one that is fuller.
fn worse(a: Option<Refusal>, b: Option<Refusal>) -> Option<Refusal> {
    let badness = |refusal: &Refusal| match *refusal {
        Refusal::OverBudget {
            pinned,
            asked,
            capacity,
            ..
        } => (
            1,
            asked > capacity,
            (pinned + asked) as f64 / capacity.max(1) as f64,
        ),
        Refusal::Frozen { .. } => (0, false, 0.0),
    };
    match (a, b) {
        (Some(a), Some(b)) if badness(&a) >= badness(&b) => Some(a),
        (a, b) => b.or(a),
    }
}

/// How many rows of each table are missing.
fn distinct(missing: &[Missing]) -> impl Iterator<Item = (usize, usize)> {
    let tables = missing.chunk_by(|a, b| a.ordinal == b.ordinal);
    tables.map(|of_table| {
        let rows = of_table.chunk_by(Missing::is_same_row).count();
        (of_table[0].ordinal as usize, rows)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_refusals_the_one_counts_that_waiting_does_not_help() {
        let full = |ordinal, pinned, asked, capacity| {
            Some(Refusal::OverBudget {
                ordinal,
                pinned,
                asked,
                capacity,
            })
        };
        let ordinal = |refusal: Option<Refusal>| match refusal {
            Some(Refusal::OverBudget { ordinal, .. } | Refusal::Frozen { ordinal, .. }) => {
                Some(ordinal)
            }
            None => None,
        };
        let frozen = Some(Refusal::Frozen {
            ordinal: 9,
            busy: 90,
        });
        // Nine of ten are more than 50 of 100, and what never fits is more than what may.
        for (fuller, other) in [
            (full(1, 5, 4, 10), full(2, 40, 10, 100)),
            (full(1, 0, 11, 10), full(2, 200, 10, 100)),
            (full(1, 0, 1, 100), frozen),
            (full(1, 0, 1, 100), None),
        ] {
            assert_eq!(ordinal(worse(fuller, other)), Some(1));
            assert_eq!(ordinal(worse(other, fuller)), Some(1));
        }
        assert_eq!(ordinal(worse(None, None)), None);
    }
}
