//! NVIDIA's driver, loaded when a device is opened.
//!
//! Invariants:
//! - A machine without a driver, without NVRTC, or with too old a one gets an error that names what is
//!   missing and the way out; the loader's panics never leave [`guarded`].
//! - After an error that breaks the context every later call says the same, without asking the driver.
//! - Pinned memory is ordinary cached memory, at one address for host and device.
#![expect(unsafe_code, reason = "calls of the CUDA driver and of NVRTC")]

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{self, AssertUnwindSafe};
use std::ptr::{from_mut, from_ref, null_mut};
use std::sync::{Mutex, OnceLock};

use cudarc::driver::sys as cu;
use cudarc::nvrtc::sys as nv;

use super::args::{Args, THREADS};
use super::kernels;
use super::launcher::{Address, DeviceInfo, GraphId, Launcher, Mark, Memory, Plain, Stream};
use crate::error::{Error, Result};
use crate::units::narrow;

/// Options of every compilation; the rounding of each operation depends on them.
const OPTIONS: [&str; 5] = [
    "--std=c++17",
    "--fmad=false",
    "--prec-div=true",
    "--prec-sqrt=true",
    "--ftz=false",
];
/// Characters of a compiler's log that an error shows.
const LOG_CHARS: usize = 2000;

/// Where compiled kernels are kept between runs.
pub trait KernelCache {
    /// The bytes stored under a name.
    fn load(&self, name: &str) -> Option<Vec<u8>>;

    /// Keeps bytes under a name, if it can.
    fn store(&self, name: &str, bytes: &[u8]);
}

/// Kernels are compiled anew each time.
impl KernelCache for () {
    fn load(&self, _name: &str) -> Option<Vec<u8>> {
        None
    }

    fn store(&self, _name: &str, _bytes: &[u8]) {}
}

/// A GPU.
#[derive(Debug)]
pub struct CudaLauncher {
    name: String,
    info: DeviceInfo,
    device: cu::CUdevice,
    context: cu::CUcontext,
    module: cu::CUmodule,
    functions: HashMap<&'static str, cu::CUfunction>,
    streams: [cu::CUstream; 2],
    /// One event a stream, for `order`.
    events: [cu::CUevent; 2],
    /// By address.
    memory: BTreeMap<u64, Memory>,
    graphs: Vec<(cu::CUgraph, cu::CUgraphExec)>,
    marks: Vec<cu::CUevent>,
    /// What broke the context.
    broken: Option<String>,
}

// SAFETY: handles of the driver may be used from any thread; each call makes the context current first,
// and `&mut self` keeps threads apart.
unsafe impl Send for CudaLauncher {}

fn failed(device: &str, operation: &str, why: impl Into<String>) -> Error {
    Error::Device {
        device: device.to_owned(),
        operation: operation.to_owned(),
        why: why.into(),
    }
}

/// Runs what may panic inside the loader of a library; the panic's text is not printed.
fn guarded<T>(call: impl FnOnce() -> T) -> Option<T> {
    static HOOK: Mutex<()> = Mutex::new(());
    let _alone = HOOK.lock();
    let before = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let done = panic::catch_unwind(AssertUnwindSafe(call));
    panic::set_hook(before);
    done.ok()
}

/// How many devices there are, or why none can be used; asked once.
fn devices() -> std::result::Result<c_int, String> {
    static FOUND: OnceLock<std::result::Result<c_int, String>> = OnceLock::new();
    FOUND.get_or_init(find_devices).clone()
}

fn find_devices() -> std::result::Result<c_int, String> {
    let present = guarded(|| {
        // SAFETY: opens the library and closes it.
        unsafe { cu::is_culib_present() }
    });
    if present != Some(true) {
        return Err("no NVIDIA driver: libcuda.so.1 was not found; install the driver, or use \
             Device::Cpu"
            .to_owned());
    }
    let count = guarded(|| {
        // SAFETY: takes no pointer.
        let done = unsafe { cu::cuInit(0) };
        if done != cu::CUresult::CUDA_SUCCESS {
            return Err(text_of(done));
        }
        let mut count = 0;
        // SAFETY: writes one number.
        let done = unsafe { cu::cuDeviceGetCount(&raw mut count) };
        match done {
            cu::CUresult::CUDA_SUCCESS => Ok(count),
            other => Err(text_of(other)),
        }
    });
    let lacking = "libcuda.so.1 lacks functions of CUDA 13: install a driver 580 or newer";
    match count {
        None => Err(lacking.to_owned()),
        Some(Err(why)) => Err(format!(
            "the driver does not start ({why}); see whether nvidia-smi lists a GPU"
        )),
        Some(Ok(count)) => Ok(count),
    }
}

/// Name and text of a driver's error.
fn text_of(error: cu::CUresult) -> String {
    let number = error as u32;
    let text = guarded(|| {
        let mut name: *const c_char = std::ptr::null();
        // SAFETY: writes one pointer, to a text that lives as long as the library, or null.
        unsafe { cu::cuGetErrorName(error, &raw mut name) };
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: as above.
        unsafe { cu::cuGetErrorString(error, &raw mut text) };
        [name, text].map(|text| match text.is_null() {
            true => String::new(),
            // SAFETY: the driver's texts end with 0 and are never freed.
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
        })
    });
    let [name, text] = text.unwrap_or_default();
    format!("{name} ({number}): {text}")
}

/// Whether nothing more can be done after an error.
fn breaks(error: cu::CUresult) -> bool {
    matches!(
        error,
        cu::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
            | cu::CUresult::CUDA_ERROR_LAUNCH_FAILED
            | cu::CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
            | cu::CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | cu::CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
            | cu::CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | cu::CUresult::CUDA_ERROR_INVALID_PC
            | cu::CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
            | cu::CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
            | cu::CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE
            | cu::CUresult::CUDA_ERROR_DEINITIALIZED
            | cu::CUresult::CUDA_ERROR_ASSERT
    )
}

/// One call of the driver, as a result.
macro_rules! ask {
    ($self:expr, $operation:expr, $call:expr) => {{
        // SAFETY: handles are the driver's own and live; pointers are to values of this frame, or to
        // allocations of this launcher that the caller's checks cover.
        let done = unsafe { $call };
        $self.check(done, $operation)
    }};
}

impl CudaLauncher {
    /// Opens a device and its kernels.
    ///
    /// # Errors
    /// `Device` naming what is missing.
    pub fn open(number: usize, cache: &dyn KernelCache) -> Result<CudaLauncher> {
        let name = format!("cuda:{number}");
        let count = devices().map_err(|why| failed(&name, "open", why))?;
        let ordinal = c_int::try_from(number).unwrap_or(c_int::MAX);
        if ordinal >= count {
            let why = format!("there are {count} devices, numbered from 0");
            return Err(failed(&name, "open", why));
        }
        let mut launcher = CudaLauncher {
            info: DeviceInfo::default(),
            name,
            device: 0,
            context: null_mut(),
            module: null_mut(),
            functions: HashMap::new(),
            streams: [null_mut(); 2],
            events: [null_mut(); 2],
            memory: BTreeMap::new(),
            graphs: Vec::new(),
            marks: Vec::new(),
            broken: None,
        };
        let name = launcher.name.clone();
        guarded(|| launcher.start(ordinal, cache).map(|()| launcher)).unwrap_or_else(|| {
            let why = "the driver lacks functions of CUDA 13: install a driver 580 or newer";
            Err(failed(&name, "open", why))
        })
    }

    fn start(&mut self, ordinal: c_int, cache: &dyn KernelCache) -> Result<()> {
        let device = &raw mut self.device;
        ask!(self, "open", cu::cuDeviceGet(device, ordinal))?;
        let context = &raw mut self.context;
        ask!(self, "open", cu::cuDevicePrimaryCtxRetain(context, self.device))?;
        self.bind()?;
        for i in 0..2 {
            let stream = &raw mut self.streams[i];
            let kind = cu::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
            ask!(self, "make a stream", cu::cuStreamCreate(stream, kind))?;
            let event = &raw mut self.events[i];
            let kind = cu::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
            ask!(self, "make an event", cu::cuEventCreate(event, kind))?;
        }
        self.describe()?;
        self.load(cache)
    }

    fn attribute(&mut self, which: cu::CUdevice_attribute) -> Result<u32> {
        let mut value = 0;
        let (to, device) = (&raw mut value, self.device);
        ask!(self, "ask", cu::cuDeviceGetAttribute(to, which, device))?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    fn describe(&mut self) -> Result<()> {
        let mut text = [0 as c_char; 256];
        let to = text.as_mut_ptr();
        ask!(self, "ask", cu::cuDeviceGetName(to, 255, self.device))?;
        // SAFETY: the driver ends the name with 0 inside of 255 bytes; the last byte is 0 anyway.
        let name = unsafe { CStr::from_ptr(text.as_ptr()) };
        let name = name.to_string_lossy().into_owned();
        let mut version = 0;
        let to = &raw mut version;
        ask!(self, "ask", cu::cuDriverGetVersion(to))?;
        let blocks = cu::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        self.info = DeviceInfo {
            name: format!("{name}, CUDA {}.{}", version / 1000, version % 1000 / 10),
            multiprocessors: self.attribute(blocks)?,
            ..DeviceInfo::default()
        };
        Ok(())
    }

    /// Loads the kernels: from the cache, or compiled.
    fn load(&mut self, cache: &dyn KernelCache) -> Result<()> {
        use cu::CUdevice_attribute as Attribute;
        let major = self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let arch = format!("sm_{major}{minor}");
        let name = format!("hps-kernels-{arch}-{:016x}.cubin", fingerprint());
        if let Some(image) = cache.load(&name)
            && self.load_image(&image).is_ok()
        {
            return Ok(());
        }
        let image = compile(&self.name, &arch)?;
        self.load_image(&image)?;
        cache.store(&name, &image);
        Ok(())
    }

    fn load_image(&mut self, image: &[u8]) -> Result<()> {
        let (module, image) = (&raw mut self.module, image.as_ptr().cast::<c_void>());
        let loaded = ask!(self, "load the kernels", cu::cuModuleLoadData(module, image));
        loaded.map_err(|error| {
            let older = format!("{error}; the driver says it has {}", self.info.name);
            failed(&self.name, "load the kernels", older)
        })?;
        for kernel in kernels::NAMES {
            let name = CString::new(*kernel).unwrap_or_default();
            let mut function = null_mut();
            let (to, name) = (&raw mut function, name.as_ptr());
            ask!(self, kernel, cu::cuModuleGetFunction(to, self.module, name))?;
            self.functions.insert(kernel, function);
        }
        Ok(())
    }

    fn check(&mut self, done: cu::CUresult, operation: &str) -> Result<()> {
        if done == cu::CUresult::CUDA_SUCCESS {
            return Ok(());
        }
        let why = text_of(done);
        if breaks(done) {
            self.broken = Some(why.clone());
        }
        Err(failed(&self.name, operation, why))
    }

    /// Makes the context the calling thread's, unless it is broken.
    fn bind(&mut self) -> Result<()> {
        if let Some(why) = &self.broken {
            return Err(failed(&self.name, "go on", why.clone()));
        }
        ask!(self, "bind", cu::cuCtxSetCurrent(self.context))
    }

    fn stream(&self, stream: Stream) -> cu::CUstream {
        self.streams[stream.index()]
    }

    /// Whether an address is pinned host memory.
    fn is_pinned(&self, address: Address) -> bool {
        let found = self.memory.range(..=address.0).next_back();
        found.is_some_and(|(_, memory)| *memory == Memory::Pinned)
    }

    fn free_bytes(&mut self) -> Result<(usize, usize)> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        let to = (&raw mut free, &raw mut total);
        ask!(self, "ask for memory", cu::cuMemGetInfo_v2(to.0, to.1))?;
        Ok((free, total))
    }
}

/// A number of the source and the options.
fn fingerprint() -> u64 {
    let bytes = kernels::SOURCE.bytes().chain(OPTIONS.iter().flat_map(|o| o.bytes()));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Compiles the kernels for an architecture.
fn compile(device: &str, arch: &str) -> Result<Vec<u8>> {
    let present = guarded(|| {
        // SAFETY: opens the library and closes it.
        unsafe { nv::is_culib_present() }
    });
    if present != Some(true) {
        let why = "NVRTC was not found, which compiles the kernels: put the folder of \
            libnvrtc.so.13 into LD_LIBRARY_PATH (pip install nvidia-cuda-nvrtc has it)";
        return Err(failed(device, "compile the kernels", why));
    }
    guarded(|| compile_by_nvrtc(arch))
        .unwrap_or_else(|| Err("NVRTC is older than CUDA 13".to_owned()))
        .map_err(|why| failed(device, "compile the kernels", why))
}

fn compile_by_nvrtc(arch: &str) -> std::result::Result<Vec<u8>, String> {
    let source = CString::new(kernels::SOURCE).map_err(|e| e.to_string())?;
    let target = format!("--gpu-architecture={arch}");
    let options = OPTIONS.iter().copied().chain([target.as_str()]);
    let options: Vec<CString> = options.filter_map(|o| CString::new(o).ok()).collect();
    let list: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
    let mut program = null_mut();
    let (to, text) = (&raw mut program, source.as_ptr());
    let none = std::ptr::null();
    // SAFETY: the source ends with 0 and is copied; no headers are given.
    let made = unsafe { nv::nvrtcCreateProgram(to, text, c"hps.cu".as_ptr(), 0, none, none) };
    if made != nv::nvrtcResult::NVRTC_SUCCESS {
        return Err(format!("{made:?}"));
    }
    let count = c_int::try_from(list.len()).unwrap_or(0);
    // SAFETY: the program was made above; the options are `count` texts that end with 0.
    let done = unsafe { nv::nvrtcCompileProgram(program, count, list.as_ptr()) };
    let image = match done {
        nv::nvrtcResult::NVRTC_SUCCESS => Ok(image_of(program)),
        other => Err(format!("{other:?}: {}", log_of(program))),
    };
    // SAFETY: the program was made above, and is not used again.
    unsafe { nv::nvrtcDestroyProgram(&raw mut program) };
    image
}

fn image_of(program: nv::nvrtcProgram) -> Vec<u8> {
    let mut bytes = 0;
    // SAFETY: the program is compiled; writes one number.
    unsafe { nv::nvrtcGetCUBINSize(program, &raw mut bytes) };
    let mut image = vec![0u8; bytes];
    // SAFETY: there is room for as many bytes as it said.
    unsafe { nv::nvrtcGetCUBIN(program, image.as_mut_ptr().cast()) };
    image
}

fn log_of(program: nv::nvrtcProgram) -> String {
    let mut bytes = 0;
    // SAFETY: writes one number.
    unsafe { nv::nvrtcGetProgramLogSize(program, &raw mut bytes) };
    let mut log = vec![0u8; bytes];
    // SAFETY: there is room for as many bytes as it said.
    unsafe { nv::nvrtcGetProgramLog(program, log.as_mut_ptr().cast()) };
    let text = String::from_utf8_lossy(&log).into_owned();
    text.trim_end_matches('\0').chars().take(LOG_CHARS).collect()
}

impl Launcher for CudaLauncher {
    fn info(&mut self) -> Result<DeviceInfo> {
        let (free, total) = self.free_bytes()?;
        Ok(DeviceInfo {
            memory_bytes: total as u64,
            free_bytes: free as u64,
            ..self.info.clone()
        })
    }

    fn allocate(&mut self, memory: Memory, bytes: usize) -> Result<Address> {
        let (free, _) = self.free_bytes()?;
        let mut address = 0u64;
        let done = match memory {
            Memory::Device => {
                let to = &raw mut address;
                // SAFETY: writes one address.
                unsafe { cu::cuMemAlloc_v2(to, bytes) }
            }
            Memory::Pinned => {
                let mut host: *mut c_void = null_mut();
                // SAFETY: writes one pointer; no flags: cached, not write-combined.
                let done = unsafe { cu::cuMemHostAlloc(&raw mut host, bytes, 0) };
                address = host.expose_provenance() as u64;
                done
            }
        };
        if done == cu::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return Err(Error::DeviceMemory {
                device: self.name.clone(),
                what: match memory {
                    Memory::Device => "a buffer",
                    Memory::Pinned => "a pinned buffer",
                },
                asked_bytes: bytes as u64,
                free_bytes: (memory == Memory::Device).then_some(free as u64),
            });
        }
        self.check(done, "allocate")?;
        self.memory.insert(address, memory);
        Ok(Address(address))
    }

    fn write<T: Plain>(&mut self, stream: Stream, to: Address, values: &[T]) -> Result<()> {
        self.bind()?;
        let (from, bytes) = (values.as_ptr().cast::<c_void>(), size_of_val(values));
        let of = self.stream(stream);
        if self.is_pinned(to) {
            ask!(self, "wait", cu::cuStreamSynchronize(of))?;
            // SAFETY: the table checked that the values fit into the pinned buffer; the slice is no part of
            // it, which is only reached by address.
            unsafe { std::ptr::copy(from.cast::<u8>(), to.0 as *mut u8, bytes) };
            return Ok(());
        }
        ask!(self, "write", cu::cuMemcpyHtoDAsync_v2(to.0, from, bytes, of))?;
        ask!(self, "write", cu::cuStreamSynchronize(of))
    }

    fn read<T: Plain>(&mut self, stream: Stream, from: Address, values: &mut [T]) -> Result<()> {
        self.bind()?;
        let (to, bytes) = (values.as_mut_ptr().cast::<c_void>(), size_of_val(values));
        let of = self.stream(stream);
        if self.is_pinned(from) {
            ask!(self, "wait", cu::cuStreamSynchronize(of))?;
            // SAFETY: the table checked that the buffer has as many values; any bits are a value of T.
            unsafe { std::ptr::copy(from.0 as *const u8, to.cast::<u8>(), bytes) };
            return Ok(());
        }
        ask!(self, "read", cu::cuMemcpyDtoHAsync_v2(to, from.0, bytes, of))?;
        ask!(self, "read", cu::cuStreamSynchronize(of))
    }

    fn copy(&mut self, stream: Stream, from: Address, to: Address, bytes: usize) -> Result<()> {
        self.bind()?;
        let of = self.stream(stream);
        ask!(self, "copy", cu::cuMemcpyAsync(to.0, from.0, bytes, of))
    }

    fn fill(&mut self, stream: Stream, at: Address, byte: u8, bytes: usize) -> Result<()> {
        self.bind()?;
        let of = self.stream(stream);
        ask!(self, "fill", cu::cuMemsetD8Async(at.0, byte, bytes, of))
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
            return Err(failed(&self.name, kernel, "there is no such kernel"));
        };
        let mut list = [from_ref(args).cast_mut().cast::<c_void>()];
        let (of, list) = (self.stream(stream), from_mut(&mut list).cast::<*mut c_void>());
        let none = null_mut();
        let (b, t) = (blocks, THREADS);
        // The argument is copied by the call.
        let done = ask!(
            self,
            kernel,
            cu::cuLaunchKernel(function, b, 1, 1, t, 1, 1, 0, of, list, none)
        );
        done
    }

    fn order(&mut self, before: Stream, then: Stream) -> Result<()> {
        self.bind()?;
        let event = self.events[before.index()];
        let (before, then) = (self.stream(before), self.stream(then));
        ask!(self, "order", cu::cuEventRecord(event, before))?;
        ask!(self, "order", cu::cuStreamWaitEvent(then, event, 0))
    }

    fn wait(&mut self, stream: Stream) -> Result<()> {
        self.bind()?;
        let of = self.stream(stream);
        ask!(self, "wait", cu::cuStreamSynchronize(of))
    }

    fn begin_capture(&mut self, stream: Stream) -> Result<()> {
        self.bind()?;
        let of = self.stream(stream);
        let mode = cu::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        ask!(self, "record", cu::cuStreamBeginCapture_v2(of, mode))
    }

    fn end_capture(&mut self, stream: Stream) -> Result<GraphId> {
        self.bind()?;
        let of = self.stream(stream);
        let (mut graph, mut ready) = (null_mut(), null_mut());
        let to = (&raw mut graph, &raw mut ready);
        ask!(self, "record", cu::cuStreamEndCapture(of, to.0))?;
        ask!(self, "record", cu::cuGraphInstantiateWithFlags(to.1, graph, 0))?;
        self.graphs.push((graph, ready));
        Ok(GraphId(narrow(self.graphs.len() - 1)))
    }

    fn replay(&mut self, stream: Stream, graph: GraphId) -> Result<()> {
        self.bind()?;
        let Some((_, ready)) = self.graphs.get(graph.0 as usize).copied() else {
            let why = "nothing was recorded under this number";
            return Err(failed(&self.name, "replay", why));
        };
        let of = self.stream(stream);
        ask!(self, "replay", cu::cuGraphLaunch(ready, of))
    }

    fn mark(&mut self, stream: Stream) -> Result<Mark> {
        self.bind()?;
        let mut event = null_mut();
        let (to, of) = (&raw mut event, self.stream(stream));
        ask!(self, "mark", cu::cuEventCreate(to, 0))?;
        self.marks.push(event);
        ask!(self, "mark", cu::cuEventRecord(event, of))?;
        Ok(Mark(narrow(self.marks.len() - 1)))
    }

    fn seconds(&mut self, from: Mark, to: Mark) -> Result<f64> {
        self.bind()?;
        let at = |mark: Mark| self.marks.get(mark.0 as usize).copied();
        let (Some(from), Some(to)) = (at(from), at(to)) else {
            return Err(failed(&self.name, "take the time", "no such mark was taken"));
        };
        ask!(self, "take the time", cu::cuEventSynchronize(to))?;
        let mut milliseconds = 0f32;
        let out = &raw mut milliseconds;
        ask!(self, "take the time", cu::cuEventElapsedTime_v2(out, from, to))?;
        Ok(f64::from(milliseconds) / 1e3)
    }
}

impl Drop for CudaLauncher {
    /// Gives everything back; who breaks a context has nothing to give.
    fn drop(&mut self) {
        if self.context.is_null() || self.bind().is_err() {
            return;
        }
        for stream in self.streams.into_iter().filter(|s| !s.is_null()) {
            // SAFETY: made by `start`, destroyed once, after all its work.
            let _done = unsafe { cu::cuStreamSynchronize(stream) };
            // SAFETY: as above.
            let _done = unsafe { cu::cuStreamDestroy_v2(stream) };
        }
        for (graph, ready) in std::mem::take(&mut self.graphs) {
            // SAFETY: made by `end_capture`, destroyed once.
            let _done = unsafe { cu::cuGraphExecDestroy(ready) };
            // SAFETY: as above.
            let _done = unsafe { cu::cuGraphDestroy(graph) };
        }
        let marks = std::mem::take(&mut self.marks);
        for event in marks.into_iter().chain(self.events).filter(|e| !e.is_null()) {
            // SAFETY: made by `mark` or `start`, destroyed once.
            let _done = unsafe { cu::cuEventDestroy_v2(event) };
        }
        for (address, memory) in std::mem::take(&mut self.memory) {
            let _done = match memory {
                // SAFETY: allocated by `allocate`, freed once: the map was taken.
                Memory::Device => unsafe { cu::cuMemFree_v2(address) },
                // SAFETY: as above.
                Memory::Pinned => unsafe { cu::cuMemFreeHost(address as *mut c_void) },
            };
        }
        if !self.module.is_null() {
            // SAFETY: loaded by `load_image`; no launch runs any more.
            let _done = unsafe { cu::cuModuleUnload(self.module) };
        }
        // SAFETY: retained once by `start`.
        let _done = unsafe { cu::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a machine without a driver; with one, the device opens.
    #[test]
    fn a_machine_without_a_driver_gets_an_error_that_names_the_way_out() {
        for _ in 0..2 {
            match CudaLauncher::open(0, &()) {
                Ok(launcher) => assert!(launcher.info.multiprocessors > 0),
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.starts_with("cuda:0: "), "{text}");
                    assert!(
                        text.contains("install") || text.contains("nvidia-smi")
                            || text.contains("NVRTC"),
                        "{text}"
                    );
                }
            }
        }
    }
}
