//! What may differ from table to table, and from open to open?

use super::{HyperParameters, PolicyKind, RuntimeOptions};

/// Options of one table. What it leaves open is as [`RuntimeOptions`] says for all tables.
///
/// ```
/// use hps::{HyperParameters, PolicyKind, RuntimeOptions, TableOptions};
///
/// let calm = TableOptions::new().hyper(HyperParameters::new().beta1(0.5));
/// let options = RuntimeOptions::new()
///     .policy(PolicyKind::Lru)
///     .table("users", TableOptions::new().policy(PolicyKind::PinAll))
///     .table("clicks", calm);
/// assert_eq!(options.tables["clicks"].policy, None); // as all: Lru
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct TableOptions {
    /// Hyperparameters of the table's update rule. Default: [`RuntimeOptions`]'s.
    pub hyper: Option<HyperParameters>,
    /// Which of the table's rows leave memory first. Default: [`RuntimeOptions`]'s.
    pub policy: Option<PolicyKind>,
    /// Memory of the cache, in bytes, that the table's rows keep while other tables need it: theirs leave
    /// first. It is not set aside: a batch may need it, and until the table has so many rows others
    /// have it. Default 0.
    pub cache_bytes_min: u64,
    /// Memory of the cache, in bytes, that the table's rows take at most, but for rows that leases or
    /// dirty rows hold: beyond it, rows of its own leave for those that come. Default: none.
    pub cache_bytes_max: Option<u64>,
}

impl TableOptions {
    /// As all tables.
    #[must_use]
    pub fn new() -> TableOptions {
        TableOptions::default()
    }

    /// Sets [`hyper`](field@TableOptions::hyper).
    #[must_use]
    pub fn hyper(mut self, hyper: HyperParameters) -> TableOptions {
        self.hyper = Some(hyper);
        self
    }

    /// Sets [`policy`](field@TableOptions::policy).
    #[must_use]
    pub fn policy(mut self, policy: PolicyKind) -> TableOptions {
        self.policy = Some(policy);
        self
    }

    /// Sets [`cache_bytes_min`](field@TableOptions::cache_bytes_min).
    #[must_use]
    pub fn cache_bytes_min(mut self, bytes: u64) -> TableOptions {
        self.cache_bytes_min = bytes;
        self
    }

    /// Sets [`cache_bytes_max`](field@TableOptions::cache_bytes_max).
    #[must_use]
    pub fn cache_bytes_max(mut self, bytes: u64) -> TableOptions {
        self.cache_bytes_max = Some(bytes);
        self
    }

    /// The hyperparameters of a table with these options.
    pub(crate) fn hyper_or(&self, all: &RuntimeOptions) -> HyperParameters {
        self.hyper.unwrap_or(all.hyper)
    }

    /// The policy of a table with these options.
    pub(crate) fn policy_or(&self, all: &RuntimeOptions) -> PolicyKind {
        self.policy.unwrap_or(all.policy)
    }
}

impl RuntimeOptions {
    /// Sets the options of one table in [`tables`](field@RuntimeOptions::tables).
    #[must_use]
    pub fn table(mut self, name: &str, options: TableOptions) -> RuntimeOptions {
        self.tables.insert(name.to_owned(), options);
        self
    }

    /// What is said for the table of this name.
    pub(crate) fn of_table(&self, name: &str) -> TableOptions {
        self.tables.get(name).copied().unwrap_or_default()
    }
}
