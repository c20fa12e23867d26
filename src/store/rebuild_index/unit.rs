//! How is one unit built? As a merge of the index snapshot's entries with buckets of young ones.
//!
//! A bucket is a range of hashes with so few young entries that they stay in the processor's cache
//! while they are sorted.

use super::young::Young;
use super::{Failed, Loaded, Plan, Unit, of_part, young_in};
use crate::error::{Error, Result};
use crate::format::footer::{Run, RunKind};
use crate::format::index_snapshot::{ORDINAL_SHIFT, TOMBSTONE_BIT, class_at};
use crate::ssd::ahead::Reader;
use crate::ssd::data_file::{DataFile, Location};
use crate::ssd::index::{IndexBuilder, IndexEntry, KeyIndexBuilder};
use crate::ssd::sections::SectionWalk;
use crate::ssd::snapshot_ranges::{SnapshotRanges, SnapshotWalk};
use crate::sync::thread;
use crate::units::{narrow, part_range, to_usize, unmix64};

/// Buckets of young entries in the least unit.
const BUCKETS_EACH: u64 = 4;
/// Threads that read key blocks ahead for one that builds a unit.
const READERS: usize = 2;
/// Least and greatest window of a young run.
const WINDOW_BYTES: (u64, u64) = (8 << 10, 512 << 10);

/// Where the entries of one table are in a file that a part covers.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// The location of entry 0.
    base: u64,
    /// First entry and number of rows, of tombstones.
    rows: (u64, u64),
    tombstones: (u64, u64),
}

impl Place {
    fn new(file: &DataFile, table: usize) -> Place {
        let run = |kind| {
            let found = file
                .runs
                .iter()
                .find(|r| r.kind == kind && r.table as usize == table);
            found.map_or((0, 0), |r| (r.first_entry, r.entries))
        };
        Place {
            base: Location::new(file.slot, false, 0).0,
            rows: run(RunKind::Rows),
            tombstones: run(RunKind::Tombstones),
        }
    }

    /// The location that a part's location stands for, if there is such an entry, without its class.
    fn location(&self, raw: u64) -> Option<Location> {
        let (tombstone, entry) = (raw & TOMBSTONE_BIT, raw & 0xffff_ffff);
        let (first, count) = match tombstone {
            0 => self.rows,
            _ => self.tombstones,
        };
        let inside = entry.wrapping_sub(first) < count;
        inside.then_some(Location(self.base | tombstone | entry))
    }
}

/// The entries of one unit in a part of the snapshot.
struct Old<'a> {
    /// Its position.
    part: usize,
    snapshot: &'a SnapshotRanges,
    walk: SnapshotWalk<'a>,
    table: u32,
    low: u64,
    at: usize,
    /// By ordinal; `None` for files that have left the version.
    places: Vec<Option<Place>>,
}

impl<'a> Old<'a> {
    fn open(
        plan: &Plan<'a>,
        unit: &Unit,
        (part, (from, to)): (usize, (u64, u64)),
    ) -> Result<Old<'a>> {
        let snapshot = plan.parts[part].ranges;
        // The block before may have the first entries of this unit, and is another's.
        let shared = from.saturating_sub(1);
        let place = |file: &Option<_>| file.as_deref().map(|f| Place::new(f, unit.table));
        let mut old = Old {
            part,
            snapshot,
            walk: snapshot.walk((shared, to))?,
            table: narrow(unit.table),
            low: unit.range.0.max(snapshot.range.0),
            at: 0,
            places: plan.parts[part].covered.iter().map(place).collect(),
        };
        if shared < from {
            old.walk.step()?;
            old.walk.restart();
            old.at = match old.walk.table == old.table {
                true => old.walk.entries.partition_point(|e| e.0 < old.low),
                false => old.walk.entries.len(),
            };
        }
        Ok(old)
    }

    /// Where the next entries up to and including `high` are among those of the walk.
    fn next(&mut self, high: u64) -> Result<Option<std::ops::Range<usize>>> {
        while self.at == self.walk.entries.len() {
            self.at = 0;
            let Some(first) = self.walk.step()? else {
                return Ok(None);
            };
            if first < (self.table, self.low) || first.0 > self.table {
                return Err(self
                    .snapshot
                    .damaged("entries of an index snapshot are out of order"));
            }
        }
        let rest = &self.walk.entries[self.at..];
        let count = match rest.last() {
            Some(last) if last.0 <= high => rest.len(),
            _ => rest.partition_point(|e| e.0 <= high),
        };
        self.at += count;
        Ok((count > 0).then(|| self.at - count..self.at))
    }
}

/// An index that is being built.
struct Target<'a> {
    plan: &'a Plan<'a>,
    builder: KeyIndexBuilder,
    /// By slot: entries of the table that the index points to, rows and tombstones. Those of the
    /// snapshot are counted when they are met, young ones by their runs; copies that are not the newest are
    /// counted off, which may be before.
    live: &'a mut [[u64; 2]],
}

impl Target<'_> {
    #[inline]
    fn push(&mut self, hash: u64, to: Location, class: u8) -> Result<()> {
        if !self.builder.push(hash, IndexEntry::new(to, class)) {
            return Err(self.out_of_order(hash, to));
        }
        Ok(())
    }

    #[inline]
    fn live_of(&mut self, to: Location) -> &mut u64 {
        &mut self.live[to.slot().index()][usize::from(to.is_tombstone())]
    }

    #[cold]
    fn out_of_order(&self, hash: u64, to: Location) -> Error {
        let what = format!("key {:#x} is out of order", unmix64(hash));
        Error::corrupt(self.plan.path(to.slot()), 0, what)
    }

    /// Adds young entries, of each key the newest; `distinct`: each has one copy.
    fn add_young(&mut self, mut young: &[(u64, u64)], distinct: bool) -> Result<()> {
        while let Some(&(hash, first)) = young.first() {
            let same = match distinct {
                true => None,
                false => young.windows(2).position(|pair| pair[0].0 == pair[1].0),
            };
            let (single, rest) = young.split_at(same.unwrap_or(young.len()));
            if !self.builder.extend(single) {
                return Err(self.out_of_order(hash, Location(first)));
            }
            young = rest;
            if let Some((hash, to)) = self.newest(&mut young)? {
                self.push(hash, to, 0)?;
            }
        }
        Ok(())
    }

    /// Of two copies of a key the one with the greater rank; the other is counted off.
    fn newer(&mut self, hash: u64, a: Location, b: Location) -> Result<Location> {
        let (rank_a, rank_b) = (self.plan.rank(a.slot()), self.plan.rank(b.slot()));
        if rank_a == rank_b {
            let what = format!("key {:#x} has two copies of one rank", unmix64(hash));
            return Err(Error::corrupt(self.plan.path(b.slot()), 0, what));
        }
        let (newer, other) = if rank_a > rank_b { (a, b) } else { (b, a) };
        let live = self.live_of(other);
        *live = live.wrapping_sub(1);
        Ok(newer)
    }

    /// The newest copy of the key at the front, which is stepped over.
    #[inline]
    fn newest(&mut self, young: &mut &[(u64, u64)]) -> Result<Option<(u64, Location)>> {
        let Some((&(hash, first), mut rest)) = young.split_first() else {
            return Ok(None);
        };
        let mut best = Location(first);
        while let Some((&(_, other), after)) = rest.split_first().filter(|(e, _)| e.0 == hash) {
            best = self.newer(hash, best, Location(other))?;
            rest = after;
        }
        *young = rest;
        Ok(Some((hash, best)))
    }

    /// Adds entries of the index snapshot, and the young ones that come before or instead of them. A key keeps
    /// the class that the snapshot says, wherever its newest copy is.
    fn merge(
        &mut self,
        old: &[(u64, u64)],
        places: &[Option<Place>],
        young: &mut &[(u64, u64)],
    ) -> Result<bool> {
        for &(hash, raw) in old {
            while young.first().is_some_and(|e| e.0 < hash) {
                if let Some((hash, to)) = self.newest(young)? {
                    self.push(hash, to, 0)?;
                }
            }
            let younger = match young.first() {
                Some(first) if first.0 == hash => self.newest(young)?.map(|(_, to)| to),
                _ => None,
            };
            let class = class_at(raw);
            let ordinal = to_usize(raw >> ORDINAL_SHIFT);
            let Some(place) = places.get(ordinal).and_then(Option::as_ref) else {
                // Whatever left its file is in a younger one.
                if let Some(to) = younger {
                    self.push(hash, to, class)?;
                }
                continue;
            };
            let Some(mut to) = place.location(raw) else {
                return Ok(false);
            };
            let live = self.live_of(to);
            *live = live.wrapping_add(1);
            if let Some(other) = younger {
                to = self.newer(hash, to, other)?;
            }
            self.push(hash, to, class)?;
        }
        Ok(true)
    }
}

impl Plan<'_> {
    /// Builds the indexes of one unit and puts them into their shards.
    pub(super) fn build(
        &self,
        number: usize,
        loaded: &mut Loaded,
    ) -> std::result::Result<(), Failed> {
        let unit = &self.units[number];
        // What is built beside a damaged part counts for nothing.
        if unit
            .blocks
            .iter()
            .any(|(part, _)| self.parts[*part].is_damaged())
        {
            return Ok(());
        }
        let young = young_in(&self.young, unit.table, unit.range);
        let alone = self.rebuild.threads() == 1;
        if alone
            || young
                < self
                    .rebuild
                    .core
                    .options
                    .thresholds_in_force()
                    .open_unit_entries
        {
            return self.build_with(number, &[], loaded);
        }
        thread::scope(|scope| {
            let readers: Vec<_> = (0..READERS).map_while(|_| Reader::start(scope)).collect();
            self.build_with(number, &readers, loaded)
        })
    }

    /// Builds one unit with threads that read ahead; they end when it is built.
    fn build_with(
        &self,
        number: usize,
        readers: &[Reader],
        loaded: &mut Loaded,
    ) -> std::result::Result<(), Failed> {
        let unit = &self.units[number];
        let dropped = self.is_dropped(unit.table);
        let open = |part: &(usize, _)| of_part(part.0, Old::open(self, unit, *part));
        let mut olds: Vec<Old<'_>> = unit
            .blocks
            .iter()
            .map(open)
            .collect::<std::result::Result<_, _>>()?;
        let mut walks = self.open_sections(unit, readers)?;
        let mut young = Young::default();
        let mut live = vec![[0; 2]; self.files.len()];
        let bucket = self
            .rebuild
            .core
            .options
            .thresholds_in_force()
            .open_unit_entries
            / BUCKETS_EACH;
        for shard in unit.shards.clone() {
            let range = part_range(shard, self.rebuild.core.shards.len()).into_inner();
            let fresh = match dropped {
                true => 0,
                false => young_in(&self.young, unit.table, range),
            };
            let blocks = unit
                .blocks
                .iter()
                .map(|(_, (from, to))| to - from + 1)
                .sum();
            let snapshot = SnapshotRanges::entries_max(blocks) / unit.shards.len() as u64;
            let mut target = Target {
                plan: self,
                builder: KeyIndexBuilder::new(range, if dropped { 0 } else { snapshot + fresh }),
                live: &mut live,
            };
            let mut low = range.0;
            for high in buckets(range, fresh / bucket + 1) {
                young.take(&mut walks, (low, high))?;
                low = high.saturating_add(1);
                let mut rest = young.entries();
                // Those after it have greater hashes only.
                for old in olds.iter_mut().take_while(|old| old.low <= high) {
                    while let Some(found) = of_part(old.part, old.next(high))? {
                        if dropped {
                            continue;
                        }
                        let entries = &old.walk.entries[found];
                        if !target.merge(entries, &old.places, &mut rest)? {
                            let what = "an entry of the index snapshot is something else";
                            return Err(Failed::Part(old.part, old.snapshot.damaged(what)));
                        }
                    }
                }
                target.add_young(rest, young.are_distinct())?;
            }
            let index = target.builder.finish();
            self.rebuild.core.shards[shard].lock().tables[unit.table].set_index(index);
        }
        for (i, walk) in walks {
            let base = walk.base();
            let live = &mut live[base.slot().index()][usize::from(base.is_tombstone())];
            *live = live.wrapping_add(walk.taken());
            loaded.taken[i] += walk.taken();
        }
        for old in olds {
            let at = (old.part, number);
            loaded.parts.push((at, old.walk.into_part()));
        }
        loaded.live.add(self, unit.table, &live);
        Ok(())
    }

    /// The runs of the young files that have something for a unit, each with its file's position.
    fn open_sections(&self, unit: &Unit, readers: &[Reader]) -> Result<Vec<(usize, SectionWalk)>> {
        let there = !self.is_dropped(unit.table);
        let fits = |run: &Run| there && run.table as usize == unit.table;
        let all = self.young.iter().flat_map(|file| &file.runs);
        let window = self.keys_bytes / all.filter(|run| fits(run)).count().max(1) as u64;
        let window = window.clamp(WINDOW_BYTES.0, WINDOW_BYTES.1);
        let mut walks = Vec::new();
        for (i, file) in self.young.iter().enumerate() {
            for run in file.runs.iter().filter(|run| fits(run)) {
                let reader = readers.get(walks.len() % READERS);
                if let Some(walk) = SectionWalk::open(file, run, unit.range, window, reader)? {
                    walks.push((i, walk));
                }
            }
        }
        Ok(walks)
    }
}

/// The last hash of each of so many parts of a range.
fn buckets((low, high): (u64, u64), count: u64) -> impl Iterator<Item = u64> {
    let step = ((high - low) / count).max(1);
    (1..=count).map(move |i| match i == count {
        true => high,
        false => low.saturating_add(step.saturating_mul(i)).min(high),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::FileSlot;

    #[test]
    fn a_range_is_cut_into_equal_buckets_that_end_with_it() {
        let ends = |range, count| buckets(range, count).collect::<Vec<u64>>();
        assert_eq!(ends((0, 99), 4), [24, 48, 72, 99]);
        assert_eq!(ends((100, 199), 4), [124, 148, 172, 199]);
        assert_eq!(ends((7, 7), 3), [7, 7, 7], "fewer hashes than buckets");
        assert_eq!(ends((10, 12), 4), [11, 12, 12, 12]);
        assert_eq!(ends((5, 9), 1), [9]);
        assert_eq!(ends((0, u64::MAX), 2), [u64::MAX / 2, u64::MAX]);
        assert_eq!(ends((u64::MAX - 1, u64::MAX), 3), [u64::MAX; 3]);
    }

    #[test]
    fn a_location_of_the_index_snapshot_is_one_of_an_entry_that_is_there() {
        let place = Place {
            base: Location::new(FileSlot::new(5), false, 0).0,
            rows: (10, 5),
            tombstones: (15, 3),
        };
        let row = |entry| Some(Location::new(FileSlot::new(5), false, entry));
        let tombstone = |entry| Some(Location::new(FileSlot::new(5), true, entry));
        for (raw, expected) in [
            (9, None),
            (10, row(10)),
            (14, row(14)),
            (15, None),
            (TOMBSTONE_BIT | 14, None),
            (TOMBSTONE_BIT | 15, tombstone(15)),
            (TOMBSTONE_BIT | 17, tombstone(17)),
            (TOMBSTONE_BIT | 18, None),
            (7 << ORDINAL_SHIFT | 11, row(11)),
            (7 << ORDINAL_SHIFT | TOMBSTONE_BIT | 16, tombstone(16)),
        ] {
            assert_eq!(place.location(raw), expected, "{raw:#x}");
        }
        assert_eq!(Place::default().location(0), None);
    }

    #[test]
    fn windows_of_young_runs_are_8_to_512_kib() {
        assert_eq!(WINDOW_BYTES, (8192, 524_288));
    }
}
