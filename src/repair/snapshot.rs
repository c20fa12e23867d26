//! Which parts of the index snapshot can be read, and which of them does the repaired store keep?
//!
//! - A part is kept where every file of its data directory that the checkpoint needs is what it was. Of
//!   a file that was written anew, or is gone, keys may have lost their newest copy: an older one counts
//!   now, and the part does not list it.
//! - A part is a cache: one that is damaged, or can't be linked, is left out, and the next open reads
//!   the key blocks of its directory alone.

use std::collections::BTreeSet;

use super::build::Build;
use crate::error::Result;
use crate::io::Directory;
use crate::ssd::edits::{Replay, SnapshotPart};
use crate::ssd::export::link;
use crate::ssd::index_snapshot::SnapshotScan;
use crate::units::{CheckpointId, FileNumber};

impl Build<'_> {
    /// A part of the index snapshot of the damaged store, if it can be read.
    pub(super) fn open_snapshot_part(&self, part: &SnapshotPart) -> Option<SnapshotScan> {
        if !part.fits(self.parts.len()) {
            return None;
        }
        let place = match part.home(self.parts.len()) {
            Some(home) => self.parts.get(home)?.source.as_ref()?,
            None => &self.root,
        };
        SnapshotScan::open(&**place, &self.store, *part, self.parts.len()).ok()
    }

    /// Links the parts that hold for a checkpoint of the repaired store; gives them. `damaged`: numbers
    /// of files that an inspection found damaged, parts among them; `bad`: those that the checkpoint
    /// needs and that are not what they were.
    pub(super) fn keep_snapshot(
        &self,
        replay: &Replay,
        damaged: &BTreeSet<FileNumber>,
        bad: &BTreeSet<FileNumber>,
        checkpoint: CheckpointId,
    ) -> Result<Vec<SnapshotPart>> {
        let mut kept = Vec::new();
        for part in &replay.snapshot {
            let of_part = |number: &FileNumber| {
                let file = replay.files.get(number);
                file.is_some_and(|f| part.directory.is_none_or(|d| d == f.directory))
            };
            if damaged.contains(&part.number) || bad.iter().any(of_part) {
                continue;
            }
            // One of a later checkpoint does not list what was live at this one.
            let opened = self.open_snapshot_part(part);
            if opened.is_none_or(|scan| scan.checkpoint > checkpoint) {
                continue;
            }
            let (source, target): (_, &dyn Directory) = match part.home(self.parts.len()) {
                Some(home) => match &self.parts[home].source {
                    Some(source) => (source, &**self.parts[home].place()?),
                    None => continue,
                },
                None => (&self.root, self.place()?),
            };
            if link(&**source, target, &part.file_name()).is_ok() {
                kept.push(*part);
            }
        }
        Ok(kept)
    }
}
