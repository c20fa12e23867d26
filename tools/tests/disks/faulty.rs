//! A file system in memory, mounted by FUSE, whose n-th call fails with an errno.
//!
//! - Calls of one kind are counted from [`Faults::arm`] on; until then nothing fails.
//! - A failed read or write changes nothing.
//! - A failed sync of a file drops what was written to it since its last good one, as Linux may: its
//!   pages are clean, and the device never got them. The next sync says that all is well.
#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "test helpers fail the test"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};

use super::fuse::{self, BLOCK_BYTES};

/// What may fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Read,
    Write,
    Sync,
}

#[derive(Default)]
struct Armed {
    fault: Option<(Kind, u64, i32, bool)>,
    calls: u64,
    failed: u64,
    /// A byte of a file (by its inode) that no read gets.
    lost: Option<(u64, u64)>,
    dropped: BTreeSet<OsString>,
}

/// Which call fails; shared by the file system and the test.
#[derive(Clone, Default)]
pub struct Faults(Arc<Mutex<Armed>>);

impl Faults {
    /// Call number `call` of this kind fails from now on, once or with all that follow.
    pub fn arm(&self, kind: Kind, call: u64, errno: i32, sticky: bool) {
        *self.0.lock().unwrap() = Armed {
            fault: Some((kind, call, errno, sticky)),
            ..Armed::default()
        };
    }

    /// From now on every read of this byte of a file fails with EIO; that of no other.
    pub fn lose(&self, inode: u64, offset: u64) {
        *self.0.lock().unwrap() = Armed {
            lost: Some((inode, offset)),
            ..Armed::default()
        };
    }

    fn check_read(&self, inode: u64, offset: u64, size: u32) -> std::result::Result<(), Errno> {
        self.check(Kind::Read)?;
        let range = offset..offset + u64::from(size);
        match self.0.lock().unwrap().lost {
            Some((of, at)) if of == inode && range.contains(&at) => Err(Errno::EIO),
            _ => Ok(()),
        }
    }

    /// Nothing fails any more; how many calls did.
    pub fn disarm(&self) -> u64 {
        let mut armed = self.0.lock().unwrap();
        (armed.fault, armed.lost) = (None, None);
        armed.failed
    }

    /// Names of the files that have lost what was not synced, since the last [`Faults::arm`].
    pub fn dropped(&self) -> BTreeSet<OsString> {
        self.0.lock().unwrap().dropped.clone()
    }

    fn check(&self, kind: Kind) -> std::result::Result<(), Errno> {
        let mut armed = self.0.lock().unwrap();
        let Some((which, call, errno, sticky)) = armed.fault else {
            return Ok(());
        };
        if which != kind {
            return Ok(());
        }
        armed.calls += 1;
        let number = armed.calls - 1;
        if number == call || (sticky && number > call) {
            armed.failed += 1;
            return Err(Errno::from_i32(errno));
        }
        Ok(())
    }
}

#[derive(Default)]
struct Node {
    names: Option<BTreeMap<OsString, u64>>,
    parent: u64,
    bytes: Vec<u8>,
    /// What the last good sync made durable.
    synced: Vec<u8>,
    mode: u16,
}

#[derive(Default)]
struct Tree {
    nodes: BTreeMap<u64, Node>,
    last: u64,
}

/// The file system.
pub struct FaultyFs {
    tree: Mutex<Tree>,
    faults: Faults,
}

const TTL: Duration = Duration::ZERO;
const BLOCKS: u64 = 1 << 16;
/// Parent of what has no name any more.
const NOWHERE: u64 = 0;

type Answer<T> = std::result::Result<T, Errno>;

impl Tree {
    fn node(&mut self, number: INodeNo) -> Answer<&mut Node> {
        self.nodes.get_mut(&number.0).ok_or(Errno::ENOENT)
    }

    fn names(&mut self, number: INodeNo) -> Answer<&mut BTreeMap<OsString, u64>> {
        self.node(number)?.names.as_mut().ok_or(Errno::ENOTDIR)
    }

    fn find(&mut self, parent: INodeNo, name: &OsStr) -> Answer<u64> {
        self.names(parent)?.get(name).copied().ok_or(Errno::ENOENT)
    }

    fn attributes(&mut self, number: INodeNo) -> Answer<FileAttr> {
        let node = self.node(number)?;
        let size = node.bytes.len() as u64;
        let kind = match node.names {
            Some(_) => FileType::Directory,
            None => FileType::RegularFile,
        };
        Ok(fuse::attributes(number, kind, node.mode, size))
    }

    fn add(
        &mut self,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        directory: bool,
    ) -> Answer<FileAttr> {
        if self.find(parent, name).is_ok() {
            return Err(Errno::EEXIST);
        }
        self.last += 1;
        let number = self.last;
        self.names(parent)?.insert(name.to_owned(), number);
        let node = Node {
            names: directory.then(BTreeMap::new),
            parent: parent.0,
            bytes: Vec::new(),
            synced: Vec::new(),
            mode: (mode & 0o7777) as u16,
        };
        self.nodes.insert(number, node);
        self.attributes(INodeNo(number))
    }

    fn remove(&mut self, parent: INodeNo, name: &OsStr) -> Answer<()> {
        let number = self.find(parent, name)?;
        let full = |node: &Node| node.names.as_ref().is_some_and(|names| !names.is_empty());
        if self.nodes.get(&number).is_some_and(full) {
            return Err(Errno::ENOTEMPTY);
        }
        self.names(parent)?.remove(name);
        self.unlinked(number)
    }

    /// Its node stays until the kernel forgets it: somebody may have it open.
    fn unlinked(&mut self, number: u64) -> Answer<()> {
        self.node(INodeNo(number))?.parent = NOWHERE;
        Ok(())
    }

    fn rename(&mut self, from: (INodeNo, &OsStr), to: (INodeNo, &OsStr)) -> Answer<()> {
        let number = self.find(from.0, from.1)?;
        if let Some(replaced) = self.names(to.0)?.insert(to.1.to_owned(), number) {
            self.unlinked(replaced)?;
        }
        self.names(from.0)?.remove(from.1);
        self.node(INodeNo(number))?.parent = to.0.0;
        Ok(())
    }

    /// The name of a file that has one.
    fn name(&mut self, number: INodeNo) -> Answer<OsString> {
        let parent = self.node(number)?.parent;
        let mut names = self.names(INodeNo(parent))?.iter();
        let found = names.find(|(_, child)| **child == number.0);
        found.map(|(name, _)| name.clone()).ok_or(Errno::ENOENT)
    }

    fn list(&mut self, number: INodeNo) -> Answer<Vec<(u64, FileType, OsString)>> {
        let parent = self.node(number)?.parent;
        let mut list = vec![
            (number.0, FileType::Directory, OsString::from(".")),
            (parent, FileType::Directory, OsString::from("..")),
        ];
        for (name, child) in self.names(number)?.clone() {
            let kind = self.attributes(INodeNo(child))?.kind;
            list.push((child, kind, name));
        }
        Ok(list)
    }
}

impl FaultyFs {
    /// An empty one.
    pub fn new(faults: Faults) -> FaultyFs {
        let root = Node {
            names: Some(BTreeMap::new()),
            parent: 1,
            bytes: Vec::new(),
            synced: Vec::new(),
            mode: 0o700,
        };
        let tree = Tree {
            nodes: BTreeMap::from([(1, root)]),
            last: 1,
        };
        FaultyFs {
            tree: Mutex::new(tree),
            faults,
        }
    }

    fn do_read(&self, number: INodeNo, offset: u64, size: u32) -> Answer<Vec<u8>> {
        self.faults.check_read(number.0, offset, size)?;
        let mut tree = self.tree.lock().unwrap();
        let bytes = &tree.node(number)?.bytes;
        let from = bytes.len().min(offset as usize);
        let to = bytes.len().min(from + size as usize);
        Ok(bytes[from..to].to_vec())
    }

    fn do_write(&self, number: INodeNo, offset: u64, data: &[u8]) -> Answer<u32> {
        self.faults.check(Kind::Write)?;
        let mut tree = self.tree.lock().unwrap();
        let bytes = &mut tree.node(number)?.bytes;
        let to = offset as usize + data.len();
        if bytes.len() < to {
            bytes.resize(to, 0);
        }
        bytes[offset as usize..to].copy_from_slice(data);
        Ok(data.len() as u32)
    }

    fn do_sync(&self, number: INodeNo) -> Answer<()> {
        let answer = self.faults.check(Kind::Sync);
        let mut tree = self.tree.lock().unwrap();
        let name = tree.name(number);
        let node = tree.node(number)?;
        if answer.is_ok() {
            node.synced.clone_from(&node.bytes);
        } else if node.bytes != node.synced {
            node.bytes.clone_from(&node.synced);
            self.faults.0.lock().unwrap().dropped.extend(name.ok());
        }
        answer
    }
}

fn empty(reply: ReplyEmpty, answer: Answer<()>) {
    match answer {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

fn entry(reply: ReplyEntry, answer: Answer<FileAttr>) {
    match answer {
        Ok(found) => reply.entry(&TTL, &found, Generation(0)),
        Err(errno) => reply.error(errno),
    }
}

fn attributes(reply: ReplyAttr, answer: Answer<FileAttr>) {
    match answer {
        Ok(found) => reply.attr(&TTL, &found),
        Err(errno) => reply.error(errno),
    }
}

impl Filesystem for FaultyFs {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let mut tree = self.tree.lock().unwrap();
        let found = tree.find(parent, name);
        entry(reply, found.and_then(|n| tree.attributes(INodeNo(n))));
    }

    fn forget(&self, _: &Request, ino: INodeNo, _: u64) {
        let mut tree = self.tree.lock().unwrap();
        if tree.node(ino).is_ok_and(|node| node.parent == NOWHERE) {
            tree.nodes.remove(&ino.0);
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        attributes(reply, self.tree.lock().unwrap().attributes(ino));
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mut tree = self.tree.lock().unwrap();
        if let Ok(node) = tree.node(ino) {
            if let Some(mode) = mode {
                node.mode = (mode & 0o7777) as u16;
            }
            if let Some(size) = size {
                node.bytes.resize(size as usize, 0);
            }
        }
        attributes(reply, tree.attributes(ino));
    }

    fn mkdir(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        entry(
            reply,
            self.tree.lock().unwrap().add(parent, name, mode, true),
        );
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        match self.tree.lock().unwrap().add(parent, name, mode, false) {
            Ok(found) => {
                let (no_flags, handle) = (FopenFlags::empty(), FileHandle(0));
                reply.created(&TTL, &found, Generation(0), handle, no_flags);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(reply, self.tree.lock().unwrap().remove(parent, name));
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(reply, self.tree.lock().unwrap().remove(parent, name));
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        to_parent: INodeNo,
        to_name: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mut tree = self.tree.lock().unwrap();
        empty(reply, tree.rename((parent, name), (to_parent, to_name)));
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.do_read(ino, offset, size) {
            Ok(bytes) => reply.data(&bytes),
            Err(errno) => reply.error(errno),
        }
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.do_write(ino, offset, data) {
            Ok(count) => reply.written(count),
            Err(errno) => reply.error(errno),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        empty(reply, self.do_sync(ino));
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        empty(reply, self.faults.check(Kind::Sync));
    }

    fn readdir(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        match self.tree.lock().unwrap().list(ino) {
            Err(errno) => reply.error(errno),
            Ok(list) => {
                for (at, (number, kind, name)) in (1..).zip(list).skip(offset as usize) {
                    if reply.add(INodeNo(number), at, kind, name) {
                        break;
                    }
                }
                reply.ok();
            }
        }
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let mut tree = self.tree.lock().unwrap();
        let bytes = tree.nodes.values_mut().map(|n| n.bytes.len() as u64);
        let free = BLOCKS.saturating_sub(bytes.sum::<u64>().div_ceil(u64::from(BLOCK_BYTES)));
        let size = BLOCK_BYTES;
        reply.statfs(BLOCKS, free, free, 1 << 20, 1 << 19, size, 255, size);
    }
}
