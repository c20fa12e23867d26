//! What do callers ask for?

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::stats::Stats;
use crate::sync::atomic::{AtomicBool, AtomicU64};
use crate::units::saturate;

/// Adds to a counter.
pub fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

/// Reads a counter.
pub fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Microseconds of a duration.
pub fn micros(duration: Duration) -> u64 {
    saturate(duration.as_micros())
}

/// What callers ask for.
#[derive(Debug, Default)]
pub struct Demand {
    begun: AtomicBool,
    unique_asked: AtomicU64,
    unique_hits: AtomicU64,
}

impl Demand {
    /// A batch begins to ask.
    pub fn begin(&self) {
        // Read far more often than written: all threads keep its line.
        if !self.is_any() {
            self.begun.store(true, Ordering::Relaxed);
        }
    }

    /// Whether anybody has asked since the open.
    pub fn is_any(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }

    /// A batch asked for so many distinct rows that are known; so many of them were resident.
    pub fn note(&self, asked: u64, hits: u64) {
        add(&self.unique_asked, asked);
        add(&self.unique_hits, hits);
    }

    /// Distinct rows asked for so far: while it stands still, nobody asks.
    pub fn asked(&self) -> u64 {
        get(&self.unique_asked)
    }

    /// Adds to a reading.
    pub fn count(&self, stats: &mut Stats) {
        stats.unique_asked = get(&self.unique_asked);
        stats.unique_hits = get(&self.unique_hits);
    }
}
