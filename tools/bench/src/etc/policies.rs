//! How long does each pass take, by each way to keep rows?

use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use hps::{Pass, PassPart, PolicyKind, PutRows, RuntimeOptions, Store};
use serde_json::{Value, json};

use super::in_memory::{InMemory, Speed};
use super::keysets::Keysets;

/// Keys that are written in a call.
pub const BATCH_KEYS: usize = 65_536;
/// Passes that the guide's cache keeps: `CreateHMemCache(2, 0.4, 0)`.
pub const BLOCKS: usize = 2;

/// A way to keep rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Way {
    /// The whole table in memory
    Staged,
    /// Two passes in memory
    Cached,
    /// The store's own cache, with the same bytes as Cached
    Bilevel,
    /// No row in memory but those of the pass at hand
    SsdOnly,
}

impl Way {
    pub const ALL: [Way; 4] = [Way::Staged, Way::Cached, Way::Bilevel, Way::SsdOnly];

    pub fn name(self) -> &'static str {
        match self {
            Way::Staged => "Staged",
            Way::Cached => "Cached(2, 0.4, 0)",
            Way::Bilevel => "Bilevel",
            Way::SsdOnly => "SSD only",
        }
    }

    fn policy(self) -> PolicyKind {
        let cached = |num_blocks| PolicyKind::Cached {
            num_blocks,
            target_hit_rate: 0.4,
            max_num_evict: 0,
        };
        match self {
            Way::Staged => PolicyKind::Staged,
            Way::Cached => cached(2),
            Way::Bilevel => PolicyKind::Bilevel,
            Way::SsdOnly => cached(0),
        }
    }
}

/// One pass.
#[derive(Clone, Debug, Default)]
pub struct Phase {
    pub keys: u64,
    pub known: u64,
    pub hits: u64,
    /// Until its rows were in the buffer.
    pub read_s: f64,
    /// Keys of the pass before, and the time in which its rows were written back.
    pub written: u64,
    pub write_s: f64,
    /// What memory gave before and after its round.
    pub in_memory: Option<Speed>,
}

impl Phase {
    pub fn hit_rate(&self) -> f64 {
        self.hits as f64 / self.known.max(1) as f64
    }

    pub fn reads_per_s(&self) -> f64 {
        self.keys as f64 / self.read_s
    }

    pub fn writes_per_s(&self) -> f64 {
        if self.written == 0 {
            0.0
        } else {
            self.written as f64 / self.write_s
        }
    }

    pub fn json(&self) -> Value {
        json!({ "keys": self.keys, "hits": self.hits, "read_s": self.read_s, "write_s": self.write_s })
    }
}

/// Reads each pass and writes the one before back, `rounds` times all passes; what memory gives is measured between
/// rounds.
///
/// # Errors
/// What the store says.
pub fn run(
    path: &Path,
    way: Way,
    cache_bytes: u64,
    threads: usize,
    keysets: &Keysets,
    rounds: usize,
    mut beside: Option<&mut InMemory>,
) -> Result<Vec<Phase>> {
    let options = RuntimeOptions::new()
        .cache_bytes(cache_bytes)
        .threads(threads);
    let store = Store::open(path, options.policy(way.policy()))?;
    let table = store.table("etc")?;
    let dim = store.tables()[0].1.dim;
    let longest = keysets.passes.iter().map(Vec::len).max().unwrap_or(0);
    // Touched before the clock runs.
    let (mut now, mut before) = (vec![1.0; longest * dim], vec![1.0; longest * dim]);
    let mut phases: Vec<Phase> = Vec::new();
    // The rows of a Staged table are in memory anyway: its pass lasts until they are written back.
    let mut last: Option<(&Vec<u64>, Option<Pass>)> = None;
    for keys in std::iter::repeat_n(&keysets.passes, rounds).flatten() {
        let mut phase = Phase::default();
        let since = Instant::now();
        let parts = [PassPart::new(table, keys)];
        let pass = store.begin_pass(&parts)?.wait()?;
        pass.read(0, 0, &mut now[..keys.len() * dim])?;
        let report = pass.report();
        (phase.keys, phase.known, phase.hits) = (report.keys, report.known, report.hits);
        let pass = (way == Way::Staged).then_some(pass);
        phase.read_s = since.elapsed().as_secs_f64();
        if let Some((last, held)) = last {
            let since = Instant::now();
            let rows = &before[..last.len() * dim];
            match held {
                Some(held) => {
                    held.put(0, 0, PutRows::whole(rows).verbatim())?;
                    drop(held);
                }
                None => {
                    let rows = rows.chunks(BATCH_KEYS * dim);
                    for (keys, rows) in last.chunks(BATCH_KEYS).zip(rows) {
                        store.put(table, keys, PutRows::whole(rows).verbatim())?;
                    }
                }
            }
            phase.write_s = since.elapsed().as_secs_f64();
            phase.written = last.len() as u64;
        }
        phases.push(phase);
        if phases.len().is_multiple_of(keysets.passes.len())
            && let Some(memory) = beside.as_mut()
        {
            let round = phases.len() - keysets.passes.len();
            memory.round_is_over(&mut phases[round..])?;
        }
        std::mem::swap(&mut now, &mut before);
        last = Some((keys, pass));
    }
    store.close_discarding();
    Ok(phases)
}
