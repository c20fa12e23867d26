//! How do bytes reach a disk, and come back?
//!
//! Files and directories are reached by handle: a [`Disk`] opens directories, a [`Directory`] does
//! what is done to names and opens files. An [`Engine`] moves the bytes of open files: `uring`
//! (io_uring) or `pread` (plain calls). `os` is the system's disk, with O_DIRECT and a buffered
//! fallback where that is refused; `sim` (a disk in memory that can crash) is disk and engine in
//! one. All pass one contract suite (`io/tests.rs`).
//!
//! Invariants:
//! - Buffers are owned, aligned, moved in with a request and handed back with its completion; a
//!   caller that goes away can't free one in flight.
//! - A short transfer is resumed, an interrupted call is retried (a bounded number of times);
//!   what a caller sees is all the bytes, the bytes up to the end of the file, or an error.
//! - Errors keep their errno (`io::Error::raw_os_error`).
//! - No request is durable before `sync` of its file, no name before `sync` of its directory.
//! - Opening never follows a symbolic link in the last component, never blocks on a FIFO, and
//!   refuses anything but a regular file.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

pub mod buffer;
mod key_file;
mod lock;
mod os;
mod pread;
mod process;
mod request;
#[cfg(feature = "sim")]
pub mod sim;
#[cfg(test)]
mod tests;
mod transfer;
mod uring;

pub use key_file::{KeyFile, KeyType};
pub use os::OsDisk;
pub(crate) use process::ProcessIdentity;
pub use request::{Completion, Queue, Request};

/// Whether something else stands where a file should be: a directory, a link (ELOOP), a FIFO or
/// device (`InvalidInput`), a socket (ENXIO).
pub(crate) fn is_no_file(error: &io::Error) -> bool {
    use std::io::ErrorKind::{InvalidInput, IsADirectory, NotADirectory};
    matches!(error.kind(), InvalidInput | IsADirectory | NotADirectory)
        || matches!(error.raw_os_error(), Some(6 | 40))
}

/// Whether the device or the file system can't give bytes that were there: EIO, ENODATA, EBADMSG,
/// EUCLEAN, EREMOTEIO. Lack of rights, memory or descriptors is no damage.
pub(crate) fn is_unreadable(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(5 | 61 | 74 | 117 | 121))
}

/// Whether the file system can't do what it was asked at all: EBADF (a lock on a directory over
/// NFS), EINVAL, ENOSYS, ENOLCK, EOPNOTSUPP.
pub(crate) fn is_refused(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(9 | 22 | 37 | 38 | 95))
}

/// Whether there is no room: on the file system (ENOSPC), or under a quota (EDQUOT).
pub(crate) fn is_full(error: &io::Error) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}

pub use buffer::AlignedBuffer;

/// Whether this process, or the system, has no descriptor left: EMFILE, ENFILE.
pub(crate) fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(23 | 24))
}

/// Descriptors that this process may have at the moment (the soft limit of open files).
pub(crate) fn descriptor_limit() -> u64 {
    use nix::sys::resource::{Resource, getrlimit};
    getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft)
}

/// Raises the soft limit of open files to `wanted`, or as far as the system allows, and says so; it
/// is never lowered. Returns it.
pub fn raise_descriptor_limit_to(wanted: u64) -> u64 {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return u64::MAX;
    };
    let raised = wanted.min(hard);
    if raised <= soft {
        return soft;
    }
    match setrlimit(Resource::RLIMIT_NOFILE, raised, hard) {
        Ok(()) => {
            tracing::info!(soft, raised, "the limit of open files is raised");
            raised
        }
        Err(error) => {
            tracing::warn!(%error, soft, "the limit of open files stays");
            soft
        }
    }
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// An existing file, for reading, through the page cache (small metadata files).
    Read,
    /// A file that must not exist yet, for writing and reading, through the page cache. Mode 0600.
    Create,
    /// An existing file, for reading, O_DIRECT where the file system allows it.
    ReadDirect,
    /// A file that must not exist yet, for writing and reading, O_DIRECT where allowed. Mode 0600.
    CreateDirect,
}

/// Whether a lock excludes other holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// Any number of holders (readers of a checkpoint).
    Shared,
    /// One holder (the writer; whoever deletes a checkpoint).
    Exclusive,
}

/// Keeps a lock; dropping it (or the death of the process) releases it.
pub trait LockGuard: Send + Sync + fmt::Debug {
    /// Whether it is still kept: one that is a file may have been removed by somebody.
    ///
    /// # Errors
    /// What the system says.
    fn is_held(&self) -> io::Result<bool> {
        Ok(true)
    }
}

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// File name, without the directory. Names that are not UTF-8 are listed lossily.
    pub name: String,
    /// Length in bytes (0 for a directory).
    pub bytes: u64,
    /// A regular file (not a directory, link, FIFO or device).
    pub is_file: bool,
}

/// Room on a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Size of the file system.
    pub total_bytes: u64,
    /// What this user may still write.
    pub free_bytes: u64,
}

/// What the submission queues of an engine are made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// Queues that there are.
    pub queues: u64,
    /// Those that were to have a ring and use plain calls.
    pub plain_queues: u64,
    /// Rings that failed, since the engine was made.
    pub rings_lost: u64,
    /// Buffers of the queues.
    pub buffers: u64,
    /// Those of them that are registered with the kernel.
    pub registered_buffers: u64,
}

/// Which directory an open one is, whatever its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryId {
    /// The file system.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
}

/// Where files are, and what else a store takes from outside. The only place where paths are
/// looked up. All calls are blocking and thread-safe.
pub trait Disk: Send + Sync + fmt::Debug {
    /// Opens a directory; its path may lead through links.
    ///
    /// # Errors
    /// What the system says.
    fn open_dir(&self, path: &Path) -> io::Result<Arc<dyn Directory>>;
    /// 16 bytes that no other store or timeline has.
    fn fresh_uuid(&self) -> [u8; 16];
    /// The time, in seconds since 1970.
    fn unix_seconds(&self) -> u64;
}

/// An open directory. It stays the same one whatever becomes of its name. A `name` is one
/// component: `InvalidInput` for an empty one, `.`, `..` and one with a slash. All calls are
/// blocking and thread-safe.
pub trait Directory: Send + Sync + fmt::Debug {
    /// The path that it was opened by: for messages.
    fn path(&self) -> &Path;
    /// Which directory it is.
    ///
    /// # Errors
    /// What the system says.
    fn id(&self) -> io::Result<DirectoryId>;
    /// Opens or creates a file.
    ///
    /// # Errors
    /// What the system says; `AlreadyExists` and `NotFound` by mode, and an error for anything but
    /// a regular file.
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens a directory by a path that starts here (or is absolute).
    ///
    /// # Errors
    /// What the system says.
    fn open_dir(&self, path: &Path) -> io::Result<Arc<dyn Directory>>;
    /// Creates a directory (mode 0700); `AlreadyExists` if there is one.
    ///
    /// # Errors
    /// What the system says.
    fn create_dir(&self, name: &OsStr) -> io::Result<()>;
    /// Its names, sorted.
    ///
    /// # Errors
    /// What the system says.
    fn list(&self) -> io::Result<Vec<DirectoryEntry>>;
    /// Replaces `target` by `source` atomically; durable after `sync`.
    ///
    /// # Errors
    /// What the system says.
    fn rename(&self, source: &OsStr, target: &OsStr) -> io::Result<()>;
    /// Exchanges two names atomically; durable after `sync`.
    ///
    /// # Errors
    /// `Unsupported` or `InvalidInput` where the file system can't; else what the system says.
    fn exchange(&self, one: &OsStr, other: &OsStr) -> io::Result<()>;
    /// Removes the name of a file; open handles stay readable. Durable after `sync`.
    ///
    /// # Errors
    /// What the system says.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Gives a file a second name, in `target` (of the same file system).
    ///
    /// # Errors
    /// What the system says; `AlreadyExists` if the name is taken.
    fn hard_link(&self, source: &str, target: &dyn Directory, name: &str) -> io::Result<()>;
    /// Makes its names durable. Its failure is final: never retried.
    ///
    /// # Errors
    /// What the system says; what is durable is unknown then.
    fn sync(&self) -> io::Result<()>;
    /// Opens (creating if `create`) and locks a file at once, without waiting: `WouldBlock` if it
    /// is held by another guard, of this process or of another.
    ///
    /// # Errors
    /// `WouldBlock` if the lock is held, else what the system says.
    fn lock(&self, name: &str, kind: LockKind, create: bool) -> io::Result<Box<dyn LockGuard>>;
    /// Locks the directory itself, alone, without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if the lock is held, else what the system says: not every file system can.
    fn lock_whole(&self) -> io::Result<Box<dyn LockGuard>>;
    /// Room on its file system.
    ///
    /// # Errors
    /// What the system says.
    fn space(&self) -> io::Result<Space>;
    /// Whether other machines may have its file system mounted, and may not see the locks taken here.
    ///
    /// # Errors
    /// What the system says.
    fn is_shared(&self) -> io::Result<bool>;
    /// The descriptor, where there is one.
    fn as_fd(&self) -> Option<BorrowedFd<'_>>;
}

/// What moves the bytes of open files, many requests at a time.
pub trait Engine: Send + Sync + fmt::Debug {
    /// Which one it is, for the stats: "uring", "pread", "sim".
    fn name(&self) -> &'static str;
    /// A submission queue with its own buffers.
    ///
    /// `depth`: requests in flight at most. `buffer_bytes`: size of each buffer, hence of the
    /// largest request; a multiple of 4096.
    ///
    /// # Errors
    /// `InvalidInput` for a size that is not a multiple of 4096 or a depth of 0, `OutOfMemory`, or
    /// what the system says.
    fn queue(&self, depth: usize, buffer_bytes: usize) -> io::Result<Box<dyn Queue>>;
    /// What its queues are made of, where it counts that.
    fn counts(&self) -> QueueCounts {
        QueueCounts::default()
    }
}

/// A disk, and the engine for its files.
#[derive(Clone, Debug)]
pub struct Io {
    /// Where the files are.
    pub disk: Arc<dyn Disk>,
    /// What moves their bytes.
    pub engine: Arc<dyn Engine>,
}

impl Io {
    /// Both in one, as the simulated disk is.
    #[must_use]
    #[cfg(any(test, feature = "sim"))]
    pub fn of<T: Disk + Engine + 'static>(both: T) -> Io {
        Io::from(Arc::new(both))
    }

    /// The operating system's files, by plain calls: they work everywhere.
    #[must_use]
    pub fn pread() -> Io {
        Io {
            disk: Arc::new(OsDisk),
            engine: Arc::new(pread::PreadEngine),
        }
    }

    /// The operating system's files, by io_uring.
    ///
    /// # Errors
    /// What the kernel said, where this process may not use io_uring.
    pub fn uring() -> io::Result<Io> {
        Ok(Io {
            disk: Arc::new(OsDisk),
            engine: Arc::new(uring::UringEngine::new()?),
        })
    }

    /// The operating system's files by io_uring, where this process may use it, else by plain calls.
    #[must_use]
    pub fn best() -> Io {
        Io::uring().unwrap_or_else(|_| Io::pread())
    }
}

impl<T: Disk + Engine + 'static> From<Arc<T>> for Io {
    fn from(both: Arc<T>) -> Io {
        let engine: Arc<dyn Engine> = Arc::<T>::clone(&both);
        Io { disk: both, engine }
    }
}

/// An open file. Dropping the last handle closes it.
pub trait DiskFile: Send + Sync + fmt::Debug {
    /// Reads until `bytes` is full or the file ends; returns the number of bytes read. Any
    /// alignment is allowed for files opened without `Direct`.
    ///
    /// # Errors
    /// What the system says, once retries are used up.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes all of `bytes`. Any alignment is allowed for files opened without `Direct`.
    ///
    /// # Errors
    /// What the system says, once retries are used up; any part may be written then.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Makes the bytes and the length durable (fdatasync). Its failure is final: never retried.
    ///
    /// # Errors
    /// What the system says; what is durable is unknown then.
    fn sync(&self) -> io::Result<()>;
    /// Length in bytes.
    ///
    /// # Errors
    /// What the system says.
    fn bytes(&self) -> io::Result<u64>;
    /// Offsets, lengths and memory of requests through a queue must be multiples of this
    /// (512 or 4096 for O_DIRECT, 1 where buffered).
    fn align_bytes(&self) -> usize;
    /// Whether O_DIRECT is in force (false: the fallback through the page cache).
    fn is_direct(&self) -> bool;
    /// The descriptor, where there is one.
    fn raw_fd(&self) -> Option<std::os::fd::RawFd>;
}
