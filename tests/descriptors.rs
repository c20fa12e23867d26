//! Does a store with more files than its process may open do all that others do?
//!
//! It is made in a process that may have 64 descriptors, all in all, rings and directories included.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/child.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod child;
#[path = "common/small.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod small;

use std::path::Path;

use child::{Child, role_of_this_process, say};
use hps::*;
use nix::sys::resource::{Resource, setrlimit};
use small::sgd;

/// Rows of 2 KiB: a file of 1 MiB has some 500.
const DIM: usize = 512;
const KEYS: u64 = 64_000;
const BATCH: u64 = 1000;
const DESCRIPTORS: u64 = 64;

fn options() -> RuntimeOptions {
    RuntimeOptions::new()
        .cache_bytes(8 << 20)
        .file_bytes(1 << 20)
        .threads(2)
        .shards(2)
        .io_depth(16)
        .retain_checkpoints(2)
}

/// What a child process does.
#[test]
fn role() {
    let Some((role, place)) = role_of_this_process() else {
        return;
    };
    setrlimit(Resource::RLIMIT_NOFILE, DESCRIPTORS, DESCRIPTORS).unwrap();
    match role.as_str() {
        "train" => train(&place),
        "read" => read(&place),
        "share" => share(&place),
        other => panic!("no role {other}"),
    }
}

/// Which round a key was last written in.
fn round_of(key: u64) -> u32 {
    if key.is_multiple_of(3) { 2 } else { 1 }
}

fn write(store: &Store, table: TableId, keys: &[u64], round: u32) {
    let mut rows = vec![0.0; keys.len() * DIM];
    let lease = store.pull(table, keys, &mut rows).unwrap();
    for (row, key) in rows.chunks_mut(DIM).zip(keys) {
        row.fill(value(*key, round));
    }
    store.push(&lease, Update::weights(&rows)).unwrap();
}

fn value(key: u64, round: u32) -> f32 {
    let key = u32::try_from(key).expect("few keys");
    (key % 8192) as f32 * 8.0 + round as f32
}

fn all_are_there(store: &Store, table: TableId) {
    let mut rows = vec![0.0; usize::try_from(BATCH).unwrap() * DIM];
    for first in 0..KEYS / BATCH {
        // Keys of a batch are in files all over.
        let keys: Vec<u64> = (0..BATCH).map(|i| first + i * (KEYS / BATCH)).collect();
        drop(store.pull(table, &keys, &mut rows).unwrap());
        for (row, key) in rows.chunks(DIM).zip(&keys) {
            let expected = value(*key, round_of(*key));
            assert!(row.iter().all(|x| *x == expected), "key {key}");
        }
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn train(place: &Path) {
    let create = CreateOptions::new().data_directories(vec!["a".into(), "b".into()]);
    let store = Store::create(&place.join("store"), create, options()).unwrap();
    let table = store.create_table(&sgd("rows", DIM)).unwrap();
    let max = store.stats().open_files_max;
    assert_eq!(max, DESCRIPTORS / 2);
    let mut step = 0;
    for round in 1..=2 {
        let keys: Vec<u64> = (0..KEYS)
            .filter(|key| round == 1 || round_of(*key) == 2)
            .collect();
        for batch in keys.chunks(usize::try_from(BATCH).unwrap()) {
            write(&store, table, batch, round);
            step += 1;
            if step % 20 == 0 {
                store.checkpoint(step, &[]).unwrap();
            }
            let stats = store.stats();
            assert!(stats.open_files <= max + 8, "{} open", stats.open_files);
        }
    }
    store.checkpoint(step + 1, &[]).unwrap();
    all_are_there(&store, table);
    let stats = store.stats();
    assert!(stats.files > 200, "{} files", stats.files);
    assert!(stats.compactions > 0);
    assert!(descriptors() < usize::try_from(DESCRIPTORS).unwrap());
    store.close().unwrap();
    say("done");
}

/// Opens the store again, reads all of it by key and row by row, and goes on.
fn read(place: &Path) {
    let store = Store::open(&place.join("store"), options()).unwrap();
    let table = store.table("rows").unwrap();
    all_are_there(&store, table);
    let last = store.last_checkpoint().unwrap();
    let mut rows = store.rows(last.id).unwrap();
    let mut count = 0;
    while let Some(row) = rows.next_row().unwrap() {
        assert_eq!(row.values[0], value(row.key, round_of(row.key)));
        count += 1;
    }
    drop(rows);
    assert_eq!(count, KEYS);
    write(&store, table, &[0, 3, 6], 2);
    store.checkpoint(last.step + 1, &[]).unwrap();
    store
        .export(CheckpointId(last.id.0 + 1), &place.join("export"), &[])
        .unwrap();
    store.close().unwrap();
    let export = Store::open(&place.join("export"), options_of_export()).unwrap();
    all_are_there(&export, export.table("rows").unwrap());
    export.close().unwrap();
    say("done");
}

/// Others in the process take all descriptors that are left, while the store's own are all in use.
fn share(place: &Path) {
    let store = Store::open(&place.join("store"), options()).unwrap();
    let table = store.table("rows").unwrap();
    all_are_there(&store, table);
    let stats = store.stats();
    assert!(stats.open_files + 1 >= stats.open_files_max, "{stats:?}");
    let mut taken = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        taken.push(file);
    }
    let last = store.last_checkpoint().unwrap();
    let keys: Vec<u64> = (0..BATCH).map(|i| 3 * i).collect();
    write(&store, table, &keys, 2);
    store.flush().unwrap();
    store.checkpoint(last.step + 1, &[]).unwrap();
    let mut found = store.rows(CheckpointId(last.id.0 + 1)).unwrap();
    assert!(found.next_row().unwrap().is_some());
    drop((found, taken));
    all_are_there(&store, table);
    store.close().unwrap();
    say("done");
}

fn options_of_export() -> RuntimeOptions {
    options().open_files_max(16)
}

/// `share`: a flush and a checkpoint failed for as long as others had the descriptors: nobody closed
/// files for them, though a read did.
///
/// A descriptor was kept for every parameter file: a store of terabytes needed 100 000 of them, and
/// with 64 a store of some hundred files could not be opened.
#[test]
fn a_store_has_several_times_as_many_files_as_its_process_may_open() {
    let place = tempfile::tempdir().unwrap();
    for role in ["train", "read", "share"] {
        let mut child = Child::start(role, place.path());
        assert_eq!(child.listen().as_deref(), Some("done"), "{role}");
        assert!(child.end().success());
    }
    // A reader has them all open, and needs no more than that.
    let root = place.path().join("store");
    let reader = Store::open_read_only(&root, None, options()).unwrap();
    let stats = reader.stats();
    assert_eq!(stats.open_files, stats.files);
    all_are_there(&reader, reader.table("rows").unwrap());
    reader.close().unwrap();
}
