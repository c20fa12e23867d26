//! The store in Python's hands.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hps::{CheckpointId, CreateOptions, RuntimeOptions, TableDescriptor};
use numpy::{IntoPyArray, PyArray1};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::arrays::{Keys, Values};
use crate::asked::{Asked, list_of};
use crate::cell::{Cell, Tables, Use};
use crate::checkpoint::{Checkpoint, CheckpointTicket, Hold};
use crate::config::{TableSpec, describe, runtime_options};
use crate::delta::Delta;
use crate::errors::{raise, refuse};
use crate::lease::{Lease, Ticket};
use crate::passes::PassTicket;
use crate::rows::{RowChunks, asked_or_last};
use crate::update::{PushReport, RowKind};
use crate::wait::{long_work, work};
use crate::{log, stats, text_metrics};

/// An open store. All calls are thread-safe, and release the GIL.
#[pyclass(frozen, weakref, module = "hps")]
pub struct Store(Arc<Cell>);

/// Distinct keys, and the place of each key of a batch among them.
type UniqueArrays<'py> = (Bound<'py, PyArray1<u64>>, Bound<'py, PyArray1<i64>>);

/// How a store is to be opened.
enum Opening {
    /// Made if it is not there, with these tables, if any.
    Writer(CreateOptions, Vec<TableDescriptor>),
    /// As it is.
    Existing,
    Reader(Option<CheckpointId>, Vec<TableDescriptor>),
}

/// Opens a store: what `hps.open` calls.
#[pyfunction]
#[pyo3(signature = (path, tables, options, data_directories, create, read_only, checkpoint))]
#[expect(clippy::too_many_arguments, reason = "hps.open gives names to them")]
pub fn open(
    py: Python<'_>,
    path: PathBuf,
    tables: Vec<TableSpec>,
    options: &Bound<'_, PyDict>,
    data_directories: Vec<PathBuf>,
    create: bool,
    read_only: bool,
    checkpoint: Option<u64>,
) -> PyResult<Store> {
    log::begin();
    text_metrics::begin();
    let mut options = runtime_options(options)?;
    let mut rates = HashMap::new();
    let mut descriptors = Vec::new();
    for table in &tables {
        options = options.table(table.name(), table.options(py)?);
        rates.insert(table.name().to_owned(), table.lr());
        descriptors.push(table.descriptor(py)?);
    }
    let opening = match (read_only, descriptors.is_empty() && !create) {
        (true, _) => Opening::Reader(checkpoint.map(CheckpointId), descriptors),
        (false, _) if checkpoint.is_some() => {
            let message = "checkpoint: only a store that is opened with read_only=True is opened at \
                           one; to go back to it, call rollback";
            return Err(refuse(py, "InvalidArgument", message));
        }
        (false, true) => Opening::Existing,
        (false, false) => {
            let create = CreateOptions::new().data_directories(data_directories);
            Opening::Writer(create, descriptors)
        }
    };
    let work = move || {
        let store = opened(&path, opening, options.clone())?;
        Ok(Cell::new(path, read_only, options, store, &rates))
    };
    Ok(Store(Arc::new(long_work(py, work)?)))
}

fn opened(path: &Path, opening: Opening, options: RuntimeOptions) -> hps::Result<hps::Store> {
    match opening {
        Opening::Writer(create, tables) => {
            Ok(hps::Store::open_or_create(path, create, options, &tables)?.0)
        }
        Opening::Existing => hps::Store::open(path, options),
        Opening::Reader(checkpoint, tables) => {
            let store = hps::Store::open_read_only(path, checkpoint, options)?;
            for asked in &tables {
                // A reader makes none: it only compares what is there.
                store.table(&asked.name)?;
                store.create_table(asked)?;
            }
            Ok(store)
        }
    }
}

impl Store {
    pub fn cell(&self) -> &Cell {
        &self.0
    }

    fn store(&self, py: Python<'_>) -> PyResult<Use<'_>> {
        self.0.store(py)
    }

    fn begin(
        &self,
        py: Python<'_>,
        step: u64,
        meta: &Bound<'_, PyAny>,
    ) -> PyResult<CheckpointTicket> {
        let store = self.store(py)?;
        let bytes = match meta.cast::<PyBytes>() {
            Ok(bytes) => bytes.clone(),
            Err(_) => {
                // bytearray, memoryview and the like: not a number, which would be so many zeros.
                if meta.extract::<u64>().is_ok() || !meta.hasattr("__len__")? {
                    let kind = meta.get_type().name()?;
                    let message = format!("meta: a {kind} came, bytes are needed");
                    return Err(refuse(py, "InvalidArgument", &message));
                }
                let made = py.get_type::<PyBytes>().call1((meta,))?;
                made.cast_into::<PyBytes>()?
            }
        };
        let meta = bytes.as_bytes();
        let ticket = work(py, || store.checkpoint_begin(step, meta))?;
        Ok(CheckpointTicket::new(&self.0, ticket))
    }
}

#[pymethods]
impl Store {
    /// Makes rows resident, pins them and gathers their weights; keys never seen get the table's initial
    /// row. `table` and `keys`: a name and an array, or lists of both, admitted all or none.
    #[pyo3(signature = (table, keys, out = None))]
    fn pull(
        &self,
        table: &Bound<'_, PyAny>,
        keys: &Bound<'_, PyAny>,
        out: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Lease> {
        let asked = Asked::of(&self.0, table, keys)?;
        Lease::pull(table.py(), &self.0, &asked, out)
    }

    /// Starts making rows resident; `wait()` of the ticket gives their lease.
    fn prefetch(&self, table: &Bound<'_, PyAny>, keys: &Bound<'_, PyAny>) -> PyResult<Ticket> {
        let asked = Asked::of(&self.0, table, keys)?;
        Ticket::start(table.py(), &self.0, &asked)
    }

    /// Begins a pass: the rows of its keys, each once, come into memory beside training and stay until the
    /// pass ends. `wait()` of the ticket gives the pass. `table` and `keys`: a name and an array or an
    /// `hps.Keyset`, or lists of both.
    fn begin_pass(
        &self,
        table: &Bound<'_, PyAny>,
        keys: &Bound<'_, PyAny>,
    ) -> PyResult<PassTicket> {
        PassTicket::begin(&self.0, table, keys)
    }

    /// Lets blocks of a table leave again, as often as its `hps.Cached` says: what is popular has changed.
    fn unfreeze(&self, py: Python<'_>, table: &str) -> PyResult<()> {
        let store = self.store(py)?;
        let table = self.0.table(py, table)?;
        work(py, || store.unfreeze(table.id))
    }

    /// Pulls rows, changes them and lets them go: a push without a lease.
    #[pyo3(signature = (table, keys, values, lr = None, *, kind = "gradients", shows = None, clicks = None, step = 0, verbatim = false))]
    #[expect(clippy::too_many_arguments, reason = "they have names in Python")]
    fn push<'py>(
        &self,
        py: Python<'py>,
        table: &Bound<'py, PyAny>,
        keys: &Bound<'py, PyAny>,
        values: &Bound<'py, PyAny>,
        lr: Option<&Bound<'py, PyAny>>,
        kind: &str,
        shows: Option<&Bound<'py, PyAny>>,
        clicks: Option<&Bound<'py, PyAny>>,
        step: u32,
        verbatim: bool,
    ) -> PyResult<Py<PyAny>> {
        let asked = Asked::of(&self.0, table, keys)?;
        let lease = Ticket::start(py, &self.0, &asked)?.lease(py, None)?;
        let pushed = lease.push(py, values, lr, kind, None, shows, clicks, step, verbatim);
        lease.release(py);
        pushed
    }

    /// Writes rows, whatever they held before: nothing is read. `kind`: "weights" `[n, dim]` or "rows"
    /// `[n, row_f32s]`. Of several tables one after the other: a checkpoint may come between two.
    #[pyo3(signature = (table, keys, values, *, kind = "weights", verbatim = false))]
    fn put(
        &self,
        py: Python<'_>,
        table: &Bound<'_, PyAny>,
        keys: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        kind: &str,
        verbatim: bool,
    ) -> PyResult<Py<PyAny>> {
        let store = self.store(py)?;
        let row_kind = RowKind::of(py, kind)?;
        let asked = Asked::of(&self.0, table, keys)?;
        let values = match asked.is_list {
            true => list_of(values, kind, asked.tables.len())?,
            false => vec![values.clone()],
        };
        let pairs = values.iter().zip(asked.parts());
        let checked = pairs.map(|(values, part)| {
            Values::of(values, kind, &[part.rows, row_kind.width(&part.table)])
        });
        let checked = checked.collect::<PyResult<Vec<_>>>()?;
        asked.each(py, |at, table, keys| {
            let rows = row_kind.put(checked[at].as_slice(), verbatim);
            let report = work(py, || store.put(table.id, keys, rows))?;
            Ok(PushReport::new(report.rows, report.non_finite))
        })
    }

    /// Removes rows: their keys are as if never pushed. Gives how many there were.
    fn remove(
        &self,
        py: Python<'_>,
        table: &Bound<'_, PyAny>,
        keys: &Bound<'_, PyAny>,
    ) -> PyResult<Py<PyAny>> {
        let store = self.store(py)?;
        let asked = Asked::of(&self.0, table, keys)?;
        asked.each(py, |_, table, keys| {
            work(py, || store.remove(table.id, keys))
        })
    }

    /// Which keys have a row: bool `[n]`.
    fn contains(
        &self,
        py: Python<'_>,
        table: &Bound<'_, PyAny>,
        keys: &Bound<'_, PyAny>,
    ) -> PyResult<Py<PyAny>> {
        let store = self.store(py)?;
        let asked = Asked::of(&self.0, table, keys)?;
        asked.each(py, |_, table, keys| {
            let found = work(py, || store.contains(table.id, keys))?;
            Ok(found.into_pyarray(py))
        })
    }

    /// The distinct keys of a batch, uint64 `[m]`, in the order in which rows lie on disk, and for each
    /// key of the batch where it is among them, int64 `[n]`.
    fn unique<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
    ) -> PyResult<UniqueArrays<'py>> {
        let store = self.store(py)?;
        let keys = Keys::of(keys, "keys")?;
        let keys = keys.as_slice();
        let (keys, inverse) = work(py, || {
            let unique = store.unique(keys)?;
            let inverse: Vec<i64> = unique.inverse.iter().map(|at| i64::from(*at)).collect();
            Ok((unique.keys, inverse))
        })?;
        Ok((keys.into_pyarray(py), inverse.into_pyarray(py)))
    }

    /// Makes a checkpoint and waits until it survives a crash. Ctrl-C ends the wait, not the checkpoint.
    #[pyo3(signature = (step, meta = None))]
    fn checkpoint(
        &self,
        py: Python<'_>,
        step: u64,
        meta: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Checkpoint> {
        self.checkpoint_begin(py, step, meta)?.wait_for(py, None)
    }

    /// Freezes the rows as they are and writes them behind; `wait()` of the ticket gives durability.
    #[pyo3(signature = (step, meta = None))]
    fn checkpoint_begin(
        &self,
        py: Python<'_>,
        step: u64,
        meta: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<CheckpointTicket> {
        match meta {
            Some(meta) => self.begin(py, step, meta),
            None => self.begin(py, step, PyBytes::new(py, b"").as_any()),
        }
    }

    /// The retained checkpoints, oldest first.
    fn checkpoints(&self, py: Python<'_>) -> PyResult<Vec<Checkpoint>> {
        let store = self.store(py)?;
        let infos = work(py, || Ok(store.checkpoints()))?;
        Ok(infos
            .into_iter()
            .map(|info| Checkpoint::new(&self.0, info))
            .collect())
    }

    /// The last checkpoint, or None.
    #[getter]
    fn last_checkpoint(&self, py: Python<'_>) -> PyResult<Option<Checkpoint>> {
        let store = self.store(py)?;
        let info = work(py, || Ok(store.last_checkpoint()))?;
        Ok(info.map(|info| Checkpoint::new(&self.0, info)))
    }

    /// The step of the last checkpoint; 0 before the first.
    #[getter]
    fn step(&self, py: Python<'_>) -> PyResult<u64> {
        let store = self.store(py)?;
        let info = work(py, || Ok(store.last_checkpoint()))?;
        Ok(info.map_or(0, |info| info.step))
    }

    /// Drops retained checkpoints, but never the last, nor what a reader or a hold needs; gives the ids
    /// of those that were dropped.
    fn drop_checkpoints(&self, py: Python<'_>, ids: Vec<u64>) -> PyResult<Vec<u64>> {
        let store = self.store(py)?;
        let ids: Vec<_> = ids.into_iter().map(CheckpointId).collect();
        let report = work(py, || store.drop_checkpoints(&ids))?;
        Ok(report.dropped.iter().map(|id| id.0).collect())
    }

    /// Goes back to a checkpoint; what came after it is gone. Needs all leases released.
    fn rollback(&self, py: Python<'_>, id: u64) -> PyResult<()> {
        self.0.check_outside_calls(py, "rollback")?;
        let cell = Arc::clone(&self.0);
        long_work(py, move || cell.rollback(CheckpointId(id)))
    }

    /// Makes a store of its own from a checkpoint, by hard links: at `path`, with `parts` as its data
    /// directories (each on the file system of the one it stands for).
    #[pyo3(signature = (id, path, parts = Vec::new()))]
    fn export(&self, py: Python<'_>, id: u64, path: PathBuf, parts: Vec<PathBuf>) -> PyResult<()> {
        let store = self.store(py)?.into_shared();
        long_work(py, move || store.export(CheckpointId(id), &path, &parts))
    }

    /// Keeps a checkpoint until the hold is released, whatever `retain_checkpoints` says.
    fn hold(&self, py: Python<'_>, id: u64) -> PyResult<Hold> {
        Hold::of(py, &self.0, id)
    }

    /// The rows of a checkpoint (None: the last), chunk by chunk: (table, keys, weights, state).
    #[pyo3(signature = (id = None, chunk = 65536, *, table = None))]
    fn rows(
        &self,
        py: Python<'_>,
        id: Option<u64>,
        chunk: usize,
        table: Option<&str>,
    ) -> PyResult<RowChunks> {
        let id = asked_or_last(py, &self.0, id, "rows")?;
        RowChunks::of(py, &self.0, (id, None), table, chunk)
    }

    /// What changed since a checkpoint that is retained, or a cursor's, up to a retained one (None: the
    /// last), chunk by chunk: (table, keys, weights, state, removed keys).
    #[pyo3(signature = (since, until = None, chunk = 65536, *, table = None))]
    fn incremental(
        &self,
        py: Python<'_>,
        since: u64,
        until: Option<u64>,
        chunk: usize,
        table: Option<&str>,
    ) -> PyResult<RowChunks> {
        let until = asked_or_last(py, &self.0, until, "changes")?;
        RowChunks::of(py, &self.0, (until, Some(since)), table, chunk)
    }

    /// A reader of this name has everything up to a retained checkpoint: changes from there on can be told
    /// until it moves on.
    fn set_cursor(&self, py: Python<'_>, name: &str, id: u64) -> PyResult<()> {
        let store = self.store(py)?;
        work(py, || store.set_cursor(name, CheckpointId(id)))
    }

    /// The reader is gone: nothing is kept for it any more.
    fn remove_cursor(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let store = self.store(py)?;
        work(py, || store.remove_cursor(name))
    }

    /// Readers, by name, and the checkpoints up to which they have everything.
    fn cursors(&self, py: Python<'_>) -> PyResult<BTreeMap<String, u64>> {
        let store = self.store(py)?;
        let cursors = work(py, || Ok(store.cursors()))?.into_iter();
        Ok(cursors.map(|c| (c.name, c.checkpoint.0)).collect())
    }

    /// Writes what changed up to a retained checkpoint (None: the last) into a folder: since the delta in
    /// the folder `after`, since the checkpoint `since`, or everything.
    #[pyo3(signature = (path, id = None, *, after = None, since = None))]
    fn write_delta(
        &self,
        py: Python<'_>,
        path: PathBuf,
        id: Option<u64>,
        after: Option<PathBuf>,
        since: Option<u64>,
    ) -> PyResult<Delta> {
        Delta::write(py, &self.0, path, id, (after, since))
    }

    /// Brings a copy of another store up to where a delta leads, with one checkpoint; the last one again does
    /// nothing.
    fn apply_delta(&self, py: Python<'_>, path: PathBuf) -> PyResult<Delta> {
        Delta::apply(py, &self.0, path)
    }

    /// Everything that the store counts: `Stats`, with one for each table in `tables`.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let store = self.store(py)?;
        let all = work(py, || Ok(store.stats()))?;
        let counted = stats::as_dict(py, &all)?;
        py.import("hps._open")?.call_method1("_stats", (counted,))
    }

    /// What all open stores publish, as text that Prometheus reads.
    fn metrics(&self, py: Python<'_>) -> PyResult<String> {
        let store = self.store(py)?;
        work(py, || {
            store.publish_metrics();
            Ok(text_metrics::text())
        })
    }

    /// The tables: `TableInfo` by name, in the order in which they were made.
    #[getter]
    fn tables<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.store(py)?;
        let tables: Arc<Tables> = self.0.tables();
        let mut sorted: Vec<_> = tables.values().collect();
        sorted.sort_unstable_by_key(|table| table.id);
        let dict = PyDict::new(py);
        for table in sorted {
            let described = describe(py, &table.descriptor)?;
            described.set_item("lr", table.lr)?;
            dict.set_item(&table.descriptor.name, described)?;
        }
        py.import("hps._open")?.call_method1("_tables", (dict,))
    }

    /// Makes a table (`hps.Table`), or finds that it is there as it is described.
    fn create_table(&self, py: Python<'_>, table: &Bound<'_, PyAny>) -> PyResult<()> {
        let store = self.store(py)?;
        let table: TableSpec = table.call_method0("_spec")?.extract()?;
        let (descriptor, options) = (table.descriptor(py)?, table.options(py)?);
        work(py, || store.create_table_with(&descriptor, options))?;
        let rate = |name: &str| (name == table.name()).then(|| table.lr());
        self.0.tables_changed(&store, rate);
        Ok(())
    }

    /// Drops a table and its rows, with the next checkpoint.
    fn drop_table(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let store = self.store(py)?;
        let table = self.0.table(py, name)?;
        work(py, || store.drop_table(table.id))?;
        self.0.tables_changed(&store, |_| None);
        Ok(())
    }

    /// Gives a table another name, with the next checkpoint.
    fn rename_table(&self, py: Python<'_>, name: &str, new_name: &str) -> PyResult<()> {
        let store = self.store(py)?;
        let table = self.0.table(py, name)?;
        work(py, || store.rename_table(table.id, new_name))?;
        self.0.tables_changed(
            &store,
            |name| {
                if name == new_name { table.lr } else { None }
            },
        );
        Ok(())
    }

    /// Which store this is, which timeline, and at which checkpoint: (hex, hex, id or None).
    #[getter]
    fn identity(&self, py: Python<'_>) -> PyResult<(String, String, Option<u64>)> {
        let store = self.store(py)?;
        let identity = store.identity().map_err(|error| raise(py, &error))?;
        let hex = |bytes: [u8; 16]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let id = identity.checkpoint.map(|id| id.0);
        Ok((hex(identity.store), hex(identity.timeline), id))
    }

    /// Whether anything changed since the last checkpoint.
    #[getter]
    fn has_changes(&self, py: Python<'_>) -> PyResult<bool> {
        let store = self.store(py)?;
        work(py, || Ok(store.has_changes()))
    }

    /// Changes the memory of the cache: bytes, or a text like "8GiB".
    fn set_cache(&self, py: Python<'_>, cache: &Bound<'_, PyAny>) -> PyResult<()> {
        let store = self.store(py)?;
        let parsed = py
            .import("hps._tables")?
            .call_method1("parse_bytes", (cache, "cache"))?;
        let bytes = parsed.extract()?;
        work(py, || store.set_cache_bytes(bytes))
    }

    /// Writes out every dirty row, without a sync; for tools and tests. Gives how many.
    fn flush(&self, py: Python<'_>) -> PyResult<u64> {
        let store = self.store(py)?;
        work(py, || store.flush())
    }

    /// Where it is.
    #[getter]
    fn path(&self) -> PathBuf {
        self.0.path.clone()
    }

    /// Whether it was opened with `read_only=True`.
    #[getter]
    fn read_only(&self) -> bool {
        self.0.is_read_only
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Closes the store. With changes after the last checkpoint it raises `Uncheckpointed` and stays
    /// open, unless told to discard them. A store that is closed stays so.
    #[pyo3(signature = (discard = false))]
    fn close(&self, py: Python<'_>, discard: bool) -> PyResult<()> {
        if self.0.is_closed() {
            return Ok(());
        }
        self.0.check_outside_calls(py, "close")?;
        let cell = Arc::clone(&self.0);
        long_work(py, move || cell.close(discard))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Closes the store; after an exception, without what came after the last checkpoint.
    fn __exit__(
        &self,
        py: Python<'_>,
        class: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        match self.0.is_of_this_process() {
            true => self.close(py, !class.is_none()),
            false => Ok(()),
        }
    }

    fn __repr__(&self) -> String {
        let path = self.0.path.display();
        match (self.0.is_closed(), self.0.is_read_only) {
            (true, _) => format!("Store({path}, closed)"),
            (false, true) => format!("Store({path}, read-only)"),
            (false, false) => format!("Store({path})"),
        }
    }
}
