//! A disk whose calls on parameter files can be held up, and waiting for something to be so.
#![expect(clippy::unwrap_used, reason = "used by tests")]

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use super::hooked::Hook;

/// Returns once something is so.
pub fn until(what: &str, so: impl Fn() -> bool) {
    let since = Instant::now();
    while !so() {
        assert!(since.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Calls on parameter files wait here while it is closed.
#[derive(Default)]
pub struct Gate {
    closed: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    pub fn set(&self, closed: bool) {
        *self.closed.lock().unwrap() = closed;
        self.changed.notify_all();
    }

    /// A hook that holds up one kind of call.
    pub fn hook(self: &Arc<Gate>, held: &'static str) -> Hook {
        let gate = Arc::clone(self);
        Arc::new(move |call, path| {
            if call == held && path.extension().is_some_and(|e| e == "rows") {
                let closed = gate.closed.lock().unwrap();
                let wait = Duration::from_secs(60);
                let held = gate
                    .changed
                    .wait_timeout_while(closed, wait, |closed| *closed);
                drop(held.unwrap());
            }
            None
        })
    }
}
