//! How does a table leave as the text of Paddle's parameter server?
//!
//! - A file for each shard of Paddle's table, as it loads them: file i has the keys of which `key % shards` is i,
//!   and all files must be there, empty ones too.
//! - Each thread has a buffer for each file; one that the next line would overfill claims the next bytes of its file.
//! - Files stay open, as far as the system allows: a descriptor tells what could not be written of what it wrote, and
//!   no other may. Where there are too many files, each is opened for what is written, and synced before it is closed.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, bail};
use hps::{Error, Row, TableDescriptor};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::Args;
use super::files::Files;
use super::walk::Tour;
use crate::cli::Interrupt;
use crate::models::columns::{Column, columns};
use crate::models::crew::Crew;
use crate::models::paddle::{COUNTS, LINE_BYTES_MAX, Layout, counts};

/// Bytes of a thread's buffers together, where there are not so many files that each has the least.
const BUFFERS_BYTES: usize = 8 << 20;
/// Bytes of a buffer, at least and at most.
const BUFFER_BYTES_MIN: usize = 1 << 10;
const BUFFER_BYTES_MAX: usize = 256 << 10;
/// Descriptors that are left for all else than these files and those that are open, as the store's are.
const DESCRIPTORS_SPARE: u64 = 256;
/// Shards of a table of Paddle's where nobody says otherwise.
const SHARDS: u32 = 1000;
/// About as many bytes has a number, for the progress that is shown.
const NUMBER_BYTES: usize = 11;

/// The files of a table.
pub struct Text {
    layout: Layout,
    shards: Vec<Shard>,
    /// Where [`COUNTS`] stand in a row.
    counts: [Option<usize>; 2],
    left_out: Vec<String>,
}

/// A file.
struct Shard {
    path: PathBuf,
    /// `None` where there are more files than may be open.
    kept: Option<File>,
    /// Its bytes that are claimed.
    claimed: AtomicU64,
}

/// Whether the process may have so many files open; the limit is raised if that is allowed.
fn may_open(wanted: u64) -> bool {
    let limit = Resource::RLIMIT_NOFILE;
    getrlimit(limit).is_ok_and(|(soft, hard)| {
        wanted <= soft || wanted <= hard && setrlimit(limit, wanted, hard).is_ok()
    })
}

impl Text {
    /// Makes the files.
    ///
    /// # Errors
    /// `Io`.
    pub fn create(folder: &Path, args: &Args, table: &TableDescriptor) -> Result<Text> {
        let columns = columns(table);
        let is_lost = |column: &&Column| args.weights_only || !COUNTS.contains(&column.name);
        let lost = columns.iter().filter(is_lost);
        let shards = args.shards.unwrap_or(SHARDS);
        let open = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count) as u64;
        let wanted = open + u64::from(shards) + DESCRIPTORS_SPARE;
        let is_kept = may_open(wanted);
        let made = (0..shards)
            .map(|shard| Shard::create(folder.join(format!("part-000-{shard:05}")), is_kept));
        Ok(Text {
            layout: args.paddle.layout(table.dim - 1),
            shards: made.collect::<Result<_, Error>>()?,
            counts: counts(&columns, args.weights_only),
            left_out: lost.map(|column| column.name.to_owned()).collect(),
        })
    }

    fn shard_of(&self, key: u64) -> usize {
        usize::try_from(key % self.shards.len() as u64).unwrap_or(0)
    }

    fn line(&self, row: &Row<'_>, line: &mut Vec<u8>) {
        let count = |at: usize| row.values[at].to_bits();
        let counts = self.counts.map(|at| at.map_or(0, count));
        let weights = &row.values[..self.layout.dim()];
        line.clear();
        self.layout.write(line, row.key, counts, weights);
    }
}

impl Shard {
    fn create(path: PathBuf, is_kept: bool) -> Result<Shard, Error> {
        let made = File::create_new(&path).map_err(|e| Error::io("make", &path, e))?;
        Ok(Shard {
            path,
            kept: is_kept.then_some(made),
            claimed: AtomicU64::new(0),
        })
    }

    /// Writes what is there behind all that was claimed.
    fn write(&self, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let offset = self
            .claimed
            .fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let done = match &self.kept {
            Some(file) => file.write_all_at(bytes, offset),
            None => OpenOptions::new()
                .write(true)
                .open(&self.path)
                .and_then(|file| {
                    file.write_all_at(bytes, offset)?;
                    file.sync_data()
                }),
        };
        Ok(done.map_err(|e| Error::io("write", &self.path, e))?)
    }

    /// Syncs it, and checks that it has what was written and no more: its name and bytes.
    fn finish(self) -> Result<(String, u64)> {
        let done = match &self.kept {
            Some(file) => file.sync_all(),
            None => File::open(&self.path).and_then(|file| file.sync_all()),
        };
        done.map_err(|e| Error::io("sync", &self.path, e))?;
        let metadata = self.path.metadata();
        let found = metadata.map_err(|e| Error::io("look at", &self.path, e))?;
        let (found, written) = (found.len(), self.claimed.into_inner());
        if found != written {
            let path = self.path.display();
            bail!(
                "{path}: has {found} bytes, {written} were written: another changed it meanwhile"
            );
        }
        let name = self.path.file_name().unwrap_or_default();
        Ok((name.to_string_lossy().into_owned(), written))
    }
}

/// Bytes of a thread's buffer for each of so many files.
fn buffer_bytes(shards: usize) -> usize {
    (BUFFERS_BYTES / shards.max(1)).clamp(BUFFER_BYTES_MIN, BUFFER_BYTES_MAX)
}

/// Bytes of all buffers of a thread.
pub fn thread_bytes(args: &Args) -> u64 {
    let shards = args.shards.unwrap_or(SHARDS);
    let each = buffer_bytes(usize::try_from(shards).unwrap_or(usize::MAX)) as u64;
    u64::from(shards) * each + LINE_BYTES_MAX as u64
}

/// Lines of a thread that are not written yet, by file. No buffer grows.
struct Buffers {
    lines: Vec<Vec<u8>>,
    bytes: usize,
}

impl Buffers {
    fn new(shards: usize) -> Buffers {
        let bytes = buffer_bytes(shards);
        Buffers {
            lines: (0..shards).map(|_| Vec::with_capacity(bytes)).collect(),
            bytes,
        }
    }

    /// Takes a line; what it has no place beside is written first, and what no buffer holds at once.
    fn add(&mut self, shards: &[Shard], index: usize, line: &[u8]) -> Result<()> {
        let (shard, buffer) = (&shards[index], &mut self.lines[index]);
        if buffer.len() + line.len() > self.bytes {
            shard.write(buffer)?;
            buffer.clear();
        }
        if line.len() > self.bytes {
            return shard.write(line);
        }
        buffer.extend_from_slice(line);
        Ok(())
    }

    fn end(self, shards: &[Shard]) -> Result<()> {
        let mut all = shards.iter().zip(&self.lines);
        all.try_for_each(|(shard, buffer)| shard.write(buffer))
    }
}

impl Files for Text {
    fn row_bytes(&self) -> usize {
        NUMBER_BYTES * self.layout.long()
    }

    fn left_out(&self) -> &[String] {
        &self.left_out
    }

    fn write(&self, tour: &Tour<'_>, crew: &Crew<'_>) -> Result<()> {
        let mut buffers = Buffers::new(self.shards.len());
        let mut line = Vec::new();
        tour.each(crew, |row| {
            self.line(row, &mut line);
            buffers.add(&self.shards, self.shard_of(row.key), &line)
        })?;
        buffers.end(&self.shards)
    }

    fn written_bytes(&self) -> u64 {
        let claimed = self.shards.iter();
        claimed.map(|s| s.claimed.load(Ordering::Relaxed)).sum()
    }

    fn sync(&self, interrupt: &Interrupt) -> Result<()> {
        for shard in &self.shards {
            // What does not stay open is synced at each write.
            if let Some(file) = &shard.kept {
                interrupt.check()?;
                let done = file.sync_data();
                done.map_err(|e| Error::io("sync", &shard.path, e))?;
            }
        }
        Ok(())
    }

    fn finish(
        self: Box<Self>,
        _: Option<&[u64]>,
        interrupt: &Interrupt,
    ) -> Result<Vec<(String, u64)>> {
        let shards = self.shards.into_iter();
        let finish = |shard: Shard| {
            interrupt.check()?;
            shard.finish()
        };
        shards.map(finish).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::paddle::SgdRule;

    fn shards(folder: &Path, count: usize, is_kept: bool) -> Vec<Shard> {
        let create = |number| Shard::create(folder.join(format!("{number}")), is_kept).unwrap();
        (0..count).map(create).collect()
    }

    #[test]
    fn buffers_of_a_thread_never_grow() {
        for (count, line_bytes) in [
            (1000, 90_000),
            (1000, 5000),
            (10_000, 600),
            (3, 400_000),
            (3, 777),
        ] {
            let dir = tempfile::tempdir().unwrap();
            // Written to files that are few: the buffers are what counts.
            let files = shards(dir.path(), 2, true);
            let mut buffers = Buffers::new(count);
            let line = vec![b'7'; line_bytes];
            for _ in 0..30 {
                for index in 0..2 {
                    buffers.add(&files, index, &line).unwrap();
                }
            }
            let capacity: usize = buffers.lines.iter().map(Vec::capacity).sum();
            assert!(
                capacity <= BUFFERS_BYTES.max(count * BUFFER_BYTES_MIN),
                "{count}: {capacity}"
            );
            assert_eq!(capacity, count * buffer_bytes(count));
            buffers.end(&files).unwrap();
            for file in files {
                assert_eq!(file.finish().unwrap().1, 30 * line_bytes as u64);
            }
        }
    }

    #[test]
    fn lines_get_into_their_files_whether_these_stay_open_or_not() {
        for is_kept in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let files = shards(dir.path(), 2, is_kept);
            let mut buffers = Buffers::new(2);
            let long = vec![b'l'; 2 * BUFFER_BYTES_MAX];
            for (index, line) in [(0, &b"a"[..]), (1, b"b"), (0, &long), (0, b"c")] {
                buffers.add(&files, index, line).unwrap();
            }
            buffers.end(&files).unwrap();
            let bytes: Vec<u64> = files
                .into_iter()
                .map(|file| file.finish().unwrap().1)
                .collect();
            assert_eq!(bytes, [2 + long.len() as u64, 1]);
            let found = fs::read(dir.path().join("0")).unwrap();
            assert_eq!(
                (found[0], found[1], found[found.len() - 1]),
                (b'a', b'l', b'c')
            );
        }
    }

    #[test]
    fn a_sync_of_many_files_ends_when_the_user_asks() {
        let dir = tempfile::tempdir().unwrap();
        let text = || Text {
            layout: Layout {
                embed: SgdRule::Naive,
                embedx: SgdRule::Naive,
                embedx_dim: 0,
            },
            shards: shards(&dir.path().join("shards"), 2, true),
            counts: [None; 2],
            left_out: Vec::new(),
        };
        let asked = Interrupt::never();
        asked.ask();
        for interrupt in [Interrupt::never(), asked] {
            let _first = fs::remove_dir_all(dir.path().join("shards"));
            fs::create_dir(dir.path().join("shards")).unwrap();
            let text = text();
            let is_asked = interrupt.is_asked();
            assert_eq!(text.sync(&interrupt).is_err(), is_asked);
            let done = Box::new(text).finish(None, &interrupt);
            assert_eq!(done.is_err(), is_asked);
        }
    }

    #[test]
    fn a_file_that_lost_bytes_is_not_given_out() {
        for is_kept in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let file = shards(dir.path(), 1, is_kept).remove(0);
            file.write(b"12 lines").unwrap();
            let handle = OpenOptions::new().write(true).open(&file.path).unwrap();
            handle.set_len(3).unwrap();
            let why = file.finish().unwrap_err().to_string();
            assert!(why.contains("/0: has 3 bytes, 8 were written"), "{why}");
        }
    }
}
