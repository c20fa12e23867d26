//! How do several threads work on one model until it is done, one fails, or the user has enough?
//!
//! - The caller's thread shows progress and works not; the first error stops all.

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, available_parallelism};
use std::time::Duration;

use anyhow::Result;
use hps::Error;

use crate::cli::{Interrupt, Meter};

/// How often progress is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Cores of this machine.
#[must_use]
pub fn cores() -> usize {
    available_parallelism().map_or(1, NonZero::get)
}

/// What the threads of a piece of work share.
#[derive(Debug)]
pub struct Crew<'a> {
    interrupt: &'a Interrupt,
    stopped: AtomicBool,
    done_bytes: AtomicU64,
}

impl Crew<'_> {
    /// Notes bytes that are done.
    ///
    /// # Errors
    /// `Cancelled` once the user asked to end, or another thread failed.
    pub fn did(&self, bytes: u64) -> Result<(), Error> {
        self.done_bytes.fetch_add(bytes, Ordering::Relaxed);
        if self.stopped.load(Ordering::Relaxed) {
            return Err(Error::Cancelled);
        }
        self.interrupt.check()
    }
}

/// Stops all when it is dropped: also by a panic, for which nobody may wait.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `work` in so many threads. `bytes`: what all of it comes to.
///
/// # Errors
/// That of the thread that failed first.
pub fn run(
    threads: usize,
    interrupt: &Interrupt,
    meter: &mut Meter,
    bytes: u64,
    work: impl Fn(&Crew<'_>) -> Result<()> + Sync,
) -> Result<()> {
    let crew = Crew {
        interrupt,
        stopped: AtomicBool::new(false),
        done_bytes: AtomicU64::new(0),
    };
    let (ended, ends) = mpsc::channel();
    let mut first = Ok(());
    thread::scope(|scope| {
        for _ in 0..threads {
            let (ended, crew, work) = (ended.clone(), &crew, &work);
            scope.spawn(move || {
                let stop = Stop(&crew.stopped);
                let result = work(crew);
                let is_well = result.is_ok();
                // Told before the others stop: theirs comes after.
                let _gone = ended.send(result);
                if is_well {
                    std::mem::forget(stop);
                }
            });
        }
        drop(ended);
        loop {
            match ends.recv_timeout(LOOK_EVERY) {
                Ok(Err(error)) if first.is_ok() => first = Err(error),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    meter.at(crew.done_bytes.load(Ordering::Relaxed), bytes);
                }
                // All have ended. (One that panicked ends the scope with its panic.)
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
    });
    first
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::cli::Show;

    #[test]
    fn the_first_error_is_told_and_stops_the_others() {
        let interrupt = Interrupt::listen().unwrap();
        let mut meter = Meter::new("test", Show::Never).unwrap();
        let turn = AtomicUsize::new(0);
        let result = run(4, &interrupt, &mut meter, 1, |crew| {
            if turn.fetch_add(1, Ordering::Relaxed) == 2 {
                anyhow::bail!("the third");
            }
            loop {
                crew.did(0)?;
                thread::yield_now();
            }
        });
        assert_eq!(result.unwrap_err().to_string(), "the third");
        assert_eq!(turn.load(Ordering::Relaxed), 4);
    }
}
