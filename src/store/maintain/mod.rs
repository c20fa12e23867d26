//! What may an operator ask of a store: which files there are, a compaction with limits, and dropping
//! old checkpoints?
//!
//! Invariants:
//! - Rows never change. The last checkpoint keeps its id, step and meta.
//! - Without changes since the last checkpoint the work is durable when the call returns, and most
//!   of it before (docs/decisions/0014); else with the next checkpoint.
//! - A file that is damaged or can't be read is named and left as it is; the others are compacted.
//! - A data directory that can't be written is left; the others are compacted.

mod manual_compaction;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use super::Store;
use super::compact::Record;
use crate::error::{ArgumentError, Error, Result};
use crate::options::setters;
use crate::ssd::compaction::choose_stale;
use crate::units::{CheckpointId, FileNumber};
use manual_compaction::ManualCompaction;

/// A parameter file.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct FileInfo {
    /// Its number; greater is younger.
    pub number: FileNumber,
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
    pub checkpoints: Vec<CheckpointId>,
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

/// What a compaction may do: see [`Store::compact`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
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

setters!(CompactLimits {
    stale_share: f64,
    bytes_max: Option<u64>,
    bytes_per_second: Option<u64>,
    commit_bytes: u64,
});

impl CompactLimits {
    /// The defaults.
    #[must_use]
    pub fn new() -> CompactLimits {
        CompactLimits::default()
    }

    fn validate(&self) -> Result<()> {
        if (0.0..=1.0).contains(&self.stale_share) {
            return Ok(());
        }
        Err(Error::InvalidArgument(ArgumentError::Option {
            name: "stale_share",
            value: self.stale_share.to_string(),
            why: String::from("a share is from 0 to 1"),
        }))
    }
}

/// How far a compaction is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
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
#[non_exhaustive]
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
#[non_exhaustive]
pub struct DropReport {
    /// Dropped, in rising order.
    pub dropped: Vec<CheckpointId>,
    /// Kept, because a reader has them open, or a [`crate::Hold`] keeps them, in this process or in another.
    pub held: Vec<CheckpointId>,
    /// Bytes of parameter files that were unlinked.
    pub freed_bytes: u64,
}

/// A data directory and how its compactions fare.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DirectoryInfo {
    /// Where it is.
    pub path: PathBuf,
    /// Files of the current version in it.
    pub files: u64,
    /// Bytes of these files.
    pub current_bytes: u64,
    /// The part of them that live rows stand for.
    pub live_bytes: u64,
    /// Bytes of files that only retained checkpoints need (or nothing, until they are unlinked).
    pub pinned_bytes: u64,
    /// Files that no compaction takes any more, as [`crate::FileInfo::set_aside`] says.
    pub files_set_aside: u64,
    /// Compactions since the store was opened.
    pub compactions: u64,
    /// Compactions that failed since then.
    pub compaction_failures: u64,
    /// Why the last one failed, if none succeeded since. As text.
    pub failure: Option<String>,
    /// Whether it is left alone for a while, after a failure.
    pub is_paused: bool,
}

impl Store {
    /// The parameter files, by number: those of the current version, and those that only older
    /// retained checkpoints need. For a store opened read-only, "current" is the checkpoint that
    /// it was opened at.
    ///
    /// # Cost
    /// No I/O.
    ///
    /// # Examples
    /// ```
    /// # use hps::*;
    /// # let directory = std::env::temp_dir().join(format!("hps-files-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// # let items = store.create_table(&TableDescriptor::new("items", 8))?;
    /// # store.put(items, &[1, 2, 3], PutRows::weights(&[0.5; 3 * 8]))?;
    /// let checkpoint = store.checkpoint(1, &[])?.id;
    /// for file in store.files() {
    ///     let (path, stale) = (file.path.display(), 100.0 * file.stale_share());
    ///     println!("{path}: {} bytes, {stale:.0} % stale", file.bytes);
    ///     assert_eq!(file.checkpoints, [checkpoint]);
    /// }
    /// # assert_eq!(store.files().iter().map(FileInfo::entries).sum::<u64>(), 3);
    /// # store.close_discarding();
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    #[must_use]
    pub fn files(&self) -> Vec<FileInfo> {
        let core = &self.parts.core;
        if core.check_process().is_err() {
            return Vec::new();
        }
        let versions = core.ssd.versions();
        let info = |state: &crate::ssd::version::FileState| {
            let (meta, file) = (&state.meta, state.file.as_ref());
            let holds = |id: &CheckpointId| meta.added <= *id && *id < meta.removed;
            FileInfo {
                number: meta.number,
                path: core.ssd.data_path(meta),
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
    /// checkpoint needs them. Otherwise the work survives with the next checkpoint.
    ///
    /// # Errors
    /// `InvalidArgument` for a share that is none; `Locked` when a reader holds the last
    /// checkpoint, whose files must stay then (nothing was done, or what was done since is lost at
    /// the next open); `NoSpace`, `Io`, `Poisoned`, `ReadOnly`.
    ///
    /// ```
    /// # use std::ops::ControlFlow;
    /// # use hps::{CreateOptions, CompactLimits, RuntimeOptions, Store};
    /// # fn main() -> hps::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("hps-compact-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// # store.checkpoint(1, &[])?;
    /// let limits = CompactLimits::new().stale_share(0.2);
    /// let report = store.compact(&limits, |progress| match progress.bytes_done < 1 << 30 {
    ///     true => ControlFlow::Continue(()),
    ///     false => ControlFlow::Break(()),
    /// })?;
    /// assert!(report.durable && !report.cancelled);
    /// # store.close()?;
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # Ok(())
    /// # }
    /// ```
    pub fn compact(
        &self,
        limits: &CompactLimits,
        mut progress: impl FnMut(CompactProgress) -> ControlFlow<()>,
    ) -> Result<CompactReport> {
        limits.validate()?;
        let core = &self.parts.core;
        core.check_writable()?;
        core.guarded(|| ManualCompaction::new(&self.parts, limits).run(&mut progress))
    }

    /// Limits the bytes that the store's own compactions read and write per second, on average and all
    /// together, from now on; also those that run. `None`: no limit, as after each opening. (A
    /// compaction that [`Store::compact`] was asked for has a limit of its own.)
    ///
    /// The limit is lifted while flushes wait for a compaction, because the files on disk are too far
    /// over their bounds, and when the store is closed: what it can cost is space on disk. With
    /// [`RuntimeOptions::inline`](crate::RuntimeOptions::inline) compactions are the caller's, and there is no limit.
    ///
    /// # Cost
    /// None; compactions look at it every 10 ms while they are held back.
    ///
    /// # Durability
    /// None: it is of this opening.
    ///
    /// # Errors
    /// `InvalidArgument` for 0, `ReadOnly`, `Forked`.
    ///
    /// # Examples
    /// ```
    /// # use hps::{CreateOptions, RuntimeOptions, Store};
    /// # let directory = std::env::temp_dir().join(format!("hps-rate-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// store.set_compaction_rate(Some(100 << 20))?; // while others need the device
    /// // ...
    /// store.set_compaction_rate(None)?;
    /// # store.close()?;
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn set_compaction_rate(&self, bytes_per_second: Option<u64>) -> Result<()> {
        self.parts.core.check_writer()?;
        if bytes_per_second == Some(0) {
            return Err(Error::InvalidArgument(ArgumentError::Option {
                name: "bytes_per_second",
                value: String::from("0"),
                why: String::from("a limit lets some bytes pass; None is no limit"),
            }));
        }
        self.parts.compactor.set_rate(bytes_per_second);
        Ok(())
    }

    /// Does now what the store's own compactions would do as time goes by, until no file has a stale row
    /// and no two small files are left apart; gives the number of compactions. For tests: a user's is
    /// [`Store::compact`].
    ///
    /// # Errors
    /// The first failure, after the rest is done: `NoSpace`, `Io`, `Corrupt`, `Poisoned`,
    /// `ReadOnly`.
    #[cfg(feature = "sim")]
    #[doc(hidden)]
    pub fn compact_fully(&self) -> Result<u64> {
        let core = &self.parts.core;
        core.check_writable()?;
        let compacted = self.call(|parts| parts.compactor.compact_fully());
        if !matches!(compacted, Ok(0)) {
            core.publish(core.options.inline);
        }
        compacted
    }

    /// The files that [`Store::compact`] would rewrite, in this order, if nothing changed
    /// meanwhile. What a file costs is taken to be its length and the bytes of its live rows.
    ///
    /// # Cost
    /// No I/O.
    ///
    /// # Examples
    /// ```
    /// # use hps::*;
    /// # let directory = std::env::temp_dir().join(format!("hps-plan-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// let limits = CompactLimits::new().stale_share(0.3);
    /// let bytes: u64 = store.compaction_plan(&limits).iter().map(|file| file.bytes).sum();
    /// println!("{bytes} bytes would be read");
    /// # store.close_discarding();
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    #[must_use]
    pub fn compaction_plan(&self, limits: &CompactLimits) -> Vec<FileInfo> {
        let files = self.files();
        if files.is_empty() {
            return files;
        }
        let mut plan = Vec::new();
        let mut budget = limits.bytes_max.unwrap_or(u64::MAX);
        let core = &self.parts.core;
        for directory in 0..core.ssd.directories.len() {
            let mut left = {
                let versions = core.ssd.versions();
                self.parts.compactor.candidates(&versions, directory)
            };
            while budget > 0 {
                let size = core.file_bytes;
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
    /// can't be dropped; one that a reader has open, or a [`crate::Hold`] keeps, stays, and is told.
    ///
    /// # Cost
    /// An edit of the manifest and its syncs; an unlink per file.
    ///
    /// # Durability
    /// They are gone for good once this returns; after a crash before that, all are there or none.
    ///
    /// # Errors
    /// `InvalidArgument` for a checkpoint that is not retained or is the last one (nothing
    /// changed), `NoSpace`, `Io`, `Poisoned`, `ReadOnly`.
    ///
    /// # Examples
    /// ```
    /// # use hps::*;
    /// # let directory = std::env::temp_dir().join(format!("hps-drop-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// let first = store.checkpoint(1, &[])?.id;
    /// store.checkpoint(2, &[])?;
    /// let report = store.drop_checkpoints(&[first])?;
    /// assert_eq!(report.dropped, [first]);
    /// assert_eq!(store.checkpoints().len(), 1);
    /// # store.close()?;
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn drop_checkpoints(&self, ids: &[CheckpointId]) -> Result<DropReport> {
        let core = &self.parts.core;
        core.check_writer()?;
        let mut dropped = ids.to_vec();
        dropped.sort_unstable();
        dropped.dedup();
        core.guarded(|| {
            let (held, freed_bytes) = self.parts.checkpointer.forget(&dropped)?;
            dropped.retain(|id| !held.contains(id));
            Ok(DropReport {
                dropped,
                held,
                freed_bytes,
            })
        })
    }

    /// The data directories, in the order of the create.
    ///
    /// # Cost
    /// No I/O.
    ///
    /// # Examples
    /// ```
    /// # use hps::*;
    /// # let directory = std::env::temp_dir().join(format!("hps-places-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// let create = CreateOptions::new().data_directories(vec!["ssd-0".into(), "ssd-1".into()]);
    /// let store = Store::create(&directory, create, options)?;
    /// for place in store.directories() {
    ///     println!("{}: {} bytes in use", place.path.display(), place.current_bytes);
    ///     if let Some(failure) = place.failure {
    ///         println!("its compactions fail: {failure}");
    ///     }
    /// }
    /// # assert_eq!(store.directories()[1].path, directory.join("ssd-1"));
    /// # store.close_discarding();
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    #[must_use]
    pub fn directories(&self) -> Vec<DirectoryInfo> {
        let core = &self.parts.core;
        let records = self.parts.compactor.records();
        let versions = core.ssd.versions();
        let places = core.ssd.directories.iter().map(|place| place.path());
        let info = |(d, (path, (record, is_paused))): (usize, (&Path, (Record, bool)))| {
            let usage = versions.usage_of(|other| other == d);
            DirectoryInfo {
                path: path.to_path_buf(),
                files: usage.files,
                current_bytes: usage.current_bytes,
                live_bytes: usage.live_bytes,
                pinned_bytes: usage.pinned_bytes,
                files_set_aside: versions.aside_in(d).count() as u64,
                compactions: record.done,
                compaction_failures: record.failed,
                failure: record.failure,
                is_paused,
            }
        };
        places.zip(records).enumerate().map(info).collect()
    }
}

#[cfg(test)]
mod tests;
