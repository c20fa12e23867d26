//! Which place holds the row of a hash? A flat table of (tag, place) words.
//!
//! - The shard and table are the first level of hashing, the bucket found here the second: the
//!   words of one bucket and of its overflow lie in one or two cache lines.
//! - Its size is fixed with the capacity, so that the budget is exact; it is at most 4/7 full.
//! - A word is tag << 32 | place; 0 is empty (place 0 is a list head). The tag is the high half of
//!   a product that spreads any set of hashes, also those of a narrow range. Equal tags are told
//!   apart by the hash in the row's state.

use super::lists::Rows;

/// "Not resident".
pub const NO_SLOT: u32 = u32::MAX;

/// 2^64 divided by the golden ratio (Knuth, The Art of Computer Programming 6.4).
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
/// Lookups whose cache misses overlap.
const GROUP: usize = 16;

#[derive(Debug)]
pub(crate) struct Buckets {
    words: Vec<u64>,
}

fn tag(hash: u64) -> u64 {
    (hash ^ (hash >> 32)).wrapping_mul(SPREAD) >> 32
}

#[inline]
fn slot_of(word: u64) -> u32 {
    (word & 0xffff_ffff) as u32
}

impl Buckets {
    pub fn words_for(capacity: usize) -> usize {
        (capacity * 7).div_ceil(4) + 1
    }

    pub fn new(capacity: usize) -> Buckets {
        Buckets {
            words: vec![0; Buckets::words_for(capacity)],
        }
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

    pub fn get(&self, rows: &Rows, hash: u64) -> Option<u32> {
        self.find(rows, hash, self.home(tag(hash)))
            .map(|place| slot_of(self.words[place]))
    }

    /// Writes the place of each hash, or [`NO_SLOT`].
    pub fn get_batch(&self, rows: &Rows, hashes: &[u64], slots: &mut [u32]) {
        assert_eq!(hashes.len(), slots.len(), "one slot per hash");
        for (hashes, slots) in hashes.chunks(GROUP).zip(slots.chunks_mut(GROUP)) {
            let mut places = [0; GROUP];
            let mut words = [0; GROUP];
            for (i, hash) in hashes.iter().enumerate() {
                places[i] = self.home(tag(*hash));
                words[i] = self.words[places[i]];
            }
            // Tags first, states after: the states' cache misses overlap too.
            for (i, hash) in hashes.iter().enumerate() {
                let tag = tag(*hash);
                while words[i] != 0 && words[i] >> 32 != tag {
                    places[i] = self.after(places[i]);
                    words[i] = self.words[places[i]];
                }
            }
            for (i, hash) in hashes.iter().enumerate() {
                let slot = slot_of(words[i]);
                slots[i] = if words[i] == 0 {
                    NO_SLOT
                } else if rows.get(slot).hash == *hash {
                    slot
                } else {
                    let found = self.find(rows, *hash, self.after(places[i]));
                    found.map_or(NO_SLOT, |place| slot_of(self.words[place]))
                };
            }
        }
    }

    /// Adds a hash that is not there; its state need not be set yet.
    pub fn insert(&mut self, hash: u64, slot: u32) {
        let tag = tag(hash);
        let mut place = self.home(tag);
        while self.words[place] != 0 {
            place = self.after(place);
        }
        self.words[place] = (tag << 32) | u64::from(slot);
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
