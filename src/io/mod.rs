//! How do bytes reach a disk, and come back?
//!
//! Everything that touches a file goes through [`Disk`]: `uring` (io_uring + O_DIRECT), `pread`
//! (the same files with plain calls), a buffered fallback where O_DIRECT is refused, and `sim`
//! (a disk in memory that can crash). All pass one contract suite (`io/tests.rs`).
//!
//! Invariants:
//! - Buffers are owned, aligned, moved in with a request and handed back with its completion; a
//!   caller that goes away can't free one in flight.
//! - A short transfer is resumed, an interrupted call is retried (a bounded number of times);
//!   what a caller sees is all the bytes, the bytes up to the end of the file, or an error.
//! - Errors keep their errno (`io::Error::raw_os_error`).
//! - No request is durable before `sync` of its file, no name before `sync_dir` of its directory.
//! - Opening never follows a symbolic link in the last component, never blocks on a FIFO, and
//!   refuses anything but a regular file.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

pub mod buffer;
pub mod pread;
#[cfg(feature = "sim")]
pub mod sim;
#[cfg(test)]
mod tests;
mod transfer;
pub mod uring;

pub use pread::exchange;

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

pub use buffer::AlignedBuffer;

/// Raises this process' limit of open files as far as the system allows: a store keeps every
/// parameter file open.
pub fn raise_descriptor_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    {
        tracing::warn!(%error, soft, "the limit of open files stays");
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
pub trait LockGuard: Send + Sync + fmt::Debug {}

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

/// A file system as the store sees it. All calls are blocking and thread-safe.
pub trait Disk: Send + Sync + fmt::Debug {
    /// Which engine this is, for the stats: "uring", "pread", "sim".
    fn name(&self) -> &'static str;
    /// Opens or creates a file.
    ///
    /// # Errors
    /// What the system says; `AlreadyExists` and `NotFound` by mode, and an error for anything but
    /// a regular file.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>>;
    /// Creates a directory (mode 0700); `AlreadyExists` if there is one.
    ///
    /// # Errors
    /// What the system says.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Lists a directory, sorted by name.
    ///
    /// # Errors
    /// What the system says.
    fn list(&self, path: &Path) -> io::Result<Vec<DirectoryEntry>>;
    /// Replaces `target` by `source` atomically; durable after `sync_dir`.
    ///
    /// # Errors
    /// What the system says.
    fn rename(&self, source: &Path, target: &Path) -> io::Result<()>;
    /// Removes the name of a file; open handles stay readable. Durable after `sync_dir`.
    ///
    /// # Errors
    /// What the system says.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Gives a file a second name (in another directory of the same file system).
    ///
    /// # Errors
    /// What the system says; `AlreadyExists` if `target` is there.
    fn hard_link(&self, source: &Path, target: &Path) -> io::Result<()>;
    /// Makes the names in a directory durable.
    ///
    /// # Errors
    /// What the system says; what is durable is unknown then.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Opens (creating if `create`) and locks a file at once, without waiting: `WouldBlock` if it
    /// is held by another guard, of this process or of another.
    ///
    /// # Errors
    /// `WouldBlock` if the lock is held, else what the system says.
    fn lock(&self, path: &Path, kind: LockKind, create: bool) -> io::Result<Box<dyn LockGuard>>;
    /// Room on the file system that holds `path`.
    ///
    /// # Errors
    /// What the system says.
    fn space(&self, path: &Path) -> io::Result<Space>;
    /// A submission queue with its own buffers.
    ///
    /// `depth`: requests in flight at most. `buffer_bytes`: size of each buffer, hence of the
    /// largest request; a multiple of 4096.
    ///
    /// # Errors
    /// `InvalidInput` for a size that is not a multiple of 4096 or a depth of 0, `OutOfMemory`, or
    /// what the system says.
    fn queue(&self, depth: usize, buffer_bytes: usize) -> io::Result<Box<dyn Queue>>;
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

/// What became of one request.
#[derive(Debug)]
pub struct Completion {
    /// As given with the request.
    pub tag: u64,
    /// The request's buffer; hand it back with [`Queue::recycle`] (or reuse it for a write).
    pub buffer: AlignedBuffer,
    /// Bytes read (less than asked only at the end of the file) or written.
    pub result: io::Result<usize>,
}

/// A bounded set of requests in flight. Belongs to one thread at a time.
///
/// Dropping a queue waits for what is in flight.
pub trait Queue: Send + fmt::Debug {
    /// Requests that may be in flight at once.
    fn depth(&self) -> usize;
    /// Size of each buffer in bytes.
    fn buffer_bytes(&self) -> usize;
    /// Requests submitted whose completion has not been taken.
    fn in_flight(&self) -> usize;
    /// Takes a free buffer; `None` when all are in flight or in the caller's hands.
    fn buffer(&mut self) -> Option<AlignedBuffer>;
    /// Hands a buffer back.
    fn recycle(&mut self, buffer: AlignedBuffer);
    /// Starts reading `bytes` at `offset` into `buffer`. Never blocks; the caller keeps
    /// `in_flight() < depth()` (asserted).
    fn read(
        &mut self,
        file: &Arc<dyn DiskFile>,
        offset: u64,
        bytes: usize,
        buffer: AlignedBuffer,
        tag: u64,
    );
    /// Starts writing the first `bytes` of `buffer` at `offset`. As `read`.
    fn write(
        &mut self,
        file: &Arc<dyn DiskFile>,
        offset: u64,
        bytes: usize,
        buffer: AlignedBuffer,
        tag: u64,
    );
    /// Tells the kernel about what was queued since (one system call for many requests).
    fn submit(&mut self);
    /// Waits for one completion (submits first); `None` when nothing is in flight.
    fn wait(&mut self) -> Option<Completion>;
}
