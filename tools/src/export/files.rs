//! What must the files of a format do, so that rows get into them and stay?
//!
//! - One thread more than those that write syncs meanwhile what they wrote, so that the device does not stand idle
//!   until the end.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Result;

use super::walk::Tour;
use crate::cli::Interrupt;
use crate::models::crew::Crew;

/// Bytes after which all files are synced.
const SYNC_BYTES: u64 = 128 << 20;
/// How often the thread that syncs looks at what was written.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Files that are written.
pub trait Files: Sync {
    /// Bytes that a row has there.
    fn row_bytes(&self) -> usize;

    /// Columns of the table that have no place there.
    fn left_out(&self) -> &[String];

    /// Writes rows until none is left: the work of one of several threads.
    ///
    /// # Errors
    /// What the store says; `Io`, `NoSpace`; `Cancelled`.
    fn write(&self, tour: &Tour<'_>, crew: &Crew<'_>) -> Result<()>;

    /// Bytes that threads have written so far.
    fn written_bytes(&self) -> u64;

    /// Makes them durable.
    ///
    /// # Errors
    /// `Io`, `NoSpace`; `Cancelled`, where there are many files.
    fn sync(&self, interrupt: &Interrupt) -> Result<()>;

    /// Ends the files, writes the removed keys, and makes all durable: names with bytes.
    ///
    /// # Errors
    /// `Io`, `NoSpace`; `Cancelled`, where there are many files.
    fn finish(
        self: Box<Self>,
        removed: Option<&[u64]>,
        interrupt: &Interrupt,
    ) -> Result<Vec<(String, u64)>>;
}

/// Threads that write, and one that syncs.
#[derive(Debug)]
pub struct Writers {
    threads: usize,
    /// Those that write no more.
    ended: AtomicUsize,
    /// Whether one has taken the syncs.
    is_synced: AtomicBool,
}

impl Writers {
    /// So many that write.
    #[must_use]
    pub fn new(threads: usize) -> Writers {
        Writers {
            threads,
            ended: AtomicUsize::new(0),
            is_synced: AtomicBool::new(false),
        }
    }

    /// The work of one of them, or of the one that syncs.
    ///
    /// # Errors
    /// As [`Files::write`].
    pub fn work(&self, files: &dyn Files, tour: &Tour<'_>, crew: &Crew<'_>) -> Result<()> {
        if self.is_synced.swap(true, Ordering::Relaxed) {
            let done = files.write(tour, crew);
            self.ended.fetch_add(1, Ordering::Relaxed);
            return done;
        }
        let mut synced = 0;
        while self.ended.load(Ordering::Relaxed) < self.threads {
            crew.did(0)?;
            let written = files.written_bytes();
            if written - synced < SYNC_BYTES {
                thread::sleep(LOOK_EVERY);
                continue;
            }
            synced = written;
            files.sync(crew.interrupt())?;
        }
        Ok(())
    }
}
