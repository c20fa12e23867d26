//! How does the repaired store take the damaged one's place?
//!
//! - By one exchange of two names, where the file system can: at any moment there is a store.
//! - The damaged store is kept, under a name that was free.
//! - The repaired one is marked until the damaged one has that name: what a crash cut short is ended
//!   by the next repair.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::place::{MARKER_NAME, is_marked, remove, sync};
use crate::error::{Error, Result};
use crate::io::{Disk, exchange};

/// Exchanges `root` and `repaired` and moves what was `root` aside; returns where it is.
pub(super) fn swap(disk: &dyn Disk, root: &Path, repaired: &Path) -> Result<PathBuf> {
    match exchange(root, repaired) {
        Ok(()) => sync_parent(disk, root)?,
        Err(e) if e.kind() == ErrorKind::Unsupported || e.kind() == ErrorKind::InvalidInput => {
            let aside = free_name(disk, root)?;
            rename(disk, root, &aside)?;
            if let Err(error) = rename(disk, repaired, root) {
                rename(disk, &aside, root)?;
                return Err(error);
            }
            end(disk, root)?;
            return Ok(aside);
        }
        Err(e) => return Err(Error::io("exchange with the repaired store", root, e)),
    }
    finish(disk, root, repaired).map(|aside| aside.unwrap_or_else(|| repaired.to_path_buf()))
}

/// Ends a swap whose names were exchanged; gives the damaged store's place, if it was not there yet.
pub(super) fn finish(disk: &dyn Disk, root: &Path, repaired: &Path) -> Result<Option<PathBuf>> {
    if !is_marked(disk, root)? {
        return Ok(None);
    }
    let there = match disk.list(repaired) {
        Ok(_) => !is_marked(disk, repaired)?,
        Err(e) if e.kind() == ErrorKind::NotFound => false,
        Err(e) => return Err(Error::io("list", repaired, e)),
    };
    let mut aside = None;
    if there {
        let name = free_name(disk, root)?;
        rename(disk, repaired, &name)?;
        aside = Some(name);
    }
    end(disk, root)?;
    Ok(aside)
}

fn end(disk: &dyn Disk, root: &Path) -> Result<()> {
    sync_parent(disk, root)?;
    remove(disk, &root.join(MARKER_NAME))?;
    sync(disk, root)
}

fn rename(disk: &dyn Disk, source: &Path, target: &Path) -> Result<()> {
    disk.rename(source, target)
        .map_err(|e| Error::io("rename", source, e))
}

fn sync_parent(disk: &dyn Disk, root: &Path) -> Result<()> {
    let parent = root.parent().filter(|p| !p.as_os_str().is_empty());
    sync(disk, parent.unwrap_or(Path::new(".")))
}

fn free_name(disk: &dyn Disk, root: &Path) -> Result<PathBuf> {
    let base = root.file_name().unwrap_or_default();
    for n in 1..=1000 {
        let mut name = base.to_os_string();
        name.push(".damaged");
        if n > 1 {
            name.push(format!("-{n}"));
        }
        let path = root.with_file_name(name);
        match disk.list(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(path),
            Err(e) if e.kind() != ErrorKind::NotADirectory => {
                return Err(Error::io("list", &path, e));
            }
            _ => {}
        }
    }
    Err(Error::io(
        "find a free name beside",
        root,
        ErrorKind::AlreadyExists.into(),
    ))
}
