//! The store's API on a real file system: what a first user does, and every kind of bad input.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use hps::*;
use std::path::Path;

fn options() -> RuntimeOptions {
    RuntimeOptions {
        cache_bytes: 1 << 20,
        io_depth: 8,
        threads: 2,
        ..RuntimeOptions::default()
    }
}

fn sgd(name: &str, dim: usize) -> TableDescriptor {
    TableDescriptor {
        optimizer: Optimizer::Sgd,
        initialiser: Initialiser::Zero,
        ..TableDescriptor::new(name, dim)
    }
}

fn values(store: &Store, table: TableId, keys: &[u64], dim: usize) -> Vec<f32> {
    let mut out = vec![0.0; keys.len() * dim];
    drop(store.pull(table, keys, &mut out).unwrap());
    out
}

fn set(store: &Store, table: TableId, keys: &[u64], value: f32, dim: usize) {
    let mut out = vec![0.0; keys.len() * dim];
    let lease = store.pull(table, keys, &mut out).unwrap();
    out.fill(value);
    store.push(&lease, Update::weights(&out)).unwrap();
}

fn invalid(error: Error) -> Invalid {
    match error {
        Error::InvalidArgument(invalid) => invalid,
        other => panic!("not an invalid argument: {other}"),
    }
}

#[test]
fn rows_larger_than_memory_survive_eviction_checkpoint_and_reopen() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let dim = 64;
    for engine in [IoEngine::Uring, IoEngine::Pread] {
        let options = RuntimeOptions {
            io: engine,
            ..options()
        };
        let store = Store::create(&path, options.clone()).unwrap();
        let table = store.create_table(&sgd("t", dim)).unwrap();
        let keys: Vec<u64> = (0..20_000).collect();
        for batch in keys.chunks(500) {
            set(&store, table, batch, batch[0] as f32, dim);
        }
        let info = store.checkpoint(1, b"meta").unwrap();
        assert_eq!(store.checkpoint_meta(info.id).unwrap(), b"meta");
        let stats = store.stats();
        assert!(stats.capacity_rows < 5000, "{stats:?}");
        assert!(stats.flushes > 2, "{stats:?}");
        assert_eq!(stats.index_keys, 20_000);
        store.close().unwrap();
        let store = Store::open(
            &path,
            RuntimeOptions {
                shards: 3,
                ..options
            },
        )
        .unwrap();
        for batch in keys.chunks(500) {
            let got = values(&store, table, batch, dim);
            assert!(
                got.iter().all(|v| *v == batch[0] as f32),
                "batch {}",
                batch[0]
            );
        }
        let mut rows = store.rows(info.id).unwrap();
        let mut count = 0;
        while let Some(row) = rows.next_row().unwrap() {
            assert_eq!(row.values[0], (row.key / 500 * 500) as f32);
            count += 1;
        }
        assert_eq!(count, 20_000);
        store.close().unwrap();
        std::fs::remove_dir_all(&path).unwrap();
    }
}

#[test]
fn a_store_dropped_without_a_checkpoint_reopens_at_the_last_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let store = Store::create(&path, options()).unwrap();
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
    let options = RuntimeOptions {
        retain_checkpoints: 3,
        data_directories: vec!["a".into(), dir.path().join("b")],
        ..options()
    };
    let store = Store::create(&path, options.clone()).unwrap();
    let table = store.create_table(&sgd("t", 64)).unwrap();
    let keys: Vec<u64> = (0..3000).collect();
    let mut ids = Vec::new();
    for step in 1..=4u64 {
        for batch in keys.chunks(500) {
            set(&store, table, batch, step as f32, 64);
        }
        ids.push(store.checkpoint(step, &step.to_le_bytes()).unwrap().id);
    }
    let retained: Vec<u64> = store.checkpoints().iter().map(|c| c.id).collect();
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
    let exported = Store::open(
        &target,
        RuntimeOptions {
            data_directories: vec![],
            ..options
        },
    );
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
    let store = Store::create(dir.path(), options()).unwrap();
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
        Invalid::NotAStore { .. }
    ));
    assert!(matches!(open(path), Invalid::NotAStore { .. }));
    std::fs::write(path.join("file"), "x").unwrap();
    assert!(matches!(
        open(&path.join("file")),
        Invalid::NotAStore { .. }
    ));
    let stranger = invalid(Store::create(path, options()).unwrap_err());
    assert!(matches!(stranger, Invalid::NotAStore { .. }), "{stranger}");
    let store = path.join("store");
    drop(Store::create(&store, options()).unwrap());
    let again = invalid(Store::create(&store, options()).unwrap_err());
    assert!(matches!(again, Invalid::AlreadyAStore { .. }));
    std::fs::remove_file(store.join("STORE")).unwrap();
    assert!(open(&store).to_string().contains("creation did not finish"));
}

#[test]
fn a_newer_format_is_refused_by_version() {
    use hps::format::checksum::{Kind, checksum};
    use hps::format::{FileIdentity, identity::StoreIdentity};
    let dir = tempfile::tempdir().unwrap();
    drop(Store::create(dir.path(), options()).unwrap());
    let store = StoreIdentity::decode(&std::fs::read(dir.path().join("STORE")).unwrap()).unwrap();
    let file = dir.path().join("CURRENT");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[16] = 2; // The version, with a checksum that a later build would write.
    let seed = FileIdentity::new(store.uuid, 0).seed(Kind::Current, 0);
    let sum = checksum(&bytes[8..], seed);
    bytes[..8].copy_from_slice(&sum.to_le_bytes());
    std::fs::write(&file, &bytes).unwrap();
    match Store::open(dir.path(), options()).unwrap_err() {
        Error::Unsupported {
            path,
            found: 2,
            supported: 1,
        } => assert_eq!(path, file),
        other => panic!("{other}"),
    }
}

#[test]
fn bad_arguments_each_have_their_error_and_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(&dir.path().join("a"), options()).unwrap();
    let other = Store::create(&dir.path().join("b"), options()).unwrap();
    let table = store.create_table(&sgd("t", 4)).unwrap();
    let foreign = other.create_table(&sgd("t", 4)).unwrap();
    assert!(matches!(
        invalid(store.create_table(&sgd("t", 5)).unwrap_err()),
        Invalid::DescriptorChanged { field: "dim", .. }
    ));
    assert!(matches!(
        invalid(store.table("nope").unwrap_err()),
        Invalid::UnknownTable { known, .. } if known == ["t"]
    ));
    assert!(matches!(
        invalid(store.pull(TableId(7), &[1], &mut [0.0; 4]).unwrap_err()),
        Invalid::UnknownTable { .. }
    ));
    assert!(matches!(
        invalid(store.create_table(&sgd("u", 0)).unwrap_err()),
        Invalid::Option { name: "dim", .. }
    ));
    assert!(matches!(
        invalid(store.pull(table, &[1, 2], &mut [0.0; 4]).unwrap_err()),
        Invalid::Length {
            expected: 8,
            found: 4,
            ..
        }
    ));
    let mut out = [0.0; 4];
    let lease = store.pull(table, &[1], &mut out).unwrap();
    assert!(matches!(
        invalid(
            store
                .push(&lease, Update::gradients(&[1.0], 0.1))
                .unwrap_err()
        ),
        Invalid::Length {
            expected: 4,
            found: 1,
            ..
        }
    ));
    assert!(matches!(
        invalid(
            store
                .push(&lease, Update::gradients(&[1.0; 4], f32::NAN))
                .unwrap_err()
        ),
        Invalid::Option { .. }
    ));
    assert!(matches!(
        invalid(
            other
                .push(&lease, Update::gradients(&[1.0; 4], 0.1))
                .unwrap_err()
        ),
        Invalid::ForeignLease
    ));
    assert!(matches!(
        invalid(store.create_table(&sgd("u", 4)).unwrap_err()),
        Invalid::LeasesOutstanding { .. }
    ));
    let _ = foreign;
    drop(lease);
    assert_eq!(values(&store, table, &[1], 4), [0.0; 4]);
    assert_eq!(store.contains(table, &[1]).unwrap(), [false]);
    store.checkpoint(5, &[]).unwrap();
    assert!(matches!(
        invalid(store.checkpoint(5, &[]).unwrap_err()),
        Invalid::StepNotRising { step: 5, last: 5 }
    ));
    assert!(matches!(
        invalid(store.checkpoint_meta(99).unwrap_err()),
        Invalid::UnknownCheckpoint { id: 99, .. }
    ));
    let wrong = RuntimeOptions {
        shards: 0,
        ..options()
    };
    assert!(matches!(
        invalid(Store::create(&dir.path().join("c"), wrong).unwrap_err()),
        Invalid::Option { name: "shards", .. }
    ));
    store.close().unwrap();
    other.close_discarding();
}

#[test]
fn gradients_that_are_not_finite_are_counted_and_skipped_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    for policy in [NonFinite::Skip, NonFinite::Reject, NonFinite::Apply] {
        let options = RuntimeOptions {
            non_finite: policy,
            ..options()
        };
        let path = dir.path().join(format!("{policy:?}"));
        let store = Store::create(&path, options).unwrap();
        let table = store.create_table(&sgd("t", 2)).unwrap();
        let mut out = [0.0; 6];
        let lease = store.pull(table, &[1, 2, 3], &mut out).unwrap();
        let gradients = [1.0, 1.0, f32::NAN, 1.0, 1.0, f32::INFINITY];
        let result = store.push(&lease, Update::gradients(&gradients, 1.0));
        lease.read(&mut out).unwrap();
        match policy {
            NonFinite::Skip => {
                assert_eq!(
                    result.unwrap(),
                    PushReport {
                        rows: 1,
                        non_finite: 2
                    }
                );
                assert_eq!(out, [-1.0, -1.0, 0.0, 0.0, 0.0, 0.0]);
                assert_eq!(
                    store.contains(table, &[1, 2, 3]).unwrap(),
                    [true, false, false]
                );
            }
            NonFinite::Reject => {
                let error = invalid(result.unwrap_err());
                assert!(
                    matches!(
                        error,
                        Invalid::NonFinite {
                            key: 2,
                            index: 1,
                            ..
                        }
                    ),
                    "{error}"
                );
                assert_eq!(out, [0.0; 6]);
            }
            NonFinite::Apply => {
                assert_eq!(result.unwrap().non_finite, 2);
                assert!(out[2].is_nan() && out[3] == -1.0 && out[5].is_infinite());
            }
        }
        drop(lease);
        store.close_discarding();
    }
}

#[test]
fn a_batch_that_can_not_fit_names_the_cache_it_needs() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(&dir.path().join("a"), options()).unwrap();
    let table = store.create_table(&sgd("t", 64)).unwrap();
    let keys: Vec<u64> = (0..20_000).collect();
    let mut out = vec![0.0; keys.len() * 64];
    let error = store.pull(table, &keys, &mut out).unwrap_err();
    let Error::OverBudget { needed_bytes, .. } = error else {
        panic!("{error}")
    };
    assert_eq!(store.stats().pinned_rows, 0, "nothing stays pinned");
    // Beside a lease it names the lease; a ticket that waits is served once the lease is gone.
    let (first, second) = (&keys[..1400], &keys[2000..3400]);
    let mut small = vec![0.0; 1400 * 64];
    let lease = store.pull(table, first, &mut small).unwrap();
    let ticket = store.prefetch(table, second).unwrap();
    match store.pull(table, second, &mut small) {
        Err(Error::OverBudget { leases, .. }) => assert_eq!(leases, [lease.id()]),
        other => panic!("{other:?}"),
    }
    drop(lease);
    drop(ticket.wait().unwrap());
    store.close().unwrap();
    let big = RuntimeOptions {
        cache_bytes: needed_bytes,
        ..options()
    };
    let store = Store::create(&dir.path().join("b"), big).unwrap();
    let table = store.create_table(&sgd("t", 64)).unwrap();
    drop(store.pull(table, &keys, &mut out).unwrap());
    store.close().unwrap();
}

#[test]
fn leases_overlap_and_a_pull_sees_every_earlier_push() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(dir.path(), options()).unwrap();
    let table = store.create_table(&sgd("t", 2)).unwrap();
    let tickets: Vec<Ticket> = (0..3)
        .map(|i| store.prefetch(table, &[1, 2 + i]).unwrap())
        .collect();
    let leases: Vec<Lease> = tickets.into_iter().map(|t| t.wait().unwrap()).collect();
    let mut out = [0.0; 4];
    for (i, lease) in leases.iter().enumerate() {
        lease.read(&mut out).unwrap();
        assert_eq!(
            out[0],
            -(i as f32),
            "values are gathered when the lease is read"
        );
        store
            .push(lease, Update::gradients(&[1.0; 4], 1.0))
            .unwrap();
    }
    let mut duplicated = [0.0; 6];
    let lease = store.pull(table, &[1, 9, 1], &mut duplicated).unwrap();
    store
        .push(
            &lease,
            Update::gradients(&[1.0, 1.0, 2.0, 2.0, 4.0, 4.0], 1.0),
        )
        .unwrap();
    lease.read(&mut duplicated).unwrap();
    assert_eq!(duplicated, [-8.0, -8.0, -2.0, -2.0, -8.0, -8.0]);
    drop((leases, lease));
    assert_eq!(store.stats().pinned_rows, 0);
    store.close_discarding();
}

#[test]
fn the_index_image_is_a_cache_and_damage_to_it_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(dir.path(), options()).unwrap();
    let table = store.create_table(&sgd("t", 16)).unwrap();
    let keys: Vec<u64> = (0..30_000).collect();
    for (step, part) in keys.chunks(10_000).enumerate() {
        for batch in part.chunks(1000) {
            set(&store, table, batch, batch[0] as f32, 16);
        }
        store.remove(table, &part[..100]).unwrap();
        store.checkpoint(step as u64 + 1, &[]).unwrap();
    }
    store.close().unwrap();
    let images = || -> Vec<std::path::PathBuf> {
        let names = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|e| e.unwrap().path());
        names
            .filter(|p| p.extension().is_some_and(|e| e == "image"))
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
    let image = images();
    assert_eq!(image.len(), 1, "one image is in force");
    let bytes = std::fs::read(&image[0]).unwrap();
    for at in [100, 5000, 12_000, bytes.len() - 4000] {
        let mut damaged = bytes.clone();
        damaged[at] ^= 4;
        std::fs::write(&image[0], damaged).unwrap();
        check();
    }
    std::fs::remove_file(&image[0]).unwrap();
    check();
}

/// The thread of a checkpoint held the engine, and with it the store's lock, a moment longer than
/// it said: a store closed right after a checkpoint was found locked when it was opened again.
#[test]
fn a_store_closed_right_after_a_checkpoint_can_be_opened_at_once() {
    let dir = tempfile::tempdir().unwrap();
    drop(Store::create(dir.path(), options()).unwrap());
    for step in 1..100 {
        let store = Store::open(dir.path(), options()).unwrap();
        let ticket = store.checkpoint_begin(step, &[]).unwrap();
        match step % 2 {
            0 => drop(ticket.wait().unwrap()),
            _ => drop(ticket),
        }
        store.close().unwrap();
    }
}

/// `close` asked for changes before it waited for a running checkpoint. When that one failed, it
/// said that nothing was lost.
#[test]
fn closing_beside_a_checkpoint_that_fails_reports_the_changes() {
    let disk = hps::io::sim::SimDisk::new(1);
    let root = Path::new("/store");
    let store = Store::create_on(std::sync::Arc::new(disk.clone()), root, options()).unwrap();
    let table = store.create_table(&sgd("t", 2)).unwrap();
    store.checkpoint(1, &[]).unwrap();
    set(&store, table, &[1], 1.0, 2);
    disk.set_latency(std::time::Duration::from_millis(5));
    disk.stop_at(disk.calls() + 4);
    drop(store.checkpoint_begin(2, &[]).unwrap());
    assert!(matches!(store.close(), Err(Error::Uncheckpointed { .. })));
}

/// The last reserved file number could be gone just when a new manifest needed one: the rollback,
/// or the checkpoint, failed with "file numbers ran out".
#[test]
fn a_rollback_finds_a_file_number_however_many_were_used() {
    use hps::ssd::recover::{self, OpenRequest};
    let disk: std::sync::Arc<dyn hps::io::Disk> =
        std::sync::Arc::new(hps::io::sim::SimDisk::new(1));
    let root = Path::new("/store");
    let store = Store::create_on(std::sync::Arc::clone(&disk), root, options()).unwrap();
    let id = store.checkpoint(1, &[]).unwrap().id;
    store.close().unwrap();
    for used in [4090, 4096, 4097, 8192] {
        let request = OpenRequest {
            root,
            directories: &[],
            disk_bytes_max: 0,
            read_only: false,
            checkpoint: None,
        };
        let recovered = recover::open(&disk, &request).unwrap();
        let mut last = 0;
        for _ in 0..used {
            let number = recovered.ssd.take_number().unwrap();
            assert!(number > last);
            last = number;
        }
        recovered.ssd.rollback(id, [7; 16], &[]).unwrap();
    }
    let store = Store::open_on(disk, root, options()).unwrap();
    assert_eq!(store.last_checkpoint().unwrap().id, id);
}

/// A ticket that was dropped while its prefetch was served left its rows pinned for a moment: a
/// table created right after it failed with leases outstanding that nobody had.
#[test]
fn a_table_can_be_created_right_after_a_ticket_was_dropped() {
    let disk = hps::io::sim::SimDisk::new(1);
    let root = Path::new("/store");
    let store = Store::create_on(std::sync::Arc::new(disk.clone()), root, options()).unwrap();
    let table = store.create_table(&sgd("t", 64)).unwrap();
    let keys: Vec<u64> = (0..500).collect();
    for batch in keys.chunks(100) {
        set(&store, table, batch, 1.0, 64);
    }
    store.checkpoint(1, &[]).unwrap();
    store.close().unwrap();
    let store = Store::open_on(std::sync::Arc::new(disk.clone()), root, options()).unwrap();
    disk.set_latency(std::time::Duration::from_millis(3));
    for i in 0..10u64 {
        let spread: Vec<u64> = keys.iter().copied().skip(i as usize).step_by(50).collect();
        let ticket = store.prefetch(table, &spread).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(2));
        drop(ticket);
        store.create_table(&sgd(&format!("t{i}"), 2)).unwrap();
    }
    store.close_discarding();
}
