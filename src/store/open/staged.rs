//! How does a table come into memory whole when a store is opened?
//!
//! Each shard's range of the checkpoint that is opened is walked file by file, in large reads, and its rows are put
//! into the cache as they come. Nobody else has the store yet.

use std::sync::Arc;

use super::super::Parts;
use super::super::core::{Beside, Table};
use super::super::pull::Full;
use super::super::rows::RowIter;
use crate::error::Result;
use crate::mem::Flags;
use crate::options::PolicyKind;
use crate::ssd::index::Index as _;
use crate::units::{CheckpointId, mix64, part_range};

/// Rows that come into a shard while it is locked.
const STEP_ROWS: usize = 512;

impl Parts {
    /// Reads the tables in whose policy is `Staged`, as they are at the checkpoint that was opened.
    ///
    /// # Errors
    /// `OverBudget` where one does not fit; `Corrupt`, `Io`.
    pub(super) fn stage(&self, checkpoint: CheckpointId) -> Result<()> {
        let staged = |table: &Arc<Table>| table.tuning().policy == PolicyKind::Staged;
        for table in self.core.tables_there().filter(staged) {
            let pool = self.workers.foreground();
            let shards = self.core.shards.len();
            // As many keys as there are: all threads take part.
            let done = pool.shards(shards, usize::MAX, |s| {
                self.stage_shard(checkpoint, &table, s)
            });
            done.into_iter().collect::<Result<Vec<()>>>()?;
        }
        Ok(())
    }

    fn stage_shard(&self, checkpoint: CheckpointId, table: &Table, s: usize) -> Result<()> {
        let range = part_range(s, self.core.shards.len());
        let width = table.descriptor.row_f32s();
        let mut rows = RowIter::open(&self.core, checkpoint, vec![(table.id, width)], range)?;
        let (mut hashes, mut values) = (Vec::new(), Vec::new());
        loop {
            hashes.clear();
            values.clear();
            while hashes.len() < STEP_ROWS
                && let Some(row) = rows.next_row()?
            {
                hashes.push(mix64(row.key));
                values.extend_from_slice(row.values);
            }
            if hashes.is_empty() {
                return Ok(());
            }
            self.insert_clean(table, s, &hashes, &values)?;
        }
    }

    /// Puts rows into a shard as they are on SSD.
    fn insert_clean(&self, table: &Table, s: usize, hashes: &[u64], values: &[f32]) -> Result<()> {
        let id = table.id.0 as usize;
        let width = table.descriptor.row_f32s();
        let mut shard = self.core.shards[s].lock();
        let needed = shard.needed_bytes(&[(id, hashes.len())], Beside::Promises);
        let fits = shard.has_bytes(needed) && shard.reclaim(id, hashes.len()) >= hashes.len();
        for (hash, row) in hashes.iter().zip(values.chunks(width)) {
            let slot = fits.then(|| shard.cache.insert(id, *hash, Flags::LOADING, 0));
            let Some(slot) = slot.flatten() else {
                let asked = shard.tables[id].index.keys();
                let missing = asked.saturating_sub(shard.cache.resident_of(id));
                let all = shard.needed_bytes(&[(id, missing)], Beside::Promises);
                let full = Full::alone(asked, shard.cache.capacity(id), needed.max(all));
                drop(shard);
                return Err(self.puller.over_budget(table, &full));
            };
            shard.cache.row_mut(slot).copy_from_slice(row);
            shard.cache.clear(slot, Flags::LOADING);
        }
        Ok(())
    }
}
