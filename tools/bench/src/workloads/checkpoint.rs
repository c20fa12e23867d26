//! How fast is a checkpoint, and what does it cost the trainer beside it? `checkpoint`.
//!
//! - Idle: every row in memory is dirty and nobody trains; dirty bytes by the time of the call.
//! - Beside: the trainer goes on with plain pulls while the checkpoint runs, once with every row
//!   in memory and once out of memory. Phases without a checkpoint come between, over the same
//!   store and keys: their pulls are the idle ones.
//! - A pull belongs to a checkpoint when one was running at its end.
//! - The limit is what the device takes of as many bytes as one checkpoint has, in as many files, synced, measured in
//!   each round.

use std::time::Instant;

use anyhow::Result;
use hps::{Store, TableId};

use crate::args::Settings;
use crate::context::{Context, Delta, holdings, quiet};
use crate::figures::{Latencies, Spread};
use crate::fixture::fill_in_memory;
use crate::keys::Order;
use crate::machine;
use crate::pipeline::{Cycle, Drawn, Step, Supply, Trainer};
use crate::report::Outcome;

const LIMIT: &str = "bytes written to synced files / row bytes";
/// Pulls beside checkpoints that a p99 is taken from, at least.
const PULLS_MIN: usize = 500;
/// Pulls so long after the result of a checkpoint count as beside it.
const AFTER_SECONDS: f64 = 0.25;

/// Checkpoints idle and beside training.
///
/// # Errors
/// What the store says.
pub fn run(context: &mut Context) -> Result<()> {
    let s = context.settings.clone();
    super::memory::check_memory(s.cache_of(s.rows))?;
    context.notes.say("checkpoint: rows in memory");
    let path = context.fixture.scratch();
    let store = Store::create(
        &path,
        s.create_options(&path)?,
        s.options(s.cache_of(s.rows)),
    )?;
    let table = store.create_table(&s.descriptor)?;
    let mut idle = Outcome::new("checkpoint", LIMIT);
    let mut beside = Outcome::new("checkpoint-beside", LIMIT);
    let mut figures = Beside::default();
    let pool = context.pool(0.99, 4000, if s.tiny { 4 } else { 64 }, Order::Sorted);
    let mut trainer = Trainer::new(&store, table, &s).with_depth(0);
    for round in 0..s.rounds {
        context
            .notes
            .say(&format!("checkpoint: round {}", round + 1));
        let limit = quiet_limit(context, &store, s.rows)?;
        fill_in_memory(&store, table, &s)?;
        let (rate, cpu) = alone(&store, &mut trainer)?;
        idle.round(rate, limit);
        idle.set("processor_ns_per_row", cpu * 1e9);
        quiet(&store);
        fill_in_memory(&store, table, &s)?;
        let mut supply = Cycle::new(&pool);
        let (rate, rows) = figures.one_round(&store, &mut trainer, &mut supply, &s)?;
        beside.round(rate, quiet_limit(context, &store, rows)?);
    }
    tell_checkpoints(&mut idle, &store, &s);
    figures.tell(&mut beside, &store);
    drop(trainer);
    store.close_discarding();
    context.outcomes.extend([idle, beside]);
    let out_of_memory = out_of_memory(context)?;
    context.outcomes.push(out_of_memory);
    Ok(())
}

/// So many rows, written to synced files: rows a second.
fn quiet_limit(context: &Context, store: &Store, rows: u64) -> Result<f64> {
    quiet(store);
    let row_bytes = context.settings.row_bytes();
    let found = context.synced_write(rows * row_bytes as u64)?;
    Ok(found.per_second / row_bytes as f64)
}

/// A checkpoint that nobody trains beside; dirty rows a second, and processor seconds of one.
fn alone(store: &Store, trainer: &mut Trainer) -> Result<(f64, f64)> {
    let dirty = store.stats().dirty_rows as f64;
    let (since, cpu) = (Instant::now(), machine::cpu_seconds());
    trainer.start_checkpoint()?;
    trainer.end_checkpoint()?;
    let cpu = machine::cpu_seconds() - cpu;
    Ok((dirty / since.elapsed().as_secs_f64(), cpu / dirty))
}

fn tell_checkpoints(outcome: &mut Outcome, store: &Store, s: &Settings) {
    let rate = Spread::of(&outcome.rows_per_s).median;
    outcome.set("dirty_bytes_per_s", rate * s.row_bytes() as f64);
    outcome.set("cut_ms_max", store.stats().cut_us_max as f64 / 1e3);
    holdings(outcome, &store.stats());
}

/// Training out of memory with a checkpoint running about half of the time.
fn out_of_memory(context: &Context) -> Result<Outcome> {
    let s = &context.settings;
    let mut outcome = Outcome::new("checkpoint-beside-disk", LIMIT);
    let store = context.open_out_of_memory()?;
    let table: TableId = store.table(&s.descriptor.name)?;
    let mut trainer = Trainer::new(&store, table, s).with_depth(0);
    let mut draw = context.draw(0.99, 5000);
    let mut supply = Drawn::new(&mut draw, s.batch);
    context.notes.say("checkpoint: warm-up out of memory");
    trainer.run(
        &mut supply,
        s.warmup_seconds.min(s.seconds * 3.0),
        &mut |_| {},
    )?;
    let before = store.stats();
    let mut figures = Beside::default();
    for round in 0..s.rounds {
        context
            .notes
            .say(&format!("checkpoint out of memory: round {}", round + 1));
        let (rate, rows) = figures.one_round(&store, &mut trainer, &mut supply, s)?;
        outcome.round(rate, quiet_limit(context, &store, rows)?);
    }
    let delta = Delta::of(&before, &store.stats());
    outcome.set("miss_share", 1.0 - delta.hit_rate());
    outcome.set("compactions_meanwhile", delta.compactions);
    figures.tell(&mut outcome, &store);
    drop(trainer);
    store.close_discarding();
    // The loaded store has other checkpoints and rows now.
    context.fixture.forget();
    Ok(outcome)
}

/// Pulls with and without a checkpoint beside them.
#[derive(Default)]
struct Beside {
    idle: Vec<f64>,
    beside: Vec<f64>,
    steps_idle: Vec<f64>,
    checkpoints: usize,
    begin_ms_max: f64,
}

impl Beside {
    /// Phases with and without, until there are enough pulls of both or the time is over. Gives the rows a second of
    /// the checkpoints, and the rows of one of them.
    fn one_round(
        &mut self,
        store: &Store,
        trainer: &mut Trainer,
        supply: &mut dyn Supply,
        s: &Settings,
    ) -> Result<(f64, u64)> {
        let wanted = if s.tiny {
            4
        } else {
            PULLS_MIN.div_ceil(s.rounds)
        };
        let (idle_before, beside_before) = (self.idle.len(), self.beside.len());
        let (mut rows, mut seconds, mut checkpoints) = (0, 0.0, 0);
        let since = Instant::now();
        loop {
            let phase = (s.seconds / 4.0).min(2.0);
            quiet(store);
            let mut steps = Vec::new();
            trainer.run(supply, phase, &mut |step| steps.push(*step))?;
            self.idle.extend(steps.iter().map(Step::pull));
            self.steps_idle.extend(steps.iter().map(Step::seconds));
            rows += store.stats().dirty_rows;
            seconds += self.one_checkpoint(trainer, supply)?;
            checkpoints += 1;
            let enough = self.idle.len() - idle_before >= wanted
                && self.beside.len() - beside_before >= wanted;
            if enough || since.elapsed().as_secs_f64() > (6.0 * s.seconds).max(20.0) {
                return Ok((rows as f64 / seconds, rows / checkpoints));
            }
        }
    }

    /// Trains beside a checkpoint and what follows its result; the seconds to the result.
    fn one_checkpoint(&mut self, trainer: &mut Trainer, supply: &mut dyn Supply) -> Result<f64> {
        let since = Instant::now();
        trainer.start_checkpoint()?;
        self.begin_ms_max = self.begin_ms_max.max(since.elapsed().as_secs_f64() * 1e3);
        while !trainer.checkpoint_is_done() {
            let Some(step) = trainer.step(supply)? else {
                break;
            };
            if trainer.checkpoint_is_done() {
                break; // It ended during this step; its time is known to one batch.
            }
            self.beside.push(step.pull());
        }
        trainer.end_checkpoint()?;
        self.checkpoints += 1;
        let seconds = since.elapsed().as_secs_f64();
        // Files are unlinked once the result is there.
        trainer.run(supply, AFTER_SECONDS, &mut |step| {
            self.beside.push(step.pull())
        })?;
        Ok(seconds)
    }

    fn tell(self, outcome: &mut Outcome, store: &Store) {
        let idle = Latencies::of_seconds(self.idle);
        let beside = Latencies::of_seconds(self.beside);
        outcome.set("pull_idle", idle.json());
        outcome.set("pull_beside", beside.json());
        outcome.set(
            "pull_p99_beside_to_idle",
            beside.at(990) / idle.at(990).max(1e-9),
        );
        let batch = Latencies::of_seconds(self.steps_idle).at(500);
        let cut = store.stats().cut_us_max as f64 / 1e3;
        outcome.set("batch_ms", batch);
        outcome.set("cut_ms_max", cut);
        outcome.set("cut_to_batch", cut / batch.max(1e-9));
        outcome.set("begin_call_ms_max", self.begin_ms_max);
        outcome.set("checkpoints", self.checkpoints);
        holdings(outcome, &store.stats());
    }
}
