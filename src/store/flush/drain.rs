//! How are the rows of a checkpoint's cut written while training goes on?

use super::{Flusher, WriterGuard};
use crate::error::{Error, Result};
use crate::units::to_usize;

impl Flusher {
    /// Writes every frozen row. Gives the writer's role, held since the last of them: until it is let
    /// go, the current version holds exactly the cut. And tells how many entries were written.
    ///
    /// # Errors
    /// `NoSpace`, `Io`, `Poisoned`; `Io` also when a row's state as of the cut exists no more.
    pub fn drain(&self, interval: u32) -> Result<(WriterGuard<'_>, u64)> {
        let _writing = tracing::debug_span!("drain").entered();
        let mut rows = 0;
        let mut coming = self.compactor.announce();
        coming.set(to_usize(self.dirty_bytes()));
        self.compactor.files_were_added();
        let mut cursors = Vec::new();
        let mut clean_pass = true;
        loop {
            self.compactor.wait_for_space();
            let writer = self.lock_writer();
            self.core.ssd.check_writable()?;
            let (mut picks, mut all) = (0, false);
            let mut next = || {
                // Between two picks, those who wait for room have the writer.
                let yields =
                    || self.is_awaited() || self.is_low() || self.compactor.is_over_space();
                if picks > 0 && yields() {
                    return None;
                }
                let picked = self.pick_frozen(&mut cursors, Some(interval));
                all = picked.is_none();
                if let Some(picked) = &picked {
                    picks += 1;
                    // It is written at once.
                    coming.less(to_usize(self.bytes_of(picked)));
                    self.compactor.files_were_added();
                }
                picked
            };
            let queues = self.queues.count();
            let (written, result) = self.write_all(&writer, queues, &mut next);
            rows += written;
            result?;
            if picks > 0 {
                clean_pass = false;
            }
            if !all {
                drop(writer);
                self.compactor.look();
            } else if !clean_pass {
                cursors.fill(0);
                clean_pass = true;
            } else {
                if self.core.shards.iter().any(|cell| cell.lock().has_lost()) {
                    let source = std::io::Error::other(
                        "a write failed and the row was changed since; checkpoint again",
                    );
                    return Err(Error::io(
                        "write the cut of",
                        self.core.ssd.root.path(),
                        source,
                    ));
                }
                // Who panicked may have left a row neither dirty nor written.
                self.core.ssd.check_writable()?;
                return Ok((writer, rows));
            }
        }
    }

    /// Ends the cut in all shards: younger rows may be written again. No copy is being written meanwhile, so
    /// all that are left are dropped.
    pub fn end_cut(&self) {
        let _writer = self.lock_writer();
        for cell in &self.core.shards {
            let mut shard = cell.lock();
            shard.end_cut();
            // Before it is unlocked: whoever finds younger rows that may not be written has seen no change, and is woken.
            cell.notify();
        }
    }
}
