//! The figures of what all parts share.

use std::time::{Duration, Instant};

use super::changes::Changes;
use super::demand::Demand;
use super::*;
use crate::mem::{Cache, CacheConfig, Flags, FlushStep};
use crate::options::PolicyKind;
use crate::stats::Stats;
use crate::store::tests::{made, options, set, sgd};

#[test]
fn flushed_rows_count_from_the_cut_that_their_flush_has_seen() {
    let changes = Changes::default();
    assert!(!changes.any());
    changes.note();
    assert!(changes.any());
    let before = changes.mark();
    changes.flushed(before, 5);
    changes.flushed(before, 3);
    assert_eq!(changes.flushed_rows(), 8);
    assert_eq!(changes.mark(), before, "rows are no part of it");
    changes.cut();
    assert_eq!((changes.any(), changes.flushed_rows()), (false, 0));
    // A flush that began before the cut: the cut has its rows.
    changes.flushed(before, 7);
    assert_eq!(changes.flushed_rows(), 0);
    let after = changes.mark();
    assert_ne!(after, before);
    changes.flushed(after, 1 << 39);
    assert_eq!(changes.flushed_rows(), 1 << 39);
    changes.cut();
    assert_eq!(changes.flushed_rows(), 0);
    assert!(changes.mark() != after && changes.mark() != before);
    changes.note();
    changes.discard();
    assert!(!changes.any());
}

#[test]
fn what_callers_ask_for_is_summed() {
    let demand = Demand::default();
    demand.note(5, 3);
    demand.note(2, 2);
    assert_eq!(demand.asked(), 7);
    let mut stats = Stats::default();
    demand.count(&mut stats);
    assert_eq!((stats.unique_asked, stats.unique_hits), (7, 5));
    assert_eq!(micros(Duration::from_millis(3)), 3000);
    assert_eq!(micros(Duration::MAX), u64::MAX);
}

#[test]
fn a_signal_is_waited_for_until_it_was_raised_or_a_while() {
    let signal = Signal::default();
    assert_eq!(signal.count(), 0);
    signal.notify();
    signal.notify();
    assert_eq!(signal.count(), 2);
    let since = Instant::now();
    signal.wait(1, Duration::from_secs(60));
    assert!(
        since.elapsed() < Duration::from_secs(30),
        "it was raised already"
    );
    let since = Instant::now();
    signal.wait(2, Duration::from_millis(40));
    assert!(since.elapsed() >= Duration::from_millis(35), "it was not");
}

/// One without tables, in this interval.
fn shard(interval: u32) -> Shard {
    let cache = Cache::new(&CacheConfig {
        bytes: 1 << 20,
        flush_step: FlushStep::default(),
        range: (0, u64::MAX),
    });
    Shard::new(interval, cache.unwrap())
}

#[test]
fn a_cut_ends_an_interval_and_holds_younger_rows_back() {
    let mut shard = shard(7);
    assert_eq!((shard.intervals(), shard.interval_max()), ((7, None), 7));
    assert_eq!(shard.cut(), 7);
    assert_eq!((shard.intervals(), shard.interval_max()), ((8, Some(7)), 7));
    assert!(!shard.has_lost());
    shard.mark_lost();
    shard.end_cut();
    assert_eq!((shard.intervals(), shard.interval_max()), ((8, None), 8));
    assert!(shard.has_lost());
    assert_eq!(shard.cut(), 8);
    assert!(!shard.has_lost(), "of another checkpoint");
}

#[test]
fn a_change_is_waited_for_and_what_others_wait_for_is_none() {
    let cell = ShardCell::new(shard(1));
    let seen = cell.changes();
    cell.notify_of_others();
    assert_eq!(cell.changes(), seen);
    cell.notify();
    assert_eq!(cell.changes(), seen + 1);
    let since = Instant::now();
    for _ in 0..1000 {
        cell.wait_for_change(&mut cell.lock(), seen);
    }
    assert!(since.elapsed() < Duration::from_secs(10), "told before");
    let since = Instant::now();
    cell.wait_for_change(&mut cell.lock(), seen + 1);
    assert!(since.elapsed() >= Duration::from_millis(15), "nobody told");
}

/// Promised slots, pinned ones, those of resident rows and of copies for a checkpoint.
#[test]
fn slots_are_busy_or_wanted_for_a_reason_each() {
    for policy in [PolicyKind::Lru, PolicyKind::PinAll] {
        let options = RuntimeOptions {
            policy,
            shards: 1,
            ..options()
        };
        let (_, store) = made(options);
        let table = store.create_table(&sgd("rows", 4)).unwrap();
        set(&store, table, &[1, 2, 3, 4, 5], 1.0);
        let mut out = [0.0; 8];
        let lease = store.pull(table, &[1, 2], &mut out).unwrap();
        let cell = &store.parts.core.shards[0];
        let slots = || {
            let shard = cell.lock();
            (shard.wanted_slots(0), shard.busy_slots(0))
        };
        let held = if policy == PolicyKind::Lru { 2 } else { 5 };
        assert_eq!(slots(), (2, held));
        cell.lock().tables[0].promises.make(4);
        assert_eq!(slots(), (6, held + 4));
        cell.lock().tables[0].promises.end(3);
        assert_eq!(slots(), (3, held + 1));
        cell.lock().tables[0].promises.end(1);
        // A row that is changed after a cut leaves a copy until that is written.
        let frozen = {
            let mut shard = cell.lock();
            shard.cut();
            let (interval, frozen) = shard.intervals();
            let cache = &mut shard.cache;
            let hash = crate::units::mix64(1);
            let mut slot = [crate::units::Slot::NONE];
            cache.lookup(0, &[hash], &mut slot);
            assert!(!cache.flags(slot[0]).any(Flags::ABSENT));
            assert!(cache.begin_write(&slot, interval, frozen).is_ok());
            cache.frozen_copies()
        };
        assert_eq!(frozen, 1);
        assert_eq!(slots(), (2, held + 1));
        cell.lock().end_cut();
        assert_eq!(slots(), (2, held));
        drop(lease);
        store.close_discarding();
    }
}

/// The budget without the buffers, half of it at least.
#[test]
fn shards_share_the_cache_and_a_flush_of_all_makes_a_file() {
    let options = RuntimeOptions {
        cache_bytes: 8 << 20,
        shards: 4,
        ..options()
    };
    let (_, store) = made(options);
    store.create_table(&sgd("narrow", 4)).unwrap();
    store.create_table(&sgd("wide", 20)).unwrap();
    let core = &store.parts.core;
    assert_eq!(core.shard_bytes(2 << 20), (6 << 20) / 4);
    assert_eq!(core.shard_bytes(7 << 20), (4 << 20) / 4);
    // A flush of all shards makes one file, an eighth of the cache.
    assert_eq!(core.file_bytes, 1 << 20);
    let step = |core: &Core| core.shards[0].lock().cache.flush_step();
    assert_eq!(step(core).bytes, (1 << 20) / 4);
    for (cache_bytes, file_bytes, found) in [
        (256 << 20, 64 << 20, 32 << 20),
        (256 << 20, 16 << 20, 16 << 20),
        (1 << 20, 32 << 20, 1 << 20),
    ] {
        let (_, store) = made(RuntimeOptions {
            cache_bytes,
            file_bytes,
            ..super::super::tests::options()
        });
        assert_eq!(store.parts.core.file_bytes, found);
    }
    for (asked, shards, found) in [(100, 4, 25), (3, 4, 1), (1, 1, 1)] {
        let (_, store) = made(RuntimeOptions {
            flush_step_rows: asked,
            shards,
            ..super::super::tests::options()
        });
        assert_eq!(step(&store.parts.core).rows, found);
    }
}
