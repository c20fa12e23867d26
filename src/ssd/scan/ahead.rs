//! How are the rows of runs read while those before them are walked?
//!
//! - One queue serves all cursors of a merge, each of which has one window on its way.
//! - Nobody has to have one: without it rows are read when they are needed.
//! - What was read here is counted here, whatever counts the other reads of a file.

use std::sync::Arc;

use super::RunCursor;
use crate::error::{Error, Result};
use crate::io::{AlignedBuffer, Completion, Engine, Queue};
use crate::ssd::data_file::DataFile;
use crate::ssd::pieces::check_length;
use crate::units::to_usize;

/// More runs have small windows, and many of them.
const CURSORS_MAX: usize = 256;

/// Windows that are on their way.
#[derive(Debug)]
pub(super) struct ReadAhead {
    queue: Box<dyn Queue>,
    /// By cursor: the file.
    files: Vec<Arc<DataFile>>,
    /// By cursor: what came before it was taken.
    arrived: Vec<Option<Completion>>,
    /// Bytes that were taken.
    read_bytes: u64,
    /// Memory of all windows that it lends.
    windows_bytes: usize,
}

impl ReadAhead {
    /// Asks for the first window of every run of rows; `None` where none has more rows than a window, where entries are
    /// left out, and where no queue is to be had. Cursors that count what they read have it read from `files`, which are
    /// the same.
    pub(super) fn begin(
        engine: &dyn Engine,
        files: &[Arc<DataFile>],
        cursors: &mut [RunCursor],
    ) -> Option<ReadAhead> {
        let is_long = |cursor: &RunCursor| {
            let begin = cursor.row_offset();
            begin.is_some_and(|begin| cursor.rows_end() - begin > cursor.window_size())
        };
        let is_wanted = cursors.iter().any(is_long)
            && cursors.iter().all(|cursor| cursor.first_interval == 0)
            && cursors.len() <= CURSORS_MAX;
        if !is_wanted {
            return None;
        }
        let of_rows = cursors
            .iter()
            .filter(|cursor| cursor.row_offset().is_some());
        let sizes: Vec<u64> = of_rows.map(RunCursor::window_size).collect();
        let size = sizes.iter().copied().max()?;
        let of_cursor = |cursor: &RunCursor| {
            let number = cursor.file.meta.number;
            files.iter().find(|f| f.meta.number == number).cloned()
        };
        let files = cursors.iter().map(of_cursor).collect::<Option<_>>()?;
        let queue = engine.queue(2 * sizes.len(), to_usize(size));
        let queue = queue.inspect_err(|error| tracing::debug!(%error, "rows are not read ahead"));
        let mut ahead = ReadAhead {
            queue: queue.ok()?,
            files,
            arrived: cursors.iter().map(|_| None).collect(),
            read_bytes: 0,
            windows_bytes: 2 * sizes.len() * to_usize(size),
        };
        for (index, cursor) in cursors.iter_mut().enumerate() {
            if let Some(offset) = cursor.row_offset() {
                cursor.ask(offset, index, &mut ahead);
            }
        }
        Some(ahead)
    }

    /// Bytes read so far that somebody has taken.
    pub(super) fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    /// Memory of its windows, those included that cursors have.
    pub(super) fn windows_bytes(&self) -> usize {
        self.windows_bytes
    }

    /// Asks for bytes of a cursor's file; false if that can't be.
    pub(super) fn ask(&mut self, index: usize, offset: u64, bytes: usize) -> bool {
        let Some(buffer) = self.queue.buffer() else {
            return false;
        };
        let Ok(open) = self.files[index].file.get() else {
            // Whoever reads when it is needed learns why.
            self.queue.recycle(buffer);
            return false;
        };
        self.queue.read(&open, offset, bytes, buffer, index as u64);
        self.queue.submit();
        true
    }

    /// What a cursor asked for: exactly so many bytes.
    ///
    /// # Errors
    /// `Io`; `Corrupt` where the file ends before.
    pub(super) fn take(
        &mut self,
        index: usize,
        offset: u64,
        bytes: usize,
    ) -> Result<Option<AlignedBuffer>> {
        let completion = loop {
            if let Some(arrived) = self.arrived.get_mut(index).and_then(Option::take) {
                break arrived;
            }
            let Some(arrived) = self.queue.wait() else {
                return Ok(None);
            };
            let place = self.arrived.get_mut(to_usize(arrived.tag));
            if let Some(place) = place {
                *place = Some(arrived);
            }
        };
        let path = &self.files[index].path;
        let got = completion.result;
        let got = got.map_err(|e| Error::io("read", path, e))?;
        check_length(path, got, bytes, offset)?;
        self.read_bytes += bytes as u64;
        Ok(Some(completion.buffer))
    }

    /// A window that has been walked.
    pub(super) fn give_back(&mut self, window: AlignedBuffer) {
        self.queue.recycle(window);
    }
}
