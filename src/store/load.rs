//! How is the index filled when a store is opened?
//!
//! Invariants:
//! - What comes in hash order for a shard and table that has no keys yet (an image; the first of
//!   the files without one) is built; everything else is offered, and the greater rank wins.
//! - Entries in use are counted while they are loaded and given to the files at the end.

use std::collections::HashSet;
use std::path::Path;
use std::sync::{Arc, PoisonError};

use super::engine::{Engine, ShardCell};
use crate::batch::shard_range;
use crate::error::{Error, Result};
use crate::format::param_file::{Run, RunKind, record_stride};
use crate::ssd::index::{Index, IndexBuilder};
use crate::ssd::offers::{Offer, Offers};
use crate::ssd::version::DataFile;
use crate::units::{mix64, range_of, unmix64};

/// The index of one table in one shard that is being built.
struct Building {
    table: usize,
    shard: usize,
    builder: IndexBuilder,
}

/// Takes entries to the indexes of an engine that nobody else uses yet.
struct Loader<'a> {
    engine: &'a Engine,
    /// By slot.
    files: Vec<Option<Arc<DataFile>>>,
    tables: usize,
    /// By slot: entries that the index points to.
    live: Vec<u64>,
    building: Option<Building>,
    /// Entries that are expected in all shards of a table together.
    expected: u64,
}

impl Engine {
    /// Fills the index from the image and the files that it does not cover, and counts what is
    /// live.
    pub(super) fn load_index(&self, checkpoint: u64) -> Result<()> {
        let mut files: Vec<_> = self.ssd.versions().current().cloned().collect();
        for file in &files {
            self.check_runs(file)?;
        }
        let mut loader = Loader::new(self);
        let covered = match loader.load_image(checkpoint) {
            Ok(covered) => covered,
            Err(error) => {
                tracing::warn!(%error, "the index image is damaged; key blocks are read instead");
                for (s, cell) in self.shards.iter().enumerate() {
                    for table in &mut cell.lock().tables {
                        table.index = Index::new(shard_range(s, self.shards.len()));
                    }
                }
                loader = Loader::new(self);
                HashSet::new()
            }
        };
        files.retain(|f| !covered.contains(&f.meta.number));
        let entries: u64 = files.iter().map(|f| f.entries()).sum();
        let _reading = tracing::debug_span!("key_blocks", files = files.len(), entries).entered();
        // The first file of a table is built, not offered: best the greatest.
        files.sort_by_key(|f| std::cmp::Reverse(f.entries()));
        let mut offer = Offer::default();
        for file in files {
            loader.expected = file.entries();
            let mut offers = Offers::new(&file);
            while offers.next(&mut offer)? {
                loader.take(&offer, &file.path)?;
            }
        }
        loader.finish();
        Ok(())
    }
}

impl Engine {
    /// A file's runs are of tables that there are, with records of their size.
    fn check_runs(&self, file: &DataFile) -> Result<()> {
        let tables = self.all_tables();
        let fits = |run: &Run| {
            let Some(table) = tables.get(run.table as usize) else {
                return false;
            };
            let stride = record_stride(table.descriptor.row_bytes());
            run.kind == RunKind::Tombstones || run.stride as usize == stride
        };
        match file.runs.iter().find(|run| !fits(run)) {
            None => Ok(()),
            Some(run) => {
                let what = format!(
                    "a run of table {} with records of {} bytes: no such table, or another size",
                    run.table, run.stride
                );
                Err(Error::corrupt(&file.path, file.meta.footer_offset, what))
            }
        }
    }
}

impl Loader<'_> {
    fn new(engine: &Engine) -> Loader<'_> {
        let slots = engine.ssd.slots.read();
        let files = slots.unwrap_or_else(PoisonError::into_inner).clone();
        Loader {
            engine,
            live: vec![0; files.len()],
            files,
            tables: engine.all_tables().len(),
            building: None,
            expected: 0,
        }
    }

    fn load_image(&mut self, checkpoint: u64) -> Result<HashSet<u64>> {
        let Some(mut offers) = self.engine.ssd.image_offers(checkpoint) else {
            return Ok(HashSet::new());
        };
        self.expected = offers.entries_max();
        let files = offers.covered().len();
        let _loading = tracing::debug_span!("image_load", files, entries = self.expected).entered();
        let mut offer = Offer::default();
        while offers.next(&mut offer)? {
            self.take(&offer, self.engine.ssd.root.path())?;
        }
        self.close();
        Ok(offers.covered().iter().copied().collect())
    }

    /// Takes entries of one table, best in hash order.
    fn take(&mut self, offer: &Offer, path: &Path) -> Result<()> {
        let (table, tables) = (offer.table as usize, self.tables);
        if table >= tables {
            let what = format!("rows of table {table}, the manifest knows {tables}");
            return Err(Error::corrupt(path, 0, what));
        }
        let shards = self.engine.shards.len();
        let hashes = offer.keys.iter().map(|k| mix64(*k));
        let mut entries = hashes.zip(&offer.locations).peekable();
        while let Some((first, _)) = entries.peek() {
            let shard = range_of(*first, shards);
            let range = shard_range(shard, shards);
            if self.builds(table, shard, range)
                && let Some(Building { builder, .. }) = &mut self.building
            {
                while let Some((_, to)) =
                    entries.next_if(|(h, to)| *h <= range.1 && builder.push(*h, **to))
                {
                    self.live[to.slot() as usize] += 1;
                }
                // What the builder refuses is offered.
                if entries
                    .peek()
                    .is_some_and(|(h, _)| range_of(*h, shards) == shard)
                {
                    self.close();
                }
                continue;
            }
            let mut guard = self.engine.shards[shard].lock();
            let index = &mut guard.tables[table].index;
            let inside = |h: u64| (range.0..=range.1).contains(&h);
            while let Some((hash, to)) = entries.next_if(|(h, _)| inside(*h)) {
                if !index.offer(&self.files, &mut self.live, hash, *to) {
                    let what = format!("key {:#x} has two copies of one rank", unmix64(hash));
                    return Err(Error::corrupt(path, 0, what));
                }
            }
        }
        Ok(())
    }

    /// Whether this index is being built: it begins to be if it has no keys yet.
    fn builds(&mut self, table: usize, shard: usize, range: (u64, u64)) -> bool {
        let same = |b: &Building| b.table == table && b.shard == shard;
        if !self.building.as_ref().is_some_and(same) {
            if !self.engine.shards[shard].lock().tables[table]
                .index
                .is_empty()
            {
                return false;
            }
            self.close();
            let share = self.expected / self.engine.shards.len() as u64;
            let builder = IndexBuilder::new(range, share);
            self.building = Some(Building {
                table,
                shard,
                builder,
            });
        }
        true
    }

    /// Ends the index that is being built.
    fn close(&mut self) {
        if let Some(Building {
            table,
            shard,
            builder,
        }) = self.building.take()
        {
            self.engine.shards[shard].lock().tables[table].index = builder.finish();
        }
    }

    /// Gives the files their counters.
    fn finish(mut self) {
        self.close();
        let keys = |cell: &ShardCell| -> u64 {
            cell.lock()
                .tables
                .iter()
                .map(|t| t.index.len() as u64)
                .sum()
        };
        let keys: u64 = self.engine.shards.iter().map(keys).sum();
        assert!(
            self.live.iter().sum::<u64>() == keys,
            "every key is counted once"
        );
        for (file, live) in self.files.iter().zip(&self.live) {
            if let Some(file) = file {
                file.gain_many(*live);
            }
        }
    }
}
