//! How often was each row used lately?

use super::super::core::{Core, ShardGuard};
use crate::format::index_snapshot::SnapshotEntry;
use crate::ssd::index::{Index as _, IndexEntry};
use crate::ssd::index_snapshot::KeyClasses;
use crate::units::{Slot, mix64, range_of};

/// What caches and indexes know of it.
#[derive(Debug)]
pub struct Classes<'a>(pub &'a Core);

impl KeyClasses for Classes<'_> {
    fn tell(&self, table: u32, entries: &mut [SnapshotEntry]) {
        let core = self.0;
        let shard_of = |entry: &SnapshotEntry| range_of(mix64(entry.key), core.shards.len());
        for of_shard in entries.chunk_by_mut(|a, b| shard_of(a) == shard_of(b)) {
            let shard = core.shards[shard_of(&of_shard[0])].lock();
            tell_some(&shard, table as usize, of_shard);
        }
    }
}

fn tell_some(shard: &ShardGuard<'_>, table: usize, entries: &mut [SnapshotEntry]) {
    let hashes: Vec<u64> = entries.iter().map(|entry| mix64(entry.key)).collect();
    let mut slots = vec![Slot::NONE; hashes.len()];
    shard.cache.lookup(table, &hashes, &mut slots);
    let mut known = Vec::new();
    shard.tables[table].index.get_batch(&hashes, &mut known);
    for ((entry, slot), known) in entries.iter_mut().zip(slots).zip(known) {
        entry.class = match slot {
            // It may have been removed since the checkpoint.
            Slot::NONE => known.map_or(0, IndexEntry::class),
            slot => shard.cache.class(slot),
        };
    }
}
