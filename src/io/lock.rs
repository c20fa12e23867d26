//! How is an advisory lock held, and who releases it?

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;

use super::{LockGuard, LockKind};
use crate::fork::{self, Noted};

/// Holds an advisory lock (flock). It is released by name, not by closing the descriptor: a child
/// that another thread has just forked has a copy of that until it closes it or runs its program.
#[derive(Debug)]
pub(super) struct FileLock {
    /// Goes first: the descriptor is not open for children to close any more.
    note: Option<Noted>,
    file: Option<File>,
    /// Who took it: a child that was made past the handlers must not release it either.
    process: u32,
}

impl FileLock {
    /// Locks a file that is opened for it, at once.
    pub(super) fn take(
        open: impl FnMut() -> io::Result<File>,
        kind: LockKind,
    ) -> io::Result<FileLock> {
        let (file, note) = fork::noted(open, |file| file.as_raw_fd())?;
        let taken = match kind {
            LockKind::Shared => file.try_lock_shared(),
            LockKind::Exclusive => file.try_lock(),
        };
        match taken {
            Ok(()) => Ok(FileLock {
                note: Some(note),
                file: Some(file),
                process: std::process::id(),
            }),
            Err(error) => {
                drop(note);
                Err(match error {
                    TryLockError::WouldBlock => ErrorKind::WouldBlock.into(),
                    TryLockError::Error(error) => error,
                })
            }
        }
    }
}

impl FileLock {
    /// What is locked.
    pub(super) fn file(&self) -> io::Result<&File> {
        self.file.as_ref().ok_or_else(|| ErrorKind::NotFound.into())
    }
}

impl LockGuard for FileLock {}

impl Drop for FileLock {
    fn drop(&mut self) {
        if self.note.as_ref().is_none_or(|note| !note.is_open()) {
            // A forked child has closed its copy; the number may be another file's by now.
            std::mem::forget(self.file.take());
            return;
        }
        if std::process::id() == self.process
            && let Some(file) = &self.file
            && let Err(error) = file.unlock()
        {
            tracing::warn!(%error, "a lock is released only when its descriptor is closed");
        }
    }
}
