//! The whole table stays resident: no row ever leaves.

use super::Policy;
use crate::mem::lists::Rows;
use crate::units::Slot;

#[derive(Debug)]
pub(crate) struct PinAll;

impl Policy for PinAll {
    fn coldest(&mut self, _: &mut Rows, _: usize, _: &mut Vec<Slot>) {}
}
