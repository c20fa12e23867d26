//! Which names does an open directory hold?
//!
//! Invariants:
//! - A handle is of an inode: a directory that lost its name, or whose name leads to another one, is
//!   reached as before.

use std::ffi::OsStr;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;

use super::super::transfer::retry;
use super::super::{
    Directory, DirectoryEntry, DirectoryId, DiskFile, LockGuard, LockKind, OpenMode, Space,
};
use super::state::ROOT;
use super::{SimDisk, SimFile, SimLock};

/// An open directory of a [`SimDisk`].
#[derive(Debug)]
pub(super) struct SimDirectory {
    disk: SimDisk,
    inode: u64,
    path: PathBuf,
}

impl SimDirectory {
    pub(super) fn open(disk: &SimDisk, from: u64, path: &Path) -> io::Result<SimDirectory> {
        let inode = retry(|| disk.call_state().open_dir(from, path))?;
        Ok(SimDirectory {
            disk: disk.clone(),
            inode,
            path: path.to_path_buf(),
        })
    }
}

impl Drop for SimDirectory {
    fn drop(&mut self) {
        self.disk.state().release(self.inode);
    }
}

/// A name that stays inside its directory.
fn inside<N: AsRef<OsStr> + ?Sized>(name: &N) -> io::Result<&str> {
    let name = name.as_ref().to_str().ok_or(Errno::EINVAL)?;
    if name.is_empty() || name == "." || name == ".." || name.contains('/') {
        return Err(Errno::EINVAL.into());
    }
    Ok(name)
}

impl Directory for SimDirectory {
    fn path(&self) -> &Path {
        &self.path
    }

    fn id(&self) -> io::Result<DirectoryId> {
        let (device, inode) = (0, self.inode);
        Ok(DirectoryId { device, inode })
    }

    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let name = inside(name)?;
        let inode = retry(|| self.disk.call_state().open(self.inode, name, mode))?;
        let disk = self.disk.clone();
        Ok(Arc::new(SimFile { disk, inode, mode }))
    }

    fn open_dir(&self, path: &Path) -> io::Result<Arc<dyn Directory>> {
        let mut opened = SimDirectory::open(&self.disk, self.inode, path)?;
        opened.path = self.path.join(path);
        Ok(Arc::new(opened))
    }

    fn create_dir(&self, name: &OsStr) -> io::Result<()> {
        let name = inside(name)?;
        retry(|| self.disk.call_state().create_dir(self.inode, name))
    }

    fn list(&self) -> io::Result<Vec<DirectoryEntry>> {
        retry(|| self.disk.call_state().list(self.inode))
    }

    fn rename(&self, source: &OsStr, target: &OsStr) -> io::Result<()> {
        let (source, target) = (inside(source)?, inside(target)?);
        retry(|| self.disk.call_state().rename(self.inode, source, target))
    }

    fn exchange(&self, one: &OsStr, other: &OsStr) -> io::Result<()> {
        let (one, other) = (inside(one)?, inside(other)?);
        retry(|| self.disk.call_state().exchange(self.inode, one, other))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let name = inside(name)?;
        retry(|| self.disk.call_state().remove(self.inode, name))
    }

    fn hard_link(&self, source: &str, target: &dyn Directory, name: &str) -> io::Result<()> {
        let (source, name, target) = (inside(source)?, inside(name)?, target.id()?.inode);
        retry(|| {
            let mut state = self.disk.call_state();
            state.hard_link(self.inode, source, target, name)
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.call_state().sync_dir(self.inode)
    }

    fn lock(&self, name: &str, kind: LockKind, create: bool) -> io::Result<Box<dyn LockGuard>> {
        let name = inside(name)?;
        if self.disk.state().is_shared {
            return Ok(Box::new(Unseen));
        }
        let inode = retry(|| self.disk.call_state().lock(self.inode, name, kind, create))?;
        let disk = self.disk.clone();
        Ok(Box::new(SimLock { disk, inode, kind }))
    }

    fn lock_whole(&self) -> io::Result<Box<dyn LockGuard>> {
        if self.disk.state().is_shared {
            return Ok(Box::new(Unseen));
        }
        let inode = retry(|| self.disk.call_state().lock_dir(self.inode))?;
        let (disk, kind) = (self.disk.clone(), LockKind::Exclusive);
        Ok(Box::new(SimLock { disk, inode, kind }))
    }

    fn space(&self) -> io::Result<Space> {
        retry(|| self.disk.call_state().space())
    }

    fn is_shared(&self) -> io::Result<bool> {
        Ok(self.disk.state().is_shared)
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A lock that nobody else sees.
#[derive(Debug)]
struct Unseen;

impl LockGuard for Unseen {}

/// The same calls by path, for tests: a directory is opened for each, uncounted.
impl SimDisk {
    fn parent<'p>(&self, path: &'p Path) -> io::Result<(u64, &'p str)> {
        let parent = path.parent().ok_or(Errno::EINVAL)?;
        let name = path.file_name().and_then(|n| n.to_str());
        Ok((self.state().resolve(parent)?, name.ok_or(Errno::EINVAL)?))
    }

    /// [`Directory::open`].
    ///
    /// # Errors
    /// As there.
    pub fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let inode = retry(|| {
            let (parent, name) = self.parent(path)?;
            self.call_state().open(parent, name, mode)
        })?;
        let disk = self.clone();
        Ok(Arc::new(SimFile { disk, inode, mode }))
    }

    /// [`Directory::create_dir`].
    ///
    /// # Errors
    /// As there.
    pub fn create_dir(&self, path: &Path) -> io::Result<()> {
        retry(|| {
            let (parent, name) = self.parent(path)?;
            self.call_state().create_dir(parent, name)
        })
    }

    /// [`Directory::list`].
    ///
    /// # Errors
    /// As there.
    pub fn list(&self, path: &Path) -> io::Result<Vec<DirectoryEntry>> {
        retry(|| {
            let mut state = self.call_state();
            let inode = state.resolve(path)?;
            state.list(inode)
        })
    }

    /// [`Directory::rename`]; both paths are of one directory.
    ///
    /// # Errors
    /// As there.
    pub fn rename(&self, source: &Path, target: &Path) -> io::Result<()> {
        retry(|| {
            let ((parent, source), (other, target)) = (self.parent(source)?, self.parent(target)?);
            if parent != other {
                return Err(Errno::EXDEV.into());
            }
            self.call_state().rename(parent, source, target)
        })
    }

    /// [`Directory::remove`].
    ///
    /// # Errors
    /// As there.
    pub fn remove(&self, path: &Path) -> io::Result<()> {
        retry(|| {
            let (parent, name) = self.parent(path)?;
            self.call_state().remove(parent, name)
        })
    }

    /// [`Directory::hard_link`].
    ///
    /// # Errors
    /// As there.
    pub fn hard_link(&self, source: &Path, target: &Path) -> io::Result<()> {
        retry(|| {
            let ((parent, source), (other, name)) = (self.parent(source)?, self.parent(target)?);
            self.call_state().hard_link(parent, source, other, name)
        })
    }

    /// [`Directory::sync`].
    ///
    /// # Errors
    /// As there.
    pub fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let inode = self.state().resolve(path)?;
        self.call_state().sync_dir(inode)
    }

    /// [`Directory::lock`].
    ///
    /// # Errors
    /// As there.
    pub fn lock(
        &self,
        path: &Path,
        kind: LockKind,
        create: bool,
    ) -> io::Result<Box<dyn LockGuard>> {
        let inode = retry(|| {
            let (parent, name) = self.parent(path)?;
            self.call_state().lock(parent, name, kind, create)
        })?;
        let disk = self.clone();
        Ok(Box::new(SimLock { disk, inode, kind }))
    }

    /// [`Directory::space`].
    ///
    /// # Errors
    /// As there.
    pub fn space(&self) -> io::Result<Space> {
        retry(|| self.call_state().space())
    }

    pub(super) fn root(&self, path: &Path) -> io::Result<SimDirectory> {
        SimDirectory::open(self, ROOT, path)
    }
}
