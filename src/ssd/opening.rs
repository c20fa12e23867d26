//! How are the files of a version opened, several at a time?
//!
//! Invariants:
//! - Files have their slots in the order of their numbers, whoever opens them.
//! - Of several that can't be opened the error is that of the first.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::data_file::DataFile;
use super::{Ssd, too_many_files};
use crate::error::Result;
use crate::format::manifest::FileMeta;
use crate::io::raise_descriptor_limit_to;
use crate::sync::by_team;
use crate::units::{CheckpointId, FileSlot};

/// Descriptors of a reader's process for all that is no parameter file.
pub(crate) const DESCRIPTORS_SPARE: u64 = 256;
/// Most threads that open files.
const OPENERS_MAX: usize = 8;
/// Files for which another thread is worth its start.
const FILES_PER_OPENER: usize = 16;

impl Ssd {
    /// Opens the files of a checkpoint's version as the current one.
    pub(super) fn open_version(
        &self,
        checkpoint: CheckpointId,
        read_only: bool,
        threads: usize,
    ) -> Result<()> {
        let holds = |m: &FileMeta| m.added <= checkpoint && checkpoint < m.removed;
        let wanted: Vec<FileMeta> = {
            let mut versions = self.versions();
            if !read_only {
                // Files that no retained version names are orphans from here on.
                let _orphans = versions.take_garbage();
            }
            versions
                .files
                .values()
                .filter(|s| holds(&s.meta))
                .map(|s| s.meta)
                .collect()
        };
        let _opening = tracing::debug_span!("open_files", files = wanted.len()).entered();
        if read_only {
            // A reader closes none.
            raise_descriptor_limit_to(wanted.len() as u64 + DESCRIPTORS_SPARE);
        }
        let slotted = |meta: FileMeta| {
            let slot = self.versions().take_slot(&self.slots);
            Ok((meta, slot.ok_or_else(too_many_files)?))
        };
        let wanted = wanted
            .into_iter()
            .map(slotted)
            .collect::<Result<Vec<_>>>()?;
        for file in self.open_all(&wanted, threads)? {
            self.versions().opened(&self.slots, file);
        }
        Ok(())
    }

    /// Opens files, several at a time; in their order. Of several that can't be opened the error is
    /// that of the first: whoever gets a later one has seen the earlier ones taken.
    fn open_all(
        &self,
        wanted: &[(FileMeta, FileSlot)],
        threads: usize,
    ) -> Result<Vec<Arc<DataFile>>> {
        let next = AtomicUsize::new(0);
        let work = || {
            let mut done = Vec::new();
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                let Some((meta, slot)) = wanted.get(i) else {
                    return done;
                };
                let opened = self.open_data(meta, *slot);
                if opened.is_err() {
                    next.store(wanted.len(), Ordering::Relaxed);
                }
                done.push((i, opened));
            }
        };
        let threads = threads
            .min(OPENERS_MAX)
            .min(wanted.len().div_ceil(FILES_PER_OPENER));
        let opened = by_team("hps-open", (0..threads.max(1)).map(|_| &work));
        let mut opened: Vec<_> = opened.into_iter().flatten().collect();
        opened.sort_by_key(|(i, _)| *i);
        opened
            .into_iter()
            .map(|(_, file)| file.map(Arc::new))
            .collect()
    }
}
