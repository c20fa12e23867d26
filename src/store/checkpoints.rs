//! The calls for checkpoints: how is a moment kept, and how does one get back to it?

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::open;
use super::{CheckpointInfo, CheckpointTicket, Store};
use crate::error::{ArgumentError, Result};
use crate::format::delta::Delta;
use crate::io::{Directory, Io};
use crate::options::RuntimeOptions;
use crate::ssd::tables::TableState;
use crate::units::CheckpointId;

impl Store {
    /// Makes everything pushed so far durable, together with `meta`.
    ///
    /// # Cost
    /// The rows that changed since they were last written, and a few syncs per data directory.
    /// Checkpoints beyond `retain_checkpoints` are dropped.
    ///
    /// # Durability
    /// All earlier pushes, puts, removes and tables survive a crash once this returns, or none of
    /// those since the checkpoint before.
    ///
    /// # Errors
    /// `InvalidArgument` when `step` does not rise or `meta` is too long, `NoSpace`, `Io`, `Poisoned`,
    /// `ReadOnly`.
    ///
    /// # Examples
    /// ```
    /// # use hps::*;
    /// # let directory = std::env::temp_dir().join(format!("hps-checkpoint-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// # let items = store.create_table(&TableDescriptor::new("items", 4))?;
    /// # let lease = store.pull(items, &[7, 8], &mut [0.0; 8])?;
    /// # store.push(&lease, Update::weights(&[0.5; 8]))?;
    /// # drop(lease);
    /// let info = store.checkpoint(1, b"offsets of the reader, dense weights, ...")?;
    /// assert_eq!(info.step, 1);
    /// assert_eq!(store.last_checkpoint().map(|c| c.id), Some(info.id));
    /// # store.close()?;
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn checkpoint(&self, step: u64, meta: &[u8]) -> Result<CheckpointInfo> {
        self.checkpoint_begin(step, meta)?.wait()
    }

    /// Freezes the cut and writes behind: training may go on at once. Waits first for a
    /// checkpoint that is still running.
    ///
    /// # Cost
    /// As [`Store::checkpoint`], beside training; a slot for each row that is changed before its frozen
    /// state was written.
    ///
    /// # Durability
    /// None yet: with [`CheckpointTicket::wait`].
    ///
    /// # Errors
    /// As [`Store::checkpoint`]; what happens later comes from [`CheckpointTicket::wait`].
    ///
    /// # Examples
    /// ```
    /// # use hps::*;
    /// # let directory = std::env::temp_dir().join(format!("hps-begin-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// # let items = store.create_table(&TableDescriptor::new("items", 4))?;
    /// # let lease = store.pull(items, &[7, 8], &mut [0.0; 8])?;
    /// # store.push(&lease, Update::weights(&[0.5; 8]))?;
    /// # drop(lease);
    /// let ticket = store.checkpoint_begin(1, &[])?;
    /// let lease = store.pull(items, &[7], &mut [0.0; 4])?;
    /// store.push(&lease, Update::deltas(&[1.0; 4]))?; // is not in the checkpoint
    /// drop(lease);
    /// let info = ticket.wait()?; // durable from here on
    /// # assert_eq!(info.step, 1);
    /// # store.close_discarding();
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn checkpoint_begin(&self, step: u64, meta: &[u8]) -> Result<CheckpointTicket> {
        self.call(|parts| parts.checkpointer.begin(step, meta))
    }

    /// Retained checkpoints, oldest first.
    ///
    /// # Cost
    /// No I/O.
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
    ///
    /// # Cost
    /// No I/O.
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

    /// The bytes given to a retained checkpoint; in a copy that takes deltas ([`Store::apply_delta`]), those given to
    /// the checkpoint that it is a copy of.
    ///
    /// # Cost
    /// Reads them; they are verified.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown checkpoint, `Corrupt`, `Io`.
    ///
    /// # Examples
    /// ```
    /// # use hps::*;
    /// # let directory = std::env::temp_dir().join(format!("hps-meta-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// store.checkpoint(1, b"first")?;
    /// store.checkpoint(2, b"second")?;
    /// for checkpoint in store.checkpoints() {
    ///     println!("{}: {} bytes", checkpoint.step, store.checkpoint_meta(checkpoint.id)?.len());
    /// }
    /// # store.close()?;
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn checkpoint_meta(&self, id: CheckpointId) -> Result<Vec<u8>> {
        self.parts.core.check_process()?;
        let mut meta = self.parts.core.ssd.read_meta(id)?;
        if let Some((_, _, own)) = Delta::at_end(&meta) {
            meta.truncate(own.len());
        }
        Ok(meta)
    }

    /// Goes back to a retained checkpoint; later ones, and all changes since, are gone.
    ///
    /// # Cost
    /// That of an open.
    ///
    /// # Durability
    /// The store opens at that checkpoint once this returns.
    ///
    /// # Errors
    /// Before anything is changed: `InvalidArgument` (unknown checkpoint, leases or tickets outstanding,
    /// a cache too small for a dropped table that comes back), `UnsupportedTable` (one that comes back
    /// and that this build can't compute with), `NoSpace`, `Poisoned`, `ReadOnly`.
    ///
    /// The store is opened after the change. `Corrupt` or `Locked` from there leaves it rolled back; after
    /// `Io` only an open shows whether it is.
    ///
    /// After an error the handle is gone, as if dropped: ask [`Store::check_rollback`] first.
    ///
    /// # Examples
    /// ```
    /// # use hps::*;
    /// # let directory = std::env::temp_dir().join(format!("hps-rollback-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// # let items = store.create_table(&TableDescriptor::new("items", 4))?;
    /// # let lease = store.pull(items, &[7, 8], &mut [0.0; 8])?;
    /// # store.push(&lease, Update::weights(&[0.5; 8]))?;
    /// # drop(lease);
    /// let good = store.checkpoint(1, &[])?.id;
    /// store.remove(items, &[7])?;
    /// store.checkpoint(2, &[])?; // the model got worse
    /// let store = store.rollback(good)?;
    /// assert_eq!(store.contains(items, &[7])?, [true]);
    /// # store.close_discarding();
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn rollback(mut self, id: CheckpointId) -> Result<Store> {
        let core = Arc::clone(&self.parts.core);
        let (io, root, options) = core.guarded(|| self.roll_back(id))?;
        drop(core);
        drop(self);
        let place = open::Place::Open(&root);
        Store::start(open::open(&io, place, options, false, None)?)
    }

    /// Whether [`Store::rollback`] would be refused before anything is changed, and why: for who wants
    /// to keep the store then. Waits for a running checkpoint.
    ///
    /// # Cost
    /// No I/O of its own.
    ///
    /// # Errors
    /// Those of [`Store::rollback`] that come before anything is changed, but for `NoSpace`.
    ///
    /// # Examples
    /// ```
    /// # use hps::*;
    /// # let directory = std::env::temp_dir().join(format!("hps-may-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// let good = store.checkpoint(1, &[])?.id;
    /// assert!(store.check_rollback(CheckpointId(99)).is_err()); // and the store is there
    /// store.check_rollback(good)?;
    /// let store = store.rollback(good)?;
    /// # store.close_discarding();
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn check_rollback(&self, id: CheckpointId) -> Result<()> {
        let core = &self.parts.core;
        core.check_process()?;
        core.guarded(|| self.rolled_back(id)).map(drop)
    }

    /// The tables as they are now, and the options of the store that a rollback makes: if it can be
    /// had. Nothing is changed.
    fn rolled_back(&self, id: CheckpointId) -> Result<(Vec<TableState>, RuntimeOptions)> {
        let core = &self.parts.core;
        core.check_writable()?;
        self.parts.puller.wait_cancelled();
        let count = self.parts.puller.outstanding();
        if count > 0 {
            return Err(ArgumentError::LeasesOutstanding {
                what: "a rollback",
                count,
            }
            .into());
        }
        self.finish_checkpoint();
        let now = core.table_states();
        let then = core.ssd.tables_rolled_back(id, &now)?;
        let options = RuntimeOptions {
            tables: core.table_options_of(&then),
            cache_bytes: core.cache_bytes(),
            ..core.options.clone()
        };
        // Once CURRENT is written, the caller has that store and no other.
        open::check(&self.parts, &then, &options)?;
        Ok((now, options))
    }

    /// The files as they are to be; the store is closed then.
    fn roll_back(&mut self, id: CheckpointId) -> Result<(Io, Arc<dyn Directory>, RuntimeOptions)> {
        let (now, options) = self.rolled_back(id)?;
        let core = Arc::clone(&self.parts.core);
        let (io, root) = (core.ssd.io.clone(), Arc::clone(&core.ssd.root));
        self.stop();
        let uuid = io.disk.fresh_uuid();
        core.ssd.rollback(id, uuid, &now)?;
        core.ssd.release_locks();
        Ok((io, root, options))
    }

    /// Makes a store at `target` that holds one retained checkpoint, by hard links: no bytes of
    /// rows are copied. `parts` names a directory per data directory, each on its file system;
    /// empty: inside `target`.
    ///
    /// # Cost
    /// A hard link per file of the checkpoint, a copy of its meta, some syncs.
    ///
    /// # Durability
    /// The export survives a crash once this returns.
    ///
    /// # Errors
    /// `InvalidArgument` (unknown checkpoint, directory in use), `Io` (another file system).
    ///
    /// # Examples
    /// ```
    /// # use hps::*;
    /// # let directory = std::env::temp_dir().join(format!("hps-export-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// # let items = store.create_table(&TableDescriptor::new("items", 4))?;
    /// # let lease = store.pull(items, &[7, 8], &mut [0.0; 8])?;
    /// # store.push(&lease, Update::weights(&[0.5; 8]))?;
    /// # drop(lease);
    /// let id = store.checkpoint(1, &[])?.id;
    /// let target = directory.with_extension("export");
    /// store.export(id, &target, &[])?;
    /// let export = Store::open(&target, RuntimeOptions::new().cache_bytes(8 << 20))?;
    /// assert_eq!(export.contains(items, &[7])?, [true]);
    /// # export.close()?;
    /// # std::fs::remove_dir_all(&target).ok();
    /// # store.close_discarding();
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn export(&self, id: CheckpointId, target: &Path, parts: &[PathBuf]) -> Result<()> {
        let core = &self.parts.core;
        core.check_process()?;
        let (ssd, tables) = (&core.ssd, core.table_states());
        let uuid = ssd.io.disk.fresh_uuid();
        core.guarded(|| ssd.export(id, target, parts, uuid, &tables))
    }
}
