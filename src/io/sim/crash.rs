//! What is left after a power cut?
//!
//! Invariants:
//! - What was synced is kept in every mode.
//! - A file with several names is the same file after the crash, if several of them are kept.

use std::collections::BTreeMap;

use super::node::{DirectoryNode, FileNode, NameChange, Node, Random};
use super::state::{Inode, ROOT, State};
use super::{CrashMode, SECTOR_BYTES};

impl State {
    /// The disk after a crash: all that is reachable by the names that were kept.
    pub(super) fn crashed(&self, seed: u64, mode: CrashMode) -> State {
        let mut random = Random(seed);
        let mut state = State::new(random.next());
        state.capacity = self.capacity;
        state.next_inode = self.next_inode;
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
                Node::File(file) => Node::File(kept_file(file, mode, &mut random)),
                Node::Directory(directory) => {
                    let names = kept_names(directory, mode, &mut random);
                    wanted.extend(names.values());
                    Node::Directory(DirectoryNode::durable(names))
                }
            };
            inodes.insert(number, Inode { node, handles: 0 });
        }
        state.inodes = inodes;
        state
    }
}

fn kept_names(
    directory: &DirectoryNode,
    mode: CrashMode,
    random: &mut Random,
) -> BTreeMap<String, u64> {
    let changes = &directory.unsynced;
    let prefix = random.below(changes.len() + 1);
    let in_order = random.below(2) == 0;
    let mut names = directory.durable.clone();
    for (index, change) in changes.iter().enumerate() {
        let kept = match mode {
            CrashMode::KeepNone => false,
            CrashMode::KeepAll => true,
            CrashMode::Random if in_order => index < prefix,
            CrashMode::Random => random.below(2) == 0,
        };
        if kept {
            apply(change, &mut names);
        }
    }
    names
}

fn apply(change: &NameChange, names: &mut BTreeMap<String, u64>) {
    match change {
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
    }
}

fn kept_file(file: &FileNode, mode: CrashMode, random: &mut Random) -> FileNode {
    let quarters_kept = random.below(5);
    let (durable, live) = (file.durable.len(), file.live.len());
    let bytes = match mode {
        CrashMode::KeepNone => durable,
        CrashMode::KeepAll => live,
        CrashMode::Random => match random.below(4) {
            0 => durable,
            1 => live,
            _ => durable + random.below(live - durable + 1),
        },
    };
    let mut image = file.durable.clone();
    image.resize(live, 0);
    for sector in &file.unsynced {
        let kept = match mode {
            CrashMode::KeepNone => false,
            CrashMode::KeepAll => true,
            CrashMode::Random => random.below(4) < quarters_kept,
        };
        if kept {
            let start = sector.index * SECTOR_BYTES;
            image[start..start + sector.bytes.len()].copy_from_slice(&sector.bytes);
        }
    }
    image.truncate(bytes);
    FileNode::durable(image)
}
