//! In which folder does a new file or folder stand, and when is its name durable?
//!
//! - A name is durable once the folder that holds it is synced.

use std::fs::File;
use std::path::Path;

use anyhow::Result;
use hps::Error;

/// The folder in which a file is.
#[must_use]
pub fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Makes the names in a folder durable.
///
/// # Errors
/// What the file system says.
pub fn sync_folder(folder: &Path) -> Result<()> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    Ok(synced.map_err(|e| Error::io("sync", folder, e))?)
}
