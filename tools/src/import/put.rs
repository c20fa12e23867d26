//! How do rows get from a folder into a store?
//!
//! - Each thread reads some rows, looks at every number, and puts them.
//! - Whatever ends it early, no checkpoint has been made.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use hps::Error;

use super::args::NonFinite;
use super::source::{Chunk, Source, is_finite};
use crate::models::crew::Crew;

/// Bytes of the buffers of all threads: so many that rows of a put by one of two go straight to a file (decision 0052).
pub const BUFFERS_BYTES: usize = 64 << 20;
/// Most rows of a put.
pub const ROWS_MAX: usize = 512 << 10;

/// Who takes keys and their rows.
pub type Put<'a> = dyn Fn(&[u64], &[f32]) -> Result<(), Error> + Sync + 'a;

/// An import that runs.
pub struct Import<'a> {
    to: &'a Put<'a>,
    source: &'a dyn Source,
    non_finite: NonFinite,
    /// Rows that were not finite.
    pub seen_non_finite: AtomicU64,
    /// Rows that were put.
    pub put: AtomicU64,
}

impl<'a> Import<'a> {
    /// Nothing is put yet.
    #[must_use]
    pub fn new(to: &'a Put<'a>, source: &'a dyn Source, non_finite: NonFinite) -> Import<'a> {
        Import {
            to,
            source,
            non_finite,
            seen_non_finite: AtomicU64::new(0),
            put: AtomicU64::new(0),
        }
    }

    /// Puts rows until none is left: the work of one thread.
    ///
    /// # Errors
    /// `Io`, `Corrupt` for what is not finite, what the store says; `Cancelled`.
    pub fn work(&self, crew: &Crew<'_>) -> Result<()> {
        let mut reader = self.source.reader();
        let mut chunk = Chunk::default();
        while reader.next(&mut chunk)? {
            if !chunk.is_finite {
                self.sift(&mut chunk)?;
            }
            (self.to)(&chunk.keys, &chunk.rows)?;
            self.put
                .fetch_add(chunk.keys.len() as u64, Ordering::Relaxed);
            crew.did(chunk.bytes)?;
        }
        Ok(())
    }

    /// Some rows are not finite: refuses the first, or counts them, and takes them out if that was asked for.
    fn sift(&self, chunk: &mut Chunk) -> Result<()> {
        let (width, numbers) = (self.source.row_f32s(), self.source.numbers());
        let rows = chunk.rows.chunks_exact(width);
        let is_good: Vec<bool> = rows.map(|row| is_finite(&row[..numbers])).collect();
        let Some(index) = is_good.iter().position(|good| !good) else {
            return Ok(());
        };
        if self.non_finite == NonFinite::Reject {
            let row = &chunk.rows[index * width..][..numbers];
            let word = row.iter().position(|value| !value.is_finite());
            let word = word.unwrap_or(0);
            let place = self.source.place(chunk.first + index as u64, Some(word));
            return Err(place.corrupt(format!(
                "key {:#x} ({}): found {}, expected a finite number; --non-finite skip or apply takes the rest",
                chunk.keys[index], place.name, row[word]
            )));
        }
        let bad = is_good.iter().filter(|good| !**good).count();
        self.seen_non_finite
            .fetch_add(bad as u64, Ordering::Relaxed);
        if self.non_finite == NonFinite::Skip {
            let good = chunk.rows.chunks_exact(width).zip(&is_good);
            let good = good.filter(|(_, good)| **good);
            chunk.rows = good.flat_map(|(row, _)| row).copied().collect();
            let mut good = is_good.iter();
            chunk.keys.retain(|_| good.next().is_some_and(|good| *good));
        }
        Ok(())
    }
}
