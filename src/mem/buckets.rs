//! Which slot holds the row of a hash? A flat table of (tag, slot) words.
//!
//! - The shard and table are the first level of hashing, the bucket found here the second: the
//!   words of one bucket and of its overflow lie in one or two cache lines.
//! - Its size is fixed with the capacity, so that the budget is exact; it is at most 4/7 full.
//! - A word is tag << 32 | slot; 0 is empty (slot 0 is a list head). The tag is the high half of
//!   a product that spreads any set of hashes, also those of a narrow range. Equal tags are told
//!   apart by the hash in the row's state.

use super::lists::Rows;
use crate::pages::{advise_huge, prefetch};
use crate::units::Slot;

/// The slot of an empty word, a list's head.
const NO_ROW: Slot = Slot::new(0);
/// 2^64 divided by the golden ratio (Knuth, The Art of Computer Programming 6.4).
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
/// Look-ups between the one whose word is whose lines the processor is asked to fetch and the one whose state is;
/// and the one that is answered. Row by row instead of 16 rows a step: 37 -> 30 ns a row.
const STATE_BEHIND: usize = 12;
const ANSWER_BEHIND: usize = 24;
/// Look-ups that are kept.
const RING: usize = 32;
const _: () = assert!(
    ANSWER_BEHIND < RING,
    "a look-up is kept until it is answered"
);

#[derive(Debug)]
pub(crate) struct Buckets {
    words: Vec<u64>,
}

/// A look-up on its way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Probe {
    tag: u64,
    place: usize,
    /// Slot of the first row with this tag; [`NO_ROW`] if there is none.
    slot: Slot,
}

/// The look-ups of a batch, whose cache misses overlap.
#[derive(Default)]
pub(crate) struct Lookups {
    probes: [Probe; RING],
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
        buckets: &Buckets,
        rows: &Rows,
        hashes: &[u64],
        step: usize,
    ) -> Option<(usize, Slot)> {
        if let Some(hash) = hashes.get(step) {
            self.probes[step % RING] = buckets.prefetch_line(*hash);
        }
        if (STATE_BEHIND..hashes.len() + STATE_BEHIND).contains(&step) {
            buckets.approach(rows, &mut self.probes[(step - STATE_BEHIND) % RING]);
        }
        let i = step.checked_sub(ANSWER_BEHIND)?;
        Some((i, buckets.arrive(rows, hashes[i], &self.probes[i % RING])))
    }
}

#[inline]
fn tag(hash: u64) -> u64 {
    (hash ^ (hash >> 32)).wrapping_mul(SPREAD) >> 32
}

#[inline]
fn slot_of(word: u64) -> Slot {
    Slot::of_low_half(word)
}

impl Buckets {
    pub fn words_for(capacity: usize) -> usize {
        (capacity * 7).div_ceil(4) + 1
    }

    pub fn new(capacity: usize) -> Buckets {
        let words = vec![0; Buckets::words_for(capacity)];
        advise_huge(&words);
        Buckets { words }
    }

    pub fn bytes_allocated(&self) -> usize {
        self.words.capacity() * size_of::<u64>()
    }

    #[inline]
    fn home(&self, tag: u64) -> usize {
        let wide = u128::from(tag) * self.words.len() as u128;
        usize::try_from(wide >> 32).unwrap_or(0)
    }

    #[inline]
    fn after(&self, place: usize) -> usize {
        if place + 1 == self.words.len() {
            0
        } else {
            place + 1
        }
    }

    /// Where the word of a hash is; none if it is not there.
    fn find(&self, rows: &Rows, hash: u64, mut place: usize) -> Option<usize> {
        let tag = tag(hash);
        loop {
            let word = self.words[place];
            if word == 0 {
                return None;
            }
            if word >> 32 == tag && rows.get(slot_of(word)).hash == hash {
                return Some(place);
            }
            place = self.after(place);
        }
    }

    pub fn get(&self, rows: &Rows, hash: u64) -> Option<Slot> {
        self.find(rows, hash, self.home(tag(hash)))
            .map(|place| slot_of(self.words[place]))
    }

    /// First step of a look-up in three: where to look, whose lines the processor is asked to fetch.
    #[inline]
    pub fn prefetch_line(&self, hash: u64) -> Probe {
        let tag = tag(hash);
        let place = self.home(tag);
        prefetch(&self.words[place..=place]);
        Probe {
            tag,
            place,
            slot: NO_ROW,
        }
    }

    /// Second step: the likely slot, its state asked for.
    #[inline]
    fn approach(&self, rows: &Rows, probe: &mut Probe) {
        let mut word = self.words[probe.place];
        while word != 0 && word >> 32 != probe.tag {
            probe.place = self.after(probe.place);
            word = self.words[probe.place];
        }
        probe.slot = slot_of(word);
        rows.prefetch_line(probe.slot);
    }

    /// Third step: the slot, or [`Slot::NONE`].
    #[inline]
    fn arrive(&self, rows: &Rows, hash: u64, probe: &Probe) -> Slot {
        if probe.slot == NO_ROW {
            Slot::NONE
        } else if rows.get(probe.slot).hash == hash {
            probe.slot
        } else {
            self.arrive_later(rows, hash, probe)
        }
    }

    #[cold]
    fn arrive_later(&self, rows: &Rows, hash: u64, probe: &Probe) -> Slot {
        let found = self.find(rows, hash, self.after(probe.place));
        found.map_or(Slot::NONE, |place| slot_of(self.words[place]))
    }

    /// Writes the slot of each hash, or [`Slot::NONE`].
    pub fn get_batch(&self, rows: &Rows, hashes: &[u64], slots: &mut [Slot]) {
        assert_eq!(hashes.len(), slots.len(), "one slot per hash");
        let mut lookups = Lookups::default();
        for step in 0..Lookups::steps(hashes.len()) {
            if let Some((i, slot)) = lookups.step(self, rows, hashes, step) {
                slots[i] = slot;
            }
        }
    }

    /// Adds a hash that is not there; its state need not be set yet.
    pub fn insert(&mut self, hash: u64, slot: Slot) {
        let tag = tag(hash);
        let mut place = self.home(tag);
        while self.words[place] != 0 {
            place = self.after(place);
        }
        self.words[place] = (tag << 32) | slot.to_low_half();
    }

    /// Removes a hash and shifts back what had overflowed past it.
    pub fn remove(&mut self, rows: &Rows, hash: u64) {
        let found = self.find(rows, hash, self.home(tag(hash)));
        let Some(mut hole) = found else {
            return;
        };
        let mut place = hole;
        loop {
            self.words[hole] = 0;
            loop {
                place = self.after(place);
                let word = self.words[place];
                if word == 0 {
                    return;
                }
                let home = self.home(word >> 32);
                // Movable unless its home lies cyclically in (hole, place].
                let stays = if hole <= place {
                    hole < home && home <= place
                } else {
                    hole < home || home <= place
                };
                if !stays {
                    self.words[hole] = word;
                    hole = place;
                    break;
                }
            }
        }
    }
}
