//! How do a caller and threads beside it share the units of a call, without waiting for a thread that does not run?
//!
//! A caller posts a job, and does its units one after the other, as each helper does that comes. A helper that was woken
//! may wait for a processor for milliseconds where others want it, too: so who has a processor takes the next unit, and
//! a caller waits for those only who are in the middle of one.
//!
//! Invariants:
//! - A helper enters a job, and leaves it, under the lock of the jobs; it uses the job's work in between only.
//! - A caller takes its job back under that lock, and goes on, or unwinds, when all who had entered have left.
//! - Each unit is claimed once.
//! - Who waits needs nobody that has not entered: a call inside of a unit can't wait for itself.

#![expect(
    unsafe_code,
    reason = "helpers outlive the calls whose borrowed work they do"
)]

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard, step_aside, thread};

/// What is done for each unit, of the caller's frame or of what it borrows.
type Work<'w> = dyn Fn(usize) + Sync + 'w;

/// How long a thread looks again before it sleeps: waking it takes as long.
const LINGER: Duration = Duration::from_micros(50);

/// Looks again and again, for a while, whether something has happened.
fn linger(happened: impl Fn() -> bool) -> bool {
    // Time does not pass under shuttle's scheduler.
    if cfg!(hps_shuttle) {
        return happened();
    }
    let since = Instant::now();
    while !happened() {
        if since.elapsed() >= LINGER {
            return false;
        }
        for _ in 0..64 {
            std::hint::spin_loop();
        }
        step_aside();
    }
    true
}

/// A call that helpers may enter.
struct Job {
    /// Lives until `take_back` returns.
    work: *const Work<'static>,
    units: usize,
    /// The first unit that nobody has claimed.
    next: AtomicUsize,
    /// Helpers that have entered and not left.
    inside: AtomicUsize,
    /// What helpers panicked with, the first one first; the caller drops them.
    panics: Mutex<Vec<Box<dyn Any + Send>>>,
}

// SAFETY: `work` is `Sync`, and used by shared reference only, while it lives (invariants of this file).
unsafe impl Send for Job {}
// SAFETY: as above; the rest is atomics and a lock.
unsafe impl Sync for Job {}

impl Job {
    fn new(work: &Work<'_>, units: usize) -> Job {
        let work: *const Work<'_> = work;
        Job {
            // SAFETY: only the lifetime differs; the job's caller takes it back before `work` ends.
            work: unsafe { std::mem::transmute::<*const Work<'_>, *const Work<'static>>(work) },
            units,
            next: AtomicUsize::new(0),
            inside: AtomicUsize::new(0),
            panics: Mutex::default(),
        }
    }

    /// Whether there is a unit that nobody has claimed.
    fn has_more(&self) -> bool {
        self.next.load(Ordering::Relaxed) < self.units
    }

    /// No unit is begun any more.
    fn stop(&self) {
        self.next.store(self.units, Ordering::Relaxed);
    }

    /// Does units until none is left, as a helper that has entered.
    fn help(&self) {
        // SAFETY: the caller waits for those who have entered before `work` ends.
        let work = unsafe { &*self.work };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.serve(work))) {
            self.stop();
            lock(&self.panics).push(panic);
        }
    }

    /// Does units until none is left.
    fn serve(&self, work: &Work<'_>) {
        let next = || Some(self.next.fetch_add(1, Ordering::Relaxed));
        let claim = || next().filter(|unit| *unit < self.units);
        std::iter::from_fn(claim).for_each(work);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The jobs that helpers may enter, and who sleeps.
#[derive(Default)]
struct Jobs {
    open: Vec<Arc<Job>>,
    /// Helpers that sleep.
    asleep: usize,
    /// Callers that sleep until helpers have left.
    waiting: usize,
    /// The helpers end.
    ends: bool,
}

impl Jobs {
    /// The oldest job that a helper has something to do in.
    fn wanting(&self) -> Option<&Arc<Job>> {
        self.open.iter().find(|job| job.has_more())
    }
}

#[derive(Default)]
struct Shared {
    jobs: Mutex<Jobs>,
    /// Jobs that were posted, and one more at the end.
    posted: AtomicUsize,
    /// A job was posted, or the helpers end.
    more: Condvar,
    /// A helper has left a job.
    left: Condvar,
}

impl Shared {
    fn post(&self, job: &Arc<Job>) {
        let mut jobs = lock(&self.jobs);
        jobs.open.push(Arc::clone(job));
        self.posted.fetch_add(1, Ordering::Release);
        // One unit is the caller's.
        let wanted = jobs.asleep.min(job.units - 1);
        drop(jobs);
        for _ in 0..wanted {
            self.more.notify_one();
        }
    }

    /// Lets nobody enter a job any more, and waits for those who have.
    fn take_back(&self, job: &Arc<Job>) {
        lock(&self.jobs).open.retain(|j| !Arc::ptr_eq(j, job));
        let all_left = || job.inside.load(Ordering::Acquire) == 0;
        if linger(all_left) {
            return;
        }
        let mut jobs = lock(&self.jobs);
        while !all_left() {
            jobs.waiting += 1;
            jobs = self.left.wait(jobs).unwrap_or_else(PoisonError::into_inner);
            jobs.waiting -= 1;
        }
    }

    /// Enters a job in which there is something to do.
    fn enter(&self) -> Option<Arc<Job>> {
        let jobs = lock(&self.jobs);
        let job = Arc::clone(jobs.wanting()?);
        job.inside.fetch_add(1, Ordering::Relaxed);
        Some(job)
    }

    fn leave(&self, job: &Job) {
        let jobs = lock(&self.jobs);
        // All that the helper has done comes before.
        job.inside.fetch_sub(1, Ordering::Release);
        let is_waited_for = jobs.waiting > 0;
        // Who is woken may have this processor before the lock is free.
        drop(jobs);
        if is_waited_for {
            self.left.notify_all();
        }
    }

    /// Sleeps until there is something to do; false when the helpers end.
    fn sleep(&self) -> bool {
        let mut jobs = lock(&self.jobs);
        while !jobs.ends && jobs.wanting().is_none() {
            jobs.asleep += 1;
            jobs = self.more.wait(jobs).unwrap_or_else(PoisonError::into_inner);
            jobs.asleep -= 1;
        }
        !jobs.ends
    }

    /// What a helper does all its life.
    fn serve(&self) {
        loop {
            let posted = self.posted.load(Ordering::Acquire);
            if let Some(job) = self.enter() {
                job.help();
                self.leave(&job);
            } else if !linger(|| self.posted.load(Ordering::Acquire) != posted) && !self.sleep() {
                return;
            }
        }
    }
}

/// Threads that help callers with their work.
pub struct Team {
    shared: Arc<Shared>,
    helpers: usize,
}

impl std::fmt::Debug for Team {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let helpers = &self.helpers;
        f.debug_struct("Team").field("helpers", helpers).finish()
    }
}

impl Team {
    /// So many helpers, whose names are `name` and a number from 1.
    ///
    /// # Errors
    /// Of the system, where it has no more threads.
    pub fn new(name: &str, helpers: usize) -> io::Result<Team> {
        let mut team = Team {
            shared: Arc::default(),
            helpers: 0,
        };
        while team.helpers < helpers {
            let shared = Arc::clone(&team.shared);
            let name = format!("{name}-{}", team.helpers + 1);
            thread::Builder::new()
                .name(name)
                .spawn(move || shared.serve())?;
            team.helpers += 1;
        }
        Ok(team)
    }

    /// Calls `work` once for each unit from 0 on: by this thread, and by helpers that have a processor.
    ///
    /// # Panics
    /// As `work` does, in this thread or in a helper: units that were not begun are left out then.
    pub fn run(&self, units: usize, work: &(dyn Fn(usize) + Sync)) {
        if units <= 1 || self.helpers == 0 {
            (0..units).for_each(work);
            return;
        }
        let job = Arc::new(Job::new(work, units));
        self.shared.post(&job);
        let back = TakenBack {
            shared: &self.shared,
            job: &job,
        };
        job.serve(work);
        drop(back);
        let panics = std::mem::take(&mut *lock(&job.panics));
        if let Some(first) = panics.into_iter().next() {
            resume_unwind(first);
        }
    }
}

/// Takes a job back when the caller has done its part, or panics.
struct TakenBack<'t> {
    shared: &'t Shared,
    job: &'t Arc<Job>,
}

impl Drop for TakenBack<'_> {
    fn drop(&mut self) {
        self.job.stop();
        self.shared.take_back(self.job);
    }
}

impl Drop for Team {
    /// The helpers end by themselves: nobody waits for them.
    fn drop(&mut self) {
        lock(&self.shared.jobs).ends = true;
        self.shared.posted.fetch_add(1, Ordering::Release);
        self.shared.more.notify_all();
    }
}

/// The team, and a twin of scoped threads without `unsafe`, under the same cases.
#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::sync::by_team;

    /// Whoever does the units of a call.
    trait Runs: Sync {
        fn run(&self, units: usize, work: &(dyn Fn(usize) + Sync));
    }

    impl Runs for Team {
        fn run(&self, units: usize, work: &(dyn Fn(usize) + Sync)) {
            Team::run(self, units, work);
        }
    }

    /// So many threads a call, all of them waited for.
    struct Scoped(usize);

    impl Runs for Scoped {
        fn run(&self, units: usize, work: &(dyn Fn(usize) + Sync)) {
            let next = AtomicUsize::new(0);
            let serve = || {
                let claim = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|u| *u < units);
                std::iter::from_fn(claim).for_each(work);
            };
            by_team("test-scoped", (0..=self.0).map(|_| serve));
        }
    }

    fn team(helpers: usize) -> Team {
        Team::new("test-team", helpers).unwrap()
    }

    fn both(helpers: usize) -> [Box<dyn Runs>; 2] {
        [Box::new(team(helpers)), Box::new(Scoped(helpers))]
    }

    #[test]
    fn each_unit_is_done_once_whoever_calls() {
        for helpers in [0, 1, 3] {
            for runs in both(helpers) {
                for units in [0, 1, 2, 7, 40] {
                    std::thread::scope(|scope| {
                        for _ in 0..3 {
                            scope.spawn(|| {
                                for _ in 0..20 {
                                    let done: Vec<_> =
                                        (0..units).map(|_| AtomicUsize::new(0)).collect();
                                    runs.run(units, &|u| {
                                        done[u].fetch_add(1, Ordering::Relaxed);
                                    });
                                    let once = |d: AtomicUsize| d.into_inner() == 1;
                                    assert!(done.into_iter().all(once));
                                }
                            });
                        }
                    });
                }
            }
        }
    }

    /// What helpers have written is there when the call returns, and what they wrote it to may end then.
    #[test]
    fn helpers_help_and_have_left_when_a_call_returns() {
        for runs in both(1) {
            for _ in 0..200 {
                // Two threads have to meet: the caller alone would wait for ever.
                let meet = Barrier::new(2);
                let sums = [const { AtomicUsize::new(0) }; 2];
                runs.run(2, &|u| {
                    meet.wait();
                    let sum: usize = (0..1000).map(|i| i * u).sum();
                    sums[u].store(sum, Ordering::Relaxed);
                });
                assert_eq!(sums.map(AtomicUsize::into_inner), [0, 499_500]);
            }
        }
    }

    /// Its one helper is in the middle of a unit of another call.
    #[test]
    fn a_call_does_not_wait_for_a_helper_that_is_busy() {
        let team = team(1);
        let (begun, ends) = (Barrier::new(3), Barrier::new(3));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                team.run(2, &|_| {
                    begun.wait();
                    ends.wait();
                });
            });
            begun.wait();
            let me = std::thread::current().id();
            let done = AtomicUsize::new(0);
            team.run(5, &|_| {
                assert_eq!(std::thread::current().id(), me);
                done.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(done.into_inner(), 5);
            ends.wait();
        });
    }

    #[test]
    fn a_unit_may_call_the_team_it_is_done_by() {
        let team = team(2);
        let done = AtomicUsize::new(0);
        team.run(4, &|_| {
            team.run(4, &|_| {
                done.fetch_add(1, Ordering::Relaxed);
            });
        });
        assert_eq!(done.into_inner(), 16);
    }

    #[test]
    fn a_panic_of_a_helper_or_of_the_caller_reaches_the_caller_when_the_other_has_left() {
        let me = std::thread::current().id();
        for runs in both(1) {
            for callers in [false, true] {
                let (meet, left) = (Barrier::new(2), AtomicBool::new(false));
                let call = || {
                    runs.run(2, &|_| {
                        meet.wait();
                        let is_caller = std::thread::current().id() == me;
                        assert!(is_caller != callers, "unit {callers}");
                        std::thread::sleep(Duration::from_millis(5));
                        left.store(true, Ordering::Relaxed);
                    });
                };
                let panic = catch_unwind(AssertUnwindSafe(call)).unwrap_err();
                let text = panic.downcast_ref::<String>().unwrap();
                assert_eq!(*text, format!("unit {callers}"));
                assert!(left.load(Ordering::Relaxed));
                // And the helper is still there.
                let meet = Barrier::new(2);
                runs.run(2, &|_| {
                    meet.wait();
                });
            }
        }
    }

    #[test]
    fn when_both_panic_the_callers_panic_goes_on_when_the_helper_has_left() {
        let me = std::thread::current().id();
        let (team, meet, left) = (team(1), Barrier::new(2), AtomicBool::new(false));
        let call = || {
            team.run(2, &|_| {
                meet.wait();
                if std::thread::current().id() == me {
                    panic!("the caller");
                }
                std::thread::sleep(Duration::from_millis(5));
                left.store(true, Ordering::Relaxed);
                panic!("the helper");
            });
        };
        let panic = catch_unwind(AssertUnwindSafe(call)).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"the caller"));
        assert!(left.load(Ordering::Relaxed));
    }

    #[test]
    fn a_panic_of_a_call_inside_of_a_unit_reaches_the_outer_caller() {
        let team = team(2);
        let call = || team.run(3, &|u| team.run(3, &|v| assert!(u + v != 4, "the last")));
        let panic = catch_unwind(AssertUnwindSafe(call)).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"the last"));
        assert!(lock(&team.shared.jobs).open.is_empty());
    }

    /// Waits until it is so.
    fn until(what: &str, is_so: impl Fn() -> bool) {
        let since = Instant::now();
        while !is_so() {
            assert!(since.elapsed() < Duration::from_secs(60), "{what}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn helpers_end_with_their_team_asleep_or_not() {
        for asleep in [false, true] {
            let team = team(3);
            team.run(3, &|_| ());
            let shared = Arc::clone(&team.shared);
            until("they sleep", || !asleep || lock(&shared.jobs).asleep == 3);
            drop(team);
            until("they end", || Arc::strong_count(&shared) == 1);
        }
    }
}
