//! The same table in plain Rust: the oracle of the kernels, and the tier of a machine without a GPU.
//!
//! Invariants:
//! - Rows change by [`Updater::apply_all`], as a store's do.
//! - Calls are done when they return; what a device would say later is kept and said later.

use std::time::Instant;

use super::arrays::filled;
use super::checks::{check, check_copy, check_merge, check_read, check_write};
use super::clocks::Clocks;
use super::index::{CpuIndex, NO_ROW, Outcome};
use super::shape::{HbmOptions, Shape, option};
use super::status::{REFUSED_GRADIENT, REFUSED_KEY, REFUSED_POSITION, REFUSED_ROW, Status};
use super::streams::{DeviceInfo, GraphId, Mark, Memory, Stream};
use super::{Buffer, Gradients, HbmStats, HbmTable, Index, Inserted, Kind, Values, ValuesMut};
use crate::error::Result;
use crate::options::{NonFinite, TableDescriptor};
use crate::pages::prefetch;
use crate::row::{RowLayout, RowVisitor, Updater, accumulate, all_finite};
use crate::units::narrow;

mod arena;
mod calls;
mod order;

use arena::Arena;
use order::Order;

/// Keys that are looked up are fetched so far ahead.
const KEYS_AHEAD: usize = 24;
/// Rows of a get are fetched so far ahead.
const ROWS_AHEAD: usize = 12;
/// Keys of a get that are under way, and some.
const UNDER_WAY: usize = 32;
const _: () = assert!(ROWS_AHEAD < KEYS_AHEAD && KEYS_AHEAD < UNDER_WAY);
/// Rows that change, and their gradients, are fetched so far ahead.
const RUNS_AHEAD: usize = 8;

#[derive(Clone, Debug)]
enum Held {
    Keys(Vec<u64>),
    Words(Vec<u32>),
    Floats(Vec<f32>),
}

/// A recorded get.
#[derive(Clone, Copy, Debug)]
struct Recorded {
    call: u64,
    stream: Stream,
    index: Index,
    keys: Buffer,
    count: usize,
    out: Buffer,
}

/// Rows in host memory.
#[derive(Debug)]
pub struct CpuTable {
    shape: Shape,
    layout: RowLayout,
    updater: Updater,
    arena: Arena,
    dirty: Vec<bool>,
    indexes: [CpuIndex; 2],
    inserted: [Inserted; 2],
    buffers: Vec<Held>,
    clocks: Clocks,
    calls: [u64; 2],
    status: [Status; 2],
    graphs: Vec<Recorded>,
    marks: Vec<Instant>,
    /// Scratch: rows of a call's keys; (row, position) of each.
    found: Vec<u32>,
    order: Order,
}

impl CpuTable {
    /// A table with empty indexes; rows that were never placed are zero.
    ///
    /// # Errors
    /// `InvalidArgument` for options out of range; `DeviceMemory`.
    pub fn new(descriptor: &TableDescriptor, options: &HbmOptions) -> Result<CpuTable> {
        CpuTable::of(Shape::new(descriptor, options)?)
    }

    pub(super) fn of(shape: Shape) -> Result<CpuTable> {
        let (rows, what) = (shape.options.rows_max, "rows and indexes");
        Ok(CpuTable {
            layout: RowLayout::new(&shape.descriptor),
            updater: Updater::new(&shape.descriptor, &shape.options.hyper),
            arena: Arena::new(rows, shape.stride)?,
            dirty: filled(false, rows, what)?,
            indexes: [CpuIndex::new(shape.sectors)?, CpuIndex::new(shape.sectors)?],
            inserted: [Inserted::default(); 2],
            buffers: Vec::new(),
            clocks: Clocks::default(),
            calls: [0; 2],
            status: [Status::default(); 2],
            graphs: Vec::new(),
            marks: Vec::new(),
            found: Vec::new(),
            order: Order::default(),
            shape,
        })
    }

    /// What an accumulate does before it changes rows, and no more: looks keys up, orders the positions by row;
    /// under [`NonFinite::Reject`] it looks at all gradients, too. For benchmarks.
    ///
    /// # Errors
    /// As [`HbmTable::accumulate`], and for a call that was refused.
    pub fn plan_alone(
        &mut self,
        stream: Stream,
        index: Index,
        gradients: &Gradients,
    ) -> Result<()> {
        self.shape.check_gradients(gradients)?;
        if let Some(call) = self.call(stream)
            && self.look_up(stream, call, index, (gradients.keys, gradients.count))
        {
            self.plan(stream, call, gradients);
        }
        self.wait(stream)
    }

    fn keys(&self, buffer: Buffer) -> &[u64] {
        match &self.buffers[buffer.id as usize] {
            Held::Keys(keys) => keys,
            _ => &[],
        }
    }

    fn words(&self, buffer: Buffer) -> &[u32] {
        match &self.buffers[buffer.id as usize] {
            Held::Words(words) => words,
            _ => &[],
        }
    }

    fn floats(&self, buffer: Buffer) -> &[f32] {
        match &self.buffers[buffer.id as usize] {
            Held::Floats(floats) => floats,
            _ => &[],
        }
    }

    /// A buffer's values, out of the table until [`CpuTable::put_back`].
    fn take(&mut self, buffer: Buffer) -> Held {
        std::mem::replace(
            &mut self.buffers[buffer.id as usize],
            Held::Keys(Vec::new()),
        )
    }

    fn put_back(&mut self, buffer: Buffer, held: Held) {
        self.buffers[buffer.id as usize] = held;
    }

    /// The number of a call that may go on, or none where an earlier one was refused.
    fn call(&mut self, stream: Stream) -> Option<u64> {
        let call = &mut self.calls[stream.index()];
        *call += 1;
        (self.status[stream.index()].call == 0).then_some(*call)
    }

    fn refuse(&mut self, stream: Stream, call: u64, why: (u32, u64, usize), positions: usize) {
        let (reason, key, position) = why;
        let status = &mut self.status[stream.index()];
        status.call = call;
        status.reason = reason;
        status.key = key;
        status.position = narrow(position);
        status.refused = positions as u64;
    }

    /// Looks the keys of a call up into `found`; refuses the call if one is not there.
    fn look_up(&mut self, stream: Stream, call: u64, index: Index, keys: (Buffer, usize)) -> bool {
        let mut found = std::mem::take(&mut self.found);
        found.clear();
        let keys = &self.keys(keys.0)[..keys.1];
        let index = &self.indexes[index.place()];
        found.extend(keys.iter().enumerate().map(|(i, key)| {
            if let Some(ahead) = keys.get(i + KEYS_AHEAD) {
                index.prefetch(*ahead);
            }
            index.find(*key)
        }));
        let missing = |row: &&u32| **row == NO_ROW;
        let refused = found.iter().filter(missing).count();
        if refused > 0 {
            let at = found.iter().position(|row| *row == NO_ROW).unwrap_or(0);
            let key = keys[at];
            self.refuse(stream, call, (REFUSED_KEY, key, at), refused);
        }
        self.found = found;
        refused == 0
    }

    fn get_wide(
        &mut self,
        stream: Stream,
        index: Index,
        (keys, count, out): (Buffer, usize, Buffer),
        width: usize,
    ) -> Result<()> {
        self.shape.check_get((keys, count, out), width)?;
        self.clocks.read(stream, index)?;
        if count == 0 {
            return Ok(());
        }
        if let Some(call) = self.call(stream) {
            self.gather(stream, call, index, (keys, count, out), width);
        }
        Ok(())
    }

    /// Looks keys up and copies their rows. While a row is copied, later ones and the index entries of keys
    /// behind them are on their way from memory.
    fn gather(
        &mut self,
        stream: Stream,
        call: u64,
        index: Index,
        (keys, count, out): (Buffer, usize, Buffer),
        width: usize,
    ) {
        let mut held = self.take(out);
        let (mut refused, mut first) = (0, None);
        if let Held::Floats(out) = &mut held {
            let (keys, index) = (&self.keys(keys)[..count], &self.indexes[index.place()]);
            let mut outs = out.chunks_exact_mut(width);
            // Of the keys that are under way, by position.
            let mut sectors = [0; UNDER_WAY];
            let mut rows = [NO_ROW; UNDER_WAY];
            for i in 0..count + KEYS_AHEAD {
                if let Some(key) = keys.get(i) {
                    sectors[i % UNDER_WAY] = index.prefetch(*key);
                }
                let found = i.wrapping_sub(KEYS_AHEAD - ROWS_AHEAD);
                if let Some(key) = keys.get(found) {
                    let row = index.find_from(sectors[found % UNDER_WAY], *key);
                    rows[found % UNDER_WAY] = row;
                    if row == NO_ROW {
                        first.get_or_insert((*key, found));
                        refused += 1;
                    } else {
                        self.arena.prefetch(row as usize, width);
                    }
                }
                if i >= KEYS_AHEAD
                    && let Some(out) = outs.next()
                {
                    let row = rows[(i - KEYS_AHEAD) % UNDER_WAY];
                    if row != NO_ROW {
                        out.copy_from_slice(self.arena.row(row as usize, width));
                    }
                }
            }
        }
        if let Some((key, at)) = first {
            self.refuse(stream, call, (REFUSED_KEY, key, at), refused);
        }
        self.put_back(out, held);
    }

    /// Refuses a call that names a row beyond the arena.
    fn rows_are_there(&mut self, stream: Stream, call: u64, rows: Buffer, count: usize) -> bool {
        let most = self.shape.options.rows_max;
        self.numbers_are_below(stream, call, (rows, count), (most, REFUSED_ROW))
    }

    /// Refuses a call for a number that is not below a bound.
    fn numbers_are_below(
        &mut self,
        stream: Stream,
        call: u64,
        (numbers, count): (Buffer, usize),
        (bound, reason): (usize, u32),
    ) -> bool {
        let beyond = |number: &u32| *number as usize >= bound;
        let numbers = &self.words(numbers)[..count];
        let refused = numbers.iter().filter(|number| beyond(number)).count();
        if let Some(at) = numbers.iter().position(beyond) {
            let number = u64::from(numbers[at]);
            self.refuse(stream, call, (reason, number, at), refused);
        }
        refused == 0
    }

    /// Sorts by row and then position. False: the call is refused, for a gradient that is not finite. Those
    /// that are left out are found when they are read to be summed.
    fn plan(&mut self, stream: Stream, call: u64, gradients: &Gradients) -> bool {
        if self.shape.options.non_finite == NonFinite::Reject
            && !self.gradients_are_finite(stream, call, gradients)
        {
            return false;
        }
        self.order.pairs.clear();
        let pairs = self.found.iter().zip(0u64..);
        let pairs = pairs.map(|(row, position)| u64::from(*row) << 32 | position);
        self.order.pairs.extend(pairs);
        self.order.sort(self.shape.row_bits());
        true
    }

    /// Refuses a call with a gradient that is not finite.
    fn gradients_are_finite(&mut self, stream: Stream, call: u64, gradients: &Gradients) -> bool {
        let dim = self.shape.dim;
        let values = &self.floats(gradients.values)[..gradients.count * dim];
        let (mut refused, mut first) = (0, None);
        for (at, gradient) in values.chunks_exact(dim).enumerate() {
            if !all_finite(gradient) {
                first.get_or_insert(at);
                refused += 1;
            }
        }
        if let Some(at) = first {
            let key = self.keys(gradients.keys)[at];
            self.refuse(stream, call, (REFUSED_GRADIENT, key, at), refused);
        }
        first.is_none()
    }

    fn apply(&mut self, stream: Stream, gradients: &Gradients) {
        let held = self.take(gradients.values);
        let mut order = std::mem::take(&mut self.order);
        if let Held::Floats(values) = &held {
            let mut runs = Runs {
                arena: &mut self.arena,
                dirty: &mut self.dirty,
                row_f32s: self.shape.row_f32s,
                pairs: &mut order.pairs,
                read: 0,
                kept: 0,
                leaves_out: self.shape.options.non_finite == NonFinite::Skip,
                values,
                dim: self.shape.dim,
                sum: Vec::new(),
            };
            self.updater.apply_all(gradients.lr, &mut runs);
            let kept = runs.kept;
            self.status[stream.index()].skipped += (order.pairs.len() - kept) as u64;
            order.pairs.truncate(kept);
        }
        self.put_back(gradients.values, held);
        if self.shape.descriptor.metadata.columns() > 0 {
            self.count_pushes(gradients, &order.pairs);
        }
        self.order = order;
    }

    fn count_pushes(&mut self, gradients: &Gradients, sorted: &[u64]) {
        for run in sorted.chunk_by(|a, b| a >> 32 == b >> 32) {
            let sum = |column: Option<Buffer>| {
                let column = column.map(|buffer| self.words(buffer));
                run.iter().fold(0u32, |sum, pair| {
                    sum.saturating_add(column.map_or(0, |column| column[position_of(*pair)]))
                })
            };
            let (shows, clicks) = (sum(gradients.shows), sum(gradients.clicks));
            let row = self.arena.row_mut(row_of(run[0]), self.shape.row_f32s);
            self.layout
                .update_metadata(row, shows, clicks, gradients.step);
        }
    }
}

fn row_of(pair: u64) -> usize {
    narrow(pair >> 32)
}

fn position_of(pair: u64) -> usize {
    narrow(pair & 0xffff_ffff)
}

fn gradient(values: &[f32], pair: u64, dim: usize) -> &[f32] {
    let at = position_of(pair) * dim;
    &values[at..at + dim]
}

/// Yields each row with the sum of its gradients.
struct Runs<'a> {
    arena: &'a mut Arena,
    dirty: &'a mut [bool],
    row_f32s: usize,
    /// In order; those before `read` are done, and of them those that count are the first `kept`.
    pairs: &'a mut [u64],
    read: usize,
    kept: usize,
    /// Whether gradients that are not finite count for nothing.
    leaves_out: bool,
    values: &'a [f32],
    dim: usize,
    sum: Vec<f32>,
}

impl Runs<'_> {
    /// The next run's pairs that count, or none where no run is left. The run may have none that count.
    #[inline]
    fn next_run(&mut self) -> Option<(usize, usize)> {
        let row = row_of(*self.pairs.get(self.read)?);
        let begin = self.kept;
        while let Some(pair) = self.pairs.get(self.read).copied()
            && row_of(pair) == row
        {
            self.read += 1;
            if !self.leaves_out || all_finite(gradient(self.values, pair, self.dim)) {
                self.pairs[self.kept] = pair;
                self.kept += 1;
            }
        }
        Some((row, begin))
    }
}

impl RowVisitor for Runs<'_> {
    #[inline]
    fn next(&mut self) -> Option<(&mut [f32], &[f32])> {
        let (row, begin) = loop {
            let (row, begin) = self.next_run()?;
            if begin < self.kept {
                break (row, begin);
            }
        };
        self.dirty[row] = true;
        if let Some(ahead) = self.pairs.get(self.read + RUNS_AHEAD) {
            self.arena.prefetch(row_of(*ahead), self.row_f32s);
            prefetch(gradient(self.values, *ahead, self.dim));
        }
        let run = &self.pairs[begin..self.kept];
        let arena = self.arena.row_mut(row, self.row_f32s);
        let first = gradient(self.values, run[0], self.dim);
        if run.len() == 1 {
            return Some((arena, first));
        }
        self.sum.clear();
        self.sum.extend_from_slice(first);
        for pair in &run[1..] {
            accumulate(&mut self.sum, gradient(self.values, *pair, self.dim));
        }
        Some((arena, &self.sum))
    }
}
