//! How does the repaired store take the damaged one's place?
//!
//! - By one exchange of two names, where the file system can: at any moment there is a store.
//! - The damaged store is kept, under a name that was free.
//! - The repaired one is marked until the damaged one has that name: what a crash cut short is ended
//!   by the next repair.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::path::Path;

use super::layout::{MARKER_NAME, is_marked, open_if_there, remove};
use crate::error::{Error, Result};
use crate::io::Directory;
use crate::ssd::small_files::sync;
use crate::ssd::space::refused;

/// Exchanges `root` and `repaired`, names in `parent`, and moves what was `root` aside; returns the
/// name that it has then.
pub(super) fn swap(parent: &dyn Directory, root: &OsStr, repaired: &OsStr) -> Result<OsString> {
    match parent.exchange(root, repaired) {
        Ok(()) => sync(parent)?,
        Err(e) if e.kind() == ErrorKind::Unsupported || e.kind() == ErrorKind::InvalidInput => {
            let aside = free_name(parent, root)?;
            rename(parent, root, &aside)?;
            if let Err(error) = rename(parent, repaired, root) {
                rename(parent, &aside, root)?;
                return Err(error);
            }
            end(parent, root)?;
            return Ok(aside);
        }
        Err(e) => {
            let path = parent.path().join(root);
            return Err(Error::io("exchange with the repaired store", &path, e));
        }
    }
    finish(parent, root, repaired).map(|aside| aside.unwrap_or_else(|| repaired.to_owned()))
}

/// Ends a swap whose names were exchanged; gives the damaged store's name, if it was not there yet.
pub(super) fn finish(
    parent: &dyn Directory,
    root: &OsStr,
    repaired: &OsStr,
) -> Result<Option<OsString>> {
    let marked = |name: &OsStr| match open_if_there(parent, Path::new(name))? {
        Some(place) => is_marked(&*place).map(Some),
        None => Ok(None),
    };
    if marked(root)? != Some(true) {
        return Ok(None);
    }
    let mut aside = None;
    if marked(repaired)? == Some(false) {
        let name = free_name(parent, root)?;
        rename(parent, repaired, &name)?;
        aside = Some(name);
    }
    end(parent, root)?;
    Ok(aside)
}

fn end(parent: &dyn Directory, root: &OsStr) -> Result<()> {
    sync(parent)?;
    let Some(place) = open_if_there(parent, Path::new(root))? else {
        let path = parent.path().join(root);
        return Err(Error::io("open", &path, ErrorKind::NotFound.into()));
    };
    remove(&*place, MARKER_NAME)?;
    sync(&*place)
}

fn rename(parent: &dyn Directory, source: &OsStr, target: &OsStr) -> Result<()> {
    let renamed = parent.rename(source, target);
    renamed.map_err(|e| refused("rename", parent, &parent.path().join(source), 0, e))
}

fn free_name(parent: &dyn Directory, root: &OsStr) -> Result<OsString> {
    let failed = |operation, e| Error::io(operation, &parent.path().join(root), e);
    for n in 1..=1000 {
        let mut name = root.to_os_string();
        name.push(".damaged");
        if n > 1 {
            name.push(format!("-{n}"));
        }
        match parent.open_dir(Path::new(&name)) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(name),
            Err(e) if e.kind() != ErrorKind::NotADirectory => {
                return Err(failed("find a free name beside", e));
            }
            _ => {}
        }
    }
    Err(failed(
        "find a free name beside",
        ErrorKind::AlreadyExists.into(),
    ))
}

#[cfg(test)]
mod tests;
