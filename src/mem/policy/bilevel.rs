//! Bi-level: an LRU queue for the rows of current work, an LFU list of candidates behind it.
//!
//! - Rows enter at the end of the LRU queue. Over `lru_rows_max`, rows fall off its front; those visited
//!   or pinned since they were last looked at go round once more.
//! - Behind it are the ranks of the LFU list, one queue for each frequency up to 29, and 16 for each
//!   doubling above. A row that falls off the LRU queue goes to the queue of its rank if that is not above
//!   `limit`; a warmer row stands nowhere: hits are counted in its state.
//! - Victims come from the lowest rank; a row whose rank has risen meanwhile goes to its own. When an
//!   eighth of the rows has been taken, or all ranks up to `limit` are empty, a look through the states
//!   finds the coldest eighth and the next `limit`. So some eight rows are looked at for one that is
//!   taken, in the order of memory, 1 to 2 ns each.
//! - Frequencies of rows that leave are told as classes of 4 bits, rounded up or down so that they are
//!   right in the mean; who keeps them gives them back with the row.
//! - Every `period` touches all frequencies are halved, and the ranks are made anew.
//!
//! Source: AIBox §4.2; HPS appendix D; the halving is TinyLFU's. Figures: docs/decisions/0009, 0040.

use super::{Policy, Rows};
use crate::mem::queues::Queue;
use crate::mem::row_state::Flags;
use crate::units::{Slot, narrow};

/// Touches per row of capacity between halvings. Halving seldom forgets less where nothing drifts,
/// and more slowly where it does. At a sixteenth of the size, batches 6000 to 8000, with periods of
/// 20, 30 and 40: .2149, .2122, .2112 missing without drift, .2867, .2984, .3033 with. (Shorter
/// runs flatter the long periods: 40 does not halve once before batch 2 900 at zipf 0.99.)
const PERIOD_PER_ROW: usize = 20;
/// The LRU queue's share of the rows is one in this many.
const LRU_SHARE: usize = 64;
/// Rows looked at per row that comes in, at most, when the LRU queue is too long: pinned rows may make
/// it longer than its share, and then looking at all of them in each batch would be in vain.
const LOOKS_PER_ROW: usize = 2;
/// A look through the states finds so large a share of the rows, one in this many.
const CANDIDATES_SHARE: usize = 8;
/// States of one look, at most: the shard is locked meanwhile.
const LOOK_STATES: usize = 1 << 20;
/// A cache of fewer rows has an eighth of the ranks.
const SMALL: usize = 1024;

/// The rank of each frequency f: 16 log2(2 f + 1), rounded down.
const RANK: [u8; 256] = ranks();
const RANKS: usize = RANK[255] as usize + 1;

/// The frequency that each class stands for.
const VALUE: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 28, 40, 64, 128];

const fn ranks() -> [u8; 256] {
    let mut table = [0; 256];
    let mut f = 0;
    while f < table.len() {
        let mut rest = ((2 * f + 1) as u64) << 20;
        let mut rank = 0;
        // In [1, 2) with 20 bits behind the point.
        while rest >= 2 << 20 {
            rest >>= 1;
            rank += 16;
        }
        let mut bit = 8;
        while bit > 0 {
            rest = (rest * rest) >> 20;
            if rest >= 2 << 20 {
                rest >>= 1;
                rank += bit;
            }
            bit /= 2;
        }
        table[f] = rank;
        f += 1;
    }
    table
}

/// The class of a frequency, up or down by chance; `chance` is any number.
pub(crate) fn class_of(frequency: u8, chance: u64) -> u8 {
    let mut class = 0;
    while class + 1 < VALUE.len() && VALUE[class + 1] <= frequency {
        class += 1;
    }
    let above = VALUE.get(class + 1).copied().unwrap_or(u8::MAX);
    let (over, step) = (frequency - VALUE[class], above - VALUE[class]);
    let up = class + 1 < VALUE.len() && chance % u64::from(step) < u64::from(over);
    narrow(class + usize::from(up))
}

/// The frequency that a class stands for.
pub(crate) fn frequency_of(class: u8) -> u8 {
    VALUE[usize::from(class) % VALUE.len()]
}

/// The class that each becomes when frequencies are halved.
#[must_use]
pub fn halved() -> [u8; 16] {
    // Rounded down.
    let class = |value| VALUE.iter().rposition(|v| *v <= value / 2);
    VALUE.map(|value| class(value).map_or(0, narrow))
}

#[derive(Debug)]
pub(crate) struct Bilevel {
    lru: Queue,
    lru_rows_max: usize,
    ranks: Vec<Queue>,
    /// Ranks are taken together so, two to this power.
    shift: u32,
    /// No lower rank has a row.
    lowest: usize,
    /// Rows of higher ranks are no candidates.
    limit: usize,
    /// Where the next look begins.
    hand: usize,
    /// Where the rows of the highest rank begin that the next look takes some of: of equal rows those
    /// that have waited for long.
    tie: usize,
    /// Rows taken from the ranks that ask for the next look.
    until_look: usize,
    touches: usize,
    period: usize,
    halvings: u64,
}

impl Bilevel {
    pub fn new(capacity: usize) -> Bilevel {
        let (shift, ranks) = Bilevel::ranks_for(capacity);
        Bilevel {
            lru: Queue::default(),
            lru_rows_max: (capacity / LRU_SHARE).max(1),
            ranks: vec![Queue::default(); ranks],
            shift,
            lowest: 0,
            limit: ranks - 1,
            hand: 0,
            tie: 0,
            until_look: 0,
            touches: 0,
            period: capacity * PERIOD_PER_ROW,
            halvings: 0,
        }
    }

    fn ranks_for(capacity: usize) -> (u32, usize) {
        let shift = if capacity < SMALL { 3 } else { 0 };
        (shift, ((RANKS - 1) >> shift) + 1)
    }

    pub fn queued(capacity: usize, step: usize) -> (usize, usize) {
        let numbers = if capacity < SMALL {
            capacity
        } else {
            // Candidates and as many that came since; the LRU queue and those of rows that were named.
            capacity.min(capacity * 3 / CANDIDATES_SHARE + 2 * step)
        };
        let (_, ranks) = Bilevel::ranks_for(capacity);
        (numbers, (ranks + 3).min(numbers / 8 + 2))
    }

    pub fn bytes_for(capacity: usize) -> usize {
        let (_, ranks) = Bilevel::ranks_for(capacity);
        ranks * size_of::<Queue>()
    }

    pub fn bytes_allocated(&self) -> usize {
        self.ranks.capacity() * size_of::<Queue>()
    }

    pub fn halvings(&self) -> u64 {
        self.halvings
    }

    #[cfg(any(test, feature = "sim"))]
    pub fn lru(&self) -> &Queue {
        &self.lru
    }

    #[cfg(any(test, feature = "sim"))]
    pub fn classes(&self) -> &[Queue] {
        &self.ranks
    }

    #[inline]
    fn rank(&self, frequency: u8) -> usize {
        usize::from(RANK[usize::from(frequency)]) >> self.shift
    }

    /// Halves all frequencies.
    #[cold]
    fn halve(&mut self, rows: &mut Rows) {
        for queue in &mut self.ranks {
            rows.pool.clear(queue, &mut rows.states);
        }
        let touched = rows.states.touched();
        for state in rows.states.range_mut(0..touched) {
            state.frequency /= 2;
        }
        self.lowest = 0;
        self.limit = self.ranks.len() - 1;
        self.halvings += 1;
    }

    /// Lets rows fall off the front of the LRU queue until it has its length.
    fn demote(&mut self, rows: &mut Rows) {
        for _ in 0..LOOKS_PER_ROW {
            if self.lru.len() <= self.lru_rows_max {
                return;
            }
            let Some(slot) = rows.pop(&mut self.lru) else {
                return;
            };
            let state = rows.states.get_mut(slot);
            let visited = state.flags.any(Flags::VISITED);
            state.flags = state.flags.without(Flags::VISITED);
            if state.busy() || visited {
                let busy = state.busy();
                rows.push(&mut self.lru, slot);
                if busy {
                    // Those behind it are likely to be in use as well.
                    return;
                }
            } else {
                self.place(rows, slot);
            }
        }
    }

    /// Puts a row into the queue of its rank, if it is a candidate.
    fn place(&mut self, rows: &mut Rows, slot: Slot) {
        let state = rows.states.get_mut(slot);
        state.flags = state.flags.without(Flags::VISITED);
        let rank = self.rank(state.frequency);
        // Those of the limit's own rank wait for a look, behind others like them.
        if rank < self.limit {
            self.lowest = self.lowest.min(rank);
            rows.push(&mut self.ranks[rank], slot);
        }
    }

    /// Takes the next victim out of the LFU list; rows that became warmer go up first.
    fn coldest_candidate(&mut self, rows: &mut Rows) -> Option<Slot> {
        while self.until_look > 0 && self.lowest <= self.limit {
            let Some(slot) = rows.pop(&mut self.ranks[self.lowest]) else {
                self.lowest += 1;
                continue;
            };
            self.until_look -= 1;
            let state = rows.states.get(slot);
            if state.busy() {
                // Its turn comes again with the next look.
                continue;
            }
            if !state.flags.any(Flags::VISITED) && self.rank(state.frequency) <= self.lowest {
                return Some(slot);
            }
            self.place(rows, slot);
        }
        None
    }

    /// Looks for candidates among the rows that stand in no queue; whether there are any.
    fn look(&mut self, rows: &mut Rows) -> bool {
        let touched = rows.states.touched();
        let mut left = touched;
        let mut queued = 0;
        while left > 0 && queued == 0 {
            if self.hand >= touched {
                self.hand = 0;
            }
            let end = touched.min(self.hand + LOOK_STATES.min(left));
            let range = self.hand..end;
            (self.hand, left) = (end, left - range.len());
            let mut counts = [0usize; RANKS];
            for (count, queue) in counts.iter_mut().zip(&self.ranks) {
                *count = queue.len();
            }
            let free = |flags: Flags| !flags.any(Flags::QUEUED);
            for state in rows.states.range(range.clone()) {
                if state.nameable() && free(state.flags) {
                    counts[self.rank(state.frequency)] += 1;
                }
            }
            let want = (range.len() / CANDIDATES_SHARE).max(1);
            // Of the highest rank only as many as are wanted: queues have their bounds.
            let (mut limit, mut found, mut last) = (0, 0, 0);
            for (rank, count) in counts.iter().enumerate() {
                last = *count.min(&(want - found));
                found += count;
                limit = rank;
                if found >= want {
                    break;
                }
            }
            if found == 0 {
                continue;
            }
            self.limit = limit.min(self.ranks.len() - 1);
            self.lowest = 0;
            let tie = self.tie.clamp(range.start, range.end);
            for slot in (tie..range.end).chain(range.start..tie).map(Slot::new) {
                let state = rows.states.get(slot);
                if state.nameable() && free(state.flags) {
                    let rank = self.rank(state.frequency);
                    let more = rank == self.limit && self.ranks[rank].len() < last;
                    if more {
                        self.tie = slot.index() + 1;
                    }
                    if rank < self.limit || more {
                        rows.push(&mut self.ranks[rank], slot);
                    }
                }
            }
            queued = self.ranks[..=self.limit].iter().map(Queue::len).sum();
        }
        self.until_look = queued.min(touched / CANDIDATES_SHARE + 1);
        queued > 0
    }
}

impl Policy for Bilevel {
    fn touched(&mut self, rows: &mut Rows, touches: usize) {
        self.touches += touches;
        if self.touches >= self.period {
            self.touches = 0;
            self.halve(rows);
        }
    }

    fn admitted(&mut self, rows: &mut Rows, slot: Slot) {
        rows.push(&mut self.lru, slot);
        self.demote(rows);
    }

    fn returned(&mut self, rows: &mut Rows, slot: Slot) {
        if rows.states.get(slot).busy() {
            rows.push(&mut self.lru, slot);
        } else {
            self.place(rows, slot);
        }
    }

    fn coldest(&mut self, rows: &mut Rows, want: usize, named: &mut Vec<Slot>) {
        while named.len() < want {
            if let Some(slot) = self.coldest_candidate(rows) {
                named.push(slot);
            } else if !named.is_empty() || !self.look(rows) {
                break;
            }
        }
        if named.is_empty() {
            rows.name_first(&mut self.lru, want, true, named);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_rise_with_the_frequency_one_by_one_where_it_is_low() {
        for f in 1..=255 {
            assert!(RANK[f] > RANK[f - 1] || (f > 29 && RANK[f] == RANK[f - 1]));
        }
        let doubled = |f: usize| i32::from(RANK[2 * f]) - i32::from(RANK[f]);
        assert!((20..128).all(|f| (15..=17).contains(&doubled(f))));
    }

    #[test]
    fn classes_are_right_in_the_mean_and_halve_with_the_frequency() {
        for frequency in 0..=128u8 {
            let classes = (0..40_320).map(|chance| class_of(frequency, chance));
            let sum: u64 = classes.map(|c| u64::from(VALUE[usize::from(c)])).sum();
            let mean = sum as f64 / 40_320.0;
            assert!(
                (mean - f64::from(frequency)).abs() < 0.02,
                "{frequency}: {mean}"
            );
        }
        assert_eq!(class_of(255, 3), 15);
        for (class, half) in halved().iter().enumerate() {
            let (whole, half) = (VALUE[class], VALUE[usize::from(*half)]);
            assert!(half <= whole / 2 && half * 3 + 3 >= whole, "{whole} {half}");
        }
    }
}
