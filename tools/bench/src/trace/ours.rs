//! What does the engine's own cache hit? The real [`TableCache`] of each shard, called as the store
//! calls it.
//!
//! - A batch: rows in memory are pinned and touched; places are made for the others (clean rows
//!   leave, and if there are none, dirty ones are flushed first), which are pinned and touched when
//!   they come in.
//! - A lease keeps its rows until the batches fetched ahead of it are in memory, too. Then they are
//!   changed and let go.
//! - The background flush begins when a cache runs low, takes one step of each cache that does, and
//!   is done one batch later.
//! - The caches hold rows of one word; they have the places that real rows would have had.

use std::collections::VecDeque;

use anyhow::{Result, ensure};
use hps::mem::{CacheConfig, Flags, Slot, TableCache, Victim};
use hps::{PolicyKind, mix64};

use super::Accesses;
use super::policies::Policy;

/// What the caches are made from.
#[derive(Clone, Copy, Debug)]
pub struct OursConfig {
    /// All memory of the caches of all shards, for rows and everything about them.
    pub bytes: u64,
    /// f32-sized words of a row.
    pub row_f32s: usize,
    /// Shards.
    pub shards: usize,
    /// Rows of a flush step, all shards together.
    pub flush_step_rows: usize,
    /// Batches that are fetched ahead.
    pub depth: usize,
    /// The engine's policy.
    pub policy: PolicyKind,
}

/// The engine's caches without the engine.
#[derive(Debug)]
pub struct Ours {
    caches: Vec<TableCache>,
    hashes: Vec<u64>,
    /// Places of the batches that are pinned, by shard; oldest first.
    leases: VecDeque<Vec<Vec<Slot>>>,
    depth: usize,
    /// Rows being written.
    flying: Vec<(usize, Victim)>,
    written: u64,
    meta_bytes: u64,
}

/// Places that one shard's memory gives.
fn places(config: &OursConfig) -> usize {
    let bytes = config.bytes / config.shards as u64;
    let fits = |rows| TableCache::bytes_for_rows(rows, config.row_f32s, config.policy) <= bytes;
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

impl Ours {
    /// Empty caches for the keys of a trace.
    ///
    /// # Errors
    /// The memory holds no row.
    pub fn new(config: &OursConfig, accesses: &Accesses) -> Result<Ours> {
        let places = places(config);
        ensure!(
            places > 0,
            "{} bytes in {} shards hold no row of {} bytes",
            config.bytes,
            config.shards,
            config.row_f32s * 4
        );
        let cache = |shard| {
            TableCache::new(&CacheConfig {
                row_f32s: 1,
                bytes: TableCache::bytes_for_rows(places, 1, config.policy),
                policy: config.policy,
                flush_step_rows: config.flush_step_rows.div_ceil(config.shards),
                range: range(shard, config.shards),
            })
        };
        let caches: hps::Result<Vec<TableCache>> = (0..config.shards).map(cache).collect();
        let row_bytes = config.row_f32s as u64 * 4;
        let all = TableCache::bytes_for_rows(places, config.row_f32s, config.policy);
        Ok(Ours {
            caches: caches?,
            hashes: accesses.keys().iter().map(|key| mix64(*key)).collect(),
            leases: VecDeque::new(),
            depth: config.depth,
            flying: Vec::new(),
            written: 0,
            meta_bytes: all / places as u64 - row_bytes,
        })
    }

    /// Places of all shards.
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
        for (shard, victim) in self.flying.drain(..) {
            let _kept = self.caches[shard].written(&victim, true);
        }
    }

    /// Begins a flush of every cache that runs low; returns how many rows it takes.
    fn launch(&mut self) -> usize {
        for (shard, cache) in self.caches.iter_mut().enumerate() {
            if !cache.below_low_water() {
                continue;
            }
            let mut victims = Vec::new();
            cache.take_victims(cache.flush_step_rows(), u32::MAX, &mut victims);
            victims.sort_unstable_by_key(|victim| victim.hash);
            for victim in victims {
                let mut row = [0.0];
                if cache.copy_out(&victim, u32::MAX, &mut row).is_some() {
                    self.flying.push((shard, victim));
                }
            }
        }
        self.written += self.flying.len() as u64;
        self.flying.len()
    }

    /// Waits for places, as a batch does that finds none.
    fn make_room(&mut self, shard: usize) -> Result<()> {
        self.land();
        let room = |cache: &TableCache| cache.free() + cache.evictable() > 0;
        if room(&self.caches[shard]) {
            return Ok(());
        }
        self.launch();
        self.land();
        ensure!(
            room(&self.caches[shard]),
            "the cache is too small: the {} batches in use fill a shard's {} rows",
            self.depth + 1,
            self.caches[shard].capacity()
        );
        Ok(())
    }

    /// Pins the rows of one shard; returns their places and how many were not in memory.
    fn acquire(&mut self, shard: usize, hashes: &[u64]) -> Result<(Vec<Slot>, usize)> {
        let mut slots = vec![Slot::NONE; hashes.len()];
        self.caches[shard].lookup(hashes, &mut slots);
        let mut missing: Vec<u64> = Vec::new();
        for (hash, slot) in hashes.iter().zip(&slots) {
            if *slot == Slot::NONE {
                missing.push(*hash);
            }
        }
        slots.retain(|slot| *slot != Slot::NONE);
        self.caches[shard].pin(&slots);
        self.caches[shard].touch(&slots);
        let mut placed = 0;
        loop {
            let cache = &mut self.caches[shard];
            cache.reclaim(missing.len() - placed);
            let first = slots.len();
            while placed < missing.len()
                && let Some(slot) = cache.insert(missing[placed], Flags::LOADING)
            {
                slots.push(slot);
                placed += 1;
            }
            cache.pin(&slots[first..]);
            cache.touch(&slots[first..]);
            for slot in &slots[first..] {
                cache.clear(*slot, Flags::LOADING);
            }
            if placed == missing.len() {
                return Ok((slots, placed));
            }
            self.make_room(shard)?;
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

impl Policy for Ours {
    fn batch(&mut self, rows: &[u32]) -> Result<usize> {
        let shards = self.caches.len();
        let mut parts = vec![Vec::with_capacity(rows.len() / shards + 1); shards];
        for row in rows {
            let hash = self.hashes[*row as usize];
            parts[shard_of(hash, shards)].push(hash);
        }
        let mut lease = Vec::with_capacity(shards);
        let mut misses = 0;
        for (shard, hashes) in parts.iter_mut().enumerate() {
            hashes.sort_unstable();
            let (slots, missed) = self.acquire(shard, hashes)?;
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
