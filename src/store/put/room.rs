//! Is there room for a put, until its end?
//!
//! - Pins and promised slots never need more than the memory. So one promised slot in a shard is enough for
//!   any number of rows there: it is neither pinned nor another's, and flushes free it again.
//! - Where rows never leave memory, each that is not there needs a slot of its own.
//! - Each shard with a key has a slot promised or a row pinned until the gate is held: nobody drops the
//!   table or gives it other slots in between, since it is in use.
//! - All shards have room, or none is promised any.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize as Count, Ordering};
use std::time::Instant;

use super::super::core::{Beside, Core, Shard, ShardTable, Stretch, Table};
use super::super::pull::{Full, Waited};
use super::Putter;
use crate::batch::share;
use crate::error::Result;
use crate::mem::Flags;
use crate::stats::Wait;
use crate::units::{Slot, mix64, range_of};

/// What is kept for a put in one shard. (Nothing is decided by the count but under the shard's lock: no
/// point where a schedule of a test may change.)
#[derive(Debug, Default)]
pub struct ShardRoom {
    promised: Count,
    /// Rows that are leased, and would have no slot if they were not any more; or one row, where
    /// all are in memory to stay.
    pinned: Vec<Slot>,
    /// Whether each new row takes one of the promised slots, and keeps it.
    takes: bool,
}

impl ShardRoom {
    /// So many rows got slots.
    pub fn take(&self, entry: &mut ShardTable, rows: usize) {
        if self.takes {
            let promised = self.promised.load(Ordering::Relaxed);
            let taken = rows.min(promised);
            entry.promises.end(taken);
            self.promised.store(promised - taken, Ordering::Relaxed);
        }
    }
}

/// What an attempt to keep room has led to.
enum Attempt {
    Kept(Room),
    /// In which shard there is none, and how full it is.
    Full(usize, Full),
}

/// What is kept for a put; given back when it is dropped.
#[derive(Debug)]
pub struct Room {
    core: Arc<Core>,
    table: usize,
    /// By shard.
    pub shards: Vec<ShardRoom>,
}

impl Drop for Room {
    fn drop(&mut self) {
        for (cell, room) in self.core.shards.iter().zip(&self.shards) {
            let promised = room.promised.load(Ordering::Relaxed);
            if promised == 0 && room.pinned.is_empty() {
                continue;
            }
            let mut shard = cell.lock();
            let promises = &mut shard.tables[self.table].promises;
            match room.takes {
                true => promises.end(promised),
                false => promises.give_back(promised),
            }
            shard.cache.unpin(&room.pinned);
            drop(shard);
            cell.notify();
        }
    }
}

impl Putter {
    /// Sees to it that the rows of these keys can be put, whatever else is asked for meanwhile.
    ///
    /// # Errors
    /// `OverBudget`; nothing is kept.
    pub(in crate::store) fn promise(&self, wanted_by: &Table, keys: &[u64]) -> Result<Room> {
        let (mut waited, mut stretch) = (Waited::default(), Stretch::default());
        loop {
            let (s, full) = match self.try_promise(wanted_by, keys)? {
                Attempt::Kept(room) => return Ok(room),
                Attempt::Full(s, full) => (s, full),
            };
            let Some(after) = waited.once(s, &full) else {
                return Err(self.puller.over_budget(wanted_by, &full));
            };
            wanted_by.waits_on(&mut stretch, Wait::Room, Instant::now());
            self.puller.wait_after(s, after)?;
        }
    }

    /// The same, without a wait.
    fn try_promise(&self, wanted_by: &Table, keys: &[u64]) -> Result<Attempt> {
        let count = self.core.shards.len();
        let mut room = Room {
            core: Arc::clone(&self.core),
            table: wanted_by.id.0 as usize,
            shards: (0..count).map(|_| ShardRoom::default()).collect(),
        };
        let used = used_shards(keys, count);
        let _admission = self.puller.admission_alone();
        // It may have been dropped since it was found, or have got another policy; now neither comes.
        wanted_by.check_there()?;
        let rows_stay = wanted_by.tuning().policy.keeps_all();
        let mut hashes = rows_stay.then(|| hashes_by_shard(keys, count));
        for s in (0..count).filter(|s| used[*s]) {
            let mut guard = self.core.shards[s].lock();
            let (shard, table) = (&mut *guard, room.table);
            let one_more = shard.needed_bytes(&[(table, 1)], Beside::Promises);
            let is_free = shard.has_bytes(one_more);
            let shard_room = &mut room.shards[s];
            let full = if rows_stay {
                let hashes = hashes.get_or_insert_default();
                promise_all(shard, table, &hashes[s], shard_room)
            } else if is_free {
                shard.tables[table].promises.lend();
                *shard_room.promised.get_mut() = 1;
                Ok(())
            } else {
                let hashes = hashes.get_or_insert_with(|| hashes_by_shard(keys, count));
                pin_all(shard, table, &hashes[s], shard_room)
            };
            drop(guard);
            if let Err(full) = full {
                return Ok(Attempt::Full(s, full));
            }
        }
        Ok(Attempt::Kept(room))
    }
}

/// Which shards have a key.
fn used_shards(keys: &[u64], count: usize) -> Vec<bool> {
    let mut used = vec![false; count];
    let mut left = count;
    for key in keys {
        let used = &mut used[range_of(mix64(*key), count)];
        left -= usize::from(!*used);
        *used = true;
        if left == 0 {
            break;
        }
    }
    used
}

/// The hashes of keys, by shard. A put may have more keys than there are positions.
fn hashes_by_shard(keys: &[u64], count: usize) -> Vec<Vec<u64>> {
    let empty = |_| Vec::with_capacity(share(keys.len(), count));
    let mut hashes: Vec<Vec<u64>> = (0..count).map(empty).collect();
    for hash in keys.iter().map(|key| mix64(*key)) {
        hashes[range_of(hash, count)].push(hash);
    }
    hashes
}

/// The slots of rows, `Slot::NONE` for those that are not in memory.
fn slots_of(shard: &Shard, table: usize, hashes: &[u64]) -> Vec<Slot> {
    let mut slots = vec![Slot::NONE; hashes.len()];
    shard.cache.lookup(table, hashes, &mut slots);
    slots
}

/// Promises a slot to each row that is not in memory, for good.
fn promise_all(
    shard: &mut Shard,
    table: usize,
    hashes: &[u64],
    room: &mut ShardRoom,
) -> std::result::Result<(), Full> {
    let slots = slots_of(shard, table, hashes);
    let both = hashes.iter().zip(&slots);
    let mut absent: Vec<u64> = both
        .filter(|(_, p)| **p == Slot::NONE)
        .map(|b| *b.0)
        .collect();
    absent.sort_unstable();
    absent.dedup();
    let asked = absent.len();
    let needed = shard.needed_bytes(&[(table, asked)], Beside::Promises);
    if !shard.has_bytes(needed) {
        return Err(Full {
            pinned: shard.busy_slots(table) - shard.cache.frozen_of(table),
            asked,
            capacity: shard.cache.capacity(table),
            needed,
            promised: shard.promises_in_the_way(&[(table, asked)]),
        });
    }
    if asked == 0 {
        // Best one that nobody reads: a read that fails gives its slot back with the last pin.
        let is_read = |slot: &&Slot| {
            let flags = shard.cache.flags(**slot);
            flags.any(Flags::LOADING | Flags::FAILED)
        };
        let whole = slots.iter().find(|slot| !is_read(slot));
        room.pinned.extend(whole.or(slots.first()));
        shard.cache.pin(&room.pinned);
    }
    shard.tables[table].promises.make(asked);
    *room.promised.get_mut() = asked;
    room.takes = true;
    Ok(())
}

/// Pins all rows, if leases have them pinned already: all memory is pinned or promised.
fn pin_all(
    shard: &mut Shard,
    table: usize,
    hashes: &[u64],
    room: &mut ShardRoom,
) -> std::result::Result<(), Full> {
    let mut slots = slots_of(shard, table, hashes);
    let pinned = shard.wanted_slots(table);
    let absent = slots.iter().filter(|slot| **slot == Slot::NONE).count();
    slots.retain(|slot| *slot != Slot::NONE);
    let newly = shard.cache.pin(&slots);
    if absent > 0 || newly > 0 {
        shard.cache.unpin(&slots);
        return Err(Full {
            pinned,
            asked: 1,
            capacity: shard.cache.capacity(table),
            needed: shard.needed_bytes(&[(table, 1)], Beside::Promises),
            promised: shard.promises_in_the_way(&[(table, 1)]),
        });
    }
    room.pinned = slots;
    Ok(())
}
