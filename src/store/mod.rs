//! The store: tables of rows in memory and on SSD, behind batch calls.
//!
//! The only place that knows both `mem` and `ssd`. [`Store`] is a thin handle: each call is one
//! line into the part that owns the matter ([`parts::Parts`]).

mod checkpoint;
mod compact;
mod core;
mod flush;
mod hold;
mod lease;
mod maintain;
mod many;
mod open;
mod open_or_create;
mod parts;
mod pull;
mod push;
mod put;
mod rebuild_index;
mod rows;
mod unique;
mod workers;

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use checkpoint::{CheckpointInfo, CheckpointTicket};
pub use hold::{Hold, Identity};
pub use lease::{Lease, LeasePart};
pub use maintain::{
    CompactLimits, CompactProgress, CompactReport, DirectoryInfo, DropReport, FileInfo,
};
pub use pull::{PrefetchPart, PullPart, Ticket};
pub use push::{PushPart, PushReport, Update};
pub use put::{PutReport, PutRows};
pub use rows::{Row, RowIter};
pub use unique::Unique;

use crate::error::{ArgumentError, Error, Result};
use crate::io::{Directory, Io};
use crate::options::{CreateOptions, RuntimeOptions, TableDescriptor, TableOptions};
use crate::ssd::create::{self, Unfinished};
use crate::ssd::held::Held;
use crate::stats::Stats;
use crate::units::{CheckpointId, TableId};
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
    /// Reads the index image (16 bytes a row) and the key blocks of younger files (12 bytes a row),
    /// never rows.
    ///
    /// # Errors
    /// `InvalidArgument` when there is no store, `Locked`, `Corrupt`, `Unsupported`, `Io`.
    pub fn open(directory: &Path, options: RuntimeOptions) -> Result<Store> {
        Store::open_with(&open::choose_io(options.io), directory, options)
    }

    /// Opens a retained checkpoint (`None`: the last) for reading, beside a writer or not. The
    /// writer keeps the checkpoint while it is open.
    ///
    /// # Errors
    /// As [`Store::open`]; `InvalidArgument` when the checkpoint is not retained.
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

    /// Adds a table, with what [`RuntimeOptions::tables`](field@RuntimeOptions::tables) says for its
    /// name; a table of the same name and descriptor is found instead.
    ///
    /// # Cost
    /// All rows leave memory, the dirty ones to SSD. Nothing where the table is there.
    ///
    /// # Durability
    /// With the next checkpoint.
    ///
    /// # Errors
    /// `InvalidArgument`: a bad or changed descriptor, leases outstanding, a cache too small.
    pub fn create_table(&self, descriptor: &TableDescriptor) -> Result<TableId> {
        self.call(|parts| {
            parts.create_table(&open::Wanted {
                descriptor,
                options: None,
            })
        })
    }

    /// [`Store::create_table`] with options in the place of what
    /// [`RuntimeOptions::tables`](field@RuntimeOptions::tables) says for its name. A table that is there
    /// has them from now on too.
    ///
    /// # Cost
    /// All rows leave memory, the dirty ones to SSD. Nothing where the table is there and has these
    /// options.
    ///
    /// # Durability
    /// The table's with the next checkpoint. Options are not stored: they hold until the store is
    /// closed, also after a rollback.
    ///
    /// # Errors
    /// As [`Store::create_table`]; `InvalidArgument` naming the option that is out of range;
    /// `ReadOnly` where a reader would have to change them.
    ///
    /// ```
    /// # use hps::*;
    /// # fn main() -> hps::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("hps-table-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// let adam = |name| TableDescriptor::new(name, 8).optimizer(Optimizer::Adam);
    /// store.create_table(&adam("items"))?; // the defaults of all tables
    /// let calm = TableOptions::new().hyper(HyperParameters::new().beta1(0.5));
    /// store.create_table_with(&adam("users"), calm.policy(PolicyKind::PinAll))?;
    /// assert_eq!(store.stats().tables[1].policy, PolicyKind::PinAll);
    /// # store.close_discarding();
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # Ok(())
    /// # }
    /// ```
    pub fn create_table_with(
        &self,
        descriptor: &TableDescriptor,
        options: TableOptions,
    ) -> Result<TableId> {
        let options = Some(options);
        self.call(|parts| {
            parts.create_table(&open::Wanted {
                descriptor,
                options,
            })
        })
    }

    /// Finds a table by name.
    ///
    /// # Errors
    /// `InvalidArgument` naming the tables there are.
    pub fn table(&self, name: &str) -> Result<TableId> {
        self.parts.core.check_process()?;
        let tables = self.parts.core.all_tables();
        let found = tables
            .iter()
            .find(|t| t.descriptor.name == name)
            .map(|t| t.id);
        found.ok_or_else(|| {
            let known = tables.iter().map(|t| t.descriptor.name.clone()).collect();
            ArgumentError::UnknownTable {
                name: name.to_owned(),
                known,
            }
            .into()
        })
    }

    /// All tables, by id.
    #[must_use]
    pub fn tables(&self) -> Vec<(TableId, TableDescriptor)> {
        if self.parts.core.check_process().is_err() {
            return Vec::new();
        }
        self.parts
            .core
            .all_tables()
            .iter()
            .map(|t| (t.id, t.descriptor.clone()))
            .collect()
    }

    /// Makes rows resident, pins them and copies their weights.
    ///
    /// # Shapes
    /// keys: `[n]`, any u64, duplicates allowed; out: `[n, dim]`, in the same order
    ///
    /// # Cost
    /// A device read per distinct cold row, neighbours together; a copy per key.
    ///
    /// # Errors
    /// (What is in `out` then is undefined.)
    /// `OverBudget` when the batch can't be in memory beside the outstanding leases (nobody
    /// waits), `InvalidArgument`, `Io`, `Corrupt`, `NoSpace` or `Poisoned` (room needed a flush).
    pub fn pull(&self, table: TableId, keys: &[u64], out: &mut [f32]) -> Result<Lease> {
        let table = self.parts.core.table(table)?;
        self.call(|parts| parts.puller.pull(&table, keys, out))
    }

    /// Starts making rows resident. Values are gathered when the lease is read, so a prefetch
    /// changes when rows are read from SSD, never what a batch sees.
    ///
    /// # Shapes
    /// keys: `[n]`
    ///
    /// # Errors
    /// `InvalidArgument`; everything else comes from [`Ticket::wait`].
    pub fn prefetch(&self, table: TableId, keys: &[u64]) -> Result<Ticket> {
        let table = self.parts.core.table(table)?;
        self.call(|parts| parts.puller.prefetch(&table, keys))
    }

    /// Changes the rows of a lease.
    ///
    /// # Cost
    /// No I/O; a pass over the values and the rows.
    ///
    /// # Durability
    /// With the next checkpoint.
    ///
    /// # Errors
    /// `InvalidArgument` (a lease of another store, lengths, lr, values that are not finite when
    /// the options reject them), `ReadOnly`, `Poisoned`; nothing changed, unless the store is
    /// poisoned meanwhile: then some rows may be, in memory, and no checkpoint will have them.
    pub fn push(&self, lease: &Lease, update: Update<'_>) -> Result<PushReport> {
        self.call(|parts| parts.pusher.push(lease, update))
    }

    /// Which keys were pushed and not removed since. No I/O.
    ///
    /// # Errors
    /// `InvalidArgument` for a table of another store.
    pub fn contains(&self, table: TableId, keys: &[u64]) -> Result<Vec<bool>> {
        let table = self.parts.core.table(table)?;
        self.call(|parts| Ok(parts.puller.contains(&table, keys)))
    }

    /// Forgets keys: they have the initialiser's row again. Returns how many were known.
    ///
    /// # Durability
    /// With the next checkpoint.
    ///
    /// # Errors
    /// `OverBudget`, `NoSpace`, `Io`, `Poisoned`, `ReadOnly`.
    pub fn remove(&self, table: TableId, keys: &[u64]) -> Result<u64> {
        let table = self.parts.core.table(table)?;
        self.call(|parts| parts.puller.remove(&table, keys))
    }

    /// Writes out every dirty row, without a sync. For tools and tests: the store does so itself.
    /// Beside a running checkpoint rows that changed after its cut stay in memory.
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

    /// Makes everything pushed so far durable, together with `meta`.
    ///
    /// # Durability
    /// All earlier pushes, removes and tables survive a crash once this returns.
    ///
    /// # Errors
    /// `InvalidArgument` when `step` does not rise or `meta` is too long, `NoSpace`, `Io`, `Poisoned`,
    /// `ReadOnly`.
    pub fn checkpoint(&self, step: u64, meta: &[u8]) -> Result<CheckpointInfo> {
        self.checkpoint_begin(step, meta)?.wait()
    }

    /// Freezes the cut and writes behind: training may go on at once. Waits first for a
    /// checkpoint that is still running.
    ///
    /// # Errors
    /// As [`Store::checkpoint`]; what happens later comes from [`CheckpointTicket::wait`].
    pub fn checkpoint_begin(&self, step: u64, meta: &[u8]) -> Result<CheckpointTicket> {
        self.call(|parts| parts.checkpointer.begin(step, meta))
    }

    /// Retained checkpoints, oldest first.
    #[must_use]
    pub fn checkpoints(&self) -> Vec<CheckpointInfo> {
        let core = &self.parts.core;
        if core.check_process().is_err() {
            return Vec::new();
        }
        core.ssd
            .versions()
            .checkpoints
            .iter()
            .map(CheckpointInfo::from)
            .collect()
    }

    /// The last durable checkpoint.
    #[must_use]
    pub fn last_checkpoint(&self) -> Option<CheckpointInfo> {
        let core = &self.parts.core;
        core.check_process().ok()?;
        core.ssd
            .versions()
            .checkpoints
            .last()
            .map(CheckpointInfo::from)
    }

    /// The bytes given to a retained checkpoint.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown checkpoint, `Corrupt`, `Io`.
    pub fn checkpoint_meta(&self, id: CheckpointId) -> Result<Vec<u8>> {
        self.parts.core.check_process()?;
        self.parts.core.ssd.read_meta(id)
    }

    /// Goes back to a retained checkpoint; later ones, and all changes since, are gone.
    ///
    /// # Durability
    /// The store opens at that checkpoint once this returns.
    ///
    /// # Errors
    /// `InvalidArgument` (unknown checkpoint, leases or tickets outstanding), `Io`, `NoSpace`,
    /// `Poisoned`, `ReadOnly`. The handle is gone then too, as if dropped: ask
    /// [`Store::checkpoints`] first.
    pub fn rollback(mut self, id: CheckpointId) -> Result<Store> {
        let core = Arc::clone(&self.parts.core);
        let (io, root, options) = core.guarded(|| self.roll_back(id))?;
        drop(core);
        drop(self);
        let place = open::Place::Open(&root);
        Store::start(open::open(&io, place, options, false, None)?)
    }

    /// The files as they are to be; the store is closed then.
    fn roll_back(&mut self, id: CheckpointId) -> Result<(Io, Arc<dyn Directory>, RuntimeOptions)> {
        let core = Arc::clone(&self.parts.core);
        core.check_writer()?;
        self.parts.puller.wait_cancelled();
        let count = self.parts.puller.outstanding();
        if count > 0 {
            return Err(ArgumentError::LeasesOutstanding {
                what: "a rollback",
                count,
            }
            .into());
        }
        let (io, root) = (core.ssd.io.clone(), Arc::clone(&core.ssd.root));
        let mut options = core.options.clone();
        for table in core.all_tables() {
            let name = table.descriptor.name.clone();
            options.tables.insert(name, table.tuning().options);
        }
        self.stop();
        let uuid = io.disk.fresh_uuid();
        core.ssd.rollback(id, uuid, &core.descriptors())?;
        core.ssd.release_locks();
        Ok((io, root, options))
    }

    /// Makes a store at `target` that holds one retained checkpoint, by hard links: no bytes of
    /// rows are copied. `parts` names a directory per data directory, each on its file system;
    /// empty: inside `target`.
    ///
    /// # Durability
    /// The export survives a crash once this returns.
    ///
    /// # Errors
    /// `InvalidArgument` (unknown checkpoint, directory in use), `Io` (another file system).
    pub fn export(&self, id: CheckpointId, target: &Path, parts: &[PathBuf]) -> Result<()> {
        let core = &self.parts.core;
        core.check_process()?;
        let (ssd, tables) = (&core.ssd, core.descriptors());
        let uuid = ssd.io.disk.fresh_uuid();
        core.guarded(|| ssd.export(id, target, parts, uuid, &tables))
    }

    /// Everything that is counted.
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
    /// # Errors
    /// `Uncheckpointed` with the store unharmed on disk at its last checkpoint, and closed; use
    /// [`Store::has_changes`] to ask first.
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

    /// Whether something was pushed or removed since the last checkpoint.
    #[must_use]
    pub fn has_changes(&self) -> bool {
        let core = &self.parts.core;
        core.changes.any() && core.check_process().is_ok()
    }

    fn stop(&mut self) {
        let core = &self.parts.core;
        if !core.read_only && !core.options.inline {
            drop(self.parts.checkpointer.wait_idle());
            self.parts.checkpointer.wait_images();
        }
        core.close();
        self.threads.join(core);
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
