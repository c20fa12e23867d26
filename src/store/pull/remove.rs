//! Is a key known, and how is it forgotten?

use std::sync::{Arc, PoisonError};

use super::super::core::{Table, point};
use super::Puller;
use super::batch::Intent;
use super::split::Wanted;
use crate::batch::split;
use crate::error::{Error, Result};
use crate::mem::{Cache, Flags};
use crate::ssd::index::Index as _;
use crate::units::Slot;

/// Keys removed at a time: their tombstones need slots.
const REMOVE_KEYS: usize = 4096;

impl Puller {
    /// Which keys were pushed and not removed since.
    ///
    /// # Errors
    /// `InvalidArgument` where the table is dropped meanwhile.
    pub fn contains(&self, table: &Table, keys: &[u64]) -> Result<Vec<bool>> {
        let mut known = vec![false; keys.len()];
        for (part, cell) in split(keys, self.core.shards.len())
            .parts
            .into_iter()
            .zip(&self.core.shards)
        {
            let shard = cell.lock();
            let id = table.id.0 as usize;
            let (cache, index) = (&shard.cache, &shard.tables[id].index);
            let mut slots = vec![Slot::NONE; part.hashes.len()];
            cache.lookup(id, &part.hashes, &mut slots);
            let mut locations = Vec::new();
            index.get_batch(&part.hashes, &mut locations);
            for ((slot, location), position) in slots.iter().zip(&locations).zip(&part.positions) {
                let resident = (*slot != Slot::NONE).then(|| cache.flags(*slot));
                known[*position as usize] = match resident {
                    Some(flags) if !flags.any(Flags::LOADING | Flags::FAILED) => {
                        !flags.any(Flags::ABSENT | Flags::REMOVED)
                    }
                    _ => location.is_some_and(|known| !known.location().is_tombstone()),
                };
            }
        }
        // Its rows may have gone while they were looked for; it is marked before they go.
        table.check_there()?;
        Ok(known)
    }

    /// Forgets keys; returns how many were known.
    ///
    /// # Errors
    /// As [`Puller::acquire`]; keys before the failure are removed.
    pub fn remove(&self, table: &Arc<Table>, keys: &[u64]) -> Result<u64> {
        self.core.check_writable()?;
        let mut removed = 0;
        let mut rest = keys;
        let mut step = REMOVE_KEYS;
        while !rest.is_empty() {
            let now = &rest[..step.min(rest.len())];
            match self.remove_some(table, now) {
                Ok(n) => removed += n,
                Err(Error::OverBudget { .. }) if step > 1 => {
                    step = (step / 4).max(1);
                    continue;
                }
                Err(e) => return Err(e),
            }
            rest = &rest[now.len()..];
        }
        Ok(removed)
    }

    fn remove_some(&self, table: &Arc<Table>, keys: &[u64]) -> Result<u64> {
        // Keys that are not known need no tombstone and no slot.
        let known = self.contains(table, keys)?;
        let keys: Vec<u64> = keys
            .iter()
            .zip(&known)
            .filter(|(_, known)| **known)
            .map(|(k, _)| *k)
            .collect();
        if keys.is_empty() {
            return Ok(0);
        }
        // One at a time: two removers of overlapping keys would wait for each other's claims.
        let _one = self.removing.lock().unwrap_or_else(PoisonError::into_inner);
        let pool = self.workers.foreground();
        let wanted = Wanted {
            table,
            keys: &keys,
            out: None,
        };
        let lease = self.acquire(&pool, &mut [wanted], Intent::Remove)?;
        let _whole = self.core.gate_shared();
        self.core.changes.note();
        let mut removed = 0;
        for (s, rows) in lease.rows.iter().enumerate() {
            let mut slots = rows.slots.clone();
            slots.sort_unstable();
            slots.dedup();
            if slots.is_empty() {
                continue;
            }
            let mut known = Vec::with_capacity(slots.len());
            {
                let shard = self.core.shards[s].lock();
                let cache = &shard.cache;
                let gone = Flags::ABSENT | Flags::REMOVED;
                known.extend(slots.iter().copied().filter(|p| !cache.flags(*p).any(gone)));
            }
            let mut shard = self
                .core
                .lock_to_write(s, table, &known, Cache::begin_overwrite)?;
            let cache = &mut shard.cache;
            for slot in &known {
                cache.clear(*slot, Flags::LOADING);
                cache.set(*slot, Flags::REMOVED | Flags::UNFILLED);
            }
            point("remove");
            removed += known.len() as u64;
            drop(shard);
            self.core.shards[s].notify();
        }
        Ok(removed)
    }
}
