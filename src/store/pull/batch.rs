//! What does a call want, and how far has each shard come with it?

use std::sync::PoisonError;

use super::super::lease::{PartMap, ShardRows};
use super::super::workers::{BatchArrays, WorkerPool};
use super::split::{Piece, Wanted, split_parts};
use crate::batch::{ShardPart, check_keys};
use crate::error::{ArgumentError, Result};
use crate::sync::{Mutex, MutexGuard};
use crate::units::Slot;

/// What a batch wants of rows that are not in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Their values.
    Read,
    /// A slot only: the rows are about to be removed.
    Remove,
}

/// A row that is not in memory, at one place in the batch.
#[derive(Clone, Copy, Debug)]
pub struct Missing {
    /// The ordinal of the first part of its table.
    pub ordinal: u32,
    pub hash: u64,
    /// Where it is wanted, among the shard's rows.
    pub index: u32,
}

impl Missing {
    /// Whether both are one row.
    pub fn is_same_row(&self, other: &Missing) -> bool {
        (self.ordinal, self.hash) == (other.ordinal, other.hash)
    }
}

/// There is no room in a shard for rows of a table.
#[derive(Clone, Copy, Debug)]
pub struct Full {
    /// Rows of it that are pinned, or promised to others.
    pub pinned: usize,
    /// Rows of it that are asked for.
    pub asked: usize,
    /// Rows of it that would fit if nothing else were there.
    pub capacity: usize,
    /// Memory that all would need.
    pub needed: u64,
}

impl Full {
    /// So many rows do not fit although nothing else is held: other tables, or blocks, take their part.
    pub fn alone(asked: usize, capacity: usize, needed: u64) -> Full {
        Full {
            pinned: 0,
            asked,
            capacity: capacity.min(asked.saturating_sub(1)),
            needed,
        }
    }

    /// Whether it does not fit whatever is given back.
    pub fn is_hopeless(&self) -> bool {
        self.asked > self.capacity
    }
}

/// Why a shard did not admit a call.
#[derive(Clone, Copy, Debug)]
pub enum Refusal {
    /// Its rows can't fit beside the outstanding leases.
    OverBudget { ordinal: usize, full: Full },
    /// They will fit once the copies of a running checkpoint are written; so many slots of the
    /// shard are taken without this batch.
    Frozen { ordinal: usize, busy: usize },
}

/// One shard's progress. Its rows are those of all parts, by ordinal.
#[derive(Default)]
pub struct Pending<'a> {
    /// What the threads have split, in the order of the keys, until it is put together.
    pieces: Vec<(ShardPart, Vec<&'a mut [f32]>)>,
    pub part: ShardPart,
    /// Where the rows are to be copied, by index into the part; none if they are not.
    pub targets: Vec<&'a mut [f32]>,
    /// Slot by index into the part; [`Slot::NONE`] until it has one.
    pub slots: Vec<Slot>,
    /// Indexes of what could not be copied at once, table after table.
    pub rest: Vec<u32>,
    /// Rows without a slot, by ordinal and hash.
    pub missing: Vec<Missing>,
    /// Positions in `missing` that have a slot.
    pub assigned: usize,
    /// Whether slots are promised to the rest of `missing`.
    pub promised: bool,
    /// Distinct rows that were ever pushed, and those of them that had to be read: by the ordinal of the
    /// first part of their table.
    pub counts: Vec<(u32, u32)>,
    /// Whether a row may be at two positions.
    pub has_repeats: bool,
    /// (ordinal, slot) of rows that another batch is reading.
    pub foreign: Vec<(u32, Slot)>,
    /// (ordinal, slot) taken for rows that are about to be removed: they keep others waiting like
    /// rows that are being read.
    pub claimed: Vec<(u32, Slot)>,
    pub refusal: Option<Refusal>,
}

impl Pending<'_> {
    /// Puts together what the threads have split, once; how many rows there are.
    pub fn unite(&mut self, arrays: &BatchArrays, parts: usize) -> usize {
        let mut pieces = std::mem::take(&mut self.pieces).into_iter();
        if let Some((part, targets)) = pieces.next() {
            (self.part, self.targets) = (part, targets);
            for (mut part, mut targets) in pieces {
                self.part.positions.append(&mut part.positions);
                self.part.hashes.append(&mut part.hashes);
                self.targets.append(&mut targets);
                arrays.numbers.put(part.positions);
                arrays.hashes.put(part.hashes);
                arrays.put_targets(targets);
            }
            self.slots = arrays.slots.take(self.part.hashes.len());
            self.slots.resize(self.part.hashes.len(), Slot::NONE);
            self.counts = arrays.counts.take(parts);
        }
        self.part.hashes.len()
    }
}

pub type Cell<'a> = Mutex<Pending<'a>>;

pub fn open<'m, 'a>(cell: &'m Cell<'a>) -> MutexGuard<'m, Pending<'a>> {
    cell.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A call, split by shard.
pub struct Batch<'a> {
    pub map: PartMap,
    /// By shard.
    pub cells: Vec<Cell<'a>>,
}

impl<'a> Batch<'a> {
    /// Splits the keys of all parts between so many shards; what the threads of the pool have split
    /// is put together by [`Pending::unite`].
    ///
    /// # Errors
    /// `InvalidArgument`: no part, too many keys.
    pub fn new(
        (arrays, pool): (&BatchArrays, &WorkerPool),
        count: usize,
        parts: &'a mut [Wanted<'_>],
    ) -> Result<Batch<'a>> {
        let keys = parts.iter().map(|part| part.keys.len()).sum();
        check_count(parts.len(), keys)?;
        let mut map = PartMap::new(parts.iter().map(|p| (p.table, p.keys.len())), count);
        // By ordinal.
        parts.sort_by_key(|part| part.table.id.0);
        let pieces = split_parts((arrays, pool), count, parts, &mut map);
        let mut cells: Vec<Pending<'a>> = (0..count).map(|_| Pending::default()).collect();
        for Piece { parts, targets } in pieces {
            for ((part, targets), pending) in parts.into_iter().zip(targets).zip(&mut cells) {
                pending.pieces.push((part, targets));
            }
        }
        Ok(Batch {
            cells: cells.into_iter().map(Mutex::new).collect(),
            map,
        })
    }

    /// Everything is resident: the rows by shard, and how many distinct ones were known and how
    /// many of these had to be read.
    pub fn into_rows(self, arrays: &BatchArrays) -> (PartMap, Vec<ShardRows>, u64, u64) {
        let (mut known, mut loads) = (0, 0);
        let mut counts = vec![(0, 0); self.map.len()];
        let mut rows = Vec::with_capacity(self.cells.len());
        for cell in self.cells {
            let pending = cell.into_inner().unwrap_or_else(PoisonError::into_inner);
            for (sum, count) in counts.iter_mut().zip(&pending.counts) {
                *sum = (sum.0 + u64::from(count.0), sum.1 + u64::from(count.1));
            }
            arrays.counts.put(pending.counts);
            arrays.hashes.put(pending.part.hashes);
            arrays.put_targets(pending.targets);
            rows.push(ShardRows {
                slots: pending.slots,
                positions: pending.part.positions,
                repeats: pending.has_repeats,
            });
        }
        for (table, ordinals) in self.map.tables() {
            let count = counts[ordinals.start];
            table.note_asked(count.0, count.0.saturating_sub(count.1));
            known += count.0;
            loads += count.1;
        }
        (self.map, rows, known, loads)
    }
}

/// Checks the size of a call.
///
/// # Errors
/// `InvalidArgument`.
pub fn check_count(parts: usize, keys: usize) -> Result<()> {
    if parts == 0 {
        let what = String::from("a call needs at least one part");
        return Err(ArgumentError::Other { what }.into());
    }
    check_keys(keys)
}
