//! Pass blocks, HugeCTR's cached mode: rows leave in the order in which they came. A row in use joins
//! the youngest pass.

use super::Policy;
use crate::mem::lists::{LRU, Rows};
use crate::units::Slot;

#[derive(Debug)]
pub(crate) struct Fifo;

impl Policy for Fifo {
    fn coldest(&mut self, rows: &mut Rows, want: usize, named: &mut Vec<Slot>) {
        rows.take_coldest(LRU, want, named);
    }
}
