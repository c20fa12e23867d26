//! How often was a row used before it left memory? Ghost entries: fingerprints with a class.
//!
//! - Four entries of 16 bits per row of capacity: 12 bits of fingerprint, 4 of frequency class.
//!   Class 0 stands for no touch and is never recorded, so that 0 is an empty entry.
//! - A hash belongs to one cache line of 32 entries; in a full line the least frequent entry makes
//!   room, which one turns with the hash. A line is searched as a whole, without a branch per entry.
//! - A row that comes back takes its entry away: it carries its frequency itself.
//! - Halving maps every class to that of half its frequency; what comes to class 0 is forgotten
//!   (TinyLFU's reset, Einziger et al. 2017).
//!
//! A count-min sketch of the same 4 bytes a row was tried first: rows that come once fill its
//! counters, and its hit rate was 3.6 points lower (zipf 0.99 with every third key a new one:
//! 71.0 %, 74.6 %).

use super::lists::CLASSES;
use crate::pages::{advise_huge, prefetch};

/// Entries per row of capacity. Two instead: up to 1.6 % more rows missing (simulated, zipf 0.99, a
/// fifth in memory); the 4 bytes saved make room for 0.7 % more rows of 512 B.
const ENTRIES_PER_ROW: usize = 4;
/// Entries of a line.
const LINE: usize = 32;
const SPREAD: u64 = 0xd6e8_feb8_6659_fd93;

#[derive(Clone, Debug)]
#[repr(align(64))]
struct Line([u16; LINE]);

#[derive(Debug)]
pub(crate) struct Ghosts {
    lines: Vec<Line>,
}

/// A hash among the ghosts: its line, its fingerprint (in place), and the entry where a search for
/// room starts.
struct Spot {
    line: usize,
    fingerprint: u16,
    turn: i16,
}

impl Ghosts {
    fn lines_for(capacity: usize) -> usize {
        (capacity * ENTRIES_PER_ROW).div_ceil(LINE)
    }

    pub fn bytes_for_rows(capacity: usize) -> usize {
        Ghosts::lines_for(capacity) * size_of::<Line>()
    }

    pub fn new(capacity: usize) -> Ghosts {
        let lines = vec![Line([0; LINE]); Ghosts::lines_for(capacity)];
        advise_huge(&lines);
        Ghosts { lines }
    }

    pub fn bytes_allocated(&self) -> usize {
        self.lines.capacity() * size_of::<Line>()
    }

    #[inline]
    fn spot(&self, hash: u64) -> Spot {
        let mixed = (hash ^ (hash >> 32)).wrapping_mul(SPREAD);
        let low = mixed ^ (mixed >> 29);
        let wide = (mixed >> 32) * self.lines.len() as u64;
        Spot {
            line: usize::try_from(wide >> 32).unwrap_or(0),
            fingerprint: ((low & 0xfff) as u16) << 4,
            turn: ((low >> 12) & 31) as i16,
        }
    }

    /// Announces to the processor that the entry of a hash is needed soon.
    #[inline]
    pub fn prefetch_line(&self, hash: u64) {
        let line = self.spot(hash).line;
        prefetch(&self.lines[line..=line]);
    }

    /// Takes the entry of a hash: its class, 0 if there is none.
    pub fn take(&mut self, hash: u64) -> u8 {
        let spot = self.spot(hash);
        let line = &mut self.lines[spot.line].0;
        // The fingerprint and a class that is not 0.
        let known = |entry: u16| (entry ^ spot.fingerprint).wrapping_sub(1) < 15;
        // Most rows that come in have none: all entries are asked at once.
        if !line.iter().fold(false, |any, entry| any | known(*entry)) {
            return 0;
        }
        let entry = line.iter_mut().find(|entry| known(**entry));
        entry.map_or(0, |entry| (std::mem::take(entry) & 15) as u8)
    }

    /// Remembers the class of a hash, in the place of one no more frequent if its line is full.
    pub fn record(&mut self, hash: u64, class: u8) {
        const _: () = assert!(CLASSES == 16, "a class has 4 bits");
        assert!((1..16).contains(&class), "class 0 is an empty entry");
        let spot = self.spot(hash);
        let line = &mut self.lines[spot.line].0;
        // The least class, and of those the first from `turn` on.
        let mut least = i16::MAX;
        for (place, entry) in (0..).zip(line.iter()) {
            let rank = ((entry & 15) << 5) as i16 | ((place - spot.turn) & 31);
            least = least.min(rank);
        }
        if least >> 5 <= i16::from(class) {
            let place = usize::try_from((least + spot.turn) & 31).unwrap_or(0);
            line[place] = spot.fingerprint | u16::from(class);
        }
    }

    /// Gives every entry the class that `halved` names for its own; 0 forgets it.
    pub fn halve(&mut self, halved: &[u8; CLASSES]) {
        for entry in self.lines.iter_mut().flat_map(|line| &mut line.0) {
            let class = u16::from(halved[usize::from(*entry & 15)]);
            *entry = if class > 0 {
                *entry & 0xfff0 | class
            } else {
                0
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::mix64;

    #[test]
    fn an_entry_is_taken_once_and_halving_maps_its_class() {
        let halved = [0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 9, 10, 11, 13, 14];
        for halvings in 0..3u8 {
            let mut ghosts = Ghosts::new(1000);
            let class = |key: u64| u8::try_from(key % 15 + 1).unwrap();
            (0..300).for_each(|key| ghosts.record(mix64(key), class(key)));
            (0..halvings).for_each(|_| ghosts.halve(&halved));
            let expected =
                |key| (0..halvings).fold(class(key), |class, _| halved[usize::from(class)]);
            let right = (0..300).filter(|k| ghosts.take(mix64(*k)) == expected(*k));
            assert!(right.count() >= 297, "fingerprints rarely collide");
            assert!(
                (0..300).filter(|k| ghosts.take(mix64(*k)) > 0).count() <= 3,
                "taken once"
            );
        }
    }

    #[test]
    fn a_full_line_keeps_the_frequent_ones() {
        let mut ghosts = Ghosts::new(8);
        (0..8).for_each(|key| ghosts.record(mix64(key), 10));
        (100..1000).for_each(|key| ghosts.record(mix64(key), 1));
        assert!((0..8).filter(|key| ghosts.take(mix64(*key)) == 10).count() >= 7);
    }
}
