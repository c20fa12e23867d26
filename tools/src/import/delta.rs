//! How does a copy of a store take a delta?
//!
//! All checks are the store's: it takes the delta whole, or not at all.

use std::time::Instant;

use anyhow::Result;
use hps::{ArgumentError, CreateOptions, Error, RuntimeOptions, Store};
use serde_json::json;

use super::{Args, TOOL};
use crate::cli::{Exit, Interrupt, refuse_strange_owner, show, with_holder};
use crate::models::delta;

/// Applies it.
pub fn run(args: &Args) -> Result<Exit> {
    let since = Instant::now();
    let interrupt = Interrupt::listen()?;
    if args.store.is_dir() {
        refuse_strange_owner(&args.store, args.force)?;
    }
    // A copy retains what a store retains that nobody has asked otherwise.
    let options = || RuntimeOptions::new().cache_bytes(args.cache);
    let store = match Store::open(&args.store, options()) {
        Err(Error::InvalidArgument(ArgumentError::NotAStore { .. })) if args.create => {
            Store::open_or_create(&args.store, CreateOptions::new(), options(), &[])?.0
        }
        opened => opened.map_err(with_holder)?,
    };
    interrupt.check()?;
    let report = match store.apply_delta(&args.folder) {
        Ok(report) => report,
        Err(error) => {
            store.close_discarding();
            return Err(error.into());
        }
    };
    store.close()?;
    let (info, time) = (report.delta, since.elapsed());
    let value = args.json.then(|| {
        json!({
            "v": 1,
            "tool": TOOL,
            "format": args.format.name(),
            "is_new": report.is_new,
            "sequence": info.sequence,
            "since": info.since.0,
            "until": info.until.0,
            "step": info.step,
            "rows": info.rows,
            "removed": info.removed,
            "seconds": time.as_secs_f64(),
        })
    });
    show(&args.common, value, |out| {
        if !report.is_new {
            let sequence = info.sequence;
            return writeln!(out, "delta {sequence} was applied before: nothing to do");
        }
        delta::tell(out, "applied", &info, time)
    })?;
    Ok(Exit::Clean)
}
