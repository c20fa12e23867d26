//! What becomes of a key between parsing and merging?
//!
//! - A filter of the last keys seen drops most of those that come again and again. It is never
//!   wrong: a key that is in it went into the buffer before.
//! - A full buffer is sorted and made unique; it becomes a run if it is more than half full then.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::plan::Plan;
use super::radix::sort_unique;
use super::run::{Run, Writer};

/// 2^64 divided by the golden ratio, odd: spreads neighbours over the filter.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Keys of one thread.
#[derive(Debug)]
pub struct Collector {
    filter: Vec<u64>,
    keys: Vec<u64>,
    scratch: Vec<u64>,
    plan: Plan,
    folder: PathBuf,
    writer: Option<Writer>,
    runs: Vec<Run>,
}

impl Collector {
    /// With the buffers of a plan; runs go into `folder`.
    #[must_use]
    pub fn new(plan: &Plan, folder: &Path) -> Collector {
        let mut filter = vec![0; plan.filter_keys];
        // A place that was never used must not look as if its key had been seen. Only key 0 has
        // place 0 among small keys, and 1 has another.
        filter[place(0, plan.filter_keys)] = 1;
        Collector {
            filter,
            keys: Vec::with_capacity(plan.run_keys),
            scratch: Vec::new(),
            plan: *plan,
            folder: folder.to_path_buf(),
            writer: None,
            runs: Vec::new(),
        }
    }

    /// Takes a key.
    ///
    /// # Errors
    /// What writing a run met.
    #[inline]
    pub fn put(&mut self, key: u64) -> Result<()> {
        let place = place(key, self.filter.len());
        let seen = &mut self.filter[place];
        if *seen == key {
            return Ok(());
        }
        *seen = key;
        self.keys.push(key);
        if self.keys.len() >= self.plan.run_keys {
            self.full()?;
        }
        Ok(())
    }

    #[cold]
    fn full(&mut self) -> Result<()> {
        sort_unique(&mut self.keys, &mut self.scratch);
        if self.keys.len() > self.plan.run_keys / 2 {
            self.spill()?;
        }
        Ok(())
    }

    fn spill(&mut self) -> Result<()> {
        let writer = match &mut self.writer {
            Some(writer) => writer,
            none => none.insert(Writer::new(&self.folder, self.plan.file_bytes)?),
        };
        writer.write(&self.keys)?;
        self.runs.push(writer.end_run());
        self.keys.clear();
        Ok(())
    }

    /// The runs; the last one is in memory if it is the only one.
    ///
    /// # Errors
    /// What writing a run met.
    pub fn end(mut self) -> Result<Vec<Run>> {
        if self.keys.is_empty() {
            return Ok(self.runs);
        }
        sort_unique(&mut self.keys, &mut self.scratch);
        if self.runs.is_empty() {
            return Ok(vec![Run::in_memory(self.keys)]);
        }
        self.spill()?;
        Ok(self.runs)
    }
}

fn place(key: u64, places: usize) -> usize {
    (key.wrapping_mul(SPREAD) >> 48) as usize & (places - 1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn keys_of(runs: &[Run]) -> Vec<Vec<u64>> {
        let read = |run: &Run| {
            let mut keys = Vec::new();
            let count = usize::try_from(run.keys).unwrap();
            run.read(0, count, &mut [0; 24], &mut keys).unwrap();
            keys
        };
        runs.iter().map(read).collect()
    }

    #[test]
    fn no_key_is_lost_in_the_filter_or_between_runs() {
        let dir = tempfile::tempdir().unwrap();
        let plan = Plan {
            threads: 1,
            share: 0,
            chunk_bytes: 0,
            filter_keys: 64,
            run_keys: 100,
            file_bytes: 16,
        };
        for distinct in [1u64, 40, 90, 5000] {
            let mut collector = Collector::new(&plan, dir.path());
            let key = |i: u64| (i * i) % distinct * 3;
            let all = || (0..20_000).map(key).chain([0, u64::MAX]);
            all().for_each(|key| collector.put(key).unwrap());
            let runs = keys_of(&collector.end().unwrap());
            for run in &runs {
                assert!(run.is_sorted_by(|a, b| a < b), "{run:?}");
            }
            let found: BTreeSet<u64> = runs.concat().into_iter().collect();
            assert_eq!(found, all().collect(), "{distinct}");
            assert_eq!(runs.len() > 1, distinct == 5000);
        }
        assert_eq!(
            dir.path().read_dir().unwrap().count(),
            0,
            "no file has a name"
        );
    }
}
