//! `hps`: an embedded, SSD-first store for the sparse parameters of embedding models that do not
//! fit in memory.
//!
//! A trainer hands it batches of u64 keys, gets rows, hands gradients back. Rows live on SSD in
//! append-only parameter files; memory is a cache with a hard budget; a checkpoint is a consistent
//! cut that survives any crash.
//!
//! ```
//! use hps::{CreateOptions, RuntimeOptions, Store, TableDescriptor, Update};
//!
//! # fn main() -> hps::Result<()> {
//! # let directory = std::env::temp_dir().join(format!("hps-doc-{}", std::process::id()));
//! let options = RuntimeOptions::new().cache_bytes(16 << 20);
//! let store = Store::create(&directory, CreateOptions::new(), options.clone())?;
//! let table = store.create_table(&TableDescriptor::new("clicks", 8))?;
//!
//! let keys = [7, 42, 7];
//! let mut weights = vec![0.0; keys.len() * 8];
//! let lease = store.pull(table, &keys, &mut weights)?; // resident and pinned
//! let gradients = vec![0.5; weights.len()];
//! store.push(&lease, Update::gradients(&gradients, 0.05))?; // AdaGrad, equal keys summed
//! drop(lease); // the rows may leave memory
//! store.checkpoint(1, b"the trainer's own state")?; // survives a crash from here on
//! store.close()?;
//!
//! let store = Store::open(&directory, options)?;
//! assert_eq!(store.contains(table, &[7, 42, 8])?, [true, true, false]);
//! # store.close()?;
//! # std::fs::remove_dir_all(&directory).ok();
//! # Ok(())
//! # }
//! ```

mod batch;
mod error;
mod fork;
#[cfg(feature = "sim")]
#[doc(hidden)]
pub mod format;
#[cfg(not(feature = "sim"))]
mod format;
pub mod hbm;
mod in_use;
pub mod inspect;
#[cfg(feature = "sim")]
#[doc(hidden)]
pub mod io;
#[cfg(not(feature = "sim"))]
mod io;
#[cfg(feature = "sim")]
#[doc(hidden)]
pub mod keymap;
#[cfg(not(feature = "sim"))]
mod keymap;
#[cfg(feature = "sim")]
#[doc(hidden)]
pub mod mem;
#[cfg(not(feature = "sim"))]
mod mem;
mod observe;
mod options;
mod pages;
pub mod repair;
#[cfg(feature = "sim")]
#[doc(hidden)]
pub mod row;
#[cfg(not(feature = "sim"))]
mod row;
#[cfg(feature = "sim")]
#[doc(hidden)]
pub mod ssd;
#[cfg(not(feature = "sim"))]
mod ssd;
mod stats;
mod store;
#[cfg(not(hps_shuttle))]
mod sync;
#[cfg(hps_shuttle)]
#[doc(hidden)]
pub mod sync;
mod units;

pub use error::{ArgumentError, Error, Holder, Result};
pub use format::FORMAT_VERSION;
pub use io::KeyType;
#[cfg(feature = "sim")]
#[doc(hidden)]
pub use options::Thresholds;
pub use options::{
    CreateOptions, DIM_MAX, Dtype, HyperParameters, Initialiser, IoEngine, NonFinite, Optimizer,
    PolicyKind, RowMetadata, RuntimeOptions, TABLES_MAX, TableDescriptor, TableOptions,
};
pub use stats::{Stats, TableStats, WAIT_BUCKETS, Wait, WaitStats};
pub use store::{
    Change, CheckpointInfo, CheckpointTicket, CompactLimits, CompactProgress, CompactReport,
    CursorInfo, DeltaBase, DeltaInfo, DeltaReport, DirectoryInfo, DropReport, FileInfo, Hold,
    Identity, Incremental, Lease, LeasePart, Pass, PassPart, PassReport, PassTable, PassTicket,
    PrefetchPart, PullPart, PushPart, PushReport, PutReport, PutRows, Row, RowIter, Store, Ticket,
    Unique, Update,
};
#[cfg(feature = "sim")]
#[doc(hidden)]
pub use units::FileSlot;
pub use units::{CheckpointId, FileNumber, TableId, mix64, part_range, unmix64};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("../docs/OBSERVABILITY.md")]
struct Observability;
