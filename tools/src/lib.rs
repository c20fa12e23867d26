//! What do the command line tools of hps share?
//!
//! - `bench`: the workloads of `hps-bench`, and the machine's own limits beside them.
//! - `trace`: recorded keys, replayed through cache policies.
//! - `peers` (feature): other stores under the same workloads.

pub mod bench;
#[cfg(feature = "peers")]
pub mod peers;
pub mod trace;
