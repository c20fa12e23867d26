//! Which keys are in a batch, each once?
//!
//! Keys are dealt out to ranges of mix64 by pieces of the batch, then each range is sorted: both by all
//! threads.

use super::Store;
use super::workers::WorkerPool;
use crate::batch::{check_keys, share};
use crate::error::Result;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::units::{mix64, narrow, range_of, unmix64};

/// Ranges a thread: one that has more keys than the others does not keep all waiting.
const RANGES_PER_THREAD: usize = 4;
/// Batches with fewer keys are one range.
const ALONE_KEYS: usize = 4096;

/// The distinct keys of a batch, and where each of the batch's keys is among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unique {
    /// `[m]`, each once, in the order of mix64.
    pub keys: Vec<u64>,
    /// `[n]`: `keys[inverse[i]]` is key i of the batch.
    pub inverse: Vec<u32>,
}

/// (mix64 of a key, its position in the batch), by range.
type Dealt = Vec<Vec<(u64, u32)>>;

/// As [`Store::unique`], by the threads of a pool.
fn unique(pool: &WorkerPool, keys: &[u64]) -> Unique {
    let ranges = match keys.len() < ALONE_KEYS {
        true => 1,
        false => pool.threads() * RANGES_PER_THREAD,
    };
    let piece = keys.len().div_ceil(pool.threads()).max(1);
    let pieces: Vec<&[u64]> = keys.chunks(piece).collect();
    let dealt: Vec<Dealt> = pool.shards(pieces.len(), keys.len(), |p| {
        deal(pieces[p], p * piece, ranges)
    });
    let sorted: Vec<Vec<(u64, u32)>> = pool.shards(ranges, keys.len(), |range| {
        let count = dealt.iter().map(|by| by[range].len()).sum();
        let mut all: Vec<(u64, u32)> = Vec::with_capacity(count);
        dealt
            .iter()
            .for_each(|by| all.extend_from_slice(&by[range]));
        all.sort_unstable();
        all
    });
    drop(dealt);
    let inverse: Vec<AtomicU32> = keys.iter().map(|_| AtomicU32::new(0)).collect();
    let distinct = |range: &Vec<(u64, u32)>| range.chunk_by(|a, b| a.0 == b.0).count();
    let counts = pool.shards(ranges, keys.len(), |range| distinct(&sorted[range]));
    let starts: Vec<usize> = counts
        .iter()
        .scan(0, |start, count| {
            Some(std::mem::replace(start, *start + count))
        })
        .collect();
    let found = pool.shards(ranges, keys.len(), |range| {
        let equal = sorted[range].chunk_by(|a, b| a.0 == b.0);
        let number = |(place, those): (usize, &[(u64, u32)])| {
            let place = narrow(starts[range] + place);
            for (_, position) in those {
                inverse[*position as usize].store(place, Ordering::Relaxed);
            }
            unmix64(those[0].0)
        };
        equal.enumerate().map(number).collect::<Vec<u64>>()
    });
    Unique {
        keys: found.concat(),
        inverse: inverse.into_iter().map(AtomicU32::into_inner).collect(),
    }
}

/// Deals a piece of a batch, whose first key is at position `start`, out to ranges.
fn deal(piece: &[u64], start: usize, ranges: usize) -> Dealt {
    let share = share(piece.len(), ranges);
    let mut by_range: Dealt = (0..ranges).map(|_| Vec::with_capacity(share)).collect();
    for (position, key) in (start..).zip(piece) {
        let hash = mix64(*key);
        let position = narrow(position);
        by_range[range_of(hash, ranges)].push((hash, position));
    }
    by_range
}

impl Store {
    /// The distinct keys of a batch, in the order in which rows lie on disk, and the inverse. A trainer
    /// pulls the distinct keys, sums the gradients of equal ones by the inverse, and pushes each once.
    ///
    /// # Shapes
    /// keys: `[n]`, any u64; n at most 2^32 - 1
    ///
    /// # Cost
    /// By the threads that serve batches, which others wait for meanwhile; no I/O. About 40 bytes a key
    /// while it runs, beside the cache. A key that most of the batch has is sorted by one thread.
    ///
    /// # Errors
    /// `InvalidArgument` for more keys, `Forked`.
    ///
    /// ```
    /// # use hps::{CreateOptions, RuntimeOptions, Store};
    /// # fn main() -> hps::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("hps-unique-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// let batch = [7, 42, 7, 7];
    /// let unique = store.unique(&batch)?;
    /// assert_eq!(unique.keys.len(), 2);
    /// for (key, place) in batch.iter().zip(&unique.inverse) {
    ///     assert_eq!(unique.keys[*place as usize], *key);
    /// }
    /// # store.close()?;
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # Ok(())
    /// # }
    /// ```
    pub fn unique(&self, keys: &[u64]) -> Result<Unique> {
        check_keys(keys.len())?;
        self.call(|parts| Ok(unique(&parts.workers.foreground(), keys)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::RuntimeOptions;
    use crate::store::tests::{made, options};

    #[test]
    fn of_batches_of_any_size_by_any_number_of_threads_each_key_is_found_once() {
        for threads in [1, 3] {
            let (_, store) = made(RuntimeOptions {
                threads,
                ..options()
            });
            for count in [0, 1, 2, ALONE_KEYS - 1, ALONE_KEYS, 3 * ALONE_KEYS] {
                let keys: Vec<u64> = (0..count as u64).map(|i| mix64(i * i % 5077)).collect();
                let found = store.unique(&keys).unwrap();
                let distinct: BTreeMap<u64, u64> =
                    keys.iter().map(|key| (mix64(*key), *key)).collect();
                assert!(found.keys.iter().eq(distinct.values()), "{count}");
                let back = found
                    .inverse
                    .iter()
                    .map(|place| found.keys[*place as usize]);
                assert!(back.eq(keys), "{count} by {threads}");
            }
        }
    }
}
