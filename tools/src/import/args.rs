//! What does `hps-import` accept?

use std::path::PathBuf;

use clap::{Parser, ValueEnum, ValueHint};
use hps::Initialiser;

use crate::cli::{Common, size_of, version};
use crate::export::rate;
use crate::models::{Exchange, Rule, paddle};

/// Reads a table from the files of another system.
///
/// Rows are put: what a key had is replaced, other keys stay. All of it is in the store's next checkpoint, with the
/// meta of the one before; on any error, and on Ctrl-C, the store is as at its last checkpoint. No trainer may have it open.
///
/// The folder is checked before the first row: sizes of all files against each other and against the table, then
/// each value. A key that stands twice is refused.
///
/// hugectr: key and emb_vector; D follows from their sizes. State files are those of the table's optimizer, or none:
/// then rows begin with the state of a key never pushed. AdaGrad.accm, Ftrl.n, Ftrl.z, Adam.m, Adam.v are taken bit
/// for bit; MomentumSGD.momtentum and Nesterov.accm hold -lr times the momentum of hps, so --lr is required;
/// Adam has a step count by row in hps alone, so --adam-step is required. slot_id is checked, not kept.
///
/// npy: keys.npy, weights.npy, and a file for each column of state and metadata, as hps-export writes them.
///
/// parquet: all `*.parquet` of the folder (or one file) but those whose names begin with `.` or `_`, of this tool or any other writer. Columns
/// `key` (uint64 or int64), `weights` (lists of float32, of one length), and those of state and metadata, as hps-export writes
/// them; no other ones, and no nulls. The numbers of an export's files must have no gap. Compressed by snappy, gzip, zstd, or not. Needs a build with `--features parquet`.
///
/// deeprec: an EmbeddingVariable, --variable, of a checkpoint of TensorFlow: IN is the prefix of its files, or a folder that
/// has one. All partitions are read, and the checksums of all tensors that are taken are checked. A variable with rows on
/// SSD is refused. Slots of Adagrad, Adam (with --adam-step)
/// and Ftrl are taken bit for bit into a table of that optimizer; -freqs and -versions are the metadata count and
/// last_step. Keys that were filtered have no values: they are counted, and left out.
///
/// paddle-text: all files part-* of a table of CtrCommonAccessor or SparseAccessor, plain or .gz. --embedx-dim, --embed-rule
/// and --embedx-rule say how many numbers a line has, which no file does. Other rules may have as many: a line is refused
/// whose state can't be (a sum of squares below 0, a power of a beta that is not 0 to 1). The first weight is embed_w, the others are
/// embedx_w, 0 where a line has no embedx part, as Paddle pulls them. show and click, rounded to whole numbers, are the
/// metadata of these names. State is that of a key never pushed: Paddle's rules compute otherwise.
///
/// delta: changes of another store, as `hps-export --format delta` writes them; STORE is a copy of that store, begun by a
/// delta of everything (--create makes the store) or as an export. It is brought up to the checkpoint of the delta, with its tables, step and
/// meta; what was applied last does nothing, and what does not follow it is refused. The copy retains 2 checkpoints.
///
/// Memory: --cache, the index (13 bytes a key), 64 MiB, and the meta of the last checkpoint. parquet: and for each thread and
/// column a page and a dictionary, as they are when decompressed: about 1 MiB of most writers, at most 256 MiB of one that is compressed.
///
/// Metadata that the table has and the folder lacks is 0 in the rows imported, and named.
///
/// Exit codes: 0 done, 1 done with --repair: something was left out, 4 the folder is damaged (file, byte, what was
/// found and expected are told), 8 could not run (no store, `Locked`: open elsewhere, no permission, no
/// space, an I/O error), 16 wrong arguments, or the folder contradicts them, 32 stopped by Ctrl-C.
#[derive(Clone, Debug, Parser)]
#[command(name = "hps-import", version, long_version = version())]
pub struct Args {
    /// The store's directory
    #[arg(value_name = "STORE", value_hint = ValueHint::DirPath)]
    pub store: PathBuf,
    /// The folder to read; parquet: or one file; deeprec: or the prefix of a checkpoint
    #[arg(value_name = "IN", value_hint = ValueHint::DirPath)]
    pub folder: PathBuf,
    /// The format of the files
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub format: Exchange,
    /// The table
    #[arg(long, value_name = "NAME",
        required_if_eq_any = [("format", "hugectr"), ("format", "npy"), ("format", "parquet"),
            ("format", "deeprec"), ("format", "paddle-text")])]
    pub table: Option<String>,
    /// deeprec: the name of the EmbeddingVariable; default: that of the table
    #[arg(long, value_name = "NAME")]
    pub variable: Option<String>,
    /// paddle-text: how many weights embedx_w has; the table has one more
    #[arg(long, value_name = "D", required_if_eq("format", "paddle-text"),
        value_parser = clap::value_parser!(u16).range(0..=8191))]
    pub embedx_dim: Option<u16>,
    /// paddle-text: what the lines of its table are like
    #[command(flatten)]
    pub paddle: paddle::Flags,
    /// Make the store, or the table, where it is not there
    #[arg(long)]
    pub create: bool,
    /// The optimizer of a new table; default: the one whose state files are there
    #[arg(long, value_enum, value_name = "RULE", requires = "create")]
    pub optimizer: Option<Rule>,
    /// The dim of a new table; default: that of the folder
    #[arg(long, value_name = "D", requires = "create",
        value_parser = clap::value_parser!(u16).range(1..=8192))]
    pub dim: Option<u16>,
    /// Weights of keys that a new table has no row of: zero, constant:VALUE, uniform:LOW:HIGH or
    /// normal:MEAN:DEVIATION; default: uniform:-0.01:0.01
    #[arg(long, value_name = "HOW", requires = "create", value_parser = initialiser,
        allow_hyphen_values = true)]
    pub initialiser: Option<Initialiser>,
    /// The seed of these weights; default: 0
    #[arg(long, value_name = "N", requires = "create")]
    pub seed: Option<u64>,
    /// What the accumulator of AdaGrad, or n of FTRL, is in such rows; default: 0
    #[arg(long, value_name = "VALUE", requires = "create")]
    pub accumulator: Option<f32>,
    /// The step of the checkpoint; default: the one after the last
    #[arg(long, value_name = "N")]
    pub step: Option<u64>,
    /// Keys and weights alone, whatever else is in the folder
    #[arg(long)]
    pub weights_only: bool,
    /// The learning rate of MomentumSGD or Nesterov, by which HugeCTR's momentum is scaled
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub lr: Option<f32>,
    /// The step count that each row of Adam begins with: HugeCTR's iteration, DeepRec's global step
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1 << 24))]
    pub adam_step: Option<u32>,
    /// Of files of unequal length, as a crash of their writer leaves them, take the whole rows that all of
    /// them have
    #[arg(long)]
    pub repair: bool,
    /// What to do with rows that have a NaN or an infinity
    #[arg(long, value_enum, value_name = "WHAT", default_value_t)]
    pub non_finite: NonFinite,
    /// Memory of the store's cache
    #[arg(long, value_name = "SIZE", value_parser = size_of, default_value = "256MiB")]
    pub cache: u64,
    /// Threads that read; default: the cores, at most 8
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=8))]
    pub threads: Option<u16>,
    /// Also where the store belongs to another user: new files will belong to you
    #[arg(long)]
    pub force: bool,
    /// Print one JSON object, plain numbers
    #[arg(long, conflicts_with = "quiet")]
    pub json: bool,
    /// Colours, progress, and how much is said
    #[command(flatten)]
    pub common: Common,
}

impl Args {
    /// The table's name.
    #[must_use]
    pub fn table(&self) -> &str {
        self.table.as_deref().unwrap_or_default()
    }
}

/// What happens to rows that are not finite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum NonFinite {
    /// Nothing is imported; the first one is named
    #[default]
    Reject,
    /// They are left out, and counted
    Skip,
    /// They are taken as they are, and counted
    Apply,
}

fn initialiser(text: &str) -> Result<Initialiser, String> {
    let mut parts = text.split(':');
    let name = parts.next().unwrap_or_default();
    let numbers: Result<Vec<f32>, _> = parts.map(str::parse).collect();
    match (name, numbers.as_deref()) {
        ("zero", Ok([])) => Ok(Initialiser::Zero),
        ("constant", Ok([value])) => Ok(Initialiser::Constant { value: *value }),
        ("uniform", Ok([low, high])) => Ok(Initialiser::Uniform {
            low: *low,
            high: *high,
        }),
        ("normal", Ok([mean, deviation])) => Ok(Initialiser::Normal {
            mean: *mean,
            deviation: *deviation,
        }),
        _ => Err(String::from(
            "zero, constant:VALUE, uniform:LOW:HIGH or normal:MEAN:DEVIATION",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn initialisers_are_read() {
        let uniform = Initialiser::Uniform {
            low: -0.5,
            high: 0.5,
        };
        assert_eq!(initialiser("uniform:-0.5:0.5"), Ok(uniform));
        assert_eq!(initialiser("zero"), Ok(Initialiser::Zero));
        let constant = Initialiser::Constant { value: 1e-3 };
        assert_eq!(initialiser("constant:1e-3"), Ok(constant));
        let normal = Initialiser::Normal {
            mean: 0.0,
            deviation: 2.0,
        };
        assert_eq!(initialiser("normal:0:2"), Ok(normal));
        for text in ["", "zero:1", "uniform:1", "normal:a:b", "glorot"] {
            assert!(initialiser(text).is_err(), "{text}");
        }
    }
}
