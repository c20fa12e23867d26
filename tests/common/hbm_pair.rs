//! Tables of rows on several devices that are given the same calls, and must answer alike.

use hps::hbm::{
    Buffer, Gradients, HbmOptions, HbmTable, Index, Kind, Memory, Stream, Values, ValuesMut,
};
use hps::{Result, TableDescriptor};

pub const TRAIN: Stream = Stream::Train;

/// A table with buffers for calls of up to `n` keys.
pub struct Driven {
    pub table: Box<dyn HbmTable>,
    pub dim: usize,
    pub row_f32s: usize,
    pub keys: Buffer,
    pub rows: Buffer,
    pub failed: Buffer,
    pub floats: Buffer,
    pub packed: Buffer,
    pub positions: Buffer,
    pub shows: Buffer,
    pub clicks: Buffer,
}

impl Driven {
    pub fn new(table: Box<dyn HbmTable>, descriptor: &TableDescriptor, n: usize) -> Result<Driven> {
        let (mut table, dim) = (table, descriptor.dim);
        let row_f32s = row_f32s(descriptor);
        let n = n.max(1);
        let mut device = |kind, count| table.allocate(Memory::Device, kind, count);
        Ok(Driven {
            keys: device(Kind::Keys, n)?,
            rows: device(Kind::Words, n)?,
            failed: device(Kind::Keys, n)?,
            floats: device(Kind::Floats, n * dim)?,
            positions: device(Kind::Words, n)?,
            shows: device(Kind::Words, n)?,
            clicks: device(Kind::Words, n)?,
            packed: table.allocate(Memory::Pinned, Kind::Floats, n * row_f32s)?,
            dim,
            row_f32s,
            table,
        })
    }

    /// Inserts keys with their rows; what inserts of this index have done, and the keys that failed.
    pub fn insert(&mut self, index: Index, keys: &[u64], rows: &[u32]) -> Result<(u64, Vec<u64>)> {
        self.table.write(TRAIN, self.keys, 0, Values::Keys(keys))?;
        self.table.write(TRAIN, self.rows, 0, Values::Words(rows))?;
        let entries = (self.keys, self.rows, keys.len());
        self.table.insert(TRAIN, index, entries, self.failed)?;
        let done = self.table.inserted(TRAIN, index)?;
        let mut failed = vec![0; usize::try_from(done.failed).unwrap()];
        let all = ValuesMut::Keys(&mut failed);
        self.table.read(TRAIN, self.failed, 0, all)?;
        failed.sort_unstable();
        Ok((done.keys, failed))
    }

    /// Places rows, `[n, row_f32s]`.
    pub fn place(&mut self, rows: &[u32], values: &[f32]) -> Result<()> {
        self.table.write(TRAIN, self.rows, 0, Values::Words(rows))?;
        self.table
            .write(TRAIN, self.packed, 0, Values::Floats(values))?;
        self.table.place(TRAIN, self.rows, self.packed, rows.len())
    }

    pub fn get(&mut self, index: Index, keys: &[u64]) -> Result<Vec<f32>> {
        self.table.write(TRAIN, self.keys, 0, Values::Keys(keys))?;
        self.table
            .get(TRAIN, index, self.keys, keys.len(), self.floats)?;
        let mut out = vec![0.0; keys.len() * self.dim];
        self.table
            .read(TRAIN, self.floats, 0, ValuesMut::Floats(&mut out))?;
        self.table.wait(TRAIN)?;
        Ok(out)
    }

    pub fn get_rows(&mut self, index: Index, keys: &[u64]) -> Result<Vec<f32>> {
        self.table.write(TRAIN, self.keys, 0, Values::Keys(keys))?;
        self.table
            .get_rows(TRAIN, index, self.keys, keys.len(), self.packed)?;
        let mut out = vec![0.0; keys.len() * self.row_f32s];
        self.table
            .read(TRAIN, self.packed, 0, ValuesMut::Floats(&mut out))?;
        self.table.wait(TRAIN)?;
        Ok(out)
    }

    /// Gives an accumulate; the caller waits.
    pub fn accumulate(&mut self, index: Index, batch: &Batch) -> Result<()> {
        self.table
            .write(TRAIN, self.keys, 0, Values::Keys(&batch.keys))?;
        self.table
            .write(TRAIN, self.floats, 0, Values::Floats(&batch.gradients))?;
        self.table
            .write(TRAIN, self.shows, 0, Values::Words(&batch.shows))?;
        self.table
            .write(TRAIN, self.clicks, 0, Values::Words(&batch.clicks))?;
        let gradients = Gradients {
            keys: self.keys,
            values: self.floats,
            count: batch.keys.len(),
            shows: Some(self.shows),
            clicks: Some(self.clicks),
            lr: batch.lr,
            step: batch.step,
        };
        self.table.accumulate(TRAIN, index, gradients)
    }

    /// Dirty rows of these numbers: their places in `rows`, and values.
    pub fn pack(&mut self, rows: &[u32]) -> Result<(Vec<u32>, Vec<f32>)> {
        self.table.write(TRAIN, self.rows, 0, Values::Words(rows))?;
        let (to, at) = (self.packed, self.positions);
        self.table.pack(TRAIN, self.rows, rows.len(), to, at)?;
        let found = self.table.packed(TRAIN)?;
        let (mut places, mut values) = (vec![0; found], vec![0.0; found * self.row_f32s]);
        self.table
            .read(TRAIN, at, 0, ValuesMut::Words(&mut places))?;
        self.table
            .read(TRAIN, to, 0, ValuesMut::Floats(&mut values))?;
        Ok((places, values))
    }
}

/// f32s of a row.
pub fn row_f32s(descriptor: &TableDescriptor) -> usize {
    let state = descriptor.optimizer.state_f32s(descriptor.dim);
    descriptor.dim + state + descriptor.metadata.columns()
}

/// A batch of gradients.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub keys: Vec<u64>,
    pub gradients: Vec<f32>,
    pub shows: Vec<u32>,
    pub clicks: Vec<u32>,
    pub lr: f32,
    pub step: u32,
}

/// Options for small tables.
pub fn options(rows: usize) -> HbmOptions {
    HbmOptions::new(rows)
        .batch_keys_max(4096)
        .staging_bytes(64 << 10)
}

/// Asserts that values are equal to the bit, NaN to any NaN; names the first that differs.
pub fn assert_same_bits(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}: lengths");
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        let same = a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
        assert!(
            same,
            "{what}: value {i}: {a:?} ({:#x}), expected {b:?} ({:#x})",
            a.to_bits(),
            b.to_bits()
        );
    }
}
