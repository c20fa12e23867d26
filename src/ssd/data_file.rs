//! What is an open parameter file, and where in it is a row?
//!
//! Invariants:
//! - The live entries of a run of a current file are those that an index points to, no more and no
//!   fewer.
//! - An entry weighs its record, which a tombstone has none of, and an equal part of what is in its file
//!   beside the records. A directory sums weights up in 2^-16ths of a byte, rounded down.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use super::open_files::Handle;
use crate::format::FileIdentity;
use crate::format::footer::{Footer, Run};
use crate::format::manifest::FileMeta;
use crate::io::DiskFile;
use crate::sync::atomic::AtomicU64;
use crate::units::{FileSlot, narrow, saturate, to_usize};

/// Bits of a byte's fraction.
pub(super) const FRACTION_BITS: u32 = 16;

/// Live bytes of a data directory's current files, with a fraction.
pub type LiveSum = Arc<AtomicU64>;

/// What is known of a run beside what the footer says.
#[derive(Debug)]
pub struct RunState {
    /// Entries that the index points to.
    live: AtomicU64,
    /// What each of them adds to the live bytes of the data directory.
    weight: u64,
}

impl RunState {
    /// By run, of a file with no live entries.
    #[must_use]
    pub fn of_runs(meta: &FileMeta, runs: &[Run]) -> Vec<RunState> {
        let beside = u128::from(beside_records(meta, runs)) << FRACTION_BITS;
        let entries = meta.rows.saturating_add(meta.tombstones).max(1);
        let beside = saturate(beside / u128::from(entries));
        let state = |run: &Run| RunState {
            live: AtomicU64::new(0),
            weight: (u64::from(run.stride) << FRACTION_BITS).saturating_add(beside),
        };
        runs.iter().map(state).collect()
    }

    fn live(&self) -> u64 {
        self.live.load(Ordering::Relaxed)
    }
}

/// Bytes of a file that are none of its records.
fn beside_records(meta: &FileMeta, runs: &[Run]) -> u64 {
    let records = runs
        .iter()
        .map(|run| u64::from(run.stride).saturating_mul(run.entries));
    meta.bytes
        .saturating_sub(records.fold(0, u64::saturating_add))
}

/// The tables that these files have rows or tombstones of, rising.
#[must_use]
pub fn tables_of(files: &[Arc<DataFile>]) -> Vec<u32> {
    let runs = files.iter().flat_map(|file| &file.runs);
    let mut tables: Vec<u32> = runs.map(|run| run.table).collect();
    tables.sort_unstable();
    tables.dedup();
    tables
}

/// Where a key's newest flushed copy is: file slot, tombstone bit, entry number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location(pub u64);

const TOMBSTONE_BIT: u64 = 1 << 39;

/// Most files of the current version.
pub const SLOTS_MAX: usize = 1 << 24;

impl Location {
    /// Packs a location.
    #[must_use]
    pub fn new(slot: FileSlot, tombstone: bool, entry: u32) -> Location {
        assert!(slot.index() < SLOTS_MAX, "file slots stay below 2^24");
        let bit = if tombstone { TOMBSTONE_BIT } else { 0 };
        Location((slot.index() as u64) << 40 | bit | u64::from(entry))
    }

    /// The file slot.
    #[must_use]
    pub fn slot(self) -> FileSlot {
        FileSlot::new(to_usize(self.0 >> 40))
    }

    /// Whether the entry says that the key was removed.
    #[must_use]
    pub fn is_tombstone(self) -> bool {
        self.0 & TOMBSTONE_BIT != 0
    }

    /// The entry number inside the file.
    #[must_use]
    pub fn entry(self) -> u32 {
        narrow(self.0 & 0xffff_ffff)
    }
}

/// An immutable parameter file that is open for reading.
#[derive(Debug)]
pub struct DataFile {
    /// Its place in the index' locations.
    pub slot: FileSlot,
    /// What the manifest says of it (`added` and `removed` are kept in [`super::version::FileState`]).
    pub meta: FileMeta,
    /// Runs of entries, from the footer.
    pub runs: Vec<Run>,
    /// Offset of the key blocks.
    pub keys_offset: u64,
    /// Seeds its checksums.
    pub identity: FileIdentity,
    /// Where it is.
    pub path: PathBuf,
    /// The file, open or not.
    pub file: Arc<Handle>,
    /// By run.
    pub states: Vec<RunState>,
    /// Where the weights of live entries are summed, once the file is current.
    pub counted_in: OnceLock<LiveSum>,
}

impl DataFile {
    /// Opens the view of a file whose footer was decoded, and which stays open.
    #[must_use]
    pub fn new(
        slot: FileSlot,
        meta: FileMeta,
        footer: Footer,
        identity: FileIdentity,
        path: PathBuf,
        file: Arc<dyn DiskFile>,
        synced: bool,
    ) -> DataFile {
        let file = Handle::fixed(file, synced);
        DataFile::of(slot, meta, footer, identity, path, file)
    }

    /// The same by a handle, which may close the file and open it again.
    #[must_use]
    pub fn of(
        slot: FileSlot,
        meta: FileMeta,
        footer: Footer,
        identity: FileIdentity,
        path: PathBuf,
        file: Arc<Handle>,
    ) -> DataFile {
        DataFile {
            slot,
            meta,
            states: RunState::of_runs(&meta, &footer.runs),
            runs: footer.runs,
            keys_offset: footer.keys_offset,
            identity,
            path,
            file,
            counted_in: OnceLock::new(),
        }
    }

    /// The same file, read through another handle, with counters of its own.
    #[must_use]
    pub fn view(&self, file: Arc<dyn DiskFile>) -> DataFile {
        let copy = |state: &RunState| RunState {
            live: AtomicU64::new(state.live()),
            weight: state.weight,
        };
        DataFile {
            runs: self.runs.clone(),
            path: self.path.clone(),
            file: Handle::fixed(file, self.file.is_synced()),
            states: self.states.iter().map(copy).collect(),
            counted_in: OnceLock::new(),
            ..*self
        }
    }

    /// Entries: rows and tombstones.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.meta.rows + self.meta.tombstones
    }

    /// Entries with no newer copy.
    #[must_use]
    pub fn live_entries(&self) -> u64 {
        self.states.iter().map(RunState::live).sum()
    }

    /// The file's bytes that its live entries stand for: their records, and of the rest as great a
    /// share as they are of the entries.
    #[must_use]
    pub fn live_bytes(&self) -> u64 {
        let runs = self.runs.iter().zip(&self.states);
        let records: u128 = runs
            .map(|(run, state)| u128::from(run.stride) * u128::from(state.live()))
            .sum();
        let beside = u128::from(beside_records(&self.meta, &self.runs));
        let share = beside * u128::from(self.live_entries()) / u128::from(self.entries().max(1));
        saturate(records + share)
    }

    /// What the live entries add to the live bytes of the data directory.
    #[must_use]
    pub fn live_weight(&self) -> u64 {
        let weight = |state: &RunState| state.live().wrapping_mul(state.weight);
        self.states.iter().map(weight).fold(0, u64::wrapping_add)
    }

    /// The place of the run that holds an entry.
    fn place_of(&self, entry: u32) -> Option<usize> {
        let entry = u64::from(entry);
        let after = self.runs.partition_point(|run| run.first_entry <= entry);
        let place = after.checked_sub(1)?;
        (entry - self.runs[place].first_entry < self.runs[place].entries).then_some(place)
    }

    /// The run that holds an entry.
    #[must_use]
    pub fn run_of(&self, entry: u32) -> Option<&Run> {
        Some(&self.runs[self.place_of(entry)?])
    }

    /// Byte offset and stride of a row's record; `None` for a tombstone or no entry.
    #[must_use]
    pub fn record(&self, entry: u32) -> Option<(u64, u32)> {
        let run = self.run_of(entry)?;
        Some((run.record_offset(u64::from(entry))?, run.stride))
    }

    /// Adds to the live bytes of the directory, or takes from them.
    pub fn count_live(&self, weight: u64) {
        if let Some(sum) = self.counted_in.get() {
            sum.fetch_add(weight, Ordering::Relaxed);
        }
    }

    /// One more entry is pointed to; [`super::held::Tally`] counts its weight, returned, for the
    /// directory.
    #[must_use]
    pub fn add_live(&self, entry: u32) -> u64 {
        self.add(self.counted_place(entry), 1)
    }

    /// So many more entries of a run are pointed to.
    pub fn add_live_many(&self, run: usize, n: u64) {
        self.count_live(self.add(run, n));
    }

    /// One entry less is pointed to; [`super::held::Tally`] counts off its weight, returned, for the
    /// directory.
    #[must_use]
    pub fn sub_live(&self, entry: u32) -> u64 {
        self.subtract(self.counted_place(entry), 1)
    }

    fn counted_place(&self, entry: u32) -> usize {
        match self.place_of(entry) {
            Some(place) => place,
            None => unreachable!("{:?} has no entry {entry}", self.path),
        }
    }

    fn add(&self, run: usize, n: u64) -> u64 {
        let state = &self.states[run];
        let before = state.live.fetch_add(n, Ordering::Relaxed);
        assert!(
            before + n <= self.runs[run].entries,
            "more live entries than entries in {:?}",
            self.path
        );
        state.weight.wrapping_mul(n)
    }

    fn subtract(&self, run: usize, n: u64) -> u64 {
        let state = &self.states[run];
        let before = state.live.fetch_sub(n, Ordering::Relaxed);
        assert!(
            before >= n,
            "a stale counter went below zero in {:?}",
            self.path
        );
        state.weight.wrapping_mul(n)
    }
}

#[cfg(test)]
mod tests;
