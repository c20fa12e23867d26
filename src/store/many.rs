//! How are the rows of several tables asked for and changed in one call?

use super::lease::Lease;
use super::pull::{PrefetchPart, PullPart, Ticket};
use super::push::{PushPart, PushReport};
use super::{Result, Store};

impl Store {
    /// Makes rows of several tables resident, pins them and copies their weights: all parts or none,
    /// under one lease. A table may be in several parts, and a key in several of them.
    ///
    /// # Shapes
    /// Of each part, keys: `[n]`, any u64, duplicates allowed; out: `[n, dim]`, in the same order
    ///
    /// # Cost
    /// That of one [`Store::pull`] of as many keys: one admission, each shard locked once for all
    /// parts, its cold rows sorted and read together through the queue of the thread that serves it.
    ///
    /// # Durability
    /// None.
    ///
    /// # Errors
    /// (Nothing is pinned, of no part; what is in the outs then is undefined.)
    /// `OverBudget` when all parts together can't be in memory beside the outstanding leases (nobody
    /// waits for these; it names the table that needs the largest cache), `InvalidArgument` (no part, a table of
    /// another store, another length of an `out`), `Io`, `Corrupt`, `NoSpace` or `Poisoned` (room
    /// needed a flush).
    ///
    /// # Examples
    /// ```
    /// # use hps::{CreateOptions, PullPart, PushPart, RuntimeOptions, Store, TableDescriptor, Update};
    /// # let directory = std::env::temp_dir().join(format!("hps-pull-many-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// let users = store.create_table(&TableDescriptor::new("users", 8))?;
    /// let ads = store.create_table(&TableDescriptor::new("ads", 4))?;
    ///
    /// let (mut of_users, mut of_ads) = (vec![0.0; 3 * 8], vec![0.0; 2 * 4]);
    /// let lease = store.pull_many(&mut [
    ///     PullPart::new(users, &[7, 42, 7], &mut of_users),
    ///     PullPart::new(ads, &[1, 2], &mut of_ads),
    /// ])?;
    /// let dims: Vec<usize> = lease.parts().map(|part| part.dim()).collect();
    /// assert_eq!(dims, [8, 4]);
    ///
    /// let (up, down) = (vec![0.5; 3 * 8], vec![-0.5; 2 * 4]);
    /// let reports = store.push_many(
    ///     &lease,
    ///     &[
    ///         PushPart::new(users, Update::gradients(&up, 0.05)),
    ///         PushPart::new(ads, Update::gradients(&down, 0.1)),
    ///     ],
    /// )?;
    /// assert_eq!((reports[0].rows, reports[1].rows), (2, 2));
    /// # drop(lease);
    /// # store.close_discarding();
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn pull_many(&self, parts: &mut [PullPart<'_>]) -> Result<Lease> {
        self.call(|store| store.puller.pull_many(parts))
    }

    /// Starts making rows of several tables resident, all parts or none. Values are gathered when the
    /// lease is read ([`Lease::read_many`]).
    ///
    /// # Shapes
    /// Of each part, keys: `[n]`
    ///
    /// # Cost
    /// The keys are copied; the rest is done by a thread of the store, as [`Store::pull_many`] would.
    ///
    /// # Durability
    /// None.
    ///
    /// # Errors
    /// `InvalidArgument` (no part, a table of another store); everything else comes from
    /// [`Ticket::wait`].
    ///
    /// # Examples
    /// ```
    /// # use hps::{CreateOptions, PrefetchPart, RuntimeOptions, Store, TableDescriptor};
    /// # let directory = std::env::temp_dir().join(format!("hps-ahead-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// # let users = store.create_table(&TableDescriptor::new("users", 8))?;
    /// # let ads = store.create_table(&TableDescriptor::new("ads", 4))?;
    /// let ticket = store.prefetch_many(&[
    ///     PrefetchPart::new(users, &[7, 42]),
    ///     PrefetchPart::new(ads, &[1, 2, 3]),
    /// ])?;
    /// // ... train on the batch before ...
    /// let lease = ticket.wait()?;
    /// for part in lease.parts() {
    ///     let mut weights = vec![0.0; part.len() * part.dim()];
    ///     part.read(&mut weights)?;
    /// }
    /// # drop(lease);
    /// # store.close()?;
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn prefetch_many(&self, parts: &[PrefetchPart<'_>]) -> Result<Ticket> {
        self.call(|store| store.puller.prefetch_many(parts))
    }

    /// Changes the rows of all parts of a lease. Parts are applied in their order, each as a
    /// [`Store::push`] of its own: a row that is in two parts is changed by one, then by the other. A
    /// part whose rows are to stay as they are gets an update at no positions ([`Update::at`]).
    ///
    /// [`Update::at`]: crate::Update::at
    ///
    /// # Shapes
    /// parts: one for each part of the lease, in its order; result: the same
    ///
    /// # Cost
    /// No I/O; a pass over the values of each part, then one over the rows of all.
    ///
    /// # Durability
    /// With the next checkpoint: all parts, or none where its cut came before.
    ///
    /// # Errors
    /// `InvalidArgument` (a lease of another store, not as many parts as it has, another table than a
    /// part's, lengths, lr, positions, values that are not finite when the options reject them),
    /// `ReadOnly`, `Poisoned`; nothing changed, of no part. Only a store that is poisoned meanwhile may have
    /// changed some rows in memory, which no checkpoint will have.
    ///
    /// # Examples
    /// ```
    /// # use hps::{CreateOptions, PrefetchPart, PushPart, RuntimeOptions, Store};
    /// # use hps::{TableDescriptor, Update};
    /// # let directory = std::env::temp_dir().join(format!("hps-push-many-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// # let users = store.create_table(&TableDescriptor::new("users", 2))?;
    /// # let ads = store.create_table(&TableDescriptor::new("ads", 1))?;
    /// # let wanted = [PrefetchPart::new(users, &[1]), PrefetchPart::new(ads, &[5])];
    /// # let lease = store.prefetch_many(&wanted)?.wait()?;
    /// // The lease has a part of users and one of ads, which stay as they are.
    /// let (gradients, nothing) = ([0.5, -0.5], []);
    /// let reports = store.push_many(
    ///     &lease,
    ///     &[
    ///         PushPart::new(users, Update::gradients(&gradients, 0.05)),
    ///         PushPart::new(ads, Update::weights(&nothing).at(&[])),
    ///     ],
    /// )?;
    /// assert_eq!((reports[0].rows, reports[1].rows), (1, 0));
    /// # drop(lease);
    /// # store.close_discarding();
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn push_many(&self, lease: &Lease, parts: &[PushPart<'_>]) -> Result<Vec<PushReport>> {
        self.call(|store| store.pusher.push_many(lease, parts))
    }
}
