//! How soon is a store back, after a clean close and after kill -9? `reopen`.
//!
//! - Opening is timed over the loaded store; its limit is the index image read in order.
//! - For the kill a child process opens the store, trains without a checkpoint until rows were
//!   flushed, says so, trains on, and is killed: opening then has files to throw away.
//! - The first batch after opening is uniform and cold, and so are the ten that steady speed is
//!   taken from.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use hps::Store;

use crate::bench::args::Args;
use crate::bench::context::{Context, holdings};
use crate::bench::draw::{Distribution, Draw, Order};
use crate::bench::figures::Spread;
use crate::bench::pipeline::{Drawn, Once, Trainer};
use crate::bench::report::Outcome;

/// Flushes after which a trainer is killed; where all rows fit into memory, half a minute.
const FLUSHES: u64 = 8;
/// Cold batches after the first.
const STEADY: usize = 10;

/// Reopens the loaded store, both ways in each round.
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
        let limit = image_rate(context)?;
        clean.round(context, round, limit)?;
        kill_a_trainer(&context.bed.rows())?;
        killed.round(context, round + 1000, limit)?;
    }
    context.outcomes.extend([clean.end(), killed.end()]);
    Ok(())
}

/// Rows a second if opening were reading the index image in order.
fn image_rate(context: &Context) -> Result<f64> {
    let entries = std::fs::read_dir(context.bed.rows())?;
    let images: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|x| x == "image"))
        .collect();
    anyhow::ensure!(!images.is_empty(), "the loaded store has no index image");
    let mut bytes = 0;
    for image in &images {
        bytes += std::fs::metadata(image)?.len();
    }
    let read = context.sequential_read(&images)?;
    // With more than one checkpoint retained there is more than one image; one is read.
    let one = bytes as f64 / images.len() as f64;
    Ok(context.settings.rows as f64 / (one / read.per_second))
}

/// Runs this program as a trainer of the store, and kills it with changes not checkpointed.
fn kill_a_trainer(store: &Path) -> Result<()> {
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
    let cache = s.cache_for(s.rows * 20)?;
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
}

impl Reopened {
    fn new(name: &str) -> Reopened {
        Reopened {
            outcome: Outcome::new(name, "index image read in order"),
            seconds: Vec::new(),
            first: Vec::new(),
        }
    }

    fn round(&mut self, context: &Context, round: usize, limit: f64) -> Result<()> {
        let s = &context.settings;
        let cache = super::disk::cold_cache(s);
        let since = Instant::now();
        let store = Store::open(&context.bed.rows(), s.options(cache))?;
        let seconds = since.elapsed().as_secs_f64();
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
        self.outcome.spread("first_batch_to_steady", &self.first);
        self.outcome
    }
}
