//! Does the engine keep every row, whichever of its threads goes on at each lock, atomic and wait?
//!
//! The real engine on the simulated disk, its locks and threads replaced by shuttle's (feature
//! `shuttle`, `src/sync.rs`). `HPS_SHUTTLE_SCHEDULES` says how many schedules (else 1000),
//! `HPS_SHUTTLE_SEED` from which seed on; a failure prints the seed that repeats it.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_precision_loss,
    clippy::print_stderr,
    reason = "a test that meets what it does not expect must fail"
)]

mod common {
    pub mod rng;
    pub mod schedule;
}

use common::rng::Rng;
use common::schedule::explore;
use hps::io::Disk;
use hps::io::sim::{CrashMode, SimDisk};
use hps::sync::thread;
use hps::*;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

const TRAINERS: usize = 2;
/// 32 KiB a row: the cache holds 24.
const DIM: usize = 8192;
/// Keys of each trainer alone, and keys of both: together more than the cache holds.
const OWN_KEYS: usize = 18;
const SHARED_KEYS: usize = 6;
const ROUNDS: usize = 8;
const ROOT: &str = "/store";

/// What a trainer does to rows, one after the other; a cut is between two of them.
#[derive(Clone, Debug)]
enum Change {
    /// Adds one for each time that a key is named.
    Push(Vec<u64>),
    Remove(u64),
}

/// What a trainer has done, as the checker sees it. Not of the scheduler: nobody waits here.
#[derive(Default)]
struct Log {
    changes: Mutex<Vec<Change>>,
    begun: AtomicUsize,
    ended: AtomicUsize,
}

impl Log {
    fn change(&self, change: Change, make: impl FnOnce()) {
        self.changes.lock().unwrap().push(change);
        self.begun.fetch_add(1, SeqCst);
        make();
        self.ended.fetch_add(1, SeqCst);
    }

    /// The counts of keys after the first `n` changes.
    fn after(&self, n: usize) -> BTreeMap<u64, u32> {
        let mut counts = BTreeMap::new();
        for change in &self.changes.lock().unwrap()[..n] {
            match change {
                Change::Push(keys) => {
                    for key in keys {
                        *counts.entry(*key).or_default() += 1;
                    }
                }
                Change::Remove(key) => drop(counts.remove(key)),
            }
        }
        counts
    }
}

fn own_key(trainer: usize, i: usize) -> u64 {
    (1000 * (trainer + 1) + i) as u64
}

fn options(inline: bool) -> RuntimeOptions {
    RuntimeOptions {
        cache_bytes: 1 << 20,
        file_bytes: 1 << 20,
        shards: 2,
        threads: 1,
        io_depth: 2,
        space_bound: 1.1,
        retain_checkpoints: 2,
        inline,
        ..RuntimeOptions::default()
    }
}

fn table() -> TableDescriptor {
    TableDescriptor {
        optimizer: Optimizer::Sgd,
        initialiser: Initialiser::Zero,
        ..TableDescriptor::new("t", DIM)
    }
}

fn batch(rng: &mut Rng, trainer: usize) -> Vec<u64> {
    let mut keys = vec![own_key(trainer, rng.below(OWN_KEYS))];
    for _ in 0..rng.below(3) {
        keys.push(match rng.one_in(3) {
            true => rng.below(SHARED_KEYS) as u64,
            false => own_key(trainer, rng.below(OWN_KEYS)),
        });
    }
    keys
}

/// Pulls, checks and pushes; prefetches the next round's rows meanwhile.
fn train(store: &Store, table: TableId, trainer: usize, log: &Log, seed: u64) {
    let mut rng = Rng(seed ^ trainer as u64);
    let mut next = batch(&mut rng, trainer);
    for _ in 0..ROUNDS {
        let keys = std::mem::replace(&mut next, batch(&mut rng, trainer));
        let ticket = (!rng.one_in(3)).then(|| store.prefetch(table, &next).unwrap());
        let mut rows = vec![0.0; keys.len() * DIM];
        let lease = store.pull(table, &keys, &mut rows).unwrap();
        let counts = log.after(log.ended.load(SeqCst));
        for (key, row) in keys.iter().zip(rows.chunks_exact(DIM)) {
            let own = counts.get(key).copied().unwrap_or(0) as f32;
            assert!(row.iter().all(|w| *w == row[0]), "a torn row of key {key}");
            let fits = row[0] == own || *key < SHARED_KEYS as u64 && row[0] >= own;
            assert!(
                fits,
                "trainer {trainer}, key {key}: {} after {own} pushes",
                row[0]
            );
        }
        rows.fill(1.0);
        log.change(Change::Push(keys), || {
            store.push(&lease, Update::deltas(&rows)).unwrap();
        });
        drop(lease);
        if let Some(ticket) = ticket
            && !rng.one_in(3)
        {
            drop(ticket.wait().unwrap());
        }
        if rng.one_in(5) {
            let key = own_key(trainer, rng.below(OWN_KEYS));
            log.change(Change::Remove(key), || {
                store.remove(table, &[key]).unwrap();
            });
        }
    }
}

/// A checkpoint, and how far the trainers were before and after its cut.
struct Cut {
    rows: BTreeMap<u64, f32>,
    before: Vec<usize>,
    after: Vec<usize>,
}

fn progress(logs: &[Log], of: impl Fn(&Log) -> &AtomicUsize) -> Vec<usize> {
    logs.iter().map(|log| of(log).load(SeqCst)).collect()
}

fn checkpoint(store: &Store, step: u64, logs: &[Log]) -> Cut {
    let before = progress(logs, |log| &log.ended);
    let ticket = store.checkpoint_begin(step, &[]).unwrap();
    let after = progress(logs, |log| &log.begun);
    let id = ticket.wait().unwrap().id;
    Cut {
        rows: rows_of(store, id),
        before,
        after,
    }
}

fn rows_of(store: &Store, checkpoint: u64) -> BTreeMap<u64, f32> {
    let mut rows = BTreeMap::new();
    let mut iter = store.rows(checkpoint).unwrap();
    while let Some(row) = iter.next_row().unwrap() {
        assert!(row.values.iter().all(|v| *v == row.values[0]), "a torn row");
        rows.insert(row.key, row.values[0]);
    }
    rows
}

/// The cut is after some change of each trainer, and holds exactly what was changed until then.
fn check_cut(cut: &Cut, logs: &[Log]) {
    let found = |counts: &BTreeMap<u64, u32>, keys: &dyn Fn(u64) -> bool| {
        let held = cut.rows.iter().filter(|(key, _)| keys(**key));
        let held: Vec<_> = held.map(|(k, v)| (*k, *v)).collect();
        let counts = counts.iter().filter(|(key, _)| keys(**key));
        held == counts.map(|(k, n)| (*k, *n as f32)).collect::<Vec<_>>()
    };
    let own = |trainer: usize| {
        let first = own_key(trainer, 0);
        let fits = |n: &usize| {
            found(&logs[trainer].after(*n), &|key| {
                (first..first + OWN_KEYS as u64).contains(&key)
            })
        };
        let range = cut.before[trainer]..=cut.after[trainer];
        range.filter(fits).collect::<Vec<_>>()
    };
    let (left, right) = (own(0), own(1));
    let both = left.iter().any(|l| {
        right.iter().any(|r| {
            let mut sum = logs[0].after(*l);
            for (key, count) in logs[1].after(*r) {
                *sum.entry(key).or_default() += count;
            }
            found(&sum, &|key| key < SHARED_KEYS as u64)
        })
    });
    assert!(
        both,
        "no cut between {:?} and {:?} (own keys: {left:?}, {right:?}) has {:?}; {:?}, {:?}",
        cut.before,
        cut.after,
        cut.rows,
        logs[0].changes.lock().unwrap(),
        logs[1].changes.lock().unwrap(),
    );
}

/// All rows by pulls, in batches that fit; keys never pushed are left out.
fn pulled(store: &Store, table: TableId) -> BTreeMap<u64, f32> {
    let own = (0..TRAINERS).flat_map(|t| (0..OWN_KEYS).map(move |i| own_key(t, i)));
    let keys: Vec<u64> = (0..SHARED_KEYS as u64).chain(own).collect();
    let mut rows = BTreeMap::new();
    for some in keys.chunks(6) {
        let mut out = vec![0.0; some.len() * DIM];
        let known = store.contains(table, some).unwrap();
        drop(store.pull(table, some, &mut out).unwrap());
        for ((key, row), known) in some.iter().zip(out.chunks_exact(DIM)).zip(known) {
            assert!(row.iter().all(|w| *w == row[0]), "a torn row of key {key}");
            assert!(
                known || row[0] == 0.0,
                "key {key} is not known, and has {}",
                row[0]
            );
            if known {
                rows.insert(*key, row[0]);
            }
        }
    }
    rows
}

fn all_changes(logs: &[Log]) -> BTreeMap<u64, f32> {
    let mut sum = BTreeMap::new();
    for log in logs {
        for (key, count) in log.after(log.ended.load(SeqCst)) {
            *sum.entry(key).or_default() += count as f32;
        }
    }
    sum
}

/// The store as opened on a disk holds these rows.
fn check_reopened(disk: SimDisk, expected: &BTreeMap<u64, f32>) {
    let disk: Arc<dyn Disk> = Arc::new(disk);
    let store = Store::open_on(disk, Path::new(ROOT), options(true)).unwrap();
    let id = store.last_checkpoint().expect("a checkpoint").id;
    assert_eq!(&rows_of(&store, id), expected, "rows of the checkpoint");
    let table = store.table("t").unwrap();
    assert_eq!(&pulled(&store, table), expected, "rows pulled");
    store.close().unwrap();
}

/// Two trainers, checkpoints, flushes, a compaction; then a crash, and the end of the store.
fn trainers_and_checkpoints(seed: u64) {
    let mut rng = Rng(seed);
    let disk = SimDisk::new(rng.next());
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let store = Store::create_on(shared, Path::new(ROOT), options(false)).unwrap();
    let table = store.create_table(&table()).unwrap();
    let logs: [Log; TRAINERS] = Default::default();
    let mut cuts = Vec::new();
    thread::scope(|scope| {
        for (t, log) in logs.iter().enumerate() {
            let store = &store;
            scope.spawn(move || train(store, table, t, log, seed));
        }
        for step in 1..=2 {
            cuts.push(checkpoint(&store, step, &logs));
            if rng.one_in(2) {
                store.flush().unwrap();
            }
            if rng.one_in(2) {
                store.compact().unwrap();
            }
        }
    });
    for cut in &cuts {
        check_cut(cut, &logs);
    }
    let expected = all_changes(&logs);
    assert_eq!(pulled(&store, table), expected);
    // A prefetch whose ticket was dropped ends by itself.
    while store.stats().pinned_rows > 0 {
        shuttle::thread::yield_now();
    }
    let stats = store.stats();
    assert_eq!(stats.leases, 0, "{stats:?}");
    WORK.with_borrow_mut(|work| {
        work.flushes += stats.flushes;
        work.compactions += stats.compactions;
        work.reads += stats.reads;
        work.waits += u64::from(stats.stall_us > 0);
    });
    let crashed = disk.crash(rng.next(), CrashMode::Random);
    check_reopened(crashed, &cuts[cuts.len() - 1].rows);
    store.checkpoint(3, &[]).unwrap();
    store.close().unwrap();
    check_reopened(disk, &expected);
}

/// What the schedules of one test had the store do.
#[derive(Debug, Default)]
struct Work {
    flushes: u64,
    compactions: u64,
    reads: u64,
    /// Schedules in which somebody waited for room.
    waits: u64,
}

std::thread_local! {
    /// All threads of a schedule are one of the system's.
    static WORK: RefCell<Work> = RefCell::default();
}

#[test]
fn trainers_checkpoints_flushes_and_compactions_keep_every_row_in_every_schedule() {
    explore(
        "trainers and checkpoints",
        1,
        1000,
        trainers_and_checkpoints,
    );
}
