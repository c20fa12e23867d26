//! The ceiling of work in memory: a hash map from key to a slot in one vector of rows.
//!
//! - Two halves of the key space, each with its own map and rows, so that two threads need no lock.
//! - A pull remembers the slots; a push does not look keys up again.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use anyhow::{Context, Result, ensure};
use hps::row::{RowVisitor, Updater};

use super::{DIM, Engine, LEARNING_RATE, Place, Pulled, ROW, both, updater};

/// A multiplication whose two halves are mixed: the cheapest hash that spreads both ends.
#[derive(Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, key: u64) {
        let product = u128::from(self.0 ^ key) * 0x9e37_79b9_7f4a_7c15;
        let [low, high] = [product, product >> 64].map(|x| x & u128::from(u64::MAX));
        self.0 = u64::try_from(low ^ high).unwrap_or(0);
    }
}

/// One half of the keys.
struct Half {
    slots: HashMap<u64, u32, BuildHasherDefault<KeyHasher>>,
    rows: Vec<f32>,
    pulled: Vec<u32>,
}

struct Visit<'a> {
    rows: &'a mut [f32],
    slots: std::slice::Iter<'a, u32>,
    gradients: std::slice::ChunksExact<'a, f32>,
}

impl RowVisitor for Visit<'_> {
    fn next(&mut self) -> Option<(&mut [f32], &[f32])> {
        let at = *self.slots.next()? as usize * ROW;
        Some((&mut self.rows[at..at + ROW], self.gradients.next()?))
    }
}

impl Half {
    fn new(rows: usize) -> Half {
        Half {
            slots: HashMap::with_capacity_and_hasher(rows, BuildHasherDefault::default()),
            rows: Vec::with_capacity(rows * ROW),
            pulled: Vec::new(),
        }
    }

    fn load(&mut self, keys: &[u64], rows: &[f32]) -> Result<()> {
        for (key, row) in keys.iter().zip(rows.chunks_exact(ROW)) {
            let next = u32::try_from(self.slots.len())?;
            let at = *self.slots.entry(*key).or_insert(next) as usize * ROW;
            if at == self.rows.len() {
                self.rows.extend_from_slice(row);
            } else {
                self.rows[at..at + ROW].copy_from_slice(row);
            }
        }
        Ok(())
    }

    fn pull(&mut self, keys: &[u64], out: &mut [f32]) -> Result<()> {
        self.pulled.clear();
        for (key, out) in keys.iter().zip(out.chunks_exact_mut(DIM)) {
            let slot = *self.slots.get(key).context("a key that was not loaded")?;
            let at = slot as usize * ROW;
            out.copy_from_slice(&self.rows[at..at + DIM]);
            self.pulled.push(slot);
        }
        Ok(())
    }

    fn push(&mut self, updater: &Updater, gradients: &[f32]) -> Result<()> {
        let mut visit = Visit {
            rows: &mut self.rows,
            slots: self.pulled.iter(),
            gradients: gradients.chunks_exact(DIM),
        };
        updater.apply_all(LEARNING_RATE, &mut visit);
        Ok(())
    }
}

/// The hash map.
pub struct Map {
    halves: [Half; 2],
    boundary: u64,
    updater: Updater,
    pulled: Pulled,
}

impl Map {
    /// An empty map with room for all rows.
    #[must_use]
    pub fn new(place: &Place) -> Map {
        let boundary = place.rows / 2;
        let rows = |n: u64| usize::try_from(n).unwrap_or(0);
        Map {
            halves: [rows(boundary), rows(place.rows - boundary)].map(Half::new),
            boundary,
            updater: updater(),
            pulled: Pulled::default(),
        }
    }

    /// How many keys of a batch are in the first half.
    fn split(&self, keys: &[u64]) -> usize {
        keys.partition_point(|key| *key < self.boundary)
    }
}

impl Engine for Map {
    fn load(&mut self, keys: &[u64], rows: &[f32]) -> Result<()> {
        let n = self.split(keys);
        let [first, second] = &mut self.halves;
        both(
            || first.load(&keys[..n], &rows[..n * ROW]),
            || second.load(&keys[n..], &rows[n * ROW..]),
        )
    }

    fn pull(&mut self, keys: &[u64], out: &mut [f32]) -> Result<()> {
        let n = self.split(keys);
        self.pulled.set(keys);
        let [first, second] = &mut self.halves;
        let (left, right) = out.split_at_mut(n * DIM);
        both(
            || first.pull(&keys[..n], left),
            || second.pull(&keys[n..], right),
        )
    }

    fn push(&mut self, keys: &[u64], gradients: &[f32]) -> Result<()> {
        self.pulled.check(keys)?;
        ensure!(gradients.len() == keys.len() * DIM, "one gradient a key");
        let n = self.split(keys);
        let [first, second] = &mut self.halves;
        let updater = &self.updater;
        both(
            || first.push(updater, &gradients[..n * DIM]),
            || second.push(updater, &gradients[n * DIM..]),
        )
    }

    /// Nothing is on disk.
    fn checkpoint(&mut self) -> Result<()> {
        Ok(())
    }
}
