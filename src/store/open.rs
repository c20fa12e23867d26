//! How do an SSD tier and options become an engine?

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use tracing::field::Empty;

use super::engine::{Counters, Engine, Shard, ShardCell, Signal, Table, Writer};
use super::guard::point;
use super::lane::{Lane, Lanes, PREFETCH_LANES};
use super::lease::LeaseBook;
use super::spare::Spares;
use super::ticket::PrefetchQueue;
use super::turns::Turns;
use crate::error::{Error, Invalid, Result};
use crate::fork::Process;
use crate::format::param_file::record_stride;
use crate::io::{Directory, Io, descriptor_limit, raise_descriptor_limit_to};
use crate::observe::{Publisher, Timed};
use crate::options::{IoEngine, RuntimeOptions, TABLES_MAX, TableDescriptor};
use crate::row::{RowLayout, Updater, check_hyper};
use crate::ssd::Ssd;
use crate::ssd::recover::{self, OpenRequest, Recovered};
use crate::sync::atomic::{AtomicBool, AtomicUsize};
use crate::sync::{Mutex, RwLock};
use crate::units::TableId;

static ENGINES: AtomicU64 = AtomicU64::new(1);

/// Buffers of the writer's queue where one file is written at a time.
const WRITE_DEPTH: usize = 4;
/// Below, buffers for more files would take too many rows their place.
const SMALL_CACHE_BYTES: u64 = 64 << 20;
/// Files that a checkpoint writes at the same time, and the buffers of each. Measured (2 cores,
/// ext4, where the requests that make a file longer wait for each other): 2 files of 4 buffers
/// 1.82 M rows/s, 4 of 2 2.11 M (512 B a row, median of 3).
const WRITERS: usize = 4;
const WRITER_DEPTH: usize = 2;

/// The I/O engine asked for, or its plain twin where the kernel refuses it.
pub fn choose_io(engine: IoEngine) -> Io {
    if engine == IoEngine::Uring {
        match Io::uring() {
            Ok(io) => return io,
            Err(error) => {
                tracing::warn!(%error, "io_uring is refused; plain reads and writes are used");
            }
        }
    }
    Io::pread()
}

/// Checks options that depend on each other.
///
/// # Errors
/// `InvalidArgument` naming the option.
pub fn validate(options: &RuntimeOptions) -> Result<()> {
    options.validate()?;
    check_hyper(&options.hyper)
}

/// A table from its descriptor.
pub fn make_table(id: usize, descriptor: &TableDescriptor, options: &RuntimeOptions) -> Table {
    Table {
        id: TableId(u32::try_from(id).unwrap_or(u32::MAX)),
        descriptor: descriptor.clone(),
        layout: RowLayout::new(descriptor),
        updater: Updater::new(descriptor, &options.hyper),
    }
}

/// Lanes whose queues have such buffers: they hold the longest record of the tables.
///
/// # Errors
/// `Io` when queues or threads can't be made.
pub fn make_lanes(ssd: &Ssd, options: &RuntimeOptions, shape: (usize, usize)) -> Result<Lanes> {
    let ((depth, bytes), io) = (shape, (&ssd.io, ssd.root.path()));
    let lane = |name| Lane::new(io, name, options.threads, depth, bytes, &ssd.poison).map(Arc::new);
    Ok(Lanes {
        foreground: lane("pull")?,
        prefetch: [lane("prefetch-a")?, lane("prefetch-b")?],
        shape,
    })
}

/// The buffers of each queue of a lane, and the bytes of each buffer.
fn lane_shape(options: &RuntimeOptions, tables: &[Arc<Table>]) -> (usize, usize) {
    let longest = tables
        .iter()
        .map(|t| record_stride(t.descriptor.row_bytes()))
        .max();
    // A store begins with what small rows need: the first table seldom changes the lanes.
    let needed = longest.unwrap_or(0).max(512) + 2 * 4096;
    let cache = usize::try_from(options.cache_bytes).unwrap_or(usize::MAX);
    // All read buffers together take about a sixteenth of the cache.
    let queues = (1 + PREFETCH_LANES) * options.threads;
    let share = cache / (16 * queues * options.io_depth);
    let bytes = share
        .clamp(4096, 32 << 10)
        .max(needed)
        .next_multiple_of(4096);
    // Never more than a quarter: rather fewer requests in flight.
    let mut depth = options.io_depth;
    while depth > 4 && queues * depth * bytes > cache / 4 {
        depth /= 2;
    }
    (depth, bytes)
}

/// Which directory is opened as a store.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// The one that a path leads to.
    Path(&'a Path),
    /// One that is open already.
    Open(&'a Arc<dyn Directory>),
}

impl<'a> Place<'a> {
    fn path(self) -> &'a Path {
        match self {
            Place::Path(path) => path,
            Place::Open(root) => root.path(),
        }
    }
}

/// Opens a store: what its files say becomes an engine.
///
/// # Errors
/// `InvalidArgument`, `Locked`, `Corrupt`, `Unsupported`, `Io`.
pub fn open(
    io: &Io,
    place: Place<'_>,
    options: RuntimeOptions,
    read_only: bool,
    checkpoint: Option<u64>,
) -> Result<Engine> {
    validate(&options)?;
    let span = Timed::new(tracing::info_span!(
        "open",
        directory = %place.path().display(),
        read_only,
        checkpoint = Empty,
        step = Empty,
        files = Empty,
        index_keys = Empty,
        seconds = Empty,
    ));
    let _open = span.enter();
    let engine = {
        let recovery = tracing::info_span!("recovery", index_seconds = Empty, seconds = Empty);
        let recovery = Timed::new(recovery);
        let _recovery = recovery.enter();
        let request = open_request(&options, read_only, checkpoint);
        let recovered = match place {
            Place::Path(path) => recover::open(io, path, &request)?,
            Place::Open(root) => recover::open_again(io, root, &request)?,
        };
        let opened = recovered.checkpoint;
        let engine = build(recovered, options, read_only)?;
        let since = Instant::now();
        engine.load_index(opened.as_ref().map_or(0, |c| c.id))?;
        recovery.record("index_seconds", since.elapsed().as_secs_f64());
        if let Some(checkpoint) = opened {
            span.record("checkpoint", checkpoint.id);
            span.record("step", checkpoint.step);
        }
        engine
    };
    if !span.is_disabled() {
        let stats = engine.stats();
        span.record("files", stats.files);
        span.record("index_keys", stats.index_keys);
    }
    tracing::info!("the store is open");
    Ok(engine)
}

/// Builds an engine on an opened tier: caches and index empty.
///
/// # Errors
/// `Io`, `Corrupt`, `InvalidArgument`.
fn build(recovered: Recovered, options: RuntimeOptions, read_only: bool) -> Result<Engine> {
    let ssd = recovered.ssd;
    if recovered.tables.len() > TABLES_MAX {
        let what = format!("{} tables, at most {TABLES_MAX}", recovered.tables.len());
        return Err(Error::corrupt(ssd.root.path(), 0, what));
    }
    let tables: Vec<Arc<Table>> = recovered
        .tables
        .iter()
        .enumerate()
        .map(|(i, d)| Arc::new(make_table(i, d, &options)))
        .collect();
    if let Some(checkpoint) = &recovered.checkpoint
        && checkpoint.hyper != options.hyper
    {
        let (then, now) = (checkpoint.hyper, options.hyper);
        tracing::info!(?then, ?now, "hyperparameters differ from the checkpoint's");
    }
    let shape = lane_shape(&options, &tables);
    let lanes = make_lanes(&ssd, &options, shape)?;
    let cache = usize::try_from(options.cache_bytes).unwrap_or(usize::MAX);
    let write_bytes = (cache / 64).clamp(16 << 10, 1 << 20).next_multiple_of(4096);
    // More files than one keep the device busy while the first is put in its place.
    let small = options.cache_bytes < SMALL_CACHE_BYTES;
    let (writers, write_depth) = match options.inline || small {
        true => (1, WRITE_DEPTH),
        false => (WRITERS, WRITER_DEPTH),
    };
    let queue = |_| {
        let queue = ssd.io.engine.queue(write_depth, write_bytes);
        queue.map_err(|e| Error::io("make a submission queue for", ssd.root.path(), e))
    };
    let queues = (0..writers).map(queue).collect::<Result<Vec<_>>>()?;
    let epoch = recovered.checkpoint.as_ref().map_or(1, |c| c.epoch + 1);
    let shard = || {
        let shard = Shard {
            epoch,
            ..Shard::default()
        };
        ShardCell::new(shard)
    };
    let file_bytes = options
        .file_bytes
        .min((options.cache_bytes / 8).max(1 << 20));
    let engine = Engine {
        id: ENGINES.fetch_add(1, Ordering::Relaxed),
        process: Process::this(),
        read_only,
        shards: (0..options.shards).map(|_| shard()).collect(),
        tables: RwLock::new(tables.clone()),
        lanes: RwLock::new(Arc::new(lanes)),
        admission: Mutex::new(()),
        writer: Mutex::new(Writer { queues }),
        commit: RwLock::new(()),
        turns: Turns::new(ssd.directories.len(), options.inline),
        leases: LeaseBook::default(),
        prefetches: PrefetchQueue::default(),
        removing: Mutex::new(()),
        gate: RwLock::new(()),
        running: Arc::default(),
        images: Arc::default(),
        counters: Counters::default(),
        publisher: Publisher::new(ssd.root.path(), read_only),
        spares: Spares::default(),
        flushed: Signal::default(),
        compacted: Signal::default(),
        low: Signal::default(),
        closed: AtomicBool::new(false),
        waiting: AtomicUsize::new(0),
        write_bytes: (writers * write_depth * write_bytes) as u64,
        file_bytes,
        options,
        ssd,
    };
    engine.rebuild_caches(&tables)?;
    Ok(engine)
}

impl Engine {
    /// Adds a table, or finds it.
    ///
    /// # Errors
    /// `InvalidArgument`: a changed descriptor, leases outstanding, no room for a row.
    pub fn create_table(&self, descriptor: &TableDescriptor) -> Result<TableId> {
        descriptor.validate()?;
        let tables = self.all_tables();
        if let Some(known) = tables.iter().find(|t| t.descriptor.name == descriptor.name) {
            compare(&known.descriptor, descriptor)?;
            return Ok(known.id);
        }
        self.check_writer()?;
        self.ssd.check_writable()?;
        self.prefetches.wait_cancelled();
        // No checkpoint runs, no batch is admitted, nothing is pushed while the places move.
        let _role = self.wait_idle();
        let _alarm = self.ssd.poison.alarm();
        let _admission = self
            .admission
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let _whole = self.gate_alone();
        let mut tables = self.all_tables();
        if let Some(known) = tables.iter().find(|t| t.descriptor.name == descriptor.name) {
            compare(&known.descriptor, descriptor)?;
            return Ok(known.id);
        }
        let count = self.in_use();
        if count > 0 {
            let what = "a table can't be created";
            return Err(Invalid::LeasesOutstanding { what, count }.into());
        }
        if tables.len() >= TABLES_MAX {
            let what = format!("a store has at most {TABLES_MAX} tables");
            return Err(Invalid::Other { what }.into());
        }
        self.flush_all()?;
        let table = Arc::new(make_table(tables.len(), descriptor, &self.options));
        let id = table.id;
        tables.push(table);
        let shape = lane_shape(&self.options, &tables);
        if shape != self.lanes().shape {
            let lanes = Arc::new(make_lanes(&self.ssd, &self.options, shape)?);
            *self.lanes.write().unwrap_or_else(PoisonError::into_inner) = lanes;
        }
        self.rebuild_caches(&tables)?;
        point("create_table");
        *self.tables.write().unwrap_or_else(PoisonError::into_inner) = tables;
        Ok(id)
    }

    /// Leases and tickets that are out, and rows that a batch needs.
    pub fn in_use(&self) -> usize {
        self.leases.totals().0 + self.prefetches.len() + self.busy_rows()
    }

    /// Rows that a batch has pinned or was promised, or that are not on SSD.
    fn busy_rows(&self) -> usize {
        let busy = |cell: &ShardCell| -> usize {
            cell.lock()
                .tables
                .iter()
                .map(|t| t.cache.pinned() + t.reserved)
                .sum()
        };
        self.shards.iter().map(busy).sum()
    }
}

fn compare(stored: &TableDescriptor, asked: &TableDescriptor) -> Result<()> {
    fn same<T: PartialEq + std::fmt::Debug>(
        name: &str,
        field: &'static str,
        stored: &T,
        asked: &T,
    ) -> Result<()> {
        if stored == asked {
            return Ok(());
        }
        let (stored, asked) = (format!("{stored:?}"), format!("{asked:?}"));
        Err(Invalid::DescriptorChanged {
            name: name.to_owned(),
            field,
            stored,
            asked,
        }
        .into())
    }
    let name = &stored.name;
    same(name, "dim", &stored.dim, &asked.dim)?;
    same(name, "dtype", &stored.dtype, &asked.dtype)?;
    same(name, "optimizer", &stored.optimizer, &asked.optimizer)?;
    same(name, "initialiser", &stored.initialiser, &asked.initialiser)?;
    same(name, "seed", &stored.seed, &asked.seed)?;
    same(name, "accumulator", &stored.accumulator, &asked.accumulator)?;
    same(name, "metadata", &stored.metadata, &asked.metadata)
}

/// The tier's part of the options.
fn open_request<'a>(
    options: &'a RuntimeOptions,
    read_only: bool,
    checkpoint: Option<u64>,
) -> OpenRequest<'a> {
    OpenRequest {
        directories: &options.data_directories,
        read_only,
        checkpoint,
        disk_bytes_max: options.disk_bytes_max,
        thresholds: options.thresholds(),
        open_files_max: open_files_max(options, read_only),
        threads: if options.inline { 1 } else { options.threads },
    }
}

/// Descriptors that are left for all that is no parameter file, where a number of these is asked for.
const DESCRIPTORS_SPARE: u64 = 64;

/// Most parameter files that stay open. A reader closes none: its checkpoint stays readable though a
/// writer rolls back behind it.
fn open_files_max(options: &RuntimeOptions, read_only: bool) -> usize {
    if read_only {
        return usize::MAX;
    }
    let least = options.thresholds().open_files_least;
    let limit = descriptor_limit();
    let max = match options.open_files_max as u64 {
        0 => limit / 2,
        asked if asked + DESCRIPTORS_SPARE <= limit => asked,
        asked => {
            let limit = raise_descriptor_limit_to(asked + DESCRIPTORS_SPARE);
            asked.min(limit.saturating_sub(DESCRIPTORS_SPARE))
        }
    };
    usize::try_from(max).unwrap_or(usize::MAX).max(least)
}
