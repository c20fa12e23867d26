//! Where is the content of a row? One zeroed allocation, a fixed stride per slot.
//!
//! - Pages are touched when a slot is first used: an idle table costs no memory.
//! - Slots never move and are never freed to the allocator.
//! - A forked child does not get the pages: they would be copied whenever the parent changed a row.
//! - The first slot begins at a cache line, so that rows of whole lines cross none.

use crate::fork::Process;
use crate::pages::{advise_huge, prefetch, share_with_children};
use crate::units::Slot;

/// f32s of a cache line.
const LINE_F32S: usize = 16;

#[derive(Debug)]
pub(crate) struct Slab {
    rows: Vec<f32>,
    row_f32s: usize,
    /// Where the first slot begins.
    first: usize,
    /// Whose rows they are.
    process: Process,
}

impl Slab {
    /// f32s that are allocated for `capacity` slots.
    pub fn f32s_for(capacity: usize, row_f32s: usize) -> usize {
        capacity * row_f32s + LINE_F32S
    }

    pub fn new(capacity: usize, row_f32s: usize) -> Slab {
        let rows = vec![0.0; Slab::f32s_for(capacity, row_f32s)];
        advise_huge(&rows);
        share_with_children(&rows, false);
        let past = rows.as_ptr().addr() / size_of::<f32>() % LINE_F32S;
        Slab {
            rows,
            row_f32s,
            first: (LINE_F32S - past) % LINE_F32S,
            process: Process::this(),
        }
    }

    pub fn bytes_allocated(&self) -> usize {
        self.rows.capacity() * size_of::<f32>()
    }

    #[inline]
    fn start(&self, slot: Slot) -> usize {
        self.first + slot.index() * self.row_f32s
    }

    #[inline]
    pub fn row(&self, slot: Slot) -> &[f32] {
        let start = self.start(slot);
        &self.rows[start..start + self.row_f32s]
    }

    #[inline]
    pub fn row_mut(&mut self, slot: Slot) -> &mut [f32] {
        let start = self.start(slot);
        &mut self.rows[start..start + self.row_f32s]
    }

    /// Announces that the first `width` words of a row are needed soon.
    #[inline]
    pub fn prefetch_line(&self, slot: Slot, width: usize) {
        let start = self.start(slot);
        prefetch(&self.rows[start..start + width]);
    }

    /// Copies one row over another.
    pub fn copy(&mut self, source: Slot, target: Slot) {
        let (start, target) = (self.start(source), self.start(target));
        self.rows.copy_within(start..start + self.row_f32s, target);
    }
}

impl Drop for Slab {
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
