//! Places in a file, and what its live entries weigh.

use super::*;
use crate::ssd::tests::rows::{Place, rows, tombstones};

#[test]
fn a_location_gives_back_slot_tombstone_and_entry() {
    for slot in [0, 1, 5, (1 << 24) - 1] {
        for entry in [0, 1, 7, u32::MAX] {
            for tombstone in [false, true] {
                let location = Location::new(FileSlot::new(slot), tombstone, entry);
                assert_eq!(location.slot().index(), slot);
                assert_eq!(location.entry(), entry);
                assert_eq!(location.is_tombstone(), tombstone);
            }
        }
    }
    assert_eq!(
        Location::new(FileSlot::new(3), true, 5).0,
        3 << 40 | 1 << 39 | 5
    );
    assert_eq!(SLOTS_MAX, 16_777_216);
}

#[test]
fn an_entry_is_found_in_its_run_and_its_record_in_the_file() {
    let place = Place::new();
    let parts = [rows(1, 1, 0..10), tombstones(1, 10..15), rows(2, 3, 0..4)];
    let file = place.file(4, &parts);
    let run = |entry| file.run_of(entry).map(|run| (run.table, run.first_entry));
    assert_eq!((run(0), run(9)), (Some((1, 0)), Some((1, 0))));
    assert_eq!((run(10), run(14)), (Some((1, 10)), Some((1, 10))));
    assert_eq!((run(15), run(18)), (Some((2, 15)), Some((2, 15))));
    assert_eq!((run(19), run(u32::MAX)), (None, None));
    assert_eq!(file.record(0), Some((4096, 24)));
    assert_eq!(file.record(9), Some((4096 + 9 * 24, 24)));
    assert_eq!((file.record(10), file.record(14)), (None, None));
    assert_eq!(file.record(15), Some((4096 + 240, 32)));
    assert_eq!(file.record(18), Some((4096 + 240 + 3 * 32, 32)));
    assert_eq!(file.record(19), None);
    assert_eq!((file.entries(), file.live_entries()), (19, 0));
    let other = place.shared(5, &[tombstones(7, [1]), rows(1, 1, [2])]);
    assert_eq!(tables_of(&[other, Arc::new(file)]), [1, 2, 7]);
    assert!(tables_of(&[]).is_empty());
}

#[test]
fn live_entries_stand_for_their_share_of_the_bytes() {
    assert_eq!(entry_weight(4096, 4), 1024 << 16);
    assert_eq!(entry_weight(10, 3), (10 << 16) / 3);
    assert_eq!(entry_weight(10, 0), 10 << 16);
    assert_eq!(entry_weight(u64::MAX, 1), u64::MAX);
    assert_eq!(entry_weight(u64::MAX, 1 << 20), u64::MAX >> 4);

    let place = Place::new();
    let mut file = place.file(4, &[rows(1, 1, 0..4), tombstones(1, 4..6)]);
    file.meta.bytes = 10_000;
    file.entry_weight = 7;
    let sum = LiveSum::default();
    file.add_live_many(3);
    assert_eq!(sum.load(Ordering::Relaxed), 0, "it is not current yet");
    file.counted_in.set(Arc::clone(&sum)).unwrap();
    assert_eq!((file.live_entries(), file.live_bytes()), (3, 5000));
    file.add_live_many(2);
    assert_eq!(sum.load(Ordering::Relaxed), 14);
    file.add_live();
    assert_eq!((file.live_entries(), file.live_bytes()), (6, 10_000));
    file.sub_live();
    file.sub_live();
    assert_eq!((file.live_entries(), file.live_bytes()), (4, 6666));
    assert_eq!(sum.load(Ordering::Relaxed), 14, "a tally counts these");
    file.count_live(5);
    assert_eq!(sum.load(Ordering::Relaxed), 19);

    let handle = file.file.get().unwrap();
    let view = file.view(handle);
    assert_eq!((view.live_entries(), view.entries()), (4, 6));
    view.sub_live();
    assert_eq!((view.live_entries(), file.live_entries()), (3, 4));
    assert_eq!(view.runs, file.runs);
    assert!(view.counted_in.get().is_none() && view.file.is_synced());
}

#[test]
#[should_panic(expected = "more live entries than entries")]
fn no_more_entries_are_live_than_there_are() {
    let file = Place::new().file(4, &[tombstones(1, 0..6)]);
    file.add_live_many(7);
}

#[test]
#[should_panic(expected = "a stale counter went below zero")]
fn no_fewer_than_no_entries_are_live() {
    Place::new().file(4, &[tombstones(1, 0..6)]).sub_live();
}
