//! Which entries does a file offer to an index that is being rebuilt?

use std::sync::Arc;

use super::data_file::{DataFile, Location};
use super::scan::KeyScan;
use crate::error::Result;
use crate::format::footer::RunKind;

/// Entries of one file that recovery offers to the index.
#[derive(Debug, Default)]
pub struct Offer {
    /// Table of these entries.
    pub table: u32,
    /// Keys.
    pub keys: Vec<u64>,
    /// Where each is.
    pub locations: Vec<Location>,
}

/// Walks all entries of a file, a few thousand at a time.
pub struct Offers {
    file: Arc<DataFile>,
    run: usize,
    scan: Option<KeyScan>,
}

impl Offers {
    /// Starts at the file's first entry.
    #[must_use]
    pub fn new(file: &Arc<DataFile>) -> Offers {
        Offers {
            file: Arc::clone(file),
            run: 0,
            scan: None,
        }
    }

    /// Replaces `offer` by the next entries; false at the end.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn next(&mut self, offer: &mut Offer) -> Result<bool> {
        offer.keys.clear();
        offer.locations.clear();
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
            offer.table = run.table;
            let tombstone = run.kind == RunKind::Tombstones;
            offer.keys.extend_from_slice(&scan.keys);
            let first = scan.first;
            offer.locations.extend((0..scan.keys.len() as u64).map(|i| {
                let entry = u32::try_from(first + i).unwrap_or(u32::MAX);
                Location::new(self.file.slot, tombstone, entry)
            }));
            return Ok(true);
        }
        Ok(false)
    }
}
