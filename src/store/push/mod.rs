//! How does a batch of gradients change its rows?
//!
//! Invariants:
//! - No I/O: rows of a lease are resident. (A push may wait for a checkpoint's drain when
//!   no slot is free for the copy of a frozen row.)
//! - Gradients of equal keys are summed in the caller's order and applied once, so the result does
//!   not depend on shards, threads or cache.
//! - A refused push changed nothing.

use std::sync::Arc;

use super::core::{Core, Part, Table, add, get, point};
use super::lease::{Lease, LeasePart};
use super::workers::Workers;
use crate::error::{ArgumentError, Error, Result};
use crate::mem::TableCache;
use crate::options::NonFinite;
use crate::row::{RowVisitor, accumulate, all_finite, check_learning_rate};
use crate::stats::Stats;
use crate::sync::atomic::AtomicU64;
use crate::units::unmix64;

/// Rows between the one that is changed and the one whose lines the processor is asked to fetch.
const AHEAD_ROWS: usize = 4;

/// What a push does to the rows of a lease.
#[derive(Clone, Copy, Debug)]
pub struct Update<'a> {
    pub(crate) kind: Kind<'a>,
    pub(crate) step: u32,
    pub(crate) shows: Option<&'a [u32]>,
    pub(crate) clicks: Option<&'a [u32]>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind<'a> {
    Gradients { values: &'a [f32], lr: f32 },
    Deltas { values: &'a [f32] },
    Weights { values: &'a [f32] },
    Rows { values: &'a [f32] },
}

impl<'a> Update<'a> {
    fn new(kind: Kind<'a>) -> Update<'a> {
        Update {
            kind,
            step: 0,
            shows: None,
            clicks: None,
        }
    }

    /// The table's optimizer applies the gradients; those of equal keys are summed first.
    ///
    /// # Shapes
    /// values: `[n, dim]`
    #[must_use]
    pub fn gradients(values: &'a [f32], lr: f32) -> Update<'a> {
        Update::new(Kind::Gradients { values, lr })
    }

    /// Adds to the weights; equal keys add up in the caller's order.
    ///
    /// # Shapes
    /// values: `[n, dim]`
    #[must_use]
    pub fn deltas(values: &'a [f32]) -> Update<'a> {
        Update::new(Kind::Deltas { values })
    }

    /// Replaces the weights and leaves the state; of equal keys the last one counts.
    ///
    /// # Shapes
    /// values: `[n, dim]`
    #[must_use]
    pub fn weights(values: &'a [f32]) -> Update<'a> {
        Update::new(Kind::Weights { values })
    }

    /// Replaces whole rows, state and metadata included; of equal keys the last one counts.
    ///
    /// # Shapes
    /// values: `[n, row_f32s]`
    #[must_use]
    pub fn rows(values: &'a [f32]) -> Update<'a> {
        Update::new(Kind::Rows { values })
    }

    /// The trainer's step, for the `last_step` column.
    #[must_use]
    pub fn step(mut self, step: u32) -> Update<'a> {
        self.step = step;
        self
    }

    /// Shows and clicks to add to the metadata columns.
    ///
    /// # Shapes
    /// `[n]` each
    #[must_use]
    pub fn shows_clicks(mut self, shows: &'a [u32], clicks: &'a [u32]) -> Update<'a> {
        self.shows = Some(shows);
        self.clicks = Some(clicks);
        self
    }

    fn values(&self) -> &'a [f32] {
        match self.kind {
            Kind::Gradients { values, .. }
            | Kind::Deltas { values }
            | Kind::Weights { values }
            | Kind::Rows { values } => values,
        }
    }
}

/// What a push did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PushReport {
    /// Distinct rows changed.
    pub rows: u64,
    /// Positions whose values were not finite (skipped or applied, as the options say).
    pub non_finite: u64,
}

/// Everything a shard needs to apply its part.
struct Job<'a> {
    table: &'a Table,
    update: Update<'a>,
    width: usize,
    skip: bool,
}

/// Changes the rows of leases.
#[derive(Debug)]
pub struct Pusher {
    core: Arc<Core>,
    workers: Arc<Workers>,
    rows: AtomicU64,
    bytes: AtomicU64,
    non_finite: AtomicU64,
}

impl Part for Pusher {
    fn wake(&self) {}

    fn count(&self, stats: &mut Stats) {
        stats.rows_pushed = get(&self.rows);
        stats.bytes_pushed = get(&self.bytes);
        stats.non_finite = get(&self.non_finite);
    }
}

impl Pusher {
    /// Nothing is pushed yet.
    pub fn new(core: &Arc<Core>, workers: &Arc<Workers>) -> Pusher {
        Pusher {
            core: Arc::clone(core),
            workers: Arc::clone(workers),
            rows: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            non_finite: AtomicU64::new(0),
        }
    }

    /// Changes the rows of a lease.
    ///
    /// # Errors
    /// `InvalidArgument`, `ReadOnly`, `Poisoned` (the change could never be checkpointed).
    pub fn push(&self, lease: &Lease, update: Update<'_>) -> Result<PushReport> {
        lease.check(&self.core)?;
        self.core.check_writable()?;
        let table = &*lease.table;
        let job = self.check_update(lease, table, update)?;
        let non_finite = self.count_non_finite(lease, &job)?;
        let _whole = self.core.gate_shared();
        self.core.changes.note();
        let rows = self
            .workers
            .foreground()
            .shards(self.core.shards.len(), lease.len(), |s, _| {
                self.push_shard(s, &lease.parts[s], &job)
            });
        let rows: u64 = rows.into_iter().sum::<Result<u64>>()?;
        add(&self.rows, rows);
        add(&self.bytes, rows * table.descriptor.row_bytes() as u64);
        add(&self.non_finite, non_finite);
        Ok(PushReport { rows, non_finite })
    }

    fn check_update<'a>(
        &self,
        lease: &Lease,
        table: &'a Table,
        update: Update<'a>,
    ) -> Result<Job<'a>> {
        let n = lease.len();
        let width = match update.kind {
            Kind::Rows { .. } => table.descriptor.row_f32s(),
            _ => table.descriptor.dim,
        };
        let check = |what, expected: usize, found: usize| match expected == found {
            true => Ok(()),
            false => Err(Error::InvalidArgument(ArgumentError::Length {
                what,
                expected,
                found,
            })),
        };
        check("values of a push (f32s)", n * width, update.values().len())?;
        check("shows of a push", n, update.shows.map_or(n, <[u32]>::len))?;
        check("clicks of a push", n, update.clicks.map_or(n, <[u32]>::len))?;
        if let Kind::Gradients { lr, .. } = update.kind {
            check_learning_rate(table.descriptor.optimizer, lr)?;
        }
        Ok(Job {
            table,
            update,
            width,
            skip: self.core.options.non_finite == NonFinite::Skip,
        })
    }

    /// Counts positions whose values are not finite; an error when they are to be rejected.
    /// Whole rows may hold any bits in their metadata: only weights and state are looked at.
    fn count_non_finite(&self, lease: &Lease, job: &Job<'_>) -> Result<u64> {
        let values = job.update.values();
        if self.all_finite(values, lease.len()) {
            return Ok(0);
        }
        let looked = job.width.min(job.table.layout.metadata_range().start);
        let mut count = 0;
        for (index, row) in values.chunks_exact(job.width).enumerate() {
            if all_finite(&row[..looked]) {
                continue;
            }
            count += 1;
            if self.core.options.non_finite == NonFinite::Reject {
                let key = self.key_at(lease, index);
                let table = job.table.descriptor.name.clone();
                return Err(ArgumentError::NonFinite { table, key, index }.into());
            }
        }
        Ok(count)
    }

    /// Whether all values are finite, looked at by all threads.
    fn all_finite(&self, values: &[f32], keys: usize) -> bool {
        let pool = self.workers.foreground();
        let pieces = pool.threads();
        let piece = values.len().div_ceil(pieces).max(1);
        let finite = pool.shards(pieces, keys, |i, _| {
            let rest = values.get(i * piece..).unwrap_or_default();
            all_finite(&rest[..piece.min(rest.len())])
        });
        finite.into_iter().all(|ok| ok)
    }

    /// The key at a position of a lease.
    fn key_at(&self, lease: &Lease, index: usize) -> u64 {
        let s = usize::from(lease.shards[index]);
        let part = &lease.parts[s];
        let at = part.positions.partition_point(|p| (*p as usize) < index);
        let shard = self.core.shards[s].lock();
        let cache = &shard.tables[lease.table.id.0 as usize].cache;
        unmix64(cache.hash_of(part.slots[at]))
    }

    fn push_shard(&self, s: usize, part: &LeasePart, job: &Job<'_>) -> Result<u64> {
        let looked = job.width.min(job.table.layout.metadata_range().start);
        let usable = |position: u32| {
            let start = position as usize * job.width;
            !job.skip || all_finite(&job.update.values()[start..start + looked])
        };
        // Positions that count; rows without one are not touched. Equal keys become neighbours,
        // in the caller's order.
        let both = part.slots.iter().copied();
        let both = both.zip(part.positions.iter().copied());
        let mut kept = self.workers.arrays.pairs.take(part.slots.len());
        kept.extend(both.filter(|(_, p)| usable(*p)));
        if part.repeats {
            kept.sort_unstable();
        }
        if kept.is_empty() {
            return Ok(0);
        }
        let mut slots = self.workers.arrays.numbers.take(kept.len());
        slots.extend(kept.iter().map(|(slot, _)| *slot));
        slots.dedup();
        let mut shard = self.core.lock_to_write(s, job.table, &slots)?;
        apply(&mut shard.tables[job.table.id.0 as usize].cache, &kept, job);
        point("push");
        drop(shard);
        let count = slots.len() as u64;
        self.workers.arrays.numbers.put(slots);
        self.workers.arrays.pairs.put(kept);
        Ok(count)
    }
}

fn apply(cache: &mut TableCache, kept: &[(u32, u32)], job: &Job<'_>) {
    match job.update.kind {
        Kind::Gradients { values, lr } => {
            let dim = job.width;
            let mut visitor = Gradients {
                cache,
                rest: kept,
                values,
                dim,
                sum: Vec::new(),
            };
            job.table.updater.apply_all(lr, &mut visitor);
        }
        Kind::Deltas { values } => {
            for (slot, position) in kept {
                let delta = slice(values, *position, job.width);
                job.table.layout.apply_delta(cache.row_mut(*slot), delta);
            }
        }
        Kind::Weights { values } | Kind::Rows { values } => {
            for (slot, position) in kept {
                let new = slice(values, *position, job.width);
                cache.row_mut(*slot)[..job.width].copy_from_slice(new);
            }
        }
    }
    if job.table.descriptor.metadata.columns() > 0 && !matches!(job.update.kind, Kind::Rows { .. })
    {
        let at = |column: Option<&[u32]>, i: u32| column.map_or(0, |c| c[i as usize]);
        for group in kept.chunk_by(|a, b| a.0 == b.0) {
            let sum = |column| {
                group
                    .iter()
                    .fold(0u32, |sum, (_, i)| sum.saturating_add(at(column, *i)))
            };
            let (show, click) = (sum(job.update.shows), sum(job.update.clicks));
            let row = cache.row_mut(group[0].0);
            job.table
                .layout
                .update_metadata(row, show, click, job.update.step);
        }
    }
}

fn slice(values: &[f32], position: u32, width: usize) -> &[f32] {
    let start = position as usize * width;
    &values[start..start + width]
}

/// Yields each row with the sum of its gradients.
struct Gradients<'a> {
    cache: &'a mut TableCache,
    rest: &'a [(u32, u32)],
    values: &'a [f32],
    dim: usize,
    sum: Vec<f32>,
}

impl RowVisitor for Gradients<'_> {
    #[inline]
    fn next(&mut self) -> Option<(&mut [f32], &[f32])> {
        let (slot, first) = *self.rest.first()?;
        let same = self.rest.iter().take_while(|(p, _)| *p == slot).count();
        let (group, rest) = self.rest.split_at(same);
        self.rest = rest;
        if let Some((ahead, _)) = rest.get(AHEAD_ROWS) {
            self.cache.prefetch_line(*ahead);
        }
        let gradient = slice(self.values, first, self.dim);
        if same == 1 {
            return Some((self.cache.row_mut(slot), gradient));
        }
        self.sum.clear();
        self.sum.extend_from_slice(gradient);
        for (_, position) in &group[1..] {
            accumulate(&mut self.sum, slice(self.values, *position, self.dim));
        }
        Some((self.cache.row_mut(slot), &self.sum))
    }
}

#[cfg(test)]
mod tests;
