//! How is a plan, or what was done, shown to people and to machines?

use std::io::{self, Write};

use hps::{CompactReport, DropReport, Error};
use serde_json::{Value, json};

use super::{Line, Plan, TOOL};
use crate::cli::{BAD, count, numbers, of, size, visible};

/// Bytes, below zero too.
fn signed(bytes: i128) -> String {
    let amount = size(u64::try_from(bytes.unsigned_abs()).unwrap_or(u64::MAX));
    if bytes < 0 {
        format!("-{amount}")
    } else {
        amount
    }
}

/// A time as people say it.
fn age(seconds: Option<u64>) -> String {
    match seconds {
        None => String::from("?"),
        Some(s @ 0..120) => format!("{s} s"),
        Some(s @ 120..7200) => format!("{} min", s / 60),
        Some(s @ 7200..172_800) => format!("{} h", s / 3600),
        Some(s) => format!("{} d", s / 86400),
    }
}

fn live_percent(line: &Line) -> f64 {
    100.0 * (1.0 - line.file.stale_share())
}

/// JSON has no integers this wide; these are sums of file lengths.
fn plain(bytes: i128) -> i64 {
    i64::try_from(bytes).unwrap_or(if bytes < 0 { i64::MIN } else { i64::MAX })
}

/// A plan, or a dry run.
pub(super) fn plan_json(verb: &str, plan: &Plan) -> Value {
    let (files, bytes, now, later) = plan.chosen();
    json!({
        "v": 1,
        "tool": TOOL,
        "verb": verb,
        "dry_run": true,
        "checkpoints": plan.checkpoints.iter().map(|c| json!({
            "id": c.id.0, "step": c.step, "unix_seconds": c.unix_seconds,
        })).collect::<Vec<_>>(),
        "dropped": numbers(&plan.dropped),
        "freed_bytes": plan.freed_bytes,
        "pinned_files": plan.pinned.0,
        "pinned_bytes": plan.pinned.1,
        "files": plan.lines.iter().map(|l| json!({
            "number": l.file.number.0,
            "path": l.file.path,
            "bytes": l.file.bytes,
            "entries": l.file.entries(),
            "live_entries": l.file.live_entries,
            "live_percent": live_percent(l),
            "age_seconds": l.age_seconds,
            "checkpoints": numbers(&l.file.checkpoints),
            "chosen": l.chosen,
            "set_aside": l.file.set_aside,
            "gain_now": plain(l.gain_now),
            "gain_later": plain(l.gain_later),
        })).collect::<Vec<_>>(),
        "checked": plan.checked.is_some(),
        "bytes_read": plan.checked.as_ref().map_or(0, |c| c.bytes_read),
        "damaged": plan.checked.iter().flat_map(|c| &c.findings).map(|f| json!({
            "path": f.path, "offset": f.offset, "what": f.what,
        })).collect::<Vec<_>>(),
        "refused": plan.refused,
        "chosen_files": files,
        "bytes_to_move": bytes,
        "gain_now": plain(now),
        "gain_later": plain(later),
    })
}

/// A line for each file.
pub(super) fn table(out: &mut dyn Write, plan: &Plan) -> io::Result<()> {
    for c in &plan.checkpoints {
        writeln!(out, "checkpoint {} of step {}", c.id, c.step)?;
    }
    if plan.lines.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "{:>10} {:>9} {:>13} {:>6} {:>8} {:>7} {:>8} {:>9} {:>9}",
        "file", "bytes", "entries", "live", "age", "held by", "rewrite", "gain now", "later"
    )?;
    for line in &plan.lines {
        let file = &line.file;
        writeln!(
            out,
            "{:>10} {:>9} {:>13} {:>4.0} % {:>8} {:>7} {:>8} {:>9} {:>9}",
            file.number,
            size(file.bytes),
            count(file.entries()),
            live_percent(line),
            age(line.age_seconds),
            file.checkpoints.len(),
            if line.chosen { "yes" } else { "no" },
            signed(line.gain_now),
            signed(line.gain_later)
        )?;
    }
    for line in &plan.lines {
        if let Some(why) = &line.file.set_aside {
            writeln!(out, "file {} is left as it is: {why}", line.file.number)?;
        }
    }
    writeln!(
        out,
        "age: since the file was last written to; held by: retained checkpoints that need it"
    )
}

/// What reading the files has shown.
pub(super) fn damage_of(out: &mut dyn Write, plan: &Plan) -> io::Result<()> {
    let Some(checked) = &plan.checked else {
        return Ok(());
    };
    for f in &checked.findings {
        let at = f.offset.map_or(String::new(), |o| format!(" at byte {o}"));
        let (path, what) = (visible(&f.path.to_string_lossy()), visible(&f.what));
        writeln!(out, "{BAD}damage{BAD:#}: {path}{at}: {what}")?;
    }
    let (read, bytes) = (of(checked.files, "file"), size(checked.bytes_read));
    match checked.bad_files() {
        0 => writeln!(out, "checked: {read}, {bytes} read, no damage"),
        bad => writeln!(
            out,
            "checked: {read}, {bytes} read, damage in {}; a run that meets it leaves that file as it \
             is, `hps-fsck --repair` saves what verifies",
            count(bad)
        ),
    }
}

/// What a run would do.
pub(super) fn outlook(out: &mut dyn Write, plan: &Plan) -> io::Result<()> {
    if let Some(why) = &plan.refused {
        return writeln!(out, "no plan, the store does not open: {}", visible(why));
    }
    if plan.checkpoints.is_empty() {
        return writeln!(out, "no checkpoint yet: nothing to do");
    }
    let bytes: u64 = plan.lines.iter().map(|l| l.file.bytes).sum();
    let live: u64 = plan.lines.iter().map(|l| l.file.live_bytes).sum();
    let percent = (u128::from(live) * 100).checked_div(u128::from(bytes));
    writeln!(
        out,
        "{} of {}, {} % live",
        of(plan.lines.len() as u64, "file"),
        size(bytes),
        percent.unwrap_or(100)
    )?;
    let (files, moved, now, later) = plan.chosen();
    if files == 0 {
        writeln!(out, "no file is stale enough to be rewritten")?;
    } else {
        writeln!(
            out,
            "{} would be rewritten, {} read and written; gained: {} now, {} once older checkpoints \
             are dropped",
            count(files),
            size(moved),
            signed(now),
            signed(later)
        )?;
    }
    if plan.pinned.0 > 0 {
        let (files, bytes) = plan.pinned;
        writeln!(
            out,
            "needed by older checkpoints only (hps-compact gc): {} of {}",
            of(files, "file"),
            size(bytes)
        )?;
    }
    Ok(())
}

/// Checkpoints that a run would drop.
pub(super) fn would_drop(out: &mut dyn Write, plan: &Plan) -> io::Result<()> {
    if plan.dropped.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "would drop checkpoints {:?}: {} freed",
        numbers(&plan.dropped),
        size(plan.freed_bytes)
    )
}

/// Checkpoints that were dropped.
pub(super) fn dropped(out: &mut dyn Write, report: &DropReport) -> io::Result<()> {
    if !report.dropped.is_empty() {
        let freed = size(report.freed_bytes);
        writeln!(
            out,
            "dropped checkpoints {:?}: {freed} freed",
            numbers(&report.dropped)
        )?;
    }
    for id in &report.held {
        writeln!(out, "kept checkpoint {id}: a reader elsewhere has it open")?;
    }
    Ok(())
}

/// What `gc` did.
pub(super) fn collected(out: &mut dyn Write, report: &DropReport, dry: bool) -> io::Result<()> {
    if report.dropped.is_empty() && report.held.is_empty() {
        return writeln!(out, "nothing to do");
    }
    if dry {
        let freed = size(report.freed_bytes);
        return writeln!(
            out,
            "would drop checkpoints {:?}: {freed} freed",
            numbers(&report.dropped)
        );
    }
    dropped(out, report)
}

/// What `run` did.
pub(super) fn done(out: &mut dyn Write, report: &CompactReport) -> io::Result<()> {
    for error in &report.damaged {
        writeln!(out, "damage: {error}; the file is left as it is")?;
    }
    if report.files == 0 {
        let why = if report.cancelled {
            "stopped"
        } else {
            "nothing to do"
        };
        return writeln!(out, "{why}");
    }
    writeln!(
        out,
        "{} rewritten, {} read, {} written; {} on disk before, {} now",
        of(report.files, "file"),
        size(report.bytes_read),
        size(report.bytes_written),
        size(report.disk_bytes_before),
        size(report.disk_bytes_after)
    )?;
    if report.files_left > 0 {
        let why = if report.cancelled { "stopped: " } else { "" };
        writeln!(
            out,
            "{why}{} left for another run",
            of(report.files_left, "file")
        )?;
    }
    Ok(())
}

fn damage(error: &Error) -> Value {
    match error {
        Error::Corrupt { path, offset, what } => {
            json!({"path": path, "offset": offset, "what": what})
        }
        Error::Io { path, source, .. } => json!({"path": path, "what": source.to_string()}),
        other => json!({"what": other.to_string()}),
    }
}

/// What `run` did.
pub(super) fn run_json(report: &CompactReport, dropped: &DropReport) -> Value {
    json!({
        "v": 1,
        "tool": TOOL,
        "verb": "run",
        "dry_run": false,
        "dropped": numbers(&dropped.dropped),
        "held": numbers(&dropped.held),
        "freed_bytes": dropped.freed_bytes,
        "files": report.files,
        "bytes_read": report.bytes_read,
        "bytes_written": report.bytes_written,
        "disk_bytes_before": report.disk_bytes_before,
        "disk_bytes_after": report.disk_bytes_after,
        "files_left": report.files_left,
        "cancelled": report.cancelled,
        "durable": report.durable,
        "damaged": report.damaged.iter().map(damage).collect::<Vec<_>>(),
    })
}

/// What `gc` did, or would do.
pub(super) fn gc_json(report: &DropReport, dry_run: bool) -> Value {
    json!({
        "v": 1,
        "tool": TOOL,
        "verb": "gc",
        "dry_run": dry_run,
        "dropped": numbers(&report.dropped),
        "held": numbers(&report.held),
        "freed_bytes": report.freed_bytes,
    })
}
