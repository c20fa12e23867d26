//! How do the threads of a store tell each other that there is work, or room?

use std::sync::PoisonError;
use std::time::Duration;

use crate::sync::{Condvar, Mutex};

/// A flag with a condition variable: work to do, or work done.
#[derive(Debug, Default)]
pub struct Signal {
    count: Mutex<u64>,
    condvar: Condvar,
}

impl Signal {
    /// Raises it.
    pub fn notify(&self) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.condvar.notify_all();
    }

    /// How often it was raised.
    pub fn count(&self) -> u64 {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it was raised more often than `seen`, or a while.
    #[cfg_attr(hps_shuttle, track_caller)]
    pub fn wait(&self, seen: u64, pause: Duration) {
        let count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        if *count == seen {
            drop(self.condvar.wait_timeout(count, pause));
        }
    }
}
