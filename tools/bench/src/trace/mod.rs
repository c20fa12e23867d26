//! Which keys did a real run ask for, and how well would a cache have held them?
//!
//! - [`TraceWriter`] records the batches of a run, [`TraceReader`] reads them back: `format` says
//!   how they lie in the file. A file that was cut, changed or not finished is an error that names
//!   the place; no bytes make the reader panic or allocate more than the file holds.
//! - [`Accesses`] is a trace in memory: unique rows of each batch, numbered.
//! - [`generated`] draws a trace instead, without a file; so does `hot_table`, for 26 tables.
//! - [`replay`] runs the same accesses through the engine's own cache, driven in the engine's order of
//!   calls, and through textbook policies that have as many rows, or as many bytes.
//! - All start empty, and a row's first use is a miss for each of them. So Belady's choice, which
//!   knows the future, bounds every one of them from below.

mod accesses;
pub mod belady;
pub mod counts;
pub(crate) mod format;
pub mod generated;
mod lists;
pub mod ours;
pub mod policies;
mod reader;
mod replay;
mod replay_args;
mod replay_text;
mod writer;

pub(crate) use self::accesses::Builder;
pub use self::accesses::{Accesses, TraceTable};
pub use self::reader::TraceReader;
pub use self::replay::{misses, replay};
pub use self::replay_args::{Competitor, ReplayArgs};
pub use self::writer::TraceWriter;
