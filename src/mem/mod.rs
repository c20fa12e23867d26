//! Which rows are in memory, and which of them leave next? The MEM-PS.
//!
//! - A [`TableCache`] holds the rows of one table in one shard, in a number of slots fixed when
//!   it is made: its memory never exceeds the bytes it was given.
//! - It does no I/O and takes no lock. What has to be read or written is told by slot numbers;
//!   the caller reads and writes, and reports back.
//! - A pinned row keeps its slot. A dirty row keeps its slot until its write was reported done.
//! - The policy decides the order in which rows leave, and nothing else: no value depends on it.

mod cache;
mod hits;
mod policy;
mod queues;
mod row_state;
mod slab;
#[cfg(test)]
mod tests;
mod victims;
mod words;

#[cfg(any(test, feature = "sim"))]
pub use self::cache::Level;
pub use self::cache::{CacheConfig, TableCache};
#[cfg(any(test, feature = "sim"))]
pub use self::hits::Hits;
pub use self::policy::halved;
pub use self::row_state::Flags;
#[cfg(any(test, feature = "sim"))]
pub use self::row_state::Left;
#[cfg(any(test, feature = "sim"))]
pub use self::victims::Taken;
pub use self::victims::Victim;
#[cfg(all(not(test), feature = "sim"))]
pub use crate::units::Slot;
