//! The calls of a table, as launches.

use super::super::args::MergeArgs;
use super::*;

impl<L: Launcher> HbmTable for DevTable<L> {
    fn info(&self) -> Result<DeviceInfo> {
        self.launcher.info()
    }

    fn stats(&mut self) -> Result<HbmStats> {
        let mut skipped = 0;
        for stream in Stream::ALL {
            skipped += self.read_status(stream)?.skipped;
        }
        Ok(HbmStats {
            footprint: self.shape.footprint(),
            buffer_bytes: self.buffer_bytes,
            skipped,
        })
    }

    fn allocate(&mut self, memory: Memory, kind: Kind, count: usize) -> Result<Buffer> {
        let bytes = count.max(1).saturating_mul(kind.bytes());
        let address = self.launcher.allocate(memory, bytes)?;
        let id = narrow(self.buffers.len());
        self.buffers.push(Held { address, memory });
        self.buffer_bytes += bytes as u64;
        Ok(Buffer { id, kind, count })
    }

    fn write(&mut self, stream: Stream, to: Buffer, at: usize, values: Values<'_>) -> Result<()> {
        check_write(to, at, values)?;
        let address = self.address(to).plus((at * to.kind.bytes()) as u64);
        match values {
            Values::Keys(values) => self.launcher.write(stream, address, values),
            Values::Words(values) => self.launcher.write(stream, address, values),
            Values::Floats(values) => self.launcher.write(stream, address, values),
        }
    }

    fn read(
        &mut self,
        stream: Stream,
        from: Buffer,
        at: usize,
        values: ValuesMut<'_>,
    ) -> Result<()> {
        check_read(from, at, &values)?;
        let address = self.address(from).plus((at * from.kind.bytes()) as u64);
        match values {
            ValuesMut::Keys(values) => self.launcher.read(stream, address, values),
            ValuesMut::Words(values) => self.launcher.read(stream, address, values),
            ValuesMut::Floats(values) => self.launcher.read(stream, address, values),
        }
    }

    fn clear(&mut self, stream: Stream, index: Index) -> Result<()> {
        self.clocks.write(stream, index)?;
        let entries = self.entries[index.place()];
        self.launcher
            .fill(stream, entries, 0xff, bytes_of(self.shape.sectors))?;
        self.launcher
            .fill(stream, self.counts[index.place()], 0, 16)
    }

    fn insert(
        &mut self,
        stream: Stream,
        index: Index,
        (keys, rows, count): (Buffer, Buffer, usize),
        failed: Buffer,
    ) -> Result<()> {
        let n = self.shape.check_insert((keys, rows, count), failed)?;
        self.clocks.write(stream, index)?;
        if n == 0 {
            return Ok(());
        }
        let call = self.call(stream);
        let args = IndexArgs {
            keys: self.address(keys),
            rows: self.address(rows),
            failed: self.address(failed),
            failed_max: failed.count as u64,
            n,
            ..self.index_args(stream, index, call)
        };
        let blocks = self.blocks(count);
        self.launcher.launch(stream, "insert", blocks, &args)
    }

    fn inserted(&mut self, stream: Stream, index: Index) -> Result<Inserted> {
        let mut counts = [0u64; 2];
        let at = self.counts[index.place()];
        self.launcher.read(stream, at, &mut counts)?;
        self.clocks.waited(stream);
        let [keys, failed] = counts;
        Ok(Inserted { keys, failed })
    }

    fn get(
        &mut self,
        stream: Stream,
        index: Index,
        keys: Buffer,
        count: usize,
        out: Buffer,
    ) -> Result<()> {
        let how = (self.shape.dim, self.of_weights.get);
        self.get_wide(stream, index, (keys, count, out), how)
    }

    fn get_rows(
        &mut self,
        stream: Stream,
        index: Index,
        keys: Buffer,
        count: usize,
        out: Buffer,
    ) -> Result<()> {
        let how = (self.shape.row_f32s, self.of_rows.get);
        self.get_wide(stream, index, (keys, count, out), how)
    }

    fn place(&mut self, stream: Stream, rows: Buffer, packed: Buffer, count: usize) -> Result<()> {
        let n = self.shape.check_place(rows, packed, count)?;
        let width = self.shape.row_f32s;
        if n == 0 {
            return Ok(());
        }
        let call = self.call(stream);
        let (numbers, from) = (self.address(rows), self.held(packed));
        let all = RowsArgs {
            rows: numbers,
            packed: from.address,
            ..self.rows_args(stream, call, n)
        };
        self.check_rows(stream, &all)?;
        if from.memory == Memory::Device {
            let blocks = self.blocks(count);
            return self
                .launcher
                .launch(stream, self.of_rows.place, blocks, &all);
        }
        // Through the staging memory: the copy engine reads the bus, the kernel only device memory. The
        // stream's order keeps a copy behind the kernel that reads what was there before.
        self.take_scratch(stream)?;
        let chunk = (self.shape.options.staging_bytes / (4 * width)).max(1);
        for first in (0..count).step_by(chunk) {
            let rows_here = chunk.min(count - first);
            let source = from.address.plus((first * width * 4) as u64);
            self.launcher
                .copy(stream, source, self.staging, rows_here * width * 4)?;
            let args = RowsArgs {
                rows: numbers.plus(first as u64 * 4),
                packed: self.staging,
                ..self.rows_args(stream, call, narrow(rows_here))
            };
            let blocks = self.blocks(rows_here);
            self.launcher
                .launch(stream, self.of_rows.place, blocks, &args)?;
        }
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
        self.take_scratch(stream)?;
        let call = self.call(stream);
        let found = self.status(stream).plus(Status::PACKED_AT);
        self.launcher.fill(stream, found, 0, 8)?;
        if n == 0 {
            return Ok(());
        }
        let listed = RowsArgs {
            rows: self.address(rows),
            ..self.rows_args(stream, call, n)
        };
        self.check_rows(stream, &listed)?;
        let sort = SortArgs {
            keys_in: self.address(rows),
            keys_out: self.scratch.keys[1],
            positions_out: self.address(positions),
            ends: found,
            parts: 1,
            ..self.sort_args(stream, call, n)
        };
        self.sort_pass(stream, ("count_by_dirty", "move_by_dirty"), &sort)?;
        let args = RowsArgs {
            rows: self.scratch.keys[1],
            count: found,
            packed: self.address(packed),
            ..listed
        };
        let blocks = self.blocks(count);
        self.launcher
            .launch(stream, self.of_rows.pack, blocks, &args)
    }

    fn packed(&mut self, stream: Stream) -> Result<usize> {
        let status = self.read_status(stream)?;
        status.refusal()?;
        Ok(narrow(status.packed))
    }

    fn accumulate(&mut self, stream: Stream, index: Index, gradients: Gradients) -> Result<()> {
        let n = self.shape.check_gradients(&gradients)?;
        self.clocks.read(stream, index)?;
        if n == 0 {
            return Ok(());
        }
        self.take_scratch(stream)?;
        let call = self.call(stream);
        let look_up = IndexArgs {
            keys: self.address(gradients.keys),
            found: self.scratch.keys[0],
            n,
            ..self.index_args(stream, index, call)
        };
        let blocks = self.blocks(gradients.count);
        self.launcher.launch(stream, "rows_of", blocks, &look_up)?;
        let mut args = self.update_args(stream, call, n, &gradients);
        if self.shape.options.non_finite == NonFinite::Reject {
            let blocks = self.blocks(gradients.count * 32);
            self.launcher
                .launch(stream, "check_gradients", blocks, &args)?;
        }
        let half = self.sort_rows(stream, call, n)?;
        args.rows = self.scratch.keys[half];
        args.positions = self.scratch.positions[half];
        args.looked_at = self.scratch.positions[1 - half];
        self.apply(stream, &args)
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
        self.take_scratch(stream)?;
        let call = self.call(stream);
        let args = SortArgs {
            keys_in: self.address(keys),
            keys_out: self.address(out),
            positions_out: self.address(positions),
            ends: self.address(ends),
            parts: narrow(parts),
            ..self.sort_args(stream, call, n)
        };
        self.sort_pass(stream, ("count_by_owner", "move_by_owner"), &args)
    }

    fn merge(
        &mut self,
        stream: Stream,
        positions: Buffer,
        (from, to): (Buffer, Buffer),
        (count, width): (usize, usize),
    ) -> Result<()> {
        let n = check_merge(positions, (from, to), (count, width))?;
        if n == 0 {
            return Ok(());
        }
        let args = MergeArgs {
            status: self.status(stream),
            call: self.call(stream),
            positions: self.address(positions),
            from: self.address(from),
            to: self.address(to),
            n,
            width: narrow_count(width)?,
        };
        let blocks = self.blocks(count * 32);
        self.launcher.launch(stream, "merge", blocks, &args)
    }

    fn order(&mut self, before: Stream, then: Stream) -> Result<()> {
        if before != then {
            self.launcher.order(before, then)?;
        }
        self.clocks.order(before, then);
        Ok(())
    }

    fn wait(&mut self, stream: Stream) -> Result<()> {
        self.read_status(stream)?.refusal()
    }

    fn forget_refusal(&mut self, stream: Stream) -> Result<()> {
        let at = self.status(stream);
        self.launcher.fill(stream, at, 0, 32)
    }

    fn record_get(
        &mut self,
        stream: Stream,
        index: Index,
        keys: Buffer,
        count: usize,
        out: Buffer,
    ) -> Result<GraphId> {
        self.launcher.begin_capture(stream)?;
        let given = self.get(stream, index, keys, count, out);
        let graph = self.launcher.end_capture(stream);
        given?;
        let graph = graph?;
        self.recorded.push((graph, stream, index));
        Ok(graph)
    }

    fn replay(&mut self, stream: Stream, graph: GraphId) -> Result<()> {
        let mut all = self.recorded.iter();
        let Some((_, of, index)) = all.find(|(known, ..)| *known == graph).copied() else {
            return Err(graph.unknown());
        };
        self.clocks.replay(graph, (of, index), stream)?;
        self.launcher.replay(stream, graph)
    }

    fn mark(&mut self, stream: Stream) -> Result<Mark> {
        self.launcher.mark(stream)
    }

    fn seconds(&mut self, from: Mark, to: Mark) -> Result<f64> {
        self.launcher.seconds(from, to)
    }

    fn copy(&mut self, stream: Stream, from: Buffer, to: Buffer, count: usize) -> Result<()> {
        check_copy(from, to, count)?;
        let bytes = count * from.kind.bytes();
        self.launcher
            .copy(stream, self.address(from), self.address(to), bytes)
    }

    fn probe(&mut self, stream: Stream, buffer: Buffer, accesses: u32, writes: bool) -> Result<()> {
        check(buffer, Kind::Floats, 8, "buffer")?;
        let call = self.call(stream);
        let at = self.address(buffer);
        let args = RowsArgs {
            call: call << 32,
            arena: at,
            packed: at,
            n: narrow_count(buffer.count / 8)?,
            rows_max: accesses,
            ..RowsArgs::default()
        };
        let kernel = if writes { "probe_write" } else { "probe_read" };
        let blocks = self.blocks(accesses as usize);
        self.launcher.launch(stream, kernel, blocks, &args)
    }
}
