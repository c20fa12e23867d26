//! What does a store hold at one moment, while a writer may be at work on it?
//!
//! - What CURRENT commits never changes, and a number is never used again: a file that CURRENT names
//!   before a look and after it was there all the time. A finding about it counts; a finding about
//!   any other file tells of a change.
//! - So what a writer was quick enough to replace is read again, as often as it was quicker, for
//!   [`Changes::MAX`] changes: the bound is of changes, not of time.
//! - Retained checkpoints are locked like a reader's, so that no writer drops them meanwhile.

use std::io::ErrorKind;

use super::snapshot::Walk;
use super::{Finding, Locks, Part, Severity};
use crate::error::Result;
use crate::format::current::Current;
use crate::format::{FileKind, file_name, parse_file_name};
use crate::io::{Directory, LockKind};
use crate::ssd::edits::{Replay, SnapshotPart};
use crate::ssd::manifest_reader::{read_current_file, replay_committed};
use crate::ssd::names::LOCK_NAME;
use crate::ssd::small_files::read_start;
use crate::ssd::writer_file::is_written_elsewhere;

/// Changes of CURRENT that are followed, before what can be looked at has to do.
pub(super) struct Changes(usize);

impl Changes {
    const MAX: usize = 100;

    pub fn new() -> Changes {
        Changes(Changes::MAX)
    }

    /// Follows one more; false when it is enough.
    pub fn follow(&mut self) -> bool {
        self.0 = self.0.saturating_sub(1);
        self.0 > 0
    }
}

/// The store's directory and its uuid.
pub(super) type Place<'a> = (&'a dyn Directory, &'a [u8; 16]);

/// What CURRENT commits.
pub(super) struct Reading {
    pub current: Current,
    pub replay: Replay,
    /// The committed bytes of the manifest.
    pub manifest: Vec<u8>,
}

/// What CURRENT commits, with as much of it held as a writer allows.
pub(super) struct Moment {
    pub reading: Reading,
    /// The parts of the index snapshot in force: open, so that they stay readable when they are
    /// replaced. None of a directory that is not there.
    pub snapshot: Vec<Result<Walk>>,
    _locks: Locks,
}

/// Whether a writer has the store open, here or, on a file system that other machines have mounted, there.
/// The lock is asked for as a reader would, for an instant: a writer that comes in it waits for the end of
/// that (`ssd::lock`).
pub(super) fn is_open(root: &dyn Directory) -> bool {
    let asked = root.lock(LOCK_NAME, LockKind::Shared, false);
    matches!(asked, Err(e) if e.kind() == ErrorKind::WouldBlock) || is_written_elsewhere(root)
}

impl Reading {
    /// Reads CURRENT and its manifest. What fails beside a CURRENT that names the same manifest
    /// afterwards is damage; `None`: there was another one as often as is followed.
    ///
    /// # Errors
    /// `Corrupt`, `Unsupported`, `Io`.
    pub fn take(place: Place<'_>, changes: &mut Changes) -> Result<Option<Reading>> {
        let (root, store) = place;
        loop {
            let current = read_current_file(root, store);
            let named = current.as_ref().map(|c| c.manifest_number).ok();
            let error = match current.and_then(|c| Reading::of(root, store, c)) {
                Ok(reading) => return Ok(Some(reading)),
                Err(error) => error,
            };
            let now = read_current_file(root, store);
            if named == now.map(|c| c.manifest_number).ok() {
                return Err(error);
            }
            if !changes.follow() {
                return Ok(None);
            }
        }
    }

    fn of(root: &dyn Directory, store: &[u8; 16], current: Current) -> Result<Reading> {
        let name = file_name(FileKind::Manifest, current.manifest_number);
        let manifest = read_start(root, &name, current.manifest_bytes)?;
        let path = root.path().join(name);
        let replay = replay_committed(&manifest, &path, store, &current)?;
        Ok(Reading {
            current,
            replay,
            manifest,
        })
    }

    /// Whether a finding is about something that the store still needs: one of the files that this
    /// reading names, or one that never changes.
    pub fn names(&self, finding: &Finding) -> bool {
        let name = finding.path.file_name().and_then(|name| name.to_str());
        let replay = &self.replay;
        match name.and_then(parse_file_name) {
            None => true,
            Some((FileKind::Rows, number)) => replay.files.contains_key(&number),
            Some((FileKind::Meta, number)) => {
                replay.checkpoints.iter().any(|c| c.meta_number == number)
            }
            Some((FileKind::Manifest | FileKind::ManifestCopy, number)) => {
                number == self.current.manifest_number
            }
            Some((kind @ (FileKind::Image | FileKind::Snapshot), number)) => {
                replay.has_part(kind, number)
            }
        }
    }
}

impl Moment {
    /// Locks the retained checkpoints and opens the index snapshot in force, its parts in these
    /// directories. What a writer has replaced before it was held is read again. `None`: it was
    /// quicker all the time.
    ///
    /// # Errors
    /// As [`Reading::take`].
    pub fn take(
        place: Place<'_>,
        directories: &[Part],
        changes: &mut Changes,
    ) -> Result<Option<Moment>> {
        let (root, store) = place;
        loop {
            let Some(reading) = Reading::take(place, changes)? else {
                return Ok(None);
            };
            let checkpoints = &reading.replay.checkpoints;
            let locks = checkpoints.iter().map(|c| {
                let name = file_name(FileKind::Meta, c.meta_number);
                root.lock(&name, LockKind::Shared, false)
            });
            // One that is not to be had is about to be dropped, or lost: it is looked at like the
            // others, and counts if it is still retained afterwards.
            let locks: Locks = locks.filter_map(std::result::Result::ok).collect();
            let open = |part: &SnapshotPart| {
                let place = match part.home(directories.len()) {
                    None => root,
                    Some(home) => &**directories.get(home)?.place.as_ref()?,
                };
                Some(Walk::open(place, store, *part, directories.len()))
            };
            let snapshot: Vec<_> = reading.replay.snapshot.iter().filter_map(open).collect();
            let Some(now) = Reading::take(place, changes)? else {
                return Ok(None);
            };
            let kept = |c| now.replay.checkpoints.contains(c);
            let same = now.replay.snapshot == reading.replay.snapshot;
            let counts = |part: &Result<Walk>| part.is_ok() || same;
            let held = checkpoints.iter().all(kept) && snapshot.iter().all(counts);
            if held || !changes.follow() {
                return Ok(Some(Moment {
                    reading,
                    snapshot: snapshot.into_iter().filter(counts).collect(),
                    _locks: locks,
                }));
            }
        }
    }
}

/// Leaves out the findings about what CURRENT, which was `before`, no longer names. Leftovers are
/// leftovers only beside a CURRENT that stayed the same.
pub(super) fn retain_what_still_counts(
    findings: &mut Vec<Finding>,
    place: Place<'_>,
    before: &Current,
    changes: &mut Changes,
) -> bool {
    if findings.is_empty() {
        return false;
    }
    let now = match Reading::take(place, changes) {
        Ok(Some(now)) if now.current != *before => now,
        // What is wrong with it now comes out at the next look.
        _ => return false,
    };
    findings.retain(|f| f.severity > Severity::Leftover);
    let all = findings.len();
    findings.retain(|f| now.names(f));
    findings.len() < all
}

#[cfg(test)]
mod tests;
