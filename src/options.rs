//! What can be set: what is fixed with the data, and what may differ at each open.
//!
//! - [`TableDescriptor`] is stored and fingerprinted; it never changes once a table exists.
//! - [`CreateOptions`] is what a new store is made by; its files have it from then on.
//! - [`RuntimeOptions`] may differ per open. Hyperparameters and `non_finite` say what a push computes;
//!   all others change speed, memory and disk, never a value.
//! - Everything is validated once, in `create_table` and `open`.
//! - A struct of options is `#[non_exhaustive]`, so that a new field breaks nobody's build: it is made
//!   by `new` and a method for each field, which are named after the fields.

mod create_options;
mod policy_kind;
mod setters;
mod table_options;

use std::collections::BTreeMap;
use std::path::PathBuf;

pub use create_options::CreateOptions;
pub use policy_kind::PolicyKind;
pub(crate) use setters::setters;
pub use table_options::TableOptions;

use crate::error::{ArgumentError, Error, Result};
use crate::units::all_of;

/// Type of the weights in a row; state and metadata have 4 bytes each.
///
/// This build computes with `F32` alone. A store that has a table of another type is inspected and
/// repaired, and its rows are moved without a look inside; opening it is [`Error::UnsupportedTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Dtype {
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 half precision.
    F16,
    /// The upper half of a single.
    Bf16,
}

impl Dtype {
    /// Its name: `f32`, `f16`, `bf16`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "f32",
            Dtype::F16 => "f16",
            Dtype::Bf16 => "bf16",
        }
    }

    /// Bytes of one weight.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::F16 | Dtype::Bf16 => 2,
        }
    }
}

/// The rule that turns a gradient into a change of the row, and the state it keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Optimizer {
    /// `w -= lr * g`; no state.
    Sgd,
    /// `v = momentum * v + g; w -= lr * v`; state: v `[dim]`.
    Momentum,
    /// `v = momentum * v + g; w -= lr * (g + momentum * v)`; state: v `[dim]`.
    Nesterov,
    /// `a += g * g; w -= lr * g / (sqrt(a) + epsilon)`; state: a `[dim]`.
    Adagrad,
    /// `a += mean(g * g); w -= lr * g / (sqrt(a) + epsilon)`; state: a `[1]`.
    RowwiseAdagrad,
    /// Lazy Adam with the row's own step count; state: m `[dim]`, v `[dim]`, t `[1]` (a count, as f32).
    Adam,
    /// FTRL-Proximal; state: z `[dim]`, n `[dim]`.
    Ftrl,
}

impl Optimizer {
    /// All of them. A later version may have more.
    pub const ALL: &'static [Optimizer] =
        &all_of!(Optimizer: Sgd, Momentum, Nesterov, Adagrad, RowwiseAdagrad, Adam, Ftrl);

    /// State of a row in f32s.
    #[must_use]
    pub fn state_f32s(self, dim: usize) -> usize {
        match self {
            Optimizer::Sgd => 0,
            Optimizer::Momentum | Optimizer::Nesterov | Optimizer::Adagrad => dim,
            Optimizer::RowwiseAdagrad => 1,
            Optimizer::Adam => 2 * dim + 1,
            Optimizer::Ftrl => 2 * dim,
        }
    }
}

/// What a key that was never pushed looks like: a pure function of (seed, key).
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Initialiser {
    /// All weights zero.
    Zero,
    /// All weights `value`.
    Constant {
        /// The value.
        value: f32,
    },
    /// Weights uniform in `[low, high)`.
    Uniform {
        /// Lower bound, inclusive.
        low: f32,
        /// Upper bound, exclusive.
        high: f32,
    },
    /// Weights normal.
    Normal {
        /// Mean.
        mean: f32,
        /// Standard deviation.
        deviation: f32,
    },
}

/// Optional row metadata, changed at push only; off by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RowMetadata {
    /// u32 sum of the `shows` given at push.
    pub show: bool,
    /// u32 sum of the `clicks` given at push.
    pub click: bool,
    /// u32 number of pushes of the row.
    pub count: bool,
    /// u32 step given at the last push of the row.
    pub last_step: bool,
}

impl RowMetadata {
    /// Number of u32 columns.
    #[must_use]
    pub fn columns(self) -> usize {
        let RowMetadata {
            show,
            click,
            count,
            last_step,
        } = self;
        let columns = [show, click, count, last_step];
        columns.iter().filter(|x| **x).count()
    }
}

/// What is fixed with a table's data. Stored, fingerprinted, never changed.
///
/// ```
/// use hps::{Optimizer, TableDescriptor};
///
/// let table = TableDescriptor::new("clicks", 16).optimizer(Optimizer::Adam).seed(7);
/// assert_eq!(table.row_f32s(), 16 + 2 * 16 + 1);
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TableDescriptor {
    /// Name, 1 to 255 bytes of UTF-8.
    pub name: String,
    /// Weights of a row: 1 to 8192.
    pub dim: usize,
    /// Type of the weights.
    pub dtype: Dtype,
    /// Update rule; determines the state.
    pub optimizer: Optimizer,
    /// Rows of keys never pushed.
    pub initialiser: Initialiser,
    /// Seed of the initialiser.
    pub seed: u64,
    /// Initial value of the optimizer's accumulator (AdaGrad `a`, FTRL `n`); 0 elsewhere.
    pub accumulator: f32,
    /// Optional metadata columns.
    pub metadata: RowMetadata,
}

/// Largest `dim`.
pub const DIM_MAX: usize = 8192;
/// Largest number of tables in a store.
pub const TABLES_MAX: usize = 4096;

impl TableDescriptor {
    /// AdaGrad, rows uniform in ±0.01, no metadata.
    #[must_use]
    pub fn new(name: &str, dim: usize) -> TableDescriptor {
        TableDescriptor {
            name: name.to_owned(),
            dim,
            dtype: Dtype::F32,
            optimizer: Optimizer::Adagrad,
            initialiser: Initialiser::Uniform {
                low: -0.01,
                high: 0.01,
            },
            seed: 0,
            accumulator: 0.0,
            metadata: RowMetadata::default(),
        }
    }

    /// f32-sized words of a row: weights, state, metadata, in this order. Weights of 2 bytes are followed by
    /// zeros up to a whole word.
    #[must_use]
    pub fn row_f32s(&self) -> usize {
        let weights = (self.dim * self.dtype.bytes()).div_ceil(4);
        weights + self.optimizer.state_f32s(self.dim) + self.metadata.columns()
    }

    /// Bytes of a row on disk and in memory, without key and checksum.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.row_f32s() * 4
    }

    /// Whether this build can compute with its rows.
    pub(crate) fn check_computable(&self) -> Result<()> {
        match self.dtype {
            Dtype::F32 => Ok(()),
            dtype => Err(Error::UnsupportedTable {
                table: self.name.clone(),
                dtype: dtype.name(),
            }),
        }
    }

    /// Checks every field.
    ///
    /// # Errors
    /// `InvalidArgument` naming the field.
    pub fn validate(&self) -> Result<()> {
        let bad = |name, value: String, why: &str| {
            Err(Error::InvalidArgument(ArgumentError::Option {
                name,
                value,
                why: why.to_owned(),
            }))
        };
        check_name(&self.name)?;
        if self.dim == 0 || self.dim > DIM_MAX {
            return bad("dim", self.dim.to_string(), "must be 1 to 8192");
        }
        let finite = match self.initialiser {
            Initialiser::Zero => true,
            Initialiser::Constant { value } => value.is_finite(),
            Initialiser::Uniform { low, high } => {
                low.is_finite() && high.is_finite() && low <= high && (high - low).is_finite()
            }
            Initialiser::Normal { mean, deviation } => {
                mean.is_finite() && deviation.is_finite() && deviation >= 0.0
            }
        };
        if !finite {
            return bad(
                "initialiser",
                format!("{:?}", self.initialiser),
                "must be finite and ordered",
            );
        }
        if !(self.accumulator.is_finite() && self.accumulator >= 0.0) {
            return bad(
                "accumulator",
                self.accumulator.to_string(),
                "must be finite and not negative",
            );
        }
        Ok(())
    }
}

/// Checks the name of a table.
///
/// # Errors
/// `InvalidArgument`.
pub(crate) fn check_name(name: &str) -> Result<()> {
    if (1..=255).contains(&name.len()) {
        return Ok(());
    }
    Err(Error::InvalidArgument(ArgumentError::Option {
        name: "name",
        value: format!("{name:?}"),
        why: String::from("must have 1 to 255 bytes"),
    }))
}

/// Least number of files that stay open, whatever is asked for.
pub(crate) const OPEN_FILES_LEAST: usize = 16;
/// The greatest: as many as a store has slots.
const OPEN_FILES_MOST: usize = 1 << 24;

/// Numbers of the update rules that may change between runs; recorded in each checkpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct HyperParameters {
    /// Momentum, Nesterov. Default 0.9.
    pub momentum: f32,
    /// AdaGrad (both), Adam. Default 1e-8.
    pub epsilon: f32,
    /// Adam. Default 0.9.
    pub beta1: f32,
    /// Adam. Default 0.999.
    pub beta2: f32,
    /// FTRL. Default 1.0.
    pub ftrl_beta: f32,
    /// FTRL L1. Default 0.
    pub lambda1: f32,
    /// FTRL L2. Default 0.
    pub lambda2: f32,
}

impl Default for HyperParameters {
    fn default() -> HyperParameters {
        HyperParameters {
            momentum: 0.9,
            epsilon: 1e-8,
            beta1: 0.9,
            beta2: 0.999,
            ftrl_beta: 1.0,
            lambda1: 0.0,
            lambda2: 0.0,
        }
    }
}

/// Which I/O engine to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum IoEngine {
    /// io_uring, or plain calls where the kernel refuses it.
    #[default]
    Uring,
    /// Plain calls.
    Pread,
}

/// What to do with gradients that are NaN or infinite. They are always counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum NonFinite {
    /// Leave the row as it is; other rows of the batch are updated.
    #[default]
    Skip,
    /// Refuse the batch; nothing changes.
    Reject,
    /// Apply them.
    Apply,
}

/// File numbers reserved at a time.
pub(crate) const NUMBERS_RESERVED: u64 = 4096;

/// Most bytes of a checkpoint's meta: with its header the file's length fits a signed offset.
pub(crate) const META_BYTES_MAX: u64 = i64::MAX.cast_unsigned() - 4096;

/// When bookkeeping happens that a store of ordinary size rarely sees. Tests lower them, so that a
/// short run meets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// Bytes of key blocks without an index snapshot that an open reads without complaint.
    pub snapshot_young_bytes: u64,
    /// More than this part of the index snapshot must be young before there is a new one: 2 is a half.
    pub snapshot_young_part: u64,
    /// Index snapshots up to this size may be more than a tenth of what was flushed since the one before.
    pub snapshot_small_bytes: u64,
    /// Entries of a table that one thread builds into the index at open, at least.
    pub open_unit_entries: u64,
    /// A manifest is started afresh once it is this much longer than two of its snapshots.
    pub manifest_roll_bytes: u64,
    /// File numbers reserved at a time; more than 16, and no more than the default.
    pub numbers_reserved: u64,
    /// Most bytes of a checkpoint's meta; no more than the default.
    pub meta_bytes_max: u64,
    /// Fewer open files than this are not asked for; one at least.
    pub open_files_least: usize,
    /// Memory of the cache in each shard; 0: what the options give.
    pub shard_cache_bytes: u64,
    /// Fewest rows of a put that are written past the cache, to files of four times as many; 0: a quarter of
    /// `file_bytes`.
    pub straight_rows: usize,
}

impl Default for Thresholds {
    fn default() -> Thresholds {
        Thresholds {
            snapshot_young_bytes: 64 << 10,
            snapshot_young_part: 2,
            snapshot_small_bytes: 1 << 20,
            open_unit_entries: 64 << 10,
            manifest_roll_bytes: 1 << 20,
            numbers_reserved: NUMBERS_RESERVED,
            meta_bytes_max: META_BYTES_MAX,
            open_files_least: OPEN_FILES_LEAST,
            shard_cache_bytes: 0,
            straight_rows: 0,
        }
    }
}

/// Settings that may differ at each open. Only hyperparameters and `non_finite` change a value.
///
/// ```
/// use hps::RuntimeOptions;
///
/// let options = RuntimeOptions::new().cache_bytes(64 << 20).threads(2);
/// assert_eq!((options.threads, options.shards), (2, 4));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RuntimeOptions {
    /// Memory for rows, lists, hash, frequency memory, lease and write buffers, in bytes.
    /// Default 1 GiB; at least 1 MiB. Raising it raises the hit rate. The index is beside it.
    pub cache_bytes: u64,
    /// Ranges of mix64, each with its own cache and index. Default 4; 1 to 256.
    pub shards: usize,
    /// Threads that serve batches. Default: cores, at most 8.
    pub threads: usize,
    /// Queue depth of reads per thread. Default 64; 1 to 1024. Raising it adds latency once the
    /// device is saturated (32 on the machines measured in docs/BENCHMARKS.md).
    pub io_depth: usize,
    /// I/O engine. Default uring.
    pub io: IoEngine,
    /// Eviction policy of tables for which `tables` names none. Default bi-level.
    pub policy: PolicyKind,
    /// Target size of a parameter file in bytes. Default 32 MiB; 1 MiB to 1 GiB.
    pub file_bytes: u64,
    /// Rows taken per flush (AIBox FLUSH_STEP), 0: chosen from the cache and `file_bytes`.
    pub flush_step_rows: usize,
    /// Space bound b: `current` stays under b × live (+ what one flush and one compaction hold).
    /// Default 2.0; 1.1 to 10. Lowering it costs write amplification.
    pub space_bound: f64,
    /// Threads that compact; each serves the data directories in turn. Default 0: one a directory, at
    /// most 4. More than one a directory are not started. 0 to 256.
    pub compaction_threads: usize,
    /// Most parameter files that stay open; the coldest are closed, and opened again when a row of
    /// theirs is read. Default 0: half of the process' limit of open files, as it is at the open.
    /// More than that limit allows raises it, as far as the system lets it be raised. A reader
    /// keeps all of its files open. 0 to 16777216; fewer than 16 count as 16.
    pub open_files_max: usize,
    /// Most bytes the store may occupy on its file systems. Default 0: 85 % of the file system.
    pub disk_bytes_max: u64,
    /// Checkpoints retained. Default 2; 1 to 1000.
    pub retain_checkpoints: usize,
    /// Flushes, compactions and checkpoints run in the caller's thread. Default false. For tests
    /// that must replay to the byte.
    pub inline: bool,
    /// A warm restart: index snapshots say how often each row was used, and an open reads those rows back in the
    /// background that were worth most, as many as the cache has room for. Default false. It is to be set in the
    /// runs that train, too: an open knows what the last index snapshot says, which a checkpoint renews.
    pub warm: bool,
    /// What to do with gradients that are not finite.
    pub non_finite: NonFinite,
    /// Hyperparameters of tables for which `tables` has none.
    pub hyper: HyperParameters,
    /// Options of single tables, by name. Default: none. A name that no table has waits for
    /// [`crate::Store::create_table`]; [`crate::Store::open_or_create`] refuses it.
    pub tables: BTreeMap<String, TableOptions>,
    /// Where the data directories are, if they are not where the store was made with them: all of
    /// them, in the order of [`CreateOptions::data_directories`](field@CreateOptions::data_directories).
    /// Default: none has moved. Each open needs it; a create refuses it.
    pub moved_directories: Vec<PathBuf>,
    /// For tests.
    #[cfg(feature = "sim")]
    #[doc(hidden)]
    pub thresholds: Thresholds,
}

impl Default for RuntimeOptions {
    fn default() -> RuntimeOptions {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        RuntimeOptions {
            cache_bytes: 1 << 30,
            shards: 4,
            threads: cores.min(8),
            io_depth: 64,
            io: IoEngine::Uring,
            policy: PolicyKind::Bilevel,
            file_bytes: 32 << 20,
            flush_step_rows: 0,
            space_bound: 2.0,
            compaction_threads: 0,
            open_files_max: 0,
            disk_bytes_max: 0,
            retain_checkpoints: 2,
            inline: false,
            warm: false,
            non_finite: NonFinite::Skip,
            hyper: HyperParameters::default(),
            tables: BTreeMap::new(),
            moved_directories: Vec::new(),
            #[cfg(feature = "sim")]
            thresholds: Thresholds::default(),
        }
    }
}

impl RuntimeOptions {
    /// The thresholds in force; only tests can change them.
    #[cfg(feature = "sim")]
    pub(crate) fn thresholds_in_force(&self) -> Thresholds {
        self.thresholds
    }

    /// The thresholds in force; only tests can change them.
    #[cfg(not(feature = "sim"))]
    pub(crate) fn thresholds_in_force(&self) -> Thresholds {
        let _not_an_option = self;
        Thresholds::default()
    }

    /// Checks every field against its range.
    ///
    /// # Errors
    /// `InvalidArgument` naming the option, its value and its range.
    pub fn validate(&self) -> Result<()> {
        let check = |ok: bool, name, value: String, why: &str| {
            if ok {
                return Ok(());
            }
            Err(Error::InvalidArgument(ArgumentError::Option {
                name,
                value,
                why: why.to_owned(),
            }))
        };
        let n = |x: usize| x.to_string();
        check(
            self.cache_bytes >= 1 << 20,
            "cache_bytes",
            self.cache_bytes.to_string(),
            "must be at least 1048576 (1 MiB)",
        )?;
        check(
            (1..=256).contains(&self.shards),
            "shards",
            n(self.shards),
            "must be 1 to 256",
        )?;
        check(
            (1..=256).contains(&self.threads),
            "threads",
            n(self.threads),
            "must be 1 to 256",
        )?;
        check(
            (1..=1024).contains(&self.io_depth),
            "io_depth",
            n(self.io_depth),
            "must be 1 to 1024",
        )?;
        check(
            (1 << 20..=1 << 30).contains(&self.file_bytes),
            "file_bytes",
            self.file_bytes.to_string(),
            "must be 1 MiB to 1 GiB",
        )?;
        check(
            (1.1..=10.0).contains(&self.space_bound),
            "space_bound",
            self.space_bound.to_string(),
            "must be 1.1 to 10",
        )?;
        check(
            self.open_files_max <= OPEN_FILES_MOST,
            "open_files_max",
            n(self.open_files_max),
            "must be 0 to 16777216",
        )?;
        check(
            self.compaction_threads <= 256,
            "compaction_threads",
            n(self.compaction_threads),
            "must be 0 to 256",
        )?;
        check(
            (1..=1000).contains(&self.retain_checkpoints),
            "retain_checkpoints",
            n(self.retain_checkpoints),
            "must be 1 to 1000",
        )?;
        self.policy.validate()
    }
}
