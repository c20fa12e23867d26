//! What do trainers do that put rows, more of them than the cache holds, beside pushes and removes?
#![expect(
    clippy::unwrap_used,
    reason = "a test that meets what it does not expect must fail"
)]

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::Ordering::SeqCst;

use super::rng::Rng;
use super::trainers::{DIM, Log, Scene, own_key};
use hps::*;

/// The rows of one trainer as they are after each of its changes. Nobody else changes them.
pub struct Book {
    pub log: Log,
    states: Mutex<Vec<BTreeMap<u64, f32>>>,
}

impl Default for Book {
    fn default() -> Book {
        Book {
            log: Log::default(),
            states: Mutex::new(vec![BTreeMap::new()]),
        }
    }
}

impl Book {
    /// The rows after `n` changes.
    pub fn after(&self, n: usize) -> BTreeMap<u64, f32> {
        self.states.lock().unwrap()[n].clone()
    }

    fn now(&self) -> BTreeMap<u64, f32> {
        self.after(self.log.ended.load(SeqCst))
    }

    fn change<T>(
        &self,
        change: impl FnOnce(&mut BTreeMap<u64, f32>),
        make: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let mut rows = self.now();
        change(&mut rows);
        self.states.lock().unwrap().push(rows);
        self.log.begun.fetch_add(1, SeqCst);
        let made = make()?;
        self.log.ended.fetch_add(1, SeqCst);
        Ok(made)
    }
}

/// Puts all of its rows or some, looks at them by leases that are older, pushes to them, forgets some.
pub fn train(scene: &Scene, store: &Store, trainer: usize, book: &Book, seed: u64) -> Result<()> {
    let table = store.table("t")?;
    let mut rng = Rng(seed.rotate_left(32) ^ trainer as u64);
    let all: Vec<u64> = (0..scene.own_keys).map(|i| own_key(trainer, i)).collect();
    for round in 0..scene.rounds {
        let some: Vec<u64> = (0..1 + rng.below(scene.batch_keys))
            .map(|_| all[rng.below(all.len())])
            .collect();
        // Read in or not, when the rows are put.
        let ticket = store.prefetch(table, &some)?;
        let mut keys = match rng.one_in(3) {
            true => all.clone(),
            false => some.clone(),
        };
        keys.push(keys[rng.below(keys.len())]);
        let value = |position: usize| (100 * round + position) as f32;
        let rows: Vec<f32> = (0..keys.len()).flat_map(|p| vec![value(p); DIM]).collect();
        let put = |book: &mut BTreeMap<u64, f32>| {
            let rows = keys.iter().enumerate();
            book.extend(rows.map(|(p, key)| (*key, value(p))));
        };
        if round % 3 == 0 {
            // Left out, all of them: nothing changes.
            let none = vec![f32::NAN; keys.len() * DIM];
            match store.put(table, &keys, PutRows::weights(&none)) {
                Err(Error::OverBudget { .. }) => {}
                report => assert_eq!(report?.rows, 0, "rows without a number"),
            }
        }
        book.change(put, || {
            loop {
                match store.put(table, &keys, PutRows::weights(&rows)) {
                    // Tickets of the other have all the slots of a shard.
                    Err(Error::OverBudget { .. }) => shuttle::thread::yield_now(),
                    result => break result,
                }
            }
        })?;
        match ticket.wait() {
            Ok(lease) => {
                let mut out = vec![0.0; some.len() * DIM];
                lease.read(&mut out)?;
                let known = book.now();
                for (key, row) in some.iter().zip(out.chunks_exact(DIM)) {
                    let expected = known.get(key).copied().unwrap_or(0.0);
                    assert!(row.iter().all(|w| *w == expected), "key {key}: {}", row[0]);
                }
                let ones = vec![1.0; out.len()];
                let push = |rows: &mut BTreeMap<u64, f32>| {
                    some.iter()
                        .for_each(|key| *rows.entry(*key).or_default() += 1.0);
                };
                book.change(push, || store.push(&lease, Update::deltas(&ones)))?;
            }
            Err(Error::OverBudget { .. }) => {}
            Err(error) => return Err(error),
        }
        if rng.one_in(3) {
            let key = all[rng.below(all.len())];
            let forget = |rows: &mut BTreeMap<u64, f32>| _ = rows.remove(&key);
            book.change(forget, || store.remove(table, &[key]))?;
        }
    }
    Ok(())
}

/// A cut has all of a change or nothing, and of each trainer what it had done.
pub fn check_cut(rows: &BTreeMap<u64, f32>, books: &[Book], (before, after): (&[usize], &[usize])) {
    for (trainer, book) in books.iter().enumerate() {
        let own = own_key(trainer, 0)..own_key(trainer + 1, 0);
        let found: BTreeMap<u64, f32> = rows.range(own).map(|(k, v)| (*k, *v)).collect();
        let range = before[trainer]..=after[trainer];
        assert!(
            range.clone().any(|n| book.after(n) == found),
            "trainer {trainer}: none of the states {range:?} is {found:?}"
        );
    }
}
