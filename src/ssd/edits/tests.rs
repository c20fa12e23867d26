//! What edits add up to, and which of them contradict the others.

use super::*;
use crate::ssd::tests::rows::{self, file_meta as meta};

fn image(number: u64) -> Edit {
    Edit::Image {
        number,
        bytes: 3,
        checksum: 4,
    }
}

#[test]
fn edits_that_contradict_what_came_before_are_told() {
    let mut replay = Replay::default();
    let mut told = |edit| replay.apply(edit).err().unwrap_or_default();
    let removed = CheckpointId(3);
    let remove = |number, removed| Edit::RemoveFile { number, removed };
    let drop_file = |number| Edit::DropFile { number };
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
    let named = ImageRef {
        number,
        bytes,
        checksum,
    };
    assert_eq!(replay.image, Some(named));
    replay.apply(image(0)).unwrap();
    assert_eq!(replay.image, None);
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
