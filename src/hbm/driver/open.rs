//! How is a GPU opened? The driver, the primary context, two streams, the kernels.
//!
//! Invariants:
//! - A launcher exists from the context on: what fails later gives back what was taken before.
//! - Kernels that the driver refuses are compiled afresh, once.
#![expect(unsafe_code, reason = "calls the driver of CUDA with raw handles")]

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CString, c_int};
use std::sync::OnceLock;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use super::library::{self, Driver};
use super::{CudaLauncher, KernelCache, compile, failed};
use crate::error::Result;
use crate::hbm::kernels;
use crate::hbm::launcher::Stream;

/// Whether a driver refused a CUBIN for what it is.
fn is_unfit(error: DriverError) -> bool {
    use sys::CUresult as E;
    matches!(
        error.0,
        E::CUDA_ERROR_INVALID_IMAGE
            | E::CUDA_ERROR_NO_BINARY_FOR_GPU
            | E::CUDA_ERROR_UNSUPPORTED_PTX_VERSION
    )
}

impl CudaLauncher {
    /// Opens the GPU of this number, in the order of CUDA_VISIBLE_DEVICES, with the kernels from
    /// the cache or compiled afresh.
    ///
    /// # Errors
    /// `Device`: there is no driver, no such GPU, no NVRTC, or they refuse; it tells the way out.
    pub fn open(index: usize, cache: &dyn KernelCache) -> Result<CudaLauncher> {
        let device = format!("cuda:{index}");
        let driver = library::driver().map_err(|why| failed(&device, "open", why))?;
        let number = c_int::try_from(index).ok();
        let Some(number) = number.filter(|_| index < driver.devices) else {
            let why = match driver.devices {
                1 => "there is one GPU, cuda:0".to_owned(),
                count => format!("there are {count} GPUs, numbered from 0"),
            };
            return Err(failed(&device, "open", why));
        };
        let mut launcher = CudaLauncher::retain(device, driver, number)?;
        launcher.prepare(cache)?;
        Ok(launcher)
    }

    /// A launcher that holds the primary context and nothing else: from here on, Drop cleans up.
    fn retain(device: String, driver: Driver, number: c_int) -> Result<CudaLauncher> {
        let refused = |error| failed(&device, "open", library::text_of(error));
        let ordinal = result::device::get(number).map_err(refused)?;
        let name = result::device::get_name(ordinal).map_err(refused)?;
        // SAFETY: the driver gave this device above.
        let context = unsafe { result::primary_ctx::retain(ordinal) }.map_err(refused)?;
        let (major, minor) = driver.version;
        Ok(CudaLauncher {
            name: format!("{name}, CUDA {major}.{minor}"),
            device,
            driver,
            multiprocessors: 0,
            ordinal,
            context,
            module: std::ptr::null_mut(),
            functions: HashMap::new(),
            streams: [std::ptr::null_mut(); 2],
            events: [std::ptr::null_mut(); 2],
            memory: BTreeMap::new(),
            recording: None,
            graphs: Vec::new(),
            marks: Vec::new(),
            marks_taken: 0,
            lost: OnceLock::new(),
        })
    }

    fn prepare(&mut self, cache: &dyn KernelCache) -> Result<()> {
        use sys::CUdevice_attribute as Attribute;
        self.bind()?;
        if self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING)? != 1 {
            let why = "the GPU and the host do not share addresses; use Device::Cpu";
            return Err(failed(&self.device, "open", why));
        }
        let count = self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        self.multiprocessors = u32::try_from(count).unwrap_or(0);
        let capability = (
            self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        for stream in Stream::ALL {
            let made = result::stream::create(result::stream::StreamKind::NonBlocking);
            self.streams[stream.index()] = self.check("make a stream", made)?;
            let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
            let made = result::event::create(flags);
            self.events[stream.index()] = self.check("make an event", made)?;
        }
        self.load_kernels(capability, cache)
    }

    fn attribute(&self, which: sys::CUdevice_attribute) -> Result<c_int> {
        // SAFETY: the driver gave this device when it was opened.
        let value = unsafe { result::device::get_attribute(self.ordinal, which) };
        self.check("open", value)
    }

    /// From the cache; where that has none, or one that this driver refuses, compiled afresh.
    fn load_kernels(&mut self, capability: (i32, i32), cache: &dyn KernelCache) -> Result<()> {
        let mut refused = String::new();
        if let Some(cubin) = compile::cached(capability, cache) {
            match self.load_module(&cubin) {
                Ok(()) => return Ok(()),
                Err(refusal) if self.lost.get().is_some() => return Err(refusal),
                Err(refusal) => {
                    self.unload();
                    refused = format!("; the kernels at hand were refused: {refusal}");
                }
            }
        }
        let cubin = compile::compile(capability, cache)
            .map_err(|why| failed(&self.device, "compile the kernels", why + &refused))?;
        self.load_module(&cubin)
    }

    fn load_module(&mut self, cubin: &[u8]) -> Result<()> {
        let operation = "load the kernels";
        // SAFETY: the CUBIN is whole (`compile` checks it): the driver reads no byte behind it.
        let loaded = unsafe { result::module::load_data(cubin.as_ptr().cast()) };
        self.module = match loaded {
            Err(error) if is_unfit(error) => {
                return Err(failed(&self.device, operation, self.misfit(error)));
            }
            loaded => self.check(operation, loaded)?,
        };
        for kernel in kernels::NAMES {
            let name = CString::new(*kernel).unwrap_or_default();
            // SAFETY: the module was loaded above.
            let found = unsafe { result::module::get_function(self.module, name) };
            let function = self.check(format_args!("find the kernel {kernel}"), found)?;
            self.functions.insert(kernel, function);
        }
        Ok(())
    }

    /// Why a driver refuses kernels, and the way out.
    fn misfit(&self, error: DriverError) -> String {
        let (major, minor) = self.driver.version;
        let made_by = match library::nvrtc() {
            Ok((major, minor)) => format!("NVRTC {major}.{minor}"),
            Err(_) => "another NVRTC".to_owned(),
        };
        format!(
            "{}; the driver is of CUDA {major}.{minor}, the kernels were compiled by {made_by}: \
             install a newer driver, or put an NVRTC of CUDA {major}.{minor} or older into \
             LD_LIBRARY_PATH",
            library::text_of(error)
        )
    }
}
