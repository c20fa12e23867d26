//! A limit for the store's own compactions: it holds, it can be changed, and nobody waits for it.

#![expect(
    clippy::unwrap_used,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/small.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod small;
#[path = "common/until.rs"]
mod until;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hps::io::sim::SimDisk;
use hps::*;
use small::{invalid, options, set, sgd};
use until::until;

const DIM: usize = 64;

/// A store that compacts early, and may move a byte a second for it.
fn limited(root: &str) -> (Store, TableId) {
    let options = options().space_bound(1.1).file_bytes(1 << 20);
    let disk = Arc::new(SimDisk::new(1));
    let store = Store::create_on(disk, Path::new(root), CreateOptions::new(), options).unwrap();
    let table = store.create_table(&sgd("rows", DIM)).unwrap();
    store.set_compaction_rate(Some(1)).unwrap();
    (store, table)
}

/// Writes a round of rows; each leaves some of those before as they are, so that no file is without live
/// rows: such files go unread, whatever the limit.
fn write(store: &Store, table: TableId, keys: u64, round: u64) {
    let keys: Vec<u64> = (round * keys / 50..keys).map(mix64).collect();
    for keys in keys.chunks(500) {
        set(store, table, keys, round as f32, DIM);
    }
}

/// Writes rows again and again: a compaction is due.
fn wear(store: &Store, table: TableId) {
    for round in 0..10 {
        write(store, table, 1000, round);
        store.flush().unwrap();
    }
    let stats = store.stats();
    assert!(stats.current_bytes > 2 * stats.live_bytes, "{stats:?}");
}

fn until_compacted(store: &Store) {
    until("it is held back no more", || store.stats().compactions > 0);
}

#[test]
fn a_limit_holds_compactions_back_until_it_is_changed() {
    let (store, table) = limited("/changed");
    wear(&store, table);
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(store.stats().compactions, 0, "a byte a second");
    store.set_compaction_rate(Some(100 << 20)).unwrap();
    until_compacted(&store);
    store.set_compaction_rate(None).unwrap();
    store.checkpoint(1, &[]).unwrap();
    store.close().unwrap();
}

#[test]
fn a_close_does_not_wait_for_a_compaction_that_is_held_back() {
    let (store, table) = limited("/closed");
    wear(&store, table);
    std::thread::sleep(Duration::from_millis(50));
    let since = Instant::now();
    store.close_discarding();
    assert!(since.elapsed() < Duration::from_secs(60));
}

/// It would cost pulls what it saves the device.
#[test]
fn a_limit_is_lifted_while_flushes_wait_for_a_compaction() {
    let (store, table) = limited("/lifted");
    wear(&store, table);
    assert_eq!(store.stats().compactions, 0);
    let mut rounds = 0;
    while store.stats().compactions == 0 {
        rounds += 1;
        assert!(rounds < 49, "{:?}", store.stats());
        write(&store, table, 10_000, rounds);
    }
    let waited = *store.stats().tables[0].wait(Wait::Compaction);
    assert!(waited.us_max < 60_000_000, "{waited:?}");
    store.close_discarding();
}

#[test]
fn a_limit_of_nothing_is_refused_and_a_reader_has_none() {
    let disk = Arc::new(SimDisk::new(1));
    let root = Path::new("/refused");
    let store = Store::create_on(Arc::clone(&disk), root, CreateOptions::new(), options()).unwrap();
    let told = invalid(store.set_compaction_rate(Some(0)).unwrap_err());
    assert!(told.to_string().contains("None is no limit"), "{told}");
    store.checkpoint(1, &[]).unwrap();
    let reader = Store::open_read_only_on(disk, root, None, options()).unwrap();
    let refused = reader.set_compaction_rate(None);
    assert!(
        matches!(refused, Err(Error::ReadOnly { .. })),
        "{refused:?}"
    );
    reader.close().unwrap();
    store.close().unwrap();
}
