//! Which files are needed, where they stand, and what becomes garbage.

use super::*;
use crate::ssd::tests::rows::{Place, checkpoint, file_meta, tombstones};

fn meta(number: u64, added: u64, removed: u64) -> FileMeta {
    file_meta(number, added, CheckpointId(removed))
}

fn with_checkpoints(ids: &[u64]) -> Versions {
    Versions {
        checkpoints: ids.iter().copied().map(checkpoint).collect(),
        ..Versions::default()
    }
}

#[test]
fn a_file_is_needed_from_the_checkpoint_it_came_with_to_the_one_it_was_gone_with() {
    let mut versions = with_checkpoints(&[3, 7]);
    let needed = |versions: &Versions, added, removed| versions.is_needed(&meta(1, added, removed));
    assert!(needed(&versions, 3, 4) && needed(&versions, 1, 4) && needed(&versions, 7, 8));
    assert!(!needed(&versions, 1, 3) && !needed(&versions, 4, 7) && !needed(&versions, 8, 9));
    assert!(needed(&versions, 9, NOT_REMOVED.0), "the current version");
    versions.captured = Some(CheckpointId(9));
    assert!(needed(&versions, 9, 10) && !needed(&versions, 8, 9));
    assert!(!needed(&versions, 10, 11) && needed(&versions, 5, 10));
}

#[test]
fn ranks_rise_and_slots_are_used_again() {
    let mut versions = Versions {
        next_rank: 5,
        ..Versions::default()
    };
    assert_eq!([0; 3].map(|_| versions.take_rank()), [5, 6, 7]);
    assert_eq!(versions.next_rank, 8);
    let slots = Slots::default();
    let mut take = || versions.take_slot(&slots).unwrap();
    assert_eq!([take(), take(), take()], [0, 1, 2].map(FileSlot::new));
    versions.free_slots.push(FileSlot::new(1));
    let mut take = || versions.take_slot(&slots).unwrap();
    assert_eq!([take(), take()], [1, 3].map(FileSlot::new));
    let all = slots.read().unwrap();
    assert_eq!(all.len(), 4);
}

/// A file at the next free slot, current in a data directory.
fn install(versions: &mut Versions, slots: &Slots, number: u64, directory: u32) -> Arc<DataFile> {
    let mut file = Place::new().file(number, &[tombstones(0, 0..10)]);
    (file.meta.directory, file.meta.bytes) = (directory, 1000);
    file.meta.added = versions.next_checkpoint;
    file.slot = versions.take_slot(slots).unwrap();
    let file = Arc::new(file);
    versions.install(slots, Arc::clone(&file));
    file
}

fn numbers(garbage: &[FileState]) -> Vec<FileNumber> {
    garbage.iter().map(|state| state.meta.number).collect()
}

#[test]
fn files_are_installed_retired_and_taken_away() {
    let (mut versions, slots) = (with_checkpoints(&[1]), Slots::default());
    versions.next_checkpoint = CheckpointId(2);
    let [first, second] = [(4, 0), (5, 2)].map(|(n, d)| install(&mut versions, &slots, n, d));
    let slot = |n: usize| slots.read().unwrap()[n].as_ref().map(|f| f.meta.number);
    assert_eq!(
        (slot(0), slot(1)),
        (Some(FileNumber(4)), Some(FileNumber(5)))
    );
    let current = |v: &Versions| v.current().map(|f| f.meta.number).collect::<Vec<_>>();
    assert_eq!(current(&versions), [4, 5].map(FileNumber));
    assert_eq!(
        (versions.held().len(), versions.held()[1].usage().files),
        (3, 0)
    );
    let usage = |v: &Versions| {
        (
            v.usage().files,
            v.usage().current_bytes,
            v.usage().pinned_bytes,
        )
    };
    assert_eq!(usage(&versions), (2, 2000, 0));
    assert_eq!(versions.usage_of(|d| d == 2).current_bytes, 1000);
    assert_eq!(versions.usage_of(|d| d == 1), Usage::default());
    assert_eq!(versions.files[&FileNumber(4)].recorded, None);

    // A file of the retained checkpoint, which is not open.
    versions.insert_closed(meta(3, 1, 2), Some(CheckpointId(2)));
    let bytes = versions.files[&FileNumber(3)].meta.bytes;
    assert_eq!(usage(&versions), (2, 2000, bytes));
    assert_eq!(
        versions.files[&FileNumber(3)].recorded,
        Some(CheckpointId(2))
    );
    versions.retire(&slots, FileNumber(99));
    versions
        .aside
        .insert(FileNumber(5), String::from("unreadable"));
    versions.retire(&slots, FileNumber(5));
    assert!(versions.aside.is_empty());
    assert_eq!((current(&versions), slot(1)), (vec![FileNumber(4)], None));
    assert_eq!(versions.files[&FileNumber(5)].meta.removed, CheckpointId(2));
    assert_eq!(usage(&versions), (1, 1000, bytes + 1000));
    // No checkpoint has it: it was added with the next one and removed with it.
    assert!(numbers(&versions.take_garbage_among(&[4, 3, 77].map(FileNumber))).is_empty());
    assert_eq!(
        numbers(&versions.take_garbage_among(&[FileNumber(5)])),
        [FileNumber(5)]
    );
    assert_eq!(usage(&versions), (1, 1000, bytes));
    versions.checkpoints.clear();
    assert_eq!(numbers(&versions.take_garbage()), [FileNumber(3)]);
    assert!(versions.take_garbage().is_empty());
    assert_eq!((usage(&versions), versions.files.len()), ((1, 1000, 0), 1));
    let third = install(&mut versions, &slots, 6, 0);
    assert_eq!(
        [third.slot, first.slot, second.slot].map(FileSlot::index),
        [1, 0, 1]
    );
}

#[test]
fn a_known_file_becomes_current_at_its_slot() {
    let (mut versions, slots) = (with_checkpoints(&[1]), Slots::default());
    let known = meta(3, 1, NOT_REMOVED.0);
    versions.insert_closed(known, None);
    let mut file = Place::new().file(3, &[tombstones(0, 0..10)]);
    file.meta = known;
    file.slot = versions.take_slot(&slots).unwrap();
    let file = Arc::new(file);
    versions.opened(&slots, Arc::clone(&file));
    let usage = versions.usage();
    assert_eq!(
        (usage.files, usage.current_bytes, usage.pinned_bytes),
        (1, known.bytes, 0)
    );
    assert!(slots.read().unwrap()[0].is_some() && versions.retired.is_empty());
    assert!(versions.take_garbage().is_empty());
    let stranger = Place::new().shared(9, &[tombstones(0, 0..10)]);
    versions.opened(&slots, stranger);
    assert_eq!(versions.usage().files, 1, "nobody knows it");
}

#[test]
fn what_is_set_aside_is_not_chosen_from() {
    let (mut versions, slots) = (Versions::default(), Slots::default());
    let files = [(4, 0), (5, 0), (6, 1)].map(|(n, d)| install(&mut versions, &slots, n, d));
    for file in &files {
        file.add_live_many(0, 5);
    }
    for number in [5, 6, 99] {
        versions
            .aside
            .insert(FileNumber(number), String::from("unreadable"));
    }
    let aside = |d| {
        versions
            .aside_in(d)
            .map(|f| f.meta.number)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (aside(0), aside(1), aside(7)),
        (vec![FileNumber(5)], vec![FileNumber(6)], vec![])
    );
    let of = |d| {
        let usage = versions.choosable(d);
        (usage.files, usage.current_bytes)
    };
    assert_eq!((of(0), of(1), of(7)), ((1, 1000), (0, 0), (0, 0)));
    let live = versions.choosable(0).live_bytes;
    assert_eq!(
        live,
        versions.usage_of(|d| d == 0).live_bytes - files[1].live_bytes()
    );
    assert!(live > 0);
}

#[test]
fn tombstones_stay_as_long_as_somebody_may_ask_for_them() {
    let mut versions = Versions::default();
    assert_eq!(versions.horizon(), u32::MAX, "nobody can ask");
    // All of them may be younger than the first checkpoint, which is on its way.
    versions.captured = Some(CheckpointId(1));
    assert_eq!(versions.horizon(), 0);
    versions.checkpoints = [(1, 5), (2, 7)]
        .map(|(id, interval)| CheckpointMeta {
            interval,
            ..checkpoint(id)
        })
        .to_vec();
    assert_eq!(versions.horizon(), 5);
    for (interval, horizon) in [(9, 5), (3, 3), (0, 0)] {
        let cursor = Cursor {
            checkpoint: CheckpointId(1),
            interval,
        };
        versions.cursors.insert(String::from("reader"), cursor);
        assert_eq!(versions.horizon(), horizon);
    }
}
