//! What opening gives back: the last checkpoint, an earlier one, an export - or why it refuses.

#[path = "common/small.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod small;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use hps::*;
use small::{invalid, options, set, sgd, values};

#[test]
fn a_store_dropped_without_a_checkpoint_reopens_at_the_last_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let store = Store::create(&path, CreateOptions::new(), options()).unwrap();
    let table = store.create_table(&sgd("t", 4)).unwrap();
    set(&store, table, &[1, 2], 1.0, 4);
    store.checkpoint(1, &[]).unwrap();
    set(&store, table, &[2, 3], 2.0, 4);
    store.remove(table, &[1]).unwrap();
    store.flush().unwrap();
    drop(store);
    let store = Store::open(&path, options()).unwrap();
    assert_eq!(
        store.contains(table, &[1, 2, 3]).unwrap(),
        [true, true, false]
    );
    assert_eq!(values(&store, table, &[1, 2], 4), [1.0; 8]);
    set(&store, table, &[9], 1.0, 4);
    assert!(matches!(
        store.close(),
        Err(Error::Uncheckpointed { rows: 1 })
    ));
}

#[test]
fn checkpoints_are_retained_rolled_back_to_and_exported() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let options = options().retain_checkpoints(3);
    let create = CreateOptions::new().data_directories(vec!["a".into(), dir.path().join("b")]);
    let store = Store::create(&path, create, options.clone()).unwrap();
    let table = store.create_table(&sgd("t", 64)).unwrap();
    let keys: Vec<u64> = (0..3000).collect();
    let mut ids = Vec::new();
    for step in 1..=4u64 {
        for batch in keys.chunks(500) {
            set(&store, table, batch, step as f32, 64);
        }
        ids.push(store.checkpoint(step, &step.to_le_bytes()).unwrap().id);
    }
    let retained: Vec<CheckpointId> = store.checkpoints().iter().map(|c| c.id).collect();
    assert_eq!(retained, ids[1..]);
    let target = dir.path().join("export");
    store.export(ids[2], &target, &[]).unwrap();
    let reader = Store::open_read_only(&path, Some(ids[1]), RuntimeOptions::default()).unwrap();
    assert_eq!(values(&reader, table, &[7], 64), [2.0; 64]);
    assert!(matches!(
        reader.remove(table, &[7]),
        Err(Error::ReadOnly { .. })
    ));
    let store = store.rollback(ids[2]).unwrap();
    assert_eq!(store.last_checkpoint().unwrap().id, ids[2]);
    for batch in keys.chunks(500) {
        assert_eq!(
            values(&store, table, batch, 64),
            vec![3.0; batch.len() * 64]
        );
    }
    set(&store, table, &[7], 9.0, 64);
    let info = store.checkpoint(4, &[]).unwrap();
    assert!(info.id > ids[3], "checkpoint ids are never used again");
    store.checkpoint(5, &[]).unwrap();
    store.checkpoint(6, &[]).unwrap();
    assert_eq!(values(&reader, table, &keys[..500], 64), [2.0; 500 * 64]);
    drop(reader);
    store.close().unwrap();
    std::fs::remove_dir_all(&path).unwrap();
    let exported = Store::open(&target, options);
    let exported = exported.unwrap();
    for batch in keys.chunks(500) {
        assert_eq!(
            values(&exported, table, batch, 64),
            vec![3.0; batch.len() * 64]
        );
    }
    assert_eq!(
        exported.checkpoint_meta(ids[2]).unwrap(),
        3u64.to_le_bytes()
    );
    set(&exported, table, &[7], 1.0, 64);
    exported.checkpoint(9, &[]).unwrap();
    exported.close().unwrap();
}

#[test]
fn one_writer_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(dir.path(), CreateOptions::new(), options()).unwrap();
    assert!(matches!(
        Store::open(dir.path(), options()),
        Err(Error::Locked { .. })
    ));
    drop(store);
    Store::open(dir.path(), options()).unwrap().close().unwrap();
}

#[test]
fn what_is_not_a_store_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    let open = |p: &Path| invalid(Store::open(p, options()).unwrap_err());
    assert!(matches!(
        open(&path.join("none")),
        ArgumentError::NotAStore { .. }
    ));
    assert!(matches!(open(path), ArgumentError::NotAStore { .. }));
    std::fs::write(path.join("file"), "x").unwrap();
    assert!(matches!(
        open(&path.join("file")),
        ArgumentError::NotAStore { .. }
    ));
    let stranger = invalid(Store::create(path, CreateOptions::new(), options()).unwrap_err());
    assert!(
        matches!(stranger, ArgumentError::NotAStore { .. }),
        "{stranger}"
    );
    let store = path.join("store");
    drop(Store::create(&store, CreateOptions::new(), options()).unwrap());
    let again = invalid(Store::create(&store, CreateOptions::new(), options()).unwrap_err());
    assert!(matches!(again, ArgumentError::AlreadyAStore { .. }));
    std::fs::remove_file(store.join("STORE")).unwrap();
    assert!(open(&store).to_string().contains("creation did not finish"));
}

#[test]
fn a_newer_format_is_refused_by_version() {
    use hps::format::checksum::{Kind, checksum};
    use hps::format::{FileIdentity, identity::StoreIdentity};
    let dir = tempfile::tempdir().unwrap();
    drop(Store::create(dir.path(), CreateOptions::new(), options()).unwrap());
    let store = StoreIdentity::decode(&std::fs::read(dir.path().join("STORE")).unwrap()).unwrap();
    let file = dir.path().join("CURRENT");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[16] = 3; // The version, with a checksum that a later build would write.
    let seed = FileIdentity::new(store.uuid, FileNumber(0)).seed(Kind::Current, 0);
    let sum = checksum(&bytes[8..], seed);
    bytes[..8].copy_from_slice(&sum.to_le_bytes());
    std::fs::write(&file, &bytes).unwrap();
    match Store::open(dir.path(), options()).unwrap_err() {
        Error::Unsupported {
            path,
            found: 3,
            supported: 2,
        } => assert_eq!(path, file),
        other => panic!("{other}"),
    }
}

#[test]
fn the_index_snapshot_is_a_cache_and_damage_to_it_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(dir.path(), CreateOptions::new(), options()).unwrap();
    let table = store.create_table(&sgd("t", 16)).unwrap();
    let keys: Vec<u64> = (0..30_000).collect();
    for (step, part) in keys.chunks(10_000).enumerate() {
        for batch in part.chunks(1000) {
            set(&store, table, batch, batch[0] as f32, 16);
        }
        // A row that no file holds would need no tombstone, and leave no key.
        store.flush().unwrap();
        store.remove(table, &part[..100]).unwrap();
        store.checkpoint(step as u64 + 1, &[]).unwrap();
    }
    store.close().unwrap();
    let snapshots = || -> Vec<std::path::PathBuf> {
        let names = std::fs::read_dir(dir.path().join("part-0"))
            .unwrap()
            .map(|e| e.unwrap().path());
        names
            .filter(|p| p.extension().is_some_and(|e| e == "snapshot"))
            .collect()
    };
    let check = || {
        let store = Store::open(dir.path(), options()).unwrap();
        assert_eq!(store.stats().index_keys, 30_000);
        for batch in keys.chunks(1000) {
            let known = store.contains(table, batch).unwrap();
            let got = values(&store, table, batch, 16);
            for ((key, known), row) in batch.iter().zip(known).zip(got.chunks(16)) {
                assert_eq!(known, key % 10_000 >= 100, "key {key}");
                let expected = if known { batch[0] as f32 } else { 0.0 };
                assert_eq!(row, [expected; 16], "key {key}");
            }
        }
        store.close().unwrap();
    };
    check();
    let snapshot = snapshots();
    assert_eq!(snapshot.len(), 1, "one part is in force");
    let bytes = std::fs::read(&snapshot[0]).unwrap();
    for at in [100, 5000, 12_000, bytes.len() - 4000] {
        let mut damaged = bytes.clone();
        damaged[at] ^= 4;
        std::fs::write(&snapshot[0], damaged).unwrap();
        check();
    }
    std::fs::remove_file(&snapshot[0]).unwrap();
    check();
}

/// Crash tests drive a few thousand rows through tens of checkpoints. With the thresholds of a
/// store of ordinary size they would never meet a second snapshot, a manifest started afresh or file
/// numbers that run out.
#[test]
fn thresholds_of_tests_bring_an_index_snapshot_a_new_manifest_and_more_numbers_within_a_few_checkpoints()
 {
    let dir = tempfile::tempdir().unwrap();
    let options = options().inline(true).thresholds(Thresholds {
        snapshot_young_bytes: 0,
        snapshot_young_part: u64::MAX,
        manifest_roll_bytes: 0,
        numbers_reserved: 20,
        ..Thresholds::default()
    });
    let store = Store::create(dir.path(), CreateOptions::new(), options).unwrap();
    let table = store.create_table(&sgd("t", 4)).unwrap();
    let (mut snapshots, mut manifests) = (BTreeSet::new(), BTreeSet::new());
    let mut kinds = BTreeMap::new();
    for step in 1..=30u64 {
        set(&store, table, &[step, 1000 + step], 1.0, 4);
        store.checkpoint(step, &[]).unwrap();
        let part = std::fs::read_dir(dir.path().join("part-0")).unwrap();
        for entry in std::fs::read_dir(dir.path()).unwrap().chain(part) {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if let Some((number, kind)) = name.split_once('.') {
                // The copy of a manifest has its number; no other two files have one, ever.
                let kind = kind.replace("copy", "manifest");
                let before = kinds.insert(number.to_owned(), kind.clone());
                assert!(before.is_none_or(|before| before == kind), "{name}");
            }
            match name.split_once('.') {
                Some((number, "snapshot")) => snapshots.insert(number.to_owned()),
                Some((number, "manifest")) => manifests.insert(number.to_owned()),
                _ => false,
            };
        }
    }
    assert!(snapshots.len() > 3, "{snapshots:?}");
    assert!(manifests.len() > 3, "{manifests:?}");
    store.close().unwrap();
}

/// A store of 16-byte rows wrote an index snapshot after every two rows flushed for three keys: half as many
/// bytes again as the rows.
#[test]
fn snapshots_are_at_most_a_tenth_of_what_is_flushed_and_there_is_one_when_that_allows() {
    for (dim, some) in [(4, false), (128, true)] {
        let dir = tempfile::tempdir().unwrap();
        let options = options().inline(true).thresholds(Thresholds {
            snapshot_young_bytes: 0,
            snapshot_small_bytes: 0,
            ..Thresholds::default()
        });
        let store = Store::create(dir.path(), CreateOptions::new(), options).unwrap();
        let table = store.create_table(&sgd("t", dim)).unwrap();
        let mut snapshots = BTreeMap::new();
        for step in 1..=40u64 {
            let from = step * 1500 % 4000;
            let keys: Vec<u64> = (from..from + 1500).map(|key| key % 4000).collect();
            for batch in keys.chunks(250) {
                set(&store, table, batch, 1.0, dim);
            }
            store.checkpoint(step, &[]).unwrap();
            for entry in std::fs::read_dir(dir.path().join("part-0")).unwrap() {
                let path = entry.unwrap().path();
                if path.extension().is_some_and(|e| e == "snapshot") {
                    snapshots.insert(path.clone(), std::fs::metadata(&path).unwrap().len());
                }
            }
        }
        let (stats, bytes) = (store.stats(), snapshots.values().sum::<u64>());
        let flushed = stats.written_bytes - stats.compaction_written_bytes;
        assert!(
            bytes * 10 <= flushed,
            "dim {dim}: {snapshots:?} of {flushed}"
        );
        assert!(snapshots.len() >= 3 || !some, "{snapshots:?} of {flushed}");
        store.close().unwrap();
    }
}

/// The list of an open and that of a create were one option: an open could not be told apart from a
/// create that finds a store, and a wrong list in a create was taken for directories that had moved.
#[test]
fn data_directories_that_have_moved_are_named_at_each_open_and_at_no_create() {
    let dir = tempfile::tempdir().unwrap();
    let (root, at) = (dir.path().join("store"), |name: &str| dir.path().join(name));
    let create = CreateOptions::new().data_directories(vec!["a".into(), at("b")]);
    let store = Store::create(&root, create, options()).unwrap();
    let table = store.create_table(&sgd("t", 64)).unwrap();
    let keys: Vec<u64> = (0..2000).collect();
    for keys in keys.chunks(500) {
        set(&store, table, keys, 3.0, 64);
    }
    let id = store.checkpoint(1, &[]).unwrap().id;
    store.close().unwrap();
    std::fs::rename(root.join("a"), at("c")).unwrap();
    std::fs::rename(at("b"), root.join("d")).unwrap();
    let missing = Store::open(&root, options()).unwrap_err();
    assert!(
        matches!(&missing, Error::MissingDirectory { index: 0, .. }),
        "{missing}"
    );
    assert!(
        missing.to_string().contains("moved_directories"),
        "{missing}"
    );
    let moved = |places: Vec<std::path::PathBuf>| options().moved_directories(places);
    let few = invalid(Store::open(&root, moved(vec![at("c")])).unwrap_err());
    assert!(
        matches!(
            few,
            ArgumentError::Length {
                what: "moved_directories",
                expected: 2,
                found: 1
            }
        ),
        "{few:?}"
    );
    let crossed = Store::open(&root, moved(vec!["d".into(), at("c")])).unwrap_err();
    assert!(matches!(crossed, Error::Corrupt { .. }), "{crossed}");
    let right = || moved(vec![at("c"), "d".into()]);
    let store = Store::open(&root, right()).unwrap();
    assert_eq!(values(&store, table, &keys[..500], 64), [3.0; 500 * 64]);
    set(&store, table, &keys[..500], 4.0, 64);
    store.checkpoint(2, &[]).unwrap();
    let reader = Store::open_read_only(&root, Some(id), right()).unwrap();
    assert_eq!(values(&reader, table, &keys[..500], 64), [3.0; 500 * 64]);
    drop(reader);
    // A rollback opens it once more.
    let store = store.rollback(id).unwrap();
    assert_eq!(values(&store, table, &keys[1500..], 64), [3.0; 500 * 64]);
    store.close().unwrap();
    assert!(matches!(
        Store::open(&root, options()).unwrap_err(),
        Error::MissingDirectory { .. }
    ));
    let tables = [sgd("t", 64)];
    let (store, _) = Store::open_or_create(&root, CreateOptions::new(), right(), &tables).unwrap();
    store.close().unwrap();
    // Nothing is made by options that can't be right.
    let new = at("new");
    let created = Store::create(&new, CreateOptions::new(), right()).map(drop);
    let either = Store::open_or_create(&new, CreateOptions::new(), right(), &tables).map(drop);
    for refused in [created, either] {
        let refused = invalid(refused.unwrap_err());
        assert!(
            matches!(&refused, ArgumentError::Option { name, .. } if *name == "moved_directories"),
            "{refused:?}"
        );
        assert!(!new.exists());
    }
}
