//! Where do the blocks of a map live? In chunks of the map's own, under numbers.
//!
//! - A block never moves. Its number is its chunk's number and its place in the chunk.
//! - The first half MiB is of small chunks, so that small maps stay small. Every other chunk is
//!   a region of zeroes of 44 or 64 MiB, which the allocator maps on its own: no holes of what others
//!   allocate lie between blocks, and pages that no block was taken from need no memory. (1 MiB
//!   would not do: malloc raises its limit for mapping to the largest allocation freed so far,
//!   but not above 32 MiB.)
//! - A freed block is reused before a new one is. A chunk without a used block is given back,
//!   except for a small one, which saves a map at a chunk's edge from doing so in turns.
//! - Every chunk with room is in `open` exactly once.

use super::entry::{Form, Narrow, Packing, Wide};
use crate::units::narrow;

pub(super) const BLOCK_ENTRIES: usize = 16;
/// The number of no block.
pub(super) const NONE: u32 = u32::MAX;
/// Bits of a number that are the place in the chunk.
const PLACE_BITS: u32 = 18;
const PLACE_MASK: usize = REGION_BLOCKS - 1;
const REGION_BLOCKS: usize = 1 << PLACE_BITS;
/// From this size of the pool on chunks are regions.
const SMALL_BLOCKS: usize = 3000;
/// A small chunk is this part of the pool; while the pool is smaller still, a greater part, up to so
/// many blocks.
const SMALL_PART: usize = 64;
const FIRST_PART: usize = 4;
const FIRST_BLOCKS: usize = 16;
/// A chunk without a used block is kept if it is no more than this part of the pool.
const SPARE_PART: usize = 16;
/// What the allocator adds to an allocation.
const HEADER_BYTES: usize = 16;
const PAGE_BYTES: usize = 4096;
/// Ends the list of a chunk's freed blocks.
const END: u32 = u32::MAX;

pub(super) type Block<F> = [<F as Form>::Entry; BLOCK_ENTRIES];

/// The pools of both forms.
#[derive(Debug, Default)]
pub(super) struct Pools {
    pub(super) narrow: Pool<Narrow>,
    pub(super) wide: Pool<Wide>,
}

#[derive(Debug)]
struct Chunk<F: Form> {
    /// The blocks one after the other; empty after the chunk was given back. Not of type
    /// `[Block]`: the allocator is asked for zeroes only where the elements are small.
    entries: Box<[F::Entry]>,
    used: u32,
    /// Blocks from here on were never taken.
    fresh: u32,
    /// The first freed block; each holds the place of the next one.
    freed: u32,
}

/// The blocks of one map's entries of one form.
#[derive(Debug)]
pub(super) struct Pool<F: Form> {
    chunks: Vec<Chunk<F>>,
    /// The chunks that have room; the last one is used first.
    open: Vec<u32>,
    /// The one chunk that has no used block, if there is one.
    spare: Option<u32>,
    used: usize,
    total: usize,
}

impl<F: Form> Default for Pool<F> {
    fn default() -> Pool<F> {
        Pool {
            chunks: Vec::new(),
            open: Vec::new(),
            spare: None,
            used: 0,
            total: 0,
        }
    }
}

impl<F: Form> Chunk<F> {
    #[inline]
    fn blocks(&self) -> &[Block<F>] {
        self.entries.as_chunks().0
    }

    #[inline]
    fn blocks_mut(&mut self) -> &mut [Block<F>] {
        self.entries.as_chunks_mut().0
    }

    fn is_full(&self) -> bool {
        self.used as usize == self.blocks().len()
    }

    /// Memory, with what the allocator adds.
    fn bytes(&self) -> usize {
        match self.blocks().len() {
            0 => 0,
            REGION_BLOCKS => {
                let touched = self.fresh as usize * size_of::<Block<F>>();
                (touched + HEADER_BYTES).next_multiple_of(PAGE_BYTES)
            }
            blocks => blocks * size_of::<Block<F>>() + HEADER_BYTES,
        }
    }
}

#[inline]
fn split(number: u32) -> (usize, usize) {
    let number = number as usize;
    (number >> PLACE_BITS, number & PLACE_MASK)
}

fn chunk_number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(NONE)
}

impl<F: Form> Pool<F> {
    /// The block of a number, `None` for [`NONE`].
    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&Block<F>> {
        let (chunk, place) = split(number);
        self.chunks.get(chunk)?.blocks().get(place)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut Block<F>> {
        let (chunk, place) = split(number);
        self.chunks.get_mut(chunk)?.blocks_mut().get_mut(place)
    }

    /// All memory of the chunks, with what the allocator adds, and of the tables.
    pub(super) fn bytes(&self) -> usize {
        self.chunks.iter().map(Chunk::bytes).sum::<usize>()
            + self.chunks.capacity() * size_of::<Chunk<F>>()
            + self.open.capacity() * size_of::<u32>()
    }

    /// Takes a block; what it holds is arbitrary.
    pub(super) fn take(&mut self) -> u32 {
        let number = match self.open.last() {
            Some(number) => *number,
            None => self.add_chunk(),
        };
        if self.spare == Some(number) {
            self.spare = None;
        }
        let chunk = &mut self.chunks[number as usize];
        let place = match chunk.freed {
            END => {
                chunk.fresh += 1;
                chunk.fresh - 1
            }
            place => {
                let next = F::remainder(&chunk.blocks()[place as usize][0]);
                chunk.freed = u32::try_from(next).unwrap_or(END);
                place
            }
        };
        chunk.used += 1;
        self.used += 1;
        if chunk.is_full() {
            self.open.pop();
        }
        (number << PLACE_BITS) | place
    }

    /// Gives a block back and its number up.
    pub(super) fn free(&mut self, number: &mut u32) {
        let (index, place) = split(std::mem::replace(number, NONE));
        let Some(chunk) = self.chunks.get_mut(index) else {
            return;
        };
        let number = chunk_number(index);
        chunk.blocks_mut()[place][0] = F::new(u64::from(chunk.freed), 0, Packing::default());
        chunk.freed = narrow(place);
        if chunk.is_full() {
            self.open.push(number);
        }
        chunk.used -= 1;
        self.used -= 1;
        if chunk.used > 0 {
            return;
        }
        if self.used == 0 {
            *self = Pool::default();
            return;
        }
        let small = chunk.fresh as usize <= self.used / SPARE_PART;
        if small && self.spare.is_none() {
            self.spare = Some(number);
        } else {
            self.give_back(number);
        }
    }

    fn give_back(&mut self, number: u32) {
        let entries = std::mem::take(&mut self.chunks[number as usize].entries);
        self.total -= entries.len() / BLOCK_ENTRIES;
        self.open.retain(|x| *x != number);
    }

    fn add_chunk(&mut self) -> u32 {
        let blocks = match self.total < SMALL_BLOCKS {
            true => {
                let first = (self.total / FIRST_PART).clamp(1, FIRST_BLOCKS);
                first.max(self.total / SMALL_PART)
            }
            false => REGION_BLOCKS,
        };
        let chunk = Chunk {
            // All zero, so that the allocator does not touch a region.
            entries: vec![F::ZERO; blocks * BLOCK_ENTRIES].into_boxed_slice(),
            used: 0,
            fresh: 0,
            freed: END,
        };
        self.total += blocks;
        let index = match self.chunks.iter().position(|c| c.entries.is_empty()) {
            Some(index) => {
                self.chunks[index] = chunk;
                index
            }
            None => {
                if self.chunks.len() == self.chunks.capacity() {
                    self.chunks.reserve_exact(self.chunks.len() / 8 + 1);
                }
                self.chunks.push(chunk);
                self.chunks.len() - 1
            }
        };
        let number = chunk_number(index);
        assert!(number <= NONE >> (PLACE_BITS + 1), "chunks have numbers");
        self.open.push(number);
        number
    }
}
