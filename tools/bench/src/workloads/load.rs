//! How fast is every row stored once, in random order, with a closing checkpoint? `load` by puts, `load-push` by
//! prefetches and pushes.
//!
//! - Useful bytes are the rows' own; the limit is what the device takes of as many bytes in as many files, synced,
//!   each round measured before the load.
//! - The store of the last round of `load` stays for the other workloads.

use anyhow::Result;

use crate::context::{Context, holdings};
use crate::figures::Latencies;
use crate::fixture::Loaded;
use crate::machine;
use crate::report::Outcome;

/// Loads the store once per round.
///
/// # Errors
/// What the store says.
pub fn run(context: &mut Context) -> Result<()> {
    measure(context, "load", |c| c.fixture.load(&c.settings))
}

/// Loads one by prefetches and pushes once per round.
///
/// # Errors
/// What the store says.
pub fn run_push(context: &mut Context) -> Result<()> {
    measure(context, "load-push", |c| {
        c.fixture.load_by_push(&c.settings)
    })
}

fn measure(
    context: &mut Context,
    name: &'static str,
    load: impl Fn(&Context) -> Result<Loaded>,
) -> Result<()> {
    let s = &context.settings;
    let mut outcome = Outcome::new(name, "bytes written to synced files / row bytes");
    let row_bytes = s.row_bytes() as f64;
    let (mut before_checkpoint, mut amplification) = (Vec::new(), Vec::new());
    let mut peak = 0;
    for round in 0..s.rounds {
        context.notes.say(&format!("{name}: round {}", round + 1));
        let write = context.synced_write(s.rows * s.row_bytes() as u64)?;
        machine::reset_peak_rss();
        let loaded = load(context)?;
        peak = machine::peak_rss_bytes().max(peak);
        let rate = s.rows as f64 / loaded.seconds;
        outcome.round(rate, write.per_second / row_bytes);
        before_checkpoint.push(s.rows as f64 / loaded.put_seconds);
        let useful = s.rows as f64 * row_bytes;
        amplification.push(loaded.stats.written_bytes as f64 / useful);
        outcome.set("useful_bytes_per_s", rate * row_bytes);
        outcome.set("write_synced_bytes_per_s", write.per_second);
        outcome.set("write_files_at_once", write.ways);
        outcome.set("batch", Latencies::of_seconds(loaded.batches).json());
        outcome.set(
            "processor_ns_per_row",
            loaded.put_cpu_seconds * 1e9 / s.rows as f64,
        );
        outcome.set("stall_s", loaded.stats.stall_us as f64 / 1e6);
        outcome.set("compactions", loaded.stats.compactions);
        outcome.set("device_reads", loaded.stats.reads);
        holdings(&mut outcome, &loaded.stats);
    }
    outcome.spread("rows_per_s_before_checkpoint", &before_checkpoint);
    outcome.spread("write_amplification", &amplification);
    outcome.set("peak_rss_bytes", peak);
    context.outcomes.push(outcome);
    Ok(())
}
