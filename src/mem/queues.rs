//! In which order do rows wait? Queues of slot numbers, first in, first out.
//!
//! - A slot's number stands in one queue at most: `QUEUED` in its state says that it stands in one.
//!   Nothing is taken out of the middle: who takes a number looks at the state of the slot and decides
//!   then. So a hit changes no queue, and no row is found through another.
//! - Queues are chains of blocks of one cache line, from a pool whose room is set. Where it is used up, a
//!   number is not queued; the policy finds such rows when it looks through the states.

use std::collections::TryReserveError;

use super::row_state::{Flags, States};
use crate::pages::release_spare;
use crate::units::Slot;

/// Numbers in a block; the last word of its line is the next block.
const NUMBERS: usize = 15;
/// No block.
const END: u32 = u32::MAX;

#[derive(Clone, Debug)]
#[repr(align(64))]
struct Block {
    numbers: [Slot; NUMBERS],
    next: u32,
}

const _: () = assert!(size_of::<Block>() == 64);

/// The blocks of all queues of a cache.
#[derive(Debug)]
pub(crate) struct Pool {
    blocks: Vec<Block>,
    blocks_max: usize,
    freed: u32,
}

/// A queue of slot numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    first: u32,
    last: u32,
    /// Numbers taken from the first block.
    taken: u8,
    /// Numbers in the last block.
    filled: u8,
    len: u32,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue {
            first: END,
            last: END,
            taken: 0,
            filled: 0,
            len: 0,
        }
    }
}

impl Pool {
    fn blocks_for(numbers: usize, queues: usize) -> usize {
        numbers.div_ceil(NUMBERS) + 2 * queues
    }

    /// Memory of a pool with room for so many numbers in so many queues.
    pub fn bytes_for(numbers: usize, queues: usize) -> usize {
        Pool::blocks_for(numbers, queues) * size_of::<Block>()
    }

    /// A pool without room.
    pub fn new() -> Pool {
        Pool {
            blocks: Vec::new(),
            blocks_max: 0,
            freed: END,
        }
    }

    /// Asks for the addresses of so many numbers in so many queues.
    pub fn reserve(&mut self, numbers: usize, queues: usize) -> Result<(), TryReserveError> {
        let blocks = Pool::blocks_for(numbers, queues);
        let more = blocks.saturating_sub(self.blocks.len());
        if self.blocks.capacity() < blocks {
            self.blocks.try_reserve_exact(more)?;
        }
        Ok(())
    }

    /// Makes room for so many numbers in so many queues, however they are spread. What stands in queues
    /// beyond it stays.
    pub fn set_room(&mut self, numbers: usize, queues: usize) {
        self.blocks_max = Pool::blocks_for(numbers, queues);
    }

    /// Lets all blocks go: no queue has any.
    pub fn let_go(&mut self) {
        self.blocks.clear();
        self.freed = END;
        release_spare(&mut self.blocks);
    }

    /// Memory in use.
    pub fn bytes(&self) -> usize {
        self.blocks.len() * size_of::<Block>()
    }

    /// Memory in use once its room is used up.
    pub fn bytes_max(&self) -> usize {
        self.blocks.len().max(self.blocks_max) * size_of::<Block>()
    }

    #[inline]
    fn block(&mut self, number: u32) -> &mut Block {
        &mut self.blocks[number as usize]
    }

    fn take_block(&mut self) -> Option<u32> {
        if self.freed != END {
            let number = self.freed;
            self.freed = self.block(number).next;
            self.block(number).next = END;
            return Some(number);
        }
        if self.blocks.len() >= self.blocks_max {
            return None;
        }
        self.blocks.push(Block {
            numbers: [Slot::NONE; NUMBERS],
            next: END,
        });
        u32::try_from(self.blocks.len() - 1).ok()
    }

    fn free_block(&mut self, number: u32) {
        let freed = std::mem::replace(&mut self.freed, number);
        self.block(number).next = freed;
    }

    /// Puts a slot that stands in no queue at the end of this one, if there is room.
    #[inline]
    pub fn push(&mut self, queue: &mut Queue, states: &mut States, slot: Slot) {
        if states.get(slot).flags.any(Flags::QUEUED) {
            return;
        }
        if queue.last == END || usize::from(queue.filled) == NUMBERS {
            let Some(number) = self.take_block() else {
                return;
            };
            if queue.last == END {
                queue.first = number;
                queue.taken = 0;
            } else {
                self.block(queue.last).next = number;
            }
            queue.last = number;
            queue.filled = 0;
        }
        states.mark_queued(slot, true);
        self.block(queue.last).numbers[usize::from(queue.filled)] = slot;
        queue.filled += 1;
        queue.len += 1;
    }

    /// Takes the slot that has stood in a queue for longest. It may be free by now.
    #[inline]
    pub fn pop(&mut self, queue: &mut Queue, states: &mut States) -> Option<Slot> {
        if queue.len == 0 {
            return None;
        }
        let block = self.block(queue.first);
        let slot = block.numbers[usize::from(queue.taken)];
        queue.taken += 1;
        queue.len -= 1;
        if queue.len == 0 {
            self.free_block(queue.first);
            *queue = Queue::default();
        } else if usize::from(queue.taken) == NUMBERS {
            let next = block.next;
            self.free_block(queue.first);
            queue.first = next;
            queue.taken = 0;
        }
        if let Some(next) = self.peek(queue) {
            states.prefetch_line(next);
        }
        states.mark_queued(slot, false);
        Some(slot)
    }

    /// The last number of the block that is taken from: its state is asked for while those before it are
    /// looked at.
    #[inline]
    fn peek(&self, queue: &Queue) -> Option<Slot> {
        let block = self.blocks.get(queue.first as usize)?;
        let ahead = (usize::from(queue.taken) + 6).min(NUMBERS - 1);
        Some(block.numbers[ahead]).filter(|slot| *slot != Slot::NONE)
    }

    /// The slot that has stood in a queue for longest.
    pub fn first(&self, queue: &Queue) -> Option<Slot> {
        let block = self.blocks.get(queue.first as usize)?;
        (queue.len > 0).then(|| block.numbers[usize::from(queue.taken)])
    }

    /// Takes all slots out of a queue.
    pub fn clear(&mut self, queue: &mut Queue, states: &mut States) {
        while self.pop(queue, states).is_some() {}
    }

    /// The slots of a queue in order, for checks.
    #[cfg(any(test, feature = "sim"))]
    pub fn walk(&self, queue: &Queue) -> Vec<Slot> {
        let (mut slots, mut block, mut at) = (Vec::new(), queue.first, usize::from(queue.taken));
        for _ in 0..queue.len {
            let here = &self.blocks[block as usize];
            slots.push(here.numbers[at]);
            at += 1;
            if at == NUMBERS {
                (block, at) = (here.next, 0);
            }
        }
        slots
    }
}

impl Queue {
    /// Numbers in it, those of slots that are free by now included.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }
}
