//! Are libcuda and NVRTC there, and whole?
//!
//! Both are loaded when a device is opened. cudarc looks a function up when it is called first, and
//! panics where the library, or the function in it, is missing; so all that this crate calls is
//! looked up here beforehand.
//!
//! Invariants:
//! - Only a library that has every function in its list is ever called, so that cudarc cannot
//!   panic.
//! - A library is looked for once in a process; what was found, or was missing, is said ever after.
#![expect(
    unsafe_code,
    reason = "loads the libraries of CUDA and calls the driver"
)]

use std::ffi::{c_int, c_void};
use std::panic::catch_unwind;
use std::sync::OnceLock;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use cudarc::nvrtc;

/// All functions of libcuda that this crate calls, itself or by cudarc.
const DRIVER_FUNCTIONS: &[&str] = &[
    "cuInit",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuDriverGetVersion",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxSetCurrent",
    "cuStreamCreate",
    "cuStreamSynchronize",
    "cuStreamDestroy_v2",
    "cuStreamWaitEvent",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuEventElapsedTime_v2",
    "cuEventDestroy_v2",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphExecDestroy",
    "cuGraphDestroy",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemGetInfo_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyAsync",
    "cuMemsetD8Async",
    "cuModuleLoadData",
    "cuModuleGetFunction",
    "cuModuleUnload",
    "cuLaunchKernel",
];

/// All functions of NVRTC that this crate calls.
const NVRTC_FUNCTIONS: &[&str] = &[
    "nvrtcVersion",
    "nvrtcCreateProgram",
    "nvrtcCompileProgram",
    "nvrtcDestroyProgram",
    "nvrtcGetProgramLogSize",
    "nvrtcGetProgramLog",
    "nvrtcGetCUBINSize",
    "nvrtcGetCUBIN",
];

/// The driver of this machine.
#[derive(Clone, Copy, Debug)]
pub struct Driver {
    /// The GPUs that this process may use.
    pub devices: usize,
    /// The newest CUDA that it runs: (13, 0).
    pub version: (c_int, c_int),
}

/// A version as CUDA numbers it: 13000 is 13.0.
fn version_of(number: c_int) -> (c_int, c_int) {
    (number / 1000, number % 1000 / 10)
}

/// What the driver says of an error: its name, its number, its text.
pub fn text_of(error: DriverError) -> String {
    let said = |text: Result<&std::ffi::CStr, DriverError>| {
        text.map(|text| text.to_string_lossy().into_owned()).ok()
    };
    let number = error.0 as u32;
    let name = said(error.error_name()).unwrap_or_else(|| "an unknown error".to_owned());
    match said(error.error_string()) {
        Some(text) => format!("{name} ({number}): {text}"),
        None => format!("{name} ({number})"),
    }
}

/// The driver, or why there is none and the way out.
pub fn driver() -> Result<Driver, String> {
    static DRIVER: OnceLock<Result<Driver, String>> = OnceLock::new();
    DRIVER
        .get_or_init(|| without_panic("libcuda", load_driver))
        .clone()
}

fn load_driver() -> Result<Driver, String> {
    // SAFETY: loads libcuda as any program that uses CUDA does; what its constructors do is
    // NVIDIA's.
    let there = unsafe { sys::is_culib_present() };
    if !there {
        return Err(
            "no NVIDIA driver: libcuda.so.1 was not found; install the driver, or use Device::Cpu"
                .to_owned(),
        );
    }
    // SAFETY: as above; cudarc keeps it loaded from here on.
    let library = unsafe { sys::culib() };
    for name in DRIVER_FUNCTIONS {
        // SAFETY: the symbol is only looked up, never used by this type.
        let found = unsafe { library.get::<*mut c_void>(name.as_bytes()) };
        if found.is_err() {
            return Err(format!(
                "the NVIDIA driver is too old, or libcuda is not its own: it has no {name}; \
                 install a driver of CUDA 12.8 or later (570), or use Device::Cpu"
            ));
        }
    }
    let unfit = |error: DriverError| {
        let advice = "see that nvidia-smi lists a GPU and that CUDA_VISIBLE_DEVICES does not hide \
                      it, or use Device::Cpu";
        format!("{}; {advice}", text_of(error))
    };
    result::init().map_err(unfit)?;
    let count = result::device::get_count().map_err(unfit)?;
    let mut version = 0;
    // SAFETY: the driver was initialised above; it writes one c_int.
    let asked = unsafe { sys::cuDriverGetVersion(&raw mut version) };
    asked.result().map_err(unfit)?;
    Ok(Driver {
        devices: usize::try_from(count).unwrap_or(0),
        version: version_of(version),
    })
}

/// NVRTC's version, or why there is none.
pub fn nvrtc() -> Result<(c_int, c_int), String> {
    static NVRTC: OnceLock<Result<(c_int, c_int), String>> = OnceLock::new();
    NVRTC
        .get_or_init(|| without_panic("libnvrtc", load_nvrtc))
        .clone()
}

fn load_nvrtc() -> Result<(c_int, c_int), String> {
    // SAFETY: loads libnvrtc as any program that uses it does.
    let there = unsafe { nvrtc::sys::is_culib_present() };
    if !there {
        return Err("NVRTC, which compiles the kernels, was not found".to_owned());
    }
    // SAFETY: as above; cudarc keeps it loaded from here on.
    let library = unsafe { nvrtc::sys::culib() };
    for name in NVRTC_FUNCTIONS {
        // SAFETY: the symbol is only looked up, never used by this type.
        let found = unsafe { library.get::<*mut c_void>(name.as_bytes()) };
        if found.is_err() {
            return Err(format!(
                "the NVRTC that was found is too old: it has no {name}"
            ));
        }
    }
    let (mut major, mut minor) = (0, 0);
    // SAFETY: NVRTC writes two c_int.
    let asked = unsafe { nvrtc::sys::nvrtcVersion(&raw mut major, &raw mut minor) };
    match asked.result() {
        Ok(()) => Ok((major, minor)),
        Err(error) => Err(format!("NVRTC does not say its version: {error}")),
    }
}

/// A panic of a loader is an error, too. None is known: all functions are looked up before they are
/// called.
fn without_panic<T>(library: &str, load: fn() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(load).unwrap_or_else(|_| Err(format!("{library} could not be loaded: a panic")))
}
