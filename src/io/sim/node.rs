//! What is durable of a file or a directory, and what is only written?
//!
//! Invariants:
//! - A file's durable bytes are never more than its live ones.
//! - The durable state with all unsynced changes applied, in order, is the live state, unless a
//!   sync failed.
//! - Contents are shared between a disk and what crashes leave of it, and copied when written.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

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
#[derive(Clone)]
pub(super) struct Sector {
    pub(super) index: usize,
    pub(super) bytes: Box<[u8]>,
}

/// The bytes of a file, and their digest once somebody asked for it.
#[derive(Default)]
pub(super) struct Content {
    bytes: Vec<u8>,
    digest: OnceLock<u128>,
}

impl Content {
    fn new(bytes: Vec<u8>) -> Content {
        let digest = OnceLock::new();
        Content { bytes, digest }
    }

    /// What `of` says of the bytes; kept, so it has to be the same function each time.
    pub(super) fn digest(&self, of: fn(&[u8]) -> u128) -> u128 {
        *self.digest.get_or_init(|| of(&self.bytes))
    }

    /// The bytes, to be changed: a copy of their own if somebody else has them.
    fn bytes_mut(content: &mut Arc<Content>) -> &mut Vec<u8> {
        let content = Arc::make_mut(content);
        content.digest = OnceLock::new();
        &mut content.bytes
    }
}

impl Clone for Content {
    fn clone(&self) -> Content {
        Content::new(self.bytes.clone())
    }
}

impl Deref for Content {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A file, whatever its names.
#[derive(Clone)]
pub(super) struct FileNode {
    pub(super) live: Arc<Content>,
    pub(super) durable: Arc<Content>,
    pub(super) unsynced: Vec<Sector>,
    /// What sectors held before they were last written over, by index.
    pub(super) before: BTreeMap<usize, Box<[u8]>>,
    /// Sectors that can't be read any more, by index.
    pub(super) lost: BTreeSet<usize>,
}

impl FileNode {
    /// A file that is durable as it is.
    pub(super) fn durable(bytes: Vec<u8>) -> FileNode {
        FileNode::shared(Arc::new(Content::new(bytes)))
    }

    /// One that is durable with bytes that others may have too.
    pub(super) fn shared(content: Arc<Content>) -> FileNode {
        FileNode {
            live: Arc::clone(&content),
            durable: content,
            unsynced: Vec::new(),
            before: BTreeMap::new(),
            lost: BTreeSet::new(),
        }
    }

    pub(super) fn write(&mut self, bytes: &[u8], offset: usize) {
        let end = offset + bytes.len();
        let live = Content::bytes_mut(&mut self.live);
        for index in offset / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES) {
            let start = index * SECTOR_BYTES;
            let sector_end = live.len().min(start + SECTOR_BYTES);
            if start < sector_end {
                self.before.insert(index, live[start..sector_end].into());
            }
        }
        if live.len() < end {
            live.resize(end, 0);
        }
        live[offset..end].copy_from_slice(bytes);
        for index in offset / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES) {
            let start = index * SECTOR_BYTES;
            let sector_end = live.len().min(start + SECTOR_BYTES);
            self.unsynced.push(Sector {
                index,
                bytes: live[start..sector_end].into(),
            });
        }
    }

    pub(super) fn sync(&mut self) {
        if self.unsynced.is_empty() && self.durable.len() == self.live.len() {
            return;
        }
        let durable = Content::bytes_mut(&mut self.durable);
        durable.resize(self.live.len(), 0);
        for sector in self.unsynced.drain(..) {
            let start = sector.index * SECTOR_BYTES;
            durable[start..start + sector.bytes.len()].copy_from_slice(&sector.bytes);
        }
    }

    /// Loses each unsynced sector with a chance of one half, though reads still see it.
    pub(super) fn fail_sync(&mut self, random: &mut Random) {
        self.unsynced.retain(|_| random.below(2) == 0);
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
        for content in [&mut self.durable, &mut self.live] {
            if at < content.len() {
                Content::bytes_mut(content)[at] ^= mask;
            }
        }
        at < self.live.len()
    }
}

/// One change of a directory, in the order of the calls.
#[derive(Clone)]
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
    /// Each of two names with what it stands for from now on.
    Exchange([(String, u64); 2]),
}

impl NameChange {
    pub(super) fn apply(&self, names: &mut BTreeMap<String, u64>) {
        match self {
            NameChange::Set { name, inode } => {
                names.insert(name.clone(), *inode);
            }
            NameChange::Remove { name } => {
                names.remove(name);
            }
            NameChange::Rename {
                source,
                target,
                inode,
            } => {
                names.remove(source);
                names.insert(target.clone(), *inode);
            }
            NameChange::Exchange(pairs) => names.extend(pairs.iter().cloned()),
        }
    }
}

/// A directory.
#[derive(Clone, Default)]
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

    /// Exchanges two names, given with what each stood for.
    pub(super) fn exchange(&mut self, one: (&str, u64), other: (&str, u64)) {
        let pairs = [(one.0.to_owned(), other.1), (other.0.to_owned(), one.1)];
        self.live.extend(pairs.iter().cloned());
        self.unsynced.push(NameChange::Exchange(pairs));
    }

    /// Makes what changed durable, but for what a failed sync lost.
    pub(super) fn sync(&mut self) {
        for change in self.unsynced.drain(..) {
            change.apply(&mut self.durable);
        }
    }

    /// Loses some unsynced changes for good, though lists still show them: the last of them, or
    /// each with a chance of one half.
    pub(super) fn fail_sync(&mut self, random: &mut Random) {
        if random.below(2) == 0 {
            self.unsynced
                .truncate(random.below(self.unsynced.len() + 1));
        } else {
            self.unsynced.retain(|_| random.below(2) == 0);
        }
    }

    /// Every inode that a name leads to, or may lead to after a crash.
    pub(super) fn inodes(&self) -> impl Iterator<Item = u64> {
        let changed = self.unsynced.iter().filter_map(|change| match change {
            NameChange::Set { inode, .. } | NameChange::Rename { inode, .. } => Some(*inode),
            // What they stand for had these names, or others, before.
            NameChange::Remove { .. } | NameChange::Exchange(_) => None,
        });
        self.live
            .values()
            .chain(self.durable.values())
            .copied()
            .chain(changed)
    }
}

/// What an inode is.
#[derive(Clone)]
pub(super) enum Node {
    File(FileNode),
    Directory(DirectoryNode),
}
