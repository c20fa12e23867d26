//! How does a key find its row? The host twin of `kernels/index.cu`.
//!
//! Invariants:
//! - Open addressing by sectors of two entries; probing goes on to the next sector and ends at an empty
//!   entry, or after all sectors.
//! - The key that marks an empty entry lives in a cell of its own: any u64 is a key.

use super::arrays::filled;
use crate::error::Result;
use crate::pages::prefetch_item;

/// No row.
pub const NO_ROW: u32 = u32::MAX;
/// An empty entry.
const NO_KEY: u64 = u64::MAX;
/// Entries of an index are at most so much of its capacity: 3 of 5.
const LOAD: (usize, usize) = (3, 5);

/// Sectors of an index for so many keys.
#[must_use]
pub fn sectors_for(keys: usize) -> usize {
    (keys * LOAD.1).div_ceil(LOAD.0 * 2).max(1)
}

/// Bytes of an index of so many sectors on the device, with the cell of its own.
#[must_use]
pub fn bytes_of(sectors: usize) -> usize {
    (2 * sectors + 1) * 16
}

/// Where probing begins. Another mix than mix64, whose high bits name the owner of a key.
#[inline]
pub(super) fn sector_of(key: u64, sectors: usize) -> usize {
    let mut x = key;
    x ^= x >> 33;
    x = x.wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^= x >> 33;
    x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^= x >> 33;
    crate::units::range_of(x, sectors)
}

/// Two entries; they share a cache line.
#[repr(align(32))]
#[derive(Clone, Copy, Debug)]
struct Sector([(u64, u32); 2]);

const EMPTY: Sector = Sector([(NO_KEY, NO_ROW); 2]);

/// Keys and their rows on the host.
#[derive(Clone, Debug)]
pub struct CpuIndex {
    sectors: Vec<Sector>,
    own_cell: u32,
}

/// What became of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Inserted,
    Present,
    Failed,
}

impl CpuIndex {
    /// An empty one.
    pub fn new(sectors: usize) -> Result<CpuIndex> {
        Ok(CpuIndex {
            sectors: filled(EMPTY, sectors, "an index")?,
            own_cell: NO_ROW,
        })
    }

    /// Forgets all keys.
    pub fn clear(&mut self) {
        self.sectors.fill(EMPTY);
        self.own_cell = NO_ROW;
    }

    /// Announces that a key is looked up soon; the sector where probing begins.
    #[inline(always)]
    pub fn prefetch(&self, key: u64) -> usize {
        let sector = sector_of(key, self.sectors.len());
        prefetch_item(&self.sectors, sector);
        sector
    }

    /// The row of a key, or [`NO_ROW`].
    #[inline]
    pub fn find(&self, key: u64) -> u32 {
        self.find_from(sector_of(key, self.sectors.len()), key)
    }

    /// [`CpuIndex::find`], from the sector where probing begins.
    #[inline(always)]
    pub fn find_from(&self, sector: usize, key: u64) -> u32 {
        if key == NO_KEY {
            return self.own_cell;
        }
        let mut at = sector;
        for _ in 0..self.sectors.len() {
            let Sector([a, b]) = self.sectors[at];
            if a.0 == key {
                return a.1;
            }
            if b.0 == key {
                return b.1;
            }
            if a.0 == NO_KEY || b.0 == NO_KEY {
                return NO_ROW;
            }
            at = if at + 1 == self.sectors.len() {
                0
            } else {
                at + 1
            };
        }
        NO_ROW
    }

    /// Makes an entry, if there is room and the key has no other row.
    pub fn insert(&mut self, key: u64, row: u32) -> Outcome {
        if key == NO_KEY {
            return claim(&mut self.own_cell, row);
        }
        let mut at = sector_of(key, self.sectors.len());
        for _ in 0..self.sectors.len() {
            for entry in &mut self.sectors[at].0 {
                if entry.0 == NO_KEY {
                    entry.0 = key;
                }
                if entry.0 == key {
                    return claim(&mut entry.1, row);
                }
            }
            at = if at + 1 == self.sectors.len() {
                0
            } else {
                at + 1
            };
        }
        Outcome::Failed
    }
}

fn claim(cell: &mut u32, row: u32) -> Outcome {
    match *cell {
        NO_ROW => {
            *cell = row;
            Outcome::Inserted
        }
        there if there == row => Outcome::Present,
        _ => Outcome::Failed,
    }
}
