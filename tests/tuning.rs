//! Does docs/TUNING.md say what the code does?
//!
//! - Every option and field is in its table, with the default that the code has.
//! - Ranges of numbers are those that are accepted: both ends are, what lies beyond is not.

#![expect(clippy::unwrap_used, reason = "used by tests")]

use std::collections::BTreeMap;
use std::fmt::Debug;

use hps::{CreateOptions, Initialiser, RowMetadata, RuntimeOptions, TableDescriptor};

const DOCUMENT: &str = include_str!("../docs/TUNING.md");

/// What a table says of one option.
#[derive(Debug, PartialEq)]
struct Row {
    default: String,
    range: String,
}

/// The table whose first column has this title, by name.
fn table(document: &str, title: &str) -> BTreeMap<String, Row> {
    let head = format!("| {title} | default | range | effect |");
    let lines = document.lines().skip_while(|line| *line != head).skip(2);
    let rows = lines.take_while(|line| line.starts_with('|')).map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        assert_eq!(cells.len(), 6, "four columns: {line}");
        assert!(!cells[4].is_empty(), "an effect: {line}");
        let name = cells[1].trim_matches('`').to_owned();
        let row = Row {
            default: cells[2].to_owned(),
            range: cells[3].to_owned(),
        };
        (name, row)
    });
    rows.collect()
}

fn shown(value: impl Debug) -> String {
    format!("{value:?}")
}

/// The fields of a struct, as `{:#?}` shows them: a struct that may get more of them can't be taken
/// apart field by field here.
fn fields(of: impl Debug) -> Vec<String> {
    let shown = format!("{of:#?}");
    let own = |line: &str| Some(line.strip_prefix("    ")?.split_once(": ")?.0.to_owned());
    let names = shown.lines().filter_map(own);
    names.filter(|name| !name.starts_with(' ')).collect()
}

/// Fails unless exactly these fields are listed, in their order; "hyper.beta1" is of "hyper".
fn check_listed(fields: &[String], listed: &[(&'static str, String)]) {
    let of = |(name, _): &(&'static str, String)| name.split('.').next().unwrap().to_owned();
    let mut names: Vec<String> = listed.iter().map(of).collect();
    names.dedup();
    assert_eq!(names, fields);
}

/// Defaults as the document writes them.
fn option_defaults() -> Vec<(&'static str, String)> {
    let options = RuntimeOptions::new();
    let hyper = options.hyper;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    assert_eq!(
        options.threads,
        cores.min(8),
        "what the document says in words"
    );
    assert!(
        options.moved_directories.is_empty(),
        "what the document calls none"
    );
    assert!(options.tables.is_empty(), "what the document calls none");
    let listed = vec![
        ("cache_bytes", shown(options.cache_bytes)),
        ("shards", shown(options.shards)),
        ("threads", "cores, at most 8".to_owned()),
        ("io_depth", shown(options.io_depth)),
        ("io", shown(options.io)),
        ("policy", shown(options.policy)),
        ("file_bytes", shown(options.file_bytes)),
        ("flush_step_rows", shown(options.flush_step_rows)),
        ("space_bound", shown(options.space_bound)),
        ("compaction_threads", shown(options.compaction_threads)),
        ("open_files_max", shown(options.open_files_max)),
        ("disk_bytes_max", shown(options.disk_bytes_max)),
        ("retain_checkpoints", shown(options.retain_checkpoints)),
        ("inline", shown(options.inline)),
        ("warm", shown(options.warm)),
        ("non_finite", shown(options.non_finite)),
        ("hyper.momentum", hyper.momentum.to_string()),
        ("hyper.epsilon", hyper.epsilon.to_string()),
        ("hyper.beta1", hyper.beta1.to_string()),
        ("hyper.beta2", hyper.beta2.to_string()),
        ("hyper.ftrl_beta", shown(hyper.ftrl_beta)),
        ("hyper.lambda1", shown(hyper.lambda1)),
        ("hyper.lambda2", shown(hyper.lambda2)),
        ("tables", "none".to_owned()),
        ("moved_directories", "none".to_owned()),
    ];
    let mut fields = fields(&options);
    // For tests alone.
    fields.retain(|name| name != "thresholds");
    check_listed(&fields, &listed);
    let of_hyper = listed
        .iter()
        .filter_map(|(name, _)| name.strip_prefix("hyper."));
    assert_eq!(of_hyper.collect::<Vec<_>>(), self::fields(hyper));
    listed
}

/// As `option_defaults`, of a create.
fn create_defaults() -> Vec<(&'static str, String)> {
    let create = CreateOptions::new();
    assert!(
        create.data_directories.is_empty(),
        "what the document calls none"
    );
    let listed = vec![("data_directories", "none".to_owned())];
    check_listed(&fields(&create), &listed);
    listed
}

/// As `option_defaults`, of a table.
fn field_defaults() -> Vec<(&'static str, String)> {
    let table = TableDescriptor::new("t", 8);
    assert_eq!((table.name.as_str(), table.dim), ("t", 8));
    assert_eq!(table.metadata, RowMetadata::new());
    assert_eq!(table.metadata.columns(), 0, "what the document calls none");
    let initialiser = match table.initialiser {
        Initialiser::Uniform { low, high } => format!("Uniform {low} to {high}"),
        other => shown(other),
    };
    let listed = vec![
        ("name", "given".to_owned()),
        ("dim", "given".to_owned()),
        ("dtype", shown(table.dtype)),
        ("optimizer", shown(table.optimizer)),
        ("initialiser", initialiser),
        ("seed", table.seed.to_string()),
        ("accumulator", table.accumulator.to_string()),
        ("metadata", "none".to_owned()),
    ];
    check_listed(&fields(&table), &listed);
    listed
}

/// What of a document's defaults is not the code's.
fn wrong(document: &BTreeMap<String, Row>, code: &[(&str, String)]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, default) in code {
        match document.get(*name) {
            None => wrong.push(format!("{name} is not in the table")),
            Some(row) if row.default != *default => {
                let said = &row.default;
                wrong.push(format!(
                    "{name}: default {default}, the document says {said}"
                ));
            }
            Some(_) => {}
        }
    }
    let unknown = |name: &&String| code.iter().all(|(known, _)| *known != name.as_str());
    let unknown = document.keys().filter(unknown);
    wrong.extend(unknown.map(|name| format!("there is no {name}")));
    wrong
}

#[test]
fn every_option_is_documented_with_its_default() {
    let found = wrong(&table(DOCUMENT, "option"), &option_defaults());
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn every_option_of_a_create_is_documented_with_its_default() {
    let found = wrong(&table(DOCUMENT, "option of a create"), &create_defaults());
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn every_field_of_a_table_is_documented_with_its_default() {
    let found = wrong(&table(DOCUMENT, "field"), &field_defaults());
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn a_wrong_document_is_found() {
    let head = "| option | default | range | effect |\n|---|---|---|---|\n";
    let changed = DOCUMENT.replace("| `shards` | 4 |", "| `shards` | 5 |");
    let found = wrong(&table(&changed, "option"), &option_defaults());
    assert_eq!(found, ["shards: default 4, the document says 5"]);
    let one = format!("{head}| `new` | 1 | any | none |\n");
    let found = wrong(&table(&one, "option"), &option_defaults());
    assert_eq!(found.len(), option_defaults().len() + 1);
}

/// Sets a number; false for an option that is none.
fn set(options: &mut RuntimeOptions, name: &str, value: u64) -> bool {
    let count = usize::try_from(value).unwrap();
    match name {
        "cache_bytes" => options.cache_bytes = value,
        "shards" => options.shards = count,
        "threads" => options.threads = count,
        "io_depth" => options.io_depth = count,
        "file_bytes" => options.file_bytes = value,
        "flush_step_rows" => options.flush_step_rows = count,
        "compaction_threads" => options.compaction_threads = count,
        "open_files_max" => options.open_files_max = count,
        "disk_bytes_max" => options.disk_bytes_max = value,
        "retain_checkpoints" => options.retain_checkpoints = count,
        _ => return false,
    }
    true
}

fn accepted(name: &str, value: u64) -> bool {
    let mut options = RuntimeOptions::default();
    assert!(set(&mut options, name, value), "{name} is a number");
    options.validate().is_ok()
}

/// The ends of a range, as written: "1 to 256", "at least 1", "any".
fn ends(range: &str) -> (u64, u64) {
    if range == "any" {
        return (0, u64::MAX);
    }
    if let Some(low) = range.strip_prefix("at least ") {
        return (low.parse().unwrap(), u64::MAX);
    }
    let (low, high) = range.split_once(" to ").unwrap();
    (low.parse().unwrap(), high.parse().unwrap())
}

#[test]
fn documented_ranges_are_those_that_are_accepted() {
    let mut numbers = 0;
    for (name, row) in table(DOCUMENT, "option") {
        if !set(&mut RuntimeOptions::default(), &name, 1) {
            continue;
        }
        numbers += 1;
        let (low, high) = ends(&row.range);
        assert!(accepted(&name, low), "{name} = {low}");
        assert!(accepted(&name, high), "{name} = {high}");
        assert!(low == 0 || !accepted(&name, low - 1), "{name} below {low}");
        let above = high.checked_add(1);
        assert!(
            above.is_none_or(|v| !accepted(&name, v)),
            "{name} above {high}"
        );
    }
    assert_eq!(numbers, 10, "options that are numbers");
}

#[test]
fn the_documented_space_bound_is_what_is_accepted() {
    let rows = table(DOCUMENT, "option");
    let (low, high) = rows["space_bound"].range.split_once(" to ").unwrap();
    let (low, high): (f64, f64) = (low.parse().unwrap(), high.parse().unwrap());
    let accepted = |space_bound| {
        let options = RuntimeOptions::new().space_bound(space_bound);
        options.validate().is_ok()
    };
    assert!(accepted(low) && accepted(high));
    assert!(!accepted(low.next_down()) && !accepted(high.next_up()) && !accepted(f64::NAN));
}
