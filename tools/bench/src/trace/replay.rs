//! Which policy would have hit how often, given the same bytes?
//!
//! - Each policy gets as many rows as fit with what it must keep about each. Every one of them pays
//!   [`FIND_BYTES`] a row to find it: its hash and its share of a table like ours.
//! - Hit rates count unique keys of a batch; two are printed, of the whole trace and of its batches
//!   behind the first `--skip`, when the caches have filled.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;
use hps::{PolicyKind, RuntimeOptions};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::Accesses;
use super::belady::Belady;
use super::ours::{Ours, OursConfig};
use super::policies::{Lfu, Lru, PerfectStatic, Policy, S3Fifo};

/// Bytes that finding a row costs: 8 of hash, 14 of a table that is 4/7 full.
pub const FIND_BYTES: u64 = 22;

/// Replays recorded keys through cache policies that have the same bytes.
#[derive(Args, Debug, Clone)]
pub struct ReplayArgs {
    /// A trace that `--trace` wrote.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Memory of the cache in MiB: rows and all that is kept about them.
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    pub cache_mib: u64,
    /// Bytes of a row, a multiple of 4: weights and optimizer state.
    #[arg(long, value_name = "B", default_value_t = 512,
        value_parser = clap::value_parser!(u32).range(4..=1 << 20))]
    pub row_bytes: u32,
    /// Batches fetched ahead, whose rows stay pinned; ours only.
    #[arg(long, value_name = "BATCHES", default_value_t = 2,
        value_parser = clap::value_parser!(u8).range(0..=64))]
    pub depth: u8,
    /// Shards; ours only. [default: the store's own]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub shards: Option<u16>,
    /// Batches that the second hit rate leaves out. [default: half of them]
    #[arg(long, value_name = "BATCHES")]
    pub skip: Option<usize>,
    /// Print, as the last line, a JSON array with one object per policy.
    #[arg(long)]
    pub json: bool,
}

/// What one policy did.
struct Outcome {
    name: &'static str,
    /// Key of its JSON object.
    id: &'static str,
    rows: usize,
    meta_bytes: u64,
    hit_rate: f64,
    hit_rate_late: f64,
}

/// The policies that are not ours.
#[derive(Clone, Copy, Debug)]
enum Textbook {
    Belady,
    PerfectStatic,
    Lfu,
    S3Fifo,
    Lru,
}

impl Textbook {
    const ALL: [Textbook; 5] = [
        Textbook::Belady,
        Textbook::PerfectStatic,
        Textbook::Lfu,
        Textbook::S3Fifo,
        Textbook::Lru,
    ];

    /// Its name, the key of its JSON object, and its bytes a row beside those of finding it.
    fn describe(self) -> (&'static str, &'static str, u64) {
        match self {
            Textbook::Belady => ("Belady", "belady", 0),
            Textbook::PerfectStatic => ("perfect static", "static", 0),
            Textbook::Lfu => ("LFU", "lfu", 12),
            Textbook::S3Fifo => ("S3-FIFO", "s3fifo", 9),
            Textbook::Lru => ("LRU", "lru", 8),
        }
    }

    fn make(self, accesses: &Accesses, rows: usize) -> Box<dyn Policy> {
        let distinct = accesses.distinct();
        match self {
            Textbook::Belady => Box::new(Belady::new(accesses, rows)),
            Textbook::PerfectStatic => Box::new(PerfectStatic::new(accesses, rows)),
            Textbook::Lfu => Box::new(Lfu::new(distinct, accesses.batches(), rows)),
            Textbook::S3Fifo => Box::new(S3Fifo::new(distinct, rows)),
            Textbook::Lru => Box::new(Lru::new(distinct, rows)),
        }
    }
}

/// Hits and uses of the whole trace and of its later batches.
struct Race<'a> {
    accesses: &'a Accesses,
    skip: usize,
    bar: ProgressBar,
}

impl Race<'_> {
    fn run(&self, name: &'static str, policy: &mut dyn Policy) -> Result<(f64, f64)> {
        self.bar.set_message(name);
        self.bar.set_position(0);
        let (mut missed, mut missed_late, mut used_late) = (0, 0, 0);
        for index in 0..self.accesses.batches() {
            let rows = self.accesses.batch(index);
            let misses = policy.batch(rows)?;
            missed += misses;
            if index >= self.skip {
                missed_late += misses;
                used_late += rows.len();
            }
            self.bar.inc(1);
        }
        let rate = |missed: usize, used: usize| 1.0 - missed as f64 / used.max(1) as f64;
        let all = rate(missed, self.accesses.total());
        Ok((all, rate(missed_late, used_late)))
    }
}

/// Prints the hit rates of all policies over a trace.
///
/// # Errors
/// The trace is damaged, the cache is too small for its batches, or stdout can't be written.
pub fn replay(args: &ReplayArgs) -> Result<()> {
    ensure!(
        args.row_bytes.is_multiple_of(4),
        "--row-bytes {} is no multiple of 4",
        args.row_bytes
    );
    let bar = progress();
    bar.set_message("read");
    let accesses = Accesses::read(&args.file, || bar.inc(1))?;
    bar.set_length(accesses.batches() as u64);
    let skip = args.skip.unwrap_or(accesses.batches() / 2);
    ensure!(
        skip < accesses.batches(),
        "--skip {skip} leaves none of {} batches",
        accesses.batches()
    );
    let race = Race {
        accesses: &accesses,
        skip,
        bar,
    };
    let mut outcomes = textbook(args, &race)?;
    let written = ours(args, &race, &mut outcomes)?;
    race.bar.finish_and_clear();
    print(args, &race, &outcomes, written)
}

/// All but ours.
fn textbook(args: &ReplayArgs, race: &Race<'_>) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    for textbook in Textbook::ALL {
        let (name, id, own_bytes) = textbook.describe();
        let meta_bytes = FIND_BYTES + own_bytes;
        let fits = (args.cache_mib << 20) / (u64::from(args.row_bytes) + meta_bytes);
        let rows = usize::try_from(fits).unwrap_or(usize::MAX);
        ensure!(rows > 0, "{} MiB hold no row", args.cache_mib);
        let mut policy = textbook.make(race.accesses, rows);
        let (hit_rate, hit_rate_late) = race.run(name, &mut *policy)?;
        outcomes.push(Outcome {
            name,
            id,
            rows,
            meta_bytes,
            hit_rate,
            hit_rate_late,
        });
    }
    Ok(outcomes)
}

/// Ours; returns the rows it wrote per unique key of a batch.
fn ours(args: &ReplayArgs, race: &Race<'_>, outcomes: &mut Vec<Outcome>) -> Result<f64> {
    let defaults = RuntimeOptions::default();
    let bytes = args.cache_mib << 20;
    // As the store does: about one file a step, and a file is at most an eighth of the cache.
    let file_bytes = defaults.file_bytes.min((bytes / 8).max(1 << 20));
    let step = file_bytes / (u64::from(args.row_bytes) + 30);
    let config = OursConfig {
        bytes,
        row_f32s: usize::try_from(args.row_bytes / 4)?,
        shards: args.shards.map_or(defaults.shards, usize::from),
        flush_step_rows: usize::try_from(step)?,
        depth: usize::from(args.depth),
        policy: PolicyKind::Bilevel,
    };
    let mut ours = Ours::new(&config, race.accesses)?;
    let (hit_rate, hit_rate_late) = race.run("ours", &mut ours)?;
    outcomes.push(Outcome {
        name: "ours",
        id: "ours",
        rows: ours.capacity(),
        meta_bytes: ours.meta_bytes(),
        hit_rate,
        hit_rate_late,
    });
    Ok(ours.written() as f64 / race.accesses.total() as f64)
}

fn progress() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{msg:15} batch {pos}/{len} {eta}") {
        bar.set_style(style);
    }
    bar
}

const COUNTED: &str = "\
Bytes a row: 22 to find it (8 of hash, 14 of table). LRU adds 8 of links; LFU 8 of links and 4 of
count, and the counts of rows that are not in memory are free; S3-FIFO 4 of queue, 1 of frequency
and 4 of ghosts. Belady and perfect static know the trace for nothing. Ours is what the engine
allocates: state, table, lists and ghosts. Ours alone keeps the rows of leases pinned and flushes
in steps. All start empty; a row's first use is a miss.";

fn print(args: &ReplayArgs, race: &Race<'_>, outcomes: &[Outcome], written: f64) -> Result<()> {
    let accesses = race.accesses;
    let (batches, total) = (accesses.batches(), accesses.total());
    let first_uses = accesses.distinct() as f64 / total as f64;
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{}: {batches} batches, {total} uses of {} keys; {} MiB of cache, rows of {} B",
        args.file.display(),
        accesses.distinct(),
        args.cache_mib,
        args.row_bytes
    )?;
    writeln!(
        out,
        "first uses, which nobody can hit: {:.2} %\n",
        100.0 * first_uses
    )?;
    let late = format!("after batch {}", race.skip);
    writeln!(
        out,
        "{:<15} {:>10} {:>12} {:>9} {:>18}",
        "policy", "rows", "+ B a row", "hit rate", late
    )?;
    for o in outcomes {
        writeln!(
            out,
            "{:<15} {:>10} {:>12} {:>7.2} % {:>16.2} %",
            o.name,
            o.rows,
            o.meta_bytes,
            100.0 * o.hit_rate,
            100.0 * o.hit_rate_late
        )?;
    }
    writeln!(
        out,
        "\nours flushed {written:.4} rows for each use\n\n{COUNTED}"
    )?;
    if args.json {
        let objects: Vec<_> = outcomes
            .iter()
            .map(|o| {
                json!({
                    "policy": o.id, "rows": o.rows, "meta_bytes": o.meta_bytes,
                    "hit_rate": o.hit_rate, "hit_rate_late": o.hit_rate_late,
                })
            })
            .collect();
        writeln!(out, "{}", json!(objects))?;
    }
    Ok(())
}
