//! Which directory does a store write into, and what may it unlink there?
//!
//! - The one that its path led to when it was opened, whatever becomes of the path, of the process'
//!   own directory and of the names above it.
//! - Only files that it made itself.
//! - Running out of descriptors fails the call that needed one, and nothing else.

#![cfg(feature = "sim")]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/child.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod child;
#[path = "common/crash.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod common;
#[path = "common/hooked.rs"]
mod hooked;
#[path = "common/small.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod small;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use child::{Child, role_of_this_process, say};
use common::Run;
use hooked::{Hook, HookedDisk};
use hps::io::sim::{CrashMode, SimDisk};
use hps::*;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use small::{options, set, sgd, values};

/// Weights of a narrow row.
const NARROW_DIM: usize = 256;

const DIM: usize = 16;
const ROOT: &str = "/store";

fn keys() -> Vec<u64> {
    (0..500).map(mix64).collect()
}

/// What a child process does.
#[test]
fn role() {
    let Some((role, place)) = role_of_this_process() else {
        return;
    };
    match role.as_str() {
        "wander" => wander(&place),
        "starve" => starve(&place),
        other => panic!("no role {other}"),
    }
}

/// Makes a store with rows of value 1 and a checkpoint of step 1.
fn make(path: &Path, create: CreateOptions, options: RuntimeOptions) -> (Store, TableId) {
    let store = Store::create(path, create, options).unwrap();
    let table = store.create_table(&sgd("t", DIM)).unwrap();
    train(&store, table, 1);
    (store, table)
}

/// All rows get a value, and a checkpoint has it as its step.
fn train(store: &Store, table: TableId, step: u8) {
    set(store, table, &keys(), f32::from(step), DIM);
    store.checkpoint(u64::from(step), b"meta").unwrap();
}

/// The store is at a step, with all rows.
fn is_at(store: &Store, step: u8) {
    let table = store.table("t").unwrap();
    assert_eq!(store.last_checkpoint().unwrap().step, u64::from(step));
    let found = values(store, table, &keys(), DIM);
    assert_eq!(found, vec![f32::from(step); keys().len() * DIM]);
}

fn files_in(place: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(place).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(files_in(&path));
        } else {
            files.insert(path.clone(), std::fs::read(path).unwrap());
        }
    }
    files
}

/// Works on a store opened by a relative path while the process goes from folder to folder.
fn wander(place: &Path) {
    let go = |to: &str| std::env::set_current_dir(place.join(to)).unwrap();
    let options = options().retain_checkpoints(3);
    let parts = vec!["part-0".into(), "../part-of-mine".into()];
    let create = CreateOptions::new().data_directories(parts);
    go("two");
    let (other, _) = make(Path::new("store"), create.clone(), options.clone());
    other.close().unwrap();
    let before = files_in(&place.join("two"));
    go("one");
    let (store, table) = make(Path::new("store"), create, options);
    go("two");
    train(&store, table, 2);
    train(&store, table, 3);
    let id = store.checkpoints()[1].id;
    let store = store.rollback(id).unwrap();
    is_at(&store, 2);
    train(&store, table, 4);
    store.close().unwrap();
    assert!(files_in(&place.join("two")) == before, "another's folder");
    say("done");
}

/// Two stores were opened by the relative path `store` in two folders. The process went from one
/// folder to the other between two checkpoints of the first: its files and its CURRENT landed in the
/// second, the checkpoint returned Ok, and the first reopened one checkpoint earlier.
#[test]
fn a_store_stays_where_it_was_opened_when_the_process_goes_elsewhere() {
    let place = tempfile::tempdir().unwrap();
    for name in ["one", "two"] {
        std::fs::create_dir(place.path().join(name)).unwrap();
    }
    let mut child = Child::start("wander", place.path());
    assert_eq!(child.listen().as_deref(), Some("done"));
    assert!(child.end().success());
    for (name, step) in [("one", 4), ("two", 1)] {
        let store = Store::open(&place.path().join(name).join("store"), options()).unwrap();
        is_at(&store, step);
        store.close().unwrap();
    }
}

/// Makes a checkpoint while only so many descriptors more may be opened, and again without such a
/// limit if that failed; whether it did.
fn starved(store: &Store, table: TableId, step: u8, left: usize) -> bool {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    set(store, table, &keys(), f32::from(step), DIM);
    setrlimit(Resource::RLIMIT_NOFILE, 256, hard).unwrap();
    let mut taken = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        taken.push(file);
    }
    taken.truncate(taken.len() - left);
    let result = store.checkpoint(u64::from(step), b"meta");
    drop(taken);
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let failed = match result {
        Ok(_) => false,
        Err(Error::Io { source, .. }) => {
            assert_eq!(source.raw_os_error(), Some(24), "{left} left: EMFILE");
            store.checkpoint(u64::from(step), b"meta").unwrap();
            true
        }
        Err(error) => panic!("with {left} descriptors left: {error}"),
    };
    is_at(store, step);
    failed
}

/// Stores that have no file yet, and one that has some to close.
fn starve(place: &Path) {
    let mut failed = 0;
    for left in 0..12 {
        let path = place.join(format!("fresh-{left}"));
        let store = Store::create(&path, CreateOptions::new(), options()).unwrap();
        let table = store.create_table(&sgd("t", DIM)).unwrap();
        failed += u32::from(starved(&store, table, 1, left));
        store.close().unwrap();
    }
    assert!(
        failed > 2,
        "descriptors were not what was missing: {failed}"
    );
    let (store, table) = make(&place.join("store"), CreateOptions::new(), options());
    for left in 0..12 {
        let step = 2 + left;
        let _gave_way = starved(&store, table, step, usize::from(left));
        let checkpoint = store.last_checkpoint().unwrap().id;
        let (mut rows, mut seen) = (store.rows(checkpoint).unwrap(), 0);
        while rows.next_row().unwrap().is_some() {
            seen += 1;
        }
        assert_eq!(seen, keys().len());
    }
    let reopened = store.stats().files_reopened;
    assert!(reopened > 0, "files give way where descriptors are missing");
    store.close().unwrap();
    say("done");
}

/// A directory was opened anew for each sync: one moment without descriptors, and the store refused
/// writes until it was opened again, although nothing was lost.
#[test]
fn running_out_of_descriptors_fails_a_checkpoint_and_not_the_store() {
    let place = tempfile::tempdir().unwrap();
    let mut child = Child::start("starve", place.path());
    assert_eq!(child.listen().as_deref(), Some("done"));
    assert!(child.end().success());
    let store = Store::open(&place.path().join("store"), options()).unwrap();
    is_at(&store, 13);
    store.close().unwrap();
}

fn inline() -> RuntimeOptions {
    options().inline(true).threads(1)
}

fn make_on(disk: &SimDisk, root: &str, create: CreateOptions) -> (Store, TableId) {
    let shared = Arc::new(disk.clone());
    let store = Store::create_on(shared, Path::new(root), create, inline()).unwrap();
    let table = store.create_table(&sgd("t", DIM)).unwrap();
    train(&store, table, 1);
    (store, table)
}

/// A commit that found its file's name taken unlinked what was there: in another's folder, a file of
/// that store.
#[test]
fn a_file_that_is_in_the_way_is_not_unlinked() {
    for kind in ["meta", "manifest", "copy", "rows"] {
        let disk = SimDisk::new(1);
        let (store, table) = make_on(&disk, ROOT, CreateOptions::new());
        store.close().unwrap();
        // The first commit after an open starts a manifest.
        let shared = Arc::new(disk.clone());
        let store = Store::open_on(shared, Path::new(ROOT), inline()).unwrap();
        let directory = if kind == "rows" { "part-0" } else { "." };
        // Numbers go on where the reserve of the last open ends.
        let names: Vec<PathBuf> = (2..300)
            .chain(4098..4400)
            .map(|n| Path::new(ROOT).join(directory).join(name_of(n, kind)))
            .filter(|path| disk.read_file(path).is_err())
            .collect();
        for path in &names {
            disk.write_file(path, b"another's").unwrap();
        }
        set(&store, table, &keys(), 2.0, DIM);
        let error = store.checkpoint(2, b"meta").unwrap_err();
        let Error::Io { source, .. } = &error else {
            panic!("{kind}: {error}");
        };
        assert_eq!(source.raw_os_error(), Some(17), "{kind}: EEXIST");
        for path in &names {
            let found = disk.read_file(path);
            assert_eq!(found.unwrap(), b"another's", "{kind}: {path:?}");
            disk.remove(path).unwrap();
        }
        train(&store, table, 3);
        is_at(&store, 3);
        store.close().unwrap();
    }
}

fn name_of(number: u64, kind: &str) -> String {
    format!("{number:012}.{kind}")
}

/// STORE was read before the lock. A repair that put its store in the place between the two left the
/// new CURRENT with the uuid and the data directories of the damaged store.
#[test]
fn a_store_that_a_repair_has_just_replaced_is_not_the_one_that_is_opened() {
    for read_only in [false, true] {
        let disk = SimDisk::new(1);
        let parts =
            |name: &str| CreateOptions::new().data_directories(vec![format!("/{name}").into()]);
        make_on(&disk, "/store.repair", parts("new"))
            .0
            .close()
            .unwrap();
        let (old, table) = make_on(&disk, ROOT, parts("old"));
        train(&old, table, 2);
        old.close().unwrap();
        let (swapped, swapping) = (AtomicBool::new(false), disk.clone());
        let hook: Hook = Arc::new(move |call, path| {
            if call == "lock" && path.starts_with(ROOT) && !swapped.swap(true, Ordering::Relaxed) {
                let rename = |from: &str, to: &str| swapping.rename(Path::new(from), Path::new(to));
                rename("/store", "/store.damaged").unwrap();
                rename("/store.repair", "/store").unwrap();
            }
            None
        });
        let hooked = Arc::new(HookedDisk::new(disk.clone(), hook));
        let root = Path::new(ROOT);
        let store = match read_only {
            true => Store::open_read_only_on(hooked, root, None, inline()),
            false => Store::open_on(hooked, root, inline()),
        };
        let store = store.unwrap();
        is_at(&store, 1);
        if !read_only {
            train(&store, table, 3);
        }
        store.close().unwrap();
        let damaged = Path::new("/store.damaged");
        let damaged = Store::open_on(Arc::new(disk.clone()), damaged, inline()).unwrap();
        is_at(&damaged, 2);
        damaged.close().unwrap();
    }
}

/// `Store::create("store")` has an empty parent path: the directory's own name was never synced, and
/// a power cut after a checkpoint took the whole store.
#[test]
fn a_store_made_by_a_bare_name_is_there_after_a_power_cut() {
    let disk = SimDisk::new(1);
    let (store, _) = make_on(&disk, "store", CreateOptions::new());
    let left = disk.crash(1, CrashMode::KeepNone);
    drop(store);
    let store = Store::open_on(Arc::new(left), Path::new("store"), inline()).unwrap();
    is_at(&store, 1);
    store.close().unwrap();
}

/// The name of a data directory that was not UTF-8 was stored with other characters in their place:
/// the store was made in a directory that nobody had asked for.
#[test]
fn a_data_directory_whose_path_can_not_be_stored_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let part = place.path().join(std::ffi::OsStr::from_bytes(b"part-\xff"));
    let create = CreateOptions::new().data_directories(vec![part]);
    let root = place.path().join("store");
    let error = Store::create(&root, create.clone(), options()).unwrap_err();
    let invalid = small::invalid(error);
    let is_named =
        matches!(&invalid, ArgumentError::Option { name, .. } if *name == "data_directories");
    assert!(is_named, "{invalid:?}");
    assert!(!root.exists() && files_in(place.path()).is_empty());
    let (store, _) = make(&root, CreateOptions::new(), small::options());
    let id = store.last_checkpoint().unwrap().id;
    let parts = create.data_directories;
    let error = store.export(id, &place.path().join("export"), &parts);
    assert!(matches!(
        small::invalid(error.unwrap_err()),
        ArgumentError::Option { .. }
    ));
    store.close().unwrap();
}

/// Whoever removed LOCK by hand let a second writer in beside the first.
#[test]
fn removing_the_lock_file_lets_no_second_writer_in() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("store");
    let (store, table) = make(&root, CreateOptions::new(), options());
    std::fs::remove_file(root.join("LOCK")).unwrap();
    let error = Store::open(&root, options()).unwrap_err();
    assert!(matches!(error, Error::Locked { .. }), "{error}");
    train(&store, table, 2);
    store.close().unwrap();
    let store = Store::open(&root, options()).unwrap();
    is_at(&store, 2);
    store.close().unwrap();
}

/// The uuids of stores and timelines came from the clock and the process: no crash seed wrote the same
/// bytes twice.
#[test]
fn a_seed_writes_the_same_bytes_each_time() {
    let mut crashes = 0;
    for seed in 0..6 {
        let plan = common::plans::plan(seed);
        let write = |stop: Option<u64>| {
            let disk = SimDisk::new(seed);
            if let Some(stop) = stop {
                disk.stop_at(stop);
            }
            let mut run = Run::of(Arc::new(disk.clone()), &plan);
            let made = run.create();
            if made.is_ok() {
                let _stopped = plan.ops.iter().try_for_each(|op| run.step(op));
            }
            run.store = None;
            let left = disk.crash(seed, CrashMode::Random);
            let bytes = |disk: &SimDisk| -> BTreeMap<PathBuf, Vec<u8>> {
                let read = |path: PathBuf| (path.clone(), disk.read_file(&path).unwrap());
                disk.paths().into_iter().map(read).collect()
            };
            (disk.calls(), bytes(&disk), bytes(&left))
        };
        let (calls, live, left) = write(None);
        let again = write(None);
        assert_eq!(again.0, calls, "seed {seed}: calls");
        assert!(again.1 == live && again.2 == left, "seed {seed}");
        for part in 1..6 {
            let stop = Some(calls * part / 6);
            assert!(
                write(stop) == write(stop),
                "seed {seed}, stopped at {stop:?}"
            );
            crashes += 1;
        }
    }
    assert_eq!(crashes, 30);
}
