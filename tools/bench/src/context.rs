//! What do all workloads of a run share? Settings, directory, limits, outcomes.
//!
//! - A limit of the device is measured on the store's own files where there are any, at the block
//!   that a row's read takes, when the store is quiet.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use hps::format::param_file::record_stride;
use hps::io::Io;
use hps::{Stats, Store};

use super::args::{Args, Settings};
use super::fixture::{Fixture, Loaded};
use super::keys::{Distribution, Draw, Order};
use super::limits::device::{self, LongReads, RandomProbe, RandomReads, Sequential};
use super::limits::files::{Files, SyncedFiles, synced_files};
use super::plot::Sample;
use super::report::{Notes, Outcome};

/// Depths of random reads that are tried.
const READ_DEPTHS: [usize; 3] = [32, 64, 128];
/// Depths of writes and reads in order that are tried.
const ORDER_DEPTHS: [usize; 2] = [4, 8];

/// One run.
#[derive(Debug)]
pub struct Context {
    /// The flags, resolved.
    pub settings: Settings,
    /// Its directory.
    pub fixture: Fixture,
    /// The disk of the probes.
    pub disk: Io,
    /// Progress.
    pub notes: Notes,
    /// What is done.
    pub outcomes: Vec<Outcome>,
    /// Batches to plot, of the last `train`; kept only when a plot was asked for.
    pub samples: Option<Vec<Sample>>,
    /// Where `train` records its keys.
    pub trace: Option<PathBuf>,
}

impl Context {
    /// Makes the directory.
    ///
    /// # Errors
    /// When it can't be made.
    pub fn new(args: &Args) -> Result<Context> {
        hps::io::raise_descriptor_limit_to(u64::MAX);
        let fixture = Fixture::new(args)?;
        let mut settings = args.settings();
        settings.data_dirs = fixture.elsewhere().to_vec();
        settings.root = fixture.root().to_path_buf();
        Ok(Context {
            settings,
            fixture,
            disk: device::disk(),
            notes: Notes::default(),
            outcomes: Vec::new(),
            samples: args.plot.is_some().then(Vec::new),
            trace: args.trace.clone(),
        })
    }

    /// Bytes that a direct read of one row takes: its record, from block to block.
    #[must_use]
    pub fn row_block_bytes(&self) -> usize {
        record_stride(self.settings.row_bytes()).next_multiple_of(512)
    }

    /// Random reads a second at this block, on these files.
    ///
    /// # Errors
    /// What the system says.
    pub fn random_reads(&self, files: &[PathBuf], block_bytes: usize) -> Result<RandomReads> {
        self.mixed_reads(files, block_bytes, LongReads::default())
    }

    /// Random reads a second, most of a block, some longer, on these files.
    ///
    /// # Errors
    /// What the system says.
    pub fn mixed_reads(
        &self,
        files: &[PathBuf],
        block_bytes: usize,
        long: LongReads,
    ) -> Result<RandomReads> {
        let probe = RandomProbe {
            block_bytes,
            long,
            threads: self.settings.threads,
            depths: &READ_DEPTHS,
            seconds: self.seconds_of(1.0),
            seed: self.settings.seed,
        };
        device::random_reads(&self.disk, files, &probe)
    }

    /// Where writes are measured. Of several devices it is one, and their number that counts.
    fn written_place(&self) -> &Path {
        let first = self.settings.data_dirs.first();
        first.map_or(self.fixture.root(), PathBuf::as_path)
    }

    /// Bytes a second written in order, to a file that is then removed.
    ///
    /// # Errors
    /// What the system says.
    pub fn sequential_write(&self) -> Result<Sequential> {
        let path = self.written_place().join("probe");
        let bytes = if self.settings.tiny {
            16 << 20
        } else {
            1 << 30
        };
        let found = device::sequential_write(&self.disk, &path, bytes, &ORDER_DEPTHS);
        let _kept = std::fs::remove_file(path);
        let devices = self.settings.devices() as f64;
        found.map(|one| Sequential {
            per_second: one.per_second * devices,
            synced_per_second: one.synced_per_second * devices,
            ..one
        })
    }

    /// Bytes a second written to files like those of a store of this run, so many bytes in all, and synced.
    ///
    /// # Errors
    /// What the system says.
    pub fn synced_write(&self, bytes: u64) -> Result<SyncedFiles> {
        let devices = self.settings.devices();
        let files = Files {
            bytes: bytes / devices as u64,
            file_bytes: self.settings.runtime.file_bytes,
        };
        let one = synced_files(&self.disk, self.written_place(), files)?;
        Ok(SyncedFiles {
            per_second: one.per_second * devices as f64,
            ..one
        })
    }

    /// Bytes a second read in order from these files.
    ///
    /// # Errors
    /// What the system says.
    pub fn sequential_read(&self, files: &[PathBuf]) -> Result<Sequential> {
        device::sequential_read(&self.disk, files, &ORDER_DEPTHS)
    }

    /// Seconds of a probe: less in a test.
    fn seconds_of(&self, seconds: f64) -> f64 {
        if self.settings.tiny { 0.05 } else { seconds }
    }

    /// A stream of keys; streams with different numbers ask in another order.
    #[must_use]
    pub fn draw(&self, zipf: f64, stream: u64) -> Draw {
        let distribution = Distribution::from_theta(zipf);
        Draw::new(self.settings.rows, distribution, self.settings.seed, stream)
    }

    /// Batches of the stream, drawn before any clock runs.
    #[must_use]
    pub fn pool(&self, zipf: f64, stream: u64, count: usize, order: Order) -> Vec<Vec<u64>> {
        let mut draw = self.draw(zipf, stream);
        let batch = |_| draw.batch(self.settings.batch, order);
        (0..count).map(batch).collect()
    }

    /// Loads the store of this run unless it is there; its index bytes, and how it went.
    ///
    /// # Errors
    /// What the store says.
    pub fn ensure_loaded(&self) -> Result<(u64, Option<Loaded>)> {
        if let Some(index_bytes) = self.fixture.loaded(&self.settings) {
            return Ok((index_bytes, None));
        }
        self.notes.say("load: rows on disk for the other workloads");
        let loaded = self.fixture.load(&self.settings)?;
        Ok((loaded.stats.index_bytes, Some(loaded)))
    }

    /// Opens the loaded store with the cache of an out-of-memory workload.
    ///
    /// # Errors
    /// What the store says.
    pub fn open_out_of_memory(&self) -> Result<Store> {
        let (index_bytes, _) = self.ensure_loaded()?;
        let cache = self.settings.cache_for(index_bytes)?;
        Ok(Store::open(
            &self.fixture.rows(),
            self.settings.options(cache),
        )?)
    }
}

/// Waits until a store writes nothing more by itself, a while at most.
pub fn quiet(store: &Store) {
    let written = || {
        let s = store.stats();
        (s.written_bytes, s.compactions, s.flushes, s.reads)
    };
    let since = Instant::now();
    let (mut before, mut equal) = (written(), 0);
    while equal < 3 && since.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(100));
        let now = written();
        equal = if now == before { equal + 1 } else { 0 };
        before = now;
    }
}

/// The difference of two readings of a store's counters.
#[derive(Clone, Copy, Debug, Default)]
pub struct Delta {
    /// Distinct keys asked.
    pub asked: f64,
    /// Those not resident.
    pub missed: f64,
    /// Device reads.
    pub reads: f64,
    /// Their bytes.
    pub read_bytes: f64,
    /// Bytes written.
    pub written_bytes: f64,
    /// Of these, by compactions.
    pub compaction_bytes: f64,
    /// Bytes of rows pushed.
    pub pushed_bytes: f64,
    /// Compactions.
    pub compactions: u64,
    /// Seconds that batches waited for room.
    pub stall_seconds: f64,
}

impl std::ops::AddAssign for Delta {
    fn add_assign(&mut self, other: Delta) {
        self.asked += other.asked;
        self.missed += other.missed;
        self.reads += other.reads;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.compaction_bytes += other.compaction_bytes;
        self.pushed_bytes += other.pushed_bytes;
        self.compactions += other.compactions;
        self.stall_seconds += other.stall_seconds;
    }
}

impl Delta {
    /// What happened between two readings.
    #[must_use]
    pub fn of(before: &Stats, after: &Stats) -> Delta {
        let less = |a: u64, b: u64| a.saturating_sub(b) as f64;
        let asked = less(after.unique_asked, before.unique_asked);
        Delta {
            asked,
            missed: asked - less(after.unique_hits, before.unique_hits),
            reads: less(after.reads, before.reads),
            read_bytes: less(after.read_bytes, before.read_bytes),
            written_bytes: less(after.written_bytes, before.written_bytes),
            compaction_bytes: less(
                after.compaction_written_bytes,
                before.compaction_written_bytes,
            ),
            pushed_bytes: less(
                after.bytes_pushed + after.bytes_put,
                before.bytes_pushed + before.bytes_put,
            ),
            compactions: after.compactions.saturating_sub(before.compactions),
            stall_seconds: less(after.stall_us, before.stall_us) / 1e6,
        }
    }

    /// Share of distinct keys that were resident.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        1.0 - self.missed / self.asked.max(1.0)
    }

    /// Device reads per row that was not resident. (Compactions read too: see `compactions`.)
    #[must_use]
    pub fn reads_per_cold_row(&self) -> f64 {
        self.reads / self.missed.max(1.0)
    }

    /// Device bytes written ÷ row bytes pushed; 0 when nothing was pushed.
    #[must_use]
    pub fn write_amplification(&self) -> f64 {
        if self.pushed_bytes == 0.0 {
            return 0.0;
        }
        self.written_bytes / self.pushed_bytes
    }
}

/// Adds what a store holds to an outcome.
pub fn holdings(outcome: &mut Outcome, stats: &Stats) {
    outcome.set("io_engine", stats.io_engine);
    outcome.set("direct_io", stats.direct_io);
    outcome.set("store_cache_bytes", stats.cache_bytes);
    outcome.set("store_buffer_bytes", stats.buffer_bytes);
    outcome.set("store_index_bytes", stats.index_bytes);
    outcome.set("index_keys", stats.index_keys);
    outcome.set("capacity_rows", stats.capacity_rows);
    outcome.set("resident_rows", stats.resident_rows);
    outcome.set("current_bytes", stats.current_bytes);
    outcome.set("live_bytes", stats.live_bytes);
    outcome.set("pinned_bytes", stats.pinned_bytes);
    outcome.set("huge_page_bytes", super::machine::huge_bytes());
}
