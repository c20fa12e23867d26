//! Which rows come back, and in which order?
//!
//! Those that were worth most by the measure by which rows leave ([`Cache::rank`](crate::mem::Cache::rank)), as
//! many as the caches have room for; of those that were worth the same as the last of them, so many by chance that all
//! fit. Files are read in the order of how much of them comes back.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::super::core::Core;
use super::Chosen;
use crate::mem::RANKS;
use crate::ssd::data_file::DataFile;
use crate::ssd::index::{Index as _, IndexEntry};
use crate::units::{FileSlot, narrow};

/// Keys that are looked at while a shard is locked: some ten microseconds.
const STEP_KEYS: usize = 1 << 12;

/// The rows that come back.
#[derive(Debug)]
pub struct Choice {
    /// All rows of higher ranks.
    rank: usize,
    /// Of rows of this rank, those whose low 32 bits are below this.
    share: u64,
    /// By slot of a file: rows of it, and their bytes; the files with the most first.
    files: Vec<(FileSlot, u64)>,
    rows: u64,
}

impl Choice {
    /// Looks at all keys of these tables.
    pub fn new(core: &Core, tables: &[usize]) -> Choice {
        let mut bytes_by_rank = vec![0; RANKS];
        for_each(core, tables, |_, _, (rank, cost)| {
            bytes_by_rank[rank] += cost;
        });
        let spare = |shard: &super::super::core::ShardCell| shard.lock().cache.bytes_spare();
        let room: u64 = core.shards.iter().map(spare).sum();
        let (rank, share) = cut(&bytes_by_rank, room);
        let mut choice = Choice {
            rank,
            share,
            files: Vec::new(),
            rows: 0,
        };
        let mut files: HashMap<FileSlot, (u64, u64)> = HashMap::new();
        for_each(core, tables, |hash, entry, (rank, cost)| {
            if choice.takes(hash, rank) {
                let file = files.entry(entry.location().slot()).or_default();
                *file = (file.0 + 1, file.1 + cost);
            }
        });
        choice.rows = files.values().map(|(rows, _)| rows).sum();
        let slots = core.ssd.file_slots();
        let bytes = |slot: FileSlot| {
            let file = slots.get(slot.index()).and_then(Option::as_ref);
            file.map_or(u64::MAX, |file| file.meta.bytes.max(1))
        };
        // How much of each file, in 2^-16ths.
        let part = |slot: FileSlot, hot: u64| (hot << 16) / bytes(slot);
        let mut order: Vec<_> = files.into_iter().collect();
        order
            .sort_unstable_by_key(|(slot, (_, hot))| (std::cmp::Reverse(part(*slot, *hot)), *slot));
        choice.files = order
            .into_iter()
            .map(|(slot, (rows, _))| (slot, rows))
            .collect();
        choice
    }

    /// Rows that come back.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    fn takes(&self, hash: u64, rank: usize) -> bool {
        rank > self.rank || rank == self.rank && hash & u64::from(u32::MAX) < self.share
    }

    /// Files that are read together, with so many rows in all or with one file.
    pub fn rounds(&self, most: u64) -> Vec<HashSet<FileSlot>> {
        let mut rounds: Vec<HashSet<FileSlot>> = Vec::new();
        let mut left = 0;
        for (slot, rows) in &self.files {
            if *rows > left {
                rounds.push(HashSet::new());
                left = most;
            }
            left = left.saturating_sub(*rows);
            rounds.last_mut().map(|round| round.insert(*slot));
        }
        rounds
    }

    /// The rows of these files that come back, with the files themselves. What has moved meanwhile is left out.
    pub fn collect(
        &self,
        core: &Core,
        tables: &[usize],
        round: &HashSet<FileSlot>,
    ) -> (Vec<Option<Arc<DataFile>>>, Vec<Chosen>) {
        let files: Vec<Option<Arc<DataFile>>> = {
            let slots = core.ssd.file_slots();
            let of_round = |(i, file): (usize, &Option<Arc<DataFile>>)| {
                file.clone().filter(|_| round.contains(&FileSlot::new(i)))
            };
            slots.iter().enumerate().map(of_round).collect()
        };
        let mut chosen = Vec::new();
        for (s, cell) in core.shards.iter().enumerate() {
            for table in tables {
                let (mut next, mut found) = (Some(0), Vec::new());
                while let Some(from) = next {
                    found.clear();
                    let shard = cell.lock();
                    next = shard.tables[*table]
                        .index
                        .classed(from, STEP_KEYS, &mut found);
                    // A slot may be another file's by now.
                    let now = core.ssd.file_slots();
                    for (hash, entry) in &found {
                        let at = entry.location().slot().index();
                        let same = match (files.get(at), now.get(at)) {
                            (Some(Some(then)), Some(Some(now))) => Arc::ptr_eq(then, now),
                            _ => false,
                        };
                        let rank = shard.cache.rank(*table, entry.class());
                        if same && self.takes(*hash, rank) && !entry.location().is_tombstone() {
                            chosen.push(Chosen {
                                entry: *entry,
                                hash: *hash,
                                table: narrow(*table),
                                shard: narrow(s),
                            });
                        }
                    }
                }
            }
        }
        (files, chosen)
    }
}

/// Shows each key that has a class: its hash and entry, its rank and the bytes that its row takes.
fn for_each(core: &Core, tables: &[usize], mut see: impl FnMut(u64, IndexEntry, (usize, u64))) {
    for cell in &core.shards {
        for table in tables {
            let (mut next, mut found) = (Some(0), Vec::new());
            while let Some(from) = next {
                found.clear();
                let shard = cell.lock();
                next = shard.tables[*table]
                    .index
                    .classed(from, STEP_KEYS, &mut found);
                let cost = shard.cache.row_cost(*table);
                let ranks: [usize; 16] =
                    std::array::from_fn(|class| shard.cache.rank(*table, narrow(class)));
                drop(shard);
                for (hash, entry) in &found {
                    if !entry.location().is_tombstone() {
                        see(*hash, *entry, (ranks[usize::from(entry.class())], cost));
                    }
                }
            }
        }
    }
}

/// The rank above which all rows fit, and the share of the rows of that rank that fit, too, in 2^-32ths.
fn cut(bytes_by_rank: &[u64], room: u64) -> (usize, u64) {
    let mut left = room;
    for (rank, bytes) in bytes_by_rank.iter().enumerate().rev() {
        match left.checked_sub(*bytes) {
            Some(rest) => left = rest,
            None => {
                let share = (u128::from(left) << 32) / u128::from(*bytes);
                return (rank, u64::try_from(share).unwrap_or(u64::MAX));
            }
        }
    }
    (0, 1 << 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_all_of_the_highest_ranks_and_a_share_of_the_next() {
        assert_eq!(cut(&[0, 10, 20, 30], 100), (0, 1 << 32));
        assert_eq!(cut(&[0, 10, 20, 30], 60), (0, 1 << 32));
        assert_eq!(cut(&[0, 10, 20, 30], 59), (1, (9 << 32) / 10));
        assert_eq!(cut(&[0, 10, 20, 30], 50), (1, 0));
        assert_eq!(cut(&[0, 10, 20, 30], 40), (2, 1 << 31));
        assert_eq!(cut(&[0, 10, 20, 30], 0), (3, 0));
    }
}
