//! How many bytes does the index take per key, while it grows? `index`.
//!
//! - The store's own index type is filled key by key from nothing to 64 M keys; the figure is the
//!   worst reading at any size from 1 M on, so growth is inside.
//! - Beside it stand the process' memory and what a store with the run's rows says of itself.
//! - Lookups are batches by one thread at the greatest size; their limit is one thread's gather of
//!   16-byte entries out of an array of as many: hash and location.

use std::time::Instant;

use anyhow::Result;
use hps::keymap::KeyMap;
use hps::mix64;

use crate::context::Context;
use crate::keys::{Distribution, Draw, Order};
use crate::limits::memory::BareRows;
use crate::machine;
use crate::report::Outcome;

/// Keys between readings.
const STEP: u64 = 1 << 16;
/// f32s of an entry of hash and value.
const ENTRY_F32S: usize = 4;
/// Hashes of a batch of lookups.
const LOOKUPS: usize = 32_768;

/// Grows an index and looks up in it.
///
/// # Errors
/// When memory is short, or the loaded store can't be made.
pub fn run(context: &mut Context) -> Result<()> {
    let s = context.settings.clone();
    let (first, last) = if s.tiny {
        (1 << 17, 1 << 19)
    } else {
        (1 << 20, 64 << 20)
    };
    let mut outcome = Outcome::new("index", "gather of 16-byte entries, one thread");
    if let Some(index_bytes) = context.fixture.loaded(&s) {
        outcome.set("store_bytes_per_key", index_bytes as f64 / s.rows as f64);
    }
    context.notes.say("index: growing");
    let rss = machine::rss_bytes();
    machine::reset_peak_rss();
    let since = Instant::now();
    let mut map = KeyMap::new(0, u64::MAX);
    let (mut worst, mut worst_at, mut doubling) = (0.0, 0, first);
    for i in 0..last {
        map.insert(mix64(i), i);
        let n = i + 1;
        if n >= first && (n % STEP == 0 || n == last) {
            let each = map.bytes() as f64 / n as f64;
            if each > worst {
                (worst, worst_at) = (each, n);
            }
            if n >= doubling {
                outcome.set(&format!("bytes_per_key_at_{}K", n >> 10), each);
                doubling *= 2;
            }
        }
    }
    let grown = since.elapsed().as_secs_f64();
    outcome.set("bytes_per_key_max", worst);
    outcome.set("bytes_per_key_max_at", worst_at);
    outcome.set("inserts_per_s", last as f64 / grown);
    let peak = machine::peak_rss_bytes().saturating_sub(rss);
    outcome.set("peak_rss_bytes_per_key", peak as f64 / last as f64);
    context.notes.say("index: lookups");
    let bare = BareRows::new(usize::try_from(last)?, ENTRY_F32S, ENTRY_F32S)?;
    for round in 0..s.rounds {
        let mut draw = Draw::new(last, Distribution::Uniform, s.seed, 9000 + round as u64);
        let count = if s.tiny { 4 } else { 64 };
        let pool: Vec<_> = (0..count)
            .map(|_| draw.batch(LOOKUPS, Order::Mixed))
            .collect();
        let limit = bare.gather(&pool, 1)?.per_second;
        outcome.round(lookups(&map, &pool)?, limit);
    }
    drop(bare);
    context.outcomes.push(outcome);
    Ok(())
}

/// Hashes looked up a second.
fn lookups(map: &KeyMap, pool: &[Vec<u64>]) -> Result<f64> {
    let batches: Vec<Vec<u64>> = pool
        .iter()
        .map(|keys| keys.iter().map(|k| mix64(*k)).collect())
        .collect();
    let mut values = vec![0; LOOKUPS];
    let (mut count, since) = (0, Instant::now());
    for hashes in &batches {
        map.get_batch(hashes, &mut values[..hashes.len()]);
        count += hashes.len();
    }
    let seconds = since.elapsed().as_secs_f64();
    let (hash, value) = (batches[batches.len() - 1][0], values[0]);
    anyhow::ensure!(mix64(value) == hash, "the index found another key's value");
    Ok(count as f64 / seconds)
}
