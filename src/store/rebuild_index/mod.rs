//! How is the index filled when a store is opened?
//!
//! Every index is built in the order of mix64: the entries of the index snapshot, with those of the
//! files that it does not cover put between them. Nothing is inserted. The work is cut into units, each
//! a table's part in some neighbouring shards; as many threads as pay build one unit each at a time.
//!
//! Invariants:
//! - Of several copies of a key the greatest rank wins.
//! - What a part of the snapshot says counts when all of its blocks were read and verified. Where
//!   parts are damaged, found at whatever point, what was built is thrown away and built again
//!   without them: the key blocks of their directories are read instead, the other parts stay.
//! - Entries in use are counted by the threads and given to the files at the end.

use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, PoisonError};

use super::core::{Core, ShardCell};
use crate::error::{Error, Result};
use crate::format::footer::{Run, RunKind};
use crate::format::param_file::record_stride;
use crate::format::snapshot_range::SnapshotRange;
use crate::ssd::data_file::DataFile;
use crate::ssd::index::{Index as _, KeyIndex};
use crate::ssd::sections::entries_in;
use crate::ssd::snapshot_ranges::{SnapshotRanges, tell_damaged};
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Mutex, by_team};
use crate::units::{CheckpointId, FileNumber, FileSlot, narrow, part_range, to_usize};

mod sort;
mod unit;
mod young;

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
    /// Parts of the snapshot that have hashes in its range, by position, and their blocks that begin
    /// in it.
    blocks: Vec<(usize, (u64, u64))>,
}

/// What all threads see.
struct Plan<'a> {
    rebuild: Rebuild<'a>,
    /// By slot.
    files: Vec<Option<Arc<DataFile>>>,
    /// By slot.
    ranks: Vec<u64>,
    /// The parts of the snapshot, in the order of their ranges.
    parts: Vec<Part<'a>>,
    /// Files that no part covers.
    young: Vec<Arc<DataFile>>,
    units: Vec<Unit>,
    /// Which tables were dropped, by id: their entries are passed over.
    dropped: Vec<bool>,
    /// Memory for key blocks in each thread.
    keys_bytes: u64,
}

/// A part of the snapshot.
struct Part<'a> {
    ranges: &'a SnapshotRanges,
    /// By position in its list; `None` for files that have left the version.
    covered: Vec<Option<Arc<DataFile>>>,
    /// Damage was found in it.
    damaged: AtomicBool,
}

impl Part<'_> {
    fn is_damaged(&self) -> bool {
        self.damaged.load(Ordering::Relaxed)
    }

    /// Leaves the part out of the next try.
    fn give_up(&self, error: &Error) {
        if !self.damaged.swap(true, Ordering::Relaxed) {
            tell_damaged(error);
        }
    }
}

/// Why a unit was not built.
enum Failed {
    /// The part at this position is of no use.
    Part(usize, Error),
    /// There is nothing else to read.
    Store(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed::Store(error)
    }
}

/// By slot and run: entries that the index points to.
#[derive(Debug)]
struct Live(Vec<Vec<u64>>);

impl Live {
    fn new(files: &[Option<Arc<DataFile>>]) -> Live {
        let runs = |file: &Option<Arc<DataFile>>| file.as_ref().map_or(0, |f| f.runs.len());
        Live(files.iter().map(|file| vec![0; runs(file)]).collect())
    }

    /// Adds a table's, by slot: of rows and of tombstones.
    fn add(&mut self, plan: &Plan<'_>, table: usize, live: &[[u64; 2]]) {
        let files = plan.files.iter().zip(live).zip(&mut self.0);
        for ((file, [rows, tombstones]), sums) in files {
            let runs = file.iter().flat_map(|file| &file.runs).zip(sums);
            for (run, sum) in runs.filter(|(run, _)| run.table as usize == table) {
                *sum += match run.kind {
                    RunKind::Rows => rows,
                    RunKind::Tombstones => tombstones,
                };
            }
        }
    }

    fn add_all(&mut self, other: &Live) {
        let (sums, others) = (self.0.iter_mut().flatten(), other.0.iter().flatten());
        for (sum, n) in sums.zip(others) {
            *sum += n;
        }
    }

    fn sum(&self) -> u64 {
        self.0.iter().flatten().sum()
    }
}

/// What one thread found.
#[derive(Debug)]
struct Loaded {
    live: Live,
    /// By position in `Plan::young`: entries that were read.
    taken: Vec<u64>,
    /// Blocks of the snapshot, by part and unit.
    parts: Vec<((usize, usize), SnapshotRange)>,
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

    /// Fills the index from the index snapshot and the files that it does not cover, and counts what is
    /// live.
    pub fn run(&self, checkpoint: CheckpointId) -> Result<()> {
        let files: Vec<_> = self.core.ssd.versions().current().cloned().collect();
        for file in &files {
            self.check_runs(file)?;
        }
        let mut snapshot = self.core.ssd.snapshot_ranges(checkpoint);
        loop {
            // Each time, a part less.
            match self.load_from(&files, &mut snapshot) {
                Ok(Some(live)) => return self.count_live(&live),
                Ok(None) => {}
                Err(error) if snapshot.is_empty() => return Err(error),
                // What it says may contradict what is in files that are whole.
                Err(error) => {
                    tracing::warn!(%error, "the index snapshot is of no use; key blocks are read");
                    snapshot.clear();
                }
            }
            for (s, cell) in self.core.shards.iter().enumerate() {
                let range = part_range(s, self.core.shards.len()).into_inner();
                for table in &mut cell.lock().tables {
                    table.set_index(KeyIndex::new(range));
                }
            }
        }
    }

    /// Builds all indexes, and says what they point to. `None`: parts were damaged, and
    /// are left out now.
    fn load_from(
        &self,
        files: &[Arc<DataFile>],
        snapshot: &mut Vec<SnapshotRanges>,
    ) -> Result<Option<Live>> {
        let (live, damaged) = self.load(files, snapshot)?;
        let mut position = 0;
        snapshot.retain(|_| {
            position += 1;
            !damaged.contains(&(position - 1))
        });
        Ok(damaged.is_empty().then_some(live))
    }

    /// As [`Rebuild::load_from`]; gives the positions of damaged parts, too.
    fn load(
        &self,
        files: &[Arc<DataFile>],
        snapshot: &mut [SnapshotRanges],
    ) -> Result<(Live, Vec<usize>)> {
        let span = tracing::debug_span!(
            "index_load",
            snapshot_entries = snapshot.iter().map(SnapshotRanges::entries).sum::<u64>(),
            young_files = tracing::field::Empty,
            young_entries = tracing::field::Empty,
        );
        let _loading = span.enter();
        let plan = match Plan::new(*self, files, snapshot) {
            Ok(plan) => plan,
            Err(Failed::Store(error)) => return Err(error),
            Err(Failed::Part(part, error)) => {
                tell_damaged(&error);
                return Ok((Live(Vec::new()), vec![part]));
            }
        };
        // Who flushed what is not known any more: a half of it may be of compactions.
        let young_bytes: u64 = plan.young.iter().map(|f| f.meta.bytes).sum();
        self.core.ssd.snapshots.begin_flushed(young_bytes / 2);
        span.record("young_files", plan.young.len());
        span.record("young_entries", entries(&plan.young));
        let loaded = plan.run()?;
        let mut damaged = plan.check(&loaded)?;
        let mut live = Live::new(&plan.files);
        for one in &loaded {
            live.add_all(&one.live);
        }
        if damaged.is_empty() {
            plan.check_live(&live)?;
            damaged = plan.damaged();
        }
        Ok((live, damaged))
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
    fn count_live(&self, live: &Live) -> Result<()> {
        let keys = |cell: &ShardCell| -> u64 {
            let shard = cell.lock();
            shard.tables.iter().map(|t| t.index.keys() as u64).sum()
        };
        let keys: u64 = self.core.shards.iter().map(keys).sum();
        assert!(live.sum() == keys, "every key is counted once");
        let slots = self.core.ssd.file_slots();
        for (file, live) in slots.iter().zip(&live.0) {
            for (run, live) in live.iter().enumerate() {
                if let Some(file) = file {
                    file.add_live_many(run, *live);
                }
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
        snapshot: &'a mut [SnapshotRanges],
    ) -> std::result::Result<Plan<'a>, Failed> {
        let find = |number: &FileNumber| {
            let found = current.binary_search_by_key(number, |f| f.meta.number);
            found.ok().map(|i| Arc::clone(&current[i]))
        };
        let mut covered: Vec<Vec<Option<Arc<DataFile>>>> = Vec::new();
        for (p, part) in snapshot.iter().enumerate() {
            let files: Vec<_> = part.covered.iter().map(find).collect();
            let strange = |f: &Arc<DataFile>| part.directory.is_some_and(|d| d != f.meta.directory);
            if files.iter().flatten().any(strange) {
                let what = "it lists a file of another data directory";
                return Err(Failed::Part(p, part.damaged(what)));
            }
            covered.push(files);
        }
        let all_covered = snapshot.iter().flat_map(|part| &part.covered);
        let known: std::collections::HashSet<FileNumber> = all_covered.copied().collect();
        let is_young = |f: &&Arc<DataFile>| !known.contains(&f.meta.number);
        let young: Vec<_> = current.iter().filter(is_young).cloned().collect();
        let threads = rebuild.threads();
        let units = units(rebuild.core, &young, snapshot, threads)?;
        let part = |(ranges, covered)| Part {
            ranges,
            covered,
            damaged: AtomicBool::new(false),
        };
        let files = rebuild.core.ssd.file_slots().clone();
        let rank = |file: &Option<Arc<DataFile>>| file.as_ref().map_or(0, |f| f.meta.rank);
        // The rows have not come yet: a part of their memory is free.
        let keys_bytes = (rebuild.core.options.cache_bytes / 4).clamp(1 << 20, 128 << 20);
        Ok(Plan {
            rebuild,
            ranks: files.iter().map(rank).collect(),
            files,
            parts: snapshot.iter().zip(covered).map(part).collect(),
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
                live: Live::new(&self.files),
                taken: vec![0; self.young.len()],
                parts: Vec::new(),
            };
            loop {
                let unit = next.fetch_add(1, Ordering::Relaxed);
                if unit >= self.units.len() {
                    break;
                }
                match self.build(unit, &mut loaded) {
                    Ok(()) => {}
                    // The others may find more of them.
                    Err(Failed::Part(part, error)) => self.parts[part].give_up(&error),
                    Err(Failed::Store(error)) => {
                        next.store(self.units.len(), Ordering::Relaxed);
                        let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                        failed.get_or_insert(error);
                        break;
                    }
                }
            }
            loaded
        };
        let threads = self.rebuild.threads().min(self.units.len()).max(1);
        let loaded = by_team("hps-open", (0..threads).map(|_| &work));
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(loaded),
        }
    }

    /// Every entry was read once, and the parts are those in force; gives the positions of parts
    /// that are damaged: then not all was built.
    fn check(&self, loaded: &[Loaded]) -> Result<Vec<usize>> {
        // Where a unit was not built, parts that are whole lack its blocks.
        let complete = !self.parts.iter().any(Part::is_damaged);
        for (p, part) in self.parts.iter().enumerate().filter(|_| complete) {
            let blocks = loaded.iter().flat_map(|one| &one.parts);
            let mut blocks: Vec<_> = blocks.filter(|(at, _)| at.0 == p).collect();
            blocks.sort_unstable_by_key(|(at, _)| at.1);
            if let Err(error) = part.ranges.finish(blocks.into_iter().map(|(_, part)| part)) {
                part.give_up(&error);
            }
        }
        let damaged = self.damaged();
        if !damaged.is_empty() {
            return Ok(damaged);
        }
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
        Ok(damaged)
    }

    /// No run of a file has more keys that point to it than entries, which would end every open: where
    /// several keys of a part name one entry, all of its checksums may be right. Fewer such keys are
    /// found by their reads. A writer removes it, for what it makes anew it makes from the old.
    fn check_live(&self, live: &Live) -> Result<()> {
        let files = self.files.iter().zip(&live.0);
        for (file, live) in files.filter_map(|(file, live)| Some((file.as_deref()?, live))) {
            let mut runs = file.runs.iter().zip(live);
            let Some((run, live)) = runs.find(|(run, live)| **live > run.entries) else {
                continue;
            };
            let (number, Run { table, entries, .. }) = (file.meta.number, run);
            let what = format!(
                "{live} keys of table {table} are in a run of file {number} that has {entries} entries"
            );
            let covers = |part: &&Part<'_>| part.ranges.covered.contains(&number);
            let Some(part) = self.parts.iter().find(covers) else {
                return Err(Error::corrupt(&file.path, file.keys_offset, what));
            };
            part.give_up(&part.ranges.damaged(what));
            let core = self.rebuild.core;
            if !core.read_only {
                core.ssd.remove_part(part.ranges.directory);
            }
        }
        Ok(())
    }

    /// Positions of the parts that are damaged.
    fn damaged(&self) -> Vec<usize> {
        let positions = 0..self.parts.len();
        positions.filter(|p| self.parts[*p].is_damaged()).collect()
    }

    fn is_dropped(&self, table: usize) -> bool {
        self.dropped.get(table).copied().unwrap_or(false)
    }

    fn rank(&self, slot: FileSlot) -> u64 {
        self.ranks.get(slot.index()).copied().unwrap_or(0)
    }

    fn path(&self, slot: FileSlot) -> &Path {
        let file = self.files.get(slot.index()).and_then(Option::as_ref);
        file.map_or(self.rebuild.core.ssd.root.path(), |file| &file.path)
    }
}

/// Cuts the work: small tables are one unit, great ones as many as keep all threads busy.
fn units(
    core: &Core,
    young: &[Arc<DataFile>],
    snapshot: &mut [SnapshotRanges],
    threads: usize,
) -> std::result::Result<Vec<Unit>, Failed> {
    let shards = core.shards.len();
    let tables = core.all_tables().len();
    let mut all_young = vec![0; tables];
    for run in young.iter().flat_map(|file| &file.runs) {
        all_young[run.table as usize] += run.entries;
    }
    let mut units: Vec<Unit> = Vec::new();
    // By part: blocks of the tables before.
    let mut from = vec![0; snapshot.len()];
    for (table, young) in all_young.iter().enumerate() {
        let next = match table + 1 == tables {
            true => None,
            false => u32::try_from(table + 1).ok(),
        };
        let mut end = Vec::with_capacity(snapshot.len());
        for (p, part) in snapshot.iter_mut().enumerate() {
            end.push(match next {
                Some(next) => of_part(p, part.block_of(next, 0))?,
                None => part.blocks(),
            });
        }
        let blocks: u64 = end.iter().zip(&from).map(|(end, from)| end - from).sum();
        let entries = young + SnapshotRanges::entries_max(blocks);
        let least = core.options.thresholds_in_force().open_unit_entries;
        let pieces = to_usize(entries / least);
        let pieces = pieces.clamp(1, threads.min(shards));
        for piece in 0..pieces {
            let shards = piece * shards / pieces..(piece + 1) * shards / pieces;
            let range = range_of_shards(&shards, core.shards.len());
            let table_number = narrow(table);
            let mut blocks = Vec::new();
            for (p, part) in snapshot.iter_mut().enumerate() {
                if part.range.1 < range.0 || range.1 < part.range.0 {
                    continue;
                }
                // The last unit that the part has something for takes all that is left.
                let to = match range.1 < part.range.1 {
                    true => of_part(p, part.block_of(table_number, range.1 + 1))?,
                    false => end[p],
                };
                blocks.push((p, (from[p], to)));
                from[p] = to;
            }
            units.push(Unit {
                table,
                shards,
                range,
                blocks,
            });
        }
    }
    Ok(units)
}

/// What went wrong with a part.
fn of_part<T>(part: usize, result: Result<T>) -> std::result::Result<T, Failed> {
    result.map_err(|error| Failed::Part(part, error))
}

/// First and last hash of neighbouring shards.
fn range_of_shards(shards: &Range<usize>, count: usize) -> (u64, u64) {
    let (first, last) = (shards.start, shards.end - 1);
    (
        *part_range(first, count).start(),
        *part_range(last, count).end(),
    )
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
mod cut_tests;
#[cfg(test)]
mod tests;
