//! What a reader says of a CURRENT that stays the same, and of one that does not.

use std::path::Path;

use super::*;
use crate::io::sim::{Fault, SimDisk};
use crate::ssd::tests::tier::{ROOT, checkpoint, flush, made};

const ENOENT: i32 = 2;
const STORE: [u8; 16] = [1; 16];

/// A store with two checkpoints, and its directory.
fn store() -> (SimDisk, Ssd) {
    let (disk, ssd) = made(1);
    for step in [1, 2] {
        flush(&ssd, 0, 0..10);
        checkpoint(&ssd, step, 2);
    }
    (disk, ssd)
}

#[test]
fn a_reader_gets_the_checkpoint_it_asks_for_or_the_last() {
    let (_disk, ssd) = store();
    let locked = |id| {
        lock_checkpoint(&*ssd.root, id, &STORE).map(|(current, replay, checkpoint, _)| {
            let ids: Vec<u64> = replay.checkpoints.iter().map(|c| c.id.0).collect();
            (current.checkpoint_id.0, ids, checkpoint.id.0)
        })
    };
    assert_eq!(locked(None).unwrap(), (2, vec![1, 2], 2));
    assert_eq!(locked(Some(CheckpointId(1))).unwrap(), (2, vec![1, 2], 1));
    let unknown = locked(Some(CheckpointId(3))).unwrap_err().to_string();
    assert_eq!(
        unknown,
        "invalid argument: no checkpoint 3; retained: [1, 2]"
    );
    let held = ssd.hold(CheckpointId(1)).unwrap();
    assert!(ssd.hold(CheckpointId(7)).is_err());
    // It is not dropped while it is held.
    checkpoint(&ssd, 3, 1);
    let ids = |ssd: &Ssd| {
        ssd.versions()
            .checkpoints
            .iter()
            .map(|c| c.id.0)
            .collect::<Vec<_>>()
    };
    assert_eq!(ids(&ssd), [1, 3]);
    drop(held);
    checkpoint(&ssd, 4, 1);
    assert_eq!(ids(&ssd), [4]);
}

#[test]
fn damage_beside_a_current_that_stays_the_same_is_said_at_once() {
    let (disk, ssd) = store();
    let (meta, manifest) = {
        let meta = ssd.versions().checkpoints[1].meta_number;
        (meta, ssd.manifest().current.manifest_number)
    };
    let lock = || lock_checkpoint(&*ssd.root, None, &STORE).map(|_| ());
    let calls = disk.calls();
    lock().unwrap();
    let healthy = disk.calls() - calls;
    let told = |name: String| {
        let path = Path::new(ROOT).join(&name);
        let aside = Path::new(ROOT).join("aside");
        disk.rename(&path, &aside).unwrap();
        let calls = disk.calls();
        let error = lock().unwrap_err();
        let calls = disk.calls() - calls;
        disk.rename(&aside, &path).unwrap();
        assert!(
            calls < 2 * healthy,
            "{calls} calls, {healthy} if it is whole"
        );
        assert!(matches!(error, Error::Corrupt { .. }), "{error}");
        error.to_string()
    };
    assert!(told(file_name(FileKind::Meta, meta)).contains(".meta"));
    assert!(told(file_name(FileKind::Manifest, manifest)).contains(".manifest"));
    assert!(told(String::from(CURRENT_NAME)).contains("CURRENT"));
    // Other errors are no damage, and said as well.
    for call in 0..healthy {
        disk.fail_at(disk.calls() + call, Fault::Error(5), false);
        let result = lock();
        disk.clear_faults();
        if let Err(error) = result {
            assert!(matches!(error, Error::Io { .. }), "call {call}: {error}");
        }
    }
    lock().unwrap();
}

#[test]
fn what_goes_wrong_while_current_changes_is_read_again() {
    let (disk, ssd) = store();
    let lock = || lock_checkpoint(&*ssd.root, None, &STORE).map(|locked| locked.2.id.0);
    // Calls of one look at CURRENT.
    let calls = disk.calls();
    read_whole(&*ssd.root, CURRENT_NAME, 4096).unwrap();
    let look = disk.calls() - calls;
    let without = |calls: &[u64]| {
        let now = disk.calls();
        for call in calls {
            disk.fail_at(now + call, Fault::Error(ENOENT), false);
        }
        let locked = lock();
        disk.clear_faults();
        locked
    };
    // It was not there twice, and then it is; it was there, is not twice, and then it is.
    assert_eq!(without(&[0, 1]).unwrap(), 2);
    assert_eq!(without(&[look, look + 1]).unwrap(), 2);
    let error = without(&[0, 1, 2]).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
}

#[test]
fn a_checkpoint_that_is_being_dropped_is_waited_for() {
    let (disk, ssd) = store();
    let name = file_name(FileKind::Meta, ssd.versions().checkpoints[1].meta_number);
    let alone = disk
        .lock(&Path::new(ROOT).join(name), LockKind::Exclusive, false)
        .unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(50));
            drop(alone);
        });
        let since = std::time::Instant::now();
        lock_checkpoint(&*ssd.root, None, &STORE).unwrap();
        assert!(since.elapsed() >= READER_PAUSE);
    });
}
