//! How does a captured version become durable?
//!
//! The order is the durability contract (docs/decisions/0005): data files, meta file, their
//! directories, manifest and its copy, CURRENT (temporary file, sync, rename, directory sync).
//!
//! Invariants:
//! - A sync that fails, and a rename whose outcome is unknown, poison the store: never retried.
//! - A *write* that fails before CURRENT was touched leaves the last checkpoint in force, and a
//!   later checkpoint works: it starts a new manifest.

use std::sync::Arc;

use super::Ssd;
use super::data_file::DataFile;
use super::edits::{self, Start};
use super::manifest::ManifestWriter;
use super::tables::TableState;
use crate::error::Result;
use crate::format::manifest::CheckpointMeta;
use crate::format::{FileKind, file_name};
use crate::io::{LockGuard, LockKind};
use crate::options::HyperParameters;
use crate::units::{CheckpointId, FileNumber};

/// A version that is complete and waits to be made durable.
#[derive(Debug)]
pub struct Captured {
    /// The checkpoint's id.
    pub id: CheckpointId,
    /// The files of its version.
    pub files: Vec<Arc<DataFile>>,
    /// Ranks below this are of its version.
    pub next_rank: u64,
}

/// What the caller says of a checkpoint.
#[derive(Debug)]
pub struct CheckpointRequest<'a> {
    /// The trainer's step.
    pub step: u64,
    /// The last interval it contains.
    pub interval: u32,
    /// Hyperparameters in force, by table id.
    pub hyper: &'a [Option<HyperParameters>],
    /// All tables, by number.
    pub tables: &'a [TableState],
    /// The trainer's own bytes.
    pub meta: &'a [u8],
    /// Checkpoints to retain, this one included.
    pub retain: usize,
}

impl Ssd {
    /// The step of the last durable checkpoint of this timeline.
    #[must_use]
    pub fn last_step(&self) -> Option<u64> {
        self.versions().checkpoints.last().map(|c| c.step)
    }

    /// Freezes the current version under the next checkpoint id.
    pub fn capture(&self) -> Captured {
        let mut versions = self.versions();
        let id = versions.next_checkpoint;
        versions.next_checkpoint = id.next();
        versions.captured = Some(id);
        let files = versions.current().cloned().collect();
        Captured {
            id,
            files,
            next_rank: versions.next_rank,
        }
    }

    /// Gives up a captured version that can't be made durable; not when writes are refused, for
    /// then CURRENT may name it all the same.
    pub fn abandon(&self) {
        {
            let mut versions = self.versions();
            if self.check_writable().is_err() {
                return;
            }
            versions.captured = None;
        }
        self.collect_garbage();
    }

    /// Makes a captured version durable. On an error the last checkpoint stays in force. What nothing needs
    /// any more is left to [`Ssd::collect_garbage`].
    ///
    /// # Errors
    /// `NoSpace`, `Io`, `Poisoned`.
    pub fn commit(
        &self,
        captured: &Captured,
        request: &CheckpointRequest<'_>,
    ) -> Result<CheckpointMeta> {
        let result = self.with_snapshot_room(|| self.commit_inner(captured, request));
        if result.is_err() {
            self.abandon();
        }
        result
    }

    fn commit_inner(
        &self,
        captured: &Captured,
        request: &CheckpointRequest<'_>,
    ) -> Result<CheckpointMeta> {
        self.check_writable()?;
        self.sync_files(&captured.files)?;
        let meta_number = self.take_number()?;
        let written = self.write_meta(meta_number, captured.id, request.meta)?;
        let result = self.commit_meta(captured, request, meta_number, written);
        if result.is_err() && self.check_writable().is_ok() {
            // CURRENT was not touched: nothing names the file.
            self.unlink(&*self.root, &file_name(FileKind::Meta, meta_number));
        }
        result
    }

    /// The steps after the meta file, of which `meta_bytes` and `meta_checksum` are told.
    fn commit_meta(
        &self,
        captured: &Captured,
        request: &CheckpointRequest<'_>,
        meta_number: FileNumber,
        (meta_bytes, meta_checksum): (u64, u64),
    ) -> Result<CheckpointMeta> {
        let checkpoint = CheckpointMeta {
            id: captured.id,
            step: request.step,
            interval: request.interval,
            next_rank: captured.next_rank,
            meta_number,
            meta_bytes,
            meta_checksum,
            unix_seconds: self.io.disk.unix_seconds(),
        };
        let mut manifest = self.manifest();
        self.check_writable()?;
        self.sync_directories()?;
        let (forgotten, _guards) = self.forgettable(request.retain);
        self.append_commit(&mut manifest, request, &checkpoint, &forgotten)?;
        self.finish_commit(&checkpoint, request, &forgotten);
        Ok(checkpoint)
    }

    pub(super) fn sync_files(&self, files: &[Arc<DataFile>]) -> Result<()> {
        let _syncing = tracing::debug_span!("sync").entered();
        for file in files.iter().filter(|f| !f.file.is_synced()) {
            self.fatal("sync", &file.path, file.file.make_durable())?;
        }
        Ok(())
    }

    /// Old checkpoints beyond `retain` that no reader holds, with the locks that keep it so.
    fn forgettable(&self, retain: usize) -> (Vec<CheckpointId>, Vec<Box<dyn LockGuard>>) {
        let old = self.versions().checkpoints.clone();
        let surplus = (old.len() + 1).saturating_sub(retain);
        let mut forgotten = Vec::new();
        let mut guards = Vec::new();
        for checkpoint in old.iter().take(surplus) {
            let name = file_name(FileKind::Meta, checkpoint.meta_number);
            match self.root.lock(&name, LockKind::Exclusive, false) {
                Ok(guard) => {
                    forgotten.push(checkpoint.id);
                    guards.push(guard);
                }
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => forgotten.push(checkpoint.id),
                Err(_) => {
                    tracing::info!(
                        checkpoint = checkpoint.id.0,
                        "a reader holds an old checkpoint"
                    );
                }
            }
        }
        (forgotten, guards)
    }

    fn append_commit(
        &self,
        manifest: &mut ManifestWriter,
        request: &CheckpointRequest<'_>,
        checkpoint: &CheckpointMeta,
        forgotten: &[CheckpointId],
    ) -> Result<()> {
        let limit = self.thresholds.manifest_roll_bytes + 2 * manifest.snapshot_bytes;
        let roll = manifest.files.is_none() || manifest.current.manifest_bytes > limit;
        let mut current = manifest.current;
        current.checkpoint_id = checkpoint.id;
        current.step = checkpoint.step;
        current.next_checkpoint_id = checkpoint.id.next();
        let commit = {
            let versions = self.versions();
            current.file_number_limit = versions.number_limit;
            if roll {
                let kept = versions.checkpoints.iter();
                let mut checkpoints: Vec<CheckpointMeta> = kept
                    .filter(|c| !forgotten.contains(&c.id))
                    .copied()
                    .collect();
                checkpoints.push(*checkpoint);
                let mut tables = versions.tables.clone();
                tables.note(checkpoint.id, request.tables);
                let mut hyper = versions.hyper.clone();
                hyper.note(checkpoint.id, request.hyper);
                let start = Start {
                    timeline: current.timeline,
                    parent: CheckpointId::NONE,
                    tables: &tables,
                    checkpoints: &checkpoints,
                    hyper: &hyper,
                    cursors: &versions.cursors,
                    snapshot: &manifest.snapshot,
                };
                edits::snapshot(&versions, &start)
            } else {
                let (tables, hyper) = (request.tables, request.hyper);
                edits::changes(&versions, tables, forgotten, checkpoint, hyper)
            }
        };
        let old_manifest = manifest.current.manifest_number;
        self.write_edits(manifest, &mut current, &commit, roll)?;
        self.write_current(manifest, current)?;
        if roll {
            self.unlink_manifest(old_manifest);
        }
        self.versions().note_recorded(commit.recorded);
        Ok(())
    }

    /// After CURRENT is durable: memory follows, and the meta files of forgotten checkpoints go.
    fn finish_commit(
        &self,
        checkpoint: &CheckpointMeta,
        request: &CheckpointRequest<'_>,
        forgotten: &[CheckpointId],
    ) {
        let metas: Vec<FileNumber> = {
            let mut versions = self.versions();
            let gone = |c: &CheckpointMeta| forgotten.contains(&c.id);
            let metas = versions
                .checkpoints
                .iter()
                .filter(|c| gone(c))
                .map(|c| c.meta_number)
                .collect();
            versions.checkpoints.retain(|c| !gone(c));
            versions.checkpoints.push(*checkpoint);
            forgotten.iter().for_each(|id| versions.hyper.forget(*id));
            versions.hyper.note(checkpoint.id, request.hyper);
            versions.tables.note(checkpoint.id, request.tables);
            versions.captured = None;
            metas
        };
        for number in metas {
            self.unlink(&*self.root, &file_name(FileKind::Meta, number));
        }
    }
}
