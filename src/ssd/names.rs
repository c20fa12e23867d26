//! What are the files in a store's directories called?

use std::path::Path;

use crate::error::{ArgumentError, Error, Result};
use crate::format::{CURRENT_NAME, STORE_NAME};
use crate::io::Directory;

/// Name of the writer's lock file.
pub const LOCK_NAME: &str = "LOCK";

/// Name of the file that says who writes, where locks do not keep all others out.
pub(crate) const WRITER_NAME: &str = "WRITER";

/// Name under which STORE is written before it is renamed.
pub(crate) const STORE_TEMPORARY_NAME: &str = "STORE.tmp";

/// Files that belong to the root beside numbered ones.
pub(super) fn is_fixed_name(name: &str) -> bool {
    [CURRENT_NAME, STORE_NAME, LOCK_NAME, WRITER_NAME].contains(&name)
}

/// The names in a directory.
pub(crate) fn list(place: &dyn Directory) -> Result<Vec<String>> {
    let entries = place
        .list()
        .map_err(|e| Error::io("list", place.path(), e))?;
    Ok(entries.into_iter().map(|entry| entry.name).collect())
}

/// A data directory's path as STORE holds it.
///
/// # Errors
/// `InvalidArgument` when it is not UTF-8.
pub(crate) fn stored_name(path: &Path) -> Result<String> {
    match path.to_str() {
        Some(name) => Ok(name.to_owned()),
        None => Err(ArgumentError::Option {
            name: "data_directories",
            value: path.to_string_lossy().into_owned(),
            why: String::from("the path is not UTF-8, as STORE keeps it"),
        }
        .into()),
    }
}

/// The error for a directory that holds no store.
pub(super) fn not_a_store(path: &Path, why: &str) -> Error {
    ArgumentError::NotAStore {
        path: path.to_path_buf(),
        why: why.to_owned(),
    }
    .into()
}
