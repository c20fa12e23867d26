//! Random operations of a store with several tables over one cache, against maps: what every key should
//! hold, what the SSD holds, and what it must hold when a checkpoint's cut is complete.
//!
//! `HPS_CACHE_SEEDS` sets how many seeds.

use super::world::{Seen, World};
use super::*;

fn run(
    seed: u64,
    bytes: u64,
    keys: u64,
    batch: u64,
    (steps, every): (u64, u64),
    seen: Seen,
) -> Seen {
    println!("seed {seed}, {bytes} bytes: {seen:?}");
    let mut world = World::new(seed, bytes, keys, batch);
    world.seen = seen;
    for step in 0..steps {
        world.step(step, bytes);
        if step % every == 0 {
            world.check();
        }
    }
    while !world.leases.is_empty() {
        world.drop_lease();
    }
    world.report(true);
    world.check();
    world.seen
}

fn seeds(default: u64) -> u64 {
    std::env::var("HPS_CACHE_SEEDS").map_or(default, |n| n.parse().unwrap())
}

#[test]
fn random_operations_on_several_tables_keep_every_row_and_every_cut() {
    let mut all = Seen::default();
    for seed in 0..seeds(16) {
        let bytes = [96 << 10, 160 << 10, 256 << 10][to_usize(seed % 3)];
        all = run(seed, bytes, 150, 16, (1200, 4), all);
    }
    println!("{all:?}");
    let freezes = all.cuts > 100 && all.copies > 500 && all.lost > 0;
    let crowds = all.repeats > 100 && all.many_pins > 10 && all.short > 0;
    assert!(freezes && crowds && all.unfilled > 100, "{all:?}");
}

#[test]
fn random_operations_on_many_rows_keep_every_row_and_every_cut() {
    let mut all = Seen::default();
    for seed in 0..seeds(4) {
        all = run(seed, 768 << 10, 16_000, 700, (600, 50), all);
    }
    println!("{all:?}");
    assert!(all.trims > 0 && all.cuts > 5 && all.copies > 100, "{all:?}");
}
