//! Where do working rows lie while a GPU trains on them?
//!
//! In a table of device memory: an index from key to row number, and an arena of rows whose numbers the
//! host assigns. [`open`] gives one on the CPU (plain Rust, the oracle), on the emulator of the kernels
//! (feature `emu`) or on a GPU (feature `cuda`); all three compute the same bits, those of a store.
//!
//! Invariants:
//! - Any u64 is a key. An index is built by insert and cleared whole; there are two, so that one is built
//!   while the other is read. A key that finds no place is listed, never dropped in silence.
//! - Calls are given to a stream and return at once. What goes wrong on the device stays there: the first
//!   refused call, and all later ones of its stream, change nothing, and [`HbmTable::wait`] names it.
//! - Gradients of equal keys are summed in the caller's order, then applied once, operation by operation
//!   as `row/optimizer.rs` says: the result is that of `Store::push`, to the bit.
//! - All device memory that the table itself needs is stated by [`footprint`] and taken when it is opened.

#[cfg(any(feature = "cuda", feature = "emu"))]
mod args;
mod arrays;
mod checks;
mod clocks;
mod cpu;
mod device;
#[cfg(feature = "cuda")]
mod driver;
#[cfg(feature = "emu")]
mod emulator;
mod index;
#[cfg(any(feature = "cuda", feature = "emu"))]
mod kernels;
#[cfg(any(feature = "cuda", feature = "emu"))]
mod launcher;
pub mod routes;
mod shape;
mod status;
mod streams;
#[cfg(any(feature = "cuda", feature = "emu"))]
mod table;

pub use cpu::CpuTable;
#[cfg(feature = "emu")]
pub use device::open_with_faults;
pub use device::{Device, open};
#[cfg(feature = "emu")]
pub use emulator::{Faults, Planted, barriers};
pub use shape::{Footprint, HbmOptions, footprint};
pub use streams::{DeviceInfo, GraphId, Mark, Memory, Stream};

use crate::error::Result;

/// What the values of a buffer are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// u64: keys, ends of parts.
    Keys,
    /// u32: row numbers, positions, shows and clicks.
    Words,
    /// f32: rows, weights, gradients.
    Floats,
}

impl Kind {
    /// Bytes of a value.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Kind::Keys => 8,
            Kind::Words | Kind::Floats => 4,
        }
    }
}

/// Memory that a table's calls read and write, on the device or pinned on the host. It is the table's,
/// and goes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    pub(crate) id: u32,
    pub(crate) kind: Kind,
    pub(crate) count: usize,
}

impl Buffer {
    /// Values in it.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// What they are.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }
}

/// Values to write into a buffer.
#[derive(Clone, Copy, Debug)]
pub enum Values<'a> {
    /// [`Kind::Keys`].
    Keys(&'a [u64]),
    /// [`Kind::Words`].
    Words(&'a [u32]),
    /// [`Kind::Floats`].
    Floats(&'a [f32]),
}

/// Values to read from a buffer.
#[derive(Debug)]
pub enum ValuesMut<'a> {
    /// [`Kind::Keys`].
    Keys(&'a mut [u64]),
    /// [`Kind::Words`].
    Words(&'a mut [u32]),
    /// [`Kind::Floats`].
    Floats(&'a mut [f32]),
}

/// Which of the two indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Index {
    /// The one at place 0.
    First,
    /// The one at place 1.
    Second,
}

impl Index {
    pub(crate) fn place(self) -> usize {
        usize::from(self == Index::Second)
    }

    /// The other one.
    #[must_use]
    pub fn other(self) -> Index {
        match self {
            Index::First => Index::Second,
            Index::Second => Index::First,
        }
    }
}

/// What inserts into an index have done since it was cleared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inserted {
    /// Keys that have become entries.
    pub keys: u64,
    /// Positions that have not: the index is full, the row number lies beyond the arena, or the key is
    /// there with another row. Their keys are in the caller's `failed` buffer, as many as fit.
    pub failed: u64,
}

/// One call of [`HbmTable::accumulate`].
#[derive(Clone, Copy, Debug)]
pub struct Gradients {
    /// Which keys: `[n]` and more, any order, duplicates allowed.
    pub keys: Buffer,
    /// Their gradients: `[n, dim]`.
    pub values: Buffer,
    /// How many, n.
    pub count: usize,
    /// Shows by position, `[n]`, for the metadata column.
    pub shows: Option<Buffer>,
    /// Clicks by position, `[n]`.
    pub clicks: Option<Buffer>,
    /// Learning rate.
    pub lr: f32,
    /// The trainer's step, for the metadata column.
    pub step: u32,
}

/// What a table holds and has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HbmStats {
    /// Memory of the table itself.
    pub footprint: Footprint,
    /// Bytes of the caller's buffers, on the device and pinned.
    pub buffer_bytes: u64,
    /// Positions left out of accumulates: gradients that are not finite.
    pub skipped: u64,
}

/// Rows in device memory.
///
/// # Shapes
/// Buffers may be longer than a call needs; it uses their first values. Outputs and inputs of a call are
/// different buffers.
///
/// # Errors
/// Every call: `InvalidArgument` for a buffer of the wrong kind or too short, more keys than
/// `batch_keys_max`, an index that is written on one stream and read on the other without
/// [`HbmTable::order`] between them; `Device` for what the driver refuses.
#[expect(
    clippy::missing_errors_doc,
    reason = "stated above, once for all calls"
)]
pub trait HbmTable: Send {
    /// What the device says of itself.
    fn info(&self) -> Result<DeviceInfo>;

    /// What the table holds and has done; waits for both streams.
    fn stats(&mut self) -> Result<HbmStats>;

    /// Memory for the caller's values; `DeviceMemory` if there is too little. Content: unspecified.
    fn allocate(&mut self, memory: Memory, kind: Kind, count: usize) -> Result<Buffer>;

    /// Copies values into a buffer from value `at` on; they have been taken when it returns.
    fn write(&mut self, stream: Stream, to: Buffer, at: usize, values: Values<'_>) -> Result<()>;

    /// Copies values out of a buffer from value `at` on, once the stream has done all before.
    fn read(
        &mut self,
        stream: Stream,
        from: Buffer,
        at: usize,
        values: ValuesMut<'_>,
    ) -> Result<()>;

    /// Empties an index.
    fn clear(&mut self, stream: Stream, index: Index) -> Result<()>;

    /// `entries` is (keys, rows, count): makes entries `keys[i] -> rows[i]`, for `count` of them. Keys that fail are listed in `failed`,
    /// behind those that failed since the index was cleared; see [`Inserted`]. A key that is there
    /// already with this row is neither inserted nor failed.
    fn insert(
        &mut self,
        stream: Stream,
        index: Index,
        entries: (Buffer, Buffer, usize),
        failed: Buffer,
    ) -> Result<()>;

    /// What inserts have done; waits for the stream.
    fn inserted(&mut self, stream: Stream, index: Index) -> Result<Inserted>;

    /// `out[i]` becomes the weights of `keys[i]`: `[count, dim]`. A key that is not there refuses the call.
    fn get(
        &mut self,
        stream: Stream,
        index: Index,
        keys: Buffer,
        count: usize,
        out: Buffer,
    ) -> Result<()>;

    /// `out[i]` becomes the row of `keys[i]`: weights, state, metadata: `[count, row_f32s]`.
    fn get_rows(
        &mut self,
        stream: Stream,
        index: Index,
        keys: Buffer,
        count: usize,
        out: Buffer,
    ) -> Result<()>;

    /// The rows of numbers `rows[i]`, all different, become `packed[i]`: `[count, row_f32s]`, and clean.
    fn place(&mut self, stream: Stream, rows: Buffer, packed: Buffer, count: usize) -> Result<()>;

    /// Of the rows of numbers `rows[i]`, all different, those that accumulates have changed are copied to
    /// `packed`, in this order, their `i` to `positions`; they are clean then.
    fn pack(
        &mut self,
        stream: Stream,
        rows: Buffer,
        count: usize,
        packed: Buffer,
        positions: Buffer,
    ) -> Result<()>;

    /// How many rows the stream's last pack found; waits for it.
    fn packed(&mut self, stream: Stream) -> Result<usize>;

    /// One step of the optimizer for every distinct key. A key that is not there, or with
    /// `NonFinite::Reject` a gradient that is not finite, refuses the call.
    fn accumulate(&mut self, stream: Stream, index: Index, gradients: Gradients) -> Result<()>;

    /// `keys` is (keys, count, parts), `outputs` is (out, positions, ends). `out` becomes the keys in the
    /// order of the part of `parts` (1 to 256) that owns them, equal parts of mix64 as of
    /// `part_range`; within a part in the caller's order. `positions[j]` says where `out[j]` stood,
    /// `ends[p]` where part `p` ends.
    fn split(
        &mut self,
        stream: Stream,
        keys: (Buffer, usize, usize),
        outputs: (Buffer, Buffer, Buffer),
    ) -> Result<()>;

    /// `rows` is (from, to), `size` is (count, width): `to[positions[j]]` becomes `from[j]`, rows of `width`
    /// floats. Undoes a split. A position of `count` or more refuses the call.
    fn merge(
        &mut self,
        stream: Stream,
        positions: Buffer,
        rows: (Buffer, Buffer),
        size: (usize, usize),
    ) -> Result<()>;

    /// What `then` is given from now on comes after all that `before` has been given.
    fn order(&mut self, before: Stream, then: Stream) -> Result<()>;

    /// Waits until the stream has done all it was given.
    ///
    /// # Errors
    /// `RefusedCall` for the first call that was refused, until [`HbmTable::forget_refusal`].
    fn wait(&mut self, stream: Stream) -> Result<()>;

    /// Lets a stream whose call was refused go on.
    fn forget_refusal(&mut self, stream: Stream) -> Result<()>;

    /// Records a [`HbmTable::get`], to be replayed with whatever the buffers hold then: one launch by
    /// the driver. A refusal names the recording's call.
    fn record_get(
        &mut self,
        stream: Stream,
        index: Index,
        keys: Buffer,
        count: usize,
        out: Buffer,
    ) -> Result<GraphId>;

    /// Does a recorded call, on the stream on which it was recorded.
    fn replay(&mut self, stream: Stream, graph: GraphId) -> Result<()>;

    /// Takes the time when the stream gets here.
    fn mark(&mut self, stream: Stream) -> Result<Mark>;

    /// Seconds between two marks of one stream.
    fn seconds(&mut self, from: Mark, to: Mark) -> Result<f64>;

    /// Copies `count` values from a buffer to another on the device's own copy engine.
    fn copy(&mut self, stream: Stream, from: Buffer, to: Buffer, count: usize) -> Result<()>;

    /// Reads or writes sectors of 32 bytes at random places of a buffer of floats, `accesses` of them: what
    /// the device's memory can do at best, for benchmarks to compare with.
    fn probe(&mut self, stream: Stream, buffer: Buffer, accesses: u32, writes: bool) -> Result<()>;
}
