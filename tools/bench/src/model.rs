//! What would an ideal store reach in out-of-memory training on this device?
//!
//! - Section 4 of the performance notes: a perfect static cache holds the hottest keys at 528
//!   bytes a row of 512 over all memory; each miss is one read, and writes one changed record in
//!   order; reads come first and writes after, without overlap.
//! - Unique keys and misses are counted over batches of the generator that the workload uses.

use super::keys::{Distribution, Draw};

/// Bytes that a record takes beside its row.
const RECORD_EXTRA_BYTES: u64 = 16;

/// What the model says, and out of what.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ideal {
    /// Unique keys of a batch, on average.
    pub unique_keys: f64,
    /// Share of them that a perfect static cache misses.
    pub miss: f64,
    /// Rows that this cache holds.
    pub cached_rows: u64,
    /// Bytes of a record.
    pub record_bytes: u64,
}

impl Ideal {
    /// Draws `batches` batches of `samples`.
    #[must_use]
    pub fn draw(
        rows: u64,
        distribution: Distribution,
        samples: usize,
        memory_bytes: u64,
        row_bytes: usize,
        batches: usize,
    ) -> Ideal {
        let record_bytes = row_bytes as u64 + RECORD_EXTRA_BYTES;
        let cached_rows = (memory_bytes / record_bytes).min(rows);
        let mut draw = Draw::new(rows, distribution, 0x1dea, 1);
        let (mut unique, mut missed) = (0usize, 0usize);
        let mut ranks = Vec::with_capacity(samples);
        for _ in 0..batches {
            ranks.clear();
            ranks.extend((0..samples).map(|_| draw.rank()));
            ranks.sort_unstable();
            ranks.dedup();
            unique += ranks.len();
            missed += ranks.len() - ranks.partition_point(|rank| *rank < cached_rows);
        }
        Ideal {
            unique_keys: unique as f64 / batches.max(1) as f64,
            miss: missed as f64 / unique.max(1) as f64,
            cached_rows,
            record_bytes,
        }
    }

    /// Rows a second over a device of so many reads and bytes written a second.
    #[must_use]
    pub fn rows_per_second(&self, reads_per_second: f64, written_per_second: f64) -> f64 {
        let write = self.record_bytes as f64 / written_per_second;
        1.0 / (self.miss * (1.0 / reads_per_second + write))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of the notes' table, 75 000 reads and 1.2 GB a second.
    #[test]
    fn the_model_gives_the_published_figures() {
        for (theta, unique, miss, rate) in [
            (0.99, 18_006.0, 0.163, 446_000.0),
            (1.2, 6_662.0, 0.060, 1_212_000.0),
        ] {
            let distribution = Distribution::from_theta(theta);
            let ideal = Ideal::draw(8_000_000, distribution, 32_768, 1 << 30, 512, 20);
            assert!((ideal.unique_keys / unique - 1.0).abs() < 0.01, "{ideal:?}");
            assert!((ideal.miss / miss - 1.0).abs() < 0.03, "{ideal:?}");
            let found = ideal.rows_per_second(75_000.0, 1.2e9);
            assert!((found / rate - 1.0).abs() < 0.03, "{theta}: {found}");
        }
    }
}
