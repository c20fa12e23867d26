//! How is a store seen from outside: by a recorder of metrics, by a subscriber of spans?
//!
//! Metrics go through the facade `metrics` to whatever recorder the program has installed; spans
//! and events go through `tracing`. docs/OBSERVABILITY.md lists both.
//!
//! Invariants:
//! - Nothing is counted for the recorder alone: a publication reads [`Stats`] and hands it over.
//! - A counter of the recorder is raised by what was counted since the last publication, so it goes
//!   on rising when a directory is closed and opened again, as a rollback does. (A counter of the
//!   facade that is set takes only what is greater: it would stand still until the new count has
//!   passed the old.)
//! - The publications of a store follow each other, and no later one has older numbers.
//! - A recorder that panics is asked no more; the store goes on.
//! - Each publication asks the recorder for its metrics anew: a recorder may be installed late, and
//!   may forget what was idle.

mod catalog;

use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use metrics::{Key, Label, Level, Metadata, NoopRecorder, Recorder};
use tracing::Span;

use crate::stats::{Stats, TableStats, Wait, WaitStats};
use crate::sync::Mutex;
use catalog::{INFO, Kind, METRICS, Metric, TABLE_METRICS, Unit, info_labels, waits};

/// How often an open store publishes by itself.
const PERIOD: Duration = Duration::from_secs(1);
/// Most waits of one length that are given to a histogram at a time.
const RECORDED_MAX: u64 = 1 << 16;

static METADATA: Metadata<'static> = Metadata::new("hps", Level::INFO, Some(module_path!()));

// What `has_recorder` relies on: the facade does not say whether a recorder is installed.
const _: () = assert!(size_of::<NoopRecorder>() == 0);

/// Whether the program has installed a recorder (one that has fields: one without looks like none).
pub fn has_recorder() -> bool {
    metrics::with_recorder(|recorder| size_of_val(recorder) > 0)
}

/// Hands the numbers of one store to the recorder.
#[derive(Debug)]
pub struct Publisher {
    /// What tells its series from those of other stores.
    labels: [Label; 2],
    /// What the recorder has.
    published: Mutex<Stats>,
    /// Panics of the recorder: after the first it is left alone.
    panics: AtomicU64,
}

impl Publisher {
    /// For a store that has just been opened.
    pub fn new(directory: &Path, read_only: bool) -> Publisher {
        let directory: Arc<str> = directory.to_string_lossy().into();
        let mode = if read_only { "reader" } else { "writer" };
        Publisher {
            labels: [
                Label::new("store", directory),
                Label::from_static_parts("mode", mode),
            ],
            published: Mutex::new(Stats::default()),
            panics: AtomicU64::new(0),
        }
    }

    /// How often the recorder panicked. It is the program's: the store goes on, and publishes no
    /// more.
    #[must_use]
    pub fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    /// Gives the recorder a reading; with `describe` also what the metrics mean.
    pub fn publish(&self, describe: bool, read: impl FnOnce() -> Stats) {
        let mut published = self
            .published
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if self.panics() > 0 {
            return;
        }
        let stats = read();
        let give = || self.give(describe, &published, &stats);
        match catch_unwind(AssertUnwindSafe(give)) {
            Ok(()) => *published = stats,
            Err(_) => {
                self.panics.fetch_add(1, Ordering::Relaxed);
                tracing::error!("the recorder of metrics panicked; nothing more is published");
            }
        }
    }

    fn give(&self, describe: bool, published: &Stats, stats: &Stats) {
        metrics::with_recorder(|recorder| {
            if describe {
                describe_all(recorder);
            }
            // The engine's name changes when a queue loses its ring for good.
            let before = published.io_engine;
            if !before.is_empty() && before != stats.io_engine {
                self.record_info(recorder, published, 0.0);
            }
            self.record_info(recorder, stats, 1.0);
            for metric in METRICS {
                let values = ((metric.value)(published), (metric.value)(stats));
                self.record(recorder, metric, &[], values);
            }
            for gone in gone(published, stats) {
                let own = [Label::new("table", gone.name.clone())];
                for metric in TABLE_METRICS.iter().filter(|m| m.kind == Kind::Gauge) {
                    self.record(recorder, metric, &own, (0, 0));
                }
            }
            for table in &stats.tables {
                // Both are in the order of ids.
                let before = published.tables.binary_search_by_key(&table.id, |t| t.id);
                let before = before.ok().map(|at| &published.tables[at]);
                let own = [Label::new("table", table.name.clone())];
                for metric in TABLE_METRICS {
                    let values = (before.map_or(0, metric.value), (metric.value)(table));
                    self.record(recorder, metric, &own, values);
                }
                for cause in Wait::ALL.iter().copied() {
                    let before = before.map(|before| *before.wait(cause));
                    self.record_waits(recorder, table, cause, &before.unwrap_or_default());
                }
            }
        });
    }

    fn record_waits(
        &self,
        recorder: &dyn Recorder,
        table: &TableStats,
        cause: Wait,
        before: &WaitStats,
    ) {
        let now = table.wait(cause);
        if now.count == 0 {
            return;
        }
        let own = [
            Label::new("table", table.name.clone()),
            Label::from_static_parts("cause", cause.name()),
        ];
        let labels = [&self.labels[..], &own].concat();
        let key = |name| Key::from_parts(name, labels.clone());
        let count = recorder.register_counter(&key(waits::COUNT.0), &METADATA);
        count.increment(now.count.saturating_sub(before.count));
        let seconds = recorder.register_gauge(&key(waits::SECONDS.0), &METADATA);
        seconds.set(now.us as f64 / 1e6);
        let lengths = recorder.register_histogram(&key(waits::LENGTHS.0), &METADATA);
        for (i, (now, before)) in now.histogram.iter().zip(before.histogram).enumerate() {
            // A recorder that came late is not given years of waits one by one.
            let more = now.saturating_sub(before).min(RECORDED_MAX);
            let more = usize::try_from(more).unwrap_or(0);
            if more > 0 {
                // Bucket i ends at 2^i microseconds; the last has no end, and is published as 25 s.
                lengths.record_many(0.75e-6 * (1u64 << i) as f64, more);
            }
        }
    }

    fn record_info(&self, recorder: &dyn Recorder, stats: &Stats, value: f64) {
        let info = info_labels(stats).map(|(key, value)| Label::from_static_parts(key, value));
        let labels = [&info[..], &self.labels[..]].concat();
        let key = Key::from_parts(INFO.0, labels);
        recorder.register_gauge(&key, &METADATA).set(value);
    }

    /// A number as it was published last, and as it is now.
    fn record<S>(
        &self,
        recorder: &dyn Recorder,
        metric: &Metric<S>,
        own: &[Label],
        (before, value): (u64, u64),
    ) {
        let key = Key::from_parts(metric.name, [&self.labels[..], own].concat());
        match metric.unit {
            Unit::Microseconds => {
                let seconds = value as f64 / 1e6;
                recorder.register_gauge(&key, &METADATA).set(seconds);
            }
            Unit::Count | Unit::Bytes if metric.kind == Kind::Counter => {
                let counter = recorder.register_counter(&key, &METADATA);
                counter.increment(value.saturating_sub(before));
            }
            Unit::Count | Unit::Bytes => {
                recorder.register_gauge(&key, &METADATA).set(value as f64);
            }
        }
    }
}

/// Tables that were there at the last publication, under names that no table has now.
fn gone<'a>(published: &'a Stats, stats: &'a Stats) -> impl Iterator<Item = &'a TableStats> {
    let is_gone = |before: &&TableStats| stats.tables.iter().all(|t| t.name != before.name);
    published.tables.iter().filter(is_gone)
}

fn describe_all(recorder: &dyn Recorder) {
    recorder.describe_gauge(INFO.0.into(), None, INFO.1.into());
    let (count, seconds, lengths) = (waits::COUNT, waits::SECONDS, waits::LENGTHS);
    let in_seconds = Some(metrics::Unit::Seconds);
    recorder.describe_counter(count.0.into(), Some(metrics::Unit::Count), count.1.into());
    recorder.describe_gauge(seconds.0.into(), in_seconds, seconds.1.into());
    recorder.describe_histogram(lengths.0.into(), in_seconds, lengths.1.into());
    METRICS.iter().for_each(|metric| describe(recorder, metric));
    TABLE_METRICS
        .iter()
        .for_each(|metric| describe(recorder, metric));
}

fn describe<S>(recorder: &dyn Recorder, metric: &Metric<S>) {
    let (name, help) = (metric.name.into(), metric.help.into());
    match (metric.kind, metric.unit) {
        // The facade counts in whole numbers: a sum of times is a gauge there.
        (_, Unit::Microseconds) => {
            recorder.describe_gauge(name, Some(metrics::Unit::Seconds), help);
        }
        (Kind::Counter, unit) => recorder.describe_counter(name, unit_of(unit), help),
        (Kind::Gauge, unit) => recorder.describe_gauge(name, unit_of(unit), help),
    }
}

fn unit_of(unit: Unit) -> Option<metrics::Unit> {
    Some(match unit {
        Unit::Count => metrics::Unit::Count,
        Unit::Bytes => metrics::Unit::Bytes,
        Unit::Microseconds => metrics::Unit::Seconds,
    })
}

/// When a thread publishes next.
#[derive(Debug)]
pub struct Beat {
    next: Instant,
    described: bool,
}

impl Beat {
    /// Due at once.
    pub fn new() -> Beat {
        Beat {
            next: Instant::now(),
            described: false,
        }
    }

    /// Whether it is time and there is somebody to publish to; if so, whether for the first time.
    pub fn due(&mut self) -> Option<bool> {
        let now = Instant::now();
        if now < self.next {
            return None;
        }
        self.next = now + PERIOD;
        has_recorder().then(|| !std::mem::replace(&mut self.described, true))
    }
}

/// A span that records how long it was there, in its field `seconds`.
#[derive(Debug)]
pub struct Timed {
    span: Span,
    since: Instant,
}

impl Timed {
    /// From now on.
    pub fn new(span: Span) -> Timed {
        Timed {
            span,
            since: Instant::now(),
        }
    }
}

impl Deref for Timed {
    type Target = Span;

    fn deref(&self) -> &Span {
        &self.span
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        self.span
            .record("seconds", self.since.elapsed().as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use metrics::{Counter, Gauge, Histogram, KeyName, SharedString};

    /// Counts what is registered.
    #[derive(Default)]
    struct Registered(std::sync::atomic::AtomicUsize);

    impl Registered {
        fn count(&self) -> usize {
            self.0.load(std::sync::atomic::Ordering::Relaxed)
        }
    }

    impl Recorder for Registered {
        fn describe_counter(&self, _: KeyName, _: Option<metrics::Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<metrics::Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<metrics::Unit>, _: SharedString) {}
        fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Counter::noop()
        }
        fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Gauge::noop()
        }
        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::noop()
        }
    }

    #[test]
    fn a_recorder_is_seen_when_there_is_one_and_a_beat_waits_for_it() {
        let (recorder, mut beat) = (Registered::default(), Beat::new());
        assert!(!has_recorder());
        assert_eq!(beat.due(), None, "nobody to publish to");
        beat.next = Instant::now();
        metrics::with_local_recorder(&recorder, || {
            assert!(has_recorder());
            assert_eq!(beat.due(), Some(true), "the first time");
            beat.next = Instant::now() + Duration::from_secs(3600);
            assert_eq!(beat.due(), None, "not yet");
            beat.next = Instant::now();
            assert_eq!(beat.due(), Some(false), "again");
            let publisher = Publisher::new("/store".as_ref(), false);
            publisher.publish(false, Stats::default);
        });
        assert_eq!(recorder.count(), METRICS.len() + 1);
        assert!(!has_recorder());
    }
}
