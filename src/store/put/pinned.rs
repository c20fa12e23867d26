//! How are rows put that somebody has pinned already?
//!
//! They are in memory, and stay: nothing is looked up, and no room is needed but for the copies of rows that a
//! running checkpoint needs as they are.

use std::sync::PoisonError;
use std::time::Instant;

use super::super::core::{Shard, Stretch, Table, point};
use super::apply::{LOCK_ROWS, Lack, put_pinned};
use super::{Job, PutReport, PutRows, Putter};
use crate::error::Result;
use crate::stats::Wait;
use crate::sync::{Mutex, MutexGuard};
use crate::units::{Slot, narrow, unmix64};

/// Neighbouring rows of a table.
#[derive(Debug)]
pub struct Pinned<'a> {
    /// So many.
    pub rows: usize,
    /// What the positions begin with.
    pub first: usize,
    /// By shard: slots, and positions, rising.
    pub by_shard: Vec<(&'a [Slot], &'a [u16])>,
}

/// What is left of a shard's rows.
struct Left {
    slots: Vec<Slot>,
    /// Where their values stand, from those of the piece's first row on.
    positions: Vec<u32>,
    /// The first that is not done.
    next: usize,
}

fn open(cell: &Mutex<Left>) -> MutexGuard<'_, Left> {
    cell.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Left {
    /// Puts up to [`LOCK_ROWS`] rows.
    ///
    /// # Errors
    /// [`Lack::Copies`]: nothing has changed.
    fn put_some(&mut self, shard: &mut Shard, job: &Job<'_>) -> std::result::Result<(), Lack> {
        let end = self.slots.len().min(self.next + LOCK_ROWS);
        let rows = self.next..end;
        let positions = self.positions[rows.clone()].iter().copied();
        put_pinned(shard, job, &self.slots[rows], positions)?;
        self.next = end;
        Ok(())
    }
}

impl Pinned<'_> {
    /// The slot at a position, and its shard.
    fn slot_at(&self, position: usize) -> Option<(usize, Slot)> {
        let find = |(s, (slots, positions)): (usize, &(&[Slot], &[u16]))| {
            let at = positions.binary_search_by_key(&position, |p| usize::from(*p));
            Some((s, slots[at.ok()?]))
        };
        self.by_shard.iter().enumerate().find_map(find)
    }
}

impl Putter {
    /// Writes rows, whatever they held.
    ///
    /// # Errors
    /// `InvalidArgument`, `ReadOnly`: nothing changed. `Poisoned`: some rows may be.
    pub fn put_pinned(
        &self,
        table: &Table,
        pieces: &[Pinned<'_>],
        rows: PutRows<'_>,
    ) -> Result<PutReport> {
        self.core.check_writable()?;
        let count: usize = pieces.iter().map(|piece| piece.rows).sum();
        let mut job = self.check(table, (count, &|index| self.key_of(pieces, index)), rows)?;
        let report = job.report(count);
        if report.rows > 0 {
            let _whole = self.core.gate_shared();
            // Whoever closes the store does it with the gate alone: changes are noted, or none are made.
            self.core.check_writable()?;
            self.core.changes.note();
            for piece in pieces {
                self.put_pinned_piece(&job, piece)?;
                job.first += piece.rows;
                self.flusher.look();
            }
            table.note_put(report.rows);
        }
        table.note_non_finite(report.non_finite);
        Ok(report)
    }

    fn put_pinned_piece(&self, job: &Job<'_>, piece: &Pinned<'_>) -> Result<()> {
        let arrays = &self.workers.arrays;
        let left = |(slots, positions): &(&'_ [Slot], &[u16])| {
            let mut left = Left {
                slots: arrays.slots.take(slots.len()),
                positions: arrays.numbers.take(slots.len()),
                next: 0,
            };
            for (slot, position) in slots.iter().zip(*positions) {
                let position: u32 = narrow(usize::from(*position) - piece.first);
                if !job.skip || job.is_finite_at(position) {
                    left.slots.push(*slot);
                    left.positions.push(position);
                }
            }
            Mutex::new(left)
        };
        let cells: Vec<Mutex<Left>> = piece.by_shard.iter().map(left).collect();
        let mut stretch = Stretch::default();
        loop {
            let pool = self.workers.foreground();
            let lacks = pool.shards(cells.len(), piece.rows, |s, _| {
                let left = &mut open(&cells[s]);
                while left.next < left.slots.len() {
                    let mut shard = self.core.shards[s].lock();
                    let put = left.put_some(&mut shard, job);
                    point("put");
                    drop(shard);
                    if put.is_err() {
                        return true;
                    }
                }
                false
            });
            // Whoever waits is the caller: the pool's threads have other work.
            let Some(s) = lacks.iter().position(|lacks| *lacks) else {
                break;
            };
            job.table.waits_on(&mut stretch, Wait::Room, Instant::now());
            self.wait_for_pinned_copies(s, job, &mut open(&cells[s]))?;
            stretch.end();
        }
        for cell in cells {
            let left = cell.into_inner().unwrap_or_else(PoisonError::into_inner);
            arrays.slots.put(left.slots);
            arrays.numbers.put(left.positions);
        }
        Ok(())
    }

    /// Waits until the rows that a running checkpoint needs as they are were copied, or written.
    ///
    /// # Errors
    /// `Poisoned` when a thread panicked: perhaps the one that would have written them.
    fn wait_for_pinned_copies(&self, s: usize, job: &Job<'_>, left: &mut Left) -> Result<()> {
        let cell = &self.core.shards[s];
        let mut shard = cell.lock();
        while left.put_some(&mut shard, job).is_err() {
            self.core.ssd.poison.check_threads()?;
            cell.wait(&mut shard);
        }
        Ok(())
    }

    /// The key whose values stand at an index.
    fn key_of(&self, pieces: &[Pinned<'_>], index: usize) -> u64 {
        let mut left = index;
        for piece in pieces {
            if left < piece.rows {
                let found = piece.slot_at(piece.first + left);
                return found.map_or(0, |(s, slot)| {
                    unmix64(self.core.shards[s].lock().cache.hash_of(slot))
                });
            }
            left -= piece.rows;
        }
        0
    }
}
