//! A disk whose calls on parameter files can be held up.
#![expect(clippy::unwrap_used, reason = "used by tests")]

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use super::hooked::Hook;

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
