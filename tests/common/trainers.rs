//! What do trainers do to a store under chosen schedules, and what must a checkpoint of it hold?
#![expect(
    clippy::unwrap_used,
    reason = "a test that meets what it does not expect must fail"
)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use super::rng::Rng;
use hps::io::Io;
use hps::*;

pub const TRAINERS: usize = 2;
/// 32 KiB a row.
pub const DIM: usize = 8192;
/// Keys of both trainers.
pub const SHARED_KEYS: usize = 6;
pub const ROOT: &str = "/store";

/// How large a store, and how much is done to it.
#[derive(Clone, Copy)]
pub struct Scene {
    pub cache_bytes: u64,
    /// Keys of each trainer alone.
    pub own_keys: usize,
    /// Keys of a batch, at most.
    pub batch_keys: usize,
    pub rounds: usize,
    pub checkpoints: u64,
    /// Fewest rows of a put that go past the cache.
    pub straight_rows: usize,
    /// Threads of a batch.
    pub threads: usize,
}

/// The cache holds 24 rows, of 42: rows leave it all the time.
pub const EVICTING: Scene = Scene {
    cache_bytes: 1 << 20,
    own_keys: 18,
    batch_keys: 3,
    rounds: 8,
    checkpoints: 2,
    straight_rows: usize::MAX,
    threads: 1,
};

/// The same where a second thread helps with each batch; its read buffers have a part of the cache.
pub const HELPED: Scene = Scene {
    cache_bytes: 3 << 19,
    threads: 2,
    ..EVICTING
};

/// Above 64 MiB a checkpoint has four writers; each has something to do, and all rows stay in
/// memory.
pub const MANY_WRITERS: Scene = Scene {
    cache_bytes: 64 << 20,
    own_keys: 60,
    batch_keys: 50,
    rounds: 4,
    checkpoints: 2,
    straight_rows: usize::MAX,
    threads: 1,
};

/// What a trainer does to rows, one after the other; a cut is between two of them.
#[derive(Clone, Debug)]
pub enum Change {
    /// Adds one for each time that a key is named.
    Push(Vec<u64>),
    Remove(u64),
}

/// What a trainer has done, as the checker sees it. Not of the scheduler: nobody waits here.
#[derive(Default)]
pub struct Log {
    pub changes: Mutex<Vec<Change>>,
    pub begun: AtomicUsize,
    pub ended: AtomicUsize,
}

impl Log {
    pub fn change<T>(&self, change: Change, make: impl FnOnce() -> Result<T>) -> Result<()> {
        self.changes.lock().unwrap().push(change);
        self.begun.fetch_add(1, SeqCst);
        make()?;
        self.ended.fetch_add(1, SeqCst);
        Ok(())
    }

    /// The counts of keys after the first `n` changes.
    pub fn after(&self, n: usize) -> BTreeMap<u64, u32> {
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

pub fn own_key(trainer: usize, i: usize) -> u64 {
    (1000 * (trainer + 1) + i) as u64
}

pub fn options(scene: &Scene, inline: bool) -> RuntimeOptions {
    RuntimeOptions::new()
        .cache_bytes(scene.cache_bytes)
        .file_bytes(1 << 20)
        .shards(2)
        .threads(scene.threads)
        .io_depth(2)
        .space_bound(1.1)
        .retain_checkpoints(2)
        .thresholds(Thresholds {
            straight_rows: scene.straight_rows,
            ..Thresholds::default()
        })
        .inline(inline)
}

pub fn table() -> TableDescriptor {
    TableDescriptor::new("t", DIM)
        .optimizer(Optimizer::Sgd)
        .initialiser(Initialiser::Zero)
}

/// The store of a scene, new, with its table.
pub fn new_store(io: Io, scene: &Scene) -> Store {
    let (root, how) = (Path::new(ROOT), CreateOptions::new());
    let store = Store::create_on(io, root, how, options(scene, false)).unwrap();
    store.create_table(&table()).unwrap();
    store
}

pub fn batch(scene: &Scene, rng: &mut Rng, trainer: usize) -> Vec<u64> {
    let mut keys = vec![own_key(trainer, rng.below(scene.own_keys))];
    for _ in 0..rng.below(scene.batch_keys) {
        keys.push(match rng.one_in(3) {
            true => rng.below(SHARED_KEYS) as u64,
            false => own_key(trainer, rng.below(scene.own_keys)),
        });
    }
    keys
}

/// The figures once nothing is pinned and no lease is out: a prefetch whose ticket was dropped ends by
/// itself, and a lease that is dropped is out for a while after its rows are unpinned.
pub fn at_rest(store: &Store) -> Stats {
    loop {
        let stats = store.stats();
        if (stats.pinned_rows, stats.leases) == (0, 0) {
            return stats;
        }
        shuttle::thread::yield_now();
    }
}

/// Pulls, and again where there was no room: prefetches under way, also those whose tickets were
/// dropped, may have the places of a shard. Four batches of three rows are more than its ten.
fn pull(store: &Store, table: TableId, keys: &[u64], rows: &mut [f32]) -> Result<Lease> {
    loop {
        match store.pull(table, keys, rows) {
            Err(Error::OverBudget { .. }) => shuttle::thread::yield_now(),
            result => return result,
        }
    }
}

/// Pulls, checks and pushes; prefetches the next round's rows meanwhile. Ends with the first error.
pub fn train(scene: &Scene, store: &Store, trainer: usize, log: &Log, seed: u64) -> Result<()> {
    let table = store.table("t")?;
    let mut rng = Rng(seed.rotate_left(32) ^ trainer as u64);
    let mut next = batch(scene, &mut rng, trainer);
    for _ in 0..scene.rounds {
        let keys = std::mem::replace(&mut next, batch(scene, &mut rng, trainer));
        let ticket = match rng.one_in(3) {
            true => None,
            false => Some(store.prefetch(table, &next)?),
        };
        let mut rows = vec![0.0; keys.len() * DIM];
        let lease = pull(store, table, &keys, &mut rows)?;
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
            store.push(&lease, Update::deltas(&rows))
        })?;
        drop(lease);
        if let Some(ticket) = ticket
            && !rng.one_in(3)
        {
            match ticket.wait() {
                Ok(_) | Err(Error::OverBudget { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        if rng.one_in(5) {
            let key = own_key(trainer, rng.below(scene.own_keys));
            log.change(Change::Remove(key), || store.remove(table, &[key]))?;
        }
    }
    Ok(())
}

/// A checkpoint, and how far the trainers were before and after its cut.
pub struct Cut {
    pub rows: BTreeMap<u64, f32>,
    pub before: Vec<usize>,
    pub after: Vec<usize>,
}

pub fn progress(logs: &[Log], of: impl Fn(&Log) -> &AtomicUsize) -> Vec<usize> {
    logs.iter().map(|log| of(log).load(SeqCst)).collect()
}

/// A checkpoint, with `beside` done between its cut and the wait for it.
pub fn checkpoint(store: &Store, step: u64, logs: &[Log], beside: impl FnOnce()) -> Cut {
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

pub fn rows_of(store: &Store, checkpoint: CheckpointId) -> BTreeMap<u64, f32> {
    let mut rows = BTreeMap::new();
    let mut iter = store.rows(checkpoint).unwrap();
    while let Some(row) = iter.next_row().unwrap() {
        assert!(row.values.iter().all(|v| *v == row.values[0]), "a torn row");
        rows.insert(row.key, row.values[0]);
    }
    rows
}

/// The cut is after some change of each trainer, and holds exactly what was changed until then.
pub fn check_cut(cut: &Cut, logs: &[Log]) {
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
pub fn pulled(scene: &Scene, store: &Store) -> BTreeMap<u64, f32> {
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
