//! Who runs next? Chosen by a seed, so that a run can be repeated.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test that fails says its seed"
)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};

use super::rng::Rng;
use hps::sync::limits;

/// Steps of a run, at most: beyond, nobody gets on.
const STEPS_MAX: usize = 400_000;
/// Stack of a thread of the run.
const STACK_BYTES: usize = 512 << 10;

/// How a run's threads are chosen; one of these by the seed.
#[derive(Debug)]
enum Choice {
    /// Each time any of them.
    Any,
    /// The same again, mostly.
    Sticky,
    /// The one of highest priority; now and then it becomes the lowest (probabilistic concurrency
    /// testing, Burckhardt et al. 2010).
    Ranked {
        ranks: BTreeMap<usize, u64>,
        last: u64,
        changes: Vec<u64>,
    },
}

/// What there was in all runs.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub runs: u64,
    pub steps: u64,
    /// A digest of who was chosen.
    pub digest: u64,
    /// Waits that ended by their limit although the scheduler lets that happen only when nobody
    /// else can go on: (runs, seed of the first) by place in the source.
    pub ended: BTreeMap<String, (u64, u64)>,
}

/// A scheduler for one run.
struct Chooser {
    seed: u64,
    rng: Rng,
    choice: Choice,
    /// One in so many steps a wait with a limit may end by it although others can go on.
    hasty: Option<usize>,
    steps: u64,
    seen: Arc<Mutex<Seen>>,
    begun: bool,
}

impl Chooser {
    fn new(seed: u64, seen: Arc<Mutex<Seen>>) -> Chooser {
        let mut rng = Rng(seed);
        let choice = match rng.below(3) {
            0 => Choice::Any,
            1 => Choice::Sticky,
            _ => Choice::Ranked {
                ranks: BTreeMap::new(),
                last: u64::MAX / 2,
                changes: (0..1 + rng.below(6)).map(|_| rng.next() % 10_000).collect(),
            },
        };
        let hasty = rng.one_in(4).then_some(32);
        Chooser {
            seed,
            rng,
            choice,
            hasty,
            steps: 0,
            seen,
            begun: false,
        }
    }
}

impl Scheduler for Chooser {
    fn new_execution(&mut self) -> Option<Schedule> {
        let mut seen = self.seen.lock().unwrap();
        if self.begun {
            seen.runs += 1;
            seen.steps += self.steps;
            let ended = limits::ended().into_iter();
            for place in ended.filter(|_| self.hasty.is_none()) {
                seen.ended.entry(place).or_insert((0, self.seed)).0 += 1;
            }
            return None;
        }
        self.begun = true;
        limits::reset();
        Some(Schedule::new(0))
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        yielding: bool,
    ) -> Option<TaskId> {
        self.steps += 1;
        let hasty = self.hasty.is_some_and(|n| self.rng.one_in(n));
        let awake = |task: &&&Task| hasty || !limits::is_asleep(usize::from(task.id()));
        let mut able: Vec<TaskId> = runnable.iter().filter(awake).map(|t| t.id()).collect();
        if able.is_empty() {
            able = runnable.iter().map(|t| t.id()).collect();
        }
        let same = current.filter(|task| able.contains(task));
        let any = able[self.rng.below(able.len())];
        let chosen = match &mut self.choice {
            Choice::Any => any,
            Choice::Sticky if yielding || self.rng.one_in(16) => any,
            Choice::Sticky => same.unwrap_or(any),
            Choice::Ranked {
                ranks,
                last,
                changes,
            } => {
                for task in &able {
                    let fresh = self.rng.next() / 2;
                    ranks.entry(usize::from(*task)).or_insert(fresh);
                }
                if let Some(task) = same
                    && (yielding || changes.contains(&self.steps))
                {
                    *last += 1;
                    ranks.insert(usize::from(task), *last);
                }
                let rank = |task: &&TaskId| ranks[&usize::from(**task)];
                *able.iter().min_by_key(rank).unwrap_or(&any)
            }
        };
        let mut seen = self.seen.lock().unwrap();
        let mixed = seen.digest.rotate_left(5) ^ usize::from(chosen) as u64;
        seen.digest = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Some(chosen)
    }

    fn next_u64(&mut self) -> u64 {
        self.rng.next()
    }
}

/// Says which seed failed.
struct Failing(u64);

impl Drop for Failing {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let seed = self.0;
            eprintln!("again: HPS_SHUTTLE_SEED={seed} HPS_SHUTTLE_SCHEDULES=1");
        }
    }
}

/// Runs `model` once, as the seed says.
pub fn run(seed: u64, seen: &Arc<Mutex<Seen>>, model: impl Fn(u64) + Send + Sync + 'static) {
    let _failing = Failing(seed);
    let mut config = shuttle::Config::new();
    config.stack_size = STACK_BYTES;
    config.silence_warnings = true;
    config.failure_persistence = shuttle::FailurePersistence::None;
    config.max_steps = shuttle::MaxSteps::FailAfter(STEPS_MAX);
    let chooser = Chooser::new(seed, Arc::clone(seen));
    shuttle::Runner::new(chooser, config).run(move || model(seed));
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|s| s.parse().ok())
}

/// Runs `model` under one `share`th of `HPS_SHUTTLE_SCHEDULES` (else 1000) schedules, from
/// `HPS_SHUTTLE_SEED` (else 1) on, and prints what there was.
pub fn explore(name: &str, share: u64, model: impl Fn(u64) + Copy + Send + Sync + 'static) -> Seen {
    let seed = number("HPS_SHUTTLE_SEED").unwrap_or(1);
    let schedules = number("HPS_SHUTTLE_SCHEDULES").unwrap_or(1000);
    let schedules = schedules.div_ceil(share);
    let seen = Arc::default();
    for seed in (seed..).take(usize::try_from(schedules).unwrap()) {
        run(seed, &seen, model);
    }
    let seen = seen.lock().unwrap().clone();
    let steps = seen.steps / seen.runs.max(1);
    eprintln!(
        "{name}: {} schedules from seed {seed}, {steps} steps each",
        seen.runs
    );
    for (place, (runs, first)) in &seen.ended {
        eprintln!("  a wait ended by its limit: {place}, in {runs} schedules, first in {first}");
    }
    seen
}
