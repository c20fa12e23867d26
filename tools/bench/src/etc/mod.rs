//! How fast do the rows of whole passes come and go? HugeCTR's test of its Embedding Training Cache.
//!
//! - Ten passes, twice: the rows of pass i are read into a buffer, then those of pass i - 1 are written
//!   back. Table 2 of its guide gives the keys of each pass, here divided by `--scale`.
//! - Four ways: the whole table in memory (Staged), two passes in memory (Cached), this store's own cache
//!   with the same bytes, none at all.
//! - Then the passes are trained on, once with the next one begun meanwhile and once without.
//! - Beside them stand what memory and device give in the same run, and the hits that a model on sets of
//!   keys expects.

mod ahead;
mod draw;
mod in_memory;
mod keysets;
mod policies;

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;
use hps::{CreateOptions, Optimizer, PutRows, Store, TableDescriptor};
use serde_json::{Value, json};

use crate::figures::Spread;
use crate::fixture::{Fixture, random_rows};
use crate::limits::device;
use crate::machine;
use crate::report::Notes;
use ahead::Waits;
use in_memory::{InMemory, Reached};
use keysets::Keysets;
use policies::{Phase, Way};

/// Rounds over all passes.
const ROUNDS: usize = 2;
/// Keys of a put while the table is loaded.
const LOAD_KEYS: usize = 65_536;

/// What `hps-bench etc` was asked for.
#[derive(Args, Debug, Clone)]
pub struct EtcArgs {
    /// The keys of the guide's passes, 24 to 28 million each, are divided by this. [default: 100;
    /// tiny 20000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub scale: Option<u64>,
    /// Weights of a row; there is no optimizer state, as in the guide.
    #[arg(long, value_name = "N", default_value_t = 128,
        value_parser = clap::value_parser!(u16).range(1..=8192))]
    pub dim: u16,
    /// Exponent of the distribution of keys.
    #[arg(long, value_name = "THETA", default_value_t = 0.9, value_parser = crate::args::theta)]
    pub zipf: f64,
    /// A folder with keyset files (*.keyset, i64) to take instead of drawn keys, in the order of their names.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["scale", "zipf"])]
    pub keysets: Option<PathBuf>,
    /// Memory for rows, in passes of the largest size: two blocks, one that comes in, and some room.
    #[arg(long, value_name = "PASSES", default_value_t = 3.25, value_parser = crate::args::positive)]
    pub cache_passes: f64,
    /// Ways to keep rows. [default: all]
    #[arg(long, value_enum, value_name = "WAY", value_delimiter = ',')]
    pub ways: Vec<Way>,
    /// Threads of the store and of the limits.
    #[arg(long, value_name = "N", default_value_t = 2,
        value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
    /// Directory for the stores, on the device in question. [default: a temporary one, removed]
    #[arg(long, value_name = "PATH")]
    pub dir: Option<PathBuf>,
    /// Draw bandwidths and hit rates, as the guide's figures 5 and 6: PREFIX-read.svg, PREFIX-write.svg.
    #[arg(long, value_name = "PREFIX")]
    pub plot: Option<PathBuf>,
    /// Seed of the keys.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Small enough for a test: the figures mean nothing.
    #[arg(long)]
    pub tiny: bool,
    /// Print, as the last line, a JSON object.
    #[arg(long)]
    pub json: bool,
}

impl EtcArgs {
    fn scale(&self) -> u64 {
        self.scale.unwrap_or(if self.tiny { 20_000 } else { 100 })
    }
}

/// What the device can.
#[derive(Debug, Default)]
struct Limits {
    /// Rows a second.
    random_reads: f64,
    /// Bytes a second read in order.
    in_order: f64,
}

/// Measures the four ways.
///
/// # Errors
/// What the store says, or the system.
pub fn run(args: &EtcArgs) -> Result<()> {
    hps::io::raise_descriptor_limit_to(u64::MAX);
    let notes = Notes::default();
    let fixture = Fixture::at(args.dir.as_deref(), false)?;
    notes.say("etc: drawing the keys of ten passes");
    let keysets = match &args.keysets {
        Some(folder) => Keysets::read(folder)?,
        None => Keysets::drawn(args.scale(), args.zipf, args.seed),
    };
    let descriptor = TableDescriptor::new("etc", usize::from(args.dim)).optimizer(Optimizer::Sgd);
    let largest = keysets.passes.iter().map(Vec::len).max().unwrap_or(0);
    let row_cost = descriptor.row_bytes() as f64 + 48.0;
    let cache = crate::keys::whole(args.cache_passes * largest as f64 * row_cost) + (8 << 20);
    notes.say("etc: loading all rows");
    let path = fixture.rows();
    let all_rows = keysets.union.len() as u64;
    load(&path, &descriptor, &keysets, all_rows * 600 + (64 << 20))?;
    let limits = limits(args, &fixture, &descriptor, &notes)?;
    let threads = usize::from(args.threads);
    let mut found = Vec::new();
    let is_asked = |way: &Way| args.ways.is_empty() || args.ways.contains(way);
    for way in Way::ALL.into_iter().filter(is_asked) {
        let cache = match way {
            Way::Staged => all_rows * (descriptor.row_bytes() as u64 + 64) * 9 / 8 + (64 << 20),
            _ => cache,
        };
        notes.say(&format!("etc: {}", way.name()));
        let mut beside = match way {
            Way::Staged => Some(InMemory::new(&keysets, &descriptor, threads)?),
            _ => None,
        };
        let memory = beside.as_mut();
        let phases = policies::run(&path, way, cache, threads, &keysets, ROUNDS, memory)?;
        found.push((way, cache, phases));
    }
    let mut waits = None;
    if is_asked(&Way::Bilevel) {
        notes.say("etc: the next pass beside one");
        let compute = limits.random_reads.recip();
        let run = |is_ahead| ahead::run(&path, cache, threads, &keysets, compute, is_ahead);
        waits = Some([run(false)?, run(true)?]);
    }
    notes.done();
    if let Some(prefix) = &args.plot {
        for (name, of) in [("read", 0), ("write", 1)] {
            let file = format!("{}-{name}.svg", prefix.display());
            fs::write(&file, draw::svg(name, of, &found))
                .with_context(|| format!("write {file}"))?;
        }
    }
    let measured = Measured {
        machine: machine::describe(fixture.root()),
        keysets,
        limits,
        found,
        waits,
    };
    print(args, &descriptor, &measured)
}

fn load(
    path: &std::path::Path,
    descriptor: &TableDescriptor,
    keysets: &Keysets,
    cache: u64,
) -> Result<()> {
    let options = hps::RuntimeOptions::new().cache_bytes(cache.min(1 << 30));
    let _missing = fs::remove_dir_all(path);
    let store = Store::create(path, CreateOptions::new(), options)?;
    let table = store.create_table(descriptor)?;
    let width = descriptor.row_f32s();
    let values = random_rows(LOAD_KEYS, width, 7);
    for keys in keysets.union.chunks(LOAD_KEYS) {
        store.put(table, keys, PutRows::whole(&values[..keys.len() * width]))?;
    }
    store.checkpoint(1, &[])?;
    store.close()?;
    Ok(())
}

fn limits(
    args: &EtcArgs,
    fixture: &Fixture,
    descriptor: &TableDescriptor,
    notes: &Notes,
) -> Result<Limits> {
    notes.say("etc: what the device gives");
    let threads = usize::from(args.threads);
    let (disk, files) = (device::disk(), Fixture::data_files(&fixture.rows()));
    let stride = hps::format::param_file::record_stride(descriptor.row_bytes());
    let probe = device::RandomProbe {
        block_bytes: stride.next_multiple_of(512),
        long: device::LongReads::default(),
        threads,
        depths: &[32, 64, 128],
        seconds: if args.tiny { 0.05 } else { 1.0 },
        seed: args.seed,
    };
    Ok(Limits {
        random_reads: device::random_reads(&disk, &files, &probe)?.per_second,
        in_order: device::sequential_read(&disk, &files, &[4, 8])?.per_second,
    })
}

/// What phases come to, from the third on.
#[derive(Debug, Default)]
struct Rates {
    /// Means over phases: hit rate, rows a second read and written.
    hits: f64,
    reads: f64,
    writes: f64,
    /// Rows a second over the time of all of them.
    reads_over_all: f64,
    writes_over_all: f64,
    /// Where memory was measured, too.
    of_memory: Option<Reached>,
}

impl Rates {
    fn of(phases: &[Phase]) -> Rates {
        let later = phases.get(2..).unwrap_or_default();
        let sum = |of: fn(&Phase) -> f64| later.iter().map(of).sum::<f64>();
        let mean = |of| sum(of) / later.len().max(1) as f64;
        Rates {
            of_memory: Reached::of(later),
            hits: mean(Phase::hit_rate),
            reads: mean(Phase::reads_per_s),
            writes: mean(Phase::writes_per_s),
            reads_over_all: sum(|p| p.keys as f64) / sum(|p| p.read_s),
            writes_over_all: sum(|p| p.written as f64) / sum(|p| p.write_s),
        }
    }
}

/// All that was measured.
#[derive(Debug)]
struct Measured {
    machine: Value,
    keysets: Keysets,
    limits: Limits,
    found: Vec<(Way, u64, Vec<Phase>)>,
    /// Of passes that are begun when they are needed, and of those begun a pass ahead; of Bilevel.
    waits: Option<[Waits; 2]>,
}

impl Measured {
    fn phases(&self, way: Way) -> Option<&[Phase]> {
        let mut found = self.found.iter();
        let found = found.find(|(found, ..)| *found == way);
        found.map(|(_, _, phases)| &phases[..])
    }
}

fn print(args: &EtcArgs, descriptor: &TableDescriptor, measured: &Measured) -> Result<()> {
    let Measured {
        machine,
        keysets,
        limits,
        found,
        waits,
    } = measured;
    let row_bytes = descriptor.row_bytes();
    let gib = |bytes: f64| bytes / f64::from(1 << 30);
    let mut text = format!(
        "hps-bench etc: {} passes of {} to {} keys, {} in all ({:.2} GiB of rows), dim {}\n",
        keysets.passes.len(),
        keysets.passes.iter().map(Vec::len).min().unwrap_or(0),
        keysets.passes.iter().map(Vec::len).max().unwrap_or(0),
        keysets.union.len(),
        gib((keysets.union.len() * row_bytes) as f64),
        args.dim,
    );
    let in_order = limits.in_order / row_bytes as f64;
    text.push_str(&format!(
        "limits of the device (rows/s): random reads {:.3e}, in order {in_order:.3e}\n",
        limits.random_reads
    ));
    let expected = keysets.expected_hits(policies::BLOCKS, ROUNDS);
    let mut ways = Vec::new();
    for (way, cache, phases) in found {
        let rates = Rates::of(phases);
        text.push_str(&format!(
            "\n{} ({:.2} GiB): mean of passes 2 to {}: hits {:.4}, read {:.2} GiB/s, written {:.2} GiB/s\n",
            way.name(),
            gib(*cache as f64),
            phases.len() - 1,
            rates.hits,
            gib(rates.reads * row_bytes as f64),
            gib(rates.writes * row_bytes as f64),
        ));
        if let Some(reached) = &rates.of_memory {
            text.push_str(&format!(
                "  by key in memory, before and after each round: gathered {:.2} GiB/s, updated {:.2} GiB/s; medians of passes: \
                 read {:.2} of that, written {:.2}\n",
                gib(reached.memory.gather * row_bytes as f64),
                gib(reached.memory.update * row_bytes as f64),
                reached.read,
                reached.written,
            ));
        }
        text.push_str("  pass      keys    hits   read GiB/s  written GiB/s\n");
        for (number, phase) in phases.iter().enumerate() {
            text.push_str(&format!(
                "  {number:>4} {:>9}  {:.4}   {:>10.2}  {:>13.2}\n",
                phase.keys,
                phase.hit_rate(),
                gib(phase.reads_per_s() * row_bytes as f64),
                gib(phase.writes_per_s() * row_bytes as f64),
            ));
        }
        let found: Vec<f64> = phases.iter().map(Phase::hit_rate).collect();
        ways.push(json!({
            "way": way.name(), "cache_bytes": cache, "hit_rates": found,
            "mean_hit_rate": rates.hits,
            "mean_rows_read_per_s": rates.reads, "mean_rows_written_per_s": rates.writes,
            "read_s": Spread::of(&phases.iter().map(|p| p.read_s).collect::<Vec<_>>()).json(),
            "phases": phases.iter().map(Phase::json).collect::<Vec<_>>(),
        }));
    }
    let named = ["begun when needed", "begun a pass ahead"];
    for (what, waits) in named.into_iter().zip(waits.iter().flatten()) {
        text.push_str(&format!(
            "\nBilevel, trained on, {what}: waited {:.2} s, trained {:.2} s, {} rows read\n",
            waits.wait_s, waits.train_s, waits.missed
        ));
    }
    let rates = |way| measured.phases(way).map(Rates::of).unwrap_or_default();
    let [staged, cached, bilevel, ssd_only] = Way::ALL.map(rates);
    let in_memory = staged.of_memory;
    let of_cached = measured.phases(Way::Cached).unwrap_or_default();
    let as_expected = of_cached.len() == expected.len()
        && of_cached
            .iter()
            .zip(&expected)
            .all(|(phase, hits)| phase.hits == *hits);
    let mean_keys =
        keysets.passes.iter().map(Vec::len).sum::<usize>() / keysets.passes.len().max(1);
    // Reading all files gives the rows of one pass.
    let whole_files = in_order * mean_keys as f64 / keysets.union.len().max(1) as f64;
    let best = limits.random_reads.max(whole_files);
    let ratios = json!({
        "cached_hits_as_the_model": as_expected,
        "staged_read_to_gather": in_memory.map(|reached| reached.read),
        "staged_write_to_update": in_memory.map(|reached| reached.written),
        "ssd_only_to_better_read": ssd_only.reads / best,
        "bilevel_hits_to_cached": bilevel.hits / cached.hits,
        "bilevel_read_to_cached": bilevel.reads / cached.reads,
        "bilevel_write_to_cached": bilevel.writes / cached.writes,
        "bilevel_read_to_cached_over_all_time": bilevel.reads_over_all / cached.reads_over_all,
        "bilevel_write_to_cached_over_all_time": bilevel.writes_over_all / cached.writes_over_all,
        "wait_ahead_to_wait": waits.as_ref().map(|[without, with]| with.wait_s / without.wait_s),
    });
    text.push_str(&format!("\n{}\n", serde_json::to_string_pretty(&ratios)?));
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).context("write to stdout")?;
    if args.json {
        let object = json!({
            "workload": "etc", "machine": machine, "keys": keysets.union.len(),
            "limits": { "gather_rows_per_s": in_memory.map(|reached| reached.memory.gather),
                "update_rows_per_s": in_memory.map(|reached| reached.memory.update),
                "random_reads_per_s": limits.random_reads, "in_order_bytes_per_s": limits.in_order,
                "whole_files_rows_per_s": whole_files },
            "ways": ways, "ratios": ratios,
            "begun_when_needed": waits.as_ref().map(|[without, _]| without.json()),
            "begun_ahead": waits.as_ref().map(|[_, with]| with.json()),
        });
        writeln!(out, "{object}").context("write to stdout")?;
    }
    Ok(())
}
