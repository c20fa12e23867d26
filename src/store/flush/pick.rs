//! Which dirty rows are written next, and into how many files?
//!
//! - A pick changes nothing: its rows are checked again when they are copied out.
//! - Rows that leave memory are the coldest of their caches; a checkpoint's are taken in the order
//!   of their slots.

use std::collections::VecDeque;

use super::super::compact::PICK_FILES;
use super::super::core::ShardCell;
use super::Flusher;
use crate::mem::{FlushStep, Victim};
use crate::pages::own_pages;
use crate::units::{range_of, to_usize};

/// Files' worth of room that a fill finds: while it takes two, two are made. A load of 2 M rows of 512 B is 1.07 times
/// as fast with four as with two (decision 0044).
pub(super) const FILL_FILES: usize = 4;

/// Memory of a row, rather too little than too much.
const ROW_BYTES_ABOUT: u64 = 128;

/// Victims of one table in one shard, by hash.
#[derive(Debug)]
pub(super) struct Picked {
    /// Table id.
    pub table: usize,
    /// Shard.
    pub shard: usize,
    /// The rows, by hash.
    pub victims: Vec<Victim>,
}

impl Flusher {
    /// An array for the victims of one shard that take so much memory: of one file at most, for a start.
    fn room_for(&self, bytes: u64) -> Vec<Victim> {
        own_pages(to_usize(bytes.min(self.core.file_bytes) / ROW_BYTES_ABOUT))
    }

    /// Whether some cache runs low.
    pub(super) fn is_low(&self) -> bool {
        let filled = self.fills.is();
        let low = |cell: &ShardCell| {
            let cache = &cell.lock().cache;
            match filled {
                true => cache.below_flush_steps(FILL_FILES),
                false => cache.below_low_water(),
            }
        };
        self.core.shards.iter().any(low)
    }

    /// The coldest dirty rows of caches that run low, or soon would.
    pub(super) fn pick_cold(&self, queues: usize) -> Vec<Picked> {
        let mut picked = Vec::new();
        // While somebody waits for room, or soon would, two files are written at a time.
        let filled = self.fills.is();
        let hurry = filled || self.is_awaited();
        let steps = if hurry && queues > 1 { PICK_FILES } else { 1 };
        let ahead = if filled { FILL_FILES } else { 1 };
        for (shard, cell) in self.core.shards.iter().enumerate() {
            let mut guard = cell.lock();
            let interval_max = guard.interval_max();
            if !guard.cache.below_flush_steps(ahead) {
                continue;
            }
            let step = guard.cache.flush_step().times(steps);
            let mut victims = self.room_for(step.bytes);
            guard.cache.take_victims(step, interval_max, &mut victims);
            drop(guard);
            picked.extend(by_table(shard, victims));
        }
        picked
    }

    /// Dirty rows of one shard, in the order of their slots: when the policy names none.
    pub(super) fn pick_anything(&self, shard: usize) -> Vec<Picked> {
        let mut guard = self.core.shards[shard].lock();
        let (cut, step) = (guard.interval_max(), guard.cache.flush_step());
        let (mut cursor, mut victims) = (0, self.room_for(step.bytes));
        // As below: nobody ends what a writer that panicked has begun.
        while victims.is_empty()
            && (guard.cache).take_frozen(&mut cursor, step, cut, &mut victims)
            && self.core.ssd.check_writable().is_ok()
        {}
        drop(guard);
        by_table(shard, victims)
    }

    /// Dirty rows at or before `cut` (`None`: any that may be written), [`PICK_FILES`] files' worth,
    /// on from `cursors`; `None` when there are none left. `cursors` has one per shard.
    pub(super) fn pick_frozen(
        &self,
        cursors: &mut Vec<usize>,
        cut: Option<u32>,
    ) -> Option<Vec<Picked>> {
        let shards = self.core.shards.len();
        cursors.resize(shards, 0);
        let mut room = self.core.file_bytes * PICK_FILES as u64;
        let mut picked = Vec::new();
        // Of each shard, that is of each range of the hash, an equal share: files written at the
        // same time are ranges, too. What some leave over, those take that have more.
        let mut parts: Vec<usize> = (0..shards).collect();
        for share_max in [room / shards as u64, u64::MAX] {
            parts.retain(|shard| {
                let mut bytes = room.min(share_max);
                if bytes == 0 {
                    return false;
                }
                let before = bytes;
                let cursor = &mut cursors[*shard];
                let victims = self.frozen_rows(*shard, cursor, &mut bytes, cut);
                room -= before - bytes;
                picked.extend(by_table(*shard, victims));
                bytes == 0
            });
        }
        (!picked.is_empty()).then_some(picked)
    }

    /// Rows of [`Flusher::pick_frozen`] that take about so many bytes, of one shard, which are taken from
    /// `bytes`; none if it has no more of them.
    fn frozen_rows(
        &self,
        shard: usize,
        cursor: &mut usize,
        bytes: &mut u64,
        cut: Option<u32>,
    ) -> Vec<Victim> {
        let mut victims = self.room_for(*bytes);
        loop {
            self.let_others_go_first();
            let mut guard = self.core.shards[shard].lock();
            let cut = cut.unwrap_or(guard.interval_max());
            let want = FlushStep {
                bytes: *bytes,
                ..FlushStep::default()
            };
            let more = guard.cache.take_frozen(cursor, want, cut, &mut victims);
            // One call scans so many slots; and it lists copies until they are written, so that
            // after one that finds some there is none. What a writer that panicked was writing
            // stands in the way for ever.
            if !more || !victims.is_empty() || self.core.ssd.check_writable().is_err() {
                *bytes = bytes.saturating_sub(guard.cache.bytes_of_victims(&victims));
                return victims;
            }
        }
    }

    /// The files that hold these rows: one per data directory, or where there are several files'
    /// worth, so many. Each is a range of the hash, with its directory.
    pub(super) fn jobs_of(&self, mut picked: Vec<Picked>) -> VecDeque<(usize, Vec<Picked>)> {
        // Parts of one table in one shard become one, by hash: the order of the file.
        picked.sort_by_key(|p| (p.table, p.shard));
        picked.dedup_by(|next, part| {
            let same = (next.table, next.shard) == (part.table, part.shard);
            if same {
                part.victims.append(&mut next.victims);
                part.victims.sort_unstable_by_key(|v| v.hash);
            }
            same
        });
        let directories = self.core.ssd.directories.len();
        let bytes = self.bytes_of(&picked);
        // Each file is checked against what is installed: all together must fit, too.
        let fits = || {
            let all = bytes + 16384 * PICK_FILES as u64;
            let check = |d| {
                self.core
                    .ssd
                    .check_space_as_it_is(d, all, self.core.file_bytes)
                    .is_ok()
            };
            (0..directories).all(check)
        };
        let files = (bytes + self.core.file_bytes / 2) / self.core.file_bytes;
        let ways = match usize::try_from(files) {
            Ok(ways) if ways > 1 && fits() => ways,
            _ => 1,
        };
        let pieces = directories * ways;
        if pieces == 1 {
            let job = (!picked.is_empty()).then_some((0, picked));
            return job.into_iter().collect();
        }
        (0..pieces)
            .map(|piece| (piece / ways, cut_piece(&picked, piece, pieces)))
            .filter(|(_, rows)| !rows.is_empty())
            .collect()
    }

    /// About the bytes that all dirty rows take in files.
    pub(super) fn dirty_bytes(&self) -> u64 {
        let tables = self.core.all_tables();
        let of_shard = |cell: &ShardCell| {
            let shard = cell.lock();
            let rows = tables
                .iter()
                .map(|t| shard.cache.dirty_of(t.id.0 as usize) as u64);
            rows.zip(&*tables)
                .map(|(rows, t)| rows * t.file_bytes())
                .sum::<u64>()
        };
        self.core.shards.iter().map(of_shard).sum()
    }

    /// About the bytes of a file of these rows.
    pub(super) fn bytes_of(&self, picked: &[Picked]) -> u64 {
        let tables = self.core.all_tables();
        let bytes = |p: &Picked| p.victims.len() as u64 * tables[p.table].file_bytes();
        picked.iter().map(bytes).sum()
    }
}

/// The same victims in an array of their own.
fn copied(some: &[Victim]) -> Vec<Victim> {
    let mut victims = own_pages(some.len());
    victims.extend_from_slice(some);
    victims
}

/// Victims of one shard, table by table, by hash.
fn by_table(shard: usize, mut victims: Vec<Victim>) -> Vec<Picked> {
    let part = |victims: Vec<Victim>| Picked {
        table: victims[0].table(),
        shard,
        victims,
    };
    victims.sort_unstable_by_key(|v| (v.table(), v.hash));
    match (victims.first(), victims.last()) {
        (Some(first), Some(last)) if first.table() == last.table() => vec![part(victims)],
        _ => {
            let tables = victims.chunk_by(|a, b| a.table() == b.table());
            tables.map(|own| part(copied(own))).collect()
        }
    }
}

/// The victims of one range of the hash among `pieces` equal ones.
fn cut_piece(picked: &[Picked], piece: usize, pieces: usize) -> Vec<Picked> {
    let cut = |part: &Picked| {
        let before = |v: &Victim| range_of(v.hash, pieces) < piece;
        let within = |v: &Victim| range_of(v.hash, pieces) <= piece;
        let start = part.victims.partition_point(before);
        let end = part.victims.partition_point(within);
        Picked {
            table: part.table,
            shard: part.shard,
            victims: copied(&part.victims[start..end]),
        }
    };
    picked
        .iter()
        .map(cut)
        .filter(|part| !part.victims.is_empty())
        .collect()
}
