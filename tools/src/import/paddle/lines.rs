//! Which lines have the files of a table of Paddle's?
//!
//! - A file is read by pieces, each of which has the lines that begin in it; a `.gz` file is one piece.
//! - A line without its end is damage: the file was cut off.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use flate2::read::MultiGzDecoder;
use hps::Error;

use crate::cli::Usage;
use crate::models::paddle::LINE_BYTES_MAX;

/// Bytes of a piece of a file.
const PIECE_BYTES: u64 = 4 << 20;
/// Bytes read at once.
const READ_BYTES: usize = 256 << 10;

/// Files of a table.
pub struct Files {
    /// With their lengths.
    paths: Vec<(PathBuf, u64)>,
    pieces: Vec<Piece>,
    bytes: u64,
}

/// A piece of a file.
#[derive(Clone, Copy, Debug)]
struct Piece {
    file: usize,
    begin: u64,
    /// To the end of the file, where it is a `.gz`.
    end: u64,
}

fn is_gz(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "gz")
}

fn length(path: &Path) -> Result<u64, Error> {
    let metadata = path.metadata();
    Ok(metadata.map_err(|e| Error::io("look at", path, e))?.len())
}

impl Files {
    /// Finds them in a folder.
    ///
    /// # Errors
    /// `Usage` where there are others, or none; `Io`.
    pub fn list(folder: &Path) -> Result<Files> {
        let usage = |path: &Path, why: &str| Usage(format!("{}: {why}", path.display()));
        let list = match fs::read_dir(folder) {
            Ok(list) => list,
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Err(usage(folder, "is no folder").into());
            }
            Err(e) => return Err(Error::io("list", folder, e).into()),
        };
        let mut paths = Vec::new();
        for entry in list {
            let entry = entry.map_err(|e| Error::io("list", folder, e))?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            // Marks of those who copied it.
            if name.starts_with('.') || name.starts_with('_') {
                continue;
            }
            let path = entry.path();
            if !name.starts_with("part-") || !path.is_file() {
                let why = "is no file part-* of a table of Paddle; remove it, or name the folder of the table";
                return Err(usage(&path, why).into());
            }
            paths.push(path);
        }
        if paths.is_empty() {
            return Err(usage(folder, "no table of Paddle: it has no file part-*").into());
        }
        paths.sort();
        let (mut listed, mut pieces, mut bytes) = (Vec::new(), Vec::new(), 0);
        for (file, path) in paths.into_iter().enumerate() {
            let length = length(&path)?;
            bytes += length;
            let is_packed = is_gz(&path);
            listed.push((path, length));
            if is_packed {
                pieces.push(Piece {
                    file,
                    begin: 0,
                    end: u64::MAX,
                });
                continue;
            }
            let begins = (0..length.div_ceil(PIECE_BYTES)).map(|piece| piece * PIECE_BYTES);
            pieces.extend(begins.map(|begin| Piece {
                file,
                begin,
                end: (begin + PIECE_BYTES).min(length),
            }));
        }
        Ok(Files {
            paths: listed,
            pieces,
            bytes,
        })
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many pieces there are.
    pub fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// The file of a piece; that of the last one, where there is no such piece.
    pub fn path(&self, piece: usize) -> &Path {
        let piece = self.pieces.get(piece).or(self.pieces.last());
        let file = piece.map_or(0, |piece| piece.file);
        self.paths[file].0.as_path()
    }

    /// The lines of a piece.
    ///
    /// # Errors
    /// `Io`; `Corrupt`.
    pub fn lines(&self, piece: usize) -> Result<Lines<'_>> {
        Lines::open(self, self.pieces[piece])
    }
}

/// The lines of a piece of a file.
pub struct Lines<'a> {
    path: &'a Path,
    /// The length of the file when it was listed.
    length: u64,
    reader: Box<dyn BufRead>,
    /// Where the next one begins.
    at: u64,
    end: u64,
    line: Vec<u8>,
}

impl<'a> Lines<'a> {
    fn open(files: &'a Files, piece: Piece) -> Result<Lines<'a>> {
        let Piece { file, begin, end } = piece;
        let (path, length) = &files.paths[file];
        let path = path.as_path();
        let mut file = File::open(path).map_err(|e| Error::io("open", path, e))?;
        // What begins before is of another piece, up to the end of its line.
        let at = begin.saturating_sub(1);
        let found = file.seek(SeekFrom::Start(at));
        found.map_err(|e| Error::io("read", path, e))?;
        let reader: Box<dyn BufRead> = match is_gz(path) {
            true => {
                let file = BufReader::with_capacity(READ_BYTES, file);
                Box::new(BufReader::with_capacity(
                    READ_BYTES,
                    MultiGzDecoder::new(file),
                ))
            }
            false => Box::new(BufReader::with_capacity(READ_BYTES, file)),
        };
        let mut lines = Lines {
            path,
            length: *length,
            reader,
            at,
            end,
            line: Vec::new(),
        };
        lines.check_length()?;
        if begin > 0 {
            lines.read()?;
        }
        Ok(lines)
    }

    /// The next line, without its end, and where it begins.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub fn next(&mut self) -> Result<Option<(u64, &[u8])>> {
        let begin = self.at;
        if begin >= self.end || self.read()? == 0 {
            self.check_length()?;
            return Ok(None);
        }
        match self.line.strip_suffix(b"\n") {
            Some(_) => {
                let length = self.line.len() - 1;
                Ok(Some((begin, &self.line[..length])))
            }
            None => {
                let what =
                    "the last line has no end: the file is cut off; if it is whole, end the line";
                Err(self.corrupt(begin, what.to_owned()).into())
            }
        }
    }

    /// Refuses a file that was cut, or grew: its pieces are those of the length that it had.
    fn check_length(&self) -> Result<()> {
        let (found, expected) = (length(self.path)?, self.length);
        if found != expected {
            let path = self.path.display();
            bail!("{path}: changed while it was read: found {found} bytes, expected {expected}");
        }
        Ok(())
    }

    /// Reads up to the end of a line: its bytes.
    fn read(&mut self) -> Result<usize> {
        self.line.clear();
        let mut part = self.reader.as_mut().take(LINE_BYTES_MAX as u64 + 1);
        let done = part.read_until(b'\n', &mut self.line);
        let read = match done {
            Ok(read) => read,
            Err(e) if is_gz(self.path) && e.kind() != ErrorKind::Interrupted => {
                let what = format!("{e}: no whole file of gzip");
                return Err(self.corrupt(self.at, what).into());
            }
            Err(e) => return Err(Error::io("read", self.path, e).into()),
        };
        if read > LINE_BYTES_MAX {
            let what = format!("a line of more than {LINE_BYTES_MAX} bytes; no feature has that");
            return Err(self.corrupt(self.at, what).into());
        }
        self.at += read as u64;
        Ok(read)
    }

    /// Where the next line begins: bytes of the text, whether it was packed or not.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Bytes of the file, as it is.
    pub fn file_bytes(&self) -> u64 {
        self.length
    }

    /// Whether bytes are those of the text once it is unpacked.
    pub fn is_packed(&self) -> bool {
        is_gz(self.path)
    }

    /// What is wrong at a byte.
    pub fn corrupt(&self, at: u64, what: String) -> Error {
        let what = match self.is_packed() {
            true => format!("{what} (the byte is that of the text, once unpacked)"),
            false => what,
        };
        Error::corrupt(self.path, at, what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_cut_or_grows_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("part-000-00000");
        let line = "1 -1 0 0 5 2 0.5 0\n";
        for bytes in [0, line.len(), 3 * line.len()] {
            fs::write(&path, line.repeat(2)).unwrap();
            let files = Files::list(dir.path()).unwrap();
            // While it is read, and before it is opened.
            let mut open = files.lines(0).unwrap();
            open.next().unwrap().unwrap();
            fs::write(&path, &line.repeat(3)[..bytes]).unwrap();
            let mut read = || loop {
                match open.next() {
                    Ok(Some(_)) => {}
                    other => break other.map(drop),
                }
            };
            for why in [read().unwrap_err(), files.lines(0).err().unwrap()] {
                let why = why.to_string();
                let told =
                    format!("part-000-00000: changed while it was read: found {bytes} bytes");
                assert!(why.contains(&told) && why.contains("expected 38"), "{why}");
            }
        }
    }
}
