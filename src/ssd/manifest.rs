//! How do edits get into the manifest, and CURRENT to commit them?
//!
//! Invariants:
//! - A sync that fails, and a rename whose outcome is unknown, poison the store: never retried.
//! - A store of an older version of the format gets no edits: its first commit starts a new manifest,
//!   and CURRENT stays of the old version until it names that.
//! - A write that fails before CURRENT was touched leaves it in force; the next edits start a new
//!   manifest.

use std::path::Path;
use std::sync::{Arc, PoisonError};

use super::Ssd;
use super::edits::{Commit, SnapshotPart};
use super::poison::Watched;
use crate::error::{ArgumentError, Error, Result};
use crate::format::current::Current;
use crate::format::manifest;
use crate::format::{CURRENT_NAME, CURRENT_TEMPORARY_NAME, Version, manifest_names};
use crate::io::{Directory, DiskFile, OpenMode};
use crate::sync::MutexGuard;
use crate::units::FileNumber;

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
    /// What CURRENT says.
    pub current: Current,
    /// The parts of the index snapshot in force, by data directory; one of version 1 is alone.
    pub snapshot: Vec<SnapshotPart>,
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

    pub(super) fn reserve_numbers(&self) -> Result<()> {
        let mut manifest = self.manifest();
        self.check_writable()?;
        let limit = {
            let versions = self.versions();
            if versions.next_number.plus(NUMBERS_SPARE) < versions.number_limit {
                return Ok(());
            }
            versions.number_limit.plus(self.thresholds.numbers_reserved)
        };
        let mut current = manifest.current;
        current.file_number_limit = limit;
        self.write_current(&mut manifest, current)?;
        self.versions().number_limit = limit;
        Ok(())
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

    /// Appends (or starts a manifest with) the edits and syncs it and its copy; `current` learns its
    /// length.
    pub(super) fn write_edits(
        &self,
        manifest: &mut ManifestWriter,
        current: &mut Current,
        commit: &Commit,
        roll: bool,
    ) -> Result<()> {
        self.check_held()?;
        let number = if roll {
            self.take_number_reserved()?
        } else {
            current.manifest_number
        };
        let _writing = tracing::debug_span!("manifest", number = number.0).entered();
        let identity = self.identity(number);
        let names = manifest_names(number);
        let mut bytes = Vec::new();
        if roll {
            // A store becomes one of the newest version with its first new manifest.
            current.version = Version::NEWEST;
            current.manifest_number = number;
            current.manifest_bytes = 0;
            let (header, digest) = manifest::encode_manifest_header(current.version, &identity);
            bytes.extend_from_slice(&header);
            current.manifest_digest = digest;
        }
        let start = current.manifest_bytes;
        for edit in &commit.edits {
            let offset = start + bytes.len() as u64;
            let (version, digest) = (current.version, &mut current.manifest_digest);
            manifest::encode_edit(version, edit, &identity, offset, &mut bytes, digest);
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
    pub(super) fn unlink_manifest(&self, number: FileNumber) {
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
    pub(super) fn take_number_reserved(&self) -> Result<FileNumber> {
        let mut versions = self.versions();
        if versions.next_number >= versions.number_limit {
            return Err(ArgumentError::Other {
                what: String::from("file numbers ran out; retry"),
            }
            .into());
        }
        Ok(versions.next_number.take())
    }

    pub(super) fn create_in_root(&self, name: &str) -> std::io::Result<Arc<dyn DiskFile>> {
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
        // The temporary may be another writer's, too.
        self.check_held()
            .inspect_err(|_| self.give_up(manifest, &current))?;
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
        self.check_held()
            .inspect_err(|_| self.give_up(manifest, &current))?;
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
}
