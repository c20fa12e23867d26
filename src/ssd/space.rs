//! Is there room for what is to be written, and what is said when there is none?
//!
//! Invariants:
//! - `NoSpace` names the directory that is full, never a file in it, and what it says of room was
//!   measured there.
//! - A file system without room and a quota that is used up are the same to the caller.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::Ssd;
use crate::error::{Error, Result};
use crate::io::{Directory, Space, is_full};

/// The error of a change in a directory; `NoSpace` where that, or a quota, is full.
pub(crate) fn refused(
    operation: &'static str,
    place: &dyn Directory,
    path: &Path,
    asked_bytes: u64,
    error: io::Error,
) -> Error {
    match is_full(&error) {
        true => no_room(place.path(), asked_bytes, place.space().ok()),
        false => Error::io(operation, path, error),
    }
}

/// The error for a directory whose file system has no room; `None` where it could not be measured.
fn no_room(directory: &Path, asked_bytes: u64, space: Option<Space>) -> Error {
    Error::NoSpace {
        // Without a `.` at its end.
        path: directory.components().collect(),
        used_bytes: space.map_or(0, |s| s.total_bytes.saturating_sub(s.free_bytes)),
        asked_bytes,
        limit_bytes: space.map_or(0, |s| s.free_bytes),
    }
}

impl Ssd {
    /// Fails with `NoSpace` unless `asked_bytes` fit under the limit and on the file system, and
    /// leave `reserve_bytes` under the limit (for the compaction that would make room). Room that
    /// an index snapshot has is made free first.
    ///
    /// # Errors
    /// `NoSpace`, `Io`.
    pub fn check_space(
        &self,
        directory: usize,
        asked_bytes: u64,
        reserve_bytes: u64,
    ) -> Result<()> {
        self.with_snapshot_room(|| self.check_space_as_it_is(directory, asked_bytes, reserve_bytes))
    }

    /// As [`Ssd::check_space`], where an index snapshot stays.
    ///
    /// # Errors
    /// `NoSpace`, `Io`.
    pub fn check_space_as_it_is(
        &self,
        directory: usize,
        asked_bytes: u64,
        reserve_bytes: u64,
    ) -> Result<()> {
        let place = &self.directories[directory];
        let space = place
            .space()
            .map_err(|e| Error::io("measure", place.path(), e))?;
        // One limit given holds for all directories; without one each has its file system's.
        let all = self.disk_bytes_max != 0;
        let usage = self.versions().usage_of(|d| all || d == directory);
        let snapshot_bytes = match all {
            true => self.snapshots.bytes(),
            false => self.snapshots.bytes_in(directory),
        };
        let used_bytes = (usage.current_bytes)
            .saturating_add(usage.pinned_bytes)
            .saturating_add(snapshot_bytes);
        let default = space.total_bytes / 100 * 85;
        let limit = if self.disk_bytes_max == 0 {
            default
        } else {
            self.disk_bytes_max
        };
        if used_bytes + asked_bytes + reserve_bytes > limit {
            return Err(Error::NoSpace {
                path: place.path().to_path_buf(),
                used_bytes,
                asked_bytes,
                limit_bytes: limit,
            });
        }
        if asked_bytes > space.free_bytes {
            return Err(no_room(place.path(), asked_bytes, Some(space)));
        }
        Ok(())
    }

    /// Fails with `NoSpace` unless `asked_bytes` more fit into the store's directory; room that an
    /// snapshot has is made free first.
    pub(super) fn check_root_space(&self, asked_bytes: u64) -> Result<()> {
        self.with_snapshot_room(|| self.check_root_space_as_it_is(asked_bytes))
    }

    fn check_root_space_as_it_is(&self, asked_bytes: u64) -> Result<()> {
        self.check_free(&*self.root, asked_bytes)
    }

    /// Fails with `NoSpace` unless `asked_bytes` more fit into a directory.
    pub(super) fn check_free(&self, place: &dyn Directory, asked_bytes: u64) -> Result<()> {
        let path = place.path();
        let space = place.space().map_err(|e| Error::io("measure", path, e))?;
        if asked_bytes <= space.free_bytes {
            return Ok(());
        }
        Err(no_room(path, asked_bytes, Some(space)))
    }

    pub(super) fn no_root_space(
        &self,
        used_bytes: u64,
        asked_bytes: u64,
        limit_bytes: u64,
    ) -> Error {
        Error::NoSpace {
            path: self.root.path().to_path_buf(),
            used_bytes,
            asked_bytes,
            limit_bytes,
        }
    }

    /// The error of a write to a file; `NoSpace` where its directory, or a quota, is full.
    pub(crate) fn full(&self, path: &Path, asked_bytes: u64, error: io::Error) -> Error {
        let is_in = |d: &&Arc<dyn Directory>| Some(d.path()) == path.parent();
        let place = self.directories.iter().find(is_in).unwrap_or(&self.root);
        refused("write", &**place, path, asked_bytes, error)
    }
}

#[cfg(test)]
mod tests;
