//! Walks of ranges of mix64 are, together, the walk of a checkpoint; `unique` is what a map would say.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/small.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod small;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;

use hps::io::Io;
use hps::io::sim::SimDisk;
use hps::*;
use proptest::prelude::*;
use small::{fill, options, set, sgd};

type Found = Vec<(u64, u32, Vec<f32>)>;

fn found(mut rows: RowIter, table: TableId) -> Found {
    let mut all = Vec::new();
    while let Some(row) = rows.next_row().unwrap() {
        if row.table == table {
            all.push((row.key, row.interval, row.values.to_vec()));
        }
    }
    all
}

/// Two tables in several files of several checkpoints, with newer copies and removed keys.
fn sample() -> (Store, [TableId; 2], CheckpointId) {
    let store = Store::create_on(
        Io::of(SimDisk::new(9)),
        Path::new("/store"),
        CreateOptions::new(),
        options(),
    )
    .unwrap();
    let tables = ["a", "b"].map(|name| store.create_table(&sgd(name, 2)).unwrap());
    for (round, keys) in (1u16..).zip([5000, 3000, 700]) {
        fill(&store, tables[0], keys, 1000, f32::from(round), 2);
        fill(&store, tables[1], keys / 10, 1000, -f32::from(round), 2);
        store.flush().unwrap();
        let removed: Vec<u64> = (100..200)
            .map(|key| mix64(key * u64::from(round)))
            .collect();
        assert!(store.remove(tables[0], &removed).unwrap() > 0);
        store.checkpoint(u64::from(round), &[]).unwrap();
    }
    set(&store, tables[0], &[u64::MAX], 9.0, 2);
    let last = store.checkpoint(4, &[]).unwrap().id;
    (store, tables, last)
}

#[test]
fn walks_of_all_parts_are_the_walk_of_the_checkpoint() {
    let (store, tables, last) = sample();
    for checkpoint in [CheckpointId(last.0 - 1), last] {
        for table in tables {
            let whole = found(store.rows(checkpoint).unwrap(), table);
            assert!(whole.len() > 400);
            for parts in [1, 2, 3, 16, 1000] {
                let walk = |part| store.rows_of(checkpoint, table, part_range(part, parts));
                let parts = (0..parts).flat_map(|part| found(walk(part).unwrap(), table));
                assert!(parts.eq(whole.iter().cloned()));
            }
        }
    }
}

#[test]
fn a_range_has_the_keys_in_it_and_both_of_its_ends() {
    let (store, tables, last) = sample();
    let table = tables[0];
    let whole = found(store.rows(last).unwrap(), table);
    let hashes: Vec<u64> = whole.iter().map(|(key, ..)| mix64(*key)).collect();
    let walk =
        |range: RangeInclusive<u64>| found(store.rows_of(last, table, range).unwrap(), table);
    let n = hashes.len();
    for (from, to) in [
        (0, 0),
        (0, 1),
        (1, 1),
        (339, 341),
        (n / 2, n / 2 + 700),
        (n - 2, n - 1),
    ] {
        assert_eq!(walk(hashes[from]..=hashes[to]), whole[from..=to]);
        assert_eq!(walk(hashes[from] + 1..=hashes[to]), whole[from + 1..=to]);
        if let Some(before) = hashes[to].checked_sub(1) {
            assert_eq!(walk(hashes[from]..=before), whole[from..to]);
        }
    }
    assert_eq!(walk(0..=u64::MAX), whole);
    assert_eq!(walk(RangeInclusive::new(5, 4)), []);
    assert_eq!(walk(hashes[8] + 1..=hashes[9] - 1), []);
    let unknown = store.rows_of(CheckpointId(99), table, 0..=1);
    assert!(matches!(
        unknown,
        Err(Error::InvalidArgument(
            ArgumentError::UnknownCheckpoint { .. }
        ))
    ));
    let unknown = store.rows_of(last, TableId(7), 0..=1);
    assert!(matches!(
        unknown,
        Err(Error::InvalidArgument(ArgumentError::UnknownTable { .. }))
    ));
}

/// One corrupt key block in the middle of a file made every part of an export fail: each looked for its
/// ends by reading that block first.
#[test]
fn parts_that_need_nothing_of_a_damaged_key_block_have_all_their_rows_and_no_other_is_short() {
    let disk = SimDisk::new(10);
    let store = Store::create_on(
        Io::of(disk.clone()),
        Path::new("/store"),
        CreateOptions::new(),
        options(),
    )
    .unwrap();
    let table = store.create_table(&sgd("t", 2)).unwrap();
    fill(&store, table, 3400, 3400, 1.0, 2);
    let last = store.checkpoint(1, &[]).unwrap().id;
    let file = store.files()[0].clone();
    let whole = found(store.rows(last).unwrap(), table);
    let sound = disk.read_file(&file.path).unwrap();
    let keys = sound.len() - 4096 - 10 * 4096;
    for blocks in [
        vec![0],
        vec![5],
        vec![9],
        vec![4, 5, 6],
        vec![0, 2, 4, 6, 8],
        (0..10).collect(),
    ] {
        let mut bytes = sound.clone();
        blocks
            .iter()
            .for_each(|block| bytes[keys + block * 4096 + 100] ^= 1);
        disk.write_file(&file.path, &bytes).unwrap();
        for parts in [1, 2, 7, 40] {
            let mut failed = 0;
            for part in 0..parts {
                let range = part_range(part, parts);
                let right = whole.iter().filter(|row| range.contains(&mix64(row.0)));
                let touched = whole.iter().enumerate();
                let touched = touched.filter(|(_, row)| range.contains(&mix64(row.0)));
                let needs = touched
                    .map(|(i, _)| i / 340)
                    .any(|block| blocks.contains(&block));
                let walk = store
                    .rows_of(last, table, range.clone())
                    .and_then(|mut rows| {
                        let mut all = Vec::new();
                        while let Some(row) = rows.next_row()? {
                            all.push((row.key, row.interval, row.values.to_vec()));
                        }
                        Ok(all)
                    });
                match walk {
                    Ok(rows) => {
                        assert!(
                            !needs && rows.iter().eq(right),
                            "{blocks:?}, {part} of {parts}"
                        );
                    }
                    Err(Error::Corrupt { .. }) => failed += 1,
                    Err(error) => unreachable!("{error}"),
                }
            }
            // A part whose end may be in the damaged block fails too; a part has 85 keys of 340.
            assert!(
                parts < 40 || failed <= 6 * blocks.len(),
                "{blocks:?}: {failed}"
            );
        }
    }
}

fn check_unique(store: &Store, keys: &[u64]) {
    let unique = store.unique(keys).unwrap();
    let by_hash: BTreeMap<u64, u64> = keys.iter().map(|key| (mix64(*key), *key)).collect();
    assert!(unique.keys.iter().eq(by_hash.values()));
    let back = unique
        .inverse
        .iter()
        .map(|place| unique.keys[*place as usize]);
    assert!(back.eq(keys.iter().copied()));
}

fn store_of(threads: usize) -> Store {
    let options = options().threads(threads);
    Store::create_on(
        Io::of(SimDisk::new(1)),
        Path::new("/store"),
        CreateOptions::new(),
        options,
    )
    .unwrap()
}

#[test]
fn batches_of_any_size_are_made_unique_by_any_number_of_threads() {
    for threads in [1, 2, 3, 8] {
        let store = store_of(threads);
        for n in [0, 1, 2, 255, 256, 4095, 4096, 4097, 50_000] {
            let skewed: Vec<u64> = (0..n).map(|i| mix64(i) % (i / 7 + 1)).collect();
            check_unique(&store, &skewed);
            let one_range: Vec<u64> = (0..n).map(|i| unmix64(i / 2)).collect();
            check_unique(&store, &one_range);
        }
        check_unique(&store, &[u64::MAX, 0, u64::MAX]);
    }
}

proptest! {
    #[test]
    fn random_batches_are_made_unique(keys in prop::collection::vec(0u64..3000, 0..6000)) {
        let store = store_of(3);
        check_unique(&store, &keys);
    }
}

/// An export by many threads opened every file of the checkpoint in each of them, and divided the
/// memory of its windows by all.
#[test]
fn a_walk_opens_only_files_that_may_have_keys_in_its_range() {
    let disk = SimDisk::new(11);
    let io = || Io::of(disk.clone());
    let mut options = options();
    options.retain_checkpoints = 3;
    let store = Store::create_on(
        io(),
        Path::new("/store"),
        CreateOptions::new(),
        options.clone(),
    )
    .unwrap();
    let table = store.create_table(&sgd("t", 2)).unwrap();
    let of = |part: usize| -> Vec<u64> {
        let range = part_range(part, 2);
        (0..2000)
            .filter(|key| range.contains(&mix64(*key)))
            .collect()
    };
    for part in 0..2 {
        set(&store, table, &of(part), 1.0, 2);
        store.flush().unwrap();
    }
    let first = store.checkpoint(1, &[]).unwrap().id;
    let files = store.files();
    assert_eq!(files.len(), 2);
    // What only an older checkpoint has is not open in a store that was opened again.
    for part in 0..2 {
        set(&store, table, &of(part), 2.0, 2);
    }
    store.checkpoint(2, &[]).unwrap();
    store.compact_fully().unwrap();
    store.checkpoint(3, &[]).unwrap();
    store.close().unwrap();
    let store = Store::open_on(io(), Path::new("/store"), options).unwrap();
    let (path, sound) = (&files[1].path, disk.read_file(&files[1].path).unwrap());
    let mut bytes = sound.clone();
    let footer = bytes.len() - 4096;
    bytes[footer + 100] ^= 1;
    disk.write_file(path, &bytes).unwrap();
    let walk = |part| store.rows_of(first, table, part_range(part, 2));
    assert_eq!(found(walk(0).unwrap(), table).len(), of(0).len());
    let other = walk(1).map(drop);
    assert!(
        matches!(other, Err(Error::Corrupt { .. })),
        "{other:?} {files:?}"
    );
    assert!(matches!(
        store.rows(first).map(drop),
        Err(Error::Corrupt { .. })
    ));
    disk.write_file(path, &sound).unwrap();
    assert_eq!(found(walk(1).unwrap(), table).len(), of(1).len());
}
