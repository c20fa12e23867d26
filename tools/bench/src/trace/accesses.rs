//! Which rows does each batch of a trace use? Numbers instead of keys, each once per batch.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::reader::TraceReader;

/// Stands for a key that was not used yet.
const UNUSED: u32 = u32::MAX;

/// One table of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceTable {
    /// Its keys are `0..keys`; 0: any.
    pub keys: u64,
    /// Bytes of its rows, a multiple of 4: weights and optimizer state.
    pub row_bytes: u32,
}

/// A trace in memory, of one table or several.
///
/// - Rows are numbered from 0 in the order of their first use, over all tables.
/// - A batch holds a row once: a store serves the unique keys of a batch.
/// - The first batches may be a load: they warm caches up and count nowhere.
/// - Memory: 4 bytes a use, and about 40 bytes a distinct key while it is built (13 after).
#[derive(Clone, Debug, Default)]
pub struct Accesses {
    rows: Vec<u32>,
    ends: Vec<usize>,
    keys: Vec<u64>,
    table_of: Vec<u8>,
    row_bytes: Vec<u32>,
    load: usize,
}

/// From keys to rows.
enum Ids {
    /// One table with any keys.
    Any(HashMap<u64, u32>),
    /// By key, and where each table's keys begin.
    Dense(Vec<u32>, Vec<usize>),
}

/// What is needed while batches come.
pub(crate) struct Builder {
    accesses: Accesses,
    ids: Ids,
    /// The last batch, from 1, that used a row.
    last: Vec<u32>,
}

impl Builder {
    /// One table whose keys are any u64, rows of so many bytes.
    pub fn any(row_bytes: u32) -> Builder {
        Builder::new(vec![row_bytes], Ids::Any(HashMap::new()))
    }

    /// Tables whose keys are dense.
    pub fn dense(tables: &[TraceTable]) -> Result<Builder> {
        ensure!(tables.len() <= 256, "more than 256 tables");
        let (mut starts, mut all) = (Vec::new(), 0);
        for table in tables {
            starts.push(all);
            all += usize::try_from(table.keys)?;
        }
        let row_bytes = tables.iter().map(|table| table.row_bytes).collect();
        Ok(Builder::new(
            row_bytes,
            Ids::Dense(vec![UNUSED; all], starts),
        ))
    }

    fn new(row_bytes: Vec<u32>, ids: Ids) -> Builder {
        Builder {
            accesses: Accesses {
                row_bytes,
                ..Accesses::default()
            },
            ids,
            last: Vec::new(),
        }
    }

    /// Adds keys of one table to the batch that is being put together.
    pub fn add(&mut self, table: usize, keys: &[u64]) -> Result<()> {
        let batch = u32::try_from(self.accesses.ends.len() + 1).context("batches of a trace")?;
        for key in keys {
            let next = u32::try_from(self.accesses.keys.len()).context("distinct keys")?;
            let id = match &mut self.ids {
                Ids::Any(ids) => *ids.entry(*key).or_insert(next),
                Ids::Dense(ids, starts) => {
                    let place = starts[table] as u64 + key;
                    let end = starts.get(table + 1).map_or(ids.len(), |end| *end);
                    ensure!(place < end as u64, "key {key} is not in table {table}");
                    let id = &mut ids[usize::try_from(place)?];
                    if *id == UNUSED {
                        *id = next;
                    }
                    *id
                }
            };
            if id == next {
                self.accesses.keys.push(*key);
                self.accesses.table_of.push(u8::try_from(table)?);
                self.last.push(0);
            }
            let last = &mut self.last[id as usize];
            if *last != batch {
                *last = batch;
                self.accesses.rows.push(id);
            }
        }
        Ok(())
    }

    /// Ends the batch that is being put together.
    pub fn end_batch(&mut self) {
        self.accesses.ends.push(self.accesses.rows.len());
    }

    /// What came so far was the load.
    pub fn end_load(&mut self) {
        self.accesses.load = self.accesses.ends.len();
    }

    pub fn done(self) -> Accesses {
        self.accesses
    }
}

impl Accesses {
    /// Reads a whole trace of rows of so many bytes; `each` is called after every batch.
    ///
    /// # Errors
    /// As [`TraceReader`]; a trace without keys.
    pub fn read(path: &Path, row_bytes: u32, mut each: impl FnMut()) -> Result<Accesses> {
        let mut reader = TraceReader::open(path)?;
        let mut builder = Builder::any(row_bytes);
        let mut keys = Vec::new();
        while reader.next_batch(&mut keys)? {
            builder.add(0, &keys)?;
            builder.end_batch();
            each();
        }
        let accesses = builder.done();
        ensure!(accesses.total() > 0, "{} holds no keys", path.display());
        Ok(accesses)
    }

    /// The same from batches in memory, rows of 4 bytes.
    ///
    /// # Errors
    /// More than 2^32 distinct keys or batches.
    pub fn from_batches<K: AsRef<[u64]>>(batches: &[K]) -> Result<Accesses> {
        let mut builder = Builder::any(4);
        for keys in batches {
            builder.add(0, keys.as_ref())?;
            builder.end_batch();
        }
        Ok(builder.done())
    }

    /// The same of several tables: a batch has keys of each.
    ///
    /// # Errors
    /// As above; a key that is not in its table.
    pub fn from_tables(
        tables: &[TraceTable],
        batches: impl Iterator<Item = Vec<Vec<u64>>>,
    ) -> Result<Accesses> {
        let mut builder = Builder::dense(tables)?;
        for parts in batches {
            for (table, keys) in parts.iter().enumerate() {
                builder.add(table, keys)?;
            }
            builder.end_batch();
        }
        Ok(builder.done())
    }

    /// Batches, those of the load included.
    #[must_use]
    pub fn batches(&self) -> usize {
        self.ends.len()
    }

    /// Batches of the load: the first ones.
    #[must_use]
    pub fn load_batches(&self) -> usize {
        self.load
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

    /// Distinct keys of all tables.
    #[must_use]
    pub fn distinct(&self) -> usize {
        self.keys.len()
    }

    /// The key of each row, within its table.
    #[must_use]
    pub fn keys(&self) -> &[u64] {
        &self.keys
    }

    /// The table of a row.
    #[must_use]
    pub fn table(&self, row: u32) -> usize {
        usize::from(self.table_of[row as usize])
    }

    /// Bytes of the rows of each table.
    #[must_use]
    pub fn row_bytes(&self) -> &[u32] {
        &self.row_bytes
    }
}
