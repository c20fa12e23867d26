//! How long does a trainer wait for its passes, if the next one is begun while one is trained on?

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use hps::{PassPart, RuntimeOptions, Store, Update};
use serde_json::{Value, json};

use super::keysets::Keysets;
use super::policies::BATCH_KEYS;

/// Seconds of all passes but the first.
#[derive(Clone, Copy, Debug, Default)]
pub struct Waits {
    /// Until a pass was there.
    pub wait_s: f64,
    /// Pulls, pushes, and what the trainer computes.
    pub train_s: f64,
    /// Rows of the passes that were not in memory when these were begun.
    pub missed: u64,
}

impl Waits {
    pub fn json(&self) -> Value {
        json!({ "wait_s": self.wait_s, "train_s": self.train_s, "missed": self.missed })
    }
}

/// Trains on each pass, once; with `is_ahead` the next one is begun before. The trainer computes on each key for so
/// many seconds, elsewhere: on a GPU.
///
/// # Errors
/// What the store says.
pub fn run(
    path: &Path,
    cache_bytes: u64,
    threads: usize,
    keysets: &Keysets,
    compute: f64,
    is_ahead: bool,
) -> Result<Waits> {
    let options = RuntimeOptions::new()
        .cache_bytes(cache_bytes)
        .threads(threads);
    let store = Store::open(path, options)?;
    let table = store.table("etc")?;
    let dim = store.tables()[0].1.dim;
    let mut rows = vec![0.0; BATCH_KEYS * dim];
    let mut waits = Waits::default();
    let begin = |number: usize| {
        let keys = keysets.passes.get(number);
        keys.map(|keys| store.begin_pass(&[PassPart::new(table, keys)]))
            .transpose()
    };
    let mut next = begin(0)?;
    for (number, keys) in keysets.passes.iter().enumerate() {
        let since = Instant::now();
        if next.is_none() {
            next = begin(number)?;
        }
        let Some(ticket) = next.take() else { break };
        let pass = ticket.wait()?;
        let waited = since.elapsed().as_secs_f64();
        if is_ahead {
            next = begin(number + 1)?;
        }
        let since = Instant::now();
        for keys in keys.chunks(BATCH_KEYS) {
            let rows = &mut rows[..keys.len() * dim];
            let lease = store.pull(table, keys, rows)?;
            thread::sleep(Duration::from_secs_f64(compute * keys.len() as f64));
            store.push(&lease, Update::gradients(rows, 0.01))?;
        }
        let trained = since.elapsed().as_secs_f64();
        let report = pass.end();
        if number > 0 {
            waits.wait_s += waited;
            waits.train_s += trained;
            waits.missed += report.known - report.hits;
        }
    }
    store.close_discarding();
    Ok(waits)
}
