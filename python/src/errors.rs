//! How does an error of the store become an exception?
//!
//! Each variant of [`hps::Error`] has a class of its name in `hps._errors`; its fields are attributes.

use std::path::Path;

use hps::{ArgumentError, Error, Holder};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyModule};
use pyo3::{IntoPyObject, IntoPyObjectExt};

/// The fields of an exception that is being made.
struct Fields<'py> {
    py: Python<'py>,
    dict: Bound<'py, PyDict>,
}

impl<'py> Fields<'py> {
    fn new(py: Python<'py>) -> Fields<'py> {
        Fields {
            py,
            dict: PyDict::new(py),
        }
    }

    fn set<T: IntoPyObject<'py>>(self, name: &str, value: T) -> PyResult<Fields<'py>> {
        let value = value.into_bound_py_any(self.py)?;
        self.dict.set_item(name, value)?;
        Ok(self)
    }

    fn path(self, path: &Path) -> PyResult<Fields<'py>> {
        self.set("path", path.display().to_string())
    }

    fn build(self, class: &str, message: &str) -> PyResult<PyErr> {
        let class = classes(self.py)?.getattr(class)?;
        let error = class.call((message,), Some(&self.dict))?;
        Ok(PyErr::from_value(error))
    }
}

fn classes(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module =
        MODULE.get_or_try_init(py, || Ok::<_, PyErr>(py.import("hps._errors")?.unbind()))?;
    Ok(module.bind(py))
}

/// The exception for an error of the store.
pub fn raise(py: Python<'_>, error: &Error) -> PyErr {
    of_store(py, error).unwrap_or_else(|failed| failed)
}

/// The exception for an argument that this package itself refuses: a kind of `InvalidArgument`.
pub fn refuse(py: Python<'_>, class: &str, message: &str) -> PyErr {
    let made = Fields::new(py).build(class, message);
    made.unwrap_or_else(|failed| failed)
}

/// The exception for a panic.
pub fn panicked(py: Python<'_>, payload: &(dyn std::any::Any + Send)) -> PyErr {
    let said = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| String::from("a panic without a message"));
    let message = format!("hps has a bug: {said}; open the store again, at its last checkpoint");
    refuse(py, "InternalError", &message)
}

fn of_store(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let fields = Fields::new(py);
    let (class, fields) = match error {
        Error::InvalidArgument(what) => return of_argument(py, what, &error.to_string()),
        Error::Corrupt { path, offset, what } => (
            "Corrupt",
            fields
                .path(path)?
                .set("offset", offset)?
                .set("what", what)?,
        ),
        Error::MissingDirectory { index, path, empty } => (
            "MissingDirectory",
            fields
                .path(path)?
                .set("index", index)?
                .set("empty", *empty)?,
        ),
        Error::Io {
            operation,
            path,
            source,
        } => (
            "Io",
            fields
                .path(path)?
                .set("operation", *operation)?
                .set("errno", source.raw_os_error())?,
        ),
        Error::NoSpace {
            path,
            used_bytes,
            asked_bytes,
            limit_bytes,
        } => (
            "NoSpace",
            fields
                .path(path)?
                .set("used_bytes", used_bytes)?
                .set("asked_bytes", asked_bytes)?
                .set("limit_bytes", limit_bytes)?,
        ),
        Error::OverBudget {
            table,
            pinned_rows,
            asked_rows,
            capacity_rows,
            needed_bytes,
            leases,
        } => (
            "OverBudget",
            fields
                .set("table", table)?
                .set("pinned_rows", pinned_rows)?
                .set("asked_rows", asked_rows)?
                .set("capacity_rows", capacity_rows)?
                .set("needed_bytes", needed_bytes)?
                .set("leases", leases.clone())?,
        ),
        Error::Locked { path, holder } => (
            "Locked",
            fields.path(path)?.set("holder", holder_name(*holder))?,
        ),
        Error::Unsupported {
            path,
            found,
            supported,
        } => (
            "Unsupported",
            fields
                .path(path)?
                .set("found", found)?
                .set("supported", supported)?,
        ),
        Error::UnsupportedTable { table, dtype } => (
            "UnsupportedTable",
            fields.set("table", table)?.set("dtype", *dtype)?,
        ),
        Error::Poisoned { cause } => ("Poisoned", fields.set("cause", cause)?),
        Error::Uncheckpointed { rows } => ("Uncheckpointed", fields.set("rows", rows)?),
        Error::Cancelled => ("Cancelled", fields),
        Error::ReadOnly { path } => ("ReadOnly", fields.path(path)?),
        Error::Deadline { waited_ms } => ("Deadline", fields.set("waited_ms", waited_ms)?),
        Error::Forked => ("Forked", fields),
        // Of GPUs, which this package does not use, and of later versions.
        _ => ("Error", fields),
    };
    fields.build(class, &error.to_string())
}

fn holder_name(holder: Holder) -> &'static str {
    match holder {
        Holder::Writer => "writer",
        Holder::Elsewhere => "elsewhere",
        Holder::Reader => "reader",
        Holder::Dropping => "dropping",
        _ => "unknown",
    }
}

/// `InvalidArgument` has the name of the variant as `kind`; some kinds have a class of their own.
fn of_argument(py: Python<'_>, what: &ArgumentError, message: &str) -> PyResult<PyErr> {
    let fields = Fields::new(py);
    let (kind, fields) = match what {
        ArgumentError::UnknownTable { name, known } => (
            "UnknownTable",
            fields.set("name", name)?.set("known", known.clone())?,
        ),
        ArgumentError::TableDropped { name, .. } => ("TableDropped", fields.set("name", name)?),
        ArgumentError::TableExists { name } => ("TableExists", fields.set("name", name)?),
        ArgumentError::DescriptorChanged {
            name,
            field,
            stored,
            asked,
        } => (
            "DescriptorChanged",
            fields
                .set("name", name)?
                .set("field", *field)?
                .set("stored", stored)?
                .set("asked", asked)?,
        ),
        ArgumentError::Length {
            what,
            expected,
            found,
        } => (
            "Length",
            fields
                .set("what", *what)?
                .set("expected", expected)?
                .set("found", found)?,
        ),
        ArgumentError::NonFinite { table, key, index } => (
            "NonFinite",
            fields
                .set("table", table)?
                .set("key", key)?
                .set("index", index)?,
        ),
        ArgumentError::ForeignLease => ("ForeignLease", fields),
        ArgumentError::WrongTable {
            part,
            leased,
            given,
        } => (
            "WrongTable",
            fields
                .set("part", part)?
                .set("leased", leased)?
                .set("given", given)?,
        ),
        ArgumentError::Position {
            position,
            index,
            rows,
        } => (
            "Position",
            fields
                .set("position", position)?
                .set("index", index)?
                .set("rows", rows)?,
        ),
        ArgumentError::SeveralParts { parts, .. } => ("SeveralParts", fields.set("parts", parts)?),
        ArgumentError::Closed => ("Closed", fields),
        ArgumentError::NotAStore { path, why } => {
            ("NotAStore", fields.path(path)?.set("why", why)?)
        }
        ArgumentError::AlreadyAStore { path } => ("AlreadyAStore", fields.path(path)?),
        ArgumentError::Option { name, value, why } => (
            "Option",
            fields
                .set("name", *name)?
                .set("value", value)?
                .set("why", why)?,
        ),
        ArgumentError::StepNotRising { step, last } => (
            "StepNotRising",
            fields.set("step", step)?.set("last", last)?,
        ),
        ArgumentError::UnknownCheckpoint { id, retained } => (
            "UnknownCheckpoint",
            fields.set("id", id.0)?.set(
                "retained",
                retained.iter().map(|id| id.0).collect::<Vec<_>>(),
            )?,
        ),
        ArgumentError::HistoryGone { since, retained } => (
            "HistoryGone",
            fields.set("since", since.0)?.set(
                "retained",
                retained.iter().map(|id| id.0).collect::<Vec<_>>(),
            )?,
        ),
        ArgumentError::Delta { path, why } => ("Delta", fields.path(path)?.set("why", why)?),
        ArgumentError::LeasesOutstanding { what, count } => (
            "LeasesOutstanding",
            fields.set("what", *what)?.set("count", count)?,
        ),
        _ => ("Other", fields),
    };
    let class = match kind {
        "Closed" => "Closed",
        "UnknownTable" => "UnknownTable",
        _ => "InvalidArgument",
    };
    fields.set("kind", kind)?.build(class, message)
}
