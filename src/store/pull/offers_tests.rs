//! Who reads the rows of a call, and what becomes of them where another thread does, or fails?

use std::path::Path;
use std::sync::Arc;

use super::batch::{Intent, open};
use super::offers::Offered;
use super::reads::Reads;
use super::slots::{Step, Walk};
use super::split::Wanted;
use crate::io::sim::{Fault, SimDisk};
use crate::store::tests::{ROOT, keys, options, sgd};
use crate::units::range_of;
use crate::*;

const ROWS: u64 = 600;
const SHARDS: usize = 4;
const FILES: usize = 24;

/// A disk with a store of rows that are all different, none of them in memory.
fn cold() -> (Arc<SimDisk>, Store, TableId) {
    let options = RuntimeOptions {
        threads: 2,
        shards: SHARDS,
        ..options()
    };
    let disk = Arc::new(SimDisk::new(1));
    let io = || crate::io::Io::from(Arc::clone(&disk));
    let created = CreateOptions::new();
    let store = Store::create_on(io(), Path::new(ROOT), created, options.clone()).unwrap();
    let table = store.create_table(&sgd("rows", 4)).unwrap();
    // Rows of one file stand far apart in the order of hashes: each is a read of its own.
    let (all, values) = (keys(0..ROWS), values());
    let mut by_hash: Vec<usize> = (0..all.len()).collect();
    by_hash.sort_unstable_by_key(|row| mix64(all[*row]));
    for file in 0..FILES {
        let rows = by_hash.iter().skip(file).step_by(FILES);
        let (mut of_file, mut weights) = (Vec::new(), Vec::new());
        for row in rows {
            of_file.push(all[*row]);
            weights.extend(&values[row * 4..row * 4 + 4]);
        }
        let lease = store.pull(table, &of_file, &mut weights.clone()).unwrap();
        store.push(&lease, Update::weights(&weights)).unwrap();
        drop(lease);
        store.checkpoint(1 + file as u64, &[]).unwrap();
    }
    store.close().unwrap();
    let store = Store::open_on(io(), Path::new(ROOT), options).unwrap();
    (disk, store, table)
}

fn values() -> Vec<f32> {
    (0..ROWS * 4).map(|i| i as f32).collect()
}

#[test]
fn a_thread_with_nothing_left_reads_what_another_one_has_not_asked_for() {
    let (_disk, store, table) = cold();
    let puller = &store.parts.puller;
    let there = puller.core.table(table).unwrap();
    let (all, mut out) = (keys(0..ROWS), vec![0.0; values().len()]);
    let mut wanted = [Wanted {
        table: &there,
        keys: &all,
        out: Some(&mut out),
    }];
    let pool = puller.workers.foreground();
    let batch = puller.begin(&pool, &mut wanted).unwrap();
    let places = (&batch.map, &batch.cells[..]);
    // Thread 0 gives slots to its rows, and asks for none of them.
    let share = |thread: usize| (thread..SHARDS).step_by(2);
    let mut walk = Walk::new(&puller.core, places, share(0), Intent::Read);
    let mut all_reads = Reads::default();
    while let Step::Slots(reads) = walk.step() {
        all_reads.join(reads).unwrap();
    }
    let rows = all_reads.len();
    assert!(rows > all.len() / 3, "{rows}");
    let offered = Offered::new(2);
    offered.of(0).put(all_reads.slices(50));
    assert!(!offered.is_lent(0));
    let threads = (places.0, places.1, &offered);
    let fetch = |thread| {
        let lane = (&*pool, thread);
        puller.fetch_missing(lane, threads, share(thread), Intent::Read)
    };
    // Thread 1 takes some; what it has not read yet, thread 0 copies to nobody.
    let taken = offered.of(1).any().unwrap();
    fetch(0).unwrap();
    offered.of(1).put(vec![taken]);
    // It reads all of them behind its own.
    fetch(1).unwrap();
    assert_eq!((offered.is_lent(0), offered.is_lent(1)), (true, false));
    assert!(offered.of(0).own().is_none() && offered.of(1).any().is_none());
    for cell in &batch.cells {
        let pending = open(cell);
        assert!(
            pending.targets.iter().all(|target| target.is_empty()),
            "each row is where it is wanted"
        );
    }
    let lease = puller.complete(&pool, Intent::Read, batch).unwrap();
    assert!(out == values(), "rows are wrong");
    drop(lease);
    let stats = store.stats();
    assert_eq!((stats.pinned_rows, stats.resident_rows), (0, ROWS));
    assert!(
        stats.reads > 0 && stats.reads < ROWS,
        "neighbours share reads"
    );
}

/// Rows that nobody ever pushed are in no file: they are copied when all rows of their shard are there, also those that
/// another thread reads.
#[test]
fn new_rows_of_a_shard_that_another_thread_reads_for_are_copied() {
    let (disk, store, table) = cold();
    // Long enough for the thread with few rows to find slices of the other one.
    disk.set_latency(std::time::Duration::from_micros(200));
    let is_of_first = |key: &u64| range_of(mix64(*key), SHARDS).is_multiple_of(2);
    let (all, values) = (keys(0..ROWS), values());
    let (of_first, of_second): (Vec<u64>, Vec<u64>) = all.iter().partition(|key| is_of_first(key));
    let new = keys(ROWS..ROWS + 100).into_iter().filter(is_of_first);
    let mut asked = of_first.clone();
    asked.extend(new);
    asked.extend(&of_second[..48]);
    asked.extend(&of_first[..5]);
    let mut out = vec![-1.0; asked.len() * 4];
    drop(store.pull(table, &asked, &mut out).unwrap());
    for (key, found) in asked.iter().zip(out.chunks(4)) {
        let row = all.iter().position(|other| other == key);
        let expected = row.map_or(&[0.0; 4][..], |row| &values[row * 4..row * 4 + 4]);
        assert_eq!(found, expected, "key {key}");
    }
}

#[test]
fn own_slices_come_first_and_then_those_of_whoever_has_most() {
    let offered = Offered::new(3);
    let slice = |tag: u32| {
        let location =
            crate::ssd::data_file::Location::new(crate::units::FileSlot::new(0), false, tag);
        let mut reads = Reads::default();
        for _ in 0..=tag {
            reads.push(0, (0, crate::units::Slot::NONE, 0), (location, 7, 4));
        }
        vec![reads]
    };
    let len = |reads: Option<Reads>| reads.map(|reads| reads.len());
    offered.of(0).put(slice(0));
    for tag in 1..4 {
        offered.of(1).put(slice(tag));
    }
    assert_eq!(len(offered.of(2).own()), None);
    assert_eq!(len(offered.of(0).any()), Some(1));
    assert_eq!(len(offered.of(0).any()), Some(4), "the last of thread 1");
    assert_eq!(len(offered.of(1).own()), Some(2));
    assert_eq!(len(offered.of(1).any()), Some(3));
    assert_eq!(len(offered.of(1).any()), None);
    let lent = [0, 1, 2].map(|thread| offered.is_lent(thread));
    assert_eq!(lent, [false, true, false]);
}

/// Whichever read fails, of whatever thread: the call fails or has all rows, and none is left half-read.
#[test]
fn a_read_that_fails_leaves_nothing_behind_whoever_does_it() {
    let all = keys(0..ROWS);
    let mut out = vec![0.0; values().len()];
    let mut failed = 0;
    for call in 0..40 {
        let (disk, store, table) = cold();
        // Once, or all from then on, of both threads.
        disk.fail_at(disk.calls() + call, Fault::Error(5), call % 2 == 0);
        match store.pull(table, &all, &mut out) {
            Ok(lease) => drop(lease),
            Err(Error::Io { .. }) => failed += 1,
            Err(other) => panic!("{other}"),
        }
        assert_eq!(store.stats().pinned_rows, 0);
        disk.clear_faults();
        out.fill(0.0);
        drop(store.pull(table, &all, &mut out).unwrap());
        assert!(out == values(), "rows are wrong");
    }
    assert!(failed > 10, "{failed}");
}
