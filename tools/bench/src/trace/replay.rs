//! Which policy would have missed how often, given as many rows or as many bytes as ours?
//!
//! - Ours comes first: its slots and its bytes are what the others get, in two tables.
//! - At equal slots each holds as many rows. At equal bytes LRU and S3-FIFO pay what they must keep
//!   about a row; Belady, static and LFU are ideals and pay `--beside`, 0 where it is not given.
//! - Misses count unique keys of a batch, without the load; two are printed, of the whole trace and
//!   of its batches behind the first `--skip`, when the caches have settled.

use anyhow::{Result, ensure};
use hps::{PolicyKind, RuntimeOptions};
use indicatif::ProgressBar;

use super::Accesses;
use super::belady::Belady;
use super::counts::{Lfu, PerfectStatic, Room};
use super::ours::{Ours, OursConfig};
use super::policies::{Lru, Policy, S3Fifo};
use super::replay_args::{Competitor, ReplayArgs};
use super::replay_text::{Equal, Outcome, Report, print, progress};

/// Bytes that finding a row costs: 8 of hash, 14 of a table that is 4/7 full.
const FIND_BYTES: u64 = 22;

impl Competitor {
    /// Its bytes a row, beside the row.
    fn beside(self, ideal: u64) -> u64 {
        match self {
            Competitor::Belady | Competitor::Static | Competitor::Lfu => ideal,
            Competitor::S3Fifo => FIND_BYTES + 9,
            Competitor::Lru => FIND_BYTES + 8,
        }
    }

    /// Whether it can tell rows of different sizes apart.
    fn knows_sizes(self) -> bool {
        matches!(self, Competitor::Static | Competitor::Lfu)
    }

    fn make<'a>(self, accesses: &'a Accesses, room: &Room, rows: usize) -> Box<dyn Policy + 'a> {
        let distinct = accesses.distinct();
        match self {
            Competitor::Belady => Box::new(Belady::new(accesses, rows)),
            Competitor::Static => Box::new(PerfectStatic::new(accesses, room)),
            Competitor::Lfu => Box::new(Lfu::new(accesses, room)),
            Competitor::S3Fifo => Box::new(S3Fifo::new(distinct, rows)),
            Competitor::Lru => Box::new(Lru::new(distinct, rows)),
        }
    }
}

/// Misses of each of the first batches.
///
/// # Errors
/// The policy can't serve a batch.
pub fn misses(
    accesses: &Accesses,
    policy: &mut dyn Policy,
    batches: usize,
    mut each: impl FnMut(),
) -> Result<Vec<usize>> {
    let mut found = Vec::with_capacity(batches);
    for index in 0..batches {
        found.push(policy.batch(accesses.batch(index))?);
        each();
    }
    Ok(found)
}

/// A trace, and from which batch on the later misses count.
struct Race<'a> {
    accesses: &'a Accesses,
    late: usize,
    bar: ProgressBar,
}

impl Race<'_> {
    /// Misses of the whole trace and of its later batches.
    fn run(&self, name: &'static str, policy: &mut dyn Policy) -> Result<[u64; 2]> {
        self.bar.set_message(name);
        self.bar.set_position(0);
        let found = misses(self.accesses, policy, self.accesses.batches(), || {
            self.bar.inc(1)
        })?;
        let sum = |from: usize| found[from..].iter().map(|n| *n as u64).sum();
        Ok([sum(self.accesses.load_batches()), sum(self.late)])
    }

    fn uses(&self, from: usize) -> u64 {
        let batches = from..self.accesses.batches();
        batches.map(|b| self.accesses.batch(b).len() as u64).sum()
    }
}

/// Prints the misses of all policies over a trace.
///
/// # Errors
/// The trace is damaged, the cache is too small for its batches, or stdout can't be written.
pub fn replay(args: &ReplayArgs) -> Result<()> {
    args.check()?;
    let bar = progress();
    bar.set_message("trace");
    let accesses = args.accesses(|| bar.inc(1))?;
    bar.set_length(accesses.batches() as u64);
    let counted = accesses.batches() - accesses.load_batches();
    let skip = args.skip.unwrap_or(counted / 2);
    ensure!(
        skip < counted,
        "--skip {skip} leaves none of {counted} batches"
    );
    let race = Race {
        accesses: &accesses,
        late: accesses.load_batches() + skip,
        bar,
    };
    let config = config(args, &accesses)?;
    let mut ours = Ours::new(&config, &accesses)?;
    let one = accesses.row_bytes().len() == 1;
    let (slots, beside) = (one.then(|| ours.capacity(0)), ours.meta_bytes());
    let mut report = Report {
        uses: [race.uses(accesses.load_batches()), race.uses(race.late)],
        skip,
        slots,
        beside,
        bytes: config.bytes,
        ours: race.run("ours", &mut ours)?,
        written: ours.written(),
        outcomes: Vec::new(),
    };
    drop(ours);
    for equal in [Equal::Slots, Equal::Bytes] {
        for competitor in args.competitors() {
            if let Some(outcome) = compete(args, &race, &report, competitor, equal)? {
                report.outcomes.push(outcome);
            }
        }
    }
    race.bar.finish_and_clear();
    print(args, &accesses, &report)
}

/// What ours is made from.
fn config(args: &ReplayArgs, accesses: &Accesses) -> Result<OursConfig> {
    let defaults = RuntimeOptions::default();
    let mut config = OursConfig {
        bytes: 0,
        shards: args.shards.map_or(defaults.shards, usize::from),
        file_bytes: defaults.file_bytes,
        depth: usize::from(args.depth),
        policy: PolicyKind::Bilevel,
        split: None,
    };
    config.bytes = match args.slots {
        Some(slots) => config.bytes_for(usize::try_from(slots)?, accesses.row_bytes()[0])?,
        None => args.cache_mib.unwrap_or(0) << 20,
    };
    // As the store does: about one file a step, and a file is at most an eighth of the cache.
    config.file_bytes = config.file_bytes.min((config.bytes / 8).max(1 << 20));
    Ok(config)
}

/// One policy with as much as ours; none where it can't be compared.
fn compete(
    args: &ReplayArgs,
    race: &Race<'_>,
    report: &Report,
    competitor: Competitor,
    equal: Equal,
) -> Result<Option<Outcome>> {
    let sizes = race.accesses.row_bytes();
    if sizes.len() > 1 && !competitor.knows_sizes() {
        return Ok(None);
    }
    let beside = competitor.beside(args.beside);
    let fits = report.bytes / (u64::from(sizes[0]) + beside);
    let (room, rows) = match (equal, report.slots) {
        (Equal::Slots, None) => return Ok(None),
        (Equal::Slots, Some(slots)) => (Room::slots(race.accesses, slots), slots),
        (Equal::Bytes, _) => (
            Room::bytes(race.accesses, beside, report.bytes),
            usize::try_from(fits)?,
        ),
    };
    ensure!(rows > 0, "{} bytes hold no row", report.bytes);
    let mut policy = competitor.make(race.accesses, &room, rows);
    Ok(Some(Outcome {
        competitor,
        equal,
        rows: (sizes.len() == 1).then_some(rows),
        beside,
        misses: race.run(competitor.name(), &mut *policy)?,
    }))
}
