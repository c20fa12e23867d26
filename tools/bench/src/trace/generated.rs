//! Traces that are made, not recorded: zipf over one table, with or without drift.

use anyhow::Result;

use super::accesses::{Accesses, Builder, TraceTable};
use crate::keys::{Distribution, Draw, Order, load_order};

/// One of so many of the hot rows changes places in a drift.
const DRIFT_SHARE: u64 = 10;

/// What a trace is made from.
#[derive(Clone, Copy, Debug)]
pub struct Generated {
    /// Exponent of the key distribution; 0: uniform.
    pub zipf: f64,
    /// Keys, and bytes of their rows.
    pub table: TraceTable,
    /// Batches.
    pub batches: usize,
    /// Samples of a batch, before duplicates are taken out.
    pub samples: usize,
    /// Whether all rows are loaded first.
    pub load: bool,
    /// Batches between two drifts, and how many of the most frequent rows drift; none: they stay.
    pub drift: Option<(usize, u64)>,
    /// Seed of keys and draws.
    pub seed: u64,
}

impl Generated {
    /// Draws the batches; `each` is called after every one.
    ///
    /// # Errors
    /// More rows than the system has memory for.
    pub fn accesses(&self, mut each: impl FnMut()) -> Result<Accesses> {
        let mut builder = Builder::dense(&[self.table])?;
        let mut end_batch = |builder: &mut Builder| {
            builder.end_batch();
            each();
        };
        if self.load {
            for keys in load_order(self.table.keys, self.seed, self.samples) {
                builder.add(0, &keys)?;
                end_batch(&mut builder);
            }
            builder.end_load();
        }
        let distribution = Distribution::from_theta(self.zipf);
        let mut draw = Draw::new(self.table.keys, distribution, self.seed, 1);
        let mut places = self.drift.map(|_| Places::new(self.table.keys, self.seed));
        let mut keys = Vec::new();
        for batch in 0..self.batches {
            if let (Some((every, hot)), Some(places)) = (self.drift, &mut places) {
                if batch > 0 && batch.is_multiple_of(every) {
                    places.drift(hot);
                }
                places.fill(&mut draw, self.samples, &mut keys)?;
            } else {
                draw.fill(self.samples, Order::Sorted, &mut keys);
            }
            builder.add(0, &keys)?;
            end_batch(&mut builder);
        }
        Ok(builder.done())
    }
}

/// Which key has which rank, by now.
struct Places {
    keys: Vec<u64>,
    moves: Draw,
}

impl Places {
    fn new(keys: u64, seed: u64) -> Places {
        Places {
            keys: load_order(keys, seed ^ 0xd1f7, 1 << 20).flatten().collect(),
            moves: Draw::new(keys, Distribution::Uniform, seed, 2),
        }
    }

    /// A tenth of the `hot` most frequent rows, drawn at random, change places with any others.
    fn drift(&mut self, hot: u64) {
        let all = self.keys.len() as u64;
        let hot = hot.min(all);
        for _ in 0..hot / DRIFT_SHARE {
            // A rank below `all`, brought below `hot`.
            let from = u128::from(self.moves.rank()) * u128::from(hot) / u128::from(all);
            let from = usize::try_from(from).unwrap_or(0);
            let to = usize::try_from(self.moves.rank()).unwrap_or(0);
            self.keys.swap(from, to);
        }
    }

    fn fill(&self, draw: &mut Draw, samples: usize, keys: &mut Vec<u64>) -> Result<()> {
        keys.clear();
        for _ in 0..samples {
            keys.push(self.keys[usize::try_from(draw.rank())?]);
        }
        keys.sort_unstable();
        keys.dedup();
        Ok(())
    }
}
