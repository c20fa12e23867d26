//! `Stats::prometheus`: the text keeps the grammar of the format, and says what `Stats` says.
//!
//! The fields come from `Stats` itself (its `Debug` form, and the text of `src/stats.rs`), so that
//! a field added without a metric fails here, as does a metric without a field.

use std::collections::{BTreeMap, BTreeSet};

use hps::{RuntimeOptions, Stats, Store, TableDescriptor, Update};

/// A metric of the text: its type and its only sample.
#[derive(Clone, Debug, PartialEq)]
struct Metric {
    kind: String,
    labels: BTreeMap<String, String>,
    value: String,
}

/// Reads the text by the rules of the format, and by ours: one sample a metric, no timestamps.
fn parse(text: &str) -> Result<BTreeMap<String, Metric>, String> {
    let mut found = BTreeMap::new();
    let body = text.strip_suffix('\n').ok_or("the last line has no end")?;
    let lines: Vec<&str> = body.split('\n').collect();
    for three in lines.chunks(3) {
        let [help, kind, sample] = three else {
            return Err(format!("a piece of a metric: {three:?}"));
        };
        let name = parse_help(help).ok_or_else(|| format!("not a HELP line: {help:?}"))?;
        let (named, kind) = parse_type(kind).ok_or_else(|| format!("not a TYPE line: {kind:?}"))?;
        let (sampled, labels, value) =
            parse_sample(sample).ok_or_else(|| format!("not a sample: {sample:?}"))?;
        if named != name || sampled != name {
            return Err(format!("{name}, {named} and {sampled} in one metric"));
        }
        if (kind == "counter") != name.ends_with("_total") {
            return Err(format!("{name} is a {kind}"));
        }
        let metric = Metric {
            kind: kind.to_owned(),
            labels,
            value,
        };
        if found.insert(name.to_owned(), metric).is_some() {
            return Err(format!("{name} twice"));
        }
    }
    Ok(found)
}

fn is_name(name: &str, colon: bool) -> bool {
    let letter = |c: char| c.is_ascii_alphabetic() || c == '_' || colon && c == ':';
    name.starts_with(letter) && name.chars().all(|c| letter(c) || c.is_ascii_digit())
}

fn parse_help(line: &str) -> Option<&str> {
    let (name, help) = line.strip_prefix("# HELP ")?.split_once(' ')?;
    let sentence = help.ends_with('.') && !help.contains('\\') && help.trim() == help;
    (is_name(name, true) && sentence).then_some(name)
}

fn parse_type(line: &str) -> Option<(&str, &str)> {
    let (name, kind) = line.strip_prefix("# TYPE ")?.split_once(' ')?;
    ["counter", "gauge"].contains(&kind).then_some((name, kind))
}

type Sample<'a> = (&'a str, BTreeMap<String, String>, String);

fn parse_sample(line: &str) -> Option<Sample<'_>> {
    let name_end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(name_end);
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = parse_labels(inside, &mut labels)?;
    }
    let value = rest.strip_prefix(' ')?;
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let number = match value.split_once('.') {
        Some((whole, decimals)) => digits(whole) && digits(decimals),
        None => digits(value),
    };
    (is_name(name, true) && number).then(|| (name, labels, value.to_owned()))
}

/// Reads `name="value",...}` and gives what follows it.
fn parse_labels<'a>(mut rest: &'a str, labels: &mut BTreeMap<String, String>) -> Option<&'a str> {
    loop {
        let (name, quoted) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut chars = quoted.char_indices();
        let end = loop {
            match chars.next()? {
                (end, '"') => break end,
                (_, '\\') => value.push(match chars.next()?.1 {
                    'n' => '\n',
                    c @ ('\\' | '"') => c,
                    _ => return None,
                }),
                (_, c) => value.push(c),
            }
        };
        if !is_name(name, false) || labels.insert(name.to_owned(), value).is_some() {
            return None;
        }
        rest = &quoted[end + 1..];
        match rest.strip_prefix(',') {
            Some(more) => rest = more,
            None => return rest.strip_prefix('}'),
        }
    }
}

/// Every field of a reading and its value, from the `Debug` form; but for those by table, which the text
/// has not.
fn fields(stats: &Stats) -> BTreeMap<String, String> {
    let mut stats = stats.clone();
    stats.tables.clear();
    let text = format!("{stats:#?}");
    let text = text.replace("    tables: [],\n", "");
    let line = |line: &str| {
        let field = line.strip_prefix("    ")?.strip_suffix(',')?;
        let (name, value) = field.split_once(": ")?;
        Some((name.to_owned(), value.to_owned()))
    };
    text.lines().filter_map(line).collect()
}

/// The fields that only grow while a store is open, and begin at 0: counters.
const COUNTED: &[&str] = &[
    "unique_asked",
    "unique_hits",
    "rows_read",
    "rows_pushed",
    "bytes_pushed",
    "non_finite",
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

/// The value of a metric as its field has it.
fn as_field(value: &str) -> Result<String, String> {
    let Some((whole, decimals)) = value.split_once('.') else {
        return Ok(value.to_owned());
    };
    if decimals.len() != 6 {
        return Err(format!("{value} is not to the microsecond"));
    }
    let digits = format!("{whole}{decimals}").parse::<u64>();
    let digits = digits.map_err(|error| format!("{value}: {error}"))?;
    Ok(digits.to_string())
}

/// Whether the text says each field once, with its value, and nothing else.
fn compare(text: &str, fields: &BTreeMap<String, String>) -> Result<(), String> {
    let mut metrics = parse(text)?;
    for (field, value) in fields {
        if field == "io_engine" {
            let info = metrics.remove("hps_info").ok_or("no hps_info")?;
            let engine = info.labels.get("io_engine").ok_or("no io_engine")?;
            let version = info.labels.get("version").ok_or("no version")?;
            assert_eq!(version, env!("CARGO_PKG_VERSION"));
            if format!("{engine:?}") != *value || info.value != "1" || info.labels.len() != 2 {
                return Err(format!("io_engine {value} stands as {info:?}"));
            }
            continue;
        }
        let metric = metrics.remove(&name_of(field));
        let metric = metric.ok_or_else(|| format!("field {field} has no metric"))?;
        let value = match value.as_str() {
            "true" => "1",
            "false" => "0",
            number => number,
        };
        let seconds = field.contains("_us");
        let got = as_field(&metric.value)?;
        if got != value || seconds != metric.value.contains('.') || !metric.labels.is_empty() {
            return Err(format!("field {field}: {value}, metric: {metric:?}"));
        }
    }
    match metrics.keys().next() {
        Some(name) => Err(format!("metric {name} has no field")),
        None => Ok(()),
    }
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
    let mut stats = Stats::default();
    stats.io_engine = "uring";
    stats.direct_io = true;
    fill!(stats: unique_asked unique_hits rows_read rows_pushed bytes_pushed non_finite reads
        read_bytes written_bytes compaction_written_bytes flushes compactions
        compaction_failures checkpoints stall_us_max stall_us cut_us_max leases lease_bytes pinned_rows resident_rows
        capacity_rows dirty_rows uncheckpointed_rows cache_bytes buffer_bytes
        queues plain_queues rings_lost queue_buffers registered_buffers index_bytes
        index_keys files open_files open_files_max files_reopened
        files_set_aside directories_paused current_bytes live_bytes pinned_bytes disk_bytes
        publisher_panics);
    stats
}

#[test]
fn every_field_stands_in_the_text_once_under_its_name() {
    let stats = filled();
    let fields = fields(&stats);
    let source = include_str!("../src/stats.rs");
    let (_, body) = source.split_once("pub struct Stats {").unwrap();
    let (body, _) = body.split_once("\n}").unwrap();
    let public: BTreeSet<&str> = body
        .lines()
        .filter_map(|line| line.trim().strip_prefix("pub ")?.split_once(": "))
        .map(|(name, _)| name)
        .collect();
    let numbers = public.into_iter().filter(|name| *name != "tables");
    assert!(numbers.eq(fields.keys().map(String::as_str)));
    let different: BTreeSet<&String> = fields.values().collect();
    assert_eq!(different.len(), fields.len(), "fill every field: {stats:?}");
    compare(&stats.prometheus(), &fields).unwrap();
}

#[test]
fn what_is_missing_double_or_wrong_is_seen() {
    let stats = filled();
    let fields = fields(&stats);
    let text = stats.prometheus();
    let without = |name: &str| -> String {
        let other = |line: &&str| !line.split([' ', '{']).any(|word| word == name);
        text.split_inclusive('\n').filter(other).collect()
    };
    let missing = compare(&without("hps_reads_total"), &fields).unwrap_err();
    assert_eq!(missing, "field reads has no metric");
    assert!(compare(&without("hps_info"), &fields).is_err());
    let mut more = fields.clone();
    more.insert("fsyncs".to_owned(), "7".to_owned());
    let missing = compare(&text, &more).unwrap_err();
    assert_eq!(missing, "field fsyncs has no metric");
    let mut fewer = fields.clone();
    fewer.remove("reads");
    let extra = compare(&text, &fewer).unwrap_err();
    assert_eq!(extra, "metric hps_reads_total has no field");
    assert!(compare(&text.repeat(2), &fields).is_err());
    let mut other = stats.clone();
    std::mem::swap(&mut other.reads, &mut other.flushes);
    assert!(compare(&other.prometheus(), &fields).is_err());
    for (from, to) in [
        (
            "# TYPE hps_reads_total counter",
            "# TYPE hps_reads_total gauge",
        ),
        ("# TYPE hps_files gauge", "# TYPE hps_files number"),
        ("# HELP hps_files ", "# HELP hps-files "),
        ("\nhps_files ", "\nhps_files  "),
        ("\nhps_files ", "\nhps_files -"),
        ("\nhps_files ", "\nhps_files 0x"),
        ("\nhps_files ", "\n\nhps_files "),
        ("\nhps_files ", "\nhps_files{} "),
        ("io_engine=\"", "io_engine=\"\\"),
        ("\",version", "\" version"),
    ] {
        assert!(text.contains(from), "{from}");
        let changed = text.replacen(from, to, 1);
        assert!(compare(&changed, &fields).is_err(), "{from:?} as {to:?}");
    }
    assert!(parse(text.trim_end()).is_err());
    compare(&text, &fields).unwrap();
}

#[test]
fn the_largest_values_are_exact_and_labels_are_escaped() {
    let mut stats = Stats::default();
    stats.io_engine = "a \"quoted\\\nname";
    stats.reads = u64::MAX;
    stats.stall_us = u64::MAX;
    stats.cut_us_max = 1;
    let text = stats.prometheus();
    let metrics = parse(&text).unwrap();
    assert_eq!(metrics["hps_info"].labels["io_engine"], stats.io_engine);
    assert_eq!(metrics["hps_reads_total"].value, "18446744073709551615");
    let stalled = &metrics["hps_stall_seconds_total"].value;
    assert_eq!(stalled, "18446744073709.551615");
    assert_eq!(metrics["hps_cut_max_seconds"].value, "0.000001");
    compare(&text, &fields(&stats)).unwrap();
}

#[test]
fn a_store_at_work_is_told_as_it_is_and_its_counters_never_fall() {
    let dir = tempfile::tempdir().unwrap();
    let options = RuntimeOptions {
        cache_bytes: 1 << 20,
        io_depth: 8,
        threads: 2,
        ..RuntimeOptions::default()
    };
    let store = Store::create(&dir.path().join("store"), options).unwrap();
    let dim = 64;
    let table = store.create_table(&TableDescriptor::new("t", dim)).unwrap();
    let keys: Vec<u64> = (0..10_000).collect();
    let mut out = vec![0.0; 500 * dim];
    for batch in keys.chunks(500) {
        let lease = store.pull(table, batch, &mut out).unwrap();
        store.push(&lease, Update::weights(&out)).unwrap();
    }
    let lease = store.pull(table, &keys[..500], &mut out).unwrap();
    store.push(&lease, Update::weights(&out)).unwrap();
    let before = store.stats();
    drop(lease);
    store.checkpoint(1, b"").unwrap();
    drop(store.pull(table, &keys[..500], &mut out).unwrap());
    let after = store.stats();
    store.close().unwrap();

    assert!(
        before.leases == 1 && before.pinned_rows == 500,
        "{before:?}"
    );
    assert!(before.reads > 0 && before.flushes > 0, "{before:?}");
    assert!(after.checkpoints == 1 && after.leases == 0, "{after:?}");
    for stats in [&before, &after] {
        compare(&stats.prometheus(), &fields(stats)).unwrap();
    }
    let [before, after] = [before, after].map(|stats| parse(&stats.prometheus()).unwrap());
    let mut fallen = BTreeSet::new();
    for (name, metric) in &before {
        let [was, is] = [metric, &after[name]].map(|m| m.value.parse::<f64>().unwrap());
        if metric.kind == "counter" {
            assert!(is >= was, "{name}: {was}, then {is}");
        } else if is < was {
            fallen.insert(name.as_str());
        }
    }
    for name in ["hps_leases", "hps_pinned_rows", "hps_dirty_rows"] {
        assert!(fallen.contains(name), "{name} fell, but not in {fallen:?}");
    }
}
