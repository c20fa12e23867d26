//! How are the live rows of a few files written to new ones?
//!
//! The inputs' live rows are merged in order; then the index is repointed where it still points to
//! the inputs.
//!
//! Invariants:
//! - No shard is locked over I/O; pulls go on.
//! - Inputs and outputs are of one data directory, which no other compaction touches meanwhile.
//! - A tombstone goes only when no file outside the inputs can hold an older copy of its key.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::core::{add, point};
use super::{CompactionJob, Compactor};
use crate::error::{Error, Result};
use crate::format::footer::RunKind;
use crate::in_use::HeldBytes;
use crate::io::Queue;
use crate::pages::own_pages;
use crate::ssd::NewFile;
use crate::ssd::data_file::{DataFile, Location, tables_of};
use crate::ssd::entry_scan::{EntryBatch, EntryScan};
use crate::ssd::held::Tally;
use crate::ssd::index::Index as _;
use crate::ssd::scan::Merge;
use crate::ssd::writer::FileWriter;
use crate::sync::step_aside;
use crate::units::{FileNumber, mix64, narrow, range_of, to_usize};

/// Window of rows read at a time from each input: beside pulls that keep the device busy a read
/// waits for its turn, so it had better be long.
const WINDOW_BYTES_MAX: u64 = 512 << 10;
const WINDOW_BYTES_MIN: u64 = 128 << 10;
/// Buffers and their size for the output.
const OUTPUT_DEPTH: usize = 4;
const OUTPUT_BYTES: usize = 512 << 10;

/// Bytes of a tombstone in an output, rather too many.
const TOMBSTONE_BYTES: usize = 13;

/// Bytes of an output for each entry, rather too few than too many.
const MOVED_BYTES_ABOUT: u64 = 128;

/// Bytes of the window on each input, with a cache of so many.
pub(super) fn window_bytes(cache_bytes: u64) -> u64 {
    (cache_bytes / 1024).clamp(WINDOW_BYTES_MIN, WINDOW_BYTES_MAX)
}

/// One entry of an output file: the key and where its input copy is.
struct Moved {
    hash: u64,
    from: Location,
    table: u16,
    tombstone: bool,
}

// There is one per row of the outputs: it stays small.
const _: () = assert!(size_of::<Moved>() <= 24);

/// Which entries of a file the index points to, by entry number.
struct LiveSet {
    bits: Vec<u64>,
}

impl LiveSet {
    fn has(&self, entry: u32) -> bool {
        self.bits[entry as usize / 64] >> (entry % 64) & 1 == 1
    }
}

/// What a compaction is to rewrite.
#[derive(Debug)]
pub(super) struct Chosen {
    /// The inputs.
    pub(super) files: Vec<Arc<DataFile>>,
    /// Taken before any of their rows was looked at.
    pub(super) rank: u64,
    /// Their data directory.
    pub(super) directory: usize,
}

/// What a compaction knows of its inputs.
struct Inputs<'a> {
    chosen: &'a Chosen,
    /// Those with live entries: only they are read.
    files: Vec<Arc<DataFile>>,
    /// The same, as they are read.
    views: Vec<Arc<DataFile>>,
    live: Vec<LiveSet>,
    /// (least interval, least and greatest hash) of the other files that hold rows.
    outside: Vec<(u32, u64, u64)>,
    /// Younger tombstones are changes that somebody may still ask for.
    horizon: u32,
}

impl Compactor {
    /// Writes the live rows of the chosen files to new ones and retires the old. Gives the number of
    /// outputs, and their bytes.
    ///
    /// # Errors
    /// `NoSpace`, `Io`, `Corrupt`: nothing changed, or (a file that contradicts itself) its live rows
    /// stay where they are.
    pub(super) fn rewrite(
        &self,
        chosen: &Chosen,
        job: &mut CompactionJob<'_>,
    ) -> Result<(usize, u64)> {
        let inputs = self.inputs(chosen, job)?;
        let written = match inputs.files.is_empty() {
            true => (0, 0),
            false => self.merge(&inputs, job)?,
        };
        let numbers: Vec<FileNumber> = chosen.files.iter().map(|f| f.meta.number).collect();
        self.core.ssd.retire(&numbers);
        Ok(written)
    }

    fn inputs<'a>(&self, chosen: &'a Chosen, job: &CompactionJob<'_>) -> Result<Inputs<'a>> {
        // Nothing points into the others, and nothing will: no flush was between its rank and its
        // repoints when they were chosen.
        let chosen_files = chosen.files.iter();
        let files: Vec<_> = chosen_files
            .filter(|f| f.live_entries() > 0)
            .cloned()
            .collect();
        let view = |file: &Arc<DataFile>| match job.throttled(&file.file) {
            Some(throttled) => Arc::new(file.view(throttled)),
            None => Arc::clone(file),
        };
        let views: Vec<Arc<DataFile>> = files.iter().map(view).collect();
        let live = views
            .iter()
            .map(|f| self.live_set(f))
            .collect::<Result<_>>()?;
        // Files that come later hold no older copies. Tombstones alone hide nothing.
        let tombstones = files.iter().any(|f| f.meta.tombstones > 0);
        let inputs: BTreeSet<FileNumber> = chosen.files.iter().map(|f| f.meta.number).collect();
        let versions = self.core.ssd.versions();
        let horizon = versions.horizon();
        let outside = match tombstones {
            true => versions
                .current()
                .filter(|f| f.meta.rows > 0 && !inputs.contains(&f.meta.number))
                .map(|f| (f.meta.interval_min, f.meta.hash_min, f.meta.hash_max))
                .collect(),
            false => Vec::new(),
        };
        drop(versions);
        Ok(Inputs {
            chosen,
            files,
            views,
            live,
            outside,
            horizon,
        })
    }

    /// Between two pieces of work, unless somebody waits for the room that they make.
    fn let_others_go_first(&self) {
        if !self.limiter.is_hurried() {
            step_aside();
        }
    }

    fn live_set(&self, file: &Arc<DataFile>) -> Result<LiveSet> {
        let entries = to_usize(file.entries());
        let mut set = LiveSet {
            bits: vec![0; entries.div_ceil(64)],
        };
        let mut scan = EntryScan::new(file);
        let mut batch = EntryBatch::default();
        while scan.next(&mut batch)? {
            self.let_others_go_first();
            let hashes: Vec<u64> = batch.keys.iter().map(|k| mix64(*k)).collect();
            let shard_of = |h: &u64| range_of(*h, self.core.shards.len());
            let mut at = 0;
            for group in hashes.chunk_by(|a, b| shard_of(a) == shard_of(b)) {
                let guard = self.core.shards[shard_of(&group[0])].lock();
                let index = &guard.tables[batch.table as usize].index;
                for (hash, location) in group.iter().zip(&batch.locations[at..]) {
                    if index.get(*hash) == Some(*location) {
                        let entry = location.entry();
                        set.bits[entry as usize / 64] |= 1 << (entry % 64);
                    }
                }
                at += group.len();
            }
        }
        Ok(set)
    }

    fn merge(&self, inputs: &Inputs<'_>, job: &mut CompactionJob<'_>) -> Result<(usize, u64)> {
        let path = self.core.ssd.directories[inputs.chosen.directory].path();
        let mut queue = self
            .core
            .ssd
            .io
            .engine
            .queue(OUTPUT_DEPTH, OUTPUT_BYTES)
            .map_err(|e| Error::io("make a submission queue for", path, e))?;
        let mut outputs = Vec::new();
        let mut forgotten = Vec::new();
        let result = self.write_outputs(inputs, &mut *queue, &mut outputs, &mut forgotten, job);
        if let Err(e) = result {
            for (new, _) in outputs {
                self.core.ssd.unlink_new(&new);
            }
            return Err(e);
        }
        let bytes: u64 = outputs.iter().map(|(new, _)| new.finished.bytes).sum();
        let count = outputs.len();
        for (new, moved) in outputs {
            self.adopt(new, &moved, inputs.chosen.rank)?;
        }
        for gone in &forgotten {
            let mut guard = self.core.shards[range_of(gone.hash, self.core.shards.len())].lock();
            let files = self.core.ssd.file_slots();
            let Some(input) = files[gone.from.slot().index()].as_deref() else {
                continue;
            };
            let mut tally = Tally::of(input);
            guard.tables[usize::from(gone.table)]
                .index
                .forget(&files, gone.hash, gone.from, &mut tally);
        }
        if let Some(file) = inputs.files.iter().find(|f| f.live_entries() > 0) {
            // Only a file that contradicts itself gets here: it stays, and with it its rows.
            let what = "entries are live that a merge of the file does not give";
            return Err(Error::corrupt(&file.path, file.keys_offset, what));
        }
        Ok((count, bytes))
    }

    /// Writes the live rows of the inputs to new files.
    fn write_outputs(
        &self,
        inputs: &Inputs<'_>,
        queue: &mut dyn Queue,
        outputs: &mut Vec<(NewFile, Vec<Moved>)>,
        forgotten: &mut Vec<Moved>,
        job: &mut CompactionJob<'_>,
    ) -> Result<()> {
        let expected: u64 = inputs.files.iter().map(|f| f.live_bytes()).sum();
        let tables = tables_of(&inputs.files);
        let mut done = 0;
        let mut merging = Merging::new(self, inputs, &tables, job)?;
        while merging.more()? {
            let size = expected.saturating_sub(done).min(self.core.file_bytes) + 16384;
            let (number, mut file) =
                self.core
                    .ssd
                    .create_file(queue, inputs.chosen.directory, size, 0)?;
            let mut moved = own_pages(to_usize(size / MOVED_BYTES_ABOUT));
            merging.fill(&mut file, self.core.file_bytes, &mut moved, forgotten)?;
            if file.entries() == 0 {
                break;
            }
            let finished = file.finish()?;
            done += finished.bytes;
            merging.arrays += moved.len() * size_of::<Moved>();
            merging.progress(finished.bytes);
            merging.counted = 0;
            add(&self.written_bytes, finished.bytes);
            let directory = narrow(inputs.chosen.directory);
            outputs.push((
                NewFile {
                    finished,
                    number,
                    directory,
                },
                moved,
            ));
        }
        Ok(())
    }

    /// Makes an output current and repoints the keys that still point to the inputs.
    fn adopt(&self, new: NewFile, moved: &[Moved], rank: u64) -> Result<()> {
        let file = self.core.ssd.install(new, Some(rank))?;
        let shard_of = |m: &Moved| range_of(m.hash, self.core.shards.len());
        let mut entry = 0u32;
        for group in moved.chunk_by(|a, b| shard_of(a) == shard_of(b)) {
            for some in group.chunks(512) {
                self.let_others_go_first();
                let mut guard = self.core.shards[shard_of(&some[0])].lock();
                let files = self.core.ssd.file_slots();
                let mut tally = Tally::of(&file);
                for m in some {
                    let to = Location::new(file.slot, m.tombstone, entry);
                    guard.tables[usize::from(m.table)]
                        .index
                        .moved(&files, m.hash, m.from, to, &mut tally);
                    entry += 1;
                }
                point("adopt");
            }
        }
        Ok(())
    }
}

/// Entries between two moments at which others may have the processor.
const STEPS: usize = 512;

/// A merge of the inputs that fills one output after the other.
struct Merging<'a, 'j> {
    compactor: &'a Compactor,
    inputs: &'a Inputs<'a>,
    tables: &'a [u32],
    job: &'a mut CompactionJob<'j>,
    /// Bytes of the output at hand that the job knows of.
    counted: u64,
    /// Bytes that were read ahead for the table at hand that the job knows of.
    read_bytes: u64,
    held: HeldBytes<'a>,
    /// Memory that stays until the merge is over.
    arrays: usize,
    at: usize,
    merge: Option<Merge>,
    row: Vec<f32>,
    /// Tombstones of the current table, written after its rows.
    tombstones: Vec<(u64, u64, u32, Location)>,
    /// Entries that were stepped over, dead ones included.
    steps: usize,
}

impl<'a, 'j> Merging<'a, 'j> {
    fn new(
        compactor: &'a Compactor,
        inputs: &'a Inputs<'a>,
        tables: &'a [u32],
        job: &'a mut CompactionJob<'j>,
    ) -> Result<Merging<'a, 'j>> {
        let (merge, row, tombstones) = (None, Vec::new(), Vec::new());
        let live: usize = inputs.live.iter().map(|set| set.bits.len() * 8).sum();
        Ok(Merging {
            compactor,
            inputs,
            tables,
            job,
            counted: 0,
            read_bytes: 0,
            held: compactor.in_use.begin(),
            arrays: OUTPUT_DEPTH * OUTPUT_BYTES + live,
            at: 0,
            merge,
            row,
            tombstones,
            steps: 0,
        })
    }

    /// Counts a step; after every so many, others may have the processor.
    fn stepped(&mut self) {
        self.steps += 1;
        if self.steps.is_multiple_of(STEPS) {
            self.compactor.let_others_go_first();
        }
    }

    /// The output at hand has so many bytes.
    fn progress(&mut self, bytes: u64) {
        self.job.progress(&mut self.counted, bytes);
    }

    /// The arrays of the output at hand have so many entries.
    fn count(&mut self, entries: usize) {
        let windows = self.merge.as_ref().map_or(0, Merge::bytes);
        let each = size_of::<Moved>() + FileWriter::ENTRY_BYTES;
        self.held.set(self.arrays + windows + entries * each);
    }

    /// Whether an entry is left; stands at a live one if so.
    fn more(&mut self) -> Result<bool> {
        while self.at < self.tables.len() {
            if self.merge.is_none() {
                let table = self.tables[self.at];
                let window = window_bytes(self.compactor.core.options.cache_bytes);
                let engine = &*self.compactor.core.ssd.io.engine;
                // Two for each run.
                let mut merge = Merge::new(&self.inputs.views, table, window / 2)?;
                merge.read_ahead(engine, &self.inputs.files);
                self.read_bytes = 0;
                self.merge = Some(merge);
            }
            if self.next_live()?.is_some() || !self.tombstones.is_empty() {
                return Ok(true);
            }
            self.merge = None;
            self.at += 1;
        }
        Ok(false)
    }

    /// Steps to the next live entry of the current table.
    fn next_live(&mut self) -> Result<Option<usize>> {
        while let Some(merge) = &mut self.merge
            && let Some(index) = merge.newest()?
        {
            let cursor = merge.cursor(index);
            let number = cursor.file.meta.number;
            let live = self
                .inputs
                .files
                .iter()
                .position(|f| f.meta.number == number);
            let entry = cursor.entry();
            if let (Some(live), Some(entry)) = (live, entry)
                && self.inputs.live[live].has(entry.number)
            {
                return Ok(Some(index));
            }
            merge.step()?;
            self.stepped();
        }
        Ok(None)
    }

    fn fill(
        &mut self,
        file: &mut FileWriter<'_>,
        bytes_max: u64,
        moved: &mut Vec<Moved>,
        forgotten: &mut Vec<Moved>,
    ) -> Result<()> {
        let core = &self.compactor.core;
        while self.more()? {
            let id = self.tables[self.at];
            let width = core.all_tables()[id as usize].descriptor.row_f32s();
            self.row.resize(width, 0.0);
            let table = narrow(id);
            let filled = |file: &FileWriter<'_>, tombstones: usize| {
                file.bytes() + (tombstones * TOMBSTONE_BYTES) as u64 >= bytes_max
            };
            while !filled(file, self.tombstones.len()) {
                let Some(index) = self.next_live()? else {
                    break;
                };
                let Some(merge) = &mut self.merge else { break };
                let cursor = merge.cursor(index);
                let Some(entry) = cursor.entry() else { break };
                let tombstone = cursor.run.kind == RunKind::Tombstones;
                let from = Location::new(cursor.file.slot, tombstone, entry.number);
                if !tombstone {
                    merge.read_row(index, &mut self.row)?;
                    self.job.read(&mut self.read_bytes, merge.bytes_ahead());
                    file.row(id, entry.key, entry.interval, &self.row);
                    moved.push(Moved {
                        table,
                        hash: entry.hash,
                        from,
                        tombstone,
                    });
                } else if self.inputs.is_needless(entry.hash, entry.interval) {
                    forgotten.push(Moved {
                        table,
                        hash: entry.hash,
                        from,
                        tombstone,
                    });
                } else {
                    self.tombstones
                        .push((entry.hash, entry.key, entry.interval, from));
                }
                merge.step()?;
                self.stepped();
                let entries = moved.len() + self.tombstones.len();
                if entries.is_multiple_of(64) {
                    self.progress(file.bytes());
                    self.count(entries);
                }
            }
            for (hash, key, interval, from) in self.tombstones.drain(..) {
                file.tombstone(id, key, interval);
                moved.push(Moved {
                    table,
                    hash,
                    from,
                    tombstone: true,
                });
            }
            if file.bytes() >= bytes_max {
                return Ok(());
            }
        }
        Ok(())
    }
}

impl Inputs<'_> {
    /// Whether no file outside the inputs can hold an older copy of a removed key, and nobody asks any more
    /// what was removed then.
    fn is_needless(&self, hash: u64, interval: u32) -> bool {
        interval <= self.horizon
            && self
                .outside
                .iter()
                .all(|(oldest, low, high)| *oldest > interval || hash < *low || hash > *high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_on_an_input_is_a_part_of_the_cache_within_bounds() {
        let windows = [1 << 20, 200 << 20, 256 << 20, 1 << 30].map(window_bytes);
        assert_eq!(windows, [128 << 10, 200 << 10, 256 << 10, 512 << 10]);
    }

    #[test]
    fn an_entry_is_live_by_its_own_bit() {
        let set = LiveSet {
            bits: vec![1 << 3, 1 << 63 | 1],
        };
        let live: Vec<u32> = (0..128).filter(|entry| set.has(*entry)).collect();
        assert_eq!(live, [3, 64, 127]);
    }

    #[test]
    fn a_tombstone_goes_when_no_other_file_can_hold_an_older_copy() {
        let chosen = Chosen {
            files: Vec::new(),
            rank: 1,
            directory: 0,
        };
        let inputs = Inputs {
            chosen: &chosen,
            files: Vec::new(),
            views: Vec::new(),
            live: Vec::new(),
            outside: vec![(5, 100, 200), (8, 0, 120)],
            horizon: 8,
        };
        for (hash, interval, needless) in [
            (99, 7, true),
            (100, 7, false),
            (200, 7, false),
            (201, 7, true),
            (150, 5, false),
            (150, 4, true),
            (99, 8, false),
            (0, 8, false),
            (121, 4, true),
            (201, 8, true),
            (201, 9, false),
        ] {
            assert_eq!(
                inputs.is_needless(hash, interval),
                needless,
                "{hash} {interval}"
            );
        }
    }
}
