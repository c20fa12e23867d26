//! When is an index snapshot written, and how does it give its room back?
//!
//! A snapshot is a cache: it takes room that nobody else needs.
//!
//! Invariants:
//! - All parts of a new snapshot come into force together, or none; until then the old ones count.
//! - No rows, meta file or manifest fail for want of room that needless files or a snapshot have: those go
//!   first, then it is removed, or the one being written is broken off; and they are tried once more.
//! - Each time that happens, the next snapshot wants twice as much room beside it: one that is
//!   written only to be removed is not written again and again.
//! - Lock order: `work`, then `manifest`.

use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::Ssd;
use super::commit::Captured;
use super::edits::{Commit, SnapshotPart};
use super::index_snapshot::KeyClasses;
use super::manifest::ManifestWriter;
use crate::error::{ArgumentError, Error, Result};
use crate::in_use::InUse;
use crate::io::Directory;
use crate::options::Thresholds;
use crate::sync::Mutex;

/// Most times that the room asked for is doubled.
const DOUBLED_MAX: u32 = 16;

/// No snapshot is more than this part of the bytes flushed since the one before.
const FLUSHED_PART: u64 = 10;

/// The room that index snapshots take.
#[derive(Debug, Default)]
pub struct SnapshotRoom {
    /// Held from the first byte of a snapshot until it is in force, or gone.
    work: Mutex<()>,
    /// Whoever writes a snapshot is to break it off.
    stop: AtomicBool,
    /// One that was being written when it was asked to stop has ended, one way or the other.
    stopped: AtomicBool,
    /// Bytes in each data directory: of the part in force that lies there, and of one being written.
    held: Vec<HeldBytes>,
    /// Bytes of an image of version 1, in the store's directory.
    whole_bytes: AtomicU64,
    /// How often a snapshot gave way.
    gave_way: AtomicU32,
    /// Bytes flushed since the last snapshot that was put in force.
    flushed_bytes: AtomicU64,
    /// Buffers of the parts that are being written.
    pub in_use: InUse,
    /// Whoever writes a snapshot rests as long as he works: somebody trains, and nobody waits.
    paced: AtomicBool,
}

#[derive(Debug, Default)]
struct HeldBytes {
    in_force: AtomicU64,
    writing: AtomicU64,
}

impl SnapshotRoom {
    /// Of a store with so many data directories, with these parts in force.
    pub fn new(directories: usize, parts: &[SnapshotPart]) -> SnapshotRoom {
        let room = SnapshotRoom {
            held: (0..directories).map(|_| HeldBytes::default()).collect(),
            ..SnapshotRoom::default()
        };
        room.put_in_force(parts);
        room
    }

    /// Bytes of the snapshot in force and of one being written.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let parts = (0..self.held.len()).map(|d| self.bytes_in(d));
        parts.sum::<u64>() + self.whole_bytes.load(Ordering::Relaxed)
    }

    /// The same in one data directory.
    #[must_use]
    pub fn bytes_in(&self, directory: usize) -> u64 {
        let Some(held) = self.held.get(directory) else {
            return 0;
        };
        held.in_force.load(Ordering::Relaxed) + held.writing.load(Ordering::Relaxed)
    }

    fn writing_bytes(&self) -> u64 {
        let writing = |held: &HeldBytes| held.writing.load(Ordering::Relaxed);
        self.held.iter().map(writing).sum()
    }

    /// Says what was flushed since the last snapshot before this process opened the store.
    pub fn begin_flushed(&self, bytes: u64) {
        self.flushed_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Notes that rows were flushed.
    pub fn add_flushed(&self, bytes: u64) {
        self.flushed_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes flushed since the last snapshot that was put in force.
    pub fn flushed_bytes(&self) -> u64 {
        self.flushed_bytes.load(Ordering::Relaxed)
    }

    /// Whether a snapshot is to be written slowly.
    pub fn pace(&self, paced: bool) {
        self.paced.store(paced, Ordering::Relaxed);
    }

    pub(super) fn is_paced(&self) -> bool {
        self.paced.load(Ordering::Relaxed)
    }

    /// Whoever writes a snapshot is to break it off.
    pub(super) fn break_off(&self) {
        self.stop.store(true, Ordering::Release);
    }

    fn put_in_force(&self, parts: &[SnapshotPart]) {
        for (home, held) in self.held.iter().enumerate() {
            let lies_here = |p: &&SnapshotPart| p.home(self.held.len()) == Some(home);
            let part = parts.iter().find(lies_here);
            let bytes = part.map_or(0, |p| p.bytes);
            held.in_force.store(bytes, Ordering::Relaxed);
        }
        let whole = parts.iter().find(|p| p.directory.is_none());
        let whole_bytes = whole.map_or(0, |p| p.bytes);
        self.whole_bytes.store(whole_bytes, Ordering::Relaxed);
        self.end_writing();
    }

    fn end_writing(&self) {
        for held in &self.held {
            held.writing.store(0, Ordering::Relaxed);
        }
    }
}

/// Whether a new snapshot pays: opening would read many key blocks beside the old one, or what the old one
/// says of how often rows are used is `outdated`; and snapshots stay a small part of what is written, unless
/// they are small themselves.
pub(super) fn is_due(
    limits: &Thresholds,
    (old_bytes, new_bytes): (u64, u64),
    young_bytes: u64,
    flushed_bytes: u64,
    outdated: bool,
) -> bool {
    let many = old_bytes / limits.snapshot_young_part + limits.snapshot_young_bytes;
    let few = flushed_bytes / FLUSHED_PART >= new_bytes;
    let cheap = new_bytes <= limits.snapshot_small_bytes || few;
    young_bytes > many && cheap || outdated && few
}

impl Ssd {
    /// Brings the index snapshot up to a checkpoint that is durable, if it is worth it; `writers`
    /// threads write its parts. With `classes` it says how often each row was used, and is renewed for that
    /// alone, too. It is a cache: nobody waits for it, and a failure only leaves the old one in force.
    pub fn refresh_snapshot(
        &self,
        captured: &Captured,
        writers: usize,
        classes: Option<&dyn KeyClasses>,
    ) {
        let _renewing =
            tracing::debug_span!("index_snapshot", checkpoint = captured.id.0).entered();
        let work = self.snapshots.work.lock();
        let _work = work.unwrap_or_else(PoisonError::into_inner);
        let flushed_bytes = self.snapshots.flushed_bytes();
        let renew = || match self.renew_snapshot(captured, writers, classes)? {
            Some(parts) => {
                self.put_in_force(parts)?;
                let flushed = &self.snapshots.flushed_bytes;
                flushed.fetch_sub(flushed_bytes, Ordering::Relaxed);
                Ok(())
            }
            None => Ok(()),
        };
        let result = self.check_writable().and_then(|()| renew());
        self.snapshots.end_writing();
        if self.snapshots.stop.load(Ordering::Acquire) {
            self.snapshots.stopped.store(true, Ordering::Release);
        }
        if let Err(error) = result {
            tracing::warn!(%error, "no new index snapshot; the next open reads more key blocks");
        }
    }

    fn put_in_force(&self, parts: Vec<SnapshotPart>) -> Result<()> {
        let mut manifest = self.manifest();
        self.check_writable()?;
        for part in &parts {
            self.sync_names(self.place_of(part))?;
        }
        let replaced = |old: &&SnapshotPart| {
            let directory = old.directory;
            directory.is_some() && parts.iter().all(|new| new.directory != directory)
        };
        let gone = manifest.snapshot.iter().filter(replaced);
        let gone = gone.filter_map(|old| old.directory).map(SnapshotPart::none);
        let commit = Commit {
            edits: gone.chain(parts.iter().map(SnapshotPart::edit)).collect(),
            recorded: Vec::new(),
        };
        let mut current = manifest.current;
        let roll = manifest.files.is_none();
        let result = if roll {
            // The next checkpoint starts a new manifest; it will make a snapshot again.
            Err(ArgumentError::Other {
                what: String::from("the manifest is to be started afresh"),
            }
            .into())
        } else {
            self.write_edits(&mut manifest, &mut current, &commit, false)
                .and_then(|()| self.write_current(&mut manifest, current))
        };
        if let Err(e) = result {
            // After a rename of unknown outcome nothing is unlinked.
            if self.check_writable().is_ok() {
                self.unlink_parts(&parts);
            }
            return Err(e);
        }
        self.snapshots.put_in_force(&parts);
        let old = std::mem::replace(&mut manifest.snapshot, parts);
        self.unlink_parts(&old);
        Ok(())
    }

    /// The directory that a part lies in.
    pub(super) fn place_of(&self, part: &SnapshotPart) -> &dyn Directory {
        let home = part.home(self.directories.len());
        let place = home.and_then(|home| self.directories.get(home));
        &**place.unwrap_or(&self.root)
    }

    /// Removes parts that nothing names.
    pub(super) fn unlink_parts(&self, parts: &[SnapshotPart]) {
        for part in parts {
            self.unlink(self.place_of(part), &part.file_name());
        }
    }

    /// Fails unless a part that has `written` bytes and will have `bytes` leaves room in the data
    /// directory that it lies in for as much again as the whole snapshot, and when that is to be broken off.
    ///
    /// # Errors
    /// `NoSpace`, `Cancelled`, `Io`.
    pub(super) fn check_snapshot_room(&self, home: usize, written: u64, bytes: u64) -> Result<()> {
        let snapshots = &self.snapshots;
        if let Some(held) = snapshots.held.get(home) {
            held.writing.store(written, Ordering::Relaxed);
        }
        self.check_snapshot_wanted()?;
        let doubled = snapshots.gave_way.load(Ordering::Relaxed).min(DOUBLED_MAX);
        let more_bytes = bytes.saturating_sub(written);
        let whole_bytes = snapshots.writing_bytes().saturating_add(more_bytes);
        let asked_bytes = whole_bytes.saturating_mul(1 << doubled);
        let asked_bytes = asked_bytes.saturating_add(more_bytes);
        if self.disk_bytes_max != 0 {
            let usage = self.usage();
            let used_bytes = usage.current_bytes + usage.pinned_bytes + snapshots.bytes();
            if used_bytes.saturating_add(asked_bytes) > self.disk_bytes_max {
                return Err(self.no_root_space(used_bytes, asked_bytes, self.disk_bytes_max));
            }
        }
        match self.directories.get(home) {
            Some(place) => self.check_free(&**place, asked_bytes),
            None => Ok(()),
        }
    }

    /// Fails where the snapshot being written is to be broken off.
    ///
    /// # Errors
    /// `Cancelled`.
    pub(super) fn check_snapshot_wanted(&self) -> Result<()> {
        match self.snapshots.stop.load(Ordering::Acquire) {
            true => Err(Error::Cancelled),
            false => Ok(()),
        }
    }

    /// Does what may find no room; once more, if it found none and files went that nothing needs, and once more
    /// if an index snapshot gave up its own.
    ///
    /// # Errors
    /// Those of the attempt.
    pub fn with_snapshot_room<T>(&self, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        let before = self.unlinking.rounds();
        let mut result = attempt();
        let lacks_room = |result: &Result<T>| matches!(result, Err(Error::NoSpace { .. }));
        if lacks_room(&result) {
            self.unlink_all();
            if self.unlinking.rounds() != before {
                result = attempt();
            }
        }
        if lacks_room(&result) && self.take_snapshot_room() {
            result = attempt();
        }
        result
    }

    /// Removes the index snapshot, and breaks off one being written, so that somebody else has
    /// their room; false if there was none. An open reads key blocks instead.
    fn take_snapshot_room(&self) -> bool {
        let snapshots = &self.snapshots;
        if self.check_writable().is_err() {
            return false;
        }
        let before = snapshots.gave_way.load(Ordering::Acquire);
        snapshots.break_off();
        let work = snapshots.work.lock();
        let _work = work.unwrap_or_else(PoisonError::into_inner);
        snapshots.stop.store(false, Ordering::Release);
        let stopped = snapshots.stopped.swap(false, Ordering::AcqRel);
        let removed = self.remove_snapshot(&mut self.manifest());
        if stopped || removed {
            snapshots.gave_way.fetch_add(1, Ordering::AcqRel);
            tracing::warn!("the index snapshot gave its room to what had none");
        }
        // Perhaps another one made it go meanwhile.
        snapshots.gave_way.load(Ordering::Acquire) != before
    }

    /// Removes the part of a data directory (`None`: the one of version 1) whose checksums are right and
    /// which contradicts the files that it covers: the next one would be made from it. CURRENT
    /// names it until the next checkpoint.
    pub fn remove_part(&self, directory: Option<u32>) {
        let mut manifest = self.manifest();
        let is_gone = |part: &SnapshotPart| part.directory == directory;
        let parts = std::mem::take(&mut manifest.snapshot).into_iter();
        let (gone, stay): (Vec<_>, Vec<_>) = parts.partition(is_gone);
        manifest.files = None;
        self.snapshots.put_in_force(&stay);
        manifest.snapshot = stay;
        self.unlink_parts(&gone);
    }

    fn remove_snapshot(&self, manifest: &mut ManifestWriter) -> bool {
        if self.check_writable().is_err() || manifest.snapshot.is_empty() {
            return false;
        }
        let parts = std::mem::take(&mut manifest.snapshot);
        // The next commit starts a manifest without it; until then one is named that is not there.
        manifest.files = None;
        self.snapshots.put_in_force(&[]);
        self.unlink_parts(&parts);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As docs/decisions/0023 has it, for a million keys: rows flushed per key before an index snapshot is
    /// due beside one of the same size.
    #[test]
    fn wide_rows_wait_for_young_keys_and_narrow_ones_for_a_tenth_of_what_is_flushed() {
        let (keys, limits) = (1_000_000, Thresholds::default());
        let snapshot = 16 * keys;
        let due = |row_bytes: u64, per_mille: u64| {
            let flushed = keys * per_mille / 1000;
            is_due(
                &limits,
                (snapshot, snapshot),
                flushed * 12,
                flushed * row_bytes,
                false,
            )
        };
        assert!(!due(546, 660) && due(546, 680));
        assert!(!due(240, 660) && due(240, 680));
        assert!(!due(94, 1700) && due(94, 1710));
        assert!(!due(46, 3470) && due(46, 3480));
        // The first one, and small ones.
        assert!(is_due(&limits, (0, snapshot), 12 * keys, 160 * keys, false));
        assert!(!is_due(
            &limits,
            (0, snapshot),
            12 * keys,
            159 * keys,
            false
        ));
        assert!(!is_due(&limits, (0, 1 << 20), 64 << 10, 0, false));
        assert!(is_due(&limits, (0, 1 << 20), (64 << 10) + 1, 0, false));
        // Where it says how rows are used: as soon as it is cheap.
        assert!(is_due(&limits, (snapshot, snapshot), 12, 160 * keys, true));
        assert!(!is_due(&limits, (snapshot, snapshot), 12, 159 * keys, true));
        // A small one, too, is not written anew for nothing.
        assert!(!is_due(&limits, (4096, 4096), 0, 40_959, true));
        assert!(is_due(&limits, (4096, 4096), 0, 40_960, true));
    }
}
