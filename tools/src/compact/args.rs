//! What does `hps-compact` accept?
//!
//! - Sizes are plain bytes or a number with a unit: 64MiB, 2GB, 1.5GiB.
//! - What is wrong is told by clap, with exit code 16.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueHint};
use hps::{CheckpointId, CompactLimits};

use crate::cli::{Common, size_of, version};

/// Makes a store smaller that no trainer has open, without changing a row.
///
/// Sizes: plain bytes, or with a unit of kB, MB, GB, TB, KiB, MiB, GiB, TiB.
///
/// Exit codes: 0 done or nothing to do, 4 damage was met, or bytes that the device can't read (the
/// file is named and left as it is, the others are compacted), 8 could not run (no store, `Locked`:
/// open elsewhere, no permission, no space, another I/O error), 16 wrong arguments, 32 stopped by
/// Ctrl-C (all that was done is kept).
#[derive(Clone, Debug, Parser)]
#[command(name = "hps-compact", version, long_version = version())]
pub struct Args {
    /// What is to be done
    #[command(subcommand)]
    pub verb: Verb,
    /// Flags of all tools
    #[command(flatten)]
    pub common: Common,
}

/// What is to be done.
#[derive(Clone, Debug, Subcommand)]
pub enum Verb {
    /// Show each parameter file, how much of it is live, and what rewriting it would give back
    ///
    /// Nothing is written. Works also beside a trainer, on its last checkpoint. The age of a file
    /// is the time since it was last written to, as the file system has it. A file is not read, so
    /// that damage in it shows only with --check. Exit codes as of the whole tool.
    Plan(PlanArgs),
    /// Rewrite files with many stale rows, a group at a time
    ///
    /// Ctrl-C ends after the group at hand. A kill at any moment loses no data and little work:
    /// what was done is made durable every two seconds or so, and a second run goes on there. The
    /// last checkpoint stays as it is: id, step, meta, rows. Exit codes as of the whole tool.
    Run(RunArgs),
    /// Drop old checkpoints, and the files that only they need
    ///
    /// The last checkpoint always stays. One that a reader in another process has open is kept,
    /// and told. Exit codes as of the whole tool.
    Gc(GcArgs),
}

/// Which files are rewritten.
#[derive(Clone, Debug, clap::Args)]
pub struct Choice {
    /// Rewrite files of which at least this share is stale, from 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.5, value_parser = share)]
    pub threshold: f64,
    /// Begin no group of files after so many bytes were read and written
    #[arg(long, value_name = "SIZE", value_parser = size_of)]
    pub max_bytes: Option<u64>,
}

impl Choice {
    /// As the library has it.
    #[must_use]
    pub fn limits(&self, bytes_per_second: Option<u64>) -> CompactLimits {
        CompactLimits::new()
            .stale_share(self.threshold)
            .bytes_max(self.max_bytes)
            .bytes_per_second(bytes_per_second)
    }
}

/// Arguments of `plan`.
#[derive(Clone, Debug, clap::Args)]
pub struct PlanArgs {
    /// The store's directory
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub directory: PathBuf,
    /// Which files
    #[command(flatten)]
    pub choice: Choice,
    /// Also read every file of the last checkpoint, and name what is damaged or can't be read
    ///
    /// By file and byte, with the cause. A run leaves such a file as it is once it meets the place.
    /// Takes as long as reading the store; exit code 4 when something was found.
    #[arg(long)]
    pub check: bool,
    /// Print one JSON object, plain numbers
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `run`.
#[derive(Clone, Debug, clap::Args)]
pub struct RunArgs {
    /// The store's directory
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub directory: PathBuf,
    /// Which files
    #[command(flatten)]
    pub choice: Choice,
    /// Read and write at most so much per second together, as in 200MiB/s
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub io_limit: Option<u64>,
    /// First drop all checkpoints but the last N
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub keep_checkpoints: Option<u32>,
    /// Say what would be done; nothing is written
    #[arg(long)]
    pub dry_run: bool,
    /// Also where the store belongs to another user: new files will belong to you
    #[arg(long)]
    pub force: bool,
    /// Print one JSON object, plain numbers
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `gc`.
#[derive(Clone, Debug, clap::Args)]
pub struct GcArgs {
    /// The store's directory
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub directory: PathBuf,
    /// Drop all checkpoints but the last N
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..),
        required_unless_present = "checkpoint", conflicts_with = "checkpoint")]
    pub keep_checkpoints: Option<u32>,
    /// Drop this checkpoint; may be given several times
    #[arg(long, value_name = "ID")]
    pub checkpoint: Vec<CheckpointId>,
    /// Say what would be done; nothing is written
    #[arg(long)]
    pub dry_run: bool,
    /// Also where the store belongs to another user: new files will belong to you
    #[arg(long)]
    pub force: bool,
    /// Print one JSON object, plain numbers
    #[arg(long)]
    pub json: bool,
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err(String::from("a number from 0 to 1")),
    }
}

fn rate(text: &str) -> Result<u64, String> {
    match size_of(text.strip_suffix("/s").unwrap_or(text)) {
        Ok(0) => Err(String::from("more than nothing per second")),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_shares_are_read_within_their_bounds() {
        assert_eq!(rate("200MiB/s"), Ok(200 << 20));
        assert_eq!(rate("1000"), Ok(1000));
        assert!(rate("0").is_err());
        assert_eq!(share("0.5"), Ok(0.5));
        for text in ["1.1", "-0.1", "NaN", "half"] {
            assert!(share(text).is_err(), "{text}");
        }
    }
}
