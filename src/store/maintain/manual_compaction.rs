//! How far does a compaction that somebody asked for go, and when is its work durable?

use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::Parts;
use super::super::compact::{CompactionJob, Outcome, RateLimiter};
use super::{CompactLimits, CompactProgress, CompactReport};
use crate::error::{Error, Result};
use crate::ssd::compaction::{Candidate, choose_stale, is_stale};

/// Work becomes durable after this time, or [`CompactLimits::commit_bytes`].
const COMMIT_EVERY: Duration = Duration::from_secs(2);
/// A new manifest and its copy are worth so many times the size of one of work.
const COMMIT_WORTH: u64 = 32;

/// A compaction under way.
pub(super) struct ManualCompaction<'a> {
    parts: &'a Parts,
    limits: &'a CompactLimits,
    limiter: Arc<RateLimiter>,
    report: CompactReport,
    /// When, and at how many bytes moved, the work so far was made durable.
    committed: (Instant, u64),
    /// Whether files were rewritten since.
    uncommitted: bool,
}

type Ask<'a> = dyn FnMut(CompactProgress) -> ControlFlow<()> + 'a;

impl<'a> ManualCompaction<'a> {
    pub(super) fn new(parts: &'a Parts, limits: &'a CompactLimits) -> ManualCompaction<'a> {
        let report = CompactReport {
            disk_bytes_before: parts.core.row_bytes_on_disk(),
            ..CompactReport::default()
        };
        ManualCompaction {
            parts,
            limits,
            limiter: Arc::new(RateLimiter::new(limits.bytes_per_second)),
            report,
            committed: (Instant::now(), 0),
            uncommitted: false,
        }
    }

    pub(super) fn run(mut self, ask: &mut Ask<'_>) -> Result<CompactReport> {
        let idle = self.left().0 == 0 && !self.parts.core.ssd.is_ahead();
        if self.parts.checkpointer.is_settled() && !idle {
            self.parts.core.ssd.check_last_unread()?;
        }
        let worked = self.groups(ask);
        // Also what was done before an error is kept, where it can be.
        let committed = match idle {
            true => Ok(self.parts.checkpointer.is_settled()),
            false => self.parts.checkpointer.recommit_last(true),
        };
        worked?;
        self.report.durable = committed?;
        self.report.bytes_read = self.limiter.read();
        self.report.bytes_written = self.limiter.written();
        self.report.disk_bytes_after = self.parts.core.row_bytes_on_disk();
        self.report.files_left = self.left().0;
        Ok(self.report)
    }

    /// All groups of all directories; gives the first failure once nothing more can be done.
    fn groups(&mut self, ask: &mut Ask<'_>) -> Result<()> {
        let mut failure = None;
        for directory in 0..self.parts.core.ssd.directories.len() {
            loop {
                if self.report.cancelled || self.affordable() == 0 {
                    return failure.map_or(Ok(()), Err);
                }
                match self.group(directory, ask) {
                    Ok(Outcome::Nothing) => break,
                    Ok(Outcome::Done(files)) => {
                        self.report.files += files as u64;
                        self.uncommitted = true;
                    }
                    Ok(Outcome::SetAside(error)) => self.report.damaged.push(error),
                    Err(error) => {
                        if let Err(error) = self.make_room(error) {
                            failure.get_or_insert(error);
                            break;
                        }
                    }
                }
                self.commit_if_due()?;
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
        let (start, done) = (self.limiter.moved(), self.report.files);
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
        let pick =
            |files: &[Candidate]| choose_stale(files, share, self.parts.core.file_bytes, cost);
        let mut job = CompactionJob::new(Arc::clone(&self.limiter), &mut tell);
        let result = self
            .parts
            .compactor
            .compact_picked(directory, &pick, &mut job);
        self.report.cancelled = cancelled.get();
        result
    }

    /// Bytes that may still be moved.
    fn affordable(&self) -> u64 {
        let max = self.limits.bytes_max.unwrap_or(u64::MAX);
        max.saturating_sub(self.limiter.moved())
    }

    /// Bytes that a group may move, so that a slow one ends soon after it is broken off.
    fn at_once(&self) -> u64 {
        let seconds = COMMIT_EVERY.as_secs();
        let limit = self.limits.bytes_per_second.filter(|limit| *limit > 0);
        limit.map_or(u64::MAX, |limit| limit.saturating_mul(seconds))
    }

    /// Files that are stale enough, and about the bytes to move for them.
    fn left(&self) -> (u64, u64) {
        let (core, compactor) = (&self.parts.core, &self.parts.compactor);
        let versions = core.ssd.versions();
        let mut left = (0, 0);
        for directory in 0..core.ssd.directories.len() {
            let files = compactor.candidates(&versions, directory);
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
    fn make_room(&mut self, error: Error) -> Result<()> {
        match error {
            Error::NoSpace { .. } if self.uncommitted => match self.commit_now() {
                Ok(true) => Ok(()),
                Ok(false) | Err(Error::Locked { .. }) => Err(error),
                Err(worse) => Err(worse),
            },
            error => Err(error),
        }
    }

    fn commit_if_due(&mut self) -> Result<()> {
        let moved = self.limiter.moved() - self.committed.1;
        let due = moved >= self.limits.commit_bytes || self.committed.0.elapsed() >= COMMIT_EVERY;
        if !self.uncommitted || !due || moved < COMMIT_WORTH * self.parts.core.ssd.snapshot_bytes()
        {
            return Ok(());
        }
        match self.commit_now() {
            // A reader that goes away before the end does no harm.
            Ok(_) | Err(Error::Locked { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn commit_now(&mut self) -> Result<bool> {
        self.committed = (Instant::now(), self.limiter.moved());
        let committed = self.parts.checkpointer.recommit_last(false)?;
        self.uncommitted = false;
        Ok(committed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::{made, options, set, sgd};

    #[test]
    fn a_group_moves_no_more_than_is_left_and_than_two_seconds_allow() {
        let (_, store) = made(options());
        let limits = |bytes_max, bytes_per_second| CompactLimits {
            bytes_max,
            bytes_per_second,
            ..CompactLimits::default()
        };
        let of = |limits: &CompactLimits| {
            let work = ManualCompaction::new(&store.parts, limits);
            (work.affordable(), work.at_once())
        };
        assert_eq!(of(&limits(None, None)), (u64::MAX, u64::MAX));
        assert_eq!(of(&limits(Some(700), Some(0))), (700, u64::MAX));
        assert_eq!(of(&limits(Some(0), Some(1000))), (0, 2000));
        assert_eq!(of(&limits(None, Some(u64::MAX))).1, u64::MAX);
        let fast = limits(Some(700), None);
        let work = ManualCompaction::new(&store.parts, &fast);
        work.limiter.wrote(600);
        assert_eq!(work.affordable(), 100);
        work.limiter.wrote(600);
        assert_eq!(work.affordable(), 0);
    }

    /// Work is made durable in between once it is worth a manifest, and at once when room is short.
    #[test]
    fn work_becomes_durable_when_enough_was_moved_for_it() {
        let (_, store) = made(options());
        let table = store.create_table(&sgd("rows", 4)).unwrap();
        set(&store, table, &[1, 2], 1.0);
        store.checkpoint(1, &[]).unwrap();
        let worth = COMMIT_WORTH * store.parts.core.ssd.snapshot_bytes();
        assert!(worth > 0);
        // (bytes moved, the limit, whether files were rewritten): whether they are durable then.
        for (moved, commit_bytes, rewritten, durable) in [
            (worth, worth, true, true),
            (worth, worth + 1, true, false),
            (worth - 1, 1, true, false),
            (2 * worth, 1, true, true),
            (2 * worth, 1, false, false),
        ] {
            let limits = CompactLimits {
                commit_bytes,
                ..CompactLimits::default()
            };
            let mut work = ManualCompaction::new(&store.parts, &limits);
            work.limiter.wrote(moved);
            work.uncommitted = rewritten;
            work.commit_if_due().unwrap();
            assert_eq!(
                work.uncommitted,
                rewritten && !durable,
                "{moved} {commit_bytes}"
            );
            let at = if durable { moved } else { 0 };
            assert_eq!(work.committed.1, at);
        }
        let full = || Error::NoSpace {
            path: "/store".into(),
            used_bytes: 1,
            asked_bytes: 5,
            limit_bytes: 0,
        };
        let limits = CompactLimits::default();
        let mut work = ManualCompaction::new(&store.parts, &limits);
        assert!(work.make_room(full()).is_err(), "nothing was rewritten");
        work.uncommitted = true;
        work.make_room(full()).unwrap();
        assert!(!work.uncommitted);
        work.uncommitted = true;
        let error = work.make_room(Error::Forked).unwrap_err();
        assert!(matches!(error, Error::Forked));
        // With changes since the checkpoint nothing can be made durable.
        set(&store, table, &[1], 2.0);
        let error = work.make_room(full()).unwrap_err();
        assert!(matches!(error, Error::NoSpace { .. }), "{error}");
    }
}
