//! A disk whose calls can be watched, held up or answered instead.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hps::io::sim::SimDisk;
use hps::io::{
    Directory, DirectoryEntry, DirectoryId, Disk, DiskFile, Engine, LockGuard, LockKind, OpenMode,
    Queue, Space,
};

/// Asked before every call that changes what a crash could leave ("create", "link", "lock",
/// "mkdir", "remove", "rename", "sync", "sync_dir", "write"), with its path; given an answer, the
/// disk never sees the call.
pub type Hook = Arc<dyn Fn(&'static str, &Path) -> Option<io::Result<()>> + Send + Sync>;

/// The disk.
#[derive(Clone)]
pub struct HookedDisk {
    pub disk: SimDisk,
    pub hook: Hook,
    /// Asked before a file is opened for reading ("open"), before each read, and before room is
    /// measured ("space"), if there is one.
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

    fn hooked(&self, place: Arc<dyn Directory>) -> Arc<dyn Directory> {
        let disk = self.clone();
        Arc::new(HookedDirectory { disk, place })
    }
}

impl Disk for HookedDisk {
    fn open_dir(&self, path: &Path) -> io::Result<Arc<dyn Directory>> {
        Ok(self.hooked(self.disk.open_dir(path)?))
    }

    fn fresh_uuid(&self) -> [u8; 16] {
        self.disk.fresh_uuid()
    }

    fn unix_seconds(&self) -> u64 {
        self.disk.unix_seconds()
    }
}

impl Engine for HookedDisk {
    fn name(&self) -> &'static str {
        "hooked"
    }

    fn queue(&self, depth: usize, buffer_bytes: usize) -> io::Result<Box<dyn Queue>> {
        self.disk.queue(depth, buffer_bytes)
    }
}

#[derive(Debug)]
struct HookedDirectory {
    disk: HookedDisk,
    place: Arc<dyn Directory>,
}

impl HookedDirectory {
    fn ask(&self, call: &'static str, name: impl AsRef<OsStr>) -> Option<io::Result<()>> {
        self.disk.ask(call, &self.place.path().join(name.as_ref()))
    }
}

impl Directory for HookedDirectory {
    fn path(&self) -> &Path {
        self.place.path()
    }

    fn id(&self) -> io::Result<DirectoryId> {
        self.place.id()
    }

    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.place.path().join(name);
        let answer = match mode {
            OpenMode::Create | OpenMode::CreateDirect => self.ask("create", name),
            _ => self
                .disk
                .reads
                .as_ref()
                .and_then(|hook| hook("open", &path)),
        };
        if let Some(answer) = answer {
            answer?;
        }
        let file = self.place.open(name, mode)?;
        let disk = self.disk.clone();
        Ok(Arc::new(HookedFile { disk, path, file }))
    }

    fn open_dir(&self, path: &Path) -> io::Result<Arc<dyn Directory>> {
        Ok(self.disk.hooked(self.place.open_dir(path)?))
    }

    fn create_dir(&self, name: &OsStr) -> io::Result<()> {
        match self.ask("mkdir", name) {
            Some(answer) => answer,
            None => self.place.create_dir(name),
        }
    }

    fn list(&self) -> io::Result<Vec<DirectoryEntry>> {
        self.place.list()
    }

    fn rename(&self, source: &OsStr, target: &OsStr) -> io::Result<()> {
        match self.ask("rename", source) {
            Some(answer) => answer,
            None => self.place.rename(source, target),
        }
    }

    fn exchange(&self, one: &OsStr, other: &OsStr) -> io::Result<()> {
        match self.ask("rename", one) {
            Some(answer) => answer,
            None => self.place.exchange(one, other),
        }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match self.ask("remove", name) {
            Some(answer) => answer,
            None => self.place.remove(name),
        }
    }

    fn hard_link(&self, source: &str, target: &dyn Directory, name: &str) -> io::Result<()> {
        match self.disk.ask("link", &target.path().join(name)) {
            Some(answer) => answer,
            None => self.place.hard_link(source, target, name),
        }
    }

    fn sync(&self) -> io::Result<()> {
        match self.disk.ask("sync_dir", self.place.path()) {
            Some(answer) => answer,
            None => self.place.sync(),
        }
    }

    fn lock(&self, name: &str, kind: LockKind, create: bool) -> io::Result<Box<dyn LockGuard>> {
        if let Some(answer) = self.ask("lock", name) {
            answer?;
        }
        self.place.lock(name, kind, create)
    }

    fn lock_whole(&self) -> io::Result<Box<dyn LockGuard>> {
        self.place.lock_whole()
    }

    fn is_shared(&self) -> io::Result<bool> {
        self.place.is_shared()
    }
    fn space(&self) -> io::Result<Space> {
        let reads = self.disk.reads.as_ref();
        if let Some(answer) = reads.and_then(|hook| hook("space", self.place.path())) {
            answer?;
        }
        self.place.space()
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.place.as_fd()
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
        if let Some(hook) = &self.disk.reads
            && let Some(answer) = hook("read", &self.path)
        {
            answer?;
        }
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
