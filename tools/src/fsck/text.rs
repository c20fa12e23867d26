//! How is a report shown, to people and to machines?
//!
//! - Names come from the disk: none of them can speak to the terminal, and one that is no UTF-8 is
//!   shown as well as it can be.
//! - The last line is the verdict; it says what was not looked at.

use std::io::{self, Write};
use std::path::Path;

use anstyle::Style;
use hps::inspect::{Finding, Report, Severity, ValueStats};
use hps::{Dtype, FORMAT_VERSION};
use serde_json::{Value, json};

use super::{Args, Outcome, repair};
use crate::cli::{BAD, GOOD, ODD, count, of, size, visible};

/// Leftovers that are named without `--verbose`.
const LEFTOVERS_NAMED: usize = 5;

fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Leftover => "leftover",
        Severity::Cache => "cache",
        Severity::Damage => "damage",
    }
}

fn style(severity: Severity) -> Style {
    match severity {
        Severity::Leftover => Style::new(),
        Severity::Cache => ODD,
        Severity::Damage => BAD,
    }
}

fn shown(path: &Path) -> String {
    visible(&path.to_string_lossy())
}

fn uuid(report: &Report) -> Option<String> {
    let bytes = report.store?;
    Some(bytes.iter().map(|b| format!("{b:02x}")).collect())
}

fn counts(report: &Report) -> [usize; 3] {
    [Severity::Damage, Severity::Cache, Severity::Leftover]
        .map(|s| report.findings.iter().filter(|f| f.severity == s).count())
}

fn magnitudes(values: &ValueStats) -> Value {
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
pub(super) fn json(args: &Args, outcome: &Outcome) -> Value {
    let report = &outcome.report;
    let [damage, cache, leftovers] = counts(report);
    json!({
        "v": 1,
        "tool": "hps-fsck",
        "store": uuid(report),
        "full": !args.quick,
        "open_elsewhere": report.open_elsewhere,
        "left_out": report.left_out,
        "format_version": report.format_version,
        "cursors": report.cursors.iter().map(|c| json!({
            "name": c.name, "checkpoint": c.checkpoint.0,
        })).collect::<Vec<_>>(),
        "checkpoint": report.checkpoint.map(|id| id.0),
        "checkpoints": report.checkpoints.iter().map(|c| json!({
            "id": c.id.0, "step": c.step, "unix_seconds": c.unix_seconds,
            "meta_bytes": c.meta_bytes, "files": c.files, "bytes": c.bytes,
        })).collect::<Vec<_>>(),
        "tables": report.tables.iter().map(|t| json!({
            "name": t.descriptor.name, "dim": t.descriptor.dim, "dtype": t.descriptor.dtype.name(),
            "rows": t.rows, "tombstones": t.tombstones,
            "weights": magnitudes(&t.weights), "state": magnitudes(&t.state),
        })).collect::<Vec<_>>(),
        "files": report.files.iter().map(|f| json!({
            "number": f.number.0, "path": f.path.to_string_lossy(), "bytes": f.bytes,
            "entries": f.entries, "live": f.live,
        })).collect::<Vec<_>>(),
        "snapshot": report.snapshot.iter().map(|part| json!({
            "number": part.number.0, "path": part.path.to_string_lossy(), "bytes": part.bytes,
            "directory": part.directory, "checkpoint": part.checkpoint.map(|id| id.0),
        })).collect::<Vec<_>>(),
        "missing_directories": report.missing_directories.iter().map(|m| json!({
            "directory": m.index, "path": m.path.to_string_lossy(), "empty": m.empty,
        })).collect::<Vec<_>>(),
        "bytes_read": report.bytes_read,
        "damage": damage, "cache": cache, "leftovers": leftovers,
        "findings": report.findings.iter().map(|f| json!({
            "severity": word(f.severity), "path": f.path.to_string_lossy(), "offset": f.offset,
            "what": f.what,
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
        ", open by a writer: checked as of its checkpoints"
    } else {
        ""
    };
    if let Some(uuid) = uuid(report) {
        writeln!(out, "store {uuid}{open}")?;
    }
    if let Some(old) = report.format_version.filter(|v| *v < FORMAT_VERSION) {
        writeln!(
            out,
            "  of format version {old}; its next checkpoint makes it version {FORMAT_VERSION}"
        )?;
    }
    for c in &report.checkpoints {
        let mark = if report.checkpoint == Some(c.id) {
            "*"
        } else {
            " "
        };
        let (files, bytes, meta) = (of(c.files, "file"), size(c.bytes), size(c.meta_bytes));
        writeln!(
            out,
            "{mark} checkpoint {} of step {}: {files} of {bytes}, meta {meta}",
            c.id, c.step
        )?;
    }
    for c in &report.cursors {
        let (name, id) = (&c.name, c.checkpoint);
        writeln!(
            out,
            "  reader {name:?} has everything up to checkpoint {id}"
        )?;
    }
    if report.left_out {
        let looked = match report.checkpoint {
            Some(id) => format!("looked at checkpoint {id}, without what was dropped meanwhile"),
            None => String::from("it changed faster than it could be looked at: try again"),
        };
        writeln!(out, "  the store is being written; {looked}")?;
    } else if report.store.is_some() && report.checkpoints.is_empty() && report.worst().is_none() {
        writeln!(out, "  no checkpoint yet: the store is empty")?;
    }
    tables(out, args, report)?;
    files(out, args, report)?;
    snapshot(out, args, report)?;
    compared(out, args, outcome)?;
    findings(out, args, report)?;
    verdict(out, args, report)?;
    match &outcome.mended {
        Some(mended) => repair::print(out, mended),
        None => Ok(()),
    }
}

/// How much of the parameter files is live, and each of them if that was asked for.
fn files(out: &mut dyn Write, args: &Args, report: &Report) -> io::Result<()> {
    if args.common.verbose {
        for f in &report.files {
            let live = f.live.and_then(|l| (l * 100).checked_div(f.entries));
            let live = live.map_or(String::new(), |percent| format!(", {percent} % live"));
            let (bytes, entries) = (size(f.bytes), count(f.entries));
            writeln!(
                out,
                "  file {}: {bytes}, {entries} entries{live}",
                shown(&f.path)
            )?;
        }
    }
    let counted = || report.files.iter().filter(|f| f.live.is_some());
    let entries: u64 = counted().map(|f| f.entries).sum();
    let live: u64 = counted().filter_map(|f| f.live).sum();
    if let Some(percent) = (live * 100).checked_div(entries) {
        let rest = match percent {
            100 => "",
            _ => ", the rest has newer copies",
        };
        writeln!(
            out,
            "  {percent} % of the entries of its files are live{rest}"
        )?;
    }
    Ok(())
}

/// How much of the index is on disk, and each part of it if that was asked for.
fn snapshot(out: &mut dyn Write, args: &Args, report: &Report) -> io::Result<()> {
    let parts = &report.snapshot;
    if args.common.verbose {
        for part in parts {
            let of = match part.checkpoint {
                Some(id) => format!("of checkpoint {id}"),
                None => String::from("can't be read"),
            };
            let keys = match part.directory {
                Some(directory) => format!("keys of data directory {directory}"),
                None => String::from("all keys"),
            };
            let (path, bytes) = (shown(&part.path), size(part.bytes));
            writeln!(out, "  index snapshot {path}: {bytes}, {keys}, {of}")?;
        }
    }
    if parts.is_empty() {
        return Ok(());
    }
    let bytes = parts.iter().map(|part| part.bytes).sum();
    let (parts, bytes) = (of(parts.len() as u64, "part"), size(bytes));
    writeln!(out, "  an index snapshot of {parts}, {bytes}")
}

/// The digest and the differences; that they are missing, where they were asked for.
fn compared(out: &mut dyn Write, args: &Args, outcome: &Outcome) -> io::Result<()> {
    if let Some(digest) = &outcome.digest {
        writeln!(out, "digest {digest}")?;
    } else if args.digest {
        writeln!(out, "no digest: not all rows can be read")?;
    }
    let Some(d) = &outcome.difference else {
        if args.diff.is_some() {
            writeln!(out, "not compared: not all rows can be read")?;
        }
        return Ok(());
    };
    if d.rows() == 0 {
        return writeln!(out, "no row differs");
    }
    writeln!(
        out,
        "{ODD}differs{ODD:#}: {} only here, {} only there, {} changed (by at most {})",
        of(d.only_here, "row"),
        count(d.only_there),
        count(d.changed),
        d.largest
    )?;
    for (table, key) in &d.named {
        writeln!(out, "  table {table}, key {key}")?;
    }
    let more = d.rows().saturating_sub(d.named.len() as u64);
    if more > 0 {
        writeln!(out, "  and {} more", count(more))?;
    }
    Ok(())
}

fn tables(out: &mut dyn Write, args: &Args, report: &Report) -> io::Result<()> {
    for table in &report.tables {
        let (rows, tombstones) = (of(table.rows, "row"), of(table.tombstones, "tombstone"));
        let name = visible(&table.descriptor.name);
        let of = match table.descriptor.dtype {
            Dtype::F32 => String::new(),
            dtype => format!(" of {}", dtype.name()),
        };
        writeln!(
            out,
            "  table {name}: {rows}{of}, {tombstones} of removed keys"
        )?;
        for (what, values) in [("weights", &table.weights), ("state", &table.state)] {
            if values.values == 0 {
                continue;
            }
            let wild = values.nan + values.infinite + values.absurd;
            let mark = if wild > 0 {
                format!("  {ODD}<-- look at these{ODD:#}")
            } else {
                String::new()
            };
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

fn norms(out: &mut dyn Write, values: &ValueStats) -> io::Result<()> {
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

/// Findings, worst first; a crash may leave very many files, which are all alike.
fn findings(out: &mut dyn Write, args: &Args, report: &Report) -> io::Result<()> {
    let mut leftovers = 0;
    for f in &report.findings {
        leftovers += usize::from(f.severity == Severity::Leftover);
        if leftovers > LEFTOVERS_NAMED && !args.common.verbose {
            continue;
        }
        let (style, word, path) = (style(f.severity), word(f.severity), shown(&f.path));
        let at = f.offset.map_or(String::new(), |o| format!(" at byte {o}"));
        let what = visible(&f.what);
        writeln!(out, "{style}{word}{style:#}: {path}{at}: {what}")?;
    }
    match leftovers.saturating_sub(LEFTOVERS_NAMED) {
        0 => Ok(()),
        _ if args.common.verbose => Ok(()),
        more => writeln!(out, "leftover: and {more} more, which --verbose names"),
    }
}

fn verdict(out: &mut dyn Write, args: &Args, report: &Report) -> io::Result<()> {
    let [damage, cache, leftovers] = counts(report);
    let (style, verdict) = match (damage, cache) {
        (0, 0) => (GOOD, String::from("whole")),
        (0, _) => {
            let spare = report
                .findings
                .iter()
                .filter(|f| f.severity == Severity::Cache);
            let is_copy = |f: &Finding| f.path.extension().is_some_and(|e| e == "copy");
            let (copies, snapshots): (Vec<_>, Vec<_>) = spare.partition(|f| is_copy(f));
            let mut said = Vec::new();
            if !snapshots.is_empty() {
                said.push("the index snapshot is damaged, opening is slower");
            }
            if !copies.is_empty() {
                said.push(
                    "the copy of the manifest is damaged, the next checkpoint after an open writes \
                     a new one",
                );
            }
            (ODD, format!("nothing is lost: {}", said.join("; ")))
        }
        _ => (BAD, format!("DAMAGED in {}", of(damage as u64, "place"))),
    };
    let rest = match leftovers {
        0 => String::new(),
        n => format!(
            " ({}, removed when a writer opens it)",
            of(n as u64, "leftover")
        ),
    };
    // STORE, CURRENT or the manifest: without it nothing else can be told from rubbish.
    let unseen = match damage {
        0 => "",
        _ if report.store.is_some() && !report.checkpoints.is_empty() => "",
        _ => ": what it leads to could not be looked at",
    };
    let read = match report.bytes_read {
        0 if args.quick && damage == 0 => {
            String::from(", as far as can be told without reading rows and keys")
        }
        0 => String::new(),
        bytes => format!(", {} read", size(bytes)),
    };
    writeln!(out, "{style}{verdict}{style:#}{unseen}{rest}{read}")?;
    if damage + cache == 0 || args.repair {
        return Ok(());
    }
    let directory = shown(&args.directory);
    for missing in &report.missing_directories {
        let (index, path) = (missing.index, shown(&missing.path));
        writeln!(
            out,
            "data directory {index}: if {path} is on a file system that is not mounted, mount it and \
             look again; if it has moved, put a symbolic link to it there; if it is lost for good, `hps-fsck --repair --without-directory {index} \
             {directory}` saves the rest"
        )?;
    }
    if !report.missing_directories.is_empty() {
        return Ok(());
    }
    if report.open_elsewhere {
        // A repair needs the store for itself, and a writer may yet replace what is damaged.
        return writeln!(
            out,
            "a writer has the store open: it can't be repaired now; close the writer, then look \
             again with `hps-fsck {directory}`"
        );
    }
    writeln!(out, "`hps-fsck --repair {directory}` saves what verifies")
}
