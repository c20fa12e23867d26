//! How are the rows of a part read: all of them, or some by position?

use std::mem::take;
use std::sync::PoisonError;

use super::super::core::{Table, point};
use super::super::workers::split_out;
use super::{Lease, ShardRows};
use crate::batch::check_keys;
use crate::error::{ArgumentError, Result, check_length};
use crate::sync::Mutex;
use crate::units::{TableId, narrow};

/// One part of a [`Lease`]: the rows of one table that a call asked for together.
#[derive(Clone, Copy, Debug)]
pub struct LeasePart<'a> {
    lease: &'a Lease,
    ordinal: usize,
}

/// Where the rows of a part are copied to.
pub(super) struct Output<'o> {
    pub ordinal: usize,
    pub out: &'o mut [f32],
}

/// f32s that are copied of a table's rows.
type Width = fn(&Table) -> usize;

impl<'a> LeasePart<'a> {
    pub(super) fn new(lease: &'a Lease, ordinal: usize) -> LeasePart<'a> {
        LeasePart { lease, ordinal }
    }

    /// Keys of the part, duplicates included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lease.map.keys_of(self.ordinal)
    }

    /// Whether the part is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The table.
    #[must_use]
    pub fn table(&self) -> TableId {
        self.in_table().id
    }

    /// Weights of a row.
    #[must_use]
    pub fn dim(&self) -> usize {
        self.in_table().descriptor.dim
    }

    /// f32s of a whole row: weights, optimizer state, metadata.
    #[must_use]
    pub fn row_f32s(&self) -> usize {
        self.in_table().descriptor.row_f32s()
    }

    /// Gathers the weights as they are now.
    ///
    /// # Shapes
    /// out: `[n, dim]`, in the order of the part's keys
    ///
    /// # Cost
    /// As [`Lease::read`].
    ///
    /// # Errors
    /// `InvalidArgument` when `out` has another length.
    ///
    /// # Examples
    /// ```
    /// # use hps::*;
    /// # let directory = std::env::temp_dir().join(format!("hps-part-read-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// # let users = store.create_table(&TableDescriptor::new("users", 8))?;
    /// # let ads = store.create_table(&TableDescriptor::new("ads", 4))?;
    /// let wanted = [PrefetchPart::new(users, &[1, 2]), PrefetchPart::new(ads, &[7])];
    /// let lease = store.prefetch_many(&wanted)?.wait()?;
    /// for part in lease.parts() {
    ///     let mut weights = vec![0.0; part.len() * part.dim()];
    ///     part.read(&mut weights)?;
    /// }
    /// # drop(lease);
    /// # store.close_discarding();
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn read(&self, out: &mut [f32]) -> Result<()> {
        self.gather(out, |table| table.descriptor.dim, "weights (f32s)")
    }

    /// Gathers whole rows: weights, optimizer state, metadata (u32 bit patterns).
    ///
    /// # Shapes
    /// out: `[n, row_f32s]`, in the order of the part's keys
    ///
    /// # Cost
    /// As [`Lease::read`].
    ///
    /// # Errors
    /// `InvalidArgument` when `out` has another length.
    ///
    /// # Examples
    /// ```
    /// # use hps::*;
    /// # let directory = std::env::temp_dir().join(format!("hps-part-rows-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// # let users = store.create_table(&TableDescriptor::new("users", 8))?;
    /// # let ads = store.create_table(&TableDescriptor::new("ads", 4))?;
    /// let wanted = [PrefetchPart::new(users, &[1, 2]), PrefetchPart::new(ads, &[7])];
    /// let lease = store.prefetch_many(&wanted)?.wait()?;
    /// for part in lease.parts() {
    ///     let mut rows = vec![0.0; part.len() * part.row_f32s()];
    ///     part.read_rows(&mut rows)?;
    ///     let first_sums = &rows[part.dim()..part.row_f32s()]; // AdaGrad's
    ///     assert!(first_sums.iter().all(|sum| *sum == 0.0));
    /// }
    /// # drop(lease);
    /// # store.close_discarding();
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn read_rows(&self, out: &mut [f32]) -> Result<()> {
        self.gather(out, |table| table.descriptor.row_f32s(), "row f32s")
    }

    /// Gathers whole rows of some positions, as they are now.
    ///
    /// # Shapes
    /// positions: `[m]`, each below [`LeasePart::len`], in any order; out: `[m, row_f32s]`
    ///
    /// # Cost
    /// As [`Lease::read_rows_at`].
    ///
    /// # Errors
    /// `InvalidArgument`: a position past the end, another length of `out`; nothing was copied.
    ///
    /// # Examples
    /// ```
    /// # use hps::*;
    /// # let directory = std::env::temp_dir().join(format!("hps-part-at-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// # let users = store.create_table(&TableDescriptor::new("users", 8))?;
    /// # let ads = store.create_table(&TableDescriptor::new("ads", 4))?;
    /// let wanted = [PrefetchPart::new(users, &[1, 2, 3]), PrefetchPart::new(ads, &[7])];
    /// let lease = store.prefetch_many(&wanted)?.wait()?;
    /// let of_users = lease.parts().next().expect("a part for each table");
    /// let mut some = vec![0.0; 2 * of_users.row_f32s()];
    /// of_users.read_rows_at(&[2, 0], &mut some)?; // of keys 3 and 1
    /// # drop(lease);
    /// # store.close_discarding();
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn read_rows_at(&self, positions: &[u32], out: &mut [f32]) -> Result<()> {
        let core = &self.lease.leases.core;
        core.guarded(|| self.gather_at(positions, out))
    }

    fn in_table(&self) -> &'a Table {
        self.lease.map.table(self.ordinal)
    }

    fn gather(&self, out: &mut [f32], width: Width, what: &'static str) -> Result<()> {
        let ordinal = self.ordinal;
        self.lease
            .gather(&mut [Output { ordinal, out }], width, what)
    }

    fn gather_at(&self, positions: &[u32], out: &mut [f32]) -> Result<()> {
        let (core, workers) = (&self.lease.leases.core, &self.lease.leases.workers);
        core.check_process()?;
        let width = self.row_f32s();
        check_length("row f32s", positions.len() * width, out.len())?;
        let rows = self.rows_at(positions)?;
        let count = core.shards.len();
        let mut targets = workers.arrays.take_targets(positions.len(), count);
        let shards = self.lease.map.shards_of(self.ordinal);
        for (position, target) in positions.iter().zip(out.chunks_exact_mut(width)) {
            targets[usize::from(shards[*position as usize])].push(target);
        }
        let targets: Vec<_> = targets.into_iter().map(Mutex::new).collect();
        let pool = workers.foreground();
        pool.shards(count, positions.len(), |s| {
            let mut targets = targets[s].lock().unwrap_or_else(PoisonError::into_inner);
            if !targets.is_empty() {
                let mut shard = core.shards[s].lock();
                shard.cache.gather(&rows[s].slots, &mut targets);
                point("gather");
            }
        });
        self.lease.put_targets(targets);
        self.in_table().note_read(positions.len());
        Ok(())
    }

    /// The rows at some positions, by shard: slots, and the indexes of their positions, rising.
    ///
    /// # Errors
    /// `InvalidArgument` for a position past the end, and for more than a batch may have.
    pub(in super::super) fn rows_at(&self, positions: &[u32]) -> Result<Vec<ShardRows>> {
        check_keys(positions.len())?;
        let (map, ordinal) = (&self.lease.map, self.ordinal);
        let shards = map.shards_of(ordinal);
        let rising = positions.is_sorted_by(|a, b| a < b);
        let chosen = |rows: &ShardRows| ShardRows {
            repeats: rows.repeats || !rising,
            ..ShardRows::default()
        };
        let mut found: Vec<ShardRows> = self.lease.rows.iter().map(chosen).collect();
        let mut last = vec![0; found.len()];
        for (index, position) in positions.iter().enumerate() {
            let Some(shard) = shards.get(*position as usize) else {
                return Err(ArgumentError::Position {
                    position: *position,
                    index,
                    rows: shards.len(),
                }
                .into());
            };
            let s = usize::from(*shard);
            let range = map.range(s, ordinal);
            let rows = &self.lease.rows[s];
            last[s] = find(&rows.positions[range.clone()], *position, last[s]);
            found[s].slots.push(rows.slots[range.start + last[s]]);
            let index = narrow(index);
            found[s].positions.push(index);
        }
        Ok(found)
    }
}

/// Where a number stands that is there, in steps that double from where the last one was found.
fn find(rising: &[u32], number: u32, last: usize) -> usize {
    let from = match rising.get(last) {
        Some(before) if *before <= number => last,
        _ => 0,
    };
    let rest = &rising[from..];
    let mut step = 1;
    while rest.get(step).is_some_and(|n| *n <= number) {
        step *= 2;
    }
    let window = &rest[step / 2..step.min(rest.len())];
    from + step / 2 + window.partition_point(|n| *n < number)
}

impl Lease {
    /// Fills `out` with the rows of the parts, one part after the other.
    pub(super) fn read_parts_after_each_other(
        &self,
        out: &mut [f32],
        width: Width,
        what: &'static str,
    ) -> Result<()> {
        if self.map.len() == 1 {
            return self.gather(&mut [Output { ordinal: 0, out }], width, what);
        }
        let f32s = |ordinal: usize| self.map.keys_of(ordinal) * width(self.map.table(ordinal));
        let all = (0..self.map.len()).map(f32s).sum();
        check_length(what, all, out.len())?;
        let mut rest = out;
        let mut outputs = Vec::with_capacity(self.map.len());
        for index in 0..self.map.len() {
            let ordinal = self.map.ordinal(index);
            let (out, later) = rest.split_at_mut(f32s(ordinal));
            outputs.push(Output { ordinal, out });
            rest = later;
        }
        outputs.sort_unstable_by_key(|output| output.ordinal);
        self.gather(&mut outputs, width, what)
    }

    /// Copies the rows of some parts, by rising ordinal.
    pub(super) fn gather(
        &self,
        outputs: &mut [Output<'_>],
        width: Width,
        what: &'static str,
    ) -> Result<()> {
        let core = &self.leases.core;
        core.guarded(|| {
            core.check_process()?;
            for output in &*outputs {
                let expected =
                    self.map.keys_of(output.ordinal) * width(self.map.table(output.ordinal));
                check_length(what, expected, output.out.len())?;
            }
            self.gather_parts(outputs, width);
            Ok(())
        })
    }

    fn gather_parts(&self, outputs: &mut [Output<'_>], width: Width) {
        let (core, workers, map) = (&self.leases.core, &self.leases.workers, &self.map);
        let rows = outputs.iter().map(|o| map.keys_of(o.ordinal)).sum();
        if rows == 0 {
            return;
        }
        let count = core.shards.len();
        let mut targets = workers.arrays.take_targets(rows, count);
        for output in &mut *outputs {
            let (ordinal, out) = (output.ordinal, take(&mut output.out));
            let width = width(map.table(ordinal));
            split_out(out, width, map.shards_of(ordinal), &mut targets);
        }
        let targets: Vec<_> = targets.into_iter().map(Mutex::new).collect();
        workers.foreground().shards(count, rows, |s| {
            let mut targets = targets[s].lock().unwrap_or_else(PoisonError::into_inner);
            if targets.is_empty() {
                return;
            }
            let mut shard = core.shards[s].lock();
            let mut rest = &mut targets[..];
            for output in &*outputs {
                let range = map.range(s, output.ordinal);
                let (now, later) = rest.split_at_mut(range.len());
                let slots = &self.rows[s].slots[range];
                shard.cache.gather(slots, now);
                rest = later;
            }
            point("gather");
        });
        self.put_targets(targets);
        for output in outputs {
            let ordinal = output.ordinal;
            map.table(ordinal).note_read(map.keys_of(ordinal));
        }
    }

    fn put_targets(&self, targets: Vec<Mutex<Vec<&mut [f32]>>>) {
        for targets in targets {
            let targets = targets.into_inner().unwrap_or_else(PoisonError::into_inner);
            self.leases.workers.arrays.put_targets(targets);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_found_from_wherever_the_last_one_was() {
        let rising = [2, 3, 5, 8, 13, 21, 34, 55, 89];
        for last in 0..rising.len() {
            for (at, number) in rising.iter().enumerate() {
                assert_eq!(find(&rising, *number, last), at, "{number} from {last}");
            }
        }
        assert_eq!(find(&[7], 7, 0), 0);
    }
}
