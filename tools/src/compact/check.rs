//! Which files of a plan are damaged, or can't be read?
//!
//! - A compaction meets a bad sector only when it reads it; this reads every file of the last
//!   checkpoint, from one end to the other, as `hps-fsck` does.
//! - The store is held open by its reader meanwhile, where it opens: its files stay.

use std::path::{Path, PathBuf};

use anyhow::Result;
use hps::CheckpointId;
use hps::inspect::{Finding, Scope, Severity, inspect};

use crate::cli::{Interrupt, Meter, Show};

/// What was read, and what is wrong with it.
#[derive(Debug, Default)]
pub struct Checked {
    /// Parameter files that were read.
    pub files: u64,
    /// Bytes read of them.
    pub bytes_read: u64,
    /// Damage, and places that the device can't read; by file.
    pub findings: Vec<Finding>,
}

impl Checked {
    /// Files in which something was found.
    #[must_use]
    pub fn bad_files(&self) -> u64 {
        let mut paths: Vec<&PathBuf> = self.findings.iter().map(|f| &f.path).collect();
        paths.sort();
        paths.dedup();
        paths.len() as u64
    }
}

/// Reads every parameter file of a checkpoint; `None`: of the last one.
///
/// # Errors
/// As of an inspection; `Cancelled` when the user asks to end.
pub fn check(directory: &Path, checkpoint: Option<CheckpointId>, show: Show) -> Result<Checked> {
    let interrupt = Interrupt::listen()?;
    let mut meter = Meter::new(super::TOOL, show)?;
    let scope = Scope::new()
        .full(true)
        .checkpoint(checkpoint)
        .unreadable_is_damage(true)
        .rows_only(true);
    let looked = inspect(directory, scope, &mut |done, all| {
        meter.at(done, all);
        interrupt.flow()
    });
    meter.end();
    let report = looked?;
    let damage = |f: &Finding| f.severity == Severity::Damage;
    Ok(Checked {
        files: report.files.len() as u64,
        bytes_read: report.bytes_read,
        findings: report.findings.into_iter().filter(damage).collect(),
    })
}
