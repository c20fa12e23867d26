//! What does an inspection say?
//!
//! - Damage is a finding, and no error; an error is what keeps the inspection from looking.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::rows::ValueStats;
use crate::error::{Error, Result};
use crate::io::{is_no_file, is_unreadable};
use crate::options::TableDescriptor;
use crate::units::{CheckpointId, FileNumber, TableId};

/// What a finding means for the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Left over by a crash, or an index snapshot that gave its room back: the next checkpoint or open
    /// of a writer ends it. Nothing is lost.
    Leftover,
    /// What the store can do without (the index snapshot, the copy of the manifest) is damaged: nothing
    /// is lost.
    Cache,
    /// Bytes that a retained checkpoint needs are not what was written.
    Damage,
}

/// One thing that is not as it should be.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// What it means.
    pub severity: Severity,
    /// The file or directory.
    pub path: PathBuf,
    /// Byte offset, where there is one.
    pub offset: Option<u64>,
    /// What was found.
    pub what: String,
}

/// A retained checkpoint.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CheckpointReport {
    /// Its id.
    pub id: CheckpointId,
    /// The trainer's step.
    pub step: u64,
    /// When it was made, seconds since 1970.
    pub unix_seconds: u64,
    /// Bytes of its meta file.
    pub meta_bytes: u64,
    /// Parameter files of its version.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What a reader that follows the store has.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CursorReport {
    /// The reader's name.
    pub name: String,
    /// It has everything up to this checkpoint.
    pub checkpoint: CheckpointId,
}

/// A parameter file that a retained checkpoint needs.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FileReport {
    /// Its number.
    pub number: FileNumber,
    /// Where it is.
    pub path: PathBuf,
    /// Its length.
    pub bytes: u64,
    /// Rows and tombstones.
    pub entries: u64,
    /// Those that have no newer copy in the checkpoint that was looked at; `None` if they were not
    /// counted, or the file is not in it.
    pub live: Option<u64>,
}

/// A part of the index snapshot in force.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotPartReport {
    /// Its file's number.
    pub number: FileNumber,
    /// Where it is: in the data directory after that whose keys it lists.
    pub path: PathBuf,
    /// Its length.
    pub bytes: u64,
    /// The data directory whose keys it lists, by its place in the list; `None`: the image of a store
    /// of version 1, which lists all.
    pub directory: Option<usize>,
    /// The checkpoint whose rows it lists; `None` where it can't be read, which is a finding.
    pub checkpoint: Option<CheckpointId>,
}

/// A data directory that is not there, or is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MissingDirectory {
    /// Its place in the list of data directories.
    pub index: usize,
    /// Where it was looked for.
    pub path: PathBuf,
    /// A directory is there, and nothing of a store is in it: perhaps a mount point.
    pub empty: bool,
}

/// What a table holds in the checkpoint that was looked at.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TableReport {
    /// Its number.
    pub id: TableId,
    /// Its descriptor.
    pub descriptor: TableDescriptor,
    /// Rows.
    pub rows: u64,
    /// Keys that were removed and whose older copies are still hidden.
    pub tombstones: u64,
    /// Weights of these rows.
    pub weights: ValueStats,
    /// Optimizer state of these rows.
    pub state: ValueStats,
}

/// What was looked at, and what was found.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// The store's uuid.
    pub store: Option<[u8; 16]>,
    /// The version of the format that the store has, where CURRENT and its manifest can be read.
    pub format_version: Option<u32>,
    /// Whether a writer had it open when the look began or ended.
    pub open_elsewhere: bool,
    /// A writer dropped something while it was looked at: that is left out. The rest counts.
    pub left_out: bool,
    /// Retained checkpoints, oldest first.
    pub checkpoints: Vec<CheckpointReport>,
    /// Readers that follow the store, by name.
    pub cursors: Vec<CursorReport>,
    /// The checkpoint whose rows were counted.
    pub checkpoint: Option<CheckpointId>,
    /// Tables of that checkpoint, by number; empty unless the scope is full.
    pub tables: Vec<TableReport>,
    /// Parameter files of all retained checkpoints, by number.
    pub files: Vec<FileReport>,
    /// Parts of the index snapshot, by data directory; empty where only rows were asked for.
    pub snapshot: Vec<SnapshotPartReport>,
    /// Bytes read of the parameter files.
    pub bytes_read: u64,
    /// Data directories that are not there. Each is one finding; its files are not looked for.
    pub missing_directories: Vec<MissingDirectory>,
    /// Worst first, then by path.
    pub findings: Vec<Finding>,
    /// As the scope has it.
    pub(super) unreadable_is_damage: bool,
}

impl Report {
    /// The worst finding, if there is any.
    #[must_use]
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|f| f.severity).max()
    }

    pub(super) fn add(
        &mut self,
        severity: Severity,
        path: &Path,
        offset: Option<u64>,
        what: String,
    ) {
        self.findings.push(Finding {
            severity,
            path: path.to_path_buf(),
            offset,
            what,
        });
    }

    /// Notes what an error says of the disk; passes on what is not about its bytes.
    pub(super) fn note(&mut self, severity: Severity, error: Error) -> Result<()> {
        self.note_at(severity, error, None)
    }

    /// The same, with the place that the device can't read.
    pub(super) fn note_at(
        &mut self,
        severity: Severity,
        error: Error,
        unreadable_at: Option<u64>,
    ) -> Result<()> {
        match error {
            Error::MissingDirectory { index, path, empty } => {
                let found = match empty {
                    true => "is empty",
                    false => "is not there",
                };
                let what = format!("data directory {index} {found}");
                self.add(severity, &path, None, what);
                self.missing_directories
                    .push(MissingDirectory { index, path, empty });
                Ok(())
            }
            Error::Corrupt { path, offset, what } => {
                self.add(severity, &path, Some(offset), what);
                Ok(())
            }
            // Of a cache a newer version is as good as none.
            Error::Unsupported { path, found, .. } if severity == Severity::Cache => {
                self.add(severity, &path, None, format!("of format version {found}"));
                Ok(())
            }
            Error::Unsupported { .. } => Err(error),
            Error::Io { path, source, .. } if source.kind() == ErrorKind::NotFound => {
                self.add(severity, &path, None, String::from("missing"));
                Ok(())
            }
            Error::Io { path, source, .. } if is_no_file(&source) => {
                let what = format!("not a file of the store: {source}");
                self.add(severity, &path, None, what);
                Ok(())
            }
            Error::Io { path, source, .. }
                if self.unreadable_is_damage && is_unreadable(&source) =>
            {
                let what =
                    format!("the device can't read it: {source}; what it holds may be right");
                self.add(severity, &path, unreadable_at, what);
                Ok(())
            }
            other => Err(other),
        }
    }
}

#[cfg(test)]
mod tests;
