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

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use tracing::field::Empty;

use super::engine::{Counters, Engine};
use super::pace::Job;
use super::rewrite::Chosen;
use super::turns::Turn;
use crate::error::{Error, Result};
use crate::io::is_unreadable;
use crate::observe::Timed;
use crate::ssd::compaction::{Candidate, Limits, choose, may_be_due};
use crate::ssd::version::{DataFile, Versions};

/// Threads that compact at most, if the options don't say how many.
const COMPACTION_THREADS: usize = 4;

/// What became of a look at a directory.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Nothing is to be done.
    Nothing,
    /// So many files were rewritten.
    Done(usize),
    /// A file can't be read, and is not chosen again; nothing else changed.
    SetAside(Error),
}

/// Which files of a directory are rewritten, by their numbers.
pub(super) type Pick<'a> = dyn Fn(&[Candidate]) -> Vec<u64> + 'a;

impl Engine {
    /// Compacts the directory whose turn it is, if something is due there. Returns whether there
    /// was a compaction.
    pub fn compact_turn(&self, turn: &Turn<'_>) -> bool {
        let limits = self.limits(false);
        if !self.may_be_due(&self.ssd.versions(), turn.directory, &limits) {
            turn.idle();
            return false;
        }
        let pick = |files: &[Candidate]| choose(files, &limits);
        let result = self.compact_in(turn, &pick, &mut Job::default());
        self.compacted.notify();
        matches!(result, Ok(Outcome::Done(_)))
    }

    /// Compacts all directories until no file has a stale row and no two small files are left
    /// apart. Returns the number of compactions.
    ///
    /// # Errors
    /// `NoSpace`, `Io`, `Corrupt`, `Poisoned`: the first failure, when everything is compacted that
    /// can be.
    pub fn compact_fully(&self) -> Result<u64> {
        let limits = self.limits(true);
        let pick = |files: &[Candidate]| choose(files, &limits);
        let (mut count, mut failure) = (0, None);
        for directory in 0..self.ssd.directories.len() {
            loop {
                match self.compact_picked(directory, &pick, &mut Job::default()) {
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
    pub(super) fn compact_picked(
        &self,
        directory: usize,
        pick: &Pick<'_>,
        job: &mut Job<'_>,
    ) -> Result<Outcome> {
        let turn = self.turns.take(directory);
        let result = self.compact_in(&turn, pick, job);
        self.compacted.notify();
        result
    }

    /// Threads that compact: one a data directory, [`COMPACTION_THREADS`] at most, or as many as the
    /// options say.
    pub fn compaction_threads(&self) -> usize {
        let asked = match self.options.compaction_threads {
            0 => COMPACTION_THREADS,
            asked => asked,
        };
        asked.min(self.ssd.directories.len())
    }

    /// All compactions that are due, where there is no thread for them.
    pub fn compact_inline(&self) {
        if self.options.inline {
            while let Some(turn) = self.turns.next() {
                self.compact_turn(&turn);
            }
        }
    }

    fn compact_in(&self, turn: &Turn<'_>, pick: &Pick<'_>, job: &mut Job<'_>) -> Result<Outcome> {
        let directory = turn.directory;
        let result = self.compact_chosen(directory, pick, job);
        match &result {
            Ok(Outcome::Nothing) => turn.idle(),
            Ok(Outcome::Done(_)) => turn.done(),
            Ok(Outcome::SetAside(error)) => {
                Counters::add(&self.counters.compaction_failures, 1);
                turn.set_aside(error);
                tracing::error!(directory, %error, "a file is not compacted any more");
            }
            Err(error) => {
                Counters::add(&self.counters.compaction_failures, 1);
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
        job: &mut Job<'_>,
    ) -> Result<Outcome> {
        // Before the turn is another's.
        let _alarm = self.ssd.poison.alarm();
        self.ssd.check_writable()?;
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
                self.counters.compactions.fetch_add(1, Ordering::Relaxed);
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
        let mut versions = self.ssd.versions();
        versions.aside.insert(file.meta.number, error.to_string());
        true
    }

    pub(super) fn candidates(&self, versions: &Versions, directory: usize) -> Vec<Candidate> {
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
    pub fn may_be_due(&self, versions: &Versions, directory: usize, limits: &Limits) -> bool {
        let usage = versions.choosable(directory);
        may_be_due(usage.current_bytes, usage.live_bytes, usage.files, limits)
            || versions.aside_in(directory).any(|f| f.live_entries() == 0)
    }

    fn choose_inputs(&self, directory: usize, pick: &Pick<'_>) -> Option<Chosen> {
        let _commit = self.commit.write().unwrap_or_else(PoisonError::into_inner);
        let mut versions = self.ssd.versions();
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
pub(super) fn unreadable(error: &Error) -> Option<&Path> {
    match error {
        Error::Corrupt { path, .. } => Some(path),
        Error::Io { path, source, .. } if is_unreadable(source) => Some(path),
        _ => None,
    }
}
