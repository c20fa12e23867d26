//! How does the history on disk change where no checkpoint is made?
//!
//! Three changes: the last checkpoint gets other files with the same rows (a compaction that becomes
//! durable, docs/decisions/0014), old checkpoints are forgotten, and a reader that follows the store says
//! how far it has come. All write a snapshot of what is there then into a new manifest.
//!
//! Invariants:
//! - The last checkpoint keeps its id, step, time, hyperparameters and meta file, whatever happens.
//! - A checkpoint that a reader holds keeps its files: its meta file is locked alone before the
//!   change, until what it no longer needs is unlinked.
//! - Until CURRENT is durable nothing in memory has changed and nothing is unlinked.

use super::Ssd;
use super::commit::Captured;
use super::edits::{self, Start};
use super::lock::lock;
use super::version::{Cursor, Versions};
use crate::error::{ArgumentError, Error, Result};
use crate::format::manifest::{CheckpointMeta, FileMeta, NOT_REMOVED};
use crate::format::{FileKind, file_name};
use crate::io::{LockGuard, LockKind};
use crate::units::CheckpointId;

/// What is to be changed.
#[derive(Debug, Default)]
struct Change<'a> {
    /// The last checkpoint gets the files of this version.
    captured: Option<&'a Captured>,
    /// These are forgotten.
    forget: &'a [CheckpointId],
    /// This reader has come that far, or is gone.
    cursor: Option<(&'a str, Option<Cursor>)>,
}

impl Change<'_> {
    /// The checkpoints that a file belongs to once the captured version is that of the last checkpoint.
    fn recommitted(&self, meta: &FileMeta, last: CheckpointId) -> FileMeta {
        let mut meta = *meta;
        if let Some(captured) = self.captured {
            for end in [&mut meta.added, &mut meta.removed] {
                if *end > last && *end <= captured.id {
                    *end = last;
                }
            }
        }
        meta
    }
}

impl Ssd {
    /// The lock on a checkpoint that no reader has beside.
    fn lock_alone(&self, checkpoint: &CheckpointMeta) -> Result<Box<dyn LockGuard>> {
        let name = file_name(FileKind::Meta, checkpoint.meta_number);
        lock(&*self.root, &name, LockKind::Exclusive, false)
    }

    fn last(&self) -> Option<CheckpointMeta> {
        self.versions().checkpoints.last().copied()
    }

    /// The id of the last durable checkpoint.
    #[must_use]
    pub fn last_id(&self) -> Option<CheckpointId> {
        self.last().map(|c| c.id)
    }

    /// Whether the current version has other files than the last checkpoint.
    #[must_use]
    pub fn is_ahead(&self) -> bool {
        let versions = self.versions();
        let last = versions
            .checkpoints
            .last()
            .map_or(CheckpointId::NONE, |c| c.id);
        let younger = |id: CheckpointId| id > last && id < NOT_REMOVED;
        let mut metas = versions.files.values().map(|s| &s.meta);
        metas.any(|m| younger(m.added) || younger(m.removed))
    }

    /// Fails with `Locked` while a reader holds the last checkpoint.
    ///
    /// # Errors
    /// `Locked`, `Io`.
    pub fn check_last_unread(&self) -> Result<()> {
        match self.last() {
            Some(last) => self.lock_alone(&last).map(drop),
            None => Ok(()),
        }
    }

    /// Bytes of the manifest's last snapshot.
    #[must_use]
    pub fn snapshot_bytes(&self) -> u64 {
        let manifest = self.manifest();
        manifest.snapshot_bytes
    }

    /// Makes the files of a captured version those of the last checkpoint, durably. Its rows must
    /// be the same. Nobody makes a checkpoint meanwhile.
    ///
    /// # Errors
    /// `Locked` when a reader holds the last checkpoint; `NoSpace`, `Io`, `Poisoned`. The last
    /// checkpoint is in force as it was.
    pub fn recommit(&self, captured: &Captured) -> Result<()> {
        let result = self.recommit_inner(captured);
        if result.is_err() {
            self.abandon();
        }
        result
    }

    fn recommit_inner(&self, captured: &Captured) -> Result<()> {
        self.check_writable()?;
        let Some(last) = self.last() else {
            let what = String::from("there is no checkpoint whose files could be changed");
            return Err(ArgumentError::Other { what }.into());
        };
        self.sync_files(&captured.files)?;
        self.sync_directories()?;
        let _alone = self.lock_alone(&last)?;
        let change = Change {
            captured: Some(captured),
            ..Change::default()
        };
        self.rewrite_history(&change)?;
        self.unlink_all();
        Ok(())
    }

    /// Forgets retained checkpoints, durably, and unlinks what only they need. Returns those that
    /// stay because a reader holds them. Nobody makes a checkpoint meanwhile.
    ///
    /// # Errors
    /// `InvalidArgument` for a checkpoint that is not retained, and for the last one; `NoSpace`,
    /// `Io`, `Poisoned`.
    pub fn forget(&self, ids: &[CheckpointId]) -> Result<Vec<CheckpointId>> {
        self.check_writable()?;
        let checkpoints = self.versions().checkpoints.clone();
        let (mut forget, mut held) = (Vec::new(), Vec::new());
        let (mut guards, mut metas) = (Vec::new(), Vec::new());
        for &id in ids {
            let Some(checkpoint) = checkpoints.iter().find(|c| c.id == id) else {
                let retained = checkpoints.iter().map(|c| c.id).collect();
                return Err(ArgumentError::UnknownCheckpoint { id, retained }.into());
            };
            if checkpoints.last() == Some(checkpoint) {
                let what = format!("checkpoint {id} is the last one, which always stays");
                return Err(ArgumentError::Other { what }.into());
            }
            match self.lock_alone(checkpoint) {
                Ok(guard) => guards.push(guard),
                Err(Error::Locked { .. }) => {
                    held.push(id);
                    continue;
                }
                // Without its meta file it can't be opened: nobody has it.
                Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            forget.push(id);
            metas.push(file_name(FileKind::Meta, checkpoint.meta_number));
        }
        if forget.is_empty() {
            return Ok(held);
        }
        let change = Change {
            forget: &forget,
            ..Change::default()
        };
        self.rewrite_history(&change)?;
        self.unlink_all();
        for name in metas {
            self.unlink(&*self.root, &name);
        }
        Ok(held)
    }

    /// A reader of this name has everything up to a retained checkpoint, or is gone: durably. Nobody makes a
    /// checkpoint meanwhile.
    ///
    /// # Errors
    /// `InvalidArgument` for a checkpoint that is not retained; `NoSpace`, `Io`, `Poisoned`.
    pub fn set_cursor(&self, name: &str, checkpoint: Option<CheckpointId>) -> Result<()> {
        self.check_writable()?;
        let at = |id: CheckpointId| {
            let interval = self.retained(id)?.interval;
            Result::Ok(Cursor {
                checkpoint: id,
                interval,
            })
        };
        let cursor = checkpoint.map(at).transpose()?;
        if self.versions().cursors.get(name).copied() == cursor {
            return Ok(());
        }
        let change = Change {
            cursor: Some((name, cursor)),
            ..Change::default()
        };
        self.rewrite_history(&change)
    }

    /// A new manifest with the changed history, CURRENT, and then the same in memory.
    fn rewrite_history(&self, change: &Change<'_>) -> Result<()> {
        // A new manifest takes a number of those kept back.
        self.reserve_numbers()?;
        let mut manifest = self.manifest();
        self.check_writable()?;
        let mut current = manifest.current;
        let (recommitted, last) = {
            let versions = self.versions();
            current.file_number_limit = versions.number_limit;
            current.next_checkpoint_id = versions.next_checkpoint;
            recommitted(&versions, change)
        };
        let Some(last) = last else { return Ok(()) };
        let start = Start {
            timeline: current.timeline,
            parent: CheckpointId::NONE,
            tables: &recommitted.tables,
            checkpoints: &recommitted.checkpoints,
            hyper: &recommitted.hyper,
            cursors: &recommitted.cursors,
            snapshot: &manifest.snapshot,
        };
        let commit = edits::snapshot(&recommitted, &start);
        let old_manifest = current.manifest_number;
        self.write_edits(&mut manifest, &mut current, &commit, true)?;
        self.write_current(&mut manifest, current)?;
        self.unlink_manifest(old_manifest);
        let mut versions = self.versions();
        versions.checkpoints = recommitted.checkpoints;
        versions.hyper = recommitted.hyper;
        versions.cursors = recommitted.cursors;
        for state in versions.files.values_mut() {
            state.meta = change.recommitted(&state.meta, last);
        }
        versions.note_recorded(commit.recorded);
        if change.captured.is_some() {
            versions.captured = None;
        }
        Ok(())
    }
}

/// The history as it is to be, and its last checkpoint.
fn recommitted(versions: &Versions, change: &Change<'_>) -> (Versions, Option<CheckpointId>) {
    let mut recommitted = Versions::default();
    let kept = versions.checkpoints.iter();
    recommitted.checkpoints = kept
        .filter(|c| !change.forget.contains(&c.id))
        .copied()
        .collect();
    recommitted.tables = versions.tables.clone();
    recommitted.hyper = versions.hyper.clone();
    let forgotten = change.forget.iter();
    forgotten.for_each(|id| recommitted.hyper.forget(*id));
    recommitted.cursors = versions.cursors.clone();
    if let Some((name, cursor)) = change.cursor {
        recommitted.cursors.remove(name);
        let set = cursor.map(|cursor| (name.to_owned(), cursor));
        recommitted.cursors.extend(set);
    }
    let Some(last) = recommitted.checkpoints.last_mut() else {
        return (recommitted, None);
    };
    if let Some(captured) = change.captured {
        last.next_rank = captured.next_rank;
    }
    let last = last.id;
    for state in versions.files.values() {
        recommitted.insert_closed(change.recommitted(&state.meta, last), state.recorded);
    }
    (recommitted, Some(last))
}
