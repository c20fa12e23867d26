//! How fast is the store when every row is in memory? `pull-hit`, `push-hit`, `train-memory`,
//! `first-touch`.
//!
//! - One store, filled and never checkpointed, serves all of them; each round measures the bare
//!   machine on the very same batches first.
//! - The cache holds every row; a miss in a window would be told by `hit_rate`.
//! - `first-touch` asks for keys above all others, new ones in each batch, and gets its own store
//!   per round; its limit is a gather and an update of as many rows of a bare array.

use std::time::Instant;

use anyhow::{Context as _, Result};
use hps::row::Updater;
use hps::{HyperParameters, Stats, Store, TableId, Update};

use crate::args::{Job, Name, Usage};
use crate::context::{Context, Delta, holdings};
use crate::figures::Latencies;
use crate::fixture::fill_in_memory;
use crate::keys::{Order, load_order};
use crate::limits::memory::BareRows;
use crate::machine;
use crate::pipeline::{Cycle, Once, Step, Trainer};
use crate::report::Outcome;

/// Distinct batches of a round; they are used again until the window is over.
const POOL: usize = 64;

/// Runs the workloads of this group that are asked for.
///
/// # Errors
/// What the store says, or too little memory for all rows twice.
pub fn run(context: &mut Context, jobs: &[Job]) -> Result<()> {
    let s = context.settings.clone();
    let cache = s.cache_of(s.rows);
    check_memory(cache + s.rows * s.row_bytes() as u64)?;
    context.notes.say("rows in memory: the bare array");
    let rows = usize::try_from(s.rows)?;
    let mut bare = BareRows::new(rows, s.descriptor.row_f32s(), s.dim)?;
    let steady: Vec<Job> = jobs
        .iter()
        .copied()
        .filter(|j| j.name != Name::FirstTouch)
        .collect();
    let mut outcomes: Vec<Outcome> = steady.iter().map(empty).collect();
    if !steady.is_empty() {
        context.notes.say("rows in memory: filling the store");
        let path = context.fixture.scratch();
        let store = Store::create(&path, s.create_options(&path)?, s.options(cache))?;
        let table = store.create_table(&s.descriptor)?;
        fill_in_memory(&store, table, &s)?;
        for round in 0..s.rounds {
            for (job, outcome) in steady.iter().zip(&mut outcomes) {
                context
                    .notes
                    .say(&format!("{}: round {}", outcome.workload, round + 1));
                let scene = Scene {
                    context,
                    store: &store,
                    table,
                    stream: 1000 + round as u64,
                };
                scene.measure(job, &mut bare, outcome)?;
            }
        }
        outcomes
            .iter_mut()
            .for_each(|o| holdings(o, &store.stats()));
        store.close_discarding();
    }
    if jobs.iter().any(|j| j.name == Name::FirstTouch) {
        outcomes.push(first_touch(context, &mut bare)?);
    }
    context.outcomes.append(&mut outcomes);
    Ok(())
}

fn empty(job: &Job) -> Outcome {
    match job.name {
        Name::PullHit => Outcome::new("pull-hit", "gather of the same rows in a bare array"),
        Name::PushHit => Outcome::new("push-hit", "read-modify-write in a bare array"),
        _ => Outcome::new(
            "train-memory",
            "gather, then read-modify-write, in a bare array",
        ),
    }
}

/// Refuses work that does not fit into free memory.
///
/// # Errors
/// A [`Usage`] error that says what is missing.
pub fn check_memory(bytes: u64) -> Result<()> {
    let free = machine::available_bytes();
    if free > 0 && bytes > free {
        let (need, have) = (bytes >> 20, free >> 20);
        return Err(Usage(format!("needs {need} MiB of memory, {have} MiB are free")).into());
    }
    Ok(())
}

/// A store with all rows in memory, in one round.
struct Scene<'a> {
    context: &'a Context,
    store: &'a Store,
    table: TableId,
    stream: u64,
}

impl Scene<'_> {
    fn measure(&self, job: &Job, bare: &mut BareRows, outcome: &mut Outcome) -> Result<()> {
        let s = &self.context.settings;
        let updater = Updater::new(&s.descriptor, &HyperParameters::default());
        let zipf = if job.name == Name::TrainMemory {
            job.zipf
        } else {
            0.0
        };
        let count = if s.tiny { 4 } else { POOL };
        let pool = self.context.pool(zipf, self.stream, count, Order::Mixed);
        let (before, cpu) = (self.store.stats(), machine::cpu_seconds());
        match job.name {
            Name::PullHit => {
                let limit = bare.gather(&pool, s.threads)?;
                outcome.set("prefetch_distance", limit.distance);
                let found = bare.gather_found(&pool, s.threads)?;
                outcome.set("gather_by_key_rows_per_s", found.per_second);
                let rate = self.pulls(&pool, outcome)?;
                outcome.round(rate, limit.per_second);
            }
            Name::PushHit => {
                let limit = bare.update(&pool, s.threads, &updater)?;
                outcome.set("prefetch_distance", limit.distance);
                let rate = self.pushes(&pool, outcome)?;
                outcome.round(rate, limit.per_second);
            }
            _ => {
                let gather = bare.gather(&pool, s.threads)?.per_second;
                let update = bare.update(&pool, s.threads, &updater)?.per_second;
                let rate = self.train(&pool, outcome)?;
                outcome.round(rate, 1.0 / (1.0 / gather + 1.0 / update));
                outcome.set("zipf", zipf);
                outcome.set("gather_rows_per_s", gather);
                outcome.set("update_rows_per_s", update);
            }
        }
        self.note(&before, cpu, outcome);
        Ok(())
    }

    fn note(&self, before: &Stats, cpu: f64, outcome: &mut Outcome) {
        let delta = Delta::of(before, &self.store.stats());
        outcome.lowest("hit_rate", delta.hit_rate());
        outcome.set("stall_s", delta.stall_seconds);
        outcome.set("cpu_s_with_limits", machine::cpu_seconds() - cpu);
    }

    fn pulls(&self, pool: &[Vec<u64>], outcome: &mut Outcome) -> Result<f64> {
        let s = &self.context.settings;
        let mut out = vec![0.0f32; s.batch * s.dim];
        let mut pull = |keys: &[u64]| -> Result<f64> {
            let since = Instant::now();
            let lease = self
                .store
                .pull(self.table, keys, &mut out[..keys.len() * s.dim])?;
            drop(lease);
            Ok(since.elapsed().as_secs_f64())
        };
        repeat(pool, s.seconds, &mut pull, outcome)
    }

    fn pushes(&self, pool: &[Vec<u64>], outcome: &mut Outcome) -> Result<f64> {
        let s = &self.context.settings;
        let gradients = vec![0.01f32; s.batch * s.dim];
        let mut push = |keys: &[u64]| -> Result<f64> {
            let lease = self.store.prefetch(self.table, keys)?.wait()?;
            let since = Instant::now();
            let update = Update::gradients(&gradients[..keys.len() * s.dim], 0.01);
            self.store.push(&lease, update)?;
            Ok(since.elapsed().as_secs_f64())
        };
        repeat(pool, s.seconds, &mut push, outcome)
    }

    fn train(&self, pool: &[Vec<u64>], outcome: &mut Outcome) -> Result<f64> {
        let s = &self.context.settings;
        let mut trainer = Trainer::new(self.store, self.table, s);
        let mut supply = Cycle::new(pool);
        for _ in 0..=s.depth {
            trainer.step(&mut supply)?;
        }
        let window = trainer.run(&mut supply, s.seconds, &mut |_| {})?;
        trainer.end_checkpoint()?;
        let steps = &window.steps;
        outcome.set(
            "step",
            Latencies::of_seconds(steps.iter().map(|x| x.seconds())).json(),
        );
        outcome.set(
            "unique_keys_per_batch",
            window.rows() as f64 / steps.len().max(1) as f64,
        );
        let share = |f: fn(&Step) -> f64| steps.iter().map(f).sum::<f64>() / window.seconds;
        outcome.set("wait_share", share(|x| x.wait));
        outcome.set("read_share", share(|x| x.read));
        outcome.set("push_share", share(|x| x.push));
        Ok(window.rate())
    }
}

/// Calls until the seconds of the calls are over, and once per batch at least; rows a second.
fn repeat(
    pool: &[Vec<u64>],
    seconds: f64,
    call: &mut dyn FnMut(&[u64]) -> Result<f64>,
    outcome: &mut Outcome,
) -> Result<f64> {
    call(pool.first().context("no batches")?)?;
    let cpu = machine::cpu_seconds();
    let (mut rows, mut sum, mut times) = (0, 0.0, Vec::new());
    for keys in pool.iter().cycle() {
        let time = call(keys)?;
        rows += keys.len();
        sum += time;
        times.push(time);
        if sum >= seconds && times.len() >= pool.len() {
            break;
        }
    }
    outcome.set("call", Latencies::of_seconds(times).json());
    // Of a push with the look-up before it, and of all threads.
    let cpu = machine::cpu_seconds() - cpu;
    outcome.set("processor_ns_per_row", cpu * 1e9 / rows as f64);
    Ok(rows as f64 / sum)
}

/// Pull and push of keys never seen before.
fn first_touch(context: &Context, bare: &mut BareRows) -> Result<Outcome> {
    let s = &context.settings;
    let limit = "gather, then read-modify-write, of as many rows in a bare array";
    let mut outcome = Outcome::new("first-touch", limit);
    let updater = Updater::new(&s.descriptor, &HyperParameters::default());
    let batches: Vec<Vec<u64>> = load_order(s.rows, s.seed ^ 0xf1, s.batch).collect();
    let count = batches.len().min(if s.tiny { 4 } else { POOL });
    for round in 0..s.rounds {
        context
            .notes
            .say(&format!("first-touch: round {}", round + 1));
        let gather = bare.gather(&batches[..count], s.threads)?.per_second;
        let update = bare
            .update(&batches[..count], s.threads, &updater)?
            .per_second;
        let path = context.fixture.scratch();
        let store = Store::create(
            &path,
            s.create_options(&path)?,
            s.options(s.cache_of(s.rows)),
        )?;
        let table = store.create_table(&s.descriptor)?;
        let mut trainer = Trainer::new(&store, table, s);
        let mut supply = Once(batches.iter());
        let window = trainer.run(&mut supply, s.seconds, &mut |_| {})?;
        outcome.round(window.rate(), 1.0 / (1.0 / gather + 1.0 / update));
        let steps = window.steps.iter().map(|x| x.seconds());
        outcome.set("step", Latencies::of_seconds(steps).json());
        outcome.set("rows_touched", window.rows());
        holdings(&mut outcome, &store.stats());
        drop(trainer);
        store.close_discarding();
    }
    Ok(outcome)
}
