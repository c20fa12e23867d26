//! Is a new build slower than an old one? `hps-bench paired OLD NEW`.
//!
//! - Two builds run by turns, so that what the machine does meanwhile meets both; who begins
//!   changes from pair to pair. The first pair warms up the machine and counts for nothing.
//! - On a machine whose speed changes within seconds, `--beside` runs work in memory of both at the same
//!   time, each on half of the processors, which change hands from pair to pair.
//! - A figure is judged by the 95 % interval of new ÷ old over all pairs, never by one run.
//! - OLD needs to know nothing of this: see `child`.

mod beside;
pub mod child;
pub mod interval;
pub mod report;
pub mod work;

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;
use hps_tools::cli::{self, Exit, Interrupt, Usage};

use self::child::Build;
use self::report::{Compared, Comparison};
use self::work::{Figure, Job, Workload};
use super::report::Notes;

/// What `hps-bench paired` was asked for.
#[derive(Args, Debug, Clone)]
pub struct PairedArgs {
    /// The build to compare with: a binary of hps-bench.
    #[arg(value_name = "OLD")]
    pub old: PathBuf,
    /// The build that must not be slower.
    #[arg(value_name = "NEW")]
    pub new: PathBuf,
    /// Pairs that count; one more comes first. [default: 15; tiny 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=1000))]
    pub pairs: Option<u16>,
    /// What to compare, with commas between.
    #[arg(
        long,
        value_name = "WORKLOADS",
        value_enum,
        value_delimiter = ',',
        default_value = "pull-hit,push-hit,w2a,checkpoint,load"
    )]
    pub workloads: Vec<Workload>,
    /// Rows of each store. [default: 2000000; tiny 20000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1000..=1 << 31))]
    pub rows: Option<u64>,
    /// Seconds of each measured window. [default: 3; tiny 0.1]
    #[arg(long, value_name = "S", value_parser = super::args::positive)]
    pub seconds: Option<f64>,
    /// Most seconds of a warm-up of training out of memory. [default: 20; tiny 0.5]
    #[arg(long, value_name = "S", value_parser = super::args::positive)]
    pub warmup_seconds: Option<f64>,
    /// Threads of the store.
    #[arg(long, value_name = "N", default_value_t = 2,
        value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
    /// Directory for the stores of both builds, on the device in question. [default: a temporary
    /// one, removed]
    #[arg(long, value_name = "PATH")]
    pub dir: Option<PathBuf>,
    /// Seed of keys and draws; whether it is odd decides who begins.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Run both builds at the same time, each on half of the processors with half of the threads;
    /// they change sides from pair to pair. For a machine whose speed changes within seconds; only
    /// for work in memory, since the device is one.
    #[arg(long)]
    pub beside: bool,
    /// Small enough for a test: the figures mean nothing.
    #[arg(long)]
    pub tiny: bool,
    /// Print, as the last line, a JSON array with one object per figure.
    #[arg(long)]
    pub json: bool,
}

impl PairedArgs {
    /// Pairs that count.
    #[must_use]
    pub fn pairs(&self) -> usize {
        usize::from(self.pairs.unwrap_or(if self.tiny { 3 } else { 15 }))
    }

    /// Rows of each store.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows
            .unwrap_or(if self.tiny { 20_000 } else { 2_000_000 })
    }

    /// Threads of each store.
    #[must_use]
    pub fn threads_each(&self) -> u16 {
        match self.beside {
            true => (self.threads / 2).max(1),
            false => self.threads,
        }
    }

    /// Windows of a run: beside each other many short ones, so that both meet the same moments.
    #[must_use]
    pub fn rounds(&self) -> u16 {
        if self.beside && !self.tiny { 12 } else { 1 }
    }

    /// Seconds of a window.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        let usual = if self.beside { 0.4 } else { 3.0 };
        self.seconds.unwrap_or(if self.tiny { 0.1 } else { usual })
    }

    /// Most seconds of a warm-up.
    #[must_use]
    pub fn warmup_seconds(&self) -> f64 {
        self.warmup_seconds
            .unwrap_or(if self.tiny { 0.5 } else { 20.0 })
    }

    /// Memory of work out of memory: a quarter of the rows of 512 B, in steps of 64 MiB, and enough
    /// for a cache beside index and constant.
    #[must_use]
    pub fn memory_mib(&self) -> u64 {
        (self.rows() * 512 / 4)
            .div_ceil(64 << 20)
            .saturating_mul(64)
            .max(192)
    }
}

/// Runs the pairs and prints what came of them.
///
/// # Errors
/// A build is missing or fails, or does not know a workload; the user asked to end.
pub fn run(args: &PairedArgs) -> Result<Exit> {
    let interrupt = Interrupt::listen()?;
    let mut workloads = args.workloads.clone();
    workloads.sort_unstable();
    workloads.dedup();
    let builds = [
        Build::find("OLD", &args.old)?,
        Build::find("NEW", &args.new)?,
    ];
    if args.beside
        && let Some(other) = workloads.iter().find(|w| !w.is_in_memory())
    {
        let what = format!(
            "--beside is for work in memory: {} needs the device for itself (--workloads pull-hit,push-hit)",
            other.name()
        );
        return Err(Usage(what).into());
    }
    let sides = args.beside.then(beside::halves).transpose()?;
    let ground = Ground::new(args)?;
    let mut figures = Compared::default();
    let notes = Notes::default();
    let since = Instant::now();
    let jobs = Job::all(&workloads);
    // Pair 0 warms up: it also loads the rows that training begins with.
    for pair in 0..=args.pairs() {
        for job in &jobs {
            let order = order(pair, args.seed);
            let mut read: [Vec<Figure>; 2] = [Vec::new(), Vec::new()];
            let run = |side: usize| measure(args, &ground, job, &builds[side], &interrupt);
            if let Some(sides) = &sides {
                notes.say(&progress(pair, args.pairs(), job, "both", since.elapsed()));
                read = beside::both([&sides[order[0]], &sides[order[1]]], run)?;
            } else {
                for side in order {
                    let role = builds[side].role;
                    notes.say(&progress(pair, args.pairs(), job, role, since.elapsed()));
                    read[side] = run(side)?;
                }
            }
            if pair > 0 {
                figures.add(&read[0], &read[1])?;
            }
        }
    }
    notes.done();
    let comparison = Comparison {
        args,
        builds: &builds,
        figures: &figures,
    };
    comparison.print()?;
    Ok(figures.exit())
}

/// Who runs first in a pair: 0 is OLD.
fn order(pair: usize, seed: u64) -> [usize; 2] {
    let old_begins = (pair as u64).wrapping_add(seed).is_multiple_of(2);
    if old_begins { [0, 1] } else { [1, 0] }
}

fn progress(pair: usize, pairs: usize, job: &Job, role: &str, elapsed: Duration) -> String {
    let title = job.title();
    if pair == 0 {
        return format!("paired: {title}, {role}: warm-up");
    }
    let each = elapsed.div_f64(pair as f64);
    let left = cli::duration(each.mul_f64((pairs + 1 - pair) as f64));
    format!("paired: {title}, {role}: pair {pair} of {pairs}, about {left} left")
}

fn measure(
    args: &PairedArgs,
    ground: &Ground,
    job: &Job,
    build: &Build,
    interrupt: &Interrupt,
) -> Result<Vec<Figure>> {
    let place = ground.root.join(job.place(build.role));
    let run = build.run(&job.words(args), &place, job.watch, interrupt);
    if job.leaves_nothing() {
        let _missing = fs::remove_dir_all(&place);
    }
    let figures = job.figures(&run?, args.rows());
    figures.with_context(|| format!("{}: {}", build.role, build.binary.display()))
}

/// Where both builds have their stores; what was made there goes at the end.
struct Ground {
    root: PathBuf,
    temporary: Option<tempfile::TempDir>,
    made_root: bool,
}

impl Ground {
    fn new(args: &PairedArgs) -> Result<Ground> {
        let Some(dir) = &args.dir else {
            let made = tempfile::tempdir().context("make a temporary directory")?;
            return Ok(Ground {
                root: made.path().to_path_buf(),
                temporary: Some(made),
                made_root: false,
            });
        };
        let made_root = !dir.exists();
        fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
        // Another comparison's stores would be taken for ours, or removed.
        if let Some(name) = Ground::names().find(|name| dir.join(name).exists()) {
            let there = dir.join(name);
            return Err(Usage(format!("{} is there already", there.display())).into());
        }
        Ok(Ground {
            root: fs::canonicalize(dir)?,
            temporary: None,
            made_root,
        })
    }

    fn names() -> impl Iterator<Item = String> {
        let names = |role| ["rows", "checkpoint", "load"].map(|what| format!("{role}-{what}"));
        ["old", "new"].into_iter().flat_map(names)
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if self.temporary.is_some() {
            return;
        }
        for name in Ground::names() {
            let _missing = fs::remove_dir_all(self.root.join(name));
        }
        if self.made_root {
            let _not_empty = fs::remove_dir(&self.root);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_take_turns_at_beginning() {
        for seed in [0, 7, u64::MAX] {
            let firsts: Vec<usize> = (0..16).map(|pair| order(pair, seed)[0]).collect();
            assert_eq!(firsts.iter().sum::<usize>(), 8, "{seed}: {firsts:?}");
            assert!(firsts.windows(2).all(|w| w[0] != w[1]), "{firsts:?}");
        }
    }
}
