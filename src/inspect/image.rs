//! Is the index image what the key blocks of its files say?

use std::path::Path;

use crate::error::Result;
use crate::format::image::ImageEntry;
use crate::io::Directory;
use crate::ssd::edits::ImageRef;
use crate::ssd::image::ImageScan;
use crate::units::{CheckpointId, mix64};

/// Walks an image entry by entry; all of it is verified at its end.
pub(super) struct Walk {
    scan: ImageScan,
    at: usize,
}

impl Walk {
    pub fn open(root: &dyn Directory, store: &[u8; 16], reference: ImageRef) -> Result<Walk> {
        let scan = ImageScan::open(root, store, reference)?;
        Ok(Walk { scan, at: 0 })
    }

    /// The checkpoint whose version it lists.
    pub fn checkpoint(&self) -> CheckpointId {
        self.scan.checkpoint
    }

    /// Numbers of the files of that version.
    pub fn covered(&self) -> &[u64] {
        &self.scan.covered
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.scan.path
    }

    /// The entry it stands at: its place in the order, and itself.
    pub fn peek(&mut self) -> Result<Option<((u32, u64), ImageEntry)>> {
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
