//! Where in a run does a range of mix64 begin and end?
//!
//! Key blocks are in order, and hashes are spread evenly: the block is read where the hash would stand
//! among those left, one at a time, and verified like any other. A few guesses that were wrong, and
//! the rest is halved.

use std::ops::{Range, RangeInclusive};

use super::data_file::DataFile;
use super::pieces::{aligned, read_exact};
use crate::error::{Error, Result};
use crate::format::footer::Run;
use crate::format::param_file::{KEYS_PER_BLOCK, view_key_block};
use crate::units::{mix64, to_usize};

const PER_BLOCK: u64 = KEYS_PER_BLOCK as u64;
const BLOCK_BYTES: u64 = 4096;
/// Blocks that are guessed, before the rest is halved.
const GUESSES_MAX: u32 = 4;

/// The entries of a run, by their numbers in the file, whose keys are in a range of mix64.
///
/// # Errors
/// `Io`, `Corrupt`.
pub(super) fn entries_within(
    file: &DataFile,
    run: &Run,
    hashes: &RangeInclusive<u64>,
) -> Result<Range<u64>> {
    let (first, end) = (run.first_entry, run.first_entry + run.entries);
    let (least, most) = (file.meta.hash_min, file.meta.hash_max);
    let (low, high) = (*hashes.start(), *hashes.end());
    if hashes.is_empty() || high < least || most < low {
        return Ok(first..first);
    }
    let from = match low <= least {
        true => first,
        false => first_not_below(file, first..end, low, Unread::Within)?,
    };
    let until = match high.checked_add(1) {
        Some(after) if high < most => first_not_below(file, first..end, after, Unread::Before)?,
        _ => end,
    };
    Ok(from..until.max(from))
}

/// On which side of the place that is looked for are blocks that can't be read, if it is among them? Either
/// way whoever walks the range meets them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unread {
    Before,
    Within,
}

/// The first of these entries whose hash is not below `hash`; the end if all are. Damaged blocks are
/// stepped over: who needs nothing of them learns nothing of them.
fn first_not_below(file: &DataFile, entries: Range<u64>, hash: u64, unread: Unread) -> Result<u64> {
    let Range { start, end } = entries;
    // Every entry before `low` is below, and the one at `high`, if there is one, is not, unless those
    // between it and `known` could not be read.
    let (mut low, mut high, mut known) = (start, end, end);
    // Between which hashes those in between lie.
    let (mut least, mut most) = (file.meta.hash_min, file.meta.hash_max);
    for tried in 0.. {
        if low >= high {
            break;
        }
        let before = match tried < GUESSES_MAX {
            true => share(
                high - low,
                hash.saturating_sub(least),
                most.saturating_sub(least),
            ),
            false => (high - low) / 2,
        };
        let middle = (low + before) / PER_BLOCK;
        let Some((of_block, hashes)) = first_sound(file, middle..(high - 1) / PER_BLOCK + 1)?
        else {
            high = low.max(middle * PER_BLOCK);
            continue;
        };
        let (from, to) = (low.max(of_block), high.min(of_block + PER_BLOCK));
        let at = |entry: u64| to_usize(entry - of_block);
        let Some(those) = hashes.get(at(from)..at(to)) else {
            let what = "a key block holds fewer keys than the footer says";
            return Err(Error::corrupt(&file.path, file.keys_offset, what));
        };
        let below = those.partition_point(|found| *found < hash) as u64;
        match below {
            0 => {
                (high, known) = (from, from);
                most = those.first().copied().unwrap_or(most);
            }
            _ if below < to - from => return Ok(from + below),
            _ => {
                low = to;
                least = those.last().copied().unwrap_or(least);
            }
        }
    }
    Ok(match unread {
        Unread::Before => known.max(low),
        Unread::Within => low,
    })
}

/// Which of so many entries stands where `part` ends in `whole`; one of them in any case.
fn share(entries: u64, part: u64, whole: u64) -> u64 {
    let wide = |number: u64| u128::from(number);
    let place = wide(entries) * wide(part) / wide(whole).max(1);
    u64::try_from(place).unwrap_or(u64::MAX).min(entries - 1)
}

/// The first of these key blocks that is whole: the number of its first entry, and its hashes.
fn first_sound(file: &DataFile, blocks: Range<u64>) -> Result<Option<(u64, Vec<u64>)>> {
    for block in blocks {
        match hashes_of(file, block) {
            Ok(hashes) => return Ok(Some(hashes)),
            Err(Error::Corrupt { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// The number of the first entry of a key block, and the hashes of all that are in it.
fn hashes_of(file: &DataFile, block: u64) -> Result<(u64, Vec<u64>)> {
    let offset = file.keys_offset + block * BLOCK_BYTES;
    let mut bytes = aligned(&file.path, BLOCK_BYTES)?;
    read_exact(&*file.file, &file.path, &mut bytes, offset)?;
    let entries = view_key_block(&bytes, &file.identity, offset).map_err(|e| e.at(&file.path))?;
    Ok((block * PER_BLOCK, entries.keys().map(mix64).collect()))
}

#[cfg(test)]
mod tests;
