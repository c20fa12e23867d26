//! The native part of the Python package `hps`: the store, with arrays of NumPy in and out.
//!
//! - The GIL is released in all work; what is read or written meanwhile are arrays that the caller
//!   or a lease keeps alive.
//! - A wait that may be long is done beside the caller's thread, which looks for signals meanwhile.
//! - A panic becomes `hps.InternalError`, never a crash.
//! - Nothing is locked while Python runs.

mod arrays;
mod asked;
mod cell;
mod checkpoint;
mod config;
mod delta;
mod errors;
mod lease;
mod log;
mod passes;
mod rows;
mod stats;
mod store;
mod text_metrics;
mod timing;
mod update;
mod wait;

/// The module `hps._hps`.
#[pyo3::pymodule]
mod _hps {
    /// The version of the package.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
    #[pymodule_export]
    use crate::checkpoint::{Checkpoint, CheckpointTicket, Hold};
    #[pymodule_export]
    use crate::delta::Delta;
    #[pymodule_export]
    use crate::lease::{Lease, Ticket};
    #[pymodule_export]
    use crate::log::{drain_log, set_log_level};
    #[pymodule_export]
    use crate::passes::{Pass, PassReport, PassTable, PassTicket};
    #[pymodule_export]
    use crate::rows::RowChunks;
    #[pymodule_export]
    use crate::store::{Store, open};
    #[pymodule_export]
    use crate::timing::time_rust_calls;
    #[pymodule_export]
    use crate::update::PushReport;
}
