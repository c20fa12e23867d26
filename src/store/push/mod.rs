//! How does a batch of gradients change its rows?
//!
//! Invariants:
//! - No I/O: rows of a lease are resident. (A push may wait for a checkpoint's drain when
//!   no slot is free for the copy of a frozen row.)
//! - Gradients of equal keys are summed in the caller's order and applied once, so the result does
//!   not depend on shards, threads or cache.
//! - A refused push changed nothing, of no part.
//! - Parts are applied in the caller's order, each as a push of its own; no cut comes between them.

mod apply;
mod update;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64 as Sum, Ordering};

pub use update::{PushPart, PushReport, Update};

use super::core::{Core, Table, point};
use super::lease::{Lease, ShardRows};
use super::workers::Workers;
use crate::error::{ArgumentError, Result, check_length};
use crate::mem::{Cache, Place};
use crate::options::NonFinite;
use crate::row::{all_finite, check_learning_rate};
use crate::units::{Slot, unmix64};
use update::Kind;

/// One part of a push, checked: everything a shard needs to apply it.
struct Job<'a> {
    table: &'a Table,
    update: Update<'a>,
    lease: &'a Lease,
    /// Which part of the lease.
    ordinal: usize,
    /// The rows at the positions of the update, if it names any.
    chosen: Option<Vec<ShardRows>>,
    /// f32s of a row's values, and those of them that are numbers.
    width: usize,
    looked: usize,
    /// Positions whose values are not finite, and whether these are left out.
    non_finite: u64,
    skip: bool,
    /// Distinct rows changed so far. (Nothing is decided by it: no point where a schedule of a test may
    /// change.)
    rows: Sum,
}

impl Job<'_> {
    /// Positions with values.
    fn len(&self) -> usize {
        let positions = self.update.positions;
        positions.map_or_else(|| self.lease.map.keys_of(self.ordinal), <[u32]>::len)
    }

    /// Whether a position counts.
    fn changes_rows(&self) -> bool {
        let left_out = if self.skip { self.non_finite } else { 0 };
        self.len() as u64 > left_out
    }

    /// The rows in one shard: slots, where their values stand, and whether a slot may be there twice.
    fn rows_in(&self, s: usize) -> (&[Slot], &[u32], bool) {
        if let Some(chosen) = &self.chosen {
            let rows = &chosen[s];
            return (&rows.slots, &rows.positions, rows.repeats);
        }
        let (rows, range) = (&self.lease.rows[s], self.lease.map.range(s, self.ordinal));
        (
            &rows.slots[range.clone()],
            &rows.positions[range],
            rows.repeats,
        )
    }

    fn report(&self) -> PushReport {
        PushReport {
            rows: self.rows.load(Ordering::Relaxed),
            non_finite: self.non_finite,
        }
    }
}

/// Changes the rows of leases.
#[derive(Debug)]
pub struct Pusher {
    core: Arc<Core>,
    workers: Arc<Workers>,
}

impl Pusher {
    /// Nothing is pushed yet.
    pub fn new(core: &Arc<Core>, workers: &Arc<Workers>) -> Pusher {
        Pusher {
            core: Arc::clone(core),
            workers: Arc::clone(workers),
        }
    }

    /// Changes the rows of a lease that has one part.
    ///
    /// # Errors
    /// `InvalidArgument`, `ReadOnly`, `Poisoned` (the change could never be checkpointed).
    pub fn push(&self, lease: &Lease, update: Update<'_>) -> Result<PushReport> {
        lease.check(&self.core)?;
        self.core.check_writable()?;
        lease.only_part("push to them by Store::push_many")?;
        let mut job = check_part(lease, 0, update)?;
        self.check_values(std::slice::from_mut(&mut job))?;
        self.apply_all(std::slice::from_ref(&job))?;
        Ok(job.report())
    }

    /// Changes the rows of all parts of a lease, in their order.
    ///
    /// # Errors
    /// As [`Pusher::push`].
    pub fn push_many(&self, lease: &Lease, parts: &[PushPart<'_>]) -> Result<Vec<PushReport>> {
        lease.check(&self.core)?;
        self.core.check_writable()?;
        check_length("parts of a push", lease.map.len(), parts.len())?;
        let mut jobs = Vec::with_capacity(parts.len());
        for (index, part) in parts.iter().enumerate() {
            let ordinal = lease.map.ordinal(index);
            if lease.map.table(ordinal).id != part.table {
                let given = self.core.table(part.table)?;
                return Err(ArgumentError::WrongTable {
                    part: index,
                    leased: lease.map.table(ordinal).descriptor.name.clone(),
                    given: given.descriptor.name.clone(),
                }
                .into());
            }
            jobs.push(check_part(lease, ordinal, part.update)?);
        }
        self.check_values(&mut jobs)?;
        self.apply_all(&jobs)?;
        Ok(jobs.iter().map(Job::report).collect())
    }

    /// Applies what was checked, part after part in each shard, and no cut between.
    fn apply_all(&self, jobs: &[Job<'_>]) -> Result<()> {
        let keys = jobs.iter().map(Job::len).sum();
        let _whole = self.core.gate_shared();
        if jobs.iter().any(Job::changes_rows) {
            self.core.changes.note();
        }
        let pool = self.workers.foreground();
        let applied = pool.shards(self.core.shards.len(), keys, |s| self.push_shard(s, jobs));
        applied.into_iter().collect::<Result<()>>()?;
        for job in jobs {
            let PushReport { rows, non_finite } = job.report();
            job.table.note_pushed(rows, non_finite);
        }
        Ok(())
    }

    /// Looks for values that are not finite, of all parts at once by all threads; only where there are
    /// some are they counted, part by part.
    ///
    /// # Errors
    /// `InvalidArgument` where they are to be rejected.
    fn check_values(&self, jobs: &mut [Job<'_>]) -> Result<()> {
        let looked = || jobs.iter().filter(|job| !job.update.is_verbatim);
        let values: Vec<&[f32]> = looked().map(|job| job.update.values()).collect();
        if self
            .workers
            .are_finite(&values, looked().map(Job::len).sum())
        {
            return Ok(());
        }
        for job in jobs.iter_mut().filter(|job| !job.update.is_verbatim) {
            job.non_finite = self.count_non_finite(job)?;
            job.skip = job.non_finite > 0 && self.core.options.non_finite == NonFinite::Skip;
        }
        Ok(())
    }

    /// Counts positions whose values are not finite; an error when they are to be rejected.
    /// Whole rows may hold any bits in their metadata: only weights and state are looked at.
    fn count_non_finite(&self, job: &Job<'_>) -> Result<u64> {
        let mut count = 0;
        for (index, row) in job.update.values().chunks_exact(job.width).enumerate() {
            if all_finite(&row[..job.looked]) {
                continue;
            }
            count += 1;
            if self.core.options.non_finite == NonFinite::Reject {
                let key = self.key_at(job, index);
                let table = job.table.descriptor.name.clone();
                return Err(ArgumentError::NonFinite { table, key, index }.into());
            }
        }
        Ok(count)
    }

    /// The key whose values stand at an index.
    fn key_at(&self, job: &Job<'_>, index: usize) -> u64 {
        let map = &job.lease.map;
        let position = job.update.positions.map_or(index, |p| p[index] as usize);
        let s = usize::from(map.shards_of(job.ordinal)[position]);
        let (rows, range) = (&job.lease.rows[s], map.range(s, job.ordinal));
        let positions = &rows.positions[range.clone()];
        let at = positions.partition_point(|p| (*p as usize) < position);
        let shard = self.core.shards[s].lock();
        unmix64(shard.cache.hash_of(rows.slots[range.start + at]))
    }

    /// Applies the rows of one shard, part after part.
    fn push_shard(&self, s: usize, jobs: &[Job<'_>]) -> Result<()> {
        let most = jobs.iter().map(|job| job.rows_in(s).0.len()).max();
        let most = most.unwrap_or(0);
        if most == 0 {
            return Ok(());
        }
        let arrays = &self.workers.arrays;
        let mut kept = arrays.kept.take(most);
        let mut slots = arrays.slots.take(most);
        let mut places = arrays.places.take(most);
        for job in jobs {
            kept.clear();
            slots.clear();
            self.push_part(s, job, (&mut kept, &mut slots, &mut places))?;
        }
        arrays.places.put(places);
        arrays.slots.put(slots);
        arrays.kept.put(kept);
        Ok(())
    }

    /// Applies the rows of one part that lie in a shard; the first two arrays are empty.
    fn push_part(
        &self,
        s: usize,
        job: &Job<'_>,
        (kept, slots, places): (&mut Vec<(Slot, u32)>, &mut Vec<Slot>, &mut Vec<Place>),
    ) -> Result<()> {
        let (leased, positions, repeats) = job.rows_in(s);
        let usable = |position: u32| {
            let start = position as usize * job.width;
            !job.skip || all_finite(&job.update.values()[start..start + job.looked])
        };
        // Positions that count; rows without one are not touched. Equal keys become neighbours,
        // in the caller's order.
        let both = leased.iter().copied().zip(positions.iter().copied());
        kept.extend(both.filter(|(_, p)| usable(*p)));
        if kept.is_empty() {
            return Ok(());
        }
        if repeats {
            kept.sort_unstable();
        }
        slots.extend(kept.iter().map(|(slot, _)| *slot));
        slots.dedup();
        let whole = matches!(job.update.kind, Kind::Rows { .. });
        let begin = |cache: &mut Cache, slots: &[Slot], interval, frozen| {
            cache.begin_at(slots, (interval, frozen), whole, places)
        };
        let mut shard = self.core.lock_to_write(s, job.table, slots, begin)?;
        let what = (job.table, &job.update, job.width);
        apply::apply(&mut shard.cache, (kept, places), what);
        point("push");
        drop(shard);
        job.rows.fetch_add(slots.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}

/// Checks all of the update of one part but its values.
fn check_part<'a>(lease: &'a Lease, ordinal: usize, update: Update<'a>) -> Result<Job<'a>> {
    let table: &Table = lease.map.table(ordinal);
    let width = match update.kind {
        Kind::Rows { .. } => table.descriptor.row_f32s(),
        _ => table.descriptor.dim,
    };
    let mut job = Job {
        table,
        update,
        lease,
        ordinal,
        chosen: None,
        width,
        looked: width.min(table.layout.metadata_range().start),
        non_finite: 0,
        skip: false,
        rows: Sum::new(0),
    };
    let n = job.len();
    let found = update.values().len();
    check_length("values of a push (f32s)", n * width, found)?;
    let shows = update.shows.map_or(n, <[u32]>::len);
    check_length("shows of a push", n, shows)?;
    let clicks = update.clicks.map_or(n, <[u32]>::len);
    check_length("clicks of a push", n, clicks)?;
    if let Kind::Gradients { lr, .. } = update.kind {
        check_learning_rate(table.descriptor.optimizer, lr)?;
    }
    if update.is_verbatim && !matches!(update.kind, Kind::Weights { .. } | Kind::Rows { .. }) {
        let what = String::from("only weights and rows are taken verbatim");
        return Err(ArgumentError::Other { what }.into());
    }
    if let Some(positions) = update.positions {
        job.chosen = Some(lease.part_of_ordinal(ordinal).rows_at(positions)?);
    }
    Ok(job)
}

#[cfg(test)]
mod tests;
