//! Checkpoints in Python's hands: what they are, how one is waited for, how one is held.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use hps::{CheckpointId, CheckpointInfo};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::cell::Cell;
use crate::errors::{raise, refuse};
use crate::lease::seconds;
use crate::wait::{NotYet, lock, wait, work};

/// A checkpoint that the store retains.
#[pyclass(frozen, module = "hps")]
pub struct Checkpoint {
    cell: Arc<Cell>,
    info: CheckpointInfo,
}

/// A checkpoint that is being written.
#[pyclass(frozen, module = "hps")]
pub struct CheckpointTicket {
    cell: Arc<Cell>,
    inner: Mutex<Inner>,
}

/// Where the store's ticket is.
enum Inner {
    Here(hps::CheckpointTicket),
    /// A call waits by it.
    Waiting,
    /// It has told how its checkpoint ended.
    Told,
}

/// Keeps a checkpoint, whatever `retain_checkpoints` says, until it is released.
#[pyclass(frozen, module = "hps")]
pub struct Hold(Mutex<Option<hps::Hold>>);

impl Checkpoint {
    pub fn new(cell: &Arc<Cell>, info: CheckpointInfo) -> Checkpoint {
        Checkpoint {
            cell: Arc::clone(cell),
            info,
        }
    }
}

#[pymethods]
impl Checkpoint {
    /// Its id, never used again.
    #[getter]
    fn id(&self) -> u64 {
        self.info.id.0
    }

    /// The trainer's step.
    #[getter]
    fn step(&self) -> u64 {
        self.info.step
    }

    /// When it was made, in seconds since 1970.
    #[getter]
    fn unix_seconds(&self) -> u64 {
        self.info.unix_seconds
    }

    /// Length of its meta.
    #[getter]
    fn meta_bytes(&self) -> u64 {
        self.info.meta_bytes
    }

    /// What the trainer stored with it; read, and verified, each time.
    #[getter]
    fn meta<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let store = self.cell.store(py)?;
        let id = self.info.id;
        let meta = work(py, || store.checkpoint_meta(id))?;
        Ok(PyBytes::new(py, &meta))
    }

    fn __repr__(&self) -> String {
        let CheckpointInfo {
            id,
            step,
            meta_bytes,
            ..
        } = &self.info;
        format!(
            "Checkpoint(id={}, step={step}, meta_bytes={meta_bytes})",
            id.0
        )
    }
}

impl CheckpointTicket {
    pub fn new(cell: &Arc<Cell>, ticket: hps::CheckpointTicket) -> CheckpointTicket {
        CheckpointTicket {
            cell: Arc::clone(cell),
            inner: Mutex::new(Inner::Here(ticket)),
        }
    }

    /// Waits for durability. After a signal the checkpoint goes on.
    pub fn wait_for(&self, py: Python<'_>, timeout: Option<Duration>) -> PyResult<Checkpoint> {
        let mut inner = lock(&self.inner);
        let ticket = match std::mem::replace(&mut *inner, Inner::Waiting) {
            Inner::Here(ticket) => ticket,
            Inner::Waiting => {
                drop(inner);
                let message = "another call waits by the ticket: wait once";
                return Err(refuse(py, "InvalidArgument", message));
            }
            Inner::Told => {
                *inner = Inner::Told;
                drop(inner);
                let message = "the ticket has told how its checkpoint ended";
                return Err(refuse(py, "Closed", message));
            }
        };
        drop(inner);
        let told = wait(py, timeout, |limit| ticket.wait_for(limit));
        let (inner, result) = match told {
            Ok(Ok(info)) => (Inner::Told, Ok(Checkpoint::new(&self.cell, info))),
            Ok(Err(error)) => (Inner::Told, Err(raise(py, &error))),
            Err(NotYet(why)) => (Inner::Here(ticket), Err(why)),
        };
        *lock(&self.inner) = inner;
        result
    }
}

#[pymethods]
impl CheckpointTicket {
    /// Waits until the checkpoint survives a crash; `Deadline` after `timeout` seconds, and the ticket
    /// stays valid.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Checkpoint> {
        let timeout = seconds(py, timeout)?;
        self.wait_for(py, timeout)
    }

    /// Whether `wait` returns at once.
    #[getter]
    fn done(&self) -> bool {
        match &*lock(&self.inner) {
            Inner::Here(ticket) => ticket.is_done(),
            Inner::Waiting => false,
            Inner::Told => true,
        }
    }
}

impl Hold {
    pub fn of(py: Python<'_>, cell: &Arc<Cell>, id: u64) -> PyResult<Hold> {
        let store = cell.store(py)?;
        let hold = work(py, || store.hold(CheckpointId(id)))?;
        Ok(Hold(Mutex::new(Some(hold))))
    }

    fn inner(&self) -> std::sync::MutexGuard<'_, Option<hps::Hold>> {
        lock(&self.0)
    }
}

#[pymethods]
impl Hold {
    /// The checkpoint's id; None once it was released.
    #[getter]
    fn checkpoint(&self) -> Option<u64> {
        self.inner().as_ref().map(|hold| hold.checkpoint().0)
    }

    /// Lets the checkpoint go.
    fn release(&self) {
        let hold = self.inner().take();
        drop(hold);
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        _class: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) {
        self.release();
    }
}
