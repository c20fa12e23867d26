//! What does the simulated disk hold, and what did it promise to keep?
//!
//! Invariants:
//! - An inode lives as long as a name (live, durable, or in an unsynced change) or a handle.
//! - Every operation counts as one call before it does anything.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;

use super::super::{DirectoryEntry, LockKind, OpenMode, Space};
use super::node::{DirectoryNode, FileNode, Node, Random};
use super::{Fault, SECTOR_BYTES};

/// The inode of `/`.
pub(super) const ROOT: u64 = 1;

/// Room on a disk without a limit.
const UNLIMITED_BYTES: u64 = 1 << 50;

/// Kinds of calls that change what a crash could leave.
const CHANGING: [&str; 9] = [
    "create", "link", "lock", "mkdir", "remove", "rename", "sync", "sync_dir", "write",
];

pub(super) struct Inode {
    pub(super) node: Node,
    /// Open files and locks.
    pub(super) handles: usize,
}

/// Holders of one lock.
#[derive(Default)]
struct Holders {
    shared: usize,
    exclusive: bool,
}

/// How a call goes.
enum Outcome {
    Proceed,
    Short,
    Fail(io::Error),
}

/// Everything about one simulated disk.
pub(super) struct State {
    pub(super) inodes: BTreeMap<u64, Inode>,
    pub(super) next_inode: u64,
    pub(super) random: Random,
    pub(super) calls: u64,
    pub(super) calls_by_kind: BTreeMap<&'static str, u64>,
    pub(super) changing_calls: Vec<u64>,
    /// Call number, fault, whether it stays.
    pub(super) faults: Vec<(u64, Fault, bool)>,
    pub(super) stop_at: Option<u64>,
    pub(super) capacity: Option<u64>,
    pub(super) skip_sync: bool,
    pub(super) skip_sync_dir: bool,
    locks: BTreeMap<u64, Holders>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("calls", &self.calls)
            .finish_non_exhaustive()
    }
}

impl State {
    pub(super) fn new(seed: u64) -> State {
        let root = Inode {
            node: Node::Directory(DirectoryNode::default()),
            handles: 0,
        };
        State {
            inodes: BTreeMap::from([(ROOT, root)]),
            next_inode: ROOT + 1,
            random: Random(seed),
            calls: 0,
            calls_by_kind: BTreeMap::new(),
            changing_calls: Vec::new(),
            faults: Vec::new(),
            stop_at: None,
            capacity: None,
            skip_sync: false,
            skip_sync_dir: false,
            locks: BTreeMap::new(),
        }
    }

    /// Counts a call and says how it goes; an error is one that changes nothing.
    fn count(&mut self, kind: &'static str) -> io::Result<Outcome> {
        let number = self.calls;
        self.calls += 1;
        *self.calls_by_kind.entry(kind).or_default() += 1;
        if CHANGING.contains(&kind) {
            self.changing_calls.push(number);
        }
        if self.stop_at.is_some_and(|stop| number >= stop) {
            return Err(Errno::EIO.into());
        }
        let hit = self
            .faults
            .iter()
            .find(|(at, _, sticky)| *at == number || *sticky && *at < number);
        match hit.map(|(_, fault, _)| *fault) {
            None => Ok(Outcome::Proceed),
            Some(Fault::Short) => Ok(Outcome::Short),
            Some(Fault::Interrupted) => Err(Errno::EINTR.into()),
            Some(Fault::Error(errno)) => Ok(Outcome::Fail(io::Error::from_raw_os_error(errno))),
        }
    }

    /// Counts a call that either happens or does not.
    fn count_whole(&mut self, kind: &'static str) -> io::Result<()> {
        match self.count(kind)? {
            Outcome::Fail(error) => Err(error),
            Outcome::Proceed | Outcome::Short => Ok(()),
        }
    }

    fn add(&mut self, node: Node) -> u64 {
        let number = self.next_inode;
        self.next_inode += 1;
        self.inodes.insert(number, Inode { node, handles: 0 });
        number
    }

    fn node(&mut self, inode: u64) -> io::Result<&mut Node> {
        Ok(&mut self.inodes.get_mut(&inode).ok_or(Errno::ENOENT)?.node)
    }

    /// The file of an inode; EISDIR for a directory.
    pub(super) fn file(&mut self, inode: u64) -> io::Result<&mut FileNode> {
        match self.node(inode)? {
            Node::File(file) => Ok(file),
            Node::Directory(_) => Err(Errno::EISDIR.into()),
        }
    }

    fn directory(&mut self, inode: u64) -> io::Result<&mut DirectoryNode> {
        match self.node(inode)? {
            Node::Directory(directory) => Ok(directory),
            Node::File(_) => Err(Errno::ENOTDIR.into()),
        }
    }

    /// The inode that a path leads to.
    pub(super) fn resolve(&mut self, path: &Path) -> io::Result<u64> {
        let mut inode = ROOT;
        for component in path.components() {
            if let Component::Normal(name) = component {
                let directory = self.directory(inode)?;
                inode = *directory
                    .live
                    .get(&*name.to_string_lossy())
                    .ok_or(Errno::ENOENT)?;
            }
        }
        Ok(inode)
    }

    /// The directory that holds a path's last name, that name, and its inode if it exists.
    fn place(&mut self, path: &Path) -> io::Result<(u64, String, Option<u64>)> {
        let parent = self.resolve(path.parent().ok_or(Errno::EINVAL)?)?;
        let name = path
            .file_name()
            .ok_or(Errno::EINVAL)?
            .to_string_lossy()
            .into_owned();
        let found = self.directory(parent)?.live.get(&name).copied();
        Ok((parent, name, found))
    }

    pub(super) fn open(&mut self, path: &Path, mode: OpenMode) -> io::Result<u64> {
        let inode = if matches!(mode, OpenMode::Create | OpenMode::CreateDirect) {
            self.count_whole("create")?;
            let (parent, name, found) = self.place(path)?;
            if found.is_some() {
                return Err(Errno::EEXIST.into());
            }
            let inode = self.add(Node::File(FileNode::durable(Vec::new())));
            self.directory(parent)?.set(&name, inode);
            inode
        } else {
            self.count_whole("open")?;
            self.resolve(path)?
        };
        self.file(inode)?;
        self.retain(inode);
        Ok(inode)
    }

    pub(super) fn create_dir(&mut self, path: &Path) -> io::Result<()> {
        self.count_whole("mkdir")?;
        let (parent, name, found) = self.place(path)?;
        if found.is_some() {
            return Err(Errno::EEXIST.into());
        }
        let inode = self.add(Node::Directory(DirectoryNode::default()));
        self.directory(parent)?.set(&name, inode);
        Ok(())
    }

    pub(super) fn list(&mut self, path: &Path) -> io::Result<Vec<DirectoryEntry>> {
        self.count_whole("list")?;
        let inode = self.resolve(path)?;
        let names = self.directory(inode)?.live.clone();
        let entries = names.into_iter().map(|(name, inode)| {
            let (bytes, is_file) = match self.node(inode)? {
                Node::File(file) => (file.live.len() as u64, true),
                Node::Directory(_) => (0, false),
            };
            Ok(DirectoryEntry {
                name,
                bytes,
                is_file,
            })
        });
        entries.collect()
    }

    pub(super) fn rename(&mut self, source: &Path, target: &Path) -> io::Result<()> {
        self.count_whole("rename")?;
        let (source_parent, source_name, found) = self.place(source)?;
        let inode = found.ok_or(Errno::ENOENT)?;
        let (target_parent, target_name, replaced) = self.place(target)?;
        if replaced == Some(inode) {
            return Ok(());
        }
        if let Some(replaced) = replaced {
            self.file(replaced)?;
            if self.file(inode).is_err() {
                return Err(Errno::ENOTDIR.into());
            }
        }
        if source_parent == target_parent {
            self.directory(source_parent)?
                .rename(&source_name, &target_name, inode);
        } else {
            self.directory(target_parent)?.set(&target_name, inode);
            self.directory(source_parent)?.remove(&source_name);
        }
        Ok(())
    }

    pub(super) fn remove(&mut self, path: &Path) -> io::Result<()> {
        self.count_whole("remove")?;
        let (parent, name, found) = self.place(path)?;
        self.file(found.ok_or(Errno::ENOENT)?)?;
        self.directory(parent)?.remove(&name);
        Ok(())
    }

    pub(super) fn hard_link(&mut self, source: &Path, target: &Path) -> io::Result<()> {
        self.count_whole("link")?;
        let inode = self.resolve(source)?;
        if self.file(inode).is_err() {
            return Err(Errno::EPERM.into());
        }
        let (parent, name, found) = self.place(target)?;
        if found.is_some() {
            return Err(Errno::EEXIST.into());
        }
        self.directory(parent)?.set(&name, inode);
        Ok(())
    }

    pub(super) fn sync_dir(&mut self, path: &Path) -> io::Result<()> {
        self.count_whole("sync_dir")?;
        let inode = self.resolve(path)?;
        let skipped = self.skip_sync_dir;
        let directory = self.directory(inode)?;
        if !skipped {
            directory.durable.clone_from(&directory.live);
            directory.unsynced.clear();
            self.free_unreachable();
        }
        Ok(())
    }

    /// Forgets inodes without names and handles.
    fn free_unreachable(&mut self) {
        let mut kept = BTreeSet::from([ROOT]);
        for inode in self.inodes.values() {
            if let Node::Directory(directory) = &inode.node {
                kept.extend(directory.inodes());
            }
        }
        self.inodes
            .retain(|number, inode| inode.handles > 0 || kept.contains(number));
    }

    pub(super) fn lock(&mut self, path: &Path, kind: LockKind, create: bool) -> io::Result<u64> {
        self.count_whole("lock")?;
        let (parent, name, found) = self.place(path)?;
        let inode = match found {
            Some(inode) => inode,
            None if create => {
                let inode = self.add(Node::File(FileNode::durable(Vec::new())));
                self.directory(parent)?.set(&name, inode);
                inode
            }
            None => return Err(Errno::ENOENT.into()),
        };
        self.file(inode)?;
        let holders = self.locks.entry(inode).or_default();
        if holders.exclusive || kind == LockKind::Exclusive && holders.shared > 0 {
            return Err(Errno::EWOULDBLOCK.into());
        }
        match kind {
            LockKind::Shared => holders.shared += 1,
            LockKind::Exclusive => holders.exclusive = true,
        }
        self.retain(inode);
        Ok(inode)
    }

    pub(super) fn unlock(&mut self, inode: u64, kind: LockKind) {
        if let Some(holders) = self.locks.get_mut(&inode) {
            match kind {
                LockKind::Shared => holders.shared -= 1,
                LockKind::Exclusive => holders.exclusive = false,
            }
        }
        self.release(inode);
    }

    fn retain(&mut self, inode: u64) {
        if let Some(inode) = self.inodes.get_mut(&inode) {
            inode.handles += 1;
        }
    }

    /// Takes back a handle.
    pub(super) fn release(&mut self, inode: u64) {
        if let Some(inode) = self.inodes.get_mut(&inode) {
            inode.handles -= 1;
        }
    }

    pub(super) fn space(&mut self) -> io::Result<Space> {
        self.count_whole("space")?;
        let total_bytes = self.capacity.unwrap_or(UNLIMITED_BYTES);
        Ok(Space {
            total_bytes,
            free_bytes: total_bytes.saturating_sub(self.used_bytes()),
        })
    }

    /// Bytes of the files that have a name or a handle.
    fn used_bytes(&self) -> u64 {
        let mut named = BTreeSet::new();
        for inode in self.inodes.values() {
            if let Node::Directory(directory) = &inode.node {
                named.extend(directory.live.values().copied());
            }
        }
        let used = self.inodes.iter().map(|(number, inode)| match &inode.node {
            Node::File(file) if inode.handles > 0 || named.contains(number) => {
                file.live.len() as u64
            }
            _ => 0,
        });
        used.sum()
    }

    pub(super) fn read(
        &mut self,
        inode: u64,
        bytes: &mut [u8],
        offset: u64,
        align: usize,
    ) -> io::Result<usize> {
        let asked = match self.count("read")? {
            Outcome::Proceed => bytes.len(),
            Outcome::Short => shortened(bytes.len(), align),
            Outcome::Fail(error) => return Err(error),
        };
        let file = self.file(inode)?;
        let start = usize::try_from(offset).map_or(file.live.len(), |at| at.min(file.live.len()));
        let moved = asked.min(file.live.len() - start);
        let sectors = start / SECTOR_BYTES..(start + moved).div_ceil(SECTOR_BYTES);
        if file.lost.range(sectors).next().is_some() {
            return Err(Errno::EIO.into());
        }
        bytes[..moved].copy_from_slice(&file.live[start..start + moved]);
        Ok(moved)
    }

    pub(super) fn write(
        &mut self,
        inode: u64,
        bytes: &[u8],
        offset: u64,
        align: usize,
    ) -> io::Result<usize> {
        let (moved, failed) = match self.count("write")? {
            Outcome::Proceed => (bytes.len(), None),
            Outcome::Short => (shortened(bytes.len(), align), None),
            Outcome::Fail(error) => {
                let sectors = self.random.below(bytes.len() / SECTOR_BYTES + 1);
                (sectors * SECTOR_BYTES, Some(error))
            }
        };
        let start = usize::try_from(offset).map_err(|_| Errno::EFBIG)?;
        let end = start.checked_add(moved).ok_or(Errno::EFBIG)?;
        let grown = end.saturating_sub(self.file(inode)?.live.len()) as u64;
        if grown > 0
            && self
                .capacity
                .is_some_and(|limit| self.used_bytes().saturating_add(grown) > limit)
        {
            return Err(failed.unwrap_or_else(|| Errno::ENOSPC.into()));
        }
        if moved > 0 {
            self.file(inode)?.write(&bytes[..moved], start);
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(moved),
        }
    }

    pub(super) fn sync(&mut self, inode: u64) -> io::Result<()> {
        let outcome = self.count("sync")?;
        if let Outcome::Fail(error) = outcome {
            let State { inodes, random, .. } = self;
            if let Some(Inode {
                node: Node::File(file),
                ..
            }) = inodes.get_mut(&inode)
            {
                file.unsynced.retain(|_| random.below(2) == 0);
            }
            return Err(error);
        }
        if !self.skip_sync {
            self.file(inode)?.sync();
        }
        Ok(())
    }

    pub(super) fn bytes(&mut self, inode: u64) -> io::Result<u64> {
        self.count_whole("bytes")?;
        Ok(self.file(inode)?.live.len() as u64)
    }

    /// Puts a file in place, durable with its name, uncounted.
    pub(super) fn plant(&mut self, path: &Path, file: FileNode) -> io::Result<()> {
        let (parent, name, found) = self.place(path)?;
        if let Some(inode) = found {
            *self.file(inode)? = file;
            return Ok(());
        }
        let inode = self.add(Node::File(file));
        let directory = self.directory(parent)?;
        directory.live.insert(name.clone(), inode);
        directory.durable.insert(name, inode);
        Ok(())
    }

    /// Paths of all files, in no particular order.
    pub(super) fn paths(&self) -> Vec<PathBuf> {
        let mut paths = Vec::new();
        let mut open = vec![(PathBuf::from("/"), ROOT)];
        while let Some((path, inode)) = open.pop() {
            match self.inodes.get(&inode).map(|inode| &inode.node) {
                Some(Node::Directory(directory)) => {
                    open.extend(directory.live.iter().map(|(name, i)| (path.join(name), *i)));
                }
                Some(Node::File(_)) => paths.push(path),
                None => {}
            }
        }
        paths
    }
}

/// Half of a transfer, in whole units, at least one (but not more than all).
fn shortened(bytes: usize, align: usize) -> usize {
    bytes.min((bytes / 2 / align).max(1) * align)
}
