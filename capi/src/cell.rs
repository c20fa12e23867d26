//! What do a store's handle and its tickets share, and who closes it?
//!
//! - Whoever works with the store has it by an `Arc` for the time of a call; a close and a rollback
//!   wait until nobody has.
//! - In a forked child nothing here is locked: the check comes first.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use store::{ArgumentError, CheckpointId, Store};

use crate::border::{Process, lock};
use crate::error::Result;

/// An open store, or one that was.
pub struct Cell {
    process: Process,
    store: Mutex<Option<Arc<Store>>>,
    /// Raised when a call has ended while somebody waits for that.
    left: Condvar,
    waiting: AtomicUsize,
}

/// The store, for the time of a call.
pub struct Use<'a> {
    cell: &'a Cell,
    store: Option<Arc<Store>>,
}

impl Deref for Use<'_> {
    type Target = Store;

    fn deref(&self) -> &Store {
        match &self.store {
            Some(store) => store,
            None => unreachable!("taken when this is dropped, not before"),
        }
    }
}

impl Drop for Use<'_> {
    fn drop(&mut self) {
        drop(self.store.take());
        // Either this sees that somebody waits, or whoever waits sees that the store is free.
        fence(Ordering::SeqCst);
        if self.cell.waiting.load(Ordering::SeqCst) > 0 {
            // Under the lock: whoever has not seen it go waits by now.
            let _store = lock(&self.cell.store);
            self.cell.left.notify_all();
        }
    }
}

impl Cell {
    pub fn new(store: Store) -> Cell {
        Cell {
            process: Process::this(),
            store: Mutex::new(Some(Arc::new(store))),
            left: Condvar::new(),
            waiting: AtomicUsize::new(0),
        }
    }

    /// The store, for a call.
    pub fn get(&self) -> Result<Use<'_>> {
        self.process.check()?;
        match lock(&self.store).clone() {
            Some(store) => Ok(Use {
                cell: self,
                store: Some(store),
            }),
            None => Err(ArgumentError::Closed.into()),
        }
    }

    /// The store itself, once no call has it; `None` where it is closed.
    fn take(&self) -> Result<Option<Store>> {
        self.process.check()?;
        let mut guard = lock(&self.store);
        let Some(mut shared) = guard.take() else {
            return Ok(None);
        };
        self.waiting.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let store = loop {
            match Arc::try_unwrap(shared) {
                Ok(store) => break store,
                Err(again) => shared = again,
            }
            guard = self
                .left
                .wait(guard)
                .unwrap_or_else(PoisonError::into_inner);
        };
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        Ok(Some(store))
    }

    /// Closes the store; one that is closed stays so.
    pub fn close(&self, discard: bool) -> Result<()> {
        match self.take()? {
            None => {}
            Some(store) if discard => store.close_discarding(),
            Some(store) => store.close()?,
        }
        Ok(())
    }

    /// Goes back to a checkpoint. The store stays as it is where that can be told before.
    pub fn rollback(&self, id: CheckpointId) -> Result<()> {
        self.get()?.check_rollback(id)?;
        let Some(store) = self.take()? else {
            return Err(ArgumentError::Closed.into());
        };
        *lock(&self.store) = Some(Arc::new(store.rollback(id)?));
        Ok(())
    }
}
