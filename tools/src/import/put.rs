//! How do rows get from files into a store?
//!
//! - Each thread takes the next rows of all files, makes rows of them, looks at every number, and puts them.
//! - Whatever ends it early, no checkpoint has been made.

use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use hps::Error;

use super::args::NonFinite;
use super::found::FileFound;
use super::plan::{Part, Plan};
use crate::models::Change;
use crate::models::crew::Crew;

/// Bytes of the buffers of all threads: few enough to stay near the processor.
const BUFFERS_BYTES: usize = 8 << 20;
/// Stretches of the folder that are read side by side: one that is in the order of mix64, as an export of one thread
/// is, has its next rows all in one shard of the store.
const STRETCHES: u64 = 8;
/// Most rows of a put.
const ROWS_MAX: usize = 16 << 10;

/// Who takes keys and their rows.
pub type Put<'a> = dyn Fn(&[u64], &[f32]) -> Result<(), Error> + Sync + 'a;

/// An import that runs.
pub struct Import<'a> {
    to: &'a Put<'a>,
    plan: &'a Plan<'a>,
    rows: u64,
    chunk_rows: usize,
    next: AtomicU64,
    non_finite: NonFinite,
    /// Rows that were not finite.
    pub seen_non_finite: AtomicU64,
    /// Rows that were put.
    pub put: AtomicU64,
}

impl<'a> Import<'a> {
    /// Nothing is put yet.
    #[must_use]
    pub fn new(
        to: &'a Put<'a>,
        plan: &'a Plan<'a>,
        rows: u64,
        non_finite: NonFinite,
        threads: usize,
    ) -> Import<'a> {
        // As bytes and as rows.
        let row_bytes = plan.row_bytes() + 8 + plan.row_f32s * 4;
        Import {
            to,
            plan,
            rows,
            chunk_rows: (BUFFERS_BYTES / threads / row_bytes).clamp(16, ROWS_MAX),
            next: AtomicU64::new(0),
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
        let plan = self.plan;
        let mut bytes = Vec::new();
        let mut keys: Vec<u64> = Vec::with_capacity(self.chunk_rows);
        let mut rows: Vec<f32> = Vec::new();
        loop {
            let turn = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(chunk) = chunk_of(turn, self.rows.div_ceil(self.chunk_rows as u64)) else {
                return Ok(());
            };
            let first = chunk * self.chunk_rows as u64;
            let left = usize::try_from(self.rows - first).unwrap_or(usize::MAX);
            let count = left.min(self.chunk_rows);
            read_keys(plan.keys, first, count, &mut bytes, &mut keys)?;
            // Words that no file has stay zero; all others are written.
            rows.resize(count * plan.row_f32s, 0.0);
            let mut bad: Vec<usize> = Vec::new();
            for part in &plan.parts {
                let bytes = read(part.file, first, count, part.width * 4, &mut bytes)?;
                let is_finite = scatter(bytes, part, plan.row_f32s, &mut rows);
                if !is_finite {
                    self.not_finite(part, first, &keys, &rows, &mut bad)?;
                }
            }
            if let Some((at, value)) = plan.fill {
                rows.chunks_exact_mut(plan.row_f32s)
                    .for_each(|row| row[at] = value);
            }
            self.leave_out(bad, &mut keys, &mut rows);
            (self.to)(&keys, &rows)?;
            self.put.fetch_add(keys.len() as u64, Ordering::Relaxed);
            crew.did((count * plan.row_bytes()) as u64)?;
        }
    }

    /// A part of some rows is not finite: refuses the first, or notes them.
    fn not_finite(
        &self,
        part: &Part<'_>,
        first: u64,
        keys: &[u64],
        rows: &[f32],
        bad: &mut Vec<usize>,
    ) -> Result<()> {
        for (index, row) in rows.chunks_exact(self.plan.row_f32s).enumerate() {
            let numbers = &row[part.begin..part.begin + part.width];
            let Some(at) = numbers.iter().position(|value| !value.is_finite()) else {
                continue;
            };
            if self.non_finite != NonFinite::Reject {
                bad.push(index);
                continue;
            }
            let row = first + index as u64;
            let element = row * part.width as u64 + at as u64;
            let what = format!(
                "key {:#x} (row {row}): found {}, expected a finite number; --non-finite skip or apply takes the \
                 rest",
                keys[index], numbers[at]
            );
            let offset = part.file.head_bytes + 4 * element;
            return Err(Error::corrupt(&part.file.path, offset, what).into());
        }
        Ok(())
    }

    /// Counts rows that are not finite, and takes them out if that was asked for.
    fn leave_out(&self, mut bad: Vec<usize>, keys: &mut Vec<u64>, rows: &mut Vec<f32>) {
        if bad.is_empty() {
            return;
        }
        bad.sort_unstable();
        bad.dedup();
        self.seen_non_finite
            .fetch_add(bad.len() as u64, Ordering::Relaxed);
        if self.non_finite == NonFinite::Skip {
            let is_good = |index: &usize| bad.binary_search(index).is_err();
            let width = self.plan.row_f32s;
            let good: Vec<usize> = (0..keys.len()).filter(is_good).collect();
            *rows = good
                .iter()
                .flat_map(|index| &rows[index * width..(index + 1) * width])
                .copied()
                .collect();
            *keys = good.iter().map(|index| keys[*index]).collect();
        }
    }
}

/// The chunk whose turn it is: each stretch gives one by turns.
fn chunk_of(turn: u64, chunks: u64) -> Option<u64> {
    let long = chunks.div_ceil(STRETCHES);
    // Those that are longer by one come first.
    let longer = chunks - (long.max(1) - 1) * STRETCHES;
    let (round, stretch) = (turn / STRETCHES, turn % STRETCHES);
    if round + 1 < long {
        return Some(stretch * long - stretch.saturating_sub(longer) + round);
    }
    let is_last = round < long && stretch < longer;
    is_last.then(|| stretch * long + round)
}

/// Reads some rows of a file into a buffer, which grows to what it was ever needed for.
fn read<'b>(
    file: &FileFound,
    first: u64,
    count: usize,
    row_bytes: usize,
    buffer: &'b mut Vec<u8>,
) -> Result<&'b [u8]> {
    let needed = count * row_bytes;
    if buffer.len() < needed {
        buffer.resize(needed, 0);
    }
    let bytes = &mut buffer[..needed];
    let offset = file.head_bytes + first * row_bytes as u64;
    let done = file.file.read_exact_at(bytes, offset);
    done.map_err(|e| Error::io("read", &file.path, e))?;
    Ok(bytes)
}

/// Reads some keys.
///
/// # Errors
/// `Io`.
pub fn read_keys(
    file: &FileFound,
    first: u64,
    count: usize,
    buffer: &mut Vec<u8>,
    keys: &mut Vec<u64>,
) -> Result<()> {
    let (words, _) = read(file, first, count, 8, buffer)?.as_chunks::<8>();
    keys.clear();
    keys.extend(words.iter().map(|word| u64::from_le_bytes(*word)));
    Ok(())
}

/// Moves the words of a file to their places in rows; whether all numbers are finite there.
fn scatter(bytes: &[u8], part: &Part<'_>, row_f32s: usize, rows: &mut [f32]) -> bool {
    let mut is_finite = true;
    let (words, _) = bytes.as_chunks::<4>();
    let rows = rows.chunks_exact_mut(row_f32s);
    for (row, words) in rows.zip(words.chunks_exact(part.width)) {
        let row = &mut row[part.begin..part.begin + part.width];
        match part.change {
            Change::None => {
                for (place, word) in row.iter_mut().zip(words) {
                    *place = f32::from_le_bytes(*word);
                }
            }
            Change::Times(factor) => {
                for (place, word) in row.iter_mut().zip(words) {
                    *place = f32::from_le_bytes(*word) / factor;
                }
            }
        }
        // The exponent of what is not finite is all ones.
        let finite = row
            .iter()
            .map(|value| value.to_bits() & 0x7f80_0000 != 0x7f80_0000);
        is_finite &= finite.fold(true, |all, one| all & one);
    }
    is_finite | part.is_integer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_chunk_has_one_turn() {
        for chunks in [0, 1, 7, 8, 9, 15, 16, 17, 1001] {
            let mut seen: Vec<u64> = (0..).map_while(|turn| chunk_of(turn, chunks)).collect();
            let sorted = seen.is_sorted();
            seen.sort_unstable();
            assert_eq!(seen, (0..chunks).collect::<Vec<u64>>(), "{chunks}");
            assert!(chunks <= STRETCHES || !sorted, "{chunks}");
        }
    }
}
