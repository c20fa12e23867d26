//! Does the simulated disk lose what a real one may lose, and nothing else?
//!
//! The expected states are those seen on ext4 after cuts, and what POSIX allows beyond them.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::super::Engine;
use super::super::sim::{CrashMode, Fault, SimDisk};
use super::*;

const SEEDS: u64 = 200;

fn path(name: &str) -> PathBuf {
    Path::new("/").join(name)
}

fn create(disk: &SimDisk, name: &str, bytes: &[u8]) -> Arc<dyn DiskFile> {
    let file = disk.open(&path(name), OpenMode::Create).unwrap();
    file.write_at(bytes, 0).unwrap();
    file
}

/// A file, durable with its name.
fn durable(disk: &SimDisk, name: &str, bytes: &[u8]) -> Arc<dyn DiskFile> {
    let file = create(disk, name, bytes);
    file.sync().unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    file
}

fn content(disk: &SimDisk, name: &str) -> Option<Vec<u8>> {
    disk.read_file(&path(name)).ok()
}

/// Everything that crashes with many seeds leave, as seen by `look`.
fn outcomes<T: Ord>(disk: &SimDisk, look: impl Fn(&SimDisk) -> T) -> BTreeSet<T> {
    (0..SEEDS)
        .map(|seed| look(&disk.crash(seed, CrashMode::Random)))
        .collect()
}

#[test]
fn what_was_synced_with_its_name_stays_in_every_mode() {
    let disk = SimDisk::new(1);
    durable(&disk, "file", &pattern(3000, 1));
    for mode in [CrashMode::KeepNone, CrashMode::KeepAll, CrashMode::Random] {
        for seed in 0..SEEDS {
            let after = disk.crash(seed, mode);
            assert_eq!(content(&after, "file"), Some(pattern(3000, 1)));
            assert_eq!(after.calls(), 0);
        }
    }
}

#[test]
fn a_name_is_not_durable_before_its_directory_is_synced() {
    let disk = SimDisk::new(2);
    create(&disk, "file", b"bytes").sync().unwrap();
    let found = outcomes(&disk, |after| content(after, "file"));
    assert_eq!(found, BTreeSet::from([None, Some(b"bytes".to_vec())]));
    assert_eq!(content(&disk.crash(0, CrashMode::KeepNone), "file"), None);
    assert_eq!(
        content(&disk.crash(0, CrashMode::KeepAll), "file"),
        Some(b"bytes".to_vec())
    );
    disk.sync_dir(Path::new("/")).unwrap();
    assert_eq!(outcomes(&disk, |after| content(after, "file")).len(), 1);
}

#[test]
fn a_directory_needs_its_parent_synced_and_its_names_need_it_synced() {
    let disk = SimDisk::new(3);
    disk.create_dir(&path("inner")).unwrap();
    create(&disk, "inner/file", b"x").sync().unwrap();
    disk.sync_dir(&path("inner")).unwrap();
    assert!(disk.crash(0, CrashMode::KeepNone).paths().is_empty());
    disk.sync_dir(Path::new("/")).unwrap();
    assert_eq!(
        disk.crash(0, CrashMode::KeepNone).paths(),
        [path("inner/file")]
    );
}

#[test]
fn unsynced_bytes_vanish_tear_at_sectors_and_leave_any_length() {
    let disk = SimDisk::new(4);
    let old = vec![1; 2048];
    let file = durable(&disk, "file", &old);
    file.write_at(&[2; 4096], 0).unwrap();
    let found = outcomes(&disk, |after| content(after, "file").unwrap());
    for bytes in &found {
        assert!((2048..=4096).contains(&bytes.len()));
        for (index, sector) in bytes.chunks(512).enumerate() {
            assert!(
                sector.iter().all(|byte| *byte == sector[0]),
                "a torn sector"
            );
            let lost = if index < 4 { 1 } else { 0 };
            assert!(
                sector[0] == 2 || sector[0] == lost,
                "{} in sector {index}",
                sector[0]
            );
        }
    }
    let is_torn = |bytes: &&Vec<u8>| bytes[..2048].contains(&1) && bytes[..2048].contains(&2);
    assert!(found.iter().any(|bytes| *bytes == old), "nothing kept");
    assert!(found.contains(&vec![2; 4096]), "everything kept");
    assert!(
        found.iter().filter(is_torn).count() > 5,
        "half old, half new"
    );
    assert!(
        found
            .iter()
            .any(|bytes| bytes.len() > 2560 && bytes[2048..].contains(&0))
    );
    assert!(
        found.iter().any(|bytes| bytes.len() % 512 != 0),
        "any length"
    );
    assert_eq!(
        content(&disk.crash(0, CrashMode::KeepNone), "file"),
        Some(old)
    );
    assert_eq!(
        content(&disk.crash(0, CrashMode::KeepAll), "file"),
        Some(vec![2; 4096])
    );
    file.sync().unwrap();
    assert_eq!(outcomes(&disk, |after| content(after, "file")).len(), 1);
}

#[test]
fn a_later_write_may_survive_an_earlier_one() {
    let disk = SimDisk::new(5);
    let file = durable(&disk, "file", &[0; 1024]);
    file.write_at(&[1; 512], 0).unwrap();
    file.write_at(&[1; 512], 512).unwrap();
    let found = outcomes(&disk, |after| {
        let bytes = content(after, "file").unwrap();
        (bytes[0], bytes[512])
    });
    assert_eq!(found, BTreeSet::from([(0, 0), (0, 1), (1, 0), (1, 1)]));
}

#[test]
fn appended_bytes_in_one_sector_come_with_those_before_them() {
    let disk = SimDisk::new(6);
    let file = create(&disk, "log", &[1; 100]);
    disk.sync_dir(Path::new("/")).unwrap();
    file.write_at(&[2; 100], 100).unwrap();
    for bytes in outcomes(&disk, |after| content(after, "log").unwrap()) {
        if bytes.get(100) == Some(&2) {
            assert_eq!(bytes[..100], [1; 100]);
        }
    }
}

#[test]
fn a_rename_without_a_sync_of_the_directory_gives_either() {
    let disk = SimDisk::new(7);
    durable(&disk, "CURRENT", b"old");
    create(&disk, "CURRENT.tmp", b"new").sync().unwrap();
    disk.rename(&path("CURRENT.tmp"), &path("CURRENT")).unwrap();
    let look = |after: &SimDisk| {
        (
            content(after, "CURRENT").unwrap(),
            content(after, "CURRENT.tmp"),
        )
    };
    let found = outcomes(&disk, look);
    let (old, new) = (b"old".to_vec(), b"new".to_vec());
    let expected = [
        (old.clone(), None),
        (old, Some(new.clone())),
        (new.clone(), None),
    ];
    assert_eq!(found, BTreeSet::from(expected));
    disk.sync_dir(Path::new("/")).unwrap();
    assert_eq!(outcomes(&disk, look), BTreeSet::from([(new, None)]));
}

#[test]
fn a_rename_before_the_sync_of_the_bytes_may_leave_an_empty_file() {
    let disk = SimDisk::new(8);
    durable(&disk, "CURRENT", b"old");
    create(&disk, "CURRENT.tmp", b"new");
    disk.rename(&path("CURRENT.tmp"), &path("CURRENT")).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    let found = outcomes(&disk, |after| content(after, "CURRENT").unwrap());
    assert!(found.contains(b"".as_slice()) && found.contains(b"new".as_slice()));
    assert!(!found.contains(b"old".as_slice()));
}

#[test]
fn a_removed_file_comes_back_unless_its_directory_is_synced() {
    let disk = SimDisk::new(9);
    durable(&disk, "file", b"bytes");
    disk.remove(&path("file")).unwrap();
    let found = outcomes(&disk, |after| content(after, "file"));
    assert_eq!(found, BTreeSet::from([None, Some(b"bytes".to_vec())]));
    disk.sync_dir(Path::new("/")).unwrap();
    assert_eq!(
        outcomes(&disk, |after| content(after, "file")),
        BTreeSet::from([None])
    );
}

#[test]
fn linked_names_are_one_file_after_a_crash_too() {
    let disk = SimDisk::new(10);
    create(&disk, "one", &pattern(4096, 2));
    disk.hard_link(&path("one"), &path("other")).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    for seed in 0..SEEDS {
        let after = disk.crash(seed, CrashMode::Random);
        assert_eq!(content(&after, "one"), content(&after, "other"));
    }
}

#[test]
fn a_crash_depends_on_the_seed_only_and_leaves_the_disk_as_it_was() {
    let disk = SimDisk::new(11);
    let file = create(&disk, "file", &pattern(65536, 3));
    let held = disk.lock(&path("LOCK"), LockKind::Exclusive, true).unwrap();
    let look = |seed| {
        let after = disk.crash(seed, CrashMode::Random);
        after
            .lock(&path("LOCK"), LockKind::Exclusive, true)
            .unwrap();
        content(&after, "file")
    };
    assert!((0..20).all(|seed| look(seed) == look(seed)));
    assert!((0..20).map(look).collect::<BTreeSet<_>>().len() > 5);
    file.write_at(b"goes on", 0).unwrap();
    assert!(disk.lock(&path("LOCK"), LockKind::Exclusive, true).is_err());
    drop(held);
}

#[test]
fn a_sync_does_not_cover_writes_that_were_not_waited_for() {
    let mut seen = BTreeSet::new();
    for seed in 0..20 {
        let disk = SimDisk::new(seed);
        let file = disk.open(&path("file"), OpenMode::CreateDirect).unwrap();
        disk.sync_dir(Path::new("/")).unwrap();
        let mut queue = disk.queue(1, 4096).unwrap();
        let buffer = filled(&mut *queue, &[1; 4096]);
        queue.write(&file, 0, 4096, buffer, 0);
        queue.submit();
        file.sync().unwrap();
        seen.insert(
            content(&disk.crash(0, CrashMode::KeepNone), "file")
                .unwrap()
                .len(),
        );
        assert_eq!(queue.wait().unwrap().result.unwrap(), 4096);
        file.sync().unwrap();
        assert_eq!(
            content(&disk.crash(0, CrashMode::KeepNone), "file"),
            Some(vec![1; 4096])
        );
    }
    assert_eq!(seen, BTreeSet::from([0, 4096]));
}

#[test]
fn completions_come_in_any_order() {
    let disk = SimDisk::new(12);
    let file = disk.open(&path("file"), OpenMode::CreateDirect).unwrap();
    let mut queue = disk.queue(8, 4096).unwrap();
    for tag in 0..8 {
        let buffer = queue.buffer().unwrap();
        queue.write(&file, tag * 4096, 4096, buffer, tag);
    }
    let tags: Vec<u64> = std::iter::from_fn(|| queue.wait())
        .map(|done| done.tag)
        .collect();
    assert!(!tags.is_sorted(), "{tags:?}");
    assert_eq!(tags.iter().collect::<BTreeSet<_>>().len(), 8);
}

#[test]
fn a_disk_that_lies_about_syncs_is_found_out() {
    let disk = SimDisk::new(13);
    disk.set_skip_sync(true);
    durable(&disk, "file", b"bytes");
    assert_eq!(
        content(&disk.crash(0, CrashMode::KeepNone), "file"),
        Some(Vec::new())
    );
    let disk = SimDisk::new(13);
    disk.set_skip_sync_dir(true);
    durable(&disk, "file", b"bytes");
    assert_eq!(content(&disk.crash(0, CrashMode::KeepNone), "file"), None);
}

#[test]
fn the_nth_call_fails_and_the_others_do_not() {
    let disk = SimDisk::new(14);
    let file = durable(&disk, "file", &[1; 4096]);
    assert_eq!(disk.calls(), 4, "create, write, sync, sync_dir");
    assert_eq!(disk.changing_calls(), [0, 1, 2, 3]);
    disk.fail_at(disk.calls() + 1, Fault::Error(5), false);
    let mut bytes = [0; 512];
    file.read_at(&mut bytes, 0).unwrap();
    assert_eq!(
        file.read_at(&mut bytes, 0).unwrap_err().raw_os_error(),
        Some(5)
    );
    file.read_at(&mut bytes, 0).unwrap();
    assert_eq!(disk.calls_by_kind()["read"], 3);
    assert_eq!(disk.changing_calls().len(), 4);
    disk.fail_at(disk.calls(), Fault::Error(28), true);
    assert_eq!(
        file.write_at(&bytes, 0).unwrap_err().raw_os_error(),
        Some(28)
    );
    assert_eq!(
        disk.list(Path::new("/")).unwrap_err().raw_os_error(),
        Some(28)
    );
    disk.clear_faults();
    file.write_at(&bytes, 0).unwrap();
}

#[test]
fn short_and_interrupted_calls_are_absorbed_and_counted() {
    let disk = SimDisk::new(15);
    let file = disk.open(&path("file"), OpenMode::CreateDirect).unwrap();
    let mut buffer = AlignedBuffer::try_new(8192).unwrap();
    buffer.copy_from_slice(&pattern(8192, 4));
    disk.fail_at(disk.calls(), Fault::Interrupted, false);
    disk.fail_at(disk.calls() + 1, Fault::Short, false);
    file.write_at(&buffer, 0).unwrap();
    assert_eq!(disk.calls_by_kind()["write"], 3);
    assert!(content(&disk, "file") == Some(pattern(8192, 4)));
    disk.fail_at(disk.calls(), Fault::Interrupted, false);
    disk.create_dir(&path("inner")).unwrap();
    disk.fail_at(disk.calls(), Fault::Interrupted, false);
    assert_eq!(
        file.sync().unwrap_err().kind(),
        ErrorKind::Interrupted,
        "a sync is final"
    );
    disk.fail_at(disk.calls(), Fault::Short, true);
    file.write_at(&buffer, 0).unwrap();
    assert_eq!(file.read_at(&mut buffer, 0).unwrap(), 8192);
}

#[test]
fn a_stopped_disk_changes_nothing_more() {
    let disk = SimDisk::new(16);
    let file = durable(&disk, "file", b"bytes");
    disk.stop_at(disk.calls() + 1);
    file.write_at(b"BYTES", 0).unwrap();
    assert_eq!(file.sync().unwrap_err().raw_os_error(), Some(5));
    assert_eq!(
        file.write_at(b"never", 0).unwrap_err().raw_os_error(),
        Some(5)
    );
    assert_eq!(
        disk.remove(&path("file")).unwrap_err().raw_os_error(),
        Some(5)
    );
    let found = outcomes(&disk, |after| content(after, "file").unwrap());
    assert_eq!(
        found,
        BTreeSet::from([b"bytes".to_vec(), b"BYTES".to_vec()])
    );
    disk.crash(0, CrashMode::KeepAll)
        .open(&path("file"), OpenMode::Read)
        .unwrap();
}

#[test]
fn what_another_thread_did_before_a_cut_is_on_the_disk_after_it() {
    let disk = SimDisk::new(18);
    durable(&disk, "file", &pattern(1 << 16, 1));
    let (started, starts) = std::sync::mpsc::channel();
    let writer = {
        let disk = disk.clone();
        std::thread::spawn(move || {
            let made = (0..).take_while(|n| {
                if *n == 20 {
                    started.send(()).unwrap();
                }
                disk.create_dir(&path(&n.to_string())).is_ok()
                    && disk.sync_dir(Path::new("/")).is_ok()
            });
            made.count()
        })
    };
    starts.recv().unwrap();
    // Copying it so often takes its time.
    let modes = [CrashMode::KeepNone, CrashMode::KeepAll].repeat(100);
    let left = disk.cut(3, &modes);
    let made = writer.join().unwrap();
    assert!(made >= 20);
    for after in left {
        let found = after.list(Path::new("/")).unwrap().len() - 1;
        // One may have been made and not been acknowledged.
        assert!((made..=made + 1).contains(&found), "{made}, {found}");
    }
}

#[test]
fn bytes_of_a_failed_sync_may_be_lost_for_good() {
    let disk = SimDisk::new(17);
    let file = durable(&disk, "file", &[1; 8192]);
    file.write_at(&[2; 8192], 0).unwrap();
    disk.fail_at(disk.calls(), Fault::Error(5), false);
    file.sync().unwrap_err();
    file.sync().unwrap();
    assert_eq!(
        content(&disk, "file"),
        Some(vec![2; 8192]),
        "reads still see them"
    );
    let after = content(&disk.crash(0, CrashMode::KeepAll), "file").unwrap();
    assert!(after.contains(&1));
}

#[test]
fn a_failed_write_may_leave_some_of_its_sectors() {
    let lengths: BTreeSet<usize> = (0..20)
        .map(|seed| {
            let disk = SimDisk::new(seed);
            let file = create(&disk, "file", b"");
            disk.fail_at(disk.calls(), Fault::Error(5), false);
            file.write_at(&[1; 2048], 0).unwrap_err();
            content(&disk, "file").unwrap().len()
        })
        .collect();
    assert_eq!(lengths, BTreeSet::from([0, 512, 1024, 1536, 2048]));
}

#[test]
fn a_full_disk_refuses_growth_until_there_is_room() {
    let disk = SimDisk::new(18);
    disk.set_capacity(8192);
    let file = create(&disk, "one", &[1; 4096]);
    let other = create(&disk, "other", &[1; 4096]);
    let space = disk.space().unwrap();
    assert_eq!((space.total_bytes, space.free_bytes), (8192, 0));
    assert_eq!(
        file.write_at(&[2; 512], 4096).unwrap_err().kind(),
        ErrorKind::StorageFull
    );
    file.write_at(&[2; 4096], 0).unwrap();
    disk.remove(&path("other")).unwrap();
    assert!(
        file.write_at(&[2; 512], 4096).is_err(),
        "an open file keeps its room"
    );
    drop(other);
    file.write_at(&[2; 512], 4096).unwrap();
}

#[test]
fn planted_and_corrupted_bytes_are_durable_and_no_calls() {
    let disk = SimDisk::new(19);
    disk.write_file(&path("file"), b"abc").unwrap();
    disk.write_file(&path("file"), b"abcd").unwrap();
    disk.corrupt(&path("file"), 1, 0x20).unwrap();
    assert!(disk.corrupt(&path("file"), 4, 1).is_err());
    assert!(disk.corrupt(&path("none"), 0, 1).is_err());
    assert_eq!(
        content(&disk.crash(0, CrashMode::KeepNone), "file"),
        Some(b"aBcd".to_vec())
    );
    assert_eq!(content(&disk, "file"), Some(b"aBcd".to_vec()));
    assert_eq!(disk.calls(), 0);
}

#[test]
fn each_call_takes_the_latency_that_was_set() {
    let disk = SimDisk::new(20);
    disk.set_latency(Duration::from_millis(5));
    let start = Instant::now();
    create(&disk, "file", b"x");
    assert!(start.elapsed() >= Duration::from_millis(10));
}
