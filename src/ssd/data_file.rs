//! What is an open parameter file, and where in it is a row?
//!
//! Invariants:
//! - `live` of a current file equals the number of index entries that point into it.
//! - Live bytes of a directory are counted per entry in 2^-16ths of a byte, rounded down.

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

/// What one entry of a file adds to its directory's live bytes.
#[must_use]
pub fn entry_weight(bytes: u64, entries: u64) -> u64 {
    let wide = u128::from(bytes) << FRACTION_BITS;
    saturate(wide / u128::from(entries.max(1)))
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
    /// Entries that the index points to.
    pub live: AtomicU64,
    /// What each of them adds to the live bytes of the data directory.
    pub entry_weight: u64,
    /// Where these are summed, once the file is current.
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
            runs: footer.runs,
            keys_offset: footer.keys_offset,
            identity,
            path,
            file,
            live: AtomicU64::new(0),
            entry_weight: entry_weight(meta.bytes, meta.rows.saturating_add(meta.tombstones)),
            counted_in: OnceLock::new(),
        }
    }

    /// The same file, read through another handle, with a counter of its own.
    #[must_use]
    pub fn view(&self, file: Arc<dyn DiskFile>) -> DataFile {
        DataFile {
            runs: self.runs.clone(),
            path: self.path.clone(),
            file: Handle::fixed(file, self.file.is_synced()),
            live: AtomicU64::new(self.live_entries()),
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
        self.live.load(Ordering::Relaxed)
    }

    /// The share of the file's bytes that its live entries stand for.
    #[must_use]
    pub fn live_bytes(&self) -> u64 {
        let entries = self.entries().max(1);
        let wide = u128::from(self.meta.bytes) * u128::from(self.live_entries().min(entries));
        saturate(wide / u128::from(entries))
    }

    /// The run that holds an entry.
    #[must_use]
    pub fn run_of(&self, entry: u32) -> Option<&Run> {
        let entry = u64::from(entry);
        self.runs
            .iter()
            .find(|r| entry >= r.first_entry && entry - r.first_entry < r.entries)
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

    /// One more entry is pointed to; [`super::held::Tally`] counts it for the directory.
    pub fn add_live(&self) {
        self.add(1);
    }

    /// So many more entries are pointed to.
    pub fn add_live_many(&self, n: u64) {
        self.add(n);
        self.count_live(self.entry_weight.wrapping_mul(n));
    }

    /// So many entries less are pointed to.
    pub fn sub_live_many(&self, n: u64) {
        self.subtract(n);
        self.count_live(self.entry_weight.wrapping_mul(n).wrapping_neg());
    }

    fn add(&self, n: u64) {
        let before = self.live.fetch_add(n, Ordering::Relaxed);
        assert!(
            before + n <= self.entries(),
            "more live entries than entries in {:?}",
            self.path
        );
    }

    /// One entry less is pointed to; [`super::held::Tally`] counts it for the directory.
    pub fn sub_live(&self) {
        self.subtract(1);
    }

    fn subtract(&self, n: u64) {
        let before = self.live.fetch_sub(n, Ordering::Relaxed);
        assert!(
            before >= n,
            "a stale counter went below zero in {:?}",
            self.path
        );
    }
}

#[cfg(test)]
mod tests;
