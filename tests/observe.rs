//! Do a recorder of metrics and a subscriber of spans see what the store does?
//!
//! - The recorder and the subscriber are this test's own, so that nothing stands between.
//! - docs/OBSERVABILITY.md is compared with what they saw: its tables say no more and no less.

#![expect(
    clippy::unwrap_used,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/recorder.rs"]
mod recorder;
#[path = "common/spans.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod spans;
#[path = "common/until.rs"]
mod until;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use hps::io::Io;
use hps::io::sim::{Fault, SimDisk};
use hps::*;
use recorder::{Labels, TestRecorder, Value};
use spans::{Seen, Spans, path};
use until::until;

const DOCUMENT: &str = include_str!("../docs/OBSERVABILITY.md");
const ROOT: &str = "/store";
const DIM: usize = 2;

fn disk() -> Io {
    Io::of(SimDisk::new(1))
}

fn options(inline: bool) -> RuntimeOptions {
    RuntimeOptions::new()
        .cache_bytes(1 << 20)
        .io_depth(4)
        .threads(1)
        .shards(1)
        .inline(inline)
}

fn create(disk: &Io, root: &str, inline: bool) -> (Store, TableId) {
    let store = Store::create_on(
        disk.clone(),
        root.as_ref(),
        CreateOptions::new(),
        options(inline),
    )
    .unwrap();
    let table = store.create_table(&TableDescriptor::new("t", DIM)).unwrap();
    (store, table)
}

/// Pushes rows.
fn train(store: &Store, table: TableId, keys: Range<u64>) {
    let keys: Vec<u64> = keys.collect();
    let mut out = vec![0.0; 1000 * DIM];
    for keys in keys.chunks(1000) {
        let out = &mut out[..keys.len() * DIM];
        let lease = store.pull(table, keys, out).unwrap();
        store.push(&lease, Update::weights(out)).unwrap();
    }
}

/// Flushes, device reads, two checkpoints and a compaction.
fn work(store: &Store, table: TableId) {
    train(store, table, 0..30_000);
    store.checkpoint(1, b"one").unwrap();
    train(store, table, 0..20_000);
    store.checkpoint(2, b"").unwrap();
    assert!(store.compact_fully().unwrap() > 0);
}

/// The numbers of a reading by field, from its `Debug` form; but for those by table.
fn numbers(stats: &impl std::fmt::Debug) -> BTreeMap<String, f64> {
    let text = format!("{stats:#?}");
    let number = |line: &str| {
        let field = line.strip_prefix("    ")?.strip_suffix(',')?;
        let (name, value) = field.split_once(": ")?;
        let value = match value {
            "true" => 1.0,
            "false" => 0.0,
            number => number.parse().ok()?,
        };
        (!name.starts_with(' ')).then(|| (name.to_owned(), value))
    };
    text.lines().filter_map(number).collect()
}

/// The field that a metric is of, and how many of its units are one of the metric.
fn field_of(name: &str) -> (String, f64) {
    let stem = name.strip_prefix("hps_").unwrap();
    let stem = stem.strip_suffix("_total").unwrap_or(stem);
    match (
        stem.strip_suffix("_max_seconds"),
        stem.strip_suffix("_seconds"),
    ) {
        (Some(stem), _) => (format!("{stem}_us_max"), 1e6),
        (None, Some(stem)) => (format!("{stem}_us"), 1e6),
        (None, None) => (stem.to_owned(), 1.0),
    }
}

/// What is published by table and cause.
const WAITS: [&str; 3] = [
    "hps_waits_total",
    "hps_waited_seconds_total",
    "hps_wait_seconds",
];

fn labels(stats: &Stats, name: &str, mode: &str) -> Labels {
    let mut labels = vec![("store", ROOT), ("mode", mode)];
    if name == "hps_info" {
        labels.push(("io_engine", stats.io_engine));
        labels.push(("version", env!("CARGO_PKG_VERSION")));
    }
    let owned = labels.iter().map(|(k, v)| (k.to_string(), v.to_string()));
    owned.collect()
}

#[test]
fn every_number_arrives_under_its_name_and_with_its_meaning() {
    let recorder = TestRecorder::default();
    let (before, stats) = metrics::with_local_recorder(&recorder, || {
        let (store, table) = create(&disk(), ROOT, true);
        work(&store, table);
        let lease = store.pull(table, &[1, 2], &mut [0.0; 2 * DIM]).unwrap();
        let before = store.stats();
        drop(lease);
        train(&store, table, 0..1000);
        store.checkpoint(3, b"").unwrap();
        let stats = store.stats();
        store.close_discarding();
        (before, stats)
    });
    assert!(stats.flushes > 0 && stats.reads > 0 && stats.compactions > 0 && before.leases == 1);
    let (arrived, described) = (recorder.of(ROOT), recorder.described());
    let (mut left, earlier) = (numbers(&stats), numbers(&before));
    assert!(left.len() > 30 && arrived.keys().eq(described.keys()));
    let mut fallen = 0;
    for (name, (found, value)) in arrived {
        if WAITS.contains(&name.as_str()) || name.starts_with("hps_table_") {
            continue;
        }
        assert_eq!(found, labels(&stats, &name, "writer"), "{name}");
        let (field, units) = field_of(&name);
        let (kind, value) = match value {
            Value::Counter(count) => ("counter", count as f64),
            Value::Gauge(value) => ("gauge", value),
            Value::Histogram(_) => ("histogram", 0.0),
        };
        assert_eq!(described[&name].kind, kind, "{name}");
        assert!(described[&name].text.ends_with('.'), "{name}");
        assert_eq!(
            kind == "counter",
            name.ends_with("_total") && units == 1.0,
            "{name}"
        );
        if name == "hps_info" {
            assert_eq!(value, 1.0);
            continue;
        }
        let number = left
            .remove(&field)
            .unwrap_or_else(|| panic!("{name} is of no field"));
        assert_eq!(value, number / units, "{name}");
        let falls = number < earlier[&field];
        assert!(!(falls && name.ends_with("_total")), "{name} fell");
        fallen += usize::from(falls);
    }
    assert!(left.is_empty(), "fields without a metric: {left:?}");
    assert!(fallen > 0, "leases and dirty rows fall");
}

/// What a pull waited for, and for how long, is published by table: as much as the store counted.
#[test]
fn waits_arrive_by_table_and_cause() {
    let recorder = TestRecorder::default();
    let stats = metrics::with_local_recorder(&recorder, || {
        let (store, table) = create(&disk(), ROOT, true);
        store
            .create_table(&TableDescriptor::new("idle", DIM))
            .unwrap();
        work(&store, table);
        // Twice: what was published is not counted again.
        store.publish_metrics();
        store.publish_metrics();
        let stats = store.stats();
        store.close_discarding();
        stats
    });
    let [used, idle] = &stats.tables[..] else {
        unreachable!("two tables")
    };
    assert!(used.wait(Wait::Flush).count > 0 && used.wait(Wait::Device).count > 0);
    for (cause, waits) in used.waits() {
        let of =
            |name, table| recorder.labelled(name, &[("table", table), ("cause", cause.name())]);
        assert_eq!(idle.wait(cause).count, 0);
        assert!(WAITS.iter().all(|name| of(name, "idle").is_none()));
        let [count, seconds, lengths] = WAITS.map(|name| of(name, "t"));
        if waits.count == 0 {
            assert_eq!((count, seconds, lengths), (None, None, None));
            continue;
        }
        assert_eq!(count, Some(Value::Counter(waits.count)), "{cause:?}");
        assert_eq!(
            seconds,
            Some(Value::Gauge(waits.us as f64 / 1e6)),
            "{cause:?}"
        );
        assert_eq!(lengths, Some(Value::Histogram(waits.count)), "{cause:?}");
    }
}

/// What each table does and holds is published under its name; together it is what the store does.
#[test]
fn the_figures_of_each_table_arrive_under_its_name_and_add_up() {
    let recorder = TestRecorder::default();
    let stats = metrics::with_local_recorder(&recorder, || {
        let (store, table) = create(&disk(), ROOT, true);
        work(&store, table);
        // Its caches are made anew, and count on.
        let before = store.stats().tables[0].clone();
        let other = store
            .create_table(&TableDescriptor::new("other", DIM))
            .unwrap();
        let after = store.stats().tables[0].clone();
        assert_eq!(after.rows_evicted, before.rows_evicted);
        train(&store, other, 0..500);
        store
            .put(other, &[1, 2, 2], PutRows::weights(&[0.5; 3 * DIM]))
            .unwrap();
        let (mut left, mut right) = (vec![0.0; DIM], vec![0.0; 2 * DIM]);
        let parts = &mut [
            PullPart::new(table, &[7], &mut left),
            PullPart::new(other, &[7, 7], &mut right),
        ];
        let lease = store.pull_many(parts).unwrap();
        right[0] = f32::NAN;
        let parts = [
            PushPart::new(table, Update::gradients(&left, 0.1)),
            PushPart::new(other, Update::gradients(&right, 0.1)),
        ];
        store.push_many(&lease, &parts).unwrap();
        lease.read_rows(&mut [0.0; 3 * 2 * DIM]).unwrap();
        // Twice: what was published is not counted again.
        store.publish_metrics();
        store.publish_metrics();
        let stats = store.stats();
        // The close publishes once more: what is leased then is leased yet.
        store.close_discarding();
        drop(lease);
        stats
    });
    let mut sums: BTreeMap<String, f64> = BTreeMap::new();
    for table in &stats.tables {
        for (field, number) in numbers(table) {
            let of = |name: String| recorder.labelled(&name, &[("table", &table.name)]);
            let found = of(format!("hps_table_{field}_total")).or(of(format!("hps_table_{field}")));
            let published = match found {
                Some(Value::Counter(count)) => count as f64,
                Some(Value::Gauge(value)) => value,
                other => unreachable!("{field} of {}: {other:?}", table.name),
            };
            assert_eq!(published, number, "{field} of {}", table.name);
            *sums.entry(field).or_default() += number;
        }
    }
    assert_eq!(sums.len(), 19);
    let totals = numbers(&stats);
    for (field, sum) in &sums {
        if let Some(total) = totals.get(field) {
            match field.as_str() {
                // What is free any of them can have; and memory is also taken by what is no row.
                "capacity_rows" => assert!(sum >= total, "{sum} {total}"),
                "cache_bytes" => assert!(sum <= total, "{sum} {total}"),
                _ => assert_eq!(sum, total, "{field}"),
            }
        }
    }
    let [one, other] = &stats.tables[..] else {
        unreachable!("two tables")
    };
    assert_eq!((one.name.as_str(), other.name.as_str()), ("t", "other"));
    assert_eq!((one.rows_pushed, other.rows_pushed), (50_001, 501));
    assert_eq!(
        (one.rows_put, other.rows_put, other.bytes_put),
        (0, 3, 24 * DIM as u64)
    );
    assert_eq!(other.bytes_pushed, 501 * 8 * DIM as u64);
    assert_eq!((one.non_finite, other.non_finite), (0, 1));
    assert_eq!((one.pinned_rows, other.pinned_rows), (1, 1));
    assert_eq!(other.rows_read, 500 + 2 + 2);
    assert!(
        one.rows_evicted > 0 && one.rows_flushed >= 50_000,
        "{one:?}"
    );
    assert!(one.unique_asked > one.unique_hits && one.hit_rate() < 1.0);
    assert_eq!((other.hit_rate(), other.unique_asked), (1.0, 1));
}

#[test]
fn the_counters_of_a_recorder_go_on_after_a_rollback() {
    let recorder = TestRecorder::default();
    metrics::with_local_recorder(&recorder, || {
        let count = |name: &str| recorder.value(name, ROOT, "writer").unwrap();
        let (store, table) = create(&disk(), ROOT, true);
        work(&store, table);
        let (before, known) = (store.stats(), store.checkpoints());
        assert_eq!(count("hps_rows_pushed_total"), Value::Counter(50_000));
        let store = store.rollback(known[known.len() - 1].id).unwrap();
        train(&store, table, 0..1000);
        let after = store.stats();
        // Twice: what was published is not counted again.
        store.publish_metrics();
        store.publish_metrics();
        assert_eq!((before.rows_pushed, after.rows_pushed), (50_000, 1000));
        assert_eq!(count("hps_rows_pushed_total"), Value::Counter(51_000));
        let read = Value::Counter(before.read_bytes + after.read_bytes);
        assert_eq!(count("hps_read_bytes_total"), read);
        assert_eq!(
            count("hps_dirty_rows"),
            Value::Gauge(after.dirty_rows as f64)
        );
        store.close_discarding();
    });
}

#[test]
fn stores_and_readers_have_series_of_their_own() {
    let recorder = TestRecorder::default();
    metrics::with_local_recorder(&recorder, || {
        let disk = disk();
        let (one, table) = create(&disk, "/one", true);
        let (other, other_table) = create(&disk, "/other", true);
        train(&one, table, 0..100);
        train(&other, other_table, 0..300);
        one.checkpoint(1, b"").unwrap();
        other.checkpoint(1, b"").unwrap();
        let reader = Store::open_read_only_on(disk.clone(), "/one".as_ref(), None, options(true));
        let reader = reader.unwrap();
        drop(reader.pull(table, &[1, 2, 3], &mut [0.0; 3 * DIM]).unwrap());
        reader.publish_metrics();
        let read = |store, mode| recorder.value("hps_rows_read_total", store, mode);
        assert_eq!(read("/one", "writer"), Some(Value::Counter(100)));
        assert_eq!(read("/one", "reader"), Some(Value::Counter(3)));
        assert_eq!(read("/other", "writer"), Some(Value::Counter(300)));
        assert_eq!(read("/other", "reader"), None);
        for store in [one, other, reader] {
            store.close().unwrap();
        }
    });
}

#[test]
fn an_open_store_publishes_by_itself_to_a_recorder_that_comes_later() {
    let (recorder, spans) = (TestRecorder::default(), Spans::default());
    tracing::subscriber::set_global_default(spans.clone()).unwrap();
    let disk = disk();
    let root = "/by-itself";
    let (store, table) = create(&disk, root, false);
    train(&store, table, 0..10_000);
    metrics::set_global_recorder(recorder.clone()).unwrap();
    let pushed = |mode| recorder.value("hps_rows_pushed_total", root, mode);
    until("counters of a writer", || {
        pushed("writer") == Some(Value::Counter(10_000))
    });
    assert!(recorder.described().contains_key("hps_dirty_rows"));
    store.checkpoint(77_777, b"").unwrap();
    let reader = Store::open_read_only_on(disk, root.as_ref(), None, options(false)).unwrap();
    until("counters of a reader", || {
        pushed("reader") == Some(Value::Counter(0))
    });
    reader.close().unwrap();
    train(&store, table, 0..10);
    store.close_discarding();
    assert_eq!(
        pushed("writer"),
        Some(Value::Counter(10_010)),
        "at the close"
    );

    // The span of a checkpoint goes on in its thread.
    let seen = spans.seen();
    let step = |s: &&Seen| s.name == "checkpoint" && s.values["step"] == "77777";
    let checkpoint = seen.iter().find(step).unwrap();
    assert_eq!(checkpoint.values["rows"], "10000");
    let inside = |s: &&Seen| s.parent.is_some_and(|p| step(&&seen[p]));
    let parts: Vec<&str> = seen
        .iter()
        .filter(inside)
        .map(|s| s.name.as_str())
        .collect();
    assert_eq!(parts, CHECKPOINT_PARTS);
}

/// Spans and events of a checkpoint that ends well.
const CHECKPOINT_PARTS: &[&str] = &[
    "cut",
    "drain",
    "sync",
    "meta",
    "manifest",
    "current",
    "the checkpoint is durable",
];

/// Everything that a subscriber sees of a store's life, with the numbers that it should say.
fn life() -> (Vec<Seen>, Stats, Stats) {
    let spans = Spans::default();
    let (before, after) = tracing::subscriber::with_default(spans.clone(), || {
        let disk = disk();
        let (store, table) = create(&disk, ROOT, true);
        work(&store, table);
        let before = store.stats();
        store.close().unwrap();
        let options = options(true).warm(true);
        let store = Store::open_on(disk, ROOT.as_ref(), options).unwrap();
        let after = store.stats();
        store.close().unwrap();
        (before, after)
    });
    (spans.seen(), before, after)
}

#[test]
fn spans_stand_in_each_other_and_say_what_was_done() {
    let (seen, before, after) = life();
    let value = |span: &Seen, field: &str| span.values[field].clone();
    let number = |span: &Seen, field: &str| value(span, field).parse::<u64>().unwrap();
    let all = |name: &str| -> Vec<&Seen> { seen.iter().filter(|s| s.name == name).collect() };
    let inside = |name: &str| -> Vec<&str> {
        let own = |s: &&Seen| s.parent.is_some_and(|p| seen[p].name == name);
        let own = seen.iter().filter(own);
        own.map(|s| s.name.as_str()).collect()
    };
    assert_eq!(inside("checkpoint"), CHECKPOINT_PARTS.repeat(2));

    let [made, opened] = all("open")[..] else {
        unreachable!("opened twice")
    };
    assert_eq!(
        (value(opened, "directory"), value(opened, "read_only")),
        (ROOT.to_owned(), "false".to_owned())
    );
    assert_eq!(
        (number(opened, "checkpoint"), number(opened, "step")),
        (2, 2)
    );
    assert_eq!(number(opened, "files"), after.files);
    assert_eq!(
        (number(opened, "index_keys"), after.index_keys),
        (30_000, 30_000)
    );
    assert!(!made.values.contains_key("checkpoint") && number(made, "index_keys") == 0);
    assert_eq!(inside("open"), ["recovery", "the store is open"].repeat(2));

    let parts = inside("recovery");
    let each = ["manifest_replay", "open_files", "current", "index_load"];
    assert_eq!(parts, each.repeat(2));
    let [first, again] = all("index_load")[..] else {
        unreachable!("two opens")
    };
    assert_eq!(number(first, "snapshot_entries"), 0);
    assert!(number(again, "snapshot_entries") > 0);
    assert!(number(again, "young_files") <= after.files);
    assert!(number(again, "young_entries") < 60_000);
    assert_eq!(number(all("open_files")[1], "files"), after.files);

    let [one, two] = all("checkpoint")[..] else {
        unreachable!("two checkpoints")
    };
    assert_eq!((number(one, "checkpoint"), number(one, "step")), (1, 1));
    assert_eq!((number(two, "checkpoint"), number(two, "step")), (2, 2));
    for checkpoint in [one, two] {
        assert!((1..=30_000).contains(&number(checkpoint, "rows")));
    }
    assert_eq!(number(two, "files"), after.files);
    assert_eq!(number(two, "bytes"), after.current_bytes);
    assert_eq!(number(all("meta")[0], "bytes"), 3);

    let compactions = all("compaction");
    let written: u64 = compactions.iter().map(|c| number(c, "output_bytes")).sum();
    assert_eq!(compactions.len() as u64, before.compactions);
    assert_eq!(written, before.compaction_written_bytes);
    let total = |field| compactions.iter().map(|c| number(c, field)).sum::<u64>();
    assert!(total("inputs") > total("outputs") && total("outputs") > 0);
    assert!(total("input_bytes") > written);

    for span in seen.iter().filter(|s| s.fields.contains(&"seconds")) {
        let seconds: f64 = value(span, "seconds").parse().unwrap();
        assert!(seconds >= 0.0 && span.level == tracing::Level::INFO);
    }
}

/// Rows of the table that begins with this line, as its cells.
fn table(head: &str) -> BTreeSet<Vec<String>> {
    let lines = DOCUMENT.lines().skip_while(|line| *line != head).skip(2);
    let rows = lines.take_while(|line| line.starts_with('|'));
    let cells = |line: &str| {
        let cells = line.trim_matches('|').split('|');
        cells.map(|cell| cell.trim().to_owned()).collect()
    };
    rows.map(cells).collect()
}

/// Fails with the rows as they should be.
fn compare(head: &str, code: &BTreeSet<Vec<String>>) {
    let found = table(head);
    let line = |cells: &Vec<String>| format!("| {} |", cells.join(" | "));
    let should: Vec<String> = code.iter().map(line).collect();
    assert!(found == *code, "{head}\n{}\n", should.join("\n"));
}

#[test]
fn the_document_lists_every_metric_as_it_arrives() {
    let recorder = TestRecorder::default();
    metrics::with_local_recorder(&recorder, || {
        let (store, _) = create(&disk(), ROOT, true);
        store.publish_metrics();
    });
    let rows = recorder.described().into_iter().map(|(name, described)| {
        let unit = match described.unit {
            None => "none",
            Some(metrics::Unit::Count) => "count",
            Some(metrics::Unit::Bytes) => "bytes",
            Some(metrics::Unit::Seconds) => "seconds",
            Some(other) => unreachable!("{other:?}"),
        };
        let cells = [&format!("`{name}`"), described.kind, unit, &described.text];
        cells.map(str::to_owned).to_vec()
    });
    compare("| metric | kind | unit | meaning |", &rows.collect());
}

#[test]
fn the_document_lists_every_span_as_it_is_seen() {
    let (seen, ..) = life();
    let mut spans: BTreeMap<&str, (&Seen, BTreeSet<String>)> = BTreeMap::new();
    for span in seen.iter().filter(|s| !s.is_event) {
        let parent = span.parent.map(|p| format!("`{}`", seen[p].name));
        let (_, parents) = spans
            .entry(&span.name)
            .or_insert_with(|| (span, BTreeSet::new()));
        parents.extend(parent);
    }
    let joined = |words: Vec<String>| {
        if words.is_empty() {
            "–".to_owned()
        } else {
            words.join(", ")
        }
    };
    let rows = spans.into_iter().map(|(name, (span, parents))| {
        vec![
            format!("`{name}`"),
            span.level.as_str().to_lowercase(),
            joined(parents.into_iter().collect()),
            joined(span.fields.iter().map(|f| format!("`{f}`")).collect()),
        ]
    });
    compare("| span | level | inside | fields |", &rows.collect());
    let replay = "open > recovery > manifest_replay";
    assert!(seen.iter().any(|s| path(&seen, s) == replay));
}

#[test]
fn a_checkpoint_that_fails_says_so_inside_its_span() {
    let spans = Spans::default();
    tracing::subscriber::with_default(spans.clone(), || {
        let sim = SimDisk::new(1);
        let disk = Io::of(sim.clone());
        let (store, table) = create(&disk, ROOT, true);
        train(&store, table, 0..10);
        sim.fail_at(sim.calls(), Fault::Error(5), true);
        store.checkpoint(1, b"").unwrap_err();
        store.close_discarding();
    });
    let seen = spans.seen();
    let error = |s: &&Seen| s.is_event && s.level == tracing::Level::ERROR;
    let errors: Vec<String> = seen.iter().filter(error).map(|s| path(&seen, s)).collect();
    let last = "checkpoint > a checkpoint failed; the last one stays in force";
    assert_eq!(errors.last().map(String::as_str), Some(last));
}
