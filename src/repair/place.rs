//! Where does the repaired store stand, and what may be removed there?
//!
//! - Beside the damaged one: `DIR.repair`. A data directory elsewhere gets one inside it,
//!   `repaired-1`, so that hard links work.
//! - Only files with names of the store's kinds are removed; anything else is an error.

use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use crate::error::{Error, Invalid, Result};
use crate::format::{CURRENT_NAME, CURRENT_TEMPORARY_NAME, PART_NAME, STORE_NAME, parse_file_name};
use crate::io::Disk;
use crate::ssd::create::{STORE_TEMPORARY_NAME, make_dir};
use crate::ssd::recover::LOCK_NAME;

/// A data directory of both stores.
#[derive(Debug)]
pub(super) struct Part {
    /// Of the damaged store.
    pub old: PathBuf,
    /// Of the repaired one.
    pub new: PathBuf,
    /// As its STORE names it.
    pub name: String,
}

/// The places of the data directories.
pub(super) fn parts(root: &Path, path: &Path, names: &[PathBuf]) -> Vec<Part> {
    let inside = |name: &Path| name.components().all(|c| matches!(c, Component::Normal(_)));
    let taken: Vec<PathBuf> = names.iter().map(|name| root.join(name)).collect();
    let part = |name: &PathBuf| {
        let old = root.join(name);
        if inside(name) {
            let (new, name) = (path.join(name), name.to_string_lossy().into_owned());
            return Part { old, new, name };
        }
        let own = old
            .file_name()
            .is_some_and(|n| n.to_string_lossy().starts_with("repaired-"));
        let base = match old.parent() {
            Some(parent) if own => parent,
            _ => &old,
        };
        let new = (1..)
            .map(|n: u32| base.join(format!("repaired-{n}")))
            .find(|new| !taken.contains(new))
            .unwrap_or_else(|| base.join("repaired"));
        let name = new.to_string_lossy().into_owned();
        Part { old, new, name }
    };
    names.iter().map(part).collect()
}

fn is_ours(name: &str) -> bool {
    let names = [
        CURRENT_NAME,
        CURRENT_TEMPORARY_NAME,
        LOCK_NAME,
        PART_NAME,
        STORE_NAME,
        STORE_TEMPORARY_NAME,
    ];
    names.contains(&name) || parse_file_name(name).is_some()
}

/// Removes the files of a store that is not needed from one of its directories, STORE first.
///
/// # Errors
/// `InvalidArgument` when there is a file that is not a store's; nothing is removed then. `Io`.
pub(super) fn clear(disk: &dyn Disk, directory: &Path) -> Result<()> {
    let names = match disk.list(directory) {
        Ok(names) => names,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(Error::io("list", directory, e)),
    };
    let mut names: Vec<String> = names
        .into_iter()
        .filter(|e| e.is_file)
        .map(|e| e.name)
        .collect();
    if let Some(stranger) = names.iter().find(|name| !is_ours(name)) {
        let why = format!(
            "the repaired store is built here, and {stranger:?} is no file of a store; move the \
             directory away"
        );
        return Err(Invalid::NotAStore {
            path: directory.to_path_buf(),
            why,
        }
        .into());
    }
    names.sort_by_key(|name| name != STORE_NAME);
    for name in names {
        let path = directory.join(name);
        disk.remove(&path)
            .map_err(|e| Error::io("remove", &path, e))?;
    }
    Ok(())
}

/// Makes a directory, and those above it up to `root`.
pub(super) fn make(disk: &dyn Disk, root: &Path, directory: &Path) -> Result<()> {
    let above: Vec<&Path> = directory
        .ancestors()
        .take_while(|d| *d != root && d.starts_with(root))
        .collect();
    if above.is_empty() {
        return make_dir(disk, directory);
    }
    make_dir(disk, root)?;
    above.into_iter().rev().try_for_each(|d| make_dir(disk, d))
}
