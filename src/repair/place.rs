//! Where does the repaired store stand, and what may be removed there?
//!
//! - Beside the damaged one: `DIR.repair`. A data directory elsewhere gets a new one inside it,
//!   `repaired-1`, so that hard links work.
//! - A file REPAIR says of `DIR.repair` that it is not finished, and which data directories were made
//!   for it: only what it names is ever cleared, and only files with names of the store's kinds.

use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use crate::error::{Error, Invalid, Result};
use crate::format::{CURRENT_NAME, CURRENT_TEMPORARY_NAME, PART_NAME, STORE_NAME, parse_file_name};
use crate::io::Disk;
use crate::ssd::create::{STORE_TEMPORARY_NAME, make_dir, write_whole};
use crate::ssd::recover::{LOCK_NAME, read_whole};

/// Stands in a repaired store until it has taken the damaged one's place for good.
pub(super) const MARKER_NAME: &str = "REPAIR";
/// Of such a file.
const MARKER_BYTES_MAX: u64 = 1 << 20;

/// A data directory of both stores.
#[derive(Debug)]
pub(super) struct Part {
    /// Of the damaged store.
    pub old: PathBuf,
    /// Of the repaired one.
    pub new: PathBuf,
    /// As its STORE names it.
    pub name: String,
    /// It stands inside the repaired store.
    pub inside: bool,
}

/// The places of the data directories; new ones elsewhere have names that were free.
///
/// # Errors
/// `Io` when a place can't be looked at.
pub(super) fn parts(
    disk: &dyn Disk,
    root: &Path,
    path: &Path,
    names: &[PathBuf],
) -> Result<Vec<Part>> {
    let mut parts: Vec<Part> = Vec::new();
    for name in names {
        let old = root.join(name);
        if name.components().all(|c| matches!(c, Component::Normal(_))) {
            parts.push(Part {
                old,
                new: path.join(name),
                name: name.to_string_lossy().into_owned(),
                inside: true,
            });
            continue;
        }
        let own = old
            .file_name()
            .is_some_and(|n| n.to_string_lossy().starts_with("repaired-"));
        let base = match old.parent() {
            Some(parent) if own => parent,
            _ => &old,
        };
        let mut n = 1;
        let new = loop {
            let new = base.join(format!("repaired-{n}"));
            let free = match disk.list(&new) {
                Ok(names) => names.is_empty(),
                Err(e) if e.kind() == ErrorKind::NotFound => true,
                Err(e) => return Err(Error::io("list", &new, e)),
            };
            if free && parts.iter().all(|part| part.new != new) {
                break new;
            }
            n += 1;
        };
        parts.push(Part {
            name: new.to_string_lossy().into_owned(),
            old,
            new,
            inside: false,
        });
    }
    Ok(parts)
}

/// Makes the directory of the repaired store, with its marker.
///
/// # Errors
/// `Io`.
pub(super) fn begin(disk: &dyn Disk, path: &Path, parts: &[Part]) -> Result<()> {
    make_dir(disk, path)?;
    let outside: Vec<&str> = parts
        .iter()
        .filter(|part| !part.inside)
        .map(|part| part.name.as_str())
        .collect();
    write_whole(disk, &path.join(MARKER_NAME), outside.join("\n").as_bytes())?;
    sync(disk, path)?;
    parts.iter().try_for_each(|part| match part.inside {
        true => make(disk, path, &part.new),
        false => make_dir(disk, &part.new),
    })
}

/// Makes a directory, and those above it up to `root`.
fn make(disk: &dyn Disk, root: &Path, directory: &Path) -> Result<()> {
    let above: Vec<&Path> = directory
        .ancestors()
        .take_while(|d| *d != root && d.starts_with(root))
        .collect();
    above.into_iter().rev().try_for_each(|d| make_dir(disk, d))
}

/// Makes the names in a directory durable.
pub(super) fn sync(disk: &dyn Disk, path: &Path) -> Result<()> {
    disk.sync_dir(path)
        .map_err(|e| Error::io("sync the directory", path, e))
}

/// Whether the directory holds a repaired store that has not taken its place for good.
///
/// # Errors
/// `Io`.
pub(super) fn is_marked(disk: &dyn Disk, path: &Path) -> Result<bool> {
    match disk.list(path) {
        Ok(names) => Ok(names.iter().any(|e| e.name == MARKER_NAME)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
        Err(e) => Err(Error::io("list", path, e)),
    }
}

/// Removes a repaired store that is not finished, with its data directories' files.
///
/// # Errors
/// `InvalidArgument` when there is something else; nothing is removed then. `Io`.
pub(super) fn clear(disk: &dyn Disk, path: &Path, parts: &[PathBuf]) -> Result<()> {
    let names = match disk.list(path) {
        Ok(names) => names,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(Error::io("list", path, e)),
    };
    let marker = path.join(MARKER_NAME);
    if !names.iter().any(|e| e.name == MARKER_NAME) {
        if names.iter().any(|e| e.is_file) {
            return Err(in_the_way(path, "is no unfinished repair"));
        }
        return Ok(());
    }
    let outside = read_whole(disk, &marker, MARKER_BYTES_MAX)?;
    let outside = String::from_utf8_lossy(&outside).into_owned();
    let outside = outside.lines().filter(|l| !l.is_empty()).map(PathBuf::from);
    let inside = parts.iter().map(|name| path.join(name));
    for directory in outside.chain(inside) {
        clear_files(disk, &directory)?;
    }
    clear_files(disk, path)?;
    sync(disk, path)?;
    remove(disk, &marker)
}

fn in_the_way(path: &Path, why: &str) -> Error {
    let why = format!("{why}, and a repaired store would be built here; move it away");
    Invalid::NotAStore {
        path: path.to_path_buf(),
        why,
    }
    .into()
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

/// Removes a store's files from one directory, STORE first.
fn clear_files(disk: &dyn Disk, directory: &Path) -> Result<()> {
    let names = match disk.list(directory) {
        Ok(names) => names,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(Error::io("list", directory, e)),
    };
    let files = names.into_iter().filter(|e| e.is_file).map(|e| e.name);
    let mut names: Vec<String> = files.filter(|name| name != MARKER_NAME).collect();
    if let Some(stranger) = names.iter().find(|name| !is_ours(name)) {
        return Err(in_the_way(directory, &format!("holds {stranger:?}")));
    }
    names.sort_by_key(|name| name != STORE_NAME);
    names
        .iter()
        .try_for_each(|name| remove(disk, &directory.join(name)))
}

pub(super) fn remove(disk: &dyn Disk, path: &Path) -> Result<()> {
    disk.remove(path).map_err(|e| Error::io("remove", path, e))
}
