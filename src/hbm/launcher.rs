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

use super::args::{Address, Args, Plain};
pub use super::streams::{DeviceInfo, GraphId, Mark, Memory, Stream};
use crate::error::Result;

/// A device.
pub trait Launcher: Send {
    /// Its short name, as errors tell it: "cuda:0".
    fn device(&self) -> &str;

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
