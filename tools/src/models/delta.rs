//! What do an export and an import of deltas have in common on the command line?

use std::io::{self, Write};
use std::time::Duration;

use anyhow::Result;
use hps::{CheckpointId, DeltaInfo};

use crate::cli::{GOOD, Usage, duration, of};

/// Refuses flags that are of other formats, each with whether it was given.
///
/// # Errors
/// `Usage` with the first that was given.
pub fn refuse_others(others: &[(&str, bool)]) -> Result<()> {
    match others.iter().find(|(_, is_given)| *is_given) {
        Some((name, _)) => {
            let why = format!("{name} is not of --format delta, which has all of a store");
            Err(Usage(why).into())
        }
        None => Ok(()),
    }
}

/// Says what was done with a delta.
///
/// # Errors
/// That of the writer.
pub fn tell(out: &mut dyn Write, done: &str, delta: &DeltaInfo, time: Duration) -> io::Result<()> {
    let span = match delta.since {
        CheckpointId::NONE => format!("everything up to checkpoint {}", delta.until),
        since => format!("checkpoint {since} to {}", delta.until),
    };
    writeln!(
        out,
        "{GOOD}{done}{GOOD:#} delta {} ({span} to step {}): {} and {} in {}",
        delta.sequence,
        delta.step,
        of(delta.rows, "row"),
        of(delta.removed, "removed key"),
        duration(time)
    )
}
