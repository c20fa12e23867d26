//! What was chosen and has changed before it came in.

use std::path::Path;
use std::sync::Arc;

use super::choose::Round;
use super::*;
use crate::io::sim::SimDisk;
use crate::options::{CreateOptions, RuntimeOptions};
use crate::store::Store;
use crate::store::push::Update;
use crate::store::tests::sgd;
use crate::units::TableId;

const DIM: usize = 64;

fn options() -> RuntimeOptions {
    RuntimeOptions::new()
        .cache_bytes(1 << 20)
        .shards(1)
        .threads(1)
        .io_depth(8)
        .inline(true)
        .warm(true)
}

fn set(store: &Store, table: TableId, keys: std::ops::Range<u64>, value: f32) {
    for key in (keys.start..keys.end).step_by(200) {
        let keys: Vec<u64> = (key..(key + 200).min(keys.end)).collect();
        let mut rows = vec![0.0; keys.len() * DIM];
        let lease = store.pull(table, &keys, &mut rows).unwrap();
        rows.fill(value);
        store.push(&lease, Update::weights(&rows)).unwrap();
    }
}

/// A store of 10 000 rows, of which some 3000 fit, opened without a warm restart; with a warmer, and the rows that it has chosen.
fn chosen() -> (Store, TableId, Warmer, Round) {
    let disk = Arc::new(SimDisk::new(1));
    let path = Path::new("/store");
    let create = CreateOptions::new();
    let store = Store::create_on(Arc::clone(&disk), path, create, options()).unwrap();
    let table = store.create_table(&sgd("rows", DIM)).unwrap();
    set(&store, table, 0..10_000, 1.0);
    for _ in 0..4 {
        set(&store, table, 0..1000, 1.0);
    }
    store.checkpoint(1, &[]).unwrap();
    store.close().unwrap();
    let store = Store::open_on(disk, path, options().warm(false)).unwrap();
    let warmer = Warmer::new(&store.parts.core);
    let (tables, is_over) = (warmer.tables(), |_| warmer.is_over());
    let search = Search {
        core: &warmer.core,
        tables: &tables,
        threads: 1,
        is_over: &is_over,
    };
    let choice = Choice::new(&search);
    let rounds = choice.rounds(u64::MAX);
    assert_eq!(rounds.len(), 1, "as many as are asked for");
    assert!(choice.rounds(CHOSEN_MIN).len() > 3);
    let round = choice.collect(&search, &rounds[0]);
    assert!(round.rows.len() > 1500, "{} rows", round.rows.len());
    (store, table, warmer, round)
}

fn read(warmer: &Warmer, round: &Round) {
    let lanes = warmer.lanes(&warmer.tables()).unwrap();
    for rows in round.rows.chunks(PLAN_ROWS) {
        warmer
            .read_some(&mut open(&lanes[0]), &round.data_files, rows)
            .unwrap();
    }
}

fn value(store: &Store, table: TableId, key: u64) -> f32 {
    let mut row = [0.0; DIM];
    drop(store.pull(table, &[key], &mut row).unwrap());
    row[0]
}

#[test]
fn a_row_that_was_changed_and_written_again_is_not_replaced_by_its_old_copy() {
    let (store, table, warmer, round) = chosen();
    set(&store, table, 0..1000, 2.0);
    store.flush().unwrap();
    // They leave, and then there is room.
    for _ in 0..30 {
        set(&store, table, 2000..5000, 3.0);
    }
    store.flush().unwrap();
    store.set_cache_bytes(8 << 20).unwrap();
    let hashes: Vec<u64> = (0..1000).map(crate::units::mix64).collect();
    let mut slots = vec![Slot::NONE; hashes.len()];
    let shard = store.parts.core.shards[0].lock();
    shard.cache.lookup(0, &hashes, &mut slots);
    drop(shard);
    let is_away = |hash: &u64| slots[hashes.iter().position(|h| h == hash).unwrap()] == Slot::NONE;
    let chosen = round.rows.iter().map(|row| row.hash);
    let away = chosen.filter(|hash| hashes.contains(hash) && is_away(hash));
    let away = away.count();
    assert!(away > 100, "{away} rows could come in as they were");
    read(&warmer, &round);
    assert!(get(&warmer.rows) > 0, "there is room");
    let wrong = (0..1000).filter(|key| value(&store, table, *key) != 2.0);
    assert_eq!(wrong.count(), 0);
    store.close_discarding();
}

#[test]
fn a_row_that_is_in_memory_and_changed_stays_as_it_is() {
    let (store, table, warmer, round) = chosen();
    set(&store, table, 0..300, 2.0);
    read(&warmer, &round);
    assert!(get(&warmer.rows) > 1000, "others came in");
    let wrong = (0..300).filter(|key| value(&store, table, *key) != 2.0);
    assert_eq!(wrong.count(), 0);
    assert_eq!(value(&store, table, 999), 1.0);
    store.close_discarding();
}

#[test]
fn no_row_leaves_for_one_that_nobody_asks_for() {
    let (store, table, warmer, round) = chosen();
    set(&store, table, 2000..9000, 3.0);
    store.flush().unwrap();
    let before = store.stats();
    assert_eq!(
        before.resident_rows, before.capacity_rows,
        "the cache is full"
    );
    read(&warmer, &round);
    let after = store.stats();
    assert_eq!(after.tables[0].rows_evicted, before.tables[0].rows_evicted);
    assert_eq!(after.resident_rows, before.resident_rows);
    assert!(!warmer.full.lock().unwrap().is_empty());
    // What has no room is not read.
    let reads = get(&warmer.reads);
    read(&warmer, &round);
    assert_eq!(get(&warmer.reads), reads);
    store.close_discarding();
}

#[test]
fn a_table_that_was_dropped_gets_no_row() {
    let (store, table, warmer, round) = chosen();
    store.drop_table(table).unwrap();
    read(&warmer, &round);
    assert_eq!(get(&warmer.rows), 0);
    store.close_discarding();
}

/// A file slot is given to the next new file: another row may be at the same place in that.
#[test]
fn a_row_of_a_file_whose_slot_is_another_files_by_now_does_not_come_in() {
    let (store, _, warmer, round) = chosen();
    let (row, values) = (round.rows[0], [1.0; DIM]);
    let slot = row.entry.location().slot().index();
    let mut others = round.data_files.clone();
    others[slot] = others
        .iter()
        .enumerate()
        .find_map(|(i, file)| file.clone().filter(|_| i != slot));
    assert!(others[slot].is_some());
    warmer.restore(&others, &[(row, 0)], &values);
    assert_eq!(get(&warmer.rows), 0);
    warmer.restore(&round.data_files, &[(row, 0)], &values);
    assert_eq!(get(&warmer.rows), 1);
    store.close_discarding();
}

/// Its rows stay from now on: none that nobody asked for is among them.
#[test]
fn a_table_whose_policy_changes_gets_no_row_any_more() {
    let (store, table, warmer, round) = chosen();
    store.parts.warmer.stop();
    assert!(store.parts.warmer.is_over() && !warmer.is_over());
    let options = crate::TableOptions::new().policy(PolicyKind::PinAll);
    let descriptor = store.parts.core.table(table).unwrap().descriptor.clone();
    store.create_table_with(&descriptor, options).unwrap();
    let before = store.stats().resident_rows;
    read(&warmer, &round);
    assert_eq!(store.stats().resident_rows, before);
    store.close_discarding();
}

#[test]
fn what_is_to_stop_looks_at_no_more_keys() {
    let (store, _, warmer, _) = chosen();
    let tables = warmer.tables();
    let search = Search {
        core: &warmer.core,
        tables: &tables,
        threads: 1,
        is_over: &|_| true,
    };
    assert_eq!(Choice::new(&search).rows(), 0);
    store.close_discarding();
}

/// The coldest rows of a table with a ceiling take no room from others.
#[test]
fn a_table_with_a_ceiling_leaves_others_their_room() {
    let disk = Arc::new(SimDisk::new(1));
    let path = Path::new("/store");
    let small = crate::TableOptions::new().cache_bytes_max(64 << 10);
    let (create, options) = (CreateOptions::new(), options());
    let store = Store::create_on(Arc::clone(&disk), path, create, options.clone()).unwrap();
    let small_table = store.create_table(&sgd("small", DIM)).unwrap();
    let plain = store.create_table(&sgd("plain", DIM)).unwrap();
    for _ in 0..8 {
        set(&store, small_table, 0..2000, 1.0);
    }
    for _ in 0..3 {
        set(&store, plain, 0..1500, 1.0);
    }
    store.checkpoint(1, &[]).unwrap();
    store.close().unwrap();
    let options = options.table("small", small);
    let store = Store::open_on(disk, path, options).unwrap();
    let stats = store.stats();
    let resident = |i: usize| stats.tables[i].resident_rows;
    assert!((150..=260).contains(&resident(0)), "{}", resident(0));
    assert!(resident(1) > 1000, "{}", resident(1));
    store.close_discarding();
}
