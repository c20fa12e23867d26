//! Which keys are lost, and does an older copy of them remain?
//!
//! - A lost copy that a newer one had replaced is no loss.
//! - What can't be named is counted.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use crate::error::Result;
use crate::format::param_file::RunKind;
use crate::io::Directory;
use crate::ssd::edits::ImageRef;
use crate::ssd::image::ImageScan;
use crate::ssd::scan::{Merge, keys_window_bytes};
use crate::ssd::version::DataFile;
use crate::units::mix64;

/// A row that could not be saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostRow {
    /// Its table.
    pub table: u32,
    /// Its key.
    pub key: u64,
    /// The damaged file that held its newest copy.
    pub file: u64,
    /// What the key has now.
    pub now: Now,
}

/// What a key has whose newest copy is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Now {
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
    file: u64,
    rank: u64,
    tombstone: bool,
}

/// What is known of lost entries.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// The newest lost copy of a key, by (table, mix64(key)).
    named: BTreeMap<(u32, u64), Copy>,
    /// Entries without a name, by file, and the file's rank.
    nameless: HashMap<u64, (u64, Vec<Range<u32>>)>,
}

impl Losses {
    /// Notes what was lost of a file.
    pub fn add(&mut self, file: u64, rank: u64, lost: Vec<(u32, u64)>, nameless: Vec<Range<u32>>) {
        for (table, key) in lost {
            let tombstone = false;
            self.name(
                table,
                Copy {
                    key,
                    file,
                    rank,
                    tombstone,
                },
            );
        }
        if !nameless.is_empty() {
            self.nameless.insert(file, (rank, nameless));
        }
    }

    fn name(&mut self, table: u32, copy: Copy) {
        let newest = self.named.entry((table, mix64(copy.key))).or_insert(copy);
        if newest.rank < copy.rank {
            *newest = copy;
        }
    }

    /// Whether nothing was lost.
    pub fn is_empty(&self) -> bool {
        self.named.is_empty() && self.nameless.is_empty()
    }

    /// Names entries by the index image, as far as it goes: it knows key, file and entry of what
    /// was live at its checkpoint. What it does not list of a file that it covers was stale, if all
    /// of it can be read.
    pub fn name_by_image(
        &mut self,
        root: &dyn Directory,
        store: &[u8; 16],
        image: ImageRef,
        checkpoint: u64,
    ) {
        if self.nameless.is_empty() {
            return;
        }
        let Ok(mut scan) = ImageScan::open(root, store, image) else {
            return;
        };
        if scan.checkpoint > checkpoint {
            // What it does not list may have been live at that time.
            return;
        }
        let mut found = Vec::new();
        let whole = loop {
            match scan.step() {
                Ok(true) => {}
                Ok(false) => break true,
                Err(_) => break false,
            }
            for entry in &scan.entries {
                let Some(&file) = scan.covered.get(entry.ordinal as usize) else {
                    continue;
                };
                if let Some((rank, ranges)) = self.nameless.get(&file)
                    && holds(ranges, entry.entry)
                {
                    let copy = Copy {
                        key: entry.key,
                        file,
                        rank: *rank,
                        tombstone: entry.tombstone,
                    };
                    found.push((scan.table, copy, entry.entry));
                }
            }
        };
        for (table, copy, entry) in found {
            self.name(table, copy);
            if let Some((_, ranges)) = self.nameless.get_mut(&copy.file) {
                take(ranges, entry);
            }
        }
        if whole {
            self.nameless.retain(|file, _| !scan.covered.contains(file));
        }
    }

    /// Compares with what is left: gives the rows that are lost, by table and mix64(key), and the
    /// number of entries without a name.
    pub fn settle(mut self, left: &mut Left<'_>) -> Result<(Vec<LostRow>, u64)> {
        let named = &mut self.named;
        let mut rows = Vec::new();
        let row = |table, copy: &Copy, now| LostRow {
            table,
            key: copy.key,
            file: copy.file,
            now,
        };
        left.newest(&mut |found| {
            let Some(copy) = named.remove(&(found.table, found.hash)) else {
                return;
            };
            let now = match (copy.tombstone, found.tombstone) {
                _ if found.rank > copy.rank => return,
                (true, true) => return,
                (true, false) => Now::Back,
                (false, true) => Now::Gone,
                (false, false) => Now::Older,
            };
            rows.push(row(found.table, &copy, now));
        })?;
        let gone = self.named.iter().filter(|(_, copy)| !copy.tombstone);
        rows.extend(gone.map(|((table, _), copy)| row(*table, copy, Now::Gone)));
        rows.sort_by_key(|row| (row.table, mix64(row.key)));
        let ranges = self.nameless.values().flat_map(|(_, ranges)| ranges);
        let nameless = ranges.map(|r| u64::from(r.end - r.start)).sum();
        Ok((rows, nameless))
    }
}

fn holds(ranges: &[Range<u32>], entry: u32) -> bool {
    let at = ranges.partition_point(|r| r.end <= entry);
    ranges.get(at).is_some_and(|r| r.contains(&entry))
}

fn take(ranges: &mut Vec<Range<u32>>, entry: u32) {
    let at = ranges.partition_point(|r| r.end <= entry);
    let Some(range) = ranges.get(at).filter(|r| r.contains(&entry)).cloned() else {
        return;
    };
    let parts = [range.start..entry, entry + 1..range.end];
    let parts = parts.into_iter().filter(|r| !r.is_empty());
    drop(ranges.splice(at..=at, parts));
}

/// The newest copy of a key among the files that are left.
pub(super) struct Found {
    pub table: u32,
    pub hash: u64,
    pub file: u64,
    pub rank: u64,
    pub entry: u32,
    pub tombstone: bool,
}

/// The files of the repaired version.
pub(super) struct Left<'a> {
    pub files: &'a [Arc<DataFile>],
    pub tables: usize,
}

impl Left<'_> {
    /// Hands out every key's newest copy, by table and mix64(key).
    pub fn newest(&mut self, each: &mut dyn FnMut(Found)) -> Result<()> {
        let window = keys_window_bytes(self.files.len());
        for table in 0..u32::try_from(self.tables).unwrap_or(u32::MAX) {
            let merge = Merge::new(self.files, table, window)?.by_rank();
            merge.each_newest(&mut |file, entry, kind| {
                each(Found {
                    table,
                    hash: entry.hash,
                    file: file.meta.number,
                    rank: file.meta.rank,
                    entry: entry.number,
                    tombstone: kind == RunKind::Tombstones,
                });
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_and_taken_out_of_ranges() {
        let mut ranges = vec![0..3, 5..6, 9..12];
        assert!(holds(&ranges, 2) && holds(&ranges, 5) && holds(&ranges, 11));
        assert!(!holds(&ranges, 3) && !holds(&ranges, 8) && !holds(&ranges, 12));
        for entry in [1, 5, 9, 11, 7] {
            take(&mut ranges, entry);
        }
        assert_eq!(ranges, [0..1, 2..3, 10..11]);
    }
}
