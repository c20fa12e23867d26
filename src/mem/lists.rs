//! In which order do rows stand? Doubly linked lists through the states of the slots.
//!
//! - Links are indexes into one `Vec`; nothing is allocated when a row moves.
//! - The first [`HEADS`] states are list heads, so that taking a row out of its list needs no
//!   knowledge of the list. Slots are numbered from [`HEADS`] on.
//! - `next` of a head is the hot end, `prev` the cold end.
//! - A slot is in at most one list; `list` says in which kind.

use super::row_state::{ListKind, RowState};
use crate::pages::{advise_huge, prefetch};

/// Frequency classes of the LFU list.
pub(crate) const CLASSES: usize = 16;
/// Heads 0 to 15 are the LFU list's classes.
pub(crate) const LRU: u32 = 16;
/// Clean rows that leave next.
pub(crate) const COLD_CLEAN: u32 = 17;
/// Dirty rows that are written next.
pub(crate) const COLD_DIRTY: u32 = 18;
/// Frozen copies.
pub(crate) const FROZEN: u32 = 19;
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
        for head in 0..20 {
            states.push(RowState {
                prev: head,
                next: head,
                ..RowState::default()
            });
        }
        assert!(states.len() == HEADS, "one state per head");
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
    pub fn extend(&mut self) -> u32 {
        assert!(
            self.states.len() < self.states.capacity(),
            "slots never pass the capacity"
        );
        self.states.push(RowState::default());
        u32::try_from(self.states.len() - 1).unwrap_or(u32::MAX)
    }

    #[inline]
    pub fn get(&self, slot: u32) -> &RowState {
        &self.states[slot as usize]
    }

    /// Announces that the state of a slot is needed soon.
    #[inline]
    pub fn prefetch_line(&self, slot: u32) {
        prefetch(
            self.states
                .get(slot as usize..=slot as usize)
                .unwrap_or_default(),
        );
    }

    #[inline]
    pub fn get_mut(&mut self, slot: u32) -> &mut RowState {
        &mut self.states[slot as usize]
    }

    /// The row at the cold end of a list.
    #[inline]
    pub fn coldest(&self, head: u32) -> Option<u32> {
        let slot = self.get(head).prev;
        (slot as usize >= HEADS).then_some(slot)
    }

    /// The row that is next in rising warmth.
    #[inline]
    pub fn warmer(&self, slot: u32) -> Option<u32> {
        self.coldest(slot)
    }

    /// Unlinks rows from the cold end and names them, until `named` has `want` or none is left.
    pub fn take_coldest(&mut self, head: u32, want: usize, named: &mut Vec<u32>) {
        while named.len() < want {
            let Some(slot) = self.coldest(head) else {
                return;
            };
            self.unlink(slot);
            named.push(slot);
        }
    }

    /// Links a row that is in no list at the hot end.
    pub fn push_hot(&mut self, head: u32, slot: u32) {
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
    pub fn unlink(&mut self, slot: u32) {
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
    pub fn move_hot(&mut self, head: u32, slot: u32) {
        self.unlink(slot);
        self.push_hot(head, slot);
    }

    /// Moves all rows of one LFU class to the hot end of another, in their order.
    pub fn splice_hot(&mut self, from: u32, to: u32) {
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
    pub fn walk(&self, head: u32) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors(self.coldest(head), |slot| self.warmer(*slot))
    }
}
