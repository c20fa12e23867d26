//! How is an export told, to people and to machines?

use std::io::{self, Write};

use serde_json::{Value, json};

use super::{Args, Outcome, TOOL};
use crate::cli::{GOOD, ODD, duration, of, size, visible};
use crate::models::Exchange;

/// What a person reads.
pub fn print(out: &mut dyn Write, args: &Args, outcome: &Outcome) -> io::Result<()> {
    let bytes = outcome.files.iter().map(|(_, bytes)| bytes).sum();
    writeln!(
        out,
        "{GOOD}exported{GOOD:#} {} of table {} (checkpoint {} of step {}): {} of {} in {}",
        of(outcome.written.rows, "row"),
        visible(args.table()),
        outcome.checkpoint.id,
        outcome.checkpoint.step,
        of(outcome.files.len() as u64, "file"),
        size(bytes),
        duration(outcome.time)
    )?;
    if let (Some(since), Some(removed)) = (args.since, outcome.removed) {
        let removed = of(removed, "removed key");
        writeln!(out, "changed since checkpoint {since}; {removed} beside")?;
    }
    if args.common.verbose {
        for (name, bytes) in &outcome.files {
            writeln!(out, "  {name}: {}", size(*bytes))?;
        }
    }
    if outcome.written.non_finite > 0 {
        let rows = of(outcome.written.non_finite, "row");
        writeln!(out, "{ODD}not finite{ODD:#}: {rows}, written as they are")?;
    }
    if args.format == Exchange::Deeprec && outcome.written.negative > 0 {
        let keys = of(outcome.written.negative, "key");
        writeln!(
            out,
            "{ODD}negative{ODD:#}: {keys} of 2^63 and more; DeepRec restores them into variables without partitions \
             alone, and leaves them out when it saves"
        )?;
    }
    if !outcome.lost.is_empty() {
        writeln!(
            out,
            "{ODD}left out{ODD:#}: {}{}",
            outcome.lost.join(", "),
            steps(outcome)
        )?;
    }
    Ok(())
}

/// The way back for Adam's step counts.
fn steps(outcome: &Outcome) -> String {
    match outcome.written.steps {
        Some((low, high)) if low == high && outcome.lost.iter().any(|name| name == "t") => {
            format!(" (t is {low} in every row: --adam-step {low} brings it back)")
        }
        Some((low, high)) if outcome.lost.iter().any(|name| name == "t") => format!(
            " (t is from {low} to {high}; an import gives all rows the one that --adam-step says)"
        ),
        _ => String::new(),
    }
}

/// One object.
#[must_use]
pub fn json(args: &Args, outcome: &Outcome) -> Value {
    let files = outcome
        .files
        .iter()
        .map(|(name, bytes)| json!({"name": name, "bytes": bytes}));
    let written = &outcome.written;
    json!({
        "v": 1,
        "tool": TOOL,
        "format": args.format.name(),
        "table": args.table(),
        "checkpoint": outcome.checkpoint.id.0,
        "step": outcome.checkpoint.step,
        "since": args.since.map(|id| id.0),
        "rows": written.rows,
        "removed": outcome.removed,
        "files": files.collect::<Vec<_>>(),
        "bytes": outcome.files.iter().map(|(_, bytes)| bytes).sum::<u64>(),
        "non_finite_rows": written.non_finite,
        "negative_keys": written.negative,
        "left_out": outcome.lost,
        "adam_steps": written.steps.map(|(low, high)| [low, high]),
        "seconds": outcome.time.as_secs_f64(),
    })
}
