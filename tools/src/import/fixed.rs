//! How are rows read from files with a fixed stride each?
//!
//! - Each thread takes the next rows of all files.
//! - Checksums, where the files have some, are joined from those of what threads read, and compared at the end.

use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use hps::Error;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use super::found::FileFound;
use super::plan::{Part, Plan};
use super::put::{BUFFERS_BYTES, ROWS_MAX};
use super::source::{Chunk, Noticed, Place, Reader, Source, is_finite};
use crate::cli::Interrupt;
use crate::models::Change;
use crate::models::sums::Sums;

/// Stretches of the folder that are read side by side: one that is in the order of mix64, as an export of one thread
/// is, has its next rows all in one shard of the store.
const STRETCHES: u64 = 8;
/// Keys that are read at a time, where keys alone are.
const CHUNK_KEYS: usize = 64 << 10;

/// Bytes that are announced at a time: of more the kernel begins with a request's worth, and leaves the rest.
const ANNOUNCED_BYTES: usize = 256 << 10;

/// The rows of such files.
#[derive(Debug)]
pub struct Fixed<'a> {
    plan: Plan<'a>,
    rows: u64,
    chunk_rows: usize,
    threads: u64,
    next: AtomicU64,
    /// Of the keys and each part, where they are tensors.
    sums: Option<Sums>,
}

impl<'a> Fixed<'a> {
    /// The first `rows` of the files of a plan, for so many threads.
    #[must_use]
    pub fn new(plan: Plan<'a>, rows: u64, threads: usize) -> Fixed<'a> {
        // As bytes and as rows.
        let row_bytes = plan.row_bytes() + 8 + plan.row_f32s * 4;
        Fixed {
            sums: plan.keys.tensor.as_ref().map(|_| Sums::default()),
            plan,
            rows,
            threads: threads as u64,
            chunk_rows: (BUFFERS_BYTES / threads / row_bytes).clamp(16, ROWS_MAX),
            next: AtomicU64::new(0),
        }
    }

    /// The keys and what the rows are made of, each with its bytes of a row.
    fn files(&self) -> impl Iterator<Item = (&FileFound, usize)> {
        let parts = self.plan.parts.iter();
        let parts = parts.map(|part| (part.file, part.row_bytes()));
        std::iter::once((self.plan.keys, 8)).chain(parts)
    }

    /// The first row of the chunk whose turn it is, and how many it has.
    fn chunk(&self, turn: u64) -> Option<(u64, usize)> {
        let chunks = self.rows.div_ceil(self.chunk_rows as u64);
        let first = chunk_of(turn, chunks)? * self.chunk_rows as u64;
        let left = usize::try_from(self.rows - first).unwrap_or(usize::MAX);
        Some((first, left.min(self.chunk_rows)))
    }

    /// Has the kernel read a chunk that is soon due, while others are put.
    fn announce(&self, (first, count): (u64, usize)) {
        let twins = self.plan.twins.iter().map(|file| (file, 8));
        for (file, row_bytes) in self.files().chain(twins) {
            let start = file.head_bytes + first * row_bytes as u64;
            let end = start + (count * row_bytes) as u64;
            for at in (start..end).step_by(ANNOUNCED_BYTES) {
                let (Ok(at), Ok(bytes)) = (i64::try_from(at), i64::try_from(ANNOUNCED_BYTES))
                else {
                    return;
                };
                let willneed = PosixFadviseAdvice::POSIX_FADV_WILLNEED;
                // Read it is all the same, a little later.
                let _slow = posix_fadvise(&file.file, at, bytes, willneed);
            }
        }
    }

    /// Compares checksums with those that tensors should have.
    fn check_sums(&self, sums: &Sums) -> Result<()> {
        let row_bytes: Vec<usize> = self.files().map(|(_, bytes)| bytes).collect();
        let whole = sums.whole(&row_bytes);
        // Twins were found to have the bytes of the keys.
        let twins = self.plan.twins.iter().zip(std::iter::repeat(whole[0]));
        let files = self
            .files()
            .map(|(file, _)| file)
            .zip(whole.iter().copied());
        for (file, sum) in files.chain(twins) {
            let Some(tensor) = file.tensor.as_ref().filter(|tensor| tensor.crc != sum) else {
                continue;
            };
            let what = format!(
                "{}: {} bytes of checksum {sum:#010x}, expected {:#010x}; copy the checkpoint again",
                tensor.name, file.bytes, tensor.crc
            );
            return Err(Error::corrupt(&file.path, file.head_bytes, what).into());
        }
        Ok(())
    }
}

impl Source for Fixed<'_> {
    fn rows(&self) -> Option<u64> {
        Some(self.rows)
    }

    fn bytes(&self) -> u64 {
        self.rows.saturating_mul(self.plan.row_bytes() as u64)
    }

    fn row_f32s(&self) -> usize {
        self.plan.row_f32s
    }

    fn numbers(&self) -> usize {
        let parts = self.plan.parts.iter().filter(|part| part.is_integer);
        let first = parts.map(|part| part.begin).min();
        first.unwrap_or(self.plan.row_f32s)
    }

    fn is_whole(&self) -> bool {
        self.plan.is_whole
    }

    fn has_state(&self) -> bool {
        self.plan.has_state
    }

    fn reader(&self) -> Box<dyn Reader + '_> {
        Box::new(FixedReader {
            source: self,
            bytes: Vec::new(),
            twin: Vec::new(),
        })
    }

    fn keys(&self, interrupt: &Interrupt, see: &mut dyn FnMut(u64, u64)) -> Result<()> {
        let (mut bytes, mut chunk) = (Vec::new(), Vec::new());
        let mut first = 0;
        while first < self.rows {
            interrupt.check()?;
            let left = usize::try_from(self.rows - first).unwrap_or(usize::MAX);
            let count = left.min(CHUNK_KEYS);
            read_keys(self.plan.keys, first, count, &mut bytes, &mut chunk)?;
            (first..).zip(&chunk).for_each(|(row, key)| see(row, *key));
            first += chunk.len() as u64;
        }
        Ok(())
    }

    fn place(&self, row: u64, word: Option<usize>) -> Place {
        let of = |part: &&Part<'_>| {
            word.is_some_and(|word| (part.begin..part.begin + part.width).contains(&word))
        };
        let part = self.plan.parts.iter().find(of);
        let (file, at) = match (part, word) {
            (Some(part), Some(word)) => {
                let element = row * part.width as u64 + (word - part.begin) as u64;
                (part.file, element * part.change.word_bytes() as u64)
            }
            _ => (self.plan.keys, 8 * row),
        };
        let of = match &file.tensor {
            Some(tensor) => format!(" of {}", tensor.name),
            None => String::new(),
        };
        Place {
            path: file.path.clone(),
            offset: file.head_bytes + at,
            name: format!("row {row}{of}"),
        }
    }

    fn finish(&self) -> Result<Noticed> {
        if let Some(sums) = &self.sums {
            self.check_sums(sums)?;
        }
        let mut noticed = Noticed::default();
        for name in &self.plan.lost {
            noticed.lose(name, self.rows);
        }
        Ok(noticed)
    }
}

struct FixedReader<'a> {
    source: &'a Fixed<'a>,
    bytes: Vec<u8>,
    /// The same of other keys.
    twin: Vec<u8>,
}

impl FixedReader<'_> {
    /// Other keys that stand for the same rows must be the same.
    fn compare_twins(&mut self, first: u64, count: usize) -> Result<()> {
        for twin in self.source.plan.twins {
            let found = read(twin, first, count, 8, &mut self.twin)?;
            let words = found.chunks_exact(8).zip(self.bytes.chunks_exact(8));
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
}

impl Reader for FixedReader<'_> {
    fn next(&mut self, chunk: &mut Chunk) -> Result<bool> {
        let source = self.source;
        let plan = &source.plan;
        let turn = source.next.fetch_add(1, Ordering::Relaxed);
        let Some((first, count)) = source.chunk(turn) else {
            return Ok(false);
        };
        if let Some(next) = source.chunk(turn + source.threads) {
            source.announce(next);
        }
        chunk.first = first;
        chunk.bytes = (count * plan.row_bytes()) as u64;
        read_keys(plan.keys, first, count, &mut self.bytes, &mut chunk.keys)?;
        let mut sums = Vec::new();
        let sum = |bytes: &[u8], sums: &mut Vec<u32>| {
            sums.extend(source.sums.as_ref().map(|_| crc32c::crc32c(bytes)));
        };
        sum(&self.bytes[..count * 8], &mut sums);
        self.compare_twins(first, count)?;
        // Words that no file has stay zero; all others are written.
        chunk.rows.resize(count * plan.row_f32s, 0.0);
        chunk.is_finite = true;
        for part in &plan.parts {
            let bytes = read(part.file, first, count, part.row_bytes(), &mut self.bytes)?;
            sum(bytes, &mut sums);
            chunk.is_finite &= scatter(bytes, part, plan.row_f32s, &mut chunk.rows);
        }
        for (place, value) in &plan.fill {
            let rows = chunk.rows.chunks_exact_mut(plan.row_f32s);
            rows.for_each(|row| row[place.clone()].fill(*value));
        }
        if let Some(all) = &source.sums {
            all.add(first, count as u64, sums);
        }
        Ok(true)
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
fn read_keys(
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
        is_finite &= self::is_finite(row);
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
