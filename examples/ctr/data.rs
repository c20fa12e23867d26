//! How does Criteo-layout text become batches of keys?
//!
//! - A row is 40 tab-separated columns: label, 13 integers, 26 hexadecimal categoricals; an empty
//!   field is missing. A key is `slot << 32 | value`, slot 1 to 26.
//! - A malformed line is counted and the first ones are reported as FILE:LINE: reason; it never
//!   changes what the other lines give.
//! - What is no text at all (a directory, a binary, a damaged gzip) ends the run, naming the file.
//! - Reading is a pure function of the files: after the same rows the position is the same.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use flate2::bufread::MultiGzDecoder;
use xxhash_rust::xxh3::Xxh3;

use crate::parse::parse;
use crate::planted::Planted;

/// Categorical columns.
pub(crate) const SLOTS: usize = 26;
/// Integer columns.
pub(crate) const INTEGERS: usize = 13;
/// Numbers made of the integers: a logarithm and a missing mark of each.
pub(crate) const DENSE: usize = 2 * INTEGERS;
/// Longest line taken for text: 40 columns of 20 bytes are 840 bytes.
const LINE_BYTES_MAX: u64 = 64 << 10;
const REPORTS_MAX: u64 = 5;
/// Bytes at each end of a file by which it is known again.
const END_BYTES: u64 = 64 << 10;

/// Where reading stands, after the last row of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    /// Index of the file.
    pub(crate) file: u64,
    /// Lines of that file read.
    pub(crate) line: u64,
    /// Valid rows read, in all files.
    pub(crate) rows: u64,
    /// Malformed lines, in all files.
    pub(crate) skipped: u64,
}

/// Rows of one training step.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// 0 or 1 per example.
    pub(crate) labels: Vec<f32>,
    /// `[examples, DENSE]`.
    pub(crate) dense: Vec<f32>,
    /// Keys of all examples, in order; the slot is the upper half.
    pub(crate) keys: Vec<u64>,
    /// Number of keys of each example.
    pub(crate) counts: Vec<u8>,
    /// Logits of the planted model, if the data is planted.
    pub(crate) planted: Vec<f32>,
    /// Position after the batch.
    pub(crate) position: Position,
    /// Seconds spent reading and parsing it.
    pub(crate) read_s: f64,
}

/// Reads rows from files in order.
pub(crate) struct Reader {
    paths: Vec<PathBuf>,
    input: Option<Box<dyn BufRead + Send>>,
    valid_in_file: u64,
    first_reason: Option<String>,
    line: Vec<u8>,
    position: Position,
    strict: bool,
    planted: Option<Planted>,
}

impl Reader {
    /// A reader at the start of the first file.
    pub(crate) fn new(paths: Vec<PathBuf>, strict: bool, planted: Option<Planted>) -> Reader {
        Reader {
            paths,
            input: None,
            valid_in_file: 0,
            first_reason: None,
            line: Vec::new(),
            position: Position::default(),
            strict,
            planted,
        }
    }

    /// Reads past what a checkpoint has consumed, and checks that it is what it was.
    pub(crate) fn skip_to(&mut self, target: Position) -> Result<()> {
        let mut batch = Batch::default();
        while self.position.rows < target.rows {
            if !self.row(&mut batch)? {
                bail!(
                    "the data ends after {} rows, the checkpoint was made after {}: it is not the \
                     data of that run",
                    self.position.rows,
                    target.rows
                );
            }
            batch.clear();
        }
        if target.rows > 0 && self.position != target {
            let found = self.position;
            bail!(
                "{}: after {} rows at line {} with {} malformed lines, the checkpoint at line {} \
                 with {}: the data changed since",
                self.name(),
                found.rows,
                found.line,
                found.skipped,
                target.line,
                target.skipped
            );
        }
        Ok(())
    }

    /// The next batch of at most `rows` rows; `None` at the end of the last file.
    pub(crate) fn batch(&mut self, rows: usize) -> Result<Option<Batch>> {
        let start = std::time::Instant::now();
        let mut batch = Batch::default();
        batch.keys.reserve(rows.min(1 << 16) * SLOTS);
        while batch.labels.len() < rows && self.row(&mut batch)? {
            // After the row, not after lines that follow it: `skip_to` must come out here too.
            batch.position = self.position;
        }
        if batch.labels.is_empty() {
            return Ok(None);
        }
        batch.read_s = start.elapsed().as_secs_f64();
        Ok(Some(batch))
    }

    /// Malformed lines so far.
    pub(crate) fn skipped(&self) -> u64 {
        self.position.skipped
    }

    /// Appends the next valid row; false at the end of the last file.
    fn row(&mut self, batch: &mut Batch) -> Result<bool> {
        loop {
            if self.input.is_none() {
                let Some(path) = self.paths.get(self.file_index()) else {
                    return Ok(false);
                };
                self.input = Some(open(path)?);
                self.position.line = 0;
                self.valid_in_file = 0;
                self.first_reason = None;
            }
            if !self.read_line()? {
                self.end_file()?;
                continue;
            }
            while self.line.last().is_some_and(|x| *x == b'\n' || *x == b'\r') {
                self.line.pop();
            }
            if self.line.is_empty() {
                continue;
            }
            match parse(&self.line, batch) {
                Ok(()) => {
                    self.position.rows += 1;
                    self.valid_in_file += 1;
                    if let Some(planted) = &self.planted {
                        batch.planted.push(planted.logit_of_last(batch));
                    }
                    return Ok(true);
                }
                Err(reason) => self.malformed(reason)?,
            }
        }
    }

    fn file_index(&self) -> usize {
        usize::try_from(self.position.file).unwrap_or(usize::MAX)
    }

    fn name(&self) -> String {
        self.paths
            .get(self.file_index())
            .map_or_else(|| "the data".to_owned(), |path| name(path))
    }

    fn read_line(&mut self) -> Result<bool> {
        self.line.clear();
        let Some(input) = self.input.as_mut() else {
            return Ok(false);
        };
        let result = input
            .by_ref()
            .take(LINE_BYTES_MAX)
            .read_until(b'\n', &mut self.line);
        let line = self.position.line + 1;
        match result {
            Ok(0) => return Ok(false),
            Ok(_) => self.position.line = line,
            Err(error) => {
                let what = match error.kind() {
                    io::ErrorKind::UnexpectedEof => "the gzip stream is truncated",
                    io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => {
                        "the gzip stream is damaged"
                    }
                    _ => "can't be read",
                };
                let place = format!("{}:{line}: {what}", self.name());
                return Err(error).context(place);
            }
        }
        if self.line.contains(&0) || self.line.len() as u64 == LINE_BYTES_MAX {
            bail!(
                "{}:{line}: binary data, not Criteo-layout text",
                self.name()
            );
        }
        Ok(true)
    }

    fn end_file(&mut self) -> Result<()> {
        if self.valid_in_file == 0 {
            let lines = self.position.line;
            match &self.first_reason {
                None => bail!("{}: holds no row ({lines} lines, all empty)", self.name()),
                Some(reason) => bail!(
                    "{}: none of its {lines} lines is a row of Criteo-layout text; the first: \
                     {reason}",
                    self.name()
                ),
            }
        }
        self.input = None;
        self.position.file += 1;
        Ok(())
    }

    fn malformed(&mut self, reason: String) -> Result<()> {
        self.position.skipped += 1;
        let place = format!("{}:{}", self.name(), self.position.line);
        if self.strict {
            bail!("{place}: {reason} (--strict stops at the first malformed line)");
        }
        if self.position.skipped <= REPORTS_MAX {
            crate::report::note(&format!("{place}: {reason}"));
        }
        if self.position.skipped == REPORTS_MAX {
            crate::report::note("further malformed lines are only counted");
        }
        self.first_reason.get_or_insert(reason);
        Ok(())
    }
}

impl Batch {
    fn clear(&mut self) {
        self.labels.clear();
        self.dense.clear();
        self.keys.clear();
        self.counts.clear();
        self.planted.clear();
    }
}

/// How a path is called in messages.
fn name(path: &Path) -> String {
    if is_stdin(path) {
        "stdin".to_owned()
    } else {
        path.display().to_string()
    }
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Refuses what can't be data before anything is made.
pub(crate) fn check(paths: &[PathBuf]) -> Result<()> {
    for path in paths.iter().filter(|path| !is_stdin(path)) {
        let metadata = std::fs::metadata(path).with_context(|| name(path))?;
        if metadata.is_dir() {
            bail!("{}: is a directory; name the files in it", name(path));
        }
        if metadata.is_file() {
            open(path)?;
        }
    }
    Ok(())
}

/// What the files are, wherever they lie: the size of each, and a checksum of its first and last 64
/// KiB. What is no file (stdin, a pipe) is known by its name only.
pub(crate) fn content(paths: &[PathBuf]) -> Result<String> {
    let each: Result<Vec<String>> = paths.iter().map(|path| content_of(path)).collect();
    Ok(each?.join(" + "))
}

fn content_of(path: &Path) -> Result<String> {
    if is_stdin(path)
        || !std::fs::metadata(path)
            .with_context(|| name(path))?
            .is_file()
    {
        return Ok(name(path));
    }
    let file = File::open(path).with_context(|| name(path))?;
    let bytes = file.metadata().with_context(|| name(path))?.len();
    let mut sum = Xxh3::new();
    let mut end = vec![0; usize::try_from(END_BYTES.min(bytes))?];
    for offset in [0, bytes - END_BYTES.min(bytes)] {
        file.read_exact_at(&mut end, offset)
            .with_context(|| name(path))?;
        sum.update(&end);
    }
    Ok(format!("{bytes} bytes with checksum {:016x}", sum.digest()))
}

/// Opens a file or stdin, decompressing what begins as gzip.
fn open(path: &Path) -> Result<Box<dyn BufRead + Send>> {
    let mut input: Box<dyn BufRead + Send> = if is_stdin(path) {
        Box::new(BufReader::with_capacity(256 << 10, io::stdin()))
    } else {
        let file = File::open(path).with_context(|| name(path))?;
        Box::new(BufReader::with_capacity(256 << 10, file))
    };
    let head = input.fill_buf().with_context(|| name(path))?;
    if head.is_empty() {
        bail!("{}: is empty", name(path));
    }
    if head.starts_with(&[0x1f, 0x8b]) {
        return Ok(Box::new(BufReader::with_capacity(
            256 << 10,
            MultiGzDecoder::new(input),
        )));
    }
    if head.iter().take(4096).any(|x| *x == 0) {
        bail!(
            "{}: binary data, not Criteo-layout text (nor gzip)",
            name(path)
        );
    }
    Ok(input)
}
