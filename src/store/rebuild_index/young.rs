//! How do the young entries of a bucket get into the order of their hashes?
//!
//! - Sorted are numbers of eight bytes: how far the hash is from the bucket's first, and below that the
//!   number of the run that it is from. That is half of what hash and location take.
//! - The location is not needed for it: the entries of a run come in order and have locations that follow
//!   one another. Whoever meets them sorted has to count only, run by run.
//! - Where the bits do not suffice (wide buckets, that is few entries, of many runs), hash and location
//!   are sorted.

use super::sort::Sorter;
use crate::error::Result;
use crate::ssd::sections::SectionWalk;
use crate::units::to_usize;

/// Bits for the numbers of so many runs, if there is room for them below distances up to `width`.
fn tag_bits(runs: usize, width: u64) -> Option<u32> {
    let bits = runs.next_power_of_two().ilog2();
    (bits <= width.leading_zeros()).then_some(bits)
}

/// The young entries of a bucket; keeps its memory for the next one.
#[derive(Debug, Default)]
pub(super) struct Young {
    keys: Vec<u64>,
    keys_sorter: Sorter<u64>,
    /// By run: the location of its next entry.
    next: Vec<u64>,
    /// Hash and location, in the order of hashes.
    entries: Vec<(u64, u64)>,
    entries_sorter: Sorter<(u64, u64)>,
    /// No hash is there twice.
    distinct: bool,
}

impl Young {
    /// Takes the entries in a range, which those taken before end in front of.
    pub fn take<R>(&mut self, walks: &mut [(R, SectionWalk)], range: (u64, u64)) -> Result<()> {
        self.entries.clear();
        let width = range.1.saturating_sub(range.0);
        let Some(bits) = tag_bits(walks.len(), width) else {
            return self.take_wide(walks, range);
        };
        self.keys.clear();
        self.next.clear();
        for (tag, (_, walk)) in (0..).zip(walks) {
            let first = walk.take_tagged(range, (tag, bits), &mut self.keys)?;
            self.next.push(first.map_or(0, |location| location.0));
        }
        let tags = (1 << bits) - 1;
        let last = width << bits | tags;
        self.keys_sorter.sort(&mut self.keys, (0, last), |key| *key);
        let (mut distinct, mut before) = (true, None);
        self.entries.extend(self.keys.iter().map(|key| {
            let hash = range.0 + (key >> bits);
            distinct &= before != Some(hash);
            before = Some(hash);
            let next = &mut self.next[to_usize(key & tags)];
            *next += 1;
            (hash, *next - 1)
        }));
        self.distinct = distinct;
        Ok(())
    }

    fn take_wide<R>(&mut self, walks: &mut [(R, SectionWalk)], range: (u64, u64)) -> Result<()> {
        for (_, walk) in walks {
            walk.take_until(range.1, &mut self.entries)?;
        }
        self.entries_sorter
            .sort(&mut self.entries, range, |entry| entry.0);
        self.distinct = self.entries.windows(2).all(|pair| pair[0].0 < pair[1].0);
        Ok(())
    }

    /// Hash and location of those taken last, in the order of hashes.
    pub fn entries(&self) -> &[(u64, u64)] {
        &self.entries
    }

    /// Whether none of those taken last has the hash of another.
    pub fn are_distinct(&self) -> bool {
        self.distinct
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ssd::tests::rows::{Place, rows};
    use crate::units::mix64;

    #[test]
    fn numbers_of_runs_have_the_bits_that_they_need_or_none() {
        for (runs, bits) in [
            (0, 0),
            (1, 0),
            (2, 1),
            (3, 2),
            (4, 2),
            (5, 3),
            (256, 8),
            (257, 9),
        ] {
            assert_eq!(tag_bits(runs, u64::MAX >> bits), Some(bits), "{runs}");
            assert_eq!(tag_bits(runs, 0), Some(bits));
            if bits > 0 {
                assert_eq!(tag_bits(runs, u64::MAX >> (bits - 1)), None, "{runs}");
            }
        }
    }

    /// Against all entries sorted by hash, copies in the order of their runs: in buckets that numbers of eight bytes
    /// serve, and in one that is too wide for them.
    #[test]
    fn entries_of_several_runs_come_by_hash_with_their_locations_and_copies_are_noticed() {
        const RUNS: u64 = 5;
        let place = Place::new();
        let hash = |i: u64| mix64(i);
        let files: Vec<_> = (0..RUNS)
            .map(|run| {
                // One in ten is in the run before, too.
                let mut hashes: Vec<u64> = (900 * run..900 * run + 1000).map(hash).collect();
                hashes.sort_unstable();
                place.shared(run + 1, &[rows(0, 1, hashes)])
            })
            .collect();
        let open = || -> Vec<(u64, SectionWalk)> {
            let of = |file: &_| {
                SectionWalk::open(file, &file.runs[0], (0, u64::MAX), 8192, None).unwrap()
            };
            (0..).zip(files.iter().filter_map(of)).collect()
        };
        let mut expected = Vec::new();
        for (_, mut walk) in open() {
            walk.take_until(u64::MAX, &mut expected).unwrap();
        }
        expected.sort_unstable();
        assert_eq!(expected.len() as u64, 1000 * RUNS);
        for (parts, tagged) in [(1, false), (2, false), (8, true), (1000, true)] {
            let width = u64::MAX / parts;
            assert_eq!(tag_bits(files.len(), width).is_some(), tagged, "{parts}");
            let (mut walks, mut young, mut found) = (open(), Young::default(), Vec::new());
            for part in 0..parts {
                let last = part + 1 == parts;
                let high = if last {
                    u64::MAX
                } else {
                    (part + 1) * width - 1
                };
                young.take(&mut walks, (part * width, high)).unwrap();
                let entries = young.entries();
                let distinct = entries.windows(2).all(|pair| pair[0].0 < pair[1].0);
                assert_eq!(young.are_distinct(), distinct, "{parts} {part}");
                found.extend_from_slice(entries);
            }
            assert_eq!(found, expected, "{parts}");
        }
    }
}
