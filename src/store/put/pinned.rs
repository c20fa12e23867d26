//! How are rows put that somebody has pinned already?
//!
//! They are in memory, and stay: nothing is looked up, and no room is needed but for the copies of rows that a
//! running checkpoint needs as they are.

use super::super::core::{Shard, Table};
use super::apply::{Rest, put_pinned};
use super::{Job, PutReport, PutRows, Putter};
use crate::error::Result;
use crate::sync::Mutex;
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
        let mut job = Job::new(table, count, rows)?;
        self.check(&mut job, (count, &|index| self.key_of(pieces, index)))?;
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
        let rest = |(slots, positions): &(&'_ [Slot], &[u16])| {
            let mut rest = Rest {
                rows: arrays.slots.take(slots.len()),
                positions: arrays.numbers.take(slots.len()),
                next: 0,
            };
            for (slot, position) in slots.iter().zip(*positions) {
                let position: u32 = narrow(usize::from(*position) - piece.first);
                if !job.skip || job.is_finite_at(position) {
                    rest.rows.push(*slot);
                    rest.positions.push(position);
                }
            }
            Mutex::new(rest)
        };
        let cells = piece.by_shard.iter().map(rest).collect();
        let put = |_, shard: &mut Shard, rest: &mut Rest<Slot>| put_pinned(shard, job, rest);
        self.put_all(job, cells, put, &arrays.slots)
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
