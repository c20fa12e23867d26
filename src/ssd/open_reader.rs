//! How does a reader get hold of a checkpoint beside a writer that goes on?
//!
//! - A shared lock on a checkpoint's meta file keeps all that it needs.
//! - What goes wrong while CURRENT changes is read again; beside a CURRENT that stayed the same it is
//!   damage, and said at once.

use std::sync::Arc;

use super::Ssd;
use super::edits::Replay;
use super::manifest_reader::read_current;
use super::missing;
use super::small_files::read_whole;
use crate::error::{ArgumentError, Error, Holder, Result};
use crate::format::current::Current;
use crate::format::manifest::CheckpointMeta;
use crate::format::{CURRENT_NAME, FileKind, file_name};
use crate::io::{Directory, LockGuard, LockKind};

use crate::sync::thread;
use crate::units::CheckpointId;

/// What a writer has just replaced is read again; a writer may take long over its syncs.
const READER_TRIES: usize = 200;
const READER_PAUSE: std::time::Duration = std::time::Duration::from_millis(10);

impl Ssd {
    /// A shared lock on a retained checkpoint: nobody drops it while the lock is there.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown checkpoint, `Locked` when it is being dropped, `Corrupt`, `Io`.
    pub(crate) fn hold(&self, checkpoint: CheckpointId) -> Result<HeldCheckpoint> {
        let (_, _, _, lock) = lock_checkpoint(&*self.root, Some(checkpoint), &self.store)?;
        Ok(HeldCheckpoint {
            _lock: lock,
            _counted: Arc::clone(&self.holds),
        })
    }

    /// Checkpoints that are held, each as often as it is.
    pub(crate) fn holds(&self) -> usize {
        Arc::strong_count(&self.holds) - 1
    }
}

/// The lock of [`Ssd::hold`].
#[derive(Debug)]
pub(crate) struct HeldCheckpoint {
    _lock: Box<dyn LockGuard>,
    _counted: Arc<()>,
}

/// A reader's shared lock on a checkpoint, and the versions read after it was locked.
pub(super) fn lock_checkpoint(
    root: &dyn Directory,
    checkpoint: Option<CheckpointId>,
    store: &[u8; 16],
) -> Result<(Current, Replay, CheckpointMeta, Box<dyn LockGuard>)> {
    let mut last = Error::Locked {
        path: root.path().to_path_buf(),
        holder: Holder::Dropping,
    };
    for attempt in 0..READER_TRIES {
        if attempt > 0 {
            thread::sleep(READER_PAUSE);
        }
        // A writer may replace the manifest between CURRENT and it, and drop the checkpoint; what
        // goes wrong beside a CURRENT that stayed the same is damage.
        let before = read_whole(root, CURRENT_NAME, 4096);
        let unchanged = || match (&before, read_whole(root, CURRENT_NAME, 4096)) {
            (Ok(before), Ok(now)) => *before == now,
            (before, now) => before.is_err() && now.is_err(),
        };
        let (_, replay) = match read_current(root, store) {
            Ok(read) => read,
            Err(error @ Error::Corrupt { .. }) if !unchanged() => {
                last = error;
                continue;
            }
            Err(error) => return Err(error),
        };
        let wanted = match checkpoint {
            Some(id) => replay.checkpoints.iter().find(|c| c.id == id),
            None => replay.checkpoints.last(),
        };
        let Some(wanted) = wanted.cloned() else {
            let id = checkpoint.unwrap_or_default();
            let retained = replay.checkpoints.iter().map(|c| c.id).collect();
            return Err(ArgumentError::UnknownCheckpoint { id, retained }.into());
        };
        let name = file_name(FileKind::Meta, wanted.meta_number);
        let path = root.path().join(&name);
        match root.lock(&name, LockKind::Shared, false) {
            Ok(guard) => match read_current(root, store) {
                Ok((current, replay)) if replay.checkpoints.contains(&wanted) => {
                    return Ok((current, replay, wanted, guard));
                }
                Ok(_) => {}
                Err(error) => last = error,
            },
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                last = missing(&path, e);
                if unchanged() {
                    return Err(last);
                }
            }
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                let holder = Holder::Dropping;
                last = Error::Locked { path, holder };
            }
            Err(e) => return Err(Error::io("lock", &path, e)),
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests;
