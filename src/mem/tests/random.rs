//! Random operations of a small store over the cache, against a map: what every key should hold,
//! what the SSD holds, and what it must hold when a checkpoint's cut is complete.

use super::ssd::{Key, Ssd};
use super::*;

const KEYS: u64 = 120;

struct Store {
    cache: Cache,
    seed: u64,
    version: f32,
    interval: u32,
    /// What a reader must see; a key without entry was never pushed or is removed.
    truth: BTreeMap<Key, f32>,
    ssd: Ssd,
    leases: Vec<Vec<Slot>>,
    cuts_done: usize,
    copies_seen: usize,
}

impl Store {
    fn random(&mut self, below: u64) -> u64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix64(self.seed) % below
    }

    fn lease(&mut self) {
        let count = 1 + self.random(8);
        let keys: Vec<u64> = (0..count)
            .map(|_| self.random(KEYS) * self.random(KEYS) / KEYS)
            .collect();
        let unique: BTreeSet<u64> = keys.iter().copied().collect();
        if self.cache.pinned() + unique.len() > self.cache.capacity(0) - 6 {
            return;
        }
        let mut lease = Vec::new();
        for key in unique {
            let mut slot = find(&self.cache, key);
            if slot == Slot::NONE {
                if self.cache.reclaim(0, 1) == 0 {
                    self.flush();
                    self.report(true);
                    if self.cache.reclaim(0, 1) == 0 {
                        continue;
                    }
                }
                let stored = self.ssd.rows.get(&(0, key)).copied();
                let flags = if stored.is_some() {
                    Flags::NONE
                } else {
                    Flags::ABSENT
                };
                slot = self.cache.insert(0, mix64(key), flags, 0).unwrap();
                self.cache.row_mut(slot).fill(stored.unwrap_or(0.0));
            }
            let expected = self.truth.get(&(0, key)).copied().unwrap_or(0.0);
            assert_eq!(self.cache.row(slot)[0], expected, "key {key}");
            lease.push(slot);
            self.cache.pin(&[slot]);
        }
        self.cache.touch(&lease);
        self.leases.push(lease);
    }

    fn drop_lease(&mut self) {
        if !self.leases.is_empty() {
            let at = usize::try_from(self.random(self.leases.len() as u64)).unwrap();
            let lease = self.leases.swap_remove(at);
            self.cache.unpin(&lease);
        }
    }

    fn push(&mut self, remove: bool) {
        let Some(lease) = self.leases.last().cloned() else {
            return;
        };
        loop {
            let frozen = self.ssd.frozen();
            if self
                .cache
                .begin_write(&lease, self.interval, frozen)
                .is_ok()
            {
                break;
            }
            // No room for copies: only the drain makes some.
            assert!(frozen.is_some());
            self.report(true);
            self.checkpoint_step();
        }
        self.copies_seen += self.cache.frozen_copies();
        for slot in lease {
            let key = (0, unmix64(self.cache.hash_of(slot)));
            if remove {
                self.cache.set(slot, Flags::REMOVED);
                self.cache.row_mut(slot).fill(0.0);
                self.truth.remove(&key);
            } else {
                self.version += 1.0;
                self.cache.row_mut(slot).fill(self.version);
                self.truth.insert(key, self.version);
            }
        }
    }

    fn copy_out(&mut self, victims: &[Victim]) {
        let mut row = [0.0; ROW];
        for victim in victims {
            if let Some(taken) = self
                .cache
                .copy_out(victim, self.ssd.interval_max(), &mut row)
            {
                self.ssd.flying.push((*victim, taken, row[0]));
            }
        }
    }

    fn flush(&mut self) {
        if self.ssd.flying.is_empty() {
            let mut victims = Vec::new();
            self.cache
                .take_victims(step(5), self.ssd.interval_max(), &mut victims);
            assert!(victims.iter().all(|x| self.cache.pins(x.slot) == 0));
            self.copy_out(&victims);
        }
    }

    fn report(&mut self, ok: bool) {
        if self.ssd.report(&mut self.cache, ok) {
            self.ssd.cut = None;
            self.cache.discard_frozen();
        }
    }

    fn checkpoint_step(&mut self) {
        if !self.ssd.flying.is_empty() {
            return;
        }
        if self.ssd.cut.is_none() {
            self.ssd.begin_cut(self.interval, &self.truth);
            self.interval += 1;
            return;
        }
        match self.ssd.drain(&mut self.cache, step(7)) {
            Some(victims) => self.copy_out(&victims),
            None => self.cuts_done += 1,
        }
    }
}

fn run(seed: u64, policy: PolicyKind, slots: usize) -> (usize, usize) {
    let mut store = Store {
        cache: cache(slots, policy),
        seed: mix64(seed + 1),
        version: 0.0,
        interval: 1,
        truth: BTreeMap::new(),
        ssd: Ssd::default(),
        leases: Vec::new(),
        cuts_done: 0,
        copies_seen: 0,
    };
    for _ in 0..1500 {
        match store.random(20) {
            0..6 => store.lease(),
            6..10 => store.drop_lease(),
            10..13 => store.push(false),
            13 => store.push(true),
            14..16 => store.flush(),
            16 => {
                let ok = store.random(4) > 0;
                store.report(ok);
            }
            17 => store.report(true),
            _ => store.checkpoint_step(),
        }
        store.cache.check();
    }
    (store.cuts_done, store.copies_seen)
}

#[test]
fn random_operations_keep_every_row_and_every_cut() {
    let (mut cuts, mut copies) = (0, 0);
    for seed in 0..24 {
        for policy in policy::evicting() {
            println!("seed {seed}, {policy:?}");
            let slots = [16, 40, 150][usize::try_from(seed % 3).unwrap()];
            let (done, copied) = run(seed, policy, slots);
            cuts += done;
            copies += copied;
        }
    }
    println!("{cuts} cuts completed, {copies} copies");
    assert!(
        cuts > 300 && copies > 1000,
        "the workload must freeze rows: {cuts}, {copies}"
    );
}
