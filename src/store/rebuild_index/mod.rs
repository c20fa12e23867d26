//! How is the index filled when a store is opened?
//!
//! Every index is built in the order of mix64: the entries of the image, with those of the files
//! that it does not cover put between them. Nothing is inserted. The work is cut into units, each
//! a table's part in some neighbouring shards; as many threads as pay build one unit each at a time.
//!
//! Invariants:
//! - Of several copies of a key the greatest rank wins.
//! - What the image says counts when all of its blocks were read and verified. Damage to it, found
//!   at whatever point, throws away what was built: the key blocks of all files are read instead.
//! - Entries in use are counted by the threads and given to the files at the end.

use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, PoisonError};

use super::core::{Core, ShardCell};
use crate::error::{Error, Result};
use crate::format::footer::{Run, RunKind};
use crate::format::image_part::ImagePart;
use crate::format::param_file::record_stride;
use crate::ssd::data_file::DataFile;
use crate::ssd::image_ranges::ImageRanges;
use crate::ssd::index::Index;
use crate::ssd::sections::entries_in;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, thread};
use crate::units::{CheckpointId, part_range};

mod sort;
mod unit;

/// Threads for each that serves batches: while one waits for the device, another builds.
const THREADS_EACH: usize = 2;
/// Most threads.
const THREADS_MAX: usize = 64;

/// A table's part in neighbouring shards.
#[derive(Debug)]
struct Unit {
    table: usize,
    shards: Range<usize>,
    /// First and last hash.
    range: (u64, u64),
    /// Blocks of the image that begin in it.
    blocks: (u64, u64),
}

/// What all threads see.
struct Plan<'a> {
    rebuild: Rebuild<'a>,
    /// By slot.
    files: Vec<Option<Arc<DataFile>>>,
    /// By slot.
    ranks: Vec<u64>,
    image: Option<&'a ImageRanges>,
    /// By position in the image's list; `None` for files that have left the version.
    covered: Vec<Option<Arc<DataFile>>>,
    /// Files that the image does not cover.
    young: Vec<Arc<DataFile>>,
    units: Vec<Unit>,
    /// Which tables were dropped, by id: their entries are passed over.
    dropped: Vec<bool>,
    /// Memory for key blocks in each thread.
    keys_bytes: u64,
}

/// What one thread found.
#[derive(Debug)]
struct Loaded {
    /// By slot: entries that the index points to.
    live: Vec<u64>,
    /// By position in `Plan::young`: entries that were read.
    taken: Vec<u64>,
    /// The image's blocks, by unit.
    parts: Vec<(usize, ImagePart)>,
}

/// Fills the indexes of a store that is being opened.
#[derive(Clone, Copy, Debug)]
pub struct Rebuild<'a> {
    core: &'a Core,
}

impl<'a> Rebuild<'a> {
    pub fn new(core: &'a Core) -> Rebuild<'a> {
        Rebuild { core }
    }

    /// Fills the index from the image and the files that it does not cover, and counts what is
    /// live.
    pub fn run(&self, checkpoint: CheckpointId) -> Result<()> {
        let files: Vec<_> = self.core.ssd.versions().current().cloned().collect();
        for file in &files {
            self.check_runs(file)?;
        }
        if let Some(mut image) = self.core.ssd.image_ranges(checkpoint) {
            match self.load_from(&files, Some(&mut image)) {
                Ok(live) => return self.count_live(&live),
                Err(error) => {
                    tracing::warn!(%error, "the index image is of no use; key blocks are read");
                    for (s, cell) in self.core.shards.iter().enumerate() {
                        for table in &mut cell.lock().tables {
                            table.set_index(Index::new(
                                part_range(s, self.core.shards.len()).into_inner(),
                            ));
                        }
                    }
                }
            }
        }
        let live = self.load_from(&files, None)?;
        self.count_live(&live)
    }

    /// Builds all indexes; by slot, the entries that they point to.
    fn load_from(
        &self,
        files: &[Arc<DataFile>],
        image: Option<&mut ImageRanges>,
    ) -> Result<Vec<u64>> {
        let span = tracing::debug_span!(
            "index_load",
            image_entries = image.as_ref().map_or(0, |image| image.entries()),
            young_files = tracing::field::Empty,
            young_entries = tracing::field::Empty,
        );
        let _loading = span.enter();
        let plan = Plan::new(*self, files, image)?;
        // Who flushed what is not known any more: a half of it may be of compactions.
        let young_bytes: u64 = plan.young.iter().map(|f| f.meta.bytes).sum();
        self.core.ssd.images.begin_flushed(young_bytes / 2);
        span.record("young_files", plan.young.len());
        span.record("young_entries", entries(&plan.young));
        let loaded = plan.run()?;
        plan.check(&loaded)?;
        let mut live = vec![0; plan.files.len()];
        for one in &loaded {
            for (sum, n) in live.iter_mut().zip(&one.live) {
                *sum += n;
            }
        }
        Ok(live)
    }

    /// A file's runs are of tables that there are, with records of their size.
    fn check_runs(&self, file: &DataFile) -> Result<()> {
        let tables = self.core.all_tables();
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

    /// Gives the files their counters.
    fn count_live(&self, live: &[u64]) -> Result<()> {
        let keys = |cell: &ShardCell| -> u64 {
            let shard = cell.lock();
            shard.tables.iter().map(|t| t.index.len() as u64).sum()
        };
        let keys: u64 = self.core.shards.iter().map(keys).sum();
        assert!(
            live.iter().sum::<u64>() == keys,
            "every key is counted once"
        );
        let slots = self.core.ssd.file_slots();
        for (file, live) in slots.iter().zip(live) {
            if let Some(file) = file {
                file.add_live_many(*live);
            }
        }
        Ok(())
    }

    /// Threads that build indexes at open.
    fn threads(&self) -> usize {
        // Calls in an order that depends on the store only.
        if self.core.options.inline || cfg!(hps_shuttle) {
            return 1;
        }
        (self.core.options.threads * THREADS_EACH).min(THREADS_MAX)
    }
}

fn entries(files: &[Arc<DataFile>]) -> u64 {
    files.iter().map(|file| file.entries()).sum()
}

impl<'a> Plan<'a> {
    fn new(
        rebuild: Rebuild<'a>,
        current: &[Arc<DataFile>],
        mut image: Option<&'a mut ImageRanges>,
    ) -> Result<Plan<'a>> {
        let numbers = image.as_ref().map_or(&[][..], |image| &image.covered);
        let find = |number: &u64| {
            let found = current.binary_search_by_key(number, |f| f.meta.number);
            found.ok().map(|i| Arc::clone(&current[i]))
        };
        let covered = numbers.iter().map(find).collect();
        let known: std::collections::HashSet<u64> = numbers.iter().copied().collect();
        let is_young = |f: &&Arc<DataFile>| !known.contains(&f.meta.number);
        let young: Vec<_> = current.iter().filter(is_young).cloned().collect();
        let threads = rebuild.threads();
        let units = units(rebuild.core, &young, image.as_deref_mut(), threads)?;
        let files = rebuild.core.ssd.file_slots().clone();
        let rank = |file: &Option<Arc<DataFile>>| file.as_ref().map_or(0, |f| f.meta.rank);
        // The rows have not come yet: a part of their memory is free.
        let keys_bytes = (rebuild.core.options.cache_bytes / 4).clamp(1 << 20, 128 << 20);
        Ok(Plan {
            rebuild,
            ranks: files.iter().map(rank).collect(),
            files,
            image: image.map(|image| &*image),
            covered,
            young,
            dropped: rebuild
                .core
                .all_tables()
                .iter()
                .map(|t| t.is_dropped())
                .collect(),
            keys_bytes: keys_bytes / threads.min(units.len()).max(1) as u64,
            units,
        })
    }

    /// Builds all units.
    fn run(&self) -> Result<Vec<Loaded>> {
        let next = AtomicUsize::new(0);
        let failed: Mutex<Option<Error>> = Mutex::new(None);
        let work = || {
            let mut loaded = Loaded {
                live: vec![0; self.files.len()],
                taken: vec![0; self.young.len()],
                parts: Vec::new(),
            };
            loop {
                let unit = next.fetch_add(1, Ordering::Relaxed);
                if unit >= self.units.len() {
                    break;
                }
                if let Err(error) = self.build(unit, &mut loaded) {
                    next.store(self.units.len(), Ordering::Relaxed);
                    let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                    failed.get_or_insert(error);
                    break;
                }
            }
            loaded
        };
        let threads = self.rebuild.threads().min(self.units.len());
        let loaded = thread::scope(|scope| {
            // Where no thread is to be had, this one does all the work.
            let others: Vec<_> = (1..threads)
                .map_while(|_| {
                    let thread = thread::Builder::new().name(String::from("hps-open"));
                    thread.spawn_scoped(scope, work).ok()
                })
                .collect();
            let own = work();
            let others = others.into_iter().map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            std::iter::once(own).chain(others).collect()
        });
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(loaded),
        }
    }

    /// Every entry was read once, and the image is the one in force.
    fn check(&self, loaded: &[Loaded]) -> Result<()> {
        for (i, file) in self.young.iter().enumerate() {
            let taken: u64 = loaded.iter().map(|one| one.taken[i]).sum();
            let runs = file
                .runs
                .iter()
                .filter(|run| !self.is_dropped(run.table as usize));
            let expected: u64 = runs.map(|run| run.entries).sum();
            if taken != expected {
                let what = format!("{taken} entries in order, the footer says {expected}");
                return Err(Error::corrupt(&file.path, file.keys_offset, what));
            }
        }
        let Some(image) = self.image else {
            return Ok(());
        };
        let mut parts: Vec<_> = loaded.iter().flat_map(|one| &one.parts).collect();
        parts.sort_unstable_by_key(|part| part.0);
        image.finish(parts.iter().map(|part| &part.1))
    }

    fn is_dropped(&self, table: usize) -> bool {
        self.dropped.get(table).copied().unwrap_or(false)
    }

    fn rank(&self, slot: u32) -> u64 {
        self.ranks.get(slot as usize).copied().unwrap_or(0)
    }

    fn path(&self, slot: u32) -> &Path {
        let file = self.files.get(slot as usize).and_then(Option::as_ref);
        file.map_or(self.rebuild.core.ssd.root.path(), |file| &file.path)
    }
}

/// Cuts the work: small tables are one unit, great ones as many as keep all threads busy.
fn units(
    core: &Core,
    young: &[Arc<DataFile>],
    mut image: Option<&mut ImageRanges>,
    threads: usize,
) -> Result<Vec<Unit>> {
    let shards = core.shards.len();
    let tables = core.all_tables().len();
    let mut all_young = vec![0; tables];
    for run in young.iter().flat_map(|file| &file.runs) {
        all_young[run.table as usize] += run.entries;
    }
    let mut units: Vec<Unit> = Vec::new();
    let mut from = 0;
    for (table, young) in all_young.iter().enumerate() {
        let next = u32::try_from(table + 1).unwrap_or(u32::MAX);
        let end = match &mut image {
            Some(image) if table + 1 == tables => image.blocks(),
            Some(image) => image.block_of(next, 0)?,
            None => 0,
        };
        let entries = young + ImageRanges::entries_max(end - from);
        let least = core.options.thresholds_in_force().open_unit_entries;
        let pieces = usize::try_from(entries / least).unwrap_or(usize::MAX);
        let pieces = pieces.clamp(1, threads.min(shards));
        for piece in 0..pieces {
            let part = piece * shards / pieces..(piece + 1) * shards / pieces;
            let range = (
                *part_range(part.start, shards).start(),
                *part_range(part.end - 1, shards).end(),
            );
            let to = match &mut image {
                Some(image) if piece + 1 < pieces => image.block_of(next - 1, range.1 + 1)?,
                _ => end,
            };
            units.push(Unit {
                table,
                shards: part,
                range,
                blocks: (from, to),
            });
            from = to;
        }
    }
    Ok(units)
}

/// About how many entries of a table the young files have in a range.
fn young_in(young: &[Arc<DataFile>], table: usize, range: (u64, u64)) -> u64 {
    let runs = young
        .iter()
        .flat_map(|f| f.runs.iter().map(move |r| (f, r)));
    runs.filter(|(_, run)| run.table as usize == table)
        .map(|(file, run)| entries_in(file, run, range))
        .sum()
}

#[cfg(test)]
mod tests;
