//! What the sums of a data directory say, file by file.

use super::*;
use crate::format::data_file_name;
use crate::io::OpenMode;
use crate::ssd::data_file::RunState;
use crate::ssd::open_files::Handle;
use crate::ssd::tests::rows::{Place, tombstones};

/// A file of 1000 bytes with ten entries in a data directory.
fn file(place: &Place, number: u64, directory: u32, direct: bool) -> Arc<DataFile> {
    let mut file = place.file(number, &[tombstones(0, 0..10)]);
    (file.meta.bytes, file.meta.directory) = (1000, directory);
    file.states = RunState::of_runs(&file.meta, &file.runs);
    if !direct {
        let name = data_file_name(FileNumber(number));
        let opened = place.directory.open(&name, OpenMode::Read).unwrap();
        file.file = Handle::fixed(opened, true);
    }
    Arc::new(file)
}

#[test]
fn files_come_and_go_with_their_bytes() {
    let place = Place::new();
    let mut held = Held::default();
    assert!(held.is_direct() && held.equals_a_recount());
    assert_eq!(held.usage(), Usage::default());
    let files = [(1, true), (2, false), (3, false)];
    let files = files.map(|(number, direct)| file(&place, number, 0, direct));
    held.insert_closed(70);
    held.insert_closed(u64::MAX);
    held.forget(u64::MAX);
    held.insert_closed(7);
    for file in &files {
        held.enter(Arc::clone(file));
        assert!(held.equals_a_recount());
    }
    files[0].add_live_many(0, 3);
    files[1].add_live_many(0, 2);
    let expected = Usage {
        current_bytes: 3000,
        live_bytes: 500,
        pinned_bytes: 77,
        files: 3,
    };
    assert_eq!((held.usage(), held.is_direct()), (expected, false));
    held.leave(&files[2]);
    held.forget(70);
    assert!(held.equals_a_recount() && !held.is_direct());
    let expected = Usage {
        current_bytes: 2000,
        live_bytes: 500,
        pinned_bytes: 7,
        files: 2,
    };
    assert_eq!(held.usage(), expected);
    let weight = files[1].sub_live(0) + files[1].sub_live(9);
    assert_eq!(weight, 200 << FRACTION_BITS);
    held.live.fetch_sub(weight, Ordering::Relaxed);
    held.leave(&files[1]);
    assert!(held.is_direct() && held.equals_a_recount());
    let sum = expected.plus(&Usage {
        current_bytes: u64::MAX,
        live_bytes: 5,
        pinned_bytes: 6,
        files: 7,
    });
    let expected = Usage {
        current_bytes: u64::MAX,
        live_bytes: 505,
        pinned_bytes: 13,
        files: 9,
    };
    assert_eq!(sum, expected);
    assert_eq!((clamp(5), clamp(u128::MAX)), (5, u64::MAX));
}

#[test]
fn a_recount_sees_what_was_counted_wrong() {
    let place = Place::new();
    let held = || {
        let mut held = Held::default();
        let file = file(&place, 1, 0, true);
        held.enter(Arc::clone(&file));
        file.add_live_many(0, 2);
        assert!(held.equals_a_recount());
        held
    };
    let wrong = |change: fn(&mut Held)| {
        let mut held = held();
        change(&mut held);
        !held.equals_a_recount()
    };
    assert!(wrong(|held| {
        held.live.fetch_add(1, Ordering::Relaxed);
    }));
    assert!(wrong(|held| held.current_bytes += 1));
    assert!(wrong(|held| held.buffered += 1));
}

#[test]
fn a_tally_counts_for_its_directory_at_its_end_and_for_others_at_once() {
    let place = Place::new();
    let mut directories = [Held::default(), Held::default()];
    let files = [(1, 0), (2, 0), (3, 1)];
    let files = files.map(|(number, directory)| file(&place, number, directory, true));
    for file in &files {
        directories[file.meta.directory as usize].enter(Arc::clone(file));
    }
    let live = |directories: &[Held; 2]| [0, 1].map(|d: usize| directories[d].usage().live_bytes);
    let mut tally = Tally::of(&files[0]);
    tally.add_live(&files[0], 3);
    tally.add_live(&files[1], 1);
    tally.add_live(&files[1], 2);
    tally.add_live(&files[2], 4);
    tally.add_live(&files[2], 5);
    tally.sub_live(&files[1], 1);
    tally.sub_live(&files[2], 5);
    assert_eq!(live(&directories), [0, 100]);
    drop(tally);
    assert_eq!(live(&directories), [200, 100]);
    assert_eq!([0, 1, 2].map(|i: usize| files[i].live_entries()), [1, 1, 1]);
    assert!(directories.iter().all(Held::equals_a_recount));
}
