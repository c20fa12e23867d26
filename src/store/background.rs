//! Which threads does an open store keep?
//!
//! - `hps-prefetch`, two of them, serve tickets and publish the counters, `hps-writer` flushes
//!   caches that run low, `hps-compact-N` compact. A checkpoint has a thread of its own while it runs.
//! - All end when the store is closed or dropped.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::engine::Engine;
use super::lane::PREFETCH_LANES;
use crate::error::{Error, Result};
use crate::sync::thread::{self, JoinHandle};

/// How long a thread sleeps without being called.
const PAUSE: Duration = Duration::from_millis(200);
/// How long it stays away after an error, so that it does not spin.
const AFTER_ERROR: Duration = Duration::from_millis(500);

/// The threads of a store.
#[derive(Debug, Default)]
pub struct Threads {
    handles: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Starts what this kind of store needs.
    ///
    /// # Errors
    /// `Io` when a thread can't be started.
    pub fn start(engine: &Arc<Engine>) -> Result<Threads> {
        let mut threads = Threads::default();
        if engine.options.inline {
            return Ok(threads);
        }
        for lane in 0..PREFETCH_LANES {
            threads.spawn(engine, "hps-prefetch", move |e| e.serve_prefetches(lane))?;
        }
        if !engine.read_only {
            threads.spawn(engine, "hps-writer", |e| e.serve_flushes())?;
            for thread in 0..engine.compaction_threads() {
                let name = format!("hps-compact-{thread}");
                threads.spawn(engine, name, |e| e.serve_compactions())?;
            }
        }
        Ok(threads)
    }

    fn spawn(
        &mut self,
        engine: &Arc<Engine>,
        name: impl Into<String>,
        work: impl FnOnce(Arc<Engine>) + Send + 'static,
    ) -> Result<()> {
        let engine = Arc::clone(engine);
        let root = engine.ssd.root.path().to_path_buf();
        let builder = thread::Builder::new().name(name.into());
        let handle = builder
            .spawn(move || work(engine))
            .map_err(|e| Error::io("start a thread for", &root, e))?;
        self.handles.push(handle);
        Ok(())
    }

    /// Forgets all: in a forked child they do not run.
    pub fn leave_to_parent(&mut self) {
        self.handles.drain(..).for_each(std::mem::forget);
    }

    /// Waits for all to end; the engine is closed.
    pub fn join(&mut self, engine: &Engine) {
        engine.prefetches.wake();
        engine.flushed.notify();
        engine.low.notify();
        engine.compacted.notify();
        engine.leases.dropped.notify();
        for handle in self.handles.drain(..) {
            if handle.join().is_err() {
                tracing::error!("a background thread of the store panicked");
            }
        }
    }
}

impl Engine {
    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn serve_flushes(&self) {
        loop {
            // Before the question: a close that notifies in between is seen.
            let seen = self.low.count();
            if self.is_closed() {
                return;
            }
            match self.flush_low() {
                Ok(0) => self.low.wait(seen, PAUSE),
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(%error, "a flush failed; the rows stay in memory");
                    self.low.wait(self.low.count(), AFTER_ERROR);
                    thread::sleep(Duration::from_millis(20));
                }
            }
        }
    }

    fn serve_compactions(&self) {
        loop {
            let seen = self.flushed.count();
            if self.is_closed() {
                return;
            }
            let Some(turn) = self.turns.next() else {
                self.flushed.wait(seen, PAUSE);
                if self.flushed.count() == seen {
                    self.turns.look_again();
                }
                continue;
            };
            let compacted = self.compact_turn(&turn);
            drop(turn);
            if compacted {
                self.publish(false);
            }
        }
    }
}
