//! Is a part of the index snapshot what the key blocks of its files say?

use std::ops::RangeInclusive;
use std::path::Path;

use crate::error::Result;
use crate::format::index_snapshot::SnapshotEntry;
use crate::io::Directory;
use crate::ssd::edits::SnapshotPart;
use crate::ssd::index_snapshot::SnapshotScan;
use crate::units::{CheckpointId, FileNumber, mix64};

/// Walks a part entry by entry; all of it is verified at its end.
pub(super) struct Walk {
    scan: SnapshotScan,
    at: usize,
}

impl Walk {
    /// Opens a part in its directory, one of so many.
    pub fn open(
        place: &dyn Directory,
        store: &[u8; 16],
        part: SnapshotPart,
        directories: usize,
    ) -> Result<Walk> {
        let scan = SnapshotScan::open(place, store, part, directories)?;
        Ok(Walk { scan, at: 0 })
    }

    /// The hashes that it may have.
    pub fn range(&self) -> RangeInclusive<u64> {
        self.scan.range.clone()
    }

    /// Its file's number.
    pub fn number(&self) -> FileNumber {
        self.scan.reference.number
    }

    /// The checkpoint whose version it lists.
    pub fn checkpoint(&self) -> CheckpointId {
        self.scan.checkpoint
    }

    /// Numbers of the files of that version.
    pub fn covered(&self) -> &[FileNumber] {
        &self.scan.covered
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.scan.path
    }

    /// The entry it stands at: its place in the order, and itself.
    pub fn peek(&mut self) -> Result<Option<((u32, u64), SnapshotEntry)>> {
        while self.at == self.scan.entries.len() {
            self.at = 0;
            if !self.scan.step()? {
                return Ok(None);
            }
        }
        let found = self.scan.entries.get(self.at).copied();
        Ok(found.map(|entry| ((self.scan.table, mix64(entry.key)), entry)))
    }

    pub fn step(&mut self) {
        self.at += 1;
    }
}
