//! How does a call do its work without the GIL, and a wait end when the user presses Ctrl-C?

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hps::Error;
use pyo3::prelude::*;

use crate::errors::{panicked, raise};
use crate::log;

/// Between two looks for signals.
pub const PULSE: Duration = Duration::from_millis(50);

/// Takes a lock; whoever panicked with it has poisoned the store, not what is behind the lock.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does the work of a call without the GIL; for work that lasts as long as its I/O. No handler of
/// `logging` runs here: the caller has the store, and one that closes it would wait for itself.
///
/// # Errors
/// The exception of its error, or of its panic.
pub fn work<T: Send>(py: Python<'_>, work: impl FnOnce() -> hps::Result<T> + Send) -> PyResult<T> {
    let result = py.detach(|| catch_unwind(AssertUnwindSafe(work)));
    told(py, result)
}

fn told<T>(py: Python<'_>, result: std::thread::Result<hps::Result<T>>) -> PyResult<T> {
    match result {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(raise(py, &error)),
        Err(payload) => Err(panicked(py, &*payload)),
    }
}

/// Does work that may be long in a thread of its own, and looks for signals meanwhile. After one the work
/// goes on and nobody learns its result.
///
/// # Errors
/// As [`work`]; what a handler of signals raises: `KeyboardInterrupt`.
pub fn long_work<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> hps::Result<T> + Send + 'static,
) -> PyResult<T> {
    let (sender, receiver) = sync_channel(1);
    let body = move || {
        // Whoever waited may have gone.
        drop(sender.send(catch_unwind(AssertUnwindSafe(work))));
    };
    let name = String::from("hps-python-call");
    std::thread::Builder::new().name(name).spawn(body)?;
    let receiver = Mutex::new(receiver);
    loop {
        let next = py.detach(|| lock(&receiver).recv_timeout(PULSE));
        log::forward(py);
        match next {
            Ok(result) => return told(py, result),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(panicked(py, &"a thread ended without a result"));
            }
        }
    }
}

/// Why a wait ended before what it waited for came: the time given, or a signal. What was waited for
/// is as before.
pub struct NotYet(pub PyErr);

/// Waits for what `attempt` waits for at most as long as it is given, and looks for signals between.
pub fn wait<T: Send>(
    py: Python<'_>,
    timeout: Option<Duration>,
    attempt: impl Fn(Duration) -> hps::Result<T> + Sync,
) -> Result<hps::Result<T>, NotYet> {
    let since = Instant::now();
    loop {
        let left = timeout.map_or(Duration::MAX, |limit| limit.saturating_sub(since.elapsed()));
        let told = py.detach(|| attempt(left.min(PULSE)));
        log::forward(py);
        match told {
            Err(Error::Deadline { .. }) if left <= PULSE => {
                let waited_ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
                return Err(NotYet(raise(py, &Error::Deadline { waited_ms })));
            }
            Err(Error::Deadline { .. }) => py.check_signals().map_err(NotYet)?,
            told => return Ok(told),
        }
    }
}

/// A ticket, and what it gives once.
pub trait Awaited: Send + Sync + 'static {
    type Given: Send + 'static;

    fn wait(self) -> hps::Result<Self::Given>;
    fn wait_for(&self, limit: Duration) -> hps::Result<Self::Given>;
}

/// Waits for what a ticket gives. It goes back to its place where that has not come.
///
/// # Errors
/// The ticket's; `Deadline`; what a handler of signals raises.
pub fn redeem<T: Awaited>(
    py: Python<'_>,
    ticket: T,
    timeout: Option<Duration>,
    place: &Mutex<Option<T>>,
) -> PyResult<T::Given> {
    let limit = timeout.unwrap_or(PULSE);
    match wait(py, Some(limit), |limit| ticket.wait_for(limit)) {
        Ok(told) => told.map_err(|error| raise(py, &error)),
        // Only a wait without a limit serves a ticket that has no room yet, or is told that it never will.
        Err(NotYet(_)) if timeout.is_none() => long_work(py, move || ticket.wait()),
        Err(NotYet(why)) => {
            *lock(place) = Some(ticket);
            Err(why)
        }
    }
}
