//! Which threads does an open store keep?
//!
//! - `hps-prefetch`, two of them, serve tickets and publish the counters, `hps-writer` flushes
//!   caches that run low, `hps-compact-N` compact. A checkpoint has a thread of its own while it runs.
//! - All end when the store is closed or dropped. One that panics ends too, and poisons the store.

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
        if let Err(error) = threads.start_all(engine) {
            // Those that were started would keep the engine, and the store's lock with it.
            engine.closed.store(true, Ordering::Release);
            threads.join(engine);
            return Err(error);
        }
        Ok(threads)
    }

    fn start_all(&mut self, engine: &Arc<Engine>) -> Result<()> {
        let threads = self;
        if engine.options.inline {
            return Ok(());
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
        Ok(())
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
        #[cfg(test)]
        crate::sync::refused::ask().map_err(|e| Error::io("start a thread for", &root, e))?;
        let handle = builder
            .spawn(move || {
                let _panicked = engine.survive(|| work(Arc::clone(&engine)));
            })
            .map_err(|e| Error::thread(&root, e))?;
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
        // That writes are refused is said once: it stays so until the store is opened again.
        let mut refusal_said = false;
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
                    let refused = matches!(error, Error::Poisoned { .. });
                    if !(refused && refusal_said) {
                        tracing::warn!(%error, "a flush failed; the rows stay in memory");
                    }
                    refusal_said |= refused;
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

#[cfg(test)]
mod tests {
    use crate::io::sim::SimDisk;
    use crate::sync::refused::LEFT;
    use crate::*;
    use std::path::Path;
    use std::sync::Arc;

    /// The third thread could not be had (`pids.max`): the two before it kept the engine and its
    /// lock, and the store was `Locked` for this process from then on.
    #[test]
    fn a_start_without_enough_threads_leaves_none_and_no_lock() {
        let disk = Arc::new(SimDisk::new(1));
        let path = Path::new("/store");
        let options = RuntimeOptions {
            cache_bytes: 1 << 20,
            threads: 1,
            ..RuntimeOptions::default()
        };
        let store = Store::create_on(Arc::clone(&disk), path, options.clone()).unwrap();
        store.close().unwrap();
        let held = Arc::strong_count(&disk);
        for threads in 0..4 {
            LEFT.set(threads);
            let error = Store::open_on(Arc::clone(&disk), path, options.clone()).unwrap_err();
            assert!(
                matches!(error, Error::Io { .. }),
                "{threads} threads: {error}"
            );
            assert_eq!(
                Arc::strong_count(&disk),
                held,
                "{threads} threads: who has the engine?"
            );
        }
        LEFT.set(usize::MAX);
        Store::open_on(disk, path, options)
            .unwrap()
            .close()
            .unwrap();
    }
}
