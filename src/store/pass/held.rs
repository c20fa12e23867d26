//! Where do the rows of a part of a pass lie, in the order of its keys?
//!
//! - While the pass lasts nothing moves them, so they are read and written without a look-up.
//! - Of each row its slot, its shard and its position are kept, 8 bytes, in runs of [`RUN_ROWS`] keys; only the
//!   last run of a part is shorter.

use std::ops::Range;
use std::sync::PoisonError;

use super::super::core::{Core, Table, point};
use super::super::lease::{Lease, ShardRows};
use super::super::put::Pinned;
use super::super::workers::Workers;
use super::source::{Piece, RUN_ROWS};
use crate::pages;
use crate::sync::Mutex;
use crate::units::{Slot, narrow};

/// Memory of a key.
pub const KEY_BYTES: usize = size_of::<Slot>() + 2 * size_of::<u16>();

/// Rows that a thread copies together: into so little memory that its pages are near.
const BLOCK_ROWS: usize = 1 << 11;
const _: () = assert!(RUN_ROWS.is_multiple_of(BLOCK_ROWS));
/// Where so much is copied at once, the first rows have left the processor's caches before the last ones come: it is copied
/// past them.
const LARGE_OUT_BYTES: usize = 16 << 20;

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

    /// A piece came in.
    pub fn add(&mut self, piece: &Piece, lease: &Lease) {
        match &piece.stretch {
            None => self.add_run(lease),
            Some(stretch) => {
                self.add_scattered(&piece.positions, lease, stretch.keys);
                if stretch.is_over {
                    self.end_scattered(lease.rows.len());
                }
            }
        }
    }

    /// A run came in, in the order of its keys.
    fn add_run(&mut self, lease: &Lease) {
        let of_shard = |rows: &ShardRows| {
            let positions = rows.positions.iter().map(|p| narrow::<u16>(*p));
            (rows.slots.clone(), positions.collect())
        };
        self.runs.push(Run {
            shards: lease.map.shards_of(0).to_vec(),
            rows: lease.rows.iter().map(of_shard).collect(),
        });
    }

    /// Some of `keys` keys came in, those at these positions.
    fn add_scattered(&mut self, positions: &[u32], lease: &Lease, keys: usize) {
        self.scattered.resize(keys, (Slot::NONE, 0));
        for (s, rows) in lease.rows.iter().enumerate() {
            let shard: u16 = narrow(s);
            for (slot, at) in rows.slots.iter().zip(&rows.positions) {
                self.scattered[positions[*at as usize] as usize] = (*slot, shard);
            }
        }
    }

    /// All of those keys came in.
    fn end_scattered(&mut self, shards: usize) {
        for rows in std::mem::take(&mut self.scattered).chunks(RUN_ROWS) {
            let mut run = Run::new(shards, rows.len());
            for (slot, shard) in rows {
                assert!(*slot != Slot::NONE, "each position has come in");
                run.push(*slot, *shard);
            }
            for (slots, positions) in &mut run.rows {
                slots.shrink_to_fit();
                positions.shrink_to_fit();
            }
            self.runs.push(run);
        }
    }

    /// Some rows, at most so many at a time, a part of the rows of a run.
    fn stretches(&self, rows: Range<usize>, most: usize) -> impl Iterator<Item = Stretch<'_>> {
        let numbers = rows.start / most..rows.end.div_ceil(most);
        numbers.map(move |number| {
            let (start, end) = (number * most, (number + 1) * most);
            let run = start / RUN_ROWS;
            Stretch {
                run: &self.runs[run],
                from: start.max(rows.start) - run * RUN_ROWS,
                to: end.min(rows.end) - run * RUN_ROWS,
            }
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
        let is_large = size_of_val(out) >= LARGE_OUT_BYTES;
        let mut blocks = Vec::with_capacity(rows.len().div_ceil(BLOCK_ROWS) + 1);
        for block in self.stretches(rows.clone(), BLOCK_ROWS) {
            let f32s = (block.to - block.from) * width;
            let (now, later) = std::mem::take(&mut out).split_at_mut(f32s);
            out = later;
            blocks.push((block, Mutex::new(now)));
        }
        workers.foreground().shards(blocks.len(), rows.len(), |b| {
            let (block, out) = &blocks[b];
            let out = &mut **out.lock().unwrap_or_else(PoisonError::into_inner);
            // Threads begin with different shards, so that they seldom wait for one another.
            for s in (0..count).map(|s| (s + b * count / 2) % count) {
                let (slots, positions) = block.of_shard(s);
                if !slots.is_empty() {
                    let cache = &mut core.shards[s].lock().cache;
                    let places = positions.iter().map(|p| usize::from(*p) - block.from);
                    let copy = |row: &[f32], out: &mut [f32]| match is_large {
                        true => pages::copy_past_caches(row, out),
                        false => out.copy_from_slice(row),
                    };
                    cache.gather_into(slots, places, (out, width), copy);
                    point("gather");
                }
            }
            if is_large {
                pages::end_copies();
            }
        });
        table.note_read(rows.len());
    }

    /// Rows to be written: by run, then by shard.
    pub fn pinned(&self, rows: Range<usize>) -> Vec<Pinned<'_>> {
        self.stretches(rows, RUN_ROWS)
            .map(|stretch| stretch.pinned())
            .collect()
    }
}
