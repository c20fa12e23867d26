//! How is a store made, and what does opening it give back?
//!
//! Opening gives exactly the last checkpoint: CURRENT names the manifest and how much of it
//! counts; its edits add up to the versions of the retained checkpoints; the rest is discarded.
//!
//! Invariants:
//! - A store exists if and only if its file STORE exists: it is made last.
//! - Damage below the committed length is `Corrupt`, never repaired here.
//! - A writer removes orphans: files with a number of this store that no retained version names.
//! - A writer reserves new file numbers before it makes a file, so numbers used after the last
//!   checkpoint are not used again.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tracing::field::Empty;

use super::attach::lock_checkpoint;
use super::commit::ManifestWriter;
use super::create::list;
use super::edits::Replay;
use super::image_room::ImageRoom;
use super::open_files::OpenFiles;
use super::scan::{aligned, read_exact};
use super::version::Versions;
use super::{Ssd, missing};
use crate::error::{Error, Holder, Invalid, Result};
use crate::format::current::Current;
use crate::format::identity::StoreIdentity;
use crate::format::manifest::{CheckpointMeta, ManifestReader};
use crate::format::{self, CURRENT_NAME, FileKind, PART_NAME, STORE_NAME, file_name, identity};
use crate::io::{Directory, Disk, DiskFile, Io, OpenMode, is_full};
use crate::options::{TableDescriptor, Thresholds};
use crate::row::check_hyper;
use crate::sync::{Mutex, RwLock};

pub(crate) use super::lock::{Locks, lock, lock_writer};

/// Name of the writer's lock file.
pub const LOCK_NAME: &str = "LOCK";

/// Largest manifest that a repair reads.
pub(crate) const METADATA_BYTES_MAX: u64 = 1 << 32;

/// A store's tier and what its manifest says beside files.
#[derive(Debug)]
pub struct Recovered {
    /// The tier.
    pub ssd: Ssd,
    /// Descriptors by table id.
    pub tables: Vec<TableDescriptor>,
    /// The checkpoint that was opened.
    pub checkpoint: Option<CheckpointMeta>,
}

/// Bytes past a recorded length must be zero.
pub(crate) fn check_tail(file: &dyn DiskFile, path: &Path, from: u64, to: u64) -> Result<()> {
    let mut offset = from / 4096 * 4096;
    if from == to {
        return Ok(());
    }
    let mut block = aligned(path, 1 << 16)?;
    while offset < to {
        let got = file
            .read_at(&mut block, offset)
            .map_err(|e| Error::io("read", path, e))?;
        if got == 0 {
            break;
        }
        let skip = usize::try_from(from.saturating_sub(offset))
            .unwrap_or(0)
            .min(got);
        if let Some(at) = block[skip..got].iter().position(|b| *b != 0) {
            let offset = offset + (skip + at) as u64;
            return Err(Error::corrupt(
                path,
                offset,
                "bytes past the recorded length",
            ));
        }
        offset += got as u64;
    }
    Ok(())
}

/// Reads a small metadata file whole.
pub(crate) fn read_whole(place: &dyn Directory, name: &str, bytes_max: u64) -> Result<Vec<u8>> {
    let path = &*place.path().join(name);
    let file = place
        .open(name, OpenMode::Read)
        .map_err(|e| missing(path, e))?;
    let bytes = file.bytes().map_err(|e| Error::io("measure", path, e))?;
    if bytes > bytes_max {
        let what = format!("{bytes} bytes long, at most {bytes_max} are possible");
        return Err(Error::corrupt(path, bytes_max, what));
    }
    read_bytes(&*file, path, bytes)
}

/// Reads the first bytes of a file that may be longer.
pub(crate) fn read_start(place: &dyn Directory, name: &str, bytes: u64) -> Result<Vec<u8>> {
    let path = &*place.path().join(name);
    let file = place
        .open(name, OpenMode::Read)
        .map_err(|e| missing(path, e))?;
    let found = file.bytes().map_err(|e| Error::io("measure", path, e))?;
    if found < bytes {
        let what = format!("{found} bytes long, CURRENT commits {bytes}");
        return Err(Error::corrupt(path, found, what));
    }
    read_bytes(&*file, path, bytes)
}

fn read_bytes(file: &dyn DiskFile, path: &Path, bytes: u64) -> Result<Vec<u8>> {
    let mut content = Vec::new();
    let size = usize::try_from(bytes).unwrap_or(usize::MAX);
    content
        .try_reserve_exact(size)
        .map_err(|_| Error::io("allocate memory for", path, ErrorKind::OutOfMemory.into()))?;
    content.resize(size, 0);
    read_exact(file, path, &mut content, 0)?;
    Ok(content)
}

pub(super) fn not_a_store(path: &Path, why: &str) -> Error {
    Invalid::NotAStore {
        path: path.to_path_buf(),
        why: why.to_owned(),
    }
    .into()
}

/// How a store is opened.
#[derive(Debug)]
pub struct OpenRequest<'a> {
    /// Data directories that have moved; empty: where STORE says.
    pub directories: &'a [PathBuf],
    /// Without the writer's lock, on a retained checkpoint.
    pub read_only: bool,
    /// Which checkpoint (read-only); `None`: the last.
    pub checkpoint: Option<u64>,
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
        let directories = open_parts(&**root, &store, &stored, request)?;
        let (current, replay, checkpoint, lock) = lock_checkpoint(&**root, request, &store)?;
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
    let locks = lock_writer(&**root)?;
    if moved()? {
        return Ok(None);
    }
    // What was read before the lock may be of a store that a repair has replaced since.
    let (store, stored) = read_store(&**root)?;
    let directories = open_parts(&**root, &store, &stored, request)?;
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

/// Opens a directory in which a store is expected.
///
/// # Errors
/// `InvalidArgument` when there is none, `Io`.
pub(crate) fn open_root(disk: &dyn Disk, path: &Path) -> Result<Arc<dyn Directory>> {
    disk.open_dir(path).map_err(|e| match e.kind() {
        ErrorKind::NotFound => not_a_store(path, "no such directory"),
        ErrorKind::NotADirectory => not_a_store(path, "not a directory"),
        _ => Error::io("open", path, e),
    })
}

/// The data directories, each verified to be the one of this store with its index.
fn open_parts(
    root: &dyn Directory,
    store: &[u8; 16],
    stored: &[PathBuf],
    request: &OpenRequest<'_>,
) -> Result<Vec<Arc<dyn Directory>>> {
    let names = match request.directories {
        [] => stored,
        moved => moved,
    };
    if names.len() != stored.len() {
        return Err(Invalid::Length {
            what: "data directories",
            expected: stored.len(),
            found: names.len(),
        }
        .into());
    }
    let open = |(i, name): (usize, &PathBuf)| {
        let place = open_part(root, name, i)?;
        check_part(&*place, store, i)?;
        Ok(place)
    };
    names.iter().enumerate().map(open).collect()
}

/// Opens a data directory as STORE names it.
///
/// # Errors
/// `MissingDirectory` where there is none, `Io`.
pub(crate) fn open_part(
    root: &dyn Directory,
    name: &Path,
    index: usize,
) -> Result<Arc<dyn Directory>> {
    root.open_dir(name).map_err(|e| {
        let path = root.path().join(name);
        let empty = false;
        match e.kind() {
            ErrorKind::NotFound => Error::MissingDirectory { index, path, empty },
            _ => Error::io("open", &path, e),
        }
    })
}

/// The store's uuid and its data directories, as written.
///
/// # Errors
/// `InvalidArgument` when there is no store, `Corrupt`, `Unsupported`, `Io`.
pub(crate) fn read_store(root: &dyn Directory) -> Result<([u8; 16], Vec<PathBuf>)> {
    let names = list(root)?;
    let has = |name: &str| names.iter().any(|found| found == name);
    if !has(STORE_NAME) {
        let why = if has(LOCK_NAME) {
            "creation did not finish (there is a LOCK and no STORE); empty it and create again"
        } else if has(PART_NAME) {
            "it is a data directory of a store; name the store's own, which has a file STORE"
        } else {
            "there is no file STORE in it; name the directory of a store, or create one"
        };
        return Err(not_a_store(root.path(), why));
    }
    let content = read_whole(root, STORE_NAME, 4096)?;
    let path = root.path().join(STORE_NAME);
    let found = StoreIdentity::decode(&content).map_err(|e| e.at(&path))?;
    Ok((
        found.uuid,
        found.directories.into_iter().map(PathBuf::from).collect(),
    ))
}

/// Whether a data directory is the one of this store with this index.
///
/// # Errors
/// `MissingDirectory` where nothing of a store is in it, `Corrupt`, `Unsupported`, `Io`.
pub(crate) fn check_part(place: &dyn Directory, store: &[u8; 16], index: usize) -> Result<()> {
    let content = match read_whole(place, PART_NAME, 4096) {
        Err(Error::Corrupt { .. }) if is_bare(place) => {
            let path = place.path().to_path_buf();
            let empty = true;
            return Err(Error::MissingDirectory { index, path, empty });
        }
        read => read?,
    };
    let path = place.path().join(PART_NAME);
    let found = identity::decode_part(&content, store).map_err(|e| e.at(&path))?;
    if found as usize != index {
        let what = format!("data directory {found} stands in the place of {index}");
        return Err(Error::corrupt(&path, 0, what));
    }
    Ok(())
}

/// Whether nothing of a store is in a directory, as where a file system is not mounted.
fn is_bare(place: &dyn Directory) -> bool {
    let of_store = |name: &str| name == PART_NAME || format::parse_file_name(name).is_some();
    place
        .list()
        .is_ok_and(|names| !names.iter().any(|e| of_store(&e.name)))
}

/// CURRENT and the edits that it commits.
///
/// # Errors
/// `Corrupt`, `Unsupported`, `Io`.
pub(crate) fn read_current(root: &dyn Directory, store: &[u8; 16]) -> Result<(Current, Replay)> {
    let span = tracing::debug_span!("manifest_replay", number = Empty, bytes = Empty);
    let _replaying = span.enter();
    let current = read_current_file(root, store)?;
    span.record("number", current.manifest_number);
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
    loop {
        let offset = reader.offset();
        let Some(edit) = reader.next_edit().map_err(|e| e.at(path))? else {
            break;
        };
        replay
            .apply(edit)
            .map_err(|what| Error::corrupt(path, offset, what))?;
    }
    if let Some(bad) = replay
        .checkpoints
        .iter()
        .find(|c| check_hyper(&c.hyper).is_err())
    {
        let what = format!("checkpoint {} has hyperparameters that can't be", bad.id);
        return Err(Error::corrupt(path, 0, what));
    }
    let same = reader.digest() == current.manifest_digest
        && replay.branch == current.branch
        && replay.checkpoints.last().map_or(0, |c| c.id) == current.checkpoint_id;
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
    let sizes = replay.files.values().map(|f| f.bytes);
    let metas = replay.checkpoints.iter().map(|c| c.meta_bytes);
    let all_bytes = sizes.chain(metas).try_fold(0, u64::checked_add);
    let limit = current.file_number_limit;
    let beyond =
        |c: &&CheckpointMeta| c.epoch > u32::MAX / 2 || c.next_rank > far || c.meta_number >= limit;
    if limit > far
        || all_bytes.is_none_or(|bytes| bytes > far)
        || current.next_checkpoint_id > far
        || replay.checkpoints.iter().any(|c| beyond(&c))
    {
        return Err(Error::corrupt(&path, 0, "counts beyond reason"));
    }
    Ok(())
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
    for meta in replay.files.into_values() {
        versions.know(meta, Some(meta.removed));
    }
    let manifest = ManifestWriter {
        files: None,
        snapshot_bytes: 0,
        tables_recorded: replay.tables.len(),
        current,
        image: replay.image,
    };
    let poison = Arc::default();
    let images = ImageRoom::new(manifest.image);
    let ssd = Ssd {
        io: io.clone(),
        root: Arc::clone(root),
        directories: found.directories,
        store: found.store,
        open_files: OpenFiles::new(request.open_files_max, &poison),
        slots: RwLock::new(Vec::new()),
        disk_bytes_max: request.disk_bytes_max,
        thresholds: request.thresholds,
        versions: Mutex::new(versions),
        manifest: Mutex::new(manifest),
        poison,
        images,
        iterated: Mutex::default(),
        locks: Mutex::new(found.locks),
    };
    let id = found.checkpoint.as_ref().map_or(0, |c| c.id);
    ssd.open_version(id, request.read_only, request.threads)?;
    if !request.read_only {
        // Nobody has the store yet: also after a rename that had no room the next open tries again.
        ssd.make_current_durable().map_err(|error| match error {
            Error::Io { path, source, .. } if is_full(&source) => ssd.full(&path, 0, source),
            other => other,
        })?;
        ssd.remove_orphans(0)?;
    }
    Ok(Recovered {
        ssd,
        tables: replay.tables,
        checkpoint: found.checkpoint,
    })
}
