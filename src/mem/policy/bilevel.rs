//! Bi-level: an LRU list for the rows of current work, an LFU list of candidates behind it.
//!
//! - Rows enter at the hot end of the LRU list. Over `lru_rows_max`, rows fall off its cold end
//!   into the LFU list; those visited or pinned since they were last looked at go round once more.
//! - The LFU list is 16 frequency classes: one for each frequency up to 8, two per doubling up to
//!   31, then one. Victims come from the cold end of the lowest class; a row whose frequency has
//!   risen meanwhile goes to its class instead.
//! - A hit writes the row's own state only; lists change when a row reaches a cold end.
//! - Frequencies survive eviction in ghost entries, and are halved every `period` touches: each
//!   class goes as a whole to the hot end of the class of half its frequency, rows halve when they
//!   are next looked at. A row may then stand one class from its own.
//!
//! Source: AIBox §4.2; HPS appendix D; the halving is TinyLFU's. The constants were chosen by
//! simulation over this code: 8 M rows of which 19 % fit in memory, zipf-distributed, all loaded
//! first, 32 768 samples a batch, 4 shards. Share of a batch's distinct rows that is missing:
//!
//! | batches | zipf 0.99, 1000-1500 | 1500-2000 | zipf 1.2, 4000-5000 | 5000-6000 |
//! |---|---|---|---|---|
//! | LFU that counts all rows exactly | .2277 | .2204 | .0925 | .0897 |
//! | LRU share 1/8, two classes per doubling, 2 ghosts a row | .2350 | .2316 | .0977 | .0933 |
//! | now | .2317 | .2282 | .0977 | .0927 |
//!
//! With drift (a tenth of the 1.5 M most frequent rows replaced every 200 batches; zipf 0.99,
//! batches 1500-2000): LFU .2703, before .2661, now .2653.

use super::Policy;
use crate::mem::ghosts::Ghosts;
use crate::mem::lists::{CLASSES, LRU, Rows};
use crate::mem::row_state::{NEW, RowState, VISITED};
use crate::units::Slot;

/// Touches per row of capacity between halvings. Halving seldom forgets less where nothing drifts,
/// and more slowly where it does. At a sixteenth of the size, batches 6000 to 8000, with periods of
/// 20, 30 and 40: .2149, .2122, .2112 missing without drift, .2867, .2984, .3033 with. (Shorter
/// runs flatter the long periods: 40 does not halve once before batch 2 900 at zipf 0.99.)
const PERIOD_PER_ROW: usize = 20;
/// The LRU list's share of the rows is one in this many. A share of 1/8 instead: 1 % more missing
/// (zipf 0.99, batches 1000 to 2000), and as many with drift.
const LRU_SHARE: usize = 64;
/// Rows looked at per touched row, at most, when the LRU list is too long: pinned rows may make it
/// longer than its share, and then looking at all of them in each batch would be in vain.
const LOOKS_PER_ROW: usize = 2;

#[derive(Debug)]
pub(crate) struct Bilevel {
    lru_rows_max: usize,
    touches: usize,
    period: usize,
    era: u8,
    ghosts: Ghosts,
}

/// The least frequency of each class: low counts stand alone, since the rows at the margin of
/// memory have been used 2 to 6 times.
const LEAST: [u8; CLASSES] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 23, 32, 64, 128];
/// The frequency that a class stands for: about the middle of its range.
const MIDDLE: [u8; CLASSES] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 13, 19, 27, 45, 90, 180];
/// The class of each frequency.
const CLASS: [u8; 256] = classes();
/// The class that each class becomes when frequencies are halved.
const HALVED: [u8; CLASSES] = halved();

const fn classes() -> [u8; 256] {
    let mut table = [0; 256];
    let (mut class, mut frequency) = (0u8, 0);
    while frequency < table.len() {
        if (class as usize) < CLASSES - 1 && LEAST[class as usize + 1] as usize == frequency {
            class += 1;
        }
        table[frequency] = class;
        frequency += 1;
    }
    table
}

const fn halved() -> [u8; CLASSES] {
    let mut table = [0; CLASSES];
    let mut class = 1;
    while class < CLASSES {
        table[class] = CLASS[MIDDLE[class] as usize / 2];
        assert!((table[class] as usize) < class, "a halved class is lower");
        class += 1;
    }
    table
}

fn class_of(frequency: u8) -> usize {
    usize::from(CLASS[usize::from(frequency)])
}

/// The list of a class.
fn head(class: usize) -> Slot {
    const _: () = assert!(CLASSES <= LRU.index(), "classes have the first heads");
    Slot::new(class)
}

impl Bilevel {
    pub fn new(capacity: usize) -> Bilevel {
        Bilevel {
            lru_rows_max: (capacity / LRU_SHARE).max(1),
            touches: 0,
            period: capacity * PERIOD_PER_ROW,
            era: 0,
            ghosts: Ghosts::new(capacity),
        }
    }

    pub fn bytes_for_rows(capacity: usize) -> usize {
        Ghosts::bytes_for_rows(capacity)
    }

    pub fn bytes_allocated(&self) -> usize {
        self.ghosts.bytes_allocated()
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
        self.ghosts.halve(&HALVED);
        // Upwards, so that no class is moved twice; the warmer ones come to the hot end.
        for (class, to) in HALVED.iter().enumerate().skip(1) {
            rows.splice_hot(head(class), head(usize::from(*to)));
        }
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
            // The one that falls off next was linked long ago.
            if let Some(next) = rows.coldest(LRU) {
                rows.prefetch_line(next);
            }
        }
    }

    /// Links a row at the hot end of the list that it belongs to by now.
    fn place(&mut self, rows: &mut Rows, slot: Slot, candidate: bool) {
        let state = rows.get_mut(slot);
        let busy = state.busy();
        let visited = state.marks & VISITED != 0;
        state.marks &= !(VISITED | NEW);
        self.halve(state);
        let class = class_of(state.frequency);
        let head = if busy || (visited && !candidate) {
            LRU
        } else {
            head(class)
        };
        rows.push_hot(head, slot);
    }

    /// Takes the next victim out of the LFU list; rows that became warmer go up first.
    fn coldest_lfu(&mut self, rows: &mut Rows) -> Option<Slot> {
        let mut class = 0;
        while class < CLASSES {
            let Some(slot) = rows.coldest(head(class)) else {
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
    fn touched(&mut self, rows: &mut Rows, slots: &[Slot]) {
        for slot in slots {
            let state = rows.get_mut(*slot);
            self.halve(state);
            state.frequency = state.frequency.saturating_add(1);
            state.marks = if state.marks & NEW != 0 { 0 } else { VISITED };
        }
        self.count(rows, slots.len());
        self.demote(rows, slots.len() * LOOKS_PER_ROW);
    }

    fn admitted(&mut self, rows: &mut Rows, slot: Slot) {
        let state = rows.get_mut(slot);
        state.frequency = MIDDLE[usize::from(self.ghosts.take(state.hash))];
        state.era = self.era;
        state.marks = NEW;
        rows.push_hot(LRU, slot);
        self.demote(rows, LOOKS_PER_ROW);
    }

    fn returned(&mut self, rows: &mut Rows, slot: Slot) {
        self.place(rows, slot, true);
    }

    fn coldest(&mut self, rows: &mut Rows, want: usize, named: &mut Vec<Slot>) {
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

    fn prefetch_line(&self, hash: u64) {
        self.ghosts.prefetch_line(hash);
    }

    fn left(&mut self, rows: &mut Rows, slot: Slot) {
        let state = rows.get_mut(slot);
        self.halve(state);
        if state.frequency > 0 {
            let class = CLASS[usize::from(state.frequency)];
            self.ghosts.record(state.hash, class);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_halving_keeps_the_rows_in_the_order_of_their_frequencies() {
        let mut policy = Bilevel::new(256);
        let mut rows = Rows::new(256);
        for frequency in 0..=255 {
            let slot = rows.extend();
            rows.get_mut(slot).frequency = frequency;
            rows.push_hot(head(class_of(frequency)), slot);
        }
        policy.count(&mut rows, policy.period);
        let mut order = Vec::new();
        for class in 0..CLASSES {
            for slot in rows.walk(head(class)) {
                let state = *rows.get(slot);
                order.push(state.frequency);
                let mut halved = state;
                policy.halve(&mut halved);
                let own = class_of(halved.frequency);
                let near = usize::from(state.frequency > 8);
                assert!(own.abs_diff(class) <= near, "{state:?}");
            }
        }
        assert_eq!(order, (0..=255).collect::<Vec<u8>>());
    }
}
