//! Which metrics does a store have?
//!
//! Invariants:
//! - Every field of [`Stats`] but those by table is one metric here. The name is the field's, after
//!   `hps_`; counters end in `_total`. Two exceptions: times are in seconds, so `stall_us_max` is
//!   `hps_stall_max_seconds`; the name of the I/O engine is a label of `hps_info`.
//! - A counter never falls while the store is open, and begins at 0 with each open. What may fall,
//!   and what is a longest time, is a gauge.
//! - Ratios (the hit rate, the write amplification) are left to whoever reads the metrics, who can
//!   form them over any span of time.

use crate::stats::Stats;

/// What a series is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Never falls while the store is open.
    Counter,
    /// Anything else.
    Gauge,
}

/// What a value counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Things.
    Count,
    /// Bytes.
    Bytes,
    /// Microseconds, published as seconds.
    Microseconds,
}

/// One number of [`Stats`] with its name.
#[derive(Debug)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// One sentence.
    pub help: &'static str,
    /// Counter or gauge.
    pub kind: Kind,
    /// What is counted.
    pub unit: Unit,
    /// The number in a reading.
    pub value: fn(&Stats) -> u64,
}

impl Metric {
    const fn new(
        kind: Kind,
        name: &'static str,
        help: &'static str,
        value: fn(&Stats) -> u64,
    ) -> Self {
        Self {
            name,
            help,
            kind,
            unit: Unit::Count,
            value,
        }
    }

    const fn of(self, unit: Unit) -> Self {
        Self { unit, ..self }
    }
}

const fn counter(name: &'static str, help: &'static str, value: fn(&Stats) -> u64) -> Metric {
    Metric::new(Kind::Counter, name, help, value)
}

const fn gauge(name: &'static str, help: &'static str, value: fn(&Stats) -> u64) -> Metric {
    Metric::new(Kind::Gauge, name, help, value)
}

/// The metric that says in labels what is no number; its value is 1.
pub const INFO: (&str, &str) = ("hps_info", "The I/O engine and the version.");

/// The labels of [`INFO`].
pub fn info_labels(stats: &Stats) -> [(&'static str, &'static str); 2] {
    [
        ("io_engine", stats.io_engine),
        ("version", env!("CARGO_PKG_VERSION")),
    ]
}

/// The metrics that are one number, in the order of the fields of [`Stats`].
pub const METRICS: &[Metric] = &[
    gauge(
        "hps_direct_io",
        "1 while every current file is read past the page cache, else 0.",
        |s| u64::from(s.direct_io),
    ),
    counter(
        "hps_unique_asked_total",
        "Distinct keys asked per batch, summed; keys never pushed are left out.",
        |s| s.unique_asked,
    ),
    counter(
        "hps_unique_hits_total",
        "Those of the distinct keys asked that were resident.",
        |s| s.unique_hits,
    ),
    counter(
        "hps_rows_read_total",
        "Rows given to callers, duplicates included.",
        |s| s.rows_read,
    ),
    counter(
        "hps_rows_pushed_total",
        "Rows changed by push, duplicates counted once.",
        |s| s.rows_pushed,
    ),
    counter(
        "hps_bytes_pushed_total",
        "Bytes of the rows changed by push.",
        |s| s.bytes_pushed,
    )
    .of(Unit::Bytes),
    counter(
        "hps_rows_put_total",
        "Keys whose rows were written by put; one that is there twice in a call counts twice.",
        |s| s.rows_put,
    ),
    counter(
        "hps_bytes_put_total",
        "Bytes of the rows written by put.",
        |s| s.bytes_put,
    )
    .of(Unit::Bytes),
    counter(
        "hps_non_finite_total",
        "Gradients, and values put, that were not finite.",
        |s| s.non_finite,
    ),
    counter("hps_reads_total", "Device reads for rows.", |s| s.reads),
    counter(
        "hps_read_bytes_total",
        "Bytes of the device reads for rows.",
        |s| s.read_bytes,
    )
    .of(Unit::Bytes),
    counter(
        "hps_written_bytes_total",
        "Bytes written by flushes, checkpoints and compactions, key blocks and footers included.",
        |s| s.written_bytes,
    )
    .of(Unit::Bytes),
    counter(
        "hps_compaction_written_bytes_total",
        "Those of the bytes written that compactions wrote.",
        |s| s.compaction_written_bytes,
    )
    .of(Unit::Bytes),
    counter("hps_flushes_total", "Eviction flushes.", |s| s.flushes),
    counter("hps_compactions_total", "Compactions.", |s| s.compactions),
    counter(
        "hps_compaction_failures_total",
        "Compactions that failed.",
        |s| s.compaction_failures,
    ),
    counter("hps_checkpoints_total", "Checkpoints made durable.", |s| {
        s.checkpoints
    }),
    gauge(
        "hps_stall_max_seconds",
        "Longest time that a pull, push or put waited for a free slot at a stretch, since the store was opened.",
        |s| s.stall_us_max,
    )
    .of(Unit::Microseconds),
    counter(
        "hps_stall_seconds_total",
        "Time that pulls, pushes and puts waited for free slots, summed.",
        |s| s.stall_us,
    )
    .of(Unit::Microseconds),
    gauge(
        "hps_cut_max_seconds",
        "Longest cut of a checkpoint, since the store was opened.",
        |s| s.cut_us_max,
    )
    .of(Unit::Microseconds),
    gauge("hps_leases", "Leases outstanding.", |s| s.leases),
    gauge(
        "hps_lease_bytes",
        "Bytes that the slots of the leases take.",
        |s| s.lease_bytes,
    )
    .of(Unit::Bytes),
    gauge("hps_holds", "Holds on checkpoints outstanding.", |s| s.holds),
    gauge("hps_pinned_rows", "Rows pinned by leases.", |s| {
        s.pinned_rows
    }),
    gauge("hps_resident_rows", "Rows in memory.", |s| s.resident_rows),
    gauge("hps_capacity_rows", "Rows that fit into memory.", |s| {
        s.capacity_rows
    }),
    gauge(
        "hps_dirty_rows",
        "Rows changed since they were last written.",
        |s| s.dirty_rows,
    ),
    gauge(
        "hps_uncheckpointed_rows",
        "Rows changed since the cut of the last durable checkpoint.",
        |s| s.uncheckpointed_rows,
    ),
    gauge(
        "hps_cache_bytes",
        "Memory of the caches that was touched.",
        |s| s.cache_bytes,
    )
    .of(Unit::Bytes),
    gauge("hps_buffer_bytes", "Memory of the I/O buffers.", |s| {
        s.buffer_bytes
    })
    .of(Unit::Bytes),
    gauge("hps_queues", "Submission queues of io_uring.", |s| s.queues),
    gauge(
        "hps_plain_queues",
        "Those of the queues that use plain calls, because the kernel gave no ring.",
        |s| s.plain_queues,
    ),
    counter(
        "hps_rings_lost_total",
        "Rings that failed and were replaced, by others or by plain calls.",
        |s| s.rings_lost,
    ),
    gauge("hps_queue_buffers", "Buffers of the queues.", |s| {
        s.queue_buffers
    }),
    gauge(
        "hps_registered_buffers",
        "Those of the buffers that are registered with the kernel.",
        |s| s.registered_buffers,
    ),
    gauge("hps_index_bytes", "Memory of the index.", |s| s.index_bytes).of(Unit::Bytes),
    gauge(
        "hps_index_keys",
        "Keys in the index, tombstones included.",
        |s| s.index_keys,
    ),
    gauge("hps_files", "Files of the current version.", |s| s.files),
    gauge("hps_open_files", "Parameter files that are open.", |s| {
        s.open_files
    }),
    gauge(
        "hps_open_files_max",
        "Most parameter files that stay open; the coldest others are opened when they are read.",
        |s| s.open_files_max,
    ),
    counter(
        "hps_files_reopened_total",
        "Parameter files that were opened again after they had been closed.",
        |s| s.files_reopened,
    ),
    gauge(
        "hps_files_set_aside",
        "Files of the current version that are damaged or unreadable, and not compacted any more.",
        |s| s.files_set_aside,
    ),
    gauge(
        "hps_directories_paused",
        "Data directories that are not compacted for a while, after a failure.",
        |s| s.directories_paused,
    ),
    gauge(
        "hps_current_bytes",
        "Bytes of the files of the current version.",
        |s| s.current_bytes,
    )
    .of(Unit::Bytes),
    gauge(
        "hps_live_bytes",
        "Those of the bytes of the current version that live rows stand for.",
        |s| s.live_bytes,
    )
    .of(Unit::Bytes),
    gauge(
        "hps_pinned_bytes",
        "Bytes of files that only retained checkpoints need, and of the index image.",
        |s| s.pinned_bytes,
    )
    .of(Unit::Bytes),
    gauge(
        "hps_disk_bytes",
        "All bytes of rows and index on disk: current and pinned.",
        |s| s.disk_bytes,
    )
    .of(Unit::Bytes),
    counter(
        "hps_publisher_panics_total",
        "Panics of the recorder of metrics; it is not called again after one.",
        |s| s.publisher_panics,
    ),
];

/// What is published of the waits of each table that has waited, with the labels `table` and `cause`.
pub mod waits {
    /// A counter.
    pub const COUNT: (&str, &str) = (
        "hps_waits_total",
        "Waits of pulls, prefetches, removes, pushes and puts, by table and cause.",
    );
    /// A gauge, in seconds: the facade counts in whole numbers.
    pub const SECONDS: (&str, &str) = ("hps_waited_seconds_total", "Time that they took, summed.");
    /// A histogram, in seconds.
    pub const LENGTHS: (&str, &str) = (
        "hps_wait_seconds",
        "Their lengths, each rounded to 0.75 of a power of two of microseconds.",
    );
}

#[cfg(test)]
mod tests;
