//! Which rows come back, and in which order?
//!
//! Those that were worth most by the measure by which rows leave ([`Cache::rank`](crate::mem::Cache::rank)), as
//! many as the caches have room for; of those that were worth the same as the last of them, so many by chance that all
//! fit. Files are read in the order of how much of them comes back.

use std::cmp::{Ordering, Reverse};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::super::core::{Core, Shard};
use super::Chosen;
use crate::keymap::CLASSES;
use crate::mem::RANKS;
use crate::ssd::data_file::DataFile;
use crate::ssd::index::{Files, Index as _, IndexEntry};
use crate::sync::atomic::AtomicUsize;
use crate::sync::by_team;
use crate::units::{FileSlot, narrow};

/// Keys that are looked at while a shard is locked: some ten microseconds.
const STEP_KEYS: usize = 1 << 12;

/// The rows that come back.
#[derive(Debug)]
pub struct Choice {
    /// By shard: each counts for itself, and halves its numbers when it likes.
    cuts: Vec<Cut>,
    /// By slot of a file: rows of it; the files with the most first.
    order: Vec<(FileSlot, u64)>,
    rows: u64,
}

/// Which rows fit into a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    /// All of higher ranks.
    rank: usize,
    /// Of rows of this rank so many, in 2^-32ths.
    share: u64,
}

impl Cut {
    /// Of rows of a rank so many come back, in 2^-32ths.
    fn share_of(self, rank: usize) -> u64 {
        match rank.cmp(&self.rank) {
            Ordering::Greater => 1 << 32,
            Ordering::Equal => self.share,
            Ordering::Less => 0,
        }
    }

    fn takes(self, hash: u64, rank: usize) -> bool {
        hash & u64::from(u32::MAX) < self.share_of(rank)
    }
}

impl Choice {
    /// Looks at all keys of these tables, with so many threads.
    pub fn new(core: &Core, tables: &[usize], threads: usize) -> Choice {
        let of_shard = |s| {
            let of_table = |table: &usize| Counted::new(core, (s, *table));
            let counted: Vec<Counted> = tables.iter().map(of_table).collect();
            let mut bytes_by_rank = vec![0; RANKS];
            for (_, rank, bytes) in counted.iter().flat_map(Counted::each) {
                bytes_by_rank[rank] += bytes;
            }
            let cut = cut(
                &bytes_by_rank,
                core.shards[s].lock().cache.bytes_spare(tables),
            );
            (s, cut, counted)
        };
        let mut shards = by_shard(core, threads, of_shard);
        shards.sort_unstable_by_key(|(s, ..)| *s);
        let mut choice = Choice {
            cuts: shards.iter().map(|(_, cut, _)| *cut).collect(),
            order: Vec::new(),
            rows: 0,
        };
        choice.put_in_order(
            core,
            shards.iter().map(|(_, cut, counted)| (*cut, &counted[..])),
        );
        choice
    }

    fn put_in_order<'a>(
        &mut self,
        core: &Core,
        shards: impl Iterator<Item = (Cut, &'a [Counted])>,
    ) {
        let slots = core.ssd.file_slots();
        // By slot: rows and their bytes.
        let mut files = vec![(0, 0); slots.len()];
        for (cut, counted) in shards {
            for of_table in counted {
                for (slot, rank, bytes) in of_table.each() {
                    let part = (u128::from(bytes) * u128::from(cut.share_of(rank))) >> 32;
                    let part = u64::try_from(part).unwrap_or(u64::MAX);
                    // Those of a file that came meanwhile are read when they are asked for.
                    if let Some(file) = files.get_mut(slot.index()) {
                        *file = (file.0 + part.div_ceil(of_table.cost), file.1 + part);
                    }
                }
            }
        }
        let mut order = Vec::new();
        for (i, (file, (rows, hot))) in slots.iter().zip(files).enumerate() {
            if let Some(file) = file.as_ref().filter(|_| rows > 0) {
                // How much of the file, in 2^-16ths.
                let part = (hot << 16) / file.meta.bytes.max(1);
                order.push((Reverse(part), FileSlot::new(i), rows));
            }
        }
        order.sort_unstable();
        self.rows = order.iter().map(|(.., rows)| rows).sum();
        self.order = order
            .into_iter()
            .map(|(_, slot, rows)| (slot, rows))
            .collect();
    }

    /// Rows that come back.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Files that are read together, with so many rows in all or with one file.
    pub fn rounds(&self, most: u64) -> Vec<HashSet<FileSlot>> {
        let mut rounds: Vec<HashSet<FileSlot>> = Vec::new();
        let mut left = 0;
        for (slot, rows) in &self.order {
            if *rows > left {
                rounds.push(HashSet::new());
                left = most;
            }
            left = left.saturating_sub(*rows);
            rounds.last_mut().map(|round| round.insert(*slot));
        }
        rounds
    }

    /// The rows of these files that come back, in the order of their places, found by so many threads. What has
    /// moved meanwhile is left out.
    pub fn collect(
        &self,
        core: &Core,
        tables: &[usize],
        round: &HashSet<FileSlot>,
        threads: usize,
    ) -> Round {
        let files: Vec<Option<Arc<DataFile>>> = {
            let slots = core.ssd.file_slots();
            let of_round = |(i, file): (usize, &Option<Arc<DataFile>>)| {
                file.clone().filter(|_| round.contains(&FileSlot::new(i)))
            };
            slots.iter().enumerate().map(of_round).collect()
        };
        let of_shard = |s| {
            let mut rows = Vec::new();
            for table in tables {
                self.collect_some(core, (s, *table), &files, &mut rows);
            }
            rows
        };
        let mut rows = by_shard(core, threads, of_shard).concat();
        rows.sort_unstable_by_key(|row: &Chosen| row.entry.location());
        Round {
            data_files: files,
            rows,
        }
    }

    fn collect_some(
        &self,
        core: &Core,
        (s, table): (usize, usize),
        files: &Files,
        rows: &mut Vec<Chosen>,
    ) {
        let (mut next, mut found) = (Some(0), Vec::new());
        while let Some(from) = next {
            found.clear();
            let shard = core.shards[s].lock();
            next = shard.tables[table]
                .index
                .classed(from, STEP_KEYS, &mut found);
            let ranks = ranks(&shard, table);
            // A slot may be another file's by now.
            let now = core.ssd.file_slots();
            for (hash, entry) in &found {
                let at = entry.location().slot().index();
                let is_same = match (files.get(at), now.get(at)) {
                    (Some(Some(then)), Some(Some(now))) => Arc::ptr_eq(then, now),
                    _ => false,
                };
                let takes = self.cuts[s].takes(*hash, ranks[usize::from(entry.class())]);
                if is_same && takes && !entry.location().is_tombstone() {
                    rows.push(Chosen {
                        entry: *entry,
                        hash: *hash,
                        table: narrow(table),
                        shard: narrow(s),
                    });
                }
            }
        }
    }
}

/// Rows that are read together.
pub struct Round {
    /// Their files, by slot.
    pub data_files: Vec<Option<Arc<DataFile>>>,
    /// By place.
    pub rows: Vec<Chosen>,
}

/// The rank of each class of a table's rows.
fn ranks(shard: &Shard, table: usize) -> [usize; CLASSES] {
    std::array::from_fn(|class| shard.cache.rank(table, narrow(class)))
}

/// Does something for each shard, with so many threads; results in no order.
fn by_shard<T: Send>(core: &Core, threads: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let some = || {
        let take = || Some(next.fetch_add(1, Relaxed));
        let mine = std::iter::from_fn(|| take().filter(|s| *s < core.shards.len()));
        mine.map(&work).collect::<Vec<T>>()
    };
    let all = by_team("hps-warm", (0..threads).map(|_| &some));
    all.into_iter().flatten().collect()
}

/// Rows of one table in one shard.
struct Counted {
    /// By class.
    ranks: [usize; CLASSES],
    /// Bytes that a row takes.
    cost: u64,
    /// By slot of a file: where its numbers are, if they are.
    at: Vec<Option<u32>>,
    /// Rows by class, with the slot of their file.
    by_file: Vec<(FileSlot, [u32; CLASSES])>,
}

impl Counted {
    /// Looks at all keys that have a class.
    fn new(core: &Core, (s, table): (usize, usize)) -> Counted {
        let mut counted = {
            let shard = core.shards[s].lock();
            Counted {
                ranks: ranks(&shard, table),
                cost: shard.cache.row_cost(table).max(1),
                at: Vec::new(),
                by_file: Vec::new(),
            }
        };
        let (mut next, mut found) = (Some(0), Vec::new());
        while let Some(from) = next {
            found.clear();
            let index = &core.shards[s].lock().tables[table].index;
            next = index.classed(from, STEP_KEYS, &mut found);
            for (_, entry) in &found {
                counted.add(*entry);
            }
        }
        counted
    }

    fn add(&mut self, entry: IndexEntry) {
        if entry.location().is_tombstone() {
            return;
        }
        let slot = entry.location().slot();
        if self.at.len() <= slot.index() {
            self.at.resize(slot.index() + 1, None);
        }
        let at = *self.at[slot.index()].get_or_insert_with(|| {
            self.by_file.push((slot, [0; CLASSES]));
            narrow(self.by_file.len() - 1)
        });
        self.by_file[at as usize].1[usize::from(entry.class())] += 1;
    }

    /// Slot of a file, rank, and the bytes that rows of it and of that rank take.
    fn each(&self) -> impl Iterator<Item = (FileSlot, usize, u64)> + '_ {
        let of_file = |(slot, rows): &'_ (FileSlot, [u32; CLASSES])| {
            let slot = *slot;
            let of_class =
                |(rank, rows): (&usize, &u32)| (slot, *rank, u64::from(*rows) * self.cost);
            self.ranks
                .iter()
                .zip(rows)
                .map(of_class)
                .collect::<Vec<_>>()
        };
        self.by_file.iter().flat_map(of_file)
    }
}

fn cut(bytes_by_rank: &[u64], room: u64) -> Cut {
    let mut left = room;
    for (rank, bytes) in bytes_by_rank.iter().enumerate().rev() {
        match left.checked_sub(*bytes) {
            Some(rest) => left = rest,
            None => {
                let share = (u128::from(left) << 32) / u128::from(*bytes);
                let share = u64::try_from(share).unwrap_or(u64::MAX);
                return Cut { rank, share };
            }
        }
    }
    let (rank, share) = (0, 1 << 32);
    Cut { rank, share }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_all_of_the_highest_ranks_and_a_share_of_the_next() {
        let cut = |room| {
            let found = super::cut(&[0, 10, 20, 30], room);
            (found.rank, found.share)
        };
        assert_eq!(cut(100), (0, 1 << 32));
        assert_eq!(cut(60), (0, 1 << 32));
        assert_eq!(cut(59), (1, (9 << 32) / 10));
        assert_eq!(cut(50), (1, 0));
        assert_eq!(cut(40), (2, 1 << 31));
        assert_eq!(cut(0), (3, 0));
    }

    #[test]
    fn of_the_last_rank_a_share_comes_back_by_chance() {
        let cut = Cut {
            rank: 5,
            share: 1 << 31,
        };
        assert!(cut.takes(u64::MAX, 6) && !cut.takes(0, 4));
        assert!(cut.takes((1 << 31) - 1, 5) && !cut.takes(1 << 31, 5));
        assert!(
            cut.takes(7 << 32, 5),
            "the low bits count: the high ones name the shard"
        );
    }
}
