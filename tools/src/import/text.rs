//! How is an import told, to people and to machines?

use std::io::{self, Write};

use serde_json::{Value, json};

use super::{Args, NonFinite, Outcome, TOOL};
use crate::cli::{GOOD, ODD, count as thousands, duration, of, size, visible};

/// What a person reads.
pub fn print(out: &mut dyn Write, args: &Args, outcome: &Outcome) -> io::Result<()> {
    writeln!(
        out,
        "{GOOD}imported{GOOD:#} {} into table {} (dim {}, {:?}), which has {} keys: checkpoint {} of step {}; {} in {}",
        of(outcome.rows, "row"),
        visible(args.table()),
        outcome.descriptor.dim,
        outcome.descriptor.optimizer,
        thousands(outcome.keys),
        outcome.checkpoint.id,
        outcome.checkpoint.step,
        size(outcome.bytes),
        duration(outcome.time)
    )?;
    if !outcome.has_state && outcome.descriptor.row_f32s() > outcome.descriptor.dim {
        writeln!(
            out,
            "weights only: their state is that of keys never pushed"
        )?;
    }
    if outcome.has_slots && args.common.verbose {
        writeln!(out, "slot_id: as long as it should be; not kept")?;
    }
    if outcome.non_finite > 0 {
        let what = match args.non_finite {
            NonFinite::Skip => "left out",
            _ => "taken as they are",
        };
        let rows = of(outcome.non_finite, "row");
        writeln!(out, "{ODD}not finite{ODD:#}: {rows}, {what}")?;
    }
    if let Some(seen) = &outcome.noticed.text {
        if seen.without_embedx > 0 {
            let rows = of(seen.without_embedx, "row");
            writeln!(
                out,
                "without an embedx part: {rows}, whose other weights are 0"
            )?;
        }
        if seen.rounded > 0 {
            let rows = of(seen.rounded, "row");
            writeln!(out, "{ODD}rounded{ODD:#}: show or click of {rows}")?;
        }
    }
    if !outcome.without.is_empty() && outcome.rows > 0 {
        writeln!(
            out,
            "{ODD}not there{ODD:#}: {}, which the table has: 0 in all rows imported",
            outcome.without.join(", ")
        )?;
    }
    for (name, count) in &outcome.noticed.lost {
        let what = match name.split(' ').next() {
            Some("filtered") => "which have no values",
            Some("slot") => "which is no state of an optimizer that hps has",
            _ => "for which the table has no column",
        };
        writeln!(
            out,
            "{ODD}left out{ODD:#}: {name} ({}), {what}",
            thousands(*count)
        )?;
    }
    for (path, bytes) in &outcome.left {
        let path = visible(&path.to_string_lossy());
        writeln!(
            out,
            "{ODD}left out{ODD:#}: {path}: the last {}",
            of(*bytes, "byte")
        )?;
    }
    Ok(())
}

/// One object.
#[must_use]
pub fn json(args: &Args, outcome: &Outcome) -> Value {
    let left = outcome
        .left
        .iter()
        .map(|(path, bytes)| json!({"path": path.to_string_lossy(), "bytes": bytes}));
    json!({
        "v": 1,
        "tool": TOOL,
        "format": args.format.name(),
        "table": args.table(),
        "dim": outcome.descriptor.dim,
        "optimizer": format!("{:?}", outcome.descriptor.optimizer),
        "checkpoint": outcome.checkpoint.id.0,
        "step": outcome.checkpoint.step,
        "rows": outcome.rows,
        "keys": outcome.keys,
        "bytes": outcome.bytes,
        "with_state": outcome.has_state,
        "non_finite_rows": outcome.non_finite,
        "left_out": left.collect::<Vec<_>>(),
        "not_taken": outcome.noticed.lost,
        "not_there": outcome.without,
        "without_embedx": outcome.noticed.text.map(|seen| seen.without_embedx),
        "rounded": outcome.noticed.text.map(|seen| seen.rounded),
        "seconds": outcome.time.as_secs_f64(),
    })
}
