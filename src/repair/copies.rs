//! Which copies contradict others, and how are they left out?
//!
//! - The newest copy of a key is that of the greatest rank. No store writes two of one rank, or an
//!   older one of a later interval; a repair meets both, and guesses intervals itself.

use std::cmp::Reverse;
use std::sync::Arc;

use super::file::{self, Target};
use super::layout::{self, Part};
use super::lost::Survivors;
use crate::error::{Error, Result};
use crate::format::footer::RunKind;
use crate::format::manifest::FileMeta;
use crate::format::{FileIdentity, data_file_name};
use crate::io::{Queue, is_unreadable};
use crate::options::TableDescriptor;
use crate::ssd::data_file::DataFile;
use crate::ssd::edits::Replay;
use crate::ssd::open_footer;
use crate::ssd::scan::{Contradicting, RunCursor};
use crate::units::{CheckpointId, FileNumber, FileSlot, to_usize};

/// Window of rows while a file is written a second time.
const WINDOW_BYTES: u64 = 1 << 20;

/// A file of the repaired version.
pub(super) struct Kept {
    pub meta: FileMeta,
    /// Whether entries of it may contradict other files: their intervals were guessed, or the file did.
    pub doubted: bool,
}

/// The files of one checkpoint of the repaired store.
pub(super) struct Copies<'a> {
    pub parts: &'a [Part],
    pub store: [u8; 16],
    pub checkpoint: CheckpointId,
}

impl Copies<'_> {
    /// Opens the files of the checkpoint, of several with one key and one rank the youngest first.
    pub fn open(&self, metas: impl Iterator<Item = FileMeta>) -> Result<Vec<Arc<DataFile>>> {
        let open = |meta: FileMeta| {
            let place = self.parts[meta.directory as usize].place()?;
            let path = place.path().join(data_file_name(meta.number));
            let identity = FileIdentity::new(self.store, meta.number);
            let (file, footer) = open_footer(&**place, &identity, &meta)?;
            Ok(Arc::new(DataFile::new(
                FileSlot::default(),
                meta,
                footer,
                identity,
                path,
                file,
                true,
            )))
        };
        let of_checkpoint = metas.filter(|meta| meta.in_checkpoint(self.checkpoint));
        let mut opened = of_checkpoint.map(open).collect::<Result<Vec<_>>>()?;
        opened.sort_by_key(|file| Reverse(file.meta.number));
        Ok(opened)
    }

    /// Copies that contradict those of other files; `None` where a file can't be read, or is damaged:
    /// that comes first.
    pub fn contradicting(
        &self,
        metas: impl Iterator<Item = FileMeta>,
        tables: usize,
    ) -> Result<Option<Contradicting>> {
        let merged = self.open(metas).and_then(|files| {
            let files = &files;
            Survivors { files, tables }.newest(&mut |_| {})
        });
        match merged {
            Ok(found) => Ok(Some(found)),
            Err(Error::Corrupt { .. }) => Ok(None),
            Err(Error::Io { source, .. }) if is_unreadable(&source) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether the files of an earlier checkpoint, each of them sound, do not contradict each other:
    /// the look at the repaired store compares those of the last one only.
    pub fn agree(&self, replay: &Replay) -> Result<bool> {
        let metas = replay.files.values().copied();
        let found = self.contradicting(metas, replay.tables.count())?;
        Ok(found.is_some_and(|found| found.copies == 0))
    }

    /// Starts what one of the files is written to again.
    pub fn target<'t>(
        &'t self,
        queue: &'t mut dyn Queue,
        directory: u32,
        number: FileNumber,
    ) -> Result<Target<'t>> {
        Ok(Target {
            queue,
            directory: self.parts[directory as usize].place()?,
            store: self.store,
            number,
            checkpoint: self.checkpoint,
        })
    }

    /// Writes files with doubted entries again, without entries that have a newer copy: interval and
    /// rank of a copy never disagree then.
    pub fn leave_stale_out(
        &self,
        files: &mut Vec<Kept>,
        tables: &[TableDescriptor],
        queue: &mut dyn Queue,
        next_number: &mut FileNumber,
    ) -> Result<()> {
        let opened = self.open(files.iter().map(|kept| kept.meta))?;
        let mut live: Vec<(FileNumber, Vec<bool>)> = files
            .iter()
            .filter(|f| f.doubted)
            .map(|f| {
                let entries = to_usize(f.meta.rows + f.meta.tombstones);
                (f.meta.number, vec![false; entries])
            })
            .collect();
        let left = Survivors {
            files: &opened,
            tables: tables.len(),
        };
        left.newest(&mut |found| {
            let Ok(i) = live.binary_search_by_key(&found.file, |(number, _)| *number) else {
                return;
            };
            if let Some(bit) = live[i].1.get_mut(found.entry as usize) {
                *bit = true;
            }
        })?;
        for (number, live) in live {
            if live.iter().all(|live| *live) {
                continue;
            }
            let place = files.iter().position(|f| f.meta.number == number);
            let source = opened.iter().find(|f| f.meta.number == number);
            let (Some(place), Some(source)) = (place, source) else {
                continue;
            };
            let old = files.remove(place);
            let fresh = next_number.take();
            let mut target = self.target(queue, old.meta.directory, fresh)?;
            if let Some(meta) = copy_live(source, &live, tables, &mut target)? {
                files.push(Kept {
                    meta,
                    doubted: true,
                });
            }
            let place = self.parts[old.meta.directory as usize].place()?;
            layout::remove(&**place, &data_file_name(number))?;
        }
        Ok(())
    }
}

/// Copies the entries of a sound file that are live.
fn copy_live(
    source: &Arc<DataFile>,
    live: &[bool],
    tables: &[TableDescriptor],
    target: &mut Target<'_>,
) -> Result<Option<FileMeta>> {
    let (number, checkpoint) = (target.number, target.checkpoint);
    let mut writer = target.writer()?;
    for (i, run) in source.runs.iter().enumerate() {
        let mut row = vec![0.0; tables[run.table as usize].row_bytes() / 4];
        let mut cursor = RunCursor::new(source, i, WINDOW_BYTES)?;
        while let Some(entry) = cursor.entry() {
            if live.get(entry.number as usize).copied().unwrap_or(false) {
                match run.kind {
                    RunKind::Tombstones => writer.tombstone(run.table, entry.key, entry.interval),
                    RunKind::Rows => {
                        cursor.read_row(&mut row)?;
                        writer.row(run.table, entry.key, entry.interval, &row);
                    }
                }
            }
            cursor.advance()?;
        }
    }
    if writer.entries() == 0 {
        return Ok(None);
    }
    file::finish(writer, &source.meta, number, checkpoint).map(Some)
}
