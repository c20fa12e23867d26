//! How does a store come into being?
//!
//! Invariants:
//! - Every file is durable before STORE is: a directory holds a store if and only if it holds
//!   STORE, and creation that was cut short is told from a damaged store.

use std::path::{Path, PathBuf};

use super::directories::{make_dir, make_dir_in};
use super::edits::{self, Start};
use super::hyper::HyperHistory;
use super::lock::lock_writer;
use super::names::{LOCK_NAME, STORE_TEMPORARY_NAME, list, not_a_store, stored_name};
use super::small_files::{remove_if_there, sync, write_last, write_whole};
use super::tables::TableHistory;
use super::version::{Cursors, Versions};
use super::writer_file::is_writer_name;
use crate::error::{ArgumentError, Result};
use crate::format::current::Current;
use crate::format::identity::{StoreIdentity, encode_part};
use crate::format::manifest::{CheckpointMeta, encode_manifest};
use crate::format::{self, CURRENT_NAME, PART_NAME, STORE_NAME, Version, manifest_names};
use crate::io::{Directory, Disk};
use crate::units::{CheckpointId, FileNumber};

/// What is done with what a create that was cut short has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfinished {
    /// The directory is not empty: an error.
    Refused,
    /// The create is begun again.
    BegunAgain,
}

/// Makes an empty store. `root` may be missing or empty; data directories too. Its uuid and its
/// timeline's are given.
///
/// # Errors
/// `InvalidArgument` when there is a store or foreign files, `Locked`, `NoSpace`, `Io`.
pub fn create(
    disk: &dyn Disk,
    root: &Path,
    directories: &[PathBuf],
    (store, timeline): ([u8; 16], [u8; 16]),
    unfinished: Unfinished,
) -> Result<()> {
    let stored = stored_names(directories)?;
    let root = make_dir(disk, root)?;
    let again = unfinished == Unfinished::BegunAgain;
    check_root(&*root, &stored, again)?;
    let _locks = lock_writer(&root)?;
    // Whoever had the lock until now may have finished.
    check_root(&*root, &stored, true)?;
    let mut parts = Vec::new();
    for name in &stored {
        let part = make_dir_in(&*root, Path::new(name))?;
        check_empty_part(&*part, again)?;
        parts.push(part);
    }
    if again {
        // Nothing of a row is there; what is, is of a create that nobody saw the end of.
        for name in root_leftovers() {
            remove_if_there(&*root, &name)?;
        }
    }
    for (index, part) in (0..).zip(&parts) {
        if again {
            remove_if_there(&**part, PART_NAME)?;
        }
        write_whole(&**part, PART_NAME, &encode_part(&store, index))?;
        sync(&**part)?;
    }
    let start = Start {
        timeline,
        parent: CheckpointId::NONE,
        tables: &TableHistory::default(),
        checkpoints: &[],
        hyper: &HyperHistory::default(),
        cursors: &Cursors::default(),
        snapshot: &[],
    };
    let commit = edits::snapshot(&Versions::default(), &start);
    write_root(&*root, store, timeline, &stored, &commit, None).map(drop)
}

/// Files that a create makes in the store's directory before STORE, LOCK excepted.
fn root_leftovers() -> Vec<String> {
    let mut names = vec![CURRENT_NAME.to_owned(), STORE_TEMPORARY_NAME.to_owned()];
    names.extend(manifest_names(FileNumber::FIRST));
    names
}

/// Fails unless a store can be made here: the directory is empty or, when a create is begun again,
/// has nothing but what that leaves.
fn check_root(root: &dyn Directory, stored: &[String], again: bool) -> Result<()> {
    let names = list(root)?;
    if names.iter().any(|name| name == STORE_NAME) {
        let path = root.path().to_path_buf();
        return Err(ArgumentError::AlreadyAStore { path }.into());
    }
    let leftovers = root_leftovers();
    let is_part = |name: &String| stored.iter().any(|part| Path::new(part).starts_with(name));
    let is_leftover = |name: &String| {
        again
            && (name == LOCK_NAME
                || is_writer_name(name)
                || leftovers.contains(name)
                || is_part(name))
    };
    match names.iter().find(|name| !is_leftover(name)) {
        None => Ok(()),
        Some(stranger) => {
            let why = format!("the directory is not empty ({stranger:?}); choose another");
            Err(not_a_store(root.path(), &why))
        }
    }
}

/// The same of a data directory.
fn check_empty_part(part: &dyn Directory, again: bool) -> Result<()> {
    let is_leftover = |name: &String| again && name == PART_NAME;
    if list(part)?.iter().all(is_leftover) {
        return Ok(());
    }
    let why = "the data directory is not empty; choose another";
    Err(not_a_store(part.path(), why))
}

/// The data directories as STORE names them.
fn stored_names(directories: &[PathBuf]) -> Result<Vec<String>> {
    if directories.is_empty() {
        return Ok(vec![String::from("part-0")]);
    }
    directories.iter().map(|d| stored_name(d)).collect()
}

/// What a store that did not begin empty goes on with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Next {
    /// The file number of its manifest.
    pub number: FileNumber,
    /// The id of its next checkpoint.
    pub checkpoint: CheckpointId,
}

/// Writes manifest 1 and its copy, CURRENT, which it gives, and, last, STORE.
pub(crate) fn write_root(
    root: &dyn Directory,
    store: [u8; 16],
    timeline: [u8; 16],
    directories: &[String],
    commit: &edits::Commit,
    checkpoint: Option<(&CheckpointMeta, Next)>,
) -> Result<Current> {
    let number = checkpoint.map_or(FileNumber::FIRST, |(_, next)| next.number);
    let file_identity = format::FileIdentity::new(store, number);
    let version = Version::NEWEST;
    let (bytes, digest) = encode_manifest(version, &commit.edits, &file_identity);
    for name in manifest_names(number) {
        write_whole(root, &name, &bytes)?;
    }
    let current = Current {
        version,
        timeline,
        manifest_number: number,
        manifest_bytes: bytes.len() as u64,
        manifest_digest: digest,
        checkpoint_id: checkpoint.map_or(CheckpointId::NONE, |(c, _)| c.id),
        step: checkpoint.map_or(0, |(c, _)| c.step),
        file_number_limit: number.next(),
        next_checkpoint_id: checkpoint
            .map_or(CheckpointId::NONE.next(), |(_, next)| next.checkpoint),
    };
    write_whole(root, CURRENT_NAME, &current.encode(&store))?;
    sync(root)?;
    let content = StoreIdentity {
        uuid: store,
        directories: directories.to_vec(),
    }
    .encode()?;
    write_last(root, STORE_TEMPORARY_NAME, STORE_NAME, &content)?;
    Ok(current)
}

#[cfg(test)]
mod tests;
