//! Is a file that may be closed and opened again as good as one that stays open?
//!
//! Stores with more parameter files than may be open, on a disk in memory: iterators that outlive a
//! checkpoint or their store, checkpoints forgotten while they are opened, and no descriptors left.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/hooked.rs"]
mod hooked;
#[path = "common/small.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod small;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, Barrier};

use hooked::{Hook, HookedDisk};
use hps::io::Io;
use hps::io::sim::SimDisk;
use hps::*;
use nix::errno::Errno;
use small::{set, sgd};

const ROOT: &str = "/store";
const DIM: usize = 64;
const FILES: u64 = 22;
const KEYS_PER_FILE: u64 = 8;

fn options() -> RuntimeOptions {
    RuntimeOptions::new()
        .cache_bytes(1 << 20)
        .shards(1)
        .threads(1)
        .io_depth(8)
        .open_files_max(16)
        .retain_checkpoints(3)
        .inline(true)
}

fn keys_of(file: u64) -> Vec<u64> {
    (0..KEYS_PER_FILE)
        .map(|i| file * KEYS_PER_FILE + i)
        .collect()
}

/// A store with two checkpoints, the first of `FILES` files, the second of as many more.
fn grown(disk: impl Into<Io>) -> (Store, TableId) {
    let store = Store::create_on(disk, Path::new(ROOT), CreateOptions::new(), options()).unwrap();
    let table = store.create_table(&sgd("rows", DIM)).unwrap();
    for step in 1..=2 {
        for file in (step - 1) * FILES..step * FILES {
            set(&store, table, &keys_of(file), step as f32, DIM);
            store.flush().unwrap();
        }
        store.checkpoint(step, &[]).unwrap();
    }
    let stats = store.stats();
    assert!(stats.files >= 40 && stats.open_files <= 17, "{stats:?}");
    (store, table)
}

/// The rows of an iterator, by key.
fn rows_of(iter: &mut RowIter) -> Result<BTreeMap<u64, f32>> {
    let mut rows = BTreeMap::new();
    while let Some(row) = iter.next_row()? {
        rows.insert(row.key, row.values[0]);
    }
    Ok(rows)
}

fn expected(checkpoint: u64) -> BTreeMap<u64, f32> {
    let keys = 0..checkpoint * FILES * KEYS_PER_FILE;
    keys.map(|k| (k, 1.0 + (k / (FILES * KEYS_PER_FILE)) as f32))
        .collect()
}

fn file_names(disk: &SimDisk) -> Vec<PathBuf> {
    let is_rows = |p: &PathBuf| p.extension().is_some_and(|e| e == "rows");
    disk.paths().into_iter().filter(is_rows).collect()
}

/// The new store that a rollback opens unlinks the files of later checkpoints. It knew nothing of
/// an iterator of the old one, whose closed files could not be opened any more.
#[test]
fn an_iterator_of_a_checkpoint_outlives_a_rollback_behind_it() {
    let disk = SimDisk::new(1);
    let (store, _) = grown(Arc::new(disk.clone()));
    let mut iter = store.rows(CheckpointId(2)).unwrap();
    let before = file_names(&disk).len();
    let store = store.rollback(CheckpointId(1)).unwrap();
    assert!(file_names(&disk).len() < before, "nothing was unlinked");
    assert_eq!(rows_of(&mut iter).unwrap(), expected(2));
    assert_eq!(
        rows_of(&mut store.rows(CheckpointId(1)).unwrap()).unwrap(),
        expected(1)
    );
    store.close().unwrap();
}

/// The same where its store was closed, and another one forgot the checkpoint.
#[test]
fn an_iterator_of_a_checkpoint_outlives_its_store() {
    let disk = SimDisk::new(1);
    let (store, table) = grown(Arc::new(disk.clone()));
    let mut iter = store.rows(CheckpointId(2)).unwrap();
    store.close().unwrap();
    let store = Store::open_on(Arc::new(disk.clone()), Path::new(ROOT), options()).unwrap();
    for file in 0..2 * FILES {
        store.remove(table, &keys_of(file)).unwrap();
    }
    for step in 3..6 {
        store.compact_fully().unwrap();
        store.checkpoint(step, &[]).unwrap();
    }
    let ids: Vec<CheckpointId> = store.checkpoints().iter().map(|c| c.id).collect();
    assert!(!ids.contains(&CheckpointId(2)), "{ids:?}");
    assert!(file_names(&disk).len() < 20, "nothing was unlinked");
    assert_eq!(rows_of(&mut iter).unwrap(), expected(2));
    store.close().unwrap();
}

/// Its files are opened without a lock. One that was unlinked meanwhile was told as damage: the
/// manifest names this file and it is missing.
#[test]
fn a_checkpoint_that_is_forgotten_while_it_is_opened_is_unknown_and_no_damage() {
    forgotten_after(0);
    forgotten_after(3);
}

/// Two checkpoints are forgotten when so many files of the first were opened.
fn forgotten_after(files: i64) {
    let (arrived, resumed) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let opens = Arc::new(AtomicI64::new(-files));
    let mut hooked = HookedDisk::new(SimDisk::new(1), Arc::new(|_, _: &Path| None));
    hooked.reads = Some({
        let (arrived, resumed) = (arrived.clone(), resumed.clone());
        Arc::new(move |call, path: &Path| {
            let reader = std::thread::current().name() == Some("reader");
            let rows = path.extension().is_some_and(|e| e == "rows");
            if reader && call == "open" && rows && opens.fetch_add(1, Relaxed) == 0 {
                arrived.wait();
                resumed.wait();
            }
            None
        })
    });
    let (store, table) = grown(Arc::new(hooked));
    // No file of checkpoint 1 is one of the current version.
    for file in 0..FILES {
        store.remove(table, &keys_of(file)).unwrap();
    }
    store.flush().unwrap();
    while store.compact_fully().unwrap() > 0 {}
    store.checkpoint(3, &[]).unwrap();
    std::thread::scope(|scope| {
        let reader = std::thread::Builder::new().name(String::from("reader"));
        let reader = reader.spawn_scoped(scope, || store.rows(CheckpointId(1)).map(drop));
        arrived.wait();
        store
            .drop_checkpoints(&[CheckpointId(1), CheckpointId(2)])
            .unwrap();
        resumed.wait();
        match reader.unwrap().join().unwrap() {
            Err(Error::InvalidArgument(ArgumentError::UnknownCheckpoint {
                id: CheckpointId(1),
                ..
            })) => {}
            other => panic!("after {files} files: {other:?}"),
        }
    });
    store.close().unwrap();
}

/// Each file that a queue has a request for is open. A pull of more files than the process may have
/// open failed, although its own requests would have given back what it needed.
#[test]
fn a_pull_without_descriptors_waits_for_those_that_it_has() {
    let disk = SimDisk::new(1);
    drop(grown(Arc::new(disk.clone())));
    // Counts down the opens of row files; negative: all succeed.
    let opens = Arc::new(AtomicI64::new(i64::MIN));
    let mut hooked = HookedDisk::new(disk, Arc::new(|_, _: &Path| None));
    let hook: Hook = {
        let opens = opens.clone();
        Arc::new(move |call, path: &Path| {
            let rows = path.extension().is_some_and(|e| e == "rows");
            if call != "open" || !rows {
                return None;
            }
            let n = opens.fetch_add(1, Relaxed);
            // Four are opened; then one fails, and again after others were closed.
            (n >= 0 && n % 6 > 3).then(|| Err(Errno::EMFILE.into()))
        })
    };
    hooked.reads = Some(hook);
    let store = Store::open_on(Arc::new(hooked), Path::new(ROOT), options()).unwrap();
    let table = store.table("rows").unwrap();
    let keys: Vec<u64> = (0..2 * FILES).map(|file| file * KEYS_PER_FILE).collect();
    let mut out = vec![0.0; keys.len() * DIM];
    opens.store(0, Relaxed);
    drop(store.pull(table, &keys, &mut out).unwrap());
    assert!(
        out.chunks(DIM)
            .zip(&keys)
            .all(|(row, key)| row[0] == expected(2)[key])
    );
    assert!(opens.load(Relaxed) > 24, "few files were opened again");
    store.close().unwrap();
}
