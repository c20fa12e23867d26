//! A disk whose calls can be watched, held up or answered instead.

use std::fmt;
use std::io;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hps::io::sim::SimDisk;
use hps::io::{DirectoryEntry, Disk, DiskFile, LockGuard, LockKind, OpenMode, Queue, Space};

/// Asked before every call that changes what a crash could leave ("create", "link", "lock",
/// "mkdir", "remove", "rename", "sync", "sync_dir", "write"), with its path; given an answer, the
/// disk never sees the call.
pub type Hook = Arc<dyn Fn(&'static str, &Path) -> Option<io::Result<()>> + Send + Sync>;

/// The disk.
#[derive(Clone)]
pub struct HookedDisk {
    pub disk: SimDisk,
    pub hook: Hook,
    /// Asked before a file is opened for reading ("open"), if there is one.
    pub reads: Option<Hook>,
}

impl fmt::Debug for HookedDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HookedDisk")
    }
}

impl HookedDisk {
    /// One that is not asked before reads.
    pub fn new(disk: SimDisk, hook: Hook) -> HookedDisk {
        HookedDisk {
            disk,
            hook,
            reads: None,
        }
    }

    fn ask(&self, call: &'static str, path: &Path) -> Option<io::Result<()>> {
        (self.hook)(call, path)
    }
}

impl Disk for HookedDisk {
    fn name(&self) -> &'static str {
        "hooked"
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let answer = match mode {
            OpenMode::Create | OpenMode::CreateDirect => self.ask("create", path),
            _ => self.reads.as_ref().and_then(|hook| hook("open", path)),
        };
        if let Some(answer) = answer {
            answer?;
        }
        let file = self.disk.open(path, mode)?;
        let (path, disk) = (path.to_path_buf(), self.clone());
        Ok(Arc::new(HookedFile { disk, path, file }))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        match self.ask("mkdir", path) {
            Some(answer) => answer,
            None => self.disk.create_dir(path),
        }
    }

    fn list(&self, path: &Path) -> io::Result<Vec<DirectoryEntry>> {
        self.disk.list(path)
    }

    fn rename(&self, source: &Path, target: &Path) -> io::Result<()> {
        match self.ask("rename", source) {
            Some(answer) => answer,
            None => self.disk.rename(source, target),
        }
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        match self.ask("remove", path) {
            Some(answer) => answer,
            None => self.disk.remove(path),
        }
    }

    fn hard_link(&self, source: &Path, target: &Path) -> io::Result<()> {
        match self.ask("link", target) {
            Some(answer) => answer,
            None => self.disk.hard_link(source, target),
        }
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        match self.ask("sync_dir", path) {
            Some(answer) => answer,
            None => self.disk.sync_dir(path),
        }
    }

    fn lock(&self, path: &Path, kind: LockKind, create: bool) -> io::Result<Box<dyn LockGuard>> {
        if let Some(answer) = self.ask("lock", path) {
            answer?;
        }
        self.disk.lock(path, kind, create)
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        self.disk.space(path)
    }

    fn queue(&self, depth: usize, buffer_bytes: usize) -> io::Result<Box<dyn Queue>> {
        self.disk.queue(depth, buffer_bytes)
    }
}

#[derive(Debug)]
struct HookedFile {
    disk: HookedDisk,
    path: PathBuf,
    file: Arc<dyn DiskFile>,
}

impl DiskFile for HookedFile {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        match self.disk.ask("write", &self.path) {
            Some(answer) => answer,
            None => self.file.write_at(bytes, offset),
        }
    }

    fn sync(&self) -> io::Result<()> {
        match self.disk.ask("sync", &self.path) {
            Some(answer) => answer,
            None => self.file.sync(),
        }
    }

    fn bytes(&self) -> io::Result<u64> {
        self.file.bytes()
    }

    fn align_bytes(&self) -> usize {
        self.file.align_bytes()
    }

    fn is_direct(&self) -> bool {
        self.file.is_direct()
    }

    fn raw_fd(&self) -> Option<RawFd> {
        None
    }
}
