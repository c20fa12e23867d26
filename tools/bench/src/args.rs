//! What did the user ask for?
//!
//! - A flag is defined once, here, with its unit and default; `--tiny` changes defaults only.
//! - A fault of the user's ends with exit code 16 (clap's own and [`Usage`]), anything else with 8.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use anyhow::{Context as _, Result};
use clap::{Parser, ValueEnum};
use hps::{CreateOptions, Optimizer, RuntimeOptions, TableDescriptor};
use hps_tools::cli;
pub use hps_tools::cli::Usage;

use crate::fixture::Fixture;
use crate::trace::format::VERSION as TRACE_VERSION;

/// Measures an hps store beside the limits of the machine, in one run.
///
/// Every figure is a median over rounds; each round measures the limit and then the work. The
/// store's rows are loaded once per directory and used by all workloads of the invocation.
///
/// Exit codes: 0 done, 8 could not run, 16 wrong arguments.
#[derive(Parser, Debug, Clone)]
#[command(
    name = "hps-bench",
    version,
    long_version = long_version(),
    max_term_width = 100,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub struct Args {
    /// What to measure: workloads and groups, in any number.
    #[arg(value_name = "WORKLOAD", value_enum, required_unless_present = "child")]
    pub workloads: Vec<Name>,
    /// Rows of the store. [default: 8000000; tiny 20000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1000..=1 << 31))]
    pub rows: Option<u64>,
    /// Weights of a row. [default: 64]
    #[arg(long, value_name = "N", default_value_t = 64,
        value_parser = clap::value_parser!(u16).range(1..=8192))]
    pub dim: u16,
    /// Update rule; decides how wide a row is.
    #[arg(long, value_enum, default_value_t = Rule::Adagrad)]
    pub optimizer: Rule,
    /// Samples of a batch, before duplicates are taken out. [default: 32768; tiny 1024]
    #[arg(long, value_name = "SAMPLES",
        value_parser = clap::value_parser!(u32).range(16..=1 << 22))]
    pub batch: Option<u32>,
    /// Exponent of the key distribution of `train` and `compaction`; 0: uniform.
    #[arg(long, value_name = "THETA", default_value_t = 0.99, value_parser = theta)]
    pub zipf: f64,
    /// Cache of out-of-memory workloads in MiB; the index comes on top, and the ideal model gets
    /// the cache only.
    #[arg(long, value_name = "MIB", conflicts_with = "memory_mib",
        value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    pub cache_mib: Option<u64>,
    /// All memory of out-of-memory workloads in MiB: the cache gets what the index and a constant
    /// of 40 MiB leave. [default: a quarter of the rows' bytes, in steps of 64 MiB]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    pub memory_mib: Option<u64>,
    /// Threads of the store and of the limits.
    #[arg(long, value_name = "N", default_value_t = 2,
        value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
    /// Seconds of each measured window. [default: 10; tiny 0.2]
    #[arg(long, value_name = "S", value_parser = positive)]
    pub seconds: Option<f64>,
    /// Most seconds of a warm-up; it ends earlier when the hit rate has settled.
    /// [default: 180; tiny 2]
    #[arg(long, value_name = "S", value_parser = positive)]
    pub warmup_seconds: Option<f64>,
    /// Rounds of limit and work. [default: 3; tiny 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub rounds: Option<u16>,
    /// Directory for stores and probes, made if missing. [default: a temporary one, removed]
    #[arg(long, value_name = "PATH")]
    pub dir: Option<PathBuf>,
    /// Leave the loaded store in --dir; a later run with the same rows uses it again.
    #[arg(long, requires = "dir")]
    pub keep: bool,
    /// Seed of keys and draws.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Batches whose rows are fetched ahead, with tickets; 0: plain pulls.
    #[arg(long, value_name = "BATCHES", default_value_t = 2,
        value_parser = clap::value_parser!(u8).range(0..=64))]
    pub depth: u8,
    /// Batches between checkpoints in `train`; 0: none.
    #[arg(long, value_name = "BATCHES", default_value_t = 0)]
    pub checkpoint_every: u64,
    /// `reopen`: seconds of training, with five checkpoints, before more rounds of opening.
    #[arg(long, value_name = "S", value_parser = positive)]
    pub churn_seconds: Option<f64>,
    /// Shards of the store. [default: the store's own]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub shards: Option<u16>,
    /// Reads in flight per thread of the store. [default: the store's own]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub io_depth: Option<u16>,
    /// A directory on another device: each store gets a data directory in each that is named. May be given several
    /// times. [default: one, in the store's directory]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Vec<PathBuf>,
    /// Size of the store's parameter files in MiB. [default: the store's own]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub file_mib: Option<u16>,
    /// Space bound of the store: `current` stays under it times live. [default: the store's own]
    #[arg(long, value_name = "X", value_parser = positive)]
    pub space_bound: Option<f64>,
    /// Small enough for a test: the figures mean nothing.
    #[arg(long)]
    pub tiny: bool,
    /// Print, as the last line, a JSON array with one object per workload.
    #[arg(long)]
    pub json: bool,
    /// Draw hit rate, SSD bytes and stall per batch of the last `train` as SVG.
    #[arg(long, value_name = "SVG")]
    pub plot: Option<PathBuf>,
    /// Record the keys of the batches of `train`, warm-up included, for `hps-bench replay`.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// What else there is.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Internal: open the store in this directory, change rows, and wait to be killed.
    #[arg(long, value_name = "PATH", hide = true)]
    pub child: Option<PathBuf>,
}

fn long_version() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let stores = cli::version();
        format!("{stores}, traces of format version {TRACE_VERSION}")
    });
    &TEXT
}

/// What hps-bench does beside measuring.
#[derive(clap::Subcommand, Debug, Clone)]
pub enum Command {
    /// Replays keys through the store's cache and through others with as many rows, and as many bytes.
    ///
    /// Misses of each, of the whole trace and of its later part, and those of ours for each of theirs.
    /// The trace is a file that `--trace` wrote, or drawn in memory.
    Replay(Box<crate::trace::ReplayArgs>),
    /// Hits of a store with 26 tables, of which another is hot from the middle on.
    ///
    /// The tables have 3 to 10^6 keys, dims of 8 to 128 and three optimizers; the cache is a tenth of
    /// their bytes. Beside the hit rate of each five batches stands that of the best fixed split of the
    /// same bytes between the tables, found by simulation.
    HotTable(crate::hot_table::run::HotTableArgs),
    /// Rows of whole passes, read and written back: HugeCTR's test of its Embedding Training Cache.
    ///
    /// Ten passes, twice: the rows of one are read into a buffer, those of the one before are written
    /// back. With the whole table in memory, with two passes, with this store's own cache of the same
    /// bytes, and with none; beside them what memory and device give.
    Etc(crate::etc::EtcArgs),
    /// What each byte of a store is for while it trains, and what the process really holds.
    ///
    /// A line for each purpose, in all and for each row in memory or each key; beside them VmRSS, VmHWM
    /// and RssAnon of the process, and what is in neither.
    Memory(crate::memory_table::MemoryArgs),
    /// Compares two builds of hps-bench, run by turns: is the new one slower?
    ///
    /// Work in memory is judged by rows a second, which may fall to 0.97; work on the device by what a
    /// row costs (processor time, device operations, bytes written), which may grow to 1.03. Each is a
    /// ratio new / old with a 95 % interval: Student's t of the logarithms of the pairs' ratios. Device
    /// operations are those of the whole device: nothing else should use it meanwhile.
    ///
    /// Exit codes: 0 nothing is slower, 1 something is slower, 4 nothing is slower but something is
    /// undecided (more pairs would tell), 8 could not run, 16 wrong arguments, 32 stopped by Ctrl-C.
    Paired(super::paired::PairedArgs),
}

/// Names on the command line: workloads first, then groups.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// Every row once, in random order, with a closing checkpoint.
    Load,
    /// The same by prefetches, one call ahead, and pushes.
    LoadPush,
    /// Pulls of resident rows, uniform.
    PullHit,
    /// Pushes to resident rows, uniform.
    PushHit,
    /// Pulls of cold rows, uniform.
    PullMiss,
    /// Pulls of 26 tables in one call, beside one table with as many keys: hits, then cold rows.
    Tables,
    /// Out of memory: pull, change and push zipf batches.
    Train,
    /// The same with every row in memory.
    TrainMemory,
    /// Pull and push of keys that the store has never seen, in memory.
    FirstTouch,
    /// Checkpoints: trainer idle, and beside training.
    Checkpoint,
    /// Opening after a clean close and after kill -9.
    Reopen,
    /// How soon the store is as fast as before after kill -9, rows read back or not.
    WarmRestart,
    /// Churn of a store that never checkpoints: amplification, and pull latency while compacting.
    Compaction,
    /// Bytes per key of the index as it grows.
    Index,
    /// How the cost of a row grows from 1 M to 64 M rows of dim 8.
    Growth,
    /// Group: load.
    W1,
    /// Group: train at zipf 0.99.
    W2a,
    /// Group: train at zipf 1.2.
    W2b,
    /// Group: pull-miss.
    W3,
    /// Group: pull-hit, push-hit, train-memory.
    W4,
    /// Group: reopen.
    W5,
    /// Group: everything.
    All,
}

/// One thing to measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Job {
    /// The workload; never a group.
    pub name: Name,
    /// Its key distribution.
    pub zipf: f64,
}

/// Names of the update rules on the command line.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Rule {
    Sgd,
    Momentum,
    Nesterov,
    Adagrad,
    RowwiseAdagrad,
    Adam,
    Ftrl,
}

impl Rule {
    /// The store's name of it.
    #[must_use]
    pub fn optimizer(self) -> Optimizer {
        match self {
            Rule::Sgd => Optimizer::Sgd,
            Rule::Momentum => Optimizer::Momentum,
            Rule::Nesterov => Optimizer::Nesterov,
            Rule::Adagrad => Optimizer::Adagrad,
            Rule::RowwiseAdagrad => Optimizer::RowwiseAdagrad,
            Rule::Adam => Optimizer::Adam,
            Rule::Ftrl => Optimizer::Ftrl,
        }
    }
}

/// A number of seconds or the like.
pub(super) fn positive(text: &str) -> std::result::Result<f64, String> {
    match text.parse::<f64>() {
        Ok(x) if x.is_finite() && x > 0.0 => Ok(x),
        _ => Err("must be a finite number above 0".to_owned()),
    }
}

pub(crate) fn theta(text: &str) -> std::result::Result<f64, String> {
    match text.parse::<f64>() {
        Ok(x) if (0.0..=10.0).contains(&x) => Ok(x),
        _ => Err("must be 0 to 10".to_owned()),
    }
}

impl Args {
    /// The flags of a run that names one workload and nothing else.
    pub(crate) fn of_workload(name: &str, tiny: bool) -> Args {
        let tiny = tiny.then_some("--tiny");
        Args::parse_from(["hps-bench", name].into_iter().chain(tiny))
    }

    /// The workloads that names and groups stand for, each once, in the order they were given.
    #[must_use]
    pub fn jobs(&self) -> Vec<Job> {
        let mut jobs: Vec<Job> = Vec::new();
        let mut add = |names: &[Name], zipf: f64| {
            for name in names {
                let job = Job { name: *name, zipf };
                if !jobs.contains(&job) {
                    jobs.push(job);
                }
            }
        };
        for name in &self.workloads {
            match name {
                Name::W1 => add(&[Name::Load], self.zipf),
                Name::W2a => add(&[Name::Train], 0.99),
                Name::W2b => add(&[Name::Train], 1.2),
                Name::W3 => add(&[Name::PullMiss], self.zipf),
                Name::W4 => add(&MEMORY[..3], self.zipf),
                Name::W5 => add(&[Name::Reopen], self.zipf),
                Name::All => {
                    add(&MEMORY, self.zipf);
                    add(&[Name::Load, Name::LoadPush, Name::PullMiss], self.zipf);
                    add(&[Name::Train], 0.99);
                    add(&[Name::Train], 1.2);
                    add(&ALONE, self.zipf);
                }
                one => add(&[*one], self.zipf),
            }
        }
        jobs
    }

    /// The flags with their defaults put in.
    #[must_use]
    pub fn settings(&self) -> Settings {
        let tiny = self.tiny;
        let rows = self.rows.unwrap_or(if tiny { 20_000 } else { 8_000_000 });
        let mut descriptor = TableDescriptor::new("bench", usize::from(self.dim));
        descriptor.optimizer = self.optimizer.optimizer();
        let batch = self.batch.unwrap_or(if tiny { 1024 } else { 32_768 });
        let quarter = rows * descriptor.row_bytes() as u64 / 4;
        let memory_bytes = match self.memory_mib {
            Some(mib) => mib << 20,
            None => quarter.next_multiple_of(64 << 20),
        };
        // A test's memory would not even hold that constant.
        let tiny_mib = (tiny && self.memory_mib.is_none()).then_some(6);
        let cache_mib = self.cache_mib.or(tiny_mib);
        Settings {
            rows,
            dim: usize::from(self.dim),
            descriptor,
            batch: usize::try_from(batch).unwrap_or(usize::MAX),
            cache_bytes: cache_mib.map(|mib| mib << 20),
            memory_bytes,
            threads: usize::from(self.threads),
            seconds: self.seconds.unwrap_or(if tiny { 0.2 } else { 10.0 }),
            warmup_seconds: self
                .warmup_seconds
                .unwrap_or(if tiny { 2.0 } else { 180.0 }),
            rounds: usize::from(self.rounds.unwrap_or(if tiny { 1 } else { 3 })),
            zipf: self.zipf,
            seed: self.seed,
            depth: usize::from(self.depth),
            checkpoint_every: self.checkpoint_every,
            churn_seconds: self.churn_seconds,
            tiny,
            data_dirs: Vec::new(),
            root: PathBuf::new(),
            runtime: self.runtime(),
        }
    }

    fn runtime(&self) -> RuntimeOptions {
        let mut options = RuntimeOptions::new().threads(usize::from(self.threads));
        if let Some(shards) = self.shards {
            options.shards = usize::from(shards);
        }
        if let Some(depth) = self.io_depth {
            options.io_depth = usize::from(depth);
        }
        if let Some(mib) = self.file_mib {
            options.file_bytes = u64::from(mib) << 20;
        }
        if let Some(bound) = self.space_bound {
            options.space_bound = bound;
        }
        options
    }
}

const MEMORY: [Name; 4] = [
    Name::PullHit,
    Name::PushHit,
    Name::TrainMemory,
    Name::FirstTouch,
];
const ALONE: [Name; 7] = [
    Name::Reopen,
    Name::WarmRestart,
    Name::Checkpoint,
    Name::Compaction,
    Name::Index,
    Name::Growth,
    Name::Tables,
];

/// What a run is done with: the flags, resolved.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Rows of the store.
    pub rows: u64,
    /// Weights of a row.
    pub dim: usize,
    /// The table.
    pub descriptor: TableDescriptor,
    /// Samples of a batch.
    pub batch: usize,
    /// Cache of out-of-memory workloads, where it was given as such.
    pub cache_bytes: Option<u64>,
    /// All memory of out-of-memory workloads.
    pub memory_bytes: u64,
    /// Where stores have their data directories, by their paths below `root`; empty: with the store.
    pub data_dirs: Vec<PathBuf>,
    /// The directory of the run.
    pub root: PathBuf,
    /// Threads of store and limits.
    pub threads: usize,
    /// Seconds of a window.
    pub seconds: f64,
    /// Most seconds of a warm-up.
    pub warmup_seconds: f64,
    /// Rounds.
    pub rounds: usize,
    /// Exponent of the key distribution.
    pub zipf: f64,
    /// Seed of keys and draws.
    pub seed: u64,
    /// Batches fetched ahead.
    pub depth: usize,
    /// Batches between checkpoints; 0: none.
    pub checkpoint_every: u64,
    /// Seconds of training before `reopen` opens once more.
    pub churn_seconds: Option<f64>,
    /// Test size.
    pub tiny: bool,
    /// The store's options but for its cache.
    pub runtime: RuntimeOptions,
}

/// What a process has beside cache and index: what the store may take at most is 32 MiB, and mostly 18, the trainer's arrays
/// 16. With 8 M rows of 512 B in 1 GiB, VmHWM is 1 GiB.
const BESIDE_BYTES: u64 = 40 << 20;

impl Settings {
    /// The data directories of a store, where they are not in its own.
    fn data_directories(&self, store: &Path) -> impl Iterator<Item = PathBuf> {
        let name = store.strip_prefix(&self.root).unwrap_or(store);
        self.data_dirs.iter().map(move |dir| dir.join(name))
    }

    /// Devices that its stores are on.
    #[must_use]
    pub fn devices(&self) -> usize {
        let device = |dir: &PathBuf| fs::metadata(dir).map(|found| found.dev()).unwrap_or(0);
        let devices: BTreeSet<u64> = self.data_dirs.iter().map(device).collect();
        devices.len().max(1)
    }

    /// How a store is made at this path: its data directories are made, and empty.
    ///
    /// # Errors
    /// When one can't be made.
    pub fn create_options(&self, store: &Path) -> Result<CreateOptions> {
        let directories: Vec<PathBuf> = self.data_directories(store).collect();
        for directory in &directories {
            let _missing = fs::remove_dir_all(directory);
            let made = fs::create_dir_all(directory);
            made.with_context(|| format!("make {}", directory.display()))?;
        }
        Ok(match directories.is_empty() {
            true => CreateOptions::new(),
            false => CreateOptions::new().data_directories(directories),
        })
    }

    /// The files of rows of a store, wherever its data directories are.
    #[must_use]
    pub fn data_files(&self, store: &Path) -> Vec<PathBuf> {
        let elsewhere = self.data_directories(store);
        let places = std::iter::once(store.to_path_buf()).chain(elsewhere);
        places
            .flat_map(|place| Fixture::data_files(&place))
            .collect()
    }

    /// Bytes of a row.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.descriptor.row_bytes()
    }

    /// The cache of an out-of-memory workload over an index of that many bytes.
    ///
    /// # Errors
    /// A [`Usage`] error when the memory does not even hold the index.
    pub fn cache_for(&self, index_bytes: u64) -> Result<u64> {
        if let Some(bytes) = self.cache_bytes {
            return Ok(bytes);
        }
        let left = self.memory_bytes.checked_sub(index_bytes + BESIDE_BYTES);
        match left {
            Some(left) if left >= 1 << 20 => Ok(left),
            _ => Err(Usage(format!(
                "{} MiB of memory hold no cache beside an index of {} MiB and {} MiB; give more \
                 --memory-mib, or --cache-mib",
                self.memory_bytes >> 20,
                index_bytes >> 20,
                BESIDE_BYTES >> 20
            ))
            .into()),
        }
    }

    /// The store's options with this cache.
    #[must_use]
    pub fn options(&self, cache_bytes: u64) -> RuntimeOptions {
        self.runtime.clone().cache_bytes(cache_bytes)
    }

    /// A cache that holds `rows` rows, with what a store keeps beside each.
    #[must_use]
    pub fn cache_of(&self, rows: u64) -> u64 {
        rows * (self.row_bytes() as u64 + 64) * 5 / 4 + (64 << 20)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Args {
        Args::try_parse_from([&["hps-bench"], words].concat()).unwrap()
    }

    #[test]
    fn groups_stand_for_workloads_and_none_is_named_twice() {
        let jobs = parse(&["w4", "pull-hit", "w2b", "train", "w2a"]).jobs();
        let names: Vec<Name> = jobs.iter().map(|j| j.name).collect();
        assert_eq!(
            names,
            [
                Name::PullHit,
                Name::PushHit,
                Name::TrainMemory,
                Name::Train,
                Name::Train
            ]
        );
        assert_eq!((jobs[3].zipf, jobs[4].zipf), (1.2, 0.99));
        let all = parse(&["all"]).jobs();
        let groups = [
            Name::W1,
            Name::W2a,
            Name::W2b,
            Name::W3,
            Name::W4,
            Name::W5,
            Name::All,
        ];
        for name in Name::value_variants() {
            let found = all.iter().filter(|j| j.name == *name).count();
            let expected = match name {
                Name::Train => 2,
                name if groups.contains(name) => 0,
                _ => 1,
            };
            assert_eq!(found, expected, "{name:?}");
        }
    }

    #[test]
    fn memory_in_all_is_cache_and_index_and_a_constant() {
        let settings = parse(&["train"]).settings();
        assert_eq!((settings.rows, settings.row_bytes()), (8_000_000, 512));
        assert_eq!(
            settings.memory_bytes,
            1 << 30,
            "a quarter of 4.1 GB, in steps of 64 MiB"
        );
        assert_eq!(
            settings.cache_for(160 << 20).unwrap(),
            (1024 - 160 - 40) << 20
        );
        let error = settings.cache_for(1 << 30).unwrap_err();
        assert!(error.downcast_ref::<Usage>().is_some());
        let given = parse(&["train", "--cache-mib", "100"]).settings();
        assert_eq!(given.cache_for(160 << 20).unwrap(), 100 << 20);
        assert!(Args::try_parse_from(["hps-bench"]).is_err());
        assert!(Args::try_parse_from(["hps-bench", "load", "--zipf", "-1"]).is_err());
    }
}
