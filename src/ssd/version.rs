//! Which parameter files exist, which version needs which, and how many of their rows are live?
//!
//! Invariants:
//! - File numbers and ranks rise and are never reused; a rank orders the copies of a key.
//! - A file is part of the versions of checkpoint ids in `[added, removed)`; `removed` is
//!   `u64::MAX` while it is in the current version.
//! - `live` of a current file equals the number of index entries that point into it.
//! - A file slot is used by one current file at a time; readers keep the file by its `Arc`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};

use super::data_file::{DataFile, SLOTS_MAX};
use super::held::{Held, Usage};
use super::hyper::HyperHistory;
use super::tables::TableHistory;
use crate::format::manifest::{CheckpointMeta, FileMeta, NOT_REMOVED};
use crate::sync::RwLock;
use crate::units::{CheckpointId, FileNumber, FileSlot};

/// How far a reader that follows the store has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// It has everything up to this checkpoint.
    pub checkpoint: CheckpointId,
    /// The interval of that checkpoint's youngest rows; 0: not known.
    pub interval: u32,
}

/// Readers, by name.
pub type Cursors = BTreeMap<String, Cursor>;

/// A file and the checkpoints whose versions hold it.
#[derive(Clone, Debug)]
pub struct FileState {
    /// Meta as recorded, with the current `added` and `removed`.
    pub meta: FileMeta,
    /// Open while it is in the current version.
    pub file: Option<Arc<DataFile>>,
    /// What the manifest knows of it: nothing, or its `removed`.
    pub recorded: Option<CheckpointId>,
}

/// Files by slot, read on the hot path.
pub type Slots = RwLock<Vec<Option<Arc<DataFile>>>>;

/// All versions that matter: the current one and those of retained checkpoints.
#[derive(Debug, Default)]
pub struct Versions {
    /// Files by number, of any version.
    pub files: BTreeMap<FileNumber, FileState>,
    /// What each data directory holds.
    held: Vec<Held>,
    /// Files that are not current, by number.
    retired: BTreeSet<FileNumber>,
    /// Free slots below the highest.
    free_slots: Vec<FileSlot>,
    /// Next file number.
    pub next_number: FileNumber,
    /// File numbers below this are reserved durably.
    pub number_limit: FileNumber,
    /// Next rank.
    pub next_rank: u64,
    /// Id that the next captured checkpoint gets.
    pub next_checkpoint: CheckpointId,
    /// Retained, durable checkpoints, oldest first.
    pub checkpoints: Vec<CheckpointMeta>,
    /// Tables of each of them.
    pub tables: TableHistory,
    /// Hyperparameters of each of them.
    pub hyper: HyperHistory,
    /// Readers and what they have.
    pub cursors: Cursors,
    /// A captured checkpoint that is not durable yet.
    pub captured: Option<CheckpointId>,
    /// Current files that a compaction could not read, by number, and why: not chosen again.
    pub aside: BTreeMap<FileNumber, String>,
}

impl Versions {
    /// Whether a retained (or captured) checkpoint or the current version needs a file.
    #[must_use]
    pub fn is_needed(&self, meta: &FileMeta) -> bool {
        let holds = |id: CheckpointId| meta.added <= id && id < meta.removed;
        meta.removed == NOT_REMOVED
            || self.checkpoints.iter().any(|c| holds(c.id))
            || self.captured.is_some_and(holds)
    }

    /// A new rank.
    pub fn take_rank(&mut self) -> u64 {
        self.next_rank += 1;
        self.next_rank - 1
    }

    /// A slot for a new file; `slots` grows as needed.
    pub fn take_slot(&mut self, slots: &Slots) -> Option<FileSlot> {
        if let Some(slot) = self.free_slots.pop() {
            return Some(slot);
        }
        let mut all = slots.write().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= SLOTS_MAX {
            return None;
        }
        all.push(None);
        Some(FileSlot::new(all.len() - 1))
    }

    /// Adds a file to the current version.
    pub fn install(&mut self, slots: &Slots, file: Arc<DataFile>) {
        let mut all = slots.write().unwrap_or_else(PoisonError::into_inner);
        all[file.slot.index()] = Some(Arc::clone(&file));
        self.held_mut(file.meta.directory).enter(Arc::clone(&file));
        let state = FileState {
            meta: file.meta,
            file: Some(file),
            recorded: None,
        };
        let before = self.files.insert(state.meta.number, state);
        assert!(before.is_none(), "file numbers are never reused");
    }

    /// Notes a file that is not open; `recorded` as in [`FileState`].
    pub fn insert_closed(&mut self, meta: FileMeta, recorded: Option<CheckpointId>) {
        let file = None;
        let state = FileState {
            meta,
            file,
            recorded,
        };
        let before = self.files.insert(meta.number, state);
        assert!(before.is_none(), "a file is made known once");
        self.retired.insert(meta.number);
        self.held_mut(meta.directory).insert_closed(meta.bytes);
    }

    /// Makes a known file current, at its slot.
    pub fn opened(&mut self, slots: &Slots, file: Arc<DataFile>) {
        let number = file.meta.number;
        let Some(state) = self.files.get_mut(&number) else {
            return;
        };
        let bytes = state.meta.bytes;
        let mut all = slots.write().unwrap_or_else(PoisonError::into_inner);
        all[file.slot.index()] = Some(Arc::clone(&file));
        state.file = Some(Arc::clone(&file));
        self.retired.remove(&number);
        let held = self.held_mut(file.meta.directory);
        held.forget(bytes);
        held.enter(file);
    }

    fn held_mut(&mut self, directory: u32) -> &mut Held {
        let at = directory as usize;
        if self.held.len() <= at {
            self.held.resize_with(at + 1, Held::default);
        }
        &mut self.held[at]
    }

    /// Tombstones of this interval and older are in nobody's changes: neither a retained checkpoint nor a
    /// reader's is older. It only rises.
    #[must_use]
    pub fn horizon(&self) -> u32 {
        let retained = self.checkpoints.iter().map(|c| c.interval);
        let readers = self.cursors.values().map(|at| at.interval);
        // Beside the first checkpoint on its way all may be younger than it.
        let none = if self.captured.is_some() { 0 } else { u32::MAX };
        retained.chain(readers).min().unwrap_or(none)
    }

    /// What the data directories hold, by index; those behind the last hold nothing.
    #[must_use]
    pub fn held(&self) -> &[Held] {
        &self.held
    }

    /// Notes what a commit that is durable has told the manifest of files.
    pub fn note_recorded(&mut self, recorded: Vec<(FileNumber, Option<CheckpointId>)>) {
        for (number, as_of) in recorded {
            if let Some(state) = self.files.get_mut(&number) {
                state.recorded = as_of;
            }
        }
    }

    /// Takes a file out of the current version. Its slot is free again: no index entry points
    /// to it any more.
    pub fn retire(&mut self, slots: &Slots, number: FileNumber) {
        let next = self.next_checkpoint;
        let Some(state) = self.files.get_mut(&number) else {
            return;
        };
        state.meta.removed = next;
        if let Some(file) = state.file.take() {
            assert!(
                file.live_entries() == 0,
                "a file with live rows is never retired"
            );
            let mut all = slots.write().unwrap_or_else(PoisonError::into_inner);
            all[file.slot.index()] = None;
            self.free_slots.push(file.slot);
            let held = self.held_mut(file.meta.directory);
            held.leave(&file);
            held.insert_closed(file.meta.bytes);
            self.retired.insert(number);
        }
        self.aside.remove(&number);
    }

    /// Files of the current version.
    pub fn current(&self) -> impl Iterator<Item = &Arc<DataFile>> {
        self.files.values().filter_map(|s| s.file.as_ref())
    }

    /// Bytes on disk by why they are there.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.usage_of(|_| true)
    }

    /// The same of some data directories.
    ///
    /// # Cost
    /// A few numbers a directory.
    #[must_use]
    pub fn usage_of(&self, counts: impl Fn(usize) -> bool) -> Usage {
        let held = self.held.iter().enumerate().filter(|(d, _)| counts(*d));
        held.fold(Usage::default(), |sum, (_, held)| sum.plus(&held.usage()))
    }

    /// What a compaction may choose from in a data directory: all but the files set aside.
    #[must_use]
    pub fn choosable(&self, directory: usize) -> Usage {
        let usage = self.usage_of(|d| d == directory);
        self.aside_in(directory).fold(usage, |left, file| Usage {
            current_bytes: left.current_bytes.saturating_sub(file.meta.bytes),
            live_bytes: left.live_bytes.saturating_sub(file.live_bytes()),
            files: left.files.saturating_sub(1),
            ..left
        })
    }

    /// The files of a data directory that are set aside.
    pub fn aside_in(&self, directory: usize) -> impl Iterator<Item = &Arc<DataFile>> {
        let held = self.held.get(directory);
        let files = self.aside.keys();
        files.filter_map(move |number| held?.current.get(number))
    }

    /// Removes from memory, and returns, the files that nothing needs.
    pub fn take_garbage(&mut self) -> Vec<FileState> {
        let retired: Vec<FileNumber> = self.retired.iter().copied().collect();
        self.take_garbage_among(&retired)
    }

    /// As [`Versions::take_garbage`], where only these can have become garbage.
    pub fn take_garbage_among(&mut self, numbers: &[FileNumber]) -> Vec<FileState> {
        let mut garbage = Vec::new();
        for number in numbers {
            let needed = |state: &FileState| self.is_needed(&state.meta);
            if self.files.get(number).is_none_or(needed) {
                continue;
            }
            if let Some(state) = self.files.remove(number) {
                self.retired.remove(number);
                self.held_mut(state.meta.directory).forget(state.meta.bytes);
                garbage.push(state);
            }
        }
        garbage
    }
}

#[cfg(test)]
mod tests;
