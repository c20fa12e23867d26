//! `hps-bench hot-table`: hits of a store per window of batches, beside the best fixed split.
//!
//! - All rows are put and a checkpoint is made; then the store is opened with the cache and serves
//!   one batch after the other, each a pull and a push of all tables in one call.
//! - A batch that fails with `OverBudget` is counted, and all its keys have missed.
//! - The split has the bytes that the store has for slots, and pays for each row what a slot of the
//!   store takes beside it. It is chosen for the later half of each half, and has all batches before
//!   to settle.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use hps::mem::TableCache;
use hps::{
    CreateOptions, Error, PolicyKind, PullPart, PushPart, PutRows, RuntimeOptions, Store, TableId,
    Update,
};
use serde_json::json;

use super::split::{Curves, hits};
use super::{Model, TABLES};
use crate::fixture::random_rows;
use crate::keys::load_order;
use crate::report::Notes;

/// Batches of a window.
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
    /// Bytes that the store has for slots.
    slot_room: u64,
}

/// One window of batches.
struct Window {
    uses: u64,
    store: u64,
    split: u64,
}

impl Window {
    fn ratio(&self) -> f64 {
        self.store as f64 / self.split.max(1) as f64
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
    let tables = model.accesses_by_table(2 * half, samples)?;
    let beside = beside_bytes();
    let slots = model
        .descriptors
        .iter()
        .map(|d| d.row_bytes() as u64 + beside);
    let slots: Vec<u64> = slots.collect();
    let ranges = [half / 2..half, half + half / 2..2 * half];
    let threads = usize::from(args.threads);
    let curves = Curves::simulate(&tables, &slots, &ranges, threads, || {})?;
    let mut split = vec![0u64; 2 * half];
    let mut chosen = Vec::new();
    for (h, range) in [0..half, half..2 * half].into_iter().enumerate() {
        let rows = curves.best(served.slot_room, h);
        for (table, rows) in tables.iter().zip(&rows) {
            let hits = hits(table, *rows)?;
            for batch in range.clone() {
                split[batch] += hits[batch] as u64;
            }
        }
        chosen.push(rows);
    }
    notes.done();
    let windows: Vec<Window> = (0..2 * half)
        .step_by(WINDOW)
        .map(|first| {
            let batches = first..first + WINDOW;
            let uses = |b: usize| tables.iter().map(|t| t.batch(b).len() as u64).sum::<u64>();
            Window {
                uses: batches.clone().map(uses).sum(),
                store: served.hits[batches.clone()].iter().sum(),
                split: split[batches].iter().sum(),
            }
        })
        .collect();
    print(args, &model, cache_bytes, &served, &windows, &chosen)
}

/// Bytes that a slot takes beside its row.
fn beside_bytes() -> u64 {
    let rows = 1 << 16;
    let bytes = TableCache::bytes_for_rows(rows, 1, PolicyKind::Bilevel, 0);
    bytes / rows as u64 - 4
}

/// A store with all rows, closed.
fn fill(args: &HotTableArgs, model: &Model, path: &Path) -> Result<()> {
    let store = Store::create(path, CreateOptions::new(), args.options(256 << 20))?;
    // A new table empties the caches: all are made before the first is filled.
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
        slot_room: cache_bytes
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

/// Ratio of all hits in these windows.
fn ratio_of(windows: &[Window]) -> f64 {
    let sum = |f: fn(&Window) -> u64| windows.iter().map(f).sum::<u64>() as f64;
    sum(|w| w.store) / sum(|w| w.split).max(1.0)
}

fn print(
    args: &HotTableArgs,
    model: &Model,
    cache_bytes: u64,
    served: &Served,
    windows: &[Window],
    chosen: &[Vec<usize>],
) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    writeln!(
        out,
        "{TABLES} tables, {} keys, rows of {:.0} MiB; cache {:.1} MiB, of which {:.1} for slots; \
         batches of {} samples",
        model.keys.iter().sum::<u64>(),
        mib(model.bytes()),
        mib(cache_bytes),
        mib(served.slot_room),
        args.samples()?,
    )?;
    writeln!(
        out,
        "\n{:>7} {:>9} {:>9} {:>7}",
        "batches", "hit rate", "split", "ratio"
    )?;
    for (i, w) in windows.iter().enumerate() {
        if i == windows.len() / 2 {
            writeln!(out, "        another table is hot from here on")?;
        }
        let share = |hits: u64| hits as f64 / w.uses.max(1) as f64;
        let (store, split) = (share(w.store), share(w.split));
        let to = (i + 1) * WINDOW;
        writeln!(out, "{to:>7} {store:>9.4} {split:>9.4} {:>7.4}", w.ratio())?;
    }
    let (first, second) = windows.split_at(windows.len() / 2);
    let late = |half: &[Window]| ratio_of(&half[half.len() / 2..]);
    let (before, after) = (late(first), late(second));
    let recovered = second.iter().position(|w| w.ratio() >= RECOVERED);
    let recovered = recovered.map(|i| (i + 1) * WINDOW);
    let told = recovered.map_or(String::from("never"), |n| format!("within {n} batches"));
    writeln!(
        out,
        "\nhit rate / that of the best fixed split, later half before the change: {before:.4}\n\
         the same after it: {after:.4}\n\
         at least {RECOVERED} again: {told}\n\
         batches that failed with OverBudget: {} before, {} after, of {} each",
        served.failed[0],
        served.failed[1],
        first.len() * WINDOW,
    )?;
    if args.json {
        let split: Vec<_> = model
            .descriptors
            .iter()
            .enumerate()
            .map(|(t, d)| {
                json!({
                    "keys": model.keys[t], "row_bytes": d.row_bytes(),
                    "rows": [chosen[0][t], chosen[1][t]],
                })
            })
            .collect();
        let ratios: Vec<f64> = windows.iter().map(Window::ratio).collect();
        let told = json!({
            "ratio_before": before, "ratio_after": after, "recovered_batches": recovered,
            "failed": served.failed, "window_batches": WINDOW, "ratios": ratios,
            "cache_bytes": cache_bytes, "slot_room_bytes": served.slot_room, "split": split,
        });
        writeln!(out, "{told}")?;
    }
    Ok(())
}
