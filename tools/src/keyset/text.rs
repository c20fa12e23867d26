//! How is what was found shown, to people and to machines?

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::TOOL;
use super::args::{DiffArgs, Optimizer, StatArgs};
use super::extract::Extracted;
use super::missing::Missing;
use super::sets::{Difference, Made};
use super::split::Passes;
use super::stat::{Stat, Verified};
use crate::cli::{BAD, count, of, size, visible};

fn shown(path: &Path) -> String {
    visible(&path.to_string_lossy())
}

/// Of `extract`.
pub fn extracted_json(made: &Extracted) -> Value {
    let outputs = made.outputs.iter();
    json!({
        "v": 1,
        "tool": TOOL,
        "verb": "extract",
        "files": made.files,
        "bytes": made.bytes,
        "rows": made.counts.rows,
        "values": made.counts.values,
        "keys": made.outputs.iter().map(|(_, keys)| keys).sum::<u64>(),
        "runs": made.counts.runs,
        "levels": made.counts.levels,
        "outputs": outputs.map(|(path, keys)| json!({
            "path": path.to_string_lossy(), "keys": keys,
        })).collect::<Vec<_>>(),
    })
}

/// Of `extract`.
pub fn extracted(out: &mut dyn Write, made: &Extracted) -> io::Result<()> {
    for (path, keys) in &made.outputs {
        let empty = match keys {
            0 => " (empty: HugeCTR refuses such a file)",
            _ => "",
        };
        writeln!(out, "{}: {}{empty}", shown(path), of(*keys, "key"))?;
    }
    writeln!(
        out,
        "{} with {} in {}, {} read",
        of(made.counts.rows, "record"),
        of(made.counts.values, "value"),
        of(made.files as u64, "file"),
        size(made.bytes)
    )
}

/// A file that was written, if one was.
fn written_json(output: Option<&(PathBuf, u64)>) -> Value {
    match output {
        Some((path, keys)) => json!({"path": path.to_string_lossy(), "keys": keys}),
        None => Value::Null,
    }
}

fn written(out: &mut dyn Write, output: Option<&(PathBuf, u64)>) -> io::Result<()> {
    match output {
        Some((path, keys)) => writeln!(out, "{}: {} written", shown(path), of(*keys, "key")),
        None => Ok(()),
    }
}

/// Of `split`.
pub fn passes_json(made: &Passes) -> Value {
    let name = |path: &PathBuf| path.to_string_lossy().into_owned();
    let passes = made.passes.iter();
    json!({
        "v": 1,
        "tool": TOOL,
        "verb": "split",
        "keys_max": made.keys_max,
        "passes": passes.map(|pass| json!({
            "keyset": name(&pass.keyset),
            "data": pass.data.as_ref().map(name),
            "rows": pass.rows,
            "keys": pass.keys,
        })).collect::<Vec<_>>(),
        "list": made.list.as_ref().map(name),
    })
}

/// Of `split`.
pub fn passes(out: &mut dyn Write, made: &Passes) -> io::Result<()> {
    for pass in &made.passes {
        writeln!(
            out,
            "{}: {} of {}",
            shown(&pass.keyset),
            of(pass.keys, "key"),
            of(pass.rows, "record")
        )?;
    }
    if let Some(keys) = made.keys_max {
        writeln!(out, "at most {} fit", of(keys, "key"))?;
    }
    if let Some(list) = &made.list {
        writeln!(out, "{}: the list of the data's files", shown(list))?;
    }
    Ok(())
}

fn gib(bytes: u128) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

/// Of `stat`.
pub fn stats_json(args: &StatArgs, stats: &[Stat]) -> Value {
    let one = |stat: &Stat| {
        let facts = &stat.facts;
        let rows = args.dim.map(|dim| {
            let of = |optimizer: Optimizer| {
                let gib = gib(optimizer.row_bytes(stat.unique, dim));
                (optimizer.name().to_owned(), json!(gib))
            };
            Value::Object(Optimizer::ALL.into_iter().map(of).collect())
        });
        json!({
            "path": stat.path.to_string_lossy(),
            "dtype": facts.keys.name(),
            "keys": facts.count,
            "unique": stat.unique,
            "is_estimate": stat.is_estimate,
            "is_sorted": facts.falls.is_none(),
            "min": facts.min,
            "max": facts.max,
            "shared_with_previous": stat.shared,
            "gib": rows,
        })
    };
    let files: Vec<Value> = stats.iter().map(one).collect();
    json!({"v": 1, "tool": TOOL, "verb": "stat", "files": files})
}

/// Of `stat`.
pub fn stats(out: &mut dyn Write, args: &StatArgs, stats: &[Stat]) -> io::Result<()> {
    let mut before: Option<&Stat> = None;
    for stat in stats {
        let facts = &stat.facts;
        writeln!(
            out,
            "{}: {} of {}",
            shown(&stat.path),
            of(facts.count, "key"),
            facts.keys.name()
        )?;
        let about = if stat.is_estimate { "about " } else { "" };
        let order = match (facts.is_strict(), facts.falls) {
            (true, _) => "sorted and unique",
            (false, None) => "sorted, not unique",
            (false, Some(_)) => "not sorted",
        };
        writeln!(out, "  {order}, {about}{} different", count(stat.unique))?;
        writeln!(out, "  from {:#x} to {:#x}", facts.min, facts.max)?;
        if let Some(dim) = args.dim {
            let sizes = Optimizer::ALL.map(|optimizer| {
                let gib = gib(optimizer.row_bytes(stat.unique, dim));
                format!("{} {gib:.3}", optimizer.name())
            });
            writeln!(out, "  GiB of rows of {dim} weights: {}", sizes.join(", "))?;
        }
        if let (Some(shared), Some(before)) = (stat.shared, before) {
            let percent = 100.0 * shared as f64 / stat.unique.max(1) as f64;
            writeln!(
                out,
                "  {} also in {} ({percent:.1} %)",
                of(shared, "key"),
                shown(&before.path)
            )?;
        }
        before = Some(stat);
    }
    Ok(())
}

/// Of `merge` and `intersect`.
pub fn made_json(verb: &str, made: &Made) -> Value {
    let files = made.files.iter();
    json!({
        "v": 1,
        "tool": TOOL,
        "verb": verb,
        "files": files.map(|(path, keys)| json!({
            "path": path.to_string_lossy(), "unique": keys,
        })).collect::<Vec<_>>(),
        "output": written_json(Some(&made.output)),
    })
}

/// Of `merge` and `intersect`.
pub fn made(out: &mut dyn Write, made: &Made) -> io::Result<()> {
    for (path, keys) in &made.files {
        writeln!(out, "{}: {}", shown(path), of(*keys, "different key"))?;
    }
    written(out, Some(&made.output))
}

/// Of `diff`.
pub fn difference_json(found: &Difference) -> Value {
    json!({
        "v": 1,
        "tool": TOOL,
        "verb": "diff",
        "only_first": found.only_first,
        "only_second": found.only_second,
        "both": found.both,
        "output": written_json(found.output.as_ref()),
    })
}

/// Of `diff`.
pub fn difference(out: &mut dyn Write, args: &DiffArgs, found: &Difference) -> io::Result<()> {
    writeln!(out, "{} in both", of(found.both, "key"))?;
    writeln!(
        out,
        "{} only in {}",
        of(found.only_first, "key"),
        shown(&args.first)
    )?;
    writeln!(
        out,
        "{} only in {}",
        of(found.only_second, "key"),
        shown(&args.second)
    )?;
    written(out, found.output.as_ref())
}

/// Of `verify`.
pub fn verified_json(found: &Verified) -> Value {
    json!({
        "v": 1,
        "tool": TOOL,
        "verb": "verify",
        "findings": found.findings.iter().map(|(path, what)| json!({
            "path": path.to_string_lossy(), "what": what,
        })).collect::<Vec<_>>(),
        "good": found.good.iter().map(|(path, keys)| json!({
            "path": path.to_string_lossy(), "keys": keys,
        })).collect::<Vec<_>>(),
    })
}

/// Of `verify`.
pub fn verified(out: &mut dyn Write, found: &Verified) -> io::Result<()> {
    for (path, what) in &found.findings {
        writeln!(out, "{BAD}bad{BAD:#}: {}: {}", shown(path), visible(what))?;
    }
    for (path, keys) in &found.good {
        writeln!(
            out,
            "{}: {}, sorted and unique",
            shown(path),
            of(*keys, "key")
        )?;
    }
    Ok(())
}

/// Of `missing`.
pub fn missing_json(found: &Missing) -> Value {
    json!({
        "v": 1,
        "tool": TOOL,
        "verb": "missing",
        "table": found.table,
        "keys": found.keys,
        "missing": found.missing,
        "first": found.named,
        "output": written_json(found.output.as_ref()),
    })
}

/// Of `missing`.
pub fn missing(out: &mut dyn Write, found: &Missing) -> io::Result<()> {
    let table = visible(&found.table);
    writeln!(
        out,
        "table {table}: {} of {} missing",
        count(found.missing),
        of(found.keys, "key")
    )?;
    for key in &found.named {
        writeln!(out, "  {key}")?;
    }
    let more = found.missing - found.named.len() as u64;
    if more > 0 {
        writeln!(out, "  and {} more", count(more))?;
    }
    written(out, found.output.as_ref())
}
