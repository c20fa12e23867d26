//! How do several threads do one piece of work?
//!
//! - The error that is told is the first one in the order of the input, whichever thread met it, so that
//!   two runs over the same input say the same.
//! - The thread that waits shows the progress.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::cli::{Interrupt, Meter};

/// How often progress is shown.
const SHOWN_EVERY: Duration = Duration::from_millis(100);

/// An error, and its place in the order of the input.
#[derive(Debug)]
pub struct Failure {
    order: u64,
    error: anyhow::Error,
}

impl Failure {
    /// At a place in the order.
    pub fn at(order: u64, error: impl Into<anyhow::Error>) -> Failure {
        Failure {
            order,
            error: error.into(),
        }
    }

    /// Before all others.
    pub fn first(error: impl Into<anyhow::Error>) -> Failure {
        Failure::at(0, error)
    }
}

/// What threads share.
pub struct Crew<'a> {
    /// Shows the progress.
    pub meter: &'a mut Meter,
    /// Whether the user asked to end.
    pub interrupt: &'a Interrupt,
    /// Bytes that are done, and all.
    pub done: Arc<AtomicU64>,
    /// All bytes.
    pub all: u64,
}

impl Crew<'_> {
    /// Shows the progress.
    pub fn show(&mut self) {
        self.meter.at(self.done.load(Ordering::Relaxed), self.all);
    }

    /// Runs `work` in so many threads, each with its number; results in that order.
    ///
    /// # Errors
    /// The first one in the order of the input.
    pub fn run<T: Send>(
        &mut self,
        threads: usize,
        work: impl Fn(usize) -> Result<T, Failure> + Sync,
    ) -> Result<Vec<T>> {
        let (ended, all_ended) = channel::<()>();
        let work = &work;
        let results = thread::scope(|scope| {
            let mut handles = Vec::new();
            for number in 0..threads {
                let ended = ended.clone();
                let started = thread::Builder::new().spawn_scoped(scope, move || {
                    let _at_the_end = ended;
                    work(number)
                });
                handles.push(started.context("start a thread")?);
            }
            drop(ended);
            while all_ended.recv_timeout(SHOWN_EVERY) == Err(RecvTimeoutError::Timeout) {
                self.show();
            }
            let results = handles.into_iter().map(|handle| match handle.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            Ok::<Vec<_>, anyhow::Error>(results.collect())
        })?;
        let mut made = Vec::with_capacity(threads);
        let mut first: Option<Failure> = None;
        for result in results {
            match result {
                Ok(result) => made.push(result),
                Err(failure) => {
                    if first
                        .as_ref()
                        .is_none_or(|first| failure.order < first.order)
                    {
                        first = Some(failure);
                    }
                }
            }
        }
        match first {
            Some(failure) => Err(failure.error),
            None => Ok(made),
        }
    }
}
