//! Which rows leave memory first? One trait, four policies over the same states and queues.
//!
//! - A policy decides on order only. Whether a row may leave (clean, unpinned) and what is done
//!   with it is decided in `victims`; a row that a policy named and that is still in use is given
//!   back to it.
//! - Each table has a policy; tables of one policy share its queues. Frequencies count for all, and rows are
//!   compared by rank: uses for each byte that a row takes. Of several policies the one names rows whose
//!   next row has the lowest rank.
//! - A hit writes the row's own state only (frequency, `VISITED`); a policy looks at it when the row's
//!   turn has come.
//! - A row may stand in no queue (there was no room, or it was in use when its turn came). A policy that
//!   has no other row left looks through the states.

mod bilevel;
mod fifo;
mod lru;
mod misses;

use self::bilevel::Bilevel;
use self::fifo::Fifo;
use self::lru::Lru;
use self::misses::Misses;
use super::arena::META_ROW_BYTES;
use super::queues::{Pool, Queue};
use super::row_state::{Flags, RowState, States};
use super::table::TableRows;
use crate::options::PolicyKind;
use crate::units::Slot;

pub use self::bilevel::halved;
pub(crate) use self::bilevel::{RANKS, bias_of, class_of, frequency_of, rank_of};

/// Rows of queues that are looked at until one is found whose rank counts, at most.
const FRONT_LOOKS: usize = 64;

/// What a policy works on: the states of all rows, their tables, and the blocks of its queues.
#[derive(Debug)]
pub(crate) struct Rows {
    pub states: States,
    pub pool: Pool,
    /// By number.
    pub tables: Vec<TableRows>,
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

    /// Whether a row may be named now: its table has more than it is sure of.
    #[inline]
    pub fn nameable(&self, state: &RowState) -> bool {
        state.nameable() && !self.tables[state.table()].is_sheltered()
    }

    /// The rank of a row among those of all tables.
    #[inline]
    pub fn rank(&self, state: &RowState) -> usize {
        rank_of(state.frequency(), self.tables[state.table()].bias)
    }

    /// The rank below which fewer than `want` of the rows are that `may` be taken, and how many of that rank itself
    /// make up for it.
    ///
    /// # Cost
    /// A look at every state.
    pub(super) fn limit_of(&self, want: usize, may: impl Fn(&RowState) -> bool) -> (usize, usize) {
        let mut counts = [0; RANKS];
        for state in self.states.range(0..self.states.touched()) {
            if may(state) {
                counts[self.rank(state)] += 1;
            }
        }
        let mut below = 0;
        for (rank, count) in counts.iter().enumerate() {
            if below + count >= want {
                return (rank, want - below);
            }
            below += count;
        }
        (counts.len(), 0)
    }

    /// Queues all rows that stand in no queue and may be named, of the tables of one policy.
    fn queue_others(&mut self, kind: PolicyKind, queue: &mut Queue) {
        for slot in (0..self.states.touched()).map(Slot::new) {
            let state = self.states.get(slot);
            let own = self
                .tables
                .get(state.table())
                .is_some_and(|t| t.policy == kind);
            if own && self.nameable(state) && !state.flags.any(Flags::QUEUED) {
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
            if state.busy() || (second && visited) || self.is_sheltered(slot) {
                self.push(queue, slot);
            } else {
                named.push(slot);
            }
        }
    }

    fn is_sheltered(&self, slot: Slot) -> bool {
        self.tables[self.states.get(slot).table()].is_sheltered()
    }

    /// The rank of the row that a queue names next. Rows in use at its front go to its end.
    fn front_rank(&mut self, queue: &mut Queue) -> Option<usize> {
        for _ in 0..queue.len().min(FRONT_LOOKS) {
            let slot = self.pool.first(queue)?;
            let state = self.states.get(slot);
            if self.nameable(state) {
                return Some(self.rank(state));
            }
            let used = state.flags.any(Flags::USED) && !state.flags.any(Flags::FROZEN_COPY);
            self.pool.pop(queue, &mut self.states);
            if used {
                self.push(queue, slot);
            }
        }
        None
    }
}

/// An order in which rows leave.
trait Policy {
    /// A row came into memory, whose frequency is set.
    fn admitted(&mut self, rows: &mut Rows, slot: Slot);
    /// A row that [`Policy::coldest`] named is in use: by default as one that came in.
    fn returned(&mut self, rows: &mut Rows, slot: Slot) {
        self.admitted(rows, slot);
    }
    /// Takes up to `want` rows from the cold end into `named`, coldest first.
    fn coldest(&mut self, rows: &mut Rows, want: usize, named: &mut Vec<Slot>);
    /// The rank of the row that it would name first, if it has one at hand.
    fn next_rank(&mut self, rows: &mut Rows) -> Option<usize>;
}

/// The policies of all tables.
#[derive(Debug, Default)]
pub(crate) struct Policies {
    bilevel: Bilevel,
    lru: Lru,
    fifo: Fifo,
    misses: Misses,
    /// Which of them have tables.
    uses: [bool; 3],
}

impl Policies {
    /// Says which policies the tables have; so many rows fit, so many leave in a flush.
    pub fn set_shape(&mut self, rows: &mut Rows, capacity: usize, step: usize) {
        let has = |kind| {
            rows.tables
                .iter()
                .any(|t| t.policy == kind && !t.is_dropped)
        };
        self.uses = [PolicyKind::Bilevel, PolicyKind::Lru, PolicyKind::Fifo].map(has);
        self.bilevel.set_capacity(rows, capacity);
        self.misses.set_capacity(capacity);
        let (numbers, queues) = self.queued(capacity, step);
        rows.pool.set_room(numbers, queues);
    }

    /// What is kept beside each row: its state, its part of the hash table and, where queues have room for all
    /// rows, its number in one.
    pub fn row_meta_bytes(&self) -> u64 {
        match self.uses {
            [_, false, false] => META_ROW_BYTES,
            _ => META_ROW_BYTES + size_of::<Slot>() as u64,
        }
    }

    /// How many numbers in how many queues there may be at once, those of rows that were named included.
    pub fn queued(&self, capacity: usize, step: usize) -> (usize, usize) {
        match self.uses {
            [_, false, false] => Bilevel::queued(capacity, step),
            // All rows; the queues and the two of the rows that were named.
            [false, ..] => (capacity, 4),
            [true, ..] => {
                let (numbers, queues) = Bilevel::queued(capacity, step);
                (numbers.max(capacity), queues + 2)
            }
        }
    }

    /// Takes all rows out of the queues.
    pub fn clear(&mut self, rows: &mut Rows) {
        self.bilevel.clear(rows);
        for queue in [&mut self.lru.queue, &mut self.fifo.queue] {
            rows.pool.clear(queue, &mut rows.states);
        }
    }

    /// Puts all rows that stand in no queue into that of their policy, where no look finds them while
    /// others stand in it.
    pub fn queue_all(&mut self, rows: &mut Rows) {
        for slot in (0..rows.states.touched()).map(Slot::new) {
            let state = rows.states.get(slot);
            if !state.used() || state.flags.any(Flags::FROZEN_COPY) {
                continue;
            }
            match rows.tables[state.table()].policy {
                PolicyKind::Lru => rows.push(&mut self.lru.queue, slot),
                PolicyKind::Fifo | PolicyKind::Cached { .. } => {
                    rows.push(&mut self.fifo.queue, slot)
                }
                PolicyKind::Bilevel | PolicyKind::PinAll | PolicyKind::Staged => {}
            }
        }
    }

    /// All queues.
    pub fn queues_mut(&mut self) -> impl Iterator<Item = &mut Queue> {
        let own = [&mut self.lru.queue, &mut self.fifo.queue];
        self.bilevel.queues_mut().chain(own)
    }

    /// Memory of the queues where so many rows fit.
    pub fn bytes_for(capacity: usize) -> usize {
        Bilevel::bytes_for(capacity)
    }

    pub fn bytes(&self) -> usize {
        self.bilevel.bytes()
    }

    /// How much of what is asked for is likely to be missing.
    pub fn likely_missing(&self, asked: u64) -> u64 {
        self.misses.likely(asked)
    }

    /// Halvings of all frequencies so far.
    pub fn halvings(&self) -> u64 {
        self.bilevel.halvings()
    }

    /// Which level of the policy a row stands on, if on any.
    #[cfg(any(test, feature = "sim"))]
    pub fn level_of(&self, rows: &Rows, slot: Slot) -> super::Level {
        use super::Level;
        let stands = |queue: &Queue| rows.pool.walk(queue).contains(&slot);
        if stands(self.bilevel.lru()) || stands(&self.lru.queue) {
            Level::Lru
        } else if self.bilevel.classes().iter().any(stands) {
            Level::Lfu
        } else {
            Level::None
        }
    }

    /// The queues of the policies, for checks.
    #[cfg(any(test, feature = "sim"))]
    pub fn queues(&self) -> Vec<Queue> {
        let own = [*self.bilevel.lru(), self.lru.queue, self.fifo.queue];
        own.iter().chain(self.bilevel.classes()).copied().collect()
    }

    fn of(&mut self, rows: &Rows, slot: Slot) -> Option<&mut dyn Policy> {
        Some(match rows.tables[rows.states.get(slot).table()].policy {
            PolicyKind::Bilevel => &mut self.bilevel,
            PolicyKind::Lru => &mut self.lru,
            PolicyKind::Fifo | PolicyKind::Cached { .. } => &mut self.fifo,
            PolicyKind::PinAll | PolicyKind::Staged => return None,
        })
    }
}

impl Policies {
    /// Rows were used so often.
    /// `distinct`: rows among them; each counts once in a batch for the share that is missing.
    pub fn touched(&mut self, rows: &mut Rows, touches: usize, distinct: usize) {
        // Frequencies count where any rows leave.
        if self.uses != [false; 3] {
            let rise = self.misses.rise(distinct);
            self.bilevel.touched(rows, touches, rise);
        }
    }

    /// As [`Policy::admitted`], of a row that nobody asked for.
    pub fn restored(&mut self, rows: &mut Rows, slot: Slot) {
        if let Some(policy) = self.of(rows, slot) {
            policy.admitted(rows, slot);
        }
    }

    /// As [`Policy::admitted`], of the policy of the row's table.
    pub fn admitted(&mut self, rows: &mut Rows, slot: Slot) {
        if self.uses != [false; 3] {
            self.misses.add();
        }
        self.restored(rows, slot);
    }

    /// A row that stands in no queue was written, but was not named. Of a policy that finds such rows by itself it stays there.
    pub fn stays(&mut self, rows: &mut Rows, slot: Slot) {
        if rows.tables[rows.states.get(slot).table()].policy != PolicyKind::Bilevel {
            self.returned(rows, slot);
        }
    }

    /// The queue of a policy that has one for all its rows.
    pub fn queue_of(&mut self, kind: PolicyKind) -> Option<&mut Queue> {
        match kind {
            PolicyKind::Lru => Some(&mut self.lru.queue),
            PolicyKind::Fifo | PolicyKind::Cached { .. } => Some(&mut self.fifo.queue),
            PolicyKind::Bilevel | PolicyKind::PinAll | PolicyKind::Staged => None,
        }
    }

    /// As [`Policy::returned`], of the policy of the row's table.
    pub fn returned(&mut self, rows: &mut Rows, slot: Slot) {
        if let Some(policy) = self.of(rows, slot) {
            policy.returned(rows, slot);
        }
    }

    /// As [`Policy::coldest`]: of several policies the one names rows whose next has the lowest rank.
    pub fn coldest(&mut self, rows: &mut Rows, want: usize, named: &mut Vec<Slot>) {
        let uses = self.uses;
        if uses == [true, false, false] {
            return self.bilevel.coldest(rows, want, named);
        }
        let several = uses.iter().filter(|uses| **uses).count() > 1;
        let all: [&mut dyn Policy; 3] = [&mut self.bilevel, &mut self.lru, &mut self.fifo];
        let mut used: Vec<_> = (all.into_iter().zip(uses))
            .filter_map(|(policy, used)| used.then_some(policy))
            .map(|policy| (several.then(|| policy.next_rank(rows)).flatten(), policy))
            .collect();
        // None at hand: last.
        used.sort_by_key(|(rank, _)| rank.unwrap_or(usize::MAX));
        for (_, policy) in used {
            policy.coldest(rows, want, named);
            if !named.is_empty() {
                return;
            }
        }
    }
}

/// The policies by which rows leave.
#[cfg(test)]
pub(super) fn evicting() -> impl Iterator<Item = PolicyKind> {
    [PolicyKind::Bilevel, PolicyKind::Lru, PolicyKind::Fifo].into_iter()
}

#[cfg(test)]
mod tests;
