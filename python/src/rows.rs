//! All rows of a checkpoint in Python's hands, chunk by chunk.

use std::sync::{Arc, Mutex};

use hps::{CheckpointId, RowIter, TableId};
use numpy::{IntoPyArray, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyEllipsis, PySlice, PyTuple};

use crate::cell::{Cell, TableInfo};
use crate::config::state_columns;
use crate::errors::refuse;
use crate::wait::{lock, work};

/// An iterator of chunks: (table, keys `[k]`, weights `[k, dim]`, state by column).
#[pyclass(frozen, module = "hps")]
pub struct RowChunks {
    cell: Arc<Cell>,
    /// None after the last row, or an error.
    inner: Mutex<Option<Inner>>,
    chunk: usize,
}

struct Inner {
    iter: RowIter,
    tables: Vec<Arc<TableInfo>>,
    /// The first row of the next chunk, where it was of another table.
    next: Option<(TableId, u64, Vec<f32>)>,
}

/// A chunk's table, keys and rows.
type Chunk = Option<(TableId, Vec<u64>, Vec<f32>)>;

impl Inner {
    fn chunk(&mut self, rows_max: usize) -> hps::Result<Chunk> {
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        let mut of = None;
        if let Some((table, key, row)) = self.next.take() {
            of = Some(table);
            keys.push(key);
            values = row;
        }
        while keys.len() < rows_max {
            let Some(row) = self.iter.next_row()? else {
                break;
            };
            if *of.get_or_insert(row.table) != row.table {
                self.next = Some((row.table, row.key, row.values.to_vec()));
                break;
            }
            keys.push(row.key);
            values.extend_from_slice(row.values);
        }
        Ok(of.map(|table| (table, keys, values)))
    }
}

impl RowChunks {
    /// The rows of a checkpoint: of one table, or of all.
    pub fn of(
        py: Python<'_>,
        cell: &Arc<Cell>,
        id: u64,
        table: Option<&str>,
        chunk: usize,
    ) -> PyResult<RowChunks> {
        if chunk == 0 {
            return Err(refuse(
                py,
                "InvalidArgument",
                "chunk: 0 came, at least 1 is needed",
            ));
        }
        let store = cell.store(py)?;
        let id = CheckpointId(id);
        let then = work(py, || store.tables_at(id))?;
        let tables: Vec<_> = then
            .into_iter()
            .filter(|(_, descriptor)| table.is_none_or(|name| name == descriptor.name))
            .map(|(id, descriptor)| {
                Arc::new(TableInfo {
                    id,
                    descriptor,
                    lr: None,
                })
            })
            .collect();
        let iter = match (table, &tables[..]) {
            (None, _) => work(py, || store.rows(id))?,
            (Some(_), [one]) => work(py, || store.rows_of(id, one.id, 0..=u64::MAX))?,
            (Some(name), _) => {
                // The error that names the tables; or the table came after the checkpoint.
                cell.table(py, name)?;
                let message = format!("table {name:?} was not there at checkpoint {}", id.0);
                return Err(refuse(py, "InvalidArgument", &message));
            }
        };
        let next = None;
        Ok(RowChunks {
            cell: Arc::clone(cell),
            inner: Mutex::new(Some(Inner { iter, tables, next })),
            chunk,
        })
    }
}

#[pymethods]
impl RowChunks {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        self.cell.store(py)?;
        let taken = lock(&self.inner).take();
        let Some(mut inner) = taken else {
            return Ok(None);
        };
        let rows_max = self.chunk;
        let chunk = work(py, || inner.chunk(rows_max))?;
        let Some((id, keys, values)) = chunk else {
            return Ok(None);
        };
        let table = inner.tables.iter().find(|table| table.id == id).cloned();
        *lock(&self.inner) = Some(inner);
        let Some(table) = table else {
            return Ok(None);
        };
        let (rows, width) = (keys.len(), table.row_f32s());
        let whole = values.into_pyarray(py).reshape([rows, width])?.into_any();
        let dim = isize::try_from(table.dim()).unwrap_or(isize::MAX);
        let weights = PySlice::new(py, 0, dim, 1).into_any();
        let weights = whole.get_item(PyTuple::new(
            py,
            [PyEllipsis::get(py).as_any().clone(), weights],
        )?)?;
        let state = PyDict::new(py);
        for column in state_columns(&table.descriptor) {
            state.set_item(column.name, column.of(&whole)?)?;
        }
        let name = table.descriptor.name.as_str().into_pyobject(py)?.into_any();
        let keys = keys.into_pyarray(py).into_any();
        PyTuple::new(py, [name, keys, weights, state.into_any()]).map(Some)
    }
}
