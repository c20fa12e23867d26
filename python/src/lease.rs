//! The rows of a batch in Python's hands: resident until released, and gathered into arrays.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use hps::{ArgumentError, PullPart, Store};
use numpy::{PyArray1, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PySlice};

use crate::arrays::Out;
use crate::asked::{Asked, Part, list_of, shaped};
use crate::cell::Cell;
use crate::config::state_columns;
use crate::errors::{raise, refuse};
use crate::update::{Changes, How, PushReport};
use crate::wait::{Awaited, lock, redeem, work};

/// Keeps the rows of a batch in memory until it is released: by `with`, by `release()`, or when nothing
/// refers to it any more.
#[pyclass(frozen, weakref, module = "hps")]
pub struct Lease {
    cell: Arc<Cell>,
    parts: Vec<Part>,
    is_list: bool,
    /// None once it was released.
    inner: Mutex<Option<Arc<hps::Lease>>>,
    rows: Mutex<Rows>,
}

/// The weights of a lease as arrays.
#[derive(Default)]
struct Rows {
    /// What the views are of, if it is this package's.
    base: Option<Py<PyArray1<f32>>>,
    /// One a part; none before they are gathered.
    views: Vec<Py<PyAny>>,
}

/// Rows that are on their way into memory.
#[pyclass(frozen, weakref, module = "hps")]
pub struct Ticket {
    cell: Arc<Cell>,
    parts: Vec<Part>,
    is_list: bool,
    /// None once it gave its lease, or was cancelled.
    inner: Mutex<Option<hps::Ticket>>,
}

/// A view for each part of a buffer that holds one after the other.
fn views(base: &Bound<'_, PyArray1<f32>>, parts: &[Part]) -> PyResult<Vec<Py<PyAny>>> {
    let py = base.py();
    let mut begin = 0;
    let view = |part: &Part| {
        let end = begin + part.weights();
        let bounds = |at: usize| isize::try_from(at).unwrap_or(isize::MAX);
        let slice = base.get_item(PySlice::new(py, bounds(begin), bounds(end), 1))?;
        begin = end;
        let slice = slice.cast_into::<PyArray1<f32>>()?;
        let view = slice.reshape([part.rows, part.table.dim()])?;
        Ok(view.into_any().unbind())
    };
    parts.iter().map(view).collect()
}

/// One slice for each part of a buffer.
fn split<'a>(mut all: &'a mut [f32], parts: &[Part]) -> Vec<&'a mut [f32]> {
    let piece = |part: &Part| {
        let (piece, rest) = std::mem::take(&mut all).split_at_mut(part.weights());
        all = rest;
        piece
    };
    parts.iter().map(piece).collect()
}

fn closed(py: Python<'_>, what: &str) -> PyErr {
    refuse(py, "Closed", what)
}

impl Lease {
    /// Pulls rows into a buffer, or into arrays of the caller.
    pub fn pull(
        py: Python<'_>,
        cell: &Arc<Cell>,
        asked: &Asked<'_>,
        out: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Lease> {
        let parts = asked.parts();
        let store = cell.store(py)?;
        let (lease, rows) = match out {
            Some(out) => {
                let arrays = match asked.is_list {
                    true => list_of(out, "out", parts.len())?,
                    false => vec![out.clone()],
                };
                let mut outs = outs(&arrays, &parts)?;
                let slices = outs.iter_mut().map(Out::as_slice).collect();
                let lease = pull(py, &store, asked, slices)?;
                let views = arrays.into_iter().map(Bound::unbind).collect();
                (lease, Rows { base: None, views })
            }
            None => {
                let base = cell.pool.take(py, parts.iter().map(Part::weights).sum());
                let pulled = {
                    let mut writing = base.readwrite();
                    let all = writing.as_slice_mut()?;
                    pull(py, &store, asked, split(all, &parts))
                };
                match pulled {
                    Ok(lease) => {
                        let views = views(&base, &parts)?;
                        let base = Some(base.unbind());
                        (lease, Rows { base, views })
                    }
                    Err(error) => {
                        cell.pool.put(py, base.unbind());
                        return Err(error);
                    }
                }
            }
        };
        Ok(Lease {
            cell: Arc::clone(cell),
            parts,
            is_list: asked.is_list,
            inner: Mutex::new(Some(Arc::new(lease))),
            rows: Mutex::new(rows),
        })
    }

    /// A lease whose values nobody has asked for.
    fn unread(cell: &Arc<Cell>, parts: Vec<Part>, is_list: bool, lease: hps::Lease) -> Lease {
        Lease {
            cell: Arc::clone(cell),
            parts,
            is_list,
            inner: Mutex::new(Some(Arc::new(lease))),
            rows: Mutex::default(),
        }
    }

    fn lease(&self, py: Python<'_>) -> PyResult<Arc<hps::Lease>> {
        // A store that is closed, or that is the parent's, says so.
        self.cell.store(py)?;
        let lease = lock(&self.inner).clone();
        lease.ok_or_else(|| closed(py, "the lease was released; pull again"))
    }

    /// The weights as they are now, in a buffer of their own.
    fn gather<'py>(
        &self,
        py: Python<'py>,
        lease: &Arc<hps::Lease>,
    ) -> PyResult<Bound<'py, PyArray1<f32>>> {
        let length = self.parts.iter().map(Part::weights).sum();
        let base = self.cell.pool.take(py, length);
        {
            let mut writing = base.readwrite();
            let all = &mut writing.as_slice_mut()?[..length];
            work(py, || lease.read(all))?;
        }
        Ok(base)
    }

    /// Whole rows, part by part.
    fn whole_rows<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let lease = self.lease(py)?;
        let mut all = Vec::with_capacity(self.parts.len());
        for (index, part) in self.parts.iter().enumerate() {
            let width = part.table.row_f32s();
            let rows = PyArray1::zeros(py, part.rows * width, false);
            {
                let mut writing = rows.readwrite();
                let out = writing.as_slice_mut()?;
                work(py, || match lease.parts().nth(index) {
                    Some(part) => part.read_rows(out),
                    None => Ok(()),
                })?;
            }
            all.push(rows.reshape([part.rows, width])?.into_any());
        }
        Ok(all)
    }

    fn push_changes<'py>(
        &self,
        py: Python<'py>,
        values: &Bound<'py, PyAny>,
        how: &How<'_, 'py>,
    ) -> PyResult<Vec<PushReport>> {
        let store = self.cell.store(py)?;
        let lease = self.lease(py)?;
        let changes = Changes::of(&self.parts, self.is_list, values, how)?;
        let parts = changes.parts(&self.parts);
        let reports = work(py, || store.push_many(&lease, &parts))?;
        Ok(reports.into_iter().map(PushReport::of).collect())
    }
}

/// Checks arrays that rows are to be copied to.
fn outs<'py>(arrays: &[Bound<'py, PyAny>], parts: &[Part]) -> PyResult<Vec<Out<'py>>> {
    let out =
        |(array, part): (&Bound<'py, PyAny>, &Part)| Out::of(array, &[part.rows, part.table.dim()]);
    arrays.iter().zip(parts).map(out).collect()
}

fn pull(
    py: Python<'_>,
    store: &Store,
    asked: &Asked<'_>,
    outs: Vec<&mut [f32]>,
) -> PyResult<hps::Lease> {
    let keys = asked.keys.iter().map(|keys| keys.as_slice());
    let ids = asked.tables.iter().map(|table| table.id);
    let zipped = ids.zip(keys).zip(outs);
    let mut parts: Vec<PullPart<'_>> = zipped
        .map(|((id, keys), out)| PullPart::new(id, keys, out))
        .collect();
    work(py, || store.pull_many(&mut parts))
}

#[pymethods]
impl Lease {
    /// The weights `[n, dim]`, float32, in the order of the keys, as they were when the batch was pulled
    /// or, of a prefetch, when this was first asked; of several tables, a list.
    #[getter]
    fn rows(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let lease = self.lease(py)?;
        let known: Vec<_> = lock(&self.rows)
            .views
            .iter()
            .map(|view| view.clone_ref(py))
            .collect();
        if !known.is_empty() {
            return shaped(py, self.is_list, known);
        }
        let base = self.gather(py, &lease)?;
        let made = views(&base, &self.parts)?;
        let copies = made.iter().map(|view| view.clone_ref(py)).collect();
        let base = Some(base.unbind());
        *lock(&self.rows) = Rows { base, views: made };
        shaped(py, self.is_list, copies)
    }

    /// Gathers the weights as they are now: into `out` and gives it, or into a new array.
    #[pyo3(signature = (out = None))]
    fn read(&self, py: Python<'_>, out: Option<&Bound<'_, PyAny>>) -> PyResult<Py<PyAny>> {
        let lease = self.lease(py)?;
        let Some(out) = out else {
            let base = self.gather(py, &lease)?;
            return shaped(py, self.is_list, views(&base, &self.parts)?);
        };
        let arrays = match self.is_list {
            true => list_of(out, "out", self.parts.len())?,
            false => vec![out.clone()],
        };
        let mut outs = outs(&arrays, &self.parts)?;
        let mut slices: Vec<&mut [f32]> = outs.iter_mut().map(Out::as_slice).collect();
        work(py, || lease.read_many(&mut slices))?;
        Ok(out.clone().unbind())
    }

    /// Whole rows as they are now, `[n, row_f32s]`: weights, optimizer state, metadata (u32 bits).
    fn read_rows(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let rows = self.whole_rows(py)?;
        shaped(
            py,
            self.is_list,
            rows.into_iter().map(Bound::unbind).collect(),
        )
    }

    /// The optimizer state and the metadata as they are now, by column.
    fn state(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let all = self.whole_rows(py)?;
        let mut states = Vec::with_capacity(all.len());
        for (rows, part) in all.iter().zip(&self.parts) {
            let state = PyDict::new(py);
            for column in state_columns(&part.table.descriptor) {
                state.set_item(column.name, column.of(rows)?)?;
            }
            states.push(state.into_any().unbind());
        }
        shaped(py, self.is_list, states)
    }

    /// Changes the rows: by gradients, with the table's learning rate unless `lr` is given, or by `kind`.
    #[pyo3(signature = (values, lr = None, *, kind = "gradients", at = None, shows = None, clicks = None, step = 0, verbatim = false))]
    #[expect(clippy::too_many_arguments, reason = "they have names in Python")]
    pub fn push<'py>(
        &self,
        py: Python<'py>,
        values: &Bound<'py, PyAny>,
        lr: Option<&Bound<'py, PyAny>>,
        kind: &str,
        at: Option<&Bound<'py, PyAny>>,
        shows: Option<&Bound<'py, PyAny>>,
        clicks: Option<&Bound<'py, PyAny>>,
        step: u32,
        verbatim: bool,
    ) -> PyResult<Py<PyAny>> {
        let how = How {
            lr,
            kind,
            at,
            shows,
            clicks,
            step,
            verbatim,
        };
        let reports = self.push_changes(py, values, &how)?;
        let report = |report| Ok(Py::new(py, report)?.into_any());
        shaped(
            py,
            self.is_list,
            reports.into_iter().map(report).collect::<PyResult<_>>()?,
        )
    }

    /// Lets the rows go; what `rows` gave stays as it is.
    pub fn release(&self, py: Python<'_>) {
        let lease = lock(&self.inner).take();
        if let Some(lease) = lease {
            // In a forked child this does nothing.
            py.detach(|| drop(lease));
        }
        let Rows { base, views } = std::mem::take(&mut *lock(&self.rows));
        drop(views);
        if let Some(base) = base {
            self.cell.pool.put(py, base);
        }
    }

    /// Whether it was released.
    #[getter]
    fn released(&self) -> bool {
        lock(&self.inner).is_none()
    }

    /// Its number, as `OverBudget.leases` names it.
    #[getter]
    fn id(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.lease(py)?.id())
    }

    /// The name of the table; of several, a list.
    #[getter]
    fn table(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let name = |part: &Part| {
            let name = part.table.descriptor.name.as_str().into_pyobject(py)?;
            Ok(name.into_any().unbind())
        };
        shaped(
            py,
            self.is_list,
            self.parts.iter().map(name).collect::<PyResult<_>>()?,
        )
    }

    fn __len__(&self) -> usize {
        self.parts.iter().map(|part| part.rows).sum()
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
        self.release(py);
    }

    fn __repr__(&self) -> String {
        let names: Vec<_> = self
            .parts
            .iter()
            .map(|p| p.table.descriptor.name.clone())
            .collect();
        let rows: usize = self.parts.iter().map(|part| part.rows).sum();
        let end = if self.released() { ", released" } else { "" };
        format!("Lease({}, {rows} rows{end})", names.join(", "))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // The buffer goes back to its pool; at the end of the interpreter there is nothing to do.
        Python::try_attach(|py| self.release(py));
    }
}

impl Awaited for hps::Ticket {
    type Given = hps::Lease;

    fn wait(self) -> hps::Result<hps::Lease> {
        hps::Ticket::wait(self)
    }

    fn wait_for(&self, limit: Duration) -> hps::Result<hps::Lease> {
        hps::Ticket::wait_for(self, limit)
    }
}

impl Ticket {
    /// Starts a prefetch.
    pub fn start(py: Python<'_>, cell: &Arc<Cell>, asked: &Asked<'_>) -> PyResult<Ticket> {
        let store = cell.store(py)?;
        let wanted = asked.prefetch();
        let ticket = work(py, || store.prefetch_many(&wanted))?;
        Ok(Ticket {
            cell: Arc::clone(cell),
            parts: asked.parts(),
            is_list: asked.is_list,
            inner: Mutex::new(Some(ticket)),
        })
    }

    fn take(&self) -> Option<hps::Ticket> {
        lock(&self.inner).take()
    }

    /// Waits for the lease.
    pub fn lease(&self, py: Python<'_>, timeout: Option<Duration>) -> PyResult<Lease> {
        self.cell.store(py)?;
        let Some(ticket) = self.take() else {
            return Err(closed(
                py,
                "the ticket has given its lease, or was cancelled",
            ));
        };
        let lease = redeem(py, ticket, timeout, &self.inner)?;
        Ok(Lease::unread(
            &self.cell,
            self.parts.clone(),
            self.is_list,
            lease,
        ))
    }
}

/// Seconds from Python.
///
/// # Errors
/// `InvalidArgument`.
pub fn seconds(py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Duration>> {
    let limit = timeout.map(Duration::try_from_secs_f64).transpose();
    limit.map_err(|error| refuse(py, "InvalidArgument", &format!("timeout: {error}")))
}

#[pymethods]
impl Ticket {
    /// Waits until the rows are resident and gives their lease; `Deadline` after `timeout` seconds, and
    /// the ticket stays valid.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Lease> {
        let timeout = seconds(py, timeout)?;
        self.lease(py, timeout)
    }

    /// Whether `wait` returns at once.
    #[getter]
    fn ready(&self, py: Python<'_>) -> PyResult<bool> {
        self.cell.store(py)?;
        // The lock is free again before Python runs.
        let ready = lock(&self.inner).as_ref().map(hps::Ticket::is_ready);
        match ready {
            Some(ready) => Ok(ready),
            None => Err(raise(
                py,
                &ArgumentError::Other {
                    what: String::from("the ticket has given its lease, or was cancelled"),
                }
                .into(),
            )),
        }
    }

    /// Gives the prefetch up, and waits until nothing of it is pinned: reads that are under way end
    /// first.
    fn cancel(&self, py: Python<'_>) {
        if let Some(ticket) = self.take() {
            py.detach(|| ticket.cancel());
        }
    }

    fn __repr__(&self) -> String {
        let rows: usize = self.parts.iter().map(|part| part.rows).sum();
        format!("Ticket({rows} rows)")
    }
}
