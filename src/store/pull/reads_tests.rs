//! Which rows may be read together, and where they go.

use super::reads::{Goals, Reads};
use crate::CreateOptions;
use crate::Store;
use crate::io::Io;
use crate::ssd::data_file::Location;
use crate::ssd::reader::Want;
use crate::store::tests::{keys, made, made_with, options, set, sgd};
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

fn place(want: &Want) -> (usize, u32) {
    (want.location.slot().index(), want.location.entry())
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
    let places: Vec<(usize, u32)> = wants.iter().map(place).collect();
    assert_eq!(places, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (0, 0)]);
    // A further lot goes on with the tags.
    let (_, wants) = goals.take(refused);
    let tags: Vec<u32> = wants.iter().map(|want| want.tag).collect();
    assert_eq!((tags, goals.len()), (vec![6, 7], 8));
    assert!(Reads::default().is_empty() && Reads::default().first_table().is_none());
}

#[test]
fn slices_have_their_share_of_each_directory_and_neighbours_in_one() {
    let directories = vec!["/a".into(), "/b".into()];
    let create = CreateOptions::new().data_directories(directories);
    let (_disk, store) = made_with(create, options());
    let table = store.create_table(&sgd("rows", 4)).unwrap();
    for file in 1..=2 {
        set(&store, table, &keys(0..200), file as f32);
        store.checkpoint(file, &[]).unwrap();
    }
    let directory = |slot: usize| {
        let files = store.parts.core.ssd.file_slots();
        files[slot].as_ref().unwrap().meta.directory
    };
    assert_eq!([0, 1, 2, 3].map(directory), [0, 1, 0, 1]);
    // 25 and 15 rows of files in one directory, 9 of one in the other, shard after shard.
    let mut all = Reads::default();
    for (shard, rows) in [25, 9, 15].into_iter().enumerate() {
        all.join(reads(&store, shard, shard, rows)).unwrap();
    }
    let slices = all.slices(8);
    assert_eq!(slices.len(), 5);
    let mut places = Vec::new();
    let mut goals = Goals::default();
    for slice in slices {
        assert_eq!(slice.first_table(), Some(0));
        let (before, rows) = (goals.len(), slice.len());
        let (files, wants) = goals.take(slice);
        assert_eq!((wants.len(), goals.len()), (rows, before + rows));
        let slots: Vec<usize> = files.iter().map(|file| file.slot.index()).collect();
        let mut wanted: Vec<usize> = wants.iter().map(|w| w.location.slot().index()).collect();
        let of_b = wanted.iter().filter(|slot| directory(**slot) == 1).count();
        assert_eq!(rows - of_b, 8, "of the first directory");
        assert!((1..=2).contains(&of_b), "of the second one");
        wanted.sort_unstable();
        wanted.dedup();
        assert_eq!(slots, wanted, "the files of its rows, by slot");
        let tags = wants.iter().map(|want| want.tag as usize);
        assert!(tags.eq(before..before + rows));
        places.push(wants.iter().map(place).collect::<Vec<_>>());
    }
    let of_a = |slice: &Vec<(usize, u32)>| slice.iter().filter(|p| p.0 != 1).copied().collect();
    let in_a: Vec<Vec<(usize, u32)>> = places.iter().map(of_a).collect();
    let first = (0..25).map(|entry| (0, entry));
    let order: Vec<(usize, u32)> = first.chain((0..15).map(|entry| (2, entry))).collect();
    assert_eq!(in_a.concat(), order, "neighbours stay together");
    let mut all = places.concat();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 49, "each row once");
    assert!(Reads::default().slices(8).is_empty());
}
