//! What does a call want, and how far has each shard come with it?

use std::sync::PoisonError;

use super::super::lease::{PartMap, ShardRows};
use super::super::workers::{BatchArrays, WorkerPool};
use super::split::{Piece, Wanted, split_parts};
use crate::batch::{ShardPart, check_keys};
use crate::error::{ArgumentError, Result};
use crate::sync::{Mutex, MutexGuard};
use crate::units::{Slot, narrow};

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
    /// There might be room once others have taken slots that they were promised, of which so many were ever: some may
    /// be for the same rows.
    pub promised: Option<u64>,
}

impl Full {
    /// So many rows do not fit although nothing else is held: other tables, or blocks, take their part.
    pub fn alone(asked: usize, capacity: usize, needed: u64) -> Full {
        Full {
            pinned: 0,
            asked,
            promised: None,
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

/// What makes room without anybody's giving up rows.
#[derive(Clone, Copy, Debug)]
pub enum After {
    /// The copies of a running checkpoint are written; so many slots of the shard are taken without the call.
    Copies { busy: usize },
    /// So many promises have ended.
    Promises { ended: u64 },
}

/// One shard's progress. Its rows are those of all parts, by ordinal.
#[derive(Default)]
pub struct Pending<'a> {
    /// What the threads have split, in the order of the keys, until it is put together.
    pieces: Vec<(ShardPart, Vec<&'a mut [f32]>)>,
    pub part: ShardPart,
    /// Where the rows are to be copied, by index into the part; none if they are not, empty where they were
    /// when they had been read.
    pub targets: Vec<&'a mut [f32]>,
    /// Slot by index into the part; [`Slot::NONE`] until it has one.
    pub slots: Vec<Slot>,
    /// Indexes of what was not there at first, or was being read: rising.
    pub rest: Vec<u32>,
    /// Indexes of what was there and is copied after reads were begun: rising.
    pub ready: Vec<u32>,
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

    /// What was there is copied later.
    pub fn copy_later(&mut self) {
        let (mut all, rows) = (0, narrow(self.part.hashes.len()));
        for late in self.rest.iter().copied().chain([rows]) {
            self.ready.extend(all..late);
            all = late + 1;
        }
    }

    /// Copies a row that was read, one of the missing, to wherever it is wanted.
    pub fn deliver(&mut self, missing: u32, row: &[f32]) {
        if self.targets.is_empty() {
            return;
        }
        let same = &self.missing[missing as usize..];
        for wanted in same.iter().take_while(|m| m.is_same_row(&same[0])) {
            let target = std::mem::take(&mut self.targets[wanted.index as usize]);
            target.copy_from_slice(&row[..target.len()]);
        }
    }
}

pub type Cell<'a> = Mutex<Pending<'a>>;

pub fn open<'m, 'a>(cell: &'m Cell<'a>) -> MutexGuard<'m, Pending<'a>> {
    cell.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A call, split by shard.
pub struct Batch<'a> {
    pub map: PartMap,
    /// Whether its rows are copied to the caller.
    pub is_copied: bool,
    /// Whether the rows that are there are copied when reads of the others have begun.
    pub reads_first: bool,
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
        let is_copied = parts.iter().any(|part| part.out.is_some());
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
            is_copied,
            reads_first: false,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_copied_later_is_all_but_the_rest() {
        let later = |rows: usize, rest: &[u32]| {
            let mut pending = Pending::default();
            pending.part.hashes = vec![0; rows];
            pending.rest = rest.to_vec();
            pending.copy_later();
            pending.ready
        };
        assert_eq!(later(0, &[]), [0u32; 0]);
        assert_eq!(later(3, &[]), [0, 1, 2]);
        assert_eq!(later(3, &[0, 1, 2]), [0u32; 0]);
        assert_eq!(later(6, &[0, 2, 5]), [1, 3, 4]);
    }

    #[test]
    fn a_row_that_was_read_goes_to_each_place_where_it_is_wanted() {
        let mut out = [0.0; 8];
        let mut pending = Pending {
            targets: out.chunks_exact_mut(2).collect(),
            ..Pending::default()
        };
        let missing = |hash, index| Missing {
            ordinal: 0,
            hash,
            index,
        };
        pending.missing = vec![missing(5, 3), missing(6, 0), missing(6, 2), missing(7, 1)];
        pending.deliver(1, &[1.0, 2.0, 3.0]);
        let left: Vec<usize> = pending.targets.iter().map(|target| target.len()).collect();
        assert_eq!(left, [0, 2, 0, 2]);
        drop(pending);
        assert_eq!(out, [1.0, 2.0, 0.0, 0.0, 1.0, 2.0, 0.0, 0.0]);
    }
}
