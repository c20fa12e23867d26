//! What does CURRENT commit, and can it be?
//!
//! Invariants:
//! - Damage below the committed length is `Corrupt`, never repaired here.
//! - What edits say of the next checkpoint is committed with that: CURRENT commits no such edit behind the
//!   last one.

use std::path::Path;

use tracing::field::Empty;

use super::edits::{Replay, SnapshotPart};
use super::small_files::{read_start, read_whole};
use super::version::Cursor;
use crate::error::{Error, Result};
use crate::format::current::Current;
use crate::format::manifest::{CheckpointMeta, ManifestReader};
use crate::format::{self, CURRENT_NAME, FileKind, file_name};
use crate::io::Directory;
use crate::row::check_hyper;
use crate::units::CheckpointId;

/// Largest manifest that a repair reads.
pub(crate) const METADATA_BYTES_MAX: u64 = 1 << 32;

/// CURRENT and the edits that it commits.
///
/// # Errors
/// `Corrupt`, `Unsupported`, `Io`.
pub(crate) fn read_current(root: &dyn Directory, store: &[u8; 16]) -> Result<(Current, Replay)> {
    let span = tracing::debug_span!("manifest_replay", number = Empty, bytes = Empty);
    let _replaying = span.enter();
    let current = read_current_file(root, store)?;
    span.record("number", current.manifest_number.0);
    span.record("bytes", current.manifest_bytes);
    let name = file_name(FileKind::Manifest, current.manifest_number);
    let content = read_start(root, &name, current.manifest_bytes)?;
    let path = root.path().join(name);
    let replay = replay_committed(&content, &path, store, &current)?;
    Ok((current, replay))
}

/// CURRENT alone.
///
/// # Errors
/// `Corrupt`, `Unsupported`, `Io`.
pub(crate) fn read_current_file(root: &dyn Directory, store: &[u8; 16]) -> Result<Current> {
    let content = read_whole(root, CURRENT_NAME, 4096)?;
    let path = root.path().join(CURRENT_NAME);
    Current::decode(&content, store).map_err(|e| e.at(&path))
}

/// What the committed bytes of a manifest add up to; they are all that CURRENT commits, or an error.
///
/// # Errors
/// `Corrupt` at `path`, `Unsupported`.
pub(crate) fn replay_committed(
    content: &[u8],
    path: &Path,
    store: &[u8; 16],
    current: &Current,
) -> Result<Replay> {
    let identity = format::FileIdentity::new(*store, current.manifest_number);
    let mut reader = ManifestReader::new(content, &identity).map_err(|e| e.at(path))?;
    let mut replay = Replay::default();
    // Where the edits begin that are of the next checkpoint.
    let mut open = None;
    loop {
        let offset = reader.offset();
        let Some(edit) = reader.next_edit().map_err(|e| e.at(path))? else {
            break;
        };
        if edit.checkpoint().is_some() {
            open = None;
        } else if edit.is_of_next_checkpoint() {
            open = open.or(Some(offset));
        }
        replay
            .apply(edit)
            .map_err(|what| Error::corrupt(path, offset, what))?;
    }
    if let Some(offset) = open {
        let what = "a change of tables or hyperparameters that no checkpoint has";
        return Err(Error::corrupt(path, offset, what));
    }
    let bad = replay.hyper.all().find(|(_, h)| check_hyper(h).is_err());
    if let Some((id, _)) = bad {
        let what = format!("checkpoint {id} has hyperparameters that can't be");
        return Err(Error::corrupt(path, 0, what));
    }
    let same = reader.version() == Some(current.version)
        && reader.digest() == current.manifest_digest
        && replay.timeline == current.timeline
        && replay
            .checkpoints
            .last()
            .map_or(CheckpointId::NONE, |c| c.id)
            == current.checkpoint_id;
    if !same {
        return Err(Error::corrupt(
            path,
            0,
            "not the manifest that CURRENT commits",
        ));
    }
    Ok(replay)
}

/// Numbers that a writer could never have made: they would run over, or point outside.
///
/// # Errors
/// `Corrupt`.
pub(crate) fn check_sanity(
    root: &Path,
    current: &Current,
    replay: &Replay,
    directories: usize,
) -> Result<()> {
    let path = root.join(file_name(FileKind::Manifest, current.manifest_number));
    let far = u64::MAX / 4;
    let bad_file = replay.files.values().find(|f| {
        f.directory as usize >= directories
            || f.rank > far
            || f.added > current.checkpoint_id
            || f.number >= current.file_number_limit
            || f.rows.saturating_add(f.tombstones) > u64::from(u32::MAX)
    });
    if let Some(file) = bad_file {
        let what = format!(
            "file {} has a number, place, rank, age or size that can't be",
            file.number
        );
        return Err(Error::corrupt(&path, 0, what));
    }
    let beyond =
        |part: &&SnapshotPart| !part.fits(directories) || part.number >= current.file_number_limit;
    if let Some(part) = replay.snapshot.iter().find(beyond) {
        let what = format!(
            "part {} of the index snapshot has a number or place that can't be",
            part.number
        );
        return Err(Error::corrupt(&path, 0, what));
    }
    let sizes = replay.files.values().map(|f| f.bytes);
    let metas = replay.checkpoints.iter().map(|c| c.meta_bytes);
    let all_bytes = sizes.chain(metas).try_fold(0, u64::checked_add);
    let limit = current.file_number_limit;
    let beyond = |c: &&CheckpointMeta| {
        c.interval > u32::MAX / 2 || c.next_rank > far || c.meta_number >= limit
    };
    let cursor_beyond =
        |at: &Cursor| at.checkpoint > current.checkpoint_id || at.interval > u32::MAX / 2;
    if limit.0 > far
        || replay.cursors.values().any(cursor_beyond)
        || all_bytes.is_none_or(|bytes| bytes > far)
        || current.next_checkpoint_id.0 > far
        || replay.checkpoints.iter().any(|c| beyond(&c))
    {
        return Err(Error::corrupt(&path, 0, "counts beyond reason"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
