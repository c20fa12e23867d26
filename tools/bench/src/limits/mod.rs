//! What can this machine do at all? The limits that each workload is compared with.
//!
//! - `device`: direct reads and writes of incompressible data, at the best of several depths.
//! - `files`: files like those of a store, written and synced.
//! - `memory`: rows gathered from and updated in a bare array, with the engine's own arithmetic,
//!   in huge pages, at the best prefetch distance.
//!
//! A limit must not be understated: threads are started before the clock, share nothing while it
//! runs, and no step waits for another.

pub mod device;
pub mod files;
pub mod memory;

/// Splits `total` over `parts` as evenly as it goes; the part with this number.
#[must_use]
pub fn share(total: usize, parts: usize, part: usize) -> usize {
    total / parts + usize::from(part < total % parts)
}
