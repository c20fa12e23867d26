//! Which rows leave memory first? One trait, four policies over the same lists.
//!
//! - A policy decides on order only. Whether a row may leave (clean, unpinned) and what is done
//!   with it is decided in `victims`; a row that a policy named and that is still in use is given
//!   back to it.
//! - Calls are per batch on the hit path; the kind is told apart once per call.

mod bilevel;
mod fifo;
mod lru;
mod pin_all;

use self::bilevel::Bilevel;
use self::fifo::Fifo;
use self::lru::Lru;
use self::pin_all::PinAll;
use super::lists::{LRU, Rows};
use crate::options::PolicyKind;
use crate::units::Slot;

/// An order in which rows leave.
pub(crate) trait Policy {
    /// Rows were used by a batch; positions may repeat.
    fn touched(&mut self, _rows: &mut Rows, _slots: &[Slot]) {}
    /// A row came into memory: links it, by default at the hot end of the one list.
    fn admitted(&mut self, rows: &mut Rows, slot: Slot) {
        rows.push_hot(LRU, slot);
    }
    /// A row that [`Policy::coldest`] named is in use: links it again, by default as one that came in.
    fn returned(&mut self, rows: &mut Rows, slot: Slot) {
        self.admitted(rows, slot);
    }
    /// Unlinks up to `want` rows from the cold end into `named`, coldest first.
    fn coldest(&mut self, rows: &mut Rows, want: usize, named: &mut Vec<Slot>);
    /// A row leaves memory; it is linked nowhere.
    fn left(&mut self, _rows: &mut Rows, _slot: Slot) {}
    /// Announces to the processor that a row comes in or leaves soon.
    fn prefetch_line(&self, _hash: u64) {}
}

/// One of the policies: told apart by a branch, not by a pointer.
#[derive(Debug)]
pub(crate) enum AnyPolicy {
    Bilevel(Bilevel),
    Lru(Lru),
    Fifo(Fifo),
    PinAll(PinAll),
}

impl AnyPolicy {
    pub fn new(kind: PolicyKind, capacity: usize) -> AnyPolicy {
        match kind {
            PolicyKind::Bilevel => AnyPolicy::Bilevel(Bilevel::new(capacity)),
            PolicyKind::Lru => AnyPolicy::Lru(Lru),
            PolicyKind::Fifo => AnyPolicy::Fifo(Fifo),
            PolicyKind::PinAll => AnyPolicy::PinAll(PinAll),
        }
    }

    /// Memory that `new` allocates for the policy.
    pub fn bytes_for_rows(kind: PolicyKind, capacity: usize) -> usize {
        match kind {
            PolicyKind::Bilevel => Bilevel::bytes_for_rows(capacity),
            PolicyKind::Lru | PolicyKind::Fifo | PolicyKind::PinAll => 0,
        }
    }

    pub fn bytes_allocated(&self) -> usize {
        match self {
            AnyPolicy::Bilevel(policy) => policy.bytes_allocated(),
            AnyPolicy::Lru(_) | AnyPolicy::Fifo(_) | AnyPolicy::PinAll(_) => 0,
        }
    }

    /// Whether rows leave at all.
    pub fn evicts(&self) -> bool {
        !matches!(self, AnyPolicy::PinAll(_))
    }

    fn get(&mut self) -> &mut dyn Policy {
        match self {
            AnyPolicy::Bilevel(policy) => policy,
            AnyPolicy::Lru(policy) => policy,
            AnyPolicy::Fifo(policy) => policy,
            AnyPolicy::PinAll(policy) => policy,
        }
    }
}

impl Policy for AnyPolicy {
    fn touched(&mut self, rows: &mut Rows, slots: &[Slot]) {
        self.get().touched(rows, slots);
    }

    fn admitted(&mut self, rows: &mut Rows, slot: Slot) {
        self.get().admitted(rows, slot);
    }

    fn returned(&mut self, rows: &mut Rows, slot: Slot) {
        self.get().returned(rows, slot);
    }

    fn coldest(&mut self, rows: &mut Rows, want: usize, named: &mut Vec<Slot>) {
        self.get().coldest(rows, want, named);
    }

    fn left(&mut self, rows: &mut Rows, slot: Slot) {
        self.get().left(rows, slot);
    }

    fn prefetch_line(&self, hash: u64) {
        if let AnyPolicy::Bilevel(policy) = self {
            policy.prefetch_line(hash);
        }
    }
}

/// The policies by which rows leave.
#[cfg(test)]
pub(super) fn evicting() -> impl Iterator<Item = PolicyKind> {
    let all = crate::units::all_of!(PolicyKind: Bilevel, Lru, Fifo, PinAll);
    all.into_iter()
        .filter(|kind| AnyPolicy::new(*kind, 1).evicts())
}

#[cfg(test)]
mod tests;
