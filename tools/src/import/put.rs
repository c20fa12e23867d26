//! How do rows get from files into a store?
//!
//! - Each thread takes the next rows of all files, makes rows of them, looks at every number, and puts them.
//! - Whatever ends it early, no checkpoint has been made.

use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

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
    /// Checksums of what was read, where tensors have one: the first row, and a sum for keys and each part.
    sums: Mutex<Vec<(u64, Vec<u32>)>>,
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
            sums: Mutex::default(),
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
            let mut sums = Vec::new();
            let sum = |file: &FileFound, bytes: &[u8], sums: &mut Vec<u32>| {
                sums.extend(file.tensor.as_ref().map(|_| crc32c::crc32c(bytes)));
            };
            sum(plan.keys, &bytes[..count * 8], &mut sums);
            self.compare_twins(first, &bytes[..count * 8])?;
            // Words that no file has stay zero; all others are written.
            rows.resize(count * plan.row_f32s, 0.0);
            let mut bad: Vec<usize> = Vec::new();
            for part in &plan.parts {
                let bytes = read(part.file, first, count, part.file_bytes(), &mut bytes)?;
                sum(part.file, bytes, &mut sums);
                let is_finite = scatter(bytes, part, plan.row_f32s, &mut rows);
                if !is_finite {
                    self.not_finite(part, first, &keys, &rows, &mut bad)?;
                }
            }
            for (place, value) in &plan.fill {
                rows.chunks_exact_mut(plan.row_f32s)
                    .for_each(|row| row[place.clone()].fill(*value));
            }
            if !sums.is_empty() {
                let mut all = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
                all.push((first, sums));
            }
            self.leave_out(bad, &mut keys, &mut rows);
            (self.to)(&keys, &rows)?;
            self.put.fetch_add(keys.len() as u64, Ordering::Relaxed);
            crew.did((count * plan.row_bytes()) as u64)?;
        }
    }

    /// Other keys that stand for the same rows must be the same.
    fn compare_twins(&self, first: u64, keys: &[u8]) -> Result<()> {
        let mut bytes = Vec::new();
        for twin in self.plan.twins {
            let found = read(twin, first, keys.len() / 8, 8, &mut bytes)?;
            let words = found.chunks_exact(8).zip(keys.chunks_exact(8));
            let Some(at) = words.clone().position(|(found, key)| found != key) else {
                continue;
            };
            let name = twin.tensor.as_ref().map_or("", |tensor| &tensor.name);
            let row = first + at as u64;
            let what = format!(
                "{name}: row {row} is of another key than row {row} of the variable, so this state is of other rows; \
                 --weights-only leaves it out"
            );
            return Err(Error::corrupt(&twin.path, twin.head_bytes + 8 * row, what).into());
        }
        Ok(())
    }

    /// Compares the checksums of tensors with what was read, once all of it was.
    ///
    /// # Errors
    /// `Corrupt` naming the tensor.
    pub fn check_sums(&self) -> Result<()> {
        let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        sums.sort_unstable();
        let parts = self.plan.parts.iter();
        let parts = parts.map(|part| (part.file, part.file_bytes()));
        for (index, (file, row_bytes)) in [(self.plan.keys, 8)].into_iter().chain(parts).enumerate()
        {
            let Some(tensor) = &file.tensor else {
                return Ok(());
            };
            let whole = sums.iter().fold(0, |whole, (first, sums)| {
                let left = usize::try_from(self.rows - first).unwrap_or(usize::MAX);
                crc32c::crc32c_combine(whole, sums[index], left.min(self.chunk_rows) * row_bytes)
            });
            if whole != tensor.crc {
                let what = format!(
                    "{}: {} bytes of checksum {whole:#010x}, expected {:#010x}; copy the checkpoint again",
                    tensor.name, file.bytes, tensor.crc
                );
                return Err(Error::corrupt(&file.path, file.head_bytes, what).into());
            }
        }
        Ok(())
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
    if part.change == Change::Long {
        let (words, _) = bytes.as_chunks::<8>();
        let rows = rows.chunks_exact_mut(row_f32s);
        for (row, word) in rows.zip(words) {
            let number = i64::from_le_bytes(*word).clamp(0, i64::from(u32::MAX));
            row[part.begin] = f32::from_bits(u32::try_from(number).unwrap_or(0));
        }
        return true;
    }
    let mut is_finite = true;
    let (words, _) = bytes.as_chunks::<4>();
    let rows = rows.chunks_exact_mut(row_f32s);
    for (row, words) in rows.zip(words.chunks_exact(part.width)) {
        let row = &mut row[part.begin..part.begin + part.width];
        match part.change {
            Change::None | Change::Long => {
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
