//! Which store is this, and which version is the last one, when the files that say so are damaged?
//!
//! - What verifies is believed first: STORE, then PART files; CURRENT, then the newest manifest.
//! - Where a manifest is damaged its copy is read. What neither has is the end: the last checkpoint
//!   before it is believed.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::holes::read_around;
use crate::error::{Error, Result};
use crate::format::current::Current;
use crate::format::manifest::ManifestReader;
use crate::format::{
    FileIdentity, FileKind, PART_NAME, STORE_NAME, file_name, identity, manifest_names,
    parse_file_name,
};
use crate::io::{Directory, OpenMode, is_no_file, is_unreadable};
use crate::ssd::directories::read_store;
use crate::ssd::edits::Replay;
use crate::ssd::manifest_reader::{
    METADATA_BYTES_MAX, read_current, read_current_file, replay_committed,
};
use crate::ssd::small_files::read_whole;
use crate::units::{CheckpointId, FileNumber, to_usize};

/// The store's uuid and its data directories as STORE names them.
///
/// # Errors
/// `InvalidArgument` when `root` is no store, `Corrupt` when nothing says which one it is.
pub(super) fn identity(root: &dyn Directory) -> Result<([u8; 16], Vec<PathBuf>)> {
    let error = match read_store(root) {
        Ok(found) => return Ok(found),
        Err(error) => error,
    };
    let Ok(names) = root.list() else {
        return Err(error);
    };
    let of_store = |name: &str| name == STORE_NAME || parse_file_name(name).is_some();
    if !names.iter().any(|e| of_store(&e.name)) {
        return Err(error);
    }
    let mut stores: BTreeMap<[u8; 16], BTreeMap<u32, PathBuf>> = BTreeMap::new();
    for name in names.iter().filter(|e| !e.is_file) {
        let Ok(place) = root.open_dir(Path::new(&name.name)) else {
            continue;
        };
        let Ok(content) = read_whole(&*place, PART_NAME, 4096) else {
            continue;
        };
        let Some(store) = identity::claimed_store(&content) else {
            continue;
        };
        if let Ok(index) = identity::decode_part(&content, &store) {
            let parts = stores.entry(store).or_default();
            if let Some(other) = parts.insert(index, PathBuf::from(&name.name)) {
                let what = format!(
                    "damaged, and {} and {} both say that they are data directory {index}: move \
                     the wrong one away",
                    other.display(),
                    name.name
                );
                return Err(Error::corrupt(&root.path().join(STORE_NAME), 0, what));
            }
        }
    }
    let whole = |parts: &BTreeMap<u32, PathBuf>| (0..).zip(parts.keys()).all(|(i, k)| i == *k);
    let one = stores.len() == 1;
    match stores.into_iter().next() {
        Some((store, parts)) if one && whole(&parts) => Ok((store, parts.into_values().collect())),
        _ => {
            let path = root.path().join(STORE_NAME);
            let what = "damaged, and no PART file in a directory beside it says which store this \
                        is: it can't be repaired; restore STORE from a backup";
            Err(Error::corrupt(&path, 0, what))
        }
    }
}

/// What the store held, as far as its files still say.
pub(super) struct Version {
    /// What the manifest adds up to.
    pub replay: Replay,
    /// CURRENT, where it is whole.
    pub current: Option<Current>,
    /// The replay is what CURRENT commits.
    pub proven: bool,
    /// What was wrong, if later edits may be lost by that. A damaged CURRENT alone costs nothing: the
    /// manifest goes on at least as far as it said.
    pub lost: Option<Error>,
}

/// Finds the last version that can be read.
///
/// # Errors
/// `Corrupt` when no manifest has a checkpoint that can be read; `Io` for what is no damage.
pub(super) fn versions(root: &dyn Directory, store: &[u8; 16]) -> Result<Version> {
    let error = match read_current(root, store) {
        Ok((current, replay)) => {
            return Ok(Version {
                replay,
                current: Some(current),
                proven: true,
                lost: None,
            });
        }
        Err(error @ Error::Corrupt { .. }) => error,
        Err(Error::Io {
            path,
            source,
            operation,
        }) => {
            let error = Error::io(operation, &path, source);
            match &error {
                Error::Io { source, .. } if is_no_file(source) || is_unreadable(source) => error,
                _ => return Err(error),
            }
        }
        Err(error) => return Err(error),
    };
    let current = read_current_file(root, store).ok();
    if let Some(current) = current {
        let (number, bytes) = (current.manifest_number, current.manifest_bytes);
        let (content, _) = manifest(root, store, number, bytes)?;
        let path = root.path().join(file_name(FileKind::Manifest, number));
        // All that CURRENT commits: the digest says so.
        if let Ok(replay) = replay_committed(&content, &path, store, &current) {
            return Ok(Version {
                replay,
                current: Some(current),
                proven: true,
                lost: None,
            });
        }
    }
    let names = root.list().map_err(|e| Error::io("list", root.path(), e))?;
    let numbers = names.iter().filter_map(|e| match parse_file_name(&e.name) {
        Some((FileKind::Manifest | FileKind::ManifestCopy, number)) => Some(number),
        _ => None,
    });
    let numbers: BTreeSet<FileNumber> = numbers.collect();
    // A manifest that was just begun may hold less than the one before it.
    let mut best: Option<(CheckpointId, bool, FileNumber, Replay)> = None;
    for number in numbers {
        let (content, all) = manifest(root, store, number, u64::MAX)?;
        let Some((replay, whole)) = believed(&content, &FileIdentity::new(*store, number)) else {
            continue;
        };
        let whole = whole && all;
        let last = replay
            .checkpoints
            .last()
            .map_or(CheckpointId::NONE, |c| c.id);
        let better = best
            .as_ref()
            .is_none_or(|(id, was_whole, of, _)| (last, whole, number) > (*id, *was_whole, *of));
        if better {
            best = Some((last, whole, number, replay));
        }
    }
    if let Some((_, whole, _, replay)) = best {
        // CURRENT may be of an earlier time than what was found, or commit more.
        let last = replay
            .checkpoints
            .last()
            .map_or(CheckpointId::NONE, |c| c.id);
        let less = !whole || current.is_some_and(|c| c.checkpoint_id > last);
        return Ok(Version {
            replay,
            current,
            proven: false,
            lost: less.then_some(error),
        });
    }
    let path = root.path().to_path_buf();
    let what = format!(
        "no manifest holds a checkpoint that can be read ({error}): without tables and files no \
         row can be told from another; restore CURRENT and the manifest from a backup"
    );
    Err(Error::corrupt(&path, 0, what))
}

/// The edits of a manifest, where it is damaged those of its copy; whether that is all. Of each file
/// at most so many bytes are read.
fn manifest(
    root: &dyn Directory,
    store: &[u8; 16],
    number: FileNumber,
    bytes_max: u64,
) -> Result<(Vec<u8>, bool)> {
    let identity = FileIdentity::new(*store, number);
    let [name, copy] = manifest_names(number);
    let mut content = read_pieces(root, &name, bytes_max)?;
    let copy = read_pieces(root, &copy, bytes_max)?;
    let longest = content.len().max(copy.len());
    let (mut at, mut of_copy, mut stuck) = (0, false, 0);
    // Both are damaged here, or there is no more, when neither gets on.
    while stuck < 2 {
        let source = if of_copy { &copy } else { &content };
        let to = sound_end(source, &identity, at);
        stuck = if to > at { 0 } else { stuck + 1 };
        if of_copy && to > at {
            if content.len() < to {
                content.resize(to, 0);
            }
            content[at..to].copy_from_slice(&copy[at..to]);
        }
        at = to;
        of_copy = !of_copy;
    }
    content.truncate(at);
    Ok((content, at >= longest))
}

/// The first bytes of a file, with zeros where the device can't give them; empty where there is no
/// such file, or a larger one than any manifest.
///
/// # Errors
/// `Io` for what is no damage.
fn read_pieces(root: &dyn Directory, name: &str, bytes_max: u64) -> Result<Vec<u8>> {
    const PIECE_BYTES: usize = 1 << 20;
    const SECTOR_BYTES: usize = 512;
    let failed = |operation, e| Error::io(operation, &root.path().join(name), e);
    let file = match root.open(name, OpenMode::Read) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound || is_no_file(&e) || is_unreadable(&e) => {
            return Ok(Vec::new());
        }
        Err(e) => return Err(failed("open", e)),
    };
    let bytes = match file.bytes() {
        Ok(bytes) => bytes.min(bytes_max),
        Err(e) if is_unreadable(&e) => 0,
        Err(e) => return Err(failed("measure", e)),
    };
    if bytes > METADATA_BYTES_MAX {
        return Ok(Vec::new());
    }
    let bytes = to_usize(bytes);
    let mut content = Vec::new();
    content
        .try_reserve_exact(bytes)
        .map_err(|_| failed("allocate memory for", ErrorKind::OutOfMemory.into()))?;
    content.resize(bytes, 0);
    let pieces = content.chunks_mut(PIECE_BYTES);
    for (piece, offset) in pieces.zip((0..).step_by(PIECE_BYTES)) {
        read_around(&*file, piece, offset, SECTOR_BYTES).map_err(|e| failed("read", e))?;
    }
    Ok(content)
}

/// Where the first edit is, from the one at `from` on, that can't be read; or the end.
fn sound_end(content: &[u8], identity: &FileIdentity, from: usize) -> usize {
    let reader = match from {
        0 => ManifestReader::new(content, identity).ok(),
        _ => ManifestReader::resume(content, identity, from),
    };
    let Some(mut reader) = reader else {
        return from;
    };
    while matches!(reader.next_edit(), Ok(Some(_))) {}
    to_usize(reader.offset())
}

/// The state at the last checkpoint before the first damage, and whether there is none.
fn believed(content: &[u8], identity: &FileIdentity) -> Option<(Replay, bool)> {
    let apply = |edits_max: usize| {
        let mut reader = ManifestReader::new(content, identity).ok()?;
        let mut replay = Replay::default();
        let (mut last, mut whole) = (0, true);
        for i in 1..=edits_max {
            let edit = match reader.next_edit() {
                Ok(Some(edit)) => edit,
                Ok(None) => break,
                Err(_) => {
                    whole = false;
                    break;
                }
            };
            let checkpoint = edit.checkpoint().is_some();
            if replay.apply(edit).is_err() {
                whole = false;
                break;
            }
            if checkpoint {
                last = i;
            }
        }
        Some((replay, last, whole))
    };
    let (_, last, whole) = apply(usize::MAX)?;
    let (replay, ..) = apply(last)?;
    (!replay.checkpoints.is_empty()).then_some((replay, whole))
}

#[cfg(test)]
mod tests;
