//! Where is the content of a row? One zeroed allocation, a fixed stride per place.
//!
//! - Pages are touched when a place is first used: an idle table costs no memory.
//! - Places never move and are never freed to the allocator.

use super::lists::HEADS;

#[derive(Debug)]
pub(crate) struct Slab {
    rows: Vec<f32>,
    row_f32s: usize,
}

impl Slab {
    pub fn new(capacity: usize, row_f32s: usize) -> Slab {
        Slab {
            rows: vec![0.0; capacity * row_f32s],
            row_f32s,
        }
    }

    pub fn bytes_allocated(&self) -> usize {
        self.rows.capacity() * size_of::<f32>()
    }

    #[inline]
    pub fn row(&self, slot: u32) -> &[f32] {
        let start = (slot as usize - HEADS) * self.row_f32s;
        &self.rows[start..start + self.row_f32s]
    }

    #[inline]
    pub fn row_mut(&mut self, slot: u32) -> &mut [f32] {
        let start = (slot as usize - HEADS) * self.row_f32s;
        &mut self.rows[start..start + self.row_f32s]
    }

    /// Copies one row over another.
    pub fn copy(&mut self, source: u32, target: u32) {
        let start = (source as usize - HEADS) * self.row_f32s;
        let target = (target as usize - HEADS) * self.row_f32s;
        self.rows.copy_within(start..start + self.row_f32s, target);
    }
}
