//! Do the bytes of the cache follow the table that is hot? 26 tables; midway another one is.
//!
//! - The tables have 3 to 10^6 keys, evenly in the logarithm, dims of 8 to 128 and three optimizers,
//!   so that a row takes 32 to 1 540 bytes. Keys are zipf 0.99 within each table.
//! - The shares of the tables in a batch are zipf 1, too: the hot one has a quarter. From the middle
//!   on they are in another order, and another table is the hot one.
//! - [`split`] and [`climb`] find the best fixed split of the same bytes between the tables; [`run`]
//!   measures a store beside it.

pub mod climb;
pub mod run;
pub mod split;

use anyhow::Result;
use hps::{Optimizer, TableDescriptor};

use crate::keys::{Distribution, Draw, Order, Scramble};
use crate::trace::{Accesses, Builder, TraceTable};

/// Tables.
pub const TABLES: usize = 26;
/// Keys of the smallest table and of the largest.
const KEYS: (f64, f64) = (3.0, 1e6);
const ZIPF: f64 = 0.99;
const DIMS: [usize; 5] = [8, 16, 32, 64, 128];
const OPTIMIZERS: [Optimizer; 3] = [Optimizer::Sgd, Optimizer::Adagrad, Optimizer::Adam];
/// The hot tables of the two halves: 601 000 keys in rows of 512 bytes, 361 000 in rows of 772.
const HOT: [usize; 2] = [24, 23];

/// The tables, and how often each is asked in each half.
#[derive(Clone, Debug)]
pub struct Model {
    /// By table.
    pub descriptors: Vec<TableDescriptor>,
    /// Keys of each table: `0..keys`.
    pub keys: Vec<u64>,
    /// Parts of the accesses, by half and table.
    shares: [Vec<f64>; 2],
    seed: u64,
}

/// The streams of keys of all tables.
#[derive(Debug)]
pub struct Draws(Vec<Draw>);

impl Model {
    /// The tables, each with its keys divided by `divisor` (at least 3).
    #[must_use]
    pub fn new(seed: u64, divisor: u64) -> Model {
        let mut model = Model {
            descriptors: Vec::new(),
            keys: Vec::new(),
            shares: [shares(HOT[0], seed), shares(HOT[1], seed ^ 0x5a)],
            seed,
        };
        for table in 0..TABLES {
            let step = table as f64 / (TABLES - 1) as f64;
            let keys = KEYS.0 * (KEYS.1 / KEYS.0).powf(step);
            let mut descriptor = TableDescriptor::new(&format!("table-{table}"), DIMS[table % 5]);
            descriptor.optimizer = OPTIMIZERS[table % 3];
            model.descriptors.push(descriptor);
            model
                .keys
                .push((crate::keys::whole(keys.round()) / divisor).max(3));
        }
        model
    }

    /// Bytes of all rows.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let rows = self.keys.iter().zip(&self.descriptors);
        rows.map(|(keys, d)| keys * d.row_bytes() as u64).sum()
    }

    /// The streams of keys, from their start.
    #[must_use]
    pub fn draws(&self) -> Draws {
        let zipf = Distribution::from_theta(ZIPF);
        let tables = (0u64..).zip(&self.keys);
        Draws(
            tables
                .map(|(t, keys)| Draw::new(*keys, zipf, self.seed ^ t << 8, t))
                .collect(),
        )
    }

    /// The next batch: unique keys of each table, at least one.
    pub fn batch(&self, draws: &mut Draws, half: usize, samples: usize) -> Vec<Vec<u64>> {
        let tables = draws.0.iter_mut().zip(&self.shares[half]);
        let part = |(draw, share): (&mut Draw, &f64)| {
            let samples = crate::keys::whole((samples as f64 * share).ceil());
            draw.batch(usize::try_from(samples).unwrap_or(1), Order::Sorted)
        };
        tables.map(part).collect()
    }

    /// All tables as those of a trace.
    #[must_use]
    pub fn tables(&self) -> Vec<TraceTable> {
        let tables = self.keys.iter().zip(&self.descriptors);
        let table = |(keys, d): (&u64, &TableDescriptor)| TraceTable {
            keys: *keys,
            row_bytes: u32::try_from(d.row_bytes()).unwrap_or(u32::MAX),
        };
        tables.map(table).collect()
    }

    /// All batches in one trace; `each` is called after every one.
    ///
    /// # Errors
    /// More rows than a trace can have.
    pub fn accesses(
        &self,
        batches: usize,
        samples: usize,
        mut each: impl FnMut(),
    ) -> Result<Accesses> {
        let mut draws = self.draws();
        let batch = |batch| {
            each();
            self.batch(&mut draws, usize::from(batch >= batches / 2), samples)
        };
        Accesses::from_tables(&self.tables(), (0..batches).map(batch))
    }

    /// The same with a trace for each table.
    ///
    /// # Errors
    /// More rows than a trace can have.
    pub fn accesses_by_table(&self, batches: usize, samples: usize) -> Result<Vec<Accesses>> {
        let builders = self
            .tables()
            .into_iter()
            .map(|table| Builder::dense(&[table]));
        let mut builders = builders.collect::<Result<Vec<Builder>>>()?;
        let mut draws = self.draws();
        for batch in 0..batches {
            let half = usize::from(batch >= batches / 2);
            let parts = self.batch(&mut draws, half, samples);
            for (builder, keys) in builders.iter_mut().zip(&parts) {
                builder.add(0, keys)?;
                builder.end_batch();
            }
        }
        Ok(builders.into_iter().map(Builder::done).collect())
    }
}

/// Zipf shares in an order of the seed's, but for the table that has the greatest.
fn shares(hot: usize, seed: u64) -> Vec<f64> {
    let order = Scramble::new(TABLES as u64, seed);
    let rank = |table: usize| order.key(table as u64);
    let mut ranks: Vec<u64> = (0..TABLES).map(rank).collect();
    if let Some(first) = ranks.iter().position(|rank| *rank == 0) {
        ranks.swap(first, hot);
    }
    let sum: f64 = (1..=TABLES).map(|rank| 1.0 / rank as f64).sum();
    ranks
        .iter()
        .map(|rank| 1.0 / (rank + 1) as f64 / sum)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hot_table_has_a_quarter_of_a_half_and_less_of_the_other() {
        let model = Model::new(1, 1);
        assert_eq!((model.keys[0], model.keys[25]), (3, 1_000_000));
        assert!(model.keys.is_sorted());
        for half in 0..2 {
            let shares = &model.shares[half];
            assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
            assert!(shares[HOT[half]] > 0.25 && shares[HOT[1 - half]] < 0.14);
        }
        let sizes: Vec<usize> = model.descriptors.iter().map(|d| d.row_bytes()).collect();
        assert_eq!(
            (sizes.iter().min(), sizes.iter().max()),
            (Some(&32), Some(&1540))
        );
    }

    #[test]
    fn a_trace_of_all_tables_holds_those_of_each() {
        let model = Model::new(3, 1000);
        let all = model.accesses(10, 500, || {}).unwrap();
        let each = model.accesses_by_table(10, 500).unwrap();
        for batch in 0..10 {
            let apart: usize = each.iter().map(|a| a.batch(batch).len()).sum();
            assert_eq!(all.batch(batch).len(), apart);
            assert!(each.iter().all(|a| !a.batch(batch).is_empty()));
        }
        let distinct: usize = each.iter().map(Accesses::distinct).sum();
        assert_eq!(all.distinct(), distinct);
    }
}
