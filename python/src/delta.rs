//! What a delta is, in Python's hands.

use hps::DeltaInfo;
use pyo3::prelude::*;

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
    pub fn of(info: &DeltaInfo, is_new: bool) -> Delta {
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
