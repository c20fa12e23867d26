//! What a delta is, in Python's hands.

use std::path::PathBuf;
use std::sync::Arc;

use hps::{CheckpointId, DeltaBase, DeltaInfo};
use pyo3::prelude::*;

use crate::cell::Cell;
use crate::errors::refuse;
use crate::rows::asked_or_last;
use crate::wait::long_work;

/// A delta that was written, or applied.
#[pyclass(frozen, get_all, module = "hps")]
pub struct Delta {
    /// Deltas before it in its chain.
    sequence: u64,
    /// The checkpoint that the changes come after; 0: they are all rows.
    since: u64,
    /// The checkpoint that they lead to.
    until: u64,
    /// The trainer's step.
    step: u64,
    /// Rows that changed.
    rows: u64,
    /// Keys that were removed.
    removed: u64,
    /// Whether it was written or applied now; applied before, otherwise.
    is_new: bool,
}

impl Delta {
    /// Writes what changed up to a checkpoint into a folder: since a delta, since a checkpoint, or everything.
    pub fn write(
        py: Python<'_>,
        cell: &Cell,
        path: PathBuf,
        id: Option<u64>,
        base: (Option<PathBuf>, Option<u64>),
    ) -> PyResult<Delta> {
        if let (Some(_), Some(_)) = base {
            let message = "write_delta: after and since came, one of them is needed at most";
            return Err(refuse(py, "InvalidArgument", message));
        }
        let id = CheckpointId(asked_or_last(py, cell, id, "changes")?);
        let store = cell.store(py)?.into_shared();
        let info = long_work(py, move || {
            let base = match &base {
                (Some(folder), _) => DeltaBase::Delta(folder),
                (None, Some(since)) if *since > 0 => DeltaBase::Checkpoint(CheckpointId(*since)),
                _ => DeltaBase::Nothing,
            };
            store.write_delta(id, &path, base)
        })?;
        Ok(Delta::of(&info, true))
    }

    /// Applies the one in a folder; tables may come with it.
    pub fn apply(py: Python<'_>, cell: &Cell, path: PathBuf) -> PyResult<Delta> {
        let store = cell.store(py)?.into_shared();
        let applying = Arc::clone(&store);
        let report = long_work(py, move || applying.apply_delta(&path))?;
        cell.tables_changed(&store, |_| None);
        Ok(Delta::of(&report.delta, report.is_new))
    }

    fn of(info: &DeltaInfo, is_new: bool) -> Delta {
        Delta {
            sequence: info.sequence,
            since: info.since.0,
            until: info.until.0,
            step: info.step,
            rows: info.rows,
            removed: info.removed,
            is_new,
        }
    }
}

#[pymethods]
impl Delta {
    fn __repr__(&self) -> String {
        let Delta {
            sequence,
            since,
            until,
            rows,
            removed,
            ..
        } = self;
        format!(
            "Delta(sequence={sequence}, since={since}, until={until}, rows={rows}, removed={removed})"
        )
    }
}
