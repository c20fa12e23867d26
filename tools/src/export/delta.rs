//! How does a delta of the whole store leave?
//!
//! What is in it, and how a copy takes it, is the store's: docs/FORMAT.md.

use std::time::{Duration, Instant};

use anyhow::Result;
use hps::{CheckpointId, DeltaBase, DeltaInfo};
use serde_json::json;

use super::folder::Partial;
use super::{Args, TOOL};
use crate::cli::{Exit, Interrupt, show};
use crate::models::delta;
use crate::store::open_for_rows;

/// Writes it.
pub fn run(args: &Args) -> Result<Exit> {
    let since = Instant::now();
    let interrupt = Interrupt::listen()?;
    let (store, checkpoint) = open_for_rows(&args.store, args.checkpoint, "rows to export")?;
    let base = match (&args.after, args.since) {
        (Some(folder), _) => DeltaBase::Delta(folder),
        (None, Some(id)) if id > CheckpointId::NONE => DeltaBase::Checkpoint(id),
        _ => DeltaBase::Nothing,
    };
    let partial = Partial::new(&args.out)?;
    let info = store.write_delta(checkpoint.id, partial.path(), base)?;
    interrupt.check()?;
    partial.keep(&args.out)?;
    tell(args, &info, since.elapsed())?;
    Ok(Exit::Clean)
}

fn tell(args: &Args, info: &DeltaInfo, time: Duration) -> Result<()> {
    let value = args.json.then(|| {
        json!({
            "v": 1,
            "tool": TOOL,
            "format": args.format.name(),
            "sequence": info.sequence,
            "since": info.since.0,
            "checkpoint": info.until.0,
            "step": info.step,
            "rows": info.rows,
            "removed": info.removed,
            "seconds": time.as_secs_f64(),
        })
    });
    show(&args.common, value, |out| {
        delta::tell(out, "exported", info, time)
    })
}
