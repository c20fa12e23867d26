//! How does a store go back to an older checkpoint?
//!
//! Invariants:
//! - What follows is a history with a timeline uuid of its own; checkpoint ids and file numbers go on,
//!   never again.
//! - Until CURRENT is durable, nothing has happened.

use super::Ssd;
use super::edits::{self, Start};
use super::tables::TableState;
use super::version::Versions;
use crate::error::{ArgumentError, Result};
use crate::format::manifest::{CheckpointMeta, FileMeta, NOT_REMOVED};
use crate::units::CheckpointId;

impl Ssd {
    pub(super) fn retained(&self, id: CheckpointId) -> Result<CheckpointMeta> {
        let versions = self.versions();
        let retained = versions.checkpoints.iter().map(|c| c.id).collect();
        let found = versions.checkpoints.iter().find(|c| c.id == id).cloned();
        found.ok_or_else(|| ArgumentError::UnknownCheckpoint { id, retained }.into())
    }

    /// The tables in a retained checkpoint's view, by number.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown checkpoint.
    pub fn tables_at(&self, id: CheckpointId) -> Result<Vec<TableState>> {
        self.retained(id)?;
        Ok(self.versions().tables.view(id))
    }

    /// The tables as they are after a rollback, by number. `now`: as they are by now, those included that
    /// no checkpoint knows.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown checkpoint.
    pub fn tables_rolled_back(
        &self,
        id: CheckpointId,
        now: &[TableState],
    ) -> Result<Vec<TableState>> {
        self.retained(id)?;
        Ok(self.versions().tables.going_on_from(id, now).now())
    }

    /// Makes a retained checkpoint the last one, durably. Later checkpoints are forgotten; the
    /// store must be opened anew afterwards. `tables`: all of them by number, those included that no
    /// checkpoint knows.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown checkpoint, `Io`, `NoSpace`, `Poisoned`.
    pub fn rollback(
        &self,
        id: CheckpointId,
        timeline: [u8; 16],
        tables: &[TableState],
    ) -> Result<()> {
        self.check_writable()?;
        let checkpoint = self.retained(id)?;
        let mut rolled = Versions::default();
        {
            let versions = self.versions();
            rolled.checkpoints = versions
                .checkpoints
                .iter()
                .filter(|c| c.id <= id)
                .cloned()
                .collect();
            rolled.tables = versions.tables.going_on_from(id, tables);
            rolled.hyper = versions.hyper.clone();
            rolled.cursors = versions.cursors.clone();
            for state in versions.files.values().filter(|s| s.meta.added <= id) {
                let removed = if state.meta.removed <= id {
                    state.meta.removed
                } else {
                    NOT_REMOVED
                };
                let meta = FileMeta {
                    removed,
                    ..state.meta
                };
                rolled.insert_closed(meta, None);
            }
        }
        let mut manifest = self.manifest();
        self.check_writable()?;
        let mut current = manifest.current;
        current.timeline = timeline;
        current.checkpoint_id = id;
        current.step = checkpoint.step;
        current.next_checkpoint_id = self.versions().next_checkpoint;
        current.file_number_limit = self.versions().number_limit;
        // The index snapshot may know files that this version does not have; it is a cache, and made anew.
        let start = Start {
            timeline,
            parent: id,
            tables: &rolled.tables,
            checkpoints: &rolled.checkpoints,
            hyper: &rolled.hyper,
            cursors: &rolled.cursors,
            snapshot: &[],
        };
        let commit = edits::snapshot(&rolled, &start);
        self.write_edits(&mut manifest, &mut current, &commit, true)?;
        self.write_current(&mut manifest, current)?;
        self.poison(String::from("the store was rolled back; open it anew"));
        Ok(())
    }
}
