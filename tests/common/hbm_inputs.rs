//! What tests of rows in device memory begin with.

use super::rng::Rng;
use hps::hbm::Device;
use std::ops::Range;

/// The table in plain Rust; with the feature `emu` also emulators of these seeds.
pub fn devices(seeds: Range<u64>) -> Vec<Device> {
    let emulated = seeds.filter(|_| cfg!(feature = "emu"));
    let emulated = emulated.map(Device::Emulated);
    [Device::Cpu].into_iter().chain(emulated).collect()
}

pub fn floats(rng: &mut Rng, count: usize) -> Vec<f32> {
    let value = |rng: &mut Rng| (rng.below(2001) as f32 - 1000.0) / 512.0;
    (0..count).map(|_| value(rng)).collect()
}
