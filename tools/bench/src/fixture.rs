//! Where are the stores that are measured, and how are they filled?
//!
//! - One directory holds everything; a temporary one goes away at the end, and in a directory of
//!   the user's only what this program made there is removed.
//! - A loaded store is used again when its description (rows, dim, optimizer, seed) is equal.
//! - Rows are put in random key order: whole rows of incompressible numbers.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use hps::{PutRows, Store, TableId, Ticket, Update, mix64};
use serde_json::{Value, json};

use super::args::{Args, Settings};
use super::keys::load_order;
use super::machine;

/// The description of a loaded store, beside it.
const DESCRIPTION: &str = "hps-bench.json";

/// Keys of a table from which on its index has narrow entries, over all shards.
const NARROW_KEYS: u64 = 180_000;

/// The most that the index of a table takes, before it is there: 13 bytes a key, 18 where entries are wide
/// (docs/decisions/0039).
#[must_use]
pub fn index_bytes(keys: u64) -> u64 {
    keys * if keys < NARROW_KEYS { 18 } else { 13 }
}

/// The directory of a run.
#[derive(Debug)]
pub struct Fixture {
    root: PathBuf,
    keep: bool,
    /// Where the stores have their data directories, if not with them.
    elsewhere: Vec<PathBuf>,
    temporary: Option<tempfile::TempDir>,
}

/// How a load went.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Seconds until the last row was put.
    pub put_seconds: f64,
    /// Seconds until everything was durable.
    pub seconds: f64,
    /// Seconds of each batch.
    pub batches: Vec<f64>,
    /// Processor time of all threads until the last row was put.
    pub put_cpu_seconds: f64,
    /// What the store counted.
    pub stats: hps::Stats,
}

impl Fixture {
    /// The user's directory, or a temporary one.
    ///
    /// # Errors
    /// When it can't be made.
    pub fn new(args: &Args) -> Result<Fixture> {
        let mut fixture = Fixture::at(args.dir.as_deref(), args.keep)?;
        let name = folder_name(&fixture.root)?;
        for dir in &args.data_dir {
            let absolute = std::path::absolute(dir).context("find the current directory")?;
            let own = absolute.join(&name);
            fs::create_dir_all(&own).with_context(|| format!("make {}", own.display()))?;
            fixture.elsewhere.push(own);
        }
        Ok(fixture)
    }

    /// The same without the other flags; with `keep` the loaded store stays.
    ///
    /// # Errors
    /// When it can't be made.
    pub fn at(dir: Option<&Path>, keep: bool) -> Result<Fixture> {
        let (root, temporary) = match dir {
            Some(dir) => (dir.to_path_buf(), None),
            None => {
                let made = tempfile::tempdir().context("make a temporary directory")?;
                (made.path().to_path_buf(), Some(made))
            }
        };
        fs::create_dir_all(&root).with_context(|| format!("make {}", root.display()))?;
        Ok(Fixture {
            root,
            keep,
            elsewhere: Vec::new(),
            temporary,
        })
    }

    /// Where the stores have their data directories, if not with them.
    #[must_use]
    pub fn elsewhere(&self) -> &[PathBuf] {
        &self.elsewhere
    }

    /// The directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The file of probes.
    #[must_use]
    pub fn probe(&self) -> PathBuf {
        self.root.join("probe")
    }

    /// The loaded store.
    #[must_use]
    pub fn rows(&self) -> PathBuf {
        self.root.join("rows")
    }

    /// Where a workload makes a store of its own; the one before it is removed.
    #[must_use]
    pub fn scratch(&self) -> PathBuf {
        for place in std::iter::once(&self.root).chain(&self.elsewhere) {
            let _missing = fs::remove_dir_all(place.join("scratch"));
        }
        self.root.join("scratch")
    }

    /// The index bytes of the loaded store that is there, when it is one of these settings.
    #[must_use]
    pub fn loaded(&self, settings: &Settings) -> Option<u64> {
        let text = fs::read_to_string(self.root.join(DESCRIPTION)).ok()?;
        let found: Value = serde_json::from_str(&text).ok()?;
        let same = found["store"] == description(settings) && self.rows().is_dir();
        same.then(|| found["index_bytes"].as_u64()).flatten()
    }

    /// The loaded store is not as it was loaded any more: the next one to need it makes it anew.
    pub fn forget(&self) {
        let _missing = fs::remove_file(self.root.join(DESCRIPTION));
    }

    /// Makes the store of these settings anew, as the workload `load` does.
    ///
    /// # Errors
    /// What the store says.
    pub fn load(&self, settings: &Settings) -> Result<Loaded> {
        let _missing = fs::remove_file(self.root.join(DESCRIPTION));
        let path = self.rows();
        let _missing = fs::remove_dir_all(&path);
        let loaded = load_at(&path, settings, fill)?;
        let told = json!({
            "store": description(settings),
            "index_bytes": loaded.stats.index_bytes,
        });
        fs::write(self.root.join(DESCRIPTION), told.to_string())?;
        Ok(loaded)
    }

    /// Makes a store of the same rows that no other workload uses, as `load-push` does.
    ///
    /// # Errors
    /// What the store says.
    pub fn load_by_push(&self, settings: &Settings) -> Result<Loaded> {
        load_at(&self.scratch(), settings, push_all)
    }

    /// Files of rows of a store, for reads in no order.
    #[must_use]
    pub fn data_files(store: &Path) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut directories = vec![store.to_path_buf()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                let path = entry.path();
                match entry.metadata() {
                    Ok(data) if data.is_dir() => directories.push(path),
                    Ok(_) if path.extension().is_some_and(|x| x == "rows") => found.push(path),
                    _ => {}
                }
            }
        }
        found.sort();
        found
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let keeps = self.keep && self.temporary.is_none();
        for directory in &self.elsewhere {
            let _missing = fs::remove_dir_all(directory.join("scratch"));
            if !keeps {
                let _missing = fs::remove_dir_all(directory.join("rows"));
            }
            let _not_empty = fs::remove_dir(directory);
        }
        if self.temporary.is_some() {
            return;
        }
        let _missing = fs::remove_file(self.probe());
        let _missing = fs::remove_dir_all(self.root.join("scratch"));
        if !self.keep {
            let _missing = fs::remove_dir_all(self.rows());
            let _missing = fs::remove_file(self.root.join(DESCRIPTION));
            let _not_empty = fs::remove_dir(&self.root);
        }
    }
}

/// The folder of a run in directories that others may use too: the same for the same directory of the run.
fn folder_name(root: &Path) -> Result<String> {
    let root = root
        .canonicalize()
        .context("find the directory of the run")?;
    let mut hasher = DefaultHasher::new();
    root.hash(&mut hasher);
    Ok(format!("hps-bench-{:016x}", hasher.finish()))
}

fn description(settings: &Settings) -> Value {
    json!({
        "rows": settings.rows,
        "dim": settings.dim,
        "optimizer": format!("{:?}", settings.descriptor.optimizer),
        "seed": settings.seed,
        "file_bytes": settings.runtime.file_bytes,
        "shards": settings.runtime.shards,
        "data_dirs": settings.data_dirs,
    })
}

/// Whole rows of numbers between 0 and 1 without any pattern.
#[must_use]
pub fn random_rows(rows: usize, row_f32s: usize, seed: u64) -> Vec<f32> {
    let unit = |i: usize| {
        let bits = mix64(seed.wrapping_add(i as u64)) >> 40;
        // 24 bits fit an f32 exactly.
        u32::try_from(bits).map_or(0.0, |bits| bits as f32 / (1u32 << 24) as f32)
    };
    (0..rows * row_f32s).map(unit).collect()
}

/// Puts every row once, in random order; the seconds of each batch.
///
/// # Errors
/// What the store says.
pub fn fill(store: &Store, table: TableId, settings: &Settings) -> Result<Vec<f64>> {
    put_all(store, table, settings, settings.batch * 2)
}

/// Makes a store, with all rows as they are filled in and a closing checkpoint.
fn load_at(
    path: &Path,
    settings: &Settings,
    fill: impl FnOnce(&Store, TableId, &Settings) -> Result<Vec<f64>>,
) -> Result<Loaded> {
    let cache = settings.cache_for(index_bytes(settings.rows))?;
    let created = settings.create_options(path)?;
    let store = Store::create(path, created, settings.options(cache)).context("make a store")?;
    let table = store.create_table(&settings.descriptor)?;
    let (since, cpu) = (Instant::now(), machine::cpu_seconds());
    let batches = fill(&store, table, settings)?;
    let put_seconds = since.elapsed().as_secs_f64();
    let put_cpu_seconds = machine::cpu_seconds() - cpu;
    store.checkpoint(1, &[]).context("the closing checkpoint")?;
    let seconds = since.elapsed().as_secs_f64();
    let stats = store.stats();
    store.close()?;
    Ok(Loaded {
        put_seconds,
        seconds,
        batches,
        put_cpu_seconds,
        stats,
    })
}

/// Pushes every row once, whole and new, in random order; the next call's rows are asked for before a call's are
/// waited for. The seconds of each call.
fn push_all(store: &Store, table: TableId, settings: &Settings) -> Result<Vec<f64>> {
    let (batch, width) = (settings.batch * 2, settings.descriptor.row_f32s());
    let values = random_rows(batch, width, settings.seed);
    let ask = |keys: Vec<u64>| -> Result<(usize, Ticket)> {
        Ok((keys.len(), store.prefetch(table, &keys)?))
    };
    let mut calls = load_order(settings.rows, settings.seed, batch).map(ask);
    let mut times = Vec::new();
    let mut asked = calls.next().transpose()?;
    while let Some((rows, ticket)) = asked {
        let since = Instant::now();
        asked = calls.next().transpose()?;
        let lease = ticket.wait()?;
        store.push(&lease, Update::rows(&values[..rows * width]))?;
        drop(lease);
        times.push(since.elapsed().as_secs_f64());
    }
    Ok(times)
}

/// Bytes of rows in one put of [`fill_in_memory`], at most: with an eighth of a file far from as many as go past the cache.
const SHORT_PUT_BYTES: usize = 1 << 20;

/// The same for what is measured of rows in memory: all are there then, and dirty.
///
/// # Errors
/// What the store says; rows that did not stay in memory.
pub fn fill_in_memory(store: &Store, table: TableId, settings: &Settings) -> Result<()> {
    let short = usize::try_from(settings.runtime.file_bytes / 8)?.min(SHORT_PUT_BYTES);
    let batch = (short / settings.row_bytes()).max(1);
    put_all(store, table, settings, batch)?;
    let stats = store.stats();
    let there = stats.tables.iter().find(|t| t.id == table);
    let there = there.map_or(0, |t| t.resident_rows);
    ensure!(
        there == settings.rows,
        "{there} of {} rows stayed in memory: what is measured needs all of them there",
        settings.rows
    );
    Ok(())
}

/// Puts every row once, in random order, so many at a time; the seconds of each put.
fn put_all(store: &Store, table: TableId, settings: &Settings, batch: usize) -> Result<Vec<f64>> {
    let width = settings.descriptor.row_f32s();
    let values = random_rows(batch, width, settings.seed);
    let mut times = Vec::new();
    for keys in load_order(settings.rows, settings.seed, batch) {
        let since = Instant::now();
        store.put(table, &keys, PutRows::whole(&values[..keys.len() * width]))?;
        times.push(since.elapsed().as_secs_f64());
    }
    Ok(times)
}
