//! Pass blocks, HugeCTR's cached mode: rows leave in the order in which they came. A row in use joins
//! the youngest pass.

use super::{Policy, Rows};
use crate::mem::queues::Queue;
use crate::options::PolicyKind;
use crate::units::Slot;

#[derive(Debug, Default)]
pub(crate) struct Fifo {
    pub queue: Queue,
}

impl Policy for Fifo {
    fn admitted(&mut self, rows: &mut Rows, slot: Slot) {
        rows.push(&mut self.queue, slot);
    }

    fn coldest(&mut self, rows: &mut Rows, want: usize, named: &mut Vec<Slot>) {
        rows.name_first(&mut self.queue, want, false, named);
        if named.is_empty() {
            rows.queue_others(PolicyKind::Fifo, &mut self.queue);
            rows.name_first(&mut self.queue, want, false, named);
        }
    }

    fn next_rank(&mut self, rows: &mut Rows) -> Option<usize> {
        rows.front_rank(&mut self.queue)
    }
}
