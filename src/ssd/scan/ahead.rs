//! How are the rows of runs read while those before them are walked?
//!
//! - One queue serves all cursors of a merge, each of which has one window on its way.
//! - Nobody has to have one: without it rows are read when they are needed.

use super::RunCursor;
use crate::error::{Error, Result};
use crate::format::footer::RunKind;
use crate::io::{AlignedBuffer, Completion, Engine, Queue};
use crate::ssd::data_file::DataFile;
use crate::units::to_usize;

/// More runs have small windows, and many of them.
const CURSORS_MAX: usize = 256;

/// Windows that are on their way.
#[derive(Debug)]
pub(super) struct ReadAhead {
    queue: Box<dyn Queue>,
    /// By cursor: what came before it was taken.
    arrived: Vec<Option<Completion>>,
}

impl ReadAhead {
    /// Asks for the first window of every run of rows; `None` where none has more rows than a window, where entries are
    /// left out, and where no queue is to be had.
    pub(super) fn begin(engine: &dyn Engine, cursors: &mut [RunCursor]) -> Option<ReadAhead> {
        let left_bytes = |cursor: &RunCursor| match (cursor.run.kind, cursor.current) {
            (RunKind::Rows, Some(entry)) => {
                cursor.offset_of(cursor.scan.end) - cursor.offset_of(u64::from(entry.number))
            }
            _ => 0,
        };
        let is_long = |cursor: &RunCursor| left_bytes(cursor) > cursor.window_size();
        let is_wanted = cursors.iter().any(is_long)
            && cursors.iter().all(|cursor| cursor.first_interval == 0)
            && cursors.len() <= CURSORS_MAX;
        if !is_wanted {
            return None;
        }
        let reading = |cursor: &&RunCursor| left_bytes(cursor) > 0;
        let size = cursors.iter().filter(reading).map(RunCursor::window_size);
        let size = size.max()?;
        let windows = 2 * cursors.iter().filter(reading).count();
        let queue = engine.queue(windows, to_usize(size));
        let queue = queue.inspect_err(|error| tracing::debug!(%error, "rows are not read ahead"));
        let mut ahead = ReadAhead {
            queue: queue.ok()?,
            arrived: cursors.iter().map(|_| None).collect(),
        };
        for (index, cursor) in cursors.iter_mut().enumerate() {
            if let (RunKind::Rows, Some(entry)) = (cursor.run.kind, cursor.current) {
                let offset = cursor.offset_of(u64::from(entry.number));
                cursor.ask(offset, index, &mut ahead);
            }
        }
        Some(ahead)
    }

    /// Asks for bytes of a cursor's file; false if that can't be.
    pub(super) fn ask(&mut self, index: usize, file: &DataFile, offset: u64, bytes: usize) -> bool {
        let Some(buffer) = self.queue.buffer() else {
            return false;
        };
        let Ok(open) = file.file.get() else {
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
        file: &DataFile,
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
        let path = &file.path;
        let got = completion.result.map_err(|e| Error::io("read", path, e))?;
        if got < bytes {
            let what = format!("the file ends {} bytes early", bytes - got);
            return Err(Error::corrupt(path, offset + got as u64, what));
        }
        Ok(Some(completion.buffer))
    }

    /// A window that has been walked.
    pub(super) fn give_back(&mut self, window: AlignedBuffer) {
        self.queue.recycle(window);
    }
}
