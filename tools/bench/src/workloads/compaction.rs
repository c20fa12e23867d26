//! What does churn cost in writes and space, and what do pulls feel of compactions? `compaction`.
//!
//! - The store is filled and never checkpointed, so nothing but the space bound keeps files.
//! - Steady: three compactions have run and, over two slices, neither hits nor `current` ÷ live
//!   moved much; or the warm-up's time is over, and the report says so.
//! - Idle pulls come from phases without pushes over the same keys (no flush, so no compaction);
//!   busy pulls from training. A busy pull is near a compaction when one ended during it or the
//!   pull before or after.
//! - Amplification is device bytes written by the store ÷ row bytes pushed; the cleaning factor
//!   is all writes ÷ writes that were no compaction's.

use std::time::Instant;

use anyhow::Result;
use hps::{Stats, Store};

use crate::args::Settings;
use crate::context::{Context, Delta, holdings, quiet};
use crate::figures::{Latencies, Spread};
use crate::fixture::{fill, index_bytes};
use crate::keys::Draw;
use crate::pipeline::{Drawn, Step, Trainer};
use crate::report::Outcome;

/// Pulls of each kind, at least.
const PULLS_MIN: usize = 500;
const COMPACTIONS_MIN: u64 = 3;

/// Churns a store that never checkpoints.
///
/// # Errors
/// What the store says.
pub fn run(context: &mut Context, zipf: f64) -> Result<()> {
    let s = context.settings.clone();
    let cache = s.cache_for(index_bytes(s.rows))?;
    context.notes.say("compaction: filling a store");
    let path = context.fixture.scratch();
    let store = Store::create(&path, s.create_options(&path)?, s.options(cache))?;
    let table = store.create_table(&s.descriptor)?;
    fill(&store, table, &s)?;
    let limit = "bytes written in order / bytes written per row pushed";
    let mut outcome = Outcome::new("compaction", limit);
    outcome.set("zipf", zipf);
    let mut draw = context.draw(zipf, 8000);
    let mut trainer = Trainer::new(&store, table, &s);
    context.notes.say("compaction: churn until steady");
    settle(&store, &mut trainer, &mut draw, &s, &mut outcome)?;
    drop(trainer);
    let mut churn = Churn::default();
    for round in 0..s.rounds {
        context
            .notes
            .say(&format!("compaction: round {}", round + 1));
        let write = context.sequential_write()?;
        let mut trainer = Trainer::new(&store, table, &s).with_depth(0);
        let rate = churn.round(&store, &mut trainer, &mut draw, &s)?;
        let per_row = churn.last_amplification() * s.row_bytes() as f64;
        outcome.round(rate, write.per_second / per_row.max(1e-9));
    }
    churn.tell(&mut outcome);
    outcome.set("space_bound", s.runtime.space_bound);
    outcome.set("cache_bytes_max", cache);
    holdings(&mut outcome, &store.stats());
    store.close_discarding();
    context.outcomes.push(outcome);
    Ok(())
}

fn space(stats: &Stats) -> f64 {
    stats.current_bytes as f64 / stats.live_bytes.max(1) as f64
}

/// Trains until the store is steady.
fn settle(
    store: &Store,
    trainer: &mut Trainer,
    draw: &mut Draw,
    s: &Settings,
    outcome: &mut Outcome,
) -> Result<()> {
    let slice = if s.tiny { 0.1 } else { 5.0 };
    let first = store.stats();
    let mut readings: Vec<(f64, f64)> = Vec::new();
    let (mut seconds, mut settled) = (0.0, false);
    while !settled && seconds < s.warmup_seconds {
        let before = store.stats();
        let mut supply = Drawn::new(draw, s.batch);
        seconds += trainer.run(&mut supply, slice, &mut |_| {})?.seconds;
        let after = store.stats();
        readings.push((Delta::of(&before, &after).hit_rate(), space(&after)));
        let calm = match readings[..] {
            [.., a, b, c] => [b, c]
                .iter()
                .all(|x| (x.0 - a.0).abs() < 0.005 && (x.1 - a.1).abs() < 0.05),
            _ => false,
        };
        settled = calm && after.compactions - first.compactions >= COMPACTIONS_MIN;
    }
    outcome.set("warmup_s", seconds);
    outcome.set("warmup_settled", settled);
    Ok(())
}

/// Figures of all rounds.
#[derive(Default)]
struct Churn {
    idle: Vec<f64>,
    busy: Vec<f64>,
    near: Vec<f64>,
    space: Vec<f64>,
    amplification: Vec<f64>,
    cleaning: Vec<f64>,
    compactions: u64,
    idle_miss: Vec<f64>,
    busy_miss: Vec<f64>,
}

impl Churn {
    /// Idle pulls, then training with what compaction it needs; rows pushed a second.
    fn round(
        &mut self,
        store: &Store,
        trainer: &mut Trainer,
        draw: &mut Draw,
        s: &Settings,
    ) -> Result<f64> {
        let wanted = if s.tiny {
            20
        } else {
            PULLS_MIN.div_ceil(s.rounds)
        };
        quiet(store);
        trainer.set_pushes(false);
        let before = store.stats();
        let pulls = self.pulls(store, trainer, draw, wanted, s, |_| true)?;
        self.idle_miss
            .push(1.0 - Delta::of(&before, &store.stats()).hit_rate());
        self.idle.extend(pulls.iter().map(|p| p.seconds));
        trainer.set_pushes(true);
        let before = store.stats();
        let per_round = COMPACTIONS_MIN.div_ceil(s.rounds as u64);
        let enough = |stats: &Stats| stats.compactions - before.compactions >= per_round;
        let pulls = self.pulls(store, trainer, draw, wanted, s, enough)?;
        let delta = Delta::of(&before, &store.stats());
        self.busy_miss.push(1.0 - delta.hit_rate());
        self.amplification.push(delta.write_amplification());
        let first_writes = delta.written_bytes - delta.compaction_bytes;
        self.cleaning
            .push(delta.written_bytes / first_writes.max(1.0));
        self.compactions += delta.compactions;
        for (i, pull) in pulls.iter().enumerate() {
            let around = &pulls[i.saturating_sub(1)..pulls.len().min(i + 2)];
            self.busy.push(pull.seconds);
            if around.iter().any(|p| p.compacted) {
                self.near.push(pull.seconds);
            }
        }
        let rows: usize = pulls.iter().map(|p| p.rows).sum();
        let seconds: f64 = pulls.iter().map(|p| p.step_seconds).sum();
        Ok(rows as f64 / seconds)
    }

    /// Steps until there are enough pulls, the window is over and `enough` says so; or until ten
    /// windows and 20 seconds are over.
    fn pulls(
        &mut self,
        store: &Store,
        trainer: &mut Trainer,
        draw: &mut Draw,
        wanted: usize,
        s: &Settings,
        enough: impl Fn(&Stats) -> bool,
    ) -> Result<Vec<Pull>> {
        let mut supply = Drawn::new(draw, s.batch);
        let seconds = s.seconds;
        let (mut pulls, since) = (Vec::new(), Instant::now());
        let mut before = store.stats();
        loop {
            let Some(step) = trainer.step(&mut supply)? else {
                break;
            };
            let after = store.stats();
            self.space.push(space(&after));
            pulls.push(Pull::of(&step, &before, &after));
            let over = since.elapsed().as_secs_f64();
            let done = pulls.len() >= wanted && over >= seconds && enough(&after);
            if done || over >= (10.0 * seconds).max(20.0) {
                break;
            }
            before = after;
        }
        Ok(pulls)
    }

    fn last_amplification(&self) -> f64 {
        self.amplification.last().copied().unwrap_or(0.0)
    }

    fn tell(self, outcome: &mut Outcome) {
        outcome.spread("write_amplification", &self.amplification);
        outcome.spread("cleaning_factor", &self.cleaning);
        outcome.spread("space_amplification", &self.space);
        outcome.set("compactions_inside", self.compactions);
        outcome.set("idle_miss_share", Spread::of(&self.idle_miss).median);
        outcome.set("busy_miss_share", Spread::of(&self.busy_miss).median);
        let idle = Latencies::of_seconds(self.idle);
        let busy = Latencies::of_seconds(self.busy);
        let near = Latencies::of_seconds(self.near);
        let to_idle = |x: &Latencies| x.at(990) / idle.at(990).max(1e-9);
        outcome.set("pull_p99_busy_to_idle", to_idle(&busy));
        outcome.set("pull_p99_near_compaction_to_idle", to_idle(&near));
        outcome.set("pull_idle", idle.json());
        outcome.set("pull_busy", busy.json());
        outcome.set("pull_near_compaction", near.json());
        let enough = idle.len() >= PULLS_MIN
            && busy.len() >= PULLS_MIN
            && self.compactions >= COMPACTIONS_MIN
            && self.busy_miss.iter().all(|miss| *miss >= 0.1);
        outcome.set("enough_for_p99", enough);
    }
}

/// One pull of a window.
struct Pull {
    rows: usize,
    /// Of the pull.
    seconds: f64,
    /// Of pull and push; drawing keys is outside.
    step_seconds: f64,
    /// A compaction ended during the step.
    compacted: bool,
}

impl Pull {
    fn of(step: &Step, before: &Stats, after: &Stats) -> Pull {
        let written = after.compaction_written_bytes - before.compaction_written_bytes;
        Pull {
            rows: step.rows,
            seconds: step.pull(),
            step_seconds: step.seconds(),
            compacted: written > 0 || after.compactions > before.compactions,
        }
    }
}
