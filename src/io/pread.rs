//! How are files reached with plain system calls?
//!
//! [`PreadDisk`] is the twin of `uring`: the same files, opened by the same code, moved with
//! pread and pwrite.
//!
//! Invariants:
//! - O_DIRECT is in force only where the file system takes it and says (or shows) an alignment of
//!   at most 4096; elsewhere, and on tmpfs, which has no device, files go through the page cache.
//! - A file is looked at after it is opened and before it is used: only regular files pass.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use nix::fcntl::{AT_FDCWD, FcntlArg, OFlag, RenameFlags, fcntl, renameat2};
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};

use crate::fork::{self, Noted};

use super::buffer::{AlignedBuffer, BUFFER_ALIGN_BYTES, Pool};
use super::transfer::{Transfer, retry};
use super::{
    Completion, DirectoryEntry, Disk, DiskFile, LockGuard, LockKind, OpenMode, Queue, Space, uring,
};

/// Alignment assumed where nothing is known; the store writes in multiples of it.
const ALIGN_BYTES_MAX: usize = BUFFER_ALIGN_BYTES;

/// Files of the operating system, by pread and pwrite.
#[derive(Clone, Copy, Debug, Default)]
pub struct PreadDisk;

impl PreadDisk {
    /// The engine that works everywhere.
    #[must_use]
    pub fn new() -> PreadDisk {
        PreadDisk
    }
}

impl Disk for PreadDisk {
    fn name(&self) -> &'static str {
        "pread"
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(OsFile::open(path, mode)?))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        retry(|| fs::DirBuilder::new().mode(0o700).create(path))
    }

    fn list(&self, path: &Path) -> io::Result<Vec<DirectoryEntry>> {
        let mut entries = Vec::new();
        for entry in retry(|| fs::read_dir(path))? {
            let entry = entry?;
            let metadata = match entry.metadata() {
                Ok(metadata) => metadata,
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            entries.push(DirectoryEntry {
                name: entry.file_name().to_string_lossy().into_owned(),
                bytes: if metadata.is_dir() { 0 } else { metadata.len() },
                is_file: metadata.is_file(),
            });
        }
        entries.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(entries)
    }

    fn rename(&self, source: &Path, target: &Path) -> io::Result<()> {
        retry(|| fs::rename(source, target))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        retry(|| fs::remove_file(path))
    }

    fn hard_link(&self, source: &Path, target: &Path) -> io::Result<()> {
        retry(|| fs::hard_link(source, target))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        OpenOptions::new()
            .read(true)
            .custom_flags(flags.bits())
            .open(path)?
            .sync_all()
    }

    fn lock(&self, path: &Path, kind: LockKind, create: bool) -> io::Result<Box<dyn LockGuard>> {
        let mut options = OpenOptions::new();
        options.read(true);
        if create {
            options.write(true).create(true).truncate(false);
        }
        let open = || open_regular(&mut options, path);
        let (file, note) = fork::noted(open, |file| file.as_raw_fd())?;
        Ok(Box::new(FileLock::take(file, note, kind)?))
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        let found = retry(|| Ok(nix::sys::statvfs::statvfs(path)?))?;
        let unit = found.fragment_size();
        Ok(Space {
            total_bytes: found.blocks().saturating_mul(unit),
            free_bytes: found.blocks_available().saturating_mul(unit),
        })
    }

    fn queue(&self, depth: usize, buffer_bytes: usize) -> io::Result<Box<dyn Queue>> {
        Ok(Box::new(PreadQueue {
            pool: Pool::try_new(depth, buffer_bytes)?,
            completions: VecDeque::with_capacity(depth),
        }))
    }
}

/// Holds an advisory lock (flock). It is released by name, not by closing the descriptor: a child
/// that another thread has just forked has a copy of that until it closes it or runs its program.
#[derive(Debug)]
struct FileLock {
    /// Goes first: the descriptor is not open for children to close any more.
    note: Option<Noted>,
    file: Option<File>,
    /// Who took it: a child that was made past the handlers must not release it either.
    process: u32,
}

impl FileLock {
    fn take(file: File, note: Noted, kind: LockKind) -> io::Result<FileLock> {
        let taken = match kind {
            LockKind::Shared => file.try_lock_shared(),
            LockKind::Exclusive => file.try_lock(),
        };
        match taken {
            Ok(()) => Ok(FileLock {
                note: Some(note),
                file: Some(file),
                process: std::process::id(),
            }),
            Err(error) => {
                drop(note);
                Err(match error {
                    TryLockError::WouldBlock => ErrorKind::WouldBlock.into(),
                    TryLockError::Error(error) => error,
                })
            }
        }
    }
}

impl LockGuard for FileLock {}

impl Drop for FileLock {
    fn drop(&mut self) {
        if self.note.as_ref().is_none_or(|note| !note.is_open()) {
            // A forked child has closed its copy; the number may be another file's by now.
            std::mem::forget(self.file.take());
            return;
        }
        if std::process::id() == self.process
            && let Some(file) = &self.file
            && let Err(error) = file.unlock()
        {
            tracing::warn!(%error, "a lock is released only when its descriptor is closed");
        }
    }
}

/// A regular file of the operating system; `uring` uses the same.
#[derive(Debug)]
pub(super) struct OsFile {
    file: File,
    align_bytes: usize,
    direct: bool,
}

impl OsFile {
    /// Opens or creates a file as [`Disk::open`] says.
    pub(super) fn open(path: &Path, mode: OpenMode) -> io::Result<OsFile> {
        let mut options = OpenOptions::new();
        options.read(true);
        if matches!(mode, OpenMode::Create | OpenMode::CreateDirect) {
            options.write(true).create_new(true);
        }
        let file = open_regular(&mut options, path)?;
        if matches!(mode, OpenMode::ReadDirect | OpenMode::CreateDirect)
            && let Some(align_bytes) = make_direct(&file)?
        {
            return Ok(OsFile {
                file,
                align_bytes,
                direct: true,
            });
        }
        // Without O_NONBLOCK: io_uring would answer EAGAIN where it should wait.
        set_flags(&file, OFlag::empty())?;
        Ok(OsFile {
            file,
            align_bytes: 1,
            direct: false,
        })
    }
}

/// Opens a file without following a link or waiting for a FIFO's other end.
fn open_regular(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let flags = OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = options.mode(0o600).custom_flags(flags.bits()).open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_file() {
        return Ok(file);
    }
    if kind.is_dir() {
        return Err(nix::errno::Errno::EISDIR.into());
    }
    Err(io::Error::new(
        ErrorKind::InvalidInput,
        "not a regular file",
    ))
}

/// Exchanges two names of one file system, atomically; durable after the directories are synced.
///
/// # Errors
/// `Unsupported` or `InvalidInput` where the file system can't; else what the system says.
pub fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    let flags = RenameFlags::RENAME_EXCHANGE;
    retry(|| Ok(renameat2(AT_FDCWD, one, AT_FDCWD, other, flags)?))
}

/// Sets the status flags of an open file to exactly these (of those that can be changed).
fn set_flags(file: &File, flags: OFlag) -> nix::Result<()> {
    fcntl(file, FcntlArg::F_SETFL(flags)).map(drop)
}

/// Turns O_DIRECT on and tells the alignment it needs; `None` where it is not to be had.
///
/// It is set on the open file, not at the open, where a refusal would leave an empty file behind.
fn make_direct(file: &File) -> io::Result<Option<usize>> {
    if fstatfs(file).is_ok_and(|system| system.filesystem_type() == TMPFS_MAGIC) {
        return Ok(None);
    }
    match set_flags(file, OFlag::O_DIRECT) {
        Ok(()) => {}
        Err(nix::errno::Errno::EINVAL) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    let align_bytes = match uring::direct_align_bytes(file.as_raw_fd()) {
        Some(told) => told.max(512),
        None => probed_align_bytes(file)?,
    };
    Ok((align_bytes <= ALIGN_BYTES_MAX && align_bytes.is_power_of_two()).then_some(align_bytes))
}

/// Finds the alignment by reading 512 bytes; what an empty file does not show is assumed.
fn probed_align_bytes(file: &File) -> io::Result<usize> {
    if file.metadata()?.len() == 0 {
        return Ok(ALIGN_BYTES_MAX);
    }
    let mut buffer = AlignedBuffer::try_new(1024)?;
    match retry(|| file.read_at(&mut buffer[512..], 0)) {
        Ok(_) => Ok(512),
        Err(error) if error.raw_os_error() == Some(nix::libc::EINVAL) => Ok(ALIGN_BYTES_MAX),
        Err(error) => Err(error),
    }
}

impl DiskFile for OsFile {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        Transfer::read(offset, bytes.len(), self.align_bytes)
            .run(|rest, offset| self.file.read_at(&mut bytes[rest], offset))
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        Transfer::write(offset, bytes.len(), self.align_bytes)
            .run(|rest, offset| self.file.write_at(&bytes[rest], offset))
            .map(drop)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn align_bytes(&self) -> usize {
        self.align_bytes
    }

    fn is_direct(&self) -> bool {
        self.direct
    }

    fn raw_fd(&self) -> Option<RawFd> {
        Some(self.file.as_raw_fd())
    }
}

/// Executes each request when it is submitted; completions come in that order.
#[derive(Debug)]
struct PreadQueue {
    pool: Pool,
    completions: VecDeque<Completion>,
}

impl Queue for PreadQueue {
    fn depth(&self) -> usize {
        self.pool.count()
    }

    fn buffer_bytes(&self) -> usize {
        self.pool.buffer_bytes()
    }

    fn in_flight(&self) -> usize {
        self.completions.len()
    }

    fn buffer(&mut self) -> Option<AlignedBuffer> {
        self.pool.take()
    }

    fn recycle(&mut self, buffer: AlignedBuffer) {
        self.pool.put(buffer);
    }

    fn read(
        &mut self,
        file: &Arc<dyn DiskFile>,
        offset: u64,
        bytes: usize,
        mut buffer: AlignedBuffer,
        tag: u64,
    ) {
        self.pool.admit(self.completions.len(), bytes, &buffer);
        let result = file.read_at(&mut buffer[..bytes], offset);
        self.completions.push_back(Completion {
            tag,
            buffer,
            result,
        });
    }

    fn write(
        &mut self,
        file: &Arc<dyn DiskFile>,
        offset: u64,
        bytes: usize,
        buffer: AlignedBuffer,
        tag: u64,
    ) {
        self.pool.admit(self.completions.len(), bytes, &buffer);
        let result = file.write_at(&buffer[..bytes], offset).map(|()| bytes);
        self.completions.push_back(Completion {
            tag,
            buffer,
            result,
        });
    }

    fn submit(&mut self) {}

    fn wait(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_finds_the_alignment_that_the_kernel_tells() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let file = OsFile::open(&path, OpenMode::CreateDirect).unwrap();
        if !file.is_direct() {
            println!("skipped: no O_DIRECT here");
            return;
        }
        assert_eq!(
            probed_align_bytes(&file.file).unwrap(),
            ALIGN_BYTES_MAX,
            "an empty file"
        );
        file.write_at(&AlignedBuffer::try_new(4096).unwrap(), 0)
            .unwrap();
        match uring::direct_align_bytes(file.file.as_raw_fd()) {
            Some(told) => assert_eq!(probed_align_bytes(&file.file).unwrap(), told.max(512)),
            None => println!("the kernel does not tell"),
        }
    }
}
