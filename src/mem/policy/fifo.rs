//! Pass blocks, HugeCTR's cached mode: rows leave in the order in which they came.

use super::Policy;
use crate::mem::lists::{LRU, Rows};

#[derive(Debug)]
pub(crate) struct Fifo;

impl Policy for Fifo {
    fn touched(&mut self, _: &mut Rows, _: &[u32]) {}

    fn admitted(&mut self, rows: &mut Rows, slot: u32) {
        rows.push_hot(LRU, slot);
    }

    /// A row in use joins the youngest pass.
    fn returned(&mut self, rows: &mut Rows, slot: u32) {
        rows.push_hot(LRU, slot);
    }

    fn coldest(&mut self, rows: &mut Rows, want: usize, named: &mut Vec<u32>) {
        rows.take_coldest(LRU, want, named);
    }

    fn left(&mut self, _: &mut Rows, _: u32) {}
}
