//! Which rows come back, and in which order?
//!
//! Those that were worth most by the measure by which rows leave ([`Cache::rank`](crate::mem::Cache::rank)), as
//! many as the caches have room for; of those that were worth the same as the last of them, so many by chance that all
//! fit. Files are read in the order of how much of them comes back.

use std::cmp::{Ordering, Reverse};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::super::core::{Core, Shard};
use super::Chosen;
use crate::keymap::CLASSES;
use crate::mem::RANKS;
use crate::ssd::data_file::DataFile;
use crate::ssd::index::{Files, Index as _, IndexEntry};
use crate::sync::atomic::AtomicUsize;
use crate::sync::by_team;
use crate::units::{FileSlot, narrow, to_usize};

/// Keys that are looked at while a shard is locked: some ten microseconds.
const STEP_KEYS: usize = 1 << 12;
/// Ranks that a row loses when its frequency is halved.
const HALF_RANKS: usize = 16;

/// The rows that come back.
#[derive(Debug)]
pub struct Choice {
    /// By shard: each counts for itself, and halves its numbers when it likes.
    cuts: Vec<Cuts>,
    /// By slot of a file: rows of it; the files with the most first.
    order: Vec<(FileSlot, u64)>,
    rows: u64,
}

/// Which rows fit into a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
}

/// What comes back into a shard.
#[derive(Debug, Default)]
struct Cuts {
    /// By position of a table: what fits under its ceiling.
    own: Vec<Cut>,
    /// What of that fits into the shard.
    all: Cut,
    /// Halvings of frequencies when these were made.
    halvings: u64,
}

impl Cuts {
    /// Of rows of a table and rank so many come back, in 2^-32ths.
    fn share_of(&self, position: usize, rank: usize) -> u64 {
        part_of(self.own[position].share_of(rank), self.all.share_of(rank))
    }
}

impl Choice {
    /// Looks at all keys of some tables.
    pub fn new(search: &Search<'_>) -> Choice {
        let of_shard = |s| {
            let of_table = |table: &usize| Counted::new(search, (s, *table));
            let counted: Vec<Counted> = search.tables.iter().map(of_table).collect();
            (s, search.cuts(s, &counted), counted)
        };
        let mut shards = search.by_shard(of_shard);
        shards.sort_unstable_by_key(|(s, ..)| *s);
        let mut choice = Choice {
            cuts: Vec::new(),
            order: Vec::new(),
            rows: 0,
        };
        choice.put_in_order(search.core, &shards);
        choice.cuts = shards.into_iter().map(|(_, cuts, _)| cuts).collect();
        choice
    }

    fn put_in_order(&mut self, core: &Core, shards: &[(usize, Cuts, Vec<Counted>)]) {
        let slots = core.ssd.file_slots();
        // By slot: rows and their bytes.
        let mut files = vec![(0, 0); slots.len()];
        for (_, cuts, counted) in shards {
            for (position, of_table) in counted.iter().enumerate() {
                for (slot, rank, bytes) in of_table.each() {
                    let part = part_of(bytes, cuts.share_of(position, rank));
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

    /// The rows of these files that come back, in the order of their places. What has moved meanwhile is left out.
    pub fn collect(&self, search: &Search<'_>, round: &HashSet<FileSlot>) -> Round {
        let data_files: Vec<Option<Arc<DataFile>>> = {
            let slots = search.core.ssd.file_slots();
            let of_round = |(i, file): (usize, &Option<Arc<DataFile>>)| {
                file.clone().filter(|_| round.contains(&FileSlot::new(i)))
            };
            slots.iter().enumerate().map(of_round).collect()
        };
        let of_shard = |s| {
            let mut rows = Vec::new();
            for position in 0..search.tables.len() {
                self.collect_some(search, (s, position), &data_files, &mut rows);
            }
            rows
        };
        let mut rows = search.by_shard(of_shard).concat();
        rows.sort_unstable_by_key(|row: &Chosen| row.entry.location());
        Round { data_files, rows }
    }

    fn collect_some(
        &self,
        search: &Search<'_>,
        (s, position): (usize, usize),
        files: &Files,
        rows: &mut Vec<Chosen>,
    ) {
        let (core, table) = (search.core, search.tables[position]);
        let Some(cuts) = self.cuts.get(s) else {
            return;
        };
        search.each_step((s, table), |shard, found| {
            // Numbers that were halved since are compared as what they were.
            let halved = shard.cache.halvings().saturating_sub(cuts.halvings);
            let more = HALF_RANKS.saturating_mul(to_usize(halved));
            let ranks = ranks(shard, table);
            let now = core.ssd.file_slots();
            for (hash, entry) in found {
                let rank = ranks[usize::from(entry.class())].saturating_add(more);
                let takes = low_bits(*hash) < cuts.share_of(position, rank);
                if takes && is_same_file(*entry, files, &now) {
                    rows.push(Chosen {
                        entry: *entry,
                        hash: *hash,
                        table: narrow(table),
                        shard: narrow(s),
                    });
                }
            }
        });
    }
}

/// Whether the slot in a location is of the same file at two moments. It may be another file's by now, with another row at the
/// same place.
pub fn is_same_file(entry: IndexEntry, then: &Files, now: &Files) -> bool {
    let at = entry.location().slot().index();
    match (then.get(at), now.get(at)) {
        (Some(Some(then)), Some(Some(now))) => Arc::ptr_eq(then, now),
        _ => false,
    }
}

fn low_bits(hash: u64) -> u64 {
    hash & u64::from(u32::MAX)
}

/// So many 2^-32ths of some bytes.
fn part_of(bytes: u64, share: u64) -> u64 {
    let part = (u128::from(bytes) * u128::from(share)) >> 32;
    u64::try_from(part).unwrap_or(u64::MAX)
}

/// Who looks for rows, and where.
pub struct Search<'a> {
    pub core: &'a Core,
    pub tables: &'a [usize],
    /// Threads that look.
    pub threads: usize,
    /// Whether to stop, after work of this length.
    pub is_over: &'a (dyn Fn(Duration) -> bool + Sync),
}

impl Search<'_> {
    /// Shows the rows of a table in a shard that have a class, with the shard, which is locked meanwhile.
    fn each_step(
        &self,
        (s, table): (usize, usize),
        mut see: impl FnMut(&Shard, &[(u64, IndexEntry)]),
    ) {
        let (mut next, mut found) = (Some(0), Vec::new());
        let mut since = Instant::now();
        while let Some(from) = next.filter(|_| !(self.is_over)(since.elapsed())) {
            since = Instant::now();
            found.clear();
            let shard = self.core.shards[s].lock();
            let index = &shard.tables[table].index;
            next = index.classed(from, STEP_KEYS, &mut found);
            found.retain(|(_, entry)| !entry.location().is_tombstone());
            see(&shard, &found);
        }
    }

    /// What fits into a shard.
    fn cuts(&self, s: usize, counted: &[Counted]) -> Cuts {
        let shard = self.core.shards[s].lock();
        let mut cuts = Cuts {
            halvings: shard.cache.halvings(),
            ..Cuts::default()
        };
        let mut bytes_by_rank = vec![0; RANKS];
        for (table, counted) in self.tables.iter().zip(counted) {
            let mut own = vec![0; RANKS];
            for (_, rank, bytes) in counted.each() {
                own[rank] += bytes;
            }
            let cut = cut(&own, shard.cache.bytes_to_ceiling(*table));
            for (rank, bytes) in own.into_iter().enumerate() {
                bytes_by_rank[rank] += part_of(bytes, cut.share_of(rank));
            }
            cuts.own.push(cut);
        }
        cuts.all = cut(&bytes_by_rank, shard.cache.bytes_spare(self.tables));
        cuts
    }

    /// Does something for each shard; results in no order. Others help only while nobody asks for rows.
    fn by_shard<T: Send>(&self, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
        let (next, shards) = (AtomicUsize::new(0), self.core.shards.len());
        let some = |is_first: bool| {
            let goes_on = || is_first || !self.core.demand.is_any();
            let take = || goes_on().then(|| next.fetch_add(1, Relaxed));
            let mine = std::iter::from_fn(|| take().filter(|s| *s < shards));
            mine.map(&work).collect::<Vec<T>>()
        };
        let works = (0..self.threads.max(1)).map(|i| {
            let some = &some;
            move || some(i == 0)
        });
        by_team("hps-warm", works).into_iter().flatten().collect()
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
    fn new(search: &Search<'_>, (s, table): (usize, usize)) -> Counted {
        let mut counted = {
            let shard = search.core.shards[s].lock();
            Counted {
                ranks: ranks(&shard, table),
                cost: shard.cache.row_cost(table).max(1),
                at: Vec::new(),
                by_file: Vec::new(),
            }
        };
        search.each_step((s, table), |_, found| {
            for (_, entry) in found {
                counted.add(*entry);
            }
        });
        counted
    }

    fn add(&mut self, entry: IndexEntry) {
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

/// All rows of the highest ranks that fit, and of the next rank the share that fits.
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
        let takes = |hash: u64, rank| low_bits(hash) < cut.share_of(rank);
        assert!(takes(u64::MAX, 6) && !takes(0, 4));
        assert!(takes((1 << 31) - 1, 5) && !takes(1 << 31, 5));
        assert!(
            takes(7 << 32, 5),
            "the low bits count: the high ones name the shard"
        );
    }
}
