//! Which rows are in memory, and which of them leave next? The MEM-PS.
//!
//! - A [`Cache`] holds the rows of all tables in one shard, in the memory that it is given: rows of
//!   different sizes share it, and those of all tables are compared when some have to leave.
//! - It does no I/O and takes no lock. What has to be read or written is told by slot numbers;
//!   the caller reads and writes, and reports back.
//! - A pinned row keeps its slot. A dirty row keeps its slot until its write was reported done.
//! - The policy decides the order in which rows leave, and nothing else: no value depends on it.

mod arena;
mod blocks;
mod cache;
mod evict;
mod hits;
mod policy;
mod queues;
mod row_state;
mod table;
#[cfg(test)]
mod tests;
mod victims;
mod words;

pub(crate) use self::arena::Place;
#[cfg(any(test, feature = "sim"))]
pub use self::cache::Level;
pub use self::cache::{Cache, CacheConfig, FlushStep, Shrunk, check_rows_fit};
pub use self::hits::AHEAD_ROWS;
#[cfg(any(test, feature = "sim"))]
pub use self::hits::Hits;
pub(crate) use self::policy::RANKS;
pub use self::policy::halved;
pub use self::row_state::Flags;
#[cfg(any(test, feature = "sim"))]
pub use self::row_state::Left;
pub use self::table::TableConfig;
#[cfg(any(test, feature = "sim"))]
pub use self::victims::Taken;
pub use self::victims::Victim;
#[cfg(all(not(test), feature = "sim"))]
pub use crate::units::Slot;
