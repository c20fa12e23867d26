//! How are the bytes of a simulated disk read, written and made durable?
//!
//! Invariants:
//! - A transfer that is cut short moves whole units, at least one.
//! - A read that brings something else brings one sector of it.

use std::collections::BTreeSet;
use std::io;

use nix::errno::Errno;

use super::super::Space;
use super::node::Node;
use super::state::{Inode, Outcome, State};
use super::{Fault, SECTOR_BYTES};

/// Room on a disk without a limit.
const UNLIMITED_BYTES: u64 = 1 << 50;

impl State {
    pub(super) fn space(&mut self) -> io::Result<Space> {
        self.count_whole("space")?;
        let total_bytes = self.capacity.unwrap_or(UNLIMITED_BYTES);
        Ok(Space {
            total_bytes,
            free_bytes: total_bytes.saturating_sub(self.used_bytes()),
        })
    }

    /// Bytes of the files that have a name or a handle.
    pub(super) fn used_bytes(&self) -> u64 {
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
        let (asked, wrong) = match self.count("read")? {
            Outcome::Proceed => (bytes.len(), None),
            Outcome::Wrong(fault) => (bytes.len(), Some(fault)),
            Outcome::Short => (shortened(bytes.len(), align), None),
            Outcome::Fail(error) => return Err(error),
        };
        let file = self.file(inode)?;
        let start = usize::try_from(offset).map_or(file.live.len(), |at| at.min(file.live.len()));
        let moved = asked.min(file.live.len() - start);
        let sectors = start / SECTOR_BYTES..(start + moved).div_ceil(SECTOR_BYTES);
        if file.lost.range(sectors.clone()).next().is_some() {
            return Err(self.failed("read", Errno::EIO as i32));
        }
        bytes[..moved].copy_from_slice(&file.live[start..start + moved]);
        if let Some(fault) = wrong.filter(|_| moved > 0) {
            let index = sectors.start + self.random.below(sectors.len());
            let other = self.wrong_sector(inode, index, fault)?;
            let from = (index * SECTOR_BYTES).max(start);
            let inside = from - index * SECTOR_BYTES;
            let end = (start + moved).min((index + 1) * SECTOR_BYTES);
            let part = other.get(inside..inside + (end - from)).unwrap_or(&[]);
            bytes[from - start..][..part.len()].copy_from_slice(part);
        }
        self.read_bytes += moved as u64;
        Ok(moved)
    }

    /// What a disk may bring instead of a sector: what was there before, or what is elsewhere.
    fn wrong_sector(&mut self, inode: u64, index: usize, fault: Fault) -> io::Result<Box<[u8]>> {
        let file = self.file(inode)?;
        if fault == Fault::Stale
            && let Some(before) = file.before.get(&index)
        {
            return Ok(before.clone());
        }
        if fault == Fault::Stale && !self.freed.is_empty() {
            return Ok(self.freed[self.random.below(self.freed.len())].clone());
        }
        let mut others = Vec::new();
        for (number, inode_of) in &self.inodes {
            if let Node::File(file) = &inode_of.node {
                let sectors = 0..file.live.len() / SECTOR_BYTES;
                others.extend(
                    sectors
                        .filter(|i| (*number, *i) != (inode, index))
                        .map(|i| {
                            let start = i * SECTOR_BYTES;
                            &file.live[start..start + SECTOR_BYTES]
                        }),
                );
            }
        }
        Ok(match others.len() {
            0 => Box::default(),
            count => others[self.random.below(count)].into(),
        })
    }

    pub(super) fn write(
        &mut self,
        inode: u64,
        bytes: &[u8],
        offset: u64,
        align: usize,
    ) -> io::Result<usize> {
        let (moved, failed) = match self.count("write")? {
            Outcome::Proceed | Outcome::Wrong(_) => (bytes.len(), None),
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
            return Err(match failed {
                Some(error) => error,
                None => self.failed("write", self.full_errno as i32),
            });
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
                file.fail_sync(random);
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
}

/// Half of a transfer, in whole units, at least one (but not more than all).
fn shortened(bytes: usize, align: usize) -> usize {
    bytes.min((bytes / 2 / align).max(1) * align)
}
