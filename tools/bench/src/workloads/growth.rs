//! What does a row cost as the store grows? `growth`.
//!
//! - One store of each size, dim 8: all in memory for `pull-hit`, then reopened with a small cache
//!   for `pull-miss`, over uniform keys in both.
//! - Cost growth is the cost of a row at the greatest size ÷ at the smallest, divided by the same
//!   of a bare gather over as many rows, in the same run; of a row that is read from SSD, divided by the same of
//!   a device read (the smaller the store, the more rows a read holds).

use anyhow::Result;
use hps::{Store, TableDescriptor};

use crate::args::Settings;
use crate::context::{Context, Delta, quiet};
use crate::figures::Spread;
use crate::fixture::fill_in_memory;
use crate::keys::{Distribution, Draw, Order};
use crate::limits::memory::BareRows;
use crate::pipeline::{Cycle, Drawn, Trainer};
use crate::report::Outcome;

/// Weights of a row.
const DIM: usize = 8;

/// Measures each size.
///
/// # Errors
/// What the store says, or too little memory.
pub fn run(context: &mut Context) -> Result<()> {
    let sizes: &[u64] = if context.settings.tiny {
        &[4_000, 8_000, 16_000]
    } else {
        &[1 << 20, 8 << 20, 64 << 20]
    };
    let mut costs = Vec::new();
    for rows in sizes {
        let mut s = context.settings.clone();
        s.rows = *rows;
        s.dim = DIM;
        s.descriptor = TableDescriptor::new("bench", DIM);
        s.descriptor.optimizer = context.settings.descriptor.optimizer;
        costs.push(one_size(context, &s)?);
    }
    if let ([first, ..], Some(last)) = (&costs[..], costs.last())
        && let [.., hit, miss] = &mut context.outcomes[..]
    {
        let gather = last.gather / first.gather;
        let growth = last.hit / first.hit;
        hit.set("cost_growth", growth);
        hit.set("gather_cost_growth", gather);
        hit.set("cost_growth_to_gather", growth / gather);
        let (growth, device) = (last.miss / first.miss, last.reads / first.reads);
        miss.set("cost_growth", growth);
        miss.set("device_cost_growth", device);
        miss.set("cost_growth_to_device", growth / device);
    }
    Ok(())
}

/// Seconds of a row.
struct Cost {
    gather: f64,
    hit: f64,
    miss: f64,
    /// Those of the device reads of one that is pulled from SSD, at the device's own speed.
    reads: f64,
}

fn one_size(context: &mut Context, s: &Settings) -> Result<Cost> {
    let (rows, name) = (s.rows, size_name(s.rows));
    let cache = s.cache_of(rows);
    super::memory::check_memory(cache + rows * (s.row_bytes() as u64 + 20))?;
    context.notes.say(&format!("growth: filling {name} rows"));
    let path = context.fixture.scratch();
    let store = Store::create(&path, s.create_options(&path)?, s.options(cache))?;
    let table = store.create_table(&s.descriptor)?;
    fill_in_memory(&store, table, s)?;
    let bare = BareRows::new(usize::try_from(rows)?, s.descriptor.row_f32s(), DIM)?;
    let mut hit = Outcome::new(&format!("growth-pull-hit-{name}"), "gather in a bare array");
    let draw = |stream| Draw::new(rows, Distribution::Uniform, s.seed, stream);
    for round in 0..s.rounds {
        context.notes.say(&format!(
            "growth: pull-hit of {name} rows, round {}",
            round + 1
        ));
        let mut draw = draw(100 + round as u64);
        let count = if s.tiny { 4 } else { 64 };
        let pool: Vec<_> = (0..count)
            .map(|_| draw.batch(s.batch, Order::Mixed))
            .collect();
        let limit = bare.gather(&pool, s.threads)?;
        let mut trainer = Trainer::new(&store, table, s)
            .without_pushes()
            .with_depth(0);
        let window = trainer.run(&mut Cycle::new(&pool), s.seconds, &mut |_| {})?;
        let busy: f64 = window.steps.iter().map(|step| step.seconds()).sum();
        hit.round(window.rows() as f64 / busy, limit.per_second);
    }
    drop(bare);
    let gather = 1.0 / Spread::of(&hit.limit_rows_per_s).median;
    hit.set("resident_rows", store.stats().resident_rows);
    context
        .notes
        .say(&format!("growth: checkpoint of {name} rows"));
    store.checkpoint(1, &[])?;
    store.close()?;
    let mut miss = Outcome::new(
        &format!("growth-pull-miss-{name}"),
        "random reads / share of rows read",
    );
    let reads = misses(context, s, &path, &mut miss)?;
    let cost = Cost {
        reads,
        gather,
        hit: 1.0 / Spread::of(&hit.rows_per_s).median,
        miss: 1.0 / Spread::of(&miss.rows_per_s).median,
    };
    context.outcomes.extend([hit, miss]);
    let _ = context.fixture.scratch();
    Ok(cost)
}

fn misses(
    context: &Context,
    s: &Settings,
    path: &std::path::Path,
    outcome: &mut Outcome,
) -> Result<f64> {
    let store = Store::open(path, s.options(super::disk::cold_cache(s)))?;
    let table = store.table(&s.descriptor.name)?;
    let files = s.data_files(path);
    let mut of_device = Vec::new();
    for round in 0..s.rounds {
        context.notes.say(&format!(
            "growth: {}, round {}",
            outcome.workload,
            round + 1
        ));
        quiet(&store);
        let device = context.random_reads(&files, 512)?;
        let mut draw = Draw::new(s.rows, Distribution::Uniform, s.seed, 200 + round as u64);
        let mut trainer = Trainer::new(&store, table, s).without_pushes();
        let mut supply = Drawn::new(&mut draw, s.batch);
        let before = store.stats();
        let window = trainer.run(&mut supply, s.seconds, &mut |_| {})?;
        let delta = Delta::of(&before, &store.stats());
        let share = 1.0 - delta.hit_rate();
        outcome.round(window.rate(), device.per_second / share.max(1e-9));
        of_device.push(share * delta.reads_per_cold_row() / device.per_second);
        outcome.set("reads_per_cold_row", delta.reads_per_cold_row());
        outcome.set("miss_share", share);
    }
    outcome.set(
        "index_bytes_per_key",
        store.stats().index_bytes as f64 / s.rows as f64,
    );
    store.close()?;
    Ok(Spread::of(&of_device).median)
}

fn size_name(rows: u64) -> String {
    if rows >= 1 << 20 {
        format!("{}M", rows >> 20)
    } else {
        format!("{rows}")
    }
}
