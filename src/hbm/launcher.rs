//! What does the table need of a device? Memory, copies, launches and streams, and no more.
//!
//! Two have it: the emulator (kernels as host code) and CUDA's driver. One host code, `DevTable`, runs on
//! both.
//!
//! Invariants:
//! - Work of one stream runs in the order it was given. [`Launcher::order`] is the only order between
//!   streams.
//! - `write` has taken the bytes when it returns; `read` returns when all work of its stream is done.
//! - Every error is one that the caller can be shown: it names the device and the operation.

use super::args::Args;
use crate::error::Result;

/// An address of the device. Pinned host memory has one, too.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Address(pub u64);

impl Address {
    /// Nothing is there.
    pub const NONE: Address = Address(0);

    /// The address so many bytes on.
    #[must_use]
    pub fn plus(self, bytes: u64) -> Address {
        Address(self.0 + bytes)
    }
}

/// Values that any bits make: they are copied as they are.
pub trait Plain: Copy + Send + Sync + 'static {}

/// What kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// The device's own.
    Device,
    /// The host's, which the device reads and writes over the bus. Fast for the host to read, too.
    Pinned,
}

/// Work in order. Two of them, so that one index is built while the other is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// The batches of a trainer.
    Train,
    /// Rows that come and go, and the next index.
    Transfer,
}

impl Stream {
    /// Both.
    pub const ALL: [Stream; 2] = [Stream::Train, Stream::Transfer];

    /// Its place in [`Stream::ALL`].
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self == Stream::Transfer)
    }
}

/// What a device says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its name, and the driver's version.
    pub name: String,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Bytes that are free.
    pub free_bytes: u64,
    /// Multiprocessors: how many blocks run beside each other is a multiple of it.
    pub multiprocessors: u32,
}

/// Launches that were recorded, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphId(pub u32);

/// A point of a stream whose time is taken, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(pub u32);

/// A device.
pub trait Launcher: Send {
    /// What it is.
    fn info(&self) -> Result<DeviceInfo>;

    /// Memory, aligned to 256 bytes, its content unspecified. Freed with the launcher.
    fn allocate(&mut self, memory: Memory, bytes: usize) -> Result<Address>;

    /// Copies values to the device, behind what the stream has to do.
    fn write<T: Plain>(&mut self, stream: Stream, to: Address, values: &[T]) -> Result<()>;

    /// Copies values from the device once the stream has done all it had to do.
    fn read<T: Plain>(&mut self, stream: Stream, from: Address, values: &mut [T]) -> Result<()>;

    /// Copies bytes between device and pinned memory, either way; returns at once.
    fn copy(&mut self, stream: Stream, from: Address, to: Address, bytes: usize) -> Result<()>;

    /// Sets bytes of device memory; returns at once.
    fn fill(&mut self, stream: Stream, at: Address, byte: u8, bytes: usize) -> Result<()>;

    /// Launches a kernel by name, in `blocks` blocks of [`super::args::THREADS`] threads.
    fn launch<A: Args>(
        &mut self,
        stream: Stream,
        kernel: &'static str,
        blocks: u32,
        args: &A,
    ) -> Result<()>;

    /// What `then` is given from now on comes after all that `before` has been given.
    fn order(&mut self, before: Stream, then: Stream) -> Result<()>;

    /// Waits until the stream has done all it had to do.
    fn wait(&mut self, stream: Stream) -> Result<()>;

    /// From here to [`Launcher::end_capture`] the stream's launches are recorded, not done.
    fn begin_capture(&mut self, stream: Stream) -> Result<()>;

    /// The recorded launches, as one.
    fn end_capture(&mut self, stream: Stream) -> Result<GraphId>;

    /// Does what was recorded.
    fn replay(&mut self, stream: Stream, graph: GraphId) -> Result<()>;

    /// Takes the time when the stream gets here.
    fn mark(&mut self, stream: Stream) -> Result<Mark>;

    /// Seconds between two marks of a stream; waits for the later one.
    fn seconds(&mut self, from: Mark, to: Mark) -> Result<f64>;
}
