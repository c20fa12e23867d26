//! SSD-PS: which bytes on disk are the current version, and how are they changed and read?
//!
//! Invariants:
//! - Parameter files are immutable; a change of version is a file added or a file retired.
//! - What is durable is what `CURRENT` says: a manifest up to a length. All else is discarded at
//!   the next open.
//! - Lock order: `manifest`, then `versions`, then `slots` or `unlinking`.

pub mod ahead;
pub mod commit;
pub mod compaction;
pub mod create;
pub mod data_file;
pub mod delta;
pub(crate) mod directories;
pub mod edits;
pub mod entry_scan;
pub(crate) mod export;
pub mod garbage;
pub mod held;
pub mod hyper;
pub mod index;
pub mod index_snapshot;
pub(crate) mod lock;
mod manifest;
pub(crate) mod manifest_reader;
pub(crate) mod meta_file;
pub(crate) mod names;
pub mod open_files;
pub mod open_reader;
pub(crate) mod opening;
mod orphans;
pub(crate) mod pieces;
pub mod poison;
pub mod reader;
mod recommit;
pub mod recover;
mod rollback;
pub mod scan;
pub mod sections;
mod seek;
pub(crate) mod small_files;
pub mod snapshot_ranges;
pub mod snapshot_room;
mod snapshot_writer;
pub(crate) mod space;
pub mod tables;
pub mod version;
pub mod writer;
pub(crate) mod writer_file;

use std::fmt;
use std::ops::{Deref, RangeInclusive};
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, Weak};

use crate::error::{ArgumentError, Error, Result};
use crate::format::footer::Footer;
use crate::format::manifest::FileMeta;
use crate::format::{FileIdentity, data_file_name, param_file};
use crate::io::{Directory, DiskFile, Io, OpenMode, Queue, is_out_of_descriptors};
use crate::options::Thresholds;
use crate::sync::{Mutex, MutexGuard};
use crate::units::{CheckpointId, FileNumber, FileSlot, to_usize};
use data_file::DataFile;
use garbage::Unlinking;
use held::Usage;
use lock::Locks;
use manifest::{ManifestWriter, NUMBERS_SPARE};
use open_files::OpenFiles;
use poison::Poison;
use snapshot_room::SnapshotRoom;
use space::refused;
use version::{Slots, Versions};
use writer::{FileWriter, Finished};

/// The SSD tier of one store.
pub struct Ssd {
    /// Disk and engine.
    pub io: Io,
    /// The store's directory, open as long as the store is.
    pub root: Arc<dyn Directory>,
    /// Data directories, one per range of mix64, open as long as the store is.
    pub directories: Vec<Arc<dyn Directory>>,
    /// The store's uuid, which seeds every checksum.
    pub store: [u8; 16],
    /// The uuid of its history, the same until a rollback, after which the store is opened anew.
    pub timeline: [u8; 16],
    /// The checkpoint that it was opened at.
    pub opened_at: Option<CheckpointId>,
    /// Which of its parameter files are open.
    pub open_files: Arc<OpenFiles>,
    /// Files of the current version by slot.
    slots: Slots,
    /// Most bytes on disk; 0: 85 % of the file system.
    pub disk_bytes_max: u64,
    /// When bookkeeping happens.
    pub thresholds: Thresholds,
    /// The room that index snapshots take.
    pub snapshots: SnapshotRoom,
    versions: Mutex<Versions>,
    manifest: Mutex<ManifestWriter>,
    /// Who is unlinking files.
    unlinking: Unlinking,
    /// The first failure that makes the state of the device, or of memory, unknown.
    pub poison: Arc<Poison>,
    /// Files of iterators.
    iterated: Mutex<Vec<Weak<Vec<Arc<DataFile>>>>>,
    /// Shared with each checkpoint that is held.
    holds: Arc<()>,
    /// Held while the store is open: the writer's locks, or a reader's on its checkpoint.
    locks: Mutex<Locks>,
}

impl fmt::Debug for Ssd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ssd")
            .field("root", &self.root)
            .field("io", &self.io)
            .finish()
    }
}

/// A new file of the current version, before it is installed.
#[derive(Debug)]
pub struct NewFile {
    /// What the writer made.
    pub finished: Finished,
    /// Its number.
    pub number: FileNumber,
    /// Its data directory.
    pub directory: u32,
}

impl Ssd {
    /// Files, versions and checkpoints. Held for short, never over I/O.
    pub fn versions(&self) -> MutexGuard<'_, Versions> {
        self.versions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Files of the current version by slot. Held for short, also while a shard is locked.
    pub fn file_slots(&self) -> impl Deref<Target = Vec<Option<Arc<DataFile>>>> + '_ {
        self.slots.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the next opener have the store.
    pub fn release_locks(&self) {
        self.locks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }

    /// Fails if the store is another's by now, and refuses writes from here on; or if that can't be known.
    pub(super) fn check_held(&self) -> Result<()> {
        let locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        for lock in &*locks {
            let path = self.root.path().join(names::WRITER_NAME);
            let held = self.open_files.with_descriptor(|| lock.is_held());
            if !held.map_err(|e| Error::io("look at", &path, e))? {
                let cause = format!(
                    "{}: is not this writer's any more: it was removed, or another writer has the store",
                    path.display()
                );
                tracing::error!(%cause, "the store refuses writes from here on");
                self.poison(cause);
                self.check_writable()?;
            }
        }
        Ok(())
    }

    /// The identity of a file of this store.
    #[must_use]
    pub fn identity(&self, number: FileNumber) -> FileIdentity {
        FileIdentity::new(self.store, number)
    }

    /// Bytes on disk by why they are there.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.versions().usage()
    }

    /// Bytes of the index snapshot, and of one being written.
    #[must_use]
    pub fn index_snapshot_bytes(&self) -> u64 {
        self.snapshots.bytes()
    }

    /// A file number that was never used. Reserves more, durably, when they run out.
    ///
    /// # Errors
    /// `Io`, `Poisoned` when reserving fails.
    pub fn take_number(&self) -> Result<FileNumber> {
        loop {
            {
                let mut versions = self.versions();
                if versions.next_number.plus(NUMBERS_SPARE) < versions.number_limit {
                    return Ok(versions.next_number.take());
                }
            }
            self.reserve_numbers()?;
        }
    }

    /// Starts a parameter file in a data directory.
    ///
    /// # Errors
    /// `NoSpace`, `Io`, `Poisoned`.
    pub fn create_file<'q>(
        &'q self,
        queue: &'q mut dyn Queue,
        directory: usize,
        expected_bytes: u64,
        reserve_bytes: u64,
    ) -> Result<(FileNumber, FileWriter<'q>)> {
        self.check_space(directory, expected_bytes, reserve_bytes)?;
        let number = self.take_number()?;
        let place = &self.directories[directory];
        let identity = self.identity(number);
        let name = data_file_name(number);
        let create = || place.open(&name, OpenMode::CreateDirect);
        let file = self.open_files.with_descriptor(create);
        let path = place.path().join(&name);
        let file = file.map_err(|e| refused("create", &**place, &path, expected_bytes, e))?;
        let writer = FileWriter::of(file, place, queue, name, identity);
        Ok((number, writer.expecting(expected_bytes)))
    }

    /// Makes a finished file part of the current version, with `rank` (or the next one), and
    /// every entry counted stale: the caller repoints the index.
    ///
    /// # Errors
    /// `InvalidArgument` when there are 2^24 files; the file is removed.
    pub fn install(&self, new: NewFile, rank: Option<u64>) -> Result<Arc<DataFile>> {
        self.open_files.make_room();
        let mut versions = self.versions();
        let Some(slot) = versions.take_slot(&self.slots) else {
            drop(versions);
            self.unlink_new(&new);
            return Err(too_many_files());
        };
        let done = new.finished;
        let rank = rank.unwrap_or_else(|| {
            self.snapshots.add_flushed(done.bytes);
            versions.take_rank()
        });
        let added = versions.next_checkpoint;
        let meta = done.meta(new.number, new.directory, rank, added);
        let identity = self.identity(new.number);
        let place = &self.directories[meta.directory as usize];
        let handle = self.open_files.adopt(place, meta.number, done.file, false);
        let file = DataFile::of(slot, meta, done.footer, identity, done.path, handle);
        let file = Arc::new(file);
        versions.install(&self.slots, Arc::clone(&file));
        Ok(file)
    }

    /// The files of an iterator, which may outlive the store.
    pub(crate) fn iterates(&self, files: &Arc<Vec<Arc<DataFile>>>) {
        let mut iterated = self.iterated.lock().unwrap_or_else(PoisonError::into_inner);
        iterated.retain(|files| files.strong_count() > 0);
        iterated.push(Arc::downgrade(files));
    }

    /// The store ends, and what another one unlinks it will not learn: what iterators read is opened
    /// and stays so, as far as there are descriptors.
    pub(crate) fn keep_iterated(&self) {
        let iterated = self.iterated.lock().unwrap_or_else(PoisonError::into_inner);
        for file in iterated
            .iter()
            .filter_map(Weak::upgrade)
            .flat_map(|files| files.to_vec())
        {
            if let Err(error) = self.open_files.keep(file.meta.number) {
                tracing::warn!(%error, "an iterator outlives its store, and not all of its files are open");
                return;
            }
        }
    }

    /// Where a parameter file is: for messages.
    pub(crate) fn data_path(&self, meta: &FileMeta) -> PathBuf {
        let place = &self.directories[meta.directory as usize];
        place.path().join(data_file_name(meta.number))
    }

    /// Opens a parameter file and checks length, header and footer against the manifest.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, `Unsupported`.
    pub(crate) fn open_data(&self, meta: &FileMeta, slot: FileSlot) -> Result<DataFile> {
        self.open_files.make_room();
        let place = &self.directories[meta.directory as usize];
        let identity = self.identity(meta.number);
        let open = || open_footer(&**place, &identity, meta);
        let (file, footer) = match open() {
            Err(Error::Io { source, .. })
                if is_out_of_descriptors(&source) && self.open_files.give_back() =>
            {
                open()?
            }
            result => result?,
        };
        let path = self.data_path(meta);
        let handle = self.open_files.adopt(place, meta.number, file, true);
        Ok(DataFile::of(slot, *meta, footer, identity, path, handle))
    }

    /// The files of a retained checkpoint's version that may have keys in a range of mix64 and have entries
    /// of an interval or later ones, opened (or shared with the current one).
    ///
    /// # Errors
    /// `Io`, `Corrupt`, `InvalidArgument` for an unknown checkpoint.
    pub fn version_files(
        &self,
        checkpoint: CheckpointId,
        hashes: &RangeInclusive<u64>,
        first_interval: u32,
    ) -> Result<Vec<Arc<DataFile>>> {
        let states_within = || {
            let mut states = self.states_of(checkpoint)?;
            states.retain(|s| {
                let meta = &s.meta;
                meta.interval_max >= first_interval
                    && meta.hash_min <= *hashes.end()
                    && *hashes.start() <= meta.hash_max
            });
            Result::Ok(states)
        };
        loop {
            let states = states_within()?;
            let numbers: Vec<FileNumber> = states.iter().map(|s| s.meta.number).collect();
            let open = |s: version::FileState| match s.file {
                Some(file) => Ok(file),
                None => Ok(Arc::new(self.open_data(&s.meta, FileSlot::default())?)),
            };
            let opened: Result<Vec<Arc<DataFile>>> = states.into_iter().map(open).collect();
            // Nothing was locked: the checkpoint may have been forgotten, or have other files by now.
            // While it needs these, whoever unlinks one of them sees that it is open here.
            let now = states_within()?;
            if now.iter().map(|s| s.meta.number).eq(numbers) {
                return opened;
            }
        }
    }

    /// The first interval whose rows somebody lacks who has everything up to a checkpoint: 0 before the
    /// first checkpoint.
    ///
    /// # Errors
    /// `InvalidArgument` (`HistoryGone`) for one that is neither retained nor a cursor's.
    pub fn first_interval_after(&self, checkpoint: CheckpointId) -> Result<u32> {
        if checkpoint == CheckpointId::NONE {
            return Ok(0);
        }
        let versions = self.versions();
        let retained = versions.checkpoints.iter().map(|c| (c.id, c.interval));
        let readers = versions.cursors.values();
        let mut known = retained.chain(readers.map(|at| (at.checkpoint, at.interval)));
        let found = known.find(|(id, _)| *id == checkpoint);
        found.map(|(_, interval)| interval + 1).ok_or_else(|| {
            let retained = versions.checkpoints.iter().map(|c| c.id).collect();
            let since = checkpoint;
            ArgumentError::HistoryGone { since, retained }.into()
        })
    }

    /// The files of a retained checkpoint's version, by number.
    fn states_of(&self, checkpoint: CheckpointId) -> Result<Vec<version::FileState>> {
        let versions = self.versions();
        let retained: Vec<CheckpointId> = versions.checkpoints.iter().map(|c| c.id).collect();
        if !retained.contains(&checkpoint) {
            let id = checkpoint;
            return Err(ArgumentError::UnknownCheckpoint { id, retained }.into());
        }
        let holds = |m: &FileMeta| m.added <= checkpoint && checkpoint < m.removed;
        let files = versions.files.values().filter(|s| holds(&s.meta));
        Ok(files.cloned().collect())
    }
}

/// Opens a parameter file that the manifest names: length, bytes past it, header and footer are
/// verified.
///
/// # Errors
/// `Io`, `Corrupt`, `Unsupported`.
pub(crate) fn open_footer(
    place: &dyn Directory,
    identity: &FileIdentity,
    meta: &FileMeta,
) -> Result<(Arc<dyn DiskFile>, Footer)> {
    let name = data_file_name(meta.number);
    let path = &*place.path().join(&name);
    let file = place
        .open(&name, OpenMode::ReadDirect)
        .map_err(|e| missing(path, e))?;
    let bytes = file.bytes().map_err(|e| Error::io("measure", path, e))?;
    if bytes < meta.bytes {
        let what = format!("{bytes} bytes long, the manifest says {}", meta.bytes);
        return Err(Error::corrupt(path, bytes, what));
    }
    small_files::check_tail(&*file, path, meta.bytes, bytes)?;
    let footer_bytes = meta.bytes.saturating_sub(meta.footer_offset);
    let mut block = pieces::aligned(path, footer_bytes.max(4096))?;
    let header = &mut block[..4096];
    pieces::read_exact(&*file, path, header, 0)?;
    param_file::check_header(header, identity).map_err(|e| e.at(path))?;
    let footer_bytes = to_usize(footer_bytes);
    let bytes = &mut block[..footer_bytes];
    pieces::read_exact(&*file, path, bytes, meta.footer_offset)?;
    let (footer, checksum) =
        Footer::decode(bytes, identity, meta.footer_offset).map_err(|e| e.at(path))?;
    let same = checksum == meta.footer_checksum && footer.entries == meta.rows + meta.tombstones;
    if !same {
        let what = "the footer is not the one that the manifest recorded";
        return Err(Error::corrupt(path, meta.footer_offset, what));
    }
    Ok((file, footer))
}

pub(crate) fn missing(path: &std::path::Path, error: std::io::Error) -> Error {
    if error.kind() == std::io::ErrorKind::NotFound {
        return Error::corrupt(path, 0, "the manifest names this file and it is missing");
    }
    Error::io("open", path, error)
}

#[cfg(test)]
mod choice_tests;
#[cfg(test)]
mod large_tests;
#[cfg(test)]
pub(crate) mod tests;

/// There are as many files as slots.
fn too_many_files() -> Error {
    Error::InvalidArgument(ArgumentError::Option {
        name: "file_bytes",
        value: String::from("too small"),
        why: String::from("the store has 2^24 files; raise file_bytes"),
    })
}
