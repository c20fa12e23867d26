//! What our file systems of FUSE say of a file.

use std::time::UNIX_EPOCH;

use fuser::{FileAttr, FileType, INodeNo};

/// Size of a block, as told.
pub const BLOCK_BYTES: u32 = 4096;

/// A file or directory of root's, without times.
pub fn attributes(number: INodeNo, kind: FileType, mode: u16, size: u64) -> FileAttr {
    FileAttr {
        ino: number,
        size,
        blocks: size.div_ceil(512),
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm: mode,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}
