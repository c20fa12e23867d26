//! Least recently used, with a second chance: a row that was used since its turn came last goes to the
//! end of the queue. A hit moves nothing.

use super::{Policy, Rows};
use crate::mem::queues::Queue;
use crate::options::PolicyKind;
use crate::units::Slot;

#[derive(Debug, Default)]
pub(crate) struct Lru {
    pub queue: Queue,
}

impl Policy for Lru {
    fn admitted(&mut self, rows: &mut Rows, slot: Slot) {
        rows.push(&mut self.queue, slot);
    }

    fn coldest(&mut self, rows: &mut Rows, want: usize, named: &mut Vec<Slot>) {
        rows.name_first(&mut self.queue, want, true, named);
        if named.is_empty() {
            rows.queue_others(PolicyKind::Lru, &mut self.queue);
            rows.name_first(&mut self.queue, want, true, named);
        }
    }

    fn next_rank(&mut self, rows: &mut Rows) -> Option<usize> {
        rows.front_rank(&mut self.queue)
    }
}
