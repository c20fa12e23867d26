//! The store: tables of rows in memory and on SSD, behind batch calls.
//!
//! The only place that knows both `mem` and `ssd`. [`Store`] is a thin handle: each call is one
//! line into the part that owns the matter ([`parts::Parts`]).

mod batches;
mod checkpoint;
mod checkpoints;
mod compact;
mod core;
mod delta;
mod flush;
mod hold;
mod lease;
mod maintain;
mod many;
mod open;
mod open_or_create;
mod parts;
mod pass;
mod passes;
mod pull;
mod push;
mod put;
mod rebuild_index;
mod rows;
mod tables;
mod unique;
mod warm;
mod workers;

use std::path::Path;

pub use checkpoint::{CheckpointInfo, CheckpointTicket};
pub use delta::{DeltaBase, DeltaInfo, DeltaReport};
pub use hold::{Hold, Identity};
pub use lease::{Lease, LeasePart};
pub use maintain::{
    CompactLimits, CompactProgress, CompactReport, DirectoryInfo, DropReport, FileInfo,
};
pub use pass::{Pass, PassPart, PassReport, PassTable, PassTicket};
pub use pull::{PrefetchPart, PullPart, Ticket};
pub use push::{PushPart, PushReport, Update};
pub use put::{PutReport, PutRows};
pub use rows::{Change, CursorInfo, Incremental, Row, RowIter};
pub use unique::Unique;

use crate::error::{Error, Result};
use crate::io::Io;
use crate::options::{CreateOptions, RuntimeOptions};
use crate::ssd::create::{self, Unfinished};
use crate::ssd::held::Held;
use crate::stats::Stats;
use crate::units::CheckpointId;
use open::Threads;
use parts::Parts;

/// An open store.
///
/// All calls are batch calls and thread-safe. Dropping it equals a crash: it reopens at its last
/// checkpoint; [`Store::close`] says whether that loses anything.
///
/// It belongs to the process that opened it. In a forked child every call gives
/// [`Error::Forked`], what can't fail shows an empty store, and dropping it, or anything that it
/// gave, does nothing.
#[derive(Debug)]
pub struct Store {
    parts: Parts,
    threads: Threads,
}

impl Store {
    /// Makes an empty store and opens it for writing.
    ///
    /// # Cost
    /// Some small files and their syncs.
    ///
    /// # Durability
    /// An empty store survives a crash once this returns; tables do from the first checkpoint on.
    ///
    /// # Errors
    /// `InvalidArgument` when `directory` holds a store or anything else, or an option is out of its
    /// range; `Locked`, `NoSpace`, `Io`.
    ///
    /// # Examples
    /// ```
    /// # use hps::*;
    /// # fn main() -> hps::Result<()> {
    /// # let place = std::env::temp_dir().join(format!("hps-create-{}", std::process::id()));
    /// # std::fs::create_dir_all(&place).unwrap();
    /// # let directory = place.join("store");
    /// let parts = vec![place.join("ssd-0"), place.join("ssd-1")];
    /// let fixed = CreateOptions::new().data_directories(parts);
    /// let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// Store::create(&directory, fixed, options.clone())?.close()?;
    /// let store = Store::open(&directory, options)?; // it knows where they are
    /// assert_eq!(store.directories().len(), 2);
    /// # store.close()?;
    /// # std::fs::remove_dir_all(&place).ok();
    /// # Ok(())
    /// # }
    /// ```
    pub fn create(
        directory: &Path,
        create: CreateOptions,
        options: RuntimeOptions,
    ) -> Result<Store> {
        let io = open::choose_io(options.io);
        Store::create_with(&io, directory, create, options, Unfinished::Refused)
    }

    /// Opens a store for writing, at its last checkpoint.
    ///
    /// # Cost
    /// Reads the index snapshot (16 bytes a row) and the key blocks of younger files (12 bytes a row),
    /// never rows.
    ///
    /// # Durability
    /// What was not in a checkpoint is gone, as if it had never been pushed.
    ///
    /// # Errors
    /// `InvalidArgument` when there is no store or an option is out of its range, `Locked`,
    /// `MissingDirectory`, `Corrupt`, `Unsupported`, `Io`.
    ///
    /// # Examples
    /// ```
    /// # use hps::*;
    /// # let directory = std::env::temp_dir().join(format!("hps-open-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// # let items = store.create_table(&TableDescriptor::new("items", 4))?;
    /// # store.checkpoint(1, b"the trainer's own state")?;
    /// # store.close()?;
    /// let store = Store::open(&directory, RuntimeOptions::new().cache_bytes(16 << 20))?;
    /// let last = store.last_checkpoint().map(|c| c.id);
    /// assert_eq!(store.table("items")?, items); // as it was at the last checkpoint
    /// assert_eq!(store.checkpoint_meta(last.unwrap())?, b"the trainer's own state");
    /// # store.close()?;
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn open(directory: &Path, options: RuntimeOptions) -> Result<Store> {
        Store::open_with(&open::choose_io(options.io), directory, options)
    }

    /// Opens a retained checkpoint (`None`: the last) for reading, beside a writer or not. The
    /// writer keeps the checkpoint while it is open.
    ///
    /// # Cost
    /// As [`Store::open`]. Parameter files stay open, whatever `open_files_max` says.
    ///
    /// # Errors
    /// As [`Store::open`]; `InvalidArgument` when the checkpoint is not retained. `Locked` is told only
    /// where the writer is dropping it.
    ///
    /// # Examples
    /// ```
    /// # use hps::*;
    /// # let directory = std::env::temp_dir().join(format!("hps-reader-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// # let items = store.create_table(&TableDescriptor::new("items", 4))?;
    /// # let lease = store.pull(items, &[7, 8], &mut [0.0; 8])?;
    /// # store.push(&lease, Update::weights(&[0.5; 8]))?;
    /// # drop(lease);
    /// let then = store.checkpoint(1, &[])?.id;
    /// let lease = store.pull(items, &[7], &mut [0.0; 4])?;
    /// store.push(&lease, Update::deltas(&[1.0; 4]))?; // training goes on
    /// let options = RuntimeOptions::new().cache_bytes(8 << 20);
    /// let reader = Store::open_read_only(&directory, Some(then), options)?;
    /// let mut row = [9.0; 4];
    /// reader.pull(items, &[7], &mut row)?;
    /// assert_eq!(row, [0.5; 4]); // as of the checkpoint
    /// # drop((reader, lease));
    /// # store.close_discarding();
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn open_read_only(
        directory: &Path,
        checkpoint: Option<CheckpointId>,
        options: RuntimeOptions,
    ) -> Result<Store> {
        let place = open::Place::Path(directory);
        let io = open::choose_io(options.io);
        Store::start(open::open(&io, place, options, true, checkpoint)?)
    }

    fn create_with(
        io: &Io,
        directory: &Path,
        create: CreateOptions,
        options: RuntimeOptions,
        unfinished: Unfinished,
    ) -> Result<Store> {
        open::validate(&options)?;
        open::check_nothing_moved(&options)?;
        let parts = create.data_directories;
        workers::rehearse(directory, &options, parts.len())?;
        let (store, timeline) = (io.disk.fresh_uuid(), io.disk.fresh_uuid());
        create::create(&*io.disk, directory, &parts, (store, timeline), unfinished)?;
        Store::open_with(io, directory, options)
    }

    fn open_with(io: &Io, directory: &Path, options: RuntimeOptions) -> Result<Store> {
        let place = open::Place::Path(directory);
        Store::start(open::open(io, place, options, false, None)?)
    }

    /// [`Store::create`] on a disk of the caller's.
    ///
    /// # Errors
    /// As [`Store::create`].
    #[cfg(feature = "sim")]
    #[doc(hidden)]
    pub fn create_on(
        io: impl Into<Io>,
        directory: &Path,
        create: CreateOptions,
        options: RuntimeOptions,
    ) -> Result<Store> {
        Store::create_with(&io.into(), directory, create, options, Unfinished::Refused)
    }

    /// [`Store::open`] on a disk of the caller's.
    ///
    /// # Errors
    /// As [`Store::open`].
    #[cfg(feature = "sim")]
    #[doc(hidden)]
    pub fn open_on(io: impl Into<Io>, directory: &Path, options: RuntimeOptions) -> Result<Store> {
        Store::open_with(&io.into(), directory, options)
    }

    /// [`Store::open_read_only`] on a disk of the caller's.
    ///
    /// # Errors
    /// As [`Store::open_read_only`].
    #[cfg(feature = "sim")]
    #[doc(hidden)]
    pub fn open_read_only_on(
        io: impl Into<Io>,
        directory: &Path,
        checkpoint: Option<CheckpointId>,
        options: RuntimeOptions,
    ) -> Result<Store> {
        let place = open::Place::Path(directory);
        Store::start(open::open(&io.into(), place, options, true, checkpoint)?)
    }

    fn start(parts: Parts) -> Result<Store> {
        let threads = Threads::start(&parts)?;
        Ok(Store { parts, threads })
    }

    /// Does the work of a call: a panic poisons the store. Not for a forked child.
    fn call<T>(&self, work: impl FnOnce(&Parts) -> Result<T>) -> Result<T> {
        let core = &self.parts.core;
        core.check_process()?;
        core.guarded(|| work(&self.parts))
    }

    /// Writes out every dirty row, without a sync. For tools and tests: the store does so itself.
    /// Beside a running checkpoint rows that changed after its cut stay in memory.
    ///
    /// # Cost
    /// Each dirty row is written once, into new parameter files.
    ///
    /// # Durability
    /// None.
    ///
    /// # Errors
    /// `NoSpace`, `Io`, `Poisoned`, `ReadOnly`.
    pub fn flush(&self) -> Result<u64> {
        self.parts.core.check_writable()?;
        self.call(|parts| parts.flusher.flush_all())
    }

    /// Everything that is counted.
    ///
    /// # Cost
    /// No I/O; each shard is locked once.
    ///
    /// # Examples
    /// ```
    /// # use hps::Store;
    /// # fn tell(store: &Store) {
    /// let stats = store.stats();
    /// println!("{} rows in memory, {} of them dirty", stats.resident_rows, stats.dirty_rows);
    /// for table in &stats.tables {
    ///     println!("{}: {:.1} % hits", table.name, 100.0 * table.hit_rate());
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn stats(&self) -> Stats {
        match self.parts.core.check_process() {
            Ok(()) => self.parts.core.stats(),
            Err(_) => Stats::default(),
        }
    }

    /// Gives everything that is counted to the recorder that the program has installed for the
    /// facade `metrics`: each field of [`Stats`] as `hps_<field>` or `hps_<field>_total`, with the
    /// labels `store` (the directory) and `mode` (`writer` or `reader`); waits also by table and
    /// cause. docs/OBSERVABILITY.md lists them.
    ///
    /// An open store does so itself once it sees a recorder: about once a second, after each
    /// checkpoint and compaction, and when it is closed; with [`RuntimeOptions::inline`] only after
    /// these, for want of a thread. Call it before a scrape that has to be exact, or with a
    /// recorder that has no fields (the facade shows it as none). What a call finds counted when no
    /// recorder is installed is lost to one that comes later.
    ///
    /// # Cost
    /// As [`Store::stats`], and a look-up by the recorder per metric.
    pub fn publish_metrics(&self) {
        let core = &self.parts.core;
        if core.check_process().is_ok() {
            core.publish_to_any(true);
        }
    }

    /// Closes a store that has no changes after its last checkpoint.
    ///
    /// # Cost
    /// Waits for a running checkpoint, for files that the last one has made needless to be unlinked, and for the index
    /// snapshot if one is being written.
    ///
    /// # Durability
    /// None of its own: what the last checkpoint has is durable already.
    ///
    /// # Errors
    /// `Uncheckpointed` with the store unharmed on disk at its last checkpoint, and closed; use
    /// [`Store::has_changes`] to ask first.
    ///
    /// # Examples
    /// ```
    /// # use hps::*;
    /// # let directory = std::env::temp_dir().join(format!("hps-close-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// # let items = store.create_table(&TableDescriptor::new("items", 4))?;
    /// let lease = store.pull(items, &[7], &mut [0.0; 4])?;
    /// store.push(&lease, Update::deltas(&[1.0; 4]))?;
    /// drop(lease);
    /// if store.has_changes() {
    ///     store.checkpoint(1, &[])?;
    /// }
    /// store.close()?;
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn close(mut self) -> Result<()> {
        self.parts.core.check_process()?;
        // Waits for a running checkpoint: only its end tells what it leaves behind.
        self.stop();
        self.tidy();
        let changed = self.has_changes();
        let rows = self.parts.core.uncheckpointed_rows().max(1);
        if changed && !self.parts.core.read_only {
            return Err(Error::Uncheckpointed { rows });
        }
        Ok(())
    }

    /// Closes the store and gives up the changes after its last checkpoint.
    ///
    /// # Cost
    /// As [`Store::close`].
    pub fn close_discarding(mut self) {
        if self.parts.core.check_process().is_err() {
            return;
        }
        self.parts.core.changes.discard();
        self.stop();
        self.tidy();
    }

    /// Leaves the files of the retained checkpoints. Where a lease or ticket is out, its rows may
    /// still be read: that is left to the next open.
    fn tidy(&self) {
        if !self.parts.core.read_only && self.parts.in_use() == 0 {
            self.parts.core.ssd.remove_uncommitted();
        }
    }

    /// Whether something was pushed, put or removed, or a table dropped or renamed, since the last
    /// checkpoint.
    ///
    /// # Cost
    /// No I/O.
    ///
    /// # Examples
    /// ```
    /// # use hps::*;
    /// # let directory = std::env::temp_dir().join(format!("hps-changes-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// # let items = store.create_table(&TableDescriptor::new("items", 4))?;
    /// # let mut weights = [0.0; 4];
    /// let lease = store.pull(items, &[7], &mut weights)?;
    /// store.push(&lease, Update::gradients(&weights, 0.1))?;
    /// assert!(store.has_changes());
    /// store.checkpoint(1, &[])?;
    /// assert!(!store.has_changes());
    /// # drop(lease);
    /// # store.close_discarding();
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    #[must_use]
    pub fn has_changes(&self) -> bool {
        let core = &self.parts.core;
        core.changes.any() && core.check_process().is_ok()
    }

    /// Waits for a running checkpoint.
    fn finish_checkpoint(&self) {
        let core = &self.parts.core;
        if !core.read_only && !core.options.inline {
            drop(self.parts.checkpointer.wait_idle());
        }
    }

    fn stop(&mut self) {
        self.finish_checkpoint();
        let core = &self.parts.core;
        if !core.read_only && !core.options.inline {
            self.parts.checkpointer.wait_snapshots();
        }
        // A put of a pass, which needs no store at hand, is done with, or sees that it is too late.
        let gate = core.gate_alone();
        core.close();
        drop(gate);
        self.threads.join(core);
        self.parts.passes.blocks.let_go(|_| true);
        core.ssd.keep_iterated();
        core.publish(core.options.inline);
        let held_is_exact = || {
            let versions = core.ssd.versions();
            versions.held().iter().all(Held::equals_a_recount)
        };
        let sound = !std::thread::panicking() && core.ssd.check_writable().is_ok();
        debug_assert!(
            !sound || held_is_exact(),
            "what directories hold is counted"
        );
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if self.parts.core.leave_to_parent(&self.parts) {
            self.threads.leave_to_parent();
            return;
        }
        let core = &self.parts.core;
        if core.is_closed() {
            return;
        }
        if self.has_changes() && !core.read_only {
            let path = core.ssd.root.path().display();
            tracing::warn!(%path, "dropped with changes after the last checkpoint: they are gone");
        }
        self.stop();
    }
}

#[cfg(test)]
mod tests;
