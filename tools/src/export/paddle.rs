//! How does a table leave as the text of Paddle's parameter server?
//!
//! - A file for each shard of Paddle's table, as it loads them: file i has the keys of which `key % shards` is i,
//!   and all files must be there, empty ones too.
//! - Each thread has a buffer for each file; a full one claims the next bytes of its file.
//! - There may be more files than a process may have open: each is opened for what is written or synced.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use hps::{Error, Row, TableDescriptor};

use super::Args;
use super::files::Files;
use super::walk::{Tour, Written};
use crate::models::columns::{Column, columns};
use crate::models::crew::Crew;
use crate::models::paddle::Layout;

/// Bytes of a thread's buffers together.
const BUFFERS_BYTES: usize = 8 << 20;
/// Shards of a table of Paddle's where nobody says otherwise.
const SHARDS: u32 = 1000;
/// About as many bytes has a number, for the progress that is shown.
const NUMBER_BYTES: usize = 11;

/// The files of a table.
pub struct Text {
    layout: Layout,
    shards: Vec<Shard>,
    /// Where `show` and `click` stand in a row.
    counts: [Option<usize>; 2],
    left_out: Vec<String>,
}

/// A file.
struct Shard {
    path: PathBuf,
    /// Its bytes that are claimed.
    claimed: AtomicU64,
}

impl Text {
    /// Makes the files.
    ///
    /// # Errors
    /// `Io`.
    pub fn create(folder: &Path, args: &Args, table: &TableDescriptor) -> Result<Text> {
        let columns = columns(table);
        let place = |name: &str| {
            let column = columns.iter().find(|column| column.name == name);
            let column = column.filter(|_| !args.weights_only);
            column.map(|column| column.begin)
        };
        let is_lost =
            |column: &&Column| args.weights_only || !matches!(column.name, "show" | "click");
        let lost = columns.iter().filter(is_lost);
        let made = (0..args.shards.unwrap_or(SHARDS)).map(|shard| {
            let path = folder.join(format!("part-000-{shard:05}"));
            File::create_new(&path).map_err(|e| Error::io("make", &path, e))?;
            Ok(Shard {
                path,
                claimed: AtomicU64::new(0),
            })
        });
        Ok(Text {
            layout: Layout {
                embed: args.embed_rule.unwrap_or_default(),
                embedx: args.embedx_rule.unwrap_or_default(),
                embedx_dim: table.dim - 1,
            },
            shards: made.collect::<Result<_, Error>>()?,
            counts: ["show", "click"].map(place),
            left_out: lost.map(|column| column.name.to_owned()).collect(),
        })
    }

    fn shard_of(&self, key: u64) -> usize {
        usize::try_from(key % self.shards.len() as u64).unwrap_or(0)
    }

    fn line(&self, row: &Row<'_>, buffer: &mut Vec<u8>) {
        let count = |at: usize| row.values[at].to_bits();
        let counts = self.counts.map(|at| at.map_or(0, count));
        let weights = &row.values[..self.layout.dim()];
        self.layout.write(buffer, row.key, counts, weights);
    }
}

impl Shard {
    /// Writes what is there behind all that was claimed.
    fn write(&self, buffer: &mut Vec<u8>) -> Result<()> {
        if buffer.is_empty() {
            return Ok(());
        }
        let bytes = buffer.len() as u64;
        let offset = self.claimed.fetch_add(bytes, Ordering::Relaxed);
        let opened = OpenOptions::new().write(true).open(&self.path);
        let done = opened.and_then(|handle| handle.write_all_at(buffer, offset));
        done.map_err(|e| Error::io("write", &self.path, e))?;
        buffer.clear();
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let done = File::open(&self.path).and_then(|handle| handle.sync_all());
        Ok(done.map_err(|e| Error::io("sync", &self.path, e))?)
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
        let full = (BUFFERS_BYTES / self.shards.len()).clamp(1 << 10, 256 << 10);
        let buffer = |_: &Shard| Vec::with_capacity(full + full / 8);
        let mut buffers: Vec<Vec<u8>> = self.shards.iter().map(buffer).collect();
        tour.each(crew, |row| {
            let shard = self.shard_of(row.key);
            let buffer: &mut Vec<u8> = &mut buffers[shard];
            self.line(row, buffer);
            match buffer.len() >= full {
                true => self.shards[shard].write(buffer),
                false => Ok(()),
            }
        })?;
        for (shard, buffer) in self.shards.iter().zip(&mut buffers) {
            shard.write(buffer)?;
        }
        Ok(())
    }

    fn written_bytes(&self) -> u64 {
        let claimed = self.shards.iter();
        claimed.map(|s| s.claimed.load(Ordering::Relaxed)).sum()
    }

    fn sync(&self) -> Result<()> {
        self.shards.iter().try_for_each(Shard::sync)
    }

    fn finish(self: Box<Self>, _: &Written, _: Option<&[u64]>) -> Result<Vec<(String, u64)>> {
        self.sync()?;
        let file = |shard: Shard| {
            let name = shard.path.file_name().unwrap_or_default();
            (
                name.to_string_lossy().into_owned(),
                shard.claimed.into_inner(),
            )
        };
        Ok(self.shards.into_iter().map(file).collect())
    }
}
