//! Plain least recently used: every touch moves the row to the hot end.

use super::Policy;
use crate::mem::lists::{LRU, Rows};
use crate::units::Slot;

#[derive(Debug)]
pub(crate) struct Lru;

impl Policy for Lru {
    fn touched(&mut self, rows: &mut Rows, slots: &[Slot]) {
        for slot in slots {
            rows.move_hot(LRU, *slot);
        }
    }

    fn coldest(&mut self, rows: &mut Rows, want: usize, named: &mut Vec<Slot>) {
        rows.take_coldest(LRU, want, named);
    }
}
