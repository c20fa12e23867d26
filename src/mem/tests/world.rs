//! What [`super::tables`] does to a cache with several tables, and the maps that it is compared with.

use super::ssd::{Key, Ssd};
use super::*;
use crate::row::RowLayout;

/// A table, and the keys that it is asked for.
struct Asked {
    config: TableConfig,
    keys: u64,
}

pub(super) struct Lease {
    table: usize,
    rows: BTreeMap<u64, Slot>,
    pins: usize,
}

pub(super) struct World {
    cache: Cache,
    tables: Vec<Option<Asked>>,
    seed: u64,
    version: f32,
    interval: u32,
    /// What a reader must see; a key without entry was never pushed or is removed.
    truth: BTreeMap<Key, f32>,
    ssd: Ssd,
    chosen: Vec<Victim>,
    pub leases: Vec<Lease>,
    pins: BTreeMap<Key, u32>,
    batch: u64,
    pub seen: Seen,
}

/// What happened, so that a test can say that it did.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub cuts: usize,
    pub copies: usize,
    pub lost: usize,
    pub repeats: usize,
    pub trims: usize,
    pub many_pins: usize,
    pub short: usize,
    pub less: usize,
    pub unfilled: usize,
}

/// A word of a row; those of a row that was never pushed are 0.
fn word(value: f32, i: usize) -> f32 {
    if value == 0.0 { 0.0 } else { value + i as f32 }
}

fn is_row(row: &[f32], value: f32) -> bool {
    let mut words = row.iter().enumerate();
    words.all(|(i, found)| *found == word(value, i))
}

impl World {
    pub fn new(seed: u64, bytes: u64, keys: u64, batch: u64) -> World {
        let mut world = World {
            cache: empty(bytes),
            tables: Vec::new(),
            seed: mix64(seed + 1),
            version: 0.0,
            interval: 1,
            truth: BTreeMap::new(),
            ssd: Ssd::default(),
            chosen: Vec::new(),
            leases: Vec::new(),
            pins: BTreeMap::new(),
            batch,
            seen: Seen::default(),
        };
        for (i, row_f32s) in [4, 24, 200, 24, 4].into_iter().enumerate() {
            let policy = ALL[(i + to_usize(seed)) % 4];
            world.add_table(row_f32s, policy, keys);
        }
        world
    }

    fn random(&mut self, below: u64) -> u64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix64(self.seed) % below
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.random(n) == 0
    }

    /// A table of these rows with bounds that leave room for the others.
    fn config(&mut self, row_f32s: usize, policy: PolicyKind) -> TableConfig {
        let bytes = self.cache.bytes_max();
        let (floor, ceiling) = (self.random(bytes / 8 + 1), self.random(bytes) + bytes / 16);
        TableConfig {
            layout: RowLayout::of_weights(row_f32s),
            policy,
            floor_bytes: if self.one_in(2) { floor } else { 0 },
            ceiling_bytes: if self.one_in(2) { ceiling } else { u64::MAX },
            is_dropped: false,
        }
    }

    fn add_table(&mut self, row_f32s: usize, policy: PolicyKind, keys: u64) {
        let config = self.config(row_f32s, policy);
        self.cache.add_table(&config).unwrap();
        self.tables.push(Some(Asked { config, keys }));
    }

    /// A table that was not dropped, with its row size, and how many of its keys are asked for: few of
    /// one that keeps its rows.
    fn table(&mut self, step: u64) -> (usize, usize, u64) {
        loop {
            let any = self.random(self.tables.len() as u64);
            // For some time most rows are of one table.
            let phase = step / 150 % self.tables.len() as u64;
            let table = to_usize(if self.one_in(3) { any } else { phase });
            if let Some(asked) = &self.tables[table] {
                let keys = match asked.config.policy {
                    PolicyKind::PinAll => 1 + self.cache.capacity(table) as u64 / 40,
                    _ => asked.keys,
                };
                return (table, asked.config.layout.row_f32s(), keys);
            }
        }
    }

    fn truth(&self, key: Key) -> f32 {
        self.truth.get(&key).copied().unwrap_or(0.0)
    }

    fn fill(&mut self, slot: Slot, value: f32) {
        let row = self.cache.row_mut(slot);
        row.iter_mut()
            .enumerate()
            .for_each(|(i, target)| *target = word(value, i));
    }

    fn lease(&mut self, step: u64) {
        let (table, row_f32s, keys) = self.table(step);
        let count = 1 + self.random(self.batch);
        let asked: Vec<u64> = (0..count)
            .map(|_| self.random(keys) * self.random(keys) / keys)
            .collect();
        let hashes: Vec<u64> = asked.iter().map(|key| mix64(*key)).collect();
        let mut before = vec![Slot::NONE; hashes.len()];
        self.cache.lookup(table, &hashes, &mut before);
        let (mut slots, mut rest) = (vec![Slot::NONE; hashes.len()], Vec::new());
        let width = [0, 1, row_f32s][to_usize(self.random(3))];
        let mut rows = vec![vec![-1.0; width]; hashes.len()];
        let mut targets: Vec<&mut [f32]> = rows.iter_mut().map(Vec::as_mut_slice).collect();
        if width == 0 {
            targets.clear();
        }
        let hits = self
            .cache
            .hit_batch(table, &hashes, &mut slots, &mut targets, &mut rest);
        assert_eq!(slots, before);
        let missing = (0..).zip(&slots).filter(|(_, slot)| **slot == Slot::NONE);
        assert_eq!(rest, missing.map(|(i, _)| i).collect::<Vec<u32>>());
        let mut lease = Lease {
            table,
            rows: BTreeMap::new(),
            pins: 1,
        };
        let (mut newly, mut repeats) = (0, false);
        for ((key, slot), row) in asked.iter().zip(&slots).zip(&rows) {
            if *slot == Slot::NONE {
                continue;
            }
            let value = self.truth((table, *key));
            assert!(is_row(row, value), "table {table}, key {key}: {row:?}");
            repeats |= lease.rows.insert(*key, *slot).is_some();
        }
        for key in lease.rows.keys() {
            let pins = self.pins.entry((table, *key)).or_default();
            newly += usize::from(*pins == 0);
            *pins += 1;
        }
        assert_eq!((hits.newly_pinned, hits.repeats), (newly, repeats));
        self.seen.repeats += usize::from(repeats);
        let missing: BTreeSet<u64> = rest.iter().map(|i| asked[*i as usize]).collect();
        let missing: Vec<u64> = missing.into_iter().collect();
        self.bring(table, &missing, &mut lease);
        self.leases.push(lease);
    }

    /// Rows that are not in memory come into it, as many as have room.
    fn bring(&mut self, table: usize, keys: &[u64], lease: &mut Lease) {
        let mut can = self.cache.reclaim(table, keys.len());
        if can < keys.len() {
            self.flush(self.batch);
            self.report(true);
            can = self.cache.reclaim(table, keys.len());
        }
        self.seen.short += usize::from(can < keys.len());
        for key in keys.iter().take(can) {
            let stored = self.ssd.rows.get(&(table, *key)).copied();
            let flags = match stored {
                Some(_) => Flags::NONE,
                None if self.one_in(2) => Flags::ABSENT | Flags::UNFILLED,
                None => Flags::ABSENT,
            };
            let reads = stored.is_some() && self.one_in(4);
            let flags = if reads { flags | Flags::LOADING } else { flags };
            let class = u8::try_from(self.random(16)).unwrap();
            let Some(slot) = self.cache.insert(table, mix64(*key), flags, class) else {
                // The hash table grew by more than the rows that came.
                self.seen.less += 1;
                break;
            };
            self.cache.pin(&[slot]);
            if reads {
                self.cache.clear(slot, Flags::LOADING);
                if self.one_in(10) {
                    self.cache.set(slot, Flags::FAILED);
                    assert_eq!(self.cache.unpin(&[slot]), 1);
                    continue;
                }
            }
            if !self.cache.flags(slot).any(Flags::UNFILLED) {
                self.fill(slot, stored.unwrap_or(0.0));
            }
            self.check_row(table, *key, slot);
            self.pins.insert((table, *key), 1);
            lease.rows.insert(*key, slot);
        }
        self.cache.forget_left();
    }

    fn check_row(&self, table: usize, key: u64, slot: Slot) {
        let value = self.truth((table, key));
        if self.cache.flags(slot).any(Flags::UNFILLED) {
            assert_eq!(
                value, 0.0,
                "table {table}, key {key}: only what was never pushed"
            );
            return;
        }
        let row = self.cache.row(slot);
        assert!(
            is_row(row, value),
            "table {table}, key {key}: {value}, {row:?}"
        );
    }

    /// The slots of a lease, which are those that it got.
    fn slots_of(&self, lease: &Lease) -> Vec<Slot> {
        let hashes: Vec<u64> = lease.rows.keys().map(|key| mix64(*key)).collect();
        let mut slots = vec![Slot::NONE; hashes.len()];
        self.cache.lookup(lease.table, &hashes, &mut slots);
        assert!(
            slots.iter().eq(lease.rows.values()),
            "a pinned row keeps its slot"
        );
        for (key, slot) in &lease.rows {
            self.check_row(lease.table, *key, *slot);
            assert_eq!(self.cache.pins(*slot), self.pins[&(lease.table, *key)]);
        }
        slots
    }

    fn pin_again(&mut self) {
        let Some(mut lease) = self.leases.pop() else {
            return;
        };
        let slots = self.slots_of(&lease);
        for _ in 0..1 + self.random(20) {
            assert_eq!(self.cache.pin(&slots), 0);
            lease.pins += 1;
            for key in lease.rows.keys() {
                *self.pins.entry((lease.table, *key)).or_default() += 1;
            }
        }
        self.seen.many_pins += usize::from(lease.pins > 16);
        self.leases.push(lease);
    }

    pub fn drop_lease(&mut self) {
        if self.leases.is_empty() {
            return;
        }
        let at = to_usize(self.random(self.leases.len() as u64));
        let lease = self.leases.swap_remove(at);
        let slots = self.slots_of(&lease);
        for _ in 0..lease.pins {
            let mut free = 0;
            for key in lease.rows.keys() {
                let pins = self.pins.get_mut(&(lease.table, *key)).unwrap();
                *pins -= 1;
                free += usize::from(*pins == 0);
            }
            assert_eq!(self.cache.unpin(&slots), free);
        }
        self.pins.retain(|_, pins| *pins > 0);
    }

    fn push(&mut self, remove: bool) {
        let Some(lease) = self.leases.pop() else {
            return;
        };
        let slots = self.slots_of(&lease);
        let mut asked = slots.clone();
        if self.one_in(3) {
            asked.extend(slots.iter().take(2));
        }
        let overwritten = self.one_in(2);
        let unfilled = |world: &World| {
            let flags = slots.iter().map(|slot| world.cache.flags(*slot));
            flags.filter(|flags| flags.any(Flags::UNFILLED)).count()
        };
        self.seen.unfilled += unfilled(self);
        for tries in 0.. {
            let frozen = self.ssd.frozen();
            let before = self.cache.frozen_copies();
            let done = match overwritten {
                true => (self.cache).begin_overwrite(&asked, self.interval, frozen),
                false => self.cache.begin_write(&asked, self.interval, frozen),
            };
            self.seen.copies += self.cache.frozen_copies() - before;
            if done.is_ok() {
                break;
            }
            // No room for copies: only the drain makes some.
            assert!(frozen.is_some() && tries < 10_000);
            assert_eq!(self.cache.frozen_copies(), before);
            self.report(true);
            self.checkpoint_step();
        }
        assert_eq!(unfilled(self), 0, "what is written has content");
        for (key, slot) in &lease.rows {
            self.version = (self.version + 1.0) % 4_000_000.0;
            let key = (lease.table, *key);
            if !overwritten {
                // As it was before.
                self.check_row(lease.table, key.1, *slot);
            }
            if remove {
                // No content either: what lies there is anybody's.
                self.fill(*slot, self.version);
                self.cache.set(*slot, Flags::REMOVED | Flags::UNFILLED);
                self.truth.remove(&key);
            } else {
                self.truth.insert(key, self.version);
                self.fill(*slot, self.version);
            }
        }
        self.leases.push(lease);
    }

    fn copy_out(&mut self, victims: &[Victim]) {
        for victim in victims {
            let Some(asked) = &self.tables[victim.table()] else {
                continue;
            };
            let mut row = vec![0.0; asked.config.layout.row_f32s()];
            if let Some(taken) = self
                .cache
                .copy_out(victim, self.ssd.interval_max(), &mut row)
            {
                assert!(is_row(&row, row[0]), "table {}: {row:?}", victim.table());
                self.ssd.flying.push((*victim, taken, row[0]));
            }
        }
    }

    fn flush(&mut self, rows: u64) {
        let chosen = std::mem::take(&mut self.chosen);
        self.copy_out(&chosen);
        let bytes = if self.one_in(2) { u64::MAX } else { 4096 };
        let rows = to_usize(rows);
        let mut victims = Vec::new();
        self.cache.take_victims(
            FlushStep { rows, bytes },
            self.ssd.interval_max(),
            &mut victims,
        );
        assert!(victims.len() <= rows.min(self.cache.dirty()));
        assert!(victims.iter().all(|x| self.cache.pins(x.slot) == 0));
        let distinct: BTreeSet<Slot> = victims.iter().map(|x| x.slot).collect();
        assert_eq!(distinct.len(), victims.len());
        if self.one_in(3) {
            // Anything may happen before they are copied out.
            self.chosen = victims;
        } else {
            self.copy_out(&victims);
        }
    }

    pub fn report(&mut self, ok: bool) {
        if self.ssd.report(&mut self.cache, ok) {
            self.seen.lost += 1;
            self.give_up();
        }
    }

    fn give_up(&mut self) {
        self.ssd.cut = None;
        self.cache.discard_frozen();
        self.cache.hold_numbers(false);
        assert_eq!(self.cache.frozen_copies(), 0);
    }

    fn checkpoint_step(&mut self) {
        if !self.ssd.flying.is_empty() {
            return;
        }
        if self.ssd.cut.is_none() {
            // Intervals without any change in this cache.
            self.interval += [0, 0, 99, 999][to_usize(self.random(4))];
            self.ssd.begin_cut(self.interval, &self.truth);
            self.cache.hold_numbers(true);
            self.interval += 1;
        }
        let want = step(to_usize(self.batch));
        if let Some(victims) = self.ssd.drain(&mut self.cache, want) {
            self.copy_out(&victims);
            return;
        }
        self.cache.hold_numbers(false);
        self.seen.cuts += 1;
    }

    /// Drops a table, and makes another.
    fn drop_table(&mut self, step: u64) {
        let (table, row_f32s, _) = self.table(step);
        while self.leases.iter().any(|lease| lease.table == table) {
            self.drop_lease();
        }
        self.report(true);
        let gone = table;
        for map in [&mut self.truth, &mut self.ssd.rows] {
            map.retain(|(table, _), _| *table != gone);
        }
        if let Some(cut) = &mut self.ssd.cut {
            cut.truth.retain(|(table, _), _| *table != gone);
        }
        self.cache.drop_rows(table);
        let keys = self.tables[table].take().map_or(1, |asked| asked.keys);
        assert_eq!(self.cache.frozen_of(table) + self.cache.held_of(table), 0);
        let policy = ALL[to_usize(self.random(4))];
        self.add_table(row_f32s, policy, keys);
    }

    fn set_table(&mut self, step: u64) {
        let (table, row_f32s, _) = self.table(step);
        let policy = ALL[to_usize(self.random(4))];
        // What is kept for good must not fill the cache.
        let mean = self.cache.capacity(table) / 8;
        let many = self.cache.rows.tables[table].counts.used > mean;
        let policy = match policy {
            PolicyKind::PinAll if many => PolicyKind::Fifo,
            policy => policy,
        };
        let config = self.config(row_f32s, policy);
        self.cache.set_table(table, &config);
        if let Some(asked) = &mut self.tables[table] {
            asked.config = config;
        }
    }

    fn set_bytes(&mut self, base: u64) {
        let bytes = base / 2 + self.random(base * 3 / 2);
        self.cache.set_bytes(bytes).unwrap();
        shrink(&mut self.cache);
    }

    fn reclaim(&mut self, step: u64) {
        let (table, ..) = self.table(step);
        let most = self.cache.capacity(table) as u64;
        let want = match self.random(4) {
            0 => usize::MAX,
            _ => to_usize(self.random(2 * most + 1)),
        };
        let can = self.cache.reclaim(table, want);
        assert!(
            can >= want || self.cache.evictable() == 0,
            "{can} of {want}"
        );
    }

    /// Looks at every row.
    pub fn check(&mut self) {
        self.cache.check();
        for (table, asked) in self.tables.iter().enumerate() {
            let Some(asked) = asked else { continue };
            let hashes: Vec<u64> = (0..asked.keys).map(mix64).collect();
            let mut slots = vec![Slot::NONE; hashes.len()];
            self.cache.lookup(table, &hashes, &mut slots);
            for (key, slot) in (0..).zip(slots) {
                if slot != Slot::NONE {
                    self.check_row(table, key, slot);
                } else {
                    let stored = self.ssd.rows.get(&(table, key)).copied();
                    let pushed = self.truth.get(&(table, key)).copied();
                    assert_eq!(pushed, stored, "no row is lost");
                }
            }
        }
        if self.cache.has_too_much() && !self.tables.is_empty() {
            self.cache.reclaim(0, 0);
            assert!(!self.cache.has_too_much() || self.cache.evictable() == 0);
        }
    }

    pub fn step(&mut self, step: u64, base: u64) {
        let touched = self.cache.rows.states.touched();
        match self.random(64) {
            0..20 => self.lease(step),
            20..33 => self.drop_lease(),
            33..41 => self.push(false),
            41..43 => self.push(true),
            43..49 => {
                let rows = self.random(2 * self.batch);
                self.flush(rows);
            }
            49 | 50 => {
                let ok = self.random(4) > 0;
                self.report(ok);
            }
            51 | 52 => self.report(true),
            53..58 => self.checkpoint_step(),
            58 => self.pin_again(),
            59 | 60 => self.reclaim(step),
            61 if self.one_in(4) => self.drop_table(step),
            61 => self.set_table(step),
            62 if self.one_in(3) => self.set_bytes(base),
            _ if self.one_in(8) && self.ssd.flying.is_empty() => self.give_up(),
            _ => self.drop_lease(),
        }
        while self.leases.len() > 6 {
            self.drop_lease();
        }
        self.seen.trims += usize::from(self.cache.rows.states.touched() < touched);
    }
}
