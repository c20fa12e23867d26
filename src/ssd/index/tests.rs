//! Which copy a key has, and what each change counts.

use super::*;
use crate::ssd::tests::rows::{Place, tombstones};
use crate::units::FileSlot;

/// Two files of ten entries, at slots 1 and 2.
fn files(place: &Place) -> Vec<Option<Arc<DataFile>>> {
    let parts = [tombstones(0, 0..10)];
    let made = [1, 2].map(|n| Some(place.shared(n, &parts)));
    [None].into_iter().chain(made).collect()
}

fn live(files: &Files) -> [u64; 2] {
    [1, 2].map(|slot: usize| files[slot].as_ref().unwrap().live_entries())
}

#[test]
fn every_change_of_a_location_counts_the_live_entries_of_both_files() {
    let place = Place::new();
    let files = files(&place);
    let first = files[1].clone().unwrap();
    let mut tally = Tally::of(&first);
    let [one, two] =
        [1, 2].map(|slot| move |entry| Location::new(FileSlot::new(slot), true, entry));
    let mut index = KeyIndex::new((100, 999));
    assert_eq!(index.keys(), 0);
    assert_eq!(index.repoint(&files, 100, one(0), &mut tally), None);
    assert_eq!(index.repoint(&files, 999, one(1), &mut tally), None);
    assert_eq!(live(&files), [2, 0]);
    let before = index.repoint(&files, 100, two(5), &mut tally);
    assert_eq!((before, live(&files)), (Some(one(0)), [1, 1]));
    assert_eq!((index.get(100), index.get(101)), (Some(two(5)), None));
    assert_eq!(index.keys(), 2);
    assert_eq!(index.bytes(), index.map.bytes() as u64);
    assert!(index.bytes() > 100);
    let mut found = vec![Some(one(9))];
    index.get_batch(&[999, 5, 100], &mut found);
    assert_eq!(found, [Some(one(1)), None, Some(two(5))]);

    // Only where it still points to what was moved, or is to be forgotten.
    assert!(!index.moved(&files, 100, one(0), one(7), &mut tally));
    assert!(!index.moved(&files, 500, one(0), one(7), &mut tally));
    assert!(!index.forget(&files, 100, one(0), &mut tally));
    assert_eq!((index.get(100), live(&files)), (Some(two(5)), [1, 1]));
    assert!(index.moved(&files, 100, two(5), one(7), &mut tally));
    assert_eq!((index.get(100), live(&files)), (Some(one(7)), [2, 0]));
    assert!(index.forget(&files, 999, one(1), &mut tally));
    assert_eq!((index.get(999), live(&files)), (None, [1, 0]));
    let all: Vec<(u64, Location)> = index.iter().collect();
    assert_eq!((all, index.keys()), (vec![(100, one(7))], 1));
}

#[test]
fn an_index_is_built_of_keys_in_order_alone() {
    let at = |entry| Location::new(FileSlot::new(4), false, entry);
    let mut builder = KeyIndexBuilder::new((10, 99), 8);
    assert!(builder.push(10, at(1)) && builder.push(12, at(2)));
    assert!(!builder.push(12, at(3)) && !builder.push(11, at(3)) && !builder.push(100, at(3)));
    assert!(builder.extend(&[(20, at(4).0), (30, at(5).0)]) && builder.extend(&[]));
    assert!(!builder.extend(&[(30, 1)]) && !builder.extend(&[(40, 1), (35, 1)]));
    assert!(!builder.extend(&[(40, 1), (100, 1)]));
    assert!(builder.push(99, at(6)) && !builder.push(99, at(7)));
    let index = builder.finish();
    let all: Vec<(u64, Location)> = index.iter().collect();
    let expected = [10, 12, 20, 30, 99]
        .into_iter()
        .zip([1, 2, 4, 5, 6].map(at));
    assert!(all.iter().copied().eq(expected));
    assert_eq!(index.keys(), 5);
}
