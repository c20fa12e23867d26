//! How do files go that nothing needs any more?
//!
//! Invariants:
//! - A file that was taken out of the versions is unlinked by who took it, and counts as gone from then on.
//! - Before anybody is told `NoSpace`, what can go is unlinked, and those who are at it are waited for.
//! - Nothing is unlinked once writes are refused: CURRENT may name more than is known here.

use std::io::ErrorKind;
use std::sync::PoisonError;

use super::version::{FileState, Versions};
use super::{NewFile, Ssd};
use crate::format::data_file_name;
use crate::io::Directory;
use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::units::FileNumber;

/// Who is unlinking files.
#[derive(Debug, Default)]
pub struct Unlinking {
    state: Mutex<Progress>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Progress {
    /// Threads that have taken files and not unlinked all of them.
    threads: usize,
    /// How often one had unlinked its files.
    rounds: u64,
}

/// A thread that has taken files; it has unlinked them when this is dropped.
#[derive(Debug)]
pub(super) struct Unlinker<'a>(&'a Unlinking);

impl Drop for Unlinker<'_> {
    fn drop(&mut self) {
        let mut progress = self.0.lock();
        progress.threads -= 1;
        progress.rounds += 1;
        drop(progress);
        self.0.ended.notify_all();
    }
}

impl Unlinking {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody takes files, under the lock of the versions.
    pub(super) fn begin(&self) -> Unlinker<'_> {
        self.lock().threads += 1;
        Unlinker(self)
    }

    /// How often somebody had unlinked files.
    pub(super) fn rounds(&self) -> u64 {
        self.lock().rounds
    }

    /// Waits until nobody is at it.
    fn wait_idle(&self) {
        let mut progress = self.lock();
        while progress.threads > 0 {
            let woken = self.ended.wait(progress);
            progress = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Ssd {
    /// Takes files whose entries are all stale out of the current version and unlinks what
    /// nothing needs any more.
    pub fn retire(&self, numbers: &[FileNumber]) {
        let mut versions = self.versions();
        for &number in numbers {
            versions.retire(&self.slots, number);
        }
        drop(versions);
        self.unlink_garbage(|versions| versions.take_garbage_among(numbers));
    }

    /// Unlinks the files that neither a retained checkpoint nor the current version needs. Of large ones each
    /// takes milliseconds.
    pub fn collect_garbage(&self) {
        self.unlink_garbage(Versions::take_garbage);
    }

    fn unlink_garbage(&self, take: impl FnOnce(&mut Versions) -> Vec<FileState>) {
        let (garbage, _unlinker) = {
            let mut versions = self.versions();
            // Asked under the lock: whoever refuses writes leaves `captured` as it is.
            if self.check_writable().is_err() {
                return;
            }
            let garbage = take(&mut versions);
            if garbage.is_empty() {
                return;
            }
            (garbage, self.unlinking.begin())
        };
        for state in garbage {
            let place = &self.directories[state.meta.directory as usize];
            let number = state.meta.number;
            match self.open_files.keep(number) {
                Ok(()) => self.unlink(&**place, &data_file_name(number)),
                // It is an orphan now, and removed at the next open.
                Err(error) => {
                    tracing::warn!(number = number.0, %error, "a file that is still read can't be opened: it stays");
                }
            }
        }
    }

    /// Unlinks what nothing needs, and waits for others who do.
    pub(super) fn unlink_all(&self) {
        self.collect_garbage();
        self.unlinking.wait_idle();
    }

    /// Removes a name that nothing needs.
    pub(crate) fn unlink(&self, place: &dyn Directory, name: &str) {
        match place.remove(name) {
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            // It is an orphan now, and removed at the next open.
            Err(error) => {
                let path = place.path().join(name);
                tracing::warn!(path = %path.display(), %error, "a file that nothing needs stays");
            }
        }
    }

    /// Removes a file that was never installed.
    pub(crate) fn unlink_new(&self, new: &NewFile) {
        let place = &self.directories[new.directory as usize];
        self.unlink(&**place, &data_file_name(new.number));
    }
}
