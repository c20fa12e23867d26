//! Which rows does each batch of a trace use? Numbers instead of keys, each once per batch.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::reader::TraceReader;

/// A trace in memory.
///
/// - Rows are numbered from 0 in the order of their first use.
/// - A batch holds a row once: a store serves the unique keys of a batch.
/// - Memory: 4 bytes a use, and about 40 bytes a distinct key while it is built (12 after).
#[derive(Clone, Debug, Default)]
pub struct Accesses {
    rows: Vec<u32>,
    ends: Vec<usize>,
    keys: Vec<u64>,
}

/// What is needed while batches come.
#[derive(Default)]
struct Builder {
    accesses: Accesses,
    ids: HashMap<u64, u32>,
    /// The last batch, from 1, that used a row.
    last: Vec<u32>,
}

impl Builder {
    fn push(&mut self, keys: &[u64]) -> Result<()> {
        let batch = u32::try_from(self.accesses.ends.len() + 1).context("batches of a trace")?;
        for key in keys {
            let next = u32::try_from(self.ids.len()).context("distinct keys of a trace")?;
            let id = *self.ids.entry(*key).or_insert(next);
            if id == next {
                self.accesses.keys.push(*key);
                self.last.push(0);
            }
            let last = &mut self.last[id as usize];
            if *last != batch {
                *last = batch;
                self.accesses.rows.push(id);
            }
        }
        self.accesses.ends.push(self.accesses.rows.len());
        Ok(())
    }
}

impl Accesses {
    /// Reads a whole trace; `each` is called after every batch.
    ///
    /// # Errors
    /// As [`TraceReader`]; a trace without keys.
    pub fn read(path: &Path, mut each: impl FnMut()) -> Result<Accesses> {
        let mut reader = TraceReader::open(path)?;
        let mut builder = Builder::default();
        let mut keys = Vec::new();
        while reader.next_batch(&mut keys)? {
            builder.push(&keys)?;
            each();
        }
        ensure!(
            builder.accesses.total() > 0,
            "{} holds no keys",
            path.display()
        );
        Ok(builder.accesses)
    }

    /// The same from batches in memory.
    ///
    /// # Errors
    /// More than 2^32 distinct keys or batches.
    pub fn from_batches<K: AsRef<[u64]>>(batches: &[K]) -> Result<Accesses> {
        let mut builder = Builder::default();
        for keys in batches {
            builder.push(keys.as_ref())?;
        }
        Ok(builder.accesses)
    }

    /// Batches.
    #[must_use]
    pub fn batches(&self) -> usize {
        self.ends.len()
    }

    /// The rows of a batch, each once, in the order of the trace.
    #[must_use]
    pub fn batch(&self, index: usize) -> &[u32] {
        let start = index.checked_sub(1).map_or(0, |i| self.ends[i]);
        &self.rows[start..self.ends[index]]
    }

    /// Uses of rows: the sum of the batches' unique keys.
    #[must_use]
    pub fn total(&self) -> usize {
        self.rows.len()
    }

    /// Distinct keys.
    #[must_use]
    pub fn distinct(&self) -> usize {
        self.keys.len()
    }

    /// The key of each row.
    #[must_use]
    pub fn keys(&self) -> &[u64] {
        &self.keys
    }
}
