//! Which rows leave memory first? One trait, four policies over the same states and queues.
//!
//! - A policy decides on order only. Whether a row may leave (clean, unpinned) and what is done
//!   with it is decided in `victims`; a row that a policy named and that is still in use is given
//!   back to it.
//! - A hit writes the row's own state only (frequency, `VISITED`); a policy looks at it when the row's
//!   turn has come.
//! - A row may stand in no queue (there was no room, or it was in use when its turn came). A policy that
//!   has no other row left looks through the states.

mod bilevel;
mod fifo;
mod lru;
mod pin_all;

use self::bilevel::Bilevel;
use self::fifo::Fifo;
use self::lru::Lru;
use self::pin_all::PinAll;
use super::queues::{Pool, Queue};
use super::row_state::{Flags, States};
use crate::options::PolicyKind;
use crate::units::Slot;

pub use self::bilevel::halved;
pub(crate) use self::bilevel::{class_of, frequency_of};

/// What a policy works on: the states of all rows, and the blocks of its queues.
#[derive(Debug)]
pub(crate) struct Rows {
    pub states: States,
    pub pool: Pool,
}

impl Rows {
    /// Puts a row at the end of a queue.
    #[inline]
    pub fn push(&mut self, queue: &mut Queue, slot: Slot) {
        self.pool.push(queue, &mut self.states, slot);
    }

    /// Takes the row that has stood in a queue for longest; passes over what holds no row any more.
    #[inline]
    pub fn pop(&mut self, queue: &mut Queue) -> Option<Slot> {
        loop {
            let slot = self.pool.pop(queue, &mut self.states)?;
            let flags = self.states.get(slot).flags;
            if flags.any(Flags::USED) && !flags.any(Flags::FROZEN_COPY) {
                return Some(slot);
            }
        }
    }

    /// Queues all rows that stand in no queue and may be named.
    fn queue_others(&mut self, queue: &mut Queue) {
        for slot in (0..self.states.touched()).map(Slot::new) {
            let state = self.states.get(slot);
            if state.nameable() && !state.flags.any(Flags::QUEUED) {
                self.push(queue, slot);
            }
        }
    }

    /// Names up to `want` rows from the front of a queue. Those in use go to its end, and with `second`
    /// also those that were visited since they were last looked at.
    fn name_first(&mut self, queue: &mut Queue, want: usize, second: bool, named: &mut Vec<Slot>) {
        // Twice round: the first may only take the marks off.
        for _ in 0..queue.len() * 2 {
            if named.len() >= want {
                return;
            }
            let Some(slot) = self.pop(queue) else {
                return;
            };
            let state = self.states.get_mut(slot);
            let visited = state.flags.any(Flags::VISITED);
            state.flags = state.flags.without(Flags::VISITED);
            if state.busy() || (second && visited) {
                self.push(queue, slot);
            } else {
                named.push(slot);
            }
        }
    }
}

/// An order in which rows leave.
pub(crate) trait Policy {
    /// Rows were used so often.
    fn touched(&mut self, _rows: &mut Rows, _touches: usize) {}
    /// A row came into memory, whose frequency is set.
    fn admitted(&mut self, rows: &mut Rows, slot: Slot);
    /// A row that [`Policy::coldest`] named is in use: by default as one that came in.
    fn returned(&mut self, rows: &mut Rows, slot: Slot) {
        self.admitted(rows, slot);
    }
    /// Takes up to `want` rows from the cold end into `named`, coldest first.
    fn coldest(&mut self, rows: &mut Rows, want: usize, named: &mut Vec<Slot>);
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
            PolicyKind::Lru => AnyPolicy::Lru(Lru::default()),
            PolicyKind::Fifo => AnyPolicy::Fifo(Fifo::default()),
            PolicyKind::PinAll => AnyPolicy::PinAll(PinAll),
        }
    }

    /// How many numbers in how many queues it may have at once, those of rows that were named included.
    /// `step`: rows of a flush.
    pub fn queued(kind: PolicyKind, capacity: usize, step: usize) -> (usize, usize) {
        match kind {
            PolicyKind::Bilevel => Bilevel::queued(capacity, step),
            // All rows; the queue and the two of the rows that were named.
            PolicyKind::Lru | PolicyKind::Fifo => (capacity, 3),
            PolicyKind::PinAll => (0, 0),
        }
    }

    /// Memory that `new` allocates for the policy.
    pub fn bytes_for(kind: PolicyKind, capacity: usize) -> usize {
        match kind {
            PolicyKind::Bilevel => Bilevel::bytes_for(capacity),
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

    /// Halvings of all frequencies so far.
    pub fn halvings(&self) -> u64 {
        match self {
            AnyPolicy::Bilevel(policy) => policy.halvings(),
            AnyPolicy::Lru(_) | AnyPolicy::Fifo(_) | AnyPolicy::PinAll(_) => 0,
        }
    }

    /// Which level of the policy a row stands on, if on any.
    #[cfg(any(test, feature = "sim"))]
    pub fn level_of(&self, rows: &Rows, slot: Slot) -> super::Level {
        use super::Level;
        let stands = |queue: &Queue| rows.pool.walk(queue).contains(&slot);
        match self {
            AnyPolicy::Bilevel(policy) if stands(policy.lru()) => Level::Lru,
            AnyPolicy::Bilevel(policy) if policy.classes().iter().any(stands) => Level::Lfu,
            AnyPolicy::Lru(policy) if stands(&policy.queue) => Level::Lru,
            _ => Level::None,
        }
    }

    /// The queues of the policy, for checks.
    #[cfg(any(test, feature = "sim"))]
    pub fn queues(&self) -> Vec<Queue> {
        match self {
            AnyPolicy::Bilevel(policy) => {
                let all = policy.classes().iter().chain([policy.lru()]);
                all.copied().collect()
            }
            AnyPolicy::Lru(policy) => vec![policy.queue],
            AnyPolicy::Fifo(policy) => vec![policy.queue],
            AnyPolicy::PinAll(_) => Vec::new(),
        }
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
    fn touched(&mut self, rows: &mut Rows, touches: usize) {
        self.get().touched(rows, touches);
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
