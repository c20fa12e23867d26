//! What is each byte of an open store for, and what does the process really hold? `hps-bench memory`.
//!
//! - A store is loaded by another process, opened, and trained for a while with checkpoints beside it, in memory
//!   that holds a part of its rows; a thread reads the store's own figures and the kernel's every
//!   few milliseconds.
//! - Told are the last reading and the most of each line. The process' own part (the program, keys
//!   and gradients of the trainer) is what it held before the store was opened.
//! - The difference is what nobody counted: threads, arrays of running batches, the allocator.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use hps::{Stats, Store};
use serde_json::{Value, json};

use crate::args::{Settings, positive};
use crate::fixture::Fixture;
use crate::keys::{Distribution, Draw};
use crate::machine;
use crate::pipeline::{Drawn, Trainer};
use crate::report::Notes;

/// Time between readings.
const PAUSE: Duration = Duration::from_millis(5);

/// What `hps-bench memory` was asked for.
#[derive(Args, Debug, Clone)]
pub struct MemoryArgs {
    /// Rows of the store. [default: 8000000; tiny 20000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1000..=1 << 31))]
    pub rows: Option<u64>,
    /// Weights of a row; AdaGrad doubles them.
    #[arg(long, value_name = "N", default_value_t = 64,
        value_parser = clap::value_parser!(u16).range(1..=8192))]
    pub dim: u16,
    /// Samples of a batch, before duplicates are taken out. [default: 32768; tiny 1024]
    #[arg(long, value_name = "SAMPLES",
        value_parser = clap::value_parser!(u32).range(16..=1 << 22))]
    pub batch: Option<u32>,
    /// Exponent of the key distribution; 0: uniform.
    #[arg(long, value_name = "THETA", default_value_t = 0.99, value_parser = crate::args::theta)]
    pub zipf: f64,
    /// Cache of the store in MiB. [default: a fifth of the rows' bytes]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    pub cache_mib: Option<u64>,
    /// Seconds of training. [default: 60; tiny 0.5]
    #[arg(long, value_name = "S", value_parser = positive)]
    pub seconds: Option<f64>,
    /// Batches between checkpoints; 0: none.
    #[arg(long, value_name = "BATCHES", default_value_t = 200)]
    pub checkpoint_every: u64,
    /// Threads of the store.
    #[arg(long, value_name = "N", default_value_t = 2,
        value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
    /// Directory for the store, made if missing. [default: a temporary one, removed]
    #[arg(long, value_name = "PATH")]
    pub dir: Option<PathBuf>,
    /// Seed of keys and draws.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Internal: load the store into --dir, leave it there, and end.
    #[arg(long, hide = true, requires = "dir")]
    pub load_only: bool,
    /// Small enough for a test: the figures mean nothing.
    #[arg(long)]
    pub tiny: bool,
    /// Print, as the last line, a JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Of what a line's bytes are told beside the total.
#[derive(Clone, Copy)]
enum Each {
    Slot,
    Key,
    Nothing,
}

/// One purpose of memory.
struct Line {
    name: &'static str,
    id: &'static str,
    each: Each,
    bytes: fn(&Stats) -> u64,
}

const fn line(name: &'static str, id: &'static str, each: Each, bytes: fn(&Stats) -> u64) -> Line {
    Line {
        name,
        id,
        each,
        bytes,
    }
}

/// What the cache has beside what its lines say.
fn cache_rest(s: &Stats) -> u64 {
    let said = s.cache_row_bytes
        + s.cache_state_bytes
        + s.cache_hash_table_bytes
        + s.cache_order_bytes
        + s.cache_frequency_bytes;
    s.cache_bytes.saturating_sub(said)
}

/// All purposes; each byte that the store counts is in one of them.
const LINES: [Line; 15] = [
    line("rows", "rows", Each::Slot, |s| s.cache_row_bytes),
    line("states of rows", "states", Each::Slot, |s| {
        s.cache_state_bytes
    }),
    line("hash table", "hash_table", Each::Slot, |s| {
        s.cache_hash_table_bytes
    }),
    line("order", "order", Each::Slot, |s| s.cache_order_bytes),
    line("frequencies", "frequencies", Each::Slot, |s| {
        s.cache_frequency_bytes
    }),
    line("rest of the cache", "cache_rest", Each::Slot, cache_rest),
    line("index", "index", Each::Key, |s| s.index_bytes),
    line("read buffers", "read_buffers", Each::Nothing, |s| {
        s.read_buffer_bytes
    }),
    line("write buffers", "write_buffers", Each::Nothing, |s| {
        s.write_buffer_bytes
    }),
    line("flushes and drains", "flushes", Each::Nothing, |s| {
        s.flush_bytes
    }),
    line("compactions", "compactions", Each::Nothing, |s| {
        s.compaction_bytes
    }),
    line("warm restart", "warm", Each::Nothing, |s| s.warm_bytes),
    line("index snapshot", "snapshot", Each::Nothing, |s| {
        s.snapshot_buffer_bytes
    }),
    line("arrays of leases", "leases", Each::Nothing, |s| {
        s.lease_bytes
    }),
    line("arrays kept", "arrays", Each::Nothing, |s| s.array_bytes),
];

/// The first lines that are inside the cache, and that of the index.
const CACHE_LINES: usize = 6;
const INDEX_LINE: usize = 6;

/// The kernel's figures of the process.
#[derive(Clone, Copy, Debug, Default)]
struct Process {
    rss: u64,
    anonymous: u64,
}

impl Process {
    fn now() -> Process {
        Process {
            rss: machine::rss_bytes(),
            anonymous: machine::anonymous_bytes(),
        }
    }
}

/// Readings of a run.
#[derive(Debug, Default)]
struct Readings {
    last: [u64; LINES.len()],
    most: [u64; LINES.len()],
    /// Most of all lines but cache and index, at one reading.
    beside_most: u64,
    /// The process' anonymous memory over what rows may take and index; its own part is taken off. Last
    /// and most.
    constant: [u64; 2],
    /// The same over `cache_bytes`, which some buffers come out of, and index.
    beyond_budget_most: u64,
    /// The difference of the process' anonymous memory and all lines, and the most where rows have all that
    /// they may take: huge pages that are touched at their beginning are there before the store counts them.
    difference: [i64; 2],
    process: Process,
    slots: u64,
    capacity: u64,
    keys: u64,
    count: usize,
}

impl Readings {
    fn add(&mut self, stats: &Stats, process: Process, own: u64, cache: u64) {
        for (i, line) in LINES.iter().enumerate() {
            self.last[i] = (line.bytes)(stats);
            self.most[i] = self.most[i].max(self.last[i]);
        }
        let counted: u64 = self.last.iter().sum();
        let beside: u64 = self.last[INDEX_LINE + 1..].iter().sum();
        self.beside_most = self.beside_most.max(beside);
        let used = process.anonymous.saturating_sub(own);
        // As the store divides its budget.
        let rows = cache.saturating_sub(stats.buffer_bytes).max(cache / 2);
        self.constant[0] = used.saturating_sub(rows + self.last[INDEX_LINE]);
        self.constant[1] = self.constant[1].max(self.constant[0]);
        let beyond = used.saturating_sub(cache + self.last[INDEX_LINE]);
        self.beyond_budget_most = self.beyond_budget_most.max(beyond);
        let beyond =
            |bytes: u64| i64::try_from(used).unwrap_or(0) - i64::try_from(bytes).unwrap_or(0);
        self.difference[0] = beyond(counted);
        let full = rows.max(counted - beside - self.last[INDEX_LINE]);
        let full = beyond(full + self.last[INDEX_LINE] + beside);
        self.difference[1] = match self.count {
            0 => full,
            _ => self.difference[1].max(full),
        };
        self.process = process;
        self.slots = stats.resident_rows;
        self.capacity = stats.capacity_rows;
        self.keys = stats.index_keys;
        self.count += 1;
    }

    fn each(&self, line: &Line, bytes: u64) -> f64 {
        let parts = match line.each {
            Each::Slot => self.slots,
            Each::Key => self.keys,
            Each::Nothing => return 0.0,
        };
        bytes as f64 / parts.max(1) as f64
    }
}

/// Trains, and prints what the memory is for.
///
/// # Errors
/// What the store or the system says.
pub fn run(args: &MemoryArgs) -> Result<()> {
    let settings = args.settings();
    let fixture = Fixture::at(args.dir.as_deref(), args.load_only)?;
    if args.load_only {
        fixture.load(&settings)?;
        return Ok(());
    }
    let notes = Notes::default();
    let (rows, row_bytes) = (settings.rows, settings.row_bytes() as u64);
    let cache = match args.cache_mib {
        Some(mib) => mib << 20,
        None => (rows * row_bytes / 5).max(6 << 20),
    };
    notes.say("memory: loading the store");
    args.load_elsewhere(fixture.root())?;
    let mut draw = Draw::new(rows, Distribution::from_theta(args.zipf), settings.seed, 1);
    // What the trainer will take, touched before the store is there.
    let floats = std::hint::black_box(vec![0.5f32; 2 * settings.batch * settings.dim]);
    let own_floats = floats.len() as u64 * 4;
    drop(floats);
    let own = Process::now();
    let own_bytes = own.anonymous + own_floats;
    machine::reset_peak_rss();
    notes.say("memory: training");
    let store = Store::open(&fixture.rows(), settings.options(cache))?;
    let table = store.table(&settings.descriptor.name)?;
    // Its arrays are there at the last reading, too.
    let mut trainer = Trainer::new(&store, table, &settings);
    let done = AtomicBool::new(false);
    let readings = std::thread::scope(|scope| {
        let reader = scope.spawn(|| read(&store, &done, own_bytes, cache));
        let trained = train(&mut trainer, &settings, &mut draw);
        done.store(true, Ordering::Relaxed);
        let readings = reader.join().ok().context("the reader panicked");
        trained.and(readings)
    })?;
    let peak = machine::peak_rss_bytes();
    drop(trainer);
    store.close_discarding();
    notes.done();
    print(args, cache, &readings, own, own_bytes, peak)
}

impl MemoryArgs {
    /// Loads the store in a process of its own, whose memory is not this one's.
    fn load_elsewhere(&self, root: &Path) -> Result<()> {
        let mut child = Command::new(std::env::current_exe()?);
        child.args(["memory", "--load-only", "--dir"]).arg(root);
        let (dim, threads) = (self.dim.to_string(), self.threads.to_string());
        child.args(["--dim", &dim, "--threads", &threads]);
        child.args(["--seed", &self.seed.to_string()]);
        if let Some(rows) = self.rows {
            child.args(["--rows", &rows.to_string()]);
        }
        if self.tiny {
            child.arg("--tiny");
        }
        let status = child.status().context("start the load")?;
        ensure!(status.success(), "the load ended with {status}");
        Ok(())
    }

    fn settings(&self) -> Settings {
        let words = crate::args::Args::of_workload("train", self.tiny);
        let mut settings = words.settings();
        if let Some(rows) = self.rows {
            settings.rows = rows;
        }
        if let Some(batch) = self.batch {
            settings.batch = usize::try_from(batch).unwrap_or(usize::MAX);
        }
        settings.dim = usize::from(self.dim);
        settings.descriptor.dim = settings.dim;
        settings.memory_bytes = (settings.rows * settings.row_bytes() as u64).max(1 << 28);
        settings.threads = usize::from(self.threads);
        settings.runtime.threads = settings.threads;
        settings.seconds = self.seconds.unwrap_or(if self.tiny { 0.5 } else { 60.0 });
        settings.seed = self.seed;
        settings.checkpoint_every = self.checkpoint_every;
        settings
    }
}

fn train(trainer: &mut Trainer<'_>, settings: &Settings, draw: &mut Draw) -> Result<()> {
    let mut supply = Drawn::new(draw, settings.batch);
    trainer.run(&mut supply, settings.seconds, &mut |_| {})?;
    trainer.end_checkpoint()
}

/// Reads until the training is over, and once more.
fn read(store: &Store, done: &AtomicBool, own: u64, cache: u64) -> Readings {
    let mut readings = Readings::default();
    loop {
        let last = done.load(Ordering::Relaxed);
        readings.add(&store.stats(), Process::now(), own, cache);
        if last {
            return readings;
        }
        std::thread::sleep(PAUSE);
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn print(
    args: &MemoryArgs,
    cache: u64,
    readings: &Readings,
    own: Process,
    own_bytes: u64,
    peak: u64,
) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let r = readings;
    writeln!(
        out,
        "cache of {:.1} MiB; {} rows in memory of {} that fit, {} keys; {} readings, MiB\n",
        mib(cache),
        r.slots,
        r.capacity,
        r.keys,
        r.count
    )?;
    writeln!(
        out,
        "{:<28} {:>10} {:>10} {:>18}",
        "", "at the end", "most", "B each"
    )?;
    for (i, line) in LINES.iter().enumerate() {
        let each = match line.each {
            Each::Slot => format!("{:.2} a row", r.each(line, r.last[i])),
            Each::Key => format!("{:.2} a key", r.each(line, r.last[i])),
            Each::Nothing => String::new(),
        };
        let (last, most) = (mib(r.last[i]), mib(r.most[i]));
        writeln!(
            out,
            "{:<28} {last:>10.2} {most:>10.2} {each:>18}",
            line.name
        )?;
    }
    let counted: u64 = r.last.iter().sum();
    let signed = |bytes: i64| bytes as f64 / f64::from(1 << 20);
    writeln!(
        out,
        "{:<28} {:>10.2}",
        "all that the store counts",
        mib(counted)
    )?;
    writeln!(
        out,
        "{:<28} {:>10.2} {:>10.2}",
        "counted beside cache, index",
        mib(r.last[INDEX_LINE + 1..].iter().sum()),
        mib(r.beside_most)
    )?;
    writeln!(
        out,
        "{:<28} {:>10.2} {:>10.2}",
        "held but not counted",
        signed(r.difference[0]),
        signed(r.difference[1])
    )?;
    writeln!(
        out,
        "{:<28} {:>10.2} {:>10.2}\n",
        "held beside rows, index",
        mib(r.constant[0]),
        mib(r.constant[1])
    )?;
    writeln!(
        out,
        "the process: VmRSS {:.1} (before the store {:.1}), VmHWM {:.1}, RssAnon {:.1} (before it {:.1}, \
         with the trainer's arrays {:.1})",
        mib(r.process.rss),
        mib(own.rss),
        mib(peak),
        mib(r.process.anonymous),
        mib(own.anonymous),
        mib(own_bytes),
    )?;
    writeln!(
        out,
        "held: RssAnon without its own part. It was beyond cache_bytes and index by {:.2} at most; rows: all \
         that they may take of cache_bytes",
        mib(r.beyond_budget_most)
    )?;
    if args.json {
        let lines: serde_json::Map<String, Value> = LINES
            .iter()
            .enumerate()
            .map(|(i, line)| {
                let told = json!({
                    "bytes": r.last[i], "most": r.most[i], "inside_cache": i < CACHE_LINES,
                    "each": r.each(line, r.last[i]),
                });
                (line.id.to_owned(), told)
            })
            .collect();
        let told = json!({
            "lines": lines, "counted": counted, "beside_most": r.beside_most,
            "constant": r.constant[0], "constant_most": r.constant[1],
             "beyond_budget_most": r.beyond_budget_most, "difference": r.difference[0],
            "difference_most": r.difference[1], "rss": r.process.rss, "peak_rss": peak,
            "anonymous": r.process.anonymous, "own": own_bytes, "cache_bytes": cache,
            "rows": r.slots, "capacity": r.capacity, "keys": r.keys,
        });
        writeln!(out, "{told}")?;
    }
    Ok(())
}
