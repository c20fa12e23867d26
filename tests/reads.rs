//! How many device reads does a batch make, and how long are they?

#[path = "common/small.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod small;

use std::path::Path;
use std::sync::Arc;

use hps::io::sim::SimDisk;
use hps::*;
use small::{options, set, sgd};

const ROOT: &str = "/store";
/// Rows of nearly 4 KiB.
const DIM: usize = 1000;

/// Rows lie in a file in the order of mix64. Those up to 12 KiB apart are one read, others are not:
/// the bytes between would take longer than a read of their own.
#[test]
fn neighbours_are_one_read_and_what_is_far_apart_is_read_apart() {
    let disk = SimDisk::new(1);
    let shared = || Arc::new(disk.clone());
    let options = options().cache_bytes(64 << 20).shards(1).threads(1);
    let store = Store::create_on(
        shared(),
        Path::new(ROOT),
        CreateOptions::new(),
        options.clone(),
    )
    .unwrap();
    let table = store.create_table(&sgd("t", DIM)).unwrap();
    let mut keys: Vec<u64> = (0..64).collect();
    keys.sort_by_key(|key| mix64(*key));
    set(&store, table, &keys, 1.0, DIM);
    store.checkpoint(1, &[]).unwrap();
    store.close().unwrap();
    let store = Store::open_on(shared(), Path::new(ROOT), options).unwrap();
    let pull = |batch: &[usize]| {
        let batch: Vec<u64> = batch.iter().map(|i| keys[*i]).collect();
        let before = store.stats();
        drop(
            store
                .pull(table, &batch, &mut vec![0.0; batch.len() * DIM])
                .unwrap(),
        );
        let after = store.stats();
        (
            after.reads - before.reads,
            after.read_bytes - before.read_bytes,
        )
    };
    let (one, bytes) = pull(&[0]);
    assert!(one == 1 && (4000..=12 << 10).contains(&bytes), "{bytes}");
    assert_eq!(pull(&[1, 2, 3]).0, 1, "side by side");
    assert_eq!(pull(&[6, 8]).0, 1, "a row between");
    let (reads, bytes) = pull(&[10, 20]);
    assert_eq!(reads, 2, "nine rows between");
    assert!(bytes <= 2 * (12 << 10), "{bytes}");
    assert_eq!(pull(&[44, 50]).0, 2, "five rows, 20 KB, between");
    assert_eq!(pull(&[25, 26, 40, 41, 60]).0, 3);
    assert_eq!(pull(&[25, 26, 40, 41, 60]).0, 0, "resident");
    store.close().unwrap();
}
