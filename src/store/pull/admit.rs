//! How does a call come into memory, all of it or none?
//!
//! 1. *Admit*: find, pin and copy out what is resident (where reads come first, it is copied while
//!    they are on their way), promise slots for the rest - or undo everything.
//! 2. *Fetch* (`fetch`): rows that are not in memory get a slot and their content.
//! 3. *Wait* for rows that another batch is reading, then copy out what was not there at first.
//!
//! Invariants:
//! - Nobody waits for room while holding pins of a call that was not admitted whole.
//! - Who finds no room beside slots that others were promised waits once in each shard until these are taken or given
//!   back: they may be for the same rows. He has no pin, no promise and no admission of the call then; others, of
//!   earlier calls, keep nobody from taking what he was promised.
//! - A failed call leaves no pin, no promise and no half-read row behind.
//! - A shard is locked once for the rows of all parts; a row that two parts of one table name is one
//!   row.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::super::core::{Beside, Shard, Stretch, Table, point};
use super::super::lease::{Lease, PartMap};
use super::super::workers::WorkerPool;
use super::batch::{After, Batch, Full, Intent, Missing, Pending, Refusal, open};
use super::offers::Offered;
use super::split::Wanted;
use super::{Kept, Puller};
use crate::error::{Error, Result};
use crate::mem::Flags;
use crate::stats::Wait;
use crate::units::{Slot, narrow, saturate};

/// Where a call that copies had to read more than one of so many keys, the next one that does begins its reads before
/// it copies.
const READ_SHARE: u64 = 128;

/// The rows of one table in one shard.
struct TableRows {
    table: usize,
    /// The ordinal of the first part.
    ordinal: usize,
    /// Among the shard's rows.
    range: Range<usize>,
}

/// In which shards a call has waited for promises.
#[derive(Debug, Default)]
pub struct Waited(Vec<usize>);

impl Waited {
    /// What to wait for in a shard that has no room, if that may help and was not done yet.
    pub fn once(&mut self, shard: usize, full: &Full) -> Option<After> {
        let ended = full.promised?;
        if self.0.contains(&shard) {
            return None;
        }
        self.0.push(shard);
        Some(After::Promises { ended })
    }
}

/// Where a call has to wait, and what for.
struct LaterAt {
    shard: usize,
    ordinal: usize,
    after: After,
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
        self.core.demand.begin();
        let mut batch = Batch::new((&self.workers.arrays, pool), self.core.shards.len(), parts)?;
        batch.reads_first = batch.is_copied && self.missed.load(Ordering::Relaxed);
        self.admit(pool, &batch)?;
        Ok(batch)
    }

    /// The second half: everything is resident.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, `NoSpace`, `Poisoned`; nothing is pinned.
    pub fn complete(&self, pool: &WorkerPool, intent: Intent, batch: Batch<'_>) -> Result<Lease> {
        Ok(self.complete_counted(pool, intent, batch)?.lease)
    }

    /// The same, with what was found.
    ///
    /// # Errors
    /// As [`Puller::complete`].
    pub(super) fn complete_counted(
        &self,
        pool: &WorkerPool,
        intent: Intent,
        batch: Batch<'_>,
    ) -> Result<Kept> {
        if let Err(e) = self.bring_in(pool, intent, &batch) {
            self.undo(&batch);
            return Err(e);
        }
        let (keys, is_copied) = (batch.map.keys() as u64, batch.is_copied);
        let (map, rows, known, read) = batch.into_rows(&self.workers.arrays);
        let hits = known.saturating_sub(read);
        if is_copied {
            let missed = read > keys / READ_SHARE;
            self.missed.store(missed, Ordering::Relaxed);
        }
        self.core.demand.note(known, hits);
        Ok(Kept {
            lease: self.leases.issue(map, rows),
            known,
            read,
        })
    }

    fn admit(&self, pool: &WorkerPool, batch: &Batch<'_>) -> Result<()> {
        let map = &batch.map;
        let mut stretch = Stretch::default();
        let mut waited = Waited::default();
        loop {
            let span = tracing::debug_span!("admission", parts = map.len(), keys = map.keys());
            // Begins and ends without the lock: a program's subscriber may take its time.
            let entered = span.enter();
            let admission = self.admission_alone();
            // A table may have been dropped since it was found; now none is.
            map.tables()
                .try_for_each(|(table, _)| table.check_there())?;
            let admitted = pool.shards(self.core.shards.len(), map.keys(), |s| {
                let mut pending = open(&batch.cells[s]);
                let rows = pending.unite(&self.workers.arrays, map.len());
                rows == 0 || self.admit_shard(batch, s, &mut pending)
            });
            if admitted.iter().all(|ok| *ok) {
                drop(admission);
                return Ok(());
            }
            let refusals = self.undo(batch);
            drop(admission);
            drop(entered);
            if let Some(later) = self.refused(map, refusals, &mut waited)? {
                let table = map.table(later.ordinal);
                table.waits_on(&mut stretch, Wait::Room, Instant::now());
                self.wait_after(later.shard, later.after)?;
            }
        }
    }

    /// Waits for what may make room in a shard. The caller holds nothing of what others wait for: no pin or promise of
    /// this call, no admission.
    ///
    /// # Errors
    /// `Poisoned`.
    pub fn wait_after(&self, shard: usize, after: After) -> Result<()> {
        let cell = &self.core.shards[shard];
        let mut shard = cell.lock();
        let check = || self.core.ssd.poison.check_threads();
        check()?;
        match after {
            After::Copies { busy } => {
                // Whoever freed a slot, or discarded the copies, since the refusal found nobody to wake.
                if shard.all_busy_slots() >= busy && shard.cache.frozen_copies() > 0 {
                    cell.wait(&mut shard);
                }
                Ok(())
            }
            After::Promises { ended } => cell.wait_for_promises(&mut shard, ended, check),
        }
    }

    /// An error, unless waiting helps: then where.
    fn refused(
        &self,
        map: &PartMap,
        refusals: Vec<(usize, Refusal)>,
        waited: &mut Waited,
    ) -> Result<Option<LaterAt>> {
        // Of several, what can't fit whatever is given back, then what needs the largest cache.
        let mut worst: Option<((bool, u64), usize, Full)> = None;
        let mut later = None;
        for (shard, refusal) in refusals {
            let (ordinal, after) = match refusal {
                Refusal::OverBudget { ordinal, full } => {
                    let Some(after) = waited.once(shard, &full) else {
                        let badness = (full.is_hopeless(), full.needed);
                        if worst.as_ref().is_none_or(|(worst, ..)| badness > *worst) {
                            worst = Some((badness, ordinal, full));
                        }
                        continue;
                    };
                    (ordinal, after)
                }
                Refusal::Frozen { ordinal, busy } => (ordinal, After::Copies { busy }),
            };
            later = Some(LaterAt {
                shard,
                ordinal,
                after,
            });
        }
        match worst {
            Some((_, ordinal, full)) => Err(self.over_budget(map.table(ordinal), &full)),
            None => Ok(later),
        }
    }

    /// Rows of a table are asked for in a shard that has no room for them.
    pub fn over_budget(&self, table: &Table, full: &Full) -> Error {
        let shards = self.core.shards.len() as u64;
        Error::OverBudget {
            table: table.descriptor.name.clone(),
            pinned_rows: full.pinned as u64 * shards,
            asked_rows: full.asked as u64 * shards,
            capacity_rows: full.capacity as u64 * shards,
            needed_bytes: self.needed_bytes(full.needed),
            leases: self.leases.oldest(),
        }
    }

    /// The cache with which there is so much memory in each shard, and a little more.
    fn needed_bytes(&self, of_shard: u64) -> u64 {
        let now = self.core.shards[0].lock().cache.bytes_max().max(1);
        let more = of_shard + of_shard / 16 + (1 << 12);
        let scaled = u128::from(self.core.cache_bytes()) * u128::from(more) / u128::from(now);
        saturate(scaled)
    }

    fn admit_shard(&self, batch: &Batch<'_>, s: usize, pending: &mut Pending<'_>) -> bool {
        let map = &batch.map;
        pending.rest.clear();
        pending.ready.clear();
        pending.missing.clear();
        pending.foreign.clear();
        pending.assigned = 0;
        pending.counts.clear();
        pending.counts.resize(map.len(), (0, 0));
        pending.has_repeats = false;
        let mut shard = self.core.shards[s].lock();
        let mut wants = Vec::new();
        for (table, ordinals) in map.tables() {
            let rows = TableRows {
                table: table.id.0 as usize,
                ordinal: ordinals.start,
                range: map.range_of(s, ordinals),
            };
            wants.push(find_rows(&mut shard, &rows, pending, batch.reads_first));
        }
        if batch.reads_first {
            pending.copy_later();
        }
        pending.refusal = refusal(&shard, &wants);
        point("admit");
        if pending.refusal.is_some() {
            return false;
        }
        for (ordinal, count) in distinct(&pending.missing) {
            let table = map.table(ordinal).id.0 as usize;
            shard.tables[table].promises.make(count);
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
            for (_, slot) in pending.claimed.drain(..) {
                let cache = &mut shard.cache;
                // Where the flag is gone, a put has filled it meanwhile.
                if cache.flags(slot).any(Flags::LOADING) {
                    cache.set(slot, Flags::FAILED);
                    cache.clear(slot, Flags::LOADING);
                }
            }
            for (_, ordinals) in map.tables() {
                let slots = &pending.slots[map.range_of(s, ordinals)];
                let taken = slots.iter().copied().filter(|p| *p != Slot::NONE);
                let mut taken: Vec<Slot> = taken.collect();
                if pending.has_repeats {
                    // Pinned once each.
                    taken.sort_unstable();
                    taken.dedup();
                }
                shard.cache.unpin(&taken);
            }
            if std::mem::take(&mut pending.promised) {
                for (ordinal, count) in distinct(&pending.missing[pending.assigned..]) {
                    shard.tables[table(ordinal)].promises.end(count);
                }
            }
            pending.slots.fill(Slot::NONE);
            refusals.extend(pending.refusal.take().map(|refusal| (s, refusal)));
            drop(shard);
            self.core.shards[s].notify();
        }
        refusals
    }

    /// Brings in what was not there, if anything was not, and copies what was not copied.
    fn bring_in(&self, pool: &WorkerPool, intent: Intent, batch: &Batch<'_>) -> Result<()> {
        let (map, cells) = (&batch.map, &batch.cells);
        let (mut late, mut ready) = (0, 0);
        for cell in cells {
            let pending = open(cell);
            late += pending.rest.len();
            ready += pending.ready.len();
        }
        if late + ready == 0 {
            return Ok(());
        }
        let offered = Offered::new(pool.threads());
        let outcomes = pool.shares(cells.len(), late + ready, |shards, thread| {
            self.fetch_missing((pool, thread), (map, cells, &offered), shards, intent)
        });
        outcomes.into_iter().collect::<Result<()>>()?;
        // Rows that could not be copied before others had read them.
        let mut left = 0;
        for (s, cell) in cells.iter().enumerate() {
            let pending = &mut *open(cell);
            pending.foreign.sort_unstable();
            for of_table in pending.foreign.chunk_by(|a, b| a.0 == b.0) {
                self.wait_foreign(map.table(of_table[0].0 as usize), s, of_table)?;
            }
            left += pending.rest.len();
        }
        if batch.is_copied && left > 0 {
            pool.shards(cells.len(), left, |s| {
                self.copy_late(map, s, &mut open(&cells[s]));
            });
        }
        if late > 0 {
            self.flusher.look();
        }
        Ok(())
    }
}

/// What a call wants of one table in one shard.
struct Want {
    table: usize,
    ordinal: usize,
    /// Distinct rows that are not in memory.
    absent: usize,
    /// Rows that nobody had pinned before.
    newly_pinned: usize,
}

/// Finds and pins the rows of one table that are resident in a shard, and copies them unless that has time; the
/// others are missing.
fn find_rows(
    shard: &mut Shard,
    rows: &TableRows,
    pending: &mut Pending<'_>,
    reads_first: bool,
) -> Want {
    let TableRows {
        table,
        ordinal,
        range,
    } = rows;
    let (start, end) = (range.start, range.end);
    let (late, gone) = (pending.rest.len(), pending.missing.len());
    let hashes = &pending.part.hashes[start..end];
    let slots = &mut pending.slots[start..end];
    let targets = match reads_first || pending.targets.is_empty() {
        true => &mut [][..],
        false => &mut pending.targets[start..end],
    };
    let cache = &mut shard.cache;
    let hits = cache.hit_batch(*table, hashes, slots, targets, &mut pending.rest);
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
    // Where rows stay, those that are there need nothing more.
    let newly_pinned = if cache.evicts(*table) {
        hits.newly_pinned
    } else {
        0
    };
    Want {
        table: *table,
        ordinal,
        absent,
        newly_pinned,
    }
}

/// Why a shard has no room for what a call wants, if so. Of several tables the one is named that asks for
/// most memory.
fn refusal(shard: &Shard, wants: &[Want]) -> Option<Refusal> {
    let more: Vec<_> = wants.iter().map(|want| (want.table, want.absent)).collect();
    if shard.has_bytes(shard.needed_bytes(&more, Beside::Copies)) {
        return None;
    }
    let cost =
        |want: &&Want| (want.absent + want.newly_pinned) as u64 * shard.cache.row_cost(want.table);
    let most = wants.iter().max_by_key(cost)?;
    let needed = shard.needed_bytes(&more, Beside::Promises);
    if shard.has_bytes(needed) {
        return Some(Refusal::Frozen {
            ordinal: most.ordinal,
            busy: shard.all_busy_slots() - wants.iter().map(|w| w.newly_pinned).sum::<usize>(),
        });
    }
    // Alone, whatever is given back.
    let mut own = vec![0; shard.tables.len()];
    for want in wants {
        own[want.table] += want.absent + want.newly_pinned;
    }
    let asked = own[most.table];
    let capacity = match shard.has_bytes(shard.cache.cost_of(&own)) {
        true => shard.cache.capacity(most.table),
        // The other tables of the call take their part.
        false => shard
            .cache
            .capacity(most.table)
            .min(asked.saturating_sub(1)),
    };
    let busy = shard.busy_slots(most.table) - shard.cache.frozen_of(most.table);
    Some(Refusal::OverBudget {
        ordinal: most.ordinal,
        full: Full {
            pinned: busy - most.newly_pinned,
            asked,
            capacity,
            needed,
            promised: shard.promises_in_the_way(&more),
        },
    })
}

/// How many rows of each table are missing.
fn distinct(missing: &[Missing]) -> impl Iterator<Item = (usize, usize)> {
    let tables = missing.chunk_by(|a, b| a.ordinal == b.ordinal);
    tables.map(|of_table| {
        let rows = of_table.chunk_by(Missing::is_same_row).count();
        (of_table[0].ordinal as usize, rows)
    })
}
