//! Which parts does an open store have?

use std::sync::{Arc, Weak};

use super::checkpoint::Checkpointer;
use super::compact::Compactor;
use super::core::{Core, Part};
use super::delta::Applier;
use super::flush::Flusher;
use super::lease::Leases;
use super::pass::Passes;
use super::pull::Puller;
use super::push::Pusher;
use super::put::Putter;
use super::warm::Warmer;
use super::workers::Workers;
use crate::error::Result;

/// The parts of an open store. Each owns its state and its locks, and calls only those above it in
/// this list.
#[derive(Clone, Debug)]
pub struct Parts {
    /// Files, shards, tables.
    pub core: Arc<Core>,
    /// Worker threads and arrays of batches.
    pub workers: Arc<Workers>,
    /// Outstanding leases.
    pub leases: Arc<Leases>,
    /// Leaves stale rows behind.
    pub compactor: Arc<Compactor>,
    /// Writes dirty rows.
    pub flusher: Arc<Flusher>,
    /// Brings rows.
    pub puller: Arc<Puller>,
    /// Keeps the rows of passes.
    pub passes: Arc<Passes>,
    /// Changes rows.
    pub pusher: Arc<Pusher>,
    /// Writes whole rows.
    pub putter: Arc<Putter>,
    /// Makes checkpoints.
    pub checkpointer: Arc<Checkpointer>,
    /// Reads rows back that were in memory before the open.
    pub warmer: Arc<Warmer>,
    /// Deltas that are applied.
    pub applier: Arc<Applier>,
}

impl Parts {
    /// On a core.
    ///
    /// # Errors
    /// `Io` when a submission queue can't be made.
    pub fn new(core: Core, workers: Workers) -> Result<Parts> {
        let (core, workers) = (Arc::new(core), Arc::new(workers));
        let leases = Arc::new(Leases::new(&core, &workers));
        let compactor = Arc::new(Compactor::new(&core));
        let flusher = Arc::new(Flusher::new(&core, &compactor)?);
        let puller = Arc::new(Puller::new(&core, &workers, &leases, &flusher));
        let pusher = Arc::new(Pusher::new(&core, &workers));
        let putter = Arc::new(Putter::new(&core, &workers, &flusher, &puller));
        let passes = Arc::new(Passes::new(&core, &workers, &leases, &puller, &putter));
        let checkpointer = Arc::new(Checkpointer::new(&core, &compactor, &flusher));
        let warmer = Arc::new(Warmer::new(&core));
        let parts = Parts {
            core,
            workers,
            leases,
            compactor,
            flusher,
            puller,
            passes,
            pusher,
            putter,
            checkpointer,
            warmer,
            applier: Arc::default(),
        };
        parts.core.enlist(parts.all());
        Ok(parts)
    }

    fn all(&self) -> Vec<Weak<dyn Part>> {
        fn weak<P: Part + 'static>(part: &Arc<P>) -> Weak<dyn Part> {
            let part: Weak<P> = Arc::downgrade(part);
            part
        }
        vec![
            weak(&self.workers),
            weak(&self.leases),
            weak(&self.compactor),
            weak(&self.flusher),
            weak(&self.puller),
            weak(&self.passes),
            weak(&self.checkpointer),
            weak(&self.warmer),
        ]
    }
}
