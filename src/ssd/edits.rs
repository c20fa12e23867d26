//! What does the manifest have to learn so that a replay gives the captured version?
//!
//! Pure functions of the versions; [`Replay`] is the inverse.

use std::collections::BTreeMap;

use super::hyper::{self, HyperHistory, Hypers};
use super::tables::{TableHistory, TableState};
use super::version::{Cursor, Cursors, Versions};
use crate::format::manifest::{CheckpointMeta, Edit, FileMeta, NOT_REMOVED};
use crate::format::{FileKind, file_name};
use crate::options::HyperParameters;
use crate::units::{CheckpointId, FileNumber, narrow};

/// `removed` as checkpoint `id` sees it: what happens later is recorded later.
fn removed_as_of(meta: &FileMeta, id: CheckpointId) -> CheckpointId {
    if meta.removed <= id {
        meta.removed
    } else {
        NOT_REMOVED
    }
}

/// The edits of a commit, and what to note about files once it is durable.
#[derive(Debug, Default)]
pub struct Commit {
    /// To be appended in this order.
    pub edits: Vec<Edit>,
    /// (file number, `removed` that the manifest then knows, if it has the file), where that changes.
    pub recorded: Vec<(FileNumber, Option<CheckpointId>)>,
}

/// What a new manifest says beside files.
#[derive(Debug)]
pub struct Start<'a> {
    /// Timeline uuid.
    pub timeline: [u8; 16],
    /// The checkpoint that the timeline starts from.
    pub parent: CheckpointId,
    /// All tables through all times.
    pub tables: &'a TableHistory,
    /// Retained checkpoints, oldest first.
    pub checkpoints: &'a [CheckpointMeta],
    /// Hyperparameters of all of them.
    pub hyper: &'a HyperHistory,
    /// Readers and what they have.
    pub cursors: &'a Cursors,
    /// The parts of the index snapshot in force.
    pub snapshot: &'a [SnapshotPart],
}

/// Everything a replay needs, for a new manifest.
#[must_use]
pub fn snapshot(versions: &Versions, start: &Start<'_>) -> Commit {
    let mut commit = Commit::default();
    commit.edits.push(Edit::Timeline {
        uuid: start.timeline,
        parent_checkpoint: start.parent,
    });
    let last = start.checkpoints.last();
    let last = last.map_or(CheckpointId::NONE, |c| c.id);
    for state in versions.files.values() {
        let removed = removed_as_of(&state.meta, last);
        let holds = |c: &CheckpointMeta| state.meta.added <= c.id && c.id < removed;
        let needed = start.checkpoints.iter().any(holds);
        let as_of = needed.then_some(removed);
        commit.recorded.push((state.meta.number, as_of));
        if needed {
            let meta = FileMeta {
                removed,
                ..state.meta
            };
            commit.edits.push(Edit::AddFile(meta));
        }
    }
    commit
        .edits
        .extend(start.snapshot.iter().map(SnapshotPart::edit));
    // One that is beyond is of a history that does not follow.
    let cursors = start.cursors.iter().filter(|(_, at)| at.checkpoint <= last);
    commit.edits.extend(cursors.map(|(name, at)| Edit::Cursor {
        name: name.clone(),
        checkpoint: at.checkpoint,
        interval: at.interval,
    }));
    let (mut before, mut hyper_before) = (CheckpointId::NONE, Hypers::default());
    for checkpoint in start.checkpoints {
        let hyper = start.hyper.at(checkpoint.id);
        start.tables.tell(before, checkpoint.id, &mut commit.edits);
        commit.edits.extend(hyper::changed(&hyper_before, &hyper));
        commit.edits.push(Edit::Checkpoint(*checkpoint));
        (before, hyper_before) = (checkpoint.id, hyper);
    }
    commit
}

/// What changed since the manifest's last commit.
#[must_use]
pub fn changes(
    versions: &Versions,
    tables: &[TableState],
    forgotten: &[CheckpointId],
    checkpoint: &CheckpointMeta,
    hyper: &[Option<HyperParameters>],
) -> Commit {
    let id = checkpoint.id;
    let mut commit = Commit {
        edits: versions.tables.changes(id, tables),
        ..Commit::default()
    };
    let kept = |c: &&CheckpointMeta| !forgotten.contains(&c.id);
    for state in versions.files.values().filter(|s| s.meta.added <= id) {
        let removed = removed_as_of(&state.meta, id);
        let number = state.meta.number;
        let holds = |c: &CheckpointMeta| state.meta.added <= c.id && c.id < removed;
        let needed = versions.checkpoints.iter().filter(kept).any(holds) || holds(checkpoint);
        match state.recorded {
            None if needed => {
                let meta = FileMeta {
                    removed,
                    ..state.meta
                };
                commit.edits.push(Edit::AddFile(meta));
                commit.recorded.push((number, Some(removed)));
            }
            // It may stay known until somebody unlinks it, and is not dropped again.
            Some(_) if !needed => {
                commit.edits.push(Edit::DropFile { number });
                commit.recorded.push((number, None));
            }
            Some(before) if before != removed => {
                commit.edits.push(Edit::RemoveFile { number, removed });
                commit.recorded.push((number, Some(removed)));
            }
            _ => {}
        }
    }
    commit
        .edits
        .extend(forgotten.iter().map(|&id| Edit::ForgetCheckpoint { id }));
    let last = versions.checkpoints.last();
    let before = versions.hyper.at(last.map_or(CheckpointId::NONE, |c| c.id));
    commit.edits.extend(hyper::changed(&before, hyper));
    commit.edits.push(Edit::Checkpoint(*checkpoint));
    commit
}

/// A part of the index snapshot that the manifest names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotPart {
    /// The data directory whose keys it has; `None`: of version 1, it has those of all of them.
    pub directory: Option<u32>,
    /// File number.
    pub number: FileNumber,
    /// Length.
    pub bytes: u64,
    /// Checksum of its footer.
    pub checksum: u64,
}

impl SnapshotPart {
    /// Whether a store with so many data directories can have it.
    #[must_use]
    pub fn fits(&self, directories: usize) -> bool {
        self.directory.is_none_or(|d| (d as usize) < directories)
    }

    /// The data directory that it lies in, of so many: the one after that whose keys it has, so that a
    /// lost directory does not take the only list of its keys with it. `None`: of version 1, it lies
    /// in the store's own.
    #[must_use]
    pub fn home(&self, directories: usize) -> Option<usize> {
        let directory = self.directory? as usize;
        Some((directory + 1) % directories.max(1))
    }

    /// What its file is.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        match self.directory {
            Some(_) => FileKind::Snapshot,
            None => FileKind::Image,
        }
    }

    /// The name of its file.
    #[must_use]
    pub fn file_name(&self) -> String {
        file_name(self.kind(), self.number)
    }

    /// The edit that names it.
    #[must_use]
    pub fn edit(&self) -> Edit {
        let (number, bytes, checksum) = (self.number, self.bytes, self.checksum);
        match self.directory {
            Some(directory) => Edit::Snapshot {
                directory,
                number,
                bytes,
                checksum,
            },
            None => Edit::Image {
                number,
                bytes,
                checksum,
            },
        }
    }

    /// The edit after which a data directory has none.
    #[must_use]
    pub fn none(directory: u32) -> Edit {
        let none = SnapshotPart {
            directory: Some(directory),
            number: FileNumber::NONE,
            bytes: 0,
            checksum: 0,
        };
        none.edit()
    }
}

/// The state that a manifest's edits add up to.
#[derive(Debug, Default)]
pub struct Replay {
    /// Timeline uuid.
    pub timeline: [u8; 16],
    /// All tables through all times.
    pub tables: TableHistory,
    /// Files by number.
    pub files: BTreeMap<FileNumber, FileMeta>,
    /// Retained checkpoints, oldest first.
    pub checkpoints: Vec<CheckpointMeta>,
    /// Hyperparameters of each of them.
    pub hyper: HyperHistory,
    /// Readers and what they have.
    pub cursors: Cursors,
    /// The parts of the index snapshot in force, by data directory; one of version 1 is alone.
    pub snapshot: Vec<SnapshotPart>,
}

impl Replay {
    /// Puts a part (or none, if it has no number) among those of directories that `stays` wants.
    fn set_part(&mut self, part: SnapshotPart, stays: impl Fn(Option<u32>) -> bool) {
        self.snapshot.retain(|old| stays(old.directory));
        if part.number != FileNumber::NONE {
            self.snapshot.push(part);
            self.snapshot.sort_unstable_by_key(|part| part.directory);
        }
    }

    /// Whether a part with this number is in force, in a file of this kind.
    #[must_use]
    pub fn has_part(&self, kind: FileKind, number: FileNumber) -> bool {
        let is = |part: &SnapshotPart| part.number == number && part.kind() == kind;
        self.snapshot.iter().any(is)
    }

    /// Applies one edit; what contradicts the state is told in words.
    ///
    /// # Errors
    /// A description of the contradiction.
    pub fn apply(&mut self, edit: Edit) -> std::result::Result<(), String> {
        match edit {
            Edit::Timeline { uuid, .. } => self.timeline = uuid,
            Edit::Table { id, descriptor } => self.tables.add(id, descriptor)?,
            Edit::AddFile(meta) => {
                let number = meta.number;
                if self.files.insert(number, meta).is_some() {
                    return Err(format!("file {number} is added twice"));
                }
            }
            Edit::RemoveFile { number, removed } => match self.files.get_mut(&number) {
                Some(meta) if meta.removed == NOT_REMOVED && removed > meta.added => {
                    meta.removed = removed;
                }
                _ => return Err(format!("file {number} is removed and is not current")),
            },
            Edit::DropFile { number } => {
                if self.files.remove(&number).is_none() {
                    return Err(format!("file {number} is dropped and is not known"));
                }
            }
            Edit::Image {
                number,
                bytes,
                checksum,
            } => {
                let whole = SnapshotPart {
                    directory: None,
                    number,
                    bytes,
                    checksum,
                };
                self.set_part(whole, |_| false);
            }
            Edit::Snapshot {
                directory,
                number,
                bytes,
                checksum,
            } => {
                let part = SnapshotPart {
                    directory: Some(directory),
                    number,
                    bytes,
                    checksum,
                };
                // One of version 1 goes with the first part that comes.
                self.set_part(part, |old| old.is_some_and(|old| old != directory));
            }
            Edit::CheckpointV1(meta, hyper) => {
                for table in 0..narrow(self.tables.count()) {
                    self.set_hyper(table, hyper)?;
                }
                self.add_checkpoint(meta)?;
            }
            Edit::Checkpoint(meta) => self.add_checkpoint(meta)?,
            Edit::ForgetCheckpoint { id } => {
                let before = self.checkpoints.len();
                self.checkpoints.retain(|c| c.id != id);
                if self.checkpoints.len() == before {
                    return Err(format!("checkpoint {id} is forgotten and is not known"));
                }
                self.hyper.forget(id);
            }
            Edit::HyperParameters { table, hyper } => self.set_hyper(table, hyper)?,
            Edit::Cursor {
                name,
                checkpoint,
                interval,
            } => {
                let cursor = Cursor {
                    checkpoint,
                    interval,
                };
                self.set_cursor(name, cursor)?;
            }
            Edit::DropTable { table, dropped } => {
                self.tables.drop_table(table, dropped)?;
                self.hyper.clear_next(table);
            }
            Edit::RenameTable {
                table,
                renamed,
                name,
            } => self.tables.rename(table, renamed, name)?,
        }
        Ok(())
    }

    fn add_checkpoint(&mut self, meta: CheckpointMeta) -> std::result::Result<(), String> {
        if self.checkpoints.last().is_some_and(|c| c.id >= meta.id) {
            return Err(format!("checkpoint {} does not rise", meta.id));
        }
        self.tables.note_next(meta.id)?;
        self.hyper.note_next(meta.id);
        self.checkpoints.push(meta);
        Ok(())
    }

    fn set_hyper(&mut self, table: u32, hyper: HyperParameters) -> std::result::Result<(), String> {
        let known = self.tables.is_there(table);
        if known && self.hyper.set_next(table, self.tables.count(), hyper) {
            return Ok(());
        }
        Err(format!(
            "hyperparameters of table {table}, which is not known"
        ))
    }

    fn set_cursor(&mut self, name: String, cursor: Cursor) -> std::result::Result<(), String> {
        if cursor.checkpoint > CheckpointId::NONE {
            self.cursors.insert(name, cursor);
        } else if self.cursors.remove(&name).is_none() {
            return Err(format!("cursor {name:?} goes and is not known"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
