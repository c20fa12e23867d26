//! What does a call for 26 tables cost beside a call for one? `tables-hit`, `tables-cold`.
//!
//! - Two stores have as many rows: one in 26 tables, the other in one. A batch has 1 024 keys of each
//!   table, the other store's has as many keys in all; the limit is the store of one table.
//! - Calls to both alternate within a round, so that what else the machine does is both's.
//! - `tables-hit`: every row is in memory. `tables-cold`: hardly any is, and keys are uniform.

use std::time::Instant;

use anyhow::Result;
use hps::{PullPart, Store, TableDescriptor, TableId};

use crate::args::Settings;
use crate::context::{Context, Delta, holdings, quiet};
use crate::fixture::fill_in_memory;
use crate::keys::{Distribution, Draw, Order};
use crate::report::Outcome;
use crate::workloads::memory::check_memory;

/// Tables of a model of Criteo's data.
const TABLES: u64 = 26;
/// Keys of each in a batch.
const KEYS: u64 = 1024;
/// Batches of a round; they are used again until the window is over.
const POOL: usize = 32;

/// One of the stores: its tables, and keys of each by batch.
struct Side {
    store: Store,
    ids: Vec<TableId>,
    pool: Vec<Vec<Vec<u64>>>,
    outs: Vec<Vec<f32>>,
}

/// Where one of the stores is, and how it is divided.
#[derive(Clone, Copy)]
struct Shape {
    name: &'static str,
    tables: u64,
}

const MANY: Shape = Shape {
    name: "many",
    tables: TABLES,
};
const ONE: Shape = Shape {
    name: "one",
    tables: 1,
};

/// Pulls of resident rows, then of cold ones.
///
/// # Errors
/// What the store says, or too little memory for all rows twice.
pub fn run(context: &mut Context) -> Result<()> {
    let s = context.settings.clone();
    let cache = s.cache_of(s.rows);
    check_memory(2 * cache)?;
    let root = context.fixture.scratch();
    std::fs::create_dir_all(&root)?;
    let mut sides = Vec::new();
    for shape in [MANY, ONE] {
        context
            .notes
            .say(&format!("tables: filling the store of {}", shape.tables));
        let path = root.join(shape.name);
        let store = Store::create(&path, s.create_options(&path)?, s.options(cache))?;
        let rows = s.rows / shape.tables;
        let made = (0..shape.tables).map(|table| store.create_table(&descriptor(&s, table)));
        for id in made.collect::<hps::Result<Vec<TableId>>>()? {
            let own = Settings { rows, ..s.clone() };
            fill_in_memory(&store, id, &own)?;
        }
        store.checkpoint(1, &[])?;
        sides.push(Side::new(store, &s, shape)?);
    }
    let hit = measure(context, "tables-hit", &mut sides)?;
    for side in sides.drain(..) {
        side.store.close()?;
    }
    // Room for a batch, several times, and hardly any hits.
    let batch = TABLES * keys_of(&s) * (s.row_bytes() as u64 + 64);
    let cold = s.cache_bytes.unwrap_or(4 * batch + (16 << 20));
    for shape in [MANY, ONE] {
        let store = Store::open(&root.join(shape.name), s.options(cold))?;
        sides.push(Side::new(store, &s, shape)?);
    }
    let cold = measure(context, "tables-cold", &mut sides)?;
    for side in sides {
        side.store.close()?;
    }
    context.outcomes.extend([hit, cold]);
    Ok(())
}

fn descriptor(s: &Settings, table: u64) -> TableDescriptor {
    s.descriptor.clone().name(format!("table-{table}"))
}

/// Keys of a table in a batch: few where there are few rows.
fn keys_of(s: &Settings) -> u64 {
    KEYS.min(s.rows / TABLES / 8).max(1)
}

impl Side {
    fn new(store: Store, s: &Settings, shape: Shape) -> Result<Side> {
        let ids = (0..shape.tables).map(|t| store.table(&format!("table-{t}")));
        let ids = ids.collect::<hps::Result<Vec<TableId>>>()?;
        let keys = usize::try_from(TABLES / shape.tables * keys_of(s))?;
        Ok(Side {
            store,
            outs: vec![vec![0.0; keys * s.dim]; ids.len()],
            ids,
            pool: Vec::new(),
        })
    }

    /// Draws the keys of a round.
    fn draw(&mut self, s: &Settings, round: usize) {
        let tables = self.ids.len() as u64;
        let keys = self.outs[0].len() / s.dim;
        let mut draws: Vec<Draw> = (0..tables)
            .map(|t| {
                let stream = 7000 + round as u64 * TABLES + t;
                Draw::new(s.rows / tables, Distribution::Uniform, s.seed, stream)
            })
            .collect();
        let mut batch = || -> Vec<Vec<u64>> {
            let keys = draws.iter_mut().map(|d| d.distinct(keys, Order::Mixed));
            keys.collect()
        };
        // A tiny cache holds the rows of three batches.
        let count = if s.tiny { 12 } else { POOL };
        self.pool = (0..count).map(|_| batch()).collect();
    }

    /// Pulls a batch and lets it go; its rows, and the seconds.
    fn pull(&mut self, batch: usize) -> Result<(usize, f64)> {
        let keys = &self.pool[batch];
        let since = Instant::now();
        let parts = self.ids.iter().zip(keys).zip(&mut self.outs);
        let mut parts: Vec<PullPart<'_>> = parts
            .map(|((id, keys), out)| PullPart::new(*id, keys, out))
            .collect();
        let lease = match &mut parts[..] {
            [one] => self.store.pull(one.table, one.keys, one.out)?,
            many => self.store.pull_many(many)?,
        };
        let rows = lease.len();
        drop(lease);
        Ok((rows, since.elapsed().as_secs_f64()))
    }
}

/// Pulls from both stores by turns, in rounds.
fn measure(context: &Context, name: &str, sides: &mut [Side]) -> Result<Outcome> {
    let s = &context.settings;
    let mut outcome = Outcome::new(name, "the same, with all keys of one table");
    for round in 0..s.rounds {
        context.notes.say(&format!("{name}: round {}", round + 1));
        let mut sums = vec![(0usize, 0.0f64); sides.len()];
        for side in &mut *sides {
            side.draw(s, round);
            quiet(&side.store);
            side.pull(0)?;
        }
        let before = sides[0].store.stats();
        let (mut turn, mut seconds) = (0, 0.0);
        while seconds < 2.0 * s.seconds || turn < sides[0].pool.len() {
            for (side, sum) in sides.iter_mut().zip(&mut sums) {
                let (rows, time) = side.pull(turn % side.pool.len())?;
                (sum.0, sum.1) = (sum.0 + rows, sum.1 + time);
                seconds += time;
            }
            turn += 1;
        }
        let delta = Delta::of(&before, &sides[0].store.stats());
        outcome.lowest("hit_rate", delta.hit_rate());
        outcome.set("reads_per_cold_row", delta.reads_per_cold_row());
        let rate = |(rows, seconds): (usize, f64)| rows as f64 / seconds;
        outcome.round(rate(sums[0]), rate(sums[1]));
    }
    outcome.set("tables", TABLES);
    outcome.set("keys_per_table", keys_of(s));
    holdings(&mut outcome, &sides[0].store.stats());
    Ok(outcome)
}
