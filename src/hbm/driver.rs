//! How does a table run on an NVIDIA GPU? By CUDA's driver, which is loaded when a device is
//! opened.
//!
//! Invariants:
//! - Addresses are CUDA's. Every range that is copied or filled is checked against the allocations
//!   of the launcher; they live as long as it does.
//! - Each call binds the device's primary context to its thread, so the launcher may move between
//!   threads. The context stays bound.
//! - Once the driver has said that the context is broken, every call returns that error.
//! - No call panics: see [`library`].
#![expect(
    unsafe_code,
    reason = "calls the driver of CUDA with raw handles and addresses"
)]

mod compile;
mod library;
mod open;

use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;
use std::fmt::Display;
use std::sync::{Mutex, OnceLock};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use super::args::{Address, Args, Plain, THREADS};
use super::launcher::{DeviceInfo, GraphId, Launcher, Mark, Memory, Stream};
use crate::error::{Error, Result};
use crate::units::narrow;
use library::Driver;

/// Marks that a launcher remembers.
const MARKS_MAX: u32 = 4096;
/// What [`Launcher::allocate`] promises.
const ALIGNMENT: u64 = 256;

/// What the driver answers.
type Said<T> = std::result::Result<T, DriverError>;

/// Where compiled kernels are kept, by file name. A name tells the version; what it names never
/// changes.
pub trait KernelCache {
    /// The bytes stored under the name, if any.
    fn load(&self, name: &str) -> Option<Vec<u8>>;
    /// Keeps bytes for the next time. It may fail to: nothing depends on it.
    fn store(&self, name: &str, bytes: &[u8]);
}

/// What this process has compiled: a second table opens at once.
static COMPILED: Mutex<BTreeMap<String, Vec<u8>>> = Mutex::new(BTreeMap::new());

/// Kernels are kept as long as the process lives.
impl KernelCache for () {
    fn load(&self, name: &str) -> Option<Vec<u8>> {
        COMPILED.lock().ok()?.get(name).cloned()
    }

    fn store(&self, name: &str, bytes: &[u8]) {
        if let Ok(mut compiled) = COMPILED.lock() {
            compiled.insert(name.to_owned(), bytes.to_vec());
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Allocation {
    memory: Memory,
    bytes: u64,
}

/// The error that every later call returns.
#[derive(Debug)]
struct Lost {
    operation: String,
    why: String,
}

/// A GPU.
#[derive(Debug)]
pub struct CudaLauncher {
    /// "cuda:0".
    device: String,
    /// The GPU's name, and the driver's version.
    name: String,
    driver: Driver,
    multiprocessors: u32,
    ordinal: sys::CUdevice,
    context: sys::CUcontext,
    module: sys::CUmodule,
    functions: HashMap<&'static str, sys::CUfunction>,
    /// By [`Stream::index`], as the events that order them.
    streams: [sys::CUstream; 2],
    events: [sys::CUevent; 2],
    /// By address.
    memory: BTreeMap<u64, Allocation>,
    /// The stream whose launches are being recorded.
    recording: Option<Stream>,
    graphs: Vec<sys::CUgraphExec>,
    /// The event of mark `n` is at `n % MARKS_MAX`.
    marks: Vec<sys::CUevent>,
    marks_taken: u32,
    lost: OnceLock<Lost>,
}

// SAFETY: CUDA's handles may be used by any thread that has bound their context; each call binds
// it, and the methods that change anything take the launcher by `&mut`.
unsafe impl Send for CudaLauncher {}

/// Whether no later call in this process can succeed on the context.
fn is_final(error: DriverError) -> bool {
    use sys::CUresult as E;
    matches!(
        error.0,
        E::CUDA_ERROR_NOT_INITIALIZED
            | E::CUDA_ERROR_DEINITIALIZED
            | E::CUDA_ERROR_DEVICE_UNAVAILABLE
            | E::CUDA_ERROR_INVALID_CONTEXT
            | E::CUDA_ERROR_ECC_UNCORRECTABLE
            | E::CUDA_ERROR_NVLINK_UNCORRECTABLE
            | E::CUDA_ERROR_CONTAINED
            | E::CUDA_ERROR_ILLEGAL_ADDRESS
            | E::CUDA_ERROR_LAUNCH_TIMEOUT
            | E::CUDA_ERROR_CONTEXT_IS_DESTROYED
            | E::CUDA_ERROR_ASSERT
            | E::CUDA_ERROR_HARDWARE_STACK_ERROR
            | E::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | E::CUDA_ERROR_MISALIGNED_ADDRESS
            | E::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | E::CUDA_ERROR_INVALID_PC
            | E::CUDA_ERROR_LAUNCH_FAILED
            | E::CUDA_ERROR_TENSOR_MEMORY_LEAK
            | E::CUDA_ERROR_MPS_CLIENT_TERMINATED
            | E::CUDA_ERROR_EXTERNAL_DEVICE
            | E::CUDA_ERROR_UNKNOWN
    )
}

fn failed(device: &str, operation: impl Display, why: impl Into<String>) -> Error {
    Error::Device {
        device: device.to_owned(),
        operation: operation.to_string(),
        why: why.into(),
    }
}

impl CudaLauncher {
    fn unload(&mut self) {
        self.functions.clear();
        if !self.module.is_null() {
            // SAFETY: loaded by this launcher, unloaded once: it is null from here on.
            let _ = unsafe { result::module::unload(self.module) };
            self.module = std::ptr::null_mut();
        }
    }

    /// The context becomes the thread's, unless it is broken.
    fn bind(&self) -> Result<()> {
        if let Some(lost) = self.lost.get() {
            return Err(failed(&self.device, &lost.operation, lost.why.clone()));
        }
        // SAFETY: retained when the launcher was opened, released when it is dropped.
        let bound = unsafe { result::ctx::set_current(self.context) };
        self.check("bind the context", bound)
    }

    /// An error of the driver as ours; what is final is remembered.
    fn check<T>(&self, operation: impl Display, done: Said<T>) -> Result<T> {
        done.map_err(|error| {
            let why = library::text_of(error);
            if is_final(error) {
                self.lost.get_or_init(|| Lost {
                    operation: operation.to_string(),
                    why: why.clone(),
                });
            }
            failed(&self.device, operation, why)
        })
    }

    fn stream(&self, stream: Stream) -> sys::CUstream {
        self.streams[stream.index()]
    }

    /// Binds the context for what a recording can't hold.
    fn bind_unrecorded(&self, operation: &str, stream: Stream) -> Result<()> {
        if self.recording == Some(stream) {
            let why = "the stream's launches are being recorded";
            return Err(failed(&self.device, operation, why));
        }
        self.bind()
    }

    /// The memory in which bytes lie; an error if they lie in none of ours.
    fn find(&self, operation: &str, at: Address, bytes: usize) -> Result<Memory> {
        let end = at.0.checked_add(bytes as u64);
        let found = self.memory.range(..=at.0).next_back();
        match (found, end) {
            (Some((start, allocation)), Some(end)) if end <= start + allocation.bytes => {
                Ok(allocation.memory)
            }
            _ => {
                let why = "an address outside of all allocations";
                Err(failed(&self.device, operation, why))
            }
        }
    }

    fn synchronize(&self, operation: &str, stream: Stream) -> Result<()> {
        // SAFETY: made when the launcher was opened, destroyed when it is dropped.
        let done = unsafe { result::stream::synchronize(self.stream(stream)) };
        self.check(operation, done)
    }

    /// Ends a recording: `None` where there is nothing to keep.
    fn stop_recording(&mut self) -> Option<Said<sys::CUgraph>> {
        let stream = self.recording.take()?;
        // SAFETY: made when the launcher was opened, destroyed when it is dropped.
        Some(unsafe { result::stream::end_capture(self.stream(stream)) })
    }

    fn out_of_memory(&self, memory: Memory, bytes: usize, free: Option<usize>) -> Error {
        Error::DeviceMemory {
            device: self.device.clone(),
            what: match memory {
                Memory::Device => "a buffer",
                Memory::Pinned => "a pinned buffer",
            },
            asked_bytes: bytes as u64,
            free_bytes: free.map(|free| free as u64),
        }
    }

    fn free(address: u64, allocation: Allocation) {
        let _ = match allocation.memory {
            // SAFETY: allocated by `allocate`, freed once: the map's entry is gone.
            Memory::Device => unsafe { result::free_sync(address) },
            // SAFETY: as above.
            Memory::Pinned => unsafe { result::free_host(address as *mut c_void) },
        };
    }
}

impl Launcher for CudaLauncher {
    fn device(&self) -> &str {
        &self.device
    }

    fn info(&self) -> Result<DeviceInfo> {
        self.bind()?;
        let (free, total) = self.check("ask for free memory", result::mem_get_info())?;
        Ok(DeviceInfo {
            name: self.name.clone(),
            memory_bytes: total as u64,
            free_bytes: free as u64,
            multiprocessors: self.multiprocessors,
        })
    }

    fn allocate(&mut self, memory: Memory, bytes: usize) -> Result<Address> {
        self.bind()?;
        let (free, _) = self.check("ask for free memory", result::mem_get_info())?;
        let free = (memory == Memory::Device).then_some(free);
        if free.is_some_and(|free| bytes > free) {
            return Err(self.out_of_memory(memory, bytes, free));
        }
        // CUDA refuses to allocate nothing.
        let taken = bytes.max(1);
        let made = match memory {
            // SAFETY: nobody reads the content before it is written; see `Launcher::allocate`.
            Memory::Device => unsafe { result::malloc_sync(taken) },
            // SAFETY: as above. Without flags it is plain cached memory of the host, of which a GPU
            // that shares the host's addresses has the same address.
            Memory::Pinned => unsafe { result::malloc_host(taken, 0) }
                .map(|start| start.expose_provenance() as u64),
        };
        if made == Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) {
            return Err(self.out_of_memory(memory, bytes, free));
        }
        let address = self.check("allocate", made)?;
        let allocation = Allocation {
            memory,
            bytes: bytes as u64,
        };
        if address % ALIGNMENT != 0 {
            CudaLauncher::free(address, allocation);
            let why = format!("the driver gave memory that is not aligned to {ALIGNMENT} bytes");
            return Err(failed(&self.device, "allocate", why));
        }
        self.memory.insert(address, allocation);
        Ok(Address(address))
    }

    fn write<T: Plain>(&mut self, stream: Stream, to: Address, values: &[T]) -> Result<()> {
        self.bind_unrecorded("write", stream)?;
        let bytes = size_of_val(values);
        if bytes == 0 {
            return Ok(());
        }
        match self.find("write", to, bytes)? {
            Memory::Device => {
                let at = self.stream(stream);
                // SAFETY: the target lies in an allocation, checked above; the source lives until
                // the stream has done it, which is waited for below.
                let given = unsafe { result::memcpy_htod_async(to.0, values, at) };
                let waited = self.synchronize("write", stream);
                self.check("write", given)?;
                waited
            }
            Memory::Pinned => {
                self.synchronize("write", stream)?;
                let (from, to) = (values.as_ptr().cast::<u8>(), to.0 as *mut u8);
                // SAFETY: the target lies in a pinned allocation, checked above, which is memory of
                // this process; what the stream had to do there is done.
                unsafe { std::ptr::copy(from, to, bytes) };
                Ok(())
            }
        }
    }

    fn read<T: Plain>(&mut self, stream: Stream, from: Address, values: &mut [T]) -> Result<()> {
        self.bind_unrecorded("read", stream)?;
        let bytes = size_of_val(values);
        if bytes == 0 {
            return self.synchronize("read", stream);
        }
        match self.find("read", from, bytes)? {
            Memory::Device => {
                let at = self.stream(stream);
                // SAFETY: the source lies in an allocation, checked above; any bits are a value of
                // a `Plain` type; the target lives until the stream has done it, waited for below.
                let given = unsafe { result::memcpy_dtoh_async(values, from.0, at) };
                let waited = self.synchronize("read", stream);
                self.check("read", given)?;
                waited
            }
            Memory::Pinned => {
                self.synchronize("read", stream)?;
                let (from, to) = (from.0 as *const u8, values.as_mut_ptr().cast::<u8>());
                // SAFETY: the source lies in a pinned allocation, checked above, which is memory of
                // this process; what the stream had to do there is done; any bits are a value.
                unsafe { std::ptr::copy(from, to, bytes) };
                Ok(())
            }
        }
    }

    fn copy(&mut self, stream: Stream, from: Address, to: Address, bytes: usize) -> Result<()> {
        self.bind()?;
        if bytes == 0 {
            return Ok(());
        }
        self.find("copy", from, bytes)?;
        self.find("copy", to, bytes)?;
        // SAFETY: both lie in allocations, checked above, which live as long as the stream.
        let given = unsafe { sys::cuMemcpyAsync(to.0, from.0, bytes, self.stream(stream)) };
        self.check("copy", given.result())
    }

    fn fill(&mut self, stream: Stream, at: Address, byte: u8, bytes: usize) -> Result<()> {
        self.bind()?;
        if bytes == 0 {
            return Ok(());
        }
        self.find("fill", at, bytes)?;
        // SAFETY: the bytes lie in an allocation, checked above, which lives as long as the stream.
        let given = unsafe { result::memset_d8_async(at.0, byte, bytes, self.stream(stream)) };
        self.check("fill", given)
    }

    fn launch<A: Args>(
        &mut self,
        stream: Stream,
        kernel: &'static str,
        blocks: u32,
        args: &A,
    ) -> Result<()> {
        self.bind()?;
        let Some(function) = self.functions.get(kernel).copied() else {
            let operation = format!("launch {kernel}");
            return Err(failed(&self.device, operation, "there is no such kernel"));
        };
        let mut parameters = [std::ptr::from_ref(args).cast_mut().cast::<c_void>()];
        // SAFETY: the kernel has one parameter, this structure (args.rs and common.cu assert the
        // sizes), which the driver copies before it returns; the addresses in it are of allocations
        // that live as long as the stream.
        let given = unsafe {
            result::launch_kernel(
                function,
                (blocks, 1, 1),
                (THREADS, 1, 1),
                0,
                self.stream(stream),
                &mut parameters,
            )
        };
        self.check(format_args!("launch {kernel}"), given)
    }

    fn order(&mut self, before: Stream, then: Stream) -> Result<()> {
        self.bind_unrecorded("order", before)?;
        self.bind_unrecorded("order", then)?;
        if before == then {
            return Ok(());
        }
        let event = self.events[before.index()];
        // SAFETY: both were made when the launcher was opened, and are destroyed when it is
        // dropped.
        let recorded = unsafe { result::event::record(event, self.stream(before)) };
        self.check("order", recorded)?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: as above. The wait is for this record, also when the event is recorded anew.
        let given = unsafe { result::stream::wait_event(self.stream(then), event, flags) };
        self.check("order", given)
    }

    fn begin_capture(&mut self, stream: Stream) -> Result<()> {
        let operation = "begin a recording";
        if self.recording.is_some() {
            let why = "another recording has not ended";
            return Err(failed(&self.device, operation, why));
        }
        self.bind()?;
        // Any thread may end it, and call the driver meanwhile.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: made when the launcher was opened, destroyed when it is dropped.
        let begun = unsafe { result::stream::begin_capture(self.stream(stream), mode) };
        self.check(operation, begun)?;
        self.recording = Some(stream);
        Ok(())
    }

    fn end_capture(&mut self, stream: Stream) -> Result<GraphId> {
        let operation = "end a recording";
        if self.recording != Some(stream) {
            let why = "the stream has none";
            return Err(failed(&self.device, operation, why));
        }
        let bound = self.bind();
        let Some(ended) = self.stop_recording() else {
            return Err(failed(&self.device, operation, "the stream has none"));
        };
        if let (Err(_), Ok(graph)) = (&bound, ended)
            && !graph.is_null()
        {
            // SAFETY: the driver gave the graph above; nobody else knows it.
            let _ = unsafe { result::graph::destroy(graph) };
        }
        bound?;
        let graph = self.check(operation, ended)?;
        if graph.is_null() {
            let why = "a call in it could not be recorded";
            return Err(failed(&self.device, operation, why));
        }
        // SAFETY: the driver gave the graph above.
        let made = unsafe { result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)) };
        // SAFETY: as above; destroyed once, what was made of it does not need it.
        let _ = unsafe { result::graph::destroy(graph) };
        self.graphs.push(self.check(operation, made)?);
        Ok(GraphId(narrow(self.graphs.len() - 1)))
    }

    fn replay(&mut self, stream: Stream, graph: GraphId) -> Result<()> {
        self.bind_unrecorded("replay", stream)?;
        let Some(graph) = self.graphs.get(graph.0 as usize).copied() else {
            let why = "nothing was recorded under this number";
            return Err(failed(&self.device, "replay", why));
        };
        // SAFETY: made by `end_capture`, destroyed when the launcher is dropped.
        let given = unsafe { result::graph::launch(graph, self.stream(stream)) };
        self.check("replay", given)
    }

    fn mark(&mut self, stream: Stream) -> Result<Mark> {
        self.bind_unrecorded("mark", stream)?;
        let place = (self.marks_taken % MARKS_MAX) as usize;
        if place == self.marks.len() {
            let made = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT);
            self.marks.push(self.check("mark", made)?);
        }
        // SAFETY: made above, or for an earlier mark; destroyed when the launcher is dropped.
        let recorded = unsafe { result::event::record(self.marks[place], self.stream(stream)) };
        self.check("mark", recorded)?;
        let mark = Mark(self.marks_taken);
        self.marks_taken = self.marks_taken.wrapping_add(1);
        Ok(mark)
    }

    fn seconds(&mut self, from: Mark, to: Mark) -> Result<f64> {
        self.bind()?;
        let of = |mark: Mark| {
            let age = self.marks_taken.wrapping_sub(mark.0);
            let known = (1..=MARKS_MAX).contains(&age);
            let event = self.marks.get((mark.0 % MARKS_MAX) as usize);
            event.copied().filter(|_| known)
        };
        let (Some(from), Some(to)) = (of(from), of(to)) else {
            let why = format!("no such mark was taken, or {MARKS_MAX} have been taken since");
            return Err(failed(&self.device, "seconds", why));
        };
        for event in [from, to] {
            // SAFETY: made by `mark`, destroyed when the launcher is dropped.
            let done = unsafe { result::event::synchronize(event) };
            self.check("seconds", done)?;
        }
        // SAFETY: as above; both were recorded with timing, and are done.
        let milliseconds = unsafe { result::event::elapsed(from, to) };
        let milliseconds = self.check("seconds", milliseconds)?;
        Ok(f64::from(milliseconds) / 1000.0)
    }
}

impl Drop for CudaLauncher {
    /// Waits for the streams and gives everything back. What the driver refuses goes with the
    /// context.
    fn drop(&mut self) {
        // SAFETY: still retained; released below.
        let _ = unsafe { result::ctx::set_current(self.context) };
        if let Some(Ok(graph)) = self.stop_recording()
            && !graph.is_null()
        {
            // SAFETY: the driver gave the graph just now.
            let _ = unsafe { result::graph::destroy(graph) };
        }
        for stream in self.streams.into_iter().filter(|stream| !stream.is_null()) {
            // SAFETY: made by `prepare`, not destroyed before here.
            let _ = unsafe { result::stream::synchronize(stream) };
        }
        for graph in self.graphs.drain(..) {
            // SAFETY: made by `end_capture`, destroyed once; no stream runs it any more.
            let _ = unsafe { result::graph::exec_destroy(graph) };
        }
        let made = self.events.into_iter().filter(|event| !event.is_null());
        for event in made.chain(self.marks.drain(..)) {
            // SAFETY: made by `prepare` or `mark`, destroyed once.
            let _ = unsafe { result::event::destroy(event) };
        }
        for (address, allocation) in std::mem::take(&mut self.memory) {
            CudaLauncher::free(address, allocation);
        }
        self.unload();
        for stream in self.streams.into_iter().filter(|stream| !stream.is_null()) {
            // SAFETY: made by `prepare`, destroyed once, nothing uses it any more.
            let _ = unsafe { result::stream::destroy(stream) };
        }
        // SAFETY: retained once, when the launcher was opened.
        let _ = unsafe { result::primary_ctx::release(self.ordinal) };
    }
}

#[cfg(test)]
mod tests;
