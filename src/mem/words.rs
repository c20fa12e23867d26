//! Which slot holds the row of a key? A flat table of words, sorted by tag.
//!
//! - A word is tag << 32 | slot. The tag is the high half of a product that spreads any set of hashes,
//!   also those of a narrow range, and those of one table from those of another. Equal tags are told apart
//!   by table and hash in the row's state.
//! - The home of a tag rises with it, a word never lies before its home, and between home and word no
//!   place is empty. So the words lie in rising order, and a look-up ends at the first that is not less
//!   than its tag: the table can be five sixths full, and most look-ups still end in one cache line.
//! - Words do not wrap round; the last run may go on behind the last home.
//! - It gets larger or smaller in place: since the words are sorted, all of them are pushed to its end
//!   and taken from there one by one.

use std::collections::TryReserveError;

use super::row_state::States;
use crate::pages::{advise_huge, prefetch_item, release_spare};
use crate::units::Slot;

/// An empty place: greater than every word, since no slot has the number of [`Slot::NONE`].
const EMPTY: u64 = u64::MAX;
/// 2^64 divided by the golden ratio (Knuth, The Art of Computer Programming 6.4).
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
/// Tells the hashes of one table from those of another (Steele and Vigna, LXM, 2021).
const SALT: u64 = 0xd134_2543_de82_ef95;
/// Homes for so many rows, of so many.
const HOMES_PER: (usize, usize) = (6, 5);
/// Places behind the last home, at most; more are added where hashes were chosen to collide.
const SLACK_MAX: usize = 64;
/// Look-ups between the one whose word is announced and the one whose state is; and the one that is
/// answered. Row by row instead of 16 rows a step: 37 -> 30 ns a row.
const STATE_BEHIND: usize = 24;
const ANSWER_BEHIND: usize = 48;
/// Look-ups that are kept.
const RING: usize = 64;
const _: () = assert!(
    ANSWER_BEHIND < RING,
    "a look-up is kept until it is answered"
);

/// Words of a cache line, and those that are announced behind a word that comes or goes.
const LINE_WORDS: usize = 8;
const RUN_WORDS: usize = 16;

#[derive(Debug)]
pub(crate) struct Words {
    words: Vec<u64>,
    homes: u64,
    /// Rows for which there are homes.
    room: usize,
}

/// A look-up on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probe {
    tag: u64,
    place: usize,
    /// Slot of the first row with this tag; [`Slot::NONE`] if there is none.
    slot: Slot,
}

/// The look-ups of a batch, whose cache misses overlap.
pub(crate) struct Lookups {
    probes: [Probe; RING],
}

impl Default for Lookups {
    fn default() -> Lookups {
        let none = Probe {
            tag: 0,
            place: 0,
            slot: Slot::NONE,
        };
        Lookups {
            probes: [none; RING],
        }
    }
}

impl Lookups {
    /// Steps that answer all of so many look-ups.
    pub fn steps(hashes: usize) -> usize {
        hashes + ANSWER_BEHIND
    }

    /// Announces one more look-up and answers an earlier one: its index, and its slot or
    /// [`Slot::NONE`]. Steps are counted from 0.
    #[inline]
    pub fn step(
        &mut self,
        words: &Words,
        states: &States,
        (table, hashes): (usize, &[u64]),
        step: usize,
    ) -> Option<(usize, Slot)> {
        if let Some(hash) = hashes.get(step) {
            self.probes[step % RING] = words.prefetch_line(table, *hash);
        }
        if (STATE_BEHIND..hashes.len() + STATE_BEHIND).contains(&step) {
            words.approach(states, &mut self.probes[(step - STATE_BEHIND) % RING]);
        }
        let i = step.checked_sub(ANSWER_BEHIND)?;
        let probe = &self.probes[i % RING];
        Some((i, words.arrive(states, (table, hashes[i]), probe)))
    }
}

#[inline]
fn tag(table: usize, hash: u64) -> u64 {
    let salted = hash ^ (table as u64).wrapping_mul(SALT);
    (salted ^ (salted >> 32)).wrapping_mul(SPREAD) >> 32
}

#[inline]
fn has_tag(word: u64, tag: u64) -> bool {
    word >> 32 == tag && word != EMPTY
}

impl Words {
    fn homes_for(capacity: usize) -> usize {
        (capacity * HOMES_PER.0).div_ceil(HOMES_PER.1) + 1
    }

    fn words_for(capacity: usize) -> usize {
        Words::homes_for(capacity) + (16 + capacity / 32).min(SLACK_MAX)
    }

    pub fn bytes_for(rows: usize) -> usize {
        Words::words_for(rows) * size_of::<u64>()
    }

    /// An empty table without room.
    pub fn new() -> Words {
        Words {
            words: vec![EMPTY; Words::words_for(0)],
            homes: Words::homes_for(0) as u64,
            room: 0,
        }
    }

    /// Asks for the addresses that a table of so many rows needs.
    pub fn reserve(&mut self, rows: usize) -> Result<(), TryReserveError> {
        let words = Words::words_for(rows);
        if self.words.capacity() < words {
            self.words.try_reserve_exact(words - self.words.len())?;
            advise_huge(&self.words);
        }
        Ok(())
    }

    /// Rows for which there is room.
    pub fn room(&self) -> usize {
        self.room
    }

    /// Makes room for so many rows, no more; those that are there stay.
    ///
    /// # Cost
    /// Twice through the table.
    pub fn set_room(&mut self, rows: usize) {
        let mut count = 0;
        for from in 0..self.words.len() {
            let word = self.words[from];
            self.words[count] = word;
            count += usize::from(word != EMPTY);
        }
        self.room = rows;
        self.homes = Words::homes_for(rows) as u64;
        let place = |end: usize, word: &u64| self.home(word >> 32).max(end) + 1;
        let end = self.words[..count].iter().fold(0, place);
        let length = end.max(Words::words_for(rows));
        self.words.resize(self.words.len().max(length), EMPTY);
        // Every word has its place where it lies now, or before.
        let mut from = length - count;
        self.words.copy_within(..count, from);
        self.words[..from].fill(EMPTY);
        let mut end = 0;
        while from < length {
            let word = std::mem::replace(&mut self.words[from], EMPTY);
            let place = self.home(word >> 32).max(end);
            self.words[place] = word;
            end = place + 1;
            from += 1;
        }
        if length < self.words.len() {
            self.words.truncate(length);
            release_spare(&mut self.words);
        }
    }

    /// Memory in use.
    pub fn bytes(&self) -> usize {
        self.words.len() * size_of::<u64>()
    }

    #[inline]
    fn home(&self, tag: u64) -> usize {
        // 32 bits times the number of homes, which has as many at most.
        usize::try_from((tag * self.homes) >> 32).unwrap_or(0)
    }

    /// The first place from `place` on whose word is not less.
    #[inline]
    fn seek(&self, mut place: usize, word: u64) -> usize {
        while self.words.get(place).is_some_and(|found| *found < word) {
            place += 1;
        }
        place
    }

    fn find(&self, states: &States, key: (usize, u64), tag: u64, mut place: usize) -> Slot {
        while let Some(word) = self.words.get(place)
            && has_tag(*word, tag)
        {
            let slot = Slot::of_low_half(*word);
            if states.get(slot).is(key.0, key.1) {
                return slot;
            }
            place += 1;
        }
        Slot::NONE
    }

    /// The slot of a row, or [`Slot::NONE`].
    pub fn get(&self, states: &States, table: usize, hash: u64) -> Slot {
        let tag = tag(table, hash);
        let place = self.seek(self.home(tag), tag << 32);
        self.find(states, (table, hash), tag, place)
    }

    /// First step of a look-up in three: where to look, whose line the processor is asked to fetch.
    #[inline]
    pub fn prefetch_line(&self, table: usize, hash: u64) -> Probe {
        let tag = tag(table, hash);
        let place = self.home(tag);
        prefetch_item(&self.words, place);
        // One look-up in three goes on in the next line.
        prefetch_item(&self.words, place + LINE_WORDS / 2);
        Probe {
            tag,
            place,
            slot: Slot::NONE,
        }
    }

    /// Announces that a row comes or goes: the words behind its own move, some twenty.
    #[inline]
    pub fn prefetch_run(&self, table: usize, hash: u64) {
        let place = self.home(tag(table, hash));
        for ahead in (0..=RUN_WORDS).step_by(LINE_WORDS) {
            prefetch_item(&self.words, place + ahead);
        }
    }

    /// Second step: the likely slot, its state asked for.
    #[inline]
    fn approach(&self, states: &States, probe: &mut Probe) {
        let place = self.seek(probe.place, probe.tag << 32);
        probe.place = place;
        if let Some(word) = self.words.get(place)
            && has_tag(*word, probe.tag)
        {
            probe.slot = Slot::of_low_half(*word);
            states.prefetch_line(probe.slot);
        }
    }

    /// Third step: the slot, or [`Slot::NONE`].
    #[inline]
    fn arrive(&self, states: &States, key: (usize, u64), probe: &Probe) -> Slot {
        if probe.slot == Slot::NONE || states.get(probe.slot).is(key.0, key.1) {
            probe.slot
        } else {
            self.arrive_later(states, key, probe)
        }
    }

    #[cold]
    fn arrive_later(&self, states: &States, key: (usize, u64), probe: &Probe) -> Slot {
        self.find(states, key, probe.tag, probe.place + 1)
    }

    /// Writes the slot of each hash of a table, or [`Slot::NONE`].
    pub fn get_batch(&self, states: &States, table: usize, hashes: &[u64], slots: &mut [Slot]) {
        assert_eq!(hashes.len(), slots.len(), "one slot per hash");
        let mut lookups = Lookups::default();
        for step in 0..Lookups::steps(hashes.len()) {
            if let Some((i, slot)) = lookups.step(self, states, (table, hashes), step) {
                slots[i] = slot;
            }
        }
    }

    /// Adds a row that is not there.
    pub fn insert(&mut self, table: usize, hash: u64, slot: Slot) {
        let tag = tag(table, hash);
        let word = (tag << 32) | slot.to_low_half();
        let place = self.seek(self.home(tag), word);
        let rest = &self.words[place..];
        let run = rest.iter().position(|word| *word == EMPTY);
        let end = run.map_or(self.words.len(), |run| place + run);
        if end == self.words.len() {
            self.words.extend_from_slice(&[EMPTY; SLACK_MAX]);
        }
        self.words.copy_within(place..end, place + 1);
        self.words[place] = word;
    }

    /// Removes a row that is there, and moves back what lay behind it for lack of a place.
    pub fn remove(&mut self, table: usize, hash: u64, slot: Slot) {
        let tag = tag(table, hash);
        let word = (tag << 32) | slot.to_low_half();
        let place = self.seek(self.home(tag), word);
        assert!(
            self.words.get(place) == Some(&word),
            "a row that leaves is found by its hash"
        );
        let mut end = place + 1;
        while let Some(next) = self.words.get(end)
            && *next != EMPTY
            && self.home(next >> 32) < end
        {
            end += 1;
        }
        self.words.copy_within(place + 1..end, place);
        self.words[end - 1] = EMPTY;
    }

    /// Panics where a word does not lie as the module says. For tests.
    #[cfg(any(test, feature = "sim"))]
    pub fn check(&self) {
        let mut last = 0;
        for (place, word) in self.words.iter().enumerate() {
            if *word == EMPTY {
                continue;
            }
            assert!(*word > last || last == 0, "words rise");
            last = *word;
            let home = self.home(word >> 32);
            let between = &self.words[home.min(place)..place];
            assert!(
                home <= place && !between.contains(&EMPTY),
                "no empty place between home and word"
            );
        }
    }
}
