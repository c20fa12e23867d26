//! How do the rows that changed become a folder of files, and how is one opened?
//!
//! - The files are those of a store with one checkpoint, so that whoever reads or checks a store can read
//!   and check them. Of the rows only those are there that changed, and tombstones of removed keys.
//! - `DELTA` beside them comes last, when all else is durable.

use std::path::Path;
use std::sync::Arc;

use super::Ssd;
use super::create::{Next, write_root};
use super::directories::{make_dir, make_dir_in};
use super::edits::{self, Start};
use super::export::fresh;
use super::names::list;
use super::recover::{self, OpenRequest, Recovered};
use super::scan::Newest;
use super::small_files::{read_whole, sync, write_last, write_whole};
use super::space::refused;
use super::version::{Cursors, Versions};
use super::writer::FileWriter;
use crate::error::{ArgumentError, Error, Result};
use crate::format::delta::{
    CHANGES_NAME, DELTA_BYTES, DELTA_NAME, DELTA_TEMPORARY_NAME, Delta, print_of,
};
use crate::format::identity::encode_part;
use crate::format::manifest::CheckpointMeta;
use crate::format::meta::encode_meta_header;
use crate::format::{FileIdentity, FileKind, PART_NAME, data_file_name, file_name};
use crate::io::{Directory, Io, OpenMode, Queue};
use crate::units::{CheckpointId, FileNumber};

/// Buffers and their size for the files.
const DEPTH: usize = 4;
const BUFFER_BYTES: usize = 512 << 10;
/// Bytes of a tombstone in a file.
const TOMBSTONE_BYTES: u64 = 13;
/// The only data directory.
const PART: &str = "part-0";

/// Gives the next key that changed, and puts its row, if it has one, into the buffer.
pub type NextChanged<'a> = dyn FnMut(&mut Vec<f32>) -> Result<Option<Newest>> + 'a;

/// What the changes come after.
#[derive(Clone, Debug)]
pub enum Base {
    /// Nothing: they are all rows.
    Nothing,
    /// A delta, and the sequence of the one that comes after it.
    Delta(Named, u64),
    /// A retained checkpoint.
    Checkpoint(CheckpointId),
}

impl Base {
    /// The checkpoint.
    #[must_use]
    pub fn since(&self) -> CheckpointId {
        match self {
            Base::Nothing => CheckpointId::NONE,
            Base::Delta(before, _) => before.delta.until,
            Base::Checkpoint(id) => *id,
        }
    }
}

/// What is written.
#[derive(Debug)]
pub struct Plan<'a> {
    pub folder: &'a Path,
    pub base: Base,
    pub until: CheckpointId,
    /// Target size of a file.
    pub file_bytes: u64,
}

/// A `DELTA` as it was read.
#[derive(Clone, Debug)]
pub struct Named {
    pub delta: Delta,
    /// Its checksum, by which the next one names it.
    pub sum: u64,
    /// All of it, of whatever version.
    pub bytes: Vec<u8>,
}

/// Reads `DELTA` in a folder.
///
/// # Errors
/// `InvalidArgument` where there is none, `Corrupt`, `Unsupported`, `Io`.
pub fn read_delta(io: &Io, folder: &Path) -> Result<Named> {
    let refused = |why: &str| {
        let (path, why) = (folder.to_path_buf(), why.to_owned());
        Error::from(ArgumentError::Delta { path, why })
    };
    let place = io.disk.open_dir(folder).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => refused("there is no such folder"),
        _ => Error::io("open", folder, e),
    })?;
    if !list(&*place)?.iter().any(|name| name == DELTA_NAME) {
        return Err(refused(
            "there is no file DELTA: it is no delta, or it was not finished; write it again",
        ));
    }
    let bytes = read_whole(&*place, DELTA_NAME, DELTA_BYTES as u64)?;
    let (delta, sum) = Delta::decode(&bytes).map_err(|e| e.at(&folder.join(DELTA_NAME)))?;
    Ok(Named { delta, sum, bytes })
}

/// Opens the files of a delta, and sees that they are those that `DELTA` names.
///
/// # Errors
/// `Corrupt`, `Unsupported`, `Io`.
pub fn open_changes(
    io: &Io,
    folder: &Path,
    delta: &Delta,
    request: &OpenRequest<'_>,
) -> Result<Recovered> {
    let changes = folder.join(CHANGES_NAME);
    let recovered = recover::open(io, &changes, request).map_err(|error| match error {
        // Without one of its own files it is as damaged as with a changed one.
        Error::InvalidArgument(why) => Error::corrupt(&changes, 0, why.to_string()),
        Error::MissingDirectory { path, .. } => Error::corrupt(&path, 0, "it is not there"),
        other => other,
    })?;
    let current = recovered.ssd.manifest().current;
    let found = (recovered.ssd.store, current.checkpoint_id, current.step);
    if current.manifest_digest != delta.manifest_digest
        || found != (delta.store, delta.until, delta.step)
    {
        let what = "the files are not those that DELTA names";
        return Err(Error::corrupt(&changes, 0, what));
    }
    Ok(recovered)
}

impl Ssd {
    /// The last checkpoint, and what it is known by.
    #[must_use]
    pub fn last_print(&self) -> Option<(CheckpointId, u64)> {
        let versions = self.versions();
        versions
            .checkpoints
            .last()
            .map(|last| (last.id, print_of(last)))
    }

    /// Whether a delta leads to a checkpoint of this store's own history, and of this one: another store with the same
    /// uuid may have gone on from an export, and a repair may have lost rows.
    #[must_use]
    pub fn is_of_this_history(&self, delta: &Delta) -> bool {
        delta.store == self.store
            && match self.retained(delta.until) {
                Ok(checkpoint) => print_of(&checkpoint) == delta.until_print,
                Err(_) => delta.timeline == self.timeline,
            }
    }

    /// Writes the keys that `next` gives, in the order of a walk, as a delta.
    ///
    /// # Errors
    /// `InvalidArgument` for a folder that is not empty or an unknown checkpoint; `NoSpace`, `Io`; what
    /// `next` says. The folder then has no `DELTA`.
    pub fn write_delta(&self, plan: &Plan<'_>, next: &mut NextChanged<'_>) -> Result<Delta> {
        // It stays until all is written, whatever checkpoints are made meanwhile.
        let _held = self.hold(plan.until)?;
        let checkpoint = self.retained(plan.until)?;
        let (sequence, before, since_print) = match &plan.base {
            Base::Nothing => (0, 0, 0),
            Base::Delta(before, next) => (*next, before.sum, before.delta.until_print),
            Base::Checkpoint(id) => (0, 0, print_of(&self.retained(*id)?)),
        };
        let place = fresh(make_dir(&*self.io.disk, plan.folder)?)?;
        let changes = make_dir_in(&*place, Path::new(CHANGES_NAME))?;
        let part = make_dir_in(&*changes, Path::new(PART))?;
        write_whole(&*part, PART_NAME, &encode_part(&self.store, 0))?;
        // Beyond the numbers that the store has used so far.
        let mut number = self.versions().number_limit;
        let mut written = Versions::default();
        let (mut rows, mut removed) = (0, 0);
        let mut queue = self
            .io
            .engine
            .queue(DEPTH, BUFFER_BYTES)
            .map_err(|e| Error::io("make a submission queue for", part.path(), e))?;
        let mut row = Vec::new();
        let mut pending = next(&mut row)?;
        while pending.is_some() {
            let identity = FileIdentity::new(self.store, number);
            let file = Target {
                part: &part,
                identity,
                file_bytes: plan.file_bytes,
            };
            let finished = file.write(&mut *queue, &mut pending, &mut row, next)?;
            rows += finished.rows;
            removed += finished.tombstones;
            written.insert_closed(finished.meta(number, 0, number.0, plan.until), None);
            number = number.next();
        }
        sync(&*part)?;
        let meta = self.copy_meta(&*changes, number, &checkpoint)?;
        let meta = CheckpointMeta {
            next_rank: meta.next_rank.max(number.0),
            ..meta
        };
        let manifest_number = number.next();
        let (tables, hyper) = {
            let versions = self.versions();
            (versions.tables.up_to(plan.until), versions.hyper.clone())
        };
        let start = Start {
            timeline: self.timeline,
            parent: plan.until,
            tables: &tables,
            checkpoints: &[meta],
            hyper: &hyper,
            cursors: &Cursors::default(),
            snapshot: &[],
        };
        let commit = edits::snapshot(&written, &start);
        let after = Next {
            number: manifest_number,
            checkpoint: plan.until.next(),
        };
        let names = [String::from(PART)];
        let begun = Some((&meta, after));
        let current = write_root(&*changes, self.store, self.timeline, &names, &commit, begun)?;
        let delta = Delta {
            store: self.store,
            timeline: self.timeline,
            since: plan.base.since(),
            until: plan.until,
            sequence,
            before,
            since_print,
            until_print: print_of(&checkpoint),
            step: checkpoint.step,
            manifest_digest: current.manifest_digest,
            rows,
            removed,
        };
        write_last(&*place, DELTA_TEMPORARY_NAME, DELTA_NAME, &delta.encode().0)?;
        Ok(delta)
    }

    /// The trainer's bytes of a checkpoint, in a file of another number.
    fn copy_meta(
        &self,
        place: &dyn Directory,
        number: FileNumber,
        checkpoint: &CheckpointMeta,
    ) -> Result<CheckpointMeta> {
        let mut body = self.read_meta(checkpoint.id)?;
        if let Some((_, _, own)) = Delta::at_end(&body) {
            // Of a copy, the trainer's alone.
            body.truncate(own.len());
        }
        let identity = FileIdentity::new(self.store, number);
        let (header, meta_checksum) = encode_meta_header(&identity, checkpoint.id, &body);
        let name = file_name(FileKind::Meta, number);
        let path = place.path().join(&name);
        let meta_bytes = (header.len() + body.len()) as u64;
        let failed = |operation, e| refused(operation, place, &path, meta_bytes, e);
        let file = place
            .open(&name, OpenMode::Create)
            .map_err(|e| failed("create", e))?;
        file.write_at(&header, 0)
            .and_then(|()| file.write_at(&body, header.len() as u64))
            .map_err(|e| failed("write", e))?;
        file.sync().map_err(|e| failed("sync", e))?;
        Ok(CheckpointMeta {
            meta_number: number,
            meta_bytes,
            meta_checksum,
            ..*checkpoint
        })
    }
}

/// One file of a delta.
struct Target<'a> {
    part: &'a Arc<dyn Directory>,
    identity: FileIdentity,
    file_bytes: u64,
}

impl Target<'_> {
    /// Fills it from what is pending on, and makes it durable but for the name.
    fn write(
        &self,
        queue: &mut dyn Queue,
        pending: &mut Option<Newest>,
        row: &mut Vec<f32>,
        next: &mut NextChanged<'_>,
    ) -> Result<super::writer::Finished> {
        let name = data_file_name(self.identity.number());
        let mut file = FileWriter::create(self.part, queue, name, self.identity, 0)?;
        // Tombstones of a table come after its rows.
        let mut tombstones: Vec<Newest> = Vec::new();
        let mut table = None;
        while let Some(changed) = *pending {
            if table != Some(changed.table) {
                end_table(&mut file, &mut tombstones);
                table = Some(changed.table);
            }
            let bytes = file.bytes() + tombstones.len() as u64 * TOMBSTONE_BYTES;
            if bytes >= self.file_bytes && (file.entries() > 0 || !tombstones.is_empty()) {
                break;
            }
            match changed.is_removed {
                true => tombstones.push(changed),
                false => file.row(changed.table.0, changed.key, changed.interval, row),
            }
            *pending = next(row)?;
        }
        end_table(&mut file, &mut tombstones);
        let finished = file.finish()?;
        let synced = finished.file.sync();
        synced.map_err(|e| Error::io("sync", &finished.path, e))?;
        Ok(finished)
    }
}

fn end_table(file: &mut FileWriter<'_>, tombstones: &mut Vec<Newest>) {
    for gone in tombstones.drain(..) {
        file.tombstone(gone.table.0, gone.key, gone.interval);
    }
}
