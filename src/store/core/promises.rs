//! Which slots were batches and puts promised, and until when?
//!
//! - A promise is of a slot, not of a row: of two batches of the same rows each is promised its own.
//! - Promises are counted when they are made and when they end, so that a wait for those that there are has an
//!   end, whatever is promised meanwhile.

use crate::units::to_usize;

/// Slots that were promised for rows of one table in one shard.
#[derive(Debug, Default)]
pub struct Promises {
    made: u64,
    /// Those that were taken, or are not wanted any more.
    ended: u64,
    /// Slots beside these that no row is going to have for good.
    lent: usize,
}

impl Promises {
    /// Promises slots.
    pub fn make(&mut self, slots: usize) {
        self.made += slots as u64;
    }

    /// Promised slots were taken, or are not wanted any more.
    pub fn end(&mut self, slots: usize) {
        self.ended += slots as u64;
    }

    /// Promises a slot that no row is going to have for good.
    pub fn lend(&mut self) {
        self.lent += 1;
    }

    /// So many of those slots are not wanted any more.
    pub fn give_back(&mut self, slots: usize) {
        self.lent -= slots;
    }

    /// Slots that were ever promised.
    pub(super) fn made(&self) -> u64 {
        self.made
    }

    /// Those of them that are not any more.
    pub(super) fn ended(&self) -> u64 {
        self.ended
    }

    /// Slots that somebody is going to take.
    pub(super) fn open(&self) -> usize {
        to_usize(self.made - self.ended)
    }

    /// Slots that are promised, lent ones included.
    pub(super) fn slots(&self) -> usize {
        self.open() + self.lent
    }
}
