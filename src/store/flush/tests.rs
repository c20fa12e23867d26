//! How much is picked, and how it is cut into files.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::pick::{FILL_FILES, Picked};
use crate::store::compact::PICK_FILES;
use crate::store::core::{ShardCell, Stretch};
use crate::store::tests::{made, options, set, sgd};
use crate::units::{Slot, mix64, range_of, to_usize};
use crate::{RuntimeOptions, Store, TableId};

/// A row of 1000 bytes takes 1030 in a file; a file has a MiB.
fn wide(rows: u64, shards: usize) -> (Store, TableId) {
    let (_, store) = made(RuntimeOptions {
        cache_bytes: 8 << 20,
        file_bytes: 1 << 20,
        shards,
        ..options()
    });
    let table = store.create_table(&sgd("rows", 250)).unwrap();
    let keys: Vec<u64> = (0..rows).collect();
    for some in keys.chunks(500) {
        set(&store, table, some, 1.0);
    }
    (store, table)
}

fn rows(picked: &[Picked]) -> usize {
    picked.iter().map(|p| p.victims.len()).sum()
}

#[test]
fn a_checkpoint_picks_two_files_of_rows_an_equal_part_of_each_shard() {
    let (store, _) = wide(4000, 4);
    let flusher = &store.parts.flusher;
    let mut cursors = Vec::new();
    let picked = flusher.pick_frozen(&mut cursors, None).unwrap();
    // By what they take in memory.
    let cost = store.parts.core.shards[0].lock().cache.row_cost(0);
    let most = (PICK_FILES << 20) / usize::try_from(cost).unwrap();
    assert!(
        (most - 8..=most + 8).contains(&rows(&picked)),
        "{}",
        rows(&picked)
    );
    assert_eq!(flusher.bytes_of(&picked), 1030 * rows(&picked) as u64);
    for shard in 0..4 {
        let of = picked.iter().filter(|p| p.shard == shard);
        let count: usize = of.map(|p| p.victims.len()).sum();
        assert!(count >= most / 4 - 1, "{count} rows of shard {shard}");
    }
    // What was picked is not picked again, until there is nothing left.
    let mut total = rows(&picked);
    while let Some(picked) = flusher.pick_frozen(&mut cursors, None) {
        total += rows(&picked);
    }
    assert_eq!((total, cursors.len()), (4000, 4));
}

/// A flush of everything counted the tables, and then picked: a table that was created between the two
/// had no cursor, and the flush panicked.
#[test]
fn a_table_that_comes_between_two_picks_is_picked_from_its_first_row() {
    let (store, _) = wide(300, 4);
    let flusher = &store.parts.flusher;
    let mut cursors = Vec::new();
    let first = flusher.pick_frozen(&mut cursors, None).unwrap();
    assert_eq!((rows(&first), cursors.len()), (300, 4));
    let other = store.create_table(&sgd("other", 250)).unwrap();
    set(&store, other, &[1, 2, 3], 1.0);
    let picked = flusher.pick_frozen(&mut cursors, None).unwrap();
    assert!(picked.iter().all(|p| p.table == other.0 as usize));
    assert_eq!((rows(&picked), cursors.len()), (3, 4));
    assert!(flusher.pick_frozen(&mut cursors, None).is_none());
}

#[test]
fn rows_of_one_shard_fill_the_pick_where_others_have_none() {
    let (store, table) = wide(0, 4);
    let alone: Vec<u64> = (0..20_000)
        .filter(|k| range_of(mix64(*k), 4) == 2)
        .take(1500)
        .collect();
    for some in alone.chunks(500) {
        set(&store, table, some, 1.0);
    }
    let flusher = &store.parts.flusher;
    let picked = flusher.pick_frozen(&mut Vec::new(), None);
    let picked = picked.unwrap();
    let room = (PICK_FILES << 20) / 1030;
    // A quarter at first, then what is left of the room.
    assert!(rows(&picked) <= room && rows(&picked) > room / 4 + 100);
    assert!(picked.iter().all(|p| p.shard == 2));
}

#[test]
fn rows_of_more_than_a_file_and_a_half_are_cut_into_two_by_the_hash() {
    for (count, files) in [(400, 1), (1018, 1), (1500, 1), (1560, 2), (2000, 2)] {
        let (store, _) = wide(count, 3);
        let flusher = &store.parts.flusher;
        let picked = flusher.pick_frozen(&mut Vec::new(), None);
        let jobs = flusher.jobs_of(picked.unwrap());
        assert_eq!(jobs.len(), files, "{count} rows");
        let mut all = 0;
        for (piece, (directory, picked)) in jobs.iter().enumerate() {
            assert_eq!(*directory, 0);
            let parts: Vec<_> = picked.iter().map(|p| (p.table, p.shard)).collect();
            assert!(parts.is_sorted_by(|a, b| a < b), "{parts:?}: one part each");
            for part in picked {
                assert!(part.victims.is_sorted_by(|a, b| a.hash < b.hash));
                let here = |v: &crate::mem::Victim| range_of(v.hash, files) == piece;
                assert!(part.victims.iter().all(here));
            }
            all += rows(picked);
        }
        assert_eq!(all as u64, count);
    }
}

#[test]
fn a_flush_of_everything_counts_rows_and_flushes() {
    let (store, table) = wide(5000, 2);
    let before = store.stats();
    let dirty = before.dirty_rows;
    assert_eq!(store.flush().unwrap(), dirty);
    let after = store.stats();
    // Two files at a time.
    let flushes = dirty.div_ceil((2 << 20) / 1030);
    assert_eq!(after.flushes - before.flushes, flushes);
    assert_eq!((after.dirty_rows, after.uncheckpointed_rows), (0, 5000));
    assert_eq!(store.flush().unwrap(), 0);
    assert_eq!(store.stats().flushes, after.flushes);
    set(&store, table, &[1, 2, 3], 2.0);
    assert_eq!(store.flush().unwrap(), 3);
    assert_eq!(store.stats().flushes, after.flushes + 1);
}

#[test]
fn a_cache_runs_low_when_few_slots_are_left_and_is_flushed_then() {
    let (store, table) = wide(0, 2);
    let flusher = &store.parts.flusher;
    assert!(!flusher.is_low() && flusher.pick_cold(4).is_empty());
    assert_eq!(flusher.flush_low().unwrap(), 0);
    assert!(!flusher.is_awaited());
    flusher.waiting.fetch_add(1, Ordering::Relaxed);
    assert!(flusher.is_awaited());
    flusher.waiting.fetch_sub(1, Ordering::Relaxed);
    let mut key = 0;
    while !flusher.is_low() {
        let before = store.stats().flushes;
        set(&store, table, &[key], 1.0);
        assert_eq!(store.stats().flushes, before, "there is room yet");
        key += 1;
    }
    // Of each cache one step, or two while somebody waits and two files can be written at a time.
    let low = |picked: &[Picked]| picked.iter().map(|p| p.victims.len()).collect::<Vec<_>>();
    let step = store.parts.core.shards[0].lock().cache.flush_step();
    let row = store.parts.core.shards[0].lock().cache.row_cost(0);
    let rows = usize::try_from(step.bytes.div_ceil(row)).unwrap();
    let once = low(&flusher.pick_cold(4));
    assert!(
        once.iter().all(|of| (1..=rows).contains(of)) && once.iter().sum::<usize>() >= rows,
        "{once:?} {step:?}"
    );
    let dirty = store.stats().dirty_rows;
    let written = flusher.flush_low().unwrap();
    assert!(
        written >= once.iter().sum::<usize>() as u64,
        "{written} {once:?}"
    );
    let stats = store.stats();
    assert_eq!((stats.dirty_rows, stats.flushes), (dirty - written, 1));
    assert!(!flusher.is_low());
}

#[test]
fn while_rows_are_put_room_is_made_ahead_two_files_at_a_time() {
    let (store, table) = wide(0, 2);
    let flusher = &store.parts.flusher;
    let mut key = 0;
    let mut put_some = |enough: &dyn Fn() -> bool| {
        while !enough() {
            set(&store, table, &[key], 1.0);
            key += 1;
        }
    };
    let low = |steps| {
        let shards = store.parts.core.shards.iter();
        let below = |shard: &&ShardCell| shard.lock().cache.below_flush_steps(steps);
        shards.filter(below).count()
    };
    let fill = flusher.begin_fill();
    assert!(!flusher.is_low(), "there is room");
    put_some(&|| flusher.is_low());
    assert!(low(FILL_FILES) > 0 && low(1) == 0);
    let both = rows(&flusher.pick_cold(4));
    drop(fill);
    assert!(!flusher.is_low(), "enough for batches");
    assert!(flusher.pick_cold(4).is_empty());
    put_some(&|| low(1) > 0);
    let one = rows(&flusher.pick_cold(4));
    assert!(both > one && one > 0, "{both} rows, {one}");
}

/// Fills the one shard of a store with changed rows: no room is to be had without the writer.
fn fill(store: &Store, table: TableId) {
    let cell = &store.parts.core.shards[0];
    let mut key = 0;
    while cell.lock().reclaim(table.0 as usize, 1) > 0 {
        set(store, table, &[key], 1.0);
        key += 1;
    }
    assert_eq!(store.stats().flushes, 0);
}

#[test]
fn who_waits_for_room_goes_on_with_the_first_part_that_is_written_or_when_the_writer_is_free() {
    for writes in [true, false] {
        let (store, table) = wide(0, 1);
        fill(&store, table);
        let flusher = &store.parts.flusher;
        let rows = store.parts.core.table(table).unwrap();
        let role = flusher.lock_writer();
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let made = flusher.make_room(0, &rows, &mut Stretch::default());
                done.send(made).unwrap();
            });
            while !flusher.is_awaited() {
                std::thread::yield_now();
            }
            let limit = Duration::from_millis(100);
            assert!(is_done.recv_timeout(limit).is_err(), "there is no room");
            let role = match writes {
                true => Some(role),
                false => {
                    drop(role);
                    None
                }
            };
            if let Some(role) = &role {
                let picked = flusher.pick_cold(1);
                assert!(flusher.write_files(role, picked).unwrap() > 0);
            }
            // The role is still held in the first case, and taken by the other thread in the second.
            let made = is_done.recv_timeout(Duration::from_secs(30));
            made.unwrap().unwrap();
            drop(role);
        });
        assert_eq!(store.stats().flushes, 1);
    }
}

#[test]
fn while_rows_are_put_a_flush_goes_on_until_there_is_room_ahead() {
    let (store, table) = wide(0, 1);
    fill(&store, table);
    let flusher = &store.parts.flusher;
    let one = rows(&flusher.pick_cold(1)) as u64;
    let fills = flusher.begin_fill();
    let written = flusher.flush_low().unwrap();
    assert!(written >= 2 * one, "{written} rows, {one} at a time");
    assert_eq!(store.stats().flushes, 1);
    assert!(!flusher.is_low());
    drop(fills);
    assert_eq!(flusher.flush_low().unwrap(), 0);
}

/// It has a thread for each file of its pick, which may be one, and went on with that while whoever needed room waited.
#[test]
fn a_flush_that_began_before_a_fill_ends_after_its_pick() {
    let (store, table) = wide(0, 1);
    fill(&store, table);
    let flusher = &store.parts.flusher;
    let role = flusher.lock_writer();
    let one = rows(&flusher.pick_cold(1)) as u64;
    let (fills, written) = std::thread::scope(|scope| {
        let flush = scope.spawn(|| flusher.flush_low());
        while flusher.queued.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        let fills = flusher.begin_fill();
        drop(role);
        (fills, flush.join().unwrap().unwrap())
    });
    assert!(
        written > 0 && written <= one,
        "{written} rows, {one} at a time"
    );
    assert!(flusher.is_low(), "there is no room ahead yet");
    assert!(flusher.flush_low().unwrap() >= one, "the next one goes on");
    assert!(!flusher.is_low());
    drop(fills);
}

/// Pulls keys for whose rows there is no room, while nobody can make any: is room made ahead of the batch?
fn is_a_fill(store: &Store, table: TableId, keys: &[u64]) -> bool {
    let flusher = &store.parts.flusher;
    let role = flusher.lock_writer();
    std::thread::scope(|scope| {
        let batch = scope.spawn(|| {
            let mut rows = vec![0.0; keys.len() * 250];
            store.pull(table, keys, &mut rows).map(drop)
        });
        while !flusher.is_awaited() && !batch.is_finished() {
            std::thread::yield_now();
        }
        assert!(flusher.is_awaited(), "there was room");
        let is_a_fill = flusher.fills.is();
        drop(role);
        batch.join().unwrap().unwrap();
        assert!(!flusher.fills.is());
        is_a_fill
    })
}

#[test]
fn a_batch_of_new_rows_has_room_made_ahead_and_one_that_is_read_has_not() {
    const PUSHED: u64 = 16_000;
    let (store, table) = wide(PUSHED, 1);
    let flusher = &store.parts.flusher;
    let cell = &store.parts.core.shards[0];
    for (first, new) in [(0, false), (1 << 40, true)] {
        // Some rows may leave, but not for all of the batch.
        let role = flusher.lock_writer();
        flusher.write_files(&role, flusher.pick_cold(1)).unwrap();
        drop(role);
        let stats = store.stats();
        let wanted = to_usize(stats.capacity_rows - stats.dirty_rows) + 100;
        let keys = first..first + PUSHED;
        let hashes: Vec<u64> = keys.clone().map(mix64).collect();
        let mut slots = vec![Slot::NONE; hashes.len()];
        let id = table.0 as usize;
        cell.lock().cache.lookup(id, &hashes, &mut slots);
        let away = keys.zip(slots).filter(|(_, slot)| *slot == Slot::NONE);
        let keys: Vec<u64> = away.map(|(key, _)| key).take(wanted).collect();
        assert!(keys.len() == wanted && wanted > 100);
        assert_eq!(is_a_fill(&store, table, &keys), new);
    }
}

#[test]
fn a_batch_that_finds_no_slot_at_all_is_taken_for_one_like_the_last() {
    let (store, table) = wide(0, 1);
    fill(&store, table);
    let keys: Vec<u64> = (1 << 40..(1 << 40) + 100).collect();
    assert!(
        is_a_fill(&store, table, &keys),
        "the last one was of new rows"
    );
}
