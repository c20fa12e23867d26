//! What would a cache hit that counts every row exactly? LFU that never forgets, and the best fixed
//! set.
//!
//! - Rows may have different sizes, by table: what decides is the frequency per byte.
//! - They are ideals: the counts cost nothing, also those of rows that are not in memory.

use super::Accesses;
use super::lists::Lists;
use super::policies::Policy;

/// A cache's capacity, and what a row of each table takes of it.
#[derive(Clone, Debug)]
pub struct Room {
    row: Vec<u64>,
    all: u64,
}

impl Room {
    /// So many rows, of whatever table.
    #[must_use]
    pub fn slots(accesses: &Accesses, slots: usize) -> Room {
        Room {
            row: vec![1; accesses.row_bytes().len()],
            all: slots as u64,
        }
    }

    /// So many bytes, for rows and `beside` bytes about each.
    #[must_use]
    pub fn bytes(accesses: &Accesses, beside: u64, bytes: u64) -> Room {
        let row = |row_bytes: &u32| u64::from(*row_bytes) + beside;
        Room {
            row: accesses.row_bytes().iter().map(row).collect(),
            all: bytes,
        }
    }
}

/// Least frequently used, with a count for each row ever seen that is never forgotten; among equal
/// counts of a table the least recently used leaves.
#[derive(Debug)]
pub struct Lfu<'a> {
    accesses: &'a Accesses,
    /// A list for each count of each table.
    lists: Lists,
    counts: Vec<u32>,
    inside: Vec<bool>,
    /// Of each table: rows inside, and a count below which there are none.
    rows: Vec<usize>,
    lowest: Vec<usize>,
    used: u64,
    room: Room,
}

impl<'a> Lfu<'a> {
    /// An empty cache.
    #[must_use]
    pub fn new(accesses: &'a Accesses, room: &Room) -> Lfu<'a> {
        let tables = accesses.row_bytes().len();
        Lfu {
            accesses,
            lists: Lists::new(accesses.distinct(), tables * (accesses.batches() + 1)),
            counts: vec![0; accesses.distinct()],
            inside: vec![false; accesses.distinct()],
            rows: vec![0; tables],
            lowest: vec![0; tables],
            used: 0,
            room: room.clone(),
        }
    }

    fn list(&self, table: usize, count: usize) -> usize {
        table * (self.accesses.batches() + 1) + count
    }

    /// The table whose coldest row has the least frequency per byte; none if the cache is empty.
    fn coldest_table(&mut self) -> Option<usize> {
        let mut least: Option<usize> = None;
        for table in 0..self.rows.len() {
            if self.rows[table] == 0 {
                continue;
            }
            while self.lists.is_empty(self.list(table, self.lowest[table])) {
                self.lowest[table] += 1;
            }
            // count a / room a < count b / room b
            let rank = |a: usize, b: usize| self.lowest[a] as u64 * self.room.row[b];
            if least.is_none_or(|best| rank(table, best) < rank(best, table)) {
                least = Some(table);
            }
        }
        least
    }

    fn evict_one(&mut self) {
        let Some(table) = self.coldest_table() else {
            return;
        };
        let list = self.list(table, self.lowest[table]);
        if let Some(victim) = self.lists.pop_cold(list) {
            self.inside[victim as usize] = false;
            self.rows[table] -= 1;
            self.used -= self.room.row[table];
        }
    }
}

impl Policy for Lfu<'_> {
    fn batch(&mut self, rows: &[u32]) -> anyhow::Result<usize> {
        let mut misses = 0;
        for row in rows {
            let (index, table) = (*row as usize, self.accesses.table(*row));
            if self.inside[index] {
                self.lists.unlink(*row);
            } else {
                misses += 1;
                self.inside[index] = true;
                self.rows[table] += 1;
                self.used += self.room.row[table];
            }
            self.counts[index] += 1;
            let count = self.counts[index] as usize;
            self.lists.push_hot(self.list(table, count), *row);
            self.lowest[table] = self.lowest[table].min(count);
        }
        while self.used > self.room.all {
            self.evict_one();
        }
        Ok(misses)
    }
}

/// The rows that the whole trace uses most for their bytes, brought in at their first use and kept;
/// all others pass through.
#[derive(Debug)]
pub struct PerfectStatic {
    chosen: Vec<bool>,
    inside: Vec<bool>,
}

impl PerfectStatic {
    /// Chooses the rows.
    #[must_use]
    pub fn new(accesses: &Accesses, room: &Room) -> PerfectStatic {
        let mut counts = vec![0u32; accesses.distinct()];
        for batch in accesses.load_batches()..accesses.batches() {
            for row in accesses.batch(batch) {
                counts[*row as usize] += 1;
            }
        }
        let room_of = |row: u32| room.row[accesses.table(row)];
        let distinct = u32::try_from(accesses.distinct()).unwrap_or(u32::MAX);
        let mut order: Vec<u32> = (0..distinct).collect();
        order.sort_by(|a, b| {
            let (of_a, of_b) = (counts[*a as usize], counts[*b as usize]);
            (u64::from(of_b) * room_of(*a)).cmp(&(u64::from(of_a) * room_of(*b)))
        });
        let mut chosen = vec![false; counts.len()];
        let mut left = room.all;
        for row in order {
            if let Some(rest) = left.checked_sub(room_of(row)) {
                left = rest;
                chosen[row as usize] = true;
            }
        }
        let inside = vec![false; counts.len()];
        PerfectStatic { chosen, inside }
    }
}

impl Policy for PerfectStatic {
    fn batch(&mut self, rows: &[u32]) -> anyhow::Result<usize> {
        let mut misses = 0;
        for row in rows {
            let row = *row as usize;
            misses += usize::from(!self.inside[row]);
            self.inside[row] = self.chosen[row];
        }
        Ok(misses)
    }
}
