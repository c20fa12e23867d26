//! Waiting for something to be so.

use std::time::{Duration, Instant};

/// Returns once something is so; fails if it is not within a minute.
pub fn until(what: &str, so: impl Fn() -> bool) {
    let since = Instant::now();
    while !so() {
        assert!(since.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
