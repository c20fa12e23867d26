//! How are the key blocks of one run read in the order of mix64, from any hash on?
//!
//! Invariants:
//! - Everything is verified before it is handed out: checksums, the order of keys, how many a
//!   block holds, and that hashes and intervals lie where the manifest says.
//! - Readers of neighbouring ranges hand out each entry once if the order of the run is right;
//!   the caller compares their number with the run's.

use std::sync::Arc;

use super::ahead::{Asked, Reader};
use super::data_file::{DataFile, Location};
use super::pieces::{aligned, read_exact};
use crate::error::{Error, Result};
use crate::format::footer::{Run, RunKind};
use crate::format::param_file::{self, KEYS_PER_BLOCK};
use crate::io::AlignedBuffer;
use crate::units::{mix64, saturate, to_usize};

const BLOCK_BYTES: u64 = 4096;
const PER_BLOCK: u64 = KEYS_PER_BLOCK as u64;
/// Blocks read at a time beyond where a range was expected to end.
const TAIL_BLOCKS: u64 = 4;

/// Reads the entries of one run whose hashes lie in a range.
pub struct SectionWalk {
    file: Arc<DataFile>,
    run: Run,
    /// The location of entry 0.
    base: u64,
    range: (u64, u64),
    window: AlignedBuffer,
    /// Blocks in the window.
    held: (u64, u64),
    reader: Option<Reader>,
    /// What comes after the window, and its blocks.
    ahead: Option<(Asked, (u64, u64))>,
    /// The window before, for what comes next.
    spare: Option<AlignedBuffer>,
    /// Where the range probably ends.
    likely_end: u64,
    next: u64,
    end: u64,
    /// Hashes of the block it stands in, from `at` on still to come.
    hashes: Vec<u64>,
    at: usize,
    /// Entry number of the first of them.
    first: u64,
    last: Option<u64>,
    taken: u64,
}

/// `n` × the part of the hashes in `whole` that lies in `part`.
fn share(n: u64, part: (u64, u64), whole: (u64, u64)) -> u64 {
    let (low, high) = (part.0.max(whole.0), part.1.min(whole.1));
    if low > high {
        return 0;
    }
    let width = |low: u64, high: u64| u128::from(high - low) + 1;
    let wide = u128::from(n) * width(low, high) / width(whole.0, whole.1).max(1);
    saturate(wide)
}

impl SectionWalk {
    /// Opens a run of `file` at its first entry in `range`; `None` if the file has no hashes there.
    /// Its windows take about `window_bytes`; with a reader it has two, one of which is on its way.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn open(
        file: &Arc<DataFile>,
        run: &Run,
        range: (u64, u64),
        window_bytes: u64,
        reader: Option<&Reader>,
    ) -> Result<Option<SectionWalk>> {
        let hashes = (file.meta.hash_min, file.meta.hash_max);
        if run.entries == 0 || hashes.0 > range.1 || hashes.1 < range.0 {
            return Ok(None);
        }
        let (first, end) = blocks_of(run);
        let window = match reader {
            Some(_) => window_bytes / 2,
            None => window_bytes,
        };
        let window = window.clamp(1, (end - first) * BLOCK_BYTES);
        let window = window.next_multiple_of(BLOCK_BYTES);
        let tombstone = run.kind == RunKind::Tombstones;
        let mut walk = SectionWalk {
            base: Location::new(file.slot, tombstone, 0).0,
            file: Arc::clone(file),
            run: *run,
            range,
            window: aligned(&file.path, window)?,
            held: (0, 0),
            reader: reader.cloned(),
            ahead: None,
            spare: None,
            likely_end: end,
            next: first,
            end,
            hashes: Vec::new(),
            at: 0,
            first: 0,
            last: None,
            taken: 0,
        };
        walk.seek(first, hashes)?;
        Ok(Some(walk))
    }

    /// Stands at the block in which the range begins, found by the hashes being evenly spread.
    fn seek(&mut self, first: u64, hashes: (u64, u64)) -> Result<()> {
        let n = self.run.entries;
        let run_first = self.run.first_entry;
        let block = |entry: u64| (run_first + entry) / PER_BLOCK;
        let mut margin = n.isqrt() * 2;
        let until = share(n, (0, self.range.1), hashes);
        self.likely_end = (block(until + margin) + 1).min(self.end);
        if self.range.0 <= hashes.0 {
            return self.step_block();
        }
        let below = share(n, (0, self.range.0 - 1), hashes);
        loop {
            self.next = block(below.saturating_sub(margin)).max(first);
            let from = self.next;
            self.last = None;
            self.step_block()?;
            // The first entry of the range may be in the block before.
            if from == first || self.at > 0 {
                return Ok(());
            }
            margin = margin.saturating_mul(4).max(PER_BLOCK);
        }
    }

    /// Appends hash and location of all entries up to and including `high`.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn take_until(&mut self, high: u64, out: &mut Vec<(u64, u64)>) -> Result<()> {
        loop {
            let numbers = self.location().0..;
            let hashes = self.until(high);
            out.extend(hashes.iter().copied().zip(numbers));
            let count = hashes.len();
            if !self.step_over(count)? {
                return Ok(());
            }
        }
    }

    /// Appends one number for each entry up to and including `high`: how far its hash is from `low`, and
    /// the `tag` in so many bits below. Returns the location of the first one, if there is one; those of
    /// the others follow it one by one.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn take_tagged(
        &mut self,
        (low, high): (u64, u64),
        (tag, bits): (u64, u32),
        out: &mut Vec<u64>,
    ) -> Result<Option<Location>> {
        let mut first = None;
        loop {
            let hashes = self.until(high);
            out.extend(hashes.iter().map(|hash| (hash - low) << bits | tag));
            let count = hashes.len();
            if count > 0 && first.is_none() {
                first = Some(self.location());
            }
            if !self.step_over(count)? {
                return Ok(first);
            }
        }
    }

    /// Hashes of the block up to and including `high`.
    #[inline]
    fn until(&self, high: u64) -> &[u64] {
        let rest = &self.hashes[self.at..];
        &rest[..rest.partition_point(|hash| *hash <= high)]
    }

    /// Goes on after so many entries; false if it then stands before one that was not stepped over, or
    /// at the end.
    #[inline]
    fn step_over(&mut self, count: usize) -> Result<bool> {
        self.at += count;
        self.taken += count as u64;
        if self.at < self.hashes.len() || self.next >= self.end {
            return Ok(false);
        }
        self.step_block()?;
        Ok(true)
    }

    /// The location of the entry that it stands before, or of what would come after the block's last.
    #[inline]
    fn location(&self) -> Location {
        Location(self.base + self.first + self.at as u64)
    }

    /// The location of the file's entry 0, and of a tombstone if its entries are those.
    #[must_use]
    pub fn base(&self) -> Location {
        Location(self.base)
    }

    /// Entries handed out.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Reads on so that block `next` is in the window.
    fn fill(&mut self) -> Result<()> {
        if (self.held.0..self.held.1).contains(&self.next) {
            return Ok(());
        }
        if let Some((asked, blocks)) = self.ahead.take() {
            let window = asked.take(&self.file)?;
            self.spare = Some(std::mem::replace(&mut self.window, window));
            self.held = blocks;
        }
        if !(self.held.0..self.held.1).contains(&self.next) {
            let wanted = self.likely_end.saturating_sub(self.next);
            let wanted = if wanted == 0 { TAIL_BLOCKS } else { wanted };
            let (blocks, offset, bytes) = self.piece(self.next, wanted);
            let (file, path) = (&*self.file.file, &self.file.path);
            read_exact(file, path, &mut self.window[..bytes], offset)?;
            self.held = blocks;
        }
        self.ask_ahead()
    }

    /// Blocks from this one on that are read at once, with offset and length.
    fn piece(&self, from: u64, wanted: u64) -> ((u64, u64), u64, usize) {
        let most = self.window.len() as u64 / BLOCK_BYTES;
        let blocks = wanted.min(most).min(self.end - from);
        let bytes = to_usize(blocks * BLOCK_BYTES);
        let offset = self.file.keys_offset + from * BLOCK_BYTES;
        ((from, from + blocks), offset, bytes)
    }

    /// Asks for what comes after the window, where the range probably goes on.
    fn ask_ahead(&mut self) -> Result<()> {
        let from = self.held.1;
        let Some(reader) = self.reader.as_ref().filter(|_| from < self.likely_end) else {
            return Ok(());
        };
        let (blocks, offset, bytes) = self.piece(from, self.likely_end - from);
        let buffer = match self.spare.take() {
            Some(buffer) => buffer,
            None => aligned(&self.file.path, self.window.len() as u64)?,
        };
        let asked = reader.ask(&self.file, offset, bytes, buffer);
        self.ahead = Some((asked, blocks));
        Ok(())
    }

    /// Stands at the first entry of the next block that is not below the range.
    fn step_block(&mut self) -> Result<()> {
        self.fill()?;
        let number = self.next;
        let offset = self.file.keys_offset + number * BLOCK_BYTES;
        let at = to_usize((number - self.held.0) * BLOCK_BYTES);
        let block = &self.window[at..at + 4096];
        let entries = param_file::view_key_block(block, &self.file.identity, offset)
            .map_err(|e| e.at(&self.file.path))?;
        let start = number * PER_BLOCK;
        let expected = PER_BLOCK.min(self.file.entries().saturating_sub(start));
        if entries.count() as u64 != expected {
            let what = "a key block holds another number of keys than the footer says";
            return Err(Error::corrupt(&self.file.path, offset, what));
        }
        // A block may hold the end of one run and the beginning of the next.
        let run_end = self.run.first_entry + self.run.entries;
        let narrow = |entry: u64| to_usize(entry.min(expected));
        let from = narrow(self.run.first_entry.saturating_sub(start));
        let count = narrow(run_end.saturating_sub(start)).saturating_sub(from);
        let entries = entries.part(from, count);
        self.hashes.clear();
        self.hashes.extend(entries.keys().map(mix64));
        self.first = start + from as u64;
        if !self.is_right(entries.intervals()) {
            let what = "a key is out of order, or out of the file's range";
            return Err(Error::corrupt(&self.file.path, offset, what));
        }
        self.last = self.hashes.last().copied();
        self.at = self.hashes.partition_point(|hash| *hash < self.range.0);
        self.next += 1;
        Ok(())
    }

    /// Whether keys rise strictly by mix64 and lie, with their intervals, where the manifest says.
    /// Looks at all of them, which is faster than to stop at the first that is wrong.
    fn is_right(&self, intervals: impl Iterator<Item = u32>) -> bool {
        let meta = &self.file.meta;
        let pairs = self.hashes.iter().zip(self.hashes.iter().skip(1));
        let rises = pairs.fold(true, |rises, (a, b)| rises & (a < b))
            && match (self.last, self.hashes.first()) {
                (Some(last), Some(first)) => last < *first,
                _ => true,
            };
        let inside = self.hashes.first().is_none_or(|h| *h >= meta.hash_min)
            && self.hashes.last().is_none_or(|h| *h <= meta.hash_max);
        let (min, max) = (meta.interval_min, meta.interval_max);
        let in_time = intervals.fold(true, |all, interval| {
            all & (min <= interval) & (interval <= max)
        });
        rises && inside && in_time
    }
}

/// First block and end of the blocks of a run.
fn blocks_of(run: &Run) -> (u64, u64) {
    let end = (run.first_entry + run.entries - 1) / PER_BLOCK + 1;
    (run.first_entry / PER_BLOCK, end)
}

/// About how many entries of a run have hashes in a range.
#[must_use]
pub fn entries_in(file: &DataFile, run: &Run, range: (u64, u64)) -> u64 {
    share(run.entries, range, (file.meta.hash_min, file.meta.hash_max))
}

#[cfg(test)]
mod tests;
