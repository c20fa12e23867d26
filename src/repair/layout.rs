//! Where does the repaired store stand, and what may be removed there?
//!
//! - Beside the damaged one: `DIR.repair`. A data directory elsewhere gets a new one inside it,
//!   `repaired-1`, so that hard links work.
//! - A file REPAIR says of `DIR.repair` that it is not finished, and which data directories were made
//!   for it: only what it names is ever cleared, and only files with names of the store's kinds.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use crate::error::{ArgumentError, Error, Result};
use crate::format::{CURRENT_NAME, CURRENT_TEMPORARY_NAME, PART_NAME, STORE_NAME, parse_file_name};
use crate::io::Directory;
use crate::ssd::directories::make_dir_in;
use crate::ssd::names::{LOCK_NAME, STORE_TEMPORARY_NAME, list, stored_name};
use crate::ssd::small_files::{read_whole, sync, write_whole};

/// Stands in a repaired store until it has taken the damaged one's place for good.
pub(super) const MARKER_NAME: &str = "REPAIR";
/// Of such a file.
const MARKER_BYTES_MAX: u64 = 1 << 20;

/// A data directory of both stores.
#[derive(Debug)]
pub(super) struct Part {
    /// Of the damaged store.
    pub old: PathBuf,
    /// That, if it is there.
    pub source: Option<Arc<dyn Directory>>,
    /// Of the repaired one.
    pub new: PathBuf,
    /// That, once it is made.
    pub made: Option<Arc<dyn Directory>>,
    /// As its STORE names it: from there, or absolute.
    pub name: String,
    /// It stands inside the repaired store.
    pub inside: bool,
    /// It is lost: nothing of it is looked for.
    pub given_up: bool,
}

impl Part {
    /// The new directory.
    pub fn place(&self) -> Result<&Arc<dyn Directory>> {
        let gone = || Error::io("open", &self.new, ErrorKind::NotFound.into());
        self.made.as_ref().ok_or_else(gone)
    }
}

/// Opens a directory, if there is one.
pub(super) fn open_if_there(
    place: &dyn Directory,
    path: &Path,
) -> Result<Option<Arc<dyn Directory>>> {
    match place.open_dir(path) {
        Ok(opened) => Ok(Some(opened)),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(e) => Err(Error::io("open", &place.path().join(path), e)),
    }
}

/// Whether a data directory of this name is inside its store.
fn is_inside(name: &Path) -> bool {
    name.components().all(|c| matches!(c, Component::Normal(_)))
}

/// The places of the data directories; new ones elsewhere have names that were free. `path`: that of
/// the repaired store, beside `root`. One of those `lost` stands where it stood if there is an empty
/// directory (a new device, perhaps), else inside the repaired store.
///
/// # Errors
/// `Io` when a place can't be looked at.
pub(super) fn parts(
    root: &dyn Directory,
    path: &Path,
    names: &[PathBuf],
    lost: &[usize],
) -> Result<Vec<Part>> {
    let mut parts: Vec<Part> = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let given_up = lost.contains(&index);
        let old = root.path().join(name);
        let found = open_if_there(root, name);
        let (source, usable) = match found {
            // The device of one that is lost may still answer, with errors.
            _ if given_up => (None, found.is_ok_and(|found| found.is_some())),
            found => (found?, true),
        };
        let (new, inside) = if is_inside(name) {
            (stored_name(name)?, true)
        } else if usable {
            (free_name(root, name, &parts)?, false)
        } else {
            (name_inside(index, names)?, true)
        };
        parts.push(Part {
            old,
            source,
            new: match inside {
                true => path.join(&new),
                false => root.path().join(&new),
            },
            made: None,
            name: new,
            inside,
            given_up,
        });
    }
    Ok(parts)
}

/// A name for a new data directory in one elsewhere, or beside it.
fn free_name(root: &dyn Directory, name: &Path, parts: &[Part]) -> Result<String> {
    let own = |n: &OsStr| n.to_string_lossy().starts_with("repaired-");
    let base = match name.parent() {
        Some(parent) if name.file_name().is_some_and(own) => parent,
        _ => name,
    };
    let mut n = 1;
    loop {
        let new = stored_name(&base.join(format!("repaired-{n}")))?;
        let free = match open_if_there(root, Path::new(&new))? {
            Some(place) => list(&*place)?.is_empty(),
            None => true,
        };
        if free && parts.iter().all(|part| part.name != new) {
            return Ok(new);
        }
        n += 1;
    }
}

/// A name inside the repaired store for a data directory that stood elsewhere.
fn name_inside(index: usize, names: &[PathBuf]) -> Result<String> {
    let mut name = PathBuf::from(format!("part-{index}"));
    while names.contains(&name) {
        name.as_mut_os_string().push("-new");
    }
    stored_name(&name)
}

/// Makes the directory of the repaired store, with its marker.
///
/// # Errors
/// `Io`.
pub(super) fn begin(
    parent: &dyn Directory,
    name: &OsStr,
    parts: &mut [Part],
) -> Result<Arc<dyn Directory>> {
    let place = make_dir_in(parent, Path::new(name))?;
    let outside: Vec<&str> = parts
        .iter()
        .filter(|part| !part.inside || part.given_up)
        .map(|part| part.name.as_str())
        .collect();
    write_whole(&*place, MARKER_NAME, outside.join("\n").as_bytes())?;
    sync(&*place)?;
    for part in parts {
        let path = Path::new(&part.name);
        // Those above it are made as well, inside the store.
        let above = path
            .ancestors()
            .skip(1)
            .filter(|d| part.inside && !d.as_os_str().is_empty());
        for directory in above.collect::<Vec<_>>().into_iter().rev() {
            make_dir_in(&*place, directory)?;
        }
        part.made = Some(make_dir_in(&*place, path)?);
    }
    Ok(place)
}

/// Whether the directory holds a repaired store that has not taken its place for good.
///
/// # Errors
/// `Io`.
pub(super) fn is_marked(place: &dyn Directory) -> Result<bool> {
    Ok(list(place)?.iter().any(|name| name == MARKER_NAME))
}

/// Removes a repaired store that is not finished, with its data directories' files.
///
/// # Errors
/// `InvalidArgument` when there is something else; nothing is removed then. `Io`.
pub(super) fn clear(parent: &dyn Directory, name: &OsStr, parts: &[PathBuf]) -> Result<()> {
    let Some(place) = open_if_there(parent, Path::new(name))? else {
        return Ok(());
    };
    let place = &*place;
    let failed = |e| Error::io("list", place.path(), e);
    let names = place.list().map_err(failed)?;
    if !names.iter().any(|e| e.name == MARKER_NAME) {
        if names.iter().any(|e| e.is_file) {
            return Err(in_the_way(place.path(), "is no unfinished repair"));
        }
        return Ok(());
    }
    let outside = read_whole(place, MARKER_NAME, MARKER_BYTES_MAX)?;
    let outside = String::from_utf8_lossy(&outside).into_owned();
    let outside = outside.lines().filter(|l| !l.is_empty()).map(Path::new);
    // By the name of one elsewhere the damaged store's own directory would be found.
    let inside = parts.iter().map(PathBuf::as_path).filter(|p| is_inside(p));
    for part in outside.chain(inside) {
        if let Some(directory) = open_if_there(place, part)? {
            clear_files(&*directory)?;
        }
    }
    clear_files(place)?;
    sync(place)?;
    remove(place, MARKER_NAME)
}

fn in_the_way(path: &Path, why: &str) -> Error {
    let why = format!("{why}, and a repaired store would be built here; move it away");
    ArgumentError::NotAStore {
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
fn clear_files(directory: &dyn Directory) -> Result<()> {
    let names = directory
        .list()
        .map_err(|e| Error::io("list", directory.path(), e))?;
    let files = names.into_iter().filter(|e| e.is_file).map(|e| e.name);
    let mut names: Vec<String> = files.filter(|name| name != MARKER_NAME).collect();
    if let Some(stranger) = names.iter().find(|name| !is_ours(name)) {
        return Err(in_the_way(directory.path(), &format!("holds {stranger:?}")));
    }
    names.sort_by_key(|name| name != STORE_NAME);
    names.iter().try_for_each(|name| remove(directory, name))
}

pub(super) fn remove(place: &dyn Directory, name: &str) -> Result<()> {
    place
        .remove(name)
        .map_err(|e| Error::io("remove", &place.path().join(name), e))
}

#[cfg(test)]
mod tests;
