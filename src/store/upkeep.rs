//! How is a store kept small where nobody trains, or beside somebody who does?
//!
//! Three public calls for operators: what files there are, a compaction with limits, and dropping
//! old checkpoints.
//!
//! Invariants:
//! - Rows never change. The last checkpoint keeps its id, step and meta.
//! - Without changes since the last checkpoint the work is durable when the call returns, and most
//!   of it before (docs/decisions/0014); else with the next checkpoint.
//! - A file that is damaged or can't be read is named and left as it is; the others are compacted.
//! - A data directory that can't be written is left; the others are compacted.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Store;
use super::compact::Outcome;
use super::engine::Engine;
use super::pace::{Job, Pace};
use crate::error::{Error, Invalid, Result};
use crate::ssd::commit::Captured;
use crate::ssd::compaction::{Candidate, choose_stale, is_stale};

/// Work becomes durable after this time, or [`CompactLimits::commit_bytes`].
const COMMIT_EVERY: Duration = Duration::from_secs(2);
/// A new manifest and its copy are worth so many times the size of one of work.
const COMMIT_WORTH: u64 = 32;

/// A parameter file.
#[derive(Clone, Debug, PartialEq)]
pub struct FileInfo {
    /// Its number; greater is younger.
    pub number: u64,
    /// Where it is.
    pub path: PathBuf,
    /// Index of its data directory.
    pub directory: u32,
    /// Its length.
    pub bytes: u64,
    /// Rows in it.
    pub rows: u64,
    /// Removed keys that it tells of.
    pub tombstones: u64,
    /// Whether it is part of the current version; else only old checkpoints need it.
    pub current: bool,
    /// Rows and removed keys in it with no newer copy; 0 for a file that is not current.
    pub live_entries: u64,
    /// The share of its bytes that these stand for: what a compaction writes for it.
    pub live_bytes: u64,
    /// The retained checkpoints that need it, oldest first.
    pub checkpoints: Vec<u64>,
    /// Why no compaction takes it any more, until the store is opened anew: it is damaged, or the
    /// device can't read it. As text.
    pub set_aside: Option<String>,
}

impl FileInfo {
    /// Rows and removed keys.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.rows + self.tombstones
    }

    /// The part of it, from 0 to 1, that has newer copies elsewhere.
    #[must_use]
    pub fn stale_share(&self) -> f64 {
        1.0 - self.live_entries as f64 / self.entries().max(1) as f64
    }
}

/// What a compaction may do: see [`Store::compact_files`].
#[derive(Clone, Debug, PartialEq)]
pub struct CompactLimits {
    /// Files are rewritten that are stale by at least this share, 0 to 1. Default 0.5: afterwards
    /// the files of the current version are at most twice as large as its live rows.
    pub stale_share: f64,
    /// No group of files is begun after so many bytes were read and written. Default: no limit.
    pub bytes_max: Option<u64>,
    /// Bytes read and written per second, on average. Default: no limit. A low one makes groups of
    /// fewer files: one takes about two seconds, if it has more than one file.
    pub bytes_per_second: Option<u64>,
    /// Work becomes durable after so many bytes read and written (or two seconds), as long as this
    /// is worth a new manifest. A crash loses at most this work, never data. Default 256 MiB.
    pub commit_bytes: u64,
}

impl Default for CompactLimits {
    fn default() -> CompactLimits {
        CompactLimits {
            stale_share: 0.5,
            bytes_max: None,
            bytes_per_second: None,
            commit_bytes: 256 << 20,
        }
    }
}

impl CompactLimits {
    fn validate(&self) -> Result<()> {
        if (0.0..=1.0).contains(&self.stale_share) {
            return Ok(());
        }
        Err(Error::InvalidArgument(Invalid::Option {
            name: "stale_share",
            value: self.stale_share.to_string(),
            why: String::from("a share is from 0 to 1"),
        }))
    }
}

/// How far a compaction is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactProgress {
    /// Files rewritten.
    pub files_done: u64,
    /// Files left to be rewritten.
    pub files_left: u64,
    /// Bytes read and written.
    pub bytes_done: u64,
    /// About the bytes left to be read and written.
    pub bytes_left: u64,
}

/// What a compaction did.
#[derive(Debug, Default)]
pub struct CompactReport {
    /// Files rewritten.
    pub files: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Bytes of parameter files before, those that only old checkpoints need included.
    pub disk_bytes_before: u64,
    /// The same afterwards.
    pub disk_bytes_after: u64,
    /// Files left that are stale enough.
    pub files_left: u64,
    /// Whether the caller broke it off.
    pub cancelled: bool,
    /// Whether the work survives a crash; false when rows changed since the last checkpoint, so
    /// that it does with the next one.
    pub durable: bool,
    /// Files that are damaged or can't be read, with the first damage in each; they are as they were.
    pub damaged: Vec<Error>,
}

/// What became of checkpoints that were to be dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DropReport {
    /// Dropped, in rising order.
    pub dropped: Vec<u64>,
    /// Kept, because a reader in another process has them open.
    pub held: Vec<u64>,
    /// Bytes of parameter files that were unlinked.
    pub freed_bytes: u64,
}

impl Store {
    /// The parameter files, by number: those of the current version, and those that only older
    /// retained checkpoints need. For a store opened read-only, "current" is the checkpoint that
    /// it was opened at.
    ///
    /// # Cost
    /// No I/O.
    #[must_use]
    pub fn files(&self) -> Vec<FileInfo> {
        if self.engine.check_process().is_err() {
            return Vec::new();
        }
        let versions = self.engine.ssd.versions();
        let info = |state: &crate::ssd::version::FileState| {
            let (meta, file) = (&state.meta, state.file.as_ref());
            let holds = |id: &u64| meta.added <= *id && *id < meta.removed;
            FileInfo {
                number: meta.number,
                path: self.engine.ssd.data_path(meta),
                directory: meta.directory,
                bytes: meta.bytes,
                rows: meta.rows,
                tombstones: meta.tombstones,
                current: file.is_some(),
                live_entries: file.map_or(0, |f| f.live_entries()),
                live_bytes: file.map_or(0, |f| f.live_bytes()),
                checkpoints: versions
                    .checkpoints
                    .iter()
                    .map(|c| c.id)
                    .filter(holds)
                    .collect(),
                set_aside: versions.aside.get(&meta.number).cloned(),
            }
        };
        versions.files.values().map(info).collect()
    }

    /// Rewrites files with stale rows, the stalest first, in groups of up to 16 whose live rows
    /// fit one file. `progress` is asked before each group and after about every megabyte; when it
    /// breaks, the group at hand is finished, and no other begun. Rows stay the same to the bit.
    ///
    /// Files that are damaged, or that the device can't read, are left, and told in the report. A
    /// data directory that can't be written (full, read-only) is left; its error comes when the others
    /// are done.
    ///
    /// # Durability
    /// If nothing was pushed, removed or created since the last checkpoint, that checkpoint has the
    /// new files once this returns (or fails), and the old ones are unlinked unless an older
    /// checkpoint needs them. Otherwise the work survives with the next checkpoint, as that of
    /// [`Store::compact`].
    ///
    /// # Errors
    /// `InvalidArgument` for a share that is none; `Locked` when a reader holds the last
    /// checkpoint, whose files must stay then (nothing was done, or what was done since is lost at
    /// the next open); `NoSpace`, `Io`, `Poisoned`, `ReadOnly`.
    pub fn compact_files(
        &self,
        limits: &CompactLimits,
        progress: &mut dyn FnMut(CompactProgress) -> ControlFlow<()>,
    ) -> Result<CompactReport> {
        limits.validate()?;
        self.engine.check_writer()?;
        self.engine.ssd.check_writable()?;
        let engine = &self.engine;
        engine.guarded(|| Upkeep::new(engine, limits).run(progress))
    }

    /// The files that [`Store::compact_files`] would rewrite, in this order, if nothing changed
    /// meanwhile. What a file costs is taken to be its length and the bytes of its live rows.
    ///
    /// # Cost
    /// No I/O.
    #[must_use]
    pub fn compaction_plan(&self, limits: &CompactLimits) -> Vec<FileInfo> {
        let files = self.files();
        if files.is_empty() {
            return files;
        }
        let mut plan = Vec::new();
        let mut budget = limits.bytes_max.unwrap_or(u64::MAX);
        for directory in 0..self.engine.ssd.directories.len() {
            let mut left = {
                let versions = self.engine.ssd.versions();
                self.engine.candidates(&versions, directory)
            };
            while budget > 0 {
                let size = self.engine.file_bytes;
                let numbers = choose_stale(&left, limits.stale_share, size, budget);
                if numbers.is_empty() {
                    break;
                }
                for number in numbers {
                    let costs = left.iter().filter(|f| f.number == number);
                    let cost: u64 = costs.map(|f| f.bytes + f.live_bytes).sum();
                    budget = budget.saturating_sub(cost);
                    left.retain(|f| f.number != number);
                    plan.extend(files.iter().find(|f| f.number == number).cloned());
                }
            }
        }
        plan
    }

    /// Drops retained checkpoints, and unlinks the files that only they need. The last checkpoint
    /// can't be dropped; one that a reader in another process has open is kept, and told.
    ///
    /// # Durability
    /// They are gone for good once this returns; after a crash before that, all are there or none.
    ///
    /// # Errors
    /// `InvalidArgument` for a checkpoint that is not retained or is the last one (nothing
    /// changed), `NoSpace`, `Io`, `Poisoned`, `ReadOnly`.
    pub fn drop_checkpoints(&self, ids: &[u64]) -> Result<DropReport> {
        self.engine.check_writer()?;
        let mut dropped = ids.to_vec();
        dropped.sort_unstable();
        dropped.dedup();
        // No checkpoint is made meanwhile.
        let engine = &self.engine;
        engine.guarded(|| {
            let _role = engine.wait_idle();
            let before = engine.disk_bytes();
            let held = engine.ssd.forget(&dropped, &engine.descriptors())?;
            dropped.retain(|id| !held.contains(id));
            Ok(DropReport {
                dropped,
                held,
                freed_bytes: before.saturating_sub(engine.disk_bytes()),
            })
        })
    }
}

impl Engine {
    fn disk_bytes(&self) -> u64 {
        let usage = self.ssd.usage();
        usage.current_bytes + usage.pinned_bytes
    }

    /// Whether there is a last checkpoint and the current version holds its rows.
    fn is_settled(&self) -> bool {
        !self.counters.changed.load(Ordering::Acquire) && self.ssd.last_step().is_some()
    }

    /// Makes the current files those of the last checkpoint, if they hold its rows; false if not.
    /// With `image`, the index image follows, if one is due.
    ///
    /// # Errors
    /// `Locked`, `NoSpace`, `Io`, `Poisoned`.
    fn amend_last(&self, image: bool) -> Result<bool> {
        let _role = self.wait_idle();
        let captured = {
            // No push is under way, and no flush: what is seen is seen at once.
            let _whole = self.gate_alone();
            let _writer = self.lock_writer();
            if !self.is_settled() {
                return Ok(false);
            }
            self.ssd.capture()
        };
        self.ssd.amend(&captured, &self.descriptors())?;
        if image && let Some(id) = self.ssd.last_id() {
            self.ssd.images.pace(false);
            self.images.wait_idle();
            self.ssd.refresh_image(&Captured { id, ..captured });
        }
        Ok(true)
    }
}

/// A compaction under way.
struct Upkeep<'a> {
    engine: &'a Engine,
    limits: &'a CompactLimits,
    pace: Arc<Pace>,
    report: CompactReport,
    /// When, and at how many bytes moved, the work so far was made durable.
    settled: (Instant, u64),
    /// Whether files were rewritten since.
    unsettled: bool,
}

type Ask<'a> = dyn FnMut(CompactProgress) -> ControlFlow<()> + 'a;

impl<'a> Upkeep<'a> {
    fn new(engine: &'a Engine, limits: &'a CompactLimits) -> Upkeep<'a> {
        let report = CompactReport {
            disk_bytes_before: engine.disk_bytes(),
            ..CompactReport::default()
        };
        Upkeep {
            engine,
            limits,
            pace: Arc::new(Pace::new(limits.bytes_per_second)),
            report,
            settled: (Instant::now(), 0),
            unsettled: false,
        }
    }

    fn run(mut self, ask: &mut Ask<'_>) -> Result<CompactReport> {
        let idle = self.left().0 == 0 && !self.engine.ssd.is_ahead();
        if self.engine.is_settled() && !idle {
            self.engine.ssd.check_last_unread()?;
        }
        let worked = self.groups(ask);
        // Also what was done before an error is kept, where it can be.
        let settled = match idle {
            true => Ok(self.engine.is_settled()),
            false => self.engine.amend_last(true),
        };
        worked?;
        self.report.durable = settled?;
        self.report.bytes_read = self.pace.read();
        self.report.bytes_written = self.pace.written();
        self.report.disk_bytes_after = self.engine.disk_bytes();
        self.report.files_left = self.left().0;
        Ok(self.report)
    }

    /// All groups of all directories; gives the first failure once nothing more can be done.
    fn groups(&mut self, ask: &mut Ask<'_>) -> Result<()> {
        let mut failure = None;
        for directory in 0..self.engine.ssd.directories.len() {
            loop {
                if self.report.cancelled || self.affordable() == 0 {
                    return failure.map_or(Ok(()), Err);
                }
                match self.group(directory, ask) {
                    Ok(Outcome::Nothing) => break,
                    Ok(Outcome::Done(files)) => {
                        self.report.files += files as u64;
                        self.unsettled = true;
                    }
                    Ok(Outcome::SetAside(error)) => self.report.damaged.push(error),
                    Err(error) => {
                        if let Err(error) = self.forgive(error) {
                            failure.get_or_insert(error);
                            break;
                        }
                    }
                }
                self.settle_if_due()?;
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// One group of files.
    fn group(&mut self, directory: usize, ask: &mut Ask<'_>) -> Result<Outcome> {
        let (left_files, left_bytes) = self.left();
        if left_files == 0 {
            return Ok(Outcome::Nothing);
        }
        let (start, done) = (self.pace.moved(), self.report.files);
        let cancelled = Cell::new(false);
        let mut tell = |moved: u64| {
            let now = CompactProgress {
                files_done: done,
                files_left: left_files,
                bytes_done: moved,
                bytes_left: left_bytes.saturating_sub(moved - start),
            };
            cancelled.set(cancelled.get() | ask(now).is_break());
        };
        tell(start);
        if cancelled.get() {
            self.report.cancelled = true;
            return Ok(Outcome::Nothing);
        }
        let (share, cost) = (
            self.limits.stale_share,
            self.affordable().min(self.at_once()),
        );
        let pick = |files: &[Candidate]| choose_stale(files, share, self.engine.file_bytes, cost);
        let mut job = Job::new(Arc::clone(&self.pace), &mut tell);
        let result = self.engine.compact_picked(directory, &pick, &mut job);
        self.report.cancelled = cancelled.get();
        result
    }

    /// Bytes that may still be moved.
    fn affordable(&self) -> u64 {
        let max = self.limits.bytes_max.unwrap_or(u64::MAX);
        max.saturating_sub(self.pace.moved())
    }

    /// Bytes that a group may move, so that a slow one ends soon after it is broken off.
    fn at_once(&self) -> u64 {
        let seconds = COMMIT_EVERY.as_secs();
        let limit = self.limits.bytes_per_second.filter(|limit| *limit > 0);
        limit.map_or(u64::MAX, |limit| limit.saturating_mul(seconds))
    }

    /// Files that are stale enough, and about the bytes to move for them.
    fn left(&self) -> (u64, u64) {
        let engine = self.engine;
        let versions = engine.ssd.versions();
        let mut left = (0, 0);
        for directory in 0..engine.ssd.directories.len() {
            let files = engine.candidates(&versions, directory);
            for file in files
                .iter()
                .filter(|f| is_stale(f, self.limits.stale_share))
            {
                left.0 += 1;
                left.1 += file.bytes + file.live_bytes;
            }
        }
        left
    }

    /// Goes on where there may be room once old files are unlinked.
    fn forgive(&mut self, error: Error) -> Result<()> {
        match error {
            Error::NoSpace { .. } if self.unsettled => match self.settle_now() {
                Ok(true) => Ok(()),
                Ok(false) | Err(Error::Locked { .. }) => Err(error),
                Err(worse) => Err(worse),
            },
            error => Err(error),
        }
    }

    fn settle_if_due(&mut self) -> Result<()> {
        let moved = self.pace.moved() - self.settled.1;
        let due = moved >= self.limits.commit_bytes || self.settled.0.elapsed() >= COMMIT_EVERY;
        if !self.unsettled || !due || moved < COMMIT_WORTH * self.engine.ssd.snapshot_bytes() {
            return Ok(());
        }
        match self.settle_now() {
            // A reader that goes away before the end does no harm.
            Ok(_) | Err(Error::Locked { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn settle_now(&mut self) -> Result<bool> {
        self.settled = (Instant::now(), self.pace.moved());
        let settled = self.engine.amend_last(false)?;
        self.unsettled = false;
        Ok(settled)
    }
}
