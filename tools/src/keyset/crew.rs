//! How do several threads do one piece of work?
//!
//! - The error that is told is the first one in the order of the input, whichever thread met it, so that
//!   two runs over the same input say the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;

use crate::cli::{Interrupt, Meter};
use crate::threads;

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
        let results = threads::run(threads, || self.show(), work)?;
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
