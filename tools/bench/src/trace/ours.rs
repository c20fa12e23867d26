//! What does the engine's own cache hit? The real [`TableCache`] of each table and shard, called as
//! the store calls it, with the bytes that the store gives it.
//!
//! - A batch: rows in memory are pinned and touched; places are made for the others (clean rows
//!   leave, and if there are none, dirty ones are flushed first), which are pinned and touched when
//!   they come in.
//! - A lease keeps its rows until the batches fetched ahead of it are in memory, too. Then they are
//!   changed and let go.
//! - The background flush begins when a cache runs low, takes one step of each cache that does, and
//!   is done one batch later.
//! - The caches hold rows of one word; they have the places that real rows would have had.

use std::collections::{HashMap, VecDeque};

use anyhow::{Result, ensure};
use hps::mem::{CacheConfig, Flags, Left, Slot, TableCache, Victim, halved};
use hps::{PolicyKind, mix64};

use super::Accesses;
use super::policies::Policy;

/// What the caches are made from.
#[derive(Clone, Copy, Debug)]
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

    fn left(&mut self, left: &[Left]) {
        self.of
            .extend(left.iter().map(|left| (left.hash, left.class)));
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

/// The engine's caches without the engine.
#[derive(Debug)]
pub struct Ours<'a> {
    accesses: &'a Accesses,
    /// All shards of a table, then those of the next.
    caches: Vec<TableCache>,
    shards: usize,
    hashes: Vec<u64>,
    /// Places of the batches that are pinned, by cache; oldest first.
    leases: VecDeque<Vec<Vec<Slot>>>,
    depth: usize,
    /// Rows being written.
    flying: Vec<(usize, Victim)>,
    /// By cache.
    classes: Vec<Classes>,
    written: u64,
    meta_bytes: u64,
}

impl OursConfig {
    /// Bytes with which one table has at least so many places.
    #[must_use]
    pub fn bytes_for(&self, places: usize, row_bytes: u32) -> u64 {
        let each = places.div_ceil(self.shards);
        let bytes = self.bytes_of(each, f32s(row_bytes), self.step(1, row_bytes));
        bytes * self.shards as u64
    }

    /// Rows that a flush takes of one table in one shard.
    fn step(&self, tables: u64, row_bytes: u32) -> usize {
        let step = self.file_bytes / self.shards as u64 / tables / (u64::from(row_bytes) + 30);
        usize::try_from(step).unwrap_or(usize::MAX).max(1)
    }

    fn bytes_of(&self, places: usize, row_f32s: usize, step: usize) -> u64 {
        TableCache::bytes_for_rows(places, row_f32s, self.policy, step)
    }

    /// Places that so many bytes give one table in one shard.
    fn places(&self, bytes: u64, row_bytes: u32, step: usize) -> usize {
        let fits = |rows| self.bytes_of(rows, f32s(row_bytes), step) <= bytes;
        let (mut least, mut over) = (0, 1 << 31);
        while over - least > 1 {
            let middle = least + (over - least) / 2;
            if fits(middle) {
                least = middle;
            } else {
                over = middle;
            }
        }
        least
    }

    /// The caches of one table, and the bytes that their places would take of real rows.
    fn table(&self, share: u64, row_bytes: u32, tables: u64) -> Result<(Vec<TableCache>, u64)> {
        let bytes = share / self.shards as u64;
        let step = self.step(tables, row_bytes);
        let places = self.places(bytes, row_bytes, step);
        ensure!(
            places > 0,
            "{bytes} bytes of one shard hold no row of {row_bytes} bytes"
        );
        let cache = |shard| {
            TableCache::new(&CacheConfig {
                row_f32s: 1,
                bytes: self.bytes_of(places, 1, step),
                policy: self.policy,
                flush_step_rows: step,
                range: range(shard, self.shards),
            })
        };
        let caches = (0..self.shards)
            .map(cache)
            .collect::<hps::Result<Vec<TableCache>>>()?;
        let all = self.bytes_of(places, f32s(row_bytes), step);
        Ok((caches, all * self.shards as u64))
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

impl<'a> Ours<'a> {
    /// Empty caches for the keys of a trace; tables share the bytes as in a store.
    ///
    /// # Errors
    /// The memory holds no row.
    pub fn new(config: &OursConfig, accesses: &'a Accesses) -> Result<Ours<'a>> {
        let tables = accesses.row_bytes();
        let weight = |row_bytes: &u32| u64::from(*row_bytes) + 48;
        let weights: u64 = tables.iter().map(weight).sum();
        let (mut caches, mut bytes, mut row_bytes) = (Vec::new(), 0, 0);
        for table in tables {
            let share = u128::from(config.bytes) * u128::from(weight(table)) / u128::from(weights);
            let share = u64::try_from(share).unwrap_or(u64::MAX);
            let (made, all) = config.table(share, *table, tables.len() as u64)?;
            let places: usize = made.iter().map(TableCache::capacity).sum();
            row_bytes += places as u64 * u64::from(*table);
            bytes += all;
            caches.extend(made);
        }
        let places: usize = caches.iter().map(TableCache::capacity).sum();
        let classes = caches.iter().map(|_| Classes::default()).collect();
        Ok(Ours {
            accesses,
            caches,
            shards: config.shards,
            hashes: accesses.keys().iter().map(|key| mix64(*key)).collect(),
            leases: VecDeque::new(),
            depth: config.depth,
            flying: Vec::new(),
            classes,
            written: 0,
            meta_bytes: (bytes - row_bytes) / places as u64,
        })
    }

    /// Places of all tables and shards.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.caches.iter().map(TableCache::capacity).sum()
    }

    /// Bytes about each row: state, table, lists and the memory of frequencies.
    #[must_use]
    pub fn meta_bytes(&self) -> u64 {
        self.meta_bytes
    }

    /// Rows flushed so far.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written
    }

    /// The flush that is under way is done.
    fn land(&mut self) {
        for (cache, victim) in self.flying.drain(..) {
            let _kept = self.caches[cache].written(&victim, true);
        }
    }

    /// Begins a flush of every cache that runs low; returns how many rows it takes.
    fn launch(&mut self) -> usize {
        for (index, cache) in self.caches.iter_mut().enumerate() {
            if !cache.below_low_water() {
                continue;
            }
            let mut victims = Vec::new();
            cache.take_victims(cache.flush_step_rows(), u32::MAX, &mut victims);
            victims.sort_unstable_by_key(|victim| victim.hash);
            for victim in victims {
                let mut row = [0.0];
                if cache.copy_out(&victim, u32::MAX, &mut row).is_some() {
                    self.flying.push((index, victim));
                }
            }
        }
        self.written += self.flying.len() as u64;
        self.flying.len()
    }

    /// Waits for places, as a batch does that finds none.
    fn make_room(&mut self, index: usize) -> Result<()> {
        self.land();
        let room = |cache: &TableCache| cache.free() + cache.evictable() > 0;
        if room(&self.caches[index]) {
            return Ok(());
        }
        self.launch();
        self.land();
        ensure!(
            room(&self.caches[index]),
            "the cache is too small: the {} batches in use fill a cache's {} rows",
            self.depth + 1,
            self.caches[index].capacity()
        );
        Ok(())
    }

    /// Pins the rows of one cache; returns their places and how many were not in memory.
    fn acquire(&mut self, index: usize, hashes: &[u64]) -> Result<(Vec<Slot>, usize)> {
        let mut slots = vec![Slot::NONE; hashes.len()];
        self.caches[index].lookup(hashes, &mut slots);
        let mut missing: Vec<u64> = Vec::new();
        for (hash, slot) in hashes.iter().zip(&slots) {
            if *slot == Slot::NONE {
                missing.push(*hash);
            }
        }
        slots.retain(|slot| *slot != Slot::NONE);
        self.caches[index].pin(&slots);
        self.caches[index].touch(&slots);
        let mut placed = 0;
        loop {
            let cache = &mut self.caches[index];
            cache.reclaim(missing.len() - placed);
            let classes = &mut self.classes[index];
            classes.halve(cache.halvings());
            classes.left(cache.left());
            cache.forget_left();
            let first = slots.len();
            while let Some(hash) = missing.get(placed) {
                let class = classes.of(*hash);
                let Some(slot) = cache.insert(*hash, Flags::LOADING, class) else {
                    break;
                };
                slots.push(slot);
                placed += 1;
            }
            cache.pin(&slots[first..]);
            for slot in &slots[first..] {
                cache.clear(*slot, Flags::LOADING);
            }
            if placed == missing.len() {
                return Ok((slots, placed));
            }
            self.make_room(index)?;
        }
    }

    /// The trainer changes the rows of the oldest lease and drops it.
    fn push(&mut self) {
        let Some(lease) = self.leases.pop_front() else {
            return;
        };
        for (cache, slots) in self.caches.iter_mut().zip(&lease) {
            // Without a checkpoint's cut there is nothing to copy, so it can't fail.
            let _done = cache.begin_write(slots, 1, None);
            cache.unpin(slots);
        }
    }
}

impl Policy for Ours<'_> {
    fn batch(&mut self, rows: &[u32]) -> Result<usize> {
        let mut parts = vec![Vec::new(); self.caches.len()];
        for row in rows {
            let hash = self.hashes[*row as usize];
            let first = self.accesses.table(*row) * self.shards;
            parts[first + shard_of(hash, self.shards)].push(hash);
        }
        let mut lease = Vec::with_capacity(parts.len());
        let mut misses = 0;
        for (index, hashes) in parts.iter_mut().enumerate() {
            hashes.sort_unstable();
            let (slots, missed) = self.acquire(index, hashes)?;
            lease.push(slots);
            misses += missed;
        }
        self.leases.push_back(lease);
        self.land();
        if self.caches.iter().any(TableCache::below_low_water) {
            self.launch();
        }
        if self.leases.len() > self.depth {
            self.push();
        }
        Ok(misses)
    }
}
