//! What is left after a power cut?
//!
//! Invariants:
//! - What was synced is kept in every mode.
//! - A file with several names is the same file after the crash, if several of them are kept.
//! - A sector that could not be read before can't be read after.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::node::{DirectoryNode, FileNode, Node, Random};
use super::state::{Inode, ROOT, State};
use super::{CrashMode, Remnants, SECTOR_BYTES};

/// A crash being worked out.
struct Cut<'a> {
    mode: CrashMode,
    remnants: Remnants,
    /// Sectors of files that are no more.
    freed: &'a VecDeque<Box<[u8]>>,
    random: Random,
}

impl State {
    /// The disk after a crash: all that is reachable by the names that were kept.
    pub(super) fn crashed(&self, seed: u64, mode: CrashMode) -> State {
        let mut random = Random(seed);
        let mut state = State::new(random.next());
        state.inherit(self);
        let mut cut = Cut {
            mode,
            remnants: self.remnants,
            freed: &self.freed,
            random,
        };
        let mut wanted = vec![ROOT];
        let mut inodes = BTreeMap::new();
        while let Some(number) = wanted.pop() {
            let Some(inode) = self.inodes.get(&number) else {
                continue;
            };
            if inodes.contains_key(&number) {
                continue;
            }
            let node = match &inode.node {
                Node::File(file) => Node::File(cut.kept_file(file)),
                Node::Directory(directory) => {
                    let names = cut.kept_names(directory);
                    wanted.extend(names.values());
                    Node::Directory(DirectoryNode::durable(names))
                }
            };
            inodes.insert(number, Inode { node, handles: 0 });
        }
        state.inodes = inodes;
        state
    }

    /// The disk when its process is killed: nothing is lost, and nothing more is durable.
    pub(super) fn killed(&self, seed: u64) -> State {
        let mut state = State::new(seed);
        state.inherit(self);
        let inodes = self.inodes.iter().map(|(number, inode)| {
            let node = inode.node.clone();
            (*number, Inode { node, handles: 0 })
        });
        state.inodes = inodes.collect();
        state
    }
}

impl Cut<'_> {
    fn kept_names(&mut self, directory: &DirectoryNode) -> BTreeMap<String, u64> {
        let changes = &directory.unsynced;
        let prefix = self.random.below(changes.len() + 1);
        let in_order = self.random.below(2) == 0;
        let mut names = directory.durable.clone();
        for (index, change) in changes.iter().enumerate() {
            let kept = match self.mode {
                CrashMode::KeepNone => false,
                CrashMode::KeepAll => true,
                CrashMode::Random if in_order => index < prefix,
                CrashMode::Random => self.random.below(2) == 0,
            };
            if kept {
                change.apply(&mut names);
            }
        }
        names
    }

    fn kept_file(&mut self, file: &FileNode) -> FileNode {
        let mut kept = self.kept_content(file);
        let sectors = kept.live.len().div_ceil(SECTOR_BYTES);
        kept.lost = file.lost.range(..sectors).copied().collect();
        kept
    }

    fn kept_content(&mut self, file: &FileNode) -> FileNode {
        let quarters_kept = self.random.below(5);
        let (durable, live) = (file.durable.len(), file.live.len());
        let bytes = match self.mode {
            CrashMode::KeepNone => durable,
            CrashMode::KeepAll => live,
            CrashMode::Random => match self.random.below(4) {
                0 => durable,
                1 => live,
                _ => durable + self.random.below(live - durable + 1),
            },
        };
        if file.unsynced.is_empty() && bytes == durable {
            return FileNode::shared(Arc::clone(&file.durable));
        }
        let mut image = file.durable.to_vec();
        image.resize(live, 0);
        self.fill(&mut image, durable);
        for sector in &file.unsynced {
            let kept = match self.mode {
                CrashMode::KeepNone => false,
                CrashMode::KeepAll => true,
                CrashMode::Random => self.random.below(4) < quarters_kept,
            };
            if kept {
                let start = sector.index * SECTOR_BYTES;
                image[start..start + sector.bytes.len()].copy_from_slice(&sector.bytes);
            }
        }
        image.truncate(bytes);
        FileNode::durable(image)
    }

    /// What stands in the sectors behind the durable length, until something kept is put there.
    fn fill(&mut self, image: &mut [u8], durable: usize) {
        let random_remnants = self.mode == CrashMode::Random && self.remnants == Remnants::Junk;
        let first = durable.div_ceil(SECTOR_BYTES) * SECTOR_BYTES;
        if !random_remnants || first >= image.len() {
            return;
        }
        for sector in image[first..].chunks_mut(SECTOR_BYTES) {
            match self.random.below(3) {
                0 => {}
                1 if !self.freed.is_empty() => {
                    let old = &self.freed[self.random.below(self.freed.len())];
                    let bytes = old.len().min(sector.len());
                    sector[..bytes].copy_from_slice(&old[..bytes]);
                }
                _ => sector.fill_with(|| self.random.next().to_le_bytes()[0]),
            }
        }
    }
}
