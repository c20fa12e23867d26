//! Where do the rows of a part of a pass lie, in the order of its keys?
//!
//! - While the pass lasts nothing moves them, so they are read and written without a look-up.
//! - Of each row its slot, its shard and its position are kept, 8 bytes, in runs of [`RUN_ROWS`] keys; only the
//!   last run of a part is shorter.

use std::ops::Range;
use std::sync::PoisonError;

use super::super::core::{Core, Table, point};
use super::super::lease::Lease;
use super::super::put::Pinned;
use super::super::workers::{Workers, split_out};
use crate::sync::Mutex;
use crate::units::{Slot, narrow};

/// Keys of a run: a position has 16 bits.
pub const RUN_ROWS: usize = 1 << 16;

/// Neighbouring keys of a part.
#[derive(Debug)]
struct Run {
    /// The shard of each.
    shards: Vec<u16>,
    /// By shard: the slots of its rows, and their positions in the run, rising.
    rows: Vec<(Vec<Slot>, Vec<u16>)>,
}

/// The rows of a part.
#[derive(Debug, Default)]
pub struct Held {
    runs: Vec<Run>,
    /// Rows that come in another order than that of the keys: slot and shard, by position.
    scattered: Vec<(Slot, u16)>,
}

/// Some rows of a run.
#[derive(Clone, Copy)]
struct Stretch<'a> {
    run: &'a Run,
    /// Positions, from this on and before that.
    from: usize,
    to: usize,
}

impl Run {
    fn new(shards: usize, rows: usize) -> Run {
        Run {
            shards: Vec::with_capacity(rows),
            rows: vec![Default::default(); shards],
        }
    }

    fn push(&mut self, slot: Slot, shard: u16) {
        let (slots, positions) = &mut self.rows[usize::from(shard)];
        slots.push(slot);
        positions.push(narrow(self.shards.len()));
        self.shards.push(shard);
    }
}

impl<'a> Stretch<'a> {
    /// Those that lie in a shard.
    fn of_shard(&self, s: usize) -> (&'a [Slot], &'a [u16]) {
        let (slots, positions) = &self.run.rows[s];
        let before = |limit: usize| positions.partition_point(|p| usize::from(*p) < limit);
        let range = before(self.from)..before(self.to);
        (&slots[range.clone()], &positions[range])
    }

    fn pinned(&self) -> Pinned<'a> {
        let shards = 0..self.run.rows.len();
        Pinned {
            rows: self.to - self.from,
            first: self.from,
            by_shard: shards.map(|s| self.of_shard(s)).collect(),
        }
    }
}

impl Held {
    /// Keys whose rows came in.
    pub fn len(&self) -> usize {
        let last = self.runs.last().map_or(0, |run| run.shards.len());
        self.runs.len().saturating_sub(1) * RUN_ROWS + last
    }

    /// A run came in, in the order of its keys.
    pub fn add_run(&mut self, lease: &Lease) {
        let of_shard = |rows: &super::super::lease::ShardRows| {
            let positions = rows.positions.iter().map(|p| narrow::<u16>(*p));
            (rows.slots.clone(), positions.collect())
        };
        self.runs.push(Run {
            shards: lease.map.shards_of(0).to_vec(),
            rows: lease.rows.iter().map(of_shard).collect(),
        });
    }

    /// Some of `keys` keys came in, those at these positions.
    pub fn add_scattered(&mut self, positions: &[u32], lease: &Lease, keys: usize) {
        self.scattered.resize(keys, (Slot::NONE, 0));
        for (s, rows) in lease.rows.iter().enumerate() {
            let shard: u16 = narrow(s);
            for (slot, at) in rows.slots.iter().zip(&rows.positions) {
                self.scattered[positions[*at as usize] as usize] = (*slot, shard);
            }
        }
    }

    /// All of those keys came in.
    pub fn end_scattered(&mut self, shards: usize) {
        for rows in std::mem::take(&mut self.scattered).chunks(RUN_ROWS) {
            let mut run = Run::new(shards, rows.len());
            for (slot, shard) in rows {
                assert!(*slot != Slot::NONE, "each position has come in");
                run.push(*slot, *shard);
            }
            self.runs.push(run);
        }
    }

    /// Rows from `first` on, by run.
    fn stretches(&self, rows: Range<usize>) -> impl Iterator<Item = Stretch<'_>> {
        let runs = rows.start / RUN_ROWS..rows.end.div_ceil(RUN_ROWS);
        runs.map(move |number| Stretch {
            run: &self.runs[number],
            from: rows.start.saturating_sub(number * RUN_ROWS),
            to: (rows.end - number * RUN_ROWS).min(RUN_ROWS),
        })
    }

    /// Copies the first words of rows, as they are now.
    ///
    /// # Shapes
    /// rows: n of them; out: `[n, width]`
    pub fn gather(
        &self,
        (core, workers): (&Core, &Workers),
        table: &Table,
        rows: Range<usize>,
        (mut out, width): (&mut [f32], usize),
    ) {
        let count = core.shards.len();
        for stretch in self.stretches(rows) {
            let rows = stretch.to - stretch.from;
            let (now, later) = std::mem::take(&mut out).split_at_mut(rows * width);
            out = later;
            let mut targets = workers.arrays.take_targets(rows, count);
            let shards = &stretch.run.shards[stretch.from..stretch.to];
            split_out(now, width, shards, &mut targets);
            let targets: Vec<_> = targets.into_iter().map(Mutex::new).collect();
            workers.foreground().shards(count, rows, |s, _| {
                let mut targets = targets[s].lock().unwrap_or_else(PoisonError::into_inner);
                if !targets.is_empty() {
                    let (slots, _) = stretch.of_shard(s);
                    core.shards[s].lock().cache.gather(slots, &mut targets);
                    point("gather");
                }
            });
            for targets in targets {
                let targets = targets.into_inner().unwrap_or_else(PoisonError::into_inner);
                workers.arrays.put_targets(targets);
            }
            table.note_read(rows);
        }
    }

    /// Rows to be written: by run, then by shard.
    pub fn pinned(&self, rows: Range<usize>) -> Vec<Pinned<'_>> {
        self.stretches(rows)
            .map(|stretch| stretch.pinned())
            .collect()
    }
}
