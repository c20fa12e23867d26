//! How are the rows of a pass read and written by whoever has its keys in order?

use std::ops::Range;
use std::sync::Arc;

use super::super::core::Table;
use super::super::put::{PutReport, PutRows};
use super::Pass;
use super::held::Held;
use crate::error::{ArgumentError, Result, check_length};

impl Pass {
    /// Copies weights of rows, as they are now: of part `part`, from its key number `first` on, as many as `out`
    /// has room for. For trainers that take the rows of a pass into their own memory, as HugeCTR does.
    ///
    /// # Shapes
    /// out: `[n, dim]`, in the order of the part's keys, those that are there twice included
    ///
    /// # Cost
    /// A copy a row, by the threads of a pull: no key is looked up, no row is pinned.
    ///
    /// # Errors
    /// `InvalidArgument`: the pass has no such part, or the part not so many keys, or `out` holds no whole number
    /// of rows; nothing was copied.
    ///
    /// # Examples
    /// ```
    /// # use hps::*;
    /// # let directory = std::env::temp_dir().join(format!("hps-pass-read-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// let items = store.create_table(&TableDescriptor::new("items", 4).optimizer(Optimizer::Sgd))?;
    /// let pass = store.begin_pass(&[PassPart::new(items, &[7, 8, 9])])?.wait()?;
    /// let mut weights = [0.0; 3 * 4];
    /// pass.read(0, 0, &mut weights)?;
    /// weights[4..8].fill(0.25); // of key 8: a pass of training, on a GPU perhaps
    /// pass.put(0, 0, PutRows::weights(&weights))?;
    /// drop(pass);
    ///
    /// let mut found = [0.0; 4];
    /// store.pull(items, &[8], &mut found)?;
    /// assert_eq!(found, [0.25; 4]);
    /// # store.close_discarding();
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn read(&self, part: usize, first: usize, out: &mut [f32]) -> Result<()> {
        self.gather(part, first, out, |table| table.descriptor.dim)
    }

    /// Copies whole rows: weights, optimizer state, metadata (u32 bit patterns).
    ///
    /// # Shapes
    /// out: `[n, row_f32s]`, in the order of the part's keys
    ///
    /// # Cost
    /// As [`Pass::read`].
    ///
    /// # Errors
    /// As [`Pass::read`].
    pub fn read_rows(&self, part: usize, first: usize, out: &mut [f32]) -> Result<()> {
        self.gather(part, first, out, |table| table.descriptor.row_f32s())
    }

    /// Writes rows, whatever they held, from key number `first` of a part on: as
    /// [`Store::put`](crate::Store::put) of these keys, but they are not looked up.
    ///
    /// # Shapes
    /// rows: `[n, row_f32s]` or `[n, dim]`, see [`PutRows`], in the order of the part's keys; of a key that is
    /// there twice the last row counts
    ///
    /// # Cost
    /// A copy a row, and a pass over the values. Beside a checkpoint that is being written, rows that it needs as
    /// they were are copied first, or written.
    ///
    /// # Durability
    /// With the next checkpoint, all of the call; visible once this returns.
    ///
    /// # Errors
    /// `InvalidArgument` as of [`Pass::read`], and for values that are not finite when the options reject them;
    /// `ReadOnly`: nothing changed. `Poisoned`: some of the rows may be written, none in part.
    pub fn put(&self, part: usize, first: usize, rows: PutRows<'_>) -> Result<PutReport> {
        let (core, putter) = (&self.passes.core, &self.passes.putter);
        core.guarded(|| {
            core.check_process()?;
            let (table, held) = self.part(part)?;
            let width = rows.width(table);
            let range = range(part, held, first, (rows.values.len(), width))?;
            putter.put_pinned(table, &held.pinned(range), rows)
        })
    }

    /// Keys of a part, those that are there twice included; 0 where the pass has no such part.
    #[must_use]
    pub fn len_of(&self, part: usize) -> usize {
        self.held.get(part).map_or(0, |(_, held)| held.len())
    }

    fn gather(
        &self,
        part: usize,
        first: usize,
        out: &mut [f32],
        width: fn(&Table) -> usize,
    ) -> Result<()> {
        let (core, workers) = (&self.passes.core, &self.passes.workers);
        core.guarded(|| {
            core.check_process()?;
            let (table, held) = self.part(part)?;
            let width = width(table);
            let range = range(part, held, first, (out.len(), width))?;
            held.gather((core, workers), table, range, (out, width));
            Ok(())
        })
    }

    fn part(&self, part: usize) -> Result<&(Arc<Table>, Held)> {
        self.held.get(part).ok_or_else(|| {
            let what = format!("part {part} of a pass that has {}", self.held.len());
            ArgumentError::Other { what }.into()
        })
    }
}

/// The rows of a part that values are for.
fn range(
    part: usize,
    held: &Held,
    first: usize,
    (f32s, width): (usize, usize),
) -> Result<Range<usize>> {
    let rows = f32s / width;
    check_length("f32s of rows of a pass", rows * width, f32s)?;
    match first.checked_add(rows) {
        Some(end) if end <= held.len() => Ok(first..end),
        _ => {
            let keys = held.len();
            let what = format!(
                "{rows} rows from key number {first} on: part {part} of the pass has {keys}"
            );
            Err(ArgumentError::Other { what }.into())
        }
    }
}
