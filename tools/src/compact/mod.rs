//! `hps-compact`: how small can a store be that no trainer has open?
//!
//! - Rows never change, and the last checkpoint stays what it is.
//! - `plan` and every dry run write nothing.
//! - Whatever ends the tool, the store opens at the same checkpoint afterwards.

mod args;
mod check;
mod plan;
mod text;

use std::path::Path;

use anyhow::Result;
use hps::{CheckpointId, CompactLimits, CompactReport, DropReport, Error, RuntimeOptions, Store};

pub use args::{Args, GcArgs, PlanArgs, RunArgs, Verb};
pub use check::Checked;
pub use plan::{Line, Plan};

use crate::cli::{self, Common, Exit, Interrupt, Meter, Usage, numbers, show, with_holder};

const TOOL: &str = "hps-compact";

/// How the tool opens a store: no threads that compact by themselves, no limit but the file
/// system's, files of 32 MiB.
fn options() -> RuntimeOptions {
    RuntimeOptions::new()
        .cache_bytes(256 << 20)
        .threads(1)
        .inline(true)
        .disk_bytes_max(u64::MAX)
}

/// Runs the tool.
///
/// # Errors
/// What kept it from its work: the exit code is that of [`crate::cli::exit_of`].
pub fn run(args: &Args) -> Result<Exit> {
    let common = &args.common;
    match &args.verb {
        Verb::Plan(args) => show_plan(common, args),
        Verb::Run(args) if args.dry_run => dry_run(common, args),
        Verb::Run(args) => compact(common, args),
        Verb::Gc(args) => collect(common, args),
    }
}

fn open(directory: &Path, force: bool) -> Result<Store> {
    if directory.is_dir() {
        cli::refuse_strange_owner(directory, force)?;
    }
    Store::open(directory, options()).map_err(with_holder)
}

fn show_plan(common: &Common, args: &PlanArgs) -> Result<Exit> {
    let opened = plan::read(&args.directory);
    let mut checked = None;
    if args.check && opened.as_ref().err().is_none_or(is_damage) {
        let last = opened.as_ref().ok().and_then(Option::as_ref);
        let last = last.and_then(Store::last_checkpoint).map(|c| c.id);
        checked = Some(check::check(&args.directory, last, common.show())?);
    }
    let bad = checked.as_ref().is_some_and(|c| !c.findings.is_empty());
    let mut plan = match opened {
        Ok(Some(store)) => plan::plan(&store, &args.choice.limits(None), Vec::new()),
        Ok(None) => Plan::default(),
        // What keeps the store from opening is what was looked for.
        Err(error) if bad => Plan {
            refused: Some(error.to_string()),
            ..Plan::default()
        },
        Err(error) => return Err(with_holder(error)),
    };
    plan.checked = checked;
    let json = args.json.then(|| text::plan_json("plan", &plan));
    show(common, json, |out| {
        text::table(out, &plan)?;
        text::damage_of(out, &plan)?;
        text::outlook(out, &plan)
    })?;
    Ok(if bad { Exit::Findings } else { Exit::Clean })
}

/// Whether an error may come from bytes that are damaged, or that the device can't read.
fn is_damage(error: &Error) -> bool {
    matches!(error, Error::Corrupt { .. } | Error::Io { .. })
}

fn dry_run(common: &Common, args: &RunArgs) -> Result<Exit> {
    let plan = match plan::read(&args.directory).map_err(with_holder)? {
        Some(store) => {
            let keep = args.keep_checkpoints.unwrap_or(u32::MAX);
            let dropped = plan::beyond(&store.checkpoints(), keep);
            plan::plan(&store, &args.choice.limits(None), dropped)
        }
        None => Plan::default(),
    };
    let json = args.json.then(|| text::plan_json("run", &plan));
    show(common, json, |out| {
        text::would_drop(out, &plan)?;
        text::outlook(out, &plan)
    })?;
    Ok(Exit::Clean)
}

fn compact(common: &Common, args: &RunArgs) -> Result<Exit> {
    let interrupt = Interrupt::listen()?;
    let mut meter = Meter::new(TOOL, common.show())?;
    let store = open(&args.directory, args.force)?;
    let mut dropped = DropReport::default();
    if let Some(keep) = args.keep_checkpoints
        && !interrupt.is_asked()
    {
        dropped = store.drop_checkpoints(&plan::beyond(&store.checkpoints(), keep))?;
    }
    let limits = args.choice.limits(args.io_limit);
    let done = if interrupt.is_asked() {
        let mut nothing = CompactReport::default();
        nothing.cancelled = true;
        nothing.files_left = store.compaction_plan(&limits).len() as u64;
        nothing.disk_bytes_before = store.files().iter().map(|f| f.bytes).sum();
        nothing.disk_bytes_after = nothing.disk_bytes_before;
        nothing.durable = true;
        Ok(nothing)
    } else {
        store.compact(&limits, |now| {
            meter.at(now.bytes_done, now.bytes_done + now.bytes_left);
            interrupt.flow()
        })
    };
    meter.end();
    let report = done.map_err(with_holder)?;
    store.close()?;
    let json = args.json.then(|| text::run_json(&report, &dropped));
    show(common, json, |out| {
        text::dropped(out, &dropped)?;
        text::done(out, &report)
    })?;
    Ok(match (report.damaged.is_empty(), report.cancelled) {
        (false, _) => Exit::Findings,
        // Asked to stop in the last group: there was nothing to leave out.
        (true, true) if report.files_left > 0 => Exit::Cancelled,
        _ => Exit::Clean,
    })
}

fn collect(common: &Common, args: &GcArgs) -> Result<Exit> {
    let wanted = |store: &Store| match args.keep_checkpoints {
        Some(keep) => plan::beyond(&store.checkpoints(), keep),
        None => args.checkpoint.clone(),
    };
    let store = match args.dry_run {
        true => plan::read(&args.directory).map_err(with_holder)?,
        false => Some(open(&args.directory, args.force)?),
    };
    let mut report = DropReport::default();
    if let Some(store) = store {
        let ids = wanted(&store);
        if let Some(why) = refused(&store, &ids) {
            return Err(Usage(why).into());
        }
        report = if args.dry_run {
            let plan = plan::plan(&store, &CompactLimits::default(), ids);
            let mut would = DropReport::default();
            would.dropped = plan.dropped;
            would.freed_bytes = plan.freed_bytes;
            would
        } else {
            store.drop_checkpoints(&ids)?
        };
        store.close()?;
    }
    let json = args.json.then(|| text::gc_json(&report, args.dry_run));
    show(common, json, |out| {
        text::collected(out, &report, args.dry_run)
    })?;
    Ok(Exit::Clean)
}

/// Why checkpoints can't be dropped.
fn refused(store: &Store, ids: &[CheckpointId]) -> Option<String> {
    let retained: Vec<CheckpointId> = store.checkpoints().iter().map(|c| c.id).collect();
    if let Some(id) = ids.iter().find(|id| !retained.contains(id)) {
        return Some(format!(
            "checkpoint {id} is not retained; those that are: {:?}",
            numbers(&retained)
        ));
    }
    let last = ids.iter().find(|id| Some(*id) == retained.last())?;
    Some(format!(
        "checkpoint {last} is the last one, which always stays"
    ))
}
