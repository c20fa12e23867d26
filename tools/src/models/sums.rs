//! What is the CRC-32C of a file whose rows threads read or write piece by piece?
//!
//! - Pieces come in any order. Their checksums are joined in the order of their rows, so that no byte is read twice.

use std::sync::{Mutex, PoisonError};

/// Checksums of pieces of files that have a fixed stride each.
#[derive(Debug, Default)]
pub struct Sums {
    pieces: Mutex<Vec<Piece>>,
}

/// Some rows of all files.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Piece {
    first: u64,
    rows: u64,
    /// One for each file.
    sums: Vec<u32>,
}

impl Sums {
    /// Adds the checksums of some rows, one for each file.
    pub fn add(&self, first: u64, rows: u64, sums: Vec<u32>) {
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        pieces.push(Piece { first, rows, sums });
    }

    /// The checksum of each file, all of whose rows were added; `row_bytes`: what a row has in each.
    #[must_use]
    pub fn whole(&self, row_bytes: &[usize]) -> Vec<u32> {
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        pieces.sort_unstable();
        let mut whole = vec![0; row_bytes.len()];
        for Piece { rows, sums, .. } in &*pieces {
            let rows = usize::try_from(*rows).unwrap_or(usize::MAX);
            for ((whole, sum), bytes) in whole.iter_mut().zip(sums).zip(row_bytes) {
                *whole = crc32c::crc32c_combine(*whole, *sum, rows * bytes);
            }
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_in_any_order_have_the_checksum_of_the_whole() {
        let bytes: Vec<u8> = (0..=255).collect();
        let sums = Sums::default();
        assert_eq!(sums.whole(&[4, 8]), [0, 0]);
        for (first, rows) in [(10, 22), (0, 3), (3, 7)] {
            let of = |row_bytes: usize| {
                crc32c::crc32c(&bytes[first * row_bytes..(first + rows) * row_bytes])
            };
            sums.add(first as u64, rows as u64, vec![of(4), of(8)]);
        }
        let whole = [crc32c::crc32c(&bytes[..128]), crc32c::crc32c(&bytes)];
        assert_eq!(sums.whole(&[4, 8]), whole);
    }
}
