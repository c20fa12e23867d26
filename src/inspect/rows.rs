//! Are the keys and rows of a parameter file what was written, and are their values sane?
//!
//! - Every byte between header and footer is read once by [`Sink::check_keys`] or
//!   [`Sink::check_rows`], and is part of a verified structure or a checked zero.
//! - A damaged record ends nothing: the records after it are looked at, too.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use super::Opened;
use super::stream::{ReadFailed, Stream, first_unreadable};
use crate::error::{Error, Result};
use crate::format::footer::{Run, RunKind};
use crate::format::param_file;
use crate::format::{Decoded, Digest};
use crate::io::{DiskFile, Engine, Queue, is_unreadable};
use crate::options::{Dtype, TableDescriptor};
use crate::row::RowLayout;
use crate::ssd::data_file::DataFile;
use crate::units::to_usize;

const CHUNK_BYTES: usize = 1 << 20;
const DEPTH: usize = 4;
const BLOCK_BYTES: usize = 4096;
/// Damaged records of a file that are named one by one.
const NAMED_MAX: u64 = 16;

/// Classes of a histogram of norms: class i counts rows of a norm from 2^(i - 24) to 2^(i - 23),
/// the first one also smaller norms, the last one also greater.
pub const NORM_BUCKETS: usize = 48;

/// ValueStats from here on are counted as absurd.
const ABSURD: f32 = 1e9;

/// What is known of a table's weights, or of its state.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ValueStats {
    /// Values looked at.
    pub values: u64,
    /// Of these, NaNs.
    pub nan: u64,
    /// Infinities.
    pub infinite: u64,
    /// Finite values of 10^9 and more.
    pub absurd: u64,
    /// The greatest finite magnitude.
    pub largest: f32,
    /// Rows by their Euclidean norm.
    pub norms: [u64; NORM_BUCKETS],
}

impl Default for ValueStats {
    fn default() -> ValueStats {
        ValueStats {
            values: 0,
            nan: 0,
            infinite: 0,
            absurd: 0,
            largest: 0.0,
            norms: [0; NORM_BUCKETS],
        }
    }
}

/// Eight values a step, so that the compiler can use vectors.
#[derive(Default)]
struct Lanes {
    squares: [f32; 8],
    wild: [u32; 8],
    largest: [i32; 8],
}

impl Lanes {
    #[inline(always)]
    fn add(&mut self, words: &[u8; 32]) {
        let absurd = ABSURD.to_bits().cast_signed();
        for (i, word) in words.as_chunks::<4>().0.iter().enumerate() {
            let bits = i32::from_le_bytes(*word) & i32::MAX;
            self.wild[i] += u32::from(bits >= absurd);
            self.largest[i] = self.largest[i].max(bits);
            let value = f32::from_bits(bits.cast_unsigned());
            self.squares[i] += value * value;
        }
    }
}

impl ValueStats {
    /// Adds what another part of the table holds.
    pub(super) fn merge(&mut self, other: &ValueStats) {
        self.values += other.values;
        self.nan += other.nan;
        self.infinite += other.infinite;
        self.absurd += other.absurd;
        self.largest = self.largest.max(other.largest);
        for (rows, more) in self.norms.iter_mut().zip(&other.norms) {
            *rows += more;
        }
    }

    /// # Shapes
    /// bytes: the f32s of one row, little-endian
    fn add(&mut self, bytes: &[u8]) {
        const INFINITE: u32 = 0x7f80_0000;
        if bytes.is_empty() {
            return;
        }
        let mut lanes = Lanes::default();
        let (whole, rest) = bytes.as_chunks::<32>();
        for words in whole {
            lanes.add(words);
        }
        let mut last = [0; 32];
        last[..rest.len()].copy_from_slice(rest);
        lanes.add(&last);
        let Lanes {
            squares,
            wild,
            largest,
        } = lanes;
        let wild: u32 = wild.iter().sum();
        let largest = largest.iter().copied().max().unwrap_or(0);
        let mut largest = largest.cast_unsigned();
        self.values += bytes.len() as u64 / 4;
        if wild > 0 {
            largest = 0;
            for word in bytes.chunks_exact(4) {
                let bits = u32::from_le_bytes([word[0], word[1], word[2], word[3]]) & !(1 << 31);
                self.nan += u64::from(bits > INFINITE);
                self.infinite += u64::from(bits == INFINITE);
                self.absurd += u64::from((ABSURD.to_bits()..INFINITE).contains(&bits));
                largest = largest.max(if bits < INFINITE { bits } else { 0 });
            }
        }
        self.largest = self.largest.max(f32::from_bits(largest));
        let squared: f32 = squares.iter().sum();
        // The exponent of the norm is half of that of its square.
        let exponent = i32::try_from(squared.to_bits() >> 23).unwrap_or(0) - 127;
        let class = (exponent.div_euclid(2) + 24).clamp(0, 47);
        self.norms[usize::try_from(class).unwrap_or(0)] += 1;
    }
}

/// What the records of a file are like.
pub(super) struct Checked {
    /// Everything that is damaged.
    pub damage: Vec<Error>,
    /// Weights and state of the live rows, by table.
    pub values: Vec<(ValueStats, ValueStats)>,
}

/// What ended the look at a file, and the first byte that the device can't read.
#[derive(Debug)]
pub(super) struct Failed {
    pub error: Error,
    pub unreadable_at: Option<u64>,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        let unreadable_at = None;
        Failed {
            error,
            unreadable_at,
        }
    }
}

pub(super) type Looked<T> = std::result::Result<T, Failed>;

/// Reads parameter files; one a thread.
pub(super) struct Sink<'a> {
    queue: Box<dyn Queue>,
    /// Bytes read by all threads.
    bytes_read: &'a AtomicU64,
    /// Set when the work is no longer wanted.
    stop: &'a AtomicBool,
}

impl<'a> Sink<'a> {
    /// `longest`: bytes of the longest file.
    pub fn new(
        engine: &dyn Engine,
        root: &Path,
        longest: u64,
        bytes_read: &'a AtomicU64,
        stop: &'a AtomicBool,
    ) -> Result<Sink<'a>> {
        let chunk = longest.clamp(4096, CHUNK_BYTES as u64);
        let chunk = usize::try_from(chunk.next_multiple_of(4096)).unwrap_or(CHUNK_BYTES);
        let queue = engine
            .queue(DEPTH, chunk)
            .map_err(|e| Error::io("make a submission queue for", root, e))?;
        Ok(Sink {
            queue,
            bytes_read,
            stop,
        })
    }

    /// Key blocks: their checksums, their digest, order, number, range.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub fn check_keys(&mut self, opened: &Opened) -> Looked<()> {
        let Opened { file, footer } = opened;
        let (mut keys, mut intervals) = (Vec::new(), Vec::new());
        let mut digest = Digest::new();
        self.key_blocks(opened, |block, at| {
            let id = &file.identity;
            let sum = param_file::decode_key_block(block, id, at, &mut keys, &mut intervals)?;
            digest.update(&sum.to_le_bytes());
            Ok(())
        })?;
        let bytes = footer.keys_end() - footer.keys_offset;
        self.bytes_read.fetch_add(bytes, Relaxed);
        footer
            .check_entries(&keys, &intervals)
            .map_err(|e| e.at(&file.path))?;
        if digest.digest64() != footer.keys_digest {
            let what = "the key blocks are not those of the footer";
            return Err(Error::corrupt(&file.path, footer.keys_offset, what).into());
        }
        Ok(())
    }

    /// Hands out the key blocks of a file, each with its offset.
    fn key_blocks(
        &mut self,
        opened: &Opened,
        mut each: impl FnMut(&[u8], u64) -> Decoded<()>,
    ) -> Looked<()> {
        let Opened { file, footer } = opened;
        let (start, end) = (footer.keys_offset, footer.keys_end());
        let mut stream = Stream::new(&mut *self.queue, &opened_file(file)?, start, end);
        while let Some((offset, chunk)) = stream.next().map_err(|e| early(e, file))? {
            for (block, at) in chunk
                .chunks_exact(BLOCK_BYTES)
                .zip((offset..).step_by(BLOCK_BYTES))
            {
                each(block, at).map_err(|e| e.at(&file.path))?;
            }
        }
        Ok(())
    }

    /// Records: checksums, their digest, that their keys are those of the key blocks, padding.
    /// Damage comes back as a list, the values of live rows by table.
    ///
    /// # Errors
    /// `Io`; `Corrupt` when key blocks that were right no longer are.
    pub fn check_rows(
        &mut self,
        opened: &Opened,
        tables: &[TableDescriptor],
        live: &[u64],
    ) -> Looked<Checked> {
        let Opened { file, footer } = opened;
        let (mut keys, mut intervals) = (Vec::new(), Vec::new());
        self.key_blocks(opened, |block, at| {
            intervals.clear();
            let id = &file.identity;
            param_file::decode_key_block(block, id, at, &mut keys, &mut intervals).map(drop)
        })?;
        let state = |table| RowLayout::new(table).state_range();
        let mut records = Records {
            opened,
            tables,
            states: tables.iter().map(state).collect(),
            keys,
            live,
            values: vec![<(ValueStats, ValueStats)>::default(); tables.len()],
            digest: Digest::new(),
            runs: footer
                .runs
                .iter()
                .copied()
                .filter(|r| r.kind == RunKind::Rows)
                .collect(),
            run: 0,
            done: 0,
            carry: Vec::new(),
            damaged: 0,
            errors: Vec::new(),
        };
        let mut stream = Stream::new(
            &mut *self.queue,
            &opened_file(file)?,
            4096,
            footer.keys_offset,
        );
        while let Some((offset, chunk)) = stream.next().map_err(|e| early(e, file))? {
            if self.stop.load(Relaxed) {
                return Err(Error::Cancelled.into());
            }
            records.take(offset, chunk);
            self.bytes_read.fetch_add(chunk.len() as u64, Relaxed);
        }
        drop(stream);
        let mut checked = records.end();
        checked.damage.extend(self.check_sections(opened)?);
        Ok(checked)
    }

    /// Sections, whatever their kinds: checksums, and zeros after them. Gives what is damaged.
    fn check_sections(&mut self, opened: &Opened) -> Looked<Vec<Error>> {
        let Opened { file, footer } = opened;
        let mut damaged = Vec::new();
        for section in &footer.sections {
            let end = section.end().unwrap_or(section.offset);
            let source = opened_file(file)?;
            let mut stream = Stream::new(&mut *self.queue, &source, section.offset, end);
            let (mut digest, mut left, mut zeros) = (Digest::new(), section.bytes, true);
            while let Some((_, chunk)) = stream.next().map_err(|e| early(e, file))? {
                let here = to_usize(left).min(chunk.len());
                let (bytes, padding) = chunk.split_at(here);
                digest.update(bytes);
                left -= here as u64;
                zeros &= padding.iter().all(|byte| *byte == 0);
                self.bytes_read.fetch_add(chunk.len() as u64, Relaxed);
            }
            if !zeros || !section.is_sealed_by(digest.digest64(), &file.identity) {
                let what = format!("section of kind {}: checksum does not match", section.kind);
                damaged.push(Error::corrupt(&file.path, section.offset, what));
            }
        }
        Ok(damaged)
    }
}

/// What a read that failed says of a file; where the device is at fault, with the block.
fn early((bytes, error): ReadFailed, file: &DataFile) -> Failed {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return Error::corrupt(&file.path, 0, "the file ends early").into();
    }
    let start = bytes.start;
    let block = || first_unreadable(&*opened_file(file).ok()?, bytes);
    Failed {
        unreadable_at: is_unreadable(&error).then(|| block().unwrap_or(start)),
        error: Error::io("read", &file.path, error),
    }
}

/// The records of a file, whatever chunks they come in.
struct Records<'a> {
    opened: &'a Opened,
    tables: &'a [TableDescriptor],
    /// Where the state is in a row, by table.
    states: Vec<Range<usize>>,
    keys: Vec<u64>,
    live: &'a [u64],
    /// Weights and state, by table.
    values: Vec<(ValueStats, ValueStats)>,
    digest: Digest,
    runs: Vec<Run>,
    run: usize,
    /// Records of the run that were taken.
    done: u64,
    /// The start of a record whose end is in the next chunk.
    carry: Vec<u8>,
    damaged: u64,
    errors: Vec<Error>,
}

impl Records<'_> {
    fn take(&mut self, offset: u64, mut chunk: &[u8]) {
        let mut at = offset;
        while let Some(run) = self.runs.get(self.run).copied() {
            let stride = run.stride as usize;
            let missing = stride - self.carry.len();
            let Some((now, rest)) = chunk.split_at_checked(missing) else {
                self.carry.extend_from_slice(chunk);
                return;
            };
            let start = at - self.carry.len() as u64;
            if self.carry.is_empty() {
                self.record(&run, start, now);
            } else {
                let mut whole = std::mem::take(&mut self.carry);
                whole.extend_from_slice(now);
                self.record(&run, start, &whole);
                whole.clear();
                self.carry = whole;
            }
            (chunk, at) = (rest, at + now.len() as u64);
            self.done += 1;
            if self.done == run.entries {
                (self.run, self.done) = (self.run + 1, 0);
            }
        }
        if let Some(i) = chunk.iter().position(|b| *b != 0) {
            self.damage(at + i as u64, String::from("padding that is not zero"));
        }
    }

    fn record(&mut self, run: &Run, offset: u64, bytes: &[u8]) {
        let entry = to_usize(run.first_entry + self.done);
        let (Some(table), Some(key)) = (self.tables.get(run.table as usize), self.keys.get(entry))
        else {
            return;
        };
        let identity = &self.opened.file.identity;
        let record = match param_file::view_record(bytes, table.row_bytes(), identity, offset) {
            Ok(record) if record.key == *key => record,
            Ok(record) => {
                let what = format!("a record of key {:#x}, not of key {key:#x}", record.key);
                return self.damage(offset, what);
            }
            Err(error) => {
                let what = match error.at(&self.opened.file.path) {
                    Error::Corrupt { what, .. } => what,
                    other => other.to_string(),
                };
                return self.damage(offset, format!("row of key {key:#x}: {what}"));
            }
        };
        self.digest.update(&record.checksum.to_le_bytes());
        let live = self
            .live
            .get(entry / 64)
            .is_some_and(|word| word >> (entry % 64) & 1 == 1);
        // Weights of another type are not looked into, nor is what lies behind them.
        if live
            && table.dtype == Dtype::F32
            && let Some((weights, state)) = self.values.get_mut(run.table as usize)
        {
            let states = &self.states[run.table as usize];
            weights.add(&record.row[..table.dim * 4]);
            state.add(&record.row[states.start * 4..states.end * 4]);
        }
    }

    fn damage(&mut self, offset: u64, what: String) {
        self.damaged += 1;
        if self.damaged <= NAMED_MAX {
            let path = &self.opened.file.path;
            self.errors.push(Error::corrupt(path, offset, what));
        }
    }

    fn end(mut self) -> Checked {
        let path = &self.opened.file.path;
        if self.damaged > NAMED_MAX {
            let what = format!("{} more places are damaged", self.damaged - NAMED_MAX);
            self.errors.push(Error::corrupt(path, 0, what));
        }
        if self.damaged == 0 && self.digest.digest64() != self.opened.footer.rows_digest {
            let what = "the records are not those of the footer";
            self.errors.push(Error::corrupt(path, 4096, what));
        }
        Checked {
            damage: self.errors,
            values: self.values,
        }
    }
}

/// The file itself, as a queue wants it.
fn opened_file(file: &DataFile) -> Result<Arc<dyn DiskFile>> {
    let opened = file.file.get();
    opened.map_err(|e| Error::io("open", &file.path, e))
}

#[cfg(test)]
mod tests;
