//! Which dirty rows are written next, and into how many files?
//!
//! - A pick changes nothing: its rows are checked again when they are copied out.
//! - Rows that leave memory are the coldest of their caches; a checkpoint's are taken in the order
//!   of their places.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use super::engine::{Engine, ShardCell};
use crate::mem::Victim;
use crate::units::range_of;

/// Victims of one table in one shard, by hash.
#[derive(Debug)]
pub struct Picked {
    /// Table id.
    pub table: usize,
    /// Shard.
    pub shard: usize,
    /// The rows, sorted by hash before they are written.
    pub victims: Vec<Victim>,
}

impl Engine {
    /// Whether some cache runs low.
    pub fn is_low(&self) -> bool {
        let low = |cell: &ShardCell| cell.lock().tables.iter().any(|t| t.cache.low());
        self.shards.iter().any(low)
    }

    /// The coldest dirty rows of caches that run low, or soon would.
    pub fn pick_cold(&self, queues: usize) -> Vec<Picked> {
        let mut picked = Vec::new();
        // While somebody waits for room, two files are written at a time.
        let hurry = self.waiting.load(Ordering::Relaxed) > 0;
        let steps = if hurry { queues } else { 1 };
        for table in 0..self.all_tables().len() {
            for (shard, cell) in self.shards.iter().enumerate() {
                let mut guard = cell.lock();
                let epoch_max = guard.epoch_max();
                let cache = &mut guard.tables[table].cache;
                if !cache.lowish() {
                    continue;
                }
                let mut victims = Vec::new();
                cache.take_victims(steps * cache.flush_step_rows(), epoch_max, &mut victims);
                if !victims.is_empty() {
                    picked.push(Picked {
                        table,
                        shard,
                        victims,
                    });
                }
            }
        }
        picked
    }

    /// Dirty rows of one cache, in the order of their places: when the policy names none.
    pub fn pick_anything(&self, shard: usize, table: usize) -> Vec<Picked> {
        let mut guard = self.shards[shard].lock();
        let epoch_max = guard.epoch_max();
        let cache = &mut guard.tables[table].cache;
        let want = cache.flush_step_rows();
        let (mut cursor, mut victims) = (0, Vec::new());
        while victims.is_empty() && cache.take_frozen(&mut cursor, want, epoch_max, &mut victims) {}
        vec![Picked {
            table,
            shard,
            victims,
        }]
    }

    /// Dirty rows at or before `cut` (`None`: any that may be written), about a file's worth, on
    /// from `cursors`; `None` when there are none left.
    pub fn pick_frozen(
        &self,
        queues: usize,
        cursors: &mut [usize],
        cut: Option<u32>,
    ) -> Option<Vec<Picked>> {
        let tables = self.all_tables();
        let mut room = self.file_bytes * queues as u64;
        // Of each shard, that is of each range of the hash, an equal share: files written at the
        // same time are ranges, too.
        let share_max = match queues {
            1 => room,
            _ => room / self.shards.len() as u64,
        };
        let mut picked = Vec::new();
        for (t, table) in tables.iter().enumerate() {
            let row_bytes = table.file_bytes();
            for (s, cell) in self.shards.iter().enumerate() {
                let cursor = &mut cursors[t * self.shards.len() + s];
                let mut share = room.min(share_max);
                loop {
                    let want = usize::try_from(share / row_bytes)
                        .unwrap_or(usize::MAX)
                        .max(1);
                    let mut guard = cell.lock();
                    let cut = cut.unwrap_or(guard.epoch_max());
                    let cache = &mut guard.tables[t].cache;
                    let mut victims = Vec::new();
                    let more = cache.take_frozen(cursor, want, cut, &mut victims);
                    drop(guard);
                    room = room.saturating_sub(victims.len() as u64 * row_bytes);
                    share = share.saturating_sub(victims.len() as u64 * row_bytes);
                    let found = victims.len();
                    if found > 0 {
                        picked.push(Picked {
                            table: t,
                            shard: s,
                            victims,
                        });
                    }
                    if room < row_bytes {
                        return Some(picked);
                    }
                    // Copies are listed again until they are written: one look is enough.
                    if !more || share < row_bytes || (found > 0 && found < want) {
                        break;
                    }
                }
            }
        }
        (!picked.is_empty()).then_some(picked)
    }

    /// The files that hold these rows: one per data directory, or where there is more than a file's
    /// worth, as many as there are queues. Each is a range of the hash, with its directory.
    pub fn jobs_of(
        &self,
        mut picked: Vec<Picked>,
        queues: usize,
    ) -> VecDeque<(usize, Vec<Picked>)> {
        // Parts of one table in one shard become one, by hash: the order of the file.
        picked.sort_by_key(|p| (p.table, p.shard));
        picked.dedup_by(|next, part| {
            let same = (next.table, next.shard) == (part.table, part.shard);
            if same {
                part.victims.append(&mut next.victims);
            }
            same
        });
        for part in &mut picked {
            part.victims.sort_unstable_by_key(|v| v.hash);
        }
        let directories = self.ssd.directories.len();
        let bytes = self.bytes_of(&picked);
        // Each file is checked against what is installed: all together must fit, too.
        let fits = || {
            let all = bytes + 16384 * queues as u64;
            let check = |d| self.ssd.check_space(d, all, self.file_bytes).is_ok();
            (0..directories).all(check)
        };
        let ways = if queues > 1 && bytes > self.file_bytes && fits() {
            queues
        } else {
            1
        };
        let pieces = directories * ways;
        (0..pieces)
            .map(|piece| (piece / ways, cut_piece(&picked, piece, pieces)))
            .filter(|(_, rows)| !rows.is_empty())
            .collect()
    }

    /// About the bytes of a file of these rows.
    pub fn bytes_of(&self, picked: &[Picked]) -> u64 {
        let tables = self.all_tables();
        let bytes = |p: &Picked| p.victims.len() as u64 * tables[p.table].file_bytes();
        picked.iter().map(bytes).sum()
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
            victims: part.victims[start..end].to_vec(),
        }
    };
    picked
        .iter()
        .map(cut)
        .filter(|part| !part.victims.is_empty())
        .collect()
}
