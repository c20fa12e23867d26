//! How is a batch of keys split between shards?

use crate::error::{ArgumentError, Result};
use crate::units::{mix64, narrow, range_of};

/// The part of a batch that falls into one shard.
#[derive(Clone, Debug, Default)]
pub struct ShardPart {
    /// Positions in the caller's batch, rising.
    pub positions: Vec<u32>,
    /// mix64 of the keys at these positions.
    pub hashes: Vec<u64>,
}

/// A batch split by shard.
#[derive(Clone, Debug, Default)]
pub struct Split {
    /// By shard.
    pub parts: Vec<ShardPart>,
    /// The shard of each position.
    pub shards: Vec<u16>,
}

/// Checks that each key of a batch has a position.
///
/// # Errors
/// `InvalidArgument`.
pub fn check_keys(keys: usize) -> Result<()> {
    match u32::try_from(keys) {
        Ok(_) => Ok(()),
        Err(_) => Err(ArgumentError::Length {
            what: "keys of a batch (at most)",
            expected: u32::MAX as usize,
            found: keys,
        }
        .into()),
    }
}

/// Elements to expect for one of `shards` shards in a batch of `keys`.
#[must_use]
pub fn share(keys: usize, shards: usize) -> usize {
    keys / shards + keys / (shards * 8) + 8
}

/// Splits keys by shard; each part keeps the caller's order.
#[must_use]
pub fn split(keys: &[u64], shards: usize) -> Split {
    let share = share(keys.len(), shards);
    let part = || ShardPart {
        positions: Vec::with_capacity(share),
        hashes: Vec::with_capacity(share),
    };
    let mut split = Split {
        parts: (0..shards).map(|_| part()).collect(),
        shards: vec![0; keys.len()],
    };
    split_into(keys, 0, &mut split.parts, &mut split.shards);
    split
}

/// Splits keys into arrays, one part per shard; behind what is in them, with positions from `first` on.
///
/// # Shapes
/// keys: `[n]`; shards, the shard of each: `[n]`
pub fn split_into(keys: &[u64], first: u32, parts: &mut [ShardPart], shards: &mut [u16]) {
    // The last position is one that can be given; then all are.
    let _: u32 = narrow(first as usize + keys.len());
    for ((position, key), of) in (first..).zip(keys).zip(shards) {
        let hash = mix64(*key);
        let shard = range_of(hash, parts.len());
        let part = &mut parts[shard];
        part.positions.push(position);
        part.hashes.push(hash);
        *of = narrow(shard);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_position_is_in_one_part_in_order() {
        let keys: Vec<u64> = (0..1000).chain(0..10).collect();
        let Split { parts, shards } = split(&keys, 3);
        for (s, part) in parts.iter().enumerate() {
            let same = |p: &u32| usize::from(shards[*p as usize]) == s;
            assert!(part.positions.iter().all(same));
        }
        let mut all: Vec<u32> = parts.iter().flat_map(|p| p.positions.clone()).collect();
        assert!(parts.iter().all(|p| p.positions.is_sorted()));
        all.sort_unstable();
        assert_eq!(all, (0..1010).collect::<Vec<u32>>());
    }
}
