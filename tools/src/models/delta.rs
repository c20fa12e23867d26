//! What do an export and an import say of a delta?

use std::io::{self, Write};
use std::time::Duration;

use hps::{CheckpointId, DeltaInfo};

use crate::cli::{GOOD, duration, of};

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
