//! How is a lock taken, and who is said to have it?
//!
//! - A writer has LOCK for itself, and its directory; a reader shares the meta file of its
//!   checkpoint.
//! - An inspection shares LOCK for an instant, to see whether there is a writer: nobody is `Locked`
//!   by that.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use super::names::LOCK_NAME;
use super::space::refused;
use super::writer_file::WriterFile;
use crate::error::{Error, Holder, Result};
use crate::io::{Directory, LockGuard, LockKind, is_refused};
use crate::sync::thread;

/// Looks of inspections that a writer waits for, one after the other.
const PROBES_MAX: u32 = 1000;

/// Locks a file at once, or says who has it.
///
/// # Errors
/// `Locked`, `NoSpace`, `Io`.
pub(crate) fn lock(
    place: &dyn Directory,
    name: &str,
    kind: LockKind,
    create: bool,
) -> Result<Box<dyn LockGuard>> {
    let path = || place.path().join(name);
    let of_writers = name == LOCK_NAME;
    let mut tries = 0;
    loop {
        let error = match place.lock(name, kind, create) {
            Ok(guard) => return Ok(guard),
            Err(error) => error,
        };
        if error.kind() != ErrorKind::WouldBlock {
            return Err(refused("lock", place, &path(), 0, error));
        }
        tries += 1;
        // Where it can be shared, no writer has it.
        let probed = of_writers && place.lock(name, LockKind::Shared, false).is_ok();
        if !probed || tries == PROBES_MAX {
            let holder = match kind {
                _ if of_writers => Holder::Writer,
                LockKind::Exclusive => Holder::Reader,
                LockKind::Shared => Holder::Dropping,
            };
            let path = path();
            return Err(Error::Locked { path, holder });
        }
        // Two that look at each other's probes must not do so for ever.
        thread::sleep(Duration::from_micros(u64::from(tries * 37 % 500)));
    }
}

/// Locks that are held together.
pub(crate) type Locks = Vec<Box<dyn LockGuard>>;

/// The writer's locks: LOCK, and the directory itself, so that removing LOCK by hand lets nobody in.
/// Where the file system can't lock a directory, LOCK alone counts. Where other machines may have it
/// mounted, also the file WRITER.
///
/// # Errors
/// `Locked`, `NoSpace`, `Io`; where the file system takes no writes, it says what can be done.
pub(crate) fn lock_writer(root: &Arc<dyn Directory>) -> Result<Locks> {
    let locked = lock(&**root, LOCK_NAME, LockKind::Exclusive, true);
    let mut locks = vec![locked.map_err(|error| match error {
        Error::Io { source, .. } if source.kind() == ErrorKind::ReadOnlyFilesystem => {
            Error::read_only_system(root.path(), source)
        }
        other => other,
    })?];
    match root.lock_whole() {
        Ok(whole) => locks.push(whole),
        Err(e) if e.kind() == ErrorKind::WouldBlock => {
            let path = root.path().to_path_buf();
            let holder = Holder::Writer;
            return Err(Error::Locked { path, holder });
        }
        Err(e) if is_refused(&e) => {
            tracing::debug!(error = %e, "the directory can't be locked; LOCK alone counts");
        }
        Err(e) => return Err(Error::io("lock", root.path(), e)),
    }
    if root
        .is_shared()
        .map_err(|e| Error::io("look at", root.path(), e))?
    {
        // It goes first: whoever gets LOCK next must not find it.
        locks.insert(0, Box::new(WriterFile::take(root)?));
    }
    Ok(locks)
}

#[cfg(test)]
mod tests;
