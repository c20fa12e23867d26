//! What does opening a store give back?
//!
//! Opening gives exactly the last checkpoint: CURRENT names the manifest and how much of it
//! counts; its edits add up to the versions of the retained checkpoints; the rest is discarded.
//!
//! Invariants:
//! - A store exists if and only if its file STORE exists: it is made last.
//! - A writer removes orphans: files with a number of this store that no retained version names.
//! - A writer reserves new file numbers before it makes a file, so numbers used after the last
//!   checkpoint are not used again.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Ssd;
use super::directories::{open_parts, open_root, read_store};
use super::edits::Replay;
use super::garbage::Unlinking;
use super::hyper::Hypers;
use super::lock::{Locks, lock_writer};
use super::manifest::ManifestWriter;
use super::manifest_reader::{check_sanity, read_current};
use super::open_files::OpenFiles;
use super::open_reader::lock_checkpoint;
use super::snapshot_room::SnapshotRoom;
use super::tables::{TableState, check_computable};
use super::version::Versions;
use crate::error::{Error, Holder, Result};
use crate::format::current::Current;
use crate::format::manifest::CheckpointMeta;
use crate::io::{Directory, Io, is_full};
use crate::options::Thresholds;
use crate::sync::{Mutex, RwLock};
use crate::units::{CheckpointId, FileNumber};

/// A store's tier and what its manifest says beside files.
#[derive(Debug)]
pub struct Recovered {
    /// The tier.
    pub ssd: Ssd,
    /// All tables, by number, as they are at the checkpoint that was opened.
    pub tables: Vec<TableState>,
    /// The checkpoint that was opened.
    pub checkpoint: Option<CheckpointMeta>,
    /// Hyperparameters of that checkpoint.
    pub hyper: Hypers,
}

/// How a store is opened.
#[derive(Debug)]
pub struct OpenRequest<'a> {
    /// Data directories that have moved; empty: where STORE says.
    pub moved: &'a [PathBuf],
    /// Without the writer's lock, on a retained checkpoint.
    pub read_only: bool,
    /// Which checkpoint (read-only); `None`: the last.
    pub checkpoint: Option<CheckpointId>,
    /// Most bytes on disk; 0: 85 % of the file system.
    pub disk_bytes_max: u64,
    /// When bookkeeping happens.
    pub thresholds: Thresholds,
    /// Most parameter files that stay open.
    pub open_files_max: usize,
    /// Threads that open them.
    pub threads: usize,
}

/// Repairs that may put another store in the place of the one being opened, one after the other.
const SWAPS_MAX: usize = 8;

/// Opens a store at its last checkpoint (or, read-only, at a retained one).
///
/// # Errors
/// `InvalidArgument` when there is no store, `Locked`, `Corrupt`, `Unsupported`, `Io`.
pub fn open(io: &Io, path: &Path, request: &OpenRequest<'_>) -> Result<Recovered> {
    for _ in 0..SWAPS_MAX {
        let root = open_root(&*io.disk, path)?;
        if let Some(recovered) = attempt(io, &root, request, Some(path))? {
            return Ok(recovered);
        }
    }
    let (path, holder) = (path.to_path_buf(), Holder::Writer);
    Err(Error::Locked { path, holder })
}

/// The same for a directory that is open, wherever its path leads by now.
///
/// # Errors
/// As [`open`].
pub fn open_again(
    io: &Io,
    root: &Arc<dyn Directory>,
    request: &OpenRequest<'_>,
) -> Result<Recovered> {
    let (path, holder) = (root.path().to_path_buf(), Holder::Writer);
    attempt(io, root, request, None)?.ok_or(Error::Locked { path, holder })
}

/// Opens the store in `root`; `None` when, under the lock, `path` leads to another directory: a
/// repair has put its store there meanwhile.
fn attempt(
    io: &Io,
    root: &Arc<dyn Directory>,
    request: &OpenRequest<'_>,
    path: Option<&Path>,
) -> Result<Option<Recovered>> {
    // No store, no lock: a directory of something else gets no file of ours.
    let (store, stored) = read_store(&**root)?;
    let moved = || -> Result<bool> {
        let Some(path) = path else { return Ok(false) };
        let now = open_root(&*io.disk, path)?;
        let id = |place: &dyn Directory| place.id().map_err(|e| Error::io("look at", path, e));
        Ok(id(&*now)? != id(&**root)?)
    };
    if request.read_only {
        let directories = open_parts(&**root, &store, &stored, request.moved)?;
        let (current, replay, checkpoint, lock) =
            lock_checkpoint(&**root, request.checkpoint, &store)?;
        if moved()? {
            return Ok(None);
        }
        let found = Found {
            store,
            directories,
            current,
            replay,
            checkpoint: Some(checkpoint),
            locks: vec![lock],
        };
        return assemble(io, root, request, found).map(Some);
    }
    let locks = lock_writer(root)?;
    if moved()? {
        return Ok(None);
    }
    // What was read before the lock may be of a store that a repair has replaced since.
    let (store, stored) = read_store(&**root)?;
    let directories = open_parts(&**root, &store, &stored, request.moved)?;
    let (current, replay) = read_current(&**root, &store)?;
    let found = Found {
        store,
        directories,
        current,
        checkpoint: replay.checkpoints.last().copied(),
        replay,
        locks,
    };
    assemble(io, root, request, found).map(Some)
}

/// The parts of a store, read and locked.
struct Found {
    store: [u8; 16],
    directories: Vec<Arc<dyn Directory>>,
    current: Current,
    replay: Replay,
    checkpoint: Option<CheckpointMeta>,
    locks: Locks,
}

fn assemble(
    io: &Io,
    root: &Arc<dyn Directory>,
    request: &OpenRequest<'_>,
    found: Found,
) -> Result<Recovered> {
    let (current, replay) = (found.current, found.replay);
    check_sanity(root.path(), &current, &replay, found.directories.len())?;
    let mut versions = Versions::default();
    versions.next_number = current.file_number_limit;
    versions.number_limit = current.file_number_limit;
    versions.next_rank = replay
        .checkpoints
        .iter()
        .map(|c| c.next_rank)
        .max()
        .unwrap_or(1);
    versions.next_checkpoint = current.next_checkpoint_id;
    versions.checkpoints = replay.checkpoints;
    let tables = match (request.read_only, &found.checkpoint) {
        (true, Some(checkpoint)) => replay.tables.view(checkpoint.id),
        _ => replay.tables.now(),
    };
    check_computable(&tables)?;
    versions.tables = replay.tables;
    versions.hyper = replay.hyper;
    versions.cursors = replay.cursors;
    for meta in replay.files.into_values() {
        versions.insert_closed(meta, Some(meta.removed));
    }
    let manifest = ManifestWriter {
        files: None,
        snapshot_bytes: 0,
        current,
        snapshot: replay.snapshot,
    };
    let poison = Arc::default();
    let snapshots = SnapshotRoom::new(found.directories.len(), &manifest.snapshot);
    let ssd = Ssd {
        io: io.clone(),
        root: Arc::clone(root),
        directories: found.directories,
        store: found.store,
        timeline: found.current.timeline,
        opened_at: found.checkpoint.as_ref().map(|c| c.id),
        open_files: OpenFiles::new(request.open_files_max, &poison),
        slots: RwLock::new(Vec::new()),
        disk_bytes_max: request.disk_bytes_max,
        thresholds: request.thresholds,
        versions: Mutex::new(versions),
        manifest: Mutex::new(manifest),
        unlinking: Unlinking::default(),
        poison,
        snapshots,
        iterated: Mutex::default(),
        holds: Arc::default(),
        locks: Mutex::new(found.locks),
    };
    let id = found
        .checkpoint
        .as_ref()
        .map_or(CheckpointId::NONE, |c| c.id);
    let hyper = ssd.versions().hyper.at(id);
    ssd.open_version(id, request.read_only, request.threads)?;
    if !request.read_only {
        // Nobody has the store yet: also after a rename that had no room the next open tries again.
        ssd.make_current_durable().map_err(|error| match error {
            Error::Io { path, source, .. } if is_full(&source) => ssd.full(&path, 0, source),
            other => other,
        })?;
        ssd.remove_orphans(FileNumber::NONE)?;
    }
    Ok(Recovered {
        ssd,
        tables,
        checkpoint: found.checkpoint,
        hyper,
    })
}
