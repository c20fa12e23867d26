//! How do several threads do one piece of work while the caller shows its progress?
//!
//! - Which of their errors is told is up to the caller: each thread's result is handed back.

use std::num::NonZero;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::{self, available_parallelism};
use std::time::Duration;

use anyhow::{Context, Result};

/// How often progress is shown.
const SHOWN_EVERY: Duration = Duration::from_millis(100);

/// Cores of this machine.
#[must_use]
pub fn cores() -> usize {
    available_parallelism().map_or(1, NonZero::get)
}

/// Runs `work` in so many threads, each with its number; results in that order. The caller's thread
/// works not: it shows the progress until all have ended.
///
/// # Errors
/// When a thread can't be started.
///
/// # Panics
/// When a thread did, once all have ended.
pub fn run<T: Send>(
    threads: usize,
    mut show: impl FnMut(),
    work: impl Fn(usize) -> T + Sync,
) -> Result<Vec<T>> {
    let (ended, all_ended) = channel::<()>();
    let work = &work;
    thread::scope(|scope| {
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
            show();
        }
        let results = handles.into_iter().map(|handle| match handle.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        Ok(results.collect())
    })
}
