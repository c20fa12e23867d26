//! How does a batch get its arrays without asking the allocator each time?
//!
//! Arrays of tens of thousands of elements, freed and allocated again per batch, are given back to
//! the kernel and zeroed by it each time: 5 % to 8 % of a pull of resident rows. They are kept
//! here instead.
//!
//! - What is kept is bounded: a number of arrays per kind, none of them large.
//! - An array comes back empty.

use std::sync::PoisonError;

use crate::batch::share;
use crate::mem::Place;
use crate::sync::Mutex;
use crate::units::Slot;

/// Arrays kept of a kind, and their bytes: a batch has one for each shard and each thread that splits it.
const KEPT_MAX: usize = 256;
const ALL_BYTES_MAX: usize = 8 << 20;
/// Bytes of an array that is worth keeping; larger ones are the exception, and would add up.
const KEPT_BYTES_MAX: usize = 256 << 10;

/// Empty arrays of one kind.
#[derive(Debug)]
pub struct VecPool<T>(Mutex<Kept<T>>);

#[derive(Debug)]
struct Kept<T> {
    arrays: Vec<Vec<T>>,
    bytes: usize,
}

impl<T> Default for VecPool<T> {
    fn default() -> VecPool<T> {
        VecPool(Mutex::new(Kept {
            arrays: Vec::new(),
            bytes: 0,
        }))
    }
}

/// Memory of an array.
fn bytes_of<T>(array: &Vec<T>) -> usize {
    array.capacity() * size_of::<T>()
}

impl<T> VecPool<T> {
    /// An empty array with room for `count`.
    pub fn take(&self, count: usize) -> Vec<T> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut array = kept.arrays.pop().unwrap_or_default();
        kept.bytes -= bytes_of(&array);
        drop(kept);
        array.reserve(count);
        array
    }

    /// Memory of the arrays that are kept.
    fn bytes(&self) -> usize {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.bytes
    }

    /// Takes an array back.
    pub fn put(&self, mut array: Vec<T>) {
        array.clear();
        let bytes = bytes_of(&array);
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = kept.arrays.len() < KEPT_MAX && kept.bytes + bytes <= ALL_BYTES_MAX;
        if (1..=KEPT_BYTES_MAX).contains(&bytes) && fits {
            kept.arrays.push(array);
            kept.bytes += bytes;
        }
    }
}

/// Hands the rows of `out`, `width` words each, to the shards of their positions.
///
/// # Shapes
/// out: `[n, width]`, of: `[n]`; targets: an array per shard
pub fn split_out<'a>(
    out: &'a mut [f32],
    width: usize,
    of: &[u16],
    targets: &mut [Vec<&'a mut [f32]>],
) {
    for (shard, target) in of.iter().zip(out.chunks_exact_mut(width)) {
        targets[usize::from(*shard)].push(target);
    }
}

/// The arrays of batches.
#[derive(Debug, Default)]
pub struct BatchArrays {
    /// Shards.
    pub shards: VecPool<u16>,
    /// Positions, indexes.
    pub numbers: VecPool<u32>,
    /// Hashes.
    pub hashes: VecPool<u64>,
    /// Slots.
    pub slots: VecPool<Slot>,
    /// (slot, position).
    pub kept: VecPool<(Slot, u32)>,
    /// Places of rows.
    pub places: VecPool<Place>,
    /// Counts of two kinds.
    pub counts: VecPool<(u32, u32)>,
    /// Where rows are copied to.
    targets: VecPool<&'static mut [f32]>,
}

impl BatchArrays {
    /// Memory of the arrays that are kept.
    pub fn bytes(&self) -> u64 {
        let all = self.shards.bytes()
            + self.numbers.bytes()
            + self.hashes.bytes()
            + self.slots.bytes()
            + self.kept.bytes()
            + self.places.bytes()
            + self.counts.bytes()
            + self.targets.bytes();
        all as u64
    }

    /// Arrays for where rows are copied to: one per shard, for so many rows in all.
    pub fn take_targets<'a>(&self, rows: usize, shards: usize) -> Vec<Vec<&'a mut [f32]>> {
        let share = share(rows, shards);
        let empty = |_| -> Vec<&'a mut [f32]> { self.targets.take(share) };
        (0..shards).map(empty).collect()
    }

    /// Takes one back; what its elements pointed to is forgotten.
    pub fn put_targets(&self, mut targets: Vec<&mut [f32]>) {
        targets.clear();
        // The standard library collects into the same allocation.
        let empty = targets
            .into_iter()
            .map(|_| -> &'static mut [f32] { &mut [] });
        self.targets.put(empty.collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_comes_back_empty_and_with_its_room() {
        let arrays = BatchArrays::default();
        let mut numbers = arrays.numbers.take(100);
        numbers.extend(0..100);
        let place = numbers.as_ptr();
        arrays.numbers.put(numbers);
        let again = arrays.numbers.take(50);
        assert!(again.is_empty() && again.capacity() >= 100 && again.as_ptr() == place);

        let mut row = [1.0f32; 4];
        let mut targets = arrays.take_targets(2, 1);
        split_out(&mut row, 2, &[0, 0], &mut targets);
        let targets = targets.remove(0);
        assert!(targets.len() == 2 && targets.iter().all(|t| t.len() == 2));
        let place = targets.as_ptr().addr();
        arrays.put_targets(targets);
        let again = arrays.targets.take(0);
        assert!(again.is_empty() && again.as_ptr().addr() == place);
    }

    #[test]
    fn large_and_many_arrays_are_let_go() {
        let pool = VecPool::<u64>::default();
        pool.put(Vec::with_capacity(KEPT_BYTES_MAX / 8 + 1));
        assert_eq!(pool.take(0).capacity(), 0);
        (0..2 * KEPT_MAX).for_each(|_| pool.put(Vec::with_capacity(1)));
        assert_eq!(pool.0.lock().unwrap().arrays.len(), KEPT_MAX);
        assert_eq!(pool.bytes(), KEPT_MAX * 8);
        let long = VecPool::<u64>::default();
        (0..KEPT_MAX).for_each(|_| long.put(Vec::with_capacity(KEPT_BYTES_MAX / 8)));
        assert_eq!(long.bytes(), ALL_BYTES_MAX);
        (0..8).for_each(|_| drop(long.take(1)));
        assert_eq!(long.bytes(), ALL_BYTES_MAX - 8 * KEPT_BYTES_MAX);
    }
}
