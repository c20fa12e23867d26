//! Which history is this, and how does a checkpoint outlive its retention?

use super::Store;
use crate::error::Result;
use crate::ssd::open_reader::HeldCheckpoint;
use crate::units::CheckpointId;

/// Which store this is, and which of its histories: what a job writes down beside its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Identity {
    /// The uuid that the store got when it was made; its exports and repairs, which share its files,
    /// have it too.
    pub store: [u8; 16],
    /// The uuid of its history: a rollback, an export and a repair each begin a new one.
    pub timeline: [u8; 16],
    /// The last durable checkpoint; of a reader, the one that it has open.
    pub checkpoint: Option<CheckpointId>,
}

/// Keeps a retained checkpoint, whatever is retained, until it is dropped: it can be opened, walked and
/// exported meanwhile. [`Store::hold`] gives it.
///
/// It is the lock that a reader has: retention and [`Store::drop_checkpoints`] pass over the checkpoint,
/// in this process and in others, also after the store was closed. It ends with the process. A
/// rollback to an earlier checkpoint forgets this one all the same. While the last checkpoint is held,
/// [`Store::compact`] is `Locked`, as it is beside a reader of it. A forked child has no part in it.
#[derive(Debug)]
#[must_use = "the checkpoint is held as long as this lives"]
pub struct Hold {
    checkpoint: CheckpointId,
    _lock: HeldCheckpoint,
}

impl Hold {
    /// The checkpoint that is held.
    #[must_use]
    pub fn checkpoint(&self) -> CheckpointId {
        self.checkpoint
    }
}

impl Store {
    /// Which store and which history this is, and how far it is.
    ///
    /// # Cost
    /// No I/O.
    ///
    /// # Errors
    /// `Forked`.
    ///
    /// # Examples
    /// ```
    /// # use hps::*;
    /// # let directory = std::env::temp_dir().join(format!("hps-identity-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// let at = store.checkpoint(1, &[])?.id;
    /// let identity = store.identity()?;
    /// assert_eq!(identity.checkpoint, Some(at));
    /// let hex: String = identity.store.iter().map(|byte| format!("{byte:02x}")).collect();
    /// println!("store {hex}");
    /// # store.close()?;
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn identity(&self) -> Result<Identity> {
        let core = &self.parts.core;
        core.check_process()?;
        let checkpoint = match core.read_only {
            true => core.ssd.opened_at,
            false => core.ssd.last_id(),
        };
        Ok(Identity {
            store: core.ssd.store,
            timeline: core.ssd.timeline,
            checkpoint,
        })
    }

    /// Keeps a retained checkpoint until the [`Hold`] is dropped.
    ///
    /// # Cost
    /// CURRENT and the manifest are read twice; beside a writer that is about to drop checkpoints it is
    /// tried again for up to 2 seconds. A descriptor as long as it is held, counted in
    /// `holds` of [`Store::stats`]. The checkpoint's files stay on disk, as part of `pinned_bytes`.
    ///
    /// # Durability
    /// None: a hold ends with its process.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown checkpoint, `Locked` when it is being dropped, `Corrupt`, `Io`,
    /// `Forked`.
    ///
    /// ```
    /// # use hps::{CreateOptions, RuntimeOptions, Store};
    /// # fn main() -> hps::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("hps-hold-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// let first = store.checkpoint(1, b"evaluated for a week")?.id;
    /// let hold = store.hold(first)?;
    /// for step in 2..10 {
    ///     store.checkpoint(step, &[])?; // two are retained
    /// }
    /// assert_eq!(store.checkpoint_meta(first)?, b"evaluated for a week");
    /// drop(hold);
    /// # store.close()?;
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # Ok(())
    /// # }
    /// ```
    pub fn hold(&self, checkpoint: CheckpointId) -> Result<Hold> {
        self.call(|parts| {
            Ok(Hold {
                checkpoint,
                _lock: parts.core.ssd.hold(checkpoint)?,
            })
        })
    }
}
