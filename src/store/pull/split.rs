//! Which keys does a call want, and how are they split between shards: by one thread, or by all?
//!
//! - The keys of all parts, one part after the other by ordinal, are cut into as many pieces as there are
//!   threads. Each thread splits its piece into arrays of its own.
//! - Whoever serves a shard puts its arrays together, in the order of the pieces: the rows of a shard are
//!   in the order of the keys, whatever thread split them.

use std::sync::{Arc, PoisonError};

use super::super::core::Table;
use super::super::lease::PartMap;
use super::super::workers::{BatchArrays, WorkerPool, split_out};
use crate::batch::{ShardPart, share, split_into};
use crate::sync::Mutex;
use crate::units::narrow;

/// Fewer keys are split by the caller: to hand on a piece takes some microseconds.
const PIECE_KEYS: usize = if cfg!(test) { 16 } else { 4096 };

/// Keys of one table, and where the weights of their rows are to be copied.
#[derive(Debug)]
pub struct Wanted<'a> {
    pub table: &'a Arc<Table>,
    pub keys: &'a [u64],
    /// `[keys, dim]`; all parts of a call have one, or none has.
    pub out: Option<&'a mut [f32]>,
}

/// Neighbouring keys of one part.
struct Run<'k, 'a> {
    ordinal: usize,
    /// The position of the first.
    first: u32,
    keys: &'k [u64],
    /// The shard of each.
    shards: &'k mut [u16],
    /// Where the weights of their rows go, and how many a row has.
    out: Option<(&'a mut [f32], usize)>,
}

/// What a thread has split.
pub(super) struct Piece<'a> {
    /// By shard.
    pub parts: Vec<ShardPart>,
    pub targets: Vec<Vec<&'a mut [f32]>>,
}

/// Splits the keys of all parts, which are in the order of their ordinals, and tells the map where they lie.
pub(super) fn split_parts<'a>(
    (arrays, pool): (&BatchArrays, &WorkerPool),
    count: usize,
    parts: &'a mut [Wanted<'_>],
    map: &mut PartMap,
) -> Vec<Piece<'a>> {
    let keys = map.keys();
    let copied = parts.iter().any(|part| part.out.is_some());
    let pieces = pool.helpers(keys).min(keys / PIECE_KEYS).max(1);
    let mut shards = arrays.shards.take(keys);
    shards.resize(keys, 0);
    let runs = cut(parts, &mut shards, keys.div_ceil(pieces).max(1));
    let split = |first: bool, runs: Vec<Run<'_, 'a>>| {
        let own = runs.iter().map(|run| run.keys.len()).sum();
        // What others have split is put behind what the first has.
        let room = if first { keys } else { own };
        let share = share(room, count);
        let part = |_| ShardPart {
            positions: arrays.numbers.take(share),
            hashes: arrays.hashes.take(share),
        };
        let mut piece = Piece {
            parts: (0..count).map(part).collect(),
            targets: match copied {
                true => arrays.take_targets(room, count),
                false => (0..count).map(|_| Vec::new()).collect(),
            },
        };
        let mut ends = Vec::new();
        for run in runs {
            split_into(run.keys, run.first, &mut piece.parts, run.shards);
            if let Some((out, dim)) = run.out {
                split_out(out, dim, run.shards, &mut piece.targets);
            }
            let lengths = piece.parts.iter().map(|part| part.hashes.len());
            ends.push((run.ordinal, lengths.collect::<Vec<usize>>()));
        }
        (piece, ends)
    };
    let pieces: Vec<_> = if runs.len() == 1 {
        runs.into_iter().map(|runs| split(true, runs)).collect()
    } else {
        let runs: Vec<_> = runs.into_iter().map(Mutex::new).collect();
        pool.shards(runs.len(), keys, |i| {
            let mut runs = runs[i].lock().unwrap_or_else(PoisonError::into_inner);
            split(i == 0, std::mem::take(&mut *runs))
        })
    };
    place(map, count, pieces.iter().map(|(_, ends)| &ends[..]));
    map.set_shards(shards);
    pieces.into_iter().map(|(piece, _)| piece).collect()
}

/// Cuts the keys of all parts into pieces of so many.
fn cut<'k, 'a: 'k>(
    parts: &'a mut [Wanted<'_>],
    mut shards: &'k mut [u16],
    piece_keys: usize,
) -> Vec<Vec<Run<'k, 'a>>> {
    let mut pieces = vec![Vec::new()];
    let mut room = piece_keys;
    for (ordinal, part) in parts.iter_mut().enumerate() {
        let dim = part.table.descriptor.dim;
        let mut out = part.out.as_deref_mut();
        let (mut keys, mut first) = (part.keys, 0);
        while !keys.is_empty() {
            if room == 0 {
                pieces.push(Vec::new());
                room = piece_keys;
            }
            let length = keys.len().min(room);
            let (now, later) = keys.split_at(length);
            let (own, rest) = std::mem::take(&mut shards).split_at_mut(length);
            let halves = out.map(|out| out.split_at_mut(length * dim));
            let (target, behind) = halves.unzip();
            if let Some(piece) = pieces.last_mut() {
                piece.push(Run {
                    ordinal,
                    first: narrow(first),
                    keys: now,
                    shards: own,
                    out: target.map(|out| (out, dim)),
                });
            }
            (keys, shards, out) = (later, rest, behind);
            first += length;
            room -= length;
        }
    }
    pieces
}

/// Tells the map where each part ends in each shard, from where its runs end in the arrays of each piece.
fn place<'e>(
    map: &mut PartMap,
    count: usize,
    pieces: impl Iterator<Item = &'e [(usize, Vec<usize>)]>,
) {
    // By shard: rows of the pieces before, and where the last run ended.
    let (mut before, mut end) = (vec![0; count], vec![0; count]);
    let mut ordinal = 0;
    for ends in pieces {
        for (of, lengths) in ends {
            while ordinal < *of {
                map.end_part(end.iter().copied());
                ordinal += 1;
            }
            for ((end, before), length) in end.iter_mut().zip(&before).zip(lengths) {
                *end = before + length;
            }
        }
        before.clone_from(&end);
    }
    for _ in ordinal..map.len() {
        map.end_part(end.iter().copied());
    }
}
