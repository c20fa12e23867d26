//! What does `hps-keyset` accept?

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum, ValueHint};

use super::layout::KeyType;
use super::plan::MEMORY_MIN;
use super::scheme::KeyKind;
use crate::cli::{Common, size_of, version};

/// Makes and compares keyset files: the unique keys of a pass over a data set.
///
/// A keyset file is keys one behind the other, little-endian, 8 bytes each (i64) or 4 (u32), as
/// HugeCTR's Embedding Training Cache has them. Those written here are sorted as unsigned numbers.
///
/// Sizes: plain bytes, or with a unit of kB, MB, GB, TB, KiB, MiB, GiB, TiB.
///
/// Exit codes: 0 done, 1 two keysets differ or keys are missing, 4 a file is not what it should be
/// (named with the byte), 8 could not run (no file, no permission, no space), 16 wrong arguments, 32
/// stopped by Ctrl-C (nothing is left behind).
#[derive(Clone, Debug, Parser)]
#[command(name = "hps-keyset", version, long_version = version())]
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
    /// Make a keyset file from data
    ///
    /// Sorts what does not fit into --memory by way of temporary files beside the output, which have no
    /// names. The output has its name once it is whole. Exit codes as of the whole tool.
    Extract(ExtractArgs),
    /// Cut a data set into passes, and make the keyset of each: PREFIX.0.keyset, PREFIX.1.keyset, ...
    ///
    /// By a number of records, or so that the rows of a pass fit into the memory of the GPUs: a pass
    /// ends before the record with which its different keys would be too many. All files get their
    /// names at the end. Exit codes as of the whole tool.
    Split(SplitArgs),
    /// Show what is in keyset files: keys, order, and the memory that their rows take
    ///
    /// Of each file but the first also how many keys it shares with the one before: what a next pass
    /// need not load. Files that are not sorted are sorted in temporary files in TMPDIR, but for
    /// --estimate. Exit codes as of the whole tool.
    Stat(StatArgs),
    /// Write the keys that any of the files has
    ///
    /// Files that are not sorted are sorted first, by way of temporary files beside the output. Exit
    /// codes as of the whole tool.
    Merge(SetArgs),
    /// Write the keys that all files have
    ///
    /// Files that are not sorted are sorted first, by way of temporary files beside the output. Exit
    /// codes as of the whole tool.
    Intersect(SetArgs),
    /// Say how two keysets differ; with -o also write the keys that only the first one has
    ///
    /// Exit code 1 if they do; others as of the whole tool.
    Diff(DiffArgs),
    /// Check that files are sorted, unique and of the type that they are said to be
    ///
    /// Exit code 4 if one is not; others as of the whole tool.
    Verify(VerifyArgs),
    /// Say which keys of a keyset a store does not have
    ///
    /// As of its last checkpoint; works beside a trainer. Exit code 1 if there are any; others as of the
    /// whole tool.
    Missing(MissingArgs),
}

/// What kind of files the inputs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum From {
    /// Criteo's click logs: 40 columns between tabs, or 39 without label; the last 26 are hex values
    CriteoTsv,
    /// NumPy's array of one or two dimensions, of 32-bit or 64-bit integers; columns are fields
    Npy,
    /// HugeCTR's Norm, with or without sums; slots are fields. Needs --dtype or --input-dtype
    Norm,
    /// HugeCTR's Raw; slots are fields. Needs --labels, --dense and --slots
    Raw,
    /// Keyset files. Needs --dtype or --input-dtype
    Keys,
    /// Parquet, where this build has it: integers, or lists of them. Fields are the columns that `cats` of
    /// _metadata.json names, or --columns
    Parquet,
}

/// How much memory, and where.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Resources {
    /// All buffers of all threads together
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = memory)]
    pub memory: u64,
    /// Threads; as many as there are processors, if left out
    #[arg(long, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,
}

/// What a data set is, and how its keys are made.
#[derive(Clone, Debug, clap::Args)]
pub struct DataArgs {
    /// What kind of files the inputs are
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub from: From,
    /// The type of the keys that are written (i64 if left out), and of those that are read (norm, keys)
    #[arg(long, value_enum, value_name = "TYPE")]
    pub dtype: Option<KeyType>,
    /// The type of the keys that are read, where it is another one (norm, keys)
    #[arg(long, value_enum, value_name = "TYPE")]
    pub input_dtype: Option<KeyType>,
    /// How a key is made of a value; raw, if left out, for --from keys
    #[arg(long, value_enum, value_name = "SCHEME")]
    pub key: Option<KeyKind>,
    /// The number that the first field has in a key, for --key field; 1 for the data of hps's example ctr
    #[arg(long, value_name = "N", default_value_t = 0,
        value_parser = clap::value_parser!(u32).range(0..=1 << 30))]
    pub first_field: u32,
    /// How many values each slot has, for --key offset
    #[arg(long, value_name = "N,N,...", value_delimiter = ',')]
    pub slot_sizes: Vec<u64>,
    /// Labels of a sample, for --from raw
    #[arg(long, value_name = "N", value_parser = width)]
    pub labels: Option<usize>,
    /// Dense values of a sample, for --from raw
    #[arg(long, value_name = "N", value_parser = width)]
    pub dense: Option<usize>,
    /// Slots of a sample, for --from raw
    #[arg(long, value_name = "N", value_parser = width)]
    pub slots: Option<usize>,
    /// The columns that are fields, in their order, for --from parquet; without, those of _metadata.json
    /// beside each file
    #[arg(long, value_name = "NAME,NAME,...", value_delimiter = ',')]
    pub columns: Vec<String>,
    /// Each INPUT is a file list of HugeCTR's: their number, then a path on each line
    #[arg(long)]
    pub file_list: bool,
}

/// Arguments of `extract`.
#[derive(Clone, Debug, clap::Args)]
pub struct ExtractArgs {
    /// The data
    #[command(flatten)]
    pub data: DataArgs,
    /// Memory and threads
    #[command(flatten)]
    pub resources: Resources,
    /// Write a file for each field: OUT.0.keyset, OUT.1.keyset, ...
    #[arg(long)]
    pub per_table: bool,
    /// The file to be written
    #[arg(short, long, value_name = "OUT", value_hint = ValueHint::FilePath)]
    pub output: PathBuf,
    /// Print one JSON object, plain numbers
    #[arg(long)]
    pub json: bool,
    /// Files, plain or .gz; - is standard input
    #[arg(value_name = "INPUT", required = true, value_hint = ValueHint::FilePath)]
    pub inputs: Vec<PathBuf>,
}

/// An optimizer, for the memory that its state takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Optimizer {
    /// Weights and two moments: 3 values for each weight
    Adam,
    /// Weights and a sum of squares: 2
    Adagrad,
    /// Weights and a momentum: 2
    Momentum,
    /// Weights and a momentum: 2
    Nesterov,
    /// Weights alone: 1
    Sgd,
}

impl Optimizer {
    /// All of them.
    pub const ALL: [Optimizer; 5] = [
        Optimizer::Adam,
        Optimizer::Adagrad,
        Optimizer::Momentum,
        Optimizer::Nesterov,
        Optimizer::Sgd,
    ];

    /// Values kept for each weight, as HugeCTR's documentation of the Embedding Training Cache has
    /// them (table 1).
    fn factor(self) -> u128 {
        match self {
            Optimizer::Adam => 3,
            Optimizer::Adagrad | Optimizer::Momentum | Optimizer::Nesterov => 2,
            Optimizer::Sgd => 1,
        }
    }

    /// Bytes that rows of so many keys take.
    #[must_use]
    pub fn row_bytes(self, keys: u64, dim: u32) -> u128 {
        self.factor() * u128::from(keys) * u128::from(dim) * 4
    }

    /// As it stands on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Optimizer::Adam => "adam",
            Optimizer::Adagrad => "adagrad",
            Optimizer::Momentum => "momentum",
            Optimizer::Nesterov => "nesterov",
            Optimizer::Sgd => "sgd",
        }
    }
}

/// Arguments of `split`.
#[derive(Clone, Debug, clap::Args)]
pub struct SplitArgs {
    /// The data
    #[command(flatten)]
    pub data: DataArgs,
    /// All buffers together; by --hbm-gib the different keys of a pass must fit, with room to grow
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = memory)]
    pub memory: u64,
    /// Records of a pass
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..),
        required_unless_present = "hbm_gib", conflicts_with = "hbm_gib")]
    pub rows: Option<u64>,
    /// GiB that the rows of a pass may take; needs --dim and --optimizer
    #[arg(long, value_name = "GIB", value_parser = gib, requires = "dim", requires = "optimizer")]
    pub hbm_gib: Option<f64>,
    /// Weights of a row
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536),
        requires = "hbm_gib")]
    pub dim: Option<u32>,
    /// What a row has beside its weights
    #[arg(long, value_enum, value_name = "NAME", requires = "hbm_gib")]
    pub optimizer: Option<Optimizer>,
    /// Also write the records of each pass, PREFIX.0.tsv and so on, and their list, PREFIX.txt
    #[arg(long = "data")]
    pub write_data: bool,
    /// What the names of the files begin with
    #[arg(short, long, value_name = "PREFIX", value_hint = ValueHint::FilePath)]
    pub output: PathBuf,
    /// Print one JSON object, plain numbers
    #[arg(long)]
    pub json: bool,
    /// Files, plain or .gz; - is standard input
    #[arg(value_name = "INPUT", required = true, value_hint = ValueHint::FilePath)]
    pub inputs: Vec<PathBuf>,
}

/// Arguments of `stat`.
#[derive(Clone, Debug, clap::Args)]
pub struct StatArgs {
    /// The type of the keys; if left out, i64 unless the bytes contradict that
    #[arg(long, value_enum, value_name = "TYPE")]
    pub dtype: Option<KeyType>,
    /// Also say how many GiB the rows take, with so many weights each, for each optimizer
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub dim: Option<u32>,
    /// Estimate how many different keys there are (HyperLogLog, error 0.4 %), in one pass, unsorted
    #[arg(long)]
    pub estimate: bool,
    /// Memory and threads
    #[command(flatten)]
    pub resources: Resources,
    /// Print one JSON object, plain numbers
    #[arg(long)]
    pub json: bool,
    /// Keyset files, plain or .gz
    #[arg(value_name = "FILE", required = true, value_hint = ValueHint::FilePath)]
    pub files: Vec<PathBuf>,
}

/// Arguments of `merge` and `intersect`.
#[derive(Clone, Debug, clap::Args)]
pub struct SetArgs {
    /// The type of all keys; if left out, i64 unless the bytes contradict that
    #[arg(long, value_enum, value_name = "TYPE")]
    pub dtype: Option<KeyType>,
    /// Memory and threads
    #[command(flatten)]
    pub resources: Resources,
    /// The file to be written
    #[arg(short, long, value_name = "OUT", value_hint = ValueHint::FilePath)]
    pub output: PathBuf,
    /// Print one JSON object, plain numbers
    #[arg(long)]
    pub json: bool,
    /// Keyset files, plain or .gz
    #[arg(value_name = "FILE", required = true, value_hint = ValueHint::FilePath)]
    pub files: Vec<PathBuf>,
}

/// Arguments of `diff`.
#[derive(Clone, Debug, clap::Args)]
pub struct DiffArgs {
    /// The type of all keys; if left out, i64 unless the bytes contradict that
    #[arg(long, value_enum, value_name = "TYPE")]
    pub dtype: Option<KeyType>,
    /// Memory and threads
    #[command(flatten)]
    pub resources: Resources,
    /// Write the keys of FIRST that SECOND does not have
    #[arg(short, long, value_name = "OUT", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// Print one JSON object, plain numbers
    #[arg(long)]
    pub json: bool,
    /// A keyset file, plain or .gz
    #[arg(value_name = "FIRST", value_hint = ValueHint::FilePath)]
    pub first: PathBuf,
    /// Another one
    #[arg(value_name = "SECOND", value_hint = ValueHint::FilePath)]
    pub second: PathBuf,
}

/// Arguments of `verify`.
#[derive(Clone, Debug, clap::Args)]
pub struct VerifyArgs {
    /// The type that the keys should have; i64 if left out
    #[arg(long, value_enum, value_name = "TYPE")]
    pub dtype: Option<KeyType>,
    /// All buffers together
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = memory)]
    pub memory: u64,
    /// Print one JSON object, plain numbers
    #[arg(long)]
    pub json: bool,
    /// Keyset files, plain or .gz
    #[arg(value_name = "FILE", required = true, value_hint = ValueHint::FilePath)]
    pub files: Vec<PathBuf>,
}

/// Arguments of `missing`.
#[derive(Clone, Debug, clap::Args)]
pub struct MissingArgs {
    /// The table; may be left out if there is only one
    #[arg(long, value_name = "NAME")]
    pub table: Option<String>,
    /// The type of the keys; if left out, i64 unless the bytes contradict that
    #[arg(long, value_enum, value_name = "TYPE")]
    pub dtype: Option<KeyType>,
    /// Memory and threads; the store's index comes on top
    #[command(flatten)]
    pub resources: Resources,
    /// Write the keys that are missing
    #[arg(short, long, value_name = "OUT", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// Print one JSON object, plain numbers
    #[arg(long)]
    pub json: bool,
    /// The store's directory
    #[arg(value_name = "STORE", value_hint = ValueHint::DirPath)]
    pub store: PathBuf,
    /// A keyset file, plain or .gz
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
}

fn memory(text: &str) -> Result<u64, String> {
    match size_of(text)? {
        bytes if bytes >= MEMORY_MIN => Ok(bytes),
        _ => Err(String::from("at least 256KiB")),
    }
}

fn gib(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(gib) if gib > 0.0 && gib.is_finite() => Ok(gib),
        _ => Err(String::from("a number above 0")),
    }
}

fn threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..=1024) => Ok(count),
        _ => Err(String::from("a number from 1 to 1024")),
    }
}

fn width(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 0..=65_536) => Ok(count),
        _ => Err(String::from("a number from 0 to 65536")),
    }
}
