//! Bi-level: an LRU list for the rows of current work, an LFU list of candidates behind it.
//!
//! - Rows enter at the hot end of the LRU list. Over `lru_rows_max`, rows fall off its cold end
//!   into the LFU list; those visited or pinned since they were last looked at go round once more.
//! - The LFU list is 16 frequency classes, two per doubling. Victims come from the cold end of the
//!   lowest class; a row whose frequency has risen meanwhile goes to its class instead.
//! - A hit writes the row's own state only; lists change when a row reaches a cold end.
//! - Frequencies survive eviction in ghost entries, and are halved every `period` touches: classes
//!   move down by two as a whole, rows halve when they are next looked at.
//!
//! Source: AIBox §4.2; HPS appendix D; the halving is TinyLFU's.

use super::Policy;
use crate::mem::ghosts::Ghosts;
use crate::mem::lists::{CLASSES, LRU, Rows};
use crate::mem::row_state::{NEW, RowState, VISITED};

/// Touches per row of capacity between halvings.
const PERIOD_PER_ROW: usize = 20;
/// The LRU list's share of the rows is one in this many.
const LRU_SHARE: usize = 8;
/// Rows looked at per touched row, at most, when the LRU list is too long: pinned rows may make it
/// longer than its share, and then looking at all of them in each batch would be in vain.
const LOOKS_PER_ROW: usize = 2;

#[derive(Debug)]
pub(crate) struct Bilevel {
    lru_rows_max: usize,
    touches: usize,
    period: usize,
    era: u8,
    /// The head of class 0; heads are a ring.
    lowest: usize,
    ghosts: Ghosts,
}

/// Two classes per doubling: floor(2 log2 frequency).
fn class_of(frequency: u8) -> usize {
    let Some(log) = frequency.checked_ilog2() else {
        return 0;
    };
    let square = u32::from(frequency) * u32::from(frequency);
    2 * log as usize + usize::from(square >= 1 << (2 * log + 1))
}

/// About the least frequency of a class.
fn frequency_of(class: u8) -> u8 {
    if class.is_multiple_of(2) {
        1 << (class / 2)
    } else {
        (3 << (class / 2)) / 2
    }
}

impl Bilevel {
    pub fn new(capacity: usize) -> Bilevel {
        Bilevel {
            lru_rows_max: (capacity / LRU_SHARE).max(1),
            touches: 0,
            period: capacity * PERIOD_PER_ROW,
            era: 0,
            lowest: 0,
            ghosts: Ghosts::new(capacity),
        }
    }

    pub fn bytes_for_rows(capacity: usize) -> usize {
        Ghosts::entries_for(capacity) * size_of::<u16>()
    }

    pub fn bytes_allocated(&self) -> usize {
        self.ghosts.bytes_allocated()
    }

    fn head(&self, class: usize) -> u32 {
        u32::try_from((self.lowest + class) % CLASSES).unwrap_or(0)
    }

    /// Brings a row's frequency to the current era.
    #[inline]
    fn halve(&self, state: &mut RowState) {
        let eras = u32::from(self.era.wrapping_sub(state.era));
        state.frequency = state.frequency.checked_shr(eras).unwrap_or(0);
        state.era = self.era;
    }

    fn count(&mut self, rows: &mut Rows, touches: usize) {
        self.touches += touches;
        if self.touches < self.period {
            return;
        }
        self.touches = 0;
        self.era = self.era.wrapping_add(1);
        self.ghosts.halve();
        // Classes 0 and 1 go to the cold end of class 2, which becomes class 0.
        let target = self.head(2);
        rows.splice_cold(self.head(1), target);
        rows.splice_cold(self.head(0), target);
        self.lowest = (self.lowest + 2) % CLASSES;
    }

    /// Lets rows fall off the LRU list's cold end until it has its length, or `looks` were looked
    /// at.
    fn demote(&mut self, rows: &mut Rows, looks: usize) {
        for _ in 0..looks {
            if rows.lru_rows <= self.lru_rows_max {
                return;
            }
            let Some(slot) = rows.coldest(LRU) else {
                return;
            };
            rows.unlink(slot);
            self.place(rows, slot, false);
        }
    }

    /// Links a row at the hot end of the list that it belongs to by now.
    fn place(&mut self, rows: &mut Rows, slot: u32, candidate: bool) {
        let state = rows.get_mut(slot);
        let busy = state.busy();
        let visited = state.marks & VISITED != 0;
        state.marks &= !(VISITED | NEW);
        self.halve(state);
        let class = class_of(state.frequency);
        let head = if busy || (visited && !candidate) {
            LRU
        } else {
            self.head(class)
        };
        rows.push_hot(head, slot);
    }

    /// Takes the next victim out of the LFU list; rows that became warmer go up first.
    fn coldest_lfu(&mut self, rows: &mut Rows) -> Option<u32> {
        let mut class = 0;
        while class < CLASSES {
            let Some(slot) = rows.coldest(self.head(class)) else {
                class += 1;
                continue;
            };
            rows.unlink(slot);
            let mut state = *rows.get(slot);
            self.halve(&mut state);
            let stays =
                !state.busy() && state.marks & VISITED == 0 && class_of(state.frequency) <= class;
            if stays {
                return Some(slot);
            }
            self.place(rows, slot, true);
        }
        None
    }
}

impl Policy for Bilevel {
    fn touched(&mut self, rows: &mut Rows, slots: &[u32]) {
        for slot in slots {
            let state = rows.get_mut(*slot);
            self.halve(state);
            state.frequency = state.frequency.saturating_add(1);
            state.marks = if state.marks & NEW != 0 { 0 } else { VISITED };
        }
        self.count(rows, slots.len());
        self.demote(rows, slots.len() * LOOKS_PER_ROW);
    }

    fn admitted(&mut self, rows: &mut Rows, slot: u32) {
        let state = rows.get_mut(slot);
        let known = self.ghosts.take(state.hash);
        state.frequency = known.checked_sub(1).map_or(0, frequency_of);
        state.era = self.era;
        state.marks = NEW;
        rows.push_hot(LRU, slot);
        self.demote(rows, LOOKS_PER_ROW);
    }

    fn returned(&mut self, rows: &mut Rows, slot: u32) {
        self.place(rows, slot, true);
    }

    fn coldest(&mut self, rows: &mut Rows, want: usize, named: &mut Vec<u32>) {
        while named.len() < want {
            let Some(slot) = self.coldest_lfu(rows) else {
                break;
            };
            named.push(slot);
        }
        // Twice round: the first may only take the visited marks off.
        for _ in 0..rows.lru_rows * 2 {
            if named.len() >= want {
                return;
            }
            let Some(slot) = rows.coldest(LRU) else {
                return;
            };
            rows.unlink(slot);
            let state = rows.get_mut(slot);
            if state.busy() || state.marks & VISITED != 0 {
                state.marks &= !VISITED;
                rows.push_hot(LRU, slot);
            } else {
                named.push(slot);
            }
        }
    }

    fn left(&mut self, rows: &mut Rows, slot: u32) {
        let state = rows.get_mut(slot);
        self.halve(state);
        if state.frequency > 0 {
            let class = class_of(state.frequency);
            self.ghosts
                .record(state.hash, u8::try_from(class).unwrap_or(0));
        }
    }
}
