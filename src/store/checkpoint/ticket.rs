//! How does the caller learn that a checkpoint is durable?

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{ArgumentError, Error, Result};
use crate::fork::Process;
use crate::format::manifest::CheckpointMeta;
use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::units::{CheckpointId, LONGEST_WAIT};

/// A durable checkpoint.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct CheckpointInfo {
    /// Never used again, also after a rollback.
    pub id: CheckpointId,
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
    told: Mutex<Told>,
    done: Condvar,
}

#[derive(Debug, Default)]
enum Told {
    #[default]
    Running,
    Done(Result<CheckpointInfo>),
    /// And somebody knows.
    Yes,
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
        !matches!(*self.outcome.lock(), Told::Running)
    }

    /// Waits until the checkpoint is durable.
    ///
    /// # Durability
    /// Every push before `checkpoint_begin` survives a crash once this returns.
    ///
    /// # Errors
    /// `NoSpace`, `Io`, `Poisoned`: the last checkpoint stays in force.
    pub fn wait(self) -> Result<CheckpointInfo> {
        // As good as for ever: a wait ends when the checkpoint does.
        const ALWAYS: Duration = Duration::from_secs(1 << 32);
        self.wait_for(ALWAYS)
    }

    /// Waits at most `limit`. After `Deadline` the checkpoint goes on, and may be waited for again.
    ///
    /// # Durability
    /// As [`CheckpointTicket::wait`].
    ///
    /// # Errors
    /// `Deadline` when it is not durable yet; `InvalidArgument` once its end was told; else as
    /// [`CheckpointTicket::wait`].
    ///
    /// # Examples
    /// ```
    /// # use hps::*;
    /// # let directory = std::env::temp_dir().join(format!("hps-begun-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// # let items = store.create_table(&TableDescriptor::new("items", 4))?;
    /// # let lease = store.pull(items, &[7, 8], &mut [0.0; 8])?;
    /// # store.push(&lease, Update::weights(&[0.5; 8]))?;
    /// # drop(lease);
    /// let ticket = store.checkpoint_begin(1, &[])?;
    /// let info = loop {
    ///     match ticket.wait_for(std::time::Duration::from_millis(10)) {
    ///         Err(Error::Deadline { .. }) => println!("not durable yet"),
    ///         ended => break ended?,
    ///     }
    /// };
    /// # assert_eq!(info.step, 1);
    /// # store.close()?;
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn wait_for(&self, limit: Duration) -> Result<CheckpointInfo> {
        if !self.process.is_this() {
            return Err(Error::Forked);
        }
        let since = Instant::now();
        let mut told = self.outcome.lock();
        loop {
            match std::mem::replace(&mut *told, Told::Yes) {
                Told::Done(result) => return result,
                Told::Yes => {
                    let what = String::from("this ticket has told how its checkpoint ended");
                    return Err(ArgumentError::Other { what }.into());
                }
                Told::Running => *told = Told::Running,
            }
            let left = limit.saturating_sub(since.elapsed());
            if left.is_zero() {
                return Err(Error::deadline(since));
            }
            let waited = self.outcome.done.wait_timeout(told, left.min(LONGEST_WAIT));
            told = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Outcome {
    fn lock(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells whoever waits, and the log.
    pub(super) fn finish(&self, result: Result<CheckpointInfo>) {
        match &result {
            Ok(_) => tracing::info!("the checkpoint is durable"),
            Err(error) => {
                tracing::error!(%error, "a checkpoint failed; the last one stays in force");
            }
        }
        *self.lock() = Told::Done(result);
        self.done.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> CheckpointInfo {
        CheckpointInfo {
            id: CheckpointId(4),
            step: 5,
            unix_seconds: 6,
            meta_bytes: 7,
        }
    }

    #[test]
    fn a_ticket_tells_once_how_its_checkpoint_ended() {
        let outcome = Arc::new(Outcome::default());
        let ticket = CheckpointTicket::new(&outcome, Process::this());
        assert!(!ticket.is_done());
        let since = Instant::now();
        let late = ticket.wait_for(Duration::from_millis(20));
        assert!(matches!(late, Err(Error::Deadline { .. })), "{late:?}");
        assert!(since.elapsed() >= Duration::from_millis(20));
        assert!(!ticket.is_done());
        outcome.finish(Ok(info()));
        assert!(ticket.is_done());
        assert_eq!(ticket.wait_for(Duration::ZERO).unwrap(), info());
        assert!(ticket.is_done());
        let again = ticket.wait_for(Duration::ZERO);
        assert!(matches!(again, Err(Error::InvalidArgument(_))), "{again:?}");
    }

    #[test]
    fn whoever_waits_is_woken_when_the_checkpoint_ends() {
        let outcome = Arc::new(Outcome::default());
        let ticket = CheckpointTicket::new(&outcome, Process::this());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                outcome.finish(Ok(info()));
            });
            let since = Instant::now();
            assert_eq!(ticket.wait_for(Duration::from_secs(60)).unwrap(), info());
            assert!(since.elapsed() < Duration::from_secs(30));
        });
    }
}
