//! One host code for all devices: memory, launches, order. What the kernels compute is in `kernels/`.
//!
//! Invariants:
//! - All memory of the table is taken when it is opened; a call takes none.
//! - Scratch memory has one user at a time: a call on the other stream is ordered behind the last one.
//! - Grids are bounded by the device, loops stride; no size has to fit a launch.

use super::args::{Address, IndexArgs, RowsArgs, SortArgs, THREADS, UpdateArgs};
use super::checks::{check, check_copy, check_merge, check_read, check_write, narrow_count};
use super::clocks::Clocks;
use super::index::bytes_of;
use super::launcher::{DeviceInfo, GraphId, Launcher, Mark, Memory, Stream};
use super::shape::{DIGITS, LONG_RUN, SMALL_BYTES, Shape, option};
use super::status::Status;
use super::{
    Buffer, Gradients, HbmStats, HbmTable, Index, Inserted, Kind, Values, ValuesMut, kernels,
};
use crate::error::{Error, Result};
use crate::options::{NonFinite, Optimizer};
use crate::units::narrow;

mod calls;

/// Blocks of a launch at most, by multiprocessor.
const BLOCKS_EACH: usize = 16;
/// Blocks of a launch at most on a device without multiprocessors, the emulator: under ThreadSanitizer each of their
/// threads takes 15 of the 65 530 mappings that a process may have.
const BLOCKS_EMULATED: usize = 12;

/// The caller's memory.
#[derive(Clone, Copy, Debug)]
struct Held {
    address: Address,
    memory: Memory,
}

/// Areas of scratch memory, in the order of `Shape::scratch`.
#[derive(Clone, Copy, Debug, Default)]
struct Scratch {
    keys: [Address; 2],
    positions: [Address; 2],
    counts: Address,
    totals: Address,
    long_starts: Address,
    long_sums: Address,
    long_extra: Address,
    /// Status records by stream, counters of both indexes, counters of an accumulate.
    small: Address,
}

/// Names of the kernels that copy rows of one width.
#[derive(Clone, Copy, Debug)]
struct RowKernels {
    get: &'static str,
    pack: &'static str,
    place: &'static str,
}

/// Rows in the memory of a device.
#[derive(Debug)]
pub struct DevTable<L: Launcher> {
    launcher: L,
    shape: Shape,
    blocks_max: usize,
    arena: Address,
    dirty: Address,
    entries: [Address; 2],
    /// Behind each index: how many were inserted, how many failed.
    counts: [Address; 2],
    scratch: Scratch,
    /// The stream that used the scratch memory last.
    scratch_of: Stream,
    staging: Address,
    buffers: Vec<Held>,
    buffer_bytes: u64,
    clocks: Clocks,
    /// What was recorded: the stream, and the index that is read.
    recorded: Vec<(GraphId, Stream, Index)>,
    calls: [u64; 2],
    of_weights: RowKernels,
    of_rows: RowKernels,
    update: &'static str,
    /// A lane sees all of a gradient that it needs to say whether it is finite.
    looks: bool,
}

impl<L: Launcher> DevTable<L> {
    /// A table with empty indexes; its rows are unspecified.
    ///
    /// # Errors
    /// `DeviceMemory`, naming all that is needed, before anything is taken; `Device`.
    pub fn new(mut launcher: L, shape: Shape) -> Result<DevTable<L>> {
        let footprint = shape.footprint();
        let info = launcher.info()?;
        if footprint.total() > info.free_bytes {
            return Err(Error::DeviceMemory {
                device: launcher.device().to_owned(),
                what: "rows and indexes",
                asked_bytes: footprint.total(),
                free_bytes: Some(info.free_bytes),
            });
        }
        let rows = shape.options.rows_max;
        let mut device = |bytes: usize| launcher.allocate(Memory::Device, bytes);
        let arena = device(rows * shape.stride * 4)?;
        let dirty = device(rows)?;
        let index_bytes = bytes_of(shape.sectors);
        let entries = [device(index_bytes)?, device(index_bytes)?];
        let areas = shape.scratch().map(&mut device);
        let mut addresses = [Address::NONE; 10];
        for (address, area) in addresses.iter_mut().zip(areas) {
            *address = area?;
        }
        let [k0, k1, p0, p1, counts, totals, starts, sums, extra, small] = addresses;
        let scratch = Scratch {
            keys: [k0, k1],
            positions: [p0, p1],
            counts,
            totals,
            long_starts: starts,
            long_sums: sums,
            long_extra: extra,
            small,
        };
        let staging = device(shape.options.staging_bytes)?;
        let counts_at = small.plus(2 * Status::BYTES as u64);
        let (update, looks) = update_kernel(shape.descriptor.optimizer, shape.dim)?;
        let mut table = DevTable {
            blocks_max: match info.multiprocessors {
                0 => BLOCKS_EMULATED,
                count => count as usize * BLOCKS_EACH,
            },
            arena,
            dirty,
            entries,
            counts: [counts_at, counts_at.plus(16)],
            scratch,
            scratch_of: Stream::Train,
            staging,
            buffers: Vec::new(),
            buffer_bytes: 0,
            clocks: Clocks::default(),
            recorded: Vec::new(),
            calls: [0; 2],
            of_weights: RowKernels::of(shape.dim)?,
            of_rows: RowKernels::of(shape.row_f32s)?,
            update,
            looks,
            launcher,
            shape,
        };
        table.empty()?;
        Ok(table)
    }

    fn empty(&mut self) -> Result<()> {
        let stream = Stream::Train;
        self.launcher
            .fill(stream, self.scratch.small, 0, SMALL_BYTES)?;
        self.launcher
            .fill(stream, self.dirty, 0, self.shape.options.rows_max)?;
        for index in [Index::First, Index::Second] {
            self.clear(stream, index)?;
        }
        self.wait(stream)
    }

    fn address(&self, buffer: Buffer) -> Address {
        self.held(buffer).address
    }

    fn held(&self, buffer: Buffer) -> Held {
        self.buffers[buffer.id as usize]
    }

    fn address_of(&self, buffer: Option<Buffer>) -> Address {
        buffer.map_or(Address::NONE, |buffer| self.address(buffer))
    }

    fn status(&self, stream: Stream) -> Address {
        self.scratch
            .small
            .plus((stream.index() * Status::BYTES) as u64)
    }

    fn read_status(&mut self, stream: Stream) -> Result<Status> {
        let mut words = [0u64; Status::WORDS];
        let at = self.status(stream);
        self.launcher.read(stream, at, &mut words)?;
        self.clocks.waited(stream);
        Ok(Status::of(words))
    }

    fn call(&mut self, stream: Stream) -> u64 {
        self.calls[stream.index()] += 1;
        self.calls[stream.index()]
    }

    /// Blocks that give each of `threads` one thread, as far as the device runs them beside each other.
    fn blocks(&self, threads: usize) -> u32 {
        let blocks = threads.div_ceil(THREADS as usize);
        narrow(blocks.clamp(1, self.blocks_max))
    }

    /// The stream uses the scratch memory from here on.
    fn take_scratch(&mut self, stream: Stream) -> Result<()> {
        if self.scratch_of != stream {
            self.order(self.scratch_of, stream)?;
        }
        self.scratch_of = stream;
        Ok(())
    }

    fn index_args(&self, stream: Stream, index: Index, call: u64) -> IndexArgs {
        IndexArgs {
            status: self.status(stream),
            call,
            entries: self.entries[index.place()],
            sectors: self.shape.sectors as u64,
            counts: self.counts[index.place()],
            long_count: self.long_count(),
            rows_max: narrow(self.shape.options.rows_max),
            ..IndexArgs::default()
        }
    }

    fn long_count(&self) -> Address {
        self.scratch.small.plus(2 * Status::BYTES as u64 + 32)
    }

    fn rows_args(&self, stream: Stream, call: u64, n: u32) -> RowsArgs {
        RowsArgs {
            status: self.status(stream),
            call,
            arena: self.arena,
            dirty: self.dirty,
            n,
            rows_max: narrow(self.shape.options.rows_max),
            stride: narrow(self.shape.stride),
            width: narrow(self.shape.row_f32s),
            sectors: self.shape.sectors as u64,
            ..RowsArgs::default()
        }
    }

    fn get_wide(
        &mut self,
        stream: Stream,
        index: Index,
        (keys, count, out): (Buffer, usize, Buffer),
        (width, kernel): (usize, &'static str),
    ) -> Result<()> {
        let n = self.shape.check_get((keys, count, out), width)?;
        self.clocks.read(stream, index)?;
        if n == 0 {
            return Ok(());
        }
        let call = self.call(stream);
        let args = RowsArgs {
            entries: self.entries[index.place()],
            keys: self.address(keys),
            packed: self.address(out),
            width: narrow(width),
            ..self.rows_args(stream, call, n)
        };
        let blocks = self.blocks(count);
        self.launcher.launch(stream, kernel, blocks, &args)
    }

    /// One pass of the sort: count, scan, move.
    fn sort_pass(
        &mut self,
        stream: Stream,
        (count, shift): (&'static str, &'static str),
        args: &SortArgs,
    ) -> Result<()> {
        self.launcher.launch(stream, count, args.blocks, args)?;
        let scan = self.blocks(DIGITS * 32);
        self.launcher.launch(stream, "sort_scan", scan, args)?;
        self.launcher.launch(stream, shift, args.blocks, args)
    }

    fn sort_args(&self, stream: Stream, call: u64, n: u32) -> SortArgs {
        SortArgs {
            status: self.status(stream),
            call,
            counts: self.scratch.counts,
            totals: self.scratch.totals,
            dirty: self.dirty,
            n,
            blocks: narrow(Shape::sort_blocks(n as usize)),
            ..SortArgs::default()
        }
    }

    /// Sorts the rows in `scratch.keys[0]` with their positions; says in which half they are then.
    fn sort_rows(&mut self, stream: Stream, call: u64, n: u32) -> Result<usize> {
        let mut half = 0;
        for pass in 0..self.shape.row_bits().div_ceil(8).max(1) {
            let positions = [Address::NONE, self.scratch.positions[half]];
            let args = SortArgs {
                keys_in: self.scratch.keys[half],
                keys_out: self.scratch.keys[1 - half],
                positions_in: positions[usize::from(pass > 0)],
                positions_out: self.scratch.positions[1 - half],
                shift: 8 * pass,
                ..self.sort_args(stream, call, n)
            };
            self.sort_pass(stream, ("count_by_row", "move_by_row"), &args)?;
            half = 1 - half;
        }
        Ok(half)
    }

    fn update_args(&self, stream: Stream, call: u64, n: u32, gradients: &Gradients) -> UpdateArgs {
        let hyper = &self.shape.options.hyper;
        let has = self.shape.descriptor.metadata;
        let columns = [has.show, has.click, has.count, has.last_step];
        let bits = columns
            .iter()
            .rev()
            .fold(0, |bits, has| bits << 1 | u32::from(*has));
        UpdateArgs {
            status: self.status(stream),
            call,
            keys: self.address(gradients.keys),
            gradients: self.address(gradients.values),
            arena: self.arena,
            dirty: self.dirty,
            long_count: self.long_count(),
            long_starts: self.scratch.long_starts,
            long_sums: self.scratch.long_sums,
            long_extra: self.scratch.long_extra,
            shows: self.address_of(gradients.shows.filter(|_| has.show)),
            clicks: self.address_of(gradients.clicks.filter(|_| has.click)),
            n,
            dim: narrow(self.shape.dim),
            stride: narrow(self.shape.stride),
            metadata_at: narrow(self.shape.metadata_at),
            columns: bits,
            step: gradients.step,
            skip: u32::from(self.shape.options.non_finite == NonFinite::Skip),
            lr: gradients.lr,
            momentum: hyper.momentum,
            epsilon: hyper.epsilon,
            beta1: hyper.beta1,
            beta2: hyper.beta2,
            ftrl_beta: hyper.ftrl_beta,
            lambda1: hyper.lambda1,
            lambda2: hyper.lambda2,
            looks: u32::from(self.looks),
            ..UpdateArgs::default()
        }
    }

    /// Sums and steps, once rows are sorted.
    fn apply(&mut self, stream: Stream, args: &UpdateArgs) -> Result<()> {
        let count = args.n as usize;
        let longs = count / LONG_RUN;
        if longs > 0 {
            let blocks = self.blocks(count);
            self.launcher.launch(stream, "find_long", blocks, args)?;
        }
        if args.skip != 0 && !self.looks {
            let blocks = self.blocks(count);
            self.launcher
                .launch(stream, "flag_gradients", blocks, args)?;
        }
        // The only launch that changes rows, and the last: a call that fails on the way has changed none.
        let blocks = self.blocks(count * lanes_of(self.update));
        self.launcher.launch(stream, self.update, blocks, args)
    }

    fn check_rows(&mut self, stream: Stream, args: &RowsArgs) -> Result<()> {
        let blocks = self.blocks(args.n as usize);
        self.launcher.launch(stream, "check_rows", blocks, args)
    }
}

impl RowKernels {
    /// The lanes that a row of so many words needs.
    fn of(width: usize) -> Result<RowKernels> {
        let shape = match (width % 4, width / 4) {
            (0, 0..=4) => "wide4",
            (0, 5..=8) => "wide8",
            (0, 9..=16) => "wide16",
            (0, _) => "wide32",
            _ if width <= 4 => "word4",
            _ => "word32",
        };
        let named = |operation: &str| kernel(&format!("{operation}_{shape}"));
        Ok(RowKernels {
            get: named("get")?,
            pack: named("pack")?,
            place: named("place")?,
        })
    }
}

/// The kernel of a rule, and whether each lane sees all that it needs of a gradient.
fn update_kernel(rule: Optimizer, dim: usize) -> Result<(&'static str, bool)> {
    let rule = match rule {
        Optimizer::Sgd => "sgd",
        Optimizer::Momentum => "momentum",
        Optimizer::Nesterov => "nesterov",
        Optimizer::Adagrad => "adagrad",
        Optimizer::RowwiseAdagrad => return Ok(("rowwise", false)),
        Optimizer::Adam => "adam",
        Optimizer::Ftrl => "ftrl",
    };
    let (shape, words, lanes) = match (dim % 4, dim / 4) {
        (0, 0..=4) => ("wide4", dim / 4, 4),
        (0, 5..=16) => ("wide16", dim / 4, 16),
        (0, _) => ("wide32", dim / 4, 32),
        _ => ("word16", dim, 16),
    };
    Ok((kernel(&format!("{rule}_{shape}"))?, words <= lanes))
}

fn lanes_of(kernel: &str) -> usize {
    match kernel {
        name if name.ends_with("wide4") => 4,
        name if name.ends_with("wide32") => 32,
        _ => 16,
    }
}

fn kernel(name: &str) -> Result<&'static str> {
    let known = kernels::NAMES.iter().copied().find(|known| *known == name);
    known.ok_or_else(|| option("kernel", &name, "there is no such kernel".to_owned()))
}
