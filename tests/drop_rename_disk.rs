//! What a dropped table leaves on disk: room that compaction gives back, keys that never come back from an
//! index snapshot or from key blocks, and rows that a repair does not miss.
#![expect(
    clippy::indexing_slicing,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/changed_tables.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod changed_tables;
#[path = "common/small.rs"]
mod small;

use std::ops::ControlFlow;
use std::path::Path;

use changed_tables::*;
use hps::io::Io;
use hps::io::sim::SimDisk;
use hps::repair::{RepairOptions, RepairOutcome, repair_on};
use hps::*;
use small::{fill, invalid, set, sgd, values};

fn bytes(store: &Store) -> u64 {
    store.files().iter().map(|file| file.bytes).sum()
}

#[test]
fn compaction_leaves_the_rows_of_a_dropped_table_behind_once_no_checkpoint_needs_them() {
    let (_, store) = create(options().retain_checkpoints(2));
    let [small, large] = ["small", "large"].map(|n| store.create_table(&sgd(n, DIM)).unwrap());
    // Files have rows of both.
    for value in [1.0, 2.0] {
        fill(&store, large, 1500, 300, value, DIM);
        fill(&store, small, 300, 300, value, DIM);
        store.flush().unwrap();
    }
    store.checkpoint(1, &[]).unwrap();
    let limits = CompactLimits::new().stale_share(0.01);
    let compact = || {
        store
            .compact(&limits, |_| ControlFlow::Continue(()))
            .unwrap()
    };
    compact();
    assert!(store.compaction_plan(&limits).is_empty());
    let before = bytes(&store);
    store.drop_table(large).unwrap();
    let plan = store.compaction_plan(&limits);
    assert!(!plan.is_empty());
    for file in plan {
        let live = file.live_entries as f64 / file.entries() as f64;
        assert!((0.1..0.2).contains(&live), "300 of 1800 rows: {live}");
    }
    // Only with the next checkpoint: the last one needs the files.
    let report = compact();
    assert!(!report.durable && report.files > 0, "{report:?}");
    assert!(bytes(&store) > before);
    store.checkpoint(2, &[]).unwrap();
    assert!(bytes(&store) > before, "a rollback may want the table back");
    store.checkpoint(3, &[]).unwrap();
    let after = bytes(&store);
    assert!(after < before / 4, "{before} and then {after}");
    assert_eq!(counts(&store, CheckpointId(3)), [300, 0, 0, 0]);
    assert!(store.compaction_plan(&limits).is_empty());
    store.close().unwrap();
}

#[test]
fn keys_of_a_dropped_table_come_back_neither_from_an_index_snapshot_nor_from_key_blocks() {
    let often = Thresholds {
        snapshot_young_bytes: 1,
        snapshot_young_part: 1 << 20,
        ..Thresholds::default()
    };
    // Without an index snapshot, with one from before the drop, with one from after it, and both mixed.
    for (snapshot, more) in [(false, false), (true, false), (true, true)] {
        let made = match snapshot {
            true => options().thresholds(often),
            false => options(),
        };
        let disk = SimDisk::new(1);
        let create = Store::create_on(
            Io::of(disk.clone()),
            Path::new(ROOT),
            CreateOptions::new(),
            made.clone(),
        );
        let store = create.unwrap();
        let tables = ["a", "b", "c"].map(|name| store.create_table(&sgd(name, DIM)).unwrap());
        for (table, keys) in tables.into_iter().zip([100, 50, 30]) {
            fill(&store, table, keys, 25, 1.0, DIM);
        }
        store.checkpoint(1, &[]).unwrap();
        if !more {
            // The index snapshot of the first checkpoint stays in force.
            store.close().unwrap();
            let store = open(&disk);
            change(&store, tables);
            store.close().unwrap();
        } else {
            change(&store, tables);
            store.close().unwrap();
        }
        let snapshots = disk
            .paths()
            .into_iter()
            .filter(|p| p.extension() == Some("snapshot".as_ref()));
        assert_eq!(snapshots.count() > 0, snapshot);
        let report = look(&disk, Path::new(ROOT), None);
        assert_eq!(report.worst(), None, "{:?}", report.findings);
        for _ in 0..2 {
            let store = Store::open_on(Io::of(disk.clone()), Path::new(ROOT), made.clone());
            let store = store.unwrap();
            check_changed(&store);
            let live: u64 = store.files().iter().map(|f| f.live_entries).sum();
            assert_eq!(live, 150);
            fill(&store, tables[0], 30, 30, 1.0, DIM);
            store
                .checkpoint(store.last_checkpoint().unwrap().step + 1, &[])
                .unwrap();
            store.close().unwrap();
            assert_eq!(look(&disk, Path::new(ROOT), None).worst(), None);
        }
    }
}

/// The number of a dropped table is never given again, and a store's files have room for so many.
#[test]
fn dropped_tables_count_among_the_most_that_a_store_may_have() {
    let most = TABLES_MAX - 3;
    let names: Vec<String> = (0..most).map(|i| format!("t{i}")).collect();
    let tables: Vec<TableDescriptor> = names.iter().map(|name| sgd(name, 1)).collect();
    let options = options().cache_bytes(64 << 20).shards(1).flush_step_rows(1);
    let disk = SimDisk::new(1);
    let open = |tables: &[TableDescriptor]| {
        let (io, create) = (Io::of(disk.clone()), CreateOptions::new());
        Store::open_or_create_on(io, Path::new(ROOT), create, options.clone(), tables)
    };
    let limit = "a store has at most 4096 tables, dropped ones included";
    let refused = |store: &Store| {
        let error = store.create_table(&sgd("one more", 1)).unwrap_err();
        assert_eq!(invalid(error).to_string(), limit);
    };
    let (store, ids) = open(&tables).unwrap();
    // One that a checkpoint has, and two that none has had.
    store.checkpoint(1, &[]).unwrap();
    store.drop_table(ids[0]).unwrap();
    for _ in 0..2 {
        let passing = store.create_table(&sgd("passing", 1)).unwrap();
        store.drop_table(passing).unwrap();
    }
    let last = store.create_table(&sgd("last", 1)).unwrap();
    assert_eq!(
        (last.0 as usize, store.tables().len()),
        (TABLES_MAX - 1, most)
    );
    refused(&store);
    store.drop_table(ids[1]).unwrap();
    refused(&store);
    // What is there goes on.
    store.rename_table(ids[2], "other").unwrap();
    assert_eq!(store.create_table(&sgd("other", 1)).unwrap(), ids[2]);
    set(&store, last, &[1, 2], 3.0, 1);
    store.checkpoint(2, &[]).unwrap();
    set(&store, ids[2], &[1], 4.0, 1);
    store.checkpoint(3, &[]).unwrap();
    store.close().unwrap();
    let error = open(&[sgd("last", 1), sgd("one more", 1)]).unwrap_err();
    assert_eq!(invalid(error).to_string(), limit);
    let (store, again) = open(&[sgd("last", 1), sgd("other", 1)]).unwrap();
    assert_eq!(
        (&again[..], store.tables().len()),
        (&[last, ids[2]][..], most - 1)
    );
    refused(&store);
    assert_eq!(values(&store, last, &[1, 2, 3], 1), [3.0, 3.0, 0.0]);
    assert_eq!(values(&store, ids[2], &[1], 1), [4.0]);
    // A rollback gives the table back, and no number.
    let store = store.rollback(CheckpointId(1)).unwrap();
    assert_eq!(store.tables_at(CheckpointId(1)).unwrap()[0].1.name, "t0");
    refused(&store);
    store.close_discarding();
}

#[test]
fn a_repair_keeps_drops_and_names_and_tells_no_row_of_a_dropped_table_as_lost() {
    let (disk, store, tables) = begin();
    change(&store, tables);
    // Its records are in the order of the tables: the first blocks are of "a", then come those of "b".
    let file = store.files().into_iter().next().unwrap();
    assert_eq!((file.entries(), file.live_entries), (180, 130));
    store.close().unwrap();
    let content = disk.read_file(&file.path).unwrap();
    let mut damaged = content.clone();
    let stride = 16 + 4 * DIM;
    let at = |record: usize| 4096 + record * stride + stride / 2;
    for record in [20, 110, 120] {
        damaged[at(record)] ^= 1;
    }
    disk.write_file(&file.path, &damaged).unwrap();
    let scan = look(&disk, Path::new(ROOT), None);
    assert!(
        scan.worst().is_some(),
        "the file is damaged, whoever's the rows are"
    );
    let mut lost = Vec::new();
    let go_on = &mut |_, _| ControlFlow::Continue(());
    let mut tell = |name: &str, row: hps::repair::LostRow| {
        lost.push((name.to_owned(), row.table));
        Ok(())
    };
    let io = Io::of(disk.clone());
    let built = repair_on(&io, Path::new(ROOT), RepairOptions::new(), &mut tell, go_on).unwrap();
    let RepairOutcome::Built(_, repaired) = built else {
        panic!("nothing was built");
    };
    assert_eq!(lost, [(String::from("a"), 0)]);
    assert_eq!(repaired.tables, ["a", "z", "b"]);
    // The file has 100 rows of "a", 50 of the table that was dropped, and 30 of "z".
    assert_eq!((repaired.entries_saved, repaired.nameless), (99 + 30, 0));
    let root = repaired.path.clone();
    drop(repaired);
    let report = look(&disk, &root, None);
    assert_eq!(report.worst(), None, "{:?}", report.findings);
    assert_eq!(
        reported(&report),
        [(0, "a", 99), (2, "z", 30), (3, "b", 20)]
    );
    let store = Store::open_on(io, &root, options()).unwrap();
    assert_eq!(names(&store), named(&[(0, "a"), (2, "z"), (3, "b")]));
    let entries: u64 = store.files().iter().map(FileInfo::entries).sum();
    assert_eq!(entries, 99 + 30 + 20, "nothing of the dropped table");
    assert_eq!(store.create_table(&sgd("new", 1)).unwrap(), TableId(4));
    store.close_discarding();
}

#[test]
fn a_repair_to_a_checkpoint_from_before_a_drop_saves_the_rows_of_that_table() {
    let (disk, store, tables) = begin();
    change(&store, tables);
    let file = store.files().into_iter().next().unwrap();
    store.close().unwrap();
    // The first record, of "a": what is behind it is saved.
    disk.corrupt(&file.path, 4096 + 20, 1).unwrap();
    let go_on = &mut |_, _| ControlFlow::Continue(());
    let io = Io::of(disk);
    let before = RepairOptions::new().checkpoint(Some(CheckpointId(1)));
    let built = repair_on(&io, Path::new(ROOT), before, &mut |_, _| Ok(()), go_on).unwrap();
    let RepairOutcome::Built(_, repaired) = built else {
        panic!("nothing was built");
    };
    assert_eq!(repaired.tables, ["a", "b", "c"]);
    assert_eq!(repaired.entries_saved, 179);
    let root = repaired.path.clone();
    drop(repaired);
    let store = Store::open_on(io, &root, options()).unwrap();
    assert_eq!(names(&store), named(&[(0, "a"), (1, "b"), (2, "c")]));
    assert_eq!(counts(&store, CheckpointId(1)), [99, 50, 30, 0]);
    store.close_discarding();
}
