//! Is the simulated disk as unkind as a real one?
//!
//! What fails half way, what a crash leaves where nothing was written, and reads that bring
//! something else.

use std::collections::BTreeSet;

use super::super::sim::{CrashMode, Fault, Remnants, SimDisk};
use super::*;

const EIO: Fault = Fault::Error(5);

fn path(name: &str) -> PathBuf {
    Path::new("/").join(name)
}

/// A file, durable with its name.
fn durable(disk: &SimDisk, name: &str, bytes: &[u8]) -> Arc<dyn DiskFile> {
    let file = disk.open(&path(name), OpenMode::Create).unwrap();
    file.write_at(bytes, 0).unwrap();
    file.sync().unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    file
}

fn names(disk: &SimDisk) -> Vec<String> {
    let entries = disk.list(Path::new("/")).unwrap();
    entries.into_iter().map(|entry| entry.name).collect()
}

#[test]
fn names_of_a_failed_directory_sync_may_be_lost_for_good() {
    let mut kept = BTreeSet::new();
    for seed in 0..40 {
        let disk = SimDisk::new(seed);
        for name in ["a", "b", "c"] {
            disk.open(&path(name), OpenMode::Create).unwrap();
        }
        disk.fail_at(disk.calls(), EIO, false);
        disk.sync_dir(Path::new("/")).unwrap_err();
        assert_eq!(names(&disk), ["a", "b", "c"], "lists still show them");
        // The second sync has nothing left to write for them, and says Ok.
        disk.sync_dir(Path::new("/")).unwrap();
        kept.insert(names(&disk.crash(0, CrashMode::KeepAll)).join(""));
        // What comes later is durable as ever.
        disk.open(&path("d"), OpenMode::Create).unwrap();
        disk.sync_dir(Path::new("/")).unwrap();
        let after = names(&disk.crash(0, CrashMode::KeepNone));
        assert!(after.contains(&String::from("d")), "{after:?}");
    }
    assert!(kept.contains("") && kept.contains("abc"), "{kept:?}");
    assert!(kept.contains("a") && kept.contains("c"), "{kept:?}");
}

#[test]
fn a_call_on_names_that_fails_with_an_io_error_may_have_been_done() {
    type Call = fn(&SimDisk) -> std::io::Result<()>;
    let calls: [(&str, Call); 5] = [
        ("create", |disk| {
            disk.open(&path("new"), OpenMode::Create).map(drop)
        }),
        ("mkdir", |disk| disk.create_dir(&path("new"))),
        ("link", |disk| disk.hard_link(&path("old"), &path("new"))),
        ("rename", |disk| disk.rename(&path("old"), &path("new"))),
        ("remove", |disk| disk.remove(&path("old"))),
    ];
    for (kind, call) in calls {
        let outcomes = |errno: i32| -> BTreeSet<Vec<String>> {
            let outcome = |seed| {
                let disk = SimDisk::new(seed);
                durable(&disk, "old", b"bytes");
                disk.fail_at(disk.calls(), Fault::Error(errno), false);
                assert_eq!(call(&disk).unwrap_err().raw_os_error(), Some(errno));
                let failure = disk.failures()[0];
                assert_eq!((failure.kind, failure.errno), (kind, errno));
                names(&disk)
            };
            (0..20).map(outcome).collect()
        };
        assert_eq!(outcomes(5).len(), 2, "{kind}: done or not");
        let old = BTreeSet::from([vec![String::from("old")]]);
        assert_eq!(outcomes(28), old, "{kind}: no room is told before");
        assert_eq!(outcomes(24), old, "{kind}: so are descriptors");
    }
}

#[test]
fn a_crash_does_not_heal_a_lost_sector() {
    let disk = SimDisk::new(1);
    durable(&disk, "file", &[1; 2048]);
    disk.lose_sector(&path("file"), 600).unwrap();
    let after = disk.crash(1, CrashMode::Random);
    let file = after.open(&path("file"), OpenMode::Read).unwrap();
    let mut bytes = [0; 512];
    let error = file.read_at(&mut bytes, 512).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5));
    assert_eq!(after.failures().len(), 1);
    assert_eq!(file.read_at(&mut bytes, 1024).unwrap(), 512);
    // Another file in its place is another place on the device.
    after.write_file(&path("file"), &[2; 2048]).unwrap();
    let file = after.open(&path("file"), OpenMode::Read).unwrap();
    file.read_at(&mut bytes, 512).unwrap();
}

#[test]
fn what_was_never_written_is_zero_or_where_asked_for_junk() {
    let look = |remnants| {
        let disk = SimDisk::new(2);
        durable(&disk, "gone", &[7; 4096]);
        disk.remove(&path("gone")).unwrap();
        disk.sync_dir(Path::new("/")).unwrap();
        let file = durable(&disk, "file", &[1; 700]);
        file.write_at(&[2; 5000], 700).unwrap();
        disk.set_remnants(remnants);
        let mut seen = BTreeSet::new();
        for seed in 0..200 {
            let after = disk.crash(seed, CrashMode::Random);
            let bytes = after.read_file(&path("file")).unwrap();
            assert!(bytes[..700].iter().all(|b| *b == 1), "what was synced");
            seen.extend(bytes[1024.min(bytes.len())..].iter().copied());
            // The next crash is of the same kind.
            let again = after.crash(seed, CrashMode::Random);
            assert_eq!(again.read_file(&path("file")).unwrap(), bytes);
        }
        let none = disk.crash(0, CrashMode::KeepNone);
        assert_eq!(none.read_file(&path("file")).unwrap(), [1; 700]);
        seen
    };
    assert_eq!(look(Remnants::Zeros), BTreeSet::from([0, 2]));
    let junk = look(Remnants::Junk);
    assert!(junk.len() > 100, "random bytes: {}", junk.len());
    assert!(junk.contains(&7), "sectors of a removed file");
}

#[test]
fn a_sector_written_twice_may_come_back_as_it_was_in_between() {
    let disk = SimDisk::new(3);
    let file = durable(&disk, "file", &[1; 512]);
    file.write_at(&[2; 512], 0).unwrap();
    file.write_at(&[3; 512], 0).unwrap();
    let first = |seed| {
        let after = disk.crash(seed, CrashMode::Random);
        after.read_file(&path("file")).unwrap()[0]
    };
    let seen: BTreeSet<u8> = (0..100).map(first).collect();
    assert_eq!(seen, BTreeSet::from([1, 2, 3]));
}

#[test]
fn a_full_disk_and_a_quota_may_refuse_names_too() {
    for (errno, quota) in [(28, false), (122, true)] {
        let disk = SimDisk::new(4);
        let file = durable(&disk, "file", &[1; 8192]);
        match quota {
            true => disk.set_quota(8192),
            false => disk.set_capacity(8192),
        }
        let told = file.write_at(&[1; 512], 8192).unwrap_err();
        assert_eq!(told.raw_os_error(), Some(errno));
        let mut refused = BTreeSet::new();
        for i in 0..40 {
            let new = path(&format!("new-{i}"));
            let results = [
                ("create", disk.open(&new, OpenMode::Create).map(drop)),
                ("mkdir", disk.create_dir(&new.with_extension("dir"))),
                (
                    "link",
                    disk.hard_link(&path("file"), &new.with_extension("l")),
                ),
                ("rename", disk.rename(&new, &new.with_extension("r"))),
            ];
            for (kind, result) in results {
                match result {
                    Ok(()) => {}
                    Err(e) if e.kind() == ErrorKind::NotFound => assert_eq!(kind, "rename"),
                    Err(e) => {
                        assert_eq!(e.raw_os_error(), Some(errno), "{kind}");
                        refused.insert(kind);
                    }
                }
            }
        }
        assert_eq!(refused.len(), 4, "{refused:?}");
        // Removing never needs room.
        disk.remove(&path("file")).unwrap();
        disk.set_capacity(1 << 20);
        disk.open(&path("now"), OpenMode::Create).unwrap();
    }
}

#[test]
fn a_read_may_bring_what_is_elsewhere_or_was_there_before() {
    let disk = SimDisk::new(5);
    let file = durable(&disk, "file", &pattern(4096, 1));
    file.write_at(&[9; 512], 1024).unwrap();
    durable(&disk, "other", &[8; 512]);
    let mut bytes = vec![0; 4096];
    let right = disk.read_file(&path("file")).unwrap();
    for fault in [Fault::Misdirected, Fault::Stale] {
        let mut wrong = 0;
        for _ in 0..100 {
            disk.fail_at(disk.calls(), fault, false);
            assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 4096);
            let differ = |i: &usize| bytes[i * 512..][..512] != right[i * 512..][..512];
            let sectors: Vec<usize> = (0..8).filter(differ).collect();
            assert!(sectors.len() <= 1, "{sectors:?}");
            wrong += sectors.len();
            if fault == Fault::Stale && sectors == [2] {
                assert_eq!(bytes[1024..1536], pattern(4096, 1)[1024..1536]);
            }
        }
        assert!(wrong > 5, "{fault:?}: {wrong}");
        file.read_at(&mut bytes, 0).unwrap();
        assert!(bytes == right, "only that read");
    }
    assert!(disk.failures().is_empty(), "nobody was told");
}

#[test]
fn a_killed_process_loses_nothing_and_makes_nothing_durable() {
    let disk = SimDisk::new(7);
    let file = durable(&disk, "file", &[1; 512]);
    file.write_at(&[2; 512], 0).unwrap();
    disk.rename(&path("file"), &path("new")).unwrap();
    let held = disk.lock(&path("new"), LockKind::Exclusive, false).unwrap();
    let after = disk.killed(1);
    assert_eq!(after.read_file(&path("new")).unwrap(), [2; 512]);
    drop(
        after
            .lock(&path("new"), LockKind::Exclusive, false)
            .unwrap(),
    );
    drop(held);
    let none = after.crash(1, CrashMode::KeepNone);
    assert_eq!(none.read_file(&path("file")).unwrap(), [1; 512]);
    // What the next process syncs is durable with it.
    after.sync_dir(Path::new("/")).unwrap();
    let none = after.crash(1, CrashMode::KeepNone);
    assert_eq!(none.read_file(&path("new")).unwrap(), [1; 512]);
}

#[test]
fn equal_disks_have_equal_digests() {
    let of = sum;
    let disk = SimDisk::new(6);
    durable(&disk, "file", &[1; 2048]);
    let digests: BTreeSet<u128> = [
        disk.digest(of),
        disk.crash(1, CrashMode::Random).digest(of),
        disk.crash(2, CrashMode::KeepAll).digest(of),
    ]
    .into();
    assert_eq!(digests.len(), 1);
    let before = disk.digest(of);
    disk.corrupt(&path("file"), 3, 1).unwrap();
    assert_ne!(disk.digest(of), before, "a byte");
    disk.corrupt(&path("file"), 3, 1).unwrap();
    assert_eq!(disk.digest(of), before);
    disk.lose_sector(&path("file"), 3).unwrap();
    assert_ne!(disk.digest(of), before, "a sector that can't be read");
    let renamed = disk.digest(of);
    disk.rename(&path("file"), &path("elif")).unwrap();
    assert_ne!(disk.digest(of), renamed, "a name");
}

/// A digest that is good enough here (FNV-1a).
fn sum(bytes: &[u8]) -> u128 {
    let mut sum = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    for byte in bytes {
        sum = (sum ^ u128::from(*byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013b);
    }
    sum
}
