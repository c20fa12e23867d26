//! How does a store come into being?
//!
//! Invariants:
//! - Every file is durable before STORE is: a directory holds a store if and only if it holds
//!   STORE, and creation that was cut short is told from a damaged store.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::edits;
use super::recover::{lock_writer, not_a_store};
use super::space::refused;
use super::version::Versions;
use crate::error::{Error, Invalid, Result};
use crate::format::current::Current;
use crate::format::identity::{StoreIdentity, encode_part};
use crate::format::manifest::CheckpointMeta;
use crate::format::{self, CURRENT_NAME, PART_NAME, STORE_NAME, manifest_names};
use crate::io::{Directory, Disk, OpenMode};

/// Name under which STORE is written before it is renamed.
pub(crate) const STORE_TEMPORARY_NAME: &str = "STORE.tmp";

/// Makes an empty store. `root` may be missing or empty; data directories too.
///
/// # Errors
/// `InvalidArgument` when there is a store or foreign files, `Locked`, `NoSpace`, `Io`.
pub fn create(
    disk: &dyn Disk,
    root: &Path,
    directories: &[PathBuf],
    store: [u8; 16],
    branch: [u8; 16],
) -> Result<()> {
    let stored = stored_names(directories)?;
    let root = make_dir(disk, root)?;
    let names = list(&*root)?;
    if names.iter().any(|name| name == STORE_NAME) {
        let path = root.path().to_path_buf();
        return Err(Invalid::AlreadyAStore { path }.into());
    }
    if let Some(stranger) = names.first() {
        let why = format!("the directory is not empty ({stranger:?}); choose another");
        return Err(not_a_store(root.path(), &why));
    }
    let _locks = lock_writer(&*root)?;
    for (i, name) in stored.iter().enumerate() {
        let part = make_dir_in(&*root, Path::new(name))?;
        let index = u32::try_from(i).unwrap_or(u32::MAX);
        if !list(&*part)?.is_empty() {
            return Err(not_a_store(
                part.path(),
                "the data directory is not empty; choose another",
            ));
        }
        write_whole(&*part, PART_NAME, &encode_part(&store, index))?;
        sync(&*part)?;
    }
    let commit = edits::snapshot(&Versions::default(), branch, 0, &[], &[], None, None);
    write_root(&*root, store, branch, &stored, &commit, None)
}

/// The data directories as STORE names them.
fn stored_names(directories: &[PathBuf]) -> Result<Vec<String>> {
    if directories.is_empty() {
        return Ok(vec![String::from("part-0")]);
    }
    directories.iter().map(|d| stored_name(d)).collect()
}

/// A data directory's path as STORE holds it.
///
/// # Errors
/// `InvalidArgument` when it is not UTF-8.
pub(crate) fn stored_name(path: &Path) -> Result<String> {
    match path.to_str() {
        Some(name) => Ok(name.to_owned()),
        None => Err(Invalid::Option {
            name: "data_directories",
            value: path.to_string_lossy().into_owned(),
            why: String::from("the path is not UTF-8, as STORE keeps it"),
        }
        .into()),
    }
}

/// The names in a directory.
pub(crate) fn list(place: &dyn Directory) -> Result<Vec<String>> {
    let entries = place
        .list()
        .map_err(|e| Error::io("list", place.path(), e))?;
    Ok(entries.into_iter().map(|entry| entry.name).collect())
}

/// Makes the names in a directory durable.
pub(crate) fn sync(place: &dyn Directory) -> Result<()> {
    let synced = place.sync();
    synced.map_err(|e| refused("sync the directory", place, place.path(), 0, e))
}

/// What a store that did not begin empty goes on with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Next {
    /// The file number of its manifest.
    pub number: u64,
    /// The id of its next checkpoint.
    pub checkpoint: u64,
}

/// Writes manifest 1 and its copy, CURRENT and, last, STORE.
pub(crate) fn write_root(
    root: &dyn Directory,
    store: [u8; 16],
    branch: [u8; 16],
    directories: &[String],
    commit: &edits::Commit,
    checkpoint: Option<(&CheckpointMeta, Next)>,
) -> Result<()> {
    let number = checkpoint.map_or(1, |(_, next)| next.number);
    let file_identity = format::FileIdentity::new(store, number);
    let mut bytes = Vec::new();
    let (header, mut digest) = format::manifest::encode_manifest_header(&file_identity);
    bytes.extend_from_slice(&header);
    for edit in &commit.edits {
        let offset = bytes.len() as u64;
        format::manifest::encode_edit(edit, &file_identity, offset, &mut bytes, &mut digest);
    }
    for name in manifest_names(number) {
        write_whole(root, &name, &bytes)?;
    }
    let current = Current {
        branch,
        manifest_number: number,
        manifest_bytes: bytes.len() as u64,
        manifest_digest: digest,
        checkpoint_id: checkpoint.map_or(0, |(c, _)| c.id),
        step: checkpoint.map_or(0, |(c, _)| c.step),
        file_number_limit: number + 1,
        next_checkpoint_id: checkpoint.map_or(1, |(_, next)| next.checkpoint),
    };
    write_whole(root, CURRENT_NAME, &current.encode(&store))?;
    sync(root)?;
    let content = StoreIdentity {
        uuid: store,
        directories: directories.to_vec(),
    }
    .encode()?;
    write_whole(root, STORE_TEMPORARY_NAME, &content)?;
    let path = root.path().join(STORE_TEMPORARY_NAME);
    root.rename(STORE_TEMPORARY_NAME.as_ref(), STORE_NAME.as_ref())
        .map_err(|e| refused("rename", root, &path, 0, e))?;
    sync(root)
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

/// Creates a file of small content and syncs it.
///
/// # Errors
/// `NoSpace`, `Io`.
pub(crate) fn write_whole(place: &dyn Directory, name: &str, content: &[u8]) -> Result<()> {
    let bytes = content.len() as u64;
    let failed = |operation, e| refused(operation, place, &place.path().join(name), bytes, e);
    let file = place
        .open(name, OpenMode::Create)
        .map_err(|e| failed("create", e))?;
    file.write_at(content, 0).map_err(|e| failed("write", e))?;
    file.sync().map_err(|e| failed("sync", e))
}
