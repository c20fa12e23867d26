//! The whole table stays resident: no row ever leaves.

use super::Policy;
use crate::mem::lists::{LRU, Rows};

#[derive(Debug)]
pub(crate) struct PinAll;

impl Policy for PinAll {
    fn touched(&mut self, _: &mut Rows, _: &[u32]) {}

    fn admitted(&mut self, rows: &mut Rows, slot: u32) {
        rows.push_hot(LRU, slot);
    }

    fn returned(&mut self, rows: &mut Rows, slot: u32) {
        rows.push_hot(LRU, slot);
    }

    fn coldest(&mut self, _: &mut Rows, _: usize, _: &mut Vec<u32>) {}

    fn left(&mut self, _: &mut Rows, _: u32) {}
}
