//! How does a store come into being?
//!
//! Invariants:
//! - Every file is durable before STORE is: a directory holds a store if and only if it holds
//!   STORE, and creation that was cut short is told from a damaged store.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::edits;
use super::recover::{LOCK_NAME, lock, not_a_store};
use super::version::Versions;
use crate::error::{Error, Invalid, Result};
use crate::format::current::Current;
use crate::format::identity::{StoreIdentity, encode_part};
use crate::format::manifest::CheckpointMeta;
use crate::format::{self, CURRENT_NAME, PART_NAME, STORE_NAME, manifest_paths};
use crate::io::{Disk, LockKind, OpenMode};

/// Name under which STORE is written before it is renamed.
pub(crate) const STORE_TEMPORARY_NAME: &str = "STORE.tmp";

/// Of the uuids made in this process.
static UUIDS: AtomicU64 = AtomicU64::new(1);

/// 16 bytes that no other store or branch has.
#[must_use]
pub fn fresh_uuid(path: &Path) -> [u8; 16] {
    use std::hash::{BuildHasher, Hasher};
    let mut bytes = [0; 16];
    for half in bytes.chunks_exact_mut(8) {
        // The standard library seeds each of these from the system's random numbers.
        let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
        hasher.write_u64(UUIDS.fetch_add(1, Ordering::Relaxed));
        hasher.write(path.as_os_str().as_encoded_bytes());
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        hasher.write_u128(now.map_or(0, |d| d.as_nanos()));
        hasher.write_u32(std::process::id());
        half.copy_from_slice(&hasher.finish().to_le_bytes());
    }
    bytes
}

/// Makes an empty store. `root` may be missing or empty; data directories too.
///
/// # Errors
/// `InvalidArgument` when there is a store or foreign files, `Locked`, `Io`.
pub fn create(
    disk: &dyn Disk,
    root: &Path,
    directories: &[PathBuf],
    store: [u8; 16],
    branch: [u8; 16],
) -> Result<()> {
    make_dir(disk, root)?;
    let names = disk.list(root).map_err(|e| Error::io("list", root, e))?;
    if names.iter().any(|e| e.name == STORE_NAME) {
        return Err(Invalid::AlreadyAStore {
            path: root.to_path_buf(),
        }
        .into());
    }
    if let Some(stranger) = names.first() {
        let why = format!(
            "the directory is not empty ({:?}); choose another",
            stranger.name
        );
        return Err(not_a_store(root, &why));
    }
    let _lock = lock(disk, &root.join(LOCK_NAME), LockKind::Exclusive, true)?;
    let stored: Vec<String> = if directories.is_empty() {
        vec![String::from("part-0")]
    } else {
        directories
            .iter()
            .map(|d| d.to_string_lossy().into_owned())
            .collect()
    };
    for (i, name) in stored.iter().enumerate() {
        let path = root.join(name);
        make_dir(disk, &path)?;
        let index = u32::try_from(i).unwrap_or(u32::MAX);
        let names = disk.list(&path).map_err(|e| Error::io("list", &path, e))?;
        if !names.is_empty() {
            return Err(not_a_store(
                &path,
                "the data directory is not empty; choose another",
            ));
        }
        write_whole(disk, &path.join(PART_NAME), &encode_part(&store, index))?;
        disk.sync_dir(&path)
            .map_err(|e| Error::io("sync the directory", &path, e))?;
        if let Some(parent) = path.parent() {
            disk.sync_dir(parent)
                .map_err(|e| Error::io("sync the directory", parent, e))?;
        }
    }
    let commit = edits::snapshot(&Versions::default(), branch, 0, &[], &[], None, None);
    write_root(disk, root, store, branch, &stored, &commit, None)
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
    disk: &dyn Disk,
    root: &Path,
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
    for path in manifest_paths(root, number) {
        write_whole(disk, &path, &bytes)?;
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
    write_whole(disk, &root.join(CURRENT_NAME), &current.encode(&store))?;
    let sync = |path: &Path| {
        disk.sync_dir(path)
            .map_err(|e| Error::io("sync the directory", path, e))
    };
    sync(root)?;
    let content = StoreIdentity {
        uuid: store,
        directories: directories.to_vec(),
    }
    .encode()?;
    let temporary = root.join(STORE_TEMPORARY_NAME);
    write_whole(disk, &temporary, &content)?;
    disk.rename(&temporary, &root.join(STORE_NAME))
        .map_err(|e| Error::io("rename", &temporary, e))?;
    sync(root)
}

pub(crate) fn make_dir(disk: &dyn Disk, path: &Path) -> Result<()> {
    match disk.create_dir(path) {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(Error::io("create the directory", path, e)),
        Ok(()) => match path.parent().filter(|p| !p.as_os_str().is_empty()) {
            Some(parent) => disk
                .sync_dir(parent)
                .map_err(|e| Error::io("sync the directory", parent, e)),
            None => Ok(()),
        },
    }
}

/// Creates a file of small content and syncs it.
pub(crate) fn write_whole(disk: &dyn Disk, path: &Path, content: &[u8]) -> Result<()> {
    let file = disk
        .open(path, OpenMode::Create)
        .map_err(|e| Error::io("create", path, e))?;
    file.write_at(content, 0)
        .map_err(|e| Error::io("write", path, e))?;
    file.sync().map_err(|e| Error::io("sync", path, e))
}
