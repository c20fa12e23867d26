//! How are the keys of a keyset file read, piece by piece?
//!
//! - A keyset file is keys one after the other, little-endian, without header or separator (HugeCTR).
//! - It lies wherever its user has it: it is read in order by ordinary calls.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::error::{ArgumentError, Error, Result};
use crate::units::to_usize;

/// Bytes that are asked of the system at once.
const READ_BYTES: usize = 256 << 10;

/// The type of the keys in a keyset file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyType {
    /// 4 bytes each (HugeCTR's `unsigned int`).
    U32,
    /// 8 bytes each (HugeCTR's `long long`), the bits of a u64 key.
    I64,
}

impl KeyType {
    /// Bytes of a key.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            KeyType::U32 => 4,
            KeyType::I64 => 8,
        }
    }

    fn name(self) -> &'static str {
        match self {
            KeyType::U32 => "u32",
            KeyType::I64 => "i64",
        }
    }
}

/// A keyset file that is being read.
#[derive(Debug)]
pub struct KeyFile {
    path: PathBuf,
    file: File,
    key_type: KeyType,
    keys_left: u64,
    buffer: Vec<u8>,
}

impl KeyFile {
    /// Opens a keyset file.
    ///
    /// # Errors
    /// `InvalidArgument`: it has no key, or a part of one at its end; `Io`.
    pub fn open(path: &Path, key_type: KeyType) -> Result<KeyFile> {
        let failed = |source| Error::io("open", path, source);
        let file = File::open(path).map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        let rest = bytes % key_type.bytes() as u64;
        let refused = |what: String| Err(ArgumentError::Other { what }.into());
        let (shown, name) = (path.display(), key_type.name());
        if bytes == 0 {
            return refused(format!("the keyset file {shown} is empty: it has no keys"));
        }
        if rest > 0 {
            return refused(format!(
                "the keyset file {shown} has {bytes} bytes: not a whole number of {name} keys of {} bytes each; {rest} \
                 bytes are left over at offset {}. Is it cut off, or are its keys of another type?",
                key_type.bytes(),
                bytes - rest
            ));
        }
        Ok(KeyFile {
            path: path.to_path_buf(),
            file,
            key_type,
            keys_left: bytes / key_type.bytes() as u64,
            buffer: vec![0; READ_BYTES],
        })
    }

    /// Keys that were not read yet.
    #[must_use]
    pub fn keys_left(&self) -> u64 {
        self.keys_left
    }

    /// Appends the next keys, at most so many; none at the end.
    ///
    /// # Errors
    /// `Io`, also where the file has become shorter.
    pub fn read(&mut self, keys_max: usize, keys: &mut Vec<u64>) -> Result<()> {
        let size = self.key_type.bytes();
        let mut left = to_usize(self.keys_left.min(keys_max as u64));
        keys.reserve(left);
        while left > 0 {
            let count = left.min(READ_BYTES / size);
            let bytes = &mut self.buffer[..count * size];
            let read = self.file.read_exact(bytes);
            read.map_err(|source| Error::io("read keys of", &self.path, source))?;
            match self.key_type {
                KeyType::U32 => {
                    let (all, _) = bytes.as_chunks::<4>();
                    keys.extend(all.iter().map(|key| u64::from(u32::from_le_bytes(*key))));
                }
                KeyType::I64 => {
                    let (all, _) = bytes.as_chunks::<8>();
                    keys.extend(all.iter().map(|key| u64::from_le_bytes(*key)));
                }
            }
            self.keys_left -= count as u64;
            left -= count;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, bytes: &[u8]) -> PathBuf {
        let name = format!("hps-key-file-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    #[test]
    fn keys_come_in_pieces_until_none_is_left() {
        let bytes: Vec<u8> = [1u32, u32::MAX, 7]
            .iter()
            .flat_map(|k| k.to_le_bytes())
            .collect();
        let path = file("u32", &bytes);
        let mut keys = KeyFile::open(&path, KeyType::U32).unwrap();
        let mut read = Vec::new();
        keys.read(2, &mut read).unwrap();
        assert_eq!((keys.keys_left(), &read[..]), (1, &[1, 0xffff_ffff][..]));
        keys.read(2, &mut read).unwrap();
        keys.read(2, &mut read).unwrap();
        assert_eq!(read, [1, 0xffff_ffff, 7]);
        // Twelve bytes are no whole number of the other type.
        let error = KeyFile::open(&path, KeyType::I64).unwrap_err().to_string();
        assert!(
            error.contains("12 bytes") && error.contains("offset 8"),
            "{error}"
        );
        std::fs::remove_file(path).unwrap();

        let path = file("i64", &u64::MAX.to_le_bytes());
        let mut keys = KeyFile::open(&path, KeyType::I64).unwrap();
        let mut read = Vec::new();
        std::fs::write(&path, b"short").unwrap();
        let error = keys.read(9, &mut read).unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{error}");
        std::fs::remove_file(path).unwrap();

        let path = file("none", b"");
        let error = KeyFile::open(&path, KeyType::I64).unwrap_err().to_string();
        assert!(error.contains("no keys"), "{error}");
        std::fs::remove_file(path).unwrap();
    }
}
