//! Rows of a pass, read and written by whoever has its keys in order.
#![expect(
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/rng.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod rng;
#[path = "common/small.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod small;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use hps::io::Io;
use hps::io::sim::SimDisk;
use hps::*;
use rng::Rng;

const ROOT: &str = "/store";
const DIM: usize = 4;
/// More than two runs of 65 536.
const KEYS: u64 = 140_000;
/// Every third of the keys has a row.
const KNOWN: u64 = 3;

fn weight(key: u64) -> f32 {
    (key % 60_000) as f32 + 0.5
}

/// AdaGrad's sums differ from row to row, as weights do.
fn row(key: u64) -> Vec<f32> {
    let sums = [weight(key) * 2.0; DIM];
    [[weight(key); DIM], sums].concat()
}

fn loaded(disk: &SimDisk) {
    let io = Io::of(disk.clone());
    let create = CreateOptions::new();
    let options = small::options().cache_bytes(32 << 20);
    let store = Store::create_on(io, Path::new(ROOT), create, options).unwrap();
    let descriptor = TableDescriptor::new("ads", DIM).initialiser(Initialiser::Zero);
    let table = store.create_table(&descriptor).unwrap();
    let keys: Vec<u64> = (0..KEYS).filter(|key| key % KNOWN == 0).collect();
    let rows: Vec<f32> = keys.iter().flat_map(|key| row(*key)).collect();
    store.put(table, &keys, PutRows::whole(&rows)).unwrap();
    store.checkpoint(1, &[]).unwrap();
    store.close().unwrap();
}

fn open(disk: &SimDisk, policy: PolicyKind) -> (Store, TableId) {
    let options = small::options().cache_bytes(48 << 20).policy(policy);
    let store = Store::open_on(Io::of(disk.clone()), Path::new(ROOT), options).unwrap();
    let table = store.table("ads").unwrap();
    (store, table)
}

const CACHED: PolicyKind = PolicyKind::Cached {
    num_blocks: 1,
    target_hit_rate: 0.5,
    max_num_evict: 1,
};

/// Keys in no order, some twice: near each other and far away.
fn mixed() -> Vec<u64> {
    let mut keys: Vec<u64> = (0..KEYS).collect();
    let rng = &mut Rng(7);
    for at in (1..keys.len()).rev() {
        keys.swap(at, rng.below(at + 1));
    }
    for (at, from) in [(10, 11), (5000, 12), (100_000, 20), (139_999, 139_000)] {
        keys[at] = keys[from];
    }
    keys
}

fn begin(store: &Store, part: PassPart<'_>) -> Pass {
    store.begin_pass(&[part]).unwrap().wait().unwrap()
}

#[test]
fn rows_come_in_the_order_of_the_keys() {
    let disk = SimDisk::new(1);
    loaded(&disk);
    let keys = mixed();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pass.keyset");
    let bytes: Vec<u8> = keys.iter().flat_map(|k| k.to_le_bytes()).collect();
    std::fs::write(&path, &bytes).unwrap();
    let expected = |keys: &[u64]| -> Vec<f32> {
        let of = |key: &u64| match key % KNOWN {
            0 => row(*key),
            _ => vec![0.0; 2 * DIM],
        };
        keys.iter().flat_map(of).collect()
    };
    for policy in [PolicyKind::Staged, PolicyKind::Bilevel, CACHED] {
        let (store, table) = open(&disk, policy);
        let from_file = PassPart::from_file(table, &path, KeyType::I64);
        for part in [PassPart::new(table, &keys), from_file] {
            let pass = begin(&store, part);
            for range in [
                0..keys.len(),
                65_530..65_540,
                7..8,
                131_072..140_000,
                9..9,
                0..0,
            ] {
                let asked = &keys[range.clone()];
                let mut rows = vec![f32::NAN; asked.len() * 2 * DIM];
                pass.read_rows(0, range.start, &mut rows).unwrap();
                assert!(rows == expected(asked), "{policy:?} {range:?}");
                let mut weights = vec![f32::NAN; asked.len() * DIM];
                pass.read(0, range.start, &mut weights).unwrap();
                let of_rows = rows.chunks(2 * DIM).flat_map(|row| &row[..DIM]);
                assert!(weights.iter().eq(of_rows), "{policy:?} {range:?}");
            }
            // Slots (pins, runs), shards and positions.
            let (rows, twice) = (KEYS - 4, 4);
            let pinned = store.stats().pinned_rows;
            assert_eq!((pinned, pass.report().known), (rows, known(&keys)));
            assert!(store.stats().lease_bytes <= 12 * (rows + twice));
        }
        store.close().unwrap();
    }
}

fn known(keys: &[u64]) -> u64 {
    let mut known: Vec<u64> = keys.iter().copied().filter(|k| k % KNOWN == 0).collect();
    known.sort_unstable();
    known.dedup();
    known.len() as u64
}

/// The part of a `Staged` table after others: its keys come in another order than theirs.
#[test]
fn parts_of_tables_with_different_policies_come_in_one_pass() {
    for inline in [false, true] {
        let disk = SimDisk::new(1);
        loaded(&disk);
        let options = small::options().cache_bytes(48 << 20).inline(inline);
        let staged = options.table("ads", TableOptions::new().policy(PolicyKind::Staged));
        let store = Store::open_on(Io::of(disk.clone()), Path::new(ROOT), staged).unwrap();
        let ads = store.table("ads").unwrap();
        let other = store.create_table(&small::sgd("other", DIM)).unwrap();
        // Staged while the store is open: nothing is read in.
        let late = TableOptions::new().policy(PolicyKind::Staged);
        let late = store
            .create_table_with(&small::sgd("late", DIM), late)
            .unwrap();
        let keys: Vec<u64> = (0..300).rev().collect();
        for table in [other, late] {
            small::set(&store, table, &keys, 5.0, DIM);
        }
        let parts = [
            PassPart::new(other, &[]),
            PassPart::new(ads, &keys),
            PassPart::new(other, &keys[..7]),
            PassPart::new(late, &keys),
            PassPart::new(ads, &keys[1..]),
        ];
        let pass = store.begin_pass(&parts).unwrap().wait().unwrap();
        let lengths: Vec<usize> = (0..6).map(|part| pass.len_of(part)).collect();
        assert_eq!(lengths, [0, 300, 7, 300, 299, 0]);
        for (part, keys) in [(1, &keys[..]), (4, &keys[1..])] {
            let mut found = vec![0.0; keys.len() * DIM];
            pass.read(part, 0, &mut found).unwrap();
            let of = |key: &u64| {
                if key.is_multiple_of(KNOWN) {
                    [weight(*key); DIM]
                } else {
                    [0.0; DIM]
                }
            };
            assert!(found.into_iter().eq(keys.iter().flat_map(of)), "{part}");
        }
        for (part, rows) in [(2, 7), (3, 300)] {
            let mut found = vec![0.0; rows * DIM];
            pass.read(part, 0, &mut found).unwrap();
            assert!(found.iter().all(|v| *v == 5.0), "{part}");
        }
        drop(pass);
        store.close_discarding();
    }
}

/// A put of a pass needs no store at hand: one that comes too late changes nothing, and no other is lost in silence.
#[test]
fn a_put_beside_a_close_is_told_or_refused() {
    let (mut told, mut refused) = (0, 0);
    for round in 0..60u64 {
        let disk = SimDisk::new(1);
        if round == 0 {
            loaded(&disk);
        }
        let options = small::options().cache_bytes(8 << 20);
        let io = Io::of(disk.clone());
        let create = CreateOptions::new();
        let store = match round {
            0 => Store::open_on(io, Path::new(ROOT), options).unwrap(),
            _ => Store::create_on(io, Path::new(ROOT), create, options).unwrap(),
        };
        let table = match round {
            0 => store.table("ads").unwrap(),
            _ => store.create_table(&small::sgd("ads", DIM)).unwrap(),
        };
        store.checkpoint(2, &[]).unwrap();
        let keys: Vec<u64> = (0..2000).collect();
        let pass = begin(&store, PassPart::new(table, &keys));
        let values = vec![1.0; keys.len() * DIM];
        let put = || pass.put(0, 0, PutRows::whole(&values));
        let (put, closed) = match round % 10 {
            // One after the other, then at the same time.
            8 => (put(), store.close()),
            9 => {
                let closed = store.close();
                (put(), closed)
            }
            _ => std::thread::scope(|scope| {
                let putter = scope.spawn(put);
                if round % 2 == 1 {
                    std::thread::sleep(std::time::Duration::from_micros(round * 7));
                }
                let closed = store.close();
                (putter.join().unwrap(), closed)
            }),
        };
        match (put, closed) {
            (Ok(_), Err(Error::Uncheckpointed { .. })) => told += 1,
            (Err(Error::InvalidArgument(ArgumentError::Closed)), Ok(())) => refused += 1,
            other => unreachable!("{round}: {other:?}"),
        }
    }
    println!("{told} told, {refused} refused");
    assert!(told >= 6 && refused >= 6, "{told} told, {refused} refused");
}

#[test]
fn what_is_put_is_there_afterwards_the_last_of_a_key_that_is_there_twice() {
    let disk = SimDisk::new(1);
    loaded(&disk);
    let keys = mixed();
    for (policy, id) in [
        (PolicyKind::Staged, 2),
        (PolicyKind::Bilevel, 3),
        (CACHED, 4),
    ] {
        let (store, table) = open(&disk, policy);
        let pass = begin(&store, PassPart::new(table, &keys));
        // By two calls, the first of which ends in the middle of a run.
        let values: Vec<f32> = (0..keys.len() * DIM).map(|v| (v + id) as f32).collect();
        let cut = 70_001;
        let (first, second) = values.split_at(cut * DIM);
        let report = pass.put(0, 0, PutRows::weights(first)).unwrap();
        assert_eq!((report.rows, report.non_finite), (cut as u64, 0));
        pass.put(0, cut, PutRows::weights(second)).unwrap();
        let mut last = std::collections::HashMap::new();
        for (key, value) in keys.iter().zip(values.chunks(DIM)) {
            last.insert(*key, value);
        }
        let check = |store: &Store| {
            for keys in keys.chunks(10_000) {
                let found = small::values(store, table, keys, DIM);
                let expected = keys.iter().flat_map(|key| last[key]);
                assert!(found.iter().eq(expected), "{id}");
            }
        };
        check(&store);
        drop(pass);
        store.checkpoint(id as u64, &[]).unwrap();
        store.close().unwrap();
        let (store, _) = open(&disk, PolicyKind::Bilevel);
        check(&store);
        // AdaGrad's sums are those of a row that was never pushed.
        let mut row = vec![0.0; 2 * DIM];
        let lease = store.pull(table, &keys[..1], &mut [0.0; DIM]).unwrap();
        lease.read_rows(&mut row).unwrap();
        assert_eq!(row[DIM..], [0.0; DIM]);
        drop(lease);
        store.close().unwrap();
    }
}

/// Somebody takes checkpoints while the rows of a pass are all put again and again: each has all of a call. Where
/// there is no room for copies of rows that a checkpoint needs as they were, the put waits for it.
#[test]
fn a_checkpoint_has_all_of_a_put_or_nothing() {
    for is_tight in [false, true] {
        let disk = SimDisk::new(1);
        loaded(&disk);
        let keys: Vec<u64> = (0..20_000).collect();
        let options = small::options().cache_bytes(if is_tight { 1 << 20 } else { 48 << 20 });
        let open =
            |options| Store::open_on(Io::of(disk.clone()), Path::new(ROOT), options).unwrap();
        let mut store = open(options.clone());
        let table = store.table("ads").unwrap();
        if is_tight {
            let error = store
                .begin_pass(&[PassPart::new(table, &keys)])
                .unwrap_err();
            let Error::OverBudget { needed_bytes, .. } = error else {
                unreachable!("{error}")
            };
            store.close().unwrap();
            store = open(options.cache_bytes(needed_bytes));
        }
        puts_beside_checkpoints(&disk, store, table, &keys);
    }
}

fn puts_beside_checkpoints(disk: &SimDisk, store: Store, table: TableId, keys: &[u64]) {
    let pass = begin(&store, PassPart::new(table, keys));
    let first = vec![1.0; keys.len() * DIM];
    pass.put(0, 0, PutRows::weights(&first)).unwrap();
    let is_done = AtomicBool::new(false);
    let (mut ids, mut puts) = (Vec::new(), 0);
    std::thread::scope(|scope| {
        let putter = scope.spawn(|| {
            let mut puts = 1;
            while !is_done.load(Ordering::Relaxed) {
                puts += 1;
                let values = vec![puts as f32; keys.len() * DIM];
                pass.put(0, 0, PutRows::weights(&values)).unwrap();
            }
            puts
        });
        for step in 2..12 {
            ids.push(store.checkpoint(step, &[]).unwrap().id);
        }
        is_done.store(true, Ordering::Relaxed);
        puts = putter.join().unwrap();
    });
    drop(pass);
    store.close_discarding();
    let mut seen = Vec::new();
    for id in &ids[ids.len() - 2..] {
        let io = Io::of(disk.clone());
        let options = small::options().cache_bytes(48 << 20);
        let store = Store::open_read_only_on(io, Path::new(ROOT), Some(*id), options).unwrap();
        let found = small::values(&store, table, keys, DIM);
        assert!(found.iter().all(|v| *v == found[0]), "one put in all rows");
        seen.push(found[0]);
    }
    assert!(seen.is_sorted() && seen[1] <= puts as f32, "{seen:?}");
    assert!(puts > 2, "puts came between checkpoints");
}

#[test]
fn what_a_pass_has_not_is_refused_by_name() {
    let disk = SimDisk::new(1);
    loaded(&disk);
    let (store, table) = open(&disk, PolicyKind::Bilevel);
    let keys = [30, 31, 33];
    let pass = begin(&store, PassPart::new(table, &keys));
    let mut out = [0.0; 3 * DIM];
    let error = pass.read(1, 0, &mut out).unwrap_err().to_string();
    assert!(error.contains("part 1 of a pass that has 1"), "{error}");
    for (first, rows) in [(1, 3), (3, 1), (usize::MAX, 1)] {
        let error = pass.read(0, first, &mut out[..rows * DIM]).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("part 0 of the pass has 3"), "{error}");
        let rows = PutRows::weights(&out[..rows * DIM]);
        assert!(pass.put(0, first, rows).is_err());
    }
    let error = pass.read_rows(0, 0, &mut out[..DIM]).unwrap_err();
    assert!(matches!(
        small::invalid(error),
        ArgumentError::Length { found: DIM, .. }
    ));
    assert_eq!(small::values(&store, table, &[30], DIM), [weight(30); DIM]);

    // Values that are no numbers are skipped, or refused with their key.
    let mut values = [9.0; 3 * DIM];
    values[2 * DIM] = f32::NAN;
    let report = pass.put(0, 0, PutRows::weights(&values)).unwrap();
    assert_eq!((report.rows, report.non_finite), (2, 1));
    assert_eq!(
        small::values(&store, table, &[31, 33], DIM)[DIM..],
        [weight(33); DIM]
    );
    drop(pass);
    store.close_discarding();
    let options = small::options().cache_bytes(8 << 20);
    let rejecting = options.clone().non_finite(NonFinite::Reject);
    let io = || Io::of(disk.clone());
    let store = Store::open_on(io(), Path::new(ROOT), rejecting).unwrap();
    let pass = begin(&store, PassPart::new(table, &keys));
    let error = small::invalid(pass.put(0, 0, PutRows::weights(&values)).unwrap_err());
    assert!(
        matches!(
            error,
            ArgumentError::NonFinite {
                key: 33,
                index: 2,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(small::values(&store, table, &[30], DIM), [weight(30); DIM]);
    drop(pass);
    store.close().unwrap();

    let reader = Store::open_read_only_on(io(), Path::new(ROOT), None, options).unwrap();
    let pass = begin(&reader, PassPart::new(table, &keys));
    pass.read(0, 0, &mut out).unwrap();
    assert_eq!(out[2 * DIM], weight(33));
    let error = pass.put(0, 0, PutRows::weights(&out)).unwrap_err();
    assert!(matches!(error, Error::ReadOnly { .. }), "{error}");
}

/// 16 MiB and more at once are stored past the processor's caches; rows of 488 bytes begin and end inside of lines.
#[test]
fn a_large_buffer_has_the_same_rows_as_small_ones() {
    const LONG_DIM: usize = 61;
    const LONG_KEYS: u64 = 40_000;
    let disk = SimDisk::new(1);
    let io = Io::of(disk.clone());
    let options = small::options().cache_bytes(48 << 20).threads(2);
    let store = Store::create_on(io, Path::new(ROOT), CreateOptions::new(), options).unwrap();
    let table = store
        .create_table(&TableDescriptor::new("long", LONG_DIM))
        .unwrap();
    let keys: Vec<u64> = (0..LONG_KEYS).collect();
    let width = 2 * LONG_DIM;
    let rows: Vec<f32> = (0..keys.len() * width).map(|i| i as f32).collect();
    store.put(table, &keys, PutRows::whole(&rows)).unwrap();
    let pass = begin(&store, PassPart::new(table, &keys));
    let mut read = vec![f32::NAN; rows.len()];
    assert!(size_of_val(&*read) >= 16 << 20, "no large buffer");
    pass.read_rows(0, 0, &mut read).unwrap();
    assert!(read == rows, "at once");
    for (number, expected) in rows.chunks(1000 * width).enumerate() {
        let read = &mut read[..expected.len()];
        read.fill(f32::NAN);
        pass.read_rows(0, number * 1000, read).unwrap();
        assert!(read == expected, "1000 rows from {} on", number * 1000);
    }
    drop(pass);
    store.close_discarding();
}
