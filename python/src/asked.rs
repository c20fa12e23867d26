//! Which rows does a call ask for: of one table, or of several in one call?

use std::sync::Arc;

use hps::PrefetchPart;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyTuple};

use crate::arrays::Keys;
use crate::cell::{Cell, TableInfo};
use crate::errors::refuse;

/// Tables and their keys.
pub struct Asked<'py> {
    /// Whether lists were given, so that lists are given back.
    pub is_list: bool,
    pub tables: Vec<Arc<TableInfo>>,
    pub keys: Vec<Keys<'py>>,
}

/// A part of a lease.
#[derive(Clone)]
pub struct Part {
    pub table: Arc<TableInfo>,
    pub rows: usize,
}

impl Part {
    pub fn weights(&self) -> usize {
        self.rows * self.table.dim()
    }
}

/// What is in a list or a tuple; nothing else is one.
pub fn items<'py>(object: &Bound<'py, PyAny>) -> Option<Vec<Bound<'py, PyAny>>> {
    if let Ok(list) = object.cast::<PyList>() {
        return Some(list.iter().collect());
    }
    let tuple = object.cast::<PyTuple>().ok()?;
    Some(tuple.iter().collect())
}

/// One object for a name, a list for a list.
pub fn shaped(py: Python<'_>, is_list: bool, mut items: Vec<Py<PyAny>>) -> PyResult<Py<PyAny>> {
    match is_list {
        true => Ok(PyList::new(py, items)?.into_any().unbind()),
        false => Ok(items.pop().unwrap_or_else(|| py.None())),
    }
}

/// Checks that a list has an item for each table.
///
/// # Errors
/// `InvalidArgument`.
pub fn check_count(py: Python<'_>, what: &str, found: usize, tables: usize) -> PyResult<()> {
    if found == tables {
        return Ok(());
    }
    let message =
        format!("{what}: a list of {found} came, one of {tables} is needed: one item a table");
    Err(refuse(py, "InvalidArgument", &message))
}

/// A list with an item for each table.
///
/// # Errors
/// `InvalidArgument`.
pub fn list_of<'py>(
    object: &Bound<'py, PyAny>,
    what: &str,
    tables: usize,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let py = object.py();
    let Some(list) = items(object) else {
        let kind = object.get_type().name()?;
        let message =
            format!("{what}: a {kind} came, a list with one item for each table is needed");
        return Err(refuse(py, "InvalidArgument", &message));
    };
    check_count(py, what, list.len(), tables)?;
    Ok(list)
}

/// Whether lists were given, the tables, and what `read` makes of the keys of each.
type Named<K> = (bool, Vec<Arc<TableInfo>>, Vec<K>);

/// Reads `tables` and `keys`: a name and its keys, or a list of each.
pub fn asked<'py, K>(
    cell: &Cell,
    tables: &Bound<'py, PyAny>,
    keys: &Bound<'py, PyAny>,
    read: impl Fn(&Bound<'py, PyAny>, &str) -> PyResult<K>,
) -> PyResult<Named<K>> {
    let py = tables.py();
    if let Ok(name) = tables.cast::<PyString>() {
        let table = cell.table(py, &name.to_cow()?)?;
        return Ok((false, vec![table], vec![read(keys, "keys")?]));
    }
    let Some(names) = items(tables) else {
        let kind = tables.get_type().name()?;
        let message = format!("table: a {kind} came, a name or a list of names is needed");
        return Err(refuse(py, "InvalidArgument", &message));
    };
    let all = list_of(keys, "keys", names.len())?;
    let table = |name: &Bound<'py, PyAny>| cell.table(py, &name.cast::<PyString>()?.to_cow()?);
    let numbered = |(at, keys): (usize, &Bound<'py, PyAny>)| read(keys, &format!("keys[{at}]"));
    let tables = names.iter().map(table).collect::<PyResult<_>>()?;
    let all = all.iter().enumerate().map(numbered);
    Ok((true, tables, all.collect::<PyResult<_>>()?))
}

impl<'py> Asked<'py> {
    /// Reads `tables` and `keys`: a name and an array, or a list of each.
    pub fn of(
        cell: &Cell,
        tables: &Bound<'py, PyAny>,
        keys: &Bound<'py, PyAny>,
    ) -> PyResult<Asked<'py>> {
        let (is_list, tables, keys) = asked(cell, tables, keys, Keys::of)?;
        Ok(Asked {
            is_list,
            tables,
            keys,
        })
    }

    /// What `call` gives for each table and its keys: one object for a name, a list for a list.
    pub fn each<T>(
        &self,
        py: Python<'py>,
        mut call: impl FnMut(usize, &TableInfo, &[u64]) -> PyResult<T>,
    ) -> PyResult<Py<PyAny>>
    where
        T: IntoPyObject<'py>,
    {
        let pairs = self.tables.iter().zip(&self.keys).enumerate();
        let given = pairs.map(|(at, (table, keys))| {
            let given = call(at, table, keys.as_slice())?;
            given.into_py_any(py)
        });
        let given = given.collect::<PyResult<_>>()?;
        shaped(py, self.is_list, given)
    }

    /// The parts that a lease of them has.
    pub fn parts(&self) -> Vec<Part> {
        let part = |(table, keys): (&Arc<TableInfo>, &Keys<'_>)| Part {
            table: Arc::clone(table),
            rows: keys.len(),
        };
        self.tables.iter().zip(&self.keys).map(part).collect()
    }

    /// For a prefetch.
    pub fn prefetch(&self) -> Vec<PrefetchPart<'_>> {
        let part = |(table, keys): (&Arc<TableInfo>, _)| {
            let keys: &Keys<'_> = keys;
            PrefetchPart::new(table.id, keys.as_slice())
        };
        self.tables.iter().zip(&self.keys).map(part).collect()
    }
}
