//! Bi-level: an LRU queue for the rows of current work, an LFU list of candidates behind it.
//!
//! - Rows enter at the end of the LRU queue. Over `lru_rows_max`, rows fall off its front; those visited
//!   or pinned since they were last looked at go round once more.
//! - Behind it are the ranks of the LFU list, by uses for each byte: 16 for each doubling of either, so that
//!   low frequencies of one table have a queue each. A row that falls off the LRU queue goes to the queue of its rank if that is not above
//!   `limit`; a warmer row stands nowhere: hits are counted in its state.
//! - Victims come from the lowest rank; a row whose rank has risen meanwhile goes to its own. When an
//!   eighth of the rows has been taken, or all ranks up to `limit` are empty, a look through the states
//!   finds the coldest eighth and the next `limit`. So some eight rows are looked at for one that is
//!   taken, in the order of memory, 1 to 2 ns each.
//! - Frequencies of rows that leave are told as classes of 4 bits, rounded up or down so that they are
//!   right in the mean; who keeps them gives them back with the row.
//! - Every `period` touches all frequencies are halved, and the ranks are made anew; once more where suddenly
//!   more rows are missing than before.
//!
//! Source: AIBox §4.2; HPS appendix D; the halving is TinyLFU's. Figures: docs/decisions/0009, 0040.

use super::{Policy, Rows};
use crate::mem::queues::Queue;
use crate::mem::row_state::{Flags, RowState};
use crate::options::PolicyKind;
use crate::units::{Slot, narrow};

/// Touches per row of capacity between halvings. A row that is as likely to leave as to stay is used some five times
/// meanwhile (zipf 0.99), and what halving rounds off is worth 0.6 % of the misses until it is counted again. Where
/// what is asked for drifts, more misses than usual ask for a halving at once.
const PERIOD_PER_ROW: usize = 80;
/// The LRU queue's share of the rows is one in this many. Most rows in it are colder than those that leave meanwhile:
/// with a 64th 0.2 % more misses at zipf 0.99.
const LRU_SHARE: usize = 256;
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
/// Bytes of a row whose rank is that of its frequency: one over a doubling for each 16 that is added.
const BIAS_FROM: f64 = (1 << 20) as f64;
const BIAS_MAX: u16 = 16 * 15;
/// Ranks of rows of all sizes.
pub(crate) const RANKS: usize = RANK[255] as usize + BIAS_MAX as usize + 1;

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

/// What is added to the ranks of rows that take so many bytes each: the fewer, the higher.
pub(crate) fn bias_of(bytes: u64) -> u16 {
    let doublings = (BIAS_FROM / bytes.max(1) as f64).log2();
    let bias = (16.0 * doublings).round().clamp(0.0, f64::from(BIAS_MAX));
    (0..BIAS_MAX)
        .find(|b| f64::from(*b) >= bias)
        .unwrap_or(BIAS_MAX)
}

/// The rank of a row used so often, of a table with this bias.
#[inline]
pub(crate) fn rank_of(frequency: u8, bias: u16) -> usize {
    usize::from(RANK[usize::from(frequency)]) + usize::from(bias)
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

impl Default for Bilevel {
    fn default() -> Bilevel {
        let (shift, ranks) = Bilevel::ranks_for(0);
        Bilevel {
            lru: Queue::default(),
            lru_rows_max: 1,
            ranks: vec![Queue::default(); ranks],
            shift,
            lowest: 0,
            limit: ranks - 1,
            hand: 0,
            tie: 0,
            until_look: 0,
            touches: 0,
            period: 0,
            halvings: 0,
        }
    }
}

impl Bilevel {
    /// Says how many rows fit.
    pub fn set_capacity(&mut self, rows: &mut Rows, capacity: usize) {
        self.lru_rows_max = (capacity / LRU_SHARE).max(1);
        self.period = capacity * PERIOD_PER_ROW;
        let (shift, ranks) = Bilevel::ranks_for(capacity);
        if shift != self.shift {
            self.clear(rows);
            self.shift = shift;
            self.ranks = vec![Queue::default(); ranks];
            self.limit = ranks - 1;
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

    /// Memory of the queues where so many rows fit.
    pub fn bytes_for(capacity: usize) -> usize {
        Bilevel::ranks_for(capacity).1 * size_of::<Queue>()
    }

    pub fn bytes(&self) -> usize {
        self.ranks.capacity() * size_of::<Queue>()
    }

    /// Takes all rows out of the queues.
    pub fn clear(&mut self, rows: &mut Rows) {
        rows.pool.clear(&mut self.lru, &mut rows.states);
        self.clear_ranks(rows);
    }

    fn clear_ranks(&mut self, rows: &mut Rows) {
        for queue in &mut self.ranks {
            rows.pool.clear(queue, &mut rows.states);
        }
        self.lowest = 0;
        self.limit = self.ranks.len() - 1;
    }

    pub fn queues_mut(&mut self) -> impl Iterator<Item = &mut Queue> {
        std::iter::once(&mut self.lru).chain(&mut self.ranks)
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
    fn rank(&self, rows: &Rows, state: &RowState) -> usize {
        rows.rank(state) >> self.shift
    }

    /// Rows were used so often, more of them missing than usual if `rise` says so.
    pub fn touched(&mut self, rows: &mut Rows, touches: usize, rise: bool) {
        self.touches += touches;
        // Once for all rows there are, at most.
        let changed = rise && self.touches >= self.period / PERIOD_PER_ROW;
        if changed || self.touches >= self.period.max(PERIOD_PER_ROW) {
            self.touches = 0;
            self.halve(rows);
        }
    }

    /// Halves all frequencies.
    #[cold]
    fn halve(&mut self, rows: &mut Rows) {
        self.clear_ranks(rows);
        let touched = rows.states.touched();
        for state in rows.states.range_mut(0..touched) {
            state.set_frequency(state.frequency() / 2);
        }
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
        let rank = self.rank(rows, rows.states.get(slot));
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
            if !state.flags.any(Flags::VISITED) && self.rank(rows, state) <= self.lowest {
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
            for state in rows.states.range(range.clone()) {
                if is_free(rows, state) {
                    counts[self.rank(rows, state)] += 1;
                }
            }
            let want = (range.len() / CANDIDATES_SHARE).max(1);
            // Of the highest rank only as many as are wanted: queues have their bounds.
            let (mut limit, mut found, mut last) = (0, 0, 0);
            for (rank, count) in counts[..self.ranks.len()].iter().enumerate() {
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
            self.limit = limit;
            self.lowest = 0;
            let tie = self.tie.clamp(range.start, range.end);
            for slot in (tie..range.end).chain(range.start..tie).map(Slot::new) {
                let state = rows.states.get(slot);
                if is_free(rows, state) {
                    let rank = self.rank(rows, state);
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

/// Whether a row may be named, of a table of this policy, and stands in no queue.
#[inline]
fn is_free(rows: &Rows, state: &RowState) -> bool {
    // A free slot has no table.
    !state.flags.any(Flags::QUEUED)
        && state.nameable()
        && rows.tables[state.table()].policy == PolicyKind::Bilevel
        && !rows.tables[state.table()].is_sheltered()
}

impl Policy for Bilevel {
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

    fn next_rank(&mut self, rows: &mut Rows) -> Option<usize> {
        loop {
            while self.until_look > 0 && self.lowest <= self.limit {
                if self.ranks[self.lowest].len() > 0 {
                    return Some(self.lowest << self.shift);
                }
                self.lowest += 1;
            }
            if !self.look(rows) {
                return rows.front_rank(&mut self.lru);
            }
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
