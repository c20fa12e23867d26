//! How does a call do its work without the GIL, and a wait end when the user presses Ctrl-C?

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use pyo3::prelude::*;

use crate::errors::{panicked, raise};
use crate::log;

/// Between two looks for signals.
pub const PULSE: Duration = Duration::from_millis(50);

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
    let receiver = std::sync::Mutex::new(receiver);
    loop {
        let next = py.detach(|| {
            let receiver = receiver
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            receiver.recv_timeout(PULSE)
        });
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
