//! How is a keyset file written?
//!
//! - Beside its place, under another name; it gets its own once it is whole and synced. Whatever ends
//!   the tool before, the old file is still there.

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use hps::Error;
use tempfile::{NamedTempFile, TempPath};

use super::layout::KeyType;
use crate::durable::{folder_of, sync_folder};

/// A file that gets its name when it is whole.
#[derive(Debug)]
pub struct Output {
    file: NamedTempFile,
    path: PathBuf,
}

impl Output {
    /// Begins a file.
    ///
    /// # Errors
    /// What the file system says.
    pub fn create(path: &Path) -> Result<Output> {
        if path.is_dir() {
            let error = io::Error::from(io::ErrorKind::IsADirectory);
            return Err(Error::io("write", path, error).into());
        }
        let folder = folder_of(path);
        let made = tempfile::Builder::new()
            .prefix(".hps-keyset-")
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder);
        Ok(Output {
            file: made.map_err(|e| Error::io("make a file in", folder, e))?,
            path: path.to_path_buf(),
        })
    }

    /// For writing.
    ///
    /// # Errors
    /// When the process has too many files open.
    pub fn file(&self) -> Result<File> {
        let file = self.file.as_file().try_clone();
        Ok(file.map_err(|e| Error::io("write", &self.path, e))?)
    }

    /// Syncs the file and gives it its name.
    ///
    /// # Errors
    /// What the file system says.
    pub fn finish(self) -> Result<PathBuf> {
        self.whole()?.finish()
    }

    /// Syncs the file; its name is to come.
    ///
    /// # Errors
    /// What the file system says.
    pub fn whole(self) -> Result<Whole> {
        let Output { file, path } = self;
        let synced = file.as_file().sync_all();
        synced.map_err(|e| Error::io("sync", &path, e))?;
        Ok(Whole {
            file: file.into_temp_path(),
            path,
        })
    }
}

/// A file that is whole and synced, and has no descriptor; it is removed unless it gets its name.
#[derive(Debug)]
pub struct Whole {
    file: TempPath,
    path: PathBuf,
}

impl Whole {
    /// Gives the file its name.
    ///
    /// # Errors
    /// What the file system says.
    pub fn finish(self) -> Result<PathBuf> {
        let Whole { file, path } = self;
        file.persist(&path)
            .map_err(|e| Error::io("write", &path, e.error))?;
        sync_folder(folder_of(&path))?;
        Ok(path)
    }
}

/// Writes keys of a type.
#[derive(Debug)]
pub struct KeyWriter {
    file: File,
    /// For messages.
    path: PathBuf,
    keys: KeyType,
    bytes: Vec<u8>,
    bytes_max: usize,
    /// How many keys were written.
    pub count: u64,
}

impl KeyWriter {
    /// Through a buffer of so many bytes; `path` is what messages name.
    #[must_use]
    pub fn new(file: File, path: &Path, keys: KeyType, bytes_max: usize) -> KeyWriter {
        KeyWriter {
            file,
            path: path.to_path_buf(),
            keys,
            bytes: Vec::with_capacity(bytes_max),
            bytes_max: bytes_max.max(8),
            count: 0,
        }
    }

    /// Writes sorted keys, to each of which something is added.
    ///
    /// # Errors
    /// A key that the type does not hold; what the file system says.
    pub fn write(&mut self, keys: &[u64], added: u64) -> Result<()> {
        for piece in keys.chunks(self.bytes_max / 8) {
            let keys = piece.iter().map(|key| key.wrapping_add(added));
            self.bytes.clear();
            match self.keys {
                KeyType::I64 => self.bytes.extend(keys.flat_map(u64::to_le_bytes)),
                KeyType::U32 => {
                    if let Some(key) = keys.clone().find(|key| key >> 32 != 0) {
                        bail!(
                            "{}: key {key} does not fit into 32 bits: write --dtype i64",
                            self.path.display()
                        );
                    }
                    self.bytes.extend(keys.flat_map(|key| {
                        let [a, b, c, d, ..] = key.to_le_bytes();
                        [a, b, c, d]
                    }));
                }
            }
            let written = self.file.write_all(&self.bytes);
            written.map_err(|e| Error::io("write", &self.path, e))?;
            self.count += piece.len() as u64;
        }
        Ok(())
    }
}
