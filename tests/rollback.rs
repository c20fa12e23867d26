//! What does a rollback look at before it changes anything?
//!
//! Until these tests it wrote CURRENT first and opened the store then. Where tables that came back could
//! not be had, the caller got an error, no handle, and a store that had lost its later checkpoints and
//! did not open with his options any more.

#![expect(
    clippy::unwrap_used,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/manifests.rs"]
mod manifests;
#[path = "common/small.rs"]
mod small;

use std::path::{Path, PathBuf};

use hps::format::manifest::Edit;
use hps::io::Io;
use hps::io::sim::SimDisk;
use hps::*;
use manifests::forge;
use small::{fill, invalid, sgd, values};

const ROOT: &str = "/store";
const WIDE: usize = 8192;
const FIRST: CheckpointId = CheckpointId(1);
const SECOND: CheckpointId = CheckpointId(2);

fn options() -> RuntimeOptions {
    small::options().inline(true).cache_bytes(16 << 20)
}

fn open(disk: &SimDisk, options: RuntimeOptions) -> Store {
    Store::open_on(Io::of(disk.clone()), Path::new(ROOT), options).unwrap()
}

/// The first checkpoint has a table of long rows beside another; it is dropped in the second one.
fn store(wide: &TableDescriptor) -> SimDisk {
    let disk = SimDisk::new(1);
    let io = Io::of(disk.clone());
    let root = Path::new(ROOT);
    let store = Store::create_on(io, root, CreateOptions::new(), options()).unwrap();
    let id = store.create_table(wide).unwrap();
    let narrow = store.create_table(&sgd("narrow", 4)).unwrap();
    fill(&store, narrow, 20, 20, 1.0, 4);
    fill(&store, id, 10, 5, 2.0, wide.dim);
    store.checkpoint(1, b"first").unwrap();
    store.drop_table(id).unwrap();
    fill(&store, narrow, 20, 20, 3.0, 4);
    store.checkpoint(2, b"second").unwrap();
    store.close().unwrap();
    disk
}

fn content(disk: &SimDisk) -> Vec<(PathBuf, Option<Vec<u8>>)> {
    let paths = disk.paths().into_iter();
    let file = |path: PathBuf| {
        let bytes = disk.read_file(&path).ok();
        (path, bytes)
    };
    paths.map(file).collect()
}

/// Asks for a rollback to the first checkpoint, which is refused: every byte stays as it is, and the
/// store opens again as it was.
fn refused(disk: &SimDisk, options: &RuntimeOptions) -> Error {
    let store = open(disk, options.clone());
    let before = content(disk);
    // Who asks first is told the same, and has the store.
    let told = store.check_rollback(FIRST).unwrap_err();
    let error = store.rollback(FIRST).map(drop).unwrap_err();
    assert_eq!(told.to_string(), error.to_string());
    assert!(content(disk) == before, "nothing is written: {error}");
    let store = open(disk, options.clone());
    let last = store.last_checkpoint().unwrap();
    assert_eq!((last.id, store.checkpoints().len()), (SECOND, 2));
    assert_eq!(store.checkpoint_meta(last.id).unwrap(), b"second");
    let narrow = store.table("narrow").unwrap();
    assert_eq!(values(&store, narrow, &[mix64(3)], 4), [3.0; 4]);
    store.close().unwrap();
    error
}

#[test]
fn a_table_that_comes_back_and_has_no_room_in_the_cache_is_refused_before_anything_changes() {
    let disk = store(&sgd("wide", WIDE));
    // Enough for the rows of the other table.
    let small = options().cache_bytes(1 << 20).shards(16);
    let error = refused(&disk, &small);
    let ArgumentError::Option { name, why, .. } = invalid(error) else {
        unreachable!("it is the cache");
    };
    assert_eq!(name, "cache_bytes");
    assert!(
        why.contains("one row of each of 2 sizes, up to 8192 f32s, needs")
            && why.ends_with("(table \"wide\")"),
        "{why}"
    );
    // What is refused is what an open refuses.
    let io = Io::of(disk.clone());
    let read = Store::open_read_only_on(io, Path::new(ROOT), Some(FIRST), small);
    assert!(matches!(
        invalid(read.map(drop).unwrap_err()),
        ArgumentError::Option {
            name: "cache_bytes",
            ..
        }
    ));
    // With room it comes back.
    let store = open(&disk, options()).rollback(FIRST).unwrap();
    let wide = store.table("wide").unwrap();
    assert_eq!(values(&store, wide, &[mix64(3)], WIDE), [2.0; WIDE]);
    let last = store.last_checkpoint().unwrap();
    assert_eq!((last.id, store.checkpoints().len()), (FIRST, 1));
    store.close().unwrap();
}

#[test]
fn a_table_that_comes_back_with_weights_of_two_bytes_is_refused_before_anything_changes() {
    for dtype in [Dtype::F16, Dtype::Bf16] {
        let disk = store(&sgd("wide", 6));
        // Its rows are as long.
        let narrow = sgd("wide", 12).dtype(dtype);
        forge(&disk, |edits| {
            for edit in edits {
                if let Edit::Table { id: 0, descriptor } = edit {
                    descriptor.clone_from(&narrow);
                }
            }
        });
        let error = refused(&disk, &options());
        let Error::UnsupportedTable { table, dtype: said } = &error else {
            unreachable!("{error}");
        };
        assert_eq!((table.as_str(), *said), ("wide", dtype.name()));
    }
}

/// The id of a checkpoint that is not durable yet was unknown or not, as the thread had come.
#[test]
fn a_rollback_waits_for_the_checkpoint_that_is_running() {
    let disk = store(&sgd("wide", 6));
    let store = open(&disk, options().inline(false).retain_checkpoints(3));
    let narrow = store.table("narrow").unwrap();
    fill(&store, narrow, 20, 20, 5.0, 4);
    let ticket = store.checkpoint_begin(3, b"third").unwrap();
    let store = store.rollback(CheckpointId(3)).unwrap();
    assert_eq!(ticket.wait().unwrap().step, 3);
    assert_eq!(store.checkpoints().len(), 3);
    assert_eq!(values(&store, narrow, &[mix64(3)], 4), [5.0; 4]);
    store.close().unwrap();
}
