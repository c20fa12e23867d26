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
    let mut found = vec![None];
    index.get_batch(&[999, 5, 100], &mut found);
    let found: Vec<_> = found
        .into_iter()
        .map(|x| x.map(IndexEntry::location))
        .collect();
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
fn a_class_goes_with_its_key_until_a_new_copy_is_written() {
    let place = Place::new();
    let files = files(&place);
    let first = files[1].clone().unwrap();
    let mut tally = Tally::of(&first);
    let [one, two] =
        [1, 2].map(|slot| move |entry| Location::new(FileSlot::new(slot), true, entry));
    let class = |index: &KeyIndex, hash| {
        let mut found = Vec::new();
        index.get_batch(&[hash], &mut found);
        found[0].map(IndexEntry::class)
    };
    let mut index = KeyIndex::new((100, 999));
    for (entry, hash) in [100, 500, 999].into_iter().enumerate() {
        index.repoint(&files, hash, one(u32::try_from(entry).unwrap()), &mut tally);
    }
    assert_eq!(class(&index, 500), Some(0));
    index.set_class(500, 15);
    index.set_class(999, 3);
    index.set_class(501, 9);
    assert_eq!(
        [100, 500, 501, 999].map(|hash| class(&index, hash)),
        [Some(0), Some(15), None, Some(3)]
    );
    assert_eq!((index.get(500), index.keys()), (Some(one(1)), 3));
    // The place of a key is compared, its class is not; a move takes the class along.
    assert!(index.moved(&files, 500, one(1), two(4), &mut tally));
    assert_eq!(
        (index.get(500), class(&index, 500)),
        (Some(two(4)), Some(15))
    );
    assert_eq!(live(&files), [2, 1]);
    assert!(index.iter().any(|entry| entry == (500, two(4))));
    // A round halves them all; 0 begins one.
    let half = std::array::from_fn(|class| u8::try_from(class / 2).unwrap());
    assert_eq!(index.replace_classes(0, 1000, &half), None);
    assert_eq!(
        [100, 500, 999].map(|hash| class(&index, hash)),
        [Some(0), Some(7), Some(1)]
    );
    // A new copy begins anew, and says where the old one was.
    assert_eq!(index.repoint(&files, 500, one(7), &mut tally), Some(two(4)));
    assert_eq!(class(&index, 500), Some(0));
    assert!(index.forget(&files, 999, one(2), &mut tally));
    assert_eq!((index.get(999), live(&files)), (None, [2, 0]));
    index.set_class(100, 8);
    index.forget_all(&files, (100, 999));
    assert_eq!((index.keys(), live(&files)), (0, [0, 0]));
}

#[test]
fn an_index_is_built_of_keys_in_order_alone() {
    let at = |entry| Location::new(FileSlot::new(4), false, entry);
    let entry = |number| IndexEntry::new(at(number), 0);
    let mut builder = KeyIndexBuilder::new((10, 99), 8);
    assert!(builder.push(10, entry(1)) && builder.push(12, entry(2)));
    assert!(
        !builder.push(12, entry(3)) && !builder.push(11, entry(3)) && !builder.push(100, entry(3))
    );
    assert!(builder.extend(&[(20, at(4).0), (30, at(5).0)]) && builder.extend(&[]));
    assert!(!builder.extend(&[(30, 1)]) && !builder.extend(&[(40, 1), (35, 1)]));
    assert!(!builder.extend(&[(40, 1), (100, 1)]));
    assert!(builder.push(99, entry(6)) && !builder.push(99, entry(7)));
    let index = builder.finish();
    let all: Vec<(u64, Location)> = index.iter().collect();
    let expected = [10, 12, 20, 30, 99]
        .into_iter()
        .zip([1, 2, 4, 5, 6].map(at));
    assert!(all.iter().copied().eq(expected));
    assert_eq!(index.keys(), 5);
}
