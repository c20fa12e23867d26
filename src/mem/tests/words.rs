//! Is every row found? The hash table, alone and in a cache, against a map.

use super::*;
use crate::mem::arena::Place;
use crate::mem::row_state::{RowState, States};
use crate::mem::words::Words;

struct Model {
    words: Words,
    states: States,
    rows: BTreeMap<(usize, u64), Slot>,
    seed: u64,
}

impl Model {
    fn random(&mut self, below: u64) -> u64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix64(self.seed) % below
    }

    /// Hashes at random, some that follow one another, and some whose tags are alike.
    fn hash(&mut self) -> u64 {
        let number = self.random(6000);
        match number % 4 {
            0 => mix64(number),
            1 => number,
            2 => (number << 20) | 7,
            _ => hash_of_tag(number % 5, number),
        }
    }

    fn step(&mut self) {
        let key = (to_usize(self.random(3)), self.hash());
        if let Some(slot) = self.rows.remove(&key) {
            self.words.remove(key.0, key.1, slot);
            *self.states.get_mut(slot) = RowState::default();
            self.states.free(slot);
        } else {
            let slot = self.states.take();
            *self.states.get_mut(slot) = RowState::new(key.0, key.1, Place::NONE, Flags::USED);
            self.words.insert(key.0, key.1, slot);
            self.rows.insert(key, slot);
        }
    }

    fn check(&self) {
        self.words.check();
        for ((table, hash), slot) in &self.rows {
            assert_eq!(self.words.get(&self.states, *table, *hash), *slot);
            let other = self.words.get(&self.states, table + 3, *hash);
            assert_eq!(other, Slot::NONE);
        }
        for table in 0..3 {
            let of_table = self.rows.iter().filter(|((of, _), _)| *of == table);
            let (mut hashes, mut slots): (Vec<u64>, Vec<Slot>) =
                of_table.map(|((_, hash), slot)| (*hash, *slot)).unzip();
            hashes.extend(10_000..10_050);
            slots.extend([Slot::NONE; 50]);
            let mut found = vec![Slot::default(); hashes.len()];
            self.words
                .get_batch(&self.states, table, &hashes, &mut found);
            assert_eq!(found, slots);
        }
    }
}

#[test]
fn a_table_that_gets_larger_or_smaller_keeps_every_word() {
    for seed in 0..4 {
        let mut model = Model {
            words: Words::new(),
            states: States::default(),
            rows: BTreeMap::new(),
            seed: mix64(seed),
        };
        for round in 0..60 {
            let room = match round % 5 {
                0 => model.rows.len(),
                // Less than there are, too.
                1 => to_usize(model.random(1 + model.rows.len() as u64)),
                _ => model.rows.len() + to_usize(model.random(5000)),
            };
            model.words.set_room(room);
            assert_eq!(model.words.room(), room);
            model.check();
            let steps = model.random(400);
            (0..steps).for_each(|_| model.step());
            model.check();
        }
        while let Some(((table, hash), slot)) = model.rows.pop_first() {
            model.words.remove(table, hash, slot);
        }
        model.words.set_room(0);
        model.check();
        assert_eq!(model.words.bytes(), Words::bytes_for(0));
    }
}

#[test]
fn many_rows_are_found_after_many_removals() {
    let mut cache = cache(5000, PolicyKind::Bilevel);
    let mut model = BTreeMap::new();
    for step in 0..40_000u64 {
        let key = mix64(step) % 9000;
        // Consecutive hashes as well as mixed ones.
        let hash = if key.is_multiple_of(2) {
            mix64(key)
        } else {
            key
        };
        if let Some(slot) = model.remove(&hash) {
            cache.remove(slot);
        } else if model.len() < 5000 {
            model.insert(hash, cache.insert(0, hash, Flags::NONE, 0).unwrap());
        }
    }
    let hashes: Vec<u64> = (0..9000).flat_map(|key| [key, mix64(key)]).collect();
    let mut slots = vec![Slot::default(); hashes.len()];
    cache.lookup(0, &hashes, &mut slots);
    for (hash, slot) in hashes.iter().zip(slots) {
        assert_eq!(slot, model.get(hash).copied().unwrap_or(Slot::NONE));
    }
    cache.check();
}

/// A hash that somebody chose: of the first table, with this tag.
fn hash_of_tag(tag: u64, low: u64) -> u64 {
    // The inverse of the spreading factor, by Newton's method.
    let spread = 0x9e37_79b9_7f4a_7c15u64;
    let inverse = (0..6).fold(spread, |x, _| {
        x.wrapping_mul(2u64.wrapping_sub(spread.wrapping_mul(x)))
    });
    let spread_back = (tag << 32 | low).wrapping_mul(inverse);
    spread_back ^ (spread_back >> 32)
}

/// All words have one tag, and one home.
#[test]
fn rows_whose_words_are_alike_are_told_apart() {
    let hash = |low| hash_of_tag(7, low);
    // Words that find no place near their home take memory of rows.
    let mut cache = cache(1600, PolicyKind::Bilevel);
    let mut slots = BTreeMap::new();
    for low in 0..1500 {
        slots.insert(low, cache.insert(0, hash(low), Flags::NONE, 0).unwrap());
    }
    for low in (0..1500).step_by(3) {
        cache.remove(slots.remove(&low).unwrap());
    }
    let hashes: Vec<u64> = (0..1500).map(hash).collect();
    let mut found = vec![Slot::NONE; hashes.len()];
    cache.lookup(0, &hashes, &mut found);
    for (low, slot) in (0..).zip(found) {
        assert_eq!(slot, slots.get(&low).copied().unwrap_or(Slot::NONE));
    }
    cache.check();
}
