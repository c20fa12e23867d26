//! Which rows are read together?
//!
//! A thread reads the missing rows of all its shards through one queue: it empties once a batch, not
//! once a shard, and neighbours in a file share a read whichever shards they are of. Rows come in lots: the
//! first are few, so that the device has something to do.

use std::sync::Arc;

use super::super::core::ShardCell;
use super::super::lease::PartMap;
use super::batch::{Cell, open};
use crate::mem::Flags;
use crate::ssd::data_file::{DataFile, Location};
use crate::ssd::index::Files;
use crate::ssd::reader::{RowBatch, Want, pin_files};
use crate::units::{Slot, narrow, to_usize};

/// Where a row goes that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Goal {
    shard: u32,
    /// The first part of its table.
    ordinal: u32,
    slot: Slot,
    /// Where it stands among the missing of its shard.
    missing: u32,
}

/// Rows that have slots and are to be read, of several shards and tables.
#[derive(Debug, Default)]
pub(super) struct Reads {
    wants: Vec<Want>,
    /// The files that they are in, by rising slot.
    files: Vec<Arc<DataFile>>,
    /// By the tag of a want.
    goals: Vec<Goal>,
}

impl Reads {
    /// Adds a row of a shard (the ordinal of its table, its slot, its number among the missing), to be read (where it is,
    /// its key, its width).
    pub(super) fn push(
        &mut self,
        shard: usize,
        (ordinal, slot, missing): (u32, Slot, u32),
        (location, key, row_f32s): (Location, u64, u32),
    ) {
        let want = Want {
            location,
            key,
            tag: 0,
            row_f32s,
        };
        let goal = Goal {
            shard: narrow(shard),
            ordinal,
            slot,
            missing,
        };
        self.add(want, goal);
    }

    /// Adds a row under the next tag.
    fn add(&mut self, want: Want, goal: Goal) {
        let tag = narrow(self.goals.len());
        self.wants.push(Want { tag, ..want });
        self.goals.push(goal);
    }

    /// Keeps the files of the rows: to be called under the lock under which their locations were looked up.
    pub(super) fn pin(&mut self, files: &Files) {
        self.files = pin_files(files, &self.wants);
    }

    /// Adds rows, of the same shards or further ones. Gives them back where a slot of a file is another file's by now:
    /// they are a lot of their own.
    pub(super) fn join(&mut self, more: Reads) -> Result<(), Reads> {
        if more.is_empty() {
            return Ok(());
        }
        if self.is_empty() {
            *self = more;
            return Ok(());
        }
        let mut files = [&self.files[..], &more.files].concat();
        files.sort_by_key(|file| file.slot);
        files.dedup_by(|a, b| Arc::ptr_eq(a, b));
        if files.windows(2).any(|pair| pair[0].slot == pair[1].slot) {
            return Err(more);
        }
        self.files = files;
        self.wants.extend(renamed(more.wants, self.goals.len()));
        self.goals.extend(more.goals);
        Ok(())
    }

    /// Cuts the rows into slices with as many of each data directory, this many at most; what stands together in a
    /// file is in one slice, but for its ends.
    pub(super) fn slices(mut self, rows_max: usize) -> Vec<Reads> {
        self.wants.sort_unstable_by_key(|want| want.location);
        let mut number = 0;
        let mut by_directory: Vec<Vec<(&Arc<DataFile>, Want)>> = Vec::new();
        for wants in self
            .wants
            .chunk_by(|a, b| a.location.slot() == b.location.slot())
        {
            while self.files[number].slot != wants[0].location.slot() {
                number += 1;
                assert!(number < self.files.len(), "every wanted file was pinned");
            }
            let file = &self.files[number];
            let directory = to_usize(file.meta.directory);
            if by_directory.len() <= directory {
                by_directory.resize_with(directory + 1, Vec::new);
            }
            by_directory[directory].extend(wants.iter().map(|want| (file, *want)));
        }
        let longest = by_directory.iter().map(Vec::len).max().unwrap_or(0);
        let count = longest.div_ceil(rows_max);
        let mut slices: Vec<Reads> = (0..count).map(|_| Reads::default()).collect();
        for rows in &by_directory {
            for (i, slice) in slices.iter_mut().enumerate() {
                for (file, want) in &rows[rows.len() * i / count..rows.len() * (i + 1) / count] {
                    slice.add(*want, self.goals[want.tag as usize]);
                    // Rows of a file follow each other.
                    let last = slice.files.last();
                    if last.is_none_or(|last| !Arc::ptr_eq(last, file)) {
                        slice.files.push(Arc::clone(file));
                    }
                }
            }
        }
        for slice in &mut slices {
            slice.files.sort_by_key(|file| file.slot);
        }
        slices
    }

    pub(super) fn is_empty(&self) -> bool {
        self.goals.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.goals.len()
    }

    /// The ordinal of the first row's table; none if there is no row.
    pub(super) fn first_table(&self) -> Option<usize> {
        self.goals.first().map(|goal| goal.ordinal as usize)
    }

    /// None of them is read.
    pub(super) fn fail(&self, shards: &[ShardCell]) {
        fail(&self.goals, shards);
    }
}

/// Wants behind so many others, whose tags go on.
fn renamed(wants: Vec<Want>, before: usize) -> impl Iterator<Item = Want> {
    let before: u32 = narrow(before);
    wants.into_iter().map(move |want| Want {
        tag: before + want.tag,
        ..want
    })
}

/// Those of some rows that nothing was read for have failed.
fn fail(goals: &[Goal], shards: &[ShardCell]) {
    for of_shard in goals.chunk_by(|a, b| a.shard == b.shard) {
        let cell = &shards[of_shard[0].shard as usize];
        let mut shard = cell.lock();
        for goal in of_shard {
            let cache = &mut shard.cache;
            if cache.flags(goal.slot).any(Flags::LOADING) {
                cache.set(goal.slot, Flags::FAILED);
                cache.clear(goal.slot, Flags::LOADING);
            }
        }
        drop(shard);
        cell.notify();
    }
}

/// Where rows go that are read.
#[derive(Debug, Default)]
pub(super) struct Goals {
    by_tag: Vec<Goal>,
    /// What one step has read, with the place of each row: by shard.
    read: Vec<(Goal, usize)>,
}

impl Goals {
    /// Adds rows; gives what is to be read for them.
    pub(super) fn take(&mut self, reads: Reads) -> (Vec<Arc<DataFile>>, Vec<Want>) {
        let wants = renamed(reads.wants, self.by_tag.len());
        self.by_tag.extend(reads.goals);
        (reads.files, wants.collect())
    }

    pub(super) fn len(&self) -> usize {
        self.by_tag.len()
    }

    /// Tables of the rows.
    pub(super) fn tables(&self) -> usize {
        let mut ordinals: Vec<u32> = self.by_tag.iter().map(|goal| goal.ordinal).collect();
        ordinals.sort_unstable();
        ordinals.dedup();
        ordinals.len()
    }

    /// Fills the slots of rows that were read, shard after shard, and gives the rows to the caller.
    pub(super) fn fill(
        &mut self,
        (shards, map, cells): (&[ShardCell], &PartMap, &[Cell<'_>]),
        batch: &RowBatch,
    ) {
        let width = |goal: &Goal| map.table(goal.ordinal as usize).descriptor.row_f32s();
        self.read.clear();
        let mut start = 0;
        for tag in &batch.tags {
            let goal = self.by_tag[*tag as usize];
            self.read.push((goal, start));
            start += width(&goal);
        }
        self.read
            .sort_unstable_by_key(|(goal, start)| (goal.shard, *start));
        for of_shard in self.read.chunk_by(|(a, _), (b, _)| a.shard == b.shard) {
            let s = of_shard[0].0.shard as usize;
            let (mut pending, cell) = (open(&cells[s]), &shards[s]);
            let mut shard = cell.lock();
            for (goal, start) in of_shard {
                let cache = &mut shard.cache;
                // Where the flag is gone, a put has filled it meanwhile.
                if cache.flags(goal.slot).any(Flags::LOADING) {
                    let row = &batch.rows[*start..*start + width(goal)];
                    cache.row_mut(goal.slot).copy_from_slice(row);
                    cache.clear(goal.slot, Flags::LOADING);
                    pending.deliver(goal.missing, row);
                }
            }
            drop(shard);
            cell.notify();
        }
    }

    /// Those that nothing was read for have failed.
    pub(super) fn fail(&self, shards: &[ShardCell]) {
        fail(&self.by_tag, shards);
    }
}
