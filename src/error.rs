//! What can go wrong, by what the caller can do about it.
//!
//! - Every variant names the thing (table, file, offset, argument) and the way out.
//! - `Io` keeps the system's error, never only its text.
//! - A message says all of its cause, and says it once: `source()` gives only what the message
//!   does not say, so that `{}` is complete and nothing stands twice where a chain is printed.
//! - Numbers in messages carry their unit.

use crate::units::{CheckpointId, TableId, saturate};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// The result of every fallible call of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Everything that a call of this crate can report.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The caller passed something that can't be served; nothing changed.
    InvalidArgument(ArgumentError),
    /// Bytes on disk are not what was written. Rows elsewhere stay readable.
    Corrupt {
        /// The damaged file.
        path: PathBuf,
        /// Byte offset of the damaged structure.
        offset: u64,
        /// Which check failed.
        what: String,
    },
    /// A data directory of the store is not there. Nothing is known to be damaged: its file system
    /// may not be mounted.
    MissingDirectory {
        /// Its place in the list of data directories.
        index: usize,
        /// Where it was looked for.
        path: PathBuf,
        /// A directory is there, and nothing of a store is in it: perhaps a mount point.
        empty: bool,
    },
    /// The operating system refused an operation.
    Io {
        /// What was being done, as a verb: "open", "read", "sync".
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Writing would exceed `disk_bytes_max`, or the file system or a quota is full. The store stays
    /// readable and a later call works once there is room.
    NoSpace {
        /// The directory that is full: a data directory, or the store's own. Never a file.
        path: PathBuf,
        /// Bytes used: by the store, under a limit of its own; by everybody, where the file system is
        /// full.
        used_bytes: u64,
        /// Bytes the write needed.
        asked_bytes: u64,
        /// The limit of the store that would have been passed, or the bytes free on the file system.
        limit_bytes: u64,
    },
    /// One batch and the outstanding leases can't be in memory together.
    OverBudget {
        /// Table name.
        table: String,
        /// Rows pinned by outstanding leases in the shard that needs most memory, times the shards.
        pinned_rows: u64,
        /// Rows this call needs to pin beside them in that shard, times the shards.
        asked_rows: u64,
        /// Rows that fit.
        capacity_rows: u64,
        /// A `cache_bytes` at which the call fits.
        needed_bytes: u64,
        /// Ids of the outstanding leases, oldest first (at most 16).
        leases: Vec<u64>,
    },
    /// Somebody else holds what the call needs for itself.
    Locked {
        /// The lock file: of the store, or the meta file of a checkpoint.
        path: PathBuf,
        /// Who holds it.
        holder: Holder,
    },
    /// The file was written by a version of the format that this build does not know.
    Unsupported {
        /// The file.
        path: PathBuf,
        /// Version found.
        found: u32,
        /// Highest version supported.
        supported: u32,
    },
    /// The weights of a table are of a type that this build can't compute with. Nothing is wrong with
    /// the store, which can be inspected and repaired.
    UnsupportedTable {
        /// The table's name.
        table: String,
        /// The type of its weights.
        dtype: &'static str,
    },
    /// An earlier sync or manifest write failed, or a thread panicked: what the device, or memory,
    /// holds is unknown. Reads go on; writes are refused until the store is opened again, at its
    /// last checkpoint.
    Poisoned {
        /// The first failure.
        cause: String,
    },
    /// `close` was asked with changes after the last checkpoint.
    Uncheckpointed {
        /// Rows changed.
        rows: u64,
    },
    /// The caller asked a long call to stop; nothing changed.
    Cancelled,
    /// The store was opened read-only.
    ReadOnly {
        /// The store's directory.
        path: PathBuf,
    },
    /// The deadline passed before the prefetch was resident; the ticket stays valid.
    Deadline {
        /// Milliseconds waited.
        waited_ms: u64,
    },
    /// A GPU, or its driver, did not do what it was asked.
    Device {
        /// Which one, as far as it is known: "cuda:0".
        device: String,
        /// What was being done, as a verb: "open", "launch insert".
        operation: String,
        /// What the driver said, or what is missing, and the way out.
        why: String,
    },
    /// The memory of a device, or pinned memory of the host, does not suffice. Nothing was taken.
    DeviceMemory {
        /// Which device.
        device: String,
        /// What it was for.
        what: &'static str,
        /// Bytes asked for.
        asked_bytes: u64,
        /// Bytes free on the device; of pinned memory, unknown.
        free_bytes: Option<u64>,
    },
    /// A call on a device was refused, and so are all later ones of its stream: they changed nothing.
    RefusedCall {
        /// The number of the call, counted from 1 by stream.
        call: u64,
        /// Why.
        why: &'static str,
        /// The key, or the row number, that it was refused for.
        key: u64,
        /// Where it stood in the call.
        position: u32,
        /// Positions of the call that were refused.
        positions: u64,
    },
    /// The store, or what it gave, belongs to the process that this one was forked from. Nothing
    /// was done, and nothing needs to be: dropping them here does nothing.
    Forked,
}

/// Who holds a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Holder {
    /// Another process (or another handle of this one) has the store open for writing.
    Writer,
    /// A process that the file WRITER names has the store open for writing, on another machine or through another
    /// mount, or ended there without closing it.
    Elsewhere,
    /// A reader, an inspection or an export in progress needs the checkpoint.
    Reader,
    /// The writer is about to drop the checkpoint.
    Dropping,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::InvalidArgument(what) => write!(f, "invalid argument: {what}"),
            Error::Corrupt { path, offset, what } => {
                write!(f, "{}: corrupt at byte {offset}: {what}", path.display())
            }
            Error::MissingDirectory { index, path, empty } => {
                let found = match empty {
                    true => "is empty",
                    false => "is not there",
                };
                write!(
                    f,
                    "data directory {index} ({}) {found}: mount its file system, or name all data \
                     directories where they are now in moved_directories; if it is lost, `hps-fsck --repair \
                     --without-directory {index}` saves the rest",
                    path.display()
                )
            }
            Error::Io {
                operation,
                path,
                source,
            } => write!(f, "{operation} {}: {source}", path.display()),
            Error::NoSpace {
                path,
                used_bytes,
                asked_bytes,
                limit_bytes,
            } => write!(
                f,
                "no space in {}: {asked_bytes} bytes asked, {limit_bytes} bytes allowed or free, \
                 {used_bytes} used; free space, drop checkpoints or raise disk_bytes_max",
                path.display()
            ),
            Error::OverBudget {
                table,
                pinned_rows,
                asked_rows,
                capacity_rows,
                needed_bytes,
                leases,
            } => write!(
                f,
                "over the cache budget of table {table}: {asked_rows} rows asked beside \
                 {pinned_rows} pinned by outstanding leases, {capacity_rows} fit; set cache_bytes \
                 to at least {needed_bytes}, drop leases (outstanding: {leases:?}) or ask for fewer rows \
                 at once (passes: hps-keyset split)"
            ),
            Error::Locked { path, holder } => write!(f, "{}: {holder}", path.display()),
            Error::Unsupported {
                path,
                found,
                supported,
            } => write!(
                f,
                "{}: format version {found}, this build reads up to {supported}; upgrade hps",
                path.display()
            ),
            Error::UnsupportedTable { table, dtype } => write!(
                f,
                "table {table}: this build can't compute with weights of {dtype}; upgrade hps"
            ),
            Error::Poisoned { cause } => write!(
                f,
                "the store refuses writes since an earlier failure ({cause}); reopen it to \
                 continue from the last checkpoint"
            ),
            Error::Uncheckpointed { rows } => write!(
                f,
                "{rows} rows changed after the last checkpoint; checkpoint first, or close with \
                 discard"
            ),
            Error::Cancelled => f.write_str("stopped on request"),
            Error::ReadOnly { path } => write!(f, "{}: opened read-only", path.display()),
            Error::Deadline { waited_ms } => write!(
                f,
                "the prefetch is not resident yet (waited {waited_ms} ms)"
            ),
            Error::Device {
                device,
                operation,
                why,
            } => write!(f, "{device}: {operation}: {why}"),
            Error::DeviceMemory {
                device,
                what,
                asked_bytes,
                free_bytes,
            } => {
                write!(
                    f,
                    "{device}: {asked_bytes} bytes for {what} are not to be had"
                )?;
                match free_bytes {
                    Some(free) => write!(f, ", {free} are free; ask for fewer rows"),
                    None => f.write_str("; ask for less, or raise the limit of locked memory"),
                }
            }
            Error::RefusedCall {
                call,
                why,
                key,
                position,
                positions,
            } => write!(
                f,
                "call {call} on the device was refused: {why} {key} at position {position} \
                 ({positions} positions in all); it and all later calls changed nothing"
            ),
            Error::Forked => f.write_str(
                "the store belongs to the process that this one was forked from; open it here \
                 read-only, or for writing once that process has closed it",
            ),
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Holder::Writer => "locked by another writer; close it, or open read-only",
            Holder::Elsewhere => {
                "the process that this file names has the store open for writing; close it, or remove the file \
                 once that process has ended for certain"
            }
            Holder::Reader => {
                "a reader holds this checkpoint; close the reader, or try again later"
            }
            Holder::Dropping => "the writer is dropping this checkpoint; open a later one",
        })
    }
}

impl std::error::Error for Error {
    /// What the message does not say: the source of the system's error.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => source.source(),
            _ => None,
        }
    }
}

impl From<ArgumentError> for Error {
    fn from(what: ArgumentError) -> Error {
        Error::InvalidArgument(what)
    }
}

/// No thread more may be started.
#[derive(Debug)]
struct ThreadLimit(io::Error);

impl fmt::Display for ThreadLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: no more threads are allowed; raise the limit of processes (ulimit -u, pids.max of \
             the container), or lower the option threads",
            self.0
        )
    }
}

impl std::error::Error for ThreadLimit {}

/// A file system that takes no writes.
#[derive(Debug)]
struct ReadOnlySystem(io::Error);

impl fmt::Display for ReadOnlySystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}; open the store read-only, or mount its file system for writing",
            self.0
        )
    }
}

impl std::error::Error for ReadOnlySystem {}

/// Which argument was wrong, and how.
#[derive(Debug, thiserror::Error, Clone, PartialEq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "every field is named in its variant's message")]
pub enum ArgumentError {
    #[error("no table named {name:?}; known: {known:?}")]
    UnknownTable { name: String, known: Vec<String> },
    #[error("table {name:?} (number {table}) was dropped")]
    TableDropped { name: String, table: TableId },
    #[error("there is a table named {name:?} already")]
    TableExists { name: String },
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
    #[error("the lease belongs to another store")]
    ForeignLease,
    #[error("part {part} of the lease is of table {leased:?}, given {given}")]
    WrongTable {
        part: usize,
        leased: String,
        given: String,
    },
    #[error("position {position} (at index {index}): the part has {rows} rows")]
    Position {
        position: u32,
        index: usize,
        rows: usize,
    },
    #[error("the lease has {parts} parts: {instead}")]
    SeveralParts { parts: usize, instead: &'static str },
    #[error("the store is closed; open it again")]
    Closed,
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
    #[error("no checkpoint {id}; retained: {:?}", retained.iter().map(|id| id.0).collect::<Vec<_>>())]
    UnknownCheckpoint {
        id: CheckpointId,
        retained: Vec<CheckpointId>,
    },
    #[error(
        "what changed since checkpoint {since} is not kept: it is neither retained {:?} nor a cursor's; take a \
         whole copy, and set_cursor for the next time",
        retained.iter().map(|id| id.0).collect::<Vec<_>>()
    )]
    HistoryGone {
        since: CheckpointId,
        retained: Vec<CheckpointId>,
    },
    #[error("{path}: a delta that can't be used: {why}")]
    Delta { path: PathBuf, why: String },
    #[error("{what} while {count} leases or tickets are outstanding; drop them first")]
    LeasesOutstanding { what: &'static str, count: usize },
    #[error("{what}")]
    Other { what: String },
}

/// There are as many as there have to be.
///
/// # Errors
/// `InvalidArgument`, which says of what there are not.
pub(crate) fn check_length(what: &'static str, expected: usize, found: usize) -> Result<()> {
    match expected == found {
        true => Ok(()),
        false => Err(ArgumentError::Length {
            what,
            expected,
            found,
        }
        .into()),
    }
}

impl Error {
    /// A wait that began then is over, and what it waited for has not come.
    pub(crate) fn deadline(since: std::time::Instant) -> Error {
        let waited_ms = saturate(since.elapsed().as_millis());
        Error::Deadline { waited_ms }
    }

    /// Wraps a system error with what was being done to which path; ENOSPC keeps its own kind.
    pub fn io(operation: &'static str, path: &Path, source: io::Error) -> Error {
        Error::Io {
            operation,
            path: path.to_path_buf(),
            source,
        }
    }

    /// Says that a thread can't be started, and which limit forbids it.
    pub(crate) fn thread(path: &Path, source: io::Error) -> Error {
        let source = match source.kind() {
            io::ErrorKind::WouldBlock => io::Error::new(source.kind(), ThreadLimit(source)),
            _ => source,
        };
        Error::io("start a thread for", path, source)
    }

    /// Says that a store can't be opened for writing where its directory is, and what can be done.
    pub(crate) fn read_only_system(directory: &Path, source: io::Error) -> Error {
        let source = io::Error::new(source.kind(), ReadOnlySystem(source));
        Error::io("open for writing", directory, source)
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

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    /// What anyhow and its like print of an error: every link of its chain.
    fn chain_of(error: &Error) -> Vec<String> {
        let mut said = vec![error.to_string()];
        let mut next = error.source();
        while let Some(cause) = next {
            said.push(cause.to_string());
            next = cause.source();
        }
        said
    }

    /// `ctr` printed `list s/f: Not a directory (os error 20): Not a directory (os error 20)`: the
    /// message said its source, and `source()` gave it to be printed again.
    #[test]
    fn a_chain_of_causes_says_each_of_them_once() {
        let path = Path::new("s/f");
        let system = Error::io("list", path, io::Error::from_raw_os_error(20));
        assert_eq!(
            chain_of(&system),
            ["list s/f: Not a directory (os error 20)"]
        );
        let wrong = Error::from(ArgumentError::StepNotRising { step: 1, last: 2 });
        assert_eq!(chain_of(&wrong).len(), 1, "{:?}", chain_of(&wrong));
        // What the system's error is made from is said by that.
        let inner = io::Error::other(ArgumentError::Closed);
        let wrapped = Error::io("read", path, inner);
        assert_eq!(
            chain_of(&wrapped),
            ["read s/f: the store is closed; open it again"]
        );
    }

    #[test]
    fn a_lock_says_who_holds_it() {
        let of = |holder| {
            let path = PathBuf::from("s/7.meta");
            Error::Locked { path, holder }.to_string()
        };
        assert!(of(Holder::Writer).contains("another writer"));
        assert!(of(Holder::Reader).contains("a reader holds this checkpoint"));
        assert!(of(Holder::Dropping).contains("is dropping this checkpoint"));
    }
}
