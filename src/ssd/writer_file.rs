//! Who writes a store on a file system that several machines may have mounted?
//!
//! Locks of files may be known to one mount alone there. The file WRITER is there for all, names its
//! process, and comes and goes with the writer (docs/decisions/0051).
//!
//! Invariants:
//! - WRITER is made by a call that fails where it is there already.
//! - It is taken from a process only once that has ended for certain.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::names::{WRITER_NAME, list};
use super::small_files::{read_whole, write_whole};
use super::space::refused;
use crate::error::{Error, Holder, Result};
use crate::io::{Directory, LockGuard, OpenMode, Process, is_refused};

/// More than any that we write.
const BYTES_MAX: u64 = 4096;
/// Writers that end, or begin, while one tries to.
const TRIES_MAX: u32 = 8;

/// The next one of this process.
static NEXT: AtomicU64 = AtomicU64::new(1);
/// Those of this process that are held.
static HELD: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());

/// The file WRITER, which goes when this is dropped.
#[derive(Debug)]
pub(super) struct WriterFile {
    root: Arc<dyn Directory>,
    text: String,
    count: u64,
    /// A forked child must leave the file alone.
    process: u32,
}

impl WriterFile {
    /// Makes the file.
    ///
    /// # Errors
    /// `Locked` while another process has it, or may have it; `NoSpace`, `Io`.
    pub(super) fn take(root: &Arc<dyn Directory>) -> Result<WriterFile> {
        let count = NEXT.fetch_add(1, Ordering::Relaxed);
        let process = Process::this();
        let own = format!("{WRITER_NAME}.{}-{count}", process.pid);
        let file = WriterFile {
            root: Arc::clone(root),
            text: text_of(&process, count),
            count,
            process: process.pid,
        };
        held().insert(count);
        write_whole(&**root, &own, file.text.as_bytes())?;
        let taken = file.link(&own);
        remove_if_there(&**root, &own)?;
        taken?;
        // Those of processes that ended while they tried; one that still tries says `Locked`.
        for name in list(&**root)? {
            if name.starts_with(&format!("{WRITER_NAME}.")) {
                remove_if_there(&**root, &name)?;
            }
        }
        match read(&**root)? {
            Some(found) if found == file.text => Ok(file),
            _ => Err(locked(&root.path().join(WRITER_NAME))),
        }
    }

    /// Gives the file that was written its name.
    fn link(&self, own: &str) -> Result<()> {
        let root = &*self.root;
        let path = root.path().join(WRITER_NAME);
        for _ in 0..TRIES_MAX {
            let error = match root.hard_link(own, root, WRITER_NAME) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            match error.kind() {
                ErrorKind::AlreadyExists => {}
                // The one that has the store has removed it.
                ErrorKind::NotFound => return Err(locked(&path)),
                _ if is_refused(&error) || error.kind() == ErrorKind::PermissionDenied => {
                    match root.open(WRITER_NAME, OpenMode::Create) {
                        Ok(file) => {
                            let failed = |operation, e| refused(operation, root, &path, 0, e);
                            file.write_at(self.text.as_bytes(), 0)
                                .map_err(|e| failed("write", e))?;
                            return file.sync().map_err(|e| failed("sync", e));
                        }
                        Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
                        Err(e) => return Err(refused("create", root, &path, 0, e)),
                    }
                }
                _ => return Err(refused("link", root, &path, 0, error)),
            }
            let Some(found) = read(root)? else { continue };
            // A server may answer twice.
            if found == self.text {
                return Ok(());
            }
            if !is_left(&found) {
                return Err(locked(&path));
            }
            self.take_away(&found)?;
        }
        Err(locked(&path))
    }

    /// Removes the file of a process that has ended; not one that was made since.
    fn take_away(&self, left: &str) -> Result<()> {
        let root = &*self.root;
        let path = root.path().join(WRITER_NAME);
        let aside = format!("{WRITER_NAME}.{}-{}-left", self.process, self.count);
        match root.rename(WRITER_NAME.as_ref(), aside.as_ref()) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            moved => moved.map_err(|e| refused("rename", root, &path, 0, e))?,
        }
        let found = read_whole(root, &aside, BYTES_MAX)?;
        if found != left.as_bytes() {
            // Another one was quicker, and its file was moved: it gets it back.
            match root.hard_link(&aside, root, WRITER_NAME) {
                Err(e) if e.kind() != ErrorKind::AlreadyExists => {
                    return Err(refused("link", root, &path, 0, e));
                }
                _ => {}
            }
        }
        remove_if_there(root, &aside)
    }
}

impl LockGuard for WriterFile {
    fn is_held(&self) -> io::Result<bool> {
        match read(&*self.root) {
            Ok(found) => Ok(found.as_deref() == Some(&*self.text)),
            Err(Error::Io { source, .. }) => Err(source),
            Err(other) => Err(io::Error::other(other)),
        }
    }
}

impl Drop for WriterFile {
    fn drop(&mut self) {
        held().remove(&self.count);
        if std::process::id() == self.process
            && matches!(self.is_held(), Ok(true))
            && let Err(error) = self.root.remove(WRITER_NAME)
        {
            tracing::warn!(%error, "WRITER stays, until the next writer sees that this process has ended");
        }
    }
}

fn held() -> std::sync::MutexGuard<'static, BTreeSet<u64>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the file says; `None` if it is not there.
fn read(root: &dyn Directory) -> Result<Option<String>> {
    match read_whole(root, WRITER_NAME, BYTES_MAX) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
        Err(Error::Corrupt { .. }) => Ok(Some(String::new())),
        Err(error) => Err(error),
    }
}

fn locked(path: &Path) -> Error {
    Error::Locked {
        path: path.to_path_buf(),
        holder: Holder::Elsewhere,
    }
}

fn remove_if_there(root: &dyn Directory, name: &str) -> Result<()> {
    match root.remove(name) {
        Err(e) if e.kind() != ErrorKind::NotFound => {
            Err(Error::io("remove", &root.path().join(name), e))
        }
        _ => Ok(()),
    }
}

fn text_of(process: &Process, count: u64) -> String {
    let Process {
        machine,
        boot,
        namespace,
        pid,
        started,
    } = process;
    format!(
        "This process has the store open for writing.\nmachine {machine}\nboot {boot}\nnamespace {namespace}\npid \
         {pid}\nstarted {started}\ncount {count}\n"
    )
}

/// Whether whoever wrote this has ended for certain, or closed the store.
fn is_left(text: &str) -> bool {
    let line = |name: &str| {
        let mut lines = text.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
    };
    let number = |name| line(name).and_then(|number| number.parse::<u64>().ok());
    let (Some(boot), Some(namespace)) = (line("boot"), line("namespace")) else {
        return false;
    };
    let (Some(pid), Some(started), Some(count)) =
        (number("pid"), number("started"), number("count"))
    else {
        return false;
    };
    let process = Process {
        machine: String::new(),
        boot: boot.to_owned(),
        namespace: namespace.to_owned(),
        pid: u32::try_from(pid).unwrap_or(0),
        started,
    };
    process.has_ended() || (process.is_this() && !held().contains(&count))
}

#[cfg(test)]
mod tests;
