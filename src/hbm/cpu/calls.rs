//! The calls of a table, done at once.

use super::*;
use crate::units::{mix64, range_of};

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
        let what = "a buffer";
        self.buffers.push(match kind {
            Kind::Keys => Held::Keys(filled(0, count, what)?),
            Kind::Words => Held::Words(filled(0, count, what)?),
            Kind::Floats => Held::Floats(filled(0.0, count, what)?),
        });
        Ok(Buffer { id, kind, count })
    }

    fn write(&mut self, _stream: Stream, to: Buffer, at: usize, values: Values<'_>) -> Result<()> {
        let count = check_write(to, at, values)?;
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
        let count = check_read(from, at, &values)?;
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
        self.shape.check_insert((keys, rows, count), failed)?;
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
        self.shape.check_place(rows, packed, count)?;
        let width = self.shape.row_f32s;
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
                self.arena.row_mut(row, width).copy_from_slice(from);
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
        let n = self.shape.check_pack((rows, count), (packed, positions))?;
        let width = self.shape.row_f32s;
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
                to[found * width..(found + 1) * width].copy_from_slice(self.arena.row(row, width));
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
            self.apply(stream, &gradients);
        }
        Ok(())
    }

    fn split(
        &mut self,
        stream: Stream,
        (keys, count, parts): (Buffer, usize, usize),
        (out, positions, ends): (Buffer, Buffer, Buffer),
    ) -> Result<()> {
        let n = self
            .shape
            .check_split((keys, count, parts), (out, positions, ends))?;
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
        stream: Stream,
        positions: Buffer,
        (from, to): (Buffer, Buffer),
        (count, width): (usize, usize),
    ) -> Result<()> {
        check_merge(positions, (from, to), (count, width))?;
        if count == 0 {
            return Ok(());
        }
        let Some(call) = self.call(stream) else {
            return Ok(());
        };
        if !self.numbers_are_below(stream, call, (positions, count), (count, REFUSED_POSITION)) {
            return Ok(());
        }
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
        self.status[stream.index()].refusal()
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
        self.shape.check_get((keys, count, out), self.shape.dim)?;
        self.clocks.read(stream, index)?;
        self.calls[stream.index()] += u64::from(count > 0);
        let id = narrow(self.graphs.len());
        self.graphs.push(Recorded {
            call: self.calls[stream.index()],
            stream,
            index,
            keys,
            count,
            out,
        });
        Ok(GraphId(id))
    }

    fn replay(&mut self, stream: Stream, graph: GraphId) -> Result<()> {
        let Some(recorded) = self.graphs.get(graph.0 as usize).copied() else {
            return Err(graph.unknown());
        };
        self.clocks
            .replay(graph, (recorded.stream, recorded.index), stream)?;
        let Recorded {
            call,
            index,
            keys,
            count,
            out,
            ..
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
        check_copy(from, to, count)?;
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
