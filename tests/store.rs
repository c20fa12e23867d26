//! The store's API on a real file system: what a first user does, and every kind of bad input.

#[path = "common/small.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod small;

use std::path::Path;
use std::time::Duration;

use hps::*;
use small::{invalid, options, set, sgd, values};

#[test]
fn rows_larger_than_memory_survive_eviction_checkpoint_and_reopen() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let dim = 64;
    for engine in [IoEngine::Uring, IoEngine::Pread] {
        let options = options().io(engine);
        let store = Store::create(&path, CreateOptions::new(), options.clone()).unwrap();
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
        let store = Store::open(&path, options.shards(3)).unwrap();
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
fn bad_arguments_each_have_their_error_and_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(&dir.path().join("a"), CreateOptions::new(), options()).unwrap();
    let other = Store::create(&dir.path().join("b"), CreateOptions::new(), options()).unwrap();
    let table = store.create_table(&sgd("t", 4)).unwrap();
    let foreign = other.create_table(&sgd("t", 4)).unwrap();
    assert!(matches!(
        invalid(store.create_table(&sgd("t", 5)).unwrap_err()),
        ArgumentError::DescriptorChanged { field: "dim", .. }
    ));
    assert!(matches!(
        invalid(store.table("nope").unwrap_err()),
        ArgumentError::UnknownTable { known, .. } if known == ["t"]
    ));
    assert!(matches!(
        invalid(store.pull(TableId(7), &[1], &mut [0.0; 4]).unwrap_err()),
        ArgumentError::UnknownTable { .. }
    ));
    assert!(matches!(
        invalid(store.create_table(&sgd("u", 0)).unwrap_err()),
        ArgumentError::Option { name: "dim", .. }
    ));
    assert!(matches!(
        invalid(store.pull(table, &[1, 2], &mut [0.0; 4]).unwrap_err()),
        ArgumentError::Length {
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
        ArgumentError::Length {
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
        ArgumentError::Option { .. }
    ));
    assert!(matches!(
        invalid(
            other
                .push(&lease, Update::gradients(&[1.0; 4], 0.1))
                .unwrap_err()
        ),
        ArgumentError::ForeignLease
    ));
    assert!(matches!(
        invalid(store.drop_table(table).unwrap_err()),
        ArgumentError::LeasesOutstanding { .. }
    ));
    let _ = foreign;
    drop(lease);
    assert_eq!(values(&store, table, &[1], 4), [0.0; 4]);
    assert_eq!(store.contains(table, &[1]).unwrap(), [false]);
    store.checkpoint(5, &[]).unwrap();
    assert!(matches!(
        invalid(store.checkpoint(5, &[]).unwrap_err()),
        ArgumentError::StepNotRising { step: 5, last: 5 }
    ));
    assert!(matches!(
        invalid(store.checkpoint_meta(CheckpointId(99)).unwrap_err()),
        ArgumentError::UnknownCheckpoint {
            id: CheckpointId(99),
            ..
        }
    ));
    let wrong = options().shards(0);
    assert!(matches!(
        invalid(Store::create(&dir.path().join("c"), CreateOptions::new(), wrong).unwrap_err()),
        ArgumentError::Option { name: "shards", .. }
    ));
    store.close().unwrap();
    other.close_discarding();
}

#[test]
fn gradients_that_are_not_finite_are_counted_and_skipped_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    for policy in [NonFinite::Skip, NonFinite::Reject, NonFinite::Apply] {
        let options = options().non_finite(policy);
        let path = dir.path().join(format!("{policy:?}"));
        let store = Store::create(&path, CreateOptions::new(), options).unwrap();
        let table = store.create_table(&sgd("t", 2)).unwrap();
        let mut out = [0.0; 6];
        let lease = store.pull(table, &[1, 2, 3], &mut out).unwrap();
        let gradients = [1.0, 1.0, f32::NAN, 1.0, 1.0, f32::INFINITY];
        let result = store.push(&lease, Update::gradients(&gradients, 1.0));
        lease.read(&mut out).unwrap();
        match policy {
            NonFinite::Skip => {
                let report = result.unwrap();
                assert_eq!((report.rows, report.non_finite), (1, 2));
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
                        ArgumentError::NonFinite {
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
            other => panic!("{other:?} is new here"),
        }
        drop(lease);
        store.close_discarding();
    }
}

#[test]
fn a_batch_that_can_not_fit_names_the_cache_it_needs() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(&dir.path().join("a"), CreateOptions::new(), options()).unwrap();
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
    let big = options().cache_bytes(needed_bytes);
    let store = Store::create(&dir.path().join("b"), CreateOptions::new(), big).unwrap();
    let table = store.create_table(&sgd("t", 64)).unwrap();
    drop(store.pull(table, &keys, &mut out).unwrap());
    store.close().unwrap();
}

/// A store, a lease on rows that leave no room for as many more, and the ticket that asks for these.
#[expect(
    clippy::unwrap_used,
    reason = "a test that meets what it does not expect must fail"
)]
fn leased_and_asked_for(dir: &Path) -> (Store, Lease, Ticket) {
    let store = Store::create(dir, CreateOptions::new(), options()).unwrap();
    let table = store.create_table(&sgd("t", 64)).unwrap();
    let keys: Vec<u64> = (0..2800).collect();
    let mut out = vec![0.0; 1400 * 64];
    let lease = store.pull(table, &keys[..1400], &mut out).unwrap();
    let ticket = store.prefetch(table, &keys[1400..]).unwrap();
    (store, lease, ticket)
}

/// The caller was told that its lease belongs to another store, and there was no other store.
#[test]
fn what_outlives_its_store_is_told_that_the_store_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let (store, lease, ticket) = leased_and_asked_for(dir.path());
    store.close().unwrap();
    let error = invalid(ticket.wait().unwrap_err());
    assert!(matches!(error, ArgumentError::Closed), "{error}");
    lease.read(&mut vec![0.0; 1400 * 64]).unwrap();
}

/// The close woke it; it found its ticket still queued, and waited on until its time was over.
#[test]
fn a_ticket_that_is_waited_for_when_its_store_is_closed_is_told_so() {
    let dir = tempfile::tempdir().unwrap();
    let (store, lease, ticket) = leased_and_asked_for(dir.path());
    let (say, told) = std::sync::mpsc::channel();
    let waiter = std::thread::spawn(move || {
        say.send(None).unwrap();
        say.send(Some(
            ticket.wait_for(Duration::from_secs(3600)).unwrap_err(),
        ))
        .unwrap();
    });
    assert!(told.recv().unwrap().is_none());
    // Long enough for it to wait; what is told does not depend on that.
    std::thread::sleep(Duration::from_millis(50));
    store.close().unwrap();
    let error = told.recv_timeout(Duration::from_secs(120));
    let error = invalid(error.expect("it waits for a store that is closed").unwrap());
    assert!(matches!(error, ArgumentError::Closed), "{error}");
    waiter.join().unwrap();
    drop(lease);
}

#[test]
fn leases_overlap_and_a_pull_sees_every_earlier_push() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(dir.path(), CreateOptions::new(), options()).unwrap();
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

/// With a cache of 64 MiB and more, a checkpoint writes several files at a time; rows change meanwhile.
#[test]
fn a_checkpoint_of_many_files_is_the_cut_whatever_changes_beside_it() {
    let dir = tempfile::tempdir().unwrap();
    let options = options().cache_bytes(64 << 20).file_bytes(1 << 20);
    let store = Store::create(dir.path(), CreateOptions::new(), options.clone()).unwrap();
    let table = store.create_table(&sgd("t", 64)).unwrap();
    let keys: Vec<u64> = (0..40_000).collect();
    let set_all = |value: f32| {
        for batch in keys.chunks(1000) {
            set(&store, table, batch, value, 64);
        }
    };
    set_all(0.0);
    for step in 1..4u8 {
        set_all(f32::from(step));
        let ticket = store.checkpoint_begin(u64::from(step), &[]).unwrap();
        set_all(100.0);
        let info = ticket.wait().unwrap();
        if step == 1 {
            let files = store.stats().files;
            assert!(files > 8, "several files: {files}");
        }
        let mut rows = store.rows(info.id).unwrap();
        let mut count = 0;
        while let Some(row) = rows.next_row().unwrap() {
            assert_eq!(row.values[0], f32::from(step), "key {}", row.key);
            count += 1;
        }
        assert_eq!(count, keys.len());
    }
    store.close_discarding();
    let store = Store::open(dir.path(), options).unwrap();
    for batch in keys.chunks(1000) {
        assert!(values(&store, table, batch, 64).iter().all(|v| *v == 3.0));
    }
    store.close().unwrap();
}

/// A flush that was on its way at the cut counted its rows after it, though the checkpoint has them.
#[test]
fn after_a_checkpoint_no_row_counts_as_changed() {
    for _ in 0..10 {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::create(dir.path(), CreateOptions::new(), options()).unwrap();
        let table = store.create_table(&sgd("t", 64)).unwrap();
        let keys: Vec<u64> = (0..10_000).collect();
        for batch in keys.chunks(500) {
            set(&store, table, batch, 1.0, 64);
        }
        store.checkpoint(1, b"").unwrap();
        assert_eq!(store.stats().uncheckpointed_rows, 0);
        store.close().unwrap();
    }
}

/// The thread of a checkpoint held the engine, and with it the store's lock, a moment longer than
/// it said: a store closed right after a checkpoint was found locked when it was opened again.
#[test]
fn a_store_closed_right_after_a_checkpoint_can_be_opened_at_once() {
    let dir = tempfile::tempdir().unwrap();
    drop(Store::create(dir.path(), CreateOptions::new(), options()).unwrap());
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
    let store = Store::create_on(
        std::sync::Arc::new(disk.clone()),
        root,
        CreateOptions::new(),
        options(),
    )
    .unwrap();
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
    let disk = hps::io::Io::of(hps::io::sim::SimDisk::new(1));
    let root = Path::new("/store");
    let store = Store::create_on(disk.clone(), root, CreateOptions::new(), options()).unwrap();
    let id = store.checkpoint(1, &[]).unwrap().id;
    store.close().unwrap();
    for used in [4090, 4096, 4097, 8192] {
        let request = OpenRequest {
            moved: &[],
            disk_bytes_max: 0,
            thresholds: Thresholds::default(),
            open_files_max: 1000,
            threads: 1,
            read_only: false,
            checkpoint: None,
        };
        let recovered = recover::open(&disk, root, &request).unwrap();
        let mut last = FileNumber(0);
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
    let store = Store::create_on(
        std::sync::Arc::new(disk.clone()),
        root,
        CreateOptions::new(),
        options(),
    )
    .unwrap();
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
        let spread: Vec<u64> = keys.iter().copied().filter(|k| k % 50 == i % 50).collect();
        let asked = store.stats().unique_asked;
        let ticket = store.prefetch(table, &spread).unwrap();
        // Its rows are pinned, and the first read takes 3 ms.
        while store.stats().unique_asked == asked {
            std::thread::yield_now();
        }
        drop(ticket);
        store.create_table(&sgd(&format!("t{i}"), 2)).unwrap();
    }
    store.close_discarding();
}

/// `hps.torch` gave up what it had read ahead and pulled at once: rows of a read that was under way were
/// still pinned, and the pull was over the budget.
#[test]
fn nothing_is_pinned_once_a_ticket_was_cancelled() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let store = Store::create(&path, CreateOptions::new(), options()).unwrap();
    let table = store.create_table(&sgd("t", 64)).unwrap();
    let keys: Vec<u64> = (0..20_000).collect();
    for batch in keys.chunks(500) {
        set(&store, table, batch, 1.0, 64);
    }
    let last = store.checkpoint(1, &[]).unwrap();
    let half = usize::try_from(store.stats().capacity_rows).unwrap() * 6 / 10;
    let mut out = vec![0.0; half * 64];
    for round in 0..40 {
        // Not in memory any more, since both halves are more than it holds.
        let ticket = store.prefetch(table, &keys[..half]).unwrap();
        // Queued, under way or done.
        std::thread::sleep(Duration::from_micros(round * 100));
        let refused = store.check_rollback(last.id);
        let ArgumentError::LeasesOutstanding { count: 1, .. } = invalid(refused.unwrap_err())
        else {
            unreachable!("the ticket is out, {round}");
        };
        ticket.cancel();
        assert_eq!(store.stats().leases, 0, "{round}");
        assert_eq!(store.stats().pinned_rows, 0, "{round}");
        drop(store.pull(table, &keys[20_000 - half..], &mut out).unwrap());
    }
    store.check_rollback(last.id).unwrap();
    store.close_discarding();
}
