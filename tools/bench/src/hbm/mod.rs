//! How fast are the rows of a device, beside what its memory and its bus can do? `hps-bench hbm-get ...`.
//!
//! - `args`: the command line. `work`: the five operations, each timed by the device's own clock beside
//!   limits of the same run. `check`: the same bits as the table in plain Rust.
//! - `host`: what the table in plain Rust costs, beside a bare gather of rows and a sort of the keys.
//! - Keys are uniform and distinct, or zipf; inputs rotate, so that no run finds its keys in a cache.
//! - The limit of an operation is the time of its bytes at the speed of a copy, or of as many random
//!   sectors, or of the bus.

pub mod args;
pub mod check;
pub mod host;
pub mod limits;
pub mod work;

use std::io::Write;

use anyhow::{Context as _, Result};
use hps::hbm::{Device, HbmOptions, open};
use hps::mix64;
use hps_tools::cli::Exit;
use serde_json::{Value, json};

use args::{HbmArgs, Operation};

/// Runs what the flags ask for.
///
/// # Errors
/// What the device says; a difference to the oracle.
pub fn run(args: &HbmArgs) -> Result<Exit> {
    let device = args.device;
    if args.operations.contains(&Operation::Check) {
        check::run(device, args.tiny)?;
    }
    let timed: Vec<Operation> = args
        .operations
        .iter()
        .copied()
        .filter(|operation| *operation != Operation::Check)
        .collect();
    if timed.is_empty() {
        return Ok(Exit::Clean);
    }
    let limits = limits::measure(device, args)?;
    say(&limits.line())?;
    let mut all = vec![limits.json()];
    for dim in &args.dims {
        let outcomes = work::run(device, args, *dim, &timed, &limits)?;
        for outcome in &outcomes {
            say(&outcome.line())?;
        }
        all.extend(outcomes.iter().map(work::Outcome::json));
        if device == Device::Cpu {
            for cost in host::run(args, *dim, &timed)? {
                say(&cost.line())?;
                all.push(cost.json());
            }
        }
    }
    if args.json {
        say(&Value::Array(all).to_string())?;
    }
    Ok(Exit::Clean)
}

/// What the device says of itself, as a line and as JSON.
fn describe(device: Device) -> Result<(String, Value)> {
    let descriptor = hps::TableDescriptor::new("t", 8);
    let options = HbmOptions::new(1024)
        .staging_bytes(1 << 16)
        .batch_keys_max(1024);
    let info = open(device, &descriptor, &options)?.info()?;
    let text = format!(
        "{}, {} multiprocessors, {:.1} GiB of memory, {:.1} free",
        info.name,
        info.multiprocessors,
        info.memory_bytes as f64 / (1u64 << 30) as f64,
        info.free_bytes as f64 / (1u64 << 30) as f64
    );
    let object = json!({
        "device": info.name,
        "multiprocessors": info.multiprocessors,
        "memory_bytes": info.memory_bytes,
    });
    Ok((text, object))
}

/// A line on stdout.
fn say(line: &str) -> Result<()> {
    writeln!(std::io::stdout().lock(), "{line}").context("write to stdout")
}

/// Random numbers that a seed repeats.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix64(self.0)
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from((u128::from(self.next()) * n as u128) >> 64).unwrap_or(0)
    }

    /// In [-1, 1).
    fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}
