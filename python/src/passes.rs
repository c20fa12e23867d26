//! The rows of a whole pass in Python's hands: on their way, and in memory until the pass ends.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hps::{KeyType, PassPart};
use numpy::{PyArray1, PyArrayMethods};
use pyo3::prelude::*;

use crate::arrays::{Keys, Out, Values};
use crate::asked::asked;
use crate::cell::{Cell, TableInfo};
use crate::config::key_type;
use crate::errors::refuse;
use crate::lease::seconds;
use crate::update::{PushReport, RowKind};
use crate::wait::{Awaited, lock, redeem, work};

/// A pass on its way.
#[pyclass(frozen, weakref, module = "hps")]
pub struct PassTicket {
    cell: Arc<Cell>,
    tables: Vec<Arc<TableInfo>>,
    /// None once it gave its pass, or was cancelled.
    inner: Mutex<Option<hps::PassTicket>>,
}

/// Keeps the rows of a pass in memory until it ends: by `with`, by `end()`, or when nothing refers to it
/// any more.
#[pyclass(frozen, weakref, module = "hps")]
pub struct Pass {
    /// Of the store, which stays open as long as this.
    cell: Arc<Cell>,
    /// By part.
    tables: Vec<Arc<TableInfo>>,
    report: Py<PassReport>,
    /// None once it has ended.
    inner: Mutex<Option<Arc<hps::Pass>>>,
}

/// What bringing a pass in came to.
#[pyclass(frozen, get_all, module = "hps")]
pub struct PassReport {
    /// Keys.
    keys: u64,
    /// Rows among them that were ever pushed and not removed since; others have no row on SSD.
    known: u64,
    /// Known rows that were in memory when their turn came; of a table with blocks those in one.
    hits: u64,
    /// Hits per known key, 0 to 1; 1 where none is known: nothing had to be read.
    hit_rate: f64,
    /// Rows that were read from SSD, in bytes of rows.
    bytes: u64,
    /// From the begin of the load to its end, waits for room included; not that for passes before.
    seconds: f64,
    /// The same by part, in their order.
    tables: Vec<Py<PassTable>>,
}

/// What bringing in one part of a pass came to.
#[pyclass(frozen, get_all, module = "hps")]
pub struct PassTable {
    /// The number of the table.
    id: u32,
    /// The name of the table.
    name: String,
    /// As in `PassReport`.
    keys: u64,
    /// As in `PassReport`.
    known: u64,
    /// As in `PassReport`.
    hits: u64,
    /// As in `PassReport`.
    hit_rate: f64,
    /// As in `PassReport`.
    bytes: u64,
    /// Whether its rows stay as a block when the pass ends.
    is_block: bool,
}

/// Keys of one table.
enum PassKeys<'py> {
    Array(Keys<'py>),
    /// A keyset file.
    File(PathBuf, KeyType),
}

impl<'py> PassKeys<'py> {
    /// Takes an array of keys, or an `hps.Keyset`.
    fn of(object: &Bound<'py, PyAny>, what: &str) -> PyResult<PassKeys<'py>> {
        let py = object.py();
        let keyset = py.import("hps._passes")?.getattr("Keyset")?;
        if !object.is_instance(&keyset)? {
            return Ok(PassKeys::Array(Keys::of(object, what)?));
        }
        let dtype: String = object.getattr("dtype")?.extract()?;
        let path = object.getattr("path")?.extract()?;
        Ok(PassKeys::File(path, key_type(py, &dtype)?))
    }

    fn part(&self, table: &TableInfo) -> PassPart<'_> {
        match self {
            PassKeys::Array(keys) => PassPart::new(table.id, keys.as_slice()),
            PassKeys::File(path, key_type) => PassPart::from_file(table.id, path, *key_type),
        }
    }
}

fn spent(py: Python<'_>) -> PyErr {
    let message = "the ticket has given its pass, or was cancelled";
    refuse(py, "Closed", message)
}

impl Awaited for hps::PassTicket {
    type Given = hps::Pass;

    fn wait(self) -> hps::Result<hps::Pass> {
        hps::PassTicket::wait(self)
    }

    fn wait_for(&self, limit: Duration) -> hps::Result<hps::Pass> {
        hps::PassTicket::wait_for(self, limit)
    }
}

impl PassTicket {
    /// Begins a pass.
    pub fn begin(
        cell: &Arc<Cell>,
        tables: &Bound<'_, PyAny>,
        keys: &Bound<'_, PyAny>,
    ) -> PyResult<PassTicket> {
        let py = tables.py();
        let store = cell.store(py)?;
        let (_, tables, keys) = asked(cell, tables, keys, PassKeys::of)?;
        let pairs = tables.iter().zip(&keys);
        let parts: Vec<PassPart<'_>> = pairs.map(|(table, keys)| keys.part(table)).collect();
        let ticket = work(py, || store.begin_pass(&parts))?;
        Ok(PassTicket {
            cell: Arc::clone(cell),
            tables,
            inner: Mutex::new(Some(ticket)),
        })
    }

    fn take(&self) -> Option<hps::PassTicket> {
        lock(&self.inner).take()
    }

    fn pass(&self, py: Python<'_>, timeout: Option<Duration>) -> PyResult<Pass> {
        self.cell.store(py)?;
        let ticket = self.take().ok_or_else(|| spent(py))?;
        let pass = redeem(py, ticket, timeout, &self.inner)?;
        Ok(Pass {
            cell: Arc::clone(&self.cell),
            tables: self.tables.clone(),
            report: Py::new(py, PassReport::of(py, pass.report())?)?,
            inner: Mutex::new(Some(Arc::new(pass))),
        })
    }
}

impl Pass {
    fn pass(&self, py: Python<'_>) -> PyResult<Arc<hps::Pass>> {
        let pass = lock(&self.inner).clone();
        pass.ok_or_else(|| refuse(py, "Closed", "the pass has ended; begin another"))
    }

    /// The table of a part.
    fn table(&self, py: Python<'_>, part: usize) -> PyResult<&TableInfo> {
        let table = self.tables.get(part).map(Arc::as_ref);
        table.ok_or_else(|| {
            let message = format!("part {part} of a pass that has {}", self.tables.len());
            refuse(py, "InvalidArgument", &message)
        })
    }
}

#[pymethods]
impl PassTicket {
    /// Waits until the rows are in memory and gives the pass; `Deadline` after `timeout` seconds, and the
    /// ticket stays valid. Without one it raises `OverBudget` at once where the pass has no room beside
    /// what others hold.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Pass> {
        let timeout = seconds(py, timeout)?;
        self.pass(py, timeout)
    }

    /// Whether `wait` returns at once.
    #[getter]
    fn ready(&self, py: Python<'_>) -> PyResult<bool> {
        self.cell.store(py)?;
        // The lock is free again before Python runs.
        let ready = lock(&self.inner).as_ref().map(hps::PassTicket::is_ready);
        ready.ok_or_else(|| spent(py))
    }

    /// Gives the pass up: its rows may leave memory.
    fn cancel(&self, py: Python<'_>) {
        if let Some(ticket) = self.take() {
            py.detach(|| drop(ticket));
        }
    }

    fn __repr__(&self) -> String {
        let name = |table: &Arc<TableInfo>| table.descriptor.name.clone();
        let names: Vec<String> = self.tables.iter().map(name).collect();
        format!("PassTicket({})", names.join(", "))
    }
}

impl Drop for PassTicket {
    fn drop(&mut self) {
        Python::try_attach(|py| self.cancel(py));
    }
}

#[pymethods]
impl Pass {
    /// What bringing it in came to: `PassReport`.
    #[getter]
    fn report(&self, py: Python<'_>) -> Py<PassReport> {
        self.report.clone_ref(py)
    }

    /// The rows of one part as they are now, in the order of its keys, from key number `first` on; no key
    /// is looked up. `kind`: "weights" `[n, dim]` or "rows" `[n, row_f32s]`. `out`: an array for `n` of
    /// them, which is filled and given back; without one, those of all keys that are left.
    #[pyo3(signature = (part = 0, *, kind = "weights", first = 0, out = None))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        part: usize,
        kind: &str,
        first: usize,
        out: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // A store that is closed, or that is the parent's, says so; it is not closed meanwhile.
        let _open = self.cell.store(py)?;
        let (pass, kind) = (self.pass(py)?, RowKind::of(py, kind)?);
        let width = kind.width(self.table(py, part)?);
        let out = match out {
            Some(out) => out,
            None => {
                let rows = pass.len_of(part).saturating_sub(first);
                let all = PyArray1::<f32>::zeros(py, rows * width, false);
                all.reshape([rows, width])?.into_any()
            }
        };
        let rows = out.len()?;
        let mut place = Out::of(&out, &[rows, width])?;
        let slice = place.as_slice();
        // The pass may have ended meanwhile: then its rows are let go of here, without the GIL.
        work(py, move || match kind {
            RowKind::Rows => pass.read_rows(part, first, slice),
            RowKind::Weights => pass.read(part, first, slice),
        })?;
        drop(place);
        Ok(out)
    }

    /// Writes rows of one part, whatever they held, in the order of its keys, from key number `first` on:
    /// as `Store.put` of these keys, but they are not looked up. `values`: `[n, dim]`, or `[n, row_f32s]`
    /// with `kind="rows"`; of a key that is there twice the last row counts.
    #[pyo3(signature = (values, part = 0, *, kind = "weights", first = 0, verbatim = false))]
    fn put(
        &self,
        py: Python<'_>,
        values: &Bound<'_, PyAny>,
        part: usize,
        kind: &str,
        first: usize,
        verbatim: bool,
    ) -> PyResult<PushReport> {
        let _open = self.cell.store(py)?;
        let (pass, row_kind) = (self.pass(py)?, RowKind::of(py, kind)?);
        let width = row_kind.width(self.table(py, part)?);
        let values = Values::of(values, kind, &[values.len()?, width])?;
        let rows = row_kind.put(values.as_slice(), verbatim);
        let report = work(py, move || pass.put(part, first, rows))?;
        Ok(PushReport::new(report.rows, report.non_finite))
    }

    /// Ends the pass, and gives its report: its rows may leave memory, but for those of blocks.
    fn end(&self, py: Python<'_>) -> Py<PassReport> {
        let pass = lock(&self.inner).take();
        if let Some(pass) = pass {
            // In a forked child this does nothing.
            py.detach(|| drop(pass));
        }
        self.report(py)
    }

    /// Whether it has ended.
    #[getter]
    fn ended(&self) -> bool {
        lock(&self.inner).is_none()
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _class: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) {
        self.end(py);
    }

    fn __repr__(&self) -> String {
        let PassReport { keys, hit_rate, .. } = self.report.get();
        let end = if self.ended() { ", ended" } else { "" };
        format!("Pass({keys} keys, hit_rate={hit_rate:.3}{end})")
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        Python::try_attach(|py| self.end(py));
    }
}

impl PassReport {
    fn of(py: Python<'_>, report: &hps::PassReport) -> PyResult<PassReport> {
        let table = |table: &hps::PassTable| Py::new(py, PassTable::of(table));
        Ok(PassReport {
            keys: report.keys,
            known: report.known,
            hits: report.hits,
            hit_rate: report.hit_rate(),
            bytes: report.bytes,
            seconds: report.seconds,
            tables: report.tables.iter().map(table).collect::<PyResult<_>>()?,
        })
    }
}

#[pymethods]
impl PassReport {
    fn __repr__(&self) -> String {
        let PassReport {
            keys,
            known,
            hits,
            hit_rate,
            bytes,
            seconds,
            tables,
        } = self;
        let tables: Vec<String> = tables.iter().map(|table| table.get().__repr__()).collect();
        format!(
            "PassReport(keys={keys}, known={known}, hits={hits}, hit_rate={hit_rate:.3}, bytes={bytes}, \
             seconds={seconds:.3}, tables=[{}])",
            tables.join(", ")
        )
    }
}

impl PassTable {
    fn of(table: &hps::PassTable) -> PassTable {
        PassTable {
            id: table.table.0,
            name: table.name.clone(),
            keys: table.keys,
            known: table.known,
            hits: table.hits,
            hit_rate: table.hit_rate(),
            bytes: table.bytes,
            is_block: table.is_block,
        }
    }
}

#[pymethods]
impl PassTable {
    fn __repr__(&self) -> String {
        let PassTable {
            name,
            keys,
            known,
            hits,
            hit_rate,
            bytes,
            is_block,
            ..
        } = self;
        let is_block = if *is_block { "True" } else { "False" };
        format!(
            "PassTable(name={name:?}, keys={keys}, known={known}, hits={hits}, hit_rate={hit_rate:.3}, \
             bytes={bytes}, is_block={is_block})"
        )
    }
}
