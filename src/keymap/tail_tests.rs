//! The entries that came last, at each number of entries of a segment.

use std::collections::BTreeMap;

use super::entry::CLASS_SHIFT;
use super::segment::ENTRIES_MAX;
use super::tests::check;
use super::{Builder, KeyMap, Kind};
use crate::units::mix64;

/// The ends of ranges of which a first segment is wide, and narrow.
fn ranges() -> [(u64, bool); 2] {
    [(u64::MAX, false), ((1 << 50) - 1, true)]
}

/// The first so many hashes up to one.
fn hashes(high: u64, count: usize) -> Vec<u64> {
    (0..count as u64).map(|key| mix64(key) & high).collect()
}

fn filled(high: u64, hashes: &[u64]) -> (KeyMap, BTreeMap<u64, u64>) {
    // One without entries is narrow where the range is small.
    let (mut map, mut model) = (Builder::new(0, high, 0).finish(), BTreeMap::new());
    for (hash, value) in hashes.iter().zip(0..) {
        map.prefetch_place(*hash);
        assert_eq!(map.insert(*hash, value), model.insert(*hash, value));
    }
    (map, model)
}

#[test]
fn each_number_of_entries_has_its_tail_until_the_segment_is_full() {
    for (high, narrow) in ranges() {
        for count in 0..=ENTRIES_MAX + 1 {
            let (map, model) = filled(high, &hashes(high, count));
            check(&map, &model);
            let is_one = count <= ENTRIES_MAX;
            assert_eq!(map.segments.len() == 1, is_one, "{count} entries");
            if is_one {
                assert_eq!(map.segments[0].len(), count);
            }
            assert_eq!(matches!(map.segments[0].kind, Kind::Narrow(_)), narrow);
        }
    }
}

#[test]
fn any_entry_goes_and_comes_back_at_each_number_of_entries() {
    for (high, _) in ranges() {
        for count in 1..=ENTRIES_MAX {
            let all = hashes(high, count);
            // The first ones are sorted, the last ones not.
            let last = count - 1;
            for at in [0, count / 2, last.saturating_sub(count % 8), last] {
                let (mut map, mut model) = filled(high, &all);
                assert_eq!(map.remove(all[at]), model.remove(&all[at]));
                assert_eq!(map.remove(all[at]), None);
                check(&map, &model);
                let value = 3 << CLASS_SHIFT | 7;
                assert_eq!(map.insert(all[at], value), model.insert(all[at], value));
                assert!(map.set_class(all[last], 5));
                let old = model.get_mut(&all[last]).unwrap();
                *old = (*old & !(15 << CLASS_SHIFT)) | 5 << CLASS_SHIFT;
                check(&map, &model);
            }
        }
    }
}

#[test]
fn entries_go_one_by_one_until_none_is_left() {
    for (high, _) in ranges() {
        let all = hashes(high, ENTRIES_MAX);
        for step in [1, 7, 16, 254] {
            let (mut map, mut model) = filled(high, &all);
            // 255 has no divisor in common with these.
            for hash in (0..ENTRIES_MAX).map(|i| all[i * step % ENTRIES_MAX]) {
                assert_eq!(map.remove(hash), model.remove(&hash));
                check(&map, &model);
            }
            assert!(map.is_empty());
        }
    }
}
