//! Which rows leave memory first?

use crate::error::{ArgumentError, Result};

/// Which rows leave memory first.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
#[non_exhaustive]
pub enum PolicyKind {
    /// LRU list of current rows, LFU list of candidates, frequencies that survive eviction.
    #[default]
    Bilevel,
    /// Least recently used: a row that was used since its turn came last gets a second chance.
    Lru,
    /// First in, first out.
    Fifo,
    /// Rows stay once they are in memory; a table that does not fit is an error.
    PinAll,
    /// As [`PolicyKind::PinAll`], and the whole table is read when the store is opened (HugeCTR's
    /// Staged-PS): from then on no read and, but for checkpoints, no write. For a table that gets it while
    /// the store is open it is `PinAll`.
    Staged,
    /// Rows of some passes stay, a *block* each (HugeCTR's Cached-PS); others leave when their pass ends.
    /// See [`Store::begin_pass`](crate::Store::begin_pass). The cache needs room for `num_blocks` + 1 passes.
    Cached {
        /// Passes whose rows stay; 0: none, each pass is read from SSD.
        num_blocks: u32,
        /// Where a pass has a lower share of its known keys in blocks, the oldest block leaves for it. 0 to 1.
        target_hit_rate: f64,
        /// So often at most, until [`Store::unfreeze`](crate::Store::unfreeze).
        max_num_evict: u64,
    },
}

impl PolicyKind {
    /// The policy by which single rows leave.
    pub(crate) const fn of_rows(self) -> PolicyKind {
        match self {
            PolicyKind::Staged => PolicyKind::PinAll,
            PolicyKind::Cached { .. } => PolicyKind::Fifo,
            own => own,
        }
    }

    /// Whether passes become blocks.
    pub(crate) const fn has_blocks(self) -> bool {
        matches!(self, PolicyKind::Cached { .. })
    }

    /// Whether rows stay whatever happens.
    pub(crate) const fn keeps_all(self) -> bool {
        matches!(self.of_rows(), PolicyKind::PinAll)
    }

    /// Checks its numbers.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub(crate) fn validate(self) -> Result<()> {
        let PolicyKind::Cached {
            target_hit_rate, ..
        } = self
        else {
            return Ok(());
        };
        if (0.0..=1.0).contains(&target_hit_rate) {
            return Ok(());
        }
        let (name, value) = ("target_hit_rate", target_hit_rate.to_string());
        let why = String::from("must be 0 to 1");
        Err(ArgumentError::Option { name, value, why }.into())
    }
}
