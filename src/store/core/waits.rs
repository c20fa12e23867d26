//! Why does a batch wait, and how long?
//!
//! - A wait begins and ends outside of a shard's lock: a program's subscriber may take its time. (One
//!   that ends with a flush of the batch's own does so in the writer's role.)

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tracing::span::EnteredSpan;

use super::demand::micros;
use crate::stats::{WAIT_BUCKETS, Wait, WaitStats};

/// Waits for one reason. Nothing is decided by these numbers: they are no points where a schedule of
/// a test may change.
#[derive(Debug, Default)]
struct Counted {
    count: AtomicU64,
    us: AtomicU64,
    us_max: AtomicU64,
    histogram: [AtomicU64; WAIT_BUCKETS],
}

/// The waits of one table's batches, by cause.
#[derive(Debug, Default)]
pub struct Waits([Counted; Wait::ALL.len()]);

impl Waits {
    /// A wait has begun; it ends when what this gives is dropped.
    pub fn begin(&self, table: &str, cause: Wait, since: Instant) -> Waiting<'_> {
        Waiting {
            counted: &self.0[cause as usize],
            since,
            _span: tracing::debug_span!("wait", table, cause = cause.name()).entered(),
        }
    }

    /// All of them, by cause.
    pub fn stats(&self) -> [WaitStats; Wait::ALL.len()] {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        std::array::from_fn(|i| {
            let counted = &self.0[i];
            WaitStats {
                count: get(&counted.count),
                us: get(&counted.us),
                us_max: get(&counted.us_max),
                histogram: std::array::from_fn(|bucket| get(&counted.histogram[bucket])),
            }
        })
    }
}

/// A wait under way.
#[derive(Debug)]
pub struct Waiting<'a> {
    counted: &'a Counted,
    since: Instant,
    _span: EnteredSpan,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let us = micros(self.since.elapsed());
        let add = |counter: &AtomicU64, n| _ = counter.fetch_add(n, Ordering::Relaxed);
        add(&self.counted.count, 1);
        add(&self.counted.us, us);
        self.counted.us_max.fetch_max(us, Ordering::Relaxed);
        add(&self.counted.histogram[bucket(us)], 1);
    }
}

/// What a batch does that asks again and again: what it waits for at a stretch is one wait.
#[derive(Debug, Default)]
pub struct Stretch<'a>(Option<Waiting<'a>>);

impl<'a> Stretch<'a> {
    /// It waits for this since then, or still.
    pub fn go_on(&mut self, waits: &'a Waits, table: &str, cause: Wait, since: Instant) {
        if !self.is(waits, cause) {
            self.end();
            self.0 = Some(waits.begin(table, cause, since));
        }
    }

    /// Whether it waits for this, for the table whose waits these are.
    pub fn is(&self, waits: &Waits, cause: Wait) -> bool {
        let counted = &waits.0[cause as usize];
        self.0
            .as_ref()
            .is_some_and(|waiting| std::ptr::eq(waiting.counted, counted))
    }

    /// It does something else.
    pub fn end(&mut self) {
        self.0 = None;
    }
}

/// 0 below 1 us, then one for each power of two.
fn bucket(us: u64) -> usize {
    let bits = u64::BITS - us.leading_zeros();
    usize::try_from(bits).map_or(WAIT_BUCKETS - 1, |bits| bits.min(WAIT_BUCKETS - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_counted_once_in_the_bucket_of_its_length() {
        assert_eq!(
            [0, 1, 2, 3, 4, 1023, 1024].map(bucket),
            [0, 1, 2, 2, 3, 10, 11]
        );
        assert_eq!([1 << 24, u64::MAX].map(bucket), [25, 25]);
        let waits = Waits::default();
        drop(waits.begin("rows", Wait::Flush, Instant::now()));
        let long = waits.begin("rows", Wait::Flush, Instant::now());
        std::thread::sleep(std::time::Duration::from_millis(2));
        drop(long);
        let stats = waits.stats();
        for (cause, found) in Wait::ALL.iter().zip(&stats) {
            let count = if *cause == Wait::Flush { 2 } else { 0 };
            assert_eq!(found.count, count, "{cause:?}");
            assert_eq!(found.histogram.iter().sum::<u64>(), count);
        }
        assert!(stats[1].us_max >= 2000 && stats[1].us >= stats[1].us_max);
        assert!(stats[1].histogram[bucket(stats[1].us_max)] >= 1);
    }

    #[test]
    fn what_a_batch_waits_for_again_and_again_is_one_wait() {
        let waits = Waits::default();
        let other = Waits::default();
        let mut stretch = Stretch::default();
        for cause in [Wait::Room, Wait::Room, Wait::Flush, Wait::Room, Wait::Room] {
            stretch.go_on(&waits, "rows", cause, Instant::now());
            assert!(stretch.is(&waits, cause));
        }
        // Another table of the same call waits for the same.
        stretch.go_on(&other, "other", Wait::Room, Instant::now());
        assert!(stretch.is(&other, Wait::Room) && !stretch.is(&waits, Wait::Room));
        stretch.end();
        stretch.end();
        let counts = waits.stats().map(|waits| waits.count);
        assert_eq!(counts, [2, 1, 0, 0, 0]);
        assert_eq!(other.stats()[0].count, 1);
    }
}
