//! How is a batch served whose rows are mostly in memory? One visit per row.
//!
//! - Found, pinned, told to the policy and copied out a group at a time: a state is visited while
//!   its cache line is near, and the misses of a group overlap.
//! - What can't be copied yet, because it is not in memory or is being read, is named to the
//!   caller; rows that are there are pinned whatever else the batch needs.

use super::buckets::{GROUP, NO_SLOT};
use super::cache::TableCache;
use super::policy::Policy;
use super::row_state::Flags;

/// What a batch found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// Rows that nobody had pinned before.
    pub newly_pinned: usize,
    /// Distinct rows that were ever pushed and not removed since.
    pub known: usize,
    /// Whether a row was found at two positions. It may be true by accident, once in 65 535
    /// batches.
    pub repeats: bool,
}

/// Rows of a group that were announced: (index, place).
#[derive(Default)]
struct Ready {
    rows: [(usize, u32); GROUP],
    count: usize,
}

impl Ready {
    #[inline]
    fn push(&mut self, index: usize, slot: u32) {
        self.rows[self.count] = (index, slot);
        self.count += 1;
    }
}

impl TableCache {
    /// Finds, pins and touches rows, and copies the first words of each into its target.
    ///
    /// `slots` gets each row's place, [`NO_SLOT`] if it is not in memory; `rest` the indexes of
    /// rows that were not copied: not in memory, being read, or failed to be.
    ///
    /// # Shapes
    /// hashes: `[n]`, slots: `[n]`; targets: `[n]` of equal length each, or none
    pub fn hit_batch(
        &mut self,
        hashes: &[u64],
        slots: &mut [u32],
        targets: &mut [&mut [f32]],
        rest: &mut Vec<u32>,
    ) -> Hits {
        assert!(
            targets.is_empty() || targets.len() == hashes.len(),
            "one target per hash"
        );
        let width = targets.first().map_or(0, |t| t.len());
        let pinned = self.counts.pinned;
        let mut hits = Hits::default();
        self.batch = if self.batch == u16::MAX {
            1
        } else {
            self.batch + 1
        };
        let groups = hashes.len().div_ceil(GROUP);
        let at = |g: usize| (g * GROUP).min(hashes.len())..((g + 1) * GROUP).min(hashes.len());
        // Group g is served while g + 1 and g + 2 are on their way, and g - 1 is copied.
        let mut near = self.buckets.announce_group(&hashes[at(0)]);
        self.buckets
            .approach_group(&self.rows, &mut near[..at(0).len()]);
        let mut far = self.buckets.announce_group(&hashes[at(1)]);
        let mut ready = Ready::default();
        for group in 0..groups {
            let next = self.buckets.announce_group(&hashes[at(group + 2)]);
            let ahead = &mut far[..at(group + 1).len()];
            self.buckets.approach_group(&self.rows, ahead);
            let mut found = [0; GROUP];
            let mut count = 0;
            let mut soon = Ready::default();
            for ((i, hash), probe) in at(group).zip(&hashes[at(group)]).zip(&near) {
                let slot = self.buckets.arrive(&self.rows, *hash, probe);
                slots[i] = slot;
                if slot != NO_SLOT {
                    found[count] = slot;
                    count += 1;
                    let flags = self.pin_found(slot, &mut hits);
                    if !flags.any(Flags::LOADING | Flags::FAILED) {
                        if width > 0 {
                            self.slab.prefetch(slot, width);
                            soon.push(i, slot);
                        }
                        continue;
                    }
                }
                rest.push(u32::try_from(i).unwrap_or(u32::MAX));
            }
            self.policy.touched(&mut self.rows, &found[..count]);
            self.copy_ready(&ready, targets, width);
            (near, far, ready) = (far, next, soon);
        }
        self.copy_ready(&ready, targets, width);
        hits.newly_pinned = self.counts.pinned - pinned;
        hits
    }

    #[inline]
    fn copy_ready(&self, ready: &Ready, targets: &mut [&mut [f32]], width: usize) {
        for (i, slot) in &ready.rows[..ready.count] {
            targets[*i].copy_from_slice(&self.slab.row(*slot)[..width]);
        }
    }

    #[inline]
    fn pin_found(&mut self, slot: u32, hits: &mut Hits) -> Flags {
        let batch = self.batch;
        let state = self.raise(slot);
        let first = std::mem::replace(&mut state.batch, batch) != batch;
        let gone = state.flags.any(Flags::ABSENT | Flags::REMOVED);
        hits.known += usize::from(first && !gone);
        hits.repeats |= !first;
        state.flags
    }

    /// Copies the first words of rows into their targets.
    ///
    /// # Shapes
    /// slots: `[n]`, targets: `[n]` of equal length each
    pub fn gather(&self, slots: &[u32], targets: &mut [&mut [f32]]) {
        let width = targets.first().map_or(0, |t| t.len());
        for (slots, targets) in slots.chunks(GROUP).zip(targets.chunks_mut(GROUP)) {
            for slot in slots {
                self.slab.prefetch(*slot, width);
            }
            for (slot, target) in slots.iter().zip(targets) {
                target.copy_from_slice(&self.slab.row(*slot)[..width]);
            }
        }
    }

    /// Announces that a row is changed soon.
    #[inline]
    pub fn prefetch(&self, slot: u32) {
        self.slab.prefetch(slot, self.row_f32s);
    }
}
