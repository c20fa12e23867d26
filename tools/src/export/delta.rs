//! How does a delta of the whole store leave?
//!
//! What is in it, and how a copy takes it, is the store's: docs/FORMAT.md.

use std::time::{Duration, Instant};

use anyhow::Result;
use hps::{CheckpointId, DeltaBase, DeltaInfo};
use serde_json::json;

use super::folder::Partial;
use super::{Args, TOOL};
use crate::cli::{Exit, GOOD, Interrupt, Usage, duration, of, show};
use crate::models::refuse_remote;
use crate::store::open_for_rows;

/// Writes it.
pub fn run(args: &Args) -> Result<Exit> {
    let since = Instant::now();
    check(args)?;
    let interrupt = Interrupt::listen()?;
    let (store, checkpoint) = open_for_rows(&args.store, args.checkpoint, "rows to export")?;
    let base = match (&args.after, args.since) {
        (Some(folder), _) => DeltaBase::Delta(folder),
        (None, Some(id)) if id > CheckpointId::NONE => DeltaBase::Checkpoint(id),
        _ => DeltaBase::Nothing,
    };
    let partial = Partial::new(&args.out)?;
    let delta = store.write_delta(checkpoint.id, partial.path(), base)?;
    interrupt.check()?;
    partial.keep(&args.out)?;
    tell(args, &delta, since.elapsed())?;
    Ok(Exit::Clean)
}

fn check(args: &Args) -> Result<()> {
    refuse_remote(&args.store)?;
    refuse_remote(&args.out)?;
    args.after.as_deref().map_or(Ok(()), refuse_remote)?;
    let others = [
        ("--table", args.table.is_some()),
        ("--weights-only", args.weights_only),
        ("--lr", args.lr.is_some()),
        ("--localized", args.localized),
        ("--threads", args.threads.is_some()),
    ];
    match others.iter().find(|(_, is_given)| *is_given) {
        Some((name, _)) => {
            let why = format!("{name} is not of --format delta, which has all of the store");
            Err(Usage(why).into())
        }
        None => Ok(()),
    }
}

fn tell(args: &Args, delta: &DeltaInfo, time: Duration) -> Result<()> {
    let value = args.json.then(|| {
        json!({
            "v": 1,
            "tool": TOOL,
            "format": args.format.name(),
            "sequence": delta.sequence,
            "since": delta.since.0,
            "checkpoint": delta.until.0,
            "step": delta.step,
            "rows": delta.rows,
            "removed": delta.removed,
            "seconds": time.as_secs_f64(),
        })
    });
    show(&args.common, value, |out| {
        let rows = of(delta.rows, "row");
        let removed = of(delta.removed, "removed key");
        writeln!(
            out,
            "{GOOD}exported{GOOD:#} delta {} ({} to step {}): {rows} and {removed} in {}",
            delta.sequence,
            span(delta),
            delta.step,
            duration(time)
        )
    })
}

/// The checkpoints between which it leads.
pub fn span(delta: &DeltaInfo) -> String {
    match delta.since {
        CheckpointId::NONE => format!("everything up to checkpoint {}", delta.until),
        since => format!("checkpoint {since} to {}", delta.until),
    }
}
