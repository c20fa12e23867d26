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
fn live_entries_stand_for_their_records_and_a_share_of_the_rest() {
    let place = Place::new();
    // Records of 24 and of 144 bytes: 4 * 24 + 4 * 144 = 672, and 1000 beside them.
    let parts = [rows(1, 1, 0..4), tombstones(1, 4..6), rows(2, 32, 0..4)];
    let mut file = place.file(4, &parts);
    assert_eq!((file.runs[0].stride, file.runs[2].stride), (24, 144));
    file.meta.bytes = 1672;
    file.states = RunState::of_runs(&file.meta, &file.runs);
    let sum = LiveSum::default();
    file.add_live_many(0, 2);
    assert_eq!(sum.load(Ordering::Relaxed), 0, "it is not current yet");
    file.counted_in.set(Arc::clone(&sum)).unwrap();
    assert_eq!((file.live_entries(), file.live_bytes()), (2, 248));
    let bytes = |bytes: u64| bytes << FRACTION_BITS;
    file.add_live_many(2, 4);
    assert_eq!(sum.load(Ordering::Relaxed), bytes(4 * 244));
    assert_eq!(file.live_weight(), bytes(2 * 124 + 4 * 244));
    file.add_live_many(0, 2);
    file.add_live_many(1, 1);
    let before = sum.load(Ordering::Relaxed);
    let weights = |entries: [u32; 3]| entries.map(|entry| file.sub_live(entry));
    assert_eq!(file.add_live(5), bytes(100));
    assert_eq!((file.live_entries(), file.live_bytes()), (10, 1672));
    // An entry of each run: the same number of bytes is live, whichever it is of a run.
    assert_eq!(weights([0, 4, 6]), [bytes(124), bytes(100), bytes(244)]);
    assert_eq!(file.live_bytes(), 1672 - 124 - 100 - 244);
    assert_eq!(weights([3, 5, 9]), [bytes(124), bytes(100), bytes(244)]);
    assert_eq!((file.live_entries(), file.live_bytes()), (4, 1672 - 936));
    assert_eq!(sum.load(Ordering::Relaxed), before, "a tally counts these");
    file.count_live(5);
    assert_eq!(sum.load(Ordering::Relaxed), before + 5);

    let handle = file.file.get().unwrap();
    let view = file.view(handle);
    assert_eq!((view.live_entries(), view.entries()), (4, 10));
    assert_eq!(view.live_bytes(), file.live_bytes());
    assert_eq!(view.sub_live(7), bytes(244));
    assert_eq!((view.live_entries(), file.live_entries()), (3, 4));
    assert_eq!(view.runs, file.runs);
    assert!(view.counted_in.get().is_none() && view.file.is_synced());
}

#[test]
fn weights_of_strange_sizes_do_not_overflow() {
    let mut file = Place::new().file(4, &[rows(1, 1, 0..4), tombstones(1, 4..6)]);
    let weights = |file: &DataFile| {
        let states = RunState::of_runs(&file.meta, &file.runs);
        states.iter().map(|s| s.weight).collect::<Vec<_>>()
    };
    // Fewer bytes than its records have.
    file.meta.bytes = 10;
    assert_eq!(weights(&file), [24 << 16, 0]);
    file.meta.bytes = u64::MAX;
    assert_eq!(weights(&file), [u64::MAX; 2]);
    (file.meta.rows, file.meta.tombstones) = (u64::MAX, u64::MAX);
    file.meta.bytes = 96 + 10;
    assert_eq!(weights(&file), [24 << 16, 0]);
    file.runs.clear();
    assert!(weights(&file).is_empty());
}

#[test]
#[should_panic(expected = "has no entry 6")]
fn an_entry_that_is_not_there_is_not_counted() {
    let file = Place::new().file(4, &[tombstones(1, 0..6)]);
    assert_eq!(file.add_live(6), 0);
}

#[test]
#[should_panic(expected = "more live entries than entries")]
fn no_more_entries_are_live_than_there_are() {
    let file = Place::new().file(4, &[tombstones(1, 0..6)]);
    file.add_live_many(0, 7);
}

#[test]
#[should_panic(expected = "a stale counter went below zero")]
fn no_fewer_than_no_entries_are_live() {
    let file = Place::new().file(4, &[tombstones(1, 0..6)]);
    assert_eq!(file.sub_live(0), 0);
}
