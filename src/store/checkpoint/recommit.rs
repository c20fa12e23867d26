//! How do retained checkpoints change without a new one?

use super::{Checkpointer, refresh_snapshot};
use crate::error::Result;
use crate::ssd::commit::Captured;
use crate::units::CheckpointId;

impl Checkpointer {
    /// Whether there is a last checkpoint and the current version holds its rows.
    pub fn is_settled(&self) -> bool {
        !self.core.changes.any() && self.core.ssd.last_step().is_some()
    }

    /// Makes the current files those of the last checkpoint, if they hold its rows; false if not.
    /// With `snapshot`, the index snapshot follows, if one is due.
    ///
    /// # Errors
    /// `Locked`, `NoSpace`, `Io`, `Poisoned`.
    pub fn recommit_last(&self, snapshot: bool) -> Result<bool> {
        let _role = self.wait_idle();
        let captured = {
            // No push is under way, and no flush: what is seen is seen at once.
            let _whole = self.core.gate_alone();
            let _writer = self.flusher.lock_writer();
            if !self.is_settled() {
                return Ok(false);
            }
            self.core.ssd.capture()
        };
        self.core.ssd.recommit(&captured)?;
        if snapshot && let Some(id) = self.core.ssd.last_id() {
            self.wait_snapshots();
            let writers = self.snapshot_writers();
            refresh_snapshot(&self.core, &Captured { id, ..captured }, writers);
        }
        Ok(true)
    }

    /// A reader of this name has everything up to a retained checkpoint, or is gone. No checkpoint is made
    /// meanwhile.
    ///
    /// # Errors
    /// `InvalidArgument`, `NoSpace`, `Io`, `Poisoned`.
    pub fn set_cursor(&self, name: &str, checkpoint: Option<CheckpointId>) -> Result<()> {
        let _role = self.wait_idle();
        self.core.ssd.set_cursor(name, checkpoint)
    }

    /// Drops retained checkpoints; gives those that readers hold, and the bytes that were unlinked. No
    /// checkpoint is made meanwhile.
    ///
    /// # Errors
    /// `InvalidArgument`, `NoSpace`, `Io`, `Poisoned`.
    pub fn forget(&self, ids: &[CheckpointId]) -> Result<(Vec<CheckpointId>, u64)> {
        let _role = self.wait_idle();
        // Not what checkpoints have left behind.
        self.core.ssd.collect_garbage();
        let before = self.core.row_bytes_on_disk();
        let held = self.core.ssd.forget(ids)?;
        Ok((held, before.saturating_sub(self.core.row_bytes_on_disk())))
    }
}
