//! Why did a pull wait? Each cause is counted for the table whose batch waited, and has a span.

#![expect(
    clippy::unwrap_used,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/at_end.rs"]
mod at_end;
#[path = "common/gate.rs"]
mod gate;
#[path = "common/hooked.rs"]
mod hooked;
#[path = "common/small.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod small;
#[path = "common/spans.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod spans;
#[path = "common/until.rs"]
mod until;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use at_end::AtEnd;
use gate::Gate;
use hooked::{Hook, HookedDisk};
use hps::io::sim::SimDisk;
use hps::*;
use small::{fill, options, set, sgd};
use spans::Spans;
use until::until;

const DIM: usize = 64;
const ROOT: &str = "/store";

/// What all tests of this file see; each has tables of its own name.
static SEEN: LazyLock<Spans> = LazyLock::new(|| {
    let spans = Spans::default();
    tracing::subscriber::set_global_default(spans.clone()).unwrap();
    spans
});

/// Spans of waits of a table.
fn spans_of(table: &str, cause: Wait) -> usize {
    let is =
        |value: Option<&String>, name: &str| value.is_some_and(|v| v.trim_matches('"') == name);
    SEEN.count(|s| {
        let values = &s.values;
        s.name == "wait" && is(values.get("table"), table) && is(values.get("cause"), cause.name())
    })
}

/// Returns once waits of this table for room have begun, beside those before, and what was under way
/// has ended; whether no other wait began meanwhile. A batch that waits asks again every 20 ms.
fn stands_still(table: &str, before: usize) -> bool {
    let waits = || spans_of(table, Wait::Room);
    until("a wait for room", || waits() > before);
    std::thread::sleep(Duration::from_millis(300));
    let seen = waits();
    std::thread::sleep(Duration::from_millis(500));
    waits() == seen
}

/// A store of one table, whose row of key 7 has to be read.
fn with_cold_row(name: &str, disk: HookedDisk) -> (Store, TableId) {
    let shared = || Arc::new(disk.clone());
    let store =
        Store::create_on(shared(), Path::new(ROOT), CreateOptions::new(), options()).unwrap();
    let table = store.create_table(&sgd(name, DIM)).unwrap();
    set(&store, table, &[7], 1.0, DIM);
    store.checkpoint(1, &[]).unwrap();
    store.close().unwrap();
    let store = Store::open_on(shared(), Path::new(ROOT), options()).unwrap();
    (store, table)
}

fn waits(store: &Store, table: TableId, cause: Wait) -> WaitStats {
    *store.stats().tables[table.0 as usize].wait(cause)
}

fn is_whole(stats: &Stats) {
    let all = || {
        let tables = stats.tables.iter();
        tables.flat_map(TableStats::waits)
    };
    for (cause, waits) in all() {
        let counted: u64 = waits.histogram.iter().sum();
        assert_eq!(counted, waits.count, "{cause:?}: {waits:?}");
        assert!(waits.us >= waits.us_max && (waits.count > 0 || waits.us == 0));
    }
    let stalls = || {
        all()
            .filter(|(cause, _)| cause.is_stall())
            .map(|(_, waits)| waits)
    };
    assert_eq!(stats.stall_us, stalls().map(|w| w.us).sum::<u64>());
    let longest = stalls().map(|w| w.us_max).max().unwrap_or(0);
    assert_eq!(stats.stall_us_max, longest);
}

/// `stall_us` was said to be the time that batches waited for room: it held the reads after it, the
/// times of the writer thread and of checkpoints, and the same time twice.
#[test]
fn reads_and_flushes_are_told_apart_and_so_are_tables() {
    LazyLock::force(&SEEN);
    let options = options().inline(true);
    let store = Store::create_on(
        Arc::new(SimDisk::new(1)),
        Path::new(ROOT),
        CreateOptions::new(),
        options,
    )
    .unwrap();
    let [used, idle] = ["used", "idle"].map(|name| store.create_table(&sgd(name, DIM)).unwrap());
    let silent = |table| {
        Wait::ALL
            .iter()
            .all(|cause| waits(&store, table, *cause).count == 0)
    };
    set(&store, used, &[1, 2, 3], 1.0, DIM);
    assert!(silent(used));
    let rows = 3 * store.stats().capacity_rows;
    fill(&store, used, rows, 100, 2.0, DIM);
    let flushes = waits(&store, used, Wait::Flush).count;
    assert!(flushes > 0, "no room without a flush");
    let reads = waits(&store, used, Wait::Device).count;
    fill(&store, used, rows, 100, 3.0, DIM);
    assert!(
        waits(&store, used, Wait::Device).count > reads,
        "rows were read"
    );
    store.checkpoint(1, &[]).unwrap();
    assert!(silent(idle));
    let stats = store.stats();
    is_whole(&stats);
    assert_eq!(stats.tables[0].name, "used");
    for cause in [Wait::Flush, Wait::Device] {
        let counted = stats.tables[0].wait(cause).count;
        assert_eq!(spans_of("used", cause) as u64, counted, "{cause:?}");
    }
    store.close().unwrap();
}

#[test]
fn a_batch_that_waits_for_the_reads_of_another_says_so() {
    LazyLock::force(&SEEN);
    let gate = Arc::new(Gate::default());
    let disk = HookedDisk {
        reads: Some(gate.hook("read")),
        ..HookedDisk::new(SimDisk::new(2), Arc::new(|_, _| None))
    };
    let (store, table) = with_cold_row("shared", disk);
    gate.set(true);
    std::thread::scope(|scope| {
        let pull = || drop(store.pull(table, &[7], &mut [0.0; DIM]).unwrap());
        let both = [scope.spawn(pull), scope.spawn(pull)];
        until("a wait for another", || {
            spans_of("shared", Wait::OtherBatch) > 0
        });
        gate.set(false);
        let [first, second] = both;
        first.join().unwrap();
        second.join().unwrap();
    });
    assert_eq!(
        waits(&store, table, Wait::Device).count,
        1,
        "one batch reads"
    );
    assert_eq!(
        waits(&store, table, Wait::OtherBatch).count,
        1,
        "the other waits"
    );
    is_whole(&store.stats());
    store.close().unwrap();
}

/// A push changes a row that a running checkpoint has yet to write: it needs a slot for the copy.
#[test]
fn a_push_that_waits_for_a_checkpoint_waits_once_for_room() {
    LazyLock::force(&SEEN);
    let gate = Arc::new(Gate::default());
    let disk = HookedDisk::new(SimDisk::new(3), gate.hook("write"));
    let options = options().policy(PolicyKind::PinAll);
    let store = Store::create_on(
        Arc::new(disk),
        Path::new(ROOT),
        CreateOptions::new(),
        options,
    )
    .unwrap();
    let table = store.create_table(&sgd("full", DIM)).unwrap();
    // Every slot is taken and dirty.
    let mut leases = Vec::new();
    for key in 0.. {
        match store.pull(table, &[key], &mut [0.0; DIM]) {
            Ok(lease) => {
                store.push(&lease, Update::weights(&[1.0; DIM])).unwrap();
                leases.push(lease);
            }
            Err(Error::OverBudget { .. }) => break,
            Err(other) => panic!("{other}"),
        }
    }
    let before = spans_of("full", Wait::Room);
    gate.set(true);
    let ticket = store.checkpoint_begin(1, &[]).unwrap();
    std::thread::scope(|scope| {
        let push = || {
            for lease in &leases {
                store.push(lease, Update::weights(&[2.0; DIM])).unwrap();
            }
        };
        let pushes = scope.spawn(push);
        // A flush that was under way may still free slots first.
        let stands = stands_still("full", before);
        gate.set(false);
        assert!(stands, "one wait at a stretch");
        pushes.join().unwrap();
    });
    ticket.wait().unwrap();
    let room = waits(&store, table, Wait::Room);
    assert!(room.us_max >= 100_000, "{room:?}");
    is_whole(&store.stats());
    drop(leases);
    store.checkpoint(2, &[]).unwrap();
    store.close().unwrap();
}

/// Files that compaction has not come to hold pulls back that need a flush.
#[test]
fn a_pull_that_waits_for_a_compaction_says_so() {
    LazyLock::force(&SEEN);
    let gate = Arc::new(Gate::default());
    let held = gate.hook("create");
    let of_compactions: Hook = Arc::new(move |call, path| {
        let thread = std::thread::current();
        let compacts = thread
            .name()
            .is_some_and(|name| name.starts_with("hps-compact"));
        compacts.then(|| held(call, path)).flatten()
    });
    let disk = HookedDisk::new(SimDisk::new(4), of_compactions);
    let store = Store::create_on(
        Arc::new(disk),
        Path::new(ROOT),
        CreateOptions::new(),
        options(),
    )
    .unwrap();
    let [behind, idle] =
        ["behind", "besides"].map(|name| store.create_table(&sgd(name, DIM)).unwrap());
    gate.set(true);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let train = || {
            for round in 1u16.. {
                // Another half of the keys each time: no file goes out of use as a whole, and only a
                // compaction gives its space back.
                let is_due = |key: &u64| mix64(*key ^ (u64::from(round) << 32)).is_multiple_of(2);
                let keys: Vec<u64> = (0..20_000).filter(is_due).collect();
                for keys in keys.chunks(200) {
                    set(&store, behind, keys, f32::from(round), DIM);
                }
                if done.load(Ordering::Relaxed) {
                    break;
                }
            }
        };
        let trainer = scope.spawn(train);
        let end = AtEnd(|| {
            done.store(true, Ordering::Relaxed);
            gate.set(false);
        });
        until("a wait for a compaction", || {
            spans_of("behind", Wait::Compaction) > 0
        });
        // A pull asks for room every 20 ms, and waits once.
        std::thread::sleep(Duration::from_millis(100));
        let seen = spans_of("behind", Wait::Compaction);
        std::thread::sleep(Duration::from_millis(300));
        let stands = spans_of("behind", Wait::Compaction) == seen;
        drop(end);
        trainer.join().unwrap();
        assert!(stands, "one wait at a stretch");
    });
    let behind = waits(&store, behind, Wait::Compaction);
    assert!(behind.count >= 1 && behind.us_max >= 40_000, "{behind:?}");
    assert_eq!(spans_of("behind", Wait::Compaction) as u64, behind.count);
    assert_eq!(waits(&store, idle, Wait::Compaction).count, 0);
    assert!(store.stats().compactions > 0);
    is_whole(&store.stats());
    store.close_discarding();
}

/// A ticket whose time was over came back inside the error.
#[test]
fn a_ticket_that_was_waited_for_in_vain_can_be_waited_for_again() {
    LazyLock::force(&SEEN);
    let gate = Arc::new(Gate::default());
    let disk = HookedDisk {
        reads: Some(gate.hook("read")),
        ..HookedDisk::new(SimDisk::new(5), gate.hook("sync"))
    };
    let (store, table) = with_cold_row("again", disk);
    let late = |error: Error| matches!(error, Error::Deadline { waited_ms } if waited_ms >= 10);
    let told = |error: Error| matches!(error, Error::InvalidArgument(_));
    let (short, long) = (Duration::from_millis(10), Duration::from_secs(60));

    gate.set(true);
    let ticket = store.prefetch(table, &[7]).unwrap();
    assert!(late(ticket.wait_for(short).unwrap_err()));
    assert!(late(ticket.wait_for(short).unwrap_err()) && !ticket.is_ready());
    gate.set(false);
    let lease = ticket.wait_for(long).unwrap();
    assert!(told(ticket.wait_for(long).unwrap_err()));
    assert!(told(ticket.wait().unwrap_err()), "one lease a ticket");
    store.push(&lease, Update::weights(&[2.0; DIM])).unwrap();

    gate.set(true);
    let ticket = store.checkpoint_begin(2, &[]).unwrap();
    assert!(late(ticket.wait_for(short).unwrap_err()) && !ticket.is_done());
    gate.set(false);
    assert_eq!(ticket.wait_for(long).unwrap().step, 2);
    assert!(ticket.is_done() && told(ticket.wait().unwrap_err()));
    drop(lease);
    store.close().unwrap();
}
