//! How does a folder appear whole or not at all?
//!
//! Under a name of its own beside the target, which it gets by a rename once all is durable.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use hps::Error;

use crate::cli::Usage;
use crate::durable::{folder_of, sync_folder};

/// A folder in the making; dropped, it is removed.
#[derive(Debug)]
pub struct Partial {
    path: PathBuf,
    is_kept: bool,
}

impl Partial {
    /// Begins a folder that will be `target`.
    ///
    /// # Errors
    /// When the target is there, or another export is making it; `Io`.
    pub fn new(target: &Path) -> Result<Partial> {
        let Some(name) = target.file_name() else {
            let why = format!("{}: a folder needs a name", target.display());
            return Err(Usage(why).into());
        };
        let is_taken = match fs::read_dir(target) {
            Ok(mut entries) => entries.next().is_some(),
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(error) if error.kind() == ErrorKind::NotADirectory => true,
            Err(error) => return Err(Error::io("list", target, error).into()),
        };
        if is_taken {
            bail!(
                "{}: is there already; remove it, or name another folder",
                target.display()
            );
        }
        let mut partial = std::ffi::OsString::from(".");
        partial.push(name);
        partial.push(".partial");
        let path = target.with_file_name(partial);
        match fs::create_dir(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => bail!(
                "{}: left by an export that was killed, or of one that still runs; if none runs, remove it",
                path.display()
            ),
            Err(error) => return Err(Error::io("make", &path, error).into()),
        }
        Ok(Partial {
            path,
            is_kept: false,
        })
    }

    /// Where its files are made.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives it its name. Its files are durable already.
    ///
    /// # Errors
    /// `Io`; then it is removed.
    pub fn keep(mut self, target: &Path) -> Result<()> {
        sync_folder(&self.path)?;
        fs::rename(&self.path, target).map_err(|e| Error::io("rename", &self.path, e))?;
        self.is_kept = true;
        sync_folder(folder_of(target))
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.is_kept {
            // What can't be removed is named by the next export.
            let _left = fs::remove_dir_all(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_appears_when_it_is_kept_and_leaves_nothing_otherwise() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("model");
        let names = || fs::read_dir(directory.path()).unwrap().count();
        let partial = Partial::new(&target).unwrap();
        fs::write(partial.path().join("key"), b"12345678").unwrap();
        let second = Partial::new(&target).unwrap_err().to_string();
        assert!(second.contains(".model.partial: left by"), "{second}");
        drop(partial);
        assert_eq!(names(), 0);
        fs::create_dir(&target).unwrap();
        let partial = Partial::new(&target).unwrap();
        fs::write(partial.path().join("key"), b"12345678").unwrap();
        partial.keep(&target).unwrap();
        assert_eq!(names(), 1);
        assert_eq!(fs::read(target.join("key")).unwrap(), b"12345678");
        let taken = Partial::new(&target).unwrap_err().to_string();
        assert!(taken.contains("is there already"), "{taken}");
        assert!(Partial::new(&target.join("key")).is_err(), "a file");
    }
}
