//! Which data directory is compacted next?
//!
//! Directories take turns, so that none waits for another: each is looked at when rows were
//! flushed, worked on by one thread at a time, and left alone for a while after a failure.
//!
//! Invariants:
//! - One compaction at a time in a directory.
//! - The directory after the one served last is asked first.
//! - Pauses after failures double from [`PAUSE_MIN`] to [`PAUSE_MAX`]; a success ends them. Where
//!   no thread compacts they are counted in flushes, so that what happens depends on the calls only.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::sync::{Condvar, Mutex, MutexGuard};

/// The pause after the first failure.
const PAUSE_MIN: Duration = Duration::from_millis(500);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(16);

/// The longest pause, in flushes.
const FLUSHES_MAX: u64 = 32;

/// The end of a pause.
#[derive(Clone, Copy, Debug)]
enum Until {
    Time(Instant),
    Flush(u64),
}

/// What became of the compactions of one directory.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// Compactions done.
    pub done: u64,
    /// Compactions that failed.
    pub failed: u64,
    /// Why the last one failed, if none succeeded since.
    pub failure: Option<String>,
}

#[derive(Debug, Default)]
struct Directory {
    taken: bool,
    /// A look that began after so many flushes found nothing to do.
    idle: Option<u64>,
    /// Failures since the last success.
    streak: u32,
    /// Left alone until then.
    paused: Option<Until>,
    record: Record,
}

impl Directory {
    fn is_paused(&self, flushes: u64) -> bool {
        self.paused.is_some_and(|until| match until {
            Until::Time(until) => Instant::now() < until,
            Until::Flush(until) => flushes < until,
        })
    }

    /// Whether something may be to be done, and can be.
    fn serves(&self, flushes: u64) -> bool {
        self.idle != Some(flushes) && !self.is_paused(flushes)
    }
}

#[derive(Debug)]
struct State {
    directories: Vec<Directory>,
    /// Asked first.
    next: usize,
    /// Flushes so far.
    flushes: u64,
}

/// The directories of a store, and who works on which.
#[derive(Debug)]
pub struct Turns {
    state: Mutex<State>,
    freed: Condvar,
    /// Pauses are counted in flushes, not in time.
    inline: bool,
}

impl Turns {
    /// For so many directories, each to be looked at.
    pub fn new(directories: usize, inline: bool) -> Turns {
        let directories = (0..directories).map(|_| Directory::default()).collect();
        Turns {
            state: Mutex::new(State {
                directories,
                next: 0,
                flushes: 0,
            }),
            freed: Condvar::new(),
            inline,
        }
    }

    fn open(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The turn of the next directory that may have something to do; `None` while there is none.
    pub fn next(&self) -> Option<Turn<'_>> {
        let mut state = self.open();
        let (count, flushes) = (state.directories.len(), state.flushes);
        let mut order = (state.next..count).chain(0..state.next);
        let directory = order.find(|d| {
            let directory = &state.directories[*d];
            !directory.taken && directory.serves(flushes)
        })?;
        state.next = (directory + 1) % count;
        Some(self.begin(&mut state, directory))
    }

    /// The turn of a directory, whatever became of others before; waits for who has it.
    pub fn take(&self, directory: usize) -> Turn<'_> {
        let mut state = self.open();
        while state.directories[directory].taken {
            state = self
                .freed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        self.begin(&mut state, directory)
    }

    fn begin(&self, state: &mut State, directory: usize) -> Turn<'_> {
        state.directories[directory].taken = true;
        Turn {
            turns: self,
            directory,
            flushes: state.flushes,
        }
    }

    /// Rows were flushed: every directory may have something to do again.
    pub fn look_again(&self) {
        self.open().flushes += 1;
    }

    /// Which directories can be expected to be compacted, if something is due there.
    pub fn in_service(&self) -> Vec<bool> {
        let state = self.open();
        let serves = |d: &Directory| d.serves(state.flushes);
        state.directories.iter().map(serves).collect()
    }

    /// Which directories are left alone after a failure.
    pub fn paused(&self) -> Vec<bool> {
        let state = self.open();
        let paused = |d: &Directory| d.is_paused(state.flushes);
        state.directories.iter().map(paused).collect()
    }

    /// What became of all compactions, by directory.
    pub fn records(&self) -> Vec<Record> {
        let state = self.open();
        state.directories.iter().map(|d| d.record.clone()).collect()
    }
}

/// The right to compact a directory; dropped, it is another's.
#[derive(Debug)]
pub struct Turn<'a> {
    turns: &'a Turns,
    /// The directory.
    pub directory: usize,
    /// Flushes before it began.
    flushes: u64,
}

impl Turn<'_> {
    fn change(&self, change: impl FnOnce(&mut Directory)) {
        change(&mut self.turns.open().directories[self.directory]);
    }

    /// There was nothing to do.
    pub fn idle(&self) {
        self.change(|d| d.idle = Some(self.flushes));
    }

    /// A compaction was done.
    pub fn done(&self) {
        self.change(|d| {
            (d.streak, d.paused, d.record.failure) = (0, None, None);
            d.record.done += 1;
        });
    }

    /// A file was set aside: the next look finds others.
    pub fn set_aside(&self, error: &Error) {
        self.change(|d| {
            d.record.failed += 1;
            d.record.failure = Some(error.to_string());
        });
    }

    /// A compaction failed: a pause follows.
    pub fn failed(&self, error: &Error) {
        self.change(|d| {
            let longer = 1 << d.streak.min(5);
            d.streak += 1;
            d.paused = Some(match self.turns.inline {
                true => Until::Flush(self.flushes + u64::from(longer).min(FLUSHES_MAX)),
                false => Until::Time(Instant::now() + (PAUSE_MIN * longer).min(PAUSE_MAX)),
            });
            d.record.failed += 1;
            d.record.failure = Some(error.to_string());
        });
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.change(|d| d.taken = false);
        self.turns.freed.notify_all();
    }
}

#[cfg(test)]
#[cfg(not(hps_shuttle))]
mod tests {
    use std::io;
    use std::path::Path;

    use super::*;

    fn error() -> Error {
        Error::io(
            "write",
            Path::new("/store"),
            io::Error::from_raw_os_error(5),
        )
    }

    fn next(turns: &Turns) -> Option<usize> {
        turns.next().map(|turn| turn.directory)
    }

    #[test]
    fn directories_are_served_in_turn_and_never_by_two() {
        let turns = Turns::new(3, false);
        let served: Vec<_> = (0..5).filter_map(|_| next(&turns)).collect();
        assert_eq!(served, [0, 1, 2, 0, 1]);
        let held = [turns.next().unwrap(), turns.next().unwrap()];
        assert_eq!([held[0].directory, held[1].directory], [2, 0]);
        assert_eq!(next(&turns), Some(1));
        assert_eq!(next(&turns), Some(1), "the others are taken");
        drop(held);
        assert_eq!(next(&turns), Some(2));
    }

    #[test]
    fn a_directory_with_nothing_to_do_is_asked_again_after_a_flush() {
        let turns = Turns::new(2, false);
        turns.take(0).idle();
        assert_eq!(turns.in_service(), [false, true]);
        assert_eq!((next(&turns), next(&turns)), (Some(1), Some(1)));
        let look = turns.take(1);
        turns.look_again();
        look.idle();
        drop(look);
        assert_eq!(turns.in_service(), [true, true], "the look began before");
        turns.take(0).idle();
        turns.take(1).idle();
        assert_eq!(next(&turns), None);
        turns.look_again();
        assert_eq!(next(&turns), Some(0));
    }

    #[test]
    fn a_directory_that_failed_is_left_alone_longer_each_time_up_to_a_bound() {
        let turns = Turns::new(2, true);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            turns.take(0).failed(&error());
            let mut flushes = 0;
            while turns.paused()[0] {
                assert_eq!(next(&turns), Some(1), "the other goes on");
                turns.look_again();
                flushes += 1;
            }
            pauses.push(flushes);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 32, 32]);
        assert_eq!(turns.records()[0].failed, 8);
        turns.take(0).failed(&error());
        turns.take(0).done();
        assert_eq!(turns.paused(), [false, false], "a success ends the pause");
        assert!(turns.records()[0].failure.is_none());
    }

    #[test]
    fn pauses_are_times_where_threads_compact() {
        let turns = Turns::new(1, false);
        turns.take(0).failed(&error());
        turns.look_again();
        assert_eq!(next(&turns), None);
        std::thread::sleep(PAUSE_MIN);
        assert_eq!(next(&turns), Some(0));
    }
}
