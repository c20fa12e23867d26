//! What does the engine's own cache hit? The real [`Cache`] of each shard, with all tables, called as
//! the store calls it, with the bytes that the store gives it.
//!
//! - A batch: rows in memory are pinned and touched, those of all tables first; room is made for the
//!   others (clean rows leave, and if there are none, dirty ones are flushed first), which are pinned
//!   and touched when they come in.
//! - A lease keeps its rows until the batches fetched ahead of it are in memory, too. Then they are
//!   changed and let go.
//! - The background flush begins when a cache runs low, takes one step of each cache that does or soon
//!   would, and is done one batch later.
//! - Rows have their real sizes. Nothing is written to them, so that they take addresses, not memory.

use std::collections::{HashMap, VecDeque};

use anyhow::{Result, ensure};
use hps::mem::{Cache, CacheConfig, Flags, FlushStep, Left, Slot, TableConfig, Victim, halved};
use hps::{PolicyKind, mix64};

use super::Accesses;
use super::policies::Policy;

/// Steps of the search for bytes, as a power of two: of so many parts of them.
const SEARCH_LOG: u32 = 20;

/// What the caches are made from.
#[derive(Clone, Debug)]
pub struct OursConfig {
    /// All memory of the caches of all shards, for rows and everything about them.
    pub bytes: u64,
    /// Shards.
    pub shards: usize,
    /// Bytes of a parameter file, which a flush step of all shards together fills.
    pub file_bytes: u64,
    /// Batches that are fetched ahead.
    pub depth: usize,
    /// The engine's policy.
    pub policy: PolicyKind,
    /// Bytes of each table that are both its floor and its ceiling; none: tables share all.
    pub split: Option<Vec<u64>>,
}

/// How often rows that are not in memory were used: what the store keeps in its index.
#[derive(Debug, Default)]
struct Classes {
    of: HashMap<u64, u8>,
    halvings: u64,
}

impl Classes {
    fn of(&self, hash: u64) -> u8 {
        self.of.get(&hash).copied().unwrap_or(0)
    }

    /// Follows the cache, which has halved its frequencies so often by now.
    fn halve(&mut self, halvings: u64) {
        let table = halved();
        for _ in self.halvings..halvings {
            for class in self.of.values_mut() {
                *class = table[usize::from(*class)];
            }
        }
        self.halvings = halvings;
    }
}

/// A cache, and what belongs to it.
#[derive(Debug)]
struct Shard {
    cache: Cache,
    /// By table.
    classes: Vec<Classes>,
    /// Rows that are pinned, by lease and table; oldest first.
    leases: VecDeque<Vec<Vec<Slot>>>,
    /// Rows being written.
    flying: Vec<Victim>,
}

/// The engine's caches without the engine.
#[derive(Debug)]
pub struct Ours<'a> {
    accesses: &'a Accesses,
    shards: Vec<Shard>,
    hashes: Vec<u64>,
    depth: usize,
    written: u64,
    /// Where the content of a row goes when it is flushed.
    row: Vec<f32>,
}

impl OursConfig {
    /// The least bytes, to a millionth, with which one table has so many places.
    ///
    /// # Errors
    /// The system does not give the memory.
    pub fn bytes_for(&self, places: usize, row_bytes: u32) -> Result<u64> {
        let each = places.div_ceil(self.shards);
        let fits = |bytes| anyhow::Ok(self.cache(0, bytes, &[row_bytes])?.capacity(0) >= each);
        let mut enough = each as u64 * u64::from(row_bytes) + (1 << 12);
        while !fits(enough)? {
            enough *= 2;
        }
        let (mut less, step) = (enough / 2, (enough >> SEARCH_LOG).max(1));
        while enough - less > step {
            let middle = less + (enough - less) / 2;
            if fits(middle)? {
                enough = middle;
            } else {
                less = middle;
            }
        }
        Ok(enough * self.shards as u64)
    }

    /// The cache of one shard, of so many bytes.
    fn cache(&self, shard: usize, bytes: u64, row_bytes: &[u32]) -> Result<Cache> {
        let shards = self.shards as u64;
        let mut cache = Cache::new(&CacheConfig {
            bytes,
            flush_step: FlushStep::of_files(self.file_bytes, shards),
            range: range(shard, self.shards),
        })?;
        for (table, row_bytes) in row_bytes.iter().enumerate() {
            let part = self.split.as_ref().map(|split| split[table] / shards);
            cache.add_table(&TableConfig {
                policy: self.policy,
                floor_bytes: part.unwrap_or(0),
                ceiling_bytes: part.unwrap_or(u64::MAX),
                ..TableConfig::of_rows(f32s(*row_bytes))
            })?;
        }
        Ok(cache)
    }
}

fn f32s(row_bytes: u32) -> usize {
    row_bytes as usize / 4
}

/// The least and the greatest hash of a shard.
fn range(shard: usize, shards: usize) -> (u64, u64) {
    let first = |s: usize| ((s as u128) << 64).div_ceil(shards as u128);
    let low = u64::try_from(first(shard)).unwrap_or(u64::MAX);
    let high = u64::try_from(first(shard + 1) - 1).unwrap_or(u64::MAX);
    (low, high)
}

fn shard_of(hash: u64, shards: usize) -> usize {
    let wide = u128::from(hash) * shards as u128;
    usize::try_from(wide >> 64).unwrap_or(0)
}

impl Shard {
    /// What the rows that left had been used is kept.
    fn remember_left(&mut self) {
        for Left { table, hash, class } in self.cache.left() {
            let classes = &mut self.classes[usize::from(*table)];
            classes.of.insert(*hash, *class);
        }
        self.cache.forget_left();
    }

    fn reclaim(&mut self, table: usize, want: usize) -> usize {
        let room = self.cache.reclaim(table, want);
        self.classes[table].halve(self.cache.halvings());
        self.remember_left();
        room
    }

    /// The flush that is under way is done.
    fn land(&mut self) {
        for victim in self.flying.drain(..) {
            let _kept = self.cache.written(&victim, true);
        }
    }

    /// Copies victims out, in the order of a file.
    fn copy_out(&mut self, mut victims: Vec<Victim>, row_bytes: &[u32], row: &mut [f32]) -> usize {
        victims.sort_unstable_by_key(|victim| (victim.table(), victim.hash));
        let before = self.flying.len();
        for victim in victims {
            let row = &mut row[..f32s(row_bytes[victim.table()])];
            if self.cache.copy_out(&victim, u32::MAX, row).is_some() {
                self.flying.push(victim);
            }
        }
        self.flying.len() - before
    }

    /// Pins the rows of all tables that are in memory; gives them and the others.
    fn pin(&mut self, parts: &[Vec<u64>]) -> (Vec<Vec<Slot>>, Vec<Vec<u64>>) {
        let mut found = Vec::with_capacity(parts.len());
        let mut missing = Vec::with_capacity(parts.len());
        for (table, hashes) in parts.iter().enumerate() {
            let mut slots = vec![Slot::NONE; hashes.len()];
            self.cache.lookup(table, hashes, &mut slots);
            let pairs = hashes.iter().zip(&slots);
            let others = pairs.filter(|(_, slot)| **slot == Slot::NONE);
            missing.push(others.map(|(hash, _)| *hash).collect());
            slots.retain(|slot| *slot != Slot::NONE);
            self.cache.pin(&slots);
            self.cache.touch(&slots);
            found.push(slots);
        }
        (found, missing)
    }

    /// Whether rows that are pinned and so many more have room at once.
    fn has_room(&self, missing: &[Vec<u64>]) -> bool {
        let pinned = (0..missing.len()).map(|table| self.cache.held_of(table));
        let rows: Vec<usize> = pinned
            .zip(missing)
            .map(|(p, more)| p + more.len())
            .collect();
        self.cache.cost_of(&rows) <= self.cache.bytes_max()
    }

    /// Gives rows that come in their places, as far as there is room; returns how many.
    fn place(&mut self, table: usize, missing: &[u64], slots: &mut Vec<Slot>) -> usize {
        self.reclaim(table, missing.len());
        let first = slots.len();
        for hash in missing {
            let class = self.classes[table].of(*hash);
            let Some(slot) = self.cache.insert(table, *hash, Flags::LOADING, class) else {
                break;
            };
            slots.push(slot);
        }
        self.cache.pin(&slots[first..]);
        for slot in &slots[first..] {
            self.cache.clear(*slot, Flags::LOADING);
        }
        slots.len() - first
    }

    /// The trainer changes the rows of the oldest lease and drops it.
    fn push(&mut self) {
        for slots in self.leases.pop_front().unwrap_or_default() {
            // Without a checkpoint's cut there is nothing to copy, so it can't fail.
            let _done = self.cache.begin_write(&slots, 1, None);
            self.cache.unpin(&slots);
        }
    }
}

impl<'a> Ours<'a> {
    /// Empty caches for the keys of a trace.
    ///
    /// # Errors
    /// The memory does not hold a row of each table.
    pub fn new(config: &OursConfig, accesses: &'a Accesses) -> Result<Ours<'a>> {
        let tables = accesses.row_bytes();
        let bytes = config.bytes / config.shards as u64;
        let mut sizes: Vec<usize> = tables.iter().map(|row_bytes| f32s(*row_bytes)).collect();
        hps::mem::check_rows_fit(bytes, &sizes)?;
        let shard = |shard| {
            anyhow::Ok(Shard {
                cache: config.cache(shard, bytes, tables)?,
                classes: tables.iter().map(|_| Classes::default()).collect(),
                leases: VecDeque::new(),
                flying: Vec::new(),
            })
        };
        let shards = (0..config.shards).map(shard).collect::<Result<_>>()?;
        sizes.sort_unstable();
        Ok(Ours {
            accesses,
            shards,
            hashes: accesses.keys().iter().map(|key| mix64(*key)).collect(),
            depth: config.depth,
            written: 0,
            row: vec![0.0; sizes.last().copied().unwrap_or(0)],
        })
    }

    fn sum(&self, of: impl Fn(&Cache) -> u64) -> u64 {
        self.shards.iter().map(|shard| of(&shard.cache)).sum()
    }

    /// Places of a table, if the others have no rows.
    #[must_use]
    pub fn capacity(&self, table: usize) -> usize {
        let each = self.shards.iter().map(|s| s.cache.capacity(table));
        each.sum()
    }

    /// Bytes of a row of a table, with what is kept beside it.
    #[must_use]
    pub fn row_cost(&self, table: usize) -> u64 {
        self.shards[0].cache.row_cost(table)
    }

    /// Bytes for each place beside its row, of the mean of tables that have the cache to themselves: state,
    /// hash table, queues, and what rounding leaves over.
    #[must_use]
    pub fn meta_bytes(&self) -> u64 {
        let bytes = self.sum(Cache::bytes_max);
        let tables = self.accesses.row_bytes().iter().enumerate();
        let beside = |(table, row_bytes): (usize, &u32)| {
            bytes / (self.capacity(table) as u64).max(1) - u64::from(*row_bytes)
        };
        tables.map(beside).sum::<u64>() / self.accesses.row_bytes().len() as u64
    }

    /// Rows flushed so far.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Begins a flush of every cache that runs low or soon would; returns how many rows it takes.
    fn launch(&mut self) -> usize {
        let mut taken = 0;
        for shard in &mut self.shards {
            if !shard.cache.below_flush_steps(1) {
                continue;
            }
            let (step, mut victims) = (shard.cache.flush_step(), Vec::new());
            shard.cache.take_victims(step, u32::MAX, &mut victims);
            taken += shard.copy_out(victims, self.accesses.row_bytes(), &mut self.row);
        }
        self.written += taken as u64;
        taken
    }

    /// Begins a flush of any dirty rows of a shard; returns how many it takes.
    fn launch_any(&mut self, s: usize) -> usize {
        let shard = &mut self.shards[s];
        let (step, mut cursor, mut victims) = (shard.cache.flush_step(), 0, Vec::new());
        while victims.is_empty()
            && (shard.cache).take_frozen(&mut cursor, step, u32::MAX, &mut victims)
        {}
        let taken = shard.copy_out(victims, self.accesses.row_bytes(), &mut self.row);
        self.written += taken as u64;
        taken
    }

    fn land(&mut self) {
        self.shards.iter_mut().for_each(Shard::land);
    }

    /// Waits for a place, as a batch does that finds none.
    fn make_room(&mut self, s: usize, table: usize) -> Result<()> {
        self.land();
        if self.shards[s].reclaim(table, 1) > 0 {
            return Ok(());
        }
        let taken = match self.launch() {
            0 => self.launch_any(s),
            taken => taken,
        };
        self.land();
        ensure!(
            taken > 0 || self.shards[s].reclaim(table, 1) > 0,
            "a batch that was let in finds no room for a row of table {table}"
        );
        Ok(())
    }

    /// Pins the rows of one shard; returns how many were not in memory.
    fn acquire(&mut self, s: usize, parts: &[Vec<u64>]) -> Result<usize> {
        let (mut lease, missing) = self.shards[s].pin(parts);
        ensure!(
            self.shards[s].has_room(&missing),
            "the cache is too small: the rows of {} batches in use do not fit",
            self.depth + 1,
        );
        let mut misses = 0;
        for (table, missing) in missing.iter().enumerate() {
            let mut placed = 0;
            while placed < missing.len() {
                let slots = &mut lease[table];
                placed += self.shards[s].place(table, &missing[placed..], slots);
                if placed < missing.len() {
                    self.make_room(s, table)?;
                }
            }
            misses += placed;
        }
        self.shards[s].leases.push_back(lease);
        Ok(misses)
    }
}

impl Policy for Ours<'_> {
    fn batch(&mut self, rows: &[u32]) -> Result<usize> {
        let (shards, tables) = (self.shards.len(), self.accesses.row_bytes().len());
        let mut parts = vec![vec![Vec::new(); tables]; shards];
        for row in rows {
            let hash = self.hashes[*row as usize];
            parts[shard_of(hash, shards)][self.accesses.table(*row)].push(hash);
        }
        let mut misses = 0;
        for (s, parts) in parts.iter_mut().enumerate() {
            parts.iter_mut().for_each(|hashes| hashes.sort_unstable());
            misses += self.acquire(s, parts)?;
        }
        self.land();
        if self.shards.iter().any(|s| s.cache.below_low_water()) {
            self.launch();
        }
        for shard in &mut self.shards {
            if shard.leases.len() > self.depth {
                shard.push();
            }
        }
        Ok(misses)
    }
}
