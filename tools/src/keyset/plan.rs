//! Who gets how much of `--memory`?
//!
//! - Each thread gets the same share; the parts of a share add up to it.
//! - What is not counted: the program itself, stacks, the state of gzip. Less than 32 MiB.

use crate::threads::cores;

/// The least that `--memory` may be.
pub const MEMORY_MIN: u64 = 256 << 10;
/// The least share that is worth a thread.
const SHARE_MIN: usize = 128 << 10;
/// Reads of fewer keys than these would cost more than what is read.
const WINDOW_MIN: usize = 512;
/// Half of an L2 cache of 1 MiB.
const FILTER_MAX: usize = 1 << 16;

/// Sizes of all buffers.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Threads that parse, and threads that merge.
    pub threads: usize,
    /// Bytes that a thread has.
    pub share: usize,
    /// Bytes of a chunk of input.
    pub chunk_bytes: usize,
    /// Keys of a filter, a power of two.
    pub filter_keys: usize,
    /// Keys of a run; a buffer of as many stands beside it for sorting.
    pub run_keys: usize,
    /// Bytes of a buffer for writing or reading a file.
    pub file_bytes: usize,
}

impl Plan {
    /// For so many bytes, on all processors or on so many.
    #[must_use]
    pub fn new(memory: u64, threads: Option<usize>) -> Plan {
        let memory = usize::try_from(memory).unwrap_or(usize::MAX).max(SHARE_MIN);
        let threads = threads.unwrap_or_else(cores);
        let threads = threads.min(memory / SHARE_MIN).max(1);
        let share = memory / threads;
        let chunk_bytes = (share / 16).min(1 << 20);
        let filter_keys = (share / 128).min(FILTER_MAX);
        let filter_keys = 1 << filter_keys.ilog2();
        let file_bytes = (share / 16).min(256 << 10);
        let run_keys = (share - chunk_bytes - filter_keys * 8 - file_bytes) / 16;
        Plan {
            threads,
            share,
            chunk_bytes,
            filter_keys,
            run_keys,
            file_bytes,
        }
    }

    /// How many runs are merged at a time, and keys of each run's window, when `held` bytes are taken.
    ///
    /// A key of a window stands in the window, in the buffer that is sorted and in the one beside it.
    #[must_use]
    pub fn windows(&self, runs: usize, held: usize) -> (usize, usize) {
        let share = self.share.saturating_sub(held / self.threads);
        let keys = share.saturating_sub(3 * self.file_bytes) / 24;
        let fan_in = runs.min(keys / WINDOW_MIN).max(2);
        (fan_in, (keys / fan_in).max(WINDOW_MIN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_share_is_exceeded() {
        for memory in [MEMORY_MIN, 1 << 20, 16 << 20, 64 << 20, 5 << 30] {
            for threads in [1, 2, 7, 64] {
                let plan = Plan::new(memory, Some(threads));
                let used = plan.chunk_bytes + plan.filter_keys * 8 + plan.run_keys * 16;
                assert!(
                    plan.threads * (used + plan.file_bytes) <= usize::try_from(memory).unwrap()
                );
                assert!(plan.run_keys > plan.chunk_bytes / 16, "{plan:?}");
                for runs in [1, 10, 100_000] {
                    let (fan_in, window) = plan.windows(runs, 0);
                    let used = fan_in * window * 24 + 3 * plan.file_bytes;
                    assert!(
                        plan.threads * used <= usize::try_from(memory).unwrap(),
                        "{plan:?} {runs}"
                    );
                    assert!(fan_in >= 2);
                }
            }
        }
    }
}
