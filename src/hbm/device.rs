//! On what does a table run?

#[cfg(feature = "emu")]
use super::emulator::{Emulator, Faults};
#[cfg(any(feature = "emu", feature = "cuda"))]
use super::table::DevTable;
use super::{CpuTable, HbmOptions, HbmTable, shape::Shape};
#[cfg(not(all(feature = "emu", feature = "cuda")))]
use crate::error::Error;
use crate::error::Result;
use crate::options::TableDescriptor;

/// Where the rows of a table lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Device {
    /// Host memory, plain Rust: the oracle, and for machines without a GPU.
    Cpu,
    /// The GPU of this number, in the order of CUDA_VISIBLE_DEVICES. Needs the feature `cuda`.
    Cuda(usize),
    /// The emulator of the kernels, under a schedule of this seed. Needs the feature `emu`; for tests.
    Emulated(u64),
}

/// A table of rows on a device, with empty indexes.
///
/// # Errors
/// `InvalidArgument` for options out of range; `Device` where there is no such device, no driver, or this
/// build does not have the feature; `DeviceMemory` where [`super::footprint`] is more than there is.
pub fn open(
    device: Device,
    descriptor: &TableDescriptor,
    options: &HbmOptions,
) -> Result<Box<dyn HbmTable>> {
    let shape = Shape::new(descriptor, options)?;
    match device {
        Device::Cpu => Ok(Box::new(CpuTable::of(shape)?)),
        #[cfg(feature = "cuda")]
        Device::Cuda(number) => {
            let launcher = super::driver::CudaLauncher::open(number, &())?;
            Ok(Box::new(DevTable::new(launcher, shape)?))
        }
        #[cfg(not(feature = "cuda"))]
        Device::Cuda(number) => Err(lacking(&format!("cuda:{number}"), "cuda")),
        #[cfg(feature = "emu")]
        Device::Emulated(seed) => {
            let launcher = Emulator::new(seed, Faults::default());
            Ok(Box::new(DevTable::new(launcher, shape)?))
        }
        #[cfg(not(feature = "emu"))]
        Device::Emulated(_) => Err(lacking("emulator", "emu")),
    }
}

#[cfg(not(all(feature = "emu", feature = "cuda")))]
fn lacking(device: &str, feature: &str) -> Error {
    Error::Device {
        device: device.to_owned(),
        operation: "open".to_owned(),
        why: format!(
            "this build of hps has not the feature {feature}: build it with --features {feature}"
        ),
    }
}

/// A table on the emulator that meets faults.
///
/// # Errors
/// As [`open`], and the faults.
#[cfg(feature = "emu")]
pub fn open_with_faults(
    (seed, faults): (u64, Faults),
    descriptor: &TableDescriptor,
    options: &HbmOptions,
) -> Result<Box<dyn HbmTable>> {
    let shape = Shape::new(descriptor, options)?;
    Ok(Box::new(DevTable::new(Emulator::new(seed, faults), shape)?))
}
