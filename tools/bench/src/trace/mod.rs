//! Which keys did a real run ask for, and how well would a cache have held them?
//!
//! - [`TraceWriter`] records the batches of a run, [`TraceReader`] reads them back: `format` says
//!   how they lie in the file. A file that was cut, changed or not finished is an error that names
//!   the place; no bytes make the reader panic or allocate more than the file holds.
//! - [`Accesses`] is a trace in memory: unique rows of each batch, numbered.
//! - [`replay`] runs the same accesses through policies that each have the same bytes. Ours is the
//!   engine's own cache, driven in the engine's order of calls; the others are textbook.
//! - All start empty, and a row's first use is a miss for each of them. So Belady's choice, which
//!   knows the future, bounds every one of them from below.

mod accesses;
pub mod belady;
pub(crate) mod format;
mod lists;
pub mod ours;
pub mod policies;
mod reader;
mod replay;
mod writer;

pub use self::accesses::Accesses;
pub use self::reader::TraceReader;
pub use self::replay::{ReplayArgs, replay};
pub use self::writer::TraceWriter;
