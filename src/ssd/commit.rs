//! How does a captured version become durable?
//!
//! The order is the durability contract (docs/decisions/0005): data files, meta file, their
//! directories, manifest and its copy, CURRENT (temporary file, sync, rename, directory sync).
//!
//! Invariants:
//! - A sync that fails, and a rename whose outcome is unknown, poison the store: never retried.
//! - A *write* that fails before CURRENT was touched leaves the last checkpoint in force, and a
//!   later checkpoint works: it starts a new manifest.

use std::path::Path;
use std::sync::{Arc, PoisonError};

use super::Ssd;
use super::edits::{self, Commit};
use super::poison::Watched;
use super::version::DataFile;
use crate::error::{Error, Invalid, Result};
use crate::format::current::Current;
use crate::format::manifest::{self, CheckpointMeta, Edit};
use crate::format::{
    CURRENT_NAME, CURRENT_TEMPORARY_NAME, FileKind, STORE_NAME, file_name, manifest_names, meta,
};
use crate::io::{Directory, DiskFile, LockGuard, LockKind, OpenMode};
use crate::options::{Hyper, TableDescriptor};
use crate::sync::MutexGuard;

/// Numbers kept back for new manifests: more can't be reserved while the manifest is locked. Each
/// manifest but that of a rollback comes with a meta file, whose number renews the reserve.
pub(super) const NUMBERS_SPARE: u64 = 16;

/// The manifest being appended to, and the CURRENT in force.
#[derive(Debug)]
pub struct ManifestWriter {
    /// The open manifest and its copy; `None`: the next commit starts new ones.
    pub files: Option<[Arc<dyn DiskFile>; 2]>,
    /// Bytes of it at its snapshot.
    pub snapshot_bytes: u64,
    /// Tables that it knows.
    pub tables_recorded: usize,
    /// What CURRENT says.
    pub current: Current,
    /// The image in force.
    pub image: Option<edits::ImageRef>,
}

/// A version that is complete and waits to be made durable.
#[derive(Debug)]
pub struct Captured {
    /// The checkpoint's id.
    pub id: u64,
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
    /// The last epoch it contains.
    pub epoch: u32,
    /// Hyperparameters in force.
    pub hyper: Hyper,
    /// All tables.
    pub tables: &'a [TableDescriptor],
    /// The trainer's own bytes.
    pub meta: &'a [u8],
    /// Checkpoints to retain, this one included.
    pub retain: usize,
}

impl Ssd {
    pub(super) fn manifest(&self) -> Watched<'_, MutexGuard<'_, ManifestWriter>> {
        let manifest = self.manifest.lock().unwrap_or_else(PoisonError::into_inner);
        self.poison.watch(manifest)
    }

    /// Fails with `Poisoned` after a failure that made the device's state unknown.
    ///
    /// # Errors
    /// `Poisoned`.
    pub fn check_writable(&self) -> Result<()> {
        self.poison.check()
    }

    /// Refuses writes from here on.
    pub(super) fn poison(&self, cause: String) {
        self.poison.set(cause);
    }

    /// The step of the last durable checkpoint of this branch.
    #[must_use]
    pub fn last_step(&self) -> Option<u64> {
        self.versions().checkpoints.last().map(|c| c.step)
    }

    pub(super) fn reserve_numbers(&self) -> Result<()> {
        let mut manifest = self.manifest();
        self.check_writable()?;
        let limit = {
            let versions = self.versions();
            if versions.next_number + NUMBERS_SPARE < versions.number_limit {
                return Ok(());
            }
            versions.number_limit + self.thresholds.numbers_reserved
        };
        let mut current = manifest.current;
        current.file_number_limit = limit;
        self.write_current(&mut manifest, current)?;
        self.versions().number_limit = limit;
        Ok(())
    }

    /// Freezes the current version under the next checkpoint id.
    pub fn capture(&self) -> Captured {
        let mut versions = self.versions();
        let id = versions.next_checkpoint;
        versions.next_checkpoint += 1;
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

    /// Makes a captured version durable. On an error the last checkpoint stays in force.
    ///
    /// # Errors
    /// `NoSpace`, `Io`, `Poisoned`.
    pub fn commit(
        &self,
        captured: &Captured,
        request: &CheckpointRequest<'_>,
    ) -> Result<CheckpointMeta> {
        let mut result = self.commit_inner(captured, request);
        if matches!(result, Err(Error::NoSpace { .. })) && self.take_image_room() {
            result = self.commit_inner(captured, request);
        }
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
        meta_number: u64,
        (meta_bytes, meta_checksum): (u64, u64),
    ) -> Result<CheckpointMeta> {
        let checkpoint = CheckpointMeta {
            id: captured.id,
            step: request.step,
            epoch: request.epoch,
            next_rank: captured.next_rank,
            meta_number,
            meta_bytes,
            meta_checksum,
            hyper: request.hyper,
            unix_seconds: self.io.disk.unix_seconds(),
        };
        let mut manifest = self.manifest();
        self.check_writable()?;
        self.sync_directories()?;
        let (forgotten, _guards) = self.forgettable(request.retain);
        self.append_commit(&mut manifest, request, &checkpoint, &forgotten)?;
        self.finish_commit(&checkpoint, &forgotten);
        Ok(checkpoint)
    }

    /// Makes the names in all directories durable, the root's last.
    pub(super) fn sync_directories(&self) -> Result<()> {
        let places = self.directories.iter().chain([&self.root]);
        places
            .into_iter()
            .try_for_each(|place| self.sync_names(&**place))
    }

    pub(super) fn sync_names(&self, place: &dyn Directory) -> Result<()> {
        self.fatal("sync the directory", place.path(), place.sync())
    }

    pub(super) fn sync_files(&self, files: &[Arc<DataFile>]) -> Result<()> {
        let _syncing = tracing::debug_span!("sync").entered();
        for file in files.iter().filter(|f| !f.file.is_synced()) {
            self.fatal("sync", &file.path, file.file.make_durable())?;
        }
        Ok(())
    }

    fn write_meta(&self, number: u64, checkpoint: u64, body: &[u8]) -> Result<(u64, u64)> {
        let _writing = tracing::debug_span!("meta", bytes = body.len()).entered();
        let name = file_name(FileKind::Meta, number);
        let path = self.root.path().join(&name);
        self.check_root_space(body.len() as u64 + 4096)?;
        let (header, checksum) = meta::encode_meta_header(&self.identity(number), checkpoint, body);
        let full = |e| self.full(&path, body.len() as u64, e);
        let file = self.create_in_root(&name).map_err(full)?;
        let written = file
            .write_at(&header, 0)
            .and_then(|()| file.write_at(body, header.len() as u64));
        if let Err(e) = written {
            self.unlink(&*self.root, &name);
            return Err(full(e));
        }
        let synced = file.sync();
        self.fatal("sync", &path, synced)?;
        Ok(((header.len() + body.len()) as u64, checksum))
    }

    /// Old checkpoints beyond `retain` that no reader holds, with the locks that keep it so.
    fn forgettable(&self, retain: usize) -> (Vec<u64>, Vec<Box<dyn LockGuard>>) {
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
                        checkpoint = checkpoint.id,
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
        forgotten: &[u64],
    ) -> Result<()> {
        let limit = self.thresholds.manifest_roll_bytes + 2 * manifest.snapshot_bytes;
        let roll = manifest.files.is_none() || manifest.current.manifest_bytes > limit;
        let mut current = manifest.current;
        current.checkpoint_id = checkpoint.id;
        current.step = checkpoint.step;
        current.next_checkpoint_id = checkpoint.id + 1;
        let commit = {
            let versions = self.versions();
            current.file_number_limit = versions.number_limit;
            let tables = request.tables;
            if roll {
                let retained: Vec<CheckpointMeta> = versions
                    .checkpoints
                    .iter()
                    .filter(|c| !forgotten.contains(&c.id))
                    .cloned()
                    .collect();
                let image = manifest.image.map(image_edit);
                let branch = current.branch;
                let c = Some(checkpoint);
                edits::snapshot(&versions, branch, 0, tables, &retained, c, image)
            } else {
                let known = manifest.tables_recorded;
                edits::changes(&versions, tables, known, forgotten, checkpoint)
            }
        };
        let old_manifest = manifest.current.manifest_number;
        self.write_edits(manifest, &mut current, &commit, roll)?;
        self.write_current(manifest, current)?;
        manifest.tables_recorded = request.tables.len();
        if roll {
            self.unlink_manifest(old_manifest);
        }
        let mut versions = self.versions();
        for (number, removed) in commit.recorded {
            if let Some(state) = versions.files.get_mut(&number) {
                state.recorded = Some(removed);
            }
        }
        Ok(())
    }

    /// Appends (or starts a manifest with) the edits and syncs it and its copy; `current` learns its
    /// length.
    pub(super) fn write_edits(
        &self,
        manifest: &mut ManifestWriter,
        current: &mut Current,
        commit: &Commit,
        roll: bool,
    ) -> Result<()> {
        let number = if roll {
            self.take_number_reserved()?
        } else {
            current.manifest_number
        };
        let _writing = tracing::debug_span!("manifest", number).entered();
        let identity = self.identity(number);
        let names = manifest_names(number);
        let mut bytes = Vec::new();
        if roll {
            current.manifest_number = number;
            current.manifest_bytes = 0;
            let (header, digest) = manifest::encode_manifest_header(&identity);
            bytes.extend_from_slice(&header);
            current.manifest_digest = digest;
        }
        let start = current.manifest_bytes;
        for edit in &commit.edits {
            let offset = start + bytes.len() as u64;
            let digest = &mut current.manifest_digest;
            manifest::encode_edit(edit, &identity, offset, &mut bytes, digest);
        }
        let files = match &manifest.files {
            Some(files) if !roll => files.clone(),
            _ => self.create_manifest(manifest, &names)?,
        };
        for (file, name) in files.iter().zip(&names) {
            if let Err(e) = file.write_at(&bytes, start) {
                // Bytes above the committed length count for nothing: start afresh next time.
                manifest.files = None;
                if roll {
                    self.unlink_manifest(number);
                }
                return Err(self.full(&self.root.path().join(name), bytes.len() as u64, e));
            }
        }
        for (file, name) in files.iter().zip(&names) {
            self.fatal("sync", &self.root.path().join(name), file.sync())?;
        }
        current.manifest_bytes = start + bytes.len() as u64;
        if roll {
            self.sync_names(&*self.root)?;
            manifest.snapshot_bytes = current.manifest_bytes;
            manifest.files = Some(files);
        }
        Ok(())
    }

    /// Removes a manifest that CURRENT does not name, and its copy.
    pub(super) fn unlink_manifest(&self, number: u64) {
        for name in manifest_names(number) {
            self.unlink(&*self.root, &name);
        }
    }

    /// Creates a manifest and its copy, both or none.
    fn create_manifest(
        &self,
        manifest: &mut ManifestWriter,
        names: &[String; 2],
    ) -> Result<[Arc<dyn DiskFile>; 2]> {
        manifest.files = None;
        let create = |name: &str| {
            let path = || self.root.path().join(name);
            let made = self.create_in_root(name);
            made.map_err(|e| self.full(&path(), 0, e))
        };
        let first = create(&names[0])?;
        match create(&names[1]) {
            Ok(second) => Ok([first, second]),
            Err(error) => {
                self.unlink(&*self.root, &names[0]);
                Err(error)
            }
        }
    }

    /// A number while the manifest is locked: the reserve always holds a few.
    fn take_number_reserved(&self) -> Result<u64> {
        let mut versions = self.versions();
        if versions.next_number >= versions.number_limit {
            return Err(Invalid::Other {
                what: String::from("file numbers ran out; retry"),
            }
            .into());
        }
        versions.next_number += 1;
        Ok(versions.next_number - 1)
    }

    fn create_in_root(&self, name: &str) -> std::io::Result<Arc<dyn DiskFile>> {
        let create = || self.root.open(name, OpenMode::Create);
        self.open_files.with_descriptor(create)
    }

    /// Replaces CURRENT.
    pub(super) fn write_current(
        &self,
        manifest: &mut ManifestWriter,
        current: Current,
    ) -> Result<()> {
        let _replacing = tracing::debug_span!("current").entered();
        let path = self.root.path().join(CURRENT_TEMPORARY_NAME);
        let bytes = current.encode(&self.store);
        match self.root.remove(CURRENT_TEMPORARY_NAME) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                self.give_up(manifest, &current);
                return Err(Error::io("remove", &path, e));
            }
            _ => {}
        }
        let write = || -> std::io::Result<Arc<dyn DiskFile>> {
            let file = self.create_in_root(CURRENT_TEMPORARY_NAME)?;
            file.write_at(&bytes, 0)?;
            Ok(file)
        };
        let file = write().map_err(|e| {
            self.give_up(manifest, &current);
            self.full(&path, bytes.len() as u64, e)
        })?;
        self.fatal("sync", &path, file.sync())?;
        let renamed = self
            .root
            .rename(CURRENT_TEMPORARY_NAME.as_ref(), CURRENT_NAME.as_ref());
        self.fatal("rename", &path, renamed)?;
        self.sync_names(&*self.root)?;
        manifest.current = current;
        Ok(())
    }

    /// Before CURRENT was touched: what the manifest got is not committed, and the next commit starts a
    /// new one. One that was just begun goes: a full disk has no room for it.
    fn give_up(&self, manifest: &mut ManifestWriter, current: &Current) {
        manifest.files = None;
        if current.manifest_number != manifest.current.manifest_number {
            self.unlink_manifest(current.manifest_number);
        }
    }

    /// After CURRENT is durable: memory follows, and what nothing needs is unlinked.
    fn finish_commit(&self, checkpoint: &CheckpointMeta, forgotten: &[u64]) {
        let metas: Vec<u64> = {
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
            versions.captured = None;
            metas
        };
        self.collect_garbage();
        for number in metas {
            self.unlink(&*self.root, &file_name(FileKind::Meta, number));
        }
    }

    /// Turns the failure of a step whose outcome is unknown into poison.
    pub(super) fn fatal(
        &self,
        operation: &'static str,
        path: &Path,
        result: std::io::Result<()>,
    ) -> Result<()> {
        let Err(e) = result else { return Ok(()) };
        let cause = format!("{operation} {}: {e}", path.display());
        tracing::error!(%cause, "the store refuses writes from here on");
        self.poison(cause);
        Err(Error::io(operation, path, e))
    }

    /// Files that belong to the root beside numbered ones.
    pub(super) fn is_fixed_name(name: &str) -> bool {
        [CURRENT_NAME, STORE_NAME, super::recover::LOCK_NAME].contains(&name)
    }
}

pub(super) fn image_edit(image: edits::ImageRef) -> Edit {
    Edit::Image {
        number: image.number,
        bytes: image.bytes,
        checksum: image.checksum,
    }
}
