//! What does one process of the comparison do, and what does it answer?
//!
//! - Time is taken around the engine's calls only; drawing keys and checking rows lie between
//!   them, and the answer also gives the rate by the clock on the wall. With batches told ahead
//!   the clock on the wall is the only one: fetching goes on between the calls.
//! - Every row that is pulled is checked; faults are counted and given in the answer.
//! - Bytes written and read are those that the kernel charges to this process: a page of a mapped
//!   or cached file is charged when it becomes dirty.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};

use super::matrix::{Cell, Phase};
use super::oracle::{Faults, Oracle};
use super::{DIM, Engine, ROW_BYTES, disk_bytes, open};
use crate::figures::Latencies;
use crate::keys::{Draw, Order, load_order};
use crate::machine::{cpu_seconds, peak_rss_bytes};

/// Keys of a batch of a load where everything is in memory: hps would put more of them past its cache.
const MEMORY_LOAD_KEYS: usize = 2048;
/// Batches drawn beforehand where everything is in memory.
const DRAWN: usize = 128;
/// Batches between the checkpoint and the kill, at least.
const DOOMED_STEPS: usize = 8;

/// A part of what is measured, in the answer under its name.
type Answer = Map<String, Value>;

fn seconds<T>(f: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    let since = Instant::now();
    let value = f()?;
    Ok((value, since.elapsed().as_secs_f64()))
}

/// A counter of `/proc/self/io`.
fn charged(field: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    let mut lines = text.lines().filter_map(|line| line.split_once(": "));
    let found = lines.find(|(name, _)| *name == field);
    found.and_then(|(_, n)| n.parse().ok()).unwrap_or(0)
}

/// What was counted since it was made.
struct Meter {
    since: Instant,
    cpu: f64,
    written: u64,
    read: u64,
    steps: Vec<f64>,
    pull: f64,
    push: f64,
    keys: u64,
    pushed: u64,
    faults: Faults,
}

impl Meter {
    fn new() -> Meter {
        Meter {
            since: Instant::now(),
            cpu: cpu_seconds(),
            written: charged("write_bytes"),
            read: charged("read_bytes"),
            steps: Vec::new(),
            pull: 0.0,
            push: 0.0,
            keys: 0,
            pushed: 0,
            faults: Faults::default(),
        }
    }

    fn answer(&self) -> Answer {
        let wall = self.since.elapsed().as_secs_f64();
        let steps: f64 = self.steps.iter().sum();
        let (keys, pushed) = (self.keys as f64, self.pushed as f64);
        let pushed_bytes = pushed * ROW_BYTES as f64;
        let written = (charged("write_bytes") - self.written) as f64;
        let ms = Latencies::of_seconds(self.steps.iter().copied());
        let value = json!({
            "rows_per_s": keys / steps,
            "wall_rows_per_s": keys / wall,
            "pull_rows_per_s": keys / self.pull,
            "push_rows_per_s": pushed / self.push,
            "step_p50_ms": ms.at(500),
            "step_p99_ms": ms.at(990),
            "steps": self.steps.len(),
            "rows": self.keys,
            "pushed_bytes": pushed_bytes,
            "written_bytes": written,
            "write_amplification": written / pushed_bytes,
            "read_bytes": charged("read_bytes") - self.read,
            "cores": (cpu_seconds() - self.cpu) / wall,
            "wrong": self.faults.wrong,
            "stale": self.faults.stale,
        });
        value.as_object().cloned().unwrap_or_default()
    }
}

/// The trainer: draws, pulls, checks, pushes.
struct Trainer {
    engine: Box<dyn Engine>,
    oracle: Oracle,
    draw: Draw,
    samples: usize,
    drawn: Vec<Vec<u64>>,
    turn: usize,
    depth: usize,
    /// Batches told to the engine and not yet pulled.
    told: VecDeque<Vec<u64>>,
    keys: Vec<u64>,
    out: Vec<f32>,
    gradients: Vec<f32>,
}

impl Trainer {
    fn new(engine: Box<dyn Engine>, cell: &Cell, oracle: Oracle) -> Trainer {
        Trainer {
            engine,
            draw: Draw::new(cell.place.rows, cell.distribution(), cell.seed, cell.stream),
            samples: cell.samples,
            drawn: Vec::new(),
            turn: 0,
            depth: cell.depth,
            told: VecDeque::new(),
            keys: Vec::new(),
            out: vec![0.0; cell.samples * DIM],
            gradients: oracle.gradients(cell.samples),
            oracle,
        }
    }

    fn draw_keys(&mut self) {
        if self.drawn.is_empty() {
            self.draw.fill(self.samples, Order::Sorted, &mut self.keys);
            return;
        }
        self.keys
            .clone_from(&self.drawn[self.turn % self.drawn.len()]);
        self.turn += 1;
    }

    fn next_keys(&mut self) -> Result<()> {
        if self.depth == 0 {
            self.draw_keys();
            return Ok(());
        }
        while self.told.len() <= self.depth {
            self.draw_keys();
            self.engine.ahead(&self.keys)?;
            self.told.push_back(std::mem::take(&mut self.keys));
        }
        self.keys = self.told.pop_front().unwrap_or_default();
        Ok(())
    }

    fn step(&mut self, push: bool, meter: &mut Meter) -> Result<()> {
        let since = Instant::now();
        self.next_keys()?;
        let (keys, width) = (&self.keys, self.keys.len() * DIM);
        let out = &mut self.out[..width];
        let ((), pull) = seconds(|| self.engine.pull(keys, out))?;
        let faults = self.oracle.check(keys, out);
        meter.faults.wrong += faults.wrong;
        meter.faults.stale += faults.stale;
        meter.pull += pull;
        meter.keys += keys.len() as u64;
        let mut step = pull;
        if push {
            let gradients = &self.gradients[..width];
            let ((), push) = seconds(|| self.engine.push(keys, gradients))?;
            self.oracle.pushed(keys);
            meter.push += push;
            meter.pushed += keys.len() as u64;
            step += push;
        }
        if self.depth > 0 {
            step = since.elapsed().as_secs_f64();
        }
        meter.steps.push(step);
        Ok(())
    }

    fn run(&mut self, push: bool, seconds: f64) -> Result<Meter> {
        let mut meter = Meter::new();
        while meter.steps.is_empty() || meter.since.elapsed().as_secs_f64() < seconds {
            self.step(push, &mut meter)?;
        }
        Ok(meter)
    }

    /// Makes everything durable and keeps the counts that go with it.
    fn close(&mut self, cell: &Cell, answer: &mut Answer) -> Result<()> {
        let ((), time) = seconds(|| self.engine.checkpoint())?;
        self.oracle.save(&cell.counts)?;
        answer.insert("checkpoint_s".into(), json!(time));
        answer.insert("told".into(), json!(self.engine.describe()));
        Ok(())
    }
}

/// Runs the cell and returns the answer that its process prints.
///
/// # Errors
/// What the engine and the system say.
pub fn run(cell: &Cell) -> Result<Value> {
    let mut answer = match cell.phase {
        Phase::Bulk => bulk(cell)?,
        Phase::Load => load(cell)?,
        Phase::Pull => work(cell, false)?,
        Phase::Train => work(cell, true)?,
        Phase::Memory => memory(cell)?,
        Phase::Doomed => return doomed(cell),
        Phase::Reopen => reopen(cell)?,
    };
    answer.insert("peak_rss_bytes".into(), json!(peak_rss_bytes()));
    answer.insert("disk_bytes".into(), json!(disk_bytes(&cell.place.dir)));
    Ok(Value::Object(answer))
}

/// Loads keys, a batch after the other.
fn fill(engine: &mut dyn Engine, batches: impl Iterator<Item = Vec<u64>>) -> Result<()> {
    let mut values = Vec::new();
    for keys in batches {
        Oracle::rows(&keys, &mut values);
        engine.load(&keys, &values)?;
    }
    Ok(())
}

/// All keys in key order, in batches of a load.
fn in_key_order(cell: &Cell) -> impl Iterator<Item = Vec<u64>> {
    let (rows, step) = (cell.place.rows, cell.load_keys);
    let batch = move |first| (first..rows.min(first + step as u64)).collect();
    (0..rows).step_by(step).map(batch)
}

fn bulk(cell: &Cell) -> Result<Answer> {
    let mut engine = open(cell.kind, &cell.place)?;
    let ((), time) = seconds(|| {
        fill(&mut *engine, in_key_order(cell))?;
        engine.checkpoint()
    })?;
    let ((), settle) = seconds(|| engine.settle())?;
    Oracle::new(cell.place.rows).save(&cell.counts)?;
    Ok(Answer::from_iter([
        ("bulk_s".to_owned(), json!(time)),
        ("settle_s".to_owned(), json!(settle)),
    ]))
}

fn load(cell: &Cell) -> Result<Answer> {
    let rows = cell.place.rows;
    let mut engine = open(cell.kind, &cell.place)?;
    let mut meter = Meter::new();
    let mut values = Vec::new();
    for mut keys in load_order(rows, cell.seed, cell.load_keys) {
        keys.sort_unstable();
        Oracle::rows(&keys, &mut values);
        let ((), time) = seconds(|| engine.load(&keys, &values))?;
        meter.push += time;
        meter.steps.push(time);
        meter.keys += keys.len() as u64;
        meter.pushed += keys.len() as u64;
        if meter.push > cell.load_seconds {
            break;
        }
    }
    let ((), checkpoint) = seconds(|| engine.checkpoint())?;
    let mut answer = meter.answer();
    answer.remove("pull_rows_per_s");
    let all = meter.keys as f64 / (meter.push + checkpoint);
    answer.insert("rows_per_s".into(), json!(all));
    answer.insert("checkpoint_s".into(), json!(checkpoint));
    answer.insert("complete".into(), json!(meter.keys == rows));
    answer.insert("told".into(), json!(engine.describe()));
    Oracle::new(rows).save(&cell.counts)?;
    Ok(answer)
}

/// Opens the base store with its counts.
fn begin(cell: &Cell) -> Result<(Trainer, f64)> {
    let mut oracle = Oracle::new(cell.place.rows);
    oracle.restore(&cell.counts)?;
    let (engine, time) = seconds(|| open(cell.kind, &cell.place))?;
    Ok((Trainer::new(engine, cell, oracle), time))
}

fn work(cell: &Cell, push: bool) -> Result<Answer> {
    let (mut trainer, open) = begin(cell)?;
    trainer.run(push, cell.warm_seconds)?;
    let meter = trainer.run(push, cell.seconds)?;
    let mut answer = meter.answer();
    answer.insert("open_s".into(), json!(open));
    trainer.close(cell, &mut answer)?;
    Ok(answer)
}

/// Everything in memory: loaded in random order, made durable, then trained on; keys are drawn beforehand.
fn memory(cell: &Cell) -> Result<Answer> {
    let mut engine = open(cell.kind, &cell.place)?;
    let sorted = |mut keys: Vec<u64>| {
        keys.sort_unstable();
        keys
    };
    let batches = load_order(cell.place.rows, cell.seed, MEMORY_LOAD_KEYS);
    fill(&mut *engine, batches.map(sorted))?;
    engine.checkpoint()?;
    engine.settle()?;
    let mut trainer = Trainer::new(engine, cell, Oracle::new(cell.place.rows));
    let draw = &mut trainer.draw;
    trainer.drawn = (0..DRAWN)
        .map(|_| draw.batch(cell.samples, Order::Sorted))
        .collect();
    trainer.run(true, cell.warm_seconds)?;
    let mut answer = trainer.run(true, cell.seconds)?.answer();
    trainer.close(cell, &mut answer)?;
    Ok(answer)
}

/// Says when it has trained past its checkpoint, and waits for the kill.
fn doomed(cell: &Cell) -> Result<Value> {
    let (mut trainer, _) = begin(cell)?;
    trainer.run(true, cell.warm_seconds)?;
    trainer.engine.checkpoint()?;
    trainer.oracle.save(&cell.counts)?;
    let mut after = Meter::new();
    while after.steps.len() < DOOMED_STEPS {
        trainer.step(true, &mut after)?;
    }
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{}",
        json!({"ready": true, "wrong": after.faults.wrong})
    )?;
    out.flush()?;
    // The end of the input is the end of the parent.
    std::io::stdin().lock().read_to_end(&mut Vec::new())?;
    bail!("the parent went away instead of killing")
}

fn reopen(cell: &Cell) -> Result<Answer> {
    let mut oracle = Oracle::new(cell.place.rows);
    oracle.restore_after_kill(&cell.counts)?;
    let (engine, open) = seconds(|| open(cell.kind, &cell.place))?;
    let mut trainer = Trainer::new(engine, cell, oracle);
    let mut first = Meter::new();
    trainer.step(true, &mut first)?;
    let first_rate = first.keys as f64 / first.steps.iter().sum::<f64>();
    trainer.run(true, cell.warm_seconds)?;
    let mut meter = trainer.run(true, cell.seconds)?;
    let steady = meter.keys as f64 / meter.steps.iter().sum::<f64>();
    meter.faults.wrong += first.faults.wrong;
    meter.faults.stale += first.faults.stale;
    let mut answer = meter.answer();
    // Every sampled row is asked for once, so that none is lost unseen.
    let unseen = trainer.oracle.unseen();
    for keys in unseen.chunks(cell.samples) {
        let out = &mut trainer.out[..keys.len() * DIM];
        trainer.engine.pull(keys, out).context("the survey")?;
        let faults = trainer.oracle.check(keys, out);
        meter.faults.wrong += faults.wrong;
        meter.faults.stale += faults.stale;
    }
    let survey = trainer.oracle.survey();
    let told = json!({
        "open_s": open,
        "first_step_ms": first.steps.iter().sum::<f64>() * 1e3,
        "first_rows_per_s": first_rate,
        "first_of_steady": first_rate / steady,
        "as_checkpointed": survey.exact,
        "newer": survey.newer,
        "lost": survey.older,
        "wrong": meter.faults.wrong,
        "stale": meter.faults.stale,
    });
    answer.extend(told.as_object().cloned().unwrap_or_default());
    trainer.close(cell, &mut answer)?;
    Ok(answer)
}
