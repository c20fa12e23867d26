//! How does a checkpoint become a store of its own?
//!
//! Invariants:
//! - An export has a timeline uuid of its own; checkpoint ids and file numbers go on, never again.
//! - It shares the data files by hard links: parameter files are immutable.
//! - Until its STORE is durable, nothing has happened.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Ssd;
use super::create::{Next, write_root};
use super::directories::{make_dir, make_dir_in};
use super::edits::{self, SnapshotPart, Start};
use super::names::{list, stored_name};
use super::small_files::{sync, write_whole};
use super::space::refused;
use super::tables::TableState;
use super::version::Versions;
use crate::error::{ArgumentError, Result, check_length};
use crate::format::identity::encode_part;
use crate::format::manifest::{FileMeta, NOT_REMOVED};
use crate::format::{FileKind, PART_NAME, data_file_name, file_name};
use crate::io::Directory;
use crate::units::{CheckpointId, narrow};

impl Ssd {
    /// Makes a store at `target` that holds one retained checkpoint, by hard links. `tables`: as for a
    /// rollback.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown checkpoint or a directory in use; `NoSpace`; `Io` (also
    /// where `target` is on another file system than a data directory).
    pub fn export(
        &self,
        id: CheckpointId,
        target: &Path,
        parts: &[PathBuf],
        timeline: [u8; 16],
        tables: &[TableState],
    ) -> Result<()> {
        let checkpoint = self.retained(id)?;
        if !parts.is_empty() {
            let what = "data directories of an export";
            check_length(what, self.directories.len(), parts.len())?;
        }
        let names = (0..self.directories.len()).map(|i| match parts.get(i) {
            Some(path) => stored_name(path),
            None => Ok(format!("part-{i}")),
        });
        let names = names.collect::<Result<Vec<String>>>()?;
        let target = fresh(make_dir(&*self.io.disk, target)?)?;
        let held = self.version_files(id, &(0..=u64::MAX), 0)?;
        let mut exported = Versions::default();
        let mut targets = Vec::with_capacity(names.len());
        for (i, (name, source)) in names.iter().zip(&self.directories).enumerate() {
            let directory = fresh(make_dir_in(&*target, Path::new(name))?)?;
            let index = narrow(i);
            let part = encode_part(&self.store, index);
            write_whole(&*directory, PART_NAME, &part)?;
            for data in held.iter().filter(|f| f.meta.directory == index) {
                link(&**source, &*directory, &data_file_name(data.meta.number))?;
                let meta = FileMeta {
                    added: id,
                    removed: NOT_REMOVED,
                    ..data.meta
                };
                exported.insert_closed(meta, None);
            }
            targets.push(directory);
        }
        let snapshot = self.export_snapshot(id, &targets)?;
        let meta_name = file_name(FileKind::Meta, checkpoint.meta_number);
        link(&*self.root, &*target, &meta_name)?;
        let (tables, hyper, cursors) = {
            let versions = self.versions();
            let tables = versions.tables.going_on_from(id, tables);
            (tables, versions.hyper.clone(), versions.cursors.clone())
        };
        let start = Start {
            timeline,
            parent: id,
            tables: &tables,
            checkpoints: &[checkpoint],
            hyper: &hyper,
            cursors: &cursors,
            snapshot: &snapshot,
        };
        let commit = edits::snapshot(&exported, &start);
        let next = Next {
            number: self.versions().number_limit,
            checkpoint: checkpoint.id.next(),
        };
        write_root(
            &*target,
            self.store,
            timeline,
            &names,
            &commit,
            Some((&checkpoint, next)),
        )
        .map(drop)
    }
}

impl Ssd {
    /// Links the parts of the index snapshot that an open at a checkpoint can use, each into the
    /// directory that stands for the one it lies in, and syncs these. A part is a cache: one that can't be
    /// linked is left out.
    fn export_snapshot(
        &self,
        id: CheckpointId,
        targets: &[Arc<dyn Directory>],
    ) -> Result<Vec<SnapshotPart>> {
        let mut linked = Vec::new();
        for part in self.snapshot_in_force() {
            let home = part.home(targets.len());
            let target = home.and_then(|home| targets.get(home));
            let usable = || {
                self.open_snapshot_part(part)
                    .is_ok_and(|scan| scan.checkpoint <= id)
            };
            if let Some(target) = target.filter(|_| usable()) {
                // Another one may have taken its place meanwhile.
                if link(self.place_of(&part), &**target, &part.file_name()).is_ok() {
                    linked.push(part);
                }
            }
        }
        targets.iter().try_for_each(|target| sync(&**target))?;
        Ok(linked)
    }
}

/// Gives a file a second name, the same one, in another directory.
pub(crate) fn link(source: &dyn Directory, target: &dyn Directory, name: &str) -> Result<()> {
    source
        .hard_link(name, target, name)
        .map_err(|e| refused("hard-link to", target, &target.path().join(name), 0, e))
}

/// A directory that is empty.
pub(super) fn fresh(place: Arc<dyn Directory>) -> Result<Arc<dyn Directory>> {
    if list(&*place)?.is_empty() {
        return Ok(place);
    }
    let why = String::from("the directory is not empty; choose an empty one");
    let path = place.path().to_path_buf();
    Err(ArgumentError::NotAStore { path, why }.into())
}
