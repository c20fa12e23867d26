//! How are the entries of a bucket sorted? Hashes are evenly spread, so each is put close to its
//! place at once; neighbours change places then.
//!
//! Hashes that are not evenly spread are sorted by comparing.

use crate::units::to_usize;

/// Most entries of one cell that are sorted by changing places.
const CELL_MAX: u16 = 48;
/// Fewer entries are sorted by comparing; so are more than are counted in 16 bits.
const ENTRIES_MIN: usize = 64;

/// Sorts entries by hash; keeps its memory for the next bucket.
#[derive(Debug, Default)]
pub(super) struct Sorter<T> {
    /// By cell: where its next entry goes.
    places: Vec<u16>,
    sorted: Vec<T>,
}

impl<T: Copy + Default + Ord> Sorter<T> {
    /// Sorts entries whose hashes lie in a range. What `hash` says of them rises with them.
    ///
    /// # Cost
    /// 16 Ki entries of 8 bytes: 7 ns each. Twice that with four entries a cell instead of a half, where most
    /// have a neighbour to change places with and the processor can't tell which.
    pub fn sort(
        &mut self,
        entries: &mut Vec<T>,
        (low, high): (u64, u64),
        hash: impl Fn(&T) -> u64,
    ) {
        let count = entries.len();
        // Between one and a half and three cells an entry, where there are as many hashes.
        let shift = ((high - low) / (count + count / 2 + 1) as u64)
            .checked_ilog2()
            .unwrap_or(0);
        let cell = |hash: u64| to_usize((hash - low) >> shift);
        let few = u16::try_from(count).is_err() || count < ENTRIES_MIN;
        if few || !self.count(entries, cell(high) + 1, |entry| cell(hash(entry))) {
            entries.sort_unstable();
            return;
        }
        self.sorted.resize(count, T::default());
        for entry in entries.iter() {
            let place = &mut self.places[cell(hash(entry))];
            self.sorted[usize::from(*place)] = *entry;
            *place += 1;
        }
        std::mem::swap(entries, &mut self.sorted);
        let entries = &mut entries[..count];
        for i in 1..count {
            let entry = entries[i];
            let mut to = i;
            while to > 0 && hash(&entries[to - 1]) > hash(&entry) {
                entries[to] = entries[to - 1];
                to -= 1;
            }
            if to < i {
                entries[to] = entry;
            }
        }
    }

    /// Finds where each cell begins; false if one has too many entries.
    fn count(&mut self, entries: &[T], cells: usize, cell: impl Fn(&T) -> usize) -> bool {
        self.places.clear();
        self.places.resize(cells, 0);
        for entry in entries {
            self.places[cell(entry)] += 1;
        }
        let (mut next, mut most) = (0, 0);
        for place in &mut self.places {
            most = most.max(*place);
            next += std::mem::replace(place, next);
        }
        most <= CELL_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::mix64;

    #[test]
    fn any_hashes_are_sorted_and_none_is_lost() {
        let mut sorter = Sorter::default();
        let mut keys_sorter = Sorter::default();
        for (count, bits) in [
            (0, 0),
            (1, 3),
            (63, 8),
            (64, 0),
            (5000, 0),
            (5000, 40),
            (300, 58),
        ] {
            for (low, high) in [(0, u64::MAX), (0, 0), (1 << 62, (1 << 63) - 1), (7, 3000)] {
                let span = u128::from(high - low) + 1;
                let hash = |x: u64| {
                    let wide = u128::from(mix64(x) >> bits) % span;
                    low + u64::try_from(wide).unwrap()
                };
                let mut entries: Vec<_> = (0..count).map(|x| (hash(x), x)).collect();
                let mut expected = entries.clone();
                let mut keys: Vec<u64> = entries.iter().map(|e| e.0).collect();
                keys_sorter.sort(&mut keys, (low, high), |key| *key);
                sorter.sort(&mut entries, (low, high), |e| e.0);
                assert!(entries.iter().map(|e| e.0).eq(keys));
                assert!(entries.is_sorted_by_key(|e| e.0), "{count} {bits} {low}");
                entries.sort_unstable();
                expected.sort_unstable();
                assert_eq!(entries, expected);
            }
        }
    }

    /// Sorting by comparing gives the same and takes twice as long.
    #[test]
    fn hashes_that_are_spread_evenly_are_put_in_their_places_and_others_compared() {
        let spread =
            |count: u64| -> Vec<(u64, u64)> { (0..count).map(|x| (mix64(x), x)).collect() };
        for (count, placed) in [
            (63, false),
            (64, true),
            (5000, true),
            (65_535, true),
            (65_536, false),
        ] {
            let mut sorter = Sorter::default();
            sorter.sort(&mut spread(count), (0, u64::MAX), |e| e.0);
            let places = sorter.places.len() as u64;
            assert_eq!(!sorter.sorted.is_empty(), placed, "{count}");
            assert_eq!(places > 0, placed, "{count}: few are not even counted");
            if placed {
                let cells = 3 * count / 2..=3 * count + 2;
                assert!(cells.contains(&places), "{places} cells for {count}");
            }
        }
        // A part of the range, as buckets are.
        let (low, high) = (1 << 62, (1 << 62) + (1 << 60) - 1);
        let mut part = spread(40_000);
        part.retain(|e| (low..=high).contains(&e.0));
        let mut sorter = Sorter::default();
        let count = part.len();
        sorter.sort(&mut part, (low, high), |e| e.0);
        assert_eq!(sorter.sorted.len(), count);
        assert!((3 * count / 2..=3 * count + 2).contains(&sorter.places.len()));
        let mut crowded: Vec<_> = (0..5000).map(|x| (x, x)).rev().collect();
        let mut sorter = Sorter::default();
        sorter.sort(&mut crowded, (0, u64::MAX), |e| e.0);
        assert!(sorter.sorted.is_empty() && crowded.is_sorted());
    }
}
