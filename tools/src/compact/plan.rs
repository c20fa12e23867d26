//! What would a compaction give back?
//!
//! - A store is looked at as of its last checkpoint, with a reader's lock; nothing is written.
//! - What a rewritten file takes is estimated by the share of its rows that are live.

use std::path::Path;
use std::time::SystemTime;

use anyhow::Result;
use hps::{CheckpointId, CheckpointInfo, CompactLimits, Error, FileInfo, FileNumber, Store};

use super::check::Checked;
use crate::store::open_read_only;

/// One parameter file of the current version.
#[derive(Debug)]
pub struct Line {
    /// What the store says.
    pub file: FileInfo,
    /// Seconds since it was last written to; `None` if the file system does not say.
    pub age_seconds: Option<u64>,
    /// Whether `run` would rewrite it.
    pub chosen: bool,
    /// Bytes that rewriting it gives back at once; below zero where an older checkpoint needs the
    /// file, and its live rows are there twice then.
    pub gain_now: i128,
    /// Bytes that it gives back once no older checkpoint needs the file.
    pub gain_later: i128,
}

/// What a plan says.
#[derive(Debug, Default)]
pub struct Plan {
    /// Retained checkpoints, oldest first.
    pub checkpoints: Vec<CheckpointInfo>,
    /// Those that are dropped before.
    pub dropped: Vec<CheckpointId>,
    /// Files of the current version, by number.
    pub lines: Vec<Line>,
    /// Files and bytes that only older checkpoints need.
    pub pinned: (u64, u64),
    /// The part of these bytes that goes with the checkpoints that are dropped.
    pub freed_bytes: u64,
    /// What reading the files has shown, if that was asked for.
    pub checked: Option<Checked>,
    /// Why there is no plan: the store does not open.
    pub refused: Option<String>,
}

impl Plan {
    /// Sums over the files to be rewritten: how many, what is read and written, what is gained now,
    /// and later.
    #[must_use]
    pub fn chosen(&self) -> (u64, u64, i128, i128) {
        let chosen = self.lines.iter().filter(|l| l.chosen);
        chosen.fold((0, 0, 0, 0), |(files, bytes, now, later), l| {
            (
                files + 1,
                bytes + l.file.bytes + l.file.live_bytes,
                now + l.gain_now,
                later + l.gain_later,
            )
        })
    }
}

/// All but the last `keep` checkpoints.
#[must_use]
pub fn beyond(checkpoints: &[CheckpointInfo], keep: u32) -> Vec<CheckpointId> {
    let keep = usize::try_from(keep).unwrap_or(usize::MAX);
    let surplus = checkpoints.len().saturating_sub(keep);
    checkpoints[..surplus].iter().map(|c| c.id).collect()
}

/// Looks at a store without writing; `None` for a store that has no checkpoint.
///
/// # Errors
/// What the store says.
pub fn read(directory: &Path) -> Result<Option<Store>, Error> {
    open_read_only(directory, None, super::options())
}

/// Plans the compaction of a store, after these checkpoints are dropped.
#[must_use]
pub fn plan(store: &Store, limits: &CompactLimits, dropped: Vec<CheckpointId>) -> Plan {
    let checkpoints = store.checkpoints();
    let chosen: Vec<FileNumber> = store
        .compaction_plan(limits)
        .iter()
        .map(|f| f.number)
        .collect();
    let last = checkpoints.last().map(|c| c.id);
    let mut plan = Plan {
        checkpoints,
        ..Plan::default()
    };
    for file in store.files() {
        let mut holders = file.checkpoints.iter().filter(|id| !dropped.contains(id));
        if !file.current {
            plan.pinned.0 += 1;
            plan.pinned.1 += file.bytes;
            if holders.next().is_none() {
                plan.freed_bytes += file.bytes;
            }
            continue;
        }
        let pinned = holders.any(|id| Some(*id) != last);
        let (bytes, live) = (i128::from(file.bytes), i128::from(file.live_bytes));
        plan.lines.push(Line {
            age_seconds: age(&file.path),
            chosen: chosen.contains(&file.number),
            gain_now: if pinned { -live } else { bytes - live },
            gain_later: bytes - live,
            file,
        });
    }
    plan.dropped = dropped;
    plan
}

fn age(path: &Path) -> Option<u64> {
    let written = std::fs::metadata(path).and_then(|m| m.modified()).ok()?;
    Some(
        SystemTime::now()
            .duration_since(written)
            .map_or(0, |d| d.as_secs()),
    )
}
