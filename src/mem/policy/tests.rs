use std::collections::BTreeMap;

use super::super::Flags;
use crate::mem::tests::cache;
use crate::options::PolicyKind;
use crate::units::{Slot, mix64};

const KEYS: usize = 40_000;
const SLOTS: usize = 4_000;
const BATCH: usize = 50;

/// Keys with zipf-distributed ranks; each `scan`-th key is one that comes only once.
struct Trace {
    sums: Vec<f64>,
    state: u64,
    scanned: u64,
    scan: u64,
}

impl Trace {
    fn new(exponent: f64, scan: u64) -> Trace {
        let mut sum = 0.0;
        let weight = |rank: usize| (rank as f64 + 1.0).powf(-exponent);
        let sums = (0..KEYS).map(|rank| {
            sum += weight(rank);
            sum
        });
        Trace {
            sums: sums.collect(),
            state: 1,
            scanned: 1 << 40,
            scan,
        }
    }

    fn next(&mut self) -> (u64, bool) {
        self.state += 1;
        if self.scan > 0 && self.state.is_multiple_of(self.scan) {
            self.scanned += 1;
            return (mix64(self.scanned), true);
        }
        let uniform = (mix64(self.state) >> 11) as f64 / (1u64 << 53) as f64;
        let at = uniform * self.sums[KEYS - 1];
        (
            mix64(self.sums.partition_point(|sum| *sum < at) as u64),
            false,
        )
    }
}

/// Share of the repeating keys found in memory, after a warm-up.
fn hit_rate(policy: PolicyKind, mut trace: Trace) -> f64 {
    let mut cache = cache(SLOTS, policy);
    let mut classes: BTreeMap<u64, u8> = BTreeMap::new();
    let (mut hits, mut asked) = (0, 0);
    let mut slots = vec![Slot::NONE; BATCH];
    for batch in 0..6_000 {
        let keys: Vec<(u64, bool)> = (0..BATCH).map(|_| trace.next()).collect();
        let hashes: Vec<u64> = keys.iter().map(|x| x.0).collect();
        cache.lookup(0, &hashes, &mut slots);
        if batch >= 2_000 {
            asked += keys.iter().filter(|x| !x.1).count();
            hits += keys
                .iter()
                .zip(&slots)
                .filter(|(x, slot)| !x.1 && **slot != Slot::NONE)
                .count();
        }
        for (hash, slot) in hashes.iter().zip(&mut slots) {
            if *slot == Slot::NONE {
                cache.lookup(0, &[*hash], std::slice::from_mut(slot));
            }
            if *slot == Slot::NONE {
                assert!(cache.reclaim(0, 1) >= 1);
                classes.extend(cache.left().iter().map(|left| (left.hash, left.class)));
                cache.forget_left();
                let class = classes.remove(hash).unwrap_or(0);
                *slot = cache.insert(0, *hash, Flags::NONE, class).unwrap();
            } else {
                cache.touch(&[*slot]);
            }
            cache.pin(&[*slot]);
        }
        cache.unpin(&slots);
    }
    cache.check();
    hits as f64 / asked as f64
}

/// What a cache that knows the weights would hit: the sum of the greatest.
fn best(exponent: f64, scan: u64) -> f64 {
    let trace = Trace::new(exponent, scan);
    trace.sums[SLOTS - 1] / trace.sums[KEYS - 1]
}

#[test]
fn the_policy_decides_the_hit_rate() {
    let rates = |exponent, scan| {
        let rate = |policy| hit_rate(policy, Trace::new(exponent, scan));
        let [bilevel, lru, cached] =
            [PolicyKind::Bilevel, PolicyKind::Lru, PolicyKind::Fifo].map(rate);
        let best = best(exponent, scan);
        println!(
            "zipf {exponent}, scan 1/{scan}: bi-level {bilevel:.4}, LRU {lru:.4}, \
             cached {cached:.4}, best {best:.4}"
        );
        (bilevel, lru, cached, best)
    };
    let (bilevel, lru, cached, best) = rates(0.99, 3);
    assert!(
        bilevel > lru + 0.08,
        "scans must not drive out the frequent rows"
    );
    assert!(lru > cached + 0.005);
    assert!(bilevel > 0.94 * best);
    let (bilevel, lru, _, best) = rates(0.99, 0);
    assert!(bilevel > lru + 0.03 && bilevel > 0.96 * best);
    let (bilevel, lru, ..) = rates(1.2, 0);
    assert!(bilevel > lru);
}
