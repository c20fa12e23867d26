//! What do rows lie in? Zeroed allocations, cut into units of equal size.
//!
//! - The first region holds all units that there were at first: most rows are found with one check.
//!   Later ones are looked for.
//! - Units are numbered through all regions; each region begins at a multiple of a unit's size.
//! - Pages are touched when a row is first written: what is not used costs no memory.
//! - A forked child does not get the pages: they would be copied whenever the parent changed a row.

use crate::error::{ArgumentError, Error, Result};
use crate::fork::Process;
use crate::pages::{advise_huge, release, share_with_children};
use crate::units::to_usize;

/// f32s that are copied at a time between regions.
const CHUNK_F32S: usize = 256;

/// One allocation.
#[derive(Debug)]
struct Region {
    rows: Vec<f32>,
    /// Where its first unit begins.
    first: usize,
    /// f32s of the units before it in all regions.
    before: usize,
    /// Whose rows they are.
    process: Process,
}

impl Region {
    fn new(before: usize, f32s: usize, unit_f32s: usize) -> Result<Region> {
        let asked = f32s + unit_f32s;
        check_memory(asked)?;
        let mut rows = vec![0.0; asked];
        advise_huge(&rows);
        share_with_children(&rows, false);
        let past = rows.as_ptr().addr() / size_of::<f32>() % unit_f32s;
        let first = (unit_f32s - past) % unit_f32s;
        rows.truncate(first + f32s);
        Ok(Region {
            rows,
            first,
            before,
            process: Process::this(),
        })
    }

    /// The f32s of its units.
    fn f32s(&self) -> usize {
        self.rows.len() - self.first
    }

    fn holds(&self, start: usize) -> bool {
        start >= self.before && start - self.before < self.f32s()
    }

    fn get(&self, start: usize, f32s: usize) -> &[f32] {
        let start = self.first + start - self.before;
        &self.rows[start..start + f32s]
    }

    fn get_mut(&mut self, start: usize, f32s: usize) -> &mut [f32] {
        let start = self.first + start - self.before;
        &mut self.rows[start..start + f32s]
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.process.is_this() {
            // The allocator may give the pages to others, who want them in children.
            share_with_children(&self.rows, true);
        } else {
            // Not there.
            std::mem::forget(std::mem::take(&mut self.rows));
        }
    }
}

/// Asks for memory and gives it back: a vector that can't be had aborts the process.
fn check_memory(f32s: usize) -> Result<()> {
    let mut asked = Vec::<f32>::new();
    let had = asked.try_reserve_exact(f32s).is_ok();
    // Else the compiler may leave both out.
    std::hint::black_box(&asked);
    if had {
        return Ok(());
    }
    let bytes = f32s * size_of::<f32>();
    Err(Error::InvalidArgument(ArgumentError::Option {
        name: "cache_bytes",
        value: format!("{bytes} bytes for the rows of one shard"),
        why: String::from("the system does not give so much memory"),
    }))
}

/// All regions.
#[derive(Debug)]
pub(super) struct Memory {
    first: Region,
    more: Vec<Region>,
    unit_f32s: usize,
}

impl Memory {
    pub fn new(units: usize, unit_bytes: u64) -> Result<Memory> {
        let unit_f32s = to_usize(unit_bytes) / size_of::<f32>();
        Ok(Memory {
            first: Region::new(0, units * unit_f32s, unit_f32s)?,
            more: Vec::new(),
            unit_f32s,
        })
    }

    /// Adds a region of so many units.
    pub fn grow(&mut self, units: usize) -> Result<()> {
        let last = self.more.last().unwrap_or(&self.first);
        let before = last.before + last.f32s();
        let region = Region::new(before, units * self.unit_f32s, self.unit_f32s)?;
        self.more.push(region);
        Ok(())
    }

    #[cfg(test)]
    pub fn bytes_allocated(&self) -> usize {
        let regions = std::iter::once(&self.first).chain(&self.more);
        let f32s: usize = regions.map(|region| region.rows.capacity()).sum();
        f32s * size_of::<f32>()
    }

    #[inline]
    pub fn get(&self, start: usize, f32s: usize) -> &[f32] {
        let here = self.first.first + start;
        match self.first.rows.get(here..here + f32s) {
            Some(row) => row,
            None => self.get_far(start, f32s),
        }
    }

    #[cold]
    fn get_far(&self, start: usize, f32s: usize) -> &[f32] {
        match self.more.iter().find(|region| region.holds(start)) {
            Some(region) => region.get(start, f32s),
            None => unreachable!("a place that no row has"),
        }
    }

    #[inline]
    pub fn get_mut(&mut self, start: usize, f32s: usize) -> &mut [f32] {
        let here = self.first.first + start;
        match self.first.rows.get_mut(here..here + f32s) {
            Some(row) => row,
            None => get_mut_far(&mut self.more, start, f32s),
        }
    }

    /// Copies f32s over others; each lie in one region.
    pub fn copy(&mut self, source: usize, target: usize, f32s: usize) {
        let mut chunk = [0.0; CHUNK_F32S];
        let mut done = 0;
        while done < f32s {
            let chunk = &mut chunk[..CHUNK_F32S.min(f32s - done)];
            chunk.copy_from_slice(self.get(source + done, chunk.len()));
            let target = self.get_mut(target + done, chunk.len());
            target.copy_from_slice(chunk);
            done += chunk.len();
        }
    }

    /// Gives the pages of a unit back to the system, if it takes them: they read as zeros then.
    pub fn release(&mut self, unit: usize) -> bool {
        let f32s = self.unit_f32s;
        release(self.get_mut(unit * f32s, f32s))
    }
}

#[cold]
fn get_mut_far(more: &mut [Region], start: usize, f32s: usize) -> &mut [f32] {
    match more.iter_mut().find(|region| region.holds(start)) {
        Some(region) => region.get_mut(start, f32s),
        None => unreachable!("a place that no row has"),
    }
}
