//! Which threads does an open store keep?
//!
//! - `hps-prefetch`, two of them, serve tickets and publish the counters, `hps-pass` brings passes in, `hps-warm` reads rows
//!   back after an open and ends,
//!   `hps-writer` flushes caches that run low, `hps-compact-N` compact. A checkpoint has a thread of its own while it runs.
//! - All end when the store is closed or dropped. One that panics ends too, and poisons the store.

use std::sync::Arc;

use super::super::Parts;
use super::super::core::Core;
use super::super::workers::PREFETCH_POOLS;
use crate::error::{Error, Result};
use crate::sync::thread::{self, JoinHandle};

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
    pub fn start(parts: &Parts) -> Result<Threads> {
        let mut threads = Threads::default();
        if let Err(error) = threads.start_all(parts) {
            // Those that were started would keep the files, and the store's lock with them.
            parts.core.close();
            threads.join(&parts.core);
            return Err(error);
        }
        Ok(threads)
    }

    fn start_all(&mut self, parts: &Parts) -> Result<()> {
        let core = &parts.core;
        let is_warm = parts.warmer.is_wanted();
        if core.options.inline {
            if is_warm {
                parts.warmer.run();
            }
            return Ok(());
        }
        for pool in 0..PREFETCH_POOLS {
            let puller = Arc::clone(&parts.puller);
            self.spawn(core, "hps-prefetch", move || puller.serve(pool))?;
        }
        let passes = Arc::clone(&parts.passes);
        self.spawn(core, "hps-pass", move || passes.serve())?;
        if is_warm {
            let warmer = Arc::clone(&parts.warmer);
            self.spawn(core, "hps-warm", move || warmer.run())?;
        }
        if core.read_only {
            return Ok(());
        }
        let flusher = Arc::clone(&parts.flusher);
        self.spawn(core, "hps-writer", move || flusher.serve())?;
        for thread in 0..parts.compactor.threads() {
            let compactor = Arc::clone(&parts.compactor);
            let name = format!("hps-compact-{thread}");
            self.spawn(core, name, move || compactor.serve())?;
        }
        Ok(())
    }

    fn spawn(
        &mut self,
        core: &Arc<Core>,
        name: impl Into<String>,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<()> {
        let core = Arc::clone(core);
        let root = core.ssd.root.path().to_path_buf();
        let builder = thread::Builder::new().name(name.into());
        #[cfg(test)]
        crate::sync::refused::ask().map_err(|e| Error::io("start a thread for", &root, e))?;
        let handle = builder
            .spawn(move || {
                let _panicked = core.survive(work);
            })
            .map_err(|e| Error::thread(&root, e))?;
        self.handles.push(handle);
        Ok(())
    }

    /// Forgets all: in a forked child they do not run.
    pub fn leave_to_parent(&mut self) {
        self.handles.drain(..).for_each(std::mem::forget);
    }

    /// Waits for all to end; the store is closed.
    pub fn join(&mut self, core: &Core) {
        core.wake_all();
        for handle in self.handles.drain(..) {
            if handle.join().is_err() {
                tracing::error!("a background thread of the store panicked");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::io::sim::SimDisk;
    use crate::options::CreateOptions;
    use crate::sync::refused::LEFT;
    use crate::*;
    use std::path::Path;
    use std::sync::Arc;

    /// The third thread could not be had (`pids.max`): the two before it kept the files and their
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
        let store = Store::create_on(
            Arc::clone(&disk),
            path,
            CreateOptions::new(),
            options.clone(),
        )
        .unwrap();
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
                "{threads} threads: who has the disk?"
            );
        }
        LEFT.set(usize::MAX);
        Store::open_on(disk, path, options)
            .unwrap()
            .close()
            .unwrap();
    }
}
