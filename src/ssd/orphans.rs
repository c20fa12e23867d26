//! Which files does a writer remove when it opens a store, and when it closes it?
//!
//! Invariants:
//! - Only names of the store's kinds with a number that was given out, and its own temporary files.

use std::sync::Arc;

use super::Ssd;
use super::edits::SnapshotPart;
use super::names::{self, STORE_TEMPORARY_NAME};
use crate::error::{Error, Result};
use crate::format::manifest::FileMeta;
use crate::format::{self, CURRENT_TEMPORARY_NAME, FileKind, data_file_name};
use crate::units::FileNumber;

impl Ssd {
    /// Replaces CURRENT, durably, by one that reserves numbers.
    ///
    /// The CURRENT that was read may be known to the page cache alone (the rename was done, and its
    /// directory was not synced): a power cut would bring back the one before it, so nothing that
    /// that one names may be unlinked yet.
    pub(super) fn make_current_durable(&self) -> Result<()> {
        match self.reserve_numbers() {
            Err(Error::NoSpace { .. }) => {}
            result => return result,
        }
        // Orphans may fill the disk. Those with greater numbers than all that CURRENT's manifest
        // names came after it: no CURRENT before it can name them.
        let newest = {
            let manifest = self.manifest();
            let versions = self.versions();
            let files = versions.files.keys().next_back().copied();
            let metas = versions.checkpoints.iter().map(|c| c.meta_number);
            let parts = manifest.snapshot.iter().map(|part| part.number);
            let named = metas.chain(files).chain(parts);
            named.fold(manifest.current.manifest_number, FileNumber::max)
        };
        self.remove_orphans(newest.next())?;
        self.reserve_numbers()
    }

    /// Unlinks the parameter files that no retained checkpoint needs: what was flushed or compacted
    /// since the last one. The next open would do so; until then they would take room.
    ///
    /// Nobody reads the current version any more. Nothing is unlinked where writes are refused:
    /// CURRENT may name more than is known here.
    pub fn remove_uncommitted(&self) {
        let left: Vec<FileMeta> = {
            let versions = self.versions();
            if self.check_writable().is_err() || versions.captured.is_some() {
                return;
            }
            let ids = || versions.checkpoints.iter().map(|c| c.id);
            let needed = |m: &FileMeta| ids().any(|id| m.added <= id && id < m.removed);
            let files = versions.files.values().map(|state| state.meta);
            files.filter(|meta| !needed(meta)).collect()
        };
        for meta in left {
            let place = &self.directories[meta.directory as usize];
            self.unlink(&**place, &data_file_name(meta.number));
        }
    }

    /// Removes files of this store that no retained version names, with numbers from `from` on.
    pub(super) fn remove_orphans(&self, from: FileNumber) -> Result<()> {
        let (known, metas, limit) = {
            let versions = self.versions();
            let known: Vec<FileNumber> = versions.files.keys().copied().collect();
            let metas: Vec<FileNumber> =
                versions.checkpoints.iter().map(|c| c.meta_number).collect();
            (known, metas, versions.number_limit)
        };
        let (manifest_number, snapshot) = {
            let manifest = self.manifest();
            (manifest.current.manifest_number, manifest.snapshot.clone())
        };
        for directory in self.directories.iter().chain([&self.root]) {
            let names = directory
                .list()
                .map_err(|e| Error::io("list", directory.path(), e))?;
            for entry in names {
                let orphan = match format::parse_file_name(&entry.name) {
                    None => {
                        let own = [CURRENT_TEMPORARY_NAME, STORE_TEMPORARY_NAME];
                        own.contains(&&*entry.name) && Arc::ptr_eq(directory, &self.root)
                    }
                    Some((_, number)) if number < from => false,
                    Some((_, number)) if number >= limit => {
                        let name = &entry.name;
                        tracing::warn!(name, "a file with a number not given out yet is left");
                        false
                    }
                    Some((FileKind::Rows, number)) => known.binary_search(&number).is_err(),
                    Some((FileKind::Meta, number)) => !metas.contains(&number),
                    Some((FileKind::Manifest | FileKind::ManifestCopy, number)) => {
                        number != manifest_number
                    }
                    Some((kind @ (FileKind::Image | FileKind::Snapshot), number)) => {
                        let is = |part: &SnapshotPart| part.number == number && part.kind() == kind;
                        !snapshot.iter().any(is)
                    }
                };
                if orphan && entry.is_file && !names::is_fixed_name(&entry.name) {
                    self.unlink(&**directory, &entry.name);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
