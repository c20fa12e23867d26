//! Which keys are lost, and does an older copy of them remain?
//!
//! - A lost copy that a newer one had replaced is no loss.
//! - What can't be named is counted.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::error::Result;
use crate::format::footer::RunKind;
use crate::ssd::data_file::DataFile;
use crate::ssd::index_snapshot::SnapshotScan;
use crate::ssd::scan::{Contradicting, Merge, keys_window_bytes};
use crate::ssd::tables::TableState;
use crate::units::{FileNumber, mix64, narrow};

/// A row that could not be saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostRow {
    /// Its table.
    pub table: u32,
    /// Its key.
    pub key: u64,
    /// The damaged file that held its newest copy.
    pub file: FileNumber,
    /// What the key has now.
    pub now: Fate,
}

/// What a key has whose newest copy is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Its initialiser's row, as if it had never been pushed.
    Gone,
    /// An older copy.
    Older,
    /// An older copy, though it had been removed.
    Back,
}

/// A lost copy of a key.
#[derive(Clone, Copy, Debug)]
struct Copy {
    key: u64,
    file: FileNumber,
    rank: u64,
    tombstone: bool,
}

/// What is known of lost entries. What the index snapshot can name is not held: it is read when the
/// losses are told, so that a lost data directory takes no memory for its keys.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// Lost copies whose keys their own files still name.
    named: Vec<(u32, Copy)>,
    /// Entries without a name, by file, and the file's rank.
    nameless: HashMap<FileNumber, (u64, Vec<Range<u32>>)>,
}

/// Told of every lost row: its table's name, and itself; by table and mix64(key).
pub type LostRows<'a> = dyn FnMut(&str, LostRow) -> Result<()> + 'a;

/// How much was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Rows that have their initialiser's values now.
    pub gone: u64,
    /// Rows that have an older copy now.
    pub older: u64,
    /// Removed keys that are back.
    pub back: u64,
}

impl Counts {
    fn add(&mut self, now: Fate) {
        *match now {
            Fate::Gone => &mut self.gone,
            Fate::Older => &mut self.older,
            Fate::Back => &mut self.back,
        } += 1;
    }

    /// All of them.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.gone + self.older + self.back
    }
}

impl Losses {
    /// Notes what was lost of a file.
    pub fn add(
        &mut self,
        file: FileNumber,
        rank: u64,
        lost: Vec<(u32, u64)>,
        nameless: Vec<Range<u32>>,
    ) {
        self.named.extend(lost.into_iter().map(|(table, key)| {
            let tombstone = false;
            let copy = Copy {
                key,
                file,
                rank,
                tombstone,
            };
            (table, copy)
        }));
        if !nameless.is_empty() {
            self.nameless.insert(file, (rank, nameless));
        }
    }

    /// Whether nothing was lost.
    pub fn is_empty(&self) -> bool {
        self.named.is_empty() && self.nameless.is_empty()
    }

    /// Compares with what is left, and tells of each row that is lost. Entries without a name get one
    /// from the index snapshot, as far as it goes: it knows key, file and entry of what was live at its
    /// checkpoint. What it does not list of a file that it covers was stale, if all of it can be
    /// read. Of tables that were dropped nothing is told. Gives how many were told, and the number of entries without a name.
    ///
    /// # Errors
    /// `Io`, `Corrupt` of what is left; what `told` says.
    pub fn settle(
        mut self,
        snapshot: Vec<SnapshotScan>,
        left: &Survivors<'_>,
        tables: &[TableState],
        told: &mut LostRows<'_>,
    ) -> Result<(Counts, u64)> {
        let order = |(table, copy): &(u32, Copy)| (*table, mix64(copy.key));
        self.named.sort_unstable_by_key(order);
        let mut named = self.named.iter().copied().peekable();
        let mut of_snapshot = OfSnapshot::new(snapshot, &self.nameless);
        let window = keys_window_bytes(left.files.len());
        let mut counts = Counts::default();
        for (table, state) in (0..).zip(tables) {
            let mut merge = Merge::new(left.files, table, window)?.by_rank();
            loop {
                let at = |lost: Option<(u32, Copy)>| {
                    let lost = lost.filter(|(of, _)| *of == table);
                    lost.map(|(_, copy)| mix64(copy.key))
                };
                let here = [at(named.peek().copied()), at(of_snapshot.peek())];
                let Some(hash) = here.into_iter().flatten().min() else {
                    break;
                };
                let mut newest: Option<Copy> = None;
                let mut take = |copy: Copy| {
                    if newest.is_none_or(|n| n.rank < copy.rank) {
                        newest = Some(copy);
                    }
                };
                while at(named.peek().copied()) == Some(hash) {
                    named.next().into_iter().for_each(|(_, copy)| take(copy));
                }
                while at(of_snapshot.peek()) == Some(hash) {
                    of_snapshot.next().into_iter().for_each(&mut take);
                }
                let found = found_at(&mut merge, hash)?;
                if let Some(copy) = newest.filter(|_| !state.is_dropped)
                    && let Some(now) = fate(copy, found)
                {
                    counts.add(now);
                    let (key, file) = (copy.key, copy.file);
                    let row = LostRow {
                        table,
                        key,
                        file,
                        now,
                    };
                    told(&state.descriptor.name, row)?;
                }
            }
        }
        Ok((counts, of_snapshot.nameless()))
    }
}

/// Rank of the newest copy that is left of the key of this hash, and whether it says that the key was
/// removed. Hashes rise from call to call.
fn found_at(merge: &mut Merge, hash: u64) -> Result<Option<(u64, bool)>> {
    while let Some(index) = merge.newest()? {
        let cursor = merge.cursor(index);
        let at = cursor.entry().map_or(u64::MAX, |entry| entry.hash);
        if at >= hash {
            let tombstone = cursor.run.kind == RunKind::Tombstones;
            return Ok((at == hash).then_some((cursor.file.meta.rank, tombstone)));
        }
        merge.step()?;
    }
    Ok(None)
}

/// What the key of a lost copy has now; `None`: what it had.
fn fate(copy: Copy, found: Option<(u64, bool)>) -> Option<Fate> {
    match (copy.tombstone, found) {
        (_, Some((rank, _))) if rank > copy.rank => None,
        (true, None | Some((_, true))) => None,
        (true, Some((_, false))) => Some(Fate::Back),
        (false, None | Some((_, true))) => Some(Fate::Gone),
        (false, Some((_, false))) => Some(Fate::Older),
    }
}

/// The lost entries that the index snapshot names, by table and mix64(key).
struct OfSnapshot<'a> {
    parts: Vec<OfPart<'a>>,
    /// Lost entries of all files.
    entries: u64,
}

impl<'a> OfSnapshot<'a> {
    fn new(
        parts: Vec<SnapshotScan>,
        nameless: &'a HashMap<FileNumber, (u64, Vec<Range<u32>>)>,
    ) -> OfSnapshot<'a> {
        let parts = parts.into_iter().map(|scan| OfPart::new(scan, nameless));
        OfSnapshot {
            parts: parts.collect(),
            entries: nameless.values().map(|(_, r)| entries_of(r)).sum(),
        }
    }

    /// The part whose entry is the next.
    fn first(&mut self) -> Option<&mut OfPart<'a>> {
        let order = |part: &mut OfPart<'_>| part.peek().map(|(table, c)| (table, mix64(c.key)));
        let parts = self.parts.iter_mut();
        let standing = parts.filter_map(|part| Some((order(part)?, part)));
        standing.min_by_key(|(at, _)| *at).map(|(_, part)| part)
    }

    /// The entry it stands at.
    fn peek(&mut self) -> Option<(u32, Copy)> {
        self.first()?.peek()
    }

    fn next(&mut self) -> Option<Copy> {
        self.first()?.next()
    }

    /// Lost entries that have no name; it stands at its end.
    fn nameless(&self) -> u64 {
        let known: u64 = self.parts.iter().map(OfPart::known).sum();
        self.entries.saturating_sub(known)
    }
}

/// Those of one part.
struct OfPart<'a> {
    scan: Option<SnapshotScan>,
    at: usize,
    /// Lost entries of each file that it covers, by its place in its list, and how many were named.
    files: Vec<Option<OfFile<'a>>>,
    whole: bool,
}

struct OfFile<'a> {
    number: FileNumber,
    rank: u64,
    ranges: &'a [Range<u32>],
    named: u64,
}

fn entries_of(ranges: &[Range<u32>]) -> u64 {
    ranges.iter().map(|r| u64::from(r.end - r.start)).sum()
}

impl<'a> OfPart<'a> {
    fn new(
        scan: SnapshotScan,
        nameless: &'a HashMap<FileNumber, (u64, Vec<Range<u32>>)>,
    ) -> OfPart<'a> {
        let of_file = |number: &FileNumber| {
            nameless.get(number).map(|(rank, ranges)| OfFile {
                number: *number,
                rank: *rank,
                ranges,
                named: 0,
            })
        };
        OfPart {
            files: scan.covered.iter().map(of_file).collect(),
            scan: Some(scan),
            at: 0,
            whole: false,
        }
    }

    /// The entry it stands at.
    fn peek(&mut self) -> Option<(u32, Copy)> {
        loop {
            let scan = self.scan.as_mut()?;
            while let Some(entry) = scan.entries.get(self.at) {
                let file = self.files.get(entry.ordinal as usize);
                if let Some(Some(file)) = file
                    && holds(file.ranges, entry.entry)
                {
                    let copy = Copy {
                        key: entry.key,
                        file: file.number,
                        rank: file.rank,
                        tombstone: entry.tombstone,
                    };
                    return Some((scan.table, copy));
                }
                self.at += 1;
            }
            self.at = 0;
            match scan.step() {
                Ok(true) => {}
                Ok(false) => {
                    self.whole = true;
                    self.scan = None;
                }
                Err(_) => self.scan = None,
            }
        }
    }

    fn next(&mut self) -> Option<Copy> {
        let (_, copy) = self.peek()?;
        let entry = self.scan.as_ref()?.entries.get(self.at)?;
        if let Some(Some(file)) = self.files.get_mut(entry.ordinal as usize) {
            file.named += 1;
        }
        self.at += 1;
        Some(copy)
    }

    /// Lost entries of which it is known what they were; it stands at its end.
    fn known(&self) -> u64 {
        let files = self.files.iter().flatten();
        let known = files.map(|file| match self.whole {
            // What it does not list was stale.
            true => entries_of(file.ranges),
            false => file.named,
        });
        known.sum()
    }
}

fn holds(ranges: &[Range<u32>], entry: u32) -> bool {
    let at = ranges.partition_point(|r| r.end <= entry);
    ranges.get(at).is_some_and(|r| r.contains(&entry))
}

/// The newest copy of a key among the files that are left.
pub(super) struct Found {
    pub file: FileNumber,
    pub entry: u32,
}

/// The files of the repaired version.
pub(super) struct Survivors<'a> {
    pub files: &'a [Arc<DataFile>],
    pub tables: usize,
}

impl Survivors<'_> {
    /// Hands out every key's newest copy, by table and mix64(key). Gives the copies that contradict
    /// newer ones.
    pub fn newest(&self, each: &mut dyn FnMut(Found)) -> Result<Contradicting> {
        let mut contradicting = Contradicting::default();
        let window = keys_window_bytes(self.files.len());
        for table in 0..narrow(self.tables) {
            let merge = Merge::new(self.files, table, window)?.by_rank();
            contradicting.add(merge.each_newest(&mut |file, entry, _| {
                each(Found {
                    file: file.meta.number,
                    entry: entry.number,
                });
            })?);
        }
        Ok(contradicting)
    }
}

#[cfg(test)]
mod tests;
