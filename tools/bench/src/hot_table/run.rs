//! `hps-bench hot-table`: hits of a store batch by batch, beside the best fixed split.
//!
//! - All rows are put and a checkpoint is made; then the store is opened with the cache and serves
//!   one batch after the other, each a pull and a push of all tables in one call.
//! - A batch that fails with `OverBudget` is counted, and all its keys have missed.
//! - A split is the store's own cache in which each table has a floor and a ceiling, its share. It has
//!   the bytes that the store has for rows, is replayed without files, and is told of one half: its
//!   shares are the best that [`climb`] finds for the later half of it, and it has all batches before
//!   to settle: it knows beforehand which table will be hot.
//! - Beside it is the same split with an exact LFU for each table: an ideal, without pins and flushes.
//! - The fixed split is the best that climb finds for all batches, before and behind the change: what
//!   somebody gets who splits once.

use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use hps::{
    CreateOptions, Error, PolicyKind, PullPart, PushPart, PutRows, RuntimeOptions, Store, TableId,
    Update,
};
use serde_json::json;

use super::climb::climb;
use super::split::{Curves, hits};
use super::{Model, TABLES};
use crate::fixture::random_rows;
use crate::keys::load_order;
use crate::report::Notes;
use crate::trace::ours::{Ours, OursConfig};
use crate::trace::{Accesses, misses};

/// Batches of a line, and of the moving mean.
const WINDOW: usize = 5;
/// From this ratio on the store is as good as the split.
const RECOVERED: f64 = 0.97;

/// What `hps-bench hot-table` was asked for.
#[derive(Args, Debug, Clone)]
pub struct HotTableArgs {
    /// Batches before the change, and as many after it. [default: 100; tiny 20]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(10..=1 << 20))]
    pub batches: Option<u32>,
    /// Samples of a batch over all tables, before duplicates are taken out.
    /// [default: 65536; tiny 2048]
    #[arg(long, value_name = "SAMPLES", value_parser = clap::value_parser!(u32).range(26..=1 << 24))]
    pub batch: Option<u32>,
    /// Cache of the store in MiB. [default: a tenth of the rows' bytes]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    pub cache_mib: Option<u64>,
    /// Shards of the store. [default: the store's own]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub shards: Option<u16>,
    /// Threads of the store and of the simulation.
    #[arg(long, value_name = "N", default_value_t = 2,
        value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
    /// Splits that are tried for each half, from the one on that exact LFUs name. [default: 12; tiny 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub tries: Option<u16>,
    /// Directory for the store, on the device in question. [default: a temporary one, removed]
    #[arg(long, value_name = "PATH")]
    pub dir: Option<PathBuf>,
    /// Seed of keys and draws.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Small enough for a test: the figures mean nothing.
    #[arg(long)]
    pub tiny: bool,
    /// Print, as the last line, a JSON object.
    #[arg(long)]
    pub json: bool,
}

impl HotTableArgs {
    fn half(&self) -> Result<usize> {
        let usual = if self.tiny { 20 } else { 100 };
        Ok(usize::try_from(self.batches.unwrap_or(usual))?.next_multiple_of(WINDOW))
    }

    fn samples(&self) -> Result<usize> {
        let usual = if self.tiny { 2048 } else { 65_536 };
        Ok(usize::try_from(self.batch.unwrap_or(usual))?)
    }

    fn tries(&self) -> usize {
        usize::from(self.tries.unwrap_or(if self.tiny { 3 } else { 12 }))
    }

    fn options(&self, cache_bytes: u64) -> RuntimeOptions {
        let mut options = RuntimeOptions::new().threads(usize::from(self.threads));
        options.cache_bytes = cache_bytes;
        if let Some(shards) = self.shards {
            options.shards = usize::from(shards);
        }
        options
    }
}

/// What the store did.
#[derive(Debug, Default)]
struct Served {
    /// By batch.
    hits: Vec<u64>,
    /// Batches that failed, by half.
    failed: [usize; 2],
    /// Bytes that the store has for rows and what is kept beside them.
    row_room: u64,
}

/// A batch, or several: unique rows, and how many of them were hits.
#[derive(Clone, Copy, Debug, Default)]
struct Hits {
    uses: u64,
    store: u64,
    /// Of the store's cache without the store.
    pool: u64,
    split: u64,
    /// Of the split for all batches.
    fixed: u64,
    /// Of exact LFUs.
    ideal: u64,
}

impl Hits {
    fn sum(batches: &[Hits]) -> Hits {
        let sum = |of: fn(&Hits) -> u64| batches.iter().map(of).sum();
        Hits {
            uses: sum(|h| h.uses),
            store: sum(|h| h.store),
            pool: sum(|h| h.pool),
            split: sum(|h| h.split),
            fixed: sum(|h| h.fixed),
            ideal: sum(|h| h.ideal),
        }
    }

    fn ratio(&self) -> f64 {
        self.store as f64 / self.split.max(1) as f64
    }

    fn ratio_to_fixed(&self) -> f64 {
        self.store as f64 / self.fixed.max(1) as f64
    }
}

/// What the batches have in common, and the tables.
struct Scene<'a> {
    model: &'a Model,
    accesses: Accesses,
    /// Of the caches that are replayed, without a split.
    pool: OursConfig,
}

impl Scene<'_> {
    /// Hits of each of the first batches in the caches of a store, its bytes split or not.
    fn hits(&self, split: Option<Vec<u64>>, batches: usize) -> Result<Vec<u64>> {
        let config = OursConfig {
            split,
            ..self.pool.clone()
        };
        let found = misses(
            &self.accesses,
            &mut Ours::new(&config, &self.accesses)?,
            batches,
            || {},
        )?;
        let uses = (0..batches).map(|b| self.accesses.batch(b).len());
        Ok(uses
            .zip(found)
            .map(|(n, missed)| (n - missed) as u64)
            .collect())
    }

    /// The best split of some batches, from the shares that curves name, in bytes; and the hits of all
    /// batches to the last of them.
    fn split(
        &self,
        named: Vec<u64>,
        counted: &Range<usize>,
        tries: usize,
    ) -> Result<[Vec<u64>; 2]> {
        let worth = |split: &[u64]| {
            let hits = self.hits(Some(split.to_vec()), counted.end)?;
            Ok(hits[counted.clone()].iter().sum())
        };
        let (split, _) = climb(named, tries, worth)?;
        let hits = self.hits(Some(split.clone()), counted.end)?;
        Ok([split, hits])
    }

    /// The best splits of several ranges of batches, each found by a thread of its own.
    fn splits(
        &self,
        named: Vec<Vec<u64>>,
        counted: &[Range<usize>],
        tries: usize,
    ) -> Result<Vec<[Vec<u64>; 2]>> {
        std::thread::scope(|scope| {
            let searches = named.into_iter().zip(counted);
            let spawned: Vec<_> = searches
                .map(|(named, counted)| scope.spawn(|| self.split(named, counted, tries)))
                .collect();
            let joined = spawned.into_iter().map(|search| {
                let found = search.join().ok();
                found.context("a search panicked").flatten()
            });
            joined.collect()
        })
    }

    /// Bytes of a row of each table, with what is kept beside it.
    fn row_costs(&self) -> Result<Vec<u64>> {
        let ours = Ours::new(&self.pool, &self.accesses)?;
        Ok((0..self.model.keys.len())
            .map(|t| ours.row_cost(t))
            .collect())
    }
}

/// Runs the store and the simulation, and prints both.
///
/// # Errors
/// What the store or the system says.
pub fn run(args: &HotTableArgs) -> Result<()> {
    let model = Model::new(args.seed, if args.tiny { 100 } else { 1 });
    let (half, samples) = (args.half()?, args.samples()?);
    let cache_bytes = match args.cache_mib {
        Some(mib) => mib << 20,
        None => (model.bytes() / 10).max(1 << 20),
    };
    let notes = Notes::default();
    let temporary = match &args.dir {
        Some(_) => None,
        None => Some(tempfile::tempdir().context("make a temporary directory")?),
    };
    let root = match (&args.dir, &temporary) {
        (Some(dir), _) => dir.clone(),
        (None, Some(made)) => made.path().to_owned(),
        (None, None) => PathBuf::new(),
    };
    std::fs::create_dir_all(&root).with_context(|| format!("make {}", root.display()))?;
    let path = root.join("hot-table");
    let _missing = std::fs::remove_dir_all(&path);
    notes.say("hot-table: filling the store");
    fill(args, &model, &path)?;
    notes.say("hot-table: the store");
    let served = serve(args, &model, &path, cache_bytes);
    let _left = std::fs::remove_dir_all(&path);
    let served = served?;
    notes.say("hot-table: hit curves of the tables");
    let options = args.options(cache_bytes);
    let scene = Scene {
        model: &model,
        accesses: model.accesses(2 * half, samples, || {})?,
        pool: OursConfig {
            bytes: served.row_room,
            shards: options.shards,
            file_bytes: options.file_bytes.min((cache_bytes / 8).max(1 << 20)),
            depth: 0,
            policy: PolicyKind::Bilevel,
            split: None,
        },
    };
    let tables = model.accesses_by_table(2 * half, samples)?;
    let ranges = [half / 2..half, half + half / 2..2 * half, 0..2 * half];
    let (threads, costs) = (usize::from(args.threads), scene.row_costs()?);
    let curves = Curves::simulate(&tables, &costs, &ranges, threads, || {})?;
    notes.say("hot-table: the splits");
    let pool = scene.hits(None, 2 * half)?;
    let mut batches: Vec<Hits> = (0..2 * half)
        .map(|b| Hits {
            uses: scene.accesses.batch(b).len() as u64,
            store: served.hits[b],
            pool: pool[b],
            ..Hits::default()
        })
        .collect();
    let halves = [0..half, half..2 * half];
    let named: Vec<Vec<usize>> = (0..ranges.len())
        .map(|range| curves.best(served.row_room, range))
        .collect();
    let shares = named.iter().map(|rows| {
        let each = rows.iter().zip(&costs);
        each.map(|(rows, cost)| *rows as u64 * cost).collect()
    });
    let mut splits = scene.splits(shares.collect(), &ranges, args.tries())?;
    let [_, fixed] = splits.pop().context("a split for all batches")?;
    for (batch, fixed) in batches.iter_mut().zip(fixed) {
        batch.fixed = fixed;
    }
    for ((range, [_, hits]), rows) in halves.into_iter().zip(&splits).zip(&named) {
        for batch in range.clone() {
            batches[batch].split = hits[batch];
        }
        for (table, rows) in tables.iter().zip(rows) {
            let hits = self::hits(table, *rows)?;
            for batch in range.clone() {
                batches[batch].ideal += hits[batch] as u64;
            }
        }
    }
    let chosen: Vec<Vec<u64>> = splits.into_iter().map(|[split, _]| split).collect();
    notes.done();
    print(args, &model, cache_bytes, &served, &batches, &chosen)
}

/// A store with all rows, closed.
fn fill(args: &HotTableArgs, model: &Model, path: &Path) -> Result<()> {
    let store = Store::create(path, CreateOptions::new(), args.options(256 << 20))?;
    let made = model.descriptors.iter().map(|d| store.create_table(d));
    let ids = made.collect::<hps::Result<Vec<TableId>>>()?;
    for ((id, descriptor), keys) in ids.iter().zip(&model.descriptors).zip(&model.keys) {
        let width = descriptor.row_f32s();
        let batch = 65_536;
        let values = random_rows(batch, width, args.seed);
        for keys in load_order(*keys, args.seed, batch) {
            store.put(*id, &keys, PutRows::whole(&values[..keys.len() * width]))?;
        }
    }
    store.checkpoint(1, &[])?;
    Ok(store.close()?)
}

/// Pulls and pushes every batch.
fn serve(args: &HotTableArgs, model: &Model, path: &Path, cache_bytes: u64) -> Result<Served> {
    let (half, samples) = (args.half()?, args.samples()?);
    let store = Store::open(path, args.options(cache_bytes))?;
    let ids = (0..TABLES).map(|t| store.table(&format!("table-{t}")));
    let ids = ids.collect::<hps::Result<Vec<TableId>>>()?;
    let stats = store.stats();
    let mut served = Served {
        row_room: cache_bytes
            .saturating_sub(stats.buffer_bytes)
            .max(cache_bytes / 2),
        ..Served::default()
    };
    let (mut draws, mut before) = (model.draws(), stats.unique_hits);
    for batch in 0..2 * half {
        let h = usize::from(batch >= half);
        let keys = model.batch(&mut draws, h, samples);
        match train(&store, model, &ids, &keys) {
            Ok(()) => {}
            Err(Error::OverBudget { .. }) => served.failed[h] += 1,
            Err(e) => return Err(e.into()),
        }
        let now = store.stats().unique_hits;
        served.hits.push(now - before);
        before = now;
    }
    store.close_discarding();
    Ok(served)
}

/// One batch of all tables.
fn train(store: &Store, model: &Model, ids: &[TableId], keys: &[Vec<u64>]) -> hps::Result<()> {
    let dims = model.descriptors.iter().map(|d| d.dim);
    let outs = keys
        .iter()
        .zip(dims)
        .map(|(keys, dim)| vec![0.0; keys.len() * dim]);
    let mut outs: Vec<Vec<f32>> = outs.collect();
    let parts = ids.iter().zip(keys).zip(&mut outs);
    let mut parts: Vec<PullPart<'_>> = parts
        .map(|((id, keys), out)| PullPart::new(*id, keys, out))
        .collect();
    let lease = store.pull_many(&mut parts)?;
    for out in &mut outs {
        out.fill(0.01);
    }
    let parts = ids.iter().zip(&outs);
    let parts: Vec<PushPart<'_>> = parts
        .map(|(id, out)| PushPart::new(*id, Update::gradients(out, 0.01)))
        .collect();
    store.push_many(&lease, &parts)?;
    Ok(())
}

/// Batches after the change until the mean over as many as a window is as good as a split's: for the first
/// time, and to stay so.
fn recovered(batches: &[Hits], ratio: fn(&Hits) -> f64) -> [Option<usize>; 2] {
    let windows = batches.windows(WINDOW);
    let good: Vec<bool> = windows.map(|w| ratio(&Hits::sum(w)) >= RECOVERED).collect();
    let first = good.iter().position(|good| *good);
    let bad = good
        .iter()
        .rposition(|good| !good)
        .map_or(0, |last| last + 1);
    [first, (bad < good.len()).then_some(bad)].map(|window| Some(window? + WINDOW))
}

/// What is told of one half.
struct Half {
    /// Hits of the store to those of the split, of the same caches without the store to it, of the store
    /// to those of the split for all batches, and of the ideal.
    store: f64,
    fixed: f64,
    pool: f64,
    ideal: f64,
}

impl Half {
    /// Of its later batches.
    fn of(batches: &[Hits]) -> Half {
        let late = Hits::sum(&batches[batches.len() / 2..]);
        let to = |hits: u64, of: u64| hits as f64 / of.max(1) as f64;
        Half {
            store: late.ratio(),
            fixed: late.ratio_to_fixed(),
            pool: to(late.pool, late.split),
            ideal: to(late.store, late.ideal),
        }
    }
}

fn print(
    args: &HotTableArgs,
    model: &Model,
    cache_bytes: u64,
    served: &Served,
    batches: &[Hits],
    chosen: &[Vec<u64>],
) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    writeln!(
        out,
        "{TABLES} tables, {} keys, rows of {:.0} MiB; cache {:.1} MiB, of which {:.1} for rows; \
         batches of {} samples",
        model.keys.iter().sum::<u64>(),
        mib(model.bytes()),
        mib(cache_bytes),
        mib(served.row_room),
        args.samples()?,
    )?;
    writeln!(
        out,
        "\nhit rates\n{:>7} {:>9} {:>9} {:>9} {:>9} {:>9} {:>13} {:>13}",
        "batches", "store", "replayed", "split", "ideal", "fixed", "store / split", "store / fixed"
    )?;
    let (half, windows) = (batches.len() / 2, batches.chunks(WINDOW).map(Hits::sum));
    let windows: Vec<Hits> = windows.collect();
    for (i, w) in windows.iter().enumerate() {
        let to = (i + 1) * WINDOW;
        if to == half + WINDOW {
            writeln!(out, "        another table is hot from here on")?;
        }
        let share = |hits: u64| hits as f64 / w.uses.max(1) as f64;
        let [store, pool] = [share(w.store), share(w.pool)];
        let [split, ideal, fixed] = [share(w.split), share(w.ideal), share(w.fixed)];
        let [ratio, to_fixed] = [w.ratio(), w.ratio_to_fixed()];
        writeln!(
            out,
            "{to:>7} {store:>9.4} {pool:>9.4} {split:>9.4} {ideal:>9.4} {fixed:>9.4} \
             {ratio:>13.4} {to_fixed:>13.4}"
        )?;
    }
    let (first, second) = batches.split_at(half);
    let (before, after) = (Half::of(first), Half::of(second));
    let back = recovered(second, Hits::ratio);
    let back_to_fixed = recovered(second, Hits::ratio_to_fixed);
    let within = |batches: Option<usize>| match batches {
        Some(n) => format!("within {n} batches"),
        None => String::from("never"),
    };
    let [once, for_good] = back.map(within);
    let [fixed_once, fixed_for_good] = back_to_fixed.map(within);
    writeln!(
        out,
        "\nhit rate / that of the best split for all batches (fixed), later half before the change: {:.4}\n\
         the same after it: {:.4}\n\
         the mean of {WINDOW} batches is at least {RECOVERED} again: {fixed_for_good} for good, {fixed_once} at first\n\
         hit rate / that of the best split for this half (split), which knows the change beforehand: {:.4}\n\
         the same after it: {:.4}\n\
         the mean of {WINDOW} batches is at least {RECOVERED} again: {for_good} for good, {once} at first\n\
         batches that failed with OverBudget: {} before, {} after, of {half} each\n\
         replayed / split: {:.4} before, {:.4} after; store / split of exact LFUs: {:.4}, {:.4}",
        before.fixed,
        after.fixed,
        before.store,
        after.store,
        served.failed[0],
        served.failed[1],
        before.pool,
        after.pool,
        before.ideal,
        after.ideal,
    )?;
    if args.json {
        let split: Vec<_> = model
            .descriptors
            .iter()
            .enumerate()
            .map(|(t, d)| {
                json!({
                    "keys": model.keys[t], "row_bytes": d.row_bytes(),
                    "bytes": [chosen[0][t], chosen[1][t]],
                })
            })
            .collect();
        let ratios: Vec<f64> = windows.iter().map(Hits::ratio).collect();
        let told = json!({
            "ratio_before": before.store, "ratio_after": after.store,
            "recovered_batches": back[1], "recovered_first_batches": back[0],
            "ratio_to_fixed": [before.fixed, after.fixed],
            "recovered_to_fixed_batches": back_to_fixed[1],
            "recovered_to_fixed_first_batches": back_to_fixed[0],
            "replayed": [before.pool, after.pool], "to_exact_lfu": [before.ideal, after.ideal],
            "failed": served.failed, "window_batches": WINDOW, "ratios": ratios,
            "cache_bytes": cache_bytes, "row_room_bytes": served.row_room, "split": split,
        });
        writeln!(out, "{told}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_has_recovered_when_its_mean_stays_as_good_as_the_splits() {
        let batches = |hits: &[u64]| -> Vec<Hits> {
            let batch = |store: &u64| Hits {
                uses: 200,
                store: *store,
                split: 100,
                ..Hits::default()
            };
            hits.iter().map(batch).collect()
        };
        let good = batches(&[97; 12]);
        assert_eq!(recovered(&good, Hits::ratio), [Some(5), Some(5)]);
        // One batch of 90 takes the means that it is in down to 95.6.
        let dip = batches(&[97, 97, 97, 97, 97, 97, 90, 97, 97, 97, 97, 97, 97]);
        assert_eq!(recovered(&dip, Hits::ratio), [Some(5), Some(12)]);
        let to_fixed = Hits {
            store: 97,
            fixed: 97,
            ..Hits::default()
        };
        assert_eq!(
            recovered(&[to_fixed; 12], Hits::ratio_to_fixed),
            [Some(5), Some(5)]
        );
        let late = batches(&[0, 97, 97, 97, 97, 97, 97, 97, 90]);
        assert_eq!(recovered(&late, Hits::ratio), [Some(6), None]);
    }
}
