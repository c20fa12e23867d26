//! Is each field of `Stats` one metric, under its name?

use std::collections::BTreeSet;

use super::*;

/// The fields that only grow while a store is open, and begin at 0: counters.
const COUNTED: &[&str] = &[
    "unique_asked",
    "unique_hits",
    "rows_read",
    "rows_pushed",
    "bytes_pushed",
    "rows_put",
    "bytes_put",
    "non_finite",
    "warmed_rows",
    "reads",
    "read_bytes",
    "written_bytes",
    "compaction_written_bytes",
    "flushes",
    "compactions",
    "compaction_failures",
    "checkpoints",
    "stall_us",
    "publisher_panics",
    "rings_lost",
    "files_reopened",
];

/// The name that the metric of a field has to have.
fn name_of(field: &str) -> String {
    let (stem, unit) = if let Some(stem) = field.strip_suffix("_us_max") {
        (format!("{stem}_max"), "_seconds")
    } else if let Some(stem) = field.strip_suffix("_us") {
        (stem.to_owned(), "_seconds")
    } else {
        (field.to_owned(), "")
    };
    let total = if COUNTED.contains(&field) {
        "_total"
    } else {
        ""
    };
    format!("hps_{stem}{unit}{total}")
}

/// Fills every number with another one, so that two metrics can't be exchanged unseen.
macro_rules! fill {
    ($stats:ident: $($field:ident)*) => {
        let mut next = 1_000_001;
        $(
            $stats.$field = next;
            next += 1_000_003;
        )*
        assert!(next > 1_000_001);
    };
}

fn filled() -> Stats {
    let mut stats = Stats {
        io_engine: "uring",
        direct_io: true,
        ..Stats::default()
    };
    fill!(stats: unique_asked unique_hits rows_read rows_pushed bytes_pushed rows_put bytes_put non_finite warmed_rows warm_rows_left reads
        read_bytes written_bytes compaction_written_bytes flushes compactions
        compaction_failures checkpoints stall_us_max stall_us cut_us_max leases lease_bytes holds pinned_rows resident_rows
        capacity_rows dirty_rows uncheckpointed_rows cache_bytes cache_row_bytes cache_state_bytes
        cache_hash_table_bytes cache_order_bytes cache_frequency_bytes buffer_bytes read_buffer_bytes
        write_buffer_bytes flush_bytes compaction_bytes warm_bytes snapshot_buffer_bytes array_bytes
        queues plain_queues rings_lost queue_buffers registered_buffers index_bytes
        index_keys files open_files open_files_max files_reopened
        files_set_aside directories_paused current_bytes live_bytes pinned_bytes disk_bytes
        publisher_panics);
    stats
}

/// The fields of a reading, from the text of `stats.rs`; but for those by table.
fn fields() -> Vec<&'static str> {
    let source = include_str!("../../stats.rs");
    let (_, body) = source.split_once("pub struct Stats {").unwrap();
    let (body, _) = body.split_once("\n}").unwrap();
    let public = body.lines().filter_map(|line| {
        let (name, _) = line.trim().strip_prefix("pub ")?.split_once(": ")?;
        Some(name)
    });
    public.filter(|name| *name != "tables").collect()
}

/// The value of a field, from the `Debug` form.
fn value(stats: &Stats, field: &str) -> u64 {
    let text = format!("{stats:#?}");
    let line = text.lines().find_map(|line| {
        let line = line.strip_prefix("    ")?.strip_suffix(',')?;
        line.strip_prefix(field)?.strip_prefix(": ")
    });
    match line.unwrap() {
        "true" => 1,
        "false" => 0,
        number => number.parse().unwrap(),
    }
}

#[test]
fn every_field_is_one_metric_under_its_name() {
    let stats = filled();
    let mut metrics: Vec<&Metric> = METRICS.iter().collect();
    for field in fields().into_iter().filter(|field| *field != "io_engine") {
        let name = name_of(field);
        let place = metrics.iter().position(|metric| metric.name == name);
        let metric = metrics.remove(place.unwrap_or_else(|| panic!("no {name} for {field}")));
        assert_eq!((metric.value)(&stats), value(&stats, field), "{field}");
        let counted = COUNTED.contains(&field);
        assert_eq!(metric.kind == Kind::Counter, counted, "{field}");
        assert_eq!(
            metric.unit == Unit::Microseconds,
            field.contains("_us"),
            "{field}"
        );
        assert_eq!(
            metric.unit == Unit::Bytes,
            field.contains("bytes"),
            "{field}"
        );
        assert!(
            metric.help.ends_with('.') && !metric.help.contains('\n'),
            "{field}"
        );
    }
    assert!(metrics.is_empty(), "{metrics:?}");
    assert_eq!(info_labels(&stats)[0], ("io_engine", "uring"));
    let values: BTreeSet<u64> = METRICS.iter().map(|m| (m.value)(&stats)).collect();
    assert_eq!(values.len(), METRICS.len(), "two fields were filled alike");
}
