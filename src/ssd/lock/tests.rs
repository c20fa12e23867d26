//! Who is said to have a lock.

use std::path::Path;
use std::sync::Arc;

use super::*;
use crate::io::sim::{Fault, SimDisk};
use crate::io::{Disk, OpenMode};

fn place() -> (SimDisk, Arc<dyn Directory>) {
    let disk = SimDisk::new(1);
    disk.create_dir(Path::new("/store")).unwrap();
    let place = disk.open_dir(Path::new("/store")).unwrap();
    place.open("000000000001.meta", OpenMode::Create).unwrap();
    (disk, place)
}

fn holder(locked: Result<Box<dyn LockGuard>>) -> Holder {
    match locked {
        Err(Error::Locked { holder, .. }) => holder,
        other => panic!("{other:?}"),
    }
}

#[test]
fn whoever_has_a_lock_is_named_by_file_and_kind() {
    use LockKind::{Exclusive, Shared};
    let (_disk, place) = place();
    let meta = |kind| lock(&*place, "000000000001.meta", kind, false);
    let readers = [meta(Shared).unwrap(), meta(Shared).unwrap()];
    assert_eq!(holder(meta(Exclusive)), Holder::Reader);
    drop(readers);
    let dropping = meta(Exclusive).unwrap();
    assert_eq!(holder(meta(Shared)), Holder::Dropping);
    drop(dropping);
    let writer = lock(&*place, LOCK_NAME, Exclusive, true).unwrap();
    let again = |kind| holder(lock(&*place, LOCK_NAME, kind, true));
    assert_eq!(
        (again(Exclusive), again(Shared)),
        (Holder::Writer, Holder::Writer)
    );
    drop(writer);
    // An inspection that looks for an instant is waited for.
    let probe = lock(&*place, LOCK_NAME, Shared, false).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(5));
            drop(probe);
        });
        assert!(lock(&*place, LOCK_NAME, Exclusive, true).is_ok());
    });
    // One that stays is taken for a writer in the end.
    let _stays = lock(&*place, LOCK_NAME, Shared, false).unwrap();
    assert_eq!(again(Exclusive), Holder::Writer);
}

#[test]
fn a_writer_has_the_file_and_the_directory() {
    let (disk, place) = place();
    let locks = lock_writer(&place).unwrap();
    assert_eq!(locks.len(), 2);
    let locked = |place: &Arc<dyn Directory>| {
        let error = lock_writer(place).err().unwrap();
        matches!(
            error,
            Error::Locked {
                holder: Holder::Writer,
                ..
            }
        )
    };
    assert!(locked(&place));
    disk.remove(Path::new("/store/LOCK")).unwrap();
    assert!(locked(&place), "the directory is locked too");
    drop(locks);
    let calls = disk.calls();
    drop(lock_writer(&place).unwrap());
    let calls = disk.calls() - calls;
    let failed = |call, errno| {
        disk.fail_at(disk.calls() + call, Fault::Error(errno), false);
        let locks = lock_writer(&place).map(|locks| locks.len());
        disk.clear_faults();
        locks
    };
    assert!(calls >= 2 && failed(0, 5).is_err());
    assert!(
        failed(calls - 1, 5).is_err(),
        "EIO is no file system without such locks"
    );
}
