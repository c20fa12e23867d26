//! The same table in plain Rust: the oracle of the kernels, and the tier of a machine without a GPU.
//!
//! Invariants:
//! - Rows change by [`Updater::apply_all`], as a store's do.
//! - Calls are done when they return; what a device would say later is kept and said later.

use std::time::Instant;

use super::args::{REFUSED_GRADIENT, REFUSED_KEY, REFUSED_ROW, Status};
use super::clocks::Clocks;
use super::index::{CpuIndex, NO_ROW, Outcome};
use super::launcher::{DeviceInfo, GraphId, Mark, Memory, Stream};
use super::shape::{HbmOptions, Shape, check, check_apart, check_parts, option, refusal};
use super::{Buffer, Gradients, HbmStats, HbmTable, Index, Inserted, Kind, Values, ValuesMut};
use crate::error::Result;
use crate::options::{NonFinite, TableDescriptor};
use crate::row::{RowLayout, RowVisitor, Updater, accumulate, all_finite};
use crate::units::{mix64, narrow, range_of};

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
    /// `[rows_max, stride]`
    arena: Vec<f32>,
    dirty: Vec<bool>,
    indexes: [CpuIndex; 2],
    inserted: [Inserted; 2],
    buffers: Vec<Held>,
    clocks: Clocks,
    calls: [u64; 2],
    status: [Status; 2],
    graphs: Vec<Recorded>,
    marks: Vec<Instant>,
    /// Scratch: rows of a call's keys; (row, position) of those that count.
    found: Vec<u32>,
    sorted: Vec<u64>,
}

impl CpuTable {
    /// A table with empty indexes; rows that were never placed are zero.
    ///
    /// # Errors
    /// `InvalidArgument` for options out of range.
    pub fn new(descriptor: &TableDescriptor, options: &HbmOptions) -> Result<CpuTable> {
        Ok(CpuTable::of(Shape::new(descriptor, options)?))
    }

    pub(super) fn of(shape: Shape) -> CpuTable {
        let rows = shape.options.rows_max;
        CpuTable {
            layout: RowLayout::new(&shape.descriptor),
            updater: Updater::new(&shape.descriptor, &shape.options.hyper),
            arena: vec![0.0; rows * shape.stride],
            dirty: vec![false; rows],
            indexes: [0; 2].map(|_| CpuIndex::new(shape.sectors)),
            inserted: [Inserted::default(); 2],
            buffers: Vec::new(),
            clocks: Clocks::default(),
            calls: [0; 2],
            status: [Status::default(); 2],
            graphs: Vec::new(),
            marks: Vec::new(),
            found: Vec::new(),
            sorted: Vec::new(),
            shape,
        }
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
        found.extend(keys.iter().map(|key| index.find(*key)));
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
        check(keys, Kind::Keys, count, "keys")?;
        check(out, Kind::Floats, count * width, "out")?;
        check_apart(&[out], &[keys])?;
        self.clocks.read(stream, index)?;
        if count == 0 {
            return Ok(());
        }
        if let Some(call) = self.call(stream) {
            self.gather(stream, call, index, (keys, count, out), width);
        }
        Ok(())
    }

    fn gather(
        &mut self,
        stream: Stream,
        call: u64,
        index: Index,
        (keys, count, out): (Buffer, usize, Buffer),
        width: usize,
    ) {
        self.look_up(stream, call, index, (keys, count));
        let mut held = self.take(out);
        if let Held::Floats(out) = &mut held {
            for (row, out) in self.found.iter().zip(out.chunks_exact_mut(width)) {
                if *row != NO_ROW {
                    let at = *row as usize * self.shape.stride;
                    out.copy_from_slice(&self.arena[at..at + width]);
                }
            }
        }
        self.put_back(out, held);
    }

    /// Refuses a call that names a row beyond the arena.
    fn rows_are_there(&mut self, stream: Stream, call: u64, rows: Buffer, count: usize) -> bool {
        let most = self.shape.options.rows_max;
        let beyond = |row: &u32| *row as usize >= most;
        let rows = &self.words(rows)[..count];
        let refused = rows.iter().filter(|row| beyond(row)).count();
        if let Some(at) = rows.iter().position(beyond) {
            let row = u64::from(rows[at]);
            self.refuse(stream, call, (REFUSED_ROW, row, at), refused);
        }
        refused == 0
    }

    /// Leaves out what is not finite, sorts by row and then position. False: the call is refused.
    fn plan(&mut self, stream: Stream, call: u64, gradients: &Gradients) -> bool {
        let dim = self.shape.dim;
        let non_finite = self.shape.options.non_finite;
        let mut sorted = std::mem::take(&mut self.sorted);
        sorted.clear();
        let pairs = self.found.iter().zip(0u64..);
        sorted.extend(pairs.map(|(row, position)| u64::from(*row) << 32 | position));
        if non_finite != NonFinite::Apply {
            let values = self.floats(gradients.values);
            sorted.retain(|pair| all_finite(gradient(values, *pair, dim)));
        }
        let left_out = gradients.count - sorted.len();
        if non_finite == NonFinite::Reject && left_out > 0 {
            let values = self.floats(gradients.values);
            let bad = |at: &usize| !all_finite(&values[at * dim..(at + 1) * dim]);
            let at = (0..gradients.count).find(bad).unwrap_or(0);
            self.refuse(stream, call, (REFUSED_GRADIENT, 0, at), left_out);
        } else {
            self.status[stream.index()].skipped += left_out as u64;
            sorted.sort_unstable();
        }
        self.sorted = sorted;
        non_finite != NonFinite::Reject || left_out == 0
    }

    fn apply(&mut self, gradients: &Gradients) {
        let held = self.take(gradients.values);
        let sorted = std::mem::take(&mut self.sorted);
        if let Held::Floats(values) = &held {
            let mut visitor = Runs {
                arena: &mut self.arena,
                dirty: &mut self.dirty,
                stride: self.shape.stride,
                row_f32s: self.shape.row_f32s,
                rest: &sorted,
                values,
                dim: self.shape.dim,
                sum: Vec::new(),
            };
            self.updater.apply_all(gradients.lr, &mut visitor);
        }
        self.put_back(gradients.values, held);
        if self.shape.descriptor.metadata.columns() > 0 {
            self.count_pushes(gradients, &sorted);
        }
        self.sorted = sorted;
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
            let at = row_of(run[0]) * self.shape.stride;
            let row = &mut self.arena[at..at + self.shape.row_f32s];
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
    arena: &'a mut [f32],
    dirty: &'a mut [bool],
    stride: usize,
    row_f32s: usize,
    rest: &'a [u64],
    values: &'a [f32],
    dim: usize,
    sum: Vec<f32>,
}

impl RowVisitor for Runs<'_> {
    #[inline]
    fn next(&mut self) -> Option<(&mut [f32], &[f32])> {
        let first = *self.rest.first()?;
        let row = row_of(first);
        let same = self.rest.iter().take_while(|pair| row_of(**pair) == row);
        let (run, rest) = self.rest.split_at(same.count());
        self.rest = rest;
        self.dirty[row] = true;
        let at = row * self.stride;
        let arena = &mut self.arena[at..at + self.row_f32s];
        let first = gradient(self.values, first, self.dim);
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

impl HbmTable for CpuTable {
    fn info(&self) -> Result<DeviceInfo> {
        Ok(DeviceInfo {
            name: "cpu".to_owned(),
            multiprocessors: 1,
            ..DeviceInfo::default()
        })
    }

    fn stats(&mut self) -> Result<HbmStats> {
        let bytes = self.buffers.iter().map(|held| match held {
            Held::Keys(values) => values.len() * 8,
            Held::Words(values) => values.len() * 4,
            Held::Floats(values) => values.len() * 4,
        });
        Ok(HbmStats {
            footprint: self.shape.footprint(),
            buffer_bytes: bytes.sum::<usize>() as u64,
            skipped: self.status.iter().map(|status| status.skipped).sum(),
        })
    }

    fn allocate(&mut self, _memory: Memory, kind: Kind, count: usize) -> Result<Buffer> {
        let id = narrow(self.buffers.len());
        self.buffers.push(match kind {
            Kind::Keys => Held::Keys(vec![0; count]),
            Kind::Words => Held::Words(vec![0; count]),
            Kind::Floats => Held::Floats(vec![0.0; count]),
        });
        Ok(Buffer { id, kind, count })
    }

    fn write(&mut self, _stream: Stream, to: Buffer, at: usize, values: Values<'_>) -> Result<()> {
        let (kind, count) = match values {
            Values::Keys(values) => (Kind::Keys, values.len()),
            Values::Words(values) => (Kind::Words, values.len()),
            Values::Floats(values) => (Kind::Floats, values.len()),
        };
        check(to, kind, at.saturating_add(count), "buffer")?;
        match (&mut self.buffers[to.id as usize], values) {
            (Held::Keys(to), Values::Keys(values)) => to[at..at + count].copy_from_slice(values),
            (Held::Words(to), Values::Words(values)) => to[at..at + count].copy_from_slice(values),
            (Held::Floats(to), Values::Floats(values)) => {
                to[at..at + count].copy_from_slice(values);
            }
            _ => {}
        }
        Ok(())
    }

    fn read(
        &mut self,
        _stream: Stream,
        from: Buffer,
        at: usize,
        values: ValuesMut<'_>,
    ) -> Result<()> {
        let (kind, count) = match &values {
            ValuesMut::Keys(values) => (Kind::Keys, values.len()),
            ValuesMut::Words(values) => (Kind::Words, values.len()),
            ValuesMut::Floats(values) => (Kind::Floats, values.len()),
        };
        check(from, kind, at.saturating_add(count), "buffer")?;
        match values {
            ValuesMut::Keys(values) => values.copy_from_slice(&self.keys(from)[at..at + count]),
            ValuesMut::Words(values) => values.copy_from_slice(&self.words(from)[at..at + count]),
            ValuesMut::Floats(values) => values.copy_from_slice(&self.floats(from)[at..at + count]),
        }
        Ok(())
    }

    fn clear(&mut self, stream: Stream, index: Index) -> Result<()> {
        self.clocks.write(stream, index)?;
        self.indexes[index.place()].clear();
        self.inserted[index.place()] = Inserted::default();
        Ok(())
    }

    fn insert(
        &mut self,
        stream: Stream,
        index: Index,
        (keys, rows, count): (Buffer, Buffer, usize),
        failed: Buffer,
    ) -> Result<()> {
        check(keys, Kind::Keys, count, "keys")?;
        check(rows, Kind::Words, count, "rows")?;
        check(failed, Kind::Keys, 0, "failed")?;
        check_apart(&[failed], &[keys, rows])?;
        self.clocks.write(stream, index)?;
        if count == 0 || self.call(stream).is_none() {
            return Ok(());
        }
        let mut held = self.take(failed);
        let place = index.place();
        for i in 0..count {
            let (key, row) = (self.keys(keys)[i], self.words(rows)[i]);
            let outcome = match (row as usize) < self.shape.options.rows_max {
                true => self.indexes[place].insert(key, row),
                false => Outcome::Failed,
            };
            match outcome {
                Outcome::Inserted => self.inserted[place].keys += 1,
                Outcome::Present => {}
                Outcome::Failed => {
                    let at: usize = narrow(self.inserted[place].failed);
                    if let Held::Keys(list) = &mut held
                        && let Some(place) = list.get_mut(at)
                    {
                        *place = key;
                    }
                    self.inserted[place].failed += 1;
                }
            }
        }
        self.put_back(failed, held);
        Ok(())
    }

    fn inserted(&mut self, stream: Stream, index: Index) -> Result<Inserted> {
        self.clocks.waited(stream);
        Ok(self.inserted[index.place()])
    }

    fn get(
        &mut self,
        stream: Stream,
        index: Index,
        keys: Buffer,
        count: usize,
        out: Buffer,
    ) -> Result<()> {
        self.get_wide(stream, index, (keys, count, out), self.shape.dim)
    }

    fn get_rows(
        &mut self,
        stream: Stream,
        index: Index,
        keys: Buffer,
        count: usize,
        out: Buffer,
    ) -> Result<()> {
        self.get_wide(stream, index, (keys, count, out), self.shape.row_f32s)
    }

    fn place(&mut self, stream: Stream, rows: Buffer, packed: Buffer, count: usize) -> Result<()> {
        let width = self.shape.row_f32s;
        check(rows, Kind::Words, count, "rows")?;
        check(packed, Kind::Floats, count * width, "packed")?;
        if count == 0 {
            return Ok(());
        }
        let Some(call) = self.call(stream) else {
            return Ok(());
        };
        if !self.rows_are_there(stream, call, rows, count) {
            return Ok(());
        }
        let held = self.take(packed);
        if let Held::Floats(packed) = &held {
            for (i, from) in packed.chunks_exact(width).take(count).enumerate() {
                let row = self.words(rows)[i] as usize;
                let at = row * self.shape.stride;
                self.arena[at..at + width].copy_from_slice(from);
                self.dirty[row] = false;
            }
        }
        self.put_back(packed, held);
        Ok(())
    }

    fn pack(
        &mut self,
        stream: Stream,
        rows: Buffer,
        count: usize,
        packed: Buffer,
        positions: Buffer,
    ) -> Result<()> {
        let n = self.shape.check_batch(count)?;
        let width = self.shape.row_f32s;
        check(rows, Kind::Words, count, "rows")?;
        check(packed, Kind::Floats, count * width, "packed")?;
        check(positions, Kind::Words, count, "positions")?;
        check_apart(&[packed, positions], &[rows])?;
        let call = self.call(stream);
        self.status[stream.index()].packed = 0;
        let Some(call) = call.filter(|_| n > 0) else {
            return Ok(());
        };
        if !self.rows_are_there(stream, call, rows, count) {
            return Ok(());
        }
        let (mut to, mut at) = (self.take(packed), self.take(positions));
        let mut found = 0;
        if let (Held::Floats(to), Held::Words(at)) = (&mut to, &mut at) {
            for position in 0..n {
                let row = self.words(rows)[position as usize] as usize;
                if !self.dirty[row] {
                    continue;
                }
                let from = row * self.shape.stride;
                to[found * width..(found + 1) * width]
                    .copy_from_slice(&self.arena[from..from + width]);
                at[found] = position;
                self.dirty[row] = false;
                found += 1;
            }
        }
        self.put_back(packed, to);
        self.put_back(positions, at);
        self.status[stream.index()].packed = found as u64;
        Ok(())
    }

    fn packed(&mut self, stream: Stream) -> Result<usize> {
        self.wait(stream)?;
        Ok(narrow(self.status[stream.index()].packed))
    }

    fn accumulate(&mut self, stream: Stream, index: Index, gradients: Gradients) -> Result<()> {
        let n = self.shape.check_gradients(&gradients)?;
        self.clocks.read(stream, index)?;
        if n == 0 {
            return Ok(());
        }
        if let Some(call) = self.call(stream)
            && self.look_up(stream, call, index, (gradients.keys, gradients.count))
            && self.plan(stream, call, &gradients)
        {
            self.apply(&gradients);
        }
        Ok(())
    }

    fn split(
        &mut self,
        stream: Stream,
        (keys, count, parts): (Buffer, usize, usize),
        (out, positions, ends): (Buffer, Buffer, Buffer),
    ) -> Result<()> {
        let n = self.shape.check_batch(count)?;
        check_parts(parts)?;
        check(keys, Kind::Keys, count, "keys")?;
        check(out, Kind::Keys, count, "out")?;
        check(positions, Kind::Words, count, "positions")?;
        check(ends, Kind::Keys, parts, "ends")?;
        check_apart(&[out, positions, ends], &[keys])?;
        if self.call(stream).is_none() {
            return Ok(());
        }
        let given = &self.keys(keys)[..count];
        let mut order: Vec<(usize, u32)> = given
            .iter()
            .zip(0..n)
            .map(|(key, position)| (range_of(mix64(*key), parts), position))
            .collect();
        order.sort_unstable();
        let sorted: Vec<u64> = order.iter().map(|(_, p)| given[*p as usize]).collect();
        let last = |part: usize| order.partition_point(|(owner, _)| *owner <= part) as u64;
        let ending: Vec<u64> = (0..parts).map(last).collect();
        if let Held::Keys(out) = &mut self.buffers[out.id as usize] {
            out[..count].copy_from_slice(&sorted);
        }
        if let Held::Keys(ends) = &mut self.buffers[ends.id as usize] {
            ends[..parts].copy_from_slice(&ending);
        }
        if let Held::Words(positions) = &mut self.buffers[positions.id as usize] {
            for (to, (_, position)) in positions.iter_mut().zip(order) {
                *to = position;
            }
        }
        Ok(())
    }

    fn merge(
        &mut self,
        _stream: Stream,
        positions: Buffer,
        (from, to): (Buffer, Buffer),
        (count, width): (usize, usize),
    ) -> Result<()> {
        check(positions, Kind::Words, count, "positions")?;
        check(from, Kind::Floats, count.saturating_mul(width), "from")?;
        check(to, Kind::Floats, count.saturating_mul(width), "to")?;
        check_apart(&[to], &[positions, from])?;
        let mut held = self.take(to);
        if let Held::Floats(to) = &mut held {
            let rows = self.floats(from).chunks_exact(width.max(1));
            for (at, row) in self.words(positions)[..count].iter().zip(rows) {
                let at = *at as usize * width;
                to[at..at + width].copy_from_slice(row);
            }
        }
        self.put_back(to, held);
        Ok(())
    }

    fn order(&mut self, before: Stream, then: Stream) -> Result<()> {
        self.clocks.order(before, then);
        Ok(())
    }

    fn wait(&mut self, stream: Stream) -> Result<()> {
        self.clocks.waited(stream);
        refusal(&self.status[stream.index()])
    }

    fn forget_refusal(&mut self, stream: Stream) -> Result<()> {
        let status = &mut self.status[stream.index()];
        *status = Status {
            skipped: status.skipped,
            packed: status.packed,
            ..Status::default()
        };
        Ok(())
    }

    fn record_get(
        &mut self,
        stream: Stream,
        index: Index,
        keys: Buffer,
        count: usize,
        out: Buffer,
    ) -> Result<GraphId> {
        check(keys, Kind::Keys, count, "keys")?;
        check(out, Kind::Floats, count * self.shape.dim, "out")?;
        check_apart(&[out], &[keys])?;
        self.clocks.read(stream, index)?;
        self.calls[stream.index()] += 1;
        let id = narrow(self.graphs.len());
        self.graphs.push(Recorded {
            call: self.calls[stream.index()],
            index,
            keys,
            count,
            out,
        });
        Ok(GraphId(id))
    }

    fn replay(&mut self, stream: Stream, graph: GraphId) -> Result<()> {
        let Some(recorded) = self.graphs.get(graph.0 as usize).copied() else {
            let why = "nothing was recorded under this number".to_owned();
            return Err(option("graph", &graph.0, why));
        };
        let Recorded {
            call,
            index,
            keys,
            count,
            out,
        } = recorded;
        if self.status[stream.index()].call == 0 {
            self.gather(stream, call, index, (keys, count, out), self.shape.dim);
        }
        Ok(())
    }

    fn mark(&mut self, _stream: Stream) -> Result<Mark> {
        self.marks.push(Instant::now());
        Ok(Mark(narrow(self.marks.len() - 1)))
    }

    fn seconds(&mut self, from: Mark, to: Mark) -> Result<f64> {
        let at = |mark: Mark| {
            let known = self.marks.get(mark.0 as usize).copied();
            known.ok_or_else(|| option("mark", &mark.0, "no such mark was taken".to_owned()))
        };
        Ok(at(to)?.saturating_duration_since(at(from)?).as_secs_f64())
    }

    fn copy(&mut self, _stream: Stream, from: Buffer, to: Buffer, count: usize) -> Result<()> {
        check(from, from.kind, count, "from")?;
        check(to, from.kind, count, "to")?;
        check_apart(&[to], &[from])?;
        let mut held = self.take(to);
        match (&mut held, &self.buffers[from.id as usize]) {
            (Held::Keys(to), Held::Keys(from)) => to[..count].copy_from_slice(&from[..count]),
            (Held::Words(to), Held::Words(from)) => to[..count].copy_from_slice(&from[..count]),
            (Held::Floats(to), Held::Floats(from)) => to[..count].copy_from_slice(&from[..count]),
            _ => {}
        }
        self.put_back(to, held);
        Ok(())
    }

    fn probe(&mut self, stream: Stream, buffer: Buffer, accesses: u32, writes: bool) -> Result<()> {
        check(buffer, Kind::Floats, 8, "buffer")?;
        self.calls[stream.index()] += 1;
        let seed = self.calls[stream.index()] << 32;
        if let Held::Floats(floats) = &mut self.buffers[buffer.id as usize] {
            let (sectors, _) = floats.as_chunks_mut::<8>();
            let mut sum = 0.0;
            for i in 0..accesses {
                let at = range_of(mix64(seed + u64::from(i)), sectors.len());
                match writes {
                    true => sectors[at] = [i as f32; 8],
                    false => sum += sectors[at].iter().sum::<f32>(),
                }
            }
            std::hint::black_box(sum);
        }
        Ok(())
    }
}
