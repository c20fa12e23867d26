//! However rows of several sizes came and went, the rows of one size get the memory when the others leave.
//!
//! `HPS_CACHE_STEPS` sets how many steps.

use super::*;

const BYTES: u64 = 16 << 20;
/// Words of a row: dimensions, times words of each.
const SIZES: [usize; 6] = [8, 16 * 2, 32 * 3, 64, 100 * 2, 128 * 3];

struct Run {
    cache: Cache,
    /// By number: the row size, and how many keys there were so far; none of a table that was dropped.
    tables: Vec<Option<(usize, u64)>>,
    leases: Vec<(usize, u64, Vec<Slot>)>,
    seed: u64,
    least: f64,
    rows: u64,
    policies: &'static [PolicyKind],
}

impl Run {
    /// What a row takes: its words, its state, its part of the hash table and, where there are queues for all rows,
    /// its number in one.
    fn row_bytes(&self, table: usize) -> u64 {
        let number = if self.policies.len() > 1 { 4 } else { 0 };
        self.tables[table].unwrap().0 as u64 * 4 + 32 + number
    }

    fn random(&mut self, below: u64) -> u64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix64(self.seed) % below
    }

    fn create(&mut self, row_f32s: usize) {
        let policy = self.policies[self.tables.len() % self.policies.len()];
        self.cache.add_table(&table(row_f32s, policy)).unwrap();
        self.tables.push(Some((row_f32s, 0)));
    }

    fn drop_table(&mut self) {
        let there = (0..self.tables.len()).filter(|table| self.tables[*table].is_some());
        let there: Vec<usize> = there.collect();
        let table = there[to_usize(self.random(there.len() as u64))];
        while let Some(at) = self.leases.iter().position(|lease| lease.0 == table) {
            self.unpin(at);
        }
        self.cache.drop_rows(table);
        self.tables[table] = None;
        let row_f32s = SIZES[to_usize(self.random(6))];
        self.create(row_f32s);
    }

    /// Some new rows of a table, pinned.
    fn pull(&mut self, step: u64) {
        // Most are of one table for a time.
        let newest = self.tables.len() as u64;
        let back = match self.random(3) {
            0 => self.random(newest.min(8)),
            _ => step / 3000 % newest.min(8),
        };
        let table = to_usize(newest - 1 - back);
        let count = 1 + self.random(15);
        let Some((row_f32s, first)) = self.tables[table] else {
            return;
        };
        let can = self.cache.reclaim(table, to_usize(count)) as u64;
        let keys = first..first + count.min(can);
        let slots: Vec<Slot> = keys
            .clone()
            .map(|key| {
                let class = u8::try_from(mix64(key) % 8).unwrap();
                let slot = self
                    .cache
                    .insert(table, mix64(key), Flags::NONE, class)
                    .unwrap();
                self.cache.row_mut(slot).fill(key as f32);
                slot
            })
            .collect();
        self.rows += keys.end - keys.start;
        self.tables[table] = Some((row_f32s, keys.end));
        self.cache.pin(&slots);
        self.cache.forget_left();
        self.leases.push((table, first, slots));
    }

    fn unpin(&mut self, at: usize) {
        let (table, first, slots) = self.leases.swap_remove(at);
        let hashes: Vec<u64> = (first..).take(slots.len()).map(mix64).collect();
        let mut found = vec![Slot::NONE; slots.len()];
        self.cache.lookup(table, &hashes, &mut found);
        assert_eq!(found, slots, "pinned rows keep their slots");
        for (key, slot) in (first..).zip(&slots) {
            assert!(self.cache.row(*slot).iter().all(|word| *word == key as f32));
        }
        self.cache.unpin(&slots);
    }

    /// All rows leave that may, for those of one size.
    fn measure(&mut self) {
        let live = (0..self.tables.len()).filter(|table| self.tables[*table].is_some());
        let live: Vec<usize> = live.collect();
        let table = live[to_usize(self.random(live.len() as u64))];
        let held: u64 = live
            .iter()
            .map(|t| self.cache.pinned_of(*t) as u64 * self.row_bytes(*t))
            .sum();
        let rows = self.cache.reclaim(table, usize::MAX) as u64;
        assert_eq!(self.cache.evictable(), 0);
        self.cache.check();
        let share = (rows * self.row_bytes(table) + held) as f64 / BYTES as f64;
        if share < self.least {
            let size = self.tables[table].unwrap().0;
            println!("{rows} rows of {size} f32s beside {held} bytes in use: {share:.4}");
            self.least = share;
        }
        self.check_some();
    }

    /// Finds the rows of a table that are there, and looks at them.
    fn check_some(&mut self) {
        for (table, at) in self.tables.iter().enumerate() {
            let Some((_, end)) = at else { continue };
            let keys: Vec<u64> = (end.saturating_sub(300)..*end).collect();
            let hashes: Vec<u64> = keys.iter().map(|key| mix64(*key)).collect();
            let mut slots = vec![Slot::NONE; keys.len()];
            self.cache.lookup(table, &hashes, &mut slots);
            for (key, slot) in keys
                .iter()
                .zip(slots)
                .filter(|(_, slot)| *slot != Slot::NONE)
            {
                let row = self.cache.row(slot);
                assert!(
                    row.iter().all(|word| *word == *key as f32),
                    "table {table}, key {key}"
                );
            }
        }
    }
}

/// The least share of the memory that rows of one size got.
fn least_share(policies: &'static [PolicyKind]) -> f64 {
    let steps = std::env::var("HPS_CACHE_STEPS").ok();
    let steps: u64 = steps.and_then(|n| n.parse().ok()).unwrap_or(100_000);
    let mut run = Run {
        cache: empty(BYTES),
        tables: Vec::new(),
        leases: Vec::new(),
        seed: 1,
        least: 1.0,
        rows: 0,
        policies,
    };
    SIZES.into_iter().for_each(|row_f32s| run.create(row_f32s));
    let mut measured = 0;
    for step in 0..steps {
        match run.random(100) {
            0..48 => run.pull(step),
            48..92 if !run.leases.is_empty() => {
                let at = to_usize(run.random(run.leases.len() as u64));
                run.unpin(at);
            }
            92 if run.random(20) == 0 => run.drop_table(),
            _ if run.random(150) == 0 => {
                run.measure();
                measured += 1;
            }
            _ => {}
        }
        while run.leases.len() > 60 {
            run.unpin(0);
        }
        if step % 500 == 0 {
            run.cache.check();
            run.check_some();
            let bytes = run.cache.bytes();
            assert!(bytes <= BYTES, "{bytes} of {BYTES}");
        }
    }
    let (rows, least) = (run.rows, run.least);
    println!("{steps} steps, {rows} rows, {measured} times all for one: {least:.4} at least");
    assert!(measured > steps / 4000, "{measured}");
    least
}

#[test]
fn rows_of_one_size_get_the_memory_whatever_was_there_before() {
    let least = least_share(&[PolicyKind::Bilevel]);
    assert!(least >= 0.97, "{least}");
}

/// Where several policies are in use, queues have room for all rows.
#[test]
fn rows_of_one_size_get_most_of_the_memory_under_several_policies() {
    let least = least_share(&[PolicyKind::Bilevel, PolicyKind::Lru, PolicyKind::Fifo]);
    assert!(least >= 0.97, "{least}");
}
