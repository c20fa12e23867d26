//! Which trace is replayed, and with how much memory?

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, ValueEnum};

use super::accesses::{Accesses, TraceTable};
use super::generated::Generated;
use crate::args::{Usage, theta};
use crate::hot_table::Model;

/// What is replayed, and with how much memory.
#[derive(Args, Debug, Clone)]
#[command(group = clap::ArgGroup::new("trace").required(true), group = clap::ArgGroup::new("memory").required(true))]
pub struct ReplayArgs {
    /// A trace that `--trace` wrote; or one of --zipf and --hot-table.
    #[arg(value_name = "FILE", group = "trace")]
    pub file: Option<PathBuf>,
    /// Draw the trace instead, zipf with this exponent; 0: uniform.
    #[arg(long, value_name = "THETA", group = "trace", value_parser = theta)]
    pub zipf: Option<f64>,
    /// Draw the trace of the workload `hot-table` instead: 26 tables, of which another is hot from
    /// half of the batches on. Its rows have their own sizes.
    #[arg(long, group = "trace")]
    pub hot_table: bool,
    /// Rows that --zipf draws from.
    #[arg(long, value_name = "N", default_value_t = 8_000_000,
        value_parser = clap::value_parser!(u64).range(1000..=1 << 31))]
    pub rows: u64,
    /// Batches that are drawn.
    #[arg(long, value_name = "N", default_value_t = 2000,
        value_parser = clap::value_parser!(u32).range(2..=1 << 24))]
    pub batches: u32,
    /// Samples of a batch that is drawn, before duplicates are taken out.
    #[arg(long, value_name = "SAMPLES", default_value_t = 32_768,
        value_parser = clap::value_parser!(u32).range(1..=1 << 22))]
    pub batch: u32,
    /// Load all rows first, in no order; the load's misses do not count. With --zipf.
    #[arg(long, requires = "zipf")]
    pub load: bool,
    /// A tenth of the most frequent rows, as many as a fifth of all, change places with others each
    /// time so many batches are over. With --zipf.
    #[arg(long, value_name = "BATCHES", requires = "zipf",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub drift: Option<u32>,
    /// Seed of what is drawn.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Memory of the cache in MiB: rows and all that is kept about them.
    #[arg(long, value_name = "MIB", group = "memory",
        value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    pub cache_mib: Option<u64>,
    /// Memory of the cache in rows; not with --hot-table.
    #[arg(long, value_name = "ROWS", group = "memory", conflicts_with = "hot_table",
        value_parser = clap::value_parser!(u64).range(1..=1 << 31))]
    pub slots: Option<u64>,
    /// Bytes of a row, a multiple of 4: weights and optimizer state.
    #[arg(long, value_name = "B", default_value_t = 512,
        value_parser = clap::value_parser!(u32).range(4..=1 << 20))]
    pub row_bytes: u32,
    /// Bytes beside a row that LFU, static and Belady pay at equal bytes.
    #[arg(long, value_name = "B", default_value_t = 0)]
    pub beside: u64,
    /// Policies beside ours. [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub policies: Vec<Competitor>,
    /// Batches fetched ahead, whose rows stay pinned; ours only.
    #[arg(long, value_name = "BATCHES", default_value_t = 2,
        value_parser = clap::value_parser!(u8).range(0..=64))]
    pub depth: u8,
    /// Shards; ours only. [default: the store's own]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub shards: Option<u16>,
    /// Batches behind the load that the second figures leave out. [default: half of them]
    #[arg(long, value_name = "BATCHES")]
    pub skip: Option<usize>,
    /// Print, as the last line, a JSON array with one object per policy, ours first.
    #[arg(long)]
    pub json: bool,
}

/// A policy that ours is compared with.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Competitor {
    /// The row that is used again last leaves: knows the future.
    Belady,
    /// The rows that the whole trace uses most, per byte.
    Static,
    /// Least frequently used, per byte; counts every row exactly and never forgets.
    Lfu,
    /// S3-FIFO.
    #[value(name = "s3fifo")]
    S3Fifo,
    /// Least recently used.
    Lru,
}

impl Competitor {
    /// For people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Competitor::Belady => "Belady",
            Competitor::Static => "perfect static",
            Competitor::Lfu => "exact LFU",
            Competitor::S3Fifo => "S3-FIFO",
            Competitor::Lru => "LRU",
        }
    }

    /// For programs, as on the command line.
    #[must_use]
    pub fn id(self) -> &'static str {
        match self {
            Competitor::Belady => "belady",
            Competitor::Static => "static",
            Competitor::Lfu => "lfu",
            Competitor::S3Fifo => "s3fifo",
            Competitor::Lru => "lru",
        }
    }
}

impl ReplayArgs {
    /// Faults that the flags alone do not show.
    ///
    /// # Errors
    /// A [`Usage`] error.
    pub(super) fn check(&self) -> Result<()> {
        if self.row_bytes.is_multiple_of(4) {
            return Ok(());
        }
        Err(Usage(format!(
            "--row-bytes {} is no multiple of 4",
            self.row_bytes
        ))
        .into())
    }

    /// Those that are asked for.
    pub(super) fn competitors(&self) -> Vec<Competitor> {
        if self.policies.is_empty() {
            return Competitor::value_variants().to_vec();
        }
        self.policies.clone()
    }

    /// Reads or draws the trace; `each` is called after every batch.
    pub(super) fn accesses(&self, mut each: impl FnMut()) -> Result<Accesses> {
        if let Some(file) = &self.file {
            return Accesses::read(file, self.row_bytes, each);
        }
        let (batches, samples) = (usize::try_from(self.batches)?, usize::try_from(self.batch)?);
        let Some(zipf) = self.zipf else {
            return Model::new(self.seed, 1).accesses(batches, samples, &mut each);
        };
        let generated = Generated {
            zipf,
            table: TraceTable {
                keys: self.rows,
                row_bytes: self.row_bytes,
            },
            batches,
            samples,
            load: self.load,
            drift: match self.drift {
                Some(every) => Some((usize::try_from(every)?, self.rows / 5)),
                None => None,
            },
            seed: self.seed,
        };
        generated.accesses(each)
    }

    /// What the trace is, for people.
    pub(super) fn title(&self) -> String {
        match (&self.file, self.zipf) {
            (Some(file), _) => file.display().to_string(),
            (None, Some(zipf)) => {
                let load = if self.load {
                    ", all rows loaded first"
                } else {
                    ""
                };
                let drift = self.drift.map_or(String::new(), |every| {
                    format!(", a tenth of the hot rows changes every {every} batches")
                });
                format!("zipf {zipf} over {} rows{load}{drift}", self.rows)
            }
            (None, None) => String::from("26 tables, another one hot from the middle on"),
        }
    }
}
