//! Which entries are in a file, and where?

use std::sync::Arc;

use super::data_file::{DataFile, Location};
use super::scan::KeyScan;
use crate::error::Result;
use crate::format::footer::RunKind;
use crate::units::narrow;

/// Some entries of one file.
#[derive(Debug, Default)]
pub struct EntryBatch {
    /// Table of these entries.
    pub table: u32,
    /// Keys.
    pub keys: Vec<u64>,
    /// Where each is.
    pub locations: Vec<Location>,
}

/// Walks all entries of a file, a few thousand at a time.
pub struct EntryScan {
    file: Arc<DataFile>,
    run: usize,
    scan: Option<KeyScan>,
}

impl EntryScan {
    /// Starts at the file's first entry.
    #[must_use]
    pub fn new(file: &Arc<DataFile>) -> EntryScan {
        EntryScan {
            file: Arc::clone(file),
            run: 0,
            scan: None,
        }
    }

    /// Replaces `batch` by the next entries; false at the end.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn next(&mut self, batch: &mut EntryBatch) -> Result<bool> {
        batch.keys.clear();
        batch.locations.clear();
        while let Some(run) = self.file.runs.get(self.run) {
            if self.scan.is_none() {
                let scan = KeyScan::new(&self.file, run.first_entry, run.entries, 1 << 18)?;
                self.scan = Some(scan);
            }
            let Some(scan) = &mut self.scan else { break };
            if !scan.step()? {
                self.scan = None;
                self.run += 1;
                continue;
            }
            batch.table = run.table;
            let tombstone = run.kind == RunKind::Tombstones;
            batch.keys.extend_from_slice(&scan.keys);
            let first = scan.first;
            batch.locations.extend((0..scan.keys.len() as u64).map(|i| {
                let entry = narrow(first + i);
                Location::new(self.file.slot, tombstone, entry)
            }));
            return Ok(true);
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests;
