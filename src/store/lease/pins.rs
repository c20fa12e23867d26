//! Which rows stay in memory although nobody asks for their values? Those of passes, and of blocks.
//!
//! - Of each row the slot is kept, 4 bytes; it is pinned once for each piece that has it.
//! - What a pass holds stands in the book of leases by its [`OutGuard`]; what a block holds does not: it
//!   is the store's own.

use std::sync::{Arc, PoisonError};

use super::{Lease, Leases, Out, UNPIN_SHARE};
use crate::units::{Slot, TableId};

/// Rows looked at while a shard is locked.
const STEP_ROWS: usize = 4096;

/// Rows of one table that stay in memory until this is dropped.
#[derive(Debug)]
pub struct Pins {
    leases: Arc<Leases>,
    /// By shard.
    slots: Vec<Vec<Slot>>,
    /// Whether the table has blocks: then rows that are in none leave when this is dropped.
    leave: bool,
}

/// A place in the book of leases.
#[derive(Debug)]
pub struct OutGuard {
    leases: Arc<Leases>,
    id: u64,
}

impl OutGuard {
    /// Something of these tables is out from now on.
    pub fn new(leases: &Arc<Leases>, tables: Vec<TableId>) -> OutGuard {
        let id = leases.enter(Out { bytes: 0, tables });
        let leases = Arc::clone(leases);
        OutGuard { leases, id }
    }

    /// It holds so much more memory.
    pub fn add_bytes(&self, bytes: usize) {
        let book = &self.leases.book;
        let mut book = book.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(out) = book.1.get_mut(&self.id) {
            out.bytes += bytes as u64;
        }
    }
}

impl Drop for OutGuard {
    fn drop(&mut self) {
        if !self.leases.core.leave_to_parent(&self.leases) {
            self.leases.leave(self.id);
        }
    }
}

impl Pins {
    /// None yet. With `leave`, rows leave that nobody else needs when it is dropped.
    pub fn new(leases: &Arc<Leases>, leave: bool) -> Pins {
        Pins {
            leases: Arc::clone(leases),
            slots: leases.core.shards.iter().map(|_| Vec::new()).collect(),
            leave,
        }
    }

    /// Takes over what a lease has pinned; returns how many rows it has, and how many of them some block
    /// has.
    pub fn add(&mut self, mut lease: Lease) -> (usize, usize) {
        let (mut rows, mut in_blocks) = (0, 0);
        for (s, of_shard) in lease.rows.iter_mut().enumerate() {
            let mut slots = std::mem::take(&mut of_shard.slots);
            if of_shard.repeats {
                // Pinned once each.
                slots.sort_unstable();
                slots.dedup();
            }
            rows += slots.len();
            if self.leave {
                let cache = &self.leases.core.shards[s].lock().cache;
                in_blocks += cache.in_blocks(&slots);
            }
            self.slots[s].extend_from_slice(&slots);
            self.leases.workers.arrays.slots.put(slots);
        }
        (rows, in_blocks)
    }

    /// Its rows.
    pub fn rows(&self) -> u64 {
        let rows = self.slots.iter().map(|of_shard| of_shard.len() as u64);
        rows.sum()
    }

    /// Memory of a row.
    pub const ROW_BYTES: usize = size_of::<Slot>();

    /// Lets go of its rows, by all threads of a pull. With a lock that a batch may want nobody may wait for those.
    pub fn let_go(mut self) {
        let core = Arc::clone(&self.leases.core);
        let pool = self.leases.workers.foreground();
        let work = usize::try_from(self.rows()).map_or(0, |rows| rows / UNPIN_SHARE);
        pool.shards(core.shards.len(), work, |s| self.let_go_of(s));
        self.slots.iter_mut().for_each(Vec::clear);
    }

    fn let_go_of(&self, s: usize) {
        let cell = &self.leases.core.shards[s];
        for slots in self.slots[s].chunks(STEP_ROWS) {
            let cache = &mut cell.lock().cache;
            match self.leave {
                true => cache.unpin_and_leave(slots),
                false => {
                    cache.unpin(slots);
                }
            }
        }
        cell.notify();
    }

    /// Says whether rows of it are in some block.
    pub fn mark(&self, is_in: bool) {
        for (cell, slots) in self.leases.core.shards.iter().zip(&self.slots) {
            for step in slots.chunks(STEP_ROWS) {
                cell.lock().cache.mark_block(step, is_in);
            }
        }
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        let core = &self.leases.core;
        if core.leave_to_parent(&self.leases) {
            return;
        }
        let let_go = || {
            // By nobody else's threads: whoever drops a block has its table's blocks locked.
            (0..core.shards.len()).for_each(|s| self.let_go_of(s));
        };
        let _panicked = core.survive(let_go);
    }
}
