//! How much does each data directory hold? Known without a look at every file.
//!
//! Invariants:
//! - Files and bytes change with the versions, under their lock, and are exact.
//! - Live bytes change with the index, under a shard's lock. They are counted per entry in 2^-16ths
//!   of a byte, rounded down: the sum is never above that of the files' own
//!   [`DataFile::live_bytes`] by more than a byte a file, nor below it by more than 2^-16 an entry.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::data_file::{DataFile, FRACTION_BITS, LiveSum};
use crate::io::DiskFile;
use crate::units::{FileNumber, saturate};

/// Bytes on disk by why they are there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Files of the current version.
    pub current_bytes: u64,
    /// The part of them that live rows stand for.
    pub live_bytes: u64,
    /// Files that only retained checkpoints need (or nothing, until they are unlinked).
    pub pinned_bytes: u64,
    /// Number of current files.
    pub files: u64,
}

impl Usage {
    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Usage) -> Usage {
        Usage {
            current_bytes: self.current_bytes.saturating_add(other.current_bytes),
            live_bytes: self.live_bytes.saturating_add(other.live_bytes),
            pinned_bytes: self.pinned_bytes.saturating_add(other.pinned_bytes),
            files: self.files + other.files,
        }
    }
}

/// A data directory.
#[derive(Debug, Default)]
pub struct Held {
    /// Files of the current version, by number.
    pub current: BTreeMap<FileNumber, Arc<DataFile>>,
    current_bytes: u128,
    retired_bytes: u128,
    buffered: u64,
    live: LiveSum,
}

fn clamp(bytes: u128) -> u64 {
    saturate(bytes)
}

impl Held {
    /// A file is current from here on.
    pub fn enter(&mut self, file: Arc<DataFile>) {
        let known = file.counted_in.set(Arc::clone(&self.live));
        assert!(known.is_ok(), "a file becomes current once");
        self.current_bytes += u128::from(file.meta.bytes);
        self.buffered += u64::from(!file.file.is_direct());
        self.current.insert(file.meta.number, file);
    }

    /// A file, none of whose entries is live, is current no more.
    pub fn leave(&mut self, file: &DataFile) {
        self.current_bytes -= u128::from(file.meta.bytes);
        self.buffered -= u64::from(!file.file.is_direct());
        self.current.remove(&file.meta.number);
    }

    /// A file that is not current is known.
    pub fn insert_closed(&mut self, bytes: u64) {
        self.retired_bytes += u128::from(bytes);
    }

    /// One that is not current is known no more.
    pub fn forget(&mut self, bytes: u64) {
        self.retired_bytes -= u128::from(bytes);
    }

    /// Whether every current file is read past the page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.buffered == 0
    }

    /// Bytes by why they are there.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let live = self.live.load(Ordering::Relaxed);
        Usage {
            current_bytes: clamp(self.current_bytes),
            live_bytes: live >> FRACTION_BITS,
            pinned_bytes: clamp(self.retired_bytes),
            files: self.current.len() as u64,
        }
    }

    /// Whether everything counted equals a recount, while no index changes.
    #[must_use]
    pub fn equals_a_recount(&self) -> bool {
        let files = || self.current.values();
        let live = files().fold(0, |sum: u64, f| sum.wrapping_add(f.live_weight()));
        let bytes: u128 = files().map(|f| u128::from(f.meta.bytes)).sum();
        let buffered = files().filter(|f| !f.file.is_direct()).count() as u64;
        live == self.live.load(Ordering::Relaxed)
            && bytes == self.current_bytes
            && buffered == self.buffered
    }
}

/// Sums up what index entries that come to point into a file, or no longer into another, change of a
/// directory's live bytes; added when dropped.
#[derive(Debug)]
pub struct Tally<'a> {
    file: &'a DataFile,
    sum: u64,
}

impl<'a> Tally<'a> {
    /// For entries of this file, mostly, and of others in its directory.
    #[must_use]
    pub fn of(file: &'a DataFile) -> Tally<'a> {
        Tally { file, sum: 0 }
    }

    /// An entry of a file is pointed to.
    pub fn add_live(&mut self, file: &DataFile, entry: u32) {
        let weight = file.add_live(entry);
        self.count(file, weight);
    }

    /// An entry of a file is pointed to no more.
    pub fn sub_live(&mut self, file: &DataFile, entry: u32) {
        let weight = file.sub_live(entry);
        self.count(file, weight.wrapping_neg());
    }

    fn count(&mut self, file: &DataFile, weight: u64) {
        if file.meta.directory == self.file.meta.directory {
            self.sum = self.sum.wrapping_add(weight);
        } else {
            file.count_live(weight);
        }
    }
}

impl Drop for Tally<'_> {
    fn drop(&mut self) {
        self.file.count_live(self.sum);
    }
}

#[cfg(test)]
mod tests;
