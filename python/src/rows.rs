//! All rows of a checkpoint, or what changed since one, in Python's hands, chunk by chunk.

use std::sync::{Arc, Mutex};

use hps::{Change, CheckpointId, Incremental, RowIter, TableId};
use numpy::{IntoPyArray, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyEllipsis, PySlice, PyTuple};

use crate::cell::{Cell, TableInfo};
use crate::config::state_columns;
use crate::errors::{raise, refuse};
use crate::wait::{lock, work};

/// An iterator of chunks: (table, keys `[k]`, weights `[k, dim]`, state by column), and of changes the removed
/// keys `[r]` too.
#[pyclass(frozen, module = "hps")]
pub struct RowChunks {
    cell: Arc<Cell>,
    /// None after the last row, or an error.
    inner: Mutex<Option<Inner>>,
    chunk: usize,
}

struct Inner {
    walk: Walk,
    tables: Vec<Arc<TableInfo>>,
    /// The first key of the next chunk, where it was of another table.
    next: Option<Chunk>,
}

/// What is walked.
enum Walk {
    Rows(RowIter),
    Changes(Incremental),
}

/// A chunk's table, keys and rows, and removed keys.
struct Chunk {
    table: TableId,
    keys: Vec<u64>,
    values: Vec<f32>,
    removed: Vec<u64>,
}

impl Chunk {
    fn begin(table: TableId) -> Chunk {
        Chunk {
            table,
            keys: Vec::new(),
            values: Vec::new(),
            removed: Vec::new(),
        }
    }

    /// Adds a key, with its row or as a removed one.
    fn add(&mut self, key: u64, row: Option<&[f32]>) {
        match row {
            Some(row) => {
                self.keys.push(key);
                self.values.extend_from_slice(row);
            }
            None => self.removed.push(key),
        }
    }

    fn entries(&self) -> usize {
        self.keys.len() + self.removed.len()
    }
}

/// A table, a key of it, and its row, if it has one.
type Step<'a> = (TableId, u64, Option<&'a [f32]>);

impl Walk {
    fn next(&mut self) -> hps::Result<Option<Step<'_>>> {
        Ok(match self {
            Walk::Rows(rows) => rows
                .next_row()?
                .map(|row| (row.table, row.key, Some(row.values))),
            Walk::Changes(changes) => match changes.next_change()? {
                Some(Change::Row(row)) => Some((row.table, row.key, Some(row.values))),
                Some(Change::Removed { table, key, .. }) => Some((table, key, None)),
                _ => None,
            },
        })
    }
}

/// The checkpoint asked for, or else the last one.
pub fn asked_or_last(py: Python<'_>, cell: &Cell, id: Option<u64>, what: &str) -> PyResult<u64> {
    if let Some(id) = id {
        return Ok(id);
    }
    let store = cell.store(py)?;
    let identity = store.identity().map_err(|error| raise(py, &error))?;
    match identity.checkpoint {
        Some(id) => Ok(id.0),
        None => {
            let message = format!("{what}: the store has no checkpoint yet; make one first");
            Err(refuse(py, "InvalidArgument", &message))
        }
    }
}

impl Inner {
    fn chunk(&mut self, rows_max: usize) -> hps::Result<Option<Chunk>> {
        let mut chunk = self.next.take();
        while chunk
            .as_ref()
            .is_none_or(|chunk| chunk.entries() < rows_max)
        {
            let Some((table, key, row)) = self.walk.next()? else {
                break;
            };
            let of = chunk.get_or_insert_with(|| Chunk::begin(table));
            if of.table != table {
                let mut next = Chunk::begin(table);
                next.add(key, row);
                self.next = Some(next);
                break;
            }
            of.add(key, row);
        }
        Ok(chunk)
    }
}

impl RowChunks {
    /// The rows of a checkpoint, or what changed since another one: of one table, or of all.
    pub fn of(
        py: Python<'_>,
        cell: &Arc<Cell>,
        (id, since): (u64, Option<u64>),
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
        let all = 0..=u64::MAX;
        let walk = match (table, &tables[..]) {
            (None, _) => work(py, || match since {
                None => store.rows(id).map(Walk::Rows),
                Some(since) => store
                    .incremental(CheckpointId(since), id)
                    .map(Walk::Changes),
            })?,
            (Some(_), [one]) => work(py, || match since {
                None => store.rows_of(id, one.id, all).map(Walk::Rows),
                Some(since) => store
                    .incremental_of(CheckpointId(since), id, one.id, all)
                    .map(Walk::Changes),
            })?,
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
            inner: Mutex::new(Some(Inner { walk, tables, next })),
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
        let Some(chunk) = chunk else {
            return Ok(None);
        };
        let Chunk {
            table: id,
            keys,
            values,
            removed,
        } = chunk;
        let table = inner.tables.iter().find(|table| table.id == id).cloned();
        let with_removed = matches!(inner.walk, Walk::Changes(_));
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
        let mut parts = vec![name, keys, weights, state.into_any()];
        if with_removed {
            parts.push(removed.into_pyarray(py).into_any());
        }
        PyTuple::new(py, parts).map(Some)
    }
}
