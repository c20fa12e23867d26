//! What does the simulated disk hold, and what did it promise to keep?
//!
//! Invariants:
//! - An inode lives as long as a name (live, durable, or in an unsynced change) or a handle.
//! - Every operation counts as one call before it does anything.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::io;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;

use super::super::{DirectoryEntry, LockKind, OpenMode};
use super::node::{DirectoryNode, FileNode, Node, Random};
use super::{Failure, Fault, Remnants, SECTOR_BYTES};

/// The inode of `/`.
pub(super) const ROOT: u64 = 1;

/// What the clock of a new disk says: in November 2023.
const FIRST_UNIX_SECONDS: u64 = 1_700_000_000;

/// Kinds of calls that change what a crash could leave.
const CHANGING: [&str; 9] = [
    "create", "link", "lock", "mkdir", "remove", "rename", "sync", "sync_dir", "write",
];

pub(super) struct Inode {
    pub(super) node: Node,
    /// Open files, open directories and locks.
    pub(super) handles: usize,
}

/// Holders of one lock.
#[derive(Default)]
struct Holders {
    shared: usize,
    exclusive: bool,
}

/// Sectors of removed files that are remembered, at most.
const FREED_SECTORS_MAX: usize = 256;

/// A block of a directory: with less room than this a new name may be refused.
const NAME_BYTES: u64 = 4096;

/// How a call goes.
pub(super) enum Outcome {
    Proceed,
    Short,
    /// A read brings bytes that are not those asked for.
    Wrong(Fault),
    Fail(io::Error),
}

/// Everything about one simulated disk.
pub(super) struct State {
    pub(super) inodes: BTreeMap<u64, Inode>,
    pub(super) next_inode: u64,
    pub(super) random: Random,
    /// Of uuids: apart, so that asking for one changes nothing else.
    pub(super) uuids: Random,
    /// What its clock says.
    pub(super) unix_seconds: u64,
    pub(super) calls: u64,
    pub(super) calls_by_kind: BTreeMap<&'static str, u64>,
    pub(super) kinds: Vec<&'static str>,
    pub(super) read_bytes: u64,
    pub(super) changing_calls: Vec<u64>,
    /// Call number, fault, whether it stays.
    pub(super) faults: Vec<(u64, Fault, bool)>,
    pub(super) failures: Vec<Failure>,
    pub(super) stop_at: Option<u64>,
    pub(super) capacity: Option<u64>,
    /// Whether other machines see its files, but not its locks.
    pub(super) is_shared: bool,
    /// ENOSPC, or EDQUOT.
    pub(super) full_errno: Errno,
    pub(super) remnants: Remnants,
    /// Sectors of files that are no more, the last of them.
    pub(super) freed: VecDeque<Box<[u8]>>,
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
            uuids: Random(!seed),
            unix_seconds: FIRST_UNIX_SECONDS,
            calls: 0,
            calls_by_kind: BTreeMap::new(),
            kinds: Vec::new(),
            read_bytes: 0,
            changing_calls: Vec::new(),
            faults: Vec::new(),
            failures: Vec::new(),
            stop_at: None,
            capacity: None,
            is_shared: false,
            full_errno: Errno::ENOSPC,
            remnants: Remnants::Zeros,
            freed: VecDeque::new(),
            skip_sync: false,
            skip_sync_dir: false,
            locks: BTreeMap::new(),
        }
    }

    /// Takes over what a crash does not change about a disk.
    pub(super) fn inherit(&mut self, before: &State) {
        self.next_inode = before.next_inode;
        self.capacity = before.capacity;
        self.is_shared = before.is_shared;
        self.unix_seconds = before.unix_seconds;
        self.full_errno = before.full_errno;
        self.remnants = before.remnants;
        self.freed.clone_from(&before.freed);
    }

    /// Counts a call and says how it goes; an error is one that changes nothing.
    pub(super) fn count(&mut self, kind: &'static str) -> io::Result<Outcome> {
        let number = self.calls;
        self.calls += 1;
        *self.calls_by_kind.entry(kind).or_default() += 1;
        self.kinds.push(kind);
        if CHANGING.contains(&kind) {
            self.changing_calls.push(number);
        }
        if self.stop_at.is_some_and(|stop| number >= stop) {
            return Err(self.failed(kind, Errno::EIO as i32));
        }
        let hit = self
            .faults
            .iter()
            .find(|(at, _, sticky)| *at == number || *sticky && *at < number);
        match hit.map(|(_, fault, _)| *fault) {
            None => Ok(Outcome::Proceed),
            Some(Fault::Short) => Ok(Outcome::Short),
            Some(fault @ (Fault::Misdirected | Fault::Stale)) => Ok(Outcome::Wrong(fault)),
            Some(Fault::Interrupted) => Err(self.failed(kind, Errno::EINTR as i32)),
            Some(Fault::ReadOnly) if kind == "lock" || !CHANGING.contains(&kind) => {
                Ok(Outcome::Proceed)
            }
            Some(Fault::ReadOnly) => Ok(Outcome::Fail(self.failed(kind, Errno::EROFS as i32))),
            Some(Fault::Error(errno)) => Ok(Outcome::Fail(self.failed(kind, errno))),
        }
    }

    /// Whether the call just counted finds a disk that takes no writes.
    fn is_read_only(&self) -> bool {
        let number = self.calls - 1;
        let hit = |(at, sticky): (u64, bool)| at == number || sticky && at < number;
        let mut faults = self.faults.iter();
        faults.any(|(at, fault, sticky)| *fault == Fault::ReadOnly && hit((*at, *sticky)))
    }

    /// Notes that the call just counted fails.
    pub(super) fn failed(&mut self, kind: &'static str, errno: i32) -> io::Error {
        let call = self.calls - 1;
        self.failures.push(Failure { call, kind, errno });
        io::Error::from_raw_os_error(errno)
    }

    /// Counts a call that either happens or does not.
    pub(super) fn count_whole(&mut self, kind: &'static str) -> io::Result<()> {
        match self.count(kind)? {
            Outcome::Fail(error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Counts a call that changes names. With an error inside, it happens and is said to have
    /// failed: the device did it and its answer was lost.
    fn count_name(&mut self, kind: &'static str) -> io::Result<Option<io::Error>> {
        if let Outcome::Fail(error) = self.count(kind)? {
            let answer_lost = error.raw_os_error() == Some(Errno::EIO as i32);
            return match answer_lost && self.random.below(2) == 0 {
                true => Ok(Some(error)),
                false => Err(error),
            };
        }
        let grows = kind != "remove";
        let left = |limit: u64| limit.saturating_sub(self.used_bytes());
        if grows
            && self
                .capacity
                .map(left)
                .is_some_and(|left| left < NAME_BYTES)
        {
            let block_is_full = self.random.below(2) == 0;
            if block_is_full {
                return Err(self.failed(kind, self.full_errno as i32));
            }
        }
        Ok(None)
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
        self.resolve_from(ROOT, path)
    }

    /// The inode that a path leads to which starts at a directory (or is absolute).
    pub(super) fn resolve_from(&mut self, directory: u64, path: &Path) -> io::Result<u64> {
        let mut inode = if path.is_absolute() { ROOT } else { directory };
        for component in path.components() {
            if let Component::Normal(name) = component {
                inode = self
                    .found(inode, &name.to_string_lossy())?
                    .ok_or(Errno::ENOENT)?;
            }
        }
        Ok(inode)
    }

    /// What a name leads to, if there is one.
    fn found(&mut self, directory: u64, name: &str) -> io::Result<Option<u64>> {
        Ok(self.directory(directory)?.live.get(name).copied())
    }

    /// Opens a directory: its handle keeps it.
    pub(super) fn open_dir(&mut self, directory: u64, path: &Path) -> io::Result<u64> {
        self.count_whole("open_dir")?;
        let inode = self.resolve_from(directory, path)?;
        self.directory(inode)?;
        self.retain(inode);
        Ok(inode)
    }

    pub(super) fn open(&mut self, directory: u64, name: &str, mode: OpenMode) -> io::Result<u64> {
        let inode = if matches!(mode, OpenMode::Create | OpenMode::CreateDirect) {
            let told = self.count_name("create")?;
            if self.found(directory, name)?.is_some() {
                return Err(Errno::EEXIST.into());
            }
            let inode = self.add(Node::File(FileNode::durable(Vec::new())));
            self.directory(directory)?.set(name, inode);
            done(told)?;
            inode
        } else {
            self.count_whole("open")?;
            self.found(directory, name)?.ok_or(Errno::ENOENT)?
        };
        self.file(inode)?;
        self.retain(inode);
        Ok(inode)
    }

    pub(super) fn create_dir(&mut self, directory: u64, name: &str) -> io::Result<()> {
        let told = self.count_name("mkdir")?;
        if self.found(directory, name)?.is_some() {
            return Err(Errno::EEXIST.into());
        }
        let inode = self.add(Node::Directory(DirectoryNode::default()));
        self.directory(directory)?.set(name, inode);
        done(told)
    }

    pub(super) fn list(&mut self, directory: u64) -> io::Result<Vec<DirectoryEntry>> {
        self.count_whole("list")?;
        let names = self.directory(directory)?.live.clone();
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

    pub(super) fn rename(&mut self, directory: u64, source: &str, target: &str) -> io::Result<()> {
        let told = self.count_name("rename")?;
        let inode = self.found(directory, source)?.ok_or(Errno::ENOENT)?;
        let replaced = self.found(directory, target)?;
        if replaced == Some(inode) {
            return done(told);
        }
        if let Some(replaced) = replaced {
            self.file(replaced)?;
            if self.file(inode).is_err() {
                return Err(Errno::ENOTDIR.into());
            }
        }
        self.directory(directory)?.rename(source, target, inode);
        done(told)
    }

    pub(super) fn exchange(&mut self, directory: u64, one: &str, other: &str) -> io::Result<()> {
        let told = self.count_name("rename")?;
        let first = self.found(directory, one)?.ok_or(Errno::ENOENT)?;
        let second = self.found(directory, other)?.ok_or(Errno::ENOENT)?;
        self.directory(directory)?
            .exchange((one, first), (other, second));
        done(told)
    }

    pub(super) fn remove(&mut self, directory: u64, name: &str) -> io::Result<()> {
        let told = self.count_name("remove")?;
        let found = self.found(directory, name)?;
        self.file(found.ok_or(Errno::ENOENT)?)?;
        self.directory(directory)?.remove(name);
        done(told)
    }

    pub(super) fn hard_link(
        &mut self,
        directory: u64,
        source: &str,
        target: u64,
        name: &str,
    ) -> io::Result<()> {
        let told = self.count_name("link")?;
        let inode = self.found(directory, source)?.ok_or(Errno::ENOENT)?;
        if self.file(inode).is_err() {
            return Err(Errno::EPERM.into());
        }
        if self.found(target, name)?.is_some() {
            return Err(Errno::EEXIST.into());
        }
        self.directory(target)?.set(name, inode);
        done(told)
    }

    pub(super) fn sync_dir(&mut self, directory: u64) -> io::Result<()> {
        let outcome = self.count("sync_dir")?;
        let State { inodes, random, .. } = self;
        let inode = inodes.get_mut(&directory).map(|i| &mut i.node);
        let Some(Node::Directory(directory)) = inode else {
            return Err(Errno::ENOTDIR.into());
        };
        if let Outcome::Fail(error) = outcome {
            directory.fail_sync(random);
            return Err(error);
        }
        if !self.skip_sync_dir {
            directory.sync();
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
        let freed = &mut self.freed;
        self.inodes.retain(|number, inode| {
            let stays = inode.handles > 0 || kept.contains(number);
            if !stays && let Node::File(file) = &inode.node {
                freed.extend(file.live.chunks(SECTOR_BYTES).map(Box::from));
            }
            stays
        });
        freed.drain(..freed.len().saturating_sub(FREED_SECTORS_MAX));
    }

    pub(super) fn lock(
        &mut self,
        directory: u64,
        name: &str,
        kind: LockKind,
        create: bool,
    ) -> io::Result<u64> {
        self.count_whole("lock")?;
        if create && self.is_read_only() {
            return Err(self.failed("lock", Errno::EROFS as i32));
        }
        let inode = match self.found(directory, name)? {
            Some(inode) => inode,
            None if create => {
                let inode = self.add(Node::File(FileNode::durable(Vec::new())));
                self.directory(directory)?.set(name, inode);
                inode
            }
            None => return Err(Errno::ENOENT.into()),
        };
        self.file(inode)?;
        self.hold(inode, kind)
    }

    /// Locks a directory itself.
    pub(super) fn lock_dir(&mut self, directory: u64) -> io::Result<u64> {
        self.count_whole("lock_dir")?;
        self.hold(directory, LockKind::Exclusive)
    }

    fn hold(&mut self, inode: u64, kind: LockKind) -> io::Result<u64> {
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

    /// Puts a file in place, durable with its name, uncounted.
    pub(super) fn plant(&mut self, path: &Path, file: FileNode) -> io::Result<()> {
        let parent = self.resolve(path.parent().ok_or(Errno::EINVAL)?)?;
        let name = path.file_name().ok_or(Errno::EINVAL)?.to_string_lossy();
        if let Some(inode) = self.found(parent, &name)? {
            *self.file(inode)? = file;
            return Ok(());
        }
        let inode = self.add(Node::File(file));
        let directory = self.directory(parent)?;
        directory.live.insert(name.to_string(), inode);
        directory.durable.insert(name.into_owned(), inode);
        Ok(())
    }

    /// A digest of every name and what it leads to; `of` says that of some bytes.
    pub(super) fn digest(&self, of: fn(&[u8]) -> u128) -> u128 {
        let mut parts = Vec::new();
        let mut open = vec![(PathBuf::from("/"), ROOT)];
        while let Some((path, inode)) = open.pop() {
            parts.extend_from_slice(path.as_os_str().as_encoded_bytes());
            match self.inodes.get(&inode).map(|inode| &inode.node) {
                Some(Node::Directory(directory)) => {
                    parts.push(0);
                    open.extend(directory.live.iter().map(|(name, i)| (path.join(name), *i)));
                }
                Some(Node::File(file)) => {
                    parts.push(1);
                    parts.extend_from_slice(&file.live.digest(of).to_le_bytes());
                    for sector in &file.lost {
                        parts.extend_from_slice(&(*sector as u64).to_le_bytes());
                    }
                }
                None => parts.push(2),
            }
        }
        of(&parts)
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

/// The answer to a call that was done.
fn done(told: Option<io::Error>) -> io::Result<()> {
    told.map_or(Ok(()), Err)
}
