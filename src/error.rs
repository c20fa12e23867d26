//! What can go wrong, by what the caller can do about it.
//!
//! - Every variant names the thing (table, file, offset, argument) and the way out.
//! - `Io` and `Corrupt` keep the source, never only its text.
//! - Numbers in messages carry their unit.

use std::io;
use std::path::{Path, PathBuf};

/// The result of every fallible call of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Everything that a call of this crate can report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The caller passed something that can't be served; nothing changed.
    #[error("invalid argument: {0}")]
    InvalidArgument(#[from] Invalid),
    /// Bytes on disk are not what was written. Rows elsewhere stay readable.
    #[error("{}: corrupt at byte {offset}: {what}", path.display())]
    Corrupt {
        /// The damaged file.
        path: PathBuf,
        /// Byte offset of the damaged structure.
        offset: u64,
        /// Which check failed.
        what: String,
    },
    /// The operating system refused an operation.
    #[error("{operation} {}: {source}", path.display())]
    Io {
        /// What was being done, as a verb: "open", "read", "sync".
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Writing would exceed `disk_bytes_max` or the file system is full. The store stays readable
    /// and a later call works once there is room.
    #[error("no space in {}: {asked_bytes} bytes asked, {limit_bytes} bytes allowed or free, {used_bytes} used; free space, drop checkpoints or raise disk_bytes_max", path.display())]
    NoSpace {
        /// The data directory.
        path: PathBuf,
        /// Bytes used by the store.
        used_bytes: u64,
        /// Bytes the write needed.
        asked_bytes: u64,
        /// The limit that would have been passed.
        limit_bytes: u64,
    },
    /// One batch and the outstanding leases can't be in memory together.
    #[error(
        "over the cache budget of table {table}: {asked_rows} rows asked beside {pinned_rows} pinned by outstanding leases, {capacity_rows} fit; set cache_bytes to at least {needed_bytes} or drop leases (outstanding: {leases:?})"
    )]
    OverBudget {
        /// Table name.
        table: String,
        /// Rows pinned by outstanding leases, in the fullest shard, times the shards.
        pinned_rows: u64,
        /// Rows this call needs to pin beside them.
        asked_rows: u64,
        /// Rows that fit.
        capacity_rows: u64,
        /// A `cache_bytes` at which the call fits.
        needed_bytes: u64,
        /// Ids of the outstanding leases, oldest first (at most 16).
        leases: Vec<u64>,
    },
    /// Another process (or another handle of this one) has the store open for writing.
    #[error("{}: locked by another writer; close it, or open read-only", path.display())]
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// The file was written by a version of the format that this build does not know.
    #[error("{}: format version {found}, this build reads up to {supported}; upgrade hps", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// Version found.
        found: u32,
        /// Highest version supported.
        supported: u32,
    },
    /// An earlier sync or manifest write failed: what the device holds is unknown. Reads go on;
    /// writes are refused until the store is opened again, at its last checkpoint.
    #[error(
        "the store refuses writes since an earlier failure ({cause}); reopen it to continue from the last checkpoint"
    )]
    Poisoned {
        /// The first failure.
        cause: String,
    },
    /// `close` was asked with changes after the last checkpoint.
    #[error(
        "{rows} rows changed after the last checkpoint; checkpoint first, or close with discard"
    )]
    Uncheckpointed {
        /// Rows changed.
        rows: u64,
    },
    /// The caller asked a long call to stop; nothing changed.
    #[error("stopped on request")]
    Cancelled,
    /// The store was opened read-only.
    #[error("{}: opened read-only", path.display())]
    ReadOnly {
        /// The store's directory.
        path: PathBuf,
    },
    /// The deadline passed before the prefetch was resident; the ticket stays valid.
    #[error("the prefetch is not resident yet (waited {waited_ms} ms)")]
    Deadline {
        /// Milliseconds waited.
        waited_ms: u64,
    },
}

/// Which argument was wrong, and how.
#[derive(Debug, thiserror::Error, Clone, PartialEq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "every field is named in its variant's message")]
pub enum Invalid {
    #[error("no table named {name:?}; known: {known:?}")]
    UnknownTable { name: String, known: Vec<String> },
    #[error(
        "table {name:?} exists with {field} {stored}, asked with {asked}; a stored descriptor can't change"
    )]
    DescriptorChanged {
        name: String,
        field: &'static str,
        stored: String,
        asked: String,
    },
    #[error("{what}: {found} given, {expected} needed")]
    Length {
        what: &'static str,
        expected: usize,
        found: usize,
    },
    #[error("gradient {index} (key {key:#x} of table {table}) is not finite")]
    NonFinite {
        table: String,
        key: u64,
        index: usize,
    },
    #[error("the lease belongs to another store or to a store that was closed")]
    ForeignLease,
    #[error("{path}: not a store: {why}")]
    NotAStore { path: PathBuf, why: String },
    #[error("{path}: already holds a store; open it, or choose an empty directory")]
    AlreadyAStore { path: PathBuf },
    #[error("option {name} = {value}: {why}")]
    Option {
        name: &'static str,
        value: String,
        why: String,
    },
    #[error("step {step} does not come after step {last} of the last checkpoint")]
    StepNotRising { step: u64, last: u64 },
    #[error("no checkpoint {id}; retained: {retained:?}")]
    UnknownCheckpoint { id: u64, retained: Vec<u64> },
    #[error("{what} while {count} leases or tickets are outstanding; drop them first")]
    LeasesOutstanding { what: &'static str, count: usize },
    #[error("{what}")]
    Other { what: String },
}

impl Error {
    /// Wraps a system error with what was being done to which path; ENOSPC keeps its own kind.
    pub fn io(operation: &'static str, path: &Path, source: io::Error) -> Error {
        Error::Io {
            operation,
            path: path.to_path_buf(),
            source,
        }
    }

    /// Names a damaged structure.
    pub fn corrupt(path: &Path, offset: u64, what: impl Into<String>) -> Error {
        Error::Corrupt {
            path: path.to_path_buf(),
            offset,
            what: what.into(),
        }
    }
}
