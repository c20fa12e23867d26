//! What edits add up to, and which of them contradict the others.

use super::*;
use crate::ssd::tests::rows::{self, file_meta as meta};

fn image(number: u64) -> Edit {
    Edit::Image {
        number: FileNumber(number),
        bytes: 3,
        checksum: 4,
    }
}

#[test]
fn edits_that_contradict_what_came_before_are_told() {
    let mut replay = Replay::default();
    let mut told = |edit| replay.apply(edit).err().unwrap_or_default();
    let removed = CheckpointId(3);
    let remove = |number, removed| Edit::RemoveFile {
        number: FileNumber(number),
        removed,
    };
    let drop_file = |number| Edit::DropFile {
        number: FileNumber(number),
    };
    let forget = |id| Edit::ForgetCheckpoint {
        id: CheckpointId(id),
    };
    assert_eq!(told(Edit::AddFile(meta(5, 2, NOT_REMOVED))), "");
    assert_eq!(
        told(Edit::AddFile(meta(5, 2, NOT_REMOVED))),
        "file 5 is added twice"
    );
    let not_current = |n| format!("file {n} is removed and is not current");
    assert_eq!(told(remove(6, removed)), not_current(6));
    assert_eq!(told(remove(5, CheckpointId(2))), not_current(5));
    assert_eq!(told(remove(5, CheckpointId(1))), not_current(5));
    assert_eq!(told(remove(5, removed)), "");
    assert_eq!(told(remove(5, CheckpointId(4))), not_current(5));
    assert_eq!(told(drop_file(5)), "");
    assert_eq!(told(drop_file(5)), "file 5 is dropped and is not known");
    assert_eq!(told(Edit::Checkpoint(rows::checkpoint(2))), "");
    assert_eq!(
        told(Edit::Checkpoint(rows::checkpoint(2))),
        "checkpoint 2 does not rise"
    );
    assert_eq!(
        told(Edit::Checkpoint(rows::checkpoint(1))),
        "checkpoint 1 does not rise"
    );
    assert_eq!(told(Edit::Checkpoint(rows::checkpoint(4))), "");
    assert_eq!(
        told(forget(3)),
        "checkpoint 3 is forgotten and is not known"
    );
    assert_eq!(told(forget(2)), "");
    assert_eq!(
        told(forget(2)),
        "checkpoint 2 is forgotten and is not known"
    );
    assert_eq!(told(image(0)), "");
    assert_eq!(told(image(9)), "");
    let ids: Vec<u64> = replay.checkpoints.iter().map(|c| c.id.0).collect();
    assert_eq!((ids, replay.files.len()), (vec![4], 0));
    let (number, bytes, checksum) = (9, 3, 4);
    let named = SnapshotPart {
        directory: None,
        number: FileNumber(number),
        bytes,
        checksum,
    };
    assert_eq!(replay.snapshot, [named]);
    replay.apply(image(0)).unwrap();
    assert_eq!(replay.snapshot, []);
}

#[test]
fn a_checkpoint_sees_what_went_up_to_it() {
    let seen = |removed, id| removed_as_of(&meta(1, 1, CheckpointId(removed)), CheckpointId(id));
    assert_eq!((seen(3, 3), seen(3, 4)), (CheckpointId(3), CheckpointId(3)));
    assert_eq!(
        (seen(3, 2), seen(NOT_REMOVED.0, 9)),
        (NOT_REMOVED, NOT_REMOVED)
    );
}

/// An image of version 1 and parts are never in force together.
#[test]
fn parts_replace_an_image_and_each_other_by_directory() {
    let part = |directory, number| SnapshotPart {
        directory,
        number: FileNumber(number),
        bytes: 4096 * number,
        checksum: !number,
    };
    let mut replay = Replay::default();
    let mut now = |edit: Edit| -> Vec<(Option<u32>, u64)> {
        replay.apply(edit).unwrap();
        let parts = replay.snapshot.iter();
        assert!(parts.clone().all(|p| *p == part(p.directory, p.number.0)));
        for (number, kind) in (1..9)
            .map(FileNumber)
            .flat_map(|n| FileKind::ALL.map(|kind| (n, kind)))
        {
            let whole = |p: &SnapshotPart| match p.directory {
                Some(_) => FileKind::Snapshot,
                None => FileKind::Image,
            };
            let is = |p: &SnapshotPart| p.number == number && whole(p) == kind;
            assert_eq!(replay.has_part(kind, number), parts.clone().any(is));
        }
        parts.map(|p| (p.directory, p.number.0)).collect()
    };
    assert_eq!(now(part(None, 1).edit()), [(None, 1)]);
    assert_eq!(now(part(None, 2).edit()), [(None, 2)]);
    assert_eq!(now(part(Some(3), 4).edit()), [(Some(3), 4)]);
    assert_eq!(now(part(Some(1), 5).edit()), [(Some(1), 5), (Some(3), 4)]);
    assert_eq!(now(part(Some(3), 6).edit()), [(Some(1), 5), (Some(3), 6)]);
    assert_eq!(now(SnapshotPart::none(2)), [(Some(1), 5), (Some(3), 6)]);
    assert_eq!(now(SnapshotPart::none(1)), [(Some(3), 6)]);
    assert_eq!(now(part(None, 7).edit()), [(None, 7)]);
    let none = part(None, 0).edit();
    assert_eq!(now(none), []);
}

/// With a directory the only list of its keys was lost: a repair could not say which rows were.
#[test]
fn a_part_lies_in_the_directory_after_that_whose_keys_it_has() {
    let part = |directory| SnapshotPart {
        directory,
        number: FileNumber(7),
        bytes: 0,
        checksum: 0,
    };
    let homes = |directories: u32| -> Vec<usize> {
        let homes = (0..directories).map(|d| part(Some(d)).home(directories as usize));
        homes.map(Option::unwrap).collect()
    };
    assert_eq!(homes(1), [0]);
    assert_eq!(homes(2), [1, 0]);
    assert_eq!(homes(5), [1, 2, 3, 4, 0]);
    assert_eq!(part(None).home(5), None);
    assert!(part(Some(4)).fits(5) && !part(Some(5)).fits(5) && part(None).fits(0));
    assert_eq!(part(Some(0)).file_name(), "000000000007.snapshot");
    assert_eq!(part(None).file_name(), "000000000007.image");
}
