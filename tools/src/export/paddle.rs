//! How does a table leave as the text of Paddle's parameter server?
//!
//! - A file for each shard of Paddle's table, as it loads them: file i has the keys of which `key % shards` is i,
//!   and all files must be there, empty ones too.
//! - Each thread walks ranges of mix64 with a buffer for each file; a full one claims the next bytes of its file.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::Result;
use hps::{CheckpointId, Error, Row, Store, TableDescriptor, TableId, part_range};

use super::folder::Partial;
use super::write::{LOOK_ROWS, RANGES_PER_THREAD, Written};
use super::{Args, Outcome, TOOL, check, find, tell, threads};
use crate::cli::{Exit, Interrupt, Meter};
use crate::models::check_weights;
use crate::models::columns::{Column, columns};
use crate::models::crew::{self, Crew};
use crate::models::paddle::Layout;
use crate::store::{index_keys, open_for_rows};

/// Bytes of a thread's buffers together.
const BUFFERS_BYTES: usize = 8 << 20;
/// Shards of a table of Paddle's where nobody says otherwise.
const SHARDS: u32 = 1000;
/// About as many bytes has a number, for the progress that is shown.
const NUMBER_BYTES: u64 = 11;

/// Writes it.
pub fn run(args: &Args) -> Result<Exit> {
    let since = Instant::now();
    check(args)?;
    let interrupt = Interrupt::listen()?;
    let mut meter = Meter::new(TOOL, args.common.show())?;
    let (store, checkpoint) = open_for_rows(&args.store, args.checkpoint, "rows to export")?;
    let (table, descriptor) = find(&store, &checkpoint, args.table())?;
    check_weights(&descriptor)?;
    let partial = Partial::new(&args.out)?;
    let shards = args.shards.unwrap_or(SHARDS);
    let text = Text::create(partial.path(), args, &descriptor, shards)?;
    let count = threads(args);
    let row_bytes = NUMBER_BYTES * text.layout.long() as u64;
    let bytes = index_keys(&store, table) * row_bytes;
    let done = crew::run(count, &interrupt, &mut meter, bytes, |crew| {
        text.work(&store, (checkpoint.id, table), count, crew)
    });
    let synced =
        done.and_then(|()| crew::run(count, &interrupt, &mut meter, 0, |crew| text.sync(crew)));
    meter.end();
    synced?;
    interrupt.check()?;
    partial.keep(&args.out)?;
    let columns = columns(&descriptor).into_iter();
    let is_lost = |column: &Column| args.weights_only || !matches!(column.name, "show" | "click");
    let lost = columns.filter(is_lost).map(|column| column.name.to_owned());
    let lost = lost.collect();
    let (files, written) = text.end();
    let outcome = Outcome {
        checkpoint,
        files,
        lost,
        written,
        time: since.elapsed(),
    };
    tell(args, &outcome)?;
    Ok(Exit::Clean)
}

/// The files of a table.
struct Text {
    layout: Layout,
    /// A file, and its bytes that are claimed.
    files: Vec<(PathBuf, AtomicU64)>,
    /// Where `show` and `click` stand in a row.
    counts: [Option<usize>; 2],
    /// Words of a row that are f32s.
    numbers: usize,
    steps: Option<usize>,
    next_range: AtomicUsize,
    next_sync: AtomicUsize,
    written: Mutex<Written>,
}

impl Text {
    fn create(folder: &Path, args: &Args, table: &TableDescriptor, shards: u32) -> Result<Text> {
        let columns = columns(table);
        let place = |name: &str| {
            let column = columns.iter().find(|column| column.name == name);
            column.map(|column| column.begin)
        };
        let made = (0..shards).map(|shard| {
            let path = folder.join(format!("part-000-{shard:05}"));
            File::create_new(&path).map_err(|e| Error::io("make", &path, e))?;
            Ok((path, AtomicU64::new(0)))
        });
        let is_integer = |column: &&Column| column.is_integer;
        let integers = columns.iter().find(is_integer).map(|column| column.begin);
        Ok(Text {
            layout: Layout {
                embed: args.embed_rule.unwrap_or_default(),
                embedx: args.embedx_rule.unwrap_or_default(),
                embedx_dim: table.dim - 1,
            },
            files: made.collect::<Result<_, Error>>()?,
            counts: ["show", "click"].map(|name| place(name).filter(|_| !args.weights_only)),
            numbers: integers.unwrap_or(table.row_f32s()),
            steps: place("t"),
            next_range: AtomicUsize::new(0),
            next_sync: AtomicUsize::new(0),
            written: Mutex::new(Written::NOTHING),
        })
    }

    /// Writes ranges of mix64 until none is left: the work of one thread.
    fn work(
        &self,
        store: &Store,
        (checkpoint, table): (CheckpointId, TableId),
        threads: usize,
        crew: &Crew<'_>,
    ) -> Result<()> {
        let ranges = threads * if threads == 1 { 1 } else { RANGES_PER_THREAD };
        let full = (BUFFERS_BYTES / self.files.len()).clamp(1 << 10, 256 << 10);
        let buffer = |_| Vec::with_capacity(full + full / 8);
        let mut buffers: Vec<Vec<u8>> = (0..self.files.len()).map(buffer).collect();
        let mut seen = Written::NOTHING;
        let mut new = 0;
        loop {
            let range = self.next_range.fetch_add(1, Ordering::Relaxed);
            if range >= ranges {
                break;
            }
            let mut rows = store.rows_of(checkpoint, table, part_range(range, ranges))?;
            while let Some(row) = rows.next_row()? {
                let file = self.file_of(row.key);
                let buffer: &mut Vec<u8> = &mut buffers[file];
                let before = buffer.len();
                self.line(&row, buffer);
                new += buffer.len() - before;
                if buffer.len() >= full {
                    self.write(file, buffer)?;
                }
                seen.add(&self.look(&row));
                if seen.rows.is_multiple_of(LOOK_ROWS as u64) {
                    crew.did(std::mem::take(&mut new) as u64)?;
                }
            }
        }
        for (file, buffer) in buffers.iter_mut().enumerate() {
            self.write(file, buffer)?;
        }
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.add(&seen);
        Ok(())
    }

    fn file_of(&self, key: u64) -> usize {
        usize::try_from(key % self.files.len() as u64).unwrap_or(0)
    }

    fn line(&self, row: &Row<'_>, buffer: &mut Vec<u8>) {
        let counts = self
            .counts
            .map(|at| at.map_or(0, |at| row.values[at].to_bits()));
        let weights = &row.values[..self.layout.dim()];
        self.layout.write(buffer, row.key, counts, weights);
    }

    fn look(&self, row: &Row<'_>) -> Written {
        let is_finite = row.values[..self.numbers]
            .iter()
            .all(|value| value.is_finite());
        Written {
            rows: 1,
            non_finite: u64::from(!is_finite),
            steps: self.steps.map(|at| (row.values[at], row.values[at])),
            ..Written::NOTHING
        }
    }

    /// Writes what is there behind all that was claimed. There may be more files than a process may have open.
    fn write(&self, file: usize, buffer: &mut Vec<u8>) -> Result<()> {
        if buffer.is_empty() {
            return Ok(());
        }
        let (path, claimed) = &self.files[file];
        let offset = claimed.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        let opened = OpenOptions::new().write(true).open(path);
        let done = opened.and_then(|handle| handle.write_all_at(buffer, offset));
        done.map_err(|e| Error::io("write", path, e))?;
        buffer.clear();
        Ok(())
    }

    /// Makes files durable until none is left: the work of one thread.
    fn sync(&self, crew: &Crew<'_>) -> Result<()> {
        loop {
            let next = self.next_sync.fetch_add(1, Ordering::Relaxed);
            let Some((path, _)) = self.files.get(next) else {
                return Ok(());
            };
            let done = File::open(path).and_then(|handle| handle.sync_all());
            done.map_err(|e| Error::io("sync", path, e))?;
            crew.did(0)?;
        }
    }

    /// Names and bytes of the files, and what was seen.
    fn end(self) -> (Vec<(String, u64)>, Written) {
        let file = |(path, bytes): (PathBuf, AtomicU64)| {
            let name = path.file_name().unwrap_or_default();
            (name.to_string_lossy().into_owned(), bytes.into_inner())
        };
        let written = self.written.into_inner();
        (
            self.files.into_iter().map(file).collect(),
            written.unwrap_or_else(PoisonError::into_inner),
        )
    }
}
