//! What does `hps-export` accept?

use std::path::PathBuf;

use clap::{Parser, ValueEnum, ValueHint};
use hps::CheckpointId;

use crate::cli::{Common, size_of, version};
use crate::models::{Exchange, paddle};

/// Writes a table of a checkpoint into the files of another system.
///
/// The store may be open elsewhere; nothing in it is changed. OUT appears when all of it is durable: it
/// is written as `.OUT.partial` beside it. Rows come in no particular order, with --threads 1 in that
/// of mix64. Keys are written as they are (a key of 2^63 and more is a negative int64).
///
/// hugectr: key, emb_vector, and with --localized slot_id. State: AdaGrad.accm, Ftrl.n, Ftrl.z, Adam.m, Adam.v bit
/// for bit; MomentumSGD.momtentum and Nesterov.accm hold -lr times the momentum of hps, so --lr is required.
/// There is no place for Adam's step count by row, the state of row-wise AdaGrad, and metadata: what is
/// left out is named.
///
/// npy: keys.npy (u64), weights.npy (f32 `[N, D]`), a file for each column of state (v, a, m, t, z, n) and
/// metadata (u32). Everything, bit for bit.
///
/// parquet: part-00000.parquet and so on, a file a thread, with the columns `key` (uint64), `weights` (lists of float32, of one
/// length), each column of state (lists; `t`, and `a` of row-wise AdaGrad, are float32) and metadata (uint32). Everything, bit
/// for bit. Row groups of at most 64 MiB. Footers have hps.table, hps.dim, hps.optimizer, hps.checkpoint, hps.step. Needs a build
/// with `--features parquet`.
///
/// deeprec: a checkpoint of TensorFlow, model.ckpt.index and .data files, with the tensors of one EmbeddingVariable:
/// --variable, with -keys, -values, -freqs (metadata count) and -versions (last_step), the last two empty where the
/// table has no such column; and optimizer slots below it, /Adagrad, /Adam (m) and /Adam_1 (v), /Ftrl (n) and
/// /Ftrl_1 (z), bit for bit. What is left out is named.
///
/// paddle-text: part-000-00000 and so on, a file for each of --shards, which must be the shard_num of Paddle's
/// table: its lines have the keys of which key % shards is its number. embed_w is the first weight, embedx_w are the
/// others, show and click the metadata of these names, or 0; the slot is -1, as of a feature never pushed. Paddle's
/// rules compute otherwise, so state is that of a feature never pushed, as --embed-rule and --embedx-rule have it;
/// ours is named as left out.
///
/// delta: all tables, rows and the trainer's meta, for `hps-import --format delta`: the first one into an empty store, each
/// after the one before. The trainer keeps what the next delta needs by a cursor, or by retaining the checkpoint.
///
/// Memory: the index (13 bytes a key), and what --memory says.
///
/// Exit codes: 0 done, 4 damage was met (the file is named), 8 could not run (no store, OUT is there already, no
/// permission, no space, another I/O error), 16 wrong arguments, 32 stopped by Ctrl-C. In all cases but 0
/// OUT is not there.
#[derive(Clone, Debug, Parser)]
#[command(name = "hps-export", version, long_version = version())]
pub struct Args {
    /// The store's directory
    #[arg(value_name = "STORE", value_hint = ValueHint::DirPath)]
    pub store: PathBuf,
    /// The folder to make; it must not be there, or be empty
    #[arg(value_name = "OUT", value_hint = ValueHint::DirPath)]
    pub out: PathBuf,
    /// The format of the files
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub format: Exchange,
    /// The table, by the name that it had at the checkpoint
    #[arg(long, value_name = "NAME",
        required_if_eq_any = [("format", "hugectr"), ("format", "npy"), ("format", "parquet"),
            ("format", "deeprec"), ("format", "paddle-text")])]
    pub table: Option<String>,
    /// This retained checkpoint instead of the last one
    #[arg(long, value_name = "ID")]
    pub checkpoint: Option<CheckpointId>,
    /// Only what changed since this checkpoint, which is retained, or a cursor's. Removed keys are in a file
    /// of their own, `removed` (npy: removed.npy; parquet: removed.parquet)
    #[arg(long, value_name = "ID", conflicts_with = "after")]
    pub since: Option<CheckpointId>,
    /// delta: what changed since the delta in this folder; with neither --after nor --since it has everything
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub after: Option<PathBuf>,
    /// Keys and weights alone: what HugeCTR needs to serve
    #[arg(long)]
    pub weights_only: bool,
    /// The learning rate of MomentumSGD or Nesterov, by which HugeCTR's momentum is scaled
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub lr: Option<f32>,
    /// Write slot_id, which localized embeddings need: the upper half of each key, or what --slot says
    #[arg(long)]
    pub localized: bool,
    /// deeprec: the name of the EmbeddingVariable; default: that of the table
    #[arg(long, value_name = "NAME")]
    pub variable: Option<String>,
    /// paddle-text: the shard_num of Paddle's table; default: 1000, as there
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub shards: Option<u32>,
    /// paddle-text: what the lines of its table are like
    #[command(flatten)]
    pub paddle: paddle::Flags,
    /// The slot of all keys
    #[arg(long, value_name = "N", requires = "localized")]
    pub slot: Option<u64>,
    /// parquet: how columns are compressed; default: none, as trained weights hardly get smaller
    #[arg(long, value_enum, value_name = "CODEC")]
    pub compression: Option<Compression>,
    /// Threads that read and write; default: the cores, as far as --memory reaches
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,
    /// Memory for what is read and written, 24 MiB a thread; parquet: from 36 MiB a thread, with row groups of 8 MiB, to
    /// 92 MiB, with those of 64 MiB; paddle-text: 33 MiB a thread, 35 with 10 000 shards
    #[arg(long, value_name = "SIZE", value_parser = size_of, default_value = "256MiB")]
    pub memory: u64,
    /// Print one JSON object, plain numbers
    #[arg(long, conflicts_with = "quiet")]
    pub json: bool,
    /// Colours, progress, and how much is said
    #[command(flatten)]
    pub common: Common,
}

/// How columns of Parquet are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Compression {
    /// Not at all
    None,
    /// Fast
    Snappy,
    /// Smaller
    Zstd,
}

impl Args {
    /// The table's name.
    #[must_use]
    pub fn table(&self) -> &str {
        self.table.as_deref().unwrap_or_default()
    }
}

/// A learning rate.
///
/// # Errors
/// What is wrong with the text.
pub fn rate(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(rate) if rate.is_normal() && rate > 0.0 => Ok(rate),
        _ => Err(String::from("a number above 0")),
    }
}
