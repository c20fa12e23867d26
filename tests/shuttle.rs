//! Does the engine keep every row, whichever of its threads goes on at each lock, atomic and wait?
//!
//! The real engine on the simulated disk, its locks and threads replaced by shuttle's (feature
//! `shuttle`, `src/sync.rs`). `HPS_SHUTTLE_SCHEDULES` says how many schedules (else 1000),
//! `HPS_SHUTTLE_SEED` from which seed on; a failure prints the seed that repeats it.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that meets what it does not expect must fail"
)]

mod common {
    pub mod rng;
    pub mod schedule;
}

use common::rng::Rng;
use common::schedule::{explore, run};
use hps::io::Io;
use hps::io::sim::{CrashMode, SimDisk};
use hps::sync::{limits, thread};
use hps::*;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const TRAINERS: usize = 2;
/// 32 KiB a row.
const DIM: usize = 8192;
/// Keys of both trainers.
const SHARED_KEYS: usize = 6;
const ROOT: &str = "/store";

/// How large a store, and how much is done to it.
#[derive(Clone, Copy)]
struct Scene {
    cache_bytes: u64,
    /// Keys of each trainer alone.
    own_keys: usize,
    /// Keys of a batch, at most.
    batch_keys: usize,
    rounds: usize,
    checkpoints: u64,
}

/// The cache holds 24 rows, of 42: rows leave it all the time.
const EVICTING: Scene = Scene {
    cache_bytes: 1 << 20,
    own_keys: 18,
    batch_keys: 3,
    rounds: 8,
    checkpoints: 2,
};

/// Above 64 MiB a checkpoint has four writers; each has something to do, and all rows stay in
/// memory.
const MANY_WRITERS: Scene = Scene {
    cache_bytes: 64 << 20,
    own_keys: 60,
    batch_keys: 50,
    rounds: 4,
    checkpoints: 2,
};

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

fn options(scene: &Scene, inline: bool) -> RuntimeOptions {
    RuntimeOptions {
        cache_bytes: scene.cache_bytes,
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

fn batch(scene: &Scene, rng: &mut Rng, trainer: usize) -> Vec<u64> {
    let mut keys = vec![own_key(trainer, rng.below(scene.own_keys))];
    for _ in 0..rng.below(scene.batch_keys) {
        keys.push(match rng.one_in(3) {
            true => rng.below(SHARED_KEYS) as u64,
            false => own_key(trainer, rng.below(scene.own_keys)),
        });
    }
    keys
}

/// Pulls, and again where there was no room: prefetches under way, also those whose tickets were
/// dropped, may have the places of a shard. Four batches of three rows are more than its ten.
fn pull(store: &Store, table: TableId, keys: &[u64], rows: &mut [f32]) -> Lease {
    loop {
        match store.pull(table, keys, rows) {
            Err(Error::OverBudget { .. }) => shuttle::thread::yield_now(),
            result => return result.unwrap(),
        }
    }
}

/// Pulls, checks and pushes; prefetches the next round's rows meanwhile.
fn train(scene: &Scene, store: &Store, trainer: usize, log: &Log, seed: u64) {
    let table = store.table("t").unwrap();
    let mut rng = Rng(seed.rotate_left(32) ^ trainer as u64);
    let mut next = batch(scene, &mut rng, trainer);
    for _ in 0..scene.rounds {
        let keys = std::mem::replace(&mut next, batch(scene, &mut rng, trainer));
        let ticket = (!rng.one_in(3)).then(|| store.prefetch(table, &next).unwrap());
        let mut rows = vec![0.0; keys.len() * DIM];
        let lease = pull(store, table, &keys, &mut rows);
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
            match ticket.wait() {
                Ok(_) | Err(Error::OverBudget { .. }) => {}
                Err(error) => panic!("a ticket gave {error}"),
            }
        }
        if rng.one_in(5) {
            let key = own_key(trainer, rng.below(scene.own_keys));
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

/// A checkpoint, with `beside` done between its cut and the wait for it.
fn checkpoint(store: &Store, step: u64, logs: &[Log], beside: impl FnOnce()) -> Cut {
    let before = progress(logs, |log| &log.ended);
    let ticket = store.checkpoint_begin(step, &[]).unwrap();
    let after = progress(logs, |log| &log.begun);
    beside();
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
                (first..own_key(trainer + 1, 0)).contains(&key)
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
fn pulled(scene: &Scene, store: &Store) -> BTreeMap<u64, f32> {
    let table = store.table("t").unwrap();
    let own = (0..TRAINERS).flat_map(|t| (0..scene.own_keys).map(move |i| own_key(t, i)));
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
fn check_reopened(scene: &Scene, disk: SimDisk, expected: &BTreeMap<u64, f32>) {
    let disk = Io::of(disk);
    let store = Store::open_on(disk, Path::new(ROOT), options(scene, true)).unwrap();
    let id = store.last_checkpoint().expect("a checkpoint").id;
    assert_eq!(&rows_of(&store, id), expected, "rows of the checkpoint");
    assert_eq!(&pulled(scene, &store), expected, "rows pulled");
    store.close().unwrap();
}

/// Two trainers, checkpoints, flushes, a compaction; then a crash, and the end of the store.
fn play(scene: &Scene, seed: u64) {
    let mut rng = Rng(seed);
    let disk = SimDisk::new(rng.next());
    let shared = Io::of(disk.clone());
    let store = Store::create_on(shared, Path::new(ROOT), options(scene, false)).unwrap();
    store.create_table(&table()).unwrap();
    let logs: [Log; TRAINERS] = Default::default();
    let mut cuts = Vec::new();
    thread::scope(|scope| {
        for (t, log) in logs.iter().enumerate() {
            let store = &store;
            scope.spawn(move || train(scene, store, t, log, seed));
        }
        for step in 1..=scene.checkpoints {
            let mut write = || match rng.below(3) {
                0 => drop(store.flush().unwrap()),
                1 => drop(store.compact().unwrap()),
                _ => {}
            };
            cuts.push(checkpoint(&store, step, &logs, &mut write));
            (0..3).for_each(|_| write());
        }
    });
    for cut in &cuts {
        check_cut(cut, &logs);
    }
    let expected = all_changes(&logs);
    assert_eq!(pulled(scene, &store), expected);
    // A prefetch whose ticket was dropped ends by itself.
    while store.stats().pinned_rows > 0 {
        shuttle::thread::yield_now();
    }
    let stats = store.stats();
    assert_eq!(stats.leases, 0, "{stats:?}");
    WORK.with_borrow_mut(|work| work.add(&stats));
    let crashed = disk.crash(rng.next(), CrashMode::Random);
    check_reopened(scene, crashed, &cuts[cuts.len() - 1].rows);
    store.checkpoint(100, &[]).unwrap();
    limits::closing();
    store.close().unwrap();
    check_reopened(scene, disk, &expected);
}

/// Takes, drops and waits for tickets in any order; none of its rows stays pinned.
fn prefetch(scene: &Scene, store: &Store, trainer: usize, seed: u64) {
    let table = store.table("t").unwrap();
    let mut rng = Rng(seed.rotate_left(32) ^ trainer as u64);
    let mut tickets = Vec::new();
    for _ in 0..3 * scene.rounds {
        let ticket = match rng.below(tickets.len() + 1) {
            i if i < tickets.len() => tickets.swap_remove(i),
            _ => {
                let keys = batch(scene, &mut rng, trainer);
                tickets.push(store.prefetch(table, &keys).unwrap());
                continue;
            }
        };
        let lease = match rng.below(4) {
            0 => continue,
            1 => match ticket.wait_for(Duration::ZERO) {
                Err((Error::Deadline { .. }, Some(ticket))) => {
                    tickets.push(ticket);
                    continue;
                }
                result => result.map_err(|(error, _)| error),
            },
            _ => ticket.wait(),
        };
        match lease {
            Ok(lease) => {
                let ones = vec![1.0; lease.len() * DIM];
                store.push(&lease, Update::weights(&ones)).unwrap();
            }
            // Beside all these tickets there was no room.
            Err(Error::OverBudget { .. }) => tickets.clear(),
            Err(error) => panic!("a ticket gave {error}"),
        }
    }
}

/// Tickets in two threads, beside one that flushes, checkpoints, and adds a table when nothing is
/// pinned.
fn play_tickets(scene: &Scene, seed: u64) {
    let mut rng = Rng(seed);
    let disk = Io::of(SimDisk::new(rng.next()));
    let store = Store::create_on(disk, Path::new(ROOT), options(scene, false)).unwrap();
    store.create_table(&table()).unwrap();
    let narrow = |name| TableDescriptor::new(name, 256);
    thread::scope(|scope| {
        for trainer in 0..TRAINERS {
            let store = &store;
            scope.spawn(move || prefetch(scene, store, trainer, seed));
        }
        for step in 1..=scene.checkpoints {
            match store.create_table(&narrow("early")) {
                Ok(_) | Err(Error::InvalidArgument(Invalid::LeasesOutstanding { .. })) => {}
                Err(error) => panic!("a new table gave {error}"),
            }
            match rng.one_in(2) {
                true => drop(store.flush().unwrap()),
                false => drop(store.checkpoint(step, &[]).unwrap()),
            }
        }
    });
    // All tickets and leases are gone: nothing is in the way.
    store.create_table(&narrow("late")).unwrap();
    let stats = store.stats();
    assert_eq!((stats.pinned_rows, stats.leases), (0, 0), "{stats:?}");
    WORK.with_borrow_mut(|work| work.add(&stats));
    let checkpointed = rng.one_in(2);
    if checkpointed {
        store.checkpoint(100, &[]).unwrap();
    }
    limits::closing();
    match checkpointed {
        true => store.close().unwrap(),
        false => store.close_discarding(),
    }
}

/// Explores; fails if somebody went on only because a limit was over: a wake-up that was lost.
fn explore_all(name: &str, share: u64, model: impl Fn(u64) + Copy + Send + Sync + 'static) {
    let mut lost = explore(name, share, model).ended;
    // A thread that saw the store open may miss the call that it was closed: a close that takes
    // 200 ms longer. That is counted, and no more.
    lost.retain(|place, _| !place.starts_with("closing: "));
    assert!(lost.is_empty(), "{name}: woken by the limit only: {lost:?}");
}

/// What the schedules of one test had the store do.
#[derive(Debug, Default)]
struct Work {
    flushes: u64,
    compactions: u64,
    reads: u64,
    written_bytes: u64,
    /// Schedules in which somebody waited for room.
    waits: u64,
}

impl Work {
    fn add(&mut self, stats: &Stats) {
        self.flushes += stats.flushes;
        self.compactions += stats.compactions;
        self.reads += stats.reads;
        self.written_bytes += stats.written_bytes;
        self.waits += u64::from(stats.stall_us > 0);
    }
}

std::thread_local! {
    /// All threads of a schedule are one of the system's.
    static WORK: RefCell<Work> = RefCell::default();
}

#[test]
fn trainers_and_checkpoints_in_a_cache_too_small_keep_every_row() {
    explore_all("a small cache", 1, |seed| play(&EVICTING, seed));
    let work = WORK.take();
    eprintln!("  {work:?}");
    let some = work.flushes > 0 && work.compactions > 0 && work.reads > 0;
    assert!(some, "no rows left memory, or none came back: {work:?}");
}

#[test]
fn a_checkpoint_by_four_writers_is_a_cut_of_all_trainers() {
    explore_all("four writers", 10, |seed| play(&MANY_WRITERS, seed));
    let work = WORK.take();
    eprintln!("  {work:?}");
    assert!(work.written_bytes > 0, "{work:?}");
}

#[test]
fn tickets_waited_for_and_dropped_in_any_order_leave_nothing_pinned() {
    explore_all("tickets", 1, |seed| play_tickets(&EVICTING, seed));
    let work = WORK.take();
    eprintln!("  {work:?}");
    assert!(work.flushes > 0, "{work:?}");
}

#[test]
fn a_seed_repeats_its_schedule() {
    let run_twice = |seed: u64| {
        let digest = || {
            let seen = Arc::default();
            run(seed, &seen, |seed| play(&EVICTING, seed));
            let seen = seen.lock().unwrap();
            (seen.steps, seen.digest)
        };
        assert_eq!(digest(), digest(), "seed {seed}");
    };
    (1..=9).for_each(run_twice);
}
