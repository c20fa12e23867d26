//! What do a store, its leases and its tickets share, and who closes it?
//!
//! - Who works with the store has it by an `Arc` for the time of a call; closing it and going back to a
//!   checkpoint wait until nobody has.
//! - A finalizer or a handler of signals may run inside a call. What it does there must not wait for
//!   that call: closing is refused.
//! - In a forked child nothing here is locked: the check comes first.

use std::collections::HashMap;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use hps::{ArgumentError, CheckpointId, Error, RuntimeOptions, Store, TableDescriptor, TableId};
use pyo3::prelude::*;

use crate::arrays::Pool;
use crate::errors::{raise, refuse};
use crate::wait::lock;

/// A table, as calls need it.
#[derive(Debug)]
pub struct TableInfo {
    pub id: TableId,
    pub descriptor: TableDescriptor,
    /// Of the `hps.Table` that the store was opened with.
    pub lr: Option<f32>,
}

impl TableInfo {
    pub fn dim(&self) -> usize {
        self.descriptor.dim
    }

    pub fn row_f32s(&self) -> usize {
        self.descriptor.row_f32s()
    }
}

pub type Tables = HashMap<String, Arc<TableInfo>>;

/// An open store, or one that was.
pub struct Cell {
    process: u32,
    pub path: PathBuf,
    pub is_read_only: bool,
    options: RuntimeOptions,
    store: Mutex<Option<Arc<Store>>>,
    /// Whose calls have the store, once for each.
    callers: Mutex<Vec<ThreadId>>,
    tables: Mutex<Arc<Tables>>,
    pub pool: Pool,
}

/// The store, for the time of a call of this thread.
pub struct Use<'a> {
    cell: &'a Cell,
    caller: ThreadId,
    store: Arc<Store>,
}

impl Use<'_> {
    /// The store, for another thread, which the caller's own may wait for or leave alone.
    pub fn into_shared(self) -> Arc<Store> {
        Arc::clone(&self.store)
    }
}

impl Deref for Use<'_> {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

impl Drop for Use<'_> {
    fn drop(&mut self) {
        let mut callers = lock(&self.cell.callers);
        // Its last: calls of one thread end in the order opposite to that of their beginning.
        if let Some(at) = callers.iter().rposition(|id| *id == self.caller) {
            callers.swap_remove(at);
        }
    }
}

impl Cell {
    pub fn new(
        path: PathBuf,
        is_read_only: bool,
        options: RuntimeOptions,
        store: Store,
        rates: &HashMap<String, f32>,
    ) -> Cell {
        let tables = tables_of(&store, |name| rates.get(name).copied());
        Cell {
            process: std::process::id(),
            path,
            is_read_only,
            options,
            store: Mutex::new(Some(Arc::new(store))),
            callers: Mutex::default(),
            tables: Mutex::new(Arc::new(tables)),
            pool: Pool::default(),
        }
    }

    /// The store, for a call.
    ///
    /// # Errors
    /// `Forked`, `Closed`.
    pub fn get(&self) -> hps::Result<Use<'_>> {
        if !self.is_of_this_process() {
            return Err(Error::Forked);
        }
        let store = lock(&self.store).clone();
        let store = store.ok_or(ArgumentError::Closed)?;
        let caller = std::thread::current().id();
        lock(&self.callers).push(caller);
        Ok(Use {
            cell: self,
            caller,
            store,
        })
    }

    /// As [`Cell::get`], for Python.
    ///
    /// # Errors
    /// `Forked`, `Closed`.
    pub fn store(&self, py: Python<'_>) -> PyResult<Use<'_>> {
        self.get().map_err(|error| raise(py, &error))
    }

    /// Refuses what waits for all calls to end, where one of this thread is among them.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub fn check_outside_calls(&self, py: Python<'_>, what: &str) -> PyResult<()> {
        let caller = std::thread::current().id();
        if !self.is_of_this_process() || !lock(&self.callers).contains(&caller) {
            return Ok(());
        }
        let message = format!(
            "{what} inside another call of the same thread on this store, by a finalizer or a handler of \
             signals, would wait for itself: {what} after that call"
        );
        Err(refuse(py, "InvalidArgument", &message))
    }

    pub fn is_of_this_process(&self) -> bool {
        self.process == std::process::id()
    }

    pub fn is_closed(&self) -> bool {
        self.is_of_this_process() && lock(&self.store).is_none()
    }

    pub fn tables(&self) -> Arc<Tables> {
        Arc::clone(&lock(&self.tables))
    }

    /// The table of this name.
    ///
    /// # Errors
    /// `UnknownTable`.
    pub fn table(&self, py: Python<'_>, name: &str) -> PyResult<Arc<TableInfo>> {
        let tables = self.tables();
        if let Some(table) = tables.get(name) {
            return Ok(Arc::clone(table));
        }
        let mut known: Vec<String> = tables.keys().cloned().collect();
        known.sort_unstable();
        let name = name.to_owned();
        let unknown = ArgumentError::UnknownTable { name, known };
        Err(raise(py, &unknown.into()))
    }

    /// Reads anew which tables there are; `rate` is that of one that is new.
    pub fn tables_changed(&self, store: &Store, rate: impl Fn(&str) -> Option<f32>) {
        let before = self.tables();
        let known = |name: &str| before.get(name).and_then(|table| table.lr);
        let tables = tables_of(store, |name| rate(name).or_else(|| known(name)));
        *lock(&self.tables) = Arc::new(tables);
    }

    /// The store itself, once no call has it.
    fn take(&self) -> hps::Result<Option<Store>> {
        if !self.is_of_this_process() {
            return Err(Error::Forked);
        }
        let Some(mut shared) = lock(&self.store).take() else {
            return Ok(None);
        };
        loop {
            match Arc::try_unwrap(shared) {
                Ok(store) => return Ok(Some(store)),
                Err(again) => shared = again,
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Closes the store; one that is closed stays so.
    ///
    /// # Errors
    /// `Uncheckpointed`, with the store open as before; `Forked`.
    pub fn close(&self, discard: bool) -> hps::Result<()> {
        if !discard && let Ok(store) = self.get() {
            let rows = store.stats().uncheckpointed_rows.max(1);
            if store.has_changes() && !self.is_read_only {
                return Err(Error::Uncheckpointed { rows });
            }
        }
        match self.take()? {
            None => Ok(()),
            Some(store) if discard => {
                store.close_discarding();
                Ok(())
            }
            Some(store) => store.close(),
        }
    }

    /// Goes back to a checkpoint.
    ///
    /// # Errors
    /// As [`Store::check_rollback`]: nothing changed. Others, with the store open at its last checkpoint,
    /// or closed where that can't be opened.
    pub fn rollback(&self, id: CheckpointId) -> hps::Result<()> {
        self.get()?.check_rollback(id)?;
        let Some(store) = self.take()? else {
            return Err(ArgumentError::Closed.into());
        };
        let (store, failed) = match store.rollback(id) {
            Ok(store) => (store, None),
            Err(error) => (Store::open(&self.path, self.options.clone())?, Some(error)),
        };
        self.tables_changed(&store, |_| None);
        *lock(&self.store) = Some(Arc::new(store));
        failed.map_or(Ok(()), Err)
    }
}

impl Drop for Cell {
    /// Equals a crash: the store reopens at its last checkpoint. Its threads are waited for, without the
    /// GIL.
    fn drop(&mut self) {
        let store = self.store.get_mut().unwrap_or_else(PoisonError::into_inner);
        let store = store.take();
        let mut waiting = Some(store);
        Python::try_attach(|py| py.detach(|| drop(waiting.take())));
    }
}

fn tables_of(store: &Store, rate: impl Fn(&str) -> Option<f32>) -> Tables {
    let info = |(id, descriptor): (TableId, TableDescriptor)| {
        let name = descriptor.name.clone();
        let lr = rate(&name);
        let info = TableInfo { id, descriptor, lr };
        (name, Arc::new(info))
    };
    store.tables().into_iter().map(info).collect()
}
