//! How does a copy of the store in another place get what changed, and only that?
//!
//! Invariants:
//! - Where a copy stands is the end of its last checkpoint's meta: it is there exactly if the rows are.
//! - Nothing is changed before the whole delta was read and fits the copy. What fails later poisons the
//!   copy, which opens at the checkpoint before.

use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use super::Store;
use super::core::Core;
use super::put::PutRows;
use super::rows::walk::{Scope, Walk};
use super::rows::{tables_of, walk_changes};
use crate::error::{ArgumentError, Error, Result};
use crate::format::delta::Delta;
use crate::options::TableDescriptor;
use crate::ssd::delta::{Base, Named, Plan, open_changes, read_delta};
use crate::ssd::recover::{OpenRequest, Recovered};
use crate::ssd::tables::TableState;
use crate::sync::Mutex;
use crate::units::{CheckpointId, TableId, narrow};

/// Rows that are put, and keys that are removed, at a time.
const PUT_F32S: usize = 1 << 20;
const PUT_KEYS: usize = 16 << 10;
const REMOVE_KEYS: usize = 4 << 10;

/// Lets deltas be applied one after the other.
#[derive(Debug, Default)]
pub struct Applier(Mutex<()>);

impl Applier {
    fn alone<T>(&self, apply: impl FnOnce() -> T) -> T {
        let _alone = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        apply()
    }
}

/// What the changes of a delta come after.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum DeltaBase<'a> {
    /// Nothing: it has all rows, and begins a copy in an empty store.
    Nothing,
    /// The delta in this folder, written from this store before; of it only the file `DELTA` is read.
    Delta(&'a Path),
    /// A retained checkpoint: the copy is an export of it ([`Store::export`]).
    Checkpoint(CheckpointId),
}

/// What a delta is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeltaInfo {
    /// The uuid of the store that it was written from.
    pub store: [u8; 16],
    /// The timeline of that store then: another one after each rollback.
    pub timeline: [u8; 16],
    /// The changes come after this checkpoint; [`CheckpointId::NONE`]: they are all rows.
    pub since: CheckpointId,
    /// A copy that has them is at this checkpoint.
    pub until: CheckpointId,
    /// Deltas before it in its chain.
    pub sequence: u64,
    /// The trainer's step.
    pub step: u64,
    /// Rows that changed.
    pub rows: u64,
    /// Keys that were removed.
    pub removed: u64,
}

impl From<&Delta> for DeltaInfo {
    fn from(delta: &Delta) -> DeltaInfo {
        DeltaInfo {
            store: delta.store,
            timeline: delta.timeline,
            since: delta.since,
            until: delta.until,
            sequence: delta.sequence,
            step: delta.step,
            rows: delta.rows,
            removed: delta.removed,
        }
    }
}

/// What [`Store::apply_delta`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeltaReport {
    /// The delta.
    pub delta: DeltaInfo,
    /// Whether it was applied now; it was applied last before, otherwise.
    pub is_new: bool,
}

impl Store {
    /// Writes the changes up to a retained checkpoint into a folder, which is made, or is empty: a delta, from which
    /// a copy of the store elsewhere is brought up to that checkpoint ([`Store::apply_delta`]). It has rows with their state, removed
    /// keys, tables that came, went or got another name, and the checkpoint's meta.
    ///
    /// What a delta comes after must be kept until it is written: by a retained checkpoint, or by a cursor
    /// ([`Store::set_cursor`]) that is moved once the delta is there.
    ///
    /// # Cost
    /// As [`Store::incremental`], and the rows written; the meta is in memory once.
    ///
    /// # Durability
    /// The folder survives a crash once this returns; one without a file `DELTA` is of a call that did not.
    ///
    /// # Errors
    /// `InvalidArgument` (`HistoryGone`, an unknown checkpoint, a folder in use, a delta of another store),
    /// `NoSpace`, `Io`, `Corrupt`.
    ///
    /// # Examples
    /// ```
    /// # use hps::*;
    /// # let directory = std::env::temp_dir().join(format!("hps-delta-{}", std::process::id()));
    /// # std::fs::create_dir_all(&directory).ok();
    /// # let options = || RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let trained = Store::create(&directory.join("trained"), CreateOptions::new(), options())?;
    /// # let items = trained.create_table(&TableDescriptor::new("items", 1))?;
    /// # let set = |keys: &[u64]| {
    /// #     let lease = trained.pull(items, keys, &mut vec![0.0; keys.len()])?;
    /// #     trained.push(&lease, Update::weights(&vec![0.5; keys.len()]))
    /// # };
    /// # set(&[1, 2, 3])?;
    /// let whole = directory.join("delta-0");
    /// let first = trained.checkpoint(1, &[])?.id;
    /// trained.write_delta(first, &whole, DeltaBase::Nothing)?;
    /// set(&[3, 4])?;
    /// trained.remove(items, &[1])?;
    /// let second = trained.checkpoint(2, &[])?.id;
    /// let changes = directory.join("delta-1");
    /// let info = trained.write_delta(second, &changes, DeltaBase::Delta(&whole))?;
    /// assert_eq!((info.sequence, info.rows, info.removed), (1, 2, 1));
    ///
    /// let served = Store::create(&directory.join("served"), CreateOptions::new(), options())?;
    /// served.apply_delta(&whole)?;
    /// served.apply_delta(&changes)?;
    /// let items = served.table("items")?;
    /// assert_eq!(served.contains(items, &[1, 2, 3, 4])?, [false, true, true, true]);
    /// # served.close()?;
    /// # trained.close()?;
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn write_delta(
        &self,
        until: CheckpointId,
        folder: &Path,
        base: DeltaBase<'_>,
    ) -> Result<DeltaInfo> {
        let core = &self.parts.core;
        core.check_process()?;
        let base = match base {
            DeltaBase::Nothing => Base::Nothing,
            DeltaBase::Checkpoint(id) => Base::Checkpoint(id),
            DeltaBase::Delta(before) => {
                let named = read_delta(&core.ssd.io, before)?;
                if !core.ssd.is_of_this_history(&named.delta) {
                    let why = "it was written from another store, or before this one was rolled back or repaired; \
                               begin with everything";
                    return Err(unusable(before, why));
                }
                let sequence = named.delta.next_sequence();
                let sequence =
                    sequence.ok_or_else(|| unusable(before, "its sequence is beyond reason"))?;
                Base::Delta(named, sequence)
            }
        };
        if base.since() == until {
            let why = format!("it ends with checkpoint {until} already: nothing comes after it");
            return Err(unusable(folder, &why));
        }
        self.call(|parts| {
            let core = &parts.core;
            let tables = tables_of(core, until)?;
            let range = (base.since(), until);
            let mut walk = walk_changes(core, range, tables, 0..=u64::MAX)?;
            let plan = Plan {
                folder,
                base,
                until,
                file_bytes: core.file_bytes,
            };
            let mut next = |row: &mut Vec<f32>| {
                let found = walk.next()?;
                row.clear();
                row.extend_from_slice(&walk.row);
                Ok(found)
            };
            let delta = core.ssd.write_delta(&plan, &mut next)?;
            Ok(DeltaInfo::from(&delta))
        })
    }

    /// Brings this store, a copy of another one, up to where a delta leads, with one checkpoint of the same step. The
    /// copy began as an empty store, or as an export of the checkpoint that the first delta comes after; changes come by
    /// deltas only, and nobody else changes it meanwhile. Applied again, the last delta does nothing.
    ///
    /// The checkpoint has the meta of the one that it is a copy of; [`Store::checkpoint_delta`] tells which one.
    ///
    /// # Cost
    /// The delta is read twice, once to verify it; its rows are put ([`Store::put`]), and a checkpoint.
    ///
    /// # Durability
    /// All of it survives a crash once this returns; after a crash before that, all or nothing.
    ///
    /// # Errors
    /// Before anything is changed: `InvalidArgument` (`Delta`: no delta, a gap before it, an older one, of another store or timeline,
    /// of tables that are others here, or a store that has changes of its own; leases of a table that goes), `Corrupt` (damaged, or cut short),
    /// `Unsupported`. Later: `NoSpace`, `Io`, `OverBudget` and whatever a table is refused for; the store then refuses writes until it is opened again, at the checkpoint
    /// before.
    pub fn apply_delta(&self, folder: &Path) -> Result<DeltaReport> {
        let core = &self.parts.core;
        core.check_writable()?;
        self.parts.applier.alone(|| self.apply(folder))
    }

    fn apply(&self, folder: &Path) -> Result<DeltaReport> {
        let core = &self.parts.core;
        // None beside a checkpoint of changes of the copy's own.
        self.finish_checkpoint();
        let Named { delta, sum, bytes } = read_delta(&core.ssd.io, folder)?;
        let report = |is_new| DeltaReport {
            delta: DeltaInfo::from(&delta),
            is_new,
        };
        if !follows(core, folder, &delta, sum)? {
            return Ok(report(false));
        }
        if let Some(last) = core.ssd.last_step().filter(|last| delta.step <= *last) {
            let step = delta.step;
            let why = format!("its step, {step}, does not come after {last}, that of the copy");
            return Err(unusable(folder, &why));
        }
        let request = OpenRequest {
            moved: &[],
            read_only: true,
            checkpoint: None,
            disk_bytes_max: 0,
            thresholds: core.options.thresholds_in_force(),
            open_files_max: usize::MAX,
            threads: if core.options.inline {
                1
            } else {
                core.options.threads
            },
        };
        let changes = open_changes(&core.ssd.io, folder, &delta, &request)?;
        check_tables(&core.table_states(), &changes.tables, folder)?;
        verify(core, &changes, &delta, folder)?;
        let mut meta = changes.ssd.read_meta(delta.until)?;
        meta.extend_from_slice(&bytes);
        let mut is_changed = false;
        let applied = self.take_in(&changes, &delta, &meta, &mut is_changed);
        if let (Err(error), true) = (&applied, is_changed) {
            let cause = format!(
                "the delta {} was applied in part: {error}",
                folder.display()
            );
            core.ssd.poison.set(cause);
        }
        applied.map(|()| report(true))
    }

    /// The delta by which a copy came to a retained checkpoint; `None` where none made it.
    ///
    /// # Cost
    /// The checkpoint's meta is read, and verified.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown checkpoint, `Corrupt`, `Io`.
    pub fn checkpoint_delta(&self, id: CheckpointId) -> Result<Option<DeltaInfo>> {
        let core = &self.parts.core;
        core.check_process()?;
        let meta = core.ssd.read_meta(id)?;
        Ok(Delta::at_end(&meta).map(|(delta, _, _)| DeltaInfo::from(&delta)))
    }

    /// Changes the tables, puts and removes, and makes the checkpoint.
    fn take_in(
        &self,
        changes: &Recovered,
        delta: &Delta,
        meta: &[u8],
        is_changed: &mut bool,
    ) -> Result<()> {
        self.take_tables(&changes.tables, is_changed)?;
        *is_changed = true;
        let mut walk = walk(&self.parts.core, changes, delta)?;
        let (mut at, mut keys, mut rows, mut gone) = (None, Vec::new(), Vec::new(), Vec::new());
        loop {
            let found = walk.next()?;
            let table = found.map(|found| found.table);
            let is_full = rows.len() >= PUT_F32S || keys.len() >= PUT_KEYS;
            if let Some(at) = at {
                if (table != Some(at) || is_full) && !keys.is_empty() {
                    self.put(at, &keys, PutRows::whole(&rows).verbatim())?;
                    keys.clear();
                    rows.clear();
                }
                if (table != Some(at) || gone.len() >= REMOVE_KEYS) && !gone.is_empty() {
                    self.remove(at, &gone)?;
                    gone.clear();
                }
            }
            let Some(found) = found else { break };
            at = table;
            match found.is_removed {
                true => gone.push(found.key),
                false => {
                    keys.push(found.key);
                    rows.extend_from_slice(&walk.row);
                }
            }
        }
        self.checkpoint(delta.step, meta).map(drop)
    }

    /// Makes the tables those of the delta, number by number. Says when the first is changed.
    fn take_tables(&self, theirs: &[TableState], is_changed: &mut bool) -> Result<()> {
        let ours = self.parts.core.table_states();
        let is_taken = |name: &str| {
            let mut all = ours.iter().chain(theirs);
            all.any(|table| table.descriptor.name.starts_with(name))
        };
        // A name that no table has.
        let mut stems = (0u64..).map(|n| format!("hps-delta-{n}-"));
        let stem = stems.find(|stem| !is_taken(stem)).unwrap_or_default();
        let placeholder = |id: usize| format!("{stem}{id}");
        for (id, (our, their)) in ours.iter().zip(theirs).enumerate() {
            if their.is_dropped && !our.is_dropped {
                self.drop_table(TableId(narrow(id)))?;
                *is_changed = true;
            }
        }
        // Names may change places: each is free before it is given.
        let renamed: Vec<usize> = (0..ours.len().min(theirs.len()))
            .filter(|id| !theirs[*id].is_dropped)
            .filter(|id| ours[*id].descriptor.name != theirs[*id].descriptor.name)
            .collect();
        for id in &renamed {
            self.rename_table(TableId(narrow(*id)), &placeholder(*id))?;
            *is_changed = true;
        }
        for id in &renamed {
            self.rename_table(TableId(narrow(*id)), &theirs[*id].descriptor.name)?;
        }
        for (id, their) in theirs.iter().enumerate().skip(ours.len()) {
            let descriptor = TableDescriptor {
                name: match their.is_dropped {
                    true => placeholder(id),
                    false => their.descriptor.name.clone(),
                },
                ..their.descriptor.clone()
            };
            let table = self.create_table(&descriptor)?;
            *is_changed = true;
            if their.is_dropped {
                self.drop_table(table)?;
            }
        }
        Ok(())
    }
}

fn unusable(folder: &Path, why: &str) -> Error {
    let (path, why): (PathBuf, String) = (folder.to_path_buf(), why.to_owned());
    ArgumentError::Delta { path, why }.into()
}

/// Whether the delta is the next one; false: it is the one that was applied last.
fn follows(core: &Core, folder: &Path, delta: &Delta, sum: u64) -> Result<bool> {
    let refused = |why: String| Err(unusable(folder, &why));
    if core.changes.any() {
        return refused(String::from(
            "the store has changes after its last checkpoint; a copy is changed by deltas only",
        ));
    }
    let Some((last, last_print)) = core.ssd.last_print() else {
        return match delta.since == CheckpointId::NONE && core.table_states().is_empty() {
            true => Ok(true),
            false => refused(format!(
                "it comes after checkpoint {}, and the store is empty or has tables of its own; begin with a delta of \
                 all rows in an empty store, or with an export",
                delta.since
            )),
        };
    };
    let meta = core.ssd.read_meta(last)?;
    let Some((at, at_sum, _)) = Delta::at_end(&meta) else {
        let is_base = core.ssd.store == delta.store && last_print == delta.since_print;
        return match is_base {
            true => Ok(true),
            false => refused(format!(
                "it comes after checkpoint {}, and the store's last checkpoint ({last}) is no copy of that",
                delta.since
            )),
        };
    };
    if at_sum == sum {
        return Ok(false);
    }
    if delta.store != at.store {
        return refused(String::from(
            "it was written from another store than the copy is of",
        ));
    }
    if delta.before == at_sum || (delta.before == 0 && delta.since_print == at.until_print) {
        return Ok(true);
    }
    if delta.timeline != at.timeline {
        return refused(format!(
            "it is of another timeline: the store it is of was rolled back; the copy is at checkpoint {}, so roll it \
             back too, or begin anew",
            at.until
        ));
    }
    if delta.until <= at.until {
        return refused(format!(
            "it is an older one, up to checkpoint {}: the copy is at {} (sequence {}) already",
            delta.until, at.until, at.sequence
        ));
    }
    refused(format!(
        "deltas are missing before it: the copy is at checkpoint {} (sequence {}), and it comes after {} (sequence {})",
        at.until, at.sequence, delta.since, delta.sequence
    ))
}

/// Whether the tables of a copy can become those of a delta.
fn check_tables(ours: &[TableState], theirs: &[TableState], folder: &Path) -> Result<()> {
    // Further ones are of an export, or of a copy that went back: they have no rows.
    for (our, their) in ours.iter().zip(theirs) {
        let name = &their.descriptor.name;
        let renamed = TableDescriptor {
            name: name.clone(),
            ..our.descriptor.clone()
        };
        if renamed != their.descriptor && !(our.is_dropped && their.is_dropped) {
            let why = format!("its table {name:?} has another descriptor than in the copy");
            return Err(unusable(folder, &why));
        }
        if our.is_dropped && !their.is_dropped {
            let why = format!("its table {name:?} was dropped in the copy");
            return Err(unusable(folder, &why));
        }
    }
    Ok(())
}

fn walk(core: &Core, changes: &Recovered, delta: &Delta) -> Result<Walk> {
    let tables = (0..).zip(&changes.tables);
    let there = tables.filter(|(_, table)| !table.is_dropped);
    let tables = there.map(|(id, table)| (TableId(id), table.descriptor.row_f32s()));
    let scope = Scope {
        checkpoint: delta.until,
        tables: tables.collect(),
        hashes: 0..=u64::MAX,
        first_interval: 0,
        with_removed: true,
    };
    Walk::new(&changes.ssd, core.process, scope)
}

/// Reads all of it once.
fn verify(core: &Core, changes: &Recovered, delta: &Delta, folder: &Path) -> Result<()> {
    let mut walk = walk(core, changes, delta)?;
    let (mut rows, mut removed) = (0, 0);
    while let Some(found) = walk.next()? {
        match found.is_removed {
            true => removed += 1,
            false => rows += 1,
        }
    }
    if (rows, removed) == (delta.rows, delta.removed) {
        return Ok(());
    }
    let what = format!(
        "{rows} rows and {removed} removed keys, DELTA says {} and {}",
        delta.rows, delta.removed
    );
    Err(Error::corrupt(folder, 0, what))
}
