//! Does one bad sector, or one full disk, stop more than itself?
//!
//! Compaction is background work: nobody sees it fail until the disk is full. So each test trains
//! long enough for a store without compaction to grow many times over, and then looks at what is
//! on the disk.

#![expect(
    clippy::unwrap_used,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/hooked.rs"]
mod hooked;
#[path = "common/small.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod small;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hooked::{Hook, HookedDisk};
use hps::io::Io;
use hps::io::sim::SimDisk;
use hps::*;
use nix::errno::Errno;
use small::{set, sgd};

const ROOT: &str = "/store";
const DIM: usize = 64;
const KEYS: u64 = 6000;
const BATCH: usize = 500;

fn options() -> RuntimeOptions {
    small::options().file_bytes(1 << 20).retain_checkpoints(1)
}

fn make(disk: impl Into<Io>, directories: usize, options: RuntimeOptions) -> (Store, TableId) {
    let parts = (0..directories).map(|i| format!("disk-{i}").into());
    let create = CreateOptions::new().data_directories(parts.collect());
    let store = Store::create_on(disk, Path::new(ROOT), create, options).unwrap();
    let table = store.create_table(&sgd("rows", DIM)).unwrap();
    (store, table)
}

/// Changes two rows of three, other ones each round, so that files grow stale bit by bit; a row of
/// sixteen is left as it is.
fn train(store: &Store, table: TableId, round: u64) {
    let chosen = |key: &u64| !key.is_multiple_of(16) && !mix(key ^ round << 32).is_multiple_of(3);
    let keys: Vec<u64> = (0..KEYS).filter(chosen).collect();
    for batch in keys.chunks(BATCH) {
        set(store, table, batch, round as f32, DIM);
    }
}

fn mix(x: u64) -> u64 {
    let x = (x ^ x >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^ x >> 29
}

fn fill(store: &Store, table: TableId) {
    let keys: Vec<u64> = (0..KEYS).collect();
    for batch in keys.chunks(BATCH) {
        set(store, table, batch, 0.5, DIM);
    }
}

/// The file of a directory that has the most live rows.
fn largest(store: &Store, directory: u32) -> FileInfo {
    let files = store.files().into_iter();
    let files = files.filter(|f| f.current && f.directory == directory);
    files.max_by_key(|f| f.live_entries).unwrap()
}

/// No read gets the last key block of a file: pulls don't need it, a compaction does.
fn spoil(disk: &SimDisk, file: &FileInfo) {
    disk.lose_sector(&file.path, file.bytes - 8192).unwrap();
}

/// Bytes of the current files of a directory, and those that their live rows stand for; files that
/// are left out do not count.
fn bytes_of(store: &Store, directory: u32, left_out: &[FileNumber]) -> (u64, u64) {
    let files = store.files().into_iter();
    let files = files.filter(|f| f.current && f.directory == directory);
    let files = files.filter(|f| !left_out.contains(&f.number));
    files.fold((0, 0), |sum, f| (sum.0 + f.bytes, sum.1 + f.live_bytes))
}

/// Waits until a directory is inside its bound, and two files.
fn is_bounded(store: &Store, directory: u32, left_out: &[FileNumber]) {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let (bytes, live) = bytes_of(store, directory, left_out);
        if bytes <= 2 * live + (2 << 20) {
            return;
        }
        assert!(
            Instant::now() < until,
            "directory {directory} has {bytes} bytes of files for {live} live ones"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// An unreadable sector was met again every half second, and nothing else was compacted: neither
/// the other files of its directory nor those of any directory after it. The store grew until
/// pulls gave `NoSpace`.
#[test]
fn one_bad_sector_leaves_the_other_files_and_directories_compacting() {
    let disk = SimDisk::new(1);
    let (store, table) = make(Arc::new(disk.clone()), 2, options());
    fill(&store, table);
    store.flush().unwrap();
    let bad = largest(&store, 0);
    spoil(&disk, &bad);
    for round in 0..16 {
        train(&store, table, round);
    }
    store.flush().unwrap();
    is_bounded(&store, 1, &[]);
    is_bounded(&store, 0, &[bad.number]);
    let stats = store.stats();
    assert_eq!((stats.files_set_aside, stats.compaction_failures), (1, 1));
    assert_eq!(stats.directories_paused, 0, "a bad file is no bad disk");
    let files = store.files();
    let file = files.iter().find(|f| f.number == bad.number).unwrap();
    let why = file.set_aside.as_ref().unwrap();
    assert!(why.contains(file.path.to_str().unwrap()), "{why}");
    let aside = files.iter().filter(|f| f.set_aside.is_some()).count();
    assert_eq!(aside, 1);
    let directories = store.directories();
    let failures: Vec<u64> = directories.iter().map(|d| d.compaction_failures).collect();
    assert_eq!(failures, [1, 0]);
    assert!(
        directories.iter().all(|d| d.compactions > 0),
        "{directories:?}"
    );
    assert_eq!(directories[0].files_set_aside, 1);
    // Once nothing of it is needed, it goes unread.
    fill(&store, table);
    store.flush().unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while store.files().iter().any(|f| f.number == bad.number) {
        assert!(Instant::now() < until, "a dead file is not retired");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(store.stats().files_set_aside, 0);
    store.close_discarding();
}

/// As above: the disk is a small one, so that growing ends the training. Compaction is slower than
/// training: a flush without room got `NoSpace` while a compaction was about to make some.
#[test]
fn a_store_with_a_bad_sector_stays_within_its_limit() {
    let disk = SimDisk::new(1);
    let hook: Hook = Arc::new(move |call, _| {
        let thread = std::thread::current();
        if call == "create" && thread.name().is_some_and(|n| n.starts_with("hps-compact")) {
            std::thread::sleep(Duration::from_millis(50));
        }
        None
    });
    let (store, table) = make(
        Arc::new(HookedDisk::new(disk.clone(), hook)),
        1,
        options().disk_bytes_max(12 << 20),
    );
    fill(&store, table);
    store.flush().unwrap();
    spoil(&disk, &largest(&store, 0));
    let keys: Vec<u64> = (0..KEYS).collect();
    let mut out = vec![0.0; BATCH * DIM];
    for round in 0..40 {
        for batch in keys.chunks(BATCH) {
            let lease = store.pull(table, batch, &mut out);
            let lease = lease.unwrap_or_else(|e| panic!("round {round}: {e}"));
            out.fill(round as f32);
            store.push(&lease, Update::weights(&out)).unwrap();
        }
    }
    store.close_discarding();
}

/// The first directory that had no room for an output was asked again every half second, and the
/// directories after it never.
#[test]
fn a_full_disk_leaves_the_others_compacting() {
    let disk = SimDisk::new(1);
    let full = Arc::new(AtomicBool::new(false));
    let refused = Arc::new(AtomicUsize::new(0));
    let hook: Hook = {
        let (full, refused) = (Arc::clone(&full), Arc::clone(&refused));
        Arc::new(move |call, path| {
            let thread = std::thread::current();
            let compaction = thread.name().is_some_and(|n| n.starts_with("hps-compact"));
            let there = path.starts_with("/store/disk-0") && call == "create";
            let hit = compaction && there && full.load(Ordering::Relaxed);
            hit.then(|| {
                refused.fetch_add(1, Ordering::Relaxed);
                Err(Errno::ENOSPC.into())
            })
        })
    };
    let hooked = HookedDisk::new(disk, hook);
    let (store, table) = make(Arc::new(hooked), 2, options());
    fill(&store, table);
    full.store(true, Ordering::Relaxed);
    for round in 0..16 {
        train(&store, table, round);
    }
    store.flush().unwrap();
    is_bounded(&store, 1, &[]);
    let stats = store.stats();
    assert_eq!((stats.files_set_aside, stats.directories_paused), (0, 1));
    let failure = store.directories()[0].failure.clone().unwrap();
    assert!(failure.contains("/store/disk-0"), "{failure}");
    assert!(
        refused.load(Ordering::Relaxed) > 0,
        "no compaction of the full disk was tried"
    );
    full.store(false, Ordering::Relaxed);
    is_bounded(&store, 0, &[]);
    store.close_discarding();
}

/// A quota that was used up (EDQUOT) came as `Io`, so that nobody made room and tried again; and a
/// disk that filled up during a write was told with the room of the store's own directory, which
/// may be on another one.
#[test]
fn a_disk_or_a_quota_that_fills_up_is_told_with_its_own_room() {
    for errno in [Errno::ENOSPC, Errno::EDQUOT] {
        let full = Arc::new(AtomicBool::new(false));
        let measured: Arc<Mutex<Vec<PathBuf>>> = Arc::default();
        let hook: Hook = {
            let full = Arc::clone(&full);
            Arc::new(move |call, path| {
                let there = path.starts_with("/store/disk-1") && call == "create";
                (there && full.load(Ordering::Relaxed)).then(|| Err(errno.into()))
            })
        };
        let asked: Hook = {
            let measured = Arc::clone(&measured);
            Arc::new(move |call, path| {
                if call == "space" {
                    measured.lock().unwrap().push(path.to_path_buf());
                }
                None
            })
        };
        let mut hooked = HookedDisk::new(SimDisk::new(1), hook);
        hooked.reads = Some(asked);
        let options = options().inline(true);
        let (store, table) = make(Arc::new(hooked), 2, options);
        set(
            &store,
            table,
            &(0..BATCH as u64).collect::<Vec<_>>(),
            0.5,
            DIM,
        );
        full.store(true, Ordering::Relaxed);
        let error = store.flush().unwrap_err();
        let Error::NoSpace { path, .. } = &error else {
            panic!("{errno}: {error:?}");
        };
        assert_eq!(
            path,
            Path::new("/store/disk-1"),
            "the directory that is full"
        );
        let last = measured.lock().unwrap().last().cloned();
        assert_eq!(last.as_deref(), Some(path.as_path()), "measured");
        full.store(false, Ordering::Relaxed);
        store.flush().unwrap();
        store.close_discarding();
    }
}
