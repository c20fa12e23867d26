//! How soon is a store back, after a clean close and after kill -9? `reopen`.
//!
//! - Opening is timed over the loaded store; its limit is the index snapshot, and the key blocks of
//!   files that are younger, read in order at the device's best.
//! - For the kill a child process opens the store, trains without a checkpoint until rows were
//!   flushed, says so, trains on, and is killed: opening then has files to throw away.
//! - The first batch after opening is uniform and cold, and so are the ten that steady speed is
//!   taken from.

use std::io::{BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use hps::Store;
use hps::inspect::{Report, Scope, SnapshotPartReport, inspect};

use crate::args::Args;
use crate::context::{Context, holdings};
use crate::figures::Spread;
use crate::fixture::index_bytes;
use crate::keys::{Distribution, Draw, Order};
use crate::pipeline::{Drawn, Once, Trainer};
use crate::report::Outcome;

/// Flushes after which a trainer is killed; where all rows fit into memory, half a minute.
const FLUSHES: u64 = 8;
/// Cold batches after the first.
const STEADY: usize = 10;

/// Bytes of files that are read to learn the device's rate, where there is no index snapshot.
const PROBE_BYTES: u64 = 1 << 30;
/// Bytes of a key block, and the keys in it.
const KEY_BLOCK: (u64, u64) = (4096, 340);
/// Checkpoints while the store is churned.
const CHECKPOINTS: u32 = 5;

/// Reopens the loaded store, both ways in each round; then, if asked, after training.
///
/// # Errors
/// What the store says; a child that did not start; a row that was lost.
pub fn run(context: &mut Context) -> Result<()> {
    context.ensure_loaded()?;
    let mut clean = Reopened::new("reopen");
    let mut killed = Reopened::new("reopen-killed");
    let rounds = context.settings.rounds;
    for round in 0..rounds {
        context.notes.say(&format!("reopen: round {}", round + 1));
        let rate = device_rate(context)?;
        clean.round(context, round, rate)?;
        kill_a_trainer(&context.fixture.rows())?;
        killed.round(context, round + 1000, rate)?;
    }
    context.outcomes.extend([clean.end(), killed.end()]);
    let Some(seconds) = context.settings.churn_seconds else {
        return Ok(());
    };
    churn(context, seconds)?;
    let mut churned = Reopened::new("reopen-churned");
    for round in 0..rounds {
        let rate = device_rate(context)?;
        churned.round(context, round + 2000, rate)?;
    }
    context.outcomes.push(churned.end());
    Ok(())
}

/// Trains, with a checkpoint now and then and one at the end.
fn churn(context: &mut Context, seconds: f64) -> Result<()> {
    context.notes.say("reopen: training");
    let s = &context.settings;
    let store = Store::open(
        &context.fixture.rows(),
        s.options(s.cache_for(index_bytes(s.rows))?),
    )?;
    let table = store.table(&s.descriptor.name)?;
    let mut draw = context.draw(s.zipf, 8000);
    let mut supply = Drawn::new(&mut draw, s.batch);
    let mut trainer = Trainer::new(&store, table, s);
    let since = Instant::now();
    for i in 1..=CHECKPOINTS {
        let end = seconds * f64::from(i) / f64::from(CHECKPOINTS);
        while since.elapsed().as_secs_f64() < end {
            trainer.step(&mut supply)?;
        }
        trainer.start_checkpoint()?;
    }
    while !trainer.checkpoint_is_done() {
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(trainer);
    let written = store.stats().written_bytes;
    // It waits for the last index snapshot.
    store.close_discarding();
    let bytes = snapshot_bytes(&report(&context.fixture.rows())?);
    context.notes.say(&format!(
        "reopen: {} MiB written while training, {} MiB of index snapshot",
        written >> 20,
        bytes >> 20
    ));
    Ok(())
}

/// What the store's files say of themselves.
fn report(store: &Path) -> Result<Report> {
    let mut go_on = |_, _| ControlFlow::Continue(());
    Ok(inspect(store, Scope::new(), &mut go_on)?)
}

/// Bytes of all parts of the index snapshot that are there.
fn snapshot_bytes(report: &Report) -> u64 {
    readable(report).map(|part| part.bytes).sum()
}

fn readable(report: &Report) -> impl Iterator<Item = &SnapshotPartReport> {
    let parts = report.snapshot.iter();
    parts.filter(|part| part.checkpoint.is_some())
}

/// What an open has to read: the parts of the index snapshot, and the key blocks of files that are
/// younger than the part of their data directory.
fn needed_bytes(path: &Path, store: &Store) -> Result<u64> {
    let report = report(path)?;
    let young = |file: &hps::FileInfo| {
        let of_file = |part: &&SnapshotPartReport| {
            part.directory.is_none_or(|d| d == file.directory as usize)
        };
        let part = readable(&report).find(of_file);
        file.current && part.is_none_or(|part| part.number < file.number)
    };
    let blocks = |file: hps::FileInfo| (file.rows + file.tombstones).div_ceil(KEY_BLOCK.1);
    let files = store.files().into_iter();
    let keys: u64 = files.filter(young).map(blocks).sum();
    Ok(snapshot_bytes(&report) + keys * KEY_BLOCK.0)
}

/// Bytes a second of the store's files read in order: the index snapshot, or rows where there is none.
fn device_rate(context: &Context) -> Result<f64> {
    let report = report(&context.fixture.rows())?;
    let mut files: Vec<PathBuf> = readable(&report).map(|part| part.path.clone()).collect();
    if files.is_empty() {
        files = some_files(report.files.into_iter().map(|file| (file.path, file.bytes)));
    }
    Ok(context.sequential_read(&files)?.per_second)
}

/// The first of some files, with their bytes: as many as tell the device's rate.
pub(super) fn some_files(files: impl Iterator<Item = (PathBuf, u64)>) -> Vec<PathBuf> {
    let mut left = PROBE_BYTES;
    let wanted = files.take_while(|(_, bytes)| {
        let is_wanted = left > 0;
        left = left.saturating_sub(*bytes);
        is_wanted
    });
    wanted.map(|(path, _)| path).collect()
}

/// Runs this program as a trainer of the store, and kills it with changes not checkpointed.
///
/// # Errors
/// When it could not be started, or ended by itself.
pub(super) fn kill_a_trainer(store: &Path) -> Result<()> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .arg("--child")
        .arg(store)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .context("start a trainer to kill")?;
    let mut line = String::new();
    let said = match child.stdout.take() {
        Some(out) => BufReader::new(out).read_line(&mut line),
        None => Ok(0),
    };
    std::thread::sleep(Duration::from_millis(200));
    child.kill().context("kill the trainer")?;
    child.wait()?;
    said?;
    anyhow::ensure!(
        line.trim() == "ready",
        "the trainer ended before it was killed"
    );
    Ok(())
}

/// The child: trains without a checkpoint until it is killed.
///
/// # Errors
/// What the store says.
pub fn child(args: &Args, path: &Path) -> Result<()> {
    let s = args.settings();
    let cache = s.cache_for(index_bytes(s.rows))?;
    let store = Store::open(path, s.options(cache))?;
    let table = store.table(&s.descriptor.name)?;
    let distribution = Distribution::from_theta(s.zipf);
    let mut draw = Draw::new(s.rows, distribution, s.seed, 6000);
    let mut supply = Drawn::new(&mut draw, s.batch);
    let mut trainer = Trainer::new(&store, table, &s);
    let (since, mut told) = (Instant::now(), false);
    // Nobody killed it: an end, so that no trainer is left behind.
    while since.elapsed() < Duration::from_secs(300) {
        trainer.step(&mut supply)?;
        let flushed = store.stats().flushes >= FLUSHES;
        if !told && (flushed || since.elapsed() > Duration::from_secs(30)) {
            writeln!(std::io::stdout().lock(), "ready")?;
            told = true;
        }
    }
    anyhow::bail!("a trainer that was to be killed was not")
}

/// Figures of one way to end a store.
struct Reopened {
    outcome: Outcome,
    seconds: Vec<f64>,
    first: Vec<f64>,
    /// MiB of the index snapshot and younger key blocks.
    needed: Vec<f64>,
}

impl Reopened {
    fn new(name: &str) -> Reopened {
        Reopened {
            outcome: Outcome::new(name, "index snapshot and younger key blocks read in order"),
            seconds: Vec::new(),
            first: Vec::new(),
            needed: Vec::new(),
        }
    }

    fn round(&mut self, context: &Context, round: usize, rate: f64) -> Result<()> {
        let s = &context.settings;
        let cache = super::disk::cold_cache(s);
        let since = Instant::now();
        let store = Store::open(&context.fixture.rows(), s.options(cache))?;
        let seconds = since.elapsed().as_secs_f64();
        let needed = needed_bytes(&context.fixture.rows(), &store)? as f64;
        let limit = s.rows as f64 / (needed / rate);
        self.needed.push(needed / f64::from(1 << 20));
        let table = store.table(&s.descriptor.name)?;
        let mut draw = context.draw(0.0, 7000 + round as u64);
        let batches: Vec<_> = (0..=STEADY)
            .map(|_| draw.batch(s.batch, Order::Sorted))
            .collect();
        let mut trainer = Trainer::new(&store, table, s)
            .without_pushes()
            .with_depth(0);
        let mut supply = Once(batches.iter());
        let window = trainer.run(&mut supply, f64::INFINITY, &mut |_| {})?;
        let rates: Vec<f64> = window
            .steps
            .iter()
            .map(|step| step.rows as f64 / step.seconds())
            .collect();
        self.seconds.push(seconds);
        self.first.push(rates[0] / Spread::of(&rates[1..]).median);
        self.outcome.round(s.rows as f64 / seconds, limit);
        let stats = store.stats();
        let (found, rows) = (stats.index_keys, s.rows);
        anyhow::ensure!(found == rows, "{found} rows of {rows} after opening");
        holdings(&mut self.outcome, &stats);
        drop(trainer);
        store.close()?;
        Ok(())
    }

    fn end(mut self) -> Outcome {
        self.outcome.spread("open_s", &self.seconds);
        self.outcome.spread("needed_mib", &self.needed);
        self.outcome.spread("first_batch_to_steady", &self.first);
        self.outcome
    }
}
