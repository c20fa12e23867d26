//! Which directories belong to a store, and are they the right ones?

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::names::{LOCK_NAME, list, not_a_store};
use super::small_files::{read_whole, sync};
use super::space::refused;
use crate::error::{ArgumentError, Error, Result};
use crate::format::identity::{self, StoreIdentity};
use crate::format::{self, PART_NAME, STORE_NAME};
use crate::io::{Directory, Disk};

/// Opens a directory in which a store is expected.
///
/// # Errors
/// `InvalidArgument` when there is none, `Io`.
pub(crate) fn open_root(disk: &dyn Disk, path: &Path) -> Result<Arc<dyn Directory>> {
    disk.open_dir(path).map_err(|e| match e.kind() {
        ErrorKind::NotFound => not_a_store(path, "no such directory"),
        ErrorKind::NotADirectory => not_a_store(path, "not a directory"),
        _ => Error::io("open", path, e),
    })
}

/// The data directories, each verified to be the one of this store with its index: those that STORE
/// names, or where they have moved to.
pub(super) fn open_parts(
    root: &dyn Directory,
    store: &[u8; 16],
    stored: &[PathBuf],
    moved: &[PathBuf],
) -> Result<Vec<Arc<dyn Directory>>> {
    let names = match moved {
        [] => stored,
        moved => moved,
    };
    if names.len() != stored.len() {
        return Err(ArgumentError::Length {
            what: "moved_directories",
            expected: stored.len(),
            found: names.len(),
        }
        .into());
    }
    let open = |(i, name): (usize, &PathBuf)| {
        let place = open_part(root, name, i)?;
        check_part(&*place, store, i)?;
        Ok(place)
    };
    names.iter().enumerate().map(open).collect()
}

/// Opens a data directory as STORE names it.
///
/// # Errors
/// `MissingDirectory` where there is none, `Io`.
pub(crate) fn open_part(
    root: &dyn Directory,
    name: &Path,
    index: usize,
) -> Result<Arc<dyn Directory>> {
    root.open_dir(name).map_err(|e| {
        let path = root.path().join(name);
        let empty = false;
        match e.kind() {
            ErrorKind::NotFound => Error::MissingDirectory { index, path, empty },
            _ => Error::io("open", &path, e),
        }
    })
}

/// The store's uuid and its data directories, as written.
///
/// # Errors
/// `InvalidArgument` when there is no store, `Corrupt`, `Unsupported`, `Io`.
pub(crate) fn read_store(root: &dyn Directory) -> Result<([u8; 16], Vec<PathBuf>)> {
    let names = list(root)?;
    let has = |name: &str| names.iter().any(|found| found == name);
    if !has(STORE_NAME) {
        let why = if has(LOCK_NAME) {
            "creation did not finish (there is a LOCK and no STORE); empty it and create again"
        } else if has(PART_NAME) {
            "it is a data directory of a store; name the store's own, which has a file STORE"
        } else {
            "there is no file STORE in it; name the directory of a store, or create one"
        };
        return Err(not_a_store(root.path(), why));
    }
    let content = read_whole(root, STORE_NAME, 4096)?;
    let path = root.path().join(STORE_NAME);
    let found = StoreIdentity::decode(&content).map_err(|e| e.at(&path))?;
    Ok((
        found.uuid,
        found.directories.into_iter().map(PathBuf::from).collect(),
    ))
}

/// Whether a data directory is the one of this store with this index.
///
/// # Errors
/// `MissingDirectory` where nothing of a store is in it, `Corrupt`, `Unsupported`, `Io`.
pub(crate) fn check_part(place: &dyn Directory, store: &[u8; 16], index: usize) -> Result<()> {
    let content = match read_whole(place, PART_NAME, 4096) {
        Err(Error::Corrupt { .. }) if is_bare(place) => {
            let path = place.path().to_path_buf();
            let empty = true;
            return Err(Error::MissingDirectory { index, path, empty });
        }
        read => read?,
    };
    let path = place.path().join(PART_NAME);
    let found = identity::decode_part(&content, store).map_err(|e| e.at(&path))?;
    if found as usize != index {
        let what = format!("data directory {found} stands in the place of {index}");
        return Err(Error::corrupt(&path, 0, what));
    }
    Ok(())
}

/// Whether nothing of a store is in a directory, as where a file system is not mounted.
fn is_bare(place: &dyn Directory) -> bool {
    let of_store = |name: &str| name == PART_NAME || format::parse_file_name(name).is_some();
    place
        .list()
        .is_ok_and(|names| !names.iter().any(|e| of_store(&e.name)))
}

/// Opens a directory, made if it is missing; its name is durable then.
pub(crate) fn make_dir(disk: &dyn Disk, path: &Path) -> Result<Arc<dyn Directory>> {
    make_dir_by(path, &|path| disk.open_dir(path))
}

/// The same, by a path that starts at an open directory.
pub(crate) fn make_dir_in(base: &dyn Directory, path: &Path) -> Result<Arc<dyn Directory>> {
    make_dir_by(path, &|path| base.open_dir(path))
}

fn make_dir_by(
    path: &Path,
    open: &dyn Fn(&Path) -> std::io::Result<Arc<dyn Directory>>,
) -> Result<Arc<dyn Directory>> {
    let failed = |e| Error::io("open the directory", path, e);
    let (Some(name), Some(parent)) = (path.file_name(), path.parent()) else {
        return open(path).map_err(failed);
    };
    let parent = match parent.as_os_str().is_empty() {
        true => Path::new("."),
        false => parent,
    };
    let existing = open(path);
    let parent = match (open(parent), &existing) {
        (Ok(parent), _) => parent,
        // Who may not look into the directory above can still use one that is there.
        (Err(e), Ok(_)) if e.kind() == ErrorKind::PermissionDenied => {
            return existing.map_err(failed);
        }
        (Err(e), _) => return Err(failed(e)),
    };
    let made = match existing {
        Ok(made) => made,
        Err(e) if e.kind() == ErrorKind::NotFound => {
            match parent.create_dir(name) {
                Err(e) if e.kind() != ErrorKind::AlreadyExists => {
                    let path = parent.path().join(name);
                    return Err(refused("create the directory", &*parent, &path, 0, e));
                }
                _ => {}
            }
            open(path).map_err(failed)?
        }
        Err(e) => return Err(failed(e)),
    };
    sync(&*parent)?;
    Ok(made)
}

#[cfg(test)]
mod tests;
