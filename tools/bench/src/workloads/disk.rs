//! How fast is the store when rows are on SSD? `pull-miss` and `train`.
//!
//! - Both use the loaded store; what they change is given up at the end, so the next workload
//!   finds the store as it was loaded.
//! - `pull-miss` draws uniformly over a cache that is small on purpose; its limit is the device's
//!   random reads divided by the share of rows that had to be read.
//! - `train` is measured in steady state: after a warm-up in slices that ends when the cache is
//!   full and two slices in a row differ by less than half a percent of hits from the one before.
//!   Its limit is the ideal model with the same round's device probe.
//! - Batches of a window are drawn before its clock runs.

use std::path::Path;

use anyhow::Result;
use hps::{Stats, Store};

use crate::args::Settings;
use crate::context::{Context, Delta, holdings, quiet};
use crate::figures::Latencies;
use crate::keys::{Distribution, Draw, Order};
use crate::limits::device::{LongReads, RandomReads, Sequential};
use crate::machine;
use crate::model::Ideal;
use crate::pipeline::{Drawn, Once, Step, Trainer, Window};
use crate::plot::Sample;
use crate::report::Outcome;
use crate::trace::TraceWriter;

/// Change of the misses from some slices to the next, as a part of them, that counts as none: a rule about
/// hits would end early where nearly all are hits.
const SETTLED: f64 = 0.01;
/// Slices whose misses are compared with those of as many before: 15 seconds. (Of three slices by themselves the rule held where
/// misses still fell by 4 % from one window to the next.)
const SETTLED_SLICES: usize = 5;
/// Batches over which the model counts unique keys and misses.
const MODEL_BATCHES: usize = 100;
/// Most keys drawn before a window, in bytes.
const KEYS_BYTES_MAX: usize = 1 << 30;

/// Uniform pulls of cold rows.
///
/// # Errors
/// What the store says.
pub fn pull_miss(context: &mut Context) -> Result<()> {
    let s = context.settings.clone();
    context.ensure_loaded()?;
    let cache = cold_cache(&s);
    let mut outcome = Outcome::new("pull-miss", "random reads / share of rows read");
    let store = Store::open(&context.fixture.rows(), s.options(cache))?;
    let table = store.table(&s.descriptor.name)?;
    let files = context.settings.data_files(&context.fixture.rows());
    let mut trainer = Trainer::new(&store, table, &s).without_pushes();
    let mut rounds = Rounds::on(&context.fixture.rows());
    let mut of_mixed = Vec::new();
    for round in 0..s.rounds {
        context
            .notes
            .say(&format!("pull-miss: round {}", round + 1));
        quiet(&store);
        let device = context.random_reads(&files, context.row_block_bytes())?;
        let mut draw = context.draw(0.0, 2000 + round as u64);
        let ahead = expected(device.per_second * 1.5, s.seconds, s.batch);
        let batches: Vec<_> = (0..ahead)
            .map(|_| draw.batch(s.batch, Order::Sorted))
            .collect();
        let mut supply = Once(batches.iter());
        trainer.step(&mut supply)?;
        let (rate, delta) =
            rounds.window(&store, &mut trainer, &mut supply, s.seconds, &mut |_| {})?;
        let miss = 1.0 - delta.hit_rate();
        outcome.round(rate, device.per_second / miss.max(1e-9));
        probes(&mut outcome, &device, None);
        drain(&mut trainer)?;
        let block_bytes = context.row_block_bytes();
        let long = long_reads(&delta, block_bytes);
        let mixed = context.mixed_reads(&files, block_bytes, long)?;
        of_mixed.push(delta.reads / rounds.seconds.max(1e-9) / mixed.per_second);
    }
    rounds.tell(&mut outcome);
    outcome.spread("ratio_to_reads_of_the_same_lengths", &of_mixed);
    outcome.set("cache_bytes_max", cache);
    holdings(&mut outcome, &store.stats());
    drop(trainer);
    store.close()?;
    context.outcomes.push(outcome);
    Ok(())
}

/// A cache with room for the batches in flight, twice, and hardly any hits; or the user's.
#[must_use]
pub fn cold_cache(s: &Settings) -> u64 {
    let in_flight = (s.depth as u64 + 1) * s.batch as u64 * (s.row_bytes() as u64 + 64);
    s.cache_bytes.unwrap_or(in_flight * 2 + (16 << 20))
}

/// Batches to draw for a window at a rate that is hardly reached.
fn expected(rows_per_second: f64, seconds: f64, unique: usize) -> usize {
    let batches = rows_per_second * seconds / unique.max(1) as f64;
    let most = KEYS_BYTES_MAX / 8 / unique.max(1);
    let mut count = 8;
    while (count as f64) < batches && count < most {
        count += 8;
    }
    count
}

/// Takes what is still in flight.
fn drain(trainer: &mut Trainer) -> Result<()> {
    let nothing: Vec<Vec<u64>> = Vec::new();
    while trainer.step(&mut Once(nothing.iter()))?.is_some() {}
    Ok(())
}

/// The reads of a window that brought more than one row, taken as two: what neighbours share is longer than a block.
fn long_reads(delta: &Delta, block_bytes: usize) -> LongReads {
    let share = delta.reads_per_cold_row().recip() - 1.0;
    let each = delta.read_bytes / delta.reads.max(1.0);
    let block = block_bytes as f64;
    if !(share > 0.0 && share <= 1.0 && each > block) {
        return LongReads::default();
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a length, far below 2^53"
    )]
    let bytes = (block + (each - block) / share) as usize;
    LongReads { share, bytes }
}

fn probes(outcome: &mut Outcome, reads: &RandomReads, write: Option<&Sequential>) {
    outcome.set("device_reads_per_s", reads.per_second);
    outcome.set("device_read_block_bytes", reads.block_bytes);
    outcome.set("device_read_depth", reads.depth);
    if let Some(write) = write {
        outcome.set("device_write_bytes_per_s", write.per_second);
    }
}

/// Out-of-memory training over one distribution.
///
/// # Errors
/// What the store says.
pub fn train(context: &mut Context, zipf: f64) -> Result<()> {
    let s = context.settings.clone();
    context.ensure_loaded()?;
    machine::reset_peak_rss();
    let rss = machine::rss_bytes();
    let store = context.open_out_of_memory()?;
    let table = store.table(&s.descriptor.name)?;
    let ideal = ideal(&s, zipf);
    let mut outcome = Outcome::new(
        "train",
        "ideal model: perfect static cache, reads then writes",
    );
    outcome.set("zipf", zipf);
    let mut draw = context.draw(zipf, 3000);
    let mut trainer = Trainer::new(&store, table, &s);
    if let Some(path) = &context.trace {
        trainer.record(TraceWriter::create(path)?);
    }
    context.notes.say(&format!("train, zipf {zipf}: warm-up"));
    let mut rate = warm_up(&store, &mut trainer, &mut draw, &s, &mut outcome)?;
    let mut rounds = Rounds::on(&context.fixture.rows());
    for round in 0..s.rounds {
        context
            .notes
            .say(&format!("train, zipf {zipf}: round {}", round + 1));
        quiet(&store);
        let device = Device::probe(context, &mut outcome)?;
        let ahead = expected(rate * 2.0, s.seconds, s.batch.min(unique(&ideal)));
        let batches: Vec<_> = (0..ahead)
            .map(|_| draw.batch(s.batch, Order::Sorted))
            .collect();
        let mut supply = Once(batches.iter());
        for _ in 0..=s.depth {
            trainer.step(&mut supply)?;
        }
        let mut samples = Sampler::new(&store, context.samples.is_some());
        let mut each = |step: &Step| samples.take(step.wait);
        let delta;
        (rate, delta) = rounds.window(&store, &mut trainer, &mut supply, s.seconds, &mut each)?;
        let seconds = rounds.seconds.max(1e-9);
        let reads = delta.reads / seconds / device.reads;
        let written = delta.written_bytes / seconds / device.written;
        rounds.device.push(reads + written);
        outcome.round(rate, ideal.rows_per_second(device.reads, device.written));
        let model_4k = ideal.rows_per_second(device.reads_4k, device.written);
        rounds.of_4k.push(rate / model_4k);
        rounds.keys_bytes = rounds
            .keys_bytes
            .max(batches.iter().map(|b| b.len() * 8).sum());
        if let Some(kept) = &mut context.samples {
            *kept = samples.taken;
        }
    }
    trainer.end_checkpoint()?;
    trainer.end_record()?;
    outcome.spread("ratio_to_model_of_4k_reads", &rounds.of_4k);
    outcome.spread("device_share", &rounds.device);
    tell_memory(
        &mut outcome,
        &s,
        &ideal,
        rss,
        trainer.bytes() + rounds.keys_bytes as u64,
    );
    rounds.tell(&mut outcome);
    let stats = store.stats();
    outcome.set("compactions", stats.compactions);
    outcome.set("checkpoints", stats.checkpoints);
    outcome.set("checkpoint_cut_ms_max", stats.cut_us_max as f64 / 1e3);
    holdings(&mut outcome, &stats);
    drop(trainer);
    store.close_discarding();
    if stats.checkpoints > 0 {
        context.fixture.forget();
    }
    context.outcomes.push(outcome);
    Ok(())
}

fn ideal(s: &Settings, zipf: f64) -> Ideal {
    let distribution = Distribution::from_theta(zipf);
    let batches = if s.tiny { 10 } else { MODEL_BATCHES };
    let memory = s.cache_bytes.unwrap_or(s.memory_bytes);
    Ideal::draw(
        s.rows,
        distribution,
        s.batch,
        memory,
        s.row_bytes(),
        batches,
    )
}

/// The device in one round.
struct Device {
    reads: f64,
    reads_4k: f64,
    written: f64,
}

impl Device {
    fn probe(context: &Context, outcome: &mut Outcome) -> Result<Device> {
        // What was loaded stays there: the first files of the store may be compacted away.
        let files = context.settings.data_files(&context.fixture.rows());
        let reads = context.random_reads(&files, context.row_block_bytes())?;
        let reads_4k = context.random_reads(&files, 4096)?.per_second;
        let write = context.sequential_write()?;
        probes(outcome, &reads, Some(&write));
        outcome.set("device_reads_4k_per_s", reads_4k);
        Ok(Device {
            reads: reads.per_second,
            reads_4k,
            written: write.per_second,
        })
    }
}

fn unique(ideal: &Ideal) -> usize {
    let mut count = 1;
    while (count as f64) < ideal.unique_keys {
        count += 64;
    }
    count
}

/// The model's memory and this process': `outside` is what the trainer and its keys take.
fn tell_memory(outcome: &mut Outcome, s: &Settings, ideal: &Ideal, before: u64, outside: u64) {
    let memory = s.cache_bytes.unwrap_or(s.memory_bytes);
    outcome.set("memory_bytes_max", memory);
    outcome.set("model_miss_share", ideal.miss);
    outcome.set("model_unique_keys", ideal.unique_keys);
    outcome.set("model_cached_rows", ideal.cached_rows);
    let peak = machine::peak_rss_bytes();
    outcome.set("peak_rss_bytes", peak);
    outcome.set("rss_bytes_before", before);
    outcome.set("trainer_bytes", outside);
    let of_store = peak.saturating_sub(before + outside);
    outcome.set("peak_rss_of_store_bytes", of_store);
}

/// Figures of all rounds: by round, and of all windows together.
#[derive(Default)]
struct Rounds {
    hit: Vec<f64>,
    cold: Vec<f64>,
    amplification: Vec<f64>,
    of_4k: Vec<f64>,
    /// Reads and bytes written, each ÷ what the device can do of it alone.
    device: Vec<f64>,
    /// The block device of the store, and the seconds of all windows in which it had something to do.
    block_device: Option<String>,
    busy: f64,
    keys_bytes: usize,
    /// Of the last window.
    seconds: f64,
    window: Window,
    delta: Delta,
    cpu: f64,
}

impl Rounds {
    /// Windows over a store in a directory.
    fn on(directory: &Path) -> Rounds {
        Rounds {
            block_device: machine::device_of(directory),
            ..Rounds::default()
        }
    }

    fn busy(&self) -> f64 {
        let device = self.block_device.as_deref();
        device.and_then(machine::busy_seconds).unwrap_or_default()
    }

    /// Runs one window; rows a second, and what the store counted.
    fn window(
        &mut self,
        store: &Store,
        trainer: &mut Trainer,
        supply: &mut Once,
        seconds: f64,
        each: &mut dyn FnMut(&Step),
    ) -> Result<(f64, Delta)> {
        let (before, cpu, busy) = (store.stats(), machine::cpu_seconds(), self.busy());
        let window = trainer.run(supply, seconds, each)?;
        self.cpu += machine::cpu_seconds() - cpu;
        self.busy += self.busy() - busy;
        let delta = Delta::of(&before, &store.stats());
        self.hit.push(delta.hit_rate());
        self.cold.push(delta.reads_per_cold_row());
        self.amplification.push(delta.write_amplification());
        self.delta += delta;
        let rate = window.rate();
        self.seconds = window.seconds;
        self.window.extend(window);
        Ok((rate, delta))
    }

    fn tell(&self, outcome: &mut Outcome) {
        let (steps, delta) = (&self.window.steps, &self.delta);
        let seconds = self.window.seconds.max(1e-9);
        outcome.spread("hit_rate", &self.hit);
        outcome.spread("reads_per_cold_row", &self.cold);
        outcome.spread("write_amplification", &self.amplification);
        outcome.set(
            "pull",
            Latencies::of_seconds(steps.iter().map(Step::pull)).json(),
        );
        outcome.set(
            "step",
            Latencies::of_seconds(steps.iter().map(Step::seconds)).json(),
        );
        let unique = self.window.rows() as f64 / steps.len().max(1) as f64;
        outcome.set("unique_keys_per_batch", unique);
        outcome.set("read_bytes_each", delta.read_bytes / delta.reads.max(1.0));
        outcome.set("device_reads_used_per_s", delta.reads / seconds);
        // Overlay and network file systems have no device to ask.
        if self.busy > 0.0 {
            outcome.set("device_busy_share", self.busy / seconds);
        }
        outcome.set("stall_share", delta.stall_seconds / seconds);
        let share = |part: fn(&Step) -> f64| steps.iter().map(part).sum::<f64>() / seconds;
        outcome.set("wait_share", share(|x| x.wait));
        outcome.set("read_share", share(|x| x.read));
        outcome.set("push_share", share(|x| x.push));
        outcome.set("cores_used", self.cpu / seconds);
    }
}

/// Trains until the hit rate has settled; rows a second of the last slice.
fn warm_up(
    store: &Store,
    trainer: &mut Trainer,
    draw: &mut Draw,
    s: &Settings,
    outcome: &mut Outcome,
) -> Result<f64> {
    let slice_seconds = if s.tiny { 0.05 } else { 3.0 };
    let mut rates: Vec<f64> = Vec::new();
    let (mut seconds, mut settled, mut speed) = (0.0, false, 0.0);
    while !settled && seconds < s.warmup_seconds {
        let before = store.stats();
        let mut supply = Drawn::new(draw, s.batch);
        let window = trainer.run(&mut supply, slice_seconds, &mut |_| {})?;
        let after = store.stats();
        seconds += window.seconds;
        rates.push(Delta::of(&before, &after).hit_rate());
        let slices = if s.tiny { 1 } else { SETTLED_SLICES };
        settled = is_calm(&rates, slices) && is_full(&after);
        let busy: f64 = window.steps.iter().map(Step::seconds).sum();
        speed = window.rows() as f64 / busy.max(1e-9);
    }
    outcome.set("warmup_s", seconds);
    outcome.set("warmup_settled", settled);
    Ok(speed)
}

/// Whether the misses of so many slices are, but for a part that counts as none, those of as many before.
fn is_calm(hit_rates: &[f64], slices: usize) -> bool {
    let mut lately = hit_rates.rchunks_exact(slices);
    let mut misses = || Some(1.0 - lately.next()?.iter().sum::<f64>() / slices as f64);
    let (Some(last), Some(before)) = (misses(), misses()) else {
        return false;
    };
    (last - before).abs() < SETTLED * before.max(1e-3)
}

/// Whether the cache holds as much as it will: nearly all places, or nearly all rows.
fn is_full(stats: &Stats) -> bool {
    let most = stats.capacity_rows.min(stats.index_keys);
    stats.resident_rows as f64 >= 0.9 * most as f64
}

/// Takes readings per batch for a plot.
struct Sampler<'a> {
    store: Option<&'a Store>,
    before: Stats,
    hit_rate: f64,
    taken: Vec<Sample>,
}

impl<'a> Sampler<'a> {
    fn new(store: &'a Store, wanted: bool) -> Sampler<'a> {
        let before = store.stats();
        Sampler {
            store: wanted.then_some(store),
            hit_rate: before.hit_rate(),
            before,
            taken: Vec::new(),
        }
    }

    fn take(&mut self, waited_seconds: f64) {
        let Some(store) = self.store else { return };
        let after = store.stats();
        let delta = Delta::of(&self.before, &after);
        // Batches come ahead of their steps: between two steps none may have been looked up.
        if delta.asked > 0.0 {
            self.hit_rate = delta.hit_rate();
        }
        self.taken.push(Sample {
            hit_rate: self.hit_rate,
            ssd_mib: (delta.read_bytes + delta.written_bytes) / f64::from(1 << 20),
            stall_ms: waited_seconds * 1e3,
        });
        self.before = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misses_are_calm_when_five_slices_are_like_the_five_before() {
        let steady = [0.9; 10];
        assert!(is_calm(&steady, 5) && !is_calm(&steady[1..], 5));
        let falling: Vec<f64> = (0..10).map(|i| 0.9 + f64::from(i) * 0.0004).collect();
        assert!(!is_calm(&falling, 5), "misses fall by 2 %");
        let jumps: Vec<f64> = (0..10).map(|i| 0.9 + f64::from(i % 2) * 0.02).collect();
        assert!(!is_calm(&jumps, 5) && is_calm(&jumps, 2));
    }
}
