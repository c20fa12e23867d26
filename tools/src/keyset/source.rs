//! How do threads get chunks of whole records, whatever they are stored in?
//!
//! - Files one after the other, plain or `.gz`, or standard input; a file list stands for its files.
//! - Who has the source reads a chunk; parsing goes on beside.

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, bail};
use flate2::read::MultiGzDecoder;
use hps::Error;

use super::layout::{Format, Layout, Place};
#[cfg(feature = "parquet")]
use super::parquet::RowGroups;
use super::tsv;
use crate::cli::Usage;

/// Stands for standard input.
const STDIN: &str = "-";
/// A file list with more lines is something else.
const LIST_MAX: usize = 10_000_000;

/// Files to be read.
#[derive(Debug)]
pub struct Inputs {
    paths: Vec<PathBuf>,
    /// Of all files, as they are stored.
    pub bytes: u64,
    /// The columns of Parquet that were asked for.
    #[cfg_attr(
        not(feature = "parquet"),
        expect(dead_code, reason = "refused with the format before")
    )]
    columns: Vec<String>,
}

impl Inputs {
    /// Finds all files, and their sizes.
    ///
    /// # Errors
    /// A file that is not there, a list that is none, standard input twice.
    pub fn find(inputs: &[PathBuf], are_lists: bool) -> Result<Inputs> {
        let mut paths = Vec::new();
        for input in inputs {
            if are_lists {
                paths.extend(listed(input)?);
            } else {
                paths.push(input.clone());
            }
        }
        if paths
            .iter()
            .filter(|path| path.as_os_str() == STDIN)
            .count()
            > 1
        {
            bail!(Usage(String::from("standard input (-) is there only once")));
        }
        let mut bytes = 0;
        for path in paths.iter().filter(|path| path.as_os_str() != STDIN) {
            let metadata = path.metadata().map_err(|e| Error::io("look at", path, e))?;
            if metadata.is_dir() {
                let error = io::Error::from(ErrorKind::IsADirectory);
                return Err(Error::io("read", path, error).into());
            }
            bytes += metadata.len();
        }
        Ok(Inputs {
            paths,
            bytes,
            columns: Vec::new(),
        })
    }

    /// The same, of which these columns are asked for.
    #[must_use]
    pub fn with_columns(self, columns: &[String]) -> Inputs {
        Inputs {
            columns: columns.to_vec(),
            ..self
        }
    }

    /// How many files.
    #[must_use]
    pub fn files(&self) -> usize {
        self.paths.len()
    }
}

/// The files that HugeCTR's file list names: their number, then a path on each line.
fn listed(list: &Path) -> Result<Vec<PathBuf>> {
    let file = File::open(list).map_err(|e| Error::io("open", list, e))?;
    let folder = list.parent().unwrap_or(Path::new(""));
    let mut promised = None;
    let (mut paths, mut at) = (Vec::new(), 0);
    for line in BufReader::new(file).lines() {
        let line = match line {
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                return Err(Error::corrupt(list, at, "a file list is text, this is not").into());
            }
            line => line.map_err(|e| Error::io("read", list, e))?,
        };
        let name = line.trim_end_matches('\r');
        match promised {
            None => match name.trim().parse::<usize>() {
                Ok(count) => promised = Some(count),
                Err(_) => {
                    let what = "a file list begins with the number of files, this does not";
                    return Err(Error::corrupt(list, at, what).into());
                }
            },
            Some(_) if name.is_empty() => {}
            Some(_) => paths.push(folder.join(name)),
        }
        at += line.len() as u64 + 1;
        if paths.len() > LIST_MAX {
            return Err(Error::corrupt(list, at, "more than 10 000 000 files").into());
        }
    }
    let (found, promised) = (paths.len(), promised.unwrap_or(0));
    if found != promised || found == 0 {
        let what = format!("found {found} paths, the first line says {promised}");
        return Err(Error::corrupt(list, 0, what).into());
    }
    Ok(paths)
}

/// A chunk of whole records; the bytes are in the buffer that was given.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// The number of the chunk, from 0, over all files.
    pub number: u64,
    /// The file.
    pub path: Arc<PathBuf>,
    /// Of its first byte, after decompression.
    pub offset: u64,
    /// Where its records are.
    pub layout: Arc<Layout>,
}

impl Chunk {
    /// For messages.
    #[must_use]
    pub fn place(&self) -> Place<'_> {
        Place {
            path: &self.path,
            offset: self.offset,
        }
    }
}

struct Open {
    reader: Box<dyn Read + Send>,
    path: Arc<PathBuf>,
    layout: Option<Arc<Layout>>,
    /// Where the next chunk begins, and the length of the header.
    offset: u64,
    header: u64,
    /// A file that is read by row groups.
    #[cfg(feature = "parquet")]
    groups: Option<Box<RowGroups>>,
}

impl Open {
    fn new(path: PathBuf, reader: Box<dyn Read + Send>) -> Open {
        Open {
            reader,
            path: Arc::new(path),
            layout: None,
            offset: 0,
            header: 0,
            #[cfg(feature = "parquet")]
            groups: None,
        }
    }

    /// Reads on until there are so many bytes; whether the file ended.
    fn fill(&mut self, bytes: &mut Vec<u8>, chunk_bytes: usize) -> Result<bool> {
        let filled = fill(&mut *self.reader, bytes, chunk_bytes);
        Ok(filled.map_err(|error| match error.kind() {
            ErrorKind::InvalidInput | ErrorKind::InvalidData | ErrorKind::UnexpectedEof => {
                let at = self.offset + bytes.len() as u64;
                Error::corrupt(&self.path, at, format!("gzip: {error}"))
            }
            _ => Error::io("read", &self.path, error),
        })?)
    }
}

/// Reads chunks.
pub struct Source {
    paths: std::vec::IntoIter<PathBuf>,
    #[cfg(feature = "parquet")]
    columns: Vec<String>,
    format: Format,
    chunk_bytes: usize,
    done: Arc<AtomicU64>,
    check_fields: Box<dyn Fn(usize) -> Result<()> + Send>,
    open: Option<Open>,
    /// What was read behind the last whole record.
    rest: Vec<u8>,
    number: u64,
    fields: usize,
    has_failed: bool,
    /// Files that were read to their ends, with the bytes of their data.
    ended: Vec<(Arc<PathBuf>, Arc<Layout>, u64)>,
}

impl Source {
    /// Of files of a format, in chunks of so many bytes; bytes that were read are added to `done`.
    /// `check_fields` is asked about each file's number of fields.
    #[must_use]
    pub fn new(
        inputs: &Inputs,
        format: Format,
        (chunk_bytes, done): (usize, &Arc<AtomicU64>),
        check_fields: impl Fn(usize) -> Result<()> + Send + 'static,
    ) -> Source {
        Source {
            paths: inputs.paths.clone().into_iter(),
            #[cfg(feature = "parquet")]
            columns: inputs.columns.clone(),
            format,
            chunk_bytes,
            done: Arc::clone(done),
            check_fields: Box::new(check_fields),
            open: None,
            rest: Vec::new(),
            number: 0,
            fields: 0,
            has_failed: false,
            ended: Vec::new(),
        }
    }

    /// Of one file that a reader gives.
    #[must_use]
    pub fn of_reader(
        name: &Path,
        reader: Box<dyn Read + Send>,
        format: Format,
        sizes: (usize, &Arc<AtomicU64>),
    ) -> Source {
        let none = Inputs {
            paths: Vec::new(),
            bytes: 0,
            columns: Vec::new(),
        };
        Source {
            open: Some(Open::new(name.to_path_buf(), reader)),
            ..Source::new(&none, format, sizes, |_| Ok(()))
        }
    }

    /// The number of the next chunk: what fails now stands before it.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The most fields that a file has.
    #[must_use]
    pub fn fields(&self) -> usize {
        self.fields
    }

    /// Reads the next chunk into `bytes`; `None` at the end of the last file, and after an error: threads
    /// that wait for their turn meanwhile would find what was left half read.
    ///
    /// # Errors
    /// What reading met, or what is wrong with a file.
    pub fn next(&mut self, bytes: &mut Vec<u8>) -> Result<Option<Chunk>> {
        if self.has_failed {
            return Ok(None);
        }
        let chunk = self.next_chunk(bytes);
        self.has_failed = chunk.is_err();
        chunk
    }

    fn next_chunk(&mut self, bytes: &mut Vec<u8>) -> Result<Option<Chunk>> {
        loop {
            if self.open.is_none() {
                let Some(path) = self.paths.next() else {
                    return Ok(None);
                };
                self.open = Some(self.open_next(path)?);
            }
            #[cfg(feature = "parquet")]
            let chunk = match self.next_of_groups(bytes)? {
                Some(chunk) => chunk,
                None => self.next_of_file(bytes)?,
            };
            #[cfg(not(feature = "parquet"))]
            let chunk = self.next_of_file(bytes)?;
            if chunk.is_some() {
                return Ok(chunk);
            }
            self.open = None;
        }
    }

    fn open_next(&mut self, path: PathBuf) -> Result<Open> {
        #[cfg(feature = "parquet")]
        if self.format == Format::Parquet {
            let groups = RowGroups::open(&path, &self.columns)?;
            (self.check_fields)(groups.fields())?;
            self.fields = self.fields.max(groups.fields());
            return Ok(Open {
                groups: Some(Box::new(groups)),
                ..Open::new(path, Box::new(io::empty()))
            });
        }
        open(path, &self.done)
    }

    /// The next rows of a file that is read by row groups; `None` of any other file.
    #[cfg(feature = "parquet")]
    fn next_of_groups(&mut self, bytes: &mut Vec<u8>) -> Result<Option<Option<Chunk>>> {
        let Some((open, groups)) = (self.open.as_mut())
            .and_then(|open| open.groups.as_mut().map(|groups| (&open.path, groups)))
        else {
            return Ok(None);
        };
        let Some(rows) = groups.next(bytes, self.chunk_bytes, &self.done)? else {
            return Ok(Some(None));
        };
        let chunk = Chunk {
            number: self.number,
            path: Arc::clone(open),
            offset: 0,
            layout: Arc::new(Layout::Rows(rows)),
        };
        self.number += 1;
        Ok(Some(Some(chunk)))
    }

    fn next_of_file(&mut self, bytes: &mut Vec<u8>) -> Result<Option<Chunk>> {
        let Some(open) = &mut self.open else {
            return Ok(None);
        };
        bytes.clear();
        bytes.append(&mut self.rest);
        let mut is_all = open.fill(bytes, self.chunk_bytes)?;
        let layout = match &open.layout {
            Some(layout) => Arc::clone(layout),
            None => {
                let place = Place {
                    path: &open.path,
                    offset: 0,
                };
                let (layout, header) = self.format.begin(bytes, is_all, &place)?;
                (self.check_fields)(layout.fields())?;
                self.fields = self.fields.max(layout.fields());
                bytes.drain(..header);
                open.header = header as u64;
                open.offset = open.header;
                let layout = Arc::clone(open.layout.insert(Arc::new(layout)));
                // Where the header was, there is room for a record that would not fit beside it.
                is_all = is_all || open.fill(bytes, self.chunk_bytes)?;
                layout
            }
        };
        let place = Place {
            path: &open.path,
            offset: open.offset,
        };
        if bytes.is_empty() && is_all {
            let data = open.offset - open.header;
            self.ended.push((Arc::clone(&open.path), layout, data));
            return Ok(None);
        }
        let cut = layout.cut(bytes, is_all, &place)?;
        if cut == 0 {
            return Err(match &*layout {
                Layout::Text(_) => tsv::too_long(bytes.len(), &place),
                _ => place.bad(
                    0,
                    format!(
                        "a record is longer than the buffer of {} bytes: a larger --memory has a \
                         larger one, if the flags say what the file is",
                        self.chunk_bytes
                    ),
                ),
            });
        }
        self.rest.extend_from_slice(&bytes[cut..]);
        bytes.truncate(cut);
        let chunk = Chunk {
            number: self.number,
            path: Arc::clone(&open.path),
            offset: open.offset,
            layout,
        };
        self.number += 1;
        open.offset += cut as u64;
        Ok(Some(chunk))
    }

    /// Checks what can be checked only when all chunks were parsed.
    ///
    /// # Errors
    /// When the header of a file promises another number of records.
    pub fn end(&self) -> Result<()> {
        for (path, layout, data) in &self.ended {
            layout.end(*data, &Place { path, offset: 0 })?;
        }
        Ok(())
    }
}

/// Appends until there are `all` bytes; whether the file ended.
fn fill(reader: &mut dyn Read, bytes: &mut Vec<u8>, all: usize) -> io::Result<bool> {
    let start = bytes.len();
    let wanted = all.saturating_sub(start) as u64;
    bytes.reserve_exact(all.saturating_sub(start));
    let read = reader.take(wanted).read_to_end(bytes)?;
    Ok((read as u64) < wanted)
}

/// Counts the bytes that are read from a file.
struct Counted<R> {
    inner: R,
    done: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(bytes)?;
        self.done.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

fn open(path: PathBuf, done: &Arc<AtomicU64>) -> Result<Open> {
    let done = Arc::clone(done);
    let reader: Box<dyn Read + Send> = if path.as_os_str() == STDIN {
        Box::new(io::stdin())
    } else {
        let inner = File::open(&path).map_err(|e| Error::io("open", &path, e))?;
        let plain = Counted { inner, done };
        match path.extension().is_some_and(|ending| ending == "gz") {
            true => Box::new(MultiGzDecoder::new(BufReader::with_capacity(
                1 << 16,
                plain,
            ))),
            false => Box::new(plain),
        }
    };
    Ok(Open::new(path, reader))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyset::layout::KeyType;
    use crate::models;

    /// A record that the buffer holds was refused as longer than the buffer: it did not fit behind the header.
    #[test]
    fn the_first_record_has_the_whole_buffer() {
        let array = [models::npy::write("<i8", &[3, 32]), vec![1; 3 * 32 * 8]].concat();
        for (chunk_bytes, is_read) in [(256, true), (255, false)] {
            let reader = Box::new(io::Cursor::new(array.clone()));
            let sizes = (chunk_bytes, &Arc::default());
            let mut source = Source::of_reader(Path::new("a"), reader, Format::Npy, sizes);
            let mut bytes = Vec::new();
            let chunk = source.next(&mut bytes);
            assert_eq!(chunk.is_ok(), is_read, "{chunk_bytes}: {chunk:?}");
            assert_eq!(bytes.len() == 256, is_read);
        }
    }

    /// A thread that waited for its turn read on where another had found a fault, and its own was told.
    #[test]
    fn after_an_error_nothing_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("norm");
        std::fs::write(&path, [7; 100]).unwrap();
        let inputs = Inputs::find(&[path], false).unwrap();
        let done = Arc::new(AtomicU64::new(0));
        let format = Format::Norm(KeyType::I64);
        let mut source = Source::new(&inputs, format, (4096, &done), |_| Ok(()));
        let mut bytes = Vec::new();
        assert!(source.next(&mut bytes).is_err());
        assert!(source.next(&mut bytes).unwrap().is_none());
    }
}
