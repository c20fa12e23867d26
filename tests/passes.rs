//! Passes: rows stay while they last, come in while others last, and become blocks as HugeCTR's do.
#![expect(
    clippy::unwrap_used,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/rng.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod rng;
#[path = "common/small.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod small;

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::time::Duration;

use hps::io::Io;
use hps::io::sim::SimDisk;
use hps::*;
use rng::Rng;

const ROOT: &str = "/store";
const DIM: usize = 64;
/// Weights and AdaGrad's sums, and what is kept beside a row.
const ROW_BYTES: u64 = 2 * 4 * DIM as u64 + 48;

fn options(rows: u64) -> RuntimeOptions {
    let cache = (1 << 20) + rows * ROW_BYTES * 9 / 8;
    small::options().cache_bytes(cache).threads(2).shards(2)
}

fn open(disk: &SimDisk, options: RuntimeOptions) -> Store {
    Store::open_on(Io::of(disk.clone()), Path::new(ROOT), options).unwrap()
}

fn ads() -> TableDescriptor {
    TableDescriptor::new("ads", DIM).seed(3)
}

/// A store whose table has the rows of keys 0 to `rows`, none of them in memory.
fn loaded(disk: &SimDisk, rows: u64, options: RuntimeOptions) -> Store {
    let io = Io::of(disk.clone());
    let create = CreateOptions::new();
    let store = Store::create_on(io, Path::new(ROOT), create, small::options()).unwrap();
    let table = store.create_table(&ads()).unwrap();
    let keys: Vec<u64> = (0..rows).collect();
    for keys in keys.chunks(500) {
        let mut weights = vec![0.0; keys.len() * DIM];
        let lease = store.pull(table, keys, &mut weights).unwrap();
        let update = Update::gradients(&weights, 0.1);
        store.push(&lease, update).unwrap();
    }
    store.checkpoint(1, &[]).unwrap();
    store.close().unwrap();
    open(disk, options)
}

fn cached(num_blocks: u32, target_hit_rate: f64, max_num_evict: u64) -> PolicyKind {
    PolicyKind::Cached {
        num_blocks,
        target_hit_rate,
        max_num_evict,
    }
}

/// HugeCTR's three phases, on sets of keys.
struct SetModel {
    blocks: VecDeque<BTreeSet<u64>>,
    num_blocks: usize,
    target_hit_rate: f64,
    evictions_left: u64,
}

impl SetModel {
    fn pass(&mut self, keys: &BTreeSet<u64>) -> (u64, bool) {
        let is_hit = |key: &&u64| self.blocks.iter().any(|block| block.contains(key));
        let hits = keys.iter().filter(is_hit).count();
        let is_full = self.blocks.len() == self.num_blocks;
        let is_missed = (hits as f64) < self.target_hit_rate * keys.len() as f64;
        let evicts = is_full && self.num_blocks > 0 && is_missed && self.evictions_left > 0;
        if evicts {
            self.evictions_left -= 1;
            self.blocks.pop_front();
        }
        let is_block = !is_full || evicts;
        if is_block {
            self.blocks.push_back(keys.clone());
        }
        (hits as u64, is_block)
    }
}

/// Keys of a pass: many popular ones, some others.
fn keyset(rng: &mut Rng, rows: u64, popular: u64, keys: usize) -> BTreeSet<u64> {
    let key = |rng: &mut Rng| match rng.below(2) {
        0 => rng.below(popular as usize) as u64,
        _ => rng.below(rows as usize) as u64,
    };
    (0..keys).map(|_| key(rng)).collect()
}

#[test]
fn hits_of_blocks_are_those_of_a_model_of_sets() {
    for seed in 0..12 {
        let mut rng = Rng(seed);
        let rows = 4000;
        let (num_blocks, max_num_evict) = (rng.below(4) as u32, rng.below(4) as u64);
        let target_hit_rate = [0.0, 0.3, 0.5, 0.7, 1.0][rng.below(5)];
        let looks_ahead = rng.one_in(2);
        let policy = cached(num_blocks, target_hit_rate, max_num_evict);
        let disk = SimDisk::new(seed);
        let options = options(6 * 900).inline(rng.one_in(3)).policy(policy);
        let store = loaded(&disk, rows, options);
        let table = store.table("ads").unwrap();
        let mut model = SetModel {
            blocks: VecDeque::new(),
            num_blocks: num_blocks as usize,
            target_hit_rate,
            evictions_left: max_num_evict,
        };
        let mut before: Option<Pass> = None;
        for number in 0..15 {
            if number == 10 {
                store.unfreeze(table).unwrap();
                model.evictions_left = max_num_evict;
            }
            let keys = keyset(&mut rng, rows, 300, 900);
            let list: Vec<u64> = keys.iter().copied().collect();
            if !looks_ahead {
                before = None;
            }
            let ticket = store.begin_pass(&[PassPart::new(table, &list)]).unwrap();
            let pass = ticket.wait().unwrap();
            let found = &pass.report().tables[0];
            let (hits, is_block) = model.pass(&keys);
            let known = list.len() as u64;
            assert_eq!((found.keys, found.known), (known, known), "seed {seed}, pass {number}");
            assert_eq!((found.hits, found.is_block), (hits, is_block), "seed {seed}, pass {number}");
            // A batch of it: all hits.
            let reads = store.stats().reads;
            let mut weights = vec![0.0; 100 * DIM];
            let lease = store.pull(table, &list[..100], &mut weights).unwrap();
            store.push(&lease, Update::gradients(&weights, 0.1)).unwrap();
            assert_eq!(store.stats().reads, reads);
            drop(before.replace(pass));
        }
        drop(before);
        let stats = &store.stats().tables[0];
        assert_eq!(stats.blocks, model.blocks.len() as u64);
        // What blocks have is in memory.
        let reads = store.stats().reads;
        for block in &model.blocks {
            let keys: Vec<u64> = block.iter().copied().collect();
            store.pull(table, &keys, &mut vec![0.0; keys.len() * DIM]).unwrap();
        }
        assert_eq!(store.stats().reads, reads, "seed {seed}");
        store.checkpoint(2, &[]).unwrap();
        store.close().unwrap();
    }
}
