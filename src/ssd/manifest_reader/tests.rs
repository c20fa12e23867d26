//! Which numbers a writer could have made, to the last one.

use super::*;
use crate::format::manifest::FileMeta;
use crate::ssd::tests::rows::{Place, checkpoint, tombstones};
use crate::ssd::tests::tier::made;
use crate::units::FileNumber;

const FAR: u64 = u64::MAX / 4;

/// What is said of a file, a checkpoint and a CURRENT that are right, after a change.
fn checked(change: &dyn Fn(&mut FileMeta, &mut CheckpointMeta, &mut Current)) -> bool {
    let mut file = Place::new().file(8, &[tombstones(0, 0..10)]).meta;
    let mut checkpoint = CheckpointMeta {
        step: 1,
        ..checkpoint(3)
    };
    let (_disk, ssd) = made(1);
    let mut current = ssd.manifest().current;
    (current.checkpoint_id, current.file_number_limit) = (CheckpointId(3), FileNumber(10));
    (file.directory, file.bytes) = (1, 1000);
    change(&mut file, &mut checkpoint, &mut current);
    let replay = Replay {
        files: [(file.number, file)].into(),
        checkpoints: vec![checkpoint],
        ..Replay::default()
    };
    match check_sanity(Path::new("/store"), &current, &replay, 2) {
        Ok(()) => true,
        Err(Error::Corrupt { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn numbers_are_believed_up_to_the_last_that_can_be() {
    assert!(checked(&|_, _, _| ()));
    let file = |change: &dyn Fn(&mut FileMeta)| checked(&|file, _, _| change(file));
    assert!(!file(&|f| f.directory = 2) && file(&|f| f.directory = 0));
    assert!(file(&|f| f.rank = FAR) && !file(&|f| f.rank = FAR + 1));
    assert!(file(&|f| f.added.0 = 3) && !file(&|f| f.added.0 = 4));
    assert!(file(&|f| f.number = FileNumber(9)) && !file(&|f| f.number = FileNumber(10)));
    let most = u64::from(u32::MAX);
    assert!(file(&|f| f.rows = most - 10) && !file(&|f| f.rows = most - 9));
    assert!(!file(&|f| f.rows = u64::MAX));
    // With the meta file together.
    assert!(file(&|f| f.bytes = FAR - 100) && !file(&|f| f.bytes = FAR - 99));
    assert!(!file(&|f| f.bytes = u64::MAX));
    let point = |change: &dyn Fn(&mut CheckpointMeta)| checked(&|_, point, _| change(point));
    assert!(point(&|c| c.interval = u32::MAX / 2) && !point(&|c| c.interval = u32::MAX / 2 + 1));
    assert!(point(&|c| c.next_rank = FAR) && !point(&|c| c.next_rank = FAR + 1));
    assert!(
        point(&|c| c.meta_number = FileNumber(9)) && !point(&|c| c.meta_number = FileNumber(10))
    );
    let current = |change: &dyn Fn(&mut Current)| checked(&|_, _, current| change(current));
    assert!(
        current(&|c| c.file_number_limit = FileNumber(FAR))
            && !current(&|c| c.file_number_limit = FileNumber(FAR + 1))
    );
    let next = |id| current(&|c| c.next_checkpoint_id.0 = id);
    assert!(next(FAR) && !next(FAR + 1));
}
