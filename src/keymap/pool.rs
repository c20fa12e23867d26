//! Where do the blocks of a map live? In chunks of the map's own, under numbers.
//!
//! - A block never moves. Its number is its chunk's number and its place in the chunk.
//! - A chunk is about 1/64 of the pool, up to 1 MiB: small maps stay small, and of a large one
//!   little is unused. The heap that others share has no small holes with blocks in between.
//! - A freed block is reused before a chunk is added. A chunk without a used block is given back,
//!   except for one, which saves a map at a chunk's edge from adding and giving back in turns.
//! - Every chunk with room is in `open` exactly once.

use super::segment::{Place, narrow};

pub(super) const BLOCK_PLACES: usize = 128;
/// The number of no block.
pub(super) const NONE: u32 = u32::MAX;
/// Bits of a number that are the place in the chunk.
const PLACE_BITS: u32 = 9;
const PLACE_MASK: usize = (1 << PLACE_BITS) - 1;
/// An odd number, so that chunk and allocator's header fill pages.
const CHUNK_BLOCKS_MAX: usize = (1 << PLACE_BITS) - 1;
/// Chunks of a pool of many; what is unused is a part of this size at most.
const CHUNKS: usize = 64;
/// What the allocator adds to an allocation.
const HEADER_BYTES: usize = 16;
/// From this size on an allocation has pages of its own.
const PAGED_BYTES: usize = 128 << 10;
const PAGE_BYTES: usize = 4096;
/// Ends the list of a chunk's freed blocks.
const END: u16 = u16::MAX;

pub(super) type Block = [Place; BLOCK_PLACES];

#[derive(Debug)]
struct Chunk {
    /// Empty after the chunk was given back.
    blocks: Box<[Block]>,
    used: u16,
    /// Blocks from here on were never used.
    fresh: u16,
    /// The first freed block; each holds the place of the next one.
    freed: u16,
}

/// The blocks of one map.
#[derive(Debug, Default)]
pub(super) struct Pool {
    chunks: Vec<Chunk>,
    /// The chunks that have room; the last one is used first.
    open: Vec<u32>,
    /// The one chunk that has no used block, if there is one.
    spare: Option<u32>,
    used: usize,
    total: usize,
}

/// Memory of a chunk, with what the allocator adds.
pub(super) fn chunk_bytes(blocks: usize) -> usize {
    match blocks * size_of::<Block>() + HEADER_BYTES {
        bytes if bytes >= PAGED_BYTES => bytes.next_multiple_of(PAGE_BYTES),
        bytes => bytes,
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

impl Pool {
    /// The block of a number, `None` for [`NONE`].
    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&Block> {
        let (chunk, place) = split(number);
        self.chunks.get(chunk)?.blocks.get(place)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut Block> {
        let (chunk, place) = split(number);
        self.chunks.get_mut(chunk)?.blocks.get_mut(place)
    }

    /// All memory of the chunks, with what the allocator adds, and of the tables.
    pub(super) fn bytes(&self) -> usize {
        let blocks = self.chunks.iter().map(|c| c.blocks.len());
        blocks.filter(|n| *n > 0).map(chunk_bytes).sum::<usize>()
            + self.chunks.capacity() * size_of::<Chunk>()
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
                let next = chunk.blocks[usize::from(place)][0].0;
                chunk.freed = u16::try_from(next).unwrap_or(END);
                place
            }
        };
        chunk.used += 1;
        self.used += 1;
        if usize::from(chunk.used) == chunk.blocks.len() {
            self.open.pop();
        }
        (number << PLACE_BITS) | u32::from(place)
    }

    /// Gives a block back and its number up.
    pub(super) fn free(&mut self, number: &mut u32) {
        let (index, place) = split(std::mem::replace(number, NONE));
        let Some(chunk) = self.chunks.get_mut(index) else {
            return;
        };
        let number = chunk_number(index);
        chunk.blocks[place][0].0 = u64::from(chunk.freed);
        chunk.freed = narrow(place);
        if usize::from(chunk.used) == chunk.blocks.len() {
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
        if let Some(other) = self.spare.replace(number) {
            let blocks = |number: u32| self.chunks[number as usize].blocks.len();
            let (less, more) = match blocks(number) <= blocks(other) {
                true => (number, other),
                false => (other, number),
            };
            self.spare = Some(less);
            self.give_back(more);
        }
    }

    fn give_back(&mut self, number: u32) {
        let blocks = std::mem::take(&mut self.chunks[number as usize].blocks);
        self.total -= blocks.len();
        self.open.retain(|x| *x != number);
    }

    fn add_chunk(&mut self) -> u32 {
        let blocks = (self.total / CHUNKS).clamp(1, CHUNK_BLOCKS_MAX) | 1;
        let chunk = Chunk {
            // All zero: pages that no block was taken from need no memory yet.
            blocks: vec![[(0, 0); BLOCK_PLACES]; blocks].into_boxed_slice(),
            used: 0,
            fresh: 0,
            freed: END,
        };
        self.total += blocks;
        let index = match self.chunks.iter().position(|c| c.blocks.is_empty()) {
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
