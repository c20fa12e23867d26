//! Long puts of the same keys by several threads, beside trainers and checkpoints: what memory shows at the end is what
//! a crash leaves.

#![expect(
    clippy::unwrap_used,
    reason = "a test that meets what it does not expect must fail"
)]

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use hps::io::Io;
use hps::io::sim::SimDisk;
use hps::*;

const ROOT: &str = "/store";
const DIM: usize = 16;
const KEYS: u64 = 3000;

fn options() -> RuntimeOptions {
    RuntimeOptions::new()
        // Above 64 MiB there are several submission queues. Rows leave all the same.
        .cache_bytes(64 << 20)
        .file_bytes(1 << 20)
        .shards(4)
        .threads(2)
        .flush_step_rows(200)
        .thresholds(Thresholds {
            shard_cache_bytes: 64 << 10,
            straight_rows: 64,
            ..Thresholds::default()
        })
}

/// Rows of one value each.
fn rows_of(value: f32, count: usize) -> Vec<f32> {
    (0..count)
        .flat_map(|i| [value + i as f32 / 4096.0; DIM])
        .collect()
}

fn pulled(store: &Store, table: TableId) -> Vec<u32> {
    let keys: Vec<u64> = (0..KEYS).map(mix64).collect();
    let mut all = Vec::new();
    for keys in keys.chunks(100) {
        let mut out = vec![0.0; keys.len() * DIM];
        drop(store.pull(table, keys, &mut out).unwrap());
        let torn = |row: &[f32]| row.iter().any(|v| v.to_bits() != row[0].to_bits());
        assert!(!out.chunks_exact(DIM).any(torn), "half a row");
        all.extend(out.iter().map(|v| v.to_bits()));
    }
    all
}

#[test]
fn of_puts_at_the_same_time_memory_and_what_a_crash_leaves_are_the_same() {
    for seed in 0..32_u64 {
        let disk = Io::of(SimDisk::new(seed));
        let how = CreateOptions::new();
        let store = Store::create_on(disk.clone(), Path::new(ROOT), how, options()).unwrap();
        let table = TableDescriptor::new("rows", DIM)
            .optimizer(Optimizer::Sgd)
            .initialiser(Initialiser::Zero);
        let table = store.create_table(&table).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let putters: Vec<_> = (0..3_u64)
                .map(|thread| {
                    let store = &store;
                    scope.spawn(move || {
                        for round in 0..6_u64 {
                            // A third of the keys, or all, in an order of its own.
                            let salt = mix64(seed ^ thread << 8 ^ round);
                            let mut keys: Vec<u64> = (0..KEYS)
                                .filter(|i| {
                                    salt.is_multiple_of(2) || mix64(i ^ salt).is_multiple_of(3)
                                })
                                .map(mix64)
                                .collect();
                            keys.sort_by_key(|key| key ^ salt);
                            let value = 1.0 + (10 * thread + round) as f32;
                            let rows = rows_of(value, keys.len());
                            store.put(table, &keys, PutRows::whole(&rows)).unwrap();
                        }
                    })
                })
                .collect();
            scope.spawn(|| {
                for round in 0.. {
                    if over.load(SeqCst) {
                        break;
                    }
                    let keys: Vec<u64> = (0..50).map(|i| mix64(mix64(i ^ round) % KEYS)).collect();
                    let mut out = vec![0.0; keys.len() * DIM];
                    let lease = store.pull(table, &keys, &mut out).unwrap();
                    out.fill(100.0);
                    store.push(&lease, Update::deltas(&out)).unwrap();
                    drop(lease);
                    if u64::is_multiple_of(round, 8) {
                        store.remove(table, &keys[..3]).unwrap();
                    }
                }
            });
            scope.spawn(|| {
                for step in 1.. {
                    if over.load(SeqCst) {
                        break;
                    }
                    store.checkpoint(step, &[]).unwrap();
                    store.flush().unwrap();
                }
            });
            for putter in putters {
                putter.join().unwrap();
            }
            over.store(true, SeqCst);
        });
        let stats = store.stats();
        assert!(stats.rows_put > 0 && stats.pinned_rows == 0, "{stats:?}");
        let before = pulled(&store, table);
        store.checkpoint(1 << 40, &[]).unwrap();
        assert!(pulled(&store, table) == before, "seed {seed}");
        // As after a kill: what is in files alone counts.
        drop(store);
        let store = Store::open_on(disk, Path::new(ROOT), options()).unwrap();
        assert!(pulled(&store, table) == before, "seed {seed}, opened again");
        store.close().unwrap();
    }
}
