//! How does the text of Paddle's parameter server become rows?
//!
//! - Threads take pieces of files, each of which has the lines that begin in it; a `.gz` file is one piece.
//! - Every line is read to its end before its row is put. Whatever is wrong, no checkpoint has been made.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use flate2::read::MultiGzDecoder;
use hps::{Error, PutRows, RowMetadata, Store, TableDescriptor, TableId};

use super::args::{Args, NonFinite};
use super::rows::Rows;
use super::target::{Target, descriptor_of};
use super::{Outcome, Put, TOOL, check, commit, duplicates, end, plan, step, threads};
use crate::cli::{Exit, Interrupt, Meter, Show, Usage};
use crate::models::columns::columns;
use crate::models::crew::{self, Crew};
use crate::models::paddle::{LINE_BYTES_MAX, Layout, key_of, whole};
use crate::store::index_keys;

/// Bytes of a piece of a file.
const PIECE_BYTES: u64 = 4 << 20;
/// Bytes of rows that are put at once.
const ROWS_BYTES: usize = 1 << 20;
/// Bytes read at once.
const READ_BYTES: usize = 256 << 10;

/// What was seen of the text.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    rows: u64,
    non_finite: u64,
    /// Lines without the embedx part.
    pub without_embedx: u64,
    /// Rows of which show or click were no whole numbers.
    pub rounded: u64,
}

/// Imports it.
pub fn run(args: &Args) -> Result<Exit> {
    let since = Instant::now();
    check(args)?;
    let interrupt = Interrupt::listen()?;
    let mut meter = Meter::new(TOOL, args.common.show())?;
    let files = Files::list(&args.folder)?;
    let target = Target::find(args)?;
    let (layout, wanted) = look(args, &target)?;
    let (store, table) = target.open(args, &wanted)?;
    let done = work(
        args,
        &files,
        layout,
        (&store, table),
        &interrupt,
        &mut meter,
    );
    meter.end();
    end(args, store, done, since)
}

/// The lines that the flags promise, and the table that their rows are for.
fn look(args: &Args, target: &Target) -> Result<(Layout, TableDescriptor)> {
    let layout = Layout {
        embed: args.embed_rule.unwrap_or_default(),
        embedx: args.embedx_rule.unwrap_or_default(),
        embedx_dim: args.embedx_dim.map_or(0, usize::from),
    };
    let dim = layout.dim();
    if let Some(other) = target.dim(args).filter(|other| *other != dim) {
        let why = format!(
            "--embedx-dim {}: rows of {dim} weights, with embed_w; expected {other}, as the table has, or --dim asks for",
            layout.embedx_dim
        );
        return Err(Usage(why).into());
    }
    let optimizer = target.known_optimizer(args).ok_or_else(|| {
        let why = "the state of Paddle's rules is not taken, so nothing tells the optimizer of the new table; name it \
                   by --optimizer";
        Usage(why.to_owned())
    })?;
    let metadata = RowMetadata::new().show(!args.weights_only);
    let metadata = metadata.click(!args.weights_only);
    let wanted = target.descriptor(args, dim, metadata, optimizer)?;
    Ok((layout, wanted))
}

fn work(
    args: &Args,
    files: &Files,
    layout: Layout,
    (store, table): (&Store, TableId),
    interrupt: &Interrupt,
    meter: &mut Meter,
) -> Result<Outcome> {
    let step = step(args, store.last_checkpoint().as_ref())?;
    let descriptor = descriptor_of(store, table)?;
    let before = index_keys(store, table);
    let form = Form::new(args, layout, &descriptor);
    let put = |keys: &[u64], rows: &[f32]| {
        let values = match form.is_whole {
            true => PutRows::whole(rows),
            false => PutRows::weights(rows),
        };
        // Every number has been looked at.
        store.put(table, keys, values.verbatim()).map(drop)
    };
    let reading = Reading::new(files, &form, &put);
    let count = threads(args);
    crew::run(count, interrupt, meter, files.bytes, |crew| {
        reading.work(crew)
    })?;
    let seen = reading
        .seen
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    let duplicates = || files.refuse_twice(seen.rows, args.cache, interrupt);
    if before > 0 {
        duplicates()?;
    }
    let rows = seen.rows;
    let put = Put {
        store,
        table,
        step,
        before,
        rows,
    };
    let checkpoint = commit(&put, args, interrupt, duplicates)?;
    let mut lost = BTreeMap::new();
    for (name, at) in ["show", "click"].iter().zip(form.counts) {
        if at.is_none() && rows > 0 {
            lost.insert((*name).to_owned(), rows);
        }
    }
    Ok(Outcome {
        checkpoint,
        rows,
        keys: index_keys(store, table),
        bytes: files.bytes,
        non_finite: seen.non_finite,
        left: Vec::new(),
        lost,
        has_state: descriptor.optimizer.state_f32s(descriptor.dim) == 0,
        has_slots: false,
        descriptor,
        text: Some(seen),
        time: Duration::ZERO,
    })
}

/// The rows that would be put; for fuzz targets, which have no store.
pub fn rows(args: &Args) -> Result<Rows> {
    check(args)?;
    let files = Files::list(&args.folder)?;
    let (layout, table) = look(args, &Target::none())?;
    let interrupt = Interrupt::never();
    let mut meter = Meter::new(TOOL, Show::Never)?;
    let form = Form::new(args, layout, &table);
    let rows = Mutex::new(BTreeMap::new());
    let put = |keys: &[u64], values: &[f32]| {
        let values = values.chunks_exact(form.row_f32s).map(<[f32]>::to_vec);
        let mut rows = rows.lock().unwrap_or_else(PoisonError::into_inner);
        rows.extend(keys.iter().copied().zip(values));
        Ok(())
    };
    let reading = Reading::new(&files, &form, &put);
    crew::run(1, &interrupt, &mut meter, 0, |crew| reading.work(crew))?;
    files.refuse_twice(0, args.cache, &interrupt)?;
    Ok(Rows {
        rows: rows.into_inner().unwrap_or_else(PoisonError::into_inner),
        is_whole: form.is_whole,
        table,
    })
}

/// How a line becomes a row.
struct Form {
    layout: Layout,
    non_finite: NonFinite,
    /// Words of a row that is put.
    row_f32s: usize,
    is_whole: bool,
    /// What a row has that no line says.
    start: Vec<f32>,
    /// Where show and click stand.
    counts: [Option<usize>; 2],
}

impl Form {
    fn new(args: &Args, layout: Layout, table: &TableDescriptor) -> Form {
        let columns = columns(table);
        let counts = ["show", "click"].map(|name| {
            let column = columns.iter().find(|column| column.name == name);
            column
                .filter(|_| !args.weights_only)
                .map(|column| column.begin)
        });
        let is_whole = counts.iter().any(Option::is_some);
        let row_f32s = if is_whole {
            table.row_f32s()
        } else {
            table.dim
        };
        let mut start = vec![0.0; row_f32s];
        if is_whole {
            for (place, value) in plan::start_of_state(table) {
                start[place].fill(value);
            }
        }
        Form {
            layout,
            non_finite: args.non_finite,
            row_f32s,
            is_whole,
            start,
            counts,
        }
    }
}

/// Files of a table.
struct Files {
    paths: Vec<PathBuf>,
    /// A file, and which of its bytes.
    pieces: Vec<(usize, u64, u64)>,
    bytes: u64,
}

fn is_gz(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "gz")
}

impl Files {
    /// Finds them in a folder.
    ///
    /// # Errors
    /// `Usage` where there are others, or none; `Io`.
    fn list(folder: &Path) -> Result<Files> {
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
        let (mut pieces, mut bytes) = (Vec::new(), 0);
        for (file, path) in paths.iter().enumerate() {
            let metadata = path.metadata().map_err(|e| Error::io("look at", path, e))?;
            let length = metadata.len();
            bytes += length;
            if is_gz(path) {
                pieces.push((file, 0, u64::MAX));
                continue;
            }
            let begins = (0..length.div_ceil(PIECE_BYTES)).map(|piece| piece * PIECE_BYTES);
            pieces.extend(begins.map(|begin| (file, begin, (begin + PIECE_BYTES).min(length))));
        }
        Ok(Files {
            paths,
            pieces,
            bytes,
        })
    }

    /// Fails if a key stands twice, naming both places.
    fn refuse_twice(&self, rows: u64, memory: u64, interrupt: &Interrupt) -> Result<()> {
        let twice = duplicates::find(rows, memory, |see| {
            self.each_key(interrupt, |_, _, key| see(key))
        })?;
        let Some(twice) = twice else {
            return Ok(());
        };
        let mut places = Vec::new();
        self.each_key(interrupt, |path, at, key| {
            if key == twice && places.len() < 2 {
                places.push((path.to_path_buf(), at));
            }
        })?;
        let [(first, at), (path, second)] = places.as_slice() else {
            anyhow::bail!(
                "the key {twice} stood twice: the files were changed while they were read"
            );
        };
        let what = format!(
            "key {twice} stands at byte {at} of {} as well, expected each key once: which of the two rows is right \
             can't be known; take one of them out",
            first.display()
        );
        Err(Error::corrupt(path, *second, what).into())
    }

    fn each_key(&self, interrupt: &Interrupt, mut see: impl FnMut(&Path, u64, u64)) -> Result<()> {
        for piece in &self.pieces {
            interrupt.check()?;
            let mut lines = Lines::open(self, *piece)?;
            while let Some((at, line)) = lines.next()? {
                let key = key_of(line).map(|(key, _)| key);
                let key = key.map_err(|fault| lines.corrupt(at, fault.what))?;
                see(lines.path, at, key);
            }
        }
        Ok(())
    }
}

/// The lines of a piece of a file.
struct Lines<'a> {
    path: &'a Path,
    reader: Box<dyn BufRead>,
    at: u64,
    end: u64,
    line: Vec<u8>,
}

impl<'a> Lines<'a> {
    fn open(files: &'a Files, (file, begin, end): (usize, u64, u64)) -> Result<Lines<'a>> {
        let path = files.paths[file].as_path();
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
            reader,
            at,
            end,
            line: Vec::new(),
        };
        if begin > 0 {
            lines.read()?;
        }
        Ok(lines)
    }

    /// The next line, without its end, and where it begins.
    fn next(&mut self) -> Result<Option<(u64, &[u8])>> {
        let begin = self.at;
        if begin >= self.end || self.read()? == 0 {
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

    fn corrupt(&self, at: u64, what: String) -> Error {
        let what = match is_gz(self.path) {
            true => format!("{what} (the byte is that of the text, once unpacked)"),
            false => what,
        };
        Error::corrupt(self.path, at, what)
    }
}

type PutTo<'a> = dyn Fn(&[u64], &[f32]) -> Result<(), Error> + Sync + 'a;

/// All of the text, while it is read.
struct Reading<'a> {
    files: &'a Files,
    form: &'a Form,
    to: &'a PutTo<'a>,
    next: AtomicUsize,
    seen: Mutex<Seen>,
}

impl<'a> Reading<'a> {
    fn new(files: &'a Files, form: &'a Form, to: &'a PutTo<'a>) -> Reading<'a> {
        Reading {
            files,
            form,
            to,
            next: AtomicUsize::new(0),
            seen: Mutex::default(),
        }
    }

    /// Puts the rows of pieces until none is left: the work of one thread.
    fn work(&self, crew: &Crew<'_>) -> Result<()> {
        let form = self.form;
        let most = (ROWS_BYTES / (form.row_f32s * 4 + 8)).max(16);
        let (mut keys, mut rows) = (Vec::new(), Vec::new());
        let mut seen = Seen::default();
        let mut row = vec![0.0; form.row_f32s];
        loop {
            let next = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(piece) = self.files.pieces.get(next) else {
                break;
            };
            let mut lines = Lines::open(self.files, *piece)?;
            while let Some((at, line)) = lines.next()? {
                let made = make(form, line, &mut row, &mut seen);
                let (key, is_taken) =
                    made.map_err(|(byte, what)| lines.corrupt(at + byte as u64, what))?;
                if is_taken {
                    keys.push(key);
                    rows.extend_from_slice(&row);
                }
                if keys.len() == most {
                    (self.to)(&keys, &rows)?;
                    keys.clear();
                    rows.clear();
                    crew.did(0)?;
                }
            }
            let path = &self.files.paths[piece.0];
            let bytes = match piece.2 {
                u64::MAX => path.metadata().map_or(0, |metadata| metadata.len()),
                end => end - piece.1,
            };
            crew.did(bytes)?;
        }
        if !keys.is_empty() {
            (self.to)(&keys, &rows)?;
        }
        let mut all = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        all.rows += seen.rows;
        all.non_finite += seen.non_finite;
        all.without_embedx += seen.without_embedx;
        all.rounded += seen.rounded;
        Ok(())
    }
}

/// Makes the row of a line: its key, and whether it is taken; or the byte that is wrong, and what.
fn make(
    form: &Form,
    line: &[u8],
    row: &mut [f32],
    seen: &mut Seen,
) -> Result<(u64, bool), (usize, String)> {
    row.copy_from_slice(&form.start);
    let dim = form.layout.dim();
    let read = form.layout.read(line, &mut row[..dim]);
    let feature = read.map_err(|fault| (fault.at, fault.what))?;
    if let Some((at, value)) = feature.not_finite {
        if form.non_finite == NonFinite::Reject {
            let what = format!(
                "key {}: found {value}, expected a finite number; --non-finite skip or apply takes the rest",
                feature.key
            );
            return Err((at, what));
        }
        seen.non_finite += 1;
        if form.non_finite == NonFinite::Skip {
            return Ok((feature.key, false));
        }
    }
    let mut is_rounded = false;
    let counts = [("show", feature.show), ("click", feature.click)];
    for ((name, value), place) in counts.into_iter().zip(form.counts) {
        let Some(place) = place else {
            continue;
        };
        let Some((number, rounded)) = whole(value) else {
            let what = format!(
                "key {}: found {value} as its {name}, expected 0 to {}; --weights-only leaves it out",
                feature.key,
                u32::MAX
            );
            return Err((0, what));
        };
        row[place] = f32::from_bits(number);
        is_rounded |= rounded;
    }
    seen.rows += 1;
    seen.rounded += u64::from(is_rounded);
    seen.without_embedx += u64::from(!feature.has_embedx);
    Ok((feature.key, true))
}
