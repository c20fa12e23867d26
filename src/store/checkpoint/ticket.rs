//! How does the caller learn that a checkpoint is durable?

use std::sync::{Arc, PoisonError};

use crate::error::{Error, Result};
use crate::fork::Process;
use crate::format::manifest::CheckpointMeta;
use crate::sync::{Condvar, Mutex};

/// A durable checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckpointInfo {
    /// Never used again, also after a rollback.
    pub id: u64,
    /// The trainer's step.
    pub step: u64,
    /// Seconds since 1970 at which it was made.
    pub unix_seconds: u64,
    /// Bytes of the trainer's meta.
    pub meta_bytes: u64,
}

impl From<&CheckpointMeta> for CheckpointInfo {
    fn from(meta: &CheckpointMeta) -> CheckpointInfo {
        let header = crate::format::meta::META_HEADER_BYTES as u64;
        CheckpointInfo {
            id: meta.id,
            step: meta.step,
            unix_seconds: meta.unix_seconds,
            meta_bytes: meta.meta_bytes.saturating_sub(header),
        }
    }
}

/// How a checkpoint ended, once it has.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    result: Mutex<Option<Result<CheckpointInfo>>>,
    done: Condvar,
}

/// A checkpoint on its way to the device.
#[derive(Debug)]
pub struct CheckpointTicket {
    outcome: Arc<Outcome>,
    process: Process,
}

impl CheckpointTicket {
    pub(super) fn new(outcome: &Arc<Outcome>, process: Process) -> CheckpointTicket {
        CheckpointTicket {
            outcome: Arc::clone(outcome),
            process,
        }
    }

    /// Whether [`CheckpointTicket::wait`] returns at once: the checkpoint is durable, or failed.
    #[must_use]
    pub fn is_done(&self) -> bool {
        if !self.process.is_this() {
            return true;
        }
        self.outcome
            .result
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_some()
    }

    /// Waits until the checkpoint is durable.
    ///
    /// # Durability
    /// Every push before `checkpoint_begin` survives a crash once this returns.
    ///
    /// # Errors
    /// `NoSpace`, `Io`, `Poisoned`: the last checkpoint stays in force.
    pub fn wait(self) -> Result<CheckpointInfo> {
        if !self.process.is_this() {
            return Err(Error::Forked);
        }
        let mut result = self
            .outcome
            .result
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(result) = result.take() {
                return result;
            }
            result = self
                .outcome
                .done
                .wait(result)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Outcome {
    /// Tells whoever waits, and the log.
    pub(super) fn finish(&self, result: Result<CheckpointInfo>) {
        match &result {
            Ok(_) => tracing::info!("the checkpoint is durable"),
            Err(error) => {
                tracing::error!(%error, "a checkpoint failed; the last one stays in force");
            }
        }
        *self.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        self.done.notify_all();
    }
}
