//! How are the rows of a checkpoint walked over by several threads, whatever is made of them?
//!
//! - Each thread takes ranges of mix64 until none is left.

use std::ops::RangeInclusive;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use hps::{
    CheckpointId, Error, Incremental, Row, RowIter, Store, TableDescriptor, TableId, part_range,
};

use crate::models::columns::columns;
use crate::models::crew::Crew;

/// Ranges for each thread: the last ones to end are not long alone.
const RANGES_PER_THREAD: usize = 4;
/// Rows between two looks at whether to stop, and bytes.
const LOOK_ROWS: usize = 1024;
const LOOK_BYTES: usize = 512 << 10;

/// What was seen of the rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Written {
    /// Rows.
    pub rows: u64,
    /// Those with a NaN or an infinity.
    pub non_finite: u64,
    /// Those whose key is negative as an int64.
    pub negative: u64,
    /// The least and the greatest step count of Adam.
    pub steps: Option<(f32, f32)>,
}

impl Written {
    pub const NOTHING: Written = Written {
        rows: 0,
        non_finite: 0,
        negative: 0,
        steps: None,
    };

    fn add(&mut self, other: &Written) {
        self.rows += other.rows;
        self.non_finite += other.non_finite;
        self.negative += other.negative;
        if let Some((low, high)) = other.steps {
            let (least, greatest) = self.steps.unwrap_or((low, high));
            self.steps = Some((least.min(low), greatest.max(high)));
        }
    }
}

/// What is written.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    /// Only what changed since then.
    pub since: Option<CheckpointId>,
    pub checkpoint: CheckpointId,
    pub table: TableId,
}

/// A walk over all rows that are asked for.
pub struct Tour<'a> {
    store: &'a Store,
    scope: Scope,
    ranges: usize,
    /// Bytes that a row has where it is written.
    row_bytes: usize,
    /// Words of a row that are f32s.
    numbers: usize,
    /// Adam's step count.
    steps: Option<usize>,
    next_range: AtomicUsize,
    /// What was seen of the rows, and the keys that were removed.
    seen: Mutex<(Written, Vec<u64>)>,
}

impl<'a> Tour<'a> {
    /// Nothing is walked over yet; so many threads will.
    #[must_use]
    pub fn new(
        store: &'a Store,
        scope: Scope,
        table: &TableDescriptor,
        row_bytes: usize,
        threads: usize,
    ) -> Tour<'a> {
        let behind = columns(table);
        let numbers = behind.iter().find(|c| c.is_integer).map(|c| c.begin);
        Tour {
            store,
            scope,
            ranges: threads * if threads == 1 { 1 } else { RANGES_PER_THREAD },
            row_bytes,
            numbers: numbers.unwrap_or(table.row_f32s()),
            steps: behind.iter().find(|c| c.name == "t").map(|c| c.begin),
            next_range: AtomicUsize::new(0),
            seen: Mutex::new((Written::NOTHING, Vec::new())),
        }
    }

    /// Gives rows until none is left: the work of one thread. Removed keys are kept.
    ///
    /// # Errors
    /// What the store says, and what `take` does; `Cancelled`.
    pub fn each(
        &self,
        crew: &Crew<'_>,
        mut take: impl FnMut(&Row<'_>) -> Result<()>,
    ) -> Result<()> {
        let look_rows = (LOOK_BYTES / self.row_bytes).clamp(1, LOOK_ROWS);
        let (mut seen, mut new) = (Written::NOTHING, 0);
        let mut removed = Vec::new();
        loop {
            let range = self.next_range.fetch_add(1, Ordering::Relaxed);
            if range >= self.ranges {
                break;
            }
            let mut walk = Walk::open(self.store, &self.scope, part_range(range, self.ranges))?;
            while let Some(step) = walk.next()? {
                match step {
                    Step::Row(row) => {
                        self.see(&row, &mut seen);
                        take(&row)?;
                        new += 1;
                    }
                    Step::Removed(key) => removed.push(key),
                }
                if new == look_rows {
                    crew.did((new * self.row_bytes) as u64)?;
                    new = 0;
                }
            }
        }
        let mut all = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        all.0.add(&seen);
        all.1.append(&mut removed);
        Ok(())
    }

    fn see(&self, row: &Row<'_>, seen: &mut Written) {
        let finite = row.values[..self.numbers].iter().map(|v| v.is_finite());
        let is_finite = finite.fold(true, |all, one| all & one);
        seen.add(&Written {
            rows: 1,
            non_finite: u64::from(!is_finite),
            negative: row.key >> 63,
            steps: self.steps.map(|at| (row.values[at], row.values[at])),
        });
    }

    /// What was seen of all rows, and the removed keys, where only changes were asked for.
    #[must_use]
    pub fn finish(self) -> (Written, Option<Vec<u64>>) {
        let seen = self.seen.into_inner();
        let (written, removed) = seen.unwrap_or_else(PoisonError::into_inner);
        (written, self.scope.since.map(|_| removed))
    }
}

/// The rows that are written, or the changes.
enum Walk {
    Rows(RowIter),
    Changes(Incremental),
}

enum Step<'a> {
    Row(Row<'a>),
    Removed(u64),
}

impl Walk {
    fn open(store: &Store, scope: &Scope, range: RangeInclusive<u64>) -> Result<Walk, Error> {
        let (checkpoint, table) = (scope.checkpoint, scope.table);
        Ok(match scope.since {
            None => Walk::Rows(store.rows_of(checkpoint, table, range)?),
            Some(since) => Walk::Changes(store.incremental_of(since, checkpoint, table, range)?),
        })
    }

    fn next(&mut self) -> Result<Option<Step<'_>>, Error> {
        Ok(match self {
            Walk::Rows(rows) => rows.next_row()?.map(Step::Row),
            Walk::Changes(changes) => match changes.next_change()? {
                Some(hps::Change::Row(row)) => Some(Step::Row(row)),
                Some(hps::Change::Removed { key, .. }) => Some(Step::Removed(key)),
                _ => None,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_threads_saw_adds_up() {
        let mut all = Written::NOTHING;
        for (rows, steps) in [(1, None), (2, Some((4.0, 4.0))), (3, Some((1.0, 9.0)))] {
            all.add(&Written {
                rows,
                non_finite: 1,
                steps,
                ..Written::NOTHING
            });
        }
        assert_eq!((all.rows, all.non_finite), (6, 3));
        assert_eq!(all.steps, Some((1.0, 9.0)));
    }
}
