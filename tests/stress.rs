//! Do trainers, prefetches and checkpoints at the same time leave what the trainers wrote?
#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::print_stderr,
    reason = "a test that meets what it does not expect must fail, and says its seed"
)]

mod common {
    pub mod rng;
    pub mod seed;
}

use common::rng::Rng;
use common::seed;
use hps::io::Io;
use hps::io::sim::SimDisk;
use hps::*;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const TRAINERS: usize = 2;
const KEYS: u64 = 700;
const ROUNDS: u64 = 150;
const DIM: usize = 256;

/// Which round wrote a key: what the trainers did, known to them only.
type Log = BTreeMap<u64, Vec<u64>>;

#[derive(Default)]
struct Progress {
    started: AtomicU64,
    ended: AtomicU64,
}

/// Each round writes its number to some keys of the trainer's own. Returns the log.
fn train(store: &Store, table: TableId, trainer: usize, progress: &Progress, seed: u64) -> Log {
    let mut rng = Rng(seed);
    let mut log = Log::new();
    let keys_of = |rng: &mut Rng| -> Vec<u64> {
        let n = 1 + rng.below(48);
        (0..n)
            .map(|_| rng.below(KEYS as usize) as u64 * TRAINERS as u64 + trainer as u64)
            .collect()
    };
    let mut next = keys_of(&mut rng);
    for round in 1..=ROUNDS {
        let keys = next;
        next = keys_of(&mut rng);
        // Prefetches for the next round overlap with this one; some are never served.
        let ticket = store.prefetch(table, &next).unwrap();
        let ticket = (!rng.one_in(4)).then_some(ticket);
        let mut weights = vec![0.0; keys.len() * DIM];
        let lease = store.pull(table, &keys, &mut weights).unwrap();
        for (key, row) in keys.iter().zip(weights.chunks_exact(DIM)) {
            let expected = log.get(key).and_then(|l| l.last()).copied().unwrap_or(0);
            assert!(
                row.iter().all(|w| *w == expected as f32),
                "trainer {trainer}, round {round}, key {key}: {} instead of {expected}",
                row[0]
            );
        }
        weights.fill(round as f32);
        progress.started.store(round, Ordering::SeqCst);
        store.push(&lease, Update::weights(&weights)).unwrap();
        progress.ended.store(round, Ordering::SeqCst);
        for key in &keys {
            let rounds = log.entry(*key).or_default();
            if rounds.last() != Some(&round) {
                rounds.push(round);
            }
        }
        drop(lease);
        if let Some(ticket) = ticket {
            drop(ticket.wait().unwrap());
        }
    }
    log
}

/// A checkpoint and the rounds that were over before it, and begun after it.
struct Seen {
    rows: BTreeMap<u64, f32>,
    before: Vec<u64>,
    after: Vec<u64>,
}

fn checkpoints(store: &Store, progress: &[Progress], done: &AtomicBool) -> Vec<Seen> {
    let mut seen = Vec::new();
    let mut step = 1;
    // At least one, also where the trainers were done first.
    while step == 1 || !done.load(Ordering::SeqCst) {
        step += 1;
        let before = progress.iter().map(|p| p.ended.load(Ordering::SeqCst));
        let before = before.collect();
        let ticket = store.checkpoint_begin(step, &[]).unwrap();
        let after = progress.iter().map(|p| p.started.load(Ordering::SeqCst));
        let after = after.collect();
        let id = ticket.wait().unwrap().id;
        let mut rows = BTreeMap::new();
        let mut iter = store.rows(id).unwrap();
        while let Some(row) = iter.next_row().unwrap() {
            assert!(row.values.iter().all(|v| *v == row.values[0]), "a torn row");
            rows.insert(row.key, row.values[0]);
        }
        seen.push(Seen {
            rows,
            before,
            after,
        });
    }
    seen
}

fn is_possible(found: f32, rounds: &[u64], before: u64, after: u64) -> bool {
    let last = rounds.iter().rev().find(|r| **r <= before).copied();
    let between = rounds.iter().filter(|r| **r > before && **r <= after);
    found == last.unwrap_or(0) as f32 || between.into_iter().any(|r| found == *r as f32)
}

/// Returns the number of flushes.
fn stress(seed: u64, policy: PolicyKind) -> u64 {
    eprintln!("seed {seed}");
    let disk = Io::of(SimDisk::new(seed));
    let options = RuntimeOptions::new()
        .cache_bytes(1 << 20)
        .file_bytes(1 << 20)
        .shards(3)
        .threads(2)
        .io_depth(4)
        .flush_step_rows(40)
        .space_bound(1.2)
        .policy(policy);
    let root = Path::new("/store");
    let store =
        Store::create_on(disk.clone(), root, CreateOptions::new(), options.clone()).unwrap();
    let table = store
        .create_table(
            &TableDescriptor::new("t", DIM)
                .optimizer(Optimizer::Sgd)
                .initialiser(Initialiser::Zero),
        )
        .unwrap();
    let progress: [Progress; TRAINERS] = Default::default();
    let done = AtomicBool::new(false);
    let (logs, seen) = std::thread::scope(|scope| {
        let trainers: Vec<_> = (0..TRAINERS)
            .map(|t| {
                let (store, progress) = (&store, &progress[t]);
                scope.spawn(move || train(store, table, t, progress, seed + t as u64))
            })
            .collect();
        let watcher = scope.spawn(|| checkpoints(&store, &progress, &done));
        let logs: Vec<_> = trainers.into_iter().map(|t| t.join()).collect();
        done.store(true, Ordering::SeqCst);
        let seen = watcher.join().unwrap();
        let logs: Vec<Log> = logs.into_iter().map(|log| log.unwrap()).collect();
        (logs, seen)
    });
    for checkpoint in &seen {
        for (trainer, log) in logs.iter().enumerate() {
            let (before, after) = (checkpoint.before[trainer], checkpoint.after[trainer]);
            for (key, rounds) in log {
                let found = checkpoint.rows.get(key).copied().unwrap_or(0.0);
                assert!(
                    is_possible(found, rounds, before, after),
                    "key {key}: {found} in a checkpoint between {before} and {after}: {rounds:?}"
                );
            }
        }
    }
    let stats = store.stats();
    // Where checkpoints come often they write what flushes would.
    assert!(stats.reads > 0 && stats.checkpoints > 0, "{stats:?}");
    // A prefetch whose ticket was dropped may still be on its way; it lets go at its end.
    let patience = Instant::now() + Duration::from_secs(60);
    while store.stats().pinned_rows > 0 {
        assert!(Instant::now() < patience, "{:?}", store.stats());
        std::thread::sleep(Duration::from_millis(1));
    }
    let last = store.checkpoint(1_000_000, &[]).unwrap();
    store.close().unwrap();
    let store = Store::open_on(disk, root, options).unwrap();
    assert_eq!(store.last_checkpoint().unwrap().id, last.id);
    for log in &logs {
        for (key, rounds) in log {
            let mut weights = vec![0.0; DIM];
            drop(store.pull(table, &[*key], &mut weights).unwrap());
            assert_eq!(weights[0], rounds[rounds.len() - 1] as f32, "key {key}");
        }
    }
    store.close().unwrap();
    stats.flushes
}

#[test]
fn trainers_prefetches_and_checkpoints_together_keep_every_row() {
    let seeds = [1, seed::fresh("stress")];
    let mut flushes = 0;
    for policy in [PolicyKind::Bilevel, PolicyKind::Lru, PolicyKind::Fifo] {
        flushes += seeds.map(|seed| stress(seed, policy)).iter().sum::<u64>();
    }
    assert!(flushes > 0, "no run had to flush");
}
