//! How is a report shown, to people and to machines?

use std::io::{self, Write};

use hps::inspect::{Magnitudes, Report, Severity};
use serde_json::{Value, json};

use super::{Args, Outcome, repair};
use crate::cli::{count, size};

fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Leftover => "leftover",
        Severity::Cache => "cache",
        Severity::Damage => "damage",
    }
}

fn uuid(report: &Report) -> Option<String> {
    let bytes = report.store?;
    Some(bytes.iter().map(|b| format!("{b:02x}")).collect())
}

fn counts(report: &Report) -> [usize; 3] {
    [Severity::Damage, Severity::Cache, Severity::Leftover]
        .map(|s| report.findings.iter().filter(|f| f.severity == s).count())
}

fn magnitudes(values: &Magnitudes) -> Value {
    json!({
        "values": values.values,
        "nan": values.nan,
        "infinite": values.infinite,
        "absurd": values.absurd,
        "largest": values.largest,
        "norms": values.norms.to_vec(),
    })
}

/// One object.
pub(super) fn json(outcome: &Outcome) -> Value {
    let report = &outcome.report;
    let [damage, cache, leftovers] = counts(report);
    json!({
        "v": 1,
        "tool": "hps-fsck",
        "store": uuid(report),
        "open_elsewhere": report.open_elsewhere,
        "checkpoint": report.checkpoint,
        "checkpoints": report.checkpoints.iter().map(|c| json!({
            "id": c.id, "step": c.step, "unix_seconds": c.unix_seconds,
            "meta_bytes": c.meta_bytes, "files": c.files, "bytes": c.bytes,
        })).collect::<Vec<_>>(),
        "tables": report.tables.iter().map(|t| json!({
            "name": t.descriptor.name, "dim": t.descriptor.dim,
            "rows": t.rows, "tombstones": t.tombstones,
            "weights": magnitudes(&t.weights), "state": magnitudes(&t.state),
        })).collect::<Vec<_>>(),
        "files": report.files.iter().map(|f| json!({
            "number": f.number, "path": f.path, "bytes": f.bytes,
            "entries": f.entries, "live": f.live,
        })).collect::<Vec<_>>(),
        "bytes_read": report.bytes_read,
        "damage": damage, "cache": cache, "leftovers": leftovers,
        "findings": report.findings.iter().map(|f| json!({
            "severity": word(f.severity), "path": f.path, "offset": f.offset, "what": f.what,
        })).collect::<Vec<_>>(),
        "repair": outcome.mended.as_ref().map(repair::json),
        "digest": outcome.digest,
        "difference": outcome.difference.as_ref().map(|d| json!({
            "only_here": d.only_here, "only_there": d.only_there, "changed": d.changed,
            "largest": d.largest,
            "named": d.named.iter().map(|(table, key)| json!({"table": table, "key": key}))
                .collect::<Vec<_>>(),
        })),
    })
}

/// What a person reads.
pub(super) fn print(out: &mut dyn Write, args: &Args, outcome: &Outcome) -> io::Result<()> {
    let report = &outcome.report;
    let open = if report.open_elsewhere {
        ", open elsewhere"
    } else {
        ""
    };
    if let Some(uuid) = uuid(report) {
        writeln!(out, "store {uuid}{open}")?;
    }
    for c in &report.checkpoints {
        let mark = if report.checkpoint == Some(c.id) {
            "*"
        } else {
            " "
        };
        let (files, bytes, meta) = (c.files, size(c.bytes), size(c.meta_bytes));
        writeln!(
            out,
            "{mark} checkpoint {} of step {}: {files} files of {bytes}, meta {meta}",
            c.id, c.step
        )?;
    }
    if report.store.is_some() && report.checkpoints.is_empty() && report.worst().is_none() {
        writeln!(out, "  no checkpoint yet: the store is empty")?;
    }
    tables(out, args, report)?;
    let entries: u64 = report
        .files
        .iter()
        .filter(|f| f.live.is_some())
        .map(|f| f.entries)
        .sum();
    let live: u64 = report.files.iter().filter_map(|f| f.live).sum();
    if let Some(percent) = (live * 100).checked_div(entries) {
        writeln!(out, "  {percent} % of the entries of its files are live")?;
    }
    if let Some(digest) = &outcome.digest {
        writeln!(out, "digest {digest}")?;
    }
    if let Some(d) = &outcome.difference {
        writeln!(
            out,
            "differs: {} rows only here, {} only there, {} changed (by at most {})",
            count(d.only_here),
            count(d.only_there),
            count(d.changed),
            d.largest
        )?;
        for (table, key) in &d.named {
            writeln!(out, "  table {table}, key {key}")?;
        }
    }
    findings(out, report)?;
    match &outcome.mended {
        Some(mended) => repair::print(out, mended),
        None => Ok(()),
    }
}

fn tables(out: &mut dyn Write, args: &Args, report: &Report) -> io::Result<()> {
    for table in &report.tables {
        let (rows, tombstones) = (count(table.rows), count(table.tombstones));
        let name = &table.descriptor.name;
        writeln!(
            out,
            "  table {name}: {rows} rows, {tombstones} removed keys kept"
        )?;
        for (what, values) in [("weights", &table.weights), ("state", &table.state)] {
            if values.values == 0 {
                continue;
            }
            let wild = values.nan + values.infinite + values.absurd;
            let mark = if wild > 0 { "  <-- look at these" } else { "" };
            writeln!(
                out,
                "    {what}: largest {:.4e}, NaN {}, infinite {}, 1e9 and more {}{mark}",
                values.largest,
                count(values.nan),
                count(values.infinite),
                count(values.absurd)
            )?;
            if args.norms {
                norms(out, values)?;
            }
        }
    }
    Ok(())
}

fn norms(out: &mut dyn Write, values: &Magnitudes) -> io::Result<()> {
    const WIDTH: u64 = 40;
    let most = values.norms.iter().copied().max().unwrap_or(0).max(1);
    for (class, rows) in (-24..).zip(values.norms).filter(|(_, rows)| *rows > 0) {
        let bar = "#".repeat(usize::try_from(rows * WIDTH / most).unwrap_or(0).max(1));
        writeln!(
            out,
            "      norm from 2^{class:<3} {:>13} {bar}",
            count(rows)
        )?;
    }
    Ok(())
}

fn findings(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    for f in &report.findings {
        let path = f.path.display();
        match f.offset {
            Some(offset) => writeln!(
                out,
                "{}: {path} at byte {offset}: {}",
                word(f.severity),
                f.what
            )?,
            None => writeln!(out, "{}: {path}: {}", word(f.severity), f.what)?,
        }
    }
    let [damage, cache, leftovers] = counts(report);
    let verdict = match (damage, cache) {
        (0, 0) => String::from("whole"),
        (0, _) => String::from("nothing is lost: the index image is damaged, opening is slower"),
        _ => format!("DAMAGED in {damage} places"),
    };
    let rest = match leftovers {
        0 => String::new(),
        1 => String::from(" (1 leftover, removed at the next open)"),
        n => format!(" ({n} leftovers, removed at the next open)"),
    };
    let read = match report.bytes_read {
        0 => String::new(),
        bytes => format!(", {} read", size(bytes)),
    };
    writeln!(out, "{verdict}{rest}{read}")
}
