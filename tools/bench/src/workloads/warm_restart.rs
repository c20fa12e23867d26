//! How soon is a store fast again after `kill -9`, with and without `RuntimeOptions::warm`? `warm-restart`.
//!
//! - A trainer over the loaded store runs for the time of the warm-up, with checkpoints, as a warm store; its last
//!   windows are the old speed. Then a trainer of another process is killed.
//! - Idle: the store is opened and left alone until its rows are back. The limit is what the same bytes take
//!   that were read, in order, at the device's best.
//! - Training: the same batches from the start, once cold and once warm, for 25 seconds. Told are the rows
//!   served until the end of each second, warm ÷ cold, the least of them; and the speed of the last five seconds
//!   ÷ the old speed.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use hps::Store;

use super::reopen::{kill_a_trainer, some_files};
use crate::context::{Context, holdings};
use crate::fixture::index_bytes;
use crate::pipeline::{Drawn, Trainer};
use crate::report::Outcome;

/// Checkpoints before the kill.
const CHECKPOINTS: u32 = 6;
/// Seconds of training after an open, and those of them that the speed at the end is taken from.
const TRAINED: (u32, u32) = (25, 5);
/// A restart that takes longer is none.
const PATIENCE: Duration = Duration::from_secs(600);

/// Trains, kills, and opens in all ways, by turns.
///
/// # Errors
/// What the store says.
pub fn run(context: &mut Context) -> Result<()> {
    context.ensure_loaded()?;
    let mut idle = Outcome::new(
        "warm-restart",
        "the bytes read, in order, at the device's best",
    );
    let mut training = Outcome::new("warm-restart-training", "the old speed");
    let old = train_first(context)?;
    context.notes.say("warm-restart: a trainer is killed");
    kill_a_trainer(&context.fixture.rows())?;
    let (mut least, mut cold_end) = (Vec::new(), Vec::new());
    for round in 0..context.settings.rounds {
        context
            .notes
            .say(&format!("warm-restart: round {}", round + 1));
        left_alone(context, &mut idle)?;
        let stream = 8100 + round as u64;
        // Whoever is second may find the device another one.
        let is_warm_first = round % 2 == 1;
        let first = served(context, stream, is_warm_first)?;
        let second = served(context, stream, !is_warm_first)?;
        let (cold, warm) = match is_warm_first {
            false => (first, second),
            true => (second, first),
        };
        training.round(warm.end_rate, old);
        let parts = warm.rows.iter().zip(&cold.rows);
        let parts = parts.map(|(warm, cold)| warm / cold.max(1.0));
        least.push(parts.fold(f64::INFINITY, f64::min));
        cold_end.push(cold.end_rate / old);
        tell_seconds(&mut training, &cold, &warm);
    }
    training.spread("least_served_warm_to_cold", &least);
    training.spread("cold_to_old_speed", &cold_end);
    // It has other rows and checkpoints now.
    context.fixture.forget();
    context.outcomes.extend([idle, training]);
    Ok(())
}

fn open(context: &Context, warm: bool) -> Result<Store> {
    let s = &context.settings;
    let cache = s.cache_for(index_bytes(s.rows))?;
    let options = s.options(cache).warm(warm);
    Ok(Store::open(&context.fixture.rows(), options)?)
}

/// Trains a store that is to be warm again later; the speed at the end.
fn train_first(context: &Context) -> Result<f64> {
    let s = &context.settings;
    context.notes.say("warm-restart: training");
    let store = open(context, true)?;
    let table = store.table(&s.descriptor.name)?;
    let mut draw = context.draw(s.zipf, 8000);
    let mut supply = Drawn::new(&mut draw, s.batch);
    let mut trainer = Trainer::new(&store, table, s);
    for _ in 0..CHECKPOINTS {
        let seconds = s.warmup_seconds / f64::from(CHECKPOINTS);
        trainer.run(&mut supply, seconds, &mut |_| {})?;
        trainer.start_checkpoint()?;
    }
    trainer.end_checkpoint()?;
    let window = trainer.run(&mut supply, s.seconds, &mut |_| {})?;
    drop(trainer);
    // It waits for the last index snapshot.
    store.close_discarding();
    Ok(window.rate())
}

/// Opens, and waits until all rows are back.
fn left_alone(context: &Context, outcome: &mut Outcome) -> Result<()> {
    let s = &context.settings;
    let files = s.data_files(&context.fixture.rows()).into_iter();
    let with_bytes = files.map(|file| {
        let bytes = std::fs::metadata(&file).map_or(0, |found| found.len());
        (file, bytes)
    });
    let device = context.sequential_read(&some_files(with_bytes))?.per_second;
    let since = Instant::now();
    let store = open(context, true)?;
    let opened = since.elapsed().as_secs_f64();
    let since = Instant::now();
    while store.stats().warm_rows_left > 0 {
        ensure!(since.elapsed() < PATIENCE, "the rows do not come back");
        std::thread::sleep(Duration::from_millis(2));
    }
    let seconds = since.elapsed().as_secs_f64();
    let stats = store.stats();
    let (rows, bytes) = (stats.warmed_rows as f64, stats.read_bytes as f64);
    outcome.round(rows / seconds, rows / (bytes / device).max(1e-9));
    outcome.set("open_seconds", opened);
    outcome.set("warm_seconds", seconds);
    outcome.set("read_bytes", stats.read_bytes);
    outcome.set("read_bytes_per_s", bytes / seconds);
    outcome.set("device_read_bytes_per_s", device);
    outcome.set("warmed_rows", stats.warmed_rows);
    outcome.set("reads", stats.reads);
    outcome.set("row_bytes_per_s", rows * s.row_bytes() as f64 / seconds);
    holdings(outcome, &stats);
    store.close_discarding();
    Ok(())
}

/// What a trainer got from a store that was just opened.
struct Served {
    /// Rows until the end of each second.
    rows: Vec<f64>,
    /// Rows a second in the last seconds.
    end_rate: f64,
}

fn served(context: &Context, stream: u64, warm: bool) -> Result<Served> {
    let s = &context.settings;
    let (seconds, last) = match s.tiny {
        true => (3, 1),
        false => TRAINED,
    };
    let mut draw = context.draw(s.zipf, stream);
    let store = open(context, warm)?;
    let table = store.table(&s.descriptor.name)?;
    let mut supply = Drawn::new(&mut draw, s.batch);
    let mut trainer = Trainer::new(&store, table, s);
    let since = Instant::now();
    // When a batch ended, and the rows until then.
    let (mut now, mut all) = (0.0, 0.0);
    let mut rows = Vec::new();
    for second in 1..=seconds {
        let second = f64::from(second);
        let mut before = (now, all);
        while now < second {
            before = (now, all);
            let step = trainer.step(&mut supply)?;
            all += step.map_or(0.0, |step| step.rows as f64);
            now = since.elapsed().as_secs_f64();
        }
        // A batch is an eighth of the first second's rows: a part of it counts.
        let part = (second - before.0) / (now - before.0).max(1e-9);
        rows.push(before.1 + (all - before.1) * part.min(1.0));
    }
    let end_rows = rows[(seconds - 1) as usize] - rows[(seconds - last - 1) as usize];
    drop(trainer);
    store.close_discarding();
    Ok(Served {
        end_rate: end_rows / f64::from(last),
        rows,
    })
}

/// Rows served after some seconds, of the last round.
fn tell_seconds(outcome: &mut Outcome, cold: &Served, warm: &Served) {
    for (name, served) in [("cold", cold), ("warm", warm)] {
        for second in [1, 2, 3, 5, 10, 20] {
            if let Some(rows) = served.rows.get(second - 1) {
                outcome.set(&format!("{name}_rows_{second}_s"), *rows);
            }
        }
    }
}
