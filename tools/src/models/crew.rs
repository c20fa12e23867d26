//! How do several threads work on one model until it is done, one fails, or the user has enough?
//!
//! - The error that is told is the first one in time; it stops all threads, and so does a panic.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::Result;
use hps::Error;

use crate::cli::{Interrupt, Meter};
use crate::threads;

/// What the threads of a piece of work share.
#[derive(Debug)]
pub struct Crew<'a> {
    interrupt: &'a Interrupt,
    stopped: AtomicBool,
    done_bytes: AtomicU64,
}

impl Crew<'_> {
    /// Whether the user asked to end.
    pub fn interrupt(&self) -> &Interrupt {
        self.interrupt
    }

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
    let show = || meter.at(crew.done_bytes.load(Ordering::Relaxed), bytes);
    let first = OnceLock::new();
    threads::run(threads, show, |_| {
        let stop = Stop(&crew.stopped);
        match work(&crew) {
            Ok(()) => std::mem::forget(stop),
            // Told before the others stop: theirs comes after.
            Err(error) => drop(first.set(error)),
        }
    })?;
    first.into_inner().map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::thread;

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

    #[test]
    fn a_panic_stops_the_others_and_goes_on_in_the_caller() {
        let interrupt = Interrupt::listen().unwrap();
        let mut meter = Meter::new("test", Show::Never).unwrap();
        let turn = AtomicUsize::new(0);
        let work = |crew: &Crew<'_>| {
            assert_ne!(turn.fetch_add(1, Ordering::Relaxed), 2, "the third");
            loop {
                crew.did(0)?;
                thread::yield_now();
            }
        };
        let all = || run(4, &interrupt, &mut meter, 1, work);
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(all));
        let message = panic.unwrap_err();
        let message = message.downcast_ref::<String>().unwrap();
        assert!(message.contains("the third"), "{message}");
    }
}
