//! When are stale rows left behind, where, and what if it fails?
//!
//! Each data directory is compacted by itself, one compaction at a time in each; the threads
//! `hps-compact-N` serve those in turn that have something to do.
//!
//! Invariants:
//! - The output's rank is taken before any row is looked at, while no flush is between its rank
//!   and its repoints: whatever is newer than an input's row has a greater rank.
//! - A file that can't be read, or is damaged, is set aside: not chosen again until the store is
//!   opened anew. The others go on.
//! - Any other failure lets its directory pause; the other directories go on.
//! - Which directory is compacted when, and by which thread, changes no row.

mod merge;
mod rate_limit;
mod turns;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub use rate_limit::{CompactionJob, RateLimiter};
pub use turns::Record;

use tracing::field::Empty;

use super::core::{Core, Part, Signal, add, get};
use crate::error::{Error, Result};
use crate::in_use::{HeldBytes, InUse};
use crate::io::is_unreadable;
use crate::observe::Timed;
use crate::ssd::compaction::{Candidate, Limits, choose, may_be_due};
use crate::ssd::data_file::DataFile;
use crate::ssd::version::Versions;
use crate::stats::Stats;
use crate::sync::atomic::AtomicU64;
use crate::units::FileNumber;
use merge::Chosen;
use turns::{Turn, Turns};

/// Threads that compact at most, if the options don't say how many.
const COMPACTION_THREADS: usize = 4;

/// Files' worth of rows that a flush picks at once, for whoever needs room fast and for a checkpoint:
/// there is room for them, or it waits for a compaction.
pub const PICK_FILES: usize = 2;

/// How long a thread sleeps without being called.
const PAUSE: Duration = Duration::from_millis(200);

/// What became of a look at a directory.
#[derive(Debug)]
pub enum Outcome {
    /// Nothing is to be done.
    Nothing,
    /// So many files were rewritten.
    Done(usize),
    /// A file can't be read, and is not chosen again; nothing else changed.
    SetAside(Error),
}

/// Which files of a directory are rewritten, by their numbers.
pub type Pick<'a> = dyn Fn(&[Candidate]) -> Vec<FileNumber> + 'a;

/// Leaves stale rows behind.
#[derive(Debug)]
pub struct Compactor {
    core: Arc<Core>,
    /// Which data directory is compacted next: one compaction at a time in each.
    turns: Turns,
    /// How fast its threads compact.
    limiter: Arc<RateLimiter>,
    /// Raised when rows were flushed: the compaction threads look.
    flushed: Signal,
    /// Raised when a compaction ended.
    compacted: Signal,
    compactions: AtomicU64,
    failures: AtomicU64,
    written_bytes: AtomicU64,
    /// Buffers and arrays of those that run.
    in_use: InUse,
    /// What a running checkpoint is about to write.
    coming: InUse,
}

impl Part for Compactor {
    fn wake(&self) {
        if self.core.is_closed() {
            // Whoever closes waits for the compactions that run.
            self.limiter.set(None);
        }
        self.flushed.notify();
        self.compacted.notify();
    }

    fn count(&self, stats: &mut Stats) {
        let written = get(&self.written_bytes);
        stats.compaction_written_bytes = written;
        stats.written_bytes += written;
        stats.compactions = get(&self.compactions);
        stats.compaction_bytes = self.in_use.bytes();
        stats.compaction_failures = get(&self.failures);
        stats.directories_paused = self.turns.paused().iter().filter(|p| **p).count() as u64;
    }
}

impl Compactor {
    /// Nothing is compacted yet.
    pub fn new(core: &Arc<Core>) -> Compactor {
        Compactor {
            core: Arc::clone(core),
            turns: Turns::new(core.ssd.directories.len(), core.options.inline),
            limiter: Arc::new(RateLimiter::new(None)),
            flushed: Signal::default(),
            compacted: Signal::default(),
            compactions: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            in_use: InUse::default(),
            coming: InUse::default(),
        }
    }

    /// What one of its threads does until the store is closed.
    pub fn serve(&self) {
        loop {
            let seen = self.flushed.count();
            if self.core.is_closed() {
                return;
            }
            let Some(turn) = self.turns.next() else {
                self.flushed.wait(seen, PAUSE);
                if self.flushed.count() == seen {
                    self.turns.look_again();
                }
                continue;
            };
            let compacted = self.compact_turn(&turn);
            drop(turn);
            if compacted {
                self.core.publish(false);
            }
        }
    }

    /// Rows were flushed, or became stale: every directory may have something to do again.
    pub fn rows_were_flushed(&self) {
        self.files_were_added();
        self.compact_inline();
    }

    /// A flush that goes on has added files: the compaction threads look whether something is due.
    pub fn files_were_added(&self) {
        self.turns.look_again();
        self.flushed.notify();
    }

    /// The compaction threads look whether something is due.
    pub fn look(&self) {
        self.flushed.notify();
    }

    /// Holds flushes back while `current` is far over its bound, or what a flush would write has no
    /// room, and compaction can help.
    pub fn wait_for_space(&self) {
        while self.is_over_space() {
            self.wait_a_little();
        }
    }

    /// Waits until a compaction has ended, or a moment.
    pub fn wait_a_little(&self) {
        let seen = self.compacted.count();
        let _hurry = self.limiter.hurry();
        self.flushed.notify();
        self.compacted.wait(seen, Duration::from_millis(10));
    }

    /// Whether flushes are held back.
    pub fn is_over_space(&self) -> bool {
        if self.core.options.inline
            || self.core.is_closed()
            || self.core.ssd.check_writable().is_err()
        {
            return false;
        }
        // A directory that is left alone after a failure holds nobody back.
        let paused = self.turns.paused();
        let in_service = self.turns.in_service();
        let limits = self.limits(false);
        let versions = self.core.ssd.versions();
        let usage = versions.usage_of(|d| !paused[d]);
        let over = usage.current_bytes > limits.hard_bytes(usage.live_bytes)
            || usage.files > limits.files_hard(usage.live_bytes);
        let due = |d: &usize| in_service[*d] && self.may_be_due(&versions, *d, &limits);
        let due: Vec<usize> = (0..in_service.len()).filter(due).collect();
        drop(versions);
        !due.is_empty() && (over || due.iter().any(|d| !self.has_room(*d, 0)))
    }

    /// Whether what a flush writes at a time fits into a directory, and so many bytes more, and leaves room for a
    /// compaction.
    fn has_room(&self, directory: usize, more_bytes: u64) -> bool {
        let file_bytes = self.core.file_bytes;
        let asked_bytes = file_bytes.saturating_mul(PICK_FILES as u64);
        let asked_bytes = asked_bytes.saturating_add(more_bytes);
        let room = (self.core.ssd).check_space_as_it_is(directory, asked_bytes, file_bytes);
        !matches!(room, Err(Error::NoSpace { .. }))
    }

    /// What became of the compactions of each directory, and whether it is left alone for a while.
    pub fn records(&self) -> Vec<(Record, bool)> {
        let records = self.turns.records().into_iter();
        records.zip(self.turns.paused()).collect()
    }

    /// The bounds of compaction, for what is there: whoever waits does not wait for what is coming, which there may be
    /// nothing to rewrite for.
    fn limits(&self, force: bool) -> Limits {
        Limits {
            space_bound: self.core.options.space_bound,
            file_bytes: self.core.file_bytes,
            directories: self.core.ssd.directories.len() as u64,
            force,
            coming_bytes: 0,
        }
    }

    /// What a running checkpoint is about to write to a directory; nothing where room is short: an output takes some
    /// until its inputs are gone.
    fn coming_to(&self, directory: usize) -> u64 {
        let bytes = self.coming.bytes() / self.core.ssd.directories.len() as u64;
        match bytes > 0 && self.has_room(directory, bytes) {
            true => bytes,
            false => 0,
        }
    }

    /// For a checkpoint to say how many bytes it is about to write, until this is dropped: compactions make room for
    /// them beside it, where it would wait for one after the other once the files are at their bound.
    pub fn announce(&self) -> HeldBytes<'_> {
        self.coming.begin()
    }

    /// Compacts the directory whose turn it is, if something is due there. Returns whether there
    /// was a compaction.
    fn compact_turn(&self, turn: &Turn<'_>) -> bool {
        let limits = Limits {
            coming_bytes: self.coming_to(turn.directory),
            ..self.limits(false)
        };
        if !self.may_be_due(&self.core.ssd.versions(), turn.directory, &limits) {
            turn.idle();
            return false;
        }
        let pick = |files: &[Candidate]| choose(files, &limits);
        let mut job = match self.core.options.inline {
            true => CompactionJob::default(),
            false => CompactionJob::limited(Arc::clone(&self.limiter)),
        };
        let result = self.compact_in(turn, &pick, &mut job);
        self.compacted.notify();
        matches!(result, Ok(Outcome::Done(_)))
    }

    /// Compacts all directories until no file has a stale row and no two small files are left
    /// apart. Returns the number of compactions.
    ///
    /// # Errors
    /// `NoSpace`, `Io`, `Corrupt`, `Poisoned`: the first failure, when everything is compacted that
    /// can be.
    #[cfg(any(test, feature = "sim"))]
    pub fn compact_fully(&self) -> Result<u64> {
        let limits = self.limits(true);
        let pick = |files: &[Candidate]| choose(files, &limits);
        let (mut count, mut failure) = (0, None);
        for directory in 0..self.core.ssd.directories.len() {
            loop {
                match self.compact_picked(directory, &pick, &mut CompactionJob::default()) {
                    Ok(Outcome::Nothing) => break,
                    Ok(Outcome::Done(_)) => count += 1,
                    Ok(Outcome::SetAside(error)) => drop(failure.get_or_insert(error)),
                    Err(error) => {
                        failure.get_or_insert(error);
                        break;
                    }
                }
            }
        }
        failure.map_or(Ok(count), Err)
    }

    /// One compaction of the files of a directory that `pick` wants, if it wants any.
    ///
    /// # Errors
    /// `NoSpace`, `Io`, `Poisoned`: nothing changed.
    pub fn compact_picked(
        &self,
        directory: usize,
        pick: &Pick<'_>,
        job: &mut CompactionJob<'_>,
    ) -> Result<Outcome> {
        let turn = self.turns.take(directory);
        let result = self.compact_in(&turn, pick, job);
        self.compacted.notify();
        result
    }

    /// From now on so many bytes are read and written per second, on average, by all threads that compact;
    /// none: as many as they can.
    pub fn set_rate(&self, bytes_per_second: Option<u64>) {
        self.limiter.set(bytes_per_second);
    }

    /// Threads that compact: one a data directory, [`COMPACTION_THREADS`] at most, or as many as the
    /// options say.
    pub fn threads(&self) -> usize {
        let asked = match self.core.options.compaction_threads {
            0 => COMPACTION_THREADS,
            asked => asked,
        };
        asked.min(self.core.ssd.directories.len())
    }

    /// All compactions that are due, where there is no thread for them.
    pub fn compact_inline(&self) {
        if self.core.options.inline {
            while let Some(turn) = self.turns.next() {
                self.compact_turn(&turn);
            }
        }
    }

    fn compact_in(
        &self,
        turn: &Turn<'_>,
        pick: &Pick<'_>,
        job: &mut CompactionJob<'_>,
    ) -> Result<Outcome> {
        let directory = turn.directory;
        let result = self.compact_chosen(directory, pick, job);
        match &result {
            Ok(Outcome::Nothing) => turn.idle(),
            Ok(Outcome::Done(_)) => turn.done(),
            Ok(Outcome::SetAside(error)) => {
                add(&self.failures, 1);
                turn.set_aside(error);
                tracing::error!(directory, %error, "a file is not compacted any more");
            }
            Err(error) => {
                add(&self.failures, 1);
                turn.failed(error);
                tracing::warn!(directory, %error, "a compaction failed; nothing changed");
            }
        }
        result
    }

    fn compact_chosen(
        &self,
        directory: usize,
        pick: &Pick<'_>,
        job: &mut CompactionJob<'_>,
    ) -> Result<Outcome> {
        // Before the turn is another's.
        let _alarm = self.core.ssd.poison.alarm();
        self.core.ssd.check_writable()?;
        let Some(chosen) = self.choose_inputs(directory, pick) else {
            return Ok(Outcome::Nothing);
        };
        let span = Timed::new(tracing::info_span!(
            "compaction",
            part = directory,
            inputs = chosen.files.len(),
            input_bytes = chosen.files.iter().map(|f| f.meta.bytes).sum::<u64>(),
            outputs = Empty,
            output_bytes = Empty,
            seconds = Empty,
        ));
        let _compacting = span.enter();
        let count = chosen.files.len();
        match self.rewrite(&chosen, job) {
            Ok((outputs, bytes)) => {
                span.record("outputs", outputs);
                span.record("output_bytes", bytes);
                add(&self.compactions, 1);
                Ok(Outcome::Done(count))
            }
            Err(error) if self.set_aside(&chosen.files, &error) => Ok(Outcome::SetAside(error)),
            Err(error) => Err(error),
        }
    }

    /// Sets the input aside that an error is about, if it is about one: damaged, or the device
    /// can't give its bytes.
    fn set_aside(&self, inputs: &[Arc<DataFile>], error: &Error) -> bool {
        let Some(path) = unreadable(error) else {
            return false;
        };
        let Some(file) = inputs.iter().find(|f| f.path == *path) else {
            return false;
        };
        let mut versions = self.core.ssd.versions();
        versions.aside.insert(file.meta.number, error.to_string());
        true
    }

    pub fn candidates(&self, versions: &Versions, directory: usize) -> Vec<Candidate> {
        let held = versions.held().get(directory);
        let files = held.into_iter().flat_map(|held| held.current.values());
        files
            .filter(|f| !versions.aside.contains_key(&f.meta.number))
            .map(|f| Candidate {
                number: f.meta.number,
                bytes: f.meta.bytes,
                live_bytes: f.live_bytes(),
            })
            .collect()
    }

    /// Whether a directory may have something to do, by its counters alone: false is sure.
    fn may_be_due(&self, versions: &Versions, directory: usize, limits: &Limits) -> bool {
        let usage = versions.choosable(directory);
        may_be_due(usage.current_bytes, usage.live_bytes, usage.files, limits)
            || versions.aside_in(directory).any(|f| f.live_entries() == 0)
    }

    fn choose_inputs(&self, directory: usize, pick: &Pick<'_>) -> Option<Chosen> {
        let _commit = self.core.ranks_alone();
        let mut versions = self.core.ssd.versions();
        let numbers = pick(&self.candidates(&versions, directory));
        let wanted = |f: &&Arc<DataFile>| numbers.contains(&f.meta.number);
        let mut files: Vec<Arc<DataFile>> = versions.current().filter(wanted).cloned().collect();
        // Nothing of a file without live entries is read: also one that can't be read may go.
        let dead = versions.aside_in(directory);
        files.extend(dead.filter(|f| f.live_entries() == 0).cloned());
        if files.is_empty() {
            return None;
        }
        let rank = versions.take_rank();
        Some(Chosen {
            files,
            rank,
            directory,
        })
    }
}

/// The file that an error says can't be read.
fn unreadable(error: &Error) -> Option<&Path> {
    match error {
        Error::Corrupt { path, .. } => Some(path),
        Error::Io { path, source, .. } if is_unreadable(source) => Some(path),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
