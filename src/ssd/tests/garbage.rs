//! Files that nothing needs any more go after a commit, and before somebody is told that there is no room.

use std::time::Duration;

use super::tier::{checkpoint, commit, flush, made, names, reopened};
use super::*;
use crate::ssd::data_file::DataFile;

/// A tier of which only the last checkpoint needs a file that is not current, and that file.
fn with_old_file() -> (SimDisk, Ssd, Arc<DataFile>) {
    let (disk, ssd) = made(1);
    let old = flush(&ssd, 0, 0..100);
    checkpoint(&ssd, 1, 1);
    flush(&ssd, 0, 200..300);
    ssd.retire(&[old.meta.number]);
    (disk, ssd, old)
}

fn row_files(disk: &SimDisk) -> usize {
    let names = names(disk, "d0");
    names.iter().filter(|name| name.ends_with(".rows")).count()
}

#[test]
fn a_commit_leaves_the_files_to_be_unlinked_later() {
    let (disk, ssd, old) = with_old_file();
    commit(&ssd, 2, 1);
    assert_eq!(row_files(&disk), 2);
    assert_eq!(ssd.usage().pinned_bytes, old.meta.bytes);
    // Another's are not among those that a compaction takes away.
    ssd.retire(&[]);
    assert_eq!(row_files(&disk), 2);
    ssd.collect_garbage();
    assert_eq!((row_files(&disk), ssd.usage().pinned_bytes), (1, 0));
}

/// The next commit came before the files of the last had been unlinked, and had the manifest drop them again: no
/// open would have understood it.
#[test]
fn what_is_left_to_be_unlinked_is_dropped_once() {
    for rolls in [false, true] {
        let (disk, ssd, old) = with_old_file();
        for step in 2..5 {
            if rolls && step == 2 {
                ssd.manifest().files = None;
            }
            commit(&ssd, step, 1);
        }
        assert_eq!(row_files(&disk), 2);
        assert!(ssd.versions().files.contains_key(&old.meta.number));
        drop(ssd);
        let ssd = reopened(&disk);
        assert_eq!(ssd.last_step(), Some(4));
        assert_eq!(row_files(&disk), 1, "it was an orphan");
    }
}

#[test]
fn who_has_no_room_gets_that_of_files_that_nothing_needs() {
    let (disk, mut ssd, old) = with_old_file();
    let usage = ssd.usage();
    ssd.disk_bytes_max = usage.current_bytes + usage.pinned_bytes;
    // The checkpoint needs it.
    let asked = old.meta.bytes;
    let refused = ssd.check_space(0, asked, 0);
    assert!(matches!(refused, Err(Error::NoSpace { .. })), "{refused:?}");
    commit(&ssd, 2, 1);
    let refused = ssd.check_space_as_it_is(0, asked, 0);
    assert!(matches!(refused, Err(Error::NoSpace { .. })), "{refused:?}");
    ssd.check_space(0, asked, 0).unwrap();
    assert_eq!(row_files(&disk), 1);
}

#[test]
fn who_has_no_room_waits_for_files_that_another_is_unlinking() {
    let (_disk, ssd, _) = with_old_file();
    commit(&ssd, 2, 1);
    let attempt = || match ssd.versions().usage().pinned_bytes {
        0 => Ok(()),
        bytes => Err(ssd.no_root_space(bytes, 0, 0)),
    };
    let unlinker = ssd.unlinking.begin();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| ssd.with_snapshot_room(attempt));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!waits.is_finished());
        drop(unlinker);
        waits.join().unwrap().unwrap();
    });
    assert_eq!(ssd.usage().pinned_bytes, 0);
    // Nothing has gone since: it is not tried again.
    let mut attempts = 0;
    let refused = ssd.with_snapshot_room(|| {
        attempts += 1;
        Err::<(), _>(ssd.no_root_space(0, 0, 0))
    });
    assert!(matches!(refused, Err(Error::NoSpace { .. })), "{refused:?}");
    assert_eq!(attempts, 1);
}
