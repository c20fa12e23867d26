//! Which rows may be read together, and where they go.

use super::reads::{Goals, Reads};
use crate::Store;
use crate::io::Io;
use crate::ssd::data_file::Location;
use crate::ssd::reader::Want;
use crate::store::tests::{keys, made, options, set, sgd};
use crate::units::{FileSlot, Slot};

/// A store with so many files of rows.
fn with_files(files: u64) -> (Io, Store) {
    let (disk, store) = made(options());
    let table = store.create_table(&sgd("rows", 4)).unwrap();
    for file in 1..=files {
        set(&store, table, &keys(0..50), file as f32);
        store.checkpoint(file, &[]).unwrap();
    }
    (disk, store)
}

/// Reads of so many rows of a shard, all of the file at a slot.
fn reads(store: &Store, shard: usize, slot: usize, rows: u32) -> Reads {
    let mut reads = Reads::default();
    for entry in 0..rows {
        let location = Location::new(FileSlot::new(slot), false, entry);
        reads.push(shard, (0, Slot::NONE, entry), (location, 7, 4));
    }
    reads.pin(&store.parts.core.ssd.file_slots());
    reads
}

#[test]
fn rows_of_several_shards_are_read_together_unless_a_slot_has_another_file() {
    let (_disk, store) = with_files(2);
    let (_other_disk, other) = with_files(1);
    let mut all = reads(&store, 0, 0, 3);
    all.join(reads(&store, 1, 1, 2)).unwrap();
    all.join(reads(&store, 2, 0, 1)).unwrap();
    all.join(Reads::default()).unwrap();
    assert_eq!(all.len(), 6);
    let refused = all.join(reads(&other, 3, 0, 2)).unwrap_err();
    assert_eq!((all.len(), refused.len()), (6, 2));
    let mut goals = Goals::default();
    assert_eq!((goals.len(), all.first_table()), (0, Some(0)));
    let (files, wants) = goals.take(all);
    assert_eq!((goals.len(), goals.tables()), (6, 1));
    let slots: Vec<usize> = files.iter().map(|file| file.slot.index()).collect();
    assert_eq!(slots, [0, 1], "each file once");
    let tags: Vec<u32> = wants.iter().map(|want| want.tag).collect();
    assert_eq!(tags, [0, 1, 2, 3, 4, 5]);
    let place = |want: &Want| (want.location.slot().index(), want.location.entry());
    let places: Vec<(usize, u32)> = wants.iter().map(place).collect();
    assert_eq!(places, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (0, 0)]);
    // A further lot goes on with the tags.
    let (_, wants) = goals.take(refused);
    let tags: Vec<u32> = wants.iter().map(|want| want.tag).collect();
    assert_eq!((tags, goals.len()), (vec![6, 7], 8));
    assert!(Reads::default().is_empty() && Reads::default().first_table().is_none());
}
