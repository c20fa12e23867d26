//! Which rows would a textbook policy have in memory? LRU and S3-FIFO; `counts` has those that count.
//!
//! - A batch is served as a store serves it: first all its rows that are in memory, then the others
//!   come in. Between two batches at most `capacity` rows are in memory.
//! - A miss always brings the row in, as a trainer needs it there; it may leave again at once.

use super::lists::Lists;

/// Something that decides which rows stay.
pub trait Policy {
    /// Serves one batch of distinct rows; returns how many were not in memory.
    ///
    /// # Errors
    /// The batch can't be served with this memory.
    fn batch(&mut self, rows: &[u32]) -> anyhow::Result<usize>;
}

/// Least recently used.
#[derive(Debug)]
pub struct Lru {
    lists: Lists,
    inside: Vec<bool>,
    used: usize,
    capacity: usize,
}

impl Lru {
    /// An empty cache for rows below `distinct`.
    #[must_use]
    pub fn new(distinct: usize, capacity: usize) -> Lru {
        Lru {
            lists: Lists::new(distinct, 1),
            inside: vec![false; distinct],
            used: 0,
            capacity,
        }
    }
}

impl Policy for Lru {
    fn batch(&mut self, rows: &[u32]) -> anyhow::Result<usize> {
        let mut missing = Vec::new();
        for row in rows {
            if self.inside[*row as usize] {
                self.lists.unlink(*row);
                self.lists.push_hot(0, *row);
            } else {
                missing.push(*row);
            }
        }
        for row in &missing {
            self.lists.push_hot(0, *row);
            self.inside[*row as usize] = true;
            self.used += 1;
            if self.used > self.capacity
                && let Some(victim) = self.lists.pop_cold(0)
            {
                self.inside[victim as usize] = false;
                self.used -= 1;
            }
        }
        Ok(missing.len())
    }
}

const SMALL: usize = 0;
const MAIN: usize = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Out,
    Small,
    Main,
}

/// S3-FIFO: a small queue that filters rows used once, a main one, and ghosts of what the small one
/// let go.
///
/// Source: Yang et al., "FIFO queues are all you need for cache eviction" (SOSP 2023): the small
/// queue has a tenth of the rows, frequencies go up to 3, as many ghosts as rows of the main queue.
#[derive(Debug)]
pub struct S3Fifo {
    lists: Lists,
    places: Vec<Place>,
    frequencies: Vec<u8>,
    /// Turn in which a row became a ghost, from 1; 0: it is none.
    ghosts: Vec<u64>,
    turn: u64,
    small: usize,
    main: usize,
    small_max: usize,
    capacity: usize,
}

impl S3Fifo {
    /// An empty cache for rows below `distinct`.
    #[must_use]
    pub fn new(distinct: usize, capacity: usize) -> S3Fifo {
        S3Fifo {
            lists: Lists::new(distinct, 2),
            places: vec![Place::Out; distinct],
            frequencies: vec![0; distinct],
            ghosts: vec![0; distinct],
            turn: 0,
            small: 0,
            main: 0,
            small_max: (capacity / 10).max(1),
            capacity,
        }
    }

    fn is_ghost(&self, row: usize) -> bool {
        // Each row that became a ghost later pushed it on by one.
        let places = (self.capacity - self.small_max.min(self.capacity)) as u64;
        let turn = self.ghosts[row];
        turn > 0 && self.turn - turn < places
    }

    fn bring(&mut self, row: u32) {
        let index = row as usize;
        self.frequencies[index] = 0;
        if self.is_ghost(index) {
            self.places[index] = Place::Main;
            self.main += 1;
            self.lists.push_hot(MAIN, row);
        } else {
            self.places[index] = Place::Small;
            self.small += 1;
            self.lists.push_hot(SMALL, row);
        }
        self.ghosts[index] = 0;
    }

    fn evict_one(&mut self) {
        loop {
            if self.small >= self.small_max || self.main == 0 {
                let Some(row) = self.lists.pop_cold(SMALL) else {
                    return;
                };
                let index = row as usize;
                self.small -= 1;
                if self.frequencies[index] <= 1 {
                    self.places[index] = Place::Out;
                    self.turn += 1;
                    self.ghosts[index] = self.turn;
                    return;
                }
                self.frequencies[index] = 0;
                self.places[index] = Place::Main;
                self.main += 1;
                self.lists.push_hot(MAIN, row);
            } else {
                let Some(row) = self.lists.pop_cold(MAIN) else {
                    return;
                };
                let index = row as usize;
                if self.frequencies[index] == 0 {
                    self.places[index] = Place::Out;
                    self.main -= 1;
                    return;
                }
                self.frequencies[index] -= 1;
                self.lists.push_hot(MAIN, row);
            }
        }
    }
}

impl Policy for S3Fifo {
    fn batch(&mut self, rows: &[u32]) -> anyhow::Result<usize> {
        let mut missing = Vec::new();
        for row in rows {
            let index = *row as usize;
            if self.places[index] == Place::Out {
                missing.push(*row);
            } else {
                self.frequencies[index] = (self.frequencies[index] + 1).min(3);
            }
        }
        for row in &missing {
            if self.small + self.main >= self.capacity {
                self.evict_one();
            }
            self.bring(*row);
        }
        Ok(missing.len())
    }
}
