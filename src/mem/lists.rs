//! In which order do rows stand? Doubly linked lists through the states of the slots.
//!
//! - Links are indexes into one `Vec`; nothing is allocated when a row moves.
//! - The first [`HEADS`] states are list heads, so that taking a row out of its list needs no
//!   knowledge of the list. Slots are numbered from [`HEADS`] on.
//! - `next` of a head is the hot end, `prev` the cold end.
//! - A slot is in at most one list; `list` says in which kind.

use super::row_state::{ListKind, RowState};
use crate::pages::{advise_huge, prefetch};
use crate::units::Slot;

/// Frequency classes of the LFU list.
pub(crate) const CLASSES: usize = 16;
/// Heads 0 to 15 are the LFU list's classes.
pub(crate) const LRU: Slot = Slot::new(16);
/// Clean rows that leave next.
pub(crate) const COLD_CLEAN: Slot = Slot::new(17);
/// Dirty rows that are written next.
pub(crate) const COLD_DIRTY: Slot = Slot::new(18);
/// Frozen copies.
pub(crate) const FROZEN: Slot = Slot::new(19);
/// Heads in all; the number of the first slot.
pub(crate) const HEADS: usize = 20;

/// The states of all slots ever used, and the lists through them.
#[derive(Debug)]
pub(crate) struct Rows {
    states: Vec<RowState>,
    pub lru_rows: usize,
    pub lfu_rows: usize,
}

impl Rows {
    /// Room for `capacity` slots; memory is touched when a slot is first used.
    pub fn new(capacity: usize) -> Rows {
        let mut states = Vec::with_capacity(HEADS + capacity);
        advise_huge(&states);
        for head in (0..HEADS).map(Slot::new) {
            states.push(RowState {
                prev: head,
                next: head,
                ..RowState::default()
            });
        }
        Rows {
            states,
            lru_rows: 0,
            lfu_rows: 0,
        }
    }

    pub fn bytes_allocated(&self) -> usize {
        self.states.capacity() * size_of::<RowState>()
    }

    /// Slots ever used.
    pub fn touched(&self) -> usize {
        self.states.len() - HEADS
    }

    /// Starts to use one more slot.
    pub fn extend(&mut self) -> Slot {
        assert!(
            self.states.len() < self.states.capacity(),
            "slots never pass the capacity"
        );
        self.states.push(RowState::default());
        Slot::new(self.states.len() - 1)
    }

    #[inline]
    pub fn get(&self, slot: Slot) -> &RowState {
        &self.states[slot.index()]
    }

    /// Announces that the state of a slot is needed soon.
    #[inline]
    pub fn prefetch_line(&self, slot: Slot) {
        prefetch(
            self.states
                .get(slot.index()..=slot.index())
                .unwrap_or_default(),
        );
    }

    #[inline]
    pub fn get_mut(&mut self, slot: Slot) -> &mut RowState {
        &mut self.states[slot.index()]
    }

    /// The row at the cold end of a list.
    #[inline]
    pub fn coldest(&self, head: Slot) -> Option<Slot> {
        let slot = self.get(head).prev;
        (slot.index() >= HEADS).then_some(slot)
    }

    /// The row that is next in rising warmth.
    #[inline]
    pub fn warmer(&self, slot: Slot) -> Option<Slot> {
        self.coldest(slot)
    }

    /// Unlinks rows from the cold end and names them, until `named` has `want` or none is left.
    pub fn take_coldest(&mut self, head: Slot, want: usize, named: &mut Vec<Slot>) {
        while named.len() < want {
            let Some(slot) = self.coldest(head) else {
                return;
            };
            self.unlink(slot);
            named.push(slot);
        }
    }

    /// Links a row that is in no list at the hot end.
    pub fn push_hot(&mut self, head: Slot, slot: Slot) {
        let after = self.get(head).next;
        self.get_mut(head).next = slot;
        self.get_mut(after).prev = slot;
        let list = match head {
            LRU => ListKind::Lru,
            COLD_CLEAN => ListKind::ColdClean,
            COLD_DIRTY => ListKind::ColdDirty,
            FROZEN => ListKind::Frozen,
            _ => ListKind::Lfu,
        };
        self.lru_rows += usize::from(list == ListKind::Lru);
        self.lfu_rows += usize::from(list == ListKind::Lfu);
        let state = self.get_mut(slot);
        state.prev = head;
        state.next = after;
        state.list = list;
    }

    /// Takes a row out of the list it is in, if any.
    pub fn unlink(&mut self, slot: Slot) {
        let RowState {
            prev, next, list, ..
        } = *self.get(slot);
        if list == ListKind::None {
            return;
        }
        self.lru_rows -= usize::from(list == ListKind::Lru);
        self.lfu_rows -= usize::from(list == ListKind::Lfu);
        self.get_mut(prev).next = next;
        self.get_mut(next).prev = prev;
        self.get_mut(slot).list = ListKind::None;
    }

    /// Moves a row to the hot end of a list.
    pub fn move_hot(&mut self, head: Slot, slot: Slot) {
        self.unlink(slot);
        self.push_hot(head, slot);
    }

    /// Moves all rows of one LFU class to the hot end of another, in their order.
    pub fn splice_hot(&mut self, from: Slot, to: Slot) {
        let RowState {
            prev: cold,
            next: hot,
            ..
        } = *self.get(from);
        if hot == from {
            return;
        }
        let end = self.get(to).next;
        self.get_mut(end).prev = cold;
        self.get_mut(cold).next = end;
        self.get_mut(hot).prev = to;
        self.get_mut(to).next = hot;
        let head = self.get_mut(from);
        head.prev = from;
        head.next = from;
    }

    /// The rows of a list from the cold end, for checks.
    pub fn walk(&self, head: Slot) -> impl Iterator<Item = Slot> + '_ {
        std::iter::successors(self.coldest(head), |slot| self.warmer(*slot))
    }
}
