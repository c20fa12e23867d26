//! When is a new file or folder durable, and its name?
//!
//! - A name is durable once the folder that holds it is synced.

use std::fs::File;
use std::io::Write;
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

/// Writes a new file, and syncs it; not its name.
///
/// # Errors
/// `Io`, `NoSpace`.
pub fn write_new(folder: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let path = folder.join(name);
    let done = File::create_new(&path).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    Ok(done.map_err(|e| Error::io("write", &path, e))?)
}

/// Makes the names in a folder durable.
///
/// # Errors
/// What the file system says.
pub fn sync_folder(folder: &Path) -> Result<()> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    Ok(synced.map_err(|e| Error::io("sync", folder, e))?)
}
