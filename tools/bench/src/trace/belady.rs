//! What would a cache hit that knows the future? Belady's choice: the row that is used again last
//! leaves first.
//!
//! - Exact for batches: what leaves is decided when a batch is over; rows used again in the same
//!   later batch are equal.
//! - No policy that brings in every row it is asked for misses less over the whole trace; over a
//!   part of it one may.
//! - Near the end of a trace it knows which rows never come back, which is flattering.

use super::Accesses;
use super::policies::Policy;

/// Belady's choice.
#[derive(Debug)]
pub struct Belady {
    /// For each use, in the order of the trace: the batch that uses the row next.
    next: Vec<u32>,
    at: usize,
    batch: usize,
    /// For each row in memory, the batch that uses it next.
    due: Vec<Option<u32>>,
    /// For each batch, and "never" behind the last: rows due then. Old notes stay until looked at.
    notes: Vec<Vec<u32>>,
    used: usize,
    capacity: usize,
}

impl Belady {
    /// An empty cache that knows the trace.
    #[must_use]
    pub fn new(accesses: &Accesses, capacity: usize) -> Belady {
        let batches = accesses.batches();
        let never = u32::try_from(batches).unwrap_or(u32::MAX);
        let mut seen = vec![never; accesses.distinct()];
        let mut next = Vec::with_capacity(accesses.total());
        for batch in (0..batches).rev() {
            let number = u32::try_from(batch).unwrap_or(u32::MAX);
            for row in accesses.batch(batch).iter().rev() {
                next.push(std::mem::replace(&mut seen[*row as usize], number));
            }
        }
        next.reverse();
        Belady {
            next,
            at: 0,
            batch: 0,
            due: vec![None; accesses.distinct()],
            notes: vec![Vec::new(); batches + 1],
            used: 0,
            capacity,
        }
    }
}

impl Policy for Belady {
    fn batch(&mut self, rows: &[u32]) -> anyhow::Result<usize> {
        let mut misses = 0;
        for row in rows {
            let next = self.next[self.at];
            self.at += 1;
            if self.due[*row as usize].replace(next).is_none() {
                misses += 1;
                self.used += 1;
            }
            self.notes[next as usize].push(*row);
        }
        self.notes[self.batch] = Vec::new();
        self.batch += 1;
        let mut latest = self.notes.len() - 1;
        while self.used > self.capacity {
            let Some(row) = self.notes[latest].pop() else {
                latest -= 1;
                continue;
            };
            let due = &mut self.due[row as usize];
            if due.is_some_and(|due| due as usize == latest) {
                *due = None;
                self.used -= 1;
            }
        }
        Ok(misses)
    }
}
