//! How often was a row used before it left memory? Ghost entries: fingerprints with a class.
//!
//! - Four entries of 16 bits per row of capacity: 12 bits of fingerprint, 4 of frequency class.
//!   Class 0 stands for no touch and is never recorded, so that 0 is an empty entry.
//! - A hash belongs to one 64-byte line of 32 entries; in a full line the least frequent entry
//!   makes room, which one turns with the hash.
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
const LINE: usize = 32;
const SPREAD: u64 = 0xd6e8_feb8_6659_fd93;

#[derive(Debug)]
pub(crate) struct Ghosts {
    entries: Vec<u16>,
}

impl Ghosts {
    pub fn entries_for(capacity: usize) -> usize {
        (capacity * ENTRIES_PER_ROW).next_multiple_of(LINE)
    }

    pub fn new(capacity: usize) -> Ghosts {
        let entries = vec![0; Ghosts::entries_for(capacity)];
        advise_huge(&entries);
        Ghosts { entries }
    }

    pub fn bytes_allocated(&self) -> usize {
        self.entries.capacity() * size_of::<u16>()
    }

    /// Where the line of a hash begins, and the hash spread.
    #[inline]
    fn start(&self, hash: u64) -> (usize, u64) {
        let mixed = (hash ^ (hash >> 32)).wrapping_mul(SPREAD);
        let lines = (self.entries.len() / LINE) as u64;
        let start = usize::try_from(((mixed >> 32) * lines) >> 32).unwrap_or(0) * LINE;
        (start, mixed)
    }

    /// Announces to the processor that the entry of a hash is needed soon.
    #[inline]
    pub fn announce(&self, hash: u64) {
        let (start, _) = self.start(hash);
        prefetch(&self.entries[start..start + LINE]);
    }

    /// The line of a hash, its fingerprint (in place) and the entry where a search for room starts.
    fn line(&mut self, hash: u64) -> (&mut [u16], u16, usize) {
        let (start, mixed) = self.start(hash);
        let low = mixed ^ (mixed >> 29);
        let fingerprint = (low & 0xfff) as u16;
        let turn = ((low >> 12) & 31) as usize;
        (
            &mut self.entries[start..start + LINE],
            fingerprint << 4,
            turn,
        )
    }

    /// Takes the entry of a hash: its class, 0 if there is none.
    pub fn take(&mut self, hash: u64) -> u8 {
        let (line, fingerprint, _) = self.line(hash);
        let known = line
            .iter_mut()
            .find(|x| **x & 0xfff0 == fingerprint && **x & 15 != 0);
        known.map_or(0, |entry| (std::mem::take(entry) & 15) as u8)
    }

    /// Remembers the class of a hash, in the place of one no more frequent if its line is full.
    pub fn record(&mut self, hash: u64, class: u8) {
        const _: () = assert!(CLASSES == 16, "a class has 4 bits");
        assert!((1..16).contains(&class), "class 0 is an empty entry");
        let class = u16::from(class);
        let (line, fingerprint, turn) = self.line(hash);
        let places = (0..LINE).map(|i| (turn + i) % LINE);
        if let Some(place) = places.min_by_key(|place| line[*place] & 15)
            && line[place] & 15 <= class
        {
            line[place] = fingerprint | class;
        }
    }

    /// Gives every entry the class that `halved` names for its own; 0 forgets it.
    pub fn halve(&mut self, halved: &[u8; CLASSES]) {
        for entry in &mut self.entries {
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
