//! Which rows leave, and when is it safe? Dropping clean rows, handing dirty ones to a writer.
//!
//! - The policy names rows from its cold end, once; named rows wait in a queue of clean or one of
//!   dirty rows, so that neither search walks again and again over rows of the other kind. A row
//!   that was used meanwhile goes back to the policy.
//! - A dirty row leaves in three steps: chosen (`take_victims`, `take_frozen`), copied out
//!   (`copy_out`: WRITING), reported (`written`). Between the first two anything may happen to
//!   the row; the second checks again.
//! - A row that changes after a checkpoint's cut is copied into a free slot first
//!   (`begin_write`), inside the budget; copies are written like rows.

use super::cache::{AHEAD_STATES, NAMED_ROWS, TableCache};
use super::lists::{COLD_CLEAN, COLD_DIRTY, FROZEN, HEADS};
use super::policy::Policy;
use super::row_state::{Flags, ListKind, RowState, VISITED};
use crate::units::Slot;

/// Rows that leave at once: their cache misses overlap.
const COLD_ROWS: usize = 16;
/// States scanned by one `take_frozen`, at most: the caller may hold a lock.
const SCAN_ROWS: usize = 1 << 16;

/// A row or copy chosen to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// Hash of the row.
    pub hash: u64,
    /// Its slot.
    pub slot: Slot,
    /// Chosen to leave memory: no longer qualifies once it is pinned.
    evict: bool,
    /// A frozen copy.
    copy: bool,
}

/// What was copied out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Hash of the row.
    pub hash: u64,
    /// Interval in which the row last changed.
    pub interval: u32,
    /// The row is removed: a tombstone is to be written, the content is meaningless.
    pub tombstone: bool,
}

impl TableCache {
    /// Drops clean unpinned rows from the cold end until `want` slots are free or no such row is
    /// left; returns the number of free slots.
    ///
    /// # Cost
    /// Each row looked at moves to where it belongs by now, and is not looked at again until it
    /// has become cold once more.
    pub fn reclaim(&mut self, want: usize) -> usize {
        while self.free() < want && self.evictable() > 0 {
            let mut cold = [Slot::default(); COLD_ROWS];
            let mut count = 0;
            for slot in self.rows.walk(COLD_CLEAN).take(COLD_ROWS) {
                cold[count] = slot;
                count += 1;
                self.prefetch_lines_of_hash(self.rows.get(slot).hash);
            }
            if count == 0 && self.name_victims(want - self.free()) == 0 {
                break;
            }
            for slot in &cold[..count] {
                if self.free() >= want {
                    break;
                }
                self.rows.unlink(*slot);
                let state = self.rows.get(*slot);
                if state.evictable() && state.marks & VISITED == 0 {
                    self.release(*slot);
                    self.evicted += 1;
                } else {
                    self.sort(*slot);
                }
            }
        }
        self.free()
    }

    /// Rows that left so far to make room.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Counts on from where another cache was, which this one replaces.
    pub fn count_on_from(&mut self, before: &TableCache) {
        self.evicted += before.evicted;
    }

    /// Announces to the processor that a row comes in or leaves.
    #[inline]
    pub fn prefetch_lines_of_hash(&self, hash: u64) {
        self.buckets.prefetch_line(hash);
        self.policy.prefetch_line(hash);
    }

    /// Lets the policy name its coldest rows and queues them; returns how many.
    fn name_victims(&mut self, want: usize) -> usize {
        let mut named = std::mem::take(&mut self.named);
        named.clear();
        self.policy
            .coldest(&mut self.rows, want.min(NAMED_ROWS), &mut named);
        for slot in &named {
            self.sort(*slot);
        }
        let count = named.len();
        self.named = named;
        count
    }

    /// Links a row that is on no list: to its queue, or back to the policy if it is in use.
    fn sort(&mut self, slot: Slot) {
        let state = self.rows.get(slot);
        if state.busy() || state.marks & VISITED != 0 {
            self.policy.returned(&mut self.rows, slot);
        } else if state.flags.any(Flags::WRITING) {
            // Linked when the write is reported.
        } else if state.flags.any(Flags::DIRTY) {
            self.rows.push_hot(COLD_DIRTY, slot);
        } else {
            self.rows.push_hot(COLD_CLEAN, slot);
        }
    }

    /// Marks rows as changed in `interval`; positions may repeat. With `frozen`, a dirty row last
    /// changed at or before that interval is copied into a free slot first, for the checkpoint.
    /// Rows for which there may be no other slot must be pinned.
    ///
    /// # Errors
    /// The number of copies for which there was not enough room: every row is as it was. Positions
    /// that repeat count each time.
    pub fn begin_write(
        &mut self,
        slots: &[Slot],
        interval: u32,
        frozen: Option<u32>,
    ) -> Result<(), usize> {
        let before = |state: &RowState, cut| state.flags.any(Flags::DIRTY) && state.interval <= cut;
        if let Some(cut) = frozen {
            // Room for every copy first: a row is marked only when all can be.
            let copies = slots
                .iter()
                .filter(|slot| before(self.rows.get(**slot), cut))
                .count();
            if copies > 0 && self.reclaim(copies) < copies {
                return Err(copies);
            }
        }
        for (i, slot) in slots.iter().enumerate() {
            if let Some(ahead) = slots.get(i + AHEAD_STATES) {
                self.rows.prefetch_line(*ahead);
            }
            let state = *self.rows.get(*slot);
            if frozen.is_some_and(|cut| before(&state, cut)) {
                let kept = Flags::DIRTY | Flags::FROZEN_COPY | (state.flags & Flags::REMOVED);
                let copy = self
                    .take_slot(state.hash, kept, state.interval)
                    .ok_or(1usize)?;
                self.rows.push_hot(FROZEN, copy);
                self.slab.copy(*slot, copy);
            }
            self.counts.dirty += usize::from(!state.flags.any(Flags::DIRTY));
            self.counts.evictable -= usize::from(state.evictable());
            let marked = self.rows.get_mut(*slot);
            let gone = Flags::ABSENT | Flags::REMOVED;
            marked.flags = (marked.flags | Flags::DIRTY).without(gone);
            marked.interval = interval;
            if state.list == ListKind::ColdClean {
                self.rows.unlink(*slot);
                self.policy.returned(&mut self.rows, *slot);
            }
        }
        Ok(())
    }

    /// Chooses the coldest dirty, unpinned rows last changed at or before `interval_max`, at most
    /// `want`; appends them to `victims`. Rows stay as they are until they are copied out, and a
    /// second call before that may choose them again.
    ///
    /// With an `interval_max` that excludes rows (beside a checkpoint) it may find fewer than there
    /// are: it does not search the whole cache.
    pub fn take_victims(&mut self, want: usize, interval_max: u32, victims: &mut Vec<Victim>) {
        if !self.policy.evicts() {
            return;
        }
        let end = victims.len() + want;
        let linked = self.rows.lru_rows + self.rows.lfu_rows;
        let (mut named, mut skipped) = (0, 0);
        let mut last = COLD_DIRTY;
        while victims.len() < end && skipped <= 8 * want + 1024 {
            let Some(slot) = self.rows.warmer(last) else {
                // Dirty rows may be rare, or all pinned: the search ends early with some victims,
                // and after all rows without.
                let some = victims.len() + want > end;
                let enough = named > linked || (some && named > 4 * want);
                let found = if enough {
                    0
                } else {
                    self.name_victims(NAMED_ROWS)
                };
                if found == 0 {
                    return;
                }
                named += found;
                continue;
            };
            let state = self.rows.get(slot);
            let chosen = state.pins == 0 && state.marks & VISITED == 0 && state.writable(u32::MAX);
            if !chosen {
                self.rows.unlink(slot);
                self.sort(slot);
                continue;
            }
            last = slot;
            if state.interval <= interval_max {
                victims.push(Victim {
                    hash: state.hash,
                    slot,
                    evict: true,
                    copy: false,
                });
            } else {
                skipped += 1;
            }
        }
    }

    /// Chooses rows for a checkpoint: dirty ones last changed at or before `cut`, pinned or not, in
    /// slot order from `cursor` (0 at first), then frozen copies. Appends at most `want` to
    /// `victims`; false when nothing is left.
    ///
    /// One call scans a bounded number of slots, so that true may come with few or no victims:
    /// call again. It also stops at a row whose write is in flight and that changed since, before
    /// the cut: report that write first. Once a write of a victim was reported failed, start again
    /// with cursor 0, or give the checkpoint up and call [`TableCache::discard_frozen`].
    pub fn take_frozen(
        &mut self,
        cursor: &mut usize,
        want: usize,
        cut: u32,
        victims: &mut Vec<Victim>,
    ) -> bool {
        let before = victims.len();
        let end = before + want;
        let touched = self.rows.touched();
        let stop = touched.min(*cursor + SCAN_ROWS);
        while *cursor < stop {
            let slot = Slot::new(*cursor + HEADS);
            let state = self.rows.get(slot);
            let frozen = state.flags.any(Flags::DIRTY)
                && !state.flags.any(Flags::FROZEN_COPY)
                && state.interval <= cut;
            if frozen {
                if victims.len() == end || !state.writable(cut) {
                    return true;
                }
                victims.push(Victim {
                    hash: state.hash,
                    slot,
                    evict: false,
                    copy: false,
                });
            }
            *cursor += 1;
        }
        if *cursor < touched {
            return true;
        }
        let mut last = FROZEN;
        let mut left = victims.len() > before;
        while let Some(slot) = self.rows.warmer(last) {
            let state = self.rows.get(slot);
            if state.flags.any(Flags::DIRTY) && state.interval <= cut {
                left = true;
                if victims.len() == end {
                    break;
                }
                victims.push(Victim {
                    hash: state.hash,
                    slot,
                    evict: false,
                    copy: true,
                });
            }
            last = slot;
        }
        left
    }

    /// Drops all frozen copies that are not being written, for a checkpoint that was given up: the
    /// next one must not write them over newer rows. Returns how many were dropped.
    pub fn discard_frozen(&mut self) -> usize {
        let before = self.frozen_copies();
        let mut last = FROZEN;
        while let Some(slot) = self.rows.warmer(last) {
            if self.rows.get(slot).flags.any(Flags::WRITING) {
                last = slot;
            } else {
                self.release(slot);
            }
        }
        before - self.frozen_copies()
    }

    /// Announces to the processor that a victim is copied out or reported soon.
    #[inline]
    pub fn prefetch_lines_of_victim(&self, victim: &Victim, row: bool) {
        self.rows.prefetch_line(victim.slot);
        if row && victim.slot.index() - HEADS < self.rows.touched() {
            self.prefetch_line(victim.slot);
        }
    }

    /// Copies a victim into `row` and marks it as being written; none if it no longer qualifies:
    /// gone, clean, being written, changed after `interval_max`, or pinned though it was to leave.
    pub fn copy_out(
        &mut self,
        victim: &Victim,
        interval_max: u32,
        row: &mut [f32],
    ) -> Option<Taken> {
        if victim.slot.index() - HEADS >= self.rows.touched() {
            return None;
        }
        let state = *self.rows.get(victim.slot);
        let same = state.hash == victim.hash
            && state.flags.any(Flags::FROZEN_COPY) == victim.copy
            && state.writable(interval_max);
        if !same || (victim.evict && state.pins > 0) {
            return None;
        }
        row.copy_from_slice(self.slab.row(victim.slot));
        self.change(victim.slot, |state| {
            state.flags = state.flags.without(Flags::DIRTY).with(Flags::WRITING);
        });
        if state.list == ListKind::ColdDirty {
            self.rows.unlink(victim.slot);
        }
        let tombstone = state.flags.any(Flags::REMOVED);
        Some(Taken {
            hash: state.hash,
            interval: state.interval,
            tombstone,
        })
    }

    /// Reports the write of a victim that was copied out. If it failed, the row is dirty again.
    ///
    /// Returns false if it failed and the state that was copied out exists no more, because the
    /// row was changed since: a checkpoint whose cut lies between can't be completed.
    #[must_use = "a lost state must fail the checkpoint that needs it"]
    pub fn written(&mut self, victim: &Victim, ok: bool) -> bool {
        let state = *self.rows.get(victim.slot);
        let flying = state.flags.any(Flags::WRITING) && state.hash == victim.hash;
        assert!(
            flying,
            "a write is reported once, for a victim that was copied out"
        );
        let changed = state.flags.any(Flags::DIRTY);
        self.change(victim.slot, |state| {
            state.flags = state.flags.without(Flags::WRITING);
            if !ok {
                state.flags = state.flags.with(Flags::DIRTY);
            } else if !changed && state.flags.any(Flags::REMOVED) {
                state.flags = state.flags.without(Flags::REMOVED).with(Flags::ABSENT);
            }
        });
        if ok && victim.copy {
            self.release(victim.slot);
        } else if state.list == ListKind::None {
            self.sort(victim.slot);
        }
        ok || !changed
    }
}
