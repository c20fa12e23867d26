//! A disk in memory that remembers every write and every flush, as a file that is mounted by FUSE.
//!
//! - A loop device on that file is a block device whose traffic is seen in the order in which it came.
//! - A write counts as arrived when it is answered; a flush covers all that were answered before it.
#![expect(clippy::unwrap_used, reason = "test helpers fail the test")]

use std::ffi::OsStr;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner,
    OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request,
    WriteFlags,
};

use super::fuse;

/// The name of the disk's file.
pub const NAME: &str = "disk";
/// What a disk writes whole or not at all here; torn sectors are for tests of our own formats, ext4
/// itself does not survive those of its superblock.
pub const BLOCK: usize = 4096;
const ROOT: u64 = 1;
const DISK: u64 = 2;
const TTL: Duration = Duration::MAX;

/// One call of the block device.
pub enum Record {
    Write(usize, Vec<u8>),
    Flush,
}

#[derive(Default)]
struct Inner {
    bytes: Vec<u8>,
    log: Option<Vec<Record>>,
}

/// The disk; shared by the file system and the test.
#[derive(Clone, Default)]
pub struct BlockLog(Arc<Mutex<Inner>>);

impl BlockLog {
    /// A disk of zeros.
    pub fn new(bytes: usize) -> BlockLog {
        BlockLog(Arc::new(Mutex::new(Inner {
            bytes: vec![0; bytes],
            log: None,
        })))
    }

    /// Remembers all calls from now on; gives what is on the disk now.
    pub fn begin(&self) -> Vec<u8> {
        let mut inner = self.0.lock().unwrap();
        inner.log = Some(Vec::new());
        inner.bytes.clone()
    }

    /// How many calls came so far.
    pub fn calls(&self) -> usize {
        self.0.lock().unwrap().log.as_ref().map_or(0, Vec::len)
    }

    /// All calls since [`BlockLog::begin`]; remembers no more of them.
    pub fn end(&self) -> Vec<Record> {
        self.0.lock().unwrap().log.take().unwrap_or_default()
    }
}

/// Applies the writes of a part of a log.
pub fn apply(bytes: &mut [u8], log: &[Record], calls: Range<usize>) {
    for record in &log[calls] {
        if let Record::Write(at, data) = record {
            bytes[*at..*at + data.len()].copy_from_slice(data);
        }
    }
}

/// Applies some blocks of the writes of a part of a log, as `kept` says for each; how many it kept.
pub fn apply_some(
    bytes: &mut [u8],
    log: &[Record],
    calls: Range<usize>,
    kept: &mut dyn FnMut() -> bool,
) -> usize {
    let mut count = 0;
    for record in &log[calls] {
        if let Record::Write(at, data) = record {
            for (block, part) in data.chunks(BLOCK).enumerate() {
                if kept() {
                    let at = at + block * BLOCK;
                    bytes[at..at + part.len()].copy_from_slice(part);
                    count += 1;
                }
            }
        }
    }
    count
}

/// The file system: one directory, one file.
pub struct BlockLogFs(pub BlockLog);

impl BlockLogFs {
    fn attributes(&self, number: INodeNo) -> Option<FileAttr> {
        let (kind, perm, size) = match number.0 {
            ROOT => (FileType::Directory, 0o700, 0),
            DISK => {
                let size = self.0.0.lock().unwrap().bytes.len() as u64;
                (FileType::RegularFile, 0o600, size)
            }
            _ => return None,
        };
        Some(fuse::attributes(number, kind, perm, size))
    }
}

impl Filesystem for BlockLogFs {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.attributes(INodeNo(DISK)) {
            Some(found) if name == NAME => reply.entry(&TTL, &found, Generation(0)),
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(ino) {
            Some(found) => reply.attr(&TTL, &found),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let inner = self.0.0.lock().unwrap();
        let all = inner.bytes.len();
        let from = usize::try_from(offset).unwrap_or(all).min(all);
        reply.data(&inner.bytes[from..all.min(from + size as usize)]);
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mut inner = self.0.0.lock().unwrap();
        let end = offset.checked_add(data.len() as u64);
        let (Ok(from), Some(Ok(to))) = (usize::try_from(offset), end.map(usize::try_from)) else {
            return reply.error(Errno::EFBIG);
        };
        let Some(place) = inner.bytes.get_mut(from..to) else {
            return reply.error(Errno::ENOSPC);
        };
        place.copy_from_slice(data);
        if let Some(log) = &mut inner.log {
            log.push(Record::Write(from, data.to_vec()));
        }
        match u32::try_from(data.len()) {
            Ok(count) => reply.written(count),
            Err(_) => reply.error(Errno::EFBIG),
        }
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        if let Some(log) = &mut self.0.0.lock().unwrap().log {
            log.push(Record::Flush);
        }
        reply.ok();
    }
}
