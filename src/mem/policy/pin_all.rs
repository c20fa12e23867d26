//! The whole table stays resident: no row ever leaves.

use super::{Policy, Rows};
use crate::units::Slot;

#[derive(Debug)]
pub(crate) struct PinAll;

impl Policy for PinAll {
    fn admitted(&mut self, _: &mut Rows, _: Slot) {}

    fn coldest(&mut self, _: &mut Rows, _: usize, _: &mut Vec<Slot>) {}
}
