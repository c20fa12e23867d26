//! How fast are other stores at the same work, in the same memory, in the same run?
//!
//! - Every engine does the work of [`Engine`]: rows of 64 weights and 64 AdaGrad accumulators, a
//!   batch at a time, keys unique and rising, spread over [`THREADS`] threads where it allows that.
//! - A peer updates rows with the arithmetic of `hps::row::Updater`, from the rows that the pull
//!   of the same batch fetched: nothing is read twice.
//! - Every row that is pulled is checked ([`oracle`]); one wrong row fails the comparison.
//! - An engine runs in a process of its own, in a memory cgroup that counts the page cache
//!   ([`cgroup`]); where there is none, the table says so.

pub mod cgroup;
pub mod child;
pub mod compare;
pub mod hashmap;
pub mod lmdb;
pub mod matrix;
pub mod mmap;
pub mod oracle;
pub mod ours;
pub mod rocks;
pub mod table;

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use clap::ValueEnum;
use hps::row::{RowVisitor, Updater};
use hps::{HyperParameters, TableDescriptor};

/// Weights of a row.
pub const DIM: usize = 64;
/// f32s of a row: weights, then AdaGrad's accumulators.
pub const ROW: usize = 2 * DIM;
/// Bytes of a row.
pub const ROW_BYTES: usize = 4 * ROW;
/// Threads that do the work of a batch.
pub const THREADS: usize = 2;
/// Learning rate of every push.
pub const LEARNING_RATE: f32 = 0.01;

/// A store under comparison.
///
/// # Shapes
/// keys: `[n]`, unique and rising, each below the number of rows
pub trait Engine {
    /// Writes whole rows.
    ///
    /// # Shapes
    /// rows: `[n, ROW]`
    ///
    /// # Errors
    /// What the engine says.
    fn load(&mut self, keys: &[u64], rows: &[f32]) -> Result<()>;

    /// Gives the trainer the weights of a batch; all keys were loaded.
    ///
    /// # Shapes
    /// out: `[n, DIM]`
    ///
    /// # Errors
    /// What the engine says, and a key that is not there.
    fn pull(&mut self, keys: &[u64], out: &mut [f32]) -> Result<()>;

    /// Applies AdaGrad to the rows of the batch that was pulled last.
    ///
    /// # Shapes
    /// gradients: `[n, DIM]`
    ///
    /// # Errors
    /// What the engine says, and a batch other than the one pulled last.
    fn push(&mut self, keys: &[u64], gradients: &[f32]) -> Result<()>;

    /// Makes everything pushed so far durable.
    ///
    /// # Errors
    /// What the engine says.
    fn checkpoint(&mut self) -> Result<()>;

    /// The batch after the ones told so far, so that an engine may begin to fetch it. Told in the
    /// order of the pulls, and only where the comparison was asked to look ahead.
    ///
    /// # Errors
    /// What the engine says.
    fn ahead(&mut self, _keys: &[u64]) -> Result<()> {
        Ok(())
    }

    /// Finishes the work that a load left for the background.
    ///
    /// # Errors
    /// What the engine says.
    fn settle(&mut self) -> Result<()> {
        Ok(())
    }

    /// What the engine says about itself, for the report.
    fn describe(&self) -> String {
        String::new()
    }
}

/// The engines by name.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// This store.
    Hps,
    /// RocksDB, with the options of FBGEMM's SSD table.
    Rocksdb,
    /// LMDB, synced at checkpoints only.
    Lmdb,
    /// A memory-mapped array, indexed by key.
    Mmap,
    /// A hash map in memory, nothing on disk (W4 only).
    Hashmap,
}

impl Kind {
    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Hps => "hps",
            Kind::Rocksdb => "rocksdb",
            Kind::Lmdb => "lmdb",
            Kind::Mmap => "mmap",
            Kind::Hashmap => "hashmap",
        }
    }

    /// Whether rows outlive the process.
    #[must_use]
    pub fn persists(self) -> bool {
        self != Kind::Hashmap
    }
}

/// What an engine needs to know to open.
#[derive(Clone, Debug)]
pub struct Place {
    /// Directory, made when it is missing.
    pub dir: PathBuf,
    /// Rows; keys are below.
    pub rows: u64,
    /// Memory that the process may take for the engine, page cache included.
    pub memory_bytes: u64,
    /// Cache of hps in bytes, instead of what its share of the memory gives.
    pub hps_cache_bytes: Option<u64>,
}

impl Place {
    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

/// Opens an engine, or makes it where there is none.
///
/// # Errors
/// What the engine says.
pub fn open(kind: Kind, place: &Place) -> Result<Box<dyn Engine>> {
    std::fs::create_dir_all(&place.dir)?;
    Ok(match kind {
        Kind::Hps => Box::new(ours::Ours::open(place)?),
        Kind::Rocksdb => Box::new(rocks::Rocks::open(place)?),
        Kind::Lmdb => Box::new(lmdb::Lmdb::open(place)?),
        Kind::Mmap => Box::new(mmap::Array::open(place)?),
        Kind::Hashmap => Box::new(hashmap::Map::new(place)),
    })
}

/// The rows of every engine: AdaGrad, accumulators from 0.
#[must_use]
pub fn descriptor() -> TableDescriptor {
    TableDescriptor::new("rows", DIM)
}

/// The update rule of every peer: that of hps.
#[must_use]
pub fn updater() -> Updater {
    Updater::new(&descriptor(), &HyperParameters::default())
}

/// Walks rows that lie one after the other, each with its gradient.
struct Contiguous<'a> {
    rows: std::slice::ChunksExactMut<'a, f32>,
    gradients: std::slice::ChunksExact<'a, f32>,
}

impl RowVisitor for Contiguous<'_> {
    fn next(&mut self) -> Option<(&mut [f32], &[f32])> {
        Some((self.rows.next()?, self.gradients.next()?))
    }
}

/// Updates fetched rows in place.
///
/// # Shapes
/// rows: `[n, ROW]`, gradients: `[n, DIM]`
fn update(updater: &Updater, rows: &mut [f32], gradients: &[f32]) {
    let mut visitor = Contiguous {
        rows: rows.chunks_exact_mut(ROW),
        gradients: gradients.chunks_exact(DIM),
    };
    updater.apply_all(LEARNING_RATE, &mut visitor);
}

/// Copies the weights of fetched rows.
///
/// # Shapes
/// rows: `[n, ROW]`, out: `[n, DIM]`
fn copy_weights(rows: &[f32], out: &mut [f32]) {
    for (row, out) in rows.chunks_exact(ROW).zip(out.chunks_exact_mut(DIM)) {
        out.copy_from_slice(&row[..DIM]);
    }
}

/// Runs both closures, the first one on another thread; the first error counts.
fn both<A>(a: impl FnOnce() -> Result<A> + Send, b: impl FnOnce() -> Result<A> + Send) -> Result<()>
where
    A: Send,
{
    let (a, b) = rayon::join(a, b);
    a?;
    b?;
    Ok(())
}

/// The keys of the batch that was pulled last, for engines that keep its rows.
#[derive(Default)]
struct Pulled {
    keys: Vec<u64>,
}

impl Pulled {
    fn set(&mut self, keys: &[u64]) {
        self.keys.clear();
        self.keys.extend_from_slice(keys);
    }

    fn check(&self, keys: &[u64]) -> Result<()> {
        ensure!(self.keys == keys, "a push of another batch than was pulled");
        Ok(())
    }
}

/// Bytes of all files under a directory.
#[must_use]
pub fn disk_bytes(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = std::fs::read_dir(dir) else {
        return 0;
    };
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => disk_bytes(&entry.path()),
        Ok(meta) => meta.blocks() * 512,
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}
