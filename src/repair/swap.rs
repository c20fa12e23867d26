//! How does the repaired store take the damaged one's place?
//!
//! - By one exchange of two names, where the file system can: at any moment there is a store.
//! - The damaged store is kept, under a name that was free.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::io::{Disk, exchange};

/// Exchanges `root` and `repaired` and moves what was `root` aside; returns where it is.
pub(super) fn swap(disk: &dyn Disk, root: &Path, repaired: &Path) -> Result<PathBuf> {
    let aside = free_name(disk, root)?;
    let parent = root.parent().filter(|p| !p.as_os_str().is_empty());
    let sync = || match parent {
        Some(parent) => disk
            .sync_dir(parent)
            .map_err(|e| Error::io("sync the directory", parent, e)),
        None => disk
            .sync_dir(Path::new("."))
            .map_err(|e| Error::io("sync the directory", Path::new("."), e)),
    };
    let rename = |source: &Path, target: &Path| {
        disk.rename(source, target)
            .map_err(|e| Error::io("rename", source, e))
    };
    match exchange(root, repaired) {
        Ok(()) => {
            sync()?;
            rename(repaired, &aside)?;
        }
        Err(e) if e.kind() == ErrorKind::Unsupported || e.kind() == ErrorKind::InvalidInput => {
            rename(root, &aside)?;
            rename(repaired, root)?;
        }
        Err(e) => return Err(Error::io("exchange with the repaired store", root, e)),
    }
    sync()?;
    Ok(aside)
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
