//! How many different keys does a pass have so far, exactly?
//!
//! - A set with open addressing over mix64; it doubles, up to the memory that it is given.

use hps::mix64;

/// Bytes of a place.
const PLACE: u64 = 8;
const PLACES_MIN: usize = 1024;

/// A set of keys.
#[derive(Debug)]
pub struct Seen {
    /// 0: empty. Key 0 is kept apart.
    places: Vec<u64>,
    has_zero: bool,
    count: usize,
    bytes_max: u64,
}

/// The set can't grow: what it would need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// Keys that it has.
    pub keys: u64,
    /// Bytes that it would take, with those that it takes now.
    pub bytes: u64,
}

impl Seen {
    /// An empty set, which may take so many bytes.
    #[must_use]
    pub fn new(bytes_max: u64) -> Seen {
        Seen {
            places: vec![0; PLACES_MIN],
            has_zero: false,
            count: 0,
            bytes_max,
        }
    }

    /// How many keys there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count as u64 + u64::from(self.has_zero)
    }

    /// Whether a key is there.
    #[must_use]
    pub fn has(&self, key: u64) -> bool {
        match key {
            0 => self.has_zero,
            _ => self.places[self.place(key)] == key,
        }
    }

    /// Takes a key.
    ///
    /// # Errors
    /// `Full`.
    pub fn put(&mut self, key: u64) -> Result<(), Full> {
        if key == 0 {
            self.has_zero = true;
            return Ok(());
        }
        let place = self.place(key);
        if self.places[place] == key {
            return Ok(());
        }
        self.places[place] = key;
        self.count += 1;
        // Seven of ten places at most, so that a search is short.
        if self.count * 10 > self.places.len() * 7 {
            self.grow()?;
        }
        Ok(())
    }

    /// Where a key is, or would be.
    fn place(&self, key: u64) -> usize {
        let mask = self.places.len() - 1;
        // The mask is less than 2^63: what it keeps is an index.
        let mut place = usize::try_from(mix64(key) & mask as u64).unwrap_or(0);
        while self.places[place] != 0 && self.places[place] != key {
            place = (place + 1) & mask;
        }
        place
    }

    fn grow(&mut self) -> Result<(), Full> {
        let bytes = self.places.len() as u64 * PLACE * 3;
        if bytes > self.bytes_max {
            return Err(Full {
                keys: self.count(),
                bytes,
            });
        }
        let before = vec![0; self.places.len() * 2];
        let before = std::mem::replace(&mut self.places, before);
        for key in before.into_iter().filter(|key| *key != 0) {
            let place = self.place(key);
            self.places[place] = key;
        }
        Ok(())
    }

    /// All keys, sorted; the set is empty then.
    #[must_use]
    pub fn take(&mut self) -> Vec<u64> {
        let mut keys = std::mem::replace(&mut self.places, vec![0; PLACES_MIN]);
        keys.retain(|key| *key != 0);
        if std::mem::take(&mut self.has_zero) {
            keys.push(0);
        }
        self.count = 0;
        keys.sort_unstable();
        keys
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_set_is_a_set_until_it_is_full() {
        let mut seen = Seen::new(PLACES_MIN as u64 * PLACE * 6);
        let mut keys = BTreeSet::new();
        let mut key = 0u64;
        let full = loop {
            keys.insert(key);
            if let Err(full) = seen.put(key) {
                break full;
            }
            assert!(seen.has(key) && !seen.has(key | 1 << 63));
            assert_eq!(seen.put(key / 2), Ok(()));
            keys.insert(key / 2);
            key = key * 3 % 10_007 + 1;
            if keys.len() % 7 == 0 {
                key += 1;
            }
        };
        let places = PLACES_MIN as u64 * 4;
        assert_eq!(full.bytes, places * PLACE * 3);
        assert!(full.keys * 10 > places * 7);
        assert_eq!(seen.count(), keys.len() as u64);
        assert!(seen.take().iter().eq(&keys));
        assert!(seen.count() == 0 && !seen.has(0) && seen.take().is_empty());
    }
}
