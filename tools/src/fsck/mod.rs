//! `hps-fsck`: is a store on disk whole?
//!
//! - Nothing is written, whatever is found, but with `--repair`: then beside the store.
//! - A store that a trainer has open is checked as of its retained checkpoints.

mod args;
mod compare;
mod repair;
mod text;

use anyhow::{Result, bail};
use hps::inspect::{Report, Scope, Severity, inspect};

use crate::cli::{Exit, Interrupt, Meter, show};
pub use args::Args;

/// What a run found.
#[derive(Debug)]
pub struct Outcome {
    /// The inspection.
    pub report: Report,
    /// Digest of the checkpoint's rows.
    pub digest: Option<String>,
    /// Differences from another store.
    pub difference: Option<compare::Difference>,
    /// The repair, if there was one.
    pub mended: Option<repair::Mended>,
}

/// Runs the tool.
///
/// # Errors
/// What kept it from looking: the exit code is that of [`crate::cli::exit_of`].
pub fn run(args: &Args) -> Result<Exit> {
    let interrupt = Interrupt::listen()?;
    let mut meter = Meter::new("hps-fsck", args.common.show())?;
    let scope = Scope::new()
        .full(!args.quick)
        .checkpoint(args.checkpoint)
        // Named with its place, like damage; everything else is looked at all the same.
        .unreadable_is_damage(true);
    let (report, mended) = if args.repair {
        repair::run(args, &mut meter, &interrupt)?
    } else {
        let looked = inspect(&args.directory, scope, &mut |done, all| {
            meter.at(done, all);
            interrupt.flow()
        });
        meter.end();
        (looked?, None)
    };
    let damaged = report.worst() >= Some(Severity::Cache);
    let mut outcome = Outcome {
        report,
        digest: None,
        difference: None,
        mended,
    };
    let lost = outcome.report.worst() >= Some(Severity::Damage);
    let compares = args.digest || args.diff.is_some();
    if compares && !lost && outcome.report.checkpoint.is_none() {
        let directory = args.directory.display();
        bail!("{directory}: no checkpoint yet: there are no rows to digest or to compare");
    }
    if let Some(checkpoint) = outcome.report.checkpoint.filter(|_| !lost) {
        if args.digest {
            outcome.digest = Some(compare::digest(&args.directory, checkpoint, &interrupt)?);
        }
        if let Some(other) = &args.diff {
            outcome.difference = Some(compare::diff(
                &args.directory,
                checkpoint,
                other,
                &interrupt,
            )?);
        }
    }
    let json = args.json.then(|| text::json(args, &outcome));
    show(&args.common, json, |out| text::print(out, args, &outcome))?;
    let differs = outcome.difference.as_ref().is_some_and(|d| d.rows() > 0);
    if let Some(mended) = &outcome.mended {
        let whole = mended.lost_nothing();
        return Ok(if whole { Exit::Changed } else { Exit::Findings });
    }
    Ok(match (damaged, differs) {
        (true, _) => Exit::Findings,
        (false, true) => Exit::Changed,
        (false, false) => Exit::Clean,
    })
}
