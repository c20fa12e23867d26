//! What does the table in plain Rust cost? Its get beside a bare gather of the same rows, its planning of a
//! batch beside a sort of the same keys.
//!
//! - One thread. In each round both sides run on the same keys, in turns; of a round each side's best time
//!   counts, of all rounds the median of the ratios.
//! - The bare gather knows the places of the rows and fetches ahead at the best distance.
//! - Planning is all that an accumulate does before it changes rows: look-up and order. Where a gradient that
//!   is not finite refuses the call all gradients are looked at, too; that is told apart.

use std::time::Instant;

use anyhow::Result;
use hps::hbm::{
    Buffer, CpuTable, Gradients, HbmOptions, HbmTable, Index, Kind, Memory, Stream, Values,
};
use hps::{NonFinite, TableDescriptor};
use serde_json::{Value, json};

use super::args::{HbmArgs, Operation};
use super::work::{insert_all, key_of, shuffled};
use crate::figures::Spread;
use crate::limits::memory::BareRows;

const TRAIN: Stream = Stream::Train;
/// Rounds, and runs of each side in a round.
const ROUNDS: usize = 9;
const RUNS: usize = 5;

/// One comparison.
#[derive(Clone, Debug)]
pub struct HostCost {
    name: &'static str,
    what: &'static str,
    dim: usize,
    rows: usize,
    keys: usize,
    /// Medians over the rounds, of ours and of what it is compared with.
    seconds: f64,
    other_seconds: f64,
    /// The median of the rounds' ratios, and its bar.
    ratio: f64,
    bar: &'static str,
}

impl HostCost {
    /// For people.
    #[must_use]
    pub fn line(&self) -> String {
        format!(
            "{:<26} dim {:>4} {:>9} of {:>10} rows {:>9.1} us {:>9.1} us  {:>5.2} {} (bar: {})",
            self.name,
            self.dim,
            self.keys,
            self.rows,
            self.seconds * 1e6,
            self.other_seconds * 1e6,
            self.ratio,
            self.what,
            self.bar
        )
    }

    /// For machines.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({
            "workload": self.name,
            "dim": self.dim,
            "rows": self.rows,
            "keys": self.keys,
            "seconds": self.seconds,
            "other_seconds": self.other_seconds,
            "compared": self.what,
            "ratio": self.ratio,
        })
    }
}

/// A table whose rows all have keys, and the keys of each round.
struct Host {
    table: CpuTable,
    keys: Buffer,
    out: Buffer,
    dim: usize,
    rows: usize,
    /// Row numbers of each round's keys.
    rounds: Vec<Vec<u32>>,
}

/// The costs that belong to the operations.
///
/// # Errors
/// Too little memory.
pub fn run(args: &HbmArgs, dim: usize, operations: &[Operation]) -> Result<Vec<HostCost>> {
    let mut costs = Vec::new();
    if operations.contains(&Operation::Get) {
        costs.push(Host::new(args, dim, NonFinite::Apply)?.get()?);
    }
    if operations.contains(&Operation::Accumulate) {
        for (non_finite, name, bar) in [
            (NonFinite::Apply, "planning", "<= 2"),
            (NonFinite::Reject, "planning, refusing", "none"),
        ] {
            costs.push(Host::new(args, dim, non_finite)?.plan(name, bar)?);
        }
    }
    Ok(costs)
}

/// The shortest time of some runs.
fn best(runs: usize, mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut found = f64::INFINITY;
    for _ in 0..runs {
        let since = Instant::now();
        run()?;
        found = found.min(since.elapsed().as_secs_f64());
    }
    Ok(found)
}

impl Host {
    fn new(args: &HbmArgs, dim: usize, non_finite: NonFinite) -> Result<Host> {
        let descriptor = TableDescriptor::new("host", dim);
        let rows = (args.bytes() / (8 * dim)).max(64);
        let n = args.batch().min(rows / 2);
        let options = HbmOptions::new(rows)
            .batch_keys_max(n)
            .non_finite(non_finite);
        let mut table = CpuTable::new(&descriptor, &options)?;
        let keys = table.allocate(Memory::Device, Kind::Keys, n)?;
        let numbers = table.allocate(Memory::Device, Kind::Words, n)?;
        let failed = table.allocate(Memory::Device, Kind::Keys, 1)?;
        let out = table.allocate(Memory::Device, Kind::Floats, n * dim)?;
        let order = shuffled(rows)?;
        insert_all(&mut table, Index::First, &order, (keys, numbers, failed))?;
        let rounds = (0..ROUNDS).map(|round| {
            let rows = order.iter().cycle().skip(round * n % rows);
            rows.take(n).copied().collect()
        });
        Ok(Host {
            rounds: rounds.collect(),
            table,
            keys,
            out,
            dim,
            rows,
        })
    }

    fn write(&mut self, round: usize) -> Result<Vec<u64>> {
        let rows = &self.rounds[round];
        let keys: Vec<u64> = rows.iter().map(|row| key_of(*row)).collect();
        self.table.write(TRAIN, self.keys, 0, Values::Keys(&keys))?;
        Ok(keys)
    }

    fn get(&mut self) -> Result<HostCost> {
        let bare = BareRows::new(self.rows, 2 * self.dim, self.dim)?;
        let mut pairs = Vec::new();
        for round in 0..ROUNDS {
            let n = self.write(round)?.len();
            let places = self.rounds[round].iter().map(|row| u64::from(*row));
            let rate = bare.gather(&[places.collect()], 1)?;
            let (table, keys, out) = (&mut self.table, self.keys, self.out);
            let ours = best(RUNS, || Ok(table.get(TRAIN, Index::First, keys, n, out)?))?;
            pairs.push((ours, n as f64 / rate.per_second));
        }
        self.table.wait(TRAIN)?;
        let of = |(ours, other): &(f64, f64)| other / ours;
        let name = "hbm-get, host";
        Ok(self.cost((name, "of the bare gather", ">= 0.6"), &pairs, of))
    }

    fn plan(&mut self, name: &'static str, bar: &'static str) -> Result<HostCost> {
        let mut pairs = Vec::new();
        for round in 0..ROUNDS {
            let keys = self.write(round)?;
            let mut sorted = keys.clone();
            let mut sort = f64::INFINITY;
            for _ in 0..RUNS {
                sorted.copy_from_slice(&keys);
                sort = sort.min(best(1, || {
                    sorted.sort_unstable();
                    Ok(())
                })?);
            }
            let gradients = Gradients {
                keys: self.keys,
                values: self.out,
                count: keys.len(),
                shows: None,
                clicks: None,
                lr: 0.01,
                step: 1,
            };
            let table = &mut self.table;
            let plan = || Ok(table.plan_alone(TRAIN, Index::First, &gradients)?);
            let ours = best(RUNS, plan)?;
            std::hint::black_box(&sorted);
            pairs.push((ours, sort));
        }
        let of = |(ours, other): &(f64, f64)| ours / other;
        Ok(self.cost((name, "x sort_unstable of the keys", bar), &pairs, of))
    }

    fn cost(
        &self,
        (name, what, bar): (&'static str, &'static str, &'static str),
        pairs: &[(f64, f64)],
        ratio: impl Fn(&(f64, f64)) -> f64,
    ) -> HostCost {
        let median = |of: &dyn Fn(&(f64, f64)) -> f64| {
            let all: Vec<f64> = pairs.iter().map(of).collect();
            Spread::of(&all).median
        };
        HostCost {
            name,
            what,
            dim: self.dim,
            rows: self.rows,
            keys: self.rounds[0].len(),
            seconds: median(&|pair| pair.0),
            other_seconds: median(&|pair| pair.1),
            ratio: median(&ratio),
            bar,
        }
    }
}
