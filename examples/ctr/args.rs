//! What did the user ask for?
//!
//! - A flag is defined once, here, with its unit and default.
//! - A fault of the user's is a [`Usage`] error and ends with exit code 16, anything else with 8.
//! - [`fingerprint`] lists what must be equal for a run to be resumed; the other flags change
//!   speed, memory and disk, never a value.

use std::fmt;
use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, ValueEnum};
use hps::{HyperParameters, IoEngine, Optimizer, PolicyKind, RuntimeOptions};

use crate::data;

/// Trains a click model out of memory, from Criteo-layout text.
///
/// The embeddings live in an hps store; a wide part and a small network on top of them are learned
/// with them. Each batch is evaluated before it is trained on. Without DATA a planted data set,
/// whose best possible AUC is known, is written and trained on.
///
/// Exit codes: 0 done, 8 could not run, 16 wrong arguments.
#[derive(Parser, Debug, Clone)]
#[command(name = "ctr", version, max_term_width = 100)]
pub(crate) struct Args {
    /// Files of Criteo-layout text (label, 13 integers, 26 hexadecimal categoricals, tab
    /// separated), read in this order; plain or gzip (known by content); `-` is stdin.
    #[arg(value_name = "DATA")]
    pub(crate) data: Vec<PathBuf>,
    /// Folder that `hps-keyset split --from criteo-tsv --first-field 1 --data` has made, instead of
    /// DATA: goes through its passes in order, and the rows of the next pass come into memory while
    /// one is trained on.
    #[arg(long, value_name = "DIR", conflicts_with = "data")]
    pub(crate) passes: Option<PathBuf>,
    /// Directory of the store, made if missing. [default: a temporary one, removed at the end]
    #[arg(long, value_name = "PATH")]
    pub(crate) dir: Option<PathBuf>,
    /// Memory for rows, in MiB; must hold the distinct keys of depth + 1 batches, with --passes
    /// also those of two passes and of the blocks.
    #[arg(long, value_name = "MIB", default_value_t = 16,
        value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub(crate) cache_mib: u64,
    /// Embedding weights per key, beside one wide weight.
    #[arg(long, value_name = "N", default_value_t = 16,
        value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) dim: u16,
    /// Update rule of the embeddings.
    #[arg(long, value_enum, default_value_t = Rule::Adagrad)]
    pub(crate) optimizer: Rule,
    /// Learning rate of the embeddings. [default: 0.05; sgd 0.02, momentum and nesterov 0.005,
    /// adam 0.003]
    #[arg(long, value_name = "RATE", value_parser = positive, allow_negative_numbers = true)]
    pub(crate) lr: Option<f32>,
    /// Examples per batch.
    #[arg(long, value_name = "ROWS", default_value_t = 1024,
        value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub(crate) batch: u32,
    /// Batches whose rows are fetched ahead of the one being trained on; 0: none.
    #[arg(long, value_name = "BATCHES", default_value_t = 2,
        value_parser = clap::value_parser!(u8).range(0..=64))]
    pub(crate) depth: u8,
    /// Shards of the store, 1 to 256.
    #[arg(long, value_name = "N", default_value_t = 4,
        value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) shards: u16,
    /// Threads that serve the store, 1 to 256. [default: cores, at most 8]
    #[arg(long, value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) threads: Option<u16>,
    /// I/O engine; uring falls back to pread where the kernel refuses it.
    #[arg(long, value_enum, default_value_t = Io::Uring)]
    pub(crate) io: Io,
    /// Which rows leave memory first; staged: none, and the whole table is read at the start.
    #[arg(long, value_enum, default_value_t = Policy::Bilevel)]
    pub(crate) policy: Policy,
    /// Passes whose rows stay when they end, a block each; only with --policy cached. [default: 1]
    #[arg(long, value_name = "N")]
    pub(crate) blocks: Option<u32>,
    /// A pass with a lower share of its keys in blocks takes the place of the oldest block; only
    /// with --policy cached. [default: 0.8]
    #[arg(long, value_name = "SHARE")]
    pub(crate) target_hit_rate: Option<f64>,
    /// How many blocks may be replaced; only with --policy cached. [default: any number]
    #[arg(long, value_name = "N")]
    pub(crate) max_evictions: Option<u64>,
    /// Seed of the initial weights and of the planted data.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Batches between checkpoints; 0: only at the end.
    #[arg(long, value_name = "BATCHES", default_value_t = 0)]
    pub(crate) checkpoint_every: u64,
    /// Continue from the last checkpoint in --dir, or start if there is none. DATA must be the same
    /// files (known by size and by their first and last 64 KiB), wherever they are now.
    #[arg(long, requires = "dir")]
    pub(crate) resume: bool,
    /// One JSON object per batch on stdout, then one with "summary":true.
    #[arg(long)]
    pub(crate) json: bool,
    /// Also print the xxh3-128 of all rows and dense parameters.
    #[arg(long)]
    pub(crate) digest: bool,
    /// Stop at the first malformed line instead of counting it.
    #[arg(long)]
    pub(crate) strict: bool,
}

/// Names of the update rules on the command line.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    Sgd,
    Momentum,
    Nesterov,
    Adagrad,
    RowwiseAdagrad,
    Adam,
    Ftrl,
}

/// Names of the I/O engines on the command line.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Io {
    Uring,
    Pread,
}

/// Names of the policies on the command line.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    Bilevel,
    Lru,
    Staged,
    Cached,
}

/// A fault of the user's: exit code 16.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Ends the calling function with a [`Usage`] error.
pub(crate) fn usage<T>(text: impl Into<String>) -> Result<T> {
    Err(anyhow::Error::new(Usage(text.into())))
}

fn positive(text: &str) -> std::result::Result<f32, String> {
    match text.parse::<f32>() {
        Ok(x) if x.is_finite() && x > 0.0 => Ok(x),
        _ => Err("must be a finite number above 0".to_owned()),
    }
}

impl Args {
    /// The learning rate of the embeddings.
    pub(crate) fn rate(&self) -> f32 {
        self.lr.unwrap_or(match self.optimizer {
            Rule::Sgd => 0.02,
            Rule::Momentum | Rule::Nesterov => 0.005,
            Rule::Adam => 0.003,
            Rule::Adagrad | Rule::RowwiseAdagrad | Rule::Ftrl => 0.05,
        })
    }

    /// The update rule, and where its accumulator starts.
    pub(crate) fn rule(&self) -> (Optimizer, f32) {
        match self.optimizer {
            Rule::Sgd => (Optimizer::Sgd, 0.0),
            Rule::Momentum => (Optimizer::Momentum, 0.0),
            Rule::Nesterov => (Optimizer::Nesterov, 0.0),
            Rule::Adagrad => (Optimizer::Adagrad, ACCUMULATOR),
            Rule::RowwiseAdagrad => (Optimizer::RowwiseAdagrad, ACCUMULATOR),
            Rule::Adam => (Optimizer::Adam, 0.0),
            Rule::Ftrl => (Optimizer::Ftrl, 0.0),
        }
    }

    /// Refuses flags that need another one.
    pub(crate) fn check(&self) -> Result<()> {
        let of_blocks = [
            ("--blocks", self.blocks.is_some()),
            ("--target-hit-rate", self.target_hit_rate.is_some()),
            ("--max-evictions", self.max_evictions.is_some()),
        ];
        match of_blocks.iter().find(|(_, is_given)| *is_given) {
            Some((name, _)) if self.policy != Policy::Cached => {
                usage(format!("{name} is for --policy cached: give that, too"))
            }
            _ => Ok(()),
        }
    }

    /// Which rows leave memory first.
    fn policy(&self) -> PolicyKind {
        match self.policy {
            Policy::Bilevel => PolicyKind::Bilevel,
            Policy::Lru => PolicyKind::Lru,
            Policy::Staged => PolicyKind::Staged,
            Policy::Cached => PolicyKind::Cached {
                num_blocks: self.blocks.unwrap_or(1),
                target_hit_rate: self.target_hit_rate.unwrap_or(0.8),
                max_num_evict: self.max_evictions.unwrap_or(u64::MAX),
            },
        }
    }

    /// The store's options.
    pub(crate) fn options(&self) -> RuntimeOptions {
        let mut options = RuntimeOptions::new()
            .cache_bytes(self.cache_mib << 20)
            .shards(usize::from(self.shards))
            .policy(self.policy())
            .io(match self.io {
                Io::Uring => IoEngine::Uring,
                Io::Pread => IoEngine::Pread,
            })
            .hyper(HyperParameters::default());
        if let Some(threads) = self.threads {
            options.threads = usize::from(threads);
        }
        options
    }

    /// Examples per batch.
    pub(crate) fn batch_rows(&self) -> usize {
        usize::try_from(self.batch).unwrap_or(usize::MAX)
    }
}

/// Start of AdaGrad's sums of squares: makes the first step of a rare key small instead of `lr`.
const ACCUMULATOR: f32 = 0.1;

/// What must be equal when a run is resumed, as (flag, value), in a fixed order. The data is known
/// by its content: it may have moved.
pub(crate) fn fingerprint(args: &Args, data: &[PathBuf]) -> Result<Vec<(String, String)>> {
    let data = match data.is_empty() {
        true => "planted data".to_owned(),
        false => data::content(data)?,
    };
    let rule = args
        .optimizer
        .to_possible_value()
        .map_or(String::new(), |x| x.get_name().into());
    let all = [
        ("DATA", data),
        ("--dim", args.dim.to_string()),
        ("--batch", args.batch.to_string()),
        ("--seed", args.seed.to_string()),
        ("--optimizer", rule),
        ("--lr", args.rate().to_string()),
    ];
    let owned = all
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value));
    Ok(owned.collect())
}
