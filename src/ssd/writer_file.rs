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
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::names::{WRITER_NAME, list};
use super::small_files::{remove_if_there, write_whole};
use super::space::refused;
use crate::error::{Error, Holder, Result};
use crate::io::{Directory, Disk, LockGuard, OpenMode, OsDisk, ProcessIdentity, is_refused};
use crate::sync::thread;
use crate::units::to_usize;

/// More than any that we write.
const BYTES_MAX: u64 = 4096;
/// Writers that end, or begin, while one tries to.
const TRIES_MAX: u32 = 8;
/// Whoever takes over from a process that has ended looks once more after that: another one may have seen the same file, and
/// taken its place meanwhile.
const SETTLE: Duration = Duration::from_millis(50);

/// Nonces of the files of this process that are held.
static HELD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// The file WRITER, which goes when this is dropped.
#[derive(Debug)]
pub(super) struct WriterFile {
    root: Arc<dyn Directory>,
    text: String,
    /// Of this file alone, wherever it was made.
    nonce: String,
    /// A forked child must leave the file alone.
    process: u32,
}

/// Whether a name is that of the file, or of one that is about to get it.
pub(super) fn is_writer_name(name: &str) -> bool {
    name.strip_prefix(WRITER_NAME)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Whether, on a file system that other machines may have mounted, some process has the store open for
/// writing, as far as can be known.
pub(crate) fn is_written_elsewhere(root: &dyn Directory) -> bool {
    let is_held = |text: Option<String>| text.is_some_and(|text| !is_left(&text));
    root.is_shared().unwrap_or(false) && read(root).is_ok_and(is_held)
}

impl WriterFile {
    /// Makes the file.
    ///
    /// # Errors
    /// `Locked` while another process has it, or may have it; `NoSpace`, `Io`.
    pub(super) fn take(root: &Arc<dyn Directory>) -> Result<WriterFile> {
        let process = ProcessIdentity::this();
        let nonce = u128::from_le_bytes(OsDisk.fresh_uuid());
        let nonce = format!("{nonce:032x}");
        let own = format!("{WRITER_NAME}.{nonce}");
        let file = WriterFile {
            root: Arc::clone(root),
            text: text_of(&process, &nonce),
            nonce: nonce.clone(),
            process: process.pid,
        };
        held().insert(nonce);
        let written = write_whole(&**root, &own, file.text.as_bytes());
        let taken = written.and_then(|()| file.name(&own));
        let removed = remove_if_there(&**root, &own);
        taken?;
        removed?;
        // Those of processes that ended while they tried; one that still tries says `Locked`.
        for name in list(&**root)? {
            if name != WRITER_NAME && is_writer_name(&name) {
                remove_if_there(&**root, &name)?;
            }
        }
        match file.is_held() {
            Ok(true) => Ok(file),
            Ok(false) => Err(locked(&**root)),
            Err(error) => Err(Error::io("read", &path_in(&**root), error)),
        }
    }

    /// Gives the file that was written its name.
    fn name(&self, own: &str) -> Result<()> {
        let root = &*self.root;
        let path = path_in(root);
        for _ in 0..TRIES_MAX {
            let error = match root.hard_link(own, root, WRITER_NAME) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            match error.kind() {
                ErrorKind::AlreadyExists => {}
                // The one that has the store has removed it.
                ErrorKind::NotFound => return Err(locked(root)),
                _ if is_refused(&error) || error.kind() == ErrorKind::PermissionDenied => {
                    if self.create()? {
                        return Ok(());
                    }
                }
                _ => return Err(refused("link", root, &path, 0, error)),
            }
            let found = read(root).map_err(|e| Error::io("read", &path, e))?;
            let Some(found) = found else { continue };
            // A server may answer twice.
            if found == self.text {
                return Ok(());
            }
            if !is_left(&found) {
                return Err(locked(root));
            }
            return self.take_over(own);
        }
        Err(locked(root))
    }

    /// Where there are no links: makes the file, unless it is there.
    fn create(&self) -> Result<bool> {
        let root = &*self.root;
        let path = path_in(root);
        let failed = |operation, e| refused(operation, root, &path, 0, e);
        let file = match root.open(WRITER_NAME, OpenMode::Create) {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::AlreadyExists => return Ok(false),
            Err(e) => return Err(failed("create", e)),
        };
        let bytes = self.text.as_bytes();
        let written = (file.write_at(bytes, 0).map_err(|e| failed("write", e)))
            .and_then(|()| file.sync().map_err(|e| failed("sync", e)));
        if written.is_err() {
            // Without its text nobody could tell whose it is.
            remove_if_there(root, WRITER_NAME)?;
        }
        written.map(|()| true)
    }

    /// Takes the place of the file of a process that has ended. There is a file of that name at all times: of two
    /// that do this at once, the second has it, and the first sees that.
    fn take_over(&self, own: &str) -> Result<()> {
        let root = &*self.root;
        match root.rename(own.as_ref(), WRITER_NAME.as_ref()) {
            Ok(()) => thread::sleep(SETTLE),
            // Whoever was quicker has swept it away.
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(refused("rename", root, &root.path().join(own), 0, e)),
        }
        Ok(())
    }
}

impl LockGuard for WriterFile {
    fn is_held(&self) -> io::Result<bool> {
        read(&*self.root).map(|found| found.as_deref() == Some(&*self.text))
    }
}

impl Drop for WriterFile {
    fn drop(&mut self) {
        if std::process::id() != self.process {
            return;
        }
        held().remove(&self.nonce);
        if matches!(self.is_held(), Ok(true))
            && let Err(error) = self.root.remove(WRITER_NAME)
        {
            tracing::warn!(%error, "WRITER stays, until the next writer sees that this process has ended");
        }
    }
}

fn held() -> MutexGuard<'static, BTreeSet<String>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the file says; `None` if it is not there.
fn read(root: &dyn Directory) -> io::Result<Option<String>> {
    let file = match root.open(WRITER_NAME, OpenMode::Read) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let mut bytes = vec![0; to_usize(file.bytes()?.min(BYTES_MAX))];
    let got = file.read_at(&mut bytes, 0)?;
    bytes.truncate(got);
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

fn path_in(root: &dyn Directory) -> PathBuf {
    root.path().join(WRITER_NAME)
}

fn locked(root: &dyn Directory) -> Error {
    Error::Locked {
        path: path_in(root),
        holder: Holder::Elsewhere,
    }
}

fn text_of(process: &ProcessIdentity, nonce: &str) -> String {
    let ProcessIdentity {
        machine,
        boot,
        namespace,
        pid,
        started,
    } = process;
    format!(
        "This process has the store open for writing.\nmachine {machine}\nboot {boot}\nnamespace {namespace}\npid \
         {pid}\nstarted {started}\nnonce {nonce}\n"
    )
}

/// Who wrote a text, and the nonce; `None` where it is not all there.
fn parse(text: &str) -> Option<(ProcessIdentity, &str)> {
    let line = |name: &str| {
        let mut lines = text.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
    };
    let process = ProcessIdentity {
        machine: line("machine").unwrap_or_default().to_owned(),
        boot: line("boot")?.to_owned(),
        namespace: line("namespace")?.to_owned(),
        pid: line("pid")?.parse().ok()?,
        started: line("started")?.parse().ok()?,
    };
    Some((process, line("nonce")?))
}

/// Whether whoever wrote this has ended for certain, or closed the store.
fn is_left(text: &str) -> bool {
    let this = ProcessIdentity::this();
    parse(text).is_some_and(|(process, nonce)| {
        process.has_ended(&this) || (process.is(&this) && !held().contains(nonce))
    })
}

#[cfg(test)]
mod tests;
