//! How does history fork? Rolling back to a checkpoint, and exporting one as a store of its own.
//!
//! Invariants:
//! - Both get a branch uuid of their own; checkpoint ids and file numbers go on, never again.
//! - An export shares the data files by hard links: parameter files are immutable.
//! - Until CURRENT (or, in an export, STORE) is durable, nothing has happened.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Ssd;
use super::create::{
    Next, list, make_dir, make_dir_in, stored_name, sync, write_root, write_whole,
};
use super::edits;
use super::space::refused;
use super::version::Versions;
use crate::error::{Invalid, Result};
use crate::format::identity::encode_part;
use crate::format::manifest::{CheckpointMeta, FileMeta};
use crate::format::{FileKind, PART_NAME, data_file_name, file_name};
use crate::io::Directory;
use crate::options::TableDescriptor;

impl Ssd {
    pub(super) fn retained(&self, id: u64) -> Result<CheckpointMeta> {
        let versions = self.versions();
        let retained = versions.checkpoints.iter().map(|c| c.id).collect();
        let found = versions.checkpoints.iter().find(|c| c.id == id).cloned();
        found.ok_or_else(|| Invalid::UnknownCheckpoint { id, retained }.into())
    }

    /// Makes a retained checkpoint the last one, durably. Later checkpoints are forgotten; the
    /// store must be opened anew afterwards.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown checkpoint, `Io`, `NoSpace`, `Poisoned`.
    pub fn rollback(&self, id: u64, branch: [u8; 16], tables: &[TableDescriptor]) -> Result<()> {
        self.check_writable()?;
        let checkpoint = self.retained(id)?;
        let mut rolled = Versions::default();
        {
            let versions = self.versions();
            rolled.checkpoints = versions
                .checkpoints
                .iter()
                .filter(|c| c.id < id)
                .cloned()
                .collect();
            for state in versions.files.values().filter(|s| s.meta.added <= id) {
                let removed = if state.meta.removed <= id {
                    state.meta.removed
                } else {
                    u64::MAX
                };
                let meta = FileMeta {
                    removed,
                    ..state.meta
                };
                rolled.know(meta, None);
            }
        }
        let retained = rolled.checkpoints.clone();
        let mut manifest = self.manifest();
        self.check_writable()?;
        let mut current = manifest.current;
        current.branch = branch;
        current.checkpoint_id = id;
        current.step = checkpoint.step;
        current.next_checkpoint_id = self.versions().next_checkpoint;
        current.file_number_limit = self.versions().number_limit;
        // The image may know files that this version does not have; it is a cache, and made anew.
        let c = Some(&checkpoint);
        let commit = edits::snapshot(&rolled, branch, id, tables, &retained, c, None);
        self.write_edits(&mut manifest, &mut current, &commit, true)?;
        self.write_current(&mut manifest, current)?;
        self.poison(String::from("the store was rolled back; open it anew"));
        Ok(())
    }

    /// Makes a store at `target` that holds one retained checkpoint, by hard links.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown checkpoint or a directory in use; `NoSpace`; `Io` (also
    /// where `target` is on another file system than a data directory).
    pub fn export(
        &self,
        id: u64,
        target: &Path,
        parts: &[PathBuf],
        branch: [u8; 16],
        tables: &[TableDescriptor],
    ) -> Result<()> {
        let checkpoint = self.retained(id)?;
        if !parts.is_empty() && parts.len() != self.directories.len() {
            let (expected, found) = (self.directories.len(), parts.len());
            let what = "data directories of an export";
            return Err(Invalid::Length {
                what,
                expected,
                found,
            }
            .into());
        }
        let names = (0..self.directories.len()).map(|i| match parts.get(i) {
            Some(path) => stored_name(path),
            None => Ok(format!("part-{i}")),
        });
        let names = names.collect::<Result<Vec<String>>>()?;
        let target = fresh(make_dir(&*self.io.disk, target)?)?;
        let held = self.version_files(id)?;
        let mut exported = Versions::default();
        for (i, (name, source)) in names.iter().zip(&self.directories).enumerate() {
            let directory = fresh(make_dir_in(&*target, Path::new(name))?)?;
            let index = u32::try_from(i).unwrap_or(u32::MAX);
            let part = encode_part(&self.store, index);
            write_whole(&*directory, PART_NAME, &part)?;
            for data in held.iter().filter(|f| f.meta.directory == index) {
                link(&**source, &*directory, &data_file_name(data.meta.number))?;
                let meta = FileMeta {
                    added: id,
                    removed: u64::MAX,
                    ..data.meta
                };
                exported.know(meta, None);
            }
            sync(&*directory)?;
        }
        let meta_name = file_name(FileKind::Meta, checkpoint.meta_number);
        link(&*self.root, &*target, &meta_name)?;
        let c = Some(&checkpoint);
        let commit = edits::snapshot(&exported, branch, id, tables, &[], c, None);
        let next = Next {
            number: self.versions().number_limit,
            checkpoint: checkpoint.id + 1,
        };
        write_root(
            &*target,
            self.store,
            branch,
            &names,
            &commit,
            Some((&checkpoint, next)),
        )
    }
}

/// Gives a file a second name, the same one, in another directory.
pub(crate) fn link(source: &dyn Directory, target: &dyn Directory, name: &str) -> Result<()> {
    source
        .hard_link(name, target, name)
        .map_err(|e| refused("hard-link to", target, &target.path().join(name), 0, e))
}

/// A directory that is empty.
fn fresh(place: Arc<dyn Directory>) -> Result<Arc<dyn Directory>> {
    if list(&*place)?.is_empty() {
        return Ok(place);
    }
    let why = String::from("the directory is not empty; export into an empty one");
    let path = place.path().to_path_buf();
    Err(Invalid::NotAStore { path, why }.into())
}
