//! What is durable of a file or a directory, and what is only written?
//!
//! Invariants:
//! - A file's durable bytes are never more than its live ones.
//! - The durable state with all unsynced changes applied, in order, is the live state, unless a
//!   sync failed.

use std::collections::{BTreeMap, BTreeSet};

use super::SECTOR_BYTES;

/// A small generator (splitmix64): equal seeds give equal disks.
#[derive(Debug)]
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number below `bound` (0 for 0).
    pub(super) fn below(&mut self, bound: usize) -> usize {
        let wide = u128::from(self.next()) * bound as u128;
        usize::try_from(wide >> 64).unwrap_or(0)
    }
}

/// One sector as it was after an unsynced write (less than a sector at the end of a file).
pub(super) struct Sector {
    pub(super) index: usize,
    pub(super) bytes: Box<[u8]>,
}

/// A file, whatever its names.
pub(super) struct FileNode {
    pub(super) live: Vec<u8>,
    pub(super) durable: Vec<u8>,
    pub(super) unsynced: Vec<Sector>,
    /// Sectors that can't be read any more, by index.
    pub(super) lost: BTreeSet<usize>,
}

impl FileNode {
    /// A file that is durable as it is.
    pub(super) fn durable(bytes: Vec<u8>) -> FileNode {
        FileNode {
            live: bytes.clone(),
            durable: bytes,
            unsynced: Vec::new(),
            lost: BTreeSet::new(),
        }
    }

    pub(super) fn write(&mut self, bytes: &[u8], offset: usize) {
        let end = offset + bytes.len();
        if self.live.len() < end {
            self.live.resize(end, 0);
        }
        self.live[offset..end].copy_from_slice(bytes);
        for index in offset / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES) {
            let start = index * SECTOR_BYTES;
            let sector_end = self.live.len().min(start + SECTOR_BYTES);
            self.unsynced.push(Sector {
                index,
                bytes: self.live[start..sector_end].into(),
            });
        }
    }

    pub(super) fn sync(&mut self) {
        self.durable.resize(self.live.len(), 0);
        for sector in self.unsynced.drain(..) {
            let start = sector.index * SECTOR_BYTES;
            self.durable[start..start + sector.bytes.len()].copy_from_slice(&sector.bytes);
        }
    }

    /// Flips bits of a byte wherever it is held; false beyond the end.
    pub(super) fn flip(&mut self, at: usize, mask: u8) -> bool {
        let (index, inside) = (at / SECTOR_BYTES, at % SECTOR_BYTES);
        let sectors = self
            .unsynced
            .iter_mut()
            .filter(|sector| sector.index == index);
        for byte in sectors.filter_map(|sector| sector.bytes.get_mut(inside)) {
            *byte ^= mask;
        }
        if let Some(byte) = self.durable.get_mut(at) {
            *byte ^= mask;
        }
        self.live.get_mut(at).map(|byte| *byte ^= mask).is_some()
    }
}

/// One change of a directory, in the order of the calls.
pub(super) enum NameChange {
    Set {
        name: String,
        inode: u64,
    },
    Remove {
        name: String,
    },
    Rename {
        source: String,
        target: String,
        inode: u64,
    },
}

/// A directory.
#[derive(Default)]
pub(super) struct DirectoryNode {
    pub(super) live: BTreeMap<String, u64>,
    pub(super) durable: BTreeMap<String, u64>,
    pub(super) unsynced: Vec<NameChange>,
}

impl DirectoryNode {
    /// A directory that is durable as it is.
    pub(super) fn durable(names: BTreeMap<String, u64>) -> DirectoryNode {
        DirectoryNode {
            live: names.clone(),
            durable: names,
            unsynced: Vec::new(),
        }
    }

    pub(super) fn set(&mut self, name: &str, inode: u64) {
        self.live.insert(name.to_owned(), inode);
        self.unsynced.push(NameChange::Set {
            name: name.to_owned(),
            inode,
        });
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.live.remove(name);
        self.unsynced.push(NameChange::Remove {
            name: name.to_owned(),
        });
    }

    pub(super) fn rename(&mut self, source: &str, target: &str, inode: u64) {
        self.live.remove(source);
        self.live.insert(target.to_owned(), inode);
        let (source, target) = (source.to_owned(), target.to_owned());
        self.unsynced.push(NameChange::Rename {
            source,
            target,
            inode,
        });
    }

    /// Every inode that a name leads to, or may lead to after a crash.
    pub(super) fn inodes(&self) -> impl Iterator<Item = u64> {
        let changed = self.unsynced.iter().filter_map(|change| match change {
            NameChange::Set { inode, .. } | NameChange::Rename { inode, .. } => Some(*inode),
            NameChange::Remove { .. } => None,
        });
        self.live
            .values()
            .chain(self.durable.values())
            .copied()
            .chain(changed)
    }
}

/// What an inode is.
pub(super) enum Node {
    File(FileNode),
    Directory(DirectoryNode),
}
